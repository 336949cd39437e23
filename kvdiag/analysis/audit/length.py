"""A nominal length is somebody's tokens: what the same sources are in the tokens of other models."""

from collections.abc import Sequence
from typing import Any

from kvdiag.analysis.survey import lengths, measure
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads.base import Source


def counted(
    name: str, sources: Sequence[Source], prompts: PromptBuilder, max_positions: int, nominal: int | None
) -> dict[str, Any]:
    """Prompt and new tokens of the sources under one tokenizer, against the nominal length and its positions."""
    needed = [measure(s, prompts).needed for s in sources]
    tasks = dict.fromkeys(s.task for s in sources)
    past = {t: sum(n > max_positions for s, n in zip(sources, needed, strict=True) if s.task == t) for t in tasks}
    spread = lengths(needed)
    return {
        "model": name,
        "template": prompts.template,
        "n": len(sources),
        "tokens": spread,
        "ratio": None if nominal is None or spread is None else spread["median"] / nominal,
        "n_past_nominal": None if nominal is None else sum(n > nominal for n in needed),
        "max_positions": max_positions,
        "n_over_length": sum(past.values()),
        "tasks_over_length": {task: n for task, n in past.items() if n},
    }
