"""QConfigs, QConfigMappings, backend configs and PT2E quantizers as recipes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torch import nn

from intact8.errors import RecipeError
from intact8.migration.grids import RANGES
from intact8.recipe.override import Override
from intact8.recipe.recipe import Recipe

OBSERVERS = {
    "HistogramObserver": "histogram",
    "MinMaxObserver": "minmax",
    "PerChannelMinMaxObserver": "minmax",
    "MovingAverageMinMaxObserver": "moving_average",
    "MovingAveragePerChannelMinMaxObserver": "moving_average",
}
"""Class of an observer → the name of the one here."""

IMPLIED = frozenset({"ReuseInputObserver", "NoopObserver", "FixedQParamsObserver", "FixedQParamsFakeQuantize"})
"""Observers for what needs no word here: moves share the grid of what they read, tables know their ends."""

HEAVY = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Linear", "LSTM", "GRU")


def recipe_of(config: Any, model: nn.Module | None = None) -> Recipe:
    """Return the recipe that asks for what a configuration of torch.ao or torchao does.

    Weights of −128…127 become −127…127, the symmetric range of this package, and observers become those of the same
    method here.

    Args:
        config: a QConfig, a QConfigMapping, a BackendConfig, or a PT2E quantizer (X86InductorQuantizer,
            XNNPACKQuantizer and their kin).
        model: the float network; entries for modules and types it does not have are left out then.

    Raises:
        RecipeError: it asks for what cannot be had here, or nothing knows it; names the entry.

    Example:
        >>> from collections import namedtuple
        >>> QConfig = namedtuple("QConfig", "activation weight")
        >>> recipe_of(QConfig(None, None))
        Traceback (most recent call last):
        ...
        intact8.errors.RecipeError: QConfig: it has no observer of activations. Remedy: give a QConfig of torch.ao
    """
    names = set(dir(config))
    if {"object_type_qconfigs", "module_name_qconfigs"} <= names:
        return _mapping(config, model)
    if {"activation", "weight"} <= names:
        return _recipe(_settings(config, "QConfig"), ())
    if {"configs"} <= names and type(config).__name__ == "BackendConfig":
        return _backend(config, model)
    if "global_config" in names:
        return _quantizer(config, model)
    what = f"no recipe comes of a {type(config).__name__}"
    raise RecipeError(what, remedy="give a QConfig, a QConfigMapping, a BackendConfig or a PT2E quantizer")


def _recipe(settings: Mapping[str, Any] | None, overrides: tuple[Override, ...]) -> Recipe:
    if settings is None:
        what = "nothing is quantized but what is named"
        raise RecipeError(what, where="global", remedy="set a global configuration, and None for what stays float")
    return Recipe(overrides=overrides, **settings)


def _overrides(entries: Iterator[tuple[str, Any]], model: nn.Module | None) -> tuple[Override, ...]:
    """Return overrides of patterns and configurations; None keeps a module float."""
    known = None
    if model is not None:
        known = {name for name, _ in model.named_modules()} | {f"type:{type(m).__name__}" for m in model.modules()}
    out = []
    for match, config in entries:
        if known is not None and match not in known and not any(mark in match for mark in "*?["):
            continue
        if config is None:
            out.append(Override(match, quantize=False))
            continue
        found = _settings(config, match)
        if found is None:
            continue
        if found.get("mode", "static") == "static":
            out.append(Override(match, activation=found["activation"], weight=found["weight"]))
        else:
            out.append(Override(match, mode=found["mode"], weight=found["weight"]))
    return tuple(out)


def _mapping(config: Any, model: nn.Module | None) -> Recipe:
    types = {kind.__name__.lower() for kind in config.object_type_qconfigs if isinstance(kind, type)}

    def entries() -> Iterator[tuple[str, Any]]:
        for kind, qconfig in config.object_type_qconfigs.items():
            if getattr(kind, "__name__", str(kind)).replace("_", "") in types and not isinstance(kind, type):
                continue  # the function of a module that has an entry, too
            if isinstance(kind, type) and qconfig is not None and kind.__name__ not in HEAVY:
                qconfig = SimpleNamespace(activation=qconfig.activation)  # what weights it has are no layer's
            if isinstance(kind, type) and _settings(qconfig, str(kind)) is not None:
                yield f"type:{kind.__name__}", qconfig
            elif isinstance(kind, type) and qconfig is None:
                yield f"type:{kind.__name__}", None
            elif _settings(qconfig, str(kind)) is not None:
                name = getattr(kind, "__name__", kind)
                remedy = "name the operation in Recipe.overrides by the name that print(sim) shows"
                raise RecipeError("a QConfig for a function", where=str(name), remedy=remedy)
        if config.module_name_regex_qconfigs or config.module_name_object_type_order_qconfigs:
            remedy = "name the modules, or use globs in Recipe.overrides"
            raise RecipeError("entries by regular expression or order", where="QConfigMapping", remedy=remedy)
        yield from config.module_name_qconfigs.items()

    return _recipe(_settings(config.global_qconfig, "global_qconfig"), _overrides(entries(), model))


def _quantizer(config: Any, model: nn.Module | None) -> Recipe:
    def entries() -> Iterator[tuple[str, Any]]:
        for kind, given in getattr(config, "module_type_config", {}).items():
            yield f"type:{kind.__name__}", given
        for tables in ("module_name_qconfig", "module_name_config"):
            yield from getattr(config, tables, {}).items()

    functions = {**getattr(config, "operator_type_qconfig", {}), **getattr(config, "operator_type_config", {})}
    if functions:
        remedy = "name the operations in Recipe.overrides"
        raise RecipeError("configurations of operators", where=str(next(iter(functions))), remedy=remedy)
    return _recipe(_settings(config.global_config, "global_config"), _overrides(entries(), model))


def _backend(config: Any, model: nn.Module | None) -> Recipe:
    """Return a recipe of the integers a backend takes; layers of kinds it does not have stay float."""
    found = {p.pattern.__name__: p for p in config.configs if inspect.isclass(p.pattern)}
    for name in ("Conv2d", "Linear"):
        for types in found[name].dtype_configs if name in found else ():
            kind, weight = str(types.input_dtype), str(types.weight_dtype)
            low = types.input_dtype_with_constraints
            if kind not in ("torch.quint8", "torch.qint8") or weight != "torch.qint8" or types.is_dynamic:
                continue
            ends = {"qmin": low.quant_min_lower_bound, "qmax": low.quant_max_upper_bound}
            activation = {"dtype": kind.removeprefix("torch.q")} | {k: int(v) for k, v in ends.items() if v is not None}
            missing = [(f"type:{kind}", None) for kind in HEAVY if kind not in found]
            if model is None and missing:
                remedy = "give model=…, so that only layers it has are named"
                raise RecipeError("it has no " + ", ".join(k for k, _ in missing), where=config.name, remedy=remedy)
            return _recipe({"activation": activation}, _overrides(iter(missing), model))
    raise RecipeError("it has no integers for Conv2d or Linear", where=config.name, remedy="give another backend")


def _settings(config: Any, where: str) -> dict[str, Any] | None:
    """Return fields of a recipe; None where nothing is quantized, or where it needs no word here."""
    if config is None:
        return None
    given = {"activation": getattr(config, "activation", None) or getattr(config, "input_activation", None)}
    given["weight"] = getattr(config, "weight", None)
    if given["activation"] is None:
        raise RecipeError("it has no observer of activations", where=where, remedy="give a QConfig of torch.ao")
    activation = _described(given["activation"])
    weight = None if given["weight"] is None else _described(given["weight"])
    if activation["kind"] in IMPLIED:
        return None
    if weight is not None and weight["dtype"] == "float32":
        weight = None  # a layer norm's
    if weight is not None and (weight["dtype"] != "int8" or not weight["symmetric"]):
        what = f"weights of {weight['dtype']}" + ("" if weight["symmetric"] else " with a zero point")
        raise RecipeError(what, where=where, why="weights are symmetric int8", remedy="use per_channel_symmetric qint8")
    weights: dict[str, Any] = {}
    if weight is not None:
        weights = {"granularity": "per_channel" if weight["per_channel"] else "per_tensor"}
        if weight["limits"] is not None and weight["limits"][1] < RANGES["int8"][1]:
            weights |= {"qmin": -weight["limits"][1], "qmax": weight["limits"][1]}
    if activation["dynamic"]:
        return {"mode": "dynamic", "weight": weights}
    if activation["dtype"] not in RANGES:
        if activation["dtype"] == "float32":
            return None
        remedy = "keep the module float: None in its place"
        what = f"activations of {activation['dtype']}"
        raise RecipeError(what, where=where, why="activations have 8 bits", remedy=remedy)
    out = {k: activation[k] for k in ("dtype", "symmetric", "observer")}
    if activation["limits"] not in (None, RANGES[activation["dtype"]]):
        out["qmin"], out["qmax"] = activation["limits"]
    if activation["constant"] is not None and out["observer"] == "moving_average":
        out["observer_args"] = {"averaging_constant": activation["constant"]}
    settings: dict[str, Any] = {"activation": out, "weight": weights}
    if activation["trained"]:
        settings["scales"] = "learned" if activation["learned"] else "observed"
    return settings


def _described(factory: Any) -> dict[str, Any]:
    """Return what a factory of observers, or a specification of PT2E, makes, in plain words."""
    made = factory() if callable(factory) else factory
    maker = getattr(made, "observer_or_fake_quant_ctr", None)
    like: Any = maker() if maker is not None else made
    inner = getattr(like, "activation_post_process", like)
    kind = type(inner).__name__
    limits = getattr(made, "quant_min", None), getattr(made, "quant_max", None)
    scheme = str(getattr(made, "qscheme", None) or getattr(inner, "qscheme", ""))
    dtype = str(getattr(made, "dtype", None) or getattr(inner, "dtype", ""))
    return {
        "kind": type(like).__name__ if type(like).__name__ in IMPLIED else kind,
        "observer": OBSERVERS.get(kind, "histogram"),
        "dtype": dtype.removeprefix("torch.q").removeprefix("torch."),
        "limits": None if None in limits else (int(limits[0]), int(limits[1])),  # type: ignore[arg-type]
        "symmetric": "symmetric" in scheme,
        "per_channel": "per_channel" in scheme,
        "dynamic": bool(getattr(made, "is_dynamic", False)),
        "constant": getattr(inner, "averaging_constant", None),
        "trained": hasattr(like, "fake_quant_enabled"),
        "learned": hasattr(like, "learning_enabled"),
    }
