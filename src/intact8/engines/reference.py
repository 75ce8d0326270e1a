"""The reference engine: the specification as code, in numpy, on exact integers. It is slow and always available."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from intact8.errors import EngineError
from intact8.opset import KINDS, Array, Call, Op, Tensor
from intact8.program.dimensions import batch_size, fixed, sizes_of
from intact8.program.inputs import outside
from intact8.program.program import Program

from .binding import check_feed, empty_outputs, is_empty, refuse_empty


class ReferenceEngine:
    """Runs any checked program, everywhere, with the integers the specification defines."""

    name = "reference"

    def available(self) -> str | None:
        """Return the always None: numpy is all it needs."""
        return None

    def prepare(self, program: Program, *, threads: int | None = None) -> ReferenceRunner:
        """Return a runner.

        Raises:
            EngineError: ``threads`` given; numpy's matrix library reads its own environment variables.
        """
        if threads is not None:
            remedy = "leave threads out, or set OPENBLAS_NUM_THREADS or MKL_NUM_THREADS before Python starts"
            raise EngineError("the reference engine cannot set the number of threads", where=self.name, remedy=remedy)
        return ReferenceRunner(program)


class ReferenceRunner:
    """Runs a program and gives the memory of each tensor back after its last use."""

    def __init__(self, program: Program) -> None:
        self.program = program
        last: dict[str, int] = {}
        for i, op in enumerate(program.ops):
            for name in op.inputs:
                last[name] = i
        keep = set(program.outputs)
        self._done: list[list[str]] = [[] for _ in program.ops]
        for name, i in last.items():
            if name not in keep:
                self._done[i].append(name)

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the flattened outputs. See ``intact8.engines.base.Runner``."""
        if is_empty(self.program, inputs):
            return empty_outputs(self.program, inputs)
        values = self._run(inputs, {}, everything=False)
        return [np.array(values[name], order="C") for name in self.program.outputs]

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Every tensor by name, inputs included. See ``intact8.engines.base.Runner``."""
        refuse_empty(self.program, inputs)
        return self._run(inputs, check_feed(self.program, inputs, feed), everything=True)

    def times(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        """Seconds every op took in one run, by name."""
        found: dict[str, float] = {}
        self._run(inputs, {}, everything=False, times=found)
        return found

    def _run(
        self,
        inputs: Mapping[str, Array],
        feed: Mapping[str, Array],
        everything: bool,
        times: dict[str, float] | None = None,
    ) -> dict[str, Array]:
        program = fixed(self.program, sizes_of(self.program, inputs))
        values: dict[str, Array] = {name: inputs[name] for name in program.inputs}
        batch = batch_size(program, values)
        for op, done in zip(program.ops, self._done, strict=True):
            output = program.tensors[op.name]
            start = time.perf_counter()
            if op.is_float and op.name in feed:
                values[op.name] = feed[op.name]
            else:
                args, metas = [values[n] for n in op.inputs], [program.tensors[n] for n in op.inputs]
                values[op.name] = evaluate(op, args, metas, output, batch)
            if times is not None:
                times[op.name] = time.perf_counter() - start
            if not everything:
                for name in done:
                    del values[name]
        return values


def evaluate(op: Op, args: list[Array], inputs: list[Tensor], output: Tensor, batch: int | None) -> Array:
    """Return the result of one operation, as its kind declares it.

    Args:
        op: a checked op.
        args, inputs: its input arrays and their descriptions.
        output: description of its output.
        batch: the size that an expanded −1 stands for.

    Raises:
        InputError: an index is outside its table, or sizes do not work out for this batch.
    """
    try:
        return KINDS[op.kind].evaluate(Call(op, args, inputs, output, batch))
    except IndexError as error:
        raise outside(op.name, str(error)) from error
