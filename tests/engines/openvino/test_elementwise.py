"""Operations OpenVINO's low precision passes would rewrite inexactly, and how they are built instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")

from intact8.engines.openvino import OpenVinoEngine
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

ENGINE = OpenVinoEngine()
pytestmark = pytest.mark.skipif(ENGINE.available() is not None, reason=str(ENGINE.available()))

ALL = {"lo": 0, "hi": 255}


def chain(
    ops: list[Op], shapes: dict[str, tuple[Any, ...]], zeros: dict[str, int], floats: tuple[str, ...] = ()
) -> Program:
    """A program of input x; scales are 1/16, and 1/23 of a result of ``quantize``."""
    scales = {op.name: float(np.float32(1 / 23)) for op in ops if op.kind == "quantize"}
    tensors = {
        n: Tensor(n, "float32", s) if n in floats else Tensor(n, "uint8", s, scales.get(n, 1 / 16), zeros.get(n, 100))
        for n, s in shapes.items()
    }  # fmt: skip
    program = Program(tensors, tuple(ops), ("x",), (ops[-1].name,))
    check(program)
    return program


def compare(program: Program, batch: int = 3) -> None:
    shape = [batch if d is None else int(d) for d in program.tensors["x"].shape]
    x = {"x": np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)}
    want = ReferenceEngine().prepare(program).tensors(x)
    runner = ENGINE.prepare(program, threads=1)
    np.testing.assert_array_equal(runner(x)[0], want[program.outputs[0]])
    seen = runner.tensors(x)
    assert all((seen[name] == value).all() for name, value in want.items())


ONE: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "one-term": ("add", ("x",), {"a": [881], "b": 855}),
    "one-term-down": ("add", ("x",), {"a": [-7], "b": 19}),
    "doubled": ("add", ("x", "x"), {"a": [7, 11], "b": 19}),
    "cancelled": ("add", ("x", "x"), {"a": [7, -7], "b": 19}),
    "cancelled-beside-another": ("add", ("x", "m", "x"), {"a": [7, 5, -7], "b": 19}),
    "square": ("mul", ("x", "x"), {"a": 3, "b": 401}),
    "nothing": ("mul", ("x", "m"), {"a": 0, "b": 19}),
}


@pytest.mark.parametrize("lo_hi", [(90, 201), (255, 255)], ids=str)
@pytest.mark.parametrize("name", list(ONE))
def test_what_one_tensor_decides(name: str, lo_hi: tuple[int, int]) -> None:
    """Its factor would be moved behind a clamp of the integers."""
    kind, inputs, attrs = ONE[name]
    clamp = dict(zip(("lo", "hi"), lo_hi, strict=True))
    window = {"kernel": [1, 1], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
    ops = [Op("m", "max_pool", ("x",), window)]
    ops = ops if "m" in inputs else []
    shape = (None, 5, 3, 4)
    compare(
        chain(
            [*ops, Op("y", kind, inputs, attrs | clamp)],
            dict.fromkeys(["x", *(o.name for o in ops), "y"], shape),
            {"y": 80},
        )
    )


@pytest.mark.parametrize("value", [0, 255])
def test_padding_with_another_integer(value: int) -> None:
    """Moved before the zero point, a value below it would be no uint8 integer."""
    ops = [
        Op("t", "table", ("x",), {"fn": "any"}, {"table": np.roll(np.arange(256), 9).astype(np.uint8)}),
        Op("y", "pad", ("t",), {"pads": [[0, 0], [1, 2]], "value": value}),
    ]
    compare(chain(ops, {"x": (None, 7), "t": (None, 7), "y": (None, 10)}, {}))


def test_padding_with_the_zero_point() -> None:
    ops = [
        Op("t", "table", ("x",), {"fn": "any"}, {"table": np.roll(np.arange(256), 9).astype(np.uint8)}),
        Op("y", "pad", ("t",), {"pads": [[0, 0], [1, 1], [0, 0], [0, 0]], "value": 100}),
    ]
    compare(chain(ops, {"x": (None, 1, 8, 33), "t": (None, 1, 8, 33), "y": (None, 3, 8, 33)}, {}))


def test_quantizing_what_was_dequantized() -> None:
    """No float operation lies between, so these integers are promised."""
    ops = [
        Op("d", "dequantize", ("x",)),
        Op("p", "permute", ("d",), {"dims": [0, 2, 1]}),
        Op("q", "quantize", ("p",), {"lo": 3, "hi": 250}),
        Op("y", "add", ("q", "q"), {"a": [1, 2], "b": 5, **ALL}),
    ]
    shapes = {"x": (None, 3, 9), "d": (None, 3, 9), "p": (None, 9, 3), "q": (None, 9, 3), "y": (None, 9, 3)}
    compare(chain(ops, shapes, {}, ("d", "p")))


@pytest.mark.parametrize("count", [9, 160, 4000])
def test_a_mean_of_steps_far_from_zero(count: int) -> None:
    """Differences from the zero point, multiplied: nothing of them is left in float32 once that was added."""
    a, b = 4095, 8191
    clamp = Op("t", "table", ("x",), {"fn": "any"}, {"table": (np.arange(256) % 5 + 251).astype(np.uint8)})
    y = Op("y", "mean", ("t",), {"dims": [2], "keepdim": False, "a": a, "b": b, **ALL})
    compare(chain([clamp, y], {"x": (None, 2, count), "t": (None, 2, count), "y": (None, 2)}, {"t": 253}))


def test_a_function_that_linear_layers_have_no_kernel_for() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "weight": rng.integers(-63, 64, (33, 33)).astype(np.int8), "bias": rng.integers(-900, 900, 33).astype(np.int32),
        "a": np.full(33, 5, np.int32), "b": np.full(33, 801, np.int32),
    }  # fmt: skip
    v = (np.arange(256) - 100) / 16
    entries = np.clip(np.rint(v * np.tanh(np.log1p(np.exp(v))) * 16) + 100, 0, 255).astype(np.uint8)
    ops = [
        Op("l", "linear", ("x",), {"residual_a": 0, **ALL}, arrays),
        Op("y", "table", ("l",), {"fn": "mish"}, {"table": entries}),
    ]
    compare(chain(ops, dict.fromkeys(["x", "l", "y"], (None, 33)), {}))


@pytest.mark.parametrize(("stride", "refused"), [(4095, False), (4096, True), (65536, True)])
def test_strides_that_end_the_process(stride: int, refused: bool) -> None:
    arrays = {
        "weight": np.ones((1, 1, 1, 2), np.int8), "bias": np.zeros(1, np.int32),
        "a": np.ones(1, np.int32), "b": np.full(1, 11, np.int32),
    }  # fmt: skip
    attrs = {
        "stride": [1, stride], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1,
        "transposed": True, "residual_a": 0, **ALL,
    }  # fmt: skip
    program = chain([Op("y", "conv", ("x",), attrs, arrays)], {"x": (None, 1, 1, 2), "y": (None, 1, 1, stride + 2)}, {})
    if refused:
        with pytest.raises(EngineError, match=f"y: a transposed convolution.*multiply to {2 * stride}.*Remedy"):
            ENGINE.prepare(program)
    else:
        compare(program, 1)


def test_what_openvino_refuses_to_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Exception from here:\nno kernel for this\n\n")

    monkeypatch.setattr("intact8.engines.openvino.compile.core", lambda: type("C", (), {"compile_model": refuse})())
    program = chain([Op("y", "add", ("x",), {"a": [1], "b": 3, **ALL})], dict.fromkeys("xy", (None, 4)), {})
    with pytest.raises(EngineError, match="refuses this program.*no kernel for this"):
        ENGINE.prepare(program)


@pytest.mark.parametrize("shifts", [[-4, 4], [1, 0]], ids=str)
@pytest.mark.parametrize("kind", ["add", "mul"])
def test_constants_that_moved_meet_an_input(kind: str, shifts: list[int]) -> None:
    stored = np.random.default_rng(1).integers(0, 256, (3, 8), dtype=np.uint8)
    numbers = {"a": [30, -55], "b": 101} if kind == "add" else {"a": 1, "b": 101}
    ops = [
        Op("c", "constant", (), {}, {"value": stored}),
        Op("r", "roll", ("c",), {"shifts": shifts, "dims": [0, 1]}),
        Op("s", "slice", ("r",), {"axis": 1, "start": 0, "end": 8, "step": 2}),
        Op("t", "table", ("s",), {"fn": "f"}, {"table": np.arange(256, dtype=np.uint8)[::-1].copy()}),
        Op("y", kind, ("r", "x"), numbers | ALL),
        Op("z", "slice", ("y",), {"axis": 1, "start": 1, "end": 8, "step": 2}),
        Op("w", "add", ("t", "z"), {"a": [30, 40], "b": 101, **ALL}),
    ]
    half = dict.fromkeys(("s", "t", "z", "w"), (3, 4))
    compare(chain(ops, {"x": (3, 8), "c": (3, 8), "r": (3, 8), "y": (3, 8), **half}, {}))
