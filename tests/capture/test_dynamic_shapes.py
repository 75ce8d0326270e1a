"""Dimensions beside the batch that change from call to call: found by name, computed at every length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import intact8
from intact8.capture import capture
from intact8.capture.dynamic_shapes import Dynamic
from intact8.capture.equivalence import differences
from intact8.capture.execute import run_float
from intact8.errors import CaptureError, CaptureWarning, InputError

from .encoder import SEQUENCE, Encoder, call


def outputs(captured: Any, given: dict[str, Tensor]) -> Tensor:
    found = run_float(captured.graph, captured.tensors(), captured.flatten((), given))
    return found[captured.graph.outputs[0]]


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "whole"])
@pytest.mark.parametrize("form", ["sdpa", "eager", "causal"])
def test_every_length_gives_what_the_model_gives(form: str, masked: bool) -> None:
    torch.manual_seed(0)
    model = Encoder(eager=form == "eager", causal=form == "causal").eval()
    names = ["input_ids", "attention_mask"][: 2 if masked else 1]
    example = {name: x for name, x in call(2, 7).items() if name in names}
    captured = capture(model, example, dynamic_shapes={name: SEQUENCE[name] for name in names})
    assert captured.graph.dimensions == {"sequence": (1, 24)}
    assert captured.graph.nodes["input_ids"].shape == (None, "sequence")
    for batch, length in ((1, 1), (3, 1), (1, 24), (2, 5)):
        given = {name: x for name, x in call(batch, length).items() if name in names}
        with torch.no_grad():
            torch.testing.assert_close(outputs(captured, given), model(**given), rtol=1e-4, atol=1e-5)


def test_an_example_of_one_token_leaves_the_length_free() -> None:
    captured = capture(Encoder().eval(), call(1, 1), dynamic_shapes=SEQUENCE)
    assert outputs(captured, call(2, 9)).shape == (2, 9, 16)


def test_a_mask_that_is_all_ones_takes_no_operation() -> None:
    captured = capture(Encoder().eval(), {"input_ids": call(2, 7)["input_ids"]}, dynamic_shapes={"input_ids": {1: "s"}})
    assert not {"masked_fill", "compare"} & {node.op for node in captured.graph}


def test_limits_are_the_models_and_the_callers() -> None:
    asked = {name: {1: Dim("sequence", min=2, max=99)} for name in SEQUENCE}
    assert capture(Encoder().eval(), call(2, 7), dynamic_shapes=asked).graph.dimensions == {"sequence": (2, 24)}


@pytest.mark.parametrize("length", [0, 25])
def test_a_length_outside_the_limits_is_refused_by_name(length: int) -> None:
    captured = capture(Encoder().eval(), call(2, 7), dynamic_shapes=SEQUENCE)
    given = {name: torch.zeros(2, length, dtype=torch.int64) for name in SEQUENCE}
    with pytest.raises(InputError, match=rf"input_ids: sequence is {length}, outside 1 to 24"):
        outputs(captured, given)


def test_lengths_that_differ_are_refused_by_name() -> None:
    captured = capture(Encoder().eval(), call(2, 7), dynamic_shapes=SEQUENCE)
    given = {"input_ids": call(2, 7)["input_ids"], "attention_mask": call(2, 6)["attention_mask"]}
    with pytest.raises(InputError, match="attention_mask: sequence is 6, but 7 in input_ids"):
        outputs(captured, given)


class Fixed(nn.Module):
    """A linear map over the length: it is one of the weight's sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x.transpose(1, 2))


class Rest(nn.Module):
    """What a length leaves of a longer one: a size that shrinks."""

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(1, 99)[:, : 99 - x.shape[1]] + x.sum((1, 2))[:, None]


@pytest.mark.parametrize(("model", "reason"), [(Fixed(), "needs it to be 6"), (Rest(), "a dimension of size")])
def test_what_the_model_fixes_is_an_error_where_asked_for_and_a_note_where_found(model: nn.Module, reason: str) -> None:
    asked = {"x": {1: "sequence"}}
    with pytest.raises(CaptureError, match=reason):
        capture(model, torch.zeros(2, 6, 4), dynamic_shapes=asked)
    found = capture(model, torch.zeros(2, 6, 4), dynamic_shapes=Dynamic(asked, {}, found=True))
    assert found.graph.dimensions == {} and found.graph.dynamic_batch
    assert any(
        "fixed to the example's size: sequence (dimension 1 of x)" in note and reason in note for note in found.notes
    )


class First(nn.Module):
    """The first position only."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0].relu()


def test_the_first_token_can_be_taken() -> None:
    captured = capture(First(), {"x": torch.zeros(2, 6, 4)}, dynamic_shapes={"x": {1: "sequence"}})
    assert outputs(captured, {"x": torch.ones(3, 2, 4)}).shape == (3, 4)


class Take(nn.Module):
    """A function of a linear layer's result."""

    def __init__(self, take: Any) -> None:
        super().__init__()
        self.layer, self.take = nn.Linear(4, 4), take

    def forward(self, x: Tensor) -> Any:
        return self.take(self.layer(x))


