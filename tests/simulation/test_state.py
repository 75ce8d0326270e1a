"""State dicts, copies, modes: a simulation is an ordinary module that forgets nothing."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.simulation.networks import quantized
from tests.train.networks import prepared
from torch import Tensor, nn
from torch.nn.utils import prune

import intact8
from intact8 import recipes
from intact8.errors import CaptureWarning, StateError
from intact8.program.file import digest
from intact8.simulation.parameters import copy_parameters


class Net(nn.Module):
    """Batch norm, dropout, a residual, PReLU, a pool, a depthwise convolution, a product: every kind of multiplier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.PReLU(8)
        self.gate = nn.Conv2d(8, 8, 1)
        self.pool = nn.AvgPool2d(2, ceil_mode=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.act(self.norm(self.depthwise(x)) + x)
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return self.head(self.drop(self.pool(y).mean((2, 3))))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> dict[str, Any]:
        return {"y": self.layer(x), "state": (state[0] + 1, [state[1], 2])}


def model() -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    for _ in range(3):
        with torch.no_grad():
            net(torch.randn(16, 3, 9, 9))
    return net.eval()


DATA = torch.randn(64, 3, 9, 9, generator=torch.Generator().manual_seed(1))
RECIPES: dict[str, Callable[[], intact8.Recipe]] = {
    "default": intact8.recipes.default,
    "accurate": intact8.recipes.accurate,
    "fused": lambda: intact8.Recipe(residual="fused"),
}


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    loaded: dict[str, Any] = torch.load(stream, weights_only=True)
    return loaded


def loaded_into_a_fresh_one(sim: Any, recipe: intact8.Recipe) -> Any:
    fresh = intact8.prepare(model(), DATA[:2], recipe).eval()
    fresh.load_state_dict(through_a_file(sim.state_dict()), strict=True)
    return fresh


@pytest.mark.parametrize("recipe", sorted(RECIPES))
@pytest.mark.parametrize(
    "copied", [lambda s, r: copy.deepcopy(s), lambda s, r: pickle.loads(pickle.dumps(s)), loaded_into_a_fresh_one],
    ids=["deepcopy", "pickle", "state dict"],
)  # fmt: skip
def test_copies_compute_the_same_integers(recipe: str, copied: Callable[[Any, intact8.Recipe], Any]) -> None:
    sim, program = quantized(model(), DATA, RECIPES[recipe]())
    other = copied(sim, RECIPES[recipe]())
    x = torch.randn(3, 3, 9, 9)
    assert torch.equal(other(x), sim(x))
    assert digest(intact8.convert(other)) == digest(program)
    # It is a copy: training one leaves the other alone.
    with torch.no_grad():
        other.get_parameter("head.weight").mul_(2)
    assert digest(intact8.convert(sim)) == digest(program)
    assert digest(intact8.convert(other)) != digest(program)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda sim: pickle.loads(pickle.dumps(sim))], ids=["copy", "pickle"])
