"""A plan as it is stored in a program's file, for the C API (``native/c_api``), which has no Python to make one.

Numbers and bytes one after the other, a number seven bits a byte, the lowest first, its sign in the lowest bit of all:
a fingerprint of the kinds of steps; constants, each either its bytes, or, where it is an array of the file in another
order of its elements, its place there and its strides (of 4 bits: counted in halves of bytes); and of every plan its
inputs and outputs, and its words.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from intact8.arithmetic.bit_packing import pack
from intact8.arithmetic.dimensions import LONGEST
from intact8.errors import EngineError
from intact8.opset.op import Array, Op, Tensor
from intact8.program.program import Program

from .builder import Constants, address
from .engine import library
from .lower import Lowered, lowered_at

BATCH = "batch"

SMALL = 256
"""Bytes up to which constants are stored as they are."""


def stored_plan(
    program: Program,
    places: Mapping[str, int],
    packed: Collection[str],
    plan: bool | Sequence[Mapping[str, int]] = True,
) -> str:
    """Return plans in base64.

    Args:
        program: checked.
        places: array → its offset among the arrays of the file.
        packed: names of arrays that the file holds in 4 bits.
        plan: True for one sample; or sizes, for every one of which there is a plan: of the batch, which is 1 without,
            and of every named dimension.

    Raises:
        EngineError: the library was not built, a dimension has no size, or an operation runs in Python only.
    """
    compiled = library()
    where, remedy = "plan", "save the program without plan"
    if compiled is None:
        raise EngineError("the native library was not built", where=where, remedy=remedy)
    constants = Constants(compiled)
    plans = [_lowered(program, constants, sizes) for sizes in ([{}] if plan is True else plan or ())]
    for lowered in plans:
        if lowered.fallbacks:
            kinds = ", ".join(sorted({f.op.kind for f in lowered.fallbacks}))
            found = lowered.fallbacks[0].op.name
            raise EngineError(f"the library has no steps for {kinds}", where=found, remedy=remedy)
    parts = [part for lowered in plans for part in _plan(lowered)]
    sources = _sources(program.ops, places, packed)
    stored = [_constant(array, sources) for array in constants.arrays]
    head = [_numbers([_fingerprint(), len(stored)]), *stored, _numbers([len(plans)])]
    return base64.b64encode(b"".join([*head, *parts])).decode()


def _lowered(program: Program, constants: Constants, sizes: Mapping[str, int]) -> Lowered:
    """Return the program lowered for sizes of the batch and of named dimensions.

    Raises:
        EngineError: a dimension has no size, or one outside of its limits.
    """
    named = {name: size for name, size in sizes.items() if name != BATCH}
    remedy = f"plan=[{{'{BATCH}': 1, {', '.join(f'{name!r}: …' for name in program.dimensions)}}}]"
    if named.keys() != program.dimensions.keys():
        names = ", ".join(sorted(named.keys() ^ program.dimensions.keys()))
        raise EngineError(f"a plan has fixed sizes, and {names} may change", where="plan", remedy=remedy)
    for name, size in sizes.items():
        least, most = program.dimensions.get(name, (1, None))
        if not least <= size <= (LONGEST if most is None else most):
            raise EngineError(f"{name} cannot be {size}", where="plan", remedy=remedy)
    return lowered_at(program, constants, sizes.get(BATCH, 1), named)


def _plan(lowered: Lowered) -> list[bytes]:
    """Return the inputs and outputs of a plan, and its words."""
    program, words = lowered.program, lowered.builder.words().tolist()
    ends = [_end(program.tensors[name]) for name in (*program.inputs, *program.outputs)]
    return [_numbers([len(program.inputs), len(program.outputs)]), *ends, _numbers([len(words), *words])]


def _fingerprint() -> int:
    """Return what api.c computes of its own kinds of steps (FNV-1a, 64 bits)."""
    from . import _library

    text, found = "".join(f"{kind}:{fields}\n" for kind, fields in _library.step_fields().items()), 0xCBF29CE484222325
    for byte in text.encode():
        found = (found ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return found - (1 << 64) if found >> 63 else found


def _numbers(values: Iterable[int]) -> bytes:
    out = bytearray()
    for value in values:
        rest = value << 1 if value >= 0 else ~(value << 1)
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def _bytes(value: bytes) -> bytes:
    return _numbers([len(value)]) + value


def _end(t: Tensor) -> bytes:
    sizes = [d for d in t.shape if isinstance(d, int)]
    return _bytes(t.name.encode() + b"\0") + _bytes(t.dtype.encode() + b"\0") + _numbers([len(sizes), *sizes])


Source = tuple[Array, int]
"""A view of a stored array, and the place of its first element in the file."""


FOUR_BITS = "4 bits"


def _sources(
    ops: Sequence[Op], places: Mapping[str, int], packed: Collection[str]
) -> dict[tuple[str, int], list[Source]]:
    """Return views of the stored arrays by dtype and size: as they are, and as kernels want weights. Places of arrays
    of 4 bits are counted in halves of bytes."""
    found: dict[tuple[str, int], list[Source]] = {}
    for op in ops:
        for role, array in op.arrays.items():
            if array.nbytes > SMALL:
                stored, name = np.ascontiguousarray(array), f"{op.name}/{role}"
                half = name in packed
                place = places[name] * (2 if half else 1)
                key = (FOUR_BITS, -(-array.size // 2)) if half else (array.dtype.name, array.size)
                views = found.setdefault(key, [])
                views.extend((view, place + address(view) - address(stored)) for view in _views(op, stored))
    return found


def _views(op: Op, array: Array) -> Iterator[Array]:
    yield array
    if array.ndim == 2:
        yield array.T
    if array.ndim > 2:
        yield np.moveaxis(array, 1, -1)
    if op.attrs.get("transposed"):  # see intact8.arithmetic.integer.flip_transposed
        inputs, outputs, *kernel = array.shape
        groups = op.attrs["groups"]
        grouped = array.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
        yield np.moveaxis(np.flip(grouped, axis=tuple(range(3, grouped.ndim))), 2, -1)


def _constant(array: Array, sources: Mapping[tuple[str, int], Sequence[Source]]) -> bytes:
    for dtype in (array.dtype.name, FOUR_BITS):
        for view, place in sources.get((dtype, array.size), ()):
            flat, half = view.reshape(-1), dtype == FOUR_BITS
            if np.array_equal(pack(flat[None], 4)[0] if half else flat, array.reshape(-1)):
                strides = [stride // view.itemsize for stride in view.strides]
                pairs = [n for pair in zip(view.shape, strides, strict=True) for n in pair]
                return _numbers([1, place, 0 if half else view.itemsize, view.ndim, *pairs])
    return _numbers([0]) + _bytes(array.tobytes())


__all__ = ["stored_plan"]
