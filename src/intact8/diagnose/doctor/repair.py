"""One thing put right in a network: what an operation, or several together, compute in place of what they do."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from intact8.capture.graph import Node
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.simulation import Simulation

Compute = Callable[[Sequence[Tensor], Mapping[str, Tensor]], Tensor]
"""Computes a result of an operation's inputs, and of the network's tensors by name."""

log = logging.getLogger(__name__)

SCALED = 0.6
"""Share of the loss that another scale must take away, which makes up for many faults in part: the right one takes away
nearly all."""

INPUTS_ARE_WRONG = "float_network_wrong"
"""Cause of repairs that prepare the inputs otherwise."""


@dataclass(frozen=True)
class Repair:
    """One thing put right.

    Attributes:
        cause: name of the fault if it helps.
        text: what is done.
        node: computed in place of the operation of that name.
        tensors: in place of the network's.
        gain: factor of the result.
        behind: computed of the result, if anything.
        shift: taken from the result.
        others: further operations that read ``tensors``.
        change: how else the input ``node`` is prepared.
        source: the input that is taken in its place, if it is another one.
        order: in which it takes its inputs, where it is another one.
        compute: what gives the result, if not ``node`` does, of its inputs and of the network's by name.
        also: put right with it.
        least: share of the loss that it must take away, where it may make up for other faults in part; 0 as others.
        unusual: whether the network itself shows that what is put right is unusual, so that less must come of it.
        inserted: whether it is an activation where the network has none, which makes up for other faults in part.
    """

    cause: str
    text: str
    node: Node
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    gain: float | Tensor = 1.0
    behind: Node | None = None
    shift: Tensor | None = None
    others: tuple[Node, ...] = ()
    change: Callable[[Tensor], Tensor] | None = None
    source: str = ""
    order: tuple[int, ...] = ()
    compute: Compute | None = None
    also: tuple[Repair, ...] = ()
    least: float = 0.0
    unusual: bool = False
    inserted: bool = False

    @property
    def doubtful(self) -> bool:
        """Whether it may make up for other faults in part, so that a part of the loss does not tell."""
        return self.inserted or self.unlikely

    @property
    def unlikely(self) -> bool:
        """Whether two layers of unlike parts of a network exchange what they hold, which few converters do."""
        names = [node.name for node in (self.node, *self.others)]
        if self.cause != "wrong_weights" or len(names) != 2 or self.also:
            return False
        kinds, blocks = {kind_of(name) for name in names}, {kind_of(name.rpartition(".")[0]) for name in names}
        return len(kinds) > 1 and len(blocks) > 1

    def parts(self) -> Iterator[Repair]:
        """Yield it and what is put right with it."""
        yield self
        yield from self.also

    def names(self) -> set[str]:
        """Return the names of all operations that compute something else."""
        return {node.name for part in self.parts() for node in (part.node, *part.others)}

    def value(self, sim: Simulation, inputs: Sequence[Tensor], given: Mapping[str, Tensor] | None = None) -> Tensor:
        """Compute the operation as it should be, of its inputs; ``given`` are those of the network."""
        compute = FloatExecutor({**sim.tensors, **self.tensors})
        inputs = [inputs[i] for i in self.order] if self.order else inputs
        if self.compute is not None:
            y = self.compute(inputs, given or {})
        else:
            y = inputs[0] if self.node.op == "dropout" else compute(self.node, inputs)
        y = y if self.shift is None else y - self.shift
        y = y if self.behind is None else compute(self.behind, [y])
        return y * self.gain if y.is_floating_point() else y


def kind_of(name: str) -> str:
    """Return a name without its numbers."""
    return re.sub(r"\d+", "#", name)


def block_kind_of(name: str) -> str:
    """Return a name without the numbers that are parts of it, as those of blocks.

    Example:
        >>> kind_of("blocks.0.fc2"), block_kind_of("blocks.0.fc2")
        ('blocks.#.fc#', 'blocks.#.fc2')
    """
    return ".".join("#" if part.isdecimal() else part for part in name.split("."))


def more_places(count: int) -> str:
    """Return a number of further places in words."""
    return f"{count} more place{'s' * (count != 1)}"


def formed(made: Iterator[Repair]) -> Iterator[Repair]:
    """Yield repairs for as long as they can be formed; a network may have a form that nobody thought of.

    What cannot be formed is logged, and tests fail of it.
    """
    try:
        yield from made
    except Exception:
        log.warning("some repairs could not be formed", exc_info=True)


def swapped(a: int, b: int, count: int) -> tuple[int, ...]:
    """Return the numbers up to a count with two of them exchanged."""
    return tuple({a: b, b: a}.get(i, i) for i in range(count))


def rows_reordered(node: Node, order: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weight and bias of a layer with their rows in another order."""
    names = [node.params[role] for role in ("weight", "bias") if role in node.params]
    return {name: tensors[name].detach()[order] for name in names}