@pytest.mark.parametrize(
    "take", [lambda y: y[:, -1], lambda y: y[:, -3:], lambda y: y[:, -3:-1].mean(1)], ids=["last", "end", "middle"]
)
def test_what_is_counted_from_the_end_follows_the_length(take: Any) -> None:
    model = Take(take).eval()
    captured = capture(model, {"x": torch.zeros(2, 6, 4)}, dynamic_shapes={"x": {1: Dim("sequence", min=3, max=9)}})
    for batch, length in ((1, 3), (3, 9), (2, 5)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(outputs(captured, {"x": x}), model(x))


def steps(y: Tensor) -> Tensor:
    """Add what transformers asks of positions: where a packed sequence begins."""
    positions = torch.arange(y.shape[1])[None]
    begins = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    return y + begins.cumsum(-1)[..., None] + torch.diff(positions * positions, prepend=positions[:, :1])[..., None]


def test_differences_of_positions_follow_the_length() -> None:
    model = Take(steps).eval()
    captured = capture(model, {"x": torch.zeros(2, 6, 4)}, dynamic_shapes={"x": {1: Dim("sequence", max=9)}})
    for batch, length in ((1, 1), (3, 9), (2, 5)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(outputs(captured, {"x": x}), model(x))


@pytest.mark.parametrize("scale", [1 / 2, 1 / 3, 1 / 4, 1 / 7])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear"])
def test_images_of_changing_size_are_made_smaller_as_torch_does(mode: str, scale: float) -> None:
    def take(y: Tensor) -> Tensor:
        image = y.mT if mode == "linear" else y.mT.unflatten(1, (2, 2))
        factors = scale if mode == "linear" else (0.5, scale)
        return F.interpolate(image, scale_factor=factors, mode=mode)

    model = Take(take).eval()
    captured = capture(model, torch.zeros(2, 15, 4), dynamic_shapes={"x": {1: "n"}})
    for length in range(14, 30):
        x = torch.randn(3, length, 4)
        torch.testing.assert_close(outputs(captured, {"x": x}), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("take", "message"),
    [
        (lambda y: F.max_pool1d(y.mT, 2, 3, ceil_mode=True), r"fixed size of (3\*)?sequence .operator aten.max_pool2d"),
        (lambda y: F.adaptive_max_pool1d(y.mT, 2), "fixed size of sequence .operator aten.adaptive_max_pool"),
        (lambda y: F.layer_norm(y, y.shape[1:]), "fixed size of sequence .operator aten.layer_norm"),
        (
            lambda y: F.interpolate(y.mT, scale_factor=1.5),
            "nearest interpolation of sequence by 1.5 .* leave sequence out of dynamic_shapes, or take a whole factor",
        ),
        (lambda y: y[:, 4:8], "sequence is cut at 4:8"),
    ],
    ids=["ceil", "adaptive", "norm", "resize", "window"],
)
def test_what_needs_a_known_length_is_refused_at_capture(take: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        capture(Take(take), torch.zeros(2, 6, 4), dynamic_shapes={"x": {1: "sequence"}})
    assert "report" not in str(caught.value)
    found = capture(Take(take), torch.zeros(2, 6, 4), dynamic_shapes=Dynamic({"x": {1: "s"}}, {}, found=True))
    assert "fixed to the example's size" in found.notes[0]


@pytest.mark.parametrize(
    "take",
    [
        lambda y: y.flip(1),
        lambda y: F.scaled_dot_product_attention(y, y, y, is_causal=True),
        lambda y: torch.fft.rfft(y, dim=1).abs() + torch.fft.irfft(y, n=y.shape[1], dim=1)[:, : y.shape[1] // 2 + 1],
        lambda y: torch.arange(1300.0)[701 - y.shape[1] : 700 + y.shape[1]][None, ::2, None] * y,
        lambda y: torch.arange(1300.0)[701 - y.shape[1] : 700 + y.shape[1] : 2][None, :, None] * y,
        lambda y: torch.arange(9.0)[9 - y.shape[1] :][None, :, None] * y,
        lambda y: (y * 5).clamp(0, y.shape[1] - 1),
        lambda y: (
            torch.linspace(-1, 1, y.shape[1])[:, None] * y + torch.linspace(0, y.shape[1] - 1, y.shape[1])[:, None]
        ),
        lambda y: torch.maximum(y.argmax(1).clamp(1, y.shape[1] // 2), y.argmin(1).clamp(max=y.shape[1])).float(),
    ],
    ids=["flip", "causal", "fft", "window", "steps", "short window", "clamp", "even steps", "clamp of places"],
)
def test_what_is_as_long_as_a_length_gets_a_limit(take: Any) -> None:
    model = Take(take).eval()
    captured = capture(model, torch.zeros(2, 6, 4), dynamic_shapes={"x": {1: "sequence"}})
    least, most = captured.graph.dimensions["sequence"]
    assert most in (9, 512, 600)
    limited = any(note.startswith("limited to a usual length: sequence up to 512") for note in captured.notes)
    assert limited == (most == 512)
    assert_same_at((max(least, 2), 5, 6, 9, *([41, 99] if most > 9 else [])), captured, model, 4)


def test_what_is_scaled_by_a_function_of_a_length_follows_it() -> None:
    model = Take(lambda y: y * (torch.arange(y.shape[1]) * (1 / y.shape[1]))[:, None]).eval()
    captured = capture(model, torch.randn(2, 6, 4), dynamic_shapes={"x": {1: Dim("points", max=70)}})
    assert_same_at((1, 5, 6, 70), captured, model, 4)


def test_nan_that_the_model_does_not_give_is_a_difference() -> None:
    difference = next(differences([torch.tensor([1.0, math.nan])], [torch.tensor([1.0, 2.0])]))
    assert "output 0 differs by inf" in difference
    assert not list(differences([torch.tensor([1.0, -3e38])], [torch.tensor([1.0, -math.inf])]))


def test_a_limit_that_nobody_asked_for_is_warned_of() -> None:
    with pytest.warns(CaptureWarning, match=r"will take sequence up to 512.*torch.export.Dim"):
        intact8.prepare(
            Take(lambda y: y.flip(1)), example_inputs=torch.zeros(2, 6, 4), dynamic_shapes={"x": {1: "sequence"}}
        )


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"y": {1: "s"}}, "no input is called 'y'"),
        ({"y": {0: "s"}}, "no input is called 'y'"),
        ({"x": {0: 7}}, "7 is not the name"),
        ({"x": {5: "s"}}, "x has no dimension 5"),
        ({"x": {-1: "s"}}, "not a number from 0 on"),
        ({"x": {1: 7}}, "7 is not the name"),
        ({"x": {1: "batch"}}, "is called batch"),
        ({"x": "s"}, "not a dict"),
        ([1], "expected a dict"),
        ({"x": {0: "s", 1: "s"}}, "s is dimension 0 of x, and dimension 1 of x.*samples along dimension 0"),
        ({"x": {0: Dim("s")}, "y": {1: "s"}}, "s is dimension 0 of x, and dimension 1 of y"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        capture(First(), {"x": torch.zeros(2, 6, 4)}, dynamic_shapes=asked)


class Joined(nn.Module):
    """One more position, and twice as many."""

    def forward(self, x: Tensor) -> Tensor:
        more = torch.cat([x, x[:, :1]], 1)
        return torch.cat([more, more], 1).relu()


@pytest.mark.parametrize("batch", ["batch", "samples", Dim("rows"), Dim.DYNAMIC])
def test_the_batch_may_be_named_and_changes_anyway(batch: Any) -> None:
    captured = capture(First(), {"x": torch.zeros(2, 6, 4)}, dynamic_shapes={"x": {0: batch}})
    assert captured.graph.dynamic_batch and captured.graph.dimensions == {}


class Graphs(nn.Module):
    """A layer of a graph network: a mean over the neighbours, by a list of edges or by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.linear(x)
        if edges.is_floating_point():
            return (edges / edges.sum(1, keepdim=True).clamp(min=1)) @ h
        zeros, ones = torch.zeros(x.shape[0]), torch.ones(edges.shape[1])
        degree = zeros.index_add(0, edges[1], ones).clamp(min=1)
        return torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]]) / degree[:, None]


def graph_of(nodes: int, matrix: bool) -> tuple[Tensor, Tensor]:
    edges = (torch.rand(nodes, nodes) < 0.3).float() if matrix else torch.randint(nodes, (2, 3 * nodes + 1))
    return torch.randn(nodes, 4), edges


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_rows_that_are_no_batch_may_change(matrix: bool, asked: bool) -> None:
    """Where they are named, or differ in the data; the same integers on every engine."""
    torch.manual_seed(0)
    model, data = Graphs().eval(), [graph_of(n, matrix) for n in range(10, 40)]
    wanted = {"x": {0: Dim("nodes", max=40)}, "edges": {1: Dim("edges", max=199)}} if asked and not matrix else None
    if matrix and asked:
        with pytest.raises(InputError, match="nodes is dimension 0 of x, and dimension 1 of edges"):
            intact8.quantize(model, data, dynamic_shapes={"x": {0: "nodes"}, "edges": {1: "nodes"}})
        return
    program = intact8.quantize(model, data, dynamic_shapes=wanted)
    names = ["nodes", "edges"] if asked else ["rows", "rows"] if matrix else ["x_0", "edges_1"]
    shapes = [program.tensors[name].shape for name in program.inputs]
    assert shapes == [(names[0], 4), (names[0] if matrix else 2, names[1])]
    for nodes in (1, 12):
        x = graph_of(nodes, matrix)
        found = torch.as_tensor(program.run(*x))
        assert found.shape == (nodes, 3) and (found - model(*x)).abs().max() < 0.1
        assert intact8.verify(program, x).mismatches == 0


def test_rows_that_are_no_batch_stay_where_the_model_counts_them() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.cumsum(0) @ torch.ones(len(x), len(x))[:4]

    captured = capture(Counts(), (torch.randn(5, 4),), dynamic_shapes={"x": {0: "nodes"}})
    assert captured.graph.nodes["x"].shape == (5, 4)
    assert any(note.startswith("dimension 0 is the example's: ") for note in captured.notes)


class Experts(nn.Module):
    """A mixture of experts as in Mistral's own code: each computes the tokens that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gate = nn.Embedding(9, 8), nn.Linear(8, 3, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 8)) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        flat = x.view(-1, 8)
        shares, chosen = torch.topk(self.gate(flat), 2)
        y = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            row, k = torch.where(chosen == i)
            y[row] += shares.softmax(1)[row, k, None] * expert(flat[row])
        return y.view_as(x)


def test_experts_compute_the_tokens_of_texts_of_any_number_and_length() -> None:
    torch.manual_seed(0)
    model = Experts().eval()
    captured = capture(model, (torch.randint(9, (2, 5)),), dynamic_shapes={"tokens": {1: "length"}})
    assert captured.graph.nodes["tokens"].shape == (None, "length")
    for batch, length in ((1, 1), (3, 9)):
        tokens = torch.randint(9, (batch, length))
        found = run_float(captured.graph, captured.tensors(), captured.flatten((tokens,)))
        torch.testing.assert_close(found[captured.graph.outputs[0]], model(tokens), rtol=1e-4, atol=1e-5)


def test_lengths_that_are_sums_of_others_are_followed() -> None:
    captured = capture(Joined(), {"x": torch.zeros(2, 6, 4)}, dynamic_shapes={"x": {1: "sequence"}})
    assert captured.graph.nodes[captured.graph.outputs[0]].shape == (None, "2*sequence+2", 4)
    for length in (1, 5):
        given = {"x": torch.randn(3, length, 4)}
        assert torch.equal(outputs(captured, given), Joined()(**given))


class Windows(nn.Module):
    """Rows of a table and a causal mask, from where a cache ends on."""

    def __init__(self, start: bool) -> None:
        super().__init__()
        self.start = start
        self.table = nn.Embedding(30, 4)

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        past, more = cache.shape[1], x.shape[1]
        places = torch.arange(past, past + more) if self.start else torch.arange(more) + past
        keys = torch.cat([cache, x + torch.cos(self.table(places[None]) * 0.5).transpose(1, 2).transpose(2, 1)], 1)
        seen = torch.arange(past + more)[None, None] <= places[None, :, None]
        scores = (x @ keys.transpose(1, 2)).masked_fill(~seen, -1e9)
        return torch.softmax(scores, -1) @ keys, keys


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("more", [1, 3])
def test_windows_of_constants_begin_where_a_cache_ends(start: bool, more: int) -> None:
    torch.manual_seed(0)
    model = Windows(start).eval()
    shapes: dict[str, Any] = {"cache": {1: Dim("past", max=24)}}
    if more > 1:
        shapes["x"] = {1: Dim("more", max=6)}
    captured = capture(model, (torch.randn(2, more, 4), torch.randn(2, 5, 4)), dynamic_shapes=shapes)
    assert not {"arange", "embedding", "unary"} & {node.op for node in captured.graph}
    for batch, length, past in ((1, more, 1), (3, more, 24), (2, 1 if more > 1 else more, 7)):
        given = {"x": torch.randn(batch, length, 4), "cache": torch.randn(batch, past, 4)}
        found = run_float(captured.graph, captured.tensors(), captured.flatten((), given))
        with torch.no_grad():
            wanted = model(**given)
        for name, y in zip(captured.graph.outputs, wanted, strict=True):
            torch.testing.assert_close(found[name], y, rtol=1e-4, atol=1e-5)


def test_a_size_may_be_given_as_computed_of_another() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, cache: Tensor, mask: Tensor) -> Tensor:
            keys = torch.cat([cache, x], 1)
            return torch.softmax(x @ keys.mT + mask[:, None], -1) @ keys

    past, x = Dim("past", max=24), (torch.randn(2, 1, 4), torch.randn(2, 5, 4), torch.zeros(2, 6))
    captured = capture(Masked(), x, dynamic_shapes={"cache": {1: past}, "mask": {1: past + 1}})
    assert captured.graph.nodes["mask"].shape == (None, "past+1") and captured.graph.dimensions == {"past": (1, 24)}
    with pytest.raises(CaptureError, match="name the dimensions of other inputs that change with it"):
        capture(Masked(), x, dynamic_shapes={"cache": {1: past}})


def test_a_table_that_may_be_too_short_is_refused_with_the_limit_to_give() -> None:
    asked = {"cache": {1: Dim("past", max=99)}}
    with pytest.raises(CaptureError, match=r"row 99 of a table of 30 rows.*say how long it can be"):
        capture(Windows(False).eval(), (torch.randn(2, 1, 4), torch.randn(2, 5, 4)), dynamic_shapes=asked)


def assert_same_at(lengths: tuple[int, ...], captured: Any, model: nn.Module, width: int) -> None:
    """Check that the graph gives what the model gives for three samples of each length."""
    for length in lengths:
        x = torch.randn(3, length, width)
        torch.testing.assert_close(outputs(captured, {"x": x}), model(x), atol=1e-5, rtol=1e-5)


class Last(nn.Module):
    """The last position, chosen by a list."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, [-1], :].relu() + x[:, [0, 1]].sum(1, keepdim=True)


def test_positions_are_chosen_by_lists_of_numbers() -> None:
    captured = capture(Last(), torch.randn(2, 6, 4), dynamic_shapes={"x": {1: Dim("sequence", min=2, max=16)}})
    assert_same_at((2, 6, 9), captured, Last(), 4)


class Remembering(nn.Module):
    """A mask that is kept for the length that was seen last, as in PyTorch's tutorial of language models."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None or self.mask.size(0) != x.shape[1]:
            self.mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), diagonal=1)
        return (x @ x.transpose(1, 2) + self.mask).softmax(-1) @ x


class Distances(nn.Module):
    """Attention that falls with the distance of positions."""

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        return (x @ x.transpose(1, 2) - 0.1 * (at[:, None] - at[None]).abs()).softmax(-1) @ x


@pytest.mark.parametrize("kind", [Remembering, Distances])
def test_lengths_found_in_data_get_a_limit_where_constants_need_one(kind: type[nn.Module]) -> None:
    found = Dynamic({"x": {1: "sequence"}}, {}, found=True, seen={"sequence": (6, 9)})
    captured = capture(kind(), torch.randn(2, 6, 4), dynamic_shapes=found)
    assert any("sequence up to 512" in note for note in captured.notes)
    assert_same_at((3, 6, 12), captured, kind(), 4)


class Sinusoids(nn.Module):
    """Sines and cosines that are written into zeros, every other column or one half each."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.halves = halves

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1]).float()[:, None] * torch.exp(-torch.arange(0, 8, 2).float())
        table = torch.zeros(x.shape[1], 8)
        one, other = (slice(0, 4), slice(4, 8)) if self.halves else (slice(0, None, 2), slice(1, None, 2))
        table[:, one] = torch.sin(angles)
        table[:, other] = torch.cos(angles)
        return x + table


@pytest.mark.parametrize("halves", [False, True])
def test_a_table_as_long_as_the_input_may_be_written_into(halves: bool) -> None:
    captured = capture(Sinusoids(halves), torch.randn(2, 6, 8), dynamic_shapes={"x": {1: Dim("length", max=40)}})
    assert_same_at((1, 6, 40), captured, Sinusoids(halves), 8)
    assert [node.op for node in captured.graph] == ["input", "constant", "slice", "add"]


class Table(nn.Module):
    """Positions of which only a few are known."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        return x + self.rows(at) + (at[:, None] * at[None]).float().softmax(-1)[:, :1]


def test_a_limit_is_what_was_seen_where_no_more_is_possible() -> None:
    found = Dynamic({"x": {1: "sequence"}}, {}, found=True, seen={"sequence": (6, 9)})
    captured = capture(Table(), torch.randn(2, 6, 4), dynamic_shapes=found)
    assert any("sequence up to 9" in note for note in captured.notes)


class Rotated(nn.Module):
    """Positions as complex numbers of a table that is cut to the length, as in the reference code of Llama."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(16.0), 1 / 100 ** torch.arange(0, 1, 0.5))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        turns = self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)
        pairs = torch.view_as_complex(x.unflatten(2, (2, 2, 2)))
        return torch.view_as_real(pairs * turns).flatten(2)


def test_complex_tables_are_cut_to_a_length() -> None:
    captured = capture(Rotated(), torch.randn(2, 6, 8), dynamic_shapes={"x": {1: Dim("sequence", max=16)}})
    assert_same_at((3, 6, 16), captured, Rotated(), 8)


class Subsampled(nn.Module):
    """Frames that a convolution halves, and a mask of their lengths, halved likewise."""

    def __init__(self, halved: Any) -> None:
        super().__init__()
        self.conv, self.halved = nn.Conv1d(4, 8, 3, 2, 1), halved

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        y, lengths = self.conv(x).relu(), self.halved(lengths)
        seen = torch.arange(y.shape[2])[None] < lengths[:, None]
        return y * seen[:, None], lengths


HALVED: dict[str, Any] = {
    "floor": lambda n: (n + 1) // 2,
    "div": lambda n: torch.div(n - 1, 2, rounding_mode="floor") + 1,
    "rest": lambda n: n // 2 + n % 2,
    "ceil": lambda n: torch.ceil(n / 2).long(),
}


@pytest.mark.parametrize("halved", HALVED)
def test_lengths_are_halved_with_the_frames(halved: str) -> None:
    model = Subsampled(HALVED[halved]).eval()
    shapes = {"x": {2: Dim("frames", max=40)}}
    captured = capture(model, (torch.randn(4, 4, 20), torch.tensor([3, 20, 9, 8])), dynamic_shapes=shapes)
    assert captured.graph.dynamic_batch and captured.graph.dimensions == {"frames": (1, 40)}
    for batch, frames in ((1, 1), (3, 17), (2, 40)):
        given = {"x": torch.randn(batch, 4, frames), "lengths": torch.randint(1, frames + 1, (batch,))}
        found = run_float(captured.graph, captured.tensors(), captured.flatten((), given))
        with torch.no_grad():
            wanted = model(**given)
        for name, y in zip(captured.graph.outputs, wanted, strict=True):
            torch.testing.assert_close(found[name], y, rtol=1e-4, atol=1e-5)


def turned(y: Tensor) -> Tensor:
    """Return numbers written in between, in pairs, as rotary positions are."""
    z = torch.empty_like(y)
    z[..., ::2] = y[..., ::2] - 2 * y[..., 1::2]
    z[..., 1::2] = y[..., 1::2] + 2 * y[..., ::2]
    z[..., 0:3:2] = y[..., 1:3] + 1
    return z


TAKEN: dict[str, Any] = {
    "written in between": turned,
    "last": lambda y: y[:, -1],
    "every other": lambda y: y[:, 1::2],
    "difference": lambda y: y.diff(dim=1),
    "half": lambda y: y[:, y.shape[1] // 2 :],
    "chunks": lambda y: torch.cat(y.chunk(2, 1)[::-1], 1),
    "windows": lambda y: y.unfold(1, 3, 2).amax(-1),
    "repeated": lambda y: y.repeat_interleave(2, 1) + y.repeat(1, 2, 1),
    "rolled": lambda y: y.roll((1, -2), (1, 2)),
    "flipped": lambda y: y.flip(1),
    "by its root": lambda y: y / y.shape[1] ** 0.5,
    "by the root of Python": lambda y: y / math.sqrt(y.shape[1]) * math.pow(y.shape[1], 0.25),
    "by its length, a tensor": lambda y: (
        y / torch.tensor(y.shape[1]) + y / torch.sqrt(torch.tensor(y.shape[1]).float())
    ),
    "by lengths of all": lambda y: y.cumsum(1) / torch.full((len(y),), y.shape[1])[:, None, None],
    "by its length, filled in": lambda y: y / y.new_full((1, 1, 1), y.shape[1] - 1) + y.new_full(y.shape, y.shape[1]),
    "half, as a fraction": lambda y: y[:, : int(y.shape[1] * 0.5)],
    "most, as a fraction": lambda y: y.topk(int(y.shape[1] * 0.7), 1)[0],
    "at most as many as there are": lambda y: y[:, : min(y.shape[1], 20)],
    "padded around": lambda y: F.pad(y.mT, (2, 1), mode="circular") + F.pad(y.mT, (1, 2), mode="replicate"),
    "pairs": lambda y: (y[:, :, None] + y[:, None]).flatten(1, 2),
    "relative shift": lambda y: (
        F.pad(y @ y.mT, (1, 0)).view(len(y), y.shape[1] + 1, y.shape[1])[:, 1:].view(len(y), y.shape[1], -1) @ y
    ),
    "written between its ends": lambda y: written_between(torch.zeros_like(y), y),
    "frames at equal distances": lambda y: y[:, torch.linspace(0, y.shape[1] - 1, 5).long()],
    "pooled along one dimension": lambda y: (
        F.adaptive_avg_pool2d(y[:, None], (1, None))[:, 0] + F.adaptive_avg_pool2d(y[:, None], (None, 1))[:, 0]
    ),
    "by its logarithm": lambda y: y / math.log(y.shape[1]) + y * math.log2(y.shape[1]) * math.log1p(y.shape[1]),
    "by the largest of three": lambda y: y * max(1.0, y.shape[1] / 7, y.shape[1] / 5 - 0.5),
    "by a fraction from 1 on": lambda y: y * max(1.0, y.shape[1] / 7) * min(math.log(y.shape[1], 10), 1.0),
    "joined windows of every other": lambda y: (
        F.pad(y[:, ::2], (0, 0, 0, -y[:, ::2].shape[1] % 2)).unflatten(1, (-1, 2)).mean(2)
    ),
    "joined windows": lambda y: F.pad(y, (0, 0, 0, -y.shape[1] % 3)).unflatten(1, (-1, 3)).mean(2),
}


def written_between(z: Tensor, y: Tensor) -> Tensor:
    z[:, 1:] = y[:, :-1]
    z[:, :-1] += y[:, 1:]
    z[:, 0] = y[:, -1]
    z[:, -1] += 1
    z[:, 1:, :3] *= 2
    return z


@pytest.mark.parametrize("take", TAKEN)
def test_what_follows_a_length_is_what_the_model_computes(take: str) -> None:
    torch.manual_seed(0)
    model = Take(TAKEN[take]).eval()
    captured = capture(model, torch.randn(2, 6, 4), dynamic_shapes={"x": {1: Dim("sequence", max=15)}})
    assert captured.graph.dynamic_batch
    assert captured.graph.nodes["x"].shape == (None, "sequence", 4)
    for batch, length in ((1, 3), (3, 15), (2, 9), (2, 12), (2, 4), (1, 7)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(outputs(captured, {"x": x}), model(x), rtol=1e-4, atol=1e-5)


def neighbours(y: Tensor) -> Tensor:
    """Return the differences to the nearest points of a cloud, found in the batch as one list, as DGCNN does."""
    batch, count, width = y.shape
    nearest = torch.cdist(y, y).topk(3, largest=False)[1]
    rows = (nearest + torch.arange(batch)[:, None, None] * count).flatten()
    return y.reshape(batch * count, width)[rows].view(batch, count, 3, width) - y[:, :, None]


@pytest.mark.parametrize(
    "take",
    [
        neighbours,
        lambda y: y.topk(2, dim=1)[0] + y.sort(1, descending=True)[0][:, -2:],
        lambda y: y[torch.arange(len(y))[:, None], y[..., 0].topk(2)[1] - 1],
    ],
    ids=["neighbours", "largest", "before the largest"],
)
@pytest.mark.parametrize("limits", [{}, {"max": 70}], ids=["any", "limited"])
def test_what_is_largest_along_a_length_follows_it(take: Any, limits: dict[str, int]) -> None:
    model, dims = Take(take).eval(), {1: Dim("points", **limits)}
    captured = capture(model, torch.randn(2, 6, 4), dynamic_shapes={"x": dims})
    assert_same_at((3, 5, 6, 9, 64), captured, model, 4)


def test_a_dimension_without_a_limit_is_warned_of_too() -> None:
    asked = {"x": {1: Dim("sequence")}}
    with pytest.warns(CaptureWarning, match=r"will take sequence up to 512.*torch.export.Dim"):
        intact8.prepare(Take(lambda y: y.flip(1)), torch.zeros(2, 6, 4), dynamic_shapes=asked)


class Valid(nn.Module):
    """Waves padded to a length that every layer divides, as in Demucs."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv1d(2, 4, 8, 4), nn.Conv1d(4, 8, 8, 4)])
        self.up = nn.ModuleList([nn.ConvTranspose1d(8, 4, 8, 4), nn.ConvTranspose1d(4, 2, 8, 4)])

    def valid_length(self, length: int) -> int:
        for _ in self.down:
            length = max(math.ceil((length - 8) / 4) + 1, 1)
        for _ in self.up:
            length = (length - 1) * 4 + 8
        return int(length)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        y = F.pad(x, (0, self.valid_length(length) - length))
        for layer in (*self.down, *self.up):
            y = layer(y).relu()
        return y[..., :length]


def test_a_length_that_is_rounded_up_by_floats_follows_the_input() -> None:
    model = Valid().eval()
    captured = capture(model, torch.randn(2, 2, 120), dynamic_shapes={"x": {2: "samples"}})
    least, most = captured.graph.dimensions["samples"]
    assert least < 40 and most is None
    for length in (least, 77, 120, 501):
        x = torch.randn(3, 2, length)
        torch.testing.assert_close(outputs(captured, {"x": x}), model(x), atol=1e-5, rtol=1e-5)


class Rates(nn.Module):
    """Features at two rates, of which one follows the other."""

    def __init__(self) -> None:
        super().__init__()
        self.slower, self.layer = nn.Conv1d(4, 4, 4, 4), nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, fast: Tensor, slow: Tensor) -> Tensor:
        return self.slower(fast) + self.layer(slow)


class Pair(nn.Module):
    """Two images that are halved and added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.layer(one) * self.layer(other)


def test_a_size_that_another_input_tells_follows_it() -> None:
    model, asked = Rates().eval(), {"fast": {2: "fast"}, "slow": {2: "slow"}}
    captured = capture(model, (torch.randn(2, 4, 16), torch.randn(2, 4, 4)), dynamic_shapes=asked)
    assert [captured.graph.nodes[name].shape[2] for name in captured.graph.inputs] == ["fast", "fast//4"]
    for fast in (4, 7, 16, 33):
        given = {"fast": torch.randn(3, 4, fast), "slow": torch.randn(3, 4, fast // 4)}
        torch.testing.assert_close(outputs(captured, given), model(**given))


def test_sizes_that_must_be_alike_are_taken_for_equal() -> None:
    asked = {"one": {2: "height"}, "other": {2: "other_height"}}
    captured = capture(Pair().eval(), (torch.randn(2, 3, 8, 6), torch.randn(2, 3, 8, 6)), dynamic_shapes=asked)
    assert {captured.graph.nodes[name].shape[2] for name in captured.graph.inputs} == {"height"}


class Branching(nn.Module):
    """Ways that depend on a size."""

    def __init__(self, even: bool) -> None:
        super().__init__()
        self.even = even

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if (n % 2 == 0) if self.even else (n // 2 > 4):
            return x * 2
        return x + 1


def test_a_branch_on_a_remainder_is_kept_to_its_sizes() -> None:
    captured = capture(Branching(True), torch.zeros(2, 6, 4), dynamic_shapes={"x": {1: "sequence"}})
    assert captured.graph.nodes["x"].shape == (None, "2*sequence", 4)
    odd = capture(Branching(True), torch.zeros(2, 7, 4), dynamic_shapes={"x": {1: "sequence"}})
    assert odd.graph.nodes["x"].shape == (None, "2*sequence+1", 4)
    assert torch.equal(outputs(odd, {"x": torch.zeros(2, 3, 4)}), torch.ones(2, 3, 4))
    assert any("counts steps of 2" in note for note in odd.notes)


def test_a_branch_that_only_some_sizes_take_is_refused() -> None:
    with pytest.raises(CaptureError, match="the model works only where sequence//2 is at most 4"):
        capture(Branching(False), torch.zeros(2, 6, 4), dynamic_shapes={"x": {1: "sequence"}})


class Anchors(nn.Module):
    """Add numbers that NumPy counts by a size."""

    def forward(self, x: Tensor) -> Tensor:
        every = x[:, ::2]
        return every + torch.from_numpy(np.arange(every.shape[1] * 1.0, dtype=np.float32))[:, None]


def test_numbers_that_numpy_counts_are_refused_with_the_line_that_asks() -> None:
    with pytest.raises(
        CaptureError, match=r"test_dynamic_shapes.py:\d+: the model works only where \(steps \+ 1\)//2 is 4\. "
    ):
        capture(Anchors(), torch.randn(2, 7, 4), dynamic_shapes={"x": {1: "steps"}})


class Denoised(nn.Module):
    """Weaken parts of a spectrogram, and return a signal as long as the one given."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Conv1d(17, 17, 3, padding=1)
        self.register_buffer("window", torch.hann_window(32))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 32, 8, window=self.window, return_complex=True)
        masked = spectrum * self.mask(spectrum.abs()).sigmoid()
        return torch.istft(masked, 32, 8, window=self.window, length=x.shape[-1])


