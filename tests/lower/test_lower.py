"""What is lowered is what was simulated: names, order, integers, and what is written beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.simulation.networks import quantized
from torch import Tensor, nn

import intact8
from intact8.engines import available_engines
from intact8.simulation.ops.integer_op import integer_limits


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU6())
        self.block = nn.Conv2d(6, 6, 3, padding=1)
        self.act = nn.SiLU()
        self.drop = nn.Dropout()
        self.up = nn.ConvTranspose2d(6, 4, 2, 2, groups=2)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        y = self.drop(self.act(self.block(y) + y))
        return self.norm(self.up(y).mean((2, 3)))


@pytest.fixture(scope="module")
def lowered() -> tuple[intact8.Program, object, nn.Module]:
    torch.manual_seed(0)
    net = Net().eval()
    sim, program = quantized(net, torch.randn(64, 3, 8, 8))
    return program, sim, net


def test_one_op_per_node_in_order(lowered: tuple[intact8.Program, object, nn.Module]) -> None:
    program, sim, _ = lowered
    nodes = [n.name for n in sim.graph if n.op not in ("input", "dropout")]  # type: ignore[attr-defined]
    assert [op.name for op in program.ops if ".part" not in op.name] == nodes
    made = set(program.inputs)
    for op in program.ops:
        assert set(op.inputs) <= made
        made.add(op.name)
    assert not any("drop" in i for op in program.ops for i in op.inputs), "dropout is gone"


def test_ops_know_their_modules(lowered: tuple[intact8.Program, object, nn.Module]) -> None:
    program, _, net = lowered
    paths = dict(net.named_modules())
    by_name = {op.name: op for op in program.ops}
    assert all(op.module in paths for op in program.ops)
    conv = by_name["stem.0"]
    assert conv.module == "stem.0" and len(conv.source) == 3, "convolution, batch norm and activation"


def test_integers_of_weights(lowered: tuple[intact8.Program, object, nn.Module]) -> None:
    """w·s is the folded weight within half a step, by the definition of batch norm folding."""
    program, sim, net = lowered
    op = next(op for op in program.ops if op.name == "stem.0")
    conv, norm = net.stem[0], net.stem[1]  # type: ignore[index]
    factor = (norm.weight / torch.sqrt(norm.running_var + norm.eps)).detach().double()
    folded = conv.weight.detach().double() * factor[:, None, None, None]
    scale = sim.weight_points["stem.0"].scale.double()  # type: ignore[attr-defined]
    w = torch.from_numpy(op.arrays["weight"].astype(np.float64))
    assert op.arrays["weight"].dtype == np.int8 and op.arrays["bias"].dtype == np.int32
    assert ((w * scale[:, None, None, None] - folded).abs() <= 0.5001 * scale[:, None, None, None]).all()
    assert np.abs(op.arrays["weight"]).max() <= 127
    # Portable: no pair of weights saturates the sum of two products in 16 bits.
    two = np.sort(np.abs(op.arrays["weight"].reshape(6, -1).astype(int)), axis=1)[:, -2:].sum(1)
    assert (two * 255 <= 32767).all()
    # The multiplier is the ratio of scales, and its denominator is odd.
    x, y = program.tensors[op.inputs[0]].scale, program.tensors["stem.0"].scale
    ratio = op.arrays["a"] / op.arrays["b"]
    np.testing.assert_allclose(ratio, x * scale.numpy() / y, rtol=1e-6)
    assert (op.arrays["b"] % 2 == 1).all()


def test_limits_of_a_fused_relu6(lowered: tuple[intact8.Program, object, nn.Module]) -> None:
    program, _, _ = lowered
    op, tensor = next(op for op in program.ops if op.name == "stem.0"), program.tensors["stem.0"]
    assert op.attrs["lo"] == tensor.zero_point
    assert op.attrs["hi"] == min(255, round(6 / tensor.scale) + tensor.zero_point)


def test_islands_carry_float_weights_and_a_name(lowered: tuple[intact8.Program, object, nn.Module]) -> None:
    program, _, net = lowered
    islands = program.islands()
    assert [op.kind for op in islands] == ["float.layer_norm"]
    assert np.array_equal(islands[0].arrays["weight"], net.norm.weight.detach().numpy())  # type: ignore[union-attr]


def test_no_torch_in_the_program(lowered: tuple[intact8.Program, object, nn.Module]) -> None:
    program, _, _ = lowered
    for op in program.ops:
        assert all(type(a) is np.ndarray for a in op.arrays.values())
        assert not any(isinstance(v, Tensor) for v in op.attrs.values())


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (None, (0, 255)),
        ({"kind": "clamp", "min": 0.0}, (20, 255)),
        ({"kind": "clamp", "min": 0.0, "max": 6.0}, (20, 140)),
        ({"kind": "clamp", "min": -9.0, "max": -0.5}, (0, 10)),
        ({"kind": "clamp", "min": 99.0, "max": 100.0}, (255, 255)),
        ({"kind": "leaky_relu", "slope": 0.1}, (0, 255)),
    ],
)
def test_integer_limits(act: object, expected: tuple[int, int]) -> None:
    assert integer_limits(act, 0.05, 20, 0, 255) == expected  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
def test_a_class_token_is_expanded_to_the_batch_on_every_engine(tmp_path: Path) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.first, self.last = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.first(x)], 1)
            return self.last(torch.relu(x))

    torch.manual_seed(0)
    x = torch.randn(32, 5, 8)
    program = intact8.quantize(Tokens().eval(), x)
    for batch in (1, 2, 7):
        assert intact8.verify(program, x[:batch], engines=tuple(available_engines())).exact
    if "onnxruntime" in available_engines():
        import onnxruntime

        session = onnxruntime.InferenceSession(program.export_onnx(tmp_path / "tokens.onnx"))
        (found,) = session.run(None, {session.get_inputs()[0].name: x[:7].numpy()})
        np.testing.assert_array_equal(found, program.run(x[:7].numpy(), engine="reference"))
