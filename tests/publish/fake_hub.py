"""A Hugging Face Hub in memory: what huggingface_hub, datasets, pandas and DuckDB ask of the real one.

It keeps commits, tags and blobs, logs each request, and fails where a test tells it to. It cannot show what only
the real server knows: its rules for card metadata, its time limits, paging, the viewer.
"""

import base64
import hashlib
import json
import re
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Fault = int | str | Callable[[], None]


@dataclass
class Commit:
    """One commit: paths and the ids of their blobs."""

    id: str
    title: str
    files: dict[str, str]


@dataclass
class Repo:
    """One data set, with its history, oldest first."""

    id: str
    private: bool
    commits: list[Commit]
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> Commit:
        """The newest commit of main."""
        return self.commits[-1]

    def commit(self, files: dict[str, str], title: str) -> Commit:
        """Add a commit that holds these files."""
        text = json.dumps([self.id, len(self.commits), title, sorted(files.items())])
        self.commits.append(Commit(hashlib.sha1(text.encode()).hexdigest(), title, files))
        return self.head


class FakeHub:
    """The server. faults: for each step what its next requests get, in order:

    a status; `lost` (done, and the line is cut before the answer); `cut` (the line is cut, nothing is done);
    or a function that is called first, as another user's push. Steps: info, create, preupload, batch, put, yaml,
    commit, tag, refs, tree, commits, discussions, resolve, xet.
    """

    def __init__(self, xet: Path | None = None) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}  # by git id
        self.stored: dict[str, bytes] = {}  # large files, by sha256
        self.sizes: dict[str, int] = {}  # of large files
        self.faults: dict[str, list[Fault]] = {}
        self.log: list[tuple[str, str]] = []
        self.pulls: list[Commit] = []  # open pull requests, of any data set
        self.sent: list[str] = []  # sha256 of each large file that was sent
        self.bad_yaml: str | None = None
        self.writers = {"write-token"}
        self.xet = xet
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def forget(self) -> None:
        """Back to an empty Hub without faults."""
        for kept in (
            self.repos,
            self.blobs,
            self.stored,
            self.sizes,
            self.faults,
            self.log,
            self.sent,
            self.pulls,
        ):
            kept.clear()
        self.bad_yaml = None

    def create(self, name: str, private: bool = False) -> Repo:
        """A repository as a new one is."""
        repo = self.repos[name] = Repo(name, private, [])
        repo.commit(
            {".gitattributes": self.keep(b"*.parquet filter=lfs diff=lfs merge=lfs -text\n")}, "initial commit"
        )
        return repo

    def put(self, name: str, path: str, content: bytes, title: str = "by hand") -> None:
        """Another user's commit of one file."""
        repo = self.repos[name]
        repo.commit({**repo.head.files, path: self.keep(content)}, title)

    def keep(self, content: bytes) -> str:
        """Store a small file; returns its id."""
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.blobs[oid] = content
        return oid

    def requests(self, pattern: str) -> list[tuple[str, str]]:
        """Logged requests whose path matches."""
        return [entry for entry in self.log if re.search(pattern, entry[1])]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        return Handler


