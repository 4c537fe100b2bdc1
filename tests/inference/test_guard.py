"""The signs of a broken translation, their limits, and the second search."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Hashable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from nmt.checkpoint.model_folder import GUARD as NAME
from nmt.checkpoint.model_folder import SHORTLIST
from nmt.config.decoding import DecodingConfig
from nmt.data.lexicon import likely_translations
from nmt.data.store import ParallelStore, StoreWriter
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.ctranslate2 import not_followed
from nmt.files.lines import read_lines
from nmt.inference.calibration import calibrate, expected_translations
from nmt.inference.engine import Engine
from nmt.inference.guard import (
    Guard,
    GuardedLine,
    GuardThresholds,
    SourceCoverage,
    alarms,
    compressed_share,
    longest_loop,
    read_thresholds,
    repeated_ngrams,
)
from nmt.inference.result import Alarm, GuardCounts
from nmt.inference.shortlist_file import ShortlistFile, shortlist_bytes
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import OPTIONS, WORDS, sentences

LINES = Path(__file__).with_name("guard_lines.tsv")
STRICT = GuardThresholds(
    loop=1,
    repetition=0.15,
    characters_low=0.5,
    characters_high=1.55,
    subwords_low=0.55,
    subwords_high=1.65,
    compression_scale=1.5,
    compression_exponent=-0.22,
)
"""What calibration finds for German captions and their English."""
BREAD = "Der Bäcker verkauft Brot und Kuchen."
TOKENS = st.lists(st.sampled_from("abcde"), max_size=30)


def line(source: str, output: str) -> GuardedLine:
    """Subwords are up to four letters of a word."""
    tokens = [re.findall(r"\w{1,4}|\S", text) for text in (source, output)]
    return GuardedLine(source, output, tokens[0], tokens[1])


def clean_lines(seed: int, count: int) -> list[GuardedLine]:
    """Sentences of different words, and the same words in another order and other letters."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = draw.sample(WORDS, draw.randint(1, len(WORDS)))
        found.append(line(" ".join(words), " ".join(draw.sample(words, len(words))).swapcase()))
    return found


# --- Signs -------------------------------------------------------------------------------------


@given(tokens=TOKENS)
def test_signs_know_no_vocabulary_and_no_direction(tokens: list[str]) -> None:
    renamed = [ord(token) * 7 for token in tokens]

    assert longest_loop(tokens) == longest_loop(renamed) == longest_loop(tokens[::-1])
    assert repeated_ngrams(tokens) == repeated_ngrams(renamed) == repeated_ngrams(tokens[::-1])
    different = list(dict.fromkeys(tokens))
    assert (longest_loop(different), repeated_ngrams(different)) == (0, 0)


@given(unit=st.lists(st.sampled_from("abcde"), min_size=1, max_size=6), copies=st.integers(1, 9))
def test_all_copies_but_the_first_are_the_loop(unit: list[str], copies: int) -> None:
    assert longest_loop(["x", *unit * copies, "y"]) >= len(unit) * (copies - 1)
    assert longest_loop([*range(30), *unit[:1] * copies]) == copies - 1


@settings(max_examples=30)
@given(text=st.text(min_size=1, max_size=40))
def test_repeating_a_text_makes_it_compress_better(text: str) -> None:
    assert compressed_share(text * 20) < compressed_share(text)
    assert compressed_share("") == 1


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        (BREAD, "The baker sells fresh bread and cakes.", ()),
        (BREAD, "The baker sells fresh fresh fresh bread.", ("loop",)),
        (BREAD, "The bak", ("short",)),
        (BREAD, "", ("short",)),
        (BREAD, "bread " * 40, ("loop", "repetition", "long", "compression")),
        ("ja ja ja ja ja ja", "yes yes yes yes yes yes", ()),  # as the source repeats itself
        ("ja ja", "yes yes yes yes yes yes", ("loop", "long", "compression")),
    ],
)
def test_alarms_are_named_after_their_signs(
    source: str, output: str, expected: tuple[str, ...]
) -> None:
    assert alarms(line(source, output), STRICT) == expected


