"""``intact8 doctor --env``: what this machine is, and what can and cannot run here, found out by trying it.

Everything that may crash (importing torch, running an engine) happens in child processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.display import Shown, titled_table
from intact8.engines.cpu import LEVELS, has_vnni, isa
from intact8.engines.spec import SPECS
from intact8.golden import with_golden
from intact8.machine import INT8_FEATURES, native_library
from intact8.opset.op import Array, Op, Tensor
from intact8.program.certify import ENGINES, certify
from intact8.program.program import Program
from intact8.runtime.check import CheckReport, check_file
from intact8.runtime.facts import Facts
from intact8.runtime.preflight import OK, REFUSED, Row, preflight

if TYPE_CHECKING:
    from rich.console import Group

EMPTY = Program({}, (), (), ())

_ASK_TORCH = """
import json, torch
config = torch.__config__.show()
print(json.dumps({
    "version": torch.__version__,
    "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
    "cuda": torch.version.cuda or "",
    "debug": bool(torch.version.debug),
    "onednn": bool(torch._C._has_mkldnn),
    "onednn_version": next((line.split("v")[1].split()[0] for line in config.splitlines() if "MKL-DNN v" in line), ""),
    "compiler": next((line.strip(" -") for line in config.splitlines() if "GCC" in line or "clang" in line), ""),
    "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    "threads": torch.get_num_threads(),
}))
"""


@dataclass(frozen=True)
class Ability:
    """One thing that can or cannot be done here.

    Attributes:
        what: the thing in words.
        possible: whether it can be done.
        why: the reason, with the remedy where it cannot be done.
    """

    what: str
    possible: bool
    why: str


@dataclass(frozen=True)
class Environment(Shown):
    """What ``intact8 doctor --env`` shows; prints as tables with rich.

    Attributes:
        facts: machine, libraries and versions.
        flags: CPU flags that matter to int8 (names of INT8_FEATURES) → whether this CPU has them.
        isa: the instruction set oneDNN uses here, one of ``intact8.engines.cpu.LEVELS``.
        torch: its build: version, cxx11_abi, cuda, debug, onednn, onednn_version, compiler, cpu_capability, threads;
            ``error`` alone where it cannot be imported.
        trial: one convolution through preflight and, in a child process, through every engine.
        abilities: what follows.
    """

    facts: Facts
    flags: dict[str, bool]
    isa: str
    torch: dict[str, Any]
    trial: CheckReport
    abilities: tuple[Ability, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        values = asdict(self)
        engines = values.pop("trial")["engines"]
        return {**values, "facts": self.facts.to_json(), "engines": engines}

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        def yes_no(value: bool, style_of_no: str) -> Text:
            return Text("yes", "green") if value else Text("no", style_of_no)

        flags = [(name, yes_no(there, "yellow"), INT8_FEATURES[name]) for name, there in self.flags.items()]
        torch = [(name.replace("_", " "), _words(found)) for name, found in self.torch.items()]
        abilities = [(a.what, yes_no(a.possible, "bold red"), a.why) for a in self.abilities]
        return Group(
            titled_table("machine", ("", "found"), self._machine().items()),
            titled_table("CPU flags that matter", ("flag", "here", "what it is good for"), flags),
            titled_table("torch", ("", "found"), torch),
            titled_table("what can be done here", ("", "", "why"), abilities),
        )

    def _machine(self) -> dict[str, str]:
        facts = self.facts
        runtime = f"GLIBCXX up to {facts.glibcxx}" if facts.glibcxx else "unknown"
        return {
            "CPU": f"{facts.cpu or 'unknown'}, {facts.machine}",
            "oneDNN's instruction set": self.isa,
            "system": facts.system,
            "memory": "unknown" if facts.memory is None else f"{facts.memory / 2**30:.1f} GiB free",
            "Python": facts.python,
            "C library": f"glibc {facts.glibc}" if facts.glibc else "unknown, or not glibc",
            "C++ runtime": f"{runtime}{', loaded' if facts.glibcxx_loaded else ''}",
            "packages": ", ".join(f"{name} {version}" for name, version in facts.packages.items()),
            **{f"${name}": value for name, value in facts.environment.items()},
        }


def _words(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value) or "none"


def environment(*, probe: bool = True, time_limit: float = 60.0) -> Environment:
    """Look at this machine and try every engine on one convolution.

    Args:
        probe: whether child processes run the engines; without, only versions and CPU flags are compared.
        time_limit: seconds for each child process.

    Example:
        >>> environment(probe=False).facts.packages["numpy"] == np.__version__
        True
    """
    facts = Facts.here()
    program = specimen()
    with tempfile.TemporaryDirectory(prefix="intact8-") as folder:
        path = program.save(Path(folder) / "specimen.safetensors")
        trial = check_file(path, probe=probe, time_limit=time_limit, facts=facts)
    flags = {name: name in facts.features for name in INT8_FEATURES if _concerns(name, facts)}
    level = isa(facts.features) if facts.features else LEVELS[0]
    torch = _torch(facts, time_limit)
    return Environment(facts, flags, level, torch, trial, _abilities(facts, trial, level, torch))


def specimen() -> Program:
    """Return a convolution with every certificate, on which the engines are tried."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {
        "weight": rng.integers(-60, 61, (8, 8, 3, 3)).astype(np.int8),
        "bias": rng.integers(-500, 500, 8).astype(np.int32),
        "a": np.full(8, 5, np.int32),
        "b": np.full(8, 1001, np.int32),
    }
    attrs = {key: [1, 1] for key in ("stride", "padding", "dilation")} | {"output_padding": [0, 0], "groups": 1}
    attrs |= {"transposed": False, "lo": 0, "hi": 255, "residual_a": 0}
    grid = float(np.float32(0.05))
    program = Program(
        tensors={
            "x": Tensor("x", "float32", (None, 8, 9, 9)),
            "quantize": Tensor("quantize", "uint8", (None, 8, 9, 9), grid, 128),
            "conv": Tensor("conv", "uint8", (None, 8, 9, 9), grid, 100),
        },
        ops=(
            Op("quantize", "quantize", ("x",), {"lo": 0, "hi": 255}),
            Op("conv", "conv", ("quantize",), attrs, arrays),
        ),
        inputs=("x",),
        outputs=("conv",),
    )
    return with_golden(certify(program, ENGINES))


