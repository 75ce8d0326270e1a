"""Programs as files of other tools: written, then opened and run by the tool they are for, integers compared."""

from .export import export
from .report import ExportReport, TensorDifference

__all__ = ["ExportReport", "TensorDifference", "export"]
