"""Lines to translations."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from typing_extensions import override

from nmt.config.data import Direction
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.inference.direction import Languages
from nmt.inference.engine import BatchCapacity, Engine, EngineLacksError, Needs
from nmt.inference.mbr import Mbr
from nmt.inference.request import Request, Result
from nmt.inference.segment import LONGEST_LINE
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizer, Tokenizers
from nmt.training.processes import StoppedBySignal
from tests.inference.conftest import OPTIONS, sentences, translator_of
from tests.inference.test_guard import STRICT
from tests.process import LIMIT


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4},
        {"beam_size": 1, "guard": True, "limits": STRICT},  # lines stutter and are searched again
        {"beam_size": 4, "guard": True, "limits": STRICT},
        {"mbr": Mbr("chrf", 8)},
        {"sampling": True, "n_best": 3, "top_p": 0.9},
        {"return_alternatives": True, "n_best": 3},
        {"beam_size": 6, "n_best": 3, "diverse_beam_groups": 2, "no_repeat_ngram_size": 2},
    ],
)
def test_text_does_not_depend_on_the_batch(translator: Translator, options: dict[str, Any]) -> None:
    """Fault 46."""
    lines = sentences(12, seed=5, longest=8)
    translator = translator.with_options(**options)
    expected = translator.with_options(batch_tokens=1).translate(lines)
    order = random.Random(1).sample(range(12), 12)
    for batch_tokens in (40, 100_000):
        chosen = [lines[row] for row in order]
        results = translator.with_options(batch_tokens=batch_tokens).translate(chosen)
        for row, result in zip(order, results, strict=True):
            assert (result.source, result.text) == (lines[row], expected[row].text)
            assert result.score == pytest.approx(expected[row].score, abs=1e-4)
            other = expected[row]
            assert (result.alarms, result.retried) == (other.alarms, other.retried)
            texts = [[each.text for each in one.alternatives] for one in (result, other)]
            assert texts[0] == texts[1]
    assert translator.options.guard == any(one.alarms or one.retried for one in expected)


def test_batches_keep_to_both_of_their_limits(
    model: Transformer, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded source tokens, and rows whose probabilities fit the memory."""
    size = tokenizers.target.vocab_size
    monkeypatch.setattr(TorchEngine, "num_workers", 1)  # each worker holds a batch
    lengths = [len(ids) for ids in tokenizers.source.encode_batch(sentences(60))]
    for width, most_rows in (
        ({"beam_size": 1}, 21),
        ({"beam_size": 3}, 7),
        ({"beam_size": 40}, 1),
        ({"beam_size": 1, "sampling": True, "n_best": 3}, 7),
    ):
        monkeypatch.setattr(TorchEngine, "capacity", BatchCapacity(probabilities=21 * size))
        options = OPTIONS.model_copy(update={**width, "batch_tokens": 100})
        batches = TorchEngine(model).batches(lengths, options, size)
        assert sorted(row for rows in batches for row in rows) == list(range(60))
        assert max(map(len, batches)) <= most_rows
        assert all(len(rows) * max(lengths[row] for row in rows) <= 100 for rows in batches)
        assert most_rows == 21 or any(len(rows) == most_rows for rows in batches)


