"""What a user switches on a simulation: observing, rounding, and what scales do in training."""

from __future__ import annotations

from torch import nn

from intact8.errors import StateError
from intact8.recipe.recipe import Recipe

from .motion import Motion, enter, learn
from .points import QuantPoint, WeightPoint, matching


class Switches(nn.Module):
    """The switches of :class:`~intact8.simulation.module.Simulation`."""

    recipe: Recipe
    points: dict[str, QuantPoint]
    weight_points: dict[str, WeightPoint]
    coded_points: dict[str, WeightPoint]
    recurrent_points: dict[str, WeightPoint]

    @property
    def all_weight_points(self) -> dict[str, WeightPoint]:
        """Those of layers of every mode."""
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
    def scale_motion(self) -> Motion:
        """What scales do in training; see ``intact8.simulation.motion``."""
        motion = self.get_submodule("quantizers.motion")
        assert isinstance(motion, Motion)
        return motion

    @property
    def phase(self) -> str:
        """calibrated, observe, learn, hold or frozen; see ``intact8.simulation.motion``."""
        return self.scale_motion.phase

    def observe_in_training(self) -> None:
        """Scales follow the observers in training from now on, and the weights.

        Raises:
            StateError: they are frozen.
        """
        self._require_moving("observe")
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
        """Use running statistics in training, too, whatever ``.train()`` sets."""
        self.scale_motion.batch_norm_frozen = on

    def _require_moving(self, verb: str) -> None:
        if self.phase == "frozen":
            raise StateError(
                f"cannot {verb}: the scales are frozen", why="training computes the integers that ship already",
                remedy="call intact8.calibrate to begin again",
            )  # fmt: skip

    def resolve(self, *, from_observers: bool = True) -> None:
        """See :class:`~intact8.simulation.module.Simulation`."""
        raise NotImplementedError

    def _solve(self, *, from_observers: bool, freezing: bool) -> None:
        raise NotImplementedError
