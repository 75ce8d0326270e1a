"""Capture: from an unmodified model to a graph and the tensors it names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from intact8.arithmetic.dimensions import show
from intact8.capture import families  # noqa: F401 - they enter HANDLERS
from intact8.capture.aten_call import BatchError, LimitError, NotFunctional, Prefix, Value, finite
from intact8.capture.chosen_rows import write_whole
from intact8.capture.constants import Derived, Fixed, unread_writes
from intact8.capture.dynamic_shapes import FIXED_SIZES, LIMITED, Dynamic
from intact8.capture.equivalence import require_agreement
from intact8.capture.flat_rows import index_samples
from intact8.capture.graph import Graph, Node
from intact8.capture.interpreter import Builder, live
from intact8.capture.masked_rows import infinite_outputs
from intact8.capture.names import rename
from intact8.capture.other_sizes import agreeing_sizes
from intact8.capture.partial_functions import hide_arguments
from intact8.capture.pytree import (
    HoldsSpecs,
    InputLayout,
    Slot,
    call_of,
    describe,
    register_inputs,
    widened,
    with_dicts,
)
from intact8.capture.read_numbers import keep_tensors
from intact8.capture.results import known_dtype, plain, returned
from intact8.capture.size_classes import (
    Question,
    SizeClass,
    SizeClassError,
    assumed,
    conditions,
    line_that_fixes,
)
from intact8.capture.torch_export import (
    ALONE,
    FIXED_BATCH,
    KNOWN,
    Exported,
    check_model,
    evaluating,
    export,
    without_sparse,
    without_writes,
)
from intact8.errors import CaptureError, InputError, InternalError, in_short


@dataclass(frozen=True)
class Captured(HoldsSpecs):
    """A captured model.

    Attributes:
        graph: the operations.
        parameters: the model's own parameters (not copies) by state-dict name; tied ones under their first name.
        buffers: the model's own persistent buffers by state-dict name.
        constants: everything else the graph names, prefixed ``constants.``.
        derived: constants that follow parameters → how they are computed from them.
        aliases: further state-dict name of a tied tensor → first name.
        layout: how calls flatten into the graph's inputs.
        out_spec: torch pytree spec of the outputs.
        out_leaves: per leaf of ``out_spec``: a Slot (position in ``graph.outputs``) or a plain value.
        notes: what capture decided and the user may want to know.
        derived: constants that are computed from parameters.
        comparable: whether the model's outputs are expected to have the graph's shapes and values.
        marks: (node, number) for every mark of the model, in order; see ``intact8.capture.marks``.
        untrained: parameters that nothing follows: what is computed from them was computed once.
        fixed: numbers, indices and conditions of the graph that were computed from parameters and buffers at capture.
        checksums: of parameters, and of buffers but statistics, at capture, by state-dict name; see :func:`checksum`.
        questions: what the model's code asks of sizes; none are left when the graph is known to agree with the model.
        infinite: positions of the outputs in which the least float32 number stands for -inf.
    """

    graph: Graph
    parameters: dict[str, nn.Parameter | Tensor]
    buffers: dict[str, Tensor]
    constants: dict[str, Tensor]
    aliases: dict[str, str]
    layout: InputLayout
    out_spec: pytree.TreeSpec
    out_leaves: tuple[Any, ...]
    notes: tuple[str, ...] = ()
    derived: Mapping[str, Derived] = field(default_factory=dict)
    comparable: bool = True
    marks: tuple[tuple[str, int], ...] = ()
    untrained: tuple[str, ...] = ()
    fixed: tuple[Fixed, ...] = ()
    checksums: Mapping[str, int] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()
    infinite: tuple[int, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return the all tensors that nodes may name."""
        return {**self.parameters, **self.buffers, **self.constants}

    def without_tensors(self) -> Captured:
        """Return the same without parameters, buffers and constants, for holders that keep their own copies."""
        return replace(self, parameters={}, buffers={}, constants={})

    @property
    def input_keys(self) -> tuple[str, ...]:
        """Return the names of the tensor inputs, in the order of ``graph.inputs``."""
        return self.layout.tensor_keys()

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Return the tensors of a call in the order of ``graph.inputs``; raise InputError on a mismatch.

        Integers of 8, 16 and 32 bits are the same numbers of 64 bits, as in programs; floats become float32: under
        autocast a simulation is given others.
        """
        given = self.layout.flatten(args, kwargs or {})
        wanted = [self.graph.nodes[name] for name in self.graph.inputs]
        return [_as_captured(x, node) for x, node in zip(given, wanted, strict=True)]

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """Return the model's own output structure around ``outputs`` (one per ``graph.outputs``)."""
        given = [
            y.masked_fill(y <= finite(-math.inf), -math.inf) if i in self.infinite else y for i, y in enumerate(outputs)
        ]
        leaves = [given[leaf.index] if isinstance(leaf, Slot) else leaf for leaf in self.out_leaves]
        return pytree.tree_unflatten(leaves, self.out_spec)


