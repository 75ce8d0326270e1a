"""What can happen to a saved int8 model, side by side: the classic way (torch.ao, torch.save, torch.load), intact8's.

    python benchmarks/side_by_side.py [--output benchmarks/results/DATE-side-by-side.md]

One network, quantized by both on the same data. Each outcome is that of a process of its own, told by that process or,
where it died, by its exit status. Outputs are compared with those of the process that quantized. The malicious file
writes a marker file and does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
CLASSIC, OURS = "model.pt", "model.safetensors"


def network() -> Any:
    """A float network with random weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i in range(6):
        layers += [nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 1000)).eval()


def convert(model: Any, data: Any) -> Any:
    """torch.ao FX static quantization by its defaults for x86, calibrated on ``data``."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (data[:1],))
    prepared(data)
    return convert_fx(prepared)


def make(folder: Path) -> None:
    """Both files, the input and what each gives for it."""
    import numpy as np
    import torch

    import intact8

    model, data, x = network(), torch.randn(64, 3, 32, 32), torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        model.train()(data)  # batch norm statistics
    model.eval()
    intact8.quantize(model, data).save(folder / OURS)
    ours = intact8.runtime.load(folder / OURS, engine="onednn")(x.numpy())
    with torch.no_grad():
        quantized = convert(model, data)
        torch.save(quantized.state_dict(), folder / CLASSIC)
        np.savez(folder / "io.npz", x=x.numpy(), classic=quantized(x).numpy(), ours=ours)


def loaded(folder: str, weights_only: bool) -> Any:
    """The classic way to load: the network converted anew, its state from the file."""
    import torch

    with torch.no_grad():
        quantized = convert(network(), torch.randn(1, 3, 8, 8))
    quantized.load_state_dict(torch.load(Path(folder, CLASSIC), weights_only=weights_only))
    return quantized


def classic(folder: str, engine: str = "x86", weights_only: bool = True) -> dict[str, Any]:
    """torch.load, and a call."""
    import torch

    torch.backends.quantized.engine = engine
    model = loaded(folder, weights_only)
    with torch.no_grad():
        return compared(folder, "classic", lambda x: model(torch.from_numpy(x)).numpy())


def ours(folder: str, engine: str = "onednn", torch: str = "") -> dict[str, Any]:
    """intact8.runtime.load, and a call; with another version of torch told to it, if given."""
    from dataclasses import replace

    import intact8.runtime

    facts = intact8.runtime.Facts.here()
    if torch:
        facts = replace(facts, packages={**facts.packages, "torch": torch})
    limit = 600.0 if "QEMU" in os.environ else 120.0
    runner = intact8.runtime.load(Path(folder, OURS), engine=engine, facts=facts, time_limit=limit)
    return compared(folder, "ours", runner)


def compared(folder: str, which: str, call: Callable[[Any], Any]) -> dict[str, Any]:
    """The share of outputs that are not those of the process that quantized."""
    import numpy as np

    stored = np.load(Path(folder, "io.npz"))
    share = float((call(stored["x"]) != stored[which]).mean())
    return {"told": "loads; same outputs" if share == 0 else f"loads; **{share:.2%} of the outputs differ, silently**"}


def saving(folder: str, which: str, limit: int = 0) -> dict[str, Any]:
    """Save over the file that is there, on a disk with room for ``limit`` bytes if given."""
    import torch

    if which == "classic":
        state = loaded(folder, True).state_dict()
        save = lambda: torch.save(state, Path(folder, CLASSIC))  # noqa: E731
    else:
        import intact8

        program = intact8.Program.load(Path(folder, OURS))
        save = lambda: program.save(Path(folder, OURS))  # noqa: E731
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    print("ready", flush=True)
    started = time.perf_counter()
    save()
    return {"told": "saved", "seconds": time.perf_counter() - started}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"classic": classic, "ours": ours, "saving": saving}


class Place:
    """A folder with fresh copies of both files, and processes that work on them."""

    def __init__(self, made: Path, folder: Path) -> None:
        self.made, self.folder = made, folder
        self.fresh()

    def fresh(self) -> None:
        """The files as they were made."""
        for path in self.made.iterdir():
            shutil.copy(path, self.folder / path.name)

    def start(self, task: str, prefix: str = "", environment: dict[str, str] | None = None, **job: Any) -> Any:
        """A process at work."""
        cache = str(self.folder / "cache")
        path = {"PYTHONPATH": str(ROOT / "src"), "INTACT8_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        command = [prefix or sys.executable, __file__, "--child", task, json.dumps({"folder": str(self.folder), **job})]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **path, **(environment or {})},
        )  # fmt: skip

    def outcome(self, task: str, **given: Any) -> str:
        """What came of a process, in words."""
        child = self.start(task, **given)
        out, err = child.communicate(timeout=1800)
        if child.returncode < 0:
            return f"**the process dies: {signal.Signals(-child.returncode).name}, no traceback**"
        if child.returncode > 128:
            return f"**the process dies: {signal.Signals(child.returncode - 128).name}, no traceback**"
        if child.returncode != 0:
            last = [line for line in err.strip().splitlines() if line.strip()][-1]
            return f"error: {shorter(last)}"
        return str(json.loads(out.strip().splitlines()[-1])["told"])


def shorter(text: str) -> str:
    """An error's last line: without its module and the folders of this machine."""
    import re

    text = re.sub(r"/\S*/([\w.-]+)", r"\1", text.removeprefix("intact8.errors.")).replace("|", "\\|")
    return text if len(text) <= 260 else f"{text[:257]}…"


