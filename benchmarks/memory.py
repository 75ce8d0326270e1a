"""What loading and serving a network adds to a process, and how long preparing it takes, on every engine.

    python benchmarks/memory.py [--rounds 5] [--model resnet50 | --file FILE] [--threads 1] [--output FILE]

Every measurement is a process of its own. *float32*: torch, eager, channels-last, its weights read from a state dict.
*intact8*: ``intact8.runtime.load`` with a remembered probe. Memory is the resident set above that of the same process
after its imports (intact8, the engine's library, and for float32 torch and torchvision) and one small product by that
library, which loads the code of it: when the network is loaded, after the first result of one sample, after the first
of eight, and at its highest. *Prepare* is ``get_engine(name).prepare`` on a loaded program: seconds of CPU, all threads
together, and of the clock. Medians; lowest and highest in brackets.
Bounds: prepared within 1.5 s, and after eight samples at most 0.5 times what float32 adds. Exit status 1 beyond them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
SECONDS, SHARE = 1.5, 0.5
LIBRARY = {"onednn": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino"}

START = """
import importlib, json, resource, sys, time
import numpy as np
path, way, threads, shape = sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(n) for n in sys.argv[4].split(",")]
def resident(key="VmRSS"):
    return int(open("/proc/self/status").read().split(key + ":")[1].split()[0]) / 1024
def samples(n):
    return np.random.default_rng(0).random((n, *shape[1:]), np.float32)
found = {}
def stage(name):
    found[name] = resident() - base
"""

PRODUCT = {
    "onednn": """
torch = importlib.import_module("torch")
torch.ones(64, 64) @ torch.ones(64, 64)
""",
    "onnxruntime": """
import onnxruntime
from onnx import TensorProto, helper
ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 64]) for n in "xy"]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "product", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
session.run(None, {"x": np.ones((64, 64), np.float32)})
del session, model, graph, ends
""",
    "openvino": """
import openvino
from openvino import opset14 as ov
x = ov.parameter([64, 64], np.float32)
model = openvino.Model([ov.result(ov.matmul(x, x, False, False))], [x])
compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads})
compiled([np.ones((64, 64), np.float32)])
del compiled, model, x
""",
}

FLOAT = """
import torch
from coverage import torchvision
models = torchvision().models
with torch.inference_mode():
    torch.set_num_threads(threads)
    torch.ones(64, 64) @ torch.ones(64, 64)
    base = resident()
    model = models.get_model(way, weights=None)
    model.load_state_dict(torch.load(path, weights_only=True))
    model = model.eval().to(memory_format=torch.channels_last)
    stage("loaded")
    for n in (1, 8):
        model(torch.from_numpy(samples(n)).contiguous(memory_format=torch.channels_last))
        stage(f"batch {n}")
found["peak"] = resident("VmHWM") - base
print(json.dumps(found))
"""

INTACT = """
import intact8.runtime, intact8.engines
for name in {libraries}:
    importlib.import_module(name)
{product}
base = resident()
runner = intact8.runtime.load(path, engine=way, threads=threads)
stage("loaded")
for n in (1, 8):
    runner(samples(n))
    stage(f"batch {{n}}")
found["peak"] = resident("VmHWM") - base
print(json.dumps(found))
"""

PREPARE = """
import intact8.engines
from intact8.program.file import load
for name in {libraries}:
    importlib.import_module(name)
