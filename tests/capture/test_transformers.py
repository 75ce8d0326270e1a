"""Encoders of transformers, unmodified, on tokenized batches: any length, eager and sdpa attention."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

import intact8
from intact8.engines import available_engines

from .encoder import call

pytestmark = pytest.mark.slow
ENGINES = [name for name in ("onednn", "onnxruntime", "openvino") if name in available_engines()]
SMALL = {"vocab_size": 60, "max_position_embeddings": 40}


def network(transformers: Any, name: str, attention: str) -> Any:
    if name == "distilbert":
        config = transformers.DistilBertConfig(
            n_layers=2, dim=16, n_heads=4, hidden_dim=32, attn_implementation=attention, **SMALL
        )
        return transformers.DistilBertModel(config).eval()
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=4, intermediate_size=32,
        attn_implementation=attention, **SMALL,
    )  # fmt: skip
    kind = transformers.BertForSequenceClassification if name == "classifier" else transformers.BertModel
    return kind(config).eval()


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        pytest.param(name, attention, marks=() if name == "classifier" and attention == "eager" else pytest.mark.long)
        for name in ("bert", "classifier", "distilbert")
        for attention in ("eager", "sdpa")
    ],
)
def test_tokenized_batches_make_a_program_of_any_length(torchvision: ModuleType, name: str, attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = network(transformers, name, attention)
    data = [transformers.BatchEncoding({**call(8, n), "labels": torch.zeros(8, dtype=torch.int64)}) for n in (7, 9, 12)]
    program = intact8.quantize(model, data)
    assert program.dimensions == {"sequence": (1, 40)}
    for batch, length in ((1, 1), (3, 5), (2, 40)):
        given = call(batch, length)
        with torch.no_grad():
            wanted = model(**given)
        got = program.run(**transformers.BatchEncoding(given))
        for key, value in got.items():
            if value is None:
                continue
            assert value.shape == wanted[key].shape
            assert float((value - wanted[key]).abs().mean()) < 0.2
        assert intact8.verify(program, given, engines=ENGINES).exact
