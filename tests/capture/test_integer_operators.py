"""Elementary operations on integers, truth values and bytes give exactly what torch gives, in torch's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8
from intact8.capture import capture
from intact8.engines import engine_status
from intact8.errors import CalibrationError, CaptureError

ENGINES = [engine for engine in ("reference", "native", "onnxruntime") if engine_status()[engine] is None]
WEIGHT = torch.tensor([[1, -2], [3, 4], [0, 5], [-6, 7], [8, 2], [9, -1]])

Functions = dict[str, Callable[[Tensor], Any]]

INTEGERS: dict[str, Functions] = {
    "bits": {
        "bits": lambda x: x & 6,
        "all bits but some": lambda x: x & -4,
        "more bits": lambda x: x | 5,
        "other bits": lambda x: x ^ -3,
    },
    "functions": {
        "relu": F.relu,
        "relu in place": lambda x: x.clone().relu_(),
        "sign": torch.sign,
        "sgn": torch.sgn,
        "abs": torch.abs,
        "not": lambda x: ~x,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round": torch.round,
        "trunc": torch.trunc,
        "fix": torch.fix,
        "hardtanh": lambda x: F.hardtanh(x, -1.5, 1.5),
        "infinite": lambda x: x.isinf() | x.isnan() | ~x.isfinite(),
    },
    "powers": {
        "square": torch.square,
        "squared": lambda x: x**2,
        "cube": lambda x: x**3,
        "one": lambda x: x**0,
        "seventh": lambda x: x**7,
        "in place": lambda x: x.clone().pow_(5),
        "real": lambda x: x**2.0,
        "of two": lambda x: 2**x,
        "beyond 63": lambda x: 2 ** (x * 9),
        "of minus six": lambda x: (-6) ** x,
    },
    "limits": {
        "real": lambda x: x.clamp(-1.5, 2.5),
        "least real": lambda x: x.clamp(min=0.0),
        "whole": lambda x: x.clamp(-2, 3),
        "infinite": lambda x: x.clamp(max=float("inf")),
        "tensor": lambda x: x.clamp(min=x.flip(1)),
        "real tensor": lambda x: x.clamp(min=torch.tensor(0.5)),
    },
    "choices": {
        "fill": lambda x: x.masked_fill(x > 0, -5),
        "real fill": lambda x: x.masked_fill(x > 0, 2.7),
        "real number": lambda x: torch.where(x > 0, x, 0.5),
        "of real number": lambda x: torch.where(x > 0, 0.5, x),
        "two": lambda x: torch.where(x > 0, x, x.float() + 0.5),
        "pad": lambda x: F.pad(x, (1, 2), value=50257),
        "pad below": lambda x: F.pad(x, (1, 2), value=-100),
        "pad bytes": lambda x: F.pad(x, (1, 2), value=200),
        "pad real": lambda x: F.pad(x, (1, 2), value=0.7),
    },
    "arithmetic": {
        "less real": lambda x: x - 1.5,
        "from real": lambda x: 1.5 - x,
        "from zero": lambda x: 0.0 - x,
        "plus zero": lambda x: x + 0.0,
        "times one": lambda x: x * 1.0,
        "short": lambda x: x + torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int16),
        "addcmul": lambda x: torch.addcmul(x, x, x),
    },
    "comparisons": {
        "real": lambda x: x < 2.5,
        "large": lambda x: x + 2**24 + 1 > float(2**24),
        "large equal": lambda x: x + 2**24 == float(2**24),
        "of no float32": lambda x: x + 8388608 == 8388607.75,
        "infinite": lambda x: (x < float("inf")) & (x != float("inf")),
        "mixed": lambda x: x <= x.float() * 0.5,
        "tensors": lambda x: x == x.flip(1),
    },
    "sums": {
        "real": lambda x: x.sum(1, dtype=torch.float32),
        "of floats": lambda x: (x.float() + 0.5).sum(1, dtype=torch.int64),
        "product": lambda x: x.prod(1),
        "cumprod": lambda x: x.cumprod(1),
        "real cumprod": lambda x: x.cumprod(1, dtype=torch.float32),
        "argmin": lambda x: x.argmin(1),
    },
    "products": {
        "matrix": lambda x: x @ WEIGHT,
        "vector": lambda x: x @ WEIGHT[:, 0],
        "linear": lambda x: F.linear(x, WEIGHT.t(), WEIGHT[0]),
        "addmm": lambda x: torch.addmm(WEIGHT[0], x, WEIGHT, beta=2, alpha=3),
        "outer": lambda x: torch.bmm(x[:, :, None], x[:, None]),
        "einsum": lambda x: torch.einsum("bi,ij->bj", x, WEIGHT),
        "einsum of two": lambda x: torch.einsum("bi,bj->bij", x, x),
    },
}

TRUTHS: dict[str, Functions] = {
    "bits": {
        "bits": lambda x: x & 1,
        "more bits": lambda x: x | 4,
    },
    "arithmetic": {
        "sum": lambda x: x + x.flip(1),
        "plus true": lambda x: x + True,
        "plus one": lambda x: x + 1,
        "times false": lambda x: x * False,
        "times two": lambda x: x * 2,
        "times real": lambda x: x * 1.0,
        "squared": lambda x: x**2,
        "power": lambda x: 2**x,
        "sign": torch.sign,
        "limits": lambda x: x.clamp(0, 1),
    },
    "comparisons": {
        "eq": lambda x: x == x.flip(1),
        "ne": lambda x: x != x.flip(1),
        "lt": lambda x: x < x.flip(1),
        "ge": lambda x: x >= x.flip(1),
        "number": lambda x: x == 1,
        "real": lambda x: x != 0.5,
    },
    "logic": {
        "and true": lambda x: x & True,
        "and false": lambda x: x & False,
        "or false": lambda x: x | False,
        "or true": lambda x: x | True,
        "xor true": lambda x: x ^ True,
        "maximum": lambda x: torch.maximum(x, x.flip(1)),
        "minimum": lambda x: torch.minimum(x, x.flip(1)),
        "where": lambda x: torch.where(x, True, False),
        "where tensor": lambda x: torch.where(x, x.flip(1), True),
        "where integer": lambda x: torch.where(x, x.flip(1), 2),
        "fill": lambda x: x.masked_fill(x.flip(1), True),
    },
    "reductions": {
        "max": lambda x: x.max(1),
        "min": lambda x: x.min(1),
        "amax": lambda x: x.amax(1),
        "amin": lambda x: x.amin(1),
        "cumprod": lambda x: x.cumprod(1),
        "product": lambda x: x.prod(1),
        "of truth values": lambda x: x.sum(1, dtype=torch.bool),
        "of bytes": lambda x: x.sum(1, dtype=torch.uint8),
        "places": lambda x: x.sort(1)[1],
    },
    "moves": {
        "pad": lambda x: F.pad(x, (1, 1), value=True),
        "pad real": lambda x: F.pad(x, (1, 1), value=0.5),
        "gather": lambda x: x.gather(1, x.long()),
    },
}

BYTES: dict[str, Functions] = {
    "bits": {
        "bits": lambda x: x & 15,
        "more bits": lambda x: x | 128,
        "other bits": lambda x: x ^ 85,
    },
    "arithmetic": {
        "plus one": lambda x: x + 1,
        "plus 300": lambda x: x + 300,
        "from 255": lambda x: 255 - x,
        "less one": lambda x: x - 1,
        "negative": lambda x: -x,
        "times three": lambda x: x * 3,
        "times real": lambda x: x * 1.0,
        "sum": lambda x: x.add(x.flip(1), alpha=2),
        "difference": lambda x: x - x.flip(1),
        "product": lambda x: x * x.flip(1),
        "in place": lambda x: x.clone().add_(7),
        "with truth values": lambda x: x + (x > 3),
        "with integers": lambda x: x + x.long(),
        "not": lambda x: ~x,
    },
    "functions": {
        "square": torch.square,
        "cube": lambda x: x**3,
        "power": lambda x: 2**x,
        "relu": F.relu,
        "sign": torch.sign,
        "abs": torch.abs,
        "floor": torch.floor,
        "limits": lambda x: x.clamp(3, 100),
        "negative limit": lambda x: x.clamp(-5, 10),
        "tensor": lambda x: x.clamp(min=x.flip(1)),
        "maximum": lambda x: torch.maximum(x, x.flip(1)),
    },
    "comparisons": {
        "eq": lambda x: x == x.flip(1),
        "ne": lambda x: x != x.flip(1),
        "lt": lambda x: x < x.flip(1),
        "beyond": lambda x: x == 256,
        "below 300": lambda x: x < 300,
        "negative": lambda x: x == -1,
        "real": lambda x: x > 2.5,
    },
    "choices": {
        "where": lambda x: torch.where(x > 3, x, 0),
        "where negative": lambda x: torch.where(x > 3, x, -1),
        "where tensor": lambda x: torch.where(x > 3, x, x.flip(1)),
        "fill": lambda x: x.masked_fill(x > 3, -1),
        "gather": lambda x: x.gather(1, (x % 6).long()),
        "pad": lambda x: F.pad(x, (1, 1), value=7),
        "sort": lambda x: x.sort(1)[0],
        "stack": lambda x: torch.stack([x, x.flip(1)], 1),
    },
    "reductions": {
        "max": lambda x: x.max(1),
        "min": lambda x: x.min(1),
        "argmin": lambda x: x.argmin(1),
        "amax": lambda x: x.amax(1),
        "of bytes": lambda x: x.sum(1, dtype=torch.uint8),
        "sum": lambda x: x.sum(1),
        "cumprod": lambda x: x.cumprod(1),
        "any": lambda x: x.any(1),
        "scattered": lambda x: x.scatter_add(1, x.long() % 3, x),
        "matrix": lambda x: x @ WEIGHT.abs().to(torch.uint8),
    },
}

OF_DTYPE = {"int64": INTEGERS, "bool": TRUTHS, "uint8": BYTES}
GROUPS = [(dtype, group) for dtype, groups in OF_DTYPE.items() for group in groups]

REFUSED: dict[str, tuple[str, Callable[[Tensor], Any], str]] = {
    "bits of floats": ("float32", lambda x: x.view(torch.int32).long(), "the bits of float32 read as torch.int32"),
    "bytes of floats": ("float32", lambda x: x.view(torch.uint8), "the bits of float32 read as torch.uint8"),
    "odd power": ("int64", lambda x: 3**x, "a power with a computed exponent"),
    "computed power": ("int64", lambda x: x ** x.abs(), "a power with a computed exponent"),
    "threshold": ("int64", lambda x: F.threshold(x, 1, 20), "threshold of int64 with a result of int64"),
    "convolution": ("int64", lambda x: F.conv1d(x[:, None], WEIGHT[:1, None]), "conv of int64 with a result of int64"),
    "large product": ("int64", lambda x: x @ WEIGHT.repeat(1, 100_000), "a matrix product of integers"),
    "least integer": ("int64", lambda x: F.pad(x, (1, 1), value=-(2**63)), "programs hold integers below"),
    "bits": ("int64", lambda x: x & x.flip(1), "bitwise arithmetic of two integers"),
    "small divisor": ("float32", lambda x: x / 1e-40, "a division by 1e-40"),
    "small divisors": ("float32", lambda x: x / torch.tensor([1e-40, 1, 1, 0, 1, 1]), "a division by 1e-40"),
    "infinity": ("float32", lambda x: x / float("nan"), "the number nan"),
}


class Called(nn.Module):
    """What some functions give of one input."""

    def __init__(self, *functions: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Any:
        return [function(x) for function in self.functions]


def numbers(dtype: str) -> Tensor:
    """Return rows of numbers; the first has the ends of bytes."""
    torch.manual_seed(0)
    if dtype == "bool":
        return torch.rand(8, 6) > 0.5
    if dtype == "float32":
        return torch.randn(8, 6)
    x = torch.randint(-9, 10, (8, 6)) if dtype == "int64" else torch.randint(0, 256, (8, 6), dtype=torch.uint8)
    x[0] = torch.tensor([0, 1, 2, 127, 128, 255]).to(x.dtype)
    return x


def flat(found: Any) -> list[Tensor]:
    """Return tensors of lists and pairs in order."""
    return [found] if isinstance(found, Tensor) else [tensor for part in found for tensor in flat(part)]


@pytest.mark.parametrize(("dtype", "group"), GROUPS)
def test_results_are_those_of_torch(dtype: str, group: str) -> None:
    functions, x = OF_DTYPE[dtype][group], numbers(dtype)
    program = intact8.quantize(Called(*functions.values()).eval(), x)
    for engine in ENGINES:
        for rows in (x, x[:3]):
            found = program.run(rows, engine=engine)
            for (name, function), given in zip(functions.items(), found, strict=True):
                for ours, theirs in zip(flat(given), flat(function(rows)), strict=True):
                    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), (engine, name)


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_means_and_softmax_in_float32(dtype: str) -> None:
    x, real = numbers(dtype), torch.float32
    model = Called(
        lambda x: x.mean(1, dtype=real), lambda x: x.softmax(1, dtype=real), lambda x: x.log_softmax(1, dtype=real)
    )
    program = intact8.quantize(model.eval(), x)
    for engine in ENGINES:
        for ours, theirs in zip(program.run(x, engine=engine), model(x), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_and_what_to_do(name: str) -> None:
    dtype, function, message = REFUSED[name]
    with pytest.raises(CaptureError, match=message) as refused:
        capture(Called(function).eval(), numbers(dtype))
    assert "Reason:" in str(refused.value) and "Remedy:" in str(refused.value)


def test_dimensions_that_change() -> None:
    x = torch.randint(-9, 10, (4, 7, 6))
    model = Called(lambda x: x @ WEIGHT, lambda x: x.transpose(1, 2) @ x, lambda x: F.pad(x, (0, 0, 1, 2), value=-100))
    program = intact8.quantize(model.eval(), x, dynamic_shapes={"x": {1: "length"}})
    for rows in (x, x[:2, :5]):
        assert all(map(torch.equal, program.run(rows), model(rows)))


@pytest.mark.parametrize("zero", [0.0, -0.0, torch.zeros(()), torch.zeros(6)])
def test_a_division_by_zero_is_infinite(zero: Any) -> None:
    x = numbers("float32")
    model = Called(lambda x: x / zero > 1, lambda x: (x / zero).isinf()).eval()
    program = intact8.quantize(model, x)
    for engine in ENGINES:
        assert all(map(torch.equal, program.run(x, engine=engine), model(x)))


def test_infinite_results_have_no_scale() -> None:
    with pytest.raises(CalibrationError, match="a division by zero"):
        intact8.quantize(nn.Sequential(nn.Linear(6, 6), Called(lambda y: y / 0.0)).eval(), numbers("float32"))


def test_quotients_of_sizes() -> None:
    x = numbers("float32")
    program = intact8.quantize(Called(lambda x: (x > 0) + x.numel() / x.shape[0]).eval(), x)
    assert torch.equal(program.run(x[:3])[0], (x[:3] > 0) + 6.0)
    with pytest.raises(CaptureError, match=r"a number that is computed from sizes.*leave length out of dynamic_shapes"):
        capture(Called(lambda x: x ** (x.shape[1] / 2)), x.abs(), dynamic_shapes={"x": {1: "length"}})


class ThroughNumpy(nn.Module):
    """A layer whose results numpy doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.layer(x).detach().numpy() * 2)


