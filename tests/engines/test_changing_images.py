"""Convolutional networks whose rows and images may have any size: the simulation's integers on every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.engines.test_lengths import ENGINES
from torch import Tensor, nn

import intact8
from intact8.arithmetic.dimensions import limits_of
from intact8.engines import available_engines
from intact8.errors import CalibrationError, EngineError, InputError
from intact8.program.program import Program
from intact8.runtime import load


class Net(nn.Module):
    """A function of an input and of layers."""

    def __init__(self, forward: Callable[[Sequence[Any], Tensor], Any], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.compute = nn.ModuleList(layers), forward

    def forward(self, x: Tensor) -> Any:
        return self.compute(list(self.layers), x)


def row(inputs: int, outputs: int, kernel: int = 3, **more: Any) -> nn.Conv1d:
    return nn.Conv1d(inputs, outputs, kernel, **more)


def image(inputs: int, outputs: int, kernel: int = 3, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, **{"padding": kernel // 2, **more})


def vocoder(n: Sequence[Any], x: Tensor) -> Tensor:
    x = F.leaky_relu(n[1](F.leaky_relu(n[0](x), 0.1)), 0.1)
    return torch.tanh(n[2](F.pad(x, (3, 3), mode="reflect")))


def pooled(n: Sequence[Any], x: Tensor) -> Tensor:
    return n[1](F.max_pool1d(F.avg_pool1d(n[0](x).relu(), 3, 2, 1), 3, 2, ceil_mode=True))


def shifted(n: Sequence[Any], x: Tensor) -> Tensor:
    y = n[0](x).relu()
    before = torch.cat([torch.zeros_like(y[:, :, :1]), y[:, :, :-1]], 2)
    return n[1](y.roll(1, 2) + before) + n[2](y[:, :, -1])[:, :, None]


def halves(n: Sequence[Any], x: Tensor) -> Tensor:
    first, second = n[0](F.pad(x, (4, 0))).relu().chunk(2, 2)
    return n[1](torch.cat([second, first], 2)[:, :, ::2])


def unet(n: Sequence[Any], x: Tensor) -> Tensor:
    one = n[0](x).relu()
    two = n[1](F.max_pool2d(one, 2)).relu()
    three = n[2](F.max_pool2d(two, 2)).relu()
    two = n[3](torch.cat([F.interpolate(three, scale_factor=2, mode="bilinear"), two], 1)).relu()
    up = n[4](two)
    up = F.pad(up, [0, x.shape[3] - up.shape[3], 0, x.shape[2] - up.shape[2]])
    return n[5](torch.cat([up, one], 1))


def super_resolution(n: Sequence[Any], x: Tensor) -> Tensor:
    y = n[0](x).relu()
    return F.pixel_shuffle(n[1](y), 2) + F.interpolate(x, scale_factor=2, mode="nearest")


def segmented(n: Sequence[Any], x: Tensor) -> Tensor:
    y = n[0](x).relu()
    pooled = F.interpolate(n[1](F.avg_pool2d(y, 3, 2, 1, count_include_pad=False)), size=y.shape[2:])
    return F.interpolate(n[2](torch.cat([y, pooled], 1)), size=x.shape[2:], mode="bilinear", align_corners=True)


def classifier(n: Sequence[Any], x: Tensor) -> Tensor:
    y = n[0](x).relu()
    y = y * torch.sigmoid(n[1](F.adaptive_avg_pool2d(y, 1)))
    return n[2](torch.cat([y.mean((2, 3)), y.amax((2, 3))], 1))


def tokens(n: Sequence[Any], x: Tensor) -> Tensor:
    return n[1](n[0](x).relu().flatten(2).mT)


NETS: dict[str, tuple[int, Any]] = {
    "vocoder": (
        1,
        lambda: Net(
            vocoder,
            nn.ConvTranspose1d(4, 8, 16, 8, padding=4),
            nn.ConvTranspose1d(8, 6, 4, 2, padding=1),
            row(6, 1, 7),
        ),
    ),
    "strides": (
        1,
        lambda: Net(
            lambda n, x: n[1](n[0](x).relu()), row(4, 8, 5, stride=3, padding=2), row(8, 3, dilation=2, groups=1)
        ),
    ),
    "pools": (1, lambda: Net(pooled, row(4, 8, padding=1), row(8, 3, 1))),
    "shifts": (1, lambda: Net(shifted, row(4, 8, padding=1), row(8, 3, 1), nn.Linear(8, 3))),
    "halves": (1, lambda: Net(halves, row(4, 8, 5), row(8, 3, 1))),
    "unet": (
        2,
        lambda: Net(
            unet,
            image(4, 6),
            image(6, 8),
            image(8, 8),
            image(16, 6),
            nn.ConvTranspose2d(6, 6, 2, 2),
            image(12, 3, 1),
        ),
    ),
    "super resolution": (2, lambda: Net(super_resolution, image(4, 8), image(8, 16))),
    "segmentation": (2, lambda: Net(segmented, image(4, 8, stride=3), image(8, 8, 1), image(16, 3, 1))),
    "classifier": (2, lambda: Net(classifier, image(4, 8, stride=2), image(8, 8, 1), nn.Linear(16, 3))),
    "tokens": (2, lambda: Net(tokens, image(4, 8, stride=2), nn.Linear(8, 3))),
}


def given(rank: int, batch: int, size: int) -> Tensor:
    """Return rows, or images that are four pixels wider than high."""
    return torch.randn(batch, 4, size) if rank == 1 else torch.randn(batch, 4, size, size + 4)


@pytest.fixture(scope="module", params=NETS)
def made(request: Any) -> tuple[int, nn.Module, Any, Program]:
    rank, make = NETS[request.param]
    torch.manual_seed(0)
    model = make().eval()
    names = {2: "frames"} if rank == 1 else {2: "height", 3: "width"}
    sim = intact8.prepare(model, given(rank, 2, 24), dynamic_shapes={"x": names}).eval()
    intact8.calibrate(sim, [given(rank, 8, n) for n in (24, 32, 16, 40)])
    return rank, model, sim, intact8.convert(sim)


def sizes(program: Program) -> list[int]:
    """Return the least size and some more."""
    dim = str(program.tensors[program.inputs[0]].shape[2])
    least = limits_of(dim, program.dimensions)[0]
    step = limits_of(dim, {name: (low + 1, most) for name, (low, most) in program.dimensions.items()})[0] - least
    return [least, least + step, least + 4 * step, least + 15 * step]


def test_every_engine_gives_the_simulations_integers_at_every_size(made: Any) -> None:
    rank, model, sim, program = made
    for size in sizes(program):
        x = given(rank, 3, size)
        report = intact8.verify(program, x, engines=ENGINES, sim=sim)
        assert report.exact and report.samples == 3, (size, report)
        with torch.no_grad():
            y, wanted = program.run(x), model(x)
        assert y.shape == wanted.shape
    assert float(torch.cosine_similarity(y.flatten(), wanted.flatten(), 0)) > 0.98


def test_files_hold_the_sizes(made: Any, tmp_path: Path) -> None:
    rank, _, _, program = made
    program.save(tmp_path / "net.safetensors")
    loaded = load(tmp_path / "net.safetensors", engine="native")
    assert loaded.program.dimensions == program.dimensions
    x = given(rank, 2, sizes(program)[1])
    assert torch.equal(torch.as_tensor(loaded(x)), torch.as_tensor(program.run(x)))


@pytest.mark.parametrize("form", ["onnx", "qdq"])
def test_onnx_files_take_every_size(made: Any, form: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    rank, _, _, program = made
    if form == "qdq":
        from intact8.export.onnx_qdq import export_qdq

        export_qdq(program, tmp_path / "net.onnx")
    else:
        program.export_onnx(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    for size in sizes(program):
        x = given(rank, 3, size)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        wanted = program.run(x, engine="reference").numpy()
        assert y.shape == wanted.shape
        assert form == "qdq" or abs(y - wanted).max() <= 1e-5 * abs(wanted).max()


def test_torch_programs_take_every_size(made: Any, tmp_path: Path) -> None:
    from intact8.export.torch_module import export_program

    rank, _, _, program = made
    export_program(program, tmp_path / "net.pt2")
    module = torch.export.load(tmp_path / "net.pt2").module()
    for size in sizes(program)[3:]:  # torch takes what is 1 in the example, or computed of it, for a constant
        x = given(rank, 3, size)
        y, wanted = module(x), program.run(x, engine="reference")
        assert y.shape == wanted.shape and float((y - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


def test_sizes_that_do_not_come_out_even_are_refused() -> None:
    torch.manual_seed(0)
    rank, make = NETS["unet"]
    program = intact8.quantize(
        make().eval(), [given(rank, 8, n) for n in (16, 24, 32, 16)], dynamic_shapes={"x": {2: "height", 3: "width"}}
    )
    assert program.tensors["x"].shape == (None, 4, "4*height", "4*width")
    with pytest.raises(InputError, match="x: a dimension of size 18 is not a multiple of 4. Remedy: pad, crop"):
        program.run(given(rank, 1, 18))


def test_images_that_differ_in_the_data_are_found_to_change() -> None:
    torch.manual_seed(0)
    rank, make = NETS["super resolution"]
    program = intact8.quantize(make().eval(), [given(rank, 8, n) for n in (16, 20, 16, 32)])
    assert set(program.dimensions.values()) == {(1, None)}
    assert program.run(given(rank, 1, 50)).shape == (1, 4, 100, 108)


def test_sizes_in_the_data_that_do_not_come_out_even_fix_the_size() -> None:
    rank, make = NETS["unet"]
    torch.manual_seed(0)
    with pytest.raises(CalibrationError, match=r"x_2\) can only change in steps of 4, from 0 on"):
        intact8.quantize(make().eval(), [given(rank, 8, n) for n in (16, 17, 16, 19)])


@pytest.mark.skipif("onnxruntime" not in available_engines(), reason="needs onnxruntime")
def test_onnx_refuses_weights_that_depend_on_the_size() -> None:
    torch.manual_seed(0)
    model = Net(lambda n, x: n[1](F.adaptive_avg_pool2d(n[0](x), 3)), image(4, 8, stride=2), image(8, 3)).eval()
    program = intact8.quantize(
        model, [torch.randn(8, 4, n, n) for n in (16, 18, 20, 32)], dynamic_shapes={"x": {2: "height", 3: "width"}}
    )
    x = torch.randn(2, 4, 15, 21)
    assert program.run(x, engine="native").shape == (2, 3, 3, 3)
    with pytest.raises(EngineError, match="needs a fixed size of .*its ONNX form has weights for every place"):
        program.run(x, engine="onnxruntime")
