"""``intact8.lint`` as a whole: what it takes, what it leaves alone, what its report says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import intact8
from intact8.diagnose.lint import Finding, LintReport

from .cases import a_model_in_training
from .networks import calibrated, chain, clean_program, images, network, prepared
from .torch_ao_cases import Block, fine_fx, ptq, qat, quiet, ramp


def test_a_good_model_gives_a_clean_report_all_the_way() -> None:
    data, more = images(512).split(64), images(64, seed=2)
    report = intact8.lint(network(), data=data)
    assert report.clean and not report.skipped and report.subject == "model", list(map(str, report))
    sim = calibrated(data=data)
    assert [str(f) for f in intact8.lint(sim, data=more).at_least("warning")] == []
    assert intact8.lint(intact8.convert(sim)).clean


def test_a_model_in_training_with_everything_given() -> None:
    sim, given = a_model_in_training()
    report = intact8.lint(sim, data=images(), **given)
    assert not report.skipped and report.clean, list(map(str, report))


def test_the_ramp_both_causes_are_named() -> None:
    """sources: the quint8 ramp that comes out as 0 … 254, through torch.ao's own fused fake quantizers."""
    report = intact8.lint(ramp())
    assert {"IQ702", "IQ703", "IQ704"} <= set(report.ids)
    found = {f.id: f for f in report if "conv" in f.where}
    assert found["IQ702"].data["conversion"] == pytest.approx(1 / 127.5)
    assert "1 becomes 0.996078" in found["IQ703"].message
    assert not {"IQ702", "IQ703", "IQ704"} & set(intact8.lint(ramp(fused=False)).ids)


def test_the_block_fused_by_name_lost_its_relu() -> None:
    with quiet():
        fused = torch.ao.quantization.fuse_modules(Block().eval(), [["conv1", "relu"]])
    (finding,) = [f for f in intact8.lint(fused) if f.id == "IQ701"]
    assert finding.module == "relu" and finding.severity == "error"
    assert "+ (add" in finding.message and "the activation there is lost" in finding.message


def test_a_stock_resnet_is_fine_here_and_not_in_eager_torch_ao(torchvision: Any) -> None:
    resnet = torchvision.models.resnet18(weights=None).eval()
    report = intact8.lint(resnet, data=torch.randn(2, 3, 64, 64))
    assert report.ids == ("IQ101",) and report.counts()["note"] == 1
    with quiet():
        model = nn.Sequential(torch.ao.quantization.QuantStub(), resnet, torch.ao.quantization.DeQuantStub()).eval()
        model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
        prepared_model = torch.ao.quantization.prepare(model)
        found = intact8.lint(prepared_model, select=["IQ705", "IQ204"])
    assert len([f for f in found if f.id == "IQ705"]) == 8  # one += per residual block


def test_fx_models_need_no_stubs() -> None:
    model, _ = fine_fx()
    with quiet():
        assert intact8.lint(model).at_least("warning") == ()


CHANGEABLE: dict[str, Callable[[], nn.Module]] = {
    "simulation": lambda: calibrated().train(),
    "not calibrated": lambda: prepared().train(),
    "float model": lambda: network().train(),
    "torch.ao, calibrated": ptq,
    "torch.ao, observers saw nothing": lambda: ptq(run=False),
    "torch.ao in training": qat,
    "torch.ao before training": lambda: qat(run=False),
}


@pytest.mark.parametrize("make", CHANGEABLE.values(), ids=CHANGEABLE)
def test_nothing_is_changed(make: Callable[[], nn.Module]) -> None:
    with quiet():
        x: Any = make()
        before = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in x.state_dict().items()}
        modes = [m.training for m in x.modules()]
        hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in x.modules()]
        intact8.lint(x, data=images(8))
        after = x.state_dict()
        assert modes == [m.training for m in x.modules()]
        for key, value in before.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value.nan_to_num(7), after[key].nan_to_num(7)), key
        assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in x.modules()]


def test_switches_survive_a_data_pass() -> None:
    sim = calibrated()
    sim.observe()
    sim.fake_quantize(False, "conv2")
    intact8.lint(sim, data=images(8))
    assert all(p.observing for p in sim.points.values()) and not sim.points["conv2"].quantizing
    assert sim.points["conv1"].quantizing


def test_rules_that_cannot_run_are_named() -> None:
    report = intact8.lint(network())
    assert report.skipped["IQ101"] == "data" and "IQ101" not in report.checked
    report = intact8.lint(prepared())
    assert report.skipped["IQ504"] == "optimizer" and report.skipped["IQ509"] == "schedule"
    assert "could not run (data:" in report.grid().caption


def test_a_generator_of_batches_is_read_once() -> None:
    report = intact8.lint(network(), data=((x, torch.zeros(16)) for x in images(256).split(16)), select=["IQ306"])
    assert report.checked == ("IQ306",) and report.clean


