"""Weights in another order, of another layer, or emptied: the repair gives the answers back, or the layer is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.diagnose.doctor.test_structural_repairs import Bed, answered
from torch import Tensor, nn

import intact8
from intact8.diagnose.doctor.answers import answers_of
from intact8.diagnose.doctor.float_causes import causes_first
from intact8.diagnose.doctor.float_network import FloatOutputs
from intact8.diagnose.doctor.model_checks import rounded, unread
from intact8.diagnose.doctor.report import Finding
from intact8.diagnose.doctor.trials import tried_repairs
from intact8.diagnose.doctor.untrained import untrained


class Reader(nn.Module):
    """Columns of pictures, read by two recurrent layers; a shuffled join, two dimensions read as one, a PReLU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.slopes = nn.Conv2d(1, 3, 3, padding=1), nn.PReLU(3, 0.25)
        self.map = nn.Linear(12, 8)
        self.memory = nn.GRU(8, 8, num_layers=2, batch_first=True)
        self.fc = nn.Linear(8, 5)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.7 if weight.dim() == 2 else 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slopes(self.conv(x)).permute(0, 3, 1, 2).flatten(2)
        z: Tensor = self.fc(self.memory(self.map(x))[0][:, -1])
        return z


class Last(Reader):
    """The state of the first layer is classified."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.slopes(self.conv(x)).permute(0, 3, 1, 2).flatten(2)
        z: Tensor = self.fc(self.memory(self.map(x))[1][0])
        return z


class Separate(nn.Module):
    """Attention with a layer of its own for queries."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.kv, self.fc = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 5)
        for weight in self.parameters():
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(-1, 6, 2, 4).transpose(1, 2)
        k, v = self.kv(x).view(-1, 6, 2, 2, 4).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(-2, -1) * 0.5).softmax(-1) @ v).transpose(1, 2).reshape(-1, 6, 8)
        z: Tensor = self.fc(y[:, 0])
        return z


class Blocks(nn.Module):
    """Two blocks of four layers as wide as long, each with an activation of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.ModuleDict({name: nn.Linear(8, 8) for name in "abcd"}) for _ in range(2))
        self.fc = nn.Linear(8, 5)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            y = block["a"](x).relu() * block["b"](x).sigmoid()
            x = x + block["d"](block["c"](y).tanh())
        z: Tensor = self.fc(x)
        return z


class Neighbours(nn.Module):
    """Four neighbours become one behind a norm, and what they give is subtracted."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.reduction = nn.LayerNorm(20), nn.Linear(20, 6, bias=False)
        self.fc = nn.Linear(6, 5)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.7)

    def merged(self, x: Tensor) -> Tensor:
        return x.view(-1, 2, 2, 2, 2, 5).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 20)

    def difference(self, one: Tensor, other: Tensor) -> Tensor:
        return one - other

    def forward(self, x: Tensor) -> Tensor:
        y = self.reduction(self.norm(self.merged(x)))
        z: Tensor = self.fc(self.difference(y[:, 0], y[:, 1:].mean(1)).relu())
        return z


class Joined(Neighbours):
    """The same by a join of slices."""

    def merged(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1).flatten(1, 2)


def unfolded(net: Any) -> None:
    net.reduction.weight.data = net.reduction.weight.data.unflatten(1, (4, 5)).transpose(1, 2).flatten(1).contiguous()


def two_kinds_transposed(net: Any) -> None:
    for block in net.blocks:
        for name in "ac":
            block[name].weight.data = block[name].weight.data.T.contiguous()


def gates_transposed(net: Any) -> None:
    for layer in (0, 1):
        weight = getattr(net.memory, f"weight_hh_l{layer}")
        weight.data = torch.cat([part.T for part in weight.data.chunk(3)]).contiguous()


def layers_exchanged(net: Any) -> None:
    one, other = net.memory.weight_hh_l0, net.memory.weight_hh_l1
    one.data, other.data = other.data, one.data


def merged_otherwise(net: Any) -> None:
    net.map.weight.data = net.map.weight.data.unflatten(1, (3, 4)).transpose(1, 2).flatten(1).contiguous()


def slopes_negative(net: Any) -> None:
    net.slopes.weight.data.fill_(-1.5)


def rows_interleaved(net: Any) -> None:
    for value in net.q.parameters():
        value.data = value.data.unflatten(0, (2, 4)).transpose(0, 1).flatten(0, 1).contiguous()


