"""Windows of images: what a convolution sees, for any geometry, and nothing beyond; the same integers behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.networks import Network, of_floats

from intact.engines import engine_status, get_engine, native
from intact.engines.binding import sole_quantizers
from intact.engines.reference import ReferenceEngine
from intact.engines.unfold import LONGEST, Windows, unfolded
from intact.program.program import Program

pytestmark = pytest.mark.skipif(native.load() is None, reason="the compiled passes were not built")
GUARD = 64


def expected(w: Windows, x: Any) -> Any:
    """Element by element, as a convolution is defined."""
    y = np.full(w.shape(x), w.zero, np.uint8).reshape(len(x), *w.count, *w.size, x.shape[3])
    for (row, column, i, j), _ in np.ndenumerate(y[0, ..., 0]):
        at = row * w.stride[0] - w.padding[0] + i, column * w.stride[1] - w.padding[1] + j
        if 0 <= at[0] < x.shape[1] and 0 <= at[1] < x.shape[2]:
            y[:, row, column, i, j] = x[:, at[0], at[1]]
    return y.reshape(w.shape(x))


@settings(max_examples=200, deadline=None, database=None)
@given(st.integers(0, 2**63))
def test_windows_are_what_a_convolution_sees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    channels = int(rng.integers(1, 5))
    size = int(rng.integers(1, 9)), int(rng.integers(1, min(9, LONGEST // channels) + 1))
    stride = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    padding = int(rng.integers(0, size[0] + 2)), int(rng.integers(0, size[1] + 2))
    spatial = [max(k - 2 * p, 1) + int(rng.integers(0, 12)) for k, p in zip(size, padding, strict=True)]
    rows, columns = ((n + 2 * p - k) // s + 1 for n, k, s, p in zip(spatial, size, stride, padding, strict=True))
    w = Windows(size, stride, padding, (rows, columns), int(rng.integers(0, 256)))
    x = rng.integers(0, 256, (int(rng.integers(1, 3)), *spatial, channels)).astype(np.uint8)
    around = np.full(int(np.prod(w.shape(x))) + 2 * GUARD, 77, np.uint8)
    own = around[GUARD:-GUARD].reshape(w.shape(x))
    np.testing.assert_array_equal(w(x, own), expected(w, x))
    assert (around[:GUARD] == 77).all()
    assert (around[-GUARD:] == 77).all()


def image_network(seed: int, kernel: int, stride: int, channels: int = 3) -> tuple[Program, Any]:
    """A float image, quantized for one convolution, and another behind it."""
    net = Network(np.random.default_rng(seed))
    net.start((2, channels, 11, 13))
    last = net.conv(net.conv("x", 8, kernel, stride=stride), 8, 1)
    x = np.random.default_rng(seed).standard_normal((2, channels, 11, 13)).astype(np.float32) * 30
    return of_floats(net.program((last,)), 0.25, lo=3, hi=250), x


@pytest.mark.parametrize(("kernel", "stride", "channels"), [(3, 2, 3), (7, 2, 3), (3, 1, 1), (5, 3, 4)])
def test_the_program_behind_windows_gives_the_same_integers(kernel: int, stride: int, channels: int) -> None:
    program, x = image_network(kernel, kernel, stride, channels)
    other, windows = unfolded(program)
    runner, reference = ReferenceEngine().prepare(other), ReferenceEngine().prepare(program)
    want = reference.tensors({"x": x})
    whole = np.ascontiguousarray(want["q"].transpose(0, 2, 3, 1))
    given = windows["x"](whole, np.empty(windows["x"].shape(whole), np.uint8)).transpose(0, 3, 1, 2)
    found = runner.tensors({"x": given})
    for op in program.ops[1:]:
        np.testing.assert_array_equal(found[op.name], want[op.name])


def test_what_is_left_alone() -> None:
    for kernel, channels in ((1, 3), (3, 5)):
        program, _ = image_network(1, kernel, 1, channels)
        assert unfolded(program) == (program, {})
    program, _ = image_network(1, 3, 1)
    shown = replace(program, outputs=(*program.outputs, "q"))
    assert unfolded(shown)[1] == {}
    assert "x" in sole_quantizers(program)


@pytest.mark.skipif(engine_status()["onnxruntime"] is not None, reason="onnxruntime is not installed")
@pytest.mark.parametrize("threads", [1, 16])
def test_onnxruntime_takes_images_of_every_kind(threads: int) -> None:
    """Floats and bytes, both layouts, every second sample, other batches; from few threads on and from many."""
    program, x = image_network(3, 3, 2)
    runner, reference = get_engine("onnxruntime").prepare(program, threads=threads), ReferenceEngine().prepare(program)
    assert bool(runner._windows) == (threads == 1)  # type: ignore[attr-defined]
    q = reference.tensors({"x": x})["q"]
    last, bytes_last = (np.ascontiguousarray(v.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for v in (x, q))
    for image in (x, last, np.repeat(x, 2, axis=0)[::2], q, bytes_last, x[:1], q[:1], np.concatenate([x, -x]), x):
        before = image.copy()
        np.testing.assert_array_equal(runner({"x": image})[0], reference({"x": image})[0])
        np.testing.assert_array_equal(image, before)
    found, want = runner.tensors({"x": x}), reference.tensors({"x": x})
    assert all((found[name] == want[name]).all() for name in want)
