"""One prefill for the whole matrix: tap, cache views, shared attention, replay."""
