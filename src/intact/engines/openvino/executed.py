"""What a compiled model executes, as its runtime graph tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PRODUCTS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
"""Kinds of OpenVINO's nodes that multiply activations with weights."""


@dataclass(frozen=True)
class Node:
    """A node of the runtime graph.

    Attributes:
        kind: OpenVINO's name of what it does: "Convolution", "Subgraph", …
        kernel: OpenVINO's name of the kernel, with its precision: "brgconv_avx512_I8".
        names: friendly names of the nodes of the model that were fused into it, in their order.
    """

    kind: str
    kernel: str
    names: tuple[str, ...]

    @property
    def exact_product(self) -> bool:
        """Whether it is a product in a kernel whose sums are exact."""
        return self.kind in PRODUCTS and trusted(self.kernel)


def trusted(kernel: str) -> bool:
    """Whether products in this kernel are exact: int8, and not by gemm, which gets grouped ones wrong."""
    return kernel.endswith("_I8") and "gemm" not in kernel.removeprefix("brgemm")


def executed(compiled: Any) -> list[Node]:
    """The nodes of an ``openvino.CompiledModel``."""
    found = []
    for node in compiled.get_runtime_model().get_ops():
        kind, kernel, names = (
            str(node.get_rt_info()[key].astype(str)) for key in ("layerType", "primitiveType", "originalLayersNames")
        )
        found.append(Node(kind, kernel, tuple(name.split("/Dequantization")[0] for name in names.split(","))))
    return found


__all__ = ["PRODUCTS", "Node", "executed", "trusted"]
