"""The signs of a broken translation, their limits, and the second search."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from nmt.config.data import TokenizerConfig
from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.inference import guard
from nmt.inference.engine import Engine
from nmt.inference.guard import (
    GuardCounts,
    GuardLimits,
    alarms,
    compressed_share,
    fallback_search,
)
from nmt.inference.mbr import Mbr
from nmt.inference.request import Alarm, Result
from nmt.inference.segment import Segment
from nmt.inference.translator import Translator
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text.languages import longest_loop
from nmt.text.tokenizer import Tokenizer, Tokenizers, load_tokenizers
from tests.examples import FEW
from tests.inference.conftest import OPTIONS, WORDS, sentences, translator_of
from tests.learning import train_sentencepiece

LINES = Path(__file__).with_name("guard_lines.tsv")
WIDTHS: dict[str, Any] = {"characters": (0.5, 1.55), "subwords": (0.55, 1.65)}
RATIO: dict[str, Any] = {"compression_scale": 1.5, "compression_exponent": -0.22}
STRICT = GuardLimits(loop=1, repetition=0.15, **WIDTHS, **RATIO)
"""What is normal for German captions and their English."""
BREAD = "Der Bäcker verkauft Brot und Kuchen."


def alarms_of(source: str, output: str, limits: GuardLimits) -> tuple[Alarm, ...]:
    """Subwords are up to four letters of a word."""
    read, written = (re.findall(r"\w{1,4}|\S", text) for text in (source, output))
    return alarms((source, output), (read, written), limits)


@given(unit=st.lists(st.sampled_from("abcde"), min_size=1, max_size=6), copies=st.integers(1, 9))
def test_a_loop_is_counted_without_its_first_copy(unit: list[str], copies: int) -> None:
    assert longest_loop(["x", *unit * copies, "y"]) >= len(unit) * (copies - 1)
    assert longest_loop([*range(30), *unit[:1] * copies]) == copies - 1
    phrase = ["a", "dog", "runs"]
    assert longest_loop(phrase * 2) == 3
    assert longest_loop([*phrase, *phrase[:2]]) == 0  # not a whole copy


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
def test_alarms_have_names(source: str, output: str, expected: tuple[str, ...]) -> None:
    assert alarms_of(source, output, STRICT) == expected


def test_a_value_at_a_limit_raises_no_alarm() -> None:
    """At the limit all is normal; one more, or less, is not. Sources have no repeats."""
    source = list("abcdefghijklmnopqrst")

    def found(output: Sequence[Hashable], **limits: Any) -> set[str]:
        changed = replace(GuardLimits(loop=99, repetition=9.0, subwords=(0.0, 99.0)), **limits)
        return set(alarms(("source", "output"), (source, output), changed))

    stutter = ["x", "y", "y", "y", "y", "z"]  # 3 tokens repeat the one before them
    assert found(stutter, loop=3) == set()
    assert found(stutter, loop=2) == {"loop"}
    again = [*source[:20], *source[:4]]  # 22 trigrams, of which 2 were there before
    assert found(again, repetition=2 / 22) == set()
    assert found(again, repetition=2 / 22 - 1e-9) == {"repetition"}
    # Both lengths count 5 subwords more: 10 of 20 are (10 + 5) / (20 + 5) = 0.6.
    assert found(source[:10], subwords=(0.6, 0.6)) == set()
    assert found(source[:10], subwords=(0.6 + 1e-9, 9)) == {"short"}
    assert found(source[:10], subwords=(0, 0.6 - 1e-9)) == {"long"}
    # And 10 characters more: (6 + 10) / (6 + 10) = 1.
    assert found(source, characters=(1.0, 1.0)) == set()
    assert found(source, characters=(1 + 1e-9, 9)) == {"short"}
    assert found(source, characters=(0, 1 - 1e-9)) == {"long"}
    left = compressed_share("ab" * 40)  # far less than 0.8 of the source's, which is 1
    for scale, expected in ((left, set()), (left + 1e-9, {"compression"})):
        limits = GuardLimits(compression_scale=scale, compression_exponent=0.0)
        repeating = alarms(("source", "ab" * 40), (source, source), limits)
        assert {"compression"} & set(repeating) == expected


@pytest.mark.parametrize("text", ["aga " * 9, "\u0430\u0433\u0430 " * 9, "狗在家" * 9, "猫狗在家"])
def test_the_compression_of_any_script_is_measured_in_bytes(text: str) -> None:
    """Of its compressed text, and of the limit for its length; 8 bytes are zlib's for no text."""
    num_bytes = len(text.encode())
    share = (len(zlib.compress(text.encode(), 9)) - 8) / num_bytes
    assert compressed_share(text) == pytest.approx(share)

    def has_alarm(scale: float) -> bool:
        limits = GuardLimits(compression_scale=scale, compression_exponent=-0.5)
        ids = range(len(text))
        return "compression" in alarms(("A dog.", text), (ids, ids), limits)

    at_limit = compressed_share(text) * num_bytes**0.5
    is_repetitive = share < 0.8
    assert not has_alarm(at_limit - 1e-6)
    assert has_alarm(at_limit + 1e-6) == is_repetitive


