"""Constants: their names, and how those that are computed from parameters are computed again when these change."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from .graph import unique
from .names import module_of


@dataclass(frozen=True)
class Made:
    """How a constant came about.

    Attributes:
        tensor: the constant; it is kept alive, so that its id stays its own.
        parameters: names of the model's parameters it was computed from.
        sources: those, and the names of buffers.
        target: the operator; None where that is not known.
        args, kwargs: of its call.
        leaf: which of the tensors it gave.
    """

    tensor: Tensor
    parameters: frozenset[str]
    sources: frozenset[str] = frozenset()
    target: Any = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    leaf: int = 0


@dataclass(frozen=True)
class Named:
    """In place of a tensor among arguments: the one of this name."""

    name: str


@dataclass(frozen=True)
class Result:
    """In place of a tensor among arguments: what an earlier step gave."""

    step: int
    leaf: int


@dataclass(frozen=True)
class Derived:
    """A constant as a function of parameters: rows of a table of positions, a bias looked up by distance.

    Attributes:
        steps: operator (``aten.embedding.default``), arguments and keyword arguments, in order, tensors by reference.
        result: which tensor it is.
        sources: names of the parameters, buffers and constants it is computed from.

    Example:
        >>> first = Derived((("aten.narrow.default", (Named("table"), 0, 0, 2), {}),), Result(0, 0), ("table",))
        >>> first.compute({"table": torch.arange(3.0)})
        tensor([0., 1.])
    """

    steps: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]
    result: Result
    sources: tuple[str, ...]

    def compute(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the constant, differentiable.

        Args:
            tensors: at least ``sources`` by name, on one device.
        """
        device, results = tensors[self.sources[0]].device, list[list[Any]]()

        def given(arg: Any) -> Any:
            if isinstance(arg, Named):
                return tensors[arg.name]
            if isinstance(arg, Result):
                return results[arg.step][arg.leaf]
            return device if isinstance(arg, torch.device) else arg

        for target, args, kwargs in self.steps:
            results.append(
                leaves([operator.attrgetter(target)(torch.ops)(*mapped(args, given), **mapped(kwargs, given))])
            )
        found: Tensor = given(self.result)
        return found


