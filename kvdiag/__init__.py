"""kvdiag: learn why a compressed KV cache turned a right answer wrong."""

__version__ = "0.1.0"
