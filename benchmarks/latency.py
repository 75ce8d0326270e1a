"""What speed comparisons share: contenders that take turns, outputs checked first, a Markdown table and a JSON file."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import itertools
import json
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

import intact8
from intact8.engines.peak_throughput import int8_peak
from intact8.timing import Timing, interleaved

Call = Callable[[], object]
LEAST_COSINE = 0.9
"""Below this an int8 output is not the network's any more, and its time means nothing."""


@dataclass(frozen=True)
class Field:
    """Who takes part.

    Attributes:
        contenders: in the order of the table; the first is what the others are compared with.
        own: those of this project.
        int8: those whose time is also given as a share of the machine's int8 peak.
        pairs: whose ratios are listed.
        title, explanation: of the table.
        libraries: whose versions are stored.
    """

    contenders: tuple[str, ...]
    own: tuple[str, ...]
    int8: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    title: str
    explanation: str
    libraries: tuple[str, ...] = ("torch", "torchao", "onnxruntime", "openvino", "nncf")

    @property
    def base(self) -> str:
        """What the others are compared with."""
        return self.contenders[0]


class Subject(Protocol):
    """A network, quantized once by everybody."""

    name: str
    macs: int
    failed: dict[str, str]

    def calls(self, batch: int, threads: int) -> dict[str, Call]:
        """What is timed, by contender: calls that return the output."""
        ...


def attempt(failed: dict[str, str], who: str, make: Callable[[], Any]) -> Any:
    """What ``make`` gives, or None with the reason in ``failed``: the others are measured all the same."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - a peer that fails is reported
        failed[who] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]:.100}"
        return None


def kept_program(path: Path, make: Callable[[], intact8.Program]) -> intact8.Program:
    """The program that an earlier run left in a file, or what is made now, as it is read from there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make().save(path)
    return intact8.Program.load(path)


@contextmanager
def kept_networks(folder: Path | None) -> Iterator[Path]:
    """Where quantized networks lie: a folder for later runs, or one that is removed."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def cosine(a: Any, b: Any) -> float:
    """Mean over the batch of the cosine between centred outputs."""
    a, b = (np.asarray(v, np.float64).reshape(len(v), -1) for v in (a, b))
    a, b = (v - v.mean(1, keepdims=True) for v in (a, b))
    return float((np.sum(a * b, 1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).mean())


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch's thread count for a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(field: Field, subject: Subject, batch: int, threads: int, seconds: float, peak: float) -> dict[str, Any]:
    """One setting as JSON: contenders take turns, so that a machine that slows down slows all of them."""
    with torch_threads(threads):
        calls = subject.calls(batch, threads)
        outputs = {who: np.array(call()) for who, call in calls.items()}
        cosines = {who: cosine(outputs[field.base], y) for who, y in outputs.items()}
        for who, value in cosines.items():
            if not value >= LEAST_COSINE:
                subject.failed[who] = f"computes something else: cosine {value:.3f} to float32"
                del calls[who]
        # The call before the timed one is the contender's own: caches hold what is its, threads of others have stopped.
        settle = 0.001 if threads == 1 else 0.02
        timings = interleaved(calls, seconds=seconds * len(calls) / 3, settle=settle)
    return record(field, subject, batch, threads, timings, cosines, peak)


def record(
    field: Field, subject: Subject, batch: int, threads: int,
    timings: dict[str, Timing], cosines: dict[str, float], peak: float,
) -> dict[str, Any]:  # fmt: skip
    """One setting as JSON."""
    base, macs = timings[field.base], subject.macs * batch
    out: dict[str, Any] = {
        "model": subject.name, "batch": batch, "threads": threads, "gmacs": macs / 1e9,
        "failed": dict(subject.failed), "contenders": {},
    }  # fmt: skip
    for who, t in timings.items():
        out["contenders"][who] = t.to_json() | {
            "speedup": base.median / t.median,
            # float32's quartiles over the contender's median: the spread of what it is compared with, and its own.
            "speedup_lower": base.lower / t.upper,
            "speedup_upper": base.upper / t.lower,
            "cosine": cosines[who],
            "share_of_peak": macs / t.median / 1e9 / peak if who in field.int8 and peak else None,
        }
    return out


def table(field: Field, results: list[dict[str, Any]], wanted: Sequence[str]) -> str:
    """Milliseconds (speed-up over float32; share of the int8 peak) per setting and contender, and ratios."""
    head = "| model | batch | threads | " + " | ".join(wanted) + " |\n" + "|---" * (3 + len(wanted)) + "|"
    lines = [head]
    for r in results:
        cells = []
        for who in wanted:
            t = r["contenders"].get(who)
            if t is None:
                cells.append("failed" if who in r["failed"] else "–")
                continue
            share = f", {100 * t['share_of_peak']:.0f} %" if t["share_of_peak"] else ""
            cells.append(f"{t['median_ms']:.2f} ({t['speedup']:.2f}×{share})")
        lines.append(f"| {r['model']} | {r['batch']} | {r['threads']} | " + " | ".join(cells) + " |")
    lines += ["", "Ratios of medians in the same run; above 1, the first one is faster. Quartiles in brackets.", ""]
    pairs = [(a, b) for a, b in field.pairs if a in wanted and b in wanted]
    lines += [
        "| model | batch | threads | " + " | ".join(f"{a} : {b}" for a, b in pairs) + " | best intact8 : best peer |"
    ]
    lines += ["|---" * (4 + len(pairs)) + "|"]
    for r in results:
        cells = [ratio(r["contenders"].get(a), r["contenders"].get(b)) for a, b in pairs]
        mine, others = (
            min((t for who, t in r["contenders"].items() if (who in field.own) == own), key=lambda t: t["median_ms"])
            for own in (True, False)
        )
        cells.append(ratio(mine, others))
        lines.append(f"| {r['model']} | {r['batch']} | {r['threads']} | " + " | ".join(cells) + " |")
    failures = {f"{who} on {r['model']}: {why}" for r in results for who, why in r["failed"].items()}
    return "\n".join([*lines, "", *(f"- failed: {f}" for f in sorted(failures))]) + "\n"


def ratio(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str:
    """How many times faster a is than b."""
    if a is None or b is None:
        return "–"
    value = b["median_ms"] / a["median_ms"]
    lower = b["lower_quartile_ms"] / a["upper_quartile_ms"]
    upper = b["upper_quartile_ms"] / a["lower_quartile_ms"]
    return f"{value:.2f}× ({lower:.2f}–{upper:.2f})"


def arguments(text: str | None, field: Field, models: Sequence[str]) -> argparse.ArgumentParser:
    """The options every comparison has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(models))
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--contenders", nargs="*", default=list(field.contenders), choices=field.contenders)
    parser.add_argument("--seconds", type=float, default=6.0, help="per setting and three contenders")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--folder", type=Path, help="keep quantized networks there for the next run")
    parser.add_argument("--again", action="store_true", help="measure anew what today's file holds")
    return parser


