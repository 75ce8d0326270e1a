"""Every figure of a report against an independent computation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import intact8
from intact8.diagnose.report import layer_times
from intact8.diagnose.report.contents import Layer
from intact8.diagnose.report.layer_times import time_layers
from intact8.diagnose.sensitivity.report import Score
from intact8.engines import get_runner
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array
from intact8.simulation.scales.table_range import flat_ends
from intact8.verification import verify

from .conftest import Case

CONVS = {"stem.0": "stem.1", "blocks.0.conv": "blocks.0.bn", "blocks.1.conv": "blocks.1.bn", "head": None, "fc": None}
"""Layers with weights, and the batch norm folded into each."""


@pytest.fixture(scope="module")
def layers(case: Case) -> dict[str, Layer]:
    return {layer.name: layer for layer in case.report.layers}


@pytest.fixture(scope="module")
def integers(case: Case) -> dict[str, Array]:
    return get_runner(case.program, "reference").tensors({case.program.inputs[0]: case.data.numpy()})


@pytest.fixture(scope="module")
def floats(case: Case) -> dict[str, Array]:
    """The float network's tensors, written out by hand."""
    m: Any = case.model
    with torch.no_grad():
        x = case.data
        values = {"x.quantize": x}
        x = values["stem.0"] = m.stem(x)
        for i, block in enumerate(m.blocks):
            values[f"blocks.{i}.conv"] = block.bn(block.conv(x))
            x = values[f"blocks.{i}.add"] = block(x)
        x = values["head"] = m.head(m.pool(x))
        x = values["sigmoid"] = torch.sigmoid(x)
        x = values["mean"] = x.mean((2, 3))
        logits = values["fc.dequantize.multiply"] = m.fc(x)
        values["fc"] = logits / factor(case)
        values["softmax"] = torch.softmax(logits, 1)
    return {name: value.double().numpy() for name, value in values.items()}


def counted(case: Case, name: str, values: Array) -> Array:
    """A float tensor; the one that only a sigmoid reads without what the sigmoid does not tell apart."""
    return values.clip(*flat_ends(case.sim.points)["head"]) if name == "head" else values


def factor(case: Case) -> torch.Tensor:
    """What equalization divides the channels of the last layer by, since a float operation reads them, (5,)."""
    op = next(op for op in case.program.ops if op.name == "fc.dequantize.multiply.factor")
    return torch.from_numpy(op.arrays["value"])


def folded(case: Case, name: str) -> Array:
    """A layer's float weight with its batch norm and its equalization in it, (O, …), float64."""
    module = case.model.get_submodule(name)
    weight = module.weight.detach().double()
    norm = CONVS[name]
    if norm is not None:
        bn = case.model.get_submodule(norm)
        by = bn.weight.double() / torch.sqrt(bn.running_var.double() + bn.eps)
        weight = weight * by.detach().reshape(-1, *[1] * (weight.ndim - 1))
    if name == "fc":
        weight = weight / factor(case).double().reshape(-1, 1)
    return weight.reshape(len(weight), -1).numpy()


def sqnr(signal: Array, noise: Array) -> float:
    return 10 * math.log10(float(np.sum(signal**2)) / float(np.sum(noise**2)))


def real(case: Case, name: str, q: Array) -> Array:
    point = case.sim.point(name)
    return (q.astype(np.float64) - int(point.zero_point)) * float(point.scale)


def test_scales_and_zero_points_are_those_of_the_simulation(case: Case, layers: dict[str, Layer]) -> None:
    for name, layer in layers.items():
        point = case.sim.point(name)
        assert (layer.scale is None) == (point is None), name
        if point is not None:
            assert layer.scale == float(point.scale)
            assert layer.zero_point == int(point.zero_point)


def test_the_ends_of_the_clamp_bound_every_integer_as_real_numbers(
    case: Case, layers: dict[str, Layer], integers: dict[str, Array]
) -> None:
    for name in case.program.integer_tensors():
        values, layer = real(case, name, integers[name]), layers[name]
        assert layer.real_low is not None and layer.real_high is not None
        assert layer.real_low - 1e-9 <= values.min() and values.max() <= layer.real_high + 1e-9, name
        steps = (layer.real_high - layer.real_low) / layer.scale if layer.scale else 0
        assert round(steps) == pytest.approx(steps, abs=1e-6) and steps <= 255
    for name in ("stem.0", "blocks.0.add"):  # behind a ReLU
        assert layers[name].real_low == 0
        assert layers[name].activation_function == "relu"