def test_numpy_in_a_model() -> None:
    model, x = ThroughNumpy().eval(), numbers("float32")
    program = intact8.quantize(model, x)
    assert float((program.run(x) - model(x)).abs().max()) < 0.1


class Hash(nn.Module):
    """Rows of a table by a hash of two coordinates, whose products exceed 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(61, 4), nn.Linear(2, 4)

    def forward(self, x: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        i = cells.int()
        h = i[:, 0] * 73856093 + i[:, 1] * 19349663
        again = (h.long() * 2654435761).int() - i[:, 0]
        h.mul_(torch.tensor([83492791], dtype=torch.int32))
        return self.layer(x) + self.table((h % 61).long()), torch.stack([h, again], 1).long()


def test_integers_of_32_bits_wrap_around_where_torchs_do() -> None:
    model = Hash().eval()
    data = [(torch.randn(64, 2), torch.randint(1_000_000, (64, 2))) for _ in range(4)]
    program = intact8.quantize(model, data)
    for x, cells in [(torch.randn(5, 2), torch.randint(1_000_000, (5, 2))), data[1]]:
        out, hashed = model(x, cells)
        for engine in ENGINES:
            found, same = program.run(x, cells, engine=engine)
            assert torch.equal(same, hashed)
            assert torch.allclose(found, out, atol=0.2)
