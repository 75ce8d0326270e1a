"""Trying one network on the simulation and every engine: the rules every case is held to.

The README in this folder has them in words.
"""

from __future__ import annotations

import copy
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import intact8
import intact8.train
from intact8.errors import IntactError
from intact8.program.program import Program

from .case import ENGINES, Case, Finding, Network, Unfit
from .plain import plain

SAMPLES, BATCHES = 16, 3
"""Of calibration; the first batch is what is compared."""

FACTOR, FLOOR = 4.0, 0.05
"""An output may be FACTOR times as far from float as plain W8A8 is, and FLOOR of its norm more."""

SLOW = ("openvino",)
"""Engines that compile: they run programs of which something was not seen before, see :func:`_unseen`."""

SEEN: set[tuple[Any, ...]] = set()

USELESS = ("dynamic_batch", "not tracked with proxy", "convert the model again")
"""Parts of messages that tell nobody what to do."""


class Stop(Exception):
    """The trial ends here: what happened is noted."""


def judge(
    case: Case, engines: Sequence[str] = ENGINES, *, files: bool = True, training: bool = False, seed: int = 0
) -> Finding:
    """Build, convert and compare one case.

    Args:
        case: an entry of a collection.
        engines: compared with the reference.
        files: also save, load and run.
        training: also two steps of training with learned scales.
        seed: of weights and data.
    """
    finding, start = Finding(case.name), time.perf_counter()
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = _network(case, finding)
        _trial(network, finding, engines, files)
        if training:
            _train(network, finding)
    except Stop:
        pass
    finding.seconds = time.perf_counter() - start
    return finding


def _network(case: Case, finding: Finding) -> Network:
    """Build a case and run its float network; what fails here is torch's affair, not ours."""
    try:
        network = case.build()
        network.model.eval()
        with torch.no_grad():
            outputs = network.model(*network.calls(SAMPLES))
    except Unfit as reason:
        finding.refusals["build"] = str(reason)
        raise Stop from None
    except Exception as error:  # noqa: BLE001  # an entry this version of torch cannot construct or run
        finding.refusals["build"] = f"{type(error).__name__}: {error}"[:300]
        raise Stop from None
    tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
    if not tensors:
        finding.refusals["build"] = "no tensor comes out"
        raise Stop
    call = network.calls(SAMPLES)
    finding.tensor_in_and_out = len(tensors) == 1 and isinstance(outputs, Tensor) and len(call) == 1
    return network


@contextmanager
def _guard(finding: Finding, where: str) -> Iterator[None]:
    """A clear refusal is noted, anything else is a fault; both end the trial."""
    try:
        yield
    except IntactError as error:
        text = str(error)
        finding.refusals[where] = text
        if not error.remedy:
            finding.fault("useless", where, f"no remedy: {text}")
        for part in USELESS:
            if part in text:
                finding.fault("useless", where, text)
        raise Stop from None
    except Stop:
        raise
    except Exception as error:  # noqa: BLE001  # the very thing looked for
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/intact8/" in f.filename]
        at = ", ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-3:])
        finding.fault("foreign", where, f"{type(error).__name__}: {error} [{at}]"[:600])
        raise Stop from None


def _attempt(finding: Finding, where: str, what: Callable[[], Any]) -> Any:
    """The result of ``what``; None where it was refused or failed, which is noted."""
    try:
        with _guard(finding, where):
            return what()
    except Stop:
        return None


def _trial(network: Network, finding: Finding, engines: Sequence[str], files: bool) -> None:
    model, data = network.model, [network.calls(SAMPLES) for _ in range(BATCHES)]
    with torch.no_grad():
        want = model(*copy.deepcopy(data[0]))
    before = {name: t.detach().clone() for name, t in model.state_dict().items() if isinstance(t, Tensor)}
    finding.outcome = "refused"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with _guard(finding, "prepare"):
            sim = intact8.prepare(model, copy.deepcopy(data[0])).eval()
        with _guard(finding, "calibrate"):
            intact8.calibrate(sim, copy.deepcopy(data))
        with _guard(finding, "convert"):
            program = intact8.convert(sim)
    finding.outcome, finding.kinds = "converted", [op.kind for op in program.ops]
    _unmutated(model, before, finding)
    said = [str(w.message) for w in warned if _about_accuracy(w)]
    with _guard(finding, "simulation"), torch.no_grad():
        simulated = sim(*copy.deepcopy(data[0]))
    _compare_outputs(finding, "simulation", simulated, want)
    _accuracy(finding, network, data[0], simulated, want, said)
    flat = tuple(sim.flatten(copy.deepcopy(data[0]), {}))
    engines = [engine for engine in engines if engine not in SLOW or _unseen(program)]
    _engines(program, sim, flat, finding, engines)
    for engine in ("reference", *engines):
        if engine not in finding.refusals:
            got = _attempt(finding, engine, partial(program.run, *flat, engine=engine))
            if got is not None:
                _compare_outputs(finding, engine, got, want, simulated)
    if files:
        with _guard(finding, "file"):
            _file(program, flat, finding)
    _other_batches(program, sim, network, finding, engines)