def test_counts(case: Case) -> None:
    c = case.report.counts
    assert (c.ops, c.moves, c.floats) == (15, 2, 2)
    assert c.int8 == c.ops - c.moves - c.floats
    assert c.tensors == sum(case.sim.point(layer.name) is not None for layer in case.report.layers)
    assert (c.certified, c.certifiable) == (9, 9)
    assert c.bytes == sum(a.nbytes for op in case.program.ops for a in op.arrays.values())


def test_multiplications_are_those_of_the_float_layers(case: Case, layers: dict[str, Layer]) -> None:
    counted: dict[str, int] = {}
    hooks = []
    for name in CONVS:
        module = case.model.get_submodule(name)

        def count(module: nn.Module, _: Any, y: torch.Tensor, name: str = name) -> None:
            per_output = module.weight[0].numel()
            counted[name] = y[0].numel() * per_output

        hooks.append(module.register_forward_hook(count))
    with torch.no_grad():
        case.model(case.data[:1])
    for hook in hooks:
        hook.remove()
    assert {name: layer.macs for name, layer in layers.items() if layer.macs} == counted
    assert case.report.counts.macs == sum(counted.values())


def test_weight_ranges_are_the_float_weights_on_their_grid(case: Case, layers: dict[str, Layer]) -> None:
    assert {name for name, layer in layers.items() if layer.channels} == set(CONVS)
    for name in CONVS:
        channels, weight = layers[name].channels, folded(case, name)
        assert channels is not None
        scale = case.sim.weight_points[name].scale.double().numpy()
        np.testing.assert_allclose(channels.scale, scale, rtol=1e-5, err_msg=name)
        assert np.all(np.abs(channels.low - weight.min(1)) <= scale * 0.51), name
        assert np.all(np.abs(channels.high - weight.max(1)) <= scale * 0.51), name
        rounded = np.abs(np.rint(weight / scale[:, None])).max(1)
        assert np.all(np.abs(rounded - channels.used) <= 1)
        error = layers[name].error
        assert error is not None and error.weight is not None
        np.testing.assert_allclose(error.weight.minimum, weight.min(1), rtol=1e-4)
        np.testing.assert_allclose(error.weight.maximum, weight.max(1), rtol=1e-4)


def test_every_integer_is_counted(case: Case, layers: dict[str, Layer], integers: dict[str, Array]) -> None:
    assert case.report.samples == len(case.data)
    for name in case.program.integer_tensors():
        found, q = layers[name].integers, integers[name]
        assert found is not None
        values, times = np.unique(q, return_counts=True)
        assert {i: n for i, n in enumerate(found.counts) if n} == dict(
            zip(values.tolist(), times.tolist(), strict=True)
        )
        op = next(op for op in case.program.ops if op.name == name)
        low, high = op.attrs.get("lo", 0), op.attrs.get("hi", 255)
        assert found.used == pytest.approx(len(values) / (high - low + 1))
        assert found.at_low == pytest.approx(float((q == low).mean()))
        assert found.at_high == pytest.approx(float((q == high).mean()))


def test_cascade_errors(
    case: Case, layers: dict[str, Layer], integers: dict[str, Array], floats: dict[str, Array]
) -> None:
    assert case.report.compared == len(case.data)
    assert {name for name, layer in layers.items() if layer.error} == set(floats)
    for name, values in floats.items():
        error, expected = layers[name].error, counted(case, name, values)
        assert error is not None
        got = real(case, name, integers[name]) if error.quantized else integers[name].astype(np.float64)
        step = error.scale or 1.0
        assert error.float_min == pytest.approx(values.min(), rel=1e-4, abs=1e-6)
        assert error.float_max == pytest.approx(values.max(), rel=1e-4, abs=1e-6)
        assert layers[name].cascade_sqnr == pytest.approx(sqnr(expected, got - expected), abs=0.02), name
        assert error.cascade.mean_error == pytest.approx(np.abs(got - expected).mean() / step, rel=1e-2)
        assert error.cascade.max_error == pytest.approx(np.abs(got - expected).max() / step, rel=1e-2)
        if error.quantized:
            low, high = real(case, name, np.array(0)) - step / 2, real(case, name, np.array(255)) + step / 2
            below, above = (expected < low).mean(), (expected > high).mean()
            assert (error.clipped_low, error.clipped_high) == pytest.approx((below, above), abs=1e-4), name


