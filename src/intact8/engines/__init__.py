"""Engines by name, and running a program on one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from intact8.errors import EngineError, InputError
from intact8.opset.op import Array
from intact8.outputs import rebuild
from intact8.program.certify import claim_error, in_order, register
from intact8.program.program import Program

from .base import Engine, Runner
from .binding import bind, empty_outputs, holds_torch, is_empty, to_torch
from .fallback import no_engine_error, startable
from .fork_safety import follow
from .memory import Admission
from .spec import SPECS

ENGINES = tuple(SPECS)
"""Names of all engines; ``auto`` takes the last one that can run here; ``intact8.runtime.load`` measures."""

GROUP = "intact8.engines"
"""Entry points of this group are engines of other packages: name → a callable that gives an ``Engine``."""


def get_engine(name: str) -> Engine:
    """Make the engine of that name. ``auto`` is the fastest one that can run here.

    Raises:
        EngineError: the engine is unknown, or one of its libraries is missing.

    Example:
        >>> get_engine("reference").available() is None
        True
    """
    if name == "auto":
        return get_engine(available_engines()[-1])
    if name in SPECS:
        return SPECS[name].make()
    return _plug_in(name)


def _plug_in(name: str) -> Engine:
    """Make the engine of another package, the entry point of that name in the group ``intact8.engines``.

    ``auto`` does not consider it. If the engine has an ``evaluation`` (``intact8.opset.proof.Evaluation``: how it
    rounds), certificates can claim it from then on.
    """
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        try:
            engine: Engine = entry.load()()
            evaluation = getattr(engine, "evaluation", None)
        except (ImportError, AttributeError) as error:
            what = "the package of the engine cannot be imported"
            raise EngineError(what, where=name, why=str(error), remedy="reinstall it") from error
        if evaluation is not None:
            register(name, evaluation)
        return engine
    raise _unknown(name)


def check_name(name: Any) -> None:
    """Refuse the name of an engine that neither this package nor another has. Imports none.

    Raises:
        EngineError: there is no such engine.
    """
    if name in (*SPECS, "auto"):
        return
    import importlib.metadata  # a load of a known engine does without it

    if not importlib.metadata.entry_points(group=GROUP, name=str(name)):
        raise _unknown(name)


def _unknown(name: Any) -> EngineError:
    """Return the error of a name that no engine has."""
    return EngineError(f"there is no engine {name!r}", remedy=f"choose from auto, {', '.join(ENGINES)}")


def engine_status() -> dict[str, str | None]:
    """Return the engine name → None where it can run here, otherwise the reason and the remedy."""
    status: dict[str, str | None] = {}
    for name in ENGINES:
        try:
            status[name] = get_engine(name).available()
        except EngineError as error:
            status[name] = str(error)
    return status


def available_engines(program: Program | None = None) -> list[str]:
    """Return the names of the engines that can run here, in the order of ENGINES; never empty.

    Args:
        program: leaves out those that cannot be proved for it (see ``intact8.program.certify.claim_error``), and those
            that refuse it on this CPU.
    """
    names = present_engines(program)
    if program is None:
        return names
    return [name for name in names if claim_error(program, name) is None and _refusal(program, name) is None]


def _refusal(program: Program, name: str) -> EngineError | None:
    """Return why an engine does not run a program on this CPU, though it is present; None where it does."""
    asks = getattr(get_engine(name), "refusal", None)
    return asks(program) if asks is not None else None


def present_engines(program: Program | None = None) -> list[str]:
    """Return the names of the engines that can run here, in the order of ENGINES, whatever certificates say.

    Args:
        program: whose guard is asked, if it has one.
    """
    guard = None if program is None else guard_of(program)
    if guard is not None:
        return guard.present()
    return [name for name, reason in engine_status().items() if reason is None]


class Guard(Protocol):
    """Tries engines on one program in a process of its own, before this process runs them."""

    def present(self) -> list[str]:
        """Return the names of the engines that can run here, in the order of ENGINES; no library is imported for it."""
        ...

    def start(self, engine: str, threads: int | None) -> Runner:
        """Return a runner that has been tried. Raises EngineError where the engine did not survive, or cannot run."""
        ...

    def parts(self, engine: str, arrays: Mapping[str, Array]) -> None:
        """Return once every operation was tried as a program of its own, with these inputs of the whole program's
        sizes. Raises EngineError."""
        ...


def guard(program: Program, by: Guard) -> Program:
    """Return the program; its runners come from ``by`` from now on. Copies have no guard."""
    vars(program)["_guard"] = by
    return program


def guard_of(program: Program) -> Guard | None:
    """Return what :func:`guard` gave the program; None without one."""
    found: Guard | None = vars(program).get("_guard")
    return found


class _Runners:
    """Prepared runners of one program, which are not part of its copies and pickles."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[tuple[str, int | None], tuple[Runner, Admission]] = {}
        self.auto: str | None = None
        follow(self)

    def after_fork(self) -> None:
        """Make a new lock, since the thread that held the old one may be gone."""
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[type[_Runners], tuple[()]]:
        return (_Runners, ())


