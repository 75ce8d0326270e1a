"""Golden vectors: inputs a program is proved on wherever it arrives, and checksums of what they must give.

Inputs are patterns, computed from the program and exact in integers, so that they take no room in the file. Of every
tensor that follows from them by exact operations the file holds one CRC-32 per sample: a few bytes per operation, and
enough to name the first operation an engine gets wrong. Outputs that lie behind a float island are no integers all
engines agree on; of these a few values are stored and compared within a tolerance.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from intact8.opset import KINDS, Array, Op, Tensor
from intact8.opset.op import same_arrays
from intact8.opset.values import LARGEST_SIZE, is_int
from intact8.opset.violation import Violation, need

from .dimensions import SAMPLE, sized_near

if TYPE_CHECKING:
    from .program import Program

PATTERNS = ("noise", "smooth", "extremes", "low", "high")
"""Every integer at random; waves along all dimensions; lowest and highest at random; all lowest; all highest."""

PREFIX = "/golden/"
"""Names of arrays in the file. No op's array is called so: roles are words, these end in a number."""

MOST_SAMPLES, MOST_VALUES = 16, 256

BLOCK = 1 << 16
"""How many elements of a sample are made at once."""


@dataclass(frozen=True)
class Golden:
    """What a program must reproduce.

    Attributes:
        samples: (pattern, seed) of each sample.
        bounds: int64 inputs → their values stay below this.
        checksums: tensor → CRC-32 of its bytes (little-endian, C order) per sample; exact tensors only.
        outputs: index of an output behind a float island → float32 (samples, ≤ 256) of its values, evenly spaced.
        omitted: why there are no samples, "" where there are.
    """

    samples: tuple[tuple[str, int], ...] = ()
    bounds: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[int, Array] = field(default_factory=dict)
    omitted: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Golden):
            return NotImplemented
        plain = all(getattr(self, f.name) == getattr(other, f.name) for f in fields(self) if f.name != "outputs")
        return plain and same_arrays(self.outputs, other.outputs)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; arrays live outside, see :meth:`arrays`."""
        if self.omitted:
            return {"omitted": self.omitted}
        return {
            "samples": [list(s) for s in self.samples],
            "bounds": dict(self.bounds),
            "checksums": {name: list(sums) for name, sums in self.checksums.items()},
            "outputs": sorted(self.outputs),
        }

    def arrays(self) -> dict[str, Array]:
        """Return the stored output values by their name in the file."""
        return {f"{PREFIX}{i}": array for i, array in self.outputs.items()}


def exact_tensors(program: Program) -> list[str]:
    """Return the tensors that every engine gives bit for bit, as no float operation lies before them, without inputs.

    A ``dequantize`` is one float32 multiplication, exact everywhere, so an ordinary float32 output is among them.
    """
    exact = set(program.inputs)
    found = []
    for op in program.ops:
        if not op.is_float and exact.issuperset(op.inputs):
            exact.add(op.name)
            found.append(op.name)
    return found


def checksum(array: Array) -> int:
    """Return CRC-32 of an array's bytes, little-endian in C order; −0.0 counts as 0.0.

    Example:
        >>> checksum(np.array([0.0, 1.0], np.float32)) == checksum(np.array([-0.0, 1.0], np.float32))
        True
    """
    if array.dtype.kind == "f":
        array = array + array.dtype.type(0)
    return zlib.crc32(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)


def values_of(array: Array) -> Array:
    """At most 256 values of one output, evenly spaced, as float32."""
    flat = array.ravel()
    step = max(1, -(-flat.size // MOST_VALUES))
    return flat[::step].astype(np.float32)


def sample(program: Program, golden: Golden, index: int) -> dict[str, Array]:
    """Return the inputs by name of one sample: batch 1, in the dtypes the program declares."""
    program = sized_near(program, SAMPLE)
    pattern, seed = golden.samples[index]
    quantizers = {op.inputs[0]: op for op in reversed(program.ops) if op.kind == "quantize"}
    return {
        name: _input(program, name, pattern, seed + 7919 * position, golden.bounds.get(name, 2), quantizers.get(name))
        for position, name in enumerate(program.inputs)
    }


def _input(program: Program, name: str, pattern: str, seed: int, bound: int, quantizer: Op | None) -> Array:
    tensor = program.tensors[name]
    shape = tuple(d if isinstance(d, int) else 1 for d in tensor.shape)
    integers = tensor.quantized or tensor.dtype != "float32"
    if integers:
        low, high = 0, {"int64": bound - 1, "bool": 1}.get(tensor.dtype, 255)
        scale, zero_point = 1.0, 0
    else:
        scale, zero_point, low, high = _grid(program, quantizer)
    values = np.empty(math.prod(shape), tensor.dtype)
    for start in range(0, values.size, BLOCK):  # the int64 and float64 in between are larger than what is made
        stop = min(start + BLOCK, values.size)
        q = _integers(pattern, shape, start, stop, seed, low, high)
        if integers:
            values[start:stop] = q
            continue
        steps = q.astype(np.float64) - zero_point
        if pattern == "noise":  # off the grid by up to 0.4 steps, so that rounding has something to do
            steps += (_hash(start, stop, seed + 1) % np.uint32(801)).astype(np.float64) / 1000.0 - 0.4
        values[start:stop] = (steps * scale).astype(np.float32)
    return values.reshape(shape)


def _grid(program: Program, quantizer: Op | None) -> tuple[float, int, int, int]:
    """Return scale, zero point, lowest and highest integer of the first ``quantize`` that reads a float32 input."""
    if quantizer is None:
        return 1.0 / 128, 128, 0, 255
    t: Tensor = program.tensors[quantizer.name]
    return float(t.scale or 1.0), int(t.zero_point or 0), int(quantizer.attrs["lo"]), int(quantizer.attrs["hi"])


def _integers(pattern: str, shape: tuple[int, ...], start: int, stop: int, seed: int, low: int, high: int) -> Array:
    """Return the elements ``start`` to ``stop`` of the pattern, int64."""
    if pattern in ("low", "high"):
        return np.full(stop - start, low if pattern == "low" else high, np.int64)
    if pattern == "smooth":
        return _waves(shape, start, stop, seed, low, high)
    noise = _hash(start, stop, seed)
    if pattern == "extremes":
        return np.where(noise & np.uint32(1), np.int64(high), np.int64(low))
    return noise.astype(np.int64) % (high - low + 1) + low


def _waves(shape: tuple[int, ...], start: int, stop: int, seed: int, low: int, high: int) -> Array:
    """Return the triangles along every dimension, in integers."""
    total, at = np.zeros(stop - start, np.int64), np.arange(start, stop, dtype=np.int64)
    for axis, size in enumerate(shape):
        step = 3 + (seed + 4 * axis) % 11
        total += at // math.prod(shape[axis + 1 :]) % size * step
    span = max(high - low, 1)
    folded = total % (2 * span)
    return low + np.minimum(np.where(folded > span, 2 * span - folded, folded), high - low)


def _hash(start: int, stop: int, seed: int) -> Array:
    """Return the well mixed uint32 of a counter (the finalizer of MurmurHash3): the same under any numpy."""
    x = np.arange(start, stop, dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    return x


def index_bounds(program: Program) -> dict[str, int]:
    """Map int64 inputs to the number of rows of the smallest embedding they can reach; to 2 where they reach none."""
    bounds = {}
    for name in program.inputs:
        if program.tensors[name].dtype != "int64":
            continue
        reached, rows = {name}, []
        for op in program.ops:
            if reached.intersection(op.inputs):
                reached.add(op.name)
                if KINDS[op.kind].rows_by_index:
                    rows.append(int(op.arrays["weight"].shape[0]))
        bounds[name] = min(rows, default=2)
    return bounds


def products(program: Program) -> int:
    """Return the multiplications of convolutions and linear layers for one sample: what the reference engine's time
    goes with."""
    return sum(_products(op, program.tensors) for op in program.ops if KINDS[op.kind].multiplies_weights)


def _products(op: Op, tensors: Mapping[str, Tensor]) -> int:
    weight = op.arrays["weight"]
    places = tensors[op.inputs[0] if op.attrs.get("transposed") else op.name]
    sizes = places.shape[2:] if op.kind == "conv" else places.shape[1:-1]
    return int(weight.size) * math.prod(d for d in sizes if isinstance(d, int))


def from_json(value: Mapping[str, Any], arrays: dict[str, Array]) -> Golden:
    """Return the golden vectors of a JSON object; takes theirs out of ``arrays``. Not checked yet beyond types.

    Raises:
        Violation: a key missing, unknown or of the wrong type; an array missing.
    """
    if set(value) == {"omitted"}:
        need(isinstance(value["omitted"], str) and 0 < len(value["omitted"]) <= 1000, "omitted must be a short text")
        return Golden(omitted=value["omitted"])
    need(set(value) == {"samples", "bounds", "checksums", "outputs"}, f"bad keys {sorted(map(str, value))!r:.80}")
    samples, bounds, checksums, outputs = (value[k] for k in ("samples", "bounds", "checksums", "outputs"))
    need(isinstance(samples, list) and isinstance(outputs, list), "samples and outputs are lists")
    need(isinstance(bounds, dict) and isinstance(checksums, dict), "bounds and checksums are objects")
    need(all(isinstance(s, list) and len(s) == 2 for s in samples), "a sample is [pattern, seed]")
    need(all(isinstance(v, list) for v in checksums.values()), "checksums are lists")
    need(all(is_int(i) for i in outputs) and len(set(outputs)) == len(outputs), "outputs are different integers")
    missing = [i for i in outputs if f"{PREFIX}{i}" not in arrays]
    need(not missing, f"the values of output {missing[:1]} are missing from the file")
    return Golden(
        tuple((s[0], s[1]) for s in samples),
        dict(bounds),
        {k: tuple(v) for k, v in checksums.items()},
        {i: arrays.pop(f"{PREFIX}{i}") for i in outputs},
    )


def check_golden(program: Program) -> None:
    """Whether ``program.golden`` fits the program: nothing is computed for it before this holds.

    Raises:
        Violation: it does not.
    """
    golden = program.golden
    if golden is None or golden.omitted:
        return
    count = len(golden.samples)
    need(1 <= count <= MOST_SAMPLES, f"{count} samples, not 1 to {MOST_SAMPLES}")
    for pattern, seed in golden.samples:
        need(isinstance(pattern, str) and pattern in PATTERNS, f"unknown pattern {pattern!r:.40}")
        need(is_int(seed) and 0 <= seed < 1 << 20, f"bad seed {seed!r:.40}")
    indices = {name for name in program.inputs if program.tensors[name].dtype == "int64"}
    need(set(golden.bounds) == indices, "bounds are for other inputs than the int64 ones")
    need(all(is_int(v) and 1 <= v <= LARGEST_SIZE for v in golden.bounds.values()), "a bound is out of range")
    need(list(golden.checksums) == exact_tensors(program), "checksums are for other tensors than the exact ones")
    for name, sums in golden.checksums.items():
        fits = len(sums) == count and all(is_int(v) and 0 <= v < 1 << 32 for v in sums)
        need(fits, f"the checksums of {name!r:.80} are not {count} of 32 bits")
    for index, array in golden.outputs.items():
        need(0 <= index < len(program.outputs), f"there is no output {index}")
        fits = array.ndim == 2 and array.shape[0] == count and 1 <= array.shape[1] <= MOST_VALUES
        need(fits and array.dtype == np.float32, f"the values of output {index} have shape {array.shape}")


__all__ = ["Golden", "Violation", "check_golden", "checksum", "exact_tensors", "from_json", "index_bounds", "sample"]
