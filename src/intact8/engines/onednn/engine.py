"""The engine and its runner: checks, a plan per input shape, numpy arrays in and out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from intact8.errors import EngineError, InputError
from intact8.opset.op import Array, Op
from intact8.program.dimensions import batch_size, fixed, sized_near, sizes_of
from intact8.program.indices import unproved
from intact8.program.inputs import sole_quantizers
from intact8.program.program import Program

from .. import cpu
from ..binding import check_inputs, empty_outputs, refuse_empty
from ..fork_safety import in_unforked_thread
from ..prepared_cache import PreparedCache
from ..spec import require

if TYPE_CHECKING:
    from torch import Tensor

    from .lowering import Packed
    from .plan import Plan

T = TypeVar("T")

PLANS = 16
"""Plans a runner keeps; a plan is a list of calls, and the prepacked weights are shared between batch sizes."""

MORE_PLANS = 64
"""Plans a runner keeps of programs with named dimensions, such as sequences of any length."""


class OnednnEngine:
    """Runs programs on x86 CPUs through torch's oneDNN operators, bit for bit.

    Example:
        >>> OnednnEngine().name
        'onednn'
    """

    name = "onednn"

    def available(self) -> str | None:
        """None, or why it cannot run here and what to do."""
        if not cpu.is_x86():
            return "the onednn engine needs an x86-64 CPU: use engine='reference' or 'onnxruntime'"
        try:
            import torch
        except ImportError:  # also of whoever forbids the import
            return "torch is not installed: pip install 'intact8[torch]'"
        if not torch._C._has_mkldnn:
            return "this torch was built without oneDNN: install the wheel from pypi.org"
        if not hasattr(torch.ops.onednn, "qconv2d_pointwise"):
            return f"torch {torch.__version__} has no onednn.qconv2d_pointwise: install torch 2.8 or later"
        return None

    def prepare(self, program: Program, *, threads: int | None = None) -> OnednnRunner:
        """Return a runner for ``program``.

        Args:
            program: a checked program.
            threads: torch threads during each call (then set back); None leaves torch's setting alone.

        Raises:
            EngineError: the engine or a CPU feature is missing, or an op cannot run here; it names the op.
        """
        require(self, program, threads)
        from .plan import supported

        for op in program.ops:
            if not supported(op):
                raise EngineError(f"no rule for kind {op.kind!r}", where=op.name, remedy="run with engine='reference'")
        refused = self.refusal(program)
        if refused is not None:
            raise refused
        return OnednnRunner(program, threads, cpu.isa())

    def refusal(self, program: Program) -> EngineError | None:
        """Return why this CPU's kernels are not to be trusted with a program; None where they are."""
        wide = next(filter(_is_wide, program.ops), None) if cpu.uses_amx() else None
        if wide is None:
            return None
        what = "a convolution with a kernel wider than 1 does not run on a CPU with AMX"
        why = "oneDNN's AMX kernels give other integers for narrow images, and write outside of their memory"
        remedy = "run with engine='native', or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before Python starts"
        return EngineError(what, where=wide.name, why=why, remedy=remedy)


def _is_wide(op: Op) -> bool:
    """Return whether an op is a convolution whose kernel is wider than 1.

    Of 155,000 random convolutions on a CPU with AMX (oneDNN 3.10.2) about one in a hundred of those over two or three
    dimensions differed, most of them where the result is one or a few columns wide; none with a kernel of width 1, and
    none at all with AMX switched off. One process died of a corrupted heap. Of those over one dimension none differed
    then, but nearly all results of one with 4 groups and a kernel of 16 did later (oneDNN of torch 2.13).
    """
    return op.kind == "conv" and op.arrays["weight"].shape[-1] != 1