class Grouped(nn.Module):
    """A convolution in groups, and a norm in groups."""

    def __init__(self, groups: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.fc = nn.Conv2d(8, 16, 3, groups=4), nn.GroupNorm(groups, 16), nn.Linear(16, 5)
        for weight in self.parameters():
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))
        return z


def filters_interleaved(net: Any) -> None:
    net.conv.weight.data = net.conv.weight.data.unflatten(0, (4, 4)).transpose(0, 1).flatten(0, 1).contiguous()


class Upsampling(nn.Module):
    """Two convolutions with unlike numbers of channels, and a transposed one between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.up, self.fc = nn.Conv2d(8, 6, 3), nn.ConvTranspose2d(6, 4, 2, 2), nn.Linear(4, 5)
        for weight in self.parameters():
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.up(self.conv(x).relu()).relu().mean((2, 3)))
        return z


def stored_with_channels_last(net: Any) -> None:
    weight = net.conv.weight
    weight.data = weight.data.permute(0, 2, 3, 1).reshape(weight.shape).contiguous()


def stored_with_space_first(net: Any) -> None:
    weight = net.conv.weight
    weight.data = weight.data.permute(2, 3, 1, 0).reshape(weight.shape).contiguous()


def stored_with_outputs_first(net: Any) -> None:
    weight = net.up.weight
    weight.data = weight.data.transpose(0, 1).reshape(weight.shape).contiguous()


def other_groups(net: Any) -> None:
    net.norm.num_groups = 2


FAULTS: dict[str, tuple[type[nn.Module], Callable[[Any], None], str]] = {
    "gates": (Reader, gates_transposed, "its recurrent weights are transposed, gate by gate, and so in 1 more place"),
    "layers": (Reader, layers_exchanged, "it and memory.layer1 exchange their recurrent weights"),
    "merged": (Reader, merged_otherwise, "its weight is taken as made for 4 × 3 numbers, not 3 × 4"),
    "slopes": (Reader, slopes_negative, "its slopes are 0.25, as they begin"),
    "filters": (Grouped, filters_interleaved, "its filters lie"),
    "channels last": (Upsampling, stored_with_channels_last, "its weight is taken as stored with channels last"),
    "space first": (Upsampling, stored_with_space_first, "its weight is taken as stored with space first"),
    "outputs first": (Upsampling, stored_with_outputs_first, "with its first two dimensions exchanged"),
    "groups": (Grouped, other_groups, "it has 4 groups, not 2"),
    "kinds": (Blocks, two_kinds_transposed, "its weight is transposed, and so in 3 more places"),
    "unfolded": (Neighbours, unfolded, "its weight is taken as made for 5 × 4 numbers, not 4 × 5"),
    "unfolded joins": (Joined, unfolded, "its weight is taken as made for 5 × 4 numbers, not 4 × 5"),
    "rows": (Separate, rows_interleaved, "its rows for 2 heads come head by head, not between each other"),
}


SIZES = {
    Separate: (6, 8),
    Grouped: (8, 6, 6),
    Upsampling: (8, 6, 6),
    Reader: (1, 4, 7),
    Blocks: (8,),
    Neighbours: (4, 4, 5),
    Joined: (4, 4, 5),
}
"""Of a sample."""


def test_a_difference_the_other_way() -> None:
    class Other(Neighbours):
        def difference(self, one: Tensor, other: Tensor) -> Tensor:
            return other - one

    torch.manual_seed(1)
    good, bad, x = Neighbours().eval(), Other().eval(), torch.randn(256, 4, 4, 5)
    bed = Bed(bad, x, answered(good, x))
    answers = answers_of(FloatOutputs(bed.sim, bed.samples, None), bed.samples, 1)
    assert answers is not None
    whole = [r.repair.text for r in tried_repairs(bed.sim, bed.samples, answers.targets) if r.share > 0.99]
    assert "it takes the difference the other way" in whole


@pytest.mark.parametrize("name", FAULTS)
def test_what_gives_all_answers_back_is_named(name: str) -> None:
    make, spoil, text = FAULTS[name]
    torch.manual_seed(1)
    x = torch.randn(256, *SIZES[make])
    good: Any = make().eval()
    with torch.no_grad():
        good.fc.bias -= good(x).mean(0)
    bad = copy.deepcopy(good)
    spoil(bad)
    finding = Bed(bad, x, answered(good, x)).said()
    assert text in finding.message and finding.evidence["recovers"] > 0.8, str(finding)


def test_batch_norms_that_are_exchanged() -> None:
    """One of them is computed with the layer before it, the other with that behind it."""
    torch.manual_seed(0)
    net: Any = nn.Sequential(
        nn.Linear(8, 12),
        nn.BatchNorm1d(12),
        nn.Tanh(),
        nn.Linear(12, 12),
        nn.Tanh(),
        nn.BatchNorm1d(12),
        nn.Linear(12, 5),
    )
    x = torch.randn(512, 8)
    with torch.no_grad():
        for norm in (net[1], net[5]):
            norm.momentum = None
            norm.weight.copy_(torch.rand(12) * 3)
            norm.bias.normal_()
        net(x)
        net.eval()[6].bias -= net(x).mean(0)
    bad = copy.deepcopy(net)
    bad[1].load_state_dict(net[5].state_dict())
    bad[5].load_state_dict(net[1].state_dict())
    finding = Bed(bad, x, answered(net, x)).said()
    assert finding.cause == "wrong_weights" and "are exchanged" in finding.message, str(finding)


def test_a_recurrent_layer_that_nothing_reads() -> None:
    x = torch.randn(32, 1, 4, 7)
    assert not unread(Reader(), Bed(Reader(), x).sim)
    (found,) = unread(Last(), Bed(Last(), x).sim)
    assert (found.place, found.cause, found.severity) == ("memory", "wrong_setting", "warning")
    assert found.evidence["unread"] == [
        f"memory.{name}_l1" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]


class Tied(nn.Module):
    """A table and a last layer, of which the weight may be the table's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.mix, self.out = nn.Embedding(12, 16), nn.Linear(16, 16), nn.Linear(16, 12, bias=False)
        nn.init.normal_(self.mix.weight)
        nn.init.normal_(self.out.weight)

    def forward(self, ids: Tensor) -> Tensor:
        z: Tensor = self.out(self.mix(self.words(ids)).relu())
        return z


