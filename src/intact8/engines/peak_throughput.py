"""Measures the int8 peak of this machine, to which speeds are compared."""

from __future__ import annotations

import time

SHAPES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 1024))
"""Rows, columns and depths of the products that are timed."""


def int8_peak(threads: int | None = None, repeats: int = 15) -> float | None:
    """Return Multiply-accumulates per second of the fastest product of unsigned and signed bytes torch's oneDNN reaches
    here.

    Args:
        threads: threads of the product, set back afterwards; None leaves torch's setting.
        repeats: timed calls per shape; the best one counts.

    Returns:
        GMAC/s, or None where there is no torch with oneDNN.

    Example:
        >>> peak = int8_peak(1, repeats=1)
        >>> peak is None or peak > 0
        True
    """
    try:
        import torch

        call = torch.ops.onednn.qlinear_pointwise.default
        prepack = torch.ops.onednn.qlinear_prepack.default
    except (ImportError, AttributeError):
        return None
    before, best = torch.get_num_threads(), 0.0
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        for rows, columns, depth in SHAPES:
            x = torch.randint(0, 256, (rows, depth), dtype=torch.uint8)
            weight = torch.randint(-63, 64, (columns, depth), dtype=torch.int8)
            packed = prepack(weight, [rows, depth])
            scales, zeros = torch.full((columns,), 1e-4), torch.zeros(columns, dtype=torch.int32)
            for i in range(repeats + 3):
                start = time.perf_counter()
                call(x, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.uint8, "none", [], "")
                if i >= 3:
                    best = max(best, rows * columns * depth / (time.perf_counter() - start) / 1e9)
    finally:
        torch.set_num_threads(before)
    return best
