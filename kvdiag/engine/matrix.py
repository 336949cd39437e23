"""One source through the whole matrix: prefill, control, replay, decoding."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from kvdiag.diagnostics import likelihood
from kvdiag.diagnostics.retention import evidence_positions
from kvdiag.engine.decode import Answer, Stop, decode, decode_in_groups, trusted_draft, verify
from kvdiag.engine.memory import Budget, budget_for
from kvdiag.engine.replay import EvidenceProbe, Replay
from kvdiag.engine.tap import AdapterFactory, PrefillTap
from kvdiag.engine.tree import TokenTree
from kvdiag.engine.views import Cell, CellView, SharedPrefix
from kvdiag.methods.adapters.base import PrefillInput
from kvdiag.methods.adapters.build import make_adapter
from kvdiag.prompts import Prompt


@dataclass
class RowResult:
    """What a row (the control or a cell) gave.

    nll: nats of each gold token; draft_nll: of each token of the control's answer; gold_rank: mean rank of the
    gold tokens. Against the control: top50 shared share, kl in nats. eam_by_layer: evidence attention mass, mean
    over gold positions and query heads, None without mapped evidence.
    """

    answer: Answer
    nll: list[float]
    draft_nll: list[float]
    gold_rank: float
    top50: float
    kl: float
    eam_by_layer: list[float] | None

    @property
    def failed(self) -> bool:
        """Whether the row has no answer since its logits were not finite."""
        return self.answer.finish == "nonfinite"


@dataclass
class MatrixResult:
    """All rows of a source. A cell without a row has a view with an error."""

    control: RowResult
    cells: dict[Cell, RowResult]
    views: dict[Cell, CellView]
    prefix_bytes: int
    bytes_per_position: int
    variants: list[tuple[CellView, RowResult]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    seconds_by_method: dict[str, float] = field(default_factory=dict)  # parts of the tap
    halved: list[str] = field(default_factory=list)  # stages in which memory ran out and fewer rows went on


class NonFiniteError(Exception):
    """The control itself has no answer, so nothing can be paired with it."""


class Stopwatch:
    """Adds up seconds by stage."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._cuda = device.type == "cuda"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what runs inside under this name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self._cuda:
                torch.cuda.synchronize()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@torch.no_grad()
def run_matrix(
    model: Any,
    prompt: Prompt,
    cells: Sequence[Cell],
    stop_ids: frozenset[int],
    max_new_tokens: int,
    tokenizer: Any = None,
    make: AdapterFactory = make_adapter,
    variants: Callable[[CellView], Sequence[CellView]] = lambda view: (),
    never_first: frozenset[int] = frozenset(),
    budget: Budget | None = None,
) -> MatrixResult:
    """Run a prompt with the full cache and in every cell, from one prefill.

    tokenizer: for methods with passes of their own (KVzip). make: how a method's adapter is made. variants: more
    rows made from a cell's view (a boosted one, say), which run beside it.

    The model may be any decoder whose layers call transformers' attention interface and keep their keys and
    values as [1, kv_heads, positions, head_dim].
    """
    device = next(model.parameters()).device
    watch = Stopwatch(device)
    stop = Stop(stop_ids, max_new_tokens, never_first)
    ids = torch.tensor([prompt.ids[: prompt.n_prefix]], device=device)
    with watch.stage("prefill"):
        with PrefillTap(model, cells, prompt.n_context, prompt.n_prefix, make) as tap:
            prefix = tap.prefill(ids)
        tap.finish(prefix, PrefillInput(model, tokenizer, ids, prompt.n_head, prompt.tail))
    watch.seconds["tap"] = tap.seconds
    watch.seconds["prefill"] -= tap.seconds
    with watch.stage("control"):
        control = decode_control(model, prefix, prompt, stop)
    if control.finish == "nonfinite":
        raise NonFiniteError("the control's logits are not finite")
    usable = [row for v in tap.views.values() if v.error is None for row in (v, *variants(v))]
    # By what is free now: the caches are there, and the replay is still to come.
    budget = budget or budget_for(model.config, model.dtype, device)
    # The control and the query-aware cells feed the cue only, the query-agnostic ones the question too.
    aware = [v for v in usable if v.cell.protocol == "query_aware"]
    agnostic = [v for v in usable if v.cell.protocol == "query_agnostic"]
    rows: list[CellView | None] = [None, *aware, *agnostic]
    session = _Session(model, prefix, prompt, stop, control, rows, 1 + len(aware), budget)
    with watch.stage("replay"), session.replay.attached():
        results = session.replay_answers()
    results[0].answer = control  # decoded token by token, as a plain run would
    with watch.stage("decoding"), session.replay.attached():
        session.finish_answers(results)
    keys, values = prefix.keys, prefix.values
    found = list(zip([*aware, *agnostic], results[1:], strict=True))
    return MatrixResult(
        control=results[0],
        cells={view.cell: result for view, result in found if tap.views[view.cell] is view},
        variants=[(view, result) for view, result in found if tap.views[view.cell] is not view],
        views=tap.views,
        prefix_bytes=sum(t.numel() * t.element_size() for t in (*keys, *values)),
        bytes_per_position=prefix.bytes_per_position(),
        seconds=watch.seconds,
        seconds_by_method=tap.seconds_by_method,
        halved=budget.halved,
    )