def test_weights_copied_from_a_table_and_weights_that_were_emptied() -> None:
    ids, net = torch.randint(0, 12, (8, 5)), Tied()
    (found,) = untrained(Bed(net, ids).sim)
    assert found.place == "words" and found.severity == "note" and found.evidence["alone"]  # as tables begin
    net.words.weight.data.mul_(0.5)
    assert not untrained(Bed(net, ids).sim)
    net.out.weight.data.copy_(net.words.weight.data)
    (found,) = untrained(Bed(net, ids).sim)
    assert found.place == "out" and found.evidence["tied"] == "words"
    net.out.weight = net.words.weight  # as a model says that ties them
    net.mix.weight.data[:, 4:8] = 0
    (found,) = untrained(Bed(net, ids).sim)
    assert found.place == "mix" and found.evidence["zeros"] == 0.25 and "all of 4 of the 16 inputs" in found.message


def test_weights_rounded_by_a_scale_for_every_row() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))
    assert not rounded(net)
    for layer in net[::2]:
        scale = layer.weight.data.abs().amax(1, keepdim=True) / 7
        layer.weight.data = (layer.weight.data / scale).round() * scale
    (found,) = rounded(net)
    assert found.cause == "rounded_weights" and 1e-3 < found.evidence["rounding"] < 1e-1


def test_one_number_written_over_most_of_them_is_no_rounding() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
    with torch.no_grad():
        net[0].bias[:240] = -40.0
    assert not rounded(net)
    with torch.no_grad():  # steps that are coarse leave few numbers but 0
        net[2].weight.copy_((net[2].weight * 10).round() / 10 * (torch.rand(4, 256) < 0.1))
    (found,) = rounded(net)
    assert found.place == "2" and found.evidence["weights"] == ["2.weight"]


def test_positions_as_they_begin() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(0.02 * torch.randn(1, 24, 32))
            self.fc = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            z: Tensor = self.fc((x + self.position).mean(1))
            return z

    torch.manual_seed(0)
    net, x = Placed(), torch.randn(16, 24, 32)
    nn.init.normal_(net.fc.weight)
    (found,) = untrained(Bed(net, x).sim)
    assert found.place == "position" and found.evidence["bound"] == 0.02
    net.position.data += 0.02 * torch.randn(1, 24, 32)
    assert not untrained(Bed(net, x).sim)


