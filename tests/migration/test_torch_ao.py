"""Models of torch.ao keep their integers, and what changes is told."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.migration.networks import Plain, Residual, ao, converted, network, prepared, quantize_fx, samples
from torch import nn

import intact8

pytestmark = pytest.mark.filterwarnings("ignore")

MODES = ["eager ptq", "eager qat", "fx ptq", "fx qat"]


@pytest.mark.parametrize("stage", ["prepared", "converted"])
@pytest.mark.parametrize("mode", MODES)
def test_weights_and_ranges_are_kept(mode: str, stage: str) -> None:
    model = prepared(mode)
    there = converted(model) if stage == "converted" else model
    made = intact8.migrate(there, data=samples())
    report = made.report
    assert report.tool == f"torch.ao ({'FX' if 'fx' in mode else 'eager'}, {stage})"
    assert not report.floats and not report.observed and not report.requantized
    assert report.weights == 3 * 8 * 9 + 8 * 4 * 9 + 40
    assert report.weights_changed == 0
    assert all(abs(layer.scale / layer.scale_there - 1) < 0.02 for layer in report.layers if layer.scale_there)
    # The prepared model does not round what pooling gives, the converted one and the program do.
    before_pooling = [layer for layer in report.layers if layer.name in ("conv1", "conv2", "add")]
    assert all(layer.values > 0 and layer.differ <= 0.03 * layer.values for layer in before_pooling)
    assert all(layer.largest <= 3 for layer in before_pooling)
    assert intact8.verify(made.program, samples(8), sim=made.simulation).mismatches == 0
    with torch.no_grad():
        y = there(samples())
    error = made.program.run(samples()) - y
    assert float(error.abs().max()) < 0.1 * float(y.abs().max())


@pytest.mark.long
@pytest.mark.parametrize("mode", ["eager ptq", "fx ptq"])
def test_observed_tensors_are_clamped_where_converted_ones_are(mode: str) -> None:
    model = prepared(mode)
    x = 2 * samples()  # beyond the range that was observed
    before, after = (intact8.migrate(m, example_inputs=x[:2]).program for m in (model, converted(model)))
    assert [op.attrs.get("hi") for op in before.ops] == [op.attrs.get("hi") for op in after.ops]
    assert max(op.attrs.get("hi", 0) for op in before.ops) == 255


def test_layers_whose_weights_become_coarser_are_named() -> None:
    model = network(Residual)
    with torch.no_grad():
        model.fc.weight[0] *= 800
    report = intact8.migrate(converted(prepared("eager ptq", model=model)), data=samples()).report
    (layer,) = [layer for layer in report.layers if layer.raised]
    assert (layer.name, layer.raised, layer.channels) == ("fc", 1, 5)
    assert layer.weights_changed and layer.weights_sqnr is not None and layer.weights_sqnr > 20
    assert f"fc ({layer.raised} of 5)" in str(report)


def test_the_model_is_not_changed() -> None:
    model = prepared("eager qat")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    intact8.migrate(model, data=samples())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_without_data_nothing_is_compared() -> None:
    report = intact8.migrate(converted(prepared("eager ptq")), example_inputs=samples(2)).report
    assert report.outputs_sqnr is None and all(layer.values == 0 for layer in report.layers)
    assert "conv1" in str(report)


def test_the_integers_of_a_converted_weight_are_those_of_the_program() -> None:
    there = converted(prepared("eager ptq"))
    program = intact8.migrate(there, example_inputs=samples(2)).program
    weight = next(op.arrays["weight"] for op in program.ops if op.name == "conv1")
    assert np.array_equal(weight, there.conv1.weight().int_repr().numpy())


def test_what_was_not_calibrated_is_named() -> None:
    ao = torch.ao.quantization
    model = Residual().eval()
    model.qconfig = ao.get_default_qconfig("fbgemm")
    with pytest.raises(intact8.InputError, match=r"quant: this observer has seen no data"):
        intact8.migrate(ao.prepare(model), example_inputs=samples(2))


def test_a_float_model_is_refused() -> None:
    with pytest.raises(intact8.InputError, match="nothing in this model is quantized"):
        intact8.migrate(nn.Linear(2, 2), example_inputs=torch.zeros(1, 2))


def test_quantize_says_which_call_to_use() -> None:
    with pytest.raises(intact8.InputError, match=r"intact8\.migrate"):
        intact8.quantize(converted(prepared("fx ptq")), samples())


def test_quantize_says_what_files_and_state_dicts_are() -> None:
    linear, x = nn.Linear(2, 2), torch.zeros(1, 2)
    exported = torch.export.export(linear, (x,))
    for given in ("net.onnx", "net.xml", "net.pt2", exported):
        with pytest.raises(intact8.InputError, match=r"intact8\.migrate on"):
            intact8.quantize(given, x)
    for given in ("net.pth", linear.state_dict(), torch.jit.script(linear)):
        with pytest.raises(intact8.InputError, match=r"intact8\.migrate\(float_model"):
            intact8.quantize(given, x)
    for given in (torch.ao.quantization.default_qconfig, torch.ao.quantization.get_default_qconfig_mapping("x86")):
        with pytest.raises(intact8.RecipeError, match="recipe_of"):
            intact8.quantize(linear, x, given)


class Idle(Residual):
    """The same with a functional that is never called, as blocks of torchvision have."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = type(self.skip)()


