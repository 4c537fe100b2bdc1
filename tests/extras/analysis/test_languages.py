"""Shares of translations in another language."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nmt.extras.analysis.languages import wrong_language_share
from nmt.text import languages

GERMAN = "Der kleine Hund läuft heute nicht durch den Garten."
ENGLISH = "The little dog does not run through the garden today."
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
    pytest.importorskip("py3langid")
    assert wrong_language_share(lines, target, codes) == share


def test_without_py3langid_only_scripts_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages, "identifier", lambda: None)
    assert wrong_language_share([GERMAN, ENGLISH], "de", ["en", "de"]) is None
    assert wrong_language_share([JAPANESE, ENGLISH], "ja", ["en", "ja"]) == 0.5


def test_another_language_must_be_more_than_five_times_as_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odds = {"sure": (0.1, 0.6), "unsure": (0.1, 0.5), "right": (0.6, 0.1)}  # of de and en
    model = SimpleNamespace(rank=lambda text: [*zip(("de", "en"), odds[text], strict=True)])
    monkeypatch.setattr(languages, "identifier", lambda: model)
    monkeypatch.setattr(languages, "is_identifiable", lambda _: True)
    assert wrong_language_share([*odds, "right"], "de", ["en", "de"]) == 0.25
