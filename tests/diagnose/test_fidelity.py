"""What conversion checks at its end, and what it says."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme, recipes
from intact8.diagnose.fidelity import _Compared, _compared, _layer_input_ranges, _plain, check_outputs
from intact8.errors import AccuracyWarning

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


def calibrated(recipe: Recipe | None = None) -> intact8.Simulation:
    sim = intact8.prepare(network(), torch.randn(2, 8), recipe).eval()
    intact8.calibrate(sim, torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
    return sim


def test_a_good_program_says_nothing_and_records_the_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        program = intact8.convert(calibrated())
    (row,) = program.provenance["outputs"]
    assert row["sqnr"] > 25 and "plain" not in row and "lost" not in program.provenance
    assert program.provenance["samples"] == 16 and program.provenance["float_share"] == 0


def test_the_first_operation_that_loses_it_is_named() -> None:
    clipped = Recipe(overrides={"2": {"activation": {"fixed": (1e-4, 0)}}})
    with pytest.warns(AccuracyWarning, match=r"first lost at 2 \(linear\)"):
        program = intact8.convert(calibrated(clipped))
    (row,) = program.provenance["outputs"]
    assert row["sqnr"] < 20 < row["plain"] and program.provenance["lost"]["node"] == "2"


def test_of_an_input_what_reads_it_is_to_be_kept_float() -> None:
    fixed = Recipe(inputs={"*": Scheme(fixed=(1e-4, 0))})
    with pytest.warns(AccuracyWarning, match=r'first lost at input \(input\).*keep float what reads it .*"0": None}'):
        intact8.convert(calibrated(fixed))
    intact8.prepare(network(), torch.randn(2, 8), Recipe(overrides={"0": None}))


def test_weights_that_changed_after_calibration_are_named_as_the_cause() -> None:
    sim = calibrated()
    with torch.no_grad():
        for parameter in sim.parameters():
            parameter.mul_(1.7)
    with pytest.warns(AccuracyWarning, match=r"weights have changed since calibration: .*reset=True"):
        program = intact8.convert(sim)
    (hit,) = (h for h in intact8.lint(program) if h.id == "IQ605")
    assert "weights have changed since calibration" in hit.message


def test_errors_of_few_samples_are_seen_where_samples_are_small() -> None:
    """A function that jumps at what rounds to it is right or all wrong."""
    x = torch.full((16, 1), 0.5)
    x[5:7] = torch.tensor([[-1e-4], [1.0]])
    sim = intact8.prepare(Remainder().eval(), x, Recipe(between_layers="integer")).eval()
    intact8.calibrate(sim, x)
    with pytest.warns(AccuracyWarning, match="far from the float network's"):
        intact8.convert(sim)


class Remainder(nn.Module):
    """What is left of a number over two others."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.remainder(x, torch.tensor([1.0, 0.4]))


def test_samples_without_dimensions_are_compared() -> None:
    program = intact8.quantize(nn.Tanhshrink().eval(), [torch.randn(()) for _ in range(8)])
    assert program.run(torch.tensor(0.5)).shape == ()


def test_quantize_checks_as_well() -> None:
    with pytest.warns(AccuracyWarning, match="1 of 1 outputs"):
        intact8.quantize(network(), torch.randn(64, 8), Recipe(inputs={"*": Scheme(fixed=(1e-3, 128))}))


def test_what_plain_rounding_loses_as_well_is_not_told() -> None:
    """Two-bit weights are what was asked for: the outputs are poor, but nothing between the layers is to blame."""
    weight = Scheme(dtype="int8", bits=2, symmetric=True, granularity="per_channel", observer="minmax")
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        program = intact8.convert(calibrated(Recipe(weight=weight)))
    (row,) = program.provenance["outputs"]
    assert row["sqnr"] < 20 and abs(row["sqnr"] - row["plain"]) < 6


