"""What opening a file costs, over random ones, valid and hostile: at most 1 s per MB and 50 times its size.

    python benchmarks/header_costs.py [--count 200] [--seed 0]

Starts from what ``tests/program/test_costs.py`` holds a file to, and draws what is large: operations, tensors, lists,
depth, golden samples, recipe and provenance, named dimensions, several of them at once; half of the files have arrays,
many, large, or such that nobody uses. Exit status 1 beyond a bound.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.program.test_costs import (  # noqa: E402
    HOSTILE,
    ROOM,
    SECONDS,
    START,
    TIMES,
    WITH_ARRAYS,
    as_file,
    chain,
    cost,
    nested,
    with_arrays,
)

Rng = np.random.Generator


def junk(rng: Rng, size: int, depth: int = 0) -> Any:
    """A JSON value of about so many numbers, wide or deep."""
    kind = int(rng.integers(0, 6))
    if size <= 1 or depth > 40:
        return [0, -1, 2**63, 1e308, "x" * int(rng.integers(1, 60)), None, True][int(rng.integers(0, 7))]
    if kind == 0:
        return list(range(size))
    if kind == 1:
        return {f"k{i}": i for i in range(size)}
    if kind == 2:
        return "y" * size
    if kind == 3:
        return [junk(rng, size - 1, depth + 1)]
    parts = int(rng.integers(2, 6))
    inside = [junk(rng, size // parts, depth + 1) for _ in range(parts)]
    return inside if kind == 4 else dict(zip("abcdef", inside, strict=False))


def series(rng: Rng, count: int) -> dict[str, Any]:
    """Operations one behind another, or that read many tensors."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("reshape", {"shape": [-1, 4]}), ("table", {"fn": "t"}),
        ("slice", {"axis": 1, "start": 0, "end": 4, "step": 1}),
        ("add", {"a": [1, 1], "b": 1, "lo": 0, "hi": 255}), ("permute", {"dims": [0, 1]}), ("cat", {"axis": 1}),
        ("roll", {"shifts": [1], "dims": [1]}), ("float.relu", {}), ("dequantize", {}), ("matmul", {"a": 1, "b": 1}),
    ]  # fmt: skip
    kind, attrs = kinds[int(rng.integers(0, len(kinds)))]
    made = chain(kind, attrs, count, None, 4)
    for i, op in enumerate(made["ops"]):
        width = 2 if kind in ("add", "matmul", "cat") else 1
        op["inputs"] = [f"p{max(i - int(n), 0)}" if i else "x" for n in rng.integers(1, 3, width)]
    return made


def arrays_of(rng: Rng) -> tuple[dict[str, Any], dict[str, Any]]:
    """Operations with arrays: many with small ones or a few with large ones, and sometimes arrays nobody uses."""
    names = list(WITH_ARRAYS)
    count = int(10 ** rng.uniform(0, 3))
    made, arrays = with_arrays(
        names[int(rng.integers(len(names)))], count, int(10 ** rng.uniform(0, 3 - np.log10(count)))
    )
    if rng.random() < 0.3:
        dtype = [np.uint8, np.float64, np.int64, np.bool_][int(rng.integers(4))]
        shape = tuple(int(n) for n in rng.integers(0, 3, int(rng.integers(0, 9))))
        arrays |= {f"z{i}/w": np.zeros(shape, dtype) for i in range(int(10 ** rng.uniform(0, 3.5)))}
    return made, arrays


def changed(rng: Rng, made: dict[str, Any], size: int) -> None:
    """One of the document's parts becomes large."""
    what = int(rng.integers(0, 12))
    ops, tensors = made["ops"], made["tensors"]
    op, t = ops[int(rng.integers(0, len(ops)))], tensors[int(rng.integers(0, len(tensors)))]
    if what == 0:
        made["provenance"] = {"recipe": junk(rng, size), "torch": junk(rng, size)}
    elif what == 1:
        made["golden"] = {"samples": [["low", i] for i in range(min(size, 16))],
                          "checksums": {x["name"]: [0] * 16 for x in tensors}, "outputs": junk(rng, size)}  # fmt: skip
    elif what == 2:
        made["golden"] = {"samples": [["low", 1]] * size, "checksums": {}, "outputs": {}}
    elif what == 3:
        made["dimensions"] = {f"n{i}": [1, None] for i in range(size)}
        t["shape"] = [None, *(f"n{i}" for i in range(min(size, 64)))]
    elif what == 4:
        made["structure"] = nested(size) if size < 300 else {"list": [junk(rng, 3) for _ in range(size)]}
    elif what == 5:
        op["attrs"] = {**op["attrs"], "shape": junk(rng, size), "a": junk(rng, size), "dims": junk(rng, size)}
    elif what == 6:
        t["shape"] = [int(n) for n in rng.integers(0, 2**31, size)]
    elif what == 7:
        op["inputs"] = [tensors[int(n)]["name"] for n in rng.integers(0, len(tensors), size)]
    elif what == 8:
        made["inputs"] = [x["name"] for x in tensors] * (1 + size // len(tensors))
    elif what == 9:
        made["outputs"] = [t["name"]] * size
    elif what == 10:
        op["certificate"] = junk(rng, size)
    else:
        t["name"] = op["name"] = "n" * size


def main() -> int:
    """See this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    worst, slowest, beyond = 0.0, 0.0, 0
    for seed in range(args.seed, args.seed + args.count):
        rng = np.random.default_rng(seed)
        names = list(HOSTILE)
        made, arrays = series(rng, int(10 ** rng.uniform(0, 3.6))), dict[str, Any]()
        if seed % 2:
            made, arrays = arrays_of(rng)
        elif rng.random() < 0.2:
            import copy

            made = copy.deepcopy(HOSTILE[names[int(rng.integers(0, len(names)))]])
        for _ in range(int(rng.integers(0, 4))):
            changed(rng, made, int(10 ** rng.uniform(0, 4.5)))
        data = as_file(made, arrays)
        seconds, memory = cost(data)
        slow, large = seconds / (SECONDS * len(data) / 1e6 + START), memory / (TIMES * len(data) + ROOM)
        worst, slowest = max(worst, large), max(slowest, slow)
        if slow > 1 or large > 1:
            beyond += 1
            print(
                f"seed {seed}: {len(data)} bytes, {seconds:.2f} s, {memory >> 20} MiB: {made['ops'][0]['kind']}",
                flush=True,
            )
    print(
        f"{args.count} files, {beyond} beyond: at most {slowest:.2f} of the time and {worst:.2f} of the memory allowed"
    )
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
