"""A schedule says when observers stop, and when batch norm and scales are frozen."""

from __future__ import annotations

from typing import Any

from torch import nn

from intact8.errors import RecipeError, StateError, warn
from intact8.train.scale_phase import ScaleWarning, check_learning
from intact8.train.trainable import Trainable

from .distributed import synchronize, unwrapped

UNITS = ("epoch", "step")


class Schedule:
    """Counts epochs or steps and changes what a simulation's scales and batch norms do.

    Args:
        observe: after so many units ranges no longer follow the batches: they are held, or learned from then on. A
            simulation that was calibrated with learned scales learns from its first step, so call :meth:`start`
            before the first unit.
        freeze_batchnorm: after so many units batch norm uses its running statistics in training, too.
        freeze_scales: after so many units all scales are made tie-free and stay: what is trained from then on is
            exactly what ships. Batch norm is frozen then as well, since live statistics do not ship.
        unit: what one call of :meth:`step` counts, "epoch" or "step": the word that messages use.

    None means never.

    Raises:
        RecipeError: a negative number, an order that cannot be, or another unit.

    Example:
        >>> Schedule(freeze_batchnorm=3, freeze_scales=5).state_dict()["done"]
        0
    """

    def __init__(
        self,
        *,
        observe: int | None = None,
        freeze_batchnorm: int | None = None,
        freeze_scales: int | None = None,
        unit: str = "epoch",
    ) -> None:
        self.observe, self.freeze_batchnorm, self.freeze_scales = observe, freeze_batchnorm, freeze_scales
        self.unit, self.done, self._started = unit, 0, False
        if unit not in UNITS:
            raise RecipeError(f"unit = {unit!r}", where="Schedule", remedy="choose " + " or ".join(UNITS))
        for name, value in self._plan().items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise RecipeError(f"{name} = {value!r}", where="Schedule", remedy=f"give a number of {unit}s, or None")
        if freeze_scales is not None:
            for name in ("observe", "freeze_batchnorm"):
                value = getattr(self, name)
                if value is not None and value > freeze_scales:
                    what = f"{name} = {value} comes after freeze_scales = {freeze_scales}"
                    why = "frozen scales stay, and are those of frozen batch norm"
                    raise RecipeError(what, where="Schedule", why=why, remedy=f"make {name} smaller")

    def __repr__(self) -> str:
        plan = ", ".join(f"{name}={value}" for name, value in self._plan().items())
        return f"<Schedule {plan}: {self.done} {self.unit}s done>"

    def _plan(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in ("observe", "freeze_batchnorm", "freeze_scales")}

    def start(self, sim: nn.Module) -> list[str]:
        """Begin before the first unit: observe in training, if the schedule does, and do whatever is due at 0.

        Returns:
            What happened, as for :meth:`step`.

        Raises:
            StateError: ``sim`` is not a simulation, or its scales are frozen.
        """
        inner = unwrapped(sim)
        if self.done == 0 and self.observe and inner.phase != "observe":
            inner.observe_in_training()
        self._started = True
        return self._apply(inner)

    def step(self, sim: nn.Module) -> list[str]:
        """Count one unit, and do what is due. Call it after every epoch (or step) of training, on every rank.

        On several ranks (DistributedDataParallel) all first become what rank 0 is, see
        :func:`intact8.train.synchronize`, so that batch norm and scales are frozen alike.

        Args:
            sim: the simulation, or what wraps it (DistributedDataParallel, torch.compile).

        Returns:
            What happened: "stop observing", "freeze batch norm", "freeze scales"; mostly nothing.

        Warns:
            ScaleWarning: ``observe`` is set, but :meth:`start` was not called and nothing observed in training. Then
                calibration was the observing, and the plan goes on from there.

        Raises:
            StateError: ``sim`` is not a simulation, or was never calibrated when scales should be frozen; or scales
                should be learned, but no optimizer moved them.
        """
        inner = unwrapped(sim)
        if self.done == 0 and self.observe and not self._started and inner.phase != "observe":
            message = (
                f"observe = {self.observe}, but the first {self.unit} went on from the ranges of calibration, for "
                f'"{inner.recipe.scales}" scales do not observe in training once calibrated; '
                "call schedule.start(sim) before training if they shall"
            )
            warn(ScaleWarning(message))
        self._started = True
        if inner.scale_phase.ranks.size > 1:
            synchronize(sim)
        self.done += 1
        return self._apply(inner)

    def _apply(self, sim: Trainable) -> list[str]:
        if sim.phase == "learn":
            check_learning(sim)
        events = []
        if self.observe is not None and self.done >= self.observe and sim.phase == "observe":
            sim.stop_observing()
            events.append("stop observing")
        frozen = [n for n in (self.freeze_batchnorm, self.freeze_scales) if n is not None]
        if frozen and self.done >= min(frozen) and not sim.scale_phase.batch_norm_frozen:
            sim.freeze_batch_norm()
            events.append("freeze batch norm")
        if self.freeze_scales is not None and self.done >= self.freeze_scales and sim.phase != "frozen":
            sim.freeze_scales()
            events.append("freeze scales")
        return events

    def state_dict(self) -> dict[str, Any]:
        """Return the number of units counted, and the plan, for a checkpoint."""
        return {"done": self.done, "unit": self.unit, **self._plan()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; the simulation's own state dict holds what was done so far.

        Raises:
            StateError: the state belongs to another plan.
        """
        expected = {**self.state_dict(), "done": state.get("done")}
        if state != expected:
            what, why = f"the checkpoint's schedule is {state}", f"this one is {self.state_dict()}"
            remedy = "make the schedule as it was, or set schedule.done yourself"
            raise StateError(what, where="Schedule", why=why, remedy=remedy)
        self.done = state["done"]
