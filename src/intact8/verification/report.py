"""What verification found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from intact8.display import Shown, inert
from intact8.text import printable

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class Difference:
    """One integer, or exact float32 number, that differs from the reference's.

    Attributes:
        engine, tensor: where.
        index: of the element; dimension 0 counts all samples of the run where it is the batch.
        expected, got: the reference's, and the engine's.
    """

    engine: str
    tensor: str
    index: tuple[int, ...]
    expected: float
    got: float

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        return f"{printable(self.tensor)}[{where}] is {self.got} on {self.engine}, {self.expected} in the reference"


@dataclass
class TensorReport:
    """One named integer tensor, over all batches.

    Attributes:
        elements: integers compared per engine.
        mismatches: engine → how many differ.
        max_lsb: largest difference on any engine.
        first: first differing element met.
    """

    elements: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)
    max_lsb: int = 0
    first: Difference | None = None


@dataclass
class EngineReport:
    """One engine (or the simulation) against the reference.

    Attributes:
        elements: integers compared.
        mismatches: how many differ.
        max_lsb: largest difference.
        missing: integer tensors it did not give, so that they could not be compared.
    """

    elements: int = 0
    mismatches: int = 0
    max_lsb: int = 0
    missing: list[str] = field(default_factory=list)


@dataclass
class VerifyReport(Shown):
    """What :func:`verify` found. Prints as a table with rich.

    Attributes:
        samples: how many were run.
        by_tensor: name → report, in execution order.
        by_engine: name → report; the reference, which all are compared to, is not in it.
        first: first differing element: earliest batch, then earliest tensor.
        islands: names of float ops, which the promise leaves out; engines were fed the reference's values behind them.
        uncertified: op → reason, for integer ops without proof.
        golden: engine, the reference included → what of the program's golden vectors it reproduced, bit for bit.
        golden_differs: engine → what is wrong, where it did not.
        refused: engine → why it was not run: a certificate leaves it out, and it cannot be proved there.
        remarks: about the file the program was loaded from, and about engines that cannot run it
            here, where none were named.
        nan: ``quantize`` op → how many NaN of a float island it turned into its least integer, in the reference.
    """

    samples: int = 0
    by_tensor: dict[str, TensorReport] = field(default_factory=dict)
    by_engine: dict[str, EngineReport] = field(default_factory=dict)
    first: Difference | None = None
    islands: list[str] = field(default_factory=list)
    uncertified: dict[str, str] = field(default_factory=dict)
    golden: dict[str, str] = field(default_factory=dict)
    golden_differs: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    nan: dict[str, int] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """Integers of the reference that were compared with every engine."""
        return sum(t.elements for t in self.by_tensor.values())

    @property
    def mismatches(self) -> int:
        """Integers that differ, summed over engines."""
        return sum(e.mismatches for e in self.by_engine.values())

    @property
    def max_lsb(self) -> int:
        """Largest difference on any engine."""
        return max((e.max_lsb for e in self.by_engine.values()), default=0)

    @property
    def exact(self) -> bool:
        """Whether every integer of every engine was compared and is the reference's, and the golden vectors hold."""
        missing = any(e.missing for e in self.by_engine.values())
        return self.mismatches == 0 and not missing and not self.golden_differs and not self.refused

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "exact": self.exact,
            "samples": self.samples,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "max_lsb": self.max_lsb,
            "first": _difference_json(self.first),
            "by_engine": {n: vars(e) | {"missing": list(e.missing)} for n, e in self.by_engine.items()},
            "by_tensor": {
                n: {
                    "elements": t.elements,
                    "mismatches": dict(t.mismatches),
                    "max_lsb": t.max_lsb,
                    "first": _difference_json(t.first),
                }
                for n, t in self.by_tensor.items()
            },
            "islands": list(self.islands),
            "uncertified": dict(self.uncertified),
            "golden": dict(self.golden),
            "golden_differs": dict(self.golden_differs),
            "refused": dict(self.refused),
            "remarks": list(self.remarks),
            "nan": dict(self.nan),
        }

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table

        table = Table("compared with the reference", "integers", "differ", "largest difference", "not compared")
        for name, e in self.by_engine.items():
            table.add_row(inert(name), f"{e.elements:,}", f"{e.mismatches:,}", str(e.max_lsb), str(len(e.missing)))
        lines = [f"{self.elements:,} integers in {len(self.by_tensor)} tensors over {self.samples:,} samples"]
        if self.first is not None:
            lines.append(f"first difference: {self.first}")
        if self.islands:
            lines.append(
                f"{len(self.islands)} float ops are outside the promise: {', '.join(self.islands[:6])}"
                f"{' …' if len(self.islands) > 6 else ''}"
            )
        lines += [f"not proved: {name}: {reason}" for name, reason in self.uncertified.items()]
        lines += [f"{count:,} NaN became the least integer in {name}" for name, count in self.nan.items()]
        lines += [f"golden vectors on {name}: {what}" for name, what in (self.golden | self.golden_differs).items()]
        lines += [f"{name} was not run: {reason}" for name, reason in self.refused.items()]
        return Group(table, *map(inert, (*lines, *self.remarks)))


def _difference_json(d: Difference | None) -> dict[str, Any] | None:
    return None if d is None else {**vars(d), "index": list(d.index)}
