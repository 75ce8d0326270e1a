"""Classes of outputs: dataclasses and named tuples come back as what they were, where this process knows the class.

An OrderedDict and a defaultdict are known everywhere; a defaultdict comes back without its factory, which is code.

A program file holds a class's name and no code, and a name makes nothing be imported or looked up: instances are built
only of classes that a model captured in this process returned. In any other process the output is a dict of its fields.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from intact8.errors import InputError, in_short

_CLASSES: dict[tuple[str, tuple[str, ...]], type] = {}
"""Name and fields → class."""

MAPPINGS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": partial(defaultdict, None),
}
"""Names of the standard library's dicts → how they are made."""


def class_name(cls: type) -> str:
    """Return the name that stands for a class in a file."""
    return f"{cls.__module__}.{cls.__qualname__}"


def remember(cls: type, fields: tuple[str, ...]) -> str:
    """Note a class of outputs; the name that stands for it."""
    name = class_name(cls)
    _CLASSES[name, fields] = cls
    return name


def build(name: str, fields: Mapping[str, Any]) -> Any:
    """Return an instance of the class of that name and those fields, or a dict where no captured model has returned
    one.

    Raises:
        InputError: the class does not take these values.

    Example:
        >>> build("somewhere.Output", {"logits": 1})
        {'logits': 1}
        >>> build("collections.OrderedDict", {"a": 1}).popitem(last=False)
        ('a', 1)
    """
    if name in MAPPINGS:
        return MAPPINGS[name](fields)
    cls = _CLASSES.get((name, tuple(fields)))
    if cls is None:
        return dict(fields)
    try:
        if not dataclasses.is_dataclass(cls):  # a named tuple, or one of torch.return_types
            return cls(*fields.values()) if hasattr(cls, "_fields") else cls(tuple(fields.values()))
        given = {f.name: fields[f.name] for f in dataclasses.fields(cls) if f.init}
        found = cls(**given)
        for f in dataclasses.fields(cls):
            if not f.init:
                object.__setattr__(found, f.name, fields[f.name])
        return found
    except Exception as error:
        raise InputError(
            f"the class {name} does not take the model's outputs",
            where="output",
            why=in_short(error),
            remedy="return a tuple or dict from the model; in a process that only loads the program it is a dict",
        ) from error


def rebuild(structure: Any, outputs: Sequence[Any], objects: Callable[[str, Mapping[str, Any]], Any] = build) -> Any:
    """Return flattened outputs nested as the model did; objects of classes not known here become dicts of their fields.

    Args:
        structure: of the outputs, as a program has it.
        outputs: in order.
        objects: makes an object of the name of its class and its fields.

    Example:
        >>> rebuild({"dict": {"a": 1, "b": {"list": [0, 1]}}}, ["x", "y"])
        {'a': 'y', 'b': ['x', 'y']}
        >>> rebuild({"pairs": [[["disparity", 0], 0], [1, 1]]}, ["x", "y"])
        {('disparity', 0): 'x', 1: 'y'}
    """
    if isinstance(structure, int):
        return outputs[structure]
    if "none" in structure:
        return None
    if "value" in structure:
        return structure["value"]
    if "list" in structure:
        return [rebuild(s, outputs, objects) for s in structure["list"]]
    if "tuple" in structure:
        return tuple(rebuild(s, outputs, objects) for s in structure["tuple"])
    if "pairs" in structure:
        pairs = ((tuple(key) if isinstance(key, list) else key, inside) for key, inside in structure["pairs"])
        return {key: rebuild(inside, outputs, objects) for key, inside in pairs}
    if "dict" in structure:
        return {key: rebuild(s, outputs, objects) for key, s in structure["dict"].items()}
    return objects(structure["object"], {key: rebuild(s, outputs, objects) for key, s in structure["fields"].items()})
