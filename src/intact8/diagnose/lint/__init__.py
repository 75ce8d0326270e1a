"""Lint: rules with stable ids that find what goes wrong silently in quantization, each with its remedy.

Example:
    >>> import intact8, torch
    >>> sim = intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4))
    >>> print(intact8.lint(sim).findings[0])
    IQ301 error: input: no quantization point has a range yet. Remedy: show it calibration data: ...
"""

from __future__ import annotations

from .finding import SEVERITIES, Finding, LintReport
from .rule import RULES, Rule
from .rules import load
from .run import lint

__all__ = ["lint", "Finding", "LintReport", "Rule", "RULES", "SEVERITIES", "load"]
