"""Compiled kernels over rows: the bits of the definition for any numbers, sizes and threads, and nothing beyond."""

from __future__ import annotations

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.recurrent import draw_inputs, layer
from tests.engines.test_dynamic import bits
from tests.engines.test_quantize_passes import finished as finished_as_written

from intact8.arithmetic import dynamic as definition
from intact8.arithmetic import resize
from intact8.engines import engine_status, get_engine
from intact8.engines.onednn import attention, quantize_passes, torch_native
from intact8.engines.onednn import dynamic_linear as dynamic
from intact8.engines.onednn.threads import thread_count
from intact8.errors import EngineError

ENOUGH = 1 << 15
"""Elements from which a second thread is used: that of native/module.c."""

WIDTHS = st.one_of(st.integers(1, 130), st.sampled_from([256, 1000, 4097]))
EXAMPLES = settings(max_examples=150, deadline=None, database=None)


@pytest.fixture
def library():
    found = torch_native.load()
    if found is None:
        pytest.skip("the compiled kernels were not built")
    return found


@pytest.fixture(params=["compiled", "torch"])
def how(request, monkeypatch):
    """The compiled kernels, then what stands in for them."""
    if request.param == "torch":
        monkeypatch.setattr(torch_native, "load", lambda: None)
    elif torch_native.load() is None:
        pytest.skip("the compiled kernels were not built")
    return request.param


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) here")
def test_they_are_built_where_there_is_a_compiler():
    assert torch_native.load() is not None, "pip install -v -e . says why the extension was not built"


def ordinary(rng, width):
    return rng.standard_normal(width) * 10.0 ** rng.uniform(-40, 37)


def ties(rng, width):
    """Quotients k + ½: the scale is a power of two."""
    x = rng.integers(-253, 254, width) / 2
    x[rng.integers(width)] = 127
    return x * 2.0 ** rng.integers(-50, 100)


def lone(rng, width):
    """One large number among tiny ones."""
    x = rng.uniform(-1e-38, 1e-38, width)
    x[rng.integers(width)] = -1e38
    return x


def spoiled(rng, width):
    x = rng.standard_normal(width)
    x[rng.integers(width)] = rng.choice([np.nan, np.inf, -np.inf])
    return x


ROWS = {
    "ordinary": ordinary,
    "ties": ties,
    "lone": lone,
    "spoiled": spoiled,
    "zero": lambda rng, width: rng.choice([0.0, -0.0], width),
    "equal": lambda rng, width: np.full(width, rng.standard_normal()),
    "huge": lambda rng, width: rng.uniform(-3.4e38, 3.4e38, width),
    "subnormal": lambda rng, width: rng.integers(-9000, 9001, width) * 2.0**-149,
    "about the smallest scale": lambda rng, width: rng.uniform(-254, 254, width) * 2.0**-60,
}


