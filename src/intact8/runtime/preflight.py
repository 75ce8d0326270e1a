"""Compare what a program on an engine needs with what a machine has. Nothing is imported or run for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from intact8.engines import ENGINES, check_name
from intact8.engines.cpu import has_vnni, isa
from intact8.engines.memory import predicted
from intact8.engines.spec import MIB, SPECS, EngineSpec
from intact8.errors import EngineError
from intact8.program.certify import certifiable, claim_error, uncertified, unclaimed
from intact8.program.program import Program

from .facts import Facts

OLD_NAME = "intact"
"""Name of the package in files from before it was renamed."""

OK, UNKNOWN, REFUSED = "ok", "unknown", "refused"


@dataclass(frozen=True, eq=False, repr=False)
class Row:
    """One thing looked at.

    Attributes:
        what: "architecture", "CPU features", "torch" …
        needed, found: what is needed and what was found, in words.
        verdict: "ok", "unknown" (cannot be read here, so the probe has to tell) or "refused".
        remedy: what to do where refused.
    """

    what: str
    needed: str
    found: str
    verdict: str = OK
    remedy: str = ""


# Newest GLIBCXX version a wheel of each manylinux policy may need (PEP 600 and auditwheel's policies): the highest
# entry not above the wheel's own policy counts.
GLIBCXX = {
    (2, 5): "3.4.8", (2, 12): "3.4.13", (2, 17): "3.4.19", (2, 24): "3.4.22", (2, 27): "3.4.24", (2, 31): "3.4.28",
    (2, 34): "3.4.29", (2, 35): "3.4.30", (2, 38): "3.4.32", (2, 39): "3.4.33",
}  # fmt: skip
LEGACY = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}


LEVEL_NAMES = {"avx512_core_vnni": "AVX512-VNNI", "avx2_vnni": "AVX-VNNI", "avx512_core": "AVX512", "sse41": "SSE4.1"}
"""oneDNN's names of x86 instruction sets → their common names, where these are not the same in capital letters."""


def preflight(program: Program, engine: str, facts: Facts) -> list[Row]:
    """Compare everything that ``program`` on ``engine`` needs with the machine that ``facts`` describes.

    Args:
        program: a checked program.
        engine: a name of ENGINES, or of an engine another package brings, of which only the memory is looked at.
        facts: facts about this machine (``Facts.here()``) or any other.
    """
    needs = SPECS.get(engine)
    rows = []
    if needs is not None:
        rows += [_architecture(engine, needs, facts)]
        rows += [_package(name, lowest, needs, facts) for name, lowest in needs.packages.items()]
        if needs.compiled:
            rows.append(_library(facts))
        if needs.features:
            rows += _features(engine, program, needs, facts)
            rows += [row for name in needs.packages for row in _wheel(name, facts)]
    rows.append(_memory(program, engine, needs, facts))
    return rows


def claim_row(program: Program, engine: str) -> Row:
    """Return the say whether every certificate claims the engine; refused where one does not because it cannot be
    proved."""
    needed = f"every certificate claims {engine}"
    error = claim_error(program, engine)
    if error is not None:
        return Row("proof", needed, f"{error.where}: {error.what}. {error.why}", REFUSED, error.remedy)
    first = unclaimed(program, engine) if engine != "reference" else None
    if first is None:
        return Row("proof", needed, "all do")
    found = f"not proved for {engine}, which may give other integers: {first.name} ({first.kind})"
    return Row("proof", needed, found, UNKNOWN, "use another engine, or compare on data: intact8 verify")


def refusal(rows: Sequence[Row], engine: str) -> EngineError | None:
    """Return the error of the first refused row; None where there is none."""
    row = next((row for row in rows if row.verdict == REFUSED), None)
    if row is None:
        return None
    what, why = f"{engine} cannot run this program on this machine", f"needed is {row.needed}; found is {row.found}"
    return EngineError(what, where=row.what, why=why, remedy=row.remedy)


