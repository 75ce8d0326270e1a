"""Every number of a certificate, computed a second time: one product after the other, in exact fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.arithmetic.test_ratios import COUNTED
from tests.program.build import conv_attrs, q

from intact8.arithmetic.windows import adaptive_windows
from intact8.opset.affine import PROOF
from intact8.opset.op import Op, Tensor
from intact8.program.certify import ENGINES, EVALUATIONS, prove

CLAMP = {"lo": 10, "hi": 255}
U = Fraction(1, 1 << 24)


def products(op: Op) -> list[list[int]]:
    """The weights every output of a conv or linear is a sum over."""
    w = op.arrays["weight"].astype(int)
    if op.kind == "linear" or not op.attrs["transposed"]:
        return [list(map(int, row.ravel())) for row in w]
    groups, each = op.attrs["groups"], w.shape[0] // op.attrs["groups"]
    return [list(map(int, w[g * each : (g + 1) * each, o].ravel())) for g in range(groups) for o in range(w.shape[1])]


def entries(op: Op, tensors: dict[str, Tensor]) -> Iterator[tuple[str, int, Fraction, Fraction, Fraction]]:
    """Form, b, steps of the bias, of the residual, of the result: of every multiplier."""
    t, p = op.attrs, op.arrays
    if op.kind in ("conv", "linear"):
        form = "leaky" if "a_neg" in p else "fused" if t["residual_a"] else "affine"
        for c in range(len(p["b"])):
            a, b, bias = int(p["a"][c]), int(p["b"][c]), abs(int(p["bias"][c]))
            yield form, b, Fraction(bias * a, b), Fraction(255 * t["residual_a"], b), Fraction(256)
        for c in range(len(p["b"]) if "a_neg" in p else 0):
            a, b, bias = int(p["a_neg"][c]), int(p["b_neg"][c]), abs(int(p["bias"][c]))
            zero = tensors[op.name].zero_point or 0
            result = 256 if a < 0 else zero + 1
            yield "leaky", b, Fraction(bias * abs(a), b), Fraction(0), Fraction(result)
    elif op.kind == "add":
        yield "sum", t["b"], Fraction(0), Fraction(255 * sum(map(abs, t["a"])), t["b"]), Fraction(256)
    elif op.kind == "mean":
        sizes = [tensors[op.inputs[0]].shape[d] for d in t["dims"]]
        count = math.prod(sizes) if all(isinstance(d, int) for d in sizes) else 0  # type: ignore[arg-type]
        yield "mean", t["b"], Fraction(0), Fraction(255 * count * t["a"], t["b"]), Fraction(256)
    elif op.kind in ("mul", "matmul", "avg_pool", "adaptive_avg_pool"):
        for b in [row[2] for row in t["multipliers"]] if "multipliers" in t else [t["b"]]:
            yield "scaled", b, Fraction(0), Fraction(0), Fraction(256)


def margin(op: Op, tensors: dict[str, Tensor], engines: tuple[str, ...]) -> Fraction | None:
    """The least 1/(2b) − error bound."""
    left = []
    for form, b, bias, residual, result in entries(op, tensors):
        counted = [COUNTED[form][0]] * bool(set(engines) - {"reference"})
        counted += [COUNTED[form][1]] * ("openvino" in engines)
        errors = [U * (r * result + k * bias + s * residual) for r, k, s in counted]
        if any(k * bias + s * residual > 393216 * r for r, k, s in counted):  # beyond what is proved
            errors.append(Fraction(1, 2))
        left.append(Fraction(1, 2 * b) - max(errors, default=0))
    return min(left, default=None)


def accumulator(op: Op, tensors: dict[str, Tensor]) -> int:
    x = [tensors[name] for name in op.inputs]
    reach = [max(t.zero_point or 0, 255 - (t.zero_point or 0)) for t in x]
    t, shape = op.attrs, x[0].shape
    if op.kind in ("conv", "linear"):
        bias = op.arrays["bias"].tolist()
        return max(sum(map(abs, row)) * reach[0] + abs(b) for row, b in zip(products(op), bias, strict=True))
    if op.kind in ("mul", "matmul"):
        last = 1 if op.kind == "mul" else shape[-1]
        return reach[0] * reach[1] * last if isinstance(last, int) else 1 << 31
    if op.kind == "mean":
        return reach[0] * math.prod(d for d in (shape[i] for i in t["dims"]) if isinstance(d, int))
    if op.kind == "avg_pool":
        return reach[0] * math.prod(t["kernel"])
    if op.kind == "adaptive_avg_pool":
        sizes = [d for d in shape[2:] if isinstance(d, int)]
        return reach[0] * int(adaptive_windows(sizes, t["output_size"])[1].max())
    if op.kind == "softmax":
        return int(op.arrays["table"][0]) * int(shape[t["axis"]] or 0)
    if op.kind in ("layer_norm", "rms_norm"):
        return math.prod(t["shape"]) * (128 if op.kind == "layer_norm" else reach[0]) ** 2
    return max(reach)


def affine(rng: np.random.Generator, kind: str, leaky: bool, residual: int, transposed: bool) -> Any:
    n, groups, inputs = 4, 2 if kind == "conv" else 1, 6
    shape = (
        (n, inputs) if kind == "linear" else (n, inputs // groups, 3) if not transposed else (inputs, n // groups, 3)
    )
    most = int(rng.choice([3, 60, 127]))
    arrays = {
        "weight": rng.integers(-most - (most == 127), most + 1, shape).astype(np.int8),
        "bias": rng.integers(-(10 ** int(rng.integers(1, 9))), 10 ** int(rng.integers(1, 9)), n).astype(np.int32),
        "a": rng.integers(1, 60, n).astype(np.int32),
        "b": np.full(n, 2 * int(rng.integers(100, 2500)) + 1, np.int32),
    }
    if leaky:
        arrays["a_neg"] = rng.integers(-9, 10, n).astype(np.int32)
        arrays["b_neg"] = (2 * rng.integers(100, 5000, n) + 1).astype(np.int32)
    attrs: dict[str, Any] = {**CLAMP, "residual_a": residual}
    if kind == "conv":
        attrs = {**conv_attrs(1, groups=groups, residual_a=residual), **CLAMP, "transposed": transposed}
    x, y = q("x", None, inputs, *[8] * (kind == "conv"), z=int(rng.choice([0, 9, 255]))), q("y", None, n, z=60)
    op = Op("y", kind, ("x", "r") if residual else ("x",), attrs, arrays)
    return op, {"x": x, "y": y, "r": replace(y, name="r")}


def others(rng: np.random.Generator) -> list[tuple[Op, dict[str, Tensor]]]:
    z = [int(v) for v in rng.integers(0, 256, 3)]
    b = 2 * int(rng.integers(200, 4000)) + 1
    x, w, y = q("x", None, 6, 7, z=z[0]), q("w", None, 7, 5, z=z[1]), q("y", None, 6, 7, z=z[2])
    image, two, ratio = q("x", None, 3, 9, 11, z=z[0]), {"x": x, "w": w, "y": y}, {"a": 3, "b": b, **CLAMP}
    rows = [[6, 3, b], [4, 5, b + 2], [9, 1, 101]]
    pool = {"kernel": [3, 2], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True, "count_include_pad": False}
    one = np.ones((6, 7), np.float32)
    return [
        (Op("y", "mul", ("x", "w"), ratio), two), (Op("y", "matmul", ("x", "w"), ratio), two),
        (Op("y", "add", ("x", "w"), {"a": [301, -7], "b": b, **CLAMP}), two),
        (Op("y", "add", ("x", "w", "x"), {"a": [301, -7, 90], "b": b, **CLAMP}), two),
        (Op("y", "mean", ("x",), {"dims": [1, 2], "keepdim": False, **ratio}), two),
        (Op("y", "mean", ("x",), {"dims": [2], "keepdim": False, **ratio}), two),
        (Op("y", "mean", ("x",), {"dims": [2, 0], "keepdim": False, **ratio}), two),
        (Op("y", "avg_pool", ("x",), {**pool, "multipliers": rows, **CLAMP}), {"x": image, "y": y}),
        (Op("y", "adaptive_avg_pool", ("x",), {"output_size": [2, 4], "multipliers": rows, **CLAMP}),
         {"x": image, "y": y}),
        (Op("y", "table", ("x",), {"fn": "t"}, {"table": np.zeros(256, np.uint8)}), two),
        (Op("y", "softmax", ("x",), {"axis": 2, "levels": 256.0, **CLAMP},
            {"table": np.linspace(16383, 0, 256).astype(np.int32)}), two),
        (Op("y", "layer_norm", ("x",), {"shape": [6, 7], "eps": 1.0, **CLAMP}, {"gain": one, "offset": one}), two),
        (Op("y", "rms_norm", ("x",), {"shape": [6, 7], "eps": 1.0, **CLAMP}, {"gain": one, "offset": one}), two),
    ]  # fmt: skip


def cases() -> Iterator[tuple[Op, dict[str, Tensor]]]:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        yield from others(rng)
        for leaky, residual, transposed in itertools.product((False, True), (0, 900), (False, True)):
            if not (leaky and residual):
                yield affine(rng, "conv", leaky, residual, transposed)
        for leaky in (False, True):
            yield affine(rng, "linear", leaky, 0, False)


CLAIMS = [("reference",), ("reference", "onednn"), ("onnxruntime",), ENGINES]


@pytest.mark.parametrize("engines", CLAIMS, ids=",".join)
def test_every_number_is_that_of_the_exact_sums(engines: tuple[str, ...]) -> None:
    proved, kinds = 0, set()
    for op, tensors in cases():
        got = prove(op, tensors, engines)
        claimed = tuple(got["engines"])
        assert set(claimed) <= set(engines) and ("reference" in claimed) == ("reference" in engines)
        b = [entry[1] for entry in entries(op, tensors)]
        assert (got["b_min"], got["b_max"]) == ((min(b), max(b)) if b else (None, None))
        exact, sums = margin(op, tensors, claimed), accumulator(op, tensors)
        if exact is None:
            assert got["margin"] is None
        else:
            assert got["margin"] == pytest.approx(float(exact), rel=1e-9, abs=1e-15)
        assert got["accumulator"] == sums, op.kind
        assert got["float32_exact"] == (sums < 1 << 24)
        assert got["exact"] == (sums < 1 << 31 and (exact is None or exact > 0))
        assert ("reason" in got) != got["exact"]
        pairs = [0]
        if op.kind in ("conv", "linear"):
            pairs = [255 * sum(sorted(map(abs, row))[-2:]) for row in products(op)]
        assert got["saturation"] == max(pairs) and got["portable"] == (max(pairs) <= 32767)
        assert all(type(got[k]) is int for k in ("accumulator", "saturation"))
        proved, kinds = proved + got["exact"], kinds | {(op.kind, got["exact"])}
    assert proved > 20 and (engines == ("reference",) or {("conv", True), ("conv", False)} <= kinds)


def ends(op: Op, tensors: dict[str, Tensor]) -> bool:
    """Whether OpenVINO's formula is bounded, and every number of it fits: the rules of docs/arithmetic.md, again."""
    if op.kind == "table":
        return True  # its own entries, or a kernel that gave all of them
    if op.kind not in ("conv", "linear", "add", "mul", "matmul", "mean", "avg_pool", "adaptive_avg_pool"):
        return False
    x, sums = tensors[op.inputs[0]], accumulator(op, tensors)
    if op.kind == "add" and len(op.inputs) > 2:
        return False
    if op.kind == "adaptive_avg_pool" and sums >= 1 << 24:
        return False
    if op.kind == "mean" and not all(isinstance(x.shape[d], int) for d in op.attrs["dims"]):
        return False
    left = margin(op, tensors, ("openvino",))
    return left is not None and left > 0


