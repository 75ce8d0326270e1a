"""Windows of pools and convolutions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from intact8.arithmetic import windows
from intact8.arithmetic.windows import pool_size, sees_padding_only


def test_windows_of_padding_alone_are_found() -> None:
    for n, k, s, p, d, ceil in itertools.product(*map(range, (1, 1, 1, 0, 1), (7, 5, 5, 5, 5)), (False, True)):
        starts = [o * s - p for o in range(pool_size(n, k, s, p, d, ceil))]
        want = any(all(not 0 <= start + j * d < n for j in range(k)) for start in starts)
        assert sees_padding_only(n, k, s, p, d, ceil) == want, (n, k, s, p, d, ceil)


def test_large_numbers_cost_nothing() -> None:
    assert not sees_padding_only(1 << 30, 1 << 16, 1, 1 << 15, 1)
    assert sees_padding_only(1 << 30, 2, 1, 1 << 16, 1)


def test_no_more_is_padded_than_windows_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    pad = np.pad

    def noted(x: Any, *args: Any, **named: Any) -> Any:
        y = pad(x, *args, **named)
        made.append(y.shape)
        return y

    monkeypatch.setattr(np, "pad", noted)
    x = np.arange(8, dtype=np.uint8)[None]
    for kernel, stride, padding, ceil, want in (
        (2, 2, 0, False, []), (3, 2, 1, False, [(1, 9)]), (3, 3, 0, True, [(1, 9)]), (3, 1, 1, False, [(1, 10)])
    ):  # fmt: skip
        made.clear()
        windows.max_pool(x, [kernel], [stride], [padding], [1], ceil)
        assert made == want
