"""What all engines have in common: threads, many callers at once, any batch, channels first and last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conformance.networks import Network

import intact8
import intact8.runtime
from intact8.engines import available_engines, get_engine, get_runner
from intact8.engines.base import Runner
from intact8.engines.batch_split import is_sample_wise
from intact8.engines.binding import bind
from intact8.engines.prepared_cache import PreparedCache
from intact8.errors import EngineError, InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

BATCHES = (1, 2, 3, 7, 8, 64, 256)
COMPILED = [name for name in available_engines() if name != "reference"]
every_engine = pytest.mark.parametrize("engine", available_engines())
compiled_engine = pytest.mark.parametrize("engine", COMPILED)
Made = tuple[Program, dict[str, Any]]


@pytest.fixture(scope="module")
def made() -> Made:
    """A network of 9 × 7 images quantized at once, and 256 samples: floats, integers, and its two exact outputs."""
    net = Network(np.random.default_rng(5))
    net.start((max(BATCHES), 3, 9, 7))
    first = net.conv("x", 16, 3)
    inner = net.conv(net.conv(first, 16, 3, groups=16), 16, 1)
    added = net.table(net.add(inner, first), "hardswish")
    gated = net.mul(added, net.conv(net.mean(added), 16, 1))
    last = net.conv(net.max_pool(gated), 8, 3, stride=2)
    program = net.program((last, added))
    q = program.tensors["x"]
    tensors = {"image": Tensor("image", "float32", q.shape), **program.tensors}
    quantize = Op("x", "quantize", ("image",), {"lo": 0, "hi": 255})
    program = replace(program, tensors=tensors, ops=(quantize, *program.ops), inputs=("image",))
    integers = net.exact["x"]
    floats = (integers.astype(np.float32) - np.float32(q.zero_point or 0)) * np.float32(q.scale or 1)
    return program, {"image": floats, "x": integers, "outputs": [net.exact[last], net.exact[added]]}


def right(runner: Runner, data: dict[str, Any], start: int, n: int, key: str = "image") -> bool:
    """Whether ``n`` samples from ``start`` give the ideal integers."""
    found = runner({"image": data[key][start : start + n]})
    wanted = [y[start : start + n] for y in data["outputs"]]
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@compiled_engine
@pytest.mark.parametrize("threads", [1, 2, None])
@pytest.mark.parametrize("key", ["image", "x"], ids=["float32", "uint8"])
def test_every_batch_size_with_any_number_of_threads(made: Made, engine: str, threads: int | None, key: str) -> None:
    program, data = made
    runner = get_engine(engine).prepare(program, threads=threads)
    for n in (*BATCHES, 1, 7):
        assert right(runner, data, 0, n, key), n


def test_every_batch_size_by_the_reference(made: Made) -> None:
    program, data = made
    runner = get_runner(program, "reference")
    assert all(right(runner, data, 0, n) for n in BATCHES)
    with pytest.raises(EngineError, match="cannot set the number of threads"):
        get_engine("reference").prepare(program, threads=1)


@compiled_engine
def test_no_number_of_threads_below_one(made: Made, engine: str) -> None:
    with pytest.raises(EngineError, match=r"threads is 0\. Remedy: give an integer of 1 or more"):
        get_engine(engine).prepare(made[0], threads=0)


@every_engine
def test_many_callers_at_once(made: Made, engine: str) -> None:
    """Eight threads, each with batches of all sizes at other samples, start together on a runner that has run none."""
    program, data = made
    runner = get_engine(engine).prepare(program)
    start = threading.Barrier(8)

    def call(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        start.wait()
        sizes = rng.permutation([n for n in BATCHES if n <= 64] * (1 if engine == "reference" else 3))
        keys = [str(rng.choice(["image", "x"])) for _ in sizes]
        return [
            int(n)
            for n, key in zip(sizes, keys, strict=True)
            if not right(runner, data, int(rng.integers(0, 257 - n)), int(n), key)
        ]

    with ThreadPoolExecutor(8) as pool:
        assert not any(list(pool.map(call, range(8))))


@pytest.mark.skipif("onednn" not in COMPILED, reason="the onednn engine cannot run here")
def test_callers_at_once_leave_torchs_number_of_threads_alone(made: Made) -> None:
    program, data = made
    before = torch.get_num_threads()
    runners: list[Any] = [get_engine("onednn").prepare(program, threads=n) for n in (1, 2, 3)]
    for n, runner in enumerate(runners, 1):
        with runner._thread_count():
            assert torch.get_num_threads() == n

    def call(i: int) -> tuple[bool, int]:
        fine = all(right(runners[i % 3], data, i, n) for n in (1, 8, 3) * 5)
        return fine, torch.get_num_threads()

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(call, range(12))] == [(True, before)] * 12
    assert torch.get_num_threads() == before


def channels_last(x: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


LAYOUTS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "NCHW": lambda x: (x, "NCHW"),
    "NCHW, channels-last strides": lambda x: (np.moveaxis(channels_last(x), -1, 1), "NCHW"),
    "NCHW, torch channels-last": lambda x: (torch.from_numpy(x).contiguous(memory_format=torch.channels_last), "NCHW"),
    "NHWC": lambda x: (channels_last(x), "NHWC"),
    "NHWC, channels-first strides": lambda x: (np.moveaxis(x, 1, -1), "NHWC"),
    "NHWC, torch": lambda x: (torch.from_numpy(channels_last(x)), "NHWC"),
    "NHWC, upside down, BGR": lambda x: (channels_last(x[:, ::-1, ::-1])[:, ::-1, :, ::-1], "NHWC"),
    "NHWC, read-only": lambda x: (np.frombuffer(channels_last(x).tobytes(), x.dtype).reshape(-1, 9, 7, 3), "NHWC"),
}


@every_engine
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key", ["image", "x"], ids=["float32", "uint8"])
def test_images_in_any_layout(made: Made, engine: str, layout: str, key: str) -> None:
    program, data = made
    for n in (1, 3):
        x, order = LAYOUTS[layout](data[key][:n])
        found = program.run(x, engine=engine, layout=order)
        for y, wanted in zip(found, data["outputs"], strict=True):
            np.testing.assert_array_equal(np.asarray(y), wanted[:n])


@every_engine
def test_a_layout_declared_at_load(made: Made, engine: str, tmp_path: Path) -> None:
    program, data = made
    path = program.save(tmp_path / "images.safetensors")
    runner = intact8.runtime.load(path, engine=engine, probe="never", layout="NHWC")
    assert runner.layout == "NHWC"
    for n in (1, 7):
        found = runner(channels_last(data["x"][:n]))
        assert all(np.array_equal(y, w[:n]) for y, w in zip(found, data["outputs"], strict=True))


@every_engine
def test_bytes_of_decoded_images_are_what_an_image_program_takes(engine: str) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv((x - 0.45) / 0.22).relu()

    decoded = np.random.default_rng(3).integers(0, 256, (5, 12, 10, 3), dtype=np.uint8)
    floats = np.ascontiguousarray(np.moveaxis(decoded, -1, 1)).astype(np.float32) / np.float32(255)
    program = intact8.quantize(Net(), [torch.from_numpy(floats)], recipe=intact8.recipes.images())
    want = program.run(floats, engine="reference")
    np.testing.assert_array_equal(program.run(decoded, engine=engine, layout="NHWC"), want)


def test_layouts_that_do_not_fit_are_refused(made: Made, tmp_path: Path) -> None:
    program, data = made
    images = channels_last(data["x"][:2])
    with pytest.raises(InputError, match=r"expected shape \(batch, 3, 9, 7\), got \(2, 9, 7, 3\).*layout='NHWC'"):
        program.run(images, engine="reference")
    with pytest.raises(InputError, match=r"expected shape \(batch, 9, 7, 3\), got \(2, 3, 9, 7\)"):
        program.run(data["x"][:2], engine="reference", layout="NHWC")
    with pytest.raises(InputError, match="add the batch dimension"):
        program.run(images[0], engine="reference", layout="NHWC")
    with pytest.raises(InputError, match="layout='HWC' is not known.*NCHW, NHWC"):
        program.run(images, engine="reference", layout="HWC")
    tensors = {"x": Tensor("x", "float32", (None, 2)), "q": Tensor("q", "uint8", (None, 2), 0.5, 10)}
    flat = Program(tensors, (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),), ("x",), ("q",))
    with pytest.raises(InputError, match="no input has four dimensions"):
        flat.run(np.zeros((1, 2), np.float32), engine="reference", layout="NHWC")
    with pytest.raises(InputError, match="no input has four dimensions"):
        intact8.runtime.load(flat.save(tmp_path / "flat.safetensors"), engine="reference", layout="NHWC")


@pytest.mark.skipif("onednn" not in COMPILED, reason="the onednn engine cannot run here")
@pytest.mark.parametrize("layout", ["NCHW, channels-last strides", "NCHW, torch channels-last", "NHWC", "NHWC, torch"])
def test_channels_last_images_are_not_copied(made: Made, layout: str) -> None:
    """From the caller's array to the first convolution of onednn, integers stay where they are."""
    program, data = made
    x, order = LAYOUTS[layout](data["x"][:3])
    runner: Any = get_runner(program, "onednn")
    given = bind(program, [x], {}, order)
    (tensor,) = runner._tensors(given)
    (plan, _) = runner._plan([tensor])
    quantized = plan.calls[0].step(tensor)
    memory = x.numpy() if isinstance(x, torch.Tensor) else x
    assert np.shares_memory(quantized.numpy(), memory)


