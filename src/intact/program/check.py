"""Whether a program obeys the specification. Cheap, and safe on hostile input: nothing is computed from its arrays'
values before their sizes are known to fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intact.arithmetic.norms import LONGEST_ROW
from intact.arithmetic.softmax import PEAK
from intact.arithmetic.windows import adaptive_divisors, pool_divisors, sees_padding_only
from intact.errors import ProgramError

from .golden import check_golden
from .kinds import KINDS, Kind
from .ops import Array, Op, Tensor
from .program import Program
from .shapes import elements, output_shape
from .types import PLAIN, check_types
from .values import LARGEST_A, LARGEST_B, LARGEST_B_NEGATIVE, LARGEST_SCALE, LARGEST_SIZE, SMALLEST_SCALE, is_int
from .violation import Violation, need

NAME_LENGTH = 500
MOST_WINDOWS = 1 << 24
MOST_REPEATS = 64
"""How often one tensor may be named as an output: it is copied every time, so that no result changes with another."""

MOST_TERMS = 1 << 20
"""A sum of this many products, times the largest numerator, still fits int64."""


def check(program: Program) -> None:
    """Raise ProgramError, naming op and reason, unless ``program`` obeys the specification.

    Example:
        >>> check(Program({}, (), ("x",), ()))
        Traceback (most recent call last):
        intact.errors.ProgramError: x: the input has no tensor. Remedy: convert the model again
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
    except Violation as violation:
        raise _error(str(violation), where) from violation


def _check_dimensions(program: Program) -> None:
    """Every name has limits, and an input that tells its size."""
    shapes = (program.tensors[name].shape for name in program.inputs if name in program.tensors)
    told = {d for shape in shapes if isinstance(shape, tuple) for d in shape if isinstance(d, str)}
    for name, (least, most) in program.dimensions.items():
        need(isinstance(name, str) and 0 < len(name) <= 60, f"bad name of a dimension {name!r:.80}")
        ends = is_int(least) and 1 <= least <= LARGEST_SIZE
        need(ends and (most is None or (is_int(most) and least <= most <= LARGEST_SIZE)), f"bad limits of {name!r:.80}")
        need(name in told, f"no input tells the size of {name!r:.80}")


def _check_sizes(op: Op, program: Program) -> None:
    """Names in attributes are dimensions; what is cut is long enough at every size."""
    t, dimensions = op.attrs, program.dimensions
    for value in (t.get("end"), *(t["shape"] if isinstance(t.get("shape"), list) else ())):
        need(not isinstance(value, str) or value in dimensions, f"unknown dimension {value!r:.60}")
    if op.kind != "slice":
        return
    length, end = program.tensors[op.inputs[0]].shape[t["axis"]], t["end"]
    if isinstance(end, str) and isinstance(length, int):
        most = dimensions[end][1]
        need(most is not None and most <= length, f"{end} may be longer than {length}")
    if isinstance(length, str):
        need(end <= dimensions[length][0], f"{length} may be shorter than {end}")


def _check_tensor(name: str, t: Tensor, dimensions: Mapping[str, Any]) -> None:
    need(isinstance(name, str) and 0 < len(name) <= NAME_LENGTH and name == t.name, f"bad tensor name {t.name!r:.80}")
    need(t.dtype in PLAIN, f"unknown dtype {t.dtype!r:.40}")
    need(isinstance(t.shape, tuple) and len(t.shape) <= 8, "bad shape")
    sizes: list[Any] = [d for d in t.shape if d is not None and not (isinstance(d, str) and d in dimensions)]
    need(all(is_int(d) and 1 <= d <= LARGEST_SIZE for d in sizes), f"bad shape {t.shape!r:.80}")
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
    if kind.domain == "any":
        _check_move(op, inputs, output)
    if op.kind in ("conv", "linear"):
        _check_affine(op)
    if op.kind == "softmax":
        _check_softmax(op)
    shape = output_shape(op, inputs[:1] if op.kind in ("conv", "linear") else inputs, output.shape)
    need(shape == output.shape, f"gives shape {shape}, declared is {output.shape}")
    if len(inputs) == 2 and op.kind in ("conv", "linear"):
        need(inputs[1].shape == shape, f"residual of shape {inputs[1].shape} is not {shape}")
    _check_windows(op, inputs, output)


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
    if op.kind == "add":
        need(len(op.attrs["a"]) == len(op.inputs), f"{len(op.attrs['a'])} numerators for {len(op.inputs)} inputs")
    if op.attrs.get("fn") in ("threshold", "pow") and op.kind == "float.unary":
        for name in ("threshold", "value") if op.attrs["fn"] == "threshold" else ("exponent",):
            need(name in op.attrs, f"attribute {name} is missing")


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
    if op.kind == "table":
        need(op.arrays["table"].shape == (256,), f"table has shape {op.arrays['table'].shape}, not (256,)")


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


