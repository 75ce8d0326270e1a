"""OpenVINO's float formulas under attack: values as near to rounding boundaries as the largest denominators allow.

Denominators are the largest OpenVINO's own bound admits. Sums of products are chosen channel by channel so that the
exact result lies 1/(2b) from a boundary, or as near as it gets; adds and products of two tensors meet all 65,536 pairs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from intact8.arithmetic import integer
from intact8.arithmetic.tie_free import FORMS, OPENVINO, largest_denominator
from intact8.engines.openvino import OpenVinoEngine
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))
ONLY = ("openvino",)
CHANNELS, NEAREST, WIDTH = 32, 8, 65
Array = Any


def coprime(m: float, limit: int) -> tuple[int, int]:
    """a/b near m with the largest odd b ≤ limit that has no divisor in common with a."""
    b = limit if limit % 2 else limit - 1
    while math.gcd(max(1, round(m * b)), b) > 1:
        b -= 2
    return max(1, round(m * b)), b


def nearest_sums(a: int, b: int, limit: float) -> Array:
    """Integers T, |T·a/b| ≤ limit, for which T·a/b lies nearest to a rounding boundary; the largest of equals."""
    top = int(limit * b / a)
    t = np.arange(-top, top + 1, dtype=np.int64)
    distance = np.abs(2 * ((t * a) % b) - b)
    return t[np.lexsort((-np.abs(t), distance))[:NEAREST]]


def inputs_for(sums: Array) -> Array:
    """uint8 (N, WIDTH) with Σ (x − 128)·w = sums for the weights 1, 63, 63, …"""
    n, rest = np.divmod(sums, 63)
    share = np.arange(WIDTH - 1)
    spread = np.sign(n)[:, None] * ((np.abs(n)[:, None] + share) // (WIDTH - 1))
    assert np.abs(spread).max() <= 127 and (spread.sum(axis=1) == n).all()
    return (np.concatenate([rest[:, None], spread], axis=1) + 128).astype(np.uint8)


def affine(
    kind: str, rng: np.random.Generator, biased: float, form: str, tied: bool = False
) -> tuple[Program, dict[str, Array], dict[str, Array]]:
    """A layer under attack; ``tied``: an add reads its input, too, so that this has a unit other than 1."""
    residual = float(rng.uniform(0.3, 2.0)) if form == "fused" else 0.0
    m = np.exp(rng.uniform(np.log(2e-3), np.log(0.3), CHANNELS))
    steps = rng.uniform(-biased, biased, CHANNELS)
    limits = largest_denominator(form, np.abs(steps) + 1, 255 * residual * 1.01, engines=ONLY)
    limits = np.full(CHANNELS, limits.min()) if residual else limits
    pairs = [coprime(float(v), int(n)) for v, n in zip(m, limits, strict=True)]
    if residual:  # one denominator for all
        pairs = [(max(1, round(float(v) * int(limits[0]))), int(limits[0])) for v in m]
    a, b = (np.array(v, np.int64) for v in zip(*pairs, strict=True))
    bias = np.rint(steps * b / a).astype(np.int64)
    r, z_r, z = max(1, round(residual * int(b[0]))) if residual else 0, 77, 128
    sums = np.stack([nearest_sums(int(x), int(y), 128) for x, y in zip(a, b, strict=True)])
    inner = sums - bias[:, None]
    kept = np.abs(inner) < 63 * 127 * (WIDTH - 1)
    x = inputs_for(inner[kept])
    x = x[: len(x) // 16 * 16]
    acc = (x.astype(np.int64) - 128) @ np.array([1, *[63] * (WIDTH - 1)])
    other = rng.integers(0, 256, (len(x), CHANNELS), dtype=np.uint8)
    total = acc[:, None] + bias
    extra: dict[str, Any] = {"residual": other.astype(np.int64) - z_r, "residual_a": r} if r else {}
    want = integer.requantize(total, a, b, z, axis=1, **extra)
    weight = np.tile(np.array([1, *[63] * (WIDTH - 1)], np.int8), (CHANNELS, 1))
    attrs: dict[str, Any] = {"lo": 0, "hi": 255, "residual_a": r}
    shape: tuple[int | None, ...] = (None, WIDTH)
    out: tuple[int | None, ...] = (None, CHANNELS)

    def image(v: Array) -> Array:
        return np.ascontiguousarray(v.T.reshape(1, v.shape[1], -1, 16))

    if kind == "conv":
        attrs |= {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
        attrs["transposed"], weight = False, weight[:, :, None, None]
        x, other, want = image(x), image(other), image(want)
        shape, out = (None, *x.shape[1:]), (None, *want.shape[1:])
    arrays = {"weight": weight, "bias": bias.astype(np.int32), "a": a.astype(np.int32), "b": b.astype(np.int32)}
    tensors = {
        "x": Tensor("x", "uint8", shape, 0.5, 128), "y": Tensor("y", "uint8", out, 0.5, z),
        "r": Tensor("r", "uint8", out, 0.5, z_r), "o": Tensor("o", "uint8", shape, 0.5, 3),
        "s": Tensor("s", "uint8", shape, 0.5, 128),
    }  # fmt: skip
    ops = [Op("y", kind, ("x", "r") if r else ("x",), attrs, arrays)]
    given, wanted = {"x": x, "r": other}, {"y": want}
    if tied:
        ops.append(Op("s", "add", ("o", "x"), {"a": [501, 733], "b": 801, "lo": 0, "hi": 255}))
        given["o"] = rng.integers(0, 256, x.shape, dtype=np.uint8)
        wanted["s"] = integer.add([given["o"], x], [3, 128], [501, 733], 801, 128)
    names = {n for op in ops for n in op.inputs}
    program = Program(
        {n: t for n, t in tensors.items() if n in names | set(wanted)}, tuple(ops),
        tuple(n for n in given if n in names), tuple(wanted), {"list": list(range(len(wanted)))} if tied else 0,
    )  # fmt: skip
    return program, {n: v for n, v in given.items() if n in names}, wanted


@pytest.mark.parametrize("kind", ["conv", "linear"])
@pytest.mark.parametrize(
    ("form", "biased", "tied"),
    [
        ("affine", 0, False),
        ("affine", 300, False),
        ("affine", 4000, False),
        ("affine", 300, True),
        ("fused", 100, False),
    ],
    ids=["", "bias", "large bias", "a unit", "residual"],
)
def test_layers(kind: str, form: str, biased: float, tied: bool) -> None:
    for seed in range(3):
        program, given, want = affine(kind, np.random.default_rng(seed), biased, form, tied)
        certified = certify(program, ("reference", "openvino"))
        first = certified.ops[0].certificate
        assert first is not None and first["engines"] == ["reference", "openvino"] and 0 < first["margin"] < 5e-4
        found = ENGINE.prepare(certified, threads=1)(given)
        for got, (name, values) in zip(found, want.items(), strict=True):
            assert (got == values).all(), (name, int((got != values).sum()), values.size)


def identity(name: str, source: str) -> Op:
    """A depthwise convolution that gives its input: what OpenVINO fuses an add into."""
    attrs = {
        "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 16,
        "transposed": False, "lo": 0, "hi": 255, "residual_a": 0,
    }  # fmt: skip
    one = np.ones(16, np.int32)
    arrays = {"weight": np.ones((16, 1, 1, 1), np.int8), "bias": 0 * one, "a": one, "b": one}
    return Op(name, "conv", (source,), attrs, arrays)


@pytest.mark.parametrize("kind", ["add", "mul"])
def test_all_pairs(kind: str) -> None:
    first, second = np.repeat(np.arange(256, dtype=np.uint8), 256), np.tile(np.arange(256, dtype=np.uint8), 256)
    given = {n: np.ascontiguousarray(v.reshape(1, 16, 64, 64)) for n, v in (("p", first), ("q", second))}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        zp, zq, z = (int(v) for v in rng.choice([0, 255, 128, 31], 3))
        if kind == "add":
            ratios = rng.uniform(0.1, 1.3, 2) * rng.choice([1, 1, -1], 2)
            b = int(largest_denominator("sum", 0.0, 255 * np.abs(ratios).sum() + 1, engines=ONLY))
            a = [int(np.rint(v * b)) or 1 for v in ratios]
            want = integer.add([given["p"], given["q"]], [zp, zq], a, b, z)
            attrs: dict[str, Any] = {"a": a, "b": b, "lo": 0, "hi": 255}
        else:
            numerator, b = coprime(float(rng.uniform(0.003, 0.01)), int(largest_denominator("scaled", engines=ONLY)))
            want = integer.mul(given["p"], zp, given["q"], zq, numerator, b, z)
            attrs = {"a": numerator, "b": b, "lo": 0, "hi": 255}
        shape = (None, 16, 64, 64)
        zeros = {"p": zp, "q": zq, "c": zp, "y": z}
        tensors = {n: Tensor(n, "uint8", shape, 0.5, zero) for n, zero in zeros.items()}
        ops = (identity("c", "p"), Op("y", kind, ("c", "q"), attrs))
        program = certify(Program(tensors, ops, ("p", "q"), ("y",)), ("reference", "openvino"))
        assert program.ops[1].certificate is not None and "openvino" in program.ops[1].certificate["engines"]
        got = ENGINE.prepare(program, threads=1)(given)[0]
        assert (got == want).all(), (seed, int((got != want).sum()))


@pytest.mark.parametrize("kind", ["mean", "avg_pool"])
def test_pools(kind: str) -> None:
    n = 49
    for seed in range(4):
        rng = np.random.default_rng(seed)
        gain = float(rng.uniform(0.4, 1.6))
        form = "mean" if kind == "mean" else "scaled"
        a, b = coprime(gain / n, int(largest_denominator(form, 0.0, 255 * gain * 1.01, engines=ONLY)))
        sums = np.concatenate([nearest_sums(a, b, min(128.0, 126 * n * a / b)) for _ in range(1)])
        sums = np.concatenate([sums, rng.integers(-120 * n, 120 * n, 4096 - len(sums))])
        low, extra = np.divmod(sums, n)
        x = (low[:, None] + (np.arange(n) < extra[:, None]) + 128).astype(np.uint8).reshape(64, 64, 7, 7)
        if kind == "mean":
            attrs: dict[str, Any] = {"dims": [2, 3], "keepdim": True, "a": a, "b": b, "lo": 0, "hi": 255}
        else:
            attrs = {
                "kernel": [7, 7], "stride": [7, 7], "padding": [0, 0], "ceil_mode": False, "count_include_pad": True,
                "multipliers": [[n, a, b]], "lo": 0, "hi": 255,
            }  # fmt: skip
        want = integer.mean(x, 128, [2, 3], True, a, b, 128)
        shapes = {"x": (None, 64, 7, 7), "y": (None, 64, 1, 1)}
        tensors = {name: Tensor(name, "uint8", shape, 0.5, 128) for name, shape in shapes.items()}
        program = certify(Program(tensors, (Op("y", kind, ("x",), attrs),), ("x",), ("y",)), ("reference", "openvino"))
        assert program.ops[0].certificate is not None and "openvino" in program.ops[0].certificate["engines"]
        assert (ENGINE.prepare(program, threads=1)({"x": x})[0] == want).all()


def test_layers_ask_for_no_smaller_denominators_than_other_engines() -> None:
    for form in ("affine", "leaky"):
        assert all(mine <= theirs for mine, theirs in zip(OPENVINO[form][:2], FORMS[form][:2], strict=True))
