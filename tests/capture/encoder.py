"""A small encoder as transformers writes them: position tables cut to the length, masks made by counting."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Encoder(nn.Module):
    """Token ids (B, S) and a mask (B, S) of ones and zeros → (B, S, 16)."""

    def __init__(self, longest: int = 24, eager: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.eager, self.causal = eager, causal
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(longest, 16)
        self.kinds = nn.Embedding(2, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow, self.end = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)
        self.register_buffer("position_ids", torch.arange(longest)[None], persistent=False)
        self.register_buffer("kind_ids", torch.zeros(1, longest, dtype=torch.int64), persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        batch, length = input_ids.shape
        kinds = self.kind_ids[:, :length].expand(batch, length)
        x = self.words(input_ids) + self.places(self.position_ids[:, :length]) + self.kinds(kinds)
        x = self.norm(x)
        q, k, v = (t.view(batch, length, 4, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if attention_mask is None:
            mask = torch.ones((batch, length), dtype=torch.bool)
        else:
            mask = attention_mask.to(torch.bool)
        rows, columns = torch.arange(length)[None, None, :, None], torch.arange(length)[None, None, None, :]
        seen = columns <= rows if self.causal else columns >= 0
        wanted = seen & mask[torch.arange(batch)[:, None, None, None], columns]
        wanted = wanted.expand(batch, -1, length, length)
        if self.eager:
            added = torch.where(wanted, torch.zeros(()), torch.finfo(torch.float32).min)
            y = torch.softmax(q @ k.transpose(2, 3) * 0.5 + added, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=wanted)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, 16))
        return self.end(x + self.narrow(F.gelu(self.wide(x))))


def call(batch: int, length: int, *, seed: int = 0) -> dict[str, Tensor]:
    """Ids and a mask in which every sample but the first ends early."""
    made = torch.Generator().manual_seed(seed + 100 * length + batch)
    ids = torch.randint(0, 50, (batch, length), generator=made)
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(1, batch):
        mask[row, max(1, length - row) :] = 0
    return {"input_ids": ids, "attention_mask": mask}


SEQUENCE = {"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}}
