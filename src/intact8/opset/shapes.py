"""What the shape rules of several kinds need. ``None`` is an unknown (batch) dimension, a name one whose size is known
when the program runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from intact8.arithmetic.dimensions import Dim, added, divided
from intact8.arithmetic.windows import pool_size

from .op import Op
from .violation import Violation, need

Shape = tuple[Dim, ...]

ShapeRule = Callable[[Op, list[Shape], Shape], Shape]
"""(operation, shapes of its inputs, declared shape of its output) → shape of its output.

Raises Violation where the shapes of inputs and arrays do not fit the operation. The declared shape decides only what an
expanded −1 stands for.
"""


def known(dim: Dim, what: str) -> int:
    """Return ``dim``, which must not change from call to call."""
    if not isinstance(dim, int):
        raise Violation(f"{what} depends on the {'batch size' if dim is None else f'size of {dim}'}")
    return dim


def elements(shape: Shape) -> int:
    """Return the product of the known dimensions."""
    return math.prod(d for d in shape if isinstance(d, int))


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that elementwise operations give."""
    rank = max(len(s) for s in shapes)
    out: list[Dim] = []
    for dims in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        sizes = {d for d in dims if d != 1}
        need(len(sizes) <= 1, f"shapes {', '.join(map(str, shapes))} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def spatial(shape: Shape, rank: int) -> list[int | str]:
    """Return the trailing ``rank`` dimensions, after batch and channels."""
    need(len(shape) == rank + 2, f"input of shape {shape} does not have {rank} spatial dimensions")
    sizes = [d for d in shape[2:] if d is not None]
    need(len(sizes) == rank, "a spatial dimension depends on the batch size")
    return sizes


def windows(
    size: int | str, kernel: int, stride: int, padding: int, dilation: int = 1, ceil_mode: bool = False
) -> int | str:
    """Return how many windows fit along a dimension; the checker demands that it is one at least.

    Example:
        >>> windows(7, 2, 2, 0), windows("frames", 3, 2, 1), windows("frames", 5, 1, 0)
        (3, '(frames+1)//2', 'frames-4')
    """
    if isinstance(size, int):
        return pool_size(size, kernel, stride, padding, dilation, ceil_mode)
    span = dilation * (kernel - 1) + 1
    what = f"how many windows begin within the input depends on the size of {size}"
    need(not ceil_mode or padding + stride <= span, what)
    return added([divided(added([size, 2 * padding - span + (stride - 1 if ceil_mode else 0)]), stride), 1])


def axis_of(op: Op, shape: Shape) -> int:
    """Return the attribute ``axis``, counted from the front."""
    axis: int = op.attrs["axis"]
    need(-len(shape) <= axis < len(shape), f"axis {axis} does not fit shape {shape}")
    return axis % len(shape)


def fits_outputs(op: Op, outputs: int) -> None:
    """Whether there is one number per output channel, where there is a bias."""
    if "bias" in op.arrays:
        need(op.arrays["bias"].shape == (outputs,), f"bias has shape {op.arrays['bias'].shape}, not ({outputs},)")


def fits_channels(op: Op, shape: Shape) -> None:
    """Whether every array has one number per channel of the input."""
    need(len(shape) >= 2, f"input of shape {shape} has no channels")
    for role, array in op.arrays.items():
        need(array.shape == (shape[1],), f"{role} of shape {array.shape} does not fit {shape[1]} channels")


def same(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape of the only input."""
    return x[0]


def broadcasting(op: Op, x: list[Shape], declared: Shape) -> Shape:
    """Return the shape to which the inputs broadcast."""
    return broadcast(x)