def test_a_signal_becomes_as_long_as_it_was() -> None:
    torch.manual_seed(0)
    model = Denoised().eval()
    captured = capture(model, torch.randn(2, 160), dynamic_shapes={"x": {1: "samples"}})
    assert captured.graph.nodes[captured.graph.outputs[0]].shape == (None, "samples")
    for length in (160, 163, 24, 301):
        x = torch.randn(3, length)
        assert torch.allclose(outputs(captured, {"x": x}), model(x), atol=1e-4)


def test_a_length_in_the_data_that_is_too_short_fixes_the_length() -> None:
    found = Dynamic({"x": {1: "sequence"}}, {}, found=True, seen={"sequence": (2, 6)})
    captured = capture(Take(lambda y: y[:, -3:]), torch.zeros(2, 6, 4), dynamic_shapes=found)
    assert any("sequence is 2 in the data, and must be 3 or more" in note for note in captured.notes)


@pytest.mark.parametrize(
    "take",
    [
        lambda y: F.max_pool1d(y.mT, y.shape[1]),
        lambda y: F.avg_pool1d(y.mT, kernel_size=y.shape[1]),
        lambda y: F.max_pool2d(y[:, None], (y.shape[1], y.shape[2])),
        lambda y: F.adaptive_max_pool1d(y.mT, 1) + F.adaptive_avg_pool1d(y.mT, 3),
        lambda y: y.std(1) + y.var((1, 2), keepdim=True)[:, 0] + y.var(1, correction=0),
    ],
    ids=["largest", "mean", "image", "adaptive", "variance"],
)
def test_pools_over_a_whole_length_follow_it(take: Any) -> None:
    torch.manual_seed(0)
    model = Take(take).eval()
    captured = capture(model, torch.randn(2, 6, 4), dynamic_shapes={"x": {1: "sequence"}})
    for batch, length in ((1, 3), (3, 15), (2, 4)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(outputs(captured, {"x": x}), model(x), rtol=1e-4, atol=1e-5)


class Upsampled(nn.Module):
    """Noise of so many samples per frame, as a vocoder takes it."""

    def forward(self, noise: Tensor, frames: Tensor) -> Tensor:
        return noise + frames.repeat_interleave(4, 2)[:, :, 2:-2]


def test_an_input_may_be_as_long_as_another_says() -> None:
    asked = {"noise": {2: "samples"}, "frames": {2: "frames"}}
    captured = capture(Upsampled(), (torch.zeros(2, 1, 20), torch.zeros(2, 1, 6)), dynamic_shapes=asked)
    assert captured.graph.nodes["noise"].shape == (None, 1, "4*frames-4")
    given = {"noise": torch.randn(3, 1, 8), "frames": torch.randn(3, 1, 3)}
    assert torch.equal(outputs(captured, given), Upsampled()(**given))
    with pytest.raises(InputError, match=r"noise: 4\*frames-4 is 9, but frames is 3"):
        outputs(captured, {**given, "noise": torch.randn(3, 1, 9)})


def test_attention_over_images_without_limits_gets_some() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Flatten(2), Transposed(), layer).eval()
    captured = capture(model, torch.randn(2, 3, 16, 24), dynamic_shapes={"input": {2: "height", 3: "width"}})
    assert captured.graph.dimensions == {"height": (4, 515), "width": (4, 515)}
    assert any("height and width up to 515" in note for note in captured.notes)


