"""Edits of a graph keep track of who reads what, without looking at every node again."""

from __future__ import annotations

from collections import Counter

from intact8.capture.graph import Graph, Node
from intact8.fusion.rewriter import Rewriter


def chain() -> Rewriter:
    nodes = [Node("x", "input"), Node("a", "relu", ["x"]), Node("b", "add", ["a", "a"]), Node("c", "mul", ["b", "a"])]
    return Rewriter(Graph({node.name: node for node in nodes}, ["x"], ["c"]))


def assert_users(work: Rewriter) -> None:
    for name, readers in work.graph.users().items():
        assert Counter(work.users(name)) == Counter(readers), name


def test_every_edit_keeps_the_readers_right() -> None:
    work = chain()
    nodes = work.graph.nodes
    assert_users(work)
    work.insert(Node("d", "relu", ["x"]), nodes["a"])
    assert_users(work)
    work.put(Node("c", "mul", ["b", "d"]))
    assert_users(work)
    work.drop(nodes["a"], "x")
    assert_users(work)
    assert nodes["b"].inputs == ["x", "x"] and Counter(work.users("x")) == {"b": 2, "d": 1}
    work.merge(nodes["b"], nodes["c"], inputs=["x", "d"])
    assert_users(work)
    assert work.graph.outputs == ["b"] and work.only_user("d") and not work.only_user("b")
    work.put(Node("b", "relu", ["x"]))
    assert work.prune("d") == ["d"]
    assert_users(work)
