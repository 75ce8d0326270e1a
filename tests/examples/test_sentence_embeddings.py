"""The sentence encoder's example, with a small encoder of random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.examples.conftest import Load

torch = pytest.importorskip("torch", reason="quantization needs torch")


@pytest.mark.parametrize("preset", ["dynamic", "transformer"])
@pytest.mark.filterwarnings("ignore")
def test_sentence_embeddings(load_example: Load, tmp_path: Path, preset: str) -> None:
    example = load_example("sentence_embeddings")  # brings torchvision, which transformers imports
    transformers = pytest.importorskip("transformers", reason="the extra transformers is not installed")
    from tokenizers import Tokenizer, models, pre_tokenizers

    import intact8

    words = sorted({word for text in example.SENTENCES for word in text.split()})
    plain = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", model_input_names=["input_ids", "attention_mask"]
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, vocab_size=len(words) + 2
    )
    encoder = transformers.BertModel(config, add_pooling_layer=False).eval()
    recipe = getattr(intact8.recipes, preset)()
    result = example.run(encoder, tokenizer, recipe, tmp_path / "encoder.safetensors")
    assert result.differ == 0 and result.compared > 0 and result.same
    assert result.cosine > 0.99
