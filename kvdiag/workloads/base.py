"""What a workload yields."""

from dataclasses import dataclass, field

Span = tuple[int, int]


@dataclass(frozen=True)
class Source:
    """One question on one context.

    Spans are character ranges of `context`, end exclusive. `gold` is the text that is teacher-forced;
    `references` is what the score looks for. `answer_prefix` starts the model's answer (may be empty).

    evidence_status: `available`; `unmapped` when evidence is annotated but has no place in `context` (the reason
    says why); `not_applicable` when none is annotated. origin_id: the source's id in the data set it comes from.
    answer_types: a type for each reference, where the data set has types. choices: class names of a classification
    task. flags: anomalies of the item (`contradictory_references` …), for people to see. chat: whether the model's
    chat template is put around the prompt. stop_at_newline: decoding ends at the first newline after one token.
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
    origin_id: str | None = None
    answer_types: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    chat: bool = True
    stop_at_newline: bool = False

    def evidence_text(self) -> list[str]:
        """The text of each evidence span."""
        return [self.context[a:b] for a, b in self.evidence]
