"""Passes over rows, in C (``_native.c``). Addresses, sizes and strides are integers; nothing is checked."""

from typing import Any

def use_threads(parallel: int, thread_number: int, thread_count: int, thread_limit: int, /) -> None:
    """Addresses of GOMP_parallel, omp_get_thread_num, omp_get_num_threads and omp_get_max_threads."""

def quantize_rows(x: int, q: int, s: int, rows: int, width: int, /) -> None:
    """``intact.arithmetic.dynamic.quantize_rows`` of float32 (rows, width): uint8 and float32 (rows, 1)."""

def scale_rows(y: int, s: int, bias: int, rows: int, width: int, /) -> None:
    """y = y·s + bias in place, each rounded; ``bias`` 0 for none."""

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
    /,
) -> Any:
    """One direction of a recurrent layer; see ``struct layer`` in ``_native.c``."""

def advance(layer: Any, step: int, product: int, /) -> None:
    """One time step; ``product`` is the hidden product, 0 for none."""
