"""The documented methods are those of the catalogue, and their settings say what cannot run."""

from pathlib import Path

import pytest

from kvdiag.methods import catalogue, page
from kvdiag.methods.settings import Setting

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_the_catalogue():
    """Mend with: kvdiag methods --markdown > docs/methods.md"""
    assert (DOCS / "methods.md").read_text(encoding="utf-8") == page.page()


@pytest.mark.parametrize(("keep", "reason"), [(0.25, "channels_exhausted"), (0.5, None), (0.75, None)])
def test_think_has_only_so_many_channels(keep, reason):
    assert catalogue.get("think").unsupported(Setting("keep", keep)) == reason


def test_degenerate_settings_are_known_before_any_run():
    think = catalogue.get("think")
    assert think.degenerate(Setting("keep", 0.5)) == "all_key_channels_zero"
    assert think.degenerate(Setting("keep", 0.75)) is None
    assert all(m.degenerate(Setting("keep", 0.5)) is None for m in catalogue.runnable() if m.id != "think")


def test_every_method_says_which_diagnostics_are_valid():
    for method in catalogue.methods().values():
        told = method.diagnostics()
        assert told.keys() == {"retention", "likelihood", "attention", "decoding"}
        assert (told["retention"] == "valid") != method.structural
