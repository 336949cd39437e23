"""The checks. Each returns what it found; none knows a method by name."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvdiag.conformance import physical
from kvdiag.conformance.tiny import ARCHITECTURES, save_tiny_tokenizer, tiny_model, tiny_prompt
from kvdiag.engine import matrix
from kvdiag.engine.rows import degenerate_label
from kvdiag.engine.tap import AdapterFactory
from kvdiag.engine.views import Cell
from kvdiag.methods.adapters.build import make_adapter, make_press
from kvdiag.methods.catalogue import Method, runnable
from kvdiag.methods.settings import Setting
from kvdiag.prompts import Prompt
from kvdiag.records.keys import PROTOCOLS

STOP = frozenset([2])
MAX_NEW = 8
CONTEXT = 300  # above every window and lag, below a second block of some
LOGITS = 1e-4


@dataclass(frozen=True)
class Outcome:
    """One check of one method. `counts` go into the report's digest; `detail` is for people."""

    check: str
    passed: bool
    detail: str
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Subject:
    """A method under test, how its adapter and its real press are made, and where a tokenizer lies."""

    method: Method
    folder: Path
    make: AdapterFactory = make_adapter
    press: Callable[[Method, Setting], Any] | None = make_press

    def settings(self) -> list[Setting]:
        """Settings that run, weakest first."""
        kind, values = ("bits", (8, 4, 2)) if self.method.setting_kind == "bits" else ("keep", (0.75, 0.5, 0.25))
        found = [Setting(kind, v) for v in values]
        if self.method.press == "ThinKPress":
            found = [Setting(kind, v) for v in (0.875, 0.75, 0.625)]
        return [s for s in found if self.method.unsupported(s) is None]

    def cells(self, settings: Sequence[Setting] | None = None, protocols: Sequence[str] = PROTOCOLS) -> list[Cell]:
        """Cells of the method."""
        return [Cell(self.method, s, p) for s in settings or self.settings() for p in protocols]

    def run(
        self, model: Any, prompt: Prompt, cells: Sequence[Cell], max_new: int = MAX_NEW
    ) -> matrix.MatrixResult:
        """The engine's run. Raises RuntimeError when the method fails on a layer."""
        tokenizer = save_tiny_tokenizer(self.folder)
        model.config.name_or_path = str(self.folder)  # kvpress' KVzip looks its tokenizer up there
        result = matrix.run_matrix(model, prompt, cells, STOP, max_new, tokenizer, self.make)
        for cell in cells:
            if result.views[cell].error:
                raise RuntimeError(f"{cell.id}: {result.views[cell].error}")
        return result


def equivalence(subject: Subject) -> Outcome:
    """The view equals the physical cache: kept sets, logits, tokens; four architectures, both protocols."""
    counts = {"cells": 0, "near_ties": 0}
    worst = 0.0
    for kind in ARCHITECTURES:
        model, prompt = tiny_model(kind), tiny_prompt(CONTEXT)
        if not _can_run(subject, model):
            counts["unsupported_architectures"] = counts.get("unsupported_architectures", 0) + 1
            continue
        cells = subject.cells()
        seen = _gold_logits(partial(subject.run, model, prompt, cells))
        result, logits = seen
        for cell, found in zip(result.cells, logits[1:], strict=True):
            n = cell.n_compressed(prompt.n_context, prompt.n_prefix)
            want = physical.run(
                model, cell.method, cell.setting, prompt, n, MAX_NEW, STOP, subject.press or make_press
            )
            counts["cells"] += 1
            view = result.views[cell]
            if want.kept is not None and not torch.equal(view.kept()[:, :, :n], want.kept):
                swapped = (view.kept()[:, :, :n] ^ want.kept).sum(-1)
                if int(swapped.max()) > 2:  # more than one position for another in a slot is no near-tie
                    return Outcome("equivalence", False, f"{kind} {cell.id}: other positions are kept", counts)
                counts["near_ties"] += 1
                continue
            differs = float((found - want.gold_logits).abs().max())
            if cell.method.adapter == "quantized" and cell.protocol == PROTOCOLS[0] and LOGITS < differs < 0.05:
                # The two prefills differ in length and so in last bits, which rounding to a code may magnify.
                counts["rounded_otherwise"] = counts.get("rounded_otherwise", 0) + 1
                continue
            worst = max(worst, differs)
            if differs > LOGITS:
                return Outcome("equivalence", False, f"{kind} {cell.id}: logits differ by {differs:.2g}", counts)
            if result.cells[cell].answer.tokens != want.tokens:
                return Outcome("equivalence", False, f"{kind} {cell.id}: other tokens than the real cache", counts)
    passed = counts["cells"] > 0 and counts["near_ties"] <= 0.25 * counts["cells"]
    told = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items())
    detail = f"{told}; logits within {worst:.1e}"
    return Outcome("equivalence", passed, detail, counts)


