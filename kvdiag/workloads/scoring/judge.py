"""Which score and which rule an output of a source gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvdiag.workloads.base import Source
from kvdiag.workloads.scoring import metrics, rules


@dataclass(frozen=True)
class Judgement:
    """How good an output is.

    score: the workload's official score, in [0, 1]. correct: the separate stated rule (rules.py); None where a
    task has no right answer (summaries). extracted: the part of the output that was scored, when not all of it.
    """

    score: float
    correct: bool | None
    extracted: str | None


Metric = Callable[[str, str], float]
Rule = Callable[[str, Sequence[str]], bool]

LONGBENCH_QA = ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa")
LONGBENCH_SUMMARIES = ("gov_report", "qmsum", "multi_news", "samsum")
LONGBENCH_CODE = ("lcc", "repobench-p")
LONGBENCH_FIRST_LINE = ("trec", "triviaqa", "samsum")


def _best(metric: Metric, output: str, source: Source) -> float:
    return max(metric(output, reference) for reference in source.references)


def _ruler(source: Source, output: str) -> Judgement:
    if source.task in ("qa_1", "qa_2"):
        correct = rules.short_answer(metrics.clean_output(output), source.references)
        return Judgement(metrics.string_match_part(output, source.references), correct, None)
    if source.task in ("vt", "cwe", "fwe") or source.task.startswith("niah_"):
        correct = rules.all_words_present(output, source.references)
        return Judgement(metrics.string_match_all(output, source.references), correct, None)
    raise _unknown(source)


def _qasper(source: Source, output: str) -> Judgement:
    return Judgement(_best(metrics.qa_f1, output, source), rules.short_answer(output, source.references), None)


def _hotpotqa(source: Source, output: str) -> Judgement:
    return Judgement(_best(metrics.hotpot_f1, output, source), rules.short_answer(output, source.references), None)


def _longbench(source: Source, output: str) -> Judgement:
    task, references = source.task, source.references
    scored = output
    if task in LONGBENCH_FIRST_LINE:
        scored = metrics.first_line(output)
    elif task in LONGBENCH_CODE:
        scored = metrics.code_line(output)
    metric, rule = _longbench_pair(source)
    # The rules take the output as it is: they find their own sentence, line or number in it.
    text = output.strip().split("\n", maxsplit=1)[0] if task == "triviaqa" else output
    correct = rule(text, references) if rule else None
    return Judgement(_best(metric, scored, source), correct, None if scored == output else scored)


def _longbench_pair(source: Source) -> tuple[Metric, Rule | None]:
    """The metric and the rule of a LongBench task; no rule for summaries."""
    task = source.task
    if task in LONGBENCH_QA:
        return metrics.qa_f1, rules.short_answer
    if task in LONGBENCH_SUMMARIES:
        return metrics.rouge_l, None
    if task in LONGBENCH_CODE:
        return metrics.code_similarity, rules.code
    if task == "passage_count":
        return metrics.count, rules.count
    if task == "passage_retrieval_en":
        return metrics.retrieval, rules.retrieval
    if task == "trec":
        names = source.choices
        return (
            lambda output, reference: metrics.classification(output, reference, names),
            lambda output, references: rules.classification(output, references, names),
        )
    raise _unknown(source)


_FAMILIES: dict[str, Callable[[Source, str], Judgement]] = {
    "ruler": _ruler,
    "qasper": _qasper,
    "hotpotqa": _hotpotqa,
    "longbench": _longbench,
}


def _unknown(source: Source) -> ValueError:
    return ValueError(f"no score for workload {source.workload!r}, task {source.task!r}")


def judge(source: Source, output: str) -> Judgement:
    """The official score of an output and whether it is correct, by the source's workload and task.

    Raises ValueError for a workload or task without a score, and for a source without references.
    """
    family = _FAMILIES.get(source.workload.partition("_")[0])
    if family is None:
        raise _unknown(source)
    if not source.references:
        raise ValueError(f"source {source.source_id} has no references")
    return family(source, output)