def program_rows(program: Program) -> list[Row]:
    """Return rows for the proofs and golden vectors of a file. None of them refuses."""
    open_ops = uncertified(program)
    proved = sum(certifiable(op) for op in program.ops) - len(open_ops)
    first = f"; not proved: {open_ops[0][0].name} ({open_ops[0][1]})" if open_ops else ""
    golden = program.golden
    if golden is None:
        told = "none: the file was made without them"
    else:
        told = golden.omitted or f"{len(golden.samples)} samples, {len(golden.checksums)} tensors"
    needed, remedy = "every integer operation proved exact", "see the reason; intact8 verify compares engines on data"
    certificates = Row("certificates", needed, f"{proved} proved{first}", UNKNOWN if open_ops else OK, remedy)
    verdict = OK if golden is not None and golden.samples else UNKNOWN
    return [certificates, Row("golden vectors", "samples to reproduce", told, verdict, "convert the model again")]


def origin_row(program: Program, facts: Facts) -> Row:
    """Show where the program was made, beside this machine. Nothing depends on it; golden vectors are reproduced."""
    made = program.provenance
    flags = made.get("cpu_features")
    features = frozenset(v for v in flags if isinstance(v, str)) if isinstance(flags, list) else frozenset()
    there = [_cpu(str(made.get("machine", "not recorded"))[:20], features)]
    there += [f"{name} {made[name]!s:.20}" for name in ("intact8", OLD_NAME, "torch", "python") if name in made]
    here = [_cpu(facts.machine, facts.features)]
    here += [f"{name} {facts.packages[name]}" for name in ("intact8", "torch") if name in facts.packages]
    found = f"{', '.join(there)}; here: {', '.join([*here, f'python {facts.python}'])}"
    return Row("made on", "any machine, any version: the golden vectors decide", found)


def _cpu(machine: str, features: frozenset[str]) -> str:
    known = machine.lower() in ("x86_64", "amd64") and features
    return f"{machine} with {_level_name(isa(features, 'ALL'))}" if known else machine


def _level_name(level: str) -> str:
    return LEVEL_NAMES.get(level, level.upper())


def _architecture(engine: str, needs: EngineSpec, facts: Facts) -> Row:
    if not needs.x86:
        return Row("architecture", "any", facts.machine)
    verdict = OK if facts.is_x86 else REFUSED
    return Row("architecture", "x86_64", facts.machine, verdict, "use engine='onnxruntime' or engine='reference'")


def _package(name: str, lowest: str, needs: EngineSpec, facts: Facts) -> Row:
    install = f"pip install 'intact8[{needs.extra}]'" if needs.extra else f"pip install --upgrade {name}"
    found = facts.packages.get(name)
    if found is None:
        return Row(name, f"{lowest} or later", "not installed", REFUSED, f"{install}, or use engine='reference'")
    verdict = OK if _numbers(found) >= _numbers(lowest) else REFUSED
    return Row(name, f"{lowest} or later", found, verdict, f"pip install --upgrade {name}, or use engine='reference'")


