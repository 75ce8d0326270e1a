"""The comparison itself: every tensor of every engine with the reference's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from intact8.engines import get_runner, present_engines
from intact8.engines.base import Runner
from intact8.engines.memory import refuse_tensors
from intact8.engines.spec import lacks_vnni
from intact8.errors import EngineError, InputError, ProgramError, no_simulation, require_number
from intact8.golden import reproduce
from intact8.opset.op import Array
from intact8.program.certify import claim_error, uncertified
from intact8.program.dimensions import batch_size as size_of
from intact8.program.dimensions import sizes_of
from intact8.program.program import Program, require_program

from .batches import batches, for_simulation
from .report import Difference, EngineReport, TensorReport, VerifyReport

REFERENCE, SIMULATION = "reference", "simulation"


class Simulated(Protocol):
    """What verification needs of a simulation."""

    def integer_tensors(self, inputs: list[Any], feed: Mapping[str, Array] | None = None) -> Mapping[str, Array]:
        """Every quantized tensor by name, uint8, for torch tensors in the order of the program's inputs."""
        ...


def verify(
    program: Program,
    inputs: Any,
    engines: str | Sequence[str] | None = None,
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
        engines: a name or several; the reference is always run. None: those of native and onednn that can run it here.
        sim: compared as engine "simulation".
        batch_size: samples run at once, at most.
        progress: called with the number of samples done so far, after every batch.

    Returns:
        The report; ``report.exact`` says it all.

    Raises:
        InputError: no inputs, inputs that do not fit, or nothing to compare with.
        StateError: ``sim`` is no simulation.
        EngineError: an engine is missing, none can run here, or one gives a tensor of another shape or dtype.
    """
    require_program(program, "verify")
    require_number("batch_size", batch_size, 1, "verify")
    absent: list[str] = []
    if engines is None:
        engines = _usual_engines(program, absent)
    engines = list(engines) if isinstance(engines, Iterable) and not isinstance(engines, str) else [engines]
    for name in engines:
        if not isinstance(name, str):
            remedy = "give names of engines, and several inputs as one tuple: (x, y)"
            raise EngineError(f"the name of an engine is a {type(name).__name__}", where="verify", remedy=remedy)
    if not engines and sim is None:
        remedy = 'give a name, such as engines="native", or a simulation'
        raise InputError("there is nothing to compare the reference with", where="verify", remedy=remedy)
    if isinstance(sim, Program) or not (sim is None or hasattr(sim, "integer_tensors")):
        raise no_simulation(sim, "verify(sim=)")
    asked = {name: claim_error(program, name) for name in dict.fromkeys(engines) if name != REFERENCE}
    names = [name for name, error in asked.items() if error is None]
    refuse_tensors(program, [REFERENCE, *names], 1)
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
        remarks=(*absent, *program.remarks),
    )
    known: set[tuple[tuple[int, ...], ...]] = set()
    for name, runner in {REFERENCE: reference, **runners}.items():
        _replay(report, name, runner)
    for batch in batches(program, inputs, batch_size):
        shapes = tuple(x.shape for x in batch.values())
        if shapes not in known:
            refuse_tensors(program, [REFERENCE, *names], size_of(program, batch) or 1, sizes_of(program, batch))
            known.add(shapes)
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


def _usual_engines(program: Program, absent: list[str]) -> list[str]:
    """Return those of native and onednn that can run the program here; why another cannot is added to ``absent``."""
    found = []
    for name in present_engines(program):
        if name not in ("onednn", "native") or lacks_vnni(name, program):
            continue
        try:
            if claim_error(program, name) is None:
                get_runner(program, name)
            found.append(name)
        except EngineError as error:
            absent.append(f"{name} was not compared, as it cannot run this program here: {error}")
    if not found:
        remedy = "pip install 'intact8[torch]', or build the compiled module of the package"
        why = "; ".join(absent)
        raise EngineError(
            "no engine can run here to compare with the reference", where="verify", why=why, remedy=remedy
        )
    return found


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
