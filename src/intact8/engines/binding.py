"""Binds the arguments of a call to inputs, as checked numpy arrays, and nests outputs as the model nested them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from intact8.arithmetic.dimensions import fits, show
from intact8.errors import InputError
from intact8.nesting import leaves, nests, spread, without_fixed
from intact8.opset.op import Array, Op, Tensor
from intact8.program.dimensions import batch_size, fixed, sizes_of
from intact8.program.indices import Lookups
from intact8.program.inputs import (
    check_layout,
    holds_nan,
    quantized_inputs,
    refuse_masked,
    refuse_other_layouts,
    sole_quantizers,
)
from intact8.program.program import Program

from .shapes import sized

FORMS = 64
"""Combinations of dtypes and shapes per program that are not checked again."""


SHORTER = (np.int8, np.int16, np.int32)
"""What is taken where a program reads int64, which holds all these numbers."""


def is_torch(value: Any) -> bool:
    """Return whether ``value`` is a torch tensor. Torch is not imported, since whoever holds a tensor has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def holds_torch(value: Any) -> bool:
    """Return whether ``value`` is a torch tensor or nests some."""
    return any(is_torch(leaf) for _, leaf in leaves("", value))


def bind(
    program: Program,
    args: Sequence[Any],
    named: Mapping[str, Any],
    layout: str = "NCHW",
    admit: Callable[[Mapping[str, Array]], object] | None = None,
) -> dict[str, Array]:
    """Return the inputs by name as numpy arrays of the right dtype, rank and shape, in the program's order of
    dimensions.

    Args:
        program: what the inputs are for.
        args: arrays or torch tensors in the order of ``program.inputs``, or nested as the model takes them.
        named: the rest by name, or by argument where that nests some.
        layout: "NHWC" where inputs of four dimensions are given as (N, H, W, C), as decoders of images give them. They
            are not copied: the result is a view, whose strides are channels-last.
        admit: called with the inputs before a number of them is read; what it raises ends the call. An expanded array
            of a few bytes may have more elements than there is time to look at.

    Raises:
        InputError: too many, missing, unknown or doubly given; wrong dtype, rank or shape; batch sizes that differ; NaN
            where a number is quantized; an index outside the table it is for; a layout that is not known or of which
            the program has no input.

    Example:
        >>> x, q = Tensor("x", "float32", (None, 3, 2, 5)), Tensor("q", "uint8", (None, 3, 2, 5), 0.5, 10)
        >>> program = Program({"x": x, "q": q}, (Op("q", "quantize", ("x",), {"lo": 0, "hi": 255}),), ("x",), ("q",))
        >>> images = np.zeros((4, 2, 5, 3), np.uint8)
        >>> given = bind(program, [images], {}, layout="NHWC")["x"]
        >>> given.shape, np.shares_memory(given, images)
        ((4, 3, 2, 5), True)
    """
    forms: set[tuple[object, ...]] = vars(program).setdefault("_bound_forms", set())
    form = (layout, *[(x.dtype, x.shape) if type(x) is np.ndarray else () for x in args])
    if form in forms and not named and all(x.flags.aligned for x in args):
        arrays = dict(zip(program.inputs, args, strict=True))
    else:
        arrays = _checked(program, args, named, layout)
        if not named and all(x is y for x, y in zip(args, arrays.values(), strict=False)):
            if len(forms) >= FORMS:
                forms.clear()
            forms.add(form)
    if admit is not None:
        admit(arrays)
    for name in quantized_inputs(program):
        _refuse_nan(name, arrays[name])
    _check_indices(program, arrays)
    return arrays


def _checked(program: Program, args: Sequence[Any], named: Mapping[str, Any], layout: str) -> dict[str, Array]:
    """Return the inputs by name; checked but for their numbers."""
    check_layout(program, layout)
    values = _by_name(program, args, named)
    quantizers = sole_quantizers(program)
    arrays = {
        name: _array(name, values[name], program.tensors[name], quantizers.get(name), layout) for name in program.inputs
    }
    _check_batch(program, arrays)
    sizes_of(program, arrays)
    return arrays


def _check_indices(program: Program, arrays: Mapping[str, Array]) -> None:
    """Engines differ in what they do with an index outside a table; some read other memory."""
    if not any(array.dtype == np.int64 for array in arrays.values()):
        return
    lookups: Lookups | None = vars(program).get("_lookups")
    if lookups is None:
        lookups = vars(program)["_lookups"] = Lookups(program)
    found = lookups.outside(arrays)
    if found is not None:
        name, index, rows = found
        remedy = "give the numbers of this model's own tokenizer or vocabulary"
        raise InputError(f"index {index} is outside the table of {rows} rows", where=name, remedy=remedy)


