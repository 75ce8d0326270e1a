"""Whether a program obeys the specification. Cheap, and safe on hostile input: nothing is computed from its arrays'
values before their sizes are known to fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from intact8.arithmetic.dimensions import (
    SIZED,
    NoSizeError,
    added,
    grows,
    is_name,
    least_of,
    less,
    limits_of,
    names_of,
    told_by,
)
from intact8.errors import ProgramError
from intact8.opset import KINDS, Array, Kind, Op, Tensor, output_shape
from intact8.opset.shapes import elements
from intact8.opset.types import PLAIN, check_types
from intact8.opset.values import LARGEST_SCALE, LARGEST_SIZE, SMALLEST_SCALE, is_int
from intact8.opset.violation import Violation, need

from .golden import check_golden
from .program import Program

NAME_LENGTH = 500
MOST_REPEATS = 64
"""How often one tensor may be named as an output: it is copied every time, so that no result changes with another."""


def check(program: Program) -> None:
    """Raise ProgramError, naming op and reason, unless ``program`` obeys the specification.

    Example:
        >>> check(Program({}, (), ("x",), ()))
        Traceback (most recent call last):
        intact8.errors.ProgramError: x: the input has no tensor. Remedy: convert the model again
    """
    _guard("dimensions", _check_dimensions, program)
    for name, tensor in program.tensors.items():
        _guard(name, _check_tensor, name, tensor, program.dimensions)
    _check_ends(program)
    defined = set(program.inputs)
    for op in program.ops:
        _guard(f"op {op.name}", _check_op, op, program.tensors, defined)
        if program.dimensions:
            _guard(f"op {op.name}", _check_sizes, op, program)
        defined.add(op.name)
    extra = set(program.tensors) - defined
    if extra:
        raise _error("nothing makes this tensor", min(extra))
    for name, count in Counter(program.outputs).items():
        if name not in defined:
            raise _error("the output has no op", name)
        if count > MOST_REPEATS:
            raise _error(f"the tensor is {count} times an output, more than {MOST_REPEATS}", name)
    _guard("structure", _check_structure, program.structure, len(program.outputs), 0)
    _guard("golden", check_golden, program)
    if not set(program.needs) <= {"vnni"}:
        raise _error(f"unknown needs {program.needs!r}", "program")


def _error(reason: str, where: str) -> ProgramError:
    return ProgramError(reason, where=where, remedy="convert the model again")


def _guard(where: str, function: Any, *args: Any) -> None:
    try:
        function(*args)
    except (Violation, NoSizeError) as violation:
        raise _error(str(violation), where) from violation


def _check_dimensions(program: Program) -> None:
    """Every name has limits, and an input that tells its size."""
    if not program.dimensions:
        return
    # An input may be named often, and have any number of dimensions: neither has been looked at yet.
    shapes = (program.tensors[name].shape for name in dict.fromkeys(program.inputs) if name in program.tensors)
    texts = {d for shape in shapes if isinstance(shape, tuple) for d in shape if isinstance(d, str)}
    told = {by[0] for d in texts if (by := told_by(d)) is not None and by[1] > 0}
    for name, (least, most) in program.dimensions.items():
        plain = isinstance(name, str) and 0 < len(name) <= 60 and is_name(name)
        need(plain, f"bad name of a dimension {name!r:.80}")
        ends = is_int(least) and 1 <= least <= LARGEST_SIZE
        need(ends and (most is None or (is_int(most) and least <= most <= LARGEST_SIZE)), f"bad limits of {name!r:.80}")
        need(name in told, f"no input tells the size of {name!r:.80}")


def _check_sizes(op: Op, program: Program) -> None:
    """Names in attributes are dimensions; what is cut is long enough at every size."""
    t, dimensions = op.attrs, program.dimensions
    for values in (t.get(key) for key in SIZED):
        for value in values if isinstance(values, list) else [values]:
            need(not isinstance(value, str) or _is_size(value, dimensions), f"unknown dimension {value!r:.60}")
    if op.kind != "slice":
        return
    length, start, end = program.tensors[op.inputs[0]].shape[t["axis"]], t["start"], t["end"]
    need(limits_of(start, dimensions)[0] >= 0, f"{start} may be less than 0")
    if length is None or (isinstance(length, int) and isinstance(end, int)):
        return
    most, rest = limits_of(end, dimensions)[1], less(length, end)
    if isinstance(length, int):
        need(most is not None and most <= length, f"{end} may be longer than {length}")
    else:
        least = least_of(rest, dimensions)
        need(least is not None and least >= 0, f"{length} may be shorter than {end}")


def _is_size(value: Any, dimensions: Mapping[str, Any]) -> bool:
    """Return whether a text is the name of a dimension, or computed of some, in the one way it is written."""
    if not isinstance(value, str):
        return False
    try:
        known = bool(names := names_of(value)) and dimensions.keys() >= set(names)
        return known and added([value]) == value and grows(value) and limits_of(value, dimensions)[0] <= LARGEST_SIZE
    except NoSizeError:
        return False


def _check_tensor(name: str, t: Tensor, dimensions: Mapping[str, Any]) -> None:
    need(isinstance(name, str) and 0 < len(name) <= NAME_LENGTH and name == t.name, f"bad tensor name {t.name!r:.80}")
    need(not any("\ud800" <= letter <= "\udfff" for letter in name), f"tensor name {name!r:.80} is no Unicode text")
    need(t.dtype in PLAIN, f"unknown dtype {t.dtype!r:.40}")
    need(isinstance(t.shape, tuple) and len(t.shape) <= 8, "bad shape")
    sizes: list[Any] = [d for d in t.shape if d is not None and not _is_size(d, dimensions)]
    need(all(is_int(d) and 1 <= d <= LARGEST_SIZE for d in sizes), f"bad shape {t.shape!r:.80}")
    named = [d for d in t.shape if isinstance(d, str)]
    need(all(limits_of(d, dimensions)[0] >= 1 for d in named), f"shape {t.shape} may hold nothing")
    need(elements(t.shape) <= LARGEST_SIZE, f"shape {t.shape} is too large")
    need((t.scale is None) == (t.zero_point is None), "scale and zero point come together")
    if t.scale is not None:
        positive = isinstance(t.scale, float) and SMALLEST_SCALE <= t.scale <= LARGEST_SCALE
        need(
            positive and float(np.float32(t.scale)) == t.scale,
            f"scale {t.scale!r:.40} is not a positive float32 value within {SMALLEST_SCALE:.3g}..{LARGEST_SCALE:.4g}",
        )
        need(
            is_int(t.zero_point) and 0 <= int(t.zero_point or 0) <= 255,
            f"zero point {t.zero_point!r:.40} is outside 0..255",
        )
        need(t.dtype == "uint8", f"a quantized tensor of dtype {t.dtype}")


def _check_ends(program: Program) -> None:
    if len(set(program.inputs)) != len(program.inputs):
        raise _error("an input occurs twice", "inputs")
    for name in program.inputs:
        if name not in program.tensors:
            raise _error("the input has no tensor", name)


def _check_op(op: Op, tensors: dict[str, Tensor], defined: set[str]) -> None:
    need(op.kind in KINDS, f"unknown kind {op.kind!r:.60}")
    kind = KINDS[op.kind]
    need(op.name not in defined, "the name is used twice")
    need(op.name in tensors, "the op has no output tensor")
    low, high = kind.inputs
    need(low <= len(op.inputs) <= high, f"{op.kind} takes {low} to {high} inputs, not {len(op.inputs)}")
    for name in op.inputs:
        need(name in defined, f"input {name!r:.80} is not defined before its use")
    _check_attrs(op, kind)
    _check_arrays(op, kind)
    inputs, output = [tensors[n] for n in op.inputs], tensors[op.name]
    check_types(op, kind.types, inputs, output)
    shape = output_shape(op, inputs, output.shape)
    need(shape == output.shape, f"gives shape {shape}, declared is {output.shape}")
    if kind.check is not None:
        kind.check(op, inputs, output)


def _check_attrs(op: Op, kind: Kind) -> None:
    unknown = set(op.attrs) - set(kind.attrs) - set(kind.optional)
    need(not unknown, f"unknown attribute {min(map(str, unknown), default='')!r:.60}")
    for name, validate in {**kind.attrs, **kind.optional}.items():
        if name not in op.attrs:
            need(name in kind.optional, f"attribute {name} is missing")
            continue
        reason = validate(op.attrs[name])
        need(reason is None, f"{name} {reason}")
    if "lo" in kind.attrs:
        need(op.attrs["lo"] <= op.attrs["hi"], f"lo {op.attrs['lo']} exceeds hi {op.attrs['hi']}")


def _check_arrays(op: Op, kind: Kind) -> None:
    unknown = set(op.arrays) - set(kind.arrays) - set(kind.optional_arrays)
    need(not unknown, f"unknown array {min(unknown, default='')!r:.60}")
    for role, dtype in {**kind.arrays, **kind.optional_arrays}.items():
        if role not in op.arrays:
            need(role in kind.optional_arrays, f"array {role} is missing")
            continue
        array = op.arrays[role]
        need(isinstance(array, np.ndarray), f"{role} is no array")
        need(
            str(array.dtype) == dtype or (not dtype and str(array.dtype) in PLAIN),
            f"{role} has dtype {array.dtype}, not {dtype}",
        )
        need(array.size >= 1, f"{role} is empty")
        if array.dtype.kind == "f":
            _check_numbers(role, array, role in kind.infinite)


def _check_numbers(role: str, array: Array, infinite: bool) -> None:
    """No NaN, and infinities only where the kind has a use for them."""
    with np.errstate(invalid="ignore"):
        ends = float(array.min()), float(array.max())  # either is NaN where one is, and no mask is made
    if math.isfinite(ends[0]) and math.isfinite(ends[1]):
        return
    bad = np.isnan(array) if infinite else ~np.isfinite(array)
    if bad.any():
        index = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), array.shape))
        raise Violation(f"{role} holds {array[index]} at index {index}, and must hold finite numbers")


def _check_structure(node: Any, count: int, depth: int) -> None:
    need(depth < 50, "outputs nest too deeply")
    if is_int(node):
        need(0 <= node < count, f"index {node} is outside the {count} outputs")
        return
    need(isinstance(node, dict), f"bad entry {node!r:.60}")
    keys = set(node)
    if keys == {"none"}:
        need(node["none"] is True, "bad entry none")
    elif keys == {"value"}:
        value = node["value"]
        plain = isinstance(value, (bool, str)) or is_int(value) or (isinstance(value, float) and math.isfinite(value))
        need(plain, f"bad entry {node!r:.60}")
    elif keys in ({"list"}, {"tuple"}):
        children = node[min(keys)]
        need(isinstance(children, list), f"bad entry {node!r:.60}")
        for child in children:
            _check_structure(child, count, depth + 1)
    elif keys == {"pairs"}:
        pairs, seen = node["pairs"], set()
        good = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        need(good, f"bad entry {node!r:.60}")
        for key, child in pairs:
            parts = key if isinstance(key, list) else [key]
            need(all(isinstance(part, str) or is_int(part) for part in parts), f"bad key {key!r:.60}")
            seen.add(tuple(key) if isinstance(key, list) else key)
            _check_structure(child, count, depth + 1)
        need(len(seen) == len(pairs), f"a key twice in {node!r:.60}")
    elif keys in ({"dict"}, {"object", "fields"}):
        need("dict" in keys or isinstance(node["object"], str), f"bad entry {node!r:.60}")
        children = node["dict" if "dict" in keys else "fields"]
        need(isinstance(children, dict), f"bad entry {node!r:.60}")
        for child in children.values():
            _check_structure(child, count, depth + 1)
    else:
        raise Violation(f"bad entry {node!r:.60}")
