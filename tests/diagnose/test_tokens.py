"""Diagnosis of networks with a token of their own in front of every sample's, as vision transformers have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.diagnose.doctor.tensor_statistics import TensorStats
from intact8.errors import InputError


class Tokens(nn.Module):
    """Two patches and a class token; attention of two heads, of which the second dimension is the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
        found: Tensor = self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0][:, 0])
        return found


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Tokens().eval()


@pytest.fixture(scope="module")
def sim(model: nn.Module) -> intact8.Simulation:
    sim = intact8.prepare(model, torch.randn(2, 3, 4, 8)).eval()
    intact8.calibrate(sim, torch.randn(16, 3, 4, 8))
    return sim


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("engine", ["reference", "onednn", "simulation"])
def test_compare(model: nn.Module, sim: intact8.Simulation, engine: str, samples: int) -> None:
    given = sim if engine == "simulation" else intact8.convert(sim)
    report = intact8.compare(model, given, torch.randn(samples, 3, 4, 8), engine=engine)
    assert report.samples == samples and report["head"].cascade.sqnr > 15


def test_sensitivity(sim: intact8.Simulation) -> None:
    assert "head" in [row.name for row in intact8.sensitivity(sim, torch.randn(4, 3, 4, 8))]


def test_doctor(model: nn.Module) -> None:
    found = intact8.doctor(model, torch.randn(64, 3, 4, 8), remedies=False, seconds=0)
    assert "too_few" in [f.cause for f in found.findings]


@pytest.mark.parametrize(
    ("shape", "along", "expected"),
    [
        ((2, 3), 0, [2.0, 5.0]),  # a row per sample
        ((3, 2), 1, [4.0, 5.0]),  # samples along another dimension
        ((4, 3), 0, [5.0, 11.0]),  # two parts of each sample
        ((1, 3), 0, [2.0, 2.0]),  # what belongs to no sample
    ],
    ids=["rows", "columns", "heads", "shared"],
)
def test_extremes_per_sample(shape: tuple[int, int], along: int, expected: list[float]) -> None:
    stats = TensorStats()
    stats.add(torch.arange(float(shape[0] * shape[1])).reshape(shape), 1, 2, along)
    assert stats.sample_high == expected


class Mixing(nn.Module):
    """Samples that have to do with one another, or, where they have numbers of their own, a batch of the example's."""

    def __init__(self, numbers: bool) -> None:
        super().__init__()
        self.layer, self.numbers = nn.Linear(4, 4), numbers

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y + torch.arange(len(x))[:, None] if self.numbers else torch.cat([y, y.roll(1, 0)], 1)


def test_compare_takes_any_number_of_samples_that_depend_on_one_another() -> None:
    model, x = Mixing(numbers=False).eval(), torch.randn(8, 4)
    program = intact8.quantize(model, x)
    assert [intact8.compare(model, program, x[:count]).samples for count in (8, 3)] == [8, 3]


@pytest.mark.filterwarnings("ignore::intact8.errors.CaptureWarning")
def test_compare_refuses_another_batch_than_the_programs() -> None:
    model, x = Mixing(numbers=True).eval(), torch.randn(8, 4)
    program = intact8.quantize(model, x)
    assert intact8.compare(model, program, x).samples == 8
    with pytest.raises(InputError, match=r"the program takes \(8, 4\), the model and these data \(3, 4\)"):
        intact8.compare(model, program, x[:3])
