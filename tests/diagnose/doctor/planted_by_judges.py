"""Faults that a hostile judge would plant on ten more networks, written down with their answers before any was tried.

An answer is one place and one cause; a star stands for any end of a name. Where it is an operation's settings that are
wrong, what reads or makes its tensor may be named.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.diagnose.doctor.planted import Planted
from tests.diagnose.doctor.planted_in_practice import anywhere, asks, held, scaled
from tests.diagnose.doctor.shapes import (
    COUNT,
    DATA,
    NETWORK,
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
    shapes,
    shown,
    squares,
    swap,
    texts,
    trained,
    written,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional as F

PLANTS: Plants = {}
plant = planter(PLANTS)


class Branch(nn.Module):
    def __init__(self, a: int) -> None:
        super().__init__()
        self.one, self.n1 = nn.Conv2d(a, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.three, self.n3 = nn.Conv2d(a, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.five, self.n5 = nn.Conv2d(a, 8, 5, padding=2, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.n1(self.one(x)), self.n3(self.three(x)), self.n5(self.five(x))], 1).relu()


class Inception(nn.Module):
    """Branches of three widths."""

    data, loss, epochs = images, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.a, self.b, self.fc = Branch(16), Branch(24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(self.a(self.norm(self.stem(x)).relu())).mean((2, 3)))


class Mix(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.depth, self.n1 = nn.Conv2d(c, c, 5, padding=2, groups=c), nn.BatchNorm2d(c)
        self.point, self.n2 = nn.Conv2d(c, c, 1), nn.BatchNorm2d(c)
        self.act1, self.act2 = nn.GELU(), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.n2(self.act2(self.point(x + self.n1(self.act1(self.depth(x))))))


class ConvMixer(nn.Module):
    """Batch norm behind the activation, residuals around depthwise convolutions."""

    data, loss, epochs = images, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, 24, 2, 2), nn.BatchNorm2d(24)
        self.mix, self.fc = nn.Sequential(Mix(24), Mix(24)), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.mix(self.norm(F.gelu(self.embed(x)))).mean((2, 3)))


@functools.cache
def chains() -> tuple[Tensor, Tensor]:
    """Walks over 24 states (COUNT, 16) that go on from the last two, and the next state of every place."""
    g = random(8)
    x = torch.zeros(COUNT, 17, dtype=torch.long)
    x[:, :2] = torch.randint(0, 24, (COUNT, 2), generator=g)
    for t in range(2, 17):
        step = (3 * x[:, t - 1] + 5 * x[:, t - 2] + 1) % 24
        other = torch.randint(0, 24, (COUNT,), generator=g)
        x[:, t] = torch.where(torch.rand(COUNT, generator=g) < 0.05, other, step)
    return x[:, :16], x[:, 1:]


def tokens(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), y.flatten())


class Layer(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down, self.divisor = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), (d // 4) ** 0.5

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln1(x)
        q, k, v = (f(y).unflatten(2, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = ((q @ k.transpose(2, 3) / self.divisor + mask).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.o(y)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Gpt(nn.Module):
    """A causal language model."""

    data, loss, epochs, rate = chains, tokens, 21, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(24, 32), nn.Parameter(0.1 * torch.randn(16, 32))
        self.layers, self.ln, self.head = nn.ModuleList([Layer(32), Layer(32)]), nn.LayerNorm(32), nn.Linear(32, 24)
        self.register_buffer("mask", torch.full((16, 16), -1e4).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.ln(x))


class Reader(nn.Module):
    """A bidirectional LSTM over words, the maximum over time, two linear layers."""

    data, loss, epochs, rate = texts, classes, 6, 5e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(120, 16), nn.LSTM(16, 20, batch_first=True, bidirectional=True)
        self.fc1, self.fc2 = nn.Linear(40, 32), nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.lstm(self.words(ids))[0].amax(1)).relu())


class Step(nn.Module):
    def __init__(self, a: int, b: int, d: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(a, b, 3, dilation=d, padding=d), nn.Conv1d(b, b, 3, dilation=d, padding=d)
        self.skip = nn.Conv1d(a, b, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(self.conv2(F.elu(self.conv1(x))) + self.skip(x))


class Tcn(nn.Module):
    """Dilated convolutions over time, without norms."""

    data, loss, epochs = motions, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.fc = nn.Sequential(Step(6, 16, 1), Step(16, 16, 2), Step(16, 16, 4)), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.steps(x).mean(2))


@functools.cache
def table() -> tuple[Tensor, Tensor]:
    """Twelve quantities, standardized, and three that follow from them."""
    g = random(9)
    x = torch.randn(COUNT, 12, generator=g) @ torch.randn(12, 12, generator=g) / 3
    x = (x - x.mean(0)) / x.std(0)
    y = torch.stack([x[:, 0] * x[:, 1] + x[:, 2], x[:, 3:6].sum(1).tanh() * 3, (x[:, 6] - x[:, 7]).abs()], 1)
    return x, y + 0.1 * torch.randn(COUNT, 3, generator=g)


class Regress(nn.Sequential):
    """Three numbers from twelve, with batch norm."""

    data, loss, epochs, rate = table, squares, 30, 4e-3

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3),
        )  # fmt: skip


@functools.cache
def noisy() -> tuple[Tensor, Tensor]:
    """Shapes with noise, and without."""
    x = shapes()["x"]
    return x + 0.7 * torch.randn(x.shape, generator=random(10)), x


class Denoise(nn.Module):
    """The noise of an image, which is taken away."""

    data, loss, epochs = noisy, squares, 6

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.Conv2d(16, 16, 3, padding=1),
        )
        self.out = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.out(self.b(self.a(self.first(x).relu()).relu()).relu())


class Features(nn.Module):
    """What :class:`Inception` would see, of unit length: nothing says what is right."""

    data, loss, epochs = images, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.n2 = nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)
        self.c3, self.n3 = nn.Conv2d(24, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.project, self.head = nn.Linear(32, 16), nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.n3(self.c3(self.n2(self.c2(self.n1(self.c1(x)).relu())).relu())).relu()
        x = self.project(x.mean((2, 3)))
        return self.head(x) if self.training else x


class Heads(nn.Module):
    """A class and a box, in two tensors."""

    epochs, rate = 9, 3e-3

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        return images()

    @staticmethod
    def loss(result: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(result[0], y) + 0.01 * result[1].square().mean()

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.n2 = nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)
        self.drop, self.cls, self.box, self.act = nn.Dropout(0.1), nn.Linear(384, 6), nn.Linear(384, 4), nn.Hardswish()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.drop(self.act(self.n2(self.c2(self.act(self.n1(self.c1(x)))))).flatten(1))
        return self.cls(x), self.box(x)


class Pool(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.g1, self.g2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)
        self.up, self.down = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(2 * c, c, 1)
        self.s1, self.s2 = nn.Parameter(torch.full((c, 1, 1), 0.5)), nn.Parameter(torch.full((c, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.g1(x)
        x = x + self.s1 * (F.avg_pool2d(y, 3, 1, 1) - y)
        return x + self.s2 * self.down(F.silu(self.up(self.g2(x))))


class PoolFormer(nn.Module):
    """Pooling in place of attention, group norms, layer scale."""

    data, loss, epochs, rate = images, classes, 9, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, 24, 3, 2, 1), nn.Sequential(Pool(24), Pool(24))
        self.norm, self.fc = nn.GroupNorm(4, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.blocks(self.embed(x))).mean((2, 3)))


class Vgg(nn.Module):
    """Convolutions, maxima and linear layers, nothing else."""

    data, loss, epochs = images, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.c3 = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 24, 3, padding=1),
            nn.Conv2d(24, 24, 3, padding=1),
        )
        self.fc1, self.fc2 = nn.Linear(96, 48), nn.Linear(48, 6)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.c1(x).relu())
        x = self.pool(self.c2(x).relu())
        x = self.pool(self.c3(x).relu())
        return self.fc2(self.fc1(x.flatten(1)).relu())


def _unlabelled(make: Callable[[], Planted]) -> Callable[[], Planted]:
    """Nobody knows what is right."""
    return lambda: replace(case := make(), y=torch.zeros(len(case.x), 0))


def _norms_reset(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()


def _round(net: Any, name: str) -> None:
    weight = net.get_parameter(name)
    weight.copy_(weight.half().float())


def _directions(net: Any) -> None:
    for kind in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        swap(net, f"lstm.{kind}", f"lstm.{kind}_reverse")


def _nan(x: Tensor) -> Tensor:
    x = x.clone()
    x[17, 2, 5] = float("nan")
    return x


class Plus(Denoise):
    """Someone took the noise for its opposite."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.b(self.a(self.first(x).relu()).relu()).relu())


