"""What conformance means, engine by engine: the integers of the ideal semantics, no matter how the program is run."""

from __future__ import annotations

import numpy as np

from intact8.engines import cpu, get_engine
from intact8.engines.reference import ReferenceEngine

from . import networks
from .build import Case, beside, draw, draw_samples

PROVED = ("onednn", "onnxruntime", "openvino", "native")
"""Engines compared with the ideal; the reference is the ideal (``tests/engines/test_reference.py``)."""


def wide(engine: str) -> bool:
    """Whether weights of the whole int8 range are exact here: no pair of products saturates in int16."""
    return engine == "native" or (engine == "onednn" and cpu.has_vnni(cpu.isa()))


def op_mismatches(engine: str, *cases: Case) -> int:
    """Integers of the ops' results that differ from the ideal, over both ways to run a program that has all of them."""
    program, inputs = beside(cases)
    runner = get_engine(engine).prepare(program, threads=1 + cases[0].expected.size % 2)
    before = {name: x.copy() for name, x in inputs.items()}
    seen = runner.tensors(inputs)
    bad = 0
    for case, name, out in zip(cases, program.outputs, runner(inputs), strict=True):
        assert out.dtype == seen[name].dtype == np.uint8
        assert out.shape == seen[name].shape == case.expected.shape, case.text
        bad += int((out != case.expected).sum() + (seen[name] != case.expected).sum())
    assert all((inputs[name] == x).all() for name, x in before.items()), f"input overwritten: {[c.text for c in cases]}"
    return bad


def check_ops(engine: str, kind: str, rng: np.random.Generator, wide: bool, count: int) -> list[Case]:
    """Draw ops of one batch size and compare them as one program, since preparing one is what costs time."""
    samples = draw_samples(rng)
    cases = [draw(kind, rng, wide, samples) for _ in range(count)]
    if op_mismatches(engine, *cases):
        found = [(bad, case) for case in cases if (bad := op_mismatches(engine, case))]
        told = [f"{bad} of {2 * case.expected.size} integers differ: {case.text}" for bad, case in found]
        raise AssertionError(f"{engine}: {told or f'differs only beside others: {[c.text for c in cases]}'}")
    return cases


def check_op(engine: str, kind: str, rng: np.random.Generator, wide: bool = False) -> Case:
    """Draw an op and compare."""
    return check_ops(engine, kind, rng, wide, 1)[0]


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
