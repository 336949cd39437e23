"""What figures share: sizes, inks, labels and axes."""

from collections.abc import Sequence
from typing import Any

from kvdiag.analysis.report.canvas import new_figure

WIDTH = 5.4
SMALL = 9.5  # points; the page shows a figure at about its own size
CHARACTER = 0.085  # inches of one character at 10 points, on the wide side
ROW, GAP = 0.25, 0.14
INK, QUIET, BAND, BLUE = "#1c2024", "#5a636d", "#f1f3f6", "#1f5f99"


def cut(text: str, most: int = 24) -> str:
    """Text short enough for a label, without characters that no SVG may hold."""
    text = "".join(c if c.isprintable() else "�" for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def margin(texts: Sequence[str], most: int = 24) -> float:
    """Inches that labels need beside the axes."""
    return 0.15 + CHARACTER * max((len(cut(t, most)) for t in texts), default=0)


def labelled_lines(items: Sequence[Any], below: float = 0.0) -> tuple[Any, Any, list[float]]:
    """A figure with a line for each item, labels on both sides, groups banded; and the lines' places in inches."""
    groups = [i.group for i in items]
    places, y = [], 0.0
    for k, group in enumerate(groups):
        y += 0 if k == 0 else ROW + (GAP if group != groups[k - 1] else 0)
        places.append(y)
    inner = y + ROW + 0.1
    first = 1.1 * margin(groups) if any(groups) else 0.1  # bold is wider
    left, right = first + margin([i.label for i in items]), margin([i.text for i in items], 40)
    height, bottom = inner + 0.62 + below, 0.56 + below
    width = max(WIDTH, left + right + 1.8)
    figure = new_figure(width, height)
    axes = figure.add_axes((left / width, bottom / height, (width - left - right) / width, inner / height))
    axes.set_ylim(y + ROW / 2 + 0.05, -ROW / 2 - 0.05)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    _bands(axes, groups, places, -left / (width - left - right), 1 + right / (width - left - right))
    edge = axes.get_yaxis_transform()
    span = width - left - right
    for k, (item, at) in enumerate(zip(items, places, strict=True)):
        if k == 0 or item.group != groups[k - 1]:
            axes.text(-(left - 0.06) / span, at, cut(item.group), transform=edge, va="center", fontweight="bold")
        axes.text(-0.08 / span, at, cut(item.label), transform=edge, va="center", ha="right")
        axes.text(1 + 0.1 / span, at, cut(item.text, 40), transform=edge, va="center", fontsize=SMALL)
    return figure, axes, places


def _bands(axes: Any, groups: Sequence[str], places: Sequence[float], start: float, end: float) -> None:
    """Every other group on a grey ground, from edge to edge."""
    from matplotlib.patches import Rectangle

    names = list(dict.fromkeys(groups))
    if len(names) < 2:
        return
    for index, name in enumerate(names):
        own = [p for p, g in zip(places, groups, strict=True) if g == name]
        if index % 2:
            corner = (start, own[0] - ROW / 2 - GAP / 2)
            size = (end - start, own[-1] - own[0] + ROW + GAP)
            axes.add_patch(
                Rectangle(
                    corner,
                    *size,
                    transform=axes.get_yaxis_transform(),
                    color=BAND,
                    linewidth=0,
                    zorder=-5,
                    clip_on=False,
                )
            )


def x_axis(axes: Any, label: str, percent: bool, grid: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    if grid:
        axes.grid(axis="x", color="#d5dae0", linewidth=0.6)
        axes.set_axisbelow(True)
    if percent:
        as_percent(axes.xaxis)


def as_percent(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.6g}%")
