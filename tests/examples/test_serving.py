"""The serving example: answers bit for bit; bad requests harm nobody; a reload and an end drop nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intact8
from intact8.program.program import Program
from intact8.program.samples import random_samples

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
httpx = pytest.importorskip("httpx")

FOLDER = Path(__file__).parents[2] / "examples" / "serving"
NPY = {"content-type": "application/x-npy"}


def in_a_loop(scene: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end in a thread of its own: this one may hold the loop of a browser that other tests use."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, scene).result()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two programs that take the same inputs, and one that takes others."""
    folder, made = tmp_path_factory.mktemp("served"), []
    for seed, width in ((0, 8), (1, 8), (2, 9)):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        made.append(intact8.quantize(net, torch.randn(64, width).split(16)).save(folder / f"{seed}.safetensors"))
    return made


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The example's modules, as ``python server.py`` would find them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("INTACT8_CACHE_DIR", str(tmp_path / "cache"))
    import server

    return server


@pytest.fixture
def client(modules: Any, files: list[Path]) -> Iterator[Any]:
    from starlette.testclient import TestClient

    app = modules.create_app(modules.Settings(files[0], engine="reference", most=16))
    with TestClient(app) as client:
        yield client


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def sample(file: Path, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and the outputs expected for them."""
    program = Program.load(file)
    x = next(iter(random_samples(program, count, seed).values()))
    return x, np.asarray(program.run(x, engine="reference"))


def test_answers_are_the_programs_in_every_format(client: Any, files: list[Path]) -> None:
    x, expected = sample(files[0], 5)
    reply = client.post("/predict", content=npy(x), headers=NPY)
    assert reply.status_code == 200
    np.testing.assert_array_equal(np.load(io.BytesIO(reply.content)), expected)
    name = Program.load(files[0]).inputs[0]
    stream = io.BytesIO()
    np.savez(stream, **{name: x})
    reply = client.post("/predict", content=stream.getvalue(), headers={"content-type": "application/x-npz"})
    np.testing.assert_array_equal(np.load(io.BytesIO(reply.content))["arr_0"], expected)
    reply = client.post("/predict", json={"inputs": {name: x.tolist()}})
    np.testing.assert_array_equal(np.float32(reply.json()["outputs"][0]), expected)


def test_requests_that_come_together_run_as_one_batch_bit_for_bit(client: Any, files: list[Path]) -> None:
    x, expected = sample(files[0], 24)

    def ask(i: int) -> httpx.Response:
        return client.post("/predict", content=npy(x[i : i + 1]), headers=NPY)

    with ThreadPoolExecutor(24) as pool:
        replies = list(pool.map(ask, range(24)))
    assert {reply.status_code for reply in replies} == {200}, [reply.text for reply in replies]
    found = np.concatenate([np.load(io.BytesIO(reply.content)) for reply in replies])
    np.testing.assert_array_equal(found, expected)
    assert 'intact8_requests_total{status="200"} 24.0' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        (npy(np.zeros((1, 9), np.float32)), NPY["content-type"], "8"),
        (npy(np.zeros((1, 8), np.float64)), NPY["content-type"], "float32"),
        (npy(np.full((1, 8), np.nan, np.float32)), NPY["content-type"], "NaN"),
        (npy(np.zeros((17, 8), np.float32)), NPY["content-type"], "1 to 16"),
        (npy(np.zeros((0, 8), np.float32)), NPY["content-type"], "1 to 16"),
        (npy(np.zeros((1, 8), np.float32))[:-3], NPY["content-type"], ""),
        (npy(np.array([{"a": 1}], object)), NPY["content-type"], "allow_pickle"),
        (b"PK\x03\x04 no archive", "application/x-npz", ""),
        (b"{", "application/json", ""),
        (b'{"inputs": {"other": [[1]]}}', "application/json", "inputs"),
        (b"hello", "text/plain", "content-type"),
    ],
)
def test_what_cannot_be_answered_is_refused_and_the_server_goes_on(
    client: Any, files: list[Path], body: bytes, kind: str, reason: str
) -> None:
    reply = client.post("/predict", content=body, headers={"content-type": kind})
    assert reply.status_code == 400 and reason in reply.json()["error"]
    x, expected = sample(files[0], 1)
    reply = client.post("/predict", content=npy(x), headers=NPY)
    np.testing.assert_array_equal(np.load(io.BytesIO(reply.content)), expected)


def test_a_body_without_end_is_cut_off(client: Any, files: list[Path]) -> None:
    """16 samples of 8 numbers are 512 bytes; whatever is longer is not read."""

    assert client.post("/predict", content=bytes(1 << 20), headers=NPY).status_code == 413
    assert client.post("/predict", content=iter([bytes(1000)] * 5), headers=NPY).status_code == 413
    many = "[" + ",".join(["1.5"] * 5000) + "]"
    reply = client.post(
        "/predict", content=f'{{"inputs": {{"x": {many}}}}}', headers={"content-type": "application/json"}
    )
    assert reply.status_code == 413


def npz(entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as files:
        for name, data in entries.items():
            files.writestr(name, data)
    return stream.getvalue()


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


GOOD = npy(np.zeros((1, 8), np.float32))
BOMB = npz({"input.npy": header("(2000000, 8)") + bytes(64_000_000)})
LYING = BOMB.replace((64_000_000 + 128).to_bytes(4, "little"), (160).to_bytes(4, "little"))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (BOMB, "TooLarge"),
        (LYING, "InputError"),
        (npz({"input.npy": GOOD}, zipfile.ZIP_LZMA), "InputError"),
        (npz({"other.npy": GOOD}), "InputError"),
        (npz({f"{i}": b"" for i in range(500)}), "InputError"),
        (npz({"input.npy": b"no array"}), "InputError"),
        (npz({"input.npy": GOOD})[:-1], "InputError"),
    ],
    ids=["bomb", "bomb-that-lies", "lzma", "other-name", "500-entries", "no-array", "cut"],
)
def test_archives_are_not_decompressed_beyond_the_inputs(
    modules: Any, files: list[Path], body: bytes, error: str
) -> None:
    import bodies

    limits = bodies.Limits.of(Program.load(files[0]), 4000)
    assert len(body) < limits.body(bodies.NPZ) < 1 << 18
    tracemalloc.start()
    try:
        with pytest.raises((bodies.InputError, bodies.TooLarge)) as caught:
            bodies.memory(body, bodies.NPZ, limits)
            bodies.decode(body, bodies.NPZ, limits, True)
        assert type(caught.value).__name__ == error
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    good = npz({"input.npy": GOOD})
    assert bodies.memory(good, bodies.NPZ, limits) == len(GOOD)
    assert list(bodies.decode(good, bodies.NPZ, limits, True)) == ["input"]


@pytest.mark.parametrize(
    "body",
    [
        header("(1000000000000, 8)"),
        header("(-1, 8)"),
        header("(1, 8)", "|O") + b"cos\nsystem\n.",
        header("(True, 9)") + bytes(36),
        header("__import__('os')"),
        header("(" * 300 + ")" * 300),
        header("(" * 300),
        header("(0, 10" + "0" * 30 + ")"),
        header("(1, 8)") + bytes(33),
        b"",
        b"\x93NUMPY\x03\x00" + bytes(64),
    ],
    ids=["huge", "negative", "pickle", "bool", "code", "deep", "open", "empty-huge", "longer", "empty", "version"],
)
def test_headers_are_read_before_anything_else(client: Any, body: bytes) -> None:
    assert client.post("/predict", content=body, headers=NPY).status_code == 400


@pytest.mark.parametrize(
    "text",
    ['{"inputs": [1]}', '{"inputs": null}', "5", "[" * 500, '{"inputs": {"input": [[1], [2, 3]]}}',
     '{"inputs": {"input": ["a"]}}', '{"inputs": {"input": {"a": 1}}}', '{"inputs": {"input": [[' + "1" * 400 + "]]}}"],
    ids=["list", "null", "number", "deep", "ragged", "text", "object", "large-integer"],
)  # fmt: skip
def test_json_of_another_form_is_refused(client: Any, text: str) -> None:
    reply = client.post("/predict", content=text, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "<f4", ">f4", "float64"])
def test_what_numpy_writes_is_read(modules: Any, dtype: str, shape: tuple[int, ...], order: str) -> None:
    import bodies

    values = np.asarray(np.random.default_rng(0).integers(0, 2, shape), dtype, order=order)
    found = bodies.array(npy(values))
    assert found.dtype == values.dtype and found.shape == values.shape
    np.testing.assert_array_equal(found, values)


def test_headers_are_read_right_while_other_threads_parse(modules: Any) -> None:
    """``ast.literal_eval``, with which numpy reads them, fails where a collection lets another thread parse meanwhile
    (CPython's issue 106905): a good request was then answered with 400."""
    import bodies

    class Yields:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            time.sleep(0)

    def read(_: int) -> None:
        for _ in range(300):
            Yields()
            assert bodies.array(GOOD).shape == (1, 8)

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)


def test_bodies_together_take_no_more_than_there_is(modules: Any, files: list[Path]) -> None:
    from starlette.testclient import TestClient

    app = modules.create_app(modules.Settings(files[0], engine="reference", memory=len(GOOD) - 1))
    with TestClient(app) as client:
        reply = client.post("/predict", content=GOOD, headers=NPY)
        assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
        assert app.state.service.budget.taken == 0
        app.state.service.budget.limit += 1
        assert client.post("/predict", content=GOOD, headers=NPY).status_code == 200
        assert app.state.service.budget.taken == 0


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(x).relu()


class Centred(torch.nn.Module):
    """A network whose samples have to do with one another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


def test_one_bad_index_fails_alone(modules: Any, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    file = intact8.quantize(Rows(), [torch.randint(0, 10, (16, 4)) for _ in range(2)]).save(
        tmp_path / "rows.safetensors"
    )
    app = modules.create_app(modules.Settings(file, engine="reference", wait=0.2))
    good, bad = npy(np.int64([[1, 2, 3, 4]])), npy(np.int64([[1, 2, 3, 10]]))
    with TestClient(app) as client, ThreadPoolExecutor(4) as pool:
        ask = lambda body: client.post("/predict", content=body, headers=NPY).status_code  # noqa: E731
        assert list(pool.map(ask, [good, good, bad, good])) == [200, 200, 400, 200]


def test_requests_share_no_batch_where_results_depend_on_it(modules: Any, files: list[Path], tmp_path: Path) -> None:
    program = intact8.quantize(Centred(), torch.randn(64, 8).split(16))
    file = program.save(tmp_path / "centred.safetensors")
    assert not modules.batchable(intact8.runtime.load(file, "reference"))
    assert modules.batchable(intact8.runtime.load(files[0], "reference"))


def test_a_batch_that_fails_is_tried_one_by_one_and_lengths_are_not_mixed(modules: Any) -> None:
    from batching import Batcher

    sizes: list[int] = []

    async def scene() -> list[Any]:
        def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            if inputs["x"].max() > 1:
                raise RuntimeError("an engine's failure")
            return [inputs["x"] * 2]

        batcher = Batcher(run, most=8, wait=0.0, queue=8, observe=sizes.append)
        given = [np.float32([[0]]), np.float32([[9]]), np.float32([[1]]), np.float32([[1, 1]])]
        asks = [asyncio.ensure_future(batcher.submit({"x": x})) for x in given]
        await asyncio.sleep(0)
        batcher.start()
        found = await asyncio.gather(*asks, return_exceptions=True)
        assert batcher.healthy(60)
        batcher.stop()
        return found

    zero, failed, one, longer = in_a_loop(scene())
    assert zero[0] == 0 and isinstance(failed, RuntimeError) and one[0] == 2 and longer[0].tolist() == [[2, 2]]
    assert sizes == [3, 1, 1, 1, 1]


def test_a_dead_worker_is_not_healthy_and_nobody_waits_for_it(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = client.app.state.service.batcher

    def broken(size: int) -> None:
        raise RuntimeError("a fault of the worker's own")

    monkeypatch.setattr(batcher, "observe", broken)
    for _ in range(2):
        assert client.post("/predict", content=GOOD, headers=NPY).status_code == 503
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 503


def test_a_batch_without_end_is_not_healthy(modules: Any) -> None:
    from batching import Batcher

    async def scene() -> None:
        release = threading.Event()
        batcher = Batcher(lambda inputs: [release.wait(10)] and [inputs["x"]], most=1, wait=0, queue=1, observe=len)
        batcher.observe = lambda size: None
        batcher.start()
        asked = asyncio.ensure_future(batcher.submit({"x": np.zeros((1, 1))}))
        await asyncio.sleep(0.1)
        assert batcher.healthy(60) and not batcher.healthy(0.05)
        release.set()
        await asked
        assert batcher.healthy(0.05)
        batcher.stop()

    in_a_loop(scene())


SLOW = {
    "nothing": b"",
    "headers": b"POST /predict HTTP/1.1\r\nHost: a\r\n",
    "body": b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-npy\r\nContent-Length: 160\r\n\r\nx",
    "second-headers": b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz",
    "long-header": b"GET /healthz HTTP/1.1\r\nX: " + b"a" * (70 << 10),
}


def test_slow_connections_and_long_headers_are_cut_off(
    modules: Any, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import connections
    import uvicorn

    monkeypatch.setattr(connections, "BODY_SECONDS", 1.0)
    app = modules.create_app(modules.Settings(files[0], engine="reference"))

    async def ended(port: int, sent: bytes, more: bytes = b"") -> float:
        begin = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        answer = asyncio.ensure_future(asyncio.wait_for(reader.read(), 20))
        while not answer.done():
            await asyncio.wait([answer], timeout=0.1)
            writer.write(more)
        with contextlib.suppress(ConnectionError):
            await answer
        writer.close()
        return time.monotonic() - begin

    async def scene() -> dict[str, float]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(app, http=connections.Punctual, ws="none", log_level="error", limit_concurrency=8)
            config.timeout_keep_alive = 0.3  # type: ignore[assignment]
            server = uvicorn.Server(config)
            monkeypatch.setattr(server, "capture_signals", contextlib.nullcontext)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            port = listener.getsockname()[1]
            found = {name: await ended(port, sent) for name, sent in SLOW.items()}
            assert found["body"] < await ended(port, SLOW["body"], more=b"x") < 10
            many = await asyncio.gather(*(ended(port, SLOW["headers"]) for _ in range(40)))
            assert max(many) < 10 and not server.server_state.connections
            async with httpx.AsyncClient() as client:
                url = f"http://127.0.0.1:{port}/predict"
                for _ in range(2):  # what is too long is not kept, and read all the same: the client learns why
                    reply = await client.post(url, content=bytes(1 << 22), headers=NPY)
                    assert reply.status_code == 413
                reply = await client.get(url, headers={"x": "a" * (900 << 10)})
                assert reply.status_code == 431
                reply = await client.post(f"http://127.0.0.1:{port}/predict", content=GOOD, headers=NPY)
                assert reply.status_code == 200
            server.should_exit = True
            await serving
            return found

    found = in_a_loop(scene())
    assert max(found.values()) < 10, found


def test_the_log_has_no_lines_but_its_own(modules: Any) -> None:
    text = "\x1b[2J\n2026-01-01 serving INFO forged\u202e"
    try:
        raise RuntimeError(text)
    except RuntimeError:
        record = modules.log.makeRecord("serving", 40, "f", 1, "%s fails", (text,), sys.exc_info())
    lines = modules.Inert("%(levelname)s %(message)s").format(record).split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("2026") for line in lines) and lines[0].startswith("ERROR")


def test_why_a_probe_is_not_remembered_is_not_told(client: Any) -> None:
    service = client.app.state.service
    service.loaded = service.loaded.with_info(probe="passed, but it cannot be remembered: /home/me: no space left")
    told = client.get("/model")
    assert told.json()["probe"] == "passed, but it cannot be remembered" and "/home" not in told.text


def test_what_runs_can_be_read(client: Any, files: list[Path]) -> None:
    told = client.get("/model").json()
    assert str(files[0].parent) not in client.get("/model").text and "path" not in told
    assert told["engine"] == "reference" and told["digest"] in intact8.runtime.load(files[0], "reference").info.digest
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    assert f'intact8_model{{digest="{told["digest"][:12]}",engine="reference"}} 1.0' in client.get("/metrics").text


def test_a_full_queue_is_said_and_an_engine_that_fails_fails_its_batch_only(modules: Any) -> None:
    from batching import Batcher, Busy

    async def scene() -> list[Any]:
        def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            if inputs["x"].max() > 1:
                raise RuntimeError("an engine's failure")
            return [inputs["x"] * 2]

        batcher = Batcher(run, most=2, wait=0.0, queue=3, observe=lambda size: None)
        asks = [asyncio.ensure_future(batcher.submit({"x": np.float32([i])})) for i in (0, 1, 9, 1)]
        await asyncio.sleep(0)
        worker = asyncio.create_task(batcher.work())
        found = await asyncio.gather(*asks, return_exceptions=True)
        worker.cancel()
        return found

    zero, one, failed, refused = in_a_loop(scene())
    assert zero[0] == 0 and one[0] == 2
    assert isinstance(failed, RuntimeError) and isinstance(refused, Busy)


def test_a_file_that_does_not_fit_is_not_taken_over(modules: Any, files: list[Path], tmp_path: Path) -> None:
    file = tmp_path / "served.safetensors"

    async def scene() -> None:
        shutil.copy(files[0], file)
        service = modules.Service(modules.Settings(file, engine="reference"))
        first = service.loaded
        for wrong in (files[2].read_bytes(), files[1].read_bytes()[:-70]):
            file.write_bytes(wrong)
            await service.reload()
            assert service.loaded is first
        file.write_bytes(files[1].read_bytes())
        await service.reload()
        assert service.loaded is not first

    in_a_loop(scene())


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="POSIX signals")
def test_a_server_process_reloads_and_ends_without_dropping_a_request(files: list[Path], tmp_path: Path) -> None:
    """Four clients ask all the time. The file is exchanged; then the listening socket goes on to a second server."""
    file = tmp_path / "served.safetensors"
    shutil.copy(files[0], file)
    x, old = sample(files[0], 1)
    new = np.asarray(Program.load(files[1]).run(x, engine="reference"))
    assert not np.array_equal(old, new)
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "INTACT8_CACHE_DIR": str(tmp_path / "c")
    }  # fmt: skip
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        options = ["--fd", str(listener.fileno()), "--engine", "reference"]
        command = [sys.executable, str(FOLDER / "server.py"), str(file), *options]
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        servers = [subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment)]
        replies: list[bytes] = []
        end = False

        def ask() -> None:
            with httpx.Client(timeout=60) as client:
                while not end:
                    reply = client.post(f"{url}/predict", content=npy(x), headers=NPY)
                    reply.raise_for_status()
                    replies.append(reply.content[-old.nbytes :])  # numpy's reader of headers is not for several threads

        def until(condition: Any) -> None:
            limit = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < limit and not any(f.done() for f in asking), [f.exception() for f in asking]
                time.sleep(0.02)

        try:
            with ThreadPoolExecutor(4) as pool:
                asking = [pool.submit(ask) for _ in range(4)]
                until(lambda: len(replies) > 20)
                os.replace(shutil.copy(files[1], tmp_path / "new"), file)
                servers[0].send_signal(signal.SIGHUP)
                until(lambda: replies[-1] == new.tobytes())
                servers.append(subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment))
                time.sleep(0.2)
                servers[0].send_signal(signal.SIGTERM)
                assert servers[0].wait(timeout=60) == 0
                seen = len(replies)
                until(lambda: len(replies) > seen + 20)
                end = True
            for asked in asking:
                asked.result()
        finally:
            end = True
            for server in servers:
                server.terminate()
                server.wait(timeout=60)
    assert set(replies) == {old.tobytes(), new.tobytes()}
