"""A decoder with a cache in int8: trained on the spot, quantized, compared, and writing text one character at a time.

    python examples/text_generation.py [--steps 300] [--length 96]

Two programs share the weights: one reads a prompt and returns the cache, the other takes one character and the cache,
and returns the next character's probabilities and the cache with one entry more.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import intact8

TEXT = (
    "the rain fell on the roof and the cat slept by the fire. "
    "the wind rose in the night and the sea was dark. "
    "in the morning the sun came over the hill and the cat sat on the wall. "
) * 4
"""What the decoder learns by heart."""

LETTERS = sorted(set(TEXT))
PLACES = 96
"""Longest text: the table of positions has as many rows."""

Cache = list[tuple[Tensor, Tensor]]


class Block(nn.Module):
    """Attention that looks back, and a perceptron (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.second, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in parts)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        rows = torch.arange(length)[:, None] + (k.shape[2] - length)
        seen = torch.arange(k.shape[2])[None] <= rows
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x)))), (k, v)


class Decoder(nn.Module):
    """Letters (B, T) and the cache of those before → scores (B, T, letters), and the cache with T entries more.

    The cache has, for every block, keys and values (B, heads, past, width / heads). The scores are products with the
    embedding of the letters: the two are one parameter.
    """

    def __init__(self, width: int = 48, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(PLACES, width)
        self.blocks, self.norm = nn.ModuleList(Block(width, heads) for _ in range(blocks)), nn.LayerNorm(width)
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, letters: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        past = 0 if cache is None else cache[0][0].shape[2]
        x = self.letters(letters) + self.places(torch.arange(letters.shape[1]) + past)
        made = []
        for i, block in enumerate(self.blocks):
            x, entry = block(x, None if cache is None else cache[i])
            made.append(entry)
        return self.norm(x) @ self.letters.weight.T, made


def encode(text: str) -> Tensor:
    """The numbers of the letters, as a batch of one."""
    return torch.tensor([[LETTERS.index(letter) for letter in text]])


def train(model: Decoder, steps: int) -> float:
    """Train on random pieces of the text; return the last loss."""
    whole, optimizer = encode(TEXT)[0], torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        starts = torch.randint(0, len(whole) - PLACES - 1, (8,)).tolist()
        batch = torch.stack([whole[i : i + PLACES + 1] for i in starts])
        scores, _ = model(batch[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == steps * 3 // 4:
            optimizer.param_groups[0]["lr"] = 1e-3
    return float(loss.detach())


def quantized(model: Decoder) -> tuple[intact8.Program, intact8.Program]:
    """The program that reads a prompt, and the one that goes on letter by letter.

    Both are calibrated on pieces of the text: prompts and caches as they will come, of many lengths.
    """
    whole = encode(TEXT)[0]
    prompts = [torch.stack([whole[i : i + n] for i in range(0, 176, 22)]) for n in (3, 8, 20, 40, 60, 80, PLACES)]
    reader = intact8.quantize(model, prompts, dynamic_shapes={"letters": {1: Dim("letters", max=PLACES)}})
    with torch.no_grad():
        steps = [(prompt[:, -1:], model(prompt[:, :-1])[1]) for prompt in prompts]
    past = Dim("past", max=PLACES - 1)
    growing = {f"cache.{i}.{part}": {2: past} for i in range(len(model.blocks)) for part in (0, 1)}
    return reader, intact8.quantize(model, steps, example_inputs=steps[0], dynamic_shapes=growing)


def generate(reader: Any, writer: Any, prompt: str, length: int) -> str:
    """Continue a prompt by the most probable letters.

    Args:
        reader, writer: letters, and letters with a cache → scores and a cache; programs or the model itself.
        prompt: what to begin with.
        length: of the result.
    """
    with torch.no_grad():
        scores, cache = reader(encode(prompt))
        text = prompt + LETTERS[int(scores[0, -1].argmax())]
        while len(text) < length:
            scores, cache = writer(encode(text[-1]), cache)
            text += LETTERS[int(scores[0, -1].argmax())]
    return text


class Result(NamedTuple):
    """What :func:`run` found.

    Attributes:
        loss: of the last step of training.
        texts: what float32 writes, and int8.
        mismatches: integers of one step that differ between engines.
    """

    loss: float
    texts: tuple[str, str]
    mismatches: int


def run(steps: int, length: int, prompt: str = "the cat s") -> Result:
    """Train, quantize, compare the engines on one step, and let float32 and int8 write."""
    torch.manual_seed(0)
    model = Decoder()
    loss = train(model, steps)
    model.eval()
    reader, writer = quantized(model)
    with torch.no_grad():
        _, cache = model(encode(prompt))
    report = intact8.verify(writer, (encode("t"), cache), engines=("reference", "onednn"))
    texts = generate(model, model, prompt, length), generate(reader.run, writer.run, prompt, length)
    return Result(loss, texts, report.mismatches)


def main() -> None:
    """Read the arguments, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps of training")
    parser.add_argument("--length", type=int, default=PLACES, help=f"letters to write, at most {PLACES}")
    given = parser.parse_args()
    result = run(given.steps, min(given.length, PLACES))
    print(f"loss {result.loss:.3f}; {result.mismatches} integers differ between engines")
    print("float32:", result.texts[0])
    print("int8:   ", result.texts[1])


if __name__ == "__main__":
    main()
