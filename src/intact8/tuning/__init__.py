"""Mixed precision by accuracy: which tensors stay float, and what that costs in time. See docs/how_to/tune.md."""

from __future__ import annotations

from intact8.tuning.result import Trial, TuneResult
from intact8.tuning.run import tune

__all__ = ["Trial", "TuneResult", "tune"]
