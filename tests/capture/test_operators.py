"""One small model per operator, compared with torch at another batch size."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.arithmetic.unary_functions import UNARY
from intact8.capture import capture
from intact8.capture.execute import run_float
from intact8.capture.ops_products import by_groups
from intact8.engines import engine_status

from .helpers import check


class Function(nn.Module):
    """A module from a function of its input, with two parameters to play with."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.randn(6, 5))
        self.c = nn.Parameter(torch.randn(1, 1, 6))
        self.register_buffer("mean", torch.rand(4, 1, 1) + 0.5)
        self.register_buffer("index", torch.tensor([2, 0, 1, 3]), persistent=False)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self)


IMAGE = {
    "add_alpha": lambda x, m: torch.add(x, x.relu(), alpha=0.5),
    "rsub": lambda x, m: 1 - x,
    "sub_alpha": lambda x, m: torch.sub(x, 2, alpha=3),
    "scalar_over": lambda x, m: 3 / (x.abs() + 1),
    "normalize": lambda x, m: (x - m.mean) / m.mean,
    "div_tensor": lambda x, m: x / (x.abs() + 1),
    "neg": lambda x, m: -x,
    "pow": lambda x, m: x**2 + x**3 + x.abs() ** 0.5,
    "pow_of_vectors": lambda x, m: (x.abs() + 0.1) ** m.mean + x.clamp(min=1e-6).pow(torch.full((6,), 1.7)),
    "log10_log2": lambda x, m: torch.log10(x.abs() + 0.1) + torch.log2(x.abs() + 0.1),
    "round_decimals": lambda x, m: torch.round(x, decimals=1) + torch.round(100 * x, decimals=-1),
    "relu6": lambda x, m: F.relu6(x),
    "clamp_in_place": lambda x, m: (x * 1).clamp_(-0.5, 0.5),
    "addcmul_in_place": lambda x, m: (x * 1).addcmul_(x, x.relu(), value=0.5),
    "deg2rad_in_place": lambda x, m: (x * 1).deg2rad_(),
    "permute_copy": lambda x, m: torch.permute_copy(x, (0, 2, 1, 3)),
    "maximum_of_two": lambda x, m: torch.maximum(x, x.roll(1, 3)) + torch.min(x * 2, m.mean),
    "clamp_between_tensors": lambda x, m: x.clamp(min=-m.mean, max=m.mean),
    "cumsum": lambda x, m: x.cumsum(-1) + (x > 0).cumsum(2),
    "clamped_integers": lambda x, m: (x.argmax(1) - 1).clamp(min=0).clamp(max=2) * (x.argmin(1) - 2).abs() + x[:, 0],
    "int32": lambda x, m: (x > 0).int().cumsum(1, dtype=torch.int32) * m.index.int()[:, None, None] + x,
    "any_all": lambda x, m: (x > 1).any(1).float() + (x > -1).all(1) + x.isnan().any(-1).any(1)[:, None, None],
    "finite": lambda x, m: (x / x.relu()).isinf().float() + (x / x.relu()).isnan() * 2 + x.isfinite(),
    "xor": lambda x, m: torch.logical_xor(x > 0, x < 1).float(),
    "norm_of_the_largest": lambda x, m: torch.linalg.vector_norm(x, math.inf, dim=1),
    "adaptive_max_pool_uneven": lambda x, m: F.adaptive_max_pool2d(x, (4, 5)) + F.adaptive_max_pool2d(x, 1),
    "avg_pool_divisor": lambda x, m: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    "unfold": lambda x, m: F.unfold(x, (3, 2), dilation=2, padding=1, stride=2),
    "windows": lambda x, m: x.unfold(3, 3, 2).sum(-1) + x.unfold(2, 1, 1)[..., :2, 0],
    "topk": lambda x, m: x.topk(3, dim=1).values + x.topk(2, 2, largest=False).indices[:, :3, :1].float(),
    "two_indices": lambda x, m: x[:, :, m.index[:, None], m.index] + x[:, m.index, m.index, :4][:, :, None],
    "many_runs": lambda x, m: x.flatten(1)[:, torch.arange(143, -1, -1)],
    "gather": lambda x, m: x.gather(2, x.argmax(2, keepdim=True)),
    "row_of_each": lambda x, m: x[torch.arange(x.shape[0]), x.mean((2, 3)).argmax(1)],
    "same_row_of_each": lambda x, m: x[torch.arange(x.shape[0]), -1] + x[torch.arange(x.shape[0])][:, 0],
    "same_rows_of_each": lambda x, m: x[torch.arange(x.shape[0])[:, None], torch.tensor([[0, 2]]), 1],
    "rows_of_each": lambda x, m: x[torch.arange(x.shape[0])[:, None], x.mean((2, 3)).topk(2)[1]],
    "places_of_each": lambda x, m: x[torch.arange(x.shape[0]), x.amax((2, 3)).argmax(1), x.amax((1, 3)).argmax(1)],
    "from_the_end": lambda x, m: x[torch.arange(x.shape[0]), (x.mean((2, 3)) > 9).sum(1) - 1],
    "lerp_of_strides": lambda x, m: torch.lerp(x, x.transpose(2, 3).contiguous().transpose(2, 3) * 2, 0.3),
    "clamp_min": lambda x, m: x.clamp(min=-0.25),
    "clamp_max": lambda x, m: torch.clamp_max(x, 0.25),
    "hardtanh": lambda x, m: F.hardtanh(x, -0.3, 0.4),
    "leaky": lambda x, m: F.leaky_relu(x, 0.2) + F.prelu(x, torch.tensor(0.3)),
    "rrelu": lambda x, m: F.rrelu(x),
    "glu": lambda x, m: F.glu(x, 1),
    "softmax": lambda x, m: x.softmax(-1) + F.log_softmax(x, 1),
    "mean_dims": lambda x, m: x.mean((2, 3)) + x.mean((-1, -2), keepdim=True).flatten(1),
    "mean_all": lambda x, m: x[:, 0].mean((1, 2)),
    "sum_max": lambda x, m: x.sum(1) + x.amax(1) + x.amin(1) + x.max(1).values + x.max(1)[0],
    "argmax": lambda x, m: x.argmax(1),
    "var": lambda x, m: x.var(1) + x.std((2, 3), unbiased=False).mean(1)[:, None, None],
    "norm": lambda x, m: F.normalize(x, dim=1),
    "max_pool": lambda x, m: F.max_pool2d(x, 3, 2, 1) + F.max_pool2d(x, 2, ceil_mode=True),
    "max_pool_dilated": lambda x, m: F.max_pool2d(x, 2, 1, dilation=2),
    "avg_pool": lambda x, m: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False) + F.avg_pool2d(x, 2),
    "adaptive_avg_1": lambda x, m: F.adaptive_avg_pool2d(x, 1),
    "adaptive_avg_rows": lambda x, m: F.adaptive_avg_pool2d(x, (None, 1)) + F.adaptive_avg_pool2d(x, (1, None)),
    "adaptive_avg_uneven": lambda x, m: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive_avg_same": lambda x, m: F.adaptive_avg_pool2d(x, (6, 6)),
    "adaptive_max": lambda x, m: F.adaptive_max_pool2d(x, 1) + F.adaptive_max_pool2d(x, 3).sum((2, 3), keepdim=True),
    "chunk": lambda x, m: torch.cat(x.chunk(2, 1)[::-1], -3),
    "split": lambda x, m: torch.cat(x.split([1, 3], 1)[::-1], 1),
    "unbind_stack": lambda x, m: torch.stack(x.unbind(1)[::-1], -1),
    "select_narrow": lambda x, m: x.select(1, -1) + x.narrow(1, 1, 1)[:, 0],
    "strided_slice": lambda x, m: x[:, 1:, ::2, 1:-1:2],
    "squeeze": lambda x, m: x[:, :1].squeeze(1).unsqueeze(-1).squeeze(),
    "shuffle": lambda x, m: x.view(x.shape[0], 2, 2, 6, 6).transpose(1, 2).contiguous().view(x.size(0), -1, 6, 6),
    "channel_shuffle": lambda x, m: F.channel_shuffle(x, 2),
    "pixel_shuffle": lambda x, m: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x, m: F.pixel_unshuffle(x, 3),
    "permute": lambda x, m: x.permute(0, 2, 3, 1).movedim(-1, 1).swapaxes(2, 3),
    "noops": lambda x, m: x.clone().detach().to(torch.float32).contiguous().view_as(x) * 1,
    "cast": lambda x, m: (x * 10).to(torch.int64).float(),
    "pad": lambda x, m: F.pad(x, (1, 2, 0, 3), value=0.5),
    "pad_negative": lambda x, m: F.pad(x, (-1, 2, 1, -2)),
    "pad_reflect": lambda x, m: F.pad(x, (2, 1, 1, 3), mode="reflect"),
    "pad_replicate": lambda x, m: F.pad(x, (2, 1, 1, 3), mode="replicate"),
    "pad_circular": lambda x, m: F.pad(x, (2, 1, 1, 3), mode="circular"),
    "nearest": lambda x, m: F.interpolate(x, scale_factor=2),
    "nearest_exact": lambda x, m: F.interpolate(x, size=(9, 4), mode="nearest-exact"),
    "bilinear": lambda x, m: F.interpolate(x, size=(9, 13), mode="bilinear", align_corners=False),
    "bilinear_corners": lambda x, m: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
    "scaled_nearest": lambda x, m: F.interpolate(x, scale_factor=0.7) + F.interpolate(x, scale_factor=0.75),
    "scaled_nearest_exact": lambda x, m: F.interpolate(x, scale_factor=(1.3, 0.4), mode="nearest-exact"),
    "scaled_bilinear": lambda x, m: F.interpolate(x, scale_factor=(1.7, 0.7), mode="bilinear"),
    "scaled_bicubic": lambda x, m: F.interpolate(x, scale_factor=(0.7, 1.9), mode="bicubic"),
    "scaled_trilinear": lambda x, m: F.interpolate(x[:, None], scale_factor=(0.4, 1.4, 0.9), mode="trilinear"),
    "roll": lambda x, m: x.roll((1, -2), (2, -1)),
    "flip": lambda x, m: x.flip(1, -1),
    "index": lambda x, m: x[:, m.index] + x.index_select(1, m.index),
    "masked_fill": lambda x, m: x.masked_fill(x > 0.5, -1.0),
    "where": lambda x, m: torch.where(x < 0, 0.1, x) + torch.where(x >= 0.2, x, torch.tensor(2.0)),
    "where_constant": lambda x, m: torch.where(torch.ones(6, 6).tril() == 1, x, 0.0),
    "masked_fill_bool": lambda x, m: (
        x.masked_fill((x > 0).masked_fill(x.sum(-1, keepdim=True) > 0, False), -1.0) + (x > 0).masked_fill(x > 1, True)
    ),
    "where_bool": lambda x, m: (
        torch.where(x > 0, x > 0.5, x < -0.5).float()
        + torch.where(x[:, :1] > 0, torch.tensor(True), x < -0.5)
        + torch.where(torch.ones(6, 6).tril() == 1, x > 0, False)
    ),
    "compare": lambda x, m: ((x > x.mean(1, keepdim=True)).float(), (x.abs() <= 0.5).logical_not().float()),
    "repeat": lambda x, m: x.repeat(1, 2, 1, 3) + 1,
    "repeat_interleave": lambda x, m: x.repeat_interleave(3, 2),
    "expand": lambda x, m: x[:, :1].expand(-1, 4, -1, -1) * x,
    "zeros_of_batch": lambda x, m: torch.cat([x, torch.zeros(x.shape[0], 1, 6, 6)], 1),
    "ones_like": lambda x, m: x + torch.ones_like(x),
    "buffer_output": lambda x, m: (x, m.mean),
    "arange": lambda x, m: x + torch.arange(6) * 0.1,
    "class_token": lambda x, m: torch.cat([m.c.expand(x.shape[0], -1, -1), x[:, 0]], 1) + m.c,
    "matmul": lambda x, m: x @ m.w + x.matmul(x.transpose(-1, -2)) @ m.w,
    "einsum": lambda x, m: torch.einsum("bchw,wk->bckh", x, m.w),
    "maximum": lambda x, m: torch.maximum(x, torch.tensor(0.0)) + torch.min(x, torch.tensor(0.5)),
    "no_grad": lambda x, m: no_grad(x),
    "group_norm": lambda x, m: F.group_norm(x, 2),
    "instance_norm": lambda x, m: F.instance_norm(x),
}  # fmt: skip


