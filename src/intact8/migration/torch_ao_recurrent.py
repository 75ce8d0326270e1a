"""LSTM, GRU, RNN and embeddings of torch.ao, dynamic and static, as layers of torch whose weights have integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from intact8.errors import InputError
from intact8.migration.description import After, Description
from intact8.migration.grids import Mark, WeightGrid
from intact8.migration.layers import REQUANTIZE, Weights
from intact8.migration.observers import is_dynamic, is_float, quantized_weight, weight_grid, weight_observer

RECURRENT = ("LSTM", "GRU", "LSTMCell", "GRUCell", "RNNCell")
"""Classes that are dynamic in torch.ao and have a class of the same name in torch."""

EMBEDDINGS = ("Embedding", "EmbeddingBag")


class Sequences:
    """Builds recurrent layers and embeddings, and enters their weights.

    Args:
        described: the description of the network.
        weights: where integers are entered.
    """

    def __init__(self, described: Description, weights: Weights) -> None:
        self.described, self.weights = described, weights

    def converted(self, path: str, m: Any) -> nn.Module:
        """Return the layer of a converted dynamic one.

        Raises:
            InputError: its weights are not integers of 8 bits.
        """
        dtype = str(getattr(m, "dtype", None) or getattr(m, "weight_dtype", torch.qint8)).removeprefix("torch.")
        if dtype != "qint8":
            remedy = "quantize the float model with intact8.quantize"
            raise InputError(f"weights of {dtype}", where=path, why="programs hold weights in 8 bits", remedy=remedy)
        stored = {name: quantized_weight(value, path) for name, value in m.get_weight().items()}
        return self._layer(path, m, stored, m.get_bias())

    def prepared(self, path: str, m: nn.Module, qconfig: Any) -> nn.Module | None:
        """Return the layer of a float one whose activations are to be quantized when it runs; None for other ones."""
        if not is_dynamic(qconfig.activation()) or is_float(qconfig.weight()):
            return None
        parameters = dict(m.named_parameters(recurse=False))
        stored = {
            name: weight_grid(weight, weight_observer(qconfig, weight), path)
            for name, weight in parameters.items()
            if name.startswith("weight")
        }
        return self._layer(path, m, stored, {n: p for n, p in parameters.items() if n.startswith("bias")})

    def static(self, path: str, m: Any, marks_of: Any) -> nn.Module:
        """Return the LSTM of a quantizable one, prepared or converted.

        Inside of it this package has scales of its own: hidden states in steps of 1/127, and gates in steps of a table.

        Args:
            path: of the module.
            m: the module.
            marks_of: gives the mark of a functional that is watched or converted.
        """
        stored: dict[str, WeightGrid] = {}
        biases: dict[str, Tensor | None] = {}
        for i, layer in enumerate(m.layers):
            for direction, suffix in ((layer.layer_fw, ""), (getattr(layer, "layer_bw", None), "_reverse")):
                if direction is None:
                    continue
                for role, gates in (("ih", direction.cell.igates), ("hh", direction.cell.hgates)):
                    name = f"{role}_l{i}{suffix}"
                    stored[f"weight_{name}"], biases[f"bias_{name}"] = _gates(gates, path)
        made = self._layer(path, m, stored, biases, "LSTM")
        self.described.notes.append(
            f"{path}: the scales inside this LSTM are this package's; its weights and the scale of its output are kept"
        )
        mark: Mark | None = marks_of(f"{path}.output", m.layers[-1].layer_fw.cell.ogate_cy)
        if mark is not None:
            made.register_forward_hook(After(mark))
        return made

    def embedding(self, path: str, m: Any, rows: Tensor) -> nn.Module:
        """Return the embedding with these rows, which are float32 unless they may be quantized anew.

        torch.ao gives every row a zero point that is not an integer, so no row of int8 has the same numbers. The rows
        of an EmbeddingBag are always float32.
        """
        bag = "Bag" in type(m).__name__
        if not bag and self.weights.may_change(path):
            grid = self.weights.requantized(path, rows.numpy(), 0)
            rows = self.weights.enter(f"{path}.weight", grid)
            self.described.dynamic.add(path)
        else:
            why = "its rows have zero points that are not integers, so their numbers are kept as float32"
            self.described.notes.append(f"{path}: {why}" + ("" if bag else f"; {REQUANTIZE}"))
        count, width = rows.shape
        if bag:
            more = {"mode": m.mode, "include_last_offset": m.include_last_offset}
            return nn.EmbeddingBag(count, width, _weight=rows, **more)
        return nn.Embedding(count, width, padding_idx=getattr(m, "padding_idx", None), _weight=rows)

    def _layer(
        self,
        path: str,
        m: Any,
        stored: Mapping[str, WeightGrid],
        biases: Mapping[str, Tensor | None],
        kind: str = "",
    ) -> nn.Module:
        """Return a recurrent layer of torch with the sizes of another one, and the given weights and biases."""
        kind = kind or type(m).__name__
        bias = any(value is not None for value in biases.values())
        made: nn.Module
        if kind.endswith("Cell"):
            more = {"nonlinearity": m.nonlinearity} if kind == "RNNCell" else {}
            made = getattr(nn, kind)(m.input_size, m.hidden_size, bias=bias, **more)
        else:
            sizes = {name: getattr(m, name) for name in ("num_layers", "batch_first", "bidirectional")}
            made = getattr(nn, kind)(m.input_size, m.hidden_size, bias=bias, dropout=float(m.dropout), **sizes)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                value = self.weights.enter(f"{path}.{name}", stored[name]) if name in stored else biases[name]
                parameter.zero_() if value is None else parameter.copy_(value.detach())
        return made.eval()


def _gates(gates: Any, path: str) -> tuple[WeightGrid, Tensor | None]:
    """Return the integers and the bias of the linear layers of all gates, which may be one layer or four."""
    if not isinstance(gates, nn.ModuleDict):
        return _linear(gates, path)
    parts = [_linear(gate, path) for gate in gates.values()]
    grids, biases = [grid for grid, _ in parts], [bias for _, bias in parts if bias is not None]
    integers = np.concatenate([grid.integers for grid in grids])
    rows = [len(grid.integers) for grid in grids]
    scale, zero = (
        np.concatenate([np.broadcast_to(getattr(g, name), (n,)) for g, n in zip(grids, rows, strict=True)])
        for name in ("scale", "zero_point")
    )
    return WeightGrid(path, integers, scale, zero), torch.cat(biases) if len(biases) == len(parts) else None


def _linear(m: Any, path: str) -> tuple[WeightGrid, Tensor | None]:
    """Return the integers and the bias of a linear layer: converted, in training or prepared."""
    if not isinstance(m.weight, Tensor):
        return quantized_weight(m.weight(), path), m.bias()
    if hasattr(m, "weight_fake_quant"):
        return weight_grid(m.weight.detach(), m.weight_fake_quant, path), m.bias
    return weight_grid(m.weight, weight_observer(m.qconfig, m.weight), path), m.bias
