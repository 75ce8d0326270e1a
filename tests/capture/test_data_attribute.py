"""What a model takes and gives through ``x.data`` is captured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import intact8


class Merged(nn.Module):
    """Two convolutions that are one where nothing is trained: its weights are computed whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.skip, self.merged = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.first.weight.data.clone().detach()
        weight[:, :, 1:2, 1:2] += self.skip.weight.data
        self.merged.weight.data = weight.contiguous()
        self.merged.bias.data = self.first.bias.data + self.skip.bias.data  # type: ignore[union-attr]
        y: Tensor = self.merged(x.data)
        return y


def test_weights_that_are_computed_and_assigned_are_captured() -> None:
    torch.manual_seed(0)
    model, x = Merged().eval(), torch.randn(64, 3, 8, 8)
    with torch.no_grad():
        wanted = model.first(x) + model.skip(x[:, :, 1:-1, 1:-1])
        weight = model.merged.weight.clone()
    program = intact8.quantize(model, x)
    assert (torch.as_tensor(program.run(x)) - wanted).abs().max() < 0.03 * wanted.abs().max()
    assert not torch.equal(model.merged.weight, weight), "the float network assigns as well, and keeps real tensors"
    assert type(model.merged.weight.data) is Tensor
    assert intact8.verify(program, x[:8]).mismatches == 0


def test_several_layers_read_what_was_assigned_last() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            first = self.fc(x)
            weight = self.fc.weight.data
            self.fc.weight.data = weight * 2
            y: Tensor = first + self.fc(x)
            self.fc.weight.data = weight
            return y

    torch.manual_seed(0)
    model, x = Twice().eval(), torch.randn(64, 4)
    wanted = 3 * x @ model.fc.weight.T
    program = intact8.quantize(model, x)
    assert (torch.as_tensor(program.run(x)) - wanted).abs().max() < 0.03 * wanted.abs().max()