def no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y + 1


@pytest.mark.parametrize("name", IMAGE)
def test_function_of_an_image(name: str) -> None:
    torch.manual_seed(1)
    check(Function(IMAGE[name]), torch.randn(2, 4, 6, 6))


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(4, 6, 3, 2, 1, groups=2), (4, 9)),
    "conv3d": (nn.Conv3d(2, 3, 3, dilation=2, padding=1), (2, 5, 6, 7)),
    "conv_same": (nn.Conv2d(4, 3, 3, padding="same"), (4, 5, 5)),
    "conv_same_uneven": (nn.Conv2d(4, 3, 4, padding="same"), (4, 5, 5)),
    "conv_circular": (nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), (4, 5, 5)),
    "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3, 2, 1, groups=2), (4, 9)),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), (4, 5, 5)),
    "conv_transpose3d": (nn.ConvTranspose3d(2, 3, 2, 2), (2, 3, 3, 3)),
    "batch_norm1d": (nn.BatchNorm1d(4), (4,)),
    "batch_norm_plain": (nn.BatchNorm2d(4, affine=False), (4, 3, 3)),
    "instance_norm_stats": (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (4, 3, 3)),
    "dropout": (nn.Sequential(nn.Dropout(0.3), nn.Dropout2d(0.2), nn.Dropout(0.1, inplace=True)), (4, 3, 3)),
    "prelu": (nn.Sequential(nn.PReLU(), nn.PReLU(4)), (4, 3, 3)),
    "layer_norm": (nn.LayerNorm(5), (3, 5)),
    "max_pool1d": (nn.MaxPool1d(3, 2), (4, 9)),
    "max_pool3d": (nn.MaxPool3d(2), (2, 4, 4, 4)),
    "avg_pool1d": (nn.AvgPool1d(3, 2), (4, 9)),
    "avg_pool3d": (nn.AvgPool3d(2, ceil_mode=True), (2, 5, 4, 4)),
    "adaptive1d": (nn.AdaptiveAvgPool1d(2), (4, 9)),
    "upsample": (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 4, 4)),
    "attention": (nn.MultiheadAttention(8, 2, batch_first=True), (5, 8)),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8)),
    "flatten": (nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 6))), (4, 3)),
}  # fmt: skip


