"""Observers, fake quantizers and quantized tensors of torch.ao, torchao and their kin as grids.

They are known by their attributes, not by their classes, so that nothing here imports those packages.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.errors import InputError
from intact8.migration.grids import RANGES, ActivationGrid, WeightGrid

BASES = frozenset({"ObserverBase", "FakeQuantizeBase", "AffineQuantizedObserverBase"})


def observes(module: object) -> bool:
    """Return whether a module is an observer or a fake quantizer."""
    return isinstance(module, nn.Module) and any(kind.__name__ in BASES for kind in type(module).__mro__)


def is_float(observer: Any) -> bool:
    """Return whether an observer stands for a tensor that stays float: a placeholder, or one for 16 bits and more."""
    return _dtype(observer) not in RANGES or bool(getattr(observer, "is_dynamic", False))


def refuse_wide(observer: Any, name: str) -> None:
    """Refuse an activation of integers of more than 8 bits."""
    if re.fullmatch(r"u?int(16|32|64)", kind := _dtype(observer)):
        remedy = "quantize the float model with intact8.quantize, or prepare it with activations of 8 bits"
        raise InputError(
            f"an activation of {kind}", where=name, why="programs hold activations in 8 bits", remedy=remedy
        )


def is_dynamic(observer: Any) -> bool:
    """Return whether an observer stands for a tensor that is quantized when the network runs."""
    return bool(getattr(observer, "is_dynamic", False))


def activation_grid(observer: Any, name: str) -> ActivationGrid:
    """Return the grid that an observer or fake quantizer has now.

    Raises:
        InputError: it has seen nothing, or its integers are not 8 bits.
    """
    scale, zero_point = _qparams(observer, name)
    if scale.numel() != 1:
        what = f"{scale.numel()} scales for one activation"
        raise InputError(what, where=name, why="activations have one scale here", remedy="use a per-tensor observer")
    low, high = _limits(observer)
    return ActivationGrid(name, float(scale), int(zero_point), low, high, _dtype(observer))


def converted_grid(observer: Any, name: str) -> ActivationGrid:
    """Return the grid that torch.ao's conversion gives: what was only observed gets all integers of its dtype.

    An observer for 0…127 (``reduce_range``) does not clamp what goes through it, and neither do converted layers. A
    fake quantizer does, so its range is kept.
    """
    grid = activation_grid(observer, name)
    if hasattr(observer, "fake_quant_enabled"):
        return grid
    low, high = RANGES[grid.dtype]
    return replace(grid, qmin=low, qmax=high)


def weight_grid(weight: Tensor, observer: Any, name: str) -> WeightGrid:
    """Return the integers that a fake quantizer, or an observer that has seen the weight, makes of it.

    Raises:
        InputError: it has seen nothing.
    """
    scale, zero_point = _qparams(observer, name)
    axis = int(getattr(observer, "ch_axis", 0)) % max(weight.ndim, 1) if scale.numel() > 1 else 0
    shape = [1] * weight.ndim
    if scale.numel() > 1:
        shape[axis] = -1
    low, high = _limits(observer)
    # torch multiplies by the reciprocal of the scale.
    q = torch.clamp(torch.round(weight.detach() * (1 / scale).reshape(shape)) + zero_point.reshape(shape), low, high)
    return WeightGrid(name, q.cpu().numpy().astype(np.int64), _numbers(scale), _numbers(zero_point, np.int64), axis)


def weight_observer(qconfig: Any, weight: Tensor) -> Any:
    """Return a new observer of a configuration that has seen a weight."""
    observer = qconfig.weight()
    observer(weight.detach())
    return observer


def rows_on_grid(rows: Tensor, observer: Any, name: str) -> Tensor:
    """Return what a fake quantizer or observer with a scale and a real zero point per row makes of an embedding.

    Raises:
        InputError: it has seen nothing.
    """
    scale, zero_point = (v.reshape(-1, 1) for v in _qparams(observer, name))
    q = torch.clamp(torch.round(rows.detach() / scale + zero_point), *_limits(observer))
    return (q - zero_point) * scale


def quantized_weight(weight: Tensor, name: str) -> WeightGrid:
    """Return the integers of a tensor of a quantized dtype of torch."""
    if weight.dtype != torch.qint8:
        what = f"a weight of dtype {str(weight.dtype).removeprefix('torch.')}, where one of qint8 belongs"
        why, remedy = "programs hold weights in 8 bits", "quantize the float model by intact8.quantize"
        raise InputError(what, where=name, why=why, remedy=remedy)
    integers = weight.int_repr().cpu().numpy().astype(np.int64)
    if weight.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return WeightGrid(name, integers, np.array([weight.q_scale()]), np.array([weight.q_zero_point()]))
    scale, zero_point = weight.q_per_channel_scales(), weight.q_per_channel_zero_points()
    return WeightGrid(name, integers, _numbers(scale), _numbers(zero_point, np.int64), weight.q_per_channel_axis())


def stored_by_torchao(weight: object) -> bool:
    """Return whether a parameter is a tensor of torchao, as its ``quantize_`` makes them."""
    return isinstance(weight, Tensor) and type(weight).__module__.startswith("torchao")


def torchao_weight(weight: Any, name: str) -> tuple[WeightGrid, str]:
    """Return the integers of a weight of torchao, and the mode of its layer: "weight_only" or "dynamic".

    Raises:
        InputError: they are not int8 with one scale per row, or activations are quantized otherwise than here.
    """
    q, scale, zero = (getattr(weight, key, None) for key in ("qdata", "scale", "zero_point"))
    remedy = "quantize the float model with intact8.recipes.dynamic() or weight_only()"
    if not isinstance(q, Tensor) or q.dtype != torch.int8 or not isinstance(scale, Tensor) or q.ndim != 2:
        raise InputError(f"a weight that is a {type(weight).__name__}", where=name, remedy=remedy)
    if scale.numel() not in (1, len(q)):
        what = f"its weight has {scale.numel()} scales for {len(q)} rows"
        raise InputError(what, where=name, why="a program has one scale per output channel", remedy=remedy)
    made: Any = getattr(weight, "act_quant_kwargs", None)
    dynamic = made is not None or getattr(weight, "activation_quantization", None) is not None
    rows = "PerRow" in str(getattr(made, "granularity", "")) and "SYMMETRIC" in str(getattr(made, "mapping_type", ""))
    rows = rows and "ASYMMETRIC" not in str(made.mapping_type) and not getattr(made, "reduce_range", False)
    other = any(getattr(weight, f"act_{key}", None) is not None for key in ("quant_scale", "pre_scale"))
    if other or (dynamic and not rows):
        why = "dynamic layers have one symmetric scale per row, of 127 steps"
        raise InputError("activations with another grid than rows have here", where=name, why=why, remedy=remedy)
    zeros = torch.zeros_like(scale, dtype=torch.int64) if zero is None else zero
    grid = WeightGrid(name, q.cpu().numpy().astype(np.int64), _numbers(scale), _numbers(zeros, np.int64))
    return grid, "dynamic" if dynamic else "weight_only"


def _numbers(values: Tensor, dtype: Any = np.float64) -> Any:
    return values.detach().reshape(-1).cpu().numpy().astype(dtype)


def _dtype(observer: Any) -> str:
    """Return the dtype of the integers; those of observers that say quint8 of −128…127 are what their range says."""
    dtype = getattr(observer, "dtype", None)
    if dtype is None:
        dtype = getattr(getattr(observer, "activation_post_process", None), "dtype", None)
    name = str(dtype).removeprefix("torch.q").removeprefix("torch.")
    if name in RANGES and getattr(observer, "quant_min", None) is not None:
        return "int8" if int(observer.quant_min) < 0 else "uint8"
    return name


def _limits(observer: Any) -> tuple[int, int]:
    low, high = getattr(observer, "quant_min", None), getattr(observer, "quant_max", None)
    return RANGES.get(_dtype(observer), (0, 0)) if low is None or high is None else (int(low), int(high))


def _qparams(observer: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return scale and zero point.

    A fake quantizer's are those its forward rounds with: torch's conversion computes others for some of them (max/127.5
    in place of max/127), which the network was not trained with. Learned ones, and observers', are computed.
    """
    stored = getattr(observer, "scale", None), getattr(observer, "zero_point", None)
    learns = hasattr(observer, "learning_enabled")
    if not learns and isinstance(stored[0], Tensor) and isinstance(stored[1], Tensor):
        blank = stored[0].numel() == 0 or bool((stored[0] == 1).all() and (stored[1] == 0).all())
        if blank and not _seen(getattr(observer, "activation_post_process", None)):
            raise _unseen(name)
        return stored[0].detach(), stored[1].detach()
    if not learns and not _seen(observer):
        raise _unseen(name)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = observer.calculate_qparams()
    return torch.as_tensor(found[0]).detach(), torch.as_tensor(found[1]).detach()


def _seen(observer: Any) -> bool:
    """Return whether an observer saw values, as far as it says."""
    if hasattr(observer, "scale") and not hasattr(observer, "min_val"):
        return True  # fixed
    low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    if not isinstance(low, Tensor) or not isinstance(high, Tensor):
        return observer is not None
    return low.numel() > 0 and bool(torch.isfinite(low).all() and torch.isfinite(high).all())


def _unseen(name: str) -> InputError:
    remedy = "run it over calibration data there before it is migrated, or quantize the float model with intact8"
    return InputError("this observer has seen no data, so there is no range to keep", where=name, remedy=remedy)
