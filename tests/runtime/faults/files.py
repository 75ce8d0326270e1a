"""Files that are damaged, cut short, or something else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.runtime.faults.base import Case, Loading, Result, caller, shared_load
from tests.runtime.faults.caller import Died
from tests.runtime.faults.machines import portable

from intact8.program.file import save


def no_file() -> Iterator[Case]:
    """What is no program file."""
    kinds: dict[str, tuple[Callable[[Path], Any], str]] = {
        "absent": (lambda p: p.unlink(), "No such file"),
        "a folder": (lambda p: (p.unlink(), p.mkdir()), "irectory"),
        "a pipe": (lambda p: (p.unlink(), os.mkfifo(p)), "no regular file"),
        "a device": (lambda p: (p.unlink(), p.symlink_to("/dev/zero")), "no regular file"),
        "a link to itself": (lambda p: (p.unlink(), p.symlink_to(p.name)), "symbolic links"),
        "empty": (lambda p: p.write_bytes(b""), "0 bytes"),
        "32 GB of nothing behind it": (lambda p: os.truncate(p, 1 << 35), "describes"),
        "a pickle": (lambda p: p.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR."), "not an intact8 program"),
        "a zip": (lambda p: p.write_bytes(b"PK\x03\x04" + bytes(200)), "not an intact8 program"),
        "a header of 8 EB": (lambda p: p.write_bytes(b"\xff" * 200), "a header of"),
    }
    for name, (damage, words) in kinds.items():
        yield Case("no program file", name, shared_load(Loading([words], job={"engine": "reference"}, damage=damage)))


def cut() -> Iterator[Case]:
    """Truncated at every 64-byte boundary."""
    yield Case("truncated", "at every 64 bytes", _truncated)


def _truncated(folder: Path) -> Result:
    path = save(portable(), folder / "net.safetensors")
    whole, total = path.read_bytes(), Result("", 0)
    for end in range(0, len(whole), 64):
        path.write_bytes(whole[:end])
        total.cases += 1
        try:
            with caller(shared=True) as process:
                answer = process(path=str(path), engine="reference", probe="never")
        except Died as death:
            total.deaths, total.outcome = total.deaths + 1, str(death)
            continue
        total.outcome = f"{answer.get('error')}: {answer.get('text')}"
        if answer.get("error") != "ProgramError" or "bytes" not in answer["text"] or not answer["remedy"]:
            total.wrong = f"cut at {end}: {total.outcome}"
        total.lost += path.read_bytes() != whole[:end]
    total.left = len(list(folder.iterdir())) - 1
    return total


def flipped() -> Iterator[Case]:
    """Bits of the header flipped, one at a time."""
    yield Case("header bit flips", "every bit of the first 64 bytes", _flips(0, 512, 1))
    yield Case("header bit flips", "every 101st bit", _flips(512, -1, 101))
    yield Case("header bit flips", "every other bit", _flips(512, -1, 1), False)


def _flips(start: int, stop: int, step: int) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        path = save(portable(), folder / "net.safetensors")
        whole = path.read_bytes()
        end = stop if stop > 0 else 8 * (8 + int.from_bytes(whole[:8], "little"))
        total = Result("", 0)
        refused = 0
        for first in range(start, end, 5000 * step):
            last = min(first + 5000 * step, end)
            total.cases += len(range(first, last, step))
            try:
                with caller(shared=True) as process:
                    answer = process("flips", path=str(path), start=first, stop=last, step=step)
            except Died as death:
                total.deaths, total.wrong = total.deaths + 1, f"bits {first} to {last}: {death}"
                continue
            refused += answer["refused"]
            if answer["vague"]:
                total.wrong = f"{answer['vague']} errors do not say what and where"
        total.lost, total.left = int(path.read_bytes() != whole), len(list(folder.iterdir())) - 1
        total.outcome = f"{refused} refused, {total.cases - refused} accepted and sound (names, notes, provenance)"
        return total

    return run
