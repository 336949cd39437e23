"""The audit's two hazards as text: attention backend, and length in tokens."""

from typing import Any

from kvdiag.analysis.audit.backend import verdict_text
from kvdiag.cli import text


def backend_lines(found: dict[str, Any]) -> list[str]:
    """What `kvdiag audit backend` prints."""
    left_out = f"; {found['n_over_length']} past the model's positions left out" if found["n_over_length"] else ""
    lines = [f"{found['model']} without compression on {found['n']} sources of {found['workload']}{left_out}", ""]
    header = ("backend", "against", "score", "its score", "shift", "95 % interval", "outputs differ", "flips")
    lines += text.table(header, [_backend_row(b) for b in found["backends"]], left=2)
    lines += ["", "flips: right to wrong + wrong to right / answers with a right or wrong"]
    lines.append(f"interval: paired bootstrap, {found['resamples']} draws of sources, seed {found['seed']}")
    return lines + [verdict_text(b) for b in found["backends"]]


def _backend_row(b: dict[str, Any]) -> tuple[str, ...]:
    return (
        b["backend"],
        b["reference"],
        text.number(b["mean"]),
        text.number(b["reference_mean"]),
        text.number(b["shift"], "+.3f"),
        text.span(b["low"], b["high"], "+.3f"),
        f"{b['n_outputs_differ']}/{b['n']}",
        f"{b['n_right_to_wrong']}+{b['n_wrong_to_right']}/{b['n_judged']}",
    )


def length_lines(found: dict[str, Any]) -> list[str]:
    """What `kvdiag audit length` prints."""
    nominal = found["nominal"]
    made = f", made to {nominal} tokens of {found['counted_by']}" if nominal else ""
    n = found["models"][0]["n"] if found["models"] else 0
    lines = [f"{n} sources of {found['workload']}{made}; prompt and new tokens:", ""]
    header = ("tokenizer", "template", "least", "median", "most", "median/nominal", "positions", "too long")
    lines += text.table(header, [_length_row(m) for m in found["models"]], left=2)
    for m in found["models"]:
        if m["n_over_length"]:
            tasks = ", ".join(f"{task} {n}" for task, n in m["tasks_over_length"].items())
            lines.append(
                f"{m['model']}: {m['n_over_length']} of {m['n']} sources pass its positions ({tasks}): rows "
                "`unsupported: over_length`, and no failure of compression"
            )
    return lines


def _length_row(m: dict[str, Any]) -> tuple[str, ...]:
    tokens = m["tokens"] or dict.fromkeys(("min", "median", "max"), "-")
    return (
        m["model"],
        m["template"],
        str(tokens["min"]),
        str(tokens["median"]),
        str(tokens["max"]),
        text.number(m["ratio"], ".2f"),
        str(m["max_positions"]),
        f"{m['n_over_length']}/{m['n']}",
    )
