"""QAT inside Lightning: its loop, its checkpoints, its resuming.

    pip install 'intact8[torch,lightning]'
    python examples/qat_lightning.py [--epochs 6]

A LightningModule that holds the simulation, ``configure_optimizers`` with its learned scales, and a callback that steps
the schedule. A checkpoint has the simulation's state in the module's state dict and the schedule's in the callback's.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intact8
import intact8.train
from intact8.demo import digits
from intact8.demo.network import DigitsNet
from intact8.demo.train import train as train_float32


class Classifier(lightning.LightningModule):
    """Trains a simulation like any other module."""

    def __init__(self, sim: Any) -> None:
        super().__init__()
        self.sim = sim

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of one batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.sim(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, with a rate of their own for the learned scales."""
        return torch.optim.Adam(intact8.train.parameter_groups(self.sim, lr=1e-3, scale_lr=1e-2, relative=True))


class StepSchedule(lightning.Callback):
    """Steps a schedule after every epoch, and keeps its state with the checkpoint."""

    def __init__(self, schedule: intact8.train.Schedule) -> None:
        self.schedule = schedule

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Freeze what is due. Runs before the epoch's checkpoint is written."""
        self.schedule.step(pl_module.sim)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return self.schedule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint."""
        self.schedule.load_state_dict(state_dict)


@dataclass(frozen=True)
class Result:
    """Shares of held-out images classified right, and integers compared between simulation and engines."""

    float32: float
    qat: float
    integers: int
    differ: int


def trainer(folder: Path, epochs: int, stop: int | None = None) -> lightning.Trainer:
    """A Trainer like any other, for a schedule over ``epochs`` of which it runs the first ``stop``."""
    schedule = intact8.train.Schedule(freeze_batchnorm=epochs // 2, freeze_scales=epochs - 1)
    return lightning.Trainer(
        max_epochs=stop or epochs, callbacks=[StepSchedule(schedule)], default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


def loader(data: digits.Digits) -> DataLoader[tuple[Tensor, ...]]:
    """Training batches of 64, shuffled."""
    x, y = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    return DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)


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
    lightning.seed_everything(seed, verbose=False)
    sim.train()  # Lightning trains every module in the mode it finds it in
    with tempfile.TemporaryDirectory() as folder:
        trainer(Path(folder), epochs).fit(Classifier(sim), loader(data))
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
    print(f"float32 {result.float32:.1%}, W4A4 trained by Lightning and deployed {result.qat:.1%}")
    print(f"integers of simulation and engines: {result.differ:,} of {result.integers:,} differ")


if __name__ == "__main__":
    main()
