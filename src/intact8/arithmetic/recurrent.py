"""Layers of LSTM, GRU and RNN on dynamically quantized inputs and hidden states: the definition, in numpy.

Every step below is one IEEE float32 operation or exact integer arithmetic, so whoever does the same steps gets the
same bits. ``fl`` is one rounding to float32, ``R`` rounds half to even. Per direction, with G gates of H rows:

- inputs: quantized row by row, ``p = fl(fl(fl(fl(acc)·scale_ih)·s) + bias)`` as in :mod:`intact8.arithmetic.dynamic`:
  all time steps in one product;
- hidden state: kept in steps of 1/127, where it is between −127 and 127 unless an initial state was larger:
  ``q = R(h)``, ``v = fl(fl(fl(acc)·scale_hh) + p)``. Where the layer is given an initial state, the row has a scale of
  its own, ``s = fl(max(127, max|h|) / 127)``, ``q = R(fl(h / s))`` and the product is also multiplied by s before p is
  added. A ReLU layer has no bound; it works with real numbers, and its hidden state is quantized as its inputs are;
- gates: ``scale`` and ``bias`` hold powers of two that bring v to steps of a table of tanh, 1/512 wide (1/256 for
  sigmoid gates): ``T(v) = tanh[clamp(R(v), −4096, 4096)]``, ``S(v) = fl(0.5·T(v) + 0.5)``, which is
  sigmoid(v/256) because σ(x) = (1 + tanh(x/2))/2;
- LSTM (gates i, f, g, o; cell state c in steps of 1/512): ``c = fl(fl(S(f)·c) + fl(S(i)·512·T(g)))``,
  ``h = fl(S(o)·fl(127·T(c)))``;
- GRU (gates r, z, n): ``n = fl(127·T(fl(p_n + fl(S(r)·fl(product_n + bias_hh)))))``,
  ``h = fl(n + fl(S(z)·fl(h − n)))``;
- RNN: ``h = fl(127·T(v))``, or ``max(v, 0)``;
- the result is ``fl(h·fl(1/127))`` and ``fl(c/512)``.

Steps from the length of a sequence on leave its state as it is and give zeros. The output holds, along time, the last
hidden state, the last cell state (LSTM), then the hidden state of every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import dynamic

Array = npt.NDArray[Any]

STEPS = 512
"""Table steps per unit of the argument of tanh."""
REACH = 8
"""The table covers arguments from −8 to 8; tanh(8) is 1 − 2.3e-7."""
HIDDEN = 127
"""Steps per unit of the hidden state."""

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Kind → gates."""


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """The numbers of one layer; D directions, G gates of H rows, I inputs.

    Attributes:
        kind: lstm, gru or rnn.
        weight_ih, weight_hh: int8 (D, G·H, I) and (D, G·H, H).
        scale_ih, scale_hh: float32 (D, G·H), in table steps.
        bias: float32 (D, G·H), in table steps.
        bias_hh: float32 (D, H), GRU only: the hidden bias of the gate n.
        tanh: float32 (STEPS·REACH + 1,), tanh(i / STEPS); None for ReLU.
    """

    kind: str
    weight_ih: Array
    weight_hh: Array
    scale_ih: Array
    scale_hh: Array
    bias: Array
    bias_hh: Array | None = None
    tanh: Array | None = None

    @property
    def hidden(self) -> int:
        """Return H, the size of the hidden state."""
        return int(self.weight_hh.shape[2])

    @property
    def directions(self) -> int:
        """Return D, the number of directions."""
        return int(self.weight_hh.shape[0])


def tanh_table() -> Array:
    """Return tanh(i / STEPS) for i = 0 … STEPS·REACH, computed in float64, as float32.

    Example:
        >>> table = tanh_table()
        >>> len(table), float(table[0]), float(table[512])
        (4097, 0.0, 0.7615941762924194)
    """
    return np.tanh(np.arange(STEPS * REACH + 1) / STEPS).astype(np.float32)


def gate_steps(kind: str, hidden: int, relu: bool = False) -> Array:
    """Return the table steps per unit for every gate row: float32 (G·H,), powers of two.

    Example:
        >>> gate_steps("gru", 1).tolist()
        [256.0, 256.0, 512.0]
    """
    sigmoid = STEPS / 2
    steps = {"lstm": (sigmoid, sigmoid, STEPS, sigmoid), "gru": (sigmoid, sigmoid, STEPS), "rnn": (STEPS,)}[kind]
    return np.repeat(np.asarray((1,) if relu else steps, np.float32), hidden)


def state_count(kind: str) -> int:
    """Return the rows of the output that hold states: the hidden state, and the cell state of an LSTM."""
    return 2 if kind == "lstm" else 1


RESULTS = ("all", "states", "steps")
"""What a layer gives: everything, the last states, or the hidden state of every step."""


def part(kind: str, result: str) -> slice:
    """Return where a result (one of :data:`RESULTS`) lies among all rows.

    Example:
        >>> part("lstm", "states"), part("gru", "steps")
        (slice(0, 2, None), slice(1, None, None))
    """
    states = state_count(kind)
    return {"all": slice(None), "states": slice(0, states), "steps": slice(states, None)}[result]


