from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from intact8.arithmetic.affine import choose_qparams, dequantize, quantize
from intact8.calibration import NonFiniteError, Observer, list_observers, make_observer
from intact8.calibration.mse import grid_error
from intact8.calibration.sketch_observer import SketchObserver
from intact8.errors import CalibrationError, RecipeError

ARGS: dict[str, dict[str, Any]] = {"fixed": {"lo": -1.0, "hi": 2.0}}
ALL = list_observers()
PER_TENSOR = [name for name in ALL if name != "per_channel"]
SEARCHING = ["histogram", "mse", "percentile", "entropy"]


def new(name: str) -> Observer:
    return make_observer(name, **ARGS.get(name, {}))


def observed(name: str, *parts: torch.Tensor) -> Observer:
    observer = new(name)
    for part in parts:
        observer.observe(part)
    return observer


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def snr(x: torch.Tensor, observer: Observer, symmetric: bool = False) -> float:
    s, z = observer.calculate_qparams(0, 255, symmetric)
    v = x.numpy()
    error = dequantize(quantize(v, s, z, 0, 255), s, z) - v.astype(np.float64)
    return float(10 * np.log10((v.astype(np.float64) ** 2).mean() / ((error**2).mean() + 1e-300)))


def equal(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=not isinstance(a, str))


def same_state(a: Observer, b: Observer) -> bool:
    x, y = a.state(), b.state()
    return set(x) == set(y) and all(equal(x[k], y[k]) for k in x)


def test_the_kinds_of_the_specification_exist() -> None:
    assert set(ALL) == {
        "minmax",
        "moving_average",
        "per_channel",
        "histogram",
        "percentile",
        "entropy",
        "mse",
        "output",
        "fixed",
    }


@pytest.mark.parametrize("name", ALL)
def test_halves_merge_to_the_bits_of_the_whole(name: str) -> None:
    parts = [normal(3000, i).reshape(10, 300) * (i + 1) for i in range(4)]
    whole = observed(name, *parts)
    first, second = observed(name, *parts[:2]), observed(name, *parts[2:])
    first.merge(second)
    assert same_state(first, whole)
    for symmetric in (False, True):
        for a, b in zip(
            first.calculate_qparams(0, 255, symmetric), whole.calculate_qparams(0, 255, symmetric), strict=True
        ):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("name", [n for n in ALL if n != "moving_average"])
def test_order_does_not_matter(name: str) -> None:
    parts = [normal(300, i).reshape(3, 100) for i in range(3)]
    backwards = observed(name, parts[2])
    backwards.merge(observed(name, parts[1]))
    backwards.merge(observed(name, parts[0]))
    assert same_state(backwards, observed(name, *parts))


@pytest.mark.parametrize("name", ALL)
def test_state_survives_a_file_and_goes_on(name: str, tmp_path: Any) -> None:
    parts = [normal(300, i).reshape(3, 100) for i in range(2)]
    torch.save(observed(name, parts[0]).state(), tmp_path / "state.pt")
    again = new(name)
    again.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    again.observe(parts[1])
    assert same_state(again, observed(name, *parts))


@pytest.mark.parametrize("name", ALL)
def test_state_is_a_snapshot(name: str) -> None:
    observer = observed(name, normal(300).reshape(3, 100))
    state = observer.state()
    copy = new(name)
    copy.load_state(state)
    observer.observe(normal(300, 1).reshape(3, 100) * 9)
    again = new(name)
    again.load_state(state)
    assert same_state(copy, again)
    assert not same_state(again, observer)


@pytest.mark.parametrize("name", ALL)
def test_count_extremes_reset_and_empty_tensors(name: str) -> None:
    observer = observed(name, torch.tensor([[-1.5, 0.0], [2.0, 1.0]]), torch.empty(0, 2))
    assert (observer.count, observer.minimum, observer.maximum) == (4, -1.5, 2.0)
    observer.reset()
    assert observer.count == 0 and np.isnan(observer.minimum) and np.isnan(observer.maximum)
    assert same_state(observer, new(name))


@pytest.mark.parametrize("name", [n for n in ALL if n != "fixed"])
def test_nothing_observed_is_an_error(name: str) -> None:
    with pytest.raises(CalibrationError, match="nothing was observed"):
        new(name).calculate_qparams(0, 255, False)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", ALL)
def test_non_finite_values_are_refused_and_leave_no_trace(name: str, value: float) -> None:
    observer = observed(name, normal(100).reshape(2, 50))
    before = observer.state()
    bad = normal(100, 1).reshape(2, 50)
    bad[1, 7] = value
    with pytest.raises(NonFiniteError) as caught:
        observer.observe(bad)
    assert caught.value.observer is observer
    assert all(equal(before[k], v) for k, v in observer.state().items())


@pytest.mark.parametrize("name", ALL)
def test_integers_are_refused(name: str) -> None:
    with pytest.raises(CalibrationError, match="int64"):
        new(name).observe(torch.arange(6).reshape(2, 3))


