"""Slices: their counts add up, and each sentence is in the one that its rule names."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import TokenizerConfig
from nmt.data.store import ParallelStore, StoreWriter
from nmt.extras.analysis import slices
from nmt.extras.analysis.slices import (
    Group,
    LineCounts,
    count_in_training,
    groups_of_source,
    groups_of_system,
    score_slices,
    slice_section,
)
from nmt.inference.request import Result
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.metrics.result import System
from nmt.metrics.scoring import Resampling, score_systems
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from tests.commands.test_evaluate import invoke, write
from tests.extras.analysis.conftest import found
from tests.learning import train_sentencepiece

TEXTS = st.lists(
    st.tuples(*[st.text("aB1. ,üß世" + "\u0663", max_size=30)] * 3), min_size=1, max_size=9
)


@given(TEXTS, st.data())
def test_every_group_is_a_partition(texts: list[tuple[str, str, str]], data: st.DataObject) -> None:
    source, output, reference = (list(side) for side in zip(*texts, strict=True))
    numbers = st.lists(st.integers(0, 200), max_size=4)
    counts = [LineCounts(data.draw(numbers), data.draw(numbers)) for _ in texts]
    results = [Result(x, y, 0.0) for x, y in zip(source, output, strict=True)]
    system = System("s", output, results=results)
    groups = [*groups_of_source(source, counts), *groups_of_system(system, source, [reference])]
    assert len(groups) == 8
    for group in groups:
        assert len(group.labels) == len(texts)
        assert set(group.labels) <= set(group.slices)


@pytest.mark.parametrize(
    ("group", "texts", "expected"),
    [
        ("source words", ["one two, three."], "below 10"),
        ("source words", ["w " * 10], "10-19"),
        ("source words", ["今日は天気がいいので、公園へ行きましょう。"], "10-19"),
        ("source words", ["w " * 40], "40 and more"),
        ("source case", ["ALL OF IT"], "all capitals"),
        ("source case", ["none of it"], "no capitals"),
        ("source case", ["Some of it"], "both cases"),
        ("source case", ["今日"], "no letters with case"),
        ("rarest source word in training", ["x"], "1-9 times"),
        ("source word pairs in training", ["x"], "50-74%"),
        ("numbers", ["in 1,000 days", "in 1.000 Tagen"], "kept"),
        ("numbers", ["at 10:30", "um 10.30"], "kept"),
        ("numbers", ["in \u0661\u0662 days", "in 12 Tagen"], "kept"),
        ("numbers", ["in 12 or 13 days", "in 12 Tagen"], "lost"),
        ("numbers", ["in days", "in 12 Tagen"], "nothing to keep"),
        ("names and copied tokens", ["(Anna) is here", "Anna!", "Anna ist hier"], "kept"),
        ("names and copied tokens", ["see a@b.c", "siehe", "siehe a@b.c"], "lost"),
        ("names and copied tokens", ["the hand", "die", "die hand"], "nothing to keep"),
        ("length ratio to reference", ["x", "abc", "abcdefgh"], "below 0.8"),
        ("length ratio to reference", ["x", "abcd", "abcd"], "0.8-1.25"),
    ],
)
def test_a_sentence_is_in_the_slice_that_its_rule_names(
    group: str, texts: list[str], expected: str
) -> None:
    source, output, reference = (*texts, "", "")[:3]
    groups = [
        *groups_of_source([source], [LineCounts([5, 12], [0, 1, 3])]),
        *groups_of_system(System("s", [output]), [source], [[reference]]),
    ]
    assert [each.labels[0] for each in groups if each.name == group] == [expected]


@pytest.mark.parametrize(
    ("words", "pairs", "expected"),
    [
        ([], [], ("100 times and more", "75% and more")),  # nothing is rare in a line of signs
        ([0, 500], [0], ("unseen", "below 25%")),
        ([1], [0, 0, 0, 0, 7], ("1-9 times", "below 25%")),
        ([9], [0, 0, 0, 1], ("1-9 times", "25-49%")),
        ([10, 700], [0, 1], ("10-99 times", "50-74%")),
        ([99], [0, 1, 1, 1], ("10-99 times", "75% and more")),
        ([100], [1], ("100 times and more", "75% and more")),
    ],
)
def test_counts_in_training_have_their_slices(
    words: list[int], pairs: list[int], expected: tuple[str, str]
) -> None:
    *_, rarest, covered = groups_of_source(["x"], [LineCounts(words, pairs)])
    assert (rarest.labels[0], covered.labels[0]) == expected


def test_the_length_is_compared_with_the_reference_of_the_most_similar_one() -> None:
    references = [["abcdefgh", "a"], ["abcd", "ab"], ["a", "abcdefghijk"]]
    *_, lengths = groups_of_system(System("s", ["efgh", "abc"]), None, references)
    assert lengths.labels == ["0.8-1.25", "above 1.25"]  # (3 + 1) / (2 + 1)


def test_a_name_counts_if_any_reference_keeps_it() -> None:
    references = [
        ["she sings", "Anna sings"],
        ["Anna sings", "she sings"],
        ["she does", "she does"],
    ]
    system = System("s", ["Anna is singing", "a woman is singing"])
    groups = groups_of_system(system, ["Anna singt", "Anna singt"], references)
    (names,) = [group for group in groups if group.name == "names and copied tokens"]
    assert names.labels == ["kept", "lost"]


def test_all_training_data_of_a_model_are_searched_for_words_and_leaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that started from another one has learned from the data of both."""
    source = ["the dog sees a cat", "the cat sees a dog", "a dog and a cat run", "zebras"]
    first = ["the dog sees a cat", "one", "two", "the cat sees one dog", "a dog and a cat sat"]
    second = ["the dog sees a mouse", "four", "a dog and a cat run"]
    tokenizer = learned(tmp_path, [*source, *first, *second] * 9)
    data = [
        SimpleNamespace(train=stored(tmp_path / name, tokenizer, lines), tokenizer_dir=tmp_path)
        for name, lines in (("first", first), ("second", second))
    ]
    monkeypatch.setattr(slices, "training_data", lambda _: iter(data))
    monkeypatch.setattr("nmt.data.store._ROWS_AT_ONCE", 2)
    scorers, resampling = [MetricScorer("chrf", [source], MetricOptions())], Resampling(0)
    systems, _, _ = score_systems(
        [System("s", source)], scorers, baseline=None, resampling=resampling
    )
    scored: Any = SimpleNamespace(
        labels={"mine": ["a"] * 4}, systems=systems, baseline=None,
        options=SimpleNamespace(slices=True),
        scorers=scorers, resampling=resampling,
        test=SimpleNamespace(source=source, references=[source]),
        models=[SimpleNamespace(folder=tmp_path)],
    )  # fmt: skip
    found: dict[str, dict[str, int]] = {}
    for each in slice_section(scored).values:
        counts = found.setdefault(each["group"], {})
        counts[each["name"]] = each["systems"][0]["num_sentences"]
    assert list(found) == [
        "source in training data", "mine", "source words", "source case",
        "rarest source word in training", "source word pairs in training", "numbers",
        "names and copied tokens", "length ratio to reference",
    ]  # fmt: skip
    # Line 1 is in the first data, and nearly in the second; line 2 nearly; line 3 nearly in the
    # first data, and exactly in the second.
    assert found["source in training data"] == {"not found": 1, "near": 1, "exact": 2}
    # "run" of line 3 is in the second data only.
    rarest = found["rarest source word in training"]
    assert (rarest["unseen"], rarest["1-9 times"]) == (1, 3)


