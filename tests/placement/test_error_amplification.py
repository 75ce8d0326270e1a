"""Norms and quotients written by hand: as accurate as their float formula on an 8-bit activation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.capture.graph import Graph, Node
from intact8.placement.error_amplification import AMPLIFIED, _ends, _ordinary, weighted_sums

pytestmark = pytest.mark.filterwarnings("ignore::intact8.calibration.summary.CalibrationWarning")


def layer_norm_sqrt(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)


def layer_norm_rsqrt(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred * (centred.pow(2).mean(1, keepdim=True) + 1e-5).rsqrt()


def layer_norm_std(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-6)


def layer_norm_moments(x: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    return (x - mean) / ((x * x).mean(1, keepdim=True) - mean * mean + 1e-2) ** 0.5


def layer_norm_affine(x: Tensor) -> Tensor:
    inverse = 1 / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
    return x * inverse - x.mean(1, keepdim=True) * inverse


def global_response_norm(x: Tensor) -> Tensor:
    size = x.norm(p=2, dim=(2, 3), keepdim=True)
    return x + 0.5 * x * (size / (size.mean(1, keepdim=True) + 1e-6))


def softmax_by_hand(x: Tensor) -> Tensor:
    e = (x - x.amax(1, keepdim=True)).exp()
    return e / e.sum(1, keepdim=True)


def linear_attention(x: Tensor) -> Tensor:
    q = x.flatten(2) + 0.02  # no query is 0 altogether, whose result is noise
    product = q.mT @ (q @ F.pad(q.mT, (0, 1), value=1.0))
    return product[..., :-1] / (product[..., -1:] + 1e-5)


def elu_attention(x: Tensor) -> Tensor:
    q = F.elu(4 * x.flatten(2)).mT + 1
    return (q @ (q.mT @ q)) / (q @ q.sum(1, keepdim=True).mT)


def cosine_similarity(x: Tensor) -> Tensor:
    q = x.flatten(2)
    return (q.mT @ q) / (q.norm(dim=1, keepdim=True).mT * q.norm(dim=1, keepdim=True) + 1e-6)


def standardised(x: Tensor) -> Tensor:
    mean, scale = x.mean((2, 3), keepdim=True), torch.sqrt(x.var((2, 3), keepdim=True, unbiased=False) + 1e-5)
    return torch.tanh((x - mean) / scale) * scale + mean


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "normalize": lambda x: F.normalize(x, dim=1),
    "normalize-order-1": lambda x: F.normalize(x, p=1.0, dim=1),
    "linalg-norm": lambda x: x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + 1e-6),
    "square-sum-sqrt": lambda x: x / (x.square().sum(1, keepdim=True).sqrt() + 1e-6),
    "rms-rsqrt": lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6),
    "rms-power": lambda x: x * (x * x).mean(1, keepdim=True).add(1e-6) ** -0.5,
    "rms-reciprocal": lambda x: x * torch.reciprocal(x.pow(2).mean(1, keepdim=True).sqrt() + 1e-6),
    "share": lambda x: x / (x.sum(1, keepdim=True) + 1e-6),
    "mean-share": lambda x: x * (1 / (x.mean(1, keepdim=True) + 1e-6)),
    "logarithm": lambda x: torch.log(x.square().mean(1, keepdim=True) + 1e-4),
    "layer-norm-sqrt": layer_norm_sqrt,
    "layer-norm-rsqrt": layer_norm_rsqrt,
    "layer-norm-std": layer_norm_std,
    "layer-norm-moments": layer_norm_moments,
    "layer-norm-affine": layer_norm_affine,
    "global-response-norm": global_response_norm,
    "softmax": softmax_by_hand,
    "linear-attention": linear_attention,
    "elu-attention": elu_attention,
    "cosine-similarity": cosine_similarity,
    "standardised": standardised,
}


class Network(nn.Module):
    """A formula behind convolution and ReLU, whose channels and positions differ much in size."""

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.formula = nn.Conv2d(3, 8, 3, padding=1), formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(self.conv(x).relu())


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


def rounded(x: Tensor, low: int = 0, high: int = 255) -> Tensor:
    """On the 8-bit grid of its range; that of a weight is symmetric."""
    lo, hi = (min(float(x.min()), 0.0), float(x.max())) if low == 0 else (-float(x.abs().max()), float(x.abs().max()))
    scale = (hi - lo) / (high - low)
    return torch.fake_quantize_per_tensor_affine(x, scale, round(low - lo / scale), low, high)


@pytest.mark.parametrize("name", FORMULAS)
def test_close_to_the_formula_on_an_8_bit_activation(name: str) -> None:
    torch.manual_seed(0)
    model = Network(FORMULAS[name]).eval()
    x = torch.randn(32, 3, 7, 7) * torch.logspace(-1, 0.5, 32).reshape(-1, 1, 1, 1)
    program = intact8.quantize(model, x, intact8.recipes.minmax())
    with torch.no_grad():
        wanted = model(x)
        model.conv.weight.copy_(rounded(model.conv.weight, -127, 127))
        bound = relative(FORMULAS[name](rounded(model.conv(rounded(x)).relu())), wanted)
    got = program.run(x, engine="onednn")
    assert relative(got, wanted) <= 1.5 * bound + 0.005, f"{relative(got, wanted):.4f} against {bound:.4f}"
    torch.testing.assert_close(program.run(x[::8], engine="reference"), got[::8], rtol=1e-3, atol=1e-3)
    assert intact8.verify(program, x[:1], engines=("reference", "onednn")).exact


class Gate(nn.Module):
    """Sigmoid and softplus by hand: steep functions behind an exponential are ordinary activation functions."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-x)) + torch.log(1 + torch.exp(x))


