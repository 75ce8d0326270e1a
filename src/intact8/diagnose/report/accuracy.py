"""Accuracy of a program and of its float32 network on labelled samples."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.diagnose.report.contents import Accuracy
from intact8.engines import get_runner
from intact8.engines.binding import is_torch
from intact8.errors import InputError
from intact8.opset.op import Array
from intact8.program.program import Program
from intact8.verification.batches import batches, for_simulation

if TYPE_CHECKING:
    from torch import nn


def accuracy(
    program: Program, data: Any, labels: Any, model: nn.Module | None, engine: str, batch_size: int
) -> Accuracy | None:
    """Return the accuracy on ``data``; None without labels, or where the first output has no scores of classes.

    Args:
        program: a checked program.
        data: as for :func:`intact8.verify`.
        labels: one class index per sample; None looks for them behind the inputs of every batch.
        model: the float32 network, or None.
        engine: the engine that runs the program.
        batch_size: samples run at once, at most.

    Raises:
        InputError: the numbers of labels and samples differ.
    """
    classes = _labels_in(program, data) if labels is None else np.asarray(labels)
    if classes is None or data is None:
        return None
    runner = get_runner(program, engine)
    int8, float32 = [], []
    for batch in batches(program, data, batch_size):
        scores = runner(batch)[0]
        if scores.ndim != 2:
            return None
        int8.append(scores.argmax(1))
        if model is not None:
            float32.append(_first(run_float(program, model, batch)).argmax(1))
    found = np.concatenate(int8)
    if len(found) != len(classes):
        raise InputError(
            f"{len(classes)} labels for {len(found)} samples", where="report", remedy="give one per sample"
        )
    right = None if model is None else float((np.concatenate(float32) == classes).mean())
    return Accuracy(float((found == classes).mean()), right, len(classes))


def run_float(program: Program, model: nn.Module, batch: Mapping[str, Array]) -> Any:
    """Return what the float32 network makes of a batch of the program's inputs."""
    torch = sys.modules["torch"]  # the model is a torch module
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = [x.to(device, copy=True) for x in for_simulation(program, batch)]  # it may write into them
    named = set(program.inputs) <= set(inspect.signature(model.forward).parameters)
    with torch.no_grad():
        return model(**dict(zip(program.inputs, inputs, strict=True))) if named else model(*inputs)


def _first(outputs: Any) -> Array:
    """Return the first output of a network as an array."""
    while not is_torch(outputs):
        outputs = next(iter(outputs.values() if isinstance(outputs, Mapping) else outputs))
    values: Array = outputs.cpu().numpy()
    return values


def _labels_in(program: Program, data: Any) -> Array | None:
    """Return the class indices behind the inputs of every batch; None where a batch has none."""
    if data is None or isinstance(data, np.ndarray | Mapping) or is_torch(data) or not isinstance(data, Iterable):
        return None
    found, position = [], len(program.inputs)
    for entry in data:
        if not isinstance(entry, list | tuple) or len(entry) <= position:
            return None
        classes = np.asarray(entry[position])
        if classes.ndim != 1 or classes.dtype.kind not in "iu" or len(classes) != len(entry[0]):
            return None
        found.append(classes)
    return np.concatenate(found) if found else None
