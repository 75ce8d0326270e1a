"""Faults of torch.ao.quantization, eager and FX, and the same models without them. Adds to the table of ``cases``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao import quantization as ao
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

from .cases import clean, faulty
from .networks import Chain, images, network


@contextmanager
def quiet() -> Iterator[None]:
    """torch.ao says on every call that it is deprecated; its engine is fbgemm within."""
    before = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.quantized.engine = "fbgemm"
        try:
            yield
        finally:
            torch.backends.quantized.engine = before


def quietly(case: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with quiet():
            return case(*args, **kwargs)

    run.__name__ = case.__name__
    return run


def floats() -> nn.Module:
    """Stubs around a convolution, batch norm, ReLU and a linear layer."""
    torch.manual_seed(1)
    return Chain(
        quant=ao.QuantStub(), conv=nn.Conv2d(3, 8, 3), bn=nn.BatchNorm2d(8), relu=nn.ReLU(), flatten=nn.Flatten(),
        fc=nn.Linear(8 * 36, 4), dequant=ao.DeQuantStub(),
    )  # fmt: skip


FUSED = [["conv", "bn", "relu"]]
FINE = ao.QConfig(
    activation=ao.HistogramObserver.with_args(reduce_range=False),
    weight=ao.PerChannelMinMaxObserver.with_args(
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-127, quant_max=127
    ),
)
FINE_QAT = ao.QConfig(
    activation=ao.FakeQuantize.with_args(observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255),
    weight=ao.FakeQuantize.with_args(
        observer=ao.PerChannelMinMaxObserver, quant_min=-127, quant_max=127, dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
    ),
)  # fmt: skip


@quietly
def ptq(model: nn.Module | None = None, qconfig: Any = FINE, run: bool = True) -> nn.Module:
    """Prepared for post-training quantization, and calibrated."""
    if model is None:
        model = ao.fuse_modules(floats().eval(), FUSED)
    model.eval().qconfig = qconfig
    prepared = ao.prepare(model)
    if run:
        prepared(images())
    return prepared


@quietly
def qat(qconfig: Any = FINE_QAT, run: bool = True) -> nn.Module:
    """Prepared for training; one batch went through."""
    model = ao.fuse_modules_qat(floats().train(), FUSED)
    model.qconfig = qconfig
    prepared = ao.prepare_qat(model)
    if run:
        prepared(images()).sum().backward()
    return prepared


@clean(
    "IQ101", "IQ102", "IQ201", "IQ204", "IQ205", "IQ301", "IQ308", "IQ401", "IQ403", "IQ404", "IQ405", "IQ406", "IQ451",
    "IQ501", "IQ508", "IQ701", "IQ703", "IQ705", "IQ706", "IQ707", "IQ708",
)  # fmt: skip
def fine_ptq() -> tuple[Any, dict[str, Any]]:
    return ptq(), {"data": images(2)}


@clean("IQ201", "IQ302", "IQ706", "IQ707")
@quietly
def fine_converted() -> tuple[Any, dict[str, Any]]:
    return ao.convert(ptq(qconfig=ao.get_default_qconfig("fbgemm"))), {}


@clean("IQ309", "IQ502", "IQ503", "IQ508", "IQ702", "IQ703", "IQ704", "IQ707")
def fine_qat() -> tuple[Any, dict[str, Any]]:
    return qat(), {}


@clean("IQ201", "IQ202", "IQ203", "IQ204", "IQ701", "IQ707")
@quietly
def fine_fx() -> tuple[Any, dict[str, Any]]:
    prepared = prepare_fx(network(), ao.get_default_qconfig_mapping("fbgemm"), images(1))
    prepared(images())
    return convert_fx(prepared), {}


# -- rules that other kinds of models have, too ---------------------------------------------------------------------


@faulty("IQ201")
@quietly
def a_layer_without_qconfig() -> tuple[Any, dict[str, Any]]:
    model = ao.fuse_modules(floats().eval(), FUSED)
    model.qconfig, model.fc.qconfig = FINE, None
    return ao.convert(ao.prepare(model)), {}


@faulty("IQ204")
@faulty("IQ205")
def nothing_fused() -> tuple[Any, dict[str, Any]]:
    return ptq(floats()), {}


@faulty("IQ203")
def stubs_around_a_pool() -> tuple[Any, dict[str, Any]]:
    model = Chain(
        quant=ao.QuantStub(), conv=nn.Conv2d(3, 3, 1), dequant=ao.DeQuantStub(), pool=nn.MaxPool2d(2),
        quant2=ao.QuantStub(), conv2=nn.Conv2d(3, 3, 1), dequant2=ao.DeQuantStub(),
    )  # fmt: skip
    return ptq(model), {}


@faulty("IQ204")
@quietly
def a_relu6_in_fx() -> tuple[Any, dict[str, Any]]:
    model = Chain(conv=nn.Conv2d(3, 4, 1), relu=nn.ReLU6()).eval()
    return prepare_fx(model, ao.get_default_qconfig_mapping("fbgemm"), images(1)), {}


class Unused(nn.Module):
    """A block that has a FloatFunctional for a residual it does not add."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant, self.conv = ao.QuantStub(), ao.DeQuantStub(), nn.Conv2d(3, 3, 1)
        self.skip = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dequant(self.conv(self.quant(x)))
        return out


