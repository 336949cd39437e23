"""The kinds of figure in a report. All read in black and white: labels, markers and hatches, not colour alone.

Each takes plain values and returns a matplotlib figure. Sizes are in inches; a figure is as wide as half a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvdiag.analysis.report.canvas import new_figure
from kvdiag.analysis.report.frames import (
    BLUE,
    INK,
    QUIET,
    SMALL,
    WIDTH,
    as_percent,
    cut,
    labelled_lines,
    margin,
    x_axis,
)

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
_DASHES = ("-", "--", "-.", ":", (0, (6, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3, 2, 3)))
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "ooo", "|||", "+++", "**", "//..", "\\\\--")
_GREYS = ("#2f4b66", "#8fb3d1", "#e8eef4", "#5f86a8", "#c9d9e6", "#f7f3e8", "#d9c58c", "#ffffff", "#b8b8b8")


@dataclass(frozen=True)
class Point:
    """A line of a forest plot: group and label on the left, value with interval, text on the right."""

    group: str
    label: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    hollow: bool = False


@dataclass(frozen=True)
class Bar:
    """A bar made of shares: group and label on the left, one share for each part, text on the right."""

    group: str
    label: str
    shares: tuple[float, ...]
    text: str


@dataclass(frozen=True)
class Line:
    """A method's points from left to right, named at its end."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


def forest(
    points: Sequence[Point], x_label: str, percent: bool = False, reference: float | None = None, zero: bool = True
) -> Any:
    """Values with intervals, a line each; hollow marks are no finding. zero: whether the axis must show 0."""
    figure, axes, places = labelled_lines(points)
    for point, y in zip(points, places, strict=True):
        if point.value is None:
            continue
        if point.low is not None and point.high is not None:
            axes.plot([point.low, point.high], [y, y], color=INK, linewidth=1.4, solid_capstyle="butt")
            for end in (point.low, point.high):
                axes.plot([end, end], [y - 0.05, y + 0.05], color=INK, linewidth=1.2)
        face = "white" if point.hollow else BLUE
        axes.plot([point.value], [y], marker="o", markersize=6, color=INK, markerfacecolor=face)
    seen = [v for p in points for v in (p.value, p.low, p.high) if v is not None]
    seen += [0.0] if zero else []
    seen += [reference] if reference is not None else []
    low, high = min(seen, default=0.0), max(seen, default=1.0)
    room = max(high - low, 0.02) * 0.04
    axes.set_xlim(low - room, high + room)
    if reference is not None:
        axes.axvline(reference, color=QUIET, linewidth=1, linestyle="--", zorder=0)
    x_axis(axes, x_label, percent)
    return figure


def stacked(bars: Sequence[Bar], parts: Sequence[str], x_label: str) -> Any:
    """Bars of shares that add to 1. Each part has a hatch and a letter, which the legend names."""
    legend = 0.196 * len(parts) + 0.1
    figure, axes, places = labelled_lines(bars, below=legend)
    handles = []
    for index, part in enumerate(parts):
        left = [sum(b.shares[:index]) for b in bars]
        drawn = axes.barh(places, [b.shares[index] for b in bars], left=left, height=0.19, **_look(index))
        handles.append((drawn, f"{letter(index)} {cut(part, 60)}"))
        for bar, y, start in zip(bars, places, left, strict=True):
            if bar.shares[index] >= 0.07:
                _letter(axes, start + bar.shares[index] / 2, y, letter(index))
    axes.set_xlim(0, 1)
    x_axis(axes, x_label, percent=True)
    figure.legend(
        [h for h, _ in handles],
        [t for _, t in handles],
        loc="lower left",
        bbox_to_anchor=(0.01, 0.0),
        frameon=False,
        fontsize=SMALL,
        handlelength=2.6,
        handleheight=1.1,
        labelspacing=0.35,
        borderaxespad=0.1,
    )
    return figure


def letter(index: int) -> str:
    """A, B, … of the parts of a bar."""
    return chr(ord("A") + index) if index < 26 else str(index)


def _look(index: int) -> dict[str, Any]:
    return {
        "facecolor": _GREYS[index % len(_GREYS)],
        "hatch": _HATCHES[index % len(_HATCHES)],
        "edgecolor": INK,
        "linewidth": 0.8,
    }


