"""Programs where there is no torch: virtual environments with intact8's runtime extras only, each of them made for it.

    python benchmarks/without_torch.py [--python /path/to/python3.13 …] [--output FILE]

The demo's program and the files of released versions (tests/fixtures) are loaded and run in each environment; their
outputs have to be those they have here, bit for bit. The environments have other versions of Python, numpy and the
engine than the one that wrote the files. Printed are also the time and memory that ``import intact8.runtime`` takes: at
most 0.3 s and 80 MB. Exit status 1 where anything is not so.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]
SECONDS, MEGABYTES = 0.3, 80

ENVIRONMENTS = (
    ("onnx", "onnxruntime", ()),
    ("openvino", "openvino", ()),
    ("onnx", "onnxruntime", ("numpy<2.3", "onnxruntime<1.24")),
    ("openvino", "openvino", ("numpy<2.3", "openvino<2026")),
)
"""Extra, engine, and versions in place of the latest."""

IMPORT = """
import sys, time
started = time.process_time()
import intact8.runtime
seconds = time.process_time() - started
status = open("/proc/self/status").read() if sys.platform == "linux" else "VmRSS: 0"
print(seconds, int(status.split("VmRSS:")[1].split()[0]) / 1024)
"""

LOAD = """
import importlib.metadata, importlib.util, json, platform, sys
import numpy, intact8.runtime
from intact8.program.golden import checksum, sample
engine, *paths = sys.argv[1:]
sums = {}
for path in paths:
    runner = intact8.runtime.load(path, engine=engine)
    program = runner.program
    given = sample(program, program.golden, 0)
    outputs = runner._runner(given)
    exact = program.golden.checksums
    sums[path] = [checksum(numpy.asarray(y)) if n in exact else 0 for n, y in zip(program.outputs, outputs)]
assert "torch" not in sys.modules and importlib.util.find_spec("torch") is None
print(json.dumps({"python": platform.python_version(), "numpy": numpy.__version__,
                  "engine": importlib.metadata.version(engine), "sums": sums}))
"""


def make(python: str, folder: Path, extra: str, pins: tuple[str, ...]) -> Path:
    """An environment with intact8 and one extra. Returns its Python."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    command = [str(inside), "-m", "pip", "install", "--quiet", f"{ROOT}[{extra}]", *pins]
    subprocess.run(command, check=True)
    return inside


def expected(paths: list[Path]) -> dict[str, list[int]]:
    """Checksums of each program's exact outputs on its first golden sample, by the reference engine, here."""
    import numpy as np

    from intact8.engines import get_runner
    from intact8.program.file import load
    from intact8.program.golden import checksum, sample

    sums = {}
    for path in paths:
        program = load(path)
        assert program.golden is not None
        outputs = get_runner(program, "reference")(sample(program, program.golden, 0))
        exact = program.golden.checksums
        named = zip(program.outputs, outputs, strict=True)
        sums[str(path)] = [checksum(np.asarray(y)) if n in exact else 0 for n, y in named]
    return sums


def versions() -> str:
    """What is installed here: what writes the demo's file."""
    found = []
    for package in ("torch", "numpy", "onnxruntime", "openvino"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to make environments with")
    parser.add_argument("--file", type=Path, help="a program file in place of the demo's, which takes a minute to make")
    parser.add_argument("--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = given.file
        if demo is None:
            from intact8.demo.run import run

            demo = run(folder / "digits.safetensors", seconds_per_timing=0.1).path
        text, fine = report(
            given.python, [demo, *sorted((ROOT / "tests" / "fixtures").glob("*/*.safetensors"))], folder
        )
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if fine else 1)


def report(pythons: list[str], paths: list[Path], folder: Path) -> tuple[str, bool]:
    """The table, and whether all is as it must be."""
    wanted, fine = expected(paths), True
    lines = [
        "# Programs without torch", "",
        f"`python benchmarks/without_torch.py`, {platform.system()} {platform.machine()}. Written under Python "
        f"{platform.python_version()}, {versions()}: {', '.join(path.name for path in paths)}. Loaded and run in new "
        "virtual environments that hold `intact8[extra]` and no torch:", "",
        "| Python | numpy | engine | import, CPU | memory after it | files | outputs |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for python in pythons:
        for extra, engine, pins in ENVIRONMENTS:
            inside = make(python, folder / f"{len(lines)}", extra, pins)
            # The first import compiles; a user has that once.
            runs = [
                subprocess.run([inside, "-c", IMPORT], capture_output=True, text=True, check=True) for _ in range(4)
            ]
            numbers = [tuple(map(float, run.stdout.split())) for run in runs[1:]]
            seconds, memory = min(n[0] for n in numbers), max(n[1] for n in numbers)
            command = [str(inside), "-c", LOAD, engine, *map(str, paths)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                fine = False
                lines.append(
                    f"| {python} | {' '.join(pins)} | {engine} | | | | {done.stderr.strip().splitlines()[-1]} |"
                )
                continue
            found = json.loads(done.stdout)
            same = found["sums"] == wanted
            fine &= same and seconds <= SECONDS and memory <= MEGABYTES
            told = "the same, bit for bit" if same else "**they differ**"
            cells = [found["python"], found["numpy"], f"{engine} {found['engine']}", f"{seconds:.2f} s"]
            lines.append(f"| {' | '.join(cells)} | {memory:.0f} MB | {len(paths)} | {told} |")
            print(lines[-1], file=sys.stderr, flush=True)
    lines += ["", f"Bounds: {SECONDS} s, {MEGABYTES} MB, no torch, the same outputs: {'held' if fine else 'NOT HELD'}."]
    return "\n".join(lines), fine


if __name__ == "__main__":
    main()
