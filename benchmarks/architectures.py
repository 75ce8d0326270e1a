"""The table of architectures by family in docs/architectures.md, from results of a run over many networks.

    python benchmarks/architectures.py RESULTS.jsonl [--quantized QUANTIZED.jsonl] [--docs docs/architectures.md]

Every line of the results is a network: its family (``group``), ``status`` ("ok", "error", …), how many integers differ
by engine (``mismatch``: engine → [differing, compared, …]) and the ``error`` of what is refused. Families that begin
with ``own-`` and ``new-`` are first tries of networks outside the set, ``again-`` later ones.

A line of the quantized ones is a network through ``intact8.quantize`` (``prepare``, ``calibrate``, ``convert`` give the
same): the cosine of an output to float32's (``cos``) and that of plain W8A8, which quantizes weights and inputs of
layers only, with the ranges of the same samples (``cos_plain``), for the output where it is furthest behind; what was
chosen (``between_layers`` and ``portable``), the day it was run, and where known the number of samples that were
compared (``test``), and ``paired``: how much larger the cosine of a sample is than plain W8A8's, on average, and the
standard error of that, for the output that is worst by it; ``spread``: the least and largest cosine of plain W8A8 in
nine runs, in eight of which the ends of all ranges are off by random 0.001 % (standard deviation).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

FAMILIES = {
    "timm": "image classifiers (timm)",
    "tv": "torchvision: classifiers, detection parts, segmentation, video",
    "hf": "transformers: text, vision, speech",
    "yolo": "ultralytics: YOLO v3 to v12, RT-DETR",
    "smp": "segmentation_models_pytorch",
    "dense": "image to image: U-Nets, super-resolution, generators",
    "audio": "audio",
    "seq": "sequences and time series",
    "misc": "others: graphs, tables, recommendation, SAM, CLIP",
}
MARGIN = 0.01
"""A cosine this much below that of plain W8A8 is counted as below it."""

Row = dict[str, Any]


def ran(row: Row) -> bool:
    """Return whether the network ran in float32, so that it was the turn of intact8."""
    return str(row["status"]) in ("ok", "error") or str(row["status"]).startswith(("killed", "died"))


def differing(row: Row) -> int:
    """Return the integers that differ from the reference, over all engines that were run and the simulation."""
    return sum(found[0] for found in row.get("mismatch", {}).values() if isinstance(found, list))


def line(name: str, rows: list[Row]) -> str:
    """Return one row of the table."""
    cells = [
        name,
        len(rows),
        sum(row["status"] == "ok" for row in rows),
        sum(row["status"] == "error" for row in rows),
        sum(row["status"] not in ("ok", "error") for row in rows),
        sum(map(differing, rows)),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def table(rows: list[Row]) -> list[str]:
    """Return the table in Markdown, a row per family and one for all."""
    columns = ["family", "tried", "converted", "refused", "died or took too long", "integers that differ"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for key, name in FAMILIES.items():
        family = [row for row in rows if row["group"].rpartition("-")[2] == key]
        if family:
            lines.append(line(name, family))
    return [*lines, line("**all**", rows)]


def by_quantize(rows: list[Row]) -> list[str]:
    """Return what ``quantize`` reaches on networks: a table by family, what it chose, and those below plain W8A8."""
    columns = ["family", "networks", "median cosine to float32", "of plain W8A8", f"below it by more than {MARGIN}"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for key, name in (*FAMILIES.items(), ("", "**all**")):
        family = [row for row in rows if key in ("", row["group"])]
        if family:
            middle = (f"{statistics.median(row[which] for row in family):.3f}" for which in ("cos", "cos_plain"))
            cells = [name, len(family), *middle, sum(map(is_below, family))]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    chosen = Counter((row["between_layers"], row["portable"]) for row in rows)
    lines += ["", "| chosen between layers | portable | networks |", "|---|---|---|"]
    lines += [f"| `{between}` | `{portable}` | {count} |" for (between, portable), count in chosen.most_common()]
    below = list(filter(is_below, rows))
    if below:
        lines += [
            "",
            "Below plain W8A8, over all samples together; beside it what plain W8A8 itself gives with ranges that are",
            "off by 0.001 %, and how much larger the cosine of one sample is than plain W8A8's, on average, with its",
            f"standard error. {sum(map(is_within, below))} of {len(below)} are no lower than it in one of these.",
            "",
            "| network | `quantize` | plain W8A8 | ranges off by 0.001 % | one sample |",
            "|---|---|---|---|---|",
        ]
    for row in below:
        other = " to ".join(f"{end:.3f}" for end in row.get("spread", []))
        mean, error = row["paired"]
        lines += [
            f"| `{row['name']}` | {row['cos']:.3f} | {row['cos_plain']:.3f} | {other} | {mean:+.3f} ± {error:.3f} |"
        ]
    lines += [""]
    means = [row for row in rows if "paired" in row and row["paired"][0] < -MARGIN]
    sure = [row for row in means if row["paired"][0] + 2 * row["paired"][1] < -MARGIN]
    others = [
        f"`{row['name']}` ({row['paired'][0]:+.3f} ± {row['paired'][1]:.3f})" for row in means if not is_below(row)
    ]
    lines += [
        f"By the average over samples {len(means)} are below by more than {MARGIN}, {len(sure)} of them by more than "
        f"twice the standard error beyond that; not among those above: {', '.join(others) or 'none'}.",
        "",
    ]
    return lines


def is_below(row: Row) -> bool:
    """Return whether ``quantize`` is below plain W8A8 by more than MARGIN."""
    return bool(row["cos"] < row["cos_plain"] - MARGIN)


def is_within(row: Row) -> bool:
    """Return whether plain W8A8 is as low with ranges that are off by what float32 rounding may do."""
    return "spread" in row and bool(row["cos"] >= row["spread"][0])


def refusals(rows: list[Row]) -> list[str]:
    """Return what was refused and why, one line a network."""
    found = []
    for row in rows:
        if row["status"] == "error":
            found.append(f"- `{row['name']}`: {row['error']['msg'].partition('. Remedy')[0]}")
        elif row["status"] != "ok":
            found.append(f"- `{row['name']}`: {row['status']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--quantized", type=Path, default=Path("benchmarks/results/architectures_quantized.jsonl"))
    parser.add_argument("--docs", type=Path, default=Path("docs/architectures.md"))
    options = parser.parse_args()
    rows = [row for row in map(json.loads, options.results.read_text().splitlines()) if ran(row)]
    suite = [row for row in rows if "-" not in row["group"]]
    own, new, again = (
        [row for row in rows if row["group"].startswith(f"{chosen}-")] for chosen in ("own", "new", "again")
    )
    mended = {row["name"] for row in again if row["status"] == "ok" and not differing(row)}
    begin, end = "<!-- table -->", "<!-- end of table -->"
    head, _, rest = options.docs.read_text().partition(begin)
    body = [*table(suite), "", "Not in that set, chosen before any was tried, at the first try:", "", *table(own), ""]
    body += ["Chosen in the same way for the last run, of types that were never looked at, at the first try:", ""]
    body += [*table(new), ""]
    names = ", ".join(f"`{name}`" for name in sorted(mended))
    body += [f"Refused at the first try, and converted since, with no integer that differs: {names}.", ""]
    quantized = [json.loads(text) for text in options.quantized.read_text().splitlines()]
    body += [
        "How near outputs are to float32's, where calibration [chooses](recipes.md#between-layers) what is rounded:",
        "",
    ]
    body += by_quantize(quantized)
    body += ["Refused, or not done in time:", "", *refusals([row for row in rows if row["name"] not in mended])]
    options.docs.write_text("\n".join([head + begin, *body, end]) + rest.partition(end)[2])


if __name__ == "__main__":
    main()
