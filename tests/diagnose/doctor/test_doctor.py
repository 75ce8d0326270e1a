"""The course of an examination on small networks of random weights: steps, samples, metrics, reports, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme, recipes
from intact8.diagnose.doctor import DoctorReport, Finding
from intact8.diagnose.doctor.run import accuracy
from intact8.diagnose.doctor.search import to_leave_float
from intact8.engines import available_engines
from intact8.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    model(images())  # batch norm's statistics are those of the data
    return model.eval()


def images(count: int = 256) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def sick() -> DoctorReport:
    """A network whose second convolution is clipped at a tenth of its range."""
    model = network()
    sim = intact8.prepare(model, images(2))
    intact8.calibrate(sim, images())
    point = sim.points["3"]
    recipe = Recipe(overrides={"3": {"activation": {"fixed": (float(point.scale) / 10, 0)}}})
    return intact8.doctor(model, images(), recipe=recipe, seconds=0)


def test_finds_and_heals(sick: DoctorReport) -> None:
    first = sick.findings[0]
    assert (first.place, first.cause, first.severity) == ("3", "clipped_range", "error")
    assert first.sites == (("activation", "3"),)
    assert first.evidence["clipped"] > 0.3 and first.evidence["clip_share_of_error"] > 0.9
    assert sick.outcome("after").noise < sick.outcome("before").noise / 100
    assert sick.recovered == pytest.approx(1, abs=0.1)


def test_of_many_sites_those_are_measured_for_which_there_is_time() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(12))).eval()
    recipe, data = Recipe(between_layers="integer"), torch.randn(96, 16, 24, 24)
    whole = intact8.doctor(model, data, recipe=recipe, seconds=0, remedies=False)
    assert whole.measured[0] == whole.measured[1] > 20
    console = Console(width=200)
    with console.capture() as shown:
        console.print(whole)
    assert "in the time there was" not in shown.get()

    short = intact8.doctor(model, data, recipe=recipe, seconds=0, remedies=False, budget=0.01)
    done, every = short.measured
    assert done < every == whole.measured[1]
    with console.capture() as shown:
        console.print(short)
    assert done == 0 or f"{done} of {every} sites" in shown.get()


class LongestGiven(nn.Module):
    """Reads lengths, the longest of which has to be that of the data, as padding masks of torchaudio do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            assert int(lengths.max()) == x.shape[1], "Expected key_padded_mask.shape[1] to be another"
        return self.layer(x) * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]


def test_batches_stay_whole_where_the_model_takes_no_parts_of_them() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(8, 6, 4), torch.tensor([6, *torch.randint(1, 6, (7,)).tolist()])) for _ in range(9)]
    report = intact8.doctor(LongestGiven().eval(), batches, seconds=0)
    assert report.confidence.passed and sum(report.samples.values()) > 24


def test_report_is_json(sick: DoctorReport) -> None:
    values = json.loads(json.dumps(sick.to_dict()))
    assert DoctorReport.from_dict(values) == sick
    assert json.loads(sick.to_json()) == values


def test_report_is_shown(sick: DoctorReport) -> None:
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(sick)
    text = console.export_text()
    assert "clipped_range" in text and "Verdict" in text and "held-out" in text
    html = sick._repr_html_()
    assert "clipped_range" in html and "<script" not in html


def test_recipe_is_saved(sick: DoctorReport, tmp_path: Any) -> None:
    path = sick.save_recipe(tmp_path / "better.toml")
    assert Recipe.load(path) == sick.recipe
    program = intact8.quantize(network(), images(), Recipe.load(path))
    assert program.run(images(4)).shape == (4, 5)


def test_same_seed_same_report() -> None:
    first, second = (intact8.doctor(network(), images(96), seconds=0, seed=3) for _ in range(2))
    assert first == second


def test_steps_are_told() -> None:
    steps: list[str] = []
    intact8.doctor(network(), images(64), seconds=0, remedies=False, progress=steps.append)
    assert steps[:5] == ["capture", "calibrate", "confidence", "float network", "calibration data"]
    assert steps[5:] == ["sensitivity", "outcome", "time"]


@pytest.mark.parametrize(
    "data, metric",
    [
        (lambda: images(64), "agreement"),
        (lambda: [(x, torch.zeros(32, dtype=torch.int64)) for x in images(64).split(32)], "accuracy"),
        (lambda: [(x, torch.zeros(32)) for x in images(64).split(32)], "agreement"),
    ],
    ids=["unlabelled", "classes", "regression targets"],
)
def test_metric_follows_the_data(data: Any, metric: str) -> None:
    assert intact8.doctor(network(), data(), seconds=0, remedies=False).metric == metric


