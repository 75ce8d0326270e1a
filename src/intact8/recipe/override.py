"""Overrides: other settings for some modules, by name, glob or type."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intact8.capture.graph import Graph, Node
from intact8.errors import RecipeError

from .scheme import Scheme, check_bool, check_keys, nearest, one_of, scheme_fields

KEYS = ("activation", "weight", "input", "quantize", "mode")
MODES = ("static", "dynamic", "weight_only")
LAYERS = "layers:"
ROLES = ("first", "last", "small", "behind")
"""What may follow LAYERS; see ``intact8.placement.layer_roles``."""
BEHIND = f"{LAYERS}behind"


@dataclass(frozen=True)
class Override:
    """Changes for the operations that ``match`` names.

    Attributes:
        match: the path of a module (all that is inside is meant), the name of an operation, a glob on either
            (``layer1.*.conv?``), ``type:Conv2d`` for operations owned by modules of a type, or ``layers:first``,
            ``layers:last`` or ``layers:small`` (the layers with the fewest weights, a twentieth of all together), or
            ``layers:behind`` (what computes with the results of the last layers of all branches; where it stays float,
            these results are float32). They may name none.
        activation: fields of a :class:`Scheme` to exchange for the output, or a whole Scheme.
        weight: the same for the weight.
        input: the same for what the operation reads. The operation that makes it has the last word.
        mode: "static", "dynamic" or "weight_only" in place of the recipe's; None: as there.
        quantize: False: stay float. True: quantize after all, against an earlier override. None: leave as it is.

    Example:
        >>> Override("layer1.conv1", activation={"observer": "minmax"}).to_dict()
        {'activation': {'observer': 'minmax'}}
    """

    match: str
    activation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    weight: Mapping[str, Any] = field(default_factory=dict, hash=False)
    input: Mapping[str, Any] = field(default_factory=dict, hash=False)
    quantize: bool | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.match, str) or not self.match:
            what = f"an override for {self.match!r}"
            raise RecipeError(what, where="Recipe.overrides", remedy="give a name, a glob or type:NAME as text")
        if self.names_role:
            one_of("match", self.match.removeprefix(LAYERS), ROLES, self.match)
        for key in ("activation", "weight", "input"):
            object.__setattr__(self, key, _changes(getattr(self, key), f"overrides[{self.match!r}].{key}"))
        if self.quantize is not None:
            check_bool("quantize", self.quantize, self.match)
        if self.mode is not None:
            one_of("mode", self.mode, MODES, self.match)
        if not (self.activation or self.weight or self.input or self.mode) and self.quantize is None:
            raise RecipeError("the override changes nothing", where=self.match, remedy="give one of " + ", ".join(KEYS))

    def to_dict(self) -> dict[str, Any]:
        """Return what is overridden, without ``match``; plain values for TOML."""
        parts: dict[str, Any] = {
            k: _plain(getattr(self, k)) for k in ("activation", "weight", "input") if getattr(self, k)
        }
        if self.mode is not None:
            parts["mode"] = self.mode
        return parts if self.quantize is None else {**parts, "quantize": self.quantize}

    @property
    def names_role(self) -> bool:
        """Return whether layers are named by their place in the network, so that there may be none."""
        return self.match.startswith(LAYERS)

    def matches(self, node: Node, roles: Collection[str] = ()) -> bool:
        """Return whether ``node``, which has these roles, is one of the operations named."""
        if self.names_role:
            return self.match.removeprefix(LAYERS) in roles
        if self.match.startswith("type:"):
            wanted = self.match.removeprefix("type:")
            types = (node.module_type, node.module_type.rsplit(".", 1)[-1])
            return any(t and fnmatch.fnmatchcase(t, wanted) for t in types)
        return any(name == self.match or fnmatch.fnmatchcase(name, self.match) for name in _names(node))


def as_overrides(given: Any) -> tuple[Override, ...]:
    """Return overrides as a tuple, from ``{pattern: changes or None}`` or a sequence of :class:`Override`."""
    if isinstance(given, Mapping):
        return tuple(_override(match, value) for match, value in given.items())
    if isinstance(given, Sequence) and all(isinstance(o, Override) for o in given):
        return tuple(given)
    raise RecipeError(
        f"overrides = {given!r}", where="Recipe", remedy="give {pattern: {…} or None}, or a list of Override objects"
    )


def check_matches(overrides: Iterable[Override], graph: Graph) -> None:
    """Raise RecipeError for a pattern that fits nothing in ``graph``, with names that are close to it."""
    for override in overrides:
        if override.names_role or any(override.matches(node) for node in graph):
            continue
        names = {name for node in graph for name in _names(node)}
        types = {"type:" + node.module_type.rsplit(".", 1)[-1] for node in graph if node.module_type}
        near = nearest(override.match, sorted(types if override.match.startswith("type:") else names))
        what = "the pattern matches no operation of this network"
        why = "" if near else "an operation fused into another one goes by the name and type of the first"
        remedy = "did you mean " + ", ".join(near) + "?" if near else "print the simulation to see the names"
        raise RecipeError(what, where=f"overrides[{override.match!r}]", why=why, remedy=remedy)


def _override(match: str, value: Any) -> Override:
    if value is None:
        return Override(match, quantize=False)
    if not isinstance(value, Mapping):
        remedy = 'give None, or {"activation": {…}, "weight": {…}}'
        raise RecipeError(f"{value!r} is not an override", where=f"overrides[{match!r}]", remedy=remedy)
    check_keys(value, KEYS, f"overrides[{match!r}]")
    return Override(match, **value)


def _changes(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, Scheme):
        # A whole scheme replaces what was there, its empty fields included.
        value = {name: getattr(value, name) for name in scheme_fields()}
    if value is None:
        what = "None for a part of an operation"
        why = "an operation with integers in has integers out"
        raise RecipeError(what, where=where, why=why, remedy="give None for the module itself to keep it float")
    if not isinstance(value, Mapping):
        raise RecipeError(
            f"{value!r} is not a scheme", where=where, remedy='give a Scheme or fields of it: {"observer": "mse"}'
        )
    check_keys(value, scheme_fields(), where)
    return {k: "none" if v is None else _tuple(v) for k, v in value.items()}


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else dict(value) if isinstance(value, Mapping) else value


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in changes.items()}


def _names(node: Node) -> list[str]:
    """Return the names of ``node``: its own, those fused into it, its module's and those of the modules around."""
    path = node.module.split(".") if node.module else []
    return [node.name, *node.source, *(".".join(path[: i + 1]) for i in range(len(path)))]