class Flat(nn.Module):
    """A picture that is flattened, with dropout behind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.drop, self.fc = nn.Conv2d(1, 4, 3), nn.Dropout(0.2), nn.Linear(36, 5)
        for weight in self.parameters():
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.fc(self.drop(self.conv(x).relu().flatten(1)))
        return z


def test_channels_last_before_dropout() -> None:
    torch.manual_seed(1)
    good, x = Flat().eval(), torch.randn(256, 1, 5, 5)
    with torch.no_grad():
        good.fc.bias -= good(x).mean(0)
    bad = copy.deepcopy(good)
    bad.fc.weight.data = good.fc.weight.data.unflatten(1, (4, 3, 3)).permute(0, 2, 3, 1).flatten(1).contiguous()
    finding = Bed(bad, x, answered(good, x)).said()
    assert finding.place == "fc" and "made for channels last" in finding.message


def test_statistics_come_before_a_scale_that_gives_a_part_back() -> None:
    def given(cause: str, place: str, **evidence: Any) -> Finding:
        return Finding(cause, place, "error", "", "", evidence=evidence)

    stale = given("stale_batch_norm", "b", batch_norm="n")
    for share, first in ((0.5, "b"), (0.95, "a")):
        scale = given("wrong_scale", "a", recovers=share, accuracy=(0.5, 0.9))
        assert causes_first([scale, stale], ["a", "b"])[0].place == first


def test_attention_without_any_factor_is_unusual() -> None:
    class Bare(Separate):
        def forward(self, x: Tensor) -> Tensor:
            q = self.q(x).view(-1, 6, 2, 4).transpose(1, 2)
            k, v = self.kv(x).view(-1, 6, 2, 2, 4).permute(2, 0, 3, 1, 4)
            y = ((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).reshape(-1, 6, 8)
            z: Tensor = self.fc(y[:, 0])
            return z

    x = torch.randn(8, 6, 8)
    for net, unusual in ((Separate(), False), (Bare(), True)):
        found = {text: r for text, r in Bed(net, x).offered().items() if "scores of attention are divided" in text}
        assert [r.unusual for r in found.values()] == [unusual]


def test_a_metric_judges_answers_of_a_form_of_its_own() -> None:
    class Boxes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.box, self.sure = nn.Conv2d(1, 6, 3), nn.Linear(6, 4), nn.Linear(6, 1)
            for weight in self.parameters():
                nn.init.normal_(weight)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            y = self.conv(x).relu().mean((2, 3))
            return {"box": self.box(y), "sure": self.sure(y)}

    def near(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        return ((outputs["box"] - labels[:, :4]).abs().amax(1) < 0.2).double()

    def explained(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        """Return R², of which single samples have none."""
        return (1 - (outputs["box"] - labels[:, :4]).square().sum() / labels[:, :4].var(0).sum() / len(labels)).clamp(0)

    torch.manual_seed(1)
    x, net = torch.randn(192, 1, 8, 8), Boxes().eval()
    with torch.no_grad():
        y = torch.cat([net(x)["box"], torch.ones(192, 1)], 1)  # a form of its own
        net.conv.weight.data = net.conv.weight.data.flip(2, 3).contiguous()
    for metric in (near, lambda outputs, labels: near(outputs, labels).mean(), explained):
        report = intact8.doctor(net, [(x, y)], metric=metric, remedies=False, seconds=0)
        first = report.findings[0]
        assert (first.place, first.cause) == ("conv", "wrong_weights"), [str(f) for f in report.findings[:3]]
        assert "reversed in space" in first.message and "scores 100.0%" in first.message


def test_weights_that_are_normal_as_they_are_initialized() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(*(nn.Linear(48, 48) for _ in range(5)), nn.Linear(48, 4)), torch.randn(32, 48)
    for layer in net:
        nn.init.normal_(layer.weight, std=0.3)
        nn.init.normal_(layer.bias)
    assert not untrained(Bed(net, x).sim)
    for layer in (net[1], net[3]):
        nn.init.kaiming_normal_(layer.weight)
    nn.init.zeros_(net[3].bias)  # which the bias of the other was not
    (found,) = (f for f in untrained(Bed(net, x).sim) if "bound" in f.evidence)
    assert found.place == "3" and "normal, with a deviation of 0.204" in found.message


def test_a_block_that_was_left_out() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))
            self.helper = nn.Linear(8, 4)
            self.skipped = 3

        def forward(self, x: Tensor) -> Tensor:
            for index, block in enumerate(self.blocks):
                x = x if index == self.skipped else block(x)
            return x

    net, x = Blocks(), torch.randn(8, 8)
    (found,) = unread(net, Bed(net, x).sim)
    assert (found.place, found.severity) == ("helper", "note")
    del net.helper
    net.skipped = 1
    (found,) = unread(net, Bed(net, x).sim)
    assert (found.place, found.severity) == ("blocks.1", "warning") and "layers like it do" in found.message


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (lambda m: m.pool(nn.Upsample(scale_factor=2)), "it resizes by bilinear interpolation"),
        (lambda m: m.pool(nn.AvgPool2d(3, 2, 1, count_include_pad=False)), "its padding counts in means"),
        (lambda m: m.pad("zeros"), "the edges of what convolutions read are reflected, not zeros, in 2 places"),
    ],
    ids=["resize", "means", "edges"],
)
def test_images_at_their_edges(form: Callable[[Any], Any], text: str) -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a = nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect")
            self.between: nn.Module = nn.Identity()
            self.b = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")
            self.fc = nn.Linear(6, 5)
            for weight in self.parameters():
                nn.init.normal_(weight)

        def pool(self, layer: nn.Module) -> Any:
            self.between = layer
            return self

        def pad(self, mode: str) -> Any:
            for conv in (self.a, self.b):
                conv.padding_mode = mode
            return self

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(self.between(self.a(x).relu())).relu()
            z: Tensor = self.fc(x[:, :, :2, :2].mean((2, 3)))
            return z

    right = {
        "it resizes by bilinear interpolation": nn.Upsample(scale_factor=2, mode="bilinear"),
        "its padding counts in means": nn.AvgPool2d(3, 2, 1),
    }
    torch.manual_seed(1)
    x = torch.randn(256, 3, 6, 6)
    good: Any = Images().pool(right.get(text, nn.Identity()))
    with torch.no_grad():
        shift = good(x).mean(0)
    bad = form(Images())
    for net in (good, bad):
        net.fc.bias.data -= shift
    finding = Bed(bad, x, answered(good, x)).said()
    assert text in finding.message and finding.evidence["recovers"] > 0.8, str(finding)


def test_another_number_of_heads() -> None:
    class Heads(nn.Module):
        def __init__(self, heads: int, fused: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.heads, self.fused = heads, fused
            self.qkv, self.fc = (
                nn.ModuleList([nn.Linear(8, 24)] if fused else [nn.Linear(8, 8) for _ in range(3)]),
                nn.Linear(8, 5),
            )
            for weight in self.parameters():
                nn.init.normal_(weight)

        def forward(self, x: Tensor) -> Tensor:
            if self.fused:
                q, k, v = self.qkv[0](x).view(-1, 6, 3, self.heads, 8 // self.heads).permute(2, 0, 3, 1, 4)
            else:
                q, k, v = (layer(x).view(-1, 6, self.heads, 8 // self.heads).transpose(1, 2) for layer in self.qkv)
            scores = q @ k.transpose(-2, -1) * (8 // self.heads) ** -0.5
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 6, 8)
            z: Tensor = self.fc(y[:, 0])
            return z

    x = torch.randn(256, 6, 8)
    for fused in (True, False):
        good, bad = Heads(2, fused), Heads(4, fused)
        with torch.no_grad():
            shift = good(x).mean(0)
        for net in (good, bad):
            net.fc.bias.data -= shift
        finding = Bed(bad, x, answered(good, x)).said()
        assert "attention has 2 heads, not 4, in 1 places" in finding.message, str(finding)
        assert finding.evidence["recovers"] > 0.8


def test_copies_and_rows_of_length_one_are_told_whatever_their_names_are() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.demand, self.state = nn.Embedding(24, 8), nn.Linear(8, 16), nn.Linear(8, 16)
            self.fc = nn.Linear(32, 3)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.table(ids)
            y: Tensor = self.fc(torch.cat([self.demand(x).relu(), self.state(x).relu()], 1))
            return y

    net = Heads()
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.7)
    ids = torch.randint(24, (32,))
    assert not untrained(Bed(net, ids).sim)
    net.state.load_state_dict(net.demand.state_dict())
    net.table.weight.data = nn.functional.normalize(net.table.weight.data)
    net.table.weight.data[0] = 0.0  # of padding
    said = {finding.place: finding.message for finding in untrained(Bed(net, ids).sim)}
    assert "are those of demand, bit by bit" in said["state"] and "has the length 1" in said["table"]


def test_flipped_bits_of_a_small_layer_are_told() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 3)), torch.randn(32, 24)
    with torch.no_grad():
        for place in ((3, 5), (30, 17), (41, 2)):
            net[0].weight[place] = 60.0
    report = intact8.doctor(net.eval(), x, remedies=False, seconds=0)
    found = [finding for finding in report.findings if finding.cause == "exploded_weight"]
    assert [finding.place for finding in found] == ["0"] and "3 of 1152 weights" in found[0].message


def test_slopes_that_were_lost_are_told() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(24, 48), nn.PReLU(48), nn.Linear(48, 3)), torch.randn(32, 24)
    for weight in (net[0].weight, net[2].weight):
        nn.init.normal_(weight, std=0.3)
    assert not [f for f in untrained(Bed(net, x).sim) if f.place == "1"]
    nn.init.zeros_(net[1].weight)
    (found,) = (f for f in untrained(Bed(net, x).sim) if f.place == "1")
    assert found.cause == "wrong_weights" and "slopes of 0 only" in found.message


def test_a_layer_made_for_its_inputs_in_reverse_order() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 5)).eval()
    x = torch.randn(256, 12).cumsum(1)
    right = answered(net, x)
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight.flip(1).clone())
    finding = Bed(net, x, right).said()
    assert finding.place in ("0", "network") and "reverse order" in finding.message, str(finding)


class Scaled(nn.Module):
    """Residual blocks with a factor for every channel, as ConvNeXt and CaiT have them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.gammas = nn.ParameterList(torch.rand(16) + 0.5 for _ in range(3))
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer, gamma in zip(self.layers, self.gammas, strict=True):
            x = x + layer(x).relu() * gamma
        y: Tensor = self.fc(x)
        return y


