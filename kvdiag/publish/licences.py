"""Where prompt texts come from, under which licence, and whether a data set may carry them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from kvdiag.ledger.card import PromptSource
from kvdiag.workloads import registry

# Says whether the texts of a workload (`ruler_8k`) may be published.
Redistributable = Callable[[str], bool]


@dataclass(frozen=True)
class _Origin:
    """Texts of a family of workloads. licence: the Hub's id. hub: data set id there."""

    name: str
    link: str
    licence: str
    hub: str | None


_ORIGINS = {
    "ruler": _Origin("RULER, generated here", "https://github.com/NVIDIA/RULER", "apache-2.0", None),
    "qasper": _Origin("Qasper", "https://huggingface.co/datasets/allenai/qasper", "cc-by-4.0", "allenai/qasper"),
    "hotpotqa": _Origin(
        "HotpotQA",
        "https://huggingface.co/datasets/hotpotqa/hotpot_qa",
        "cc-by-sa-4.0",
        "hotpotqa/hotpot_qa",
    ),
    "longbench": _Origin(
        "LongBench", "https://huggingface.co/datasets/zai-org/LongBench", "other", "zai-org/LongBench"
    ),
}
# LongBench's tasks with names, numbers or labels as answers.
_LONGBENCH_FACTS = (
    *("hotpotqa", "2wikimqa", "musique", "triviaqa"),
    *("trec", "passage_count", "passage_retrieval_en"),
)
# Haystacks that kvdiag makes itself.
_BUILT_IN = ("noise", "prose")
_UNKNOWN = _Origin("not known", "manifest.json", "unknown", None)


def _origin(workload: str) -> _Origin:
    return _ORIGINS.get(workload.split("_", maxsplit=1)[0], _UNKNOWN)


def redistributable(workload: str) -> bool:
    """Whether the texts of a workload may be published. Of one that is not known here: no."""
    try:
        return registry.family_of(workload).publish_texts
    except KeyError:
        return False


def gold_is_fact(workload: str, task: str) -> bool:
    """Whether a task's answers are names, numbers or labels, which may stay where the texts may not.

    Not so for summaries, code and free answers, nor for spans of a file of the user's own.
    """
    family = workload.split("_", maxsplit=1)[0]
    if family == "longbench":
        return task.removesuffix("_e") in _LONGBENCH_FACTS
    return family == "hotpotqa" or (family == "ruler" and not task.startswith("qa_"))


def own_texts(recipe: Mapping[str, Any]) -> list[str]:
    """Files of the user's own that a build read: kvdiag cannot know their licence.

    recipe: as the build wrote it, or as `public_recipe` leaves it.
    """
    haystack = recipe.get("haystack") or "noise"
    return [*(recipe.get("files") or []), *([haystack] if haystack not in _BUILT_IN else [])]


def public_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe without folders of the machine that built; its own files remain told from kvdiag's."""
    public = dict(recipe)
    for name in ("model", "haystack"):
        if isinstance(public.get(name), str):
            public[name] = without_folder(public[name])
    if public.get("haystack") in _BUILT_IN and public["haystack"] != recipe["haystack"]:
        public["haystack"] = f"./{public['haystack']}"  # a file that is called as kvdiag's own haystack
    if public.get("files"):
        public["files"] = [without_folder(f) for f in public["files"]]
    return public


def public_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment without folders of the machine: its `files` name the user's own as they were given."""
    files: dict[str, str] = {}
    for given, digest in sorted((environment.get("files") or {}).items()):
        name = without_folder(given)
        again = sum(known.partition(" (")[0] == name for known in files)  # the same name in another folder
        files[f"{name} ({again + 1})" if again else name] = digest
    return dict(environment) | ({"files": files} if "files" in environment else {})


def without_folder(text: str) -> str:
    """A file's name for its path; `TASK=PATH` keeps its task. `org/name` of the Hub stays."""
    task, equals, path = text.rpartition("=")
    return task + equals + (PurePath(path).name if path.startswith(("/", "~", ".")) else path)


def prompt_sources(workloads: dict[str, bool], own: Sequence[str] = ()) -> list[PromptSource]:
    """What a card says of each workload.

    workloads: whether a workload's texts are in the data set. own: the publisher's own files among what texts come
    from, whose licence is theirs to name.
    """
    found = []
    for workload, published in sorted(workloads.items()):
        o = _origin(workload)
        name = f"{o.name}; the publisher's own {', '.join(own)}" if own else o.name
        licence = "other" if own and published else o.licence
        found.append(PromptSource(workload, name, o.link, licence, o.hub, published))
    return found
