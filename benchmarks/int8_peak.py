"""The machine's int8 peak: the fastest u8·s8 product torch's oneDNN reaches, in GMAC/s; every speed is a share of it.

python benchmarks/int8_peak.py [--threads 1 2]
"""

from __future__ import annotations

import argparse
import time

import torch

SHAPES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 1024))
"""Rows, columns, depth."""


def int8_peak(threads: int, repeats: int = 15) -> float:
    """GMAC/s of the best call over all shapes, with ``threads`` threads. torch's thread count is set back."""
    before, best = torch.get_num_threads(), 0.0
    torch.set_num_threads(threads)
    try:
        for rows, columns, depth in SHAPES:
            x = torch.randint(0, 256, (rows, depth), dtype=torch.uint8)
            weight = torch.randint(-63, 64, (columns, depth), dtype=torch.int8)
            packed = torch.ops.onednn.qlinear_prepack.default(weight, [rows, depth])
            scales, zeros = torch.full((columns,), 1e-4), torch.zeros(columns, dtype=torch.int32)
            call = torch.ops.onednn.qlinear_pointwise.default
            for i in range(repeats + 3):
                start = time.perf_counter()
                call(x, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.uint8, "none", [], "")
                if i >= 3:
                    best = max(best, rows * columns * depth / (time.perf_counter() - start) / 1e9)
    finally:
        torch.set_num_threads(before)
    return best


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    for threads in parser.parse_args().threads:
        print(f"{threads} thread(s): {int8_peak(threads):.0f} GMAC/s")


if __name__ == "__main__":
    main()
