"""What a program does first with an image, by the compiled passes: it becomes integers and goes through the
convolutions that only follow one another, some rows at a time and in one thread, so that what one writes the next one
reads from the cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from intact.arithmetic.windows import pool_size
from intact.program.ops import Array, Op
from intact.program.program import Program

from .convolutions import Convolution
from .inputs import Quantizer
from .native import address, load


ROOM = 384 << 10
"""Bytes between the stages, to stay in a core's own cache."""


@dataclass(frozen=True)
class Stage:
    """A convolution and what computes it."""

    op: Op
    convolution: Convolution


def stages(program: Program, quantize: Op) -> tuple[Stage, ...]:
    """The convolutions behind ``quantize`` up to the first result that is used twice, or by another operation.

    None where the compiled passes do none on this machine.
    """
    library = load()
    if library is None or not library.can_convolve():
        return ()
    uses = Counter(name for op in program.ops for name in op.inputs) + Counter(program.outputs)
    found: list[Stage] = []
    last, tensors = quantize, program.tensors
    for op in program.ops:
        if op.kind == "conv" and last.name in op.inputs and uses[last.name] == 1:
            made = Convolution.of(op, int(tensors[last.name].zero_point or 0), int(tensors[op.name].zero_point or 0))
            if made is None:
                break
            found.append(Stage(op, made))
            last = op
    return tuple(found)


class Ahead:
    """Images to the integers behind the last stage.

    Args:
        program: theirs; sizes of its images are known.
        quantize: what makes integers of images.
        stages: one at least.
    """

    def __init__(self, program: Program, quantize: Op, stages: tuple[Stage, ...]) -> None:
        library = load()
        assert library is not None
        self._cascade, tensors = library.cascade, program.tensors
        _, channels, *size = (n or 1 for n in tensors[quantize.name].shape)
        self._own = np.empty((1, *size, channels), np.uint8)
        self._quantizer, self._image = Quantizer(quantize, tensors[quantize.name]), np.moveaxis(self._own, -1, 1)
        self._name, self._stages = quantize.name, stages
        self._shapes = [(*size, channels)]
        for stage in stages:
            windows, strides, pads = (stage.convolution.numbers[i : i + 2] for i in (0, 2, 4))
            size = [pool_size(*sizes) for sizes in zip(size, windows, strides, pads, strict=True)]
            self._shapes.append((*size, len(stage.op.arrays["bias"])))
        self._prepared = self._prepare(len(stages))

    def __call__(self, x: Array, own: Array) -> None:
        """Fill ``own``.

        Args:
            x: (N, C, H, W) float32, or uint8 integers.
            own: (N, H′, W′, C′) uint8, contiguous.

        Raises:
            InputError: x holds NaN.
        """
        self._all(x, own, len(self._stages), self._prepared)

    def tensors(self, x: Array) -> dict[str, Array]:
        """The results of all ops by name, as (N, C, H, W)."""
        image = np.moveaxis(np.empty((len(x), *self._shapes[0]), np.uint8), -1, 1)
        found = {self._name: self._quantizer(x, image)}
        for count, (stage, shape) in enumerate(zip(self._stages, self._shapes[1:], strict=True), 1):
            y = np.empty((len(x), *shape), np.uint8)
            self._all(x, y, count, self._prepare(count))
            found[stage.op.name] = np.moveaxis(y, -1, 1)
        return found

    def _all(self, x: Array, y: Array, count: int, prepared: tuple[Array, int, list[Array]]) -> None:
        stages, band, _ = prepared
        channels, numbers, image, end = x.shape[1], self._quantizer.numbers, address(self._own), address(stages)
        pixels = self._own.size // channels
        if x.dtype == np.float32 and x.flags.c_contiguous:
            given = (channels, pixels, *numbers, len(x), end, count, band)
            if self._cascade(address(x), image, address(y), *given):
                raise self._quantizer.refusal()
            return
        for n in range(len(x)):
            self._quantizer(x[n : n + 1], self._image)
            self._cascade(0, image, address(y[n]), channels, pixels, *numbers, 1, end, count, band)

    def _prepare(self, count: int) -> tuple[Array, int, list[Array]]:
        """The first stages as the compiled pass takes them: numbers, rows of the last one at a time, and memory."""
        band = self._shapes[count][0]
        while band > 1 and sum(self._needed(count, band)) > ROOM:
            band = -(-band // 2)
        rows = [np.empty(needed, np.uint8) for needed in self._needed(count, band)]
        numbers = []
        for i, stage in enumerate(self._stages[:count]):
            made, memory = stage.convolution, address(rows[i]) if i < count - 1 else 0
            packed = (address(a) for a in (made.weight, made.bias, made.ratio))
            numbers.append([*packed, memory, made.kind == "Dense", *self._shapes[i], *made.numbers])
        return np.array(numbers, np.int64), band, rows

    def _needed(self, count: int, band: int) -> list[int]:
        """Bytes between the stages for so many rows of the last one."""
        found: list[int] = []
        for stage, (height, width, channels) in zip(
            reversed(self._stages[1:count]), reversed(self._shapes[1:count]), strict=True
        ):
            tall, _, down, *_ = stage.convolution.numbers
            band = min((band - 1) * down + max(tall, down), height)
            found.append(band * width * channels)
        return found[::-1]


__all__ = ["Ahead", "Stage", "stages"]
