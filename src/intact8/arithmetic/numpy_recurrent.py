"""Layers of LSTM, GRU and RNN in float32 with numpy: the float kinds ``lstm``, ``gru`` and ``rnn``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .recurrent import part, state_count

Array = npt.NDArray[Any]


def float_layer(kind: str, attrs: Mapping[str, Any], inputs: list[Array], arrays: Mapping[str, Array]) -> Array:
    """Run one layer; the opset's kinds declare its inputs, attributes and parameters.

    Returns:
        float32 (S + T, B, D·H): last states, then every step; or one of the two, as attribute ``result`` says.

    Example:
        >>> attrs = {"hidden": 1, "bidirectional": False, "states": False, "lengths": False, "result": "all"}
        >>> attrs["nonlinearity"] = "relu"
        >>> one = np.ones((1, 1), np.float32)
        >>> float_layer("rnn", attrs, [np.ones((2, 1, 1), np.float32)], {"weight_ih": one, "weight_hh": one}).ravel()
        array([2., 1., 2.], dtype=float32)
    """
    x, extra, size = inputs[0], state_count(kind), attrs["hidden"]
    time, batch, _ = x.shape
    directions = ("", ".reverse") if attrs["bidirectional"] else ("",)
    out = np.zeros((extra + time, batch, len(directions), size), np.float32)
    lengths = inputs[-1].reshape(-1, 1) if attrs["lengths"] else np.full((batch, 1), time)
    for d, suffix in enumerate(directions):
        w = {
            role: arrays.get(role + suffix, np.float32(0)) for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        zero = np.zeros((batch, size), np.float32)
        state = [inputs[1 + i][d] if attrs["states"] else zero for i in range(extra)]
        for t in reversed(range(time)) if d else range(time):
            p, h = x[t] @ w["weight_ih"].T + w["bias_ih"], state[0] @ w["weight_hh"].T + w["bias_hh"]
            new, inside = _step(kind, attrs, p, h, state), t < lengths
            state = [np.where(inside, a, b) for a, b in zip(new, state, strict=True)]
            out[extra + t, :, d] = np.where(inside, state[0], np.float32(0))
        for i, s in enumerate(state):
            out[i, :, d] = s
    return out.reshape(extra + time, batch, -1)[part(kind, attrs["result"])]


def _step(kind: str, attrs: Mapping[str, Any], p: Array, h: Array, state: list[Array]) -> list[Array]:
    if kind == "rnn":
        return [np.maximum(p + h, 0) if attrs["nonlinearity"] == "relu" else np.tanh(p + h)]
    if kind == "lstm":
        i, f, g, o = np.split(p + h, 4, -1)
        c = _sigmoid(f) * state[1] + _sigmoid(i) * np.tanh(g)
        return [_sigmoid(o) * np.tanh(c), c]
    (pr, pz, pn), (hr, hz, hn) = np.split(p, 3, -1), np.split(h, 3, -1)
    n, z = np.tanh(pn + _sigmoid(pr + hr) * hn), _sigmoid(pz + hz)
    return [n + z * (state[0] - n)]


def _sigmoid(v: Array) -> Array:
    result: Array = np.float32(0.5) + np.float32(0.5) * np.tanh(np.float32(0.5) * v)
    return result