def test_scores_are_those_of_the_slice_alone_and_an_empty_one_has_none() -> None:
    reference = [f"sentence number {n} of these" for n in range(40)]
    lines = ["something else", *reference[1:]]
    groups = [Group("mine", ["a"] + ["b"] * 39, ["a", "b"]), Group("other", ["x"] * 40, ["x", "y"])]
    scorers, resampling = [MetricScorer("chrf", [reference], MetricOptions())], Resampling(10)
    given = [System("s", lines)]
    systems, _, _ = score_systems(given, scorers, baseline=None, resampling=resampling)
    section = score_slices(systems, scorers, resampling, {"s": groups})
    one, rest, whole, none = (each["systems"][0] for each in section.values)
    assert [x["num_sentences"] for x in (one, rest, whole, none)] == [1, 39, 40, 0]
    assert [x["is_small"] for x in (one, rest)] == [True, False]
    assert rest["scores"][0]["value"] == pytest.approx(100)
    assert rest["scores"][0]["confidence"]["low"] <= 100
    alone = MetricScorer("chrf", [reference[:1]], MetricOptions()).score(lines[:1])
    assert (one["scores"][0]["value"], none["scores"]) == (alone.value, [])
    assert section.rows[1][:3] == ["mine", "a", "1 (few)"]
    assert [row[:2] for row in section.rows[2:]] == [["mine", "b"], ["other", "x"]]