def test_rows_are_quantized_as_defined(how):
    quantize = dynamic.quantizer("per_row")

    @EXAMPLES
    @given(st.integers(0, 2**63), WIDTHS, st.lists(st.sampled_from(sorted(ROWS)), min_size=1, max_size=8))
    def check(seed, width, kinds):
        rng = np.random.default_rng(seed)
        x = np.stack([ROWS[kind](rng, width) for kind in kinds]).astype(np.float32)
        before, (q, s) = x.copy(), quantize(torch.from_numpy(x))
        want, scales = definition.quantize_rows(x)
        np.testing.assert_array_equal(bits(s.numpy()), bits(scales))
        whole = np.isfinite(scales[:, 0])
        assert (whole == [kind != "spoiled" for kind in kinds]).all()
        np.testing.assert_array_equal(q.numpy()[whole], want[whole])
        np.testing.assert_array_equal(x.view(np.int32), before.view(np.int32))

    check()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::2],
        lambda x: x[..., 3:20],
        lambda x: x.transpose(0, 1),
        lambda x: x.transpose(1, 2),
        lambda x: x[:1].expand(4, -1, -1),
        lambda x: x[0, 0],
    ],
    ids=["every other", "columns", "rows turned", "elements turned", "expanded", "one row"],
)
def test_rows_of_any_layout(view, how):
    x = view(torch.from_numpy(np.random.default_rng(0).standard_normal((3, 6, 33), np.float32)))
    q, s = dynamic.quantizer("per_row")(x)
    want, scales = definition.quantize_rows(x.numpy())
    assert q.is_contiguous() and s.shape == (*x.shape[:-1], 1)
    np.testing.assert_array_equal(q.numpy(), want)
    np.testing.assert_array_equal(s.numpy(), scales)


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
def test_scales_and_bias_are_two_roundings(biased, how):
    finish = dynamic.scaler("per_row")

    @EXAMPLES
    @given(st.integers(0, 2**63), st.integers(1, 8), WIDTHS)
    def check(seed, rows, width):
        rng = np.random.default_rng(seed)
        acc = rng.integers(-(2**31), 2**31, (rows, width)) >> rng.integers(0, 31, (rows, width))
        scale = 10.0 ** rng.uniform(-20, 10, width).astype(np.float32)
        s = 10.0 ** rng.uniform(-18, 30, (rows, 1)).astype(np.float32)
        s[rng.random((rows, 1)) < 0.1] = np.nan
        # Bias of the size of what it is added to: where one rounding fewer would show.
        bias = (rng.standard_normal(width) * np.abs(acc[0]) * scale * 1e6).astype(np.float32) if biased else None
        want = definition.scaled(acc, scale, s, bias)
        y = torch.from_numpy(acc.astype(np.float32) * scale)
        result = finish(y, torch.from_numpy(s), None if bias is None else torch.from_numpy(bias))
        assert result.data_ptr() == y.data_ptr()
        np.testing.assert_array_equal(bits(result.numpy()), bits(want))

    check()


@EXAMPLES
@given(st.integers(0, 2**63), st.integers(1, 4), st.one_of(st.integers(1, 140), st.just(500)), st.integers(1, 300))
def test_gates(seed, groups, width, repeat):
    """Rows of images times one row for each: an exact product, and one rounding of it times the ratio."""
    library, rng = torch_native.load(), np.random.default_rng(seed)
    if library is None:
        pytest.skip("the compiled kernels were not built")
    x, w = (rng.integers(0, 256, (groups, n, width), np.uint8) for n in (repeat, 1))
    y, ratio = np.empty_like(x), np.float32(10 ** rng.uniform(-5, -1))
    (zero_x, zero_w, zero), (lo, hi) = rng.integers(0, 256, 3).tolist(), sorted(rng.integers(0, 256, 2).tolist())
    ends, count = (lo - zero, hi - zero), groups * repeat
    addresses = (x.ctypes.data, w.ctypes.data, y.ctypes.data)
    product = (x.astype(np.int32) - zero_x) * (w.astype(np.int32) - zero_w)
    for _ in with_and_without_vectors(library):
        y.fill(99)
        numbers = (count, width, repeat, zero_x, zero_w, zero, quantize_passes.float_bits(ratio), *ends)
        library.multiply(*addresses, *numbers, x.nbytes, w.nbytes, y.nbytes)
        np.testing.assert_array_equal(y, finished_as_written(product.astype(np.float32) * ratio, zero, lo, hi))


def with_and_without_vectors(library):
    """As on this CPU, and as on an older one."""
    try:
        for plain in (False, True):
            library.force_portable(plain)
            yield plain
    finally:
        library.force_portable(False)


@EXAMPLES
@given(st.integers(0, 2**63), st.integers(0, 400))
def test_tables(seed, size):
    library, rng = torch_native.load(), np.random.default_rng(seed)
    if library is None:
        pytest.skip("the compiled kernels were not built")
    x, table, y = rng.integers(0, 256, size, np.uint8), rng.permutation(256).astype(np.uint8), np.empty(size, np.uint8)
    for _ in with_and_without_vectors(library):
        y.fill(99)
        library.lookup(x.ctypes.data, y.ctypes.data, size, table.ctypes.data, size, size, 256)
        np.testing.assert_array_equal(y, table[x])


