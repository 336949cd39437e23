"""Where prompt texts come from, under which licence, and whether a data set may carry them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
_UNKNOWN = _Origin("not known", "manifest.json", "unknown", None)


def _origin(workload: str) -> _Origin:
    return _ORIGINS.get(workload.split("_", maxsplit=1)[0], _UNKNOWN)


def redistributable(workload: str) -> bool:
    """Whether the texts of a workload may be published. Of one that is not known here: no."""
    try:
        return registry.family_of(workload).publish_texts
    except KeyError:
        return False


def own_texts(recipe: dict[str, Any]) -> list[str]:
    """Files of the user's own that a build read: kvdiag cannot know their licence."""
    haystack = recipe.get("haystack") or "noise"
    return [*(recipe.get("files") or []), *([haystack] if haystack not in ("noise", "prose") else [])]


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
