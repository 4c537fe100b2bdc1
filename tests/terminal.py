"""A pseudo-terminal in place of standard error, and the frames that were drawn on it."""

from __future__ import annotations

import codecs
import fcntl
import logging
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nmt.files import progress
from tests.process import started


class Frames:
    """What was written to the terminal so far."""

    def __init__(self) -> None:
        self.text = ""

    def counts(self, description: str) -> list[str]:
        """The ``n/total`` of each frame of a bar, repeated ones once."""
        return list(dict.fromkeys(re.findall(rf"{description}:[^\r]*?(\d+/\d+)", self.text)))


def printed(folder: Path, columns: int, *words: str) -> list[str]:
    """Run a command on a terminal of its own; return the lines that it prints."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "nmt", *words]
    text = b""
    # Of the terminal of the tests, also if only C knows them (readline sets them so).
    environment = {key: os.environ[key] for key in os.environ.keys() - {"COLUMNS", "LINES"}}
    with started(command, cwd=folder, env=environment, stdin=slave, stdout=slave, stderr=slave):
        os.close(slave)
        with suppress(OSError):  # closed on the other side
            while data := os.read(master, 1 << 16):
                text += data
    os.close(master)
    return text.decode().replace("\r", "").split("\n")


@contextmanager
def terminal(
    monkeypatch: pytest.MonkeyPatch, *, is_quick: bool = True, columns: int = 120
) -> Iterator[Frames]:
    """Let somebody watch: every step of a bar is drawn at once, if ``is_quick``."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    frames = Frames()

    def read() -> None:
        decode = codecs.getincrementaldecoder("utf-8")().decode  # a read may end within a character
        try:
            while data := os.read(master, 1 << 16):
                frames.text += decode(data)
        except OSError:  # closed on the other side
            pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(slave, "w") as stderr:
        patch.setattr(sys, "stderr", stderr)
        if is_quick:
            patch.setattr(progress, "_LEAST_SECONDS", 0)
        logging.getLogger("nmt").setLevel(logging.INFO)
        try:
            yield frames
        finally:
            logging.getLogger("nmt").setLevel(logging.NOTSET)
    reader.join(5)
    os.close(master)
