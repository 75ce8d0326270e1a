"""What quantizing costs: the time of ``prepare`` against torch.export's own, by depth, too, and the memory it adds.

    python benchmarks/quantize_cost.py time [--models resnet18 vit_b_32 …] [--rounds 3] [--size 96]
    python benchmarks/quantize_cost.py depth [--blocks 100 200 400 800]
    python benchmarks/quantize_cost.py memory [--models resnet50 vgg11 …] [--batches 4 32] [--batch 8]

*time*: seconds of CPU of ``torch.export.export`` with a dynamic batch and of ``intact8.prepare``, taking turns; the
ratio is that of the minima. Bound: 1.6. ``yolo…`` names a network of ultralytics.
*depth*: a chain of residual blocks; seconds of CPU of prepare, and of preparing the program on engines. Bound: a block
of the longest chain takes at most twice what one of the shortest does, where that is more than 10 ms in all.
*memory*: a process for each network and number of batches; the data set is a generator that makes each batch when it is
asked for. Resident memory that ``intact8.quantize`` adds at its highest, above what the process has with the model
loaded. *Activations* are all results of layers for one batch. Bound: 2.5 times the weights, and the activations.
Exit status 1 beyond a bound.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import intact8
from coverage import torchvision
from intact8.engines import get_engine

EXPORT, GROWTH, WEIGHTS = 1.6, 2.0, 2.5


class Sequence(nn.Module):
    """Of what a recurrent layer returns, the results of all steps."""

    def forward(self, x: tuple[Tensor, Any]) -> Tensor:
        """Run."""
        return x[0]


def inputs(name: str, batch: int, size: int) -> Tensor:
    """A batch for a network: images, 128 steps of 256 features, or 128 words."""
    if name == "lstm":
        return torch.randn(batch, 128, 256)
    return torch.randint(20_000, (batch, 128)) if name == "encoder" else torch.randn(batch, 3, size, size)


def network(name: str, size: int) -> nn.Module:
    """A network with random weights, in evaluation mode: of torchvision, ``yolo…`` of ultralytics, two layers of LSTM
    (``lstm``) or a text encoder of six layers (``encoder``)."""
    models = torchvision().models
    if name.startswith("yolo"):
        from ultralytics.nn.tasks import DetectionModel

        model: nn.Module = DetectionModel(f"{name}.yaml", verbose=False)
    elif name == "lstm":
        model = nn.Sequential(nn.LSTM(256, 512, 2, batch_first=True), Sequence(), nn.Linear(512, 1000))
    elif name == "encoder":
        layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, activation="gelu")
        model = nn.Sequential(nn.Embedding(20_000, 384), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False))
    else:
        model = models.get_model(name, weights=None, **({"image_size": size} if name.startswith("vit") else {}))
    return model.eval()


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of CPU, and the result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def measure_time(options: argparse.Namespace) -> bool:
    """Print a row for every network."""
    print("| network | torch.export | prepare | ratio |\n|---|---|---|---|")
    good = True
    for name in options.models or ("resnet18", "mobilenet_v3_large", "efficientnet_v2_s", "vit_b_32", "swin_t"):
        model, x = network(name, options.size), torch.randn(2, 3, options.size, options.size)
        shapes: Any = ({0: torch.export.Dim("batch")},)
        try:
            torch.export.export(copy.deepcopy(model), (x,), dynamic_shapes=shapes)
        except Exception:  # noqa: BLE001 - torch alone cannot export this network for any batch
            shapes = None
        ways = {
            "export": lambda fresh, x=x, shapes=shapes: torch.export.export(fresh, (x,), dynamic_shapes=shapes),
            "prepare": lambda fresh, x=x: intact8.prepare(fresh, x),
        }
        ways["prepare"](copy.deepcopy(model))  # imports
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for way, work in ways.items():
                fresh = copy.deepcopy(model)  # some heads remember the shape of an image
                best[way] = min(best[way], seconds(partial(work, fresh))[0])
        ratio = best["prepare"] / best["export"]
        good &= ratio <= EXPORT
        print(f"| {name} | {best['export']:.2f} s | {best['prepare']:.2f} s | {ratio:.2f} |", flush=True)
    return good


class Block(nn.Module):
    """Two convolutions around a skip."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Run."""
        return x + self.layers(x)


