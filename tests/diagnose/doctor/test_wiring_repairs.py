"""What is joined or configured otherwise than in training is put right: the repair gives all answers back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.diagnose.doctor.test_structural_repairs import Bed, answered
from torch import Tensor, nn


class Convolutions(nn.Module):
    """Three layers, two of them residual, a pooling and a classifier; every setting of it can be another one."""

    def __init__(self, pads: tuple[int, int] = (4, 0), dilation: int = 2, mean: bool = True, add: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pads, self.mean, self.add = pads, mean, add
        self.conv0 = nn.Conv1d(6, 6, 3, dilation=dilation)
        self.conv1 = nn.Conv1d(6, 6, 3, padding=1)
        self.conv2 = nn.Conv1d(6, 6, 3, padding=1)
        self.fc = nn.Linear(6, 5)
        for layer in (self.conv0, self.conv1, self.conv2):
            nn.init.normal_(layer.weight, std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.conv2(x)).relu()
        x = self.conv0(F.pad(x, self.pads)).relu()
        y = self.conv1(x)
        x = (x + y if self.add else y).relu() * torch.linspace(0, 1, x.shape[-1])
        z: Tensor = self.fc(x.mean(2) if self.mean else x.amax(2))
        return z


class Steps(nn.Module):
    """A layer, tanh, a recurrent layer, and the first step or all of them; a join that may be shuffled."""

    def __init__(self, tanh: bool = True, mean: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tanh, self.mean = tanh, mean
        self.map, self.memory, self.fc = nn.Linear(8, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 5)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.7)

    def forward(self, x: Tensor) -> Tensor:
        y = self.memory(self.map(x).tanh() if self.tanh else self.map(x))[0]
        z: Tensor = self.fc(y.mean(1) if self.mean else y[:, -1])
        return z


class Shuffled(nn.Module):
    """Two blocks whose joined halves are shuffled, or not."""

    def __init__(self, both: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.both = both
        self.a, self.b, self.c = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(8, 5)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.7)

    def shuffle(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate((self.a, self.b)):
            kept, y = x.chunk(2, 1)
            x = torch.cat([kept, layer(y).relu()], 1)
            x = self.shuffle(x) if self.both or index == 0 else x
        z: Tensor = self.fc(self.c(x).relu().mean((2, 3)))
        return z


class Gated(nn.Module):
    """Values and gates that are halves of one result, three parts that are joined, and a product."""

    def __init__(self, turned: bool = False, order: tuple[int, ...] = (0, 1, 2, 3, 4), product: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.turned, self.order, self.product = turned, order, product
        self.both, self.fc = nn.Linear(8, 16), nn.Linear(40, 5)
        nn.init.normal_(self.both.weight)
        nn.init.normal_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, :8]
        value, gate = self.both(x).chunk(2, 1)[:: -1 if self.turned else 1]
        y = value.tanh() * gate.sigmoid()
        pair = value * gate if self.product else value + gate
        parts = [y, x, pair, y.square(), value.relu()]
        z: Tensor = self.fc(torch.cat([parts[i] for i in self.order], 1))
        return z


class Attention(nn.Module):
    """Attention whose last word is classified; every setting of it can be another one."""

    def __init__(
        self,
        step: int = -1,
        causal: bool = True,
        inverted: bool = False,
        turned: bool = False,
        turned_mask: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.causal, self.inverted, self.turned, self.turned_mask = (
            step,
            causal,
            inverted,
            turned,
            turned_mask,
        )
        self.qkv, self.mix, self.fc = nn.Linear(8, 24), nn.Linear(6, 6), nn.Linear(8, 5)
        nn.init.normal_(self.qkv.weight)
        nn.init.normal_(self.mix.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1)
        if self.causal:
            later = torch.ones(6, 6, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later.T if self.turned_mask else later, -1e4)
        hidden = x[..., :1].transpose(1, 2)[:, None] < -0.5
        scores = scores.masked_fill(~hidden if self.inverted else hidden, -1e4)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 6, 8)
        y = y + self.mix(y.reshape(-1, 8, 6) if self.turned else y.transpose(1, 2)).transpose(1, 2)
        z: Tensor = self.fc(y[:, self.step])
        return z


class Cell(nn.Module):
    """A recurrent cell as people write it by hand, six steps of it, whose gates are parts of a layer's results."""

    def __init__(self, way: str, order: tuple[int, ...] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, count = way, 3 if way == "gru" else 4
        self.x2h, self.h2h = nn.Linear(16 if way == "joined" else 8, 8 * count), nn.Linear(8, 8 * count)
        self.fc = nn.Linear(8, 5)
        for layer in (self.x2h, self.h2h, self.fc):
            nn.init.normal_(layer.weight, std=0.7)
        for layer in (self.x2h, self.h2h) if order else ():
            for value in layer.parameters():
                value.data = torch.cat([value.data.chunk(count)[i] for i in order or ()])

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 8)
        for t in range(6):
            if self.way == "gru":
                (r, z, n), (hr, hz, hn) = self.x2h(x[:, t]).chunk(3, 1), self.h2h(h).chunk(3, 1)
                n = (n + (r + hr).sigmoid() * hn).tanh()
                h = n + (z + hz).sigmoid() * (h - n)
                continue
            joined = torch.cat([x[:, t], h], 1)
            gates = self.x2h(joined) if self.way == "joined" else self.x2h(x[:, t]) + self.h2h(h)
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        z = self.fc(h)
        return z


def interleaved() -> nn.Module:
    net = Attention()
    for value in net.qkv.parameters():
        value.data = value.data.unflatten(0, (3, 2, 4)).transpose(0, 1).flatten(0, 2).contiguous()
    return net


FAULTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "padding": (Convolutions, lambda: Convolutions(pads=(2, 2)), "it pads before only"),
    "dilation": (Convolutions, lambda: Convolutions(pads=(2, 0), dilation=1), "its dilation is 2, not 1"),
    "pooling": (Convolutions, lambda: Convolutions(mean=False), "it takes the mean, not the maximum"),
    "shortcut": (Convolutions, lambda: Convolutions(add=False), "is added to its results, a shortcut"),
    "tanh": (Steps, lambda: Steps(tanh=False), "tanh follows"),
    "mean": (Steps, lambda: Steps(mean=True), "it takes step 5 of 6, not all of them"),
    "shuffle": (Shuffled, lambda: Shuffled(both=False), "the channels that it joins are shuffled in 2 groups"),
    "halves": (
        Gated,
        lambda: Gated(turned=True),
        "its two halves, each of which is taken alone, are exchanged",
    ),
    "joined": (Gated, lambda: Gated(order=(3, 1, 0, 2, 4)), "it joins its inputs in the order (2, 1, 3, 0, 4)"),
    "product": (Gated, lambda: Gated(product=False), "it multiplies, and does not add"),
    "transposed": (Attention, lambda: Attention(turned_mask=True), "its mask is transposed"),
    "step": (Attention, lambda: Attention(step=0), "it takes step 5 of 6, not step 0"),
    "causal": (Attention, lambda: Attention(causal=False), "no position sees those behind it"),
    "mask": (Attention, lambda: Attention(inverted=True), "its mask is inverted"),
    "reshape": (Attention, lambda: Attention(turned=True), "it transposes its input and does not reshape it"),
    "gates joined": (lambda: Cell("joined"), lambda: Cell("joined", (0, 1, 3, 2)), "lie in the order (0, 1, 3, 2)"),
    "gates added": (lambda: Cell("added"), lambda: Cell("added", (0, 2, 1, 3)), "lie in the order (0, 2, 1, 3)"),
    "gates of a GRU": (lambda: Cell("gru"), lambda: Cell("gru", (1, 0, 2)), "lie in the order (1, 0, 2)"),
    "layout": (Attention, interleaved, "queries, keys and values lie head by head"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_gives_all_answers_back_is_named(name: str) -> None:
    right, wrong, text = FAULTS[name]
    torch.manual_seed(1)
    x = torch.randn(256, 8, 5, 5) if right is Shuffled else torch.randn(256, 6, 16 if right is Convolutions else 8)
    good, bad = right(), wrong()
    with torch.no_grad():
        shift = good(x).mean(0)  # so that every class is the answer to some
        good.fc.bias -= shift
        bad.fc.bias -= shift
    finding = Bed(bad, x, answered(good, x)).said()
    assert text in finding.message and finding.evidence["recovers"] > 0.8, str(finding)


def test_columns_in_another_order() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    x = torch.randn(256, 6)
    with torch.no_grad():
        numbers = net(x)
    assert "columns 1 and 4 swapped" in Bed(net, x[:, [0, 4, 2, 3, 1, 5]], numbers.argmax(1)).said().message
    assert "column 3 negated" in Bed(net, x * torch.tensor([1, 1, 1, -1, 1, 1.0]), numbers.argmax(1)).said().message
    assert "in the order 2, 0, 1" in Bed(net, x, numbers[:, [2, 0, 1]]).said().message


def test_answers_of_the_place_before() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5)), torch.randn(64, 9, 6)
    with torch.no_grad():
        classes = net(x).argmax(2)
    finding = Bed(net, x, classes.roll(-1, 1)).said()
    assert finding.place == "network" and "belong to the place before theirs" in finding.message


