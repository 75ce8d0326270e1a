"""Fuzz plans of the native engine: ``python -m tests.fuzz.plans --count 1000000 --sanitizer address``.

Plans of random programs are written to a file; ``plan_fuzz.c``, linked with the library under a sanitizer, mutates,
opens and runs them. Exit status 1 where a sanitizer ended a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.conformance import build, networks, nonlinear
from tests.engines.native import random_attention, random_float_results
from tests.fuzz.programs import inputs_of, make

from intact8.engines.native.builder import step_fields
from intact8.engines.native.engine import NativeRunner, Plan
from intact8.errors import IntactError
from intact8.program.check import check
from intact8.program.program import Program

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "native" / "engine"

SANITIZERS = {
    "address": ("gcc", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
    "thread": ("clang", "-fsanitize=thread"),  # gcc's resolvers of clones run before it is ready
    "memory": ("clang", "-fsanitize=memory", "-fsanitize-memory-track-origins"),
    "none": ("gcc",),
}
"""Compiler and flags."""

LARGEST = 1 << 20
"""Bytes of the constants of a plan that becomes a seed."""

Words = npt.NDArray[np.int64]


class Recorder(NativeRunner):
    """A runner that keeps the words of its plans."""

    def __init__(self, program: Program) -> None:
        self.words: list[Words] = []
        super().__init__(program, 1)

    def _make(self, *given: Any) -> Plan:
        plan = super()._make(*given)
        self.words.append(plan.lowered.builder.words())
        return plan

    def seeds(self) -> Iterator[Words]:
        """Yield every plan with its constants, as the driver reads them."""
        parts = [np.array([len(self._constants.arrays)], np.int64)]
        for array in self._constants.arrays:
            padded = np.zeros(-(-array.nbytes // 8) * 8, np.uint8)
            padded[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
            parts += [np.array([array.nbytes], np.int64), padded.view(np.int64)]
        for words in self.words:
            yield np.concatenate([*parts, [words.size], words])


def programs(seed: int, count: int) -> Iterator[tuple[Program, dict[str, Any]]]:
    """Yield programs with inputs: of every kind by chance, of conformance, networks, attention, and float32 results."""
    rng = np.random.default_rng(seed)
    kinds = [*build.KINDS] * 3 + [*nonlinear.CASES]
    for index in range(count):
        if index % 4 == 3:
            kind = kinds[index // 4 % len(kinds)]
            case = nonlinear.CASES[kind](rng, False) if kind in nonlinear.CASES else build.draw(kind, rng, False)
            yield case.program, case.inputs
        elif index % 16 == 1:
            yield random_attention.draw(rng)
        elif index % 16 == 9:
            yield random_float_results.draw(rng)
        elif index % 40 == 0:
            program, x, _ = networks.draw(seed + index)
            yield program, {"x": x}
        elif (made := make(seed, index)) is not None:
            program = made[0]
            try:
                check(program)
            except IntactError:
                continue
            yield program, inputs_of(program, index, 2)


def in_four_bits(program: Program) -> Program:
    """Return a program whose int8 weights take 4 bits."""
    ops = [
        replace(op, arrays={role: a >> 4 if a.dtype == np.int8 else a for role, a in op.arrays.items()})
        for op in program.ops
    ]
    return replace(program, ops=tuple(ops))


def write_seeds(path: Path, seed: int, count: int) -> Counter[str]:
    """Write the plans of these programs, and return how many steps of which kind they have."""
    names, seen = list(step_fields()), Counter[str]()
    with path.open("wb") as stream, np.errstate(all="ignore"):
        for index, (program, inputs) in enumerate(programs(seed, count)):
            try:
                recorder = Recorder(in_four_bits(program) if index % 3 == 0 else program)
                recorder(inputs)
            except IntactError:
                continue
            for words in recorder.seeds():
                if words.nbytes <= LARGEST and (kinds := _kinds(words, names)) - Counter(["call"]):
                    stream.write(words.tobytes())
                    seen += kinds
    return seen


def _kinds(seed: Words, names: list[str]) -> Counter[str]:
    """Return the kinds of the steps of a seed."""
    at = 1
    for _ in range(int(seed[0])):
        at += 1 + -(-int(seed[at]) // 8)
    plan = seed[at + 1 :]
    at, found = 3 + 3 * int(plan[1]), Counter[str]()
    for _ in range(int(plan[2])):
        found[names[int(plan[at])]] += 1
        at += int(plan[at + 1])
    return found


def compile_driver(folder: Path, sanitizer: str) -> Path | None:
    """Return the driver, compiled with the library; None where there is no compiler or sanitizer.

    Args:
        folder: where it is written.
        sanitizer: a key of ``SANITIZERS``.
    """
    compiler, *flags = SANITIZERS[sanitizer]
    sources = [str(p) for p in sorted(ENGINE.glob("*.c")) if p.name != "module.c"]
    target = folder / f"plan_fuzz_{sanitizer}"
    command = [
        compiler,
        "-std=gnu11",
        "-g1",
        "-O1",
        "-ffp-contract=off",
        "-fno-omit-frame-pointer",
        *flags,
        f"-I{ENGINE}",
    ]
    command += [str(ROOT / "tests/fuzz/plan_fuzz.c"), *sources, "-lpthread", "-lm", "-o", str(target)]
    if shutil.which(compiler) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "fsanitize" not in done.stderr and "cannot find" not in done.stderr:
        raise AssertionError(done.stderr)
    return target if done.returncode == 0 else None


def fuzz(
    driver: Path, seeds: Path, first: int, count: int, threads: int = 1, isa: str = ""
) -> tuple[dict[str, int], str]:
    """Return the driver's counts, and what sanitizers wrote."""
    environment = os.environ | {
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "halt_on_error=1:allocator_may_return_null=1",
        "MSAN_OPTIONS": "allocator_may_return_null=1",
    }
    if isa:
        environment["INTACT8_ISA"] = isa
    command = [str(driver), str(seeds), str(first), str(count), str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="mutated plans")
    parser.add_argument("--programs", type=int, default=800, help="programs whose plans are mutated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first run, to make one again")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sanitizer", choices=sorted(SANITIZERS), default="address")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(dict(write_seeds(folder / "seeds", given.seed, given.programs)))
        driver = compile_driver(folder, given.sanitizer)
        if driver is None:
            parser.error(f"there is no compiler for the sanitizer {given.sanitizer}")
        start = time.perf_counter()
        counts, errors = fuzz(driver, folder / "seeds", given.first, given.count, given.threads)
        print(errors, counts, f"{(counts['next'] - given.first) / (time.perf_counter() - start):.0f} runs/s", sep="\n")
    raise SystemExit(counts["faults"] > 0)


if __name__ == "__main__":
    main()
