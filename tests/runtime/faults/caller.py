"""A process that loads programs for another one and tells what came of it, so that its death is seen and not shared.

Run as a module it reads jobs, one line of JSON each, and answers each with a line. A job is the arguments of
``intact8.runtime.load``, or another task of ``TASKS``; ``environment`` holds for the job alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PATH = (str(ROOT), str(ROOT / "src"))
SETS = ("features",)


class Died(Exception):
    """The process that loads is no more."""


class Caller:
    """The process, from outside.

    Args:
        environment: added to this process's; None removes a variable.
        site: folders that come first on its path.
        command: what runs Python there.
        executable: what that Python shall believe it is run by.
    """

    def __init__(
        self, environment: Mapping[str, str | None] | None = None, site: Sequence[Path] = (),
        command: Sequence[str] = (sys.executable,), executable: str = "",
    ) -> None:  # fmt: skip
        merged: dict[str, str | None] = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        merged["PYTHONPATH"] = os.pathsep.join([*map(str, site), *PATH])
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, "-m", "tests.runtime.faults.caller", executable], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._said, text=True, cwd=ROOT,
            env={k: v for k, v in merged.items() if v is not None},
        )  # fmt: skip

    def __call__(self, task: str = "load", **job: Any) -> dict[str, Any]:
        """The answer to one job.

        Raises:
            Died: in place of an answer.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died before; the missing answer says so
            print(json.dumps({"task": task, **job}, default=_plain), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            status = self._process.wait()
            self._said.seek(0)
            words = self._said.read().decode("utf-8", "replace").strip().splitlines()
            raise Died(f"exit status {status}: {words[-1] if words else 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._said.close()


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else str(value)


def load(facts: Mapping[str, Any] | None = None, good: bool = False, **given: Any) -> dict[str, Any]:
    """Load, on this machine with some facts changed, or on one that is good for everything."""
    from tests.runtime.faults.machines import GOOD

    from intact8.errors import IntactError
    from intact8.runtime import load as load_program

    changes = {k: frozenset(v) if k in SETS else v for k, v in (facts or {}).items()}
    if "wheels" in changes:
        changes["wheels"] = {k: tuple(v) for k, v in changes["wheels"].items()}
    try:
        runner = load_program(facts=replace(GOOD if good else here(), **changes), **given)
    except IntactError as error:
        return {"error": type(error).__name__, "text": str(error), "remedy": error.remedy}
    return {"engine": runner.info.engine, "probe": runner.info.probe, "golden": runner.info.golden}


@cache
def here() -> Any:
    """The facts of this machine: the same for all jobs."""
    from intact8.runtime import Facts

    return Facts.here()


def flips(path: str, start: int, stop: int, step: int) -> dict[str, Any]:
    """Flip bits ``start``, ``start + step`` … of the file, one at a time, and load what comes of it."""
    from tests.runtime.sound import accepted_is_sound

    from intact8.errors import IntactError
    from intact8.program.file import load as read

    whole, damaged = Path(path).read_bytes(), Path(path).with_name("flipped")
    refused = accepted = vague = 0
    for position in range(start, stop, step):
        broken = bytearray(whole)
        broken[position // 8] ^= 1 << position % 8
        damaged.write_bytes(broken)
        try:
            program = read(damaged)
        except IntactError as error:
            refused += 1
            vague += not (error.what and error.remedy and "flipped" in error.where)
        else:
            accepted += 1
            accepted_is_sound(program)
    damaged.unlink(missing_ok=True)
    return {"refused": refused, "accepted": accepted, "vague": vague}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"load": load, "flips": flips}


def main() -> None:
    sys.executable = sys.argv[1] or sys.executable
    with open(os.dup(1), "w", encoding="utf-8") as told:
        os.dup2(2, 1)  # libraries print on stdout as they please
        for line in sys.stdin:
            job = json.loads(line)
            before = dict(os.environ)
            os.environ.update(job.pop("environment", {}))
            answer = TASKS[job.pop("task")](**job)
            os.environ.clear()
            os.environ.update(before)
            print(json.dumps(answer), file=told, flush=True)


if __name__ == "__main__":
    main()
