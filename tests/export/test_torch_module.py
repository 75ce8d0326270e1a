"""Programs in plain torch operations: the reference's bits, without intact8 at run time, with any batch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.capture import encoder
from tests.conformance import build as single
from tests.conformance import networks, nonlinear
from tests.opset.test_every_kind import CASES, build

pytest.importorskip("torch")

import torch
from torch import nn

import intact8
from intact8.arithmetic.recurrent import GATES
from intact8.engines.reference import ReferenceEngine
from intact8.errors import EngineError
from intact8.export.torch_module import TorchProgram, export_program
from intact8.program.program import Program
from intact8.program.samples import random_samples

FORMS = {
    **{kind: partial(single.draw, kind) for kind in single.KINDS},
    "softmax": nonlinear.softmax_case,
    "norm": nonlinear.norm_case,
    "group_norm": nonlinear.group_norm_case,
    "embedding": nonlinear.embedding_case,
}


def run(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor of the program, by torch."""
    given = tuple(torch.from_numpy(np.array(inputs[name])) for name in program.inputs)
    return {name: y.numpy() for name, y in TorchProgram(program).run(given).items()}


@pytest.mark.parametrize("kind", FORMS)
def test_single_operations_are_exact(kind: str) -> None:
    for seed in range(12):
        try:
            case = FORMS[kind](np.random.default_rng(seed), False)
        except single.Unusable:
            continue
        np.testing.assert_array_equal(run(case.program, case.inputs)["y"], case.expected, err_msg=case.text)


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind not in GATES])
def test_every_kind_gives_what_the_reference_gives(kind: str) -> None:
    program = build(kind, *CASES[kind])
    inputs = random_samples(program, 3)
    want, got = ReferenceEngine().prepare(program).tensors(inputs)["y"], run(program, inputs)["y"]
    assert got.dtype == want.dtype and got.shape == want.shape
    if program.ops[0].is_float:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


def test_a_file_runs_without_intact8_for_any_batch(tmp_path: Path) -> None:
    program, x, _ = networks.draw(1, steps=2)
    export_program(program, tmp_path / "net.pt2")
    x = np.resize(x, (5, *x.shape[1:]))
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy, torch\n"
        "sys.modules['intact8'] = None\n"
        "net, x = torch.export.load('net.pt2').module(), torch.from_numpy(numpy.load('x.npy'))\n"
        "for n in (1, 5):\n"
        "    y = net(x[:n])\n"
        "    for i, v in enumerate(y if isinstance(y, tuple) else (y,)):\n"
        "        numpy.save(f'{n}.{i}.npy', v.numpy())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={}, timeout=120)
    for n in (1, 5):
        for i, want in enumerate(ReferenceEngine().prepare(program)({"x": x[:n]})):
            np.testing.assert_array_equal(np.load(tmp_path / f"{n}.{i}.npy"), want)


@dataclasses.dataclass
class Found:
    scores: torch.Tensor
    best: torch.Tensor


class Several(nn.Module):
    """Outputs that nest, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> object:
        y = self.layer(x)
        return {"found": Found(y, y.argmax(-1)), "both": (y, [y.relu()]), "none": None, "count": 3}


def test_outputs_nest_as_the_models(tmp_path: Path) -> None:
    program = intact8.quantize(Several().eval(), torch.randn(64, 6))
    report = program.export(tmp_path / "net.pt2", "exported-program")
    assert report.mismatches == 0
    x = torch.randn(5, 6)
    found, want = torch.export.load(tmp_path / "net.pt2").module()(x), program.run(x, engine="reference")
    assert {*found} == {*want} and found["none"] is None and found["count"] == 3
    torch.testing.assert_close(found["found"], dataclasses.asdict(want["found"]), rtol=0, atol=0)
    torch.testing.assert_close(found["both"], want["both"], rtol=0, atol=0)


@pytest.mark.long
def test_tensors_are_plain_and_lengths_stay_free(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, example = encoder.Encoder().eval(), encoder.call(3, 6)
    sim = intact8.prepare(net, example, dynamic_shapes=encoder.SEQUENCE)
    intact8.calibrate(sim, [example])
    program = intact8.convert(sim)
    made = export_program(program, tmp_path / "net.pt2")
    plain = {torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64, torch.bool}
    assert {t.dtype for t in made.state_dict.values()} <= plain
    operators = {n.target for n in made.graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
    assert {operator.namespace for operator in operators} == {"aten"}
    module = torch.export.load(tmp_path / "net.pt2").module()
    for length in (2, 9):
        inputs = {k: v.numpy() for k, v in encoder.call(2, length).items()}
        want = ReferenceEngine().prepare(program)(inputs)[0]
        got = module(*(torch.from_numpy(inputs[name]) for name in program.inputs)).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_recurrent_layer_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"^y: lstm has no form in plain torch operations\. Remedy: "):
        TorchProgram(build("lstm", *CASES["lstm"]))
