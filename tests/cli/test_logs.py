"""What -q and -v let through, and to where."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
from tqdm import tqdm
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.cli.messages import configure_logging, remove_logging

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")
INFO, WARNING, DEBUG = "nmt: 7 lines\n", "nmt: warning: odd\n", "nmt: debug: detail\n"
LIBRARY = "library: debug: detail\n"


def log(*_: object, **__: object) -> None:
    logger = logging.getLogger("nmt.commands.prepare")
    logger.info("%d lines", 7)
    logger.warning("odd")
    logger.debug("detail")
    logging.getLogger("library").debug("detail")
    raise KeyboardInterrupt


@pytest.mark.parametrize(("flags", "expected"), [
    (["-q"], WARNING),
    ([], INFO + WARNING),
    (["-v"], INFO + WARNING + DEBUG),
    (["-v", "--verbose"], INFO + WARNING + DEBUG + LIBRARY),
])  # fmt: skip
def test_messages_go_to_standard_error_by_level(
    flags: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.commands.prepare.prepare", log)
    result = CliRunner().invoke(app, ["prepare", DEMO, *flags])
    assert result.stderr.removesuffix("nmt: stopped by Ctrl-C\n") == expected
    assert result.stdout == ""


def test_a_command_leaves_no_handler_and_no_level_behind() -> None:
    nmt, root = logging.getLogger("nmt"), logging.getLogger()
    before = [*nmt.handlers], nmt.level, [*root.handlers], root.level
    CliRunner().invoke(app, ["prepare", "none.yaml", "-vv"])
    assert (nmt.handlers, nmt.level, root.handlers, root.level) == before


def test_a_message_does_not_tear_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logging()
    try:
        with tqdm(total=2, file=stderr, desc="translating", mininterval=0) as bar:
            logging.getLogger("nmt.x").info("a note")
            bar.update(2)
    finally:
        remove_logging()
    lines = [line.split("\r")[-1] for line in stderr.getvalue().split("\n")]
    assert "nmt: a note" in lines
