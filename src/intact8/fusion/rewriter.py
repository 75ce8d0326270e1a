"""Editing a graph: merging nodes while names, uses and execution order stay right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from intact8.capture.graph import Graph, Node


class Note(NamedTuple):
    """What fusion did with a node.

    Attributes:
        node: name of the node in the captured graph.
        decision: "fused into X", "table", "scale_shift: …" or "float: …".
    """

    node: str
    decision: str


class Rewriter:
    """A graph under work.

    A merged node keeps the name of its first part and takes the place of its last one in execution order: all it
    reads is computed by then, and nothing reads it earlier.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph.copy()
        self._notes: dict[str, str] = {}
        self._place: dict[str, float] = {name: i for i, name in enumerate(graph.nodes)}
        self._users = self.graph.users()

    def users(self, name: str) -> list[str]:
        """Return the consumers of ``name``, one entry per use."""
        return self._users[name]

    def only_user(self, name: str) -> bool:
        """Return whether ``name`` is read exactly once, and not by the caller of the network."""
        return len(self.users(name)) == 1 and name not in self.graph.outputs

    def position(self, name: str) -> float:
        """Place in execution order."""
        return self._place[name]

    def producer(self, node: Node, index: int = 0) -> Node:
        """Return the node that makes input ``index`` of ``node``."""
        return self.graph.nodes[node.inputs[index]]

    def put(self, node: Node) -> None:
        """Exchange the node of the same name."""
        self._forget(node.name)
        self.graph.nodes[node.name] = node
        self._users.setdefault(node.name, [])
        for name in node.inputs:
            self._users.setdefault(name, []).append(node.name)

    def merge(self, head: Node, tail: Node, **changes: Any) -> Node:
        """Make one node of ``head`` and its consumer ``tail``, named like ``head``, with the given fields changed."""
        merged = replace(head, source=head.parts + tail.parts, **changes)
        self.put(merged)
        self.drop(tail, head.name)
        self._place[head.name] = max(self._place[head.name], self._place[tail.name])
        return merged

    def drop(self, node: Node, instead: str) -> None:
        """Remove ``node``; whoever read it reads ``instead``."""
        for reader in dict.fromkeys(self._users[node.name]):
            other = self.graph.nodes[reader]
            other.inputs = [instead if i == node.name else i for i in other.inputs]
        self._users[instead] += self._users[node.name]
        self.graph.outputs = [instead if o == node.name else o for o in self.graph.outputs]
        self.remove(node)

    def insert(self, node: Node, before: Node) -> str:
        """Add a new node in front of another, under a name that is free; an equal one that is there serves again."""
        name, count = node.name, 0
        while node.name in self.graph.nodes:
            there = self.graph.nodes[node.name]
            if replace(there, name=name) == replace(node, name=name):
                return node.name
            count += 1
            node = replace(node, name=f"{name}_{count}")
        self.put(node)
        self._place[node.name] = self._place[before.name] - 0.5
        return node.name

    def remove(self, node: Node) -> None:
        """Remove a node nobody reads, or whose readers are about to be exchanged."""
        self._forget(node.name)
        del self.graph.nodes[node.name], self._users[node.name]

    def _forget(self, name: str) -> None:
        """Take a node out of the readers of its inputs."""
        node = self.graph.nodes.get(name)
        for given in node.inputs if node is not None else ():
            if given in self._users:
                self._users[given].remove(name)

    def prune(self, *names: str) -> list[str]:
        """Remove the nodes that nobody reads, and whatever only led to them; return the captured nodes in them."""
        removed: list[str] = []
        for name in dict.fromkeys(names):
            node = self.graph.nodes.get(name)
            if node is None or node.op in ("input", "constant") or self.users(name) or name in self.graph.outputs:
                continue
            self.remove(node)
            removed += [*node.parts, *self.prune(*node.inputs)]
        return removed

    def note(self, node: str, decision: str) -> None:
        """Log what became of ``node``; a later decision replaces an earlier one."""
        self._notes[node] = decision

    def log(self) -> tuple[Note, ...]:
        """Return all decisions."""
        return tuple(Note(node, decision) for node, decision in self._notes.items())

    def finish(self) -> Graph:
        """Return the graph in execution order, without constants nobody reads."""
        users = self.graph.users()
        kept = (n for n in self.graph if n.op != "constant" or users[n.name] or n.name in self.graph.outputs)
        self.graph.nodes = {n.name: n for n in sorted(kept, key=lambda n: self._place[n.name])}
        return self.graph