program = load(path)
clock, cpu = time.perf_counter(), time.process_time()
intact8.engines.get_engine(way).prepare(program, threads=threads)
print(json.dumps({{"clock": time.perf_counter() - clock, "cpu": time.process_time() - cpu}}))
"""


def child(code: str, path: Path, way: str, threads: int, shape: str, cache: str) -> dict[str, float]:
    """What the script printed."""
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'benchmarks'}", "INTACT8_CACHE_DIR": cache,
        "OMP_NUM_THREADS": str(threads),
    }  # fmt: skip
    command = [sys.executable, "-c", START + code, str(path), way, str(threads), shape]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{way}: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def libraries(engine: str) -> list[str]:
    """What a process imports for an engine, besides intact8."""
    return ["onnxruntime", "onnx"] if engine == "onnxruntime" else [LIBRARY[engine]]


def intact8(engine: str) -> str:
    """The script of an engine."""
    return INTACT.format(libraries=libraries(engine), product=PRODUCT[engine])


def measure(given: argparse.Namespace, program: Path, state: Path | None, shape: str) -> dict[str, dict[str, Any]]:
    """Contender → stage → values of the rounds, the contenders taking turns."""
    found: dict[str, dict[str, list[float]]] = {}

    def note(name: str, values: dict[str, float], prefix: str = "") -> None:
        for key, value in values.items():
            found.setdefault(name, {}).setdefault(prefix + key, []).append(value)

    with tempfile.TemporaryDirectory() as cache:
        for engine in given.engines:  # remembers the probes, and warms the page cache
            child(intact8(engine), program, engine, given.threads, shape, cache)
        for _ in range(given.rounds):
            if state is not None:
                note("float32", child(FLOAT, state, given.model, given.threads, shape, cache))
            for engine in given.engines:
                names = libraries(engine)
                note(engine, child(intact8(engine), program, engine, given.threads, shape, cache))
                prepared = child(PREPARE.format(libraries=names), program, engine, given.threads, shape, cache)
                note(engine, prepared, "prepare ")
    return found


def report(found: dict[str, dict[str, list[float]]], given: argparse.Namespace, size: float) -> tuple[str, bool]:
    """The table, and whether the bounds hold."""
    lines = [
        "# Memory and preparation", "",
        f"`python benchmarks/memory.py --model {given.model} --rounds {given.rounds} --threads {given.threads}`, "
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores. "
        f"A program of {size:.1f} MB. MiB above the imports; medians, lowest and highest in brackets.", "",
        "| | loaded | batch 1 | batch 8 | batch 8 / float32 | peak | prepare, CPU | prepare, clock |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    fine = True
    floats = found.get("float32", {}).get("batch 8")
    for name, stages in found.items():
        cells = [name, *(spread(stages[key], "{:.0f}") for key in ("loaded", "batch 1", "batch 8"))]
        share = statistics.median(stages["batch 8"]) / statistics.median(floats) if floats else None
        cells += ["" if share is None else f"{share:.2f}", spread(stages["peak"], "{:.0f}")]
        if name != "float32":
            cells += [spread(stages[key], "{:.2f} s") for key in ("prepare cpu", "prepare clock")]
            fine &= statistics.median(stages["prepare clock"]) <= SECONDS and (share is None or share <= SHARE)
        else:
            cells += ["", ""]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"Bounds: {SECONDS} s, {SHARE} × float32: {'held' if fine else 'NOT HELD'}."]
    return "\n".join(lines), fine


def spread(values: list[float], form: str) -> str:
    """Median (lowest–highest)."""
    low, high = (form.format(v).removesuffix(" s") for v in (min(values), max(values)))
    return f"{form.format(statistics.median(values))} ({low}–{high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="resnet50", help="a name benchmarks/coverage.py knows")
    parser.add_argument("--file", type=Path, help="the model's program, where it is made already")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=list(LIBRARY), choices=list(LIBRARY))
    parser.add_argument("--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    from intact8.program.file import load
    from load_cost import make

    with tempfile.TemporaryDirectory() as folder:
        path = given.file or make(given.model, Path(folder), "default")
        state = Path(folder) / "state.pt"
        save_state(given.model, state)
        program = load(path)
        shape = ",".join(str(d or 1) for d in program.tensors[program.inputs[0]].shape)
        found = measure(given, path, state, shape)
        text, fine = report(found, given, path.stat().st_size / 1e6)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if fine else 1)


def save_state(model: str, path: Path) -> None:
    """The float32 weights, as a user has them."""
    import torch

    from coverage import torchvision

    torch.save(torchvision().models.get_model(model, weights=None).state_dict(), path)


if __name__ == "__main__":
    main()
