"""Inputs that nest, as in ``model(x, (h, c))``: their tensors have the names ``x``, ``hid.0`` and ``hid.1``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def nests(value: Any) -> bool:
    """Return whether ``value`` holds tensors rather than being one."""
    return isinstance(value, (list, tuple, Mapping)) or is_cache(value)


def arguments(names: Iterable[str]) -> list[str]:
    """Return the arguments that tensors of these names belong to.

    Example:
        >>> arguments(["x", "hid.0", "hid.1"])
        ['x', 'hid']
    """
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Everything but None that ``value`` holds, by name.

    Example:
        >>> list(leaves("hid", (1, {"c": 2})))
        [('hid.0', 1), ('hid.1.c', 2)]
    """
    if is_cache(value):
        value = parts_of_cache(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from leaves(f"{name}.{i}", inner)
    elif value is not None:
        yield name, value


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
    for argument, value in (*zip(places, args, strict=False), *named.items()):
        for name, leaf in leaves(argument, value):
            if name in found:
                raise InputError("given by position and by name", where=name, remedy="give it once")
            found[name] = leaf
    return found
