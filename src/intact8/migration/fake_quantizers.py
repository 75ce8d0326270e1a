"""Fake quantizers and observers in checkpoints of prepared models: their scales, and weights on their grids."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from intact8.errors import InputError
from intact8.migration.description import Description
from intact8.migration.entries import Entries
from intact8.migration.grids import WeightGrid
from intact8.migration.observers import converted_grid, is_float, weight_grid, weight_observer

Array = npt.NDArray[Any]

WEIGHT, ACTIVATION = "weight_fake_quant", "activation_post_process"


def take_fake_quantizers(entries: Entries, described: Description, qconfig: Any = None) -> None:
    """Move the scales of fake quantizers to the grids, and their weights to the integers.

    A state dict does not say how many integers a fake quantizer has: weights have −128…127, activations 0…255, or
    0…127 where the range that was observed says so. The report tells that it was assumed. Nor does it say how an
    observer comes to a scale: ``qconfig``, with which the model was prepared, does.

    Raises:
        InputError: observers without scales, and no QConfig, or another one than that of the state dict.
    """
    names = sorted({owner for name in entries.floats if (owner := _owner(name)) is not None})
    if not names:
        return
    numbered = [n for n in names if re.fullmatch(rf"{ACTIVATION}_\d+", n)]
    if numbered:
        what, why = "observers of an FX model, which are numbered", "the numbers do not say which tensors they observe"
        remedy = "load the checkpoint into the model that torch.ao made, and migrate that"
        raise InputError(what, where=numbered[0], why=why, remedy=remedy)
    described.tool = "torch.ao (checkpoint, prepared)"
    described.integer_functions = False
    bare = [n for n in names if f"{n}.scale" not in entries.floats]
    if bare:
        if len(bare) == len(names) and qconfig is not None:
            if not (callable(getattr(qconfig, "activation", None)) and callable(getattr(qconfig, "weight", None))):
                remedy = 'give one, such as torch.ao.quantization.get_default_qconfig("x86")'
                raise InputError(f"{type(qconfig).__name__} is no QConfig", where="qconfig", remedy=remedy)
            _take_observers(entries, described, names, qconfig)
            return
        what = f"{len(bare)} observers have no scale in this checkpoint"
        why = "how an observer comes to one is in its code, not in its state"
        remedy = "give the QConfig it was prepared with, or load it into the prepared model and migrate that"
        raise InputError(what, where=str(bare[0]), why=why, remedy=remedy)
    for name in names:
        path, _, leaf = str(name).rpartition(".")
        found = {key: entries.floats.pop(f"{name}.{key}") for key in ("scale", "zero_point")}
        seen = [entries.floats.get(f"{name}.{ACTIVATION}.{end}") for end in ("min_val", "max_val")]
        if leaf == WEIGHT:
            _take_weight(entries, path, found["scale"], found["zero_point"])
        else:
            scale, zero_point = float(found["scale"].item()), int(np.rint(found["zero_point"].item()))
            described.ranges[path] = _range(scale, zero_point, seen)
            entries.grids[path] = (scale, zero_point)
    for name in [n for n in entries.floats if f".{WEIGHT}." in f".{n}" or f".{ACTIVATION}." in f".{n}"]:
        del entries.floats[name]
    described.notes.append("assumed, because a state dict does not say it: weights of −128…127, activations of 0…255")


def _take_observers(entries: Entries, described: Description, names: list[Any], qconfig: Any) -> None:
    """Move the ranges of observers to the grids, and weights behind them to the integers that conversion would give."""
    layers = dict(described.model.named_modules(remove_duplicate=False))
    for name in names:
        path, _, leaf = str(name).rpartition(".")
        observer = qconfig.activation()
        state = {n: entries.floats.pop(n) for n in list(entries.floats) if n.startswith(f"{name}.")}
        values = {n.removeprefix(f"{name}."): torch.from_numpy(np.array(v)) for n, v in state.items()}
        if leaf != ACTIVATION or values.keys() != observer._buffers.keys():
            what = f"its state has {', '.join(values)}, and the QConfig's {type(observer).__name__} has not"
            raise InputError(what, where=str(name), remedy="give the QConfig the model was prepared with")
        observer._buffers |= values
        grid = converted_grid(observer, path)
        entries.grids[path], described.ranges[path] = (grid.scale, grid.zero_point), (grid.qmin, grid.qmax, grid.dtype)
        if not isinstance(layers.get(path), (nn.Linear, nn.modules.conv._ConvNd)):
            continue
        inner = path if f"{path}.weight" in entries.floats else f"{path}.0"  # fused with what follows, it has a folder
        weight, bias = (entries.floats.pop(f"{inner}.{part}", None) for part in ("weight", "bias"))
        if weight is None:
            raise InputError("an observer without its layer's weight", where=path)
        numbers = torch.from_numpy(np.array(weight))
        if is_float(qconfig.weight()):
            entries.floats |= {f"{path}.{part}": v for part, v in (("weight", weight), ("bias", bias)) if v is not None}
            continue
        entries.weights[path] = weight_grid(numbers, weight_observer(qconfig, numbers), path)
        entries.biases[path] = bias


def _owner(name: str) -> str | None:
    """Return the outermost fake quantizer or observer a tensor belongs to; None for other tensors."""
    parts = name.split(".")
    for i, part in enumerate(parts[:-1]):
        if part in (WEIGHT, ACTIVATION) or part.startswith(f"{ACTIVATION}_"):
            return ".".join(parts[: i + 1])
    return None


def _range(scale: float, zero_point: int, seen: list[Array | None]) -> tuple[int, int, str]:
    """Return the integers of an activation, by what its observer saw."""
    if zero_point < 0:
        return -128, 127, "int8"
    low, high = (0.0 if v is None or v.size != 1 else float(v.item()) for v in seen)
    steps = (max(high, 0.0) - min(low, 0.0)) / scale
    return (0, 127, "uint8") if abs(steps - 127) < 1 and zero_point <= 127 else (0, 255, "uint8")


def _take_weight(entries: Entries, path: str, scale: Array, zero_point: Array) -> None:
    """Move a weight in training, with its batch norm, to the integers and the bias."""
    weight = entries.floats.pop(f"{path}.weight", None)
    if weight is None:
        raise InputError("a fake quantizer without its weight", where=path)
    bias = entries.floats.pop(f"{path}.bias", None)
    norm = {k: entries.floats.pop(f"{path}.bn.{k}", None) for k in ("weight", "bias", "running_mean", "running_var")}
    entries.floats.pop(f"{path}.bn.num_batches_tracked", None)
    per_channel = scale.reshape(-1, *[1] * (weight.ndim - 1)) if scale.size > 1 else scale.reshape(())
    points = zero_point.reshape(per_channel.shape)
    if norm["running_var"] is not None and norm["running_mean"] is not None:
        factor = (norm["weight"] if norm["weight"] is not None else 1.0) / np.sqrt(norm["running_var"] + EPS)
        factor = factor.astype(np.float32)
        weight = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
        shift = (0.0 if bias is None else bias) - norm["running_mean"]
        bias = shift * factor + (0.0 if norm["bias"] is None else norm["bias"])
    q = np.clip(np.rint(weight * (1 / per_channel.astype(np.float32))) + points, -128, 127).astype(np.int64)
    scales, zeros = scale.reshape(-1).astype(np.float64), zero_point.reshape(-1).astype(np.int64)
    entries.weights[path] = WeightGrid(path, q, scales, zeros)
    entries.biases[path] = bias


EPS = 1e-5
"""What torch's batch norm adds to the variance; a state dict does not say another one."""
