"""The child process of a probe, ``python -m intact8.runtime.probe``, takes a job on stdin and tells stages on stdout.

It gives up what it does not need, loads the program, prepares it for the engine, and reproduces the golden vectors. If
the engine's library crashes, this process is what dies. An error that is no ``IntactError`` ends it with a traceback
on stderr, of which the parent shows the last line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from intact8.runtime.child import confine, serve

if TYPE_CHECKING:
    from intact8.engines.base import Engine, Runner
    from intact8.opset.op import Array
    from intact8.program.program import Program

    Run = Callable[[Mapping[str, Array]], object]


def main() -> None:
    """Do the job on stdin: the arguments of :func:`intact8.runtime.probe_process.run_probe`, as JSON."""
    serve(_work)


def _work(job: dict[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    confine(job["memory"], job["seconds"])
    note("reading the file")
    from intact8.engines import get_engine
    from intact8.errors import EngineError, ProgramError
    from intact8.golden import reproduce
    from intact8.program.file import identity, load
    from intact8.runtime.probe_process import AT_SIZE
    from intact8.runtime.sizes import CALL, PARTS, TENSORS

    program = load(job["path"])
    if identity(program) != job["identity"]:
        raise ProgramError("the file changed while it was loaded", where=job["path"], remedy="load it again")
    note(f"importing the libraries of {job['engine']}")
    engine = get_engine(job["engine"])
    reason = engine.available()
    if reason is not None:
        raise EngineError("the engine cannot run here", where=job["engine"], why=reason, remedy="engine='reference'")
    note("preparing the program")
    runner = engine.prepare(program, threads=job["threads"])
    compared = "not asked for"
    golden = program.golden
    if job["golden"] and (golden is None or golden.omitted):
        note("running a sample")
        _run_once(runner, 1)
        compared = "none to compare"
    elif job["golden"] and golden is not None:
        # Outputs behind float islands are compared within a tolerance only; then the integers before them count.
        every = job["every"] or not set(program.outputs) <= set(golden.checksums)
        compared = str(reproduce(runner, job["engine"], every=every, note=note))
    ways: dict[str, Run] = {
        CALL: runner,
        TENSORS: partial(_show_all, runner),
        PARTS: partial(_run_parts, engine, program),
    }
    for size in job["sizes"]:  # engines compile, and choose kernels, by shape
        named = "".join(f", {name} {n}" for name, n in size["named"].items())
        note(f"{AT_SIZE}{size['range']} (batch {size['batch'] or 'of the program'}{named})")
        _run_once(runner, size["batch"] or 1, size["named"], size["integers"], ways[size["way"]])
    return {"golden": compared}


def _run_once(
    runner: Runner,
    batch: int,
    named: Mapping[str, int] | None = None,
    integers: Sequence[str] = (),
    run: Run | None = None,
) -> None:
    import numpy as np

    from intact8.errors import InputError
    from intact8.program.samples import random_samples

    given = random_samples(runner.program, batch, sizes=named)
    for name in integers:
        given[name] = np.random.default_rng(0).integers(0, 256, given[name].shape, np.uint8)
    try:
        (run or runner)(given)
    except InputError:  # this sample is one the network has no answer to, and it said so
        return


def _show_all(runner: Runner, given: Mapping[str, Array]) -> None:
    """Run a call, one that gives every tensor, one where float islands are given, and one that times operations where
    the engine can: engines have a plan or a model for each."""
    from intact8.engines.base import TimedRunner
    from intact8.engines.reference import ReferenceEngine

    runner(given)
    runner.tensors(given)
    islands = runner.program.islands()
    if islands:
        values = ReferenceEngine().prepare(runner.program).tensors(given)
        runner.tensors(given, {op.name: values[op.name] for op in islands})
    if isinstance(runner, TimedRunner):
        runner.times(given)


def _run_parts(engine: Engine, program: Program, given: Mapping[str, Array]) -> None:
    """Run every operation as a program of its own, on what the reference gives for its operands."""
    from intact8.engines.reference import ReferenceEngine
    from intact8.program.dimensions import sizes_of
    from intact8.program.parts import alone, stands_alone

    values = {**given, **ReferenceEngine().prepare(program).tensors(given)}
    sizes = sizes_of(program, given)
    for op in filter(stands_alone, program.ops):
        engine.prepare(alone(program, op, sizes))({name: values[name] for name in op.inputs})


if __name__ == "__main__":
    main()
