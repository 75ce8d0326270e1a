"""Passes between float32 and uint8: torch's operations equal a line of numpy, in any layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intact8.engines import engine_status, get_engine
from intact8.engines.onednn.quantize_passes import make_dequantize, make_lookup, make_quantize, make_quantize_nhwc
from intact8.opset.op import Op, Tensor
from intact8.program.check import check
from intact8.program.program import Program

CLAMPS = [(0, 0, 255), (255, 0, 255), (128, 128, 255), (77, 3, 250), (200, 10, 90), (13, 40, 40)]
"""Zero point, lowest and highest result: even, odd, outside of both ends."""

DIVISORS = [1.0, 0.5, float(np.float32(0.1)), 3.0, float(np.float32(1e-18)), 2.0**-60, float(np.float32(7e30))]


# Views of four dimensions, made of a function that draws contiguous tensors.
LAYOUTS = {
    "contiguous": lambda draw: draw(2, 3, 5, 7),
    "channels last": lambda draw: draw(2, 3, 5, 7).to(memory_format=torch.channels_last),
    "one channel": lambda draw: draw(2, 5, 7, 1).movedim(-1, 1),
    "heads": lambda draw: draw(2, 6, 3, 8).transpose(1, 2),
    "heads across": lambda draw: draw(2, 6, 3, 8).permute(0, 2, 3, 1),
    "a third of merged columns": lambda draw: draw(2, 3, 5, 24)[..., 8:16],
    "heads of a third": lambda draw: draw(2, 6, 3, 3, 8)[:, :, 1].transpose(1, 2),
    "rows of each image": lambda draw: draw(2, 3, 9, 7)[:, :, 2:6],
    "channels of images": lambda draw: draw(2, 8, 5, 7)[:, 2:5],
    "channels of channels last": lambda draw: draw(2, 5, 7, 8)[..., 2:5].movedim(-1, 1),
    "gaps in two places": lambda draw: draw(3, 4, 6, 9)[:, 1:3, :, 2:7],
    "every other row": lambda draw: draw(3, 4, 6, 9)[:, :, ::2],
    "every other element": lambda draw: draw(3, 4, 6, 10)[..., ::2],
    "every other sample": lambda draw: draw(6, 4, 6, 3)[1::2],
    "expanded": lambda draw: draw(3, 1, 6, 9).expand(3, 4, 6, 9),
    "expanded in the last": lambda draw: draw(3, 2, 6, 1).expand(3, 2, 6, 9),
    "overlapping": lambda draw: draw(1, 1, 1, 40).as_strided((2, 3, 4, 5), (10, 5, 2, 1)),
    "one sample": lambda draw: draw(4, 3, 5, 7)[2:3],
    "one column": lambda draw: draw(4, 3, 5, 7)[..., 3:4],
    "one element": lambda draw: draw(4, 3, 5, 7)[1:2, 1:2, 1:2, 1:2],
    "an odd address": lambda draw: draw(1, 1, 1, 211).view(-1)[1:].view(2, 3, 5, 7),
    "large": lambda draw: draw(3, 70, 13, 17).to(memory_format=torch.channels_last),
}
DENSE = ("contiguous", "channels last", "heads", "heads across", "one sample", "large")


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


def floats(*shape):
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) * 60)


def codes(*shape):
    return torch.from_numpy(np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8))


def finished(x, z, lo, hi, divisor=1.0):
    """clamp(R(x / divisor) + z, lo, hi) of x within its own precision."""
    with np.errstate(over="ignore", divide="ignore"):
        steps = np.rint(x / x.dtype.type(divisor))
    return (np.clip(steps, lo - z, hi - z) + z).astype(np.uint8)


def hard_numbers(divisor):
    """Ties and their neighbours in steps of the divisor, numbers about the ends, and of every other size."""
    rng = np.random.default_rng(0)
    ties = (np.arange(-300, 301) + 0.5).astype(np.float32) * np.float32(divisor)
    with np.errstate(over="ignore"):
        wide = rng.standard_normal(4000).astype(np.float32) * (10.0 ** rng.uniform(-45, 39, 4000)).astype(np.float32)
    near = (rng.uniform(-300, 300, 9000) * divisor).astype(np.float32)
    edges = np.float32([0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 2**23 + 1, -(2.0**31), 2**32, 1e-45])
    ends = [np.nextafter(ties, side * np.float32(np.inf)) for side in (-1, 1)]
    return np.concatenate([ties, *ends, wide, near, edges])


@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize(("z", "lo", "hi"), CLAMPS)
def test_floats_become_integers(z, lo, hi, divisor):
    x = hard_numbers(divisor)
    y = make_quantize(z, lo, hi, divisor)(torch.from_numpy(x.copy()))
    assert y.dtype == torch.uint8
    np.testing.assert_array_equal(y.numpy(), finished(x, z, lo, hi, divisor))


@pytest.mark.parametrize("z", [4, 5])
def test_ties_go_to_even_steps_whatever_the_zero_point(z):
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5])
    assert (make_quantize(z, 0, 255)(x).int() - z).tolist() == [-2, -2, 0, 0, 2, 2, 4]


@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_float64_keeps_its_precision(divisor):
    x = np.concatenate([hard_numbers(divisor).astype(np.float64), (0.5 + 2.0**-40 * np.arange(-9, 10)) * divisor])
    y = make_quantize(77, 3, 250, divisor)(torch.from_numpy(x.copy()))
    np.testing.assert_array_equal(y.numpy(), finished(x, 77, 3, 250, divisor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("divisor", [1.0, 0.3])
def test_integers_of_any_layout(layout, divisor, dtype):
    if divisor == 1 and layout.startswith("expanded"):
        pytest.skip("the argument may be overwritten, which torch refuses here")
    x, divisor = LAYOUTS[layout](lambda *shape: floats(*shape).to(dtype)), float(np.float32(divisor))
    y = make_quantize(77, 3, 250, divisor)(LAYOUTS[layout](lambda *shape: floats(*shape).to(dtype)))
    np.testing.assert_array_equal(y.numpy(), finished(x.numpy(), 77, 3, 250, divisor))
    assert layout not in DENSE or y.stride() == x.stride()


@pytest.mark.parametrize("size", [(1,), (1, 1), (9,), (16, 8), (127, 1), (128, 1), (3, 43), (4, 5, 13)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 16, 130])
def test_images_become_integers_with_channels_last(channels, size):
    x, other = floats(2, channels, *size), floats(2, channels, *size).neg()
    turn = make_quantize_nhwc(77, 3, 250, 0.25)
    for image in (x, other):
        before, y = image.clone(), turn(image)
        np.testing.assert_array_equal(y.numpy(), finished(image.numpy(), 77, 3, 250, 0.25))
        assert y.shape == image.shape and y.movedim(1, -1).is_contiguous() and torch.equal(image, before)


def test_images_of_any_layout_become_integers_with_channels_last(layout):
    x = LAYOUTS[layout](floats)
    y = make_quantize_nhwc(77, 3, 250, 0.25)(x)
    np.testing.assert_array_equal(y.numpy(), finished(LAYOUTS[layout](floats).numpy(), 77, 3, 250, 0.25))
    assert y.movedim(1, -1).is_contiguous()


@pytest.mark.skipif(engine_status()["onednn"] is not None, reason=str(engine_status()["onednn"]))
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_inputs_are_quantized_and_left_alone(scale):
    tensors = {"x": Tensor("x", "float32", (None, 4)), "y": Tensor("y", "uint8", (None, 4), scale, 77)}
    program = Program(tensors, (Op("y", "quantize", ("x",), {"lo": 3, "hi": 250}),), ("x",), ("y",))
    check(program)
    runner, row = get_engine("onednn").prepare(program), torch.tensor([[-700.0, 0.5, 2.25, 900.0]])
    for x in (row.clone(), row.expand(3, 4), row.repeat(3, 1).t().contiguous().t()):
        (y,) = runner.torch_call([x])
        np.testing.assert_array_equal(y.numpy(), finished(row.expand(x.shape).numpy(), 77, 3, 250, scale))
        assert torch.equal(x, row.expand(x.shape))


def dequantized(x, z, s):
    return (x.astype(np.float32) - np.float32(z)) * np.float32(s)


@pytest.mark.parametrize("z", [0, 1, 128, 255])
def test_integers_become_floats(layout, z):
    x, s = LAYOUTS[layout](codes), float(np.float32(0.1))
    step = make_dequantize(z, s)
    other = LAYOUTS[layout](lambda *shape: 255 - codes(*shape))
    for given in (x, other):
        before, y = given.clone(), step(given)
        assert y.dtype == torch.float32 and torch.equal(given, before)
        np.testing.assert_array_equal(y.numpy(), dequantized(given.numpy(), z, s))
    assert layout not in DENSE or y.stride() == x.stride()


@pytest.mark.parametrize("s", [2.0**-60, float(np.float32(1e-18)), 0.75, float(np.float32(7e30))])
@pytest.mark.parametrize("shape", [(1,), (63,), (256,), (2, 0), (1, 1, 1), (2, 3, 4, 5, 6)], ids=str)
def test_every_integer_and_scale(shape, s):
    x = torch.arange(int(np.prod(shape))).to(torch.uint8).view(shape)
    y = make_dequantize(7, s)(x)
    np.testing.assert_array_equal(y.numpy(), dequantized(x.numpy(), 7, s))


def test_tables_of_any_layout(layout):
    x, table = LAYOUTS[layout](codes), np.random.default_rng(1).permutation(256).astype(np.uint8)
    before, y = x.clone(), make_lookup(torch.from_numpy(table))(x)
    np.testing.assert_array_equal(y.numpy(), table[x.numpy()])
    assert torch.equal(x, before) and y.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 300, 70001])
def test_tables_of_any_size(size):
    x, table = codes(size), torch.from_numpy(np.random.default_rng(2).integers(0, 256, 256, np.uint8))
    x[: min(256, size)] = torch.arange(min(256, size)).to(torch.uint8)
    assert torch.equal(make_lookup(table)(x), table[x.long()])