def test_each_limit_is_the_last_value_without_an_alarm() -> None:
    """At the limit all is normal; one more, or less, is not. Sources have no repeats."""
    source = list("abcdefghijklmnopqrst")

    def found(output: Sequence[Hashable], **limits: float) -> set[str]:
        wide = GuardThresholds(loop=99, repetition=9.0, subwords_low=0.0, subwords_high=99.0)
        changed = replace(wide, **limits)  # type: ignore[arg-type]
        return set(alarms(GuardedLine("source", "output", source, output, 0.5), changed))

    stutter = ["x", "y", "y", "y", "y", "z"]  # 3 tokens repeat the one before them
    assert found(stutter, loop=3) == set()
    assert found(stutter, loop=2) == {"loop"}
    again = [*source[:20], *source[:4]]  # 22 trigrams, of which 2 were there before
    assert found(again, repetition=2 / 22) == set()
    assert found(again, repetition=2 / 22 - 1e-9) == {"repetition"}
    # Both lengths count 5 subwords more: 10 of 20 are (10 + 5) / (20 + 5) = 0.6.
    assert found(source[:10], subwords_low=0.6, subwords_high=0.6) == set()
    assert found(source[:10], subwords_low=0.6 + 1e-9) == {"short"}
    assert found(source[:10], subwords_high=0.6 - 1e-9) == {"long"}
    # And 10 characters more: (6 + 10) / (6 + 10) = 1.
    assert found(source, characters_low=1.0, characters_high=1.0) == set()
    assert found(source, characters_low=1 + 1e-9) == {"short"}
    assert found(source, characters_high=1 - 1e-9) == {"long"}
    assert found(source, coverage=0.5) == set()
    assert found(source, coverage=0.5 + 1e-9) == {"coverage"}
    left = compressed_share("ab" * 40)  # far less than 0.8 of the source's, which is 1
    for scale, expected in ((left, set()), (left + 1e-9, {"compression"})):
        limits = replace(GuardThresholds(), compression_scale=scale, compression_exponent=0.0)
        repeating = GuardedLine("source", "ab" * 40, source, source)
        assert {"compression"} & set(alarms(repeating, limits)) == expected


@pytest.mark.parametrize(
    ("limits", "precision", "recall"), [(STRICT, 29 / 30, 29 / 30), (GuardThresholds(), 1, 0.6)]
)
def test_loops_are_told_from_good_lines(
    limits: GuardThresholds, precision: float, recall: float
) -> None:
    rows = [text.split("\t") for text in LINES.read_text("utf-8").splitlines() if text[0] != "#"]
    is_loop = [label == "loop" for label, _, _ in rows]
    is_found = [bool(alarms(line(source, output), limits)) for _, source, output in rows]
    both = sum(a and b for a, b in zip(is_loop, is_found, strict=True))

    assert (len(rows), sum(is_loop)) == (60, 30)
    assert both / sum(is_found) >= precision
    assert both / sum(is_loop) >= recall


# --- Limits ------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), count=st.integers(100, 150))
def test_clean_text_raises_no_alarm_under_its_own_limits(seed: int, count: int) -> None:
    lines = clean_lines(seed, count)
    limits = calibrate(lines)

    assert [alarms(each, limits) for each in lines] == [()] * count
    assert calibrate(random.Random(seed).sample(lines, count)) == limits


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), unit=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
def test_a_loop_always_raises_an_alarm(seed: int, unit: list[str]) -> None:
    lines = clean_lines(seed, 100)
    for limits in (calibrate(lines), STRICT, GuardThresholds()):
        output = f"{lines[0].output} {' '.join(unit * 10)}"
        assert "loop" in alarms(line(lines[0].source, output), limits)


def test_a_few_bad_references_do_not_matter_and_many_move_no_limit_far() -> None:
    clean = clean_lines(1, 500)
    bad = [line("der", "the " * 100), line("der Hund " * 60, "a")] * 250
    few = calibrate([*clean, *bad[:2]])
    limits, many = calibrate(clean), calibrate([*clean, *bad])

    numbers = [asdict(each) | {"expected": 0} for each in (few, limits)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.2)
    assert many.loop <= 8
    assert many.repetition <= 0.5
    assert many.subwords_high / limits.subwords_high < 4
    assert "loop" in alarms(line("Der Hund schläft.", "dog " * 12), many)


def test_how_much_of_a_source_is_covered_has_a_limit_of_its_own() -> None:
    lines = [replace(each, covered=1 - i / 400) for i, each in enumerate(clean_lines(1, 200))]
    limits = calibrate(lines)

    assert limits.coverage == pytest.approx(0.8 * lines[-2].covered, abs=1e-4)  # 1 in 200
    limits = replace(GuardThresholds(), coverage=limits.coverage)
    fluent = line("Der Hund schläft im Garten.", "Two men are talking.")
    assert alarms(replace(fluent, covered=0.39), limits) == ("coverage",)
    assert alarms(replace(fluent, covered=0.41), limits) == ()
    assert alarms(replace(fluent, covered=0.0), GuardThresholds()) == ()


