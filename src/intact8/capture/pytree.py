"""How inputs and outputs nest: between the user's arguments and lists of tensors."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from intact8.errors import CaptureError, InputError
from intact8.nesting import CACHES, PAIR, is_cache, is_plain, spread
from intact8.outputs import MAPPINGS, class_name, remember


def call_of(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs as positional and keyword arguments.

    Example:
        >>> call_of({"x": 1})
        ((), {'x': 1})
    """
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    what = f"example inputs of type {type(example_inputs).__name__}"
    raise InputError(what, remedy="give a tensor, a tuple of positional arguments, or a dict of keyword arguments")


def widened(x: Tensor, dtype: str) -> Tensor:
    """Return integers of 8, 16 and 32 bits as int64 where that is read: they are the same numbers."""
    return x.long() if dtype == "int64" and x.dtype in (torch.int8, torch.int16, torch.int32) else x


def copied(value: Any, noise: float = 0.0) -> Any:
    """Return the same with tensors copied, as a model may write into what it is given; floats changed by noise."""

    def copy(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x.copy() if isinstance(x, np.ndarray) else x
        x = x.detach().clone()
        return x * (1 + noise * torch.randn_like(x)) if noise and x.is_floating_point() else x

    return pytree.tree_map(copy, value)


@dataclasses.dataclass(frozen=True)
class _Nesting:
    """A torch pytree spec in pickles and copies, whose leaves torch deprecates to make by their class.

    Attributes:
        kind: the container; None for a leaf.
        context: what torch keeps of the container, such as the keys of a dict.
        children: what it holds.
    """

    kind: Any
    context: Any
    children: tuple[_Nesting, ...]

    @staticmethod
    def of(spec: pytree.TreeSpec) -> _Nesting:
        return _Nesting(spec.type, spec.context, tuple(map(_Nesting.of, _children(spec))))

    def spec(self) -> pytree.TreeSpec:
        if self.kind is None:
            return pytree.tree_structure(0)
        return pytree.TreeSpec(self.kind, self.context, [child.spec() for child in self.children])


class HoldsSpecs:
    """Base of frozen dataclasses that hold torch pytree specs, and can be copied and pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {n: _Nesting.of(v) if isinstance(v, pytree.TreeSpec) else v for n, v in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({n: v.spec() if isinstance(v, _Nesting) else v for n, v in state.items()})


@dataclasses.dataclass(frozen=True)
class InputLayout(HoldsSpecs):
    """How calls of the model flatten into tensors.

    Attributes:
        spec: torch pytree spec of ``(args, kwargs)`` as in the example.
        keys: a readable name per leaf, tensors and others.
        fixed: leaf position → value, for leaves that are no tensors: they are part of the captured graph.
        parameters: names of the forward method's parameters, in order.
        positional: how many arguments the example gave by position.
        keywords: names of the keyword arguments of the example, in order.
    """

    spec: pytree.TreeSpec
    keys: tuple[str, ...]
    fixed: Mapping[int, Any]
    parameters: tuple[str, ...]
    positional: int
    keywords: tuple[str, ...]

    @staticmethod
    def of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InputLayout:
        """Return the layout of an example call.

        Raises:
            InputError: an argument holds something else than tensors, None, numbers, truth values and text.
        """
        named = inspect.signature(model.forward).parameters.items()
        parameters = tuple(n for n, p in named if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        leaves, spec = pytree.tree_flatten_with_path((args, kwargs))
        keys, fixed = [], {}
        for i, (path, leaf) in enumerate(leaves):
            keys.append(_key(path, parameters))
            if not isinstance(leaf, Tensor):
                if not is_plain(leaf):
                    why = "arguments hold tensors, None, numbers, truth values and text"
                    remedy = "give one of these, or make it an attribute of the model"
                    raise InputError(f"a {type(leaf).__name__} is given", where=keys[-1], why=why, remedy=remedy)
                fixed[i] = leaf
        return InputLayout(spec, tuple(keys), fixed, parameters, len(args), tuple(kwargs))

    def tensor_keys(self) -> tuple[str, ...]:
        """Return the names of the tensor inputs."""
        return tuple(k for i, k in enumerate(self.keys) if i not in self.fixed)

    def fixed_values(self) -> dict[str, Any]:
        """Return the values that are no tensors by name."""
        return {self.keys[at]: value for at, value in self.fixed.items()}

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Return the tensors of a call, in the order of the graph's inputs.

        Raises:
            InputError: arguments are missing, unknown, nest differently, or a fixed value changed.
        """
        flat = self._flat(args, kwargs)
        if flat is not None:
            return flat
        bound = self._bind(args, kwargs)
        leaves, spec = pytree.tree_flatten(bound)
        if spec != self.spec:
            what = "inputs nest differently from the example inputs"
            remedy = "call with the same structure, or prepare the model again with an example of this one"
            raise InputError(what, why=f"given {spec}, captured {self.spec}", remedy=remedy)
        out: list[Tensor] = []
        for i, (key, leaf) in enumerate(zip(self.keys, leaves, strict=True)):
            if i in self.fixed:
                if isinstance(leaf, Tensor) or leaf != self.fixed[i]:
                    what = f"{key} is fixed to {self.fixed[i]!r}"
                    remedy = "give the same value, or prepare the model again with the other one"
                    raise InputError(what, why="it was no tensor when the model was captured", remedy=remedy)
            elif not isinstance(leaf, Tensor):
                raise InputError(f"{key} must be a tensor, not {type(leaf).__name__}")
            else:
                out.append(leaf)
        return out

    def _flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor] | None:
        """Return tensors given one by one, in order or by name, where the model nests them or takes other values, too.

        None where they are not.
        """
        keys = self.tensor_keys()
        if len(args) + len(kwargs) == len(keys):
            given = dict(zip(keys, args, strict=False)) | dict(kwargs)
            if set(given) == set(keys) and all(isinstance(value, Tensor) for value in given.values()):
                return [given[key] for key in keys]
        fixed = self.fixed_values()
        try:
            given = spread(self.keys, args, kwargs)
        except InputError:
            return None
        changed = any(isinstance(given[k], Tensor) or given[k] != v for k, v in fixed.items() if k in given)
        if changed or given.keys() - fixed.keys() != set(keys) or not all(isinstance(given[k], Tensor) for k in keys):
            return None
        return [given[key] for key in keys]

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) == self.positional and tuple(kwargs) == self.keywords:
            return tuple(args), dict(kwargs)
        given = dict(zip(self.parameters, args, strict=False))
        wanted = (*self.parameters[: self.positional], *self.keywords)
        if len(args) > len(self.parameters) or set(given) & set(kwargs):
            raise InputError("too many inputs", remedy=f"give {', '.join(wanted) or ', '.join(self.keys)}")
        given.update(kwargs)
        missing = [name for name in wanted if name not in given]
        unknown = [name for name, value in given.items() if name not in wanted and value is not None]
        if missing or unknown:
            what = f"inputs do not match the example: missing {missing}, unexpected {unknown}"
            raise InputError(what, remedy=f"give {', '.join(wanted)}")
        return tuple(given[n] for n in wanted[: self.positional]), {n: given[n] for n in self.keywords}


