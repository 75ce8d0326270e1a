"""Inputs that nest, as in ``model(x, (h, c))``: their tensors have the names ``x``, ``hid.0`` and ``hid.1``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from intact8.errors import InputError

PAIR = "EncoderDecoderCache"
"""Name of transformers' cache that holds two: that of the decoder, and that of what it reads of the encoder."""


CACHES = ("self_attention_cache", "cross_attention_cache")
"""The two caches of a pair."""


def is_cache(value: Any) -> bool:
    """Return whether ``value`` is a cache of keys and values as transformers' decoders take and return it."""
    simple = type(value).__name__ == "DynamicCache" and isinstance(getattr(value, "layers", None), list)
    return simple or type(value).__name__ == PAIR


def parts_of_cache(cache: Any) -> dict[str, Any]:
    """Return the keys and the values of a cache, layer by layer, by the names that inputs and outputs have.

    Of a pair of caches, these are those of each.
    """
    if type(cache).__name__ == PAIR:
        return {name: parts_of_cache(getattr(cache, name)) for name in CACHES}
    return {f"{part}_cache": [getattr(layer, f"{part}s") for layer in cache.layers] for part in ("key", "value")}


def with_parts(cache: Any, parts: Mapping[str, Any]) -> Any:
    """Return a cache like ``cache`` of other keys and values, nested as :func:`parts_of_cache` gives them."""
    if type(cache).__name__ == PAIR:
        return type(cache)(*(with_parts(getattr(cache, name), parts[name]) for name in CACHES))
    return type(cache)(zip(*parts.values(), strict=True))


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or a named tuple; None for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else None


def nests(value: Any) -> bool:
    """Return whether ``value`` holds tensors rather than being one."""
    return isinstance(value, (list, tuple, Mapping)) or is_cache(value) or fields_of(value) is not None


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is None, a number, a truth value or text: an argument that capture fixes."""
    return value is None or isinstance(value, (bool, int, float, str))


def arguments(names: Iterable[str]) -> list[str]:
    """Return the arguments that tensors of these names belong to.

    Example:
        >>> arguments(["x", "hid.0", "hid.1"])
        ['x', 'hid']
    """
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def is_first_argument(value: Any, names: Iterable[str]) -> bool:
    """Return whether a dict is itself the first argument that tensors of these names belong to, and holds no arguments.

    Example:
        >>> is_first_argument({"image": 1}, ["batch.image", "state"]), is_first_argument({"image": 1}, ["image"])
        (True, False)
    """
    names = list(names)
    first = next(iter(arguments(names)), "")
    nested = any(name.startswith(f"{first}.") for name in names)
    return isinstance(value, Mapping) and nested and first not in value


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Everything but None that ``value`` holds, by name.

    Example:
        >>> list(leaves("hid", (1, {"c": 2})))
        [('hid.0', 1), ('hid.1.c', 2)]
    """
    value = parts_of_cache(value) if is_cache(value) else fields_of(value) or value
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from leaves(f"{name}.{i}", inner)
    elif value is not None:
        yield name, value


def rebuilt(value: Any, name: str, convert: Callable[[Any, str], Any]) -> Any:
    """Return ``value`` with everything that it nests converted; ``convert`` gets the value and its name.

    Example:
        >>> rebuilt((1, {"c": [2, 3]}), "hid", lambda value, name: f"{name}={value}")
        ('hid.0=1', {'c': ['hid.1.c.0=2', 'hid.1.c.1=3']})
    """
    if not nests(value):
        return convert(value, name)
    if is_cache(value):
        return with_parts(value, rebuilt(parts_of_cache(value), name, convert))
    fields = fields_of(value)
    if fields is not None:
        inside = {key: rebuilt(inner, f"{name}.{key}", convert) for key, inner in fields.items()}
        return type(value)(**inside)
    if isinstance(value, Mapping):
        return {key: rebuilt(inner, f"{name}.{key}", convert) for key, inner in value.items()}
    items = [rebuilt(inner, f"{name}.{i}", convert) for i, inner in enumerate(value)]
    return items if isinstance(value, list) else tuple(items)


def without_fixed(
    args: Sequence[Any], named: Mapping[str, Any], names: Sequence[str], fixed: Mapping[str, Any], order: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call without those that are no tensors, which must be as they were at capture.

    Args:
        args, named: the call.
        names: of the model's tensors.
        fixed: values that are no tensors, by name.
        order: the model's arguments, tensors and others.

    Raises:
        InputError: a fixed value is another one.

    Example:
        >>> without_fixed((1.5, [0]), {}, ["x.0"], {"scale": 1.5}, ["scale", "x"])
        (([0],), {})
    """
    if not fixed:
        return tuple(args), dict(named)
    plain = any(is_plain(leaf) for value in (*args, *named.values()) for _, leaf in leaves("", value))
    if not plain and len(args) + len(named) in (len(names), len(arguments(names))):
        return tuple(args), dict(named)

    def check(value: Any, name: str) -> Any:
        if name not in fixed:
            return value
        if not is_plain(value) or value != fixed[name]:
            what = f"{name} is fixed to {fixed[name]!r}"
            remedy = "give the same value, or prepare the model again with the other one"
            raise InputError(what, why="it was no tensor when the model was captured", remedy=remedy)
        return None

    left_out = {*order, *fixed}.difference(names, arguments(names))
    pairs = [(name, rebuilt(value, name, check)) for name, value in zip(order, args, strict=False)]
    by_name = {name: rebuilt(value, name, check) for name, value in named.items()}
    given = [value for name, value in pairs if name not in left_out]
    return (*given, *args[len(pairs) :]), {name: value for name, value in by_name.items() if name not in left_out}


def spread(names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors by name, of a call that nests them as the model does.

    Args:
        names: of the model's tensors, in order.
        args: arguments in order, tensors or what holds some.
        named: further arguments by name.

    Raises:
        InputError: too many arguments, or one given twice.

    Example:
        >>> spread(["x", "hid.0", "hid.1"], [1], {"hid": (2, 3)})
        {'x': 1, 'hid.0': 2, 'hid.1': 3}
    """
    places = arguments(names)
    if len(args) > len(places):
        raise InputError(f"got {len(args)} arguments, expected {len(places)}", remedy=f"give {', '.join(places)}")
    found: dict[str, Any] = {}
    for argument, value in (*zip(places[: len(args)], args, strict=True), *named.items()):
        for name, leaf in leaves(argument, value):
            if name in found:
                raise InputError("given by position and by name", where=name, remedy="give it once")
            found[name] = leaf
    return found
