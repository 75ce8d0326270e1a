"""IQ7xx: faults of torch.ao's eager mode alone: fusion by name, stubs, functionals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import TORCH_AO, Hit, rule

SCALAR = frozenset({"add_scalar", "mul_scalar"})


@rule("IQ701", "error", TORCH_AO)
def lost_activation(subject: Any) -> Iterator[Hit]:
    """Fusing by name replaced a ReLU by an identity that the forward still calls somewhere else.

    ``fuse_modules`` moves the ReLU into the convolution and puts ``nn.Identity`` in its place. If the same ReLU was
    called elsewhere too (behind an addition, as in most residual blocks), that activation is gone: the network
    computes something else, without a message. The same happens when a list pairs a convolution with the wrong ReLU.

    Remedy: give every call of the ReLU a module of its own and fuse the right one, or let intact8 fuse by the graph
    """
    if not subject.eager:
        return
    good, bad = Counter[str](), dict[str, list[str]]()
    answered: set[str] = set()
    for node in subject.flow:
        if node.kind != "identity":
            continue
        source = subject.calls_by_name[node.inputs[0]]
        while source.kind in ("identity", "observer"):
            source = subject.calls_by_name[source.inputs[0]]
        if source.fused:
            good[node.module] += 1
            answered.add(source.name)
        else:
            bad.setdefault(node.module, []).append(f"{source.call} ({source.name})")
    orphans = [n.module for n in subject.flow if n.fused and n.with_relu and n.name not in answered]
    for module, sources in bad.items():
        called = f"called on the result of {', '.join(sources)}"
        if good[module]:
            message = f"it became an identity when it was fused, and is still {called}: the activation there is lost"
            yield Hit(message, module=module, data={"called_on": sources})
        elif orphans:
            message = f"it is an identity {called}, while {', '.join(orphans)} took in a ReLU that was not behind it"
            yield Hit(message, module=module, data={"called_on": sources, "fused": orphans})


@rule("IQ705", "error", TORCH_AO)
def float_arithmetic_on_integers(subject: Any) -> Iterator[Hit]:
    """An eager forward uses +, *, torch.cat … on tensors that will be integers.

    Such operations need a scale for their result. Quantized tensors of torch.ao refuse them when the converted model
    runs (this is why a stock ResNet fails), or requantize without a range of their own.

    Remedy: use a FloatFunctional of its own for each: self.add = FloatFunctional(), then self.add.add(x, y)
    """
    if not subject.eager:
        return
    for node in subject.flow:
        if node.kind == "arithmetic" and any(subject.calls_by_name[i].integers for i in node.inputs):
            sources = ", ".join(subject.calls_by_name[i].module or subject.calls_by_name[i].name for i in node.inputs)
            yield Hit(f"{node.call} on quantized tensors ({sources})", node=node.name, data={"call": node.call})


@rule("IQ706", "error", TORCH_AO)
def misplaced_stub(subject: Any) -> Iterator[Hit]:
    """A quantized layer gets floats, a float layer gets integers, or integers leave the network.

    The converted model stops with "could not run quantized::conv2d with arguments from the CPU backend" or the like. A
    QuantStub or DeQuantStub is missing or in the wrong place.

    Remedy: put a QuantStub where floats enter the quantized part and a DeQuantStub where it ends
    """
    if not subject.eager or not any(n.integers for n in subject.flow):
        return
    for node in subject.flow:
        carried = any(subject.calls_by_name[i].integers for i in node.inputs)
        if node.kind in ("layer", "functional") and node.integers and not carried:
            yield Hit("a quantized layer gets floats: no QuantStub before it", module=node.module, node=node.name)
        elif node.kind in ("layer", "norm") and not node.integers and carried:
            yield Hit("a float layer gets integers: no DeQuantStub before it", module=node.module, node=node.name)
        elif node.kind == "output" and carried:
            yield Hit("the network returns integers: no DeQuantStub at the end", node=node.name)


@rule("IQ707", "error", TORCH_AO)
def quantized_twice(subject: Any) -> Iterator[Hit]:
    """The model was prepared twice, or a tensor passes two QuantStubs.

    A QuantStub gets integers, a module runs its observer twice, or an observer watches another's output. Usually a
    network trained with ``prepare_qat`` was wrapped, prepared again for post-training quantization and calibrated, so
    that observers replaced what was learned.

    Remedy: prepare the float model once; load the trained weights and scales into that, and convert it
    """
    for node in subject.flow:
        sources = [subject.calls_by_name[i] for i in node.inputs]
        if node.kind == "quantize" and any(s.integers for s in sources):
            yield Hit("a QuantStub gets integers", module=node.module, node=node.name)
        if node.kind == "observer" and any(s.kind == "observer" for s in sources):
            yield Hit("an observer watches the result of an observer", module=node.module, node=node.name)
    for path, m in subject.module.named_modules():
        hooks = [getattr(h, "__name__", "") for h in m._forward_hooks.values()]
        count = hooks.count("_observer_forward_hook")
        if count > 1:
            yield Hit(f"its observer runs {count} times per forward", module=path)


@rule("IQ708", "warning", TORCH_AO)
def shared_quantizer(subject: Any) -> Iterator[Hit]:
    """One QuantStub or FloatFunctional serves several tensors, which then share one range.

    That is right for two images of the same kind and wrong for nearly everything else. DeQuantStubs have no state and
    may be shared.

    Remedy: give every tensor a QuantStub, and every operation a FloatFunctional, of its own
    """
    calls = Counter(n.module for n in subject.flow if n.kind in ("quantize", "functional") and n.module)
    for module, count in calls.items():
        if count > 1:
            yield Hit(f"used {count} times", module=module, data={"calls": count})


@rule("IQ709", "note", TORCH_AO)
def stale_scalar_qparams(subject: Any) -> Iterator[Hit]:
    """A FloatFunctional that only adds or multiplies scalars has a scale in the state dict that nothing uses.

    The results of ``add_scalar`` and ``mul_scalar`` have derived qparams. The observed ones are neither updated nor
    read, and mislead whoever reads the state dict.

    Remedy: ignore these entries of the state dict; the kernel derives scale and zero point from input and scalar
    """
    methods: dict[str, set[str]] = {}
    for node in subject.flow:
        if node.kind == "functional" and node.module:
            methods.setdefault(node.module, set()).add(node.call.rpartition(".")[2])
    for module, used in methods.items():
        if used <= SCALAR:
            yield Hit(f"only {', '.join(sorted(used))} is called on it", module=module)
