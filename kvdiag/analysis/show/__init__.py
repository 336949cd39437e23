"""One run for a person to read, part by part. What it looks like is in show_text and show_html."""

from kvdiag.analysis.show.answers import Piece, answers
from kvdiag.analysis.show.evidence import Layer, evidence, layers, span_bounds
from kvdiag.analysis.show.glance import facts, kept, verdict
from kvdiag.analysis.show.metrics import metrics
from kvdiag.analysis.show.run import NOT_HERE, Shown, gather

__all__ = [
    "NOT_HERE",
    "Layer",
    "Piece",
    "Shown",
    "answers",
    "evidence",
    "facts",
    "gather",
    "kept",
    "layers",
    "metrics",
    "span_bounds",
    "verdict",
]
