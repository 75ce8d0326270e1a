"""A program becomes an OpenVINO model for one batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import openvino
from openvino import opset14 as ov

from intact8.arithmetic.dimensions import known
from intact8.engines.fused_stem import Stage, stages
from intact8.errors import EngineError
from intact8.opset.op import Op
from intact8.program.dimensions import fixed
from intact8.program.indices import intervals, unproved
from intact8.program.nonfinite import nonfinite_tensors
from intact8.program.program import Program

from ..shapes import sized
from . import elementwise, input_quantize, kernel_selection, moves, nonfinite, pools, products, scale_assignment
from .core import GIVEN
from .execution_graph import END, FLOAT_PRODUCT
from .floats import FLOATS, island
from .lowering import OpContext, Value, apart, dequantized, port
from .tables import Function, fits, table

INTEGERS: dict[str, Callable[[OpContext], Value]] = {
    "conv": products.conv,
    "linear": products.linear,
    "add": elementwise.add,
    "mul": elementwise.mul,
    "matmul": products.matmul,
    "mean": pools.mean,
    "avg_pool": pools.avg_pool,
    "adaptive_avg_pool": pools.adaptive_avg_pool,
    "resize_linear": moves.resize_linear,
    "constant": moves.constant,
    "quantize": elementwise.quantize,
    "dequantize": elementwise.dequantize,
}
"""Kind → how it is built; the others are moves, ``table`` and float ops."""

PRODUCTS = frozenset({"conv", "linear", "matmul"})
"""Kinds that one of OpenVINO's kernels of products is to compute, which is checked."""


WHOLE = 1 << 24
"""Integers that float32 holds."""

ELEMENTS = frozenset({"add", "mul", "mean"})
CHECKED = ELEMENTS | PRODUCTS | {"avg_pool", "adaptive_avg_pool"}
"""Kinds whose rounding is looked for in what is executed; and those of them whose arithmetic is, too."""

REACH = 1 << 13
"""Transposed convolutions end the process at strides of 32768 and windows of 1, 16384 and 3 (OpenVINO 2026.4), and ran
at a half of that: a quarter is allowed."""


@dataclass(frozen=True)
class Tap:
    """How to read a result of the model: where ``unit`` is set, integers are R(value / unit) + zero; where ``whole``
    is, numpy casts it to int64."""

    name: str
    unit: float | None
    zero: int
    whole: bool = False