def _concerns(flag: str, facts: Facts) -> bool:
    return (flag in ("asimddp", "i8mm")) == (facts.machine.lower() in ("aarch64", "arm64"))


def _torch(facts: Facts, seconds: float) -> dict[str, Any]:
    """Ask a child process how torch was built, for importing it can end the process."""
    if "torch" not in facts.packages:
        return {"error": "not installed: pip install 'intact8[torch]'"}
    try:
        child = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing torch did not end within {seconds:.0f} s"}
    if child.returncode != 0:
        said = child.stderr.strip().splitlines()
        ended = f"signal {-child.returncode}" if child.returncode < 0 else f"exit status {child.returncode}"
        return {"error": f"importing torch ends the process ({ended}): {said[-1] if said else 'it said nothing'}"}
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def _abilities(facts: Facts, trial: CheckReport, level: str, torch: Mapping[str, Any]) -> tuple[Ability, ...]:
    found = [_engine(check.engine, check.usable, check.rows) for check in trial.engines]
    usable = [check.engine for check in trial.engines if check.usable and check.engine != "reference"]
    found += [_vnni(name, facts) for name in usable if facts.is_x86 and SPECS[name].features]
    if facts.is_x86:
        safe = has_vnni(level)
        why = (
            f"{level} adds products in int32"
            if safe
            else (f"{level} adds pairs of products in int16; programs are proved not to saturate unless portable=False")
        )
        found.append(Ability("int8 without saturation, in any library that uses oneDNN", safe, why))
    if usable:
        found.append(_compiled())
    why = str(torch.get("error", f"torch {torch.get('version')}"))
    found.append(Ability("quantize and train", "error" not in torch, why))
    return tuple(found)


def _compiled() -> Ability:
    built = native_library() is not None
    why = (
        "the package was built with a C compiler"
        if built
        else "slower, the same bits: install a wheel of this platform, or a C compiler and intact8 again"
    )
    return Ability("the native engine's library", built, why)


def _vnni(engine: str, facts: Facts) -> Ability:
    demanding = replace(EMPTY, needs=("vnni",))
    row = next(row for row in preflight(demanding, engine, facts) if row.what == "CPU features")
    why = row.found if row.verdict == OK else f"needed is {row.needed}; found is {row.found}. Remedy: {row.remedy}"
    return Ability(f"run programs that need VNNI (portable=False) on {engine}", row.verdict == OK, why)


def _engine(name: str, usable: bool, rows: tuple[Row, ...]) -> Ability:
    refused = next((row for row in rows if row.verdict == REFUSED), None)
    if refused is None:
        return Ability(f"run programs on {name}", usable, rows[-1].found)
    why = f"{refused.what}: needed is {refused.needed}; found is {refused.found}"
    return Ability(f"run programs on {name}", usable, f"{why}. Remedy: {refused.remedy}" if refused.remedy else why)
