"""OpenVINO IR with FakeQuantize, and with weights as integers, as graphs of ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intact8.errors import EngineError, InputError, in_short
from intact8.regular_file import opened

from .onnx_graph import MOST_NODES, Array, ForeignGraph, Node, Shape

SAME_ENDS = 1e-4
"""Difference of ends of ranges, in steps, that are one."""

SIMPLE = {
    "Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Divide": "Div", "Maximum": "Max", "Minimum": "Min",
    "Relu": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "HSwish": "HardSwish", "Erf": "Erf", "Exp": "Exp",
    "Log": "Log", "Sqrt": "Sqrt", "Abs": "Abs", "Negative": "Neg", "Power": "Pow", "PRelu": "PRelu", "Mish": "Mish",
    "SoftPlus": "Softplus", "Floor": "Floor", "Ceiling": "Ceil", "Swish": "Swish", "Squeeze": "Squeeze",
    "Unsqueeze": "Unsqueeze",
}  # fmt: skip
"""Operation without attributes → operator of ONNX."""


def read_ir(path: Path) -> ForeignGraph:
    """Read an IR.

    Raises:
        EngineError: openvino is not installed.
        InputError: the file is damaged, or has an operation that is not known; names it.
    """
    try:
        import openvino
    except ImportError as error:
        remedy = "pip install 'intact8[openvino]'"
        raise EngineError("openvino is not installed", where=str(path), remedy=remedy) from error
    for file in (path, path.with_suffix(".bin")):
        with opened(file):  # OpenVINO reads by name, and would wait for the end of a pipe
            pass
    try:
        model = openvino.Core().read_model(str(path))
        nodes = model.get_ordered_ops()
    except (RuntimeError, UnicodeDecodeError) as error:
        raise InputError("this is no IR, or a damaged one", where=str(path), why=in_short(error)) from error
    if len(nodes) > MOST_NODES:
        raise InputError(f"{len(nodes)} nodes", where=str(path), why=f"{MOST_NODES} are read at most")
    try:
        return _Translator().graph(nodes)
    except UnicodeDecodeError as error:
        raise InputError("a name in the file is no text", where=str(path), remedy="repair the file") from error


class _Translator:
    """Translates nodes.

    Attributes:
        constants: name → array of what is known.
        integers: name → integers of a weight that are converted to floats, and their zero points.
        sizes: names of sizes that change from call to call.
        same: name → the tensor that it is: what is multiplied by 1.
    """

    def __init__(self) -> None:
        self.constants: dict[str, Array] = {}
        self.integers: dict[str, tuple[str, Array]] = {}
        self.nodes: list[Node] = []
        self.inputs: dict[str, tuple[str, Shape]] = {}
        self.outputs: list[str] = []
        self.sizes: set[str] = set()
        self.same: dict[str, str] = {}

    def graph(self, nodes: Any) -> ForeignGraph:
        for node in nodes:
            kind = node.get_type_name()
            if kind == "Parameter":
                shape = node.output(0).get_partial_shape()
                sizes = tuple(d.get_length() if d.is_static else None for d in shape)
                self.inputs[name_of(node)] = (_dtype(node), sizes)
            elif kind == "Result":
                self.outputs.append(self.reads(node)[0])
            elif kind == "Constant":
                self.constants[name_of(node)] = np.array(node.get_data())
            elif not self._weight(node, kind) and not self._folded(node, kind):
                self._operation(node, kind)
        return ForeignGraph("OpenVINO IR", tuple(self.nodes), self.constants, self.inputs, tuple(self.outputs))

    def reads(self, node: Any) -> list[str]:
        """Return the names of what a node reads."""
        names = (name_of(x.get_node(), x.get_index()) for x in node.input_values())
        return [self.same.get(name, name) for name in names]

    def known(self, node: Any, i: int) -> Array:
        """Return an input that must be a constant."""
        name = self.reads(node)[i]
        if name not in self.constants:
            what = f"{node.get_type_name()} with a computed input {i}"
            raise InputError(
                what, where=node.get_friendly_name(), remedy="fix the sizes of the model: model.reshape(…)"
            )
        return self.constants[name]

    def emit(self, node: Any, kind: str, inputs: list[str], **attrs: Any) -> None:
        """Add an operator for a node."""
        if not self.sizes.isdisjoint(inputs):
            remedy = "fix the sizes of the model: model.reshape(…)"
            raise InputError(f"{kind} of sizes that change", where=node.get_friendly_name(), remedy=remedy)
        outputs = tuple(name_of(node, i) for i in range(node.get_output_size()))
        outputs = outputs[:1] if kind == "MaxPool" else outputs
        self.nodes.append(Node(node.get_friendly_name(), kind, tuple(inputs), outputs, attrs))

    def constant(self, name: str, value: Array) -> str:
        """Store a constant."""
        self.constants[name] = value
        return name

    def _weight(self, node: Any, kind: str) -> bool:
        """Follow integers that are converted to floats, less a zero point, times a scale: a weight on its grid."""
        reads, name = self.reads(node), name_of(node)
        if kind == "Convert" and reads[0] in self.constants and self.constants[reads[0]].dtype in (np.int8, np.uint8):
            self.integers[name] = reads[0], np.zeros(1, np.int64)
            self.constants[name] = self.constants[reads[0]].astype(np.float32)
            return True
        if len(reads) != 2 or reads[0] not in self.integers or reads[1] not in self.constants:
            return False
        source, zero = self.integers[reads[0]]
        if kind == "Subtract":
            self.integers[name] = source, self.constants[reads[1]].astype(np.int64)
            self.constants[name] = self.constants[reads[0]] - self.constants[reads[1]]
            return True
        if kind != "Multiply":
            return False
        self._stored(node, source, self.constants[reads[1]].astype(np.float32), zero)
        return True

    def _stored(self, node: Any, source: str, scale: Array, zero: Array) -> None:
        """Add what dequantizes a stored weight, with the one dimension that scales lie along."""
        q, name = self.constants[source], node.get_friendly_name()
        zero = np.broadcast_to(zero, scale.shape) if zero.size == 1 else zero
        scale = np.broadcast_to(scale, zero.shape) if scale.size == 1 else scale
        axes = [i for i, n in enumerate(scale.shape) if n > 1]
        if len(axes) > 1:  # such a weight cannot be kept; its numbers can
            scale, zero = np.broadcast_to(scale, q.shape), np.broadcast_to(zero, q.shape)
        else:
            scale, zero = _scalar(scale), _scalar(zero)
        grid = [self.constant(f"{name}/scale", scale), self.constant(f"{name}/zero_point", zero.astype(q.dtype))]
        self.emit(node, "DequantizeLinear", [source, *grid], axis=axes[0] if axes else 0)

    def _folded(self, node: Any, kind: str) -> bool:
        """Compute what is known already: shapes that do not change, and operations on constants."""
        import openvino

        reads = self.reads(node)
        if kind == "ShapeOf" and node.input_value(0).get_partial_shape().is_static:
            self.constants[name_of(node)] = np.array(node.input_value(0).get_partial_shape().to_shape(), np.int64)
            return True
        if kind == "FakeQuantize" or not reads or any(name not in self.constants for name in reads):
            return False
        given = [openvino.Tensor(np.array(self.constants[name], order="C")) for name in reads]
        made = [
            openvino.Tensor(x.get_element_type(), x.get_shape())
            for x in node.outputs()
            if x.get_partial_shape().is_static
        ]
        try:
            if len(made) != node.get_output_size() or not node.evaluate(made, given):
                return False
        except RuntimeError as error:
            what = f"{kind} of constants fails"
            raise InputError(what, where=node.get_friendly_name(), why=in_short(error)) from error
        self.constants |= {name_of(node, i): np.array(value.data) for i, value in enumerate(made)}
        return True

    def _operation(self, node: Any, kind: str) -> None:
        if kind == "ShapeOf":  # of which often only the rank is read, and that is known
            self.sizes.add(name_of(node))
        elif kind == "Multiply" and any(
            (self.constants.get(name, np.zeros(1)) == 1).all() for name in self.reads(node)
        ):
            ones = next(name for name in self.reads(node) if name in self.constants)
            self.same[name_of(node)] = next(name for name in self.reads(node) if name != ones)
        elif kind in SIMPLE:
            self.emit(node, SIMPLE[kind], self.reads(node)[: 1 if kind == "Swish" else None])
        elif kind in TRANSLATIONS:
            TRANSLATIONS[kind](self, node, node.get_attributes())
        else:
            what, remedy = f"the operation {kind} is not known", "export the network without it"
            raise InputError(what, where=node.get_friendly_name(), remedy=remedy)


def _dtype(node: Any) -> str:
    """Return numpy's name of the type of an input."""
    try:
        return str(np.dtype(node.get_element_type().to_dtype()))
    except IndexError as error:  # what openvino raises for types that numpy does not have
        what = f"an input of {node.get_element_type().get_type_name()}"
        raise InputError(what, where=name_of(node), remedy="export it with inputs of float32") from error


