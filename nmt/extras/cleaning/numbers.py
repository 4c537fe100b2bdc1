"""Numbers that a translation does not have."""

from __future__ import annotations

import re

from nmt.data.filters import Finding
from nmt.text.numbers import numbers_of

_DIGIT = re.compile(r"\d")
_LAST_IN_WORDS = 99
_HALF_DAY = 12


def find_numbers(source: str, target: str) -> Finding | None:
    """Return the numbers that only the source and only the target have.

    What is usual in translations is no finding: a number in words, a million as a word, a year cut
    to its decade, and 15 hours that were 3 p.m.

    >>> find_numbers("Es war 1.250 km.", "It was 1,205 km.")
    Finding(reason='numbers', value='1250|1205', limit='')
    >>> find_numbers("3 Millionen am 5.", "3,000,000 on the fifth") is None
    True
    """
    if not (_DIGIT.search(source) or _DIGIT.search(target)):
        return None
    left, right = numbers_of(source), numbers_of(target)
    only_left, only_right = left - right, right - left
    if not (only_left or only_right) or _digits(source) == _digits(target):
        return None
    for one in sorted(only_left):
        if related := {other for other in right if _are_related(one, other)}:
            only_left.discard(one)
            only_right -= related
    only_right = {one for one in only_right if not any(_are_related(one, x) for x in left)}
    if not (only_left and only_right):  # what is missing may be written in words
        only_left, only_right = (
            {number for number in only if not _is_round(number)} for only in (only_left, only_right)
        )
    if not (only_left or only_right):
        return None
    return Finding("numbers", f"{' '.join(sorted(only_left))}|{' '.join(sorted(only_right))}")


def _is_round(number: str) -> bool:
    """Whether it is seldom written in digits: small, round, or a decade."""
    is_decade = len(number) == 4 and number[0] in "12" and number[-1] == "0"
    return is_decade or int(number.rstrip("0") or 0) <= _LAST_IN_WORDS


def _digits(text: str) -> str:
    return "".join(str(int(digit)) for digit in _DIGIT.findall(text))


def _are_related(one: str, other: str) -> bool:
    """Whether two different numbers may stand for the same."""
    shorter, longer = sorted((one, other), key=len)
    if one.rstrip("0") == other.rstrip("0"):  # 2.5 million
        return True
    if longer.endswith(shorter) and len(longer) > len(shorter):  # the 90s of the 1990s
        return True
    values = int(one), int(other)
    return max(values) <= 2 * _HALF_DAY and abs(values[0] - values[1]) == _HALF_DAY
