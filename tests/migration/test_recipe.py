"""QConfigs and their kin as recipes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.migration.networks import Plain, ao, samples
from torch import nn

import intact8
from intact8.migration.recipe import recipe_of

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_qconfig() -> None:
    recipe = recipe_of(ao.get_default_qconfig("fbgemm"))
    assert recipe.activation.observer == "histogram" and recipe.activation.range == (0, 127)
    assert recipe.weight.granularity == "per_channel" and recipe.weight.range == (-127, 127)
    recipe = recipe_of(ao.get_default_qconfig("qnnpack"))
    assert recipe.activation.range == (0, 255) and recipe.weight.granularity == "per_tensor"


def test_configs_for_training() -> None:
    recipe = recipe_of(ao.get_default_qat_qconfig("fbgemm"))
    assert recipe.scales == "observed" and recipe.activation.observer == "moving_average"
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize as Learnable

    activation = Learnable.with_args(observer=ao.MinMaxObserver, dtype=torch.quint8, quant_min=0, quant_max=255)
    weight = Learnable.with_args(
        observer=ao.MinMaxObserver, dtype=torch.qint8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_symmetric
    )
    assert recipe_of(ao.QConfig(activation, weight)).scales == "learned"


def test_dynamic_quantization() -> None:
    assert recipe_of(ao.default_dynamic_qconfig).mode == "dynamic"


def test_a_mapping_makes_a_program() -> None:
    mapping = ao.get_default_qconfig_mapping("x86").set_module_name("fc", None)
    mapping.set_object_type(nn.Conv2d, ao.get_default_qconfig("qnnpack")).set_module_name("absent", None)
    model = Plain().eval()
    recipe = recipe_of(mapping, model)
    assert [(rule.match, rule.quantize) for rule in recipe.rules] == [("type:Conv2d", None), ("fc", False)]
    program = intact8.quantize(model, samples(), recipe)
    kinds = {op.name: op.kind for op in program.ops}
    assert kinds["conv1"] == "conv" and kinds["fc"] == "float.linear"


def test_a_backend_config() -> None:
    from torch.ao.quantization.backend_config import get_native_backend_config

    assert recipe_of(get_native_backend_config(), Plain()).activation.range == (0, 255)


class Specification:
    """What PT2E calls a QuantizationSpec."""

    def __init__(self, dtype: torch.dtype, low: int, high: int, scheme: torch.qscheme, observer: Any) -> None:
        self.dtype, self.quant_min, self.quant_max, self.qscheme = dtype, low, high, scheme
        self.observer_or_fake_quant_ctr, self.is_dynamic = observer, False


def test_a_pt2e_quantizer() -> None:
    class Config:
        input_activation = Specification(torch.int8, -128, 127, torch.per_tensor_affine, ao.HistogramObserver)
        weight = Specification(torch.int8, -127, 127, torch.per_channel_symmetric, ao.PerChannelMinMaxObserver)

    quantizer = SimpleNamespace(global_config=Config(), module_name_qconfig={"fc": None})
    recipe = recipe_of(quantizer, Plain())
    assert recipe.activation.dtype == "int8" and recipe.activation.range == (-128, 127)
    assert [(rule.match, rule.quantize) for rule in recipe.rules] == [("fc", False)]


def test_quantizers_of_torchao() -> None:
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as inductor

    quantizer = inductor.X86InductorQuantizer()
    quantizer.set_global(inductor.get_default_x86_inductor_quantization_config(is_qat=True))
    recipe = recipe_of(quantizer.set_module_name_qconfig("conv1", None), Plain())
    assert recipe.activation.range == (0, 255) and recipe.scales == "observed"
    assert [rule.match for rule in recipe.rules] == ["conv1"]


WIDE = ao.MinMaxObserver.with_args(dtype=torch.qint32)


@pytest.mark.parametrize(
    ("qconfig", "reason"),
    [
        (
            ao.QConfig(WIDE, ao.default_weight_observer),
            "activations of int32",
        ),
        (ao.QConfig(ao.MinMaxObserver, ao.MinMaxObserver.with_args(dtype=torch.quint8)), "weights of uint8"),
        (ao.QConfig(ao.MinMaxObserver, ao.MinMaxObserver.with_args(dtype=torch.qint8)), "int8 with a zero point"),
        (object(), "no recipe comes of a object"),
    ],
    ids=["int32", "uint8 weights", "affine weights", "anything"],
)
def test_what_cannot_be_had_is_refused(qconfig: Any, reason: str) -> None:
    with pytest.raises(intact8.RecipeError, match=reason):
        recipe_of(qconfig)
