"""Sizes for which a model may compute something else than for the example's, and a captured graph does not.

torch.export takes it that sizes are 2 or more, and follows the branches that the example takes. What the model's code
asks of sizes is answered again here, by the model itself: at the nearest size of another answer, and at 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from intact8.capture.aten_call import PER_SAMPLE, BatchError
from intact8.capture.equivalence import NOISE, FirstOfEqual, differences, example_sizes, few_samples
from intact8.capture.execute import run_float
from intact8.capture.pytree import copied
from intact8.capture.size_classes import Limits, Question

if TYPE_CHECKING:
    from intact8.capture.trace import Captured

SEVERAL = "the model computes something else for one sample alone"
FEWER = "the model may compute something else for many samples"
"""How notes begin that are said as warnings."""

MOST_TRIED = 64
"""Largest size for which a model is run to see whether its answer to what its code asks matters."""


def agreeing_sizes(model: nn.Module, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
    """Return a graph without the sizes of dimensions for which the model computes something else, and with a note where
    it does so for one sample, or may for more than are tried.

    Args:
        model: in evaluation mode.
        captured: agrees with it for the example's sizes.
        args, kwargs: the example call.

    Raises:
        BatchError: it computes something else for another number of samples.
    """
    given, notes, bounds = (model, captured, args, kwargs), list(captured.notes), dict(captured.graph.dimensions)
    for name in [name for name, (least, _) in bounds.items() if least == 1]:
        if _differs(*given, sizes={name: 1}):
            bounds[name] = (2, bounds[name][1])
            notes.append(f"{name} from 2 on: the model computes something else for 1")
    shortest = {name: max(least, 2) for name, (least, _) in bounds.items()}
    if len(shortest) > 1 and _differs(*given, sizes=shortest):
        known = example_sizes(captured, args, kwargs)
        bounds = {name: (known[name], most) for name, (_, most) in bounds.items()}
        notes.append(f"{' and '.join(bounds)} no less than in the example: the model computes something else for less")
    for question in captured.questions:
        if question.name is None:
            notes += _of_samples(question, *given)
        else:
            bounds[question.name] = _limits(question, bounds[question.name], *given)
    if captured.graph.dynamic_batch and (reason := _differs(*given, samples=1)):
        if _samples(args, kwargs) == 1:
            what = "the model computes something else for one sample, as the example is, than for several"
            raise BatchError(what, where="the model itself", why=reason, remedy=PER_SAMPLE)
        notes.append(f"{SEVERAL}: {reason}")
    return replace(captured, graph=replace(captured.graph, dimensions=bounds), notes=tuple(notes), questions=())


def _samples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    return next((x.shape[0] for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.ndim), None)


def _of_samples(
    question: Question, model: nn.Module, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Return notes on what the model's code asks of the number of samples."""
    if question.size > MOST_TRIED:
        return [f"{FEWER}: {question.where} asks whether {question.asked}"]
    if _differs(model, captured, args, kwargs, samples=question.size):
        what = "the model's code asks something of the number of samples"
        why = f"what it computes for as many as in the example it computes only where {question.asked}"
        raise BatchError(what, where=question.where or "the model itself", why=why, remedy=PER_SAMPLE)
    return []


def _limits(
    question: Question,
    limits: Limits,
    model: nn.Module,
    captured: Captured,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Limits:
    """Return the limits of a dimension without the size of another answer, if the answer matters."""
    (least, most), (name, size) = limits, (question.name, question.size)
    if name is None or size < least or (most is not None and size > most):
        return limits
    if size <= MOST_TRIED and not _differs(model, captured, args, kwargs, sizes={name: size}):
        return limits
    return (least, size - 1) if question.example < size else (size + 1, most)


def _differs(
    model: nn.Module,
    captured: Captured,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    samples: int | None = None,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return how the model's outputs are not the graph's for a number of samples, or sizes of named dimensions.

    "" where they are, and where the model does not run.
    """
    args, kwargs = few_samples(captured, args, kwargs, resized=bool(sizes), samples=samples, sizes=sizes)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            expected = model(*copied(args), **copied(kwargs))
            values = run_float(captured.graph, captured.tensors(), captured.flatten(copied(args), copied(kwargs)))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # noqa: BLE001 - the model is anybody's code, and need not take such sizes
            return ""
        found = captured.rebuild([values[name] for name in captured.graph.outputs])
        reason = next(differences(found, expected), "")
        if reason:  # the order of almost equal scores is a matter of rounding
            near_args, near_kwargs = copied(args, NOISE), copied(kwargs, NOISE)
            with FirstOfEqual():  # type: ignore[no-untyped-call]
                expected, nearby = model(*copied(args), **copied(kwargs)), model(*near_args, **near_kwargs)
            reason = next(differences(found, expected, nearby), "")
        return reason
