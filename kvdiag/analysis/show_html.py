"""A shown run as one HTML file that needs nothing else: no scripts, no fonts, no network."""

import jinja2

from kvdiag import __version__
from kvdiag.analysis import show
from kvdiag.analysis.show import Shown
from kvdiag.resources import folder

TEMPLATE = "run.html.j2"


def render(shown: Shown) -> str:
    """The page. Everything from the ledger is escaped; an unknown field is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("cards")),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found = show.layers(shown)
    return environment.get_template(TEMPLATE).render(
        run=shown.run,
        facts=show.facts(shown),
        evidence=show.evidence(shown),
        map=found,
        heads=len(found.layers[0].kept or []) if found.layers else 0,
        most=max((layer.attention or 0.0 for layer in found.layers), default=0.0),
        verdict=show.verdict(shown),
        metrics=show.metrics(shown),
        not_here=show.NOT_HERE,
        version=__version__,
    )
