"""From the exported ATen graph to nodes: an interpreter that runs constants and records the rest.

Every fx value is one of three: an activation (:class:`Value`, a node of the graph being built), a real tensor
(parameter, buffer or constant: operations on those alone are computed at once), or a plain Python value (sizes are
read from the metadata of the export, so symbolic arithmetic needs no code here).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
import torch.fx
from torch import Tensor, nn

from intact8.arithmetic.dimensions import Dim
from intact8.capture.aten_call import HANDLERS, SHORT, Call, Missing, NotFunctional, Prefix, Shape, Value
from intact8.capture.complex_numbers import by_parts, in_pairs
from intact8.capture.constants import IN_FLOAT32, OTHER_FLOATS, ConstantStore, leaves, writes_in_place
from intact8.capture.decompose import Formula, decompose, out_of_place, tensor_nodes
from intact8.capture.formulas_complex import Complex
from intact8.capture.fx_nodes import bound_arguments, is_view, only_checked, refuse_random
from intact8.capture.graph import Graph, Node
from intact8.capture.int32 import Wrapping
from intact8.capture.named_sizes import NamedSizes
from intact8.capture.names import full_name, module_of, operator_name
from intact8.capture.sample_order import Outer, outer_of
from intact8.capture.size_classes import SizeClassError
from intact8.capture.symbolic_constants import as_tensor, at_largest, materialize
from intact8.errors import CaptureError, IntactError, InternalError

READ_PREFIXES = frozenset(
    {"index", "index_fill", "index_put", "__and__", "bitwise_and", "logical_and", "scaled_dot_product_attention"}
)
"""Operators whose handlers look into constants that are as long as a dimension."""

FORMS = ("_", "_copy")
"""Endings of the names of operators that write into their first argument, or return a copy in place of a view."""


@dataclass(kw_only=True)
class Builder(ConstantStore, NamedSizes):
    """State of one capture."""

    protected: dict[int, str]
    unread: frozenset[torch.fx.Node] = frozenset()
    nodes: dict[str, Node] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    batch_input: Value | None = None
    comparable: bool = True
    env: dict[torch.fx.Node, Any] = field(default_factory=dict)
    marks: list[tuple[str, int]] = field(default_factory=list)
    prefixes: dict[int, tuple[Prefix, Value]] = field(default_factory=dict)
    _nodes_of: dict[int, tuple[Tensor, Value]] = field(default_factory=dict)
    _stale: dict[torch.fx.Node, str] = field(default_factory=dict)
    _in_storage: dict[int, list[torch.fx.Node]] = field(default_factory=dict)
    wrapping: Wrapping = field(default_factory=Wrapping)
    minus_infinite: set[str] = field(default_factory=set)
    undefined: dict[str, Value | None] = field(default_factory=dict)
    outer: dict[str, Outer] = field(default_factory=dict)
    _storages: int = 0

    def materialize(self, prefix: Prefix, fx: torch.fx.Node) -> Value:
        """Return the nodes for a constant as long as a dimension that changes."""
        return materialize(self, prefix, fx)

    # --- nodes -----------------------------------------------------------------------------------------------
    def new_storage(self) -> int:
        """Return a number for memory nothing else shares."""
        self._storages += 1
        return self._storages

    def add_node(
        self,
        op: str,
        inputs: list[str],
        attrs: dict[str, Any],
        params: dict[str, str],
        shape: Shape,
        dtype: str,
        fx: torch.fx.Node,
        label: str | None = None,
    ) -> Value:
        """Append a node under a provisional name."""
        path, kind, key = module_of(fx)
        name = f"%{len(self.nodes)}"
        self.nodes[name] = Node(name, op, inputs, attrs, params, path, kind, shape, dtype)
        self.outer[name] = outer_of(op, [self.nodes[n] for n in inputs], self.outer, attrs)
        self.labels[name] = label or attrs.get("fn") or op
        self.calls[name] = key
        return Value(name, self.new_storage())

    def constant(self, tensor: Tensor, fx: torch.fx.Node) -> Value:
        """Return the constant node for ``tensor``, one per tensor."""
        self.read_by_name.add(id(tensor))
        if id(tensor) in self._nodes_of:
            return self._nodes_of[id(tensor)][1]
        given, tensor = tensor, tensor.long() if tensor.dtype == torch.int32 else self.as_float32(tensor)
        name = self.tensor_name(tensor, fx, "constant")
        path = module_of(fx)[0]
        label = ".".join(filter(None, (path, "constant"))) if name in self.constants else name
        dtype = str(tensor.dtype).removeprefix("torch.")
        value = self.add_node("constant", [], {}, {"value": name}, tuple(tensor.shape), dtype, fx, label)
        self._nodes_of[id(given)] = (given, value)
        return value

    # --- metadata --------------------------------------------------------------------------------------------
    def dim(self, size: Any, fx: torch.fx.Node) -> Dim:
        """Return an int, the name of a dimension, or None for the batch and its products with anything."""
        if isinstance(size, int):
            return size
        expr = self.expression(size)
        if isinstance(expr, int):
            return expr
        if expr in self.symbols:
            return self.symbols[expr]
        call = Call(self, fx, operator_name(fx), {})
        if not expr.free_symbols or not expr.free_symbols <= set(self.symbols):
            what = f"a shape depends on the data ({expr})"
            remedy = "return tensors of one shape, and leave out later what is not wanted"
            raise call.error(what, why="its size is only known when the model runs", remedy=remedy)
        if expr.free_symbols & self.batch_symbols:
            return None
        if (known := self.size_of(expr)) is not None:
            return known
        names = ", ".join(sorted(str(self.symbols[s]) for s in expr.free_symbols))
        readable = str(expr)
        for symbol in expr.free_symbols:
            readable = re.sub(rf"\b{symbol}\b", str(self.symbols[symbol]), readable)
        why = "a program computes sums, products and rounded quotients of sizes, all of which grow with them"
        refused = call.error(f"a dimension of size {readable}", why=why, remedy=f"leave {names} out of dynamic_shapes")
        if isinstance(size, torch.SymInt) and (classes := self.finer(size.node.expr)):
            raise SizeClassError(refused, classes)
        raise refused

    def shape_of_meta(self, val: Any, fx: torch.fx.Node) -> Shape:
        """Return the shape from the export's metadata."""
        if isinstance(val, (list, tuple)):
            val = val[0]
        return tuple(self.dim(d, fx) for d in val.shape)

    def dtype_of_meta(self, fx: torch.fx.Node) -> str:
        """Return the dtype's name from the export's metadata: float32 of other floats, which is noted once of each."""
        val = fx.meta.get("val")
        if isinstance(val, (list, tuple)):
            val = val[0]
        dtype = getattr(val, "dtype", torch.float32)
        name = str(dtype).removeprefix("torch.")
        if dtype in OTHER_FLOATS and fx.op != "placeholder":
            note = f"{IN_FLOAT32} what the model computes in {name} from here on"
            if not any(other.startswith(note) for other in self.notes):
                self.notes.append(f"{note}: {Call(self, fx, operator_name(fx), {}).where()}")
            return "float32"
        if dtype in OTHER_FLOATS or name.startswith(("float8", "complex")):
            why = "quantization starts from a float32 model"
            remedy = "call model.float() first, and give float32 inputs"
            if name.startswith("complex"):
                why, remedy = "programs hold real numbers", "give view_as_real(x), and join it by torch.view_as_complex"
            what, call = f"a tensor of dtype {name}", Call(self, fx, operator_name(fx), {})
            if fx.op == "placeholder":
                raise CaptureError(what, where=f"input {fx.name} of the model", why=why, remedy=remedy)
            raise call.error(what, why=why, remedy=remedy)
        if name == "int32" or (fx.op == "placeholder" and name in SHORT):
            return "int64"  # which holds all these numbers
        return name

    # --- interpretation --------------------------------------------------------------------------------------
    def resolve(self, arg: Any, *, used: bool = True) -> Any:
        """Return the value of an fx argument. An output that is not captured is an error where it is ``used``."""

        def load(node: torch.fx.Node) -> Any:
            if node in self._stale:
                call = Call(self, node, self._stale[node], {})
                raise call.in_place("a view of a tensor that is used again afterwards")
            value = self.env[node]
            if used and isinstance(value, Missing):
                raise value.error
            return value

        return torch.fx.map_arg(arg, load) if not isinstance(arg, torch.fx.Node) else load(arg)

    def run(self, gm: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
        """Interpret a graph, and return what its output node returns."""
        feed = iter(args)
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                value = next(feed)
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(gm)
            elif node.op == "call_function":
                value = self.call(node)
            elif node.op == "output":
                return self.resolve(node.args[0], used=False)
            self.env[node] = value
            if isinstance(value, Value):
                self._in_storage.setdefault(value.storage, []).append(node)
        raise AssertionError("a graph without output")

    def item(self, parts: Any, index: Any, node: torch.fx.Node) -> Any:
        """Return one of several outputs of an operation; Missing where only the model has a tensor there."""
        known = isinstance(parts, (list, tuple)) and isinstance(index, int) and index < len(parts)
        found = parts[index] if known else None
        if found is not None or not isinstance(node.meta.get("val"), Tensor):
            return found
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        call = Call(self, source, operator_name(source), {})
        return Missing(
            call.error(
                f"output {index} of this operator is used",
                why="intact8 captures its other outputs only",
                remedy="do not use or return it, or compute it outside the quantized model",
            )
        )

    def call(self, node: torch.fx.Node) -> Any:
        """Evaluate one call. An error that is not ours names the operator and the module."""
        try:
            return self._call(node)
        except (IntactError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            where = Call(self, node, "", {}).where()
            raise InternalError(f"capturing operator {full_name(node)} failed", where, error) from error

    def _call(self, node: torch.fx.Node) -> Any:
        if only_checked(node):
            return None
        target = node.target
        args = [self.resolve(a) for a in node.args]
        kwargs = {k: self.resolve(v) for k, v in node.kwargs.items()}
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self.higher_order(target, args, node)
        flat = leaves([*args, *kwargs.values()])
        if target is operator.getitem:
            return self.item(args[0], args[1], node)
        meta = node.meta.get("val")
        if isinstance(meta, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            if not (flat and all(isinstance(a, Tensor) for a in flat) and callable(target)):
                return self.symbol(meta, node)
            self.note_fixed(flat, ())
            return target(*(a.detach() for a in flat))
        if isinstance(meta, (int, float, bool)) and not any(isinstance(a, Tensor) for a in flat):
            return meta
        if not isinstance(target, torch._ops.OpOverload):
            if "functorch" in str(getattr(target, "__module__", "")):
                what, why = (
                    "a transform of a function, such as torch.vmap,",
                    "operations are recorded for whole tensors",
                )
                where = Call(self, node, operator_name(node), {}).where()
                raise NotFunctional(what + " is called", where=where, why=why, remedy="write it for a whole batch")
            return target(*args, **kwargs) if callable(target) else None
        if meta is None and target._schema.returns and not node.users:
            return None  # it failed in the model, which caught the error
        name = target._schema.name.split("::")[-1]
        call = Call(self, node, name, bound_arguments(target, args, kwargs))
        if meta is None and not target._schema.returns:
            return None  # assertions about metadata and ranges: they hold for the shapes captured
        if not any(isinstance(a, (Value, Prefix, torch.SymInt, torch.SymFloat)) for a in flat):
            return self.fold(call, target, args, kwargs)
        halves = any(isinstance(a, Complex) for a in call.args.values())
        if not halves and not any(isinstance(a, Value) for a in flat) and not writes_in_place(target):
            known = at_largest(call, target, args, kwargs)
            if known is not None:
                return known
        if in_pairs(call):
            return by_parts(call)
        if not READ_PREFIXES & {name, name.removesuffix("_")}:
            call.args = {k: self.made(v, node) for k, v in call.args.items()}
            for key in ("other", "min", "max", "fill_value", "s"):
                if isinstance(number := call.args.get(key), (torch.SymInt, torch.SymFloat)):
                    call.args[key] = as_tensor(call, number) or number
        return self.activation(call, target)

    def made(self, arg: Any, fx: torch.fx.Node) -> Any:
        """Return an argument with nodes in place of the beginnings of constants."""
        if isinstance(arg, Prefix):
            return self.materialize(arg, fx)
        if isinstance(arg, (list, tuple)) and not isinstance(arg, torch.Size):
            return [self.made(a, fx) for a in arg]
        return arg

    def symbol(self, meta: Any, node: torch.fx.Node) -> Any:
        """Return a size: an int, or the symbolic expression of dimensions that change."""
        expr = self.expression(meta)
        if isinstance(expr, int):
            return expr
        if expr.is_number:
            return float(expr)
        if not expr.free_symbols <= set(self.symbols):
            raise Call(self, node, operator_name(node), {}).error(
                "a number is read from a tensor",
                why="its value is only known when the model runs",
                remedy="keep it a tensor: leave out .item(), .tolist(), int() and float(), and choose by torch.where",
            )
        return meta

    def fold(self, call: Call, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Compute an operation on constants, guarding the model's own tensors against in-place writes."""
        if call.op not in HANDLERS:
            refuse_random(call, target)
        flat = [a for a in leaves([*args, *kwargs.values()]) if isinstance(a, Tensor)]
        if flat and writes_in_place(target):
            owner = self.protected.get(flat[0].untyped_storage().data_ptr())
            if owner is not None and call.fx in self.unread:
                self.notes.append(f"the model changes {owner}, which nothing of its outputs depends on")
                return flat[0]
            if owner is not None and call.op == "copy_" and torch.equal(flat[0], args[1]):
                return flat[0]  # as ``self.table = self.table.to(x.device)`` leaves it
            if owner is not None and (masked := self.written_once(call.fx, target, args, kwargs)) is not None:
                return masked
            if owner is not None:
                what = f"the forward pass changes {owner}"
                why = "a quantized program keeps no state between calls"
                raise call.error(what, why=why, remedy="do not write into parameters and buffers in eval mode")
            # What was stored before the write keeps its value; later uses are stored anew.
            kept = {k for k, n in self.named.items() if n not in self.constants}
            self._nodes_of = {k: v for k, v in self._nodes_of.items() if k in kept}
            self.named = {k: n for k, n in self.named.items() if k in kept}
        if target is torch.ops.aten.view.default:  # what zeros_like makes here may have another layout than the model's
            target = torch.ops.aten.reshape.default
        with torch.no_grad():
            result = target(*args, **kwargs)
        self.record(flat, target, args, kwargs, leaves([result]))
        return result

    def written_once(self, fx: torch.fx.Node, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor | None:
        """Return what an operation writes into a tensor of the model's that it changes the first time only, as
        ``self.weight.data *= self.mask``; the model keeps its own. None for other writes, and where something reads
        the tensor before, which the next call would find changed."""
        pure, into = out_of_place(target), args[0]
        if pure is None or not isinstance(into, Tensor):
            return None
        with torch.no_grad():
            result = pure(*args, **kwargs)
            again = pure(result, *args[1:], **kwargs)
        if not torch.equal(result, again) or result.shape != into.shape or result.dtype != into.dtype:
            return None
        place = (into.data_ptr(), into.shape, into.stride())
        tensors = {node: value for node, value in self.env.items() if isinstance(value, Tensor)}
        same = {node: x for node, x in tensors.items() if (x.data_ptr(), x.shape, x.stride()) == place}
        order = {node: at for at, node in enumerate(fx.graph.nodes)}
        if any(user not in same and order.get(user, -1) < order[fx] for node in same for user in node.users):
            return None
        self.env |= dict.fromkeys(same, result)
        source = next((x for x in same.values() if isinstance(x, nn.Parameter)), into)  # .data is detached from it
        given = [source, *args[1:]]
        flat = [a for a in leaves([*given, *kwargs.values()]) if isinstance(a, Tensor)]
        self.record(flat, pure, given, kwargs, [result])
        return cast(Tensor, result)

    def activation(self, call: Call, target: Any) -> Any:
        """Record an operation on activations, and follow what in-place operations and views do to memory."""
        handler = next(filter(None, map(HANDLERS.get, (call.op, *(call.op.removesuffix(s) for s in FORMS)))), None)
        if handler is None:
            return self.decomposed(call, target)
        writes = writes_in_place(target)
        before, self.read_by_name = self.read_by_name, set()
        given = leaves(list(call.args.values()))
        result = self.wrapping.kept(call, handler(call))
        self.note_fixed(given, self.read_by_name)
        self.read_by_name |= before
        if writes:
            return self.write(call, result)
        views = call.op in ("dropout", "feature_dropout", "alpha_dropout", "getitem") or is_view(target)
        source = next((a for a in leaves(list(call.args.values())) if isinstance(a, Value)), None)
        parts = isinstance(result, list)
        split = self.new_storage()
        out = []
        for index, item in enumerate(result if parts else [result]):
            if isinstance(item, Value) and views and source is not None:
                region = (*source.region, (split, index)) if parts else source.region
                item = Value(item.name, source.storage, region)
            elif isinstance(item, Value):
                item = Value(item.name, self.new_storage())
            out.append(item)
        return out if parts else out[0]

    def write(self, call: Call, result: Value) -> Value:
        """Follow an in-place operation: every name of the same memory now means the result."""
        old = next(iter(call.args.values()))
        if isinstance(old, Tensor):
            return self.write_constant(call, old, result)
        if not isinstance(old, Value) or old.storage not in self._in_storage:
            raise call.in_place("a constant tensor")
        new = Value(result.name, old.storage, old.region)
        for node in self._in_storage[old.storage]:
            value = self.env[node]
            if value.name == old.name:
                self.env[node] = new
            elif not value.disjoint(old):
                self._stale[node] = call.op
        if self.batch_input is not None and self.batch_input.name == old.name:
            self.notes.append(f"the model changes its input in place (aten.{call.op}); the program does not")
        return new

    def write_constant(self, call: Call, old: Tensor, result: Value) -> Value:
        """Follow an in-place operation on a tensor that the forward pass made, as ``ones_like(x).sub_(x)`` does."""
        memory = old.untyped_storage().data_ptr()
        names = [n for n, v in self.env.items() if isinstance(v, Tensor) and v.untyped_storage().data_ptr() == memory]
        if any(node.op != "call_function" or self.env[node].shape != old.shape for node in names):
            raise call.in_place("a constant tensor")
        new = Value(result.name, self.new_storage())
        self.env |= dict.fromkeys(names, new)
        self._in_storage[new.storage] = names
        return new

    def higher_order(self, target: Any, args: list[Any], node: torch.fx.Node) -> Any:
        """Open regions such as ``with torch.no_grad()``, and refuse control flow."""
        name = target.name() if callable(getattr(target, "name", None)) else str(target)
        if "wrap_with_set_grad_enabled" in name or "wrap_with_autocast" in name:
            at = next(i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule))
            result = self.run(args[at], args[at + 1 :])
            return list(result) if isinstance(result, (list, tuple)) else result
        call = Call(self, node, name, {})
        if name == "flex_attention":
            remedy = "use torch.nn.functional.scaled_dot_product_attention with a mask, which computes the same"
            raise call.error("flex_attention", why="a function of indices changes its scores", remedy=remedy)
        raise call.error("control flow that depends on data, or a function that an operator calls")

    def by_formula(self, call: Call, formula: Formula | None = None) -> Any:
        """Return what an operator computes: by ``formula``, by one that is entered, or by torch's decompositions."""
        target: Any = call.fx.target
        pure = out_of_place(target) if writes_in_place(target) else target
        inner = None if pure is None else decompose(call, pure, formula)
        if inner is None:
            raise call.error(f"the operator {target} is not supported", why="intact8 has no operation for it")
        given = [self.env[node] for node in tensor_nodes(call.fx)]
        found = self.run(inner, given)
        self._forget(inner)
        self.read_by_name |= set(map(id, given))  # what becomes of them was seen inside
        return found

    def _forget(self, inner: torch.fx.GraphModule) -> None:
        """Drop the names of a formula's tensors: nothing reads them again, so writes need not follow them."""
        for node in inner.graph.nodes:
            value = self.env.pop(node, None)
            if isinstance(value, Value):
                self._in_storage[value.storage].remove(node)

    def decomposed(self, call: Call, target: Any) -> Any:
        """Take operators without a handler apart, where that is known."""
        refuse_random(call, target)
        result = self.by_formula(call)
        if writes_in_place(target):
            value, dtype = call.value(result), self.dtype_of_meta(call.fx)
            same = self.nodes[value.name].dtype == dtype
            return self.write(call, value if same else call.emit("cast", value, dtype=dtype))
        return list(result) if isinstance(result, (list, tuple)) else result


def live(graph: Graph) -> Graph:
    """Return ``graph`` without nodes that no output needs; inputs stay."""
    needed = set(graph.outputs) | set(graph.inputs)
    for node in reversed(list(graph)):
        if node.name in needed:
            needed.update(node.inputs)
    nodes = {name: node for name, node in graph.nodes.items() if name in needed}
    return replace(graph, nodes=nodes)
