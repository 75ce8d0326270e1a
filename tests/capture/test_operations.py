"""Operations of graphs are kinds of the opset: what capture writes is what they declare."""

from __future__ import annotations

from intact8.capture.graph import Graph, Node
from intact8.capture.operations import FLOAT_KINDS, GRAPH_ONLY, HEAVY, INTEGER_KINDS, LAYERS, LIGHT, NONLINEAR

from .helpers import assert_declared


def test_every_operation_is_a_kind_or_belongs_to_graphs_alone() -> None:
    assert not GRAPH_ONLY & FLOAT_KINDS.keys()
    assert INTEGER_KINDS.keys() == HEAVY | LIGHT | NONLINEAR
    # In floats a table is a chain of functions, and linear resizing the operation upsample.
    assert INTEGER_KINDS.keys() - FLOAT_KINDS.keys() == {"table", "requantize", "resize_linear"}


def test_layers_have_weights_and_activations_have_none_of_their_own() -> None:
    assert {"conv", "linear", "embedding", "layer_norm", "lstm", "batch_norm"} <= LAYERS
    assert not {"prelu", "scale_shift", "relu", "softmax"} & LAYERS


def test_an_undeclared_attribute_is_noticed() -> None:
    x = Node("x", "input", shape=(None, 4))
    for node in (Node("y", "relu", ["x"], {"slope": 1.0}), Node("y", "cumsum", ["x"]), Node("y", "relu", ["x", "x"])):
        try:
            assert_declared(Graph({"x": x, "y": node}, ["x"], ["y"]))
        except AssertionError:
            continue
        raise AssertionError(f"{node} is not declared")
