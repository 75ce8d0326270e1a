"""Comparing engines integer by integer, and float32 results that are exact bit by bit: the promise, checked on data."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from intact8.arithmetic.affine import dequantize
from intact8.display import inert
from intact8.engines import available_engines, get_runner
from intact8.engines.base import Runner
from intact8.engines.binding import batch_size as size_of
from intact8.engines.binding import bind, is_torch
from intact8.errors import EngineError, InputError, ProgramError
from intact8.golden import reproduce
from intact8.nesting import arguments, leaves, nests
from intact8.opset.op import Array
from intact8.program.certify import claim_error, uncertified
from intact8.program.inputs import sole_quantizers
from intact8.program.program import Program
from intact8.text import printable

if TYPE_CHECKING:
    from rich.console import Group

REFERENCE, SIMULATION = "reference", "simulation"


class Simulated(Protocol):
    """What verification needs of a simulation."""

    def integer_tensors(self, inputs: list[Any], feed: Mapping[str, Array] | None = None) -> Mapping[str, Array]:
        """Every quantized tensor by name, uint8, for torch tensors in the order of the program's inputs."""
        ...


@dataclass(frozen=True)
class Difference:
    """One integer, or exact float32 number, that differs from the reference's.

    Attributes:
        engine, tensor: where.
        index: of the element; dimension 0 counts all samples of the run where it is the batch.
        expected, got: the reference's, and the engine's.
    """

    engine: str
    tensor: str
    index: tuple[int, ...]
    expected: float
    got: float

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        return f"{printable(self.tensor)}[{where}] is {self.got} on {self.engine}, {self.expected} in the reference"


@dataclass
class TensorReport:
    """One named integer tensor, over all batches.

    Attributes:
        elements: integers compared per engine.
        mismatches: engine → how many differ.
        max_lsb: largest difference on any engine.
        first: first differing element met.
    """

    elements: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)
    max_lsb: int = 0
    first: Difference | None = None


@dataclass
class EngineReport:
    """One engine (or the simulation) against the reference.

    Attributes:
        elements: integers compared.
        mismatches: how many differ.
        max_lsb: largest difference.
        missing: integer tensors it did not give, so that they could not be compared.
    """

    elements: int = 0
    mismatches: int = 0
    max_lsb: int = 0
    missing: list[str] = field(default_factory=list)


@dataclass
class VerifyReport:
    """What :func:`verify` found. Prints as a table with rich.

    Attributes:
        samples: how many were run.
        by_tensor: name → report, in execution order.
        by_engine: name → report; the reference, which all are compared to, is not in it.
        first: first differing element: earliest batch, then earliest tensor.
        islands: names of float ops, which the promise leaves out; engines were fed the reference's values behind them.
        uncertified: op → reason, for integer ops without proof.
        golden: engine, the reference included → what of the program's golden vectors it reproduced, bit for bit.
        golden_differs: engine → what is wrong, where it did not.
        refused: engine → why it was not run: a certificate leaves it out, and it cannot be proved there.
        remarks: about the file the program was loaded from.
        nan: ``quantize`` op → how many NaN of a float island it turned into its least integer, in the reference.
    """

    samples: int = 0
    by_tensor: dict[str, TensorReport] = field(default_factory=dict)
    by_engine: dict[str, EngineReport] = field(default_factory=dict)
    first: Difference | None = None
    islands: list[str] = field(default_factory=list)
    uncertified: dict[str, str] = field(default_factory=dict)
    golden: dict[str, str] = field(default_factory=dict)
    golden_differs: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    nan: dict[str, int] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Integers of the reference that were compared with every engine."""
        return sum(t.elements for t in self.by_tensor.values())

    @property
    def mismatches(self) -> int:
        """Integers that differ, summed over engines."""
        return sum(e.mismatches for e in self.by_engine.values())

    @property
    def max_lsb(self) -> int:
        """Largest difference on any engine."""
        return max((e.max_lsb for e in self.by_engine.values()), default=0)

    @property
    def exact(self) -> bool:
        """Whether every integer of every engine was compared and is the reference's, and the golden vectors hold."""
        missing = any(e.missing for e in self.by_engine.values())
        return self.mismatches == 0 and not missing and not self.golden_differs and not self.refused

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "exact": self.exact,
            "samples": self.samples,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "max_lsb": self.max_lsb,
            "first": _difference_json(self.first),
            "by_engine": {n: vars(e) | {"missing": list(e.missing)} for n, e in self.by_engine.items()},
            "by_tensor": {
                n: {
                    "elements": t.elements,
                    "mismatches": dict(t.mismatches),
                    "max_lsb": t.max_lsb,
                    "first": _difference_json(t.first),
                }
                for n, t in self.by_tensor.items()
            },
            "islands": list(self.islands),
            "uncertified": dict(self.uncertified),
            "golden": dict(self.golden),
            "golden_differs": dict(self.golden_differs),
            "refused": dict(self.refused),
            "remarks": list(self.remarks),
            "nan": dict(self.nan),
        }

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table

        table = Table("compared with the reference", "integers", "differ", "largest difference", "not compared")
        for name, e in self.by_engine.items():
            table.add_row(inert(name), f"{e.elements:,}", f"{e.mismatches:,}", str(e.max_lsb), str(len(e.missing)))
        lines = [f"{self.elements:,} integers in {len(self.by_tensor)} tensors over {self.samples:,} samples"]
        if self.first is not None:
            lines.append(f"first difference: {self.first}")
        if self.islands:
            lines.append(
                f"{len(self.islands)} float ops are outside the promise: {', '.join(self.islands[:6])}"
                f"{' …' if len(self.islands) > 6 else ''}"
            )
        lines += [f"not proved: {name}: {reason}" for name, reason in self.uncertified.items()]
        lines += [f"{count:,} NaN became the least integer in {name}" for name, count in self.nan.items()]
        lines += [f"golden vectors on {name}: {what}" for name, what in (self.golden | self.golden_differs).items()]
        lines += [f"{name} was not run: {reason}" for name, reason in self.refused.items()]
        return Group(table, *map(inert, (*lines, *self.remarks)))


