"""The decision whether int8 pays: accuracy after remedies, and time against the float32 model, measured in turns."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from intact8.diagnose.chunks import Chunk
from intact8.diagnose.doctor.float_network import FloatNetwork
from intact8.diagnose.doctor.network_checks import LEFT_FLOAT
from intact8.diagnose.doctor.report import Outcome, Verdict
from intact8.diagnose.doctor.samples import Samples
from intact8.engines import available_engines
from intact8.errors import EngineError
from intact8.lower import lower
from intact8.simulation.simulation import Simulation
from intact8.timing import interleaved


def decide(
    network: FloatNetwork,
    sim: Simulation,
    held_out: Samples,
    exact: Outcome,
    after: Outcome,
    tolerance: float,
    seconds: float,
) -> Verdict:
    """Measure and decide.

    Args:
        network: the float network.
        sim: the simulation after remedies.
        held_out: the samples of the outcomes; the first batch times both.
        exact, after: outcomes of the float network and of the simulation.
        tolerance: how much of the metric may be lost, on top of what chance explains: the standard error √(drop/n) of
            a difference between two shares of the same n samples.
        seconds: time for timing; 0 leaves it out.
    """
    drop = exact.metric - after.metric
    lost = drop - math.sqrt(max(drop, 0.0) / len(held_out)) > tolerance
    batch = held_out.batches[0]
    metrics = f"{exact.metric:.4g} in float, {after.metric:.4g} in int8"
    if not sim.points:
        asked = LEFT_FLOAT in sim.placed.float_nodes.values()
        why = "the recipe leaves all of it float" if asked else "there is nothing in it that has an integer form"
        return Verdict(False, f"do not quantize this: {why}", drop)
    if seconds <= 0:
        holds = f"accuracy holds: {metrics}; time was not measured"
        return Verdict(not lost, f"do not quantize this as it is: {metrics}" if lost else holds, drop)
    runs = _runs(sim, batch)
    if not runs:
        return Verdict(False, "no engine but the reference runs it here", drop)
    times = interleaved({"float": lambda: network(batch), **runs}, seconds=seconds, least=5, warmup=2)
    engine = min(runs, key=lambda name: times[name].median)
    float_ms, int8_ms = times["float"].median * 1e3, times[engine].median * 1e3
    speedup = float_ms / int8_ms
    clock = f"{float_ms:.3g} ms in float32, {int8_ms:.3g} ms in int8 for {len(batch)} samples on {engine}"
    if lost:
        reason = f"do not quantize this as it is: {metrics} ({clock})"
    elif speedup <= 1:
        reason = f"do not quantize this for speed here: {clock} ({metrics})"
    else:
        reason = f"{speedup:.2f} times as fast ({clock}); {metrics}"
    return Verdict(not lost and speedup > 1, reason, drop, speedup, float_ms, int8_ms, len(batch), engine)


def _runs(sim: Simulation, batch: Chunk) -> dict[str, Callable[[], object]]:
    """Map every engine that runs the program here, but the reference, to a call of it."""
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
            continue  # intact8 verify tells why
        out[engine] = run
    return out
