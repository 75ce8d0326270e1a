"""What numbers a tensor may become: dtype, range, symmetry, granularity, and who looks at its values."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from intact8.errors import RecipeError

DTYPES = ("uint8", "int8")
GRANULARITIES = ("per_tensor", "per_channel")
WEIGHT_OBSERVERS = ("minmax", "mse")

STORED_SHIFT = 128
"""int8 activations are stored as uint8 in a program: integer + 128, zero point + 128."""


@dataclass(frozen=True)
class Scheme:
    """How one tensor or weight is quantized. Values outside a scheme's meaning raise RecipeError at once.

    Attributes:
        dtype: uint8 or int8.
        bits: 2 to 8; fewer than 8 use the same dtype and a shorter range.
        qmin, qmax: ends of the integer range in ``dtype``; None for the whole range of ``bits`` (without its lowest
            integer where the scheme is a symmetric int8: −127…127, −7…7).
        symmetric: zero point in the middle: 0 for int8, 128 for uint8.
        granularity: per_tensor, or per_channel (weights: one scale per output channel).
        observer: name of the observer that turns values into a range (``intact8.calibration.list_observers()``);
            minmax or mse for weights.
        observer_args: its keyword arguments.
        fixed: (scale, zero point) in ``dtype``, given instead of observed.

    Example:
        >>> Scheme().range, Scheme(dtype="int8", bits=4, symmetric=True).range
        ((0, 255), (-7, 7))
        >>> Scheme(dtype="int8", symmetric=True, qmin=-128).stored()
        (0, 255, 128)
    """

    dtype: str = "uint8"
    bits: int = 8
    qmin: int | None = None
    qmax: int | None = None
    symmetric: bool = False
    granularity: str = "per_tensor"
    observer: str = "histogram"
    observer_args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    fixed: tuple[float, int] | None = None

    def __post_init__(self) -> None:
        fewer = re.fullmatch("(u?int)([2-7])", self.dtype) if isinstance(self.dtype, str) else None
        if fewer:
            remedy = f'give dtype="{fewer[1]}8", bits={fewer[2]}'
            raise RecipeError(f"dtype = {self.dtype!r}", where="Scheme", why="it says the sign only", remedy=remedy)
        one_of("dtype", self.dtype, DTYPES)
        one_of("granularity", self.granularity, GRANULARITIES)
        for name in ("bits", "qmin", "qmax"):
            value = getattr(self, name)
            absent = value is None and name != "bits"
            if not absent and (isinstance(value, bool) or not isinstance(value, int)):
                raise RecipeError(
                    f"{name} = {value!r} is not an integer", where="Scheme", remedy=f"give {name} as an int"
                )
        check_bool("symmetric", self.symmetric, "Scheme")
        if not isinstance(self.observer, str) or not isinstance(self.observer_args, Mapping):
            what = f"observer = {self.observer!r} with observer_args = {self.observer_args!r}"
            remedy = 'give a name and keyword arguments: observer="percentile", observer_args={"percentile": 99.9}'
            raise RecipeError(what, where="Scheme", remedy=remedy)
        if not 2 <= self.bits <= 8:
            raise RecipeError(f"{self.bits} bits cannot be stored", where="Scheme", remedy="choose 2 to 8 bits")
        lowest, highest = self._dtype_range()
        if not lowest <= self.qmin_effective < self.qmax_effective <= highest:
            what = (
                f"the range {self.qmin_effective}..{self.qmax_effective} is not a range of {self.bits}-bit {self.dtype}"
            )
            raise RecipeError(what, where="Scheme", remedy=f"choose qmin < qmax inside {lowest}..{highest}")
        object.__setattr__(self, "observer_args", dict(self.observer_args))
        if self.fixed is not None:
            object.__setattr__(self, "fixed", self._checked_fixed(self.fixed))

    @property
    def qmin_effective(self) -> int:
        """Return the smallest integer in use."""
        if self.qmin is not None:
            return self.qmin
        return self._dtype_range()[0] + (self.symmetric and self.dtype == "int8")

    @property
    def qmax_effective(self) -> int:
        """Return the largest integer in use."""
        return self._dtype_range()[1] if self.qmax is None else self.qmax

    @property
    def range(self) -> tuple[int, int]:
        """Return the smallest and the largest integer in use, in ``dtype``."""
        return self.qmin_effective, self.qmax_effective

    def stored(self) -> tuple[int, int, int]:
        """Return (smallest, largest, shift) in the uint8 domain of a program: zero points grow by ``shift``, too."""
        shift = STORED_SHIFT if self.dtype == "int8" else 0
        return self.qmin_effective + shift, self.qmax_effective + shift, shift

    def changed(self, changes: Mapping[str, Any] | Scheme, *, where: str = "Scheme") -> Scheme:
        """Return this scheme with some fields exchanged.

        A change of ``observer`` forgets the arguments of the observer before, and a change of ``dtype`` or ``bits``
        the range before, unless they are given as well. The text ``"none"`` stands for None (TOML has no null).

        Example:
            >>> tail = Scheme(observer="percentile", observer_args={"percentile": 99.9})
            >>> tail.changed({"observer": "mse"}).observer_args
            {}
        """
        if isinstance(changes, Scheme):
            return changes
        check_keys(changes, scheme_fields(), where)
        values = {name: getattr(self, name) for name in scheme_fields()}
        if _differs("observer", changes, values):
            values["observer_args"] = {}
        if _differs("dtype", changes, values) or _differs("bits", changes, values):
            values["qmin"] = values["qmax"] = None
        values.update({k: None if isinstance(v, str) and v == "none" else v for k, v in changes.items()})
        try:
            return Scheme(**values)
        except RecipeError as error:
            raise RecipeError(error.what, where=where, why=error.why, remedy=error.remedy) from error

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for TOML and JSON; fields that are None are left out.

        Example:
            >>> Scheme(**Scheme(bits=4).to_dict()) == Scheme(bits=4)
            True
        """
        values = {name: getattr(self, name) for name in scheme_fields()}
        values["observer_args"] = dict(self.observer_args)
        if self.fixed is not None:
            values["fixed"] = list(self.fixed)
        return {k: v for k, v in values.items() if v is not None}

    def _dtype_range(self) -> tuple[int, int]:
        if self.dtype == "uint8":
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    def _checked_fixed(self, fixed: Any) -> tuple[float, int]:
        remedy = "give (scale, zero point) with a finite scale > 0 and an integer zero point inside the range"
        if not isinstance(fixed, (tuple, list)) or len(fixed) != 2:
            raise RecipeError(f"fixed = {fixed!r} is not a pair", where="Scheme", remedy=remedy)
        scale, zero_point = fixed
        numbers = is_number(scale) and isinstance(zero_point, int) and not isinstance(zero_point, bool)
        if not numbers or scale <= 0 or not self.range[0] <= zero_point <= self.range[1]:
            raise RecipeError(
                f"fixed = {fixed!r} fits no {self.range[0]}..{self.range[1]} range", where="Scheme", remedy=remedy
            )
        middle = 0 if self.dtype == "int8" else STORED_SHIFT
        if self.symmetric and zero_point != middle:
            what = f"zero point {zero_point} of a symmetric scheme"
            raise RecipeError(what, where="Scheme", remedy=f"give {middle}, or symmetric=False")
        return float(scale), zero_point