@pytest.mark.parametrize("x", [3, None, b"net", {}], ids=str)
def test_what_it_does_not_take(x: Any) -> None:
    with pytest.raises(intact8.InputError, match="cannot lint a"):
        intact8.lint(x)


@pytest.mark.parametrize(
    ("x", "given"),
    [
        (clean_program, {"data": images(2)}),
        (clean_program, {"optimizer": 1}),
        (network, {"schedule": 1}),
        (ramp, {"schedule": 1}),
    ],
    ids=lambda v: v.__name__ if callable(v) else next(iter(v)),
)
def test_no_argument_is_taken_and_ignored(x: Any, given: dict[str, Any]) -> None:
    with pytest.raises(intact8.InputError, match=f"{next(iter(given))} is given for nothing"):
        intact8.lint(x(), **given)


def test_what_wraps_a_simulation_is_looked_through() -> None:
    wrapper = nn.Module()
    wrapper.module = prepared()
    assert intact8.lint(wrapper).subject == "simulation"


def test_channels_of_sequences_are_the_last_dimension() -> None:
    net = chain(a=nn.Linear(4, 8), r=nn.ReLU(), b=nn.Linear(8, 4))
    with torch.no_grad():
        net.a.weight[3] *= 1000
        net.a.bias[3] *= 1000
    x = torch.randn(64, 5, 4, generator=torch.Generator().manual_seed(0))
    (finding,) = (f for f in intact8.lint(calibrated(model=net, x=x[:2], data=x), data=x) if f.id == "IQ407")
    assert finding.node == "a" and finding.data["channel"] == 3


def test_a_file_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(intact8.ProgramError):
        intact8.lint(tmp_path / "x.safetensors")


def test_a_program_file_is_looked_at_without_torch(tmp_path: Path) -> None:
    path = clean_program().save(tmp_path / "net.safetensors")
    code = "import sys, intact8; r = intact8.lint('net.safetensors'); print(r.clean, r.name, 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(intact8.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=path.parent
    )
    assert done.stdout.split() == ["True", "net.safetensors", "False"]


def markup() -> LintReport:
    evil = Finding("IQ204", "activation-not-fused", "warning", "<b>x</b> [red]y", "fuse", module="m[0]")
    return LintReport((evil,), "model", "<Net>", ("IQ204",), {})


def test_reports_are_shown_with_names_as_they_are() -> None:
    out = StringIO()
    Console(file=out, width=200).print(markup())
    Console(file=out, width=200).print(LintReport((), "model", "N[red]et", ("IQ204",), {}))
    assert "[red]y" in out.getvalue() and "m[0]" in out.getvalue() and "N[red]et" in out.getvalue()
    page = markup()._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;" in page and "<b>" not in page


def test_reports_go_through_json() -> None:
    report = intact8.lint(prepared())
    again = LintReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False)))
    assert again == report and dict(again.skipped) == dict(report.skipped)
    assert again.findings[0].data == report.findings[0].data


def test_the_worst_comes_first() -> None:
    sim = calibrated(replace(intact8.recipes.symmetric(), between_layers="integer"), data=images(8))
    sim.points["conv2"].zero_point.fill_(100)
    report = intact8.lint(sim)
    ranks = [("error", "warning", "note").index(f.severity) for f in report]
    assert ranks == sorted(ranks) and report.findings[0].id == "IQ406"
    assert len(report.at_least("error")) < len(report.at_least("note")) == len(report)
    assert sum(report.counts().values()) == len(report)
    with pytest.raises(intact8.InputError, match="'foo' is no severity.*error, warning, note"):
        report.at_least("foo")


def test_a_model_that_cannot_run_on_the_data_says_so_itself() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            intact8.lint(chain(a=nn.Linear(4, 4)), data=torch.zeros(2, 5), select=["IQ101"])


class Messages(nn.Module):
    """Sums over the edges of a graph, of which there is another number than of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        return self.last(torch.zeros_like(y).index_add_(0, edges[1], y[edges[0]]))


def test_inputs_need_not_be_equally_many_nor_batches_of_one_length() -> None:
    torch.manual_seed(0)
    graphs = [(torch.randn(8, 4), torch.randint(0, 8, (2, 20))) for _ in range(3)]
    net = Messages().eval()
    for subject in (net, intact8.prepare(net, graphs[0])):
        assert not [f for f in intact8.lint(subject, data=graphs).findings if f.id == "IQ105"]
    words = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    lengths = [torch.randn(8, n, 8) for n in (5, 6, 7)]
    assert not [f for f in intact8.lint(words, data=lengths).findings if f.id == "IQ105"]
    report = intact8.doctor(words, lengths, seconds=0, budget=1)
    assert report.samples["calibration"] + report.samples["examined"] + report.samples["held_out"] == 24