def measure_depth(options: argparse.Namespace) -> bool:
    """Print a row for every depth."""
    print("| blocks | torch.export | prepare | calibrate | convert | plan of onednn | plan of native |")
    print("|---|---|---|---|---|---|---|")
    x, rows = torch.randn(2, 3, 8, 8), list[tuple[int, list[float]]]()
    for blocks in (1, *options.blocks):
        model = nn.Sequential(nn.Conv2d(3, 8, 1), *(Block() for _ in range(blocks))).eval()
        export, _ = seconds(lambda model=model: torch.export.export(model, (x,)))
        prepare, sim = seconds(lambda model=model: intact8.prepare(model, x).eval())
        calibrate, _ = seconds(lambda sim=sim: intact8.calibrate(sim, [x]))
        convert, program = seconds(lambda sim=sim: intact8.convert(sim))
        plans = []
        for engine in ("onednn", "native"):
            runs = [
                seconds(lambda p=program, e=engine: get_engine(e).prepare(p)({p.inputs[0]: x.numpy()}))[0]
                for _ in range(3)
            ]
            plans.append(min(runs))
        if blocks > 1:  # the first one imports
            rows.append((blocks, [export, prepare, calibrate, convert, *plans]))
            print(f"| {blocks} | " + " | ".join(f"{s:.2f} s" for s in rows[-1][1]) + " |", flush=True)
    (few, short), (many, long) = rows[0], rows[-1]
    growth = [b / many / max(a / few, 1e-4) for a, b in zip(short, long, strict=True)]
    print("Seconds for a block, longest chain against shortest: " + ", ".join(f"{g:.2f}" for g in growth))
    return max(growth[1:]) <= GROWTH


def resident(key: str) -> float:
    """A field of this process's status in MiB."""
    with open("/proc/self/status") as status:
        return int(status.read().split(key + ":")[1].split()[0]) / 1024


def quantized(options: argparse.Namespace) -> dict[str, float]:
    """Quantize in this process; weights, activations and added memory in MiB."""
    intact8.quantize(nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), [torch.randn(2, 3, 8, 8)])  # imports
    name = options.models[0]
    model, example = network(name, options.size), inputs(name, options.batch, options.size)

    def data() -> Iterator[Tensor]:
        for _ in range(options.batches[0]):
            yield inputs(name, options.batch, options.size)

    results: list[float] = []

    def note(_: nn.Module, __: Any, y: Any) -> None:
        results.extend(t.nbytes / 2**20 for t in pytree.tree_leaves(y) if isinstance(t, Tensor))

    hooks = [layer.register_forward_hook(note) for layer in model.modules() if not any(layer.children())]
    with torch.no_grad():
        model(example)
    for hook in hooks:
        hook.remove()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    intact8.quantize(model, data())
    weights = sum(t.nbytes for t in model.parameters()) / 2**20
    size = options.batches[0] * example.nbytes / 2**20
    return {"data": size, "weights": weights, "activations": sum(results), "added": resident("VmHWM") - before}


def measure_memory(options: argparse.Namespace) -> bool:
    """Print a row for every network and number of batches."""
    print(f"Batches of {options.batch} (images of {options.size} pixels), streamed.\n")
    print("| network | batches | data | weights | activations of a batch | added | of the bound |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for name in options.models or ("resnet50", "vgg11", "mobilenet_v3_large", "efficientnet_v2_s", "vit_b_32"):
        for batches in options.batches:
            command = [sys.executable, __file__, "child", "--models", name, "--batches", str(batches)]
            command += ["--batch", str(options.batch), "--size", str(options.size)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
            if done.returncode != 0:
                raise SystemExit(f"{name}: {done.stderr.strip()[-2000:]}")
            found = json.loads(done.stdout.strip().splitlines()[-1])
            share = found["added"] / (WEIGHTS * found["weights"] + found["activations"])
            good &= share <= 1
            parts = " | ".join(f"{mib:.0f} MiB" for mib in found.values())
            print(f"| {name} | {batches} | {parts} | {share:.2f} |", flush=True)
    return good


def main() -> None:
    """Measure what is asked for, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["time", "depth", "memory", "child"])
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, help="of images: 96 for time, 224 for memory")
    parser.add_argument("--blocks", nargs="+", type=int, default=[100, 200, 400, 800])
    parser.add_argument("--batches", nargs="+", type=int, default=[4, 32])
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    options.size = options.size or (96 if options.what == "time" else 224)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.what == "child":
        print(json.dumps(quantized(options)))
        return
    ways = {"time": measure_time, "depth": measure_depth, "memory": measure_memory}
    raise SystemExit(not ways[options.what](options))


if __name__ == "__main__":
    main()
