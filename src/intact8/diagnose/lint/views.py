"""What rules look at, common to simulations, programs and torch.ao models. This module needs numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from intact8.calibration.sketch import Bins

Array = npt.NDArray[Any]


def numbers(values: Any) -> Array:
    """Return a number, an array or a tensor as float64 (n,)."""
    if hasattr(values, "detach"):
        values = values.detach().double().cpu().numpy()
    return np.atleast_1d(np.asarray(values, np.float64))


@dataclass(frozen=True)
class PointView:
    """A place where values are rounded to a grid.

    Attributes:
        name: name of the quantization point, or the module path.
        scale: float64 (n,): one, or one per channel; NaN where unknown, empty where there is none yet.
        zero_point: int64 (n,).
        lo, hi: ends of the integer range, in the domain of ``zero_point``.
        symmetric: whether the zero point should be ``middle``.
        middle: zero point of a symmetric scheme.
        weight: whether it rounds a weight rather than an activation.
        known: whether scale and zero point were ever computed or given.
        fixed: whether the user gave them.
        observer: kind of observer ("minmax", "moving_average", …); "" where there is none.
        seen: whether the observer saw values; None where there is no observer to ask.
        minimum, maximum: smallest and largest value it saw, NaN where it saw none.
        bins: how values were distributed, None where unknown.
        observing: whether it takes in values now.
        quantizing: whether it rounds now.
        trained: whether it belongs to quantization-aware training (a fake quantizer rather than an observer).
    """

    name: str
    scale: Array
    zero_point: Array
    lo: int
    hi: int
    symmetric: bool = False
    middle: int = 0
    weight: bool = False
    known: bool = True
    fixed: bool = False
    observer: str = ""
    seen: bool | None = None
    minimum: float = np.nan
    maximum: float = np.nan
    bins: Bins | None = None
    observing: bool = False
    quantizing: bool = True
    trained: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """The real numbers the grid spans; NaN where the scale is unknown or one per channel."""
        if self.scale.size != 1:
            return np.nan, np.nan
        s, z = float(self.scale[0]), int(self.zero_point[0])
        return (self.lo - z) * s, (self.hi - z) * s


@dataclass(frozen=True)
class WeightView:
    """A weight and how it is quantized.

    Attributes:
        name: name of the layer.
        rows: float64 (O, K): the numbers that are rounded, output channels first, batch norm folded in.
        per_channel: whether every row has its own scale.
        integers: int64 (O, K) where they are known.
        tensor: name of the parameter, "" where unknown.
    """

    name: str
    rows: Array
    per_channel: bool
    integers: Array | None = None
    tensor: str = ""


@dataclass(frozen=True)
class NodeView:
    """An operation of a graph that was cut into integer and float parts.

    Attributes:
        name, op, module: as in the graph.
        inputs: names of the operations it reads.
        domain: "integer", "float", "dynamic" (integer weights between float activations), "quantize", "dequantize" or
            "source" (inputs, constants).
        moves: whether it only moves values (reshape, max pooling …).
        heavy: whether it multiplies by a weight, or two activations with each other.
        reason: why it stays float, "" where it does not.
        wanted: whether the recipe asked for float.
        batch_norm: whether it is a batch norm that stands alone.
        activation: whether it is an activation that stands alone and could have been a clamp.
    """

    name: str
    op: str
    module: str
    inputs: tuple[str, ...]
    domain: str
    moves: bool = False
    heavy: bool = False
    reason: str = ""
    wanted: bool = False
    batch_norm: bool = False
    activation: bool = False


@dataclass(frozen=True)
class GraphView:
    """Operations in execution order."""

    nodes: Sequence[NodeView]
    outputs: frozenset[str] = field(default_factory=frozenset)

    def users(self) -> dict[str, list[NodeView]]:
        """Return the operations that read each operation, by name."""
        out: dict[str, list[NodeView]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in node.inputs:
                out[name].append(node)
        return out


def quantiles(bins: Bins, share: float) -> tuple[float, float]:
    """Return the interval that holds ``share`` of the values that are not 0, the same share cut off at both ends.

    Zeros are left out: after a ReLU they are most of the values, and cost no range.
    """
    keep = (bins.low != 0) | (bins.high != 0)
    low, high, count = bins.low[keep], bins.high[keep], bins.count[keep]
    if not count.size:
        return 0.0, 0.0
    below = np.cumsum(count) / count.sum()
    tail = (1 - share) / 2
    first = int(np.searchsorted(below, tail, side="right"))
    last = int(np.searchsorted(below, 1 - tail, side="left"))
    return float(low[min(first, len(low) - 1)]), float(high[min(last, len(high) - 1)])


def share_outside(bins: Bins, lo: float, hi: float) -> float:
    """Return the share of the values outside [lo, hi], by the middles of their bins."""
    outside = (bins.middle < lo) | (bins.middle > hi)
    return float(bins.count[outside].sum() / max(bins.total, 1))
