"""Lines of text fit the width of a terminal; commands that are broken can still be copied."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.files.terminal import fitted
from tests.examples import FEW

WORDS = st.lists(st.text("abc.,", min_size=1, max_size=9), min_size=1, max_size=30)


@given(words=WORDS, indent=st.integers(0, 8), columns=st.integers(30, 80))
@FEW
def test_lines_fit_and_keep_their_words(words: list[str], indent: int, columns: int) -> None:
    line = " " * indent + " ".join(words)
    rows = fitted(line, columns).split("\n")
    assert max(map(len, rows)) <= columns
    assert " ".join(rows).split() == words
    assert {len(row) - len(row.lstrip()) for row in rows[1:]} <= {indent + 4}
    assert fitted(line, None) == line


@pytest.mark.parametrize("columns", [40, 60, 70])
@pytest.mark.parametrize("label", ["next: ", "", "    "])
def test_a_broken_command_is_the_same_command_for_a_shell(columns: int, label: str) -> None:
    command = "nmt translate runs/first --input corpus.de --output 'my file' --beam-size 5"
    text = fitted(f"{label}{command}", columns)
    rows = text.split("\n")
    assert max(map(len, rows)) <= columns
    # A shell removes a backslash and the line break after it.
    assert shlex.split(text.removeprefix("next:").replace("\\\n", "")) == shlex.split(command)


def test_a_command_in_a_sentence_stays_whole_if_a_line_has_room_for_it() -> None:
    line = "warning: the folder is missing. Run `nmt prepare my/config.yaml --force`, then train."
    rows = fitted(line, 50).split("\n")
    assert rows == [
        "warning: the folder is missing. Run",
        "    `nmt prepare my/config.yaml --force`, then",
        "    train.",
    ]


@pytest.mark.parametrize("columns", [30, 45, 60])
@pytest.mark.parametrize("line", [
    "error: nmt inspect accepts only one VIEW: alignment and attention.",
    "  fix: Fill in MODEL: nmt translate MODEL (Run folder, or folder of an exported model)",
    "  fix: For example: nmt score a --sum (`nmt score --help` has all options)",
])  # fmt: skip
def test_prose_before_and_after_a_command_is_broken(columns: int, line: str) -> None:
    rows = fitted(line, columns).split("\n")
    assert max(map(len, rows)) <= columns
    assert " ".join(rows).replace("\\", "").split() == line.split()


def test_a_parenthesis_in_a_quoted_word_does_not_end_a_command() -> None:
    command = "nmt inspect runs/first --source 'one (or two) dogs' --output page.html"
    text = fitted(f"next: {command}", 50).removeprefix("next:")
    assert shlex.split(text.replace("\\\n", "")) == shlex.split(command)


def test_a_path_that_is_too_long_stays_whole() -> None:
    path = "/a" * 40
    assert fitted(f"see {path} now", 30).split() == ["see", path, "now"]