def test_metric_of_images_is_their_signal() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1)).eval()
    report = intact8.doctor(model, images(64), seconds=0, remedies=False)
    outcome = report.outcome("before")
    assert report.metric == "signal"
    assert outcome.metric == pytest.approx(1 / (1 + outcome.noise))


def test_metric_of_your_own() -> None:
    seen = []

    def mine(outputs: Tensor, labels: Tensor) -> float:
        seen.append(labels)
        return float((outputs.argmax(1) == labels).double().mean())

    labels = torch.arange(64) % 5
    data = list(zip(images(64).split(32), labels.split(32), strict=True))
    report = intact8.doctor(network(), data, metric=mine, seconds=0, remedies=False)
    assert report.metric == "mine" and seen
    known = intact8.doctor(network(), data, seconds=0, remedies=False)
    assert report.outcome("float").metric == known.outcome("float").metric


def test_accuracy_is_of_the_labels() -> None:
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert accuracy(y, torch.tensor([0, 1, 1])).tolist() == [1, 1, 0]


def test_a_metric_without_labels_is_refused() -> None:
    with pytest.raises(intact8.InputError, match="data without labels"):
        intact8.doctor(network(), images(64), metric=accuracy, seconds=0, remedies=False)


@pytest.mark.parametrize("labels", [torch.randint(1, 6, (256,)), torch.full((256,), -1)])
def test_labels_that_are_no_classes_are_refused(labels: Tensor) -> None:
    with pytest.raises(InputError, match="labels from .* for 5 classes"):
        intact8.doctor(network(), [(images(), labels)], remedies=False, seconds=0)


def test_a_metric_that_gives_no_number_is_refused() -> None:
    data = [(images(), torch.zeros(256))]
    with pytest.raises(InputError, match="gave NoneType, no number"):
        intact8.doctor(network(), data, metric=lambda outputs, labels: None, remedies=False, seconds=0)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("argument", [{"tolerance": -1}, {"max_samples": 0}, {"budget": -1}, {"seconds": -1}])
def test_negative_numbers_are_refused(argument: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="or more"):
        intact8.doctor(network(), images(), **argument)


def test_the_verdict_tells_what_the_recipe_leaves_float_from_what_has_no_integer_form() -> None:
    recipe = Recipe(overrides={"*": None})
    reason = intact8.doctor(network(), images(64), recipe=recipe, seconds=0, remedies=False).verdict.reason
    assert "the recipe leaves all of it float" in reason


def test_remedies_leave_something_quantized() -> None:
    """However much is lost, a program without an integer is no remedy."""

    def groups(**overrides: Any) -> list[list[str]]:
        sim = intact8.prepare(network(), images(2), recipe=Recipe(overrides=overrides))
        both = Finding("stale_range", "0", "error", "", "", sites=(("weight", "0"), ("weight", "3")))
        return to_leave_float([both], ["7"], sim)

    assert groups() == [["0", "3"], ["7"]]
    assert groups(**{"7": None}) == [] == groups(**{"7": None, "3": None})


def test_given_simulation_is_examined_and_not_changed() -> None:
    model, x = network(), images()
    sim = intact8.prepare(model, x[:2])
    intact8.calibrate(sim, x)
    sim.points["0"].set(float(sim.points["0"].scale) * 50, 0)
    before = {name: value.clone() for name, value in sim.state_dict().items() if isinstance(value, Tensor)}
    report = intact8.doctor(model, x, sim=sim, seconds=0)
    assert (report.findings[0].place, report.findings[0].cause) == ("0", "wide_range")
    assert report.trials[0].accepted  # calibrating again is enough
    assert all(torch.equal(before[name], sim.state_dict()[name]) for name in before)


def test_weights_of_a_given_simulation_count() -> None:
    model, x = network(), images()
    sim = intact8.prepare(model, x[:2])
    with torch.no_grad():
        sim.get_parameter("7.weight").mul_(-1)
    intact8.calibrate(sim, x)
    assert intact8.doctor(model, x, sim=sim, seconds=0, remedies=False).confidence.passed


