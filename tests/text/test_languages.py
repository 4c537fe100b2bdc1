"""What a code or a text tells about its language: scripts, letters, numbers and repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.language_codes import primary_code
from nmt.text.languages import (
    foreign_share,
    is_right_to_left,
    letters_of,
    longest_loop,
    name_of,
    script_of,
    writes_spaces,
)
from nmt.text.numbers import numbers_of


@pytest.mark.parametrize(
    ("code", "primary", "script"),
    [
        ("de", "de", "Latn"),
        ("DE-at", "de", "Latn"),
        ("deu", "de", "Latn"),
        ("ger", "de", "Latn"),  # the code of libraries
        ("deu_Latn", "de", "Latn"),
        ("eng-GB", "en", "Latn"),
        ("iw", "he", "Hebr"),  # a code that was replaced
        ("ru", "ru", "Cyrl"),
        ("sr-latn-RS", "sr", "Latn"),  # a script in the code counts more than the language
        ("ary_Arab", "ary", "Arab"),
        ("zh-TW", "zh", "Hant"),  # the script of the country
        ("zho_Hans", "zh", "Hans"),
        ("ja", "ja", "Jpan"),
        ("fuc", "fuc", "Latn"),  # the script of its macrolanguage, Fula
        ("el", "el", "Grek"),
        ("tlh", "tlh", None),
        ("azb", "azb", None),  # CLDR has no data: it is not Latn, which English has
        ("mey", "mey", None),
        ("mul", "mul", None),
        ("ROMANCE", "romance", None),  # not a code
        ("", "", None),
    ],
)
def test_a_code_gives_its_language_and_script(code: str, primary: str, script: str | None) -> None:
    assert primary_code(code) == primary
    assert script_of(code) == script


# Codes of NLLB-200 whose script Unicode, CLDR and ISO 15924 must have.
@pytest.mark.parametrize(
    "code", ["shn_Mymr", "taq_Tfng", "min_Arab", "sat_Olck", "dzo_Tibt", "yue_Hant", "kor_Hang"]
)
def test_a_script_in_a_code_has_letters(code: str) -> None:
    assert script_of(code) == code.partition("_")[2]
    assert letters_of(code) is not None


@given(st.text(max_size=20))
def test_any_text_can_be_read_as_a_code(text: str) -> None:
    assert isinstance(primary_code(text), str)
    assert isinstance(name_of(text), str)
    if script_of(text) is None:
        assert writes_spaces(text)
        assert not is_right_to_left(text)


@pytest.mark.parametrize(
    ("codes", "has_spaces"),
    [
        ("zh zh-Hant yue jpn th lao khm my shn bo dz", False),
        ("ko vi kor_Hang de ru ar hi tlh", True),
    ],
)
def test_scripts_tell_whether_words_are_separated(codes: str, has_spaces: bool) -> None:
    assert {writes_spaces(code) for code in codes.split()} == {has_spaces}


def test_the_writing_direction_is_that_of_the_script() -> None:
    backwards = "ar arb fas he iw ur ckb div ps uig yi snd ary_Arab min_Arab"
    assert all(map(is_right_to_left, backwards.split()))
    assert not any(map(is_right_to_left, ["de", "ru", "zh", "ku", "kmr", "az", "tlh"]))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("deu_Latn", "German"),
        ("pt-BR", "Portuguese (Brazil)"),
        ("sr-Latn", "Serbian (Latin)"),
        ("mey", "Hassaniyya"),
        ("xx", "xx"),
        ("no language", "no language"),
    ],
)
def test_a_language_is_named_in_english(code: str, name: str) -> None:
    assert name_of(code) == name


@pytest.mark.parametrize(
    ("text", "language", "share"),
    [
        ("Привет, my friend 42", "ru", 8 / 14),  # 6 letters of 14 are Cyrillic
        ("Привет, my friend 42", "de", 6 / 14),
        ("Привет, my friend 42", "srp_Latn", 6 / 14),
        ("Grüße, 3 à 4!", "de", 0.0),
        ("犬は走る", "ja", 0.0),  # Japanese has Chinese characters too
        ("犬は走る", "zh", 0.5),
        ("犬は走る", "ko", 0.5),
        ("カー ー", "ja-Hira", 1 / 3),  # the long vowel belongs to both syllabaries
        ("µ ª \u0640", "ru", 1 / 3),  # only the ordinal indicator belongs to one script
        ("12 + 34 = 46!", "ru", 0.0),
        ("Привет", "tlh", 0.0),  # an unknown script
        ("Привет", "de-Qaaa", 0.0),  # a script that Unicode does not have
    ],
)
def test_the_foreign_share_is_one_of_letters(text: str, language: str, share: float) -> None:
    assert foreign_share(text, language) == pytest.approx(share)


# Lines with names and titles in Latin letters are quotations; `shi` is in Arabic letters here,
# but CLDR's script of Tachelhit is Tifinagh: such text needs the code shi-Arab.
def test_real_text_is_in_the_script_of_its_language(shared_data: Path) -> None:
    foreign = {}
    for path in sorted((shared_data / "ntrex_sample").glob("*.txt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        code = {"shi": "shi-Arab"}.get(path.stem, path.stem)
        num_foreign = sum(foreign_share(line, code) > 0.5 for line in lines)
        if num_foreign:
            foreign[path.stem] = num_foreign
    assert foreign == {"amh": 1, "zho-TW": 2}


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
