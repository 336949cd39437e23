"""A method to start from: cards/method.py.j2 and its test, under a name of one's own."""

import keyword
import re
from pathlib import Path

import jinja2

from kvdiag.errors import RefusedError, UsageError
from kvdiag.methods.catalogue import methods
from kvdiag.resources import folder


def write(name: str, out: Path) -> tuple[Path, Path]:
    """Write <name>.py and test_<name>.py, in lower case with underscores; returns both paths.

    Raises UsageError for a name that no class may have, RefusedError when a file of that name is there.
    """
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"NAME {name}: must be the name of a Python class, as MyPress")
    if name.lower() in methods():
        raise UsageError(f"NAME {name}: {name.lower()} is a method of kvdiag; choose another name")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is a file; name a folder")
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    method, test = out / f"{stem}.py", out / f"test_{stem}.py"
    for path in (method, test):
        if path.exists():
            raise RefusedError(f"{path}: is there already; choose another NAME or --out")
    words = {"name": name, "file": method.name, "test_file": test.name}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("cards")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    out.mkdir(parents=True, exist_ok=True)
    for path, template in ((method, "method.py.j2"), (test, "test_method.py.j2")):
        path.write_text(environment.get_template(template).render(words), encoding="utf-8")
    return method, test
