from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture.graphs import Build
from tests.fusion.test_fuse import networks, residual_block
from torch import nn

import intact8
from intact8.capture.graph import Graph, Node
from intact8.errors import RecipeError
from intact8.fusion.fuse import fuse
from intact8.placement.partition import _incapable
from intact8.placement.place import Placed, place
from intact8.recipe.recipe import Recipe, Scheme


def put(b: Build, *outputs: str, residual: bool = False, **recipe: Any) -> Placed:
    """Fuse, place, and check what holds for every placed graph."""
    return check(fuse(b.done(*outputs), b.tensors, residual=residual, leaky=True).graph, Recipe(**recipe))


def check(graph: Graph, recipe: Recipe) -> Placed:
    before = graph.copy()
    placed = place(graph, recipe)
    assert graph == before, "the fused graph is not changed"
    integer, nodes = placed.point_of, placed.graph.nodes
    seen: set[str] = set()
    for node in nodes.values():
        assert set(node.inputs) <= seen, "execution order"
        seen.add(node.name)
        kinds = {i in integer for i in node.inputs}
        if node.op == "quantize":
            assert kinds == {False} and node.name in integer
        elif node.op == "dequantize":
            assert kinds == {True} and node.name not in integer
        else:
            assert kinds <= {node.name in integer}, f"{node.name} mixes integers and floats"
        if node.moves and node.name in integer:
            assert {integer[i] for i in node.inputs} == {integer[node.name]}, f"{node.name} changes qparams"
        if node.op == "requantize":
            assert integer[node.inputs[0]] != integer[node.name]
    assert not set(placed.graph.outputs) & set(integer)
    assert sorted(t for p in placed.points.values() for t in p.tensors) == sorted(integer)
    for name, point in placed.points.items():
        assert point.name == name and point.observed and set(point.observed) <= set(point.tensors)
        assert {integer[t] for t in point.tensors} == {name}
    quantized = [n.inputs[0] for n in nodes.values() if n.op == "quantize"]
    assert len(quantized) == len(set(quantized)), "one quantize per tensor"
    assert placed.transitions == sum(n.op in ("quantize", "dequantize") for n in nodes.values())
    assert set(placed.weights) == {n for n in integer if nodes[n].op in ("conv", "linear", "scale_shift")}
    return placed


def ops(placed: Placed) -> list[str]:
    return [n.op for n in placed.graph]


@pytest.mark.parametrize("residual", [True, False])
def test_a_residual_network_has_one_transition_at_each_end(residual: bool) -> None:
    b = Build()
    placed = put(b, b.linear("fc", b.mean("gap", residual_block(b))), residual=residual)
    assert placed.transitions == 2 and not placed.float_nodes
    assert set(placed.points) == {"x", "stem", "c1", "c2", "gap", "fc"} | (set() if residual else {"add"})
    assert placed.graph.outputs == ["fc.dequantize"]


def attention(b: Build, mask: bool = False) -> str:
    x = b.input("x", (None, 5, 8))
    q, k, v = (b.linear(name, x) for name in "qkv")
    scores = b.node("qk", "matmul", q, b.node("kt", "permute", k, attrs={"dims": [0, 2, 1]}, shape=(None, 8, 5)),
                    shape=(None, 5, 5))  # fmt: skip
    if mask:
        scores = b.node("masked", "add", scores, b.constant("mask", torch.full((5, 5), -1e4)))
        scores = b.node("split", "reshape", scores, attrs={"shape": [-1, 1, 5, 5]}, shape=(None, 1, 5, 5))
        scores = b.node("whole", "reshape", scores, attrs={"shape": [-1, 5, 5]}, shape=(None, 5, 5))
    p = b.node("p", "softmax", scores, attrs={"axis": 2})
    return b.linear("out", b.node("pv", "matmul", p, v, shape=(None, 5, 8)))


@pytest.mark.parametrize(("kept", "count"), [("integer", 2), ("float", 0)])
def test_products_of_attention_are_integers_or_part_of_the_island(kept: str, count: int) -> None:
    b = Build()
    placed = put(b, attention(b), attention=kept)
    assert len({"qk", "pv"} & set(placed.point_of)) == count
    assert set(placed.weights) == {"q", "k", "v", "out"}
    # x, the output; scores and probabilities, or q, k, v and the result of the island
    assert placed.transitions == 2 + (2 if kept == "integer" else 4)


