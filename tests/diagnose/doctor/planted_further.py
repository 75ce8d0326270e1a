"""Faults on seven further networks, planted before the doctor was asked about any of them, in two batches of twenty.

An MLP-mixer, a densely connected network with batch norm before its convolutions, blocks with layer norm and layer
scale on coloured images, a vision transformer, a one-dimensional network for sounds, a bidirectional LSTM that tags
rows, and an autoencoder with transposed convolutions. Every pair of place and cause that leads a person to the fault is
a right answer.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.diagnose.doctor.planted import Planted, calibrated, changing, override, ranged, writing
from tests.diagnose.doctor.planted_accidents import DATA, NETWORK, WRONG, Answers
from tests.diagnose.doctor.planted_on_digits import SHOWN, TRAINED, digits, set_to, times
from torch import Tensor, nn

from intact8 import Recipe, Scheme, recipes

PLANTS: dict[str, tuple[Callable[[], Planted], Answers]] = {}


@functools.cache
def coloured() -> tuple[Tensor, Tensor]:
    """Digits (1797, 3, 8, 8) in reddish ink on a bluish ground, each with a tint of its own, and labels."""
    x, y = digits()
    random = torch.Generator().manual_seed(5)
    ink, ground = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0.1, 0.2, 0.6])
    tint = 0.08 * torch.randn(len(x), 3, 1, 1, generator=random)
    share = (x - x.min()) / (x.max() - x.min())
    image = share * ink[:, None, None] + (1 - share) * ground[:, None, None] + tint
    return ((image - 0.4) / 0.25).clamp(-2.0, 2.5), y


@functools.cache
def sounds() -> tuple[Tensor, Tensor]:
    """Six kinds of tones with noise, (1797, 1, 128), and labels."""
    random = torch.Generator().manual_seed(6)
    y = torch.randint(0, 6, (1797,), generator=random)
    time, phase = torch.arange(128.0), 6.28 * torch.rand(1797, 1, generator=random)
    tone = torch.sin(0.1 * (1.5 + y[:, None]) * time + phase) * torch.exp(-0.01 * y[:, None] * time)
    return (tone + 0.5 * torch.randn(1797, 128, generator=random))[:, None], y


class Mixing(nn.Module):
    """A layer that mixes tokens, and one that mixes channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 24))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        y: Tensor = x + self.channels(self.norm2(x))
        return y


class Mixer(nn.Module):
    """An MLP-mixer on sixteen patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, 24, 2, 2), nn.ModuleList(Mixing() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x).mean(1))
        return y


class Dense(nn.Module):
    """Four layers of batch norm, ReLU and convolution, each of which reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(12 + 8 * i) for i in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(12 + 8 * i, 8, 3, padding=1, bias=False) for i in range(4))
        self.last, self.fc = nn.BatchNorm2d(44), nn.Linear(44 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(norm(x).relu())], 1)
        y: Tensor = self.fc(nn.functional.avg_pool2d(self.last(x).relu(), 4).flatten(1))
        return y


class NextBlock(nn.Module):
    """Depthwise convolution, layer norm, two linear layers with GELU, layer scale, and what came in added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dw, self.norm = nn.Conv2d(channels, channels, 5, padding=2, groups=channels), nn.LayerNorm(channels)
        self.pw1, self.pw2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.pw2(nn.functional.gelu(self.pw1(self.norm(self.dw(x).permute(0, 2, 3, 1)))))
        return x + (self.gamma * y).permute(0, 3, 1, 2)


class Next(nn.Module):
    """A stem, two blocks, a smaller image with more channels, a block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 2, 2)
        self.blocks = nn.ModuleList((NextBlock(16), NextBlock(16), NextBlock(24)))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[2](self.down(self.blocks[1](self.blocks[0](self.stem(x)))))
        y: Tensor = self.head(self.norm(x.mean((2, 3))))
        return y


class Attending(nn.Module):
    """Self-attention of two heads and a feed-forward part, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        self.axis = -1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(self.axis)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        y: Tensor = x + self.fc2(self.act(self.fc1(self.norm2(x))))
        return y


class Vit(nn.Module):
    """Sixteen patches with positions, two such layers, the mean over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Conv2d(3, 32, 2, 2), nn.Parameter(0.1 * torch.randn(1, 16, 32))
        self.blocks = nn.ModuleList(Attending(32) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x).mean(1))
        return y


