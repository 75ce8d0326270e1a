"""Encoders of transformers, unmodified, on tokenized batches: any length, eager and sdpa attention."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

import intact8
from intact8.engines import available_engines

from .encoder import call

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


def test_mixtures_of_experts_take_any_number_of_samples(torchvision: ModuleType) -> None:
    """Their rows are not sorted by expert, as transformers does for speed: every expert computes all."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        num_hidden_layers=1, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=3, use_cache=False, **SMALL,
    )  # fmt: skip
    model = transformers.MixtralModel(config).eval()
    ids = torch.randint(3, 60, (8, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", intact8.errors.CaptureWarning)
        program = intact8.quantize(model, [{"input_ids": ids}])
    assert program.tensors["input_ids"].shape[0] is None and program.provenance["float_share"] == 0
    given = torch.randint(3, 60, (3, 6))
    with torch.no_grad():
        wanted = model(given).last_hidden_state
    got = program.run(given)["last_hidden_state"]
    assert float((got - wanted).abs().mean()) < 0.1 * float(wanted.abs().mean())
    assert intact8.verify(program, given, engines="native").exact


def test_a_cache_of_other_states_is_refused_with_the_way_around(torchvision: ModuleType) -> None:
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "FalconMambaConfig"):
        pytest.skip("this transformers has no FalconMamba")
    config = transformers.FalconMambaConfig(num_hidden_layers=1, hidden_size=16, state_size=4, vocab_size=60)
    model, ids = transformers.FalconMambaModel(config).eval(), torch.randint(3, 60, (4, 6))
    with pytest.raises(intact8.CaptureError, match=r"states of .*use_cache=False"):
        intact8.prepare(model, {"input_ids": ids})
    sim = intact8.prepare(model, {"input_ids": ids, "use_cache": False})
    assert sim(input_ids=ids, use_cache=False).last_hidden_state.shape == (4, 6, 16)