@pytest.mark.skipif("onednn" not in COMPILED, reason="the onednn engine cannot run here")
def test_batches_met_before_are_not_prepared_again(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    program, data = made
    runner = get_engine("onednn").prepare(program)
    assert all(right(runner, data, 0, n) for n in BATCHES)
    monkeypatch.setattr("intact8.engines.onednn.plan.Plan.__init__", None)
    assert all(right(runner, data, 256 - n, n) for n in BATCHES)


@pytest.mark.skipif("openvino" not in COMPILED, reason="the openvino engine cannot run here")
def test_openvino_compiles_a_bounded_number_of_models(made: Made) -> None:
    program, data = made
    runner: Any = get_engine("openvino").prepare(program)
    assert all(right(runner, data, 0, n) for n in range(1, 20))
    assert sorted(sizes for sizes, *_ in runner._models) == [(1,), (2,), (4,), (8,)]


def one_op(op: Op, before: tuple[int | None, ...], after: tuple[int | None, ...], dtype: str = "float32") -> Program:
    tensors = {"x": Tensor("x", "float32", before), "y": Tensor("y", dtype, after)}
    return Program(tensors, (op,), ("x",), ("y",))


B = None
CASES: dict[str, tuple[Program, bool]] = {
    "softmax in a sample": (one_op(Op("y", "float.softmax", ("x",), {"axis": -1}), (B, 4), (B, 4)), True),
    "softmax over samples": (one_op(Op("y", "float.softmax", ("x",), {"axis": -2}), (B, 4), (B, 4)), False),
    "rows of a sample": (one_op(Op("y", "reshape", ("x",), {"shape": [-1, 2]}), (B, 4), (B, 2)), True),
    "samples joined": (one_op(Op("y", "reshape", ("x",), {"shape": [-1, 8]}), (B, 4), (B, 8)), False),
    "batch moved away": (one_op(Op("y", "permute", ("x",), {"dims": [1, 0]}), (B, 4), (4, B)), False),
    "sum over samples": (
        one_op(Op("y", "float.reduce", ("x",), {"fn": "sum", "dims": [0], "keepdim": False}), (B, 4), (4,)), False,
    ),
    "sum in a sample": (
        one_op(Op("y", "float.reduce", ("x",), {"fn": "sum", "dims": [1], "keepdim": False}), (B, 4), (B,)), True,
    ),
    "rolled samples": (one_op(Op("y", "roll", ("x",), {"shifts": [1], "dims": [0]}), (B, 4), (B, 4)), False),
    "heads": (
        Program(
            {
                "x": Tensor("x", "float32", (B, 4, 6)), "s": Tensor("s", "float32", (B, 4, 3, 2)),
                "p": Tensor("p", "float32", (3, B, 4, 2)), "r": Tensor("r", "float32", (3, B, 2)),
                "y": Tensor("y", "float32", (B, 3, 2)),
            },
            (
                Op("s", "reshape", ("x",), {"shape": [-1, 4, 3, 2]}),
                Op("p", "permute", ("s",), {"dims": [2, 0, 1, 3]}),
                Op("r", "float.mean", ("p",), {"dims": [2], "keepdim": False}),
                Op("y", "permute", ("r",), {"dims": [1, 0, 2]}),
            ),
            ("x",), ("y",),
        ), True,
    ),
    "rows across heads": (
        Program(
            {
                "x": Tensor("x", "float32", (B, 4)), "p": Tensor("p", "float32", (4, B)),
                "r": Tensor("r", "float32", (2, B)), "y": Tensor("y", "float32", (B, 2)),
            },
            (
                Op("p", "permute", ("x",), {"dims": [1, 0]}), Op("r", "reshape", ("p",), {"shape": [2, -1]}),
                Op("y", "permute", ("r",), {"dims": [1, 0]}),
            ),
            ("x",), ("y",),
        ), False,
    ),
    "no batch": (one_op(Op("y", "float.relu", ("x",)), (3, 4), (3, 4)), False),
    "samples of one another": (one_op(Op("y", "cat", ("x", "x"), {"axis": 0}), (B, 4), (B, 4)), False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_which_programs_run_in_parts(case: str) -> None:
    program, wanted = CASES[case]
    assert is_sample_wise(program) is wanted
    if wanted:
        x = np.random.default_rng(0).standard_normal((6, *program.tensors["x"].shape[1:])).astype(np.float32)  # type: ignore[arg-type]
        whole, parts = (
            [get_runner(program, "reference")({"x": part})[0] for part in split] for split in ([x], [x[:4], x[4:]])
        )
        np.testing.assert_array_equal(np.concatenate(parts), whole[0])


@pytest.mark.skipif("openvino" not in COMPILED, reason="the openvino engine cannot run here")
def test_samples_that_depend_on_each_other_run_together() -> None:
    program = CASES["softmax over samples"][0]
    x = np.random.default_rng(0).standard_normal((11, 4)).astype(np.float32)
    (want,), (got,) = (get_runner(program, name)({"x": x}) for name in ("reference", "openvino"))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_value_is_made_once_and_others_do_not_wait() -> None:
    kept: PreparedCache[int] = PreparedCache(3, 0)
    kept.get("ready", lambda: 1)
    begun, go, count = threading.Event(), threading.Event(), []

    def slow() -> int:
        count.append(1)
        begun.set()
        assert go.wait(30)
        return 2

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(kept.get, "slow", slow) for _ in range(3)]
        assert begun.wait(30)
        assert pool.submit(kept.get, "ready", slow).result(timeout=30) == 1
        go.set()
        assert [f.result(timeout=30) for f in waiting] == [2, 2, 2]
    assert count == [1]


def test_what_cannot_be_made_is_not_kept() -> None:
    kept: PreparedCache[int] = PreparedCache(1, 0)
    with pytest.raises(ZeroDivisionError):
        kept.get("x", lambda: 1 // 0)
    assert kept.get("x", lambda: 5) == 5