def test_trivial_lines_are_counted_and_the_others_are_scored_alone(tmp_path: Path) -> None:
    """Lines 1 and 3 have no letter, line 2 is the same on both sides; the last two are real."""
    source = ["* * *", "OK ", "(1)", "Hund", "Katze"]
    references = [["* * *", "OK", "1.", "dog", "cat"], ["***", "okay", "1)", "hound", "OK"]]
    lines = ["* * *", "OK", "1.", "log", "car"]

    def flags(rows: slice, *more: object) -> list[object]:
        """Return the flags to score some of the lines."""
        options: list[object] = ["--hypothesis", write(tmp_path / "s.en", lines[rows])]
        for number, reference in enumerate(references):
            options += ["--reference", write(tmp_path / f"{number}.en", reference[rows])]
        return [*options, "--metric", "chrf", "--resamples", 0, *more]

    with_source = ("--source", write(tmp_path / "in.de", source))
    (value,) = found(*flags(slice(None), *with_source))["trivial"]
    alone = MetricScorer("chrf", [x[3:] for x in references], MetricOptions())
    expected = alone.score(lines[3:]).value
    assert (value["lines"], value["scores"][0]["value"]) == (3, pytest.approx(expected))
    shown = invoke(*flags(slice(None), *with_source)).stdout
    assert re.search(rf"^without trivial lines +chrF\ns.en +{expected:.2f}$", shown, re.MULTILINE)
    assert "trivial lines: 3 of 5 references" in shown
    assert found(*flags(slice(None)))["trivial"][0]["lines"] == 2  # "OK" may be a translation
    for rows in (slice(3, 5), slice(0, 1)):  # none is trivial; nothing is left
        assert "trivial" not in found(*flags(rows))


def learned(folder: Path, lines: list[str]) -> Tokenizer:
    """Return a tokenizer that was learned from the lines, and is saved in the folder."""
    config = TokenizerConfig(vocab_size=60, joint=True, byte_fallback=False)
    train_sentencepiece(iter(lines), folder / "joint.model", config, threads=1)
    return load_tokenizers(folder).source


def stored(folder: Path, tokenizer: Tokenizer, lines: list[str]) -> ParallelStore:
    """Return training data with the lines on both sides."""
    ids = FlatIds.of(tokenizer.encode_batch(lines))
    with StoreWriter(folder, 60) as writer:
        writer.append(ids, ids, 0, range(len(lines)))
    return ParallelStore.open(folder)


@pytest.mark.parametrize("rows_at_once", [50_000, 7])
def test_words_of_training_are_counted_as_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr("nmt.data.store._ROWS_AT_ONCE", rows_at_once)
    generator, ends = np.random.default_rng(1), [".", "", "!", ", so", "?"]
    words = ["dog", "dogs", "doghouse", "house", "a", "the", "Über", "übel", "ß"]
    lines = [
        " ".join(generator.choice(words, generator.integers(1, 8))) + generator.choice(ends)
        for _ in range(400)
    ]
    tokenizer = learned(tmp_path, lines)
    store = stored(tmp_path / "train", tokenizer, lines)
    texts = [re.findall(r"\w+", line) for line in lines]
    counts = Counter(word for line in texts for word in line)
    pairs = Counter(pair for line in texts for pair in pairwise(line))
    tests = ["the dog.", "dogs doghouse house", "", "...", "the Über dog, so", "dog the a a a"]
    tests += lines[:50]
    found = count_in_training([store], tokenizer, [*tests, "ogd xx"])
    assert found.pop() == LineCounts([0, 0], [0])
    for text, each in zip(tests, found, strict=True):
        own = re.findall(r"\w+", text)
        assert each.words == [counts[word] for word in own]
        assert each.pairs == [pairs[pair] for pair in pairwise(own)]
