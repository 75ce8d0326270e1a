"""A model of another tool in neutral words: a float network with marks, and the grids of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from intact8.migration.grids import ActivationGrid, Mark, WeightGrid


class Marks(dict[int, Mark]):
    """The marks of a network by number."""

    def make(self, grid: ActivationGrid | None) -> Mark:
        """Return a new mark, which is entered here."""
        mark = Mark(len(self), grid)
        self[mark.number] = mark
        return mark


@dataclass
class Description:
    """What a reader makes of a model of another tool.

    Attributes:
        tool: which tool and stage it came from, for reports: ``torch.ao (FX, converted)``.
        model: a float network without modules of that tool: its weights are those that the integers stand for, batch
            norm is folded where it was folded there, and a :class:`Mark` stands wherever a tensor is quantized.
        marks: the marks of the network.
        weights: name of the parameter → its integers.
        ranges: path → smallest and largest integer and dtype of an activation, where it is not 0, 255 and uint8.
        dynamic: paths of layers whose activations are quantized when the network runs.
        weight_only: paths of layers whose integers are multiplied as floats.
        integer_functions: whether a function of one number that reads integers gives integers without a grid of its
            own (sigmoid: 1/256), as converted modules of torch.ao do.
        requantized: layers whose weights are quantized anew, because the user said so.
        notes: what a user should know, one sentence each.
        example: inputs of the network, where the source says of which shapes and ranges they are: graphs do.
    """

    tool: str
    model: nn.Module
    marks: Marks = field(default_factory=Marks)
    weights: dict[str, WeightGrid] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)
    weight_only: set[str] = field(default_factory=set)
    integer_functions: bool = False
    requantized: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    example: tuple[Tensor, ...] | None = None


class After:
    """A forward hook: what follows a layer inside the module that had it, or the first of several results.

    Args:
        steps: modules the output goes through, in order.
    """

    def __init__(self, *steps: nn.Module) -> None:
        self.steps = steps

    def __call__(self, module: nn.Module, inputs: object, output: Any) -> Any:
        """Return the output after all steps."""
        if isinstance(output, tuple):
            return (self(module, inputs, output[0]), *output[1:])
        for step in self.steps:
            output = step(output)
        return output


@contextmanager
def rounding(marks: Marks) -> Iterator[None]:
    """Let a network round where its marks stand, as the other tool does; ``seen`` of the marks fills."""
    try:
        for mark in marks.values():
            mark.rounding, mark.seen = True, []
        yield
    finally:
        for mark in marks.values():
            mark.rounding, mark.seen = False, []
