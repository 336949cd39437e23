"""Sources of RULER's tasks at any length."""

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from kvdiag.errors import UsageError
from kvdiag.records.keys import source_id
from kvdiag.workloads.base import Source
from kvdiag.workloads.ruler import documents, needles, questions, tracing, words
from kvdiag.workloads.ruler.draft import Context, Draft, Request, Task, TokenCounter
from kvdiag.workloads.ruler.fit import Meter, fit
from kvdiag.workloads.ruler.ingredients import KINDS, Ingredients, read_haystack


def _niah(name: str, unit: str, settings: needles.Niah) -> Task:
    return Task(
        name,
        128,
        unit,
        lambda request: needles.niah(settings, request),
        lambda request, measure: needles.unit_tokens(settings, request, measure),
    )


_WORD = "word of the text (noise line with --haystack noise)"
_ALL = (
    _niah("niah_single_1", "noise line", needles.Niah("noise")),
    _niah("niah_single_2", _WORD, needles.Niah("essay")),
    _niah("niah_single_3", _WORD, needles.Niah("essay", value="uuids")),
    _niah("niah_multikey_1", _WORD, needles.Niah("essay", n_keys=4)),
    _niah("niah_multikey_2", "needle line", needles.Niah("needle")),
    _niah("niah_multikey_3", "needle line", needles.Niah("needle", key="uuids", value="uuids")),
    _niah("niah_multivalue", _WORD, needles.Niah("essay", n_values=4)),
    _niah("niah_multiquery", _WORD, needles.Niah("essay", n_keys=4, n_queries=4)),
    Task("vt", 30, "noise line", tracing.vt, needles.noise_tokens),
    Task("cwe", 120, "uncommon word, as often as it comes", words.cwe, words.cwe_tokens),
    Task("fwe", 50, "coded word", words.fwe, words.fwe_tokens),
    Task("qa_1", 32, "document", documents.qa, documents.qa_tokens),
    Task("qa_2", 32, "document", documents.qa, documents.qa_tokens),
)
# In RULER's order.
TASKS = MappingProxyType({task.name: task for task in _ALL})
SELF_CONTAINED = tuple(name for name in TASKS if not name.startswith("qa_"))


def _source(draft: Draft, context: Context, request: Request) -> Source:
    return Source(
        source_id=source_id(request.workload, request.task, str(request.index), context.text, draft.question),
        workload=request.workload,
        task=request.task,
        index=request.index,
        seed=request.seed,
        context=context.text,
        question=draft.question,
        answer_prefix=draft.answer_prefix,
        gold=draft.gold,
        references=draft.references,
        max_new_tokens=draft.max_new_tokens,
        evidence=context.evidence,
        distractors=context.distractors,
        origin_id=draft.origin_id,
        flags=draft.flags,
    )


def prepare(tasks: Sequence[str], ingredients: Ingredients) -> None:
    """Find or fetch what these tasks are made of. Raises UsageError for what is missing or of another kind."""
    for task, path in (("qa_1", ingredients.squad), ("qa_2", ingredients.hotpot)):
        if task in tasks:
            questions.load(task, path)
    if ingredients.haystack not in KINDS:
        read_haystack(ingredients.haystack)


def _smallest(requests: list[Request], meter: Meter) -> list[int]:
    """Tokens that each source of a task uses at least. Raises UsageError when one does not fit."""
    found, task = [], requests[0].task
    for request in requests:
        draft = TASKS[task].draft(request)
        found.append(meter.used(draft, draft.render(draft.least)))
        if draft.fill is not None and request.index == 0 and found[0] <= request.length:
            draft.fill(draft, request.length, meter)  # a file with too few documents is found out now
    length = requests[0].length
    if max(found) > length:
        raise UsageError(
            f"--length {length}: task {task} needs at least {max(found)} tokens with this model's tokenizer"
        )
    return found


def generate(
    workload: str,
    length: int,
    counts: dict[str, int],
    seed: int,
    count_tokens: TokenCounter,
    max_new_tokens: int | None = None,
    ingredients: Ingredients | None = None,
) -> Iterator[Source]:
    """Sources of each task, the same for the same arguments in any process.

    counts: sources per task. count_tokens: prompt tokens of a source. max_new_tokens replaces the published
    number (and frees its share of `length`). All tasks are checked before the first source is made: UsageError
    when `length` cannot hold one (naming the smallest that can), or an ingredient is missing or of another kind.
    """
    meter = Meter(count_tokens)
    plan = {
        task: [
            Request(
                workload,
                task,
                index,
                seed,
                length,
                TASKS[task].max_new_tokens if max_new_tokens is None else max_new_tokens,
                ingredients or Ingredients(),
            )
            for index in range(n)
        ]
        for task, n in counts.items()
        if n
    }
    smallest = {task: _smallest(requests, meter) for task, requests in plan.items()}
    return _make(plan, smallest, meter)


def _make(plan: dict[str, list[Request]], smallest: dict[str, list[int]], meter: Meter) -> Iterator[Source]:
    for task, requests in plan.items():
        slope = 0.0
        for request, least in zip(requests, smallest[task], strict=True):
            draft = TASKS[task].draft(request)
            if draft.fill is not None:
                context = draft.fill(draft, request.length, meter)
            else:
                slope = slope or TASKS[task].unit_tokens(request, meter) / 2
                context, slope = fit(draft, request.length, least, slope, meter, task)
            yield _source(draft, context, request)


def tolerance(task: str, length: int, count_tokens: TokenCounter, ingredients: Ingredients | None = None) -> int:
    """Tokens by which a source may stay below `length`: prompt and new tokens lie in (length - this, length].

    It is what one unit of the task takes (`TASKS[task].unit`) with this tokenizer.
    """
    request = Request("", task, 0, 0, length, TASKS[task].max_new_tokens, ingredients or Ingredients())
    return TASKS[task].unit_tokens(request, Meter(count_tokens))