class SelfAttention(nn.Module):
    """Queries, keys and values from one tensor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    torch.manual_seed(2)
    module, shape = MODULES[name]
    check(SelfAttention(module) if name == "attention" else module, torch.randn(2, *shape))


ACTIVATIONS = [
    nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.SiLU(True), nn.GELU(), nn.GELU("tanh"), nn.Hardswish(True), nn.Hardsigmoid(),
    nn.ELU(0.7), nn.SELU(), nn.CELU(1.3), nn.Mish(), nn.Softplus(2, 10), nn.Softsign(), nn.LogSigmoid(),
    nn.Hardshrink(0.3), nn.Softshrink(0.3), nn.Tanhshrink(), nn.Threshold(0.1, 2.0), nn.ReLU6(True), nn.LeakyReLU(0.3),
]  # fmt: skip


@pytest.mark.parametrize("module", ACTIVATIONS, ids=repr)
def test_activation(module: nn.Module) -> None:
    graph = check(nn.Sequential(module), torch.linspace(-6, 6, 101).reshape(1, 101)).graph
    assert {n.attrs["fn"] for n in graph if n.op == "unary"} <= set(UNARY)


@pytest.mark.parametrize(
    "fn",
    [
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "square",
        "reciprocal",
        "sin",
        "cos",
        "erf",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "log1p",
        "expm1",
        "tan",
        "atan",
        "sinh",
        "cosh",
        "asinh",
    ],
)
def test_unary(fn: str) -> None:
    graph = check(Function(lambda x, m: getattr(torch, fn)(x.abs() + 0.1)), torch.randn(1, 50)).graph
    assert graph.nodes[graph.outputs[0]].attrs["fn"] == fn


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_scaled_dot_product_attention(causal: bool, mask: str | None) -> None:
    if causal and mask:
        pytest.skip("torch refuses a mask together with is_causal")
    bias = {None: None, "bool": torch.ones(5, 5).tril().bool(), "float": torch.randn(5, 5)}[mask]

    def function(x: Tensor, m: nn.Module) -> Tensor:
        return F.scaled_dot_product_attention(x, x * 0.5, x, attn_mask=bias, is_causal=causal)

    ops = [n.op for n in check(Function(function), torch.randn(2, 2, 5, 4)).graph]
    assert "softmax" in ops and ops.count("matmul") == 2


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_query_attention(groups: int) -> None:
    def function(x: Tensor, m: nn.Module) -> Tensor:
        return F.scaled_dot_product_attention(x, x[:, :groups], x[:, :groups] * 2, is_causal=True, enable_gqa=True)

    check(Function(function), torch.randn(2, 4, 5, 4))


VECTORS = {
    "right": lambda x, m: x @ m.w[:, 0],
    "left": lambda x, m: m.w[:, 0] @ x.transpose(1, 2),
    "both": lambda x, m: torch.mv(x[0] * 1, m.w[:, 0]),
    "activation": lambda x, m: m.w.T @ x[0, 0],
}


@pytest.mark.parametrize("name", VECTORS)
def test_products_with_vectors(name: str) -> None:
    sizes = (1,) if name in ("both", "activation") else (3,)
    check(Function(VECTORS[name]), torch.randn(1, 4, 6), batches=sizes)


def test_softmax_of_numbers() -> None:
    check(Function(lambda x, m: x.mean().softmax(0) + x.mean().log_softmax(-1)), torch.randn(3, 2))


def test_squeezing_a_batch_of_one_is_noted() -> None:
    notes = check(Function(lambda x, m: x.squeeze() * 2), torch.randn(2, 3)).notes
    assert any("batch of one" in note for note in notes)
    assert not check(Function(lambda x, m: x.squeeze(1) * 2), torch.randn(2, 1, 3)).notes


def test_embedding_of_integers() -> None:
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 3))
    graph = check(model, torch.randint(0, 7, (2, 4))).graph
    assert graph.nodes["input"].dtype == "int64" and graph.nodes["0"].op == "embedding"


def test_relu_is_relu_and_means_are_means() -> None:
    ops = [
        n.op
        for n in check(Function(lambda x, m: F.adaptive_avg_pool2d(x.clamp(min=0), 1)), torch.randn(2, 4, 6, 6)).graph
    ]
    assert ops == ["input", "relu", "mean"]


def test_attributes_are_json() -> None:
    import json

    graph = check(SelfAttention(nn.MultiheadAttention(8, 2, batch_first=True)), torch.randn(2, 5, 8)).graph
    text = json.dumps([n.attrs for n in graph], allow_nan=False)
    assert not math.isnan(len(text))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: (x * 2).index_fill(0, torch.arange(x.shape[0]), 1.0),
        lambda x, m: x.argsort(1).index_fill(0, torch.arange(x.shape[0]), 7),
        lambda x, m: (x * 2).index_fill(1, torch.arange(2), 3.0),
        lambda x, m: (x * 2).index_fill(-1, torch.tensor([0, 2]), x.new_tensor(3.0)),
    ],
)
def test_filling_holds_for_any_batch(function: Any) -> None:
    check(Function(function), torch.randn(2, 4, 6, 5))


def test_take_along_dim_and_rows_of_known_number_hold_for_any_batch() -> None:
    def moved(x: Tensor, m: Any) -> Tensor:
        y = torch.take_along_dim(x, x.argmin(3, keepdim=True), 3) + x.take_along_dim(x.argsort(2), 2)
        y[torch.arange(x.shape[0]), 0] = 1.0
        y[torch.arange(x.shape[0]), -1] = x[:, 1] * 2
        return y

    check(Function(moved), torch.randn(2, 4, 6, 5))


def test_long_reflections_are_a_gather() -> None:
    captured = check(Function(lambda x, m: F.pad(x, (700, 700), mode="reflect")), torch.randn(2, 3, 900))
    assert [n.op for n in captured.graph][-1] == "gather"


def test_tensors_that_the_forward_pass_makes_are_written_in_place() -> None:
    def written(x: Tensor, m: Any) -> Tensor:
        ones = torch.ones(4, 6, 5)
        alias = ones
        ones.sub_(x[0])
        return F.relu(x) * alias

    check(Function(written), torch.randn(1, 4, 6, 5), batches=(1,))


def test_numbers_that_only_assertions_read_need_not_be_known() -> None:
    def asserted(x: Tensor, m: Any) -> Tensor:
        lengths = (x > 0).sum(-1)
        torch._check(lengths.max().item() <= x.shape[-1])
        return F.relu(x)

    check(Function(asserted), torch.randn(2, 4, 6, 5))


def test_state_that_the_forward_pass_writes_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.register_buffer("state", torch.zeros(2, 3), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.state.mul_(0.9).add_(self.fc(x))
            return self.state * 2

    with pytest.raises(intact8.CaptureError, match="the forward pass changes state"):
        intact8.prepare(Counting().eval(), torch.randn(2, 3))


class Masked(nn.Conv2d):
    """A convolution that masks its weight in place whenever it runs, as in PixelCNN; ``decay`` shrinks it each time."""

    def __init__(self, decay: float = 1.0, early: bool = False) -> None:
        super().__init__(3, 4, 3)
        self.early = early
        self.register_buffer("mask", (torch.arange(9) < 5).float().view(3, 3) * decay)

    def forward(self, x: Tensor) -> Tensor:
        before = super().forward(x) if self.early else 0
        self.weight.data *= self.mask
        return super().forward(x) + before


def test_a_weight_that_is_masked_in_place_is_masked_in_programs() -> None:
    model, x = nn.Sequential(Masked(), nn.ReLU()).eval(), torch.rand(32, 3, 6, 6)
    captured = capture(model, x)
    found = run_float(captured.graph, captured.tensors(), captured.flatten((x,)))
    torch.testing.assert_close(found[captured.graph.outputs[0]], model(x))
    assert [how.sources for how in captured.derived.values()] == [("0.weight", "0.mask")]
    for changing in (Masked(0.9), Masked(early=True)):
        with pytest.raises(intact8.CaptureError, match="the forward pass changes weight"):
            intact8.quantize(changing.eval(), x)


def test_constant_masks_choose_known_elements() -> None:
    mask = torch.tensor([True, False, True, True, False])

    def chosen(x: Tensor, m: Any) -> Tensor:
        return F.relu(x[..., mask].permute(0, 3, 1, 2)[:, mask[:3]])

    check(Function(chosen), torch.randn(2, 4, 6, 5))


def test_convolution_with_a_computed_weight_is_a_product_of_windows() -> None:
    x = torch.randn(2, 4, 7, 6)

    def convolved(x: Tensor, m: Any) -> Tensor:
        weight = x.mean(0)[:, :3, :2].reshape(4, 1, 3, 2).expand(4, 2, 3, 2)
        return F.conv2d(x, weight, torch.ones(4), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)

    check(Function(convolved), x, batches=(2,))


class OfEach(nn.Module):
    """Convolutions whose weights each sample makes, as in StyleGAN2 and CondConv; a search for a template."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.weight, self.style = how, nn.Parameter(torch.randn(1, 3, 3, 3, 3) * 0.2), nn.Linear(4, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        if self.how == "search":
            return F.conv2d(x.reshape(1, batch * channels, height, width), x[:, :, 1:3, 1:4], groups=batch)[0, :, None]
        style = self.style(z)
        weight = (self.weight * (style + 1).view(batch, 1, 3, 1, 1)).view(batch * 3, 3, 3, 3)
        flat = x.reshape(1, batch * channels, height, width)
        if self.how == "rows":
            y = F.conv1d(flat.flatten(2), weight.flatten(2), style.flatten(), stride=2, groups=batch)
            return y.view(batch, 3, -1)
        if self.how == "larger":
            y = F.conv_transpose2d(flat, weight, stride=2, padding=1, groups=batch)
        else:
            y = F.conv2d(flat, weight, style.reshape(-1), padding=1, stride=2, groups=batch)
        return y.view(batch, 3, *y.shape[2:])


