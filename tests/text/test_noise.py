"""Laws of noise, and that each kind changes what it is named after."""

from __future__ import annotations

import unicodedata
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.text.noise import NOISES, spacing, typos, without_punctuation

LINE = "Zwei Männer laufen schnell über die Straße, und ein Hund sieht ihnen nach."


@given(st.sampled_from(sorted(NOISES)), st.text(), st.integers(0, 1 << 32))
def test_a_seed_gives_equal_noise_and_no_new_line(kind: str, text: str, seed: int) -> None:
    first, second = (NOISES[kind](text, Random(seed)) for _ in range(2))
    assert first == second
    assert bool(first.strip()) == bool(text.strip())
    assert first.count("\n") <= text.count("\n")


@given(st.integers(0, 1000))
def test_typos_keep_first_letters_and_change_one_letter_a_word(seed: int) -> None:
    for old, new in zip(LINE.split(), typos(LINE, Random(seed), rate=1).split(), strict=True):
        assert new[0] == old[0]
        change = Counter(old)
        change.subtract(new)
        assert sum(map(abs, change.values())) <= 1  # none for two letters that are swapped


@given(st.integers(0, 1000))
def test_spacing_changes_nothing_but_spaces(seed: int) -> None:
    assert spacing(LINE, Random(seed), rate=1).replace(" ", "") == LINE.replace(" ", "")
    assert spacing(LINE, Random(seed), rate=0) == LINE == typos(LINE, Random(seed), rate=0)


@pytest.mark.parametrize("kind", sorted(NOISES))
def test_every_kind_changes_a_line(kind: str) -> None:
    assert any(NOISES[kind](LINE, Random(seed)) != LINE for seed in range(20))
    found = NOISES["unicode-nfd"](LINE, Random(1))
    assert unicodedata.normalize("NFC", found) == LINE  # the same text
    assert without_punctuation("...", Random(1)) == "..."
    assert without_punctuation("Ende?! ", Random(1)) == "Ende"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("upper-case", "IT'S ABOUT 3 NEW CARS (BIG ONES)."),
        ("lower-case", "it's about 3 new cars (big ones)."),
        ("title-case", "It's About 3 NEW Cars (big Ones)."),
        ("no-final-punctuation", "it's about 3 NEW cars (big ones"),
    ],
)
def test_case_and_punctuation_change_as_named(kind: str, expected: str) -> None:
    assert NOISES[kind]("it's about 3 NEW cars (big ones).", Random(1)) == expected


def test_all_typos_of_a_word_and_both_changes_of_a_space_are_equally_frequent() -> None:
    """Of 6000 draws, each of six typos is expected 1000 times, standard deviation 29."""
    # At the second or the third letter: swapped with the next one, dropped or doubled.
    possible = {"wrod", "wodr", "wrd", "wod", "woord", "worrd"}
    words = Counter(typos(" ".join(["word"] * 6000), Random(1), rate=1).split())
    assert set(words) == possible
    assert all(abs(count - 1000) < 4 * 29 for count in words.values())
    gaps = Counter(spacing("a b", Random(seed), rate=1) for seed in range(400))
    assert set(gaps) == {"a  b", "ab"}  # 200 times each, standard deviation 10
    assert abs(gaps["ab"] - 200) < 4 * 10


def test_the_share_of_changed_words_is_the_rate() -> None:
    line = " ".join(["word"] * 20_000)
    changed = sum(word != "word" for word in typos(line, Random(1), rate=0.1).split())
    assert changed == pytest.approx(2000, rel=0.1)
