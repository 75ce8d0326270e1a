"""Whatever is given to be read is a regular file: a pipe, a device or a folder is refused with the reason, at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from intact8.cli.data import load as load_data
from intact8.cli.models import find_model
from intact8.diagnose.evaluation_scores import EvaluationState
from intact8.diagnose.sensitivity.checkpoint import Checkpoint
from intact8.errors import InputError, IntactError
from intact8.migration.run import describe
from intact8.migration.torch_file import read_torch_file
from intact8.program.file import load as load_program
from intact8.recipes import as_recipe
from intact8.reconstruction.learn import resume
from intact8.tuning.journal import Journal

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "program": (".safetensors", load_program),
    "npy": (".npy", load_data),
    "npz": (".npz", load_data),
    "safetensors": (".safetensors", load_data),
    "image": (".png", lambda path: load_data(path).read(0, 1)),
    "recipe": (".toml", as_recipe),
    "named recipe": ("", lambda path: as_recipe(str(path))),
    "weights": (".pt", lambda path: find_model("torch.nn:Identity", path)),
    "safetensors weights": (".safetensors", lambda path: find_model("torch.nn:Identity", path)),
    "scores": ("", lambda path: EvaluationState(path, {}).restore({})),
    "sensitivity": (".json", lambda path: Checkpoint(path, {})),
    "journal": (".jsonl", lambda path: Journal(path, {})),
    "reconstruction": (".pt", lambda path: resume(torch.nn.Identity(), path, {})),  # type: ignore[arg-type]
    "ONNX": (".onnx", describe),
    "IR": (".xml", describe),
    "torch.export": (".pt2", describe),
    "checkpoint": (".pt", read_torch_file),
}
PARAMETERS = [
    pytest.param(what, marks=pytest.mark.skipif(what == "IR" and not find_spec("openvino"), reason="needs openvino"))
    for what in READERS
]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this system's file system")
@pytest.mark.parametrize("what", PARAMETERS)
def test_pipes_are_refused(what: str, tmp_path: Path) -> None:
    suffix, read = READERS[what]
    path = tmp_path / f"pipe{suffix}"
    os.mkfifo(path)
    with pytest.raises(IntactError, match="it is a device or a pipe, no regular file"):
        read(path)


@pytest.mark.parametrize("what", PARAMETERS)
def test_folders_are_refused(what: str, tmp_path: Path) -> None:
    suffix, read = READERS[what]
    path = tmp_path / f"folder{suffix}"
    path.mkdir()
    with pytest.raises(IntactError, match=r"(?i)is a directory|no images in this folder"):
        read(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "5", '{"fingerprint": 5, "search": 5}', '{"fingerprint": {}}', "\x00"])
def test_damaged_state_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(InputError, match="no file of a sensitivity run"):
        Checkpoint(path, {})
    with pytest.raises(InputError, match="no journal of a search"):
        Journal(path, {"engine": "auto"})
    with pytest.raises(InputError, match="no scores of an evaluation"):
        EvaluationState(path, {}).restore({})