def test_an_override_brings_back_what_the_recipe_keeps_float() -> None:
    b = Build()
    placed = put(b, attention(b), attention="float", overrides={"qk": {"quantize": True}})
    assert "qk" in placed.point_of and "pv" not in placed.point_of


def test_a_mask_does_not_widen_the_range_of_scores() -> None:
    b = Build()
    placed = put(b, attention(b, mask=True))
    assert {"qk", "pv"} <= set(placed.point_of) and not {"masked", "split", "whole"} & set(placed.point_of)
    assert placed.transitions == 4


def test_moves_share_their_input() -> None:
    b = Build()
    drop = b.node("d", "dropout", b.pool("p", b.conv("c", b.input())), attrs={"p": 0.1, "feature": False})
    point = put(b, b.conv("c2", drop)).points["c"]
    assert point.tensors == ["c", "p", "d"] and point.observed == ["c"]


def test_a_pad_with_a_value_is_observed() -> None:
    b = Build()
    attrs = {"pads": [[0, 0]] * 4, "value": -3.0}
    placed = put(b, b.conv("c2", b.node("pad", "pad", b.conv("c", b.input()), attrs=attrs)))
    assert placed.points["c"].observed == ["c", "pad"]


def test_upsampling_shares_unless_bicubic() -> None:
    for mode, integer in (("nearest", True), ("nearest-exact", True), ("bilinear", True), ("bicubic", False)):
        b = Build()
        attrs = {"size": [8, 8], "mode": mode, "align_corners": False}
        placed = put(b, b.conv("c2", b.node("up", "upsample", b.conv("c", b.input()), attrs=attrs)))
        assert ("up" in placed.point_of) is integer
        assert placed.float_nodes == ({} if integer else {"up": "no integer form yet: bicubic upsampling"})
        assert placed.transitions == (2 if integer else 4)


def test_a_dense_block_is_one_point() -> None:
    b = Build()
    x = b.conv("c0", b.input())
    first = b.cat("cat1", x, b.conv("c1", x))
    second = b.cat("cat2", first, b.conv("c2", b.pool("p", x)))
    placed = put(b, b.conv("end", second))
    assert placed.points["c0"].tensors == ["c0", "c1", "cat1", "p", "c2", "cat2"]
    assert placed.points["c0"].observed == ["c0", "c1", "c2"]


def test_what_is_joined_before_float_operations_alone_keeps_grids_of_its_own() -> None:
    b = Build()
    x = b.conv("c0", b.input())
    boxes, scores = b.pool("boxes", x), b.conv("scores", x)
    placed = put(b, b.cat("cat", boxes, scores))
    assert {point.name: point.tensors for point in placed.points.values()} == {
        "x": ["x.quantize"],
        "c0": ["c0", "boxes"],
        "scores": ["scores"],
    }
    assert placed.float_nodes == {}, "a move is no entry"


def test_plain_w8a8_joins_floats_and_every_layer_reads_a_grid_of_its_own() -> None:
    b = Build()
    x = b.conv("c0", b.input())
    joined = b.cat("cat", x, b.conv("c1", x))
    twice = b.cat("twice", b.conv("c2", joined), "c2")  # one grid does for one tensor
    placed = place(
        fuse(b.done(b.conv("c3", twice)), b.tensors, residual=False, leaky=True).graph, Recipe(between_layers="float")
    )
    assert [p.tensors for p in placed.points.values()] == [
        ["x.quantize"],
        ["c0.quantize"],
        ["cat.quantize"],
        ["c2", "twice"],
    ]
    assert placed.float_nodes == {"cat": "the recipe keeps it float"}
    assert placed.dequantized == {"c0", "c1", "c3"}


def test_states_of_several_layers_are_joined_without_one_grid_for_all() -> None:
    b = Build()
    first = [b.conv("c0", b.input()), b.conv("c1", "c0")]
    second = [b.conv("c2", b.cat("steps", *first)), b.conv("c3", "c2")]
    placed = put(b, b.cat("results", *second), b.cat("states", first[1], second[1]))
    assert placed.points["c0"].tensors == ["c0", "c1", "steps"]
    assert [placed.points[name].tensors for name in second] == [["c2"], ["c3"]]
    assert not {"results", "states"} & placed.point_of.keys()