def test_another_kind_neither_merges_nor_loads() -> None:
    with pytest.raises(CalibrationError, match="cannot be merged"):
        new("minmax").merge(new("histogram"))
    with pytest.raises(CalibrationError, match="cannot be merged"):
        make_observer("percentile", percentile=99.0).merge(make_observer("percentile", percentile=99.9))
    with pytest.raises(CalibrationError, match="no state of observer"):
        new("minmax").load_state(new("histogram").state())


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("histogramm", {}, "did you mean 'histogram'"),
        ("minmax", {"momentum": 0.1}, "momentum.*leave them out"),
        ("percentile", {"pct": 99.0}, r"'pct'.*give what it takes: percentile=99\.99"),
        ("percentile", {"percentile": 101.0}, "outside"),
        ("moving_average", {"averaging_constant": 0.0}, "outside"),
        ("fixed", {"lo": 1.0, "hi": 0.0}, "not a range"),
        ("fixed", {"lo": 0.0}, "give what it takes: lo, hi"),
        ("fixed", {"lo": 0.0, "hi": "one"}, "Reason: must be real number"),
    ],
)
def test_bad_requests(name: str, args: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        make_observer(name, **args)


def data(kind: str) -> torch.Tensor:
    x = normal(30_000)
    return {
        "normal": lambda: x,
        "relu": lambda: x.relu(),
        "negative": lambda: -x.abs(),
        "uniform": lambda: torch.linspace(-1, 3, 50_000),
        "outlier": lambda: torch.cat([normal(60_000), torch.tensor([80.0])]),
        "long_tail": lambda: torch.distributions.Laplace(0.0, 1.0).icdf(torch.linspace(1e-5, 1 - 1e-5, 50_000)),
        "bimodal": lambda: torch.cat([x - 10, x * 0.1 + 5]),
        "huge": lambda: x * 1e30,
        "mostly_zero": lambda: torch.cat([torch.zeros(50_000), torch.linspace(0.1, 1, 9)]),
    }[kind]()


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("normal", 38),
        ("relu", 38),
        ("negative", 38),
        ("uniform", 46),
        ("bimodal", 46),
        ("huge", 38),
        ("long_tail", 33),
        ("mostly_zero", 40),
    ],
)
@pytest.mark.parametrize("name", SEARCHING)
def test_ranges_are_sane(name: str, kind: str, least: float, symmetric: bool) -> None:
    x = data(kind)
    observer = observed(name, x)
    lo, hi = observer.range(0, 255, symmetric)
    assert min(float(x.min()), 0) <= lo <= 0 <= hi <= max(float(x.max()), 0)
    if name == "percentile" and kind == "mostly_zero":
        return  # 9 of 50,009 values are more than the 0.01 % it was told to cut
    # Entropy keeps information, not energy, and percentile cuts whatever the shape: they may lose some decibels.
    assert snr(x, observer, symmetric) > least - (3 if name in ("entropy", "percentile") else 0)


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("kind", ["normal", "relu", "outlier", "long_tail", "bimodal", "uniform"])
@pytest.mark.parametrize("name", ["histogram", "mse"])
def test_searched_ranges_beat_a_brute_force_search(name: str, kind: str, symmetric: bool) -> None:
    """Errors measured on the values themselves, over a grid of clipped ranges: nothing is more than 2 % better."""
    x = data(kind)
    found = 10 ** (-snr(x, observed(name, x), symmetric) / 10)
    best = np.inf
    for f in np.geomspace(0.03, 1, 24):
        for g in np.geomspace(0.05, 1, 5) if not symmetric and kind in ("bimodal", "outlier") else [f]:
            fixed = make_observer("fixed", lo=min(float(x.min()), 0) * float(g), hi=max(float(x.max()), 0) * float(f))
            best = min(best, 10 ** (-snr(x, fixed, symmetric) / 10))
    assert found < best * 1.02


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("kind", ["normal", "relu", "bimodal", "uniform"])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.1, 0.001], ids=lambda s: f"range_x{s}")
def test_the_error_of_a_grid_is_that_of_the_values(kind: str, share: float, symmetric: bool) -> None:
    """The closed form over the bins of the sketch against quantizing every value."""
    x = data(kind)
    lo, hi = share * min(float(x.min()), 0), share * max(float(x.max()), 0)
    s, z = choose_qparams(lo, hi, 0, 255, symmetric)
    values = x.numpy().astype(np.float64)
    exact = ((dequantize(quantize(x.numpy(), s, z, 0, 255), s, z) - values) ** 2).sum()
    sketched = SketchObserver()
    sketched.observe(x)
    assert grid_error(sketched.sketch.bins(), lo, hi, 0, 255, symmetric) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("name", ["histogram", "mse"])
def test_bounded_data_are_not_clipped_for_a_trifle(name: str, symmetric: bool) -> None:
    x = torch.linspace(-1, 1, 200_001)
    assert observed(name, x).range(0, 255, symmetric) == (-1, 1)
    assert observed(name, x.relu()).range(0, 255, symmetric) == (0, 1)


