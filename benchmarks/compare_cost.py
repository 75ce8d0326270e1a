"""What comparing costs: ``intact8.compare`` against one float32 forward over the same images, in one run.

    python benchmarks/compare_cost.py [--model resnet18] [--images 32] [--size 224] [--threads 2] [--rounds 5]

Contenders are interleaved; the ratio is of two medians. Bounds: 3 times the forward, and 1.5 GB resident for the whole
process (Python, torch, the network and its simulation included).
"""

from __future__ import annotations

import argparse
import resource
import warnings

import torch

import intact8
from coverage import build
from intact8.timing import interleaved

TIMES, RESIDENT = 3.0, 1.5e9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="of the square images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, x = build(args.model), torch.randn(args.images, 3, args.size, args.size)
    sim = intact8.prepare(model, x[:2]).eval()
    intact8.calibrate(sim, x[:8])
    with torch.no_grad():
        timings = interleaved(
            {"float32 forward": lambda: model(x), "compare": lambda: intact8.compare(model, sim, x)},
            seconds=0.0, least=args.rounds, warmup=1,
        )  # fmt: skip
    base, compare = timings["float32 forward"].median, timings["compare"].median
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    print(f"{args.model}, {args.images} images of {args.size} px, {args.threads} threads\n")
    print("| | seconds, median (quartiles) | ratio |\n|---|---|---|")
    for name, t in timings.items():
        print(f"| {name} | {t.median:.3f} ({t.lower:.3f}–{t.upper:.3f}) | {t.median / base:.2f} |")
    print(f"\npeak resident: {peak / 1e9:.2f} GB")
    print(f"bounds: at most {TIMES}× and {RESIDENT / 1e9} GB:", "kept" if compare <= TIMES * base and peak <= RESIDENT
          else "broken")  # fmt: skip


if __name__ == "__main__":
    main()
