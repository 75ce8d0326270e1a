"""Large programs on the openvino engine: a model for all batch sizes, the same integers, weights packed once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance import networks
from tests.engines.openvino.test_engine import residual_network
from tests.test_import import run_python

from intact8.engines.openvino import OpenVinoEngine, engine
from intact8.engines.reference import ReferenceEngine
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))
BATCHES = (1, 8, 3, 8, 1, 2, 4, 13, 1, 8)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program counts as large."""
    monkeypatch.setattr(engine, "LARGE", 0)


def residual_program(seed: int = 0) -> Program:
    net, last = residual_network(seed)
    return net.program((last, net.ops[2].name))


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_of_every_size_in_any_order(large: None, threads: int) -> None:
    program = residual_program()
    runner, reference = ENGINE.prepare(program, threads=threads), ReferenceEngine().prepare(program)
    rng = np.random.default_rng(1)
    for batch in BATCHES:
        x = rng.integers(0, 256, (batch, 16, 9, 9)).astype(np.uint8)
        for got, want in zip(runner({"x": x}), reference({"x": x}), strict=True):
            np.testing.assert_array_equal(got, want)
    assert [sizes for sizes, *_ in runner._models] == [(1, 2, 4, 8)]
    assert all(kernel.endswith("_I8") for kernel in runner.kernels(8).values())


@settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**63))
def test_random_networks(large: None, seed: int) -> None:
    program, x, expected = networks.draw(seed)
    runner, reference = ENGINE.prepare(program, threads=1), ReferenceEngine().prepare(program)
    for given_x, want in ((x[:1], reference({"x": x[:1]})), (x, expected), (x[:1], reference({"x": x[:1]}))):
        for got, ideal in zip(runner({"x": given_x}), want, strict=True):
            np.testing.assert_array_equal(got, ideal)


def test_threads_that_bring_new_sizes(large: None) -> None:
    program = residual_program(2)
    runner, reference = ENGINE.prepare(program, threads=1), ReferenceEngine().prepare(program)
    rng = np.random.default_rng(3)
    inputs = [rng.integers(0, 256, (n, 16, 9, 9)).astype(np.uint8) for n in BATCHES * 3]
    wanted = [reference({"x": x})[0] for x in inputs]
    with ThreadPoolExecutor(6) as pool:
        for got, want in zip(pool.map(lambda x: runner({"x": x})[0], inputs), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


MEMORY = """
import sys
import numpy as np
sys.path.insert(0, {root!r})
from tests.conformance.networks import Network
from intact8.engines.openvino import OpenVinoEngine, engine

def resident():
    return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1024

net = Network(np.random.default_rng(0))
net.start((1, 1024, 3, 3))
x = "x"
for _ in range(16):
    x = net.conv(x, 1024, 1)
program = net.program((x,))
engine.LARGE = {limit}
runner = OpenVinoEngine().prepare(program, threads=1)
given = {{n: np.zeros((n, 1024, 3, 3), np.uint8) for n in (1, 8)}}
runner({{"x": given[1]}})
before = resident()
runner({{"x": given[8]}})
print(resident() - before)
"""


def test_weights_are_packed_once() -> None:
    """16 MiB of weights: with models of their own, a second batch size takes them once more."""
    root = str(Path(__file__).parents[2])
    joined, apart = (float(run_python(MEMORY.format(root=root, limit=limit))[0]) for limit in (0, 1 << 40))
    assert apart > 14
    assert joined < apart - 10
