"""A program without its arrays as one JSON object, and back. Its schema is ``schema.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from intact8.arithmetic.dimensions import SIZED, NoSizeError, added
from intact8.errors import ProgramError
from intact8.opset import KINDS, Array, Op, Tensor
from intact8.opset.violation import Violation

from . import integrity
from .golden import Golden
from .golden import from_json as golden_from_json
from .program import Program

FORMAT, VERSION = "intact", 6
"""Name and version of the format, whose name is older than the package's; the program stands under it in the metadata.
A reader reads its own version and every earlier one."""

MOST_ENTRIES = 1 << 17
"""Tensors, and operations, of one program."""

COMPUTED = 6
"""Version of the format from which on sizes are products and quotients, too, and what has windows takes named ones, and
outputs are in dicts whose keys are no texts."""

OPERATORS = frozenset("*/(-")
"""Letters of sizes that are no sums of names."""

WINDOWED = frozenset({"conv", "dequantized_conv", "avg_pool", "max_pool", "upsample", "resize_linear", "pad", "slice"})
"""Kinds that took no named size of what they work along before."""

INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def lowest_version(program: Program) -> int:
    """Return the first version of the format that can hold ``program``: what it is written as.

    Never one without a checksum.
    """
    new = _has_pairs(program.structure) or any(_is_computed(op, program) for op in program.ops)
    computed = COMPUTED if new else 1
    return max((integrity.SINCE, computed, *(KINDS[op.kind].since for op in program.ops)))


def _has_pairs(structure: Any) -> bool:
    """Return whether outputs are in a dict whose keys are no texts."""
    if not isinstance(structure, dict):
        return False
    if "pairs" in structure:
        return True
    named = structure.get("dict") or structure.get("fields") or {}
    return any(map(_has_pairs, [*named.values(), *(structure.get("list") or structure.get("tuple") or [])]))


def _is_computed(op: Op, program: Program) -> bool:
    """Return whether an operation has sizes that readers before COMPUTED do not know: others than names and sums of
    them, or names where they demanded numbers."""
    shape = program.tensors[op.name].shape
    if any(isinstance(dim, str) and not OPERATORS.isdisjoint(dim) for dim in shape):
        return True
    if not op.inputs or op.kind.removeprefix("float.") not in WINDOWED:
        return False
    x = program.tensors[op.inputs[0]].shape
    rows = op.attrs["pads"] if op.kind == "pad" else [dim > 1 for dim in range(len(x))]
    if op.kind == "slice":
        rows = [dim == op.attrs["axis"] and isinstance(op.attrs["end"], str) for dim in range(len(x))]
    return any(isinstance(dim, str) and row not in (False, [0, 0]) for dim, row in zip(x, rows, strict=True))


def to_document(program: Program) -> dict[str, Any]:
    """Return the JSON object of ``program``; arrays are named by role and live outside."""
    golden = {} if program.golden is None else {"golden": program.golden.to_json()}
    return {
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "structure": program.structure,
        "needs": list(program.needs),
        "tensors": [_tensor(t) for t in program.tensors.values()],
        "ops": [_op(op) for op in program.ops],
        "recipe": program.recipe,
        "provenance": program.provenance,
        **golden,
        **(
            {"dimensions": {name: list(ends) for name, ends in program.dimensions.items()}}
            if program.dimensions
            else {}
        ),
    }


def dumps(document: Mapping[str, Any]) -> str:
    """Return the compact JSON; NaN and infinities are refused.

    Raises:
        ProgramError: a value JSON cannot hold.
    """
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ProgramError(
            "the program holds a value JSON cannot write", why=str(error), remedy="keep provenance and attributes plain"
        ) from error


def _tensor(t: Tensor) -> dict[str, Any]:
    out: dict[str, Any] = {"name": t.name, "dtype": t.dtype, "shape": list(t.shape)}
    if t.scale is not None:
        out |= {"scale": t.scale, "zero_point": t.zero_point}
    return out


def _op(op: Op) -> dict[str, Any]:
    out: dict[str, Any] = {"name": op.name, "kind": op.kind, "inputs": list(op.inputs)}
    if op.attrs:
        out["attrs"] = {k: _attr(v) for k, v in op.attrs.items()}
    if op.arrays:
        out["arrays"] = sorted(op.arrays)
    if op.module:
        out["module"] = op.module
    if op.source:
        out["source"] = list(op.source)
    if op.certificate is not None:
        out["certificate"] = op.certificate
    if op.note:
        out["note"] = op.note
    return out


def _attr(value: Any) -> Any:
    # JSON has no infinities, and the values of masks and paddings are often −∞.
    return {"float": repr(value)} if isinstance(value, float) and math.isinf(value) else value


class _Reader:
    """Takes typed values out of a JSON object, and knows what was not asked for."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _malformed(f"expected an object, not {value!r:.60}", where)
        self.rest, self.where = dict(value), where

    def take(self, key: str, kind: type | tuple[type, ...], *default: Any) -> Any:
        if key not in self.rest:
            if default:
                return default[0]
            raise _malformed(f"{key} is missing", self.where)
        value = self.rest.pop(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _malformed(f"{key} has the wrong type: {value!r:.60}", self.where)
        return value

    def strings(self, key: str, *default: Any) -> tuple[str, ...]:
        value = self.take(key, list, *default)
        if not all(isinstance(v, str) for v in value):
            raise _malformed(f"{key} must hold strings", self.where)
        return tuple(value)

    def done(self) -> None:
        if self.rest:
            raise _malformed(f"unknown key {min(self.rest)!r:.60}", self.where)


def _malformed(reason: str, where: str) -> ProgramError:
    return ProgramError(reason, where=where, remedy="the file was altered or badly written; convert the model again")


def from_document(document: Any, arrays: Mapping[str, Array]) -> Program:
    """Return the program of a JSON object; ``arrays`` maps ``op/role`` to arrays. Not checked yet.

    Raises:
        ProgramError: a key missing, unknown or of the wrong type; an array missing or unused.
    """
    r = _Reader(document, "program")
    structure = r.rest.pop("structure", None)
    rest = dict(arrays)
    tensors: dict[str, Tensor] = {}
    for entry in _counted(r.take("tensors", list), "tensors"):
        tensor = _read_tensor(entry)
        if tensor.name in tensors:
            raise _malformed("the tensor occurs twice", f"tensor {tensor.name}")
        tensors[tensor.name] = tensor
    ops = tuple(_read_op(entry, rest) for entry in _counted(r.take("ops", list), "ops"))
    golden = _read_golden(r.take("golden", dict, None), rest)
    program = Program(
        tensors,
        ops,
        r.strings("inputs"),
        r.strings("outputs"),
        structure,
        r.take("recipe", str, ""),
        r.take("provenance", dict, {}),
        r.strings("needs", []),
        golden,
        _read_dimensions(r.take("dimensions", dict, {})),
    )
    r.done()
    if rest:
        raise _malformed("no op uses this array", min(rest))
    return program


def _counted(entries: list[Any], what: str) -> list[Any]:
    if len(entries) > MOST_ENTRIES:
        raise _malformed(f"{len(entries)} {what}, more than {MOST_ENTRIES}", "program")
    return entries


def _read_dimensions(value: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    for name, ends in value.items():
        if not isinstance(ends, list) or len(ends) != 2:
            raise _malformed(f"the limits of {name!r:.80} are no pair: {ends!r:.60}", "dimensions")
    return {name: (ends[0], ends[1]) for name, ends in value.items()}


def _read_golden(value: Any, arrays: dict[str, Array]) -> Golden | None:
    if value is None:
        return None
    try:
        return golden_from_json(value, arrays)
    except Violation as violation:
        raise _malformed(str(violation), "golden") from violation


def _read_tensor(entry: Any) -> Tensor:
    r = _Reader(entry, "tensor")
    name = r.take("name", str)
    r.where = f"tensor {name:.80}"
    scale = r.take("scale", (int, float), None)
    out = Tensor(
        name,
        r.take("dtype", str),
        tuple(_read_size(dim) for dim in r.take("shape", list)),
        None if scale is None else float(scale),
        r.take("zero_point", int, None),
    )
    r.done()
    return out


def _read_size(value: Any) -> Any:
    """Return a size, with a sum of names as it is written from format 6 on: ``2*n`` for ``n+n``."""
    if isinstance(value, str) and "+" in value and OPERATORS.isdisjoint(value):
        try:
            return added([value])
        except NoSizeError:
            pass
    return value


def _read_op(entry: Any, arrays: dict[str, Array]) -> Op:
    r = _Reader(entry, "op")
    name = r.take("name", str)
    r.where = f"op {name:.80}"
    attrs = {}
    for key, value in r.take("attrs", dict, {}).items():
        if isinstance(value, dict):
            number = value.get("float")
            if set(value) != {"float"} or not isinstance(number, str) or number not in INFINITIES:
                raise _malformed(f"attribute {key} has the wrong type", r.where)
            value = INFINITIES[number]
        if key in SIZED:
            value = [_read_size(v) for v in value] if isinstance(value, list) else _read_size(value)
        attrs[key] = value
    own = {}
    for role in r.strings("arrays", []):
        if f"{name}/{role}" not in arrays:
            raise _malformed(f"the array {role} is missing from the file", r.where)
        own[role] = arrays.pop(f"{name}/{role}")
    op = Op(
        name,
        r.take("kind", str),
        r.strings("inputs"),
        attrs,
        own,
        r.take("module", str, ""),
        r.strings("source", []),
        r.take("certificate", dict, None),
        r.take("note", str, ""),
    )
    r.done()
    return op