def test_limits_stand_a_margin_beyond_the_tail() -> None:
    """By hand: of 400 lines of 15 subwords the 2nd lowest and 3rd highest count (1 in 200)."""
    sizes = [*[15] * 394, 7, 7, 5, 25, 25, 25]  # with 5 more: of 20 they are 0.6, 0.5 and 1.5
    lines = [
        GuardedLine(
            "a" * 30, "b" * 30, [f"s{i}" for i in range(15)], [f"t{i}" for i in range(size)]
        )
        for size in sizes
    ]
    limits = calibrate(lines)

    spread = 1.5 / 0.6  # a quarter of it, by logarithms, is the margin
    assert limits.subwords_low == pytest.approx(0.6 / spread**0.25, abs=1e-4)
    assert limits.subwords_high == pytest.approx(1.5 * spread**0.25, abs=1e-4)
    # All are alike in characters: a fifth is the least margin.
    assert limits.characters_low == pytest.approx(1 / 1.2, abs=1e-4)
    assert limits.characters_high == pytest.approx(1.2, abs=1e-4)
    assert (limits.loop, limits.repetition) == (1, 0.15)
    stutter = [replace(each, output_tokens=["x"] * 4) for each in lines[:3]]
    assert calibrate([*lines[3:], *stutter]).loop == 4  # 3 tokens repeat another, and 1 more


def test_few_lines_say_nothing() -> None:
    assert calibrate(clean_lines(1, 99)) == GuardThresholds()
    assert calibrate([line(" ", "a"), line("a", "")] * 500) == GuardThresholds()
    assert calibrate([line("ja", "ja")] * 100).loop == 1  # equal lines are no trouble


def test_limits_come_back_from_their_file(tmp_path: Path) -> None:
    assert read_thresholds(tmp_path) == GuardThresholds()
    limits = replace(calibrate(clean_lines(3, 150)), expected={"größer": [4, 5]})
    (tmp_path / NAME).write_text(limits.text(), "utf-8")

    assert read_thresholds(tmp_path) == limits
    (tmp_path / NAME).write_text('{"loop": 1}')
    assert read_thresholds(tmp_path) == GuardThresholds(loop=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "\xff",
        *(
            json.dumps(asdict(STRICT) | change)
            for change in ({"loop": "1"}, {"loop": -1}, {"more": 1}, {"characters_low": None},
                           {"subwords_high": 1e9}, {"compression_exponent": 3}, {"expected": [4]},
                           {"expected": {"red": 4}}, {"expected": {"red": ["4"]}})
        ),
        json.dumps(asdict(STRICT)).replace("1.55", "NaN"),
        json.dumps(asdict(STRICT)).replace("1.55", "9" * 400),
        "[" * 200_000,
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    """With finding 16: numbers of hundreds of digits, deep nesting."""
    (tmp_path / NAME).write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"guard\.json cannot be used"):
        read_thresholds(tmp_path)


# --- The second search -------------------------------------------------------------------------


class Parrot(Engine):
    """Repeats the last token of some sources, unless that is forbidden and helps.

    Its stricter searches score lower.
    """

    def __init__(self, *, can_be_strict: bool = True, is_curable: bool = True) -> None:
        self.can_be_strict, self.is_curable = can_be_strict, is_curable
        self.calls: dict[bool, list[tuple[int, ...]]] = {False: [], True: []}

    def say(self, ids: tuple[int, ...], *, is_strict: bool) -> tuple[int, ...]:
        """Return the output of a plain search, or of a stricter one."""
        stutters = len(ids) % 2 == 0 and not (is_strict and self.is_curable)
        return (*ids, *[ids[-1]] * 9) if stutters else ids

    @override
    def search(
        self, sources: Sequence[Sequence[int]], options: DecodingConfig, constraints: object = None
    ) -> list[list[Hypothesis]]:
        is_strict = options.beam_size > OPTIONS.beam_size
        if is_strict and not self.can_be_strict:
            raise ConfigError("No such option.", fix="None.")
        batch = [tuple(ids) for ids in sources]
        self.calls[is_strict] += batch
        said = [self.say(ids, is_strict=is_strict) for ids in batch]
        return [[Hypothesis(ids, -1.0, -1.0 - is_strict)] for ids in said]