@pytest.mark.parametrize("how", ["search", "larger", "smaller", "rows"])
def test_convolutions_in_as_many_groups_as_samples_follow_the_batch(how: str) -> None:
    model = OfEach(how).eval()
    captured = capture(model, (torch.randn(2, 3, 6, 5), torch.randn(2, 4)))
    assert captured.graph.dynamic_batch
    for batch in (1, 2, 5):
        x, z = torch.randn(batch, 3, 6, 5), torch.randn(batch, 4)
        found = run_float(captured.graph, captured.tensors(), captured.flatten((x, z)))
        torch.testing.assert_close(found[captured.graph.outputs[0]], model(x, z), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("images", [False, True])
def test_transposed_convolutions_and_those_of_rows_take_computed_weights(images: bool) -> None:
    """As in StyleGAN2, whose styles scale the weights."""
    x = torch.randn(2, 4, 5, 3) if images else torch.randn(2, 4, 6)

    def convolved(x: Tensor, m: Any) -> Tensor:
        if not images:
            weight = x.mean(0)[:, :3].reshape(4, 1, 3).expand(4, 2, 3)
            y = F.conv1d(x, weight, torch.ones(4), 2, 1, 1, 2)
            return F.conv_transpose1d(y, weight, torch.ones(4), 3, 2, 1, 2, 2)
        weight = x.mean(0)[:, :3, :2].reshape(4, 1, 3, 2).expand(4, 2, 3, 2)
        return F.conv_transpose2d(x, weight, torch.ones(4), (2, 1), (1, 2), (1, 0), 2, (1, 3))

    check(Function(convolved), x, batches=(2,))


def test_distributions_do_not_look_at_their_arguments_while_a_model_is_exported() -> None:
    def density(x: Tensor, m: Any) -> Tensor:
        return torch.distributions.Normal(x.mean(1), x.std(1)).log_prob(x[:, 0])

    before = torch.distributions.Distribution._validate_args  # torch.compile has switched it off for good
    torch.distributions.Distribution.set_default_validate_args(True)
    try:
        check(Function(density), torch.randn(3, 4, 5))
        with pytest.raises(ValueError, match="to satisfy the constraint"):
            torch.distributions.Normal(torch.zeros(1), -torch.ones(1))
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


def test_experts_multiply_the_rows_of_their_groups() -> None:
    x, weight, ends = torch.randn(7, 4), torch.randn(3, 4, 5), torch.tensor([2, 2, 7])
    expected = torch.cat([x[:2] @ weight[0], x[2:] @ weight[2]])
    torch.testing.assert_close(by_groups(x, weight, ends), expected)


def test_dtypes_and_infinities_that_programs_do_not_mix() -> None:
    def mixed(x: Tensor, m: Any) -> Tensor:
        counts = torch.cat([(x > 0).cumsum(1, dtype=torch.float32), x.cumsum(2, dtype=torch.int64), x.argsort(1), x], 1)
        return F.max_pool2d(F.pad(counts, (1, 0, 0, 1), value=-math.inf), 2)

    check(Function(mixed), torch.randn(3, 4, 6, 5) * 9)


class Positions(nn.Module):
    """Position numbers as RoBERTa counts them, behind padding, and the row of the last token, as CLIP takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(20, 8, padding_idx=1), nn.Embedding(12, 8, padding_idx=1)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids.ne(1).int()
        places = torch.cumsum(mask, dim=1).type_as(mask) * mask
        x = self.words(ids) + self.positions(places.long() + 1)
        return self.head(x[torch.arange(x.shape[0]), (ids == 2).int().argmax(dim=-1)])


def test_positions_counted_from_a_mask_are_the_same_on_every_engine() -> None:
    torch.manual_seed(0)
    ids = torch.randint(3, 20, (8, 10))
    ids[:, 7], ids[::2, 8:] = 2, 1
    check(Positions(), ids, batches=(3,))
    program = intact8.quantize(Positions().eval(), ids)
    engines = [name for name, reason in engine_status().items() if reason is None]
    assert intact8.verify(program, ids, engines=engines).exact


class Sound(nn.Module):
    """Samples of sound as a file holds them, and a number for each clip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.names = nn.Conv1d(1, 8, 5), nn.Embedding(20, 8)

    def forward(self, sound: Tensor, speaker: Tensor) -> Tensor:
        return F.relu(self.conv(sound[:, None].float() / 32768)).mean(2) + self.names(speaker.long())


@pytest.mark.parametrize("speaker", [torch.int8, torch.int32], ids=str)
def test_integers_of_fewer_bits_are_taken_as_the_model_takes_them(speaker: torch.dtype) -> None:
    torch.manual_seed(0)
    sound = torch.randint(-32768, 32768, (32, 50), dtype=torch.int16)
    batch = (sound, torch.randint(0, 20, (32,)).to(speaker))
    model = Sound().eval()
    sim = intact8.prepare(model, batch)
    intact8.calibrate(sim, [batch])
    program = intact8.convert(sim)
    assert {program.tensors[name].dtype for name in program.inputs} == {"int64"}
    with torch.no_grad():
        expected = model(*batch)
    for given in (batch, tuple(x.numpy() for x in batch), tuple(x.long() for x in batch)):
        assert (torch.as_tensor(program.run(*given)) - expected).norm() < 0.05 * expected.norm()
    assert intact8.verify(program, batch, sim=sim).mismatches == 0


def test_arithmetic_in_integers_of_fewer_bits_is_refused_by_name() -> None:
    class Doubled(Sound):
        def forward(self, sound: Tensor, speaker: Tensor) -> Tensor:
            return super().forward(sound * 2, speaker)

    with pytest.raises(intact8.CaptureError, match=r"arithmetic in int16 \(operator aten.mul\).*x\.long\(\)"):
        intact8.prepare(Doubled().eval(), (torch.ones(4, 50, dtype=torch.int16), torch.ones(4, dtype=torch.int64)))


class ShortRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.bag = nn.Embedding(20, 6, max_norm=1.0), nn.EmbeddingBag(20, 6, max_norm=0.5, norm_type=1.0)
        self.end = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.table(x).mean(1) + self.bag(x))


