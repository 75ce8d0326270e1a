"""Runs a probe in a child process that may crash, hang or run out of memory, and says what became of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import intact8
from intact8.errors import EngineError

PASSED, REFUSED, DIED, FAILED, LATE = "passed", "refused", "died", "failed", "late"

PROBE = "intact8.runtime.probe"
"""The module that probes an engine."""

AT_SIZE = "running samples of "
"""Beginning of the name of a stage that runs a size; the words of its range follow."""

MEANINGS = {
    "SIGILL": "illegal instruction: the library uses instructions this CPU does not have",
    "SIGSEGV": "segmentation fault: a library reached for memory that is not its own",
    "SIGBUS": "bus error: memory that is not there, or misaligned",
    "SIGABRT": "aborted: a library gave up",
    "SIGFPE": "arithmetic trap",
    "SIGKILL": "killed from outside, most often because memory ran out",
    "SIGSYS": "a system call that is forbidden here",
    "SIGXCPU": "out of CPU time",
    "access violation": "a library reached for memory that is not its own",
    "illegal instruction": "the library uses instructions this CPU does not have",
}

WINDOWS = {0xC0000005: "access violation", 0xC000001D: "illegal instruction", 0xC0000409: "stack buffer overrun"}

LASTING = frozenset({"SIGILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "access violation", "illegal instruction"})
"""Signals that end a probe again on the same machine, which is worth remembering. SIGKILL from outside is not."""

LIBRARY_PATHS = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "PYTHONHOME")
SYSTEM = ("SYSTEMROOT", "WINDIR", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL", "LC_CTYPE")
PASSED_ON = LIBRARY_PATHS + SYSTEM
PREFIXES = ("ONEDNN_", "DNNL_", "ATEN_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ORT_", "OV_", "OPENVINO_")
"""Environment variables a probe needs to run what this process would run. The others may hold secrets."""


NO_CHILD = "no child process can be started to probe the engine"

FAULTHANDLER = (
    "File ",
    "Current thread",
    "Fatal Python error",
    "Extension modules",
    "Thread 0x",
    "<no Python frame>",
)
"""Beginnings of the lines that faulthandler writes."""


@dataclass(frozen=True)
class Outcome:
    """What became of a probe.

    Attributes:
        verdict: "passed", "refused" (an IntactError), "died" (by a signal), "failed" (another error), "late".
        stage: what was running at the end.
        detail: what the engine or Python said about it; for "passed" what was compared.
        signal: name of the signal that ended it.
        seconds: seconds that it took.
        error: what, where, why and remedy of a refusal.
    """

    verdict: str
    stage: str = ""
    detail: str = ""
    signal: str = ""
    seconds: float = 0.0
    error: dict[str, str] = field(default_factory=dict)

    @property
    def lasting(self) -> bool:
        """Whether another probe would end like this again."""
        return self.verdict == PASSED or (self.verdict == DIED and self.signal in LASTING)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> Outcome | None:
        """Return the outcome; None where ``value`` is not one that is remembered."""
        texts = ("verdict", "stage", "detail", "signal")
        if set(value) != {*texts, "seconds", "error"} or not all(isinstance(value[k], str) for k in texts):
            return None
        if not isinstance(value["seconds"], int | float) or value["error"] != {}:
            return None
        outcome = Outcome(**value)
        return outcome if outcome.lasting else None


def run_probe(
    path: Path,
    identity: str,
    engine: str,
    threads: int | None,
    *,
    memory: int,
    seconds: float,
    every: bool = False,
    golden: bool = True,
    sizes: Sequence[Mapping[str, Any]] = (),
) -> Outcome:
    """Load ``path``, prepare it for ``engine``, reproduce its golden vectors and run samples, in a child process.

    Args:
        path: path of the program file.
        identity: that of the program it must hold, see ``intact8.program.file.identity``.
        engine, threads: see ``intact8.runtime.load``.
        memory: bytes of private memory the child may have.
        seconds: seconds after which the child is ended.
        every: compare every exact tensor, not only the outputs.
        golden: whether to reproduce the golden vectors.
        sizes: sizes of samples to run; each has "range" (words for the stage), "batch", "named", "integers".

    Raises:
        EngineError: no child process can be started.
    """
    wanted = {"memory": memory, "seconds": seconds, "every": every, "golden": golden, "sizes": list(sizes)}
    job = {"path": str(path.absolute()), "identity": identity, "engine": engine, "threads": threads, **wanted}
    return run_child(PROBE, job, seconds)[0]


def run_child(module: str, job: Mapping[str, Any], seconds: float | None) -> tuple[Outcome, dict[str, Any]]:
    """Give a job to a child process that runs a module of this package, see :func:`intact8.runtime.child.serve`.

    Args:
        module: its name.
        job: JSON values.
        seconds: seconds after which the child is ended; None: it may take any time.

    Returns:
        What became of it, and what it gave where it passed.

    Raises:
        EngineError: no child process can be started.
    """
    started = time.monotonic()
    child = _start(module)
    try:  # from here on, so that a signal's handler that raises leaves no child behind
        stdin, stdout, stderr = child.stdin, child.stdout, child.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        told, said = _Tail(stdout), _Tail(stderr)
        _send(stdin, job)
        try:
            child.wait(seconds)
            late = False
        except subprocess.TimeoutExpired:
            late = True
    finally:
        if child.poll() is None:
            _kill(child)
        child.wait()
    told.join()
    said.join()
    outcome = _outcome(child.returncode, told.lines(), said.lines(), late, time.monotonic() - started)
    return outcome, next((m["result"] for m in _messages(told.lines()) if "result" in m), {})


def _start(module: str = PROBE) -> subprocess.Popen[bytes]:
    if not sys.executable:
        why = "sys.executable is empty: this Python is embedded in another program"
        remedy = "probe the file with `intact8 check` first, then load it with probe='never'"
        raise EngineError(NO_CHILD, where="probe", why=why, remedy=remedy)
    keep = {k: v for k, v in os.environ.items() if k in PASSED_ON or k.startswith(PREFIXES)}
    keep["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in sys.path)
    keep["OPENBLAS_NUM_THREADS"] = keep.get("OPENBLAS_NUM_THREADS", "1")  # the engine under test has threads of its own
    flags = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *flags, "-B", "-m", module]
    pipe, home = subprocess.PIPE, Path(intact8.__file__).parents[1]
    try:
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=keep, cwd=home, start_new_session=True
        )
    except OSError as error:
        remedy = "allow processes, or load with probe='never' (then a crash of the engine ends this process)"
        raise EngineError(NO_CHILD, where="probe", why=error.strerror or str(error), remedy=remedy) from error


def _send(stdin: IO[bytes], job: Mapping[str, Any]) -> None:
    try:
        with stdin:
            stdin.write(json.dumps(job).encode())
    except BrokenPipeError:  # it died before it listened; its return code says more
        return


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started."""
    if sys.platform == "win32":
        child.kill()
        return
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended meanwhile
        return


