"""Shares of translations in another language."""

from __future__ import annotations

import pytest

from nmt.extras.analysis import languages as analysis
from nmt.extras.analysis.languages import wrong_language_share
from nmt.text.identification import LanguageProfiles

GERMAN = "Der kleine Hund läuft heute nicht durch den Garten."
ENGLISH = "The little dog does not run through the garden today."
SHAN = "မိူဝ်ႈၼႆႉ ႁဝ်းၵႂႃႇ"
JAPANESE = "犬は今日は走りません。"


@pytest.mark.parametrize(
    ("lines", "target", "codes", "share"),
    [
        ([GERMAN, "", ENGLISH, GERMAN, JAPANESE], "de", ["en", "de"], 0.5),
        ([ENGLISH, ENGLISH], "en", ["en", "de"], 0.0),
        ([GERMAN, JAPANESE, ENGLISH], "ja", ["en", "de", "ja"], 2 / 3),
        (
            [JAPANESE, "\u0441\u043e\u0431\u0430\u043a\u0430"],
            "ru",
            ["ja", "ru"],
            0.5,
        ),  # by script alone
        ([GERMAN], "de", ["de", "tlh"], None),  # an unknown language in an unknown script
        ([GERMAN], "tlh", ["de", "tlh"], None),
        (["", " "], "de", ["en", "de"], None),
    ],
)
def test_shares_by_script_and_identification(
    lines: list[str], target: str, codes: list[str], share: float | None
) -> None:
    assert wrong_language_share(lines, target, codes) == share


def test_unsupported_languages_are_distinguished_by_scripts_alone() -> None:
    assert wrong_language_share([GERMAN, ENGLISH], "tlh", ["en", "tlh"]) is None
    assert wrong_language_share([SHAN, ENGLISH], "shn", ["en", "shn"]) == 0.5


def test_trigrams_of_the_training_text_distinguish_unsupported_languages() -> None:
    klingon = ["nuqneH, tlhIngan maH", "Heghlu'meH QaQ jajvam", "bortaS bIr jablu'DI' reH QaQqu'"]
    profiles = LanguageProfiles.learn({"tlh": klingon, "en": [ENGLISH]})
    lines = ["tlhIngan jaj QaQ", "the little garden", "maH bortaS"]
    assert wrong_language_share(lines, "tlh", ["en", "tlh"], profiles) == pytest.approx(1 / 3)


def test_another_language_must_be_more_than_five_times_as_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odds = {"sure": (0.1, 0.6), "unsure": (0.1, 0.5), "right": (0.6, 0.1)}  # of de and en
    shares = {text: dict(zip(("de", "en"), values, strict=True)) for text, values in odds.items()}
    monkeypatch.setattr(analysis, "language_shares", lambda text, *_: shares[text])
    assert wrong_language_share([*odds, "right"], "de", ["en", "de"]) == 0.25