def test_a_copy_nests_inputs_and_outputs_as_the_original_and_nothing_warns(copied: Callable[[Any], Any]) -> None:
    x = torch.randn(64, 4)
    sim = intact8.prepare(Nested().eval(), (x, (x, x)))
    intact8.calibrate(sim, [(x, (x, x))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = copied(sim)
    found, wanted = (each(x, (x, x)) for each in (other, sim))
    assert torch.equal(found["y"], wanted["y"]) and isinstance(found["state"], tuple) and found["state"][1][1] == 2
    assert other.captured.layout.spec == sim.captured.layout.spec


def test_calibration_goes_on_in_a_copy() -> None:
    once, whole = quantized(model(), DATA)
    half = intact8.prepare(model(), DATA[:2]).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(half, DATA[:32])
        rest = copy.deepcopy(half)
        loaded = intact8.prepare(model(), DATA[:2]).eval()
        loaded.load_state_dict(through_a_file(half.state_dict()))
        intact8.calibrate(rest, DATA[32:])
        intact8.calibrate(loaded, DATA[32:])
    assert digest(intact8.convert(half)) != digest(whole)
    assert digest(intact8.convert(rest)) == digest(whole)
    assert digest(intact8.convert(loaded)) == digest(whole)
    assert torch.equal(once(DATA[:2]), rest(DATA[:2]))


def test_original_names_and_weights_both_ways() -> None:
    net = model()
    original = net.state_dict()
    sim, program = quantized(net, DATA)
    state = sim.state_dict()
    assert set(original) <= set(state)
    assert dict(net.named_parameters()).keys() == dict(sim.named_parameters()).keys()
    for name, tensor in original.items():
        assert torch.equal(state[name], tensor), name
    back = Net().eval()
    back.load_state_dict({name: state[name] for name in original}, strict=True)
    assert torch.equal(back(DATA[:4]), net(DATA[:4]))
    # A float checkpoint into a simulation of other weights.
    torch.manual_seed(5)
    other = intact8.prepare(Net(), DATA[:2]).eval()
    result = other.load_state_dict(original, strict=False)
    assert not result.unexpected_keys and not result.missing_keys
    torch.testing.assert_close(other(DATA[:4]), net(DATA[:4]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(other, DATA)
    assert digest(intact8.convert(other)) == digest(program)


def trained_on() -> nn.Module:
    """The same network with other weights and statistics, that are near enough for the same ranges."""
    net = model()
    torch.manual_seed(7)
    with torch.no_grad():
        for tensor in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
            tensor.mul_(0.8 + 0.4 * torch.rand_like(tensor))
    return net


FURTHER = {**RECIPES, **{scales: partial(intact8.recipes.qat, scales) for scales in ("learned", "observed", "fixed")}}


@pytest.mark.parametrize("recipe", sorted(FURTHER))
@pytest.mark.parametrize("calibrated", [False, True], ids=["before", "after calibration"])
def test_a_float_checkpoint_is_a_whole_state(recipe: str, calibrated: bool) -> None:
    """What the simulation adds was said to be missing, although the documentation said that it loads."""
    net, sim = trained_on(), intact8.prepare(model(), DATA[:2], FURTHER[recipe]())
    if calibrated:
        intact8.calibrate(sim, DATA)
        before = sim(DATA[:4])
    own = {key: value.clone() for key, value in sim.state_dict().items() if key not in net.state_dict()}
    sim.load_state_dict(net.state_dict())
    state = sim.state_dict()
    for key, value in {**own, **net.state_dict()}.items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0, equal_nan=True)
    if not calibrated:
        torch.testing.assert_close(sim(DATA[:4]), net(DATA[:4]))
        intact8.calibrate(sim, DATA)
        fresh = quantized(net, DATA, FURTHER[recipe]())[0]
        assert torch.equal(sim(DATA[:4]), fresh(DATA[:4]))
    program = intact8.convert(sim)
    assert torch.equal(program.run(DATA[:4]), sim(DATA[:4]))
    with torch.no_grad():
        error = (sim(DATA[:4]) - net(DATA[:4])).norm()
        assert error < 0.05
        assert not calibrated or error < 0.2 * (before - net(DATA[:4])).norm(), "it computes with the old weights"


def test_states_that_are_neither_of_the_model_nor_of_the_simulation_are_refused() -> None:
    sim = quantized(model(), DATA)[0]
    whole, net = sim.state_dict(), model().state_dict()
    before = sim(DATA[:4])
    part = next(key for key in whole if key.startswith("quantizers."))
    for state, words in (
        ({**net, part: whole[part]}, "Missing key.*quantizers"),
        ({key: value for key, value in whole.items() if key != part}, "Missing key.*quantizers"),
        (
            {key: value for key, value in net.items() if key != "head.bias"},
            r'Missing key\(s\) in state_dict: "head.bias"\.',
        ),
        ({**net, "tail.bias": net["head.bias"]}, r'Unexpected key\(s\) in state_dict: "tail.bias"\.'),
        ({}, "Missing key.*head.bias"),
    ):
        with pytest.raises(RuntimeError, match=f"(?s){words}"):
            sim.load_state_dict(state)
    sim.load_state_dict(whole)
    assert torch.equal(sim(DATA[:4]), before)


def test_a_float_checkpoint_of_a_module_around_a_simulation_loads() -> None:
    around = nn.Sequential(intact8.prepare(model(), DATA[:2]))
    around.load_state_dict(nn.Sequential(trained_on()).state_dict())
    torch.testing.assert_close(around(DATA[:4]), trained_on()(DATA[:4]))


def test_a_float_checkpoint_that_would_not_be_used_is_refused() -> None:
    class Limited(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = super().forward(x).clamp(max=float(self[2].weight.max()))
            return y

    net, x = Limited(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4)), torch.randn(8, 6)
    sim = intact8.prepare(net, x)
    sim.load_state_dict(net.state_dict())
    bias = sim.get_parameter("0.bias").clone()
    with pytest.raises(StateError, match="2.weight: the state has other values.*before intact8.prepare"):
        sim.load_state_dict({**net.state_dict(), "0.bias": bias + 1, "2.weight": net[2].weight * 2})
    assert torch.equal(sim.get_parameter("0.bias"), bias)


def test_a_float_checkpoint_of_pruned_weights_is_what_is_computed() -> None:
    net, x = nn.Sequential(nn.Linear(6, 4), nn.ReLU()), torch.randn(8, 6)
    prune.l1_unstructured(net[0], "weight", 0.5)
    sim, other = intact8.prepare(net, x), nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    prune.random_unstructured(other[0], "weight", 0.5)
    sim.load_state_dict(other.state_dict())
    torch.testing.assert_close(sim(x), other(x))


def test_before_calibration_it_is_the_float_model_and_the_model_is_left_alone() -> None:
    net = model()
    before = copy.deepcopy(net.state_dict())
    sim = intact8.prepare(net, DATA[:2])
    assert not sim.training
    torch.testing.assert_close(sim(DATA[:8]), net(DATA[:8]))
    with torch.no_grad():
        sim.get_parameter("head.bias").add_(1)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_evaluation_mode_at_first_and_training_mode_trains() -> None:
    net = model().train()
    sim = intact8.prepare(net, DATA[:2])
    assert not sim.training and net.training
    sim.train()
    mean = sim.get_buffer("norm.running_mean").clone()
    torch.manual_seed(3)
    first = sim(DATA[:8])
    assert not torch.equal(sim.get_buffer("norm.running_mean"), mean)
    assert not torch.equal(first, sim(DATA[:8])), "dropout draws anew"
    sim.eval()
    mean = sim.get_buffer("norm.running_mean").clone()
    assert torch.equal(sim(DATA[:8]), sim(DATA[:8]))
    assert torch.equal(sim.get_buffer("norm.running_mean"), mean)


def test_batch_norm_statistics_are_those_of_float_training() -> None:
    net = model().train()
    sim = intact8.prepare(net, DATA[:2]).train()
    net(DATA[:16])
    sim(DATA[:16])
    for name, buffer in net.named_buffers():
        torch.testing.assert_close(sim.get_buffer(name), buffer)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_exact_again_after_training(recipe: str) -> None:
    sim, program = quantized(model(), DATA, RECIPES[recipe]())
    sim.train()
    optimizer = torch.optim.SGD(sim.parameters(), lr=0.05)
    torch.manual_seed(4)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(sim(DATA[:16]), torch.arange(16) % 4).backward()
        optimizer.step()
    with pytest.raises(intact8.StateError, match=r"training mode.*sim\.eval"):
        intact8.convert(sim)
    sim.eval()
    trained = intact8.convert(sim)
    assert digest(trained) != digest(program)
    report = intact8.verify(trained, DATA[:5], sim=sim)
    assert report.exact and not report.uncertified
    assert torch.equal(sim(DATA[:5]), trained.run(DATA[:5], engine="onednn"))
    # Activations did not move: only weights, biases and their multipliers followed. (A fused residual's denominator
    # serves all channels of a convolution, so larger biases can move its output a little.)
    if recipe == "fused":
        return
    scales = {n: t.scale for n, t in program.tensors.items()}
    assert {n: t.scale for n, t in trained.tensors.items()} == scales


def test_scales_follow_weights_that_nobody_holds() -> None:
    sim = quantized(model(), DATA)[0]
    before = {name: point.scale.clone() for name, point in sim.weight_points.items()}
    with torch.no_grad():
        sim.get_parameter("head.weight").mul_(4)
    sim(DATA[:4])
    for name, point in sim.weight_points.items():
        factor = 4.0 if name == "head" else 1.0
        torch.testing.assert_close(point.scale, before[name] * factor, rtol=1e-2 if name == "head" else 0, atol=0)


def test_operations_of_a_model_made_in_inference_mode_have_its_modules_names() -> None:
    """torch.export takes it by bytecode analysis alone, which knows modules by the closure of a wrapper."""
    with torch.inference_mode():
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2))).eval()
        sim = intact8.prepare(net, torch.randn(2, 4), intact8.Recipe(overrides={"2.0": None}))
    assert {node.name.split(".dequantize")[0] for node in sim.graph} >= {"0", "2.0"}


