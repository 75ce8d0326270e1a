"""Faults that practitioners make, on eleven further networks, written down with their answers before any was tried.

Files loaded by halves, statistics of batch norms that were never collected, data prepared twice, ids moved by one,
sensors that send -999, and recipes that ask for too little. At first the doctor was right in 27 of 40.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_wine
from tests.diagnose.doctor.planted import Planted
from tests.diagnose.doctor.planted_by_strangers import UNLIKE
from tests.diagnose.doctor.planted_further import GREW, sounds
from tests.diagnose.doctor.planted_in_practice import anywhere, asks, held
from tests.diagnose.doctor.planted_on_digits import digits
from tests.diagnose.doctor.shapes import (
    COUNT,
    DATA,
    NETWORK,
    SHOWN,
    TRAINED,
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
    series,
    shapes,
    shown,
    squares,
    texts,
    train,
    trained,
    written,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional as F

from intact8 import Recipe, Scheme

PLANTS: Plants = {}
plant = planter(PLANTS)


class Before(nn.Module):
    """A residual block whose norms and activations come before its convolutions."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.n1, self.c1 = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.n2, self.c2 = nn.BatchNorm2d(b), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.n1(x).relu()
        kept = x if self.skip is None else self.skip(y)
        return kept + self.c2(self.n2(self.c1(y)).relu())


class Preact(nn.Module):
    """Four such blocks at two scales."""

    data, loss, epochs = images, classes, 6

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.one = nn.Sequential(Before(16, 16, 1), Before(16, 16, 1))
        self.two = nn.Sequential(Before(16, 32, 2), Before(32, 32, 1))
        self.norm, self.fc = nn.BatchNorm2d(32), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.two(self.one(self.stem(x)))).relu().mean((2, 3)))


def separable(a: int, b: int, stride: int) -> nn.Sequential:
    """A depthwise and a pointwise convolution, each with a norm and ReLU."""
    depthwise = nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU()
    return nn.Sequential(*depthwise, nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


class Separable(nn.Module):
    """A strided stem and three separable convolutions."""

    data, loss, epochs, rate = images, classes, 9, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12)
        self.b1, self.b2, self.b3 = separable(12, 24, 1), separable(24, 32, 2), separable(32, 32, 1)
        self.fc = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b3(self.b2(self.b1(self.norm(self.stem(x)).relu()))).mean((2, 3)))


def kinds() -> tuple[Tensor, Tensor]:
    """Shapes, and for every pixel which shape covers it, 0 for none."""
    s = shapes()
    return s["x"], s["mask"] * (s["y"] + 1)[:, None, None]


def pair(a: int, b: int) -> nn.Sequential:
    """A convolution with norm and ReLU."""
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


