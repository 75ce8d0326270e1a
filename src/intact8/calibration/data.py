"""Calibration data of any customary shape, as checked calls of the model."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from intact8.arithmetic.dimensions import Dim, fits, show
from intact8.calibration.summary import CalibrationWarning
from intact8.capture.dynamic_shapes import FIXED_SIZES
from intact8.capture.graph import Graph
from intact8.capture.pytree import InputLayout, copied, widened
from intact8.capture.torch_export import evaluating
from intact8.capture.trace import SAMPLES
from intact8.errors import CalibrationError, warn
from intact8.nesting import arguments, is_first_argument, is_plain, leaves, nests, rebuilt, without_fixed
from intact8.program.inputs import refuse_masked, refuse_other_layouts

log = logging.getLogger(__name__)

Spec = tuple[str, Any, tuple[Dim, ...]]
"""Name, dtype (torch dtype or its name) and shape (None: the batch; a name: may change, too) of one model input."""


class Specs(list[Spec]):
    """The inputs of a model, which also knows the arguments that were no tensors at capture.

    Attributes:
        order: names of the model's arguments, tensors and others.
        fixed: values that are no tensors, by name.
        along: the dimension that counts samples: 1 where recurrent layers and attention take steps first.
        reason: why dimensions that differ in the data are fixed, where the model fixes them.
    """

    along: int = 0
    reason: str = ""
    order: Sequence[str] = ()
    fixed: Mapping[str, Any] = MappingProxyType({})

    @staticmethod
    def of(graph: Graph, layout: InputLayout, notes: Sequence[str] = ()) -> Specs:
        """Return the inputs of a captured model; ``notes`` are capture's."""
        specs = Specs((n.attrs["key"], n.dtype, n.shape) for n in (graph.nodes[name] for name in graph.inputs))
        specs.reason = next((note.partition(". Remedy")[0] for note in notes if note.startswith(FIXED_SIZES)), "")
        specs.order, specs.fixed = arguments(layout.keys), layout.fixed_values()
        steps = any(n.op in ("lstm", "gru", "rnn") and graph.nodes[n.inputs[0]].shape[0] is None for n in graph)
        specs.along = int(any(s[1:2] == (SAMPLES,) and (steps or s[0] is not None) for _, _, s in specs))
        return specs


Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

LABELS = ("labels", "label")
"""Entries of a batch that are no input although the model's forward takes them: with labels it computes its loss."""

SLICE = 32
"""Samples per batch where data is one tensor and the model takes any batch size."""

_HOW = "give a tensor, or an iterable of tensors, of tuples (x, …, labels) or of dicts by input name"
"""The remedy where data are of no form that is known."""


def batches(data: Any, specs: Sequence[Spec], device: torch.device) -> Iterator[Call]:
    """Yield calls of the model, one per batch, with tensors checked and on ``device``.

    Args:
        data: one of

            - a tensor or array, cut into batches of SLICE samples (or of the model's batch size) along dimension 0, or
              1 where the model takes steps first;
            - a dict: one batch, by input name;
            - any other iterable (list, tuple, generator, DataLoader): batches, each a tensor or array, a tuple or list
              whose first n elements are the model's n inputs (what follows are labels), or a dict by input name
              (other keys are left out and logged), or a tuple of such a dict and labels. Where the model nests its
              inputs, as in ``model(x, (h, c))``, so may a batch: ``(x, (h, c))``, ``{"x": x, "hid": (h, c)}``, or
              tensors one by one: ``(x, h, c)``, ``{"x": x, "hid.0": h, "hid.1": c}``.
        specs: the model's inputs, in order.
        device: where the model is.

    Raises:
        CalibrationError: no batch, or a batch that does not fit the inputs; names batch, input, expected and got.

    Example:
        >>> specs = [("x", "float32", (None, 3))]
        >>> calls = batches([(torch.zeros(2, 3), torch.tensor([7, 8]))], specs, torch.device("cpu"))
        >>> [[t.shape for t in args] for args, _ in calls]
        [[torch.Size([2, 3])]]
    """
    ignored: set[str] = set()
    index = -1
    for index, batch in enumerate(raw_batches(data, specs)):
        args, kwargs = _call(batch, specs, index, ignored)
        yield (
            tuple(_moved(a, device) for a in args),
            {name: _moved(value, device) for name, value in kwargs.items()},
        )
    if index < 0:
        raise CalibrationError(
            "the calibration data holds no batch",
            why="an iterator can be read only once, and a loader may be empty",
            remedy=_HOW,
        )