STATISTICS = ("running_mean", "running_var")
"""Ends of names of buffers that training changes."""

PLACES = 1 << 20
"""Elements that a checksum takes at a time."""


def checksum(tensor: Tensor) -> int:
    """Return the sum of the bits of a tensor's elements as float32, read as integers, each times a number of its place.

    It is the same on every device, and another one where elements are exchanged.
    """
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    bits = real.float().contiguous().view(torch.int32).reshape(-1)
    places, total = torch.arange(1, PLACES + 1, device=bits.device), 0
    for at in range(0, len(bits), PLACES):
        part = bits[at : at + PLACES].long()
        total += int((part * (places[: len(part)] + at // PLACES)).sum())
    return total


def _as_captured(x: Tensor, node: Node) -> Tensor:
    """Return an input in the dtype it was captured with."""
    x = widened(x, node.dtype)
    if x.is_floating_point() and node.dtype == "float32":
        return x.float()
    given = str(x.dtype).removeprefix("torch.")
    if given != node.dtype:
        why = "where float32 was captured, a simulation takes values, not integers" if node.dtype == "float32" else ""
        remedy = f"convert it: x.to(torch.{node.dtype})"
        raise InputError(f"expected dtype {node.dtype}, got {given}", where=node.attrs["key"], why=why, remedy=remedy)
    return x


def capture(
    model: nn.Module,
    example_inputs: Any,
    *,
    dynamic_batch: bool = True,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | Dynamic | None = None,
) -> Captured:
    """Capture ``model`` as a graph of operations.

    The model is exported in eval mode; it is not changed, and its training flags are as before.

    Args:
        model: any module torch.export can follow, float32, on one device.
        example_inputs: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        dynamic_batch: let dimension 0 of the inputs change from call to call. Where the model does not allow it,
            ``graph.dynamic_batch`` is False and ``notes`` has the reason.
        dynamic_shapes: other dimensions that may change, by input and dimension: ``{"input_ids": {1: "sequence"}}``, or
            a ``torch.export.Dim`` with limits in place of the name. Dimensions of one name have one size.

    Raises:
        InputError: ``model`` is not a module, the example inputs hold no tensor, or ``dynamic_shapes`` do not fit them.
        CaptureError: torch.export or intact8 cannot follow the model, or a dimension of ``dynamic_shapes`` cannot
            change; names the module.

    Example:
        >>> captured = capture(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.zeros(1, 4))
        >>> [(n.name, n.op, n.shape) for n in captured.graph]
        [('input', 'input', (None, 4)), ('0', 'linear', (None, 2)), ('1', 'relu', (None, 2))]
        >>> longer = capture(nn.Linear(4, 2), torch.zeros(1, 9, 4), dynamic_shapes={"input": {1: "sequence"}})
        >>> longer.graph.nodes["input"].shape
        (None, 'sequence', 4)
    """
    with ALONE:
        return _capture(model, example_inputs, dynamic_batch, dynamic_shapes)


def _capture(
    model: nn.Module,
    example_inputs: Any,
    dynamic_batch: bool,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | Dynamic | None,
) -> Captured:
    args, kwargs = call_of(example_inputs)
    register_inputs((args, kwargs))
    check_model(model, args, kwargs)
    layout, wanted = InputLayout.of(model, args, kwargs), Dynamic.of(dynamic_shapes)
    example = Example(model, args, kwargs, layout)
    with without_sparse(model), evaluating(model):
        if wanted.rows is None:
            return _of_any_size(example, dynamic_batch, wanted)
        return _of_any_rows(example, dynamic_batch, wanted, wanted.rows)


def _of_any_rows(example: Example, dynamic_batch: bool, wanted: Dynamic, rows: Dynamic) -> Captured:
    """Return the graph of a model with a batch along dimension 0; where it takes none, with names for dimension 0."""
    captured: Captured | CaptureError
    try:
        captured = _of_any_size(example, dynamic_batch, wanted)
        if not dynamic_batch or captured.graph.dynamic_batch or SAMPLES in captured.graph.dimensions:
            return captured
    except CaptureError as refused:
        captured = refused
    try:
        return _of_any_size(example, False, rows, give_up=False)
    except CaptureError as error:
        if isinstance(captured, CaptureError):
            raise captured from None
        return replace(captured, notes=(*captured.notes, f"dimension 0 is the example's: {error}"))


def _of_any_size(example: Example, dynamic_batch: bool, wanted: Dynamic, *, give_up: bool = True) -> Captured:
    """Return the graph of a model for all sizes of the dimensions that are wanted; where these were found in data and
    cannot change, they are given up with a note, unless ``give_up`` is False."""
    named = _leaves(example.layout, wanted, example.args, example.kwargs)
    if not named:
        return _any_batch(example, dynamic_batch, {}, wanted)
    places = ", ".join(
        f"{name} (dimension {axis} of {key})" for key, dims in wanted.names.items() for axis, name in dims.items()
    )
    note = f"may change from call to call: {places}"
    # Constants as long as a dimension that was found in data get a length that suits most, or what was seen.
    usual, seen = wanted.limited(USUAL_LENGTH), wanted.limited(1)
    attempts = [wanted, usual, *([seen] if seen != usual else [])] if wanted.found else [wanted]
    for at, tried in enumerate(attempts):
        try:
            captured = _any_batch(example, dynamic_batch, named, tried)
            limits = ", ".join(f"{name} up to {most}" for name, (_, most) in tried.bounds.items())
            more = [f"{note}; {limits}" if limits else note]
            said = {name for name, (_, most) in wanted.bounds.items() if most is not None} | wanted.seen.keys()
            chosen = [f"{name} up to {most}" for name, (_, most) in tried.bounds.items() if most and name not in said]
            if chosen:
                more.append(f"{LIMITED}: {' and '.join(chosen)}")
            return replace(captured, notes=(*captured.notes, *more))
        except LimitError as error:
            refused: CaptureError = error
            asked = wanted.bounds.get(error.name, (1, None))[1]
            limited = None if asked is not None else _with_limit(error, tried, example, named)
            if limited is not None:
                attempts.insert(at + 1, limited)
            elif not wanted.found:
                raise
        except CaptureError as error:
            if not wanted.found:
                raise
            refused = error
            if tried is wanted:
                break
    if not give_up:
        raise refused
    note = f"{FIXED_SIZES}: {places}: {refused}"
    captured = _any_batch(example, dynamic_batch, {}, Dynamic({}, {}))
    return replace(captured, notes=(*captured.notes, note))


@dataclass(frozen=True)
class Example:
    """A model in evaluation mode and a call of it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layout: InputLayout

    def second_dimension(self) -> Dynamic | None:
        """Return dimension 1 of every input that is as long there as the first, in models of sequence-first layers.

        None for other models: those of which every attention and recurrent layer takes the batch first, or that have
        none.
        """
        layers = [m for m in self.model.modules() if isinstance(m, (nn.MultiheadAttention, nn.RNNBase))]
        deep = self._of_rank(2)
        if all(layer.batch_first for layer in layers) or not deep:
            return None
        size = next(iter(deep.values())).shape[1]
        return Dynamic({key: {1: SAMPLES} for key, x in deep.items() if x.shape[1] == size}, {}, found=True)

    def first_dimension(self, wanted: Dynamic) -> Dynamic:
        """Return what is wanted with a name for dimension 0 of every input that is as long there as the first."""
        given, size = self._of_rank(1), self.first_size()
        first = {key: {0: ROWS} for key, x in given.items() if x.shape[0] == size}
        names = {key: {**first.get(key, {}), **wanted.names.get(key, {})} for key in {**first, **wanted.names}}
        found = wanted.found and bool(wanted.names)
        return replace(
            wanted, names=names, found=found, seen={**wanted.seen, ROWS: (size,)} if found else {}, rows=None
        )

    def first_size(self) -> int:
        """Return dimension 0 of the first input that has one; 0 without any."""
        return next((x.shape[0] for x in self._of_rank(1).values()), 0)

    def _of_rank(self, least: int) -> dict[str, Tensor]:
        """Return the inputs of so many dimensions or more, by their names."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        given = zip(self.layout.keys, leaves, strict=True)
        return {key: x for key, x in given if isinstance(x, Tensor) and x.ndim >= least}

    def sequence_first(self, steps: bool, second: Dynamic, said: str) -> Captured:
        """Return the graph for any number of samples along dimension 1, and of ``steps`` along dimension 0."""
        captured = self.captured(steps, _leaves(self.layout, second, self.args, self.kwargs), second)
        note = f"samples are along dimension 1 of {', '.join(second.names)}; {said}"
        return replace(captured, notes=(*captured.notes, note))

    def captured(
        self, dynamic_batch: bool, named: dict[int, dict[int, str]], wanted: Dynamic, *, compiled: bool = True
    ) -> Captured:
        """Return the model's graph, which computes what the model does; ``compiled``, when it is compiled."""
        exported = export(self.model, self.args, self.kwargs, dynamic_batch, named, compiled=compiled)
        try:
            captured = _build_in_classes(self.model, exported, self.layout, wanted)
        except NotFunctional as refused:
            try:
                functional = without_writes(exported)
            except Exception:  # noqa: BLE001 - torch cannot take every program apart that it has exported
                raise refused from None
            captured = _build_in_classes(self.model, functional, self.layout, wanted)
        if captured.comparable:
            try:
                require_agreement(self.model, captured, self.args, self.kwargs)
            except CaptureError:
                if not (compiled and exported.asked):
                    raise
                return self.captured(dynamic_batch, named, wanted, compiled=False)
            if exported.resized:
                require_agreement(self.model, captured, self.args, self.kwargs, whole=True)
            return agreeing_sizes(self.model, captured, self.args, self.kwargs)
        return captured


def _with_limit(
    error: LimitError, tried: Dynamic, example: Example, named: dict[int, dict[int, str]]
) -> Dynamic | None:
    """Return what was tried with the limit that a dimension needs; None where the example's size is beyond it, or a
    dimension that was found in data has no limit of its own."""
    leaves = pytree.tree_leaves((example.args, example.kwargs))
    sizes = [leaves[at].shape[axis] for at, dims in named.items() for axis, of in dims.items() if of == error.name]
    least, (_, known) = max(sizes, default=1), tried.bounds.get(error.name, (1, None))
    if least <= error.most and (known is None or error.most < known):
        return tried.up_to(error.name, error.most)
    usual = known is None and not tried.found
    return tried.up_to(error.name, max(USUAL_LENGTH, least)) if usual else None


USUAL_LENGTH = 512
"""Length to which constants are made that are as long as a dimension of which only some sizes are known."""

SAMPLES = "samples"
"""Name of dimension 1 where it is the batch."""

ROWS = "rows"
"""Name of dimension 0 where samples depend on one another."""

TOGETHER = "samples may be of any number, and depend on one another"
"""How the note begins of a model that puts samples together, as where it sorts them."""


def _any_batch(example: Example, dynamic_batch: bool, named: dict[int, dict[int, str]], wanted: Dynamic) -> Captured:
    """Return the graph for any batch size, or for the example's where samples depend on one another."""
    if dynamic_batch:
        second = None if named else example.second_dimension()
        try:
            captured = example.captured(True, named, wanted)
        except (BatchError, InternalError) as error:
            reason = str(error)
        else:
            sizes = [size for n in captured.graph.inputs for size in captured.graph.nodes[n].shape[:1]]
            untold = not any(note.startswith(FIXED_BATCH) for note in captured.notes)
            if untold and sizes and all(isinstance(size, int) for size in sizes):
                why = "torch.export makes a number of it, as where several views of a tensor are written into in place"
                return replace(captured, notes=(*captured.notes, f"{FIXED_BATCH}: {why}"))
            if second is None or not _steps_change(captured.graph):
                return captured
            try:
                return example.sequence_first(True, second, "dimension 0, of steps, may change, too")
            except CaptureError as error:
                note = f"{FIXED_BATCH}: samples are along dimension 1 of {', '.join(second.names)}, and {error}"
                return replace(captured, notes=(*captured.notes, note))
        if second is not None:
            try:
                return example.sequence_first(False, second, "dimension 0 is the example's")
            except CaptureError as error:
                reason = f"{reason}. Along dimension 1 of {', '.join(second.names)}: {error}"
        elif wanted.rows is None:  # else they have names, which are tried behind this
            together = _of_any_number(example, wanted)
            if together is not None:
                return replace(together, notes=(*together.notes, f"{TOGETHER}: {reason}"))
        captured = example.captured(False, named, wanted)
        return replace(captured, notes=(*captured.notes, f"{FIXED_BATCH}: {reason}"))
    return example.captured(False, named, wanted)


def _of_any_number(example: Example, wanted: Dynamic) -> Captured | None:
    """Return the graph of a model whose samples depend on one another, as where they are sorted, for any number of
    them; None where that is not so, or what it computes depends on the number."""
    try:
        captured = _of_any_size(example, False, example.first_dimension(wanted), give_up=False)
    except CaptureError:
        return None
    least, most = captured.graph.dimensions.get(ROWS, (0, 0))
    sizes = [size for name in captured.graph.inputs for size in captured.graph.nodes[name].shape[:1]]
    whole = all(size == ROWS or ROWS not in str(size) for size in sizes)  # not a multiple, say
    fits = least <= min(2, example.first_size()) and (most is None or most >= USUAL_LENGTH)
    return captured if whole and least and fits else None


def _steps_change(graph: Graph) -> bool:
    """Return whether dimension 0 of the inputs is that of the steps of a recurrent layer, so that it is no batch."""
    return any(n.op in ("lstm", "gru", "rnn") and graph.nodes[n.inputs[0]].shape[0] is None for n in graph)


def _leaves(
    layout: InputLayout, wanted: Dynamic, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[int, dict[int, str]]:
    """Return the named dimensions by position of the leaf of (args, kwargs)."""
    leaves = pytree.tree_leaves((args, kwargs))
    named: dict[int, dict[int, str]] = {}
    for key, dims in wanted.names.items():
        at = layout.keys.index(key) if key in layout.keys else -1
        if at < 0 or at in layout.fixed:
            what = f"no input is called {key!r}"
            raise InputError(what, where="dynamic_shapes", remedy=f"the inputs are {', '.join(layout.tensor_keys())}")
        shape = tuple(leaves[at].shape)
        if max(dims, default=0) >= len(shape):
            what = f"{key} has no dimension {max(dims)}"
            why = f"the example's shape is {shape}"
            raise InputError(what, where="dynamic_shapes", why=why, remedy="count dimensions from 0, the batch")
        if dims:
            named[at] = dict(dims)
    return named


MOST_ATTEMPTS = 8
"""How often a graph is built until the classes of its sizes are known."""


def _build_in_classes(model: nn.Module, exported: Exported, layout: InputLayout, wanted: Dynamic) -> Captured:
    """Return the graph for the sizes that the model works for, see :mod:`intact8.capture.size_classes`."""
    classes: dict[Any, SizeClass] = {}
    for attempt in range(MOST_ATTEMPTS):
        try:
            return _build(model, exported, layout, wanted, classes)
        except SizeClassError as error:
            if attempt + 1 == MOST_ATTEMPTS:
                raise
            classes = error.classes
    raise AssertionError


def _build(
    model: nn.Module, exported: Exported, layout: InputLayout, wanted: Dynamic, classes: Mapping[Any, SizeClass]
) -> Captured:
    program = exported.program
    parameters, buffers, constants, aliases = _state(model)
    named = {id(t): name for name, t in [*constants.items(), *buffers.items(), *parameters.items()]}
    protected = {t.untyped_storage().data_ptr(): n for n, t in [*parameters.items(), *buffers.items()] if t.numel()}
    keep_tensors(program.graph_module)
    hide_arguments(program.graph_module)
    write_whole(program.graph_module)
    index_samples(program.graph_module)
    unread = unread_writes(program.graph)
    builder = Builder(root=model, named=named, protected=protected, unread=unread, constants=constants)
    builder.notes += exported.notes
    builder.fixed |= {id(buffer): buffer for buffer in program.graph_module.meta.get(KNOWN, ()) if id(buffer) in named}
    environment = _classify(builder, program, layout, wanted, classes)
    known = len(assumed(environment))
    feed, inputs = _placeholders(model, builder, program, layout, wanted)
    builder.ask_of_samples()
    result = builder.run(program.graph_module, feed)
    summed = (node.shape for node in builder.nodes.values() if node.op in ("matmul", "softmax"))
    builder.limit_products([dim for shape in summed for dim in shape])
    builder.require_seen(wanted)
    if len(guards := assumed(environment)) > known:
        later = builder.classes_of(conditions(guards), builder.classes)
        if later != builder.classes:
            what = "operations of the model need classes of sizes"
            raise SizeClassError(CaptureError(what, where="the model itself"), later)
    out_spec = program.call_spec.out_spec
    assert out_spec is not None  # an exported program always has one
    outputs, leaves = _outputs(builder, program, result)
    infinite = infinite_outputs(builder.nodes, builder.minus_infinite, outputs)
    structure = describe(_unflattened(leaves, out_spec))
    dynamic = exported.dynamic_batch and bool(builder.batch_symbols)
    graph = live(Graph(builder.nodes, inputs, outputs, structure, dynamic, dict(builder.bounds)))
    graph = rename(graph, builder.labels, builder.calls, _leaves_of_tree(model))
    _refuse_empty_tensors(graph)
    fixed = builder.fixed_values()
    held = parameters | {n: t for n, t in buffers.items() if t.is_floating_point() and not n.endswith(STATISTICS)}
    used = {name for n in graph for name in n.params.values()}
    derived = {name: how for name, how in builder.derived.items() if name in used}
    used |= {name for how in derived.values() for name in how.sources}
    constants = {name: t for name, t in builder.constants.items() if name in used}
    return Captured(
        graph,
        parameters,
        buffers,
        constants,
        aliases,
        layout,
        out_spec,
        tuple(leaves),
        tuple(builder.notes),
        derived,
        builder.comparable,
        tuple((name, number) for made, number in builder.marks if (name := builder.nodes[made].name) in graph.nodes),
        tuple(sorted({*builder.once, *(name for f in fixed for name in f.sources if name in parameters)} - used)),
        fixed,
        {name: checksum(tensor) for name, tensor in held.items()},
        tuple(dict.fromkeys(builder.questions)),
        infinite,
    )


def _outputs(builder: Builder, program: ExportedProgram, result: Iterable[Any]) -> tuple[list[str], list[Any]]:
    """Return the names of the values that the model returns, and all that it returns, with slots for these."""
    node = next(n for n in program.graph.nodes if n.op == "output")
    outputs: list[str] = []
    leaves: list[Any] = []
    for position, (item, given) in enumerate(returned(program, zip(result, node.args[0], strict=True))):
        if isinstance(item, (Tensor, Prefix)):
            item = builder.constant(item, node) if isinstance(item, Tensor) else builder.materialize(item, node)
        if note := known_dtype(given, position):
            builder.notes.append(note)
        if isinstance(item, Value):
            leaves.append(Slot(len(outputs)))
            outputs.append(item.name)
        else:
            leaves.append(plain(item, given, position))
    return outputs, leaves


def _unflattened(leaves: list[Any], out_spec: pytree.TreeSpec) -> Any:
    """Return what the model returns, in its own form."""
    try:
        return pytree.tree_unflatten(leaves, with_dicts(out_spec))
    except Exception as error:
        what = "a class that computes when it is made is returned"
        remedy = "compute it in forward, and return the result"
        raise CaptureError(what, where="the model's output", why=in_short(error), remedy=remedy) from error


def _leaves_of_tree(model: nn.Module) -> frozenset[str]:
    """Return the names of modules without children; parametrized layers have one that computes their weight."""
    return frozenset(
        name
        for name, m in model.named_modules()
        if name and all(n == "parametrizations" for n, _ in m.named_children())
    )


def _refuse_empty_tensors(graph: Graph) -> None:
    for n in graph:
        if n.op == "input" and 0 in n.shape:
            what = f"an example input of shape {show(n.shape)}, which holds nothing"
            raise CaptureError(what, where=n.name, remedy="give an example of at least one sample")
        if 0 in n.shape:
            what = f"a tensor of shape {show(n.shape)}, which holds nothing"
            why = "programs have no empty tensors"
            raise CaptureError(what, where=n.module or n.name, why=why, remedy="leave out what is computed from it")


def _state(
    model: nn.Module,
) -> tuple[dict[str, nn.Parameter | Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, str]]:
    """Return the parameters, persistent buffers, other buffers, and aliases of tied tensors."""
    parameters: dict[str, nn.Parameter | Tensor] = {}
    buffers: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    persistent = set(model.state_dict(keep_vars=True))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) == name:
            parameters[name] = parameter
        else:
            aliases[name] = first[id(parameter)]
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if name not in persistent:
            constants["constants." + name.replace(".", "_")] = buffer
        elif first.setdefault(id(buffer), name) == name:
            buffers[name] = buffer
        else:
            aliases[name] = first[id(buffer)]
    return parameters, buffers, constants, aliases


def _classify(
    builder: Builder, program: ExportedProgram, layout: InputLayout, wanted: Dynamic, classes: Mapping[Any, SizeClass]
) -> Any:
    """Find the classes of sizes for which the export holds; return what holds its guards, which grow as formulas are
    traced."""
    environment: Any = None
    for key, axis, size in _named(program, layout, wanted):
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            builder.examples[size.node.expr] = int(size.node.hint)
            builder.asked[size.node.expr] = wanted.names[key][axis]
            environment = size.node.shape_env
    builder.classify(assumed(environment), classes)
    return environment


def _named(program: ExportedProgram, layout: InputLayout, wanted: Dynamic) -> Iterator[tuple[str, int, Any]]:
    """Yield the dimensions that shall change: the input, its dimension, and the size in the export."""
    names = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    given = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    for key, val in zip(layout.keys, given, strict=False):
        for axis in wanted.names.get(key, {}) if isinstance(val, Tensor) else ():
            yield key, axis, val.shape[axis]


def _environment(program: ExportedProgram) -> Any:
    """Return what holds the guards of an export; None where no tensor goes in."""
    given = (node.meta.get("val") for node in program.graph.find_nodes(op="placeholder"))
    return next((val.fake_mode.shape_env for val in given if isinstance(val, FakeTensor)), None)


def _enter_dimensions(builder: Builder, program: ExportedProgram, layout: InputLayout, wanted: Dynamic) -> None:
    """Give the dimensions that shall change their names; what is computed of others needs none.

    Raises:
        CaptureError: the model fixes one of them.
    """
    computed = []
    for key, axis, size in _named(program, layout, wanted):
        told = isinstance(size, torch.SymInt) and size.node.expr in builder.related
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and not told:
            builder.enter(size, axis, key, wanted, program.range_constraints.get(size.node.expr))
        else:
            computed.append((key, axis, size))
    for key, axis, size in computed:
        found = builder.size_of(builder.expression(size))
        if isinstance(found, str):
            builder.notes.append(f"dimension {axis} of {key} is {found}, as the model needs it")
            continue
        what = f"dimension {axis} of {key} ({wanted.names[key][axis]}) cannot change"
        line = line_that_fixes(_environment(program), size)
        remedy = (
            "leave it out of dynamic_shapes, name the dimensions of other inputs that change with it, or rewrite what "
            "depends on its size"
        )
        raise CaptureError(what, where=line, why=f"the model needs it to be {builder.shown(size)}", remedy=remedy)


def _placeholders(
    model: nn.Module, builder: Builder, program: ExportedProgram, layout: InputLayout, wanted: Dynamic
) -> tuple[list[Any], list[str]]:
    """Return the values for the exported graph's placeholders, and the names of the input nodes."""
    tensors: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    specs = {getattr(s.arg, "name", ""): s for s in program.graph_signature.input_specs}
    feed: list[Any] = []
    inputs: list[str] = []
    leaf = 0
    _enter_dimensions(builder, program, layout, wanted)
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            feed.append(tensors[str(spec.target)])
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            value: Any = program.constants[str(spec.target)]
            if isinstance(value, FakeTensor):
                what = "a tensor that was computed is taken out of the graph (as set_() does)"
                why = "torch.export does not see what is computed from it"
                remedy = "pass it on from operation to operation"
                raise CaptureError(what, where="the model itself", why=why, remedy=remedy)
            feed.append(value.clone())
        elif spec.kind is InputKind.USER_INPUT:
            key, at, leaf = layout.keys[leaf], leaf, leaf + 1
            val = node.meta.get("val")
            if not isinstance(val, Tensor):
                feed.append(layout.fixed.get(at))
                continue
            named = 0 in wanted.names.get(key, {})  # it is no batch, then
            symbolic = bool(val.ndim) and isinstance(val.shape[0], torch.SymInt) and not named
            if symbolic:
                builder.environment = val.shape[0].node.shape_env  # type: ignore[attr-defined]
                builder.symbols |= dict.fromkeys(val.shape[0].node.expr.free_symbols)  # type: ignore[attr-defined]
            shape = builder.shape_of_meta(val, node)
            dtype = builder.dtype_of_meta(node)
            made = builder.add_node("input", [], {"index": len(inputs), "key": key}, {}, shape, dtype, node, key)
            if builder.batch_input is None and symbolic:
                builder.batch_input = made
            inputs.append(made.name)
            feed.append(made)
        else:
            feed.append(None)  # tokens and custom objects: an operation that needs one is refused where it is used
    return feed, inputs
