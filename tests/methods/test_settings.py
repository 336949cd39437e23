"""Settings read back as they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.errors import UsageError
from kvdiag.methods.settings import Setting, parse_setting


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("keep=0.5", "keep=0.5"),
        (" keep = 0.50 ", "keep=0.5"),
        ("keep=.25", "keep=0.25"),
        ("keep=0.00001", "keep=0.00001"),
    ],
)
def test_one_setting_has_one_name(text, shown):
    assert str(parse_setting(text)) == shown


@given(value=st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True))
def test_a_setting_reads_back(value):
    setting = Setting("keep", value)
    assert parse_setting(str(setting)) == setting
    assert setting.keep == value


@pytest.mark.parametrize(
    "text", ["keep", "keep=", "0.5", "keep=1e-3", "keep=0", "keep=1.0", "keep=.", "Keep=0.5", ""]
)
def test_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"^--settings "):
        parse_setting(text)
