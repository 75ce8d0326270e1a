"""Which of oneDNN's kernels a convolution runs in.

On CPUs with AVX512 and VNNI, and without AMX, OpenVINO (2026.4) takes the "brgconv" kernels, which multiply matrices
block by block. Where sums are short and there are many of them, the older "jit" kernels finish a sum in fewer
instructions: on a Zen 5 they take 0.78 to 0.95 of the time for most pointwise convolutions and for those with three
input channels, and up to 1.3 times as long for large sums of few pixels. Both add in int32 and finish in the same
float32 operations. The choice is a runtime attribute of a node, which Python can only bring to one by reading it from a
file's text.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from openvino import opset14 as ov

from intact8.engines import cpu
from intact8.engines.openvino.core import core
from intact8.engines.openvino.lowering import OpContext, Port

PREFERRED = "cpu:jit_avx512_1x1,cpu:jit_avx512"
MANY, SOME, SHORT = 28 * 28, 14 * 14, 128
"""Pixels; and the length of a sum that is short."""

_TEMPLATE = """<net name="t" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="?,?,?,?" element_type="f32"/><output>
<port id="0" precision="FP32"/></output></layer>
<layer id="1" name="w" type="Parameter" version="opset1"><data shape="?,?,?,?" element_type="f32"/><output>
<port id="0" precision="FP32"/></output></layer>
<layer id="2" name="y" type="Convolution" version="opset1"><data strides="{strides}" dilations="{dilations}"
pads_begin="{before}" pads_end="{after}" auto_pad="explicit"/>
<rt_info><attribute name="primitives_priority" version="0" value="{kernels}"/></rt_info>
<input><port id="0"/><port id="1"/></input><output><port id="2" precision="FP32"/></output></layer>
<layer id="3" name="r" type="Result" version="opset1"><input><port id="0"/></input></layer></layers>
<edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/></edges></net>"""
"""A convolution in OpenVINO's intermediate representation."""


def selectable() -> bool:
    """Return whether this CPU is of the kind the choice was measured on."""
    return cpu.isa() == "avx512_core_vnni" and "amx_int8" not in cpu.flags()


def preferred(ctx: OpContext) -> str:
    """Build OpenVINO's names of the kernels to try first for an ordinary convolution; "" leaves it the choice.

    See ``benchmarks/kernels.py``.
    """
    if not ctx.kernel_batch or ctx.float_product:
        return ""
    weight, pixels = ctx.op.arrays["weight"], prod(int(d) for d in ctx.out.shape[2:] if d is not None)
    if weight.ndim != 4:
        return ""
    if weight.shape[2:] != (1, 1):
        return PREFERRED if pixels >= MANY else ""
    pixels *= ctx.kernel_batch
    return PREFERRED if pixels >= MANY or (pixels >= SOME and weight.shape[1] <= SHORT) else ""


def convolution(
    ctx: OpContext, x: Port, w: Port, strides: list[int], before: list[int], after: list[int], dilations: list[int]
) -> Any:
    """Build ``openvino.opset14.convolution`` that tries the preferred kernels first."""
    kernels = preferred(ctx)
    if not kernels:
        return ov.convolution(x, w, strides, before, after, dilations)
    texts = (",".join(map(str, v)) for v in (strides, before, after, dilations))
    node = _convolution(_template(kernels, *texts).clone())
    node.set_arguments([x, w])
    node.constructor_validate_and_infer_types()
    return node


@cache
def _template(kernels: str, strides: str, before: str, after: str, dilations: str) -> Any:
    """Return a model of one convolution of four dimensions, of any sizes: reading one takes 4 ms, and few differ."""
    lists = {"strides": strides, "before": before, "after": after, "dilations": dilations}
    return core().read_model(_TEMPLATE.format(kernels=kernels, **lists).encode(), b"")


def _convolution(model: Any) -> Any:
    return next(op for op in model.get_ops() if op.get_type_name() == "Convolution")
