"""The check that a captured graph computes what the model does: both run on a few samples before anything else is done.

It is what no output escapes: one that is lost, of another shape or dtype, or of other values is an error here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from intact8.arithmetic.dimensions import Dim, measure, size_of
from intact8.capture.aten_call import PER_SAMPLE, REPORT, BatchError
from intact8.capture.constants import IN_FLOAT32, OTHER_FLOATS
from intact8.capture.execute import run_float
from intact8.capture.pytree import copied
from intact8.errors import CaptureError, IntactError, InternalError, in_short

if TYPE_CHECKING:
    from intact8.capture.trace import Captured

FEW = 2
"""How many samples the two are run on where any number will do; one more where the example has just so many."""

CLOSE = 0.05
"""A fault in the graph exceeds this error of an output, relative to its norm, and rounding does not."""

ROUGH = 0.2
"""The same where the model computes in floats of 16 bits, and the graph does not: they keep two or three digits."""

HELD = {**dict.fromkeys(OTHER_FLOATS, torch.float32), torch.int32: torch.int64}
"""What the graph returns where the model returns numbers of another type."""

NOISE = 1e-6
"""How much inputs are changed, relative to each number, to see how much the model's own outputs change by rounding."""

SMALL = 1e-3
"""Smaller differences are ignored: an output may be the difference of two equal numbers."""


ANEW = "the model gives another result for the same input every time"
FIXED_DRAW = "take random numbers, and the time, as an input"
"""What is said of numbers that numpy, random, or a clock give."""


class FirstOfEqual(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``topk`` takes equal numbers in their order, as programs do; torch promises none.

    The scores of a detector that learnt nothing may all be equal.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten.topk.default or not args[0].dim():
            return func(*args, **kwargs)
        return _topk(*args, **kwargs)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()  # as topk gives them


def require_agreement(
    model: nn.Module, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any], *, whole: bool = False
) -> None:
    """Run ``model`` and the graph in float on a few of the example's samples.

    Args:
        model: in evaluation mode.
        captured: what was made of it.
        args, kwargs: the example call.
        whole: run the example as it is.

    Raises:
        BatchError: they disagree for another number of samples than the example's.
        CaptureError: they disagree, or the model does not run.
    """
    free = captured.graph.dynamic_batch
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            random = torch.get_rng_state()
            if whole:
                expected = model(*copied(args), **copied(kwargs))
            else:
                expected, args, kwargs = _called(model, captured, args, kwargs)
            inputs = captured.flatten(copied(args), copied(kwargs))
            values = run_float(captured.graph, captured.tensors(), inputs)
            found = captured.rebuild([values[name] for name in captured.graph.outputs])
            rough = any(note.startswith(IN_FLOAT32) and "float16" in note for note in captured.notes)
            close = ROUGH if rough else CLOSE
            reason = next(differences(found, expected, close=close), "")
            if reason:  # the order of almost equal scores, as detectors take the largest of, is a matter of rounding
                near_args, near_kwargs = copied(args, NOISE), copied(kwargs, NOISE)
                with FirstOfEqual():  # type: ignore[no-untyped-call]
                    torch.set_rng_state(random)
                    expected = model(*copied(args), **copied(kwargs))
                    torch.set_rng_state(random)
                    nearby = model(*near_args, **near_kwargs)
                    torch.set_rng_state(random)
                    again = next(differences(model(*copied(args), **copied(kwargs)), expected), "")
                if again:
                    why = f"called again, {again}"
                    raise CaptureError(ANEW, where="the model itself", why=why, remedy=FIXED_DRAW)
                reason = next(differences(found, expected, nearby, close), "")
        cause: BaseException | None = None
    except IntactError:
        raise
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the model is anybody's code, and so is what it raises
        reason, cause = in_short(error), error
    if not reason:
        return
    if free:
        raise BatchError(
            "what was captured does not hold for another batch size",
            where="the model itself",
            why=reason,
            remedy=PER_SAMPLE,
        ) from cause
    if isinstance(cause, IndexError):
        what, why = "rows of a table are counted from its end", "programs take indices from 0 on"
        remedy = "index by i % len(table), or add len(table) where i is negative"
        raise CaptureError(what, where="the model itself", why=why, remedy=remedy) from cause
    if cause is not None:
        raise InternalError("running the captured graph failed", "the model itself", cause) from cause
    what = "the captured graph does not compute what the model does"
    remedy = (
        "if it draws random numbers in eval mode, take them as an input; if it asks what it runs in "
        f"(type(x) is torch.Tensor, for example), leave that out; else {REPORT}"
    )
    raise CaptureError(what, where="the model itself", why=reason, remedy=remedy)


