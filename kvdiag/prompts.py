"""Prompts in three parts: context, question, cue. Tokens, character spans, and the gold answer's tokens.

The whole prompt is tokenized once and cut at the part borders, so that its tokens are those the model would
see anyway. A token that crosses a border goes to the later part: methods that may not see the question then
do not see a piece of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvdiag.errors import DataError, UsageError
from kvdiag.workloads.base import Source, Span

TEMPLATES = ("chat", "plain")
_MARK = "\x02kvdiag\x03"


@dataclass(frozen=True)
class Prompt:
    """A tokenized source. `ids` is context + question + cue, then comes `gold_ids`."""

    text: str
    ids: tuple[int, ...]
    n_context: int
    n_question: int
    gold_ids: tuple[int, ...]
    evidence: tuple[Span, ...]  # token spans; empty unless the status is available
    evidence_status: str
    evidence_reason: str | None
    distractors: tuple[Span, ...] = ()
    distractor_status: str = "not_applicable"
    distractor_reason: str | None = "no_distractors"
    n_head: int = 0  # tokens the chat template puts before the text
    tail: str = ""  # what it puts after

    @property
    def n_prefix(self) -> int:
        """Tokens of context and question: what the prefill sees."""
        return self.n_context + self.n_question

    @property
    def n_cue(self) -> int:
        """Tokens of the cue; at least one."""
        return len(self.ids) - self.n_prefix

    def positions_needed(self, max_new_tokens: int) -> int:
        """Positions that the prompt and its longest answer take: decoded tokens, or the gold answer's."""
        return len(self.ids) + max(max_new_tokens, len(self.gold_ids))


