"""Scripts, language codes, common words, numbers and repetitions in a text.

Languages are identified by script, by their most frequent words, and by py3langid if installed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_DATA = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
_SCRIPTS: Mapping[str, Mapping[str, str]] = _DATA["scripts"]
_MIXED: Mapping[str, str] = _DATA["mixed"]
WORDS: Mapping[str, str] = _DATA["words"]
NAMES: Mapping[str, str] = _DATA["names"]  # in English
_NUMBER = re.compile(r"\d+(?:[.,'\u2019\u00a0\u202f\u066b\u066c]\d+)*")


def primary_code(language: str) -> str:
    """Return the language part of a code: ``zh`` for ``zh-Hant``, ``ary`` for ``ary_Arab``."""
    return re.split("[-_]", language.lower())[0]


def script_of(language: str) -> str | None:
    """Return the ISO 15924 code of a language's script, for example ``Latn``; None if unknown."""
    for name in re.split("[-_]", language.title())[1:]:
        if name in _SCRIPTS or name in _MIXED:
            return name if name in _SCRIPTS else _MIXED[name]
    code = primary_code(language)
    known = (name for name, each in _SCRIPTS.items() if code in each["languages"].split())
    return next(known, None)


@cache
def letters_of(script: str) -> re.Pattern[str]:
    """Return a pattern for the letters of a script; for Kana or Hang, also the letters of Hani."""
    letters = [_SCRIPTS[name]["letters"] for name in (script, _MIXED.get(script)) if name]
    return re.compile(f"[{''.join(letters)}]+")


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
