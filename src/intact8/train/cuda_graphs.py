"""CUDA graphs of the training step: what Python launches in a forward and a backward pass, launched at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

from intact8.errors import StateError, warn
from intact8.train.batch_norm import BATCH_NORM
from intact8.train.distributed import unwrapped
from intact8.train.learned_scale import LearnedScale
from intact8.train.snapshot import Snapshot
from intact8.train.trainable import Trainable

WARM_UP = 3
"""Runs before a graph is captured, in which libraries choose their kernels and take their memory."""

BAKED = ("p", "momentum", "eps")
"""Numbers of dropout and batch norm that are part of a captured kernel."""

READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal")
"""Operators whose result the CPU waits for."""


class CudaGraphWarning(UserWarning):
    """A training step runs without a CUDA graph, since it reads numbers from the device."""


class CudaGraphs(nn.Module):
    """Trains a simulation by CUDA graphs: the same kernels, without the time that launching them takes.

    A step of quantization-aware training launches thousands of small kernels, and Python takes longer to launch them
    than a GPU to run them. Call this object in place of the simulation. In training on a GPU, the second call in a row
    with inputs of the same shapes is captured, forward and backward, and later ones are replayed. When the phase of
    the simulation changes (:class:`intact8.train.Schedule`), or what it holds is replaced, graphs are captured anew.
    Evaluation, other devices, shapes that come once, and phases in which ranges follow the batches run as without it.

    Optimizer, schedule, gradient accumulation and autocast stay as they are; in ``optimizer.zero_grad()`` gradients may
    be set to None. The memory of a step stays allocated between steps. Losses and weights are those of training without
    graphs to the bit where the libraries are deterministic (``torch.backends.cudnn.deterministic``, and
    ``CUBLAS_WORKSPACE_CONFIG`` for matrix products).

    Args:
        sim: what :func:`intact8.prepare` returned. Put it on its device first.

    Raises:
        StateError: ``sim`` is not a simulation; in the backward pass, another call came between it and its forward
            pass, or it ran twice, since a graph holds the intermediate values of its last call.

    Warns:
        CudaGraphWarning: a phase cannot be captured, and why.

    Example:
        >>> import torch, intact8
        >>> from intact8.train import CudaGraphs
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
        >>> sim = intact8.prepare(model, torch.randn(2, 4), intact8.recipes.qat())
        >>> _ = intact8.calibrate(sim, [torch.randn(8, 4)])
        >>> step = CudaGraphs(sim.train())
        >>> step(torch.randn(8, 4)).shape
        torch.Size([8, 3])
    """

    def __init__(self, sim: nn.Module) -> None:
        super().__init__()
        self.module = unwrapped(sim)
        self._replaced = self.calls = 0
        self._forget()

    def _forget(self) -> None:
        self._graphs: dict[Any, _Graph] = {}
        self._state: Any = None
        self._last: Any = None
        self._refused: str | None = None
        self._pool: Any = None
        self._numbers = Snapshot([])

    def __getstate__(self) -> dict[str, Any]:
        kept: dict[str, Any] = {"_graphs": {}, "_state": None, "_last": None, "_pool": None, "_numbers": Snapshot([])}
        return {**self.__dict__, **kept}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the simulation does, with its signature and structure of outputs."""
        sim = self.module
        if not (sim.training and torch.is_grad_enabled()):
            return sim(*args, **kwargs)
        inputs = sim.captured.flatten(args, kwargs)
        if not inputs or not all(t.is_cuda for t in inputs) or torch.compiler.is_compiling():
            return sim(*args, **kwargs)
        self._watch(_state(sim))
        shapes = tuple((t.shape, t.stride(), t.dtype, t.requires_grad) for t in inputs)
        graph, again = self._graphs.get(shapes), shapes == self._last
        self._last = shapes
        if graph is None and again and self._refused is None:
            graph = self._capture(inputs, shapes)
        if graph is None:
            return sim(*args, **kwargs)
        sim.ready()
        outputs: tuple[Tensor, ...] = _Replay.apply(graph, *inputs, *graph.parameters)  # type: ignore[no-untyped-call]
        return sim.captured.rebuild(list(outputs))

    def _watch(self, state: Any) -> None:
        """Forget the graphs where the simulation is in another state than theirs."""
        known = [t for point in self.module.points.values() for t in (point.scale, point.zero_point)]
        if state == self._state and self._numbers.current(known):
            self._replaced = 0
            return
        first = self._state is None
        self._forget()
        self._state, self._refused = state, _refusal(self.module)
        self._numbers = Snapshot(known, values=True)  # these are known on the CPU, too
        self._replaced += not first
        if self._replaced == WARM_UP:
            self._refuse(
                "every step replaces tensors of the simulation, as it does for slopes of PReLU in phase frozen"
            )
        elif self._refused is not None and self.module.phase != "observe":
            self._refuse(self._refused)

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        warn(CudaGraphWarning(f"training without CUDA graphs: {reason}"))

    def _capture(self, inputs: Sequence[Tensor], shapes: Any) -> _Graph | None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = _Graph(self, inputs)
        read = graph.warm_up()
        if read:
            self._refuse(f"in phase {self.module.phase!r} a step reads numbers from the device ({read})")
            return None
        graph.capture(self._pool)
        self._graphs[shapes] = graph
        return graph


