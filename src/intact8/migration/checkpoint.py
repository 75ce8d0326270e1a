"""A float model's code together with a checkpoint of the model that another tool made of it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from intact8.capture.torch_export import AO_STUBS
from intact8.errors import InputError
from intact8.migration.description import After, Description
from intact8.migration.entries import ROLES, Entries, entries_of
from intact8.migration.fake_quantizers import take_fake_quantizers
from intact8.migration.grids import ActivationGrid, Mark
from intact8.migration.layers import Weights, float_layer
from intact8.migration.pickle_machine import PickleError, refuse
from intact8.migration.torch_ao_modules import Functional
from intact8.migration.torch_file import Archive, Object, read_torch_bytes
from intact8.migration.torchscript_code import traced_grids
from intact8.regular_file import bytes_of, path_of

FUNCTIONALS = frozenset({"FloatFunctional", "QFunctional"})
NORMS = nn.modules.batchnorm._BatchNorm

BLOCKS = frozenset({"BasicBlock", "Bottleneck", "InvertedResidual", "Inception"})
"""Classes of torchvision whose quantizable twins end in a functional: what they return has its grid."""

UNUSED = (1.0, 0)
"""Scale and zero point of a functional that is never called."""


def describe_checkpoint(
    model: nn.Module, checkpoint: Any, requantize: Collection[str] = (), qconfig: Any = None
) -> Description:
    """Return the description of a float model with the weights and ranges of a checkpoint.

    Args:
        model: the code of the float network, with the stubs of torch.ao or without; it is not changed.
        checkpoint: a state dict, or the path of a file of ``torch.save`` or TorchScript.
        requantize: names or globs of layers whose weights may be quantized anew.
        qconfig: with which torch.ao prepared the model, where the checkpoint holds observers without scales.

    Raises:
        InputError: the two do not belong together, or a layer cannot be kept; names the layer.
    """
    where = str(checkpoint) if isinstance(checkpoint, (str, Path)) else "the state dict"
    entries = entries_of(checkpoint, where) if isinstance(checkpoint, Mapping) else _read(path_of(checkpoint))
    with torch.no_grad():
        work = copy.deepcopy(model).eval()
    described = Description("torch.ao (checkpoint, converted)", work, integer_functions=True)
    take_fake_quantizers(entries, described, qconfig)
    if entries.scripted and not (entries.weights and entries.weights.keys() <= entries.grids.keys()):
        what, why = "this TorchScript file lacks scales", "it was frozen, which takes its modules apart"
        raise InputError(what, where=where, why=why, remedy="give a scripted one, or the state dict")
    if not entries.weights and not entries.grids and not entries.recurrent:
        what, remedy = "nothing in this checkpoint is quantized", "load it into the float model, and call quantize"
        raise InputError(what, where=where, remedy=remedy)
    weights = Weights(described, requantize)
    _take_weights(work, entries, weights)
    _take_recurrent(work, entries, weights)
    _take_floats(work, entries, where)
    described.model = _place_marks(work, entries, described)
    return described


def _read(path: str | Path) -> Entries:
    """Return what the state dict of a file says, or the objects of a TorchScript file and, where traced, their code."""
    content = bytes_of(path)
    if content[:4] != b"PK\x03\x04":
        return entries_of(_mapping(read_torch_bytes(content, str(path)), path), str(path))
    try:
        archive = Archive(content)
        if any(name.startswith(archive.prefix + "code/") for name in archive.entries):
            return scripted_entries(archive, str(path))
    except PickleError as error:
        raise refuse(str(path), error) from error
    return entries_of(_mapping(read_torch_bytes(content, str(path)), path), str(path))


def scripted_entries(archive: Archive, where: str) -> Entries:
    """Return what the objects of a TorchScript file say, and the code of traced ones.

    Raises:
        PickleError: the file is damaged.
        InputError: it does not hold modules.
    """
    root = archive.read("data.pkl", objects="__torch__.")
    if not isinstance(root, Object):
        raise PickleError("it holds no module")
    entries = entries_of(root, where)
    entries.scripted = True
    entries.grids = traced_grids(archive, root) | entries.grids
    return entries


def _mapping(found: Any, path: str | Path) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise InputError(f"the file holds a {type(found).__name__}, not a state dict", where=str(path))
    return found


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    return dict(model.named_modules(remove_duplicate=False))


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, module)


def _take_weights(model: nn.Module, entries: Entries, weights: Weights) -> None:
    """Put float layers with the checkpoint's weights in the place of the model's."""
    for path, grid in entries.weights.items():
        layer = _modules(model).get(path)
        shape = tuple(getattr(getattr(layer, "weight", None), "shape", ()))
        if layer is None or not shape:
            what = "the checkpoint has a quantized weight for a module the float model does not have"
            remedy = "give the code the checkpoint was made with, before torch.ao changed it"
            raise InputError(what, where=path, remedy=remedy)
        if shape != grid.integers.shape:
            what = f"a weight of shape {grid.integers.shape}, and the float model's is {shape}"
            raise InputError(what, where=path, remedy="give the code the checkpoint was made with")
        values = weights.enter(f"{path}.weight", grid, bool(getattr(layer, "transposed", False)))
        bias = entries.biases.get(path)
        tensor = None if bias is None else torch.from_numpy(np.array(bias, np.float32))
        _put(model, path, float_layer(layer, values, tensor))


def _take_recurrent(model: nn.Module, entries: Entries, weights: Weights) -> None:
    """Give recurrent layers the checkpoint's weights and biases."""
    for path, packed in entries.recurrent.items():
        layer = _modules(model).get(path)
        endings = {0: ""}
        if isinstance(layer, nn.RNNBase):
            sides = ("", "_reverse") if layer.bidirectional else ("",)
            endings = dict(enumerate(f"_l{i}{side}" for i in range(layer.num_layers) for side in sides))
        names = {(i, role): f"{role}{ending}" for i, ending in endings.items() for role in ROLES}
        if not isinstance(layer, (nn.RNNBase, nn.RNNCellBase)) or names.keys() != packed.keys():
            what = f"the checkpoint has {len(packed)} weights of a recurrent layer, and the float model has not"
            raise InputError(what, where=path, remedy="give the code the checkpoint was made with")
        for key, (grid, bias) in packed.items():
            parameter = getattr(layer, f"weight_{names[key]}")
            if tuple(parameter.shape) != grid.integers.shape or (bias is not None) != bool(layer.bias):
                what = f"a weight of shape {grid.integers.shape}, and the float model's is {tuple(parameter.shape)}"
                raise InputError(what, where=path, remedy="give the code the checkpoint was made with")
            with torch.no_grad():
                parameter.copy_(weights.enter(f"{path}.weight_{names[key]}", grid))
                if bias is not None:
                    getattr(layer, f"bias_{names[key]}").copy_(torch.from_numpy(np.array(bias, np.float32)))


