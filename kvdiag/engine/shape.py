"""The sizes of a decoder, and what follows from them by arithmetic: FLOPs and bytes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that its cost depends on."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False

    @property
    def linear(self) -> int:
        """Parameters of the layers' matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def parameters(self) -> int:
        """All parameters, norms apart."""
        return self.linear + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def kv_bytes(self, positions: float, element: int) -> float:
        """Bytes of the keys and values of a sequence."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element * positions

    def prefill_flops(self, n: float) -> float:
        """Of a causal pass over n tokens, without the output layer."""
        return 2 * self.linear * n + 2 * self.layers * self.heads * self.head_dim * n * n

    def step_flops(self, tokens: float, keys: float, logits: float = 1) -> float:
        """Of tokens that each see so many keys; `logits` of them go through the output layer."""
        attention = 4 * self.layers * self.heads * self.head_dim * keys
        return tokens * (2 * self.linear + attention) + logits * 2 * self.hidden * self.vocabulary

    def activation_bytes(self, element: int) -> int:
        """Of a token while it passes a layer without gradients: the widest moment, in the MLP.

        Hidden state, residual and norm; gate, up and their product; queries, keys, values and output of attention,
        whose parts a replay merges in float32.
        """
        heads = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        numbers = 3 * self.hidden + 3 * self.intermediate + heads
        return numbers * element + 2 * self.heads * self.head_dim * 4


def shape_of(config: Any) -> Shape:
    """The sizes of a model, by its config."""
    heads = config.num_attention_heads
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
    )
