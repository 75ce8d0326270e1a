"""The smallest case of the problem: a ramp of 0 … 255 through one 1×1 convolution and a ReLU.

The input is an image [1, 3, 256, 256] whose rows run 0/255, 1/255, … 255/255; the weight is k times the identity,
the bias zero. With 8 bits in and 8 bits out, every one of the 256 levels has its own output level: the convolution
only relabels them. A network that loses a level here is wrong by its own arithmetic, not for lack of bits.

    python examples/ramp.py

runs it through intact8 (the simulation, then every engine there is) and through ``torch.ao.quantization`` (its
fake-quantized model, then the int8 model made from it), for several k, and prints how many levels come out and where
the first difference is. torch.ao is deprecated; it is used here only to be compared with.

Why torch.ao loses level 128, and everything above it is one too low:

1. Its fake-quantized weight and its int8 weight come from two formulas. FusedMovingAvgObsFakeQuantize uses max/127, or
   (cause 3, here) an affine k/255 with zero point −128: either way k is hit exactly. Conversion asks the observer
   again, which says max/127.5: the integer 127 then stands for 127·2/255·k = 0.996·k.
2. The fused kernel recomputes scale and zero point on every forward, even with its observer switched off, so whoever
   hard-codes "the right" values finds them overwritten.
3. A smallest weight of exactly 0 turns the symmetric scheme into an affine one, in the fake-quantized model only.

The fix is to have one scale. In torch.ao's terms: a weight scale of k/127 in both models. intact8 computes scale and
zero point once, in one function; simulation, conversion and engines read the stored numbers.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import intact8
from intact8.calibration import CalibrationWarning
from intact8.engines import available_engines, get_runner

FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
LEVELS = 256

Integers = npt.NDArray[np.uint8]


class Net(nn.Module):
    """Conv1x1 + ReLU, weight k·I, bias 0."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.relu = nn.ReLU()
        with torch.no_grad():
            self.conv.weight.copy_(k * torch.eye(3)[:, :, None, None])
            self.conv.bias.zero_()  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] to the same shape."""
        out: torch.Tensor = self.relu(self.conv(x))
        return out


@dataclass(frozen=True)
class Result:
    """One way of running the ramp, against the 0 … 255 that must come out.

    Attributes:
        runner: what ran it.
        k: the factor of the identity.
        row: the 256 output integers of the first row.
        uniform: whether all rows and channels are this row.
        floats_agree: whether the float outputs are the integers times one step of k/255 (within float32 rounding).
    """

    runner: str
    k: float
    row: Integers
    uniform: bool
    floats_agree: bool

    @property
    def levels(self) -> int:
        """How many different integers come out."""
        return len(np.unique(self.row))

    @property
    def errors(self) -> npt.NDArray[np.int64]:
        """Integer got minus integer expected."""
        return self.row.astype(np.int64) - np.arange(LEVELS)

    @property
    def first(self) -> int | None:
        """The first input level that comes out wrong."""
        wrong = np.flatnonzero(self.errors)
        return int(wrong[0]) if len(wrong) else None


def ramp() -> torch.Tensor:
    """[1, 3, 256, 256] float32, 0 … 1 along every row."""
    return (torch.arange(LEVELS, dtype=torch.float32) / 255).expand(1, 3, LEVELS, LEVELS).contiguous()


def with_intact(k: float) -> list[Result]:
    """The ramp through the simulation and every engine of this machine."""
    image = intact8.Scheme(fixed=(1 / 255, 0))
    levels = intact8.Scheme(fixed=(k / 255, 0))
    recipe = intact8.Recipe(inputs={"*": image}, overrides={"conv": {"activation": levels}})
    x = ramp()
    sim = intact8.prepare(Net(k), x, recipe).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # one sample is enough: activations have fixed scales
        intact8.calibrate(sim, [x])
    program = intact8.convert(sim)
    with torch.no_grad():
        outputs = {"simulation": (sim.integer_tensors([x]), sim(x).numpy())}
    for name in available_engines():
        feed = {program.inputs[0]: x.numpy()}
        runner = get_runner(program, name)
        outputs[name] = (runner.tensors(feed), runner(feed)[0])
    last = [name for name in program.integer_tensors() if program.tensors[name].shape[1:] == (3, LEVELS, LEVELS)][-1]
    return [_result(f"intact8 {name}", k, tensors[last], floats) for name, (tensors, floats) in outputs.items()]


def with_torch_ao(k: float) -> list[Result]:
    """The ramp through torch.ao's fake-quantized model and the int8 model converted from it (fbgemm)."""
    from torch.ao import quantization as ao

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is deprecated, and that ranges were not reduced
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            return _torch_ao(ao, k)
        finally:
            torch.backends.quantized.engine = before


def _torch_ao(ao: Any, k: float) -> list[Result]:
    fake, observer = ao.FusedMovingAvgObsFakeQuantize, ao.MovingAverageMinMaxObserver
    model = nn.Sequential(ao.QuantStub(), Net(k), ao.DeQuantStub()).train()
    model.qconfig = ao.QConfig(
        activation=fake.with_args(
            observer=observer, quant_min=0, quant_max=255, dtype=torch.quint8, qscheme=torch.per_tensor_affine
        ),
        weight=fake.with_args(
            observer=observer, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=torch.per_tensor_symmetric
        ),
    )
    x = ramp()
    prepared = ao.prepare_qat(ao.fuse_modules_qat(model, [["1.conv", "1.relu"]]))
    prepared(x)  # one batch sets every scale
    prepared.apply(ao.disable_observer)
    prepared.eval()
    with torch.no_grad():
        faked = prepared(x)
        step = float(prepared[1].conv.activation_post_process.scale)
        converted = ao.convert(prepared)
        quantized = converted[1](converted[0](x))
    return [
        _result("torch.ao fake-quantized", k, (faked / step).round().to(torch.uint8).numpy(), faked.numpy()),
        _result("torch.ao int8", k, quantized.int_repr().numpy(), quantized.dequantize().numpy()),
    ]


def _result(runner: str, k: float, integers: npt.NDArray[Any], floats: npt.NDArray[Any]) -> Result:
    row = integers[0, 0, 0].astype(np.uint8)
    close = np.allclose(floats, integers.astype(np.float64) * k / 255, rtol=1e-5, atol=0.0)
    return Result(runner, k, row, bool((integers == row).all()), close)


def main() -> None:
    """Print one line per factor and runner."""
    print(f"{'k':>5}  {'runner':<24} {'levels':>6} {'wrong':>6} {'first':>6} {'mean':>7} {'max':>4}  around the middle")
    for k in FACTORS:
        for result in with_intact(k) + with_torch_ao(k):
            first = "-" if result.first is None else str(result.first)
            wrong, errors = int(np.count_nonzero(result.errors)), np.abs(result.errors)
            middle = " ".join(map(str, result.row[125:131]))
            print(
                f"{k:>5}  {result.runner:<24} {result.levels:>6} {wrong:>6} {first:>6} {errors.mean():>7.3f} "
                f"{errors.max():>4}  {middle}"
            )
    print(
        "\nThe causes, in torch.ao: two formulas for one scale (conversion says max/127.5, training does not: the\n"
        "integer 127 stands for 127·2/255 = 0.996 of the weight); a fused kernel that overwrites scales, observer on\n"
        "or off; a minimum of 0 that turns symmetric into affine. The fix: one scale, k/127, for both."
    )


if __name__ == "__main__":
    main()
