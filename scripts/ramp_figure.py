"""Draws docs/ramp.svg: what becomes of 256 grey levels in one 1×1 convolution, by examples/ramp.py.

python scripts/ramp_figure.py
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "ramp.svg"
SHOWN = range(122, 135)
"""Input levels in the figure."""
WIDTH, STEP, LEFT, BOTTOM = 370, 19, 62, 300


def main() -> None:
    """Run the ramp through both, and write the figure."""
    FIGURE.write_text(figure(), encoding="utf-8")


def figure() -> str:
    """Return the figure as SVG, from the integers that come out."""
    sys.path.insert(0, str(ROOT / "examples"))
    import ramp

    ours = [result.row for result in ramp.with_intact(1.0)]
    assert all((row == ours[0]).all() for row in ours), "engines and simulation agree"
    theirs = next(result.row for result in ramp.with_torch_ao(1.0) if result.runner == "torch.ao int8")
    panels = panel(0, "intact8, every engine", ours[0].tolist()) + panel(WIDTH, "torch.ao", theirs.tolist())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} 350" role="img" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#1a2230">\n'
        "<title>A ramp of 256 grey levels through one convolution: which integer comes out for which goes in</title>\n"
        f'<rect width="{2 * WIDTH}" height="350" rx="10" fill="#ffffff"/>\n{panels}</svg>\n'
    )


def panel(x: int, title: str, row: Sequence[int]) -> str:
    """Return one staircase: a level that is lost is a step that two inputs share."""
    levels = len(set(row))
    colour = "#155e9c" if levels == len(row) else "#b3261e"
    lines = [
        f'<g transform="translate({x} 0)">',
        f'<text x="24" y="30" font-size="17" font-weight="600">{title}</text>',
        f'<text x="24" y="52" font-size="14" fill="{colour}">{len(row)} levels in, {levels} levels out</text>',
    ]
    for column, level in enumerate(SHOWN):
        out = row[level]
        left, y = LEFT + column * STEP * 1.2, BOTTOM - (out - SHOWN[0]) * STEP
        shared = list(row).count(out) > 1
        fill = "#b3261e" if shared else "#155e9c"
        lines.append(f'<rect x="{left:.1f}" y="{y - 5}" width="{STEP * 1.2:.1f}" height="5" fill="{fill}"/>')
        if level % 2 == 0:
            lines.append(f'<text x="{left + STEP * 0.6:.1f}" y="{BOTTOM + 22}" text-anchor="middle">{level}</text>')
            height = BOTTOM - (level - SHOWN[0]) * STEP
            lines.append(f'<text x="{LEFT - 10}" y="{height}" text-anchor="end">{level}</text>')
    middle = LEFT + len(SHOWN) * STEP * 0.6
    lines.append(f'<text x="{middle:.1f}" y="{BOTTOM + 42}" text-anchor="middle" fill="#596375">integer in</text>')
    turned = 'x="18" y="190" transform="rotate(-90 18 190)" text-anchor="middle" fill="#596375"'
    lines.append(f"<text {turned}>integer out</text>")
    return "\n".join([*lines, "</g>\n"])


if __name__ == "__main__":
    main()
