"""The uncompressed model under another attention backend: the same sources, plain greedy decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvdiag.analysis.audit.backend import Answers, drift
from kvdiag.analysis.survey import measure
from kvdiag.engine.decode import Stop, stop_rule
from kvdiag.engine.models import LoadedModel, load_model
from kvdiag.errors import DataError, UsageError, near_matches
from kvdiag.prompts import PromptBuilder
from kvdiag.recipes import Recipe
from kvdiag.workloads.base import Source
from kvdiag.workloads.scoring import judge


@dataclass(frozen=True)
class Answered:
    """A source's answer under one backend."""

    source_id: str
    task: str
    output: str
    score: float
    correct: bool | None


@torch.no_grad()
def answers(
    model: LoadedModel,
    prompts: PromptBuilder,
    sources: Sequence[Source],
    tell: Callable[[int], None] = lambda done: None,
) -> list[Answered]:
    """Answer every source with transformers' own `generate`: no compression, no replay, the model's backend alone.

    Sources past the model's positions are left to the caller to take out.
    """
    found = []
    for i, source in enumerate(sources):
        prompt = prompts.build(source)
        stop = stop_rule(source, model.stop_ids, model.tokenizer)
        ids = torch.tensor([prompt.ids], device=model.device)
        generated = model.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=_greedy(stop),
            # What a model's own settings may still bring in: the ledger's decoding is plainly greedy.
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
        )
        output = model.tokenizer.decode(generated[0, len(prompt.ids) :], skip_special_tokens=True)
        judged = judge(source, output)
        found.append(Answered(source.source_id, source.task, output, judged.score, judged.correct))
        tell(i + 1)
    return found


def _greedy(stop: Stop) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=stop.max_new_tokens,
        min_new_tokens=1 if stop.never_first else None,
        eos_token_id=sorted(stop.ids) or None,
        pad_token_id=min(stop.ids, default=0),
    )


def compare(
    recipe: Recipe,
    backends: Sequence[str],
    margin: float,
    resamples: int,
    seed: int,
    tell: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """Answer a recipe's sources under each backend; every other one against the first. No compression anywhere.

    tell: called with backend, number of sources, number done.
    """
    known = ["eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()]
    for backend in backends:
        if backend not in known:
            raise UsageError(f"--backends {backend}: transformers has no such one; {near_matches(backend, known)}")
    found: list[Answers] = []
    left_out, tasks, name = 0, [], recipe.model
    for backend in backends:
        model = load_model(recipe.model, recipe.dtype, recipe.device, recipe.trust_remote_code, backend)
        prompts = PromptBuilder.create(model.tokenizer, recipe.prompt)
        sources = recipe.sources(prompts.count)
        fitting = [s for s in sources if measure(s, prompts).needed <= model.max_positions]
        left_out, tasks, name = len(sources) - len(fitting), [s.task for s in fitting], model.name
        if not fitting:
            raise DataError(f"--workload {recipe.workload}: no source fits the positions of {recipe.model}")
        tell(backend, len(fitting), 0)
        rows = answers(model, prompts, fitting, partial(tell, backend, len(fitting)))
        found.append(
            Answers(backend, [r.output for r in rows], [r.score for r in rows], [r.correct for r in rows])
        )
    reference = found[0]
    return {
        "model": name.partition("[")[0],
        "workload": recipe.workload,
        "n": len(tasks),
        "n_over_length": left_out,
        "resamples": resamples,
        "seed": seed,
        "backends": [drift(reference, other, tasks, margin, resamples, seed) for other in found[1:]],
    }
