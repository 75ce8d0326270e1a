"""The integer program: what is saved, checked, proved and run. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intact8 import late_binding as late
from intact8.atomic_write import target_of
from intact8.errors import InputError
from intact8.opset import KINDS, Array, Op, Tensor
from intact8.text import printable

from .golden import Golden


@dataclass(frozen=True, repr=False)
class Program:
    """A network as integer operations.

    Attributes:
        tensors: every tensor by name, inputs first, then in the order of ``ops``.
        ops: operations in execution order.
        inputs: names of the input tensors. An input of dtype float32 is quantized by a ``quantize`` op; for such an
            input with only that consumer, ``run`` also takes the uint8 integers themselves.
        outputs: names of the output tensors, in the order of the flattened outputs.
        structure: how outputs nest (see ``intact8.capture.graph.Graph.structure``).
        recipe: the recipe as TOML text.
        provenance: versions, CPU features of the quantizing machine, calibration summary, date.
        needs: what a CPU must have for every engine to be exact: "vnni" or nothing.
        golden: what the program must reproduce where it is loaded, see ``intact8.program.golden``; None: nothing.
        dimensions: name of every dimension beside the batch that may change from call to call → its least and its
            largest size; None: no limit.
        remarks: what should be known about the file it was loaded from, in sentences; not part of the program.
    """

    tensors: dict[str, Tensor]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    structure: Any = 0
    recipe: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    golden: Golden | None = None
    dimensions: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    remarks: tuple[str, ...] = field(default=(), compare=False)

    def __hash__(self) -> int:
        return hash((self.inputs, self.outputs, tuple(op.name for op in self.ops)))  # dicts and arrays have no hash

    def __repr__(self) -> str:
        def described(names: tuple[str, ...]) -> str:
            shapes = (
                (self.tensors[n], ["batch" if d is None else str(d) for d in self.tensors[n].shape]) for n in names
            )
            return printable(", ".join(f"{t.name} {t.dtype}[{', '.join(dims)}]" for t, dims in shapes))

        size, islands = self.nbytes() / 1e6, len(self.islands())
        return (
            f"<intact8 program: {described(self.inputs)} → {described(self.outputs)}; "
            f"{len(self.ops)} operations, {islands} of them float islands, {size:.3g} MB>"
        )

    def save(self, path: str | Path, *, plan: bool | Sequence[Mapping[str, int]] = False) -> Path:
        """Write one .safetensors file, atomically. See ``intact8.program.file``.

        Args:
            path: of the file.
            plan: store how the native engine runs one sample, too, so that the C API (``native/c_api/intact8.h``) can;
                or how it runs each of given sizes, ``[{"batch": 8, "tokens": 64}]`` for example.
        """
        saved: Path = late.call("save", self, path, plan=plan)
        return saved

    @staticmethod
    def load(path: str | Path, *, public_key: str | Path | None = None, expect: str | None = None) -> Program:
        """Read and check a file written by :meth:`save`. See ``intact8.program.file``.

        Args:
            path: of the file.
            public_key: file of an Ed25519 public key (PEM): demand a signature of it. None: what the environment
                variable ``INTACT8_PUBLIC_KEY`` names, if it is set.
            expect: ``"NAME"`` or ``"NAME@N"``: the name that must have been signed, and its lowest version.
        """
        program: Program = late.call("load", path, public_key, expect)
        return program

    def run(self, *inputs: Any, engine: str = "auto", layout: str = "NCHW", **named: Any) -> Any:
        """Run on numpy arrays or torch tensors; float in, float out (uint8 in where an input is quantized at once).

        With ``layout="NHWC"``, inputs of four dimensions are given as (N, H, W, C), as image decoders give them;
        outputs are those of the model. See ``intact8.engines.base`` for engines and their errors.
        """
        return late.call("run", self, inputs, named, engine, layout)

    def __call__(self, *inputs: Any, engine: str = "auto", layout: str = "NCHW", **named: Any) -> Any:
        """Run, as :meth:`run` does."""
        return late.call("run", self, inputs, named, engine, layout)

    def export_onnx(self, path: str | Path, *, uint8_input: bool = False, layout: str = "NCHW") -> Path:
        """Write the program as a standard ONNX model that any runtime opens. See ``intact8.export.onnx``.

        Args:
            path: the .onnx file.
            uint8_input: take the integers of quantized inputs instead of floats.
            layout: "NHWC" to take inputs of four dimensions as (N, H, W, C).

        Raises:
            EngineError: onnx is not installed, an op has no ONNX form, or no file can be written there.
        """
        path = target_of(path)
        late.call("export_onnx", self, path, uint8_input=uint8_input, layout=layout)
        return path

    def export(self, path: str | Path, to: str = "onnx", **options: Any) -> Any:
        """Write the program for another tool, then open and run what was written. See ``intact8.exporting``.

        Args:
            path: of the file.
            to: the format, see ``docs/export.md``.
            options: ``uint8_input`` and ``layout``, as for :meth:`export_onnx`, and those of the format.

        Returns:
            ``intact8.exporting.ExportReport``: every tensor whose integers differ there.

        Raises:
            EngineError: a package is missing, an operation has no form in this format, no file can be written there, or
                integers differ where the format promises the same.
        """
        return late.call("export", self, path, to, **options)

    def integer_tensors(self) -> list[str]:
        """Return the names of all quantized tensors, in order."""
        return [name for name, t in self.tensors.items() if t.quantized]

    def exact_floats(self) -> list[str]:
        """Return the names of float32 tensors whose op is defined by IEEE operations (dynamic quantization), in order.

        Given the same inputs of that op, they are the same bits on every engine, as ``verify`` checks. Behind a float
        island (see :meth:`islands`) engines may give the op inputs that differ in the last bits, and then so may these.
        """
        return [op.name for op in self.ops if KINDS[op.kind].domain == "dynamic"]

    def islands(self) -> list[Op]:
        """Return the operations on float32 values that engines may round differently: ``verify`` feeds and lists
        them."""
        return [op for op in self.ops if op.is_float]

    def _repr_html_(self) -> str:
        """Return what Jupyter shows: the table of operations."""
        page: str = late.call("table", self)._repr_html_()
        return page

    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(int(np.asarray(a).nbytes) for op in self.ops for a in op.arrays.values())


def require_program(given: Any, where: str) -> Program:
    """Return what was given as a program.

    Args:
        given: by the caller.
        where: what was called.

    Raises:
        InputError: it is no program.
    """
    if isinstance(given, Program):
        return given
    remedy = "give what intact8.quantize, intact8.convert or intact8.Program.load returned"
    raise InputError(f"{type(given).__name__} is no program", where=where, remedy=remedy)


__all__ = ["Array", "Op", "Program", "Tensor"]