@pytest.mark.parametrize("name", SEARCHING)
def test_outliers_are_clipped_where_that_pays(name: str) -> None:
    x = torch.cat([normal(500_000), torch.tensor([40.0, -40.0])])
    assert snr(x, observed(name, x)) > snr(x, observed("minmax", x)) + 1


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize(
    "values",
    [[5.0] * 9, [-5.0] * 9, [0.0] * 9, [0.0, 1.0], [1e-30, -2e-30], [3.4e38, -3.4e38], [1e-45], [-0.0]],
    ids=["constant", "negative", "zeros", "binary", "tiny", "largest", "denormal", "negative_zero"],
)
@pytest.mark.parametrize("name", [n for n in PER_TENSOR if n != "fixed"])
def test_degenerate_data(name: str, values: list[float], symmetric: bool) -> None:
    observer = observed(name, torch.tensor(values))
    lo, hi = observer.range(0, 255, symmetric)
    full_lo, full_hi = min(0.0, *values), max(0.0, *values)
    assert min(lo, 0) == pytest.approx(full_lo, rel=1e-6, abs=1e-44)
    assert max(hi, 0) == pytest.approx(full_hi, rel=1e-6, abs=1e-44)
    s, z = observer.calculate_qparams(0, 255, symmetric)
    assert np.isfinite(s) and s > 0 and 0 <= z <= 255


@pytest.mark.parametrize("name", [n for n in PER_TENSOR if n != "fixed"])
def test_the_ramp_keeps_its_exact_scale(name: str) -> None:
    """0..255 and images /255 come out on their own grid: clipping half a step for a gain of 0.2 % is not worth it."""
    for k in (1.0, 0.5, 1 / 255):
        x = torch.arange(256, dtype=torch.float32) * k
        s, z = observed(name, x.repeat(10)).calculate_qparams(0, 255, False)
        assert z == 0
        assert s == np.float32(float(x.max()) / 255)


def test_moving_average_follows_its_formula() -> None:
    observer = make_observer("moving_average", averaging_constant=0.25)
    for hi in (1.0, 2.0, 4.0):
        observer.observe(torch.tensor([-hi, hi]))
    assert observer.range(0, 255, False) == (-1.9375, 1.9375)


def test_a_moving_average_of_zeros_gives_way_to_what_follows() -> None:
    observer = make_observer("moving_average", averaging_constant=0.25)
    for hi in (0.0, 0.0, 0.0, 1.0, 2.0, 8.0, 4.0, 0.0):  # four batches widen it, then it is averaged
        observer.observe(torch.tensor([0.0, hi]))
    assert observer.range(0, 255, False) == (0.0, 6.0)
    halves = [make_observer("moving_average", averaging_constant=0.25) for _ in range(2)]
    for half, values in zip(halves, ((0.0, 0.0, 0.0, 1.0), (2.0, 8.0, 4.0, 0.0)), strict=True):
        for hi in values:
            half.observe(torch.tensor([0.0, hi]))
            half.range(0, 255, False)
    halves[0].merge(halves[1])
    assert halves[0].range(0, 255, False) == (0.0, 6.0)


def test_per_channel_axis() -> None:
    x = normal(24).reshape(2, 3, 4)
    for axis in (0, 1, 2, -1):
        observer = make_observer("per_channel", axis=axis)
        observer.observe(x)
        lo, hi = observer.range(-127, 127, True)
        rest = tuple(d for d in range(3) if d != axis % 3)
        assert np.array_equal(lo, x.numpy().min(axis=rest)) and np.array_equal(hi, x.numpy().max(axis=rest))
    with pytest.raises(CalibrationError, match="channels"):
        observer.observe(torch.zeros(2, 3, 5))
    with pytest.raises(CalibrationError, match="no axis"):
        make_observer("per_channel", axis=2).observe(torch.zeros(2, 3))
    vector = make_observer("per_channel")
    vector.observe(torch.tensor([1.0, -2.0]))
    assert vector.range(-127, 127, True)[0].tolist() == [1.0, -2.0]


def test_percentile_cuts_what_it_says() -> None:
    x = torch.linspace(-1, 1, 100_001)
    lo, hi = make_and_observe("percentile", x, percentile=95.0)
    assert lo == pytest.approx(-0.9, abs=0.01) and hi == pytest.approx(0.9, abs=0.01)
    # Every quantile of a tensor with 99.999 % zeros is zero, which would be no range.
    assert make_and_observe("percentile", torch.cat([torch.zeros(99_999), torch.ones(1)]), percentile=99.0) == (0, 1)


def make_and_observe(name: str, x: torch.Tensor, **args: Any) -> tuple[float, float]:
    observer = make_observer(name, **args)
    observer.observe(x)
    lo, hi = observer.range(0, 255, False)
    return lo, hi


@pytest.mark.bench
@pytest.mark.parametrize("name", SEARCHING)
def test_a_range_is_found_fast(name: str) -> None:
    observer = observed(name, normal(1_000_000) * torch.exp(normal(1_000_000, 1)))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        observer.range(0, 255, False)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.03
