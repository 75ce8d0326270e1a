"""The conformance kit has the reference engine's integers, finds engines that round otherwise, and stands alone."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.program.build import conv_attrs

from intact8.arithmetic.tie_free import error_bound
from intact8.engines.cpu import adds_at_once
from intact8.engines.reference import evaluate
from intact8.opset.op import Op, Tensor
from intact8_conformance import OPERATIONS, Case, compare, ideal, vectors
from intact8_conformance.__main__ import main
from intact8_conformance.boundary import LARGEST, boundary_sum, largest_denominator
from intact8_conformance.compare import markdown
from intact8_conformance.engines import ENGINES, Engine

KIT = Path(__file__).parents[2] / "conformance"
CLAMP = {"lo": 0, "hi": 255}


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(vectors())


def ratio(scale: float) -> tuple[int, int]:
    """The fraction with a small denominator that float32 scales stand for."""
    found = Fraction(scale).limit_denominator(LARGEST)
    return found.numerator, found.denominator


def operation(case: Case) -> Op | None:
    """The same operation of this project; None for those that have other semantics here, or are tables."""
    names = tuple(f"x{i}" for i in range(len(case.inputs)))
    scales = [grid.scale for grid in case.grids]
    if case.output is None or case.operation == "quantize":
        return Op("y", case.operation, names, CLAMP if case.output else {})
    arrays: dict[str, Any] = {}
    if case.weight is not None and case.weight_scale is not None and case.bias is not None:
        pairs = [ratio(scales[0] * float(s) / case.output.scale) for s in case.weight_scale]
        arrays = {"weight": case.weight, "bias": case.bias}
        arrays |= {
            role: np.array(values, np.int32) for role, values in zip("ab", zip(*pairs, strict=True), strict=True)
        }
    if "conv2d" in case.operation:
        a = case.attributes
        return Op(
            "y", "conv", names, conv_attrs(padding=a["padding"], groups=a["groups"], stride=[a["stride"]] * 2), arrays
        )
    if case.operation == "linear":
        return Op("y", "linear", names, {**CLAMP, "residual_a": 0}, arrays)
    if case.operation in ("add", "requantize"):
        pairs = [ratio(s / case.output.scale) for s in scales]
        b = pairs[0][1]
        assert {d for _, d in pairs} == {b}
        return Op("y", "add", names, {"a": [a for a, _ in pairs], "b": b, **CLAMP})
    if case.operation == "mul":
        a, b = ratio(scales[0] * scales[1] / case.output.scale)
        return Op("y", "mul", names, {"a": a, "b": b, **CLAMP})
    if case.operation == "average_pool2d":
        kernel, n = [case.attributes["kernel"]] * 2, case.attributes["kernel"] ** 2
        window = {"kernel": kernel, "stride": kernel, "padding": [0, 0], "ceil_mode": False, "count_include_pad": True}
        multipliers = [[n, *ratio(scales[0] / n / case.output.scale)]]
        return Op("y", "avg_pool", names, {**window, "multipliers": multipliers, **CLAMP})
    return None


def test_both_projects_mean_the_same_integers(cases: list[Case]) -> None:
    compared = set()
    for case in cases:
        op = operation(case)
        if op is None:
            continue
        grids = case.grids or (None,)
        inputs = [
            Tensor(f"x{i}", str(x.dtype), x.shape, *((g.scale, g.zero_point) if g else ()))
            for i, (x, g) in enumerate(zip(case.inputs, grids, strict=True))
        ]
        out = case.output
        y = Tensor("y", str(case.expected.dtype), case.expected.shape, *((out.scale, out.zero_point) if out else ()))
        got = evaluate(op, list(case.inputs), inputs, y, case.inputs[0].shape[0])
        assert (got == case.expected).all(), (case.operation, case.corner)
        compared.add(case.operation)
    assert compared == set(OPERATIONS) - {"sigmoid", "tanh", "softmax"}


def test_denominators_are_within_what_is_proved_here() -> None:
    for beside in (0.0, 60.0, 255.0, 4000.0):
        b = largest_denominator(beside)
        assert b % 2 == 1 and error_bound("affine", np.array([beside])) < 1 / (2 * b)


def test_sums_lie_next_to_a_boundary() -> None:
    for a, b in [(7, 101), (4, 4095), (1000, 4093), (1, 3)]:
        for near in (-5000, 0, 77777):
            for above in (True, False):
                steps = Fraction(a * boundary_sum(a, b, near, above), b)
                assert steps - steps.__floor__() - Fraction(1, 2) == Fraction(1 if above else -1, 2 * b)


class Wrong(Engine):
    """Computes the ideal, and then one mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__(mistake)

    def run(self, case: Case) -> Any:
        assert case.output is not None
        x, grid, y = case.inputs[0], case.grids[0], case.output
        assert case.weight is not None and case.weight_scale is not None and case.bias is not None
        weight, products = case.weight.astype(np.int64), x.astype(np.int64) - grid.zero_point
        sums = products @ weight.T
        if self.name == "pairs saturate":
            pairs = x.astype(np.int64)[:, None, : x.shape[1] // 2 * 2] * weight[None, :, : x.shape[1] // 2 * 2]
            pairs = pairs.reshape(*pairs.shape[:2], -1, 2).sum(-1)
            sums = sums + (np.clip(pairs, -32768, 32767) - pairs).sum(-1)
        sums = sums + case.bias
        precise = np.float16 if self.name == "multiplier in float16" else np.float32
        multiplier = (np.float32(grid.scale) * case.weight_scale / np.float32(y.scale)).astype(precise)
        steps = sums.astype(np.float32) * multiplier.astype(np.float32)
        rounded = np.floor(steps + np.float32(0.501)) if self.name == "rounds too early" else np.rint(steps)
        return np.clip(rounded + y.zero_point, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("mistake", ["none", "rounds too early", "multiplier in float16", "pairs saturate"])
def test_mistakes_are_found(mistake: str, cases: list[Case]) -> None:
    found = {r.corner: r.differ for r in compare(Wrong(mistake), [c for c in cases if c.operation == "linear"])}
    if mistake == "none":
        assert not any(found.values())
    elif mistake == "pairs saturate":
        assert found["saturation pairs"] > 1000
    else:
        assert all(found.values()), "one sum of every channel lies next to a boundary"


@pytest.mark.skipif(
    not adds_at_once(), reason="this CPU lacks VNNI, without which these engines' sums of two products saturate"
)
@pytest.mark.parametrize("name", ["onnxruntime-qlinear", "onnxruntime", "openvino", "torch-x86", "torch-onednn"])
def test_engines_whose_integers_are_the_exact_ones(name: str) -> None:
    engine = ENGINES[name]
    if engine.missing():
        pytest.skip(f"{name}: {engine.missing()}")
    few = [case for op in ("conv2d", "depthwise_conv2d", "linear", "requantize") for case in list(vectors(1, [op]))[:2]]
    assert [r for r in compare(engine, few) if r.differ or r.reason] == []


def test_the_command_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    files = [f"--json={tmp_path / 'x.json'}", f"--markdown={tmp_path / 'x.md'}"]
    assert main(["--engine=onnxruntime-qlinear", "--operation=dequantize", "--operation=tanh", *files]) == 0
    shown = capsys.readouterr().out
    assert "| dequantize | all integers | **0** |" in shown and "| tanh | any scale | – |" in shown
    assert shown == (tmp_path / "x.md").read_text(encoding="utf-8")
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["results"]
    assert rows[0]["elements"] == 4096 and rows[-1]["reason"]


def test_results_are_of_these_operations(cases: list[Case]) -> None:
    stored = json.loads((KIT / "results" / "results.json").read_text(encoding="utf-8"))
    corners = {(case.operation, case.corner) for case in cases}
    engines = set(stored["versions"])
    assert {(r["operation"], r["corner"], r["engine"]) for r in stored["results"]} == {
        (*corner, engine) for corner in corners for engine in engines
    }
    from intact8_conformance.compare import Result

    table = markdown([Result(**r) for r in stored["results"]], stored["versions"], stored["machine"])
    assert (KIT / "results" / "results.md").read_text(encoding="utf-8") == table


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).split(".")[0]


def test_it_stands_alone() -> None:
    """Only adapters import engines, when they are called; nothing imports the project."""
    for file in (KIT / "src").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        needed = set(imports(tree)) - set(sys.stdlib_module_names) - {"numpy", "intact8_conformance"}
        engines = {"onnx", "onnxruntime", "openvino", "torch", "ai_edge_litert", "flatbuffers", "executorch"}
        assert needed <= engines, file
        at_import = {n for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) for n in imports(node)}
        assert not at_import & needed, file


def test_an_engine_of_another_shape_is_refused(cases: list[Case]) -> None:
    class Flat(Engine):
        def run(self, case: Case) -> Any:
            return case.expected.reshape(-1)

    with pytest.raises(AssertionError, match="flat: dequantize gave float32"):
        compare(Flat("flat"), [replace(c) for c in cases if c.operation == "dequantize"])


def test_rounding_is_half_to_even() -> None:
    assert ideal.round_ratio(np.array([-5, -3, -1, 1, 3, 5, 7]), 2).tolist() == [-2, -2, 0, 0, 2, 2, 4]
