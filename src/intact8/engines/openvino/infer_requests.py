"""A compiled model, and inference requests that own their buffers: no copy and no conversion OpenVINO would add."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import openvino

from intact8.engines.openvino.batch_switch import join
from intact8.engines.openvino.build import Built, Output, label
from intact8.engines.openvino.compile import compile_model, refusals
from intact8.engines.openvino.execution_graph import PRODUCTS, Node, executed
from intact8.engines.openvino.numpy_quantizer import quantize_into
from intact8.engines.prepared_cache import release_memory
from intact8.engines.reference import evaluate
from intact8.errors import EngineError, InputError
from intact8.opset.op import Array, Op
from intact8.program.program import Program

OFF_GRID = 1e-2
"""How far from an integer, in steps, a value may lie that OpenVINO should have rounded."""


@dataclass(frozen=True)
class _Form:
    """What a model takes and gives for one batch size.

    Attributes:
        built: without its model: what was compiled is not needed any more.
        inputs: shapes.
        outputs: shapes and dtypes.
        size: which of several models in one is to run; None where there is one.
    """

    built: Built
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[tuple[int, ...], Any], ...]
    size: int | None

    def elements(self) -> int:
        """Return how many elements inputs and outputs have."""
        return sum(map(math.prod, (*self.inputs, *(shape for shape, _ in self.outputs))))

    @staticmethod
    def of(built: Built, size: int | None) -> _Form:
        model = built.model
        outputs = ((tuple(port.shape), port.element_type.to_dtype()) for port in model.outputs)
        return _Form(replace(built, model=None), tuple(tuple(x.shape) for x in model.inputs), tuple(outputs), size)


class Compiled:
    """A compiled model for one batch size or several, and its idle requests. Safe to call from several threads.

    Args:
        program: what it computes.
        built: batch size → its model.
        threads: of each inference; None leaves the choice to OpenVINO.
    """

    def __init__(self, program: Program, built: Mapping[int, Built], threads: int | None) -> None:
        self._program, self._threads, self._bytes = program, threads, program.nbytes()
        alone = len(built) == 1
        self._forms = {n: _Form.of(b, None if alone else n) for n, b in built.items()}
        models = {n: b.model for n, b in built.items()}
        self._model = compile_model(next(iter(models.values())) if alone else join(models), threads)
        self._idle: dict[int, list[_Request]] = {n: [] for n in built}

    def at(self, size: int) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """:meth:`run` for a batch size."""
        return partial(self.run, size)

    def run(self, size: int, given: Mapping[str, Array]) -> dict[str, Array]:
        """Run.

        Args:
            size: of the batch.
            given: program inputs and fed tensors by name.

        Returns:
            The tensors the model was built to give, in memory of their own, quantized ones as uint8.
        """
        idle = self._idle[size]
        # list.pop and list.append are atomic: no request is used twice at once.
        try:
            request, new = idle.pop(), False
        except IndexError:
            with refusals():
                request, new = _Request(self._program, self._forms[size], self._model, self._threads), True
        try:
            return request.run(given)
        finally:
            idle.append(request)
            if new:  # what the first inference allocates and frees
                release_memory(self._bytes + self._forms[size].elements() * 4)

    def kernels(self) -> dict[str, str]:
        """Return the name of an op that became part of a product's kernel → that kernel, precision included.

        Of an op in several kernels it is one that is not exact, if there is any.
        """
        exact_first = sorted(self._products(), key=lambda found: not found[1].exact_product)
        return {name: node.kernel for name, node in exact_first}

    def _products(self) -> list[tuple[str, Node]]:
        ops = {label(i): op.name for i, op in enumerate(self._program.ops)}
        return [(ops[n], node) for node in self.nodes if node.kind in PRODUCTS for n in node.names if n in ops]

    @cached_property
    def nodes(self) -> list[Node]:
        """What is executed."""
        return executed(self._model)


class _Request:
    """One inference request with its input and output arrays.

    With one thread it runs in the caller's, without a change of threads (0.15 ms of MobileNetV2's 1.8 ms); with more,
    the caller's would be one too many.
    """

    def __init__(self, program: Program, form: _Form, model: Any, threads: int | None) -> None:
        built = form.built
        self._reads, self._alone, self._flat = built.outputs, threads == 1, form.size is not None
        self._request, self._running = model.create_infer_request(), False
        ops = {op.name: op for op in program.ops}
        rounded = {op.inputs[0] for op in program.ops if op.kind == "quantize"}
        self._inputs: list[_Input] = []
        for i, name in enumerate(built.inputs):
            own = np.empty(form.inputs[i], program.tensors[name].dtype)
            quantize, last = built.sources.get(name), name in built.channels_last
            before = None if quantize is None else _Before(quantize, ops, program, built.batch, own, last)
            self._inputs.append(_Input(i, name, own, before, name in rounded, own))
            self._request.set_input_tensor(i, self._tensor(own))
        self._outputs = []
        for i, (shape, dtype) in enumerate(form.outputs):
            own = np.empty(shape, dtype)
            self._request.set_output_tensor(i, self._tensor(own))
            self._outputs.append(own)
        self._size = np.array(form.size or 0, np.int32)
        if self._flat:
            self._request.set_input_tensor(len(built.inputs), openvino.Tensor(self._size, shared_memory=True))

    def run(self, given: Mapping[str, Array]) -> dict[str, Array]:
        if self._running:  # a signal's handler raised before the last call had waited
            self._finish()
        for x in self._inputs:
            if x.before is not None and x.name not in given:
                x.before(given)
            else:
                self._hand_over(x, given[x.name])
        if self._alone:
            self._look_for_nan()
            self._request.infer(share_outputs=True)
        else:
            self._running = True
            self._request.start_async()
            try:
                self._look_for_nan()  # reads the inputs once more, while OpenVINO works
            finally:
                self._finish()
        found: dict[str, Array] = {}
        for output, own in zip(self._reads, self._outputs, strict=True):
            if output.truncated:
                with np.errstate(invalid="ignore"):
                    found[output.name] = own.astype(np.int64)
            else:
                found[output.name] = own.copy() if output.scale is None else _integers(output, own)
        return found

    def _tensor(self, x: Array) -> Any:
        return openvino.Tensor(x.reshape(-1) if self._flat else x, shared_memory=True)

    def _finish(self) -> None:
        self._request.wait()
        self._running = False

    def _look_for_nan(self) -> None:
        # Methods, and a comparison of what is unequal to itself: where other work used the caches, every function of
        # Python that need not be entered saves 10 to 20 µs.
        for x in self._inputs:
            if x.rounded and (low := x.bound.min()) != low:
                raise InputError("x holds NaN, for which no integer exists", where=x.name, remedy="repair the data")

    def _hand_over(self, to: _Input, x: Array) -> None:
        """Let the values be read where the caller has them, where that is possible; until the next call they are kept
        alive."""
        if x.shape != to.own.shape:  # whatever else happened: OpenVINO would read beyond it
            raise InputError(f"expected shape {to.own.shape}, got {x.shape}", where=to.name, remedy="give that shape")
        if not (x.flags.c_contiguous and x.flags.writeable and x.dtype == to.own.dtype):
            np.copyto(to.own, x)
            x = to.own
        address = x.__array_interface__["data"][0]  # an array that was resized in place is elsewhere
        if x is not to.bound or address != to.address:
            to.address = 0  # a signal's handler may raise before the next lines are done
            self._request.set_input_tensor(to.index, self._tensor(x))
            to.bound, to.address = x, address


@dataclass
class _Input:
    """A parameter of the model.

    Attributes:
        index: of the parameter.
        name: of the program's tensor.
        own: memory for values that cannot be read where the caller has them.
        before: fills ``own`` where the tensor is not given itself.
        rounded: the model quantizes it.
        bound: what the request reads.
        address: of its memory; 0 where the request may read something else.
    """

    index: int
    name: str
    own: Array
    before: _Before | None
    rounded: bool
    bound: Array
    address: int = 0


class _Before:
    """A ``quantize`` op that numpy computes into the array behind a parameter.

    Args:
        op: what to compute.
        ops: all ops by name.
        program: theirs.
        batch: its size.
        own: (N, C, …) uint8, or (N, …, C) where channels are ``last``.
    """

    def __init__(self, op: Op, ops: Mapping[str, Op], program: Program, batch: int, own: Array, last: bool) -> None:
        self._batch = batch
        self._op, self._ops, self._program = op, ops, program
        self._own = np.moveaxis(own, -1, 1) if last else own

    def __call__(self, given: Mapping[str, Array]) -> None:
        """Fill the array. Raises InputError where x holds NaN."""
        quantize_into(self._own, self._op, self._program.tensors[self._op.name], self._moved(self._op.inputs[0], given))

    def _moved(self, name: str, given: Mapping[str, Array]) -> Array:
        """Return the value of ``name``, behind any movement ops."""
        if name in given:
            return given[name]
        op, tensors = self._ops[name], self._program.tensors
        args = [self._moved(n, given) for n in op.inputs]
        return evaluate(op, args, [tensors[n] for n in op.inputs], tensors[name], self._batch)


def _integers(output: Output, value: Array) -> Array:
    """Return the uint8 integers of a quantized result. What is no integer, or none of a byte, is an error."""
    assert output.scale is not None
    steps = value if output.scale == 1.0 else value / np.float32(output.scale)
    whole = np.rint(steps)
    off = float(np.abs(steps - whole).max(initial=0.0)) if (steps != whole).any() else 0.0
    if not off <= OFF_GRID:
        raise _lost(f"OpenVINO gave a value {off:.3f} steps from an integer", output.name, "rounding")
    whole += np.float32(output.zero_point)
    if whole.size and not (whole.min() >= 0 and whole.max() <= 255):
        raise _lost(f"OpenVINO gave integers from {whole.min():.0f} to {whole.max():.0f}", output.name, "clamp")
    return np.asarray(whole.astype(np.uint8))


def _lost(what: str, where: str, lost: str) -> EngineError:
    remedy = "run with another engine, and report the program"
    return EngineError(what, where=where, why=f"its compiler dropped a {lost}", remedy=remedy)
