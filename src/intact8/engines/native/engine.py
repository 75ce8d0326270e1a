"""The engine and its runner: a plan per size of the inputs, workspaces, numpy arrays in and out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intact8.errors import EngineError
from intact8.opset.op import Array
from intact8.opset.recurrent import not_finite
from intact8.program.dimensions import batch_size, fixed, sizes_near, sizes_of
from intact8.program.inputs import outside, sole_quantizers
from intact8.program.program import Program

from .. import cpu
from ..binding import check_feed, check_inputs, empty_outputs, is_channels_last, is_empty, refuse_empty
from ..memory import reference_bytes
from ..prepared_cache import PreparedCache
from ..reference import evaluate
from ..shapes import sized
from ..spec import require
from .builder import CONSTANT, INPUT, OUTPUT, Constants, Value, address, channels_last, plain
from .lower import Lowered, lower, lowered_at

PLANS = 64
"""Plans a runner keeps; packed weights are shared between them."""

MOST_THREADS = 256
"""Threads that a call of the library uses at most."""

READY = 8
"""Forms of inputs for which a runner finds the plan without checking them again."""

ALIGNMENT = 64
"""Bytes to which workspaces are aligned."""


NOT_BUILT = "the compiled library was not built: install a wheel, or a C compiler and intact8 again"


def library() -> Any:
    """Return the compiled library; None where it was not built."""
    try:
        from . import _library
    except ImportError:
        return None
    return _library


def numpy_operations(program: Program) -> tuple[str, ...]:
    """Return the names of the operations for which the library has no steps: the reference's numpy functions compute
    them in the middle of a plan, exactly and slowly.

    Args:
        program: checked; named dimensions are taken as small as they may be.

    Raises:
        EngineError: the library was not built.
    """
    compiled = library()
    if compiled is None:
        raise EngineError("the native engine cannot lower a program", why=NOT_BUILT, remedy="see the reason")
    return lowered_at(program, Constants(compiled)).numpy_operations


class NativeEngine:
    """Runs every program on its compiled library, bit for bit.

    Example:
        >>> NativeEngine().name
        'native'
    """

    name = "native"

    def available(self) -> str | None:
        """Return None, or why it cannot run here and what to do."""
        if library() is None:
            return NOT_BUILT
        return None

    def prepare(self, program: Program, *, threads: int | None = None) -> NativeRunner:
        """Return a runner for ``program``.

        Args:
            program: a checked program.
            threads: CPU threads of a call, of which it uses 256 at most; None: as many as this process may use.

        Raises:
            EngineError: the library is missing, or refuses the plan; or ``threads`` is below 1.
        """
        require(self, program, threads)
        return NativeRunner(program, min(threads or cpu.count(), MOST_THREADS))


@dataclass(frozen=True)
class Plan:
    """A plan that the library checked.

    Attributes:
        lowered: values, outputs, fallbacks.
        handle: of the library's plan.
        bytes: of a workspace.
        steps: their number.
        shapes: shapes and dtypes of the outputs.
    """

    lowered: Lowered
    handle: Any
    bytes: int
    steps: int
    shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]


class NativeRunner:
    """A program prepared for the native library. Safe to call from several threads."""

    def __init__(self, program: Program, threads: int) -> None:
        self.program, self._threads = program, threads
        self._library = library()
        self._plans: PreparedCache[Plan] = PreparedCache(PLANS, program.nbytes())
        self._constants = Constants(self._library)
        self._workspaces: list[tuple[Array, int]] = []
        self._ready: dict[tuple[object, ...], Plan] = {}
        self._takes_integers = sole_quantizers(program).keys()
        self._build_for_one()

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the flattened outputs as numpy arrays. See ``intact8.engines.base.Runner``."""
        try:
            arrays = [inputs[name] for name in self.program.inputs]
            signature = tuple([(type(x), x.dtype, x.shape, x.strides) for x in arrays])
            plan = self._ready.get(signature)
        except (KeyError, AttributeError, TypeError):
            arrays, signature, plan = [], (), None
        if plan is not None:
            return self._execute(plan, arrays)
        given = check_inputs(self.program, inputs, self._takes_integers)
        if is_empty(self.program, given):
            return empty_outputs(self.program, given)
        plan, used = self._plan(given, self.program.outputs)
        if all(type(x) is np.ndarray and x is y for x, y in zip(arrays, used, strict=False)):
            if len(self._ready) >= READY:
                self._ready.clear()
            self._ready[signature] = plan
        return self._execute(plan, used)

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Return every tensor by name, inputs included. See ``intact8.engines.base.Runner``."""
        given = check_inputs(self.program, inputs, self._takes_integers)
        refuse_empty(self.program, given)
        fed = check_feed(self.program, given, feed)
        names = [op.name for op in self.program.ops]
        values = self._execute(*self._plan({**given, **fed}, names))
        return {**given, **dict(zip(names, values, strict=True))}

    def times(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        """Return the seconds every op took in one run, by name. An op that runs as part of another counts there."""
        given = check_inputs(self.program, inputs, self._takes_integers)
        found = dict.fromkeys((op.name for op in self.program.ops), 0.0)
        self._execute(*self._plan(given, self.program.outputs), found)
        return found

    @property
    def numpy_operations(self) -> tuple[str, ...]:
        """Names of the operations for which the library has no steps, see :func:`numpy_operations`."""
        return numpy_operations(self.program)

    def call_bytes(self, inputs: Mapping[str, Array]) -> int:
        """Return the bytes of a call: its inputs, its outputs, the workspace of its plan, which is made and checked for
        it, and what the reference takes for the operations it computes. Nothing runs."""
        given = check_inputs(self.program, inputs, self._takes_integers)
        if is_empty(self.program, given):
            return 0
        plan, arrays = self._plan(given, self.program.outputs)
        sizes = [x.nbytes for x in arrays] + [math.prod(shape) * dtype.itemsize for shape, dtype in plan.shapes]
        extra = [reference_bytes(f.op, plan.lowered.program.tensors) for f in plan.lowered.fallbacks]
        return plan.bytes + sum(sizes) + max(extra, default=0)

    def _plan(self, given: Mapping[str, Array], outputs: Sequence[str]) -> tuple[Plan, list[Array]]:
        """Return the plan for checked inputs, and these as it reads them."""
        arrays = [_contiguous(x) for x in given.values()]
        is_plain = [x.flags.c_contiguous for x in arrays]
        key = (tuple(outputs), *given, *is_plain, *((x.dtype, x.shape) for x in arrays))
        return self._plans.get(key, lambda: self._make(given, arrays, is_plain, outputs)), arrays

    def _execute(self, plan: Plan, arrays: Sequence[Array], times: dict[str, float] | None = None) -> list[Array]:
        """Run a plan; add the seconds of every operation to ``times``."""
        made = [np.empty(shape, dtype) for shape, dtype in plan.shapes]
        seconds = np.zeros(plan.steps) if times is not None else None
        workspace, base = self._workspace(plan.bytes)
        numbers = base, plan.bytes, self._threads, 0 if seconds is None else address(seconds), len(arrays)
        structs = [x.__array_struct__ for x in (*arrays, *made)]
        at, run = 0, self._library.run
        try:
            while (at := run(plan.handle, at, *numbers, *structs)) < plan.steps:
                start = time.perf_counter()
                self._fall_back(plan, at, workspace, base, arrays, made)
                if seconds is not None:
                    seconds[at] += time.perf_counter() - start
                at += 1
        except IndexError as error:
            raise outside("the native engine", str(error)) from error
        except FloatingPointError as error:
            raise not_finite("the native engine", str(error)) from error
        finally:
            self._workspaces.append((workspace, base))
        if times is not None and seconds is not None:
            for name, second in zip(plan.lowered.builder.owners, seconds.tolist(), strict=True):
                times[name] = times.get(name, 0.0) + second
            times.pop("", None)
        return made

    def _workspace(self, size: int) -> tuple[Array, int]:
        """Return memory for one call, which is given back afterwards, and its first aligned address."""
        with suppress(IndexError):
            found, base = self._workspaces.pop()
            if found.nbytes >= size + ALIGNMENT:
                return found, base
        made = np.zeros(size + ALIGNMENT, np.uint8)
        return made, -(-address(made) // ALIGNMENT) * ALIGNMENT

    def _fall_back(
        self, plan: Plan, at: int, workspace: Array, base: int, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """Compute one step by the reference."""
        fallback = plan.lowered.fallbacks[plan.lowered.builder.index_at(at)]

        def view(v: Value) -> Array:
            storage, number = plan.lowered.builder.storage(v.index)
            if storage == CONSTANT:
                flat = self._constants.arrays[number]
            elif storage in (INPUT, OUTPUT):
                flat = (inputs if storage == INPUT else outputs)[number]
            else:
                start = base - address(workspace) + self._library.value_offset(plan.handle, v.index)
                flat = workspace[start : start + v.size * v.itemsize].view(v.dtype)
            return flat.reshape(v.shape)

        args = [view(v) for v in fallback.inputs]
        batch = batch_size(self.program, dict(zip(self.program.inputs, inputs, strict=False)))
        view(fallback.output)[...] = evaluate(fallback.op, args, list(fallback.tensors), fallback.out, batch)

    def _make(
        self,
        given: Mapping[str, Array],
        arrays: Sequence[Array],
        is_plain: Sequence[bool],
        outputs: Sequence[str],
    ) -> Plan:
        program = fixed(self.program, sizes_of(self.program, given))
        program = sized(program, batch_size(program, given) or 1)
        for name, x in given.items():
            program.tensors[name] = replace(program.tensors[name], shape=x.shape)
        orders = [(plain if p else channels_last)(x.ndim) for x, p in zip(arrays, is_plain, strict=True)]
        described = {n: (x.dtype.name, o) for n, x, o in zip(given, arrays, orders, strict=True)}
        lowered = lower(program, described, self._constants, outputs)
        words = lowered.builder.words()
        handle = self._library.open_plan(self._constants.model, address(words), words.size)
        shapes = [(v.shape, np.dtype(v.dtype)) for v in lowered.outputs]
        size = self._library.workspace_bytes(handle, self._threads)
        return Plan(lowered, handle, size, len(lowered.builder.owners), shapes)

    def _build_for_one(self) -> None:
        """Build the plan for batch 1, so that a program that cannot run is refused now."""
        program = fixed(self.program, sizes_near(self.program, 2))
        zeros = {}
        for name in program.inputs:
            meta = program.tensors[name]
            zeros[name] = np.zeros([d if isinstance(d, int) else 1 for d in meta.shape], meta.dtype)
        self._plan(zeros, self.program.outputs)


def _contiguous(x: Array) -> Array:
    """Return ``x`` plain, or with its channels last where it is so already; else a plain copy."""
    if x.flags.c_contiguous or (x.ndim == 4 and is_channels_last(x)):
        return x
    return np.ascontiguousarray(x)
