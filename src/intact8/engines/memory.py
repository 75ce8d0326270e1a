"""How much memory a program takes on an engine, predicted from its shapes, so that a call is refused before it runs.

While an operation runs, memory holds the tensors that are still needed, and what the operation itself takes: so many
bytes per element of its input and of its output, measured per kind and engine (``benchmarks/memory_prediction.py``).
The prediction is meant to be within a factor of two of what is measured, where that is more than 64 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

import numpy as np

from intact8.arithmetic.dimensions import known
from intact8.arithmetic.integer import CHUNK
from intact8.arithmetic.recurrent import GATES
from intact8.errors import InputError
from intact8.machine import available_memory
from intact8.opset import KINDS
from intact8.opset.op import Array, Op, Tensor
from intact8.opset.shapes import broadcasting, same
from intact8.program.dimensions import batch_size, fixed, sized_near, sizes_of
from intact8.program.golden import products
from intact8.program.nonfinite import nonfinite_tensors
from intact8.program.program import Program

from .shapes import sized

LENGTH = 32
"""Size of named dimensions where none is given, within their limits: the largest that loading a program runs with."""

Bytes = tuple[float, float]
"""Bytes per element of the first input, and of the output."""


@dataclass(frozen=True, eq=False, repr=False)
class RecurrentMemory:
    """Memory of a recurrent layer beside its input and its output.

    Attributes:
        gates: bytes per gate of every step.
        first, out: bytes per element of the input and of the output.
        in_turn: whether the directions run one after the other, so that the gates of one are there at a time.
    """

    gates: float
    first: float = 0
    out: float = 0
    in_turn: bool = True

    def bytes(self, op: Op, first: int, out: int) -> int:
        """Return the bytes that ``op`` takes, from the elements of its input and of its output."""
        weight = op.arrays["weight_ih"]
        count = GATES[op.kind.removeprefix("float.")] * int(op.attrs["hidden"]) * (first // weight.shape[-1])
        directions = 1 if self.in_turn else 1 + op.attrs["bidirectional"]
        return int(self.gates * count * directions + self.first * first + self.out * out)


@dataclass(frozen=True, eq=False, repr=False)
class MemoryModel:
    """Memory that one engine takes.

    Attributes:
        arrays: bytes per byte of the program's arrays: as stored, and as the engine packs them.
        inside: least bytes per element of a tensor that is neither an input nor an output; an output that is read has
            them beside its own, where its own are fewer.
        outputs: bytes beside the tensor itself per byte of an output: copies for the caller, and in another order.
        integers, floats: what an operation takes whose kind is not among ``kinds``.
        kinds: what operations of a kind take; with "finite " before it, where NaN cannot reach it.
        layers: what recurrent layers take; "float" and "dynamic" stand for kinds of the domain without an entry.
        views: kinds whose results lie in the memory of their first input.
        heap: bytes that the process grows by per byte in use, as far as as much was freed before: that is kept, and
            does not always fit what is asked for next.
        kept: whether tensors between inputs and outputs have one memory, which is kept until the call ends.
        chains: elementwise kinds whose results are computed where the next of them reads them, and have no memory.
        in_place: kinds and functions whose float32 results are written over an operand that nothing reads later.
    """

    arrays: float
    inside: int
    outputs: float
    integers: Bytes
    floats: Bytes
    kinds: Mapping[str, Bytes] = field(default_factory=dict)
    layers: Mapping[str, RecurrentMemory] = field(default_factory=dict)
    views: frozenset[str] = frozenset()
    chains: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    heap: float = 1.0
    kept: bool = False


ELEMENTWISE = frozenset(
    name for name, k in KINDS.items() if k.shape in (same, broadcasting) and k.domain in ("float", "dequantize")
)

MODELS = {
    "reference": MemoryModel(
        2.0, 1, 1.0, (0, 24), (0, 1),
        {
            "conv": (0, 24), "leaky": (0, 43), "residual": (0, 47), "linear": (0, 26), "matmul": (1, 27),
            "avg_pool": (24, 8), "adaptive_avg_pool": (24, 8), "mean": (0, 24), "table": (8, 0), "softmax": (28, 0),
            "norm": (23, 0), "dequantized": (0, 12), "max_pool": (1, 2), "quantize": (20, 3), "dequantize": (0, 8),
            "dynamic_linear": (14, 14), "embedding": (0, 0), "float.leaky_relu": (0, 5), "float.prelu": (0, 5),
            "float.unary": (0, 24), "gelu": (0, 108), "float.avg_pool": (24, 8), "float.adaptive_avg_pool": (24, 8),
            "float.layer_norm": (0, 20), "float.rms_norm": (0, 20), "float.group_norm": (0, 20),
            "float.conv": (4, 8), "resize": (0, 1), "resize_linear": (4, 9), "float.masked_fill": (0, 4),
        },
        {"dynamic": RecurrentMemory(14, 4, 8), "float": RecurrentMemory(0, 0, 4)}, frozenset({"expand"}),
    ),
    "onednn": MemoryModel(
        2.0, 1, 0.0, (1, 0), (0, 4),
        {
            "leaky": (0, 9), "residual": (2, 0), "transposed": (3, 0.5), "linear": (0.5, 0.5), "add": (3, 0),
            "mul": (0, 15), "table": (0, 4), "roll": (0, 1), "resize_linear": (8, 10),
            "mean": (5, 0), "avg_pool": (24, 8), "even pool": (1, 1), "adaptive_avg_pool": (20, 0), "softmax": (12, 0),
            "layer_norm": (11, 0), "norm": (16, 0), "max_pool": (2, 0), "matmul": (4, 4),
            "float.add": (0, 3), "float.div": (0, 3), "float.mean": (3, 0), "float.reduce": (3, 0),
            "float.unary": (0, 5), "float.clamp": (0, 6),
            "float.affine_scalar": (0, 10), "float.rms_norm": (0, 10), "float.conv": (4, 4), "float.linear": (0, 0),
            "float.softmax": (0, 0), "dynamic_linear": (5, 4), "quantize": (0, 1), "dequantize": (0, 1),
            "dequantized": (1, 0), "embedding": (0, 1), "float.embedding": (0, 0), "expand": (0, 1), "pad": (0, 1.5),
        },
        {
            "dynamic": RecurrentMemory(4, 2, in_turn=False), "float": RecurrentMemory(3, 4, in_turn=False),
            "float.lstm": RecurrentMemory(0.5, 1.5, 2, in_turn=False),
        },
        frozenset({"expand", "permute", "slice"}), heap=1.5,
        in_place=frozenset({"float.add", "float.mul", "float.relu", "float.clamp", "gelu"}),
    ),
    "onnxruntime": MemoryModel(
        3.0, 1, 0.0, (0.5, 0), (0, 1),
        {
            "leaky": (0, 7), "residual": (0, 11), "transposed": (12, 8), "linear": (2, 2), "mean": (4, 0),
            "avg_pool": (4, 4), "even pool": (1, 1), "adaptive_avg_pool": (8, 0), "softmax": (8, 0),
            "layer_norm": (8, 0), "norm": (16, 0), "matmul": (4, 4), "roll": (1, 0), "float.clamp": (0, 4),
            "float.unary": (0, 2), "float.affine_scalar": (0, 4), "float.rms_norm": (0, 4), "float.group_norm": (0, 4),
            "float.avg_pool": (4, 0), "float.adaptive_avg_pool": (20, 0), "float.even pool": (4, 0),
            "finite float.adaptive_avg_pool": (4, 0), "finite float.reduce": (0, 0), "float.reduce": (5, 0),
            "float.conv": (0, 4), "dynamic_linear": (6, 4), "quantize": (0, 1), "dequantize": (0, 1), "resize": (0, 5),
            "dequantized": (0, 4.5), "table": (4, 1),
            "decoded_embedding": (0, 9), "float.masked_fill": (0, 7), "resize_linear": (2, 10),
        },
        {"dynamic": RecurrentMemory(11), "float": RecurrentMemory(5.5, in_turn=False)}, heap=1.15,
    ),
    "openvino": MemoryModel(
        3.0, 4, 1.5, (6, 7), (0, 4),
        {
            "residual": (8, 8), "linear": (4, 4), "add": (4, 4), "mul": (4, 4), "matmul": (4, 4), "mean": (1, 1),
            "even pool": (1, 2), "adaptive_avg_pool": (5, 4), "transposed": (8, 8), "table": (8, 7),
            "max_pool": (8, 7), "reshape": (4, 4),
            "permute": (6, 6), "slice": (12, 8), "pad": (6, 6), "roll": (8, 8), "upsample": (4, 12), "cat": (2, 6),
            "expand": (2, 8), "float.mean": (4, 0), "float.adaptive_avg_pool": (0, 4), "float.conv": (4, 8),
            "float.avg_pool": (4, 8), "float.log_softmax": (4, 8), "float.softmax": (0, 8), "float.reduce": (8, 0),
        },
    ),
    # Before there is a plan, which knows: its workspace, and weights as stored, reordered and packed.
    "native": MemoryModel(
        3.0, 1, 0.0, (0, 0), (0, 0),
        {
            "conv": (0, 1), "avg_pool": (0, 1), "adaptive_avg_pool": (1, 0), "max_pool": (0, 1), "upsample": (0, 1),
            "float.avg_pool": (0, 4), "resize": (0, 12),
            "resize_linear": (0, 1), "float.conv": (0, 4), "float.adaptive_avg_pool": (24, 8),
            "float.even pool": (4, 0), "dequantized transposed": (0, 8),
        },
        {"dynamic": RecurrentMemory(4, 1), "float": RecurrentMemory(0, 0, 6)},
        frozenset({"expand", "permute", "reshape"}), ELEMENTWISE, kept=True,
    ),
}  # fmt: skip
"""Engine → the memory it takes. An engine of another package is taken for the reference."""


def predicted(program: Program, engine: str, batch: int = 1, sizes: Mapping[str, int] | None = None) -> int:
    """Return the bytes that preparing and running a program takes, libraries aside.

    Args:
        program: checked.
        engine: its name.
        batch: samples of a call.
        sizes: of named dimensions; None: ``LENGTH``, within their limits.

    Example:
        >>> x, y = Tensor("x", "float32", (None, 1 << 20)), Tensor("y", "float32", (None, 1 << 20))
        >>> program = Program({"x": x, "y": y}, (Op("y", "float.relu", ("x",)),), ("x",), ("y",))
        >>> predicted(program, "reference", batch=8) >> 20
        96
    """
    model = MODELS.get(engine, MODELS["reference"])
    return int(model.arrays * program.nbytes()) + running(program, engine, batch, sizes)


def running(program: Program, engine: str, batch: int = 1, sizes: Mapping[str, int] | None = None) -> int:
    """Return the bytes that one call takes at its worst moment, inputs and outputs included; see :func:`predicted`."""
    model = MODELS.get(engine, MODELS["reference"])
    program = _sized(program, batch, sizes)
    count = {n: math.prod(known(t.shape)) for n, t in program.tensors.items()}
    own = {name: count[name] * np.dtype(t.dtype).itemsize for name, t in program.tensors.items()}
    ends = {*program.inputs, *program.outputs}
    needed = _needed_tensors(program, model)
    last = {name: i for i, op in enumerate(program.ops) for read in op.inputs for name in needed[read]}
    inside = {name: max(size, model.inside * count[name]) for name, size in own.items() if name not in ends}
    twice = {name for name in program.outputs if name in last and own[name] < model.inside * count[name]}
    inside |= {name: model.inside * count[name] for name in twice}
    outputs = sum(own[name] for name in program.outputs)
    wild = nonfinite_tensors(program)
    live, most, freed = sum(own[name] for name in program.inputs), 0, 0

    def grown(size: int) -> int:
        return size + int((model.heap - 1) * min(size, freed))

    for i, op in enumerate(program.ops):
        made = {op.name} & needed[op.name]
        done = {name for read in op.inputs for name in needed[read] if last[name] == i} & inside.keys()
        taken = _overwritten(op, done & set(op.inputs), own, model)
        live += sum(inside.get(name, 0) + own[name] * (name in program.outputs and not model.kept) for name in made)
        live -= sum(inside[name] for name in taken)
        working = 0 if taken else _own(op, program.tensors, count, engine, model, wild.isdisjoint(op.inputs))
        most = max(most, grown(live + working))
        gone = sum(inside[name] for name in (done - taken) | ((made - last.keys()) & inside.keys()))
        live, freed = live - gone, freed + gone + working
    return max(most + model.kept * outputs, grown(live + int(model.outputs * outputs)))


def _overwritten(op: Op, free: Set[str], own: Mapping[str, int], model: MemoryModel) -> frozenset[str]:
    """Return the operand that the result is written over, of those that nothing reads later; none where it is not."""
    if (op.attrs["fn"] if op.kind == "float.unary" else op.kind) not in model.in_place:
        return frozenset()
    return frozenset([name for name in op.inputs if name in free and own[name] == own[op.name]][:1])


def _needed_tensors(program: Program, model: MemoryModel) -> dict[str, frozenset[str]]:
    """Return, for every tensor, the tensors whose memory it lies in or is computed from when it is read."""
    readers: dict[str, list[Op]] = {name: [] for name in program.tensors}
    for op in reversed(program.ops):
        through = op.kind in model.views and op.kind != "reshape" and op.name not in program.outputs
        for name in op.inputs:
            readers[name] += readers[op.name] if through else [op]
    needed = {name: frozenset([name]) for name in program.tensors}
    for op in program.ops:
        if op.name in program.outputs:
            continue
        if op.kind in model.views:
            needed[op.name] = needed[op.inputs[0]]
        elif op.kind in model.chains and program.tensors[op.name].dtype == "float32":
            read = readers[op.name]
            once = op.kind == "dequantize" or len({o.name for o in read}) == 1
            if once and all(o.kind in model.chains or o.kind == "quantize" for o in read):
                needed[op.name] = frozenset().union(*(needed[name] for name in op.inputs))
    return needed


def _sized(program: Program, batch: int, sizes: Mapping[str, int] | None) -> Program:
    """Return the program with every shape in numbers, also where windows or heads were moved into the batch.

    Args:
        program: checked.
        batch: samples of a call.
        sizes: of named dimensions; None: ``LENGTH``, within their limits.
    """
    program = sized_near(program, LENGTH) if sizes is None else fixed(program, sizes)
    if any(op.kind in ("reshape", "expand") and None in program.tensors[op.name].shape for op in program.ops):
        try:
            return sized(program, batch)
        except InputError:  # it cannot be run either: the engine says why
            pass
    shapes = {name: tuple(batch if d is None else d for d in t.shape) for name, t in program.tensors.items()}
    return replace(program, tensors={name: replace(t, shape=shapes[name]) for name, t in program.tensors.items()})


def reference_bytes(op: Op, tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes that the reference takes for one operation of known sizes, beside its inputs and its output."""
    count = {name: math.prod(known(tensors[name].shape)) for name in (*op.inputs, op.name)}
    return _own(op, tensors, count, "reference", MODELS["reference"])


