"""Weights that take no memory while nobody reads them.

Engines pack weights in an order of their own when they prepare a program, and then the program's arrays are read no
more until another model is compiled. Here they are copied into a file without a name: the system may take such memory
back at any time, and reads it again where it is used. It is not the program's own file, which somebody could cut short
or overwrite: reading behind the end of a mapped file ends the process.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from intact8.opset.op import Array
from intact8.program.program import Program

LEAST = 1 << 22
"""Bytes of arrays from which it is worth a file."""

LARGE = 1 << 12
"""Bytes from which an array goes there."""

_ALIGNED = 64
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def to_mmap(program: Program) -> Program:
    """Return the same program with its large arrays in a file without a name; as it is where that saves or can do
    nothing.

    Example:
        >>> program = Program({}, (), (), ())
        >>> to_mmap(program) is program  # nothing to save
        True
    """
    large = {id(a): a for op in program.ops for a in op.arrays.values() if a.nbytes >= LARGE}
    moved = _in_file(large) if sum(a.nbytes for a in large.values()) >= LEAST else {}
    if not moved:
        return program
    ops = (replace(op, arrays={role: moved.get(id(a), a) for role, a in op.arrays.items()}) for op in program.ops)
    return replace(program, ops=tuple(ops))


def spilled(array: Array) -> Array:
    """Return the same numbers in a file without a name; the array itself where that saves or can do nothing."""
    moved = _in_file({0: array}) if array.nbytes >= LARGE else {}
    return moved.get(0, array)


def _in_file(arrays: Mapping[int, Array]) -> dict[int, Array]:
    """Return copies of arrays in a file without a name; nothing where there is none to be had."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return {}
    try:
        with tempfile.TemporaryFile(prefix="intact8-") as file:
            starts = {}
            for key, array in arrays.items():
                file.write(bytes(-file.tell() % _ALIGNED))
                starts[key] = file.tell()
                file.write(np.ascontiguousarray(array).data)
            file.flush()
            # Writable, as OpenVINO asks of what it shares; nobody writes.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError:  # no room, or no folder for temporary files: they stay in memory
        return {}
    _mapped.add(memory)
    return {k: np.frombuffer(memory, a.dtype, a.size, starts[k]).reshape(a.shape) for k, a in arrays.items()}


def evict() -> None:
    """Take the memory of all such arrays away until they are read again."""
    for memory in list(_mapped):
        memory.madvise(mmap.MADV_DONTNEED)