def _can_run(subject: Subject, model: Any) -> bool:
    """Whether the method runs on this architecture at all; the probe makes such rows `unsupported`."""
    try:
        subject.run(model, tiny_prompt(CONTEXT), subject.cells()[:1], 1)
    except RuntimeError as error:
        if "AttributeError" in str(error):
            return False
        raise
    return True


def _gold_logits(call: Callable[[], matrix.MatrixResult]) -> tuple[matrix.MatrixResult, list[torch.Tensor]]:
    """A run, and each row's logits that predict the gold tokens."""
    seen: list[torch.Tensor] = []
    original = matrix.likelihood.measure

    def spy(logits: torch.Tensor, targets: torch.Tensor) -> Any:
        seen.append(logits.clone())
        return original(logits, targets)

    matrix.likelihood.measure = spy
    try:
        return call(), seen
    finally:
        matrix.likelihood.measure = original


def leaves_no_trace(subject: Subject) -> Outcome:
    """Inputs unmutated, nothing left on modules, the control the same beside and after the method."""
    model, prompt = tiny_model("llama"), tiny_prompt(CONTEXT)
    alone = subject.run(model, prompt, []).control
    modules = [layer.self_attn for layer in model.model.layers]
    before = [_state(m) for m in modules]
    beside = subject.run(model, prompt, subject.cells())
    if [_state(m) for m in modules] != before:
        return Outcome("leaves_no_trace", False, "attributes were left on the attention modules")
    again = subject.run(model, prompt, []).control
    same = alone.answer == again.answer and alone.nll == again.nll
    near = all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(alone.nll, beside.control.nll, strict=True))
    if not same or not near or alone.answer != beside.control.answer:
        return Outcome("leaves_no_trace", False, "the control changes beside or after the method")
    return Outcome("leaves_no_trace", True, "control and modules are as before")


def _state(module: Any) -> dict[str, str]:
    """What is set on a module, but for what kvpress' attention patch resets at every prefill."""
    return {
        k: repr(v)[:80] for k, v in vars(module).items() if k != "masked_key_indices" and not k.startswith("_")
    }


def stable(subject: Subject) -> Outcome:
    """The same cache again, in another order of cells, alone, and after another source."""
    model, prompt = tiny_model("qwen3"), tiny_prompt(CONTEXT)
    cells = subject.cells()
    first = subject.run(model, prompt, cells)
    subject.run(model, tiny_prompt(CONTEXT + 40, seed=5), cells)
    for label, again in (
        ("a second time", subject.run(model, prompt, cells)),
        ("in another order", subject.run(model, prompt, cells[::-1])),
    ):
        if not all(first.views[c].same_cache(again.views[c]) for c in cells):
            return Outcome("stable", False, f"another cache {label}: not deterministic, or state is kept")
    for cell in cells:
        if not first.views[cell].same_cache(subject.run(model, prompt, [cell]).views[cell]):
            return Outcome("stable", False, f"{cell.id}: another cache when it runs alone")
    return Outcome("stable", True, f"{len(cells)} cells, again, in another order and alone")


def budget(subject: Subject) -> Outcome:
    """Realised against nominal: positions (mean over layers and heads) and bytes."""
    model, prompt = tiny_model("llama"), tiny_prompt(CONTEXT)
    cells = subject.cells(protocols=PROTOCOLS[:1])
    result = subject.run(model, prompt, cells)
    found = []
    for cell in cells:
        view, n = result.views[cell], prompt.n_context
        share = float(view.kept()[:, :, :n].double().mean())
        stored = view.stored_bytes(result.bytes_per_position)
        full = view.kept().shape[0] * view.kept().shape[1] * n * result.bytes_per_position
        found.append(f"{cell.setting}: {share:.3f} of positions, {stored / full:.3f} of bytes")
        nominal = cell.setting.keep
        if nominal is None:
            continue
        slack = 0.01 + 21 / n  # a chunk of 20 positions, and rounding
        realised = stored / full if subject.method.structural else share
        if subject.method.transforms != "access" and abs(realised - nominal) > slack:
            return Outcome("budget", False, f"{cell.setting} keeps {realised:.3f}")
    return Outcome("budget", True, "; ".join(found))


def settings_differ(subject: Subject) -> Outcome:
    """No two settings are the same cache."""
    model, prompt = tiny_model("llama"), tiny_prompt(CONTEXT)
    cells = subject.cells(protocols=PROTOCOLS[:1])
    views = subject.run(model, prompt, cells).views
    for i, one in enumerate(cells):
        for other in cells[:i]:
            if views[one].same_cache(views[other]):
                return Outcome("settings_differ", False, f"{one.setting} and {other.setting} are the same cache")
    return Outcome("settings_differ", True, f"{len(cells)} settings")


