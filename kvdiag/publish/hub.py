"""A data set repository on the Hub, as push needs it. Its failures become one line with a mend.

huggingface_hub does not repeat a commit that failed, and what repeats in `datasets` does not work with it; so what
is tried again, and when, is decided here, by the status code of the answer.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kvdiag.errors import DataError, KvdiagError, RefusedError, UsageError
from kvdiag.publish.plan import Plan, RemoteFile
from kvdiag.publish.release import Content

MAIN = "main"
ATTEMPTS = 4
# Seconds between two attempts, at first and at most.
_WAIT, _LONGEST_WAIT = 1.0, 60.0
_BUSY = (409, 429, 500, 502, 503, 504)
_LIBRARIES = ("httpx", "httpx2", "httpcore", "requests", "urllib3")

Answer = TypeVar("Answer")


class Moved(Exception):
    """The head is no longer the one that was planned on."""


class Hub:
    """One data set repository. api: a huggingface_hub.HfApi. wait: sleeps some seconds."""

    def __init__(self, repo: str, api: Any = None, wait: Callable[[float], None] = time.sleep) -> None:
        from huggingface_hub import HfApi

        self.repo = repo
        self._api = api or HfApi()
        self._wait = wait

    def head(self) -> tuple[str | None, bool]:
        """The newest commit, and whether the repository is private; (None, False) where there is none."""
        from huggingface_hub.errors import RepositoryNotFoundError

        def ask() -> tuple[str | None, bool]:
            try:
                info = self._api.repo_info(self.repo, repo_type="dataset", revision=MAIN)
            except RepositoryNotFoundError as error:
                if status_of(error) == 401:
                    raise
                return None, False
            return info.sha, bool(info.private)

        return self._ask("looking at the repository", ask)

    def create(self, private: bool) -> None:
        """Make the repository; one that is there is left as it is."""
        self._ask(
            "making the repository",
            lambda: self._api.create_repo(self.repo, repo_type="dataset", private=private, exist_ok=True),
        )

    def tags(self) -> list[str]:
        """Names of all tags."""
        refs = self._ask("reading the tags", lambda: self._api.list_repo_refs(self.repo, repo_type="dataset"))
        return [tag.name for tag in refs.tags]

    def commit_of(self, revision: str) -> str | None:
        """The commit that a tag names; None where there is no such tag."""
        from huggingface_hub.errors import RevisionNotFoundError

        def ask() -> str | None:
            try:
                return self._api.repo_info(self.repo, repo_type="dataset", revision=revision).sha
            except RevisionNotFoundError:
                return None

        return self._ask(f"reading the tag {revision}", ask)

    def files(self, revision: str) -> dict[str, RemoteFile]:
        """All files at a revision."""
        entries = self._ask(
            "listing the files",
            lambda: list(
                self._api.list_repo_tree(self.repo, repo_type="dataset", revision=revision, recursive=True)
            ),
        )
        return {
            e.path: RemoteFile(e.size, e.blob_id, e.lfs.sha256 if e.lfs else None)
            for e in entries
            if hasattr(e, "blob_id")
        }

    def read(self, name: str, revision: str) -> str:
        """A small text file at a revision."""
        from pathlib import Path

        path = self._ask(
            f"reading {name}",
            lambda: self._api.hf_hub_download(self.repo, name, repo_type="dataset", revision=revision),
        )
        return Path(path).read_text(encoding="utf-8", errors="replace")

    def commit(self, plan: Plan, title: str) -> str:
        """Make the plan's changes in one commit on its base; returns the commit's id.

        Raises Moved when the head is another by now. A commit whose answer was lost is found, not made twice.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        for attempt in range(1, ATTEMPTS + 1):
            operations: list[Any] = [
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=plan.files[name])
                for name in plan.paths("new", "changed")
            ]
            operations += [CommitOperationDelete(path_in_repo=name) for name in plan.paths("deleted")]
            try:
                done = self._api.create_commit(
                    self.repo,
                    operations,
                    commit_message=title,
                    repo_type="dataset",
                    revision=MAIN,
                    parent_commit=plan.base,
                )
                return done.oid
            except Exception as error:
                status = status_of(error)
                if status != 412 and not _passing(error):
                    raise self._explain("publishing", error) from error
                landed = self._landed(plan, title)
                if landed:
                    return landed
                if status == 412 or self.head()[0] != plan.base:
                    raise Moved from error
                if attempt == ATTEMPTS:
                    raise self._explain("publishing", error) from error
                self._wait(_pause(error, attempt))
        raise AssertionError("not reached")

    def pull_request(self, files: Mapping[str, Content], title: str, description: str) -> str:
        """Offer files as a pull request; returns its address. One whose answer was lost is found, not made twice.

        Raises RefusedError when an open pull request has this title already.
        """
        from huggingface_hub import CommitOperationAdd

        there = self._open_pull(title)
        if there:
            raise RefusedError(f"{self.repo}: has an open pull request of it already: {there}")
        for attempt in range(1, ATTEMPTS + 1):
            operations = [CommitOperationAdd(path_in_repo=n, path_or_fileobj=c) for n, c in files.items()]
            try:
                done = self._api.create_commit(
                    self.repo,
                    operations,
                    commit_message=title,
                    commit_description=description,
                    repo_type="dataset",
                    create_pr=True,
                )
                return str(done.pr_url)
            except Exception as error:
                if not _passing(error):
                    raise self._explain("opening the pull request", error) from error
                landed = self._open_pull(title)
                if landed:
                    return landed
                if attempt == ATTEMPTS:
                    raise self._explain("opening the pull request", error) from error
                self._wait(_pause(error, attempt))
        raise AssertionError("not reached")

    def _open_pull(self, title: str) -> str | None:
        """The address of the open pull request with this title."""
        found = self._ask(
            "looking at the pull requests",
            lambda: list(
                self._api.get_repo_discussions(self.repo, repo_type="dataset", discussion_type="pull_request")
            ),
        )
        return next((str(d.url) for d in found if d.title == title and d.status in ("open", "draft")), None)

    def _landed(self, plan: Plan, title: str) -> str | None:
        """The commit since the plan's base that has its title and all its files."""
        from kvdiag.publish.plan import compare

        commits = self._ask(
            "looking whether the commit was made",
            lambda: self._api.list_repo_commits(self.repo, repo_type="dataset", revision=MAIN),
        )
        for commit in commits:
            if commit.commit_id == plan.base:
                break
            there = self.files(commit.commit_id) if commit.title == title else None
            if there is not None and compare(plan.repo, plan.version, None, plan.files, there).empty:
                return commit.commit_id
        return None

    def tag(self, name: str, commit: str) -> None:
        """Name a commit. A tag that is there already must name the same one."""

        def make() -> None:
            try:
                self._api.create_tag(self.repo, repo_type="dataset", tag=name, revision=commit)
            except Exception as error:
                there = self.commit_of(name) if status_of(error) == 409 or _passing(error) else None
                if there == commit:
                    return
                if there:
                    raise RefusedError(
                        f"{self.repo}: {name} was taken meanwhile, by commit {there[:12]}"
                    ) from error
                raise

        self._ask(f"tagging {name}", make)

    def _ask(self, what: str, call: Callable[[], Answer]) -> Answer:
        """An answer of the Hub; what passes by itself is tried again."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call()
            except KvdiagError:
                raise
            except Exception as error:
                if not _passing(error) or attempt == ATTEMPTS:
                    raise self._explain(what, error) from error
                self._wait(_pause(error, attempt))
        raise AssertionError("not reached")

    def _explain(self, what: str, error: Exception) -> KvdiagError:
        return explain(self.repo, what, error)


def explain(repo: str, what: str, error: Exception) -> KvdiagError:
    """An error of the Hub or of the way there, in one line with its mend."""
    text, status = _text(error), status_of(error)
    kind = type(_root(error)).__name__
    if "xet-write-token" in text or ("xet" in text.lower() and "404" in text):
        return DataError(f"{repo}: {what}: this Hub has no Xet storage; set HF_HUB_DISABLE_XET=1 and try again")
    if status == 401 or kind == "LocalTokenNotFoundError":
        return RefusedError(f"{repo}: {what}: not logged in; run hf auth login, or set HF_TOKEN to a write token")
    if status == 403:
        return RefusedError(f"{repo}: {what}: this login may not write there; use a token with write permission")
    if status == 404:
        return DataError(f"{repo}: {what}: not found, or this login may not see it")
    if "Invalid metadata in README.md" in text:
        return DataError(f"{repo}: the Hub refuses the card's metadata, nothing was published: {_flat(text)}")
    if kind == "OfflineModeIsEnabled":
        return UsageError(f"{repo}: {what}: the Hub is switched off here (HF_HUB_OFFLINE); unset it first")
    if kind == "HFValidationError":
        return UsageError(f"REPO {repo}: {_flat(text)}")
    if kind == "LocalEntryNotFoundError":  # what a download that cannot reach the Hub ends in
        return DataError(f"{repo}: {what}: the Hub cannot be reached; try again later")
    if _passing(error):
        answer = f"answers {status}" if status else f"cannot be reached ({kind})"
        return DataError(f"{repo}: {what}: the Hub {answer}, after {ATTEMPTS} attempts; try again later")
    return DataError(f"{repo}: {what}: {kind}: {_flat(text)}")


def status_of(error: BaseException) -> int | None:
    """The status code of the answer behind an error."""
    status = getattr(getattr(_root(error), "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _root(error: BaseException) -> BaseException:
    """The error that an upload's RuntimeError wraps."""
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _passing(error: BaseException) -> bool:
    """Whether another attempt may succeed: the Hub is busy or down, or the way there is."""
    root, status = _root(error), status_of(error)
    if status is not None:
        return status in _BUSY
    if "404" in str(root) and "xet" in str(root).lower():
        return False
    libraries = {k.__module__.partition(".")[0] for k in type(root).__mro__}
    return bool(libraries & set(_LIBRARIES)) or type(root) in (ConnectionError, ConnectionResetError, TimeoutError)


def _pause(error: BaseException, attempt: int) -> float:
    """Seconds to wait: what the answer asks for, else twice as long each time."""
    headers: Mapping[str, str] = getattr(getattr(_root(error), "response", None), "headers", {})
    asked = headers.get("Retry-After", "")
    return min(float(asked) if asked.isdigit() else _WAIT * 2 ** (attempt - 1), _LONGEST_WAIT)


def _text(error: BaseException) -> str:
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        parts.append(str(seen))
        seen = seen.__cause__
    return "\n".join(parts)


def _flat(text: str) -> str:
    return " ".join(text.split())[:300]
