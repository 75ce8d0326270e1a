"""One self-contained HTML page about a program, and the same figures as tables and JSON."""

from .build import report
from .figures import Report

__all__ = ["Report", "report"]
