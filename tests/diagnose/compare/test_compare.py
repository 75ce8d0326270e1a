"""Every number of a comparison, against numpy on hooks and on the reference engine's integers."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.diagnose.networks import Net, calibrated, data, net
from torch import Tensor, nn

import intact8
from intact8.diagnose.compare.report import CompareReport, LayerError, LayerRow
from intact8.engines import available_engines, get_runner
from intact8.engines.reference import evaluate
from intact8.program.program import Program
from intact8.simulation.scales.table_range import flat_ends

HOOKED = {
    "conv1": "relu1", "conv2": "relu2", "depthwise": "depthwise", "silu": "silu", "fc": "fc",
}  # fmt: skip
"""Row → module whose output is its float tensor."""

Arrays = dict[str, np.ndarray[Any, Any]]


class Case:
    """A network, its program, float tensors by hook and integers by the reference engine."""

    def __init__(self) -> None:
        self.model, self.x = net(), data()
        self.sim = calibrated(self.model, self.x)
        self.program = intact8.convert(self.sim)
        self.floats = self.by_hooks(self.model, self.x)
        self.ends = flat_ends(self.sim.points)
        self.integers: Arrays = get_runner(self.program, "reference").tensors({"x": self.x.numpy()})

    def by_hooks(self, model: Net, x: Tensor) -> Arrays:
        found: Arrays = {"x": x.numpy(), "x.quantize": x.numpy()}
        handles = [
            model.get_submodule(module).register_forward_hook(
                lambda _, __, y, name=name: found.__setitem__(name, y.numpy())
            )
            for name, module in HOOKED.items()
        ]
        with torch.no_grad():
            found["softmax"] = model(x).numpy()
        for handle in handles:
            handle.remove()
        pooled = torch.nn.functional.max_pool2d(torch.from_numpy(found["conv1"]), 2).numpy()
        found["pool"] = pooled
        found["add"] = found["conv2"] + pooled
        return found

    def counted(self, name: str) -> np.ndarray[Any, Any]:
        """The float tensor; where only tables read it, cut to the values that they tell apart."""
        return np.clip(self.floats[name], *self.ends.get(name, (-math.inf, math.inf)))

    def own(self, name: str) -> np.ndarray[Any, Any]:
        """The layer's integers from the float network's inputs, quantized in numpy."""
        op = next(op for op in self.program.ops if op.name == name)
        metas = [self.program.tensors[n] for n in op.inputs]
        args = [
            self.floats[n] if m.scale is None else on_grid(self.floats[n], m.scale, m.zero_point or 0)
            for n, m in zip(op.inputs, metas, strict=True)
        ]
        return evaluate(op, args, metas, self.program.tensors[name], len(self.x))


def on_grid(x: np.ndarray[Any, Any], scale: float, zero_point: int) -> np.ndarray[Any, Any]:
    return np.clip(np.rint(x / np.float32(scale)) + zero_point, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


KINDS = ["simulation", "program", *(["engine"] if "onednn" in available_engines() else [])]


@pytest.fixture(scope="module", params=KINDS)
def report(case: Case, request: pytest.FixtureRequest) -> CompareReport:
    if request.param == "program":
        return intact8.compare(case.model, case.program, case.x.split(20), engine="reference")
    engine = {"simulation": "simulation", "engine": "auto"}[request.param]
    found = intact8.compare(case.model, case.sim, case.x.split(20), engine=engine)
    assert found.engine == {"simulation": "simulation", "engine": "onednn"}[request.param]
    return found


def check(error: LayerError, y: np.ndarray[Any, Any], q: np.ndarray[Any, Any], scale: float, zero: int) -> None:
    """Everything in float64, straight from the definitions."""
    real, made = y.astype(np.float64), (q.astype(np.float64) - zero) * scale
    difference = made - real
    assert error.sqnr == pytest.approx(10 * math.log10((real**2).sum() / (difference**2).sum()), abs=1e-3)
    cosine = (real * made).sum() / np.linalg.norm(real) / np.linalg.norm(made)
    assert error.cosine == pytest.approx(cosine, abs=1e-6)
    steps = difference / scale
    assert error.max_error == pytest.approx(np.abs(steps).max(), abs=1e-4)
    assert error.mean_error == pytest.approx(np.abs(steps).mean(), abs=1e-5)
    assert error.bias == pytest.approx(steps.mean(), abs=1e-5)
    dims = tuple(d for d in range(y.ndim) if d != 1)
    assert error.channel_bias == pytest.approx(steps.mean(dims), abs=1e-5)
    assert error.worst_bias == pytest.approx(np.abs(steps.mean(dims)).max(), abs=1e-5)
    h = error.histogram
    counts, _ = np.histogram(steps, len(h.counts), (h.low, h.high))
    assert h.total == steps.size
    assert np.abs(np.cumsum(counts) - np.cumsum(h.counts)).max() <= 0.01 * steps.size  # values at the edges of bins


@pytest.mark.parametrize("name", ["x.quantize", "conv1", "conv2", "add", "depthwise"])
def test_own_and_cascade_are_what_their_definitions_say(case: Case, report: CompareReport, name: str) -> None:
    row = report[name]
    assert row.own is not None and row.scale is not None and row.zero_point is not None
    y = case.counted(row.name)
    check(row.cascade, y, case.integers[row.name], row.scale, row.zero_point)
    check(row.own, y, case.own(row.name), row.scale, row.zero_point)
    assert row.elements == y.size
    tensor = case.program.tensors[row.name]
    assert (row.scale, row.zero_point) == (tensor.scale, tensor.zero_point)


@pytest.mark.parametrize("name", ["x.quantize", "conv1", "conv2", "add", "depthwise"])
def test_the_float_tensor_and_the_grid_it_meets(case: Case, report: CompareReport, name: str) -> None:
    row, y = report[name], case.floats[name]
    assert row.float_min == pytest.approx(y.min(), abs=1e-5) and row.float_max == pytest.approx(y.max(), abs=1e-5)
    assert row.scale is not None and row.zero_point is not None
    steps = case.counted(name).astype(np.float64) / row.scale + row.zero_point
    n = y.size
    assert row.clipped_low == pytest.approx((steps < -0.5).sum() / n, abs=1.5 / n)
    assert row.clipped_high == pytest.approx((steps > 255.5).sum() / n, abs=1.5 / n)
    met = np.unique(on_grid(y, row.scale, row.zero_point))
    assert abs(row.integers - len(met)) <= 1 and row.grid == 256
    assert row.span == int(met[-1]) - int(met[0]) + 1
    assert row.grid_used == row.integers / 256 and row.range_used == row.span / 256
    assert row.channels == y.shape[1]
    h = row.histogram
    assert (h.low, h.high) == (row.float_min, row.float_max)
    counts, _ = np.histogram(y, len(h.counts), (h.low, h.high))
    assert abs(sum(h.counts) - n) <= len(h.counts)
    # The sketch's bins are up to 1/128 of their value wide.
    assert np.abs(np.cumsum(counts) - np.cumsum(h.counts)).max() <= 0.05 * n


def test_float_operations_have_a_cascade_only(case: Case, report: CompareReport) -> None:
    row = report["softmax"]
    assert row.kind == "float.softmax" and row.own is None and not row.quantized and row.note
    y, got = case.floats["softmax"].astype(np.float64), case.integers["softmax"].astype(np.float64)
    wanted = 10 * math.log10((y**2).sum() / ((got - y) ** 2).sum())
    assert row.cascade.sqnr == pytest.approx(wanted, abs=1e-2)
    assert row.cascade.max_error == pytest.approx(np.abs(got - y).max(), rel=1e-3)


@pytest.mark.parametrize("name", ["conv1", "depthwise", "fc"])
def test_weights(case: Case, report: CompareReport, name: str) -> None:
    error = report[name].weight
    op = next(op for op in case.program.ops if op.name == name)
    module = case.model.get_submodule(name)
    weight = module.weight.detach().double().numpy()  # type: ignore[union-attr, operator]
    if name == "conv1":
        bn = case.model.bn1
        factor = (bn.weight / torch.sqrt(bn.running_var + bn.eps)).detach().double().numpy()
        weight = weight * factor[:, None, None, None]
    if name == "fc":  # its logits go to a softmax, so they have a scale per channel
        weight = weight / np.float64(case.program.provenance["equalized"]["fc"])[:, None]
    rows = weight.reshape(len(weight), -1)
    integers = op.arrays["weight"].reshape(len(weight), -1).astype(np.float64)
    x, y = case.program.tensors[op.inputs[0]].scale, case.program.tensors[name].scale
    scale = op.arrays["a"] / op.arrays["b"] * y / x  # type: ignore[operator]
    assert error is not None and error.per_channel
    assert error.scale == pytest.approx(scale, rel=1e-6)
    noise = ((integers * scale[:, None] - rows) ** 2).sum()
    assert error.sqnr == pytest.approx(10 * math.log10((rows**2).sum() / noise), abs=1e-3)
    assert error.minimum == pytest.approx(rows.min(1), rel=1e-5)
    assert error.maximum == pytest.approx(rows.max(1), rel=1e-5)
    assert error.used == pytest.approx(np.abs(integers).max(1) / 127)
    size = np.abs(rows).max(1)
    assert error.imbalance == pytest.approx(size.max() / size.min(), rel=1e-5)


def test_rows_are_what_makes_values_in_execution_order(case: Case, report: CompareReport) -> None:
    names = [row.name for row in report]
    assert names == [op.name for op in case.program.ops if op.name in names]
    assert "pool" not in names and "cat" in names and "fc.dequantize" not in names
    assert report["bn1"].name == "conv1" and report["conv1"].source == ("conv1", "bn1", "relu1")
    with pytest.raises(intact8.InputError, match="no layer 'bn7'"):
        _ = report["bn7"]
    worst = report.worst(2, "cascade")
    assert len(worst) == 2
    quantized = [row.cascade.sqnr for row in report if row.cascade.sqnr is not None]
    assert worst[0].cascade.sqnr == min(quantized)


def test_dead_clipped_and_saturated_channels_are_found() -> None:
    model = net()
    with torch.no_grad():
        model.conv2.weight[3] = 0.0
        model.conv2.bias[3] = -1.0  # type: ignore[index]
    x = data()
    sim = calibrated(model, x)
    outlier = x.clone()
    outlier[:, 1] *= 30
    row = intact8.compare(model, sim, outlier)["x.quantize"]
    steps = outlier.numpy().astype(np.float64) / row.scale + row.zero_point  # type: ignore[operator]
    outside = (steps < -0.5) | (steps > 255.5)
    assert row.clipped == pytest.approx(outside.mean(), abs=1e-4) and row.clipped > 0.2
    assert row.saturated == tuple(np.flatnonzero(outside.mean((0, 2, 3)) > 0.05)) == (1,)
    assert intact8.compare(model, sim, x)["conv2"].dead == (3,)


def test_memory_does_not_grow_with_the_number_of_batches(case: Case) -> None:
    def batches(count: int) -> Iterator[Tensor]:
        return (data(8, seed) for seed in range(count))

    def kept(count: int) -> int:
        intact8.compare(case.model, case.sim, batches(2))
        tracemalloc.start()
        report = intact8.compare(case.model, case.sim, batches(count))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert report.samples == 8 * count
        return peak

    few, many = kept(3), kept(24)
    assert many < 1.1 * few + 100_000


def test_statistics_keep_nothing_of_the_data() -> None:
    from intact8.diagnose.compare.statistics import Quantizer, TensorStatistics

    def size(chunks: int) -> int:
        statistics = TensorStatistics(1, Quantizer(0.05, 128, 0, 255))
        for seed in range(chunks):
            y = torch.randn(4, 6, 9, 9, generator=torch.Generator().manual_seed(seed))
            q = statistics.quantizer.round(statistics.quantizer.steps(y))  # type: ignore[union-attr]
            statistics.add(y, q, q, q)
        assert statistics.sketch.counts.numel() <= 1 << 16
        tensors = [*vars(statistics).values(), *vars(statistics.own).values(), *vars(statistics.cascade).values()]
        return sum(
            t.numel() if isinstance(t, Tensor) else t.size for t in tensors if isinstance(t, Tensor | np.ndarray)
        )

    assert size(20) == size(5)


def test_batches_of_any_size_give_the_same_numbers(case: Case) -> None:
    whole = intact8.compare(case.model, case.sim, case.x, engine="simulation")
    parts = intact8.compare(case.model, case.sim, [(t, "label") for t in case.x.split(7)], engine="simulation")
    for a, b in zip(whole, parts, strict=True):
        assert a.integers == b.integers and a.clipped == pytest.approx(b.clipped, abs=2e-4)
        assert a.cascade.sqnr == pytest.approx(b.cascade.sqnr, abs=1e-2)
        assert a.cascade.mean_error == pytest.approx(b.cascade.mean_error, rel=1e-3)
    told: list[int] = []
    few = intact8.compare(case.model, case.sim, case.x, samples=10, progress=told.append)
    assert few.samples == 10 and told == [10]


def altered(program: Program, name: str) -> Program:
    """One bias off by 300 (a few steps)."""
    ops = []
    for op in program.ops:
        if op.name == name:
            bias = op.arrays["bias"].copy()
            bias[2] += 300
            op = replace(op, arrays={**op.arrays, "bias": bias})
        ops.append(op)
    return replace(program, ops=tuple(ops))


def test_the_first_differing_integer_is_named(case: Case) -> None:
    same = intact8.compare(case.model, case.sim, case.x[:6], program=case.program)
    assert same.first_difference is None and same.engine == "simulation"
    program = altered(case.program, "conv2")
    report = intact8.compare(case.model, case.sim, case.x[:6].split(2), program=program, engine="reference")
    first = report.first_difference
    assert first is not None and first.tensor == "conv2" and report["conv1"].first_difference is None
    inputs = {"x": case.x[:6].numpy()}
    got = get_runner(program, "reference").tensors(inputs)["conv2"]
    expected = case.integers["conv2"][:6]
    assert first.index == tuple(int(i) for i in np.argwhere(got != expected)[0])
    assert (first.expected, first.got) == (expected[first.index], got[first.index])


def test_json_and_back(report: CompareReport) -> None:
    again = CompareReport.from_dict(json.loads(report.to_json()))
    assert again == report
    assert CompareReport.from_dict(report.to_dict()) == report
    assert isinstance(again.rows[0], LayerRow)


def test_other_models_and_wrong_calls_are_refused(case: Case) -> None:
    with pytest.raises(intact8.InputError, match="not the one that was prepared"):
        intact8.compare(nn.Linear(3, 2), case.sim, case.x)
    with pytest.raises(intact8.InputError, match="not made from this model"):
        other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        intact8.compare(other, case.program, case.x)
    with pytest.raises(intact8.StateError, match="simulation or a program"):
        intact8.compare(case.model, case.model, case.x)  # type: ignore[arg-type]
    with pytest.raises(intact8.StateError, match="no scale yet"):
        intact8.compare(case.model, intact8.prepare(case.model, case.x[:2]).eval(), case.x)
    with pytest.raises(intact8.InputError, match="no batch"):
        intact8.compare(case.model, case.sim, [])
    with pytest.raises(intact8.InputError, match="two programs"):
        intact8.compare(case.model, case.program, case.x, program=case.program)
    with pytest.raises(intact8.CalibrationError, match="expected shape"):
        intact8.compare(case.model, case.sim, case.x[:, :2])
    for bad in (slice(None), 0):
        damaged = case.x.clone()
        damaged[bad] = torch.nan
        for quantized in (case.sim, case.program):
            with pytest.raises(intact8.InputError, match="x: the input holds NaN.*repair the data"):
                intact8.compare(case.model, quantized, damaged)


@pytest.mark.parametrize("value", [1e20, 3e38, math.inf, -math.inf])
def test_values_whose_squares_are_infinite_leave_numbers(case: Case, value: float) -> None:
    """The histogram of the errors asked for the logarithm of infinity."""
    x = case.x.clone()
    x[0, 0, 0, 0] = value
    found = intact8.compare(case.model, case.program, x)
    rows = [found[name] for name in ("x.quantize", "conv1")]
    assert all(row.cascade.sqnr is None and row.cascade.max_error > 1e19 for row in rows)
    assert all(sum(row.cascade.histogram.counts) > 0 for row in rows)
    assert "conv1" in str(found) and CompareReport.from_dict(json.loads(found.to_json())).samples == len(x)


def test_a_trained_simulation_is_compared_with_the_model_that_was_given(case: Case) -> None:
    other = net()
    with torch.no_grad():
        other.conv2.weight.mul_(1.5)
    assert intact8.compare(case.model, case.sim, case.x)["conv2"].own.sqnr > 30  # type: ignore[union-attr]
    assert intact8.compare(other, case.sim, case.x)["conv2"].own.sqnr < 15  # type: ignore[union-attr]


class Tokens(nn.Module):
    """Positions, attention, layer norm, dropout: constants, permutations and islands."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(1, 5, 8))
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.1)
        self.q, self.k, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.position
        scores = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1)
        return self.out(self.drop(self.norm(scores @ x + x)))[:, 0]