@EXAMPLES
@given(st.integers(0, 2**63), st.integers(1, 3), st.integers(1, 300), st.one_of(st.integers(1, 140), st.just(500)))
def test_means(seed, samples, pixels, channels):
    """Exact sums, one rounding of a/b and one of its product in float64."""
    library, rng = torch_native.load(), np.random.default_rng(seed)
    if library is None:
        pytest.skip("the compiled kernels were not built")
    x, y = rng.integers(0, 256, (samples, pixels, channels), np.uint8), np.empty((samples, channels), np.uint8)
    zero_x, zero, a, b = (*rng.integers(0, 256, 2).tolist(), *rng.integers(1, 8192, 2).tolist())
    lo, hi = sorted(rng.integers(0, 256, 2).tolist())
    sizes, offset = (samples, pixels, channels), zero_x * pixels
    numbers = (*sizes, offset, a, b * pixels, lo - zero, hi - zero, zero)
    library.mean(x.ctypes.data, y.ctypes.data, *numbers, x.nbytes, y.nbytes)
    sums = x.sum(1, dtype=np.int64) - offset
    np.testing.assert_array_equal(y, finished_as_written(sums * (a / (b * pixels)), zero, lo, hi))


@EXAMPLES
@given(st.integers(0, 2**63), st.integers(1, 5), WIDTHS)
def test_layer_norms(seed, rows, width):
    """Errors are those of float32, and NaN and infinity spoil their row only."""
    library, rng = torch_native.load(), np.random.default_rng(seed)
    if library is None:
        pytest.skip("the compiled kernels were not built")
    x = (rng.standard_normal((rows, width)) * 10.0 ** rng.uniform(-3, 3) + rng.uniform(-9, 9)).astype(np.float32)
    spoil = rng.random(rows) < 0.2
    x[spoil, rng.integers(width)] = rng.choice([np.nan, np.inf, -np.inf])
    weight, bias = rng.standard_normal((2, width), np.float32)
    y, eps = np.empty_like(x), np.float32(1e-5)
    memories = (x, weight, bias, y)
    numbers = (*(a.ctypes.data for a in memories), rows, width, quantize_passes.float_bits(eps))
    library.layer_norm(*numbers, *(a.nbytes for a in memories))
    assert (np.isnan(y).all(1) == spoil).all() and (np.isnan(y).any(1) == spoil).all()
    whole = x[~spoil].astype(np.float64)
    mean, deviation = whole.mean(1, keepdims=True), np.sqrt(whole.var(1, keepdims=True) + eps)
    # The mean is off by some units of the largest number, and so is what is left of one.
    slack = 2.0**-20 * (1 + np.abs(whole).max(1, keepdims=True) / deviation)
    want = (whole - mean) / deviation
    assert (
        np.abs(y[~spoil] - (want * weight + bias)) <= slack * (1 + np.abs(want)) * (np.abs(weight) + np.abs(bias))
    ).all()


def quantized(rng):
    run, x = dynamic.quantizer("per_row"), torch.from_numpy(rng.standard_normal((301, 257), np.float32))
    return lambda: run(x)


def scaled(rng):
    run, y = dynamic.scaler("per_row"), torch.from_numpy(rng.standard_normal((301, 257), np.float32))
    s, bias = (torch.from_numpy(rng.standard_normal(size, np.float32)) for size in ((301, 1), 257))
    return lambda: (run(y.clone(), s, bias),)


def finished(rng):
    run = quantize_passes.make_quantize(7, 3, 250, 0.3)
    x = torch.from_numpy(rng.standard_normal(70001, np.float32) * 40)
    return lambda: (run(x.clone()),)


def turned(rng):
    x = torch.from_numpy(rng.standard_normal((3, 5, 67, 41), np.float32))
    run = quantize_passes.make_quantize_nhwc(x, 7, 3, 250, 0.01)
    return lambda: (run(x),)


