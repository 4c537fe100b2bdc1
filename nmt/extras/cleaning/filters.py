"""Filters that check single sentence pairs: language, script, markup, numbers, copies and more.

The function with the name of a filter, for example `markup`, returns the filter.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import regex

from nmt.config.data import FilterConfig
from nmt.config.language_codes import primary_code
from nmt.data.filters import Filter, PairProblem
from nmt.errors import ConfigError
from nmt.text.identification import (
    NO_PROFILES,
    LanguageProfiles,
    label_of,
    likeliest_label,
    other_label,
    similar_codes,
    similar_labels,
)
from nmt.text.languages import foreign_share, letters_of, longest_loop
from nmt.text.numbers import number_differences

Find = Callable[[str], PairProblem | None]
Share = Callable[[str], float]
# Text, expected language and minimum odds -> a likelier language, or None (see `_language`).
_FindLanguage = Callable[[str, str, float], str | None]
_WORD = re.compile(r"\w+")
_MIN_COPIED_WORDS = 5  # Minimum words of a target that is nearly a copy, and that have letters.
_MIN_REPEATED = 4  # Minimum words of a loop, without its first copy.
_MIN_LOOP_TEXT = 6  # Minimum words of a text in which a loop is sought.
# A Chinese character. Only Chinese characters belong to the scripts of several languages.
_HAN = "\u4e00"
_LABEL = re.compile(rb"__label__([^\0]+)\0")  # A language in the file of a fastText model.
# Loads a model with limited memory, because a damaged file can contain any size.
_LOAD = """
import os, sys, fasttext
most = 4 * os.path.getsize(sys.argv[1]) + (1 << 29)
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
except ImportError:
    pass  # Windows
