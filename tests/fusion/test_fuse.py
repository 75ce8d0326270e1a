from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture.graphs import Build
from tests.fusion.evaluate import evaluate

from intact8.capture.graph import Graph
from intact8.fusion.fuse import Fused, fuse

LOGGED = {"relu", "clamp", "leaky_relu", "prelu", "unary", "softmax", "log_softmax", "batch_norm"}
"""Every activation and every batch norm is accounted for in the log."""

RELU = {"kind": "clamp", "min": 0.0, "max": None}


def run(b: Build, *outputs: str, residual: bool = False, leaky: bool = False) -> Fused:
    """Fuse, and check what holds for every graph: same values, every node in one group, captured graph untouched."""
    graph = b.done(*outputs)
    before = graph.copy()
    fused = fuse(graph, b.tensors, residual=residual, leaky=leaky)
    assert graph == before
    check(graph, fused, b)
    return fused


def check(graph: Graph, fused: Fused, b: Build) -> None:
    torch.manual_seed(0)
    shapes = {name: [3 if s is None else s for s in graph.nodes[name].shape] for name in graph.inputs}
    inputs = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    tensors = {**b.tensors, **fused.constants}
    for want, got in zip(evaluate(graph, b.tensors, inputs), evaluate(fused.graph, tensors, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    groups = [part for node in fused.graph for part in (node.source or [node.name])]
    assert len(groups) == len(set(groups))
    lost = set(graph.nodes) - set(groups)
    assert all(graph.nodes[name].op == "constant" for name in lost)
    seen: set[str] = set()
    for node in fused.graph:
        assert set(node.inputs) <= seen, "execution order"
        seen.add(node.name)
    logged = [note.node for note in fused.log]
    assert len(logged) == len(set(logged))
    assert {n.name for n in graph if n.op in LOGGED} <= set(logged)


def test_conv_bn_relu_is_one_node() -> None:
    b = Build()
    fused = run(b, b.relu("r", b.bn("bn", b.conv("c", b.input()))))
    node = fused.graph.nodes["c"]
    assert list(fused.graph.nodes) == ["x", "c"] and fused.graph.outputs == ["c"]
    assert node.source == ["c", "bn", "r"] and node.attrs["act"] == RELU
    assert node.attrs["bn"] == {"eps": 1e-5, "momentum": 0.1} and node.params["bn.running_var"] == "bn.running_var"
    assert fused.log == (("bn", "fused into c"), ("r", "fused into c"))


@pytest.mark.parametrize("watched", ["second user", "output"])
def test_conv_read_by_others_keeps_its_values(watched: str) -> None:
    b = Build()
    c = b.conv("c", b.input())
    bn = b.bn("bn", c)
    extra = b.softmax("s", c) if watched == "second user" else c
    fused = run(b, b.relu("r", bn), extra)
    assert "bn" not in fused.graph.nodes["c"].attrs
    assert fused.graph.nodes["bn"].op == "scale_shift" and fused.graph.nodes["bn"].attrs["act"] == RELU


def test_bn_after_activation_stands_alone() -> None:
    b = Build()
    fused = run(b, b.bn("bn", b.relu("r", b.conv("c", b.input()))))
    assert fused.graph.nodes["bn"].op == "scale_shift" and fused.graph.nodes["c"].attrs["act"] == RELU


def test_bn_on_tokens_is_not_folded_into_a_linear_map() -> None:
    b = Build()
    b.input(shape=(None, 4, 4))
    fused = run(b, b.bn("bn", b.linear("fc", "x", shape=(None, 4, 4))))
    assert fused.graph.nodes["bn"].op == "scale_shift"


def test_bn_in_float64_is_left_alone() -> None:
    b = Build()
    b.bn("bn", b.input())
    b.graph.nodes["bn"].dtype = "float64"
    fused = fuse(b.done("bn"), b.tensors, residual=False, leaky=False)
    assert fused.graph.nodes["bn"].op == "batch_norm" and fused.log[0].decision.startswith("float: ")


def test_dropout_is_no_identity() -> None:
    b = Build()
    drop = b.node("d", "dropout", b.conv("c", b.input()), attrs={"p": 0.5, "feature": False})
    fused = run(b, b.relu("r", b.bn("bn", drop)))
    assert [n.op for n in fused.graph] == ["input", "conv", "dropout", "scale_shift"]


def residual_block(b: Build) -> str:
    x = b.relu("stem_relu", b.conv("stem", b.input()))
    y = b.bn("bn2", b.conv("c2", b.relu("r1", b.bn("bn1", b.conv("c1", x)))))
    return b.relu("out", b.node("add", "add", y, x))


def test_residual_goes_into_the_conv() -> None:
    b = Build()
    fused = run(b, residual_block(b), residual=True)
    node = fused.graph.nodes["c2"]
    assert node.inputs == ["c1", "stem"] and node.source == ["c2", "bn2", "add", "out"] and node.attrs["act"] == RELU


def test_residual_stays_apart_when_asked() -> None:
    b = Build()
    fused = run(b, residual_block(b), residual=False)
    assert fused.graph.nodes["add"].attrs["act"] == RELU and len(fused.graph.nodes["c2"].inputs) == 1


def test_of_two_convs_the_later_takes_the_residual() -> None:
    b = Build()
    x = b.input()
    main, short = b.conv("main", x), b.bn("short_bn", b.conv("short", x))
    fused = run(b, b.node("add", "add", main, short), residual=True)
    assert fused.graph.nodes["short"].inputs == ["x", "main"] and fused.graph.nodes["main"].inputs == ["x"]


def test_a_conv_waits_for_a_shortcut_computed_after_it() -> None:
    b = Build()
    x = b.input()
    c = b.conv("c", x)
    fused = run(b, b.node("add", "add", c, b.pool("p", x)), residual=True)
    assert list(fused.graph.nodes) == ["x", "p", "c"]


@pytest.mark.parametrize("case", ["doubled", "broadcast", "second user", "activation between", "constant"])
def test_no_residual_where_it_is_wrong(case: str) -> None:
    b = Build()
    x = b.input()
    c = b.conv("c", x)
    outputs = []
    other = x
    if case == "doubled":
        other = c
    elif case == "broadcast":
        other = b.input("row", (None, 4, 1, 1))
    elif case == "second user":
        outputs.append(b.softmax("s", c))
    elif case == "activation between":
        c = b.relu("r", c)
    else:
        other = b.constant("k", torch.randn(1, 4, 8, 8))
    fused = run(b, b.node("add", "add", c, other, shape=(None, 4, 8, 8)), *outputs, residual=True)
    assert "add" in fused.graph.nodes and len(fused.graph.nodes["c"].inputs) == 1


def attention_scores(b: Build, before: float | None, after: float | None) -> str:
    q, k = b.input("q", (None, 5, 7)), b.input("k", (None, 7, 5))
    if before is not None:
        q = b.node("scaled", "affine_scalar", q, attrs={"mul": before, "add": 0})
    y = b.node("mm", "matmul", q, k, shape=(None, 5, 5))
    return y if after is None else b.node("divided", "affine_scalar", y, attrs={"mul": after, "add": 0})


@pytest.mark.parametrize(("before", "after"), [(0.25, None), (None, 0.125), (0.5, 3.0)], ids=str)
def test_a_product_of_activations_takes_factors(before: float | None, after: float | None) -> None:
    b = Build()
    fused = run(b, attention_scores(b, before, after))
    assert list(fused.graph.nodes) == ["q", "k", "mm"]
    assert fused.graph.nodes["mm"].attrs == {"mul": (before or 1.0) * (after or 1.0)}


def test_a_negative_factor_stays_apart() -> None:
    b = Build()
    fused = run(b, attention_scores(b, None, -1.0))
    assert [n.op for n in fused.graph] == ["input", "input", "matmul", "table"]


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
def test_arithmetic_takes_a_clamp(op: str) -> None:
    b = Build()
    fused = run(b, b.clamp("r6", b.node("y", op, b.input(), b.input("z")), 0.0, 6.0))
    assert fused.graph.nodes["y"].attrs["act"] == {"kind": "clamp", "min": 0.0, "max": 6.0}


def test_mean_takes_a_clamp() -> None:
    b = Build()
    assert "act" in run(b, b.relu("r", b.mean("m", b.input()))).graph.nodes["m"].attrs


@pytest.mark.parametrize(
    ("first", "second", "combined"),
    [
        ((0.0, None), (None, 6.0), (0.0, 6.0)),
        ((-1.0, 1.0), (0.0, None), (0.0, 1.0)),
        ((2.0, 3.0), (0.0, 1.0), (1.0, 1.0)),
        ((0.0, 1.0), (2.0, 3.0), (2.0, 2.0)),
        ((3.0, 1.0), (0.0, None), (1.0, 1.0)),
    ],
    ids=["relu6", "hardtanh-relu", "above", "below", "crossed"],
)
def test_clamps_combine(first: tuple, second: tuple, combined: tuple) -> None:
    b = Build()
    fused = run(b, b.clamp("two", b.clamp("one", b.conv("c", b.input()), *first), *second))
    assert fused.graph.nodes["c"].attrs["act"] == {"kind": "clamp", "min": combined[0], "max": combined[1]}


def test_relu_after_relu_vanishes_even_with_other_readers() -> None:
    b = Build()
    once = b.relu("once", b.conv("c", b.input()))
    fused = run(b, once, b.leaky("again", b.relu("twice", once)))
    assert list(fused.graph.nodes) == ["x", "c"] and fused.graph.outputs == ["c", "c"]
    assert fused.graph.nodes["c"].source == ["c", "once", "twice", "again"]


@pytest.mark.parametrize("leaky", [True, False])
def test_leaky_relu(leaky: bool) -> None:
    b = Build()
    fused = run(b, b.leaky("l", b.bn("bn", b.conv("c", b.input()))), leaky=leaky)
    if leaky:
        assert fused.graph.nodes["c"].attrs["act"] == {"kind": "leaky_relu", "slope": 0.1}
    else:
        assert fused.graph.nodes["l"].attrs["chain"] == [{"op": "leaky_relu", "attrs": {"slope": 0.1}}]


def test_leaky_relu_after_a_residual_is_a_table() -> None:
    b = Build()
    x = b.input()
    fused = run(b, b.leaky("l", b.node("add", "add", b.conv("c", x), x)), residual=True, leaky=True)
    assert fused.graph.nodes["l"].op == "table" and fused.graph.nodes["c"].source == ["c", "add"]


@pytest.mark.parametrize("slopes", [1, 4])
def test_prelu_fuses_with_its_weight(slopes: int) -> None:
    b = Build()
    fused = run(b, b.prelu("p", b.conv("c", b.input()), slopes), leaky=True)
    assert (
        fused.graph.nodes["c"].attrs["act"] == {"kind": "prelu"}
        and fused.graph.nodes["c"].params["act.weight"] == "p.weight"
    )


def test_prelu_per_channel_alone() -> None:
    b = Build()
    fused = run(b, b.prelu("p", b.node("y", "add", b.input(), b.input("z")), 4), leaky=True)
    assert fused.graph.nodes["p"].op == "scale_shift" and fused.graph.nodes["p"].attrs["act"] == {"kind": "prelu"}


def test_prelu_per_channel_without_fusion_stays_float_and_says_so() -> None:
    b = Build()
    fused = run(b, b.prelu("p", b.conv("c", b.input()), 4), leaky=False)
    assert fused.graph.nodes["p"].op == "prelu" and fused.log[0].decision.startswith("float: ")


def test_functions_in_a_row_are_one_table() -> None:
    b = Build()
    x = b.affine("plus", b.conv("c", b.input()), 1.0, 3.0)
    y = b.prelu("p", b.unary("sig", b.affine("sixth", b.clamp("r6", x, 0.0, 6.0), 1 / 6, 0.0), "sigmoid"), 1)
    fused = run(b, y)
    table = fused.graph.nodes["p"]
    assert [s["op"] for s in table.attrs["chain"]] == ["affine_scalar", "clamp", "affine_scalar", "unary", "prelu"]
    assert table.inputs == ["c"] and table.params == {"chain.4.weight": "p.weight"}
    assert table.source == ["plus", "r6", "sixth", "sig", "p"]


def test_a_table_starts_where_others_read() -> None:
    b = Build()
    sig = b.unary("sig", b.conv("c", b.input()), "sigmoid")
    fused = run(b, b.unary("tanh", sig, "tanh"), sig)
    assert len(fused.graph.nodes["tanh"].attrs["chain"]) == 1


def test_arithmetic_on_indices_is_no_table() -> None:
    b = Build()
    b.affine("next", b.input(dtype="int64"), 1.0, 1.0)
    b.graph.nodes["next"].dtype = "int64"
    fused = fuse(b.done("next"), {}, residual=False, leaky=False)
    assert fused.graph.nodes["next"].op == "affine_scalar"


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("op", "role"), [("mul", "weight"), ("add", "bias")])
def test_layer_scale_refers_to_the_parameter(op: str, role: str, swapped: bool) -> None:
    b = Build()
    pair = [b.input(), b.constant("gamma", torch.rand(4, 1, 1).requires_grad_())]
    fused = run(b, b.node("y", op, *(reversed(pair) if swapped else pair), shape=(None, 4, 8, 8)))
    node = fused.graph.nodes["y"]
    assert node.op == "scale_shift" and node.params == {role: "gamma"} and "gamma" not in fused.graph.nodes


def test_image_normalization_is_one_scale_shift() -> None:
    b = Build()
    x = b.node("sub", "sub", b.input(), b.constant("mean", torch.rand(1, 4, 1, 1)))
    fused = run(b, b.conv("c", b.node("div", "div", x, b.constant("std", torch.rand(4, 1, 1) + 0.1))))
    assert [n.op for n in fused.graph] == ["input", "scale_shift", "conv"]
    assert set(fused.constants) == set(fused.graph.nodes["sub"].params.values())


def test_a_trained_divisor_stays_a_division() -> None:
    b = Build()
    fused = run(b, b.node("y", "div", b.input(), b.constant("t", (torch.rand(4, 1, 1) + 1).requires_grad_())))
    assert fused.graph.nodes["y"].op == "div" and not fused.constants


@pytest.mark.parametrize("shape", [(8,), (1, 4, 8, 1), (2, 1, 4, 1, 1)], ids=str)
def test_other_constants_stay_operands(shape: tuple) -> None:
    b = Build()
    graph_shape = (None, 4, 8, 8) if len(shape) < 5 else (2, None, 4, 8, 8)
    b.node("y", "mul", b.input(), b.constant("k", torch.rand(shape)), shape=graph_shape)
    fused = fuse(b.done("y"), b.tensors, residual=False, leaky=False)
    assert fused.graph.nodes["y"].op == "mul" and "k" in fused.graph.nodes


def test_a_conv_called_twice_is_two_nodes() -> None:
    b = Build()
    first = b.relu("r1", b.conv("c", b.input()))
    b.node("c_1", "conv", first, attrs=b.graph.nodes["c"].attrs, params=b.graph.nodes["c"].params)
    fused = run(b, b.relu("r2", b.bn("bn", "c_1")))
    assert "bn" not in fused.graph.nodes["c"].attrs and "bn" in fused.graph.nodes["c_1"].attrs


STEPS = ("conv", "bn", "relu", "relu6", "leaky", "prelu", "sigmoid", "affine", "add", "mul", "scale", "dropout", "pool")


@st.composite
def networks(draw: st.DrawFn) -> tuple[Build, list[str]]:
    b = Build()
    made = [b.input()]
    for i in range(draw(st.integers(1, 14))):
        step, x = draw(st.sampled_from(STEPS)), made[-1 - draw(st.integers(0, min(2, len(made) - 1)))]
        other = draw(st.sampled_from(made))
        name = f"n{i}"
        build = {
            "conv": lambda n, x: b.conv(n, x),
            "bn": b.bn,
            "relu": b.relu,
            "relu6": lambda n, x: b.clamp(n, x, 0.0, 6.0),
            "leaky": b.leaky,
            "prelu": lambda n, x: b.prelu(n, x, 4),
            "sigmoid": lambda n, x: b.unary(n, x, "sigmoid"),
            "affine": lambda n, x: b.affine(n, x, 0.5, 1.0),
            "add": lambda n, x, other=other: b.node(n, "add", x, other),
            "mul": lambda n, x, other=other: b.node(n, "mul", x, other),
            "scale": lambda n, x: b.node(n, "mul", x, b.constant(f"{n}.k", torch.rand(4, 1, 1))),
            "dropout": lambda n, x: b.node(n, "dropout", x, attrs={"p": 0.1, "feature": False}),
            "pool": b.pool,
        }[step]
        made.append(build(name, x))
    return b, [made[-1], *draw(st.lists(st.sampled_from(made), max_size=1))]


@settings(max_examples=150, deadline=None)
@given(network=networks(), residual=st.booleans(), leaky=st.booleans())
def test_any_network_keeps_its_values(network: tuple[Build, list[str]], residual: bool, leaky: bool) -> None:
    b, outputs = network
    run(b, *outputs, residual=residual, leaky=leaky)
