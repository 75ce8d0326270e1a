"""Layers of LSTM, GRU and RNN on integers, against the written definition one number at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from intact8.arithmetic import dynamic
from intact8.arithmetic.recurrent import GATES, HIDDEN, REACH, STEPS, Layer, gate_steps, part, run_layer, tanh_table

F = np.float32


def test_the_table_and_its_steps() -> None:
    table = tanh_table()
    assert (STEPS, REACH, HIDDEN, GATES) == (512, 8, 127, {"lstm": 4, "gru": 3, "rnn": 1})
    assert table.tolist() == [float(F(math.tanh(i / 512))) for i in range(4097)]
    assert gate_steps("lstm", 2).tolist() == [256.0] * 4 + [512.0] * 2 + [256.0] * 2
    assert gate_steps("gru", 1).tolist() == [256.0, 256.0, 512.0]
    assert gate_steps("rnn", 2).tolist() == [512.0] * 2 and gate_steps("rnn", 2, relu=True).tolist() == [1.0] * 2
    assert [part(k, r).indices(9)[:2] for k in ("lstm", "gru") for r in ("all", "states", "steps")] == [
        (0, 9), (0, 2), (2, 9), (0, 9), (0, 1), (1, 9),
    ]  # fmt: skip


def layer(kind: str, relu: bool, rng: np.random.Generator, two: int = 2, hidden: int = 3, inputs: int = 4) -> Layer:
    rows, steps = GATES[kind] * hidden, gate_steps(kind, hidden, relu)
    weights = (rng.integers(-127, 128, (two, rows, n)).astype(np.int8) for n in (inputs, hidden))
    scales = ((rng.uniform(least, 5 * least, (two, rows)) * steps).astype(F) for least in (2e-3, 2e-5))
    bias = (rng.normal(size=(two, rows)) * steps).astype(F)
    more = rng.normal(size=(two, hidden)).astype(F) * F(512) if kind == "gru" else None
    return Layer(kind, *weights, *scales, bias, more, None if relu else tanh_table())


def tanh(v: Any) -> Any:
    index = min(max(round(float(v)), -4096), 4096)
    return F(math.copysign(1, index)) * F(math.tanh(abs(index) / 512)) if index else F(0)


def sigmoid(v: Any) -> Any:
    return tanh(v) * F(0.5) + F(0.5)


def defined(own: Layer, d: int, x: Any, h0: Any, c0: Any, length: int) -> tuple[list[Any], Any, Any]:
    """One sequence of one direction: the hidden state after every step, the last hidden and cell state."""
    size, relu = own.weight_hh.shape[2], own.tanh is None
    unit = F(1) if relu else F(127)
    h = [F(0)] * size if h0 is None else [F(v) * unit for v in h0]
    c = [F(0)] * size if c0 is None else [F(v) * F(512) for v in c0]
    out = [np.zeros(size, F)] * len(x)
    for t in range(len(x)) if d == 0 else reversed(range(len(x))):
        if t >= length:
            continue
        q, s = dynamic.quantize_rows(x[t][None])
        p = []
        for g in range(len(own.bias[d])):
            acc = sum(int(w) * (int(v) - 128) for w, v in zip(own.weight_ih[d, g], q[0], strict=True))
            p.append(F(F(F(F(acc) * own.scale_ih[d, g]) * s[0, 0]) + own.bias[d, g]))
        if relu:
            codes, scale = dynamic.quantize_rows(np.array([h], F))
            whole, s = [int(v) - 128 for v in codes[0]], scale[0, 0]
        else:
            s = F(1) if h0 is None else F(max(F(127), max(abs(v) for v in h)) / F(127))
            whole = [round(float(F(v / s))) for v in h]
        v = []
        for g in range(len(p)):
            acc = sum(int(w) * n for w, n in zip(own.weight_hh[d, g], whole, strict=True))
            v.append(F(F(F(acc) * own.scale_hh[d, g]) * s))
        new = []
        for k in range(size):
            if own.kind == "rnn":
                total = F(v[k] + p[k])
                new.append(max(total, F(0)) if relu else F(tanh(total) * F(127)))
            elif own.kind == "gru":
                r, z = (sigmoid(F(v[k + g * size] + p[k + g * size])) for g in (0, 1))
                hidden = F(v[k + 2 * size] + own.bias_hh[d, k])
                n = F(tanh(F(p[k + 2 * size] + F(r * hidden))) * F(127))
                new.append(F(n + F(z * F(h[k] - n))))
            else:
                i, f, g, o = (F(v[k + j * size] + p[k + j * size]) for j in range(4))
                c[k] = F(F(sigmoid(f) * c[k]) + F(sigmoid(i) * F(tanh(g) * F(512))))
                new.append(F(sigmoid(o) * F(tanh(c[k]) * F(127))))
        h = new
        out[t] = np.array([v if relu else v * F(1 / 127) for v in h], F)
    return out, np.array([v if relu else v * F(1 / 127) for v in h], F), np.array([v * F(1 / 512) for v in c], F)


@pytest.mark.parametrize("lengths", [None, [4, 0, 2]], ids=["whole", "lengths"])
@pytest.mark.parametrize("states", [None, 0.5, 3.0], ids=["zeros", "states", "large states"])
@pytest.mark.parametrize(("kind", "relu"), [("lstm", False), ("gru", False), ("rnn", False), ("rnn", True)])
def test_every_number_is_the_defined_one(
    kind: str, relu: bool, states: float | None, lengths: list[int] | None
) -> None:
    rng = np.random.default_rng(len(kind))
    own = layer(kind, relu, rng)
    x = (rng.normal(size=(4, 3, 4)) * 2).astype(F)
    h0 = None if states is None else (rng.normal(size=(2, 3, 3)) * states).astype(F)
    c0 = None if states is None or kind != "lstm" else (rng.normal(size=(2, 3, 3)) * states).astype(F)
    got = run_layer(own, x, h0, c0, None if lengths is None else np.array(lengths))
    extra = 2 if kind == "lstm" else 1
    assert got.dtype == F and got.shape == (extra + 4, 3, 6)
    for d in range(2):
        for b in range(3):
            given = [None if s is None else s[d, b] for s in (h0, c0)]
            steps, last, cell = defined(own, d, x[:, b], *given, 4 if lengths is None else lengths[b])
            mine = got[:, b, 3 * d : 3 * d + 3]
            np.testing.assert_array_equal(mine[extra:], np.array(steps))
            np.testing.assert_array_equal(mine[0], last)
            if kind == "lstm":
                np.testing.assert_array_equal(mine[1], cell)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    own, x = layer("lstm", False, np.random.default_rng(0)), np.ones((2, 3, 4), F)
    fine = np.zeros((2, 3, 3), F)
    for place in ("x", "h0", "c0"):
        arrays = {"x": x.copy(), "h0": fine.copy(), "c0": fine.copy()}
        arrays[place][-1, 1, 2] = bad
        with pytest.raises(ValueError, match="input" if place == "x" else "state"):
            run_layer(own, **arrays)
    run_layer(own, x, fine, fine)
    assert own.hidden == 3 and own.directions == 2


def test_nan_at_a_gate_is_refused() -> None:
    one = np.ones((1, 1, 1), np.int8)
    huge = np.full((1, 1), 3e38, F)
    own = Layer("rnn", one, one, huge, huge, np.full((1, 1), 0, F), tanh=tanh_table())
    opposite = Layer("rnn", one, -one, huge, huge, np.full((1, 1), 0, F), tanh=tanh_table())
    with np.errstate(all="ignore"):
        assert run_layer(own, np.full((2, 1, 1), 9, F)).ravel()[1] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="NaN reached a gate"), np.errstate(all="ignore"):
        run_layer(opposite, np.full((2, 1, 1), 1e30, F))
    with pytest.raises(ValueError, match="NaN reached a gate"), np.errstate(all="ignore"):
        run_layer(opposite, np.float32([[[1e30], [0]]] * 2))  # in one row of a batch
