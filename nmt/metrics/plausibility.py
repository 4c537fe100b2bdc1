"""Finds translations that should not be scored as they are: blank, shifted, copied, tokenized."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from unicodedata import is_normalized

import regex

from nmt.metrics.result import System
from nmt.metrics.sacrebleu import default_tokenizer
from nmt.text.languages import UNSPACED, script_class
from nmt.text.preprocessing import TOKENIZED, find_preprocessing

# Characters of the scripts without spaces between words.
_UNSPACED = regex.compile(script_class(*sorted(UNSPACED)) + "+")
_MAX_LINES = 5_000  # that are compared with their neighbours
_OFFSETS = (-2, -1, 1, 2)  # lines
# Dice coefficients of the trigrams of two lines: of unrelated lines at most, of a translation and
# its reference at least.
_UNRELATED = 0.2
_RELATED = 0.4
# Odd lines are worth a warning if there are so many of them, and so large a share.
_MIN_ODD = 3
_MIN_ODD_SHARE = 0.05
_QUOTED = r"^[\"\u00ab\u00bb\u2018-\u201f\u300c\u300e].*[\"\u00ab\u00bb\u2018-\u201f\u300d\u300f]$"
# Signs that a translation has, but not its reference.
_ODD_SIGNS = {
    "have a tab, but not their reference: pass one column": re.compile("\t"),
    "begin with a number, but not their reference: remove it": re.compile(r"^\d+[.)]\s"),
    "are in quotation marks, but not their reference: remove them": re.compile(_QUOTED),
    r"have \n for a line break, but not their reference: write a space": re.compile(r"\\n"),
    "have the sign of an unknown word, but not their reference": re.compile("\u2047|<unk>"),
}


def odd_texts(
    systems: Sequence[System],
    reference: Sequence[str],
    tokenize: str | None,
    language: str | None,
    source: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yield warnings about systems that look wrong, and an unsuitable tokenizer of BLEU.

    Args:
        systems: Systems to check.
        reference: Reference lines.
        tokenize: Tokenizer of BLEU; None for the default of the language.
        language: Code of the target language, if known.
        source: Source lines, if known.
    """
    for text in [*systems, System("the reference", reference)]:
        preprocessing = find_preprocessing(text.lines, [TOKENIZED])
        if preprocessing is not None:
            _, description = preprocessing
            yield f"{text.name} {description}\n  Scores of tokenized text are not comparable."
    for system in systems:
        for problem in _odd_lines(system.lines, reference, source):
            yield f"{system.name}: {problem}"
    sample = "".join(reference[:100])
    num_unspaced = sum(map(len, _UNSPACED.findall(sample)))  # in characters
    # A text without spaces may also contain names and numbers in other scripts.
    is_unspaced = num_unspaced > len(sample) / 3
    if is_unspaced and (tokenize or default_tokenizer(language)) == "13a":
        fix = "set `languages` to en-zh, en-ja or en-th, or `tokenize` to zh, ja-mecab or char."
        yield f"The references are written without spaces, but BLEU's tokenizer is 13a; {fix}"


def _odd_lines(
    lines: Sequence[str], reference: Sequence[str], source: Sequence[str] | None
) -> Iterator[str]:
    """Yield a problem for each kind of odd lines; only the first lines of a long text are read."""
    for change, word in ((str.lower, "capital"), (str.upper, "small")):
        if any(lines) and _is_fixed_by(change, lines) and not _is_fixed_by(change, reference):
            yield f"no {word} letters, but the reference has them; `lowercase` ignores case"
    blank = list[int]()  # numbers of lines
    copied = list[int]()
    accented = list[int]()
    shifted: dict[int, list[int]] = {offset: [] for offset in _OFFSETS}
    trigrams = [_trigrams(line) for line in reference[:_MAX_LINES]]
    for index, expected in enumerate(trigrams):
        line = lines[index].strip()
        wanted = reference[index]
        number = index + 1
        if not line and expected:
            blank.append(number)
        if is_normalized("NFC", line) != is_normalized("NFC", wanted):
            accented.append(number)
        actual = _trigrams(line)
        similarity = _similarity(actual, expected)
        if similarity > _UNRELATED:
            continue
        if source is not None and line and line == source[index].strip():
            copied.append(number)
        for offset in _OFFSETS:
            other = index + offset
            if other in range(len(trigrams)) and _similarity(actual, trigrams[other]) > _RELATED:
                shifted[offset].append(number)
    problems = {
        "are blank": blank,
        "repeat their source": copied,
        "differ from their reference in Unicode's normalization (NFC): normalize both": accented,
    }
    for problem, sign in _ODD_SIGNS.items():
        problems[problem] = _lines_with(sign, lines, reference)
    for offset, numbers in shifted.items():
        place = f"{abs(offset)} {'below' if offset > 0 else 'above'}"
        problems[f"fit the reference {place} better: is a line missing or added?"] = numbers
    for problem, numbers in problems.items():
        fewest = _MIN_ODD_SHARE * len(trigrams)
        fewest = max(_MIN_ODD, fewest)
        if numbers is blank:
            fewest = 1
        if len(numbers) >= fewest:
            share = f"{len(numbers):,} of {len(trigrams):,} lines"
            yield f"{share} {problem} (the first is line {numbers[0]:,})"


def _lines_with(sign: re.Pattern[str], lines: Sequence[str], reference: Sequence[str]) -> list[int]:
    """Return the numbers of the lines that have a sign, but not their reference."""
    numbers = []
    for index, wanted in enumerate(reference[:_MAX_LINES]):
        line = lines[index].strip()
        if sign.search(line) and not sign.search(wanted):
            numbers.append(index + 1)
    return numbers


def _is_fixed_by(change: Callable[[str], str], lines: Sequence[str]) -> bool:
    """Whether ``change`` leaves all lines as they are."""
    return all(change(line) == line for line in lines[:_MAX_LINES])


def _trigrams(line: str) -> set[str]:
    """Return the trigrams of a line, in lower case and with a blank at each end."""
    text = f" {line.strip().casefold()} "
    return {text[start : start + 3] for start in range(len(text) - 2)}


def _similarity(first: set[str], second: set[str]) -> float:
    """Return the Dice coefficient of two sets."""
    return 2 * len(first & second) / max(1, len(first) + len(second))