def length(data: Any, specs: Sequence[Spec]) -> int | None:
    """Return the number of batches :func:`batches` will give; None where it cannot be known beforehand."""
    if _is_whole(data):
        return len(_pieces(data, specs)) if data.ndim else None
    if isinstance(data, Mapping):
        return 1
    try:
        return len(data)
    except TypeError:
        # Generators have no length, and neither has a DataLoader over an iterable data set.
        return None


def samples(call: Call, along: int = 0) -> int:
    """Return the size of a dimension of a call's first tensor that has it; 1 where none does."""
    tensors = [t for value in (*call[0], *call[1].values()) for _, t in leaves("", value)]
    return next((int(t.shape[along]) for t in tensors if isinstance(t, Tensor) and t.dim() > along), 1)


def first_batch(model: nn.Module, data: Any, least: int = 1) -> tuple[Any, Any]:
    """Return example inputs out of calibration data, and data that still begin with that batch.

    Args:
        model: its signature says how many elements of a tuple are inputs, and which keys of a dict.
        data: as for :func:`batches`.
        least: elements of a tuple that are inputs whatever the signature says, where that is known.

    Returns:
        A tensor, a tuple of tensors or a dict of tensors, on the model's device; and the data, whole again.

    Raises:
        CalibrationError: no batch, or not the kind of data :func:`batches` takes.

    Example:
        >>> example, data = first_batch(nn.Linear(3, 1), [(torch.zeros(2, 3), torch.zeros(2))])
        >>> example[0].shape, len(data)
        (torch.Size([2, 3]), 1)
    """
    if _is_whole(data):
        if data.ndim == 0 or len(data) == 0:
            raise CalibrationError("the calibration data holds no sample", remedy=_HOW)
        first: Any = data[:SLICE]
    elif isinstance(data, Mapping):
        first = data
    else:
        iterator = _iterate(data)
        try:
            first = next(iterator)
        except StopIteration:
            raise CalibrationError("the calibration data holds no batch", remedy=_HOW) from None
        if iterator is data:
            data = itertools.chain([first], iterator)
        elif isinstance(data, (tuple, list)) and isinstance(first, (Tensor, np.ndarray)):
            _refuse_inputs_for_batches(model, data)
    example = _enough(model, first, inputs_of(model, first, least))
    if isinstance(example, tuple) and not example:
        raise CalibrationError("batch 0 holds no input", remedy=_HOW)
    _tell_of_optional_inputs(model, first, example)
    return example, data


def _refuse_inputs_for_batches(model: nn.Module, data: Sequence[Any]) -> None:
    """Raise CalibrationError where a tuple of tensors, which are batches, was meant as the inputs of one batch."""
    needed = [p.name for p in _positional(model) if p.default is p.empty]
    if len(needed) > 1:
        raise CalibrationError(
            f"every element of the data, a {type(data).__name__}, is a batch of one input",
            why=f"data is an iterable of batches, and the model has {len(needed)} inputs: {', '.join(needed)}",
            remedy=f"give one batch of {len(needed)} inputs as {_one_batch(len(needed))}",
        )


def _one_batch(count: int) -> str:
    """Return how one batch of so many inputs is given.

    Example:
        >>> _one_batch(2)
        '[(a, b)]'
    """
    return f"[({', '.join('abcdefgh'[:count])}{', …' if count > 8 else ''})]"


def _enough(model: nn.Module, batch: Any, taken: Any) -> Any:
    """Return the inputs out of a batch; more than were taken where the model does not run on those: it needs, say, the
    time step that its signature calls optional."""
    if not isinstance(batch, (tuple, list)) or not isinstance(taken, tuple):
        return taken
    most = min(len(batch), len(_positional(model)))
    if most <= len(taken) or _runs(model, taken):
        return taken
    several = (inputs_of(model, batch, count) for count in range(len(taken) + 1, most + 1))
    return next((inputs for inputs in several if _runs(model, inputs)), taken)


