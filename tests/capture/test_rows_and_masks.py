"""Rows that are indexed sample by sample, elements that a mask chooses, and tensors that are filled step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intact8.capture import capture
from intact8.capture.execute import run_float
from intact8.errors import CaptureError

from .helpers import check

Function = Callable[[Tensor], Any]


class Made(nn.Module):
    """A module from a function of its input."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def nearest(x: Tensor) -> Tensor:
    """Return the three rows that are most like each row: (batch, rows, 3)."""
    return torch.cdist(x, x).topk(3, largest=False)[1]


def of_each_by_repeated_numbers(x: Tensor) -> Tensor:
    i = nearest(x)
    return x[torch.arange(len(x)).view(len(x), 1, 1).repeat(1, x.shape[1], 3), i, :].amax(2)


def of_heads(x: Tensor) -> Tensor:
    h = x.unflatten(2, (2, 4)).transpose(1, 2)
    i = h.norm(dim=-1).topk(3)[1]
    return h[torch.arange(len(x))[:, None, None], torch.arange(2)[None, :, None], i]


def of_heads_written(x: Tensor) -> Tensor:
    h = x.unflatten(2, (2, 4)).transpose(1, 2)
    i = h.norm(dim=-1).topk(3)[1]
    y = h.mean(2, keepdim=True).expand(-1, 2, x.shape[1], 4).clone()
    y[torch.arange(len(x))[:, None, None], torch.arange(2)[None, :, None], i] = 1.5 * h[:, :, :3]
    return y


def of_all_samples_at_once(x: Tensor) -> Tensor:
    batch, count, channels = x.shape
    i = nearest(x) + torch.arange(0, batch).view(-1, 1, 1) * count
    return x.view(batch * count, channels)[i.view(-1), :].view(batch, count, 3, channels).amax(2)


def of_all_samples_in_their_shape(x: Tensor) -> Tensor:
    batch, count, channels = x.shape
    i = nearest(x) + torch.arange(batch)[:, None, None] * count
    return x.reshape(-1, channels)[i].amax(2)


def the_first_of_each(x: Tensor) -> Tensor:
    return x[torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long), :]


def known_and_computed(x: Tensor) -> Tensor:
    i, j, each = x.mean(2).argmax(1), x.mean(1).argmax(1), torch.arange(len(x))
    y = x * 1
    y[each, i, j] = 5.0
    return y.sum(2) + x[each, i, 2][:, None] + x[each, -1, j][:, None]


ROWS = [
    of_each_by_repeated_numbers, of_heads, of_heads_written, of_all_samples_at_once,
    of_all_samples_in_their_shape, the_first_of_each,
    known_and_computed,
]  # fmt: skip


@pytest.mark.parametrize("function", ROWS)
def test_rows_are_indexed_in_any_number_of_samples(function: Function) -> None:
    torch.manual_seed(0)
    captured = check(Made(function), torch.randn(4, 5, 8))
    assert captured.graph.dynamic_batch


def replaced(x: Tensor) -> Tensor:
    y, z, mask = x * 1, x.flip(1), x > 0.5
    y[mask] = z[mask]
    return y


def scaled_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y[y > 0.5] *= 0.5
    return y


def both_sides(x: Tensor) -> Tensor:
    y, mask = x * 1, x > 0.1
    y[mask] = 1 / y[mask].sqrt()
    y[~mask] = y[~mask] ** 2 - torch.ones(())
    return y


def logarithms_of_rows(x: Tensor) -> Tensor:
    y = x.unflatten(1, (2, 4))
    mask = (y > 0).all(2)
    y[mask] = torch.log(y[mask]) + torch.arange(4.0)
    return y


def nearest_so_far(x: Tensor) -> Tensor:
    least = torch.ones(len(x), 8) * 1e10
    for d in (x.abs(), (x - 1).abs()):
        mask = d < least
        least[mask] = d[mask]
    return least


def sums_of_chosen(x: Tensor) -> Tensor:
    y, z, mask = x * 1, x.flip(1), x > 0
    y[mask] = torch.arange(8.0).sum() + z[mask] - 2 * y[mask].abs() * z[mask]
    return y


MASKS = [replaced, scaled_in_place, both_sides, logarithms_of_rows, nearest_so_far, sums_of_chosen]


@pytest.mark.parametrize("function", MASKS)
def test_elements_that_come_back_to_the_places_of_their_mask(function: Function) -> None:
    torch.manual_seed(0)
    captured = check(Made(function), torch.randn(4, 8))
    assert captured.graph.dynamic_batch


WEIGHTS = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0)) / 3


def experts(x: Tensor) -> Tensor:
    """As in Mistral's own code."""
    share, chosen = torch.topk(x[:, :4], 2)
    y = torch.zeros_like(x)
    for i, weight in enumerate(WEIGHTS):
        row, k = torch.where(chosen == i)
        y[row] += share[row, k, None] * F.silu(F.linear(x[row], weight))
    return y


