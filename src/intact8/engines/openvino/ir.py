"""A program as OpenVINO IR (.xml and .bin), which plain OpenVINO reads: the model that this engine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset14 as ov

from intact8.arithmetic.affine import dequantize, quantize
from intact8.export.files import write_together
from intact8.opset.op import Array, Tensor
from intact8.program.dimensions import sizes_near
from intact8.program.inputs import sole_quantizers
from intact8.program.program import Program

from .build import Built, Output, build
from .checked_compile import compile_checked
from .compile import OPTIONS, compile_model, refusal, refusals
from .core import core
from .input_quantize import QUANTIZES, Grid, boundaries
from .lowering import Port, constant, ints, port, scalar
from .plan import Feeds, Plan, sources

LENGTH = 32
"""Size of named dimensions, or the limit it passes."""


def save_ir(program: Program, path: Path, *, batch: int = 1, uint8_input: bool = False) -> tuple[Path, Path]:
    """Write the model that this engine runs for one batch size.

    The integers are the program's where the model is compiled with ``OPTIONS``: by default, OpenVINO computes in
    bfloat16 on CPUs that have it. The options stand in the model's runtime information, under ``intact8``.

    Args:
        program: checked.
        path: of the .xml file; the .bin file stands beside it.
        batch: what stands for None in shapes; named dimensions get a size of 32, or the limit it passes.
        uint8_input: take the integers of quantized inputs instead of floats.

    Returns:
        The two paths.

    Raises:
        EngineError: OpenVINO refuses the program, or does not evaluate its quantization of floats exactly.
    """
    plan, quantizers = Plan.of(program), sole_quantizers(program) if uint8_input else {}
    feeds = Feeds(integers=frozenset(quantizers), sizes=tuple(sorted(sizes_near(program, LENGTH).items())))
    outside = [op.name for op in sources(plan, feeds) if op.inputs[0] not in quantizers]
    if outside:
        why = "OpenVINO does not divide floats as the program does"
        what = "the quantization of this input has no exact form in OpenVINO"
        raise refusal(what, outside[0], why, "export with uint8_input=True")
    decoded = {op.name: op.inputs[0] for op in program.ops if op.kind == "dequantize" and op.name in program.outputs}
    names = tuple(dict.fromkeys(program.outputs))
    wanted = tuple(dict.fromkeys(decoded.get(name, name) for name in names))
    if not set(wanted).isdisjoint({*program.inputs, *(op.name for op in quantizers.values())}):
        raise refusal("an output is an input", program.inputs[0])
    _, plan = compile_checked(plan, batch, feeds, wanted, None)
    built = build(plan.at(dict(feeds.sizes)), batch, wanted, feeds)
    model = _with_outputs(built, program, {name: decoded.get(name, name) for name in names})
    _name(model, built.inputs, {op.name: name for name, op in quantizers.items()}, names)
    _without_divisions(model)
    for name, value in OPTIONS.items():
        model.set_rt_info(str(value), ["intact8", name])
    xml = path.with_suffix(".xml")
    write_together(xml, (".bin", ".xml"), lambda path: openvino.save_model(model, str(path), compress_to_fp16=False))
    return xml, xml.with_suffix(".bin")


def run_file(path: Path, inputs: dict[str, Array]) -> dict[str, Array]:
    """Read a model (IR or ONNX) with OpenVINO alone, compile it with ``OPTIONS``, and run it: output name → array."""
    with refusals("OpenVINO cannot run the model", str(path)):
        compiled = compile_model(core().read_model(str(path)), None)
        found = compiled({name: inputs[name] for name in (x.get_any_name() for x in compiled.inputs)})
    return {name: np.array(found[output]) for output in compiled.outputs for name in output.get_names()}


def _with_outputs(built: Built, program: Program, sources: dict[str, str]) -> Any:
    """Return the model with integers as results, where the engine reads them from floats, and what is decoded of them.

    Args:
        built: what the engine runs.
        program: what was built.
        sources: output → the tensor that it is, or is dequantized from.
    """
    values: dict[str, Port] = {}
    for result, output in zip(built.model.get_results(), built.outputs, strict=True):
        if output.truncated:
            raise refusal("a cast of floats to integers has no exact form in OpenVINO", output.name)
        value = result.input_value(0)
        if value.get_node().get_type_name() == "Parameter":  # behind operations that move nothing
            raise refusal("an output is an input", output.name)
        values[output.name] = value if output.scale is None else _integers(output, value)
    results = [values[x] if x == name else _decoded(values[x], program.tensors[x]) for name, x in sources.items()]
    return openvino.Model([ov.result(x) for x in results], built.model.get_parameters(), "intact8")


def _without_divisions(model: Any) -> None:
    """Replace the quantizations that divide: files do not hold the attribute that keeps a division one.

    OpenVINO (2026.4) multiplies by the inverse, of constants and of what it computes.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Divide" and QUANTIZES in node.get_rt_info():
            clamp = _reader(_reader(node))
            limits, last, z = clamp.get_attributes(), _reader(clamp), 0
            if last.get_type_name() == "Add":
                z, last = int(last.input_value(1).get_node().get_data().item()), _reader(last)
            scale = float(node.input_value(1).get_node().get_data().item())
            grid = Grid(scale, z, int(limits["min"]) + z, int(limits["max"]) + z)
            quantized = _compared(node.input_value(0), grid)
            for target in list(port(last).get_target_inputs()):
                target.replace_source_output(quantized)


