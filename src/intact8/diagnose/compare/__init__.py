"""Compare: layer by layer, the float network against its integers. See docs/diagnosis.md."""

from __future__ import annotations

from intact8.diagnose.compare.report import CompareReport
from intact8.diagnose.compare.run import compare

__all__ = ["CompareReport", "compare"]