def check_activation(scheme: Scheme, where: str) -> Scheme:
    """Return ``scheme``; raise RecipeError where no activation can be quantized like that."""
    if scheme.granularity != "per_tensor":
        what = "activations have one scale per tensor"
        raise RecipeError(what, where=where, remedy='granularity="per_tensor" (per_channel is for weights)')
    if scheme.symmetric and scheme.dtype == "uint8" and not scheme.range[0] < STORED_SHIFT < scheme.range[1]:
        what = f"a symmetric uint8 has zero point 128, outside {scheme.range[0]}..{scheme.range[1]}"
        raise RecipeError(what, where=where, remedy='use dtype="int8", or symmetric=False')
    return scheme


def check_weight(scheme: Scheme, where: str) -> Scheme:
    """Return ``scheme``; raise RecipeError where no weight can be quantized like that."""
    if scheme.dtype != "int8" or not scheme.symmetric:
        raise RecipeError("weights are symmetric int8", where=where, remedy='dtype="int8", symmetric=True')
    if scheme.fixed is not None:
        raise RecipeError(
            "weights have no fixed scale: tie-free multipliers decide it", where=where, remedy="leave fixed out"
        )
    if scheme.observer not in WEIGHT_OBSERVERS or scheme.observer_args:
        what = f"no weight observer {scheme.observer!r} with arguments {dict(scheme.observer_args)}"
        raise RecipeError(what, where=where, remedy="choose " + " or ".join(WEIGHT_OBSERVERS) + ", without arguments")
    return scheme


def scheme_fields() -> tuple[str, ...]:
    """Return the names of the fields of a Scheme."""
    return tuple(f.name for f in fields(Scheme))


def check_keys(given: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Raise RecipeError for the first key that is not known, naming the nearest one that is."""
    known = list(known)
    for key in given:
        if key not in known:
            near = nearest(str(key), known)
            remedy = (f"did you mean {near[0]!r}? " if near else "") + "Known: " + ", ".join(known)
            raise RecipeError(f"unknown key {key!r}", where=where, remedy=remedy)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names close to ``name``, best first."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)


def one_of(name: str, value: Any, known: tuple[Any, ...], where: str = "Scheme") -> None:
    """Raise RecipeError for a value that is none of those known."""
    if not isinstance(value, str) or value not in known:
        raise RecipeError(f"{name} = {value!r}", where=where, remedy="choose " + " or ".join(known))


def is_number(value: Any) -> bool:
    """Return whether a value is a number that is finite, also as a float64."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _differs(name: str, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a field changes; a value may be of any type, as nobody has checked it yet."""
    given, present = changes.get(name, values[name]), values[name]
    return type(given) is not type(present) or bool(given != present)


def check_bool(name: str, value: Any, where: str) -> None:
    """Raise RecipeError for what is neither True nor False."""
    if not isinstance(value, bool):
        raise RecipeError(f"{name} = {value!r} is not a bool", where=where, remedy="give true or false")