class _Refused(Exception):
    """An answer with an error."""

    def __init__(self, status: int, code: str = "", message: str = "", body: Any = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.body = status, code, message, body


class _Cut(Exception):
    """The line goes dead."""


_ROUTES = [
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "yaml"),
    ("GET", r"/api/whoami-v2", "whoami"),
    ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)", "info"),
    ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/revision/(?P<rev>[^/]+)", "info"),
    ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/tree/(?P<rev>[^/]+)(?:/(?P<path>.*))?", "tree"),
    ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/paths-info/(?P<rev>[^/]+)", "paths"),
    ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/refs", "refs"),
    ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/commits/(?P<rev>[^/]+)", "commits"),
    ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/discussions", "discussions"),
    ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/preupload/(?P<rev>[^/]+)", "preupload"),
    ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/commit/(?P<rev>[^/]+)", "commit"),
    ("POST", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/tag/(?P<rev>[^/]+)", "tag"),
    ("GET", r"/api/datasets/(?P<repo>[^/]+/[^/]+)/xet-(?P<kind>read|write)-token/(?P<rev>[^/]+)", "xet"),
    ("POST", r"/datasets/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "put"),
    ("POST", r"/lfs/verify", "verify"),
    ("GET|HEAD", r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)", "resolve"),
]
_WRITES = ("create", "preupload", "batch", "commit", "tag")


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one packet: two would wait for each other
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        """Nothing: requests are in the hub's log."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._chunks()
        self.hub.log.append((self.command, parts.path))
        try:
            for method, pattern, step in _ROUTES:
                match = re.fullmatch(pattern, parts.path)
                if match and self.command in method.split("|"):
                    found = {k: unquote(v) for k, v in match.groupdict().items() if v is not None}
                    self._step(step, found)
                    return
            raise _Refused(404, message=f"no route {self.command} {parts.path}")
        except _Refused as refused:
            body = json.dumps(refused.body or {"error": refused.message}).encode()
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self._answer(refused.status, body, {k: v for k, v in headers.items() if v})
        except _Cut:
            self.close_connection = True
            self.connection.close()

    do_GET = do_POST = do_PUT = do_HEAD = _serve

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _step(self, step: str, found: dict[str, str]) -> None:
        waiting = self.hub.faults.get(step, [])
        fault = waiting.pop(0) if waiting else None
        if isinstance(fault, int):
            raise _Refused(fault, message=f"told to answer {fault}")
        if fault == "cut":
            raise _Cut
        if callable(fault):
            fault()
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if step in _WRITES and token not in self.hub.writers:
            raise _Refused(403 if token else 401, message="no right to write")
        answer = getattr(self, f"_{step}")(**found)
        if fault == "lost":
            raise _Cut
        if answer is not None:
            self._answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _find(self, repo: str, rev: str = "main") -> tuple[Repo, Commit]:
        if repo not in self.hub.repos:
            raise _Refused(404, "RepoNotFound", "Repository not found")
        found = self.hub.repos[repo]
        wanted = found.head.id if rev in ("main", "refs/heads/main") else found.tags.get(rev, rev)
        for commit in found.commits:
            if commit.id == wanted:
                return found, commit
        raise _Refused(404, "RevisionNotFound", f"Invalid rev id: {rev}")

    def _whoami(self) -> Any:
        return {"type": "user", "name": "someone", "auth": {"accessToken": {"role": "write"}}}

    def _create(self) -> Any:
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'someone'}/{asked['name']}"
        if name in self.hub.repos:
            raise _Refused(409, message="You already created this dataset repo")
        self.hub.create(name, asked.get("visibility") == "private" or bool(asked.get("private")))
        return {"url": f"{self.hub.endpoint}/datasets/{name}", "name": name, "id": "1"}

    def _yaml(self) -> Any:
        if self.hub.bad_yaml:
            raise _Refused(400, body={"errors": [{"message": self.hub.bad_yaml}], "warnings": []})
        return {"errors": [], "warnings": []}

    def _info(self, repo: str, rev: str = "main") -> Any:
        found, commit = self._find(repo, rev)
        return {
            "_id": "1",
            "id": found.id,
            "sha": commit.id,
            "private": found.private,
            "gated": False,
            "disabled": False,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "tags": [],
            "siblings": [{"rfilename": name} for name in commit.files],
        }

    def _entry(self, path: str, oid: str) -> dict[str, Any]:
        last = {"id": "0" * 40, "title": "a commit", "date": "2026-01-01T00:00:00.000Z"}
        entry = {"type": "file", "path": path, "lastCommit": last}
        if oid in self.hub.blobs:
            return {**entry, "oid": oid, "size": len(self.hub.blobs[oid])}
        size = self.hub.sizes[oid]
        lfs = {"oid": oid, "size": size, "pointerSize": 130}
        known = {"xetHash": self._xet_hash(oid)} if self.hub.xet else {}
        return {**entry, "oid": oid[:40], "size": size, "lfs": lfs, **known}

    def _tree(self, repo: str, rev: str, path: str = "") -> Any:
        _, commit = self._find(repo, rev)
        deep = self.query.get("recursive", ["false"])[0].lower() == "true"
        inside = path.rstrip("/") + "/" if path else ""
        files = {n: oid for n, oid in commit.files.items() if n.startswith(inside)}
        if path and not files:
            raise _Refused(404, "EntryNotFound", f"{path} does not exist")
        entries, folders = [], set()
        for name, oid in sorted(files.items()):
            rest = name.removeprefix(inside).split("/")
            for depth in range(1, len(rest)):
                folders.add(inside + "/".join(rest[:depth]))
            if deep or len(rest) == 1:
                entries.append(self._entry(name, oid))
        shown = [f for f in sorted(folders) if deep or "/" not in f.removeprefix(inside)]
        return [{"type": "directory", "path": f, "oid": "0" * 40, "size": 0} for f in shown] + entries

    def _paths(self, repo: str, rev: str) -> Any:
        _, commit = self._find(repo, rev)
        wanted = parse_qs(self.body.decode()).get("paths") or []
        if self.body.startswith(b"{"):
            wanted = json.loads(self.body)["paths"]
        found = []
        for path in wanted:
            if path in commit.files:
                found.append(self._entry(path, commit.files[path]))
            elif any(name.startswith(path.rstrip("/") + "/") for name in commit.files):
                found.append({"type": "directory", "path": path, "oid": "0" * 40, "size": 0})
        return found

    def _refs(self, repo: str) -> Any:
        found, commit = self._find(repo)
        return {
            "branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": commit.id}],
            "tags": [{"name": t, "ref": f"refs/tags/{t}", "targetCommit": c} for t, c in found.tags.items()],
            "converts": [],
        }

    def _commits(self, repo: str, rev: str) -> Any:
        found, commit = self._find(repo, rev)
        older = found.commits[: found.commits.index(commit) + 1]
        return [
            {"id": c.id, "title": c.title, "message": "", "date": "2026-01-01T00:00:00.000Z", "authors": []}
            for c in reversed(older)
        ]

    def _discussions(self, repo: str) -> Any:
        self._find(repo)
        about = {"repo": {"name": repo, "type": "dataset"}, "author": {"name": "someone"}, "status": "open"}
        about |= {"createdAt": "2026-01-01T00:00:00.000Z", "isPullRequest": True}
        found = [about | {"title": pull.title, "num": n} for n, pull in enumerate(self.hub.pulls, start=1)]
        return {"discussions": found, "count": len(found), "start": 0}

    def _preupload(self, repo: str, rev: str) -> Any:
        _, commit = self._find(repo, rev)
        answers = []
        for asked in json.loads(self.body)["files"]:
            mode = "lfs" if asked["path"].endswith(".parquet") else "regular"
            known = commit.files.get(asked["path"])
            answers.append({"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": known})
        return {"files": answers}

    def _batch(self, repo: str) -> Any:
        objects = []
        for asked in json.loads(self.body)["objects"]:
            entry = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.hub.stored:
                verify = {"href": f"{self.hub.endpoint}/lfs/verify", "header": {}}
                upload = {"href": f"{self.hub.endpoint}/lfs/{asked['oid']}", "header": {}}
                entry["actions"] = {"upload": upload, "verify": verify}
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}

    def _put(self, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise _Refused(400, message="content and oid differ")
        self.hub.stored[oid] = self.body
        self.hub.sent.append(oid)
        return {}

    def _verify(self) -> Any:
        return {}

    def _commit(self, repo: str, rev: str) -> Any:
        found, parent = self._find(repo, rev)
        files, title = dict(parent.files), ""
        for line in self.body.splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header":
                title = value["summary"]
                if value.get("parentCommit") not in (None, parent.id):
                    raise _Refused(412, message="A commit has happened since. Please refresh and try again.")
            elif key == "file":
                files[value["path"]] = self.hub.keep(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if value["oid"] not in self.hub.stored and not (self.hub.xet and self._xet_hash(value["oid"])):
                    raise _Refused(400, message=f"LFS pointer to a file that was not sent: {value['path']}")
                self.hub.sizes[value["oid"]] = value["size"]
                files[value["path"]] = value["oid"]
            elif key == "deletedFile":
                del files[value["path"]]
        made = found.commit(files, title)
        return {"commitOid": made.id, "commitUrl": f"{self.hub.endpoint}/datasets/{repo}/commit/{made.id}"}

    def _tag(self, repo: str, rev: str) -> Any:
        found, commit = self._find(repo, rev)
        name = json.loads(self.body)["tag"]
        if name in found.tags:
            raise _Refused(409, message=f"Tag {name} exists already")
        found.tags[name] = commit.id
        return {}

    def _resolve(self, repo: str, rev: str, path: str) -> None:
        _, commit = self._find(repo, rev)
        if path not in commit.files:
            headers = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            self._answer(404, b"", headers | {"X-Repo-Commit": commit.id})
            return
        oid = commit.files[path]
        headers = {"X-Repo-Commit": commit.id, "ETag": f'"{oid}"', "Accept-Ranges": "bytes"}
        content = self.hub.blobs.get(oid, self.hub.stored.get(oid))
        if oid not in self.hub.blobs:
            headers |= {"X-Linked-ETag": f'"{oid}"', "X-Linked-Size": str(self.hub.sizes[oid])}
            if self.hub.xet and self.command == "HEAD":
                token = f"{self.hub.endpoint}/api/datasets/{repo}/xet-read-token/{commit.id}"
                headers |= {"X-Xet-Hash": str(self._xet_hash(oid)), "Link": f'<{token}>; rel="xet-auth"'}
        if content is None:
            self._answer(200, b"", headers | {"Content-Length": str(self.hub.sizes[oid])})
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not asked:
            self._answer(200, content, headers | {"Content-Length": str(len(content))})
            return
        start, end = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
        part = content[start : end + 1]
        self._answer(206, part, headers | {"Content-Range": f"bytes {start}-{end}/{len(content)}"})

    def _xet(self, repo: str, kind: str, rev: str) -> None:
        self._find(repo, rev)
        if not self.hub.xet:
            raise _Refused(404, message="no Xet here")
        expires, store = 4_000_000_000, f"local://{self.hub.xet}"
        body = json.dumps({"accessToken": "t", "exp": expires, "casUrl": store}).encode()
        headers = {"X-Xet-Cas-Url": store, "X-Xet-Access-Token": "t", "X-Xet-Token-Expiration": str(expires)}
        self._answer(200, body, headers)

    def _xet_hash(self, sha256: str) -> str | None:
        """What Xet calls a file, from the shards in its local store: sha256 stands in each file's last entry."""
        assert self.hub.xet
        for shard in sorted(self.hub.xet.rglob("*.mdb")):
            data = shard.read_bytes()
            at = 48
            while at + 48 <= len(data):
                name, flags, entries = data[at : at + 32], *struct.unpack_from("<II", data, at + 32)
                if name == b"\xff" * 32:
                    break
                at += 48 * (1 + entries * (2 if flags >> 31 & 1 else 1))
                if flags >> 30 & 1:
                    if _words(data[at : at + 32]) == sha256:
                        return _words(name)
                    at += 48
        return None


def _words(data: bytes) -> str:
    """32 bytes as Xet prints a hash: four little-endian words."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", data))
