"""Codes of languages: BCP 47, ISO 639 and FLORES codes, read and compared with `langcodes`.

The same language has several codes: ``de``, ``deu``, ``ger``, ``de-DE`` and ``deu_Latn``. A code
finds a language of a model if both differ only in what no other language of the model differs in
(`matching`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

Languages = tuple[str, str]  # codes of source and target
_Pair = TypeVar("_Pair", bound=Languages)
_MOST_CODES = 4096  # Codes in a cache; clients of a server can send any code.


@lru_cache(_MOST_CODES)
def standard_language(code: str) -> Language | None:
    """Return the language of a code in standard form; None if the code has a wrong syntax."""
    try:
        return Language.get(code)
    except LanguageTagError:
        return None


@lru_cache(_MOST_CODES)
def primary_code(code: str) -> str:
    """Return the standard code of the language alone, without script, region and other details.

    A code with a wrong syntax keeps the part before the first hyphen or underscore.

    >>> [primary_code(code) for code in ("deu", "ger", "de-DE", "deu_Latn", "iw", "ary_Arab")]
    ['de', 'de', 'de', 'de', 'he', 'ary']
    """
    language = standard_language(code)
    if language is not None and language.language is not None:
        return language.language
    return re.split("[-_]", code.lower())[0]


def matching(code: str, codes: Iterable[str]) -> list[str]:
    """Return the codes that can mean the language of ``code``.

    One code means that language. With several codes, ``code`` is ambiguous, because it leaves out
    the region, or contradicts the script or region, that distinguishes them. A code without a
    script means the usual script.

    >>> matching("deu_Latn", ["de", "en"]), matching("arb", ["ar"]), matching("fr", ["de", "en"])
    (['de'], ['ar'], [])
    >>> matching("zho-TW", ["zh-Hans", "zh-Hant"]), matching("pt", ["pt-BR", "pt-PT"])
    (['zh-Hant'], ['pt-BR', 'pt-PT'])
    >>> matching("zh", ["zho_Hans", "zho_Hant"])
    ['zho_Hans']
    """
    unique_codes = list(dict.fromkeys(codes))
    if code in unique_codes:
        return [code]
    matches = [candidate for candidate in unique_codes if _family(candidate) == _family(code)]
    # While several codes match, each comparison removes those that do not pass it, unless none
    # does.
    for is_nearer in (is_same_language, is_spelling, _has_same_script):
        nearer = [candidate for candidate in matches if is_nearer(code, candidate)]
        if len(matches) > 1 and nearer:
            matches = nearer
    return matches


def matching_pairs(languages: tuple[str | None, str | None], pairs: Iterable[_Pair]) -> list[_Pair]:
    """Return the pairs of languages that match a source and a target; None matches all codes.

    >>> matching_pairs(("deu", None), [("de-AT", "en"), ("de-AT", "fr"), ("en", "de-AT")])
    [('de-AT', 'en'), ('de-AT', 'fr')]
    """
    matches = list(pairs)
    for side, code in enumerate(languages):  # 0 is the source, 1 is the target
        if code is not None:
            codes = matching(code, [pair[side] for pair in matches])
            matches = [pair for pair in matches if pair[side] in codes]
    return matches


def is_same_language(first: str, second: str) -> bool:
    """Whether two codes mean the same language if no third code has to be distinguished.

    >>> is_same_language("de", "deu_Latn"), is_same_language("pt-BR", "pt-PT")
    (True, False)
    """
    if first == second:
        return True
    if _family(first) != _family(second):
        return False
    # A script or region that only one of the codes has does not contradict the other code.
    for first_detail, second_detail in zip(_details(first), _details(second), strict=True):
        if None not in (first_detail, second_detail) and first_detail != second_detail:
            return False
    return True


def first_spelling(code: str, codes: Iterable[str]) -> str:
    """Return the first of ``codes`` that is only another spelling of ``code``, else ``code``.

    >>> first_spelling("deu", ["en", "de-AT", "de"]), first_spelling("deu", ["de-AT"])
    ('de', 'deu')
    """
    return next((spelling for spelling in codes if is_spelling(code, spelling)), code)


def is_spelling(first: str, second: str) -> bool:
    """Whether two codes are spellings of the same code.

    >>> is_spelling("de", "deu_Latn"), is_spelling("sr", "sr-Latn")
    (True, False)
    """
    return _standard_form(first) == _standard_form(second)


@lru_cache(_MOST_CODES)
def _standard_form(code: str) -> str:
    """Return the shortest standard code, with the macrolanguage, and without a usual script."""
    language = standard_language(code)
    if language is None:
        return code
    tag = language.prefer_macrolanguage().simplify_script().to_tag()
    # ISO 639 has the macrolanguage Norwegian, which CLDR regards as Bokmål.
    return "nb" if tag == "no" else tag


@lru_cache(_MOST_CODES)
def _family(code: str) -> str:
    """Return the code of the language alone, or of its macrolanguage if CLDR unites both."""
    return primary_code(_standard_form(code))


def _has_same_script(first: str, second: str) -> bool:
    first_language = standard_language(first)
    second_language = standard_language(second)
    if first_language is None or second_language is None:
        return False
    # `maximize` adds the usual script.
    return first_language.maximize().script == second_language.maximize().script


@lru_cache(_MOST_CODES)
def _details(code: str) -> tuple[str | None, str | None]:
    """Return the script and the region of a code; None if it has none.

    A region determines the script: Chinese of Taiwan has traditional characters.
    """
    language = standard_language(code)
    if language is None:
        return None, None
    if language.territory is None:
        return language.script, None
    # `maximize` adds the usual script of the region.
    return language.maximize().script, language.territory
