"""Decoders of transformers with their cache: it goes in and out as tensors, one token or several at a time."""

from __future__ import annotations

import copy
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.export import Dim

import intact8
from intact8.engines import available_engines

PLACES, LAYERS = 40, 2
ENGINES = [name for name in ("reference", "native", "onednn", "onnxruntime") if name in available_engines()]
ALL = [name for name in (*ENGINES, "openvino") if name in available_engines()]


def network(transformers: Any, name: str, attention: str) -> Any:
    torch.manual_seed(0)
    usual = {"vocab_size": 60, "attn_implementation": attention, "bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=LAYERS, n_embd=32, n_head=4, n_positions=PLACES, **usual)
        return transformers.GPT2LMHeadModel(config).eval()
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": PLACES}
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": 32, "intermediate_size": 48}
    kind = "Llama" if name == "llama" else "Qwen2"
    config = getattr(transformers, f"{kind}Config")(**usual, **heads, **sizes)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def batch(model: Any, past: int, tokens: int, size: int = 4) -> dict[str, Any]:
    """``tokens`` new ones, and the cache of ``past`` before them."""
    random = torch.Generator().manual_seed(past)
    with torch.no_grad():
        cache = model(torch.randint(0, 60, (size, past), generator=random)).past_key_values
    return {"input_ids": torch.randint(0, 60, (size, tokens), generator=random), "past_key_values": cache}


def growing(past: Any, tokens: int) -> dict[str, dict[int, Any]]:
    names = [f"past_key_values.{part}_cache.{i}" for part in ("key", "value") for i in range(LAYERS)]
    return {name: {2: past} for name in names} | ({"input_ids": {1: "tokens"}} if tokens > 1 else {})


CASES = [
    ("gpt2", "sdpa", 1, ENGINES),
    ("llama", "eager", 3, ENGINES),
    pytest.param("gpt2", "eager", 3, ALL, marks=pytest.mark.long),
    pytest.param("llama", "sdpa", 1, ALL, marks=pytest.mark.long),
    pytest.param("qwen2", "sdpa", 1, ALL, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "attention", "tokens", "engines"), CASES)
def test_a_cache_grows_token_by_token(
    torchvision: ModuleType, name: str, attention: str, tokens: int, engines: list[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    model = network(transformers, name, attention)
    shapes = growing(Dim("past", max=PLACES - 4), tokens)
    if tokens > 1:
        shapes["input_ids"] = {1: Dim("tokens", max=4)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = [batch(model, past, tokens) for past in (3, 7, 12, 20, 28, 35)]
        sim = intact8.prepare(model, data[0], dynamic_shapes=shapes)
        intact8.calibrate(sim, data)
        program = intact8.convert(sim)
    products = [op.kind for op in program.ops if op.kind.endswith(("linear", "matmul"))]
    assert {"linear", "matmul"} == set(products)
    cached = program.tensors[program.outputs[1]].shape
    assert cached == (None, 4 if name == "gpt2" else 2, "past+1" if tokens == 1 else "past+tokens", 8)
    for past, size in ((1, 1), (30, 3), (PLACES - 4, 2)):
        given = batch(model, past, tokens, size)
        with torch.no_grad():
            wanted = model(**copy.deepcopy(given))
        first = program.run(**given)
        keys = first["past_key_values"]["key_cache"]
        assert [tuple(k.shape[:3]) for k in keys] == [(size, cached[1], past + tokens)] * LAYERS
        error = (first["logits"] - wanted.logits).norm() / wanted.logits.norm()
        assert error < (0.5 if past == 1 else 0.1)
        assert intact8.verify(program, given, engines=engines).exact
    # The cache that a call returns is what the next one takes: cells that are on its grid stay what they are.
    given = batch(model, 9, tokens, 2)
    first = program.run(**given)
    second = program.run(input_ids=given["input_ids"], past_key_values=first["past_key_values"])
    for part in ("key_cache", "value_cache"):
        for before, after in zip(first["past_key_values"][part], second["past_key_values"][part], strict=True):
            assert torch.equal(after[:, :, : before.shape[2]], before)


def test_a_decoder_without_a_cache_returns_one(torchvision: ModuleType) -> None:
    transformers = pytest.importorskip("transformers")
    model = network(transformers, "gpt2", "sdpa")
    random = torch.Generator().manual_seed(0)
    data = [{"input_ids": torch.randint(0, 60, (8, n), generator=random)} for n in (4, 9, 17, 30)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = {"input_ids": {1: Dim("tokens", max=PLACES)}}
        program = intact8.quantize(model, data, dynamic_shapes=shapes)
    with torch.no_grad():
        wanted = model(**data[1])
    got = program.run(**data[1])
    for part, layers in got["past_key_values"].items():
        for i, found in enumerate(layers):
            expected = getattr(wanted.past_key_values.layers[i], part.removesuffix("_cache") + "s")
            assert (found - expected).norm() < 0.1 * expected.norm()
    assert intact8.verify(program, data[2], engines=ENGINES).exact


def encoder_decoder(transformers: Any, name: str) -> Any:
    torch.manual_seed(0)
    if name == "t5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": 4}
        config = transformers.T5Config(vocab_size=60, decoder_start_token_id=0, **sizes)
        return transformers.T5ForConditionalGeneration(config).eval()
    sides = {
        f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("attention_heads", 4), ("ffn_dim", 48))
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    layers = {"encoder_layers": 1, "decoder_layers": LAYERS, "max_source_positions": 20, "max_target_positions": PLACES}
    config = transformers.WhisperConfig(vocab_size=60, num_mel_bins=16, d_model=32, **sides, **tokens, **layers)
    return transformers.WhisperForConditionalGeneration(config).eval()


@pytest.mark.parametrize("name", ["whisper", "t5"])
def test_a_decoder_that_reads_an_encoder(torchvision: ModuleType, name: str) -> None:
    model = encoder_decoder(pytest.importorskip("transformers"), name)

    def step(past: int, size: int = 2) -> dict[str, Any]:
        random = torch.Generator().manual_seed(past)
        read = (torch.randn(size, 20, 32, generator=random),)
        before = torch.randint(3, 60, (size, past), generator=random)
        with torch.no_grad():
            cache = model(decoder_input_ids=before, encoder_outputs=read, use_cache=True).past_key_values
        token = torch.randint(3, 60, (size, 1), generator=random)
        return {"decoder_input_ids": token, "encoder_outputs": read, "past_key_values": cache}

    past = Dim("past", max=PLACES - 1)
    own = "past_key_values.self_attention_cache"
    shapes = {f"{own}.{part}_cache.{i}": {2: past} for part in ("key", "value") for i in range(LAYERS)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = [step(n) for n in (3, 7, 12, 20, 30)]
        sim = intact8.prepare(model, data[0], dynamic_shapes=shapes)
        intact8.calibrate(sim, data)
        program = intact8.convert(sim)
    for length, size in ((1, 1), (30, 3)):
        given = step(length, size)
        with torch.no_grad():
            wanted = model(**copy.deepcopy(given))
        found = program.run(**given)
        assert (found["logits"] - wanted.logits).norm() < 0.3 * wanted.logits.norm()
        keys = found["past_key_values"]["self_attention_cache"]["key_cache"]
        assert [tuple(k.shape) for k in keys] == [(size, 4, length + 1, 8)] * LAYERS
        assert intact8.verify(program, given, engines=ENGINES).exact
