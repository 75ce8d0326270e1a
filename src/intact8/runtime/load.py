"""Loads a file as a callable; every step takes only what the step before has found to be safe."""

from __future__ import annotations

import contextlib
import operator
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from intact8.display import Shown
from intact8.engines import admission, prepare
from intact8.engines.base import Runner
from intact8.engines.binding import bind, empty_outputs, holds_torch, is_empty, to_torch
from intact8.engines.fallback import no_engine_error, startable
from intact8.engines.prepared_cache import release_memory
from intact8.errors import EngineError, InputError, ProgramError
from intact8.golden import reproduce
from intact8.opset.op import Array
from intact8.outputs import rebuild
from intact8.program.certify import by_claim, claim_error, in_order, with_proofs
from intact8.program.file import digest, identity
from intact8.program.file import opened as open_file
from intact8.program.inputs import check_layout
from intact8.program.program import Program
from intact8.program.remarks import remarks as remarks_of
from intact8.program.spill import to_mmap
from intact8.regular_file import path_of
from intact8.runtime import cache, fastest
from intact8.runtime.probe_policy import Subject, probed, status, unchanged
from intact8.runtime.probe_process import PASSED, failure
from intact8.text import printable

from .facts import Facts
from .info import Info, Skipped
from .preflight import OK, REFUSED, Row, candidates, claim_row, preflight, refusal
from .sizes import CALL, Probed, Range, shown, wanted

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
    time_limit: float = 240.0,
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
        time_limit: seconds that loading may take, whatever the number of engines, and later a probe of a new size. Each
            child process may take half of what is left of them, so that this process can repeat what the child did.
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
    started = time.monotonic()
    if probe not in MODES:
        raise EngineError(f"probe={probe!r} is not known", where="probe", remedy=f"choose from {', '.join(MODES)}")
    batches = _counts("batch", batch)
    if sizes is not None and not isinstance(sizes, Mapping):
        remedy = 'give sizes by the names of dimensions, such as {"sequence": [16, 128]}'
        raise EngineError(f"sizes={sizes!r} names no dimension", where="sizes", remedy=remedy)
    asked = {name: _counts(f"sizes, {name}", given, 0) for name, given in (sizes or {}).items()}
    if threads is not None:
        _counts("threads", [threads])
    if not (isinstance(time_limit, (int, float)) and time_limit > 0):
        raise EngineError(f"time_limit={time_limit!r} is no time", where="time_limit", remedy="give seconds above 0")
    if not (facts is None or isinstance(facts, Facts)):
        raise EngineError(f"facts={facts!r} are none", where="facts", remedy="give Facts.here(), or leave them out")
    opened = open_program(path, public_key, expect)
    names = candidates(engine)
    with opened.timed("facts"):
        facts = Facts.here() if facts is None else facts
    check_layout(opened.program, layout)
    attempt = Attempt(opened, threads, probe, time_limit, facts, batches, asked, integers, started)
    loaded = attempt.fastest(names) if engine == "auto" else attempt.first(names)
    release_memory(opened.program.nbytes())
    return LoadedProgram(loaded.program, loaded._runner, loaded._info, layout, loaded._probed)


def _counts(name: str, given: Any, least: int = 1) -> tuple[int, ...]:
    """Return one number or several that an argument gives.

    Raises:
        EngineError: they are no whole numbers, or below ``least``.
    """
    try:
        found = tuple(map(operator.index, given if isinstance(given, Iterable) else (given,)))
    except TypeError:
        found = ()
    if not found or min(found) < least:
        raise EngineError(f"{given!r} is no number from {least} on", where=name, remedy=f"give {least} or more")
    return found


