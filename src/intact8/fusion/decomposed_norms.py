"""Layer norms and RMS norms written out by hand, recognised by what they compute, become the operation they are.

(x − mean(x)) / sqrt(mean((x − mean(x))²) + ε) is a layer norm, x / sqrt(mean(x²) + ε) an RMS norm, however the square,
the root and the quotient are spelled, with weight and bias behind them. Where other dimensions than the last ones are
normalised (ConvNeXt's and SAM's LayerNorm2d), permutations stand around the norm. Any other formula (an unbiased
variance, ε outside the root, an L2 norm) is another function and stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from intact8.capture.graph import Node
from intact8.fusion.rewriter import Rewriter


class Norm(NamedTuple):
    """A formula that was recognised: ``op`` over ``dims`` of ``x``."""

    op: str
    x: str
    dims: tuple[int, ...]
    eps: float


def norms_by_hand(work: Rewriter) -> None:
    """Exchange every formula that is exactly a layer norm or an RMS norm."""
    for name in list(work.graph.nodes):
        node = work.graph.nodes.get(name)
        if node is None or node.op not in ("mul", "div") or node.dtype != "float32":
            continue
        norm = _recognised(work, node)
        if norm is not None:
            _exchange(work, node, norm)


def _recognised(work: Rewriter, node: Node) -> Norm | None:
    """Return the norm ``node`` is the quotient of."""
    a, b = (work.producer(node, i) for i in (0, 1))
    pairs = [(a, b)] if node.op == "div" else [(a, b), (b, a)]
    for numerator, root in pairs:
        spread = _under_root(work, root, inverse=node.op == "mul")
        if spread is None or numerator.shape != node.shape or numerator.dtype != "float32":
            continue
        mean, eps = spread
        dims, rank = tuple(mean.attrs["dims"]), len(node.shape)
        squared = _square_of(work, work.producer(mean), dims)
        if squared is None or not mean.attrs["keepdim"] or not all(isinstance(node.shape[d], int) for d in dims):
            continue
        if dims != tuple(range(rank - len(dims), rank)) and len(dims) != 1:
            continue
        centred, x = _centred(work, numerator, dims), _centred(work, squared, dims)
        if centred is not None and centred == x:
            return Norm("layer_norm", centred, dims, eps)
        if numerator.name == squared.name:
            return Norm("rms_norm", numerator.name, dims, eps)
    return None


def _under_root(work: Rewriter, root: Node, *, inverse: bool) -> tuple[Node, float] | None:
    """Return (mean, ε) where ``root`` is sqrt(mean + ε), or 1 over that."""
    if root.op == "affine_scalar" and (root.attrs["mul"], root.attrs["add"]) == (1, 0):  # 1 · (1 / …)
        return _under_root(work, work.producer(root), inverse=inverse)
    fn = root.attrs.get("fn") if root.op == "unary" else None
    if inverse and fn == "reciprocal":
        return _under_root(work, work.producer(root), inverse=False)
    exponent = root.attrs.get("exponent") if fn == "pow" else None
    if not (fn == "rsqrt" or exponent == -0.5 if inverse else fn == "sqrt" or exponent == 0.5):
        return None
    inside = work.producer(root)
    if inside.op != "affine_scalar" or inside.attrs["mul"] != 1 or not inside.attrs["add"] > 0:
        return None
    mean = work.producer(inside)
    return (mean, float(inside.attrs["add"])) if mean.op == "mean" and "act" not in mean.attrs else None


def _square_of(work: Rewriter, node: Node, dims: tuple[int, ...]) -> Node | None:
    """Return what ``node`` is the square of; x − mean(x) may have been computed once for either factor."""
    fn = node.attrs.get("fn") if node.op == "unary" else None
    if fn == "square" or (fn == "pow" and node.attrs["exponent"] == 2):
        return work.producer(node)
    if node.op != "mul":
        return None
    a, b = (work.producer(node, i) for i in (0, 1))
    centred = _centred(work, a, dims)
    return a if a.name == b.name or (centred is not None and centred == _centred(work, b, dims)) else None


def _centred(work: Rewriter, node: Node, dims: tuple[int, ...]) -> str | None:
    """Return x where ``node`` is x − mean(x) over ``dims``."""
    if node.op != "sub":
        return None
    x, mean = node.inputs[0], work.producer(node, 1)
    is_mean = mean.op == "mean" and mean.inputs == [x] and tuple(mean.attrs["dims"]) == dims and mean.attrs["keepdim"]
    return x if is_mean else None


def _exchange(work: Rewriter, quotient: Node, norm: Norm) -> None:
    """Put the norm in the place of the formula, with weight and bias behind it."""
    params, last, absorbed = dict[str, str](), quotient, [quotient]
    for role, op in (("weight", "mul"), ("bias", "add"))[: 2 if norm.op == "layer_norm" else 1]:
        after = work.graph.nodes[work.users(last.name)[0]] if work.only_user(last.name) else None
        constant = None if after is None or after.op != op else _constant_beside(work, after, last, norm)
        if after is not None and constant is not None:
            params[role], last = constant, after
            absorbed.append(after)
    shape, rank = [int(quotient.shape[d] or 0) for d in norm.dims], len(quotient.shape)
    made: dict[str, Any] = {"op": norm.op, "inputs": [norm.x], "attrs": {"shape": shape, "eps": norm.eps}}
    made |= {"params": params, "source": []}
    if norm.dims[-1] == rank - 1:
        name = last.name
        work.put(replace(last, **made))
    else:
        (axis,) = norm.dims
        there = [*(d for d in range(rank) if d != axis), axis]
        back = [there.index(d) for d in range(rank)]
        sizes = tuple(last.shape[d] for d in there)
        first = replace(last, name=f"{last.name}.first", op="permute", inputs=[norm.x], shape=sizes, source=[])
        made["inputs"] = [work.insert(replace(first, attrs={"dims": there}), quotient)]
        name = work.insert(replace(last, name=f"{last.name}.{norm.op}", shape=sizes, **made), last)
        work.put(replace(last, op="permute", inputs=[name], attrs={"dims": back}, params={}))
    for node in absorbed[:-1]:
        work.remove(node)
    gone = [part for node in (absorbed if name == last.name else absorbed[:-1]) for part in node.parts]
    for node in absorbed:
        gone += work.prune(*(i for i in node.inputs if i != norm.x))
    work.put(replace(work.graph.nodes[name], source=sorted(gone, key=work.position)))
    for part in gone:
        work.note(part, f"fused into {name}, a {norm.op.replace('_', ' ')}")


def _constant_beside(work: Rewriter, after: Node, last: Node, norm: Norm) -> str | None:
    """Return the parameter ``last`` is combined with in ``after``, where it varies along the normalised dimensions
    alone."""
    other = next((work.graph.nodes[i] for i in after.inputs if i != last.name), None)
    if other is None or other.op != "constant" or other.dtype != "float32" or after.shape != last.shape:
        return None
    rank = len(last.shape)
    aligned = (1,) * (rank - len(other.shape)) + tuple(other.shape)
    wanted = tuple(last.shape[d] if d in norm.dims else 1 for d in range(rank))
    return other.params["value"] if aligned == wanted and any(size != 1 for size in aligned) else None
