"""What calibration costs: a batch through the observing simulation, against the float32 network alone.

    python benchmarks/observer_cost.py [--models resnet18 …] [--batch 8] [--threads 2] [--observers histogram minmax …]

The peer is torch.ao FX, prepared with its default x86 configuration (histogram observers). Contenders are interleaved;
each figure is the ratio of two medians of one run, with quartiles.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import intact8
from coverage import build
from intact8.timing import interleaved


def ours(model: nn.Module, x: Tensor, observer: str) -> Callable[[Tensor], Any]:
    """The simulation as calibration runs it: float network, every point observing."""
    sim = intact8.prepare(model, x, intact8.Recipe(activation=intact8.Scheme(observer=observer))).eval()
    sim.fake_quantize(False)
    sim.observe(True)
    return sim


def torch_ao(model: nn.Module, x: Tensor) -> Callable[[Tensor], Any]:
    """torch.ao FX after prepare: the network with its observers."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_fx

    prepared: nn.Module = prepare_fx(copy.deepcopy(model), get_default_qconfig_mapping("x86"), (x,))
    return prepared


def table(name: str, args: argparse.Namespace) -> list[str]:
    """Rows of one model."""
    model, x = build(name), torch.randn(args.batch, 3, args.size, args.size)
    if args.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    calls: dict[str, Callable[[Tensor], Any]] = {"float32": model}
    calls |= {f"intact8 {o}": ours(model, x, o) for o in args.observers}
    calls["torch.ao FX histogram"] = torch_ao(model, x)
    with torch.no_grad():
        timings = interleaved({n: lambda call=call: call(x) for n, call in calls.items()}, seconds=args.seconds)
    base = timings["float32"].median
    return [
        f"| {name} | {n} | {t.median * 1e3:.1f} ({t.lower * 1e3:.1f}–{t.upper * 1e3:.1f}) | {t.median / base:.3f} |"
        for n, t in timings.items()
    ]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["resnet18", "mobilenet_v2"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the square images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="per model, all contenders together")
    parser.add_argument("--observers", nargs="+", default=["histogram", "minmax"])
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    print(f"batch {args.batch}, {args.threads} threads, {'channels-last' if args.channels_last else 'contiguous'}\n")
    print("| network | contender | ms, median (quartiles) | ratio to float32 |\n|---|---|---|---|")
    for name in args.models:
        print("\n".join(table(name, args)), flush=True)


if __name__ == "__main__":
    main()
