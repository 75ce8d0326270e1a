"""Quantization-aware training: what is trained is what ships (exactness), and what it costs (accuracy).

    python benchmarks/qat.py [--assets DIR] [--seeds 0 1 2] [--epochs 1] [--what accuracy exactness] [--threads 1]
                             [--exact-steps 234] [--networks fashion-cnn …] [--out benchmarks/results/DATE-qat]

Every finished run is written to OUT.json at once; the same command goes on where it was interrupted and never repeats
a run. OUT.md is made from that file. All contenders start from the same float32 network, and see the same batches in
the same order with the same optimizer, learning rates and milestones (``qat_train.py``).

Accuracy: top-1 on the 10,000 test images, of what ships (int8 on onednn; torch.ao: x86).
Exactness: integers of the trained simulation against those of the reference and of onednn; and the same networks,
trained by torch.ao FX and torchao pt2e, their fake-quantized against their converted integers.
"""

from __future__ import annotations

import argparse
import datetime
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import intact8
import qat_peers as peers
import qat_train as train
from accuracy import exactness
from assets import Task, accuracy, fashion, folder, mobilenet
from qat_resnet import fashion_resnet, separate_relus
from qat_tables import describe, markdown
from store import Store

NETWORKS = ("fashion-cnn", "fashion-dw", "fashion-resnet", "mobilenetv1_025")
ACCURACY_NETWORKS = ("fashion-cnn", "fashion-dw")
BITS = ((8, 8), (4, 8), (4, 4))
EXACT_STEPS = {"mobilenetv1_025": 24}
"""Optimizer steps before integers are compared; elsewhere --exact-steps."""

PEER_IMAGES = {"mobilenetv1_025": 8}
"""Images on which integers of peers are compared: theirs need more memory, and a share is what is wanted."""


def contenders(task: Task, bits: int, activation_bits: int) -> dict[str, Callable[[], train.Contender]]:
    """What is trained at so many bits, by name."""

    def learnable(rates: str) -> train.Contender:
        return train.fx_learnable(task.model, task.calibration, bits, activation_bits, rates)

    of: dict[str, Callable[[], train.Contender]] = {
        f"intact8 {scales}": lambda s=scales: train.ours(task.model, task.calibration, s, bits, activation_bits)
        for scales in ("learned", "observed")
    }
    of["torch.ao learned, relative"] = lambda: learnable("relative")
    of["torch.ao learned, one"] = lambda: learnable("one")
    if (bits, activation_bits) == (8, 8):
        of["torch.ao default"] = lambda: train.fx(task.model, task.calibration)
    return of


def top1(contender: train.Contender, task: Task) -> dict[str, Any]:
    """Accuracy of the fake-quantized network, and of the int8 network made from it."""
    with torch.no_grad():
        found = {"simulated": accuracy(contender.module, task)}
        if contender.deploy is not None:
            found["deployed"] = accuracy(contender.deploy(), task)
    return found


