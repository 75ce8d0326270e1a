"""IQ1xx: the float model, before anything is quantized."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import MODEL, PROGRAM, SIMULATION, TORCH_AO, Hit, first_of, rule


@rule("IQ101", "note", MODEL, TORCH_AO)
def reused_module(subject: Any) -> Iterator[Hit]:
    """One module is called more than once in a forward.

    Tools that fuse by name (torch.ao eager) put a reused ReLU into the first convolution and an identity in its place,
    which removes it from its other places too. Tools that observe by module give all calls one range. intact8 works on
    calls: every call has its own name and its own scale, so that a reused module does no harm there. An override by
    module name means all calls of the module.

    Modules without parameters are listed together; a module with weights that is called twice gets a finding of its
    own, because its weights then serve inputs of different ranges.

    Needs data: one sample, to count calls.

    Remedy: give every call a module of its own, or quantize with intact8, whose fusion goes by calls and not by names
    """
    leaves = dict(subject.module.named_modules())
    reused = {name: n for name, n in subject.calls.items() if n > 1 and "activation_post_process" not in name}
    plain = [name for name in reused if not any(True for _ in leaves[name].parameters())]
    for name, count in reused.items():
        if name not in plain:
            yield Hit(f"a module with weights is called {count} times", module=name, data={"calls": count})
    if plain:
        data = {"modules": plain, "calls": [reused[name] for name in plain]}
        yield Hit(f"called more than once: {first_of(plain)}", module=plain[0], data=data)


@rule("IQ102", "error", MODEL, SIMULATION, TORCH_AO)
def non_leaf_state(subject: Any) -> Iterator[Hit]:
    """A module keeps a tensor that belongs to an autograd graph.

    Such a tensor (an intermediate feature stored on ``self`` for a loss, say) cannot be deep-copied, so that copying,
    preparing in torch.ao or converting the model fails; and it keeps the whole graph of that forward in memory.

    Remedy: store x.detach(), or hand the tensor out of forward instead of keeping it in the module
    """
    for path, module in subject.module.named_modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if getattr(value, "grad_fn", None) is not None and hasattr(value, "is_leaf") and not value.is_leaf:
                message = f"a tensor made by {type(value.grad_fn).__name__} is kept"
                yield Hit(message, module=path, tensor=f"{path}.{name}" if path else name)


@rule("IQ103", "error", MODEL, SIMULATION, TORCH_AO)
def several_devices(subject: Any) -> Iterator[Hit]:
    """Parameters and buffers lie on more than one device.

    Capture and calibration run the model on one device, and integer engines run on the CPU. A model that was moved
    before something was attached to it (observers, a new head) is the usual case.

    Remedy: move the whole model, model.to(device), before it is quantized; integer kernels of torch.ao run on the CPU
    """
    first: dict[str, str] = {}
    for name, tensor in [*subject.module.named_parameters(), *subject.module.named_buffers()]:
        first.setdefault(str(tensor.device), name)
    if len(first) > 1:
        listed = ", ".join(f"{name} on {device}" for device, name in first.items())
        yield Hit(f"tensors on {len(first)} devices: {listed}", tensor=list(first.values())[1], data=first)


@rule("IQ104", "error", MODEL, SIMULATION, TORCH_AO)
def non_finite_weights(subject: Any) -> Iterator[Hit]:
    """A parameter, or a statistic of batch norm, holds NaN or infinity.

    No scale can be computed from it. In torch.ao it becomes a scale of NaN and a layer of zeros without a message.

    Remedy: load the right checkpoint, or find the training step that diverged
    """
    skipped = ("quantizers.", "constants.")  # scales have rules of their own
    buffers = [(n, t) for n, t in subject.module.named_buffers() if n.endswith(("running_mean", "running_var"))]
    for name, tensor in [*subject.module.named_parameters(), *buffers]:
        if name.startswith(skipped) or not tensor.is_floating_point() or tensor.is_meta:
            continue
        bad = int((~tensor.detach().isfinite()).sum())
        if bad:
            yield Hit(f"{bad} of {tensor.numel()} values are not finite", tensor=name, data={"values": bad})


@rule("IQ105", "error", MODEL)
def not_capturable(subject: Any) -> Iterator[Hit]:
    """The model cannot be captured as a graph.

    ``torch.export`` follows the forward; it stops at control flow that depends on values, at outputs of unknown types
    and at tensors that change shape. The message quotes torch and names the module where it happened.

    Needs data: example inputs.

    Remedy: take the data-dependent control flow out of forward, or quantize the part of the model without it
    """
    error = subject.capture_error
    if error is not None:
        yield Hit(error.what + (f": {error.why}" if error.why else ""), module=error.where, remedy=error.remedy)


@rule("IQ106", "note", MODEL)
def recurrent_layers(subject: Any) -> Iterator[Hit]:
    """The model has LSTM, GRU or RNN layers, for which dynamic quantization is the usual path.

    Static int8 fixes the range of every activation beforehand; the state of a recurrent layer is fed back, and its
    range drifts with the length of the input. As a rule of thumb, dynamic quantization suits recurrent and large linear
    layers on a CPU, static quantization convolutional networks.

    Remedy: measure recipe="dynamic" beside the recipe you chose
    """
    for path, module in subject.module.named_modules():
        if any(cls.__name__ == "RNNBase" for cls in type(module).__mro__):
            yield Hit(f"the state of {type(module).__name__} is fed back: its range depends on the length", module=path)


@rule("IQ107", "error", MODEL)
def quantized_already(subject: Any) -> Iterator[Hit]:
    """The float model holds a simulation: preparing it again would quantize twice.

    Every tensor would be rounded to two grids, and scales that were learned would be observed anew and lost. The
    notebook pattern is a trained, prepared network wrapped in a new module and prepared a second time.

    Remedy: prepare the original float model; to go on with a simulation, use the simulation itself
    """
    for path, module in subject.module.named_modules():
        if path and type(module).__name__ == "Simulation" and hasattr(module, "points"):
            yield Hit("a submodule is a simulation already", module=path)


@rule("IQ108", "warning", MODEL)
def huge_bias(subject: Any) -> Iterator[Hit]:
    """A bias is so much larger than what the weights can produce that the output's range is all bias.

    With 8 bits the result then has few levels left for what varies. The rule compares the largest bias with the sum of
    magnitudes of its row, which is what inputs of magnitude 1 can reach at most, and reports a hundred times that.

    Remedy: normalize the inputs of the layer, or leave it float with overrides={'…': None}
    """
    for path, module in subject.module.named_modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if weight is None or bias is None or not hasattr(weight, "dim") or weight.dim() < 2 or weight.is_meta:
            continue
        reach = weight.detach().abs().flatten(1).sum(1)
        if reach.shape != bias.shape or not bool((reach > 0).any()):
            continue
        ratio = float((bias.detach().abs() / reach.clamp(min=1e-30))[reach > 0].max())
        if math.isfinite(ratio) and ratio > 100:
            message = f"the bias is up to {ratio:.0f} times what the weights reach with inputs of magnitude 1"
            yield Hit(message, module=path, tensor=f"{path}.bias", data={"ratio": ratio})


@rule("IQ109", "warning", MODEL)
def training_mode(subject: Any) -> Iterator[Hit]:
    """A batch norm or a dropout of the float model is in training mode.

    What is quantized, and what the other rules look at, is what the model computes after ``model.eval()``. Every other
    call of the model as it is, such as one that measures its accuracy, answers by chance or by the other samples of the
    batch, and moves the statistics of its batch norms. Nothing is wrong where the model is about to be trained.

    Remedy: call model.eval() first
    """
    from intact8.simulation.prepare import in_training_mode

    names = in_training_mode(subject.module)
    if names:
        message = f"in training mode: {first_of([name or 'the model itself' for name in names])}"
        yield Hit(message, module=names[0], data={"modules": names})


@rule("IQ110", "warning", MODEL, SIMULATION, PROGRAM)
def unread_input(subject: Any) -> Iterator[Hit]:
    """An input is given and nothing is computed with its values.

    A padding mask that a forward takes and forgets to hand on is the usual case: results then depend on the padding,
    and so on what else is in the batch. Another is an input that was exchanged for a second one by mistake. An input
    of which only the size is used is reported as well.

    Needs data: example inputs.

    Remedy: hand it on to what should read it, or take it out of the forward's arguments
    """
    read = {name for node in subject.graph.nodes for name in node.inputs} | subject.graph.outputs
    for node in subject.graph.nodes:
        if node.op == "input" and node.name not in read:
            yield Hit("no operation reads the values of this input", node=node.name)