def truncated(place: Place) -> None:
    for name in (CLASSIC, OURS):
        path = place.folder / name
        os.truncate(path, path.stat().st_size // 2)


def flipped(place: Place, task: str) -> str:
    """One bit flipped, the highest of a byte, at several places of the file one after the other."""
    name, told = CLASSIC if task == "classic" else OURS, []
    for place_in_file in (0.1, 0.2, 0.3, 0.5, 0.7):
        place.fresh()
        path = place.folder / name
        data = bytearray(path.read_bytes())
        data[int(len(data) * place_in_file)] ^= 0x80
        path.write_bytes(data)
        told.append(place.outcome(task))
    place.fresh()
    refused = [words for words in told if words.startswith("error")]
    silent = sum("silently" in words for words in told)
    first = f"; the first: {refused[0]}" if refused else ""
    counts = f"of {len(told)} files {len(refused)} refused, {silent} loaded **with other outputs, silently**"
    return (counts if silent else counts.replace("**", "")) + first


def malicious(place: Place) -> None:
    """A pickle that writes a marker file, under both names."""
    import pickle

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(place.folder / "marker"), "w"))

    for name in (CLASSIC, OURS):
        (place.folder / name).write_bytes(pickle.dumps(Payload()))


def killed(place: Place, which: str, kills: int) -> str:
    """Saves over an old file, killed at random moments: what can be loaded afterwards."""
    task = "classic" if which == "classic" else "ours"
    child = place.start("saving", which=which)
    seconds = json.loads(child.communicate()[0].splitlines()[-1])["seconds"]
    lost, left, chance = 0, 0, random.Random(0)
    for _ in range(kills):
        place.fresh()
        child = place.start("saving", which=which)
        child.stdout.readline()
        time.sleep(chance.uniform(0, seconds))
        child.kill()
        child.communicate()
        lost += not place.outcome(task).startswith("loads; same")
        left += len([p for p in place.folder.iterdir() if p.name not in (CLASSIC, OURS, "io.npz", "cache")])
    return f"{f'**{lost}**' if lost else 'none'} of {kills} files lost, {left} temporary files left"


def full(place: Place, which: str) -> str:
    """A save over an old file where the disk is full."""
    task = "classic" if which == "classic" else "ours"
    said = place.outcome("saving", which=which, limit=100_000)
    after = place.outcome(task)
    return f"{said} Then the old file: {'intact8' if after.startswith('loads; same') else f'**lost** ({after})'}"


