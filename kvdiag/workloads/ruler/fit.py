"""The context that comes closest to a length from below, found with few calls of the tokenizer."""

from dataclasses import replace
from functools import cached_property

from kvdiag.errors import UsageError
from kvdiag.workloads.base import Source
from kvdiag.workloads.ruler.draft import Context, Draft, TokenCounter


class Meter:
    """Counts tokens of a draft with a context, and of pieces of text (each once)."""

    def __init__(self, count: TokenCounter) -> None:
        self._count = count
        self._pieces: dict[str, int] = {}
        self._probe = Source("probe", "", "", 0, None, "", "\n.", "", "", (), 0, evidence_status="not_applicable")

    @cached_property
    def _base(self) -> int:
        return self._count(replace(self._probe, context=".\n"))

    def used(self, draft: Draft, context: Context) -> int:
        """Prompt tokens and new tokens. Spans are left out: mapping them to tokens is not needed here."""
        source = replace(
            self._probe,
            context=context.text,
            question=draft.question,
            answer_prefix=draft.answer_prefix,
            gold=draft.gold,
            max_new_tokens=draft.max_new_tokens,
        )
        return self._count(source) + draft.max_new_tokens

    def piece(self, text: str) -> int:
        """Tokens of a piece of text that stands on lines of its own."""
        if text not in self._pieces:
            self._pieces[text] = self._count(replace(self._probe, context=f".\n{text}\n")) - self._base
        return self._pieces[text]


def fit(draft: Draft, length: int, smallest: int, slope: float, meter: Meter, task: str) -> tuple[Context, float]:
    """The context with most units whose prompt and new tokens stay within `length`, and the tokens a unit took.

    smallest: tokens used with the fewest units, at most `length`. slope: about the tokens a unit takes; it
    speeds the search and does not change what is found.
    """
    low, low_used, high, steps = draft.least, smallest, None, 0
    context = draft.render(low)
    while low_used < length and (high is None or high - low > 1):
        steps += 1
        step = max(1, int((length - low_used) / max(slope, 0.1)))
        if high is not None and (steps > 8 or low + step >= high):
            # Past a known bound, or slow to close in: halves are sure to.
            step = max(1, (high - low) // 2) if steps > 8 else high - low - 1
        n = low + step
        if draft.most is not None and n >= draft.most:
            n = draft.most
            if n == low:
                raise UsageError(
                    f"--length {length}: task {task} has words for {low_used} tokens; give a shorter length"
                )
        tried = draft.render(n)
        used = meter.used(draft, tried)
        if n - low > 4 or steps == 1:
            slope = (used - low_used) / (n - low)
        if used <= length:
            low, low_used, context = n, used, tried
        else:
            high = n
    return context, (low_used - smallest) / (low - draft.least) if low > draft.least + 4 else slope
