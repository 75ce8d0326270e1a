"""Run whole networks on the native engine of another machine and compare every tensor with the reference's.

Usage, on a machine with torch:    python scripts/networks.py save FOLDER NETWORK...
Usage, on a machine without it:    python scripts/networks.py check FOLDER

`save` converts networks of benchmarks/coverage.py, and writes each program, an image, and digests of all tensors.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import intact8
from intact8.engines import get_engine
from intact8.program.program import Program


def digest(x: np.ndarray[Any, Any]) -> str:
    """Return a digest of the elements of an array."""
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()


def save(folder: Path, names: list[str]) -> None:
    """Write programs, images and digests of the reference's tensors."""
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from coverage import build

    for name in names:
        model, images = build(name), torch.randn(4, 3, 224, 224)
        program = intact8.quantize(model, images)
        image = images[:1].numpy()
        program.save(folder / name)
        np.save(folder / f"{name}.npy", image)
        tensors = get_engine("reference").prepare(program).tensors({program.inputs[0]: image})
        (folder / f"{name}.json").write_text(json.dumps({key: digest(x) for key, x in tensors.items()}))
        print(name, len(tensors), "tensors")


def check(folder: Path) -> int:
    """Compare the native engine's tensors with the digests; return the number of tensors that differ."""
    from intact8.engines.native import _library

    wrong = 0
    for path in sorted(folder.glob("*.json")):
        program = Program.load(path.with_suffix(""))
        expected = json.loads(path.read_text())
        image = np.load(path.with_suffix(".npy"))
        runner, inputs = get_engine("native").prepare(program, threads=1), {program.inputs[0]: image}
        tensors = runner.tensors(inputs)
        outputs = zip(program.outputs, runner(inputs), strict=True)  # epilogues leave out tensors between
        differ = [name for name, x in (*tensors.items(), *outputs) if digest(x) != expected[name]]
        size = sum(x.size for x in tensors.values())
        summary = f"{len(tensors)} tensors, {size} elements, {len(differ)} tensors differ {differ[:3] or ''}"
        print(f"{_library.instruction_set()}: {path.stem}: {summary}", flush=True)
        wrong += len(differ)
    return wrong


if __name__ == "__main__":
    command, where, *rest = sys.argv[1:]
    sys.exit(check(Path(where)) > 0 if command == "check" else save(Path(where), rest))
