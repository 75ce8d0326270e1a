"""The demonstration itself: train, quantize, save, load, verify, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from intact8.api import calibrate, convert, prepare
from intact8.demo import digits
from intact8.demo.network import DigitsNet
from intact8.demo.train import train
from intact8.diagnose.report import report as gather
from intact8.diagnose.report.html import missing
from intact8.engines import available_engines, get_runner
from intact8.program.program import Array, Op, Program
from intact8.simulation.simulation import Simulation
from intact8.timing import Timing, interleaved
from intact8.verification import VerifyReport, verify

EPOCHS = 12
BATCHES = (1, 64)
CALIBRATION_IMAGES = 512
REPORTED = 64

Progress = Callable[[str, float], None]
"""Called with the name of a stage and the share of it that is done, 0 to 1."""

STAGES = ("train", "calibrate", "convert", "verify", "report", "time")


@dataclass(frozen=True)
class DemoReport:
    """What the demonstration measured.

    Attributes:
        program: the program as loaded from ``path``.
        path: the file written.
        engine: the engine that measured int8 accuracy and latency.
        images: number of held-out images.
        accuracy: "float32" and "int8" share of held-out images classified right.
        nbytes: "float32" (the state dict as .safetensors) and "int8" (the program's file).
        latency: batch size → "float32" and "int8" quartiles, interleaved in one run on ``threads`` threads.
        threads: torch's number of threads.
        verification: integers compared between simulation and engines, on all held-out images.
        page: the HTML report beside the program; None where the extra ``report`` is not installed.
        seconds: duration of the whole demonstration.
    """

    program: Program
    path: Path
    engine: str
    images: int
    accuracy: dict[str, float]
    nbytes: dict[str, int]
    latency: dict[int, dict[str, Timing]]
    threads: int
    verification: VerifyReport
    page: Path | None
    seconds: float

    @property
    def fused(self) -> list[Op]:
        """Operations into which several operations of the network were fused."""
        return [op for op in self.program.ops if len(op.source) > 1]

    @property
    def tables(self) -> list[Op]:
        """Activations that are looked up in a table of 256 entries, computed when converting."""
        return [op for op in self.program.ops if "fn" in op.attrs and not op.is_float]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the program, as JSON values."""
        return {
            "path": str(self.path),
            "engine": self.engine,
            "held_out_images": self.images,
            "accuracy": self.accuracy,
            "bytes": self.nbytes,
            "latency": {
                str(batch): {name: timing.to_json() for name, timing in timings.items()}
                for batch, timings in self.latency.items()
            },
            "threads": self.threads,
            "verification": self.verification.to_json(),
            "fused": {op.name: list(op.source) for op in self.fused},
            "tables": {op.name: op.attrs["fn"] for op in self.tables},
            "float": {op.name: op.note for op in self.program.islands()},
            "page": None if self.page is None else str(self.page),
            "seconds": self.seconds,
        }


def run(path: Path, *, seed: int = 0, seconds_per_timing: float = 3.0, progress: Progress | None = None) -> DemoReport:
    """Train on scikit-learn's digits, quantize, save to ``path``, load it back, verify and time.

    Args:
        path: the .safetensors file to write; the report is written beside it.
        seed: of the split and of the training.
        seconds_per_timing: how long each batch size is timed.
        progress: see :data:`Progress`.

    Raises:
        IntactError: scikit-learn is missing, or the file cannot be written.
    """
    begin = time.perf_counter()
    report = progress if progress is not None else lambda stage, share: None
    data = digits.load(seed)

    model = train(data, seed=seed, epochs=EPOCHS, progress=partial(report, "train"))
    images = torch.from_numpy(data.train_images[:CALIBRATION_IMAGES])
    sim = prepare(model, images[:2])
    calibrate(sim, _tracked(torch.split(images, 64), report, "calibrate", -(-len(images) // 64)))
    convert(sim).save(path, plan="native" in available_engines())
    program = Program.load(path)
    report("convert", 1.0)

    held_out = data.held_out_images
    engines = tuple(available_engines(program))
    batches = [held_out[i : i + 50] for i in range(0, len(held_out), 50)]
    verification = verify(program, _tracked(batches, report, "verify", len(batches)), engines=engines, sim=sim)

    engine = engines[-1]  # the fastest there is
    answers = np.asarray(program.run(held_out, engine=engine)).argmax(1)
    with torch.inference_mode():
        wanted = model(torch.from_numpy(held_out)).argmax(1).numpy()
    page = _page(model, sim, program, held_out[:REPORTED], path)
    report("report", 1.0)
    return DemoReport(
        program=program,
        path=path,
        engine=engine,
        images=len(held_out),
        accuracy={
            "float32": float((wanted == data.held_out_labels).mean()),
            "int8": float((answers == data.held_out_labels).mean()),
        },
        nbytes={"float32": len(safetensors.torch.save(model.state_dict())), "int8": path.stat().st_size},
        latency=_latency(model, program, engine, held_out, seconds_per_timing, report),
        threads=torch.get_num_threads(),
        verification=verification,
        page=page,
        seconds=time.perf_counter() - begin,
    )


def _page(model: DigitsNet, sim: Simulation, program: Program, images: Array, path: Path) -> Path | None:
    """Write the report about the network, and return its path; None without the packages it needs."""
    if missing():
        return None
    made = gather(program, images, model=model, sim=sim, seconds=1.0, title=f"Handwritten digits: {path.name}")
    return made.save(path.with_suffix(".report.html"))


def _latency(
    model: DigitsNet, program: Program, engine: str, images: Array, seconds: float, report: Progress
) -> dict[int, dict[str, Timing]]:
    """Time both contenders from the same float images, so that int8 pays for quantizing them."""
    runner = get_runner(program, engine)
    name = program.inputs[0]
    eager = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    latency: dict[int, dict[str, Timing]] = {}
    for done, batch in enumerate(BATCHES):
        array = np.ascontiguousarray(images[:batch])
        tensor = torch.from_numpy(array).to(memory_format=torch.channels_last)

        def float32(tensor: torch.Tensor = tensor) -> object:
            with torch.inference_mode():
                return eager(tensor)

        def int8(array: Array = array) -> object:
            return runner({name: array})

        def progress(share: float, done: int = done) -> None:
            report("time", (done + share) / len(BATCHES))

        latency[batch] = interleaved({"float32": float32, "int8": int8}, seconds=seconds, progress=progress)
    return latency


def _tracked(items: Iterable[Any], report: Progress, stage: str, total: int) -> Iterator[Any]:
    for done, item in enumerate(items, start=1):
        yield item
        report(stage, done / total)
