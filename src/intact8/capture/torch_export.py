"""Run torch.export on an unmodified model, with errors that name the module."""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._sympy import functions

from intact8.capture.data_attribute import DataAttribute
from intact8.capture.dynamic_shapes import doubled
from intact8.capture.is_compiling import Asked, answered
from intact8.capture.kept_state import Attributes, BySize, by_size, caches_emptied, refuse_state
from intact8.capture.known_values import KnownValues, known_numbers
from intact8.capture.model_code import is_models
from intact8.capture.pytree import copied, register_outputs, with_lists
from intact8.capture.recurrent_custom_ops import traceable
from intact8.capture.size_classes import assumed
from intact8.capture.symbolic_sizes import SymbolicSizes, functions_of_sizes
from intact8.errors import CaptureError, InputError, IntactError
from intact8.torch_defaults import require_defaults

FIXED_BATCH = "batch size fixed to the example's"
ALONE = threading.RLock()
"""Held while a model is captured: torch.export exchanges parameters of the model and functions of torch, and streams
and filters of warnings are the process's own, so that two captures at once would disturb each other. A fork waits for
the capture of another thread, whose child would keep for good what was exchanged, and the lock."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=ALONE.acquire, after_in_parent=ALONE.release, after_in_child=ALONE.release)
COUNTED = (
    "the model reads the batch size as a number, as range(x.shape[0]), x.unbind(0) and x.split(1) do. "
    "Remedy: use x.shape[0], and compute all samples at once"
)
"""The note that says why a program takes batches of one size only begins with this."""


@dataclass(frozen=True)
class Exported:
    """An exported program and what was learnt about its batch dimension.

    ``resized`` says that it was exported with another number of samples than the example's, which may be special, and
    ``asked`` that its code asks whether it is compiled.
    """

    program: ExportedProgram
    dynamic_batch: bool
    notes: tuple[str, ...]
    resized: bool = False
    asked: bool = False


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set eval mode, and restore every module's training flag and attributes, and every buffer's values, afterwards.

    Tables whose rows a lookup shortens (``max_norm``) are restored, too.
    """
    flags = {module: module.training for module in model.modules()}
    tables = [m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    shortened = [table.weight for table in tables if table.max_norm is not None]
    before = [(b, b.detach().clone()) for b in (*model.buffers(), *shortened)]
    attributes, fast = Attributes(model), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it drops what a mask hides, which no other way of a model does
    model.eval()
    try:
        yield
    finally:
        attributes.restore()
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, flag in flags.items():
            module.training = flag
        for buffer, values in before:
            if not torch.equal(buffer, values):
                with torch.no_grad():
                    buffer.copy_(values)


@contextmanager
def without_sparse(model: nn.Module) -> Iterator[None]:
    """Take sparse buffers out of the model in this block, which torch.export cannot read: many are there for others
    than the forward method (Whisper's alignment heads).

    Raises:
        CaptureError: the model uses one.
    """
    found = [
        (module, name, f"{path}.{name}".lstrip("."))
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.layout != torch.strided
    ]
    before = {id(module): (module, dict(module._buffers)) for module, *_ in found}
    for module, name, _ in found:
        del module._buffers[name]
    try:
        yield
    except CaptureError as error:
        for module, name, path in found:
            if f"'{type(module).__name__}' object has no attribute '{name}'" in str(error):
                raise sparse(path) from error
        raise
    finally:
        for module, buffers in before.values():
            module._buffers.clear()
            module._buffers.update(buffers)


def sparse(name: str) -> CaptureError:
    """Return the error for a sparse tensor that a model computes with."""
    remedy = "keep it as a dense one: w.to_dense()"
    return CaptureError("a sparse tensor", where=name, why="programs have dense tensors", remedy=remedy)


def require_module(model: Any) -> None:
    """Refuse what is not a float model that torch.export can read, and say what it is.

    Raises:
        InputError: no module, a TorchScript or exported one, or one another tool has quantized.
    """
    if isinstance(model, ExportedProgram):
        remedy = "pass the nn.Module it was exported from; call intact8.migrate on it if it is quantized"
        raise InputError("the model is an ExportedProgram", remedy=remedy)
    if not isinstance(model, nn.Module):
        what = f"the model is a {type(model).__name__}, not a torch.nn.Module"
        raise InputError(what, remedy="pass the module itself (not its state dict, class or file)" + _migration(model))
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"{'a part of the model' if name else 'the model'} is a TorchScript module"
            why = "torch.jit.script or torch.jit.trace made it, and torch.export does not read these"
            remedy = (
                "use the nn.Module it was made from; if it is quantized, call intact8.migrate(float_model, its file)"
            )
            raise InputError(what, where=name, why=why, remedy=remedy)
        with ALONE:  # while another thread exports the model, its parameters are tensors without values
            reason = quantized_by(module)
        if reason:
            what = f"this model went through {reason}"
            where = f"{name or 'the model itself'} ({type(module).__name__})"
            remedy = "call intact8.migrate on it, or pass the float model it was made from, with its trained weights"
            raise InputError(what, where=where, why="quantization starts from a float32 model", remedy=remedy)
    require_defaults()
    try:
        # The module of an ExportedProgram refuses to change its mode, which torch.export would do later.
        for module in model.modules():
            if isinstance(module, torch.fx.GraphModule):
                module.train(module.training)
    except NotImplementedError as error:
        what = "the model is the module of an ExportedProgram"
        raise InputError(what, why=first_lines(error, 1), remedy="pass the nn.Module it was exported from") from error


def _migration(model: Any) -> str:
    """Return what to do about a state dict or file of a model that another tool may have quantized."""
    if isinstance(model, Mapping):
        return "; call intact8.migrate(float_model, it) if it is of a quantized model"
    suffix = Path(model).suffix if isinstance(model, (str, Path)) else ""
    if suffix in (".onnx", ".xml", ".pt2"):
        return "; call intact8.migrate on this file if it is quantized"
    checkpoint = suffix in (".pt", ".pth", ".tar", ".bin", ".ckpt")
    return "; call intact8.migrate(float_model, this file) if it is of a quantized model" if checkpoint else ""


AO_STUBS = frozenset({"QuantStub", "DeQuantStub", "QuantWrapper", "FloatFunctional", "FXFloatFunctional"})
"""Modules of torch.ao that compute the same as without it, as in torchvision.models.quantization."""

AO_MODULES = (
    "torch.ao.quantization",
    "torch.ao.nn.quantized",
    "torch.ao.nn.qat",
    "torch.ao.nn.intrinsic.quantized",
    "torch.ao.nn.intrinsic.qat",
    "torch.ao.nn.sparse.quantized",
)
"""Packages whose modules observe, fake-quantize or compute in integers."""


def quantized_by(module: nn.Module) -> str:
    """Return the name of the tool that has quantized ``module`` or prepared it for that; "" for a float module."""
    kind = type(module)
    if kind.__module__.startswith(AO_MODULES) and kind.__name__ not in AO_STUBS:
        return "torch.ao.quantization"
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if type(tensor).__module__.startswith("torchao") or type(tensor.data).__module__.startswith("torchao"):
            return "torchao"
        if tensor.is_quantized:
            return "torch.ao.quantization"
    if isinstance(module, torch.fx.GraphModule):
        names = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
        if any(name.startswith(("quantized_decomposed", "torchao", "quantized.")) for name in names):
            return "torchao or torch.ao.quantization (pt2e)"
    return ""


def hides_scores(parameter: Tensor) -> bool:
    """Return whether a parameter is a constant of infinities, for scores that a mask leaves out; it takes no gradient.

    Example:
        >>> hides_scores(nn.Parameter(torch.tensor([-torch.inf]), requires_grad=False))
        True
    """
    return not parameter.requires_grad and bool(torch.isinf(parameter).all())


def check_model(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what cannot be exported or quantized before torch does, in plain words.

    Raises:
        InputError: not a module, or no tensor among the inputs.
        CaptureError: uninitialized, non-finite, quantized, sparse or scattered weights; other floats than float32.
    """
    require_module(model)
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if not tensors:
        raise InputError("no tensor among the example inputs", remedy="give at least one example tensor")
    if any(t.is_nested for t in tensors):
        remedy = "give x.to_padded_tensor(0.0)"
        raise InputError("an example input is nested", why="programs have dense tensors", remedy=remedy)
    if any(t.layout != torch.strided for t in tensors):
        raise InputError("an example input is sparse", why="programs have dense tensors", remedy="give x.to_dense()")
    other = [t.dtype for t in tensors if t.is_floating_point() and t.dtype != torch.float32]
    if other:
        what, why = f"an example input is of dtype {str(other[0])[6:]}", "quantization starts from a float32 model"
        remedy = "give float32: x.float() or x.astype('float32'), and model.float() where that is not float32 either"
        raise CaptureError(what, why=why, remedy=remedy)
    devices: dict[torch.device, str] = {}
    buffers = dict(model.named_buffers())  # masks hold -inf by right, weights never
    dense = [(name, buffer) for name, buffer in buffers.items() if buffer.layout == torch.strided]
    for name, tensor in [*model.named_parameters(), *dense]:  # others are left out: see without_sparse
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise CaptureError(
                "an uninitialized parameter", where=name, remedy="run the model once before capturing it"
            )
        devices.setdefault(tensor.device, name)
        if tensor.device.type == "meta":
            raise CaptureError("a parameter without values (device meta)", where=name, remedy="load the weights first")
        if tensor.layout != torch.strided:
            raise sparse(name)
        if not tensor.is_floating_point():
            continue
        values = tensor.detach()  # in a call from inference mode gradients would be asked for
        if bool(torch.isfinite(values.sum())):
            continue  # one pass without a second array; sums of finite numbers may overflow, so others are looked at
        constant = name in buffers or hides_scores(tensor)
        bad = torch.isnan(values) if constant else ~torch.isfinite(values)
        if bool(bad.any()):
            count = int(bad.sum())
            what = f"{count} of {tensor.numel()} values are NaN or infinite"
            why = "such weights have no scale"
            raise CaptureError(what, where=name, why=why, remedy="retrain or repair them before quantizing")
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise CaptureError("the model is spread over several devices", why=places, remedy='move it: model.to("cpu")')
    for tensor in tensors:
        if devices and tensor.device not in devices:
            device, name = next(iter(devices.items()))
            what = f"an example input is on {tensor.device}, the model on {device}"
            raise CaptureError(what, where=name, remedy=f'move one of them, as in x.to("{device}")')


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_batch: bool,
    named: Mapping[int, Collection[int]] | None = None,
    *,
    compiled: bool = True,
) -> Exported:
    """Export ``model`` (in eval mode already), with a dynamic batch where it can be had.

    Args:
        model, args, kwargs: the model and an example call.
        dynamic_batch: whether dimension 0 shall be free.
        named: position of a leaf of (args, kwargs) → its other dimensions that shall be free. Those the model fixes are
            integers in the exported program.
        compiled: try first what the model does when it is compiled, where it asks.

    Raises:
        CaptureError: torch.export cannot follow the model.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            before, most = Attributes(model), FEW if dynamic_batch else None
            try:
                register_outputs(called(model, args, kwargs, most))
            except Exception:  # noqa: BLE001 - the model may need all samples; what it raises then is reported
                most = None
                register_outputs(called(model, args, kwargs, most))
            refuse_state(model, before, lambda: called(model, args, kwargs, most))
    except (IntactError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        refuse_leftovers(model)
        what = "the model does not run on the example inputs"
        remedy = "check that model(*example_inputs) works in eval mode"
        raise CaptureError(what, where=place_of(model, error), why=first_lines(error), remedy=remedy) from error
    # Export without bytecode analysis comes first: it is faster, follows more models, and names the user's line.
    # A model that cannot be exported by what it does when it is compiled is exported by what it does in a call.
    failures: list[BaseException] = []
    told: BaseException | None = None
    # A model that remembers the shape it saw last fixes it where it comes again: one sample more, and one longer.
    attempts = ((True, 0), (True, 1), (False, 0)) if dynamic_batch else ((False, 0),)
    asked, remembered = Asked(), None
    for strict, eager in ((False, False), (False, True), (True, False)):
        if (eager and not asked.some and compiled) or not (eager or compiled):
            continue
        reason = ""
        for dynamic, more in attempts:
            if remembered is not None and not more:
                break
            try:
                with nullcontext() if strict else answered(asked, eager):
                    program = _export(model, args, kwargs, dynamic, named or {}, strict, more)
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - the model is anybody's code, and so is what it raises
                failures.append(error)
                if isinstance(error, GuardOnDataDependentSymNode) or BRANCHING in str(error):
                    break  # every attempt would meet it
                reason = f"{FIXED_BATCH}: {fixed_by(model, error)}"
            else:
                found = Exported(program, dynamic, () if dynamic or not reason else (reason,), more > 0, asked.some)
                fixes = _fixes(program, named or {})
                if remembered is None and fixes and (dynamic, more + 1) in attempts:
                    remembered = found  # sizes that came again
                    continue
                return remembered if remembered is not None and fixes else found
        if remembered is not None:
            return remembered
        told = failures[-1] if eager else told or failures[-1]  # what stops it in a call is what its user can change
    assert told is not None
    refuse_leftovers(model)
    raise not_followed(model, told) from told


def _fixes(program: ExportedProgram, named: Mapping[int, Collection[int]]) -> bool:
    """Return whether an export has made a number of a dimension that was to stay free."""
    inputs = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    given = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]
    return any(
        isinstance(val, Tensor)
        and not (isinstance(size := val.shape[dim], torch.SymInt) and size.node.expr.free_symbols)
        for at, val in enumerate(given)
        for dim in named.get(at, ())
    )


def refuse_leftovers(model: nn.Module) -> None:
    """Refuse a model that keeps, outside of its buffers, what an earlier torch.export has computed with symbols.

    torch restores the attributes of modules after an export, but not those of other objects that modules hold.

    Raises:
        CaptureError: names the module and the attribute.
    """
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            inside = vars(value).values() if hasattr(value, "__dict__") and not name.startswith("_") else (value,)
            if any(isinstance(leaf, (torch.SymInt, FakeTensor)) for leaf in pytree.tree_leaves(list(inside))):
                what = f"{name} holds a size or a tensor without values, left there by an earlier torch.export"
                where = f"{path or 'the model itself'} ({type(module).__name__})"
                remedy = "make the model anew, and give torch.export a copy.deepcopy of it"
                raise CaptureError(what, where=where, why="the forward pass keeps what it computes", remedy=remedy)


FEW = 2
"""How many samples a model is run on first, to see what it returns; one less where it is exported with as many.

A model that remembers the shape it saw last, as YOLO's heads do, would fix that of the export.
"""


def called(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], most: int | None) -> Any:
    """Return what the model gives for the first ``most`` samples of a call (fewer than all), or for all of them."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    size = next((x.shape[0] for x in leaves if isinstance(x, Tensor) and x.ndim), None)
    if most is not None and size is not None and size > 1:
        most = min(most, size - 1)
        leaves = [x[:most] if isinstance(x, Tensor) and x.ndim and x.shape[0] == size else x for x in leaves]
    # The model may put more into a cache that it is given: the structure is copied as well.
    given = copied(pytree.tree_unflatten(leaves, spec))
    return model(*given[0], **given[1])


def _with_dynamic(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    model: nn.Module,
    dynamic_batch: bool,
    named: Mapping[int, Collection[int]],
    more: int,
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Return the inputs, ``more`` longer along free dimensions than given, and the dynamic shapes for them.

    A size of one is doubled, because torch specializes 1.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    batch = next((t.shape[0] for t in leaves if isinstance(t, Tensor) and t.ndim > 0), None)
    shapes: list[Any] = []
    for i, leaf in enumerate(leaves):
        free = dict.fromkeys(named.get(i, ()), Dim.AUTO)
        if dynamic_batch and isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == batch:
            free[0] = Dim.DYNAMIC
        for dim in free if isinstance(leaf, Tensor) else ():
            leaf = torch.cat([leaf, *[leaf.narrow(dim, 0, 1)] * more], dim)
        shapes.append(free or None)
        if free:
            # This copies in any case: torch writes marks of its own onto tensors with dynamic dimensions.
            leaves[i] = doubled(leaf, list(free))
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    shape_args, shape_kwargs = pytree.tree_unflatten(shapes, with_lists(spec))
    with keywords_named(model, kwargs):
        bound = inspect.signature(model.forward).bind(*shape_args, **shape_kwargs)
    return args, kwargs, bound.arguments


def _export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_batch: bool,
    named: Mapping[int, Collection[int]],
    strict: bool,
    more: int,
) -> ExportedProgram:
    shapes: dict[str, Any] | None = None
    if dynamic_batch or named:
        args, kwargs, shapes = _with_dynamic(args, kwargs, model, dynamic_batch, named, more)

    def made() -> ExportedProgram:
        with attributes_kept(model), caches_emptied(model):  # known numbers are attributes as well
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=strict)

    with quiet(), torch.no_grad(), traceable(), left_by_errors(), functions_of_sizes(), keywords_named(model, kwargs):
        try:
            with known_numbers(model) as numbers:
                exported = _followed(model, made)
            if not numbers.changed:  # it does not count its calls, say
                return exported
        except Exception as error:
            if not numbers.some:
                if not values_decide(error):
                    raise
                return _with_flags(model, made, error)
        try:
            return _followed(model, made)
        except Exception as error:
            if not values_decide(error):
                raise
            return _with_flags(model, made, error)


def _with_flags(model: nn.Module, made: Callable[[], ExportedProgram], refused: Exception) -> ExportedProgram:
    """Return what is exported where values of the model's own buffers decide about the path; else raise ``refused``."""
    with known_numbers(model, flags=True) as numbers:
        if not numbers.some:
            raise refused
        exported = _followed(model, made)
    if numbers.changed:
        raise refused
    exported.graph_module.meta[KNOWN] = numbers.buffers
    return exported


KNOWN = "intact8_known"
"""Where the graph of an export keeps the buffers whose values its path was chosen by."""


SPECIALIZED = "specialized it to be a constant"
"""What torch says of a size that was to stay a symbol."""

TAKEN_OUT = "fake tensor in the exported program", "is not tracked with proxy"
"""What torch says of tensors that are not in the graph; the latter torch 2.8 of their sizes."""


def _followed(model: nn.Module, made: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Return what is exported; where ``x.data`` took tensors out of the graph or put them into it, a second time.

    So it is where values decide about the path, which may be known from the code, and where a size became a number,
    which ``len(x)`` and ``int(…)`` make of it.
    """
    # Both cost a call of Python in every operation.
    again: DataAttribute | KnownValues | SymbolicSizes = DataAttribute()
    try:
        exported = made()
        if computed_sizes_are_numbers(exported):
            with SymbolicSizes(model), suppress(Exception):
                return made()
        if not any(isinstance(constant, FakeTensor) for constant in exported.constants.values()):
            return exported
    except Exception as error:
        if values_decide(error):
            again = KnownValues(more=True)
        elif SPECIALIZED in str(error):
            again = SymbolicSizes(model)
        elif not (isinstance(error, RuntimeError) and any(sign in str(error) for sign in TAKEN_OUT)):
            raise
    with again:
        try:
            return made()
        except Exception as error:
            if isinstance(again, SymbolicSizes) and again.place:
                raise FixedSizeError(f"{again.place}: {COUNTED}") from error
            raise


def computed_sizes_are_numbers(exported: ExportedProgram) -> bool:
    """Return whether something that is computed of a size was made a number, as ``int(…)`` does, and the size was not:
    it holds for what gives the same number."""
    sizes = (size for node in exported.graph.find_nodes(op="placeholder") for size in _shape(node.meta.get("val")))
    environment = next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)
    equal = (guard.expr for guard in assumed(environment) if isinstance(guard.expr, sympy.Eq))
    return any(expr.rhs.is_Integer and expr.lhs.args and expr.lhs.atoms(*_ROUNDED) for expr in equal)


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else ()


_ROUNDED = tuple(vars(functions)[name] for name in ("CeilToInt", "FloorToInt", "TruncToInt") if name in vars(functions))
"""What rounds a quotient of sizes."""


class FixedSizeError(Exception):
    """A size that was to stay a symbol became a number: says where, and what to do."""


STANDARD = {*vars(nn.Module()), "forward"}
"""Attributes of modules that hold their parameters, buffers, modules, hooks, and what is called for them."""


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Give modules back, behind every call of the model, the attributes that they had before it.

    torch 2.8 refuses to export a model that assigns tensors to its own, and leaves those of its modules as they are.
    Tables that are kept by size are made anew, see :class:`BySize`.
    """
    own = [(values, {k: v for k, v in values.items() if k not in STANDARD}) for values in map(vars, model.modules())]
    forward = model.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        for values, before in own:
            values.update({k: BySize(v) for k, v in before.items() if type(v) is dict and by_size(v)})
        try:
            return forward(*args, **kwargs)
        finally:
            for values, before in own:
                for name in values.keys() - before.keys() - STANDARD:
                    del values[name]
                values.update(before)

    call.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    with forward_replaced(model, call):
        yield


@contextmanager
def left_by_errors() -> Iterator[None]:
    """Let a model catch errors of its modules: torch counts them as entered for good, and fails at the next one."""
    entered = torch.fx.Tracer.call_module

    def call_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        depth = len(self.module_stack)
        try:
            return entered(self, *args, **kwargs)
        except BaseException:
            while len(self.module_stack) > depth:
                self.module_stack.popitem()
            raise

    torch.fx.Tracer.call_module = call_module  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.fx.Tracer.call_module = entered  # type: ignore[method-assign]


@contextmanager
def keywords_named(model: nn.Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Let the forward method name every keyword of a call that it takes as ``**kwargs``.

    torch.export looks for the dynamic shapes of those in two places, of which only one has them.
    """
    forward = model.forward
    signature = inspect.signature(forward)
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY) for k in kwargs if k not in signature.parameters]
    if len(named) == len(signature.parameters) or not more:
        yield
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    call.__signature__ = signature.replace(parameters=[*named, *more])  # type: ignore[attr-defined]
    with forward_replaced(model, call):
        yield


@contextmanager
def forward_replaced(model: nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """Let a module's forward be another function."""
    own = vars(model).get("forward")
    vars(model)["forward"] = call
    try:
        yield
    finally:
        if own is None:
            del vars(model)["forward"]
        else:
            vars(model)["forward"] = own


def without_writes(exported: Exported) -> Exported:
    """Return the same program with operators that compute new tensors in the place of those that write."""
    with quiet():
        return replace(exported, program=exported.program.run_decompositions({}))


class OfOthers:
    """A stream that drops what the thread that made it writes, and passes on what other threads write meanwhile."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write ``text``, or drop it."""
        if threading.get_ident() == self._thread or self._stream is None:
            return len(text)
        return int(self._stream.write(text))

    def flush(self) -> None:
        """Write what is buffered."""
        if self._stream is not None:
            self._stream.flush()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what torch.export warns of and prints: what matters to the user becomes an error or a note."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] == "torch"]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    levels = [handler.level for handler in handlers]
    out: Any = OfOthers(sys.stdout)
    err: Any = OfOthers(sys.stderr)
    with warnings.catch_warnings(), redirect_stderr(err), redirect_stdout(out):
        warnings.simplefilter("ignore")
        try:
            for handler in handlers:
                handler.setLevel(logging.CRITICAL)
            yield
        finally:
            for handler, level in zip(handlers, levels, strict=True):
                handler.setLevel(level)


BRANCHING = "Data-dependent branching"
"""What bytecode analysis says of an ``if`` that asks for the value of a tensor."""

VALUES_DECIDE = (
    "DataDependent",
    "data-dependent",
    "DynamicOutputShape",
    "aten.equal.default",
    "aten._local_scalar_dense",
    "unbacked symbols",
)
"""What names or messages of torch's errors have where a path or a size follows from the values of tensors."""


def values_decide(error: BaseException) -> bool:
    """Return whether torch cannot follow a model because values of tensors decide about its path or a size."""
    return any(sign in f"{type(error).__name__}: {error}" for sign in VALUES_DECIDE)


def not_followed(model: nn.Module, error: BaseException) -> CaptureError:
    """Return the error for a model that torch.export cannot follow."""
    remedy = (
        "rewrite control flow that depends on values (torch.where(condition, one, other) instead of if; all rows, or "
        "all experts, weighed by what would choose among them); or leave it in torch: intact8.split(model, data) "
        "converts the modules that can be captured"
    )
    if values_decide(error):
        what = "control flow, or the size of a tensor, depends on the values of the input"
        why = "a program takes the same path for every input"
    elif ".numpy() is not supported" in str(error):
        what, why = "the forward pass makes a NumPy array of a tensor", "no values are known while a model is exported"
        remedy = (
            "leave out of the model what follows (decoding, words, boxes), which some models do where an argument says "
            "that they are exported; or call intact8.split(model, data), which converts the modules before it"
        )
    elif "functorch" in str(error):
        what, why = "the forward pass differentiates a function", "a program has no backward pass"
        remedy = (
            "compute the derivative by a formula; or leave it in torch: intact8.split(model, data) converts the "
            "modules that can be captured"
        )
    elif "Couldn't swap" in str(error):
        what, why = "the forward pass converts or moves a module", "its weights would change while it is exported"
        remedy = "convert the module once, before, and leave its .to(...) out of forward"
    else:
        what, why = "torch.export cannot follow the model", first_lines(error, 1)
    found = CaptureError(what, where=place_of(model, error), why=why, remedy=remedy)
    found.__cause__ = error
    return found


def place_of(model: nn.Module, error: BaseException) -> str:
    """Return the module an error comes from, and the line of the user's code, where they are known."""
    line = ""
    seen: BaseException | None = error
    while seen is not None and not line:
        for frame in traceback.extract_tb(seen.__traceback__):
            if is_models(frame.filename):
                line = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        seen = seen.__cause__ or seen.__context__
    return ", ".join(filter(None, (blame(model, error), line)))


def blame(model: nn.Module, error: BaseException) -> str:
    """Return the path of the innermost module of ``model`` in the traceback of ``error``; "" when there is none."""
    paths = {id(module): name for name, module in model.named_modules()}
    found = ""
    seen: BaseException | None = error
    while seen is not None:
        traceback = seen.__traceback__
        deepest = ""
        while traceback is not None:
            owner = traceback.tb_frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in paths:
                deepest = f"{paths[id(owner)] or 'the model itself'} ({type(owner).__name__})"
            traceback = traceback.tb_next
        found = deepest or found
        seen = seen.__cause__ or seen.__context__
    return found


ADVICE = re.compile(
    r"For more information, run with|If you're using mark_dynamic|The error above occurred|If you would like|"
    r"Please file an issue"
)


def fixed_by(model: nn.Module, error: BaseException) -> str:
    """Return in words what of a model fits the example's batch size only: where, why, and what to do."""
    if isinstance(error, FixedSizeError):
        return str(error)
    if SPECIALIZED in str(error):
        return COUNTED
    what, why = "this fits the example's number of samples only", first_lines(error, 1).rstrip(".")
    if why.count(")") > why.count("("):  # as torch ends its words on sizes that do not match
        why = why.rstrip(")")
    if len(set(SYMBOL.findall(why))) == 1:
        why = SYMBOL.sub("batch", why)
    remedy = "use x.shape[0] where it has a number, and constants that are one sample's"
    return str(CaptureError(what, where=place_of(model, error), why=why, remedy=remedy))


SYMBOL = re.compile(r"\bs\d+\b")
"""What torch calls a size that is to stay free."""


def first_lines(error: BaseException, count: int = 3) -> str:
    """Return the first lines of torch's message, on one line, without advice for those who call torch.export
    themselves."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [kept for line in lines if (kept := ADVICE.split(line)[0].strip())]
    return " ".join(lines[:count]).rstrip(".") or type(error).__name__
