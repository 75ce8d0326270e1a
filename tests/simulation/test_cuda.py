"""The simulation on a GPU computes the integers of the CPU: no Winograd, no TF32, no reordering that shows."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import intact8
from intact8.arithmetic.torch_float_ops import FLOAT_OPS
from intact8.capture.graph import Node
from intact8.simulation.ops.exact_sums import LONGEST, accumulate, exact_product
from intact8.simulation.ops.integer_conv import _plus_bias

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Net(nn.Module):
    """Every kind of sum: wide and grouped convolutions, residual, gate, pools, tables, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64))
        self.depthwise = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.LeakyReLU(0.1))
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(64, 64, 1), nn.Sigmoid())
        self.tail = nn.Sequential(nn.Hardswish(), nn.MaxPool2d(2), nn.AvgPool2d(3, 2, 1), nn.BatchNorm2d(64))
        self.head = nn.Linear(64 * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(self.wide(x) + x)
        x = self.depthwise(x)
        x = self.tail(x * self.gate(x))
        y: Tensor = self.head(x.flatten(1))
        return y


def model() -> nn.Module:
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for _ in range(5):
            net(torch.randn(32, 3, 12, 12))
    return net.eval()


@pytest.mark.parametrize("residual", ["separate", "fused"])
def test_integers_on_the_gpu_are_those_of_the_reference(residual: str) -> None:
    recipe = intact8.Recipe(residual=residual)
    sim = intact8.prepare(model().cuda(), torch.randn(2, 3, 12, 12, device="cuda"), recipe).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, torch.randn(256, 3, 12, 12))
    program = intact8.convert(sim)
    report = intact8.verify(program, torch.randn(128, 3, 12, 12) * 1.5, engines=("reference", "onednn"), sim=sim)
    assert report.elements > 1_000_000 and report.mismatches == 0


def test_a_simulation_moves_between_devices() -> None:
    sim = intact8.prepare(model(), torch.randn(2, 3, 12, 12)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, torch.randn(256, 3, 12, 12))
    x = torch.randn(64, 3, 12, 12)
    on_cpu, moved = sim.integer_tensors([x]), copy.deepcopy(sim).cuda()
    on_gpu = moved.integer_tensors([x])
    assert on_cpu.keys() == on_gpu.keys()
    assert all((on_cpu[name] == on_gpu[name]).all() for name in on_cpu)


def test_training_on_the_gpu_reaches_every_parameter() -> None:
    sim = intact8.prepare(model().cuda(), torch.randn(2, 3, 12, 12, device="cuda")).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, torch.randn(256, 3, 12, 12))
    sim.train()
    sim(torch.randn(32, 3, 12, 12, device="cuda")).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in sim.parameters())


@pytest.mark.parametrize("scales", ["learned", "lsq+", "pact", "observed"])
def test_trained_on_the_gpu_it_ships_to_the_cpu(scales: str) -> None:
    import intact8.train

    sim = intact8.prepare(model().cuda(), torch.randn(2, 3, 12, 12, device="cuda"), intact8.recipes.qat(scales)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        intact8.calibrate(sim, torch.randn(256, 3, 12, 12))
    optimizer = torch.optim.SGD(intact8.train.parameter_groups(sim, lr=1e-3))
    schedule = intact8.train.Schedule(freeze_batchnorm=2, freeze_scales=4, unit="step")
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = sim.train()(torch.randn(32, 3, 12, 12, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step(sim)
    x = torch.randn(64, 3, 12, 12)
    program = intact8.convert(sim.eval())
    report = intact8.verify(program, x, engines=("reference", "onednn"), sim=sim)
    assert report.mismatches == 0 and not report.uncertified
    # The hand-over: the same state on the CPU is the same program.
    on_cpu = copy.deepcopy(sim).cpu()
    assert torch.equal(on_cpu(x), sim(x.cuda()).cpu())


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("terms", [LONGEST, 3 * LONGEST + 5])
def test_products_on_tensor_cores_are_exact(terms: int, tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums next to 2^24, in which every bit counts, and random ones, of many sizes."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    g = torch.Generator().manual_seed(terms)
    for rows, columns in ((1, 1), (7, 33), (64, 64), (197, 197), (300, 1025), (4096, 384)):
        for low in (-255, 0, 250):
            x = torch.randint(low, 256, (rows, terms), generator=g)
            w = torch.randint(-128, 128, (terms, columns), generator=g)
            w[:, ::3] = torch.where(w[:, ::3] < 0, -128, 127)
            w[:, ::7] = 127
            expected = torch.mm(x.double(), w.double())
            found = exact_product(x.float().cuda(), w.float().cuda(), LONGEST).double().cpu()
            assert torch.equal(found, expected), (rows, columns, low)
    x, w = torch.randint(-255, 256, (3, 1, 5, terms), generator=g), torch.randint(-128, 128, (2, terms, 9), generator=g)
    found = exact_product(x.float().cuda(), w.float().cuda(), LONGEST).double().cpu()
    assert torch.equal(found, torch.matmul(x.double(), w.double()))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("geometry", [(1, 1, 0, 1), (3, 1, 1, 1), (3, 2, 1, 2), (5, 3, 2, 1), (7, 2, 3, 1)])
def test_convolutions_on_a_gpu_are_exact(rank: int, geometry: tuple[int, int, int, int]) -> None:
    kernel, stride, padding, dilation = geometry
    g = torch.Generator().manual_seed(kernel + rank)
    for channels, groups in ((3, 1), (64, 1), (200, 1), (64, 64), (64, 4)):
        attrs = {name: [n] * rank for name, n in (("stride", stride), ("padding", padding), ("dilation", dilation))}
        node = Node("y", "conv", ["x"], {**attrs, "groups": groups, "transposed": False})
        x = torch.randint(-255, 256, (3, channels, *[19, 17, 8][:rank]), generator=g).double()
        w = torch.randint(-128, 128, (64, channels // groups, *[kernel] * rank), generator=g).double()
        expected = FLOAT_OPS["conv"](node.attrs, [x], {"weight": w})
        found = accumulate(node, x.float().cuda(), w.float().cuda(), None)
        assert torch.equal(found.double().cpu(), expected), (channels, groups)


def test_a_bias_is_added_in_one_rounding() -> None:
    g = torch.Generator().manual_seed(0)
    bound = 255 * 128 * LONGEST
    total = torch.randint(-bound, bound + 1, (1000, 4096), generator=g)
    total[0], total[1] = bound, -bound
    size = 2.0 ** (31 * torch.rand(4096, generator=g))
    bias = torch.round((torch.rand(4096, generator=g) * 2 - 1).double() * size).clamp(-(2**31) + 1, 2**31 - 1)
    bias[:2000] = -total[5, :2000].double() + torch.randint(
        -2, 3, (2000,), generator=g
    )  # what cancels shows a rounding
    found = _plus_bias(total.float().cuda(), bias.cuda()).cpu()
    assert torch.equal(found, (total.double() + bias).float())
