"""Single parts of the simulation, each held against what it promises to those that use it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.simulation.networks import quantized
from torch import Tensor, nn

import intact8
from intact8 import recipes
from intact8.arithmetic.dynamic_torch import quantize_rows
from intact8.arithmetic.tie_free import largest_denominator
from intact8.calibration.moving_average import MovingAverageObserver
from intact8.calibration.observer import NonFiniteError
from intact8.calibration.weights import weight_scales
from intact8.capture.graph import Graph, Node
from intact8.engines import get_runner
from intact8.lower.lower import lower
from intact8.lower.provenance import provenance
from intact8.recipe.scheme import Scheme
from intact8.simulation.ops.exact_sums import EXACT, chunk_edges
from intact8.simulation.ops.integer_conv import Exact, _value
from intact8.simulation.ops.integer_op import observe_activated
from intact8.simulation.ops.pools import _total
from intact8.simulation.ops.quantized_add import add_round
from intact8.simulation.quantized_tensor import Quantized
from intact8.simulation.scales.layer_multipliers import Layer, channel_ratios
from intact8.simulation.scales.quant_points import QuantPoint, Requantization, WeightPoint
from intact8.simulation.simulation import _last_uses
from intact8.simulation.tensors import Tensors
from intact8.simulation.weights.folding import own_params
from intact8.simulation.weights.grid import grid_gradients, on_grid
from intact8.simulation.weights.quantize import pair_limits
from intact8.train import distributed as parallel
from intact8.train.straight_through import Rounding, round_within
from intact8.train.weight_scales import BLOCK, LONG, two_largest

LINEAR = Node("fc", "linear", ["x"])


def test_a_sum_of_many_integers_is_exact() -> None:
    q = torch.full((1, 1 << 17), 255.0)
    q[0, 0] = 254.0
    assert int(_total(q, q.shape[1], [1], False)) == 255 * q.shape[1] - 1


@pytest.mark.parametrize("roles", [(), ("weight",), ("bias",), ("weight", "bias")], ids=str)
def test_the_factors_of_a_norm_divide_what_it_gives(roles: tuple[str, ...]) -> None:
    values = {"weight": torch.tensor([1.0, -2.0, 3.0]), "bias": torch.tensor([0.5, 0.0, -4.0])}
    own = {role: values[role] for role in roles}
    factor, x = torch.tensor([1.0, 2.0, 4.0]), torch.randn(5, 3)
    node = Node("n", "layer_norm", ["x"], {"shape": [3]}, {**dict(zip(roles, roles, strict=True)), "equalize.out": "f"})
    divided = F.layer_norm(x, [3], **own_params(node, {**own, "f": factor}))
    torch.testing.assert_close(divided, F.layer_norm(x, [3], **own) / factor)


def test_a_fixed_zero_point_is_of_the_schemes_own_dtype() -> None:
    point = QuantPoint("x", Scheme(dtype="int8", fixed=(0.5, -3)), ["x"])
    assert (point.scale_value, int(point.zero_point)) == (0.5, 125)


def test_a_weight_that_has_no_partner_ends_where_int8_does() -> None:
    weight = torch.tensor([[128.0, 0.0], [130.0, 0.0]])
    limits = pair_limits(LINEAR, weight, torch.ones(2), -128, 127)
    assert on_grid(weight, None, torch.ones(2, 1), limits).q[:, 0].tolist() == [127.0, 127.0]


def test_what_points_know_before_calibration() -> None:
    point, weight = QuantPoint("x", Scheme(), ["x"]), WeightPoint("w", Scheme(dtype="int8", symmetric=True))
    assert not point.calibrated and not point.active and int(point.zero_point) == 0
    assert not weight.known
    weight.scale = torch.ones(1)  # of the whole tensor
    assert weight.known


@pytest.mark.parametrize("observer", ["minmax", "mse"])
def test_weights_are_clipped_where_their_scales_are_not_made_for_all_of_them(observer: str) -> None:
    point = WeightPoint("w", Scheme(dtype="int8", symmetric=True, observer=observer), portable=False)
    point.source = "weights"
    assert point.train().holds_all == (observer == "minmax")
    assert not point.eval().holds_all


@pytest.mark.parametrize("learned", [0, 1], ids=["low", "high"])
def test_one_end_of_a_range_may_learn_alone(learned: int) -> None:
    v = torch.tensor([-3.0, -2.5, 0.2, 5.0, 6.0, 7.0])
    ends = [torch.tensor(-1.0, requires_grad=learned == 0), torch.tensor(4.0, requires_grad=learned == 1)]
    (round_within(v, *ends) * torch.arange(1.0, 7.0)).sum().backward()  # type: ignore[no-untyped-call]
    grads = [None if end.grad is None else end.grad.item() for end in ends]
    assert grads == ([3.0, None] if learned == 0 else [None, 15.0])


@pytest.mark.parametrize("wants", [(True, False, True), (False, True, False), (True, False, False)], ids=str)
def test_gradients_that_nobody_wants_are_not_computed(wants: tuple[bool, ...]) -> None:
    weight, factor, scale = torch.randn(4, 5), torch.rand(4, 1) + 0.5, torch.full((4, 1), 0.1)
    found = grid_gradients(torch.randn(4, 5), 1.0, (weight, factor, scale), None, wants)
    assert tuple(g is not None for g in found) == wants
    assert grid_gradients(torch.randn(4, 5), 1.0, (weight, None, scale), None, (True, False, True))[1] is None


@pytest.mark.parametrize("count", [1, 2, LONG - 1, LONG, LONG + 1, LONG + BLOCK - 1, 3 * LONG + 5])
def test_the_two_largest_of_rows_of_any_length(count: int) -> None:
    rows = torch.randn(9, count)
    blocks = count // BLOCK
    for i, row in enumerate(rows):  # the two lie in one block, in two, behind all blocks
        if blocks:
            row[(i * 7) % blocks], row[[(i * 7) % blocks + blocks * 3, 0, -1][i % 3]] = 90.0, 80.0
    assert torch.equal(two_largest(rows), rows.topk(min(2, count), dim=1).values)


def test_values_are_kept_as_long_as_somebody_needs_them() -> None:
    nodes = [Node("x", "input"), Node("a", "relu", ["x"]), Node("b", "relu", ["a"]), Node("c", "add", ["a", "b"])]
    graph = Graph({n.name: n for n in nodes}, ["x"], ["a", "c"])
    assert _last_uses(graph) == [[], ["x"], [], ["b"]]


@pytest.mark.parametrize(
    ("act", "seen"),
    [
        (None, [-2.0, 2.0, 20.0]), ({"kind": "clamp", "min": 0.0, "max": 6.0}, [0.0, 2.0, 6.0]),
        ({"kind": "leaky_relu", "slope": 0.1}, [-2.0, 2.0, 20.0]),
    ],
    ids=["nothing", "clamp", "leaky"],
)  # fmt: skip
def test_an_observer_sees_what_a_fused_clamp_leaves(act: Any, seen: list[float]) -> None:
    shown: list[Tensor] = []
    point: Any = SimpleNamespace(live_scale=torch.tensor(0.5), observer=SimpleNamespace(observe=shown.append))
    observe_activated(Node("c", "conv", ["x"], {"act": act} if act else {}), point, torch.tensor([-4.0, 4.0, 40.0]))
    assert [v.tolist() for v in shown] == [seen]

    point.observer = MovingAverageObserver()  # which is only told the ends
    node = Node("c", "conv", ["x"], {"act": act} if act else {})
    observe_activated(node, point, torch.tensor([[4.0, -4.0], [40.0, 6.0]]))
    assert (point.observer.minimum, point.observer.maximum) == (min(seen), max(seen)) and point.observer.count == 4
    observe_activated(node, point, torch.empty(0, 2))
    assert point.observer.count == 4
    with pytest.raises(NonFiniteError, match="1 NaN and 0 infinite of 3 values"):
        observe_activated(node, point, torch.tensor([1.0, torch.nan, 2.0]))
    assert point.observer.count == 4


def test_sums_that_are_cut_stay_exact_in_every_part() -> None:
    weight = torch.full((2, 700), 127.0)
    edges = chunk_edges(LINEAR, weight, 700 * 127 * 255.0)
    assert edges is not None and edges[0] == 0 and edges[-1] == 700 and len(edges) > 2
    assert all((b - a) * 127 * 255 < EXACT for a, b in itertools.pairwise(edges))
    x = torch.full((1, 700), 255.0)
    for bias in (3.0, float(EXACT + 1)):
        want = 700 * 127 * 255 + int(bias)
        for cut in (edges, None):
            exact = Exact(torch.full((2,), bias, dtype=torch.float64), cut, True)
            total = _value(LINEAR, x, weight, torch.ones(2, dtype=torch.float64), None, exact, True)
            assert total[0].tolist() == [want, want]


def test_a_bias_beyond_float32_is_added_exactly() -> None:
    """The products alone would fit."""
    x, weight = torch.ones(1, 3), torch.ones(1, 3)
    exact = Exact(torch.tensor([float(EXACT)], dtype=torch.float64), [0, 3], True)
    total = _value(LINEAR, x, weight, torch.ones(1, dtype=torch.float64), None, exact, True)
    assert total.item() == EXACT + 3 and total.dtype == torch.float64
    small = Exact(torch.tensor([5.0], dtype=torch.float64), [0, 3], False)
    total = _value(LINEAR, x, weight, torch.ones(1, dtype=torch.float64), None, small, True)
    assert total.item() == 8 and total.dtype == torch.float32, "what fits float32 stays in it"


def test_a_changed_weight_is_solved_for_before_it_ships() -> None:
    model, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(16, 6)
    sim, _ = quantized(model, x)
    assert sim.resolved and sim.current
    solved: list[object] = []
    sim.resolve = lambda **how: solved.append(how)
    lower(sim)
    assert not solved, "nothing has changed"
    del sim.resolve
    with torch.no_grad():
        sim.get_parameter("0.weight").mul_(-3.0)
    assert sim.resolved and not sim.current
    program = lower(sim)
    assert sim.current
    y = get_runner(program, "reference")({program.inputs[0]: x.numpy()})[0]
    assert torch.equal(torch.from_numpy(y), sim(x).detach())


@pytest.mark.parametrize("tiny", [1e-9, 1e-4])
def test_a_channel_that_hardly_adds_to_a_residual_has_the_smallest_multiplier(tiny: float) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.conv = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.first(x))
            return F.relu(self.conv(y) + y)

    model = Residual()
    with torch.no_grad():
        model.conv.weight[0] *= tiny
    _, program = quantized(model, torch.randn(8, 4, 6, 6), intact8.Recipe(residual="fused", bias_correction=False))
    op = next(op for op in program.ops if op.name.startswith("conv"))
    assert len(op.inputs) == 2 and int(op.arrays["a"][0]) == 1 and int(op.arrays["a"].max()) > 1


def test_a_mean_has_the_largest_denominator_that_is_proved() -> None:
    model, x = nn.AdaptiveAvgPool2d(1), torch.rand(8, 4, 7, 7)
    sim, program = quantized(model, x)
    (op,) = [op for op in program.ops if op.kind == "mean"]
    steps = 255 * program.tensors[op.inputs[0]].scale / program.tensors[op.name].scale  # type: ignore[operator]
    most = int(largest_denominator("mean", residual_steps=steps, engines=sim.recipe.engines))
    assert op.certificate is not None and op.certificate["margin"] > 0 and 0.4 * most < op.attrs["b"] <= most


def test_a_batch_norm_in_training_sees_what_a_dynamic_layer_gives() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    x = torch.randn(32, 6)
    sim = intact8.prepare(model.eval(), x, recipes.dynamic())
    sim.train()
    want, got = model.train()(x).detach(), sim(x).detach()
    assert 0 < float((got - want).norm() / want.norm()) < 0.03


@pytest.mark.parametrize("recipe", [recipes.weight_only(), recipes.dynamic()], ids=["weight-only", "dynamic"])
def test_layers_on_codes_add_their_residual(recipe: intact8.Recipe) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(x) + x
            return y

    model, x = Residual().eval(), torch.randn(4, 32)
    sim = intact8.prepare(model, x, replace(recipe, residual="fused")).eval()
    intact8.calibrate(sim, [x])
    assert [len(node.inputs) for node in sim.graph if node.op == "linear"] == [2]
    want = model(x).detach()
    assert float((sim(x).detach() - want).norm() / want.norm()) < 0.1


def test_a_held_scale_is_not_what_a_parameter_says() -> None:
    sim = intact8.prepare(nn.Sequential(nn.Linear(6, 5)), torch.randn(4, 6), intact8.Recipe(scales="learned"))
    intact8.calibrate(sim, [torch.randn(64, 6)])
    (name,) = sim.weight_points
    point: Any = sim.weight_points[name]
    point.source = "held"
    with torch.no_grad():
        point.learner.value.mul_(3.0)
    own = point.scale.double().numpy()
    with torch.no_grad():
        assert (Layer(sim.graph.nodes[name], sim.quantized_graph, fresh=False).base < 1.5 * own).all()


def test_what_equalization_changed_is_told_with_the_program() -> None:
    model, x = nn.Linear(8, 4), torch.randn(32, 8) * torch.tensor([9.0, *[0.1] * 7])
    for smooth in (0.0, 0.5):
        sim, program = quantized(model, x, intact8.Recipe(smooth=smooth))
        told = program.provenance.get("equalized")
        if smooth:
            (place,) = sim.equalized
            assert told == {place.name: pytest.approx(sim.tensors[place.factor].tolist())}
            for factor, changed in ((2.0, True), (1.0, False)):
                sim.tensors[place.factor].fill_(factor)
                assert ("equalized" in provenance(sim)) is changed
        else:
            assert told is None


def test_what_is_computed_from_tensors_once_serves_training_too() -> None:
    """Also where it was first asked for in inference mode."""
    root = nn.Module()
    root.register_buffer("b", torch.ones(3))
    how: Any = SimpleNamespace(sources=["b"], compute=lambda sources: sources["b"] * 2)
    tensors = Tensors(root, {}, {"twice": how})
    with torch.inference_mode():
        twice = tensors["twice"]
    assert tensors["twice"] is twice and not twice.is_inference()
    x = torch.ones(3, requires_grad=True)
    (x * tensors["twice"]).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
    root.get_buffer("b").mul_(3.0)
    assert tensors["twice"].tolist() == [6.0] * 3


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in a module"])
def test_scales_are_no_buffers_that_ranks_copy(wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = intact8.prepare(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), torch.randn(4, 6)).train()
    module = nn.Sequential(nn.Identity(), sim) if wrapped else sim

    class Wrapper:
        process_group = None

    wrapper: Any = Wrapper()
    wrapper.module, wrapper.parameters_to_ignore = module, set()
    monkeypatch.setattr(parallel, "_active_wrapper", lambda: wrapper)
    monkeypatch.setattr(parallel.dist, "get_rank", lambda group: 1)
    monkeypatch.setattr(parallel.dist, "get_world_size", lambda group: 2)
    ranks = parallel.data_parallel_ranks(sim)
    own = {name for name, _ in module.named_buffers() if "quantizers." in name}
    assert ranks.size == 2 and own and wrapper.parameters_to_ignore == own


def test_a_batch_norm_in_training_sees_rounded_inputs_of_a_dynamic_layer() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).train()
    with torch.no_grad():  # every weight is an integer of its grid, so that only inputs are rounded
        model[0].weight.copy_(torch.tensor([127.0, -64, 3, 9, 0, 1]).repeat(4, 1) / 127)
    x = torch.randn(32, 6)
    sim = intact8.prepare(model.eval(), x, replace(recipes.dynamic(), portable=False))
    q, scale = quantize_rows(x, "per_row")
    want = F.batch_norm(F.linear(q * scale, model[0].weight, model[0].bias), None, None, training=True)
    torch.testing.assert_close(sim.train()(x), want)


def test_sums_in_evaluation_are_watched_as_in_training() -> None:
    point = QuantPoint("x", Scheme(), ["x"])
    point.set(1.0, 0)
    terms = [Quantized(torch.tensor([3.0, -5.0]), point), Quantized(torch.tensor([1.0, 2.0]), point)]
    seen: list[list[float]] = []
    for grad in (False, True):
        ratios = [torch.tensor(0.5, requires_grad=grad), torch.tensor(2.0)]
        add_round(terms, ratios, Rounding(-2, 3, lambda v: seen.append(v.tolist())))
    assert seen == 2 * [[3.5, 1.5]]


def test_gradients_of_ratios_do_not_depend_on_the_order_in_memory() -> None:
    point = QuantPoint("x", Scheme(), ["x"])
    point.set(1.0, 0)
    q, found = torch.randint(-9, 9, (2, 3, 4, 5)).float(), []
    for order in (torch.contiguous_format, torch.channels_last):
        ratio = torch.tensor(0.5, requires_grad=True)
        terms = [Quantized(q.to(memory_format=order), point), Quantized(2 * q.to(memory_format=order), point)]
        add_round(terms, [ratio, torch.tensor(0.25)], Rounding(-9, 9)).mul(q).sum().backward()
        found.append(float(ratio.grad))  # type: ignore[arg-type]
    assert found[0] == found[1] != 0


def test_multipliers_that_are_exact_say_so() -> None:
    multipliers = Requantization()
    multipliers.put(a=[1], b=[3], gain_error=0.25)
    multipliers.put(a=[1], b=[3])
    assert float(multipliers.gain_error) == 0


def test_a_product_on_a_grid_that_is_given_tells_how_far_its_factor_is_off() -> None:
    sim, _ = quantized(Product(), torch.rand(64, 6) * 8)
    assert float(sim.requantizations["mul"].gain_error) < 1e-3


class Product(nn.Module):
    """A product on the grid of its factors, which all are joined on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return torch.cat([y * y.flip(1), y], 1)


