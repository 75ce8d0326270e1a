"""The results of ``qat.py`` as Markdown."""

from __future__ import annotations

import contextlib
import math
import platform
import statistics
from typing import Any

import torch


def describe() -> str:
    """Processor and versions."""
    from importlib.metadata import PackageNotFoundError, version

    from intact8.runtime.facts import Facts

    parts = [Facts.here().cpu, f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    with contextlib.suppress(PackageNotFoundError):
        parts.append(f"torchao {version('torchao')}")
    return ", ".join(parts)


def markdown(about: dict[str, Any], results: dict[str, Any]) -> str:
    """Both tables, from whatever has been run."""
    lines = ["# Quantization-aware training", "", about["machine"], "", f"`{about['command']}`", ""]
    return "\n".join([*lines, *accuracy_table(results), "", *paired_table(results), "", *exactness_table(results), ""])


Groups = dict[tuple[str, str, str], dict[str, dict[str, Any]]]
"""Results by (network, bits, method) and seed."""


def by_method(results: dict[str, Any]) -> Groups:
    """The results about accuracy, grouped."""
    groups: Groups = {}
    for key, result in results.items():
        if key.startswith("accuracy/"):
            _, network, bits, method, seed = key.split("/")
            groups.setdefault((network, bits, method), {})[seed] = result
    return groups


def standard_error(values: list[float]) -> float:
    """Of their mean: s/√n."""
    return statistics.stdev(values) / math.sqrt(len(values))


def paired_table(results: dict[str, Any]) -> list[str]:
    """Learned scales against each other way to train, seed by seed, where there are at least three seeds of both."""
    groups = by_method(results)
    lines = [
        "## Learned scales, paired by seed", "",
        "Top-1 of what intact8 learned minus top-1 of the other, trained on the same batches in the same order: mean "
        "of the differences ± its standard error (s/√n), and in how many seeds learned was better, equal, worse. "
        "Within two standard errors of 0 the two are level.", "",
        "| network | bits | learned minus | seeds | difference | better, equal, worse | |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for (network, bits, method), runs in groups.items():
        ours = groups.get((network, bits, "intact8 learned"), {})
        both = [seed for seed in runs if seed in ours]
        if method == "intact8 learned" or len(both) < 3:
            continue
        differences = [ours[seed]["simulated"] - runs[seed]["simulated"] for seed in both]
        signs = [sum(d > 1e-9 for d in differences), 0, sum(d < -1e-9 for d in differences)]
        signs[1] = len(both) - sum(signs)
        mean, error = statistics.mean(differences), standard_error(differences)
        verdict = "level" if abs(mean) <= 2 * error else "learned better" if mean > 0 else "learned worse"
        cells = [
            network,
            bits,
            method,
            str(len(both)),
            f"{mean:+.3f} ± {error:.3f}",
            ", ".join(map(str, signs)),
            verdict,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def accuracy_table(results: dict[str, Any]) -> list[str]:
    """Mean and spread over seeds of what ships."""
    groups = by_method(results)
    lines = [
        "## Accuracy", "",
        "Top-1 in % of the fake-quantized network, mean of the seeds and, in brackets, lowest and highest; the mean of "
        "its difference to float32 as it was, and to float32 trained on for as long with the same seed; and the mean "
        "top-1 of the integers that ship (torch.ao: on x86, whose kernels know no 4-bit ranges: what was clipped in "
        "training no longer is).", "",
        "| network | bits | trained by | seeds | top-1 | to float32 | to float32 trained on | deployed |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    order = {key: position for position, key in enumerate(dict.fromkeys((n, b) for n, b, _ in groups))}
    for (network, bits, method), runs in sorted(groups.items(), key=lambda g: (order[g[0][:2]], g[0][2])):
        found = [run["simulated"] for run in runs.values()]
        deployed = [run["deployed"] for run in runs.values() if "deployed" in run]
        base = groups[network, "float32", "as it was"]["-"]["simulated"]
        longer = groups.get((network, "float32", "trained as long"), {})
        gained = [run["simulated"] - longer[seed]["simulated"] for seed, run in runs.items() if seed in longer]
        mean = statistics.mean(found)
        cells = [
            network, bits, method, str(len(found)),
            f"{mean:.2f}" + (f" ({min(found):.2f}–{max(found):.2f})" if len(found) > 1 else ""),
            f"{mean - base:+.2f}", f"{statistics.mean(gained):+.2f}" if gained else "",
            f"{statistics.mean(deployed):.2f}" if deployed else "",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def exactness_table(results: dict[str, Any]) -> list[str]:
    """Integers compared and those that differ."""
    lines = [
        "## Exactness after training", "",
        "Integers of the trained fake-quantized network against those of what is deployed: intact8's simulation "
        "against reference and onednn, each tensor of each; torch.ao FX against its int8 network on x86; torchao pt2e "
        "against what inductor makes of it.", "",
        "| network | trained by | steps | top-1 simulated | top-1 deployed | integers | differ | share |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    networks = list(dict.fromkeys(key.split("/")[1] for key in results))
    for key, r in sorted(results.items(), key=lambda item: networks.index(item[0].split("/")[1])):
        if key.startswith("exactness/"):
            _, network, method = key.split("/")
            if "refused" in r:
                lines.append(f"| {network} | {method} | refused: {r['refused']} | | | | | |")
                continue
            lines.append(
                f"| {network} | {method} | {r['steps']} | {r['simulated']:.2f} | {r['deployed']:.2f} "
                f"| {r['integers']:,} | {r['differ']:,} | {100 * r['differ'] / r['integers']:.2f} % |"
            )
    return lines
