"""Out of memory in the middle of a replay: fewer rows go on, with the same answers; one row alone is too much."""

import sys

import pytest
import torch

from kvdiag.engine import matrix
from kvdiag.engine.memory import TOKENS_PER_FORWARD, Budget, _free_of_groups, budget_for, is_out_of_memory
from kvdiag.engine.replay import Replay
from kvdiag.engine.shape import shape_of
from kvdiag.engine.views import Cell
from kvdiag.methods import catalogue
from kvdiag.methods.settings import parse_setting
from tests.tiny import tiny_model, tiny_prompt

STOP = frozenset([0])
CELLS = [
    Cell(catalogue.get(method), parse_setting(setting), protocol)
    for method, setting in (
        *(("knorm", "keep=0.5"), ("knorm", "keep=0.25"), ("streaming_llm", "keep=0.25")),
        *(("snapkv", "keep=0.25"), ("quantized_quanto", "bits=2")),
    )
    for protocol in ("query_agnostic", "query_aware")
]


def outcome(budget=None):
    return matrix.run_matrix(tiny_model("llama"), tiny_prompt(), CELLS, STOP, 12, budget=budget)


def limited(monkeypatch, name, most):
    """The replay runs out of memory whenever more than `most` rows are fed; returns the sizes it was asked for."""
    whole, asked = getattr(Replay, name), []

    def guarded(self, *args, **known):
        n = args[0].stop - args[0].start if name == "feed_tree" else len(self.rows)
        asked.append(n)
        if n > most:
            raise torch.OutOfMemoryError("planted")
        return whole(self, *args, **known)

    monkeypatch.setattr(Replay, name, guarded)
    return asked


def same(one, two):
    for cell in CELLS:
        a, b = one.cells[cell], two.cells[cell]
        assert a.answer == b.answer
        assert a.nll == pytest.approx(b.nll, abs=1e-5)
        assert a.kl == pytest.approx(b.kl, abs=1e-5)
    assert one.control.answer == two.control.answer


@pytest.mark.parametrize(("name", "stage"), [("feed_tree", "replay"), ("step", "decoding")])
@pytest.mark.parametrize("most", [1, 3])
def test_half_the_rows_go_on_with_the_same_answers(monkeypatch, name, stage, most):
    whole = outcome()
    assert whole.halved == []
    asked = limited(monkeypatch, name, most)
    found = outcome()
    assert set(found.halved) == {stage}
    assert max(asked) > most
    same(whole, found)
    # What was too much once is not tried again.
    too_much = [n for n in asked if n > most]
    assert len(too_much) == len(found.halved)


def test_the_copy_of_the_rows_counts_as_part_of_the_attempt(monkeypatch):
    whole, asked = Replay.subset, []

    def subset(self, index):
        asked.append(len(index))
        if len(index) > 2:
            raise torch.OutOfMemoryError("planted")
        return whole(self, index)

    monkeypatch.setattr(Replay, "subset", subset)
    found = outcome()
    assert max(asked) > 2 and set(found.halved) == {"decoding"}
    monkeypatch.undo()
    same(outcome(), found)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_how_errors_say_it(error, is_memory):
    assert is_out_of_memory(error) is is_memory


@pytest.mark.parametrize(
    ("own", "folder", "names"),
    [
        ("0::/job/step\n", "job/step", ("memory.max", "memory.current", "inactive_file")),
        ("0::/job/step\n", "job", ("memory.max", "memory.current", "inactive_file")),  # the limit is above
        (
            "3:cpu:/other\n9:memory:/job\n0::/\n",
            "memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_limit_of_the_batch_system_counts(tmp_path, own, folder, names):
    mine, group = tmp_path / "cgroup", tmp_path / "groups" / folder
    assert _free_of_groups(tmp_path / "groups", mine) == sys.maxsize  # no control groups here
    mine.write_text(own)
    assert _free_of_groups(tmp_path / "groups", mine) == sys.maxsize
    group.mkdir(parents=True)
    limit, used, cached = names
    (group / limit).write_text("max\n")
    (group / used).write_text("700\n")
    (group / "memory.stat").write_text(f"anon 500\n{cached} 100\n")
    assert _free_of_groups(tmp_path / "groups", mine) == sys.maxsize
    (group / limit).write_text("1000\n")
    assert _free_of_groups(tmp_path / "groups", mine) == 1000 - 700 + 100
    (group / used).write_text("1200\n")
    assert _free_of_groups(tmp_path / "groups", mine) == 0


@pytest.mark.parametrize("name", ["feed_tree", "step"])
def test_a_row_that_is_too_much_alone_fails(monkeypatch, name):
    limited(monkeypatch, name, 0)
    with pytest.raises(torch.OutOfMemoryError):
        outcome()


def test_other_errors_are_not_taken_for_memory(monkeypatch):
    def broken(self, *args, **known):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(Replay, "feed_tree", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        outcome()


def test_little_free_memory_means_smaller_forwards(monkeypatch):
    model = tiny_model("llama")
    each = shape_of(model.config).activation_bytes(model.dtype.itemsize)
    device = torch.device("cpu")
    for free, tokens in ((10**12, TOKENS_PER_FORWARD), (each * 4 * 100, 100), (0, 1)):
        monkeypatch.setattr("kvdiag.engine.memory.free_bytes", lambda _, free=free: free)
        budget = budget_for(model.config, model.dtype, device)
        assert budget.tokens == tokens
        assert budget.halved == ([] if tokens == TOKENS_PER_FORWARD else ["forward"])  # told in the manifest
    assert Budget(tokens=100).rows_of(30) == 3
    assert Budget(tokens=10).rows_of(30) == 1


def test_a_small_budget_gives_the_same_answers():
    same(outcome(), outcome(Budget(tokens=1, rows=2)))


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_the_estimate_covers_the_widest_moment(arch):
    """Bytes a token that a forward really holds at once, all layers but without the cache, stay below it."""
    model = tiny_model(arch)
    mlp = model.model.layers[0].mlp
    widest = 0

    def seen(module, args, output):
        nonlocal widest
        widest = max(widest, (args[0].numel() + 3 * output.shape[1] * model.config.intermediate_size) * 4)

    handle = mlp.register_forward_hook(seen)
    n = 64
    with torch.no_grad():
        model.model(torch.arange(n)[None] % 50, use_cache=False)
    handle.remove()
    assert 0 < widest / n <= shape_of(model.config).activation_bytes(model.dtype.itemsize)