@pytest.mark.long
def test_a_very_long_line_is_cut_and_raises_an_alarm(
    model: Transformer, tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    """Faults 37 and 45."""
    short: dict[str, Any] = {"beam_size": 1, "max_length_factor": 0.0, "max_length_offset": 1}
    translator = translator_of(TorchEngine(model), tokenizers, max_length=250, **short)
    long = "der Hund läuft und " * 25_000
    results = translator.translate(["klein", long, "groß"])
    assert [result.source for result in results] == ["klein", long, "groß"]
    truncated, cut = caplog.messages
    assert truncated.startswith("line 2 has 475,000 characters; only the first 50,000")
    assert cut.startswith("line 2: 50,000 characters cut into")
    assert [result.alarms for result in results] == [(), ("truncated",), ()]
    assert translator.translate([long[:LONGEST_LINE]])[0].text == results[1].text
    assert results[0].text == translator.translate(["klein"])[0].text


def test_inputs_other_than_lists_of_lines_are_refused(translator: Translator) -> None:
    for lines in ("Ein Hund", [None], [b"Hund"], {"a": "Ein Hund"}):
        with pytest.raises(TypeError, match="a list of str"):
            translator.translate(lines)  # type: ignore[arg-type]


class Says(Engine):
    """Always the same."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)

    @override
    def search(self, sources: Sequence[Any], *_: Any, **__: Any) -> list[list[Hypothesis]]:
        return [[Hypothesis(self._ids, -1.0, -1.0)] for _ in sources]


def test_line_breaks_written_in_bytes_do_not_break_the_line(tokenizers: Tokenizers) -> None:
    assert isinstance(tokenizers.target, Tokenizer)
    processor = tokenizers.target._processor
    breaks = [processor.piece_to_id(piece) for piece in ("<0x0A>", "<0x0D>")]
    ids = [*tokenizers.target.encode("Hund"), *breaks, *tokenizers.target.encode("Katze")]
    assert "\n" in tokenizers.target.decode(ids)
    (result,) = translator_of(Says(ids), tokenizers).translate(["Hund"])
    assert result.text.split() == ["Hund", "Katze"]
    assert "\n" not in result.text


def test_nan_weights_are_reported(model: Transformer, tokenizers: Tokenizers) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.output_weight.fill_(torch.nan)
    with pytest.raises(CheckpointError, match="weights are damaged"):
        translator_of(TorchEngine(broken), tokenizers).translate(["Hund"])


@pytest.fixture
def working(
    model: Transformer, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Translator]:
    """A translator with several workers, and with a model that is in training."""
    monkeypatch.setattr(TorchEngine, "num_workers", 3)
    model.train()
    yield translator_of(TorchEngine(model), tokenizers, batch_tokens=30)
    assert model.training
    model.eval()


def test_workers_do_not_change_results(
    working: Translator, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = sentences(20)
    used: set[int] = set()
    search = TorchEngine.search

    def noted(engine: TorchEngine, *arguments: Any) -> list[list[Hypothesis]]:
        used.add(threading.get_ident())
        assert torch.get_num_threads() == 1
        return search(engine, *arguments)

    monkeypatch.setattr(TorchEngine, "search", noted)
    three = working.translate(lines)
    assert 1 < len(used) <= 3
    assert threading.get_ident() not in used
    monkeypatch.setattr(TorchEngine, "num_workers", 1)
    monkeypatch.setattr(TorchEngine, "search", search)
    one = translator.with_options(batch_tokens=30).translate(lines)
    assert [result.text for result in three] == [result.text for result in one]
    # The last bit of a sum depends on where the numbers are in memory.
    scores = [result.score for result in one]
    assert [result.score for result in three] == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize("error", [DataError("a phrase", fix="none"), StoppedBySignal(15)], ids=str)
def test_a_failure_of_a_worker_counts_and_leaves_none_behind(
    working: Translator, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """FAULT 19: validation is given up in the middle of decoding."""
    fail, options = Mock(side_effect=error), {}
    if isinstance(error, DataError):
        monkeypatch.setattr(TorchEngine, "search", fail)
    else:
        options = {"progress": fail}
    before = threading.active_count()
    with pytest.raises(type(error)) as caught:
        working.with_options(**options).translate(sentences(60))
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
        later.join(LIMIT)
        assert (torch.get_num_threads(), found) == (3, [3])
    finally:
        torch.set_num_threads(before)


def test_progress_adds_up_to_the_number_of_lines(translator: Translator) -> None:
    """With blank, failed and cut lines, and lines that are searched again."""
    counts: list[int] = []
    changes: dict[str, Any] = {"guard": True, "limits": STRICT, "batch_tokens": 20, "max_length": 6}
    translator = translator.with_options(progress=counts.append, **changes)
    lines: list[Request | str] = ["", Request("Hund", tag="fr"), *sentences(12, seed=5), " "]
    results = translator.try_translate(lines)
    assert len(translator.segment(lines).segments) > len(lines)  # some are cut
    assert any(isinstance(own, Result) and own.retry_seconds for own in results)
    assert sum(counts) == len(lines)
    assert min(counts) == 0  # while lines are searched again
    assert max(counts) < len(lines)  # not all at once


@pytest.mark.parametrize(("language", "space"), [("de", " "), ("zh-Hant", ""), ("ja", "")])
def test_a_cut_line_is_the_sum_of_its_parts(
    translator: Translator, language: str, space: str
) -> None:
    """Its score is their mean, so that it is like the scores of other lines."""
    languages = Languages((Direction("de", language),))
    translator = translator.with_options(languages=languages, max_length=12)
    sides = ["der Hund läuft.", "der Hund und das Haus heute,"]  # of 5 and 11 subwords
    (whole,) = translator.translate([" ".join(sides)])
    first, second = translator.translate(sides)
    assert whole.text == first.text + space + second.text
    assert whole.score == pytest.approx((first.score + second.score) / 2)
    assert whole.log_prob == pytest.approx(first.log_prob + second.log_prob)
    assert whole.num_tokens == first.num_tokens + second.num_tokens
    (shown,) = whole.alternatives
    assert (shown.text, shown.score, shown.log_prob) == (whole.text, whole.score, whole.log_prob)


def test_options_of_a_call_count_for_this_call_only(translator: Translator) -> None:
    lines = sentences(12, seed=5, longest=8)
    before = translator.translate(lines)
    narrow = translator.with_options(beam_size=1).translate(lines)
    assert narrow != before
    assert translator.translate(lines, beam_size=1) == narrow
    assert translator.translate(lines) == before
    with pytest.raises(ConfigError, match="did you mean"):
        translator.translate(lines, beam_sizes=1)


def test_failed_lines_do_not_change_other_lines(translator: Translator) -> None:
    lines: list[Request | str] = ["Hund", Request("Hund", tag="fr"), Request("", tag="fr"), "Katze"]
    first, failed, blank, last = translator.try_translate(lines)
    assert isinstance(failed, DataError)
    assert failed.problem == "The vocabulary has no tag 'fr'."
    assert isinstance(blank, Result)
    assert [first, last] == translator.translate(["Hund", "Katze"])
    with pytest.raises(DataError, match="Line 8: The vocabulary has no tag"):
        translator.translate(lines, first_line=7)


def test_a_translator_is_not_sent_to_another_process(translator: Translator) -> None:
    with pytest.raises(ConfigError, match=r"cannot be copied to another process"):
        pickle.dumps(translator)


def test_features_that_an_engine_lacks_are_refused(tokenizers: Tokenizers) -> None:
    class Limited(Says):
        @override
        def lacks(self, needs: Needs) -> list[str]:
            return ["a prefix"] if needs.constraints else []

    translator = translator_of(Limited([5]), tokenizers)
    lacks = pytest.raises(EngineLacksError, match="engine does not support a prefix")
    with lacks:
        translator.with_options(constraints=True)
    with lacks:
        translator.translate([Request("Hund", prefix="A")])
    assert translator.translate([Request("Hund", prefix=" ")])[0].text
