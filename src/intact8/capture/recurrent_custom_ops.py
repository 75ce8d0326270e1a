"""LSTM, GRU and RNN while a model is exported: one operator that any number of steps fits, and packed sequences; and
other functions of torch that it would export for the example's sizes only.

torch.export takes its own operators apart along time, which fixes the number of steps. And ``pack_padded_sequence``
gives tensors whose sizes depend on the lengths' values, which it cannot follow at all. In :func:`traceable` it gives
:class:`Padded` instead, LSTM, GRU and RNN become an operator of their own, which takes lengths, and
``pad_packed_sequence`` gives all time steps back, with zeros behind the end of each sequence.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.utils.rnn as rnn_utils
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.modules import transformer

from intact8.arithmetic.recurrent import state_count
from intact8.capture.experts import HOME, by_row
from intact8.capture.formulas_complex import istft as istft_formula
from intact8.capture.formulas_index import bags_of_one_length, renormed, take_along_dim
from intact8.errors import CaptureError

UNPACK = "unpack it with pad_packed_sequence, and work on the padded tensor"
_EXPORTING = threading.local()
"""``on`` is true in the thread that exports: other threads that run meanwhile are left alone."""


@dataclass(frozen=True)
class Padded:
    """What stands for a PackedSequence.

    Attributes:
        x: (T, B, …), or (B, T, …) where ``batch_first``.
        lengths: int64 (B,).
        batch_first: the order of dimensions.
        zeros: whether values behind the lengths are zero.
    """

    x: Tensor
    lengths: Tensor
    batch_first: bool
    zeros: bool = False

    def __getattr__(self, name: str) -> Any:
        if name in ("data", "batch_sizes", "sorted_indices", "unsorted_indices"):
            what = f"the forward pass reads {name} of a packed sequence"
            raise CaptureError(what, why="its size depends on the lengths' values", remedy=UNPACK)
        raise AttributeError(name)


@torch.library.custom_op("intact8::sequences", mutates_args=())
def sequences(
    input: Tensor,
    lengths: Tensor | None,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
    mode: str,
) -> list[Tensor]:
    """Return the output of LSTM, GRU or RNN on padded sequences, the last hidden state, the last cell state (LSTM)."""
    raise NotImplementedError("only exported, never run")


@sequences.register_fake
def _(input: Tensor, lengths: Any, hx: Any, params: Sequence[Tensor], has_biases: bool, *rest: Any) -> list[Tensor]:
    num_layers, _, bidirectional, batch_first, mode = rest
    directions, hidden, batch = 1 + bidirectional, params[1].shape[1], input.shape[0 if batch_first else 1]
    y = input.new_empty(*input.shape[:2], directions * hidden)
    return [y, *(input.new_empty(num_layers * directions, batch, hidden) for _ in range(state_count(mode)))]


def _copy(function: Any) -> Callable[..., Any]:
    """Return the function with the code it has now."""
    return FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)


_ORIGINAL_PACK, _ORIGINAL_UNPACK = _copy(rnn_utils.pack_padded_sequence), _copy(rnn_utils.pad_packed_sequence)


def _exporting() -> bool:
    return getattr(_EXPORTING, "on", False)


# The code of these two runs in place of torch's, with the globals of torch's module: they import all they need.


def _pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> Any:
    import torch

    from intact8.capture.recurrent_custom_ops import _ORIGINAL_PACK, Padded, _exporting

    if not _exporting():
        return _ORIGINAL_PACK(input, lengths, batch_first, enforce_sorted)
    return Padded(input, torch.as_tensor(lengths, dtype=torch.int64), batch_first)  # nothing needs sorting


def _pad_packed_sequence(
    sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> Any:
    from torch.nn.functional import pad

    from intact8.capture.recurrent_custom_ops import _ORIGINAL_UNPACK, Padded
    from intact8.errors import CaptureError

    if not isinstance(sequence, Padded):
        return _ORIGINAL_UNPACK(sequence, batch_first, padding_value, total_length)
    if padding_value != 0.0 or not sequence.zeros:
        what = "pad_packed_sequence with a padding value, or of what no LSTM, GRU or RNN gave"
        why = "steps behind the lengths are zeros in the output of recurrent layers, and nowhere else"
        raise CaptureError(what, why=why, remedy="leave padding_value out, and fill with masked_fill afterwards")
    y = sequence.x if batch_first == sequence.batch_first else sequence.x.transpose(0, 1)
    axis = 1 if batch_first else 0
    if total_length is not None and total_length < y.shape[axis]:
        y = y.narrow(axis, 0, total_length)
    elif total_length is not None and total_length > y.shape[axis]:
        rest = total_length - y.shape[axis]
        y = pad(y, [0, 0] * (y.dim() - 1 - axis) + [0, rest])
    return y, sequence.lengths


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of LSTM, GRU or RNN that takes :class:`Padded`, too."""

    def forward(self: nn.RNNBase, input: Any, hx: Any = None) -> Any:
        if not _exporting():
            return original(self, input, hx)
        padded = input if isinstance(input, Padded) else None
        x, lengths = (input, None) if padded is None else (padded.x, padded.lengths)
        if not isinstance(x, Tensor) or x.dim() != 3 or self.proj_size:
            return original(self, x, hx)
        states = () if hx is None else tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        first = self.batch_first if padded is None else padded.batch_first
        # Not self._flat_weights: torch.export knows parameters by their names only.
        weights = [getattr(self, name) for name in self._flat_weights_names]
        options = self.num_layers, float(self.dropout), self.bidirectional, first, self.mode.lower()
        y, *last = sequences(x, lengths, states, weights, self.bias, *options)
        end = tuple(last) if len(last) == 2 else last[0]
        return (y if padded is None else Padded(y, padded.lengths, first, zeros=True)), end

    return forward