def test_everything_works_in_inference_mode_and_training_after_it() -> None:
    net = model()
    with torch.inference_mode():
        sim, program = quantized(net, DATA)
        y = sim(DATA[:4])
    assert digest(quantized(model(), DATA)[1]) == digest(program)
    assert torch.equal(sim(DATA[:4]), y)
    sim.train()
    sim(DATA[:4]).sum().backward()
    assert sim.get_parameter("head.weight").grad is not None


def test_verbs_out_of_order() -> None:
    sim = intact8.prepare(model(), DATA[:2])
    with pytest.raises(intact8.StateError, match="no scale yet.*calibrate"):
        intact8.convert(sim)
    with pytest.raises(intact8.StateError, match="simulation already"):
        intact8.prepare(sim, DATA[:2])
    with pytest.raises(intact8.StateError, match=r"not Net.*prepare"):
        intact8.convert(model())  # type: ignore[arg-type]
    with pytest.raises(intact8.StateError, match="no scale yet"):
        sim.integer_tensors([DATA[:1]])


def test_shared_modules_keep_both_of_their_names() -> None:
    model = nn.Module()
    model.a = model.b = nn.Linear(2, 3)
    root = nn.Module()
    copy_parameters(root, model)
    found = dict(root.named_parameters(remove_duplicate=False))
    assert list(found) == ["a.weight", "a.bias", "b.weight", "b.bias"] and found["a.weight"] is found["b.weight"]


