"""Recipes: everything that decides what a build's rows say. YAML files in `builders/`, replaced by flags."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from kvdiag.diagnostics.signatures import FROZEN, Thresholds
from kvdiag.errors import UsageError, near_matches
from kvdiag.methods import catalogue
from kvdiag.methods.settings import Setting, parse_setting
from kvdiag.records.keys import PROTOCOLS
from kvdiag.resources import folder
from kvdiag.workloads import registry
from kvdiag.workloads.base import Source

_PROTOCOL_FLAGS = {
    "agnostic": ("query_agnostic",),
    "aware": ("query_aware",),
    "both": PROTOCOLS,
    "query_agnostic": ("query_agnostic",),
    "query_aware": ("query_aware",),
}


@dataclass(frozen=True)
class Recipe:
    """A checked recipe. Lists are as the user ordered them; `workload` is an id with its length."""

    name: str
    workload: str
    tasks: tuple[str, ...]
    limit: int
    seed: int
    model: str
    prompt: str
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    protocols: tuple[str, ...]
    max_new_tokens: int | None = None
    files: tuple[str, ...] = ()  # the user's own data, PATH or TASK=PATH
    haystack: str = "noise"  # of RULER's tasks that have prose: noise, prose, or a text file
    dtype: str = "auto"
    device: str = "auto"
    attention: str = "sdpa"  # of the prefill, as transformers names it
    trust_remote_code: bool = False
    allow_degenerate: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of signatures, where not the paper's

    def signature_thresholds(self) -> Thresholds:
        """Cut-offs of the signature rules."""
        return replace(FROZEN, **self.thresholds)

    def parsed_settings(self) -> list[Setting]:
        """Settings as objects."""
        return [parse_setting(s) for s in self.settings]

    def cells(self) -> list[tuple[catalogue.Method, Setting, str]]:
        """Method, setting and protocol of each cell: a method takes the settings of its own kind."""
        return [
            (method, setting, protocol)
            for method in catalogue.select(self.methods)
            for setting in self.parsed_settings()
            if setting.kind == method.setting_kind
            for protocol in self.protocols
        ]

    def sources(self, count_tokens: Callable[[Source], int], everything: bool = False) -> list[Source]:
        """The sources it asks for, in these tokens. everything: all of a data set, whatever the limit."""
        workload = registry.get(self.workload)
        limit = None if everything and workload.length is None else self.limit
        return list(
            workload.sources(
                self.tasks, limit, self.seed, count_tokens, self.max_new_tokens, self.files, self.haystack
            )
        )

    def planned_records(self) -> int:
        """Runs and controls, a control counted once for each protocol as the audit's paper does."""
        return self.limit * (len(self.cells()) + len(self.protocols))

    def as_dict(self) -> dict[str, Any]:
        """What the manifest keeps. `name` is a label and decides nothing."""
        return json.loads(json.dumps(asdict(self)))