class _Tail(threading.Thread):
    """Reads a pipe to its end and keeps the last of it, however much there is."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self.stream, self.parts, self.size = stream, deque[bytes](), 0
        self.start()

    def run(self) -> None:
        """Read until the last writer has closed the pipe."""
        with self.stream:
            while part := self.stream.read1(1 << 16):  # type: ignore[attr-defined]
                self.parts.append(part)
                self.size += len(part)
                while self.size - len(self.parts[0]) > 1 << 18:
                    self.size -= len(self.parts.popleft())

    def lines(self) -> list[str]:
        """Return the lines that were read last."""
        return b"".join(self.parts).decode("utf-8", "replace").splitlines()


def _messages(told: list[str]) -> Iterator[dict[str, Any]]:
    for line in told:
        with contextlib.suppress(ValueError):  # cut off by its death
            yield json.loads(line)


def _outcome(code: int, told: list[str], said: list[str], late: bool, seconds: float) -> Outcome:
    stage = "starting Python"
    for message in _messages(told):
        if "stage" in message:
            stage = message["stage"]
        elif "result" in message and code == 0:
            return Outcome(PASSED, stage, message["result"].get("golden", ""), seconds=seconds)
        elif "refused" in message:
            return Outcome(REFUSED, stage, message["refused"]["what"], seconds=seconds, error=message["refused"])
    if late:
        after = f"{seconds:.0f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
        return Outcome(LATE, stage, f"not done after {after}", seconds=seconds)
    name = _signal_name(code)
    if name:
        return Outcome(DIED, stage, _crash(said), name, seconds)
    last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
    return Outcome(FAILED, stage, f"{last[:500]} (exit status {code})", seconds=seconds)


def _signal_name(code: int) -> str:
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return WINDOWS.get(code & 0xFFFFFFFF, "")


def _crash(said: list[str]) -> str:
    """Return the innermost Python frame that faulthandler saw, and what the library said before."""
    lines = [line.strip() for line in said if line.strip()]
    frames = [line for line in lines if line.startswith("File ")]
    words = [line for line in lines if not line.startswith(FAULTHANDLER)]
    parts = [f"at {frames[0]}"] if frames else []
    parts += [f"last words: {words[-1][:300]}"] if words else []
    return ", ".join(parts)


def failure(outcome: Outcome, engine: str, others: tuple[str, ...], remembered: bool) -> EngineError:
    """Return the error of a probe that did not pass: what ended it, what was running, which engine to use instead."""
    instead = f"use engine='{others[0]}'" if others else "run on another machine"
    if remembered:
        instead += "; this was found by an earlier load on this machine, probe='always' tries again"
    if outcome.verdict == REFUSED:
        e = outcome.error
        return EngineError(e["what"], where=e["where"], why=e["why"], remedy=e["remedy"] or instead)
    if outcome.verdict == DIED:
        what = f"{engine} dies of {outcome.signal} on this machine ({MEANINGS.get(outcome.signal, 'a signal')})"
    elif outcome.verdict == LATE:
        what = f"{engine} does not come to an end"
        instead += ", or give it longer: time_limit="
    else:
        what = f"{engine} fails on this machine"
    what, where = f"{what}; only a child process was affected", f"{engine}, {outcome.stage}"
    return EngineError(what, where=where, why=outcome.detail, remedy=instead)
