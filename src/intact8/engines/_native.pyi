"""The compiled kernels of ``native/``. Addresses, sizes and strides are integers; floats are given as their bits.

Behind all other arguments come ``sizes``: the bytes at each address, in the order of the addresses (0 for address 0). A
missing argument raises TypeError; a size that is too small raises EngineError.
"""

from typing import Any

def use_threads(parallel: int, thread_number: int, thread_count: int, max_threads: int, /) -> None:
    """Take the addresses of GOMP_parallel, omp_get_thread_num, omp_get_num_threads and omp_get_max_threads."""

def force_portable(wanted: object, /) -> None:
    """Leave out the kernels written for certain instruction sets, as on an older CPU, or take them back (for tests)."""

def quantize_rows(x: int, q: int, s: int, rows: int, width: int, /, *sizes: int) -> None:
    """Fill uint8 q (rows, width) and float32 s (rows, 1): ``intact8.arithmetic.dynamic.quantize_rows`` of float32 x."""

def scale_rows(y: int, s: int, bias: int, rows: int, width: int, /, *sizes: int) -> None:
    """Compute y = y·s + bias in place, each operation rounded; ``bias`` is 0 for none."""

def quantize(
    x: int, y: int, size: int, divisor: int, low: int, high: int, zero: int, alone: int, /, *sizes: int
) -> bool:
    """Fill y = clamp(R(x / divisor), low, high) + zero, float32 to uint8, and return whether x holds NaN.

    With ``alone`` only this thread works.
    """

def quantize_nhwc(
    x: int, y: int, samples: int, channels: int, pixels: int, /, *divisor_low_high_zero_alone_and_sizes: int
) -> bool:
    """Do as :func:`quantize`, from (samples, channels, pixels) to (samples, pixels, channels)."""

def dequantize(x: int, y: int, rows: int, width: int, stride: int, scale: int, zero: int, /, *sizes: int) -> None:
    """Fill y = (x − zero)·scale: uint8 rows that lie ``stride`` apart become float32 rows side by side."""

def can_convolve() -> bool:
    """Whether this CPU has AVX512-VNNI, which :func:`convolve` and :func:`fused_stem` need."""

def convolve(
    x: int, weight: int, bias: int, multiplier: int, y: int, dense: bool, alone: bool, /, *shape_numbers_and_sizes: int
) -> None:
    """Compute the convolution ``intact8.engines.packed_conv.PackedConv`` of images; ``shape`` is (N, H, W, C).

    With ``alone`` only this thread works.
    """

def fused_stem(
    x: int, image: int, y: int, channels: int, pixels: int, /, *quantizer_samples_stages_count_band_and_sizes: int
) -> bool:
    """Quantize images into ``image`` and run them through convolutions, ``band`` rows of the last one at a time.

    Without x, ``image`` holds the integers already. See ``intact8.engines.fused_stem``. Return whether x holds NaN.
    """

def multiply(
    x: int,
    w: int,
    y: int,
    rows: int,
    width: int,
    repeat: int,
    zero_x: int,
    zero_w: int,
    zero: int,
    ratio: int,
    low: int,
    high: int,
    /,
    *sizes: int,
) -> None:
    """Fill y = clamp(R((x − zero_x)·(w − zero_w)·ratio), low, high) + zero; ``repeat`` rows of x share a row of w."""

def mean(x: int, y: int, samples: int, pixels: int, channels: int, /, *offset_a_b_low_high_zero_and_sizes: int) -> None:
    """Fill y = clamp(R((Σ x − offset)·a/b), low, high) + zero: sums over the pixels of (samples, pixels, channels)."""

def resize(
    x: int, y: int, rows: int, columns: int, samples: int, height: int, width: int, channels: int, /, *rest: int
) -> None:
    """Fill y with images (samples, height, width, channels) of another size; see ``intact8.arithmetic.resize``.

    ``rows``, ``columns``: int32 (results, 3), two indices and the weight of the second. ``rest``: height and width of
    the results, both denominators, sizes.
    """

def lookup(x: int, y: int, size: int, table: int, /, *sizes: int) -> None:
    """Fill y = table[x] of bytes."""

def layer_norm(x: int, weight: int, bias: int, y: int, rows: int, width: int, epsilon: int, /, *sizes: int) -> None:
    """Fill y with the layer norm of float32 rows."""

def recurrent_layer(kind: int, batch: int, size: int, /, *memories_numbers_and_sizes: int) -> Any:
    """One direction of a recurrent layer; see ``recurrent_layer`` in ``native/recurrent.c``."""

def recurrent_step(layer: Any, step: int, product: int, /, *sizes: int) -> None:
    """Take one time step; ``product`` is the hidden product, 0 for none."""

def can_attend() -> bool:
    """Whether this CPU has the vectors that :func:`attend` needs."""

def attend(
    q: int,
    k: int,
    v: int,
    mask: int,
    y: int,
    samples: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    /,
    *strides_and_sizes: int,
) -> None:
    """Fill y = softmax(q·kᵀ + mask)·v in float32: (samples, heads, rows, width), elements of rows side by side.

    ``mask`` is (samples, heads, queries, keys), or 0. Strides, in elements, are three of each of q, k, v, mask and y.
    """