@pytest.mark.parametrize("engine", ["auto", "simulation", "reference"])
def test_constants_islands_and_dropout(engine: str) -> None:
    torch.manual_seed(0)
    model, x = Tokens().eval(), torch.randn(40, 5, 8)
    sim = calibrated(model, x)
    report = intact8.compare(model, sim, x, engine=engine)
    assert report["out"].channels == 4 and report["q"].channels == 8
    values = get_runner(intact8.convert(sim), "reference").tensors({"x": x.numpy()})
    tensor = intact8.convert(sim).tensors["q"]
    y = model.q(x + model.position).detach().double().numpy()
    made = (values["q"].astype(np.float64) - tensor.zero_point) * tensor.scale
    wanted = 10 * math.log10((y**2).sum() / ((made - y) ** 2).sum())
    assert report["q"].cascade.sqnr == pytest.approx(wanted, abs=1e-2)


def test_a_program_says_how_its_channels_were_equalized() -> None:
    class Depthwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, groups=6)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x)))

    torch.manual_seed(0)
    model, x = Depthwise().eval(), data()
    sim = calibrated(model, x, intact8.Recipe(equalize=True))
    program = intact8.convert(sim)
    assert list(program.provenance["equalized"]) == ["a"] and len(program.provenance["equalized"]["a"]) == 6
    reports = intact8.compare(model, sim, x), intact8.compare(model, program, x)
    assert reports[0]["b"].own.sqnr > 25  # type: ignore[union-attr]
    assert reports[0].to_dict() == reports[1].to_dict()
    for factors in ([1.0], "no list"):
        altered = replace(program, provenance={"equalized": {"a": factors}})
        with pytest.raises(intact8.InputError, match="a: the program has no 6 equalization factors"):
            intact8.compare(model, altered, x)


