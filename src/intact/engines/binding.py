"""Between the caller and an engine: inputs by name as checked numpy arrays, outputs nested as the model nested them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intact.errors import InputError
from intact.program.ops import Array, Op, Tensor
from intact.program.program import Program


def is_torch(value: Any) -> bool:
    """Whether ``value`` is a torch tensor; never imports torch, for whoever holds a tensor has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def bind(program: Program, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Array]:
    """Inputs by name as numpy arrays of the right dtype, rank and shape.

    Args:
        program: what the inputs are for.
        args: arrays or torch tensors in the order of ``program.inputs``.
        named: the rest by name.

    Raises:
        InputError: too many, missing, unknown or doubly given; wrong dtype, rank or shape; batch sizes that differ; NaN
            where a number is quantized.
    """
    values = _by_name(program, args, named)
    quantizers = sole_quantizers(program)
    arrays = {name: _array(name, values[name], program.tensors[name], quantizers.get(name)) for name in program.inputs}
    _check_batch(program, arrays)
    return arrays


def _by_name(program: Program, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    expected = ", ".join(program.inputs)
    if len(args) > len(program.inputs):
        raise InputError(f"got {len(args)} inputs, expected {len(program.inputs)}", remedy=f"give {expected}")
    values: dict[str, Any] = dict(zip(program.inputs, args, strict=False))
    for name, value in named.items():
        if name not in program.inputs:
            raise InputError("the program has no such input", where=name, remedy=f"the inputs are {expected}")
        if name in values:
            raise InputError("given by position and by name", where=name, remedy="give it once")
        values[name] = value
    missing = [name for name in program.inputs if name not in values]
    if missing:
        raise InputError("the input is missing", where=missing[0], remedy=f"give all of {expected}")
    return values


def sole_quantizers(program: Program) -> dict[str, Op]:
    """Float inputs whose only use is one ``quantize`` op, with that op: they also take the uint8 integers."""
    users: dict[str, list[Op]] = {name: [] for name in program.inputs}
    for op in program.ops:
        for name in op.inputs:
            if name in users:
                users[name].append(op)
    return {
        name: ops[0]
        for name, ops in users.items()
        if len(ops) == 1 and ops[0].kind == "quantize" and name not in program.outputs
    }


def _array(name: str, value: Any, tensor: Tensor, quantizer: Op | None) -> Array:
    array = _numpy(name, value)
    takes_integers = quantizer is not None or tensor.quantized
    if str(array.dtype) != tensor.dtype and not (takes_integers and array.dtype == np.uint8):
        allowed = f"{tensor.dtype} or uint8" if takes_integers and tensor.dtype != "uint8" else tensor.dtype
        raise InputError(f"expected {allowed}, got {array.dtype}", where=name, remedy=f"convert it to {tensor.dtype}")
    fits = array.ndim == len(tensor.shape) and all(
        d in (None, n) for d, n in zip(tensor.shape, array.shape, strict=True)
    )
    if not fits:
        shape = ", ".join("batch" if d is None else str(d) for d in tensor.shape)
        missing = array.ndim == len(tensor.shape) - 1 and tensor.shape[0] in (None, 1)
        remedy = "add the batch dimension: x[None]" if missing else "reshape or resize it"
        raise InputError(f"expected shape ({shape}), got {array.shape}", where=name, remedy=remedy)
    if quantizer is None:
        return array
    if array.dtype == np.uint8:
        # Integers outside the clamp are what quantize never gives.
        lo, hi = quantizer.attrs["lo"], quantizer.attrs["hi"]
        return array if (lo, hi) == (0, 255) else np.clip(array, lo, hi)
    if array.size and np.isnan(np.min(array)):  # min propagates NaN in one pass, without a mask
        raise InputError("the input holds NaN", where=name, why="no integer stands for NaN", remedy="repair the data")
    return array


def _numpy(name: str, value: Any) -> Array:
    if is_torch(value):
        if value.device.type != "cpu":
            raise InputError(f"the tensor is on {value.device}", where=name, remedy="move it: x.cpu()")
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in ("float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64", "bool"):
            raise InputError(f"tensors of dtype {dtype} are not taken", where=name, remedy="convert it: x.float()")
        return np.asarray(value.detach().resolve_conj().resolve_neg().numpy())
    if isinstance(value, np.ndarray):
        return value
    raise InputError(
        f"expected a numpy array or torch tensor, got {type(value).__name__}",
        where=name,
        remedy="numpy.asarray(x, dtype)",
    )


def batch_size(program: Program, arrays: Mapping[str, Array]) -> int | None:
    """Size of the dynamic dimension, None where the program has none."""
    for name in program.inputs:
        for dim, size in zip(program.tensors[name].shape, arrays[name].shape, strict=True):
            if dim is None:
                return int(size)
    return None


def _check_batch(program: Program, arrays: Mapping[str, Array]) -> None:
    sizes = {name: arrays[name].shape[0] for name in program.inputs if program.tensors[name].shape[:1] == (None,)}
    first = next(iter(sizes), "")
    for name, size in sizes.items():
        if size != sizes[first]:
            raise InputError(
                f"batch of {size}, but {first} has {sizes[first]}", where=name, remedy="give equal batches"
            )


def empty_outputs(program: Program) -> list[Array]:
    """What an empty batch gives.

    Raises:
        InputError: an output does not depend on the batch, so it has no value.
    """
    out = []
    for name in program.outputs:
        t = program.tensors[name]
        if None not in t.shape:
            raise InputError(
                "the batch is empty", why=f"output {name} has no batch dimension", remedy="give one sample or more"
            )
        out.append(np.zeros([0 if d is None else d for d in t.shape], t.dtype))
    return out


def to_torch(array: Array) -> Any:
    """A torch tensor of ``array``'s values; torch must be imported already."""
    return sys.modules["torch"].from_numpy(np.require(array, requirements=["C", "W"]))


def rebuild(structure: Any, outputs: Sequence[Any]) -> Any:
    """Nest flattened outputs as the model did; objects come back as dicts of their fields.

    Example:
        >>> rebuild({"dict": {"a": 1, "b": {"list": [0, 1]}}}, ["x", "y"])
        {'a': 'y', 'b': ['x', 'y']}
    """
    if isinstance(structure, int):
        return outputs[structure]
    if "none" in structure:
        return None
    if "list" in structure:
        return [rebuild(s, outputs) for s in structure["list"]]
    if "tuple" in structure:
        return tuple(rebuild(s, outputs) for s in structure["tuple"])
    fields = structure["dict"] if "dict" in structure else structure["fields"]
    return {key: rebuild(s, outputs) for key, s in fields.items()}
