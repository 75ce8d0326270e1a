"""What a checkpoint says, by module path: weights, scales and zero points, whatever format it came in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import ScriptObject, Tensor

from intact8.errors import InputError
from intact8.migration.grids import WeightGrid
from intact8.migration.observers import quantized_weight
from intact8.migration.pickle_machine import PickleError
from intact8.migration.torch_file import Object, QuantizedTensor, StoredTensor

Array = npt.NDArray[Any]

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "ema_state_dict")
"""Keys under which training scripts put the state dict."""

PACKED = "_packed_params._packed_params"

CELLS = re.compile(r"(.*?)\.?_all_weight_values\.(\d{1,4})\.param")
"""Names of the weights of one layer and direction of a dynamic LSTM or GRU."""

CELL = re.compile(r"(.*?)\.?_packed_weight_(ih|hh)")
"""Names of the weights of a dynamic cell."""

ROLES = ("ih", "hh")
"""What the two weights of a recurrent layer multiply: its input, and its state."""

Packed = tuple[WeightGrid, Array | None]
"""The integers of a packed weight, and its bias."""


@dataclass
class Entries:
    """A checkpoint by module path; the root's path is "".

    Attributes:
        weights: path → integers of its weight.
        biases: path → its bias, float32, where its weight has integers.
        grids: path → scale and zero point of what the module returns; in FX models with underscores in place of dots,
            and of what it reads where ``_input`` follows.
        recurrent: path → the packed weights for the input and for the state of every layer and direction, in order.
        floats: full name → numbers of everything else.
        scripted: whether it is of a TorchScript file.
    """

    weights: dict[str, WeightGrid] = field(default_factory=dict)
    biases: dict[str, Array | None] = field(default_factory=dict)
    grids: dict[str, tuple[float, int]] = field(default_factory=dict)
    recurrent: dict[str, dict[tuple[int, str], Packed]] = field(default_factory=dict)
    floats: dict[str, Array] = field(default_factory=dict)
    scripted: bool = False


def entries_of(checkpoint: Mapping[str, Any] | Object, where: str) -> Entries:
    """Return what a state dict says, or the objects of a TorchScript file.

    Raises:
        InputError: it is neither, or holds something that is not for a module.
    """
    try:
        flat = dict(_of_objects(checkpoint, "")) if isinstance(checkpoint, Object) else _unwrapped(checkpoint, where)
        return _sorted(flat)
    except PickleError as error:
        raise InputError("a tensor of the checkpoint cannot be read", where=where, why=str(error)) from error


def _unwrapped(checkpoint: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the state dict, which a training script may have put beside other things."""
    found: Any = checkpoint
    for _ in range(3):
        inside = [found[k] for k in WRAPPERS if isinstance(found.get(k), Mapping)]
        if len(inside) != 1 or any(isinstance(v, (StoredTensor, Tensor)) for v in found.values()):
            break
        (found,) = inside
    if not any(isinstance(v, (StoredTensor, Tensor, tuple, Object, ScriptObject)) for v in found.values()):
        what, keys = "there is no state dict in this checkpoint", ", ".join(map(str, list(found)[:8]))
        raise InputError(what, where=where, why=f"it has the keys {keys}", remedy="give the state dict in it")
    prefix = "module." if all(str(k).startswith("module.") for k in found) else ""
    return {str(k).removeprefix(prefix): v for k, v in found.items()}