def digest(data: Mapping[str, Any]) -> str:
    """sha256 of a mapping in canonical JSON."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def load(recipe: str | None = None, **flags: Any) -> Recipe:
    """The recipe a user asked for: a file or a name of `builders/`, with flags (None = not given) in place.

    Raises UsageError naming the flag or the file's field, also when the recipe names several models (load_all).
    """
    found = load_all(recipe, **flags)
    if len(found) > 1:
        raise UsageError(f"the recipe names {len(found)} models; choose one with --model")
    return found[0]


def load_all(recipe: str | None = None, **flags: Any) -> list[Recipe]:
    """The same, one for each model that the recipe names: each makes a ledger of its own.

    Raises UsageError also when the recipe states how many records it plans and plans another number.
    """
    path = _find(recipe or _recipe_of(flags.get("workload"), flags.get("length")))
    given = {k: v for k, v in flags.items() if v is not None}
    raw = _read(path)
    stated = raw.pop("planned_records", None)
    if "workload" in given:
        raw.pop("length", None)  # it was the other workload's, as tasks and files are of another kind
        if raw.get("workload") and not _same_family(raw["workload"], given["workload"]):
            raw.pop("tasks", None)
            raw.pop("files", None)
    raw.update(given)
    models = raw.get("model")
    models = models if isinstance(models, list) and models else [models]
    found = [_checked(raw | {"model": model}) for model in models]
    if stated is not None and not given.keys() & _COUNTED:
        planned = sum(r.planned_records() for r in found)
        if planned != stated:
            raise UsageError(f"{path}: planned_records says {stated}, the recipe plans {planned}")
    return found


def _same_family(one: Any, other: Any) -> bool:
    return str(one).split("_")[0] == str(other).split("_")[0]


# Fields that change how many records a recipe plans.
_COUNTED = {"workload", "length", "tasks", "limit", "model", "methods", "settings", "protocols"}


def _checked(raw: dict[str, Any]) -> Recipe:
    if not raw.get("workload"):
        raise UsageError("which workload? give --workload NAME (kvdiag workloads lists them) or --recipe NAME")
    _check_types(raw)
    workload = registry.get(raw["workload"], raw.pop("length", None))
    raw["workload"] = workload.id
    raw["tasks"] = workload.select_tasks(_names(raw.get("tasks"), "tasks"))
    raw["files"] = tuple(_names(raw.get("files") or None, "file"))
    raw["methods"] = tuple(m.id for m in catalogue.select(_names(raw.get("methods"), "methods")))
    raw["settings"] = tuple(dict.fromkeys(str(parse_setting(s)) for s in _names(raw.get("settings"), "settings")))
    raw["protocols"] = _protocols(_names(raw.get("protocols"), "protocol"))
    chosen = Recipe(**raw)
    _check_cells(chosen)
    return chosen


def _recipe_of(workload: Any, length: Any) -> str:
    """The recipe that is named after a workload (the paper's run of it), else the default one."""
    if not isinstance(workload, str) or not workload or not (length is None or isinstance(length, int)):
        return "default"  # what is wrong with it is said later
    name = registry.get(workload, length).id
    return name if name in available() else "default"


def _check_cells(recipe: Recipe) -> None:
    """Every method has a setting, every setting a method, and degenerate cells are asked for by name."""
    methods, settings = catalogue.select(recipe.methods), recipe.parsed_settings()
    for method in methods:
        if not any(s.kind == method.setting_kind for s in settings):
            wanted = "bits=4" if method.setting_kind == "bits" else "keep=0.5"
            raise UsageError(f"--settings: {method.id} needs a setting like {wanted}")
    for setting in settings:
        if not any(setting.kind == m.setting_kind for m in methods):
            raise UsageError(f"--settings {setting}: no chosen method has such a setting; leave it out")
    if not recipe.allow_degenerate:
        for method, setting, _ in recipe.cells():
            if method.degenerate(setting):
                raise UsageError(
                    f"--settings {setting}: degenerate for {method.id} ({method.degenerate(setting)}); "
                    "leave it out, or say --allow-degenerate to build it as a labelled cell"
                )


def _check_thresholds(given: Any) -> None:
    known = [f.name for f in fields(FROZEN)]
    if not isinstance(given, dict):
        raise UsageError("thresholds: must be a mapping of names to numbers")
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"thresholds: unknown name {name!r}; {near_matches(str(name), known)}")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UsageError(f"thresholds: {name} is {value!r}; it must be a number")


def _check_types(raw: Mapping[str, Any]) -> None:
    _check_thresholds(raw.get("thresholds", {}))
    for name, least in (("length", 1), ("limit", 1), ("seed", 0), ("max_new_tokens", 1)):
        value = raw.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be a whole number of at least {least}")
    for name in ("name", "workload", "model", "prompt", "dtype", "device", "attention", "haystack"):
        if name in raw and not isinstance(raw[name], str):
            raise UsageError(f"--{name} {raw[name]}: must be text; in a recipe, put it in quotes")
    for name in ("trust_remote_code", "allow_degenerate"):
        if not isinstance(raw.get(name, False), bool):
            raise UsageError(f"--{name.replace('_', '-')} {raw[name]}: must be true or false")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Fields in which two recipes or environments differ, as `field: old -> new`.

    kvdiag's commit is told but does not count: its version says what numbers depend on, and not every machine of a
    pool knows the commit.
    """
    keys = [k for k in dict.fromkeys([*old, *new]) if k != "kvdiag_commit"]
    return [f"{k}: {old.get(k)} -> {new.get(k)}" for k in keys if old.get(k) != new.get(k)]


def available() -> list[str]:
    """Names of the shipped recipes."""
    return sorted(p.stem for p in folder("builders").glob("*.yaml"))


def _find(recipe: str) -> Path:
    shipped = folder("builders") / f"{recipe}.yaml"
    if shipped.is_file():
        return shipped
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml") or "/" in recipe:
        if path.is_file():
            return path
        raise UsageError(f"--recipe {recipe}: no such file")
    raise UsageError(f"--recipe {recipe}: no such recipe; {near_matches(recipe, available())}")


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{where}: not valid YAML") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: a recipe is a mapping of fields")
    known = [f.name for f in fields(Recipe)] + ["length", "planned_records"]
    for key in raw:
        if key not in known:
            raise UsageError(f"{path}: unknown field {key!r}; {near_matches(str(key), known)}")
    missing = [f.name for f in fields(Recipe) if f.name in _REQUIRED and raw.get(f.name) is None]
    if missing:
        raise UsageError(f"{path}: field {missing[0]!r} is missing")
    return raw


_REQUIRED = ("name", "seed", "limit", "model", "prompt", "methods", "settings", "protocols")


def _names(value: Any, flag: str) -> list[str]:
    """A list from `a,b` or a YAML list."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value) or not value:
        raise UsageError(f"--{flag}: must be names separated by commas")
    return list(value)


def _protocols(names: list[str]) -> tuple[str, ...]:
    chosen: set[str] = set()
    for name in names:
        if name not in _PROTOCOL_FLAGS:
            raise UsageError(f"--protocol {name}: must be agnostic, aware or both")
        chosen.update(_PROTOCOL_FLAGS[name])
    return tuple(p for p in PROTOCOLS if p in chosen)
