"""IQ5xx: quantization-aware training: switches, batch norm, the optimizer, the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import SIMULATION, TORCH_AO, Hit, joint_hit, rule

FEW_STEPS = 100


@rule("IQ501", "error", SIMULATION, TORCH_AO)
def observers_left_on(subject: Any) -> Iterator[Hit]:
    """Observers take in values in evaluation, so that every batch that is evaluated changes the ranges.

    In torch.ao scores then depend on the order of the test data, and the scales that ship are not the ones that were
    trained. In intact8 scales move only when they are calibrated or trained, so the finding is a warning there: the
    next call of ``intact8.calibrate`` counts the data as calibration data. In torch.ao the rule does not report
    observers of a model prepared for post-training quantization, which are meant to be on.

    Remedy: sim.observe(False); in torch.ao model.apply(disable_observer) before evaluation
    """
    if subject.module.training:
        return
    mild = subject.kind == SIMULATION
    on = [p for p in subject.points if p.observing and p.quantizing and (p.trained or mild)]
    if not any(p.seen is False for p in on):
        message = f"{len(on)} observers are on in evaluation{': the next calibration counts these data' * mild}"
        yield from joint_hit([p.name for p in on], message, severity="warning" * mild)


@rule("IQ502", "error", SIMULATION, TORCH_AO)
def fake_quantization_off(subject: Any) -> Iterator[Hit]:
    """Fake quantization is switched off at some points that have scales.

    Training and evaluation then use the float network in part, and accuracy looks better than what ships. Such
    switches are usually left over from a layer-by-layer search.

    Remedy: sim.fake_quantize(True); in torch.ao model.apply(enable_fake_quant)
    """
    off = [p.name for p in subject.points if not p.quantizing and p.known]
    yield from joint_hit(off, f"fake quantization is off at {len(off)} of {len(subject.points)} points")


@rule("IQ503", "warning", SIMULATION, TORCH_AO)
def batch_norm_not_frozen(subject: Any) -> Iterator[Hit]:
    """Scales are frozen while batch norm still follows the batches; or the schedule never freezes it.

    In deployment batch norm is folded with its running statistics. Training with the statistics of each batch after
    scales are frozen trains another network than the one that ships.

    Remedy: Schedule(freeze_batchnorm=…) or sim.freeze_batch_norm(); in torch.ao model.apply(freeze_bn_stats)
    """
    live = [name for name, m in subject.batch_norms if m.training] if subject.scales_frozen_in_training else []
    message = f"scales are frozen and {len(live)} batch norms still follow the batches"
    yield from joint_hit(live, message, place="module", key="modules")
    schedule = subject.schedule if subject.batch_norms else None
    if schedule is not None and schedule.freeze_batchnorm is None and schedule.freeze_scales is None:
        yield Hit("the schedule freezes neither batch norm nor scales")


@rule("IQ504", "error", SIMULATION, TORCH_AO)
def scales_not_in_optimizer(subject: Any) -> Iterator[Hit]:
    """Scales are to be learned, and the optimizer does not have them: it was built before prepare.

    The scales get gradients that nothing uses, and stay where they began.

    Needs the optimizer.

    Remedy: build the optimizer after prepare: intact8.train.parameter_groups(sim, lr=…), or model.parameters()
    """
    optimized, scales = subject.optimized, subject.scale_parameters
    missing = [name for name, p in scales if p.requires_grad and id(p) not in optimized]
    message = f"the optimizer lacks {len(missing)} of {len(scales)} learned scales"
    yield from joint_hit(missing, message, place="tensor", key="missing")


@rule("IQ505", "error", SIMULATION, TORCH_AO)
def optimizer_of_another_model(subject: Any) -> Iterator[Hit]:
    """The optimizer lacks weights of this model, and has parameters that are not this model's.

    ``prepare`` returns a new module with parameters of its own. An optimizer built from the float model goes on
    training that one, and the simulation stays as it is.

    Needs the optimizer.

    Remedy: build the optimizer from the parameters of the model that is trained, after prepare
    """
    optimized = subject.optimized
    missing = [name for name, p in subject.weight_parameters if p.requires_grad and id(p) not in optimized]
    foreign = len(optimized - {id(p) for p in subject.module.parameters()})
    if missing and foreign:
        message = f"it has {foreign} parameters of another model, and lacks {len(missing)} weights of this one"
        yield Hit(message, tensor=missing[0], data={"foreign": foreign, "missing": missing})


@rule("IQ506", "warning", SIMULATION, TORCH_AO)
def scale_gradient_off(subject: Any) -> Iterator[Hit]:
    """Scales are to be learned now, and their gradients are switched off; or the other way round.

    A loop that freezes "all but the head" freezes the scales, too. In torch.ao the rule also reports a learnable fake
    quantizer whose ``learning_enabled`` says one thing and the ``requires_grad`` of its scale the other.

    Remedy: requires_grad_(True) for the scales, or stop learning them: freeze the scales
    """
    if subject.kind == SIMULATION:
        scales = subject.scale_parameters if subject.sim.phase == "learn" else []
        off = [name for name, p in scales if not p.requires_grad]
        message = f"{len(off)} of {len(scales)} scales are learned and need no gradient"
        yield from joint_hit(off, message, place="tensor", key="scales")
        return
    for name, m in subject.fake_quantizers:
        if hasattr(m, "learning_enabled") and bool(m.learning_enabled[0]) != bool(m.scale.requires_grad):
            gradient = f"requires_grad is {m.scale.requires_grad}"
            yield Hit(f"learning_enabled is {int(m.learning_enabled[0])} and {gradient}", module=name)


@rule("IQ507", "warning", SIMULATION, TORCH_AO)
def scale_weight_decay(subject: Any) -> Iterator[Hit]:
    """Weight decay pulls the learned scales towards zero, so ranges shrink whatever the loss says.

    Needs the optimizer.

    Remedy: give scales a group with weight_decay=0: intact8.train.parameter_groups(sim, lr=…)
    """
    scales = {id(p): name for name, p in subject.scale_parameters}
    for index, group in enumerate(subject.required("optimizer").param_groups):
        decay = group.get("weight_decay") or 0.0
        decayed = [scales[id(p)] for p in group["params"] if id(p) in scales]
        if decay and decayed:
            message = f"group {index} has weight decay {decay:g} and {len(decayed)} learned scales"
            yield Hit(message, tensor=decayed[0], data={"group": index, "weight_decay": decay})


@rule("IQ508", "warning", SIMULATION, TORCH_AO)
def qat_for_ptq(subject: Any) -> Iterator[Hit]:
    """The model was prepared for quantization-aware training, calibrated, and never trained.

    Its observers are those of training (moving averages, reduced ranges), so it gets the accuracy of neither way. In
    intact8 the rule reports a recipe with learned or observed scales whose scales are still where calibration put them.
    In torch.ao it reports a model in evaluation mode with fake quantizers, whose observers are on and whose weights
    have no gradient.

    Remedy: for post-training quantization use a PTQ recipe (recipes.default()), in torch.ao prepare; or train it
    """
    trained = any(p.grad is not None for _, p in subject.weight_parameters)
    if trained or subject.optimizer is not None or subject.module.training:
        return
    if subject.kind == SIMULATION:
        sim = subject.sim
        if not sim.calibrated or sim.phase not in ("learn", "observe"):
            return
        points = (*sim.points.values(), *sim.weight_points.values())
        if sim.phase == "learn" and any(p.learner is not None and p.learner.moved for p in points):
            return
        yield Hit(f'the recipe says scales = "{sim.recipe.scales}", and nothing was trained')
        return
    fake = [p for p in subject.points if p.trained and not p.fixed]
    if fake and all(p.observing for p in fake) and any(p.seen for p in fake):
        message = f"{len(fake)} fake quantizers observe in evaluation, and no weight has a gradient"
        yield Hit(message, module=fake[0].name)


@rule("IQ509", "warning", SIMULATION)
def frozen_too_soon(subject: Any) -> Iterator[Hit]:
    """The schedule freezes scales at once, or within a hundred steps.

    Weights move most at the beginning; ranges frozen before that clip what comes later.

    Needs the schedule.

    Remedy: let scales move for an epoch or so before Schedule(freeze_scales=…)
    """
    schedule = subject.required("schedule")
    at = schedule.freeze_scales
    if at is not None and (at == 0 or (schedule.unit == "step" and at < FEW_STEPS)):
        yield Hit(f"scales are frozen after {at} {schedule.unit}s", data={"freeze_scales": at})


@rule("IQ510", "note", SIMULATION)
def scales_never_frozen(subject: Any) -> Iterator[Hit]:
    """The schedule never freezes scales, so the last step trains with other multipliers than those that ship.

    Evaluation is exact in any case; only the numbers of training differ from it, by the rounding of multipliers.

    Needs the schedule.

    Remedy: give Schedule(freeze_scales=…) so that the last epochs train with the integers that ship
    """
    if subject.required("schedule").freeze_scales is None and subject.sim.phase != "frozen":
        yield Hit("the schedule has no freeze_scales")
