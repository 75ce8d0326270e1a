"""The vectors: for every operation, cases at the corners where engines have been seen to go wrong."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from intact8_conformance import ideal
from intact8_conformance.boundary import boundary_sum, coprime, largest_denominator, split_scale
from intact8_conformance.case import Array, Case, Grid

Rng = np.random.Generator

BOUNDARY = "rounding boundary"
SATURATION = "saturation pairs"
ZERO_POINTS = "zero points"
SAFE = 2.0**-10
"""Distance from a boundary, in steps, that results of functions keep: a float32 evaluation need not be exact."""


def random_zero_point(rng: Rng) -> int:
    """Return a zero point, often one of the ends or the middle."""
    return int(rng.choice([0, 1, 127, 128, 254, 255, int(rng.integers(256))]))


def random_grid(rng: Rng) -> Grid:
    """Return quantization parameters of an activation."""
    return Grid(float(np.float32(rng.uniform(0.01, 0.1))), random_zero_point(rng))


def channel_numbers(rng: Rng, sums: Array, zero_point: int) -> tuple[int, int, int]:
    """Return a, b and bias of a channel: products over about the range of uint8, one of them next to a boundary."""
    ratio = float(rng.uniform(60, 250)) / (np.abs(sums).max() + 1)
    inside = sums[np.abs(sums * ratio + zero_point - 127.5) < 120]
    start = int(rng.choice(inside)) if len(inside) else int(sums[0])
    near = start if len(inside) else int((128 - zero_point) / ratio)
    b = largest_denominator(beside=60 + abs(near - start) * ratio)
    a = coprime(ratio, b)
    return a, b, boundary_sum(a, b, near, bool(rng.integers(2))) - start


def product(rng: Rng, operation: str, corner: str, shape: tuple[int, ...], weight: Array, **attributes: int) -> Case:
    """Return a case of a convolution or a linear layer whose channels each have a sum next to a boundary."""
    zero = int(rng.choice([0, 255])) if corner == ZERO_POINTS else random_zero_point(rng)
    out_zero = int(rng.choice([0, 255])) if corner == ZERO_POINTS else random_zero_point(rng)
    x = rng.integers(0, 256, shape, dtype=np.uint8)
    if corner == SATURATION:
        x = rng.choice(np.array([0, 255], np.uint8), shape, p=[0.2, 0.8])
    if operation == "linear":
        sums = ideal.linear_sums(x, zero, weight)
    else:
        sums = ideal.convolution_sums(x, zero, weight, **attributes)
    rows = np.moveaxis(sums, 1, 0).reshape(sums.shape[1], -1)
    a, b, bias = np.array([channel_numbers(rng, row, out_zero) for row in rows], np.int64).T
    column = (1, -1, *[1] * (sums.ndim - 2))
    total = sums + bias.reshape(column)
    expected = ideal.requantize(total, a.reshape(column), b.reshape(column), out_zero)
    scale, weight_scale, out_scale = split_scale(rng, a, b)
    return Case(
        operation,
        corner,
        (x,),
        (Grid(scale, zero),),
        Grid(out_scale, out_zero),
        expected,
        weight,
        weight_scale,
        bias.astype(np.int32),
        dict(attributes),
    )


def weights(rng: Rng, corner: str, shape: tuple[int, ...]) -> Array:
    """Return int8 weights: full range, or pairs that overflow int16, ones at the limit among them."""
    if corner != SATURATION:
        return np.asarray(rng.integers(-127, 128, shape), np.int8)
    sign = rng.choice([-1, 1], (shape[0], *[1] * (len(shape) - 1)))
    high = rng.choice([64, 100, 127], sign.shape)  # two of 64 times 255 make 32640, which int16 holds
    return np.asarray(sign * np.broadcast_to(high, shape), np.int8)


def conv2d(rng: Rng) -> Iterator[Case]:
    """Return convolutions of 1×1 and 3×3, with padding, with strides."""
    for corner in (BOUNDARY, ZERO_POINTS, SATURATION):
        for i in range(6):
            channels, kernel = int(rng.choice([3, 8, 16, 33])), (1, 3, 3)[i % 3]
            weight = weights(rng, corner, (32, channels, kernel, kernel))
            chosen = {"stride": 1 + i // 4, "padding": kernel // 2, "groups": 1}
            yield product(rng, "conv2d", corner, (2, channels, 9, 9), weight, **chosen)


def depthwise_conv2d(rng: Rng) -> Iterator[Case]:
    """Return convolutions of every channel by itself, 3×3 and 5×5."""
    for corner in (BOUNDARY, ZERO_POINTS, SATURATION):
        for i in range(6):
            channels, kernel = int(rng.choice([8, 16, 24, 40])), (3, 5, 3)[i % 3]
            weight = weights(rng, corner, (channels, 1, kernel, kernel))
            chosen = {"stride": 1 + i // 4, "padding": kernel // 2, "groups": channels}
            yield product(rng, "depthwise_conv2d", corner, (2, channels, 9, 9), weight, **chosen)


def linear(rng: Rng) -> Iterator[Case]:
    """Return linear layers."""
    for corner in (BOUNDARY, ZERO_POINTS, SATURATION):
        for _ in range(6):
            inputs = int(rng.choice([8, 33, 64, 300]))
            yield product(rng, "linear", corner, (20, inputs), weights(rng, corner, (48, inputs)))


def pairs() -> tuple[Array, Array]:
    """Return all pairs of two uint8 integers, as two images."""
    both = np.indices((256, 256), np.uint8).reshape(2, 1, 16, 64, 64)
    return both[0].copy(), both[1].copy()


def add(rng: Rng) -> Iterator[Case]:
    """Return sums of all pairs of integers; both ratios have one odd denominator."""
    first, second = pairs()
    for corner in (BOUNDARY,) * 6 + (ZERO_POINTS,) * 4:
        zeros = rng.choice([0, 255], 3) if corner == ZERO_POINTS else [random_zero_point(rng) for _ in range(3)]
        b = largest_denominator(beside=255.0)
        a = [coprime(float(rng.uniform(0.2, 1.0)), b) for _ in range(2)]
        scale = float(np.float32(rng.uniform(0.01, 0.1)))
        grids = tuple(Grid(float(np.float32(n / b * scale)), int(z)) for n, z in zip(a, zeros, strict=False))
        steps = a[0] * (first.astype(np.int64) - grids[0].zero_point)
        steps = steps + a[1] * (second.astype(np.int64) - grids[1].zero_point)
        out = Grid(scale, int(zeros[2]))
        yield Case("add", corner, (first, second), grids, out, ideal.requantize(steps, 1, b, out.zero_point))


def mul(rng: Rng) -> Iterator[Case]:
    """Return products of all pairs of integers."""
    first, second = pairs()
    for corner in (BOUNDARY,) * 6 + (ZERO_POINTS,) * 4:
        zeros = rng.choice([0, 255], 3) if corner == ZERO_POINTS else [random_zero_point(rng) for _ in range(3)]
        b = largest_denominator()
        a = coprime(float(rng.uniform(0.004, 0.02)), b)
        scale, other = (float(np.float32(rng.uniform(0.01, 0.1))) for _ in range(2))
        out = Grid(scale, int(zeros[2]))
        grids = (Grid(other, int(zeros[0])), Grid(float(np.float32(a / b * scale / other)), int(zeros[1])))
        products = (first.astype(np.int64) - grids[0].zero_point) * (second.astype(np.int64) - grids[1].zero_point)
        yield Case("mul", corner, (first, second), grids, out, ideal.requantize(products, a, b, out.zero_point))


def average_pool2d(rng: Rng) -> Iterator[Case]:
    """Return means whose sums are made to lie next to boundaries."""
    for kernel in (2, 3, 4, 7):
        for _ in range(3):
            grid, n = random_grid(rng), kernel * kernel
            b = largest_denominator()
            a = coprime(float(rng.uniform(0.7, 1.3)) / n, b)
            blocks = rng.integers(0, 256, (2 * 16 * 4 * 4, n))
            for block in blocks:
                goal = boundary_sum(a, b, int(block.sum()) - n * grid.zero_point, bool(rng.integers(2)))
                _adjust(rng, block, goal + n * grid.zero_point)
            x = blocks.reshape(2, 16, 4, 4, kernel, kernel).transpose(0, 1, 2, 4, 3, 5)
            x = np.ascontiguousarray(x.reshape(2, 16, 4 * kernel, 4 * kernel)).astype(np.uint8)
            out = Grid(float(np.float32(grid.scale / n / (a / b))), random_zero_point(rng))
            expected = ideal.requantize(ideal.pool_sums(x, grid.zero_point, kernel), a, b, out.zero_point)
            yield Case("average_pool2d", BOUNDARY, (x,), (grid,), out, expected, attributes={"kernel": kernel})


def _adjust(rng: Rng, block: Array, goal: int) -> None:
    """Change some of the block's integers so that their sum is the goal, if they can have it."""
    for i in rng.permutation(len(block)):
        step = int(np.clip(goal - block.sum(), -block[i], 255 - block[i]))
        block[i] += step


