"""The price of a recipe: counts against real models and hand arithmetic."""

from dataclasses import replace

import pytest

from kvdiag import recipes
from kvdiag.engine.price import HARDWARE, PUBLISHED, Hardware, Load, Shape, cost, measure, peak_bytes
from tests.tiny import tiny_model

SHAPE = Shape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocabulary=100)


def load(cells=3, n=1000.0, new=10.0, shape=SHAPE, sources=5, keep=0.5):
    return Load(shape, "", 2, sources, (n,), "", new, cells, (keep,) * cells)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_parameters_are_those_of_a_real_model(kind):
    model = tiny_model(kind)
    c = model.config
    shape = Shape(
        *(c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim),
        *(c.intermediate_size, c.vocab_size),
    )
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2)
    assert shape.parameters == matrices
    layers = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name)
    assert shape.linear == layers


def test_published_sizes_give_the_published_numbers_of_parameters():
    billions = {name.split("/")[1]: shape.parameters / 1e9 for name, shape in PUBLISHED.items()}
    assert billions == {
        "Qwen3-8B": pytest.approx(8.19, abs=0.01),
        "Llama-3.1-8B-Instruct": pytest.approx(8.03, abs=0.01),
        "Qwen2.5-7B-Instruct": pytest.approx(7.61, abs=0.01),
        "DeepSeek-R1-Distill-Qwen-7B": pytest.approx(7.61, abs=0.01),
    }
    # 36 layers x 8 heads x 128 x keys and values x 2 bytes = 144 KiB a position
    assert PUBLISHED["Qwen/Qwen3-8B"].kv_bytes(8192, 2) == 8192 * 144 * 1024


def test_flops_by_hand():
    # A layer: q and o 8 x 8, k and v 8 x 4, three of 8 x 16.
    assert SHAPE.linear == 2 * (2 * 64 + 2 * 32 + 3 * 128)
    # 10 tokens: 2 FLOPs a parameter; scores and values over 10 x 10 / 2 pairs, 2 x 2 x 4 x 2 heads each, 2 layers.
    assert SHAPE.prefill_flops(10) == 2 * SHAPE.linear * 10 + 2 * (100 / 2) * 4 * 4 * 2
    assert SHAPE.step_flops(1, 10) == 2 * SHAPE.linear + 2 * 10 * 4 * 4 * 2 + 2 * 8 * 100


def test_one_pass_costs_one_prefill_and_cell_by_cell_one_each():
    slow = Hardware("slow", 1e6, 1e30, 1e12)  # compute is all that counts
    one, many = (cost(load(cells=c, new=0.0), slow) for c in (1, 40))
    assert many.cell_by_cell_hours / one.cell_by_cell_hours == pytest.approx((1 + 40 * 1.1) / (1 + 1.1))
    assert many.hours < 10 * one.hours


def test_cost_grows_with_sources_and_falls_with_the_machine():
    a, b = cost(load(sources=5), HARDWARE[0]), cost(load(sources=10), HARDWARE[0])
    assert b.hours == pytest.approx(2 * a.hours)
    eight = load(shape=PUBLISHED["Qwen/Qwen3-8B"], n=32768.0, cells=24)
    hours = [cost(eight, h).hours for h in HARDWARE]
    assert hours[0] <= hours[1] < hours[2]
    assert all(cost(eight, h).fits for h in HARDWARE)
    tight = Hardware("tight", 1e15, 1e12, peak_bytes(eight) * 0.9)
    assert not cost(eight, tight).fits


def test_memory_counts_a_cache_for_each_cell_that_replaces_keys():
    plain = load(cells=3)
    cache = SHAPE.kv_bytes(1000, 2)
    quantized = replace(plain, replaced=2)
    # A byte a position and a bias of 2 bytes of the two cells that have none now.
    masks = 2 * SHAPE.layers * SHAPE.kv_heads * 1000 * (1 + 2)
    assert peak_bytes(quantized) - peak_bytes(plain) == 2 * cache - masks


def test_the_papers_matrix_has_three_cells_with_a_cache_of_their_own(model_folder):
    recipe = recipes.load("paper_matrix", workload="ruler_512", model=str(model_folder), protocols="aware")
    found = measure(recipe, tokens=512)
    assert (found.cells, found.replaced) == (24, 3)
