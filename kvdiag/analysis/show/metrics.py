"""The metrics of a run, each with its unit, its meaning and the control's."""

from dataclasses import dataclass

from kvdiag.analysis.show.run import Shown, measure
from kvdiag.records.schema import json_schema, metric_names


@dataclass(frozen=True)
class Metric:
    """A metric of the run: text is its value, or status and reason; control is the control's, where it has one."""

    name: str
    text: str
    available: bool
    control: str
    unit: str
    better: str
    meaning: str


def metrics(shown: Shown) -> list[Metric]:
    """All metrics of the runs table, in its order."""
    of_control = metric_names("controls") if shown.control else []
    found = []
    for name in metric_names("runs"):
        prop = json_schema("runs")["properties"][name]
        better = prop.get("x-direction", "none")
        found.append(
            Metric(
                name=name,
                text=measure(shown.run, name),
                available=shown.run[name] is not None,
                control=measure(shown.control, name) if shown.control and name in of_control else "",
                unit=prop.get("x-unit", ""),
                better="" if better == "none" else better,
                meaning=prop["description"],
            )
        )
    return found
