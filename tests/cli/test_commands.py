"""The commands end to end, on a small network of a user's module."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="quantizing needs torch")

from intact8.cli.app import app
from intact8.engines import available_engines, get_engine
from intact8.opset.op import Op, Tensor
from intact8.program.golden import products
from intact8.program.program import Program

SOURCE = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(3, 6)

    def forward(self, a, b):
        y = self.left(a) + self.right(b)
        return {"sum": y, "parts": [y[:, :2], y.softmax(1)]}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, ids):
        return self.out(self.words(ids))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "nets_of_cli_test.py").write_text(SOURCE)
    rng = np.random.default_rng(0)
    np.save(folder / "images.npy", rng.random((48, 3, 8, 8), dtype=np.float32))
    pair = {"b": rng.normal(size=(40, 3)).astype(np.float32), "a": rng.normal(size=(40, 4)).astype(np.float32)}
    np.savez(folder / "images.npz", a=pair["a"], labels=np.zeros(40))
    np.save(folder / "ids.npy", rng.integers(0, 20, (40, 6)))
    np.savez(folder / "pairs.npz", labels=np.zeros(40), **pair)
    return folder


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def intact8(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return result


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        intact8("quantize", "nets_of_cli_test:net", "--data", "images.npy", "-o", "net.safetensors")
    return folder / "net.safetensors"


def test_quantize_says_what_it_wrote_and_the_program_is_close_to_the_model(program: Path) -> None:
    from nets_of_cli_test import net
    from torch import from_numpy

    images = np.load("images.npy")
    wanted = net().eval()(from_numpy(images)).detach().numpy()
    got = Program.load(program).run(images)
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


def test_quantize_takes_recipes_samples_and_example_shape(folder: Path) -> None:
    common = ["quantize", "nets_of_cli_test:net", "--data", "images.npy", "--samples", "40"]
    result = intact8(*common, "--recipe", "minmax", "--example-shape", "4,3,8,8", "-o", "minmax.safetensors")
    assert "minmax.safetensors: " in result.stderr and "0 float operations" in result.stderr
    assert result.stdout == ""
    assert 'observer = "minmax"' in Program.load("minmax.safetensors").recipe
    assert "no such preset" in intact8(*common, "--recipe", "best", status=2).stderr
    assert "--example-shape" in intact8(*common, "--example-shape", "4,x", status=2).stderr


def test_quantize_takes_dimensions_that_may_change(folder: Path) -> None:
    common = ["quantize", "nets_of_cli_test:Tagger", "--data", "ids.npy", "-o", "tagger.safetensors"]
    intact8(*common, "--dynamic", "ids:1=length:1-9")
    program = Program.load("tagger.safetensors")
    assert program.dimensions == {"length": (1, 9)} and program.run(np.zeros((2, 9), np.int64)).shape == (2, 9, 3)
    assert "names no dimension" in intact8(*common, "--dynamic", "ids=length", status=2).stderr
    assert "no input is called 'words'" in intact8(*common, "--dynamic", "words:1=length", status=2).stderr


def test_nothing_is_left_where_the_output_cannot_be_written(folder: Path) -> None:
    before = sorted(folder.iterdir())
    result = intact8(
        "quantize", "nets_of_cli_test:net", "--data", "images.npy", "-o", "absent/net.safetensors", status=2
    )
    assert "absent" in result.stderr
    assert sorted(folder.iterdir()) == before


def test_several_inputs_and_nested_outputs(folder: Path) -> None:
    intact8(
        "quantize", "nets_of_cli_test:Two", "--data", "pairs.npz", "--key", "a", "--key", "b", "-o", "two.safetensors"
    )
    result = intact8("quantize", "nets_of_cli_test:Two", "--data", "pairs.npz", "-o", "named.safetensors")
    assert "stays float" in result.stderr and "softmax" in result.stderr
    intact8("run", "named.safetensors", "--data", "pairs.npz", "-o", "y.npz", "--engine", "reference")
    with np.load("y.npz") as results:
        assert {name: results[name].shape for name in results.files} == {
            "sum": (40, 6),
            "parts.0": (40, 2),
            "parts.1": (40, 6),
        }
    lacking = intact8("quantize", "nets_of_cli_test:Two", "--data", "images.npz", "-o", "z.safetensors", status=2)
    assert "no entry for 'b'" in lacking.stderr
    assert "one .npy" in intact8("run", "two.safetensors", "--data", "pairs.npz", "-o", "y.npy", status=2).stderr
    assert not Path("y.npy").exists()


@pytest.mark.parametrize("flag", [[], ["--tree"]], ids=["table", "tree"])
def test_inspect_names_every_operation(program: Path, flag: list[str]) -> None:
    shown = intact8("inspect", str(program), *flag).stdout
    for op in Program.load(program).ops:
        assert op.name in shown


@pytest.mark.parametrize("command", ["inspect", "report --seconds 0 -o {}"])
def test_no_name_is_broken_in_a_narrow_terminal(program: Path, tmp_path: Path, command: str) -> None:
    arguments = [*command.format(tmp_path / "page.html").split(), str(program)]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}).stdout
    assert all(op.name in shown for op in Program.load(program).ops)


def test_inspect_json_is_json(program: Path) -> None:
    assert json.loads(intact8("inspect", str(program), "--json").stdout)["numpy_on_native"] in ([], None)


@pytest.mark.skipif("native" not in available_engines(), reason="the native library was not built")
def test_inspect_names_what_numpy_computes(tmp_path: Path) -> None:
    x, y = Tensor("x", "float32", (None, 1, 7, 7)), Tensor("means", "float32", (None, 1, 3, 3))
    op = Op("means", "float.adaptive_avg_pool", ("x",), {"output_size": [3, 3]})
    program = Program({"x": x, "means": y}, (op,), ("x",), ("means",))
    path = str(program.save(tmp_path / "means.safetensors"))
    told = " ".join(intact8("inspect", path).stdout.split())
    assert "numpy on the native engine, exactly and slowly: means (float.adaptive_avg_pool)" in told
    assert json.loads(intact8("inspect", path, "--json").stdout)["numpy_on_native"] == ["means"]
    assert get_engine("native").prepare(program).numpy_operations == ("means",)  # type: ignore[attr-defined]


def test_verify_counts_every_integer(program: Path) -> None:
    engines = ",".join(available_engines())
    report = json.loads(intact8("verify", str(program), "--data", "images.npy", "--engines", engines, "--json").stdout)
    assert report["exact"] and report["mismatches"] == 0
    loaded = Program.load(program)
    per_sample = sum(int(np.prod(loaded.tensors[name].shape[1:])) for name in loaded.integer_tensors())
    assert report["elements"] == 48 * per_sample
    made_up = json.loads(intact8("verify", str(program), "--samples", "5", "--engines", engines, "--json").stdout)
    assert made_up["elements"] == 5 * per_sample


def test_verify_exits_1_when_an_engine_differs(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from intact8.engines.reference import ReferenceEngine

    engines = available_engines()
    if len(engines) == 1:
        pytest.skip("only one engine here")
    prepare = ReferenceEngine.prepare

    def off_by_one(self: ReferenceEngine, program: Program, **options: object) -> object:
        runner = prepare(self, program, **options)
        tensors = runner.tensors
        runner.tensors = lambda inputs, feed=None: {
            name: array ^ 1 if array.dtype == np.uint8 else array for name, array in tensors(inputs, feed).items()
        }
        return runner

    monkeypatch.setattr(ReferenceEngine, "prepare", off_by_one)
    result = intact8("verify", str(program), "--samples", "2", "--engines", ",".join(engines), status=1)
    assert result.stdout


def test_run_writes_what_the_program_gives(program: Path) -> None:
    intact8("run", str(program), "--data", "images.npy", "-o", "y.npy", "--batch-size", "7")
    assert np.array_equal(np.load("y.npy"), Program.load(program).run(np.load("images.npy")))


@pytest.mark.long
def test_bench_times_every_contender_in_turn(program: Path) -> None:
    engines = ",".join(available_engines())
    rows = json.loads(
        intact8(
            "bench", str(program), "--engines", engines, "--model", "nets_of_cli_test:net",
            "--batch", "2", "--seconds", "0", "--json",
        ).stdout
    )  # fmt: skip
    assert [row["contender"] for row in rows] == ["float32", *available_engines()]
    assert all(row["median_ms"] > 0 and row["calls"] == rows[0]["calls"] and row["batch"] == 2 for row in rows)
    for row in rows:
        assert row["ratio"] == pytest.approx(rows[0]["median_ms"] / row["median_ms"])
    peak = rows[0]["int8_peak_gmacs_per_s"]
    if peak is not None:
        work = 2 * products(Program.load(program))
        assert [row["share_of_int8_peak"] for row in rows] == [
            None if row["contender"] == "float32" else pytest.approx(work / row["median_ms"] / 1e6 / peak)
            for row in rows
        ]


@pytest.mark.skipif("onednn" not in available_engines(), reason="the reference engine has no setting for threads")
def test_bench_prints_ratios_and_puts_the_number_of_threads_back(program: Path) -> None:
    import torch

    before = torch.get_num_threads()
    shown = intact8("bench", str(program), "--model", "nets_of_cli_test:net", "--threads", "1", "--seconds", "0").stdout
    assert shown.count("float32") == shown.count("onednn") == 2  # batches 1 and 8
    assert "reference" not in shown and all(name in shown for name in available_engines() if name != "reference")
    assert "int8 peak" in shown
    assert "1.00×" in shown
    assert torch.get_num_threads() == before


def test_what_is_read_is_not_written_over(program: Path, folder: Path, tmp_path: Path) -> None:
    data, before = tmp_path / "data.npy", np.load("images.npy")
    np.save(data, before)
    (tmp_path / "link.npy").symlink_to(data)
    for command in (["quantize", "nets_of_cli_test:net"], ["run", str(program)]):
        for output in (data, tmp_path / "link.npy"):
            shown = intact8(*command, "--data", str(data), "-o", str(output), status=2).output
            assert "would be written over. Reason: data is the same file" in shown
    assert "file is the same file" in intact8("export", str(program), str(program), status=2).output
    assert np.array_equal(np.load(data), before)


def test_a_pipe_of_another_encoding_gets_question_marks(program: Path) -> None:
    result = CliRunner(charset="ascii").invoke(app, ["inspect", str(program), "--tree"])
    assert result.exit_code == 0 and "conv N?8?4?4" in result.output, result.output


def test_bench_refuses_another_network(program: Path) -> None:
    shown = intact8("bench", str(program), "--model", "nets_of_cli_test:Two", "--engines", "native", status=2).output
    assert "does not run on the program's inputs, (1, 3," in " ".join(shown.split())


def test_ctrl_c_during_calibration_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import intact8.api

    before = sorted(folder.iterdir())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(intact8.api, "compute_scales", interrupted)
    result = CliRunner().invoke(
        app, ["quantize", "nets_of_cli_test:net", "--data", "images.npy", "-o", "c.safetensors"]
    )
    assert result.exit_code == 130 and "interrupted" in result.stderr
    assert sorted(folder.iterdir()) == before