def requantize(rng: Rng) -> Iterator[Case]:
    """Return all integers on another grid."""
    x = np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)
    for i in range(64):
        corner = ZERO_POINTS if i % 4 == 0 else BOUNDARY
        zeros = rng.choice([0, 255], 2) if corner == ZERO_POINTS else [random_zero_point(rng) for _ in range(2)]
        b = int(rng.choice([101, 251, 1001, largest_denominator()]))
        a = coprime(float(rng.uniform(0.3, 1.5)), b)
        out = Grid(float(np.float32(rng.uniform(0.01, 0.1))), int(zeros[1]))
        grid = Grid(float(np.float32(a / b * out.scale)), int(zeros[0]))
        sums = x.astype(np.int64) - grid.zero_point
        yield Case("requantize", corner, (x,), (grid,), out, ideal.requantize(sums, a, b, out.zero_point))


def quantize(rng: Rng) -> Iterator[Case]:
    """Return floats on the boundaries, the next ones on both sides, and those far outside of the range."""
    for i in range(24):
        scale = 2.0 ** int(rng.integers(-9, 2)) if i % 4 == 0 else float(np.float32(rng.uniform(0.001, 2.0)))
        out = Grid(scale, random_zero_point(rng))
        middles = (np.arange(-out.zero_point - 2, 258 - out.zero_point) + 0.5).astype(np.float32) * np.float32(scale)
        near = [middles, np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(-np.inf))]
        far = np.array([0.0, -0.0, 1e30, -1e30, 1e-42, -1e-42, 3e38, -3e38], np.float32)
        x = np.concatenate([*near, far])
        x = np.resize(x, (1, 4, 14, 14)).astype(np.float32)
        corner = "ties of powers of two" if i % 4 == 0 else BOUNDARY
        yield Case("quantize", corner, (x,), (), out, ideal.quantize(x, out))