def _own(
    op: Op,
    tensors: Mapping[str, Tensor],
    count: Mapping[str, int],
    engine: str,
    model: MemoryModel,
    finite: bool = False,
) -> int:
    """Bytes one operation takes beside its inputs, which may hold NaN unless ``finite``, and its output."""
    out, first = count[op.name], count[op.inputs[0]] if op.inputs else 0
    if op.kind.removeprefix("float.") in GATES:
        layers = model.layers or MODELS["reference"].layers
        return (layers.get(op.kind) or layers["float" if op.is_float else "dynamic"]).bytes(op, first, out)
    usual = model.kinds.get(op.kind) or _usual(op, tensors[op.name], model)
    form = _form(op, tensors)
    by_input, by_output = model.kinds.get(finite * "finite " + form, model.kinds.get(form, usual))
    size = by_input * first + by_output * out
    if op.kind in ("conv", "dequantized_conv", "float.conv") and engine == "reference":
        size = max(size, _unfolded(op, first, out))
    elif op.kind in ("float.conv", "float.avg_pool") and engine == "native":
        size += 4 * _window_elements(op, out)
    elif op.kind == "conv" and engine == "onnxruntime":
        size += _gathered(op, out)
    return int(size)


def _usual(op: Op, output: Tensor, model: MemoryModel) -> Bytes:
    if KINDS[op.kind].moves and op.kind != "max_pool":
        return 0, 0
    proof = KINDS[op.kind].proof
    if proof is not None and proof.form(op) in model.kinds:  # "norm"
        return model.kinds[proof.form(op)]
    return model.floats if op.is_float or output.dtype == "float32" else model.integers