@clean("IQ301")
def a_functional_nobody_calls() -> tuple[Any, dict[str, Any]]:
    return ptq(Unused()), {}


@clean("IQ302")
@quietly
def the_same_converted() -> tuple[Any, dict[str, Any]]:
    return ao.convert(ptq(Unused())), {}


@clean("IQ204")
@quietly
def shared_observers_in_fx() -> tuple[Any, dict[str, Any]]:
    """Pooling shares the observer of its input, which then has two names."""
    model = Chain(conv=nn.Conv2d(3, 4, 1), relu=nn.ReLU(), pool=nn.MaxPool2d(2), fc=nn.Conv2d(4, 4, 1)).eval()
    return prepare_fx(model, ao.get_default_qconfig_mapping("fbgemm"), images(1)), {}


@faulty("IQ301")
def prepared_only() -> tuple[Any, dict[str, Any]]:
    return ptq(run=False), {}


@faulty("IQ302")
@quietly
def converted_at_once() -> tuple[Any, dict[str, Any]]:
    return ao.convert(ptq(run=False)), {}


@faulty("IQ308")
def moving_averages_in_ptq() -> tuple[Any, dict[str, Any]]:
    return ptq(qconfig=ao.QConfig(ao.MovingAverageMinMaxObserver, FINE.weight)), {}


@faulty("IQ406")
@quietly
def symmetric_that_became_affine() -> tuple[Any, dict[str, Any]]:
    return ramp(), {}


@faulty("IQ451")
@quietly
def per_tensor_in_torch_ao() -> tuple[Any, dict[str, Any]]:
    model = ao.fuse_modules(floats().eval(), FUSED)
    model.conv[0].weight.data[2] *= 1000
    weight = ao.MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
    return ptq(model, ao.QConfig(FINE.activation, weight)), {}


@faulty("IQ453")
def eight_bits_of_both() -> tuple[Any, dict[str, Any]]:
    return ptq(), {}


@clean("IQ453")
@quietly
def activations_of_seven_bits() -> tuple[Any, dict[str, Any]]:
    return ptq(qconfig=ao.get_default_qconfig("fbgemm")), {}


@faulty("IQ501")
@faulty("IQ508")
def observers_on_in_evaluation() -> tuple[Any, dict[str, Any]]:
    model = qat().eval()
    model.zero_grad()
    return model, {}


@clean("IQ501")
@quietly
def observers_off_in_evaluation() -> tuple[Any, dict[str, Any]]:
    return qat().eval().apply(ao.disable_observer), {}


@faulty("IQ502")
@quietly
def fake_quantization_off() -> tuple[Any, dict[str, Any]]:
    return qat().apply(ao.disable_fake_quant), {}


@faulty("IQ503")
@quietly
def live_batch_norm_in_torch_ao() -> tuple[Any, dict[str, Any]]:
    return qat().apply(ao.disable_observer), {}


@clean("IQ503")
@quietly
def frozen_batch_norm_in_torch_ao() -> tuple[Any, dict[str, Any]]:
    return qat().apply(ao.disable_observer).apply(torch.ao.nn.intrinsic.qat.freeze_bn_stats), {}


LEARNABLE = ao.QConfig(
    activation=_LearnableFakeQuantize.with_args(
        observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, scale=0.1, zero_point=0.0
    ),
    weight=FINE_QAT.weight,
)


@quietly
def learnable(**toggles: bool) -> nn.Module:
    model = qat(LEARNABLE)
    for m in model.modules():
        if isinstance(m, _LearnableFakeQuantize):
            m.enable_param_learning()
            for name, on in toggles.items():
                getattr(m, name)[0] = int(on)
    return model


