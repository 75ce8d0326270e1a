"""What ``torch.compile`` makes of a simulation. (This is a module because torch.compiler imports slowly.)

The backend "intact8" runs the converted program where the simulation is in evaluation mode. In training, and with
other backends, the simulation runs uncompiled; by CUDA graphs where the compiler was told to use them
(mode="reduce-overhead").
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
import torch._dynamo
from torch import Tensor, fx, nn
from torch._dynamo.backends import registry
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from intact8 import late_binding as late
from intact8.errors import StateError, not_for_export
from intact8.program.program import Program
from intact8.simulation.numbers import SIMULATIONS
from intact8.torch import Module
from intact8.train.cuda_graphs import CudaGraphs

if TYPE_CHECKING:
    from intact8.simulation.simulation import Simulation

BACKEND = "intact8"
"""Name of the backend, also in the entry-point group ``torch_dynamo_backends``."""


class Deployed(Module):
    """The converted program of a simulation, converted again before a call where the simulation has changed since."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(late.call("convert", sim))
        self._simulation, self._solution = ref(sim), sim.solution

    def number(self) -> int:
        """Return a number that no process has twice: the program changes with the simulation."""
        return secrets.randbits(60)

    def current(self) -> Program:
        """Return the program that the simulation computes now."""
        sim = self._simulation()
        # One that was calibrated or reconstructed since is solved again already.
        if sim is not None and not (sim.current and sim.solution == self._solution):
            self._program = late.call("convert", sim)  # of one form with the one before: nothing is compiled anew
            self._solution = sim.solution
        return self.program


def call_compiled(sim: Simulation, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Compute the forward of a simulation inside of what ``torch.compile`` compiles.

    Raises:
        StateError: torch.export exports it.
    """
    # Of threads, torch tells nobody which one exports.
    if getattr(torch.compiler, "is_exporting", bool)() and any(map(_is_fake, tree_leaves((args, kwargs)))):
        raise not_for_export()
    if torch.compiler.is_dynamo_compiling() and _deploys(sim.number, not sim.training):
        return sim.deployed(*args, **kwargs)
    if torch.compiler.is_dynamo_compiling() and _captures(sim.number):
        return _run_uncompiled(sim.step, *args, **kwargs)
    return _run_uncompiled(sim.call, args, kwargs)


def _is_fake(x: Any) -> bool:
    return isinstance(x, FakeTensor)


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _deploys(number: int, evaluation: bool) -> bool:
    """Return whether the converted program runs, and convert the simulation if so. This runs while a call is traced.

    The simulation is named by its number, because torch before 2.12 takes nothing but constants here.
    """
    compiler, sim = _compiler(), SIMULATIONS[number]
    if getattr(compiler, "__name__", None) != BACKEND:
        return False
    compiler.meets_simulation = True
    if evaluation and sim.deployed is None:
        object.__setattr__(sim, "deployed", Deployed(sim))  # it is not a submodule
    elif evaluation:
        sim.deployed.current()
    return evaluation


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _captures(number: int) -> bool:
    """Return whether the compiler uses CUDA graphs, and make what trains the simulation by them if so."""
    sim = SIMULATIONS[number]
    if not (getattr(_compiler(), "config", None) or {}).get("triton.cudagraphs"):
        return False
    if sim.step is None:
        object.__setattr__(sim, "step", CudaGraphs(sim))
    return True


def _compiler() -> Any:
    """Return what ``torch.compile`` made of the backend: one object for all graphs of a model."""
    return InstructionTranslator.current_tx().output.compiler_fn


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _run_uncompiled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function``, the forward of a simulation, uncompiled.

    Scales and switches are read in Python at every call, so compiling would take minutes, at every change again; and a
    compiler may reorder the float arithmetic of training.
    """
    return function(*args, **kwargs)


def backend(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Return what computes a graph that ``torch.compile(model, backend="intact8")`` captured.

    Programs and calibrated simulations in it are operators already, which run on the fastest engine; what surrounds
    them runs as it is.

    Raises:
        StateError: the graph has parameters and neither a program nor a calibrated simulation.
    """
    run = torch.ops.intact8.run
    known = any(node.target in (run, run.default) for node in graph.graph.nodes)
    known = known or hasattr(_compiler(), "meets_simulation")
    if not known and any(isinstance(x, nn.Parameter) for x in (*inputs, *graph.parameters())):
        what = 'torch.compile(model, backend="intact8") was given a float model'
        remedy = "compile intact8.calibrate(intact8.prepare(model, …), data), or intact8.torch.Module(program)"
        raise StateError(what, why="it holds no calibrated simulation and no program", remedy=remedy)
    forward: Callable[..., Any] = graph.forward
    return forward


def register_backend() -> None:
    """Register the backend in this process; torch finds that of an installed package by its entry point, too."""
    if BACKEND not in registry._COMPILER_FNS:
        registry.register_backend(backend, name=BACKEND)
