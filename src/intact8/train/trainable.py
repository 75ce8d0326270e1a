"""The base class of a simulation: switches of observing and rounding, and the phases of its scales."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from torch import Tensor

from intact8.calibration.data import Specs
from intact8.capture import Captured
from intact8.capture.graph import Graph
from intact8.errors import RecipeError, StateError
from intact8.placement.place import Placed
from intact8.recipe.recipe import Recipe
from intact8.train.branch import Branch
from intact8.train.scale_phase import ScalePhase, enter, learn

if TYPE_CHECKING:
    from intact8.simulation.scales.quant_points import QuantPoint, WeightPoint


class Trainable(Branch):
    """The part of :class:`~intact8.simulation.simulation.Simulation` that training needs to know."""

    recipe: Recipe
    captured: Captured
    placed: Placed
    points: dict[str, QuantPoint]
    weight_points: dict[str, WeightPoint]
    coded_points: dict[str, WeightPoint]
    recurrent_points: dict[str, WeightPoint]

    @property
    def graph(self) -> Graph:
        """The placed graph."""
        return self.placed.graph

    @property
    def input_specs(self) -> Specs:
        """Name, dtype and shape of every input, in order."""
        return Specs.of(self.graph, self.captured.layout, self.captured.notes)

    @property
    def all_weight_points(self) -> dict[str, WeightPoint]:
        """Weight points of layers of every mode, by node name."""
        return {**self.weight_points, **self.coded_points, **self.recurrent_points}

    def observe(self, on: bool = True, match: str = "*") -> None:
        """Switch observing on or off at every activation point whose name equals or globs ``match``."""
        for name in matching(list(self.points), match):
            self.points[name].observing = on

    def fake_quantize(self, on: bool = True, match: str = "*") -> None:
        """Switch rounding on or off at every point (activations and weights) whose name equals or globs ``match``."""
        weights = self.all_weight_points
        for name in matching(list(dict.fromkeys([*self.points, *weights])), match):
            if name in self.points:
                self.points[name].quantizing = on
            if name in weights:
                weights[name].quantizing = on

    @property
    def scale_phase(self) -> ScalePhase:
        """The phase, and whether batch norm is frozen; see ``intact8.train.scale_phase``."""
        phase = self.get_submodule("quantizers.motion")  # saved state dicts have this name
        assert isinstance(phase, ScalePhase)
        return phase

    @property
    def phase(self) -> str:
        """calibrated, observe, learn, hold or frozen; see ``intact8.train.scale_phase``."""
        return self.scale_phase.phase

    def observe_in_training(self) -> None:
        """Let scales follow the observers and the weights in training from now on.

        Raises:
            StateError: they are frozen.
        """
        if self.phase == "frozen":
            why, remedy = "training computes the integers that ship already", "call intact8.calibrate to begin again"
            raise StateError("cannot observe: the scales are frozen", why=why, remedy=remedy)
        enter(self, "observe")

    def stop_observing(self) -> None:
        """End the phase observe: scales are learned from now on where the recipe wants that, else held.

        Raises:
            CalibrationError: a point has seen nothing.
        """
        if self.phase != "observe":
            return
        self.resolve(from_observers=False)
        if self.recipe.learns:
            learn(self)
        else:
            enter(self, "hold")

    def freeze_scales(self) -> None:
        """Make all scales tie-free and keep them: training goes on with the integers that ship.

        Batch norm whose statistics are still live is not what ships: freeze it first.

        Raises:
            CalibrationError: a point has no scale.
        """
        if self.phase != "frozen":
            self._solve(from_observers=False, freezing=True)
            enter(self, "frozen")

    def freeze_batch_norm(self, on: bool = True) -> None:
        """Let batch norm use its running statistics in training, too."""
        self.scale_phase.batch_norm_frozen = on

    def resolve(self, *, from_observers: bool = True) -> None:
        """See :class:`~intact8.simulation.simulation.Simulation`."""
        raise NotImplementedError

    def ready(self) -> bool:
        """See :class:`~intact8.simulation.simulation.Simulation`."""
        raise NotImplementedError

    def outputs_of(self, inputs: list[Tensor]) -> list[Tensor]:
        """See :class:`~intact8.simulation.simulation.Simulation`."""
        raise NotImplementedError

    def _solve(self, *, from_observers: bool, freezing: bool) -> None:
        raise NotImplementedError


def matching(names: list[str], match: str) -> list[str]:
    """Return the names that equal ``match`` or fit it as a glob, in order.

    Raises:
        RecipeError: nothing matches.
    """
    found = [n for n in names if n == match or fnmatch.fnmatchcase(n, match)]
    if not found and match != "*":  # a network may have nothing to quantize
        raise RecipeError(
            f"no quantization point matches {match!r}",
            remedy="choose from: " + ", ".join(names[:8]) + (" …" if len(names) > 8 else ""),
        )
    return found