def _of_objects(found: Object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values a state dict of TorchScript objects would have."""
    todo: list[tuple[str, Object]] = [(path, found)]
    seen: set[int] = set()
    while todo:
        path, thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        prefix = f"{path}." if path else ""
        state = thing.state
        if isinstance(state, tuple) and "quantized.modules" in thing.name:
            tensors = [(i, v) for i, v in enumerate(state) if isinstance(v, QuantizedTensor)]
            if len(tensors) == 1 and len(state) > tensors[0][0] + 3:
                at = tensors[0][0]
                yield from zip(
                    (f"{prefix}{name}" for name in ("weight", "bias", "scale", "zero_point")),
                    state[at : at + 4],
                    strict=True,
                )
            continue
        if isinstance(state, tuple) and path.endswith(PACKED):
            yield path, state
            continue
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, Object):
                todo.append((f"{prefix}{key}", value))
            elif isinstance(value, StoredTensor) or (key in ("scale", "zero_point") and value is not None):
                yield f"{prefix}{key}", value


def _sorted(flat: Mapping[str, Any]) -> Entries:
    out = Entries()
    for name, value in flat.items():
        path, _, leaf = name.rpartition(".")
        if name.endswith(PACKED):
            owner = name.removesuffix(PACKED).removesuffix(".")
            out.weights[owner], out.biases[owner] = _packed(value, owner)
        elif found := CELLS.fullmatch(name):
            for role, packed in zip(ROLES, _cell(value, found[1]), strict=True):
                out.recurrent.setdefault(found[1], {})[int(found[2]), role] = _packed(packed, found[1])
        elif found := CELL.fullmatch(name):
            out.recurrent.setdefault(found[1], {})[0, found[2]] = _packed(_state(value), found[1])
        elif _is_quantized(value):
            if leaf != "weight":
                raise InputError("quantized numbers that are no weight", where=name, remedy="give the float model's")
            out.weights[path] = _grid(value, path)
            out.biases.setdefault(path, None)
        elif isinstance(value, (StoredTensor, Tensor)) or (isinstance(value, (int, float)) and "." in name):
            out.floats[name] = _array(value)
    for name in [n for n in out.floats if n.rpartition(".")[2] == "bias" and n.rpartition(".")[0] in out.weights]:
        out.biases[name.rpartition(".")[0]] = out.floats.pop(name)
    _take_grids(out)
    return out


def _state(value: Any) -> Any:
    """Return what a packed object of torch keeps, from a file or from memory; None where it is no such object."""
    if not isinstance(value, (Object, ScriptObject)):
        return None
    state = value.state if isinstance(value, Object) else value.__getstate__()
    return state[0] if isinstance(state, tuple) and state else None


def _cell(value: Any, name: str) -> list[Any]:
    """Return the two packed weights of a recurrent layer and direction."""
    state = _state(value)
    if isinstance(state, tuple) and state and isinstance(state[0], str) and state[0] != "quantized_dynamic":
        why = "programs hold weights in 8 bits"
        raise InputError(f"recurrent weights of the form {state[0][:40]}", where=name, why=why)
    parts = state[4] if isinstance(state, tuple) and len(state) == 5 else None
    if not isinstance(parts, list) or len(parts) != len(ROLES):
        raise InputError("packed parameters of a recurrent layer that are none", where=name)
    return [_state(part) for part in parts]


def _packed(value: Any, owner: str) -> Packed:
    """Return the integers of a packed weight, and its bias."""
    if not isinstance(value, tuple) or len(value) < 1 or not _is_quantized(value[0]):
        raise InputError("packed parameters without a weight of integers", where=owner)
    bias = value[1] if len(value) > 1 else None
    if bias is not None and not isinstance(bias, (StoredTensor, Tensor)):
        raise InputError("packed parameters whose bias is no tensor", where=owner)
    return _grid(value[0], owner), None if bias is None else _array(bias)


def _take_grids(out: Entries) -> None:
    """Move pairs of scale and zero point from the floats to the grids."""
    for name in list(out.floats):
        path, dot, leaf = name.rpartition(".")
        if leaf == "scale" and not path.endswith(("fake_quant", "post_process")):
            other, key = f"{path}{dot}zero_point", path
        elif "_scale_" in leaf and not path:
            other, key = name.replace("_scale_", "_zero_point_"), leaf.rpartition("_scale_")[0] or leaf
        else:
            continue
        if other in out.floats and out.floats[name].size == 1 == out.floats[other].size:
            out.grids[key] = (float(out.floats.pop(name).item()), int(out.floats.pop(other).item()))


def _is_quantized(value: Any) -> bool:
    return isinstance(value, QuantizedTensor) or (isinstance(value, Tensor) and value.is_quantized)


def _grid(value: Any, name: str) -> WeightGrid:
    if isinstance(value, Tensor):
        return quantized_weight(value, name)
    integers = value.array()
    if integers.dtype != np.int8:
        what = f"a weight of integers of {integers.dtype}"
        raise InputError(what, where=name, why="programs hold weights as int8", remedy="give the layer's float weight")
    scale, zero_point = value.parameters()
    return WeightGrid(name, integers.astype(np.int64), scale, zero_point, value.axis)


def _array(value: Any) -> Array:
    if isinstance(value, StoredTensor):
        return value.array()
    if isinstance(value, Tensor):
        return np.asarray(value.detach().cpu().numpy())
    return np.asarray(value)
