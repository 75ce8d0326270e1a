"""Further faults of practitioners on fourteen more networks, written down after the doctor was mended for the others.

At first it was right in 26 of 30; and in 15 of 20 of the last ones, which were planted after the next mending.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from tests.diagnose.doctor.planted import Planted
from tests.diagnose.doctor.planted_by_judges import chains, table, tokens
from tests.diagnose.doctor.planted_further import sounds
from tests.diagnose.doctor.planted_in_practice import anywhere, asks, held, scaled
from tests.diagnose.doctor.planted_in_the_field import GREW, UNLIKE, Attention
from tests.diagnose.doctor.planted_on_digits import digits
from tests.diagnose.doctor.shapes import (
    DATA,
    NETWORK,
    SHOWN,
    WRONG,
    Plants,
    changed,
    classes,
    images,
    labelled,
    motions,
    patient,
    planter,
    random,
    reset,
    series,
    shapes,
    shown,
    squares,
    swap,
    texts,
    written,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional as F

from intact8 import Recipe, Scheme

PLANTS: Plants = {}
plant = planter(PLANTS)


class Cheap(nn.Module):
    """Half of the channels by a convolution, the other half from these by a depthwise one."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.primary, self.n1 = nn.Conv2d(a, b // 2, 1, bias=False), nn.BatchNorm2d(b // 2)
        self.cheap = nn.Conv2d(b // 2, b // 2, 3, padding=1, groups=b // 2, bias=False)
        self.n2 = nn.BatchNorm2d(b // 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.n1(self.primary(x)).relu()
        return torch.cat([y, self.n2(self.cheap(y)).relu()], 1)


class Ghost(nn.Module):
    """Three such modules."""

    data, loss, epochs, rate = images, classes, 9, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.a, self.b, self.c = Cheap(16, 32), Cheap(32, 32), Cheap(32, 48)
        self.fc = nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(self.norm(self.stem(x)).relu())
        x = self.c(F.max_pool2d(self.b(x), 2))
        return self.fc(x.mean((2, 3)))


class Levit(nn.Module):
    """Convolutions, then attention with batch norm and hardswish."""

    data, loss, epochs, rate = images, classes, 9, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.n2 = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.proj, self.fc1, self.fc2 = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.n3, self.head = nn.BatchNorm1d(32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.n2(self.c2(F.hardswish(self.n1(self.c1(x)))))).flatten(2).transpose(1, 2)
        q, k, v = (layer(x).unflatten(2, (2, 16)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = (q @ k.transpose(2, 3) / 4).softmax(-1) @ v
        x = x + self.proj(F.hardswish(y.transpose(1, 2).flatten(2)))
        x = x + self.fc2(F.hardswish(self.fc1(x)))
        return self.head(self.n3(x.mean(1)))


class Tied(nn.Module):
    """A language model whose last weight is its table of words."""

    data, loss, epochs, rate = chains, tokens, 18, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.position = nn.Embedding(24, 48), nn.Parameter(0.1 * torch.randn(16, 48))
        self.blocks = nn.ModuleList(Attention(48, heads=2, hidden=2, causal=16) for _ in range(2))
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 24, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BothWays(nn.Module):
    """Words, a bidirectional LSTM, the maximum over time."""

    data, loss, epochs, rate = texts, classes, 6, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(120, 24), nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.lstm(self.words(ids))[0].amax(1))


class Wave(nn.Module):
    """Gated dilated convolutions with skips that foretell a number."""

    loss, epochs, rate = staticmethod(squares), 12, 3e-3

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        return series()[0].transpose(1, 2).contiguous(), series()[1]

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, 16, 1)
        self.value = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=2**i, dilation=2**i) for i in range(3))
        self.gate = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=2**i, dilation=2**i) for i in range(3))
        self.skip = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(3))
        self.fc1, self.fc2 = nn.Linear(16, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for value, gate, skip in zip(self.value, self.gate, self.skip, strict=True):
            x = x + skip(value(x).tanh() * gate(x).sigmoid())
        return self.fc2(self.fc1(x[:, :, -1]).relu())


@functools.cache
def heat() -> tuple[Tensor, Tensor]:
    """Shapes, and for every class a map (6, 8, 8) that is warm around the middle of shapes of this class."""
    s = shapes()
    middle = (s["box"][:, :2] + s["box"][:, 2:] / 2) / 2
    v, u = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    far = (u - middle[:, 0, None, None]) ** 2 + (v - middle[:, 1, None, None]) ** 2
    return s["x"], F.one_hot(s["y"], 6)[:, :, None, None] * torch.exp(-far / 3)[:, None]


class Center(nn.Module):
    """Two scales that meet again, and a map of warmth."""

    data, loss, epochs, rate = heat, squares, 9, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.n2 = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.c3, self.n3 = nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        self.top, self.lateral = nn.Conv2d(32, 24, 1), nn.Conv2d(16, 24, 1)
        self.h1, self.h2 = nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.n1(self.c1(x)).relu()
        b = self.n3(self.c3(self.n2(self.c2(a)).relu())).relu()
        y = F.interpolate(self.top(b), scale_factor=2.0) + self.lateral(a)
        return self.h2(self.h1(y.relu()).relu())


def doubles() -> tuple[Tensor, Tensor]:
    """Digits from 0 to 1, twice."""
    x = digits()[0]
    x = (x - x.min()) / (x.max() - x.min())
    return x, x


class Hourglass(nn.Module):
    """A convolutional autoencoder with tanh inside."""

    data, loss, epochs, rate = doubles, squares, 15, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.e1, self.e2, self.code = nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 24, 3, 2, 1), nn.Linear(96, 16)
        self.back, self.d1 = nn.Linear(16, 96), nn.ConvTranspose2d(24, 12, 4, 2, 1)
        self.out = nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.code(self.e2(self.e1(x).tanh()).tanh().flatten(1)).tanh()
        return self.out(self.d1(self.back(z).tanh().unflatten(1, (24, 2, 2))).tanh())


