"""Random softmax, layer norm, RMS norm and embedding ops, in the extremes that matter to them."""

from __future__ import annotations

import numpy as np

from intact8.arithmetic import norms, softmax
from intact8.opset.op import Op, Tensor

from .build import Array, Case, Draft, Rng, clamp


def _rows(d: Draft, name: str, shape: tuple[int, ...]) -> tuple[str, Array, int]:
    """A uint8 tensor some of whose rows are all equal, or zero but for one element."""
    x, q, z = d.input(name, shape, computed=False)
    kind = d.rng.integers(0, 4)
    if kind == 0:
        q[...] = q[..., :1]
    elif kind == 1:
        q[...] = 0
        q[..., 0] = 255
    return x, q, z


def _length(rng: Rng) -> int:
    return int(rng.choice([1, 2, int(rng.integers(1, 60)), int(rng.integers(60, 1200)), 1024, 1025, 4096]))


def softmax_case(rng: Rng, wide: bool) -> Case:
    """Any axis, any length, with and without masks, some of which leave nothing."""
    d, n = Draft(rng), _length(rng)
    shape = (int(rng.integers(1, 4)), *(int(v) for v in rng.integers(1, 6, rng.integers(0, 3))), n)
    x, q, _ = _rows(d, "x", shape)
    axis = len(shape) - 1 if len(shape) == 2 or rng.random() < 0.7 else int(rng.integers(1, len(shape)))
    levels = float(np.float32(rng.choice([255, 127, rng.uniform(1, 3000)])))
    z, lo, hi = (0, 0, 255) if rng.random() < 0.7 else clamp(rng)
    table = softmax.softmax_table(float(np.exp(rng.uniform(-9, 3))))
    inputs, masked = (x,), None
    if rng.random() < 0.5:
        own = (shape[0], *(v if rng.random() < 0.5 else 1 for v in shape[1:]))
        masked = rng.random(own) < rng.choice([0.1, 0.9, 1.0])
        d.tensors["m"], d.inputs["m"] = Tensor("m", "bool", (None, *own[1:])), masked
        inputs = (x, "m")
    op = Op("y", "softmax", inputs, {"axis": axis, "levels": levels, "lo": lo, "hi": hi}, {"table": table})
    expected = softmax.softmax(q, table, axis, levels, z, lo, hi, masked=masked)
    return d.finish(op, z, expected, f"softmax {shape} masked={masked is not None}")


def norm_case(rng: Rng, wide: bool) -> Case:
    """Layer and RMS norm over one or two dimensions, gains of both signs, variances from none to the largest."""
    d, n = Draft(rng), _length(rng)
    last = (n,) if rng.random() < 0.8 else (int(rng.integers(1, 8)), min(n, 200))
    shape = (int(rng.integers(1, 4)), *(int(v) for v in rng.integers(1, 6, rng.integers(0, 2))), *last)
    x, q, zx = _rows(d, "x", shape)
    z, lo, hi = clamp(rng)
    gain, offset = norms.gain_offset(
        rng.normal(0, 1, last), rng.normal(0, 1, last), int(np.prod(last)), float(np.exp(rng.uniform(-6, 0))), z
    )
    gain, offset = gain.reshape(last), offset.reshape(last)
    eps = float(np.exp(rng.uniform(-20, 20)))
    kind = str(rng.choice(["layer_norm", "rms_norm"]))
    op = Op("y", kind, (x,), {"shape": list(last), "eps": eps, "lo": lo, "hi": hi}, {"gain": gain, "offset": offset})
    rest = gain, offset, eps, lo, hi
    expected = norms.layer_norm(q, *rest) if kind == "layer_norm" else norms.rms_norm(q, zx, *rest)
    return d.finish(op, z, expected, f"{kind} {shape} over {last}")


def group_norm_case(rng: Rng, wide: bool) -> Case:
    """Group norm of images of one to three dimensions, from one group to one per channel."""
    d, groups, each = Draft(rng), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    channels, places = groups * each, tuple(int(v) for v in rng.integers(1, 9, rng.integers(1, 4)))
    x, q, _ = _rows(d, "x", (int(rng.integers(1, 4)), channels, *places))
    z, lo, hi = clamp(rng)
    gain, offset = norms.gain_offset(
        rng.normal(0, 1, channels), rng.normal(0, 1, channels), channels, float(np.exp(rng.uniform(-6, 0))), z
    )
    attrs = {"groups": groups, "eps": float(np.exp(rng.uniform(-20, 20))), "lo": lo, "hi": hi}
    expected = np.empty_like(q)
    for g in range(groups):  # a group is a layer norm of its own
        part = slice(g * each, (g + 1) * each)
        spread = [np.broadcast_to(v[part].reshape(-1, *[1] * len(places)), q[0, part].shape) for v in (gain, offset)]
        expected[:, part] = norms.layer_norm(q[:, part], *spread, attrs["eps"], lo, hi)
    op = Op("y", "group_norm", (x,), attrs, {"gain": gain, "offset": offset})
    return d.finish(op, z, expected, f"group_norm {q.shape} in {groups}")


def embedding_case(rng: Rng, wide: bool) -> Case:
    """Rows of bytes by index."""
    d = Draft(rng)
    weight = d.integers((int(rng.integers(1, 50)), int(rng.integers(1, 70))))
    shape = (int(rng.integers(1, 4)), *(int(v) for v in rng.integers(1, 9, rng.integers(0, 3))))
    index = rng.integers(0, len(weight), shape)
    d.tensors["i"], d.inputs["i"] = Tensor("i", "int64", (None, *shape[1:])), index
    op = Op("y", "embedding", ("i",), {}, {"weight": weight})
    return d.finish(op, int(rng.integers(0, 256)), weight[index], f"embedding {weight.shape}")


CASES = {"softmax": softmax_case, "norm": norm_case, "group_norm": group_norm_case, "embedding": embedding_case}