@dataclass(frozen=True)
class Fixed:
    """A number, an index or a condition that became part of the graph, and does not follow what it was computed from.

    Attributes:
        value: what it is; None where it is not known how it was computed.
        derived: how, from ``sources`` and ``others``.
        sources: names of parameters and buffers.
        others: further tensors by name.
    """

    value: Tensor | None
    derived: Derived | None
    sources: tuple[str, ...]
    others: Mapping[str, Tensor]

    def holds(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return whether other values of the sources would have given the same."""
        if self.derived is None or self.value is None:
            return False
        given = {name: tensor.detach().cpu() for name, tensor in {**self.others, **tensors}.items()}
        try:
            with torch.no_grad():
                return torch.equal(self.derived.compute(given), self.value.cpu())
        except RuntimeError:  # of other shapes
            return False


def derive(
    tensor: Tensor, made: Mapping[int, Made], name: Callable[[Tensor], str], *, buffers: bool = False
) -> Derived | None:
    """Return what ``tensor`` is as a function of parameters; None where a call on the way is not known.

    Args:
        tensor: computed from some.
        made: by id of a tensor.
        name: gives the name of a tensor that was not computed from parameters, or is one.
        buffers: follow what was computed from buffers alone, too.
    """
    steps: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    calls: dict[int, int] = {}
    sources: dict[str, None] = {}

    def reference(arg: Any) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        how = made.get(id(arg))
        if how is None or not (how.sources if buffers else how.parameters):
            sources[name(arg)] = None
            return Named(name(arg))
        if id(how.args) not in calls:
            args, kwargs = mapped(tuple(how.args), reference), mapped(dict(how.kwargs), reference)
            calls[id(how.args)] = len(steps)
            steps.append(("" if how.target is None else str(how.target), args, kwargs))
        return Result(calls[id(how.args)], how.leaf)

    result = reference(tensor)
    return Derived(tuple(steps), result, tuple(sources)) if all(target for target, *_ in steps) else None


def mapped(arg: Any, change: Callable[[Any], Any]) -> Any:
    """Return the arguments with every leaf changed."""
    if isinstance(arg, dict):
        return {key: mapped(value, change) for key, value in arg.items()}
    if isinstance(arg, (list, tuple)):
        return (tuple if isinstance(arg, tuple) else list)(mapped(value, change) for value in arg)
    return change(arg)


def leaves(args: Sequence[Any]) -> list[Any]:
    """Return what dicts, lists and tuples hold, in order."""
    out: list[Any] = []
    for a in args:
        if isinstance(a, dict):
            out += leaves(list(a.values()))
        elif isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
            out += leaves(a)
        else:
            out.append(a)
    return out


def writes_in_place(target: Any) -> bool:
    """Return whether an operator writes into its first argument."""
    first = target._schema.arguments[0] if target._schema.arguments else None
    return bool(first is not None and first.alias_info is not None and first.alias_info.is_write)


def writes_into(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Return whether an operation writes into what a node gives."""
    writes = isinstance(user.target, torch._ops.OpOverload) and writes_in_place(user.target)
    return writes and user.args[:1] == (node,)


def unread_writes(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Return the operations that write into tensors of the model, as counters, of which no output is computed."""
    found: set[torch.fx.Node] = set()
    tensors = (node for node in graph.nodes if node.op in ("placeholder", "get_attr"))
    for held in (node for node in tensors if any(writes_into(user, node) for user in node.users)):
        behind, pending = {held}, [held]
        while pending:
            users = [node for node in pending.pop().users if node not in behind]
            behind.update(users)
            pending += users
        made = [node for node in behind if isinstance(node.target, torch._ops.OpOverload)]
        writes = {node for node in made if writes_in_place(node.target)}
        if len(made) == len(behind) - 1 and all(node.args[0] in behind for node in writes):
            found |= writes
    return frozenset(found)


OTHER_FLOATS = (torch.float16, torch.bfloat16, torch.float64)
"""Floats that a model may compute in where the program computes in float32."""

IN_FLOAT32 = "computed in float32:"
"""How the note begins of casts to these, which is said as a warning."""


@dataclass(kw_only=True)
class ConstantStore:
    """The tensors that a capture knows by name, and how those came about that are computed from parameters.

    Attributes:
        root: the model.
        named: id of a tensor → name.
        constants: tensors that are neither parameters nor persistent buffers, by name.
        derived: those of them that follow parameters.
        notes: what the user may want to know.
        once: parameters that something was computed from that does not follow them.
        fixed: tensors whose values are part of the graph, by id, that parameters or buffers are, or were computed to.
        read_by_name: ids of the tensors that the operation under way has taken by name.
    """

    root: nn.Module
    named: dict[int, str]
    constants: dict[str, Tensor] = field(default_factory=dict)
    derived: dict[str, Derived] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    once: set[str] = field(default_factory=set)
    fixed: dict[int, Tensor] = field(default_factory=dict)
    read_by_name: set[int] = field(default_factory=set)
    _made: dict[int, Made] = field(default_factory=dict)
    _parts: dict[int, tuple[Tensor, tuple[Tensor, Tensor]]] = field(default_factory=dict)
    _float32: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def tensor_name(self, tensor: Tensor, fx: torch.fx.Node, role: str) -> str:
        """Return the name of a parameter, buffer or constant; a computed tensor is stored under a new constant's
        name."""
        self.read_by_name.add(id(tensor))
        tensor = tensor if role == "source" else self.as_float32(tensor)
        if id(tensor) in self.named:
            return self.named[id(tensor)]
        path = module_of(fx)[0]
        # The name has one component after the prefix, so that a module can have a buffer of that name.
        base = "constants." + "_".join(filter(None, (*path.split("."), role)))
        name = unique(base, self.constants)
        # This is a clone, because a later in-place operation may still write into the original.
        stored = tensor.detach().clone()
        self.constants[name] = stored
        self.named[id(tensor)] = name
        made = self._made.setdefault(id(tensor), Made(tensor, frozenset()))
        derived = None if role == "source" else self.derivation(tensor, fx)
        if derived is not None:
            self.derived[name] = derived
            stored.requires_grad_()  # so that fusion takes it for the parameter it is
            return name
        if made.sources:
            self.fixed[id(tensor)] = tensor
        if made.parameters:
            origin = ", ".join(sorted(made.parameters))
            self.once |= made.parameters
            self.notes.append(f"{name} is computed from {origin} once, at capture: not trained")
        return name

    def as_float32(self, tensor: Tensor) -> Tensor:
        """Return a constant in float32, where it holds other floats, as computed from it."""
        if tensor.dtype not in OTHER_FLOATS:
            return tensor
        if id(tensor) not in self._float32:
            found, dtype = tensor.detach().float(), {"dtype": torch.float32}
            self.record([tensor], torch.ops.aten._to_copy.default, [tensor], dtype, [found])
            self._float32[id(tensor)] = tensor, found
        return self._float32[id(tensor)][1]

    def parts(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the real and the imaginary part of a complex constant."""
        if id(tensor) not in self._parts:
            found = tensor.detach().real.contiguous(), tensor.detach().imag.contiguous()
            for part, target in zip(found, (torch.ops.aten.real.default, torch.ops.aten.imag.default), strict=True):
                self.record([tensor], target, [tensor], {}, [part])
            self._parts[id(tensor)] = (tensor, found)
        return self._parts[id(tensor)][1]

    def made_by(self, tensor: Tensor) -> Made | None:
        """Return how a constant was computed; None where it was not."""
        return self._made.get(id(tensor))

    def derivation(self, tensor: Tensor, fx: torch.fx.Node) -> Derived | None:
        """Return ``tensor`` as a function of parameters; None where it is none, or its memory was written to."""
        made = self._made.get(id(tensor))
        if made is None or not made.parameters or not tensor.is_floating_point():
            return None
        derived = derive(tensor, self._made, lambda t: self.tensor_name(t, fx, "source"), buffers=True)
        if derived is None:
            return None
        with torch.no_grad():
            return derived if torch.equal(derived.compute(self.tensors()), tensor) else None

    def pattern(self, tensor: Tensor, fx: torch.fx.Node) -> Tensor:
        """Return a constant for telling what is equal in it: as it would be for random parameters, if it is made of
        some."""
        derived = self.derivation(tensor, fx)
        if derived is None:
            return tensor
        random, found = torch.Generator().manual_seed(0), self.tensors()
        for name in derived.sources:
            if isinstance(found[name], nn.Parameter):
                found[name] = torch.rand(found[name].shape, generator=random).to(found[name])
        with torch.no_grad():
            return derived.compute(found)

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters, buffers and constants by name."""
        buffers = self.root.named_buffers(remove_duplicate=False)
        return {**dict(buffers), **dict(self.root.named_parameters(remove_duplicate=False)), **self.constants}

    def record(
        self, flat: list[Tensor], target: Any, args: list[Any], kwargs: dict[str, Any], found: list[Any]
    ) -> None:
        """Remember how constants came about, of ``flat`` among the arguments."""
        parameters, sources = frozenset[str](), frozenset[str]()
        self.read_by_name |= set(map(id, flat))  # what was made of them is judged in their place
        for tensor in flat:
            sources |= self.sources_of(tensor)
            owner = self.named.get(id(tensor))
            if owner is not None and owner not in self.constants and isinstance(tensor, nn.Parameter):
                parameters |= {owner}
            parameters |= self._made[id(tensor)].parameters if id(tensor) in self._made else frozenset()
        writes = bool(flat) and writes_in_place(target)
        if writes:  # how anything in this memory was computed is not what it is any more
            memory = flat[0].untyped_storage().data_ptr()
            here = [key for key, made in self._made.items() if made.tensor.untyped_storage().data_ptr() == memory]
            for key in here:
                self._made[key] = Made(self._made[key].tensor, self._made[key].parameters, self._made[key].sources)
        for leaf, tensor in enumerate(found):
            if not isinstance(tensor, Tensor):
                continue
            if writes:
                self._made[id(tensor)] = Made(tensor, parameters, sources)
            elif id(tensor) not in self.named and not any(tensor is a for a in flat):
                self._made[id(tensor)] = Made(tensor, parameters, sources, target, args, kwargs, leaf)

    def sources_of(self, tensor: Tensor) -> frozenset[str]:
        """Return the names of the parameters and buffers that a tensor is, or was computed from."""
        owner, made = self.named.get(id(tensor)), self._made.get(id(tensor))
        found = made.sources if made is not None else frozenset()
        return found | {owner} if owner is not None and owner not in self.constants else found

    def note_fixed(self, given: Sequence[Any], asked: Collection[int]) -> None:
        """Note whose values an operation has used that took tensors among ``given`` by name only where ``asked``."""
        for tensor in given:
            unread = isinstance(tensor, Tensor) and (id(tensor) not in asked or not tensor.is_floating_point())
            if unread and self.sources_of(tensor):
                self.fixed[id(tensor)] = tensor

    def fixed_values(self) -> tuple[Fixed, ...]:
        """Return what became part of the graph of the values that parameters and buffers have now."""
        found, tensors = [], self.tensors()
        for tensor in self.fixed.values():
            sources, others = tuple(sorted(self.sources_of(tensor))), dict[str, Tensor]()

            def name(t: Tensor, others: dict[str, Tensor] = others) -> str:
                owner = self.named.get(id(t))
                if owner is not None and owner not in self.constants:
                    return owner
                others[f"#{id(t)}"] = t.detach().clone()
                return f"#{id(t)}"

            derived = derive(tensor, self._made, name, buffers=True)
            fixed = Fixed(tensor.detach().clone(), derived, sources, others)
            known = fixed.holds({source: tensors[source] for source in sources})
            found.append(fixed if known else Fixed(None, None, sources, {}))
        return tuple(found)
