"""Learned roundings and scales, block after block, each for the inputs it gets from the blocks before it.

AdaRound (Nagel et al. 2020) learns the rounding of every layer, BRECQ (Li et al. 2021) that of blocks, and QDrop (Wei
et al. 2022) leaves a random half of the activations unrounded while it does so.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intact8.atomic_write import write_atomically
from intact8.errors import InputError, RecipeError
from intact8.regular_file import bytes_of
from intact8.simulation.simulation import Simulation

from .blocks import Block, blocks_of
from .soft import SoftBlock
from .streams import Streams

Progress = Callable[[int, int], None]
"""Called with (blocks done, blocks in all)."""

FULL = 253
"""Difference of the largest and the smallest of integers of 8 bits, at least."""

WARM_UP = 0.2
"""Share of the iterations before roundings are pushed to an integer."""

POWERS = (20.0, 2.0)
"""The power of the term that pushes, at its first and last iteration."""


@dataclass(frozen=True)
class Settings:
    """How roundings are learned.

    Attributes:
        iterations: steps of the optimizer per block.
        samples: of the calibration data, how many are kept.
        batch: samples per step.
        rate: learning rate of roundings (Adam).
        scale_rate: learning rate of the logarithms of scales.
        seed: of everything random.
        deferred: calibration leaves reconstruction to the user's call of ``intact8.reconstruct``.

    Raises:
        RecipeError: a number is not positive.
    """

    iterations: int = 1000
    samples: int = 256
    batch: int = 32
    rate: float = 1e-2
    scale_rate: float = 1e-3
    seed: int = 0
    deferred: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "deferred":
                fits, remedy = isinstance(value, bool), "give true or false"
            else:
                fits = isinstance(value, (int, float)) and not isinstance(value, bool) and (value > 0 or name == "seed")
                remedy = "give a positive number"
            if not fits:
                raise RecipeError(f"{name} = {value!r}", where="Recipe.reconstruction_args", remedy=remedy)

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> Settings:
        """Return the settings that a recipe names.

        Example:
            >>> Settings.of({"iterations": 50}).iterations
            50
        """
        known = asdict(Settings())
        for name in arguments:
            if name not in known:
                what, remedy = f"unknown argument {name!r}", "known: " + ", ".join(known)
                raise RecipeError(what, where="Recipe.reconstruction_args", remedy=remedy)
        return Settings(**arguments)


def learn_blocks(
    sim: Simulation,
    inputs: list[Tensor],
    method: str,
    settings: Settings,
    *,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
) -> None:
    """Learn the roundings of all layers and the scales of all activations, in execution order.

    Blocks of 8 bits are left as they are where others have fewer: their error is small beside that of those.

    Args:
        sim: calibrated, quantizing, in evaluation mode.
        inputs: flat inputs, all samples in one batch.
        method: "adaround", "brecq" or "qdrop".
        settings: see there.
        progress: called after every block.
        checkpoint: a file that is written after every block; where it exists, the blocks in it are not learned again.
    """
    layers = {node.name for node in sim.graph if "correct.rounding" in node.params}
    blocks = blocks_of(sim.graph, layers, single=method == "adaround")
    fingerprint = {"method": method, **asdict(settings), "blocks": [list(block.layers) for block in blocks]}
    if checkpoint is not None:
        model = [t for name, t in sim.state_dict().items() if not name.startswith("quantizers.")]
        fingerprint |= {"model": digest(model), "inputs": digest(inputs)}
    saved = None if checkpoint is None else resume(sim, checkpoint, fingerprint)
    done = 0 if saved is None else int(saved["done"])
    streams = Streams(sim, inputs)
    coarse = {block for block in blocks if _is_coarse(sim, block)} or set(blocks)
    for number, block in enumerate(blocks):
        streams.advance_float(block)
        if number >= done and block.layers and block in coarse:
            _learn_block(sim, block, streams, method, settings, settings.seed + number)
            sim.resolve(from_observers=False)
            if checkpoint is not None:
                keep(sim, checkpoint, {"fingerprint": fingerprint, "done": number + 1})
        streams.advance_quantized(block)
        if progress is not None:
            progress(number + 1, len(blocks))


def _is_coarse(sim: Simulation, block: Block) -> bool:
    """Return whether a weight or an activation of a block has fewer than 8 bits."""
    nodes = list(sim.graph)[block.first : block.last + 1]
    activations = {sim.placed.point_of[node.name] for node in nodes if node.name in sim.placed.point_of}
    weights = [sim.weight_points[name] for name in block.layers]
    spans = [w.hi - w.lo for w in weights] + [sim.points[name].hi - sim.points[name].lo for name in activations]
    return any(span < FULL for span in spans)


def _learn_block(sim: Simulation, block: Block, streams: Streams, method: str, settings: Settings, seed: int) -> None:
    """Learn one block, and store what was found where it lowers the error of the block's results."""
    nodes = streams.nodes(block, min(settings.batch, streams.samples))
    names = {node.name for node in nodes}
    learned = {
        name
        for name, point in sim.points.items()
        if not point.fixed and names.issuperset(sim.placed.points[name].tensors)
    }
    soft = SoftBlock(sim, nodes, learned)
    data = _Data(streams, block, min(settings.batch, streams.samples), seed, mixes=method == "qdrop")
    with torch.no_grad():
        before = data.error(soft)
    if not before > 0:
        return
    with torch.enable_grad():
        _optimize(soft, data, settings, before, drop=0.5 if method == "qdrop" else 0.0)
    with torch.no_grad():
        if data.error(soft) < before:
            soft.store()