def test_factors_of_zeros_are_told_and_not_that_channels_are_dead() -> None:
    net = Scaled().eval()
    x = torch.randn(256, 16)
    right = answered(net, x)
    with torch.no_grad():
        net.gammas[1].zero_()
    report = intact8.doctor(net, [(x[:128], right[:128]), (x[128:], right[128:])], remedies=False, seconds=0)
    (told,) = [f for f in report.findings if "holds nothing but zeros" in f.message]
    assert told.cause == "wrong_weights" and "gammas.1" in told.message
    assert all(f.cause != "dead_channels" or f.place == "fc" for f in report.findings), str(report.findings)


class Looked(nn.Module):
    """Rows of a table, normed, and attention with keys and values of one layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.q, self.kv, self.fc = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(8, 5)
        for weight in self.parameters():
            nn.init.normal_(weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.table(x))
        q = self.q(x).reshape(-1, 6, 2, 4).transpose(1, 2)
        k, v = self.kv(x).reshape(-1, 6, 2, 2, 4).permute(2, 0, 3, 1, 4)
        y = ((q @ k.transpose(-2, -1) * 0.5).softmax(-1) @ v).transpose(1, 2).reshape(-1, 6, 8)
        z: Tensor = self.fc(y[:, 0])
        return z


def gains_for_biases(net: Looked) -> None:
    net.norm.weight.data, net.norm.bias.data = net.norm.bias.data, net.norm.weight.data


def values_first(net: Looked) -> None:
    for parameter in net.kv.parameters():
        parameter.data = parameter.data.roll(8, 0)


def longer(net: Looked) -> None:
    net.norm = nn.Identity()  # type: ignore[assignment]
    net.table.weight.data[3:5] *= 60


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (gains_for_biases, "its gains and its biases are exchanged"),
        (values_first, "keys and values lie in the order (1, 0)"),
        (longer, "2 rows, up to"),
    ],
)
def test_tables_norms_and_attention(wrong: Callable[[Looked], None], text: str) -> None:
    good, bad = Looked().eval(), Looked().eval()
    torch.manual_seed(1)
    x = torch.randint(0, 12, (512, 6))
    if wrong is longer:
        good.norm = nn.Identity()  # type: ignore[assignment]
    wrong(bad)
    with torch.no_grad():
        shift = good(x).mean(0)
        good.fc.bias -= shift
        bad.fc.bias -= shift
    finding = Bed(bad, x, answered(good, x)).said()
    assert text in finding.message and finding.evidence["recovers"] > 0.6, str(finding)
