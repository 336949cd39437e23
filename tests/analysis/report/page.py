"""Reads a report as a browser would: its sections, tables, figures and ids."""

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Section:
    """A section's text outside of tables and figures, its tables as rows of cells, and its figures' alt texts."""

    text: str = ""
    tables: list[list[list[str]]] = field(default_factory=list)
    alts: list[str] = field(default_factory=list)
    svg_texts: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """sections by id ("" is the header); ids and links of the whole page; tags as (name, attributes)."""

    def __init__(self, text):
        super().__init__()
        self.sections = {"": Section()}
        self.ids, self.tags = [], []
        self._now, self._cell, self._inside = self.sections[""], None, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.tags.append((tag, known))
        if "id" in known:
            self.ids.append(known["id"])
        if tag == "section":
            self._now = self.sections.setdefault(known["id"], Section())
        elif tag == "table":
            self._now.tables.append([])
        elif tag == "tr":
            self._now.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = ""
        elif tag == "svg":
            self._now.alts.append(known["aria-label"])
        if tag in ("svg", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._now.tables[-1][-1].append(self._cell)
            self._cell = None
        if self._inside and tag == self._inside[-1]:
            self._inside.pop()

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data
        elif self._inside:
            if self._inside[-1] == "svg" and data.strip():
                self._now.svg_texts.append(data.strip())
        else:
            self._now.text += data


def columns(table, *names):
    """Some columns of a table, row by row."""
    header, *rows = table
    places = [header.index(name) for name in names]
    return [tuple(row[i] for i in places) for row in rows]