def experts_added(x: Tensor) -> Tensor:
    """As in older versions of transformers."""
    share, chosen = torch.topk(x[:, :4], 2)
    y, masks = torch.zeros_like(x), F.one_hot(chosen, 4).permute(2, 1, 0)
    for mask, weight in zip(masks, WEIGHTS, strict=True):
        k, row = torch.where(mask)
        y.index_add_(0, row, F.linear(x[row], weight).relu_() * share[row, k, None])
    return y


def experts_of_one_more_dimension(x: Tensor) -> Tensor:
    """As in Mixtral."""
    share, chosen = torch.topk(F.softmax(x[:, :4], 1, dtype=torch.float), 2, -1)
    share /= share.sum(-1, keepdim=True)
    y, masks = torch.zeros_like(x), F.one_hot(chosen, 4).permute(2, 1, 0)
    for mask, weight in zip(masks, WEIGHTS, strict=True):
        k, row = torch.where(mask)
        z = F.gelu(F.linear(x[None, row].reshape(-1, 8), weight)) * share[row, k, None]
        y.index_add_(0, row, z.to(x.dtype))
    return y


def layers_of_rows(x: Tensor) -> Tensor:
    y, mask = x * 1, x[:, 0] > 0
    z = F.layer_norm(F.linear(x[mask], WEIGHTS[0], WEIGHTS[1, 0]), (8,)) @ WEIGHTS[1]
    z += x.amax(1)[mask].unsqueeze(1)
    y[mask] = z.softmax(1) * z.mean(1, keepdim=True) + torch.log(F.linear(x[mask], WEIGHTS[2]).square().sum(1))[:, None]
    return y


def logarithms_of_layers(x: Tensor) -> Tensor:
    y, z = torch.ones_like(x), F.linear(x, WEIGHTS[0])
    row, column = torch.where(z > 0.2)
    y[row, column] = 1 / (z - 0.1)[row, column].sqrt()
    return y


def places_of_rows(x: Tensor) -> Tensor:
    y = x * 1
    places = (x[:, 0] > 0).nonzero().squeeze(1)
    y[places] = F.linear(y[places], WEIGHTS[2])
    places = (x[:, 1] > 0).nonzero()[:, 0]
    return y.index_add(0, places, torch.sqrt(y[places].abs() + 1))


def places_of_parts(x: Tensor) -> Tensor:
    y, z = x.unflatten(1, (2, 4)) * 1, x.unflatten(1, (4, 2))
    row, part = torch.where(y.sum(2) > 0)
    y[row, part] = F.linear(y[row, part], WEIGHTS[0, :4, :4]) + z[row, 0, part][:, None] + x[row][:, :4]
    part, row = torch.where(z.transpose(0, 1).sum(2) > 0.5)
    z = z.index_put((row, part), z.flip(1)[row, part] / 2, accumulate=True)
    return torch.cat([y.flatten(1), z.flatten(1)], 1)


def numbers_in_places(x: Tensor) -> Tensor:
    y = x.unflatten(1, (2, 4)) * 1
    y[torch.where(y > 0.5)] = 0.5
    y[torch.where(y.sum(2) > 0)[0]] = torch.arange(4.0)
    return y


CHOSEN = [
    experts,
    experts_added,
    experts_of_one_more_dimension,
    layers_of_rows,
    logarithms_of_layers,
    places_of_rows,
    places_of_parts,
    numbers_in_places,
]


@pytest.mark.parametrize("function", CHOSEN)
def test_rows_that_come_back_to_the_places_in_which_a_mask_is_true(function: Function) -> None:
    torch.manual_seed(0)
    captured = check(Made(function), torch.randn(5, 8))
    assert captured.graph.dynamic_batch


def _in_the_columns(x: Tensor) -> Tensor:
    row, column = torch.where(x > 0)
    y = torch.zeros(8)
    y[column] = x[row, column]
    return y


def _of_all_rows(x: Tensor) -> Tensor:
    y, row = x * 1, torch.where(x[:, 0] > 0)[0]
    y[row] = x[row].softmax(0)
    return y


@pytest.mark.parametrize("function", [_in_the_columns, _of_all_rows, lambda x: x[torch.where(x > 0)]])
def test_rows_that_go_elsewhere_are_refused(function: Function) -> None:
    with pytest.raises(CaptureError, match="how many places are true is only known when the model runs"):
        capture(Made(function), torch.randn(4, 8))


def _elsewhere(x: Tensor) -> Tensor:
    y, mask = x * 1, x > 0
    y[mask] = x[mask] * x[mask].mean()
    return y


@pytest.mark.parametrize("function", [lambda x: x[x > 0.5].sum(), lambda x: x[x > 0.5], _elsewhere])
def test_elements_that_go_elsewhere_are_refused(function: Function) -> None:
    with pytest.raises(CaptureError, match="how many elements a mask chooses"):
        capture(Made(function), torch.randn(4, 8))


def steps(x: Tensor) -> Tensor:
    y = torch.zeros(len(x), 3, 4)
    for i in range(3):
        y[:, i] = x[:, 2 * i : 2 * i + 4] * (i + 1)
    return y


