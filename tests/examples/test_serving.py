"""The serving example: answers bit for bit; bad requests harm nobody; a reload and an end drop nothing."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import intact
from intact.program.program import Program
from intact.program.samples import random_samples

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
        made.append(intact.quantize(net, torch.randn(64, width).split(16)).save(folder / f"{seed}.safetensors"))
    return made


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The example's modules, as ``python server.py`` would find them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("INTACT_CACHE_DIR", str(tmp_path / "cache"))
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

    def ask(i: int) -> np.ndarray:
        return np.load(io.BytesIO(client.post("/predict", content=npy(x[i : i + 1]), headers=NPY).content))

    with ThreadPoolExecutor(24) as pool:
        found = np.concatenate(list(pool.map(ask, range(24))))
    np.testing.assert_array_equal(found, expected)
    assert 'intact_requests_total{status="200"} 24.0' in client.get("/metrics").text


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


def test_a_body_without_end_is_cut_off(client: Any, modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "LARGEST_BODY", 1000)
    assert client.post("/predict", content=bytes(1001), headers=NPY).status_code == 413


def test_what_runs_can_be_read(client: Any, files: list[Path]) -> None:
    told = client.get("/model").json()
    assert told["engine"] == "reference" and told["digest"] in intact.runtime.load(files[0], "reference").info.digest
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    assert f'intact_model{{digest="{told["digest"][:12]}",engine="reference"}} 1.0' in client.get("/metrics").text


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
        **os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "INTACT_CACHE_DIR": str(tmp_path / "c")
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
                    replies.append(np.load(io.BytesIO(reply.content)).tobytes())

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
