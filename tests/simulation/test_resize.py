"""Linear resizing on integers: one program on every engine, as near the float function as its weights allow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intact8
from intact8 import recipes
from intact8.arithmetic import resize, torch_resize
from intact8.engines import available_engines
from intact8.errors import ProgramError
from intact8.opset.op import Op, Tensor
from intact8.program.certify import certify
from intact8.program.check import check
from intact8.program.program import Program

FORMS = [
    ("double", {"scale_factor": 2, "mode": "bilinear"}),
    ("double-corners", {"scale_factor": 2, "mode": "bilinear", "align_corners": True}),
    ("other-size", {"size": (13, 5), "mode": "bilinear"}),
    ("half", {"size": (4, 3), "mode": "bilinear", "align_corners": True}),
    ("nearest", {"size": (13, 5), "mode": "nearest"}),
    ("nearest-exact", {"size": (13, 5), "mode": "nearest-exact"}),
]


class Decoder(nn.Module):
    """A decoder's step: deep features made as large as those beside them."""

    def __init__(self, **how: object) -> None:
        super().__init__()
        self.first, self.deep, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(16, 4, 1)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        up = F.interpolate(torch.relu(self.deep(x)), **self.how)
        return self.last(torch.cat([up, F.interpolate(x, size=up.shape[2:])], 1))


def simulated(model: nn.Module, x: torch.Tensor, recipe: recipes.Recipe | None = None) -> intact8.Simulation:
    sim = intact8.prepare(model, x[:2], recipe or recipes.default()).eval()
    intact8.calibrate(sim, [x])
    return sim


