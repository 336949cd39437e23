"""Tiny real models built from configs, a tokenizer for them, and prompts of random tokens."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kvdiag.prompts import Prompt

VOCAB = 320
_CLASSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
}
ARCHITECTURES = tuple(_CLASSES)


def tiny_model(kind: str, kv_heads: int = 2, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A 3-layer model with 4 query heads. Wide initial weights give peaked attention, as trained ones do."""
    config_class, model_class, extra = _CLASSES[kind]
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=64,  # as quantizers want it: whole groups of 64
        max_position_embeddings=1024,
        initializer_range=0.25,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="sdpa",
        **extra,
    )
    torch.manual_seed(seed)
    model = model_class(config)
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            # Untrained, these make all keys equally long, and norms could choose between none of them.
            weight.data.uniform_(0.5, 1.5)
    return model.to(dtype).eval()


def tiny_prompt(
    n_context: int = 150, n_question: int = 9, n_cue: int = 5, n_gold: int = 6, seed: int = 0
) -> Prompt:
    """Random tokens (no special ones) with two evidence spans in the context."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> tuple[int, ...]:
        # All different as long as they last: the first layer's values tell tokens apart, not positions.
        rounds = [torch.randperm(VOCAB - 3, generator=generator) + 3 for _ in range(n // (VOCAB - 3) + 1)]
        return tuple(torch.cat(rounds)[:n].tolist())

    a, b = n_context // 4, n_context // 2
    spans = ((a, min(a + 7, b)), (b, min(b + 4, n_context))) if n_context >= 8 else ()
    return Prompt(
        text="",
        ids=tokens(n_context + n_question + n_cue),
        n_context=n_context,
        n_question=n_question,
        gold_ids=tokens(n_gold),
        evidence=spans,
        evidence_status="available" if spans else "not_applicable",
        evidence_reason=None if spans else "no_evidence",
    )


def save_tiny_tokenizer(folder: Path) -> Any:
    """A byte-level tokenizer without merges or chat template, saved where methods look for it by name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)
    return fast
