"""Whether the numbers of an operation fit the formula of an engine, whatever the input holds.

The tie margin bounds what float32 rounds. It says nothing where a number leaves the type that holds it:

- A result is turned into an int32, by some kernels before it is clamped to a byte: what M·acc and the residual come to
  must stay below ``STEPS`` output steps.
- Kernels that read uint8 add up Σ x·w and take z·Σw off later: both must fit int32, as must a product of two
  activations.
- M = 0 (a = 0, which no conversion makes) cannot be divided by: onednn computes a negative slope as M'/M, OpenVINO
  counts in steps of 1/M.
"""

from __future__ import annotations

import numpy as np

from .ops import Array, Op, Tensor

STEPS = float(1 << 30)
"""Output steps that any evaluation holds before it clamps."""

INT32 = 1 << 31


def holds(engine: str, op: Op, tensors: dict[str, Tensor], accumulator: int, rows: Array | None) -> bool:
    """Whether no number of the engine's formula overflows, and none is divided by zero.

    Args:
        engine: of those that compute in float32.
        op: of a kind whose certificate has an accumulator of exact integers, not dynamic.
        tensors: of the program.
        accumulator: largest integer before the multiplication, see :func:`intact.program.certify.certify`.
        rows: of a conv or linear, see :func:`row_sums`.
    """
    if rows is not None:
        return _affine_holds(engine, op, tensors, rows)
    if op.kind in ("table", "softmax", "layer_norm", "rms_norm"):
        return True
    numerators, denominators = _multipliers(op)
    if engine == "openvino" and not all(numerators):
        return False
    if op.kind == "matmul" and not _raw_products_fit(op, tensors):
        return engine == "onednn"  # which multiplies differences, in parts that float32 holds
    share = sum(numerators) if op.kind == "add" else max(numerators)
    return share * accumulator < STEPS * min(denominators)


def _affine_holds(engine: str, op: Op, tensors: dict[str, Tensor], rows: Array) -> bool:
    z = tensors[op.inputs[0]].zero_point or 0
    if affine_sums(op, rows, 255).max() >= INT32:
        return False
    a, b = op.multipliers()
    leaky = "a_neg" in op.arrays
    if not a.all() and (engine == "openvino" or (engine == "onednn" and leaky)):
        return False
    sums = affine_sums(op, rows, max(z, 255 - z)).astype(np.float64)
    steps = sums * a / b + 255.0 * op.attrs["residual_a"] / b
    if leaky:
        negative = np.abs(op.arrays["a_neg"].astype(np.float64)) / op.arrays["b_neg"]
        steps = np.maximum(steps, sums * negative)
    return bool(steps.max() < STEPS)


def _raw_products_fit(op: Op, tensors: dict[str, Tensor]) -> bool:
    terms = tensors[op.inputs[0]].shape[-1]
    return isinstance(terms, int) and 255 * 255 * terms < INT32


def _multipliers(op: Op) -> tuple[list[int], list[int]]:
    """|a| and b of every multiplier of an operation without weights."""
    t = op.attrs
    if "multipliers" in t:
        return [a for _, a, _ in t["multipliers"]], [b for _, _, b in t["multipliers"]]
    return [abs(a) for a in (t["a"] if op.kind == "add" else [t["a"]])], [t["b"]]


def by_output(op: Op) -> Array:
    """The weight as (O, products per output), int64."""
    return _rows(op).astype(np.int64)


def _rows(op: Op) -> Array:
    w = op.arrays["weight"]
    if op.kind == "conv" and op.attrs["transposed"]:
        groups = op.attrs["groups"]
        w = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1).swapaxes(1, 2)
        return w.reshape(groups * w.shape[1], -1)
    return w.reshape(w.shape[0], -1)


def magnitudes(op: Op) -> Array:
    """|w| as (O, products per output) in bytes, where |−128| is 128, too: every load does this to every weight."""
    return np.abs(_rows(op)).view(np.uint8)


def row_sums(magnitude: Array) -> Array:
    """Σ|w| per output, int64, of at most 2²⁰ products."""
    return np.asarray(magnitude.sum(axis=1, dtype=np.uint32).astype(np.int64))


def affine_sums(op: Op, rows: Array, reach: int) -> Array:
    """Largest |Σ (x − z)·w + bias| per output, int64, for |x − z| ≤ ``reach``."""
    return np.asarray(rows * reach + np.abs(op.arrays["bias"].astype(np.int64)))


__all__ = ["affine_sums", "by_output", "holds", "magnitudes", "row_sums"]
