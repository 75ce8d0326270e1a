"""Float32 training of the demonstration's network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from intact8.demo.digits import Digits
from intact8.demo.network import DigitsNet

BATCH = 64


def train(data: Digits, *, seed: int, epochs: int, progress: Callable[[float], None] | None = None) -> DigitsNet:
    """Train with AdamW, one cycle of learning rate, and images shifted by up to one pixel.

    Args:
        data: see :func:`intact8.demo.digits.load`.
        seed: seed of weights, order, shifts and dropout; torch's global generator is restored afterwards.
        epochs: passes over the training images.
        progress: called after every epoch with the share of epochs that is done.

    Returns:
        The trained network, in eval mode.
    """
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DigitsNet().train()
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
        steps = epochs * -(-len(images) // BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
        loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
        for epoch in range(epochs):
            for index in torch.split(torch.randperm(len(images)), BATCH):
                loss = loss_of(model(_shifted(images[index])), labels[index])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
            if progress is not None:
                progress((epoch + 1) / epochs)
    return model.eval()


def _shifted(images: torch.Tensor) -> torch.Tensor:
    dy, dx = (int(v) for v in torch.randint(0, 3, (2,)))
    height, width = images.shape[2:]
    return F.pad(images, (1, 1, 1, 1))[:, :, dy : dy + height, dx : dx + width]
