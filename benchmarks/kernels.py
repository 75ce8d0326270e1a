"""Convolutions of the openvino engine in the kernels OpenVINO takes and in those it can be asked for, one by one.

    python benchmarks/kernels.py [--models resnet50 …] [--batches 1 8] [--rounds 60] [--output FILE]

Each network is compiled twice for one thread, with OpenVINO's own choice and with
``intact8.engines.openvino.kernel_selection`` asking for the others everywhere; the two take turns, and OpenVINO says
how long every node took. A line per kind of
convolution: median microseconds of both, their ratio, and whether the engine asks for the other kernel there.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import openvino
import torch

import intact8
from coverage import build as network
from intact8.engines.openvino import kernel_selection
from intact8.engines.openvino.build import build
from intact8.engines.openvino.lowering import OpContext
from intact8.engines.openvino.plan import Feeds, Plan
from intact8.opset.op import Op
from intact8.program.program import Program

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0")
CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERF_COUNT": True}


@dataclass(frozen=True)
class Line:
    """A convolution: what it is, its kernels and their medians in µs, and whether the engine asks for the second."""

    what: str
    names: tuple[str, str]
    times: tuple[float, float]
    asked: bool


def compiled(plan: Plan, batch: int, wanted: str, everywhere: bool) -> Any:
    """The network for a batch size."""
    bound = kernel_selection.MANY
    if everywhere:
        kernel_selection.MANY = 0
    try:
        given = Feeds(last=frozenset(plan.program.inputs))
        model = build(replace(plan, selects_kernels=everywhere), batch, [wanted], given).model
    finally:
        kernel_selection.MANY = bound
    return openvino.Core().compile_model(model, "CPU", CONFIG)


def measure(program: Program, batch: int, rounds: int) -> list[Line]:
    """Every ordinary convolution of two dimensions."""
    plan = Plan.of(program, inside=False)
    outputs = {op.name: op for op in program.ops}
    wanted = outputs[program.outputs[0]].inputs[0]
    requests = []
    for everywhere in (False, True):
        model = compiled(plan, batch, wanted, everywhere)
        x = np.random.default_rng(0).integers(0, 256, tuple(model.input(0).shape)).astype(np.uint8)
        requests.append((model, model.create_infer_request(), x))
    found: list[dict[str, list[float]]] = [{}, {}]
    names: list[dict[str, str]] = [{}, {}]
    for turn in range(rounds + 5):
        for i, (_, request, x) in enumerate(requests):
            request.infer([x], share_inputs=True, share_outputs=True)
            if turn >= 5:
                for node in request.get_profiling_info():
                    names[i][node.node_name] = node.exec_type
                    found[i].setdefault(node.node_name, []).append(node.real_time.total_seconds() * 1e6)
    return list(lines(program, batch, names, found))


def lines(
    program: Program, batch: int, names: list[dict[str, str]], found: list[dict[str, list[float]]]
) -> Iterator[Line]:  # fmt: skip
    """What was measured of each convolution."""
    for op in program.ops:
        if op.kind == "conv" and op.attrs["groups"] == 1 and all(op.name in times for times in found):
            first, second = (median(times[op.name]) for times in found)
            context = OpContext(op, op.name, (), program.tensors[op.name], kernel_batch=batch)
            what = describe(op, program)
            yield Line(
                what, (names[0][op.name], names[1][op.name]), (first, second), bool(kernel_selection.preferred(context))
            )


def describe(op: Op, program: Program) -> str:
    """Window, stride, channels and size of the result."""
    outputs, inputs, *window = op.arrays["weight"].shape
    size = "×".join(str(d) for d in program.tensors[op.name].shape[2:])
    return f"{'×'.join(map(str, window))}/{op.attrs['stride'][0]}, {inputs} → {outputs}, {size}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    text = [
        "# Kernels of convolutions on the openvino engine", "",
        f"OpenVINO {openvino.__version__}, one thread; `python benchmarks/kernels.py`.", "",
        "| network | batch | window/stride, channels, result | OpenVINO takes | µs | other | µs | ratio | asked for |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name in given.models:
        torch.manual_seed(1)
        data = torch.randn(32, 3, 224, 224).split(8)
        program = intact8.quantize(network(name), data, recipe=intact8.recipes.default())
        for batch in given.batches:
            seen: dict[str, list[Line]] = {}
            for line in measure(program, batch, given.rounds):
                seen.setdefault(line.what, []).append(line)
            for what, same in seen.items():
                a, b = (median(line.times[i] for line in same) for i in (0, 1))
                one, other = same[0].names
                text.append(
                    f"| {name} | {batch} | {what} | {one} | {a:.0f} | {other} | {b:.0f} | {b / a:.2f} | "
                    f"{'yes' if same[0].asked else ''} |"
                )
    print("\n".join(text))
    if given.output:
        given.output.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