def run_accuracy(store: Store, task: Task, data: Any, seed: int, epochs: float, methods: list[str]) -> None:
    """All contenders, or those whose names are given."""
    x, y = data
    steps = max(int(epochs * (len(x) // train.BATCH)), 1)

    def trained(make: Callable[[], train.Contender]) -> dict[str, Any]:
        contender = make()
        train.fit(contender, x, y, steps, seed)
        return {**top1(contender, task), "steps": steps}

    def plain() -> dict[str, Any]:
        with torch.no_grad():
            return {"simulated": accuracy(task.model, task)}

    store.once(f"accuracy/{task.name}/float32/as it was/-", plain)
    longer = f"accuracy/{task.name}/float32/trained as long/{seed}"
    store.once(longer, lambda: trained(lambda: train.float32(task.model)))
    for bits, activation_bits in BITS:
        for name, make in contenders(task, bits, activation_bits).items():
            key = f"accuracy/{task.name}/W{bits}A{activation_bits}/{name}/{seed}"
            if not methods or name in methods:
                store.once(key, lambda m=make: trained(m))


def run_exactness(store: Store, task: Task, data: Any, elements: float, steps: int) -> None:
    """Train once with each tool, and compare its integers with those it deploys."""
    x, y = data
    steps = EXACT_STEPS.get(task.name, steps)
    few = task.name in EXACT_STEPS
    batch, lr = (32, 1e-5) if few else (train.BATCH, train.LR)
    held_out = task.held_out[: PEER_IMAGES.get(task.name, 1000)]

    def of_ours(scales: str, bits: int, activation_bits: int) -> dict[str, Any]:
        contender = train.ours(task.model, task.calibration, scales, bits, activation_bits)
        train.fit(contender, x, y, steps, 0, lr, batch, few)
        program = intact8.convert(contender.module)
        report = exactness(contender.module, program, task, elements)
        return {
            "integers": report.elements, "differ": report.mismatches, "uncertified": len(report.uncertified),
            "steps": steps, **top1(contender, task),
        }  # fmt: skip

    def of_peer(make: Callable[..., train.Contender], prepared: Any, converted: Any, model: Any) -> dict[str, Any]:
        try:
            contender = make(model, task.calibration)
        except ValueError as error:
            return {"refused": str(error), "steps": 0}
        train.fit(contender, x, y, steps, 0, lr, batch, few)
        assert contender.deploy is not None
        deployed = contender.deploy()
        total = [0, 0]
        with torch.no_grad():
            for images in held_out.split(50):
                found = peers.differing(prepared(contender.module, images), converted(deployed, images))
                total = [a + b for a, b in zip(total, found, strict=True)]
        return {"integers": total[0], "differ": total[1], "steps": steps, **top1(contender, task)}

    trials = [("learned", 8, 8), ("observed", 8, 8)] + [("learned", 4, 4)] * (not few)
    for scales, bits, activation_bits in trials:
        store.once(
            f"exactness/{task.name}/intact8 {scales} W{bits}A{activation_bits}",
            lambda s=scales, b=bits, a=activation_bits: of_ours(s, b, a),
        )
    fx_integers = peers.fx_prepared_integers, peers.fx_converted_integers
    pt2e_integers = peers.pt2e_prepared_integers, peers.pt2e_converted_integers
    store.once(f"exactness/{task.name}/torch.ao FX", lambda: of_peer(train.fx, *fx_integers, task.model))
    store.once(f"exactness/{task.name}/torchao pt2e", lambda: of_peer(train.pt2e, *pt2e_integers, task.model))
    if task.name == "fashion-resnet":
        key = f"exactness/{task.name}/torchao pt2e, network rewritten with separate ReLUs"
        store.once(key, lambda: of_peer(train.pt2e, *pt2e_integers, separate_relus(task.model)))


def tasks(root: Path, names: list[str]) -> Iterator[tuple[Task, Any]]:
    """Network and training data by name."""
    for name in names:
        if name == "mobilenetv1_025":
            task = mobilenet(root)
            yield task, (task.calibration, task.calibration_labels)
        else:
            from common import fashion_mnist

            kind = name.removeprefix("fashion-")
            yield (fashion_resnet(root) if kind == "resnet" else fashion(root, kind)), fashion_mnist("train")


def main() -> None:
    """Run what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--what", nargs="*", choices=("accuracy", "exactness"), default=["accuracy", "exactness"])
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--methods", nargs="*", default=[], help='"intact8 learned" …; all by default')
    parser.add_argument("--elements", type=float, default=20e6)
    parser.add_argument("--exact-steps", type=int, default=234)
    parser.add_argument("--threads", type=int, default=1)
    today = datetime.date.today().isoformat()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / f"{today}-qat")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    root = folder(args.assets)
    command = f"python benchmarks/qat.py --seeds {' '.join(map(str, args.seeds))} --epochs {args.epochs:g}"
    about = {"machine": describe(), "command": command}
    store = Store(args.out.with_suffix(".json"), about)
    for what in args.what:
        names = [n for n in args.networks if what == "exactness" or n in ACCURACY_NETWORKS]
        for seed in args.seeds if what == "accuracy" else [0]:
            for task, data in tasks(root, names):
                torch.set_num_threads(args.threads)  # the loaders choose one
                if what == "accuracy":
                    run_accuracy(store, task, data, seed, args.epochs, args.methods)
                else:
                    run_exactness(store, task, data, args.elements, args.exact_steps)
    store.save({})
    args.out.with_suffix(".md").write_text(markdown(store.about, store.results))


if __name__ == "__main__":
    main()
