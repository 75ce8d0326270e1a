"""Latency of float32, intact and ONNX Runtime int8 side by side: a Markdown table and a JSON file.

    python benchmarks/speed.py [--models resnet18 …] [--batches 1 8] [--threads 1 2] [--seconds 6] [--out FOLDER]

Contenders take turns within one run, so that a machine that slows down slows all of them; figures are medians, ratios
come with their quartiles. Outputs are checked against float32 before anything is timed. The machine's int8 peak is
measured in the same run and every int8 result also given as a share of it. Weights are random, batch norm statistics
real; shapes and operations, not values, decide the time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import intact
from coverage import build
from int8_peak import int8_peak
from intact.engines import get_engine
from intact.timing import Timing, interleaved
from peers import ort_session, quantize_onnx

MODELS = ("resnet18", "resnet50", "mobilenet_v2")
FLOAT, OURS, ORT = "torch fp32 channels_last", "intact onednn", "ONNX Runtime int8"
CALIBRATION = 32
LEAST_COSINE = 0.95
"""Below this an int8 output is not the network's any more, and its time means nothing."""


def count_macs(model: nn.Module, x: Tensor) -> int:
    """Multiply-accumulates of all convolutions and linear layers for one input batch."""
    total = 0

    def hook(module: Any, _: Any, y: Tensor) -> None:
        nonlocal total
        total += y.numel() * module.weight[0].numel()

    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return total


def cosine(a: Any, b: Any) -> float:
    """Mean over the batch of the cosine between centred outputs."""
    a, b = (np.asarray(v, np.float64).reshape(len(v), -1) for v in (a, b))
    a, b = (v - v.mean(1, keepdims=True) for v in (a, b))
    return float((np.sum(a * b, 1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).mean())


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch's thread count for a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def contenders(
    model: nn.Module, runner: Any, session: Any, x: Tensor
) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """Calls to time, and each one's cosine to float32."""
    last = x.contiguous(memory_format=torch.channels_last)
    array = x.numpy()

    def float_call() -> Tensor:
        with torch.inference_mode():
            y: Tensor = model(last)
        return y

    calls: dict[str, Callable[[], object]] = {
        FLOAT: float_call,
        OURS: lambda: runner.torch_call([x])[0],
        ORT: lambda: session.run(None, {"x": array})[0],
    }
    outputs = {name: np.asarray(call()) for name, call in calls.items()}
    cosines = {name: cosine(outputs[FLOAT], y) for name, y in outputs.items()}
    for name, value in cosines.items():
        if value < LEAST_COSINE:
            sys.exit(f"{name} computes something else: cosine {value:.3f} to float32")
    return calls, cosines


def measure(name: str, args: argparse.Namespace, peaks: dict[int, float]) -> list[dict[str, Any]]:
    """All settings of one model."""
    model = build(name)
    torch.manual_seed(1)
    data = torch.randn(CALIBRATION, 3, args.size, args.size)
    program = intact.quantize(model, data.split(8), recipe=intact.recipes.fast())
    macs = count_macs(model, data[:1])
    channels_last = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        onnx = quantize_onnx(build(name), data, Path(folder))
        for threads in args.threads:
            runner = get_engine("onednn").prepare(program, threads=threads)
            session = ort_session(onnx, threads)
            for batch in args.batches:
                x = torch.randn(batch, 3, args.size, args.size)
                with torch_threads(threads):
                    calls, cosines = contenders(channels_last, runner, session, x)
                    timings = interleaved(calls, seconds=args.seconds)
                results.append(record(name, batch, threads, macs * batch, timings, cosines, peaks[threads]))
                print(line(results[-1]), flush=True)
    return results


def record(
    name: str, batch: int, threads: int, macs: int, timings: dict[str, Timing], cosines: dict[str, float], peak: float
) -> dict[str, Any]:
    """One setting as JSON."""
    base = timings[FLOAT]
    out: dict[str, Any] = {"model": name, "batch": batch, "threads": threads, "gmacs": macs / 1e9, "contenders": {}}
    for who, t in timings.items():
        out["contenders"][who] = t.to_json() | {
            "speedup": base.median / t.median,
            # float32's quartiles over the contender's median: the spread of what it is compared with, and its own.
            "speedup_lower": base.lower / t.upper,
            "speedup_upper": base.upper / t.lower,
            "cosine": cosines[who],
            "share_of_peak": None if who == FLOAT else macs / t.median / 1e9 / peak,
        }
    return out


HEADER = (
    "| model | batch | threads | fp32 ms | intact ms | speed-up (quartiles) | of peak | ORT ms | speed-up (quartiles) "
    "| of peak | intact / ORT |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(r: dict[str, Any]) -> str:
    """One row of the table."""
    c = r["contenders"]

    def part(who: str) -> str:
        t = c[who]
        spread = f"{t['speedup']:.2f}× ({t['speedup_lower']:.2f}–{t['speedup_upper']:.2f})"
        return f"{t['median_ms']:.2f} | {spread} | {100 * t['share_of_peak']:.0f} %"

    ratio = c[ORT]["median_ms"] / c[OURS]["median_ms"]
    start = f"| {r['model']} | {r['batch']} | {r['threads']} | {c[FLOAT]['median_ms']:.2f} "
    return f"{start}| {part(OURS)} | {part(ORT)} | {ratio:.2f}× |"


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=6.0, help="per setting, all contenders together")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import onnxruntime

    peaks = {threads: int8_peak(threads) for threads in args.threads}
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "int8_peak_gmacs_per_s": peaks,
    }
    facts = f"torch {torch.__version__}, ONNX Runtime {onnxruntime.__version__}; int8 peak " + ", ".join(
        f"{p:.0f} GMAC/s with {t} thread(s)" for t, p in peaks.items()
    )
    print(facts + "\n\n" + HEADER, flush=True)
    results = [r for name in args.models for r in measure(name, args, peaks)]
    date = datetime.date.today().isoformat()
    args.out.mkdir(parents=True, exist_ok=True)
    table = "\n".join([f"# Speed, {date}", "", facts, "", HEADER, *map(line, results), ""])
    (args.out / f"{date}-speed.md").write_text(table)
    (args.out / f"{date}-speed.json").write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
