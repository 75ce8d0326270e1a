"""Whether int8 pays: accuracy after treatment, and time against the float32 model, measured in turns."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from intact8.diagnose.doctor.float_network import Patient
from intact8.diagnose.doctor.network_checks import call
from intact8.diagnose.doctor.report import Outcome, Verdict
from intact8.diagnose.doctor.samples import Batch, Samples
from intact8.engines import available_engines
from intact8.errors import EngineError
from intact8.lower import lower
from intact8.simulation.simulation import Simulation
from intact8.timing import interleaved


def judge(
    patient: Patient, sim: Simulation, held: Samples, exact: Outcome, after: Outcome, tolerance: float, seconds: float
) -> Verdict:
    """Measure and decide.

    Args:
        patient: the float network.
        sim: after treatment.
        held: the samples of the outcomes; the first batch times both.
        exact, after: outcomes on them.
        tolerance: how much of the metric may be lost, on top of what chance explains: the standard error √(drop/n) of
            a difference between two shares of the same n samples.
        seconds: for timing; 0 leaves it out.
    """
    drop = exact.metric - after.metric
    lost = drop - math.sqrt(max(drop, 0.0) / len(held)) > tolerance
    batch = held.batches[0]
    told = f"{exact.metric:.4g} in float, {after.metric:.4g} in int8"
    if not sim.points:
        return Verdict(False, "do not quantize this: there is nothing in it that has an integer form", drop)
    if seconds <= 0:
        reason = f"do not quantize this as it is: {told}" if lost else f"accuracy holds: {told}; time was not measured"
        return Verdict(not lost, reason, drop)
    runs = _runs(sim, batch)
    if not runs:
        return Verdict(False, "no engine but the reference runs it here", drop)
    contenders = {"float": lambda: call(patient, sim, batch), **runs}
    times = interleaved(contenders, seconds=seconds, least=5, warmup=2)
    engine = min(runs, key=lambda name: times[name].median)
    exact_ms, fast_ms = times["float"].median * 1e3, times[engine].median * 1e3
    speedup = exact_ms / fast_ms
    clock = f"{exact_ms:.3g} ms in float32, {fast_ms:.3g} ms in int8 for {len(batch)} samples on {engine}"
    if lost:
        reason = f"do not quantize this as it is: {told} ({clock})"
    elif speedup <= 1:
        reason = f"do not quantize this for speed here: {clock} ({told})"
    else:
        reason = f"{speedup:.2f} times as fast ({clock}); {told}"
    return Verdict(not lost and speedup > 1, reason, drop, speedup, exact_ms, fast_ms, len(batch), engine)


def _runs(sim: Simulation, batch: Batch) -> dict[str, Callable[[], object]]:
    """Engine → a call of the program, for every engine that is fast and runs it here."""
    program = lower(sim)
    inputs = [x.cpu() for x in batch.inputs]
    out: dict[str, Callable[[], object]] = {}
    for engine in available_engines():
        if engine == "reference":
            continue
        run = partial(program.run, *inputs, engine=engine)
        try:
            run()
        except EngineError:
            continue  # it says so in intact8 verify; here only those count that run
        out[engine] = run
    return out
