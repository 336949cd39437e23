"""Diagnostic signatures by the frozen rules of the KVDiagnosis paper. Thresholds are data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Cut-offs of the rules; the defaults are the paper's."""

    low_coverage: float = 0.50
    high_coverage: float = 0.90
    drift_nll: float = 1.0
    low_ear: float = 0.50
    decode_nll: float = 0.10
    decode_top50: float = 0.90


FROZEN = Thresholds()

MAPPED = ("measured_token", "projected_chunk")


def signature_flags(
    coverage_type: str,
    ecov: float | None,
    delta_nll: float | None,
    ear: float | None,
    top50_overlap: float | None,
    thresholds: Thresholds = FROZEN,
) -> list[str]:
    """Names of the rules that fire for one C->W run.

    Arguments are null where the metric is not available; a rule that needs a null one does not fire, except
    that the decoding rule takes Top-50 only when there is one. "Addressable" means that positions stay in
    reach: a structural method, or a mapped one with high coverage.
    """
    t = thresholds
    mapped = coverage_type in MAPPED and ecov is not None
    structural = coverage_type == "structural_position"
    covered = mapped and ecov is not None and ecov >= t.high_coverage
    addressable = structural or covered
    flags = []
    if mapped and ecov is not None and ecov < t.low_coverage:
        flags.append("low_mapped_coverage")
    if mapped and ecov is not None and t.low_coverage <= ecov < t.high_coverage:
        flags.append("partial_mapped_coverage")
    if delta_nll is not None and delta_nll >= t.drift_nll:
        if covered:
            flags.append("high_mapped_coverage_likelihood_drift")
        if structural:
            flags.append("structural_position_likelihood_drift")
    if addressable and ear is not None and ear < t.low_ear:
        flags.append("low_ear_candidate")
    if (
        addressable
        and delta_nll is not None
        and abs(delta_nll) <= t.decode_nll
        and (top50_overlap is None or top50_overlap >= t.decode_top50)
    ):
        flags.append("decode_scorer_candidate")
    return flags


def signature(flags: list[str]) -> str:
    """One flag names the signature; several conflict; none is ambiguous."""
    if not flags:
        return "ambiguous"
    return flags[0] if len(flags) == 1 else "conflicting_diagnostic_signals"
