"""Inputs that look unlike any that are recorded: values that repeat, ends that are empty, columns that never change,
texts that are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from intact8.diagnose.doctor.answers import Answers
from intact8.diagnose.doctor.float_causes import MOST, NEARLY_ALL, OF_LAYERS, OF_REPAIRS
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG
from intact8.diagnose.doctor.report import NETWORK, Finding
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import filling
from intact8.simulation.simulation import Simulation

REPEATED, LONG = (4, 3, 2), 8
"""How many times values are repeated that were sampled more slowly, and the shortest dimension in which that shows."""

MOST_COLUMNS = 20
"""Columns of a table up to which one that never changes is remarkable: pixels at the edge of pictures never do."""

FEW, REMARKABLE, FAR = 3, 0.005, 8.0
"""How often, and in which share of the samples, a number comes again that stands for a missing one, and how many
standard deviations of the others it lies from their mean."""

EMPTY = 1 / 6
"""Share of the steps of a signal, or of the places of a text, from which its end is empty, where no sample has anything
there."""

CUT = 1 / 2
"""Share of the texts from which their ends at one place, behind which there is room, are no chance."""


def conspicuous_inputs(
    sim: Simulation, answers: Answers | None, samples: Samples, known: Sequence[Finding]
) -> list[Finding]:
    """Return the finding of inputs that look damaged, where the network is wrong and little else explains it.

    Inputs may be such by nature, which a network that is right has learned; where it is wrong, what nothing else
    explains lies in them.

    Args:
        sim: a simulation of the network.
        answers: how it answers in float; None where no right answers are known.
        samples: the samples that were answered.
        known: what was found so far.
    """
    if answers is None or answers.surely_right:
        return []
    recovers = max((f.evidence.get("recovers", 0.0) for f in known), default=0.0)
    # Statistics that are not those of a layer's results are its weights' fault, or that of what they read.
    said = OF_REPAIRS | {"batch_norm"}
    shown = any(f.severity == "error" and f.cause in OF_LAYERS and f.evidence.keys() - said for f in known)
    for name, given in zip(sim.graph.inputs, zip(*(batch.inputs for batch in samples), strict=True), strict=True):
        if given[0].dtype == torch.bool or len({x.shape[1:] for x in given}) > 1:
            continue
        x = torch.cat(given)
        if not x.is_floating_point():
            looks = [] if shown or recovers > MOST else [*_cut(x)]
        else:
            looks = [*_repeats(x), *_missing(x)] if recovers <= NEARLY_ALL else []
            looks = looks or ([] if shown or recovers > MOST else [*_empty(x), *_constant(x)])
        if looks:
            message = f"in float the network {answers.targets.said(answers.score)} of {len(samples)} samples, and in "
            message += f"{name} {looks[0]}"
            remedy = "see that inputs are recorded, resampled and prepared as in training"
            evidence: dict[str, Any] = {"looks": looks[0]}
            return [Finding(INPUTS_ARE_WRONG, NETWORK, "error", message, remedy, evidence=evidence)]
    return []


def _repeats(x: Tensor) -> Iterator[str]:
    """Yield that every value comes several times in a row, as where it was sampled at a lower rate."""
    for axis in range(1, x.dim()) if x.dim() > 2 else ():
        for times in REPEATED:
            size = x.shape[axis]
            if size % times or size // times < LONG // 2:
                continue
            parts = x.reshape(*x.shape[:axis], size // times, times, *x.shape[axis + 1 :])
            first = parts.narrow(axis + 1, 0, 1)
            if bool((first != first.narrow(axis, 0, 1)).any()) and torch.equal(parts, first.expand_as(parts)):
                yield f"every value comes {times} times in a row along dimension {axis}"
                return


def _missing(x: Tensor) -> Iterator[str]:
    """Yield that one number of a column comes again and again far from all others, as what stands for a missing one."""
    for at, column in enumerate(x.double().T) if x.dim() == 2 else ():
        value = column[(column - column.median()).abs().argmax()]
        others = column[column != value]
        count = len(column) - len(others)
        if count < max(FEW, REMARKABLE * len(column)) or len(others) < count:
            continue
        if 2 * int((others != others.median()).sum()) < len(others):  # flags, or pixels that are seldom drawn on
            continue
        away, reach = (float((part - others.mean()).abs().max()) for part in (value[None], others))
        if away > FAR * float(others.std()) and away > 2 * reach:
            share = f"{count / len(column):.1%}"
            yield f"number {at} of dimension 1 is {float(value):.4g} in {share} of them, far from all others"


def _empty(x: Tensor) -> Iterator[str]:
    """Yield that a signal's beginning or end never changes, in no sample and at no step, or that of some columns."""
    for axis in range(1, 3) if x.dim() == 3 else ():
        if x.shape[axis] < LONG:
            continue
        rows = x.movedim(axis, 0).flatten(1)  # steps, and all else
        for steps, end in ((rows.flip(0), "last"), (rows, "first")):
            count = int((steps == steps[0]).all(1).long().cumprod(0).sum())
            if bool((steps[0] == steps[0, 0]).all()) and EMPTY * len(rows) < count < len(rows):
                yield f"the {end} {count} of {len(rows)} steps along dimension {axis} never change"
        still = (x == x[:1]).all(0).movedim(axis - 1, 0)  # steps, columns
        for steps, end in ((x[0].movedim(axis - 1, 0), "last"), (x[0].movedim(axis - 1, 0).flip(0), "first")):
            same = still if end == "last" else still.flip(0)
            counts = (same & (steps == steps[-1:])).flip(0).long().cumprod(0).sum(0)
            some = (counts > EMPTY * len(still)) & (counts < len(still))
            if 0 < int(some.sum()) < min(len(some), MOST_COLUMNS):
                at, count = ", ".join(map(str, some.nonzero().reshape(-1).tolist())), int(counts[some].min())
                which = f"number {at} of dimension {3 - axis} never changes"
                yield f"{which} in the {end} {count} of {len(still)} steps along dimension {axis}"


def _cut(x: Tensor) -> Iterator[str]:
    """Yield that most texts end at one place, and none behind it, though there is room for longer ones."""
    fills = filling(x) if x.dim() == 2 and x.shape[1] >= LONG // 2 else None
    if fills is None:
        return
    ends = (x != fills).long().cumsum(1).argmax(1) + 1
    longest, room = int(ends.max()), x.shape[1]
    share = float((ends == longest).double().mean())
    if room - longest > EMPTY * room and CUT <= share < 1:
        yield f"{share:.0%} of the texts end at place {longest} of {room}, and none behind it, as where they are cut"


def _constant(x: Tensor) -> Iterator[str]:
    """Yield which few columns or channels have one value everywhere, where others do not."""
    if x.dim() < 2:
        return
    columns = x.movedim(1, 0).flatten(1)
    still = (columns == columns[:, :1]).all(1)
    if 0 < int(still.sum()) <= max(1, len(columns) // 8) and 1 < len(columns) <= MOST_COLUMNS:
        at = still.nonzero().reshape(-1).tolist()
        yield f"number {', '.join(map(str, at))} of dimension 1 is {float(columns[at[0], 0]):.3g} everywhere"
