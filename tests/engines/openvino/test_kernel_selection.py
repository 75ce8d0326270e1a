"""Which kernels the openvino engine asks for: they are the ones that run, and give the same integers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openvino")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conformance.networks import Network
from tests.conformance.suite import check_network, check_ops

from intact8.engines.openvino import OpenVinoEngine, kernel_selection

ENGINE = OpenVinoEngine()
pytestmark = [
    pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available())),
    pytest.mark.skipif(not kernel_selection.selectable(), reason="for CPUs with AVX512 and VNNI, without AMX"),
]


def wide_network(size: int) -> tuple[Network, str]:
    """A pointwise convolution of a short sum, one of a long sum, and one of 3 × 3."""
    net = Network(np.random.default_rng(1))
    net.start((1, 32, size, size))
    return net, net.conv(net.conv(net.conv("x", 160, 1), 32, 1), 16, 3)


@pytest.mark.parametrize(("size", "expected"), [(28, "jjj"), (14, "jbb"), (7, "bbb")])
def test_the_kernels_asked_for_are_the_ones_that_run(size: int, expected: str) -> None:
    net, last = wide_network(size)
    runner = ENGINE.prepare(net.program((last,)), threads=1)
    found = runner.kernels()
    assert "".join(found[op.name][0] for op in net.ops if op.kind == "conv") == expected, found
    assert all(kernel.endswith("_I8") for kernel in found.values())
    assert (runner({"x": net.exact["x"]})[0] == net.exact[last]).all()


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preferred kernels for convolutions of any size."""
    monkeypatch.setattr(kernel_selection, "MANY", 0)


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@examples(12)
@given(st.integers(0, 2**63))
def test_random_convolutions(everywhere: None, seed: int) -> None:
    check_ops("openvino", "conv", np.random.default_rng(seed), wide=False, count=8)


@examples(30)
@given(st.integers(0, 2**63))
def test_random_networks(everywhere: None, seed: int) -> None:
    check_network("openvino", seed)
