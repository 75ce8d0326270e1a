"""Passes over rows, in C (``native/passes.c``). Addresses, sizes and strides are integers.

Behind all other arguments come ``sizes``: the bytes at each address, in the order of the addresses, every one of them
(0 where the address is 0). TypeError where one is missing, EngineError where a pass would go beyond them.
"""

from typing import Any

def use_threads(parallel: int, thread_number: int, thread_count: int, thread_limit: int, /) -> None:
    """Addresses of GOMP_parallel, omp_get_thread_num, omp_get_num_threads and omp_get_max_threads."""

def quantize_rows(x: int, q: int, s: int, rows: int, width: int, /, *sizes: int) -> None:
    """``intact8.arithmetic.dynamic.quantize_rows`` of float32 (rows, width): uint8 and float32 (rows, 1)."""

def scale_rows(y: int, s: int, bias: int, rows: int, width: int, /, *sizes: int) -> None:
    """y = y·s + bias in place, each rounded; ``bias`` 0 for none."""

def finish(x: int, y: int, size: int, divisor: int, low: int, high: int, zero: int, alone: int, /, *sizes: int) -> bool:
    """y = clamp(R(x / divisor), low, high) + zero: float32 to uint8; ``divisor`` is the float32's bits.

    With ``alone`` in this thread only. True where x holds NaN.
    """

def interleave(
    x: int,
    y: int,
    samples: int,
    channels: int,
    pixels: int,
    divisor: int,
    low: int,
    high: int,
    zero: int,
    alone: int,
    /,
    *sizes: int,
) -> bool:
    """:func:`finish` from (samples, channels, pixels) to (samples, pixels, channels)."""

def convolve(
    x: int,
    weight: int,
    bias: int,
    ratio: int,
    y: int,
    dense: bool,
    alone: bool,
    samples: int,
    height: int,
    width: int,
    channels: int,
    /,
    *numbers_and_sizes: int,
) -> None:
    """``intact8.engines.packed_conv.Convolution`` of images (samples, height, width, C), ``alone`` in this thread."""

def cascade(
    x: int,
    image: int,
    y: int,
    channels: int,
    pixels: int,
    divisor: int,
    low: int,
    high: int,
    zero: int,
    samples: int,
    stages: int,
    count: int,
    band: int,
    /,
    *sizes: int,
) -> bool:
    """Images, each as :func:`interleave` leaves it in ``image``, through convolutions one behind the other.

    ``band`` rows of the last one at a time; without x what is in ``image``. See ``intact8.engines.fused_stem``.
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
    """y = clamp(R((x − zero_x)·(w − zero_w)·ratio), low, high) + zero of uint8 rows; w has one for every ``repeat``."""

def mean(
    x: int,
    y: int,
    samples: int,
    pixels: int,
    channels: int,
    offset: int,
    a: int,
    b: int,
    low: int,
    high: int,
    zero: int,
    /,
    *sizes: int,
) -> None:
    """y = clamp(R((Σ x − offset)·a/b), low, high) + zero over uint8 pixels (samples, pixels, channels)."""

def dequantize(x: int, y: int, rows: int, width: int, stride: int, scale: int, zero: int, /, *sizes: int) -> None:
    """y = (x − zero)·scale: uint8 rows ``stride`` apart to float32 rows side by side; ``scale`` as bits."""

def read_table(x: int, y: int, size: int, table: int, /, *sizes: int) -> None:
    """y = table[x] of bytes."""

def layer_norm(x: int, weight: int, bias: int, y: int, rows: int, width: int, epsilon: int, /, *sizes: int) -> None:
    """Layer norm of float32 rows; ``epsilon`` as bits."""

def layer(
    kind: int,
    batch: int,
    size: int,
    input: int,
    scale: int,
    bias: int,
    sigmoid: int,
    tanh: int,
    cell_tanh: int,
    end: int,
    h: int,
    c: int,
    y: int,
    step: int,
    row: int,
    inside: int,
    q: int,
    s: int,
    zero: int,
    own: int,
    time: int,
    /,
    *sizes: int,
) -> Any:
    """One direction of a recurrent layer; see ``struct layer`` in ``native/passes.c``."""

def advance(layer: Any, step: int, product: int, /, *sizes: int) -> None:
    """One time step; ``product`` is the hidden product, 0 for none."""

def leave_to_compiler(wanted: object, /) -> None:
    """Whether passes do without the vectors some have been written for, as on an older CPU: for tests."""

def can_convolve() -> bool:
    """Whether this CPU has the vectors that the operators Dense and Depthwise need."""

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
    """softmax(q·kᵀ + mask)·v in float32, all (samples, heads, rows, width) with elements of rows side by side.

    ``mask`` (samples, heads, queries, keys) or 0; strides are three of each of q, k, v, mask and y, in elements.
    """
