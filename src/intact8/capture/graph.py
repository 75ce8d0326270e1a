"""The graph of a captured network: float operations on named tensors.

A :class:`Graph` is what capture makes, fusion simplifies and placement cuts into integer and float parts. It holds no
weights: ``params`` name the entries of the model's state dict.

An operation has the name, inputs, attributes and roles of the opset's kind (see :mod:`intact8.capture.operations`).
Shapes have ``None`` for the dynamic batch dimension, attributes that hold shapes write ``-1`` for it. Any other
dimension that changes from call to call has a name: in shapes, in the ``shape`` of ``reshape`` and ``expand``, and as
the ``end`` of a ``slice``. An ``expand`` of a constant, which has no batch, may have a second input: its -1 is the
length of dimension 0 of that. Operations that exist in graphs alone:

============ ======= ==================================================================================================
op           inputs  attrs; params
============ ======= ==================================================================================================
input        –       index (position among the flattened inputs), key (its name)
batch_norm   x       eps, momentum (float or None); weight?, bias?, running_mean, running_var
dropout      x       p, feature: bool
table        x       chain: [{"op", "attrs"}, …], functions of one number in order; chain.0.weight … (slopes of PReLUs)
requantize   x       – (from one quantization point to another)
============ ======= ==================================================================================================

After fusion, ``conv``, ``linear``, ``add``, ``mul``, ``mean`` and the average pools may carry ``act`` ({"kind":
"clamp", "min", "max"} or {"kind": "leaky_relu", "slope"} or {"kind": "prelu"} with the parameter ``act.weight``).
``conv`` and ``linear`` may also carry ``bn`` ({"eps", "momentum"} with the parameters ``bn.weight?``, ``bn.bias?``,
``bn.running_mean``, ``bn.running_var``) and a second input, the residual, which is added after batch norm and before
the activation. A batch norm folded into the conv or linear behind it is ``pre`` ({"eps", "momentum"} with the
parameters ``pre.weight?`` …). ``scale_shift`` is a batch norm, or a constant product per channel, that stands alone: a
depthwise 1×1 convolution. ``matmul`` may carry ``mul``, a positive factor of its result. A second, boolean input of
``softmax`` is true where a position counts nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intact8.arithmetic.dimensions import Dim, SizeError, fits, has_names, measure, resolve, show
from intact8.capture.operations import FLOAT_KINDS, INTEGER_KINDS
from intact8.errors import InputError
from intact8.opset.kind import Kind
from intact8.opset.op import INTERPOLATING, Op, Tensor


def unique(name: str, taken: Container[str]) -> str:
    """Return ``name``, or ``name_1``, ``name_2`` … where it is taken.

    Example:
        >>> unique("relu", {"relu", "relu_1"})
        'relu_2'
    """
    wish, count = name, 0
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    return name


@dataclass
class Node:
    """One operation with one output tensor of the same name.

    Attributes:
        name: unique and readable: the module's path for a module's own op (``layer1.0.conv1``), the path of the
            surrounding module and the op otherwise (``layer1.0.add``), ``_1``, ``_2`` … appended where taken.
        op: the operation.
        inputs: names of the producing nodes.
        attrs: JSON values.
        params: role → name in the model's state dict (or in ``Graph.constants``).
        module: path of the owning module, "" for the root.
        shape: output shape, ``None`` for the dynamic batch dimension, a name for any other that changes.
        dtype: torch dtype name without prefix, ``float32``.
        source: for fused nodes, the names of the nodes that went into it, in order.
    """

    name: str
    op: str
    inputs: list[str] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    module: str = ""
    module_type: str = ""
    shape: tuple[Dim, ...] = ()
    dtype: str = "float32"
    source: list[str] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        """Return whether values move and none is computed: the output shares scale and zero point with the inputs."""
        kind = FLOAT_KINDS.get(self.op)
        moves = kind is not None and kind.moves and self.op != "constant"
        return self.op == "dropout" or (moves and self.attrs.get("mode") not in INTERPOLATING)

    @property
    def integer_kind(self) -> Kind | None:
        """Return the kind that computes it on integers; None where there is none, or values move."""
        linear = self.op == "upsample" and self.attrs["mode"] in ("linear", "bilinear", "trilinear")
        return INTEGER_KINDS.get("resize_linear" if linear else self.op)

    @property
    def shares_grid(self) -> bool:
        """Return whether the output, on integers, has the scale and zero point of the inputs."""
        return self.moves or (self.integer_kind is not None and self.integer_kind.shares_grid)

    @property
    def parts(self) -> list[str]:
        """Return the names of the captured nodes inside this one."""
        return list(self.source) or [self.name]


def _works_along_batch(node: Node, given: Node) -> bool:
    """Return whether elements of an operand that differ in the batch dimension meet, or move along it."""
    kind = FLOAT_KINDS.get(node.op)
    if kind is None or None not in given.shape:
        return False
    if node.op == "reduce" and node.attrs.get("dims") == []:
        return True
    op, operand = Op(node.name, kind.name, (), node.attrs), Tensor(given.name, given.dtype, given.shape)
    return kind.works_along(op, operand, given.shape.index(None))


@dataclass
class Graph:
    """Nodes in execution order, with the network's inputs and outputs.

    Attributes:
        nodes: name → node, topologically ordered.
        inputs: names of the input nodes, in the order of the flattened example inputs.
        outputs: names of the nodes returned, in the order of the flattened outputs (a node may occur twice).
        structure: how the outputs nest, as JSON: an int is an index into ``outputs``; {"list": […]}, {"tuple": […]},
            {"dict": {key: …}}, {"pairs": [[key, …]]} where a key is a whole number or a tuple (a list here),
            {"object": class name, "fields": {key: …}} for dataclasses and named tuples;
            {"none": true}; {"value": …} for numbers and strings.
        dynamic_batch: whether dimension 0 may change from call to call.
        dimensions: name of every other dimension that may → its least and its largest size; None: no limit.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    structure: Any = 0
    dynamic_batch: bool = True
    dimensions: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def sized(self, inputs: Sequence[Any]) -> list[Node]:
        """Return the nodes, in order, with sizes in place of the names of dimensions.

        Args:
            inputs: the tensors of a call, in the order of ``inputs``.

        Raises:
            InputError: a shape is not the graph's, a dimension has two sizes, or one outside its bounds.
        """
        shapes = [(n, self.nodes[n].shape, tuple(x.shape)) for n, x in zip(self.inputs, inputs, strict=True)]
        for name, shape, given in shapes:
            if not fits(shape, given):
                remedy = (
                    "resize it, prepare the model with inputs of this shape, or name what may change in "
                    "dynamic_shapes, unless a convolution, a pool or another layer needs its size"
                )
                raise InputError(f"expected shape {show(shape)}, got {given}", where=name, remedy=remedy)
        if not self.dimensions:
            return list(self.nodes.values())
        try:
            sizes = measure(shapes, self.dimensions)
        except SizeError as error:
            what, where, remedy = error.args
            raise InputError(what, where=where, remedy=remedy) from error
        return [
            replace(node, attrs=resolve(node.attrs, sizes)) if has_names(node.attrs) else node
            for node in self.nodes.values()
        ]

    def users(self) -> dict[str, list[str]]:
        """Return the consumers of every node by name, one entry per use; network outputs are not users."""
        out: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self:
            for name in node.inputs:
                out[name].append(node.name)
        return out

    @property
    def mixes_samples(self) -> bool:
        """Whether an operation works along the batch, as a softmax over samples does."""
        return any(_works_along_batch(node, self.nodes[name]) for node in self for name in node.inputs)

    def held(self) -> frozenset[str]:
        """Return the names of what depends on no input: constants, and what is computed of them alone."""
        return frozenset(self.nodes.keys() - self.depending_on(*self.inputs))

    def depending_on(self, *names: str) -> set[str]:
        """Return the names of operations and of all that depends on them."""
        found = set(names)
        for node in self:
            if found.intersection(node.inputs):
                found.add(node.name)
        return found

    def origin(self, name: str) -> Node:
        """Return the node that gives ``name`` its scale: back through what shares the grid of its only input."""
        node = self.nodes[name]
        while node.shares_grid and node.op != "cat":
            node = self.nodes[node.inputs[0]]
        return node

    def copy(self) -> Graph:
        """Return a copy whose nodes can be edited without touching this graph."""
        nodes = {}
        for name, node in self.nodes.items():
            inputs, source = [*node.inputs], [*node.source]
            nodes[name] = replace(node, inputs=inputs, attrs={**node.attrs}, params={**node.params}, source=source)
        return replace(
            self, nodes=nodes, inputs=[*self.inputs], outputs=[*self.outputs], dimensions={**self.dimensions}
        )