class Sound(nn.Module):
    """Three strided convolutions over time with batch norm, the last one without."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(1, 16, 9, 2, 4, bias=False), nn.BatchNorm1d(16)
        self.conv2, self.bn2 = nn.Conv1d(16, 24, 5, 2, 2, bias=False), nn.BatchNorm1d(24)
        self.conv3, self.fc = nn.Conv1d(24, 32, 5, 2, 2), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        y: Tensor = self.fc(self.conv3(x).relu().mean(2))
        return y


class Tagger(nn.Module):
    """A bidirectional LSTM over the rows of an image, between two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.inner = nn.Linear(8, 32), nn.Linear(32, 32)
        self.lstm, self.again = nn.LSTM(32, 16, batch_first=True, bidirectional=True), nn.Linear(32, 32)
        self.again.weight, self.fc = self.inner.weight, nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lstm(torch.tanh(self.inner(torch.tanh(self.enter(x[:, 0])))))[0]
        y: Tensor = self.fc(torch.relu(self.again(x)).amax(1))
        return y


class Auto(nn.Module):
    """Two convolutions down and two transposed ones up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 16, 3, 2, 1)
        self.up1, self.up2 = nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up2(self.up1(self.down2(self.down1(x).relu()).relu()).relu())
        return y


def data_of(kind: type[nn.Module]) -> tuple[Tensor, Tensor]:
    """The samples and labels that networks of a class see."""
    return sounds() if kind is Sound else digits() if kind in (Tagger, Auto) else coloured()


def trained_further(net: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer, epochs: int) -> nn.Module:
    """Train to classify, or to give back what comes in."""
    for _ in range(epochs):
        for index in torch.randperm(TRAINED).split(50):
            optimizer.zero_grad()
            out = net(x[index])
            same = out.shape == x[index].shape
            loss = nn.functional.mse_loss(out, x[index]) if same else nn.functional.cross_entropy(out, y[index])
            loss.backward()
            optimizer.step()
    return net


@functools.cache
def trained(kind: type[nn.Module]) -> nn.Module:
    """A network of that class, trained, in evaluation mode. Copy it before anything is changed."""
    torch.manual_seed(0)
    net = kind()
    x, y = data_of(kind)
    return trained_further(net, x, y, torch.optim.Adam(net.parameters(), 3e-3), 12).eval()


def patient(kind: type[nn.Module], net: nn.Module | None = None, **rest: Any) -> Planted:
    """A network on data that it was not trained on."""
    x, y = data_of(kind)
    rest.setdefault("calibration", x[:SHOWN])
    return Planted(trained(kind) if net is None else net, x[TRAINED:], y[TRAINED:], place="", causes=("",), **rest)


changed = changing(trained, patient)
written = writing(changed)


def calibrated_on(kind: type[nn.Module], change: Callable[[Tensor], Tensor]) -> Callable[[], Planted]:
    """Calibration data as they should not be."""
    return lambda: patient(kind, calibration=change(data_of(kind)[0][:SHOWN].clone()))


def shown(kind: type[nn.Module], change: Callable[[Tensor], Tensor]) -> Callable[[], Planted]:
    """All data as they should not be."""

    def make() -> Planted:
        planted = patient(kind)
        return replace(planted, x=change(planted.x.clone()), calibration=change(planted.calibration.clone()))

    return make


def overridden(kind: type[nn.Module], place: str, **changes: Any) -> Callable[[], Planted]:
    """An override that asks for too little."""
    return lambda: override(patient(kind), place, **changes)


def plant(name: str, make: Callable[[], Planted], *answers: tuple[str, str]) -> None:
    """Enter a fault with its right answers."""
    PLANTS[name] = make, set(answers)


def anywhere(places: tuple[str, ...], causes: tuple[str, ...]) -> list[tuple[str, str]]:
    """All pairs."""
    return [(place, cause) for place in places for cause in causes]


def _bfloat16(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.copy_(parameter.bfloat16().float())


def _untied(net: Any) -> None:
    net.again.weight = nn.Parameter(8 * net.again.weight.detach().clone())


def _missing(x: Tensor) -> Tensor:
    x[40, 1, 2, 2] = math.nan
    return x


def _narrow(kind: type[nn.Module], place: str, share: float) -> Callable[[], Planted]:
    def make() -> Planted:
        planted = patient(kind)
        name = next(name for name in calibrated(planted).points if name.startswith(place))
        scale, zero = ranged(planted, name)
        return override(planted, name, activation={"fixed": (scale * share, zero)})

    return make


def _diverged() -> Planted:
    planted = patient(Auto, recipe=recipes.qat("fixed"))
    torch.manual_seed(1)
    sim = calibrated(planted).train()
    x, y = data_of(Auto)
    trained_further(sim, x, y, torch.optim.SGD(sim.parameters(), 1.0), 1)
    return replace(planted, sim=sim.eval())


GREW = ("exploded_weight", "exploded_channel", "outlier_channel", "outlier_weight", "wrong_scale")

plant(
    "mixer_eps",
    changed(Mixer, lambda net: setattr(net.blocks[1].norm1, "eps", 10.0)),
    (NETWORK, WRONG),
    ("blocks.1.norm1", "wrong_setting"),
)
plant("mixer_bfloat16", changed(Mixer, _bfloat16), (NETWORK, "rounded_weights"))
plant(
    "mixer_row_of_thousand",
    written(Mixer, "blocks.0.tokens.0.weight", times(9, 1000.0)),
    *anywhere(("blocks.0.tokens.0",), GREW),
)
plant(
    "dense_channels_reversed_in_calibration",
    calibrated_on(Dense, lambda x: x.flip(1)),
    *anywhere((DATA,), ("unlike_data", "unrepresentative")),
)
plant(
    "dense_stale_mean",
    written(Dense, "norms.2.running_mean", lambda t: t.add_(3.0)),
    *anywhere(("norms.2", "convs.2"), ("stale_batch_norm",)),
)
plant("dense_training_mode", changed(Dense, lambda net: net.norms[1].train()), (NETWORK, "training_mode"))
plant(
    "next_branch_of_hundred",
    written(Next, "blocks.1.gamma", times(slice(None), 100.0)),
    (NETWORK, WRONG),
    *anywhere(
        ("blocks.1.gamma", "blocks.1.mul", "blocks.1.pw2", "blocks.1.add", "blocks.1.gelu", "gamma", "mul_1", "add_1"),
        GREW,
    ),
)
plant(
    "next_dead_stem",
    changed(Next, lambda net: (net.stem.weight[:9].zero_(), net.stem.bias[:9].zero_())),
    ("stem", "dead_channels"),
)
plant("next_bytes", shown(Next, lambda x: (0.25 * x + 0.4) * 255), (NETWORK, WRONG), (DATA, "unlike_data"))
plant(
    "vit_softmax_axis",
    changed(Vit, lambda net: setattr(net.blocks[1], "axis", -2)),
    (NETWORK, WRONG),
    ("blocks.1.softmax", "wrong_setting"),
)
plant("vit_nan_sample", calibrated_on(Vit, _missing), (DATA, "not_finite"))
plant(
    "vit_without_activation",
    changed(Vit, lambda net: setattr(net.blocks[0], "act", nn.Identity())),
    (NETWORK, WRONG),
    ("blocks.0.fc1", "wrong_setting"),
)
plant(
    "sound_narrow_range",
    _narrow(Sound, "conv2", 0.05),
    ("conv2", "clipped_range"),
    ("bn2", "clipped_range"),
)
plant("sound_loud_calibration", calibrated_on(Sound, lambda x: 50 * x), (DATA, "unlike_data"))
plant(
    "sound_no_variance",
    written(Sound, "bn2.running_var", set_to(slice(0, 6), 1e-12)),
    ("conv2", "stale_batch_norm"),
    ("conv2", "exploded_channel"),
)
plant("sound_exploded_bias", written(Sound, "conv3.bias", set_to(4, 500.0)), *anywhere(("conv3",), GREW))
plant(
    "tagger_exploded_weight",
    written(Tagger, "lstm.weight_hh_l0_reverse", set_to((10, 3), 200.0)),
    *anywhere(("lstm", "lstm.layer0"), GREW),
)
plant(
    "tagger_untied_weight",
    changed(Tagger, _untied),
    (NETWORK, WRONG),
    *anywhere(("again", "linear", "fc", "relu"), GREW),
)
plant("auto_two_bits", overridden(Auto, "up1", weight={"bits": 2}), ("up1", "few_bits"))
plant("auto_diverged", _diverged, (NETWORK, "diverged_training"))

# The second batch, planted after the doctor had been mended for the first.


def _blocks_swapped(net: Any) -> None:
    one, other = copy.deepcopy(net.blocks[0].tokens.state_dict()), copy.deepcopy(net.blocks[1].tokens.state_dict())
    net.blocks[0].tokens.load_state_dict(other)
    net.blocks[1].tokens.load_state_dict(one)


def _four_bits(net: nn.Module) -> None:
    for parameter in net.parameters():
        if parameter.dim() > 1:
            step = parameter.abs().max() / 7
            parameter.copy_((parameter / step).round() * step)


def _without_green(x: Tensor) -> Tensor:
    x[:, 1] = 0.0
    return x


def _wide(kind: type[nn.Module], place: str, factor: float) -> Callable[[], Planted]:
    return _narrow(kind, place, factor)


def _forgets(net: Any) -> None:
    net.lstm.bias_ih_l0[16:32] = -30.0
    net.lstm.bias_ih_l0_reverse[16:32] = -30.0


def _permuted(net: Any) -> None:
    order = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])
    net.fc.weight.copy_(net.fc.weight[order].clone())
    net.fc.bias.copy_(net.fc.bias[order].clone())


def _percentile() -> Planted:
    scheme = Scheme(observer="percentile", observer_args={"percentile": 70.0})
    return patient(Vit, recipe=Recipe(activation=scheme))


plant("mixer_blocks_swapped", changed(Mixer, _blocks_swapped), (NETWORK, WRONG), ("blocks.0.tokens.0", "wrong_weights"))
plant("mixer_four_bits_before", changed(Mixer, _four_bits), (NETWORK, WRONG), (NETWORK, "rounded_weights"))
plant(
    "dense_eps",
    changed(Dense, lambda net: setattr(net.norms[1], "eps", 50.0)),
    *anywhere(("norms.1", "convs.1"), ("stale_batch_norm", "wrong_setting")),
)
plant(
    "dense_exploded_gain",
    written(Dense, "norms.3.weight", times(5, 400.0)),
    *anywhere(("norms.3", "convs.3"), GREW),
)
plant(
    "dense_without_green_in_calibration",
    calibrated_on(Dense, _without_green),
    *anywhere((DATA,), ("unlike_data", "unrepresentative")),
)
plant("dense_channels_reversed", shown(Dense, lambda x: x.flip(1)), (NETWORK, WRONG), (DATA, "unlike_data"))
plant(
    "next_dead_depthwise",
    changed(Next, lambda net: (net.blocks[1].dw.weight[:10].zero_(), net.blocks[1].dw.bias[:10].zero_())),
    ("blocks.1.dw", "dead_channels"),
)
plant(
    "next_norm_bias",
    written(Next, "blocks.2.norm.bias", set_to(7, 80.0)),
    (NETWORK, WRONG),
    *anywhere(("blocks.2.norm",), GREW),
)
plant(
    "next_activation_of_three_bits",
    overridden(Next, "blocks.0.pw1", activation={"bits": 3}),
    *anywhere(("blocks.0.pw1", "blocks.0.gelu"), ("few_bits",)),
)
plant(
    "vit_queries",
    written(Vit, "blocks.0.qkv.weight", times(slice(0, 32), 20.0)),
    (NETWORK, WRONG),
    *anywhere(("blocks.0.qkv", "blocks.0.matmul", "blocks.0.softmax"), GREW),
)
plant(
    "vit_without_position",
    written(Vit, "position", lambda t: t.zero_()),
    (NETWORK, WRONG),
    ("position", "wrong_weights"),
)
plant(
    "vit_percentile",
    _percentile,
    *anywhere((NETWORK, "x", "embed", "blocks.0.qkv", "blocks.0.fc1", "blocks.1.fc1", "norm"), ("clipped_range",)),
)
plant(
    "vit_softmax_over_samples",
    changed(Vit, lambda net: setattr(net.blocks[0], "axis", 0)),
    (NETWORK, "batch_dependence"),
    (NETWORK, WRONG),
    ("blocks.0.softmax", "wrong_setting"),
)
plant(
    "sound_faint_calibration",
    calibrated_on(Sound, lambda x: 0.05 * x),
    *anywhere((DATA,), ("unlike_data", "no_variety")),
)
plant(
    "sound_stale_variance",
    written(Sound, "bn1.running_var", times(slice(None), 100.0)),
    ("conv1", "stale_batch_norm"),
)
plant("sound_infinite_mean", written(Sound, "bn1.running_mean", set_to(3, math.inf)), ("bn1", "not_finite"))
plant("tagger_forgets", changed(Tagger, _forgets), (NETWORK, WRONG), *anywhere(("lstm",), ("dead_channels", *GREW)))
plant("tagger_permuted_classes", changed(Tagger, _permuted), (NETWORK, WRONG))
plant(
    "auto_exploded_weight",
    written(Auto, "up1.weight", set_to((2, 3, 1, 1), 60.0)),
    *anywhere(("up1",), GREW),
)
plant("auto_wide_range", _wide(Auto, "up1", 60.0), ("up1", "wide_range"))