def _check_affine(op: Op) -> None:
    weight = op.arrays["weight"]
    need(weight.ndim == 2 if op.kind == "linear" else 3 <= weight.ndim <= 5, f"weight has shape {weight.shape}")
    need(weight.size // min(weight.shape[:2]) <= MOST_TERMS, f"weight of shape {weight.shape} sums too many products")
    outputs = weight.shape[1] * op.attrs["groups"] if op.attrs.get("transposed") else weight.shape[0]
    for role in ("bias", "a", "b", "a_neg", "b_neg"):
        if role in op.arrays:
            need(op.arrays[role].shape == (outputs,), f"{role} has shape {op.arrays[role].shape}, not ({outputs},)")
    need(("a_neg" in op.arrays) == ("b_neg" in op.arrays), "a_neg and b_neg come together")
    a, b = op.arrays["a"], op.arrays["b"]
    need(bool((a >= 0).all() and (a <= LARGEST_A).all()), f"a must be within 0..{LARGEST_A}")
    if "a_neg" in op.arrays:
        need(
            bool((np.abs(op.arrays["a_neg"].astype(np.int64)) <= LARGEST_A).all()), f"a_neg must be within ±{LARGEST_A}"
        )
    for role, limit in (("b", LARGEST_B), ("b_neg", LARGEST_B_NEGATIVE)):
        if role in op.arrays:
            v = op.arrays[role]
            need(bool(((v >= 1) & (v <= limit) & (v % 2 == 1)).all()), f"{role} must be odd and within 1..{limit}")
    if len(op.inputs) == 2:
        need(op.attrs["residual_a"] >= 1, "residual_a is 0, but there is a residual")
        need(bool((b == b[0]).all()), "with a residual all b must be equal")
        need("a_neg" not in op.arrays, "a residual does not go with a_neg")
    else:
        need(op.attrs["residual_a"] == 0, "residual_a without a residual")


def _check_softmax(op: Op) -> None:
    table = op.arrays["table"].astype(np.int64)
    need(table.shape == (256,), f"table has shape {table.shape}, not (256,)")
    falling = bool((np.diff(table) <= 0).all()) and table[-1] >= 0 and 1 <= table[0] <= PEAK
    need(falling, f"the table does not fall from at most {PEAK} to 0")


def _check_move(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    if not inputs:
        value = op.arrays["value"].dtype
        need(output.dtype == value, f"the value is {value}, declared is {output.dtype}")
    for t in inputs:
        same = (t.dtype, t.scale, t.zero_point) == (output.dtype, output.scale, output.zero_point)
        need(same, f"{t.name} and the output differ in dtype, scale or zero point")
    if op.kind == "upsample":
        integral = op.attrs["mode"].startswith("nearest") or not output.quantized
        need(integral, f"mode {op.attrs['mode']} is no integer operation")
        need(output.quantized or output.dtype == "float32" or op.attrs["mode"].startswith("nearest"), "resizes float32")
    if op.kind == "pad" and output.dtype != "float32":
        value, most = op.attrs["value"], 1 if output.dtype == "bool" else 255
        need(float(value).is_integer() and 0 <= value <= most, f"value {value} is no integer within 0..{most}")


def _check_windows(op: Op, inputs: Sequence[Tensor], output: Tensor) -> None:
    """A mean's sum must fit, and every divisor of an average pool needs its multiplier."""
    t = op.attrs
    if op.kind == "mean":
        terms = math.prod(d for i, d in enumerate(inputs[0].shape) if i in t["dims"] and isinstance(d, int))
        need(terms <= MOST_TERMS, f"sums {terms} elements, more than {MOST_TERMS}")
    if op.kind in ("layer_norm", "rms_norm"):
        need(math.prod(t["shape"]) <= LONGEST_ROW, f"a row of more than {LONGEST_ROW} elements")
    if op.kind == "max_pool":
        rows = zip(inputs[0].shape[2:], t["kernel"], t["stride"], t["padding"], t["dilation"], strict=True)
        empty = any(
            isinstance(n, int) and sees_padding_only(n, k, s, p, d, bool(t["ceil_mode"])) for n, k, s, p, d in rows
        )
        need(not empty, "a window holds nothing but padding: it has no maximum")
    if op.kind not in ("avg_pool", "adaptive_avg_pool"):
        return
    need(elements(output.shape[2:]) <= MOST_WINDOWS, f"more than {MOST_WINDOWS} windows")
    need(all(row[0] <= MOST_TERMS for row in t["multipliers"]), f"a window of more than {MOST_TERMS} elements")
    size = [d for d in inputs[0].shape[2:] if isinstance(d, int)]
    stored = {row[0] for row in t["multipliers"]}
    if op.kind == "avg_pool":
        window = (t["kernel"], t["stride"], t["padding"], t["ceil_mode"], t["count_include_pad"])
        occurring = pool_divisors(size, *window, len(stored))
    else:
        occurring = adaptive_divisors(size, t["output_size"], len(stored))
    told = "more" if occurring is None else f"{sorted(occurring)!r:.200}"
    need(occurring == stored, f"multipliers are for divisors {sorted(stored)!r:.200}, those that occur are {told}")


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
    elif keys in ({"dict"}, {"object", "fields"}):
        need("dict" in keys or isinstance(node["object"], str), f"bad entry {node!r:.60}")
        children = node["dict" if "dict" in keys else "fields"]
        need(isinstance(children, dict), f"bad entry {node!r:.60}")
        for child in children.values():
            _check_structure(child, count, depth + 1)
    else:
        raise Violation(f"bad entry {node!r:.60}")


__all__ = ["check"]