def _letter(axes: Any, x: float, y: float, text: str) -> None:
    box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=SMALL - 1, color=INK, bbox=box)


def heat(names: Sequence[str], values: Sequence[Sequence[float | None]]) -> Any:
    """The lower half of a symmetric table of shares, each with its number; darker is more. None: no value."""
    n = len(names) - 1  # the first has no row of its own, the last no column
    side, left, below = min(0.62, max(0.42, 3.9 / max(n, 1))), margin(names), 0.15 + 0.66 * margin(names)
    width, height = max(WIDTH, left + side * n + 0.3), side * n + below + 0.1
    figure = new_figure(width, height)
    axes = figure.add_axes((left / width, below / height, side * n / width, side * n / height))
    for i in range(n):
        for j in range(i + 1):
            _square(axes, j, i, values[i + 1][j])
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(n - 0.5, -0.5)
    axes.set_xticks(range(n), [cut(x) for x in names[:-1]], rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(n), [cut(x) for x in names[1:]])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _square(axes: Any, x: int, y: int, value: float | None) -> None:
    from matplotlib.patches import Rectangle

    shade = 1.0 if value is None else 1 - 0.85 * value
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=str(shade), edgecolor=QUIET, linewidth=0.6))
    text = "–" if value is None else f"{value:.2f}"
    axes.text(x, y, text, ha="center", va="center", fontsize=SMALL, color=INK if shade > 0.5 else "white")


def lines(series: Sequence[Line], x_label: str, y_label: str) -> Any:
    """Lines of shares against shares, each with its own marker and dashes, named at the right."""
    right = margin([s.name for s in series]) + 0.25
    height = max(3.4, 0.19 * len(series) + 0.9)
    figure = new_figure(WIDTH, height)
    box = (0.72 / WIDTH, 0.6 / height, (WIDTH - 0.72 - right - 0.1) / WIDTH, (height - 0.75) / height)
    axes = figure.add_axes(box)
    for i, one in enumerate(series):
        axes.plot(
            one.x,
            one.y,
            marker=MARKERS[i % len(MARKERS)],
            linestyle=_DASHES[i % len(_DASHES)],
            color=INK if i % 2 else BLUE,
            markersize=6.5,
            markerfacecolor="white" if i % 2 else BLUE,
            linewidth=1.4,
        )
    top = max((y for s in series for y in s.y), default=0.0)
    axes.set_ylim(-0.02 * max(top, 0.02), max(top, 0.02) * 1.06)
    all_x = [x for s in series for x in s.x]
    room = max(0.03, 0.05 * (max(all_x) - min(all_x)))
    axes.set_xlim(min(all_x) - room, max(all_x) + room)
    axes.grid(axis="y", color="#d5dae0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylabel(y_label)
    as_percent(axes.yaxis)
    x_axis(axes, x_label, percent=True, grid=False)
    _name_ends(axes, series, room_inches=box[3] * height)
    return figure


def _name_ends(axes: Any, series: Sequence[Line], room_inches: float) -> None:
    """Names at the right, in the order of the lines' ends and spread so that none covers another."""
    low, high = axes.get_ylim()
    step = 0.19 / room_inches * (high - low)
    order = sorted(range(len(series)), key=lambda i: (series[i].y[-1], series[i].name))
    places = spread([series[i].y[-1] for i in order], step, low + step / 2, high - step / 2)
    edge = axes.get_xlim()[1]
    reach = (edge - axes.get_xlim()[0]) * 0.06
    for i, place in zip(order, places, strict=True):
        line = series[i]
        axes.plot(
            [line.x[-1], edge, edge + reach],
            [line.y[-1], line.y[-1], place],
            color=QUIET,
            linewidth=0.6,
            clip_on=False,
            zorder=1,
        )
        axes.plot(
            [edge + reach * 1.5],
            [place],
            marker=MARKERS[i % len(MARKERS)],
            color=INK if i % 2 else BLUE,
            markerfacecolor="white" if i % 2 else BLUE,
            markersize=5,
            clip_on=False,
        )
        axes.text(edge + reach * 2.1, place, cut(line.name), va="center", fontsize=SMALL, color=INK)


def spread(values: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Ascending places near ascending values, at least `step` apart; within low and high where there is room."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + step if places else low))
    top = high
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], top)
        top = places[i] - step
    return places
