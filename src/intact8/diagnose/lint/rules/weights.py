"""IQ45x: quantized weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from intact8.diagnose.lint.rule import PROGRAM, SIMULATION, TORCH_AO, Hit, rule

FACTOR = 16.0
LEVELS = 8
INT16 = 32767


@rule(
    "IQ451", "per-tensor-weights", "warning", SIMULATION, PROGRAM, TORCH_AO,
    remedy='use one scale per output channel: weight={"granularity": "per_channel"}, the default',
    covers=("EX19a", "EX4"),
)  # fmt: skip
def per_tensor_weights(subject: Any) -> Iterator[Hit]:
    """All channels of a weight share one scale, and their ranges differ by more than a factor of 16.

    The quietest channel then has 16 levels or fewer. Depthwise convolutions after batch norm folding often differ by
    factors of hundreds. Channels that are dead (less than a ten-thousandth of the largest) are left out.
    """
    for w in subject.weights:
        if w.per_channel:
            continue
        largest = np.abs(w.rows).max(axis=1)
        alive = largest[largest > 1e-4 * largest.max()] if largest.size else largest
        ratio = float(alive.max() / alive.min()) if alive.size else 1.0
        if ratio > FACTOR:
            quiet = int((alive < alive.max() / FACTOR).sum())
            yield Hit(
                f"one scale for {len(largest)} channels whose ranges differ by a factor of {ratio:.0f}; {quiet} "
                f"of them have fewer than {int(127 / FACTOR)} levels on each side",
                node=w.name, tensor=w.tensor, data={"ratio": ratio, "quiet": quiet},
            )  # fmt: skip


@rule(
    "IQ452", "coarse-weights", "note", PROGRAM,
    remedy="compare the layer with float (intact8.compare); equalize, or give its output a wider range",
    covers=("EX19a", "NB8"),
)  # fmt: skip
def coarse_weights(subject: Any) -> Iterator[Hit]:
    """A quarter of the channels of a layer, or more, use fewer than 8 weight levels on each side.

    Their multiplier hit the smallest one there is, because the layer's output range is very wide compared with what
    these channels give. For nearly dead channels that is harmless; the float network decides (``intact8.compare``).
    Layers quantized to fewer than 5 bits on purpose are reported as well; ignore the rule for them.
    """
    for w in subject.weights:
        if w.integers is None:
            continue
        largest = np.abs(w.integers).max(axis=1)
        coarse = int(((largest < LEVELS) & (largest > 0)).sum())
        if coarse * 4 >= len(largest):
            message = f"{coarse} of {len(largest)} channels use fewer than {LEVELS} levels"
            yield Hit(message, node=w.name, data={"coarse": coarse, "channels": len(largest)})


@rule(
    "IQ453", "int16-saturation", "warning", PROGRAM, TORCH_AO,
    remedy="run it only on CPUs with VNNI, or make it portable: Recipe(portable=True); in torch.ao reduce_range=True",
    covers=("NB8", "DK2"),
)  # fmt: skip
def int16_saturation(subject: Any) -> Iterator[Hit]:
    """The two largest weights of a channel can overflow the 16-bit sums of x86 CPUs without VNNI.

    ``vpmaddubsw`` adds pairs of products uint8·int8 in int16: (|w₁| + |w₂|)·255 must not pass 32767. Where it does,
    results are silently wrong on such CPUs, and right on newer ones. intact8 keeps room for this by default and says so
    in the program (``needs``) where a recipe gives it up. torch.ao's answer for fbgemm is ``reduce_range``: activations
    of 7 bits. Whether it was used cannot be seen in a converted model, so there the rule needs the prepared one.
    """
    for w in subject.weights:
        if w.integers is None or w.integers.shape[1] < 2:
            continue
        top = np.partition(np.abs(w.integers), -2, axis=1)[:, -2:].sum(axis=1) * subject.reach
        if top.max() > INT16:
            channels = int((top > INT16).sum())
            yield Hit(
                f"pair sums reach {int(top.max())}, above {INT16}, in {channels} of {len(top)} channels",
                node=w.name, data={"pair": int(top.max()), "channels": channels},
            )  # fmt: skip


@rule(
    "IQ454", "dead-weights", "note", SIMULATION, PROGRAM, TORCH_AO,
    remedy="prune the channels, or check that the right checkpoint was loaded",
    covers=("EX25",),
)  # fmt: skip
def dead_weights(subject: Any) -> Iterator[Hit]:
    """A quarter of the output channels of a layer, or more, have only zero weights.

    They compute their bias at full price. A layer that was pruned without being made smaller, or never trained.
    """
    for w in subject.weights:
        dead = int((np.abs(w.rows).max(axis=1) < 1e-30).sum()) if w.rows.size else 0
        if dead and dead * 4 >= len(w.rows):
            message = f"{dead} of {len(w.rows)} channels have only zero weights"
            yield Hit(message, node=w.name, tensor=w.tensor, data={"dead": dead, "channels": len(w.rows)})
