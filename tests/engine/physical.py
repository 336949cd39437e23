"""The conformance suite's oracle, for cells."""

from kvdiag.conformance import physical
from kvdiag.conformance.physical import answer, full_cache

__all__ = ["answer", "full_cache", "run"]


def run(model, cell, prompt, max_new_tokens, stop_ids):
    """Kept positions, logits that predict the gold tokens, and the greedy answer of a really pruned cache."""
    n = cell.n_compressed(prompt.n_context, prompt.n_prefix)
    found = physical.run(model, cell.method, cell.setting, prompt, n, max_new_tokens, stop_ids)
    return found.kept, found.gold_logits, found.tokens
