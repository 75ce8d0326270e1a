"""The protocols of engines: an engine prepares a program once, and its runner runs it many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from intact8.opset.op import Array
from intact8.program.program import Program


class Runner(Protocol):
    """A program prepared for one engine."""

    program: Program

    def __call__(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Run. ``inputs`` maps input names to numpy arrays whose dtype is the input tensor's (or uint8, see
        ``Program.inputs``); returns the flattened outputs as numpy arrays."""
        ...

    def tensors(self, inputs: Mapping[str, Array], feed: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Run and return every tensor of the program by name, in NCHW order, as numpy arrays.

        ``feed`` gives outputs of float ops by name, used instead of computing them: so that engines can be compared
        integer by integer behind a float island.
        """
        ...


@runtime_checkable
class TimedRunner(Runner, Protocol):
    """A runner that can time every op."""

    def times(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        """Run as ``__call__`` does, and return the seconds every op took, by name."""
        ...


class Engine(Protocol):
    """An engine that runs programs.

    One that does not run every program on every CPU may have a method ``refusal``, which takes a program and returns
    the EngineError that ``prepare`` would raise for the sake of this CPU, or None:
    :func:`intact8.engines.available_engines` leaves it out then.
    """

    name: str

    def available(self) -> str | None:
        """None when it can run here; otherwise the reason and the remedy, one sentence."""
        ...

    def prepare(self, program: Program, *, threads: int | None = None) -> Runner:
        """Compile ``program``. Raises EngineError naming op and remedy where it cannot."""
        ...
