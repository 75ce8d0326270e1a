"""Tables on the openvino engine are indexed, wherever they stand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("openvino")

from tests.conformance.networks import Network

from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.reference import ReferenceEngine
from intact8.opset.op import Array, Op, Tensor
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

TIE, STEP = 0.003921568859368563, 0.14185510575771332
"""Scales with which sigmoid(0) lies next to a tie, 127.49999 steps, and no other entry asks for a larger shift."""


def appended(net: Network, last: str, op: Op, scale: float, z: int, shape: tuple[int | None, ...]) -> Program:
    """The network of ``last`` and one op more."""
    program = net.program((last,))
    tensors = program.tensors | {op.name: Tensor(op.name, "uint8", shape, scale, z)}
    return replace(program, tensors=tensors, ops=(*program.ops, op), outputs=(op.name,))


def compare(program: Program, x: Array) -> None:
    """Outputs as deployed, and every tensor, in a batch of two parts and one."""
    runner, ideal = ENGINE.prepare(program, threads=1), ReferenceEngine().prepare(program)
    for n in (1, len(x)):
        want = ideal.tensors({"x": x[:n]})
        np.testing.assert_array_equal(runner({"x": x[:n]})[0], want[program.outputs[0]])
        seen = runner.tensors({"x": x[:n]})
        assert all((seen[name] == value).all() for name, value in want.items())


def network(batch: int = 3) -> tuple[Network, str]:
    net = Network(np.random.default_rng(5))
    net.start((batch, 16, 6, 6))
    return net, net.conv("x", 16, 1)


def clamping(op: str, x_scale: float, z_x: int, scale: float, z: int, ends: tuple[float, float]) -> Op:
    """The table of a clamp of real values."""
    real = np.clip((np.arange(256) - z_x) * x_scale, *ends)
    return Op(
        "t", "table", (op,), {"fn": "clamp"}, {"table": np.clip(np.rint(real / scale) + z, 0, 255).astype(np.uint8)}
    )


@pytest.mark.parametrize("between", ["reshape", "permute", "slice", "max_pool", "nothing"])
def test_a_clamp_to_another_scale(between: str) -> None:
    """Its ends lie between two integers of its argument, where OpenVINO's own Clamp of uint8 cut them off."""
    net, last = network()
    z, s = net.z(last), float(net.tensors[last].scale or 1)
    if between == "max_pool":
        last = net.max_pool(last)
    program = net.program((last,))
    attrs = {"reshape": {"shape": [-1, 36]}, "permute": {"dims": [0, 2, 3, 1]}}.get(
        between, {"axis": 1, "start": 0, "end": 8, "step": 1}
    )
    if between in ("reshape", "permute", "slice"):
        shape = {"reshape": (None, 36), "permute": (None, 6, 6, 16), "slice": (None, 8, 6, 6)}[between]
        program, last = appended(net, last, Op("m", between, (last,), attrs), s, z, shape), "m"
    op = clamping(last, s, z, 0.0271, 127, (-0.47, 3.13))
    shape = program.tensors[last].shape
    tensors = program.tensors | {"t": Tensor("t", "uint8", shape, 0.0271, 127)}
    program = replace(program, tensors=tensors, ops=(*program.ops, op), outputs=("t",))
    compare(program, net.exact["x"])


def test_a_table_of_one_value() -> None:
    net, last = network()
    op = Op("t", "table", (last,), {"fn": "pow"}, {"table": np.full(256, 255, np.uint8)})
    program = appended(net, last, op, 0.0039, 0, (None, 16, 6, 6))
    compare(program, net.exact["x"])


@pytest.mark.parametrize("z", [0, 1])
def test_a_function_next_to_a_tie(z: int) -> None:
    net, last = network()
    net.tensors[last] = replace(net.tensors[last], scale=STEP, zero_point=138)
    v = (np.arange(256) - 138) * STEP
    table = np.clip(np.rint(1 / (1 + np.exp(-v)) / TIE) + z, 0, 255).astype(np.uint8)
    assert table[138] == 127 + z
    op = Op("t", "table", (last,), {"fn": "sigmoid"}, {"table": table})
    compare(appended(net, last, op, TIE, z, (None, 16, 6, 6)), net.exact["x"])


def test_names_of_ops_are_not_looked_for_among_openvinos() -> None:
    """OpenVINO lists names of fused nodes between commas; one that holds a comma is found all the same."""
    net, last = network()
    program = net.program((last,))
    odd = f"{last},a/Dequantization"
    tensors = {odd if n == last else n: replace(t, name=odd) if n == last else t for n, t in program.tensors.items()}
    program = replace(program, tensors=tensors, ops=(replace(program.ops[0], name=odd),), outputs=(odd,))
    assert list(ENGINE.prepare(program).kernels()) == [odd]