def _plus() -> Planted:
    net = Plus()
    net.load_state_dict(trained(Denoise).state_dict())
    return patient(Denoise, net.eval())


plant(
    "inception_statistics_exchanged",
    changed(
        Inception,
        lambda net: (
            swap(net, "b.n3.running_mean", "b.n5.running_mean"),
            swap(net, "b.n3.running_var", "b.n5.running_var"),
            net.b.n3.running_mean.mul_(3),
        ),
    ),
    ("b.three", "stale_batch_norm"),
    ("b.five", "stale_batch_norm"),
)
plant(
    "inception_statistics_reset",
    changed(Inception, _norms_reset),
    ("stem", "stale_batch_norm"),
    (NETWORK, "stale_batch_norm"),
)
plant(
    "inception_zeros",
    written(Inception, "a.five.weight", lambda w: w.zero_()),
    ("a.five", "dead_channels"),
    ("a.five", "wrong_weights"),
)
plant(
    "inception_grey_calibration",
    shown(Inception, lambda x: x.mean(1, keepdim=True).expand(-1, 3, -1, -1).contiguous(), False),
    (DATA, "unlike_data"),
)
plant(
    "mixer_flipped",
    written(ConvMixer, "mix.0.depth.weight", lambda w: w.copy_(w.flip(2, 3))),
    ("mix.0.depth*", "wrong_weights"),
)
plant(
    "mixer_rolled",
    written(ConvMixer, "mix.1.point.weight", lambda w: w.copy_(w.roll(5, 1))),
    ("mix.1.point*", "wrong_weights"),
)
plant(
    "mixer_other_function",
    changed(ConvMixer, lambda net: setattr(net.mix[1], "act2", nn.Identity())),
    ("mix.1.point*", "wrong_setting"),
    ("mix.1.n2*", "wrong_setting"),
)
plant("mixer_three_bits", asks(ConvMixer, "mix.0.point", weight={"bits": 3}), ("mix.0.point*", "few_bits"))
plant("mixer_upside_down", shown(ConvMixer, lambda x: x.flip(2)), (NETWORK, WRONG))
plant(
    "gpt_one_rounded", changed(Gpt, lambda net: _round(net, "layers.1.up.weight")), ("layers.1.up", "rounded_weights")
)
plant("gpt_eps", changed(Gpt, lambda net: setattr(net.layers[1].ln1, "eps", 30.0)), ("layers.1.ln1", "wrong_setting"))
plant(
    "gpt_mask_forgotten",
    changed(Gpt, lambda net: net.mask.zero_()),
    (NETWORK, WRONG),
    *anywhere(("mask", "layers.*.add*", "layers.*.softmax*"), "wrong_setting", "wrong_weights"),
)
plant(
    "gpt_undivided",
    changed(Gpt, lambda net: setattr(net.layers[0], "divisor", 0.1)),
    *anywhere(
        ("layers.0.matmul*", "layers.0.div*", "layers.0.mul*", "layers.0.q", "layers.0.k", "layers.0.add*"),
        "wrong_scale",
    ),
)
plant("gpt_vocabulary_moved", shown(Gpt, lambda x: (x + 1) % 24), (NETWORK, WRONG))
plant(
    "reader_exploded", written(Reader, "lstm.weight_hh_l0", lambda w: w[3, 4].fill_(90.0)), ("lstm", "exploded_weight")
)
plant("reader_fresh", changed(Reader, lambda net: reset(net, "lstm")), ("lstm", "wrong_weights"))
plant("reader_directions", changed(Reader, _directions), ("lstm", "wrong_weights"))
plant("reader_three_bits", asks(Reader, "fc1", weight={"bits": 2}), ("fc1", "few_bits"))
plant("reader_padding_only", shown(Reader, lambda x: x * 0, False), (DATA, "no_variety"))
plant("tcn_units", shown(Tcn, lambda x: x * 255), (NETWORK, WRONG))
plant(
    "tcn_faint_layer",
    written(Tcn, "steps.1.conv1.weight", lambda w: w.mul_(0.01)),
    ("steps.1.conv1", "wrong_scale"),
    ("steps.1.conv1", "wrong_weights"),
)
plant(
    "tcn_percentile",
    asks(Tcn, "steps.0.conv1", activation={"observer": "percentile", "observer_args": {"percentile": 85.0}}),
    ("steps.0.conv1*", "clipped_range"),
    ("steps.0.elu", "clipped_range"),
)
plant("tcn_nan", shown(Tcn, _nan, False), (DATA, "not_finite"))
plant("regress_other_units", labelled(Regress, lambda y: y * 60), (NETWORK, WRONG))
plant("regress_columns", shown(Regress, lambda x: x.roll(1, 1)), (NETWORK, WRONG))
plant("regress_bias", written(Regress, "6.bias", lambda b: b[9].add_(300.0)), ("6", "exploded_channel"))
plant("regress_variance", written(Regress, "4.running_var", lambda v: v.mul_(200)), ("3", "stale_batch_norm"))
plant("regress_symmetric", asks(Regress, "6", activation={"bits": 3}), ("6", "few_bits"), ("7", "few_bits"))
plant("denoise_fresh_output", changed(Denoise, lambda net: reset(net, "out")), ("out", "wrong_weights"))
plant(
    "denoise_exchanged",
    changed(Denoise, lambda net: (swap(net, "a.weight", "b.weight"), swap(net, "a.bias", "b.bias"))),
    ("a", "wrong_weights"),
    ("b", "wrong_weights"),
)
plant("denoise_sign", _plus, *anywhere(("out", "add", "sub"), "wrong_weights", "wrong_scale"))
plant("denoise_narrow", held(Denoise, scaled("a", 0.08)), ("a", "clipped_range"))
plant(
    "features_exploded",
    _unlabelled(written(Features, "c2.weight", lambda w: w[2, 3, 1, 1].add_(50))),
    ("c2", "exploded_weight"),
)
plant(
    "features_statistics",
    _unlabelled(changed(Features, lambda net: net.n2.running_mean.sub_(2 * net.n2.running_var.sqrt()))),
    ("c2", "stale_batch_norm"),
)
plant(
    "features_outlier",
    _unlabelled(shown(Features, lambda x: torch.cat([x[:-1], x[-1:] * 50]), False)),
    (DATA, "outlier_sample"),
)
plant("features_dead", _unlabelled(changed(Features, lambda net: net.n3.bias[:20].fill_(-30))), ("c3", "dead_channels"))
plant("heads_training", changed(Heads, lambda net: net.n2.train()), (NETWORK, "training_mode"))
plant(
    "heads_ten", lambda: patient(Heads, calibration=shapes()["x"][:10] * 0.7), (DATA, "too_few"), (DATA, "unlike_data")
)
plant("heads_zero_point", held(Heads, scaled("c2", 1.0, 50)), *anywhere(("c2*", "act*"), "zero_point", "clipped_range"))
plant(
    "pool_groups",
    changed(PoolFormer, lambda net: setattr(net.blocks[0].g2, "num_groups", 24)),
    ("blocks.0.g2", "wrong_setting"),
)
plant(
    "pool_layer_scale",
    written(PoolFormer, "blocks.1.s2", lambda s: s[4].fill_(80.0)),
    *anywhere(("blocks.1.s2", "blocks.1.mul*", "blocks.1.down"), "exploded_channel", "exploded_weight"),
)
plant("pool_two_bits", asks(PoolFormer, "blocks.0.up", weight={"bits": 2}), ("blocks.0.up*", "few_bits"))
plant("vgg_labels", labelled(Vgg, lambda y: 5 - y), (NETWORK, WRONG))
plant(
    "vgg_channels_last",
    written(Vgg, "fc1.weight", lambda w: w.copy_(w.reshape(-1, 24, 2, 2).permute(0, 2, 3, 1).flatten(1))),
    ("fc1", "wrong_weights"),
)
plant(
    "vgg_average",
    changed(Vgg, lambda net: setattr(net, "pool", nn.AvgPool2d(2))),
    *anywhere(("pool*", "avg_pool*"), "wrong_setting", "wrong_scale"),
)
SOUND = (Inception, ConvMixer, Gpt, Reader, Tcn, Regress, Denoise, Heads, PoolFormer, Vgg)