def test_plain_rounding_does_not_rescale_channels() -> None:
    """What a recipe does to channels is measured beside it, not a part of what it is measured against."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)).eval()
    x, found = torch.randn(4, 3, 8, 8), []
    for equalize in (True, False):
        sim = intact8.prepare(model, x[:1], Recipe(equalize=equalize)).eval()
        intact8.calibrate(sim, x)
        assert bool(sim.equalized) is equalize
        (output,) = _plain(sim, [x], _layer_input_ranges(sim, [[x]])).values()
        found.append(output)
    assert torch.equal(*found)


def test_after_training_the_weights_of_now_are_compared() -> None:
    sim = calibrated()
    with torch.no_grad():
        for parameter in sim.parameters():
            parameter.mul_(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        assert check_outputs(sim.eval())["outputs"][0]["sqnr"] > 15


def test_what_trained_scales_clip_is_no_loss() -> None:
    sim = calibrated(recipes.qat("learned"))
    sim.train()
    optimizer = torch.optim.SGD(sim.parameters(), lr=1e-6)
    sim(torch.randn(64, 8)).square().mean().backward()
    optimizer.step()
    scales = [p for name, p in sim.named_parameters() if "activation_point.learner" in name]
    for factor, told in ((1.0, False), (0.3, False), (1e-3, True)):
        before = [p.detach().clone() for p in scales]
        with torch.no_grad():
            for p in scales:
                p.mul_(factor)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", AccuracyWarning)
            check_outputs(sim.eval())
        assert [str(w.message).count("learned scales a lower rate") for w in found] == [1] * told
        with torch.no_grad():
            for p, old in zip(scales, before, strict=True):
                p.copy_(old)


class OwnLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight, self.bias = (
            nn.LayerNorm(8),
            nn.Parameter(torch.randn(8, 16)),
            nn.Parameter(torch.randn(16)),
        )

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.expand(x.shape[0], 8, 16)  # one for every sample, which no linear layer has
        return torch.bmm(self.norm(x)[:, None], weight)[:, 0] + self.bias


def test_products_left_float_are_told() -> None:
    with pytest.warns(AccuracyWarning, match="100% of the multiplications stay float"):
        intact8.quantize(OwnLinear(), torch.randn(64, 8))


def test_products_left_float_on_request_are_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        intact8.quantize(OwnLinear(), torch.randn(64, 8), recipes.dynamic())
        intact8.quantize(network(), torch.randn(64, 8), Recipe(overrides={"*": None}))


def test_without_samples_there_is_nothing_to_check() -> None:
    sim = calibrated()
    sim.samples = []
    assert check_outputs(sim) == {}


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(8), nn.Dropout(0.5)], ids=["batch-norm", "dropout"])
def test_a_model_left_in_training_mode_is_told(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(8, 8), layer)
    with pytest.warns(AccuracyWarning, match="1 is in training mode"):
        intact8.quantize(model.train(), torch.randn(64, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        intact8.quantize(model.eval(), torch.randn(64, 8))


class Gated(nn.Module):
    """Sums of large terms that cancel: rounding each of them loses what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 8 * torch.tanh(layer(x)) * torch.sigmoid(x) - 7 * x * torch.sigmoid(layer(x))
        return x


def test_quantize_rounds_less_between_layers_where_plain_rounding_is_much_better(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    model, x = Gated().eval(), torch.randn(64, 16)
    with warnings.catch_warnings(), caplog.at_level("INFO"):
        warnings.simplefilter("error", AccuracyWarning)
        program = intact8.quantize(model, x)
    chosen = Recipe.from_toml(program.recipe).between_layers
    assert chosen in ("float_residual", "float") and chosen in caplog.text
    sim = intact8.prepare(model, x[:2], Recipe.from_toml(program.recipe)).eval()
    intact8.calibrate(sim, x)
    again = intact8.convert(sim)
    assert [op.kind for op in again.ops] == [op.kind for op in program.ops]
    assert torch.equal(again.run(x), program.run(x))


def test_a_recipe_that_says_what_lies_between_layers_is_obeyed_and_the_warning_names_the_field() -> None:
    torch.manual_seed(0)
    with pytest.warns(AccuracyWarning, match="between_layers="):
        program = intact8.quantize(Gated().eval(), torch.randn(64, 16), Recipe(between_layers="integer"))
    (row,) = program.provenance["outputs"]
    assert row["apart"] > 0.01 and Recipe.from_toml(program.recipe).between_layers == "integer"


def test_data_that_cannot_be_read_again_is_not() -> None:
    torch.manual_seed(0)
    with pytest.warns(AccuracyWarning, match="between_layers="):
        intact8.quantize(Gated().eval(), iter(torch.randn(64, 16).split(32)))


def test_tensors_are_compared_piece_by_piece() -> None:
    """So the check at the end holds no copies of all outputs. Infinity in the float network does not count as noise."""
    generator = torch.Generator().manual_seed(3)
    wanted, noise = torch.randn(2, 3, 70_000, generator=generator), 0.1 * torch.randn(2, 3, 70_000, generator=generator)
    whole, parts = _Compared(), _Compared()
    whole.add(wanted, wanted + noise)
    for w, n in zip(wanted, noise, strict=True):
        parts.add(w, w + n)
    expected = 10 * torch.log10(wanted.double().square().sum() / noise.double().square().sum())
    cosine = torch.cosine_similarity(wanted.double().flatten(), (wanted + noise).double().flatten(), dim=0)
    assert whole.sqnr == parts.sqnr == pytest.approx(float(expected), abs=0.01)
    assert parts.cosine == pytest.approx(float(cosine), abs=1e-9)
    assert whole.cosine == pytest.approx(float(cosine), abs=1e-9)
    wanted[0, 0, 0] = float("inf")
    odd = _Compared()
    odd.add(wanted, wanted + noise)
    assert odd.sqnr == whole.sqnr and odd.cosine == 0.0
    assert _Compared().sqnr is None and _Compared().cosine == 0.0


def test_results_of_one_call_at_a_time_are_in_memory() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def calls() -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        for _ in range(3):
            assert not any(result() is not None for result in seen)
            wanted, got = {"y": torch.ones(4)}, {"y": torch.ones(4)}
            seen.extend(weakref.ref(t) for t in (wanted["y"], got["y"]))
            yield wanted, got
            del wanted, got

    assert _compared(calls())["y"].signal == 12
