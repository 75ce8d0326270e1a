"""Faults on four more networks, written down after the doctor had been mended for all others."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tests.diagnose.doctor.planted_by_judges import chains, table, tokens
from tests.diagnose.doctor.planted_in_practice import anywhere, asks, held, scaled
from tests.diagnose.doctor.shapes import (
    DATA,
    NETWORK,
    WRONG,
    Plants,
    changed,
    classes,
    labelled,
    motions,
    planter,
    random,
    reset,
    shapes,
    shown,
    squares,
    written,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional as F

PLANTS: Plants = {}
plant = planter(PLANTS)


class Selu(nn.Module):
    """Five linear layers with SELU: three numbers."""

    data, loss, epochs, rate = table, squares, 30, 2e-3

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 48), nn.Linear(48, 48), nn.Linear(48, 48)
        self.d, self.out, self.act = nn.Linear(48, 24), nn.Linear(24, 3), nn.SELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.c(self.act(self.b(self.act(self.a(x))))))
        return self.out(self.act(self.d(x)))


class Tagger(nn.Module):
    """A GRU that says what comes next at every place."""

    data, loss, epochs, rate = chains, tokens, 21, 6e-3

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru, self.fc = nn.Embedding(24, 24), nn.GRU(24, 48, batch_first=True), nn.Linear(48, 24)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.gru(self.words(ids))[0])


class Squeeze(nn.Module):
    """Residual convolutions whose channels are gated by their means."""

    epochs, rate = 9, 3e-3
    loss = staticmethod(classes)

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        return shapes()["x"], shapes()["y"]

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n0 = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.c1, self.n1 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.c2, self.n2 = nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24)
        self.down, self.up, self.fc = nn.Linear(16, 8), nn.Linear(8, 16), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.n0(self.stem(x)).relu()
        y = self.n1(self.c1(x)).relu()
        x = x + y * self.up(self.down(y.mean((2, 3))).relu()).sigmoid()[:, :, None, None]
        return self.fc(self.n2(self.c2(x)).relu().mean((2, 3)))


@functools.cache
def signals() -> tuple[Tensor, Tensor]:
    """Movements with noise, and smooth ones."""
    x = motions()[0]
    return x + 0.3 * torch.randn(x.shape, generator=random(12)), F.avg_pool1d(x, 5, 1, 2)


class Smooth(nn.Module):
    """A one-dimensional encoder and decoder with skips."""

    data, loss, epochs, rate = signals, squares, 9, 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.e1, self.e2 = nn.Conv1d(6, 16, 5, padding=2), nn.Conv1d(16, 24, 4, 2, 1)
        self.n1, self.n2 = nn.BatchNorm1d(16), nn.BatchNorm1d(24)
        self.mid, self.up, self.out = (
            nn.Conv1d(24, 24, 3, padding=1),
            nn.ConvTranspose1d(24, 16, 2, 2),
            nn.Conv1d(32, 6, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        a = F.gelu(self.n1(self.e1(x)))
        y = self.up(F.gelu(self.mid(F.gelu(self.n2(self.e2(a))))))
        return self.out(torch.cat([a, y], 1))


def _noise(net: Any, layer: str, share: float) -> None:
    weight = net.get_parameter(layer)
    weight.add_(share * weight.std() * torch.randn(weight.shape, generator=random(20)))


plant("selu_fresh", changed(Selu, lambda net: reset(net, "c")), ("c", "wrong_weights"))
plant(
    "selu_other_function", changed(Selu, lambda net: setattr(net, "act", nn.ReLU())), *anywhere(("*",), "wrong_setting")
)
plant(
    "selu_exploded_row",
    written(Selu, "b.weight", lambda w: w[7].mul_(200)),
    ("b", "exploded_channel"),
    ("b", "exploded_weight"),
)
plant("selu_not_standardized", shown(Selu, lambda x: x * 7 + 3), (NETWORK, WRONG))
plant("selu_two_bits", asks(Selu, "c", weight={"bits": 2}), ("c", "few_bits"))
plant("selu_columns_exchanged", labelled(Selu, lambda y: y[:, [1, 0, 2]]), (NETWORK, WRONG), ("out", "wrong_weights"))
plant(
    "tagger_gates",
    changed(
        Tagger,
        lambda net: (
            swap_rows(net.gru.weight_ih_l0),
            swap_rows(net.gru.weight_hh_l0),
            swap_rows(net.gru.bias_ih_l0),
            swap_rows(net.gru.bias_hh_l0),
        ),
    ),
    ("gru", "wrong_weights"),
)
plant(
    "tagger_words_rolled",
    written(Tagger, "words.weight", lambda w: w.copy_(w.roll(1, 0))),
    ("words", "wrong_weights"),
    (NETWORK, WRONG),
)
plant("tagger_labels_late", labelled(Tagger, lambda y: y.roll(1, 1)), (NETWORK, WRONG))
plant(
    "tagger_huge_bias",
    written(Tagger, "fc.bias", lambda b: b[3].fill_(90.0)),
    ("fc", "exploded_channel"),
    ("fc", "exploded_weight"),
)
plant(
    "squeeze_gate_closed",
    written(Squeeze, "up.bias", lambda b: b.sub_(40)),
    *anywhere(("up*", "sigmoid*", "mul*"), "dead_channels", "exploded_weight", "wrong_setting", "exploded_channel"),
)
plant(
    "squeeze_statistics_old",
    changed(Squeeze, lambda net: (net.n2.running_mean.mul_(0.3), net.n2.running_var.mul_(0.3))),
    ("c2", "stale_batch_norm"),
)
plant("squeeze_noise", changed(Squeeze, lambda net: _noise(net, "c1.weight", 1.5)), ("c1", "wrong_weights"))
plant("squeeze_black_calibration", shown(Squeeze, lambda x: torch.full_like(x, -2.0), False), (DATA, "no_variety"))
plant(
    "squeeze_percentile",
    asks(Squeeze, "c2", activation={"observer": "percentile", "observer_args": {"percentile": 80.0}}),
    ("c2", "clipped_range"),
)
plant("smooth_fresh", changed(Smooth, lambda net: reset(net, "mid")), ("mid", "wrong_weights"))
plant("smooth_kernel_reversed", written(Smooth, "e2.weight", lambda w: w.copy_(w.flip(2))), ("e2", "wrong_weights"))
plant("smooth_variance", changed(Smooth, lambda net: net.n1.running_var.mul_(30)), ("e1", "stale_batch_norm"))
plant("smooth_loud_calibration", shown(Smooth, lambda x: x * 12, False), (DATA, "unlike_data"))
plant("smooth_wide", held(Smooth, scaled("e1", 25.0)), *anywhere(("e1*", "gelu*"), "wide_range"))


def swap_rows(tensor: Tensor) -> None:
    """Exchange the first two gates, as in networks of another framework."""
    r, z, n = tensor.chunk(3)
    tensor.copy_(torch.cat([z, r, n]))


SOUND = (Selu, Tagger, Squeeze, Smooth)
