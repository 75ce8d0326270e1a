"""Golden vectors made at conversion by the reference engine, and reproduced wherever the program is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from intact8.engines.base import Runner
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError, InputError, IntactError, ProgramError
from intact8.opset.op import Array
from intact8.program.golden import Golden, checksum, exact_tensors, index_bounds, products, sample, values_of
from intact8.program.program import Program

SAMPLES = (("noise", 1), ("extremes", 2), ("smooth", 3), ("high", 0))
FEW, MANY_PRODUCTS = 2, 3_000_000_000
"""Networks of more products per sample than this get two samples: the reference engine takes a second per sample."""

TOLERANCE = 0.25
"""Largest relative error (root mean square) of outputs behind float islands. Float results of engines differ in their
last bits and integers after them by a step; what this catches is an engine that is wrong."""


def with_golden(program: Program) -> Program:
    """Return the program with golden vectors from the reference engine.

    Where none can be computed (a sample makes a float island divide by zero, say), the reason is kept in their place.
    """
    chosen = SAMPLES[: FEW if products(program) > MANY_PRODUCTS else None]
    draft = Golden(tuple(chosen), index_bounds(program))
    runner = ReferenceEngine().prepare(program)
    kept: list[tuple[str, int]] = []
    found: list[dict[str, Array]] = []
    reason = "the program has no inputs"
    for i, entry in enumerate(chosen if program.inputs else ()):
        try:
            with np.errstate(all="ignore"):
                found.append(runner.tensors(sample(program, draft, i)))
            kept.append(entry)
        except InputError as error:
            reason = f"the reference engine cannot run the samples: {error}"[:1000]
    if not kept:
        return replace(program, golden=Golden(omitted=reason))
    exact, unsure = exact_tensors(program), _unsure(program, runner, draft, kept, found)
    checksums = {name: tuple(checksum(values[name]) for values in found) for name in exact}
    outputs = {}
    for i, name in enumerate(program.outputs):
        t = program.tensors[name]
        if name in checksums or name in program.inputs or name in unsure or t.dtype not in ("float32", "uint8"):
            continue  # indices and masks behind an island may differ altogether where two scores are nearly equal
        stored = np.stack([values_of(values[name]) for values in found])
        if np.isfinite(stored).all():
            outputs[i] = stored
    return replace(program, golden=Golden(tuple(kept), draft.bounds, checksums, outputs))


def _unsure(
    program: Program, runner: Runner, draft: Golden, kept: list[tuple[str, int]], found: list[dict[str, Array]]
) -> set[str]:
    """Return the outputs that other last bits of float results change by much on some sample, as engines do.

    An angle of numbers that are 0 but for rounding is any angle: such outputs tell nothing of an engine.

    Args:
        program: behind whose float operations outputs are.
        runner: of the reference engine.
        draft: of the samples that were chosen.
        kept: those that were run.
        found: all tensors, by sample.
    """
    exact = {*program.inputs, *exact_tensors(program)}
    first = [op.name for op in program.islands() if exact.issuperset(op.inputs)]
    unsure, random = set[str](), np.random.default_rng(0)
    behind = [op for op in program.ops if op.kind in JUMPS and not exact.issuperset(op.inputs)]
    if not behind or exact.issuperset(program.outputs):
        return unsure
    for (pattern, seed), values in zip(kept, found, strict=True):
        feed = {name: _jittered(values[name], random) for name in first}
        try:
            with np.errstate(all="ignore"):
                others = runner.tensors(sample(program, draft, draft.samples.index((pattern, seed))), feed)
        except InputError:
            continue
        for name in set(program.outputs) & {op.name for op in program.ops}:
            if values[name].dtype == np.float32 and not _off(values[name], others[name]) <= TOLERANCE / 2:
                unsure.add(name)
    return unsure


JUMPS = frozenset({"float.compare", "float.div", "float.argsort"})
"""Kinds of which a result may change by much where an operand changes by little."""

JITTER = 1e-6
"""How much float results of engines may differ, as a share of their size: some last bits."""


def _jittered(values: Array, random: np.random.Generator) -> Array:
    """Return float results with other last bits, also of numbers that are small beside the others."""
    if values.dtype != np.float32:
        return values
    size = np.sqrt(np.mean(np.square(values, dtype=np.float64))) if values.size else 0.0
    noise = random.standard_normal((2, *values.shape))
    jittered: Array = (values + JITTER * (values * noise[0] + size * noise[1])).astype(np.float32)
    return jittered


def _off(stored: Array, got: Array, step: float = 0.0) -> float:
    """Return the relative error (root mean square) of what is off by more than a step; infinite of NaN."""
    if got.shape != stored.shape or not np.isfinite(got).all():
        return float("inf")
    size = float(np.sqrt(np.mean(np.square(stored, dtype=np.float64))))
    apart = np.maximum(np.abs(got.astype(np.float64) - stored) - 1.001 * step, 0.0)
    distance = float(np.sqrt(np.mean(np.square(apart))))
    return distance / size if size > 0 else distance


@dataclass(frozen=True, eq=False, repr=False)
class Reproduced:
    """What :func:`reproduce` compared.

    Attributes:
        samples: how many samples were run.
        exact: tensors compared bit for bit, per sample.
        near: outputs behind float islands compared within the tolerance, per sample.
    """

    samples: int
    exact: int
    near: int

    def __str__(self) -> str:
        near = f", outputs behind float islands ({self.near}) within {TOLERANCE:.0%}" if self.near else ""
        return f"{self.samples} samples, {self.exact} tensors bit for bit{near}"


def reproduce(
    runner: Runner, engine: str, *, every: bool = False, note: Callable[[str], object] | None = None
) -> Reproduced:
    """Run the golden vectors of ``runner.program`` and compare.

    Args:
        runner: of the program, on any engine.
        engine: its name, for the message.
        every: compare every exact tensor, not only the outputs; the engine may compile a second model for it.
        note: a callable that is told what is run, before it is; what it raises ends the comparison.

    Raises:
        EngineError: a difference; it names sample and first differing op.
        ProgramError: the reference engine differs, too: the program is not the one its golden vectors were made of.
    """
    program = runner.program
    golden = program.golden
    if golden is None or golden.omitted:
        return Reproduced(0, 0, 0)
    compared = [name for name in dict.fromkeys(program.outputs) if name in golden.checksums]
    for i, (pattern, _) in enumerate(golden.samples):
        if note is not None:
            note(f"golden sample {i + 1} of {len(golden.samples)} ({pattern})")
        given = sample(program, golden, i)
        try:
            outputs = dict(zip(program.outputs, runner(given), strict=True))
        except InputError as refused:
            raise EngineError(
                f"{engine} cannot run golden sample {i + 1} ({pattern})",
                where=refused.where,
                why=refused.what,
                remedy="convert the model again: the file's samples are not for this program",
            ) from refused
        if any(checksum(np.asarray(outputs[name])) != golden.checksums[name][i] for name in compared):
            raise _difference(runner, engine, golden, i, given, outputs)
        off = [
            error
            for index, stored in golden.outputs.items()
            if (error := _near(program, index, engine, pattern, outputs[program.outputs[index]], stored[i]))
        ]
        if (every or off) and _first(golden, i, runner.tensors(given)) is not None:
            raise _difference(runner, engine, golden, i, given, outputs)
        if off:
            raise off[0]
    return Reproduced(len(golden.samples), len(golden.checksums) if every else len(compared), len(golden.outputs))


def _first(golden: Golden, i: int, values: dict[str, Array]) -> str | None:
    for name, sums in golden.checksums.items():
        if name in values and checksum(np.asarray(values[name])) != sums[i]:
            return name
    return None


def _difference(
    runner: Runner, engine: str, golden: Golden, i: int, given: dict[str, Array], outputs: dict[str, Array]
) -> IntactError:
    program = runner.program
    expected = ReferenceEngine().prepare(program).tensors(given)  # a refusal may take its time
    altered = _first(golden, i, expected)
    if altered is not None:
        return ProgramError(
            "the program is damaged: it does not give what it gave when it was converted",
            where=altered,
            why=f"golden sample {i + 1} ({golden.samples[i][0]}) has another result on the reference engine, too",
            remedy="get the file again from where it came from, or convert the model again",
        )
    values = runner.tensors(given)
    name = _first(golden, i, values)
    pattern = golden.samples[i][0]
    if name is None:
        wrong = next(
            n for n in outputs if n in golden.checksums and checksum(np.asarray(outputs[n])) != golden.checksums[n][i]
        )
        where, detail = wrong, "only the deployed call differs, the one that shows every tensor does not"
    else:
        op = next(op for op in program.ops if op.name == name)
        where = name
        module = f", from module {op.module}" if op.module else ""
        detail = f"kind {op.kind}{module}{_how(expected[name], np.asarray(values[name]))}"
    return EngineError(
        f"{engine} does not give the program's integers: the first that differ, on golden sample {i + 1} ({pattern})",
        where=where,
        why=detail,
        remedy="use another engine (engine='reference' is exact by definition), report this",
    )


def _how(expected: Array, got: Array) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"; {got.dtype} {got.shape} in place of {expected.dtype} {expected.shape}"
    return f"; {int(np.count_nonzero(got != expected))} of {got.size} differ"


def _near(program: Program, index: int, engine: str, pattern: str, output: Array, stored: Array) -> EngineError | None:
    """Return an error for an output that is not near what was stored, whose grid may be off by a step."""
    name, got = program.outputs[index], values_of(np.asarray(output))
    maker = next(op for op in program.ops if op.name == name)
    step = (program.tensors[maker.inputs[0]].scale or 0.0) if maker.kind == "dequantize" else 0.0
    error = _off(stored, got, step)
    if error <= TOLERANCE:
        return None
    return EngineError(
        f"{engine} gives an output behind float islands that is off by {error:.0%} on golden sample {pattern}",
        where=name,
        why="float results of engines differ in their last bits, not by so much",
        remedy="use another engine and report this",
    )
