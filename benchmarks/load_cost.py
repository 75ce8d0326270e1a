"""What safety costs when a program is loaded: the time to the first result, against the engine's own bare preparation.

    python benchmarks/load_cost.py [--rounds 9] [--model resnet50 | --file FILE] [--output FILE]

Every load is a process of its own that has imported numpy and intact8 and, in the second table, the engine's library.
*bare*: the program's JSON and arrays, unchecked, handed to the engine, and one call. *warm*: ``intact8.runtime.load``
that remembers its probe, and one call. *first*: the same with an empty cache, so with a probe. The three take turns;
ratios are those of each round. The bounds are for the first table: warm at most 1.5 times bare, first at most 3 times.
Exit status 1 beyond them.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
WAYS, BOUNDS = ("bare", "warm", "first"), {"warm": 1.5, "first": 3.0}
LIBRARY = {"native": "", "onednn": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino"}
"""What an engine needs to be imported beside intact8."""


class Failed(Exception):
    """A load that did not end with a result."""


LOAD = """
import sys, time
import numpy as np
import intact8.runtime
import intact8.engines
from intact8.program.document import FORMAT, from_document
path, engine, way, library = sys.argv[1:5]
if library:
    __import__(library)
    if library == "onnxruntime":
        import onnx
x = np.zeros([int(n) for n in sys.argv[5].split(",")], np.float32)
started = time.perf_counter()
if way == "bare":
    import json, struct
    from safetensors.numpy import load as deserialize
    data = open(path, "rb").read()
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    arrays = deserialize(data)
    program = from_document(json.loads(header["__metadata__"][FORMAT]), arrays)
    intact8.engines.get_engine(engine).prepare(program)({program.inputs[0]: x})
else:
    intact8.runtime.load(path, engine=engine)(x)
print(time.perf_counter() - started)
"""


def once(path: Path, engine: str, way: str, library: str, shape: str, cache: Path) -> float:
    """Seconds of one load and call in a process of its own."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT / "src"), "INTACT8_CACHE_DIR": empty if way == "first" else str(cache),
        }  # fmt: skip
        command = [sys.executable, "-c", LOAD, str(path), engine, way, library, shape]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise Failed(f"{way}: {done.stderr.strip().splitlines()[-1]:.200}")
    return float(done.stdout)


def measure(path: Path, engine: str, library: str, shape: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, round by round, the order turning."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as cache:
        once(path, engine, "warm", library, shape, Path(cache))  # remembers the probe, and warms the page cache
        for i in range(rounds):
            for way in WAYS[i % 3 :] + WAYS[: i % 3]:
                found[way].append(once(path, engine, way, library, shape, Path(cache)))
    return found


def make(model: str, folder: Path, recipe: str = "fast") -> Path:
    """The model of torchvision with random weights, quantized by a recipe of ``intact8.recipes``."""
    import warnings

    import torch

    import intact8
    from coverage import build

    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = torch.randn(32, 3, 224, 224).split(8)
        program = intact8.quantize(build(model), data, recipe=getattr(intact8.recipes, recipe)())
    return program.save(folder / f"{model}.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--file", type=Path, help="a program file of one float32 input, in place of a model")
    parser.add_argument("--engines", nargs="+", default=list(LIBRARY), choices=list(LIBRARY))
    parser.add_argument("--output", type=Path, help="also write the tables here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.file or make(given.model, Path(folder))
        text, fine = report(path, given)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if fine else 1)


TITLES = {
    False: "A new process: the engine's library is imported, too",
    True: "The engine's library is imported already",
}
HEADER = ["| engine | bare | warm | warm / bare | first | first / bare |", "|---|---|---|---|---|---|"]


def report(path: Path, given: argparse.Namespace) -> tuple[str, bool]:
    """The tables, and whether the bounds hold."""
    from intact8.program.file import load

    program = load(path)
    shape = ",".join(str(d or 1) for d in program.tensors[program.inputs[0]].shape)
    size, bounds = path.stat().st_size / 1e6, ", ".join(f"{way} {bound}" for way, bound in BOUNDS.items())
    lines = [
        "# What safety costs at load", "",
        f"`python benchmarks/load_cost.py --model {given.model} --rounds {given.rounds}`, "
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores. "
        f"A file of {size:.1f} MB; load to first result, medians; in brackets quartiles of the rounds' ratios.",
    ]  # fmt: skip
    fine = True
    for imported, title in TITLES.items():
        lines += ["", f"## {title}", "", *HEADER]
        for engine in given.engines:
            try:
                found = measure(path, engine, LIBRARY[engine] if imported else "", shape, given.rounds)
            except Failed as error:
                lines.append(f"| {engine} | {error} | | | | |")
                fine = False
                continue
            ratios = {way: sorted(a / b for a, b in zip(found[way], found["bare"], strict=True)) for way in BOUNDS}
            cells = [engine, milliseconds(found["bare"])]
            for way, values in ratios.items():
                quarter = len(values) // 4
                spread = f"({values[quarter]:.2f}–{values[-1 - quarter]:.2f})"
                cells += [milliseconds(found[way]), f"{statistics.median(values):.2f} {spread}"]
            fine &= imported or all(statistics.median(v) <= BOUNDS[way] for way, v in ratios.items())
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    lines += ["", f"Bounds of the first table: {bounds}: {'held' if fine else 'NOT HELD, or an engine failed'}."]
    return "\n".join(lines), fine


def milliseconds(seconds: list[float]) -> str:
    """Their median."""
    return f"{statistics.median(seconds) * 1e3:.0f} ms"


if __name__ == "__main__":
    main()
