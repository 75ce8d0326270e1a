"""Pointwise convolutions with a stride, which oneDNN gets wrong with several threads (3.12, and OpenVINO 2026.4)."""

from __future__ import annotations

from collections.abc import Sequence

VECTOR = 64
"""Bytes of the largest vectors of any CPU that oneDNN supports."""


def overruns(kernel: Sequence[int], stride: Sequence[int], channels: int) -> bool:
    """Return whether oneDNN may compute such an int8 convolution from another thread's memory.

    Each thread first copies the pixels that it strides to, side by side, into a part of one buffer, in whole vectors.
    Where the channels are no multiple of a vector, the last one reaches into the part of the next thread, and whether
    that one has read its first pixel by then is a matter of luck. With AVX2 (32 bytes) 728 and 744 channels gave other
    integers in up to 42 of 60 calls with two threads, and 704 and 736 in none. Whoever calls oneDNN has to take the
    pixels out before it.

    Args:
        kernel, stride: of the convolution.
        channels: of one group of the input.

    Example:
        >>> overruns([1, 1], [2, 2], 728), overruns([1, 1], [2, 2], 256), overruns([3, 3], [2, 2], 728)
        (True, False, False)
    """
    return all(k == 1 for k in kernel) and any(s > 1 for s in stride) and channels % VECTOR > 0
