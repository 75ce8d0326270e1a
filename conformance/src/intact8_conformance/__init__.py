"""Vectors of int8 operations at the corners where engines go wrong, and adapters that run them on engines.

Example:
    >>> from intact8_conformance import vectors
    >>> sorted({case.operation for case in vectors(operations=["add", "mul"])})
    ['add', 'mul']
"""

from intact8_conformance.case import Case, Grid
from intact8_conformance.compare import Result, compare
from intact8_conformance.vectors import OPERATIONS, vectors

__all__ = ["Case", "Grid", "OPERATIONS", "Result", "compare", "vectors"]
