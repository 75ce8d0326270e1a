"""What sensitivity costs: all layers by ``intact8.sensitivity``, against one full run per layer, in one run.

    python benchmarks/sensitivity_cost.py [--model resnet18] [--images 16] [--size 224] [--threads 2] [--rounds 3]
        [--modes alone without cumulative]

A full run is what one would do without: switch fake quantization on at that layer of the simulation, run all images
through it, and take the metric. It is timed at a few layers, evenly spread, interleaved with the whole sensitivity.
Bound: 0.35 × layers × full run.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch

import intact8
from coverage import build
from intact8.diagnose.sensitivity.metrics import make_metric
from intact8.diagnose.sensitivity.partial_network import PartialNetwork

SHARE = 0.35


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--size", type=int, default=224, help="of the square images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", default=["alone", "without", "cumulative"])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, x = build(args.model), torch.randn(args.images, 3, args.size, args.size)
    sim = intact8.prepare(model, x[:2]).eval()
    intact8.calibrate(sim, x[:8])
    layers = [node.name for node in PartialNetwork(sim).layers()]
    metric = make_metric("sqnr", True)

    def full(layer: str, mode: str) -> None:
        point = sim.placed.point_of[layer]
        sim.fake_quantize(mode == "without")
        chosen = layers[: layers.index(layer) + 1] if mode == "cumulative" else [layer]
        for name in chosen:
            sim.points[sim.placed.point_of[name] if mode == "cumulative" else point].quantizing = mode != "without"
            if name in sim.weight_points:
                sim.weight_points[name].quantizing = mode != "without"
        try:
            y = sim(x)
            metric.sums([y], [y], None, None, len(x))
        finally:
            sim.fake_quantize(True)

    print(f"{args.model}, {len(layers)} layers, {args.images} images of {args.size} px, {args.threads} threads\n")
    print("| mode | all layers, s | float32 forward, s | full run, s | of layers × full runs |\n|---|---|---|---|---|")
    with torch.no_grad():
        for mode in args.modes:
            times: dict[str, list[float]] = {"all": [], "float": [], "full": []}
            some = layers[:: max(1, len(layers) // 6)]
            intact8.sensitivity(sim, x[:2], modes=(mode,))
            for _ in range(args.rounds):
                calls = {"all": [lambda mode=mode: intact8.sensitivity(sim, x, modes=(mode,))],
                         "float": [lambda: model(x)],
                         "full": [lambda layer=layer, mode=mode: full(layer, mode) for layer in some]}  # fmt: skip
                for name, group in calls.items():
                    for call in group:
                        begin = time.perf_counter()
                        call()
                        times[name].append(time.perf_counter() - begin)
            whole, floats, run = (float(np.median(times[name])) for name in ("all", "float", "full"))
            share = whole / (len(layers) * run)
            print(f"| {mode} | {whole:.2f} | {floats:.3f} | {run:.3f} | {share:.3f}"
                  f"{'' if share <= SHARE else f' (above {SHARE})'} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
