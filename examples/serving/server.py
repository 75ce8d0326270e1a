"""A program behind HTTP: batching, health, metrics, a new file without a dropped request, an orderly end. No torch.

    python server.py model.safetensors --port 8000

| request         | answer                                                                                         |
|-----------------|------------------------------------------------------------------------------------------------|
| POST /predict   | .npy (one input) or .npz (by name): outputs alike; JSON {"inputs": {name: [...]}}: JSON        |
| GET  /model     | what runs: file, digest, engine, inputs, outputs, how it was checked                           |
| GET  /healthz   | 200 while the process works                                                                    |
| GET  /readyz    | 200 while it takes requests; 503 once it is told to end                                        |
| GET  /metrics   | Prometheus                                                                                     |
| SIGHUP          | load the file again. If that fails, the old program stays, and the log says why                |
| SIGTERM, SIGINT | take no new connections, answer what was asked, close the others one by one, end               |

Every program is loaded by ``intact.runtime.load``: preflight, probe in a child process, golden vectors. So a file that
would crash the engine is refused while the old one serves on.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import signal
import socket
import time
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import typer
import uvicorn
from batching import Batcher, Busy
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import intact.runtime
from intact.errors import InputError, IntactError
from intact.runtime.load import LoadedProgram

log = logging.getLogger("serving")

LARGEST_BODY = 64 << 20
DRAIN_SECONDS = 30.0
NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"


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


class Metrics:
    """What Prometheus reads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter("intact_requests", "Requests to /predict", ["status"], registry=r)
        self.seconds = Histogram("intact_request_seconds", "Time from body read to answer", registry=r,
                                 buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5))  # fmt: skip
        self.batch = Histogram("intact_batch_samples", "Samples per batch", buckets=2.0 ** np.arange(11), registry=r)
        self.reloads = Counter("intact_reloads", "Reloads of the file", ["result"], registry=r)
        self.waiting = Gauge("intact_queue_requests", "Requests waiting", registry=r)
        self.model = Gauge("intact_model", "The program that runs", ["digest", "engine"], registry=r)


