"""What a code or a text tells about its language: scripts, letters, numbers and repetitions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.text.languages import (
    common_words,
    foreign_share,
    identifier,
    longest_loop,
    numbers_of,
    primary_code,
    script_of,
)


@pytest.mark.parametrize(
    ("code", "primary", "script"),
    [
        ("de", "de", "Latn"),
        ("DE-at", "de", "Latn"),
        ("ru", "ru", "Cyrl"),
        ("sr_Cyrl", "sr", "Cyrl"),
        ("sr-latn-RS", "sr", "Latn"),  # a script in the code counts more than the language
        ("ary_Arab", "ary", "Arab"),
        ("zh-Hant", "zh", "Hani"),
        ("ja", "ja", "Kana"),
        ("tlh", "tlh", None),
    ],
)
def test_a_code_gives_its_language_and_script(code: str, primary: str, script: str | None) -> None:
    assert primary_code(code) == primary
    assert script_of(code) == script
    assert common_words(code) == common_words(primary)


@pytest.mark.parametrize(
    ("text", "script", "share"),
    [
        ("Привет, my friend 42", "Cyrl", 8 / 14),  # 6 letters of 14 are Cyrillic
        ("Привет, my friend 42", "Latn", 6 / 14),
        ("Grüße, 3 à 4!", "Latn", 0.0),
        ("犬は走る", "Kana", 0.0),  # Japanese has Chinese characters too
        ("犬は走る", "Hani", 0.5),
        ("12 + 34 = 46!", "Cyrl", 0.0),
        ("Привет", None, 0.0),
    ],
)
def test_the_foreign_share_is_one_of_letters(text: str, script: str | None, share: float) -> None:
    assert foreign_share(text, script) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1.250,50 km on 07.03.", {"125050", "703"}),  # "07.03" is one number
        ("1 250 or 1\u202f250 or 1\u2019250", {"1", "250", "1250"}),
        ("\u0661\u0662 and \u0967\u0968", {"12"}),  # Arabic and Devanagari digits
        ("007 and 7", {"7"}),
        ("1, 2", {"1", "2"}),
        ("9" * 40, {"9" * 30}),
        ("none", set()),
    ],
)
def test_numbers_are_the_same_in_all_scripts_and_formats(text: str, numbers: set[str]) -> None:
    assert numbers_of(text) == numbers


def slow_loop(tokens: Sequence[str]) -> int:
    """The longest run of at least one period whose tokens all equal the token a period before."""
    longest = 0
    for start in range(len(tokens)):
        for end in range(start + 1, len(tokens) + 1):
            for period in range(1, min(start, end - start) + 1):
                if tokens[start:end] == tokens[start - period : end - period]:
                    longest = max(longest, end - start)
    return longest


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_the_longest_loop_is_that_of_a_search_through_all_runs(tokens: list[str]) -> None:
    assert longest_loop(tokens) == slow_loop(tokens)


def test_the_languages_of_a_text_have_probabilities_that_sum_to_one() -> None:
    model = identifier()
    if model is None:
        pytest.skip("py3langid is not installed")
    ranked = model.rank("Der Hund läuft über die Straße und bellt.")
    probabilities = [float(probability) for _, probability in ranked]
    assert ranked[0][0] == "de"
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-4)
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0.9 < probabilities[0] <= 1
