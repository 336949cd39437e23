"""Greedy decoding of many rows; finished rows leave the batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from kvdiag.engine.memory import Budget
from kvdiag.engine.replay import Replay
from kvdiag.engine.views import CellView
from kvdiag.workloads.base import Source


@dataclass
class Answer:
    """Tokens decoded so far and why decoding ended: eos, length, or nonfinite (no answer)."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None

    def push(self, token: int, finite: bool, stop: "Stop") -> None:
        """Add the next token and see whether the answer ends with it."""
        if not finite:
            self.finish = "nonfinite"
            return
        self.tokens.append(token)
        if token in stop.ids:
            self.finish = "eos"
        elif len(self.tokens) >= stop.max_new_tokens:
            self.finish = "length"


@dataclass(frozen=True)
class Stop:
    """When to stop: on any of these tokens, or after so many. never_first: tokens that cannot start an answer."""

    ids: frozenset[int]
    max_new_tokens: int
    never_first: frozenset[int] = frozenset()

    def first(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocabulary] of an answer's first token, without those that cannot start it."""
        if not self.never_first:
            return logits
        banned = torch.tensor(sorted(self.never_first), device=logits.device)
        return logits.index_fill(-1, banned, float("-inf"))


def stop_rule(source: Source, stop_ids: frozenset[int], tokenizer: Any) -> Stop:
    """When the answer to a source ends. A newline that ends it cannot be its first token (LongBench's samsum)."""
    if not source.stop_at_newline:
        return Stop(stop_ids, source.max_new_tokens)
    ids = stop_ids | {tokenizer("\n", add_special_tokens=False)["input_ids"][-1]}
    return Stop(ids, source.max_new_tokens, never_first=ids)


def verify(draft: Sequence[int], predicted: Sequence[int], finite: bool, stop: Stop) -> Answer:
    """The greedy answer of a row that was fed `draft`, as far as that shows it.

    predicted[i] is the row's own choice after draft[:i]. They agree up to some token, and the first that
    differs is the row's own; what comes after it is not known yet (finish stays None).
    """
    answer = Answer()
    for wanted, own in zip(draft, predicted, strict=True):
        answer.push(own, finite, stop)
        if answer.finish or own != wanted:
            break
    return answer


def decode(
    replay: Replay,
    answers: Sequence[Answer],
    visible: torch.Tensor,
    n_prompt: int,
    stop: Stop,
) -> None:
    """Decode every unfinished answer to its end, in place.

    answers[i] belongs to row i of the replay and has at least one token, its last not fed yet. visible: bool
    [rows, slots], the suffix slots each row sees; new tokens go to the slots behind.
    """
    open_rows = [i for i, a in enumerate(answers) if a.finish is None]
    waiting = [answers[i] for i in open_rows]
    if not waiting:
        return
    replay.keep_rows(open_rows)
    visible = visible[open_rows]
    device = replay.prefix.keys[0].device
    # A checked draft may have filled a residual already; a prompt alone never does, however long.
    _absorb_full_residuals(replay, visible, [len(a.tokens) > 1 for a in waiting])
    while waiting:
        slot = visible.shape[1]
        visible = torch.nn.functional.pad(visible, (0, 1), value=True)
        tokens = torch.tensor([a.tokens[-1] for a in waiting], device=device)
        positions = torch.tensor([n_prompt + len(a.tokens) - 1 for a in waiting], device=device)
        logits = replay.model.lm_head(replay.step(tokens, positions, slot, visible))
        _absorb_full_residuals(replay, visible, [True] * len(waiting))
        finite = torch.isfinite(logits).all(-1).tolist()
        for answer, token, ok in zip(waiting, logits.argmax(-1).tolist(), finite, strict=True):
            answer.push(token, ok, stop)
        left = [i for i, a in enumerate(waiting) if a.finish is None]
        if len(left) < len(waiting):
            waiting = [waiting[i] for i in left]
            visible = visible[left]
            if left:
                replay.keep_rows(left)


def decode_in_groups(
    replay: Replay,
    answers: Sequence[Answer],
    visible: torch.Tensor,
    n_prompt: int,
    stop: Stop,
    budget: Budget,
) -> None:
    """Decode every unfinished answer, all of them at once or as many as memory allows. Arguments as in `decode`.

    A group that ran out of memory begins again from where it stood, with half the rows; the replay itself stays as
    it is.
    """
    todo = [i for i, a in enumerate(answers) if a.finish is None]
    while todo:
        group = todo[: budget.rows or len(todo)]
        copies = [replace(answers[i], tokens=list(answers[i].tokens)) for i in group]
        run = partial(_decoded, replay, group, copies, visible[group], n_prompt, stop)
        if budget.attempt("decoding", len(group), None, run) is None:
            continue
        for i, done in zip(group, copies, strict=True):
            answers[i].tokens, answers[i].finish = done.tokens, done.finish
        todo = todo[len(group) :]


def _decoded(
    replay: Replay, group: list[int], answers: list[Answer], visible: torch.Tensor, n_prompt: int, stop: Stop
) -> list[Answer]:
    # The copy of the rows is made here, so that it counts as part of the attempt and goes with it.
    decode(replay.subset(group), answers, visible, n_prompt, stop)
    return answers


def residual_length(view: CellView | None) -> int | None:
    """Suffix length at which a quantized cache takes its suffix in; None for caches that never do."""
    if view is None or view.choices[0].requantize is None:
        return None
    return int(view.cell.method.defaults["residual_length"])


def _absorb_full_residuals(replay: Replay, visible: torch.Tensor, stepped: Sequence[bool]) -> None:
    """Quantized rows whose suffix a decoding step has brought to the residual length quantize their whole history.

    As transformers does, the step that fills the residual still reads it in full precision.
    """
    for i, row in enumerate(replay.rows):
        limit = residual_length(row.view)
        if limit is not None and stepped[i] and int(visible[i].sum()) >= limit:
            replay.absorb(i, visible[i].nonzero()[:, 0].to(replay.prefix.keys[0].device))
            visible[i] = False


def trusted_draft(view: CellView | None, n_fed: int, n_draft: int) -> int:
    """How many tokens of a draft a row may be checked against.

    A quantized cache reads its suffix anew from the residual length on, which a draft fed in one go does not show.
    n_fed: suffix tokens before the answer.
    """
    limit = residual_length(view)
    return n_draft if limit is None else min(n_draft, 1 + max(1, limit - n_fed))