def _difference_json(d: Difference | None) -> dict[str, Any] | None:
    return None if d is None else {**vars(d), "index": list(d.index)}


def verify(
    program: Program,
    inputs: Any,
    engines: Sequence[str] | None = None,
    sim: Simulated | None = None,
    *,
    batch_size: int = 16,
    progress: Callable[[int], object] | None = None,
) -> VerifyReport:
    """Compare every named integer tensor of every engine (and of the simulation) with the reference's.

    Float32 tensors that are exact by definition (dynamic quantization) are compared with them, as bits: a difference
    of 1 is the next float32 number.

    The golden vectors, where the program has them, are reproduced on every engine first, and on the reference: they
    tell of a program that was changed since it was converted.

    Engines are given the reference's values for the outputs of float ops, so that one float's noise is not counted
    again in every integer behind it. One batch is in memory at a time.

    Args:
        program: checked (converted or loaded).
        inputs: an array or tensor; a tuple of them or a dict by name, for several inputs; or an iterable of batches of
            these (a DataLoader yielding ``(x, y)``: what follows the program's inputs is left out).
        engines: names; the reference is always run. None: onednn, and native where it was built.
        sim: compared as engine "simulation".
        batch_size: samples run at once, at most.
        progress: called with the number of samples done so far, after every batch.

    Returns:
        The report; ``report.exact`` says it all.

    Raises:
        InputError: no inputs, or inputs that do not fit.
        EngineError: an engine is missing, or gives a tensor of another shape or dtype.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}", where="verify", remedy="give 1 or more")
    if engines is None:
        engines = ("onednn", *(name for name in available_engines() if name == "native"))
    asked = {name: claim_error(program, name) for name in dict.fromkeys(engines) if name != REFERENCE}
    names = [name for name, error in asked.items() if error is None]
    reference = get_runner(program, REFERENCE)
    runners = {name: get_runner(program, name) for name in names}
    order = {name: i for i, name in enumerate(program.tensors)}
    promised = {*program.integer_tensors(), *program.exact_floats()}
    report = VerifyReport(
        by_tensor={name: TensorReport() for name in program.tensors if name in promised},
        by_engine={name: EngineReport() for name in [*names, *([SIMULATION] if sim is not None else [])]},
        islands=[op.name for op in program.islands()],
        uncertified={op.name: reason for op, reason in uncertified(program)},
        refused={name: str(error) for name, error in asked.items() if error is not None},
        remarks=program.remarks,
    )
    for name, runner in {REFERENCE: reference, **runners}.items():
        _replay(report, name, runner)
    for batch in batches(program, inputs, batch_size):
        expected = reference.tensors(batch)
        feed = {op.name: expected[op.name] for op in program.islands()}
        for name in report.by_tensor:
            report.by_tensor[name].elements += int(expected[name].size)
        _count_nan(program, report, expected)
        found: list[Difference] = []
        for name, runner in runners.items():
            found += _compare(program, report, name, expected, runner.tensors(batch, feed))
        if sim is not None:
            given = sim.integer_tensors(for_simulation(program, batch), feed)
            found += _compare(program, report, SIMULATION, expected, given)
        if report.first is None and found:
            report.first = min(found, key=lambda d: order[d.tensor])
        report.samples += size_of(program, batch) or 1
        if progress is not None:
            progress(report.samples)
    if report.samples == 0:
        raise InputError("there are no inputs to verify on", where="verify", remedy="give one sample or more")
    return report


def _replay(report: VerifyReport, engine: str, runner: Runner) -> None:
    """The golden vectors on one engine: what the program gave when it was converted, not what it gives now."""
    golden = runner.program.golden
    if golden is None or golden.omitted:
        report.golden[engine] = f"none in the program{f': {golden.omitted}' if golden is not None else ''}"
        return
    try:
        report.golden[engine] = str(reproduce(runner, engine, every=True))
    except (EngineError, ProgramError) as error:
        report.golden_differs[engine] = str(error)


def _count_nan(program: Program, report: VerifyReport, expected: Mapping[str, Array]) -> None:
    for op in program.ops:
        if op.kind == "quantize" and expected[op.inputs[0]].dtype == np.float32:
            count = int(np.count_nonzero(np.isnan(expected[op.inputs[0]])))
            if count:
                report.nan[op.name] = report.nan.get(op.name, 0) + count


def _compare(
    program: Program, report: VerifyReport, engine: str, expected: Mapping[str, Array], got: Mapping[str, Array]
) -> list[Difference]:
    """Add one engine's tensors of one batch to the report; the first difference of every tensor."""
    totals = report.by_engine[engine]
    found: list[Difference] = []
    for name, tensor in report.by_tensor.items():
        want = expected[name]
        if name not in got:
            if name not in totals.missing:
                totals.missing.append(name)
            continue
        have = np.asarray(got[name])
        if have.shape != want.shape or have.dtype != want.dtype:
            raise EngineError(
                f"{engine} gives {have.dtype} {have.shape}, the reference {want.dtype} {want.shape}",
                where=name,
                remedy="report this",
            )
        totals.elements += int(want.size)
        far, near = in_order(have), in_order(want)
        unequal = far != near
        count = int(np.count_nonzero(unequal))
        tensor.mismatches[engine] = tensor.mismatches.get(engine, 0) + count
        if not count:
            continue
        distance = int(np.abs(far.astype(np.int64) - near.astype(np.int64)).max())
        totals.mismatches += count
        totals.max_lsb, tensor.max_lsb = max(totals.max_lsb, distance), max(tensor.max_lsb, distance)
        first = _first(program, engine, name, report.samples, want, have, unequal)
        tensor.first = tensor.first or first
        found.append(first)
    return found


