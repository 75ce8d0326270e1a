"""Assertions of ``intact8.testing``: silent where all is well, and telling where it is not."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="networks are made with torch")

import torch
from torch import nn

import intact8
from intact8.testing import (
    assert_accuracy_drop,
    assert_all_fused,
    assert_bit_exact,
    assert_frozen,
    assert_lint_clean,
    assert_qparams_in,
)
from intact8.train import Schedule, parameter_groups

pytest_plugins = ["pytester"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()


def samples(n: int = 64) -> torch.Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def program() -> intact8.Program:
    return intact8.quantize(net(), samples())


def learning() -> Any:
    sim = intact8.prepare(net(), samples(2), intact8.recipes.qat("learned"))
    intact8.calibrate(sim, samples())
    return sim.train()


def top1(y: torch.Tensor, labels: Any) -> torch.Tensor:
    return (y.argmax(1) == labels).float()


class TestBitExact:
    def test_a_program_its_file_its_simulation(self, program: intact8.Program, tmp_path: Path) -> None:
        assert_bit_exact(program)
        assert_bit_exact(program.save(tmp_path / "net.safetensors"), engines=("reference",), data=samples())
        sim = intact8.prepare(net(), samples(2)).eval()
        intact8.calibrate(sim, samples())
        assert_bit_exact(intact8.convert(sim), sim=sim, data=samples())

    def test_an_integer_that_differs_is_named(self, program: intact8.Program) -> None:
        sim = intact8.prepare(net(), samples(2)).eval()
        intact8.calibrate(sim, samples() * 3)  # other scales than the program's
        with pytest.raises(
            AssertionError, match=r"simulation in .* First difference: .*\[0, .*\] is \d+ on simulation"
        ):
            assert_bit_exact(program, sim=sim, data=samples())

    def test_what_is_not_proved_is_named(self, program: intact8.Program) -> None:
        ops = tuple(dataclasses.replace(op, certificate=None) for op in program.ops)
        with pytest.raises(AssertionError, match=r"2 operations are not proved exact:\n  0: no certificate"):
            assert_bit_exact(dataclasses.replace(program, ops=ops))


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.relu, self.b = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        out: torch.Tensor = self.b(self.relu(y)) + y
        return out


class TestAllFused:
    def test_models_simulations_and_programs(self, program: intact8.Program) -> None:
        assert_all_fused(program)
        assert_all_fused(net(), data=samples())
        assert_all_fused(intact8.prepare(net(), samples(2)))

    def test_what_stands_alone_is_named(self) -> None:
        with pytest.raises(
            AssertionError, match=r"not fused: 1 found in ReadTwice .*\n  IQ204 warning: relu: .*IQ204.md"
        ):
            assert_all_fused(ReadTwice().eval(), data=samples())

    def test_a_float_model_needs_inputs(self) -> None:
        with pytest.raises(intact8.InputError, match="they need data"):
            assert_all_fused(net())


class TestLintClean:
    def test_clean(self, program: intact8.Program) -> None:
        assert_lint_clean(program)
        assert_lint_clean(net(), data=samples(256), select=["IQ2"])

    def test_findings_are_listed(self) -> None:
        sim = intact8.prepare(net(), samples(2))
        with pytest.raises(AssertionError, match=r"lint: 1 found in Simulation .*\n  IQ301 error: .* Remedy: "):
            assert_lint_clean(sim)
        assert_lint_clean(sim, ignore=["IQ301"])
        assert_lint_clean(sim, fail_on="never")

    def test_rules_of_the_project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "pyproject.toml").write_text('[tool.intact8.lint]\nignore = ["uncalibrated"]\n')
        monkeypatch.chdir(tmp_path)
        sim = intact8.prepare(net(), samples(2))
        assert_lint_clean(sim)
        with pytest.raises(AssertionError, match="IQ301"):
            assert_lint_clean(sim, ignore=[])

    def test_a_rule_that_cannot_run_is_no_success(self) -> None:
        with pytest.raises(intact8.InputError, match="they need data"):
            assert_lint_clean(net(), select=["IQ306"])

    def test_an_unknown_rule(self, program: intact8.Program) -> None:
        with pytest.raises(intact8.RecipeError, match="no lint rule 'IQ777'"):
            assert_lint_clean(program, select=["IQ777"])


class TestAccuracyDrop:
    def batches(self, model: nn.Module, sizes: tuple[int, ...] = (40, 24)) -> list[Any]:
        with torch.no_grad():
            return [(x, model(x).argmax(1)) for x in samples(sum(sizes)).split(sizes)]

    def test_small_enough(self, program: intact8.Program) -> None:
        model = net()
        assert_accuracy_drop(model, program, self.batches(model), top1, at_most=0.1)
        named = [{program.inputs[0]: x, "labels": y} for x, y in self.batches(model)]
        assert_accuracy_drop(model, program, named, "top1", at_most=0.1)

    def test_lower_may_be_better(self, program: intact8.Program) -> None:
        model, losses = net(), iter([1.0, 2.0])
        with pytest.raises(AssertionError, match="a drop of 1, more than 0.5"):
            assert_accuracy_drop(
                model, program, self.batches(model, (8,)), lambda y, labels: next(losses), at_most=0.5,
                higher_is_better=False,
            )  # fmt: skip

    def test_too_large_says_both_values(self, program: intact8.Program) -> None:
        model = net()
        wrong = intact8.quantize(nn.Sequential(*list(model)[:-1], nn.Linear(6, 3)).eval(), samples())
        with pytest.raises(
            AssertionError, match=r"from 1 \(float\) to 0\S* \(int8\) on 64 samples: a drop of \d\S*, more"
        ):
            assert_accuracy_drop(model, wrong, self.batches(model), top1, at_most=0.01)

    def test_batches_count_by_size(self, program: intact8.Program) -> None:
        model = net()
        seen = iter([1.0, 0.0, 0.0, 0.0])  # float and int8 of 48 samples, then of 16
        with pytest.raises(AssertionError, match=r"from 0\.75 \(float\) to 0 "):
            assert_accuracy_drop(
                model, program, self.batches(model, (48, 16)), lambda y, labels: next(seen), at_most=0.7
            )

    def test_not_a_number_is_no_success(self, program: intact8.Program) -> None:
        model = net()
        with pytest.raises(AssertionError, match="to nan"):
            assert_accuracy_drop(model, program, self.batches(model), lambda y, labels: float("nan"), at_most=1.0)

    def test_no_data(self, program: intact8.Program) -> None:
        with pytest.raises(intact8.InputError, match="no samples"):
            assert_accuracy_drop(net(), program, [], top1, at_most=1.0)


class TestTraining:
    def test_qparams_in_the_optimizer(self) -> None:
        sim = learning()
        assert_qparams_in(torch.optim.Adam(parameter_groups(sim, lr=1e-3)), sim)
        weights = [p for name, p in sim.named_parameters() if "quantizers" not in name]
        with pytest.raises(AssertionError, match=r"IQ504 error: quantizers.*the optimizer lacks \d+ of \d+ learned"):
            assert_qparams_in(torch.optim.Adam(weights), sim)
        with pytest.raises(AssertionError, match=r"IQ505 error: .*parameters of another model"):
            assert_qparams_in(torch.optim.Adam(net().parameters()), sim)

    def test_frozen(self) -> None:
        sim = learning()
        with pytest.raises(AssertionError, match=r"not frozen:\n  scales are in phase 'learn': call sim.freeze_scales"):
            assert_frozen(sim)
        sim.freeze_scales()
        with pytest.raises(AssertionError, match=r"not frozen:\n  IQ503 "):
            assert_frozen(sim)
        sim.freeze_batch_norm()
        assert_frozen(sim)
        sim.observe()
        sim.fake_quantize(False, "0")
        with pytest.raises(AssertionError, match=r"points observe.*\n  IQ502 error: 0: "):
            assert_frozen(sim)

    def test_a_schedule_ends_frozen(self) -> None:
        sim, schedule = learning(), Schedule(freeze_scales=1)
        optimizer = torch.optim.SGD(parameter_groups(sim, lr=1e-3))
        sim(samples(8)).sum().backward()
        optimizer.step()
        schedule.step(sim)
        assert_frozen(sim)

    def test_a_float_model_is_no_success(self) -> None:
        with pytest.raises(intact8.InputError, match="optimizer is given for nothing"):
            assert_qparams_in(torch.optim.SGD(net().parameters()), net())
        with pytest.raises(intact8.StateError, match="assert_frozen takes a simulation, not Sequential"):
            assert_frozen(net())

    def test_not_calibrated(self) -> None:
        with pytest.raises(AssertionError, match="no scale yet, input first: call intact8.calibrate"):
            assert_frozen(intact8.prepare(net(), samples(2)))


SUITE = """
import intact8, torch
from intact8.testing import assert_frozen, assert_lint_clean


def make():
    return intact8.prepare(torch.nn.Linear(4, 2), torch.randn(2, 4))


def test_passes():
    assert_lint_clean(make(), ignore=["IQ301"])


def test_fails():
    assert_lint_clean(make())


def test_is_not_frozen():
    assert_frozen(make())
"""


def test_in_a_suite_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["*AssertionError: lint: 1 found in Simulation*", "*IQ301 error: input: no quantization*"]
    )
    # The traceback ends at the user's line: nothing of the library's inside is shown.
    result.stdout.no_fnmatch_line("*intact8*testing.py:*")


def test_importing_it_is_light() -> None:
    code = "import sys, intact8.testing; print(sorted({'torch', 'numpy', 'pytest'} & set(sys.modules)))"
    environment = {"PYTHONPATH": str(Path(intact8.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
