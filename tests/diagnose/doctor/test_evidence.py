"""What evidence says is compared with what arithmetic says: decibels that can be computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.diagnose.test_between_layers import merged_shortcuts
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme
from intact8.diagnose.doctor import quantization_error
from intact8.diagnose.doctor.activations import Evidence, examine_activation, examine_rows
from intact8.diagnose.doctor.calibration_quality import examine_calibration
from intact8.diagnose.doctor.causes import Measured, name_calibration_fault
from intact8.diagnose.doctor.consumers import importance
from intact8.diagnose.doctor.exploded import exploded
from intact8.diagnose.doctor.findings import noise_findings
from intact8.diagnose.doctor.float_causes import FLOAT_CAUSES
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs
from intact8.diagnose.doctor.network_checks import (
    cancelled,
    check_confidence,
    dead_channels,
    emptied,
    mismatch,
    stale_batch_norm,
)
from intact8.diagnose.doctor.report import CalibrationQuality
from intact8.diagnose.doctor.samples import Samples, divide, gather
from intact8.diagnose.doctor.tensor_statistics import TensorStats, observe
from intact8.diagnose.doctor.weights import examine_weight
from intact8.diagnose.executors import unquantized
from intact8.diagnose.quantizer import Quantizer

CPU = torch.device("cpu")
MINMAX = Recipe(activation=Scheme(observer="minmax"), equalize=False)


def stats(x: Tensor, axis: int = 1) -> TensorStats:
    out = TensorStats()
    out.add(x, axis)
    return out


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) * (high - low) + low


class Bed:
    """A model, a simulation of it and samples."""

    def __init__(self, model: nn.Module, x: Tensor, recipe: Recipe = MINMAX, shown: Tensor | None = None) -> None:
        self.network = FloatNetwork(model.eval(), x[:2], CPU)
        self.data = gather(x, self.network.captured, CPU, 10_000)
        self.shown = self.data if shown is None else gather(shown, self.network.captured, CPU, 10_000)
        self.sim = self.network.simulate(recipe, self.shown)
        self.seen, self.known = observe(self.sim, self.data), observe(self.sim, self.shown)

    def activation(self, name: str) -> Any:
        found = examine_activation(self.sim, name, self.seen, self.known, None, self.sim.graph.users())
        assert found is not None
        return found

    def importance(self, name: str, channels: int) -> Any:
        return importance(
            self.sim.graph, self.sim.tensors, self.sim.weight_points, name, channels, self.sim.graph.users()
        )

    def quality(self) -> CalibrationQuality:
        return examine_calibration(self.network, self.sim, self.shown, self.data, self.known, self.seen)


# -- grids ----------------------------------------------------------------------------------------------------------


def test_error_is_that_of_rounding() -> None:
    x = uniform(64, 32)
    grid = Quantizer(1 / 255, 0, 0, 255)
    direct = (x.double() - torch.clamp(torch.round(x.double() / grid.scale), 0, 255) * grid.scale).pow(2).sum()
    assert quantization_error.error([stats(x)], grid) == pytest.approx(float(direct), rel=0.05)


def test_clip_error_is_what_sticks_out() -> None:
    x = uniform(64, 512)
    grid = Quantizer(0.5 / 255, 0, 0, 255)
    direct = (x.double() - 0.5).clamp(min=0).pow(2).sum()
    assert quantization_error.clip_error([stats(x)], grid) == pytest.approx(float(direct), rel=0.02)
    assert quantization_error.clipped_share([stats(x)], grid) == pytest.approx(0.5, abs=0.02)


def test_what_lies_less_than_half_a_step_outside_is_rounded_and_not_clipped() -> None:
    bytes_of_images = Quantizer(1.0, 0, 0, 255)
    normalized = stats(torch.linspace(-0.42, 2.83, 1000).reshape(10, 100))
    assert quantization_error.clip_error([normalized], bytes_of_images) == 0


@pytest.mark.parametrize("true", [0, 70, 255])
def test_best_zero_point_is_found(true: int) -> None:
    grid = Quantizer(1 / 255, true, 0, 255)
    x = uniform(64, 256, low=grid.ends[0], high=grid.ends[1])
    assert quantization_error.best_zero_point([stats(x)], replace(grid, zero_point=128)).zero_point == pytest.approx(
        true, abs=2
    )


def test_channel_statistics_are_those_of_the_tensor() -> None:
    x = torch.relu(torch.randn(6, 5, 4, 3, generator=torch.Generator().manual_seed(1)))
    t = stats(x[:2])
    t.add(x[2:], 1)
    flat = x.movedim(1, 0).reshape(5, -1)
    assert np.allclose(t.mean, flat.mean(1)) and np.allclose(t.moment, flat.pow(2).mean(1))
    assert np.allclose(t.low, flat.amin(1)) and np.allclose(t.high, flat.amax(1))
    assert np.allclose(t.nonzero, (flat != 0).sum(1))
    assert np.allclose(t.sample_high, x.reshape(6, -1).amax(1))


# -- activations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [4.0, 16.0])
def test_a_range_too_wide_costs_twenty_log_of_the_factor(factor: float) -> None:
    """Rounding noise goes with the square of the step."""
    x = uniform(512, 8)
    bed = Bed(nn.Linear(8, 4), x)
    point = bed.sim.points["input"]
    point.set(float(point.scale) * factor, int(point.zero_point))
    found = bed.activation("input")
    assert found.origin == "set"
    assert found.gains["range"] == pytest.approx(20 * math.log10(factor), abs=0.5)


@pytest.mark.parametrize("bits", [3, 5])
def test_bits_cost_six_decibels_each(bits: int) -> None:
    x = uniform(512, 8)
    bed = Bed(nn.Linear(8, 4), x, Recipe(activation=Scheme(observer="minmax", bits=bits)))
    expected = 20 * math.log10(255 / (2**bits - 1))
    assert bed.activation("input").gains["bits"] == pytest.approx(expected, abs=0.7)


def test_symmetric_costs_six_decibels_where_nothing_is_negative() -> None:
    x = uniform(512, 8)
    bed = Bed(nn.Linear(8, 4), x, Recipe(activation=Scheme(observer="minmax", dtype="int8", symmetric=True)))
    assert bed.activation("input").gains["symmetric"] == pytest.approx(6, abs=0.7)


def test_calibration_on_other_data_is_told_from_a_bad_observer() -> None:
    x = uniform(512, 8)
    bed = Bed(nn.Linear(8, 4), x, shown=8 * x)
    gains = bed.activation("input").gains
    assert gains["data"] == pytest.approx(20 * math.log10(8), abs=0.5)
    assert abs(gains["range"]) < 0.5


def test_a_bias_that_keeps_results_from_zero_costs_what_its_range_wastes() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(8, 8), uniform(256, 8, low=-1.0)
    with torch.no_grad():
        net.bias.fill_(0.0)
    bed = Bed(net, x)
    assert "offset" not in bed.activation(next(reversed(bed.sim.points))).gains
    with torch.no_grad():
        net.bias.fill_(100.0)
        width = float(net(x).max() - net(x).min())
    bed = Bed(net, x)
    found = bed.activation(next(reversed(bed.sim.points)))
    assert found.gains["offset"] == pytest.approx(20 * math.log10((100 + width / 2) / width), abs=0.5)
    noise, _ = FloatOutputs(bed.sim, bed.data, None).noise(bed.sim)
    with torch.no_grad():
        varies = float(net(x).var() / net(x).square().mean())
    assert noise > 1e-3 > varies  # over what the outputs differ by, not over what they share


def test_ranges_come_before_what_the_network_is() -> None:
    wide = Measured("activation", "0", 1.0, Evidence({"data": 9.0, "channels": 25.0}))
    assert wide.reason == ("data", 9.0)
    assert Measured("activation", "0", 1.0, Evidence({"data": 5.0, "channels": 25.0})).reason == ("channels", 25.0)
    # With few bits narrow ranges are best, which is why these look too wide.
    assert Measured("activation", "0", 1.0, Evidence({"range": 13.0, "bits": 23.0})).reason == ("bits", 23.0)
    assert Measured("activation", "0", 1.0, Evidence({"range": 23.0, "bits": 23.0})).reason[1] == 23.0


def test_noise_that_another_scheme_takes_away_everywhere_is_the_schemes() -> None:
    def found(gain: float) -> Any:
        sites = [Measured("weight", str(i), 1e-3, Evidence({"granularity": gain})) for i in range(12)]
        return noise_findings(sites, [], 1.2e-2, ())[0]

    assert (found(1.0).place, found(1.0).cause) == ("network", "accumulated")
    assert (found(3.0).place, found(3.0).cause) == ("network", "per_tensor_weight") and "50%" in found(3.0).message


def test_a_channel_that_is_an_offset_is_told_from_one_that_has_exploded() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].bias[5] += 1000
    bed = Bed(model, torch.randn(64, 8))
    (offset,) = exploded(bed.sim, bed.seen)
    assert offset.evidence["channels"] == [5] and offset.evidence["offset"] == pytest.approx(1000, rel=0.01)
    with torch.no_grad():
        model[0].bias[5] -= 1000
        model[0].weight[5] *= 1000
    bed = Bed(model, torch.randn(64, 8))
    assert all("offset" not in finding.evidence for finding in exploded(bed.sim, bed.seen))


def test_an_outlier_channel_counts_by_what_reads_it() -> None:
    """100 times as wide, and read by weights 1/100 as large: 40 dB that a scale per channel would save."""
    x = uniform(512, 32)
    x[:, 3] *= 100
    model = nn.Linear(32, 8)
    with torch.no_grad():
        model.weight[:, 3] /= 100
    found = Bed(model, x).activation("input")
    assert found.gains["channels"] == pytest.approx(40, abs=2)
    assert found.facts["widest_channel"] == 3
    assert found.facts["outlier_channel_gain_db"] == pytest.approx(found.facts["channel_gain_db"], abs=2)
    even = Bed(nn.Linear(32, 8), uniform(512, 32)).activation("input")
    assert abs(even.gains["channels"]) < 1


def test_rows_of_an_input_that_are_no_channels() -> None:
    """One electrode of eight is 100 times as wide, and the weights that mix them take that back: 40 dB."""
    x = uniform(64, 1, 8, 16)
    x[:, :, 3] *= 100
    model: Any = nn.Sequential(nn.Conv2d(1, 2, (1, 3), bias=False), nn.Conv2d(2, 4, (8, 1)))
    with torch.no_grad():
        model[1].weight[:, :, 3] /= 100
    bed = Bed(model, x)
    exact = FloatOutputs(bed.sim, bed.data, None)
    point = bed.sim.points["input"]
    noise = exact.noise_of_input(bed.sim, 0, lambda x: (x / point.scale).round() * point.scale)
    found = Evidence()
    examine_rows(bed.sim, exact, "input", noise, found)
    assert found.gains["channels"] == pytest.approx(39.4, abs=1)  # 40 dB of seven rows in eight: the noise of one stays
    assert (found.facts["dimension"], found.facts["widest_channel"], found.facts["channels"]) == (2, 3, 8)
    assert found.facts["outlier_channel_gain_db"] == pytest.approx(found.gains["channels"], abs=2)
    once = uniform(64, 1, 8, 16)
    once[::16, :, 3] *= 100  # in a few samples only, of which no scale for the row takes account
    bed = Bed(model, once)
    examine_rows(bed.sim, FloatOutputs(bed.sim, bed.data, None), "input", noise, found := Evidence())
    assert not found.gains


def test_importance_is_the_noise_behind_the_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 6))
    bed = Bed(model, torch.randn(64, 3, 4, 4))
    expected = model[4].weight.detach().double().reshape(6, 4, 4).pow(2).sum((0, 2)).numpy()
    assert np.allclose(bed.importance("0", 4), expected, rtol=1e-5)


def test_a_depthwise_layer_counts_by_what_reads_it() -> None:
    """What a depthwise layer multiplies and the layer behind it divides weighs as much as before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 4, 1)).eval()
    x = torch.randn(16, 3, 6, 6)

    def weighed() -> Any:
        sim = intact8.prepare(model, x[:2], Recipe(equalize=False))
        return importance(sim.graph, sim.tensors, sim.weight_points, "0", 8, sim.graph.users(), behind_depthwise=True)

    before = weighed()
    with torch.no_grad():
        model[1].weight[5] *= 100
        model[2].weight[:, 5] /= 100
    after = weighed()
    assert np.allclose(after / after.mean(), before / before.mean(), rtol=1e-4)


