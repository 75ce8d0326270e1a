"""A pipeline of Hugging Face's transformers that runs a program in place of a model.

    python examples/transformers_pipeline.py [--out FILE]

``ProgramForSequenceClassification`` is what a pipeline takes for a model: a configuration and a forward. Here a small
classifier of random weights is quantized, so that nothing is downloaded; ``run`` takes any classifier.
Needs `intact8[transformers]`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import intact8
from intact8.torch import Module

TEXTS = (
    "a gripping film about a small town",
    "the plot is thin and the jokes are old",
    "warm and funny from the first scene to the last",
    "two hours that feel like four",
)


class Result(NamedTuple):
    """What :func:`run` found: labels with scores of the model and of the program, text by text."""

    float32: list[dict[str, Any]]
    int8: list[dict[str, Any]]


def program_model(config: Any, program: intact8.Program) -> Any:
    """Return a classifier of transformers that runs the program.

    Args:
        config: the model's configuration; ``id2label`` names the classes.
        program: takes ``input_ids`` and ``attention_mask``, returns ``logits``.
    """
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import SequenceClassifierOutput

    class ProgramForSequenceClassification(PreTrainedModel):
        """The program as a model of transformers, without weights."""

        config_class = type(config)
        _supports_sdpa = True  # attention is inside of the program

        def __init__(self) -> None:
            super().__init__(config)
            self.classifier = Module(program)
            self.place = torch.nn.Parameter(torch.zeros(()), requires_grad=False)  # a pipeline asks where the model is

        def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Any) -> SequenceClassifierOutput:
            outputs = self.classifier(input_ids=input_ids, attention_mask=attention_mask)
            return SequenceClassifierOutput(logits=outputs["logits"])

    # A pipeline warns of models whose class is not on its list.
    ProgramForSequenceClassification.__name__ = "BertForSequenceClassification"
    return ProgramForSequenceClassification().eval()


def run(model: Any, tokenizer: Any, path: Path, texts: tuple[str, ...] = TEXTS) -> Result:
    """Quantize a classifier, save it, and classify texts with a pipeline of the model and one of the file."""
    from transformers import pipeline

    batches = [dict(tokenizer(list(texts), padding=True, return_tensors="pt"))]
    intact8.quantize(model, batches, "transformer").save(path)
    served = program_model(model.config, intact8.Program.load(path))
    results = [
        pipeline("text-classification", model=each, tokenizer=tokenizer)(list(texts), batch_size=len(texts))
        for each in (model, served)
    ]
    return Result(*results)


def small_classifier() -> tuple[Any, Any]:
    """Return a classifier of random weights and a tokenizer of the texts' words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = sorted({word for text in TEXTS for word in text.split()})
    plain = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", model_input_names=["input_ids", "attention_mask"]
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=len(words) + 2,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
        initializer_range=0.3,
    )
    return transformers.BertForSequenceClassification(config).eval(), tokenizer


def main() -> None:
    """Run the example on a small classifier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("classifier.safetensors"))
    result = run(*small_classifier(), parser.parse_args().out)
    for text, before, after in zip(TEXTS, *result, strict=True):
        print(f"{before['label']} {before['score']:.3f} → {after['label']} {after['score']:.3f}  {text}")


if __name__ == "__main__":
    main()