@dataclass(eq=False, repr=False)
class Attempt:
    """Tries engines on one program; see :func:`load`.

    Attributes:
        started: when loading began, on the monotonic clock.
        way: how the batches are probed, see :class:`intact8.runtime.sizes.Size`.
        refused: errors of the engines that cannot run the program.
    """

    opened: Opened
    threads: int | None
    probe: str
    time_limit: float
    facts: Facts
    batches: Sequence[int] = (1,)
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    integers: bool = False
    started: float = field(default_factory=time.monotonic)
    way: str = CALL
    refused: dict[str, EngineError] = field(default_factory=dict)

    def runner(self, engine: str) -> tuple[Runner, Probed | None]:
        """Return a runner of the engine, and what has to be asked about the size of every call, if anything.

        Raises:
            EngineError: the engine cannot run here.
        """
        loaded = self.first([engine])
        return loaded._runner, loaded._probed

    def first(self, names: Sequence[str]) -> LoadedProgram:
        """Start the first of these engines that can run the program.

        Raises:
            EngineError: none can.
        """
        for _, loaded in self._startable(names, names):
            return loaded
        raise no_engine_error(self.refused, str(self.opened.path))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Engines that cannot run the program, and why."""
        return tuple(Skipped(name, str(error)) for name, error in self.refused.items())

    def _left(self, stage: str = "") -> float:
        """Return the seconds that are left of the time limit before ``stage``.

        Raises:
            EngineError: none are left.
        """
        left = self.started + self.time_limit - time.monotonic()
        if left > 0:
            return left
        what, remedy = f"loading is not done after {self.time_limit:g} s", "give it longer: time_limit="
        raise EngineError(what, where=stage, why="that is the time limit", remedy=remedy)

    def _startable(self, names: Sequence[str], every: Sequence[str]) -> Iterator[tuple[str, LoadedProgram]]:
        """Yield those of ``names`` that start. A message names what of ``every`` could be used instead."""
        return startable(names, lambda name: self._start(name, every), self.refused)

    def fastest(self, names: Sequence[str]) -> LoadedProgram:
        """Start the engine measured to be fastest, now or earlier.

        Raises:
            EngineError: none can run it.
        """
        claimed = by_claim(self.opened.program, names)[0]
        if len(claimed) == 1:  # nothing to measure
            for _, loaded in self._startable(claimed, names):
                return loaded
            names = [n for n in names if n not in claimed]
        name = fastest.key(self.opened.program, self.threads, self.batches[0], self.facts)
        known = fastest.recall(name)
        if known is None:
            # One process measures, the others wait for what it finds.
            with cache.lock(name, self._left() / 2):
                known = fastest.recall(name)
                if known is None:
                    return self._measured(names, name)
        order = [*known, *(n for n in names if n not in known)]
        return self.first(in_order(self.opened.program, order)).with_info(measured=known)

    def _measured(self, names: Sequence[str], name: str) -> LoadedProgram:
        started: dict[str, LoadedProgram] = {}
        for group in by_claim(self.opened.program, names):  # the reference is not what anyone waits for
            started = started or dict(self._startable(group, names))
        if not started:
            raise no_engine_error(self.refused, str(self.opened.path))
        measured: dict[str, float] = {}
        # A program may have no answer to made-up samples.
        with self.opened.timed("measure"), contextlib.suppress(InputError):
            if len(started) > 1:
                left = max(self.started + self.time_limit - time.monotonic(), 0)
                measured = fastest.measure(self.opened.program, started, self.batches[0], left / 2)
        if measured:
            fastest.remember(name, measured)
        best = next(iter(measured or started))
        return started[best].with_info(measured=measured, skipped=self.skipped)

    def _start(self, engine: str, every: Sequence[str]) -> LoadedProgram:
        """Start one engine: preflight, probe (of the sizes, too), preparation, golden vectors.

        Raises:
            EngineError: the engine cannot run here.
            InputError: a size names an unknown dimension, or lies outside of its limits.
        """
        opened, program, facts = self.opened, self.opened.program, self.facts
        exact = self.probe == "always"
        ranges = wanted(program, engine, self.batches, self.sizes, self.integers, exact, self.way)
        rows = self._admitted(engine)
        with opened.timed("probe"):
            subject, about = self._subject(engine)
            outcome, told = probed(replace(subject, time_limit=self._left(engine) / 2), ranges)
        if outcome is not None and outcome.verdict != PASSED:
            others = [n for n in (*every, "reference") if n not in (*self.refused, engine)]
            others = [n for n in others if claim_error(program, n) is None]
            usable = tuple(n for n in others if refusal(preflight(program, n, facts), n) is None)
            raise failure(outcome, engine, usable, told.startswith("remembered"))
        with opened.timed("prepare"):
            runner = prepare(program, engine, self.threads)
        with opened.timed("golden"):
            if engine == "reference" and outcome is not None:  # numpy gives here what it gave in the child
                golden = f"{outcome.detail}, in a child process"
            else:
                golden = str(reproduce(runner, engine, note=self._left))
        known = (*shown(program), *ranges) if outcome is not None else ()
        info = Info(
            path=str(opened.path),
            engine=engine,
            threads=self.threads,
            inputs={n: (program.tensors[n].dtype, program.tensors[n].shape) for n in program.inputs},
            outputs={n: (program.tensors[n].dtype, program.tensors[n].shape) for n in program.outputs},
            preflight=tuple(rows),
            probe=told,
            golden=golden,
            signed=bool(opened.signed),
            skipped=self.skipped,
            packages=dict(facts.packages),
            seconds=opened.seconds,
            sizes=tuple(map(str, known)),
            remarks=tuple(map(printable, _remarks(program, [*rows, claim_row(program, engine)], told))),
        )
        if outcome is None or engine == "reference":  # numpy has no kernels of its own for a shape
            return LoadedProgram(program, runner, info)
        part = getattr(runner, "largest_part", None)
        asking = Probed(program, engine, part, known, exact, partial(_probe_range, subject, about))
        return LoadedProgram(program, runner, info, probed=asking)

    def asking(self, engine: str) -> Probed:
        """Return what has a child process run sizes of the engine, which is not started here.

        Raises:
            EngineError: the engine cannot run here.
        """
        self._admitted(engine)
        return Probed(self.opened.program, engine, None, (), False, partial(_probe_range, *self._subject(engine)))

    def _admitted(self, engine: str) -> list[Row]:
        """Return what the preflight finds. Raises EngineError: the engine cannot run here, or is not proved."""
        with self.opened.timed("preflight"):
            rows = preflight(self.opened.program, engine, self.facts)
        error = claim_error(self.opened.program, engine) or refusal(rows, engine)
        if error is not None:
            raise error
        return rows

    def _subject(self, engine: str) -> tuple[Subject, os.stat_result | None]:
        """Return what a child process is given, and the status of the file."""
        opened, limit = self.opened, self.time_limit
        about, path = status(opened.path), opened.path.absolute()
        known = identity(opened.program)
        return Subject(path, opened.program, known, engine, self.threads, self.probe, limit, self.facts), about


def _remarks(program: Program, rows: Sequence[Row], told: str) -> list[str]:
    """List what does not stop a load, but should be known."""
    remarks = [*remarks_of(program), *(f"{r.what}: {r.found}" for r in rows if r.verdict not in (REFUSED, OK))]
    golden = program.golden
    if golden is None or golden.omitted:
        remarks.append(f"no golden vectors: {golden.omitted if golden else 'the file was made without them'}")
    return [*remarks, told] if told.startswith("passed, but") else remarks


def _probe_range(subject: Subject, about: os.stat_result | None, asked: Range) -> EngineError | None:
    """Have a child process run sizes, or remember that one did. Returns the error where it did not survive."""
    with unchanged(subject, about) as same:
        outcome, told = probed(same, [asked], golden=False)
    if outcome is None or outcome.verdict == PASSED:
        return None
    return failure(outcome, subject.engine, ("reference",), told.startswith("remembered"))


@dataclass(frozen=True, eq=False, repr=False)
class Opened:
    """A program whose file, specification and certificates are checked.

    Attributes:
        path: path of the file.
        program: the program in it.
        signed: what its verified signature says; "" where none was demanded.
        seconds: stage → how long it took; added to as loading goes on.
    """

    path: Path
    program: Program
    signed: str
    seconds: dict[str, float]

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to ``seconds``."""
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
    path = path_of(path, kind=ProgramError)
    opened = Opened(path, Program({}, (), (), ()), "", {})
    with opened.timed("file"):
        program, claim = open_file(path, public_key, expect)
        signed = "" if claim is None else str(claim)
        return replace(opened, program=with_proofs(to_mmap(program), program), signed=signed)


