"""Accuracy and exactness on trained networks: float32, intact8, torch.ao FX static and ONNX Runtime quantize_static.

    python benchmarks/accuracy.py [--assets DIR] [--only fashion-cnn …] [--elements 20e6]

Prints one Markdown table: top-1 on held-out images, and how many integers were compared between the simulation and
each engine and how many differ.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch

import intact8
from assets import Task, accuracy, fashion, folder, mobilenet
from peers import onnxruntime_static, torch_ao_fx


def exactness(sim: Any, program: intact8.Program, task: Task, elements: float) -> Any:
    """Compare simulation, reference and onednn on enough held-out images to reach ``elements`` integers."""
    compared = program.integer_tensors() or tuple(program.tensors)  # dynamic layers give float32
    per_image = sum(
        int(torch.tensor([d if isinstance(d, int) else 1 for d in program.tensors[n].shape]).prod()) for n in compared
    )
    images = min(len(task.held_out), int(elements / per_image) + 1)
    return intact8.verify(program, task.held_out[:images].split(64), engines=("reference", "onednn"), sim=sim)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--only", nargs="*", default=["fashion-cnn", "fashion-dw", "mobilenetv1_025"])
    parser.add_argument("--recipes", nargs="*", default=["default", "accurate"])
    parser.add_argument("--elements", type=float, default=20e6)
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(args.assets)
    torch.set_num_threads(2)
    tasks = {
        "fashion-cnn": lambda: fashion(root, "cnn"),
        "fashion-dw": lambda: fashion(root, "dw"),
        "mobilenetv1_025": lambda: mobilenet(root),
    }
    print(
        "| network | held out | method | top-1 % | vs float32 | integers compared | differ | seconds |\n|---|---|---|---|---|---|---|---|"  # noqa: E501
    )
    for name in args.only:
        task = tasks[name]()
        with torch.no_grad():
            base = accuracy(task.model, task)
        row = f"| {name} | {len(task.labels)} |"
        print(f"{row} float32 | {base:.2f} | | | | |", flush=True)
        for recipe in args.recipes:
            start = time.perf_counter()
            sim = intact8.prepare(task.model, task.calibration[:2], getattr(intact8.recipes, recipe)())
            intact8.calibrate(sim, task.calibration.split(32))
            program = intact8.convert(sim)
            seconds = time.perf_counter() - start
            top1 = accuracy(lambda x, p=program: p.run(x, engine="onednn"), task)
            report = exactness(sim, program, task, args.elements)
            print(
                f"{row} intact8 {recipe} | {top1:.2f} | {top1 - base:+.2f} | {report.elements:,} | {report.mismatches} | {seconds:.1f} |",  # noqa: E501
                flush=True,
            )
        if not args.no_peers:
            for label, make in (("torch.ao FX x86", torch_ao_fx), ("ONNX Runtime quantize_static", onnxruntime_static)):
                start = time.perf_counter()
                predict = make(task.model, task.calibration)
                seconds = time.perf_counter() - start
                top1 = accuracy(predict, task)
                print(f"{row} {label} | {top1:.2f} | {top1 - base:+.2f} | | | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
