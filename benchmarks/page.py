"""Writes the tables of docs/benchmarks.md and of the README from benchmarks/results/latest.

    python benchmarks/page.py

Files that measurements wrote as benchmarks/results/DATE-NAME move to benchmarks/results/latest/NAME first and replace
what was there. Between `<!-- results: NAME COUNT -->` and `<!-- end -->` of a page stand the first COUNT tables of that
result, or what the function of that name makes of it. A test holds that the pages are up to date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LATEST = RESULTS / "latest"
PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "README.md")

NETWORKS = {
    "fashion-cnn": "Fashion-MNIST CNN",
    "mobilenetv1_025": "MobileNetV1 ×0.25",
    "resnet18": "ResNet18",
    "mobilenet_v2": "MobileNetV2",
}
FLOWS = {
    "**intact8**, every engine": ("intact, default",),
    "torch.ao FX: reference model, fake-quantized model": ("torch.ao FX, reference", "torch.ao FX, fake-quantized"),
    "torchao pt2e: reference graph, fake-quantized model": ("torchao pt2e, reference", "torchao pt2e, fake-quantized"),
    "ONNX Runtime: QDQ file unoptimized": ("ONNX Runtime",),
    "NNCF: OpenVINO model in float32, torch module": ("NNCF, OpenVINO model", "NNCF, torch module"),
}
"""Row of the README's table → flows of mismatches.json, in the order of the row's numbers."""
TIMED = ("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0")
"""Networks of the README's table of times; the whole result has more."""
CONTENDERS = {
    "torch fp32": "float32",
    "intact8/native": "**intact8** (share of peak)",
    "ONNX Runtime static": "ONNX Runtime",
    "NNCF + OpenVINO": "NNCF + OpenVINO",
}


MARKED = re.compile(r"(<!-- results: (\S+)(?: (\d+))? -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""A part of a page: the name of a result, or of a function of this module, and how many of the result's tables."""


def main() -> None:
    """Move new results, and write what is marked in the pages."""
    for file in RESULTS.glob("*-*-*-*.*"):
        file.replace(LATEST / re.sub(r"^\d{4}-\d\d-\d\d-", "", file.name))
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """A page with what its marks ask for, from the results as they are now."""

    def part(found: re.Match[str]) -> str:
        name, count = found[2], int(found[3] or 1)
        made = SUMMARIES[name]() if name in SUMMARIES else tables(name)[:count]
        return found[1] + "\n\n".join(made) + "\n"

    return MARKED.sub(part, text)


def tables(name: str) -> list[str]:
    """The tables of a result."""
    text = (LATEST / f"{name}.md").read_text(encoding="utf-8")
    return [found.strip() for found in re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE)]


def doctor() -> list[str]:
    """How often the doctor was right."""
    said = [row.split("|")[4].strip() for row in tables("doctor")[0].splitlines()[2:]]
    return [f"The first finding named the right layer and the right cause in {said.count('yes')} of {len(said)}."]


def mismatches() -> list[str]:
    """Integers that differ between what is simulated and what runs."""
    results = json.loads((LATEST / "mismatches.json").read_text(encoding="utf-8"))["results"]
    rows = [f"| flow | {' | '.join(NETWORKS.values())} |", "|---" * (1 + len(NETWORKS)) + "|"]
    for row, flows in FLOWS.items():
        cells = [", ".join(share(results[f"{network}/{flow}"]) for flow in flows) for network in NETWORKS]
        rows.append(f"| {row} | {' | '.join(cells)} |")
    return ["\n".join(rows)]


def share(result: dict[str, Any]) -> str:
    """The largest share of integers that differ, of all executions."""
    if "refused" in result:
        return "refused"
    worst = max(result["executions"].values(), key=lambda execution: execution["differ"])
    differ, integers = worst["differ"], worst["integers"]
    if not differ:
        return "**0**"
    if differ / integers < 1e-4:
        return f"{differ} of {integers / 1e6:.1f} M"
    percent = 100 * differ / integers
    return f"{percent:.{1 if percent >= 1 else 2}f} %"


def speed() -> list[str]:
    """Milliseconds per call with one thread, and the ratio to the fastest peer."""
    results = json.loads((LATEST / "speed.json").read_text(encoding="utf-8"))["results"]
    rows = [f"| network | batch | {' | '.join(CONTENDERS.values())} | intact8 : fastest peer |", "|---" * 7 + "|"]
    for result in (r for r in results if r["threads"] == 1 and r["model"] in TIMED):
        times = {who: result["contenders"][who]["median_ms"] for who in CONTENDERS}
        cells = [f"{ms:.{1 if ms >= 100 else 2}f}" for ms in times.values()]
        cells[1] = f"**{cells[1]}** ({100 * result['contenders']['intact8/native']['share_of_peak']:.0f} %)"
        peers = [ms for who, ms in times.items() if who not in ("torch fp32", "intact8/native")]
        ratio = min(peers) / times["intact8/native"]
        rows.append(f"| {result['model']} | {result['batch']} | {' | '.join(cells)} | {ratio:.2f}× |")
    return ["\n".join(rows)]


def real_weights() -> list[str]:
    """Accuracy of networks whose weights come with packages, quantized by intact8 and by others."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in tables("real-weights")[0].splitlines()]
    columns = {"**intact8**": 3, "ONNX Runtime": 6, "NNCF": 7, "torch.ao FX": 8}
    heads = [row[0] + (f" (float32 {row[2]})" if "%" in row[2] else "") for row in rows[2:]]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(rows) - 1) + "|"]
    for name, column in columns.items():
        cells = [re.sub(r"^\w+Error$", "refused", row[column]) for row in rows[2:]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return ["\n".join(lines)]


SUMMARIES = {
    "summary-of-mismatches": mismatches,
    "summary-of-speed": speed,
    "summary-of-doctor": doctor,
    "summary-of-real-weights": real_weights,
}

if __name__ == "__main__":
    main()
