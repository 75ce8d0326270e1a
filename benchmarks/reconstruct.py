"""Weights of 4 and 3 bits and activations of 4, rounded to nearest, by covariance, and reconstructed, without training.

    python benchmarks/reconstruct.py [--assets DIR] [--only fashion-cnn …] [--iterations 500] [--samples 256] [--peers]

Networks are trained ones of the assets: Fashion-MNIST ``cnn`` and ``dw``, MobileNetV1 ×0.25 on 500 ImageNet images,
KWT-1 on speech commands; ``resnet`` and ``vit``, small ones, are trained here on Fashion-MNIST. Small layers, which
together hold a twentieth of all weights, keep weights of 8 bits, and with activations of 4 bits the first and the last
layer have results of 8. Prints one Markdown table: top-1 on held-out samples, the difference from float32 on the same
samples with a 95 % interval of the paired difference, and seconds. With ``--peers`` NNCF's and torch.ao's W8A8 stand
beside it: neither has 4-bit weights with 8-bit activations for convolutions.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch
from torch import Tensor

import intact8
from assets import Task, fashion, folder, keywords, mobilenet
from intact8 import recipes
from qat_resnet import Vit, resnet, trained_on_fashion

CASES = [(8, 8), (4, 8), (4, 4), (3, 8)]
METHODS = ["none", "gptq", "adaround", "brecq", "qdrop"]


def hits(predict: Any, task: Task) -> Tensor:
    """Return whether each held-out sample is classified rightly."""
    with torch.no_grad():
        found = [torch.as_tensor(predict(x)).argmax(1) for x in task.held_out.split(100)]
    return (torch.cat(found) == task.labels).double()


def difference(found: Tensor, base: Tensor) -> str:
    """Return the mean paired difference in points, and half of its 95 % interval."""
    points = 100 * (found - base)
    return f"{points.mean():+.2f} ± {1.96 * points.std() / len(points) ** 0.5:.2f}"


def run(task: Task, bits: tuple[int, int], method: str, options: argparse.Namespace, base: Tensor) -> None:
    """Reconstruct, measure and print one row."""
    learned = method in ("adaround", "brecq", "qdrop")
    arguments = {"iterations": options.iterations, "samples": options.samples} if learned else {}
    recipe = recipes.reconstruct(*bits, method=method, **arguments)
    start = time.process_time()
    sim = intact8.prepare(task.model, task.calibration[:2], recipe)
    intact8.calibrate(sim, task.calibration[: options.samples].split(32))
    seconds = time.process_time() - start
    program = intact8.convert(sim)
    report = intact8.verify(program, task.held_out[:16], sim=sim)
    found = hits(program.run, task)
    cells = [task.name, str(len(base)), f"W{bits[0]}A{bits[1]}", method, f"{100 * found.mean():.2f}"]
    cells += [difference(found, base), f"{report.mismatches} of {report.elements:,}", f"{seconds:.0f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", default=["fashion-cnn", "fashion-dw", "mobilenetv1_025", "kwt"])
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--bits", nargs="*", default=[f"{w},{a}" for w, a in CASES], help="weights,activations")
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--trained-on", type=int, default=60000, help="images that resnet and vit are trained on")
    parser.add_argument("--held-out", type=int, default=10000, help="at most so many samples")
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(options.assets)
    tasks = {
        "fashion-cnn": lambda: fashion(root, "cnn", options.samples),
        "fashion-dw": lambda: fashion(root, "dw", options.samples),
        "mobilenetv1_025": lambda: mobilenet(root, min(options.samples, 128)),
        "kwt": lambda: keywords(root, options.samples),
        "resnet": lambda: trained_on_fashion("resnet", resnet, images=options.trained_on),
        "vit": lambda: trained_on_fashion("vit", Vit, lr=1e-3, images=options.trained_on),
    }
    print("| network | held out | bits | method | top-1 % | vs float32, points | integers that differ | CPU s |")
    print("|---" * 8 + "|")
    for name in options.only:
        task = tasks[name]()
        task = task._replace(held_out=task.held_out[: options.held_out], labels=task.labels[: options.held_out])
        base = hits(task.model, task)
        print(f"| {name} | {len(base)} | float32 | | {100 * base.mean():.2f} | | | |", flush=True)
        for text in options.bits:
            w, a = (int(part) for part in text.split(","))
            for method in options.methods:
                run(task, (w, a), method, options, base)
        if options.peers:
            from peers import nncf_predict, torch_ao_fx

            for label, make in (("NNCF", nncf_predict), ("torch.ao FX", torch_ao_fx)):
                found = hits(make(task.model, task.calibration), task)
                cells = [name, str(len(base)), "W8A8", label, f"{100 * found.mean():.2f}", difference(found, base)]
                print("| " + " | ".join(cells) + " | | |", flush=True)


if __name__ == "__main__":
    main()
