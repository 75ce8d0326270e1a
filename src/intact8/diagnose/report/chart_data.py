"""The data of the page's charts: the numbers of the report, with six significant digits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from intact8.diagnose.report import formatting
from intact8.diagnose.report.module_tree import ancestors

if TYPE_CHECKING:
    from intact8.diagnose.compare.report import Histogram
    from intact8.diagnose.report.contents import Layer, Report

DIGITS = 6


def chart_data(report: Report) -> dict[str, Any]:
    """Return JSON values. Long lists of numbers are parallel lists, not objects, which keeps the page small."""
    scores: dict[str, Any] | None = None
    if report.metric is not None:
        scores = {"name": formatting.metric(report.metric.name), "higher": report.metric.higher_is_better}
        scores |= {"float": report.metric.float_score, "quantized": report.metric.quantized_score}
    paths = ancestors(report.layers)
    layers = [{**_layer(layer), "modules": around} for layer, around in zip(report.layers, paths, strict=True)]
    return {"title": report.title, "metric": scores, "layers": layers}


def _layer(layer: Layer) -> dict[str, Any]:
    names = {"name": "name", "kind": "kind", "runs": "runs_as", "scale": "scale", "zero": "zero_point"}
    names |= {"low": "real_low", "high": "real_high", "bytes": "bytes", "macs": "macs"}
    values: dict[str, Any] = {key: getattr(layer, name) for key, name in names.items()}
    values |= {"own": _rounded(layer.own_sqnr), "cascade": _rounded(layer.cascade_sqnr)}
    values |= {"sensitivity": _rounded(layer.sensitivity), "ms": _rounded(layer.time.median if layer.time else None)}
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
        if error.weight is not None and layer.channels is not None:
            values["weights"] |= {"floatLow": _list(error.weight.minimum), "floatHigh": _list(error.weight.maximum)}
    return values


def _histogram(h: Histogram) -> dict[str, Any]:
    return {"low": h.low, "high": h.high, "counts": list(h.counts), "below": h.below, "above": h.above}


def _list(values: Iterable[float]) -> list[float | None]:
    return [_rounded(v) for v in values]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