def _form(op: Op, tensors: Mapping[str, Tensor]) -> str:
    """Return the entry of ``MemoryModel.kinds`` that describes an operation better than its kind."""
    if op.kind.endswith("adaptive_avg_pool"):
        sizes = tensors[op.inputs[0]].shape[2:]
        even = all(isinstance(n, int) and n % out == 0 for n, out in zip(sizes, op.attrs["output_size"], strict=True))
        return op.kind.replace("adaptive_avg_pool", "even pool") if even else op.kind
    if op.attrs.get("transposed"):
        return {"conv": "transposed", "dequantized_conv": "dequantized transposed"}.get(op.kind, op.kind)
    if op.kind in ("conv", "linear"):
        return "leaky" if "a_neg" in op.arrays else "residual" if len(op.inputs) == 2 else op.kind
    if op.kind == "upsample" and not str(op.attrs["mode"]).startswith("nearest"):
        return "resize"
    return str(op.attrs["fn"]) if op.kind == "float.unary" else op.kind


def _window_elements(op: Op, out: int) -> int:
    """Return the elements of all windows of a convolution or a pooling, side by side."""
    if "kernel" in op.attrs:
        return int(out * math.prod(op.attrs["kernel"]))
    weight, groups = op.arrays["weight"], op.attrs["groups"]
    if op.attrs["transposed"]:
        return int(out // (weight.shape[1] * groups) * weight.size // weight.shape[1])
    return int(out // weight.shape[0] * weight[0].size * groups)


def _gathered(op: Op, out: int) -> int:
    """Return the bytes in which ONNX Runtime gathers the windows of a convolution of integers.

    A pointer to every row of every window where its kernels read those (16 outputs or more of channels in fours, or one
    of each); otherwise the windows themselves, one group after another, and their sums in int32.
    """
    weight, groups, outputs = op.arrays["weight"], op.attrs["groups"], op.arrays["bias"].size
    channels = weight.shape[0] // groups if op.attrs["transposed"] else weight.shape[1]
    rows = math.prod(weight.shape[2:]) * out // outputs
    fours = groups == 1 and outputs >= 16 and channels % 4 == 0
    pointed = fours or channels == outputs // groups == 1 or len(op.inputs) == 2
    return int(8 * rows if pointed else channels * rows + 4 * out)


def _unfolded(op: Op, first: int, out: int) -> int:
    """Return the bytes of a convolution in numpy: its padded or spread input, windows of it, and products, in
    floats."""
    weight, t = op.arrays["weight"], op.attrs
    wide = first * math.prod(t["stride"]) if t["transposed"] else first
    taps = math.prod(weight.shape[2:])
    windows = 0 if weight.shape[1] == 1 and not t["transposed"] else min(wide * taps, max(CHUNK, weight.size))
    return 4 * (wide + windows + 2 * out) + 8 * int(weight.size)


ALWAYS_ADMITTED = 1 << 26
"""Bytes that any call may take whatever is free."""

MAX_SIZES = 4096


class Admission:
    """Checks for every size of call once whether the memory it is predicted to take is free. Thread-safe.

    Args:
        program: checked.
        engine: its name.
        part: samples that the engine runs at once; None: all.
        then: a further check of every size, called once after the memory was.
        exact: the bytes that a call with these inputs takes, where the engine knows them; asked after ``then``.
    """

    def __init__(
        self,
        program: Program,
        engine: str,
        part: int | None = None,
        then: Callable[[Mapping[str, Array]], None] | None = None,
        exact: Callable[[Mapping[str, Array]], int] | None = None,
    ) -> None:
        self._program, self._engine, self._part, self._then, self._exact = program, engine, part, then, exact
        self._known: set[tuple[object, ...]] = set()

    def __call__(self, arrays: Mapping[str, Array]) -> None:
        """Refuse a call with these inputs, or do nothing.

        Raises:
            InputError: it is predicted to take more memory than is free.
        """
        shapes = tuple([(x.shape, x.itemsize) for x in arrays.values()])  # images come as floats or bytes
        if shapes in self._known:
            return
        _refuse_beyond(self.needed(arrays), arrays)
        if self._then is not None:
            self._then(arrays)
        if self._exact is not None:
            _refuse_beyond(self._exact(arrays), arrays)
        if len(self._known) >= MAX_SIZES:
            self._known.clear()
        self._known.add(shapes)

    def needed(self, arrays: Mapping[str, Array]) -> int:
        """Return the bytes that a call with these inputs takes, the inputs included."""
        batch, sizes = batch_size(self._program, arrays) or 1, sizes_of(self._program, arrays)
        if self._part is None or batch <= self._part:
            return running(self._program, self._engine, batch, sizes)
        tensors = fixed(self._program, sizes).tensors
        ends = [tensors[name] for name in (*self._program.inputs, *self._program.outputs, *self._program.outputs)]
        shapes = ([d if isinstance(d, int) else batch for d in t.shape] for t in ends)
        whole = sum(np.dtype(t.dtype).itemsize * math.prod(shape) for t, shape in zip(ends, shapes, strict=True))
        return whole + running(self._program, self._engine, self._part, sizes)


def held(x: Array) -> int:
    """Return the bytes of memory that an array lies in already: fewer than its elements take where they share some."""
    if not x.size:
        return 0
    reached: int = x.itemsize + sum(abs(s) * (n - 1) for s, n in zip(x.strides, x.shape, strict=True))
    return min(x.nbytes, reached)


def _refuse_beyond(needed: int, arrays: Mapping[str, Array]) -> None:
    """Refuse a call for which memory has no room, where it needs so many bytes, its inputs included."""
    sizes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in arrays.items())
    _refuse_where_not_free(needed - sum(map(held, arrays.values())), "this call", sizes[:200])


def _refuse_where_not_free(more: int, what: str, where: str) -> None:
    """Refuse what takes so many bytes more than there are in use, unless they are free or few."""
    free = available_memory() if more > ALWAYS_ADMITTED else None
    if free is not None and more > free:
        told = f"{what} would take about {more >> 20} MiB, and {free >> 20} MiB are free"
        remedy = "give fewer samples or smaller sizes at once, free memory, or raise the container's limit"
        raise InputError(told, where=where, remedy=remedy)


def refuse_tensors(
    program: Program, engines: Iterable[str], batch: int, sizes: Mapping[str, int] | None = None
) -> None:
    """Refuse to compute every tensor of a call on one engine after another where memory has no room.

    Args:
        program: checked.
        engines: their names. All tensors of the first stay while those of each other engine are compared with them.
        batch: number of samples.
        sizes: of named dimensions; None: ``LENGTH``, within their limits.

    Raises:
        InputError: it is predicted to take more memory than is free.
    """
    names = list(engines)
    made = _sized(program, batch, sizes).tensors
    tensors = [made[op.name] for op in program.ops if not KINDS[op.kind].moves]  # what only moves is a view
    kept = sum(np.dtype(t.dtype).itemsize * math.prod(known(t.shape)) for t in tensors)
    needed = max(running(program, name, batch, sizes) for name in names) + min(len(names), 2) * kept
    _refuse_where_not_free(needed, f"every tensor of {batch} samples", ", ".join(names))


def seconds(program: Program) -> float:
    """Return the seconds that one sample takes on the reference at most, roughly: several times what a slow core needs.

    Example:
        >>> seconds(Program({}, (), (), ()))
        0.0
    """
    program = sized_near(program, LENGTH)
    count = {n: math.prod(d if isinstance(d, int) else 1 for d in t.shape) for n, t in program.tensors.items()}
    total = 1e-9 * products(program)
    for op in program.ops:
        first = count[op.inputs[0]] if op.inputs else 0
        total += 1e-4 + 1e-7 * (first + count[op.name])
        if op.kind in ("matmul", "float.matmul"):
            total += 1e-9 * first * int(program.tensors[op.inputs[1]].shape[-1] or 1)
        elif op.kind in ("conv", "float.conv"):
            weight, wide = op.arrays["weight"], math.prod(op.attrs["stride"]) if op.attrs["transposed"] else 1
            total += 1e-8 * math.prod(weight.shape[2:]) * max(first * wide, count[op.name])
        elif "pool" in op.kind and "kernel" in op.attrs:
            total += 1e-8 * sum(op.attrs["kernel"]) * first
        elif op.kind.removeprefix("float.") in GATES:
            weight = op.arrays["weight_ih"]
            total += first / weight.shape[-1] * (2e-4 + 1e-8 * sum(a.size for a in op.arrays.values()))
    return total