def test_openvino_is_claimed_where_its_formula_has_a_bound() -> None:
    found = set()
    for op, tensors in cases():
        claimed = "openvino" in prove(op, tensors, ENGINES)["engines"]
        if accumulator(op, tensors) < 1 << 28:  # below any overflow
            assert claimed == ends(op, tensors), (op.kind, tensors["x"].zero_point)
            found.add((op.kind, claimed))
    assert {k for k, c in found if c} >= {"conv", "linear", "add", "mul", "mean", "avg_pool", "adaptive_avg_pool"}
    assert {("add", False), ("mean", False), ("conv", False), ("softmax", False)} <= found


@pytest.mark.parametrize("kind", ["adaptive_avg_pool", "linear", "matmul"])
def test_openvino_needs_sums_that_float32_holds(kind: str) -> None:
    """Pools only: longer sums of layers and products are added in parts."""
    for terms in (65793, 65794) if kind != "matmul" else (258, 259):  # 255 times 65793 is 2²⁴ − 1
        x, y, attrs, arrays = q("x", 1, terms, z=0), q("y", 1, 1, z=0), {"a": 1, "b": 1, **CLAMP}, {}
        if kind == "adaptive_avg_pool":
            x, attrs = q("x", 1, 1, terms, z=0), {"output_size": [1], "multipliers": [[terms, 1, 1]], **CLAMP}
        elif kind == "matmul":
            y = q("y", 1, 1, z=0)
        else:
            x, attrs = q("x", 1, terms, z=1), {**CLAMP, "residual_a": 0}
            arrays = {"weight": np.ones((1, terms), np.int8), "bias": np.zeros(1, np.int32)}
            arrays |= {"a": np.ones(1, np.int32), "b": np.ones(1, np.int32)}
        op = Op("y", kind, ("x", "w") if kind == "matmul" else ("x",), attrs, arrays)
        got = prove(op, {"x": x, "y": y, "w": q("w", 1, terms, 1, z=0)}, ENGINES)
        assert ("openvino" in got["engines"]) == (terms != 65794 or kind == "linear"), (terms, got)


