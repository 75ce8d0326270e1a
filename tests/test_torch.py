"""Programs inside torch modules, compiled or not."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.capture.encoder import SEQUENCE, Encoder, call
from tests.program.build import certified, data
from torch import nn

import intact8
import intact8.torch
from intact8.errors import InputError
from intact8.opset.op import Op, Tensor
from intact8.program.program import Program

PROGRAM = certified()
X, BIAS = (torch.from_numpy(v) for v in data())


def same(got: Any, wanted: Any) -> bool:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    return True


def test_a_program_is_called() -> None:
    assert same(PROGRAM(X, BIAS, engine="reference"), PROGRAM.run(X, BIAS, engine="reference"))
    assert same(PROGRAM(X, bias=BIAS), PROGRAM.run(X, BIAS))


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_a_module_gives_what_the_program_gives(engine: str) -> None:
    module, wanted = intact8.torch.Module(PROGRAM, engine), PROGRAM.run(X, BIAS, engine=engine)
    assert same(module(X, BIAS), wanted) and same(module(X, bias=BIAS), wanted)
    assert same(module(x=X[:3], bias=BIAS[:3]), PROGRAM.run(X[:3], BIAS[:3], engine=engine))
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert same(again(X, BIAS), wanted)
    assert "float islands" in repr(module) and not list(module.parameters())


def test_what_a_module_refuses() -> None:
    module = intact8.torch.Module(PROGRAM)
    for given, named, what in (
        ((X,), {}, "missing"),
        ((X, BIAS, X), {}, "3 arguments"),
        ((X, BIAS), {"x": X}, "by name"),
        ((X,), {"bias": BIAS, "other": X}, "no such input"),
        ((X.double(), BIAS), {}, "float64"),
    ):
        with pytest.raises(InputError, match=what):
            module(*given, **named)
    with pytest.raises(InputError, match="is gone. Reason: its module was deleted, or a file of torch.export"):
        torch.ops.intact8.run([X, BIAS], module.number() + 1, "auto", "NCHW")


def test_another_program_may_be_put_in_its_place() -> None:
    module = intact8.torch.Module(PROGRAM, "reference")
    compiled = torch.compile(module, backend="eager")
    assert same(compiled(X, BIAS), PROGRAM.run(X, BIAS, engine="reference"))
    other = replace(PROGRAM, outputs=PROGRAM.outputs[:1], structure=0)
    module.program = other
    assert same(compiled(X, BIAS), other.run(X, BIAS, engine="reference"))
    with pytest.raises(InputError, match="quantize, intact8.convert"):
        module.program = None  # type: ignore[assignment]


def test_exported_graphs_find_their_program_and_no_other(tmp_path: Path) -> None:
    """Graphs name programs by what these are, as they lie in files: those of ``torch.compile`` without being asked."""
    first, twin = (intact8.torch.Module(PROGRAM, "reference") for _ in range(2))
    other = intact8.torch.Module(replace(PROGRAM, outputs=PROGRAM.outputs[:1] * 2))
    assert first.number() == twin.number() != other.number()
    x, wanted = (X, BIAS), PROGRAM.run(X, BIAS, engine="reference")
    torch.export.save(torch.export.export(first, x), tmp_path / "graph.pt2")
    del first
    assert same(torch.export.load(tmp_path / "graph.pt2").module()(*x), wanted), "another module of the program"
    del twin
    gc.collect()
    with pytest.raises(InputError, match="is gone"):
        torch.export.load(tmp_path / "graph.pt2").module()(*x)
    path = tmp_path / "program.safetensors"
    PROGRAM.save(path)
    loaded = intact8.torch.Module(Program.load(path))
    assert same(torch.export.load(tmp_path / "graph.pt2").module()(*x), wanted) and loaded.program.outputs


@pytest.mark.parametrize("compiled", [False, True])
def test_the_way_back_is_refused_where_it_is_gone(compiled: bool) -> None:
    model = Around(PROGRAM)
    call = torch.compile(model, backend="aot_eager") if compiled else model
    x = X.clone().requires_grad_()
    y = call(x, BIAS)
    with pytest.raises(InputError, match="a program has no gradients"):
        y.sum().backward()
    assert torch.equal(call(X, BIAS), y.detach())


class Around(nn.Module):
    """A program between float layers."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.inner = intact8.torch.Module(program)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = self.inner(x * 1.0, bias)
        return y["probabilities"] * 2 + y["rest"][0].sum()


def test_it_is_one_operator_of_a_compiled_model() -> None:
    model = Around(PROGRAM)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (10, 3, 7):
        assert torch.equal(compiled(X[:n], BIAS[:n]), model(X[:n], BIAS[:n]))
    torch.library.opcheck(
        torch.ops.intact8.run.default, ([X, BIAS], model.inner._number, "auto", "NCHW"),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )  # fmt: skip


def test_lengths_are_symbols() -> None:
    torch.manual_seed(0)
    sim = intact8.prepare(Encoder().eval(), call(2, 7), dynamic_shapes=SEQUENCE).eval()
    intact8.calibrate(sim, [call(8, length) for length in (7, 9, 12, 9)])
    program = intact8.convert(sim)
    module = intact8.torch.Module(program)
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    for batch, length in ((2, 5), (3, 9)):
        assert same(compiled(**call(batch, length)), program.run(**call(batch, length)))


def test_a_batch_that_grows_inside() -> None:
    x, y = Tensor("x", "float32", (None, 6, 2)), Tensor("y", "float32", (None, 2))
    program = Program({"x": x, "y": y}, (Op("y", "reshape", ("x",), {"shape": [-1, 2]}),), ("x",), ("y",))
    module = intact8.torch.Module(program, "reference")
    given = torch.rand(5, 6, 2)
    assert torch.equal(module(given), given.reshape(-1, 2)) and module(given).data_ptr() != given.data_ptr()
    with torch._subclasses.FakeTensorMode():
        assert module(torch.empty(5, 6, 2)).shape == (30, 2)