def _runs(model: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Return whether the model takes these inputs, in evaluation mode."""
    try:
        with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*copied(inputs))
    except Exception:  # noqa: BLE001 - the model is anybody's code, and so is what it raises
        return False
    return True


def _tell_of_optional_inputs(model: nn.Module, batch: Any, taken: Any) -> None:
    """Warn where elements of a tuple are taken for labels although they may be inputs: each of those is optional."""
    if not isinstance(batch, (tuple, list)) or not isinstance(taken, tuple) or len(batch) == len(taken):
        return
    parameters = _positional(model)
    rest = [x for x in batch[len(taken) :] if isinstance(x, Tensor)]
    if parameters and all(p.default is not p.empty for p in parameters) and any(x.dim() > 1 for x in rest):
        names = [p.name for p in parameters[: len(batch)]]
        warn(
            CalibrationWarning(
                f"of the {len(batch)} elements of a batch the first is taken ({names[0]}), and the rest for labels. "
                f"Reason: every argument of the model is optional. Remedy: where they are inputs ({', '.join(names)}), "
                "give batches as dicts by name"
            )
        )


def _positional(model: nn.Module) -> list[inspect.Parameter]:
    """Return the arguments of the model's forward that may be given by position."""
    parameters = inspect.signature(model.forward).parameters.values()
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def inputs_of(model: nn.Module, batch: Any, least: int = 1) -> Any:
    """Return the model's inputs in a batch, without labels, on the model's device: a tensor, a tuple or a dict.

    Raises:
        CalibrationError: see :func:`first_batch`.
    """
    device = device_of(model)
    parameters = inspect.signature(model.forward).parameters.values()
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters]
    if _dict_and_labels(batch) and (anything or any(key in names for key in batch[0])):
        batch = batch[0]
    if isinstance(batch, Mapping):
        chosen = {k: rebuilt(v, k, _first) for k, v in batch.items() if (anything or k in names) and k not in LABELS}
        if not chosen:
            raise CalibrationError(
                f"no key of batch 0 is an input of the model: {sorted(map(str, batch))}",
                why=f"its forward takes {', '.join(names)}",
                remedy="rename the keys, or, if it takes the dict itself, give the batch as ({...},)",
            )
        return {k: _moved(v, device) for k, v in chosen.items()}
    if isinstance(batch, (tuple, list)):
        needed = max(least, sum(p.default is p.empty for p in _positional(model)))
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            needed = len(batch)
        return tuple(_moved(rebuilt(v, str(i), _first), device) for i, v in enumerate(batch[:needed]))
    return _moved(rebuilt(batch, "input", _first), device)


