"""A program behind HTTP: batching, health, metrics, a new file without a dropped request, an orderly end. No torch.

    python server.py model.safetensors --port 8000

| request         | answer                                                                                         |
|-----------------|------------------------------------------------------------------------------------------------|
| POST /predict   | .npy (one input) or .npz (by name): outputs alike; JSON {"inputs": {name: [...]}}: JSON        |
| GET  /model     | what runs: digest, engine, inputs, outputs, how it was checked                                 |
| GET  /healthz   | 200 while batches run; 503 when the worker has ended, or a batch does not                      |
| GET  /readyz    | 200 while it takes requests; 503 then, too, and once it is told to end                         |
| GET  /metrics   | Prometheus                                                                                     |
| SIGHUP          | load the file again. If that fails, the old program stays, and the log says why                |
| SIGTERM, SIGINT | take no new connections, answer what was asked, close the others one by one, end               |

Bounds: a body has no more bytes than the program's inputs for ``--batch`` samples need, an archive is not decompressed
beyond them, all bodies together take ``--memory``, there are ``--connections`` of them, and whoever is slow is cut off
(``connections.py``). Every request is checked by itself before it shares a batch, and fails by itself.

Every program is loaded by ``intact8.runtime.load``: preflight, probe in a child process, golden vectors. So a file that
would crash the engine is refused while the old one serves on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import typer
import uvicorn
from batching import Batcher, Busy, Dead
from bodies import JSON, NPZ, Limits, TooLarge, decode, encoded, memory
from connections import SILENT_SECONDS, Punctual
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import intact8.runtime
from intact8.errors import InputError, IntactError
from intact8.program.samples import random_samples
from intact8.runtime.load import LoadedProgram
from intact8.text import printable, printable_lines

log = logging.getLogger("serving")

DRAIN_SECONDS = 30.0
TOLD = ("digest", "engine", "threads", "inputs", "outputs", "probe", "golden", "signed", "packages")
"""What /model says: nothing about the machine."""
BATCH_SECONDS = 60.0
"""A batch that takes longer is taken for one that never ends."""
AHEAD = 64
"""Batches up to so many samples are probed at start; larger ones when they come."""
ELSEWHERE = 256 << 10
"""Bodies of more bytes are decoded outside the event loop, which answers others meanwhile."""


@dataclass(frozen=True)
class Settings:
    """What the command line says; see ``python server.py --help``."""

    file: Path
    engine: str = "auto"
    threads: int | None = None
    most: int = 32
    wait: float = 0.0
    queue: int = 1024
    public_key: Path | None = None
    expect: str | None = None
    memory: int = 512 << 20
    connections: int = 512


class Inert(logging.Formatter):
    """Paths, names from files and words of libraries write no line of their own into the log, and nothing into a
    terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """One line."""
        return printable(super().formatMessage(record))

    def formatException(self, info: Any) -> str:
        """The traceback, every line of it indented."""
        return textwrap.indent(printable_lines(super().formatException(info)), "    ")


class Metrics:
    """What Prometheus reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter("intact8_requests", "Requests to /predict", ["status"], registry=r)
        self.seconds = Histogram("intact8_request_seconds", "Time from the headers to the answer", registry=r,
                                 buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5))  # fmt: skip
        self.batch = Histogram("intact8_batch_samples", "Samples per batch", buckets=2.0 ** np.arange(11), registry=r)
        self.reloads = Counter("intact8_reloads", "Reloads of the file", ["result"], registry=r)
        self.waiting = Gauge("intact8_queue_requests", "Requests waiting", registry=r)
        self.memory = Gauge("intact8_body_bytes", "Memory of bodies that are read or wait", registry=r)
        self.model = Gauge("intact8_model", "The program that runs", ["digest", "engine"], registry=r)


@dataclass
class Budget:
    """Memory that all requests together may take."""

    limit: int
    taken: int = 0

    @contextlib.contextmanager
    def share(self) -> Iterator[Share]:
        """One request's part, given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.taken -= share.taken


@dataclass
class Share:
    """What one request has of a budget."""

    budget: Budget
    taken: int = field(default=0)

    def take(self, size: int) -> None:
        """``size`` bytes more.

        Raises:
            Busy: there are not so many.
        """
        if self.budget.taken + size > self.budget.limit:
            raise Busy
        self.budget.taken += size
        self.taken += size