@clean("IQ504", "IQ505", "IQ506", "IQ507", "IQ710")
def learnable_scales() -> tuple[Any, dict[str, Any]]:
    model = learnable(observer_enabled=False)
    return model, {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


@faulty("IQ504")
@faulty("IQ505")
def optimizer_before_prepare_qat() -> tuple[Any, dict[str, Any]]:
    return learnable(), {"optimizer": torch.optim.SGD(floats().parameters(), lr=0.1)}


@faulty("IQ506")
def learning_without_gradient() -> tuple[Any, dict[str, Any]]:
    model = learnable()
    model.quant.activation_post_process.scale.requires_grad_(False)
    return model, {}


@faulty("IQ710")
def switched_off_with_the_wrong_switch() -> tuple[Any, dict[str, Any]]:
    return learnable(static_enabled=True, learning_enabled=False, observer_enabled=False), {}


@faulty("IQ710")
def observing_and_learning() -> tuple[Any, dict[str, Any]]:
    return learnable(static_enabled=True, observer_enabled=True), {}


# -- torch.ao only --------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """The block of the in-depth article, as printed there. Its shapes do not fit, but it can be traced and fused."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 5, 3)
        self.conv2 = nn.Conv2d(5, 5, 3)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.conv1(x)
        x1 = self.relu(x1)
        x2 = self.conv2(x)
        x3 = x + x2
        output: Tensor = self.relu(x3)
        return output


@faulty("IQ701")
@quietly
def the_block_fused_by_name() -> tuple[Any, dict[str, Any]]:
    return ao.fuse_modules(Block().eval(), [["conv1", "relu"]]), {}


@faulty("IQ701")
@quietly
def the_wrong_relu() -> tuple[Any, dict[str, Any]]:
    model = Chain(conv=nn.Conv2d(3, 3, 1), conv2=nn.Conv2d(3, 3, 1), relu=nn.ReLU()).eval()
    return ao.fuse_modules(model, [["conv", "relu"]]), {}


@clean("IQ701")
@quietly
def an_identity_of_the_users_own() -> tuple[Any, dict[str, Any]]:
    model = Chain(shortcut=nn.Identity(), conv=nn.Conv2d(3, 3, 1), relu=nn.ReLU()).eval()
    return ao.fuse_modules(model, [["conv", "relu"]]), {}


@quietly
def ramp(fused: bool = True) -> nn.Module:
    """The 0 … 255 ramp: 1×1 convolution of weight 1.0·I and ReLU, quint8 activations, per-tensor int8 weights."""
    fake = ao.FusedMovingAvgObsFakeQuantize if fused else ao.FakeQuantize
    model = Chain(quant=ao.QuantStub(), conv=nn.Conv2d(3, 3, 1), relu=nn.ReLU(), dequant=ao.DeQuantStub()).train()
    with torch.no_grad():
        model.conv.weight.copy_(torch.eye(3)[:, :, None, None])
        model.conv.bias.zero_()
    low = -128 if fused else -127
    model.qconfig = ao.QConfig(
        activation=fake.with_args(observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255),
        weight=fake.with_args(
            observer=ao.MovingAverageMinMaxObserver, quant_min=low, quant_max=127, dtype=torch.qint8,
            qscheme=torch.per_tensor_symmetric,
        ),
    )  # fmt: skip
    prepared = ao.prepare_qat(ao.fuse_modules_qat(model, [["conv", "relu"]]))
    prepared((torch.arange(256) / 255).expand(1, 3, 256, 256).contiguous())
    return prepared.apply(ao.disable_observer).eval()


@faulty("IQ702")
@faulty("IQ703")
@faulty("IQ704")
def the_ramp() -> tuple[Any, dict[str, Any]]:
    return ramp(), {}


@faulty("IQ702")
@quietly
def the_default_settings() -> tuple[Any, dict[str, Any]]:
    """Zero points agree here, scales differ by 0.4 %."""
    return qat(ao.get_default_qat_qconfig("fbgemm")), {}


@clean("IQ702", "IQ703", "IQ704")
def the_ramp_with_one_formula() -> tuple[Any, dict[str, Any]]:
    return ramp(fused=False), {}


class Residual(nn.Module):
    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.quant, self.dequant, self.conv = ao.QuantStub(), ao.DeQuantStub(), nn.Conv2d(3, 3, 1)
        self.functional = functional
        self.add = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        x = self.quant(x)
        y = self.conv(x)
        out: Tensor = self.dequant(self.add.add(x, y) if self.functional else x + y)
        return out


@faulty("IQ705")
def a_plus_sign() -> tuple[Any, dict[str, Any]]:
    return ptq(Residual(functional=False)), {}


@clean("IQ705", "IQ706", "IQ708", "IQ709")
def a_functional() -> tuple[Any, dict[str, Any]]:
    return ptq(Residual(functional=True)), {}


@faulty("IQ706")
def no_stub_at_the_beginning() -> tuple[Any, dict[str, Any]]:
    return ptq(Chain(conv=nn.Conv2d(3, 3, 1), dequant=ao.DeQuantStub())), {}


@faulty("IQ706")
def no_stub_at_the_end() -> tuple[Any, dict[str, Any]]:
    return ptq(Chain(quant=ao.QuantStub(), conv=nn.Conv2d(3, 3, 1))), {}


@faulty("IQ707")
@quietly
def trained_then_prepared_again() -> tuple[Any, dict[str, Any]]:
    """The ResNet18 notebook: after training, wrapped in stubs and prepared for post-training quantization."""
    model = Chain(q=ao.QuantStub(), m=qat(), dq=ao.DeQuantStub()).eval()
    model.qconfig = ao.get_default_qconfig("fbgemm")
    return ao.prepare(model), {}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant, self.add = ao.QuantStub(), ao.DeQuantStub(), FloatFunctional()
        self.scale = FloatFunctional()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.dequant(self.add.add(self.quant(x), self.scale.mul_scalar(self.quant(y), 0.5)))
        return out


@faulty("IQ708")
@faulty("IQ709")
def one_stub_for_two_tensors() -> tuple[Any, dict[str, Any]]:
    return ptq(TwoInputs(), run=False), {}