def _key(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """Return ``x``, ``batch.image`` or ``xs.0`` for the pytree path of a leaf of (args, kwargs)."""
    parts = [str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", "")))) for p in path]
    if parts[0] == "0":
        at = int(parts[1])
        variadic = at >= len(parameters)
        parts[1] = f"arg{at}" if variadic else parameters[at]
    return ".".join(parts[1:])


def register_outputs(value: Any) -> None:
    """Make dataclasses in the model's output known to torch.export.

    Raises:
        CaptureError: an output is of a type that cannot be taken apart.
    """
    if value is None or isinstance(value, (Tensor, int, float, bool, str)):
        return
    if isinstance(value, Mapping):
        for key in value:
            _json_key(key)
    if type(value) in pytree.SUPPORTED_NODES or isinstance(value, (list, tuple, dict)):
        for child in (
            value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
        ):
            register_outputs(child)
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        torch.export.register_dataclass(type(value))
        for item in dataclasses.fields(value):
            register_outputs(getattr(value, item.name))
        return
    if is_cache(value):
        others = {type(layer).__name__ for layer in getattr(value, "layers", ()) if hasattr(layer, "recurrent_states")}
        if others:
            raise _no_output(value, f" with states of {', '.join(sorted(others))}")
        register_cache()
        return
    raise _no_output(value)


def _no_output(value: Any, more: str = "") -> CaptureError:
    what = f"the model returns a {type(value).__name__}{more}"
    why = "only tensors, lists, tuples, dicts and dataclasses of them can be taken apart"
    remedy = "return one of these"
    if more:
        why, remedy = (
            "programs return caches of keys and values only",
            'call it with use_cache=False: {..., "use_cache": False}',
        )
    elif type(value).__name__.endswith("Cache"):
        remedy = "give a DynamicCache, whose tensors become inputs and outputs, or use_cache=False"
    return CaptureError(what, where="the model's output", why=why, remedy=remedy)


def register_cache() -> None:
    """Make transformers' cache of keys and values, which torch.export does not know, known to it.

    Raises:
        CaptureError: this version of transformers cannot.
    """
    try:
        from transformers.integrations.executorch import register_dynamic_cache_export_support
    except ImportError as error:
        what, remedy = "a cache of a version of transformers that cannot be exported", "pip install -U transformers"
        raise CaptureError(what, where="transformers", why=str(error), remedy=remedy) from error
    register_dynamic_cache_export_support()  # type: ignore[no-untyped-call]
    from transformers import EncoderDecoderCache

    if EncoderDecoderCache not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            EncoderDecoderCache,
            lambda cache: ([getattr(cache, name) for name in CACHES], (list(CACHES),)),
            lambda parts, _: EncoderDecoderCache(*parts),
            serialized_type_name=f"{EncoderDecoderCache.__module__}.{PAIR}",
            flatten_with_keys_fn=lambda cache: (
                [(pytree.MappingKey(name), getattr(cache, name)) for name in CACHES],
                (list(CACHES),),
            ),
        )


def register_inputs(value: Any) -> None:
    """Make caches and dataclasses among example inputs known to torch.export."""
    for leaf in pytree.tree_leaves(value):
        if is_cache(leaf):
            register_cache()
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            torch.export.register_dataclass(type(leaf))
            register_inputs(leaf)


def with_lists(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """Return a structure in which lists stand for caches, dataclasses and everything else that is registered."""
    return _replaced(spec, lambda kind: kind not in pytree.BUILTIN_TYPES, lambda _: (list, None))


def with_dicts(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """Return a structure in which caches are dicts, of keys and values or of caches, by name."""
    return _replaced(spec, lambda kind: kind.__name__ in ("DynamicCache", PAIR), lambda context: (dict, context[0]))


def _children(spec: pytree.TreeSpec) -> list[pytree.TreeSpec]:
    return spec.children() if hasattr(spec, "children") else spec.children_specs  # torch 2.8 has the latter only


def _replaced(
    spec: pytree.TreeSpec, chosen: Callable[[type], bool], by: Callable[[Any], tuple[type, Any]]
) -> pytree.TreeSpec:
    """Return a structure with other types and contexts in the place of the chosen ones."""
    children = [_replaced(child, chosen, by) for child in _children(spec)]
    if spec.type is None or not children:
        return spec
    kind, context = by(spec.context) if chosen(spec.type) else (spec.type, spec.context)
    return pytree.TreeSpec(kind, context, children)


def describe(value: Any) -> Any:
    """Return the JSON structure of an output whose tensors are replaced by their positions (see ``Graph.structure``).

    Example:
        >>> describe({"logits": Slot(0), "hidden": [Slot(1), None]})
        {'dict': {'logits': 0, 'hidden': {'list': [1, {'none': True}]}}}
    """
    if isinstance(value, Slot):
        return value.index
    if value is None:
        return {"none": True}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _described(value, tuple(f.name for f in dataclasses.fields(value)))
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return {"pairs": [[_json_key(key), describe(v)] for key, v in value.items()]}
        inside = {key: describe(v) for key, v in value.items()}
        name = class_name(type(value))
        return {"object": name, "fields": inside} if name in MAPPINGS else {"dict": inside}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _described(value, value._fields)
    if type(value).__module__ == "torch.return_types":
        return _described(value, type(value).__match_args__)
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [describe(v) for v in value]}
    if not is_plain(value):
        raise _no_output(value)
    return {"value": value}


def _described(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {"object": remember(type(value), names), "fields": {n: describe(getattr(value, n)) for n in names}}


def _json_key(key: Any) -> Any:
    """Return a text, a whole number, or a list of such in place of a tuple of them."""
    parts = key if isinstance(key, tuple) else (key,)
    if all(isinstance(part, str) or (isinstance(part, int) and not isinstance(part, bool)) for part in parts):
        return list(key) if isinstance(key, tuple) else key
    what = f"the model returns a dict with the key {key!r:.40}"
    why = "a program file names outputs by texts, whole numbers and tuples of them"
    raise CaptureError(what, where="the model's output", why=why, remedy="name the entries so, or return a list")


@dataclasses.dataclass(frozen=True)
class Slot:
    """Place of an output tensor, by its position among the graph's outputs."""

    index: int
