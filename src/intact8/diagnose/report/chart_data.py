"""What the charts of the page are drawn from: the report's figures, each with six significant digits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from intact8.diagnose.compare.report import Histogram
from intact8.diagnose.report import formatting
from intact8.diagnose.report.module_tree import ancestors

if TYPE_CHECKING:
    from intact8.diagnose.report.contents import Layer, Report

DIGITS = 6


def payload(report: Report) -> dict[str, Any]:
    """JSON values. Parallel lists in place of objects where there are many, which keeps the page small."""
    metric = report.metric
    return {
        "title": report.title,
        "metric": None if metric is None else {
            "name": formatting.metric(metric.name), "higher": metric.higher_is_better, "float": metric.float_score,
            "quantized": metric.quantized_score,
        },
        "layers": [
            {**_layer(layer), "modules": around}
            for layer, around in zip(report.layers, ancestors(report.layers), strict=True)
        ],
    }  # fmt: skip


def _layer(layer: Layer) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": layer.name, "kind": layer.kind, "runs": layer.runs_as, "scale": layer.scale,
        "zero": layer.zero_point, "low": layer.real_low, "high": layer.real_high, "bytes": layer.bytes,
        "macs": layer.macs, "own": _rounded(layer.own_sqnr), "cascade": _rounded(layer.cascade_sqnr),
        "sensitivity": _rounded(layer.sensitivity), "ms": _rounded(layer.time.median if layer.time else None),
    }  # fmt: skip
    if layer.integers is not None:
        values["integers"] = list(layer.integers.counts)
    if layer.channels is not None:
        c = layer.channels
        values["weights"] = {"scale": _list(c.scale), "low": _list(c.low), "high": _list(c.high)}
    error = layer.error
    if error is not None:
        values["floats"] = _histogram(error.histogram)
        values["clipped"] = [error.clipped_low, error.clipped_high]
        values["cascadeError"] = _histogram(error.cascade.histogram)
        if error.own is not None:
            values["ownError"] = _histogram(error.own.histogram)
        if error.weight is not None:
            values["weights"] |= {"floatLow": _list(error.weight.minimum), "floatHigh": _list(error.weight.maximum)}
    return values


def _histogram(h: Histogram) -> dict[str, Any]:
    return {"low": h.low, "high": h.high, "counts": list(h.counts), "below": h.below, "above": h.above}


def _list(values: Iterable[float]) -> list[float | None]:
    return [_rounded(v) for v in values]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
