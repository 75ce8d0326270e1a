"""Certificates state what holds, and a stored one that does not is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.program.build import certified, network, q, with_op

from intact8.arithmetic.tie_free import FORMS, Roundings, error_bound, largest_denominator
from intact8.errors import ProgramError
from intact8.opset.affine import by_output
from intact8.opset.op import Op, Tensor
from intact8.opset.proof import STEPS, Evaluation, ratios_fit
from intact8.program.certify import ENGINES, certifiable, certify, prove, uncertified
from intact8.program.program import Program
from intact8.program.recheck import recheck


def certificate(program: Program, name: str) -> dict[str, Any]:
    found = next(op for op in program.ops if op.name == name).certificate
    assert found is not None
    return found


def test_every_integer_op_of_the_network_is_proved() -> None:
    program = certified()
    assert uncertified(program) == []
    for op in program.ops:
        assert (op.certificate is not None) == (certifiable(op))
        if op.certificate is not None:
            assert op.certificate["exact"] and "reason" not in op.certificate
    recheck(program)


def test_numbers_of_a_conv() -> None:
    program = network()
    op = next(op for op in program.ops if op.name == "net.c1")
    weight, bias = np.abs(op.arrays["weight"].astype(int)), np.abs(op.arrays["bias"].astype(int))
    got = certificate(certify(program), "net.c1")
    sums = weight.reshape(4, -1).sum(1) * 128 + bias  # zero point 128: |x − z| ≤ 128
    assert got["accumulator"] == sums.max()
    assert got["saturation"] == max(np.sort(row)[-2:].sum() for row in weight.reshape(4, -1)) * 255
    assert (got["b_min"], got["b_max"], got["float32_exact"]) == (1001, 1001, True)
    assert got["margin"] == pytest.approx(float((1 / 2002 - error_bound("affine", bias * 5 / 1001)).min()))


def test_the_margin_of_a_product_of_activations() -> None:
    tensors = {n: Tensor(n, "uint8", (None, 4), 0.5, 3) for n in ("x", "w", "y")}
    op = Op("y", "mul", ("x", "w"), {"a": 30, "b": 401, "lo": 0, "hi": 255})
    got = certificate(certify(Program(tensors, (op,), ("x", "w"), ("y",))), "y")
    bound = error_bound("scaled", engines=[name for name in got["engines"] if name != "reference"])
    assert got["margin"] == pytest.approx(1 / 802 - float(bound), rel=1e-9)


def test_margin_runs_out_just_above_the_largest_denominator() -> None:
    limit = int(largest_denominator("affine"))
    for b, exact in ((limit, True), (limit + 2, False)):
        arrays = {"b": np.full(4, b, np.int32), "bias": np.zeros(4, np.int32)}
        program = certify(with_op(network(), "net.c1", arrays=arrays))
        got = certificate(program, "net.c1")
        assert got["exact"] is exact and (got["margin"] > 0) is exact
        assert [op.name for op, _ in uncertified(program)] == ([] if exact else ["net.c1"])
        if not exact:
            assert "margin" in got["reason"]


def test_the_reference_alone_needs_no_margin() -> None:
    program = with_op(network(), "net.c1", arrays={"b": np.full(4, 8191, np.int32)})
    assert not certificate(certify(program), "net.c1")["exact"]
    assert certificate(certify(program, ("reference",)), "net.c1")["exact"]


def test_negative_side_counts() -> None:
    program = with_op(network(), "leaky", arrays={"b_neg": np.full(4, (1 << 20) - 1, np.int32)})
    assert not certificate(certify(program), "leaky")["exact"]


def test_large_accumulators_are_not_exact() -> None:
    program = certify(with_op(network(), "head", arrays={"bias": np.full(5, 2**31 - 1, np.int32)}))
    assert "int32" in certificate(program, "head")["reason"]


def test_large_weights_need_vnni() -> None:
    weight = np.zeros((4, 3, 3, 3), np.int8)
    weight[2, 0, 0, :2] = (-128, 1)
    fine = certify(with_op(network(), "net.c1", arrays={"weight": weight.clip(-127)}))
    assert fine.needs == () and certificate(fine, "net.c1")["saturation"] == 128 * 255
    program = certify(with_op(network(), "net.c1", arrays={"weight": weight}))
    assert program.needs == ("vnni",) and not certificate(program, "net.c1")["portable"]
    assert certificate(program, "net.c1")["exact"]
    recheck(program)
    with pytest.raises(ProgramError, match="VNNI"):
        recheck(replace(program, needs=()))


def test_transposed_weights_are_summed_by_output() -> None:
    w = np.arange(4 * 3 * 2, dtype=np.int8).reshape(4, 3, 2)
    op = Op("up", "conv", ("x",), {"transposed": True, "groups": 2}, {"weight": w})
    rows = by_output(op)
    assert rows.shape == (6, 4)
    assert sorted(rows[4].tolist()) == sorted(w[2:, 1].ravel().tolist())


def test_gain_error_is_kept() -> None:
    program = certify(with_op(network(), "sum", certificate={"gain_error": 5e-5}))
    assert certificate(program, "sum")["gain_error"] == 5e-5
    assert certificate(certify(program), "sum")["gain_error"] == 5e-5


@pytest.mark.parametrize(
    "key,value",
    [
        ("exact", False),
        ("exact", 1),
        ("exact", None),
        ("reason", "none"),
        ("gain_error", -1.0),
        ("gain_error", "small"),
        ("margin", 0.4),
        ("margin", 0),
        ("margin", -0.1),
        ("margin", float("nan")),
        ("margin", None),
        ("accumulator", 1),
        ("saturation", 0),
        ("b_max", 3),
        ("engines", ["magic"]),
        ("engines", "reference"),
        ("portable", 1),
        ("blessed", True),
    ],
)
def test_altered_certificates_are_refused(key: str, value: Any) -> None:
    program = certified()
    altered = certificate(program, "net.c1") | {key: value}
    with pytest.raises(ProgramError) as caught:
        recheck(with_op(program, "net.c1", certificate=altered))
    assert caught.value.where == "net.c1"


@pytest.mark.parametrize(
    "key", ["exact", "margin", "b_min", "b_max", "accumulator", "saturation", "portable", "engines"]
)
def test_certificates_without_an_entry_are_refused(key: str) -> None:
    program = certified()
    short = {k: v for k, v in certificate(program, "net.c1").items() if k != key}
    op = replace(next(op for op in program.ops if op.name == "net.c1"), certificate=short)
    with pytest.raises(ProgramError):
        recheck(replace(program, ops=tuple(op if o.name == op.name else o for o in program.ops)))


def test_a_certificate_may_claim_less_than_is_proved() -> None:
    program = certified()
    margin = certificate(program, "net.c1")["margin"]
    recheck(with_op(program, "net.c1", certificate={"margin": margin / 2}))
    recheck(
        with_op(program, "net.c1", certificate={"margin": -margin, "exact": False, "reason": "b = 1001 is too large"})
    )
    for more in (margin * 1.001, math.nextafter(0.5, 1)):
        with pytest.raises(ProgramError, match="margin"):
            recheck(with_op(program, "net.c1", certificate={"margin": more}))


def test_what_was_not_exact_is_refused_as_exact() -> None:
    limit = int(largest_denominator("affine"))
    arrays = {"b": np.full(4, limit + 2, np.int32), "bias": np.zeros(4, np.int32)}
    program = certify(with_op(network(), "net.c1", arrays=arrays))
    recheck(program)
    stored = certificate(program, "net.c1")
    op = next(op for op in program.ops if op.name == "net.c1")
    for lie in ({"exact": True}, {"exact": True, "margin": 1e-9}):
        claims = {k: v for k, v in (stored | lie).items() if k != "reason"}
        ops = tuple(replace(o, certificate=claims) if o is op else o for o in program.ops)
        with pytest.raises(ProgramError, match="does not hold"):
            recheck(replace(program, ops=ops))


@pytest.mark.parametrize("factor", [0.5, 2.0], ids=["tighter bounds", "wider bounds"])
def test_files_outlive_tighter_error_bounds_and_not_wider_ones(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    program = certified()
    for form, n in list(FORMS.items()):
        monkeypatch.setitem(FORMS, form, Roundings(*(factor * v for v in n)))
    if factor < 1:
        recheck(program)
    else:
        with pytest.raises(ProgramError, match="does not hold: margin"):
            recheck(program)


def test_altered_weights_under_an_old_certificate_are_refused() -> None:
    with pytest.raises(ProgramError, match="does not hold"):
        recheck(with_op(certified(), "net.c1", arrays={"weight": np.full((4, 3, 3, 3), 127, np.int8)}))


def test_moves_take_no_certificate() -> None:
    with pytest.raises(ProgramError, match="takes no certificate"):
        recheck(with_op(certified(), "cat", certificate={"exact": True, "engines": []}))


def test_unknown_engine() -> None:
    with pytest.raises(ProgramError, match="unknown engine 'tpu'"):
        certify(network(), ("tpu",))


@pytest.mark.parametrize("terms", [258, 259])
def test_openvino_is_claimed_for_products_of_activations_of_any_length(terms: int) -> None:
    op = Op("y", "matmul", ("x", "w"), {"a": 3, "b": 1001, "lo": 0, "hi": 255})
    tensors = {"x": q("x", None, 4, terms), "w": q("w", None, terms, 9), "y": q("y", None, 4, 9)}
    certificate = prove(op, tensors, ENGINES)
    assert certificate["exact"] and certificate["accumulator"] == terms * 155 * 155
    assert "openvino" in certificate["engines"]


def test_what_weights_need_is_demanded_without_a_certificate_too() -> None:
    weights = np.full((1, 2), 127, np.int8)
    arrays = {"weight": weights, **{k: np.ones(1, np.int32) for k in ("bias", "a", "b")}}
    op = Op("y", "linear", ("x",), {"residual_a": 0, "lo": 0, "hi": 255}, arrays)
    tensors = {"x": Tensor("x", "uint8", (None, 2), 1.0, 0), "y": Tensor("y", "uint8", (None, 1), 1.0, 0)}
    bare = Program(tensors, (op,), ("x",), ("y",))
    with pytest.raises(ProgramError, match="needs: the program does not state that it needs VNNI"):
        recheck(bare)
    recheck(replace(bare, needs=("vnni",)))
    recheck(replace(bare, ops=(replace(op, arrays={**arrays, "weight": weights // 2}),)))


def test_a_margin_of_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors as large as half a step of the quotient leave no room."""
    program = certified()
    op = next(op for op in program.ops if op.name == "net.c1")
    for error, proved in ((1 / (2 * 1001), False), (1 / (2 * 1001) - 1e-12, True)):
        monkeypatch.setattr("intact8.program.certify.error_bound", lambda *a, error=error, **k: np.array(error))
        found = prove(op, program.tensors, ENGINES)
        assert found["exact"] is proved and ("openvino" in found["engines"]) is proved


def test_products_stay_within_what_an_evaluation_holds() -> None:
    """STEPS is a power of two, so these bounds are exact."""
    assert ratios_fit(Evaluation({}), "affine", [1], [1000], int(STEPS) * 500)
    assert not ratios_fit(Evaluation({}), "affine", [1, 2], [1000, 2000], int(STEPS) * 500)
