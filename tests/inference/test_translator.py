"""Lines to translations."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.inference.engine import BatchRoom
from nmt.inference.segment import LONGEST_LINE, segment_lines
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizer, Tokenizers
from nmt.training.signals import Interrupted
from tests.inference.conftest import OPTIONS, sentences


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4},
        {"sampling": True, "n_best": 3, "top_p": 0.9},
        {"return_alternatives": True, "n_best": 3},
        {"beam_size": 6, "n_best": 3, "diverse_beam_groups": 2, "no_repeat_ngram_size": 2},
    ],
)
def test_the_text_does_not_depend_on_batches_or_order(
    translator: Translator, options: dict[str, Any]
) -> None:
    """Fault 46."""
    lines = sentences(12, seed=5, longest=8)
    expected = translator.translate(lines, batch_tokens=1, **options)
    order = random.Random(1).sample(range(12), 12)
    for batch_tokens in (40, 100_000):
        chosen = [lines[row] for row in order]
        results = translator.translate(chosen, batch_tokens=batch_tokens, **options)
        for row, result in zip(order, results, strict=True):
            assert (result.source, result.text) == (lines[row], expected[row].text)
            assert result.score == pytest.approx(expected[row].score, abs=1e-4)
            texts = [each.text for each in result.alternatives]
            assert texts == [each.text for each in expected[row].alternatives]


def test_batches_keep_to_both_of_their_limits(
    translator: Translator, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded source tokens, and rows whose probabilities fit the memory."""
    size = tokenizers.target.vocab_size
    monkeypatch.setattr(TorchEngine, "num_workers", 1)  # each worker holds a batch
    segments = segment_lines(sentences(60), tokenizers.source, max_length=32)
    for beam_size, most_rows in ((1, 21), (3, 7), (40, 1)):
        monkeypatch.setattr(TorchEngine, "room", BatchRoom(probabilities=21 * size))
        limited = translator.with_options(beam_size=beam_size, batch_tokens=100)
        batches = list(limited._batches(segments))
        lines = [own.line for batch in batches for own in batch]
        assert sorted(lines) == [own.line for own in segments]
        assert max(len(batch) for batch in batches) <= most_rows
        assert all(len(b) * max(len(own.ids) for own in b) <= 100 for b in batches)
        assert most_rows == 21 or any(len(batch) == most_rows for batch in batches)


ODD_LINES = [
    "Hund \U0001f415\u200d\U0001f9ba und \U0001f469\u200d\U0001f467 heute",
    "שלום עולם",
    "\u202e\u0645\u0631\u062d\u0628\u0627\u202c",
    "\udcff lone \ud83d surrogates",
    "\0 null",
    "a\u2028b\u0085c\fd\re",
    "der\tHund",
    "\u200b",
    "汉字没有空格" * 40,
    "e\u0301" * 30,
    "\U0001f415" * 100,
    "\ufeff",
    "\u017ftra\u00dfe \ufb01 \u2163 \u2460",
]


def test_odd_lines_give_a_line_each(translator: Translator) -> None:
    """Fault 45."""
    results = translator.translate(ODD_LINES)
    assert [result.source for result in results] == ODD_LINES
    for result in results:
        assert "\n" not in result.text
        assert "\r" not in result.text
        result.text.encode()


