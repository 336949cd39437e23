"""The report as one HTML file that needs nothing else: no scripts, no fonts, no network."""

from collections.abc import Callable
from typing import Any

import jinja2

from kvdiag import __version__
from kvdiag.analysis.report import audited, canvas, causes, evidence, failures
from kvdiag.analysis.report.frames import cut
from kvdiag.analysis.report.parts import Section, of, percent, plural
from kvdiag.analysis.report.tables import Data, Row, by_strength
from kvdiag.resources import folder

TEMPLATE = "report.html.j2"
_HOLES = 6
_SECTIONS: tuple[Callable[[Data], Section], ...] = (
    failures.rates,
    failures.against_bytes,
    causes.overlap,
    causes.signatures,
    evidence.separation,
    audited.delta,
    audited.coverage,
    evidence.quality,
)


def sections(data: Data) -> list[Section]:
    """All sections, those without data too."""
    return [build(data) for build in _SECTIONS]


def draw(found: list[Section], form: str) -> dict[str, bytes]:
    """All figures as SVG or PNG, by name."""
    with canvas.style():
        return {p.name: canvas.to_bytes(p.draw(), form) for s in found for p in s.panels}


def render(data: Data, found: list[Section], svg: dict[str, bytes]) -> str:
    """The page. svg: its figures by name. What comes from the ledger is escaped; an unknown field is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("cards")),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        data=data,
        facts=facts(data),
        environment=[(k, _plain(v)) for k, v in data.manifest["environment"].items()],
        sections=found,
        drawn={p.name: canvas.inline(svg[p.name], p.name, cut(p.alt, 1_000)) for s in found for p in s.panels},
        version=__version__,
    )


def facts(data: Data) -> list[tuple[str, str]]:
    """What the ledger is, as label and text."""
    recipe, origin, totals = data.manifest["recipe"], data.manifest["origin"], data.totals
    n_c2w, n = totals["n_c2w"], totals["n_eligible"]
    return [
        (
            "Result",
            f"{n_c2w:,} of {n:,} right answers turned wrong"
            + (f" ({percent(n_c2w / n)}), all cells together" if n else ""),
        ),
        ("What", f"imported: {origin['what']} ({origin['licence']})" if origin else f"recipe {recipe['name']}"),
        ("Model" if len(data.models) < 2 else "Models", "\n".join(data.models) or "none"),
        ("Workloads", "\n".join(map(_workload, data.workloads)) or "none"),
        ("Methods", _names(r["method"] for r in data.rates)),
        ("Settings", ", ".join(_settings(data))),
        ("Protocols", _names(r["protocol"].removeprefix("query_") for r in data.rates)),
        ("Runs", f"{totals['n_runs']:,}, of which {totals['n_answered']:,} answered"),
        ("Complete", _complete(data)),
    ]


def _complete(data: Data) -> str:
    """Whether each planned run has a row, as the manifest says, and an answer, as the audit finds."""
    holes = data.manifest["holes"]
    more = f"; and {len(holes) - _HOLES} more" if len(holes) > _HOLES else ""
    by_rows = "every planned run has one" if data.manifest["complete"] else "; ".join(holes[:_HOLES]) + more
    found = data.coverage.found
    if found is None:
        return f"rows: {by_rows}\nanswers: unknown, nothing is planned"
    cannot = sum(c["n_cannot_run"] for c in found["cells"])
    return f"rows: {by_rows}\nanswers: {found['label']}" + (
        f"; {plural(cannot, 'run')} cannot be run" if cannot else ""
    )


def _workload(row: Row) -> str:
    """A workload's sources, and how its full-cache answers were judged."""
    text = f"{row['workload']}: {row['n_sources']:,} sources, "
    text += f"{of(row['n_right'], row['n_judged'])} full-cache answers right"
    text += f" ({percent(row['n_right'] / row['n_judged'])})" if row["n_judged"] else ""
    without = row["n_controls"] - row["n_answered"]
    unjudged = row["n_answered"] - row["n_judged"]
    text += f", {without} without an answer" if without else ""
    return text + (f", {unjudged} neither right nor wrong" if unjudged else "")


def _names(found: Any) -> str:
    return ", ".join(dict.fromkeys(sorted(found))) or "none"


def _settings(data: Data) -> list[str]:
    return sorted({r["setting"] for r in data.rates}, key=by_strength) or ["none"]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}: {v}" for k, v in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