def test_denominators_fit_the_bias_of_every_channel_though_one_fits_at_once() -> None:
    sim, _ = quantized(nn.Linear(6, 2), torch.randn(64, 6))
    (name,) = sim.weight_points
    with torch.no_grad():
        layer, y = Layer(sim.graph.nodes[name], sim.quantized_graph, fresh=True), sim.points[name]
        found = channel_ratios(layer, np.array([0.01, 5000.0]), 1.0, 1.0, None, y, False, None)
        ratio = found["a"] / found["b"]
        steps = layer.bias_steps(ratio, 1.0) + 0.5 * ratio
    assert (found["b"] <= largest_denominator("affine", steps)).all()


def test_a_learned_scale_is_what_its_parameter_says() -> None:
    sim = intact8.prepare(nn.Sequential(nn.Linear(6, 5)), torch.randn(4, 6), intact8.Recipe(scales="learned"))
    intact8.calibrate(sim, [torch.randn(64, 6)])
    (name,) = sim.weight_points
    point: Any = sim.weight_points[name]
    point.source = "learned"
    with torch.no_grad():
        point.learner.value.mul_(3.0)
        base = Layer(sim.graph.nodes[name], sim.quantized_graph, fresh=False).base
    assert base == pytest.approx(point.learner().detach().double().numpy())
    assert (base > 1.5 * point.scale.double().numpy()).all()