def gated(rng):
    x, w = (torch.from_numpy(rng.integers(0, 256, size, np.uint8)) for size in ((5 * 301, 33), (5, 33)))
    last = (1505, 33, 301, 100, 20, 7, quantize_passes.float_bits(0.01), -7, 200)

    def run():
        y = torch.empty_like(x)
        torch_native.load().multiply(x.data_ptr(), w.data_ptr(), y.data_ptr(), *last, x.nbytes, w.nbytes, y.nbytes)
        return (y,)

    return run


def averaged(rng):
    x = torch.from_numpy(rng.integers(0, 256, (3, 49, 300), np.uint8))

    def run():
        y = torch.empty(3, 300, dtype=torch.uint8)
        numbers = (3, 49, 300, 4900, 3, 51, -7, 200, 7)
        torch_native.load().mean(x.data_ptr(), y.data_ptr(), *numbers, x.nbytes, y.nbytes)
        return (y,)

    return run


def normed(rng):
    x, (weight, bias) = rng.standard_normal((301, 257), np.float32), rng.standard_normal((2, 257), np.float32)

    def run():
        y = torch.empty(301, 257, dtype=torch.float32)
        memories = (x, weight, bias, y.numpy())
        addresses, sizes = [a.ctypes.data for a in memories], [a.nbytes for a in memories]
        torch_native.load().layer_norm(*addresses, 301, 257, quantize_passes.float_bits(1e-5), *sizes)
        return (y,)

    return run


def dequantized(rng):
    x = torch.from_numpy(rng.integers(0, 256, (301, 300), np.uint8))[:, 10:267]
    run = quantize_passes.make_dequantize(x, 7, 0.3)
    return lambda: (run(x),)


def looked_up(rng):
    x = torch.from_numpy(rng.integers(0, 256, 70001, np.uint8))
    run = quantize_passes.make_lookup(torch.from_numpy(rng.permutation(256).astype(np.uint8)))
    return lambda: (run(x),)


def attended(rng):
    q, k, v = (torch.from_numpy(rng.standard_normal((3, 5, 65, 24), np.float32)) for _ in range(3))
    run = attention.lower_attention(SimpleNamespace(inputs=[q, k.mT, v]))
    return lambda: (run(q, k.mT, v),)


def remembered(rng):
    program = layer("lstm", rng, directions=2, states=True, lengths=True, time=3, hidden=135)
    runner, values = get_engine("onednn").prepare(program), draw_inputs(program, 67, rng)
    given = [torch.from_numpy(values[name]) for name in program.inputs]
    return lambda: runner.torch_call(given)


PASSES = {
    "quantize_rows": quantized,
    "scale_rows": scaled,
    "quantize": finished,
    "quantize_nhwc": turned,
    "multiply": gated,
    "mean": averaged,
    "norm": normed,
    "dequantize": dequantized,
    "table": looked_up,
    "attend": attended,
    "recurrent": remembered,
}
"""Pass → random numbers → a call on more than ENOUGH of them, in parts that no two threads share evenly."""


