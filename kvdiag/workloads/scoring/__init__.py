"""Scores of answers, and the separate rules for `correct`."""

from kvdiag.workloads.scoring.judge import Judgement, judge
from kvdiag.workloads.scoring.metrics import clean_output, string_match_all
from kvdiag.workloads.scoring.rules import all_words_present, contains_word, contradictory, reference_kind

__all__ = [
    "Judgement",
    "all_words_present",
    "clean_output",
    "contains_word",
    "contradictory",
    "judge",
    "reference_kind",
    "string_match_all",
]
