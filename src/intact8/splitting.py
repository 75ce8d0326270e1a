"""Models that cannot be captured whole: their parts become programs, and what lies between stays in torch."""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intact8.api import calibrate, convert
from intact8.calibration.data import inputs_of, raw_batches
from intact8.calibration.dynamic_dimensions import changing
from intact8.capture.pytree import call_of, copied
from intact8.capture.torch_export import evaluating, require_module
from intact8.errors import CaptureError, CaptureWarning, InputError, IntactError, RecipeError, warn
from intact8.recipe.recipe import Recipe
from intact8.simulation.prepare import prepare
from intact8.simulation.simulation import Simulation
from intact8.torch import Module

Batch = Any
"""What a module is called with: a tuple of arguments, or a dict of them by name."""

LOOKED = 2
"""Batches on which the calls of all modules are recorded: examples for capture, and sizes that change."""

SHOWN = 5
"""Modules that a warning names."""


def split(
    model: nn.Module,
    data: Iterable[Any] | Any,
    recipe: Recipe | str | Path | None = None,
    *,
    modules: str | Sequence[str] | Mapping[str, Recipe | str | Path | None] | None = None,
    engine: str = "auto",
) -> nn.Module:
    """Return a copy of a model in which the modules that can be captured are int8 programs.

    This is for models that :func:`intact8.quantize` refuses as a whole because what they compute depends on values, as
    detectors do that end with non-maximum suppression: backbone and heads become programs, post-processing stays in
    torch. The copy is called as the model is. :func:`intact8.torch.programs` returns its programs by module path.

    Args:
        model: any module that runs in evaluation mode; it is not changed.
        data: calibration batches in the form :func:`intact8.quantize` takes. They are run once for every part, so what
            an iterator yields is kept in memory.
        recipe: how every part is quantized: a recipe, the name of a preset or the path of a TOML file. The names in its
            overrides count from the part.
        modules: path of the module to convert, or paths of several, as ``("backbone", "head")``, or a dict that gives
            each a recipe of its own. None: the largest modules inside the model that have weights and can be captured.
        engine: what runs the programs, as for :meth:`intact8.Program.run`.

    Returns:
        The copy, in evaluation mode and on the CPU.

    Raises:
        CaptureError: a module of ``modules`` cannot be captured, or no module at all.
        InputError: ``modules`` names none.
        RecipeError: the model has no module of that path.

    Warns:
        CaptureWarning: layers with weights are in no part, and stay in float32.

    Example:
        >>> import intact8
        >>> class Detector(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        ...     def forward(self, x):
        ...         return x[self.head(x)[:, 0] > 0]
        >>> _ = torch.manual_seed(0)
        >>> detector = intact8.split(Detector(), [torch.randn(8, 4) for _ in range(8)])
        >>> list(intact8.torch.programs(detector)), detector(torch.randn(5, 4)).shape[1]
        (['head'], 4)
    """
    require_module(model)
    if not isinstance(data, (Tensor, Sequence, Mapping)) and iter(data) is data:
        data = list(data)
    if modules is not None and not isinstance(modules, (str, Sequence, Mapping)):
        remedy = 'give paths of modules, such as ("backbone", "head"), or a dict with a recipe for each'
        raise InputError(f"{type(modules).__name__} names no modules", where="modules", remedy=remedy)
    modules = [modules] if isinstance(modules, str) else modules
    recipes = dict(modules) if isinstance(modules, Mapping) else dict.fromkeys(modules or ())
    parts: dict[nn.Module, Module] = {}
    with evaluating(model):
        calls = _recorded(model, data)
        chosen = _named(model, calls, recipes, recipe) if recipes else _largest(model, calls, recipe)
        for path, sim in chosen:
            module = model.get_submodule(path)
            with _naming(path):
                calibrate(sim, _calls(model, module, data))
                parts[module] = _in_place_of(module, Module(convert(sim), engine))
    if not parts:
        what = "no module of the model can be captured"
        raise CaptureError(what, where=type(model).__name__, remedy="name one in modules to read why it cannot be")
    _warn_of_what_stays(model, parts)
    made = copy.deepcopy(model, {id(module): part for module, part in parts.items()}).cpu().eval()
    _give_what_is_read(made, {part: module for module, part in parts.items()}, data)
    return made


def _largest(
    model: nn.Module, calls: Mapping[nn.Module, list[Batch]], recipe: Recipe | str | Path | None
) -> Iterator[tuple[str, Simulation]]:
    """Yield the path and the simulation of every captured module, outer modules before what they contain."""
    waiting, met = [*model.named_children()], set[nn.Module]()
    while waiting:
        path, module = waiting.pop(0)
        if module in met or not _has_layers(module):
            continue
        met.add(module)
        if module in calls:
            try:
                yield path, _prepared(module, calls[module], recipe)
                continue
            except CaptureError:
                pass  # what it contains may be captured
        waiting[:0] = [(f"{path}.{name}", child) for name, child in module.named_children()]