class Service:
    """The program that runs, its queue, and its exchange."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.draining = False
        self._reloading = asyncio.Lock()
        self.loaded = self._load()
        # A program whose batch size is fixed takes one request at a time.
        self.dynamic = all(shape[:1] == (None,) for _, shape in self.loaded.info.inputs.values())
        self.batcher = Batcher(
            self._run, most=settings.most if self.dynamic else 1, wait=settings.wait, queue=settings.queue,
            observe=self.metrics.batch.observe,
        )  # fmt: skip
        self.metrics.waiting.set_function(lambda: len(self.batcher))
        self._publish()

    def _load(self) -> LoadedProgram:
        s = self.settings
        return intact.runtime.load(
            s.file, s.engine, s.threads, batch=min(8, s.most), public_key=s.public_key, expect=s.expect
        )

    def _publish(self) -> None:
        self.metrics.model.clear()
        self.metrics.model.labels(self.loaded.info.digest[:12], self.loaded.info.engine).set(1)

    def _run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        found = self.loaded(**inputs)
        return [np.asarray(y) for y in _flatten(found)]

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
            self.loaded = fresh
            self._publish()
            self.metrics.reloads.labels("done").inc()
            log.info("reloaded: %s on %s", fresh.info.digest[:12], fresh.info.engine)


def _flatten(found: Any) -> list[Any]:
    if isinstance(found, dict):
        return [y for value in found.values() for y in _flatten(value)]
    if isinstance(found, (list, tuple)):
        return [y for value in found for y in _flatten(value)]
    return [found]


def create_app(settings: Settings) -> Starlette:
    """The ASGI application. Loads the program at once: what cannot be served is refused before anything listens."""
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker = asyncio.create_task(service.batcher.work())
        yield
        worker.cancel()

    async def predict(request: Request) -> Response:
        begin = time.perf_counter()
        try:
            kind = request.headers.get("content-type", "").split(";")[0].strip()
            inputs = decode(await _body(request), kind, service)
            response = encode(await service.batcher.submit(inputs), kind)
        except Busy:
            response = _problem(503, "too many requests are waiting", {"retry-after": "1"})
        except (InputError, ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
            response = _problem(400, str(error))
        except OverflowError as error:
            response = _problem(413, str(error))
        except IntactError as error:
            log.exception("a batch failed")
            response = _problem(500, str(error))
        service.metrics.requests.labels(str(response.status_code)).inc()
        service.metrics.seconds.observe(time.perf_counter() - begin)
        return response

    async def model(_: Request) -> Response:
        return JSONResponse(service.loaded.info.to_json())

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        return JSONResponse({"ready": not service.draining}, 503 if service.draining else 200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/predict", predict, methods=["POST"]), Route("/model", model), Route("/healthz", healthz),
        Route("/readyz", readyz), Route("/metrics", metrics),
    ]  # fmt: skip
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.service = service
    return app


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST_BODY:
            raise OverflowError(f"a body may have {LARGEST_BODY} bytes")
        parts.append(part)
    return b"".join(parts)


def decode(body: bytes, kind: str, service: Service) -> dict[str, np.ndarray]:
    """Inputs by name, checked against the program before they share a batch with other requests'.

    Raises:
        InputError, ValueError, …: whatever is wrong with the body.
    """
    expected = service.loaded.info.inputs
    if kind == NPY:
        given = {next(iter(expected)): np.load(io.BytesIO(body), allow_pickle=False)}
    elif kind == NPZ:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            given = {name: archive[name] for name in archive.files}
    elif kind == JSON:
        values = json.loads(body)["inputs"]
        given = {n: np.asarray(v, expected[n][0] if n in expected else None) for n, v in values.items()}
    else:
        raise InputError(f"content-type {kind!r} is not known", remedy=f"send {NPY}, {NPZ} or {JSON}")
    if set(given) != set(expected):
        raise InputError(f"got inputs {sorted(given)}", remedy=f"send {', '.join(expected)}")
    for name, array in given.items():
        dtype, shape = expected[name]
        fits = array.ndim == len(shape) and all(d in (None, n) for d, n in zip(shape, array.shape, strict=True))
        if str(array.dtype) != dtype or not fits:
            raise InputError(f"{name}: got {array.dtype}{list(array.shape)}", remedy=f"send {dtype}{list(shape)}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{name}: holds NaN or infinity", remedy="repair the data")
    sizes = {len(array) for array in given.values()}
    if service.dynamic and (len(sizes) > 1 or not 1 <= max(sizes) <= service.settings.most):
        raise InputError(f"got {sorted(sizes)} samples", remedy=f"send 1 to {service.settings.most}, of each input")
    return given


def encode(outputs: list[np.ndarray], kind: str) -> Response:
    """Outputs in the form the inputs came in; several outputs of a .npy request come as .npz."""
    if kind == JSON:
        return JSONResponse({"outputs": [y.tolist() for y in outputs]})
    stream = io.BytesIO()
    if kind == NPY and len(outputs) == 1:
        np.save(stream, outputs[0], allow_pickle=False)
    else:
        kind = NPZ
        np.savez(stream, *outputs)
    return Response(stream.getvalue(), media_type=kind)


def _problem(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
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
        Draining(app), host=host, port=port, log_level="warning", access_log=False, lifespan="on", backlog=2048
    )
    server = Server(config)
    server.service = service
    loop = asyncio.get_running_loop()
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, lambda: asyncio.ensure_future(service.reload()))
    # uvicorn's own fd= takes every socket for a Unix one; TCP_NODELAY stays unset then, and answers wait 40 ms.
    await server.serve(sockets=None if fd is None else [socket.socket(fileno=fd)])
    log.info("ended")


def main(
    file: Annotated[Path, typer.Argument(help="A program written by intact.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    fd: Annotated[int | None, typer.Option(help="File descriptor of a listening socket, instead.")] = None,
    engine: Annotated[str, typer.Option(help="auto, or the name of an engine.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine.")] = None,
    most: Annotated[int, typer.Option("--batch", min=1, help="Samples per batch at most.")] = 32,
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds a first request waits for company.")] = 0.0,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are answered 503.")] = 1024,
    public_key: Annotated[Path | None, typer.Option(help="Demand a signature of this Ed25519 key (PEM).")] = None,
    expect: Annotated[str | None, typer.Option(help="NAME or NAME@N: what must be signed.")] = None,
) -> None:
    """Serve a program over HTTP."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = Settings(file, engine, threads, most, wait, queue, public_key, expect)
    try:
        asyncio.run(serve(settings, host, port, fd))
    except IntactError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