@pytest.mark.parametrize("how", [how for _, how in FORMS], ids=[name for name, _ in FORMS])
def test_every_engine_gives_its_integers(how: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Decoder(**how).eval(), torch.randn(32, 3, 9, 7)
    sim = simulated(model, x)
    program = intact8.convert(sim)
    assert not program.islands() and sum(op.kind in ("resize_linear", "upsample") for op in program.ops) == 2
    program.save(tmp_path / "p.safetensors")
    loaded = intact8.Program.load(tmp_path / "p.safetensors")
    report = intact8.verify(loaded, torch.randn(5, 3, 9, 7), sim=sim, engines=list(available_engines()))
    assert report.mismatches == 0 and not report.uncertified
    with torch.no_grad():
        want, got = model(x), sim(x)
    assert float((got - want).norm() / want.norm()) < 0.05


@pytest.mark.parametrize("corners", [False, True], ids=["edges", "corners"])
@pytest.mark.parametrize(
    ("shape", "mode"),
    [((3, 9), "linear"), ((5, 8, 6), "bilinear"), ((2, 7, 1), "bilinear")],
    ids=["1d", "2d", "narrow"],
)
def test_it_is_off_by_half_a_step_and_the_weights(shape: tuple[int, ...], mode: str, corners: bool) -> None:
    """Against float64: half a step for the one rounding, and 255/2D for every axis whose weights are not exact."""
    q = torch.from_numpy(np.random.default_rng(0).choice([0, 255], (3, *shape)).astype(np.uint8))
    for out in ([2 * n for n in shape[1:]], [n + 4 for n in shape[1:]], [1] * len(shape[1:]), [96] * len(shape[1:])):
        d = resize.denominators(shape[1:], out, corners)
        got = resize.resize_linear(q.numpy(), out, corners, d).astype(float)
        exact = F.interpolate(q.double(), size=out, mode=mode, align_corners=corners).numpy()
        weights = [resize.linear_axis(n, o, corners, v) for n, o, v in zip(shape[1:], out, d, strict=True)]
        off = sum(0 if v == e else 255 / (2 * v) for v, e in zip(d, exact_of(shape[1:], out, corners), strict=True))
        assert np.abs(got - exact).max() <= 0.5 + off + 1e-3
        assert all((w.weight >= 0).all() and (w.weight <= w.denominator).all() for w in weights)
        twin = torch_resize.resize_linear(q, out, corners, d)
        assert (twin.numpy() == got).all()
        assert (torch_resize.resize_linear(q.int() - 100, out, corners, d).numpy() == got - 100).all()


def exact_of(size: tuple[int, ...], out: list[int], corners: bool) -> list[int]:
    return resize.exact_denominators(size, out, corners)


def test_denominators_are_odd_and_their_product_is_held() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        axes = int(rng.integers(1, 4))
        size, out = ([int(v) for v in rng.integers(1, 300, axes)] for _ in range(2))
        found = resize.denominators(size, out, bool(rng.random() < 0.5))
        assert all(d % 2 for d in found) and np.prod(found) <= resize.LARGEST_PRODUCT


def test_one_division_rounds_right_up_to_the_largest_product() -> None:
    """All sums next to the middle of two integers, for the largest denominators."""
    for total in range(resize.LARGEST_PRODUCT, resize.LARGEST_PRODUCT - 200, -2):
        k = np.arange(255, dtype=np.int64)
        sums = np.concatenate([(2 * k + 1) * total // 2 + near for near in (0, 1)])
        got = np.rint(sums.astype(np.float32) / np.float32(total)).astype(np.int64)
        assert (got == (2 * sums + total) // (2 * total)).all()


def image(*shape: int | None, dtype: str = "uint8") -> Tensor:
    return Tensor("x", dtype, shape, 0.5, 3) if dtype == "uint8" else Tensor("x", dtype, shape)


def resizing(denominators: list[int], size: tuple[int, ...] = (9, 9)) -> Program:
    x = image(None, 2, 5, 5)
    y = Tensor("y", "uint8", (None, 2, *size), 0.5, 3)
    attrs = {"size": list(size), "align_corners": False, "denominators": denominators}
    return Program({"x": x, "y": y}, (Op("y", "resize_linear", ("x",), attrs),), ("x",), ("y",))


def test_certificates_claim_what_one_division_rounds_right() -> None:
    engines = ("reference", "onednn", "onnxruntime", "openvino")
    for denominators, claimed in (([255, 255], engines), ([255, 257], engines), ([255, 259], engines[:1])):
        program = resizing(denominators)
        check(program)
        (op,) = certify(program, engines).ops
        assert op.certificate is not None and op.certificate["engines"] == list(claimed)
        assert op.certificate["exact"] and op.certificate["accumulator"] == 255 * np.prod(denominators)


@pytest.mark.parametrize("denominators", [[2, 1], [255, 254], [65535, 65535], [0, 1], [255]])
def test_denominators_that_are_refused(denominators: list[int]) -> None:
    with pytest.raises(ProgramError, match="denominators"):
        check(resizing(denominators))


def test_gradients_are_those_of_the_float_function() -> None:
    torch.manual_seed(0)
    model, x = Decoder(scale_factor=2, mode="bilinear"), torch.randn(32, 3, 9, 7)
    sim = simulated(model, x, recipes.qat("learned"))
    sim.train()(x).square().mean().backward()
    model(x).square().mean().backward()
    for name in ("first.weight", "deep.weight", "last.weight"):
        ours, floats = sim.get_parameter(name).grad, model.get_parameter(name).grad
        assert ours is not None and floats is not None
        assert float(F.cosine_similarity(ours.flatten(), floats.flatten(), 0)) > 0.98


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 6, 6), "bicubic upsampling"),
        (nn.Upsample(size=(9, 9, 9), mode="trilinear"), (2, 5, 5, 5), "trilinear upsampling with 3 axes"),
    ],
    ids=["bicubic", "three-axes"],
)
def test_what_has_no_integer_form(model: nn.Module, shape: tuple[int, ...], reason: str) -> None:
    conv = nn.Conv2d if len(shape) == 3 else nn.Conv3d
    net = nn.Sequential(conv(2, 2, 1), model, conv(2, 2, 1)).eval()
    placed = intact8.prepare(net, torch.randn(2, *shape)).placed
    assert any(f"no integer form yet: {reason}" in why for why in placed.float_nodes.values())


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Upsample(scale_factor=2, mode="linear", align_corners=True), (2, 6)),
        (nn.Upsample(size=(5, 9, 9), mode="trilinear"), (2, 5, 5, 5)),
    ],
    ids=["linear", "two-axes-of-three"],
)
def test_other_ranks(model: nn.Module, shape: tuple[int, ...]) -> None:
    conv = nn.Conv1d if len(shape) == 2 else nn.Conv3d
    net, x = nn.Sequential(conv(2, 2, 1), model, conv(2, 2, 1)).eval(), torch.randn(32, *shape)
    sim = simulated(net, x)
    program = intact8.convert(sim)
    assert not program.islands()
    assert intact8.verify(program, x[:3], sim=sim, engines=list(available_engines())).mismatches == 0


def test_floats_are_resized_as_floats() -> None:
    """Between float operations nothing is quantized for it."""

    class Floats(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(torch.softmax(x, 1), scale_factor=2, mode="bilinear").softmax(1)

    placed = intact8.prepare(Floats().eval(), torch.randn(2, 3, 4, 4)).placed
    assert not placed.points
