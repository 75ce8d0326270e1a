"""``intact8.split``: programs inside a model whose post-processing depends on values."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.errors import CaptureError, CaptureWarning, InputError, RecipeError
from intact8.torch import Module, programs


class Detector(nn.Module):
    """A list of images in, a dict of as many boxes as score above 0 out for each."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.body.stride = 4  # type: ignore[assignment]
        self.heads = nn.ModuleDict({"scores": nn.Conv2d(16, 1, 1), "boxes": nn.Conv2d(16, 4, 1)})
        self.refine = nn.Linear(4, 4)

    def forward(self, images: list[Tensor], targets: Any = None) -> list[dict[str, Tensor]]:
        features = self.body(torch.stack(list(images)))
        scores, boxes = (self.heads[name](features).flatten(2) for name in ("scores", "boxes"))
        found = []
        for score, box in zip(scores[:, 0], boxes * self.body.stride, strict=True):
            kept = box.T[score > 0]
            found.append({"boxes": self.refine(kept) if len(kept) else kept, "scores": score[score > 0]})
        return found


def images(count: int = 2) -> list[Tensor]:
    return [torch.rand(3, 32, 32) for _ in range(count)]


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    model = Detector()
    nn.init.constant_(model.heads["scores"].bias, 0.05)
    return model.eval()


DATA = [([torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(i + j)) for j in range(2)],) for i in range(20)]


@pytest.fixture(scope="module")
def converted(detector: Detector) -> nn.Module:
    return intact8.split(detector, DATA, engine="reference")


def test_parts_are_programs_and_the_rest_is_as_before(detector: Detector, converted: nn.Module) -> None:
    assert set(programs(converted)) == {"body", "heads.scores", "heads.boxes", "refine"}
    assert type(converted) is Detector and isinstance(converted.body, Module)
    assert isinstance(detector.body, nn.Sequential)  # the model is as it was
    given = images(3)
    with torch.no_grad():
        expected, found = detector(given), converted(given)
    assert len(found) == 3
    for a, b in zip(expected, found, strict=True):
        assert set(b) == {"boxes", "scores"} and b["boxes"].shape[1:] == (4,)
        assert abs(len(a["scores"]) - len(b["scores"])) <= 4


def test_programs_are_what_quantize_gives_for_the_part(detector: Detector, converted: nn.Module) -> None:
    alone = intact8.quantize(detector.body, [torch.stack(batch[0]) for batch in DATA])
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(alone.run(x, engine="reference"), converted.body(x))


def test_no_detection_runs_an_empty_batch(converted: nn.Module) -> None:
    assert converted.refine(torch.zeros(0, 4)).shape == (0, 4)


def test_saved_programs_are_put_back(detector: Detector, converted: nn.Module, tmp_path: Any) -> None:
    import copy

    again, given = copy.deepcopy(detector), images()
    for i, (path, program) in enumerate(programs(converted).items()):
        program.save(tmp_path / f"{i}.i8")
        part = Module(intact8.Program.load(tmp_path / f"{i}.i8"), "reference")
        part.stride = 4
        again.set_submodule(path, part)
    with torch.no_grad():
        for a, b in zip(again(given), converted(given), strict=True):
            assert torch.equal(a["boxes"], b["boxes"])


def test_named_modules_only(detector: Detector) -> None:
    with pytest.warns(CaptureWarning, match=r"stay in float32: heads\.scores, heads\.boxes, refine"):
        found = intact8.split(detector, DATA, modules={"body": intact8.recipes.minmax()}, engine="reference")
    assert set(programs(found)) == {"body"}


def test_calls_by_name_and_labels() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(input=x)
            return y[y[:, 0] > 0]

    data = [(torch.randn(8, 4), torch.zeros(8)) for _ in range(8)]
    for batches in (data, iter(data), torch.randn(64, 4), {"x": torch.randn(64, 4)}):
        assert set(programs(intact8.split(Net(), batches, engine="reference"))) == {"head"}


@pytest.mark.parametrize(
    ("modules", "error", "said"),
    [
        (("tail",), RecipeError, "no module 'tail'"),
        (("heads",), CaptureError, "heads: this module is never called"),
    ],
)
def test_modules_that_cannot_be_parts(detector: Detector, modules: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        intact8.split(detector, DATA, modules=modules)


def test_errors_and_warnings_name_the_part(detector: Detector) -> None:
    few = DATA[:2]
    with pytest.warns(Warning, match=r"^body: calibrated on 4 samples"):
        intact8.split(detector, few, modules=("body",), engine="reference")


def test_nothing_to_convert() -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            return y

    with pytest.raises(CaptureError, match="no module of the model can be captured"):
        intact8.split(Norms(), torch.randn(4, 4))


def test_the_refusal_of_a_whole_detector_says_how(detector: Detector, capfd: pytest.CaptureFixture[str]) -> None:
    class Stops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.body(x)
            return y if y.sum() > 0 else -y

    with warnings.catch_warnings(), pytest.raises(CaptureError) as caught:
        warnings.simplefilter("error")
        intact8.quantize(Stops(), torch.randn(4, 4))
    assert "depends on the values of the input" in str(caught.value) and "test_splitting.py:" in str(caught.value)
    assert "intact8.split(model, data)" in str(caught.value)
    assert not capfd.readouterr().err


class Tied(nn.Module):
    """Reads the weight of a layer that becomes a part, and keeps the rows of positive means."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, words: Tensor) -> Tensor:
        y = torch.nn.functional.linear(self.layer(self.table(words)).mean(1), self.table.weight)
        return y[(y.mean(1) > -100).nonzero()[:, 0]]


def test_weights_that_the_model_reads_of_a_part_are_there() -> None:
    torch.manual_seed(0)
    model, words = Tied().eval(), torch.randint(0, 20, (16, 5))
    converted = intact8.split(model, [words] * 4, engine="reference")
    expected = model(words).detach()
    assert set(programs(converted)) == {"table", "layer"}
    assert float((converted(words) - expected).norm() / expected.norm()) < 0.1


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: -self.layer(x), (x,))


def test_branches_of_cond_and_no_data_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"torch\.cond"):
        intact8.split(Gate().eval(), [torch.randn(8, 6)])
    with pytest.raises(InputError, match="no batch"):
        intact8.split(nn.Sequential(nn.Linear(6, 4)).eval(), [])
