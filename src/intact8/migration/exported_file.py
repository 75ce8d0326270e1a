"""Files of ``torch.export.save`` (``.pt2``), read without torch's loader: nothing in them is executed.

torch's own loader unpickles objects and evaluates the text of sizes. This one takes the graph from the archive's JSON
and the numbers from its entries, knows the operators by a list of what may be there, and lets nothing else become code.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from intact8.errors import InputError, IntactError
from intact8.migration.pickle_machine import PickleError
from intact8.migration.torch_file import Archive, Storage, StoredTensor, read_torch_bytes

NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,255}")
PATH = re.compile(r"[A-Za-z_0-9]{1,255}(\.[A-Za-z_0-9]{1,255}){0,63}")
"""Names of nodes and of tensors: they become attributes, and words of the code that torch.fx writes."""

MOST_NUMBERS = 2**31
"""Elements that sizes written into the graph may have."""

TYPES: dict[int, tuple[torch.dtype, str]] = {
    1: (torch.uint8, "u1"),
    2: (torch.int8, "i1"),
    3: (torch.int16, "i2"),
    4: (torch.int32, "i4"),
    5: (torch.int64, "i8"),
    6: (torch.float16, "f2"),
    7: (torch.float32, "f4"),
    8: (torch.float64, "f8"),
    12: (torch.bool, "?"),
    13: (torch.bfloat16, "bfloat16"),
}
"""Number of a dtype in these files → the dtype, and numpy's name of its elements."""

FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format}

SIZES = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg", "getitem", "eq", "ne", "lt", "le", "gt", "ge"})
"""Functions of Python's module ``operator`` that calculate with sizes."""

ASSERTIONS = frozenset({"_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range_for_size"})

VALUES = (
    "as_int",
    "as_ints",
    "as_float",
    "as_floats",
    "as_bool",
    "as_bools",
    "as_string",
    "as_strings",
    "as_int_lists",
)
"""Kinds of arguments that stand for themselves."""


def read_exported(content: bytes) -> tuple[nn.Module, fx.Graph]:
    """Return the tensors and the graph of a file; operators of PT2E are the functions of this module.

    Raises:
        PickleError, LookupError, TypeError, ValueError, AttributeError: the file is damaged; see :func:`damaged`.
    """
    reader = _Reader(Archive(content, "archive_format"))
    reader.read()
    return reader.root, reader.graph


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into an InputError that names the file."""
    try:
        yield
    except IntactError:
        raise
    except PickleError as error:
        why = str(error)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, AssertionError) as error:
        why = f"its graph is damaged ({type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''})"
    else:
        return
    remedy = "give a file that torch.export.save of torch 2.8 or later made of a graph of tensors"
    raise InputError("this exported program cannot be read", where=str(path), why=why, remedy=remedy)


def quantize_per_tensor(x: Tensor, scale: float, zero_point: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    """Return the integers of a constant."""
    return torch.clamp(torch.round(x * (1 / scale)) + zero_point, low, high).to(dtype)


def quantize_per_channel(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    """Return the integers of a constant with a scale for every index along ``axis``."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return torch.clamp(torch.round(x * (1 / scales).reshape(shape)) + zero_points.reshape(shape), low, high).to(dtype)