def test_a_very_long_line_is_cut_and_translated_to_one_line_with_an_alarm(
    model: Transformer, tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    """Faults 37 and 45."""
    options = OPTIONS.model_copy(
        update={"beam_size": 1, "max_length_factor": 0.0, "max_length_offset": 1}
    )
    translator = Translator(TorchEngine(model), tokenizers, options, max_length=250)
    long = "der Hund läuft und " * 25_000
    results = translator.translate(["klein", long, "groß"])
    assert [result.source for result in results] == ["klein", long, "groß"]
    truncated, cut = caplog.messages
    assert truncated.startswith("line 2 has 475,000 characters; only the first 50,000")
    assert cut.startswith("line 2: 50,000 characters cut into")
    assert [result.alarms for result in results] == [(), ("truncated",), ()]
    assert translator.translate([long[:LONGEST_LINE]])[0].text == results[1].text
    assert results[0].text == translator.translate(["klein"])[0].text


def test_blank_lines_stay_blank(translator: Translator) -> None:
    """Fault 42."""
    results = translator.translate(["", "Hund", " \t\u3000 ", "\u200b", ""])
    assert [bool(result.text) for result in results[:1] + results[2:]] == [False] * 4
    assert [result.score for result in results[2:]] == [0.0] * 3
    assert translator.translate([]) == []
    assert translator.translate(["", " "], n_best=2)[0].alternatives == ()


def test_a_stream_gives_what_a_list_gives_and_reads_no_further_than_it_must(
    translator: Translator,
) -> None:
    read: list[str] = []
    texts = [*sentences(4, seed=9), ""]

    def lines() -> Iterator[str]:
        for text in texts:
            read.append(text)
            yield text

    stream = translator.translate_stream(lines(), 2, beam_size=1, token_scores=True)
    first = next(stream)

    assert read == texts[:2]
    assert first.tokens
    assert [first.text, *(result.text for result in stream)] == [
        result.text for result in translator.translate(texts, beam_size=1)
    ]


def test_what_is_no_list_of_lines_is_refused(translator: Translator) -> None:
    for lines in ("Ein Hund", [None], [b"Hund"]):
        with pytest.raises(TypeError, match="a list of str"):
            translator.translate(lines)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ({"device": "tpu"}, "device: there is no 'tpu'"),
        ({"dtype": "int4"}, "dtype: there is no 'int4'"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_choices_that_there_are_not_are_refused(choice: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Translator.load("anywhere", **choice)


def test_alternatives_come_best_first_and_begin_with_the_translation(
    translator: Translator,
) -> None:
    for result in translator.translate(sentences(8, longest=4), n_best=3):
        assert len(result.alternatives) == 3
        assert (result.text, result.score) == (
            result.alternatives[0].text, result.alternatives[0].score,
        )  # fmt: skip
        scores = [alternative.score for alternative in result.alternatives]
        assert scores == sorted(scores, reverse=True)
        assert len(result.as_dict()["alternatives"]) == 3
    (only,) = translator.translate(["Hund"])[0].alternatives  # the same at any number
    assert only == translator.translate(["Hund"], n_best=2)[0].alternatives[0]


def test_line_breaks_written_in_bytes_do_not_break_the_line(
    translator: Translator, tokenizers: Tokenizers
) -> None:
    assert isinstance(tokenizers.target, Tokenizer)
    processor = tokenizers.target._processor
    breaks = [processor.piece_to_id(piece) for piece in ("<0x0A>", "<0x0D>")]
    ids = [*tokenizers.target.encode("Hund"), *breaks, *tokenizers.target.encode("Katze")]
    assert "\n" in tokenizers.target.decode(ids)
    assert translator._text(ids).split() == ["Hund", "Katze"]


def test_options_out_of_bounds_are_named(translator: Translator) -> None:
    """Fault 49."""
    with pytest.raises(ConfigError, match=r"n_best \(5\) is more than beam_size \(3\)"):
        translator.with_options(n_best=5)
    with pytest.raises(ConfigError, match=r"n_best \(3\) is more than beam_size \(2\)"):
        translator.translate(["Hund"], n_best=3, beam_size=2)
    with pytest.raises(ConfigError, match="beam_size is 0"):
        translator.with_options(beam_size=0)
    with pytest.raises(ConfigError, match="beam_sice"):
        translator.with_options(beam_sice=2)


def test_weights_that_are_not_numbers_are_named(model: Transformer, tokenizers: Tokenizers) -> None:
    import copy

    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.output_weight.fill_(torch.nan)
    translator = Translator(TorchEngine(broken), tokenizers, OPTIONS)
    with pytest.raises(CheckpointError, match="not numbers"):
        translator.translate(["Hund"])


@pytest.fixture
def working(
    model: Transformer, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Translator]:
    """A translator with several workers, and with a model that is in training."""
    monkeypatch.setattr(TorchEngine, "num_workers", 3)
    options = OPTIONS.model_copy(update={"batch_tokens": 30})
    model.train()
    yield Translator(TorchEngine(model), tokenizers, options, max_length=32)
    assert model.training
    model.eval()


def test_workers_change_nothing_but_the_time(
    working: Translator, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = sentences(20)
    used: set[int] = set()
    search = TorchEngine._search

    def noted(engine: TorchEngine, *arguments: Any) -> list[list[Hypothesis]]:
        used.add(threading.get_ident())
        assert torch.get_num_threads() == 1
        return search(engine, *arguments)

    monkeypatch.setattr(TorchEngine, "_search", noted)
    three = working.translate(lines)

    assert 1 < len(used) <= 3
    assert threading.get_ident() not in used
    monkeypatch.setattr(TorchEngine, "num_workers", 1)
    monkeypatch.setattr(TorchEngine, "_search", search)
    assert three == translator.translate(lines, batch_tokens=30)


def test_a_worker_s_failure_is_the_failure(
    working: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DataError("a phrase that cannot be met", fix="none")

    monkeypatch.setattr(TorchEngine, "_search", fail)
    with pytest.raises(DataError, match="a phrase"):
        working.translate(sentences(20))


def test_an_interrupt_leaves_no_worker_behind(working: Translator) -> None:
    """FAULT 19: validation is given up in the middle of decoding."""

    def stop() -> None:
        raise Interrupted(15)

    working._check = stop
    before = threading.active_count()
    with pytest.raises(Interrupted) as caught:
        working.translate(sentences(60))

    assert caught.tb is not None  # the frames are still held
    assert threading.active_count() == before


def test_workers_do_not_set_the_threads_of_others(working: Translator) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    found: list[int] = []
    try:
        working.translate(sentences(20))
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert (torch.get_num_threads(), found) == (3, [3])
    finally:
        torch.set_num_threads(before)