def test_fixed_inputs_are_requantized_before_a_cat() -> None:
    b = Build()
    x = b.input()
    placed = put(
        b, b.conv("c2", b.cat("cat", b.pool("p", x), b.conv("c", x))), inputs={"x": Scheme(fixed=(1 / 255, 0))}
    )
    assert placed.graph.nodes["cat"].inputs == ["p.requantize", "c"]
    assert placed.points["x"].tensors == ["x.quantize", "p"] and placed.points["x"].scheme.fixed == (1 / 255, 0)
    assert placed.points["c"].tensors == ["c", "p.requantize", "cat"] and placed.points["c"].scheme.fixed is None
    assert placed.points["c"].observed == ["c", "p.requantize"]


def test_a_cat_of_one_fixed_input_twice_has_a_point_of_its_own() -> None:
    b = Build()
    x = b.input()
    placed = put(b, b.conv("c", b.cat("cat", x, x)), inputs={"x": Scheme(fixed=(1 / 255, 0))})
    assert set(placed.points) == {"x", "cat", "c"}


def test_two_inputs_with_the_same_fixed_scheme_share() -> None:
    b = Build()
    cat = b.cat("cat", b.input("x"), b.input("y"))
    scheme = Scheme(fixed=(1 / 255, 0))
    recipe = {"inputs": {"*": scheme}, "overrides": {"cat": {"activation": scheme}}}
    assert "requantize" not in ops(put(b, b.conv("c", cat), **recipe))


def test_schemes_named_on_both_sides_of_a_cat_stay_apart() -> None:
    b = Build()
    x = b.input()
    cat = b.conv("end", b.cat("cat", b.conv("a", x), b.conv("b", x)))
    named = {"a": {"activation": {"observer": "minmax"}}}
    assert put(b, cat, overrides=named).points["a"].scheme.observer == "minmax"
    placed = put(b, cat, overrides={**named, "b": {"activation": {"observer": "mse"}}})
    assert placed.graph.nodes["cat"].inputs == ["a", "b.requantize"]
    assert placed.points["b"].scheme.observer == "mse"


def test_an_island_has_one_transition_each_way_for_all_readers() -> None:
    b = Build()
    c = b.conv("c", b.input())
    s = b.softmax("s", c)
    outs = [b.conv("c1", s), b.conv("c2", s), b.softmax("t", c), c]
    placed = put(b, *outs)
    names = [n for n in placed.graph.nodes if n.endswith("quantize")]
    assert names == ["x.quantize", "c.dequantize", "s.quantize", "c1.dequantize", "c2.dequantize"]
    assert placed.graph.outputs == ["c1.dequantize", "c2.dequantize", "t", "c.dequantize"]
    assert placed.point_of["s.quantize"] == "s"
    assert placed.float_nodes["s"] == 'softmax is float in this recipe (nonlinear = "float")'


def test_moves_and_functions_between_islands_stay_float() -> None:
    b = Build()
    s = b.softmax("s", b.conv("c", b.input()))
    y = b.unary("f", b.pool("p", s), "sigmoid")
    z = b.node("add", "add", b.node("m", "mul", y, s), y)
    placed = put(b, b.softmax("t", z))
    assert placed.transitions == 2 and not {"p", "f", "m", "add"} & set(placed.point_of)
    assert set(placed.float_nodes) == {"s", "f", "m", "add", "t"}


def test_a_function_between_island_and_conv_stays_on_the_float_side() -> None:
    b = Build()
    placed = put(b, b.conv("c2", b.unary("f", b.softmax("s", b.conv("c", b.input())), "sigmoid")))
    assert "f.quantize" in placed.point_of and "s.quantize" not in placed.point_of


def test_an_add_of_both_kinds_follows_what_comes_after() -> None:
    for after, integer in ((Build.conv, True), (Build.softmax, False)):
        b = Build()
        c = b.conv("c", b.input())
        add = b.node("add", "add", c, b.softmax("s", c))
        placed = put(b, after(b, "end", add))
        assert ("add" in placed.point_of) is integer


