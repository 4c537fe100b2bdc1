"""The pairs that are held out: good ones, whose sentences are rare in the corpus."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.demo import demo_pairs
from nmt.extras.planning import held_out
from nmt.extras.planning.expectation import expected_quality, expected_time
from nmt.extras.planning.held_out import (
    BlockSample,
    Texts,
    comparable,
    count_copies,
    draw,
    reasons_against,
    sentences_to_remove,
)

SENTENCES = st.sampled_from(["a", "A", "b", "c", "d", "e", "f", "g", "h"])
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), max_size=40)


def copies_of(corpus: list[Texts]) -> tuple[Counter[str], Counter[str]]:
    """What `count_copies` counts, for a corpus in memory."""
    sources = Counter(comparable(source) for source, _ in corpus)
    return sources, Counter(comparable(target) for _, target in corpus)


@given(st.integers(0, 300), st.integers(0, 3))
def test_a_sample_consists_of_whole_blocks_in_their_order(size: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "_BLOCK_PAIRS", 10)
        patch.setattr(held_out, "_MOST_BLOCKS", 4)
        sample = BlockSample(seed)
        stream = [(str(number), "") for number in range(size)]
        assert list(sample.seen(stream)) == stream
        numbers = [int(source) for source, _ in sample.pairs()]
        assert numbers == [sample.number(index) - 1 for index in range(len(numbers))]
    blocks = sorted({number // 10 for number in numbers})
    whole = (range(10 * block, min(10 * block + 10, size)) for block in blocks)
    assert numbers == list(chain.from_iterable(whole))
    assert len(blocks) == min(4, -(-size // 10))


@given(PAIRS, PAIRS)
def test_copies_are_counted_on_each_side_without_case(
    corpus: list[Texts], wanted: list[Texts]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda path, **_: _Lines(corpus, int(path.name)))
        counted = count_copies([Path("0"), Path("1")], wanted)
    for side, counts in enumerate(counted):
        keys = {comparable(pair[side]) for pair in wanted}
        expected = Counter(comparable(pair[side]) for pair in corpus)
        assert counts == Counter({key: expected[key] for key in keys if expected[key]})


class _Lines:
    """One side of a corpus as an open text file."""

    def __init__(self, corpus: list[Texts], side: int) -> None:
        self._lines = [f"{pair[side]}\n" for pair in corpus]

    def __enter__(self) -> list[str]:
        return self._lines

    def __exit__(self, *_: object) -> None:
        pass


@given(PAIRS, PAIRS, st.integers(0, 9))
def test_no_sentence_is_drawn_twice_or_from_another_set_and_the_rarest_come_first(
    corpus: list[Texts], other: list[Texts], seed: int
) -> None:
    copies = copies_of(corpus)
    drawn = draw(corpus, copies, 200, seed, other)
    for side in range(2):
        keys = [comparable(pair[side]) for pair in drawn]
        others = {comparable(pair[side]) for pair in other}
        assert len(set(keys)) == len(keys)
        assert not others.intersection(keys)
    levels = [max(copies[side][comparable(pair[side])] for side in range(2)) for pair in drawn]
    assert levels == sorted(levels)
    # The same pairs in the other direction.
    turned = [(target, source) for source, target in corpus]
    turned_other = [(target, source) for source, target in other]
    again = draw(turned, copies[::-1], 200, seed, turned_other)
    assert again == [(target, source) for source, target in drawn]
    # What is removed from training leaves no copy of a drawn sentence, unless it is frequent.
    removed = sentences_to_remove([*drawn, *other], copies)
    for side in range(2):
        assert {comparable(pair[side]) for pair in drawn} <= removed[side]
        frequent = {key for key, count in copies[side].items() if count > 10}
        assert not removed[side] & frequent


def test_pairs_with_more_copies_are_drawn_only_if_there_are_too_few_others() -> None:
    rare = [(f"s{number}", f"t{number}") for number in range(300)]
    twice = [(f"u{number}", f"v{number}") for number in range(300)] * 2
    often = [("yes", "ja")] * 11
    corpus = rare + twice + often
    drawn = draw(corpus, copies_of(corpus), 500, 1)
    assert sorted(drawn) == sorted(rare)
    corpus = rare[:50] + twice + often
    drawn = draw(corpus, copies_of(corpus), 500, 1)
    assert set(drawn) == {*rare[:50], *twice}


@pytest.mark.long
def test_damaged_pairs_are_found_and_good_ones_are_not(tmp_path: Path) -> None:
    good = list(demo_pairs("train", "en", "de"))[:3000]
    english, german = map(list, zip(*good, strict=True))
    german[1000:1200] = german[1001:1201]  # A line is missing; another one follows.
    damaged = {
        2000: ("<url>http://www.example.org/talks/1.html</url>",) * 2,
        2100: (english[2100], english[2100]),
        2200: ("1984", "1984"),
        2300: (german[2300], english[2300]),
        2400: (english[2400], "Le garçon achète une voiture rouge dans la grande ville."),
    }
    pairs = list(zip(english, german, strict=True))
    for number, pair in damaged.items():
        pairs[number] = pair
    reasons = reasons_against(pairs, ("en", "de"), tmp_path)
    assert [number for number in damaged if not reasons[number]] == []
    num_shifted = sum("misaligned" in problems for problems in reasons[1000:1200])
    assert num_shifted > 190
    num_suspected = sum(map(bool, reasons[:990] + reasons[1210:2000] + reasons[2500:]))
    assert num_suspected < 0.1 * len(pairs)


def test_a_problem_of_most_pairs_is_a_property_of_the_corpus(tmp_path: Path) -> None:
    """Such as a correction of texts, which changes few of them."""
    english = [pair[0] for pair in list(demo_pairs("train", "en", "de"))[:200]]
    reasons = reasons_against([(text, text) for text in english], ("en", "en-GB"), tmp_path)
    assert not any("copy_of_source" in problems for problems in reasons)


@pytest.mark.parametrize(("num_pairs", "text"), [
    (100, "less than 4 to 17 BLEU"),
    (7000, "about 4 to 17 BLEU"),
    (20_000, "about 29 to 42 BLEU (measured: Tatoeba de-en, 17,815 pairs: 29.0; Multi30k"),
    (60_000, "about 32 BLEU (measured: Tatoeba en-de, 50,000 pairs: 31.9)"),
    (5_000_000, "not measured for so many pairs; the largest measured corpus is Tatoeba en-de"),
])  # fmt: skip
def test_the_expected_quality_names_the_ends_of_the_measured_range(
    num_pairs: int, text: str
) -> None:
    assert expected_quality(num_pairs).startswith(text)


@pytest.mark.parametrize(("num_pairs", "machine", "text"), [
    # The nearest corpus (1.1 times as many pairs; Tanaka ja-en has 1.3 times fewer).
    (26_000, "CPU without bfloat16", "12.6 BLEU after 5 minutes, 25.0 BLEU after 10 minutes"),
    (18_000, "CPU with bfloat16", "32.2 BLEU after 30 minutes (Tanaka ja-en, 20,000 pairs, 1 thr"),
    (5000, "CPU with bfloat16", "4.2 BLEU after 41 minutes (NLLB-Seed ary-en, 5,000 pairs, 1 thr"),
    (57_999, "GPU", "41.6 BLEU after 5 minutes (Multi30k de-en, 29,000 pairs, 16 threads)"),
    (58_001, "GPU", "not measured here with about as many pairs"),
    (0, "GPU", "not measured here with about as many pairs"),
])  # fmt: skip
def test_the_expected_time_is_that_of_the_nearest_corpus_on_the_same_kind_of_machine(
    num_pairs: int, machine: str, text: str
) -> None:
    assert expected_time(num_pairs, machine).startswith(text)