def test_own_error_of_a_convolution(case: Case, layers: dict[str, Layer], floats: dict[str, Array]) -> None:
    """The head fed with the float network's input, rounded to the grid: computed from the program's integers."""
    op = next(op for op in case.program.ops if op.name == "head")
    x, y = case.program.tensors[op.inputs[0]], case.program.tensors["head"]
    assert x.scale and y.scale and x.zero_point is not None and y.zero_point is not None
    pooled = torch.nn.functional.max_pool2d(torch.from_numpy(floats["blocks.1.add"]), 2).numpy()
    q = np.clip(np.rint(pooled / x.scale) + x.zero_point, 0, 255) - x.zero_point
    weight = op.arrays["weight"][:, :, 0, 0].astype(np.float64)
    acc = np.einsum("nihw,oi->nohw", q, weight) + op.arrays["bias"].reshape(1, -1, 1, 1)
    ratio = (op.arrays["a"] / op.arrays["b"]).reshape(1, -1, 1, 1)
    out = np.clip(np.rint(acc * ratio) + y.zero_point, 0, 255)
    got = (out - y.zero_point) * y.scale
    wanted = counted(case, "head", floats["head"])
    assert layers["head"].own_sqnr == pytest.approx(sqnr(wanted, got - wanted), abs=0.02)


def test_sensitivity_and_ranking(case: Case, layers: dict[str, Layer]) -> None:
    given = {row.name: row.scores[0].value for row in case.sensitivity}
    assert {name: layer.sensitivity for name, layer in layers.items() if layer.sensitivity is not None} == given
    ranked = [layer.name for layer in case.report.most_sensitive(3)]
    assert ranked == sorted(given, key=lambda name: given[name])[:3]  # dB: lower is worse
    assert case.report.metric is not None
    assert (case.report.metric.name, case.report.metric.quantized_score) == ("sqnr", 18.5)


def test_worst_layers(case: Case) -> None:
    own = [layer for layer in case.report.layers if layer.own_sqnr is not None]
    assert case.report.worst(4) == sorted(own, key=lambda layer: layer.own_sqnr or 0)[:4]


def test_certificates_hold_again(case: Case, layers: dict[str, Layer]) -> None:
    for op in case.program.ops:
        certificate = layers[op.name].certificate
        if certificate is None:
            assert op.is_float or op.kind in ("quantize", "dequantize", "max_pool", "constant")
            continue
        if op.kind in ("conv", "linear"):
            weight = np.abs(op.arrays["weight"].astype(np.int64)).reshape(len(op.arrays["weight"]), -1)
            z = case.program.tensors[op.inputs[0]].zero_point or 0
            sums = weight.sum(1) * max(z, 255 - z) + np.abs(op.arrays["bias"].astype(np.int64))
            assert certificate["accumulator"] == sums.max()
            assert certificate["saturation"] == np.sort(weight, 1)[:, -2:].sum(1).max() * 255
            assert (certificate["b_min"], certificate["b_max"]) == (op.arrays["b"].min(), op.arrays["b"].max())
        assert certificate["exact"]
    assert verify(case.program, case.data.numpy()).exact


class Clock:
    """A runner that takes the times it is told, over and over."""

    def __init__(self, program: intact8.Program, rounds: list[list[float]]) -> None:
        self.program, self.rounds, self.done = program, rounds, 0

    def __call__(self, inputs: Any) -> list[Array]:
        return []

    def tensors(self, inputs: Any, feed: Any = None) -> dict[str, Array]:
        return {}

    def times(self, inputs: Any) -> dict[str, float]:
        row = self.rounds[self.done % len(self.rounds)]
        self.done += 1
        return dict(zip([op.name for op in self.program.ops], row, strict=True))