class Transposed(nn.Module):
    """Channels last."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mT


class Tables(nn.Module):
    """Adds a table that it keeps by length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tables = nn.Linear(4, 4), dict[int, Tensor]()

    def table(self, length: int) -> Tensor:
        if length not in self.tables:
            self.tables[length] = torch.sin(torch.arange(length) / 3.0)[:, None]
        return self.tables[length]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.table(x.shape[1])
        return y


@pytest.mark.parametrize("called", [False, True])
def test_tables_kept_by_length_follow_it(called: bool) -> None:
    model = Tables().eval()
    if called:
        model(torch.randn(2, 6, 4)), model(torch.randn(2, 9, 4))
    before = list(model.tables)
    captured = capture(model, torch.randn(2, 6, 4), dynamic_shapes={"x": {1: Dim("length", max=70)}})
    assert list(model.tables) == before
    assert_same_at((3, 5, 6, 9, 64), captured, model, 4)


def test_as_many_as_a_length_decides_are_the_largest() -> None:
    model = Take(lambda y: y.gather(1, y[..., 0].topk(max(1, y.shape[1] // 2), dim=1)[1][..., None].expand(-1, -1, 4)))
    captured = capture(model.eval(), torch.randn(2, 8, 4), dynamic_shapes={"x": {1: Dim("tokens", max=70)}})
    assert_same_at((3, 5, 6, 9, 64), captured, model, 4)


@pytest.mark.parametrize(("most", "limits"), [(5, (5, None)), (20, (1, 20))], ids=["shorter", "longer"])
def test_the_smaller_of_a_number_and_a_length_is_that_of_the_example(most: int, limits: tuple[int, int | None]) -> None:
    model = Take(lambda y: y[:, : min(y.shape[1], most)] * 2).eval()
    captured = capture(model, torch.randn(2, 8, 4), dynamic_shapes={"x": {1: Dim("tokens")}})
    assert captured.graph.dimensions == {"tokens": limits}
    assert_same_at((5, 8, 20, limits[1] or 64), captured, model, 4)


def test_a_limit_that_was_asked_for_is_not_made_smaller() -> None:
    model = Take(lambda y: y[:, : min(y.shape[1], 20)]).eval()
    with pytest.raises(CaptureError, match=r"a dimension of size Min\(20, tokens\)"):
        capture(model, torch.randn(2, 8, 4), dynamic_shapes={"x": {1: Dim("tokens", max=70)}})