def _about_accuracy(warning: warnings.WarningMessage) -> bool:
    """Whether a warning says that an output is far from float's."""
    text = str(warning.message)
    return "float" in text and "output" in text


def _engines(program: Any, sim: Any, flat: tuple[Any, ...], finding: Finding, engines: Sequence[str]) -> None:
    """Every integer of the simulation and of every engine that accepts the program."""
    for engine in ("reference", *engines):
        chosen = sim if engine == "reference" else None
        report = _attempt(finding, engine, partial(intact8.verify, program, flat, engines=(engine,), sim=chosen))
        if report is None:
            continue
        finding.elements += report.elements
        for name, result in report.by_engine.items():
            if result.mismatches or result.missing:
                missing = f", not given: {', '.join(result.missing)}" if result.missing else ""
                finding.fault(
                    "mismatch", name, f"{result.mismatches} of {result.elements} differ{missing}; {report.first}"
                )


def _unseen(program: Program) -> bool:
    """Whether an operation of the program is unlike all before: its kind, attributes that are no numbers, dtypes and
    ranks, or the kinds around it. What compilers make of a program depends on these; on sizes, hardly."""
    kinds = {op.name: op.kind for op in program.ops}
    readers = {n: sorted(op.kind for op in program.ops if n in op.inputs) for n in program.tensors}
    found = {
        (
            op.kind,
            *(f"{k}={v}" for k, v in sorted(op.attrs.items()) if isinstance(v, str | bool | None)),
            *sorted(op.arrays),
            *((kinds.get(n), program.tensors[n].dtype, len(program.tensors[n].shape)) for n in op.inputs),
            *readers[op.name],
        )
        for op in program.ops
    }
    fresh = not found <= SEEN
    SEEN.update(found)
    return fresh


def _compare_outputs(finding: Finding, where: str, got: Any, want: Any, simulated: Any = None) -> None:
    """Number, nesting, shapes and dtypes of outputs are the model's; an engine's values the simulation's."""
    ours, spec = pytree.tree_flatten(got)
    theirs, wanted = pytree.tree_flatten(want)
    if len(ours) != len(theirs) or (spec != wanted and where == "simulation"):
        finding.fault("lost", where, f"outputs are {spec}, the model's {wanted}")
        return
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(b, Tensor):
            if not isinstance(a, Tensor):
                finding.fault("lost", where, f"output {i} is {type(a).__name__}, the model's a tensor")
            elif a.shape != b.shape or a.dtype != b.dtype:
                given = f"{a.dtype} {tuple(a.shape)}"
                finding.fault("lost", where, f"output {i} is {given}, the model's {b.dtype} {tuple(b.shape)}")
        elif a != b:
            finding.fault("lost", where, f"output {i} is {a!r}, the model's {b!r}")
    if simulated is not None and not finding.faults:
        distance = error(got, simulated)
        if not distance < 0.01:
            finding.fault("mismatch", where, f"outputs are {distance:.3g} from the simulation's")


def error(got: Any, want: Any) -> float:
    """The largest relative error of any output: of floats in norm, of integers and truth values the share unequal.

    Where the model gives no finite number, the same kind of value is expected.
    """
    worst = 0.0
    pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True)
    for a, b in pairs:
        if not isinstance(b, Tensor) or not b.numel():
            continue
        if not b.is_floating_point():
            worst = max(worst, float((a != b).double().mean()))
            continue
        a, b = a.double(), b.double()
        finite = torch.isfinite(b)
        if not torch.isfinite(a[finite]).all():
            return float("inf")
        norm = float(b[finite].norm())
        distance = float((a[finite] - b[finite]).norm())
        worst = max(worst, distance / norm if norm > 1e-9 else float(distance > 1e-6))
    return worst