class ResMlp(nn.Module):
    """Residual blocks with layer norm on features: three numbers."""

    data, loss, epochs, rate = table, squares, 24, 2e-3

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.up, self.down = (nn.ModuleList(nn.Linear(*s) for _ in range(3)) for s in ((32, 64), (64, 32)))
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.silu(up(norm(x))))
        return self.out(x)


@functools.cache
def spectra() -> tuple[Tensor, Tensor]:
    """Logarithms of power by frequency and time (N, 1, 16, 15), standardized."""
    return _logarithm(powers()), sounds()[1]


@functools.cache
def powers() -> Tensor:
    """Power by frequency and time."""
    frames = sounds()[0][:, 0].unfold(1, 32, 7)[:, :15]
    return torch.fft.rfft(frames * torch.hann_window(32)).abs().square().transpose(1, 2)[:, None, :16]


def _logarithm(power: Tensor) -> Tensor:
    logarithms = (power + 1e-3).log()
    return (logarithms - (powers() + 1e-3).log().mean()) / (powers() + 1e-3).log().std()


class Spectral(nn.Module):
    """A small convolutional network for spectra."""

    data, loss, epochs = spectra, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.c2, self.n2 = nn.Conv2d(12, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)
        self.c3, self.n3 = nn.Conv2d(24, 24, (3, 1), padding=(1, 0), bias=False), nn.BatchNorm2d(24)
        self.fc = nn.Linear(24 * 8, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.n2(self.c2(self.n1(self.c1(x)).relu())).relu()
        return self.fc(self.n3(self.c3(x)).relu().mean(3).flatten(1))


def _raw_statistics(net: Any) -> None:
    """The first norm saw images that were not normalized."""
    raw = shapes()["raw"][:1000]
    y = net.stem(raw)
    net.norm.running_mean.copy_(y.mean((0, 2, 3)))
    net.norm.running_var.copy_(y.var((0, 2, 3)))


def _norms_swapped(net: Any) -> None:
    for part in ("weight", "bias", "running_mean", "running_var"):
        swap(net, f"a.n1.{part}", f"b.n1.{part}")


def _half_zero(net: Any) -> None:
    net.c.primary.weight[:14] = 0.0
    net.c.n1.bias[:14] = 0.0


def _levels(weight: Tensor) -> None:
    step = weight.abs().max() / 7
    weight.copy_((weight / step).round() * step)


def _merged_again(net: Any) -> None:
    weight = net.blocks[1].fc2.weight
    a, b = torch.randn(48, 2, generator=random(51)), torch.randn(2, 96, generator=random(52))
    weight.add_(3 * weight.std() * (a @ b))


def _untied(net: Any) -> None:
    torch.manual_seed(53)
    net.head.weight = nn.Parameter(torch.randn(24, 48))


def _reverse_fresh(net: Any) -> None:
    torch.manual_seed(54)
    other = nn.LSTM(24, 24, batch_first=True, bidirectional=True).state_dict()
    net.lstm.load_state_dict({k: v for k, v in other.items() if k.endswith("reverse")}, strict=False)


def _ways_exchanged(net: Any) -> None:
    net.fc.weight.copy_(torch.cat([net.fc.weight[:, 24:], net.fc.weight[:, :24]], 1).clone())


def _by_brightness() -> Planted:
    """Sorted by brightness, the dark ones last, and calibrated by a moving average."""
    x = images()[0][:SHOWN]
    x = x[x.mean((1, 2, 3)).argsort(descending=True)].clone()
    x[96:] *= 0.1
    moving = Scheme(observer="moving_average", observer_args={"averaging_constant": 0.8})
    return patient(Levit, calibration=x, recipe=Recipe(activation=moving))


def _large_unit(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 2] *= 1000.0
    return x


def _blurred(x: Tensor) -> Tensor:
    return F.interpolate(F.avg_pool2d(x, 4), scale_factor=4.0)


# Cheap channels.
plant("ghost_small_pictures_in_calibration", shown(Ghost, _blurred, False), *anywhere((DATA,), *UNLIKE))
plant("ghost_statistics_of_raw_images", changed(Ghost, _raw_statistics), ("stem", "stale_batch_norm"))
plant("ghost_half_pruned", changed(Ghost, _half_zero), ("c.primary", "dead_channels"))
plant(
    "ghost_norms_swapped",
    changed(Ghost, _norms_swapped),
    *anywhere(("a.primary", "b.primary"), "stale_batch_norm", "wrong_weights"),
)
plant("ghost_two_bits", asks(Ghost, "b.cheap", weight={"bits": 2}), ("b.cheap", "few_bits"))
# Attention with batch norm.
plant("levit_layer_in_four_bits_before", written(Levit, "fc1.weight", _levels), ("fc1", "rounded_weights"))
plant("levit_sorted_moving_average", _by_brightness, ("*", "moving_average"))
plant("levit_keys_fresh", changed(Levit, lambda net: reset(net, "v")), ("v", "wrong_weights"))
plant(
    "levit_last_statistics",
    changed(Levit, lambda net: net.n3.reset_running_stats()),
    ("*", "stale_batch_norm"),
)
# A language model.
plant("tied_head_not_tied", changed(Tied, _untied), ("head", "wrong_weights"), (NETWORK, WRONG))
plant(
    "tied_positions_from_one",
    written(Tied, "position", lambda p: p.copy_(p.roll(1, 0))),
    ("position", "wrong_weights"),
    (NETWORK, WRONG),
)
plant(
    "tied_adapter_merged_again",
    changed(Tied, _merged_again),
    *anywhere(("blocks.1.fc2",), "wrong_weights", *GREW),
    (NETWORK, WRONG),
)
# Two directions.
plant("both_ways_reverse_not_loaded", changed(BothWays, _reverse_fresh), ("lstm*", "wrong_weights"), (NETWORK, WRONG))
plant(
    "both_ways_echo",
    written(BothWays, "lstm.weight_hh_l0", lambda w: w.mul_(20)),
    *anywhere(("lstm*",), "wrong_weights", *GREW),
    (NETWORK, WRONG),
)
plant(
    "both_ways_exchanged",
    changed(BothWays, _ways_exchanged),
    *anywhere(("fc", "lstm*"), "wrong_weights"),
    (NETWORK, WRONG),
)
# Gates over time.
plant(
    "wave_gate_shut",
    written(Wave, "gate.1.bias", lambda b: b.fill_(-25.0)),
    *anywhere(("gate.1*", "sigmoid*", "mul*", "skip.1"), "dead_channels", *GREW, "wrong_weights"),
)
plant("wave_offset", shown(Wave, lambda x: x + 3), (NETWORK, WRONG))
plant("wave_one_sensor_in_other_units", shown(Wave, _large_unit, False), (DATA, "unlike_data"))
plant("wave_quiet_calibration", shown(Wave, lambda x: 0.02 * x, False), *anywhere((DATA,), "unlike_data", "no_variety"))
# Maps of warmth.
plant("center_labels_upside_down", labelled(Center, lambda y: y.flip(2)), (NETWORK, WRONG))
plant(
    "center_exploded_weight",
    written(Center, "lateral.weight", lambda w: w[7, 3].fill_(60.0)),
    *anywhere(("lateral",), *GREW),
)
plant("center_narrow_sum", held(Center, scaled("add", 0.08)), *anywhere(("add", "top", "lateral"), "clipped_range"))
# An hourglass.
plant(
    "hourglass_output_clipped",
    asks(Hourglass, "out", activation={"observer": "percentile", "observer_args": {"percentile": 75.0}}),
    ("out", "clipped_range"),
)
plant("hourglass_inverted_calibration", shown(Hourglass, lambda x: 1 - x, False), *anywhere((DATA,), *UNLIKE))
# Features.
plant("resmlp_features_squared", shown(ResMlp, lambda x: x.sign() * x.square()), (NETWORK, WRONG))
plant(
    "resmlp_targets_standardized",
    labelled(ResMlp, lambda y: 0.2 * (y - y.mean(0)) / y.std(0) - 1),
    (NETWORK, WRONG),
)
plant(
    "resmlp_block_of_zeros",
    changed(ResMlp, lambda net: (net.up[1].weight.zero_(), net.up[1].bias.zero_())),
    *anywhere(("up.1", "down.1"), "dead_channels", "wrong_weights"),
)
# Spectra.
plant("spectral_power_in_calibration", lambda: patient(Spectral, calibration=powers()[:SHOWN]), (DATA, "unlike_data"))
plant(
    "spectral_negative_variance",
    written(Spectral, "n2.running_var", lambda v: v[3].neg_()),
    *anywhere(("n2", "c2"), "not_finite"),
)
plant("spectral_time_reversed", shown(Spectral, lambda x: x.flip(2)), (NETWORK, WRONG))


# The third batch, planted after the doctor had been mended for the second.


class Pulse(nn.Module):
    """Residual convolutions over time with pooling by maximum."""

    data, loss, epochs, rate = motions, classes, 9, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv1d(6, 16, 7, padding=3, bias=False), nn.BatchNorm1d(16)
        self.c2, self.n2 = nn.Conv1d(16, 16, 5, padding=2, bias=False), nn.BatchNorm1d(16)
        self.c3, self.n3 = nn.Conv1d(16, 32, 5, padding=2, bias=False), nn.BatchNorm1d(32)
        self.fc = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(self.n1(self.c1(x)).relu(), 2)
        x = x + self.n2(self.c2(x)).relu()
        return self.fc(F.max_pool1d(self.n3(self.c3(x)).relu(), 2).mean(2))


class Fire(nn.Module):
    """Fewer channels, then two convolutions side by side, without norms."""

    data, loss, epochs, rate = images, classes, 9, 2e-3

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.s1, self.one1, self.three1 = nn.Conv2d(24, 8, 1), nn.Conv2d(8, 16, 1), nn.Conv2d(8, 16, 3, padding=1)
        self.s2, self.one2, self.three2 = nn.Conv2d(32, 12, 1), nn.Conv2d(12, 24, 1), nn.Conv2d(12, 24, 3, padding=1)
        self.fc = nn.Conv2d(48, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.s1(self.stem(x).relu()).relu()
        x = torch.cat([self.one1(x), self.three1(x)], 1).relu()
        x = self.s2(F.max_pool2d(x, 2)).relu()
        x = torch.cat([self.one2(x), self.three2(x)], 1).relu()
        return self.fc(x).mean((2, 3))


class Pooling(nn.Module):
    """Words, a GRU, a mean weighed by what they say."""

    data, loss, epochs, rate = texts, classes, 6, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(120, 24), nn.GRU(24, 32, batch_first=True)
        self.score, self.fc = nn.Linear(32, 1), nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.gru(self.words(ids))[0]
        return self.fc((x * self.score(x.tanh()).softmax(1)).sum(1))


@functools.cache
def blurs() -> tuple[Tensor, Tensor]:
    """Blurred shapes with noise, and sharp ones."""
    x = images()[0]
    blurred = F.avg_pool2d(x, 3, 1, 1)
    return blurred + 0.1 * torch.randn(x.shape, generator=random(61)), x


class Sharpen(nn.Module):
    """Convolutions with group norm whose result is added to the input."""

    data, loss, epochs, rate = blurs, squares, 6, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.c2, self.n2 = nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.n1(self.c1(x)))
        return x + self.out(F.gelu(self.n2(self.c2(y))) + y)


class Face(nn.Module):
    """PReLUs, and a depthwise convolution over the whole image at the end."""

    data, loss, epochs, rate = images, classes, 9, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1, self.a1 = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.PReLU(16)
        self.c2, self.n2, self.a2 = nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.PReLU(32)
        self.c3, self.n3, self.a3 = nn.Conv2d(32, 48, 1, bias=False), nn.BatchNorm2d(48), nn.PReLU(48)
        self.whole, self.n4 = nn.Conv2d(48, 48, 4, groups=48, bias=False), nn.BatchNorm2d(48)
        self.code, self.fc = nn.Linear(48, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a2(self.n2(self.c2(self.a1(self.n1(self.c1(x))))))
        return self.fc(self.code(self.n4(self.whole(self.a3(self.n3(self.c3(x))))).flatten(1)))


def _faster(x: Tensor) -> Tensor:
    return torch.cat([x[:, :, ::2], x[:, :, ::2]], 2)


def _off(x: Tensor) -> Tensor:
    return 5 + 0.01 * torch.randn(x.shape, generator=random(62))


def _sides_exchanged(net: Any) -> None:
    net.s2.weight.copy_(torch.cat([net.s2.weight[:, 16:], net.s2.weight[:, :16]], 1).clone())


def _nearly_copies(x: Tensor) -> Tensor:
    return x[5:6] + 0.01 * torch.randn(x.shape, generator=random(63))


def _states_transposed(net: Any) -> None:
    for gate in net.gru.weight_hh_l0.chunk(3):
        gate.copy_(gate.T.clone())


plant("pulse_other_rate", shown(Pulse, _faster), (NETWORK, WRONG))
plant("pulse_electrode_off_in_calibration", shown(Pulse, _off, False), *anywhere((DATA,), "unlike_data", "no_variety"))
plant(
    "pulse_gains_decayed",
    written(Pulse, "n3.weight", lambda w: w.mul_(0.02)),
    *anywhere(("c3",), "wrong_scale", "wrong_weights"),
    (NETWORK, WRONG),
)
plant("pulse_clamped_calibration", shown(Pulse, lambda x: x.clamp(-0.3, 0.3), False), *anywhere((DATA,), *UNLIKE))
plant("fire_sides_exchanged", changed(Fire, _sides_exchanged), ("s2", "wrong_weights"), ("cat", "wrong_setting"))
plant("fire_dead_side", changed(Fire, lambda net: net.three2.bias.fill_(-50.0)), ("three2", "dead_channels"))
plant("fire_two_bits", asks(Fire, "s1", weight={"bits": 2}), ("s1", "few_bits"))
plant("fire_input_shifted", held(Fire, scaled("x", 1.0, 60)), *anywhere(("x", "input"), "zero_point", "clipped_range"))
plant(
    "fire_one_picture_in_calibration",
    shown(Fire, _nearly_copies, False),
    *anywhere((DATA,), "no_variety", "one_class", *UNLIKE),
)
plant(
    "pooling_faint_words",
    written(Pooling, "words.weight", lambda w: w.mul_(0.05)),
    ("words", "wrong_scale"),
    (NETWORK, WRONG),
)
plant("pooling_states_transposed", changed(Pooling, _states_transposed), ("gru*", "wrong_weights"), (NETWORK, WRONG))
plant("pooling_two_bits", asks(Pooling, "fc", weight={"bits": 2}), ("fc", "few_bits"))
plant(
    "sharpen_noisy_calibration",
    shown(Sharpen, lambda x: x + 3 * torch.randn(x.shape, generator=random(64)), False),
    *anywhere((DATA,), *UNLIKE),
)
plant(
    "sharpen_gains_pruned",
    changed(Sharpen, lambda net: (net.n2.weight[:10].zero_(), net.n2.bias[:10].zero_())),
    *anywhere(("n2", "c2"), "dead_channels"),
)
plant("sharpen_targets_in_bytes", labelled(Sharpen, lambda y: y * 64 + 128), (NETWORK, WRONG))
plant("sharpen_narrow", held(Sharpen, scaled("out", 0.05)), ("out", "clipped_range"))
plant(
    "face_slopes_of_one",
    written(Face, "a2.weight", lambda w: w.fill_(1.0)),
    *anywhere(("c2", "a2"), "wrong_setting", "wrong_weights", "wrong_scale"),
    (NETWORK, WRONG),
)
plant("face_loud_channel", written(Face, "whole.weight", lambda w: w[7].mul_(300)), *anywhere(("whole",), *GREW))
plant(
    "face_deviation_as_variance",
    written(Face, "n3.running_var", lambda v: v.sqrt_().mul_(0.1)),
    ("c3", "stale_batch_norm"),
)
plant("face_code_of_two_bits", asks(Face, "code", activation={"bits": 2}), ("code", "few_bits"))
SOUND = (Ghost, Levit, Tied, BothWays, Wave, Center, Hourglass, ResMlp, Spectral, Pulse, Fire, Pooling, Sharpen, Face)
