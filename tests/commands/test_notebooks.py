"""Commands as functions: standard output is any stream of text, and texts are lists."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import nmt
from nmt.metrics.result import EvaluationReport
from tests.inference.conftest import sentences

LINES = sentences(5, seed=2)


class Notebook:
    """Shows text. It has no bytes, no file descriptor and no state."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def options(run: Path, text: str, **values: Any) -> nmt.TranslateOptions:
    Path("in").write_text(text, "utf-8")
    return nmt.TranslateOptions(model=run, input=Path("in"), device="cpu", threads=1, **values)


def test_translations_come_after_what_was_printed_before(runs: dict[str, Path]) -> None:
    """To a stream of text, and to a stream with bytes below."""
    lines = [*LINES, "", "Grüße"]
    chosen = options(runs["plain"], "\n".join(lines), output=Path("out"))
    nmt.translate(chosen)
    expected = f"before\n{Path('out').read_text('utf-8')}after\n"
    notebook = Notebook()
    bytes_below = io.BytesIO()
    for stream in (notebook, io.TextIOWrapper(bytes_below, "utf-8")):
        with redirect_stdout(stream):
            sys.stdout.write("before\n")
            nmt.translate(options(runs["plain"], "\n".join(lines)))
            sys.stdout.write("after\n")
            sys.stdout.flush()
    assert notebook.text == bytes_below.getvalue().decode() == expected


def test_closed_standard_output_is_named(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(nmt.DataError, match="Standard output is closed"):
            nmt.translate(options(runs["plain"], "Hund"))


def test_the_source_of_json_is_copied_unchanged(runs: dict[str, Path]) -> None:
    sources = [" Hund\t", "der\nHund\r\n", "a \ud800 b", "", "  ", "e\u0301\u200b"]
    text = "".join(json.dumps({"source": each, "id": each}) + "\n" for each in sources)
    flags: dict[str, Any] = {"input_format": "json", "format": "json"}
    nmt.translate(options(runs["plain"], text, output=Path("out"), **flags))
    found = [json.loads(line) for line in Path("out").read_text("utf-8").splitlines()]
    assert [each["source"] for each in found] == [each["id"] for each in found] == sources


def test_a_value_that_is_not_text_is_named_with_its_line(runs: dict[str, Path]) -> None:
    """As a column of pandas has for an empty cell."""
    column: Any = [*LINES, float("nan")]
    translator = nmt.Translator.load(runs["plain"], device="cpu", threads=1)
    with pytest.raises(TypeError, match="line 6 is nan"):
        translator.translate(column)
    with pytest.raises(nmt.DataError, match=r"hypothesis, line 6: nan is not a line"):
        nmt.evaluate(hypothesis=column, reference=[*LINES, "x"])
    with pytest.raises(nmt.DataError, match=r"reference, line 2: 'b\\nc' is not a line"):
        nmt.evaluate(hypothesis=LINES, reference=["a", "b\nc"])


def test_lists_of_texts_are_scored_like_files(runs: dict[str, Path]) -> None:
    references = [f"{line} x" for line in LINES]
    for name, lines in {"hypothesis": LINES, "reference": references}.items():
        Path(name).write_text("\n".join(lines) + "\n", "utf-8")
    metrics = ("bleu", "chrf")
    files = nmt.EvaluateOptions(
        hypothesis=(Path("hypothesis"),), reference=(Path("reference"),), metric=metrics
    )
    chosen = nmt.EvaluateOptions(metric=metrics)
    by_file = nmt.evaluate(files)
    by_list = nmt.evaluate(chosen, hypothesis=LINES, reference=references)
    assert by_list.as_dict() == by_file.as_dict()
    model = nmt.EvaluateOptions(models=(runs["plain"],), device="cpu", threads=1)
    translated = nmt.evaluate(model, source=LINES, reference=references)
    assert isinstance(translated, EvaluationReport)
    assert len(translated.evaluations[0].systems[0].lines) == len(LINES)