def test_an_output_may_be_a_little_more_repetitive_than_its_source() -> None:
    """zlib writes the last letters as one copy: 10, 10 and 7 bytes, of 12, 13 and 9."""
    limits = GuardLimits(compression_scale=9.0, compression_exponent=0.0)
    source, ids = "abcdefgh", range(20)  # its share is 1
    expected = {source: False, "abcdefghaaaa": False, "abcdefghaaaaa": True, "abcdeaaaa": True}
    for output, is_repetitive in expected.items():
        found = alarms((source, output), (ids, ids), limits)
        assert ("compression" in found) == is_repetitive


def test_loops_are_distinguished_from_good_lines() -> None:
    rows = [text.split("\t") for text in LINES.read_text("utf-8").splitlines() if text[0] != "#"]
    is_loop = [label == "loop" for label, _, _ in rows]
    assert (len(rows), sum(is_loop)) == (60, 30)
    for limits, precision, recall in ((STRICT, 29 / 30, 29 / 30), (GuardLimits(), 1, 0.6)):
        is_found = [bool(alarms_of(source, output, limits)) for _, source, output in rows]
        both = sum(a and b for a, b in zip(is_loop, is_found, strict=True))
        assert both / sum(is_found) >= precision
        assert both / sum(is_loop) >= recall


@FEW
@given(seed=st.integers(0, 10**6), unit=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
def test_a_loop_always_raises_an_alarm(seed: int, unit: list[str]) -> None:
    source = " ".join(random.Random(seed).sample(WORDS, 9))
    for limits in (STRICT, GuardLimits()):
        assert "loop" in alarms_of(source, f"{source.swapcase()} {' '.join(unit * 10)}", limits)


class Parrot(Engine):
    """Repeats the last token of some sources; its stricter searches score lower, and may help."""

    def __init__(self, *, can_be_strict: bool = True, is_curable: bool = True) -> None:
        self.can_be_strict, self.is_curable = can_be_strict, is_curable
        self.calls: dict[bool, list[tuple[int, ...]]] = {False: [], True: []}

    @override
    def search(self, sources: Any, options: DecodingConfig, *_: object) -> Any:
        is_strict = options.beam_size > OPTIONS.beam_size
        if is_strict and not self.can_be_strict:
            raise ConfigError("No such option.", fix="None.")
        batch = [tuple(ids) for ids in sources]
        self.calls[is_strict] += batch
        cured = is_strict and self.is_curable
        said = [(*ids, *[ids[-1]] * 9 * (len(ids) % 2 == 0 and not cured)) for ids in batch]
        return [[Hypothesis(ids, -1.0, -1.0 - is_strict)] for ids in said]


def stutterer(tokenizers: Tokenizers, engine: Engine, *, is_guarded: bool = True) -> Translator:
    return translator_of(engine, tokenizers, guard=is_guarded, limits=STRICT)


def distinct(count: int) -> list[str]:
    draw = random.Random(5)
    return [" ".join(draw.sample(WORDS, draw.randint(1, 9))) for _ in range(count)]


def test_only_alarmed_lines_are_searched_again(tokenizers: Tokenizers) -> None:
    lines, engine = [*distinct(40), "", "Hund"], Parrot()
    plain = stutterer(tokenizers, Parrot(), is_guarded=False).translate(lines)
    found = stutterer(tokenizers, engine).translate(lines)
    every = map(tuple, tokenizers.source.encode_batch(lines))
    stuttering = [ids for ids in every if ids and len(ids) % 2 == 0]
    assert sorted(engine.calls[True]) == sorted(stuttering)
    for before, after in zip(plain, found, strict=True):
        if after.retried:
            assert (after.text, after.alarms, after.score) == (after.source, (), -2.0)
            assert before.text != after.text
        else:
            assert after == before
    assert sum(bool(result.retried) for result in found) == len(stuttering) > 10
    counts = GuardCounts().add(dict(enumerate(found, 1)))
    assert (counts.num_alarmed, counts.num_cleared) == (len(stuttering), len(stuttering))
    assert "translations are suspicious (length, loops)" in (counts.message(1) or "")
    assert f"a second search fixed {len(stuttering)} and" in (counts.message(1) or "")
    assert "check" not in (counts.message(1) or "")


@pytest.mark.parametrize("engine", [Parrot(is_curable=False), Parrot(can_be_strict=False)])
def test_a_failed_retry_keeps_the_first_output(tokenizers: Tokenizers, engine: Parrot) -> None:
    lines = distinct(20)
    plain = stutterer(tokenizers, engine, is_guarded=False).translate(lines)
    found = stutterer(tokenizers, engine).translate(lines)
    assert [replace(result, alarms=()) for result in found] == plain
    alarmed = [result for result in found if result.alarms]
    assert all("loop" in result.alarms for result in alarmed)
    assert json.loads(json.dumps(alarmed[0].as_dict()))["alarms"] == list(alarmed[0].alarms)
    counts = GuardCounts().add(dict(enumerate(found, 1)))
    assert (counts.num_alarmed, counts.num_cleared) == (len(alarmed), 0)
    numbers = [number for number, result in enumerate(found, 1) if result.alarms]
    parts = GuardCounts()
    for own in (numbers[:3], numbers[3:]):
        parts.add({number: found[number - 1] for number in own})
    assert (parts.faults, parts.suspicious) == (counts.faults, counts.suspicious)
    listed = ", ".join(map(str, numbers[:5]))
    assert f"check loops in {len(alarmed)} lines: {listed}, ..." in (counts.message(1) or "")
    assert len(alarmed) > 5


def noted(alarms: Sequence[Alarm], retried: Sequence[Alarm] = (), seconds: float = 0.0) -> Result:
    return Result("a", "b", 0.0, alarms=(*alarms,), retried=(*retried,), retry_seconds=seconds)


def test_the_message_counts_lines_by_what_is_left_of_their_alarms() -> None:
    """A line that keeps one of two alarms is not fixed: of three lines with alarms one is.

    3 of 29 lines are more than a tenth of at least 20: something is wrong with the input as such.
    """
    special = [
        noted((), ["loop"], 0.5),
        noted(["short"], ["loop"], 0.25),
        noted(["long"], (), 0.25),
    ]
    for count, is_usual in ((19, False), (29, True), (30, False)):
        results = [*special, *[noted(())] * (count - 3)]
        counts = GuardCounts().add(dict(enumerate(results, 7)))
        assert (counts.num_lines, counts.num_alarmed, counts.num_cleared) == (count, 3, 1)
        assert (counts.suspicious, counts.retry_seconds) == ({"length": [8, 9]}, 1.0)
        message = counts.message(4.0) or ""
        assert "fixed 1 and took 1.0 of 4.0 s" in message
        assert "(length, loops)" in message
        assert "check length in 2 lines: 8, 9" in message
        assert "check loops" not in message
        assert ("input" in message) == is_usual


class TwoAnswers(Engine):
    """Says ``first``, or ``second`` where bigrams may not repeat; notes its options."""

    def __init__(self, first: Sequence[int], second: Sequence[int]) -> None:
        self._said = [Hypothesis((*ids,), -1.0, -1.0) for ids in (first, second)]
        self.options: list[DecodingConfig] = []

    @override
    def search(self, sources: Any, options: DecodingConfig, *_: object) -> Any:
        self.options.append(options)
        return [[self._said[options.no_repeat_ngram_size == 2]] for _ in sources]


def test_an_alarm_that_remains_is_not_listed_as_removed(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by 3 s at every look: the lines share the time of their search."""
    encode = tokenizers.target.encode
    engine = TwoAnswers(encode("und " * 12), encode(" ".join(WORDS[:9])))
    clock = Mock(side_effect=range(0, 99, 3))
    monkeypatch.setattr(guard, "time", Mock(perf_counter=clock))
    results = stutterer(tokenizers, engine).translate(["Hund", "Katze"])
    for found in results:
        assert (found.text, found.alarms) == (" ".join(WORDS[:9]), ("long",))
        assert set(found.retried) == {"loop", "repetition", "compression"}
    assert sum(found.retry_seconds for found in results) == 3.0


@pytest.mark.parametrize("kind", ["samples", "beam"])
def test_candidates_of_a_second_search_obey_its_options(tokenizers: Tokenizers, kind: Any) -> None:
    engine = TwoAnswers(tokenizers.target.encode("und " * 12), tokenizers.target.encode("und"))
    translator = stutterer(tokenizers, engine).with_options(mbr=Mbr("chrf", 9, kind))
    (found,) = translator.translate(["Hund"])
    assert (found.text, found.alarms) == ("und", ())
    first, second = engine.options
    assert (first.no_repeat_ngram_size, second.no_repeat_ngram_size) == (0, 2)
    assert first.n_best == second.n_best == 9
    assert first.sampling == second.sampling == (kind == "samples")


def test_a_source_character_that_stays_unknown_is_an_alarm(tmp_path: Path) -> None:
    config = TokenizerConfig(vocab_size=60, byte_fallback=False)
    train_sentencepiece(iter(sentences(300)), tmp_path / "joint.model", config, threads=1)
    tokenizers = load_tokenizers(tmp_path)
    answer = tokenizers.target.encode("der Hund")
    translator = translator_of(TwoAnswers(answer, answer), tokenizers, guard=True)
    known, unknown = translator.translate(["die Katze", "die \u732b Katze"])
    assert (known.alarms, unknown.alarms) == ((), ("unknown",))
    counts = GuardCounts().add({1: known, 2: unknown})
    assert "check unknown characters in 1 line: 2" in (counts.message(1) or "")
    (unguarded,) = translator.with_options(guard=False).translate(["\u732b"])
    assert unguarded.alarms == ()


class Words(Tokenizer):
    """Its ids are the places of its words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    @override
    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self._words[index] for index in ids)


def test_each_side_is_read_in_its_own_vocabulary() -> None:
    """A sentence of 11 characters becomes one of 4 and a phrase behind it, together 8.

    Smoothed, that is (8 + 10) / (11 + 10) = 0.857. In the target's words the source would have two
    sentences, too. The alarms of length and place stand side by side.
    """
    special = [""] * 4
    tokenizers = Tokenizers(Words(*special, "Hund", "Katze."), Words(*special, "dog.", "cat"))
    segment = Segment(0, (4, 5), constraints=Constraints(required=((5,),)))
    found = [[Hypothesis((4, 5), -1.0, -1.0)]]
    for least, expected in ((0.85, ("constraint",)), (0.86, ("short", "constraint"))):
        limits = GuardLimits(characters=(least, 1.0))
        guarded = guard.Guard(tokenizers, DecodingConfig(), limits, None)
        (output,) = guarded.check_outputs([segment], found)
        assert output.alarms == expected


def test_a_segment_of_a_long_line_is_retried_alone(tokenizers: Tokenizers) -> None:
    long = ", ".join(distinct(30))
    engine = Parrot()
    (found,) = stutterer(tokenizers, engine).translate([long])
    assert 0 < len(engine.calls[True]) < len(engine.calls[False])
    assert found.text.split() == long.split()
    assert (found.alarms, "loop" in found.retried) == ((), True)


LIMITS = {"max_length_factor": 1.65, "max_length_offset": 4}
"""A retry costs at most what the shortest output costs that is too long."""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["loop"], {"no_repeat_ngram_size": 2}),
        (["repetition"], {"no_repeat_ngram_size": 3}),
        (["compression"], {"no_repeat_ngram_size": 3}),
        (["short"], {}),
        (["long"], {}),
        (["long", "repetition", "loop"], {"no_repeat_ngram_size": 2}),
    ],
)  # fmt: skip
def test_alarms_have_a_fallback_search(found: list[Alarm], expected: dict[str, float]) -> None:
    options = DecodingConfig(beam_size=1)
    assert fallback_search(found, options, STRICT) == expected | LIMITS | {"beam_size": 5}
    sampled = DecodingConfig(beam_size=1, sampling=True)
    assert fallback_search(found, sampled, STRICT) == (expected and expected | LIMITS)


