"""Scores of one network by one metric, batch by batch, and the file from which an interrupted evaluation goes on."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError, safe_open

from intact8.atomic_write import write_atomically
from intact8.calibration.distributed import checksum
from intact8.errors import InputError
from intact8.opset.op import Array
from intact8.regular_file import bytes_of, unwritable

_ANEW = "name another file, or delete it to begin anew"


class Scores(ABC):
    """What was measured of every batch."""

    @abstractmethod
    def add(self, outputs: Any, labels: Any, count: int) -> None:
        """Measure a batch of so many samples."""

    @abstractmethod
    def over(self, batches: Sequence[int]) -> float:
        """Return the metric over these batches, of which some may come several times."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Return everything measured."""

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Become what :meth:`state` was called on."""

    def samples(self) -> Array | None:
        """Return the scores of all samples; None where there are none of single samples."""
        return None

    def value(self) -> float:
        """Return the metric over all batches."""
        return self.over(range(len(self)))


class FunctionScores(Scores):
    """Scores that a function of (outputs, labels) gives: one per sample, or one per batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function, self._of_samples = function, True
        self.parts: list[Array] = []
        self.weights: list[int] = []

    def add(self, outputs: Any, labels: Any, count: int) -> None:
        """Measure a batch."""
        found = numbers_of(self.function(outputs, labels), self.function)
        if found.size != 1 and len(found) != count:
            what = f"the metric {_name(self.function)} gave {len(found)} scores for {count} samples"
            raise InputError(what, where="evaluate", remedy="return a score per sample, or one number for the batch")
        shapes = [tuple(getattr(given, "shape", ())) for given in (outputs, labels)]
        if count > 1 and found.shape[:2] == (count, count) and all(s[:2] != (count, count) for s in shapes):
            raise InputError(
                f"the metric {_name(self.function)} gave an array of shape {found.shape} for {count} samples",
                where="evaluate",
                why=f"outputs of shape {shapes[0]} and labels of shape {shapes[1]} were broadcast",
                remedy="give labels the shape of the outputs",
            )
        if found.shape != (count,):
            self._of_samples, found = False, np.array([found.mean()])
        self.parts.append(found)
        self.weights.append(count // len(found))

    def samples(self) -> Array | None:
        """Return the scores of all samples."""
        return np.concatenate(self.parts) if self._of_samples else None

    def over(self, batches: Sequence[int]) -> float:
        """Return the mean over the samples of these batches."""
        total = sum(float(self.parts[i].sum()) * self.weights[i] for i in batches)
        return total / sum(len(self.parts[i]) * self.weights[i] for i in batches)

    def __len__(self) -> int:
        return len(self.parts)

    def state(self) -> dict[str, Array]:
        """Return the scores, and the number and the weight of those of every batch."""
        lengths = np.array([len(part) for part in self.parts])
        return {"scores": np.concatenate(self.parts), "lengths": lengths, "weights": np.array(self.weights)}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Become what :meth:`state` was called on."""
        self.parts = np.split(state["scores"], np.cumsum(state["lengths"])[:-1])
        self.weights = [int(weight) for weight in state["weights"]]
        self._of_samples = all(weight == 1 for weight in self.weights)


def numbers_of(given: Any, function: Callable[[Any, Any], Any], where: str = "evaluate") -> Array:
    """Return what a metric gave as an array of at least one dimension.

    Raises:
        InputError: it gave no numbers.
    """
    try:
        found = np.atleast_1d(np.asarray(given, dtype=None if given is None else np.float64))
    except (TypeError, ValueError):
        found = np.array([None])
    if found.dtype != np.float64:
        what = f"the metric {_name(function)} gave {type(given).__name__}, no number"
        raise InputError(what, where=where, remedy="return a score per sample, or one number for the batch")
    return found


def require_classes(labels: Any, classes: int, where: str) -> None:
    """Raise InputError where labels, integers, are no classes from 0 to one less than their number."""
    if not labels.numel() or (labels.min() >= 0 and labels.max() < classes):
        return
    raise InputError(
        f"labels from {labels.min()} to {labels.max()} for {classes} classes",
        where=where,
        why="no output can be right for a label that is no class",
        remedy=f"give classes from 0 to {classes - 1}, or a function of (outputs, labels) as metric",
    )


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


class MetricScores(Scores):
    """A metric of torchmetrics, whose state is kept batch by batch and merged.

    An object that cannot merge states, with ``update``, ``compute`` and ``clone`` only, accumulates all batches in one.
    """

    def __init__(self, metric: Any) -> None:
        self.metric, self.merges = metric, hasattr(metric, "merge_state") and not metric.full_state_update
        self.whole = None if self.merges else metric.clone()
        self.parts: list[dict[str, Any]] = []

    def add(self, outputs: Any, labels: Any, count: int) -> None:
        """Measure a batch."""
        if self.whole is not None:
            self.whole.update(outputs, labels)
            return
        metric = self._empty()
        metric.update(outputs, labels)
        self.parts.append(metric.metric_state)

    def over(self, batches: Sequence[int]) -> float:
        """Return the metric of these batches together."""
        if self.whole is not None:
            return float(self.whole.compute())
        merged = self._empty()
        for i in batches:
            merged.merge_state(self.parts[i])
        with warnings.catch_warnings():  # its count of updates knows nothing of merged states
            warnings.filterwarnings("ignore", message=".*was called before the ``update`` method")
            return float(merged.compute())

    def __len__(self) -> int:
        return len(self.parts)

    def state(self) -> dict[str, Array]:
        """Return the tensors of every batch's state.

        Raises:
            InputError: the metric cannot merge states.
        """
        if self.whole is not None:
            what, remedy = f"a {type(self.metric).__name__} cannot be kept", "leave state out"
            raise InputError(what, where="evaluate", why="it cannot merge its states", remedy=remedy)
        found: dict[str, Array] = {}
        for i, part in enumerate(self.parts):
            for name, value in part.items():
                entries = {f"{i}.{name}.{k}": t for k, t in enumerate(value)} if isinstance(value, list) else {}
                entries = entries or {f"{i}.{name}": value}
                found |= {key: np.ascontiguousarray(torch.as_tensor(t).cpu().numpy()) for key, t in entries.items()}
        return found

    def restore(self, state: Mapping[str, Array]) -> None:
        """Become what :meth:`state` was called on."""
        parts: dict[int, dict[str, Any]] = {}
        for key in sorted(state, key=lambda key: [int(p) if p.isdigit() else p for p in key.split(".")]):
            batch, name, *place = key.split(".")
            value = torch.from_numpy(np.array(state[key]))
            part = parts.setdefault(int(batch), {})
            if place:
                part.setdefault(name, []).append(value)
            else:
                part[name] = value
        self.parts = [parts[i] for i in sorted(parts)]

    def _empty(self) -> Any:
        metric = self.metric.clone()
        metric.reset()
        return metric


def identity(metric: Any) -> str:
    """Return what tells a metric from another of the same name: the digest of its code and of what it closes over,
    functions among it by theirs.

    Example:
        >>> identity(lambda outputs, labels: 0.5) == identity(lambda outputs, labels: 0.25)
        False
    """
    # Addresses in memory are others in every process.
    text = re.sub(r" at 0x[0-9a-f]+", "", _kept_by(metric, ()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept_by(value: Any, within: tuple[Any, ...]) -> str:
    """Return what a value is in words; of a function, its code and what it closes over, but for those around it."""
    if not callable(value) or any(value is other for other in within):
        return repr(value)
    of = value if hasattr(value, "__code__") else type(value).__call__
    held = [_kept_by(cell.cell_contents, (*within, value)) for cell in getattr(of, "__closure__", None) or ()]
    return repr([_parts_of(getattr(of, "__code__", None)), getattr(of, "__defaults__", None), held, repr(value)])


def _parts_of(code: Any) -> Any:
    """Return what a code object computes, without the place where it stands."""
    if isinstance(code, frozenset):
        return sorted(map(repr, code))
    if not hasattr(code, "co_code"):
        return repr(code)
    return code.co_code.hex(), code.co_names, code.co_varnames, [_parts_of(constant) for constant in code.co_consts]


def make_scores(metric: Any) -> Scores:
    """Return the empty scores of a metric."""
    accumulates = hasattr(metric, "update") and hasattr(metric, "compute")
    return MetricScores(metric) if accumulates else FunctionScores(metric)


class EvaluationState:
    """The file in which scores are kept.

    Args:
        path: the file.
        call: what must be the same for scores to be used again, JSON values.
    """

    def __init__(self, path: Path, call: Mapping[str, Any]) -> None:
        self.path, self.call = path, json.dumps(call)
        self._seen, self._data = 0, 0  # batches so far, and their checksum
        self._kept = (0, "0")  # batches of the file, and their checksum

    def see(self, inputs: Any, labels: Any) -> None:
        """Take note of the next batch, whether its scores are in the file or not.

        Raises:
            InputError: the scores in the file are of other batches.
        """
        self._seen, self._data = self._seen + 1, checksum([self._data, inputs, labels])
        if self._seen == self._kept[0] and str(self._data) != self._kept[1]:
            self._refuse_data()

    def check_all_seen(self) -> None:
        """Raise InputError where the file has scores of more batches than there are."""
        if self._seen < self._kept[0]:
            self._refuse_data()

    def _refuse_data(self) -> NoReturn:
        raise InputError("the scores are of other data", where=str(self.path), remedy=_ANEW)

    def restore(self, scores: Mapping[Any, Scores]) -> int:
        """Fill in scores from the file. Returns the number of batches they are of; 0 where there is no file.

        Raises:
            InputError: the file cannot be read, or is of another call.
        """
        if not self.path.exists():
            return 0
        where, remedy = str(self.path), _ANEW
        try:
            arrays = safetensors.numpy.load(bytes_of(self.path))
            with safe_open(self.path, "np") as file:
                metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise InputError("no scores of an evaluation", where=where, why=str(error), remedy=remedy) from error
        if metadata.get("call") != self.call:
            raise InputError("the scores are of another evaluation", where=where, remedy=remedy)
        try:
            for i, each in enumerate(scores.values()):
                prefix = f"{i}:"
                each.restore({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
            self._kept = (int(metadata["batches"]), metadata["data"])
            return self._kept[0]
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise InputError("the scores are damaged", where=where, why=repr(error), remedy=remedy) from error

    def save(self, batches: int, scores: Mapping[Any, Scores]) -> None:
        """Write the file atomically.

        Raises:
            InputError: it cannot be written.
        """
        arrays = {f"{i}:{k}": v for i, each in enumerate(scores.values()) for k, v in each.state().items()}
        data = safetensors.numpy.save(arrays, {"call": self.call, "batches": str(batches), "data": str(self._data)})
        try:
            write_atomically(self.path, data)
        except OSError as error:
            raise unwritable(self.path, "the scores", InputError, error) from error
