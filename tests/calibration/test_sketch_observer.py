"""Samples of different energy: what each of them counts, and how their sketches merge and are stored."""

from __future__ import annotations

import pytest
import torch

from intact8.calibration import make_observer
from intact8.calibration.sketch_observer import SketchObserver


def observed(kind: str, *batches: torch.Tensor, weighed: bool = True, **args: bool) -> SketchObserver:
    observer = make_observer(kind, **args)
    assert isinstance(observer, SketchObserver)
    for batch in batches:
        observer.begin(len(batch) if weighed else None)
        observer.observe(batch)
    return observer


def relative_error(observer: SketchObserver, x: torch.Tensor) -> float:
    scale, zero_point = observer.calculate_qparams(0, 255, False)
    rounded = torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero_point), 0, 255)
    return float((rounded - x).norm() / x.norm())


@pytest.fixture
def data() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 4, 32, 32, generator=generator) * torch.tensor([30.0] + [1.0] * 15).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize("kind", ["histogram", "mse"])
def test_one_loud_sample_does_not_decide(kind: str, data: torch.Tensor) -> None:
    assert relative_error(observed(kind, data), data[1:]) < 0.12
    assert relative_error(observed(kind, data, weighed=False), data[1:]) > 0.2


@pytest.mark.parametrize("kind", ["histogram", "mse"])
def test_silence_does_not_decide_either(kind: str, data: torch.Tensor) -> None:
    silent = data[1:] * torch.tensor([1e-4] * 9 + [1.0] * 6).reshape(-1, 1, 1, 1)
    silent[0] = 0
    assert relative_error(observed(kind, silent), silent[9:]) < 0.02


@pytest.mark.parametrize("kind", ["histogram", "mse"])
def test_ordinary_samples_count_as_they_are(kind: str, data: torch.Tensor) -> None:
    """Energies within an octave or two, and an outlier that every sample has, are nothing to weigh."""
    usual = data[1:] * torch.linspace(0.7, 1.9, 15).reshape(-1, 1, 1, 1)
    usual[:, 0, 0] *= 50
    weighed, counted = observed(kind, usual), observed(kind, usual, weighed=False)
    assert len(weighed.levels) > 1
    assert weighed.range(0, 255, False) == counted.range(0, 255, False)


@pytest.mark.parametrize("kind", ["histogram", "mse"])
def test_a_loud_tensor_that_shares_a_range_is_no_loud_sample(kind: str, data: torch.Tensor) -> None:
    """Of what is concatenated, as boxes in pixels and logits, the wider part keeps its values."""
    boxes, observer = torch.linspace(0, 63, 16 * 128).reshape(128, 16).T.contiguous(), make_observer(kind)
    assert isinstance(observer, SketchObserver)
    for rows in (slice(0, 8), slice(8, 16)):
        observer.begin(8)
        observer.observe(data[1:2].expand(16, -1, -1, -1)[rows])
        observer.observe(boxes[rows])
    assert observer.range(0, 255, False)[1] > 62
    stored = make_observer(kind)
    stored.load_state(observer.state())
    assert stored.range(0, 255, False) == observer.range(0, 255, False)


def test_states_of_before_tensors_were_kept_apart_are_read(data: torch.Tensor) -> None:
    whole, stored = observed("histogram", data), observed("histogram")
    state = whole.state()
    stored.load_state(state | {"levels": state["levels"][:, 1:]})
    assert stored.range(0, 255, False) == whole.range(0, 255, False)


def test_halves_merge_to_the_same_bits_and_are_stored(data: torch.Tensor) -> None:
    whole, merged = observed("histogram", data), observed("histogram", data[:5])
    merged.merge(observed("histogram", data[5:]))
    stored = observed("histogram")
    stored.load_state(whole.state())
    assert len(whole.levels) > 1
    for other in (merged, stored):
        assert other.range(0, 255, False) == whole.range(0, 255, False)
        assert (other.count, other.minimum, other.maximum) == (whole.count, whole.minimum, whole.maximum)


def test_few_samples_leave_room_for_what_they_do_not_show() -> None:
    """Ranges from four samples hold more of the others than their own extremes do; those from 64 are as they were."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2000, 24, generator=generator).cumsum(1)
    roomy, tight = observed("histogram", x[:4], room=True), observed("histogram", x[:4])
    assert relative_error(roomy, x) < 0.6 * relative_error(tight, x)
    for count in (1, 64):
        roomy, tight = observed("histogram", x[:count], room=True), observed("histogram", x[:count])
        assert roomy.range(0, 255, False) == tight.range(0, 255, False)


def test_room_is_sized_by_the_spread_of_extremes() -> None:
    """σ·√6/π·ln(64/n) above the largest value, and none where all samples reach the same bound."""
    tops = torch.tensor([2.0, 3.0, 5.0, 4.0])
    x = torch.cat([torch.zeros(4, 1), torch.linspace(0, 1, 50) * tops[:, None]], 1)
    lo, hi = observed("histogram", x, room=True).range(0, 255, False)
    assert (lo, hi) == (0.0, pytest.approx(5 + float(tops.std()) * 6**0.5 / torch.pi * float(torch.tensor(16.0).log())))
    assert observed("histogram", x / tops[:, None], room=True).range(0, 255, False) == (0.0, 1.0)


def test_room_does_not_depend_on_how_samples_were_batched() -> None:
    x = torch.randn(6, 30, generator=torch.Generator().manual_seed(2))
    whole, halves = observed("histogram", x, room=True), observed("histogram", x[4:], room=True)
    halves.merge(observed("histogram", x[:4], room=True))
    stored = observed("histogram", room=True)
    stored.load_state(halves.state())
    for other in (halves, stored, observed("histogram", *x.split(1), room=True)):
        assert other.range(0, 255, False) == whole.range(0, 255, False) != observed("histogram", x).range(0, 255, False)
    many = observed("histogram", x.repeat(11, 1), room=True)
    stored.load_state(many.state())
    stored.merge(halves)
    assert "ends" not in many.state() and "ends" not in stored.state()
    stored.reset()
    stored.merge(whole)
    assert stored.range(0, 255, False) == whole.range(0, 255, False)
