"""What a compiled model executes, as its runtime graph tells.

The bounds of the certificates (``intact8.arithmetic.tie_free``) hold for these evaluations, and for no others:

- a product's sums in an int8 kernel: integers, exact. (What one of ``PRODUCTS`` does in float32 is built from integers
  whose sums stay below 2²⁴: every partial sum is exact, in any order, unless a kernel transforms its inputs, as
  Winograd's do.)
- an add: q_j − z_j are integers, the factors α_j one float32 each; two products and a sum are at most three roundings.
- a mul: |q − z| ≤ 255, so the product is below 2¹⁶ and exact.
- a mean: sums of at most 2²⁴/255 integers are exact in float32 in any order; times 1/n are two roundings.
- the end of each, R(x·γ + δ): γ and δ are one rounding each, the product and the sum another one each.

All in float32. The result v is less than 256 steps, so n roundings are off by n·2⁻²⁴·256 at most, plus those of what
cancels in it, which the certificate counts; as long as this stays below 1/(2b), R(v) is the integer of the
definition, since no exact result is nearer to a tie. So an operation is accepted where the node that multiplies and the
node that rounds are found in ``ARITHMETIC`` or in the end of a product's kernel, which compute in float32 one operation
after the other, or in a Reduce; what OpenVINO's pooling would do with uint8 (it rounds twice), or a kernel nothing is
known of, is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
"""Kinds of OpenVINO's nodes that multiply activations with weights."""

ARITHMETIC = frozenset({"Subgraph", "Eltwise", "FakeQuantize"})
"""Those that compute element by element."""

MOVES = frozenset({"Transpose", "Reshape", "Reorder", "Concatenation", "StridedSlice", "Split", "Broadcast"})
"""Those that compute nothing: where they stand for what was asked for, it is done before them."""

FLOAT32 = frozenset({"f32", "u8", "i8"})
"""Precisions of nodes that compute in float32; bytes are what they read."""


FLOAT_PRODUCT = "product of float32 integers"
"""What stands for a kind where a product is built from integers in float32."""

SUM = ".sum"
"""What is added to the label of an op for the node that rounds the exact sums of a product: no factor crosses it."""

END = ".end"
"""What is added to the label of an op for the node that rounds its result."""


@dataclass(frozen=True)
class Node:
    """A node of the runtime graph.

    Attributes:
        kind: OpenVINO's name of what it does: "Convolution", "Subgraph", …
        kernel: OpenVINO's name of the kernel, with its precision: "brgconv_avx512_I8".
        precision: of what it computes with: "u8", "f32", …
        names: friendly names of the nodes of the model that were fused into it, in their order.
        before: the place, in the list of all nodes, of what a node of MOVES reads first; its own place elsewhere.
    """

    kind: str
    kernel: str
    precision: str
    names: tuple[str, ...]
    before: int

    @property
    def exact_product(self) -> bool:
        """Whether it is a product in a kernel whose sums are exact."""
        return self.kind in PRODUCTS and trusted(self.kernel)

    def evaluates(self, kind: str) -> bool:
        """Return whether it is one of the evaluations above of an op of that kind, or of FLOAT_PRODUCT."""
        if self.precision not in FLOAT32 or "wino" in self.kernel:
            return False
        if kind == FLOAT_PRODUCT:
            return self.kind in PRODUCTS and self.kernel.endswith("_f32")
        return self.kind in ARITHMETIC or self.kind in PRODUCTS or (self.kind == "Reduce" and kind == "mean")


def trusted(kernel: str) -> bool:
    """Return whether products in this kernel are exact: int8, and not by gemm, which gets grouped ones wrong."""
    return kernel.endswith("_I8") and "gemm" not in kernel.removeprefix("brgemm")


def executed(compiled: Any) -> list[Node]:
    """Return the nodes of an ``openvino.CompiledModel``."""
    nodes = compiled.get_runtime_model().get_ops()
    places = {node.get_friendly_name(): i for i, node in enumerate(nodes)}
    found = []
    for i, node in enumerate(nodes):
        info = node.get_rt_info()
        kind = str(info["layerType"].astype(str))
        if kind == "Const":  # most of the nodes, and none that is asked for
            found.append(Node(kind, "", "", (), i))
            continue
        kernel, precision, names = (
            str(info[key].astype(str)) for key in ("primitiveType", "runtimePrecision", "originalLayersNames")
        )
        before = places[node.input_value(0).get_node().get_friendly_name()] if kind in MOVES else i
        parts = tuple(name.split("/Dequantization")[0] for name in names.split(","))
        found.append(Node(kind, kernel, precision, parts, before))
    return found


def unknown(nodes: list[Node], kinds: Mapping[str, str]) -> list[str]:
    """Those names of the model that no node has, or one that does not evaluate what it should.

    Args:
        nodes: what is executed.
        kinds: name → kind of the op it belongs to.
    """
    places: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        for name in node.names:
            places.setdefault(name, []).append(i)
    lost = []
    for name, kind in kinds.items():
        found = _computing(nodes, places.get(name, ()))
        if not found and kind == "mean":  # moved before a permutation, where it gets another name
            found = [node for node in _computing(nodes, places.get(name + END, ())) if node.kind == "Reduce"]
        if not found and kind == FLOAT_PRODUCT:  # a bias took the product's place in the list of names
            found = [node for node in _computing(nodes, places.get(name + SUM, ())) if node.kind in PRODUCTS]
        if not found or not all(node.evaluates(kind) for node in found):
            lost.append(name)
    return lost


def _computing(nodes: list[Node], places: Iterable[int]) -> list[Node]:
    """Return the nodes at these places, or what those of them read that compute nothing."""
    found = []
    for place in places:
        while nodes[place].kind in MOVES and nodes[place].before != place:
            place = nodes[place].before
        found.append(nodes[place])
    return found
