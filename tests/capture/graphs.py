"""Hand-built graphs for tests of fusion and placement, with tensors to go with them."""

from __future__ import annotations

from typing import Any

import torch

from intact8.capture.graph import Graph, Node


class Build:
    """Adds nodes one by one; every method returns the name of the node it made."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.tensors: dict[str, torch.Tensor] = {}

    def node(self, name: str, op: str, *inputs: str, shape: Any = None, **fields: Any) -> str:
        shape = self.graph.nodes[inputs[0]].shape if shape is None else shape
        attrs, params = fields.pop("attrs", {}), fields.pop("params", {})
        module = fields.pop("module", name.rpartition(".")[0])
        self.graph.nodes[name] = Node(name, op, list(inputs), attrs, params, module, shape=shape, **fields)
        return name

    def input(self, name: str = "x", shape: Any = (None, 4, 8, 8), dtype: str = "float32") -> str:
        self.node(name, "input", shape=shape, dtype=dtype, attrs={"index": len(self.graph.inputs), "key": name})
        self.graph.inputs.append(name)
        return name

    def constant(self, name: str, value: torch.Tensor) -> str:
        self.tensors[name] = value
        return self.node(name, "constant", shape=tuple(value.shape), params={"value": name})

    def conv(self, name: str, x: str, *, residual: str | None = None) -> str:
        self.tensors[f"{name}.weight"] = torch.randn(4, 4, 1, 1)
        attrs = {
            "stride": [1, 1],
            "padding": [0, 0],
            "dilation": [1, 1],
            "output_padding": [0, 0],
            "groups": 1,
            "transposed": False,
        }
        inputs = [x] if residual is None else [x, residual]
        return self.node(
            name, "conv", *inputs, attrs=attrs, params={"weight": f"{name}.weight"}, module=name, module_type="Conv2d"
        )

    def linear(self, name: str, x: str, shape: Any = (None, 4)) -> str:
        self.tensors[f"{name}.weight"] = torch.randn(shape[-1], 4)
        params = {"weight": f"{name}.weight"}
        return self.node(name, "linear", x, shape=shape, params=params, module=name, module_type="Linear")

    def bn(self, name: str, x: str) -> str:
        roles = ("weight", "bias", "running_mean", "running_var")
        for role in roles:
            self.tensors[f"{name}.{role}"] = torch.rand(4) + 0.5
        params = {role: f"{name}.{role}" for role in roles}
        return self.node(
            name,
            "batch_norm",
            x,
            attrs={"eps": 1e-5, "momentum": 0.1},
            params=params,
            module=name,
            module_type="BatchNorm2d",
        )

    def relu(self, name: str, x: str) -> str:
        return self.node(name, "relu", x)

    def clamp(self, name: str, x: str, low: float | None, high: float | None) -> str:
        return self.node(name, "clamp", x, attrs={"min": low, "max": high})

    def leaky(self, name: str, x: str, slope: float = 0.1) -> str:
        return self.node(name, "leaky_relu", x, attrs={"slope": slope})

    def prelu(self, name: str, x: str, slopes: int) -> str:
        self.tensors[f"{name}.weight"] = torch.linspace(0.1, 0.4, slopes)
        return self.node(name, "prelu", x, params={"weight": f"{name}.weight"})

    def unary(self, name: str, x: str, fn: str) -> str:
        return self.node(name, "unary", x, attrs={"fn": fn})

    def affine(self, name: str, x: str, mul: float, add: float) -> str:
        return self.node(name, "affine_scalar", x, attrs={"mul": mul, "add": add})

    def pool(self, name: str, x: str) -> str:
        attrs = {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
        return self.node(name, "max_pool", x, attrs=attrs, module=name, module_type="MaxPool2d")

    def mean(self, name: str, x: str, dims: tuple[int, ...] = (2, 3)) -> str:
        shape = tuple(s for d, s in enumerate(self.graph.nodes[x].shape) if d not in dims)
        return self.node(name, "mean", x, shape=shape, attrs={"dims": list(dims), "keepdim": False})

    def cat(self, name: str, *xs: str) -> str:
        shape = list(self.graph.nodes[xs[0]].shape)
        shape[1] = sum(self.graph.nodes[x].shape[1] or 0 for x in xs)
        return self.node(name, "cat", *xs, shape=tuple(shape), attrs={"axis": 1})

    def softmax(self, name: str, x: str) -> str:
        return self.node(name, "softmax", x, attrs={"axis": 1})

    def done(self, *outputs: str) -> Graph:
        self.graph.outputs = list(outputs)
        return self.graph