def stutterer(tokenizers: Tokenizers, engine: Engine, *, is_guarded: bool = True) -> Translator:
    guard = Guard(STRICT, tokenizers) if is_guarded else None
    return Translator(engine, tokenizers, OPTIONS, max_length=32, guard=guard)


def distinct(count: int) -> list[str]:
    """Lines of a few different words, the same every time."""
    draw = random.Random(5)
    return [" ".join(draw.sample(WORDS, draw.randint(1, 9))) for _ in range(count)]


def test_only_alarmed_lines_are_searched_again_and_others_stay_to_the_byte(
    tokenizers: Tokenizers,
) -> None:
    lines, engine = [*distinct(40), "", "Hund"], Parrot()
    plain = stutterer(tokenizers, Parrot(), is_guarded=False).translate(lines)
    found = stutterer(tokenizers, engine).translate(lines)

    stuttering = [
        tuple(ids) for ids in tokenizers.source.encode_batch(lines) if ids and len(ids) % 2 == 0
    ]
    assert sorted(engine.calls[True]) == sorted(stuttering)
    for before, after in zip(plain, found, strict=True):
        if after.retried:
            assert (after.text, after.alarms, after.score) == (after.source, (), -2.0)
            assert before.text != after.text
        else:
            assert after == before
    assert sum(bool(result.retried) for result in found) == len(stuttering) > 10
    counts = GuardCounts.of(dict(enumerate(found, 1)))
    assert (counts.num_alarmed, counts.num_cleared) == (len(stuttering), len(stuttering))
    assert "lines looked degenerate (length, loops); now none raises" in (counts.message(42) or "")


def test_not_all_lines_are_done_before_the_second_search(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, engine, done = [*distinct(40), ""], Parrot(), [0]
    before: list[int] = []
    search = engine.search

    def watched(ids: Any, options: DecodingConfig, constraints: Any = None) -> Any:
        if options.beam_size > OPTIONS.beam_size:
            before.append(done[-1])
        return search(ids, options, constraints)

    monkeypatch.setattr(engine, "search", watched)
    guarded = stutterer(tokenizers, engine).with_progress(lambda num: done.append(done[-1] + num))
    guarded.with_options(batch_tokens=1).translate(lines)
    assert len(before) > 5
    assert 30 < max(before) < len(lines) == done[-1]


@pytest.mark.parametrize("engine", [Parrot(is_curable=False), Parrot(can_be_strict=False)])
def test_what_a_retry_does_not_improve_stays_and_keeps_its_alarms(
    tokenizers: Tokenizers, engine: Parrot
) -> None:
    lines = distinct(20)
    plain = stutterer(tokenizers, engine, is_guarded=False).translate(lines)
    found = stutterer(tokenizers, engine).translate(lines)

    assert [replace(result, alarms=()) for result in found] == plain
    alarmed = [result for result in found if result.alarms]
    assert all("loop" in result.alarms for result in alarmed)
    assert json.loads(json.dumps(alarmed[0].as_dict()))["alarms"] == list(alarmed[0].alarms)
    counts = GuardCounts.of(dict(enumerate(found, 1)))
    assert (counts.num_alarmed, counts.num_cleared) == (len(alarmed), 0)
    numbers = [number for number, result in enumerate(found, 1) if result.alarms]
    parts = [GuardCounts.of({n: found[n - 1] for n in own}) for own in (numbers[:3], numbers[3:])]
    assert list((parts[0] + parts[1]).left) == list(counts.left) == numbers[:5]
    assert f"still do: lines {', '.join(map(str, numbers[:5]))}, ..." in (counts.message(20) or "")
    assert len(alarmed) > 5


def test_a_segment_of_a_long_line_is_retried_alone(tokenizers: Tokenizers) -> None:
    long = ", ".join(distinct(30))
    engine = Parrot()
    (found,) = stutterer(tokenizers, engine).translate([long])

    assert 0 < len(engine.calls[True]) < len(engine.calls[False])
    assert found.text.split() == long.split()
    assert (found.alarms, "loop" in found.retried) == ((), True)


LIMITS = {"max_length_factor": 1.65, "max_length_offset": 3}
"""A retry costs at most what the longest output costs that is not too long."""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["loop"], {"no_repeat_ngram_size": 2}),
        (["repetition"], {"no_repeat_ngram_size": 3}),
        (["compression"], {"no_repeat_ngram_size": 3}),
        (["short"], {"min_length_factor": 0.55}),
        (["long"], LIMITS),
        (["coverage"], {}),
        (["long", "repetition", "loop"], {"no_repeat_ngram_size": 2}),
    ],
)  # fmt: skip
def test_alarms_have_a_fallback_search_of_their_own(
    tokenizers: Tokenizers, found: list[Alarm], expected: dict[str, float]
) -> None:
    guard, options = Guard(STRICT, tokenizers), DecodingConfig(beam_size=1)

    assert guard.fallback_search(found, options) == expected | LIMITS | {"beam_size": 5}
    # Only what CTranslate2 defines as our own search does.
    assert not not_followed(options.model_copy(update=expected))
    sampled = DecodingConfig(beam_size=1, sampling=True)
    assert guard.fallback_search(found, sampled) == (expected and expected | LIMITS)


