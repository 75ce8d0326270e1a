"""quantize, dequantize, add, mul, table.

Sums and products of two tensors have a float32 form of few passes and, where shapes allow, a form as one depthwise
convolution (see ``depthwise``). Roundings are written beside each.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from .borders import dequantizer, finisher, reader
from .depthwise import channel_scale, scaled_sum
from .products import Post
from .site import Site, Step, is_nhwc, step_size, zero_point

PER_SAMPLE = 1 << 15
"""Elements per sample from which one call per sample beats float tensors (measured on two cores)."""


def lower_quantize(site: Site) -> Step:
    """clamp(R(x / s) + z, lo, hi) by IEEE division; uint8 passes as it is. Images become channels last."""
    x, s = site.inputs[0], step_size(site.out)
    turned = site.spatial and x.dim() > 2 and not is_nhwc(x)
    if x.dtype == torch.uint8:
        return _nhwc if turned else lambda x: x
    end = finisher(site.z, site.lo, site.hi, s)
    return (lambda x: end(_nhwc(x))) if turned else end


def _nhwc(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def lower_dequantize(site: Site) -> Step:
    """(q − z)·s, one rounding."""
    return dequantizer(site.inputs[0], zero_point(site.metas[0]), step_size(site.metas[0]))


def lower_add(site: Site) -> Step:
    """Σ a_j·(x_j − z_j)/b. As a convolution: ratio and product of one term, ratio and fused add of the other, + z."""
    b = int(site.op.attrs["b"])
    ratios = [float(Fraction(int(a), b)) for a in site.op.attrs["a"]]
    zeros = [zero_point(m) for m in site.metas]
    if len(ratios) == 2:
        flat = _flattener(site.inputs[0], site.inputs[1])
        if flat is not None:
            return _add_pair(site, ratios, zeros, flat)
    return _add_floats(site, ratios, zeros)


def _add_pair(site: Site, ratios: list[float], zeros: list[int], flat: _Flat) -> Step:
    keep = 1 if site.donated[1] or not site.donated[0] else 0  # the operand whose memory takes the result
    other = 1 - keep
    clone = not site.donated[keep]
    post = Post.of(site.lo, site.hi, site.z, relu_only=True)
    shape, pack, unpack = flat
    call = scaled_sum(site, shape, zeros[other], ratios[other], zeros[keep], ratios[keep], post.name == "relu", site.z)

    def step(*tensors: Tensor) -> Tensor:
        target = tensors[keep]
        if clone:
            target = target.clone(memory_format=torch.preserve_format)
        y = unpack(call(pack(tensors[other]), pack(target)))
        return y.clamp_(*post.clamp) if post.clamp else y

    return step


def _add_floats(site: Site, ratios: list[float], zeros: list[int]) -> Step:
    """Each term stores its ratio and multiplies, each sum rounds: 2 + (n − 1), in float64 beyond four terms."""
    kind = torch.float32 if len(ratios) <= 4 else torch.float64
    end = finisher(site.z, site.lo, site.hi)

    def step(*tensors: Tensor) -> Tensor:
        terms = [x.to(kind).sub_(z).mul_(r) for x, z, r in zip(tensors, zeros, ratios, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return end(total)

    return step


def lower_mul(site: Site) -> Step:
    """(x − z_x)·(w − z_w)·a/b. One value per channel is a scale given at run time: two roundings, product, + z."""
    x, w = site.inputs
    ratio = float(np.float32(int(site.op.attrs["a"]) / int(site.op.attrs["b"])))
    gate = 1 if _is_gate(x, w) else 0 if _is_gate(w, x) else None
    full = site.inputs[1 - gate] if gate is not None else x
    small = full.shape[0] > 1 and full.numel() // max(1, full.shape[0]) < PER_SAMPLE
    if gate is None or small or not is_nhwc(full):
        return _mul_floats(site, ratio)
    z_full, z_gate = zero_point(site.metas[1 - gate]), zero_point(site.metas[gate])
    samples, position = int(full.shape[0]), 1 - gate
    call = channel_scale(site, [1, *full.shape[1:]], z_full, site.z)

    def step(*tensors: Tensor) -> Tensor:
        big = tensors[position]
        scales = tensors[1 - position].to(torch.float32).sub_(z_gate).mul_(ratio).view(samples, -1)
        parts = [call(big[i : i + 1], scales[i]) for i in range(samples)]
        y = parts[0] if samples == 1 else torch.cat(parts)
        return y if (site.lo, site.hi) == (0, 255) else y.clamp_(site.lo, site.hi)

    return step


def _is_gate(x: Tensor, w: Tensor) -> bool:
    """Whether w (N, C, 1, 1) scales the channels of x (N, C, H, W)."""
    return x.dim() == w.dim() == 4 and w.shape == (*x.shape[:2], 1, 1) and x.shape[2:] != (1, 1)


def _mul_floats(site: Site, ratio: float) -> Step:
    """The product of two differences is an exact integer below 2¹⁶; the ratio and its product round: two."""
    (z_x, z_w), end = (zero_point(m) for m in site.metas), finisher(site.z, site.lo, site.hi)
    return lambda x, w: end((x.to(torch.float32).sub_(z_x) * w.to(torch.float32).sub_(z_w)).mul_(ratio))


def lower_table(site: Site) -> Step:
    """table[x]: as a clamp where that gives all 256 entries."""
    table = torch.from_numpy(np.array(site.op.arrays["table"], np.uint8))
    lo, hi = int(table.min()), int(table.max())
    if torch.equal(table, torch.arange(256, dtype=torch.uint8).clamp(lo, hi)):
        return (lambda x: x.clone()) if (lo, hi) == (0, 255) else (lambda x: x.clamp(lo, hi))
    return reader(table)


_Flat = tuple[list[int], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def _flattener(x: Tensor, y: Tensor) -> _Flat | None:
    """A shape for the depthwise kernel and the two views to and from it, for tensors of one dense layout.

    Images go as they are; other tensors as 64 (or fewer) channels over their memory, whatever it means.
    """
    if x.shape != y.shape or x.numel() == 0:
        return None
    if x.dim() == 4 and is_nhwc(x) and is_nhwc(y):
        return list(x.shape), lambda t: t, lambda t: t
    if not (x.is_contiguous() and y.is_contiguous()):
        return None
    channels = next((c for c in (64, 32, 16, 8) if x.numel() % c == 0), 0)
    if not channels:
        return None
    shape, back = (1, 1, x.numel() // channels, channels), x.shape
    return (
        [1, channels, 1, x.numel() // channels],
        lambda t: t.view(shape).permute(0, 3, 1, 2),
        lambda t: t.permute(0, 2, 3, 1).view(back),
    )