def _named(
    model: nn.Module,
    calls: Mapping[nn.Module, list[Batch]],
    recipes: Mapping[str, Recipe | str | Path | None],
    recipe: Recipe | str | Path | None,
) -> Iterator[tuple[str, Simulation]]:
    known = dict(model.named_modules())
    for path, own in recipes.items():
        if not path or path not in known:
            what = f"the model has no module {path!r}"
            raise RecipeError(what, where="modules", remedy="give paths as model.named_modules() lists them")
        if known[path] not in calls:
            inside = any(module in calls for module in known[path].modules())
            what = "this module is never called" + (", only what it contains or holds" if inside else " in evaluation")
            remedy = "name the modules inside it" if inside else "leave it out: calls do not reach it"
            raise CaptureError(what, where=path, remedy=remedy)
        yield path, _prepared(known[path], calls[known[path]], own or recipe)


def _prepared(module: nn.Module, calls: list[Batch], recipe: Recipe | str | Path | None) -> Simulation:
    dynamic, _ = changing(module, calls[0], calls)
    return prepare(module, calls[0], recipe, dynamic_shapes=dynamic)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say in errors and warnings which part they are about."""
    try:
        with warnings.catch_warnings(record=True) as given:
            yield
    except IntactError as error:
        where = f"{path}: {error.where}" if error.where else path
        raise type(error)(error.what, where=where, why=error.why, remedy=error.remedy) from error
    for warning in given:
        warn(warning.category(f"{path}: {warning.message}"))


def _has_layers(module: nn.Module) -> bool:
    """Return whether there are weights to be stored as integers, which norms alone do not have."""
    return any(p.ndim > 1 for p in module.parameters())


def _recorded(model: nn.Module, data: Any) -> dict[nn.Module, list[Batch]]:
    """Return the calls of every module inside the model, on the first batches."""
    calls: dict[nn.Module, list[Batch]] = {}
    inside = [module for module in model.modules() if module is not model and _has_layers(module)]
    hooks = [module.register_forward_pre_hook(_recorder(calls), with_kwargs=True) for module in inside]
    ran = 0
    try:
        for _ in itertools.islice(_runs(model, data), LOOKED):
            ran += 1
    except RuntimeError as error:
        if type(error).__name__ != "UncapturedHigherOrderOpError":  # of torch._dynamo, which is slow to import
            raise
        what, remedy = "branches of torch.cond are compiled, so that no part of them can be recorded", "write an if"
        raise CaptureError(what, where=type(model).__name__, remedy=remedy) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not ran:
        raise InputError("there is no batch to calibrate on", where="data", remedy="give one batch or more")
    return calls


def _calls(model: nn.Module, module: nn.Module, data: Any) -> Iterator[Batch]:
    """Yield every call of one module while the model runs on the data."""
    calls: dict[nn.Module, list[Batch]] = {module: []}
    hook = module.register_forward_pre_hook(_recorder(calls), with_kwargs=True)
    try:
        for _ in _runs(model, data):
            yield from calls[module]
            calls[module].clear()
    finally:
        hook.remove()


def _recorder(calls: dict[nn.Module, list[Batch]]) -> Any:
    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The module may write into what it is given.
        args, kwargs = copied((args, kwargs))
        call = inspect.signature(module.forward).bind(*args, **kwargs).arguments if kwargs else args
        calls.setdefault(module, []).append(call)

    return record


def _runs(model: nn.Module, data: Any) -> Iterator[None]:
    """Run the model on one batch after the other."""
    for batch in raw_batches(data):
        args, kwargs = call_of(inputs_of(model, batch))
        with torch.no_grad():
            model(*copied(args), **copied(kwargs))
        yield


def _in_place_of(module: nn.Module, part: Module) -> Module:
    """Return ``part`` with the attributes of the module it replaces, which the model may read."""
    for name, value in vars(module).items():
        if not name.startswith("_") and not hasattr(part, name):
            setattr(part, name, value)
    return part


def _give_what_is_read(model: nn.Module, replaced: Mapping[Module, nn.Module], data: Any) -> None:
    """Give parts the weights and modules of those they replace that the model reads, as ties of weights do."""
    while True:
        try:
            next(_runs(model, data), None)
        except AttributeError as error:
            part, name = _read_of(error)
            module = replaced.get(part) if isinstance(part, Module) else None
            if module is None or part is None or hasattr(part, name) or not hasattr(module, name):
                raise
            setattr(part, name, copy.deepcopy(getattr(module, name)))
        else:
            return


def _read_of(error: AttributeError) -> tuple[Any, str]:
    """Return the module and the name of an attribute that it lacks."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    known = frame.tb_frame.f_locals if frame is not None else {}
    return known.get("self"), str(known.get("name", ""))


def _warn_of_what_stays(model: nn.Module, parts: Mapping[nn.Module, Module]) -> None:
    covered = {inner for module in parts for inner in module.modules()}
    staying = [
        path or "the model itself"
        for path, module in model.named_modules()
        if module not in covered and any(p.ndim > 1 for p in module.parameters(recurse=False))
    ]
    if staying:
        shown = ", ".join(staying[:SHOWN]) + (" …" if len(staying) > SHOWN else "")
        text = f"{len(staying)} modules with weights stay in float32: {shown}. Remedy: name one in modules to read why"
        warn(CaptureWarning(text))


__all__ = ["split"]
