"""LSTM, GRU and RNN layers: the bits of ``intact8.arithmetic.recurrent``, with gradients.

Gradients pass straight through roundings; the derivative of a table is that of its function.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from intact8.arithmetic import recurrent
from intact8.arithmetic.dynamic_torch import accumulate, linear, quantize_rows
from intact8.arithmetic.recurrent import HIDDEN, REACH, STEPS, state_count
from intact8.capture.graph import Node
from intact8.errors import InputError
from intact8.machine import trim_behind
from intact8.simulation.scales.quant_points import WeightPoint
from intact8.simulation.weights.grid import on_grid
from intact8.simulation.weights.quantize import weight_limits
from intact8.train.learned_scale import LearnedScales
from intact8.train.straight_through import round_ste

SUFFIXES = ("", ".reverse")
WEIGHTS = ("weight_ih", "weight_hh")


def is_relu(node: Node) -> bool:
    """Return whether hidden states are unbounded."""
    return node.attrs.get("nonlinearity") == "relu"


def weight_names(node: Node) -> list[str]:
    """Return the names of a layer's weights in the order of the scales of its weight point."""
    return [node.params[role + d] for d in SUFFIXES[: 1 + node.attrs["bidirectional"]] for role in WEIGHTS]


def weight_scales(node: Node, tensors: Mapping[str, Tensor], point: WeightPoint, fresh: bool = False) -> Tensor:
    """Return the scales of all rows of all weights, float32, joined in the order of :func:`weight_names`.

    Learned scales come from their parameters, those that are frozen after that or given stay, all others (``fresh``:
    all) follow the weights.
    """
    learner = None if fresh else point.learner
    if point.source == "held" and (learner is not None or not (fresh or point.free)):
        return point.scale
    weights = [tensors[name] for name in weight_names(node)]
    parts = list(learner) if isinstance(learner, LearnedScales) and point.source == "learned" else [None] * len(weights)
    return torch.cat([point.scales_of(weight, part) for weight, part in zip(weights, parts, strict=True)])


class Direction:
    """One direction as in :class:`intact8.arithmetic.recurrent.Layer`; weights are float32 integers with gradients."""

    def __init__(self, node: Node, tensors: Mapping[str, Tensor], point: WeightPoint, scales: Tensor, d: int) -> None:
        weights = [tensors[node.params[role + SUFFIXES[d]]] for role in WEIGHTS]
        rows, size = len(weights[0]), node.attrs["hidden"]
        s_ih, s_hh = scales[2 * d * rows : 2 * (d + 1) * rows].chunk(2)
        steps = torch.from_numpy(recurrent.gate_steps(node.op, size, is_relu(node))).to(scales.device)
        self.weight_ih, self.weight_hh = (
            on_grid(weight, None, s[:, None], weight_limits(node, weight, s, point)).tensor()
            for weight, s in zip(weights, (s_ih, s_hh), strict=True)
        )
        self.scale_ih = s_ih * steps
        self.scale_hh = s_hh * steps if is_relu(node) else s_hh * steps / scales.new_tensor(HIDDEN)
        zero = scales.new_zeros(rows)
        biases = [node.params.get(role + SUFFIXES[d]) for role in ("bias_ih", "bias_hh")]
        b_ih, b_hh = (zero if name is None else tensors[name] for name in biases)
        self.bias_hh: Tensor | None = None
        if node.op == "gru":
            self.bias_hh = b_hh[2 * size :] * steps[2 * size :]
            b_hh = torch.cat([b_hh[: 2 * size], zero[2 * size :]])
        self.bias = (b_ih + b_hh) * steps

    def arrays(self) -> dict[str, Tensor]:
        """Return arrays by their role in the program, without the table."""
        found = {r: getattr(self, r) for r in (*WEIGHTS, "scale_ih", "scale_hh", "bias")}
        return found if self.bias_hh is None else found | {"bias_hh": self.bias_hh}


def directions(node: Node, tensors: Mapping[str, Tensor], point: WeightPoint) -> Iterator[Direction]:
    """Yield a layer's directions: in training with the present scales, else with those of its weight point."""
    live = point.training or point.scale.numel() == 0
    scales = weight_scales(node, tensors, point) if live else point.scale
    return (Direction(node, tensors, point, scales, d) for d in range(1 + node.attrs["bidirectional"]))


def layer_arrays(node: Node, tensors: Mapping[str, Tensor], point: WeightPoint) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of the layer's operation in a program."""
    parts = [d.arrays() for d in directions(node, tensors, point)]
    dtypes = {role: torch.int8 if role in WEIGHTS else torch.float32 for role in parts[0]}
    arrays = {
        role: torch.stack([p.pop(role).detach().to(dtype) for p in parts]).cpu().numpy()
        for role, dtype in dtypes.items()
    }
    trim_behind(max(tensors[name].nbytes for name in node.params.values()))
    return arrays if is_relu(node) else arrays | {"tanh": recurrent.tanh_table()}