def _accuracy(finding: Finding, network: Network, call: Any, simulated: Any, want: Any, said: list[str]) -> None:
    """No output is further from float's than a multiple of what plain W8A8 leaves, unless somebody said so."""
    if any(f.rule == "lost" for f in finding.faults):
        return
    ours = error(simulated, want)
    yardstick = error(plain(network.model, call), want)
    finding.errors = {"ours": ours, "plain": yardstick}
    if not ours <= FACTOR * yardstick + FLOOR and not said:
        finding.fault("far", "simulation", f"relative error {ours:.3g}, plain W8A8 {yardstick:.3g}, and no warning")


def _unmutated(model: nn.Module, before: dict[str, Tensor], finding: Finding) -> None:
    after = model.state_dict()
    changed = [name for name, t in before.items() if name not in after or not _same(after[name], t)]
    if changed:
        finding.fault("mutated", "convert", f"the model's {', '.join(changed)} changed")


def _same(a: Any, b: Any) -> bool:
    """Equal bits, every NaN alike."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan()))


def _file(program: Any, flat: tuple[Any, ...], finding: Finding) -> None:
    """Saved and loaded, the program gives the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        path = program.save(Path(folder) / "program.safetensors")
        loaded = intact8.Program.load(path)
        first, second = program.run(*flat, engine="reference"), loaded.run(*flat, engine="reference")
        pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
        if not all(_same(a, b) for a, b in pairs):
            finding.fault("file", "file", "a saved and loaded program gives other outputs")


def _other_batches(program: Any, sim: Any, network: Network, finding: Finding, engines: Sequence[str]) -> None:
    """Other batch sizes run and are the same on every engine, or were declared fixed."""
    if any(f.rule in ("foreign", "mismatch", "lost") for f in finding.faults):
        return
    for size in (3, 1):
        call = network.calls(size)
        try:
            with torch.no_grad():
                want = network.model(*copy.deepcopy(call))
        except Exception:  # noqa: BLE001  # the float network has no such batch
            continue
        shapes = [t.shape for t in pytree.tree_leaves(call) if isinstance(t, Tensor)]
        if shapes == [t.shape for t in pytree.tree_leaves(network.calls(SAMPLES)) if isinstance(t, Tensor)]:
            return
        if not sim.graph.dynamic_batch:
            if not sim.captured.notes:
                finding.fault("batch", f"batch {size}", "the batch is fixed, and nothing says so")
            return
        where, flat = f"batch {size}", tuple(sim.flatten(call, {}))
        accepted = [engine for engine in engines if engine not in finding.refusals]
        with _guard(finding, where):
            report = intact8.verify(program, flat, engines=("reference", *accepted), sim=sim)
            if not report.exact:
                finding.fault("mismatch", where, f"{report.mismatches} differ; {report.first}")
            declared = size == 1 and any("batch of one" in note for note in sim.captured.notes)
            with torch.no_grad():
                simulated = sim(*call)
            _compare_outputs(finding, where, program.run(*flat), simulated if declared else want, simulated)


def _train(network: Network, finding: Finding) -> None:
    """Two steps of training with learned scales, then everything exact again."""
    data = [network.calls(SAMPLES) for _ in range(2)]
    with _guard(finding, "training"):
        sim = intact8.prepare(network.model, copy.deepcopy(data[0]), intact8.recipes.qat("learned"))
        intact8.calibrate(sim, copy.deepcopy(data))
        groups = [g for g in intact8.train.parameter_groups(sim, lr=1e-3) if g["params"]]
        optimizer = torch.optim.SGD(groups) if groups else None
        sim.train()
        for call in data:
            floats = [t for t in pytree.tree_leaves(sim(*copy.deepcopy(call))) if _trainable(t)]
            if optimizer is None or not floats:
                break
            optimizer.zero_grad()
            torch.stack([t.square().mean() for t in floats]).sum().backward()
            optimizer.step()
        program = intact8.convert(sim.eval())
        flat = tuple(sim.flatten(copy.deepcopy(data[0]), {}))
        report = intact8.verify(program, flat, engines=("reference", "onednn"), sim=sim)
        if not report.exact:
            finding.fault("training", "training", f"{report.mismatches} integers differ; {report.first}")


def _trainable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad
