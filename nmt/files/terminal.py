"""The width of a terminal, and lines of text that fit it."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from os import get_terminal_size
from textwrap import wrap
from typing import TextIO

USUAL_COLUMNS = 80
_INDENT = 4  # Of the rest of a line, in addition to the indent of its beginning.
_JOINT = "\xa0"  # A space at which no line is broken.
# Commands to type: in backticks, after a label, or a whole line, perhaps with another program. A
# remark in parentheses may follow. The sentence of an error may begin with a command.
_COMMAND = re.compile(
    r"`[^`]*`|(?<=: )(?<!error: )nmt [a-z].*?(?= \([^\"']*$|$)|^ *([^`]*(\| |-m ))?nmt [a-z].*"
)
_wrap = partial(wrap, break_long_words=False, break_on_hyphens=False)


def columns_of(stream: TextIO | None) -> int | None:
    """Return the width of a terminal; None for a file or a pipe, where lines are not broken.

    Programs read the lines of a pipe: each message is one line.
    """
    if stream is None or not stream.isatty():
        return None
    columns = 0
    with suppress(OSError):  # a replaced stream may have no file descriptor
        columns = get_terminal_size(stream.fileno()).columns
    return columns or USUAL_COLUMNS  # some consoles and containers report a width of 0


def fitted(text: str, columns: int | None) -> str:
    r"""Break the lines of a text between words, so that they fit a width; None breaks none.

    A command that is longer than a line is broken before its options, with backslashes, so that it
    can be copied. A word that is too long, such as a path, stays whole.

    >>> print(fitted("warning: set a.b, or run `nmt x`\nnext: nmt train my/config.yaml --any", 26))
    warning: set a.b, or run
        `nmt x`
    next:
        nmt train my/config.yaml \
        --any
    """
    if columns is None:
        return text
    rows = list[str]()
    for line in text.split("\n"):
        if len(line) <= columns:
            rows.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip(" ")) + _INDENT)
        joined = _COMMAND.sub(lambda match: match[0].replace(" ", _JOINT), line)
        for row in _wrap(joined, columns, subsequent_indent=indent):
            if len(row) > columns:
                row = row.replace(f"{_JOINT}--", f" \\\n{indent}--")
            rows.append(row.replace(_JOINT, " "))
    return "\n".join(rows)
