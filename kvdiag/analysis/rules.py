"""The signature rules taken apart: each condition with its number and its threshold, so that one can see why."""

from dataclasses import dataclass
from typing import Any

from kvdiag.diagnostics.signatures import MAPPED, Thresholds

READINGS = {
    "low_mapped_coverage": "most of the evidence was evicted",
    "partial_mapped_coverage": "part of the evidence was evicted",
    "high_mapped_coverage_likelihood_drift": "the evidence was kept, yet the gold answer became unlikely",
    "structural_position_likelihood_drift": "all positions stayed, yet the gold answer became unlikely",
    "low_ear_candidate": "the evidence was kept, but attention left it",
    "decode_scorer_candidate": "evidence and likelihood are intact: decoding or scoring decided",
    "conflicting_diagnostic_signals": "several rules fired",
    "ambiguous": "no rule fired",
}

# Each condition: metric, sign, name of the threshold; or a word for what is known of positions (docs/metrics.md).
_COVERED = ("ecov", ">=", "high_coverage")
_DRIFT = ("delta_nll", ">=", "drift_nll")
_RULES: dict[str, list[tuple[str, str, str] | str]] = {
    "low_mapped_coverage": ["mapped", ("ecov", "<", "low_coverage")],
    "partial_mapped_coverage": ["mapped", ("ecov", ">=", "low_coverage"), ("ecov", "<", "high_coverage")],
    "high_mapped_coverage_likelihood_drift": ["mapped", _COVERED, _DRIFT],
    "structural_position_likelihood_drift": ["structural", _DRIFT],
    "low_ear_candidate": ["addressable", ("ear", "<", "low_ear")],
    "decode_scorer_candidate": [
        "addressable",
        ("|delta_nll|", "<=", "decode_nll"),
        ("top50_overlap", ">=", "decode_top50"),
    ],
}


@dataclass(frozen=True)
class Condition:
    """One condition of a rule in words and numbers, and whether the run meets it."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Rule:
    """A rule of the signatures, with its conditions for one run."""

    name: str
    reading: str
    conditions: list[Condition]


def rules(run: dict[str, Any], thresholds: Thresholds) -> list[Rule]:
    """All rules, whether they fire for the run or not. run: its coverage_type and metrics."""
    return [Rule(name, READINGS[name], _conditions(name, run, thresholds)) for name in _RULES]


def _conditions(name: str, run: dict[str, Any], thresholds: Thresholds) -> list[Condition]:
    found = []
    for part in _RULES[name]:
        if isinstance(part, str):
            found.append(_position(part, run, thresholds))
        elif part[0] == "top50_overlap" and run["top50_overlap"] is None:
            continue  # the decoding rule takes it only when there is one
        else:
            found.append(_compare(run, thresholds, *part))
    return found


def _position(word: str, run: dict[str, Any], thresholds: Thresholds) -> Condition:
    """mapped, structural or addressable: what is known of the positions."""
    kind = run["coverage_type"]
    structural = kind == "structural_position"
    if word == "addressable" and kind in MAPPED:
        return _compare(run, thresholds, *_COVERED)
    holds = {"mapped": kind in MAPPED, "structural": structural, "addressable": structural}[word]
    return Condition(f"coverage {kind}" + ("" if holds else f", not {word}"), holds)


def _compare(run: dict[str, Any], thresholds: Thresholds, metric: str, sign: str, name: str) -> Condition:
    limit, column = getattr(thresholds, name), metric.strip("|")
    value = run[column]
    if value is None:
        return Condition(f"{metric} has no value; needs {sign} {limit:g} ({name})", False)
    shown = abs(value) if metric != column else value
    holds = {"<": shown < limit, "<=": shown <= limit, ">=": shown >= limit}[sign]
    # Enough digits that a number beside its threshold never reads as the other side of it.
    text = f"{shown:.4g}" if (float(f"{shown:.4g}") < limit) == (shown < limit) else repr(shown)
    return Condition(f"{metric} {text} {sign if holds else 'is not ' + sign} {limit:g} ({name})", holds)
