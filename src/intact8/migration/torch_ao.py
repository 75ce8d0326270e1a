"""Eager and FX models of torch.ao, prepared and converted, as descriptions."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import fx, nn

from intact8.errors import InputError
from intact8.migration.description import Description
from intact8.migration.fx_graph import read_graph
from intact8.migration.observers import observes, stored_by_torchao
from intact8.migration.torch_ao_modules import CONVERTED, TRAINED, WATCHED, Reader

FUNCTIONALS = frozenset({"FloatFunctional", "FXFloatFunctional", "QFunctional"})


def stage_of(model: nn.Module) -> str:
    """Return "converted" or "prepared" for a model of torch.ao or torchao, "" for any other module."""
    stage = ""
    for m in model.modules():
        if stored_by_torchao(getattr(m, "weight", None)):
            return "converted"
        home = type(m).__module__
        if home.startswith(CONVERTED) and type(m).__name__ not in FUNCTIONALS - {"QFunctional"}:
            return "converted"
        if observes(m) or home.startswith(TRAINED):
            stage = "prepared"
    if isinstance(model, fx.GraphModule):
        targets = [str(n.target) for n in model.graph.nodes if n.op == "call_function"]
        if any(t.startswith("quantized.") or "quantize_per_tensor" in t for t in targets):
            return "converted"
    return stage


def describe_modules(model: nn.Module, requantize: Collection[str] = ()) -> Description:
    """Return the description of a model of torch.ao, which is not changed.

    Raises:
        InputError: the model is not one of torch.ao's, or a module of it has no counterpart; names the module.
    """
    if isinstance(model, torch.jit.ScriptModule):
        remedy = "save it with torch.jit.save, and call migrate(float_model, path)"
        raise InputError("a TorchScript module, whose code is not read from memory", remedy=remedy)
    stage = stage_of(model)
    if not stage:
        what = "nothing in this model is quantized or prepared for it"
        raise InputError(
            what, remedy="quantize it with intact8.quantize, or give the checkpoint of the quantized one, too"
        )
    work = _copied(model)
    graph = isinstance(work, fx.GraphModule)
    described = Description(f"torch.ao ({'FX' if graph else 'eager'}, {stage})", work)
    described.integer_functions = stage == "converted"
    reader = Reader(described, requantize)
    if isinstance(work, fx.GraphModule):
        read_graph(work, reader)
    described.model = _replace_modules(work, reader)
    return described


def _copied(model: nn.Module) -> Any:
    """Return a copy in evaluation mode; packed parameters of torch can be copied as well."""
    with torch.no_grad():
        return copy.deepcopy(model).eval()


def _replace_modules(model: nn.Module, reader: Reader, path: str = "") -> nn.Module:
    """Replace modules from the root down; what is inside a replaced module goes with it."""
    made = reader.replaced(path, model)
    if made is not None and made is not model:
        return made
    for name, child in list(model.named_children()):
        if name == WATCHED or name.startswith(WATCHED + "_") or observes(child):
            continue
        found = _replace_modules(child, reader, f"{path}.{name}" if path else name)
        if found is not child:
            setattr(model, name, found)
    return model
