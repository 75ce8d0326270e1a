"""Observers, fake quantizers and converted modules of torch.ao as quantization points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.ao.nn import quantized as nnq
from torch.ao.quantization import HistogramObserver

from intact8.calibration.sketch import Bins

from .torch_ao_dataflow import FUNCTIONALS
from .views import PointView, numbers

SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


def is_converted(m: nn.Module) -> bool:
    """Return whether a module computes on integers."""
    home = type(m).__module__
    quantized = home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"))
    return quantized and (isinstance(m, nnq.QFunctional) or not isinstance(m, FUNCTIONALS))


def of_converted(name: str, scale: Any, zero_point: Any) -> PointView:
    """Return the point of a converted module."""
    return PointView(name, numbers(scale), numbers(zero_point).astype(np.int64), 0, 255)


def _kind(observer: Any) -> str:
    name = type(observer).__name__
    for part, kind in (("MovingAverage", "moving_average"), ("Histogram", "histogram"), ("FixedQParams", "fixed")):
        if part in name:
            return kind
    return "minmax" if "MinMax" in name else name


def extremes(observer: Any) -> tuple[float, float, bool]:
    """Return the smallest and largest value an observer saw, NaN for none, and whether it saw any."""
    low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    if not isinstance(low, Tensor) or not isinstance(high, Tensor) or not low.numel():
        return np.nan, np.nan, False
    seen = bool(torch.isfinite(low).all() and torch.isfinite(high).all())
    return (float(low.min()), float(high.max()), True) if seen else (np.nan, np.nan, False)


def _bins(observer: Any) -> Bins | None:
    if not isinstance(observer, HistogramObserver) or not extremes(observer)[2]:
        return None
    counts = observer.histogram.double().cpu().numpy()
    edges = np.linspace(float(observer.min_val), float(observer.max_val), len(counts) + 1)
    keep = counts > 0
    return Bins(edges[:-1][keep], edges[1:][keep], counts[keep].round().astype(np.int64))


def of_observer(name: str, m: Any) -> PointView:
    """Return the point of an observer without a fake quantizer: post-training quantization."""
    scale, zero_point = m.calculate_qparams() if extremes(m)[2] else (np.nan, 0)
    point = of_converted(name, scale, zero_point)
    lo, hi = limits(m)
    return replace(point, lo=lo, hi=hi, known=extremes(m)[2], observing=True, **_observation(m))


def limits(m: Any) -> tuple[int, int]:
    """Return the ends of an observer's integer range."""
    low, high = getattr(m, "quant_min", None), getattr(m, "quant_max", None)
    default = (-128, 127) if m.dtype == torch.qint8 else (0, 255)
    return default if low is None or high is None else (int(low), int(high))


def of_fake_quantizer(name: str, m: Any) -> PointView:
    """Return the point of a fake quantizer, of an activation or a weight."""
    observer = getattr(m, "activation_post_process", m)
    seen = _observation(observer)
    fixed = "FixedQParams" in type(m).__name__
    observing = m.static_enabled if hasattr(m, "static_enabled") else m.observer_enabled
    return replace(
        of_converted(name.removesuffix(".weight_fake_quant"), m.scale, m.zero_point),
        lo=int(m.quant_min),
        hi=int(m.quant_max),
        weight=name.endswith("weight_fake_quant"),
        known=seen["seen"] or fixed,
        fixed=fixed,
        observing=bool(observing[0]),
        quantizing=bool(m.fake_quant_enabled[0]),
        trained=True,
        **{**seen, "seen": None} if fixed else seen,
    )


def _observation(observer: Any) -> dict[str, Any]:
    """Return the fields of a point that tell what its observer is and what it saw."""
    low, high, seen = extremes(observer)
    return {
        "symmetric": getattr(observer, "qscheme", None) in SYMMETRIC,
        "middle": 0 if getattr(observer, "dtype", None) == torch.qint8 else 128,
        "observer": _kind(observer),
        "seen": seen,
        "minimum": low,
        "maximum": high,
        "bins": _bins(observer),
    }