def test_float32_between_layers_is_no_finding() -> None:
    model, x = Skip().eval(), torch.randn(64, 8)
    found = intact8.doctor(model, x, recipe=Recipe(between_layers="float"), remedies=False, seconds=0)
    assert all(finding.cause != "left_float" for finding in found.findings)


class Skip(nn.Module):
    """A linear layer, and what it reads added."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head((x + self.fc(x)).relu())
        return y


def test_importance_through_concatenation() -> None:
    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(5, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.c(torch.cat([self.a(x), self.b(x)], 1))
            return y

    model = Join()
    bed = Bed(model, torch.randn(64, 3, 4, 4))
    columns = model.c.weight.detach().double().pow(2).sum((0, 2, 3)).numpy()
    assert np.allclose(bed.importance("a", 2), columns[:2], rtol=1e-5)
    assert np.allclose(bed.importance("b", 3), columns[2:], rtol=1e-5)


def test_importance_behind_a_gate_and_another_order_of_dimensions() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 8), nn.Conv1d(4, 4, 3, groups=4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = nn.functional.glu(self.a(x), 2).mT
            z: Tensor = self.c(self.b(y).mT)
            return z

    model = Gated()
    bed = Bed(model, torch.randn(64, 7, 6))
    columns = model.b.weight.detach().double().pow(2).sum((1, 2)).numpy()
    assert np.allclose(bed.importance("a", 8), np.tile(columns, 2), rtol=1e-5)


def test_values_that_attention_passes_on_are_named_and_not_its_range() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.qkv, self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (layer(x).unflatten(2, (2, 8)).transpose(1, 2) for layer in self.qkv)
            z: Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return z

    model = Attention().eval()
    with torch.no_grad():
        model.qkv[2].weight[5] *= 80
        model.qkv[2].bias[5] *= 80
        model.out.weight[:, 5] /= 80
    report = intact8.doctor(model, torch.randn(128, 6, 16), recipe=Recipe(equalize=False), remedies=False, seconds=0)
    assert (report.findings[0].place, report.findings[0].cause) == ("qkv.2", "outlier_channel")


def test_channels_that_biases_keep_away_from_zero() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.Unflatten(1, (3, 8)), nn.Linear(8, 4)).eval()
    with torch.no_grad():
        model[0].bias[8:16] += 60
    found = Bed(model, torch.randn(256, 16)).activation("0")
    assert found.worst()[0] == "offset" and found.gains["offset"] > 20
    assert found.facts["offset_channels"] == "8 of 24" and found.facts["offset_range"][0] > 50


def test_batch_norms_keep_channels_away_from_zero_as_biases_do() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)).eval()
    with torch.no_grad():
        model[1].bias += 400
    found = Bed(model, torch.randn(64, 3, 5, 5)).activation("0")
    assert found.worst()[0] == "offset" and found.facts["offset_channels"] == "all"


def test_a_channel_that_is_nothing_behind_its_activation_has_not_exploded() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 8)).eval()
    x, y = torch.randn(256, 16), torch.randint(0, 8, (256,))
    with torch.no_grad():
        model[0].bias[3] = -40
        model[2].weight[:, 3] *= 60
        y = model(x).argmax(1)
    report = intact8.doctor(model, [(x, y)], remedies=False, seconds=0)
    assert not [f for f in report.findings if f.cause in ("exploded_channel", "large_bias")]


def test_shortcuts_merged_into_weights_have_not_exploded() -> None:
    """Of a convolution with its shortcut, as in a RepVGG for inference, a few weights are far larger than others."""
    model, x = merged_shortcuts(), torch.randn(256, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    last: Any = model[-1]
    with torch.no_grad():
        last.bias -= model(x).mean(0)
        y = model(x).argmax(1)
    report = intact8.doctor(model, [(x, y)], seconds=0)
    assert not [str(f) for f in report.findings if f.cause in FLOAT_CAUSES]
    assert any(trial.remedy == "smooth" and trial.accepted for trial in report.trials)
    with torch.no_grad():
        model[4].weight[3, 5, 0, 1] = 500.0
    bed = Bed(model, x)
    found = [f.place for f in exploded(bed.sim, bed.seen) if f.cause == "exploded_weight"]
    assert found == ["4"]


# -- weights --------------------------------------------------------------------------------------------------------


def test_a_shared_weight_scale_costs_the_range_it_wastes() -> None:
    """One channel 100 times as large as the others: they lose 40 dB, it loses nothing."""
    torch.manual_seed(0)
    model = nn.Linear(64, 16)
    with torch.no_grad():
        model.weight[0] *= 100
    weight = Scheme(dtype="int8", symmetric=True, observer="minmax")
    bed = Bed(model, torch.randn(256, 64), Recipe(activation=Scheme(observer="minmax"), weight=weight))
    found = examine_weight(bed.sim, "", bed.seen) if "" in bed.sim.weight_points else None
    name = next(iter(bed.sim.weight_points))
    found = found or examine_weight(bed.sim, name, bed.seen)
    # All of the small rows round to nothing at most: the gain is bounded by their own power.
    assert found.gains["granularity"] > 8
    assert found.facts["channel_imbalance"] == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("bits", [3, 4])
def test_weight_bits(bits: int) -> None:
    torch.manual_seed(0)
    weight = Scheme(dtype="int8", symmetric=True, granularity="per_channel", observer="minmax", bits=bits)
    bed = Bed(nn.Linear(128, 16), torch.randn(256, 128), Recipe(weight=weight, portable=False))
    name = next(iter(bed.sim.weight_points))
    expected = 20 * math.log10(127 / (2 ** (bits - 1) - 1))
    assert examine_weight(bed.sim, name, bed.seen).gains["bits"] == pytest.approx(expected, abs=1.5)


def test_mean_shift_is_the_mean_of_the_output_error() -> None:
    """Σ Δw·E[x] squared against the error that is left with inputs around zero."""
    torch.manual_seed(0)
    model, x = nn.Linear(32, 8), torch.randn(2048, 32) + 3
    bed = Bed(model, x, Recipe(weight=Scheme(dtype="int8", symmetric=True, bits=3, granularity="per_channel", observer="minmax")))  # noqa: E501  # fmt: skip
    name = next(iter(bed.sim.weight_points))
    with unquantized(bed.sim), torch.no_grad():
        bed.sim.weight_points[name].quantizing = True
        error = bed.sim(x) - model(x)
    share = float((error.mean(0) ** 2).sum() / (error**2).mean(0).sum())
    assert examine_weight(bed.sim, name, bed.seen).facts["mean_share_of_error"] == pytest.approx(share, abs=0.03)


def test_overflowing_bias_is_counted() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    with torch.no_grad():
        model[0].bias[2] = -1e10
    bed = Bed(model, torch.randn(64, 8))
    assert examine_weight(bed.sim, "0", bed.seen).facts["overflowing_biases"] == 1


# -- the network before rounding ------------------------------------------------------------------------------------


def test_confidence() -> None:
    bed = Bed(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(32, 3, 6, 6))
    assert check_confidence(bed.network, bed.sim, bed.data).passed
    with torch.no_grad():
        bed.sim.get_parameter("0.weight").mul_(1.1)
    wrong = check_confidence(bed.network, bed.sim, bed.data)
    assert not wrong.passed and wrong.error > 0.01


def test_stale_batch_norm_is_the_first_of_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(3) for m in (nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())])
    x = torch.randn(256, 4, 4, 4)
    model.train()
    for _ in range(60):
        model(x)
    bed = Bed(model, x)
    assert stale_batch_norm(bed.network, bed.sim.graph, bed.data) == []
    with torch.no_grad():
        model[4].running_var.mul_(16)
    (found,) = stale_batch_norm(bed.network, bed.sim.graph, bed.data)
    assert found.place == "3" and found.evidence["deviation_ratio"] == pytest.approx(4, rel=0.1)


def test_one_channel_that_grew_in_a_wide_layer_is_no_matter_of_statistics() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 96, bias=False), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 4))
    x = uniform(512, 16)
    net.train()
    net[1].momentum = None
    net(x)
    with torch.no_grad():
        net[0].weight[9] *= 50
    bed = Bed(net, x)
    (found,) = stale_batch_norm(bed.network, bed.sim.graph, bed.data)
    assert (found.place, found.cause, found.evidence["channels"]) == ("0", "exploded_channel", [9])


def test_dead_channels_are_counted() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU())
    with torch.no_grad():
        model[0].bias[[1, 5]] = -100
    bed = Bed(model, torch.randn(64, 3, 4, 4))
    (found,) = dead_channels(bed.sim.graph, bed.sim.weight_points, bed.seen)
    assert (found.place, found.evidence["dead"]) == ("0", 2)


class Squares(nn.Module):
    """Standard deviations as the mean of squares less the squared mean, of numbers that lie around one."""

    def __init__(self, around: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.fc = nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.Linear(8, 3)
        nn.init.normal_(self.norm.weight, mean=1.0, std=0.1)
        nn.init.constant_(self.norm.bias, around)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y = y.square().mean(2) - y.mean(2).square()
        z: Tensor = self.fc(y.clamp(min=1e-6).sqrt())
        return z


@pytest.mark.parametrize("around", [0.0, 300.0])
def test_a_difference_of_which_float32_leaves_little_explains_what_differs_by_little(around: float) -> None:
    bed = Bed(Squares(around), torch.randn(64, 4, 200))
    doubts = mismatch(check_confidence(bed.network, bed.sim, bed.data))
    assert [f.cause for f in doubts] == ["float_mismatch"] * (around > 0)
    told = cancelled(bed.sim, bed.data, doubts)
    assert [(f.cause, f.place) for f in told] == [("cancellation", "sub")] * (around > 0)
    other = [replace(f, evidence={"relative_error": 1.0}) for f in doubts]
    assert cancelled(bed.sim, bed.data, other) == other


def test_filters_of_zeros_are_a_proof() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU()), torch.randn(64, 3, 4, 4)
    with torch.no_grad():
        model[0].weight[:5] = 0
    bed = Bed(model, x)
    (found,) = emptied(dead_channels(bed.sim.graph, bed.sim.weight_points, bed.seen), bed.sim.graph, bed.sim.tensors)
    assert found.evidence["zeros"] == 5 and "5 of its 8 filters are nothing but zeros" in found.message


def test_a_batch_norm_whose_eps_drowns_its_inputs_is_dead() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU()), torch.randn(128, 8)
    with torch.no_grad():
        net[0].weight.mul_(1e-5)
    net(x)  # which gives batch norm its statistics
    bed = Bed(net.eval(), x)
    (found,) = stale_batch_norm(bed.network, bed.sim.graph, bed.data)
    assert (found.place, found.cause, found.evidence["share"]) == ("0", "dead_channels", 1.0)


def test_an_input_in_other_units_is_not_a_layer_that_is_dead() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU()), torch.randn(128, 8)
    net(x)
    bed = Bed(net.eval(), x * 1e-6)
    (found,) = stale_batch_norm(bed.network, bed.sim.graph, bed.data)
    assert (found.place, found.cause, found.severity) == ("0", "stale_batch_norm", "error")
    assert "see first that inputs are" in found.remedy


def test_layers_behind_a_dead_one_are_no_findings() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].bias.fill_(-100)
    bed = Bed(model, torch.randn(64, 4))
    assert [f.place for f in dead_channels(bed.sim.graph, bed.sim.weight_points, bed.seen)] == ["0"]


def test_dead_channels_behind_a_join() -> None:
    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.c(torch.cat([self.a(x), self.b(x)], 1).relu())
            return y

    model = Join()
    with torch.no_grad():
        model.b.bias.fill_(-100)
    bed = Bed(model, torch.randn(64, 3, 4, 4))
    assert [f.place for f in dead_channels(bed.sim.graph, bed.sim.weight_points, bed.seen)] == ["b"]


def test_statistics_as_they_begin_are_a_proof() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
    with torch.no_grad():
        model[0].weight.mul_(10)
    bed = Bed(model, torch.randn(64, 3, 4, 4))
    (found,) = stale_batch_norm(bed.network, bed.sim.graph, bed.data)
    assert found.evidence["initial"] and "as they begin" in found.message


@pytest.mark.parametrize("grows", ["0", "2"])
def test_a_channel_far_too_large_is_named_where_it_grows(grows: str) -> None:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 24, 1)
    depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False)
    model = nn.Sequential(first, nn.ReLU(), depthwise, nn.ReLU(), nn.Conv2d(24, 4, 1))
    with torch.no_grad():
        model.get_submodule(grows).weight[5].mul_(300)
    for recipe in (MINMAX, replace(MINMAX, equalize=True)):
        bed = Bed(model, torch.randn(64, 3, 6, 6), recipe)
        assert [(f.place, f.cause) for f in exploded(bed.sim, bed.seen)] == [(grows, "exploded_channel")]


def test_what_the_recipe_names_has_too_few_bits_though_another_tensor_shares_the_range() -> None:
    class Join(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.c(torch.cat([self.a(x), self.b(x)], 1))
            return y

    torch.manual_seed(0)
    recipe = replace(MINMAX, overrides={"b": {"activation": {"bits": 2}}})
    found = intact8.doctor(Join().eval(), torch.randn(400, 3, 4, 4), recipe=recipe, remedies=False, seconds=0).findings
    assert (found[0].place, found[0].cause) == ("b", "few_bits")


# -- calibration data -----------------------------------------------------------------------------------------------


def test_quality_counts_what_is_different() -> None:
    x = uniform(96, 8)
    assert Bed(nn.Linear(8, 4), x, shown=x[:4].repeat(8, 1)).quality().distinct == 4


def test_quality_names_the_extreme_sample() -> None:
    x = uniform(96, 8)
    x[41] *= 30
    quality = Bed(nn.Linear(8, 4), uniform(96, 8), shown=x).quality()
    assert quality.extreme_sample == 41 and quality.extreme_ratio > 5


def smooth(count: int, seed: int) -> Tensor:
    """Pictures of which neighbours are alike."""
    x = torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(x, scale_factor=4.0, mode="bilinear")


def test_pictures_in_another_layout_are_strange() -> None:
    x, other = smooth(96, 0), smooth(96, 1)
    as_rows = other.permute(0, 2, 3, 1).reshape(other.shape)
    model = nn.Conv2d(3, 4, 3)
    same, quality = Bed(model, x, shown=other).quality(), Bed(model, x, shown=as_rows).quality()
    assert same.input_shift < 0.6 and same.strange < 0.3
    assert quality.input_shift > 1 and quality.strange > 0.9


def test_pictures_without_what_is_brightest_are_a_part_of_the_data() -> None:
    """Half of the data have a bright square; other contrast, whose smallest values are the same, is no such part."""
    x = smooth(256, 0)
    x = x - x.min()
    bright = x.clone()
    bright[:128, :, 4:12, 4:12] += 12
    model = nn.Conv2d(3, 4, 3)
    dark = Bed(model, bright, shown=x[128:]).quality()
    assert dark.part and name_calibration_fault(dark)[0] == "unrepresentative"
    pale = Bed(model, x, shown=0.4 * x[128:]).quality()
    assert not pale.part and name_calibration_fault(pale)[0] == "unlike_data"


def test_sentences_of_padding_are_strange() -> None:
    ids = torch.randint(0, 50, (128, 12), generator=torch.Generator().manual_seed(0))
    padded = ids.clone()
    padded[:, 3:] = 0
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 4))
    assert Bed(model, ids[:64], shown=ids[64:]).quality().strange < 0.3
    quality = Bed(model, ids[:64], shown=padded[64:]).quality()
    assert quality.input_shift > 1 and quality.strange > 0.9


def test_quality_of_batches() -> None:
    x = torch.randn(96, 8)
    assert Bed(nn.Linear(8, 4), x).quality().batch_dependence == pytest.approx(0, abs=1e-5)
    moving = Recipe(activation=Scheme(observer="moving_average", observer_args={"averaging_constant": 0.5}))
    dependence = Bed(nn.Linear(8, 4), x, moving).quality().batch_dependence
    assert dependence is not None and dependence > 0.1


def test_convergence_ends_at_one() -> None:
    curve = Bed(nn.Linear(8, 4), torch.randn(96, 8)).quality().convergence
    widths = [width for _, width in curve]
    assert curve[-1] == (96, 1.0) and widths == sorted(widths) and widths[0] < 1


# -- samples and reference ------------------------------------------------------------------------------------------


def test_division_is_disjoint_and_complete() -> None:
    x = torch.arange(300.0).reshape(100, 3)
    network = FloatNetwork(nn.Linear(3, 2), x[:2], CPU)
    samples = gather([(b, torch.zeros(len(b))) for b in x.split(30)], network.captured, CPU, 1000)
    parts = divide(samples, (0.25, 0.25, 0.5), 0, None)
    values = [torch.cat([b.inputs[0] for b in part])[:, 0].tolist() for part in parts]
    assert sorted(v for part in values for v in part) == x[:, 0].tolist()
    assert [len(part) for part in parts] == [len(v) for v in values]
    assert all(len(b.batch[1]) == len(b.inputs[0]) for part in parts for b in part)


def test_batches_of_one_sample_are_dealt_to_every_part() -> None:
    x = torch.arange(300.0).reshape(100, 3)
    network = FloatNetwork(nn.Linear(3, 2), x[:2], CPU)
    for size in (1, 2, 3):
        parts = divide(gather(x.split(size), network.captured, CPU, 1000), (0.25, 0.25, 0.5), 0, None)
        assert [len(part) for part in parts] == [25, 25, 50]
        assert sorted(v for part in parts for b in part for v in b.inputs[0][:, 0].tolist()) == x[:, 0].tolist()


def test_noise_is_the_error_over_the_signal() -> None:
    x = torch.randn(64, 8)
    model = nn.Linear(8, 4)
    bed = Bed(model, x)
    noise, metric = FloatOutputs(bed.sim, bed.data, "signal").noise(bed.sim)
    with torch.no_grad():
        y, other = model(x).double(), bed.sim(x).double()
    assert noise == pytest.approx(float((y - other).pow(2).sum() / y.pow(2).sum()), rel=1e-4)
    assert metric == pytest.approx(1 / (1 + noise))


def test_gather_stops_at_the_limit() -> None:
    network = FloatNetwork(nn.Linear(3, 2), torch.zeros(2, 3), CPU)
    endless = (torch.zeros(16, 3) for _ in iter(int, 1))
    found = gather(endless, network.captured, CPU, 40)
    assert isinstance(found, Samples) and len(found) == 40


def test_public_names() -> None:
    assert intact8.DoctorReport.__name__ == "DoctorReport" and callable(intact8.doctor)