def test_which_b_would_do_is_told() -> None:
    arrays = {"weight": np.ones((2, 3), np.int8), "bias": np.zeros(2, np.int32), "a": np.ones(2, np.int32)}
    op = Op("y", "linear", ("x",), {**CLAMP, "residual_a": 0}, arrays | {"b": np.array([101, 5001], np.int32)})
    got = prove(op, {"x": q("x", None, 3), "y": q("y", None, 2)}, ("onednn",))
    assert not got["exact"] and "b = 5001 of entry 1 " in got["reason"] and "(needs b below 4681)" in got["reason"]
    assert got["margin"] == pytest.approx(float(Fraction(1, 10002) - 7 * 256 * U))


def test_dynamic_layers_count_bytes() -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-127, 128, (4, 9)).astype(np.int8)
    op = Op("y", "dynamic_linear", ("x",), {"granularity": "per_row"}, {"weight": w, "scale": np.ones(4, np.float32)})
    x, y = Tensor("x", "float32", (None, 9)), Tensor("y", "float32", (None, 4))
    got = prove(op, {"x": x, "y": y}, ENGINES)
    size = np.abs(w.astype(int))
    assert got["accumulator"] == size.sum(1).max() * 127
    assert got["saturation"] == 255 * np.sort(size, 1)[:, -2:].sum(1).max()
    assert got["engines"] == ["reference", "onednn", "onnxruntime", "native"] and got["margin"] is None
    layers = {"weight_ih": w.reshape(1, 4, 9), "weight_hh": np.full((1, 4, 4), -127, np.int8)}
    got = prove(replace(op, kind="rnn", arrays=layers), {"x": x, "y": y}, ("reference",))
    assert got["accumulator"] == max(size.sum(1).max(), 4 * 127) * 127 and got["saturation"] == 2 * 127 * 255