@pytest.mark.parametrize("name", ["0.weight", "1.weight"])
def test_what_diverged_is_refused_by_name(name):
    """A norm's weight once became a program that its own check refused, with a request to report it."""
    x = torch.randn(64, 4)
    sim = intact8.prepare(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval(), x)
    intact8.calibrate(sim, [x])
    with torch.no_grad():
        dict(sim.named_parameters())[name].view(-1)[0] = float("nan")
    with pytest.raises(StateError, match=rf"{name}: 1 of \d+ values are NaN.*smaller learning rate"):
        intact8.convert(sim)


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact", "observed", "fixed"])
def test_evaluation_says_what_conversion_says_of_training_that_diverged(scales: str) -> None:
    """It raised a ValueError of Python where scales are learned, and then points had lost their scales."""
    sim = quantized(model(), DATA, intact8.recipes.qat(scales))[0]
    with torch.no_grad():
        for parameter in sim.parameters():
            parameter.fill_(torch.nan)
    for _ in range(2):
        with pytest.raises(StateError, match=r"values are NaN.*training diverged") as evaluated:
            sim(DATA[:2])
    with pytest.raises(StateError) as converted:
        intact8.convert(sim)
    assert str(converted.value) == str(evaluated.value)


@pytest.mark.parametrize("statistic", ["running_mean", "running_var"])
def test_statistics_of_batch_norm_that_hold_nan_are_refused(statistic: str) -> None:
    """A mean that was NaN became a bias of some integer."""
    sim = quantized(model(), DATA, intact8.recipes.qat())[0]
    sim.get_buffer(f"stem.1.{statistic}")[0] = torch.nan
    for use in (lambda: sim(DATA[:2]), lambda: intact8.convert(sim)):
        with pytest.raises(StateError, match=rf"stem\.1\.{statistic}: 1 of 8 values are NaN"):
            use()


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact"])
def test_a_scale_that_was_given_is_not_learned_and_does_not_pass_for_diverged(scales: str) -> None:
    x = torch.randn(64, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    sim = intact8.prepare(net, x, intact8.recipes.qat(scales))
    sim.points["0"].set(0.05, 0)
    intact8.calibrate(sim, x)
    assert torch.equal(intact8.convert(sim).run(x), sim(x))


@pytest.mark.parametrize("scales", ["learned", "fixed"])
@pytest.mark.parametrize("factor", [1e12, 1e20, 1e30])
def test_weights_that_no_multiplier_fits_are_training_that_diverged(scales: str, factor: float) -> None:
    """A program was made that its own check refused, with a request to report it; far beyond it an int32 wrapped."""
    sim = quantized(model(), DATA, intact8.recipes.qat(scales))[0]
    with torch.no_grad():
        for name, parameter in sim.named_parameters():
            if name.startswith(("head", "quantizers.head.weight")):
                parameter.mul_(factor)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        sim(DATA[:2])
    with pytest.raises(StateError, match=r"head: its weights are far too large.*training diverged.*learning rate"):
        intact8.convert(sim)


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact"])
def test_scales_that_observed_in_training_and_never_learned_are_shipped(scales: str) -> None:
    """Their learners hold NaN until they begin, which convert took for training that diverged."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4)).eval()
    sim = intact8.prepare(net, x, intact8.recipes.qat(scales))
    sim.train()(x)
    program = intact8.convert(sim.eval())
    assert intact8.verify(program, x, sim=sim).mismatches == 0
    assert (torch.as_tensor(program.run(x)) == sim(x)).all()


class Named(nn.Module):
    """A model whose modules, parameters or buffers have given names."""

    def __init__(self, names: list[str], kind: str) -> None:
        super().__init__()
        self.known, self.kind, self.last = names, kind, nn.Linear(4, 2)
        for name in names:
            if kind == "module":
                self.add_module(name, nn.Linear(4, 4))
            elif kind == "parameter":
                self.register_parameter(name, nn.Parameter(torch.rand(4)))
            else:
                self.register_buffer(name, torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.known:
            layer = self._modules.get(name)
            tensor = self._parameters.get(name) if self.kind == "parameter" else self._buffers.get(name)
            x = x + tensor if layer is None else x + layer(x)  # type: ignore[operator]
        return self.last(x)  # type: ignore[no-any-return]


def attributes() -> list[str]:
    from intact8.simulation.simulation import OWN_MODULES, Simulation
    from intact8.train.trainable import Trainable

    names = {name for name in dir(Simulation) if not name.startswith("_") and not hasattr(nn.Module, name)}
    names |= {name for kind in (Simulation, Trainable) for name in kind.__annotations__ if not name.startswith("_")}
    return sorted(names - OWN_MODULES)


@pytest.mark.parametrize("kind", ["module", "parameter", "buffer"])
def test_names_of_a_model_may_be_those_of_attributes_of_a_simulation(kind: str) -> None:
    names = attributes()
    assert {"points", "run", "flatten", "number", "graph"} <= set(names)
    model, x = Named(names, kind).eval(), torch.rand(32, 4)
    sim = intact8.prepare(model, x)
    torch.testing.assert_close(sim(x), model(x))
    copied = copy.deepcopy(sim)
    copied.load_state_dict(sim.state_dict())
    assert set(model.state_dict()) <= set(sim.state_dict())


@pytest.mark.parametrize("name", ["quantizers", "constants"])
def test_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(intact8.CaptureError, match=f"{name}: this name is reserved"):
        intact8.prepare(Named([name], "module"), torch.rand(2, 4))


def test_a_simulation_that_moves_trains_on_with_the_integers_that_ship() -> None:
    sim = prepared("fixed").train()
    assert sim.phase == "frozen" and sim.ready()
    sim._apply(torch.clone)  # what .cuda() does: every tensor is another one
    assert sim.resolved
    next(iter(sim.points.values())).scale.mul_(2)
    assert not sim.resolved


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact", "observed", "fixed"])
@pytest.mark.parametrize("granularity", ["per_channel", "per_tensor"])
def test_copies_have_the_integers_of_a_simulation_that_was_not_trained(scales: str, granularity: str) -> None:
    """Nor do weights that move alone make the solver forget what scales that stayed were solved for."""
    recipe = intact8.recipes.qat(scales)
    recipe = replace(recipe, weight=replace(recipe.weight, granularity=granularity))
    net, x = model(), torch.randn(16, 3, 9, 9, generator=torch.Generator().manual_seed(2))
    sim, loaded = intact8.prepare(net, x, recipe), intact8.prepare(net, x, recipe)
    intact8.calibrate(sim, x)

    def require_the_same() -> None:
        loaded.load_state_dict(sim.state_dict())
        wanted = digest(intact8.convert(sim.eval()))
        for other in (copy.deepcopy(sim), pickle.loads(pickle.dumps(sim)), loaded.eval()):
            assert digest(intact8.convert(other)) == wanted

    require_the_same()
    with torch.no_grad():
        for name, parameter in sim.named_parameters():
            if not name.startswith("quantizers."):
                parameter.add_(0.1 * parameter.abs().mean())
    require_the_same()


def test_modules_of_a_simulation_stay() -> None:
    """A new head would be listed among the parameters, trained, and never be computed with."""
    sim = intact8.prepare(nn.Sequential(nn.Linear(4, 2)), torch.zeros(2, 4))
    for change in (
        lambda: sim.set_submodule("0", nn.Linear(4, 3)),
        lambda: setattr(sim, "0", nn.Identity()),
        lambda: sim.add_module("0", nn.Identity()),
        lambda: delattr(sim, "0"),
        lambda: setattr(sim, "0", None),
    ):
        with pytest.raises(StateError, match="replaced or removed"):
            change()
    sim.add_module("0", sim.get_submodule("0"))
    sim.add_module("metric", nn.Identity())


def test_a_simulation_stays_float32() -> None:
    sim = prepared("learned")
    for change in (sim.half, sim.bfloat16, sim.double, lambda: nn.Sequential(sim).to(torch.float16)):
        with pytest.raises(StateError, match="cannot be of dtype"):
            change()
    torch.set_default_dtype(torch.float64)
    try:
        assert sim.float().to("cpu", torch.float32) is sim
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_pre_hook",
        "register_forward_hook",
        "register_full_backward_pre_hook",
        "register_full_backward_hook",
    ],
)
def test_a_hook_that_would_never_be_called_is_said_to_be_so(register: str) -> None:
    sim = intact8.prepare(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).eval(), torch.zeros(2, 4))
    with pytest.warns(CaptureWarning, match="will not be called"):
        handle = getattr(sim.get_submodule("0"), register)(lambda *_: None)
    handle.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim.register_forward_hook(lambda *_: None)
        sim.get_submodule("1").register_forward_hook(lambda *_: None)


def test_what_layers_keep_is_of_the_tensors_there_are_now() -> None:
    """In evaluation a forward pass looks once at all tensors, and layers keep what they computed from them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)
    ).eval()
    x = torch.randn(16, 3, 8, 8)
    sim = intact8.prepare(model, x, intact8.Recipe(between_layers="integer"))
    intact8.calibrate(sim, x)

    def seen(of: Any) -> dict[str, bytes]:
        return {name: q.tobytes() for name, q in of.integer_tensors([x]).items()}

    before = [seen(sim), seen(sim)]
    assert before[0] == before[1] == seen(copy.deepcopy(sim))

    def changed(what: str) -> None:
        before.append(seen(sim))
        assert before[-1] != before[-2], what
        assert seen(copy.deepcopy(sim)) == before[-1], what

    with torch.no_grad():
        sim.get_parameter("3.weight").mul_(0.8)
        changed("a weight")
        sim.get_parameter("5.bias").add_(0.05)
        changed("a bias")
        sim.get_buffer("1.running_var").mul_(1.3)
        changed("a statistic of batch norm")
        sim.points["3"].scale.mul_(1.25)
        changed("a scale")
        sim.requantizations["3"].a.mul_(2)  # belongs to no scales: it is solved for again
        assert seen(sim) == before[-1]
    intact8.calibrate(sim, 2 * x)
    changed("the calibration")
    y = sim(x)  # with gradients it is computed by other passes
    with torch.no_grad():
        assert torch.equal(sim(x), y.detach())


