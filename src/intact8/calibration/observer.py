"""The observer protocol, its registry, and the checks all observers share."""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from intact8.arithmetic.affine import choose_qparams
from intact8.errors import CalibrationError, RecipeError


class NonFiniteError(CalibrationError):
    """NaN or infinity was observed; ``observer`` is the one that saw it, so that its caller can name the layer."""

    def __init__(self, what: str, observer: Observer, *, where: str = "") -> None:
        super().__init__(
            what,
            where=where,
            why="a range needs finite values",
            remedy="look for bad samples, a broken weight or a division by zero before this layer",
        )
        self.observer = observer


class Observer(ABC):
    """Watches a tensor and proposes its range.

    Every observer merges exactly: observing two halves of the batches, or of every batch, and merging gives the same
    bits as observing the whole (``moving_average`` goes by whole batches and their order, so its halves merge in
    order, and what several processes saw in the order of the batches).

    Attributes:
        kind: the name in the registry.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of values seen."""

    @property
    @abstractmethod
    def minimum(self) -> float:
        """Smallest value seen; NaN when nothing was."""

    @property
    @abstractmethod
    def maximum(self) -> float:
        """Largest value seen; NaN when nothing was."""

    def args(self) -> dict[str, Any]:
        """Return the arguments this observer was made with; observers merge only where these are equal."""
        return {}

    @abstractmethod
    def observe(self, x: Tensor) -> None:
        """Take in a floating point tensor of any shape, layout and device.

        Raises:
            NonFiniteError: ``x`` holds NaN or infinity. Statistics are then left as they were.
            CalibrationError: ``x`` is not floating point.
        """

    @abstractmethod
    def merge(self, other: Observer) -> None:
        """Take in all ``other`` has seen.

        Raises:
            CalibrationError: ``other`` is of another kind or has other arguments.
        """

    def merge_in_turn(self, shares: Sequence[Observer], batches: Sequence[int]) -> None:
        """Take in what several processes saw that took whole batches in turn: batch i went to process i mod n.

        Args:
            shares: one observer per process.
            batches: how many batches each of them saw.

        Raises:
            CalibrationError: as for :meth:`merge`.
        """
        for share in shares:
            self.merge(share)

    def merge_side_by_side(self, shares: Sequence[Observer]) -> None:
        """Take in what several processes saw of one batch, of which each had a part.

        Raises:
            CalibrationError: as for :meth:`merge`.
        """
        for share in shares:
            self.merge(share)

    @abstractmethod
    def range(self, qmin: int, qmax: int, symmetric: bool) -> tuple[Any, Any]:
        """Return the range to represent with the integers qmin..qmax: two floats (per_channel: two arrays).

        Raises:
            CalibrationError: nothing was observed.
        """

    def calculate_qparams(self, qmin: int, qmax: int, symmetric: bool) -> tuple[Any, Any]:
        """Return scale (np.float32) and zero point (int) of that range (per_channel: arrays).

        See ``intact8.arithmetic.affine.choose_qparams`` for the formulas.

        Raises:
            CalibrationError: nothing was observed.
        """
        lo, hi = self.range(qmin, qmax, symmetric)
        return choose_qparams(lo, hi, qmin, qmax, symmetric)

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return everything observed, as tensors on the CPU and ints; arguments are not part of it."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Become what :meth:`state` was called on.

        Raises:
            CalibrationError: the state is another kind's.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget everything observed."""

    def check_mergeable(self, other: Observer) -> None:
        """Raise CalibrationError unless ``other`` is the same kind with the same arguments."""
        if other.kind != self.kind or other.args() != self.args():
            raise CalibrationError(
                f"observers {self.kind!r} {self.args()} and {other.kind!r} cannot be merged",
                why="they differ in kind or arguments",
                remedy="make both with the same recipe",
            )

    def check_state(self, state: dict[str, Any], keys: set[str]) -> None:
        """Raise CalibrationError unless ``state`` has exactly these keys and this kind."""
        if state.get("kind") != self.kind or set(state) != keys | {"kind"}:
            raise CalibrationError(
                f"this is no state of observer {self.kind!r}",
                why=f"it is of kind {state.get('kind')!r} with entries {sorted(state)}",
                remedy="load it into a simulation prepared with the same recipe",
            )

    def nothing_observed(self) -> CalibrationError:
        """Return the error for a range asked of an observer that saw no value."""
        return CalibrationError(
            "nothing was observed", why=f"the {self.kind!r} observer has seen no value", remedy="calibrate first"
        )