def _optimize(soft: SoftBlock, data: _Data, settings: Settings, before: float, *, drop: float) -> None:
    """Minimize the error of the block's results, relative to that ``before``, and push roundings to integers."""
    scales = [q.value for q in soft.quantizers.values() if q.value.requires_grad]
    zeros = [q.zero_point for q in soft.quantizers.values() if q.zero_point.requires_grad]
    rates = [settings.rate, settings.scale_rate, 10 * settings.scale_rate]
    values = [[rounding.value for rounding in soft.roundings.values()], scales, zeros]
    groups = [{"params": v, "lr": rate} for v, rate in zip(values, rates, strict=True) if v]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.iterations)
    start = int(WARM_UP * settings.iterations)
    for iteration in range(settings.iterations):
        loss = data.loss(soft, drop) / before
        if iteration >= start:
            way = (iteration - start) / max(settings.iterations - start, 1)
            loss = loss + soft.undecided(POWERS[0] + (POWERS[1] - POWERS[0]) * way)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


class _Data:
    """Batches of what a block reads and what the float network makes of it."""

    def __init__(self, streams: Streams, block: Block, batch: int, seed: int, *, mixes: bool) -> None:
        self.quantized, self.floating, self.targets = streams.of(block)
        self.batch, self.samples, self.mixes = batch, streams.samples, mixes
        device = next(iter(self.targets.values())).device
        self.choice = torch.Generator().manual_seed(seed)
        self.random = torch.Generator(device).manual_seed(seed)
        self.scale = {name: 1 / y.square().mean().clamp(min=1e-30) for name, y in self.targets.items()}

    def loss(self, soft: SoftBlock, drop: float) -> Tensor:
        """Return the error on a random batch; inputs are mixed from both networks where activations are dropped."""
        chosen = torch.randint(self.samples, (self.batch,), generator=self.choice)
        values = {name: x[chosen] for name, x in self.quantized.items()}
        if self.mixes:
            for name, x in values.items():
                if x.is_floating_point():
                    mask = torch.rand(x.shape, generator=self.random, device=x.device) < 0.5
                    values[name] = torch.where(mask, self.floating[name][chosen], x)
        return self._error(soft(values, drop, self.random), chosen)

    def error(self, soft: SoftBlock) -> float:
        """Return the error with weights rounded to integers, on the first samples."""
        total, count = 0.0, 0
        for start in range(0, min(self.samples - self.batch + 1, 4 * self.batch), self.batch):
            chosen = torch.arange(start, start + self.batch)
            values = {name: x[chosen] for name, x in self.quantized.items()}
            total += float(self._error(soft(values, 0.0, None, hard=True), chosen))
            count += 1
        return total / count

    def _error(self, found: Mapping[str, Tensor], chosen: Tensor) -> Tensor:
        errors = [(found[name] - y[chosen]).square().mean() * self.scale[name] for name, y in self.targets.items()]
        return torch.stack(errors).sum()


UNREADABLE = (KeyError, TypeError, ValueError, RuntimeError, EOFError, struct.error, pickle.UnpicklingError)
"""What torch raises where a file is none of its own."""


def resume(sim: Simulation, checkpoint: Path, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Load what an interrupted run has learned, and return what it kept; None where there is no file."""
    if not checkpoint.exists():
        return None
    try:
        saved: dict[str, Any] = torch.load(io.BytesIO(bytes_of(checkpoint)), map_location="cpu", weights_only=True)
        found, state = saved["fingerprint"], saved["state"]
    except (
        ArithmeticError,
        LookupError,
        ValueError,
        TypeError,
        RuntimeError,
        EOFError,
        struct.error,
        pickle.UnpicklingError,
    ) as error:
        what, remedy = "this is no checkpoint of a reconstruction", "delete it"
        why = f"it holds no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(what, where=str(checkpoint), why=why, remedy=remedy) from error
    if found != dict(fingerprint):
        what, remedy = "the checkpoint is of another reconstruction", "delete it to begin anew"
        raise InputError(
            what, where=str(checkpoint), why="the network, its weights, the data or the settings differ", remedy=remedy
        )
    sim.load_state_dict(state)
    sim.resolve(from_observers=False)
    return saved


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a digest of the values of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def keep(sim: Simulation, checkpoint: Path, values: dict[str, Any]) -> None:
    """Write a checkpoint."""
    buffer = io.BytesIO()
    torch.save({**values, "state": sim.state_dict()}, buffer)
    write_atomically(checkpoint, buffer.getvalue())
