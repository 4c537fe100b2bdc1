"""Which of the languages that are served a text is in."""

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


def detect(text: str, languages: Iterable[str]) -> list[tuple[str, float]]:
    """Return each language with how sure it is, 0 to 100, the likeliest first.

    By py3langid where it is installed and knows them all; otherwise by the script and by the
    commonest words of each language. The text may be in none of them: then all are near 0.

    >>> detect("Der Hund ist nicht da.", ["en", "de"])[0][0], detect("A dog is there.", ["ja"])
    ('de', [('ja', 0.0)])
    """
    known = list(languages)
    model = identifier() if all(map(is_identifiable, known)) else None
    if model is not None:
        ranked = dict(model.rank(text))  # shares of all the languages that it knows
        shares = {code: float(ranked[primary_code(code)]) for code in known}
    else:
        words = _WORD.findall(text.lower())
        weights = {code: _likeness(text, words, code) for code in known}
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
