"""Running statistics of one tensor, float against integers; their size does not grow with the amount of data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intact8.calibration.sketch import Sketch
from intact8.diagnose.compare.report import Histogram, LayerError
from intact8.diagnose.quantizer import Quantizer

Array = npt.NDArray[np.float64]

LARGEST = float(np.finfo(np.float32).max)
"""What stands for infinity: masks are infinite, and so are two of the lowest numbers in a sum."""

FARTHEST = 2.0**126
"""Where the histogram of an error ends at the latest: twice that is a float32, too."""

BINS = 64
"""Number of bins of a histogram."""

COUNTED = 1 << 12
"""Values per sample above which only every k-th one, for an odd k, enters the histogram of the error."""

SATURATED = 0.05
"""A channel counts as saturated where a larger share of its values is clipped."""


def _bounded(x: Tensor) -> Tensor:
    return x.clamp(-LARGEST, LARGEST) if x.is_floating_point() else x


def by_channel(x: Tensor, axis: int | None) -> Tensor:
    """Reshape to (outer, channels, inner), as a view where memory allows; one channel where ``axis`` is None."""
    if axis is None:
        return x.reshape(1, 1, -1)
    moved = x.movedim(axis, -1)
    if moved.is_contiguous():
        return moved.reshape(-1, x.shape[axis], 1)
    return x.reshape(math.prod(x.shape[:axis]), x.shape[axis], -1)


class ErrorSums:
    """Sums from which SQNR, cosine and bias follow.

    Args:
        axis: dimension of the channels, None where there are none.
    """

    def __init__(self, axis: int | None) -> None:
        self.axis, self.elements, self.per_channel = axis, 0, 0
        self.signal = self.noise = self.power = self.product = 0.0
        self.total: Array = np.zeros(0)
        self.magnitude = self.largest = 0.0
        self.reach = 0.0
        self.counts = torch.zeros(BINS, dtype=torch.int64)
        self.below = self.above = 0

    def add(self, steps: Tensor, values: Tensor, zero_point: int, signal: float) -> None:
        """Add one chunk.

        Args:
            steps: the float tensor in units of the scale.
            values: the integers (uint8), or float values in the same units.
            zero_point: zero point of ``values``.
            signal: sum of the squares of ``steps``.
        """
        q = torch.empty_like(steps).copy_(values)  # float32 in the memory layout of the float tensor
        if zero_point:
            q.sub_(zero_point)
        flat, reference = _flat(q), _flat(steps)
        self.signal += signal
        self.power += float(torch.dot(flat, flat))
        self.product += float(torch.dot(flat, reference))
        flat.sub_(reference)
        error = by_channel(q, self.axis)
        noise = float(torch.dot(flat, flat))
        self._histogram(flat, noise, steps.shape[0] if steps.dim() else 1)
        total = error.sum((0, 2), dtype=torch.float32).double().cpu().numpy()
        self.total = self.total + total if self.total.size else total
        self.noise += noise
        self.elements += flat.numel()
        self.per_channel += flat.numel() // error.shape[1]
        flat.abs_()
        self.magnitude += float(flat.sum())
        self.largest = max(self.largest, float(error.amax()))

    def _histogram(self, flat: Tensor, noise: float, samples: int) -> None:
        if not self.reach:  # the first chunk decides: four times its root mean square, as a power of two
            if math.isfinite(noise):
                rms = math.sqrt(noise / max(flat.numel(), 1))
            else:  # of values whose squares are no float32
                rms = float(torch.where(flat.isfinite(), flat.abs(), 0).amax())
            self.reach = min(2.0 ** math.ceil(math.log2(4 * rms)), FARTHEST) if rms > 0 else 1.0
        step = (flat.numel() // max(samples, 1) // COUNTED) | 1
        sample, reach = flat[::step], self.reach
        if not math.isfinite(noise):
            sample = sample[~sample.isnan()]
        self.counts += torch.histc(sample, BINS, -reach, reach).to(torch.int64).cpu()
        self.below += int((sample < -reach).sum())
        self.above += int((sample > reach).sum())

    def result(self) -> LayerError:
        """Return what the sums make."""
        n = max(self.elements, 1)
        channels = () if self.axis is None else tuple(float(v) for v in self.total / max(self.per_channel, 1))
        both = math.sqrt(self.signal * self.power)
        finite = 0 < self.signal < math.inf and 0 < self.noise < math.inf
        return LayerError(
            # Masked scores hold the lowest float32, whose square is infinite: no signal that says anything.
            sqnr=10 * math.log10(self.signal / self.noise) if finite else None,
            cosine=max(-1.0, min(1.0, self.product / both)) if 0 < both < math.inf else None,
            max_error=self.largest,
            mean_error=self.magnitude / n,
            bias=float(self.total.sum()) / n,
            channel_bias=channels,
            histogram=Histogram(-self.reach, self.reach, tuple(self.counts.tolist()), self.below, self.above),
        )


class TensorStatistics:
    """Statistics of one layer's output: the float tensor, how it meets its grid, and both errors.

    Args:
        axis: dimension of the channels, None where there are none.
        quantizer: grid of the output, None where it stays float.
        ends: values that count for errors, where only tables read the output; see :func:`flat_ends`.
    """

    def __init__(self, axis: int | None, quantizer: Quantizer | None, ends: tuple[float, float] | None = None) -> None:
        self.axis, self.quantizer, self.ends = axis, quantizer, ends
        self.own, self.cascade = ErrorSums(axis), ErrorSums(axis)
        self.sketch = Sketch()
        self.met = torch.zeros(256, dtype=torch.int64)
        self.minimum: Tensor | None = None
        self.maximum: Tensor | None = None
        self.low: Array = np.zeros(1)
        self.high: Array = np.zeros(1)

    def add(self, y: Tensor, cascade: Tensor, own: Tensor | None = None, rounded: Tensor | None = None) -> None:
        """Add one chunk.

        Args:
            y: the float tensor.
            cascade, own: integers (uint8), or float values where the output stays float.
            rounded: ``y`` on the grid, uint8.
        """
        y = _dense(y.detach().to(torch.float32))
        self._extremes(y)
        if math.isinf(self.sketch.minimum) or math.isinf(self.sketch.maximum):  # masks, whose difference is no number
            y, cascade, own = _bounded(y), _bounded(cascade), None if own is None else _bounded(own)
        y = y if self.ends is None else y.clamp(*self.ends)
        q = self.quantizer
        steps = y if q is None else q.steps(y)
        flat = _flat(steps)
        signal = float(torch.dot(flat, flat))
        z = 0 if q is None else q.zero_point
        self.cascade.add(steps, cascade, z, signal)
        if own is not None:
            self.own.add(steps, own, z, signal)
        if rounded is not None:
            self.met += torch.bincount(_flat(rounded), minlength=256).cpu()
        if q is not None:
            self._clipped(by_channel(steps, self.axis), q)

    def _extremes(self, y: Tensor) -> None:
        channels = by_channel(y, self.axis)
        low, high = channels.amin((0, 2)), channels.amax((0, 2))
        self.minimum = low if self.minimum is None else torch.minimum(self.minimum, low)
        self.maximum = high if self.maximum is None else torch.maximum(self.maximum, high)
        flat = _flat(y)
        dense = flat.view(y.shape[0], -1) if y.dim() > 1 else flat
        self.sketch.add(dense, float(low.min()), float(high.max()))

    def _clipped(self, steps: Tensor, q: Quantizer) -> None:
        least, most = q.lo - q.zero_point - 0.5, q.hi - q.zero_point + 0.5
        # Most tensors do not reach the ends; then there is nothing to count.
        if self.sketch.minimum / q.scale < least:
            self.low = self.low + _count(steps < least)
        if self.sketch.maximum / q.scale > most:
            self.high = self.high + _count(steps > most)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ``LayerRow`` that come from values."""
        assert self.minimum is not None and self.maximum is not None
        n = self.cascade.elements
        per_channel = max(self.cascade.per_channel, 1)
        met = np.flatnonzero(self.met.numpy())
        channels = 0 if self.axis is None else self.minimum.numel()
        still = torch.nonzero(self.minimum == self.maximum).flatten().tolist() if channels else []
        over = np.broadcast_to((self.low + self.high) / per_channel, (max(channels, 1),))
        q = self.quantizer
        return {
            "quantized": q is not None,
            "scale": None if q is None else q.scale,
            "zero_point": None if q is None else q.zero_point,
            "lo": None,
            "hi": None,
            "grid": 0 if q is None else q.hi - q.lo + 1,
            "elements": n,
            "float_min": max(float(self.minimum.min()), -LARGEST),
            "float_max": min(float(self.maximum.max()), LARGEST),
            "clipped_low": float(self.low.sum()) / n,
            "clipped_high": float(self.high.sum()) / n,
            "integers": len(met),
            "span": int(met[-1] - met[0] + 1) if len(met) else 0,
            "channels": channels,
            "dead": tuple(still),
            "saturated": tuple(np.flatnonzero(over > SATURATED).tolist()) if channels else (),
            "own": self.own.result() if self.own.elements else None,
            "cascade": self.cascade.result(),
            "histogram": self._histogram(),
        }

    def _histogram(self) -> Histogram:
        """Spread the sketch's bins over bins of equal width between the extremes."""
        bins = self.sketch.bins()
        low, high, bins_low, bins_high = (
            np.clip(v, -LARGEST, LARGEST) for v in (self.sketch.minimum, self.sketch.maximum, bins.low, bins.high)
        )
        if not low < high:  # all are the same, or NaN
            return Histogram(float(low), float(high), (int(bins.total),))
        edges = np.linspace(low, high, BINS + 1)
        exact = bins_low == bins_high  # zeros, and values that are all the same
        counts = np.histogram(bins_low[exact], edges, weights=bins.count[exact])[0]
        wide = ~exact
        if wide.any():
            below = np.concatenate([[0], np.cumsum(bins.count[wide])])
            ends = np.stack([bins_low[wide], bins_high[wide]], 1).reshape(-1)
            counted = np.stack([below[:-1], below[1:]], 1).reshape(-1)
            counts = counts + np.diff(np.rint(np.interp(edges, ends, counted)))
        return Histogram(float(low), float(high), tuple(int(c) for c in counts))


def _count(true: Tensor) -> Array:
    """Count the true values per channel, exactly up to 2²⁴. Sums of floats are vectorized, those of bools are not."""
    counts: Array = true.to(torch.float32).sum((0, 2)).double().cpu().numpy()
    return counts


def _flat(x: Tensor) -> Tensor:
    """Return all values in memory order, as a view where the memory is dense."""
    return _in_order(x).reshape(-1)


def _dense(x: Tensor) -> Tensor:
    """Return the tensor itself, or a copy where its memory has holes or overlaps."""
    return x if _in_order(x).is_contiguous() else x.contiguous()


def _in_order(x: Tensor) -> Tensor:
    return x.permute(sorted(range(x.dim()), key=lambda d: (x.stride(d), x.shape[d]), reverse=True))
