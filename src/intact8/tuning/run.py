"""``intact8.tune``: the fastest recipe whose accuracy is good enough."""

from __future__ import annotations

import numbers
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from intact8 import recipes
from intact8.api import quantize
from intact8.calibration.data import Specs, first_batch, raw_batches
from intact8.calibration.distributed import checksum, ranks_for
from intact8.calibration.dynamic_dimensions import changing
from intact8.capture import capture
from intact8.capture.torch_export import require_module
from intact8.diagnose.evaluate import EvaluationReport
from intact8.diagnose.evaluate import evaluate as evaluate_networks
from intact8.errors import InputError, StateError, require_number
from intact8.program.program import Program
from intact8.recipe.recipe import Recipe
from intact8.regular_file import path_of
from intact8.simulation.prepare import warn_of_training_mode
from intact8.simulation.simulation import Simulation
from intact8.torch import Module
from intact8.tuning.journal import Journal
from intact8.tuning.measure import Measurement
from intact8.tuning.objective import Objective, make_objective
from intact8.tuning.result import TuneResult, best_of
from intact8.tuning.search import Progress, Search


def tune(
    model: nn.Module,
    calibration: Any,
    evaluate: Callable[[nn.Module], Any] | Any = None,
    *,
    held_out: Callable[[nn.Module], Any] | Any = None,
    max_drop: float = 0.5,
    budget: float | None = None,
    max_trials: int | None = None,
    recipe: Recipe | str | Path | None = None,
    metric: Any = None,
    higher_is_better: bool = True,
    engine: str = "auto",
    batch_size: int = 1,
    seconds: float = 0.5,
    journal: str | Path | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Search the fastest recipe with which a network loses at most ``max_drop`` of a metric.

    First come settings that cost no time (observers, bias correction, equalization, smoothing), alone and together,
    then float32 between layers. If they are not enough, the noise of every tensor and weight is measured, and
    operations are kept float in an order that takes out the most noise for the least work, until the drop is allowed;
    then what need not be float is quantized again. Every candidate becomes a program that is evaluated and timed, in
    turns with the first one.

    The best recipe so far can be had at any moment: from ``progress``, from the journal, or with Ctrl-C, which ends the
    search and returns it. Nothing is drawn at random, and a search that goes on from its journal takes the
    measurements from there, times included. Where a process group of ``torch.distributed`` is initialized, call this on
    every rank with the same arguments: ranks share the candidates and return the same result.

    Args:
        model: the float network; it is not changed.
        calibration: as for :func:`intact8.quantize`; no labels needed.
        evaluate: what candidates are judged by. A function, called with the float network and with every program as a
            module, that returns a number; labelled samples, as for :func:`intact8.evaluate`; or a tensor of samples
            without labels, whose outputs are compared with those of the float network. None: the calibration data.
        held_out: as ``evaluate``, of other samples, on which the chosen program alone is measured in the end: on the
            samples that chose it among many, it looks better than it is.
        max_drop: how much worse the program may be, in units of the metric (points, where it is a percentage).
        budget: seconds after which no further candidate is begun; None for no limit.
        max_trials: candidates to measure, at most; None for no limit.
        recipe: the recipe to begin with; the default one when None.
        metric: of labelled samples "top1" (the default), "top5", in percent, a function of (outputs, labels) or a
            metric of torchmetrics; of samples without labels "cosine" (the default), "top1" (agreement), in percent,
            "kl" or "sqnr".
        higher_is_better: how to read the numbers of a function.
        engine: what runs and times programs.
        batch_size: samples of a run that is timed.
        seconds: seconds for timing a candidate, more where the machine is busy; 0 estimates times from the number of
            multiplications, which is repeatable.
        journal: file that trials are kept in, a line each; a call that was interrupted goes on from it.
        progress: called with every trial and the best one so far.

    Raises:
        InputError: an unknown metric, data that can be read only once, a journal of another search, or ``max_drop``,
            ``budget`` or ``max_trials`` below 0.
        CaptureError, CalibrationError, RecipeError: as for :func:`intact8.quantize`.

    Example:
        >>> import intact8
        >>> _ = torch.manual_seed(0)
        >>> model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(128, 8)
        >>> result = intact8.tune(model, x, max_drop=0.5, metric="cosine", seconds=0)
        >>> result.reached, result.best.change, result.recipe == intact8.Recipe()
        (True, 'start', True)
    """
    begun = time.monotonic()
    if isinstance(model, Simulation):
        raise StateError("tune takes the float model", remedy="give what the simulation was prepared from")
    require_module(model)
    for name, given in {"max_drop": max_drop, "budget": budget, "max_trials": max_trials}.items():
        if given is not None:
            require_number(name, given, 0, "tune", numbers.Real, finite=False)
    if progress is not None and not callable(progress):
        what = f"progress: {type(progress).__name__} cannot be called"
        raise InputError(what, where="tune", remedy="give a function of (trial, best), or leave it out")
    warn_of_training_mode(model)
    example, data = first_batch(model, calibration)
    dynamic, data = changing(model, example, data)
    with torch.inference_mode(False):
        captured = capture(model, example, dynamic_shapes=dynamic)
    batches = list(raw_batches(data, Specs.of(captured.graph, captured.layout)))
    objective = make_objective(model, captured, batches, evaluate, metric, higher_is_better)
    judge = None
    if held_out is not None:
        judge = make_objective(model, captured, batches, held_out, metric, higher_is_better)
    measurement = Measurement(model, captured, batches, objective, engine, batch_size, seconds)
    ranks, chosen = ranks_for(batches, "split"), recipes.as_recipe(recipe)
    search_of = {
        "model": checksum(model.state_dict()),
        "calibration": checksum(batches),
        "recipe": checksum(chosen.to_toml()),
        "metric": objective.name,
        "float_score": measurement.float_score,
        "timing": [engine, batch_size, seconds],
    }
    path = None if journal is None or ranks.rank else path_of(journal, "the journal")
    with ranks.together():
        trials = Journal(path, search_of)
    search = Search(measurement, trials, max_drop, budget, max_trials, ranks, progress)
    ended = search.run(chosen)
    best = best_of(search.trials, max_drop)
    program = quantize(model, batches, best.recipe, example)
    networks: dict[str, nn.Module | Program] = {"float32": model, "int8": program}

    def evaluated(by: Objective | None) -> EvaluationReport | None:
        if by is None or by.data is None:
            return None
        return evaluate_networks(networks, by.data, by.metric, engine=engine)

    return TuneResult(
        metric=objective.name,
        higher_is_better=objective.higher_is_better,
        float_score=measurement.float_score,
        max_drop=max_drop,
        trials=tuple(search.trials),
        best=best,
        program=program,
        ended=ended,
        seconds=time.monotonic() - begun,
        engine=engine if seconds > 0 else "",
        evaluation=evaluated(objective),
        held_out=None if judge is None else (judge.measure(model), judge.measure(Module(program, engine))),
        held_out_evaluation=evaluated(judge),
    )


__all__ = ["tune"]