class LoadedProgram(Shown):
    """A program ready to run. Safe to call from several threads, as its engine is.

    Attributes:
        program: what was loaded.
        layout: layout of inputs of four dimensions.
    """

    def __init__(
        self, program: Program, runner: Runner, info: Info, layout: str = "NCHW", probed: Probed | None = None
    ) -> None:
        self.program, self._info, self.layout, self._runner, self._probed = program, info, layout, runner, probed
        self._admit = admission(runner, info.engine, None if probed is None else self._ask)

    @property
    def info(self) -> Info:
        """How it came to run here. The digest takes a look at every weight, so that it is made at the first request."""
        if not self._info.digest:
            self._info = replace(self._info, digest=digest(self.program))
        return self._info

    def _ask(self, arrays: Mapping[str, Array]) -> None:
        assert self._probed is not None
        self._probed(arrays)
        if len(self._probed.known) != len(self._info.sizes):
            self._info = replace(self._info, sizes=tuple(map(str, self._probed.known)))

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
        arrays = bind(self.program, inputs, named, self.layout, self._admit)
        outputs = empty_outputs(self.program, arrays) if is_empty(self.program, arrays) else self._runner(arrays)
        if any(map(holds_torch, (*inputs, *named.values()))):
            return rebuild(self.program.structure, [to_torch(y) for y in outputs])
        return rebuild(self.program.structure, [np.asarray(y) for y in outputs])

    def with_info(self, **changes: Any) -> LoadedProgram:
        """Return the same runner with other entries of ``info``."""
        return LoadedProgram(self.program, self._runner, replace(self._info, **changes), self.layout, self._probed)

    def __copy__(self) -> LoadedProgram:
        return self.with_info()

    def __reduce__(self) -> Any:
        what, why = "a loaded program cannot be pickled", "it is compiled code and memory of this process"
        remedy = "give the other process the path, or runner.program, and load it there"
        raise EngineError(what, where=str(self.info.path), why=why, remedy=remedy)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        shapes = {
            name: ", ".join("batch" if d is None else str(d) for d in shape)
            for name, (_, shape) in self.info.inputs.items()
        }
        inputs = ", ".join(printable(f"{n}: {d}[{shapes[n]}]") for n, (d, _) in self.info.inputs.items())
        return f"<intact8 program {self.info.digest[:12]} on {self.info.engine}: {inputs}>"