def _along(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a ``take_along_dim`` that is exported for any number of samples; other threads keep torch's own."""
    return lambda *args, **kwargs: (take_along_dim if _exporting() else original)(*args, **kwargs)


def _pooled(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a ``max_pool1d`` that is exported for any length, as rows of images; torch's own fixes the length."""

    def max_pool1d(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        if not _exporting() or isinstance(input.shape[-1], int):
            return original(input, kernel_size, stride, padding, dilation, ceil_mode)
        rows = ((1, kernel_size), (1, stride), (0, padding), (1, dilation))
        one, step, edge, apart = ([first, *_one(v)] for first, v in rows)
        step = step if len(step) > 1 else one
        return torch.max_pool2d(input.unsqueeze(-2), one, step, edge, apart, ceil_mode).squeeze(-2)

    return max_pool1d


def _over_all(original: Callable[..., Tensor], rank: int) -> Callable[..., Tensor]:
    """Return a pool that is exported for any size where its window is the whole row or image, as text networks pool;
    torch takes the window's size for a number."""
    reduce = Tensor.amax if "max" in original.__name__ else Tensor.mean

    def wrapped(*args: Any, **more: Any) -> Any:
        given = dict(zip(("input", "kernel_size", "stride", "padding"), args, strict=False)) | more
        window, padding = _one(given["kernel_size"]), _one(given.get("padding", 0))
        free = _exporting() and any(isinstance(n, torch.SymInt) for n in window) and not any(padding)
        window = window * (rank if len(window) == 1 else 1)
        if free and all(n == size for n, size in zip(window, given["input"].shape[-rank:], strict=True)):
            return reduce(given["input"], [*range(-rank, 0)], keepdim=True)
        return original(*args, **more)

    return wrapped


def _between_any(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a ``cdist`` that is exported for any number of points; torch computes it in another way from 26 on, and
    takes the example's way for a limit."""

    def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = DEPENDS) -> Tensor:
        free = (
            _exporting()
            and compute_mode == DEPENDS
            and any(isinstance(n, torch.SymInt) for n in (*x1.shape, *x2.shape))
        )
        return original(x1, x2, p, "donot_use_mm_for_euclid_dist" if free else compute_mode)

    return cdist


def _evenly(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a ``linspace`` that is exported for any number of steps; torch takes their number for the example's."""

    def linspace(start: Any, end: Any, steps: Any, **more: Any) -> Tensor:
        known = not isinstance(steps, torch.SymInt) or not all(_is_number(n) for n in (start, end))
        if not _exporting() or known or more.get("out") is not None or more.get("dtype") not in (None, torch.float32):
            return original(start, end, steps, **more)
        count: Any = steps
        numbers = torch.arange(count, dtype=torch.float32, device=more.get("device"))
        apart = (end - start) / torch.sym_max(steps - 1, 1)  # type: ignore[no-untyped-call]
        made: Tensor = numbers * apart + start
        return made

    return linspace


@torch.library.custom_op("intact8::istft_of_length", mutates_args=())
def istft_of_length(
    input: Tensor,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: Tensor | None,
    center: bool,
    normalized: bool,
    onesided: bool | None,
    length: int,
) -> Tensor:
    """Return the signal of a spectrogram, cut to a length or with zeros behind it."""
    raise NotImplementedError("only exported, never run")


@istft_of_length.register_fake
def _(input: Tensor, *rest: Any) -> Tensor:
    return input.real.new_empty(*input.shape[:-2], rest[-1])


def _of_any_length(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an ``istft`` that is exported for any length; torch takes the length for a number."""

    form = inspect.signature(istft_formula)

    def istft(*args: Any, **kwargs: Any) -> Tensor:
        given = form.bind(*args, **kwargs)
        given.apply_defaults()
        *rest, length, complex_signal = given.args
        free = _exporting() and isinstance(length, torch.SymInt)
        if not free or given.arguments["onesided"] is False or complex_signal:
            return original(*args, **kwargs)
        made: Tensor = istft_of_length(*rest, length)
        return made

    return istft


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, torch.SymInt))


DEPENDS = "use_mm_for_euclid_dist_if_necessary"
"""How torch computes distances where nothing is said."""


def _one(value: Any) -> list[Any]:
    """Return a number, or a list of one, as a list; nothing as an empty one."""
    return [] if value is None else list(value) if isinstance(value, (tuple, list)) else [value]


def _experts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what chooses how experts of transformers compute: by row where they are exported."""
    return lambda self, name, default: by_row(default) if _exporting() else original(self, name, default)


def _looked_up(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an ``embedding`` or ``embedding_bag`` that is exported for any number of samples.

    Rows are shortened where torch's own shortens them in place, and each sample's bag is reduced by itself.
    """
    form = inspect.signature(original)

    def look_up(*args: Any, **kwargs: Any) -> Tensor:
        if not _exporting():
            return original(*args, **kwargs)
        given = form.bind(*args, **kwargs)
        given.apply_defaults()
        t = given.arguments
        if t["max_norm"] is not None:
            t["weight"], t["max_norm"] = renormed(t["weight"], t["max_norm"], t["norm_type"]), None
        if "mode" not in t or t["input"].dim() != 2 or not t["input"].shape[1]:
            return original(*given.args, **given.kwargs)
        return bags_of_one_length(t["input"], t["weight"], t["mode"], t["per_sample_weights"], t["padding_idx"])

    return look_up


@contextmanager
def _exchanged(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class _Validated:
    """Whether distributions look at their arguments: what was so before, but not in the thread that exports."""

    def __init__(self, before: bool) -> None:
        self.before = before

    def __get__(self, instance: object, owner: type) -> bool:
        return self.before and not _exporting()


def _undetected(detect: Callable[..., bool]) -> Callable[..., bool]:
    """Return what does not look into a mask while a model is exported: the mask is applied whether or not it is causal,
    which is a hint to faster kernels only, and a value that nobody knows then."""

    def wrapped(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True if _exporting() else detect(mask, is_causal, size)

    return wrapped


@contextmanager
def traceable() -> Iterator[None]:
    """Let packed sequences, and what torch exports for the example's samples only, be exported in this block.

    People import the two functions by name, so that exchanging the names in torch would miss most of them: their code
    is exchanged. Distributions do not look at their arguments: they raise errors where values are out of bounds.
    """
    pairs: list[tuple[Any, Any]] = [
        (rnn_utils.pack_padded_sequence, _pack_padded_sequence),
        (rnn_utils.pad_packed_sequence, _pad_packed_sequence),
    ]
    with ExitStack() as stack:
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            stack.enter_context(_exchanged(kind, "forward", _forward(kind.forward)))
        for owner in (torch, Tensor):
            stack.enter_context(_exchanged(owner, "istft", _of_any_length(owner.istft)))
            stack.enter_context(_exchanged(owner, "take_along_dim", _along(owner.take_along_dim)))
        stack.enter_context(_exchanged(torch, "max_pool1d", _over_all(_pooled(torch.max_pool1d), 1)))
        stack.enter_context(_exchanged(torch, "cdist", _between_any(torch.cdist)))
        stack.enter_context(_exchanged(torch, "linspace", _evenly(torch.linspace)))
        for owner, name in ((torch, "max_pool2d"), (F, "avg_pool1d"), (F, "avg_pool2d")):
            whole = _over_all(getattr(owner, name), int(name[-2]))
            stack.enter_context(_exchanged(owner, name, whole))
        for name in ("embedding", "embedding_bag"):
            stack.enter_context(_exchanged(F, name, _looked_up(getattr(F, name))))
        detect = "_detect_is_causal_mask"
        stack.enter_context(_exchanged(transformer, detect, _undetected(getattr(transformer, detect))))
        experts: Any = getattr(sys.modules.get(HOME), "ExpertsInterface", None)
        if hasattr(experts, "get_interface"):
            stack.enter_context(_exchanged(experts, "get_interface", _experts(experts.get_interface)))
        stack.enter_context(_exchanged(Distribution, "_validate_args", _Validated(Distribution._validate_args)))
        for function, replacement in pairs:
            stack.enter_context(_exchanged(function, "__code__", replacement.__code__))
        before = _exporting()
        _EXPORTING.on = True
        try:
            yield
        finally:
            _EXPORTING.on = before