def in_order(values: Array) -> Array:
    """Return the integers as they are; float32 numbers as int32 in the same order, neighbors one apart, every NaN the
    same.

    Example:
        >>> in_order(np.float32([0.0, -0.0, 1e-45, -1e-45])).tolist()
        [0, -1, 1, -2]
    """
    if values.dtype != np.float32:
        return values
    bits = np.where(np.isnan(values), np.float32(np.nan), values).view(np.int32)
    return np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def _first(program: Program, engine: str, name: str, done: int, want: Array, have: Array, unequal: Array) -> Difference:
    index = np.unravel_index(int(np.argmax(unequal)), unequal.shape)
    where = [int(i) for i in index]
    if program.tensors[name].shape[:1] == (None,):
        where[0] += done
    return Difference(engine, name, tuple(where), want[index].item(), have[index].item())


def for_simulation(program: Program, batch: Mapping[str, Array]) -> list[Any]:
    """Return the batch as torch tensors in order, integers back to the real numbers they stand for."""
    torch = sys.modules["torch"]  # a simulation is a torch module
    quantizers = sole_quantizers(program)
    out = []
    for name in program.inputs:
        array, grid = batch[name], program.tensors[quantizers[name].name if name in quantizers else name]
        if array.dtype == np.uint8 and grid.scale is not None:
            array = dequantize(array, np.float32(grid.scale), int(grid.zero_point or 0))
        out.append(torch.from_numpy(np.require(array, requirements=["C", "W"])))
    return out


def batches(program: Program, inputs: Any, size: int) -> Iterator[dict[str, Array]]:
    """Every batch of ``inputs`` by name, in parts of at most ``size`` samples where the batch is dynamic."""
    # A tuple as long as the program has inputs is one batch; any other is a sequence of batches (as torch.split gives).
    call = isinstance(inputs, tuple) and _is_call(program, inputs)
    if isinstance(inputs, np.ndarray | Mapping) or call or is_torch(inputs):
        entries: Iterable[Any] = [inputs]
    elif isinstance(inputs, Iterable):
        entries = (_without_labels(program, entry) if isinstance(entry, list | tuple) else entry for entry in inputs)
    else:
        raise InputError(
            f"cannot take inputs from {type(inputs).__name__}", where="verify", remedy="give arrays or batches"
        )
    for entry in entries:
        if isinstance(entry, Mapping):
            whole = bind(program, (), entry)
        else:
            whole = bind(program, entry if isinstance(entry, list | tuple) else (entry,), {})
        count = size_of(program, whole)
        if count is None or any(program.tensors[n].shape[:1] != (None,) for n in program.inputs):
            yield whole
            continue
        for i in range(math.ceil(count / size)):
            yield {name: array[i * size : (i + 1) * size] for name, array in whole.items()}


def _is_call(program: Program, values: tuple[Any, ...]) -> bool:
    """Return whether ``values`` are the arguments of one call: a tensor per input, or nested as the model takes
    them."""
    if any(map(nests, values)):
        names = (
            name for at, value in zip(arguments(program.inputs), values, strict=False) for name, _ in leaves(at, value)
        )
        return set(names) == set(program.inputs)
    return len(values) == len(program.inputs)


def _without_labels(program: Program, values: Sequence[Any]) -> Sequence[Any]:
    return values[: len(arguments(program.inputs) if any(map(nests, values)) else program.inputs)]
