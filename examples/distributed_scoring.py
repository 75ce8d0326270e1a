"""Score more data than one process holds: every worker runs the same file, and proves to compute the same integers.

    torchrun --nproc-per-node 2 examples/distributed_scoring.py FILE SAMPLES.npy -o SCORES.npy

Each worker maps the array from disk and scores every n-th part of it. Before that all workers run the same first
samples and compare digests of every integer tensor: another CPU, another engine or another file would be named here.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch.distributed as dist

import intact8
from intact8.engines import get_engine

CHECKED = 4
"""Samples on which workers compare their integers."""


def digest(program: intact8.Program, samples: np.ndarray, engine: str) -> str:
    """Return the SHA-256 of all integer tensors of a run."""
    tensors = get_engine(engine).prepare(program).tensors({program.inputs[0]: samples})
    found = hashlib.sha256()
    for name in program.integer_tensors():
        found.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return found.hexdigest()


def score(file: Path, data: Path, out: Path, engine: str = "native", batch_size: int = 64) -> list[str]:
    """Score the worker's share of the samples, and return the digests of all workers, which are equal.

    Args:
        file: of a program with one input and one output.
        data: ``.npy`` of samples.
        out: ``.npy`` that the first worker creates and all fill.
        engine: engine of every worker.
        batch_size: samples in memory at once.

    Raises:
        RuntimeError: a worker computes other integers.
    """
    program = intact8.Program.load(file)
    samples = np.load(data, mmap_mode="r")
    rank, workers = dist.get_rank(), dist.get_world_size()
    digests: list[str] = [""] * workers
    dist.all_gather_object(digests, digest(program, np.array(samples[:CHECKED]), engine))
    other = [i for i, found in enumerate(digests) if found != digests[0]]
    if other:
        raise RuntimeError(f"workers {other} compute other integers than worker 0")
    first = np.asarray(program.run(np.array(samples[:1]), engine=engine))
    if rank == 0:
        np.lib.format.open_memmap(out, "w+", first.dtype, (len(samples), *first.shape[1:])).flush()
    dist.barrier()
    scores = np.lib.format.open_memmap(out, "r+")
    for start in range(rank * batch_size, len(samples), workers * batch_size):
        part = slice(start, start + batch_size)
        scores[part] = program.run(np.array(samples[part]), engine=engine)
    scores.flush()
    dist.barrier()
    return digests


def main() -> None:
    """Score as one of the workers that torchrun started."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("scores.npy"))
    parser.add_argument("--engine", default="native")
    asked = parser.parse_args()
    dist.init_process_group("gloo")
    digests = score(asked.file, asked.data, asked.out, asked.engine)
    if dist.get_rank() == 0:
        print(f"{len(digests)} workers, the same integers on each: {digests[0][:16]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
