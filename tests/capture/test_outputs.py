"""Every output the model returns is returned, with its own value, or the model is refused with one sentence."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn

import intact8
from intact8 import outputs
from intact8.capture import equivalence as agree
from intact8.capture.equivalence import FirstOfEqual, differences
from intact8.capture.execute import run_float
from intact8.capture.trace import TOGETHER, capture
from intact8.errors import CaptureError
from intact8.program.program import Program

X = torch.linspace(-1, 1, 6 * 4 * 4).reshape(6, 4, 4)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Output:
    logits: Any
    hidden: Any = None


@dataclasses.dataclass
class Doubled:
    value: Any
    twice: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.twice = self.value * 2


class Net(nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, function: Callable[[Net, Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(4, 4), function
        self.register_buffer("rows", torch.arange(3.0))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.layer(x), x)


def assert_alike(found: Any, expected: Any) -> None:
    """The same structure, dtypes and shapes, plain values equal, numbers within quantization's error."""
    ours, our_spec = pytree.tree_flatten(found)
    theirs, their_spec = pytree.tree_flatten(expected)
    assert our_spec == their_spec
    for mine, given in zip(ours, theirs, strict=True):
        assert type(mine) is type(given) or isinstance(given, nn.Parameter)
        if not isinstance(given, Tensor):
            assert mine == given
            continue
        assert mine.dtype == given.dtype and mine.shape == given.shape
        if given.is_floating_point():
            assert float((mine - given).abs().max()) < 0.05


GIVEN: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "input": lambda m, y, x: (y, x),
    "constants": lambda m, y, x: (y, m.rows, m.layer.weight, torch.ones(2)),
    "plain": lambda m, y, x: (y, 3, 2.5, True, "text", None, y.shape[1], y.shape[1] > 2),
    "twice": lambda m, y, x: (y, [y, {"again": y}]),
    "views": lambda m, y, x: (y.flatten(1), y.transpose(1, 2), y[:, 1:]),
    "empty": lambda m, y, x: (y, (), [], {}),
    "only-plain": lambda m, y, x: (None, 1),
    "min": lambda m, y, x: y.min(1),
    "max": lambda m, y, x: y.max(2),
    "argmin": lambda m, y, x: (y.argmin(1), y.argmin(2, keepdim=True)),
    "moments": lambda m, y, x: (*torch.var_mean(y, 1), *torch.std_mean(y, 2)),
    "dataclass": lambda m, y, x: Output(y, (x, None)),
    "named-tuple": lambda m, y, x: Pair(y, {"x": Pair(x, 1)}),
    "in-place": lambda m, y, x: (y.clone().gt_(0.1), y.clone().logical_not_()),
    "where": lambda m, y, x: torch.where(y > 0, y, -2 * x),
    "logsumexp": lambda m, y, x: (y.logsumexp(2), y.logsumexp((1, 2), keepdim=True)),
    "sort": lambda m, y, x: tuple(y.sort()),
    "pool-indices": lambda m, y, x: F.max_pool2d(y[:, None], 2, return_indices=True),
    "pool-indices-used": lambda m, y, x: F.max_unpool2d(*F.max_pool2d(y[:, None], 2, return_indices=True), 2),
    "compared-with-infinity": lambda m, y, x: y * torch.isposinf(y),
    "number-keys": lambda m, y, x: {1: y, 0: [y + 1, {("disparity", 0): y * 2, "mask": y * 3}]},
    "empty-slice": lambda m, y, x: torch.cat([y[..., :4] * 2, y[..., 4:]], -1),
}


@pytest.mark.parametrize("name", GIVEN)
def test_every_output_is_returned(name: str, tmp_path: Path) -> None:
    model = Net(GIVEN[name]).eval()
    with torch.no_grad():
        expected = model(X)
    program = intact8.quantize(model, X)
    assert_alike(program.run(X), expected)
    sim = intact8.prepare(model, X)
    assert_alike(sim(X), expected)


