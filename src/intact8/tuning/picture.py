"""The picture of a search: every trial by its time and its drop, and the front as a line."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from intact8.text import printable

if TYPE_CHECKING:
    from intact8.tuning.result import TuneResult

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 60, 16, 16, 44
"""The picture and its margins, in pixels."""

STYLE = "font:12px sans-serif;max-width:100%;height:auto"


def _extent(values: list[float]) -> tuple[float, float]:
    """Return the ends of an axis: those of the values, and a twentieth more on both sides."""
    low, high = min(values), max(values)
    margin = (high - low) / 20 or max(abs(high), 1.0) / 20
    return low - margin, high + margin


def picture(result: TuneResult) -> str:
    """Return an SVG element: drop over time, a circle per trial, the front as a line, the chosen trial filled."""
    trials, front = result.trials, result.front
    x0, x1 = _extent([t.time for t in trials])
    y0, y1 = _extent([t.drop for t in trials if math.isfinite(t.drop)] + [result.max_drop])

    def x(time: float) -> float:
        return LEFT + (time - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def y(drop: float) -> float:
        return TOP + (y1 - min(drop, y1)) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    limit = y(result.max_drop)
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}" fill="none" '
        'stroke="currentColor" stroke-opacity="0.3"/>',
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{limit:.1f}" y2="{limit:.1f}" stroke="currentColor" '
        'stroke-dasharray="4 4" stroke-opacity="0.6"/>',
        f'<polyline points="{" ".join(f"{x(t.time):.1f},{y(t.drop):.1f}" for t in front)}" fill="none" '
        'stroke="#1769aa" stroke-width="2"/>',
    ]
    for t in trials:
        colour = "#1769aa" if t in front else "#888"
        radius, fill = (6, "#1769aa") if t == result.best else (4, "none")
        title = html.escape(printable(f"{t.change}: drop {t.drop:.3g}, time ×{t.time:.2f}, {t.sqnr:.1f} dB"))
        parts.append(
            f'<circle cx="{x(t.time):.1f}" cy="{y(t.drop):.1f}" r="{radius}" fill="{fill}" stroke="{colour}" '
            f'stroke-width="1.5"><title>{title}</title></circle>'
        )
    drop = html.escape(printable(f"drop of {result.metric}"))
    for value, where in ((x0, "start"), (x1, "end")):
        parts.append(f'<text x="{x(value):.0f}" y="{HEIGHT - 26}" text-anchor="{where}">×{value:.2f}</text>')
    for value in (y0, y1, result.max_drop):
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:.2g}</text>')
    parts += [
        f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">time of a run</text>',
        f'<text transform="translate(14 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">{drop}</text>',
    ]
    label = html.escape(printable(result.summary()))
    inside = "\n".join(f'<g fill="currentColor">{p}</g>' if p.startswith("<text") else p for p in parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{label}" style="{STYLE}">\n'
        f"{inside}\n</svg>"
    )
