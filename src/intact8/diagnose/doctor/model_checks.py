"""What is wrong before anything is examined: training mode, NaN, weights that were rounded, or others since."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.capture.trace import checksum
from intact8.diagnose.chunks import Chunk
from intact8.diagnose.doctor.float_causes import FEW_NUMBERS, LEAST, TRAIN_ON
from intact8.diagnose.doctor.float_network import FloatNetwork
from intact8.diagnose.doctor.repair import kind_of
from intact8.diagnose.doctor.report import CALIBRATION, NETWORK, Finding
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.prepare import in_training_mode
from intact8.simulation.simulation import Simulation

ROWS = 256
"""Rows of a weight, of every one of which the different numbers are counted."""

WRITTEN = 0.75
"""Share of the numbers of a layer that are one and the same from which somebody wrote it there: no rounding does."""

DIVERGED, ANOTHER = 0.1, 0.5
"""Loss of the metric by training from which it has diverged; and where there are no labels, the share of what the model
gave that is lost."""


def training_mode(model: nn.Module) -> list[Finding]:
    """Return the finding of batch norms or dropouts in training mode."""
    names = in_training_mode(model)
    if not names:
        return []
    more = f", and {len(names) - 1} further batch norms and dropouts" if len(names) > 1 else ""
    message = (
        f"{names[0] or 'the model itself'} is in training mode{more}: what the float network answers is random, or "
        "depends on the other samples of the batch; it was examined in evaluation mode"
    )
    return [
        Finding("training_mode", NETWORK, "error", message, "call model.eval() first", evidence={"modules": names[:10]})
    ]


def random_answers(network: FloatNetwork, model: nn.Module, batch: Chunk) -> list[Finding]:
    """Return the finding of a model in training mode that answers otherwise each time, as functions drop out then.

    Args:
        network: the float network.
        model: as it was given.
        batch: of samples.
    """
    if not any(module.training for module in model.modules()):
        return []
    other = network.with_model(copy.deepcopy(model))
    answers = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            try:
                given = other(batch)
            except Exception:  # noqa: BLE001 - whatever the model's code raises in training mode
                return []
            answers.append([y for y in torch.utils._pytree.tree_leaves(given) if isinstance(y, Tensor)])
    if all(torch.equal(one, two) for one, two in zip(*answers, strict=True)):
        return []
    message = (
        "the model is in training mode, and answers the same samples otherwise each time, as by dropout that is no "
        "module; it was examined in evaluation mode"
    )
    return [Finding("training_mode", NETWORK, "error", message, "call model.eval() first")]


def not_finite(model: nn.Module) -> list[Finding]:
    """Return the finding of parameters and buffers that hold NaN or infinity; masks may hold infinity beside 0."""
    counts: dict[str, int] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()) and not is_mask(tensor):
            counts[name] = int((~torch.isfinite(tensor)).sum())
    if not counts:
        return []
    places = {name.rpartition(".")[0] for name in counts}
    first = next(iter(counts))
    message = f"{counts[first]} values of {first} are NaN or infinite"
    message += f", and some of {len(counts) - 1} further tensors" if len(counts) > 1 else ""
    place = first.rpartition(".")[0] if len(places) == 1 else ""
    remedy = f"{TRAIN_ON}, and train on with a smaller learning rate"
    return [Finding("not_finite", place or NETWORK, "error", message, remedy, evidence={"values": counts})]


def is_mask(tensor: Tensor) -> bool:
    """Return whether a buffer holds one number, and infinity of one sign, as what is added to scores."""
    rest = tensor[torch.isfinite(tensor)]
    one = not isinstance(tensor, nn.Parameter) and bool((rest == 0).all()) and len(rest) > 0
    return one and not bool(torch.isnan(tensor).any())


def rounded(model: nn.Module) -> list[Finding]:
    """Return the finding of weights that were rounded before: no trained ones are such numbers by chance."""
    found: dict[str, list[str]] = defaultdict(list)
    given = list(model.named_parameters())
    trains = any(p.requires_grad for _, p in given)  # else nothing says which of them are fixed on purpose
    given = [(n, p) for n, p in given if p.requires_grad or not trains]
    weights = {n: p.detach() for n, p in given if p.dtype == torch.float32 and p.numel() >= LEAST}
    for name, weight in weights.items():
        some = weight.reshape(-1)[:4096].cpu().numpy()
        some = some[some != 0]
        numbers, counts = np.unique(some, return_counts=True)
        different = len(numbers)
        if len(some) and counts.max() > WRITTEN * len(some):
            some, different = some[some != numbers[counts.argmax()]], different - 1
        if len(some) < (LEAST if different > LEAST // 16 else LEAST // 4):  # of steps that are coarse most are 0
            continue
        if different < len(some) // 4 or _few_in_rows(weight):
            kinds = [FEW_NUMBERS] if different > 1 else []
        else:
            kinds = [n for n in ("bfloat16", "float16") if bool((weight.to(getattr(torch, n)).float() == weight).all())]
        for kind in kinds[:1]:
            found[kind].append(name)
    findings = []
    for kind, names in found.items():
        layers = {name.rpartition(".")[0] for name in names}
        place = _together(layers) if 2 * len(names) <= len(weights) or len(layers) == 1 else NETWORK
        message = f"{len(names)} of {len(weights)} weights were rounded to {kind}, {names[0]} first"
        remedy = "quantize the float32 weights of the training, where there are any"
        evidence: dict[str, Any] = {"weights": names[:10]}
        if kind == FEW_NUMBERS:
            evidence["rounding"] = max(_rounding(weights[name]) for name in names)
        findings.append(Finding("rounded_weights", place, "warning", message, remedy, evidence=evidence))
    return findings


def _together(layers: Collection[str]) -> str:
    """Return the path of the innermost module that has all layers of these paths; the network where there is none."""
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*(layer.split(".") for layer in layers), strict=False))
    return ".".join(parts[0] for parts in alike) or NETWORK


def unread(model: nn.Module, sim: Simulation) -> list[Finding]:
    """Return findings of layers with weights that nothing reads: a layer, or block, may have been forgotten.

    Where a part of a recurrent layer is read, or layers like it are, as of other blocks, that is a warning. What else
    is not read may be there for training only: a note. ``proven`` of float_checks weighs both.
    """
    used = {name for node in sim.graph for name in node.params.values()}
    used |= {name for of, derived in sim.captured.derived.items() if of in used for name in derived.sources}
    remedy = "see that the network computes what it did in training"
    run = {name for node in sim.graph for name in (node.name, *node.source)}  # with weights made of others, say
    found, whole = [], []
    for path, module in model.named_modules():
        names = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
        left = [name for name in names if name not in used]
        if left and isinstance(module, nn.RNNBase) and len(left) < len(names):
            message = f"{len(left)} of its {len(names)} weights and biases, {left[0]} first, take no part in any output"
            evidence: dict[str, Any] = {"unread": left[:10], "alike": True}
            found.append(Finding("wrong_setting", path or NETWORK, "warning", message, remedy, evidence=evidence))
        elif len(left) == len(names) > 0 and "parametrizations" not in path and path not in run:
            whole += left
    if whole:  # one layer, or all of one block
        block = whole[0].rpartition(".")[0]
        while block and not all(name.startswith(f"{block}.") for name in whole):
            block = block.rpartition(".")[0]
        # The last of several blocks has parts that nothing needs, as its way on to the next.
        alike = any(
            "#" in kind_of(name) and any(n > name for n in used if kind_of(n) == kind_of(name)) for name in whole
        )
        message = f"{len(whole)} of its weights and biases, {whole[0]} first, take no part in any output"
        message += ", and those of layers like it do" if alike else ""
        evidence = {"unread": whole[:10], **({"alike": True} if alike else {})}
        level = "warning" if alike else "note"
        found.append(Finding("wrong_setting", block or whole[0], level, message, remedy, evidence=evidence))
    return found


def _few_in_rows(weight: Tensor) -> bool:
    """Return whether every row of a weight holds few different numbers, as by a scale of its own."""
    rows = [row[row != 0] for row in weight.reshape(len(weight), -1)[:ROWS].cpu()]
    return all(len(row) >= LEAST // 4 and len(torch.unique(row)) <= len(row) // 2 for row in rows)


def _rounding(weight: Tensor) -> float:
    """Return the noise over signal of rounding to the numbers that a weight holds, if any between them was possible."""
    if weight.dim() > 1 and _few_in_rows(weight):  # more numbers in all than in any row
        power = weight.double().square().mean()
        return float(
            sum(_rounding(row) * row.double().square().mean() for row in weight.flatten(1)) / len(weight) / power
        )
    numbers, counts = torch.unique(weight.double(), return_counts=True)
    gaps = numbers.diff()
    widths = torch.cat([gaps[:1], (gaps[1:] + gaps[:-1]) / 2, gaps[-1:]])
    noise = (counts * widths.square()).sum() / 12 / weight.numel()
    return float(noise / weight.double().square().mean().clamp(min=1e-300))


def nan_samples(samples: Samples) -> list[Finding]:
    """Return the finding of samples that hold NaN: calibration data are taken from them, or are these."""
    bad, start = [], 0
    for batch in samples:
        for x in (x for x in batch.inputs if x.is_floating_point()):
            rows = torch.isnan(x.reshape(len(x), -1)).any(1)
            bad += [start + int(i) for i in rows.nonzero().reshape(-1)]
        start += len(batch)
    if not bad:
        return []
    message = f"{len(bad)} of {start} samples hold NaN, sample {bad[0]} first"
    remedy = "leave them out, and look for what made them"
    return [Finding("not_finite", CALIBRATION, "error", message, remedy, evidence={"samples": bad[:10]})]


def overflowing(sim: Simulation, samples: Samples) -> list[Finding]:
    """Return the finding of the first operation whose results are NaN or infinite though its inputs are not."""
    compute = FloatExecutor(sim.tensors)
    with torch.no_grad():
        for batch in samples:
            values = dict(zip(sim.graph.inputs, batch.inputs, strict=True))
            for node in sim.graph.sized(batch.inputs):
                if node.name in values:
                    continue
                y = values[node.name] = compute(node, [values[name] for name in node.inputs])
                hides = node.op == "constant" and (is_mask(y) or bool(torch.isneginf(y).all()))
                whole = not y.is_floating_point() or hides
                bad = 0 if whole else int((~torch.isfinite(y)).sum())
                if bad and all(bool(torch.isfinite(values[name]).all()) for name in node.inputs):
                    message = f"{bad} of its {y.numel()} results are NaN or infinite, though its inputs are not"
                    return [Finding("not_finite", node.name, "error", message, f"{TRAIN_ON}, or check the inputs")]
    return []


def diverged(before: float, after: float, least: float = DIVERGED) -> list[Finding]:
    """Return the finding of training that made the float network worse by more than ``least``, given its metric."""
    if not before - after > least:
        return []
    message = f"before any rounding the trained weights have {after:.4g}, the model's own {before:.4g}"
    remedy = f"{TRAIN_ON}, and train on with a smaller learning rate"
    evidence = {"before": before, "after": after}
    return [Finding("diverged_training", NETWORK, "error", message, remedy, evidence=evidence)]


def changed_since(model: nn.Module, sim: Simulation) -> list[Finding]:
    """Return the finding of a model that was trained, or loaded, after the simulation was made, which has old weights.

    A simulation that was trained itself differs from the model, too, but the model is still what it was made of.
    """
    own, made = model.state_dict(), sim.state_dict()
    sums = {name: total for name, total in sim.captured.checksums.items() if name in own and name in made}
    changed = [name for name, total in sums.items() if checksum(own[name]) not in (total, checksum(made[name]))]
    if not changed:
        return []
    message = (
        f"{len(changed)} of {len(sums)} parameters and buffers of the model have changed since the simulation was "
        f"made, {changed[0]} first: the simulation is of another network"
    )
    remedy = "make it of the present model: intact8.prepare and intact8.calibrate again, before any training of it"
    return [Finding("float_mismatch", NETWORK, "error", message, remedy, evidence={"parameters": changed[:10]})]
