from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intact8.calibration.observer import dense_values
from intact8.calibration.sketch import SAMPLED, Sketch
from intact8.errors import CalibrationError

ARRAYS = hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(allow_nan=False, allow_infinity=False, width=32))


def sketch_of(*parts: torch.Tensor) -> Sketch:
    sketch = Sketch()
    for part in parts:
        sketch.add(part, float(part.min()), float(part.max()))
    return sketch


@given(x=ARRAYS)
@settings(deadline=None)
def test_every_value_is_in_its_bin(x: np.ndarray) -> None:
    bins = sketch_of(torch.from_numpy(x)).bins()
    assert bins.total == x.size
    assert (bins.low <= bins.high).all()
    assert (bins.low[1:] >= bins.high[:-1]).all()
    exact, denormal = x.astype(np.float64), 9.2e-41
    inside = (exact[:, None] >= bins.low - denormal) & (exact[:, None] <= bins.high + denormal)
    assert inside.any(axis=1).all()
    wide = np.maximum(np.abs(bins.low), np.abs(bins.high)) / 128 + 2.0**-132
    assert (bins.high - bins.low <= wide).all()
    assert bins.low[0] == pytest.approx(float(x.min()), abs=1e-40)
    assert bins.high[-1] == pytest.approx(float(x.max()), abs=1e-40)


@given(parts=st.lists(ARRAYS, min_size=2, max_size=5), relu=st.booleans(), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_merging_in_any_order_gives_the_bits_of_the_whole(parts: list[np.ndarray], relu: bool, seed: int) -> None:
    tensors = [torch.from_numpy(p).relu() if relu else torch.from_numpy(p) for p in parts]
    whole = sketch_of(torch.cat(tensors))
    merged = Sketch()
    for i in np.random.default_rng(seed).permutation(len(tensors)):
        merged.merge(sketch_of(tensors[i]))
    for key, value in whole.state().items():
        assert torch.equal(value, merged.state()[key]), key


@pytest.mark.parametrize("n", [1, 2, (1 << 18) - 1, (1 << 18) + 1], ids=["one", "two", "chunk-1", "chunk+1"])
@pytest.mark.parametrize("relu", [False, True], ids=["signed", "relu"])
def test_both_ways_of_counting_agree_with_numpy(n: int, relu: bool) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    x = x.relu() if relu else x
    keys = x.numpy().view(np.uint32) >> 16
    expected = np.bincount(keys, minlength=65536)
    counts = sketch_of(x).counts.numpy()
    assert (counts == expected[: len(counts)]).all()
    assert counts.sum() == n


def test_counts_stay_where_they_are_until_a_larger_value_comes() -> None:
    sketch = sketch_of(torch.tensor([1.0, 4.0]))
    before = sketch.counts.data_ptr()
    sketch.add(torch.tensor([2.0]), 2.0, 2.0)
    assert sketch.counts.data_ptr() == before
    sketch.add(torch.tensor([-1.0]), -1.0, -1.0)  # signs are the highest bits
    assert sketch.counts.data_ptr() != before and int(sketch.counts.sum()) == 4


def test_negative_zero_is_zero() -> None:
    bins = sketch_of(torch.tensor([-0.0, 0.0, 0.0])).bins()
    assert (bins.low == 0).all() and (bins.high == 0).all() and bins.total == 3


def test_state_round_trip() -> None:
    sketch = sketch_of(torch.randn(1000))
    again = Sketch.from_state(sketch.state())
    for key, value in sketch.state().items():
        assert torch.equal(value, again.state()[key])
    assert Sketch.from_state(Sketch().state()).count == 0


def test_channels_last_and_transposed_are_viewed_not_copied() -> None:
    x = torch.randn(2, 3, 5, 4)
    for t in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(1, 3), x[1:]):
        values = dense_values(t)
        assert values.data_ptr() == t.data_ptr()
        assert torch.equal(values.flatten().sort().values, t.flatten().sort().values)


def test_scattered_and_expanded_tensors_count_every_element() -> None:
    x = torch.randn(4, 6)
    for t in (x[:, ::2], x[0:1].expand(5, 6), torch.tensor(3.0), x.T[1:3]):
        assert torch.equal(dense_values(t).flatten().sort().values, t.flatten().sort().values)


def test_samples_stay_together_however_they_lie_in_memory() -> None:
    x = torch.randn(4, 3, 5, 2)
    for t in (x, x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2), x[:1].expand(4, 3, 5, 2), x.transpose(1, 3)):
        values = dense_values(t)
        assert values.shape == (4, 30)
        assert torch.equal(values.sort(1).values, t.flatten(1).sort(1).values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_converted(dtype: torch.dtype) -> None:
    assert dense_values(torch.ones(3, dtype=dtype)).dtype == torch.float32


def test_integers_are_refused() -> None:
    with pytest.raises(CalibrationError, match=r"torch\.int64"):
        dense_values(torch.arange(3))


def large(samples: int, channels_last: bool, relu: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 16, 3 * SAMPLED // 16 + 5, 1, generator=generator)
    x = x.relu() if relu else x
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("relu", [False, True], ids=["signed", "relu"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
def test_large_samples_are_thinned_alike_however_the_batch_is_cut(channels_last: bool, relu: bool) -> None:
    x = large(5, channels_last, relu)
    whole = sketch_of(dense_values(x))
    merged = sketch_of(*[dense_values(part) for part in (x[3:], x[:1], x[1:3])])
    for key, value in whole.state().items():
        assert torch.equal(value, merged.state()[key]), key
    assert whole.count == x.numel()
    assert whole.counts.sum() == pytest.approx(x.numel(), rel=1e-3)
    assert (whole.minimum, whole.maximum) == (float(x.min()), float(x.max()))


def test_thinning_sees_every_channel_of_every_layout() -> None:
    x = torch.arange(8.0).add(1).reshape(1, 8, 1, 1).expand(2, 8, SAMPLED // 2, 1)
    for t in (x.contiguous(), x.contiguous(memory_format=torch.channels_last)):
        bins = sketch_of(dense_values(t)).bins()
        assert bins.low.tolist() == list(range(1, 9))
        assert bins.count == pytest.approx(np.full(8, SAMPLED), rel=0.01)


def test_a_value_at_one_position_is_met_as_often_as_it_should_be() -> None:
    x = large(300, False, False)[:, :1].repeat(1, 16, 1, 1)[:, :, :3077] * 0.1
    x[:, 5, 77] = 100.0
    bins = sketch_of(dense_values(x)).bins()
    assert 200 < bins.count[bins.high > 50].sum() < 400


def test_extremes_are_in_the_bins_even_if_thinned_away() -> None:
    for seed in range(4):
        x = torch.zeros(1, 3 * SAMPLED)
        x[0, 1000 + seed] = 7.0
        bins = sketch_of(dense_values(x)).bins()
        assert bins.high[-1] == 7.0 and bins.count[-1] in (1, 3)