def result(call, threads):
    with thread_count(threads):
        return [y.clone() for y in call()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(params=PASSES)
def make(request, library):
    if request.param == "attend" and not library.can_attend():
        pytest.skip("this CPU has no vectors for attention")
    if request.param == "recurrent" and engine_status()["onednn"] is not None:
        pytest.skip(engine_status()["onednn"])
    return PASSES[request.param]


def test_one_thread_or_two_give_the_same_bits(make):
    call = make(np.random.default_rng(0))
    want = result(call, 1)
    for threads in (2, 3, 1):
        assert same(result(call, threads), want)


def test_python_threads_at_once_give_the_same_bits(make):
    calls = [make(np.random.default_rng(seed)) for seed in range(4)]
    want = [result(call, 1) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: result(calls[i % 4], 1 + i // 4 % 2), range(24)))
    assert all(same(y, want[i % 4]) for i, y in enumerate(found))


@pytest.fixture
def asked(library):
    """The number of threads of every request to torch's OpenMP."""
    openmp = ctypes.CDLL(torch._C.__file__)
    try:
        addresses = [ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value for name in torch_native.THREADS]
    except AttributeError:
        pytest.skip("torch has other threads")
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel, found = kind(addresses[0]), []

    def counted(*arguments):
        found.append(torch.get_num_threads())
        parallel(*arguments)

    instead = kind(counted)
    library.use_threads(ctypes.cast(instead, ctypes.c_void_p).value, *addresses[1:])
    yield found
    library.use_threads(*addresses)


def test_threads_of_torch_are_used(make, asked):
    call = make(np.random.default_rng(0))
    asked.clear()
    one, two = result(call, 1), result(call, 2)
    assert asked and set(asked) == {2} and same(one, two)


def test_threads_are_used_where_they_pay(asked):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((8, ENOUGH // 8), np.float32))
    quantize = dynamic.quantizer("per_row")
    with thread_count(2):
        for fewer in (x[:-1], x.view(1, -1)):
            quantize(fewer)
        assert not asked
        quantize(x)
    assert asked == [2]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("width", [1, 7, 16, 31, 63, 64, 65, 129])
def test_nothing_beyond_the_results_is_written(rows, width, library):
    rng = np.random.default_rng(0)
    x, codes = rng.standard_normal((rows, width), np.float32), rng.integers(0, 256, (rows, width), np.uint8)
    table, bias = rng.permutation(256).astype(np.uint8), np.zeros(width, np.float32)
    scales = np.ones((rows, 1), np.float32)
    size, one = rows * width, quantize_passes.float_bits(1.0)

    def guarded(count, dtype):
        whole = np.full(count * np.dtype(dtype).itemsize + 128, 0xA5, np.uint8)
        return whole, whole.ctypes.data + 64

    def intact8(*memory):
        return all((whole[:64] == 0xA5).all() and (whole[-64:] == 0xA5).all() for whole in memory)

    (bytes_, at), (others, beside), (floats, there) = guarded(size, np.uint8), guarded(rows, "f4"), guarded(size, "f4")
    library.quantize_rows(x.ctypes.data, at, beside, rows, width, 4 * size, size, 4 * rows)
    assert intact8(bytes_, others)
    library.quantize(x.ctypes.data, at, size, one, -3, 9, 5, 0, 4 * size, size)
    assert intact8(bytes_)
    library.quantize_nhwc(x.ctypes.data, at, 1, rows, width, one, -3, 9, 5, 0, 4 * size, size)
    assert intact8(bytes_)
    numbers = (rows, width, rows, 3, 4, 5, one, -3, 9)
    library.multiply(codes.ctypes.data, codes.ctypes.data, at, *numbers, size, width, size)
    assert intact8(bytes_)
    library.mean(codes.ctypes.data, beside, rows, width, 1, 3, 1, 9, -3, 9, 5, size, rows)
    assert intact8(others)
    library.mean(codes.ctypes.data, at, 1, rows, width, 3, 1, 9, -3, 9, 5, size, width)
    assert intact8(bytes_)
    library.lookup(codes.ctypes.data, at, size, table.ctypes.data, size, size, 256)
    assert intact8(bytes_) and (bytes_[64:-64] == table[codes].ravel()).all()
    sizes = (4 * size, 4 * width, 4 * width, 4 * size)
    library.layer_norm(x.ctypes.data, bias.ctypes.data, bias.ctypes.data, there, rows, width, one, *sizes)
    assert intact8(floats)
    library.dequantize(codes.ctypes.data, there, rows, width, width, one, 0, size, 4 * size)
    assert intact8(floats) and (floats[64:-64].view(np.float32) == codes.ravel()).all()
    library.scale_rows(there, scales.ctypes.data, bias.ctypes.data, rows, width, 4 * size, 4 * rows, 4 * width)
    assert intact8(floats)
    if library.can_attend():
        strides = (0, 0, width) * 3 + (0, 0, 0) + (0, 0, width)
        sizes = (*[4 * size] * 3, 0, 4 * size)
        library.attend(*[x.ctypes.data] * 3, 0, there, 1, 1, rows, rows, width, *strides, *sizes)
        assert intact8(floats)


def test_wrong_arguments_are_refused(library):
    for name in set(vars(library)) - {"can_attend", "can_convolve", "force_portable"}:
        if not name.startswith("_"):
            with pytest.raises(TypeError, match=name):
                getattr(library, name)(0)
    with pytest.raises(TypeError, match="int"):
        library.lookup(0, 0, "0", 0, 0, 0, 0)
    with pytest.raises(ValueError, match="no kind 4"):
        library.recurrent_layer(4, *[0] * 32)
    with pytest.raises(ValueError, match="PyCapsule"):
        library.recurrent_step(None, 0, 0, 0)


def buffers(library, rows=3, width=20):
    """Pass → its integers, the bytes at each address, all of which are needed."""
    n, one = rows * width, quantize_passes.float_bits(1.0)
    room = np.zeros(4096, np.uint8)
    at = room.ctypes.data
    passes = {
        "quantize_rows": ([at, at, at, rows, width], [4 * n, n, 4 * rows]),
        "scale_rows": ([at, at, at, rows, width], [4 * n, 4 * rows, 4 * width]),
        "quantize": ([at, at, n, one, -3, 9, 5, 0], [4 * n, n]),
        "quantize_nhwc": ([at, at, 1, rows, width, one, -3, 9, 5, 0], [4 * n, n]),
        "multiply": ([at, at, at, rows, width, rows, 3, 4, 5, one, -3, 9], [n, width, n]),
        "mean": ([at, at, 1, rows, width, 3, 1, 9, -3, 9, 5], [n, width]),
        "resize": ([at, at, at, at, 1, rows, width, 1, rows, width, 255, 255], [n, n, 12 * rows, 12 * width]),
        "dequantize": ([at, at, rows, width, width + 2, one, 0], [n + 2 * (rows - 1), 4 * n]),
        "lookup": ([at, at, n, at], [n, n, 256]),
        "layer_norm": ([at, at, at, at, rows, width, one], [4 * n, 4 * width, 4 * width, 4 * n]),
    }
    if library.can_attend():
        strides = [0, 0, width, 0, 0, width, 0, 0, width, 0, 0, rows, 0, 0, width]
        sizes = [4 * n, 4 * n, 4 * n, 4 * rows * rows, 4 * n]
        passes["attend"] = ([at] * 5 + [1, 1, rows, rows, width, *strides], sizes)
    if library.can_convolve():
        numbers = [3, 3, 1, 1, 1, 1, 0, 0, 0, 255, 5]
        sizes = [4 * 4 * 2, 3 * 2 * 4 * 16, 4 * 16, 4 * 16, 4 * 4 * 5]
        passes["convolve"] = ([at] * 5 + [1, 1, 1, 4, 4, 2, *numbers], sizes)
    return passes, room


NAMES = (
    "quantize_rows", "scale_rows", "quantize", "quantize_nhwc", "multiply", "mean", "resize", "dequantize",
    "lookup",    "layer_norm", "attend", "convolve",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_size_may_be_left_out(name, library):
    passes, _ = buffers(library)
    if name not in passes:
        pytest.skip("not for this CPU")
    numbers, sizes = passes[name]
    for kept in range(len(sizes)):
        with pytest.raises(TypeError, match=f"{name} takes {len(numbers)} integers and {len(sizes)} sizes"):
            getattr(library, name)(*numbers, *sizes[:kept])


@pytest.mark.parametrize("name", NAMES)
def test_memory_that_is_too_small_is_refused(name, library):
    passes, room = buffers(library)
    if name not in passes:
        pytest.skip("not for this CPU")
    numbers, sizes = passes[name]
    one_pass = getattr(library, name)
    one_pass(*numbers, *sizes)
    before = room.copy()
    for i in range(len(sizes)):
        with pytest.raises(EngineError, match=f"{name}: "):
            one_pass(*numbers, *sizes[:i], sizes[i] - 1, *sizes[i + 1 :])
    with pytest.raises(EngineError, match=f"{name}: "):
        one_pass(*numbers, *sizes[:-1], -1)
    assert (room == before).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [-1, 1 << 31, 1 << 62, (1 << 63) - 1])
def test_sizes_that_no_memory_has_are_refused(name, size, library):
    passes, _ = buffers(library)
    if name not in passes:
        pytest.skip("not for this CPU")
    numbers, sizes = passes[name]
    place = {"lookup": 2, "quantize": 2, "attend": 8, "convolve": 8, "dequantize": 3, "layer_norm": 5}.get(name, 4)
    with pytest.raises((EngineError, MemoryError)):
        getattr(library, name)(*numbers[:place], size, *numbers[place + 1 :], *sizes)


def test_steps_of_a_layer_stay_inside_its_memory(library):
    room = np.zeros(4096, np.float32)
    at = room.ctypes.data
    batch, hidden, time, end = 2, 4, 3, 5
    out = [at, at, at, batch * hidden, hidden]
    numbers = [0, batch, hidden, at, 0, 0, at, at, at, end, *out, 0, at, at, 0, 0, time]
    table, states, product = 4 * (2 * end + 1), 4 * batch * hidden, 4 * batch * 4 * hidden
    sizes = [time * product, 0, 0, table, table, table, states, states, time * states, 0, batch * hidden, 8]
    layer = library.recurrent_layer(*numbers, *sizes)
    for i, needed in enumerate(sizes):
        if needed:
            with pytest.raises(EngineError, match="recurrent_layer: "):
                library.recurrent_layer(*numbers, *sizes[:i], needed - 1, *sizes[i + 1 :])
    library.recurrent_step(layer, 0, 0, 0)
    library.recurrent_step(layer, time - 1, at, product)
    for step, size in ((time, 4096), (-1, 4096), (0, product - 1)):
        with pytest.raises(EngineError, match="recurrent_step: "):
            library.recurrent_step(layer, step, at, size)


@pytest.mark.parametrize(
    ("name", "numbers", "sizes"),
    [
        ("quantize_rows", [0, 0, 0, 0, 1 << 62], [0, 0, 0]),
        ("scale_rows", [0, 1, 0, 1 << 40, 0], [0, 1 << 42, 0]),
        ("quantize_nhwc", [0, 0, 1 << 62, 0, (1 << 63) - 1, 0, 0, 0, 0, 0], [0, 0]),
        ("quantize_nhwc", [0, 0, 0, 1 << 62, (1 << 63) - 1, 0, 0, 0, 0, 1], [0, 0]),
        ("multiply", [0, 0, 0, 1 << 62, 0, 1 << 61, 0, 0, 0, 0, 0, 0], [0, 0, 0]),
        ("mean", [0, 0, 0, 1, (1 << 63) - 1, 0, 1, 1, 0, 0, 0], [0, 0]),
        ("mean", [0, 0, 1 << 62, 0, 0, 0, 1, 1, 0, 0, 0], [0, 0]),
        ("dequantize", [0, 0, 1 << 62, 0, 0, 0, 0], [0, 0]),
        ("layer_norm", [0, 0, 0, 0, 1 << 62, 0, 0], [0, 0, 0, 0]),
        ("resize", [0, 0, 0, 0, 1 << 62, 0, 1 << 62, 0, 0, 0, 1, 1], [0, 0, 0, 0]),
    ],
)
def test_no_elements_are_no_work(name, numbers, sizes, library):
    """However many rows of nothing: counts of them neither overflow nor are gone through."""
    getattr(library, name)(*numbers, *sizes)


@pytest.mark.parametrize(
    ("row", "denominators"),
    [
        ((0, 3, 0), (3, 3)), ((-1, 0, 0), (3, 3)), ((0, 2, 0), (3, 3)), ((1, 0, 0), (3, 3)), ((2, 3, 0), (3, 3)),
        ((0, 1, 4), (3, 3)), ((0, 1, -1), (3, 3)), ((0, 1, 1), (0, 3)), ((0, 1, 1), (-3, 3)),
        ((0, 1, 1), (257, 257)), ((0, 1, 1), (1 << 40, 1)), ((0, 1, 1), (1 << 32, 1 << 32)),
    ],
)  # fmt: skip
def test_taps_beyond_an_image_are_refused(row, denominators, library):
    room, rows, columns = np.zeros(64, np.uint8), np.array([row], np.int32), np.zeros((1, 3), np.int32)
    arrays = (room, room, rows, columns)
    addresses, sizes = [a.ctypes.data for a in arrays], [a.nbytes for a in arrays]
    with pytest.raises(EngineError, match="resize: "):
        library.resize(*addresses, 1, 3, 3, 1, 1, 1, *denominators, *sizes)


@EXAMPLES
@given(st.integers(0, 2**63), st.integers(1, 3), st.one_of(st.integers(1, 20), st.integers(120, 300)))
def test_resized_images(seed, samples, channels):
    """Every shape of image, to any size: the integers of the definition, and nothing beyond the result."""
    library, rng = torch_native.load(), np.random.default_rng(seed)
    if library is None:
        pytest.skip("the compiled passes were not built")
    (height, width), out = rng.integers(1, 12, 2).tolist(), rng.integers(1, 24, 2).tolist()
    corners = bool(rng.random() < 0.5)
    denominators = resize.denominators([height, width], out, corners)
    x = rng.choice([0, 1, 254, 255] if rng.random() < 0.3 else 256, (samples, channels, height, width)).astype(np.uint8)
    axes = [resize.linear_axis(*axis, corners, d) for *axis, d in zip((height, width), out, denominators, strict=True)]
    whole = np.full((samples + 2) * out[0] * out[1] * channels, 0xA5, np.uint8)
    y = whole[out[0] * out[1] * channels : -out[0] * out[1] * channels]
    arrays = (np.ascontiguousarray(x.transpose(0, 2, 3, 1)), y, axes[0].taps, axes[1].taps)
    addresses, sizes = [a.ctypes.data for a in arrays], [a.nbytes for a in arrays]
    library.resize(*addresses, samples, height, width, channels, *out, *denominators, *sizes)
    want = resize.resize_linear(x, out, corners, denominators)
    np.testing.assert_array_equal(y.reshape(samples, *out, channels), want.transpose(0, 2, 3, 1))
    edge = len(whole) // (samples + 2)
    assert (whole[:edge] == 0xA5).all() and (whole[-edge:] == 0xA5).all()


@pytest.mark.parametrize(("pixels", "b"), [((1 << 24) + 1, 3), (4, 0), (4, -3)])
def test_means_whose_sums_have_no_room_are_refused(pixels, b, library):
    room = 1 << 30  # no more is read than the arguments say, and these are refused before
    with pytest.raises(EngineError, match="mean: "):
        library.mean(64, 64, 1, pixels, 1, 0, 1, b, 0, 255, 0, room, room)


def test_windows_beyond_int32_are_refused(library):
    """Where the windows of a row begin is an int32: rows of 2 GiB are refused before anything is read."""
    if not library.can_convolve():
        pytest.skip("not for this CPU")
    numbers, room = [1, 1, 1, 1, 0, 0, 0, 0, 0, 255, 1], 1 << 62
    for size in ((1, 1 << 16, 1 << 15), (1, 1 << 7, 1 << 24), (1, 1 << 22, 1 << 10)):
        with pytest.raises(EngineError, match="images of no such size"):
            library.convolve(*[64] * 5, 1, 1, 1, *size, *numbers, *[room] * 5)
