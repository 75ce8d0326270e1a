"""Graphs of ONNX operators as modules of torch."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from torch import Tensor, nn

from .onnx_operators import Function


class Step(nn.Module):
    """One operator with its stored operands, under the operator's name.

    Args:
        function: of its tensors.
        stored: position among the operands → tensor.
    """

    def __init__(self, function: Function, stored: dict[int, Tensor]) -> None:
        super().__init__()
        self.function, self._positions = function, dict[int, str]()
        for i, tensor in stored.items():
            self._positions[i] = ("weight", "bias")[i - 1] if i in (1, 2) else f"operand{i}"
            if tensor.is_floating_point():
                self.register_parameter(self._positions[i], nn.Parameter(tensor, requires_grad=False))
            else:
                self.register_buffer(self._positions[i], tensor)

    def forward(self, *given: Tensor) -> Any:
        """Return the result for the operands that are not stored."""
        rest, operands = list(given), []
        for i in range(len(given) + len(self._positions)):
            operands.append(getattr(self, self._positions[i]) if i in self._positions else rest.pop(0))
        return self.function(*operands)


class Network(nn.Module):
    """Steps in order.

    Attributes:
        calls: (module, names it reads, names it makes).
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.calls: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.forward = MethodType(_forward(self.inputs), self)

    def add(self, wish: str, module: nn.Module, reads: Sequence[str], makes: Sequence[str]) -> str:
        """Add a step under a name like ``wish``, and return the name."""
        name = re.sub(r"\W+", "_", wish).strip("_") or "step"
        name = f"_{name}" if name[0].isdigit() else name
        while hasattr(self, name):
            name += "_"
        self.add_module(name, module)
        self.calls.append((name, tuple(reads), tuple(makes)))
        return name

    def run(self, *given: Tensor) -> Any:
        """Return the outputs: a tensor, or a tuple of them."""
        values = dict(zip(self.inputs, given, strict=True))
        for module, reads, makes in self.calls:
            made = getattr(self, module)(*(values[name] for name in reads))
            if len(makes) == 1:
                values[makes[0]] = made[0] if isinstance(made, tuple) else made
            else:
                values |= {name: y for name, y in zip(makes, made, strict=True) if name}
        outputs = tuple(values[name] for name in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def _forward(inputs: Sequence[str]) -> Callable[..., Any]:
    """Return a method whose arguments are called as the inputs of the graph, as captured networks show them."""
    names = ["self"]
    for name in inputs:
        wish = re.sub(r"\W", "_", name)
        wish = wish if wish.isidentifier() and not keyword.iskeyword(wish) else f"x_{wish}"
        while wish in names:
            wish += "_"
        names.append(wish)

    def forward(self: Network, *given: Tensor, **named: Tensor) -> Any:
        return self.run(*given, *(named[name] for name in names[1 + len(given) :]))

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return forward