def is_itself(subject: Subject) -> Outcome:
    """The method is no other of the catalogue under a new name, judged on a longer source."""
    model, prompt = tiny_model("llama"), tiny_prompt(900)
    setting = subject.settings()[0]
    others = [m for m in runnable() if m.id != subject.method.id and m.setting_kind == subject.method.setting_kind]
    mine = Cell(subject.method, setting, PROTOCOLS[0])
    cells = [mine] + [Cell(m, setting, PROTOCOLS[0]) for m in others if m.unsupported(setting) is None]
    tokenizer = save_tiny_tokenizer(subject.folder)
    model.config.name_or_path = str(subject.folder)
    views = matrix.run_matrix(model, prompt, cells, STOP, 1, tokenizer, subject.make).views
    twins = [c.method.id for c in cells[1:] if not views[c].error and views[mine].same_cache(views[c])]
    if twins:
        return Outcome("is_itself", False, f"the same cache as {', '.join(twins)} at {setting}")
    return Outcome("is_itself", True, f"distinct from {len(cells) - 1} others at {setting}")


def first_token_moves(subject: Subject) -> Outcome:
    """A one-token gold answer sees the compressed cache."""
    model, prompt = tiny_model("qwen2"), tiny_prompt(CONTEXT, n_gold=1)
    if not _can_run(subject, model):
        model = tiny_model("llama")
    cell = subject.cells([subject.settings()[-1]], PROTOCOLS[:1])
    result = subject.run(model, prompt, cell)
    moved = abs(result.cells[cell[0]].nll[0] - result.control.nll[0])
    return Outcome("first_token_moves", moved > 1e-6, f"its likelihood moves by {moved:.2g} nats")


def degenerate_cells(subject: Subject) -> Outcome:
    """A budget inside the window is labelled."""
    window = subject.method.window
    if window < 2:
        return Outcome("degenerate_cells", True, "has no window to fill a budget")
    model = tiny_model("llama")
    prompt = tiny_prompt(window * 2 - 2)
    cell = Cell(subject.method, Setting("keep", 0.5), PROTOCOLS[0])
    label = degenerate_label(cell, subject.run(model, prompt, [cell]))
    return Outcome("degenerate_cells", label == "kept_within_window", f"label {label}")


def head_layouts(subject: Subject) -> Outcome:
    """Multi-head, grouped-query and multi-query attention."""
    for kv_heads in (4, 2, 1):
        model = tiny_model("llama", kv_heads=kv_heads)
        cells = subject.cells(protocols=PROTOCOLS[:1])
        result = subject.run(model, tiny_prompt(CONTEXT), cells)
        shapes = {tuple(result.views[c].kept().shape[:2]) for c in cells}
        if shapes != {(3, kv_heads)}:
            return Outcome("head_layouts", False, f"{kv_heads} KV heads: slots {shapes}")
    return Outcome("head_layouts", True, "4, 2 and 1 KV heads")


def short_contexts(subject: Subject) -> Outcome:
    """From its least positions on, each head of the method keeps at least one."""
    model = tiny_model("llama")
    least = subject.method.min_positions
    lengths = sorted({least, least + 1, least + 7, 2 * least})
    for n in lengths:
        cells = subject.cells([subject.settings()[-1]], PROTOCOLS[:1])
        kept = subject.run(model, tiny_prompt(n), cells, 1).views[cells[0]].kept().sum(-1)
        if int(kept.sum()) < kept.numel() and subject.method.transforms == "positions":
            return Outcome("short_contexts", False, f"{n} positions: a head keeps none")
    return Outcome("short_contexts", True, f"{', '.join(map(str, lengths))} positions")


def low_precision(subject: Subject) -> Outcome:
    """bfloat16 and float16 give finite numbers."""
    for dtype in (torch.bfloat16, torch.float16):
        model = tiny_model("llama", dtype=dtype)
        result = subject.run(model, tiny_prompt(CONTEXT), subject.cells(protocols=PROTOCOLS[:1]))
        for cell, row in result.cells.items():
            if row.failed or not all(math.isfinite(x) for x in row.nll):
                return Outcome("low_precision", False, f"{dtype} {cell.setting}: not finite")
    return Outcome("low_precision", True, "bfloat16, float16")


CHECKS: tuple[Callable[[Subject], Outcome], ...] = (
    equivalence,
    leaves_no_trace,
    stable,
    budget,
    settings_differ,
    is_itself,
    first_token_moves,
    degenerate_cells,
    head_layouts,
    short_contexts,
    low_precision,
)