def emulated(cpu: str, folder: Path) -> str:
    """What runs Python on an older CPU; "" where there is no qemu."""
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        return ""
    path = folder / f"python-{cpu}"
    # The probe's child has to be started by the same: else the kernel runs it on the real CPU.
    path.write_text(f'#!/bin/sh\nQEMU={cpu} exec {qemu} -cpu {cpu} {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def rows(made: Path, folder: Path, kills: int, cpus: Sequence[str]) -> list[tuple[str, str, str]]:
    """Fault, classic outcome, our outcome."""
    place = Place(made, folder / "work")
    found = []

    def row(name: str, classic: str, ours: str) -> None:
        found.append((name, classic, ours))
        print(f"| {name} | {classic} | {ours} |", file=sys.stderr, flush=True)

    row("nothing", place.outcome("classic"), place.outcome("ours"))
    for level in ("AVX2", "SSE41"):
        lower = {"ONEDNN_MAX_CPU_ISA": level, "ATEN_CPU_CAPABILITY": "avx2" if level == "AVX2" else "default"}
        row(f"CPU features switched off: ONEDNN_MAX_CPU_ISA={level}",
            place.outcome("classic", environment=lower), place.outcome("ours", environment=lower))  # fmt: skip
    row("another quantized engine: `qnnpack`, `onnxruntime`", place.outcome("classic", engine="qnnpack"),
        place.outcome("ours", engine="onnxruntime"))  # fmt: skip
    row("another quantized engine: `onednn`, `openvino`", place.outcome("classic", engine="onednn"),
        place.outcome("ours", engine="openvino"))  # fmt: skip
    row("no engine: `none`, torch not needed", place.outcome("classic", engine="none"),
        place.outcome("ours", engine="reference"))  # fmt: skip
    version = "no version of torch in the file" if no_version(made / CLASSIC) else "a version is in the file"
    row("another torch (2.1.0) than the one needed", f"{version}: nothing to compare",
        place.outcome("ours", torch="2.1.0"))  # fmt: skip
    truncated(place)
    row("file truncated to a half", place.outcome("classic"), place.outcome("ours"))
    row("one bit flipped in the file", flipped(place, "classic"), flipped(place, "ours"))
    malicious(place)
    told = []
    for task, job in (("classic", {"weights_only": False}), ("classic", {}), ("ours", {})):
        said = place.outcome(task, **job)
        marker = place.folder / "marker"
        told.append(f"**its code ran**; then {said}" if marker.exists() else said)
        marker.unlink(missing_ok=True)
    row("a malicious pickle in its place, `weights_only=False`", told[0], told[2])
    row("a malicious pickle in its place, `weights_only=True`", told[1], told[2])
    place.fresh()
    row("SIGKILL while saving over it", killed(place, "classic", kills), killed(place, "ours", kills))
    place.fresh()
    row("disk full while saving over it", full(place, "classic"), full(place, "ours"))
    place.fresh()
    for cpu in cpus:
        python = emulated(cpu, folder)
        if python:
            outside = {"QEMU": cpu, "INTACT8_PYTHON": python}
            row(f"an older CPU ({cpu}, emulated by qemu)", place.outcome("classic", prefix=python, environment=outside),
                place.outcome("ours", prefix=python, environment=outside))  # fmt: skip
    return found


def no_version(path: Path) -> bool:
    import torch

    return torch.__version__.encode() not in path.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="saves killed at random moments")
    parser.add_argument("--cpus", nargs="*", default=["Haswell", "SandyBridge", "Nehalem"], help="emulated by qemu")
    parser.add_argument("--output", type=Path, help="also write the table here")
    parser.add_argument("--child", nargs=2, metavar=("TASK", "JOB"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.child:
        sys.executable = os.environ.get("INTACT8_PYTHON", sys.executable)
        print(json.dumps(TASKS[given.child[0]](**json.loads(given.child[1]))))
        return
    import torch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("made", "work"):
            (folder / part).mkdir()
        make(folder / "made")
        table = rows(folder / "made", folder, given.kills, given.cpus)
    lines = [
        "# The classic way and intact8's, fault by fault", "",
        f"`python benchmarks/side_by_side.py --kills {given.kills}`, Python {platform.python_version()}, "
        f"torch {torch.__version__}, "
        f"{platform.system()} {platform.machine()}. Classic: torch.ao FX static, `torch.save` of its state, "
        "`torch.load` into the same network converted anew. Each outcome is that of a process of its own.", "",
        "| what happens | classic | intact8 |", "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in table),
    ]  # fmt: skip
    print("\n".join(lines))
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