_REGISTRY: dict[str, Callable[..., Observer]] = {}
_Class = TypeVar("_Class", bound=type)


def register(cls: _Class) -> _Class:
    """Return the class decorator: make an observer available under its ``kind``."""
    _REGISTRY[cls.kind] = cls  # type: ignore[attr-defined]
    return cls


def list_observers() -> list[str]:
    """Return the names of all observers, sorted.

    Example:
        >>> from intact8.calibration import list_observers
        >>> list_observers()[:4]
        ['entropy', 'fixed', 'histogram', 'minmax']
    """
    return sorted(_REGISTRY)


def make_observer(name: str, **args: Any) -> Observer:
    """Return a new observer by name.

    Args:
        name: one of :func:`list_observers`.
        args: arguments of that observer's class.

    Raises:
        RecipeError: unknown name, unknown argument, or a value the observer refuses.

    Example:
        >>> from intact8.calibration import make_observer
        >>> import torch
        >>> observer = make_observer("minmax")
        >>> observer.observe(torch.tensor([0.0, 255.0]))
        >>> observer.calculate_qparams(0, 255, symmetric=False)
        (np.float32(1.0), 0)
    """
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RecipeError(f"there is no observer {name!r}", remedy=f"{hint}choose from {', '.join(list_observers())}")
    try:
        return _REGISTRY[name](**args)
    except TypeError as error:
        known = inspect.signature(_REGISTRY[name]).parameters
        needed = [n for n, p in known.items() if p.default is p.empty]
        takes = ", ".join(n if n in needed else f"{n}={p.default}" for n, p in known.items())
        raise RecipeError(
            f"observer {name!r} does not take these arguments: {args}",
            where="observer_args",
            why=str(error) if {*needed} <= args.keys() <= known.keys() else "",
            remedy=f"give what it takes: {takes}" if takes else "leave them out: it takes none",
        ) from error


def dense_values(x: Tensor) -> Tensor:
    """Return the values of ``x`` as float32, those of a sample in memory order: uncopied where samples stand densely
    one after another (in channels_last they do).

    Observers do not care for order, so permuting to the logical one would be wasted.

    Returns:
        (samples, values per sample) where ``x`` has a dimension 0 beside others; else (values,).

    Raises:
        CalibrationError: ``x`` is not floating point.
    """
    if not x.is_floating_point():
        raise CalibrationError(
            f"cannot observe a tensor of dtype {x.dtype}",
            why="only floating point has a range to choose",
            remedy="quantize points that carry real numbers",
        )
    x = x.detach()
    if not x.is_contiguous():
        # Strides in descending order give the layout; contiguous in that order means dense.
        order = sorted(range(1, x.dim()), key=lambda d: (x.stride(d), x.shape[d]), reverse=True)
        x = x.permute(0, *order)
    x = x.float().contiguous()
    return x.view(x.shape[0], -1) if x.dim() > 1 else x.view(-1)


def finite_extent(x: Tensor, observer: Observer) -> tuple[float, float]:
    """Return the smallest and the largest value of a non-empty float32 tensor.

    Raises:
        NonFiniteError: NaN or infinity among them; aminmax passes both on, so that the check costs nothing.
    """
    low, high = torch.aminmax(x)
    lo, hi = float(low), float(high)
    if not (np.isfinite(lo) and np.isfinite(hi)):
        nan, inf = int(torch.isnan(x).sum()), int(torch.isinf(x).sum())
        raise NonFiniteError(f"{nan} NaN and {inf} infinite of {x.numel()} values", observer)
    return lo, hi
