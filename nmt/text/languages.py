"""Scripts, language codes, common words, numbers and repetitions in a text.

Languages are identified by script, by their most frequent words, and by py3langid if installed.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

WORDS: Mapping[str, str] = {
    "cs": "je se že to na by jsem není jako",
    "da": "og det er en ikke til jeg af på",
    "de": "der die das und ist nicht ein eine ich zu mit den",
    "en": "the and of to is a that you with for was",
    "es": "el los las que una es por con y está",
    "fr": "le les des est une et dans que je pas",
    "it": "il di che è gli una per non con sono",
    "nl": "de het een en van niet dat ik zijn op",
    "pl": "nie się jest na że to jak po tym był",
    "pt": "os que não uma é com em do da um",
    "sv": "och det är en att inte jag som på av",
}  # the most frequent words of each language
_RANGES = {
    "Latn": "A-Za-zª-ʯᴀ-ᶿḀ-ỿⱠ-ⱿꜢ-ꟿﬀ-ﬆ\uff21-\uff3a\uff41-\uff5a",
    "Arab": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff",
    "Armn": "\u0530-\u058f", "Beng": "\u0980-\u09ff", "Cyrl": "\u0400-\u052f\u1c80-\u1c8f",
    "Deva": "\u0900-\u097f", "Ethi": "\u1200-\u139f", "Geor": "\u10a0-\u10ff\u1c90-\u1cbf",
    "Grek": "\u0370-\u03ff\u1f00-\u1fff", "Gujr": "\u0a80-\u0aff", "Guru": "\u0a00-\u0a7f",
    "Hang": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "Hani": "\u2e80-\u2fdf\u3005-\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "Hebr": "\u0590-\u05ff\ufb1d-\ufb4f", "Kana": "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "Khmr": "\u1780-\u17ff", "Knda": "\u0c80-\u0cff", "Laoo": "\u0e80-\u0eff",
    "Mlym": "\u0d00-\u0d7f", "Mymr": "\u1000-\u109f", "Orya": "\u0b00-\u0b7f",
    "Sinh": "\u0d80-\u0dff", "Taml": "\u0b80-\u0bff", "Telu": "\u0c00-\u0c7f",
    "Thai": "\u0e00-\u0e7f",
}  # fmt: skip
_SCRIPTS = {
    "Arab": "ar ary arz fa ur ps ckb sd ug", "Armn": "hy", "Beng": "bn as",
    "Cyrl": "ru uk bg be mk kk ky mn tg tt ba", "Deva": "hi mr ne sa", "Ethi": "am ti",
    "Geor": "ka", "Grek": "el grc", "Gujr": "gu", "Guru": "pa", "Hang": "ko", "Hani": "zh yue wuu",
    "Hebr": "he yi", "Kana": "ja", "Khmr": "km", "Knda": "kn", "Laoo": "lo", "Mlym": "ml",
    "Mymr": "my", "Orya": "or", "Sinh": "si", "Taml": "ta", "Telu": "te", "Thai": "th",
    "Latn": "af an az br bs ca cs cy da de en eo es et eu fi fo fr fy ga gd gl ha hr ht hu id ig is"
    " it jv ku la lb lg ln lt lv mg ms mt nb nl nn no oc om pl pt qu ro rw se sk sl sn so sq st sv"
    " sw tl tr uz vi wa xh yo zu",
}  # fmt: skip
# Scripts that are mixed with another one in a text, and ISO 15924 codes of such combinations.
_ALSO = {"Kana": "Hani", "Hang": "Hani", "Jpan": "Kana", "Kore": "Hang", "Hans": "Hani",
         "Hant": "Hani"}  # fmt: skip
_NUMBER = re.compile(r"\d+(?:[.,'\u2019\u00a0\u202f\u066b\u066c]\d+)*")


def primary_code(language: str) -> str:
    """Return the language part of a code: ``zh`` for ``zh-Hant``, ``ary`` for ``ary_Arab``."""
    return re.split("[-_]", language.lower())[0]


def script_of(language: str) -> str | None:
    """Return the ISO 15924 code of a language's script, for example ``Latn``; None if unknown."""
    for name in re.split("[-_]", language.title())[1:]:
        if name in _RANGES or name in _ALSO:
            return name if name in _RANGES else _ALSO[name]
    code = primary_code(language)
    return next((name for name, codes in _SCRIPTS.items() if code in codes.split()), None)


@cache
def letters_of(script: str) -> re.Pattern[str]:
    """Return a pattern for the letters of a script; for Kana or Hang, also the letters of Hani."""
    return re.compile(f"[{_RANGES[script]}{_RANGES.get(_ALSO.get(script, ''), '')}]+")


def foreign_share(text: str, script: str | None) -> float:
    """Return the share of letters that belong to another script; 0 if there are no letters."""
    if script is None or (script == "Latn" and text.isascii()):
        return 0.0
    others = sum(map(str.isalpha, letters_of(script).sub("", text)))
    return others / sum(map(str.isalpha, text)) if others else 0.0


@cache
def common_words(language: str) -> frozenset[str]:
    """Return the most frequent words of a language; empty if the language is unknown."""
    return frozenset(WORDS.get(primary_code(language), "").split())


@cache
def identifier() -> LanguageIdentifier | None:
    """Return the model of py3langid; None if the package is not installed."""
    try:
        from py3langid.langid import (  # noqa: PLC0415 - optional, slow to load
            MODEL_FILE,
            LanguageIdentifier,
        )
    except ImportError:
        return None
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def is_identifiable(language: str) -> bool:
    """Whether py3langid is installed and supports the language."""
    model = identifier()
    return model is not None and primary_code(language) in model.labels


def longest_loop(tokens: Sequence[Hashable]) -> int:
    """Return the length, in tokens, of the longest run that repeats the tokens before it.

    The first copy is not counted, and the run must contain at least one whole copy.

    >>> longest_loop("a dog runs".split()), longest_loop("a dog a dog a dog runs".split())
    (0, 4)
    """
    if len(set(tokens)) == len(tokens):
        return 0
    longest = 0
    for period in range(1, len(tokens) // 2 + 1):
        run = 0
        for token, before in zip(tokens[period:], tokens, strict=False):
            run = run + 1 if token == before else 0
            if run > longest and run >= period:
                longest = run
    return longest


def numbers_of(text: str) -> set[str]:
    """Return the numbers of a text in ASCII digits, without separators and leading zeros.

    Digits of all scripts are converted. Decimal separators are removed too, because languages
    disagree on which separator is decimal.

    >>> sorted(numbers_of("1.250 km, 007 \u0663"))
    ['1250', '3', '7']
    """
    # Compare 30 digits at most: `int` is slow for very long numbers.
    return {str(int(re.sub(r"\D", "", each)[:30])) for each in _NUMBER.findall(text)}
