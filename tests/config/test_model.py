import pytest
from pydantic import ValidationError

from bert_mlperf.config.model import NAMED_MODELS, ModelConfig

TINY = {
    "name": "tiny",
    "vocab_size": 100,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 10,
}


def test_bert_large_is_the_reference() -> None:
    large = NAMED_MODELS["bert-large"]
    assert large.model_dump() == {
        "name": "bert-large",
        "vocab_size": 30522,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
    }
    assert large.head_size == 64
    assert large.num_parameters == 336_226_108


def test_parameters_of_a_tiny_model_by_hand() -> None:
    embeddings = 100 * 8 + 10 * 8 + 2 * 8 + 16
    layer = 4 * (64 + 8) + 16 + (8 * 16 + 16) + (16 * 8 + 8) + 16
    heads = 72 + (72 + 16 + 100) + (16 + 2)
    assert ModelConfig(**TINY).num_parameters == embeddings + layer + heads


def test_a_named_model_cannot_be_changed_under_its_name() -> None:
    large = NAMED_MODELS["bert-large"].model_dump()
    assert ModelConfig.model_validate(large) == NAMED_MODELS["bert-large"]
    with pytest.raises(ValidationError, match=r"hidden_dropout_prob is 0\.1, got 0\.0"):
        ModelConfig.model_validate(large | {"hidden_dropout_prob": 0.0})


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValidationError, match="hidden_size 9 is not a multiple of num_attention_heads 2"):
        ModelConfig(**TINY | {"hidden_size": 9})


def test_a_model_is_frozen() -> None:
    with pytest.raises(ValidationError):
        ModelConfig(**TINY).hidden_size = 16  # type: ignore[misc]
