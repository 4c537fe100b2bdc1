"""The numbers of a text, as they can be compared between languages."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+(?:[.,'\u2019\u00a0\u202f\u066b\u066c]\d+)*")
_SEPARATORS = re.compile(r"\D")
_MOST_DIGITS = 30  # that count: Python reads very long ones slowly


def numbers_of(text: str) -> set[str]:
    """Return the numbers in plain digits, without separators and leading zeros.

    Digits of all scripts count alike. Which separator is a decimal one differs between languages,
    and cannot be known.

    >>> sorted(numbers_of("1.250 km, 007 \u0663"))
    ['1250', '3', '7']
    """
    return {str(int(_SEPARATORS.sub("", each)[:_MOST_DIGITS])) for each in _NUMBER.findall(text)}
