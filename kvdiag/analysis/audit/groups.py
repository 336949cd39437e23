"""How the audit groups: tasks into kinds of tasks, visibilities of the catalogue into ranks."""

BASELINES = ("random", "knorm", "streaming_llm")
START_RECENT = "streaming_llm"

# RULER's four categories (arXiv 2404.06654, table 2) and LongBench's six (arXiv 2308.14508, table 1).
_TASKS = {
    "retrieval": (
        *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2"),
        *("niah_multikey_3", "niah_multivalue", "niah_multiquery"),
    ),
    "tracing": ("vt",),
    "aggregation": ("cwe", "fwe"),
    "qa": ("qa_1", "qa_2"),
    "single_doc_qa": ("narrativeqa", "qasper", "multifieldqa_en"),
    "multi_doc_qa": ("hotpotqa", "2wikimqa", "musique"),
    "summarization": ("gov_report", "qmsum", "multi_news"),
    "few_shot": ("trec", "triviaqa", "samsum"),
    "synthetic": ("passage_count", "passage_retrieval_en"),
    "code": ("lcc", "repobench-p"),
}
_GROUP = {task: group for group, tasks in _TASKS.items() for task in tasks}

# How large a part of a score a visible question is, least first (docs/audit.md). decode_time is no rank: such a
# method reads the question as it answers, in either protocol.
VISIBILITY_RANKS = {"none": 0, "all_queries": 1, "window": 2, "last_query": 2}
RANK_NAMES = ("none", "low", "high")


def task_group(task: str) -> str:
    """The group of a task; an unknown task is a group of its own."""
    return _GROUP.get(task, task)
