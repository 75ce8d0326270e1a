"""Models, programs and recipes named on the command line."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intact8.errors import InputError, in_short
from intact8.regular_file import opened

if TYPE_CHECKING:
    from torch import nn

    from intact8.program.program import Program


_NAMED = "name what makes the network, for instance torchvision.models:resnet18, and its weights as --state-dict"


def load_program(file: Path | str, public_key: Path | None, expect: str | None) -> Program:
    """Load a program file and check its signature as ``--public-key`` and ``--expect`` demand."""
    from intact8.program.program import Program

    return Program.load(file, public_key=public_key, expect=expect)


def load_guarded(
    file: Path | str, public_key: Path | None, expect: str | None, batch: Sequence[int] = (), every_tensor: bool = False
) -> Program:
    """Load a program file for running it: a child process tries every engine and size before this process runs it.

    Args:
        file: a program file.
        public_key, expect: as ``--public-key`` and ``--expect`` demand.
        batch: samples per call that are known already.
        every_tensor: whether every tensor will be asked for, not the outputs alone.

    Raises:
        ProgramError: see :func:`intact8.runtime.load`.
    """
    from intact8.runtime.guarded import open_guarded
    from intact8.runtime.sizes import CALL, TENSORS

    return open_guarded(file, public_key, expect, batch, TENSORS if every_tensor else CALL)


def load_model(spec: str, state_dict: Path | None = None) -> nn.Module:
    """Return the network that :func:`find_model` finds, in evaluation mode."""
    return find_model(spec, state_dict).eval()


def find_model(spec: str, state_dict: Path | None = None) -> nn.Module:
    """Return the network that ``package.module:factory`` makes; the current directory is searched first.

    Args:
        spec: module and attribute, separated by a colon. The attribute is a module, or is called without arguments.
        state_dict: weights to load: .safetensors, or what ``torch.save`` wrote (read with ``weights_only=True``).

    Raises:
        InputError: the module or the attribute is missing, or makes no network, or the weights do not fit.
    """
    from torch import nn

    if Path(spec).is_file():
        raise InputError("a file, not a network", where=spec, remedy=_NAMED)
    found = _named(spec)
    model = found if isinstance(found, nn.Module) else _call(found, spec)
    if not isinstance(model, nn.Module):
        what = f"gives {type(model).__name__}, not an nn.Module"
        raise InputError(what, where=spec, remedy="name a function or a class that makes the network")
    if state_dict is not None:
        _load_weights(model, state_dict)
    return model


def find_metric(name: str) -> Any:
    """Return the function or metric that ``package.module:name`` names; another name, as "top1", as it is.

    A class, as those of torchmetrics, is called without arguments.

    Raises:
        InputError: the module or the attribute is missing, or the class cannot be made.
    """
    if ":" not in name:
        return name
    found = _named(name)
    return _call(found, name) if isinstance(found, type) else found


def find_qconfig(spec: str) -> Any:
    """Return the QConfig that ``package.module:name`` names, or that a function of that name returns.

    Raises:
        InputError: the module or the attribute is missing, or the function fails.
    """
    found = _named(spec)
    return found if hasattr(found, "activation") else _call(found, spec)


def _named(spec: str) -> Any:
    """Return what ``package.module:attribute`` names; the current directory is searched first."""
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        raise InputError("not of the form package.module:factory", where=spec, remedy=_NAMED)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if module_name.endswith(".py"):
        remedy = f"name the module as Python imports it, such as {Path(module_name).stem}:{attribute}"
        raise InputError("a file has no place here", where=spec, remedy=remedy)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # what a module does when it is imported is its own affair
        is_missing = isinstance(error, ImportError)
        why = in_short(error) if is_missing else f"{type(error).__name__}: {in_short(error)}"
        remedy = (
            "run where it can be imported from" if is_missing else f"see that python -c 'import {module_name}' works"
        )
        raise InputError(f"cannot import {module_name!r}", where=spec, why=why, remedy=remedy) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{module_name!r} has no {attribute!r}", where=spec, remedy="name a function or a class")
        found = getattr(found, part)
    return found


def entries_for(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Return the entries among ``names`` that a network takes: those named like parameters of its ``forward``.

    Raises:
        InputError: a parameter without a default has no entry of its name.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return tuple(names)
    wanted = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p.name for p in wanted if p.default is p.empty and p.name not in names]
    if missing:
        raise InputError(
            f"no entry for {missing[0]!r} of {type(model).__name__}.forward",
            why=f"the file holds {', '.join(names)}",
            remedy="say with --key which entries to give, in order",
        )
    return tuple(p.name for p in wanted if p.name in names)


def _call(factory: Any, spec: str) -> Any:
    if not callable(factory):
        what = f"a {type(factory).__name__} cannot be called"
        raise InputError(what, where=spec, remedy="name a function or a class")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        remedy = "write a small function that gives them, and name that"
        raise InputError("cannot be called without arguments", where=spec, why=str(error), remedy=remedy) from error
    try:
        return factory()
    except Exception as error:  # the factory is anybody's code, and so is what it raises
        why = f"{type(error).__name__}: {in_short(error, 300)}"
        raise InputError(
            "failed", where=spec, why=why, remedy="see that it works when called without arguments"
        ) from error


WRAPPERS = {"module.": "DataParallel", "_orig_mod.": "torch.compile", "model.": "the training module"}
"""What puts a name in front of those of a network's weights."""


_SAVE = "save the weights alone: torch.save(model.state_dict(), PATH)"


def _unread(error: Exception) -> str:
    """Return why torch read no weights, without its advice to run the code that a pickle names."""
    _, _, said = str(error).rpartition("WeightsUnpickler error: ")
    named = re.search(r"GLOBAL (\S+)", said)
    if named:
        return f"it holds objects of Python ({named[1]}), which only code could make"
    if isinstance(error, (KeyError, IndexError, EOFError)) or not re.search("[a-z]{3}", said):
        return "it is no file of torch.save"
    return " ".join(said.split())[:300]


def _load_weights(model: nn.Module, path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    try:
        with opened(path, "the weights") as stream:  # safetensors reads by name
            safe = path.suffix == ".safetensors"
            weights: Any = load_file(path) if safe else torch.load(stream, "cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # bytes that are no weights make torch's unpickler raise errors of any kind
        raise InputError("cannot read these weights", where=str(path), why=_unread(error), remedy=_SAVE) from error
    if not isinstance(weights, dict):
        raise InputError(f"holds a {type(weights).__name__}, not a state dict", where=str(path), remedy=_SAVE)
    if isinstance(weights.get("state_dict"), dict):  # the usual training checkpoint
        weights = weights["state_dict"]
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        remedy = "name the network that they are of"
        for prefix, wrapper in WRAPPERS.items():
            if {str(name).removeprefix(prefix) for name in weights} == set(model.state_dict()):
                remedy = f"their names begin with {prefix}: save those of the module inside of {wrapper}"
        raise InputError(
            "these weights do not fit the model", where=str(path), why=in_short(error, 300), remedy=remedy
        ) from error