class OneChannel(nn.Module):
    """A layer of one output channel that adds what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x) + x
        return y


def test_a_layer_of_one_channel_adds_in_its_rounding_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 1, 6, 6)
    sim, program = quantized(OneChannel().eval(), x, intact8.Recipe(residual="fused", bias_correction=False))
    assert [op.kind for op in program.ops if len(op.inputs) > 1] == ["conv"]
    assert intact8.verify(program, x, sim=sim).mismatches == 0
    sim.train()(x).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in sim.parameters())


def test_weights_have_the_scales_that_their_observer_gives() -> None:
    torch.manual_seed(0)
    layer, found = nn.Linear(256, 4).eval(), {}
    nn.init.normal_(layer.weight)
    for observer in ("minmax", "mse"):
        weight = Scheme(dtype="int8", symmetric=True, granularity="per_channel", observer=observer, bits=4)
        recipe = intact8.Recipe(weight=weight, portable=False, between_layers="integer")  # nothing is chosen
        sim, _ = quantized(layer, torch.randn(32, 256), recipe)
        (point,) = sim.weight_points.values()
        expected = weight_scales(layer.weight.detach().numpy(), point.lo, point.hi, observer, portable=False)
        found[observer] = point.scale.numpy().ravel()
        assert (found[observer] >= 0.999 * expected).all() and (found[observer] <= 1.02 * expected).all()
    assert (found["mse"] < 0.95 * found["minmax"]).any()
