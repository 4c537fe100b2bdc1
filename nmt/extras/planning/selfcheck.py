"""``nmt translate --selfcheck``: the line-in/line-out contract, checked on adversarial input."""

from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

_PATIENCE_SECONDS = 60

# Text that has broken filters: controls, other scripts, bytes that are no text, endless lines.
ADVERSARIAL_LINES: tuple[bytes, ...] = (
    b"A dog runs.",
    b"",
    b"   ",
    b"\t",
    "\u3000\u00a0".encode(),
    b"a",
    b".",
    b"?!?!?! ... --- ***",
    b"A dog runs.",
    b" leading and trailing ",
    b"carriage return at the end\r",
    b"carriage return\rin the middle",
    "line separator\u2028paragraph separator\u2029next line\u0085end".encode(),
    b"form feed\x0cvertical tab\x0bnull\x00bell\x07",
    "zero width\u200bspace and joiner\u200d, byte order mark \ufeff inside".encode(),
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 flags \U0001f1e9\U0001f1ea".encode(),
    "combining e\u0301\u0323\u0308\u0301\u0301\u0301".encode(),
    "\u0647\u0630\u0627 \u0643\u0644\u0628 \u0635\u063a\u064a\u0631.".encode(),
    "\u202eright to left override\u202c".encode(),
    "\u72ac\u304c\u8d70\u308b\u3002".encode(),
    "\u0e2a\u0e38\u0e19\u0e31\u0e02\u0e27\u0e34\u0e48\u0e07".encode(),
    "\U00013080\U00013081 unseen signs \U000e0001".encode(),
    b"not UTF-8: \xff\xfe\xc3(",
    b"cut in the middle of a character: \xe2\x82",
    b"surrogate: \xed\xa0\x80",
    b"<p>tags &amp; entities</p> <script>alert(1)</script>",
    b"a ||| b ||| c",
    b'{"source": "no JSON was asked for"}',
    b"--beam-size 7",
    b"123456789 3.14159 1,000,000 2026-11-21",
    b"x" * 700,
    b"word " * 300,
    b"One sentence. " * 90,
    ("\u00e4" * 200 + "\U0001f600" * 60).encode(),
    b"<s> </s> <unk> <pad> \xe2\x96\x81\xe2\x96\x81",
    b"A dog runs.",
)
_QUESTIONS = 3
NUM_LINES = 4 * len(ADVERSARIAL_LINES) + _QUESTIONS  # That `check_promises` has translated.


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing the filter promises, and whether it was kept."""

    text: str  # The promise.
    problem: str  # How it was broken; empty if it was kept.


# Translates a stream of lines: called with source, output and lines at once, and with decoding
# options that differ.
Filter: TypeAlias = Callable[..., None]


def check_promises(run: Filter) -> list[Promise]:
    """Check the promises of `nmt translate` on `ADVERSARIAL_LINES`."""
    return [Promise(text, problem) for text, problem in _checks(run)]


def _checks(run: Filter) -> Iterator[tuple[str, str]]:
    lines = _translate(run)
    count, found = len(ADVERSARIAL_LINES), len(lines) - 1
    yield "as many lines out as in", "" if found == count else f"{found} lines for {count}"
    valid = [line.replace(b"\r", b"").decode("utf-8", "ignore").encode() for line in lines[:-1]]
    bad = [i for i, line in enumerate(valid) if line != lines[i]]
    yield "every line out is UTF-8 and one line", _named(bad)
    pairs = list(enumerate(zip(ADVERSARIAL_LINES, lines[:-1], strict=False)))
    blank = [i for i, (line, out) in pairs if out and not line.decode("utf-8", "replace").strip()]
    yield "blank to blank", _named(blank)
    same = {i: out for i, (line, out) in pairs if line == ADVERSARIAL_LINES[0]}
    is_one = len(set(same.values())) <= 1
    yield "the same line, the same translation", "" if is_one else _named(list(same))
    for size in (1, 7):
        other = _translate(run, lines_at_once=size)
        yield f"the same text {size} at a time", _difference(other, lines)
    other = _translate(run, batch_tokens=1)
    yield "the same text whatever shares a batch", _difference(other, lines)
    yield "nothing in, nothing out", b"\n".join(_translate(run, b"")).decode("utf-8", "replace")
    yield "an answer before the next line comes", _converse(run)


def _named(rows: list[int]) -> str:
    """Name the lines that break a promise; nothing if none does."""
    return f"line {', '.join(str(row + 1) for row in rows)}" if rows else ""


def _difference(found: list[bytes], expected: list[bytes]) -> str:
    if len(found) != len(expected):
        return f"{len(found) - 1} lines for {len(expected) - 1}"
    pairs = zip(found, expected, strict=True)
    return _named([row for row, (one, other) in enumerate(pairs) if one != other])


def _translate(
    run: Filter,
    text: bytes = b"\n".join(ADVERSARIAL_LINES),
    lines_at_once: int = 1000,
    **changes: Any,
) -> list[bytes]:
    """Return what goes out, split on LF: the last one is what follows the last LF."""
    output = io.BytesIO()
    run(io.BytesIO(text), output, lines_at_once, **changes)
    return output.getvalue().split(b"\n")


def _converse(run: Filter) -> str:
    """Write a line, wait for its answer, write the next; return what went wrong."""
    question_out, question_in = os.pipe()
    answer_out, answer_in = os.pipe()

    def serve() -> None:
        with (
            suppress(BrokenPipeError),
            os.fdopen(question_out, "rb") as source,
            os.fdopen(answer_in, "wb") as output,
        ):
            run(source, output, 1000)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    problem = ""
    with os.fdopen(question_in, "wb") as questions, os.fdopen(answer_out, "rb") as answers:
        for number in range(_QUESTIONS):
            questions.write(b"A dog runs.\n")
            questions.flush()
            if not select.select([answers], [], [], _PATIENCE_SECONDS)[0]:
                problem = f"no answer to line {number + 1} in {_PATIENCE_SECONDS} seconds"
                break
            answers.readline()
    server.join(1 if problem else _PATIENCE_SECONDS)
    return problem


def report(promises: list[Promise], model: Path) -> str:
    """Return the result as text, a promise a line."""
    lines = [
        f"broken  {x.text}: {x.problem}" if x.problem else f"kept    {x.text}" for x in promises
    ]
    kept = sum(not promise.problem for promise in promises)
    count = f"{kept} of {len(promises)} promises kept"
    total = f"{model}: {count} on {len(ADVERSARIAL_LINES)} adversarial lines"
    return "\n".join([*lines, total])
