"""A program as the encoder of a ``SentenceTransformer``; pooling and the rest are those of sentence-transformers.

    python examples/sentence_transformer.py [--out FILE]

Needs sentence-transformers. Here an encoder of random weights is quantized, so that nothing is downloaded; with
``SentenceTransformer("all-MiniLM-L6-v2")`` the encoder is ``model[0].auto_model``, its tokenizer ``model.tokenizer``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import intact8
from intact8.torch import Module

TEXTS = (
    "a gripping film about a small town",
    "the plot is thin and the jokes are old",
    "int8 arithmetic gives the same answer on every machine",
    "please restart the server after the update",
)


class Result(NamedTuple):
    """Embeddings of the texts by the float network and by the program, (texts, dimensions)."""

    float32: np.ndarray
    int8: np.ndarray


class Encoder(nn.Module):
    """The first module of a ``SentenceTransformer``: texts become tokens, tokens embeddings.

    Args:
        network: takes ``input_ids`` and ``attention_mask``, returns ``last_hidden_state``.
        tokenizer: of transformers.
    """

    def __init__(self, network: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.network, self.tokenizer = network, tokenizer

    def tokenize(self, texts: list[str], **options: Any) -> dict[str, Tensor]:
        """Return the tokens of a batch of texts, padded."""
        return dict(self.tokenizer(list(texts), padding=True, return_tensors="pt"))

    preprocess = tokenize

    def forward(self, features: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
        """Add ``token_embeddings`` to the features."""
        inputs = {name: features[name] for name in ("input_ids", "attention_mask")}
        return {**features, "token_embeddings": self.network(**inputs)["last_hidden_state"]}


def run(encoder: Any, tokenizer: Any, path: Path, texts: tuple[str, ...] = TEXTS) -> Result:
    """Quantize an encoder, save it, and embed texts with both."""
    from sentence_transformers import SentenceTransformer, models

    batches = [Encoder(encoder, tokenizer).tokenize(list(texts))]
    intact8.quantize(encoder, batches, "transformer").save(path)
    served = Module(intact8.Program.load(path))
    results = []
    for network in (encoder, served):
        pooling = models.Pooling(encoder.config.hidden_size)
        model = SentenceTransformer(modules=[Encoder(network, tokenizer), pooling, models.Normalize()], device="cpu")
        results.append(model.encode(list(texts)))
    return Result(*results)


def small_encoder() -> tuple[Any, Any]:
    """Return an encoder of random weights and a tokenizer of the texts' words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({word for text in TEXTS for word in text.split()})
    plain = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", model_input_names=["input_ids", "attention_mask"]
    )
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.BertConfig(**size, vocab_size=len(words) + 2)
    return transformers.BertModel(config, add_pooling_layer=False).eval(), tokenizer


def main() -> None:
    """Run the example on a small encoder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("encoder.safetensors"))
    result = run(*small_encoder(), parser.parse_args().out)
    for text, cosine in zip(TEXTS, (result.float32 * result.int8).sum(axis=1), strict=True):
        print(f"{cosine:.4f}  {text}")


if __name__ == "__main__":
    main()
