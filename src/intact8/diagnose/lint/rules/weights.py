"""IQ45x: quantized weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from intact8.diagnose.lint.rule import PROGRAM, SIMULATION, TORCH_AO, Hit, rule

FACTOR = 16.0
LEVELS = 8
INT16 = 32767


@rule("IQ451", "warning", SIMULATION, PROGRAM, TORCH_AO)
def per_tensor_weights(subject: Any) -> Iterator[Hit]:
    """All channels of a weight share one scale, and their ranges differ by more than a factor of 16.

    The quietest channel then has 16 levels or fewer. In depthwise convolutions after batch norm folding, ranges often
    differ by factors of hundreds. The rule leaves out dead channels (less than a ten-thousandth of the largest).

    Remedy: use one scale per output channel: weight={"granularity": "per_channel"}, the default
    """
    for w in subject.weights:
        if w.per_channel:
            continue
        largest = np.abs(w.rows).max(axis=1)
        alive = largest[largest > 1e-4 * largest.max()] if largest.size else largest
        ratio = float(alive.max() / alive.min()) if alive.size else 1.0
        if ratio > FACTOR:
            quiet = int((alive < alive.max() / FACTOR).sum())
            differ = f"one scale for {len(largest)} channels whose ranges differ by a factor of {ratio:.0f}"
            message = f"{differ}; {quiet} of them have fewer than {int(127 / FACTOR)} levels on each side"
            yield Hit(message, node=w.name, tensor=w.tensor, data={"ratio": ratio, "quiet": quiet})


@rule("IQ452", "note", PROGRAM)
def coarse_weights(subject: Any) -> Iterator[Hit]:
    """A quarter of the channels of a layer, or more, use fewer than 8 weight levels on each side.

    Their multiplier is the smallest one there is, because the layer's output range is very wide compared with the
    values of these channels. For nearly dead channels that is harmless; a comparison with the float network
    (``intact8.compare``) shows it. The rule also reports layers quantized to fewer than 5 bits on purpose; ignore it
    for them.

    Remedy: compare the layer with float (intact8.compare); equalize, or give its output a wider range
    """
    for w in subject.weights:
        if w.integers is None:
            continue
        largest = np.abs(w.integers).max(axis=1)
        coarse = int(((largest < LEVELS) & (largest > 0)).sum())
        if coarse * 4 >= len(largest):
            message = f"{coarse} of {len(largest)} channels use fewer than {LEVELS} levels"
            yield Hit(message, node=w.name, data={"coarse": coarse, "channels": len(largest)})


@rule("IQ453", "warning", PROGRAM, TORCH_AO)
def int16_saturation(subject: Any) -> Iterator[Hit]:
    """The two largest weights of a channel can overflow the 16-bit sums of x86 CPUs without VNNI.

    ``vpmaddubsw`` adds pairs of products uint8·int8 in int16: (|w₁| + |w₂|)·255 must not pass 32767. Where it does,
    results are silently wrong on such CPUs, and right on newer ones. intact8 keeps room for this by default and says so
    in the program (``needs``) where a recipe gives it up. torch.ao's answer for fbgemm is ``reduce_range``: activations
    of 7 bits. Whether it was used cannot be seen in a converted model, so there the rule needs the prepared one.

    Remedy: run it only on CPUs with VNNI, or make it portable: Recipe(portable=True); in torch.ao reduce_range=True
    """
    for w in subject.weights:
        if w.integers is None or w.integers.shape[1] < 2:
            continue
        top = np.partition(np.abs(w.integers), -2, axis=1)[:, -2:].sum(axis=1) * subject.reach
        if top.max() > INT16:
            channels = int((top > INT16).sum())
            message = f"pair sums reach {int(top.max())}, above {INT16}, in {channels} of {len(top)} channels"
            yield Hit(message, node=w.name, data={"pair": int(top.max()), "channels": channels})


@rule("IQ454", "note", SIMULATION, PROGRAM, TORCH_AO)
def dead_weights(subject: Any) -> Iterator[Hit]:
    """A quarter of the output channels of a layer, or more, have only zero weights.

    These channels cost as much as others and give only their bias. The layer was pruned without being made smaller, or
    never trained.

    Remedy: prune the channels, or check that the right checkpoint was loaded
    """
    for w in subject.weights:
        dead = int((np.abs(w.rows).max(axis=1) < 1e-30).sum()) if w.rows.size else 0
        if dead and dead * 4 >= len(w.rows):
            message = f"{dead} of {len(w.rows)} channels have only zero weights"
            yield Hit(message, node=w.name, tensor=w.tensor, data={"dead": dead, "channels": len(w.rows)})
