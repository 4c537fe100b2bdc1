"""Codes of languages: BCP 47, ISO 639 and FLORES codes, read and compared with `langcodes`.

The same language has several codes: ``de``, ``deu``, ``ger``, ``de-DE`` and ``deu_Latn``. A code
finds a language of a model if they differ only in details in which no other language of the model
differs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langcodes import Language

_MOST_CODES = 4096  # Codes in a cache; clients of a server can send any code.


@lru_cache(_MOST_CODES)
def standard_language(code: str) -> Language | None:
    """Return the language of a code in standard form; None if the code has a wrong syntax."""
    from langcodes import Language  # noqa: PLC0415 - `nmt --help` does not need it
    from langcodes.tag_parser import LanguageTagError  # noqa: PLC0415

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