def run_layer(node: Node, inputs: list[Tensor], tensors: Mapping[str, Tensor], point: WeightPoint) -> Tensor:
    """Compute a layer on whole sequences; inputs and result are as in ``intact8.capture.graph``.

    Raises:
        InputError: an input or an initial state is not finite.
    """
    x, states = inputs[0], state_count(node.op)
    given: list[Tensor | None] = list(inputs[1 : 1 + states]) if node.attrs["states"] else [None] * states
    for value in (x, *given):
        if value is not None and not bool(torch.isfinite(value.detach()).all()):
            raise InputError("NaN or infinity reached a recurrent layer", where=node.name, remedy="repair the data")
    time = x.shape[0]
    inside: list[Tensor] | None = None
    if node.attrs["lengths"]:
        inside = list((torch.arange(time, device=x.device)[:, None] < inputs[-1][None]).unsqueeze(-1).unbind(0))
    parts, lasts = [], []
    numbers = directions(node, tensors, point)
    for d in range(1 + node.attrs["bidirectional"]):
        y, last = _run_direction(node, x, given, inside, next(numbers), d)
        parts.append(y)
        lasts.append(last)
        if not torch.is_grad_enabled():
            trim_behind(max(tensors[name].nbytes for name in node.params.values()))
    rows = [torch.cat(last, -1).unsqueeze(0) for last in zip(*lasts, strict=True)]
    return torch.cat([*rows, torch.cat(parts, -1)])[recurrent.part(node.op, node.attrs["result"])]


def _run_direction(
    node: Node, x: Tensor, given: list[Tensor | None], inside: list[Tensor] | None, numbers: Direction, d: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the hidden states of all steps of a direction, and its last states."""
    time, batch, size = x.shape[0], x.shape[1], node.attrs["hidden"]
    p = linear(x, numbers.weight_ih, numbers.scale_ih, numbers.bias).unbind(0)
    cell = _Cell(node, numbers, [None if s is None else s[d] for s in given], x.new_zeros(batch, size))
    seen: list[Tensor] = [x] * time
    for t in reversed(range(time)) if d else range(time):
        cell.step(p[t], None if inside is None else inside[t])
        y = cell.real()
        seen[t] = y if inside is None else torch.where(inside[t], y, y.new_zeros(()))
    return torch.stack(seen), cell.last()


class _Cell:
    """State and step of one direction; the formulas are those of ``intact8.arithmetic.recurrent``."""

    def __init__(self, node: Node, numbers: Direction, given: list[Tensor | None], zero: Tensor) -> None:
        self.kind, self.relu, self.n = node.op, is_relu(node), numbers
        self.scaled = given[0] is not None
        h0, c0 = (*given, None)[:2]
        self.h = zero if h0 is None else h0 if self.relu else h0 * HIDDEN
        self.c = zero if c0 is None else c0 * STEPS
        self.unit = zero.new_tensor(1 / HIDDEN)

    def real(self) -> Tensor:
        return self.h if self.relu else self.h * self.unit

    def last(self) -> list[Tensor]:
        return [self.real(), self.c * (1 / STEPS)] if self.kind == "lstm" else [self.real()]

    def step(self, p: Tensor, inside: Tensor | None) -> None:
        h, c = getattr(self, f"_{self.kind}")(p)
        self.h = h if inside is None else torch.where(inside, h, self.h)
        self.c = c if inside is None else torch.where(inside, c, self.c)

    def _product(self) -> Tensor:
        n = self.n
        s: Tensor | None
        if self.relu:
            q, s = quantize_rows(self.h)
        elif self.scaled:
            s = self.h.detach().abs().amax(-1, keepdim=True).clamp_min(HIDDEN) / self.h.new_tensor(HIDDEN)
            q = round_ste(self.h / s)
        else:
            q, s = round_ste(self.h), None
        y: Tensor = accumulate(q, n.weight_hh) * n.scale_hh
        return y if s is None else y * s

    def _lstm(self, p: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (self._product() + p).chunk(4, -1)
        c = sigmoid(f) * self.c + sigmoid(i) * (tanh(g) * STEPS)
        return sigmoid(o) * (tanh(c) * HIDDEN), c

    def _gru(self, p: Tensor) -> tuple[Tensor, Tensor]:
        product, size = self._product(), self.h.shape[-1]
        v = product[:, : 2 * size] + p[:, : 2 * size]
        r, z = sigmoid(v[:, :size]), sigmoid(v[:, size:])
        assert self.n.bias_hh is not None
        n = tanh(p[:, 2 * size :] + r * (product[:, 2 * size :] + self.n.bias_hh)) * HIDDEN
        return n + z * (self.h - n), self.c

    def _rnn(self, p: Tensor) -> tuple[Tensor, Tensor]:
        v = self._product() + p
        return v.clamp_min(0) if self.relu else tanh(v) * HIDDEN, self.c


@functools.cache
def _table(device: torch.device) -> Tensor:
    half = torch.from_numpy(recurrent.tanh_table())
    return torch.cat([-half[1:].flip(0), half]).to(device)


class _Tanh(torch.autograd.Function):
    """tanh by the table forward; its derivative backward."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        y = _look_up(v)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        y: Tensor = ctx.saved_tensors[0]
        return grads[0] * (1 - y * y) / STEPS


def _look_up(v: Tensor) -> Tensor:
    index = v.detach().clamp(-STEPS * REACH, STEPS * REACH).round().add_(STEPS * REACH)
    return _table(v.device).take(index.long())


def tanh(v: Tensor) -> Tensor:
    """Return tanh(v / 512) by the table.

    Example:
        >>> v = torch.tensor([512.0], requires_grad=True)
        >>> tanh(v).backward()
        >>> v.grad * 512  # 1 - tanh(1)**2
        tensor([0.4200])
    """
    if not (torch.is_grad_enabled() and v.requires_grad):
        return _look_up(v)
    y: Tensor = _Tanh.apply(v)  # type: ignore[no-untyped-call]
    return y


def sigmoid(v: Tensor) -> Tensor:
    """Return sigmoid(v / 256) by the table of tanh."""
    return tanh(v) * 0.5 + 0.5