def test_a_causal_network_that_would_see_ahead_is_offered_that_with_reserve() -> None:
    class Causal(nn.Module):
        def __init__(self, last: tuple[int, int]) -> None:
            super().__init__()
            self.layers, self.last = nn.ModuleList(nn.Conv1d(4, 4, 3) for _ in range(2)), last

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[0](F.pad(x, (2, 0))).relu()
            y: Tensor = self.layers[1](F.pad(x, self.last))
            return y

    for last, least in (((2, 0), True), ((1, 1), False)):
        offered = Bed(Causal(last).eval(), torch.randn(8, 4, 12)).offered()
        pads = [repair for text, repair in offered.items() if text.startswith("it pads")]
        assert pads and all(bool(repair.least) == least for repair in pads)


class Patches(nn.Module):
    """Two tokens before sixteen patches, with a table of positions, read by attention; and numbers made a table."""

    def __init__(self, factor: float = 3.0, by_columns: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.factor, self.by_columns = factor, by_columns
        self.tokens, self.places = nn.Parameter(torch.randn(1, 2, 8)), nn.Parameter(torch.randn(1, 18, 8))
        self.keys, self.widen, self.fc = nn.Linear(8, 8), nn.Linear(8, 12), nn.Linear(4, 5)
        for weight in (self.keys.weight, self.widen.weight, self.fc.weight):
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.tokens.expand(len(x), -1, -1), x], 1) + self.places
        y = (self.keys(x[:, :1]) @ x.transpose(1, 2)).softmax(-1) @ x
        z = self.widen(y[:, 0]) * self.factor
        table = z.reshape(-1, 4, 3).transpose(1, 2) if self.by_columns else z.reshape(-1, 3, 4)
        found: Tensor = self.fc(table.tanh().amax(1))
        return found


def by_columns() -> Patches:
    net = Patches()
    with torch.no_grad():
        net.places[:, 2:] = net.places[:, 2:].reshape(1, 4, 4, 8).transpose(1, 2).reshape(1, 16, 8).clone()
    return net


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (by_columns, "its 4 × 4 rows are transposed"),
        (lambda: Patches(factor=1 / 3), "it divides by 0.333 and does not multiply"),
        (lambda: Patches(by_columns=True), "column by column"),
    ],
)
def test_pictures_of_patches(wrong: Callable[[], Patches], text: str) -> None:
    good, bad = Patches(), wrong()
    torch.manual_seed(1)
    x = torch.randn(512, 16, 8)
    with torch.no_grad():
        shift = good(x).mean(0)
        good.fc.bias -= shift
        bad.fc.bias -= shift
    finding = Bed(bad, x, answered(good, x)).said()
    assert text in finding.message and finding.evidence["recovers"] > 0.8, str(finding)


