"""Matplotlib figures to bytes that are the same each time, and SVG that can stand inside a page.

matplotlib is imported inside functions: reading a ledger must not need it.
"""

import importlib.util
import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvdiag.errors import UsageError

FORMATS = ("svg", "png")
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same widths everywhere
    "font.size": 10.0,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.7,
    "text.parse_math": False,  # a name may hold a dollar sign
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "kvdiag",  # ids would else be random
}


def require_matplotlib() -> None:
    """Raise UsageError, with the mend, where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "kvdiag report draws with matplotlib, which is not installed: pip install 'kvdiag[report]'"
        )


@contextmanager
def style() -> Iterator[None]:
    """Our look, whatever a user's matplotlibrc says."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches. No pyplot: no window, nothing kept after use."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def to_bytes(figure: Any, form: str) -> bytes:
    """The figure as an SVG or PNG file, without dates or versions."""
    buffer = io.BytesIO()
    nothing = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    figure.savefig(buffer, format=form, metadata=nothing, dpi=160 if form == "png" else 72)
    return buffer.getvalue()


def inline(svg: bytes, name: str, alt: str) -> str:
    """SVG for the inside of a page: alt text, ids that no other figure has, no style sheet of its own."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    used = {m for e in root.iter() for v in e.attrib.values() for m in re.findall(r"#([\w-]+)", v)}
    for element in root.iter():
        _rename(element, name, used)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    # What the dropped style sheet said; in a page it would have held for everything.
    root.attrib |= {"role": "img", "aria-label": alt, "style": "stroke-linejoin:round;stroke-linecap:butt"}
    return ElementTree.tostring(root, encoding="unicode")


def _rename(element: Any, name: str, used: set[str]) -> None:
    """Keep ids that something refers to, with the figure's name before them."""
    for key, value in list(element.attrib.items()):
        if key == "id":
            if value in used:
                element.set(key, f"{name}-{value}")
            else:
                del element.attrib[key]
        elif key == f"{{{_XLINK}}}href" and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif "url(#" in value:
            element.set(key, value.replace("url(#", f"url(#{name}-"))