def test_times_are_quartiles_of_the_runs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [[(i + 1) * (j + 1) * 1e-3 for j in range(len(case.program.ops))] for i in range(5)]
    clock = Clock(case.program, rounds[-layer_times.WARMUP :] + rounds)
    monkeypatch.setattr(layer_times, "get_runner", lambda program, engine: clock)
    monkeypatch.setattr(layer_times, "LEAST", 5)
    whole, parts = time_layers(case.program, {"x": case.data[:3].numpy()}, "onednn", seconds=0.0, data="given")
    assert (whole.batch, whole.runs, whole.data) == (3, 5, "given")
    for j, time in enumerate(parts.values()):  # 1, 2, 3, 4, 5 times (j + 1) milliseconds
        assert (time.lower, time.median, time.upper) == pytest.approx((2 * (j + 1), 3 * (j + 1), 4 * (j + 1)))


def test_measured_times_add_up_to_about_the_whole(case: Case) -> None:
    """The clock between ops costs little, so the parts cannot be much more than the whole, nor much less."""
    assert case.report.speed is not None
    parts = sum(layer.time.median for layer in case.report.layers if layer.time)
    assert 0.2 * case.report.speed.whole.median < parts < 5 * case.report.speed.whole.median
    shares = [case.report.share_of_time(layer) for layer in case.report.layers]
    assert sum(share for share in shares if share is not None) == pytest.approx(1)
    assert case.report.slowest(1)[0].time == max(
        (layer.time for layer in case.report.layers if layer.time), key=lambda time: time.median
    )


def test_findings_are_those_of_lint_and_stand_at_their_layers(case: Case) -> None:
    from intact8.diagnose.lint import Finding, LintReport

    finding = Finding("IQ999", "made-up", "error", "wrong", "right it", node="head")
    lint = LintReport((finding,), "program", "x", ("IQ999",), {"IQ998": "data"})
    report = intact8.report(case.program, lint=lint, seconds=0)
    assert report.findings == (finding,)
    assert report.skipped == {"IQ998": "data"}
    assert {layer.name: layer.findings for layer in report.layers if layer.findings} == {"head": (0,)}
    assert intact8.report(case.program, seconds=0).findings == intact8.lint(case.program).findings


def test_json_is_the_whole_report(case: Case) -> None:
    document = json.loads(json.dumps(case.report.to_json(), allow_nan=False))
    assert [layer["name"] for layer in document["layers"]] == [op.name for op in case.program.ops]
    assert document["counts"]["macs"] == case.report.counts.macs
    assert document["layers"][1]["error"]["own"]["sqnr"] == case.report.layers[1].own_sqnr
    assert document["recipe"] == case.program.recipe


def test_without_data_and_model(case: Case) -> None:
    report = intact8.report(case.program, seconds=0.0)
    assert (report.samples, report.compared, report.speed, report.metric) == (0, 0, None, None)
    assert all(layer.integers is None and layer.error is None for layer in report.layers)
    assert all(layer.channels for layer in report.layers if layer.name in CONVS)


@pytest.mark.parametrize("empty", [lambda x: [], lambda x: x[:0], lambda x: [x[:0]]], ids=["list", "tensor", "batch"])
def test_no_samples_are_refused(case: Case, empty: Callable[[torch.Tensor], Any]) -> None:
    """They ended in a bare StopIteration."""
    with pytest.raises(InputError, match="no samples to count integers of.*one sample or more"):
        intact8.report(case.program, empty(case.data))


def test_a_model_needs_data_that_can_be_read_twice(case: Case) -> None:
    with pytest.raises(InputError, match="without data"):
        intact8.report(case.program, model=case.model)
    with pytest.raises(InputError, match="read only once"):
        intact8.report(case.program, iter(case.data.split(8)), model=case.model)
    with pytest.raises(InputError, match="read only once"):
        intact8.report(case.program, iter(case.data.split(8)))


def test_an_engine_that_runs_the_network_as_one_call_is_refused(case: Case) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(EngineError, match="one by one"):
        intact8.report(case.program, engine="onnxruntime", seconds=0.1)


