"""Whether a text is in the language it should be in, by its commonest words and by py3langid."""

from __future__ import annotations

import re
from functools import cache

from nmt.text.languages import common_words, identifier, is_identifiable, primary_code

# Languages that single sentences often do not tell apart.
_ALIKE = ("ar ary arz", "no nb nn da", "bs hr sr", "id ms", "zh yue wuu", "cs sk", "gl pt")
_SURE_SHARE = 0.2
_MIN_LETTERS = 12
_WORD = re.compile(r"\w+")


def are_swapped(source: str, target: str, source_language: str, target_language: str) -> bool:
    """Whether each side is in the language of the other one.

    Their commonest words tell it; where neither side has one of its own, py3langid may.
    """
    languages = source_language, target_language
    counts = [
        [sum(word in common_words(each) for word in words) for each in languages]
        for words in (_WORD.findall(source.lower()), _WORD.findall(target.lower()))
    ]
    (own, other), (theirs, target_own) = counts
    if other > own and theirs > target_own:
        return True
    if own or target_own or min(len(source), len(target)) < _MIN_LETTERS:
        return False
    model = identifier()
    return model is not None and all(
        is_identifiable(code) and model.classify(text)[0] in _alike(primary_code(code))
        for text, code in ((source, target_language), (target, source_language))
    )


def wrong_language(text: str, language: str, min_odds: float) -> str | None:
    """Return in which other language a text is, if that is so many times as likely.

    Args:
        text: One line. Short ones tell too little, and are not judged.
        language: Code; of one that py3langid does not know nothing is found.
        min_odds: How many times as likely the other language must be.
    """
    model, own = identifier(), _alike(primary_code(language))
    if model is None or not is_identifiable(language):
        return None
    if len(text) < _MIN_LETTERS or _looks_like(text, language):
        return None
    likeliest, probability = model.classify(text)
    if likeliest in own or likeliest == "zxx":
        return None
    expected = max(value for name, value in model.rank(text) if name in own)
    return likeliest if probability >= min_odds * expected else None


def _looks_like(text: str, language: str) -> bool:
    """Whether so many of the words are among the commonest of the language."""
    words = _WORD.findall(text.lower())
    known = common_words(language)
    return sum(word in known for word in words) >= max(_SURE_SHARE * len(words), 1)


@cache
def _alike(code: str) -> frozenset[str]:
    return frozenset(next((x.split() for x in _ALIKE if code in x.split()), [code]))
