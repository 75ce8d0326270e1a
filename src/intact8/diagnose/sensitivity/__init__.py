"""Sensitivity: what it costs to quantize a layer. See docs/diagnosis.md."""

from __future__ import annotations

from intact8.diagnose.sensitivity.report import SensitivityReport
from intact8.diagnose.sensitivity.run import sensitivity

__all__ = ["SensitivityReport", "sensitivity"]