class Grid(nn.Module):
    """Adds positions that are views of one row and one column."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1)
        rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) * self.rows + self.columns
        return y


def test_states_of_buffers_that_are_views_are_loaded() -> None:
    x = torch.rand(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    sim = intact8.prepare(Grid().eval(), x[:2])
    intact8.calibrate(sim, x)
    before = sim(x)
    sim.load_state_dict(copy.deepcopy(sim.state_dict()))
    assert torch.equal(sim.eval()(x), before)


class Reading(nn.Module):
    """A layer, and a function of it and of a parameter and buffers."""

    def __init__(self, read: Callable[[Reading, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(6, 4), read
        self.factor = nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("deviation", torch.ones(4))
        self.register_buffer("order", torch.arange(4))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, self.layer(x))


FOLLOWED: dict[str, Callable[[Reading, Tensor], Tensor]] = {
    "temperature": lambda m, y: y * m.factor[0].exp().clamp(max=100),
    "divisor": lambda m, y: y / (m.factor[1].exp() + 1),
    "softmax of weights": lambda m, y: sum(w * y.roll(i, 1) for i, w in enumerate(m.factor.softmax(0).unbind())) + y,
    "power": lambda m, y: y.abs().clamp(min=1e-3).pow(m.factor) + (1 - m.factor[2].sigmoid()),
}

FIXED: dict[str, Callable[[Reading, Tensor], Tensor]] = {
    "factor: number": lambda m, y: torch.nn.functional.leaky_relu(y, float(m.factor[0])),
    "factor: limit": lambda m, y: y.clamp(max=m.factor[3]),
    "deviation: divisor": lambda m, y: y / m.deviation,
    "order: index": lambda m, y: y[:, m.order],
    "deviation: condition": lambda m, y: y.masked_fill(m.deviation > 2, 0.0),
    "seen: branch": lambda m, y: y if bool(m.seen) else 3 * y,
}


@pytest.mark.parametrize("read", FOLLOWED)
def test_numbers_computed_from_parameters_follow_a_state_and_are_trained(read: str) -> None:
    fresh, trained = Reading(FOLLOWED[read]).eval(), Reading(FOLLOWED[read]).eval()
    data = torch.randn(256, 6)
    with torch.no_grad():
        trained.factor.copy_(torch.tensor([2.0, 0.7, 1.5, 3.0]))
    sim = intact8.prepare(fresh, data, recipes.qat())
    sim.load_state_dict(trained.state_dict())
    intact8.calibrate(sim, data.split(64))
    with torch.no_grad():
        difference = sim.eval()(data) - trained(data)
    assert difference.norm() < 0.1 * trained(data).norm()
    program = intact8.convert(sim)
    again = intact8.prepare(Reading(FOLLOWED[read]).eval(), data, recipes.qat())
    again.load_state_dict(sim.state_dict())
    assert torch.equal(intact8.convert(again.eval()).run(data), program.run(data))
    sim.train()(data).square().sum().backward()
    assert dict(sim.named_parameters())["factor"].grad.norm() > 0


@pytest.mark.parametrize("read", FIXED)
def test_a_state_that_would_change_what_the_graph_was_made_of_is_refused(read: str) -> None:
    model, data = Reading(FIXED[read]).eval(), torch.randn(256, 6)
    sim = intact8.prepare(model, data)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    sim.load_state_dict(state)
    name = read.partition(":")[0]
    state[name] = (
        torch.tensor([3, 0, 1, 2]).to(state[name].dtype)[: max(1, state[name].dim() * 4)].reshape(state[name].shape)
    )
    with pytest.raises(StateError, match=f"{name}: the state has other values.*load it into the model, before"):
        sim.load_state_dict(state)


class Biased(nn.Module):
    """Attention with a bias of places, and a GRU from a learned state; both begin with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(8, 8), nn.Parameter(torch.zeros(6, 6))
        self.read, self.state = nn.GRU(8, 6, batch_first=True), nn.Parameter(torch.zeros(1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y = (y @ y.mT / 3 + self.bias).softmax(-1) @ y
        out: Tensor = self.read(y, self.state.expand(-1, len(x), -1).contiguous())[0]
        return out


@pytest.mark.parametrize("recipe", [recipes.default(), recipes.integer()])
def test_zeros_that_parameters_begin_with_are_no_mask_and_no_missing_state(recipe: intact8.Recipe) -> None:
    torch.manual_seed(0)
    fresh, trained, data = Biased().eval(), Biased().eval(), torch.randn(256, 6, 8)
    with torch.no_grad():
        trained.bias.normal_(0, 3)
        trained.state.normal_(0, 2)
    sim = intact8.prepare(fresh, data, recipe)
    sim.load_state_dict(trained.state_dict())
    intact8.calibrate(sim, data.split(64))
    wanted = trained(data).detach()
    assert (intact8.convert(sim.eval()).run(data) - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact", "observed", "fixed"])
def test_weights_put_in_for_a_while_change_nothing(scales: str) -> None:
    """Averages of weights are evaluated before and between steps of training, and the old ones put back."""
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3)),
        torch.randn(16, 3, 8, 8),
    )
    sim = intact8.prepare(net.eval(), x[:2], recipes.qat(scales))
    intact8.calibrate(sim, x)
    sim.eval()
    before, kept = sim(x), copy.deepcopy(sim.state_dict())
    own = {name: p.data.clone() for name, p in sim.named_parameters()}
    for factor in (1.01, 1.3, 0.8):
        with torch.no_grad():
            for name, p in sim.named_parameters():
                if not name.startswith("quantizers"):
                    p.mul_(factor)
        assert not torch.equal(sim(x), before)
        with torch.no_grad():
            for name, p in sim.named_parameters():
                p.copy_(own[name])
        assert torch.equal(sim(x), before)
    for name, value in sim.state_dict().items():
        if isinstance(value, Tensor):
            assert torch.equal(value.nan_to_num(), kept[name].nan_to_num()), name
