"""Codes of the same language match, unless the other codes make a difference between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.language_codes import (
    first_spelling,
    is_same_language,
    matching,
    matching_pairs,
    primary_code,
)

CODES = [
    "de", "deu", "ger", "de-DE", "deu_Latn", "pt", "por", "pt-BR", "pt-PT", "zh", "zho_Hans",
    "zh-CN", "zh-Hans", "zho-CN", "zh-TW", "zh-Hant-TW", "no", "nb", "nn", "ar", "arb", "ary_Arab",
    "ms", "zsm", "ku", "kmr", "ckb", "sr", "sr-Latn", "srp_Cyrl", "eng-GB", "en-US", "he", "iw",
    "xx", "mul", "ROMANCE", "",
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "codes", "expected"),
    [
        ("deu", "de en", "de"),
        ("ger", "de en", "de"),
        ("de-DE", "de en", "de"),
        ("de", "deu_Latn en", "deu_Latn"),
        ("DE", "de", "de"),
        ("he", "iw", "iw"),
        ("fr", "de en", ""),
        # One Portuguese: every code finds it. Two: they stay two languages.
        ("por", "pt-BR en", "pt-BR"),
        ("pt-PT", "pt-BR en", "pt-BR"),
        ("pt", "pt-BR pt-PT", "pt-BR pt-PT"),
        ("por-PT", "pt-BR pt-PT", "pt-PT"),
        ("pt-PT", "pt pt-BR", "pt"),
        ("deu_Latn", "de de-CH", "de"),
        # The region determines the script of Chinese.
        ("zho_Hans", "zh-Hans zh-Hant", "zh-Hans"),
        ("zh-CN", "zho_Hans zho_Hant", "zho_Hans"),
        ("zho-CN", "zh-Hans zh-Hant", "zh-Hans"),
        ("zh-Hant-TW", "zh-CN zh-TW", "zh-TW"),
        ("cmn_Hant", "zh-Hans zh-Hant", "zh-Hant"),
        ("zh", "zh-Hans zh-Hant", "zh-Hans"),
        ("yue", "zh", ""),
        ("srp_Cyrl", "sr sr-Latn", "sr"),
        # Macrolanguages.
        ("no", "nb nn", "nb"),
        ("nob", "no nn", "no"),
        ("nn", "no", ""),
        ("arb_Arab", "ar ary", "ar"),
        ("ar", "arb ary", "arb"),
        ("ar", "ary", ""),
        ("zsm", "ms", "ms"),
        ("ku", "kmr ckb", "kmr"),
        # Codes that are not in a standard.
        ("xx", "xx yy", "xx"),
        ("ROMANCE", "ROMANCE en", "ROMANCE"),
        ("ROMANCE", "roh", ""),
    ],
)
def test_a_code_finds_the_languages_that_it_can_mean(code: str, codes: str, expected: str) -> None:
    assert matching(code, codes.split()) == expected.split()


@given(st.sampled_from(CODES), st.lists(st.sampled_from(CODES)))
def test_matching_chooses_among_the_codes_and_prefers_the_code_itself(
    code: str, codes: list[str]
) -> None:
    found = matching(code, codes)
    assert set(found) <= set(codes)
    assert len(found) == len(set(found))
    if code in codes:
        assert found == [code]
    same = {each for each in codes if is_same_language(code, each)}
    if same and code not in codes:
        assert set(found) <= same


@given(st.sampled_from(CODES), st.sampled_from(CODES))
def test_two_codes_are_compared_the_same_in_both_orders(one: str, other: str) -> None:
    assert is_same_language(one, other) == is_same_language(other, one)
    assert matching(one, [other]) == [other] * len(matching(other, [one]))
    if is_same_language(one, other):
        assert matching(one, [other]) == [other]
    if first_spelling(one, [other]) == other:
        assert is_same_language(one, other)


@given(st.text(max_size=20))
def test_any_text_can_be_compared_with_a_code(text: str) -> None:
    assert is_same_language(text, text)
    assert isinstance(primary_code(text), str)
    assert matching(text, [text, "de"]) == [text]


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        (("deu", "eng"), ["de-en"]),
        (("zh-CN", None), ["zh_Hans-en"]),
        ((None, "en"), ["de-en", "zh_Hans-en", "zh_Hant-en"]),
        (("zh", "en"), ["zh_Hans-en"]),
        (("en", "fr"), []),
        ((None, None), ["de-en", "en-de", "zh_Hans-en", "zh_Hant-en"]),
    ],
)
def test_pairs_match_on_both_sides(
    languages: tuple[str | None, str | None], expected: list[str]
) -> None:
    pairs = [("de", "en"), ("en", "de"), ("zh_Hans", "en"), ("zh_Hant", "en")]
    assert ["-".join(pair) for pair in matching_pairs(languages, pairs)] == expected