def test_a_network_of_light_operations_only() -> None:
    b = Build()
    placed = put(b, b.relu("r", b.input()), b.input("unused"))
    assert ops(placed) == ["input", "quantize", "table", "input", "dequantize"]


@pytest.mark.parametrize("kind", ["move", "island"])
def test_an_input_no_integers_need_is_not_quantized(kind: str) -> None:
    b = Build()
    x = b.input()
    placed = put(b, b.pool("p", x) if kind == "move" else b.softmax("s", b.relu("r", x)))
    assert placed.transitions == 0


def test_index_inputs_have_no_points() -> None:
    b = Build()
    ids = b.input("ids", (None, 5), dtype="int64")
    flat = b.node("flat", "reshape", ids, shape=(None, 5), dtype="int64", attrs={"shape": [-1, 5]})
    emb = b.node("emb", "embedding", flat, shape=(None, 5, 4), params={"weight": "emb.weight"})
    placed = put(b, b.linear("fc", emb, shape=(None, 5, 2)))
    assert placed.point_of == {"emb.quantize": "emb", "fc": "fc"}
    assert placed.float_nodes == {"emb": 'embedding is float in this recipe (nonlinear = "float")'}


def test_a_mean_over_the_batch_is_float() -> None:
    b = Build()
    placed = put(b, b.mean("m", b.conv("c", b.input()), dims=(0, 2)))
    assert placed.float_nodes == {"m": "no integer form yet: a mean over the batch"}


def test_constants_are_integers_with_their_own_point() -> None:
    b = Build()
    c = b.conv("c", b.input())
    placed = put(b, b.node("add", "add", c, b.constant("pos", torch.randn(1, 4, 8, 8))))
    point = placed.points["pos"]
    assert point.tensors == ["pos"] and point.constant and point.scheme.observer == "minmax"
    assert placed.transitions == 2


def test_a_constant_read_by_both_sides_is_stored_twice() -> None:
    b = Build()
    k = b.constant("k", torch.randn(1, 4, 8, 8))
    c = b.conv("c", b.input())
    placed = put(b, b.node("add", "add", c, k), b.node("mask", "div", b.softmax("s", c), k))
    assert placed.graph.nodes["k.quantize"].op == "constant" and placed.graph.nodes["k.quantize"].params == {
        "value": "k"
    }
    assert placed.graph.nodes["mask"].inputs == ["s", "k"] and placed.point_of["k.quantize"] == "k"


def test_an_expanded_constant_joins_a_cat() -> None:
    b = Build()
    token = b.node(
        "expand",
        "expand",
        b.constant("cls", torch.randn(1, 4, 8, 8)),
        shape=(None, 4, 8, 8),
        attrs={"shape": [-1, 4, 8, 8]},
    )
    placed = put(b, b.conv("c2", b.cat("cat", token, b.conv("c", b.input()))))
    assert placed.points["c"].tensors == ["cls", "expand", "c", "cat"] and placed.points["c"].observed == ["cls", "c"]
    assert placed.points["c"].scheme == Recipe().activation


def test_recipe_none_keeps_modules_float() -> None:
    b = Build()
    x = b.relu("r", b.conv("net.a", b.input()))
    x = b.pool("net.head.pool", b.conv("net.head.b", x))
    placed = put(b, b.conv("net.c", x), overrides={"net.head": None})
    assert placed.float_nodes == dict.fromkeys(["net.head.b", "net.head.pool"], "the recipe keeps it float")
    assert "net.head.pool.quantize" in placed.point_of and placed.transitions == 4


@pytest.mark.parametrize(
    ("pattern", "hit"),
    [
        ("c1", {"c1"}),
        ("c?", {"c1", "c2"}),
        ("type:Conv2d", {"c1", "c2"}),
        ("type:Lin*", {"fc"}),
        ("bn", {"c1"}),
        ("*", {"c1", "c2", "fc"}),
    ],
)
def test_patterns(pattern: str, hit: set[str]) -> None:
    b = Build()
    x = b.conv("c2", b.bn("bn", b.conv("c1", b.input())))
    placed = put(b, b.linear("fc", b.mean("m", x)), overrides={pattern: {"weight": {"bits": 4}}})
    assert {n for n, w in placed.weights.items() if w.bits == 4} == hit