def _named(name: str, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return the function that stands for an operator of PT2E; migration replaces all that it does not call."""

    def stands(*args: Any, **kwargs: Any) -> Any:
        if function is None:
            raise PickleError(f"{name} is called with constants")
        return function(*args, **kwargs)

    stands.__name__ = f"quantized_decomposed.{name}"
    return stands


DECOMPOSED = {
    "quantize_per_tensor": _named("quantize_per_tensor", quantize_per_tensor),
    "quantize_per_channel": _named("quantize_per_channel", quantize_per_channel),
    **{name: _named(name) for name in ("dequantize_per_tensor", "dequantize_per_channel", "choose_qparams")},
    **{name: _named(name) for name in ("choose_qparams_symmetric", "choose_qparams_per_token")},
    **{name: _named(name) for name in ("quantize_per_token", "dequantize_per_token")},
}
"""Operator of PT2E → what stands for it."""


class _Reader:
    """Builds the graph of one archive."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.root, self.graph = nn.Module(), fx.Graph()
        self.nodes: dict[str, fx.Node] = {}

    def read(self) -> None:
        """Build it."""
        inside = [name.removeprefix(self.archive.prefix) for name in self.archive.entries]
        models = [name for name in inside if re.fullmatch(r"models/[^/]+\.json", name)]
        if len(models) != 1:
            raise PickleError(f"it holds {len(models)} programs, and one is read")
        name = models[0].removeprefix("models/").removesuffix(".json")
        module = self._json(models[0])["graph_module"]
        self._inputs(module["signature"]["input_specs"], name)
        for node in module["graph"]["nodes"]:
            self._node(node)
        flat = [s["user_output"]["arg"] for s in module["signature"]["output_specs"] if "user_output" in s]
        form = json.loads(module["module_call_graph"][0]["signature"]["out_spec"])[1]
        self.graph.output(self._structured(form, flat[::-1]))
        self.graph.eliminate_dead_code()

    def _json(self, name: str) -> Any:
        return json.loads(bytes(self.archive.entry(name)))

    # --- tensors -------------------------------------------------------------------------------------------------
    def _inputs(self, specs: list[Any], model: str) -> None:
        """Record the inputs of the network, and give the root its parameters, buffers and constants."""
        stored = {path: found for kind in ("weights", "constants") for path, found in self._stored(kind, model).items()}
        for spec in specs:
            ((kind, found),) = spec.items()
            if kind == "user_input":
                ((form, argument),) = found["arg"].items()
                if form == "as_tensor":
                    name = self._name(argument["name"])
                    self.nodes[name] = self.graph.create_node("placeholder", name, name=name)
            elif kind in ("parameter", "buffer", "tensor_constant"):
                path = found[f"{kind}_name"]
                self._register(path, self._tensor(path, stored[path]()))
                self.nodes[self._name(found["arg"]["name"])] = self.graph.get_attr(path)
            elif kind != "constant_input":
                raise PickleError(f"it has an input that is a {str(kind)[:40]}")

    def _register(self, path: str, value: Tensor) -> None:
        if not PATH.fullmatch(path):
            raise PickleError(f"a tensor is called {path[:100]!r}")
        *owners, leaf = path.split(".")
        holder = self.root
        for name in owners:
            if name not in holder._modules:
                holder.add_module(name, nn.Module())
            holder = holder.get_submodule(name)
        if leaf not in holder._buffers:
            holder.register_buffer(leaf, value)

    def _stored(self, kind: str, model: str) -> dict[str, Callable[[], Any]]:
        """Return what reads each tensor of a kind; torch 2.8 saves all of them as one checkpoint."""
        whole = f"data/{kind}/{model}.pt"
        if self.archive.prefix + whole not in self.archive.entries:
            config = self._json(f"data/{kind}/{model}_{kind}_config.json")["config"]
            return {
                path: partial(self._entry, f"data/{kind}/{meta['path_name']}", meta) for path, meta in config.items()
            }
        found = read_torch_bytes(bytes(self.archive.entry(whole)), whole)
        if not isinstance(found, Mapping):
            raise PickleError(f"{whole[:100]} is no mapping")
        return {str(path): partial(found.get, path) for path in found}

    def _entry(self, entry: str, meta: Any) -> Any:
        if meta["use_pickle"]:
            return read_torch_bytes(bytes(self.archive.entry(entry)), entry)
        form = meta["tensor_meta"]
        dtype, kind = TYPES.get(form["dtype"], (None, ""))
        if dtype is None or form["layout"] != 7:
            raise PickleError(f"{entry[:100]} has a dtype or layout that no program has")
        shape, strides = (tuple(self._size(n["as_int"]) for n in form[key]) for key in ("sizes", "strides"))
        data = self.archive.entry(entry)
        width = Storage(kind, 0, "<").bytes
        storage = Storage(kind, len(data) // width, self.archive.order)
        storage.data = data
        if len(shape) != len(strides) or math.prod(shape) > storage.count:
            raise PickleError(f"{entry[:100]} is shorter than its tensor")
        return StoredTensor(storage, self._size(form["storage_offset"]["as_int"]), shape, strides)

    @staticmethod
    def _tensor(path: str, found: Any) -> Tensor:
        """Return a tensor that was read."""
        if not isinstance(found, StoredTensor):
            raise PickleError(f"{path[:100]} is no tensor")
        return torch.from_numpy(np.ascontiguousarray(found.array()).reshape(found.shape))

    @staticmethod
    def _size(value: Any) -> int:
        if type(value) is not int or not 0 <= value < 2**48:
            raise PickleError("a size that is none")
        return value

    # --- operators -----------------------------------------------------------------------------------------------
    def _name(self, name: Any) -> str:
        """Return the name of a new value."""
        if not isinstance(name, str) or not NAME.fullmatch(name) or name in self.nodes:
            raise PickleError(f"a value is called {str(name)[:100]!r}, or two are")
        return name

    def _node(self, node: Any) -> None:
        """Record one operator."""
        target, text = None, str(node["target"])
        parts = text.removeprefix("torch.ops.").split(".")
        if parts[0] == "aten" and len(parts) == 3 and text.startswith("torch.ops."):
            if parts[1] in ASSERTIONS:
                return
            target = _operator(parts[1], parts[2])
        elif parts[0] == "quantized_decomposed" and len(parts) == 3:
            target = DECOMPOSED.get(parts[1])
        elif parts[0] == "_operator" and len(parts) == 2 and parts[1] in SIZES:
            target = getattr(operator, parts[1])
        if target is None:
            raise PickleError(f"its graph calls {text[:100]}, which nothing here reads")
        args, kwargs = self._arguments(node["inputs"], target)
        outputs = [name for out in node["outputs"] for name in _names(out)]
        several = len(node["outputs"]) > 1 or "as_tensors" in (node["outputs"] or [{}])[0]
        made = self.graph.call_function(target, args, kwargs)
        made.meta["nn_module_stack"] = _stack(node.get("metadata", {}).get("nn_module_stack", ""))
        if not several and outputs:
            made.name = self._name(outputs[0])
            self.nodes[made.name] = made
            return
        for i, name in enumerate(outputs):
            if name is not None:
                self.nodes[self._name(name)] = self.graph.call_function(operator.getitem, (made, i))

    def _arguments(self, inputs: list[Any], target: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments in order and by name, as the operator's schema has them."""
        given = {str(i["name"]): self._argument(i["arg"]) for i in inputs}
        if not isinstance(target, torch._ops.OpOverload):
            return tuple(given.values()), {}
        args: list[Any] = []
        for argument in target._schema.arguments:
            if argument.kwarg_only or argument.name not in given:
                break
            args.append(given.pop(argument.name))
        if not given.keys() <= {a.name for a in target._schema.arguments}:
            raise PickleError(f"{target} is called with arguments it does not have")
        return tuple(args), given

    def _argument(self, given: Any) -> Any:
        """Return the value of an argument, or the node that makes it."""
        ((kind, value),) = given.items()
        if kind in VALUES:
            if kind == "as_ints" and math.prod(max(abs(v), 1) for v in value) > MOST_NUMBERS:
                raise PickleError(f"a tensor of {value} is made")
            return value
        if kind in ("as_tensor", "as_optional_tensor") and "name" not in value and len(value) == 1:
            return self._argument(value)
        if kind == "as_tensor":
            return self.nodes[value["name"]]
        if kind in ("as_tensors", "as_optional_tensors"):
            return [self._argument(v if len(v) == 1 and "name" not in v else {"as_tensor": v}) for v in value]
        if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
            return self.nodes[value["as_name"]] if "as_name" in value else [*value.values()][0]  # noqa: RUF015
        if kind == "as_sym_ints":
            return [self._argument({"as_sym_int": v}) for v in value]
        if kind == "as_scalar_type":
            return TYPES[value][0]
        if kind == "as_memory_format":
            return FORMATS[value]
        if kind in ("as_none", "as_layout"):
            return None if kind == "as_none" else torch.strided
        if kind == "as_device":
            return torch.device("cpu")
        raise PickleError(f"an operator has an argument of the kind {str(kind)[:40]}")

    def _structured(self, form: Any, flat: list[Any]) -> Any:
        """Return results, the first of which is last in ``flat``, in the tuples, lists and dicts that they come in."""
        if form["type"] is None:
            return self._argument(flat.pop())
        parts = [self._structured(part, flat) for part in form["children_spec"]]
        if form["type"] == "builtins.dict":
            return dict(zip(json.loads(form["context"]), parts, strict=True))
        return parts if form["type"] == "builtins.list" else tuple(parts)


def _operator(name: str, overload: str) -> Any:
    """Return an operator of ATen that makes tensors of tensors; None for any other."""
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        return None
    results = {str(r.type) for r in found._schema.returns}
    pure = results and results <= {"Tensor", "List[Tensor]", "int", "number", "bool", "float"}
    return found if pure and all(a.name != "filename" for a in found._schema.arguments) else None


def _names(output: Any) -> list[str | None]:
    """Return the names of what an operator makes; None where nothing uses it."""
    ((kind, value),) = output.items()
    if kind == "as_tensors":
        return [v["name"] for v in value]
    if kind == "as_none":
        return [None]
    return [value["as_name"] if kind.startswith("as_sym") else value["name"]]


def _stack(text: str) -> dict[str, tuple[str, str]]:
    """Return the modules around an operator, outermost first, as the export recorded them."""
    entries = (entry.split(",") for entry in text.split(";"))
    return {e[0]: (e[1], e[2]) for e in entries if len(e) == 3 and (not e[1] or PATH.fullmatch(e[1]))}


__all__ = ["damaged", "read_exported"]
