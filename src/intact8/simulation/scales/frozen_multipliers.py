"""Multipliers of frozen scales stay while their proofs hold for the present biases.

Weights cannot break a proof: those that outgrow a frozen grid are clipped (``intact8.simulation.weights``). Those of a
learned grid are not, it must have room for them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intact8.arithmetic.tie_free import largest_denominator

if TYPE_CHECKING:
    from intact8.simulation.scales.layer_multipliers import Layer
    from intact8.simulation.scales.quant_points import Requantization

Array = npt.NDArray[Any]

NOISE = 1e-6
"""Smaller relative differences are roundings of float32 scales."""

ROOM = 1.5
"""Multipliers to be frozen are proved for biases that are ROOM times as large, and ROOM_STEPS more."""

ROOM_STEPS = 8.0


def violated(
    layer: Layer, req: Requantization, s_x: float, s_y: float, form: str, residual: float, engines: Collection[str]
) -> Array | None:
    """Return channels whose multiplier cannot stay, bool (O,); None where no multiplier fits the present scales.

    ``s_x`` and ``s_y`` are scales of input and output, ``form`` is a key of ``intact8.arithmetic.tie_free.FORMS``, and
    ``residual`` is Σ 255·r_j of a fused residual, 0 without one.
    """
    scale = layer.point.scale.double().cpu().numpy()
    a, b = (t.cpu().numpy().astype(np.int64) for t in (req.a, req.b))
    if not len(scale) == len(a) == len(b) == len(layer.base):
        return None
    if (np.abs(a / b / (s_x * scale / s_y) - 1) > NOISE).any():
        return None
    # Rounding the bias to its grid moves it by half of a multiplier.
    steps = layer.bias_steps(scale, s_y) + 0.5 * a / b
    bad: Array = b > largest_denominator(form, steps, residual, engines=engines)
    return bad if layer.least is None else bad | (layer.least > scale * (1 + NOISE))
