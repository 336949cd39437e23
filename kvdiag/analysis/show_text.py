"""A shown run for the terminal. Colours repeat what characters already say."""

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvdiag.analysis import show
from kvdiag.analysis.show import Layer, Piece, Shown

_STYLES = {"plain": "", "same": "dim", "other": "bold red", "missing": "italic"}
_LABEL = 11
# From nothing to all: a share of s has the glyph of its fifth.
_SHADES = ("·", "░", "▒", "▓", "█")
_COLOURS = ("red", "red", "yellow", "green", "green")
_BAR = 24


def brief(shown: Shown) -> list[str]:
    """The facts as lines of plain text."""
    return [f"{label:<{_LABEL}}{''.join(p.text for p in pieces)}" for label, pieces in show.facts(shown)]


def write(shown: Shown, console: Console) -> None:
    """Print the whole of a run."""
    for label, pieces in show.facts(shown):
        console.print(_fact(label, pieces))
    for title, part in (
        ("Evidence", _evidence(shown)),
        ("Evidence kept by layer and KV head, and attention on it", _layers(shown)),
        ("Rules", _rules(shown)),
        ("Metrics", _metrics(shown)),
    ):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(part)


def _fact(label: str, pieces: list[Piece]) -> RenderableType:
    grid = Table.grid(padding=0)
    grid.add_column(width=_LABEL)
    grid.add_column(overflow="fold")
    text = Text()
    for piece in pieces:
        text.append(piece.text, style=_STYLES[piece.kind])
    grid.add_row(Text(label, style="bold"), text)
    return grid


def _evidence(shown: Shown) -> RenderableType:
    found = show.evidence(shown)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for span in found.spans:
        text = Text(f"text {show.NOT_HERE}", style="italic") if span.text is None else Text(span.text)
        grid.add_row(Text(span.kept, style="bold"), text)
    grid.add_row("", Text(found.note, style="dim"))
    return grid


def _layers(shown: Shown) -> RenderableType:
    found = show.layers(shown)
    lines = Text()
    if found.kept_note:
        lines.append(f"evidence kept: {found.kept_note}\n")
    if found.attention_note:
        lines.append(f"attention: {found.attention_note}\n")
    most = max((layer.attention for layer in found.layers if layer.attention is not None), default=0.0)
    for layer in found.layers:
        _layer(lines, layer, most)
    if found.layers and not found.kept_note:
        marks = "  ".join(
            f"{glyph} {low}" for glyph, low in zip(_SHADES, ("0 %", ">0", "33", "66", "100 %"), strict=True)
        )
        lines.append(f"a pair of marks a head, then the layer's mean: {marks}\n")
    if found.layers and not found.attention_note:
        what = "attention weight on the evidence, over gold tokens and query heads"
        lines.append(f"bars: {what} ({found.mean}); longest bar = most\n")
    lines.rstrip()
    return lines


def shade(share: float) -> int:
    """Index of a share's glyph. None and all have their own; between them are three."""
    return 0 if share <= 0 else 4 if share >= 1 else 1 + min(2, int(share * 3))


def _layer(lines: Text, layer: Layer, most: float) -> None:
    lines.append(f"layer {layer.index:>3}  ")
    for share in layer.kept or []:
        lines.append(_SHADES[shade(share)] * 2 + " ", style=_COLOURS[shade(share)])
    if layer.kept:
        lines.append(f"{sum(layer.kept) / len(layer.kept):>5.0%}  ")
    if layer.attention is not None:
        bar = "━" * round(_BAR * layer.attention / most) if most else ""
        lines.append(f"{layer.attention:.4f} ")
        lines.append(bar, style="cyan")
    lines.append("\n")


def _rules(shown: Shown) -> RenderableType:
    verdict, text = show.verdict(shown), Text()
    text.append(f"{verdict.text}\n")
    for rule in verdict.rules:
        text.append(f"{'fired' if verdict.fired else 'did not fire'}  ", style="bold" if verdict.fired else "dim")
        text.append(f"{rule.name}: ")
        conditions = rule.conditions if verdict.fired else [c for c in rule.conditions if not c.holds]
        text.append("; ".join(c.text for c in conditions) + "\n")
    text.rstrip()
    return text


def _metrics(shown: Shown) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("metric", no_wrap=True)
    table.add_column("value, or why there is none", overflow="fold")
    table.add_column("control", overflow="fold")
    for name in ("unit", "better"):
        table.add_column(name, no_wrap=True)
    for metric in show.metrics(shown):
        style = "" if metric.available else "italic"
        table.add_row(
            metric.name, Text(metric.text, style=style), Text(metric.control), metric.unit, metric.better
        )
    return table
