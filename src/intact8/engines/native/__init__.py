"""The native engine: a program lowered to a plan, which compiled code checks once and executes in one call.

It needs numpy and the compiled library only (``native/`` in the repository). What the library has no step for is one
call of the reference's numpy function in the middle of the plan.
"""

from .engine import NativeEngine, NativeRunner

__all__ = ["NativeEngine", "NativeRunner"]
