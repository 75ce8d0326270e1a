"""Files of torch.save, read without torch and without running anything in them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intact8.errors import InputError
from intact8.migration.torch_file import QuantizedTensor, read_torch_bytes, read_torch_file

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_tensors_and_values_come_back(zip_format: bool, tmp_path: Path) -> None:
    values = {
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "half": torch.ones(5).half(),
        "bfloat16": torch.nn.Parameter(torch.linspace(-2, 2, 7).bfloat16()),
        "slice": torch.arange(10)[2:7:2],
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3, dtype=torch.uint8),
        "nested": {"list": [1, 2.5, "text", None, True, 10**15, -7], "size": torch.Size([2, 3])},
    }
    torch.save(values, tmp_path / "x.pth", _use_new_zipfile_serialization=zip_format)
    read = read_torch_file(tmp_path / "x.pth")
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            wanted = value.detach().float() if value.dtype == torch.bfloat16 else value.detach()
            assert np.array_equal(read[name].array(), wanted.numpy())
            assert read[name].array().shape == tuple(wanted.shape)
    assert read["nested"] == {"list": [1, 2.5, "text", None, True, 10**15, -7], "size": (2, 3)}


def test_quantized_tensors_come_back_as_integers(tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    rows = torch.quantize_per_channel(x, torch.rand(4).double() + 0.1, torch.zeros(4).long(), 0, torch.qint8)
    whole = torch.quantize_per_tensor(x, 0.05, 7, torch.quint8)
    torch.save({"rows": rows, "whole": whole}, tmp_path / "q.pth")
    read = read_torch_file(tmp_path / "q.pth")
    for name, there in (("rows", rows), ("whole", whole)):
        assert isinstance(read[name], QuantizedTensor)
        assert np.array_equal(read[name].array(), there.int_repr().numpy())
    assert np.array_equal(read["rows"].parameters()[0], rows.q_per_channel_scales().numpy())
    assert [v.tolist() for v in read["whole"].parameters()] == [[0.05], [7]]


class Harmful:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch harmed",)


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Harmful()}, "harmful.pth")
    with pytest.raises(InputError, match=r"it names (posix|nt)\.system, which nothing here reads"):
        read_torch_file("harmful.pth")
    assert not Path("harmed").exists()
    pickle.loads(pickle.dumps(Harmful()))  # the harm is real
    assert Path("harmed").exists()


def test_whole_models_are_refused_by_name(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pth")
    with pytest.raises(InputError, match=r"torch\.nn\.modules\.linear\.Linear"):
        read_torch_file(tmp_path / "model.pth")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x03\x04" + bytes(100), b"\x80\x02.", b"nonsense"])
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="this checkpoint cannot be read"):
        read_torch_bytes(content, "file")


def test_it_needs_no_torch(tmp_path: Path) -> None:
    torch.save({"x": torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)}, tmp_path / "q.pth")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from intact8.migration.torch_file import read_torch_file\n"
        f"print(read_torch_file({str(tmp_path / 'q.pth')!r})['x'].array().tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2, 2, 2]"
