"""QAT inside the Hugging Face Trainer: its loop, its checkpoints, its resuming.

    pip install 'intact8[torch,transformers]'
    python examples/qat_hf_trainer.py [--epochs 6]

Three things are needed, all in this file: a module that returns a loss and holds the simulation, an optimizer built
after ``prepare`` so that it has the learned scales, and a callback that steps the schedule and keeps its count with the
checkpoint. A checkpoint is an ordinary one: the simulation's whole state is tensors.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import intact8
import intact8.train
from intact8.demo import digits
from intact8.demo.network import DigitsNet
from intact8.demo.train import train as train_float32


class Classifier(nn.Module):
    """What the Trainer trains: the simulation, and the loss it reports."""

    def __init__(self, sim: nn.Module) -> None:
        super().__init__()
        self.sim = sim

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits, and the loss where there are labels."""
        logits = self.sim(pixel_values)
        return (
            {"logits": logits}
            if labels is None
            else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
        )


class StepSchedule(TrainerCallback):
    """Steps a schedule after every epoch; a run that is resumed goes on with the count of its checkpoint."""

    def __init__(self, schedule: intact8.train.Schedule) -> None:
        self.schedule = schedule

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """``state.epoch`` is that of the checkpoint, or 0."""
        self.schedule.done = round(state.epoch or 0)

    def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Freeze what is due."""
        self.schedule.step(model.sim)


@dataclass(frozen=True)
class Result:
    """Shares of held-out images classified right, and integers compared between simulation and engines."""

    float32: float
    qat: float
    integers: int
    differ: int


def trainer(sim: nn.Module, data: digits.Digits, folder: Path, epochs: int) -> Trainer:
    """A Trainer like any other."""
    rows = [
        {"pixel_values": torch.from_numpy(image), "labels": int(label)}
        for image, label in zip(data.train_images, data.train_labels, strict=True)
    ]
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=64, save_strategy="epoch",
        logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    groups = intact8.train.parameter_groups(sim, lr=1e-3, scale_lr=1e-2, relative=True)
    schedule = intact8.train.Schedule(freeze_batchnorm=epochs // 2, freeze_scales=epochs - 1)
    return Trainer(
        model=Classifier(sim), args=arguments, train_dataset=rows, optimizers=(torch.optim.Adam(groups), None),
        callbacks=[StepSchedule(schedule)],
    )  # fmt: skip


def prepare(model: nn.Module, data: digits.Digits) -> Any:
    """A calibrated simulation."""
    x = torch.from_numpy(data.train_images)
    sim = intact8.prepare(model, x[:2], intact8.recipes.qat("learned", bits=4, activation_bits=4))
    intact8.calibrate(sim, x[:512].split(64))
    return sim


def run(epochs: int = 6, float_epochs: int = 12, seed: int = 0) -> Result:
    """Train in float32, then quantized; convert and compare."""
    data = digits.load(seed)
    model: DigitsNet = train_float32(data, seed=seed, epochs=float_epochs)
    sim = prepare(model, data)
    with tempfile.TemporaryDirectory() as folder:
        trainer(sim, data, Path(folder), epochs).train()
    program = intact8.convert(sim.cpu().eval())
    report = intact8.verify(program, data.held_out_images, sim=sim)
    labels = data.held_out_labels
    with torch.no_grad():
        of_float = model(torch.from_numpy(data.held_out_images)).argmax(1).numpy()
    of_program = np.asarray(program.run(data.held_out_images)).argmax(1)
    return Result(
        float((of_float == labels).mean()), float((of_program == labels).mean()), report.elements, report.mismatches
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    result = run(parser.parse_args().epochs)
    print(f"float32 {result.float32:.1%}, W4A4 trained by the Hugging Face Trainer and deployed {result.qat:.1%}")
    print(f"integers of simulation and engines: {result.differ:,} of {result.integers:,} differ")


if __name__ == "__main__":
    main()