def _library(facts: Facts) -> Row:
    needed, remedy = "built with the package", "install a wheel, or a C compiler and intact8 again"
    return Row(
        "compiled library",
        needed,
        "built" if facts.compiled else "not built",
        OK if facts.compiled else REFUSED,
        remedy,
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of 2.13.0+cpu."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(v) for v in found.group().split(".")) if found else ()


def _features(engine: str, program: Program, needs: EngineSpec, facts: Facts) -> list[Row]:
    if not facts.is_x86:
        return []
    limit = facts.environment.get("ONEDNN_MAX_CPU_ISA", facts.environment.get("DNNL_MAX_CPU_ISA", "ALL"))
    limited = limit.upper() not in ("ALL", "DEFAULT") and needs.limited
    if not facts.features:
        level, found = "", "CPU flags cannot be read"
    else:
        level = isa(facts.features, limit if limited else "ALL")
        found = _level_name(level) + (f" (ONEDNN_MAX_CPU_ISA={limit})" if limited else "")
    if "vnni" in program.needs:
        remedy = "convert with portable=True, or use engine='reference'"
        return [Row("CPU features", "AVX512-VNNI or AVX-VNNI", found, OK if has_vnni(level) else REFUSED, remedy)]
    wanted = ", ".join(needs.features).upper().replace("_", ".")
    if not facts.features:
        return [Row("CPU features", wanted, found, UNKNOWN)]
    missing = [f for f in needs.features if f not in facts.features]
    if missing:
        return [Row("CPU features", wanted, f"no {', '.join(missing)}", REFUSED, "use engine='reference'")]
    return [Row("CPU features", wanted, found)]


def _wheel(package: str, facts: Facts) -> list[Row]:
    """Compare the wheel's platform tags with the machine: architecture, C and C++ libraries."""
    tags = facts.wheels.get(package, ())
    platforms = [tag for joined in tags for tag in joined.split(".")]
    if not platforms or platforms == ["any"]:
        return []
    rows = []
    machine = _common_name(facts.machine)
    fits = any(_common_name(p).endswith((machine, "universal2")) for p in platforms)
    again = f"pip install --force-reinstall {package}"
    rows.append(Row(f"{package} wheel", machine, ", ".join(platforms), OK if fits else REFUSED, again))
    policies = [re.match(r"manylinux_(\d+)_(\d+)_", _modern(p)) for p in platforms]
    lowest = min(((int(m.group(1)), int(m.group(2))) for m in policies if m), default=None)
    if lowest is None or facts.system != "Linux":
        return rows
    needed = ".".join(map(str, lowest))
    if facts.glibc is None:
        rows.append(Row(f"C library for {package}", f"glibc {needed}", "unknown, or not glibc", UNKNOWN))
    else:
        verdict = OK if _numbers(facts.glibc) >= lowest else REFUSED
        remedy = f"use a newer system or an older {package}"
        rows.append(Row(f"C library for {package}", f"glibc {needed}", facts.glibc, verdict, remedy))
    newest = next((v for k, v in sorted(GLIBCXX.items(), reverse=True) if k <= lowest), None)
    if newest is not None and facts.glibcxx is not None:
        # Another one may come with the package's own search path, unless one is loaded already.
        worse = REFUSED if facts.glibcxx_loaded else UNKNOWN
        verdict = OK if _numbers(facts.glibcxx) >= _numbers(newest) else worse
        remedy, found = "an older libstdc++ comes first: clear LD_LIBRARY_PATH, or update it", f"up to {facts.glibcxx}"
        rows.append(Row(f"C++ library for {package}", f"GLIBCXX up to {newest}", found, verdict, remedy))
    return rows


def _common_name(machine: str) -> str:
    return machine.lower().replace("amd64", "x86_64").replace("arm64", "aarch64")


def _modern(tag: str) -> str:
    for old, new in LEGACY.items():
        tag = tag.replace(f"{old}_", f"{new}_")
    return tag


def _memory(program: Program, engine: str, needs: EngineSpec | None, facts: Facts) -> Row:
    needed = predicted(program, engine) + (needs.footprint if needs else 0)
    words = f"about {max(needed // MIB, 1)} MiB"
    if facts.memory is None:
        return Row("memory", words, "unknown", UNKNOWN)
    verdict = OK if needed <= facts.memory else REFUSED
    return Row("memory", words, f"{facts.memory // MIB} MiB", verdict, "free memory, or raise the container's limit")


def candidates(engine: str | Sequence[str]) -> tuple[str, ...]:
    """Return the engines to try, in order; "auto" is all of them, fastest first.

    Raises:
        EngineError: an empty sequence, or what is no engine's name.

    Example:
        >>> candidates("reference"), candidates("auto")[-1]
        (('reference',), 'reference')
    """
    if engine == "auto":
        return tuple(reversed(ENGINES))
    names = tuple(engine) if isinstance(engine, Sequence) and not isinstance(engine, str) else (engine,)
    if not names:
        raise EngineError("no engine is named", where="engine", remedy="engine='auto', or one or more names")
    for name in names:
        check_name(name)
    return names