def _take_floats(model: nn.Module, entries: Entries, where: str) -> None:
    """Load what is float in the checkpoint; a batch norm it does not have was folded into the layer before."""
    quantized = {f"{path}.{leaf}" for path in entries.weights for leaf in ("weight", "bias")}
    recurrent = [model.get_submodule(path).named_parameters(path, recurse=False) for path in entries.recurrent]
    quantized |= {name for parameters in recurrent for name, _ in parameters}
    for path, module in _modules(model).items():
        if isinstance(module, NORMS) and not any(name.startswith(f"{path}.") for name in entries.floats):
            _put(model, path, nn.Identity())
    wanted = {name: t for name, t in model.state_dict().items() if name not in quantized}
    missing = [n for n in wanted if n not in entries.floats and not n.endswith("num_batches_tracked")]
    if missing:
        what = f"the checkpoint has nothing for {len(missing)} tensors of the float model: {', '.join(missing[:4])}"
        raise InputError(what, where=where, remedy="give the code the checkpoint was made with")
    state = {n: torch.from_numpy(np.array(entries.floats[n])) for n in wanted if n in entries.floats}
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise InputError("the checkpoint does not fit the float model", where=where, why=str(error)) from error


def _place_marks(model: nn.Module, entries: Entries, described: Description) -> nn.Module:
    """Put a mark where the checkpoint has a scale and a zero point, and take stubs of torch.ao away."""
    modules = _modules(model)
    flat = {path.replace(".", "_"): path for path in modules if path}
    for path, (scale, zero_point) in entries.grids.items():
        if path not in modules and (scale, zero_point) == UNUSED:
            continue
        grid = ActivationGrid(path, scale, zero_point, *described_range(described, path))
        mark = described.marks.make(grid)
        owner = path.rpartition(".")[0]
        if path.endswith("_input") and path.removesuffix("_input") in flat:
            modules[flat[path.removesuffix("_input")]].register_forward_pre_hook(_before(mark))
        elif path not in modules and path in flat:
            modules[flat[path]].register_forward_hook(After(mark))
        elif path in modules and type(modules[path]).__name__ in FUNCTIONALS:
            _put(model, path, Functional(mark))
        elif path in modules:
            modules[path].register_forward_hook(After(mark))
        elif owner in modules and type(modules[owner]).__name__ in BLOCKS:
            modules[owner].register_forward_hook(After(mark))
            described.notes.append(f"{owner}: what it returns has the grid of {path}")
        elif path.rpartition(".")[2].startswith("quant") and owner in modules:
            modules[owner].register_forward_pre_hook(_before(mark))
        else:
            what = "the checkpoint has a range for something that is no module of the float model"
            why = "the names of an FX model's functions do not say which they are"
            remedy = "load the checkpoint into the model that torch.ao made, and migrate that"
            raise InputError(what, where=path, why=why, remedy=remedy)
    for path, module in _modules(model).items():
        if type(module).__name__ in AO_STUBS & FUNCTIONALS and path not in entries.grids:
            _put(model, path, Functional(None))
    return _without_relu6(model, described)


def described_range(described: Description, path: str) -> tuple[int, int, str]:
    """Return the integers of an activation: those a converted model of torch.ao has, or what was said of it."""
    return described.ranges.get(path, (0, 255, "uint8"))


def _before(mark: Mark) -> Any:
    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (mark(inputs[0]), *inputs[1:])

    return hook


def _without_relu6(model: nn.Module, described: Description) -> nn.Module:
    """Put ReLU in the place of ReLU6 in torchvision's MobileNetV2, as its quantizable twin does."""
    if type(model).__name__ == "MobileNetV2" and type(model).__module__ == "torchvision.models.mobilenetv2":
        for path, module in _modules(model).items():
            if isinstance(module, nn.ReLU6):
                _put(model, path, nn.ReLU())
        described.notes.append("ReLU6 is ReLU, as in torchvision's quantizable MobileNetV2")
    return model
