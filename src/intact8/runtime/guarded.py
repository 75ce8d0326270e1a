"""Programs of files whose engines a child process tries before this one runs them, whatever asks for a runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from intact8.engines import guard
from intact8.engines.base import Runner, TimedRunner
from intact8.opset.op import Array
from intact8.program.program import Program

from .facts import Facts
from .load import Attempt, Opened, open_program
from .preflight import candidates, preflight, refusal
from .sizes import CALL, PARTS, TENSORS, Probed

SECONDS = 240.0
"""How long starting an engine may take, and later a child process at a new size."""


def open_guarded(
    path: str | Path,
    public_key: str | Path | None = None,
    expect: str | None = None,
    batch: Sequence[int] = (),
    way: str = CALL,
) -> Program:
    """Read a file and guard its program: a runner of it is what :func:`intact8.runtime.load` would have loaded.

    Args:
        path: a file written by ``Program.save``.
        public_key, expect: see :func:`intact8.runtime.load`.
        batch: samples per call; these are probed when an engine starts, others when they first come.
        way: how they are probed: CALL, or TENSORS where every tensor will be asked for.

    Raises:
        ProgramError: see :func:`intact8.runtime.load`.
    """
    opened = open_program(path, public_key, expect)
    return guard(opened.program, _Guard(opened, batch, way))


class _Guard:
    """Has a child process try engines; see :class:`intact8.engines.Guard`."""

    def __init__(self, opened: Opened, batches: Sequence[int], way: str) -> None:
        self._opened, self._batches, self._way, self._facts = opened, batches, way, Facts.here()
        self._parts: dict[str, Probed] = {}

    def present(self) -> list[str]:
        program, facts = self._opened.program, self._facts
        return [n for n in reversed(candidates("auto")) if refusal(preflight(program, n, facts), n) is None]

    def start(self, engine: str, threads: int | None) -> Runner:
        runner, probed = self._attempt(threads).runner(engine)
        return (_ProbedTimedRunner if isinstance(runner, TimedRunner) else _ProbedRunner)(runner, probed)

    def parts(self, engine: str, arrays: Mapping[str, Array]) -> None:
        if engine == "reference":
            return
        if engine not in self._parts:
            self._parts[engine] = self._attempt(None).asking(engine)
        self._parts[engine](arrays, PARTS)

    def _attempt(self, threads: int | None) -> Attempt:
        return Attempt(self._opened, threads, "first", SECONDS, self._facts, self._batches, way=self._way)


class _ProbedRunner:
    """A runner whose every size waits for its probe."""

    def __init__(self, runner: Runner, probed: Probed | None) -> None:
        self.program, self._runner, self._probed = runner.program, runner, probed
        for name in ("largest_part", "call_bytes"):  # which the runners of some engines have
            if hasattr(runner, name):
                setattr(self, name, getattr(runner, name))

    def _ask(self, inputs: Mapping[str, Array], way: str) -> None:
        if self._probed is not None:
            self._probed(inputs, way)

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        self._ask(inputs, CALL)
        return self._runner(inputs)

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        self._ask(inputs, TENSORS)
        return self._runner.tensors(inputs, feed)


class _ProbedTimedRunner(_ProbedRunner):
    _runner: TimedRunner

    def times(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        self._ask(inputs, TENSORS)
        return self._runner.times(inputs)
