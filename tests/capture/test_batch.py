"""The batch is followed by what it is: along dimension 1, folded into other dimensions, and in what is repeated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.capture import capture
from intact8.engines import available_engines
from intact8.errors import AccuracyWarning, CaptureWarning, InputError

from .helpers import assert_same, check

ENGINES = [name for name in ("reference", "onednn", "onnxruntime") if name in available_engines()]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x)


class LastStep(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.steps, self.end = kind(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.steps(x)[0][-1])


def of_layers(kind: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    x = torch.randn(5, 4, 8)
    if kind == "attention":
        return Attention(), (x,)
    if kind == "encoder":
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12), 1, enable_nested_tensor=False), (x,)
    if kind == "transformer":
        return nn.Transformer(8, 2, 1, 1, 12), (x, torch.randn(3, 4, 8))
    return LastStep(nn.LSTM if kind == "lstm" else nn.GRU), (x,)


@pytest.mark.parametrize("kind", ["attention", "encoder", "transformer", "lstm", "gru"])
def test_samples_along_dimension_1_may_be_any_number(kind: str) -> None:
    torch.manual_seed(0)
    model, example = of_layers(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", CaptureWarning)
        sim = intact8.prepare(model.eval(), example).eval()
        intact8.calibrate(sim, [example])
        program = intact8.convert(sim)
    assert program.dimensions == {"samples": (1, None)}
    assert any("along dimension 1 of" in note for note in sim.captured.notes)
    for size in (1, 7):
        given = tuple(torch.randn(x.shape[0], size, x.shape[2]) for x in example)
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(model(*given))
        found = torch.utils._pytree.tree_leaves(program.run(*given))
        assert [tuple(y.shape) for y in found] == [tuple(y.shape) for y in wanted]
        assert float((found[0] - wanted[0]).norm() / wanted[0].norm()) < 0.3
        assert intact8.verify(program, given, engines=ENGINES).exact


class Transducer(nn.Module):
    """Two recurrent layers of sequences that differ in length, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.sounds, self.words, self.end = nn.LSTM(8, 6, bidirectional=True), nn.GRU(4, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        sounds, words = self.sounds(x)[0].transpose(0, 1), self.words(y)[0].transpose(0, 1)
        z: Tensor = self.end(torch.tanh(sounds[:, :, None] + words[:, None]))
        return z


def test_steps_and_samples_may_be_any_number() -> None:
    torch.manual_seed(0)
    model, example = Transducer().eval(), (torch.randn(9, 4, 8), torch.randn(5, 4, 4))
    program = intact8.quantize(model, [example] * 8, example_inputs=example)
    assert [program.tensors[name].shape for name in program.inputs] == [(None, "samples", 8), (5, "samples", 4)]
    for steps, samples in ((9, 1), (3, 7)):
        given = torch.randn(steps, samples, 8), torch.randn(5, samples, 4)
        wanted, found = model(*given), program.run(*given)
        assert found.shape == wanted.shape and float((found - wanted).norm() / wanted.norm()) < 0.1
        assert intact8.verify(program, given, engines=ENGINES).exact
    inside = capture(nn.Sequential(Turned(), nn.LSTM(8, 6)), torch.randn(4, 9, 8))  # samples come first all the same
    assert inside.graph.nodes[inside.graph.inputs[0]].shape == (None, 9, 8)


class Translating(nn.Module):
    """A decoder that looks at what an encoder heard and writes its results into zeros, steps along dimension 0."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.words, self.heard, self.said = nn.Embedding(20, 8), nn.GRU(8, 12), nn.GRU(8 + 12 * looks, 12)
        self.end, self.looks = nn.Linear(12, 9), looks

    def forward(self, words: Tensor, said: Tensor) -> Tensor:
        heard, state = self.heard(self.words(words))
        found = torch.zeros(said.shape[0], said.shape[1], 9)
        for step in range(1, said.shape[0]):
            given = self.words(said[step - 1])[None]
            if self.looks:
                weights = torch.softmax((state[0][None] * heard).sum(-1).t(), 1)
                given = torch.cat([given, torch.bmm(weights[:, None], heard.transpose(0, 1)).transpose(0, 1)], 2)
            y, state = self.said(given, state)
            found[step] = self.end(y[0])
        return found


@pytest.mark.parametrize("looks", [False, True])
def test_results_of_steps_may_be_written_into_zeros_of_any_number_of_samples(looks: bool) -> None:
    torch.manual_seed(0)
    model = Translating(looks).eval()
    example = torch.randint(20, (7, 8)), torch.randint(20, (4, 8))
    program = intact8.quantize(model, [example] * 4, example_inputs=example)
    for samples in (1, 5):
        given = torch.randint(20, (7, samples)), torch.randint(20, (4, samples))
        wanted, found = model(*given), program.run(*given)
        assert found.shape == wanted.shape and float((found - wanted).detach().norm() / wanted.norm()) < 0.1
        assert intact8.verify(program, given, engines=ENGINES).exact


class Normed(nn.Module):
    """Sequence first layers, and numbers that are shared by all samples, so that these cannot be taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.GRU(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.steps(x)[0]
        return y[:, :4] + y[:, 4:]


def test_samples_along_dimension_1_that_are_fixed_are_warned_of() -> None:
    with pytest.warns(CaptureWarning, match="no other batch size: samples are along dimension 1 of x, and .* be 8"):
        sim = intact8.prepare(Normed().eval(), torch.randn(5, 8, 8))
    assert sim.graph.nodes["x"].shape == (None, 8, 8)


class OfRows(nn.Module):
    """A function of rows behind a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 8), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x).relu())


@pytest.mark.parametrize(
    "halves",
    [lambda y: y.view(2, len(y) // 2, 8).sum(0), lambda y: y.unflatten(0, (2, -1)).mean(0)],
    ids=["view", "unflatten"],
)
def test_samples_that_are_taken_apart_otherwise_than_they_lie_are_of_one_number(
    halves: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    model, x = OfRows(halves).eval(), torch.randn(8, 6)
    with pytest.warns(CaptureWarning, match="no other batch size: .* divides the samples of a batch into groups"):
        sim = intact8.prepare(model, x)
    intact8.calibrate(sim, [x] * 8)
    program = intact8.convert(sim)
    assert float((program.run(x) - model(x)).detach().norm() / model(x).norm()) < 0.1
    assert intact8.verify(program, x, engines=ENGINES).exact


def columns_written_in_place(y: Tensor) -> Tensor:
    with torch.no_grad():
        for column in y.unbind(1)[:2]:
            column.add_(1)
    return y


def test_a_batch_of_which_torch_makes_a_number_is_warned_of() -> None:
    with pytest.warns(CaptureWarning, match="no other batch size: torch.export makes a number of it"):
        intact8.prepare(OfRows(columns_written_in_place).eval(), torch.randn(8, 6))
    with warnings.catch_warnings():  # numbers have no batch, and rows of any number are no fixed one
        warnings.simplefilter("error", CaptureWarning)
        intact8.prepare(nn.ReLU(), torch.tensor(0.5))
        intact8.quantize(OfRows(lambda y: y - y.roll(1, 0)).eval(), [torch.randn(n, 6) for n in (8, 5, 8)])


def test_a_convolution_over_the_rows_of_a_recording_takes_any_number_of_them() -> None:
    torch.manual_seed(0)
    along = nn.Conv1d(8, 8, 3, padding=1)
    model = OfRows(lambda y: along(y.t()[None])[0].t()).eval()
    program = intact8.quantize(model, [torch.randn(8, 6) for _ in range(8)])
    for rows in (1, 5, 20):
        x = torch.randn(rows, 6)
        assert float((program.run(x) - model(x)).detach().norm() / model(x).norm()) < 0.1
        assert intact8.verify(program, x, engines=ENGINES).exact


def test_samples_that_depend_on_one_another_are_compared_as_they_came() -> None:
    torch.manual_seed(0)
    model = OfRows(lambda y: y * y.softmax(0)).eval()
    sim = intact8.prepare(model, torch.randn(16, 6))
    assert sim.graph.mixes_samples and not sim.quantized_graph.batched
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        intact8.calibrate(sim, [torch.randn(16, 6) for _ in range(3)])


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class PerHead(nn.Module):
    """A table (heads, 3, 3) repeated for every sample, added to scores of samples and heads in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.turn = nn.Parameter(torch.randn(2, 3, 3)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        y = self.turn(x).view(batch, 3, 2, 4).transpose(1, 2).reshape(batch * 2, 3, 4)
        return (torch.bmm(y, y.transpose(1, 2)) + self.table.repeat(batch, 1, 1)).view(batch, 2, 3, 3)


class EachTwice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.repeat_interleave(2, 0) * 2).view(x.size(0), 2, 3, 8)


class Queries(nn.Module):
    """Learned queries and zeros for every sample, with the batch along dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.unsqueeze(1).repeat(1, x.size(0), 1)
        return (queries + torch.zeros(3, x.size(0), 1)).transpose(0, 1) * x


class Windows(nn.Module):
    """A token put before each of four windows of every sample, as separable ViTs do, and zeros as long."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.turn = nn.Parameter(torch.randn(8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        y = x.reshape(batch * 4, 3, 8)
        tokens = self.token.expand(batch * 4, 1, 8) + torch.zeros(batch * 4, 1, 1)
        y = self.turn(torch.cat([tokens, y], 1) + self.token[:4, None].repeat(batch * 4, 1, 1))
        y = F.pad(y, (2, 1), mode="reflect")
        return y.reshape(batch, 4 * 4, 11)


class Counted(nn.Module):
    """``len(x)`` is the number of samples, as ``x.shape[0]`` is."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1) + torch.ones(len(x), 1)


class Reversed(nn.Module):
    """Windows of 2 by 2 and back, as Swin transformers count them."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, 4, 6, 4)
        windows = x.view(len(x), 2, 2, 3, 2, 4).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4)
        height, width, size = 4, 6, 2
        batch = int(windows.shape[0] / (height * width / size / size))
        assert isinstance(size, int) and int("3") == 3 and int(2.5) == 2 and type(size) == int  # noqa: E721
        y = (2 * windows).view(batch, 2, 3, 2, 2, 4).permute(0, 1, 3, 2, 4, 5)
        return y.reshape(batch, height, width, 4)


class Ghost(nn.Module):
    """Parts of at most 128 samples, as the ghost batch norms of TabNet have them: of this batch it is one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([2 * part for part in x.chunk(int(np.ceil(x.shape[0] / 128)), 0)], 0)


class Codes(nn.Module):
    """Rows of one 1 each for every part of every sample, written into zeros as VQ-VAEs do it."""

    def forward(self, x: Tensor) -> Tensor:
        nearest = x.reshape(-1, 4).argmax(1).unsqueeze(1)
        rows = torch.zeros(nearest.shape[0], 4)
        rows.scatter_(1, nearest, 1)
        return rows.view(x.shape[0], -1, 4)


@pytest.mark.parametrize("kind", [Windows, Counted, Reversed, Ghost, Codes])
def test_how_the_number_of_samples_is_written_does_not_fix_it(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    assert check(kind(), torch.randn(2, 12, 8), batches=(1, 5)).graph.dynamic_batch
    assert len([1, 2]) == 2 and "int" not in globals(), "Python's own again"


@pytest.mark.parametrize("kind", [PerHead, EachTwice, Queries])
def test_what_is_repeated_for_every_sample_follows_the_batch(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    assert check(kind(), torch.randn(2, 3, 8), batches=(1, 5)).graph.dynamic_batch


class Scaled(nn.Module):
    """Numbers that depend on a length, among values and as limits of a mask."""

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        return x * length + torch.arange(length)[None, :, None] * (length + 1)


def test_a_length_may_be_a_number_that_values_depend_on() -> None:
    from torch.export import Dim

    from intact8.capture.trace import capture

    from .helpers import run

    captured = capture(Scaled(), torch.randn(2, 5, 8), dynamic_shapes={"x": {1: Dim("length", max=9)}})
    for length in (1, 4, 9):
        x = torch.randn(3, length, 8)
        assert_same(run(captured, x), Scaled()(x))


class Head(nn.Module):
    """As detection heads do, it makes places and steps anew where the features have another shape than last time."""

    shape: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.features, self.places = nn.Conv2d(3, 6, 3, 2, 1), torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        if self.shape != y.shape:
            rows, columns = torch.meshgrid(torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij")
            self.places = torch.stack([rows, columns], 0).reshape(1, 2, -1) + 0.5
            self.shape = y.shape
        return y.view(y.shape[0], 6, -1)[:, :2] + self.places


@pytest.mark.parametrize("ran", [False, True])
def test_a_shape_that_the_model_remembers_does_not_fix_the_batch(ran: bool) -> None:
    torch.manual_seed(0)
    model, x = Head().eval(), torch.randn(2, 3, 8, 8)
    if ran:
        model(x)
    assert check(model, x, batches=(1, 5)).graph.dynamic_batch
    assert type(model.places) is Tensor


class TakesANumber(nn.Module):
    """As YOLO's heads do: strides are a tensor, and one of them fills another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.strides = torch.tensor([8.0, 16.0])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * y.new_full((4,), self.strides[1])


def test_a_number_read_from_a_constant_is_that_number() -> None:
    captured = capture(TakesANumber().eval(), torch.randn(2, 4))
    assert captured.graph.dynamic_batch and not captured.notes


class Wrapper(nn.Module):
    """Hands on whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(4, 4, 3)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        y: Tensor = self.layer(*args, **{name: x for name, x in kwargs.items() if name != "mode"})
        return y


@pytest.mark.parametrize("mode", [{}, {"mode": "sum"}])
def test_keywords_that_are_only_handed_on_have_a_batch(mode: dict[str, str]) -> None:
    model = Wrapper()
    call = {"input1": torch.randn(3, 4), "input2": torch.randn(3, 4), **mode}
    assert capture(model, call).graph.dynamic_batch
    assert "forward" not in vars(model)


class Bags(nn.Module):
    def __init__(self, mode: str, padding_idx: int | None) -> None:
        super().__init__()
        self.bag, self.end = nn.EmbeddingBag(20, 6, mode=mode, padding_idx=padding_idx), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.bag(x))


@pytest.mark.parametrize(("mode", "padding_idx"), [("mean", None), ("sum", 3), ("mean", -1), ("max", None), ("max", 3)])
def test_a_bag_per_sample_does_not_fix_the_batch(mode: str, padding_idx: int | None) -> None:
    model = Bags(mode, padding_idx).eval()
    x = torch.arange(28).reshape(7, 4) % 20
    x[3] = 19 if padding_idx == -1 else 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        sim = intact8.prepare(model, (x[:2],), intact8.Recipe(portable=True)).eval()  # for CPUs without VNNI, too
    intact8.calibrate(sim, [x[:2], x])
    assert torch.allclose(sim(x), model(x), atol=0.1)
    assert intact8.verify(intact8.convert(sim), x, ENGINES, sim).exact


class CountsSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.end(sample) for sample in x.unbind(0)])


class Shaped(nn.Module):
    """A number of samples in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.end = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x).reshape(4, 3, 1)


def test_a_number_of_samples_in_the_code_is_named_with_its_line() -> None:
    said = (
        r"no other batch size: the model itself \(Shaped\), test_batch.py:\d+: .* samples only. "
        r"Reason: shape '\[4, 3, 1\]' is invalid for input of size 3\*batch. Remedy: use x.shape\[0\]"
    )
    with pytest.warns(CaptureWarning, match=said):
        intact8.prepare(Shaped().eval(), (torch.randn(4, 6),))


def test_a_simulation_of_one_batch_size_refuses_another() -> None:
    with pytest.warns(CaptureWarning, match="no other batch size"):
        sim = intact8.prepare(CountsSamples().eval(), (torch.randn(4, 6),)).eval()
    with pytest.raises(InputError, match=r"x: expected shape \(4, 6\), got \(5, 6\)"):
        sim(torch.randn(5, 6))