class Unet(nn.Module):
    """Pooling by maximum, images enlarged by repetition, skips."""

    data, loss, epochs, rate = kinds, classes, 6, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.lower, self.deep = pair(3, 12), pair(12, 20), pair(20, 32)
        self.up2, self.up1, self.out = pair(52, 20), pair(32, 16), nn.Conv2d(16, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.enter(x)
        b = self.lower(F.max_pool2d(a, 2))
        y = F.interpolate(self.deep(F.max_pool2d(b, 2)), scale_factor=2.0)
        y = F.interpolate(self.up2(torch.cat([b, y], 1)), scale_factor=2.0)
        return self.out(self.up1(torch.cat([a, y], 1)))


class Attention(nn.Module):
    """A layer of a transformer: of one that sees no later token where it has a mask for ``causal`` tokens."""

    mask: Tensor | None

    def __init__(self, width: int, heads: int = 3, hidden: int = 3, causal: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, hidden * width), nn.Linear(hidden * width, width)
        self.register_buffer("mask", torch.full((causal, causal), -1e4).triu(1) if causal else None)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        weights = (scores if self.mask is None else scores + self.mask).softmax(-1)
        x = x + self.proj((weights @ v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Patches(nn.Module):
    """A class token before sixteen patches."""

    data, loss, epochs, rate = images, classes, 12, 2e-3

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, 36, 4, 4), nn.Parameter(torch.zeros(1, 1, 36))
        self.position = nn.Parameter(0.1 * torch.randn(1, 17, 36))
        self.blocks, self.norm = nn.Sequential(Attention(36), Attention(36), Attention(36)), nn.LayerNorm(36)
        self.head = nn.Linear(36, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Subject(nn.Module):
    """Words, three encoder layers with norms before, the mean."""

    data, loss, epochs, rate = texts, classes, 9, 1e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.place = nn.Embedding(121, 32), nn.Parameter(0.1 * torch.randn(20, 32))
        layers = [nn.TransformerEncoderLayer(32, 2, 64, 0.1, "gelu", batch_first=True, norm_first=True) for _ in "123"]
        self.layers, self.norm, self.out = nn.ModuleList(layers), nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x).mean(1))


class Gesture(nn.Module):
    """An LSTM of two layers, its last result."""

    loss, epochs, rate = staticmethod(classes), 15, 6e-3

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        return motions()[0].transpose(1, 2), motions()[1]

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(6, 32, 2, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


class Meter(nn.Module):
    """A GRU that foretells a number."""

    data, loss, epochs, rate = series, squares, 12, 5e-3

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.gru = nn.Linear(4, 16), nn.GRU(16, 24, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(24, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.silu(self.fc1(self.gru(self.enter(x).tanh())[0][:, -1])))


class Keyword(nn.Module):
    """Depthwise convolutions over time."""

    data, loss, epochs = sounds, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv1d(1, 16, 9, 2, 4, bias=False), nn.BatchNorm1d(16)
        self.dw, self.n2 = nn.Conv1d(16, 16, 7, 2, 3, groups=16, bias=False), nn.BatchNorm1d(16)
        self.pw, self.n3 = nn.Conv1d(16, 32, 1, bias=False), nn.BatchNorm1d(32)
        self.c2, self.n4 = nn.Conv1d(32, 32, 5, 2, 2, bias=False), nn.BatchNorm1d(32)
        self.fc = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.n2(self.dw(self.n1(self.c1(x)).relu())).relu()
        return self.fc(self.n4(self.c2(self.n3(self.pw(x)).relu())).relu().mean(2))


@functools.cache
def wines() -> tuple[Tensor, Tensor]:
    """Thirteen features of wines, standardized, many times with measurement noise, and the three growers."""
    x, y = load_wine(return_X_y=True)
    pick = torch.randint(0, len(x), (COUNT,), generator=random(31))
    features = torch.tensor(x, dtype=torch.float32)
    standard = (features - features.mean(0)) / features.std(0)
    return standard[pick] + 0.5 * torch.randn(COUNT, 13, generator=random(32)), torch.tensor(y)[pick]


class Growers(nn.Module):
    """An MLP with batch norm and dropout, called as a function."""

    data, loss, epochs = wines, classes, 9

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.n1 = nn.Linear(13, 48), nn.BatchNorm1d(48)
        self.fc2, self.n2 = nn.Linear(48, 48), nn.BatchNorm1d(48)
        self.fc3 = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.n1(self.fc1(x)).relu(), 0.3, self.training)
        return self.fc3(F.dropout(self.n2(self.fc2(x)).relu(), 0.3, self.training))


def cells() -> tuple[Tensor, Tensor]:
    """Shapes; for 4×4 cells: whether a shape's middle lies there, and its box as left, top, right, bottom in pixels."""
    s = shapes()
    box = s["box"]
    middle = box[:, :2] + box[:, 2:] / 2
    column, row = (middle / 4).long().clamp(0, 3).unbind(1)
    score = torch.zeros(COUNT, 1, 4, 4)
    score[torch.arange(COUNT), 0, row, column] = 1
    corners = torch.cat([box[:, :2], box[:, :2] + box[:, 2:]], 1)
    return s["x"], torch.cat([score, corners[:, :, None, None] / 16 * score], 1)


class Anchors(nn.Module):
    """Objectness and boxes per cell, from two scales."""

    data, loss, epochs, rate = cells, squares, 9, 4e-3

    def __init__(self) -> None:
        super().__init__()
        self.b1, self.b2, self.b3 = pair(3, 16), pair(16, 24), pair(24, 32)
        self.side, self.obj, self.box = nn.Conv2d(24, 32, 1), nn.Conv2d(32, 1, 1), nn.Conv2d(32, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b2(F.max_pool2d(self.b1(x), 2))
        x = F.max_pool2d(x, 2)
        x = self.b3(x) + self.side(x)
        return torch.cat([self.obj(x), self.box(x)], 1)


def pictures() -> tuple[Tensor, Tensor]:
    """Digits from 0 to 1 as vectors, twice."""
    x = digits()[0].flatten(1)
    x = (x - x.min()) / (x.max() - x.min())
    return x, x


class Squash(nn.Module):
    """A dense autoencoder that ends in a sigmoid."""

    data, loss, epochs, rate = pictures, squares, 18, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.e1, self.e2 = nn.Linear(64, 48), nn.Linear(48, 12)
        self.d1, self.d2 = nn.Linear(12, 48), nn.Linear(48, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.d2(self.d1(self.e2(self.e1(x).relu())).relu()).sigmoid()


def _norms(net: nn.Module) -> list[Any]:
    return [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def _fresh(kind: Any, *names: str) -> Callable[[], Planted]:
    """Only a part of a file's keys was found; the other layers are as initialized, with their norms."""

    def change(net: Any) -> None:
        torch.manual_seed(77)
        state = {k: v for k, v in kind().state_dict().items() if k.startswith(names)}
        net.load_state_dict(state, strict=False)

    return changed(kind, change)


def _never_collected() -> Planted:
    torch.manual_seed(5)
    net = Preact()
    for norm in _norms(net):
        norm.momentum = 0.0
    train(net, torch.optim.Adam(net.parameters(), 2e-3), 4)
    return patient(Preact, net.eval())


def _last_batch_of_two() -> Planted:
    net = copy.deepcopy(trained(Preact)).train()
    for norm in _norms(net):
        norm.momentum = 1.0
    with torch.no_grad():
        net(images()[0][10:12])
    return patient(Preact, net.eval())


def _older_statistics(net: Any) -> None:
    """Parameters went on learning on darker images; the statistics are of before."""
    kept = {k: v.clone() for k, v in net.state_dict().items() if "running" in k}
    x, y = Separable.data()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    net.train()
    with torch.enable_grad():
        for index in torch.randperm(TRAINED, generator=random(41)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()
    net.load_state_dict(kept, strict=False)
    net.eval()


def _uneven(net: Any) -> None:
    """Channels of a depthwise layer from 1 to 1/100, made up for by the layer behind."""
    norm, factors = net.b2[1], torch.logspace(-2, 0, 24)[torch.randperm(24, generator=random(42))]
    norm.weight.mul_(factors)
    norm.bias.mul_(factors)
    net.b2[3].weight.div_(factors[:, None, None])


def _jittered(x: Tensor) -> Tensor:
    return x * (0.3 + 6 * torch.rand(len(x), 1, 1, 1, generator=random(43)))


def _raw(x: Tensor) -> Tensor:
    return x * shapes()["std"][:, None, None] + shapes()["mean"][:, None, None]


def _divided_twice(x: Tensor) -> Tensor:
    return (_raw(x) / 255 - shapes()["mean"][:, None, None]) / shapes()["std"][:, None, None]


def _as_rows(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(x.shape)


def _cat_exchanged(net: Any) -> None:
    weight = net.up2[0].weight
    weight.copy_(torch.cat([weight[:, 20:], weight[:, :20]], 1).clone())


def _position_transposed(net: Any) -> None:
    grid = net.position[:, 1:].unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2).clone()
    net.position[:, 1:] = grid


def _other_pictures() -> Planted:
    pictures_of_digits = F.interpolate(digits()[0][:SHOWN], size=(16, 16)).expand(-1, 3, -1, -1).contiguous()
    return patient(Patches, calibration=3 * pictures_of_digits)


def _padded(ids: Tensor) -> Tensor:
    ids = ids.clone()
    ids[:, 2:] = 120
    return ids


def _glitch(x: Tensor) -> Tensor:
    x = x.clone()
    x[31, 12, 2] = 500.0
    return x


def _missing_values(x: Tensor) -> Tensor:
    x = x.clone()
    x[torch.rand(x.shape, generator=random(44)) < 0.05] = -999.0
    return x


def _as_wide_and_high(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, 3:] -= y[:, 1:3]
    return y


def _shrunk(sim: Any) -> None:
    with torch.no_grad():
        sim.get_parameter("n3.weight").mul_(0.1)
        sim.get_parameter("n3.bias").mul_(0.1)


def _transposed(net: Any) -> None:
    net.fc2.weight.copy_(net.fc2.weight.T.clone())


PER_TENSOR = Recipe(weight=Scheme(dtype="int8", symmetric=True, observer="minmax"), equalize=False)

# A residual network with norms before its convolutions.
plant(
    "preact_half_loaded",
    _fresh(Preact, "two", "norm", "fc"),
    *anywhere(("two*",), "wrong_weights", "stale_batch_norm"),
    (NETWORK, WRONG),
)
plant("preact_statistics_never_collected", _never_collected, ("*", "stale_batch_norm"))
plant("preact_statistics_of_two_images", _last_batch_of_two, ("*", "stale_batch_norm"))
plant("preact_divided_twice", shown(Preact, _divided_twice), (NETWORK, WRONG), *anywhere((DATA,), "unlike_data"))
plant("preact_jittered_calibration", shown(Preact, _jittered, False), *anywhere((DATA,), *UNLIKE))
# Depthwise convolutions.
plant(
    "separable_uneven_per_tensor",
    changed(Separable, _uneven, recipe=PER_TENSOR),
    *anywhere(("b2.0",), "per_tensor_weight", "channel_imbalance", "outlier_channel"),
)
plant("separable_layer_of_three_bits", asks(Separable, "b2.0", weight={"bits": 3}), ("b2.0", "few_bits"))
plant("separable_calibration_as_rows", shown(Separable, _as_rows, False), *anywhere((DATA,), *UNLIKE))
plant("separable_older_statistics", changed(Separable, _older_statistics), ("*", "stale_batch_norm"))
plant(
    "separable_dead_layer",
    changed(Separable, lambda net: net.b2[4].bias.fill_(-30.0)),
    ("b2.3", "dead_channels"),
    *anywhere(("b2.3",), *GREW),
)
# A U-Net.
plant("unet_black_calibration", shown(Unet, torch.zeros_like, False), (DATA, "no_variety"))
plant(
    "unet_concatenated_the_other_way",
    changed(Unet, _cat_exchanged),
    ("cat", "wrong_setting"),
)
plant("unet_two_bit_activation", asks(Unet, "deep.0", activation={"bits": 2}), ("deep.0", "few_bits"))
plant("unet_classes_from_zero", labelled(Unet, lambda y: (y - 1) % 7), (NETWORK, WRONG), ("out", "wrong_weights"))
plant(
    "unet_loud_skip",
    written(Unet, "enter.1.weight", lambda w: w[4].mul_(200)),
    *anywhere(("enter.0",), *GREW),
)
# A vision transformer.
plant(
    "patches_positions_transposed",
    changed(Patches, _position_transposed),
    (NETWORK, WRONG),
    ("position", "wrong_weights"),
)
plant("patches_two_bits", asks(Patches, "blocks.1.qkv", weight={"bits": 2}), ("blocks.1.qkv", "few_bits"))
plant("patches_other_pictures_in_calibration", _other_pictures, *anywhere((DATA,), *UNLIKE))
plant(
    "patches_nan",
    written(Patches, "embed.weight", lambda w: w[3, 1, 2].fill_(float("nan"))),
    ("embed", "not_finite"),
)
plant(
    "patches_loud_head",
    written(Patches, "blocks.0.qkv.weight", lambda w: w[72:84].mul_(60)),
    *anywhere(("blocks.0.qkv",), *GREW),
    (NETWORK, WRONG),
)
# Words.
plant("subject_ids_moved", shown(Subject, lambda ids: ids + 1), (NETWORK, WRONG), ("words", "wrong_weights"))
plant("subject_padding_in_calibration", shown(Subject, _padded, False), *anywhere((DATA,), *UNLIKE, "no_variety"))
plant(
    "subject_loud_word",
    written(Subject, "words.weight", lambda w: w[3].mul_(100)),
    *anywhere(("words",), *GREW),
)
plant(
    "subject_symmetric",
    asks(Subject, "layers.0.linear1", activation={"symmetric": True, "dtype": "int8", "bits": 5}),
    *anywhere(("layers.0.linear1",), "symmetric_range", "few_bits"),
)
plant(
    "subject_last_layer_not_loaded",
    _fresh(Subject, "layers.2"),
    *anywhere(("layers.2*",), "wrong_weights"),
    (NETWORK, WRONG),
)
# An LSTM.
plant(
    "gesture_biases_not_loaded",
    changed(Gesture, lambda net: [b.zero_() for n, b in net.lstm.named_parameters() if "bias" in n]),
    ("lstm*", "wrong_weights"),
    (NETWORK, WRONG),
)
plant(
    "gesture_saturated_gates",
    written(Gesture, "lstm.weight_ih_l0", lambda w: w.mul_(30)),
    *anywhere(("lstm*",), "wrong_weights", *GREW),
    (NETWORK, WRONG),
)
plant(
    "gesture_calibration_divided_by_its_maximum",
    shown(Gesture, lambda x: x / x.abs().amax((1, 2), keepdim=True), False),
    *anywhere((DATA,), *UNLIKE),
)
# A GRU.
plant("meter_labels_negated", labelled(Meter, lambda y: -y), (NETWORK, WRONG), ("fc2", "wrong_weights"))
plant("meter_glitch_in_calibration", shown(Meter, _glitch, False), (DATA, "outlier_sample"))
# Sound.
plant("keyword_as_integers", shown(Keyword, lambda x: x * 32768), (NETWORK, WRONG), (DATA, "unlike_data"))
plant("keyword_shrunk_after_freezing", held(Keyword, _shrunk), ("pw", "stale_range"))
plant("keyword_loud_channel", written(Keyword, "n1.weight", lambda w: w[5].mul_(60)), *anywhere(("c1",), *GREW))
# Features of wines.
plant(
    "growers_missing_values",
    shown(Growers, _missing_values, False),
    *anywhere((DATA,), *UNLIKE, "outlier_sample"),
)
plant("growers_transposed", changed(Growers, _transposed), *anywhere(("fc2",), "wrong_weights", "stale_batch_norm"))
# A detector.
plant("anchors_box_not_loaded", _fresh(Anchors, "box"), ("box", "wrong_weights"))
plant("anchors_boxes_as_sizes", labelled(Anchors, _as_wide_and_high), (NETWORK, WRONG))
plant(
    "anchors_nothing_there",
    written(Anchors, "obj.bias", lambda b: b.fill_(-50.0)),
    *anywhere(("obj",), *GREW, "wrong_weights"),
)
# An autoencoder.
plant(
    "squash_saturated",
    written(Squash, "d2.weight", lambda w: w.mul_(30)),
    *anywhere(("d2",), *GREW),
    (NETWORK, WRONG),
)
plant("squash_two_bits", asks(Squash, "e2", activation={"bits": 2}), ("e2", "few_bits"))
plant(
    "squash_one_digit",
    lambda: patient(Squash, calibration=pictures()[0][:TRAINED][digits()[1][:TRAINED] == 1][:100]),
    *anywhere((DATA,), *UNLIKE, "one_class"),
)
SOUND = (Preact, Separable, Unet, Patches, Subject, Gesture, Meter, Keyword, Growers, Anchors, Squash)