def fixed_arguments(program: Program) -> tuple[Mapping[str, Any], list[str]]:
    """Return the values that are no tensors by name, and the model's arguments in order, as capture met them."""
    found = program.provenance.get("arguments", {})
    return found.get("fixed", {}), found.get("order", list(program.inputs))


def _by_name(program: Program, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    expected = ", ".join(program.inputs)
    args, named = without_fixed(args, named, program.inputs, *fixed_arguments(program))
    nested = any("." in name for name in program.inputs)
    if nested and any(nests(value) for value in (*args, *named.values())):
        args, named = (), spread(program.inputs, args, named)
    if len(args) > len(program.inputs):
        raise InputError(f"got {len(args)} inputs, expected {len(program.inputs)}", remedy=f"give {expected}")
    values: dict[str, Any] = dict(zip(program.inputs, args, strict=False))
    for name, value in named.items():
        if name not in program.inputs:
            within = any(known.endswith(f".{name}") for known in program.inputs)
            remedy = f"the inputs are {expected}" + (
                "; a dict that is one argument is given as ({...},)" if within else ""
            )
            raise InputError("the program has no such input", where=name, remedy=remedy)
        if name in values:
            raise InputError("given by position and by name", where=name, remedy="give it once")
        values[name] = value
    missing = [name for name in program.inputs if name not in values]
    if missing:
        remedy = (_as_arguments(args[0]) if len(args) == 1 else "") or f"give all of {expected}"
        raise InputError("the input is missing", where=missing[0], remedy=remedy)
    return values


def _as_arguments(value: Any) -> str:
    """Return how to give arrays that a dict, list or tuple holds; "" for what holds none."""
    if isinstance(value, Mapping):
        return "give inputs by name as arguments: run(**inputs)"
    arrays = isinstance(value, list | tuple) and any(is_torch(v) or isinstance(v, np.ndarray) for v in value)
    return "give inputs as arguments one after the other: run(*inputs)" if arrays else ""


def _array(name: str, value: Any, tensor: Tensor, quantizer: Op | None, layout: str) -> Array:
    array, wanted = _numpy(name, value), tensor.shape
    channels_last = layout == "NHWC" and len(wanted) == 4
    if channels_last:
        wanted = (wanted[0], *wanted[2:], wanted[1])
    if tensor.dtype == "int64" and array.dtype in SHORTER:
        array = array.astype(np.int64)
    takes_integers = quantizer is not None or tensor.quantized
    if str(array.dtype) != tensor.dtype and not (takes_integers and array.dtype == np.uint8):
        allowed = f"{tensor.dtype} or uint8" if takes_integers and tensor.dtype != "uint8" else tensor.dtype
        raise InputError(f"expected {allowed}, got {array.dtype}", where=name, remedy=f"convert it to {tensor.dtype}")
    if not fits(wanted, array.shape):
        remedy = "reshape or resize it"
        if array.ndim == len(wanted) - 1 and wanted[0] in (None, 1):
            remedy = "add the batch dimension: x[None]"
        elif len(wanted) == array.ndim == 4 and not channels_last and fits(wanted, np.moveaxis(array, -1, 1).shape):
            remedy = "say that its channels are last: layout='NHWC'"
        raise InputError(f"expected shape {show(wanted)}, got {array.shape}", where=name, remedy=remedy)
    if channels_last:
        array = np.moveaxis(array, -1, 1)
    if quantizer is None:
        return array
    if array.dtype == np.uint8:
        # quantize never gives integers outside of its clamp.
        lo, hi = quantizer.attrs["lo"], quantizer.attrs["hi"]
        return array if (lo, hi) == (0, 255) else np.clip(array, lo, hi)
    return array


def _refuse_nan(name: str, array: Array) -> None:
    if array.dtype != np.float32 or not array.size:
        return
    least = np.minimum.reduce(array, axis=None)  # NaN where there is one
    if least != least:
        raise holds_nan(name)


def _numpy(name: str, value: Any) -> Array:
    if is_torch(value):
        refuse_other_layouts(name, value)
        if value.device.type != "cpu":
            raise InputError(f"the tensor is on {value.device}", where=name, remedy="move it: x.cpu()")
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in ("float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64", "bool"):
            raise InputError(f"tensors of dtype {dtype} are not taken", where=name, remedy="convert it: x.float()")
        try:
            return np.asarray(value.detach().resolve_conj().resolve_neg().numpy())
        except (RuntimeError, TypeError) as error:  # tensors without memory: of functorch, fake tensors
            what = f"a {type(value).__name__} without values is not taken"
            raise InputError(what, where=name, why=str(error), remedy="give an ordinary tensor") from error
    refuse_masked(name, value)
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        return array if array.flags.aligned else array.copy()  # engines read aligned numbers
    what = f"expected a numpy array or torch tensor, got {type(value).__name__}"
    raise InputError(what, where=name, remedy=_as_arguments(value) or "numpy.asarray(x, dtype)")


def check_inputs(program: Program, inputs: Mapping[str, Any], integers: Container[str]) -> dict[str, Array]:
    """Return what an engine is given, as arrays of the declared dtypes and shapes.

    Args:
        program: checked.
        inputs: by name.
        integers: inputs that may also be given as the uint8 integers they are quantized to.

    Raises:
        InputError: an input is missing, or has another dtype or shape.
    """
    given: dict[str, Array] = {}
    for name in program.inputs:
        if name not in inputs:
            raise InputError("input is missing", where=name, remedy=f"give all of {list(program.inputs)}")
        x, meta = np.asarray(inputs[name]), program.tensors[name]
        if x.dtype.name != meta.dtype and not (x.dtype == np.uint8 and name in integers):
            remedy = f"x.astype('{meta.dtype}')"
            raise InputError(f"expected {meta.dtype}, got {x.dtype}", where=name, remedy=remedy)
        if not fits(meta.shape, x.shape):
            raise InputError(f"expected shape {show(meta.shape)}, got {x.shape}", where=name)
        given[name] = x
    return given


def check_feed(program: Program, given: Mapping[str, Array], feed: Mapping[str, Any] | None) -> dict[str, Array]:
    """Return the results of float operations that are given instead of being computed, as arrays; other names are left
    out.

    Args:
        program: checked.
        given: checked inputs.
        feed: by name.

    Raises:
        InputError: a result has another dtype or shape than these inputs give it.
    """
    floats = {op.name for op in program.ops if op.is_float}
    fed = {name: np.asarray(x) for name, x in (feed or {}).items() if name in floats}
    tensors = sized(fixed(program, sizes_of(program, given)), batch_size(program, given) or 1).tensors if fed else {}
    for name, x in fed.items():
        meta = tensors[name]
        if x.dtype.name != meta.dtype or not fits(meta.shape, x.shape):
            what = f"fed {x.dtype} of shape {x.shape}, not {meta.dtype} of {show(meta.shape)}"
            raise InputError(what, where=name, remedy="feed what this operation gives for these inputs")
    return fed


def is_empty(program: Program, arrays: Mapping[str, Any]) -> bool:
    """Return whether a call has no samples."""
    return any(0 in x.shape for x in arrays.values()) and batch_size(program, arrays) == 0


def refuse_empty(program: Program, arrays: Mapping[str, Any]) -> None:
    """Raise InputError where a call has no samples, of which some tensors are asked for that have no value then."""
    if is_empty(program, arrays):
        raise InputError("the batch is empty", where=program.inputs[0], remedy="give one sample or more")


def _check_batch(program: Program, arrays: Mapping[str, Array]) -> None:
    sizes = [
        (n, arrays[n].shape[i]) for n in program.inputs for i, d in enumerate(program.tensors[n].shape) if d is None
    ]
    for name, size in sizes:
        if size != sizes[0][1]:
            what = f"batch of {size}, but {sizes[0][0]} has {sizes[0][1]}"
            raise InputError(what, where=name, remedy="give equal batches")


def empty_outputs(program: Program, arrays: Mapping[str, Any]) -> list[Array]:
    """Return the outputs of an empty batch.

    Args:
        program: checked.
        arrays: inputs by name, which tell the sizes of named dimensions.

    Raises:
        InputError: an output does not depend on the batch, so it has no value.
    """
    out = []
    program = fixed(program, sizes_of(program, arrays))
    for name in program.outputs:
        t = program.tensors[name]
        if None not in t.shape:
            why = f"output {name} has no batch dimension"
            raise InputError("the batch is empty", why=why, remedy="give one sample or more")
        out.append(np.zeros([d if isinstance(d, int) else 0 for d in t.shape], t.dtype))
    return out


def is_channels_last(x: Array) -> bool:
    """Return whether images (N, C, …) lie in memory pixel by pixel and not plane by plane."""
    return not x.flags.c_contiguous and bool(np.moveaxis(x, 1, -1).flags.c_contiguous)


def to_torch(array: Array) -> Any:
    """Return a torch tensor of ``array``'s values; torch must be imported already."""
    return sys.modules["torch"].from_numpy(np.require(array, requirements=["C", "W"]))