def test_masks_that_add_up_to_infinity_are_drawn_at_the_end() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.triu(torch.full((6, 6), torch.finfo(torch.float32).min), 1)
            scores = self.fc(x) + mask + mask
            return self.fc(torch.softmax(scores, -1))

    model, data = Masked().eval(), torch.randn(32, 6, 6)
    sim = intact8.prepare(model, data)
    intact8.calibrate(sim, data)
    assert intact8.compare(model, sim.eval(), data).rows


def test_samples_along_the_second_dimension_and_numbers_without_dimensions() -> None:
    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.scale = nn.MultiheadAttention(4, 2), nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            scale = self.scale.exp()
            return self.attention(x, x * scale, x)[0], scale

    model, data = Attentive().eval(), [torch.randn(5, 3, 4) for _ in range(3)]
    sim = intact8.prepare(model, data[0]).eval()
    assert sim.graph.dimensions
    intact8.calibrate(sim, data)
    assert intact8.compare(model, sim, data, program=intact8.convert(sim), engine="onednn").rows
    assert intact8.sensitivity(sim, data).rows


class Causal(nn.Module):
    """Scores of which some are minus infinity before they become probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("mask", torch.full((6, 6), -math.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out((self.scores(x) + self.mask).softmax(-1))
        return y


def test_infinite_masks_leave_numbers() -> None:
    x, model = torch.randn(64, 6, 6), Causal().eval()
    sim = calibrated(model, x)
    report = intact8.compare(model, sim, [x[:8]])
    assert any(row.float_min < -1e38 for row in report.rows)
    json.dumps(report.to_json(), allow_nan=False)
    intact8.report(intact8.convert(sim), [x[:8]], model=model, sim=sim, seconds=0).to_json()


class Optional(nn.Module):
    """Takes a second tensor, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.a(x) if y is None else self.a(x) + self.b(y)


def test_a_program_says_how_many_tensors_of_a_batch_are_inputs() -> None:
    model, batch = Optional().eval(), (torch.randn(64, 6), torch.randn(64, 3))
    sim = intact8.prepare(model, batch)
    intact8.calibrate(sim, [batch])
    report = intact8.compare(model, intact8.convert(sim), [batch])
    assert {"a", "b"} <= {row.name for row in report.rows}