@dataclass(frozen=True)
class Built:
    """A model with what it takes and gives.

    Attributes:
        model: static shapes, one parameter per entry of ``feeds``.
        feeds: names of program tensors: inputs, fed tensors, and what ``sources`` give.
        taps: one per result.
        sources: those of ``feeds`` that are computed before.
        evaluated: names of the tables that are evaluated as functions.
        batch: size of the batch.
        last: those of ``feeds`` with channels last.
        products: names of the products that int8 kernels are to compute.
        checked: names inside the model of what multiplies or rounds → the op each belongs to, and the kind of what is
            evaluated there (see ``Node.evaluates``).
    """

    model: Any
    feeds: tuple[str, ...]
    taps: tuple[Tap, ...]
    sources: Mapping[str, Source]
    evaluated: frozenset[str]
    batch: int
    last: frozenset[str] = frozenset()
    products: frozenset[str] = frozenset()
    checked: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What does not depend on the batch size.

    Attributes:
        units: see ``scale_assignment.choose``.
        functions: see ``tables.fits``.
        rounded: see ``scale_assignment.rounded``.
        plain: names of products that int8 kernels refuse or misread (see ``OpContext.plain_integers``).
        divides: names of ``quantize`` ops that the model evaluates exactly (see ``input_quantize``).
        inside: whether it does so for the program's inputs.
        indexed: names of tables that are not evaluated, though a function fits, since no product's kernel took them.
        kernels: whether to choose kernels (see ``kernel_selection.preferred``).
        joined: models of several batch sizes share their weights, which different kernels pack differently.
        ahead: names of ``quantize`` ops with the convolutions behind them that the compiled kernels do (see ``ahead``).
        special: names of the float tensors that may hold NaN or infinity.
    """

    program: Program
    units: dict[str, float]
    rounded: frozenset[str]
    functions: dict[str, Function]
    plain: frozenset[str] = frozenset()
    divides: frozenset[str] = frozenset()
    inside: bool = True
    indexed: frozenset[str] = frozenset()
    kernels: bool = True
    joined: bool = False
    ahead: Mapping[str, tuple[Stage, ...]] = field(default_factory=dict)
    special: frozenset[str] = frozenset()

    @staticmethod
    def of(program: Program, *, inside: bool = True, alone: bool = False) -> Plan:
        """The plan of a program.

        Args:
            program: what is to run.
            inside: let the model quantize float inputs, where it does so exactly.
            alone: one thread does it all.
        """
        for op in program.ops:
            island = op.is_float and op.kind.removeprefix("float.") in FLOATS
            if not (island or op.kind in INTEGERS or op.kind in scale_assignment.MOVES or op.kind == "table"):
                raise EngineError(
                    f"no rule for kind {op.kind!r}",
                    where=op.name,
                    remedy="run with engine='onednn', 'onnxruntime' or 'reference'",
                )
            _small_windows(op)
        for name in unproved(program):
            raise EngineError(
                "the indices that the network computes may lie outside of the table", where=name,
                why="OpenVINO reads something else there and says nothing",
                remedy="clamp them to the table before, or run with engine='onednn', 'onnxruntime' or 'reference'",
            )  # fmt: skip
        _small_integers(program)
        functions = fits(program)
        t = program.tensors
        plain = (op.name for op in program.ops if op.kind == "conv" and products.misread(op, t[op.inputs[0]]))
        return Plan(
            program, scale_assignment.choose(program), scale_assignment.rounded(program, functions), functions,
            frozenset(plain),
            input_quantize.proved(program), inside, kernels=kernel_selection.selectable(),
            ahead={op.name: stages(program, op) for op in program.ops if op.kind == "quantize"} if alone else {},
            special=nonfinite_tensors(program),
        )  # fmt: skip

    def at(self, sizes: Mapping[str, int]) -> Plan:
        """The same for given sizes of the named dimensions."""
        return replace(self, program=fixed(self.program, sizes))

    def with_plain(self, names: Iterable[str]) -> Plan:
        """The same with more products in float32 integers."""
        return replace(self, plain=self.plain | frozenset(names))

    def with_rounded(self, names: Iterable[str]) -> Plan:
        """The same with a Round of their own for more results."""
        return replace(self, rounded=self.rounded | frozenset(names))

    def with_indexed(self, names: Iterable[str]) -> Plan:
        """The same with more tables indexed."""
        return replace(self, indexed=self.indexed | frozenset(names))


@dataclass(frozen=True)
class Given:
    """What a caller gives besides, or in another form than, the program's float inputs.

    Attributes:
        fed: names of results of float ops that are parameters instead of being computed.
        integers: names of float inputs given as the uint8 integers they would be quantized to.
        last: names of inputs whose integers are handed over with channels last, as int8 kernels read them.
        sizes: name and size of every named dimension.
    """

    fed: frozenset[str] = frozenset()
    integers: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Source:
    """What is computed before the model runs: integers of an input, and ``stages`` behind them where it is an image.

    Attributes:
        quantize: the op, of a program input, of what is fed, or of either after movement ops.
        stages: the convolutions behind it, see ``ahead``.
    """

    quantize: Op
    stages: tuple[Stage, ...]

    @property
    def ops(self) -> tuple[Op, ...]:
        """All of them, in order; the last gives what the model takes."""
        return self.quantize, *(op for stage in self.stages for op in stage.ops)


def sources(plan: Plan, given: Given) -> list[Source]:
    """All but the ``quantize`` ops that the model divides itself."""
    program = plan.program
    known = {*program.inputs, *given.fed}
    found = []
    for op in program.ops:
        if op.kind == "quantize" and op.inputs[0] in known:
            divided = op.name in plan.divides and op.inputs[0] in program.inputs
            if not (plan.inside and divided and op.inputs[0] not in given.integers):
                found.append(Source(op, plan.ahead.get(op.name, ()) if op.inputs[0] in given.last else ()))
        if op.kind in scale_assignment.MOVES and not op.is_float and known.issuperset(op.inputs):
            known.add(op.name)
    return found


def build(plan: Plan, batch: int, wanted: Iterable[str], given: Given) -> Built:
    """The model that computes ``wanted``.

    Args:
        plan: of the program.
        batch: what stands for None in shapes.
        wanted: names of tensors to give, none of them fed.
        given: what else the caller gives.

    Raises:
        EngineError: OpenVINO cannot express an op; names it.
    """
    return _Builder(plan, batch, given).build(list(wanted))


def _small_windows(op: Op) -> None:
    """Refuse transposed convolutions that OpenVINO's kernels have no room for: they end the process."""
    if not op.attrs.get("transposed"):
        return
    kernel = op.arrays["weight"].shape[2:]
    reach = max(s * d * k for s, d, k in zip(op.attrs["stride"], op.attrs["dilation"], kernel, strict=True))
    if reach >= REACH:
        raise EngineError(
            f"a transposed convolution's stride, dilation and window multiply to {reach}", where=op.name,
            why=f"OpenVINO's kernels can end the process from {REACH} on",
            remedy="run with engine='onednn', 'onnxruntime' or 'reference'",
        )  # fmt: skip