def device_of(model: Any) -> torch.device:
    """Return the device of the first parameter or buffer; the CPU where there is none."""
    tensor = next(itertools.chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def raw_batches(data: Any, specs: Sequence[Spec] = ()) -> Iterator[Any]:
    """Yield the batches of ``data`` as they are; a tensor is cut into some.

    Raises:
        CalibrationError: not the kind of data :func:`batches` takes.
    """
    if _is_whole(data):
        if data.ndim == 0:
            raise CalibrationError("the calibration data is a single number", remedy=_HOW)
        return (data[piece] for piece in _pieces(data, specs))
    return iter([data]) if isinstance(data, Mapping) else _iterate(data)


def _pieces(whole: Any, specs: Sequence[Spec]) -> list[tuple[slice, ...]]:
    """Return what indexes each batch of a tensor: SLICE of its samples, or as many as the first input's shape says."""
    along, shape = specs.along if isinstance(specs, Specs) else 0, specs[0][2] if specs else ()
    along = along if whole.ndim > along else 0
    own = shape[along] if len(shape) > along else None
    size = own if isinstance(own, int) else SLICE
    return [(slice(None),) * along + (slice(i, i + size),) for i in range(0, whole.shape[along], size)]


def _iterate(data: Any) -> Iterator[Any]:
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        # A DataLoader is iterable; what has only __getitem__ (a Dataset) yields samples without a batch dimension.
        raise CalibrationError(
            f"calibration data of type {type(data).__name__}",
            why="it is no iterable of batches",
            remedy=f"{_HOW}; wrap a data set in torch.utils.data.DataLoader",
        )
    return iter(data)


def _dict_and_labels(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) > 0 and isinstance(batch[0], Mapping)


def _call(batch: Any, specs: Sequence[Spec], index: int, ignored: set[str]) -> Call:
    form = specs if isinstance(specs, Specs) else Specs(specs)
    names = [name for name, _, _ in specs]
    if _dict_and_labels(batch) and not (len(arguments(names)) > 1 and is_first_argument(batch[0], names)):
        batch = batch[0]
    if isinstance(batch, Mapping):
        _, batch = without_fixed((), batch, names, form.fixed, form.order)
        return _call_by_key(batch, form, index, ignored)
    given = batch if isinstance(batch, (tuple, list)) else (batch,)
    values = list(without_fixed(given, {}, names, form.fixed, form.order)[0])
    tensors = [v for v in values if not is_plain(v)]
    values = tensors if len(tensors) >= len(specs) or any(map(nests, tensors)) else values
    if any(map(nests, values)):
        places = arguments(name for name, _, _ in specs)
        return tuple(_nested(places, values, form, index)), {}
    if len(values) < len(specs):
        raise CalibrationError(
            f"batch {index} has {len(values)} elements",
            why=f"the model has {len(specs)} inputs: {_names(specs)}",
            remedy="give a tuple with one tensor per input"
            + (f"; one batch of them is {_one_batch(len(specs))}" if len(specs) > 1 else ""),
        )
    return tuple(_checked(v, spec, index, form.reason) for v, spec in zip(values, specs, strict=False)), {}


def _nested(places: Sequence[str], values: Sequence[Any], specs: Specs, index: int) -> list[Any]:
    """Return arguments that nest tensors as the model does, each tensor checked."""
    by_name, reason = {spec[0]: spec for spec in specs}, specs.reason
    found = [name for place, value in zip(places, values, strict=False) for name, _ in leaves(place, value)]
    missing = [name for name in by_name if name not in found]
    unknown = [name for name in found if name not in by_name]
    if missing or unknown:
        raise CalibrationError(
            f"batch {index} nests its tensors differently: missing {missing}, unexpected {unknown}",
            why=f"the model's inputs are {_names(specs)}",
            remedy="give batches that nest as the example inputs do",
        )

    return [
        rebuilt(value, place, lambda leaf, name: None if leaf is None else _checked(leaf, by_name[name], index, reason))
        for place, value in zip(places, values, strict=False)
    ]


def _call_by_key(batch: Mapping[Any, Any], specs: Specs, index: int, ignored: set[str]) -> Call:
    # A model whose one argument is the dict itself has inputs named "batch.image", "batch.mask".
    places, reason = arguments(name for name, _, _ in specs), specs.reason
    owners = {name.rpartition(".")[0] for name, _, _ in specs}
    itself = len(places) == 1 and len(owners) > 1 and places[0] not in batch
    if itself:  # and it holds more than tensors
        batch = {places[0]: {k: v for k, v in batch.items() if k not in ignored and k not in LABELS}}
    if any(nests(batch.get(place)) for place in places):
        absent = [place for place in places if place not in batch]
        if absent:
            raise CalibrationError(
                f"batch {index} has no {', '.join(map(repr, absent))}",
                why=f"it has {sorted(map(str, batch))}",
                remedy=f"name the entries after the model's inputs: {', '.join(places)}",
            )
        values = _nested(places, [batch[place] for place in places], specs, index)
        return (), dict(zip(places, values, strict=True))
    nested = len(owners) == 1 and owners != {""} and not any(name in batch for name, _, _ in specs)
    keys = [name.rpartition(".")[2] if nested else name for name, _, _ in specs]
    missing = [k for k in keys if k not in batch]
    if missing:
        raise CalibrationError(
            f"batch {index} has no {', '.join(map(repr, missing))}",
            why=f"it has {sorted(map(str, batch))}",
            remedy=f"name the entries after the model's inputs: {', '.join(keys if nested else places)}",
        )
    extra = {str(k) for k in batch if k not in keys} - ignored
    if extra:
        ignored |= extra
        log.info("calibration: entries that are no inputs of the model are left out: %s", ", ".join(sorted(extra)))
    found = {key: _checked(batch[key], spec, index, reason) for key, spec in zip(keys, specs, strict=True)}
    return ((found,), {}) if nested else ((), found)


def _checked(value: Any, spec: Spec, index: int, reason: str) -> Tensor:
    name, dtype, shape = spec
    tensor = _tensor(value, name, index)
    expected = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    tensor = widened(tensor, str(expected).removeprefix("torch."))
    where = f"batch {index}, input {name}"
    if tensor.dtype != expected:
        raise CalibrationError(
            f"expected dtype {expected}, got {tensor.dtype}",
            where=where,
            why="values are calibrated as they would be run",
            remedy=f"convert the data with .to({expected})",
        )
    if not fits(shape, tensor.shape):
        missing_batch = tensor.dim() + 1 == len(shape)
        raise CalibrationError(
            f"expected shape {show(shape)}, got {tuple(tensor.shape)}",
            where=where,
            why="the batch dimension is missing"
            if missing_batch
            else reason or "the model was captured with that shape",
            remedy="iterate over batches, not samples (x[None] makes a batch of one)"
            if missing_batch
            else "resize the data, prepare the model with inputs of this shape, or name what may change in "
            "dynamic_shapes, unless a convolution, a pool or another layer needs its size",
        )
    if tensor.numel() == 0:
        raise CalibrationError(
            f"a tensor of shape {tuple(tensor.shape)} holds nothing", where=where, remedy="leave it out"
        )
    return tensor


def _first(value: Any, name: str) -> Any:
    return value if is_plain(value) else _tensor(value, name, 0)


def _tensor(value: Any, name: str, index: int) -> Tensor:
    if isinstance(value, Tensor):
        return _dense(value, f"batch {index}, input {name}")
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        refuse_masked(f"batch {index}, input {name}", value, CalibrationError)
        return tensor_of(value)
    got = f"array of dtype {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise CalibrationError(f"expected a tensor, got {got}", where=f"batch {index}, input {name}", remedy=f"{_HOW}")


def tensor_of(array: npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor, which shares its memory where torch can: it must be writable, in C order and of the
    machine's byte order. What is a mapped file is copied, so give a batch of it.

    Example:
        >>> tensor_of(np.broadcast_to(np.float32(1), 2))
        tensor([1., 1.])
    """
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _is_whole(data: Any) -> bool:
    """Return whether all samples are one tensor or array. Raises CalibrationError where it is not dense."""
    if isinstance(data, Tensor):
        _dense(data)
    refuse_masked("calibration data", data, CalibrationError)
    return isinstance(data, (Tensor, np.ndarray))


def _dense(value: Tensor, where: str = "calibration data") -> Tensor:
    """Return the tensor, whose numbers all stand in memory. Raises CalibrationError where they do not."""
    refuse_other_layouts(where, value, CalibrationError)
    return value.resolve_neg()


def _moved(value: Any, device: torch.device) -> Any:
    return rebuilt(value, "", lambda tensor, _: tensor if is_plain(tensor) else tensor.to(device))


def _names(specs: Sequence[Spec]) -> str:
    return ", ".join(name for name, _, _ in specs)


def merged(calls: list[list[Tensor]], batched: bool, samples: int) -> list[list[Tensor]]:
    """Return flat inputs of so many samples in as few batches as their shapes allow."""
    found: list[list[Tensor]] = []
    for inputs in calls:
        left = samples - sum(len(batch[0]) for batch in found) if batched else samples - len(found)
        if left <= 0:
            break
        chosen = [t[:left] for t in inputs] if batched else inputs
        if batched and found and all(a.shape[1:] == b.shape[1:] for a, b in zip(found[-1], chosen, strict=True)):
            found[-1] = [torch.cat(pair) for pair in zip(found[-1], chosen, strict=True)]
        else:
            found.append(chosen)
    return found
