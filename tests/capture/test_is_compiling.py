"""Models that ask whether they are compiled, and then leave out what they need."""

from __future__ import annotations

import threading

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import intact8
from intact8.capture.is_compiling import Asked, answered
from intact8.capture.trace import capture
from intact8.errors import CaptureError


class MakesItsMask(nn.Module):
    """A mask where none is given, but not in a compiled model, as LongT5, Switch Transformers and UDOP do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(x.shape[:2])
        return self.linear(x) * mask[:, :, None]  # type: ignore[index]


class Slower(nn.Module):
    """Two ways that both can be exported: that for compiled models stays."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * 2 if torch.compiler.is_compiling() else y + y


class Asks(nn.Module):
    """Does something else when it is compiled, in the words of older models."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * 2 if torch._dynamo.is_compiling() else y


class NeitherWay(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            raise ValueError("not when compiled")
        return x + 1 if float(x.sum()) > 0 else x - 1


def test_what_a_model_does_in_a_call_is_exported_where_what_it_does_compiled_fails() -> None:
    torch.manual_seed(0)
    model, x = MakesItsMask().eval(), torch.randn(64, 5, 8)
    before = torch.compiler.is_compiling
    program = intact8.quantize(model, x)
    assert torch.compiler.is_compiling is before and not torch.compiler.is_compiling()
    wanted = model(x[:3]).detach()
    assert float((program.run(x[:3]) - wanted).norm() / wanted.norm()) < 0.02, "and any number of samples"
    assert intact8.verify(program, x[:3]).mismatches == 0


def test_a_model_that_can_be_exported_is_told_that_it_is_compiled() -> None:
    graph = capture(Slower().eval(), torch.randn(2, 8)).graph
    assert "mul" in {node.op for node in graph} or "affine_scalar" in {node.op for node in graph}
    assert "add" not in {node.op for node in graph}


def test_older_models_ask_dynamo() -> None:
    torch.manual_seed(0)
    model, x = Asks().eval(), torch.randn(64, 8)
    before = torch._dynamo.is_compiling
    program = intact8.quantize(model, x)
    assert torch._dynamo.is_compiling is before and not torch._dynamo.is_compiling()
    wanted = model(x).detach()
    assert float((torch.as_tensor(program.run(x)) - wanted).norm() / wanted.norm()) < 0.02


def test_where_both_ways_fail_it_is_told_what_stops_a_call() -> None:
    with pytest.raises(CaptureError, match="depends on the values of the input.*same path for every input"):
        intact8.prepare(NeitherWay(), torch.randn(2, 8))


def test_torch_and_other_threads_get_their_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    asked, others = Asked(), []
    with answered(asked, eager=True):
        thread = threading.Thread(target=lambda: others.append(torch.compiler.is_compiling()))
        thread.start()
        thread.join()
        assert others == [True] and eval("q()", {"q": torch.compiler.is_compiling, "__name__": "torch.nn"})
        assert not asked.some
        assert not torch.compiler.is_compiling() and asked.some
    with answered(asked, eager=False):
        assert torch.compiler.is_compiling()


class Otherwise(nn.Module):
    """Computes something else when it is compiled, which can be exported as well."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return 1 - 3 * y if torch.compiler.is_compiling() else y


def test_what_a_model_does_in_a_call_is_captured_where_it_does_something_else_compiled() -> None:
    model, x = Otherwise().eval(), torch.randn(64, 8)
    program = intact8.quantize(model, x)
    assert torch.allclose(program.run(x[:3]), model(x[:3]), atol=0.1)
