"""The compiled library of the native engine (``native/engine/module.c``).

Addresses and sizes are integers; sizes are in bytes. The caller answers for lifetimes: constants live as long as their
model, inputs and outputs as long as the call.
"""

from typing import Any

class Handle: ...

def step_fields() -> dict[str, str]:
    """Return kind of step → "r:x w:y n:count ": fields that are read, maybe read, written, or numbers."""

def chain_operations() -> list[str]:
    """Return the operations of chains, in the order of their numbers."""

def instruction_set() -> str:
    """Return the instruction set that kernels use; the environment variable INTACT8_ISA takes a lower one."""

def open_model() -> Handle:
    """Return an empty model."""

def add_constant(model: Handle, address: int, size: int, /) -> int:
    """Add a constant; return its number."""

def open_plan(model: Handle, words: int, count: int, /) -> Handle:
    """Check a plan of ``count`` int64 at ``words``, and prepare it.

    Raises:
        EngineError: the plan is not sound; the message says which step and why.
    """

def workspace_bytes(plan: Handle, threads: int, /) -> int:
    """Return the bytes of the workspace of a call."""

def value_offset(plan: Handle, value: int, /) -> int:
    """Return where a value lies in the workspace; -1 where it lies elsewhere."""

def run(
    plan: Handle, start: int, workspace: int, size: int, threads: int, seconds: int, inputs: int, /, *arrays: Any
) -> int:
    """Run from step ``start`` on, until a step that the caller computes, which is returned, or to the end.

    Args:
        workspace: aligned to 64 bytes.
        seconds: address of as many float64 as there are steps, to which their times are added; or 0.
        inputs: number of inputs among the arrays.
        arrays: ``__array_struct__`` of every input, then of every output, each contiguous in the order of dimensions
            that the plan expects.

    Raises:
        IndexError: an index is outside of its table.
        EngineError: an array is smaller than the plan needs.
    """

def train(name: str, threads: int, /, *words: int | float) -> None:
    """Run a pass of training (``native/engine/training.c``); the words are those of its struct there, floats as floats.

    The caller answers for addresses and sizes.

    Raises:
        TypeError: no pass has that name and so many words.
    """

def use_team(address: int, /) -> None:
    """Run passes of training on the threads of another library from now on, given its ``GOMP_parallel``; 0 for ours."""

def tensor(code: int, bits: int, /, *shape: int) -> Handle:
    """Return a tensor of undefined values as a capsule of DLPack: kind of its type (0 int, 1 uint, 2 float), and bits.

    It has 8 dimensions at most. Its memory is kept when it is freed, and taken by the next tensor of about its size.

    Raises:
        MemoryError: there is not so much.
    """

def release_tensors() -> None:
    """Free the memory that is kept for tensors to come."""
