"""`nmt help`: the help of every command and every document, in a pipe and in a terminal."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.cli.builder import COMMANDS, PARENTS
from nmt.cli.documents import DOCUMENTS

TOPICS = [*COMMANDS, *PARENTS]


def printed(*words: str) -> str:
    result = CliRunner().invoke(app, ["help", *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", TOPICS)
def test_the_help_of_a_command_is_that_of_its_flag(name: str) -> None:
    flag = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="nmt")
    if flag.exit_code == 2:
        return  # a command of an extra that was deleted
    assert printed(*name.split()).rstrip() == flag.stdout.rstrip()


def test_all_commands_and_documents_are_listed() -> None:
    text = printed()
    for name in (*COMMANDS, *PARENTS):
        assert re.search(rf"^  {name.split()[0]} ", text, re.MULTILINE), name
    assert {"guide", "tutorial", "faq", "pretrained", "libretranslate", "configs"} == {*DOCUMENTS}
    for name in DOCUMENTS:
        assert re.search(rf"^  nmt help {name} +\w", text, re.MULTILINE), name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_in_a_pipe_a_document_is_markdown_without_links_that_lead_nowhere(name: str) -> None:
    original = DOCUMENTS[name].read_text(encoding="utf-8")
    text = printed(name)
    assert text.startswith(original.partition("\n")[0])
    assert not re.search(r"<!--|\x1b|\]\((?!https?:)", text)
    # The commands are still there, and other documents are named by the command that prints them.
    for block in re.findall(r"^```.*?^```", original, re.DOTALL | re.MULTILINE):
        assert block in text
    for document in re.findall(r"nmt help (\w+)`", text):
        assert document in {*DOCUMENTS, *COMMANDS}


def test_a_terminal_shows_headings_and_tables_without_their_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    text = re.sub(r"\x1b\[[\d;]*m|\x1b\].*?\x1b\\", "", printed("faq"))
    assert "Frequent questions" in text
    assert not re.search(r"^\s*(#|```|\|-)", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_topic_is_answered_with_the_nearest() -> None:
    for words, near in ((["trian"], "train"), (["guied"], "guide"), (["config", "shw"], "show")):
        result = CliRunner().invoke(app, ["help", *words])
        assert result.exit_code == 2
        assert f"{near}?" in result.stderr, words
