"""The verb: models of other tools become programs of the same weights and ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from intact8.api import convert
from intact8.calibration.data import first_batch
from intact8.errors import InputError
from intact8.migration.compare import report_on
from intact8.migration.description import Description
from intact8.migration.report import Migrated
from intact8.migration.simulate import simulate
from intact8.recipe.recipe import Recipe


def migrate(
    source: Any,
    checkpoint: Mapping[str, Any] | str | Path | None = None,
    *,
    example_inputs: Any = None,
    data: Any = None,
    requantize: str | Collection[str] = (),
    qconfig: Any = None,
    portable: bool = False,
    samples: int = 64,
) -> Migrated:
    """Read a model that another tool has quantized, keep its weights and ranges, and make its scales tie-free.

    Args:
        source: a model of torch.ao, eager or FX, prepared (after training, or for training) or converted; or, with a
            checkpoint, the float model it was made from. It is not changed. Or a model of PT2E, an ``ExportedProgram``
            or its file (.pt2). Or the path of a quantized graph: ONNX (.onnx) in QDQ or QLinear form, OpenVINO IR
            (.xml) with FakeQuantize.
        checkpoint: with the float model's code as ``source``: a state dict of the quantized model, or the path of a
            file of ``torch.save`` or TorchScript. Files are read without torch's unpickler: nothing in them is run.
        example_inputs: as for ``intact8.prepare``; taken from ``data`` when None.
        data: a few batches of real inputs, without labels or with: what the report compares on, and what gives ranges
            to tensors that are integers here and float there. Without them nothing is compared.
        requantize: a name or glob of layers, or several, whose weights may be quantized anew, because their integers
            cannot be kept (other zero points than 0, other axes); the report names them.
        qconfig: the QConfig of torch.ao that a checkpoint of observers was prepared with: their state dict does not say
            how they come to scales. Models and other checkpoints need none.
        portable: widen weight scales so that CPUs without VNNI compute the same integers on every engine. It changes
            weights; without it the native engine is exact everywhere, and others need VNNI where weights are large.
        samples: of ``data``, how many the report compares on.

    Returns:
        The program, its simulation and a report of what changed.

    Raises:
        InputError: nothing known, or a layer of it cannot be kept; names the layer.
        CaptureError: the network cannot be captured.

    Example:
        >>> import intact8, torch
        >>> intact8.migrate(torch.nn.Linear(4, 2), example_inputs=torch.zeros(1, 4))
        Traceback (most recent call last):
        ...
        intact8.errors.InputError: nothing in this model is quantized or prepared for it. Remedy: quantize it with ...
    """
    requantize = [requantize] if isinstance(requantize, str) else requantize
    described = describe(source, checkpoint, requantize, qconfig)
    if data is not None and iter_once(data):
        data = list(data)
    shown = data
    if example_inputs is None and described.example is not None:
        example_inputs = described.example
        if data is None:
            shown = [described.example]
            described.notes.append("integers and decibels are of random inputs: give data=… for real ones")
    if example_inputs is None:
        if data is None:
            remedy = "give example_inputs=… or data=…"
            raise InputError("an example of the inputs is needed to capture the network", remedy=remedy)
        example_inputs, data = first_batch(described.model, data)
        shown = data
    recipe = Recipe(scales="fixed", portable=portable, equalize=False, bias_correction=False)
    made = simulate(described, example_inputs, data, recipe)
    program = convert(made.simulation)
    return Migrated(program, report_on(described, made, program, shown, samples), made.simulation)


def iter_once(data: Any) -> bool:
    """Return whether data can be gone through once only."""
    return not isinstance(data, (Tensor, Mapping)) and hasattr(data, "__next__")


def describe(source: Any, checkpoint: Any = None, requantize: Collection[str] = (), qconfig: Any = None) -> Description:
    """Return the description by the reader that knows the source; arguments and errors as of :func:`migrate`."""
    if checkpoint is not None:
        from intact8.migration.checkpoint import describe_checkpoint

        if not isinstance(source, nn.Module):
            remedy = "call migrate(float_model, checkpoint)"
            raise InputError("a checkpoint needs the code of its float model", remedy=remedy)
        return describe_checkpoint(source, checkpoint, requantize, qconfig)
    from intact8.migration.pt2e import describe_pt2e, is_pt2e

    if isinstance(source, (str, Path)) and str(source).endswith(".pt2"):
        return describe_pt2e(Path(source), requantize)
    if isinstance(source, ExportedProgram) or (isinstance(source, fx.GraphModule) and is_pt2e(source)):
        return describe_pt2e(source, requantize)
    if isinstance(source, nn.Module):
        from intact8.migration.torch_ao import describe_modules

        return describe_modules(source, requantize)
    if isinstance(source, (str, Path)) and Path(source).suffix == ".onnx":
        from intact8.migration.onnx_graph import read_onnx
        from intact8.migration.onnx_network import describe_graph

        return describe_graph(read_onnx(Path(source)), requantize)
    if isinstance(source, (str, Path)) and Path(source).suffix == ".xml":
        from intact8.migration.onnx_network import describe_graph
        from intact8.migration.openvino_ir import read_ir

        return describe_graph(read_ir(Path(source)), requantize)
    if isinstance(source, Mapping):
        remedy = "call migrate(float_model, state_dict)"
        raise InputError("a state dict needs the code of its float model", where="migrate", remedy=remedy)
    remedy = (
        "give a quantized model, a file (.onnx, .xml, .pt2), or a float model and the checkpoint of the quantized one"
    )
    known = isinstance(source, (str, Path))
    what = f"no reader for {Path(source).suffix or 'such'} files" if known else f"no reader for {type(source).__name__}"
    raise InputError(what, where=str(source) if known else "migrate", remedy=remedy)
