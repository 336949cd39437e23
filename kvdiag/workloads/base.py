"""What a workload yields."""

from dataclasses import dataclass, field

Span = tuple[int, int]


@dataclass(frozen=True)
class Source:
    """One question on one context.

    Spans are character ranges of `context`, end exclusive. `gold` is the text that is teacher-forced;
    `references` is what the score looks for. `answer_prefix` starts the model's answer (may be empty).
    """

    source_id: str
    workload: str
    task: str
    index: int
    seed: int | None
    context: str
    question: str
    answer_prefix: str
    gold: str
    references: tuple[str, ...]
    max_new_tokens: int
    evidence: tuple[Span, ...] = field(default=())
    distractors: tuple[Span, ...] = field(default=())
    evidence_status: str = "available"
    evidence_reason: str | None = None

    def evidence_text(self) -> list[str]:
        """The text of each evidence span."""
        return [self.context[a:b] for a, b in self.evidence]
