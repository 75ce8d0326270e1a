"""Quantization-aware training elsewhere: torch.ao FX (default and learned scales) and torchao pt2e.

Each is prepared and converted as its own documentation says. ``integers`` of a prepared (fake-quantized) and of a
converted network are lists of tensors in the order of the network, for comparison element by element.
"""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

Integers = list[Tensor]


# -- torch.ao FX ----------------------------------------------------------------------------------------------


def fx_prepare(model: nn.Module, example: Tensor) -> Any:
    """torch.ao FX QAT with the default qconfig of its x86 engine."""
    from torch.ao.quantization import get_default_qat_qconfig_mapping

    return _fx(model, get_default_qat_qconfig_mapping("x86"), example)


def learnable_prepare(model: nn.Module, calibration: Tensor, bits: int, activation_bits: int) -> Any:
    """torch.ao FX QAT with ``_LearnableFakeQuantize`` everywhere, gradients scaled as in LSQ.

    Scales and zero points start from min-max estimates on ``calibration`` and are parameters from then on.
    """
    from torch.ao import quantization as ao
    from torch.ao.quantization._learnable_fake_quantize import _LearnableFakeQuantize as Learnable

    activation = Learnable.with_args(
        observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=2**activation_bits - 1, dtype=torch.quint8,
        qscheme=torch.per_tensor_affine, use_grad_scaling=True,
    )  # fmt: skip
    top = 2 ** (bits - 1)

    def weight(channels: int) -> Any:
        return Learnable.with_args(
            observer=ao.PerChannelMinMaxObserver, quant_min=-top, quant_max=top - 1, dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric, ch_axis=0, channel_len=channels, use_grad_scaling=True,
        )  # fmt: skip

    mapping = ao.QConfigMapping().set_global(ao.QConfig(activation=activation, weight=weight(1)))
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            mapping.set_module_name(name, ao.QConfig(activation=activation, weight=weight(len(module.weight))))
    prepared = _fx(model, mapping, calibration[:2]).eval()
    learners = [m for m in prepared.modules() if isinstance(m, Learnable)]
    for learner in learners:
        learner.enable_static_estimate()
    with torch.no_grad():
        for x in calibration.split(32):
            prepared(x)
    for learner in learners:
        learner.enable_param_learning()
    return prepared


def _fx(model: nn.Module, mapping: Any, example: Tensor) -> Any:
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    torch.backends.quantized.engine = "x86"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prepare_qat_fx(copy.deepcopy(model).train(), mapping, (example,))


def fx_freeze_batch_norm(prepared: Any) -> None:
    """Running statistics from now on."""
    from torch.ao.nn.intrinsic.qat import freeze_bn_stats

    prepared.apply(freeze_bn_stats)


def fx_freeze_scales(prepared: Any) -> None:
    """Observers off."""
    from torch.ao.quantization import disable_observer

    prepared.apply(disable_observer)


def fx_convert(prepared: Any) -> Any:
    """The int8 network on the x86 engine."""
    from torch.ao.quantization.quantize_fx import convert_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert_fx(copy.deepcopy(prepared).eval())


def fx_prepared_integers(prepared: Any, x: Tensor) -> Integers:
    """What the fake-quantized network rounds its activations to."""
    from torch.ao.quantization import FakeQuantizeBase

    return _faked(prepared, x, FakeQuantizeBase)


def fx_converted_integers(converted: Any, x: Tensor) -> Integers:
    """Every quantized activation of the int8 network."""
    found: Integers = []

    class Record(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor) and value.is_quantized and n.op != "output":
                found.append(value.int_repr())
            return value

    Record(converted).run(x)
    return found


# -- torchao pt2e ---------------------------------------------------------------------------------------------


def pt2e_prepare(model: nn.Module, example: Tensor) -> Any:
    """torchao ``prepare_qat_pt2e`` with the default QAT configuration of X86InductorQuantizer."""
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(copy.deepcopy(model).train(), (example,), dynamic_shapes=({0: batch},)).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=True))
    return prepare_qat_pt2e(exported, quantizer)


def pt2e_mode(prepared: Any, training: bool) -> None:
    """What ``.train()`` and ``.eval()`` are for modules."""
    from torchao.quantization.pt2e import move_exported_model_to_eval, move_exported_model_to_train

    (move_exported_model_to_train if training else move_exported_model_to_eval)(prepared)


def pt2e_freeze_scales(prepared: Any) -> None:
    """Observers off."""
    from torchao.quantization.pt2e import disable_observer

    prepared.apply(disable_observer)


def pt2e_convert(prepared: Any) -> Any:
    """The network as quantize and dequantize operations, which is what inductor lowers."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    return convert_pt2e(copy.deepcopy(prepared))


def pt2e_prepared_integers(prepared: Any, x: Tensor) -> Integers:
    """What the fake-quantized network rounds its activations to."""
    from torchao.quantization.pt2e import FakeQuantizeBase

    return _faked(prepared, x, FakeQuantizeBase)


def pt2e_converted_integers(converted: Any, x: Tensor) -> Integers:
    """Every quantized activation of the network as inductor compiles it: the int8 kernels it would ship."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    with torch.no_grad():
        return list(_compiled(converted)(x))


@functools.lru_cache(maxsize=1)
def _compiled(converted: Any) -> Any:
    """With every quantized activation as an output instead of its own."""
    tapped = copy.deepcopy(converted)
    nodes = [n for n in tapped.graph.nodes if "quantized_decomposed.quantize_per_tensor" in str(n.target)]
    output = next(n for n in tapped.graph.nodes if n.op == "output")
    output.args = (tuple(nodes),)
    tapped.graph._codegen = torch.fx.graph.CodeGen()  # the exported structure of outputs no longer holds
    tapped.graph.eliminate_dead_code()
    tapped.recompile()
    return torch.compile(tapped)


# -- both -----------------------------------------------------------------------------------------------------


def _faked(prepared: Any, x: Tensor, kind: type) -> Integers:
    """round(y / scale) + zero point of every activation fake quantizer in the order of the graph."""
    found: Integers = []
    weights = {torch.qint8, torch.int8}

    def hook(module: Any, _: Any, y: Tensor) -> None:
        scale, zero_point = module.scale.detach(), module.zero_point.detach()
        found.append((y / scale + zero_point).round().clamp(module.quant_min, module.quant_max).to(torch.uint8))

    handles = []
    used = [prepared.get_submodule(n.target) for n in prepared.graph.nodes if n.op == "call_module"]
    for module in dict.fromkeys(used):  # tensors may share one
        if isinstance(module, kind) and module.dtype not in weights:
            handles.append(module.register_forward_hook(hook))
    with torch.no_grad():
        prepared(x)
    for handle in handles:
        handle.remove()
    return found


def differing(a: Integers, b: Integers) -> tuple[int, int]:
    """(integers, those that differ).

    Raises:
        ValueError: the networks do not have the same quantized tensors.
    """
    if [t.shape for t in a] != [t.shape for t in b]:
        raise ValueError(f"quantized tensors do not correspond: {[t.shape for t in a]}, {[t.shape for t in b]}")
    return sum(t.numel() for t in a), sum(int((p != q).sum()) for p, q in zip(a, b, strict=True))