def decode_control(model: Any, prefix: SharedPrefix, prompt: Prompt, stop: Stop) -> Answer:
    """The FullCache answer: the cue through the whole cache, then greedy decoding."""
    n, device = prompt.n_cue, prefix.keys[0].device
    replay = Replay(model, prefix, [None], capacity=n + min(stop.max_new_tokens, 32))
    tree = TokenTree(prompt.ids[prompt.n_prefix :])
    with replay.attached():
        hidden = replay.feed_tree(
            slice(0, 1),
            0,
            torch.tensor(tree.tokens, device=device),
            torch.arange(prompt.n_prefix, len(prompt.ids), device=device),
            tree.visible(),
        )
        logits = model.lm_head(hidden[0, -1])
        answer = Answer()
        answer.push(int(stop.first(logits).argmax()), bool(torch.isfinite(logits).all()), stop)
        decode(replay, [answer], torch.ones(1, n, dtype=torch.bool), len(prompt.ids), stop)
    return answer


class _Session:
    """The replay of one source: rows [0, n_aware) feed the cue, the others question and cue."""

    def __init__(
        self,
        model: Any,
        prefix: SharedPrefix,
        prompt: Prompt,
        stop: Stop,
        control: Answer,
        rows: list[CellView | None],
        n_aware: int,
        budget: Budget,
    ) -> None:
        self.budget = budget
        self.model, self.prompt, self.stop, self.control = model, prompt, stop, control
        self.device = prefix.keys[0].device
        self.n_question, self.n_aware = prompt.n_question, n_aware
        tree = TokenTree(prompt.ids[prompt.n_context :])
        self.gold_nodes = tree.add(prompt.gold_ids)
        # The control's answer is a draft: a row decodes on its own only from where it departs from it.
        self.draft_nodes = tree.add(control.tokens)
        self.gold_ids = torch.tensor(prompt.gold_ids, device=self.device)
        self.draft_ids = torch.tensor(control.tokens, device=self.device)
        self.tree = tree
        self.visible = tree.visible()
        self.tokens = torch.tensor(tree.tokens, device=self.device)
        self.positions = torch.tensor(tree.depths, device=self.device) + prompt.n_context
        self.replay = Replay(model, prefix, rows, capacity=len(tree.tokens))

    def replay_answers(self) -> list[RowResult]:
        """Feed gold answer and draft to every row; metrics, and answers as far as the draft shows them."""
        results: list[RowResult] = []
        # The control's own measures, against which all rows are held; it is the first row.
        self.reference: likelihood.Likelihood | None = None
        n = len(self.replay.rows)
        # Slices of rows that feed the same tokens, and the first node they feed.
        for start, stop, first in ((0, self.n_aware, self.n_question), (self.n_aware, n, 0)):
            each = len(self.tokens) - first
            while start < stop:
                rows = slice(start, min(start + self.budget.rows_of(each), stop))
                found = self.budget.attempt(
                    "replay", rows.stop - start, each, partial(self._replay_rows, rows, first)
                )
                if found is not None:
                    results += found
                    start = rows.stop
        return results

    def _replay_rows(self, rows: slice, first: int) -> list[RowResult]:
        """Results of some rows, which feed the nodes from `first` on."""
        probe = self._probe(first)
        hidden = self.replay.feed_tree(
            rows,
            first,
            self.tokens[first:],
            self.positions[first:],
            self.visible[first:, first:],
            probe,
        )
        results = []
        for i, row in enumerate(self.replay.rows[rows]):
            logits = self._logits(hidden[i], first)
            gold = likelihood.measure(logits[: len(self.gold_nodes)], self.gold_ids)
            self.reference = self.reference or gold
            eam = [float(m[i].double().mean()) for m in probe.mass] if probe else None
            results.append(self._result(row.view, logits, gold, self.reference, eam))
        return results

    def finish_answers(self, results: list[RowResult]) -> None:
        """Decode the rows that departed from the draft, to their end."""
        slots = len(self.tokens)
        seen = torch.zeros(len(results), slots, dtype=torch.bool)
        for i, result in enumerate(results):
            first = self.n_question if i < self.n_aware else 0
            seen[i, first : self.tree.root + 1] = True
            # All tokens but the last, which is the row's own, were fed as the draft's.
            seen[i, self.draft_nodes[1 : len(result.answer.tokens)]] = True
        answers = [r.answer for r in results]
        decode_in_groups(self.replay, answers, seen, len(self.prompt.ids), self.stop, self.budget)

    def _probe(self, first: int) -> EvidenceProbe | None:
        if not self.prompt.evidence:
            return None
        nodes = torch.tensor(self.gold_nodes, device=self.device) - first
        positions = torch.from_numpy(evidence_positions(self.prompt.evidence)).to(self.device)
        return EvidenceProbe(nodes, positions, [])

    def _logits(self, hidden: torch.Tensor, first: int) -> torch.Tensor:
        """float32 [gold tokens + draft tokens, vocabulary]. Where both answers agree the head runs once."""
        asked = [*self.gold_nodes, *self.draft_nodes]
        distinct = sorted(set(asked))
        nodes = torch.tensor(distinct, device=self.device) - first
        logits = self.model.lm_head(hidden[nodes]).float()
        return logits[[distinct.index(node) for node in asked]]

    def _result(
        self,
        view: CellView | None,
        logits: torch.Tensor,
        gold: likelihood.Likelihood,
        control: likelihood.Likelihood,
        eam: list[float] | None,
    ) -> RowResult:
        draft = logits[len(self.gold_nodes) :]
        finite = bool(torch.isfinite(logits).all())
        fed = self.tree.root + 1 - (self.n_question if view and view.cell.protocol == "query_aware" else 0)
        trusted = trusted_draft(view, fed, len(draft))
        chosen = [int(self.stop.first(draft[0]).argmax()), *draft[1:trusted].argmax(-1).tolist()]
        checked = self.control.tokens[:trusted], chosen
        return RowResult(
            answer=verify(*checked, finite, self.stop),
            nll=gold.nll,
            draft_nll=likelihood.token_nll(draft, self.draft_ids),
            gold_rank=gold.rank,
            top50=likelihood.top_overlap(control.top, gold.top),
            kl=likelihood.kl_divergence(control.log_probs, gold.log_probs),
            eam_by_layer=eam,
        )
