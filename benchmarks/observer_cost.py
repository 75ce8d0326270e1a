"""What observing costs: a float32 network with observers on its activations, against the network alone.

    python benchmarks/observer_cost.py [--model resnet18] [--batch 8] [--threads 2] [--observers NAME …]

Observers hang on forward hooks of the input and of every module a quantized network would observe (convolution + batch
norm + activation count as one, so hooks sit on what ends such a group). Contenders are interleaved; each figure is the
ratio of two medians of one run, with quartiles.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from intact.calibration import list_observers, make_observer
from intact.timing import interleaved

ENDS = (nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.Hardsigmoid, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Linear)
"""Modules whose output a quantized network stores; max pooling shares its input's range and is left out below."""

_LIBRARIES: list[Any] = []

Observe = Callable[[Tensor], object]


def load(name: str) -> nn.Module:
    """A torchvision classifier with random weights, or what ``package.module:factory`` returns."""
    if ":" in name:
        module, _, factory = name.partition(":")
        made: nn.Module = getattr(importlib.import_module(module), factory)()
        return made
    try:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for op in ("nms", "qnms"):
            library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
    except RuntimeError:
        pass  # this torchvision has its compiled operators; without them their schemas must exist before the import
    import torchvision

    model: nn.Module = torchvision.models.get_model(name, weights=None)
    return model


def observed_modules(model: nn.Module) -> list[nn.Module]:
    """Modules whose outputs are quantized: activations, linear layers, pools, and batch norms nothing fuses behind."""
    children = [m for m in model.modules() if not list(m.children())]
    found = []
    for module, after in zip(children, [*children[1:], None], strict=True):
        bare_norm = isinstance(module, nn.BatchNorm2d) and not isinstance(after, ENDS)
        if bare_norm or (isinstance(module, ENDS) and not isinstance(module, nn.MaxPool2d)):
            found.append(module)
    return found


def with_hooks(model: nn.Module, make: Callable[[], Observe]) -> Callable[[Tensor], Any]:
    """A call of ``model`` with an observer per quantized tensor, hooks in place only during the call."""
    first = make()
    observers = [(module, make()) for module in observed_modules(model)]

    def call(x: Tensor) -> Any:
        handles = [module.register_forward_hook(lambda m, i, y, see=see: see(y)) for module, see in observers]
        try:
            first(x)
            return model(x)
        finally:
            for handle in handles:
                handle.remove()

    return call


def ours(name: str) -> Callable[[], Observe]:
    """New intact observers by name; their searches are timed apart."""

    def make() -> Observe:
        args = {"fixed": {"lo": -1.0, "hi": 1.0}}.get(name, {})
        return make_observer(name, **args).observe

    return make


def search_time(model: nn.Module, x: Tensor, name: str) -> tuple[float, int]:
    """Seconds to turn what all observers saw into scales, once per calibration."""
    observers: list[Any] = []

    def make() -> Observe:
        observers.append(make_observer(name))
        return observers[-1].observe

    with_hooks(model, make)(x)
    begin = time.perf_counter()
    for observer in observers:
        observer.calculate_qparams(0, 255, False)
    return time.perf_counter() - begin, len(observers)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a torchvision classifier, or package.module:factory")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224, help="of the square images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--observers", nargs="+", default=["histogram", "minmax"], choices=list_observers())
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = load(args.model).eval()
    x = torch.randn(args.batch, 3, args.size, args.size)
    if args.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    calls = {"float32": model, **{name: with_hooks(model, ours(name)) for name in args.observers}}
    with torch.no_grad():
        timings = interleaved({n: lambda call=call: call(x) for n, call in calls.items()}, seconds=args.seconds)
        base = timings["float32"].median
        print(
            f"{args.model}, batch {args.batch}, {args.threads} threads, {len(observed_modules(model)) + 1} observers\n"
        )
        print(
            "| contender | ms, median | quartiles | ratio to float32 | scales, ms per tensor |\n|---|---|---|---|---|"
        )
        for name, t in timings.items():
            search = ""
            if name in args.observers:
                seconds, n = search_time(model, x, name)
                search = f"{seconds / n * 1e3:.1f}"
            spread = f"{t.lower * 1e3:.1f}–{t.upper * 1e3:.1f}"
            print(f"| {name} | {t.median * 1e3:.1f} | {spread} | {t.median / base:.3f} | {search} |")


if __name__ == "__main__":
    main()