def name_of(node: Any, output: int = 0) -> str:
    """Return the name of a node's output."""
    name = str(node.get_friendly_name())
    return name if node.get_output_size() == 1 or output == 0 else f"{name}:{output}"


Translation = Callable[[_Translator, Any, Mapping[str, Any]], None]


def _windows(attrs: Mapping[str, Any], where: str) -> dict[str, Any]:
    if str(attrs.get("auto_pad", "explicit")) not in ("explicit", "valid", "notset"):
        raise InputError(f"auto_pad {attrs['auto_pad']}", where=where, remedy="export it with explicit paddings")
    found = {"strides": list(attrs["strides"]), "pads": [*attrs["pads_begin"], *attrs["pads_end"]]}
    return found | ({"dilations": list(attrs["dilations"])} if "dilations" in attrs else {})


def _conv(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    kind, (x, w, *rest) = node.get_type_name(), t.reads(node)
    if rest:
        raise InputError("a convolution with a computed output shape", where=node.get_friendly_name())
    how, groups = _windows(attrs, node.get_friendly_name()), 1
    if kind.startswith("Group"):
        w, groups = _ungrouped(t, w, node.get_friendly_name())
    how |= {"output_padding": list(attrs["output_padding"])} if "output_padding" in attrs else {}
    t.emit(node, "ConvTranspose" if "Backprop" in kind else "Conv", [x, w], group=groups, **how)


def _ungrouped(t: _Translator, w: str, where: str) -> tuple[str, int]:
    """Return the weight of a grouped convolution, (groups, out, in, …), without a dimension of groups; their number."""
    made = next((n for n in t.nodes if w in n.outputs), None)
    if made is None and w in t.constants:
        value = t.constants[w]
        return t.constant(f"{w}/ungrouped", value.reshape(-1, *value.shape[2:])), len(value)
    if made is None or made.kind != "DequantizeLinear":
        raise InputError("a convolution whose weight is computed", where=where, remedy="quantize the float network")
    q, scale, zero = (t.constants[name] for name in made.inputs)
    names = [t.constant(f"{made.inputs[0]}/ungrouped", q.reshape(-1, *q.shape[2:])), *made.inputs[1:]]
    for i, value in ((1, scale), (2, zero)):
        if value.ndim == q.ndim:
            names[i] = t.constant(f"{names[i]}/ungrouped", value.reshape(-1, *q.shape[2:]))
        elif value.size == len(q) and made.attrs["axis"] == 0:
            names[i] = t.constant(f"{names[i]}/ungrouped", np.repeat(value, q.shape[1]))
    t.nodes.append(Node(f"{made.name}/ungrouped", made.kind, tuple(names), (f"{w}/ungrouped",), {"axis": 0}))
    t.nodes.remove(made)
    return f"{w}/ungrouped", len(q)


def _fake_quantize(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    """Translate to QuantizeLinear and DequantizeLinear; of a constant, to its integers and DequantizeLinear."""
    x = t.reads(node)[0]
    low, high, out_low, out_high = (t.known(node, i).astype(np.float64) for i in range(1, 5))
    levels, name = int(attrs["levels"]), node.get_friendly_name()
    if not 2 <= levels <= 256:
        raise InputError(f"FakeQuantize with {levels} levels", where=name, why="programs hold 8 bits")
    step = np.maximum(high - low, 1e-30) / (levels - 1)
    if np.abs(out_low - low).max() > SAME_ENDS * step.max() or np.abs(out_high - high).max() > SAME_ENDS * step.max():
        raise InputError("FakeQuantize that changes the range", where=name, remedy="quantize the float network")
    weight = x in t.constants
    lowest = -(levels // 2) if weight or levels < 256 else 0
    zero = lowest - low / step
    if np.abs(zero - np.rint(zero)).max() > 0.01:
        raise InputError(
            "FakeQuantize in which 0 lies between two integers", where=name, remedy="quantize it there anew"
        )
    zero, dtype = np.rint(zero).astype(np.int64), np.int8 if lowest else np.uint8
    if not weight:
        grid = [
            t.constant(f"{name}/scale", _scalar(step)),
            t.constant(f"{name}/zero_point", _scalar(zero).astype(dtype)),
        ]
        q = f"{name}/integers"
        t.nodes.append(Node(f"{name}/quantize", "QuantizeLinear", (x, *grid), (q,), {"axis": 1}))
        t.emit(node, "DequantizeLinear", [q, *grid], axis=1)
        return
    integers = np.clip(np.rint(t.constants[x] / step) + zero, lowest, lowest + levels - 1).astype(dtype)
    t._stored(node, t.constant(f"{name}/integers", integers), step.astype(np.float32), zero)


def _scalar(value: Array) -> Array:
    return value.reshape(()) if value.size == 1 else value.reshape(-1)


def _matmul(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    if attrs.get("transpose_a"):
        raise InputError("a product with a turned first factor", where=node.get_friendly_name())
    t.emit(node, "MatMul", t.reads(node), transB=int(attrs.get("transpose_b", False)))


def _pool(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    how = {**_windows(attrs, node.get_friendly_name()), "kernel_shape": list(attrs["kernel"])}
    ceil = int(str(attrs["rounding_type"]).startswith("ceil"))
    kind = node.get_type_name()
    include = {} if kind == "MaxPool" else {"count_include_pad": int(not attrs["exclude-pad"])}
    t.emit(node, "MaxPool" if kind == "MaxPool" else "AveragePool", t.reads(node), ceil_mode=ceil, **how, **include)


def _reduce_mean(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    t.emit(node, "ReduceMean", t.reads(node), keepdims=int(attrs["keep_dims"]))


def _transpose(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    t.emit(node, "Transpose", t.reads(node)[:1], perm=t.known(node, 1).tolist())


def _reshape(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    t.known(node, 1)
    t.emit(node, "Reshape", t.reads(node), allowzero=int(not attrs["special_zero"]))


def _slice(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    x, start, stop, step, *axes = t.reads(node)
    t.emit(node, "Slice", [x, start, stop, axes[0] if axes else "", step])


def _strided_slice(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    if any(any(attrs[key]) for key in ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")):
        raise InputError("a slice that adds or drops dimensions", where=node.get_friendly_name())
    start, stop = t.known(node, 1).astype(np.int64), t.known(node, 2).astype(np.int64)
    start = np.where(_mask(attrs["begin_mask"], len(start)), 0, start)
    stop = np.where(_mask(attrs["end_mask"], len(stop)), np.iinfo(np.int32).max * 2, stop)
    name, axes = node.get_friendly_name(), np.arange(len(start))
    names = [t.constant(f"{name}/{key}", v) for key, v in (("start", start), ("stop", stop), ("axes", axes))]
    step = t.reads(node)[3:4]
    t.emit(node, "Slice", [t.reads(node)[0], *names, *step])


def _mask(mask: Any, size: int) -> Array:
    return np.array([bool(v) for v in [*mask, *[0] * size][:size]])


def _split(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    axis, reads = int(t.known(node, 1)), t.reads(node)
    t.emit(node, "Split", [reads[0], *reads[2:3]], axis=axis)


def _with_attributes(kind: str, **names: str) -> Translation:
    """Return the translation to an operator whose attributes have other names."""

    def translate(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
        t.emit(node, kind, t.reads(node)[:1], **{new: attrs[old] for new, old in names.items()})

    return translate


def _gelu(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    tanh = str(attrs.get("approximation_mode", "erf")).lower() == "tanh"
    t.emit(node, "Gelu", t.reads(node), approximate="tanh" if tanh else "none")


def _normalize(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    """Translate MVN over the last dimension; what scales it follows as operators of its own."""
    axes, rank = t.known(node, 1).tolist(), len(node.input_value(0).get_partial_shape())
    last = node.input_value(0).get_partial_shape()[rank - 1]
    inside = str(attrs["eps_mode"]).lower().startswith("inside")
    if [a % rank for a in axes] != [rank - 1] or not attrs["normalize_variance"] or not inside or not last.is_static:
        raise InputError("MVN over other dimensions than the last", where=node.get_friendly_name())
    ones = t.constant(f"{node.get_friendly_name()}/ones", np.ones(last.get_length(), np.float32))
    t.emit(node, "LayerNormalization", [t.reads(node)[0], ones], axis=-1, epsilon=attrs["eps"])


def _attention(t: _Translator, node: Any, attrs: Mapping[str, Any]) -> None:
    """Translate softmax(q·kᵀ·scale + mask)·v to its operators."""
    (q, k, v, *rest), name = t.reads(node), node.get_friendly_name()
    width = node.input_value(0).get_partial_shape()[-1]
    if attrs["causal"] or not width.is_static:
        what = "causal attention" if attrs["causal"] else "attention over a size that changes"
        raise InputError(what, where=name, remedy="export the network with products and softmax")
    scale = t.known(node, 4) if len(rest) > 1 else np.array(width.get_length() ** -0.5, np.float32)
    steps = [("MatMul", [q, k], {"transB": 1}), ("Mul", ["", t.constant(f"{name}/scale", scale)], {})]
    if rest and (t.constants.get(rest[0], np.ones(1)) != 0).any():
        steps.append(("Add", ["", rest[0]], {}))
    steps.append(("Softmax", [""], {"axis": -1}))
    made = ""
    for i, (kind, reads, how) in enumerate(steps):
        inputs, made = tuple(x or made for x in reads), f"{name}/{kind}_{i}"
        t.nodes.append(Node(made, kind, inputs, (made,), how))
    t.emit(node, "MatMul", [made, v])


TRANSLATIONS: dict[str, Translation] = {
    **dict.fromkeys(("Convolution", "GroupConvolution", "ConvolutionBackpropData"), _conv),
    "FakeQuantize": _fake_quantize,
    "MatMul": _matmul,
    "ScaledDotProductAttention": _attention,
    **dict.fromkeys(("MaxPool", "AvgPool"), _pool),
    "ReduceMean": _reduce_mean,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    **dict.fromkeys(("Split", "VariadicSplit"), _split),
    "Gather": lambda t, node, attrs: t.emit(node, "Gather", t.reads(node)[:2], axis=int(t.known(node, 2))),
    **dict.fromkeys(("SoftMax", "Softmax"), _with_attributes("Softmax", axis="axis")),
    "Concat": lambda t, node, attrs: t.emit(node, "Concat", t.reads(node), axis=attrs["axis"]),
    "Clamp": _with_attributes("Clip", min="min", max="max"),
    "HSigmoid": lambda t, node, attrs: t.emit(node, "HardSigmoid", t.reads(node)[:1], alpha=1 / 6, beta=0.5),
    "Gelu": _gelu,
    "MVN": _normalize,
}
"""Operation → what translates it."""