def get_runner(program: Program, engine: str = "auto", threads: int | None = None) -> Runner:
    """Return ``program`` prepared for ``engine``, remembered for as long as the program lives.

    Args:
        program: checked (converted or loaded). Its arrays must not be edited afterwards.
        engine: a name of ENGINES, or auto: the first of onednn, openvino, onnxruntime and the reference that takes
            it, those that all of its certificates claim before the others.
        threads: CPU threads; None leaves the setting of the engine's library.

    Raises:
        EngineError: unknown or missing engine, or a CPU feature the program needs.
    """
    return _prepared(program, engine, threads)[0]


def _prepared(program: Program, engine: str, threads: int | None = None) -> tuple[Runner, Admission]:
    runners: _Runners | None = vars(program).get("_runners")
    if runners is None:  # of several threads that come first, one gives what all take
        runners = vars(program).setdefault("_runners", _Runners())
    if engine == "auto":
        if runners.auto is not None:
            return _prepared(program, runners.auto, threads)
        refused: dict[str, EngineError] = {}
        start = partial(_prepared, program, threads=threads)
        for name, found in startable(in_order(program, present_engines(program)[::-1]), start, refused):
            runners.auto = name
            return found
        raise no_engine_error(refused)
    if not isinstance(engine, str):
        raise _unknown(engine)
    with runners.lock:
        key = (engine, threads)
        if key not in runners.by_key:
            guard = guard_of(program)
            runner = prepare(program, engine, threads) if guard is None else guard.start(engine, threads)
            runners.by_key[key] = runner, admission(runner, engine)
        return runners.by_key[key]


def prepare(program: Program, engine: str, threads: int | None = None) -> Runner:
    """Return a new runner of ``program`` on the engine of that name.

    Raises:
        EngineError: unknown or missing engine, one that a certificate of the program leaves out because it cannot be
            proved (see ``intact8.program.certify.claim_error``), a library that cannot be imported, or an op it
            cannot run.
    """
    chosen = get_engine(engine)
    error = claim_error(program, engine)
    if error is not None:
        raise error
    try:
        reason = chosen.available()
        if reason is not None:
            raise EngineError("the engine cannot run here", where=engine, why=reason, remedy="engine='reference'")
        return chosen.prepare(program, threads=threads)
    except (ImportError, OSError) as import_error:
        what, remedy = "a library of the engine cannot be imported", "reinstall it, or use engine='reference'"
        raise EngineError(what, where=engine, why=str(import_error), remedy=remedy) from import_error


def admission(runner: Runner, engine: str, then: Callable[[Mapping[str, Array]], None] | None = None) -> Admission:
    """Return the check that refuses calls of ``runner`` for which memory is too small."""
    part, exact = getattr(runner, "largest_part", None), getattr(runner, "call_bytes", None)
    return Admission(runner.program, engine, part, then, exact)


def run(
    program: Program, inputs: Sequence[Any], named: Mapping[str, Any], engine: str = "auto", layout: str = "NCHW"
) -> Any:
    """Run ``program``.

    Args:
        program: checked (converted or loaded).
        inputs: numpy arrays or torch tensors in the order of ``program.inputs``; float32, or uint8 integers where the
            input goes straight into a ``quantize``.
        named: further inputs by name.
        engine: auto, or a name of ENGINES.
        layout: of inputs of four dimensions, see :func:`intact8.engines.binding.bind`.

    Returns:
        The outputs nested as the model nested them; objects as dicts where their class is not known, see
        ``intact8.outputs``. torch tensors when an input was one, else numpy.

    Raises:
        InputError: see :func:`intact8.engines.binding.bind`; or memory has no room for so large a call.
        EngineError: see :func:`get_runner`.
    """
    for name, chosen in (("engine", engine), ("layout", layout)):
        if name in program.inputs and not isinstance(chosen, str):
            what, why = f"the input {name} is given by name", f"an argument of this name chooses the {name}"
            raise InputError(what, where=name, why=why, remedy="give it by position")
    outputs = run_flat(program, bind(program, inputs, named, layout, admitted(program, engine)), engine)
    if any(map(holds_torch, (*inputs, *named.values()))):
        return rebuild(program.structure, [to_torch(y) for y in outputs])
    return rebuild(program.structure, outputs)


def admitted(program: Program, engine: str = "auto") -> Callable[[Mapping[str, Array]], None]:
    """Return what refuses calls of a program for which memory is too small, for :func:`intact8.engines.binding.bind`.

    The engine is prepared when it is first called. What the engine refuses is told later, by :func:`run_flat`: behind
    what is wrong with the inputs.
    """

    def admit(arrays: Mapping[str, Array]) -> None:
        try:
            _, admission = _prepared(program, engine)
        except EngineError:
            return
        admission(arrays)

    return admit


def run_flat(program: Program, arrays: Mapping[str, Array], engine: str = "auto") -> list[Array]:
    """Return the outputs in order, for inputs that were bound with :func:`admitted`. See :func:`run`."""
    runner, _ = _prepared(program, engine)
    outputs = empty_outputs(program, arrays) if is_empty(program, arrays) else runner(arrays)
    return [np.asarray(y) for y in outputs]


__all__ = [
    "ENGINES",
    "Engine",
    "Guard",
    "Runner",
    "admission",
    "admitted",
    "available_engines",
    "engine_status",
    "get_engine",
    "get_runner",
    "guard",
    "guard_of",
    "prepare",
    "present_engines",
    "run",
    "run_flat",
]
