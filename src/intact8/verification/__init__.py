"""Comparing engines integer by integer, and float32 results that are exact bit by bit: the promise, checked on data."""

from .batches import batches
from .report import Difference, VerifyReport
from .run import verify

__all__ = ["Difference", "VerifyReport", "batches", "verify"]