def example_sizes(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
    """Return the named dimensions' sizes in a call."""
    limits = captured.graph.dimensions
    return measure(_shapes(captured, args, kwargs), limits) if limits else {}


def _shapes(
    captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, tuple[Dim, ...], tuple[int, ...]]]:
    """Return the name of every tensor input, its shape in the graph, and that in a call."""
    given = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
    graph = captured.graph
    return [(name, graph.nodes[name].shape, tuple(x.shape)) for name, x in zip(graph.inputs, given, strict=True)]


def few_samples(
    captured: Captured,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    resized: bool = True,
    samples: int | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the call with the first samples only, as often as needed, and other sizes of the named dimensions where
    they are ``resized``; of some a number, or ``sizes``, are given."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    graph, limits = captured.graph, captured.graph.dimensions
    shapes = _shapes(captured, args, kwargs)
    counts = example_sizes(captured, args, kwargs) if resized else {}
    for name, count in counts.items():
        least, most = limits[name]
        counts[name] = count - 1 if count > least else count + 1 if most is None or count < most else count
    if resized:
        counts |= sizes
    for at, (_, shape, _) in zip(tensors, shapes, strict=True):
        x = leaves[at]
        for axis, dim in enumerate(shape):
            size = x.shape[axis]
            free = dim is None and axis == 0 and graph.dynamic_batch
            wanted = (FEW + (size == FEW) if samples is None else samples) if free else size
            if isinstance(dim, str) and resized:
                wanted = size_of(dim, counts)
            if size and wanted != size:
                x = torch.cat([x] * -(-wanted // size), axis).narrow(axis, 0, wanted)
        leaves[at] = x
    few: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, spec)
    return few


def _called(
    model: nn.Module, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return what the model gives for a few samples, and them: of another size, unless it raises an error there, as it
    may where it demands that images are as large as it likes them."""
    few, named = few_samples(captured, args, kwargs)
    try:
        return model(*copied(few), **copied(named)), few, named
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:
        if not captured.graph.dimensions:
            raise
    few, named = few_samples(captured, args, kwargs, resized=False)
    return model(*copied(few), **copied(named)), few, named


def differences(found: Any, expected: Any, nearby: Any = None, close: float = CLOSE) -> Iterator[str]:
    """Yield what is not the same, in words; ``nearby`` is expected for almost the same inputs."""
    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    moved = theirs if nearby is None else pytree.tree_leaves(nearby)
    if len(ours) != len(theirs):
        yield f"it returns {len(theirs)} values, the graph {len(ours)}"
        return
    for i, (mine, given, other) in enumerate(zip(ours, theirs, moved, strict=True)):
        if not isinstance(given, Tensor) or not isinstance(mine, Tensor):
            if isinstance(given, Tensor) or isinstance(mine, Tensor) or mine != given:
                yield f"output {i} is {_short(given)}, the graph's {_short(mine)}"
        elif mine.shape != given.shape or mine.dtype != HELD.get(given.dtype, given.dtype):
            yield f"output {i} is {_short(given)}, the graph's {_short(mine)}"
        elif given.is_floating_point() and (error := _distance(mine, given)) > close + 2 * _distance(other, given):
            yield f"output {i} differs by {error:.0%} of its norm"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{value!r:.40}"


def _distance(mine: Tensor, given: Tensor) -> float:
    """Return the norm of the finite differences relative to that of ``given``; 0 where it is small anyway, infinity
    where ``mine`` alone is NaN or infinite."""
    finite = torch.isfinite(given)
    if not bool(torch.isfinite(mine[finite]).all()):
        return math.inf
    a, b = mine[finite].double(), given[finite].double()
    if not len(b) or float((a - b).abs().max()) < SMALL:
        return 0.0
    return float((a - b).norm() / b.norm().clamp(min=1e-30))