class OnednnRunner:
    """A program prepared for oneDNN. Safe to call from several threads."""

    def __init__(self, program: Program, threads: int | None, isa: str) -> None:
        self.program = program
        self._threads, self._isa = threads, isa
        most = MORE_PLANS if program.dimensions else PLANS
        self._plans: PreparedCache[Plan] = PreparedCache(most, program.nbytes())
        self._packs: WeakValueDictionary[tuple[Any, ...], Packed] = WeakValueDictionary()
        self._takes_integers = sole_quantizers(program).keys()
        self._build_for_one()

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the flattened outputs as numpy arrays. See ``intact8.engines.base.Runner``."""
        given = self._tensors(inputs)
        if batch_size(self.program, inputs) == 0:  # steps are made from real tensors, and there are none
            return empty_outputs(self.program, inputs)
        return [t.numpy() for t in self.torch_call(given)]

    def torch_call(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run on CPU tensors in the order of ``program.inputs``, without numpy."""
        return self._with_plan(inputs, lambda plan, first: plan.run(inputs) if first is None else first)

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Every tensor by name, as the deployed calls compute it. See ``intact8.engines.base.Runner``."""
        import torch

        given, found = self._tensors(inputs), dict[str, Array]()
        refuse_empty(self.program, inputs)
        fed = {name: torch.from_numpy(np.array(value)) for name, value in (feed or {}).items()}

        def keep(name: str, t: Tensor) -> None:
            found[name] = np.array(t.numpy(), order="C")

        self._with_plan(given, lambda plan, _: plan.watch(given, fed, keep))
        return found

    def times(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        """Seconds every op took in one run, by name: the deployed calls, timed one by one.

        The time of an op that runs as part of a later one is counted there.
        """
        given, ends = self._tensors(inputs), dict[str, float]()

        def clock(name: str, _: Tensor) -> None:
            ends[name] = time.perf_counter()

        def run(plan: Plan, _: list[Tensor] | None) -> float:
            start = time.perf_counter()
            plan.watch(given, {}, clock)
            return start

        start = self._with_plan(given, run)
        found = dict(zip(ends, np.diff([start, *ends.values()]).tolist(), strict=True))
        return {op.name: found.get(op.name, 0.0) for op in self.program.ops}

    def _with_plan(self, inputs: Sequence[Tensor], use: Callable[[Plan, list[Tensor] | None], T]) -> T:
        """Call ``use`` with the plan for these inputs and the outputs of its first run, if that had to be built."""
        import torch

        def call() -> T:
            with torch.inference_mode(), self._thread_count():
                return use(*self._plan(inputs))

        return in_unforked_thread(call)

    def _plan(self, inputs: Sequence[Tensor]) -> tuple[Plan, list[Tensor] | None]:
        """Return the plan for these inputs (see :class:`Plan`) and, if it had to be built, the outputs of that first
        run."""
        first: list[Tensor] | None = None

        def make() -> Plan:
            nonlocal first
            from .plan import Plan

            sizes = sizes_of(self.program, dict(zip(self.program.inputs, inputs, strict=True)))
            plan = Plan(fixed(self.program, sizes), inputs, self._packs, self._isa)
            first, plan.first = plan.first, []
            return plan

        plan = self._plans.get(tuple((x.dtype, x.shape, x.stride()) for x in inputs), make)
        return plan, first

    def _build_for_one(self) -> None:
        """Build the plan for batch 1, so that a program that cannot run is refused now."""
        import torch

        zeros, program = [], sized_near(self.program, 2)
        for name in program.inputs:
            meta = program.tensors[name]
            shape = [d if isinstance(d, int) else 1 for d in meta.shape]
            zeros.append(torch.zeros(shape, dtype=getattr(torch, meta.dtype)))
        try:
            self.torch_call(zeros)
        except InputError:
            if not unproved(self.program):  # zeros may lead outside of a table, where other inputs do not
                raise

    def _tensors(self, inputs: Mapping[str, Array]) -> list[Tensor]:
        import torch

        given = check_inputs(self.program, inputs, self._takes_integers).values()
        # torch can neither hold read-only memory nor run backwards through it.
        usable = (x if x.flags.writeable and all(s >= 0 for s in x.strides) else np.array(x) for x in given)
        return [torch.from_numpy(x) for x in usable]

    def _thread_count(self) -> AbstractContextManager[None]:
        from .threads import thread_count

        return thread_count(self._threads)
