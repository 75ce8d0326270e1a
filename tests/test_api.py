"""The verbs, as a newcomer meets them."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
import sys
import time
import warnings
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import redirect_stdout
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intact8
from intact8.capture.torch_export import ALONE, require_module
from intact8.program.file import digest

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")

DATA = torch.randn(96, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 4)
    ).eval()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(DATA, torch.arange(96)), batch_size=32)


@pytest.mark.parametrize(
    "data",
    [
        loader, lambda: DATA, lambda: DATA.numpy(), lambda: list(DATA.split(32)), lambda: iter(DATA.split(32)),
        lambda: ((x, "label") for x in DATA.split(32)), lambda: [{"input": x, "id": 3} for x in DATA.split(32)],
        lambda: [x.numpy() for x in DATA.split(32)], lambda: [[x] for x in DATA.split(32)],
    ],
    ids=["loader", "tensor", "numpy", "list", "iterator", "generator", "dicts", "arrays", "lists"],
)  # fmt: skip
def test_all_customary_data_give_the_same_program(data: Any) -> None:
    expected = digest(intact8.quantize(model(), DATA))
    assert digest(intact8.quantize(model(), data())) == expected
    sim = intact8.prepare(model(), DATA[:2])
    intact8.calibrate(sim, data())
    assert digest(intact8.convert(sim)) == expected


def test_threads_quantize_one_model_and_leave_the_process_as_it_was() -> None:
    net, lines, done = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval(), io.StringIO(), Event()
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    expected = digest(intact8.quantize(net, data))

    def talk() -> int:
        for i in itertools.count():
            print(i)
            if done.wait(0.001):
                return i + 1
        raise AssertionError

    with ThreadPoolExecutor(4) as pool, redirect_stdout(lines):
        filters, talker = list(warnings.filters), pool.submit(talk)
        try:
            programs = list(pool.map(lambda _: intact8.quantize(net, data), range(3)))
        finally:
            done.set()
        printed = talker.result()
        assert sys.stdout is lines
    assert [digest(program) for program in programs] == [expected] * 3
    assert lines.getvalue().split() == [str(i) for i in range(printed)]
    assert warnings.filters == filters


def test_a_model_is_not_looked_at_while_another_thread_exports_it() -> None:
    with ThreadPoolExecutor(1) as pool:
        with ALONE:
            looked = pool.submit(require_module, nn.Linear(2, 2))
            assert not wait([looked], timeout=0.2).done
        looked.result(timeout=10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_the_capture_of_another_thread() -> None:
    """Else its child keeps what was exchanged for the capture, and a lock that nobody releases."""
    inside, forward = Event(), nn.LSTM.forward

    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            time.sleep(0.1)
            return x + 1

    with ThreadPoolExecutor(1) as pool:
        captured = pool.submit(intact8.prepare, Slow(), torch.randn(2, 4))
        assert inside.wait(30)
        child = os.fork()
        if not child:
            os._exit(0 if nn.LSTM.forward is forward and ALONE.acquire(timeout=10) else 1)
        assert captured.result() is not None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("observer", ["histogram", "minmax", "percentile", "mse", "entropy", "moving_average"])
def test_two_halves_are_the_whole(observer: str) -> None:
    recipe = intact8.Recipe(activation={"observer": observer}, between_layers="integer")  # nothing left to choose
    expected = digest(intact8.quantize(model(), DATA, recipe))
    sim = intact8.prepare(model(), DATA[:2], recipe)
    intact8.calibrate(sim, DATA[:64])
    first = intact8.convert(sim)
    intact8.calibrate(sim, DATA[64:])
    assert digest(intact8.convert(sim)) == expected != digest(first)


def test_uint8_in_is_float_in() -> None:
    images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
    program = intact8.quantize(model(), images.float() / 255, intact8.recipes.images())
    for engine in ("reference", "onednn"):
        y = program.run(images.float() / 255, engine=engine)
        assert torch.equal(program.run(images, engine=engine), y)
        assert np.array_equal(program.run(images.numpy(), engine=engine), y.numpy())


def test_any_batch_size_and_mode() -> None:
    net = model().train()
    sim = intact8.prepare(net, DATA[:1])
    assert not sim.training and net.training
    sim.train()
    intact8.calibrate(sim, DATA)
    assert sim.training, "calibration leaves the mode as it was"
    with pytest.raises(intact8.StateError, match="training mode"):
        intact8.convert(sim)
    program = intact8.quantize(net, DATA)
    assert net.training, "quantize leaves the model alone"
    for n in (1, 2, 7):
        assert program.run(DATA[:n]).shape == (n, 4)


@dataclasses.dataclass
class Result:
    y: Tensor
    parts: list[Tensor]


torch.utils._pytree.register_dataclass(Result)
Pair = namedtuple("Pair", ["a", "b"])


class Nested(nn.Module):
    """Two inputs, outputs nested as ``form`` says."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor, z: Tensor) -> Any:
        a, b = self.a(x), torch.relu(self.b(z))
        if self.form == "tuple":
            return a + b, a
        if self.form == "dict":
            return {"sum": a + b, "list": [a, (b,)]}
        if self.form == "namedtuple":
            return Pair(a * b, b)
        return Result(torch.cat([a, b], 1), [a, b])


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Result):
        value = vars(value)
    if isinstance(value, dict):
        return [t for v in value.values() for t in flat(v)]
    return [value] if isinstance(value, Tensor) else [t for v in value for t in flat(v)]


