"""What a worker is: one copy of the model that runs sources, one after the other."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvdiag.errors import KvdiagError

if TYPE_CHECKING:  # torch must not be imported before the number of threads is set
    from kvdiag.engine.plan import Plan
    from kvdiag.engine.rows import Gap
    from kvdiag.engine.source import SourceDone
    from kvdiag.prompts import PromptBuilder
    from kvdiag.recipes import Recipe
    from kvdiag.workloads.base import Source

# Of a loaded model, what another process may know.
_FACTS = ("name", "stop_ids", "dtype", "device", "attention", "digest", "tokenizer_digest")


@dataclass(frozen=True)
class Started:
    """A worker that is ready. facts: of its model."""

    node: str
    pid: int
    facts: dict[str, Any]
    cannot: "dict[str, Gap]"
    environment: dict[str, Any]


class Replica:
    """Lives in a process of its own. A user's mistake comes back as a value, since Ray would wrap it."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._prompts: PromptBuilder | None = None

    def where(self) -> str:
        """The node it is on."""
        return _node()

    def start(self, recipe: "Recipe", threads: int, folder: str) -> Started | KvdiagError:
        """Load the model. folder: where the driver stands, for paths as the user wrote them."""
        os.environ["OMP_NUM_THREADS"] = str(threads)  # Ray says what it reserved
        if Path(folder).is_dir():
            os.chdir(folder)
        import torch

        from kvdiag.engine.plan import bare_plan
        from kvdiag.prompts import PromptBuilder

        torch.set_num_threads(threads)
        try:
            plan = bare_plan(recipe, Path())
            prompts = PromptBuilder.create(plan.model.tokenizer, recipe.prompt)
        except KvdiagError as error:
            return error
        self._plan, self._prompts = plan, prompts
        return Started(
            node=_node(),
            pid=os.getpid(),
            facts={name: getattr(plan.model, name) for name in _FACTS},
            cannot=plan.cannot,
            environment=plan.environment,
        )

    def sources(self) -> "tuple[list[Source], dict[str, str]] | KvdiagError":
        """The recipe's sources, and digests of the files they come from."""
        from kvdiag.engine.plan import file_digests

        assert self._plan is not None and self._prompts is not None
        try:
            return self._plan.recipe.sources(self._prompts.count), file_digests(self._plan.recipe)
        except KvdiagError as error:
            return error

    def run(self, source: "Source") -> "SourceDone":
        """Rows of a source."""
        from kvdiag.engine.source import attempt

        assert self._plan is not None and self._prompts is not None
        return attempt(self._plan, self._prompts, source)

    def give_up(self, source: "Source", deaths: int, for_memory: bool) -> "SourceDone":
        """Rows of a source that other workers died of, and that is not run: `failed: exception` or `oom`."""
        from kvdiag.engine.source import Failure, SourceDone, failed_rows

        assert self._plan is not None and self._prompts is not None
        if for_memory:
            detail = f"the worker was killed for memory {deaths} times while it ran this source"
            return SourceDone(source, failed_rows(self._plan, self._prompts, source, detail, "oom"), {})
        detail = f"the worker died {deaths} times while it ran this source"
        rows = failed_rows(self._plan, self._prompts, source, detail)
        return SourceDone(source, rows, {}, (Failure(source.source_id, deaths, detail, detail),), failed=True)


def checked(answer: Any) -> Any:
    """What a worker gave. Raises the user's mistake that it met instead."""
    if isinstance(answer, KvdiagError):
        raise answer
    return answer


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