def _small_integers(program: Program) -> None:
    """Refuse int64 tensors whose values float32 may not hold: OpenVINO keeps them as int32, and computes with floats.

    What is cast from floats may be larger where nothing but clamps read it (see ``nonfinite.whole``), and the caller,
    for whom numpy casts it.
    """
    known = intervals(program, (-GIVEN, GIVEN))
    clamped = {op.name for op in program.ops if _truncates(op, program)}
    for op in program.ops:
        if op.kind != "float.clamp" or None in (op.attrs["min"], op.attrs["max"]):
            clamped.difference_update(op.inputs)
    for name, t in program.tensors.items():
        if t.dtype == "int64" and max(map(abs, known.get(name, (WHOLE, WHOLE)))) >= WHOLE and name not in clamped:
            raise EngineError(
                f"the integers computed here may reach {WHOLE}, or nothing is known of them", where=name,
                why="OpenVINO computes them in float32, which holds no larger ones",
                remedy="clamp them on both sides, or run with engine='onednn', 'onnxruntime' or 'reference'",
            )  # fmt: skip


def _truncates(op: Op, program: Program) -> bool:
    """Whether it turns float32 into int64."""
    dtypes = [program.tensors[name].dtype for name in (*op.inputs, op.name)]
    return op.kind == "float.cast" and dtypes == ["float32", "int64"]


def label(index: int) -> str:
    """The name, inside models, of the op of that index."""
    return f"op{index}"


