"""The language of a text: by py3langid, and by trigrams where py3langid lacks a language."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.text import identification
from nmt.text.identification import (
    LanguageProfiles,
    are_identifiable,
    identifier,
    label_of,
    language_shares,
    likeliest_label,
    look_ahead,
    other_label,
    similar_codes,
    similar_labels,
)

GERMAN = "Der Hund läuft über die Straße und bellt."
FRENCH = "Le chien traverse la rue en aboyant."
TEXTS = {"xa": ["abab baba abba"], "xb": ["bcbc cbcb bccb"], "xc": ["dede eded"]}


def test_the_languages_of_a_text_have_probabilities_that_sum_to_one() -> None:
    ranked = identifier().rank(GERMAN)
    probabilities = [float(probability) for _, probability in ranked]
    assert ranked[0][0] == likeliest_label(GERMAN) == "de"
    assert sum(probabilities) == pytest.approx(1.0, abs=1e-4)
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0.9 < probabilities[0] <= 1


@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("deu", "de"), ("de-CH", "de"), ("zho_Hant", "zh"), ("arb_Arab", "ar"), ("ary", "ary"),
        ("zsm", "ms"), ("kmr", "ku"), ("nob", "no"), ("iw", "he"), ("fil", "tl"), ("swh", "sw"),
        ("shn", None), ("mey", None), ("xx", None), ("mul", None), ("", None),
    ],
)  # fmt: skip
def test_codes_find_the_label_of_their_language(code: str, label: str | None) -> None:
    assert label_of(code) == label
    assert bool(similar_labels(code)) == (label is not None)
    if label is not None:
        assert label in similar_labels(code)


@pytest.mark.parametrize(
    "group", ["ar ary", "ar arz", "no nn da", "bs hr sr", "id ms", "zh yue", "cs sk"]
)
def test_a_sentence_does_not_distinguish_close_languages(group: str) -> None:
    first, *others = group.split()
    assert set(others) <= similar_labels(first)
    assert "en" not in similar_labels(first)


def test_distant_languages_and_unknown_codes_are_not_similar() -> None:
    codes = ("de", "en", "ru", "uk", "es", "pt")
    assert [similar_codes(code, codes) for code in codes] == [{code} for code in codes]
    assert similar_codes("xx", codes) == frozenset()


def test_another_language_is_named_if_it_is_clearly_more_likely() -> None:
    assert other_label(FRENCH, "deu", 5) == "fr"
    assert other_label(GERMAN, "deu", 5) is None
    assert other_label(FRENCH, "deu", 1e9) is None
    assert other_label("", "de", 5) is None


def test_languages_are_identifiable_if_they_have_different_labels() -> None:
    assert are_identifiable(["de", "eng", "zho_Hans"])
    assert not are_identifiable(["de", "shn"])
    assert not are_identifiable(["pt-BR", "pt-PT"])
    assert not are_identifiable(["zho_Hans", "zho_Hant"])


def test_trigrams_tell_the_languages_of_the_training_text() -> None:
    profiles = LanguageProfiles.learn(TEXTS)
    for code, lines in TEXTS.items():
        shares = profiles.shares(lines[0], list(TEXTS))
        assert max(shares, key=shares.__getitem__) == code
    assert profiles.cover(["xa", "xb"])
    assert not profiles.cover(["xa", "de"])
    assert language_shares("bcbc", ["xa", "xb"], profiles)["xb"] > 0.6


def test_more_text_does_not_make_a_language_more_likely() -> None:
    few, many = "abc abd abe", "xyz xyw xyv"
    profiles = LanguageProfiles.learn({"xa": [few], "xb": [many] * 500})
    for text, code in ((few, "xa"), (many, "xb"), ("qqq", None)):
        shares = profiles.shares(text, ["xa", "xb"])
        if code is None:
            assert shares["xa"] == pytest.approx(shares["xb"])
        else:
            assert shares[code] > 0.9


@given(st.text(max_size=60), st.lists(st.sampled_from(list(TEXTS)), min_size=1, unique=True))
def test_shares_by_trigrams_sum_to_one_and_survive_a_file(text: str, codes: list[str]) -> None:
    profiles = LanguageProfiles.learn(TEXTS)
    shares = profiles.shares(text, codes)
    assert list(shares) == codes
    assert sum(shares.values()) == pytest.approx(1.0)
    assert (
        LanguageProfiles(**json.loads(json.dumps(asdict(profiles)))).shares(text, codes) == shares
    )


@given(st.text(max_size=60))
def test_shares_of_any_text_are_probabilities(text: str) -> None:
    shares = language_shares(text, ["de", "en", "shn", "tlh"])
    assert all(-1e-4 <= share <= 1 + 1e-4 for share in shares.values())
    assert shares["tlh"] == 0  # neither a label nor a script


SENTENCES = [
    GERMAN, FRENCH, "Dobar dan, kako ste danas?", "Добар дан, како сте данас?", "今日は犬が走る。",
    "الكلب يجري في الشارع", "HUNDE BELLEN LAUT", "Bu it juda tez yuguradi.", "a", " ", "12:30",
]  # fmt: skip
SOME_TEXT = st.text(max_size=30) | st.sampled_from(SENTENCES)


@given(st.lists(st.lists(SOME_TEXT, max_size=3).map(" ".join), max_size=8))
def test_texts_that_are_identified_together_get_the_labels_of_py3langid(texts: list[str]) -> None:
    likeliest_label.cache_clear()
    look_ahead(texts)
    for text in texts:
        assert likeliest_label(text) == identifier().classify(text)[0]


def test_real_text_of_128_languages_gets_the_labels_of_py3langid(shared_data: Path) -> None:
    lines = []
    for path in sorted((shared_data / "ntrex_sample").glob("*.txt")):
        lines += path.read_text(encoding="utf-8").splitlines()[::8]
    likeliest_label.cache_clear()
    look_ahead(lines)
    assert [likeliest_label(line) for line in lines] == [
        identifier().classify(line)[0] for line in lines
    ]


def test_only_long_and_unclear_texts_are_left_to_py3langid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    likeliest_label.cache_clear()
    look_ahead([GERMAN, FRENCH, 30 * FRENCH, "a"])
    monkeypatch.setattr(identification, "identifier", None)
    assert [likeliest_label(text) for text in (GERMAN, FRENCH)] == ["de", "fr"]
    for text in (30 * FRENCH, "a", "Not looked at."):
        with pytest.raises(TypeError):
            likeliest_label(text)
    look_ahead([])
    with pytest.raises(TypeError):  # the labels of earlier blocks take no memory
        likeliest_label(f"{GERMAN} ")
