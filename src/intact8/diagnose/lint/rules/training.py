"""IQ5xx: quantization-aware training: switches, batch norm, the optimizer, the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import SIMULATION, TORCH_AO, Hit, rule
from intact8.diagnose.lint.training_views import batch_norms, live_batch_norms, scale_parameters, trained, weights_of

FEW_STEPS = 100


@rule(
    "IQ501", "observers-left-on", "error", SIMULATION, TORCH_AO,
    remedy="sim.observe(False); in torch.ao model.apply(disable_observer) before evaluation",
    covers=("OS18", "OS23", "EX17"),
)  # fmt: skip
def observers_left_on(subject: Any) -> Iterator[Hit]:
    """Observers take in values in evaluation, so that every batch that is evaluated changes the ranges.

    In torch.ao scores then depend on the order of the test data, and the scales that ship are not the ones that were
    trained. In intact8 scales move only when they are calibrated or trained, so it is a warning there: the data are
    counted as calibration data by the next call of ``intact8.calibrate``.
    Observers of a model prepared for post-training quantization are meant to be on and are not reported in torch.ao.
    """
    if subject.module.training:
        return
    on = [p for p in subject.points if p.observing and p.quantizing and (p.trained or subject.kind == SIMULATION)]
    if on and not any(p.seen is False for p in on):
        names, mild = [p.name for p in on], subject.kind == SIMULATION
        message = f"{len(on)} observers are on in evaluation" + (
            ": the next calibration counts these data" if mild else ""
        )
        yield Hit(message, node=names[0], severity="warning" if mild else "", data={"points": names})


@rule(
    "IQ502", "fake-quantization-off", "error", SIMULATION, TORCH_AO,
    remedy="sim.fake_quantize(True); in torch.ao model.apply(enable_fake_quant)",
    covers=("EX19c", "OS18", "OS23"),
)  # fmt: skip
def fake_quantization_off(subject: Any) -> Iterator[Hit]:
    """Fake quantization is switched off at some points that have scales.

    What is trained or evaluated is then partly the float network, and accuracy looks better than what ships. It is
    usually left over from a layer-by-layer search.
    """
    off = [p for p in subject.points if not p.quantizing and p.known]
    if off:
        total = len(subject.points)
        message = f"fake quantization is off at {len(off)} of {total} points"
        yield Hit(message, node=off[0].name, data={"points": [p.name for p in off]})


@rule(
    "IQ503", "batch-norm-not-frozen", "warning", SIMULATION, TORCH_AO,
    remedy="Schedule(freeze_batchnorm=…) or sim.freeze_batch_norm(); in torch.ao model.apply(freeze_bn_stats)",
    covers=("EX17", "OS10"),
)  # fmt: skip
def batch_norm_not_frozen(subject: Any) -> Iterator[Hit]:
    """Scales are frozen while batch norm still follows the batches; or the schedule never freezes it.

    In deployment batch norm is folded with its running statistics. Training with the statistics of each batch after
    scales are frozen trains another network than the one that ships.
    """
    if not batch_norms(subject):
        return
    live = live_batch_norms(subject)
    if live:
        message = f"scales are frozen and {len(live)} batch norms still follow the batches"
        yield Hit(message, module=live[0], data={"modules": live})
    schedule = subject.schedule
    if schedule is not None and schedule.freeze_batchnorm is None and schedule.freeze_scales is None:
        yield Hit("the schedule freezes neither batch norm nor scales")


@rule(
    "IQ504", "scales-not-in-optimizer", "error", SIMULATION, TORCH_AO,
    remedy="build the optimizer after prepare: intact8.train.parameter_groups(sim, lr=…), or model.parameters()",
    covers=("OS23", "EX19c"),
)  # fmt: skip
def scales_not_in_optimizer(subject: Any) -> Iterator[Hit]:
    """Scales are to be learned, and the optimizer does not have them: it was built before prepare.

    They get gradients that nobody uses, and stay where they began.

    Needs the optimizer.
    """
    optimizer, scales = subject.require_optimizer(), scale_parameters(subject)
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in scales if p.requires_grad and id(p) not in owned]
    if missing:
        message = f"the optimizer lacks {len(missing)} of {len(scales)} learned scales"
        yield Hit(message, tensor=missing[0], data={"missing": missing})


@rule(
    "IQ505", "optimizer-of-another-model", "error", SIMULATION, TORCH_AO,
    remedy="build the optimizer from the parameters of the model that is trained, after prepare",
    covers=("OS23",),
)  # fmt: skip
def optimizer_of_another_model(subject: Any) -> Iterator[Hit]:
    """The optimizer lacks weights of this model, and has parameters that are not this model's.

    ``prepare`` returns a new module with parameters of its own. An optimizer built from the float model goes on
    training that one, and the simulation stays as it is.

    Needs the optimizer.
    """
    optimizer = subject.require_optimizer()
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for p in subject.module.parameters()}
    missing = [name for name, p in weights_of(subject) if p.requires_grad and id(p) not in owned]
    foreign = len(owned - own)
    if missing and foreign:
        message = f"it has {foreign} parameters of another model, and lacks {len(missing)} weights of this one"
        yield Hit(message, tensor=missing[0], data={"foreign": foreign, "missing": missing})


@rule(
    "IQ506", "scale-gradient-off", "warning", SIMULATION, TORCH_AO,
    remedy="requires_grad_(True) for the scales, or stop learning them: freeze the scales",
    covers=("OS18", "OS23"),
)  # fmt: skip
def scale_gradient_off(subject: Any) -> Iterator[Hit]:
    """Scales are to be learned now, and their gradients are switched off; or the other way round.

    A loop that freezes "all but the head" catches the scales, too. In torch.ao also: a learnable fake quantizer whose
    ``learning_enabled`` says one thing and the ``requires_grad`` of its scale the other.
    """
    if subject.kind == SIMULATION:
        scales = scale_parameters(subject) if subject.sim.phase == "learn" else []
        off = [name for name, p in scales if not p.requires_grad]
        if off:
            message = f"{len(off)} of {len(scales)} scales are learned and need no gradient"
            yield Hit(message, tensor=off[0], data={"scales": off})
        return
    for name, m in subject.fake_quantizers:
        if hasattr(m, "learning_enabled") and bool(m.learning_enabled[0]) != bool(m.scale.requires_grad):
            yield Hit(
                f"learning_enabled is {int(m.learning_enabled[0])} and requires_grad is {m.scale.requires_grad}",
                module=name,
            )  # fmt: skip


@rule(
    "IQ507", "scale-weight-decay", "warning", SIMULATION, TORCH_AO,
    remedy="give scales a group with weight_decay=0: intact8.train.parameter_groups(sim, lr=…)",
    covers=("OS23",),
)  # fmt: skip
def scale_weight_decay(subject: Any) -> Iterator[Hit]:
    """Weight decay pulls the learned scales towards zero, so ranges shrink whatever the loss says.

    Needs the optimizer.
    """
    scales = {id(p): name for name, p in scale_parameters(subject)}
    for index, group in enumerate(subject.require_optimizer().param_groups):
        decay = group.get("weight_decay") or 0.0
        held = [scales[id(p)] for p in group["params"] if id(p) in scales]
        if decay and held:
            message = f"group {index} has weight decay {decay:g} and {len(held)} learned scales"
            yield Hit(message, tensor=held[0], data={"group": index, "weight_decay": decay})


@rule(
    "IQ508", "qat-for-ptq", "warning", SIMULATION, TORCH_AO,
    remedy="for post-training quantization use a PTQ recipe (recipes.default()), in torch.ao prepare; or train it",
    covers=("DK10",),
)  # fmt: skip
def qat_for_ptq(subject: Any) -> Iterator[Hit]:
    """The model was prepared for quantization-aware training, calibrated, and never trained.

    Its observers are those of training (moving averages, reduced ranges), so it gets the accuracy of neither way. In
    intact8: a recipe with learned or observed scales whose scales are still where calibration put them. In torch.ao: a
    model with fake quantizers in evaluation mode, observers on, no gradient on any weight.
    """
    if trained(subject) or subject.optimizer is not None or subject.module.training:
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
        yield Hit(
            f"{len(fake)} fake quantizers observe in evaluation, and no weight has a gradient", module=fake[0].name
        )


@rule(
    "IQ509", "frozen-too-soon", "warning", SIMULATION,
    remedy="let scales move for an epoch or so before Schedule(freeze_scales=…)",
    covers=("EX17", "EX19c"),
)  # fmt: skip
def frozen_too_soon(subject: Any) -> Iterator[Hit]:
    """The schedule freezes scales at once, or within a hundred steps.

    Weights move most at the beginning; ranges frozen before that clip what comes later.

    Needs the schedule.
    """
    schedule = subject.require_schedule()
    at = schedule.freeze_scales
    if at is not None and (at == 0 or (schedule.unit == "step" and at < FEW_STEPS)):
        yield Hit(f"scales are frozen after {at} {schedule.unit}s", data={"freeze_scales": at})


@rule(
    "IQ510", "scales-never-frozen", "note", SIMULATION,
    remedy="give Schedule(freeze_scales=…) so that the last epochs train with the integers that ship",
    covers=("EX17", "OS22"),
)  # fmt: skip
def scales_never_frozen(subject: Any) -> Iterator[Hit]:
    """The schedule never freezes scales, so the last step trains with other multipliers than those that ship.

    Evaluation is exact in any case; only what training sees differs from it by the rounding of multipliers.

    Needs the schedule.
    """
    schedule = subject.require_schedule()
    if schedule.freeze_scales is None and subject.sim.phase != "frozen":
        yield Hit("the schedule has no freeze_scales")
