"""A simulation as a table: its quantized tensors, their scales, and how they are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact8.display import Grid, columns, number

if TYPE_CHECKING:
    from intact8.simulation.simulation import Simulation

HEADINGS = columns("<tensor", "<dtype", "scale", "zero point", "<observer")


def overview(sim: Simulation) -> Grid:
    """Return a row per quantization point, and a caption that counts the operations and names the phase."""
    rows = []
    for name, point in sim.points.items():
        known = (number(point.scale_value, 4), str(point.zero_point_value)) if point.calibrated else ("", "")
        rows.append((name, point.scheme.dtype, *known, point.scheme.observer))
    waiting = sum(not point.calibrated for point in sim.points.values())
    state = f"{waiting} tensors wait for calibration" if waiting else f"phase {sim.phase}"
    counts = f"{len(sim.placed.graph.nodes)} operations, {len(sim.weight_points)} with quantized weights"
    return Grid(HEADINGS, tuple(rows), f"simulation: {counts}; {state}")
