"""The small networks torch tests its own quantization with (``torch.testing._internal.common_quantization``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from tests.conftest import import_torchvision
from torch import Tensor, nn

from .case import Case, Network, Unfit

Calls = Callable[[int], tuple[Any, ...]]


def images(*shape: int) -> Calls:
    """One float tensor, the batch in front."""
    return lambda n: (torch.randn(n, *shape),)


def several(*shapes: tuple[int, ...]) -> Calls:
    """Several float tensors of one batch."""
    return lambda n: tuple(torch.randn(n, *shape) for shape in shapes)


def words(*shape: int) -> Calls:
    """Indices below ten."""
    return lambda n: (torch.randint(0, 10, (n, *shape)),)


def steps(*further: tuple[int, ...]) -> Calls:
    """A sequence of five steps, time in front, and states of one layer."""
    return lambda n: (torch.randn(5, n, 2), *([tuple(0.1 * torch.randn(1, n, 2) for _ in range(2))] if further else []))


def bags(*more: Callable[[int], Tensor], ends: int = 0) -> Calls:
    """Three indices per bag, the bags' offsets, and what else the network takes."""
    return lambda n: (torch.randint(0, 10, (3 * n,)), 3 * torch.arange(n + ends), *(make(n) for make in more))


def dense(n: int) -> Tensor:
    """What the networks with embedding bags take beside the indices."""
    return torch.randn(n, 4)


FIVE = images(5)
INPUTS: dict[str, Calls] = {
    "RNNDynamicModel": steps(),
    "RNNCellDynamicModel": images(2),
    "LSTMwithHiddenDynamicModel": steps((1,)),
    "ActivationsTestModel": images(3, 5, 5),
    **dict.fromkeys(
        (
            "NormalizationTestModel",
            "NestedModel",
            "AnnotatedNestedModel",
            "AnnotatedSubNestedModel",
            "AnnotatedCustomConfigNestedModel",
            "QuantSubModel",
            "InnerModule",
            "SkipQuantModel",
            "AnnotatedSkipQuantModel",
            "QuantStubModel",
            "ManualLinearQATModel",
            "ManualDropoutQATModel",
            "ManualLinearDynamicQATModel",
        ),
        FIVE,
    ),
    "ManualConvLinearQATModel": images(3, 10, 10),
    "ManualConvLinearSymmQATModel": images(3, 10, 10),
    "ManualEmbeddingBagLinear": words(4),
    "DeFusedEmbeddingBagLinear": words(4),
    "SubModelForFusion": images(2, 6, 6),
    "SubModelWithoutFusion": images(2, 6, 6),
    "ModelForFusion": images(3, 1, 19),
    "ConvBNReLU": images(3, 6, 6),
    "ModelWithSequentialFusion": images(3, 10, 10),
    "ModelForFusionWithBias": images(3, 10, 10),
    "ModelForLinearBNFusion": images(20),
    "DummyObserver": images(4),
    "ModelForConvTransposeBNFusion": images(3, 7),
    "ModelWithFunctionals": images(4),
    "ResNetBase": images(3, 6, 6),
    "ModelMultipleOps": images(3, 6, 6),
    "ModelMultipleOpsNoAvgPool": images(3, 8, 8),
    "EmbeddingBagModule": bags(lambda n: torch.rand(3 * n), ends=1),
    "EmbeddingModule": words(5),
    "EmbeddingWithStaticLinear": bags(dense),
    "DenseTopMLP": several((5,), (4,)),
    "EmbBagWrapper": bags(),
    "SparseNNModel": bags(dense),
    "Conv2dPropAnnotaton": images(3, 5, 5),
    "Conv2dWithObsSharingOps": images(3, 5, 5),
    "Conv2dWithTwoLinearPermute": images(3, 5, 5),
    "Conv2dWithTwoLinear": lambda n: (torch.randn(2, 3, 4, 4),),
    "ConvLinearWPermute": images(3, 5, 5),
    "ConvMaxPool2d": images(2, 5, 5),
    "ConvWithAdaptiveAvgPool2d": images(3, 5, 5),
    "ConvWithBNRelu": images(3, 7, 7),
    "ConvTWithBNRelu": images(3, 7, 7),
    "Conv2dThenConv1d": lambda n: (torch.randn(1, 3, 5, 5),),
    "Conv2dWithCat": several((3, 5, 5), (3, 5, 5)),
    "Conv2dWithTwoCat": several((3, 5, 5), (3, 5, 5), (6, 3, 3), (6, 3, 3)),
    "ThreeAdd": several(*[(3, 5)] * 4),
    "EmbeddingConvLinearModule": words(5),
    "AddInplaceAdd": several((3,), (3,)),
    "MulInplaceMul": several((3,), (3,)),
    "AddMulScalar": images(3),
    "ConvBnReLU2dAndLinearReLU": images(3, 5, 5),
    "ControlFlow": lambda n: (torch.ones(2, 2), torch.tensor([False]), torch.tensor([False]), torch.ones(2, 2)),
}
"""Class name → calls, for those that do not say themselves what they take."""

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "RNNDynamicModel": [{"mod_type": kind} for kind in ("LSTM", "GRU")],
    "RNNCellDynamicModel": [{"mod_type": kind} for kind in ("LSTMCell", "GRUCell", "RNNTanh", "RNNReLU")],
    "ModelForFusion": [{"qconfig": None}],
    "DenseTopMLP": [{"dense_dim": 4, "dense_out": 2, "embedding_dim": 5, "top_out_in": 2, "top_out_out": 2}],
    "EmbBagWrapper": [{"num_embeddings": 10, "embedding_dim": 5}],
    "ConvBnAddReluModel": [
        {},
        {"with_bn": False, "with_relu": False, "left_conv": False, "two_conv": False, "use_torch_add": False},
        {"with_bn": True, "left_conv": True, "two_conv": False, "use_torch_add": True},
    ],
    "LinearBnLeakyReluModel": [{}, {"with_bn": False}],
    "ConvWithBNRelu": [{"relu": True}, {"relu": False, "bias": False, "padding": 1}, {"relu": True, "bn": False}],
    "ConvTWithBNRelu": [{"relu": True}, {"relu": False, "bn": False}],
}
"""Class name → arguments of its constructor."""


