"""What a child process does that works for this one: it takes a job on stdin, tells stages and the result on stdout.

If a library crashes, this process is what dies. An error that is no ``IntactError`` ends it with a traceback on stderr,
of which the parent shows the last line. The parent's side is :func:`intact8.runtime.probe_process.run_child`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

Work = Callable[[dict[str, Any], Callable[[str], None]], dict[str, Any]]
"""What is done: from the job, and a callable that is told each stage, to the result; all are JSON values."""


def serve(work: Work) -> None:
    """Do the job that stands on stdin, and tell what came of it."""
    # Libraries print on stdout as they please; what the parent reads is a descriptor of our own.
    with open(os.dup(1), "w", encoding="utf-8") as told:
        os.dup2(2, 1)
        faulthandler.enable()
        job = json.load(sys.stdin)
        from intact8.errors import IntactError

        try:
            _tell(told, result=work(job, lambda stage: _tell(told, stage=stage)))
        except IntactError as error:
            refused = {"what": error.what, "where": error.where, "why": error.why, "remedy": error.remedy}
            _tell(told, refused=refused)


def confine(memory: int, seconds: float) -> None:
    """Give up what a probe does not need: memory, time, core dumps, writing files, privileges, outliving its parent.

    Args:
        memory: bytes of private memory.
        seconds: the parent ends it after this; a limit on CPU time is the second line.
    """
    if sys.platform == "win32":
        return
    import resource

    cpu = int(seconds * (os.cpu_count() or 1)) + 10
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: memory, resource.RLIMIT_CPU: cpu, resource.RLIMIT_FSIZE: 0}
    for which, wanted in limits.items():
        hard = resource.getrlimit(which)[1]
        low = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(which, (low, low))
    if sys.platform == "linux":
        import ctypes
        import signal

        libc = ctypes.CDLL(None)
        set_death_signal, set_no_new_privileges = 1, 38
        libc.prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
        libc.prctl(set_no_new_privileges, 1, 0, 0, 0)


def _tell(told: TextIO, **message: Any) -> None:
    told.write(json.dumps(message) + "\n")
    told.flush()
