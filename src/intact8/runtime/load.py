"""From a file to a callable: each step on what the step before has found to be safe."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from intact8.arithmetic.dimensions import Dim
from intact8.engines import admission, prepare
from intact8.engines.base import Runner
from intact8.engines.binding import batch_size, bind, empty_outputs, is_torch, rebuild, to_torch
from intact8.engines.fallback import no_engine_error, startable
from intact8.engines.prepared_cache import release_memory
from intact8.errors import EngineError, InputError
from intact8.golden import reproduce
from intact8.opset.op import Array
from intact8.program.certify import by_claim, claim_error, in_order
from intact8.program.file import digest
from intact8.program.file import opened as open_file
from intact8.program.inputs import check_layout
from intact8.program.program import Program
from intact8.program.remarks import remarks as remarks_of
from intact8.program.spill import to_mmap
from intact8.runtime import cache, fastest
from intact8.runtime.probe_policy import Subject, probed, status, unchanged
from intact8.runtime.probe_process import PASSED, failure
from intact8.text import printable

from .facts import Facts
from .info import Info, Skipped
from .preflight import OK, REFUSED, Row, candidates, claim_row, preflight, refusal
from .sizes import Probed, Range, shown, wanted

MODES = ("always", "first", "never")


def load(
    path: str | Path,
    engine: str | Sequence[str] = "auto",
    threads: int | None = None,
    probe: str = "first",
    *,
    batch: int | Sequence[int] = 1,
    sizes: Mapping[str, Sequence[int]] | None = None,
    integers: bool = False,
    layout: str = "NCHW",
    public_key: str | Path | None = None,
    expect: str | None = None,
    time_limit: float = 120.0,
    facts: Facts | None = None,
) -> LoadedProgram:
    """Load a program for running it. Whatever the file and the engine are, this process lives on.

    Args:
        path: a file written by ``Program.save``.
        engine: a name, several to try in order, or "auto": the fastest of all that can run it here and that every
            certificate claims; the others only where none of these can. That is measured on this machine's first load
            of this program and remembered like a probe; ``info.measured`` tells the times.
        threads: CPU threads of the engine; None leaves its choice.
        probe: whether a child process tries the engine first: "first" on this machine's first load of this program and
            engine (the result is remembered in the user's cache directory), "always" or "never".
        batch: samples per call, or several such numbers: all are probed, and engine="auto" measures with the first.
        sizes: name of a dimension → sizes that are probed. Calls of a size that no probe has run, nor another of its
            range, wait for one, once per machine; see docs/runtime.md.
        integers: whether inputs that also take uint8 integers are probed with these, too.
        layout: of the images it will be called with; "NHWC": inputs of four dimensions are (N, H, W, C).
        public_key: file of an Ed25519 public key (PEM); the file's detached signature is then demanded and verified
            before anything is read from it. None: what the environment variable ``INTACT8_PUBLIC_KEY`` names, if set.
        expect: ``"NAME"`` or ``"NAME@N"``: the name that must have been signed, and its lowest version.
        time_limit: seconds a probe may take.
        facts: about this machine; gathered when None.

    Returns:
        A callable: ``runner(x)``, with ``runner.info``.

    Raises:
        ProgramError: the file is damaged, altered, too new, not signed as demanded, or breaks the specification.
        EngineError: no engine of those asked for can run it here; the message says what was found and what to do.
        InputError: the layout is not known, or no input has four dimensions.

    Example:
        >>> import numpy as np, tempfile
        >>> from intact8.opset.op import Op, Tensor
        >>> from intact8.program.program import Program
        >>> tensors = {"x": Tensor("x", "float32", (None, 2)), "q": Tensor("q", "uint8", (None, 2), 0.5, 10)}
        >>> program = Program(tensors, (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),), ("x",), ("q",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     runner = load(program.save(folder + "/tiny.safetensors"), engine="reference")
        >>> runner(np.float32([[1.0, 2.0]]))
        array([[12, 14]], dtype=uint8)
        >>> runner.info.engine, runner.info.probe
        ('reference', 'not needed: numpy is all it runs')
    """
    if probe not in MODES:
        raise EngineError(f"probe={probe!r} is not known", where="probe", remedy=f"choose from {', '.join(MODES)}")
    batches = (batch,) if isinstance(batch, int) else tuple(batch)
    if not batches or min(batches) < 1:
        raise EngineError(f"batch={batch!r} is no number of samples", where="batch", remedy="give 1 or more")
    if not time_limit > 0:
        raise EngineError(f"time_limit={time_limit!r} is no time", where="time_limit", remedy="give seconds above 0")
    names = candidates(engine)
    opened = open_program(path, public_key, expect)
    with opened.timed("facts"):
        facts = Facts.here() if facts is None else facts
    check_layout(opened.program, layout)
    attempt = Attempt(opened, threads, probe, time_limit, facts, batches, sizes, integers)
    loaded = attempt.fastest(names) if engine == "auto" else attempt.first(names)
    release_memory()
    return LoadedProgram(loaded.program, loaded._runner, loaded.info, layout, loaded._probed)


class Attempt:
    """Engines tried on one program."""

    def __init__(
        self, opened: Opened, threads: int | None, probe: str, time_limit: float, facts: Facts,
        batches: Sequence[int] = (1,), sizes: Mapping[str, Sequence[int]] | None = None, integers: bool = False,
    ) -> None:  # fmt: skip
        self.opened, self.threads, self.probe = opened, threads, probe
        self.time_limit, self.facts = time_limit, facts
        self.batches, self.sizes, self.integers = batches, sizes or {}, integers
        self._refused: dict[str, EngineError] = {}

    def first(self, names: Sequence[str]) -> LoadedProgram:
        """The first of these engines that can run it.

        Raises:
            EngineError: none can.
        """
        for _, loaded in self._able(names, names):
            return loaded
        raise no_engine_error(self._refused, str(self.opened.path))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Engines that cannot run it, and why."""
        return tuple(Skipped(name, str(error)) for name, error in self._refused.items())

    def _able(self, names: Sequence[str], every: Sequence[str]) -> Iterator[tuple[str, LoadedProgram]]:
        """Those of ``names`` that start. A message names what of ``every`` could be used instead."""
        return startable(
            names, lambda name: self._start(name, [n for n in every if n not in self._refused]), self._refused
        )

    def _start(self, name: str, others: Sequence[str]) -> LoadedProgram:
        return start(
            self.opened, name, self.threads, self.probe, self.time_limit, self.facts, others, self.skipped,
            self.batches, self.sizes, self.integers,
        )  # fmt: skip

    def fastest(self, names: Sequence[str]) -> LoadedProgram:
        """The engine measured to be fastest, now or earlier.

        Raises:
            EngineError: none can run it.
        """
        claimed = by_claim(self.opened.program, names)[0]
        if len(claimed) == 1:  # nothing to measure
            for _, loaded in self._able(claimed, names):
                return loaded
            names = [n for n in names if n not in claimed]
        name = fastest.key(self.opened.program, self.opened.digest, self.threads, self.batches[0], self.facts)
        known = fastest.recall(name)
        if known is None:
            # One process measures, the others wait for what it finds.
            with cache.lock(name, 2 * self.time_limit * len(names)):
                known = fastest.recall(name)
                if known is None:
                    return self._measured(names, name)
        order = [*known, *(n for n in names if n not in known)]
        first = self.first(in_order(self.opened.program, order))
        return first.with_info(measured=known)

    def _measured(self, names: Sequence[str], name: str) -> LoadedProgram:
        for group in by_claim(self.opened.program, names):  # the reference is not what anyone waits for
            started = dict(self._able(group, names))
            if started:
                break
        else:
            raise no_engine_error(self._refused, str(self.opened.path))
        measured: dict[str, float] = {}
        with self.opened.timed("measure"), contextlib.suppress(InputError):  # made-up samples may be none it can run
            if len(started) > 1:
                measured = fastest.measure(self.opened.program, started, self.batches[0])
        if measured:
            fastest.remember(name, measured)
        best = next(iter(measured or started))
        return started[best].with_info(measured=measured, skipped=self.skipped)


@dataclass(frozen=True)
class Opened:
    """A program whose file, specification and certificates are checked.

    Attributes:
        path: of the file.
        program: what it holds.
        digest: of the program.
        signed: what its verified signature says; "" where none was demanded.
        seconds: stage → how long it took; added to as loading goes on.
    """

    path: Path
    program: Program
    digest: str
    signed: str
    seconds: dict[str, float]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add what the block takes to ``seconds``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started


def open_program(path: str | Path, public_key: str | Path | None = None, expect: str | None = None) -> Opened:
    """Read, verify the signature where a key is given, check.

    Raises:
        ProgramError: see :func:`load`.
    """
    path = Path(path)
    opened = Opened(path, Program({}, (), (), ()), "", "", {})
    with opened.timed("file"):
        program, claim = open_file(path, public_key, expect)
        signed = "" if claim is None else str(claim)
        return replace(opened, program=to_mmap(program), digest=digest(program), signed=signed)


def start(
    opened: Opened, engine: str, threads: int | None, probe: str, time_limit: float, facts: Facts,
    others: Sequence[str] = (), skipped: tuple[Skipped, ...] = (), batches: Sequence[int] = (1,),
    sizes: Mapping[str, Sequence[int]] | None = None, integers: bool = False,
) -> LoadedProgram:  # fmt: skip
    """One engine: preflight, probe (of these sizes, too), preparation, golden vectors.

    Raises:
        EngineError: it cannot run here.
        InputError: a size of a dimension that there is not, or outside its limits.
    """
    ranges = wanted(opened.program, engine, batches, sizes or {}, integers, exact=probe == "always")
    with opened.timed("preflight"):
        rows = preflight(opened.program, engine, facts)
    error = claim_error(opened.program, engine) or refusal(rows, engine)
    if error is not None:
        raise error
    with opened.timed("probe"):
        about, path = status(opened.path), opened.path.absolute()
        subject = Subject(path, opened.program, opened.digest, engine, threads, probe, time_limit, facts)
        outcome, told = probed(subject, ranges)
    if outcome is not None and outcome.verdict != PASSED:
        rest = [n for n in (*others, "reference") if n != engine and claim_error(opened.program, n) is None]
        usable = tuple(n for n in rest if refusal(preflight(opened.program, n, facts), n) is None)
        raise failure(outcome, engine, usable, told.startswith("remembered"))
    with opened.timed("prepare"):
        runner = prepare(opened.program, engine, threads)
    with opened.timed("golden"):
        # numpy gives here what it gave there; of other engines it has to be seen.
        seen = engine == "reference" and outcome is not None
        reproduced = f"{outcome.detail}, in a child process" if outcome and seen else str(reproduce(runner, engine))
    golden = opened.program.golden
    remarks = list(remarks_of(opened.program))
    told_of = [*rows, claim_row(opened.program, engine)]
    remarks += [f"{row.what}: {row.found}" for row in told_of if row.verdict not in (REFUSED, OK)]
    if golden is None or golden.omitted:
        remarks.append(f"no golden vectors: {golden.omitted if golden else 'the file was made without them'}")
    if told.startswith("passed, but"):
        remarks.append(told)
    known = (*shown(opened.program), *ranges) if outcome is not None else ()
    info = Info(
        path=str(opened.path), digest=opened.digest, engine=engine, threads=threads,
        inputs=_described(opened.program, opened.program.inputs),
        outputs=_described(opened.program, opened.program.outputs), preflight=tuple(rows), probe=told,
        golden=reproduced, signed=bool(opened.signed), skipped=skipped, packages=dict(facts.packages),
        seconds=opened.seconds, sizes=tuple(map(str, known)), remarks=tuple(map(printable, remarks)),
    )  # fmt: skip
    if outcome is None or engine == "reference":  # numpy has no kernels of its own for a shape
        return LoadedProgram(opened.program, runner, info)
    part = getattr(runner, "largest_part", None)
    asking = Probed(opened.program, engine, part, known, probe == "always", partial(_asked, subject, about))
    return LoadedProgram(opened.program, runner, info, probed=asking)


def _asked(subject: Subject, about: os.stat_result | None, asked: Range) -> EngineError | None:
    """Have a child process run sizes, or remember that one did. Returns the error where it did not survive."""
    with unchanged(subject, about) as same:
        outcome, told = probed(same, [asked], golden=False)
    if outcome is None or outcome.verdict == PASSED:
        return None
    return failure(outcome, subject.engine, ("reference",), told.startswith("remembered"))


def _described(program: Program, names: Sequence[str]) -> dict[str, tuple[str, tuple[Dim, ...]]]:
    return {n: (program.tensors[n].dtype, program.tensors[n].shape) for n in names}


class LoadedProgram:
    """A program ready to run. Safe to call from several threads, as its engine is.

    Attributes:
        program: what was loaded.
        info: how it came to run here.
        layout: how inputs of four dimensions are given.
    """

    def __init__(
        self, program: Program, runner: Runner, info: Info, layout: str = "NCHW", probed: Probed | None = None
    ) -> None:
        self.program, self.info, self.layout, self._runner, self._probed = program, info, layout, runner, probed
        self._admit = admission(runner, info.engine, None if probed is None else self._ask)

    def _ask(self, arrays: Mapping[str, Array]) -> None:
        assert self._probed is not None
        self._probed(arrays)
        if len(self._probed.known) != len(self.info.sizes):
            self.info = replace(self.info, sizes=tuple(map(str, self._probed.known)))

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run.

        Args:
            inputs: numpy arrays or CPU torch tensors in the order of ``info.inputs``; torch tensors are not copied.
            named: the rest by name.

        Returns:
            The outputs nested as the model nested them; torch tensors where an input was one, else numpy arrays.

        Raises:
            InputError: wrong number, name, dtype or shape; or memory has no room for so large a call.
            EngineError: the engine's library did not survive a call of this size in a child process.
        """
        if not inputs and not named:
            raise InputError("no input is given", where="call", remedy=f"give {', '.join(self.program.inputs)}")
        arrays = bind(self.program, inputs, named, self.layout)
        self._admit(arrays)
        outputs = empty_outputs(self.program, arrays) if batch_size(self.program, arrays) == 0 else self._runner(arrays)
        if any(is_torch(value) for value in (*inputs, *named.values())):
            return rebuild(self.program.structure, [to_torch(y) for y in outputs])
        return rebuild(self.program.structure, [np.asarray(y) for y in outputs])

    def with_info(self, **changes: Any) -> LoadedProgram:
        """The same runner with other entries of ``info``."""
        return LoadedProgram(self.program, self._runner, replace(self.info, **changes), self.layout, self._probed)

    def __repr__(self) -> str:
        inputs = ", ".join(printable(f"{n}: {d}{list(s)}") for n, (d, s) in self.info.inputs.items())
        return f"<intact8 program {self.info.digest[:12]} on {self.info.engine}: {inputs}>"


__all__ = ["LoadedProgram", "Opened", "Row", "load", "open_program", "start"]