@pytest.mark.parametrize(
    "changes",
    [
        {"beam_size": 12, "no_repeat_ngram_size": 1, "max_length_factor": 0.5},
        {"beam_size": 4, "diverse_beam_groups": 2},
        {"min_length_factor": 0.9, "n_best": 5},
    ],
)
def test_a_fallback_search_loosens_nothing(
    tokenizers: Tokenizers, changes: dict[str, float]
) -> None:
    options = DecodingConfig.model_validate(changes)
    found = Guard(STRICT, tokenizers).fallback_search(["loop", "short", "long"], options)
    strict = DecodingConfig.model_validate(options.model_dump() | found)

    assert 1 <= strict.no_repeat_ngram_size <= (options.no_repeat_ngram_size or 2)
    assert strict.beam_size >= options.beam_size
    assert strict.max_length_factor <= options.max_length_factor
    assert strict.max_length_offset <= options.max_length_offset
    assert strict.min_length_factor >= options.min_length_factor
    assert strict.n_best == options.n_best
    # No longer than normal, so that the alarm for length is gone.
    size = 40
    longest = int(size * strict.max_length_factor) + strict.max_length_offset
    assert "long" not in alarms(GuardedLine("", "", range(size), range(longest)), STRICT)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_guarded_text_does_not_depend_on_batches_or_order(
    model: Transformer, tokenizers: Tokenizers, beam_size: int
) -> None:
    """Fault 46, with a model that was never trained and stutters a lot."""
    lines = sentences(12, seed=5)
    guard = Guard(STRICT, tokenizers)
    translator = Translator(TorchEngine(model), tokenizers, OPTIONS, max_length=32, guard=guard)
    expected = translator.translate(lines, beam_size=beam_size, batch_tokens=1)
    order = random.Random(1).sample(range(12), 12)
    found = translator.translate([lines[row] for row in order], beam_size=beam_size)
    assert [replace(result, score=0.0, log_prob=0.0, alternatives=()) for result in found] == [
        replace(expected[row], score=0.0, log_prob=0.0, alternatives=()) for row in order
    ]
    assert any(result.alarms or result.retried for result in expected)


def test_output_about_something_else_is_searched_again(tokenizers: Tokenizers) -> None:
    """A first search that says another sentence's words, a second one that says its own."""
    other = tuple(tokenizers.target.encode("Garten Fluss"))

    class Dreamer(Parrot):
        @override
        def say(self, ids: tuple[int, ...], *, is_strict: bool) -> tuple[int, ...]:
            return ids if is_strict else other

    size = tokenizers.source.vocab_size
    coverage = SourceCoverage([], [[token] for token in range(size)])  # each means itself
    guard = Guard(replace(GuardThresholds(), coverage=0.95), tokenizers)
    guard.coverage = coverage
    translator = Translator(Dreamer(), tokenizers, OPTIONS, max_length=32, guard=guard)
    found = translator.translate(["Hund Katze Haus", "Garten Fluss"])

    assert [each.text for each in found] == ["Hund Katze Haus", "Garten Fluss"]
    assert [each.retried for each in found] == [("coverage",), ()]


# --- Coverage ----------------------------------------------------------------------------------


def test_only_the_likeliest_translations_count_and_none_that_are_in_every_output() -> None:
    coverage = SourceCoverage([], [list(range(4, 30))])
    assert coverage.share([0], [13]) == 1
    assert coverage.share([0], [14]) == 1 / 2
    assert coverage.share([], []) == coverage.share([], [7]) == 1

    coverage = SourceCoverage(list(range(100, 160)), [[100, 4], [149], [150], [-1, -1]])
    assert coverage.share([0], [100]) == 1 / 2
    assert coverage.share([0], [4]) == 1
    assert coverage.share([1, 3, 3], [149]) == 1  # nothing is known of them
    assert coverage.share([2], [150]) == 1  # the 51st is not too common