@pytest.mark.parametrize(
    "changes",
    [
        {"beam_size": 12, "no_repeat_ngram_size": 1, "max_length_factor": 0.5},
        {"beam_size": 4, "diverse_beam_groups": 2},
        {"min_length_factor": 0.9, "n_best": 5},
    ],
)
def test_a_fallback_search_never_loosens_an_option(changes: dict[str, float]) -> None:
    options = DecodingConfig.model_validate(changes)
    found = fallback_search(["loop", "short", "long"], options, STRICT)
    strict = DecodingConfig.model_validate(options.model_dump() | found)
    assert 1 <= strict.no_repeat_ngram_size <= (options.no_repeat_ngram_size or 2)
    for least in ("beam_size", "min_length_factor"):
        assert getattr(strict, least) >= getattr(options, least)
    for most in ("max_length_factor", "max_length_offset"):
        assert getattr(strict, most) <= getattr(options, most)
    assert strict.n_best == options.n_best


def test_no_search_removes_an_alarm_by_forcing_a_length() -> None:
    """A cut output is still too long, and a short output is not made longer."""
    for beam_size in (1, 5):
        changes = fallback_search(["loop", "short"], DecodingConfig(beam_size=beam_size), STRICT)
        assert "min_length_factor" not in changes
        size = 40
        longest = int(size * changes["max_length_factor"]) + changes["max_length_offset"]
        assert "long" in alarms(("", ""), (range(size), range(longest)), STRICT)
        assert "long" not in alarms(("", ""), (range(size), range(longest - 1)), STRICT)
    assert fallback_search(["long", "short"], DecodingConfig(beam_size=5), STRICT) == {}
