"""Encoders of Hugging Face's transformers as they are, random weights, with a tokenizer's dicts as data."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
from tests.conftest import import_torchvision

torch = pytest.importorskip("torch")
if importlib.util.find_spec("transformers") is None:
    pytest.skip("the extra transformers is not installed", allow_module_level=True)
if importlib.util.find_spec("torchvision") is not None:
    import_torchvision()  # transformers imports it, with its compiled operators or without

import transformers  # noqa: E402

import intact8  # noqa: E402

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 40}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "vocab_size": 40}
IMAGE = {**{k: v for k, v in TEXT.items() if k != "vocab_size"}, "image_size": 16, "patch_size": 8}
WORDS = ["a", "good", "bad", "film", "very", "not", "this", "is", "the", "plot"]

ENCODERS: dict[str, Any] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**TEXT), add_pooling_layer=False),
    "distilbert": lambda: transformers.DistilBertModel(transformers.DistilBertConfig(**DISTIL)),
}
IMAGES: dict[str, Any] = {
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**IMAGE)),
    "deit": lambda: transformers.DeiTForImageClassification(transformers.DeiTConfig(**IMAGE)),
}
RECIPES = {"static": intact8.recipes.transformer, "dynamic": intact8.recipes.dynamic}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A real tokenizer whose vocabulary is a handful of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")


def sentences(count: int, seed: int) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (count,), generator=generator)
    return [" ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (int(n),), generator=generator)) for n in lengths]


def close(y: Any, z: Any) -> bool:
    """Whether two results agree as int8 lets them."""
    y, z = torch.as_tensor(y), torch.as_tensor(z)
    return bool((y - z).norm() < 0.1 * z.norm())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_takes_what_its_tokenizer_gives(name: str, recipe: str, tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = ENCODERS[name]().eval()
    wanted = ("input_ids", "attention_mask", "token_type_ids") if name == "bert" else ("input_ids", "attention_mask")
    tokenizer.model_input_names = list(wanted)

    def encoded(count: int, seed: int) -> Any:
        return tokenizer(sentences(count, seed), padding=True, return_tensors="pt")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = intact8.quantize(model, [encoded(8, seed) for seed in range(6)], RECIPES[recipe]())
    other = encoded(5, 99)
    with torch.no_grad():
        hidden = model(**other).last_hidden_state
    kept = other["attention_mask"].bool()
    result = program.run(**other)
    got = result["last_hidden_state"] if isinstance(result, dict) else result.last_hidden_state
    assert close(torch.as_tensor(got)[kept], hidden[kept])
    report = intact8.verify(program, dict(other), engines=("reference", "onednn"))
    assert report.mismatches == 0 and report.elements > 0


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_classifier(name: str) -> None:
    torch.manual_seed(0)
    model, x = IMAGES[name]().eval(), torch.randn(48, 3, 16, 16)
    for parameter in (p for key, p in model.named_parameters() if key.endswith("_token")):
        torch.nn.init.normal_(parameter)  # untrained they are zeros beside the patches they share a scale with
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = [{"pixel_values": part} for part in x.split(16)]
        program = intact8.quantize(model, batches, intact8.recipes.transformer())
    with torch.no_grad():
        logits = model(x[:8]).logits
    result = program.run(pixel_values=x[:8])
    assert close(result["logits"] if isinstance(result, dict) else result.logits, logits)
    assert intact8.verify(program, {"pixel_values": x[:8]}, engines=("reference", "onednn")).mismatches == 0
