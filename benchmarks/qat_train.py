"""One training loop for float32, intact8 and torch.ao: the same batches, optimizer, learning rates and milestones.

Adam, a cosine from ``LR`` to 0. Batch norm is frozen after 60 % of the steps; scales are frozen (observers off) after
80 %, those that are observed stop to follow the data after 50 %.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
import intact8.train
import qat_peers as peers

LR = 1e-3
SCALE_LR = 1e-2
"""Relative: share of a scale that an Adam step moves it by. Ten times the weights' rate was best of 0.1×, 1×, 10×."""

BATCH = 128
STOP_OBSERVING, FREEZE_BATCH_NORM, FREEZE_SCALES = 0.5, 0.6, 0.8

Predict = Callable[[Tensor], Any]


class Contender(NamedTuple):
    """A network in training.

    Attributes:
        module: called on batches.
        groups: of the optimizer.
        after_step: called with (steps done, all steps).
        mode: sets training (True) or evaluation.
        deploy: the int8 network; None for float32.
        freeze_batch_norm: running statistics from now on.
    """

    module: Any
    groups: list[dict[str, Any]]
    after_step: Callable[[int, int], None]
    mode: Callable[[bool], None]
    deploy: Callable[[], Predict] | None
    freeze_batch_norm: Callable[[], object] = lambda: None


def fit(
    contender: Contender,
    x: Tensor,
    y: Tensor,
    steps: int,
    seed: int,
    lr: float = LR,
    batch: int = BATCH,
    few: bool = False,
) -> None:
    """Train for ``steps`` steps; leaves the network in evaluation mode.

    ``lr``: of weights; rates of scales keep their proportion to it. ``few``: images are too few for statistics; batch
    norm is frozen from the start.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam([{**group, "lr": group.get("lr", LR) * lr / LR} for group in contender.groups])
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 * (1 + math.cos(math.pi * i / steps)))
    contender.mode(True)
    if few:
        contender.freeze_batch_norm()
    done = 0
    while done < steps:
        for index in torch.randperm(len(x), generator=generator).split(batch)[: max(len(x) // batch, 1)]:
            if done == steps:
                break
            optimizer.zero_grad()
            F.cross_entropy(contender.module(x[index]), y[index]).backward()
            optimizer.step()
            rates.step()
            done += 1
            contender.after_step(done, steps)
    contender.mode(False)


def float32(model: nn.Module) -> Contender:
    """The float network, trained further by as much."""
    net = copy.deepcopy(model)
    return Contender(net, [{"params": list(net.parameters())}], lambda i, n: None, net.train, None)


def ours(model: nn.Module, calibration: Tensor, scales: str, bits: int, activation_bits: int) -> Contender:
    """intact8 with ``recipes.qat``."""
    recipe = intact8.recipes.qat(scales, bits=bits, activation_bits=activation_bits)
    sim = intact8.prepare(model, calibration[:2], recipe)
    intact8.calibrate(sim, calibration.split(32))
    if scales == "learned":
        groups = intact8.train.parameter_groups(sim, lr=LR, scale_lr=SCALE_LR, relative=True)
    else:
        groups = intact8.train.parameter_groups(sim, lr=LR)
    schedule: list[intact8.train.Schedule] = []

    def after_step(done: int, steps: int) -> None:
        if not schedule:
            at = [int(share * steps) for share in (STOP_OBSERVING, FREEZE_BATCH_NORM, FREEZE_SCALES)]
            schedule.append(
                intact8.train.Schedule(
                    observe=at[0] if scales == "observed" else None,
                    freeze_batchnorm=at[1],
                    freeze_scales=at[2],
                    unit="step",
                )
            )
        schedule[0].step(sim)

    def deploy() -> Predict:
        program = intact8.convert(sim)
        return lambda x: program.run(x, engine="onednn")

    return Contender(sim, groups, after_step, sim.train, deploy, sim.freeze_batch_norm)


def fx(model: nn.Module, calibration: Tensor) -> Contender:
    """torch.ao FX QAT with its defaults, observers first shown the calibration images."""
    prepared = peers.fx_prepare(model, calibration[:2]).eval()
    with torch.no_grad():
        for x in calibration.split(32):
            prepared(x)
    return _fx(prepared, [{"params": list(prepared.parameters())}], observed=True)


def fx_learnable(model: nn.Module, calibration: Tensor, bits: int, activation_bits: int, rates: str) -> Contender:
    """torch.ao FX QAT with learned scales and zero points.

    ``rates``: "one" learning rate for all parameters, or intact8's "relative" ones for scales (zero points, which count
    integers, then get SCALE_LR as it is).
    """
    prepared = peers.learnable_prepare(model, calibration, bits, activation_bits)
    named = dict(prepared.named_parameters())
    scales = [p for name, p in named.items() if name.endswith("scale")]
    zero_points = [p for name, p in named.items() if name.endswith("zero_point")]
    rest = [p for name, p in named.items() if not name.endswith(("scale", "zero_point"))]
    if rates == "one":
        groups: list[dict[str, Any]] = [{"params": [*rest, *scales, *zero_points]}]
    else:
        groups = [{"params": rest}, {"params": zero_points, "lr": SCALE_LR}]
        groups += [{"params": [p], "lr": SCALE_LR * float(p.detach().mean())} for p in scales]
    return _fx(prepared, groups, observed=False)


def _fx(prepared: Any, groups: list[dict[str, Any]], observed: bool) -> Contender:
    def after_step(done: int, steps: int) -> None:
        if done == int(FREEZE_BATCH_NORM * steps):
            peers.fx_freeze_batch_norm(prepared)
        if observed and done == int(STOP_OBSERVING * steps):
            peers.fx_freeze_scales(prepared)
        if not observed and done == int(FREEZE_SCALES * steps):
            for name, parameter in prepared.named_parameters():
                if name.endswith(("scale", "zero_point")):
                    parameter.requires_grad = False

    def mode(training: bool) -> None:
        prepared.train(training)
        if not training and observed:
            peers.fx_freeze_scales(prepared)

    freeze = functools.partial(peers.fx_freeze_batch_norm, prepared)
    return Contender(prepared, groups, after_step, mode, lambda: peers.fx_convert(prepared), freeze)


def pt2e(model: nn.Module, calibration: Tensor) -> Contender:
    """torchao pt2e QAT with its defaults. (Exported batch norm is frozen by training in evaluation mode only.)"""
    prepared = peers.pt2e_prepare(model, calibration[:2])
    peers.pt2e_mode(prepared, False)
    with torch.no_grad():
        for x in calibration.split(32):
            prepared(x)

    def after_step(done: int, steps: int) -> None:
        if done == int(STOP_OBSERVING * steps):
            peers.pt2e_freeze_scales(prepared)

    groups = [{"params": list(prepared.parameters())}]
    mode = functools.partial(peers.pt2e_mode, prepared)
    freeze = functools.partial(mode, False)
    return Contender(prepared, groups, after_step, mode, lambda: peers.pt2e_convert(prepared), freeze)