def _refusal(sim: Trainable) -> str | None:
    """Return why no step of this phase can be captured; None where one can be."""
    moving = next((name for name, point in sim.points.items() if point.watching), None)
    if moving is not None:
        return f"the range of {moving} follows the batches, and is chosen on the CPU"
    for name, module in sim.named_modules():
        counting = isinstance(module, BATCH_NORM) and module.training and module.momentum is None
        if counting and not sim.scale_phase.batch_norm_frozen:
            return f"batch norm {name} counts its batches on the CPU (momentum=None); give it a momentum"
    return None


def _state(sim: Trainable) -> Any:
    """Return what a captured step depends on, beside numbers."""
    points = [(p.source, p.quantizing, p.watching) for p in sim.points.values()]
    weights = [(p.source, p.quantizing) for p in sim.all_weight_points.values()]
    modules = list(sim.modules())
    modes = [(type(m), m.training, *[getattr(m, name, None) for name in BAKED]) for m in modules]
    kinds = (kind for module in modules for kind in (module._parameters, module._buffers))
    tensors = [(t.data_ptr(), t.requires_grad) for kind in kinds for t in kind.values() if t is not None]
    return sim.phase, sim.scale_phase.batch_norm_frozen, points, weights, modes, tensors


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operator whose result the CPU waits for."""

    found: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        moves = name in ("_to_copy", "copy_") and args[1 if name == "copy_" else 0].device != result.device
        if self.found is None and (name in READS or moves):
            self.found = name
        return result


class _Graph:
    """One captured forward and backward pass.

    Attributes:
        parameters: the parameters of the simulation that have gradients.
        outputs: what the last replay computed.
    """

    def __init__(self, owner: CudaGraphs, inputs: Sequence[Tensor]) -> None:
        self.owner, sim = owner, owner.module
        self.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        self.parameters = [p for p in sim.parameters() if p.requires_grad]
        self.learners = [module for module in sim.modules() if isinstance(module, LearnedScale)]
        # Gradients are taken of parameters that share their memory: autograd remembers for a parameter on which stream
        # it was used before, and would make that stream part of the graph.
        self._own = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in sim.parameters()}
        self._passes = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._call: int | None = None

    def _wanted(self) -> list[Tensor]:
        return [t for t in (*self.inputs, *self._own.values()) if t.requires_grad]

    @contextmanager
    def _with_own_parameters(self) -> Iterator[Trainable]:
        sim = self.owner.module
        kept = [(module._parameters, dict(module._parameters)) for module in sim.modules()]
        try:
            for live, given in kept:
                live.update({name: None if p is None else self._own[id(p)] for name, p in given.items()})
            yield sim
        finally:
            for live, given in kept:
                live.update(given)

    def _backward(self, outputs: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor | None]:
        found = torch.autograd.grad(outputs, self._wanted(), grads, allow_unused=True)
        return list(found)

    def warm_up(self) -> str | None:
        """Run the step on a stream of its own, without a trace in the simulation; return what reads from the device."""
        reads = _Reads()  # type: ignore[no-untyped-call]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with self._with_own_parameters() as sim, _kept(sim), torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                with reads:
                    outputs = [t for t in sim.outputs_of(self.inputs) if t.requires_grad]
                    self._backward(outputs, [torch.zeros_like(t) for t in outputs])
                    del outputs
                if reads.found:
                    break
        torch.cuda.current_stream().wait_stream(stream)
        return reads.found

    def capture(self, pool: Any) -> None:
        """Capture both passes."""
        before = [learner.reached for learner in self.learners]
        for learner in self.learners:
            learner.reached = False
        forward, backward = self._passes
        # Other threads, as those that load data, may go on meanwhile.
        with self._with_own_parameters() as sim:
            with torch.cuda.graph(forward, pool=pool, capture_error_mode="thread_local"):
                self.outputs = sim.outputs_of(self.inputs)
            ends = [t for t in self.outputs if t.requires_grad]
            self.grad_outputs = [torch.zeros_like(t) for t in ends]
            with torch.cuda.graph(backward, pool=pool, capture_error_mode="thread_local"):
                self.grads = self._backward(ends, self.grad_outputs)
        self.outputs = [t.detach().requires_grad_(t.requires_grad) for t in self.outputs]
        self.reached = [learner for learner in self.learners if learner.reached]
        for learner, reached in zip(self.learners, before, strict=True):
            learner.reached = reached

    def replay_forward(self, inputs: Sequence[Tensor]) -> int:
        """Compute ``outputs``, and return the number of the call."""
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.detach().copy_(given.detach())
        self._passes[0].replay()
        self.owner.calls += 1
        self._call = self.owner.calls
        return self._call

    def replay_backward(self, call: int, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of inputs and parameters, those of the last call.

        Raises:
            StateError: it was not the last, or this ran already.
        """
        if call != self.owner.calls or self._call is None:
            what = "the backward pass of this forward pass is lost"
            why = "a CUDA graph holds the intermediate values of its last call, for one backward pass"
            remedy = "call backward once after every call of CudaGraphs, or call the simulation itself here"
            raise StateError(what, where="CudaGraphs", why=why, remedy=remedy)
        self._call = None
        ends = [i for i, t in enumerate(self.outputs) if t.requires_grad]
        for mine, i in zip(self.grad_outputs, ends, strict=True):
            given = grads[i]
            mine.zero_() if given is None else mine.copy_(given)
        self._passes[1].replay()
        for learner in self.reached:
            learner.reached = True
        found = iter(None if g is None else g.clone() for g in self.grads)
        return [next(found) if t.requires_grad else None for t in (*self.inputs, *self.parameters)]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _Graph, *tensors: Tensor) -> Any:
        ctx.graph, ctx.call = graph, graph.replay_forward(tensors[: len(graph.inputs)])
        # The next replay writes over the outputs: the caller gets tensors of its own.
        outputs = tuple(t.detach().clone() for t in graph.outputs)
        constant = [o for o, t in zip(outputs, graph.outputs, strict=True) if not t.requires_grad]
        ctx.mark_non_differentiable(*constant)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.graph.replay_backward(ctx.call, grads)


@contextmanager
def _kept(sim: nn.Module) -> Iterator[None]:
    """Give batch norms their statistics back, and the generator of random numbers its state."""
    norms = [module for module in sim.modules() if isinstance(module, BATCH_NORM)]
    buffers = [buffer for module in norms for buffer in module.buffers(recurse=False)]
    kept, random = [buffer.clone() for buffer in buffers], torch.cuda.get_rng_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in zip(buffers, kept, strict=True):
                buffer.copy_(values)
        torch.cuda.set_rng_state(random)