fasttext.load_model(sys.argv[1])
"""
_ALL_LABELS = -1  # The number of labels that makes fastText return all of them.
_MIN_LETTERS = 12  # Minimum characters of a text whose language is identified.
_MARKUP = re.compile(
    r"</?[a-zA-Z][^<>]*/?>|<!--|&(?:[a-zA-Z]{2,8}|#\d{1,6}|#x[0-9a-fA-F]{1,5});"
    r"|\{\{.*?\}\}|\[\[.*?\]\]|\{\\\w+[^}]*\}|\[/?(?:b|i|u|url|img|quote|code)\b[^\]]*\]",
    re.IGNORECASE,
)
_MARKUP_SIGNS = re.compile(r"[<&{\[]")
_ALWAYS_HIDDEN = "\0-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff"
_CONTROL = re.compile(f"[{_ALWAYS_HIDDEN}\ufff9-\ufffb\ue000-\uf8ff\U000e0000-\U000e007f]")
# Persian, Indic scripts and emoji need joiners; right-to-left text needs direction marks.
_MARKS = re.compile(r"[\u200c-\u200f]")
_NEEDS_MARKS = re.compile(
    r"[\u0590-\u08ff\u0900-\u0dff\u1000-\u109f\u2600-\u27bf\U0001f000-\U0001faff]"
)
_ADDRESS = re.compile(
    r"(?:https?://|ftp://|www\.)\S+|\S+@\S+\.\w+|\b[\w-]+\.(?:com|org|net|info|html?|php)\b\S*",
    re.IGNORECASE,
)
_ADDRESS_SIGNS = re.compile(r"://|www\.|@|\.(?:com|org|net|info|html?|php)\b", re.IGNORECASE)
_SYMBOLS = re.compile(
    "[!-/:-@\\[-`{-~\xa1-\xa9\xab-\xb1\xb4\xb6-\xb8\xbb-\xbf\xd7\xf7\u060c\u061b\u061f\u066a-\u066d"
    "\u06d4\u0964\u0965\u2010-\u2027\u2030-\u205e\u20a0-\u20c0\u2100-\u2bff\u3001-\u3004"
    "\u3008-\u3020\u30fb\ufe10-\ufe6f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
    "\U0001f000-\U0001faff]+"
)
# UTF-8 that was read as an 8-bit encoding. Only text that matches is passed to ftfy, which is slow.
_BROKEN = re.compile(
    "[\x80-\x9f\ufffd]|[\xc0-\xff\u0102\u0103\u0143\u0144\u0178\u017d\u0420-\u044f\u03ce\u03cf]"
    "[\x80-\xbf\u20ac\u2010-\u203a\u0192\u02c6\u02dc\u2122\u0152\u0153\u0160\u0161\u017d\u017e\u0178"
    "\u0402-\u040f\u0452-\u045f\u0491]|\u0432\u0402"
)
_LOST = re.compile(r"\ufffd|[^\W\d_]\?[^\W\d_A-Z]{2}|\?{5}")


@dataclass(frozen=True)
class TextFilter(Filter):
    """A filter that needs only the two texts of a pair."""

    find: Callable[[str, str], PairProblem | None]
    note: str = ""  # a limitation of the filter, for the report

    def text_problem(self, source: str, target: str) -> PairProblem | None:
        """Return the finding for a pair, or None."""
        return self.find(source, target)


@dataclass(frozen=True)
class SideFilter(Filter):
    """A filter that checks each side alone."""

    find_in_source: Find
    find_in_target: Find
    note: str = ""

    def text_problem(self, source: str, target: str) -> PairProblem | None:
        """Return the finding for a pair, or None."""
        problem = self.find_in_source(source)
        return problem or self.find_in_target(target)


@dataclass(frozen=True)
class ShareFilter(Filter):
    """A filter for a share of each side, such as that of symbols, which may be too large."""

    reason: str  # Name of the filter.
    limit: float
    share_of_source: Share
    share_of_target: Share
    note: str = ""

    def text_problem(self, source: str, target: str) -> PairProblem | None:
        """Return the finding for a pair, or None."""
        source_share = self.share_of_source(source)
        target_share = self.share_of_target(target)
        share = max(source_share, target_share)
        if share <= self.limit:
            return None
        return PairProblem(self.reason, share, self.limit)


def control(*_: object) -> Filter:
    """Return the filter that finds invisible control characters.

    >>> control().text_problem("soft\u00adly", "").value
    'U+00AD'
    """
    return SideFilter(_control, _control)


def _control(text: str) -> PairProblem | None:
    if text.isprintable():  # quicker than the search
        return None
    match = _CONTROL.search(text)
    if match is None and not _NEEDS_MARKS.search(text):
        match = _MARKS.search(text)  # Faults only in scripts without need for them.
    if match is None:
        return None
    return PairProblem("control", f"U+{ord(match[0]):04X}")


def markup(*_: object) -> Filter:
    """Return the filter that finds tags and entities of markup languages, such as HTML.

    >>> markup().text_problem("", "a &amp; b").value
    '&amp;'
    """
    return SideFilter(_markup, _markup)


def _markup(text: str) -> PairProblem | None:
    if not _MARKUP_SIGNS.search(text):
        return None
    match = _MARKUP.search(text)
    if match is None:
        return None
    return PairProblem("markup", match[0][:40])


def mojibake(*_: object) -> Filter:
    """Return the filter that finds text decoded with the wrong encoding.

    Raises:
        ConfigError: ftfy is not installed.
    """
    _require("ftfy", "mojibake")
    return SideFilter(_mojibake, _mojibake)


def _mojibake(text: str) -> PairProblem | None:
    if text.isascii() and "?" not in text:
        return None
    lost = _LOST.search(text)  # Characters that were replaced by U+FFFD or by "?".
    if lost and lost[0] != "\ufffd" and "://" in text:
        lost = None  # A web address can contain "?".
    if lost:
        return PairProblem("mojibake", lost[0])
    if not _BROKEN.search(text):
        return None
    import ftfy  # noqa: PLC0415 - optional

    fixed = ftfy.fix_encoding(text)
    if fixed == text:
        return None
    return PairProblem("mojibake", fixed[:80])


def _require(library: str, setting: str, package: str = "") -> None:
    """Check that an optional library is installed.

    Args:
        library: Name of the module to import.
        setting: The setting below ``filters`` that needs the library.
        package: Name of the package to install; by default the name of the library.
    """
    if not find_spec(library):
        raise ConfigError.needs(f"filters.{setting}", package or library, extra="clean")


def copy_of_source(config: FilterConfig, *_: str) -> Filter:
    """Return the filter for targets that repeat the source, or nearly all words of the source.

    >>> find = copy_of_source(FilterConfig()).text_problem
    >>> find("Bonjour, Marie", "bonjour Marie").value
    1.0
    >>> find("1984", "1984") is None  # a number is not translated
    True
    """
    find = partial(_copy, config.copy_of_source.bound)
    return TextFilter(find)


def _copy(max_share: float, source: str, target: str) -> PairProblem | None:
    source_words = _WORD.findall(source.lower())
    target_words = _WORD.findall(target.lower())
    if source_words == target_words:
        characters = "".join(source_words)
        if any(map(str.isalpha, characters)):
            return PairProblem("copy_of_source", 1.0, max_share)
    num_words = len(target_words)
    if num_words < _MIN_COPIED_WORDS:
        return None
    # Not fewer words than those that are copied, but quicker to count: a word of the source may
    # occur in the target several times.
    distinct = set(source_words)
    num_shared = sum(word in distinct for word in target_words)
    if num_shared < max_share * num_words:
        return None
    copied = Counter(source_words) & Counter(target_words)
    share = copied.total() / num_words
    num_alphabetic = sum(map(str.isalpha, target_words))
    if share < max_share or num_alphabetic < _MIN_COPIED_WORDS:
        return None
    return PairProblem("copy_of_source", share, max_share)


def _address_share(text: str) -> float:
    """Return the share of the characters of a text that belong to addresses."""
    if not _ADDRESS_SIGNS.search(text):  # quicker than the search for addresses
        return 0.0
    stripped = text.strip()
    addresses = _ADDRESS.findall(text)
    lengths = map(len, addresses)
    return sum(lengths) / len(stripped)


def url(config: FilterConfig, *_: object) -> Filter:
    """Return the filter for pairs with a side that is mostly web or mail addresses."""
    return ShareFilter("url", config.url.bound, _address_share, _address_share)


def _symbol_share(text: str) -> float:
    """Return the share of symbols among the characters of a text other than spaces."""
    num_spaces = text.count(" ")
    num_visible = len(text) - num_spaces
    symbols = _SYMBOLS.findall(text)
    lengths = map(len, symbols)
    num_symbols = sum(lengths)
    return num_symbols / max(num_visible, 1)


def punctuation(config: FilterConfig, *_: object) -> Filter:
    """Return the filter for pairs with a side that is mostly symbols."""
    return ShareFilter("punctuation", config.punctuation.bound, _symbol_share, _symbol_share)


def repeated_share(text: str) -> float:
    """Return the share of words in the longest loop: a phrase that is repeated without a break.

    In a script without spaces, characters count as words.

    >>> repeated_share("so we go on and on and on and on")
    0.5
    """
    words: Sequence[str] = text.split()
    num_words = len(words)
    # Few words of together about 40 characters: the script is written without spaces.
    if 0 < num_words < _MIN_REPEATED and len(words[0]) * num_words > 40:
        words = "".join(words)
        num_words = len(words)
    if num_words < _MIN_LOOP_TEXT:
        return 0.0
    num_distinct = len(set(words))
    if num_distinct > 0.85 * num_words:  # quicker than the search for a loop
        return 0.0
    num_repeated = longest_loop(words)
    # A short repetition may be rhetoric, so fewer than four words do not count.
    if num_repeated < _MIN_REPEATED:
        return 0.0
    return num_repeated / num_words


def repetition(config: FilterConfig, *_: object) -> Filter:
    """Return the filter for pairs with a side that is mostly one loop."""
    return ShareFilter("repetition", config.repetition.bound, repeated_share, repeated_share)


def numbers(*_: object) -> Filter:
    """Return the filter that finds pairs in which a number was changed or lost.

    Usual differences between translations are accepted: numbers and millions in words, decades such
    as "the 90s", and 15:00 as 3 p.m.

    >>> numbers().text_problem("Es war 1.250 km.", "It was 1,205 km.")
    PairProblem(reason='numbers', value='1250|1205', limit='')
    >>> numbers().text_problem("3 Millionen am 5.", "3,000,000 on the fifth") is None
    True
    """
    return TextFilter(_numbers)


def _numbers(source: str, target: str) -> PairProblem | None:
    differences = number_differences(source, target)
    if not any(differences):
        return None
    only_source, only_target = map(sorted, differences)
    source_text = " ".join(only_source)
    target_text = " ".join(only_target)
    value = f"{source_text}|{target_text}"
    return PairProblem("numbers", value)


def script(config: FilterConfig, source: str, target: str, *_: object) -> Filter:
    """Return the filter for pairs with many letters of a script that the language does not use."""
    share_of_source = partial(foreign_share, language=source)
    share_of_target = partial(foreign_share, language=target)
    unchecked = [code for code in (source, target) if letters_of(code) is None]
    note = ""
    if unchecked:
        note = f"filters.script does not check {' and '.join(unchecked)}: the script is unknown. "
        note += f"Write it into the code, such as {unchecked[0]}_Latn"
    return ShareFilter("script", config.script.bound, share_of_source, share_of_target, note)


def swapped(
    _: FilterConfig, source: str, target: str, profiles: LanguageProfiles = NO_PROFILES
) -> Filter:
    """Return the filter for pairs in which source and target language are swapped.

    Languages with different scripts are distinguished by their letters; other ones by the profiles
    if these know both languages, and else by py3langid.
    """
    source_letters = letters_of(source)
    target_letters = letters_of(target)
    if source_letters and target_letters and source_letters != target_letters:
        both_use_han = source_letters.match(_HAN) and target_letters.match(_HAN)
        if not both_use_han:
            return TextFilter(partial(_swapped_scripts, source_letters, target_letters))
    if profiles.cover((source, target)):
        find = partial(_swapped, profiles.likeliest, {source}, {target})
        return TextFilter(find)
    # A label that fits both languages does not distinguish them.
    source_labels = similar_labels(source) - similar_labels(target)
    target_labels = similar_labels(target) - similar_labels(source)
    note = ""
    if not (source_labels and target_labels):
        note = f"filters.swapped cannot distinguish {source} and {target}"
    find = partial(_swapped, likeliest_label, source_labels, target_labels)
    return TextFilter(find, note)


def _swapped_scripts(
    source_letters: regex.Pattern[str],
    target_letters: regex.Pattern[str],
    source: str,
    target: str,
) -> PairProblem | None:
    """Return a finding if each text has letters of the other language, and none of its own."""
    is_swapped = target_letters.search(source) and source_letters.search(target)
    is_mixed = source_letters.search(source) or target_letters.search(target)
    if is_mixed or not is_swapped:
        return None
    return PairProblem("swapped", "both sides")


def _swapped(
    identify: Callable[[str], str],
    source_labels: Set[str],
    target_labels: Set[str],
    source: str,
    target: str,
) -> PairProblem | None:
    """Return a finding if each text is in the other language.

    Args:
        identify: Returns the label of the likeliest language of a text.
        source_labels: Labels that stand for the source language.
        target_labels: Labels that stand for the target language.
        source: Source text.
        target: Target text.
    """
    if identify(source) in target_labels and identify(target) in source_labels:
        return PairProblem("swapped", "both sides")
    return None


def language(
    config: FilterConfig, source: str, target: str, profiles: LanguageProfiles = NO_PROFILES
) -> Filter:
    """Return the filter for pairs with a side that is not in the configured language.

    Raises:
        ConfigError: ``filters.language.model`` cannot be used.
    """
    finds = []  # Of the source and of the target.
    unchecked = []
    for code in (source, target):
        find_language: _FindLanguage
        if config.language.model is not None:
            find_language = _model_finder(config.language.model, code)
        elif label_of(code) is not None:
            find_language = other_label
        elif profiles.cover([code]):
            find_language = profiles.other
        else:
            find_language = _find_none
            unchecked.append(code)
        find = partial(_language, find_language, code, config.language.bound)
        finds.append(find)
    note = ""
    if unchecked:
        note = f"filters.language does not check {' and '.join(unchecked)}: py3langid does not "
        note += "support it. Set filters.language.model to a model that does"
    find_in_source, find_in_target = finds
    return SideFilter(find_in_source, find_in_target, note)


def _language(
    find_language: _FindLanguage, code: str, min_odds: float, text: str
) -> PairProblem | None:
    """Return a finding if another language is ``min_odds`` times as likely; short texts pass."""
    if len(text) < _MIN_LETTERS:
        return None
    likelier_language = find_language(text, code, min_odds)
    if likelier_language is None:
        return None
    expected_language = primary_code(code)
    return PairProblem("language", likelier_language, expected_language)


def _find_none(*_: object) -> None:
    """Return None: the language cannot be identified."""


def _model_finder(path: Path, code: str) -> _FindLanguage:
    """Return a function that finds texts in a language other than ``code`` by a fastText model.

    Raises:
        ConfigError: fasttext-predict is not installed, the file is missing or damaged, or the model
            does not identify the language.
    """
    _require("fasttext", "language.model", package="fasttext-predict")
    # A damaged file can end the process that loads it, so another process tries it first. Here,
    # only the languages are read: the processes that check texts load the model.
    command = [sys.executable, "-c", _LOAD, str(path)]
    loaded = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if loaded.returncode:
        # The last line of the error says why; a process that was ended by a signal has no error.
        *_, why = ["it is damaged", *loaded.stderr.strip().splitlines()]
        problem = f"filters.language.model: {path} is not a fastText model: {why}."
        fix = "Download the model again, or remove filters.language.model to use py3langid."
        raise ConfigError(problem, fix=fix)
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        labels = _LABEL.findall(content)
    codes = tuple(map(bytes.decode, labels))
    # Also codes of languages that a single sentence does not distinguish from this one.
    expected = similar_codes(code, codes)
    if not expected:
        problem = f"filters.language.model: {path} does not identify {code}."
        fix = "Choose a model that does, or remove filters.language.model to use py3langid."
        raise ConfigError(problem, fix=fix)
    return partial(_find_by_model, path, expected)


@cache
def _fasttext_model(path: Path) -> Any:
    import fasttext  # noqa: PLC0415 - optional

    return fasttext.load_model(str(path))


def _find_by_model(
    path: Path, expected: frozenset[str], text: str, _: str, min_odds: float
) -> str | None:
    """Return the likeliest language if it is ``min_odds`` times as likely as the expected one.

    Args:
        path: File of the fastText model.
        expected: Codes of the model that stand for the expected language.
        text: The text.
        min_odds: Minimum ratio of the two probabilities.
    """
    model = _fasttext_model(path)
    labels, probabilities = model.predict(text, _ALL_LABELS)  # Most probable first.
    if not labels:  # no known words
        return None
    codes = [label.removeprefix("__label__") for label in labels]
    ranking = zip(codes, probabilities, strict=True)
    expected_probability = max(probability for code, probability in ranking if code in expected)
    likeliest = codes[0]
    if likeliest in expected:
        return None
    if probabilities[0] < min_odds * expected_probability:
        return None
    return likeliest
