"""Operations whose numbers lie at the ends of what a program may hold: multipliers, biases, zero points, levels, ε."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from intact8.arithmetic.windows import adaptive_windows, pool_windows
from intact8.opset.op import Op, Tensor
from intact8.program.certify import ENGINES, certify
from intact8.program.check import check
from intact8.program.program import Program

Array = npt.NDArray[Any]
Rng = np.random.Generator

SCALES = (0.05, 1.0, 2.0**-60, 2.0**120)


class Drawing:
    """Random choices, and the tensors made so far.

    Attributes:
        rng: of all choices.
        tensors: by name; the inputs first.
    """

    def __init__(self, rng: Rng) -> None:
        self.rng, self.tensors = rng, dict[str, Tensor]()

    def pick(self, *options: Any) -> Any:
        """One of them."""
        return options[int(self.rng.integers(len(options)))]

    def quantized(self, name: str, shape: tuple[int | None, ...]) -> str:
        """A quantized tensor of any zero point."""
        z = self.pick(0, 1, 128, 254, 255, int(self.rng.integers(256)))
        self.tensors[name] = Tensor(name, "uint8", shape, float(np.float32(self.pick(*SCALES))), z)
        return name

    def clamp(self) -> dict[str, int]:
        """Limits, often all of them."""
        if self.rng.random() < 0.5:
            return {"lo": 0, "hi": 255}
        lo, hi = sorted(int(v) for v in self.rng.integers(0, 256, 2))
        return {"lo": lo, "hi": hi}

    def a(self) -> int:
        """A numerator: small, ordinary or extreme."""
        return int(self.pick(0, 1, 2, 30, 500, 8191, 1 << 17, 1 << 20, 1 << 24, int(self.rng.integers(1 << 13))))

    def b(self) -> int:
        """A denominator."""
        return int(self.pick(1, 3, 101, 1001, 4001, 8191))

    def affine(self, outputs: int, weight: tuple[int, ...]) -> dict[str, Array]:
        """Arrays of a conv or linear."""
        rng, mode = self.rng, int(self.rng.integers(4))
        w = rng.integers(-60, 61, weight) if mode < 3 else rng.choice(np.array([-128, 127]), weight)
        large = (1 << 24, (1 << 31) - 1, -(1 << 31), 1 << 30)
        bias = rng.integers(-3000, 3000, outputs)
        if rng.random() < 0.3:
            bias = np.full(outputs, self.pick(*large))
        arrays = {"weight": w.astype(np.int8), "bias": bias.astype(np.int32)}
        mixed = rng.random() < 0.3
        a = [self.a() if mixed else None for _ in range(outputs)]
        one, b = self.a(), self.b()
        arrays["a"] = np.array([one if v is None else v for v in a], np.int32)
        arrays["b"] = np.full(outputs, b, np.int32)
        if rng.random() < 0.3:
            arrays["a_neg"] = np.array([self.a() * self.pick(-1, 0, 1) for _ in range(outputs)], np.int32)
            arrays["b_neg"] = np.full(outputs, self.b(), np.int32)
        return arrays


def conv(d: Drawing) -> Op:
    groups, kernel = d.pick((1, 3), (1, 1), (4, 3))
    outputs = 8
    x = d.quantized("x", (None, 4, 7, 7))
    d.quantized("y", (None, outputs, 7, 7))
    ones = [1, 1]
    attrs = {"stride": ones, "padding": [kernel // 2] * 2, "dilation": ones, "output_padding": [0, 0], "groups": groups,
             "transposed": False, "residual_a": 0, **d.clamp()}  # fmt: skip
    return Op("y", "conv", (x,), attrs, d.affine(outputs, (outputs, 4 // groups, kernel, kernel)))


def linear(d: Drawing) -> Op:
    x = d.quantized("x", (None, 16))
    d.quantized("y", (None, 5))
    return Op("y", "linear", (x,), {"residual_a": 0, **d.clamp()}, d.affine(5, (5, 16)))


def add(d: Drawing) -> Op:
    names = tuple(d.quantized(f"x{i}", (None, 4, 16)) for i in range(d.pick(1, 2, 2, 3)))
    d.quantized("y", (None, 4, 16))
    return Op("y", "add", names, {"a": [max(1, d.a()) * d.pick(1, -1) for _ in names], "b": d.b(), **d.clamp()})


def mul(d: Drawing) -> Op:
    shape = (None, 5, 31)
    x, w = d.quantized("x", shape), d.quantized("w", d.pick(shape, (None, 1, 31), (None, 5, 1)))
    d.quantized("y", shape)
    names = d.pick((x, w), (w, x), (x, x))
    if names == (x, x):
        del d.tensors["w"]
    return Op("y", "mul", names, {"a": d.a(), "b": d.b(), **d.clamp()})


def matmul(d: Drawing) -> Op:
    terms = d.pick(3, 40, 300)
    x, w = d.quantized("x", (None, 4, terms)), d.quantized("w", (None, terms, 6))
    d.quantized("y", (None, 4, 6))
    return Op("y", "matmul", (x, w), {"a": d.a(), "b": d.b(), **d.clamp()})


def mean(d: Drawing) -> Op:
    shape, dims, out = d.pick(((None, 4, 50), [2], (None, 4)), ((None, 3, 6, 6), [2, 3], (None, 3)))
    d.quantized("x", shape)
    d.quantized("y", out)
    return Op("y", "mean", ("x",), {"dims": dims, "keepdim": False, "a": d.a(), "b": d.b(), **d.clamp()})


def avg_pool(d: Drawing) -> Op:
    window = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}
    inside = d.pick(True, False)
    d.quantized("x", (None, 3, 7, 7))
    d.quantized("y", (None, 3, 4, 4))
    _, divisors = pool_windows([7, 7], [3, 3], [2, 2], [1, 1], False, inside)
    rows = [[int(n), d.a(), d.b()] for n in np.unique(divisors)]
    return Op("y", "avg_pool", ("x",), {**window, "count_include_pad": inside, "multipliers": rows, **d.clamp()})


def adaptive_avg_pool(d: Drawing) -> Op:
    out = d.pick([4, 4], [3, 3])
    d.quantized("x", (None, 3, 8, 8))
    d.quantized("y", (None, 3, *out))
    rows = [[int(n), d.a(), d.b()] for n in np.unique(adaptive_windows([8, 8], out)[1])]
    return Op("y", "adaptive_avg_pool", ("x",), {"output_size": out, "multipliers": rows, **d.clamp()})


def softmax(d: Drawing) -> Op:
    d.quantized("x", (None, 6, 9))
    d.quantized("y", (None, 6, 9))
    table = -np.sort(-d.rng.integers(0, d.pick(2, 256, 1 << 14), 256)).astype(np.int32)
    table[0] = max(table[0], 1)
    levels = float(np.float32(d.pick(255.0, 256.0, 1e9, 2.0**61, 2.0**-100)))
    return Op("y", "softmax", ("x",), {"axis": d.pick(1, 2), "levels": levels, **d.clamp()}, {"table": table})


def norm(d: Drawing) -> Op:
    d.quantized("x", (None, 4, 6))
    d.quantized("y", (None, 4, 6))
    size = d.pick(1.0, 40.0, 1e30, 1e-38, 3e37)
    arrays = {role: (d.rng.standard_normal(6) * size).astype(np.float32) for role in ("gain", "offset")}
    attrs = {"shape": [6], "eps": d.pick(1e-36, 1e-12, 1e-3, 1.0, 3e38), **d.clamp()}
    return Op("y", d.pick("layer_norm", "rms_norm"), ("x",), attrs, arrays)


KINDS: dict[str, Callable[[Drawing], Op]] = {
    f.__name__: f for f in (conv, linear, add, mul, matmul, mean, avg_pool, adaptive_avg_pool, softmax, norm)
}
"""Kind → a drawing of it; ``norm`` is either norm."""


def draw(kind: str, rng: Rng) -> tuple[Program, dict[str, Array]]:
    """A checked and certified program of one operation, and inputs: often nothing but ends of the range."""
    d = Drawing(rng)
    op = KINDS[kind](d)
    names = tuple(name for name in d.tensors if name != "y")
    program = Program(d.tensors, (op,), names, ("y",))
    check(program)
    ends = np.array([0, 1, 254, 255], np.uint8)
    inputs = {}
    for name in names:
        shape = [3 if size is None else size for size in d.tensors[name].shape]
        inputs[name] = rng.choice(ends, shape) if rng.random() < 0.3 else rng.integers(0, 256, shape).astype(np.uint8)
    return certify(program, ENGINES), inputs


__all__ = ["KINDS", "draw"]