def run_layer(
    layer: Layer, x: Array, h0: Array | None = None, c0: Array | None = None, lengths: Array | None = None
) -> Array:
    """Run one layer over whole sequences.

    Args:
        layer: its numbers.
        x: float32 (T, B, I).
        h0, c0: initial states, float32 (D, B, H); None is zero.
        lengths: int64 (B,), None is T for all.

    Returns:
        float32 (S + T, B, D·H), S = :func:`state_count`.

    Raises:
        ValueError: x or a state holds NaN or infinity.

    Example:
        >>> one = np.ones((1, 1, 1), np.int8)
        >>> layer = Layer("rnn", one, one, *np.float32([[[512.0]], [[4.0]], [[0.0]]]), tanh=tanh_table())
        >>> run_layer(layer, np.ones((2, 1, 1), np.float32)).ravel().round(2).astype(float).round(2).tolist()
        [0.94, 0.76, 0.94]
    """
    time, batch, _ = x.shape
    if not np.isfinite(x).all():
        raise ValueError("an input is not finite")
    out = np.zeros((state_count(layer.kind) + time, batch, layer.directions, layer.hidden), np.float32)
    given = None if lengths is None else np.asarray(lengths).reshape(-1, 1)
    for d in range(layer.directions):
        p = dynamic.linear(x, layer.weight_ih[d], layer.scale_ih[d], layer.bias[d])
        state = _Cell(layer, d, None if h0 is None else h0[d], None if c0 is None else c0[d], batch)
        for t in range(time) if d == 0 else reversed(range(time)):
            inside = None if given is None else t < given
            state.step(p[t], inside)
            y = state.real()
            out[state_count(layer.kind) + t, :, d] = y if inside is None else np.where(inside, y, np.float32(0))
        out[0, :, d] = state.real()
        if layer.kind == "lstm":
            out[1, :, d] = state.c * np.float32(1 / STEPS)
    return out.reshape(len(out), batch, -1)


class _Cell:
    """The state of one direction, and one step of it."""

    def __init__(self, layer: Layer, d: int, h0: Array | None, c0: Array | None, batch: int) -> None:
        self.layer, self.d, self.given = layer, d, h0 is not None
        zero = np.zeros((batch, layer.hidden), np.float32)
        units = np.float32(HIDDEN if layer.tanh is not None else 1)
        with np.errstate(over="ignore"):
            self.h = zero if h0 is None else h0 * units
            self.c = zero if c0 is None else c0 * np.float32(STEPS)
        if not (np.isfinite(self.h).all() and np.isfinite(self.c).all()):
            raise ValueError("an initial state is not finite")

    def real(self) -> Array:
        """Return the hidden state as real numbers."""
        return self.h if self.layer.tanh is None else self.h * np.float32(1 / HIDDEN)

    def step(self, p: Array, inside: Array | None) -> None:
        """Advance by one step with input part ``p`` (B, G·H); rows where ``inside`` is false stay as they are."""
        h, c = getattr(self, f"_{self.layer.kind}")(p)
        self.h = h if inside is None else np.where(inside, h, self.h)
        self.c = c if inside is None else np.where(inside, c, self.c)

    def _hidden_product(self) -> Array:
        w, scale = self.layer.weight_hh[self.d], self.layer.scale_hh[self.d]
        if self.layer.tanh is None:
            return dynamic.linear(self.h, w, scale)
        s = np.ones(1, np.float32)
        if self.given:
            s = np.abs(self.h).max(-1, keepdims=True, initial=np.float32(HIDDEN)) / np.float32(HIDDEN)
        product: Array = _product(np.rint(self.h / s), w) * scale * s
        return product

    def _tanh(self, v: Array) -> Array:
        table = self.layer.tanh
        assert table is not None
        if np.isnan(v).any():
            raise ValueError("NaN reached a gate")
        index = np.clip(np.rint(v), -STEPS * REACH, STEPS * REACH).astype(np.int64)
        return np.where(index < 0, -table[np.abs(index)], table[np.abs(index)])

    def _sigmoid(self, v: Array) -> Array:
        half = np.float32(0.5)
        return self._tanh(v) * half + half

    def _lstm(self, p: Array) -> tuple[Array, Array]:
        i, f, g, o = np.split(self._hidden_product() + p, 4, -1)
        new = self._sigmoid(i) * (self._tanh(g) * np.float32(STEPS))
        c = self._sigmoid(f) * self.c + new
        return self._sigmoid(o) * (self._tanh(c) * np.float32(HIDDEN)), c

    def _gru(self, p: Array) -> tuple[Array, Array]:
        product, size = self._hidden_product(), self.layer.hidden
        assert self.layer.bias_hh is not None
        v = product[:, : 2 * size] + p[:, : 2 * size]
        r, z = self._sigmoid(v[:, :size]), self._sigmoid(v[:, size:])
        hidden = product[:, 2 * size :] + self.layer.bias_hh[self.d]
        n = self._tanh(p[:, 2 * size :] + r * hidden) * np.float32(HIDDEN)
        return n + z * (self.h - n), self.c

    def _rnn(self, p: Array) -> tuple[Array, Array]:
        v = self._hidden_product() + p
        if self.layer.tanh is None:
            return np.maximum(v, np.float32(0)), self.c
        return self._tanh(v) * np.float32(HIDDEN), self.c


def _product(q: Array, w: Array) -> Array:
    """Compute fl(Σ q·w): the exact sum, rounded once to float32. q (…, K) whole numbers, w (O, K)."""
    sums: Array = np.matmul(q.astype(np.float64), w.T.astype(np.float64))
    return sums.astype(np.float32)
