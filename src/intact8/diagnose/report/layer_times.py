"""Time of every operation inside whole runs, and of whole runs as they are deployed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from intact8.diagnose.report.contents import Milliseconds, Speed
from intact8.engines import get_runner
from intact8.engines.base import TimedRunner
from intact8.errors import EngineError
from intact8.opset.op import Array
from intact8.program.program import Program

WARMUP, LEAST = 2, 5


def time_layers(
    program: Program,
    inputs: Mapping[str, Array],
    engine: str,
    *,
    seconds: float,
    data: str,
    float32: Callable[[], object] | None = None,
) -> tuple[Speed, dict[str, Milliseconds]]:
    """Time whole runs and the operations inside, in turns.

    Args:
        program: a checked program.
        inputs: one batch by name.
        engine: "native", "onednn" or "reference", or one of another package whose runner has ``times``.
        seconds: roughly how long to time; at least LEAST runs of each kind are made.
        data: kind of the batch, "given" or "random".
        float32: runs the float32 network on the batch.

    Returns:
        Times of whole runs, and operation → quartiles of its times.

    Raises:
        EngineError: this engine does not time its operations one by one.
    """
    runner = get_runner(program, engine)
    if not isinstance(runner, TimedRunner):
        what, why = "this engine does not time its operations one by one", "it runs the network as one call"
        raise EngineError(what, where=engine, why=why, remedy="give engine='native', 'onednn' or 'reference'")
    run_float = float32 or (lambda: None)
    for _ in range(WARMUP):
        runner.times(inputs)
        run_float()
    whole: list[float] = []
    floats: list[float] = []
    parts: list[list[float]] = []
    begin = time.perf_counter()
    while len(whole) < LEAST or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        runner(inputs)
        whole.append(time.perf_counter() - start)
        parts.append(list(runner.times(inputs).values()))
        start = time.perf_counter()
        run_float()
        floats.append(time.perf_counter() - start)
    rows = np.percentile(np.asarray(parts).reshape(len(parts), -1), [25, 50, 75], axis=0).T * 1e3
    by_op = {op.name: Milliseconds(row[1], row[0], row[2]) for op, row in zip(program.ops, rows.tolist(), strict=True)}
    batch = next((int(inputs[name].shape[0]) for name in program.inputs if inputs[name].ndim), 1)
    beside = None if float32 is None else _quartiles(floats)
    return Speed(engine, batch, _threads(), len(whole), _quartiles(whole), data, beside), by_op


def _quartiles(seconds: list[float]) -> Milliseconds:
    lower, median, upper = (np.percentile(seconds, [25, 50, 75]) * 1e3).tolist()
    return Milliseconds(median, lower, upper)


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())