def test_rows_that_a_lookup_shortens_are_short_in_the_program_and_whole_in_the_model() -> None:
    torch.manual_seed(0)
    model, x = ShortRows().eval(), torch.arange(80).reshape(20, 4) % 20
    before = [table.weight.detach().clone() for table in (model.table, model.bag)]
    sim = intact8.prepare(model, (x[:2],)).eval()
    assert all(torch.equal(a, table.weight) for a, table in zip(before, (model.table, model.bag), strict=True))
    intact8.calibrate(sim, [x])
    assert torch.allclose(sim(x), model(x), atol=0.02)


def test_views_of_constants_of_another_layout() -> None:
    """zeros_like of a transposed tensor is transposed in the model, and made anew in the capture."""

    def zeros(x: Tensor, m: Any) -> Tensor:
        flat = torch.zeros_like(x.transpose(1, 2)).add(1).transpose(1, 2).view(len(x), 20)
        return x.reshape(len(x), 20) + flat

    check(Function(zeros), torch.randn(3, 4, 5))


def test_a_tensor_of_the_forward_pass_is_written_to_by_indices_twice() -> None:
    """What a formula names while it is recorded is not what later writes go to."""

    def ranks(x: Tensor, m: Any) -> Tensor:
        places = torch.empty(5, dtype=torch.int64)
        order = torch.tensor([3, 1, 0, 4, 2])
        places[order] = torch.arange(5)
        values = torch.zeros(5)
        values[places] = torch.arange(5.0)
        values[order] += 1.0
        return x[:, places] + values

    check(Function(ranks), torch.randn(3, 5))