class Forecaster(nn.Module):
    """A window less its mean and by its deviation, what a layer makes of it, and both given back, or one of them."""

    def __init__(self, mean: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean = mean
        self.layers = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        width = (x - mean).square().mean(1, keepdim=True).add(1e-3).sqrt()
        y: Tensor = self.layers(((x - mean) / width).transpose(1, 2)).transpose(1, 2) * width
        return y + mean if self.mean else y


def test_what_was_taken_off_is_given_back() -> None:
    torch.manual_seed(1)
    x = torch.randn(256, 12, 3) * torch.rand(256, 1, 3) * 3 + 2 * torch.randn(256, 1, 3)
    good, bad = Forecaster().eval(), Forecaster(mean=False).eval()
    with torch.no_grad():
        y = good(x)
    finding = Bed(bad, x, y).said()
    assert "the mean of x, which was taken off, is given back" in finding.message, str(finding)
    assert finding.evidence["recovers"] > 0.8


class Mixed(nn.Module):
    """Means of neighbours less what they are the means of, which fall along the places by slopes of the channels."""

    def __init__(self, less: bool = True, falling: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.less = less
        slopes = 2.0 ** -torch.arange(6)
        self.register_buffer("slopes", slopes if falling else slopes.flip(0))
        self.a, self.pool, self.fc = nn.Conv1d(6, 6, 3, padding=1), nn.AvgPool1d(3, 1, 1), nn.Linear(6, 5)
        nn.init.normal_(self.fc.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y = self.pool(y) - y if self.less else self.pool(y)
        fall = self.get_buffer("slopes")[:, None] * torch.arange(x.shape[2])
        z: Tensor = self.fc((y - fall).tanh().mean(2))
        return z


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: Mixed(less=False), "its input is taken off its means"),
        (lambda: Mixed(falling=False), "its numbers come in reverse order along dimension 0"),
    ],
)
def test_pooling_and_slopes(wrong: Callable[[], Mixed], text: str) -> None:
    torch.manual_seed(1)
    x, good, bad = 3 * torch.randn(512, 6, 16), Mixed().eval(), wrong().eval()
    with torch.no_grad():
        shift = good(x).mean(0)
        good.fc.bias -= shift
        bad.fc.bias -= shift
    finding = Bed(bad, x, answered(good, x)).said()
    assert text in finding.message and finding.evidence["recovers"] > 0.8, str(finding)


def test_shifted_softplus_everywhere() -> None:
    class Shifted(nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.shift, self.layers = shift, nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            for layer in self.layers:
                nn.init.normal_(layer.weight, std=0.7)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = F.softplus(layer(x)) - self.shift
            return x

    torch.manual_seed(1)
    x, good = torch.randn(256, 8), Shifted(0.6931472)
    with torch.no_grad():
        y = good(x)
    finding = Bed(Shifted(0.0), x, y).said()
    assert "softplus less the logarithm of 2, not softplus" in finding.message, str(finding)


def test_maps_of_two_names_in_all_blocks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.mix1 = (nn.Linear(8, 8, bias=False) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + self.fc2(self.mix1(self.fc1(x).tanh()).tanh())
            return y

    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block(), nn.Linear(8, 4))
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.5)
    x = torch.randn(256, 8)
    y = answered(net, x)
    with torch.no_grad():
        for block in net[:2]:
            for layer in (block.fc2, block.mix1):  # type: ignore[union-attr]
                layer.weight.copy_(layer.weight.T.clone())  # type: ignore[union-attr, operator]
    finding = Bed(net, x, y).said()
    assert "its weight is transposed, and so in 3 more places" in finding.message, str(finding)


class Unlike(nn.Module):
    """A layer, six of whose results become one thing, two another, and four nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.theta, self.behind, self.ahead = nn.Linear(8, 12), nn.Linear(6, 5), nn.Linear(2, 5)
        for layer in (self.theta, self.behind, self.ahead):
            nn.init.normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(x)
        y: Tensor = self.behind(theta[:, None, :6].tanh())[:, 0] + self.ahead(theta[:, 10:].sigmoid())
        return y


def test_parts_of_unlike_lengths_in_another_order() -> None:
    net = Unlike()
    torch.manual_seed(1)
    x = torch.randn(256, 8)
    y = answered(net, x)
    with torch.no_grad():
        for parameter in net.theta.parameters():
            parameter.copy_(torch.cat([parameter[10:], parameter[:10]]).clone())
    finding = Bed(net, x, y).said()
    assert finding.place == "theta" and "its parts, each of which is taken alone, lie in the order" in finding.message
