"""What conformance means, engine by engine: the integers of the ideal semantics, no matter how the program is run."""

from __future__ import annotations

import numpy as np

from intact.engines import cpu, get_engine
from intact.engines.reference import ReferenceEngine

from . import networks
from .build import Case, draw

PROVED = ("onednn", "onnxruntime", "openvino")
"""Engines compared with the ideal; the reference is the ideal (``tests/engines/test_reference.py``)."""


def wide(engine: str) -> bool:
    """Whether weights of the whole int8 range are exact here: no pair of products saturates in int16."""
    return engine == "onednn" and cpu.has_vnni(cpu.isa())


def op_mismatches(engine: str, case: Case) -> int:
    """Integers of an op's result that differ from the ideal, over both ways to run a program."""
    runner = get_engine(engine).prepare(case.program, threads=1 + case.expected.size % 2)
    before = {name: x.copy() for name, x in case.inputs.items()}
    seen = runner.tensors(case.inputs)["y"]
    (out,) = runner(case.inputs)
    assert out.dtype == seen.dtype == np.uint8
    assert out.shape == seen.shape == case.expected.shape, case.text
    assert all((case.inputs[name] == x).all() for name, x in before.items()), f"an input was overwritten: {case.text}"
    return int((out != case.expected).sum() + (seen != case.expected).sum())


def check_op(engine: str, kind: str, rng: np.random.Generator, wide: bool = False) -> Case:
    """Draw an op and compare."""
    case = draw(kind, rng, wide)
    bad = op_mismatches(engine, case)
    assert bad == 0, f"{engine}: {bad} of {2 * case.expected.size} integers differ: {case.text}"
    return case


def check_network(engine: str, seed: int) -> int:
    """Draw a network and compare its outputs, as deployed, and every tensor. Returns how many integers were compared.

    What a compiler fuses, drops or reorders shows only where ops stand beside each other.
    """
    program, x, expected = networks.draw(seed)
    runner = get_engine(engine).prepare(program, threads=1)
    for name, got, want in zip(program.outputs, runner({"x": x}), expected, strict=True):
        assert (got == want).all(), f"{engine}, network {seed}, {name}: {(got != want).sum()} of {want.size} differ"
    seen = runner.tensors({"x": x})
    ideal = ReferenceEngine().prepare(program).tensors({"x": x})
    for name, want in ideal.items():
        assert (seen[name] == want).all(), f"{engine}, network {seed}, {name}: {(seen[name] != want).sum()} differ"
    return sum(want.size for want in ideal.values())
