"""Weights at rest: the same values, no memory while nobody reads them, and left alone where that cannot be done."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact8.opset.op import Op
from intact8.program import spill
from intact8.program.program import Program

pytestmark = pytest.mark.skipif(not hasattr(spill.mmap, "MADV_DONTNEED"), reason="this system cannot take pages back")


def large_program() -> tuple[Program, dict[str, Any]]:
    """A shared array, one in a foreign order, one of odd size, and a small one."""
    rng = np.random.default_rng(0)
    shared = rng.integers(-128, 128, (1 << 12, 1 << 10)).astype(np.int8)
    arrays = {
        "weight": shared, "turned": np.asfortranarray(rng.standard_normal((999, 501)).astype(np.float32)),
        "odd": rng.integers(0, 256, 12345).astype(np.uint8), "small": np.arange(5),
    }  # fmt: skip
    return Program({}, (Op("a", "conv", (), {}, arrays), Op("b", "conv", (), {}, {"weight": shared})), (), ()), arrays


def test_values_stay_and_memory_goes() -> None:
    program, arrays = large_program()
    rested = spill.to_mmap(program)
    found = rested.ops[0].arrays
    assert found["small"] is arrays["small"] and rested.ops[1].arrays["weight"] is found["weight"]
    for _ in range(2):
        for name, want in arrays.items():
            assert found[name].dtype == want.dtype
            np.testing.assert_array_equal(found[name], want)
        held = resident()
        spill.evict()
        assert held - resident() > 0.9 * sum(a.nbytes for n, a in arrays.items() if n != "small")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


def test_a_program_that_is_gone_holds_no_file() -> None:
    rested = spill.to_mmap(large_program()[0])
    before = len(spill._mapped)
    del rested
    gc.collect()
    assert len(spill._mapped) < before


def test_what_cannot_or_need_not_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = large_program()
    small = Program({}, program.ops[1:], (), ())
    monkeypatch.setattr(spill, "LEAST", 1 << 30)
    assert spill.to_mmap(small) is small
    monkeypatch.undo()

    def full(**_: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert spill.to_mmap(program) is program