class _Builder:
    def __init__(self, plan: Plan, batch: int, given: Given) -> None:
        self._plan, self._batch, self._fed = plan, batch, given.fed
        self._program = sized(plan.program, batch)
        self._labels = {op.name: label(i) for i, op in enumerate(self._program.ops)}
        self._read = {op.name: op.inputs[0] for op in plan.program.ops if op.kind == "table"}
        self._casts = {op.name: op.inputs[0] for op in self._program.ops if _truncates(op, self._program)}
        self._reduced = scale_assignment.reduced(self._program)
        self._values: dict[str, Value] = {}
        self._parameters: dict[str, Any] = {}
        self._sources = {source.ops[-1].name: source for source in sources(plan, given)}
        self._last = frozenset(n for n, source in self._sources.items() if source.quantize.inputs[0] in given.last)

    def build(self, wanted: list[str]) -> Built:
        program = self._program
        needed = _needed(program, wanted, self._fed | self._sources.keys())
        self._evaluated = self._functions(needed, wanted)
        self._inside = {op.inputs[0] for op in program.ops if op.name in self._evaluated}
        for name in program.inputs:
            if name in needed:
                self._parameter(name)
        for op in program.ops:
            if op.name in needed:
                self._values[op.name] = self._value(op)
        results, taps = [], []
        for name in wanted:
            value, source = self._values[name], self._casts.get(name)
            results.append(ov.result(value.port if source is None else self._values[source].port))
            taps.append(Tap(name, value.unit, value.zero, source is not None))
        model = openvino.Model(results, list(self._parameters.values()), "intact8")
        computed = (op for op in program.ops if op.name in self._values and op.name not in self._parameters)
        return Built(
            model, tuple(self._parameters), tuple(taps), self._sources, self._evaluated, self._batch, self._last,
            frozenset(op.name for op in computed if op.kind in PRODUCTS) - self._plan.plain, self._checked(model),
        )  # fmt: skip

    def _checked(self, model: Any) -> dict[str, tuple[str, str]]:
        names = {node.get_friendly_name() for node in model.get_ops()}
        found: dict[str, tuple[str, str]] = {}
        for op in self._program.ops:
            if op.kind in CHECKED:
                label = self._labels[op.name]
                asked = {label + END: op.kind}
                if op.kind in ELEMENTS or op.name in self._plan.plain:
                    asked[label] = op.kind if op.kind in ELEMENTS else FLOAT_PRODUCT
                found |= {name: (op.name, kind) for name, kind in asked.items() if name in names}
        return found

    def _functions(self, needed: set[str], wanted: Iterable[str]) -> frozenset[str]:
        """Tables to evaluate: what they read is a product in an int8 kernel, neither given nor wanted."""
        plan = self._plan
        chosen = plan.functions.keys() - plan.indexed
        given = {*self._fed, *self._sources}
        apart = given | plan.plain | {*wanted}
        return frozenset(n for n in chosen & needed if n not in given and self._read[n] not in apart)

    def _value(self, op: Op) -> Value:
        if op.name in self._fed or op.name in self._sources:
            return self._parameter(op.name)
        program, plan = self._program, self._plan
        out = program.tensors[op.name]
        if op.name in plan.divides:
            grid = input_quantize.Grid.of(op, program)
            x = self._values[op.inputs[0]].port
            if op.inputs[0] not in program.inputs:
                x = nonfinite.replaced(x, -np.inf) if op.inputs[0] in plan.special else apart(x)
            return dequantized(input_quantize.divided(x, grid), grid.zero, plan.units[op.name])
        if op.kind == "dequantize":
            op = replace(op, attrs={"scale": program.tensors[op.inputs[0]].scale})
        context = OpContext(
            op, self._labels[op.name], tuple(self._values[n] for n in op.inputs), out, plan.units.get(op.name, 1.0),
            op.name in plan.rounded | plan.plain, op.name in self._inside, op.name in plan.plain,
            0 if not plan.kernels else 1 if plan.joined else self._batch, not plan.special.isdisjoint(op.inputs),
        )  # fmt: skip
        try:
            if op.kind == "table":
                return table(context, plan.functions[op.name] if op.name in self._evaluated else None)
            if op.is_float:
                return island(context)
            value = INTEGERS.get(op.kind, moves.move)(context)
            # What computes a mean also takes in constants behind it, and reads them wrongly.
            return replace(value, port=apart(value.port)) if op.name in self._reduced else value
        except RuntimeError as error:
            raise EngineError(
                f"OpenVINO refuses this {op.kind}", where=op.name, why=str(error).strip().splitlines()[-1],
                remedy="run with engine='onednn' or 'reference'",
            ) from error  # fmt: skip

    def _parameter(self, name: str) -> Value:
        t = self._program.tensors[name]
        shape = known(t.shape)
        last = name in self._last
        parameter = ov.parameter([shape[0], *shape[2:], shape[1]] if last else shape, np.dtype(t.dtype).type)
        parameter.set_friendly_name(name)
        self._parameters[name] = parameter
        q = port(parameter)
        value = dequantized(q, int(t.zero_point or 0), self._plan.units[name]) if t.quantized else Value(q)
        if last:  # moves nothing: OpenVINO's own order in memory is this one
            turned = ov.transpose(value.port, np.array([0, len(shape) - 1, *range(1, len(shape) - 1)]))
            value = replace(value, port=port(turned))
        self._values[name] = value
        return value


def _needed(program: Program, wanted: Iterable[str], given: frozenset[str] | set[str]) -> set[str]:
    """Every tensor ``wanted`` depends on; nothing behind ``given``."""
    by_name = {op.name: op for op in program.ops}
    needed: set[str] = set()
    queue = list(wanted)
    while queue:
        name = queue.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in by_name and name not in given:
            queue += by_name[name].inputs
    return needed
