"""What the model returns: which results of an export they are, and which of them a program can return."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from intact8.capture.aten_call import REPORT, Missing
from intact8.capture.formulas_complex import Complex
from intact8.errors import CaptureError


def returned(program: ExportedProgram, results: Iterable[Any]) -> list[Any]:
    """Return the results that the model returns; an export without writes has what it writes into tensors, too."""
    signature = program.graph_signature
    if signature.buffers_to_mutate:
        what = f"the forward pass changes {', '.join(signature.buffers_to_mutate.values())}"
        why, remedy = "a quantized program keeps no state between calls", "do not write into buffers in eval mode"
        raise CaptureError(what, where="the model itself", why=why, remedy=remedy)
    specs = zip(results, signature.output_specs, strict=True)
    return [result for result, spec in specs if spec.kind is OutputKind.USER_OUTPUT]


AS_INT64 = "returned as int64:"
"""How the note begins of outputs of 32 bits, which is said as a warning."""


def known_dtype(given: Any, position: int) -> str:
    """Return the note of an output that programs compute as int64, "" of others; refuse integers of 8 and 16 bits."""
    dtype = getattr(given.meta.get("val"), "dtype", None) if isinstance(given, torch.fx.Node) else None
    if dtype is torch.int32:
        return f"{AS_INT64} output {position} of the model, which is int32 there"
    if dtype in (torch.int8, torch.int16):
        name = str(dtype).removeprefix("torch.")
        where, why = f"output {position} of the model", "programs hold float32, int64, bool and uint8"
        raise CaptureError(f"a tensor of dtype {name} is returned", where=where, why=why, remedy="return y.long()")
    return ""


def plain(item: Any, given: Any, position: int) -> Any:
    """Return an output that is not a tensor: None, a number, a truth value or text, as the model returns it.

    Raises:
        CaptureError: the model returns something else there.
    """
    if isinstance(item, Missing):
        raise item.error
    if isinstance(item, Complex):
        remedy = "return torch.view_as_real(y), and join it outside with torch.view_as_complex"
        where = f"output {position} of the model"
        raise CaptureError("complex numbers are returned", where=where, why="programs hold real ones", remedy=remedy)
    if isinstance(item, torch.SymInt | torch.SymFloat | torch.SymBool):
        what = "a number that changes with the size of the input is returned"
        why = "a program returns tensors, and numbers that are always the same"
        remedy = "leave it out, and read it from the shape of an input or output"
        raise CaptureError(what, where=f"output {position} of the model", why=why, remedy=remedy)
    if isinstance(item, float) and not math.isfinite(item):
        what = f"the number {item} is returned"
        where = f"output {position} of the model"
        raise CaptureError(what, where=where, why="a program file holds finite numbers", remedy="leave it out")
    tensor = isinstance(given, torch.fx.Node) and isinstance(given.meta.get("val"), Tensor)
    if tensor or not isinstance(item, (int, float, bool, str, type(None))):
        raise CaptureError(
            f"a {type(item).__name__} was captured where the model returns "
            + ("a tensor" if tensor else "something else"),
            where=f"output {position} of the model",
            remedy=REPORT,
        )
    return item