class Excitation(nn.Module):
    """Squeeze and excitation: means and products, but nothing is divided."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        return x * self.fc(x.mean((2, 3), keepdim=True)).sigmoid() / 3


@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Conv2d(3, 8, 3), Gate(), nn.Conv2d(8, 4, 3)), nn.Sequential(Excitation(), nn.Conv2d(8, 4, 3))],
    ids=["functions-behind-exponentials", "squeeze-and-excitation"],
)
def test_what_no_division_amplifies_stays_integer(model: nn.Module) -> None:
    sim = intact8.prepare(model.eval(), torch.randn(2, 3, 9, 9))
    assert not sim.placed.float_nodes


def test_the_reason_is_told() -> None:
    sim = intact8.prepare(Network(FORMULAS["normalize"]), torch.randn(2, 3, 9, 9))
    assert AMPLIFIED in sim.placed.float_nodes.values()


def test_only_one_transition_on_either_side() -> None:
    model = nn.Sequential(Network(layer_norm_rsqrt), nn.Conv2d(8, 4, 1))
    ops = [n.op for n in intact8.prepare(model, torch.randn(2, 3, 9, 9)).graph]
    assert (ops.count("quantize"), ops.count("dequantize")) == (2, 2)


def test_what_carries_ordinary_activations() -> None:
    nodes = [
        Node("x", "input"),
        Node("conv", "conv", ["x"]),
        Node("moved", "reshape", ["conv"], {"shape": [-1, 4]}),
        Node("joined", "cat", ["conv", "conv"], {"axis": 1}),
        Node("padded", "pad", ["conv"], {"pads": [[0, 0]], "value": 1.0}),
    ]
    assert _ordinary(Graph({n.name: n for n in nodes}), frozenset(), vanishing=False) == {"x", "conv", "moved"}


def test_a_product_with_a_reciprocal_is_an_end() -> None:
    nodes = [Node("x", "input"), Node("r", "input"), Node("y", "mul", ["x", "r"])]
    graph = Graph({n.name: n for n in nodes})
    assert _ends(graph, {"r"}) == ["x", "r"] and _ends(graph, set()) == []


class Bands(nn.Module):
    """The logarithm of powers in overlapping bands, as mel spectrograms have it, and a layer."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        bands = torch.zeros(32, 8)
        for band in range(8):
            bands[band * 4 : band * 4 + 5, band] = 0.2
        self.way, self.out = way, nn.Linear(8, 4, bias=False)
        self.register_buffer("bands", bands)

    def forward(self, power: Tensor) -> Tensor:
        bands = self.get_buffer("bands")
        if self.way == "right":
            y = power @ bands
        elif self.way == "left":
            y = (bands.T @ power.transpose(1, 2)).transpose(1, 2)
        else:
            y = F.conv1d(power.transpose(1, 2), bands.T[:, :, None]).transpose(1, 2)
        z: Tensor = self.out(torch.log(y.clamp(min=1e-6)))
        return z


@pytest.mark.parametrize("way", ["right", "left", "convolution"])
def test_the_logarithm_of_bands_of_a_filterbank(way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    power = torch.randn(64, 20, 32, generator=generator).square() * 10 ** (
        4 * torch.rand(64, 20, 1, generator=generator) - 4
    )
    net = Bands(way).eval()
    program = intact8.quantize(net, power)
    with torch.no_grad():
        right = net(power)
    noise = (program.run(power) - right).square().mean() / right.var()
    assert float(-10 * noise.log10()) > 30
    assert intact8.verify(program, power).mismatches == 0


def test_layers_that_subtract_are_no_sums() -> None:
    nodes = [Node("x", "input"), Node("fc", "linear", ["x"], params={"weight": "w"})]
    graph = Graph({n.name: n for n in nodes})
    assert weighted_sums(graph, {"w": torch.tensor([[0.0, 1.0]])}) == {"fc"}
    assert not weighted_sums(graph, {"w": torch.tensor([[-1.0, 1.0]])})
    assert not weighted_sums(graph, {"w": torch.tensor([[0.5, 1.0]])})
