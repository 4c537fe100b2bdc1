"""Pages: text is escaped, and nothing invisible reorders or hides it."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.report.page import render, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202egnp.exe", "a\\u202egnp.exe"),  # right-to-left override
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),  # isolates, right-to-left mark
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\x00\x1b\x85", "\\x00\\x1b\\x85"),
        ("\ud800\ufffe", "\\ud800\\ufffe"),
        ("tab\tline\nend\r", "tab\tline\nend\r"),
        ("שלום 👩\u200d💻 x\u200cy", "שלום 👩\u200d💻 x\u200cy"),  # joiners stay
        ("narrow\u202fspace, \ue000 (private use)", "narrow\u202fspace, \ue000 (private use)"),
    ],
)
def test_characters_that_hide_or_reorder_text_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(text=st.text())
def test_any_text_makes_a_well_formed_page_without_hidden_characters(text: str) -> None:
    page = render(
        "run.html.j2",
        title=text,
        facts=[],
        is_noisy=False,
        charts=[],
        sampled_at="",
        samples=[[("Source", text)]],
        columns=[],
        validations=[],
        table_note="",
        config_text=text,
    )
    root = ElementTree.fromstring(page)

    hidden = [c for c in "".join(root.itertext()) if unicodedata.category(c) in ("Cf", "Cs")]
    assert set(hidden) <= {"\u200c", "\u200d"}


def test_pages_load_without_torch() -> None:
    code = "import sys, nmt.report.charts; print('torch' in sys.modules, 'jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False False\n"
