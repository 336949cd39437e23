"""Tiny real models built from configs, and prompts for them."""

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kvdiag.prompts import Prompt

VOCAB = 320
_CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
}
ARCHITECTURES = tuple(_CLASSES)


def tiny_model(kind: str, kv_heads: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0):
    """A 3-layer model with 4 query heads. Wide initial weights give peaked attention, as trained ones do."""
    config_class, model_class, extra = _CLASSES[kind]
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="sdpa",
        **extra,
    )
    torch.manual_seed(seed)
    return model_class(config).to(dtype).eval()


def tiny_prompt(n_context: int = 150, n_question: int = 9, n_cue: int = 5, n_gold: int = 6, seed: int = 0):
    """Random tokens (no special ones) with two evidence spans in the context."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, VOCAB, (n,), generator=generator).tolist())

    a, b = n_context // 4, n_context // 2
    return Prompt(
        text="",
        ids=tokens(n_context + n_question + n_cue),
        n_context=n_context,
        n_question=n_question,
        gold_ids=tokens(n_gold),
        evidence=((a, a + 7), (b, b + 4)),
        evidence_status="available",
        evidence_reason=None,
    )
