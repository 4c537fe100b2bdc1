"""Numbers in a text, and the comparison of the numbers of a text and its translation."""

from __future__ import annotations

import re
from itertools import filterfalse

_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"\d+(?:[.,'\u2019\u00a0\u202f\u066b\u066c]\d+)*")
_DECADE = re.compile(r"[12]..0")
_LAST_IN_WORDS = 99  # Numbers up to this one are often written in words.
_HALF_DAY = 12  # Hours.


def numbers_of(text: str) -> set[str]:
    """Return the numbers of a text in ASCII digits, without separators and leading zeros.

    Digits of all scripts are converted. Decimal separators are removed too, because languages
    disagree on which separator is decimal.

    >>> sorted(numbers_of("1.250 km, 007 \u0663"))
    ['1250', '3', '7']
    """
    # Compare 30 digits at most: `int` is slow for very long numbers.
    numbers = (re.sub(r"\D", "", match)[:30] for match in _NUMBER.findall(text))
    # `int` reads the digits of all scripts, and drops leading zeros.
    return {str(int(digits)) for digits in numbers}


def number_differences(source: str, target: str) -> tuple[set[str], set[str]]:
    """Return the numbers that only the source has, and those that only its translation has.

    Usual differences between translations are accepted: numbers and millions in words, decades such
    as "the 90s", and 15:00 as 3 p.m. Numbers are as `numbers_of` returns them.

    >>> number_differences("Es war 1.250 km.", "It was 1,205 km.")
    ({'1250'}, {'1205'})
    """
    same = set[str](), set[str]()
    if not _DIGIT.search(source + target):  # quicker than the search for numbers
        return same
    source_numbers = numbers_of(source)
    target_numbers = numbers_of(target)
    only_source = source_numbers - target_numbers
    only_target = target_numbers - source_numbers
    # The same digits may be separated differently.
    if not (only_source or only_target) or _digits(source) == _digits(target):
        return same
    # Remove numbers that the other side has in a different form. `sorted` copies the set, which is
    # changed in the loop.
    for number in sorted(only_source):
        related = {translated for translated in target_numbers if _are_related(number, translated)}
        only_target -= related
        if related:
            only_source.discard(number)
    for number in sorted(only_target):
        if any(_are_related(original, number) for original in source_numbers):
            only_target.discard(number)
    if not (only_source and only_target):  # a missing number may be written in words
        only_source = set(filterfalse(_is_round, only_source))
        only_target = set(filterfalse(_is_round, only_target))
    return only_source, only_target


def _is_round(number: str) -> bool:
    """Whether a number is often written in words: small, round, or a decade."""
    if _DECADE.fullmatch(number):
        return True
    digits = number.rstrip("0") or "0"  # Zero itself has no other digits.
    return int(digits) <= _LAST_IN_WORDS


def _digits(text: str) -> str:
    """Return all digits of a text, converted from any script to ASCII."""
    digits = _DIGIT.findall(text)
    values = map(int, digits)
    return "".join(map(str, values))


def _are_related(source_number: str, target_number: str) -> bool:
    """Whether two numbers can have the same meaning: 2.5 and 25 (million), 3 and 15 (o'clock)."""
    shorter, longer = sorted((source_number, target_number), key=len)
    if source_number.rstrip("0") == target_number.rstrip("0"):  # 2.5 million
        return True
    if longer.endswith(shorter):  # the 90s of the 1990s
        return True
    source_hour = int(source_number)
    target_hour = int(target_number)
    latest_hour = max(source_hour, target_hour)
    if latest_hour > 2 * _HALF_DAY:  # not a time of day
        return False
    return abs(source_hour - target_hour) == _HALF_DAY
