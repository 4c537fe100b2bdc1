"""Names of languages, and which of the languages that are served a text is in."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nmt.text.languages import (
    common_words,
    foreign_share,
    identifier,
    is_identifiable,
    primary_code,
    script_of,
)

_WORD = re.compile(r"\w+")
_WEIGHT_OF_WORDS = 4.0
_CODES = (
    "ar:Arabic ary:Moroccan_Arabic bg:Bulgarian bn:Bengali ca:Catalan cs:Czech da:Danish "
    "de:German el:Greek en:English eo:Esperanto es:Spanish et:Estonian eu:Basque fa:Persian "
    "fi:Finnish fr:French ga:Irish gl:Galician he:Hebrew hi:Hindi hr:Croatian hu:Hungarian "
    "id:Indonesian is:Icelandic it:Italian ja:Japanese ka:Georgian ko:Korean lt:Lithuanian "
    "lv:Latvian mk:Macedonian ms:Malay mt:Maltese nb:Norwegian nl:Dutch nn:Norwegian_Nynorsk "
    "no:Norwegian pl:Polish pt:Portuguese ro:Romanian ru:Russian sk:Slovak sl:Slovenian "
    "sq:Albanian sr:Serbian sv:Swedish sw:Swahili ta:Tamil th:Thai tl:Tagalog tr:Turkish "
    "uk:Ukrainian ur:Urdu vi:Vietnamese zh:Chinese"
)
_NAMES = dict(pair.split(":") for pair in _CODES.split())
_RIGHT_TO_LEFT = ("ar", "ary", "arz", "ckb", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi")


def language_name(code: str) -> str:
    """Return the English name of a language; its code where none is known."""
    return _NAMES.get(primary_code(code), code).replace("_", " ")


def is_rtl(code: str) -> bool:
    """Whether a language is written from right to left."""
    return primary_code(code) in _RIGHT_TO_LEFT


def detect(text: str, languages: Iterable[str]) -> list[tuple[str, float]]:
    """Return each language with its probability, 0 to 100, the likeliest first.

    By py3langid where it is installed and knows them all; otherwise by the script and by the
    commonest words of each language. The text may be in none of them: then all are near 0.

    >>> detect("Der Hund ist nicht da.", ["en", "de"])[0][0], detect("A dog is there.", ["ja"])
    ('de', [('ja', 0.0)])
    """
    codes = list(languages)
    model = identifier() if all(map(is_identifiable, codes)) else None
    if model is not None:
        ranked = dict(model.rank(text))  # shares of all the languages that the model knows
        shares = {code: float(ranked[primary_code(code)]) for code in codes}
    else:
        words = _WORD.findall(text.lower())
        weights = {code: _likeness(text, words, code) for code in codes}
        # Most languages that are not served are written in Latin letters, too.
        total = sum(weights.values()) + _likeness(text, [], "en")
        shares = {code: weight / total if total else 0.0 for code, weight in weights.items()}
    ordered = sorted(shares.items(), key=lambda pair: -pair[1])
    return [(code, round(100 * share, 1)) for code, share in ordered]


def _likeness(text: str, words: list[str], code: str) -> float:
    script, common = script_of(code), common_words(code)
    in_script = 1 - foreign_share(text, script) if script else 0.0
    share = sum(word in common for word in words) / max(1, len(words))
    return in_script * (0.1 + _WEIGHT_OF_WORDS * share)