REFUSED: dict[str, tuple[Callable[[Any, Tensor, Tensor], Any], str]] = {
    "adaptive-indices": (lambda m, y, x: F.adaptive_max_pool1d(y, 2, return_indices=True), "output 1 of this operator"),
    "layer-norm-moments": (lambda m, y, x: torch.native_layer_norm(y, [4], None, None, 1e-5), "output 1 of this"),
    "batch-size": (lambda m, y, x: (y, y.shape[0]), "a number that changes with the size of the input"),
    "infinity": (lambda m, y, x: (y, float("inf")), "the number inf is returned"),
    "odd-key": (lambda m, y, x: {1.5: y}, "a dict with the key 1.5"),
    "device": (lambda m, y, x: (y, y.device), "returns a device"),
    "known-to-torch-only": (lambda m, y, x: deque([y]), "returns a deque"),
    "computing-class": (lambda m, y, x: Doubled(y), "a class that computes when it is made is returned"),
    "nothing-in-it": (lambda m, y, x: (y, y[:, 4:]), "which holds nothing"),
    "random": (lambda m, y, x: y + 4 * torch.rand(4), "random numbers"),
    "computed-weight": (
        lambda m, y, x: F.conv3d(y[..., None, None], y.mean((0, 2)).view(1, 4, 1, 1, 1)),
        "computed from the network's input",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_returned_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(CaptureError, match=message) as caught:
        capture(Net(function), X)
    assert caught.value.where and caught.value.remedy and "dynamic_batch" not in str(caught.value)


def test_classes_come_back_where_a_captured_model_returned_them_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = intact8.quantize(Net(GIVEN["dataclass"]), X)
    loaded = Program.load(program.save(tmp_path / "m.safetensors"))
    assert isinstance(program.run(X), Output) and isinstance(loaded.run(X), Output)
    monkeypatch.setattr(outputs, "_CLASSES", {})
    found = loaded.run(X)
    assert type(found) is dict and list(found) == ["logits", "hidden"]
    # The name of a class that exists and is imported makes no instance of it.
    assert outputs.build("subprocess.Popen", {"args": 1}) == {"args": 1}


def test_a_graph_that_loses_or_changes_an_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(lambda m, y, x: (y, x)).eval()
    honest = agree.run_float

    def wrong(*args: Any) -> dict[str, Tensor]:
        return {name: value + 1 for name, value in honest(*args).items()}

    capture(model, X)
    monkeypatch.setattr(agree, "run_float", wrong)
    with pytest.raises(CaptureError, match="does not compute what the model does.*output 0 differs by"):
        capture(model, X)
    monkeypatch.setattr(agree, "run_float", lambda *args: {n: v.double() for n, v in honest(*args).items()})
    with pytest.raises(CaptureError, match=r"output 0 is float32\[6, 4, 4\], the graph's float64\[6, 4, 4\]"):
        capture(model, X, dynamic_batch=False)


MIXED: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "first-sample": lambda m, y, x: y[:1] + y,
    "cat-along-batch": lambda m, y, x: torch.cat([y, y]),
    "roll": lambda m, y, x: y.roll(1, 0),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")
def test_samples_that_have_to_do_with_one_another_may_be_of_any_number(name: str) -> None:
    model = Net(MIXED[name]).eval()
    program = intact8.quantize(model, X)
    assert program.tensors[program.inputs[0]].shape[0] == "rows"
    assert any(note.startswith(TOGETHER) for note in capture(model, X).notes)
    for x in (X, X[:3], X[: 1 + (name == "roll")]):
        with torch.no_grad():
            assert_alike(program.run(x), model(x))
        assert intact8.verify(program, x).mismatches == 0


def test_samples_with_numbers_of_their_own_fix_the_batch_and_say_so() -> None:
    model = Net(lambda m, y, x: y + torch.arange(len(x))[:, None, None]).eval()
    with pytest.warns(intact8.errors.CaptureWarning, match=r"will take x \(6, 4, 4\) and no other batch size"):
        program = intact8.quantize(model, X)
    with torch.no_grad():
        assert_alike(program.run(X), model(X))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x)


def test_sequence_first_attention_returns_its_weights() -> None:
    torch.manual_seed(0)
    model, x = Attends().eval(), torch.randn(5, 3, 8)
    sim = intact8.prepare(model, x).eval()
    intact8.calibrate(sim, [x])
    program = intact8.convert(sim)
    for given in (x, x[:, :1]):
        with torch.no_grad():
            assert_alike(program.run(given), model(given))


def test_outputs_that_rounding_turns_over_are_no_fault_of_the_graph() -> None:
    expected, turned = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    assert list(differences(turned, expected, expected)) == ["output 0 differs by 63% of its norm"]
    assert not list(differences(turned, expected, turned))


@pytest.mark.parametrize("kind", [OrderedDict, partial(defaultdict, list)])
def test_dicts_of_the_standard_library_come_back_as_such(kind: Any, tmp_path: Path) -> None:
    def function(net: Net, x: Tensor, y: Tensor) -> Any:
        found = kind()
        found["b"], found["a"] = y, [y * 2]
        return found

    program = intact8.quantize(Net(function).eval(), X)
    program.save(tmp_path / "p.safetensors")
    for run in (program.run, intact8.runtime.load(tmp_path / "p.safetensors")):
        found = run(X)
        assert type(found) is type(kind()) and list(found) == ["b", "a"]


class EqualScores(nn.Module):
    """A detector that learnt nothing: the scores that it takes the largest of are all equal."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.score = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 1)
        nn.init.zeros_(self.score.weight)

    def forward(self, x: Tensor) -> Any:
        y = self.encoder(x)
        chosen = self.score(y)[..., 0].topk(5).indices
        return self.head(y.gather(1, chosen[..., None].expand(-1, -1, 8)))


def test_the_order_of_equal_scores_is_no_fault_of_the_graph() -> None:
    torch.manual_seed(0)
    model, x = EqualScores().eval(), torch.randn(4, 100, 8)
    order = model.score(model.encoder(x))[0, :, 0].topk(5).indices.tolist()
    assert order != list(range(5)), "torch takes others than the first, or this test shows nothing"
    values = run_float((captured := capture(model, x)).graph, captured.tensors(), [x])
    with torch.no_grad():
        first = model.head(model.encoder(x)[:, :5])
    assert torch.allclose(values[captured.graph.outputs[0]], first, atol=1e-6)


def test_topk_takes_equal_numbers_in_their_order() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    with FirstOfEqual():
        values, indices = x.topk(2)
        least = x.topk(2, dim=0, largest=False)
        number = torch.tensor(2.0).topk(1)
        assert indices.is_contiguous() and least.indices.view(-1).numel() == 10, "heads of detectors view them"
    assert values.tolist() == [[3, 3], [0, 0]] and indices.tolist() == [[1, 2], [0, 1]]
    assert torch.equal(least.values, x.sort(0).values) and int(number.indices) == 0


class Policy(nn.Module):
    """Scores of moves, those that are not legal -inf, as logits, logarithms, shares and in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(12, 6)

    def forward(self, x: Tensor, legal: Tensor) -> tuple[Tensor, ...]:
        y = self.scores(x)
        left = y.masked_fill(~legal, -math.inf)
        turned = y.view(-1, 2, 3).masked_fill(~legal.view(-1, 2, 3), -math.inf).transpose(1, 2)[:, :2]
        logits = torch.where(legal, y, -math.inf)
        least = left.masked_fill(x[:, :6] > 1, -math.inf)  # of which one mask is read elsewhere
        return logits, left.softmax(-1), least, y.masked_fill(~legal, -math.inf).log_softmax(-1), turned


def test_minus_infinity_is_returned_where_the_model_returns_it() -> None:
    torch.manual_seed(0)
    model, x = Policy().eval(), torch.randn(64, 12)
    legal = torch.tensor([True, True, False, True, False, True]).expand(64, 6).clone()
    sim = intact8.prepare(model, (x, legal))
    intact8.calibrate(sim, [(x, legal)])
    program = intact8.convert(sim)
    wanted = [y.detach() for y in model(x, legal)]
    for found in (sim(x, legal), *(program.run(x, legal, engine=e) for e in ("native", "onednn", "onnxruntime"))):
        for i, (y, exact) in enumerate(zip(found, wanted, strict=True)):
            y = torch.where(y == torch.finfo(torch.float32).min, -math.inf, y) if i == 2 else y
            assert torch.equal(y.isinf(), exact.isinf())
            assert torch.allclose(y[y.isfinite()], exact[y.isfinite()], atol=0.05)
    assert intact8.verify(program, (x, legal)).mismatches == 0
    assert len(list(intact8.sensitivity(sim, [(x, legal)]))) == 2