class Service:
    """The program that runs, its queue, and its exchange."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics, self.budget = settings, Metrics(), Budget(settings.memory)
        self.draining = False
        self.decoding = ThreadPoolExecutor(2, "decode")
        self._reloading = asyncio.Lock()
        self.loaded = self._load()
        self.batcher = Batcher(
            self._run, most=1, wait=settings.wait, queue=settings.queue, observe=self.metrics.batch.observe
        )
        self._take_over(self.loaded)
        self.metrics.waiting.set_function(lambda: len(self.batcher))
        self.metrics.memory.set_function(lambda: self.budget.taken)

    def _load(self) -> LoadedProgram:
        s = self.settings
        sizes = {
            2**i for i in range(AHEAD.bit_length()) if 2**i < 2 * s.most
        }  # ranges, so that no request waits for one
        return intact8.runtime.load(
            s.file, s.engine, s.threads, batch=(min(8, s.most), *sorted(sizes)), integers=True,
            public_key=s.public_key, expect=s.expect,
        )  # fmt: skip

    def _take_over(self, fresh: LoadedProgram) -> None:
        dynamic = batchable(fresh)
        self.loaded, self.dynamic = fresh, dynamic
        self.limits = Limits.of(fresh.program, self.settings.most)
        self.batcher.most = self.settings.most if dynamic else 1
        self.metrics.model.clear()
        self.metrics.model.labels(fresh.info.digest[:12], fresh.info.engine).set(1)

    @property
    def alive(self) -> bool:
        """Whether batches run."""
        return self.batcher.healthy(BATCH_SECONDS)

    def _run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return _flatten(self.loaded(**inputs))

    async def reload(self) -> None:
        """Read the file again. Requests go on meanwhile; on success later batches run on the new program."""
        async with self._reloading:
            try:
                fresh = await asyncio.get_running_loop().run_in_executor(None, self._load)
                if fresh.info.inputs != self.loaded.info.inputs:
                    raise InputError(
                        "the new program takes other inputs", where=str(self.settings.file),
                        why=f"{fresh.info.inputs} instead of {self.loaded.info.inputs}",
                        remedy="start another server for it",
                    )  # fmt: skip
            except IntactError as error:
                self.metrics.reloads.labels("refused").inc()
                log.error("not reloaded, %s serves on: %s", self.loaded.info.digest[:12], error)
                return
            self._take_over(fresh)
            self.metrics.reloads.labels("done").inc()
            log.info("reloaded: %s on %s", fresh.info.digest[:12], fresh.info.engine)


def batchable(loaded: LoadedProgram) -> bool:
    """Whether requests may share a batch: every input and output has one row per sample, and samples have nothing to do
    with one another. Where they do, every request runs by itself."""
    program = loaded.program
    shapes = [program.tensors[name].shape for name in (*program.inputs, *program.outputs)]
    if any(shape[:1] != (None,) or None in shape[1:] for shape in shapes):
        return False
    samples = random_samples(program, 3)
    together = _flatten(loaded(**samples))
    for i in range(3):
        alone = _flatten(loaded(**{name: x[i : i + 1] for name, x in samples.items()}))
        if any(
            len(y) != 3 or not np.array_equal(y[i : i + 1], z, equal_nan=True)
            for y, z in zip(together, alone, strict=True)
        ):
            log.warning("results depend on the batch: every request runs by itself")
            return False
    return True


def _flatten(found: Any) -> list[np.ndarray]:
    """The arrays of a nested output; numbers and texts in it are the same for every request."""
    if isinstance(found, dict):
        return [y for value in found.values() for y in _flatten(value)]
    if isinstance(found, (list, tuple)):
        return [y for value in found for y in _flatten(value)]
    return [found] if isinstance(found, np.ndarray) else []


def create_app(settings: Settings) -> Starlette:
    """The ASGI application. Loads the program at once: what cannot be served is refused before anything listens."""
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        service.batcher.stop()
        service.decoding.shutdown(wait=False)

    async def predict(request: Request) -> Response:
        begin = time.perf_counter()
        try:
            kind = request.headers.get("content-type", "").split(";")[0].strip()
            with service.budget.share() as share:
                inputs = await read(request, kind, service, share)
                response = reply(await service.batcher.submit(inputs), kind)
        except Busy:
            response = problem(503, "too many requests are waiting", {"retry-after": "1"})
        except Dead:
            response = problem(503, "no batch runs any more")
        except TooLarge as error:
            response = problem(413, str(error))
        except InputError as error:
            response = problem(400, str(error))
        except ClientDisconnect:
            response = problem(400, "the client has gone")
        except Exception:
            log.exception("a request failed")
            response = problem(500, "the program failed on these inputs")
        service.metrics.requests.labels(str(response.status_code)).inc()
        service.metrics.seconds.observe(time.perf_counter() - begin)
        return response

    async def model(_: Request) -> Response:
        info = service.loaded.info.to_json()
        info["probe"] = info["probe"].partition(":")[0]  # behind it stands why it cannot be remembered, with a path
        return JSONResponse({key: info[key] for key in TOLD})

    async def healthz(_: Request) -> Response:
        return JSONResponse({"alive": service.alive}, 200 if service.alive else 503)

    async def readyz(_: Request) -> Response:
        ready = service.alive and not service.draining
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/predict", predict, methods=["POST"]), Route("/model", model), Route("/healthz", healthz),
        Route("/readyz", readyz), Route("/metrics", metrics),
    ]  # fmt: skip
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.service = service
    return app


async def read(request: Request, kind: str, service: Service, share: Share) -> dict[str, np.ndarray]:
    """The inputs in a request's body, which takes no more memory than there is.

    Raises:
        InputError, TooLarge, Busy: it is wrong, too long, or one too many.
    """
    limits = service.limits
    largest = limits.body(kind)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > largest:
        raise TooLarge(f"a body may have {largest} bytes")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > largest:
            raise TooLarge(f"a body may have {largest} bytes")
        share.take(len(part))
        parts.append(part)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    share.take(memory(body, kind, limits))
    if kind in (JSON, NPZ) or size > ELSEWHERE:
        elsewhere = service.decoding
        return await asyncio.get_running_loop().run_in_executor(elsewhere, decode, body, kind, limits, service.dynamic)
    return decode(body, kind, limits, service.dynamic)


def reply(outputs: list[np.ndarray], kind: str) -> Response:
    """The answer to a request of that kind."""
    content, kind = encoded(outputs, kind)
    return Response(content, media_type=kind)


def problem(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """What went wrong, as JSON."""
    return JSONResponse({"error": text}, status, headers)


class Draining:
    """ASGI middleware: once the server is told to end, every answer closes its connection."""

    def __init__(self, app: Starlette) -> None:
        self.app, self.service = app, app.state.service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start" and self.service.draining:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self.app(scope, receive, answer)


class Server(uvicorn.Server):
    """uvicorn, which at SIGTERM closes idle connections at once, though a request may be on its way on one of them.

    Here a connection ends after its next answer, or when ``DRAIN_SECONDS`` have passed. With ``--fd`` the listening
    socket belongs to whoever started this process (systemd, say), so the next server accepts what comes meanwhile.
    """

    service: Service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """At the first signal drain; at the second end at once."""
        if self.service.draining:
            super().handle_exit(sig, frame)
            return
        self.service.draining = True
        asyncio.get_running_loop().call_soon_threadsafe(lambda: asyncio.ensure_future(self._drain()))

    async def _drain(self) -> None:
        log.info("ending: %d connections open", len(self.server_state.connections))
        for listener in self.servers:
            listener.close()
        end = time.monotonic() + DRAIN_SECONDS
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.05)
        self.should_exit = True


async def serve(settings: Settings, host: str, port: int, fd: int | None) -> None:
    """Load, listen, and go on until a signal."""
    app = create_app(settings)
    service: Service = app.state.service
    info = service.loaded.info
    log.info("%s: %s on %s, golden vectors: %s", info.path, info.digest[:12], info.engine, info.golden)
    config = uvicorn.Config(
        Draining(app), host=host, port=port, log_level="warning", access_log=False, lifespan="on", backlog=2048,
        http=Punctual, ws="none", limit_concurrency=settings.connections, timeout_keep_alive=SILENT_SECONDS,
    )  # fmt: skip
    server = Server(config)
    server.service = service
    loop = asyncio.get_running_loop()
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, lambda: asyncio.ensure_future(service.reload()))
    # uvicorn's own fd= takes every socket for a Unix one; TCP_NODELAY stays unset then, and answers wait 40 ms.
    await server.serve(sockets=None if fd is None else [socket.socket(fileno=fd)])
    log.info("ended")


def main(
    file: Annotated[Path, typer.Argument(help="A program written by intact8.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    fd: Annotated[int | None, typer.Option(help="File descriptor of a listening socket, instead.")] = None,
    engine: Annotated[str, typer.Option(help="auto, or the name of an engine.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine.")] = None,
    most: Annotated[int, typer.Option("--batch", min=1, help="Samples per batch at most.")] = 32,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds a first request waits for company.")] = 0.0,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are answered 503.")] = 1024,
    public_key: Annotated[Path | None, typer.Option(help="Demand a signature of this Ed25519 key (PEM).")] = None,
    memory: Annotated[int, typer.Option(min=1, help="MiB that bodies being read or waiting may take together.")] = 512,
    connections: Annotated[int, typer.Option(min=1, help="Connections; more are answered 503.")] = 512,
    expect: Annotated[str | None, typer.Option(help="NAME or NAME@N: what must be signed.")] = None,
) -> None:
    """Serve a program over HTTP."""
    logging.basicConfig(level=logging.INFO)
    for handler in logging.root.handlers:
        handler.setFormatter(Inert("%(asctime)s %(name)s %(levelname)s %(message)s"))
    settings = Settings(file, engine, threads, most, wait, queue, public_key, expect, memory << 20, connections)
    try:
        asyncio.run(serve(settings, host, port, fd))
    except IntactError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