def lone(weight: int, bias: int, a: int, b: int, z: int, residual: int = 0, **more: int) -> Op:
    arrays = {"weight": np.array([[weight]], np.int8), "bias": np.array([bias], np.int32)}
    arrays |= {k: np.array([v], np.int32) for k, v in {"a": a, "b": b, **more}.items()}
    return Op("y", "linear", ("x", "x")[: 1 + bool(residual)], {**CLAMP, "residual_a": residual}, arrays)


def fits(op: Op, z: int, engine: str = "onnxruntime") -> bool:
    tensors = {"x": q("x", None, 1, z=z), "y": q("y", None, 1)}
    return PROOF.fits(EVALUATIONS[engine], op, tensors, PROOF.sums(op, tensors))


@pytest.mark.parametrize("z", [0, 100, 200, 255])
def test_results_stay_below_the_steps_an_int32_holds(z: int) -> None:
    bias, limit = 256 - max(z, 255 - z), 1 << 22  # the largest sum is 256
    for sign in (1, -1):
        assert fits(lone(sign, sign * bias, limit - 1, 1, z), z) and not fits(lone(1, sign * bias, limit, 1, z), z)
        assert fits(lone(1, bias, 1, 1, z, a_neg=sign * (limit - 1), b_neg=1), z)
        assert not fits(lone(1, bias, 1, 1, z, a_neg=sign * limit, b_neg=1), z)
    assert not fits(lone(1, bias, 3 * limit, 3, z), z) and fits(lone(1, bias, 3 * limit - 1, 3, z), z)
    for residual in (1, 70001):
        left = (1 << 30) - 255 * residual
        assert fits(lone(0, left - 1, 1, 1, z, residual), z) and not fits(lone(0, left, 1, 1, z, residual), z)


@pytest.mark.parametrize("z", [0, 128])
def test_sums_of_bytes_stay_below_those_an_int32_holds(z: int) -> None:
    for bias, fit in (((1 << 31) - 256, True), ((1 << 31) - 255, False)):
        assert fits(lone(1, bias, 1, 3, z), z) is fit and fits(lone(-1, -bias, 1, 3, z), z) is fit


def test_multipliers_of_zero_by_engine() -> None:
    plain, leaky = lone(1, 0, 0, 1, 0), lone(1, 0, 0, 1, 0, a_neg=1, b_neg=1)
    engines = ("onednn", "onnxruntime", "openvino")
    assert [fits(plain, 0, e) for e in engines] == [True, True, False]
    assert [fits(leaky, 0, e) for e in engines] == [False, True, False]
    assert all(fits(lone(1, 0, 1, 1, 0, a_neg=0, b_neg=1), 0, e) for e in engines)


def test_accumulators_of_31_bits() -> None:
    tensors = {"x": q("x", None, 1, z=0), "y": q("y", None, 1)}
    for bias, exact in (((1 << 31) - 256, True), ((1 << 31) - 255, False)):
        got = prove(lone(1, bias, 1, 3, 0), tensors, ("reference",))
        assert got["exact"] is exact and got["accumulator"] == bias + 255
