"""Convolutions one behind the other in bands of rows, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.networks import Network, of_floats

from intact8.engines import fused_stem
from intact8.engines import kernels as native
from intact8.engines.fused_stem import FusedStem, stages
from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array
from intact8.program.program import Program

pytestmark = pytest.mark.skipif("Dense" not in native.operators(), reason="this CPU has no AVX512-VNNI")


@pytest.fixture(autouse=True)
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of tests count as large ones, and any result as small."""
    monkeypatch.setattr(fused_stem, "MIN_PIXELS", 1)
    monkeypatch.setattr(fused_stem, "MAX_GROWTH", 1000.0)


def chain(seed: int) -> tuple[Program, Array]:
    """Floats, and what follows: convolutions of every kind, with sums of results of one shape."""
    rng = np.random.default_rng(seed)
    net = Network(rng)
    net.start((int(rng.integers(1, 4)), int(rng.choice([1, 3, 4, 16])), *(int(n) for n in rng.integers(5, 30, 2))))
    last, results = "x", list[str]()
    for _ in range(int(rng.integers(1, 9))):
        kernel, stride, size = int(rng.choice([1, 3, 3, 5])), int(rng.choice([1, 1, 1, 2])), net.exact[last].shape
        padding = int(rng.choice([kernel // 2, kernel // 2, kernel // 2, 0, 2]))
        if min(size[2:]) + 2 * padding < kernel:
            continue
        groups = size[1] if rng.random() < 0.4 else 1
        count = size[1] if groups > 1 else int(rng.choice([8, 16, 24, 32, 72, 96]))
        last = net.conv(last, count, kernel, stride, groups, padding=padding)
        others = [name for name in results if net.exact[name].shape == net.exact[last].shape]
        if others and groups == 1:
            pair = [last, str(rng.choice(others))]
            last = net.add(*(pair if rng.random() < 0.5 else pair[::-1]))
        results.append(last)
    program = of_floats(net.program((last,)), 0.25, lo=3, hi=250)
    return program, rng.standard_normal(net.exact["x"].shape).astype(np.float32) * 30


@settings(max_examples=150, deadline=None, database=None)
@given(seed=st.integers(0, 2**63), room=st.sampled_from([0, 4 << 10, 64 << 10]))
def test_chains_of_every_kind(seed: int, room: int) -> None:
    """Every tensor, and the results alone, by bands of one row, some or all."""
    program, x = chain(seed)
    want = ReferenceEngine().prepare(program).tensors({"x": x})
    found = stages(program, program.ops[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_stem, "CACHE_BYTES", room)
        for count in range(1, len(found) + 1):
            run, shape = FusedStem(program, program.ops[0], found[:count]), want[found[count - 1].name].shape
            own = np.empty((len(x), *shape[2:], shape[1]), np.uint8)
            run(x, own)
            np.testing.assert_array_equal(np.moveaxis(own, -1, 1), want[found[count - 1].name])
        if found:
            for name, value in run.tensors(x).items():
                np.testing.assert_array_equal(value, want[name])


def test_most_chains_are_long() -> None:
    """Of which none of the tests above would say that they are not."""
    lengths = [(len(stages(p, p.ops[0])), sum(op.kind == "conv" for op in p.ops)) for p, _ in map(chain, range(60))]
    assert sum(found == wanted for found, wanted in lengths) > 50
    assert sum(stage.residual >= 0 for p, _ in map(chain, range(60)) for stage in stages(p, p.ops[0])) > 10


def test_where_a_chain_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """At what is used twice, given as a result, of another kind or small; never amid a sum or before an activation."""
    net = Network(np.random.default_rng(1))
    net.start((1, 3, 9, 9))
    first = net.conv("x", 8, 3)
    second = net.conv(first, 8, 3)
    total = net.add(second, first)
    last = net.conv(total, 8, 3, stride=2)
    net.max_pool(last)
    net.table(last)

    def names(outputs: tuple[str, ...]) -> list[str]:
        without = replace(net.program(outputs), ops=tuple(op for op in net.ops if op.name in {*kept, *outputs}))
        program = of_floats(without, 0.25, lo=0, hi=255)
        return [stage.name for stage in stages(program, program.ops[0])]

    kept = {first, second, total, last}
    assert names(("max_pool.4",)) == [first, total, last]
    assert names(("table.5",)) == [first, total]
    assert names(("max_pool.4", total)) == [first, total]
    assert names(("max_pool.4", first)) == [first]
    monkeypatch.setattr(fused_stem, "MAX_GROWTH", 200 / 243)
    assert names(("max_pool.4",)) == [first, total, last]
    monkeypatch.setattr(fused_stem, "MAX_GROWTH", 199 / 243)
    assert names(("max_pool.4",)) == []
    monkeypatch.setattr(fused_stem, "MAX_GROWTH", 1000.0)
    monkeypatch.setattr(fused_stem, "MIN_PIXELS", 82)
    assert names(("max_pool.4",)) == []
    monkeypatch.undo()
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(fused_stem, "load", lambda: None)
    assert names(("max_pool.4",)) == []


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", [3, 5, 8, 13])
def test_openvino_goes_on_from_there(seed: int, threads: int) -> None:
    """Floats and bytes, both layouts, other batches, every tensor."""
    program, x = chain(seed)
    runner, reference = OpenVinoEngine().prepare(program, threads=threads), ReferenceEngine().prepare(program)
    assert bool(runner._plan.stems.get("q")) == (threads == 1)
    want = reference.tensors({"x": x})
    q = want["q"]
    last, bytes_last = (np.ascontiguousarray(v.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for v in (x, q))
    for image in (x, last, q, bytes_last, x[:1], np.concatenate([x] * 4), x):
        before = image.copy()
        np.testing.assert_array_equal(runner({"x": image})[0], reference({"x": image})[0])
        np.testing.assert_array_equal(image, before)
    found = runner.tensors({"x": x})
    assert all((found[name] == want[name]).all() for name in want)


def test_nan_is_refused_in_any_sample() -> None:
    program, x = chain(5)
    x = np.concatenate([x] * 4)
    broken = x.copy()
    broken[3].flat[0] = np.nan
    runner = OpenVinoEngine().prepare(program, threads=1)
    with pytest.raises(InputError, match=r"x: x holds NaN"):
        runner({"x": broken})
    np.testing.assert_array_equal(runner({"x": x})[0], ReferenceEngine().prepare(program)({"x": x})[0])


@pytest.mark.parametrize("band", [1, 2, 3, 10**9, 2**63 - 1])
def test_bands_of_any_height(band: int) -> None:
    """A band higher than the image is the image, and memory for its rows is checked."""
    program, x = chain(5)
    found = stages(program, program.ops[0])[:1]
    run, want = FusedStem(program, program.ops[0], found), ReferenceEngine().prepare(program).tensors({"x": x})
    numbers, _, rows = run._prepared
    run._prepared = numbers, band, rows
    shape = want[found[-1].name].shape
    own = np.empty((len(x), *shape[2:], shape[1]), np.uint8)
    run(x, own)
    np.testing.assert_array_equal(np.moveaxis(own, -1, 1), want[found[-1].name])


@pytest.mark.parametrize("place", [0, 1, 2, 26, 27, 28])
def test_stages_without_memory_are_refused(place: int) -> None:
    """Addresses of 0, and sizes of which one is missing."""
    program, x = chain(5)
    run = FusedStem(program, program.ops[0], stages(program, program.ops[0]))
    numbers, band, rows = run._prepared
    broken = numbers.copy()
    broken[0, place] = 0 if place < 3 else broken[0, place] - 1
    run._prepared = broken, band, rows
    size = run._shapes[len(numbers)]
    with pytest.raises(EngineError, match="fused_stem: weights that do not fit"):
        run(x, np.empty((len(x), *size), np.uint8))


def test_sizes_that_change() -> None:
    """Named heights and widths: every size has memory of its own."""
    net = Network(np.random.default_rng(7))
    net.start((1, 3, 16, 16))
    last = net.conv(net.conv("x", 8, 3, stride=2), 8, 3, groups=8)
    program = of_floats(net.program((last,)), 0.25, lo=0, hi=255)
    assert len(stages(program, program.ops[0])) == 2
    runner = OpenVinoEngine().prepare(replace(program), threads=1)
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32) * 20
    np.testing.assert_array_equal(runner({"x": x})[0], ReferenceEngine().prepare(program)({"x": x})[0])
