"""Tiny real models and prompts: those of the conformance suite."""

from kvdiag.conformance.tiny import ARCHITECTURES, VOCAB, tiny_model, tiny_prompt

__all__ = ["ARCHITECTURES", "VOCAB", "tiny_model", "tiny_prompt"]