def source() -> ModuleType:
    """The module of torch; ImportError where a package it needs is missing."""
    import_torchvision()  # it imports torchvision, whose compiled operators may be missing
    from torch.testing._internal import common_quantization

    return common_quantization


def cases() -> Iterator[Case]:
    """Every network class, with every variant of its arguments."""
    module = source()
    for owner, prefix in ((module, ""), (getattr(module, "TestHelperModules", None), "helper ")):
        for name, kind in sorted(vars(owner).items()) if owner is not None else ():
            own = inspect.isclass(kind) and issubclass(kind, nn.Module) and kind.__module__ == module.__name__
            if own:
                for number, arguments in enumerate(_arguments(name, kind)):
                    yield Case(f"{prefix}{name}{f' {number}' if number else ''}", _builder(name, kind, arguments))


def _arguments(name: str, kind: type[nn.Module]) -> list[dict[str, Any]]:
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    return [{"qengine": "fbgemm"} if "qengine" in inspect.signature(kind).parameters else {}]


def _builder(name: str, kind: type[nn.Module], arguments: dict[str, Any]) -> Callable[[], Network]:
    def build() -> Network:
        model = kind(**arguments)
        statistics(model)
        return Network(model, _calls(name, model))

    return build


def _calls(name: str, model: nn.Module) -> Calls:
    example = getattr(model, "get_example_inputs", None) or getattr(model, "example_inputs", None)
    if name in INPUTS:
        return INPUTS[name]
    if example is None:
        raise Unfit(f"nothing says what {name} takes")
    return several(*[tuple(t.shape[1:]) for t in example()])


def statistics(model: nn.Module) -> None:
    """Batch norms that are not the identity."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.6, 1.5)