def test_functionals_that_are_never_called_need_no_range() -> None:
    ao = torch.ao.quantization
    model = Idle().eval()
    model.qconfig = ao.get_default_qconfig("fbgemm")
    model = ao.prepare(model)
    model(samples())
    assert intact8.migrate(model, example_inputs=samples(2)).report.weights == 544


class Before(nn.Module):
    """Batch norms that nothing fuses: before a convolution, and between two, one factor negative."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.bn0, self.conv1, self.bn1 = nn.BatchNorm2d(3), nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.relu, self.conv2 = nn.ReLU(), nn.Conv2d(8, 4, 1)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(self.bn0(self.quant(x)))))
        return self.dequant(self.conv2(y))


def test_batch_norms_with_grids_of_their_own_stay_out_of_the_weights() -> None:
    torch.manual_seed(0)
    model, x = Before().train(), samples()
    model.bn1.weight.data[:3] = -1
    model(x)
    model.eval().qconfig = ao.get_default_qconfig("fbgemm")
    model = ao.prepare(model)
    model(x)
    for source in (model, converted(model)):
        made = intact8.migrate(source, data=x, samples=16)
        assert made.report.weights == 56 and made.report.weights_changed == 0 and not made.report.notes
        assert intact8.verify(made.program, x[:8], sim=made.simulation).mismatches == 0
    y = converted(model)(x)
    assert float((made.program.run(x) - y).abs().max()) < 0.06 * float(y.abs().max())


def test_a_reference_graph_keeps_its_integers() -> None:
    model, x = prepared("fx ptq"), samples()
    made = intact8.migrate(quantize_fx.convert_to_reference_fx(copy.deepcopy(model)), data=x, samples=16)
    assert made.report.weights == 544 and made.report.weights_changed == 0 and not made.report.floats
    assert intact8.verify(made.program, x[:8], sim=made.simulation).mismatches == 0


def test_what_has_no_grid_of_eight_bits_is_refused() -> None:
    wide = ao.MinMaxObserver.with_args(dtype=torch.int16, quant_min=-32768, quant_max=32767)
    model = prepared("eager ptq", ao.QConfig(wide, ao.default_weight_observer))
    with pytest.raises(intact8.InputError, match="quant: an activation of int16"):
        intact8.migrate(model, example_inputs=samples(2))
    with pytest.raises(intact8.InputError, match="TorchScript module.*float_model, path"):
        intact8.migrate(torch.jit.script(nn.Linear(2, 2)), example_inputs=samples(2))
    with pytest.raises(intact8.InputError, match="activation_post_process_0: observers of an FX model"):
        intact8.migrate(Plain(), prepared("fx ptq").state_dict(), example_inputs=samples(2))


@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_what_torchao_quantizes_in_place_keeps_its_integers(kind: str) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    rows = torch.randn(64, 64)
    exact = model(rows)
    torchao.quantize_(model, getattr(torchao, kind)())
    made = intact8.migrate(model, data=rows)
    assert made.report.weights == 2176 and made.report.weights_changed == 0 and not made.report.floats
    y = model(rows)
    # Dynamic rows are rounded here and there, each by itself, so by no more than √2 times what either of them costs.
    assert float((made.program.run(rows) - y).norm()) < math.sqrt(2) * float((exact - y).norm())
    torchao.quantize_(blocked := nn.Linear(64, 32), torchao.Int8DynamicActivationIntxWeightConfig())
    with pytest.raises(intact8.InputError, match="its weight has 64 scales for 32 rows"):
        intact8.migrate(blocked, data=rows)


@pytest.mark.parametrize("module", [nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8), nn.PReLU(8)], ids=repr)
def test_norms_of_instances_and_prelu_are_read(module: nn.Module) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(3, 8, 3), module, nn.Conv2d(8, 4, 1)).eval(), torch.randn(32, 3, 8, 8)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(0.2, 1.5)
    there = quantize_fx.prepare_fx(copy.deepcopy(net), ao.get_default_qconfig_mapping("fbgemm"), (x[:2],))
    there(x)
    made = intact8.migrate(quantize_fx.convert_fx(there), data=x)
    error = torch.as_tensor(made.program.run(x)) - net(x)
    assert made.report.weights_changed == 0 and float(error.square().mean() / net(x).square().mean()) < 1e-2
