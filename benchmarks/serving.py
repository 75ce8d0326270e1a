"""The serving example under load (wrk), through a reload of its file and a SIGTERM: requests per second and failures.

python benchmarks/serving.py [FILE] [--seconds 300] [--connections 32] [--json OUT]

The listening socket belongs to this script and is handed to the servers, as systemd would. After a third of the time
the file is replaced and SIGHUP sent; after two thirds a second server is started on the same socket and the first one
gets SIGTERM. A client beside wrk compares every answer it gets with Program.run of the two files, bit for bit.
Without FILE the demo's network is trained first. Exit status 1 when a request failed or an answer differed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import numpy as np

from intact8.program.program import Program
from intact8.program.samples import random_samples

SERVER = Path(__file__).parent.parent / "examples" / "serving" / "server.py"

LUA = """
local file = io.open(os.getenv("BODY"), "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Content-Type"] = "application/x-npy"
"""


@dataclass
class Outcome:
    """What was seen."""

    seconds: float
    connections: int
    requests: int = 0
    per_second: float = 0.0
    latency_p50: str = ""
    latency_p99: str = ""
    failed: int = 0
    compared: int = 0
    differ: int = 0
    not_answered: int = 0
    reloaded: bool = False
    handed_over: bool = False

    @property
    def ok(self) -> bool:
        return not (self.failed or self.differ or self.not_answered) and self.reloaded and self.handed_over


def start(listener: socket.socket, file: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SERVER), str(file), "--fd", str(listener.fileno()), "--threads", "1"]
    with log.open("ab") as stream:
        return subprocess.Popen(command, pass_fds=[listener.fileno()], stdout=stream, stderr=stream)


def wait_until_ready(log: Path, servers: int, limit: float = 120.0) -> None:
    """Every server logs one line when its program is loaded; a moment later it accepts."""
    end = time.monotonic() + limit
    while log.read_text().count("golden vectors") < servers:
        if time.monotonic() > end:
            sys.exit(f"the server does not come up:\n{log.read_text()}")
        time.sleep(0.05)
    time.sleep(0.5)


class Comparer(threading.Thread):
    """Sends single samples and compares answers with what either program gives."""

    def __init__(self, url: str, programs: list[Program], outcome: Outcome) -> None:
        super().__init__(daemon=True)
        self.url, self.outcome, self.stop = url, outcome, threading.Event()
        self.inputs = next(iter(random_samples(programs[0], 16, seed=3).values()))
        self.answers = [np.asarray(p.run(self.inputs, engine="reference")) for p in programs]
        self.seen = [0] * len(programs)

    def run(self) -> None:
        with httpx.Client(timeout=30) as client:
            i = 0
            while not self.stop.is_set():
                i = (i + 1) % len(self.inputs)
                body = io.BytesIO()
                np.save(body, self.inputs[i : i + 1])
                try:
                    reply = client.post(
                        self.url, content=body.getvalue(), headers={"content-type": "application/x-npy"}
                    )
                    reply.raise_for_status()
                except httpx.HTTPError:
                    self.outcome.not_answered += 1
                    continue
                found = np.load(io.BytesIO(reply.content))
                same = [np.array_equal(found[0], answer[i]) for answer in self.answers]
                self.outcome.compared += 1
                self.outcome.differ += not any(same)
                for k, equal in enumerate(same):
                    self.seen[k] += equal
                time.sleep(0.01)


def altered(program: Program, folder: Path) -> Path:
    """A program that takes the same inputs and gives other integers: the weights of the last product change sign."""
    from dataclasses import replace

    from intact8.golden import with_golden
    from intact8.program.certify import certify

    ops = list(program.ops)
    last = max(i for i, op in enumerate(ops) if op.kind in ("linear", "conv"))
    op = ops[last]
    ops[last] = replace(op, arrays={**op.arrays, "weight": -op.arrays["weight"]})
    return with_golden(certify(replace(program, ops=tuple(ops)))).save(folder / "altered.safetensors")


def run(source: Path, seconds: float, connections: int, folder: Path) -> Outcome:
    """One load test."""
    outcome = Outcome(seconds, connections)
    file, log = folder / "served.safetensors", folder / "server.log"
    shutil.copy(source, file)
    program = Program.load(file)
    other = altered(program, folder)
    log.touch()
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        listener.set_inheritable(True)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/predict"
        first = start(listener, file, log)
        second = None
        try:
            wait_until_ready(log, 1)
            body = folder / "body.npy"
            np.save(body, next(iter(random_samples(program, 1).values())))
            (folder / "post.lua").write_text(LUA)
            comparer = Comparer(url, [program, Program.load(other)], outcome)
            comparer.start()
            wrk = subprocess.Popen(
                ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "--latency", "--timeout", "30s",
                 "-s", str(folder / "post.lua"), url],
                stdout=subprocess.PIPE, text=True, env={**os.environ, "BODY": str(body)},
            )  # fmt: skip
            time.sleep(seconds / 3)
            os.replace(other, file)
            first.send_signal(signal.SIGHUP)
            time.sleep(seconds / 3)
            outcome.reloaded = comparer.seen[0] > 0 and comparer.seen[1] > 0
            second = start(listener, file, log)
            wait_until_ready(log, 2)
            first.send_signal(signal.SIGTERM)
            outcome.handed_over = first.wait(timeout=60) == 0
            text = wrk.communicate(timeout=seconds + 60)[0]
            comparer.stop.set()
            comparer.join()
        finally:
            for server in (first, second):
                if server is not None and server.poll() is None:
                    server.terminate()
                    server.wait(timeout=60)
    read_wrk(text, outcome)
    return outcome


def read_wrk(text: str, outcome: Outcome) -> None:
    """The figures of wrk's report."""
    print(text)
    outcome.requests = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
    outcome.per_second = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])  # type: ignore[index]
    outcome.latency_p50, outcome.latency_p99 = (re.search(rf"{p}%\s+(\S+)", text)[1] for p in (50, 99))  # type: ignore[index]
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    sockets = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    outcome.failed = int(refused[1]) if refused else 0
    outcome.failed += sum(map(int, sockets.groups())) if sockets else 0


def main() -> None:
    """Run, print, exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed (Debian: apt-get install wrk)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.file is None:
            from intact8.demo.run import run as demo

            args.file = folder / "digits.safetensors"
            demo(args.file, seconds_per_timing=0.1)
        outcome = run(args.file, args.seconds, args.connections, folder)
        print((folder / "server.log").read_text())
    print(json.dumps(asdict(outcome), indent=2))
    if args.json:
        args.json.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    sys.exit(not outcome.ok)


if __name__ == "__main__":
    main()