@dataclass(frozen=True)
class PromptBuilder:
    """Makes prompts with one tokenizer and template ("chat" or "plain")."""

    tokenizer: Any
    template: str
    head: str
    tail: str

    @classmethod
    def create(cls, tokenizer: Any, template: str) -> "PromptBuilder":
        """Raises UsageError when the tokenizer lacks offsets, or a chat template that was asked for."""
        if template not in TEMPLATES:
            raise UsageError(f"--prompt {template}: must be one of {', '.join(TEMPLATES)}")
        if not getattr(tokenizer, "is_fast", False):
            raise UsageError("the model's tokenizer gives no character offsets; it needs a tokenizer.json")
        if template == "plain":
            return cls(tokenizer, template, "", "")
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError("the model's tokenizer has no chat template; use --prompt plain")
        # Models that can think aloud are asked for the answer itself; other templates ignore the switch.
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=False,
        )
        head, mark, tail = rendered.partition(_MARK)
        if not mark:
            raise DataError("the chat template does not repeat the user's text; use --prompt plain")
        return cls(tokenizer, template, head, tail)

    def build(self, source: Source) -> Prompt:
        """Tokenize a source. A span that cannot be mapped is recorded as such, never shifted."""
        head, tail = self._around(source)
        text = self._text(source)
        ids, offsets = self._encode(text)
        border = len(head) + len(source.context)
        n_context = _first_after(offsets, border)
        n_prefix = _first_after(offsets, border + len(source.question))
        if n_prefix == len(ids):
            # The first answer token must see the compressed cache: one prompt token goes through the view.
            n_prefix -= 1
            n_context = min(n_context, n_prefix)
        if n_context < 1:
            raise DataError(f"{source.source_id}: the context has no token")
        seen = offsets[:n_context]
        if source.evidence_status == "available":
            evidence, status, reason = _map_spans(source.evidence, seen, len(head), "no_evidence")
        else:
            evidence, status, reason = (), source.evidence_status, source.evidence_reason
        distractors, distractor_status, distractor_reason = _map_spans(
            source.distractors, seen, len(head), "no_distractors"
        )
        return Prompt(
            text=text,
            ids=tuple(ids),
            n_context=n_context,
            n_question=n_prefix - n_context,
            gold_ids=tuple(self._gold_ids(text, ids, source.gold)),
            evidence=evidence,
            evidence_status=status,
            evidence_reason=reason,
            distractors=distractors,
            distractor_status=distractor_status,
            distractor_reason=distractor_reason,
            n_head=_first_after(offsets, len(head)),
            tail=tail,
        )

    def count(self, source: Source) -> int:
        """Tokens of the whole prompt, and those of the gold answer that go beyond max_new_tokens.

        With max_new_tokens added it is `Prompt.positions_needed`.
        """
        text = self._text(source)
        ids, _ = self._encode(text)
        spare = source.max_new_tokens
        # The answer's own tokens are nearly those it has behind the prompt; only close to the limit it matters.
        if len(self.tokenizer(source.gold, add_special_tokens=False)["input_ids"]) + 2 > spare > 0:
            return len(ids) + max(0, len(self._gold_ids(text, ids, source.gold)) - spare)
        return len(ids)

    def _around(self, source: Source) -> tuple[str, str]:
        """What the chat template puts before and after a source's text."""
        return (self.head, self.tail) if source.chat else ("", "")

    def _text(self, source: Source) -> str:
        head, tail = self._around(source)
        # A trailing space would not be the token that starts the answer: the gold carries it instead.
        prefix = source.answer_prefix.rstrip(" ")
        if tail.endswith(("\n", " ")):
            prefix = prefix.lstrip(" ")
        return head + source.context + source.question + tail + prefix

    def _encode(self, text: str) -> tuple[list[int], list[Span]]:
        """Tokens and character offsets, with exactly one BOS where the tokenizer uses one."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = list(encoded["input_ids"]), [(int(a), int(b)) for a, b in encoded["offset_mapping"]]
        bos = self.tokenizer.bos_token_id
        if (
            bos is not None
            and bos in self.tokenizer("", add_special_tokens=True)["input_ids"]
            and ids[:1] != [bos]
        ):
            ids, offsets = [bos, *ids], [(0, 0), *offsets]
        if bos is not None and ids[:2] == [bos, bos]:
            raise DataError("the chat template writes two start tokens; mend the template or use --prompt plain")
        return ids, offsets

    def _gold_ids(self, text: str, ids: list[int], gold: str) -> list[int]:
        """The gold answer's tokens as they would follow the prompt."""
        spaced = gold if text.endswith(("\n", " ")) else " " + gold
        joint, _ = self._encode(text + spaced)
        if joint[: len(ids)] == ids and len(joint) > len(ids):
            return joint[len(ids) :]
        # The tokenizer merges across the border: the answer's own tokens are the best there is.
        return list(self.tokenizer(spaced, add_special_tokens=False)["input_ids"])


def _map_spans(
    spans: Sequence[Span], offsets: Sequence[Span], shift: int, none: str
) -> tuple[tuple[Span, ...], str, str | None]:
    """Token spans of character spans of the context, with status and reason; all of them or none.

    shift: characters that stand before the context.
    """
    if not spans:
        return (), "not_applicable", none
    starts, ends = [a for a, _ in offsets], [b for _, b in offsets]
    mapped = []
    for start, end in spans:
        span = _token_span(starts, ends, start + shift, end + shift)
        if span is None:
            return (), "unmapped", "token_border"
        mapped.append(span)
    return tuple(mapped), "available", None


def _first_after(offsets: Sequence[Span], border: int) -> int:
    """Index of the first token that holds a character at or after `border`; special tokens hold none."""
    return bisect_right(offsets, border, key=lambda span: span[1])


def _token_span(starts: Sequence[int], ends: Sequence[int], start: int, end: int) -> Span | None:
    """Tokens that hold characters of [start, end), or None unless they cover all of it. Offsets only grow."""
    first, after = bisect_right(ends, start), bisect_left(starts, end)
    if first >= after or ends[after - 1] < end or starts[first] > start:
        return None
    return first, after