def test_the_terminal_shows_the_same_figures(case: Case) -> None:
    from rich.console import Console

    console = Console(width=260)
    with console.capture() as printed:
        console.print(case.report)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.get().splitlines() if "│" in line]
    by_name = {row[0]: row for row in rows if len(row) > 5}
    for layer in case.report.layers:
        row = by_name[layer.name]
        assert row[1:3] == [layer.kind, layer.runs_as]
        assert row[3] == ("" if layer.scale is None else f"{layer.scale:.4g}")
        assert row[8] == ("–" if layer.own_sqnr is None else f"{layer.own_sqnr:.1f}")
        assert row[9] == ("–" if layer.cascade_sqnr is None else f"{layer.cascade_sqnr:.1f}")


def test_accuracy_and_float_time_are_measured(case: Case) -> None:
    found, speed = case.report.accuracy, case.report.speed
    with torch.no_grad():
        labels = case.model(case.data).argmax(1).numpy()
    predicted = np.asarray(case.program.run(case.data.numpy())).argmax(1)
    assert found is not None and found.samples == len(case.data)
    assert found.float32 == 1.0
    assert found.int8 == (predicted == labels).mean()
    assert speed is not None and speed.float32 is not None and speed.float32.median > 0


def test_labels_behind_the_inputs_of_a_batch(case: Case) -> None:
    with torch.no_grad():
        labels = case.model(case.data).argmax(1)
    pairs = [(case.data[:30], labels[:30]), (case.data[30:], labels[30:])]
    made = intact8.report(case.program, pairs, seconds=0.0)
    assert made.accuracy is not None and case.report.accuracy is not None
    assert (made.accuracy.int8, made.accuracy.float32) == (case.report.accuracy.int8, None)
    with pytest.raises(InputError, match="3 labels for 48 samples"):
        intact8.report(case.program, case.data, labels=[1, 2, 3], seconds=0.0)


def test_what_to_do_next(case: Case) -> None:
    alone = intact8.report(case.program, seconds=0.0)
    assert "model= and data=" in alone.next_steps[-1]
    report = intact8.doctor(case.model, case.data.repeat(4, 1, 1, 1), seconds=0, remedies=False)
    asked = intact8.report(case.program, seconds=0.0, doctor=report)
    assert all(any(finding.cause in step for step in asked.next_steps) for finding in report.findings[:3])


def test_the_title_is_the_models(case: Case) -> None:
    assert intact8.report(case.program, case.data[:4], model=case.model, seconds=0.0).title == "Net"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0.*an integer of 1 or more"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"seconds": math.nan}, "seconds is nan.*a number of 0 or more"),
        ({"seconds": -1}, "seconds is -1"),
        ({"seconds": math.inf}, "seconds is inf"),
    ],
)
def test_numbers_outside_their_limits_are_refused(case: Case, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        intact8.report(case.program, case.data, **{"seconds": 0, **given})


def test_the_comparison_of_another_network_is_refused(case: Case) -> None:
    """Its rows were dropped, or stood at layers that have their names by chance."""
    wide, deep = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    short, x = deep[:1], torch.randn(64, 4)
    programs = [intact8.quantize(network.eval(), x) for network in (wide, deep, short)]
    compared = [intact8.compare(network, p, x) for network, p in zip((wide, deep, short), programs, strict=True)]
    for i, program in enumerate(programs):
        assert intact8.report(program, seconds=0, compare=compared[i]).compared == 64
        for j, other in enumerate([*compared, case.compared]):
            if i != j:
                with pytest.raises(
                    InputError, match="the comparison is of another network.*the layer '.*' is missing in one"
                ):
                    intact8.report(program, seconds=0, compare=other)


def test_the_sensitivity_of_another_network_is_refused(case: Case) -> None:
    program = intact8.quantize(nn.ModuleDict({"only": nn.Linear(4, 3)})["only"], torch.randn(64, 4))
    with pytest.raises(InputError, match="the sensitivity is of another network"):
        intact8.report(program, seconds=0, sensitivity=case.sensitivity)


def test_scores_that_are_no_numbers_are_none(case: Case) -> None:
    row = replace(case.sensitivity.rows[0], scores=(Score("alone", "both", math.nan),))
    scores = replace(case.sensitivity, quantized_score=math.inf, rows=(row,))
    made = intact8.report(case.program, seconds=0, sensitivity=scores).to_json()
    assert made["metric"]["quantized_score"] is None and made["layers"][0]["sensitivity"] is None
