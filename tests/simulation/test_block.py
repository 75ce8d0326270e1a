"""One ReLU used twice, by a convolution and by the end of a residual: none is lost, and fake values lie on the grid."""

from __future__ import annotations

import pytest
import torch
from tests.simulation.networks import quantized
from torch import Tensor, nn

import intact8
from intact8.errors import RecipeError
from intact8.simulation.quantized_tensor import Quantized


class Block(nn.Module):
    """Both results, so that each use of the one ReLU module can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 5, 3, padding=1)
        self.conv2 = nn.Conv2d(5, 5, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.relu(self.conv1(x))
        return first, self.relu(first[:, :5] + self.conv2(first))


@pytest.fixture
def block() -> nn.Module:
    torch.manual_seed(0)
    return Block().eval()


@pytest.mark.parametrize("residual", ["separate", "fused"])
def test_no_relu_is_lost(block: nn.Module, residual: str) -> None:
    sim, program = quantized(block, torch.randn(64, 3, 8, 8), intact8.Recipe(residual=residual))
    x = torch.randn(16, 3, 8, 8)
    for output, wanted in zip(sim(x), block(x), strict=True):
        assert output.min() == 0 and (output == 0).float().mean() > 0.02
        assert (output - wanted).abs().mean() < 0.02 * wanted.max()
    report = intact8.verify(program, x, sim=sim)
    assert report.exact and not report.islands and not report.uncertified
    # As integers: what a ReLU gives never falls below the zero point.
    tensors = sim.integer_tensors([x])
    for name in program.outputs:
        inner = next(op for op in program.ops if op.name == name).inputs[0]
        assert tensors[inner].min() >= program.tensors[inner].zero_point


def test_fake_values_lie_on_the_grid(block: nn.Module) -> None:
    sim, _ = quantized(block, torch.randn(64, 3, 8, 8))
    values = sim.run([torch.randn(4, 3, 8, 8)], keep=True)
    on_grid = {name: v for name, v in values.items() if isinstance(v, Quantized)}
    assert len(on_grid) >= 4
    for v in on_grid.values():
        p = v.point
        integers = torch.arange(p.lo, p.hi + 1)
        grid = (integers - p.zero_point) * p.scale
        assert torch.isin(v.real().detach(), grid).all()


def test_scalar_arithmetic_has_derived_qparams() -> None:
    """x·2 + 1 has no observed scale of its own, but its input's sent through it, and no stale one in the state dict."""

    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * 2.0 + 1.0

    sim, program = quantized(Scalar().eval(), torch.randn(64, 4))
    assert intact8.verify(program, torch.randn(8, 4), sim=sim).exact
    scales = [k for k in sim.state_dict() if k.endswith("activation_point.scale")]
    assert len(scales) == len(sim.points) <= 3
    x, y = (p for name, p in sim.points.items() if name != "x")
    low, high = (2 * float(x.scale) * (q - int(x.zero_point)) + 1 for q in (0, 255))
    assert float(y.scale) == pytest.approx((max(high, 0.0) - min(low, 0.0)) / 255, rel=1e-5)


def test_multiplying_by_a_scalar_moves_no_integer() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) * 3.0

    sim, program = quantized(Scaled().eval(), torch.randn(64, 4))
    before, after = (t for name, t in program.tensors.items() if t.quantized and not name.startswith("x"))
    assert after.zero_point == before.zero_point and after.scale == pytest.approx(3 * before.scale, rel=1e-6)
    (table,) = (op for op in program.ops if op.kind == "table")
    assert table.arrays["table"].tolist() == list(range(256))
    assert intact8.verify(program, torch.randn(8, 4), sim=sim).exact


def test_points_are_switched_by_name_glob_and_all_at_once(block: nn.Module) -> None:
    sim, _ = quantized(block, torch.randn(64, 3, 8, 8))
    assert "conv1" in sim.points and "conv2" in sim.weight_points
    sim.observe(True)
    assert all(p.observing for p in sim.points.values())
    sim.observe(False)
    sim.observe(True, "conv1")
    assert [n for n, p in sim.points.items() if p.observing] == ["conv1"]
    sim.observe(False)
    sim.fake_quantize(False, "conv*")
    off = {n for n, p in (*sim.points.items(), *sim.weight_points.items()) if not p.quantizing}
    assert off == {n for n in (*sim.points, *sim.weight_points) if n.startswith("conv")}
    with pytest.raises(intact8.StateError, match=r"fake quantization is off.*fake_quantize\(True\)"):
        intact8.convert(sim)
    sim.fake_quantize(True)
    assert intact8.convert(sim)
    with pytest.raises(RecipeError, match="no quantization point matches 'conv9'.*conv1"):
        sim.observe(True, "conv9")


def test_switched_off_the_simulation_is_the_float_model(block: nn.Module) -> None:
    sim, _ = quantized(block, torch.randn(64, 3, 8, 8))
    x = torch.randn(4, 3, 8, 8)
    assert not torch.allclose(sim(x)[1], block(x)[1], atol=1e-6)
    sim.fake_quantize(False)
    for got, wanted in zip(sim(x), block(x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_observing_while_rounding_does_not_move_scales(block: nn.Module) -> None:
    sim, _ = quantized(block, torch.randn(64, 3, 8, 8))
    before = {n: float(p.scale) for n, p in sim.points.items()}
    x = torch.randn(4, 3, 8, 8)
    y = sim(x)[1]
    counts = {n: p.observer.count for n, p in sim.points.items()}
    sim.observe(True)
    assert torch.equal(sim(100 * x)[0], sim(100 * x)[0])
    assert {n: float(p.scale) for n, p in sim.points.items()} == before
    assert all(p.observer.count > counts[n] for n, p in sim.points.items())
    sim.observe(False)
    assert torch.equal(sim(x)[1], y)


def test_a_point_that_is_set_keeps_its_value_and_everything_stays_exact(block: nn.Module) -> None:
    sim, _ = quantized(block, torch.randn(64, 3, 8, 8))
    sim.points["conv1"].set(0.037, 3)
    x = torch.randn(4, 3, 8, 8)
    y = sim(x)
    program = intact8.convert(sim)
    tensor = program.tensors["conv1"]
    assert (tensor.scale, tensor.zero_point) == (float(torch.tensor(0.037)), 3)
    assert intact8.verify(program, x, sim=sim).exact
    assert torch.equal(y[1], program.run(x, engine="reference")[1])
    sim.resolve()  # from the observers: the fixed one does not follow
    assert float(sim.points["conv1"].scale) == tensor.scale
    with pytest.raises(RecipeError, match="zero point 300 is outside 0..255"):
        sim.points["conv1"].set(0.1, 300)
    for scale in (0.0, -1.0, float("nan"), float("inf"), 1e-60):
        with pytest.raises(RecipeError, match="not a positive number"):
            sim.points["conv1"].set(scale, 0)


def test_names_are_those_of_modules(block: nn.Module) -> None:
    sim, _ = quantized(block, torch.randn(64, 3, 8, 8))
    names = {n for n, _ in block.named_modules()} | {"x"}
    assert {"x", "conv1"} <= set(sim.points) and set(sim.weight_points) == {"conv1", "conv2"}
    assert sum(n in names for n in sim.points) >= len(sim.points) - 1  # the add belongs to no module
    text = repr(sim.points["conv1"])
    assert "conv1: scale=" in text and "zero_point=" in text
