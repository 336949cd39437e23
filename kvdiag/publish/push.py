"""`kvdiag push`: a ledger becomes a release on the Hub, in one commit and one tag, or nothing does."""

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag.errors import RefusedError, UsageError
from kvdiag.ledger import card
from kvdiag.ledger.layout import CARD
from kvdiag.publish import croissant, licences
from kvdiag.publish.hub import Hub, Moved
from kvdiag.publish.licences import Redistributable
from kvdiag.publish.plan import Plan, RemoteFile, compare
from kvdiag.publish.release import Contents, check, gather

FIRST = "1.0.0"
# Files that would change what loaders see behind the card's back.
_IN_THE_WAY = {
    ".huggingface.yaml": "it overrides the card's configurations",
    ".gitignore": "it may keep files of a release out",
}
# Without leading zeros: 01.0.0 would be another tag of the same version.
_VERSION = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Outcome:
    """What a push did. commit: the release's; None in a dry run. texts: by workload, whether published."""

    plan: Plan
    commit: str | None
    committed: bool
    tagged: bool
    texts: Mapping[str, bool]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        done = {"commit": self.commit, "committed": self.committed, "tagged": self.tagged}
        return self.plan.as_dict() | {"tag": tag_of(self.plan.version)} | done | {"texts": dict(self.texts)}


def push(
    ledger: Path,
    repo: str,
    version: str | None = None,
    private: bool = False,
    dry_run: bool = False,
    own_texts: bool = False,
    redistributable: Redistributable = licences.redistributable,
    report: Callable[[Plan], None] = lambda plan: None,
    api: Any = None,
    wait: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Publish a ledger as `repo` and tag it vX.Y.Z. The ledger itself is not changed.

    version: by default the newest one with its last part raised, 1.0.0 at first. own_texts: publish texts of the
    user's own files too. report: is given the plan before anything is done (again, when others pushed meanwhile).

    Raises DataError for an invalid ledger and for failures of the Hub, RefusedError for a version that is taken or
    too low, for what the login may not do, and when others keep changing the repository.
    """
    if not _REPO.fullmatch(repo):
        raise UsageError(f"REPO {repo}: must be org/name")
    if version is not None and not _VERSION.fullmatch(version):
        raise UsageError(f"--version {version}: must be X.Y.Z, numbers without leading zeros")
    check(ledger)
    hub = Hub(repo, api, wait)
    with tempfile.TemporaryDirectory(prefix="kvdiag-push-") as scratch:
        contents = gather(ledger, Path(scratch), redistributable, own_texts)
        for last in (False, True):
            plan, tagged_at = _plan(hub, contents, version, private)
            report(plan)
            if dry_run:
                return Outcome(plan, None, False, False, contents.texts)
            try:
                return _publish(hub, plan, tagged_at, private, contents)
            except Moved:
                if last:
                    break
    raise RefusedError(f"{repo}: others are changing it at the same time, nothing was published; push again later")


def _publish(hub: Hub, plan: Plan, tagged_at: str | None, private: bool, contents: Contents) -> Outcome:
    if tagged_at:
        return Outcome(plan, tagged_at, False, False, contents.texts)
    if plan.base is None:
        hub.create(private)
        base, _ = hub.head()
        there = hub.files(base) if base else {}
        plan = compare(plan.repo, plan.version, base, plan.files, there)
    tag = tag_of(plan.version)
    title = f"kvdiag push: {tag}"
    commit = plan.base if plan.empty else hub.commit(plan, title)
    assert commit is not None
    try:
        hub.tag(tag, commit)
    except Exception as error:
        error.args = (f"{error} (the data is on main as {commit[:12]}, whole; push again to tag it)",)
        raise
    return Outcome(plan, commit, not plan.empty, True, contents.texts)


def _plan(hub: Hub, contents: Contents, version: str | None, private: bool) -> tuple[Plan, str | None]:
    """The plan, and the commit that holds this release already, tagged: then there is nothing to do."""
    base, is_private = hub.head()
    if base is None:
        first = version or FIRST
        return compare(hub.repo, first, None, contents.at(hub.repo, first, ""), {}), None
    if private and not is_private:
        raise RefusedError(f"{hub.repo} is public already; --private only makes a new repository private")
    tags, there = hub.tags(), hub.files(base)
    for name, why in _IN_THE_WAY.items():
        if name in there:
            raise RefusedError(f"{hub.repo} has a file {name}: {why}; remove it there first")
    notes = card.notes(hub.read(CARD, base)) if CARD in there else ""

    def at(wanted: str, revision: str, files: Mapping[str, RemoteFile]) -> Plan:
        return compare(hub.repo, wanted, revision, contents.at(hub.repo, wanted, notes), files)

    taken = {v for tag in tags if tag.startswith("v") and (v := _parse(tag[1:]))}
    on_main = _published_version(hub, base, there)
    top = max([*taken, *([on_main] if on_main else [])], default=None)
    # A release whose tag was never made keeps its version: the loaders' caches may know it.
    wanted = _parse(version) if version else on_main
    if wanted:
        plan = at(_text(wanted), base, there)
        on_top = wanted == on_main and plan.empty
        if wanted in taken:
            tag = tag_of(_text(wanted))
            tagged = at(_text(wanted), tag, hub.files(tag))
            # The card on main may have been edited since; what loaders read is what was tagged.
            if on_top and tagged.differs_in_card_only:
                return plan, hub.commit_of(tag)
            if version and tagged.empty:
                return tagged, hub.commit_of(tag)
            if version:
                raise RefusedError(
                    f"--version {version}: {hub.repo} has {tag} with other content {_other(tagged)}"
                )
        elif on_top:
            return plan, None
        elif version:
            _refuse_low(hub.repo, wanted, top, on_main, plan)
            return plan, None
    text = _text((top[0], top[1], top[2] + 1)) if top else FIRST
    return at(text, base, there), None


def _refuse_low(repo: str, wanted: Version, top: Version | None, on_main: Version | None, plan: Plan) -> None:
    """Raise RefusedError unless a version is above all that others may have read."""
    if wanted == on_main:
        raise RefusedError(
            f"--version {_text(wanted)}: main of {repo} has it, not tagged, with other content {_other(plan)}"
        )
    if top and wanted < top:
        where = "which is on its main" if top == on_main else "its newest tag"
        raise RefusedError(f"--version {_text(wanted)}: must be above {_text(top)} of {repo}, {where}")


def _other(plan: Plan) -> str:
    changed = [c.path for c in plan.changes if c.kind != "unchanged"]
    return f"({changed[0]}{f' and {len(changed) - 1} more' if len(changed) > 1 else ''}); choose a higher one"


def _published_version(hub: Hub, revision: str, there: Mapping[str, RemoteFile]) -> Version | None:
    """The version of what is on main, from the file that only push writes."""
    if croissant.FILE not in there:
        return None
    try:
        return _parse(str(json.loads(hub.read(croissant.FILE, revision))["version"]))
    except (ValueError, KeyError, TypeError):
        return None


def tag_of(version: str) -> str:
    """The tag of a version."""
    return f"v{version}"


def _parse(text: str) -> Version | None:
    found = _VERSION.fullmatch(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _text(version: Version) -> str:
    return ".".join(map(str, version))
