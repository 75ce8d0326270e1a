"""Quantization-aware training in one page: your loop, your optimizer, the deployed integers in the forward pass.

    python examples/qat.py [--bits 4] [--activation-bits 4] [--epochs 10]

Trains a small network on scikit-learn's digits in float32, quantizes it after training (PTQ), then trains it on as what
it will ship as (QAT). With 4 bits PTQ loses what QAT brings back; with 8 there is little to bring back. The last lines
compare every integer of the trained simulation with those of the engines, and what is loaded with what was trained.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import intact8
import intact8.runtime
import intact8.train
from intact8.demo import digits
from intact8.demo.train import train as train_float32

BATCH = 64


@dataclass(frozen=True)
class Result:
    """Share of held-out images classified right, and integers compared between simulation and engines."""

    float32: float
    ptq: float
    qat: float
    served: float
    integers: int
    differ: int


def accuracy(predict: object, images: Tensor, labels: Tensor) -> float:
    """Share of ``images`` whose largest logit is that of their label."""
    assert callable(predict)
    with torch.no_grad():
        return float((torch.as_tensor(predict(images)).argmax(1) == labels).float().mean())


def run(bits: int = 4, activation_bits: int = 4, epochs: int = 10, float_epochs: int = 12, seed: int = 0) -> Result:
    """Everything; ``epochs`` of quantization-aware training after ``float_epochs`` in float32."""
    data = digits.load(seed)
    x, y = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    held_out = torch.from_numpy(data.held_out_images), torch.from_numpy(data.held_out_labels)
    model = train_float32(data, seed=seed, epochs=float_epochs)

    # 1. The simulation: same parameters, same names. It starts as a quantization after training.
    recipe = intact8.recipes.qat("learned", bits=bits, activation_bits=activation_bits)
    sim = intact8.prepare(model, x[:2], recipe)
    intact8.calibrate(sim, x[:512].split(BATCH))
    ptq = accuracy(sim.eval(), *held_out)

    # 2. Your loop. Scales learn at a rate of their own; the schedule says when batch norm and scales stop to move.
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(intact8.train.parameter_groups(sim, lr=1e-3, scale_lr=1e-2, relative=True))
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    schedule = intact8.train.Schedule(freeze_batchnorm=epochs * 6 // 10, freeze_scales=epochs * 8 // 10)
    for _ in range(epochs):
        sim.train()
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(sim(x[index]), y[index]).backward()
            optimizer.step()
        rates.step()
        schedule.step(sim)
    qat = accuracy(sim.eval(), *held_out)

    # 3. Ship it: nothing is observed again. What was evaluated is what runs.
    program = intact8.convert(sim)
    report = intact8.verify(program, held_out[0], sim=sim)
    with tempfile.TemporaryDirectory() as folder:
        served = intact8.runtime.load(program.save(Path(folder) / "digits.safetensors"))
        return Result(
            float32=accuracy(model, *held_out), ptq=ptq, qat=qat, served=accuracy(served, *held_out),
            integers=report.elements, differ=report.mismatches,
        )  # fmt: skip


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=4, help="of weights")
    parser.add_argument("--activation-bits", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    result = run(args.bits, args.activation_bits, args.epochs)
    print(f"W{args.bits}A{args.activation_bits}, {digits.HELD_OUT} held-out digits")
    print(f"  float32                        {result.float32:.1%}")
    print(f"  quantized after training       {result.ptq:.1%}")
    print(f"  trained quantized, simulation  {result.qat:.1%}")
    print(f"  trained quantized, served      {result.served:.1%}")
    print(f"  integers of simulation and engines: {result.differ:,} of {result.integers:,} differ")


if __name__ == "__main__":
    main()
