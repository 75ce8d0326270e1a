"""One self-contained HTML page about a program, and the same figures as tables and JSON."""

from intact8.diagnose.report.contents import Report

from .build import report

__all__ = ["Report", "report"]