def dequantize(rng: Rng) -> Iterator[Case]:
    """Return the real numbers of all integers."""
    x = np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)
    for _ in range(16):
        grid = random_grid(rng)
        yield Case("dequantize", "all integers", (x,), (grid,), None, ideal.dequantize(x, grid))


def function(rng: Rng, name: str) -> Iterator[Case]:
    """Return the function of all integers, on scales that keep every result away from boundaries."""
    x = np.arange(256, dtype=np.uint8).reshape(1, 4, 8, 8)
    zero, levels = {"sigmoid": (0, 256), "tanh": (128, 128)}[name]
    for i in range(12):
        corner, factor = ("any scale", rng.uniform(1, 1.2)) if i % 2 else (f"scale 1/{levels}", 1.0)
        out = Grid(float(np.float32(factor / levels)), zero)  # that of powers of two is the only one some engines take
        while True:
            grid = Grid(float(np.float32(rng.uniform(0.02, 0.08))), random_zero_point(rng))
            steps = ideal.steps_of_function(name, grid, out)
            if ideal.distance(steps).min() > SAFE:
                break
        table = ideal.saturate(np.rint(steps).astype(np.int64), out.zero_point)
        yield Case(name, corner, (x,), (grid,), out, table[x])


def softmax(rng: Rng) -> Iterator[Case]:
    """Return softmax over rows that keep away from boundaries."""
    for width in (4, 16, 100):
        for _ in range(4):
            grid, out = random_grid(rng), Grid(float(np.float32(1 / 256)), 0)
            rows = rng.integers(0, 256, (400, width), dtype=np.uint8)
            kept = ideal.distance(ideal.steps_of_softmax(rows, grid, out)).min(axis=1) > SAFE
            x = rows[kept][:100]
            steps = np.rint(ideal.steps_of_softmax(x, grid, out)).astype(np.int64)
            yield Case("softmax", "random rows", (x,), (grid,), out, ideal.saturate(steps, 0))


OPERATIONS: dict[str, Callable[[Rng], Iterable[Case]]] = {
    "conv2d": conv2d,
    "depthwise_conv2d": depthwise_conv2d,
    "linear": linear,
    "add": add,
    "mul": mul,
    "average_pool2d": average_pool2d,
    "requantize": requantize,
    "quantize": quantize,
    "dequantize": dequantize,
    "sigmoid": lambda rng: function(rng, "sigmoid"),
    "tanh": lambda rng: function(rng, "tanh"),
    "softmax": softmax,
}
"""Name of an operation → its cases from a generator of random numbers."""


def vectors(seed: int = 0, operations: Iterable[str] | None = None) -> Iterator[Case]:
    """Yield all cases; the same for the same seed, whichever operations are asked for.

    Args:
        seed: another seed gives other cases of the same corners.
        operations: names; all by default.
    """
    for name in OPERATIONS if operations is None else operations:
        yield from OPERATIONS[name](np.random.default_rng([seed, zlib.crc32(name.encode())]))