def _reader(node: Any) -> Any:
    (target,) = port(node).get_target_inputs()
    return target.get_node()


def _compared(x: Port, grid: Grid) -> Port:
    """Build the uint8 integers of ``quantize``: a product with 1/s, moved to the integer whose limits hold x."""
    limits = constant(_least_floats(grid))
    steps = port(ov.round(port(ov.multiply(x, scalar(1.0 / grid.scale))), "half_to_even"))
    near = port(ov.clamp(port(ov.add(steps, scalar(grid.zero))), float(grid.lo), float(grid.hi)))
    index = port(ov.convert(near, np.int32))
    below = ov.less(x, port(ov.gather(limits, index, ints(0))))
    above = ov.greater_equal(x, port(ov.gather(limits, port(ov.add(index, ov.constant(np.int32(1)))), ints(0))))
    up, down = (port(ov.convert(port(truth), np.float32)) for truth in (above, below))
    moved = port(ov.subtract(port(ov.add(near, up)), down))
    return port(ov.convert(port(ov.clamp(moved, float(grid.lo), float(grid.hi))), np.uint8))


def _least_floats(grid: Grid) -> Array:
    """Return the least float32 number that becomes each integer or more, (257,); infinite where all do, or none."""
    x = np.unique(boundaries(grid))
    q = quantize(x, np.float32(grid.scale), grid.zero, grid.lo, grid.hi)
    within = [x[np.argmax(q >= k)] for k in range(grid.lo + 1, grid.hi + 1)]
    return np.array([-np.inf] * (grid.lo + 1) + within + [np.inf] * (256 - grid.hi), np.float32)


def _integers(output: Output, x: Port) -> Port:
    assert output.scale is not None
    steps = port(ov.round(port(ov.multiply(x, scalar(1.0 / output.scale))), "half_to_even"))
    return port(ov.convert(port(ov.add(steps, scalar(output.zero_point))), np.uint8))


def _decoded(q: Port, t: Tensor) -> Port:
    """Build (q − z)·s by a table: OpenVINO would merge the factor with others before it."""
    table = dequantize(np.arange(256), np.float32(t.scale or 1.0), int(t.zero_point or 0))
    return port(ov.gather(constant(table), port(ov.convert(q, np.int32)), ints(0)))


def _name(model: Any, inputs: tuple[str, ...], sources: dict[str, str], wanted: tuple[str, ...]) -> None:
    """Give inputs and outputs the program's names, by which OpenVINO's users find them."""
    for parameter, given in zip(model.get_parameters(), inputs, strict=True):
        name = sources.get(given, given)
        parameter.set_friendly_name(name)
        parameter.output(0).get_tensor().set_names({name})
    for result, name in zip(model.get_results(), wanted, strict=True):
        result.set_friendly_name(f"{name}/result")
        result.output(0).get_tensor().add_names({name})  # two outputs may be one value
