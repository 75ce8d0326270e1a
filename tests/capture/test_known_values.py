"""Values that are known while a model is exported, and checks of values that a program leaves out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.capture.checks import Asked, Checked, catches, checks, decides
from torch import Tensor, nn

import intact8
from intact8.capture import capture
from intact8.capture.known_values import known_numbers
from intact8.errors import CaptureError


class Padded(nn.Module):
    """A convolution that pads to whole frames, as codecs of audio do: strides and kernel sizes are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 5, 3)
        self.stride = nn.Buffer(torch.tensor(3), persistent=False)
        self.kernel_size = nn.Buffer(torch.tensor(5), persistent=False)
        self.total = nn.Buffer(self.kernel_size - self.stride, persistent=False)
        self.kept = nn.Buffer(torch.tensor(7))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        frames = torch.ceil((length - self.kernel_size + self.total) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.kernel_size - self.total - length
        left = self.total // 2
        y: Tensor = self.conv(F.pad(x, (self.total - left, left + extra)))
        y = y[..., : -left if left > 1 else None] * self.stride + self.stride * y
        return y[:, :, self.total - 2 :] + torch.where(y > -100, self.stride, self.kernel_size)


def test_a_codec_pads_to_whole_frames() -> None:
    torch.manual_seed(0)
    model, x = Padded().eval(), torch.randn(64, 1, 40)
    names = [name for name, _ in model.named_buffers()]
    wanted = model(x)
    program = intact8.quantize(model, x)
    found = torch.as_tensor(program.run(x))
    assert found.shape == wanted.shape and wanted.shape[-1] == math.ceil(40 / 3)
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()
    assert intact8.verify(program, x[:8]).mismatches == 0
    assert [name for name, _ in model.named_buffers()] == names, "buffers are back where they were"
    assert "kept" in model.state_dict() and "stride" not in model.state_dict()


def test_buffers_come_back_after_an_error() -> None:
    model = Padded()
    with pytest.raises(ZeroDivisionError), known_numbers(model):
        assert not {"stride", "total"} & dict(model.named_buffers()).keys() and int(model.stride) == 3
        raise ZeroDivisionError
    assert {"stride", "total"} <= dict(model.named_buffers()).keys() and "stride" not in vars(model)


def test_what_the_code_writes_to_is_no_known_number() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.calls = nn.Linear(4, 4), nn.Buffer(torch.tensor(0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.fc(x) if self.calls < 3 else self.fc(self.fc(x))
            return y

    model = Counts().eval()
    with pytest.raises(intact8.CaptureError, match="depends on the values"):
        intact8.prepare(model, torch.randn(2, 4))
    with known_numbers(model) as numbers:
        model.calls += 1
    assert numbers.changed
    with known_numbers(model) as numbers:
        model.calls = model.calls + 1
    assert numbers.changed and dict(model.named_buffers()).keys() == {"calls"}


def test_what_numbers_do_not_do_for_is_exported_without_them() -> None:
    class Table(nn.Module):
        """The stack of numbers is a tensor, which the code that is exported multiplies by an activation."""

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)
            self.a, self.b = (nn.Buffer(torch.tensor(n), persistent=False) for n in (2, 3))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(x) * torch.stack([self.a, self.b])
            return y

    torch.manual_seed(0)
    model, x = Table().eval(), torch.randn(64, 4)
    program = intact8.quantize(model, x)
    assert (torch.as_tensor(program.run(x)) - model(x)).abs().max() < 0.05 * model(x).abs().max()


def test_axes_that_a_model_computes_from_numbers_are_known() -> None:
    """As the norms of Asteroid do, whose functions TorchScript can read, too."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            dims = torch.arange(1, len(y.shape)).tolist()
            scale = sum(int(n) for n in torch.tensor([1, 2, 3]))
            return (
                (y - y.mean(dims, keepdim=True)) / torch.sqrt(y.var(dims, keepdim=True, unbiased=False) + 1e-8) * scale
            )

    torch.manual_seed(0)
    model, x = Norm().eval(), torch.randn(64, 4, 20)
    program = intact8.quantize(model, x)
    found, wanted = torch.as_tensor(program.run(x[:5])), model(x[:5]).detach()
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()
    assert intact8.verify(program, x[:8]).mismatches == 0


def test_checks_that_end_in_an_error_are_left_out() -> None:
    torch.manual_seed(0)
    model, x = Checked().eval(), torch.randn(64, 4)
    program = intact8.quantize(model, x)
    assert (torch.as_tensor(program.run(x)) - model(x)).abs().max() < 0.05
    with pytest.raises(CaptureError, match=r"checks.py:\d+: control flow"):
        intact8.quantize(Checked(decides=True).eval(), x)


def test_the_side_of_a_branch_that_raises_is_known() -> None:
    asked = Asked()
    checks(asked)
    assert asked.found == [True, False, True, False, True]
    for function in (decides, catches):
        unknown = Asked()
        function(unknown)
        assert set(unknown.found) == {None}, function


def test_errors_of_modules_that_a_model_catches() -> None:
    """As the x-vectors of SpeechBrain do, which try an argument first that only some layers take."""

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                try:
                    x = layer(x, lengths=None)
                except TypeError:
                    x = layer(x)
            return x

    torch.manual_seed(0)
    model, x = Tries().eval(), torch.randn(64, 4)
    program = intact8.quantize(model, x)
    assert (torch.as_tensor(program.run(x)) - model(x)).abs().max() < 0.05
    assert [op.module for op in program.ops if "weight" in op.arrays] == ["layers.0", "layers.2"]


@pytest.mark.parametrize("decoder", [False, True])
def test_masks_that_a_module_holds_are_applied_without_looking_into_them(decoder: bool) -> None:
    """nn.TransformerEncoder compares a mask with the causal one, which decides about kernels only."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
            whole = nn.TransformerDecoder if decoder else nn.TransformerEncoder
            self.layers: Any = whole(kind(16, 2, 24, batch_first=True), 2)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layers(x, x, tgt_mask=self.mask) if decoder else self.layers(x, mask=self.mask)
            return y

    model, x = Causal().eval(), torch.randn(8, 6, 16)
    captured = capture(model, x[:2])
    assert captured.graph.nodes[captured.graph.inputs[0]].shape[0] is None
    program = intact8.quantize(model, x)
    with torch.no_grad():
        assert float((program.run(x) - model(x)).square().mean()) < 0.01
    later = x.clone()
    later[:, 3:] += 1
    if not decoder:  # whose memory is seen whole
        assert torch.equal(program.run(x)[:, :3], program.run(later)[:, :3])