def test_later_overrides_win() -> None:
    b = Build()
    y = b.conv("c2", b.conv("c1", b.input()))
    rules = {
        "c*": None,
        "c2": {"quantize": True, "activation": {"bits": 4}},
        "type:Conv2d": {"activation": {"bits": 5}},
    }
    placed = put(b, y, overrides=rules)
    assert set(placed.float_nodes) == {"c1"} and placed.points["c2"].scheme.bits == 5


def test_input_schemes_by_name_position_and_reader() -> None:
    b = Build()
    y = b.node("add", "add", b.conv("c1", b.input()), b.conv("c2", b.input("z")))
    scheme = Scheme(bits=6)
    for key in ("z", 1, "[z]"):
        placed = put(b, y, inputs={key: scheme})
        assert [placed.points[n].scheme.bits for n in ("x", "z")] == [8, 6]
    placed = put(b, y, overrides={"c1": {"activation": {"bits": 5}}, "add": {"input": {"bits": 4}}})
    assert [placed.points[n].scheme.bits for n in ("c1", "c2")] == [5, 4], "the maker has the last word"


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"overrides": {"conv_1": None}}, r"matches no operation.*did you mean conv1"),
        ({"overrides": {"type:Conv3d": None}}, r"did you mean type:Conv2d"),
        ({"overrides": {"pool": {"activation": {"bits": 4}}}}, r"has no effect.*moves values only"),
        ({"overrides": {"pool": {"weight": {"bits": 4}}}}, r"has no effect"),
        ({"overrides": {"x": None}}, r"no effect.*an input is float.*name what reads it: conv1"),
        ({"overrides": {"conv1": {"weight": {"bits": 12}}}}, r"overrides\['conv1'\]: 12 bits"),
        ({"overrides": {"conv1": {"weight": {"dtype": "uint8"}}}}, r"overrides\['conv1'\]: weights are"),
        ({"overrides": {"conv1": {"activation": {"granularity": "per_channel"}}}}, r"one scale per tensor"),
        ({"overrides": {"conv1": None, "conv?": {"weight": {"bits": 4}}}}, r"has no effect"),
        ({"inputs": {"y": Scheme()}}, r"no such input"),
        ({"inputs": {"ids": Scheme()}}, r"holds int64"),
    ],
    ids=str,
)
def test_recipes_that_do_not_fit(recipe: dict[str, Any], message: str) -> None:
    b = Build()
    b.input("ids", dtype="int64")
    with pytest.raises(RecipeError, match=message):
        put(b, b.pool("pool", b.conv("conv1", b.input())), **recipe)


@settings(max_examples=80, deadline=None)
@given(
    network=networks(),
    residual=st.booleans(),
    float_nodes=st.sets(st.integers(0, 13), max_size=4),
    cats=st.integers(0, 2),
    fixed=st.booleans(),
)
def test_any_network_is_placed_consistently(
    network: tuple[Build, list[str]], residual: bool, float_nodes: set[int], cats: int, fixed: bool
) -> None:
    b, outputs = network
    made = [n for n, node in b.graph.nodes.items() if node.op != "constant"]
    for i in range(cats):
        outputs.append(b.cat(f"cat{i}", made[i % len(made)], made[-1], *([outputs[-1]] if i else [])))
    graph = fuse(b.done(*outputs), b.tensors, residual=residual, leaky=True).graph
    overrides = {f"n{i}": None for i in float_nodes if any(f"n{i}" in (n.name, *n.source) for n in graph)}
    inputs = {"x": Scheme(fixed=(0.1, 3))} if fixed else {}
    check(graph, Recipe(overrides=overrides, inputs=inputs))