def test_a_word_that_is_nearly_always_translated_may_not_be_dropped(tmp_path: Path) -> None:
    """Of 4,000 pairs ``red`` is in 400, half as 10 and half as 11; ``it`` is often left out."""
    pieces = ["<pad>", "<unk>", "<s>", "</s>", "▁red", "▁lamp", "s", "▁it", "."]
    sources, targets = [], []
    for i in range(4000):
        source, target = [8], [40]
        if i % 10 == 0:
            source, target = [4, *source], [10 + i // 10 % 2, *target]
        if i % 11 == 0:
            source, target = [5, *source], [20, *target]
        if i % 7 == 0:
            source, target = [7, *source], [30, *target][i % 2 :]
        if i % 10 == 5:  # "reds" is another word
            source, target = [4, 6, *source], [12, *target]
        sources.append(source)
        targets.append(target)
    targets[0] = [20, 40]  # one translation without red does not matter
    with StoreWriter(tmp_path / "store", 50) as writer:
        writer.append(sources, targets, 0, range(4000))
    store = ParallelStore.open(tmp_path / "store")
    candidates = [[-1]] * 4 + [[40, 10, 11, 12], [20, 40], [12], [30, -1], [40]]

    expected = expected_translations(store, candidates, pieces)
    assert expected == {"red": [10, 11], "lamp": [20]}
    limits = replace(GuardThresholds(), expected=expected)
    for output, alarm in (([11, 20, 40], ()), ([20, 40], ("coverage",)), ([12, 20], ("coverage",))):
        line = GuardedLine("a red lamp.", "output", [6, 4, 5, 8], output)
        assert alarms(line, limits) == alarm
    assert alarms(GuardedLine("reds, Red", "output", [4, 6, 8], [40]), limits) == ()


def test_the_lists_come_from_the_file_of_a_model(tmp_path: Path) -> None:
    assert SourceCoverage.load(ShortlistFile(tmp_path, (2, 10))) is None
    candidates = torch.tensor([[-1, -1], [7, 9]], dtype=torch.int32)
    (tmp_path / SHORTLIST).write_bytes(shortlist_bytes(torch.tensor([9]), candidates))
    coverage = SourceCoverage.load(ShortlistFile(tmp_path, (2, 10)))

    assert coverage is not None
    assert [coverage.share([1], [token]) for token in (7, 9)] == [1, 1 / 2]


def test_sentences_about_something_else_are_found_in_real_text(
    shared_data: Path, tmp_path: Path
) -> None:
    """Captions are much alike; their words are the tokens here. Learned from 8,000 pairs."""
    folder = shared_data / "multi30k" / "lc_norm_tok"
    sides = [
        [line.split() for line in read_lines(folder / f"train.lc.norm.tok.{language}.gz")[:9000]]
        for language in ("de", "en")
    ]
    ids: list[list[list[int]]] = []
    for side in sides:
        numbers: dict[str, int] = {}
        ids.append([[numbers.setdefault(word, len(numbers)) for word in line] for line in side])
    sizes = [1 + max(max(line) for line in side if line) for side in ids]
    with StoreWriter(tmp_path / "store", max(sizes)) as writer:
        writer.append(ids[0][:8000], ids[1][:8000], 0, range(8000))
    store = ParallelStore.open(tmp_path / "store")
    common = np.argsort(-store.token_counts("target", sizes[1]), kind="stable")[:200]
    table = likely_translations(store, (sizes[0], sizes[1]), 20)
    coverage = SourceCoverage(common.tolist(), table.tolist())

    def lines(outputs: list[list[int]]) -> list[GuardedLine]:
        return [
            GuardedLine("a", "a", source, output, coverage.share(source, output))
            for source, output in zip(ids[0][8000:], outputs, strict=True)
        ]

    right = lines(ids[1][8000:])
    limits = calibrate(right[:500])
    wrong = lines(random.Random(1).sample(ids[1][8000:], 1000))
    caught = sum("coverage" in alarms(line, limits) for line in wrong)
    disturbed = sum("coverage" in alarms(line, limits) for line in right[500:])
    assert caught > 400
    assert disturbed <= 5