def run(field: Field, args: argparse.Namespace, name: str, subjects: Callable[[str], Iterator[Subject]]) -> None:
    """Measure, print, write after every setting: what is there already is not measured again.

    Args:
        field: who takes part.
        args: of :func:`arguments`; ``args.contenders`` is put in order.
        name: of the files.
        subjects: model name → its :class:`Subject`, once, closed after use.
    """
    args.contenders = [c for c in field.contenders if c in args.contenders or c == field.base]
    date = datetime.date.today().isoformat()
    file = args.out / f"{date}-{name}.json"
    args.out.mkdir(parents=True, exist_ok=True)
    peaks = {threads: int8_peak(threads) or 0.0 for threads in args.threads}
    known = versions(field.libraries)
    machine = {"cpu": cpu_name(), "versions": known, "int8_peak_gmacs_per_s": peaks}
    results: list[dict[str, Any]] = []
    if file.exists():
        stored = json.loads(file.read_text())
        results = stored["results"] if stored.get("contenders") == args.contenders else []
    if args.again:
        chosen = set(itertools.product(args.models, args.batches, args.threads))
        results = [r for r in results if (r["model"], r["batch"], r["threads"]) not in chosen]
    if results:
        machine = stored["machine"]  # as it was when most of them were measured
    done = {(r["model"], r["batch"], r["threads"]) for r in results}
    facts = f"{machine['cpu']}; " + ", ".join(f"{n} {v}" for n, v in known.items()) + "; int8 peak "
    facts += ", ".join(f"{p:.0f} GMAC/s with {t} thread(s)" for t, p in machine["int8_peak_gmacs_per_s"].items())
    for model in args.models:
        settings = [(t, b) for t in args.threads for b in args.batches if (model, b, t) not in done]
        for subject in subjects(model) if settings else ():
            for threads, batch in settings:
                results.append(measure(field, subject, batch, threads, args.seconds, peaks[threads]))
                print(table(field, results[-1:], args.contenders), flush=True)
                models = list(dict.fromkeys([*(r["model"] for r in results), *args.models]))
                results.sort(key=lambda r: (models.index(r["model"]), r["threads"], r["batch"]))
                stored = {"machine": machine, "contenders": args.contenders, "results": results}
                file.write_text(json.dumps(stored, indent=1) + "\n")
    text = table(field, results, args.contenders)
    file.with_suffix(".md").write_text(f"# {field.title}, {date}\n\n{facts}\n\n{field.explanation}\n\n{text}")


def cpu_name() -> str:
    """The CPU's own name for itself."""
    from intact8.runtime import Facts

    return Facts.here().cpu or platform.processor() or platform.machine()


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Of the libraries that are measured."""
    found = {}
    for name in libraries:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