@pytest.mark.parametrize("form", ["tuple", "dict", "namedtuple", "dataclass"])
def test_several_inputs_and_nested_outputs(form: str) -> None:
    torch.manual_seed(0)
    net = Nested(form).eval()
    x, z = torch.randn(64, 4), torch.randn(64, 5)
    sim = intact8.prepare(net, (x[:2], z[:2]))
    intact8.calibrate(sim, [{"z": z, "x": x}])
    program = intact8.convert(sim)
    assert digest(intact8.quantize(net, [(x, z)])) == digest(program)
    want, got = net(x, z), sim(x, z)
    assert type(got) is type(want)
    for w, g, r in zip(flat(want), flat(got), flat(program.run(x, z)), strict=True):
        assert torch.equal(g, r) and (w - g).abs().max() < 0.15
    assert torch.equal(flat(sim(z=z, x=x))[0], flat(got)[0])
    assert torch.equal(flat(program.run(z=z, x=x))[0], flat(got)[0])
    assert intact8.verify(program, (x, z), sim=sim).exact


def test_modules_the_recipe_leaves_float_are_islands() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1)).eval()
    sim = intact8.prepare(net, DATA[:2], intact8.Recipe(overrides={"2": None}))
    intact8.calibrate(sim, DATA)
    program = intact8.convert(sim)
    assert program.islands()[0].kind == "float.conv" and "2" not in sim.weight_points
    report = intact8.verify(program, DATA[:8], sim=sim)
    assert report.exact and any("2" in name for name in report.islands)
    weight = next(op for op in program.ops if op.kind == "float.conv").arrays["weight"]
    assert np.array_equal(weight, net[2].weight.detach().numpy())  # type: ignore[arg-type]


def test_float_islands_of_operations_without_an_integer_form() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.norm = nn.Linear(6, 6), nn.Linear(6, 6), nn.LayerNorm(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ x)

    x = torch.randn(64, 5, 6)
    net = Attention().eval()
    sim = intact8.prepare(net, x[:2])
    intact8.calibrate(sim, x)
    program = intact8.convert(sim)
    report = intact8.verify(program, x[:8], sim=sim)
    assert report.mismatches == 0 and len(report.islands) >= 2
    assert (program.run(x[:8]) - net(x[:8])).abs().max() < 0.3


def test_progress_is_told() -> None:
    calls: list[Any] = []
    intact8.quantize(model(), list(DATA.split(32)), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_what_quantize_writes_down() -> None:
    program = intact8.quantize(model(), DATA)
    p = program.provenance
    assert p["torch"] == torch.__version__ and p["calibration"]["samples"] == 96 and p["cpu_features"] is not None
    assert re.match(r"\d{4}-\d\d-\d\dT", p["created"])
    assert intact8.Recipe.from_toml(program.recipe) == intact8.recipes.default()


def test_presets_quantize_and_come_back_from_toml() -> None:
    made = {name: preset() for name, preset in intact8.recipes.presets().items()}
    made = {n: r for n, r in made.items() if isinstance(r, intact8.Recipe)}
    assert {"default", "accurate", "images", "symmetric", "w4a8", "full_range"} <= set(made)
    for recipe in made.values():
        assert intact8.Recipe.from_toml(recipe.to_toml()) == recipe


def test_size_of_resnet18(torchvision: Any, tmp_path: Path) -> None:
    net = torchvision.models.resnet18(weights=None).eval()
    program = intact8.quantize(net, torch.randn(2, 3, 64, 64))
    path = program.save(tmp_path / "r18.safetensors")
    floats = sum(t.numel() * 4 for t in net.state_dict().values())
    assert path.stat().st_size <= 0.27 * floats