def steps_first(x: Tensor) -> Tensor:
    y = torch.full((3, len(x), 4), 0.5)
    for i in range(2):
        y[i + 1] = x[:, 2 * i : 2 * i + 4]
    return y.transpose(0, 1)


@pytest.mark.parametrize("function", [steps, steps_first])
def test_tensors_as_long_as_the_batch_are_filled(function: Function) -> None:
    torch.manual_seed(0)
    captured = check(Made(function), torch.randn(4, 8))
    assert captured.graph.dynamic_batch


class Held(nn.Module):
    """Buffers that are written, though their values stay, or nothing reads them."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("scale", torch.rand(8) + 0.5)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("begun", torch.tensor(1, dtype=torch.uint8))
        self.register_buffer("set", torch.tensor([True]))

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "moved":
            self.scale = self.scale.to(x.device)
        if self.what == "counted":
            self.steps += 1
        if self.what == "begun" and self.begun.item() == 0:
            self.scale.copy_(x.mean(0))
        if self.what == "set" and not self.set:
            self.scale.copy_(x.mean(0))
        if self.what == "used":
            self.steps += 1
            return x * self.scale + self.steps
        return x * self.scale


@pytest.mark.parametrize("what", ["moved", "counted", "begun", "set"])
def test_buffers_that_keep_their_values_or_that_nothing_reads(what: str) -> None:
    captured = check(Held(what), torch.randn(4, 8))
    assert any("which nothing of its outputs depends on" in note for note in captured.notes) == (what == "counted")


def test_a_buffer_that_is_changed_and_read_is_refused() -> None:
    with pytest.raises(CaptureError, match="changes steps"):
        capture(Held("used"), torch.randn(4, 8))


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


GUARDED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "fill": lambda s, v, k: s.masked_fill(~k[:, None, None], -torch.inf).softmax(-1).nan_to_num(0) @ v,
    "where": lambda s, v, k: torch.where(k[:, None, None], s, -torch.inf).softmax(-1).nan_to_num() @ v,
    "added": lambda s, v, k: (s + torch.where(k, 0.0, -torch.inf)[:, None, None]).softmax(-1).nan_to_num(0) @ v,
    "added zeros": lambda s, v, k: (
        (s + torch.zeros(k.shape).masked_fill(~k, -torch.inf)[:, None, None]).softmax(-1).nan_to_num(0) @ v
    ),
    "behind": lambda s, v, k: (s.masked_fill(~k[:, None, None], -torch.inf).softmax(-1) @ v).nan_to_num(0.25),
    "isnan": lambda s, v, k: (
        (lambda w: w.masked_fill(w.isnan(), 0.0))(
            (2 * s.masked_fill(~k[:, None, None], -torch.inf).softmax(-1)).transpose(1, 2)
        ).transpose(1, 2)
        @ v
    ),
}


class Guarded(nn.Module):
    """Attention that guards against rows that are masked whole."""

    def __init__(self, guard: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.guard = guard

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        scores = _heads(self.q(x)) @ _heads(self.k(x)).mT
        return self.guard(scores, _heads(self.v(x)), keep).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("guard", GUARDED)
def test_rows_that_are_masked_whole_are_what_the_model_makes_of_nan(guard: str) -> None:
    model = Guarded(GUARDED[guard]).eval()
    keep = torch.rand(3, 6) > 0.3
    keep[:, 0] = True
    captured = capture(model, (torch.randn(3, 6, 8), keep))
    x, hidden = torch.randn(4, 6, 8), torch.tensor([[True] * 6, [False] * 6, [True, *[False] * 5], [False] * 6])
    found = run_float(captured.graph, captured.tensors(), captured.flatten((x, hidden)))
    torch.testing.assert_close(found[captured.graph.outputs[0]], model(x, hidden), rtol=1e-4, atol=1e-5)


ASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "isneginf": torch.isneginf,
    "equal": lambda s: s == -torch.inf,
    "greater": lambda s: s > -torch.inf,
    "other": lambda s: s != -torch.inf,
    "all of a row": lambda s: s.amax(-1, keepdim=True) == -torch.inf,
    "negative": lambda s: -s == torch.inf,
    "sum": lambda s: (s + 1).isinf(),
    "number": lambda s: s.nan_to_num(neginf=-1.0),
}


@pytest.mark.parametrize("ask", ASKED)
def test_infinity_that_was_written_is_found_where_the_model_asks_for_it(ask: str) -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            return ASKED[ask](x.masked_fill(~keep, -torch.inf)).float() + 0.5 * x

    captured = capture(Asks().eval(), (torch.randn(3, 6), torch.ones(3, 6, dtype=torch.bool)))  # nothing is hidden
    x, keep = torch.randn(4, 6), torch.rand(4, 6) > 0.5
    keep[0] = False
    found = run_float(captured.graph, captured.tensors(), captured.flatten((x, keep)))
    torch.testing.assert_close(found[captured.graph.outputs[0]], Asks()(x, keep))