class Versioned(nn.Linear):
    """A layer that takes only weights that say of which version they are."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version") != self._version:
            raise ValueError("version should be set")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_modules_that_ask_for_the_version_of_their_weights() -> None:
    torch.manual_seed(0)
    model, x = Versioned(8, 4).eval(), torch.randn(64, 8)
    sim = intact8.prepare(model, x).eval()
    intact8.calibrate(sim, x)
    assert intact8.doctor(model, x, sim=sim, seconds=0, remedies=False).confidence.passed


def test_nothing_to_quantize() -> None:
    class Softmax(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x, 1)

    report = intact8.doctor(Softmax(), torch.randn(64, 5), seconds=0)
    assert not report.verdict.pays and "no" in report.verdict.reason
    assert any(f.cause == "no_integer_form" for f in report.findings)


def test_says_do_not_quantize() -> None:
    """With two bits everywhere fixed by its ranges the network is lost, and the verdict says so."""
    recipe = Recipe(activation=Scheme(fixed=(1e-6, 0)))
    report = intact8.doctor(network(), images(64), recipe=recipe, seconds=0, remedies=False)
    assert not report.verdict.pays and report.verdict.reason.startswith("do not quantize this")


@pytest.mark.bench
def test_time_is_measured() -> None:
    verdict = intact8.doctor(network(), images(64), seconds=0.2, remedies=False).verdict
    assert verdict.speedup and verdict.float_ms and verdict.int8_ms
    assert verdict.speedup == pytest.approx(verdict.float_ms / verdict.int8_ms)
    assert verdict.engine in set(available_engines()) - {"reference"}


def test_float_model_is_wanted() -> None:
    sim = intact8.prepare(network(), images(2))
    with pytest.raises(intact8.StateError, match="float model"):
        intact8.doctor(sim, images())


def test_uncalibrated_simulation_is_refused() -> None:
    sim = intact8.prepare(network(), images(2))
    with pytest.raises(intact8.StateError, match="calibrate"):
        intact8.doctor(network(), images(), sim=sim)


def test_too_little_data() -> None:
    with pytest.raises(intact8.InputError, match="divided"):
        intact8.doctor(network(), images(2))


def test_fixed_batch_size() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.net(x.reshape(4, 3, 8, 8))
            return y

    report = intact8.doctor(Fixed(), list(images(64).split(4)), seconds=0, remedies=False)
    assert report.calibration.batch_dependence is None and sum(report.samples.values()) == 64


def test_finding_is_a_line() -> None:
    finding = Finding("few_bits", "conv", "error", "4 bits", "8 bits")
    assert str(finding) == "error: conv: few_bits: 4 bits. Remedy: 8 bits"


def test_presets_are_examined() -> None:
    report = intact8.doctor(network(), images(64), recipe=recipes.w4a8(), seconds=0, remedies=False)
    assert report.findings[0].cause == "few_bits"


class Loud(nn.Module):
    """A layer norm of which one channel is sixty times as loud, and linear layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.f1, self.f2 = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 5)
        with torch.no_grad():
            self.norm.weight[3] *= 60.0
            self.f1.weight[:, 3] /= 60.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.f2(torch.relu(self.f1(self.norm(x))))
        return y


@pytest.mark.long
def test_outlier_channels_behind_a_layer_norm_are_smoothed() -> None:
    torch.manual_seed(0)
    model, x = Loud().eval(), torch.randn(256, 32, generator=torch.Generator().manual_seed(1))
    report = intact8.doctor(model, x, recipe=Recipe(activation=Scheme(observer="minmax")), seconds=10)
    first = report.findings[0]
    assert (first.place, first.cause) == ("norm", "outlier_channel")
    assert report.recipe.smooth == "auto"
    assert report.outcome("after").noise < report.outcome("before").noise / 10


def test_a_range_that_follows_a_fixed_one_is_not_to_blame() -> None:
    class Cosines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.fc, self.people = nn.Linear(8, 16), nn.Linear(16, 6)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = 16.0 * self.people(self.fc(x).relu())
            return y

    x = torch.randn(256, 8)
    recipe = intact8.Recipe(overrides={"people": {"activation": {"fixed": (0.001, 128)}}})
    report = intact8.doctor(Cosines(), [x], calibration=[x], recipe=recipe, remedies=False, seconds=0)
    first = report.findings[0]
    assert (first.place, first.cause) == ("people", "clipped_range") and "mul" in first.message, str(report)
