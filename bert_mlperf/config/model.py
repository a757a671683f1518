"""Shape of a BERT: the named models and inline ones of a system file."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ModelConfig(BaseModel):
    """BERT for pre-training (encoder, tied masked-LM head, next-sentence head). All sizes are counts of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str = Field(min_length=1, description="Name of the model, as it stands in the MLPerf log.")
    vocab_size: int = Field(ge=6, description="Number of WordPiece tokens, special ones included.")
    hidden_size: int = Field(ge=1, description="Width of a token's hidden state; a multiple of num_attention_heads.")
    num_hidden_layers: int = Field(ge=1, description="Number of encoder layers.")
    num_attention_heads: int = Field(ge=1, description="Number of attention heads of a layer.")
    intermediate_size: int = Field(ge=1, description="Width of the feed-forward layer.")
    max_position_embeddings: int = Field(ge=4, description="Longest sample, in tokens.")
    type_vocab_size: int = Field(default=2, ge=2, description="Number of segment ids.")
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1, description="Dropout probability of hidden states.")
    attention_probs_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout probability of attention probabilities."
    )
    initializer_range: float = Field(
        default=0.02, gt=0, description="Standard deviation of the truncated normal that draws the first weights."
    )

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        return self

    @model_validator(mode="after")
    def _named_models_are_exact(self) -> Self:
        named = NAMED_MODELS.get(self.name)
        if named is not None and self != named:
            different = [key for key in type(self).model_fields if getattr(self, key) != getattr(named, key)]
            raise ValueError(
                f"the name {self.name!r} is taken by a model whose {different[0]} is {getattr(named, different[0])}, "
                f"got {getattr(self, different[0])} (give this model another name)"
            )
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """Number of trainable numbers in the variables of the reference (vocabulary not padded)."""
        hidden, inner = self.hidden_size, self.intermediate_size
        dense = hidden * hidden + hidden
        embeddings = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size) * hidden + 2 * hidden
        layer = 4 * dense + 2 * hidden * inner + inner + hidden + 4 * hidden
        heads = dense + (dense + 2 * hidden + self.vocab_size) + (2 * hidden + 2)
        return embeddings + self.num_hidden_layers * layer + heads


NAMED_MODELS: dict[str, ModelConfig] = {}
NAMED_MODELS["bert-large"] = ModelConfig(
    name="bert-large",
    vocab_size=30522,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    max_position_embeddings=512,
)
NAMED_MODELS["bert-base"] = ModelConfig(
    name="bert-base",
    vocab_size=30522,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
)
