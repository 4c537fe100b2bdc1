"""The self-check finds what it is for: each promise is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import pytest
from typing_extensions import override

from nmt.config.data import TokenizerConfig
from nmt.config.decoding import DecodingConfig
from nmt.extras.planning.selfcheck import ADVERSARIAL_LINES, Promise, check_promises, report
from nmt.inference.engine import Engine
from nmt.inference.line_format import LineFormat
from nmt.inference.result import TranslationResult
from nmt.inference.stream import line_translator, translate_stream
from nmt.inference.translator import Translator
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text.tokenizer import Tokenizer, Tokenizers, train_sentencepiece
from tests.inference.conftest import OPTIONS, sentences

Ids = Sequence[Sequence[int]]
Change = Callable[[list[TranslationResult]], list[TranslationResult]]


class Echo(Engine):
    """Translates to the source itself; ``noise`` makes it depend on the batch."""

    def __init__(self, *, noise: bool = False) -> None:
        self._noise = noise

    @override
    def search(
        self,
        sources: Ids,
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
    ) -> list[list[Hypothesis]]:
        more = [len(sources) % 3 + 5] if self._noise else []
        return [[Hypothesis((*ids, *more), -1.0, -1.0)] for ids in sources]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    path = tmp_path_factory.mktemp("tokenizer") / "joint.model"
    config = TokenizerConfig(vocab_size=320, byte_fallback=True)
    train_sentencepiece(iter(sentences(300)), path, config, threads=1)
    joint = Tokenizer.load(path)
    return Tokenizers(joint, joint)


def selfcheck(translator: Translator) -> list[Promise]:
    def run(source: IO[bytes], output: IO[bytes], lines_at_once: int, **changes: object) -> None:
        translate_lines = line_translator(translator.with_options(**changes), LineFormat())
        translate_stream(translate_lines, source, output, lines_at_once=lines_at_once)

    return check_promises(run)


def broken(translator: Translator) -> set[str]:
    return {promise.text for promise in selfcheck(translator) if promise.problem}


def test_a_good_filter_keeps_all(tokenizers: Tokenizers) -> None:
    translator = Translator(Echo(), tokenizers, OPTIONS, max_length=64)
    promises = selfcheck(translator)

    assert not any(promise.problem for promise in promises)
    assert report(promises, Path("m")).endswith(
        f"m: 9 of 9 promises kept on {len(ADVERSARIAL_LINES)} adversarial lines"
    )


def test_it_names_the_lines_that_break_a_promise(tokenizers: Tokenizers) -> None:
    noisy = Translator(Echo(noise=True), tokenizers, OPTIONS, max_length=64)
    text = report(selfcheck(noisy), Path("m"))

    assert "broken  the same text 1 at a time: line 1, 6, 7" in text


def test_a_batch_that_shows_in_the_text_is_found(tokenizers: Tokenizers) -> None:
    found = broken(Translator(Echo(noise=True), tokenizers, OPTIONS, max_length=64))

    assert "the same text whatever shares a batch" in found
    assert "the same text 1 at a time" in found


def _lose_one(results: list[TranslationResult]) -> list[TranslationResult]:
    return [TranslationResult(r.source, "", 0.0) if len(results) > 1 else r for r in results]


def _break_lines(results: list[TranslationResult]) -> list[TranslationResult]:
    return [TranslationResult(r.source, f"{r.text}\nmore", 0.0) for r in results]


def _fill_blanks(results: list[TranslationResult]) -> list[TranslationResult]:
    return [TranslationResult(r.source, r.text or "something", 0.0) for r in results]


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        (_lose_one, "the same text 1 at a time"),
        (_break_lines, "as many lines out as in"),
        (_fill_blanks, "blank to blank"),
    ],
)
def test_a_filter_that_breaks_a_promise_is_found(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch, change: Change, promise: str
) -> None:
    translate = Translator.translate

    def changed(self: Translator, lines: Sequence[str], **_: object) -> object:
        return change(translate(self, lines))

    monkeypatch.setattr(Translator, "translate", changed)

    assert promise in broken(Translator(Echo(), tokenizers, OPTIONS, max_length=64))
