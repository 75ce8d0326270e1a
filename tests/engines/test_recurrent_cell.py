"""Whole programs on onednn: the reference's bits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.capture.encoder import SEQUENCE, Encoder, call
from tests.conformance import networks
from tests.conformance.build import draw
from tests.conformance.recurrent import draw_inputs, layer
from tests.engines.test_dynamic import bits
from tests.engines.test_float_attention import attention

import intact8
from intact8.engines import engine_status, get_engine
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.program import Program

REASON = engine_status()["onednn"]
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def compare(program, values, floats=()):
    """Deployed outputs and every tensor; ``floats`` may differ in their last bits."""
    before = {name: x.copy() for name, x in values.items()}
    runner, want = get_engine("onednn").prepare(program, threads=1), ReferenceEngine().prepare(program).tensors(values)
    found = runner.tensors(values)
    assert found.keys() == want.keys()
    outputs = [*zip(program.outputs, runner(values), strict=True), *zip(program.outputs, runner(values), strict=True)]
    for name, y in [*found.items(), *outputs]:
        if name in floats:
            np.testing.assert_allclose(y, want[name], rtol=1e-5, atol=1e-5, err_msg=name)
        elif y.dtype == np.float32:
            np.testing.assert_array_equal(bits(y), bits(want[name]), err_msg=name)
        else:
            np.testing.assert_array_equal(y, want[name], err_msg=name)
    assert all((values[name] == x).all() for name, x in before.items())


def behind_linear(program, rng):
    """The layer of a program reads what a dynamic linear layer gives."""
    (op,), (time, _, width) = program.ops, program.tensors["x"].shape
    arrays = {
        "weight": rng.integers(-63, 64, (width, 9)).astype(np.int8),
        "scale": rng.uniform(1e-3, 1e-2, width).astype(np.float32),
        "bias": rng.standard_normal(width).astype(np.float32),
    }
    tensors = {"x": Tensor("x", "float32", (time, None, 9)), "u": Tensor("u", "float32", (time, None, width))}
    linear = Op("u", "dynamic_linear", ("x",), {"granularity": "per_row"}, arrays)
    ops = (linear, replace(op, inputs=("u", *op.inputs[1:])))
    whole = certify(replace(program, tensors=program.tensors | tensors, ops=ops))
    check(whole)
    return whole


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "relu"])
def test_recurrent_layers_behind_a_linear_one(kind, batch):
    rng, relu = np.random.default_rng(3), kind == "relu"
    for directions, states, lengths in itertools.product((1, 2), (False, True), (False, True)):
        for hidden in (5, 131):  # within a block of a row, and beyond
            program = layer(
                "rnn" if relu else kind, rng, directions=directions, states=states, lengths=lengths, relu=relu, time=4,
                hidden=hidden,
            )  # fmt: skip
            whole = behind_linear(program, rng)
            compare(whole, draw_inputs(whole, batch, rng))


@pytest.mark.parametrize("seed", range(12))
def test_convolutional_networks(seed):
    program, x, expected = networks.draw(seed)
    compare(program, {"x": x})
    for y, want in zip(get_engine("onednn").prepare(program)({"x": x}), expected, strict=True):
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("kind", ["conv", "add", "mul", "matmul", "mean", "pool", "table"])
def test_operations(kind):
    rng = np.random.default_rng(5)
    for _ in range(25):
        case = draw(kind, rng, False)
        (y,) = get_engine("onednn").prepare(case.program, threads=1)(case.inputs)
        np.testing.assert_array_equal(y, case.expected, err_msg=case.text)


@pytest.fixture(scope="module", params=["float", "integer"])
def encoder(request):
    """An encoder whose softmax and norms are float islands, or integers."""
    torch.manual_seed(0)
    recipe = intact8.recipes.integer() if request.param == "integer" else None
    sim = intact8.prepare(Encoder().eval(), call(2, 7), recipe=recipe, dynamic_shapes=SEQUENCE).eval()
    intact8.calibrate(sim, [call(16, length) for length in (7, 9)])
    return intact8.convert(sim)


def test_encoders(encoder):
    program = replace(encoder)
    for batch, length in ((1, 7), (3, 12)):
        report = intact8.verify(program, call(batch, length), engines=("onednn",))
        assert report.exact, report
    if not any(op.is_float for op in program.ops):
        compare(program, {name: x.numpy() for name, x in call(3, 9).items()})


def norms(affine):
    """A layer norm of what a program is given, and one of what nobody else reads."""
    tensors = {name: Tensor(name, "float32", (None, 3, 5, 7)) for name in "xyrz"}
    arrays = {"weight": np.float32(np.ones((5, 7)) * 2), "bias": np.float32(np.arange(35).reshape(5, 7))}
    attrs, arrays = {"shape": [5, 7], "eps": 1e-5}, arrays if affine else {}
    ops = (
        Op("y", "float.layer_norm", ("x",), attrs, arrays),
        Op("r", "float.relu", ("y",)),
        Op("z", "float.layer_norm", ("r",), attrs, arrays),
    )
    program = Program(tensors, ops, ("x",), ("z",))
    check(program)
    return program


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norms(affine):
    x = np.random.default_rng(8).standard_normal((2, 3, 5, 7), np.float32)
    compare(norms(affine), {"x": x}, floats="yrz")
    turned = np.ascontiguousarray(x.T).T
    compare(norms(affine), {"x": turned}, floats="yrz")


@pytest.fixture
def float64():
    """Another default dtype, as a process may have chosen."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_the_default_dtype_is_of_no_consequence_to_recurrent_layers(kind, float64):
    rng = np.random.default_rng(6)
    whole = behind_linear(layer(kind, rng, directions=2), rng)
    compare(whole, draw_inputs(whole, 3, rng))


def test_the_default_dtype_is_of_no_consequence_to_attention(float64):
    program, rng = attention(True), np.random.default_rng(7)
    x = {n: rng.standard_normal((2, *program.tensors[n].shape[1:]), np.float32) for n in program.inputs}
    compare(program, x, floats=("s", "a", "p", "y"))


def test_the_default_dtype_is_of_no_consequence_to_layer_norms(float64):
    compare(norms(False), {"x": np.random.default_rng(8).standard_normal((2, 3, 5, 7), np.float32)}, floats="yrz")


def test_the_default_dtype_is_of_no_consequence_to_networks(encoder, float64):
    program, x, _ = networks.draw(0)
    compare(program, {"x": x})
    assert intact8.verify(replace(encoder), call(3, 9), engines=("onednn",)).exact