class ScaledStream(nn.Module):
    """A float residual stream whose first row a linear layer replaces, scaled by a constant before a float norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.gamma = nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return self.last(self.norm(x + self.gamma * torch.cat([self.fc(x[:, :1]), x[:, 1:]], 1)))


def test_a_stream_in_float_is_not_rounded_to_be_joined_and_scaled() -> None:
    sim = intact8.prepare(ScaledStream().eval(), torch.randn(2, 5, 8))
    on_grids = {sim.graph.nodes[name].op for name in sim.placed.point_of}
    assert on_grids == {"quantize", "linear"}


def test_channels_count_where_they_are_known_whatever_else_changes() -> None:
    for shape, known in (((None, 5), True), ((None, 5, "t"), True), ((None, "t"), False), ((None, "t", 5), False)):
        nodes = [Node("x", "input", shape=shape), Node("s", "scale_shift", ["x"], shape=shape)]
        reason = _incapable(nodes[1], Graph({n.name: n for n in nodes}), True)
        assert (reason is None) is known


def test_a_glob_of_inputs_passes_over_those_that_are_no_numbers() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.fc = nn.Embedding(5, 4), nn.Linear(4, 4)

        def forward(self, x: Any, index: Any) -> Any:
            return self.rows(index) + self.fc(x)

    example = (torch.randn(2, 4), torch.tensor([0, 3]))
    scheme = intact8.Scheme(fixed=(0.05, 128))
    sim = intact8.prepare(Masked(), example, intact8.Recipe(inputs={"*": scheme}))
    assert [p.scheme.fixed for p in sim.points.values() if p.scheme.fixed] == [(0.05, 128)]
    with pytest.raises(RecipeError, match="only float32 inputs"):
        intact8.prepare(Masked(), example, intact8.Recipe(inputs={"index": scheme}))
    rows = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4))
    assert intact8.quantize(rows, example[1], intact8.Recipe(inputs={"*": scheme})).inputs


class Denormalized(nn.Module):
    """A forecast scaled back by what was measured in the input: light arithmetic behind a layer and a float island."""

    def __init__(self, layer_last: bool = False) -> None:
        super().__init__()
        self.fc, self.last = nn.Linear(24, 6), nn.Linear(6, 6) if layer_last else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, deviation = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return self.last(self.fc((x - mean) / deviation) * deviation + mean)


def test_light_arithmetic_behind_floats_stays_float_up_to_the_results() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 3, 24).cumsum(-1) + 20 * torch.randn(32, 3, 1)
    model = Denormalized().eval()
    sim = intact8.prepare(model, x)
    assert [sim.graph.nodes[name].op for name in sim.placed.point_of] == ["quantize", "linear"]
    intact8.calibrate(sim, x)
    with torch.no_grad():
        wanted, got = model(x), sim(x)
    # Rounding the mean to a grid of its own costs a step of 0.4.
    assert (got - wanted).abs().max() < 0.01 * wanted.abs().max()


def test_light_arithmetic_before_another_layer_is_integer() -> None:
    sim = intact8.prepare(Denormalized(layer_last=True).eval(), torch.randn(4, 3, 24))
    assert {"mul", "add"} <= {sim.graph.nodes[name].op for name in sim.placed.point_of}


class Positions(nn.Module):
    """A residual stream of a class token and patches that a positional convolution reads besides float norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.mlp, self.conv = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Conv1d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        x = x + self.mlp(self.norm(x))
        patches = x[:, 1:].mT
        x = torch.cat([x[:, :1], (patches + self.conv(patches)).mT], 1)
        return self.fc(self.norm(x + self.mlp(self.norm(x))))


def test_a_stream_that_a_convolution_reads_as_well_stays_float() -> None:
    sim = intact8.prepare(Positions().eval(), torch.randn(2, 5, 8))
    on_grids = {sim.graph.nodes[name].op for name in sim.placed.point_of}
    assert "conv" in on_grids and "add" not in on_grids and "cat" not in on_grids


def test_what_is_cast_from_an_input_is_not_rounded_before() -> None:
    class Net(torch.nn.Module):
        """An identifier and three numbers in one tensor of floats."""

        def __init__(self) -> None:
            super().__init__()
            self.rows, self.fc = torch.nn.Embedding(7, 4), torch.nn.Linear(7, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.fc(torch.cat([self.rows(x[:, 0].long()), x[:, 1:]], 1))
            return y

    x = torch.cat([torch.randint(0, 7, (64, 1)).float(), torch.randn(64, 3)], 1)
    sim = intact8.prepare(Net().eval(), x)
    nodes = {node.op: node for node in sim.graph}
    source = sim.graph.origin(nodes["cast"].inputs[0])
    assert source.op == "input" and not any("dequantize" in i for i in nodes["cast"].inputs)
    assert any(node.op == "slice" and node.inputs == ["x.quantize"] for node in sim.graph)
