"""The first layers of a network on one image at a time, by the compiled kernels, before the engine takes over.

The image becomes integers and goes through the convolutions that only follow one another, some rows at a time and in
one thread, so that what one convolution writes the next reads from the cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

import numpy as np

from intact8.engines.input_quantizer import Quantizer
from intact8.engines.kernels import address, float_bits, load
from intact8.engines.packed_conv import PackedConv
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array, Op
from intact8.program.program import Program

CACHE_BYTES = 384 << 10
"""Bytes between the stages, which stay in a core's own cache."""

MIN_PIXELS = 784
"""Pixels of an image from which fusing pays; smaller images stay in the cache anyway."""

MAX_GROWTH = 1.0
"""Largest ratio of the result's bytes to the image's: a larger result takes memory here and in the engine, and time to
read again (ResNet50's first convolution: 16 MB at batch 8, and nothing gained)."""


@dataclass(frozen=True)
class Stage:
    """A convolution, and perhaps an addition of the result of an earlier stage.

    Attributes:
        op: the ``conv``.
        convolution: the same as the compiled kernels take it.
        add: the ``add``.
        residual: the earlier stage, counted from zero; -1 for none.
        sum_numbers: bits of the ratios of the convolution and of the residual, zero point of the residual, zero point
            and limits of the sum.
    """

    op: Op
    convolution: PackedConv
    add: Op | None = None
    residual: int = -1
    sum_numbers: tuple[int, ...] = (0,) * 6

    @property
    def name(self) -> str:
        """Name of the result tensor."""
        return (self.add or self.op).name

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operations of the stage."""
        return (self.op, self.add) if self.add else (self.op,)

    @property
    def without_sum(self) -> Stage:
        """The convolution alone."""
        return Stage(self.op, self.convolution)


def stages(program: Program, quantize: Op) -> tuple[Stage, ...]:
    """Return the convolutions behind ``quantize`` that follow one another, with the sums between them, up to one result
    that all other operations depend on; empty where this machine has no kernel for them."""
    library = load()
    if library is None or not library.can_convolve():
        return ()
    uses = Counter(name for op in program.ops for name in op.inputs) + Counter(program.outputs)
    tensors, found, last = program.tensors, list[Stage](), quantize.name
    for op in program.ops:
        stage = None
        pixels = prod(n if isinstance(n, int) else MIN_PIXELS for n in tensors[last].shape[2:])
        if op.kind == "conv" and op.inputs == (last,) and pixels >= MIN_PIXELS:
            made = PackedConv.of(op, int(tensors[last].zero_point or 0), int(tensors[op.name].zero_point or 0))
            stage = Stage(op, made) if made else None
        elif op.kind == "add" and last in op.inputs and found and uses[found[-1].op.name] == 1:
            stage = _summed(program, op, found)
            if stage:
                found.pop()
        elif last not in op.inputs:
            continue
        if stage is None:
            break
        found.append(stage)
        last = stage.name
    return tuple(found[: _whole(program, quantize, found, uses)])


def _summed(program: Program, op: Op, found: list[Stage]) -> Stage | None:
    """Return the last stage with ``op`` behind it; None where the kernels have no such sum."""
    last, tensors, names = found[-1], program.tensors, [stage.name for stage in found[:-1]]
    others = [name for name in op.inputs if name != last.name]
    if len(op.inputs) != 2 or last.add or last.convolution.kind != "Dense" or not set(others) <= set(names):
        return None
    if len(others) != 1 or tensors[others[0]].shape != tensors[last.name].shape:
        return None
    ratios = [float(Fraction(int(a), int(op.attrs["b"]))) for a in op.attrs["a"]]
    if max(map(abs, ratios)) > 1 << 20:  # the terms might not fit int32, far beyond what networks have
        return None
    own = op.inputs.index(last.name)
    zero, z = (int(tensors[name].zero_point or 0) for name in (others[0], op.name))
    numbers = (float_bits(ratios[own]), float_bits(ratios[1 - own]), zero, z, int(op.attrs["lo"]), int(op.attrs["hi"]))
    return replace(last, add=op, residual=names.index(others[0]), sum_numbers=numbers)


def _whole(program: Program, quantize: Op, found: list[Stage], uses: Counter[str]) -> int:
    """Return the largest number of first stages of which only the last result is used elsewhere. That result must not
    be too large, nor read by a table, since engines fuse an activation into the convolution before it."""
    activated = {name for op in program.ops if op.kind == "table" for name in op.inputs}
    for count in range(len(found), 0, -1):
        used = Counter(name for stage in found[:count] for op in stage.ops for name in op.inputs)
        names = [quantize.name, *(op.name for stage in found[:count] for op in stage.ops)]
        size, image = (prod(n for n in program.tensors[m].shape if isinstance(n, int)) for m in (names[-1], names[0]))
        if size > MAX_GROWTH * image or names[-1] in activated:
            continue
        if all(used[name] == uses[name] for name in names[:-1]):
            return count
    return 0


class FusedStem:
    """Computes the integers behind the last stage from images.

    Args:
        program: the program, whose images have known sizes.
        quantize: the operation that makes integers of images.
        stages: at least one.
    """

    def __init__(self, program: Program, quantize: Op, stages: tuple[Stage, ...]) -> None:
        library = load()
        assert library is not None
        self._fused_stem, tensors = library.fused_stem, program.tensors
        _, channels, *size = (int(n or 1) for n in tensors[quantize.name].shape)
        self._image_nhwc = np.empty((1, *size, channels), np.uint8)
        self._quantizer, self._image = Quantizer(quantize, tensors[quantize.name]), np.moveaxis(self._image_nhwc, -1, 1)
        self._name, self._stages = quantize.name, stages
        self._shapes: list[tuple[int, ...]] = [(*size, channels)]
        for stage in stages:
            size = stage.convolution.output_size(size)
            self._shapes.append((*size, len(stage.op.arrays["bias"])))
        self._prepared = self._prepare(stages)

    def __call__(self, x: Array, own: Array) -> None:
        """Fill ``own``.

        Args:
            x: (N, C, H, W) float32, or uint8 integers.
            own: (N, H′, W′, C′) uint8, contiguous.

        Raises:
            InputError: x holds NaN.
        """
        self._run(x, own, self._prepared)

    def tensors(self, x: Array) -> dict[str, Array]:
        """Return the results of all operations by name, as (N, C, H, W)."""
        image = np.moveaxis(np.empty((len(x), *self._shapes[0]), np.uint8), -1, 1)
        found = {self._name: self._quantizer(x, image)}
        for i, stage in enumerate(self._stages):
            for last in {stage.without_sum.name: stage.without_sum, stage.name: stage}.values():
                y = np.empty((len(x), *self._shapes[i + 1]), np.uint8)
                self._run(x, y, self._prepare((*self._stages[:i], last)))
                found[last.name] = np.moveaxis(y, -1, 1)
        return found

    def _run(self, x: Array, y: Array, prepared: tuple[Array, int, list[Array]]) -> None:
        stages, band, _ = prepared
        if x.shape[1:] != self._image.shape[1:] or len(y) != len(x):  # the kernels rely on these sizes
            what = f"expected {len(y)} images of shape {self._image.shape[1:]}, got {x.shape}"
            raise InputError(what, where=self._name, remedy="give that shape")
        if y.dtype != np.uint8 or not y.flags.c_contiguous:
            raise EngineError(f"results of {y.dtype} that are not contiguous", where=self._name, remedy="report this")
        channels, numbers, image = x.shape[1], self._quantizer.numbers, address(self._image_nhwc)
        last = (address(stages), len(stages), band)
        pixels = self._image_nhwc.size // channels
        if x.dtype == np.float32 and x.flags.c_contiguous:
            sizes = x.nbytes, self._image_nhwc.nbytes, y.nbytes, stages.nbytes
            if self._fused_stem(address(x), image, address(y), channels, pixels, *numbers, len(x), *last, *sizes):
                raise self._quantizer.refusal()
            return
        for n in range(len(x)):
            self._quantizer(x[n : n + 1], self._image)
            sizes = 0, self._image_nhwc.nbytes, y[n].nbytes, stages.nbytes
            self._fused_stem(0, image, address(y[n]), channels, pixels, *numbers, 1, *last, *sizes)

    def _prepare(self, stages: tuple[Stage, ...]) -> tuple[Array, int, list[Array]]:
        """Return the stages as the kernel takes them: their numbers, rows of the last one at a time, and memory."""
        band = self._shapes[len(stages)][0]
        while sum(sizes := self._buffer_bytes(stages, band)) > CACHE_BYTES and band > 1:
            band = -(-band // 2)
        rows = [np.empty(size, np.uint8) for size in sizes]
        numbers = []
        for i, stage in enumerate(stages):
            made, memory = stage.convolution, address(rows[i]) if i < len(rows) else 0
            packed = (address(a) for a in made.packed)
            packed_bytes = (*(a.nbytes for a in made.packed), rows[i].nbytes if i < len(rows) else 0)
            own = (made.kind == "Dense", *self._shapes[i], *made.numbers)
            numbers.append([*packed, memory, *own, stage.residual, *stage.sum_numbers, *packed_bytes])
        return np.array(numbers, np.int64), band, rows

    def _buffer_bytes(self, stages: tuple[Stage, ...], band: int) -> list[int]:
        """Return the most bytes behind each stage but the last, for so many rows of the last one at a time. This
        follows what ``native/fused_stem.c`` does."""
        rows = [shape[0] for shape in self._shapes[1 : len(stages) + 1]]
        kernel_h, stride_h, pad_h = ([s.convolution.numbers[i] for s in stages] for i in (0, 2, 4))
        first, end, most = ([0] * len(stages) for _ in range(3))
        while end[-1] < rows[-1]:
            goal = list(end)
            goal[-1] = end[-1] + band
            for k in range(len(stages) - 1, -1, -1):
                goal[k] = min(goal[k], rows[k])
                if k:
                    goal[k - 1] = max(goal[k - 1], (goal[k] - 1) * stride_h[k] - pad_h[k] + kernel_h[k])
                if (other := stages[k].residual) >= 0:
                    goal[other] = max(goal[other], goal[k])
            for k in range(len(stages) - 1):
                seen = [max(end[k + 1] * stride_h[k + 1] - pad_h[k + 1], 0), end[k]]
                seen += [end[i] for i in range(k + 1, len(stages)) if stages[i].residual == k]
                first[k] = max(first[k], min(seen))
                most[k], end[k] = max(most[k], goal[k] - first[k]), goal[k]
            end[-1] = goal[-1]
        return [n * prod(shape[1:]) for n, shape in zip(most, self._shapes[1:], strict=False)][:-1]
