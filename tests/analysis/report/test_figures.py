"""Figures: what they show, that they are the same each time, and that names cannot break them."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from kvdiag.analysis.report import canvas, figures
from kvdiag.analysis.report.figures import Bar, Line, Point
from kvdiag.analysis.report.frames import cut

SVG = "{http://www.w3.org/2000/svg}"


def drawn(make, *args, **options):
    """An SVG of a figure, and its texts."""
    with canvas.style():
        svg = canvas.to_bytes(make(*args, **options), "svg")
    return svg, [e.text for e in ElementTree.fromstring(svg).iter(f"{SVG}text")]


POINTS = [Point("a", "keep=0.5", 0.25, 0.1, 0.4, "25.0% (1/4)"), Point("a", "x", None, None, None, "unsupported")]


def test_a_forest_says_all_in_words():
    svg, texts = drawn(figures.forest, POINTS, "rate", percent=True)
    assert {"a", "keep=0.5", "25.0% (1/4)", "x", "unsupported", "rate", "0%", "40%"} <= set(texts)
    assert texts.count("a") == 1  # a group is named once
    assert b"<dc:date" not in svg and svg == drawn(figures.forest, POINTS, "rate", percent=True)[0]


def test_parts_of_bars_differ_without_colour():
    bars = [Bar("", "w", tuple([1 / 9] * 9), "n = 9")]
    parts = [f"part {i}" for i in range(9)]
    svg, texts = drawn(figures.stacked, bars, parts, "share")
    assert [f"{figures.letter(i)} {p}" for i, p in enumerate(parts)] == [t for t in texts if "part" in t]
    assert set("ABCDEFGHI") <= set(texts)
    assert svg.count(b"<pattern") == 8  # one part is plain


def test_a_heat_map_writes_each_share():
    _, texts = drawn(figures.heat, ["a", "b", "c"], [[None, 0.5, 0.25], [0.5, None, None], [0.25, None, None]])
    assert sorted(t for t in texts if t not in "abc") == ["0.25", "0.50", "–"]
    assert texts.count("b") == 2 and texts.count("a") == texts.count("c") == 1


def test_lines_are_named_at_their_ends():
    _, texts = drawn(figures.lines, [Line("a", (0.2, 0.8), (0.5, 0.1)), Line("b", (0.5,), (0.1,))], "kept", "rate")
    assert {"a", "b", "kept", "rate"} <= set(texts)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 0.0, 0.0], [0.0, 1.0, 2.0]), ([10, 10], [9, 10]), ([1, 5, 9], [1, 5, 9]), ([], [])],
)
def test_names_keep_their_distance(values, expected):
    assert figures.spread(values, 1.0, 0.0, 10.0) == pytest.approx(expected)


def test_more_names_than_room_stay_apart():
    places = figures.spread([1.0] * 30, 1.0, 0.0, 10.0)
    assert all(b - a >= 1 - 1e-9 for a, b in pairwise(places))


@pytest.mark.parametrize("name", ["$a_1$", "a$", "<b>&", 'id="x" url(#y)', "名\n\x00前", "%s{}\\"])
def test_a_name_cannot_break_a_figure(name):
    _, texts = drawn(figures.forest, [Point(name, name, 0.5, None, None, name)], "rate")
    assert cut(name) in texts


def test_inline_svg_keeps_to_itself():
    svg, _ = drawn(figures.forest, [*POINTS, Point("b", "y", 1.0, 0.5, 1.0, "")], "rate")
    text = canvas.inline(svg, "fig-1", 'alt "text" <b>')
    root = ElementTree.fromstring(text)
    assert (root.get("role"), root.get("aria-label")) == ("img", 'alt "text" <b>')
    assert not list(root.iter(f"{SVG}style")) and "metadata" not in text
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert ids and all(i.startswith("fig-1-") for i in ids)


def test_users_settings_do_not_count(monkeypatch):
    import matplotlib

    before, _ = drawn(figures.forest, POINTS, "rate")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert drawn(figures.forest, POINTS, "rate")[0] == before
        assert matplotlib.rcParams["font.size"] == 30


def test_png_is_the_same_each_time():
    with canvas.style():
        first, second = (canvas.to_bytes(figures.forest(POINTS, "rate"), "png") for _ in range(2))
    assert first == second and first.startswith(b"\x89PNG") and b"Matplotlib" not in first
