"""What of a program's OpenVINO models does not depend on the batch size, and which programs are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from intact8.opset.op import Op
from intact8.program.dimensions import fixed
from intact8.program.indices import intervals, unproved
from intact8.program.nonfinite import nonfinite_tensors
from intact8.program.program import Program

from . import input_quantize, products, scale_assignment
from .compile import refusal
from .core import LARGEST_INPUT
from .lowerings import lowering

FLOAT32_INTEGERS = 1 << 24
"""Float32 holds all integers up to this one."""

LARGEST_REACH = 1 << 13
"""Transposed convolutions end the process at strides of 32768 and windows of 1, 16384 and 3 (OpenVINO 2026.4), and ran
at a half of that: a quarter is allowed."""


@dataclass(frozen=True)
class Plan:
    """What does not depend on the batch size.

    Attributes:
        program: what is to run.
        scales: model scale of every quantized tensor (see ``scale_assignment.choose``).
        rounded: names of results that get a Round before their FakeQuantize (see ``scale_assignment.rounded``).
        float_products: names of products that int8 kernels refuse or misread (see ``OpContext.float_product``).
        divided: names of ``quantize`` ops that the model evaluates exactly (see ``input_quantize``).
        nonfinite: names of the float tensors that may hold NaN or infinity.
    """

    program: Program
    scales: Mapping[str, float]
    rounded: frozenset[str]
    float_products: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()
    nonfinite: frozenset[str] = frozenset()

    @staticmethod
    def of(program: Program) -> Plan:
        """Return the plan of a program.

        Args:
            program: what is to run.

        Raises:
            EngineError: the program is refused; it names the operation.
        """
        _refuse(program)
        plan = Plan(
            program=program,
            scales=scale_assignment.choose(program),
            rounded=scale_assignment.rounded(program),
            divided=input_quantize.proved(program),
            nonfinite=nonfinite_tensors(program),
        )
        return plan if program.dimensions else plan._without_misread()

    def at(self, sizes: Mapping[str, int]) -> Plan:
        """Return the plan for given sizes of the named dimensions."""
        if not self.program.dimensions:
            return self
        return replace(self, program=fixed(self.program, sizes))._without_misread()

    def _without_misread(self) -> Plan:
        """Return the plan without int8 kernels for the convolutions that they misread, all sizes of which are known."""
        convs = [op for op in self.program.ops if op.kind == "conv"]
        misread = [op.name for op in convs if products.misread(op, self.program.tensors[op.inputs[0]])]
        return self.extended(float_products=misread)

    def extended(self, *, float_products: Iterable[str] = (), rounded: Iterable[str] = ()) -> Plan:
        """Return the plan with more names in these sets."""
        return replace(
            self,
            float_products=self.float_products.union(float_products),
            rounded=self.rounded.union(rounded),
        )


@dataclass(frozen=True)
class Feeds:
    """What a caller gives besides, or in another form than, the program's float inputs.

    Attributes:
        fed: names of results of float ops that are parameters instead of being computed.
        integers: names of float inputs given as the uint8 integers they would be quantized to.
        channels_last: names of inputs whose integers are handed over with channels last, as int8 kernels read them.
        sizes: name and size of every named dimension.
    """

    fed: frozenset[str] = frozenset()
    integers: frozenset[str] = frozenset()
    channels_last: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, int], ...] = ()


def sources(plan: Plan, feeds: Feeds) -> list[Op]:
    """Return the ``quantize`` ops that are computed before the model runs: those of a program input, of what is fed, or
    of either after movement ops, which the model does not divide itself."""
    program = plan.program
    known = {*program.inputs, *feeds.fed}
    found = []
    for op in program.ops:
        x = op.inputs[0] if op.inputs else ""
        if op.kind == "quantize" and x in known:
            inside = op.name in plan.divided and x in program.inputs
            if not inside or x in feeds.integers:
                found.append(op)
        if op.kind in scale_assignment.MOVES and not op.is_float and known.issuperset(op.inputs):
            known.add(op.name)
    return found


def truncates(op: Op, program: Program) -> bool:
    """Return whether the op turns float32 into int64."""
    dtypes = [program.tensors[name].dtype for name in (*op.inputs, op.name)]
    return op.kind == "float.cast" and dtypes == ["float32", "int64"]


def _refuse(program: Program) -> None:
    """Refuse programs that OpenVINO computes wrongly, or that end the process."""
    for op in program.ops:
        if lowering(op) is None:
            raise refusal(f"no rule for kind {op.kind!r}", op.name)
        reach = _reach(op) if op.attrs.get("transposed") else 0
        if reach >= LARGEST_REACH:
            what = f"a transposed convolution's stride, dilation and window multiply to {reach}"
            raise refusal(what, op.name, f"OpenVINO's kernels can end the process from {LARGEST_REACH} on")
    for name in unproved(program):
        what = "the indices that the network computes may lie outside of the table"
        raise refusal(what, name, "OpenVINO reads something else there and says nothing", "clamp them to the table")
    known = intervals(program, (-LARGEST_INPUT, LARGEST_INPUT))
    clamped = _clamped_casts(program)
    for name, t in program.tensors.items():
        low, high = known.get(name, (-FLOAT32_INTEGERS, FLOAT32_INTEGERS))
        if t.dtype == "int64" and max(-low, high) >= FLOAT32_INTEGERS and name not in clamped:
            what = f"the integers computed here may reach {FLOAT32_INTEGERS}, or nothing is known of them"
            raise refusal(what, name, "OpenVINO computes them in float32, which holds no larger ones", "clamp them")


def _reach(op: Op) -> int:
    kernel = op.arrays["weight"].shape[2:]
    return int(max(s * d * k for s, d, k in zip(op.attrs["stride"], op.attrs["dilation"], kernel, strict=True)))


def _clamped_casts(program: Program) -> set[str]:
    """Return the int64 results of casts that only clamps on both sides read, or the caller, for whom numpy casts."""
    names = {op.name for op in program.ops if truncates(op, program)}
    for op in program.ops:
        if op.kind != "float.clamp" or None in (op.attrs["min"], op.attrs["max"]):
            names.difference_update(op.inputs)
    return names
