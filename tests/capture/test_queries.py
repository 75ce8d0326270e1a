"""Queries of a decoder: parameters that are expanded to the samples go through their layers once."""

from __future__ import annotations

import torch
from tests.engines.test_lengths import ENGINES
from torch import Tensor, nn

import intact8
from intact8.capture import capture


class Decoder(nn.Module):
    """Attention of learned queries, as in DETR and Perceiver."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(5, 16))
        self.first, self.keys = nn.Linear(16, 16), nn.Linear(8, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys = self.first(self.queries.expand(len(x), 5, 16)), self.keys(x)
        if self.attention.batch_first:
            return self.attention(queries, keys, keys)[0]
        keys = keys.transpose(0, 1)
        return self.attention(queries.transpose(0, 1), keys, keys)[0].transpose(0, 1)


def test_layers_of_queries_are_computed_once_and_on_every_engine() -> None:
    torch.manual_seed(0)
    for batch_first in (False, True):
        model, x = Decoder(batch_first).eval(), torch.randn(3, 7, 8)
        graph = capture(model, x).graph
        alone = [node for node in graph if node.op == "linear" and None not in node.shape]
        assert len(alone) == 2 and {node.shape for node in alone} == {(1, 5, 16)}
        program = intact8.quantize(model, [torch.randn(8, 7, 8) for _ in range(4)])
        assert intact8.verify(program, x, engines=ENGINES).exact
        assert float(torch.cosine_similarity(program.run(x).flatten(), model(x).flatten(), 0)) > 0.99
