"""Reasons that a pair alone gives: each filter looks at one, cheap tests first."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from nmt.config.filters import Action, FilterLimits
from nmt.data.filter import Filter
from nmt.data.findings import Finding
from nmt.errors import ConfigError
from nmt.extras.cleaning.numbers import Numbers
from nmt.text.languages import (
    are_swapped,
    foreign_share,
    is_identifiable,
    letters_of,
    primary_code,
    script_of,
    wrong_language,
)

_WORD = re.compile(r"\w+")
_MIN_COPIED_WORDS = 5
_MIN_REPEATED = 4
_INSTALL = "pip install 'nmt[clean]'"

_MARKUP = re.compile(
    r"</?[a-zA-Z][^<>]*/?>|<!--|&(?:[a-zA-Z]{2,8}|#\d{1,6}|#x[0-9a-fA-F]{1,5});"
    r"|\{\{.*?\}\}|\[\[.*?\]\]|\{\\\w+[^}]*\}|\[/?(?:b|i|u|url|img|quote|code)\b[^\]]*\]",
    re.IGNORECASE,
)
_MARKUP_SIGNS = re.compile(r"[<&{\[]")
_ALWAYS_HIDDEN = "\0-\x08\x0b-\x1f\x7f-\x9f\xad\u200b\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff"
_CONTROL = re.compile(f"[{_ALWAYS_HIDDEN}\ufff9-\ufffb\ue000-\uf8ff\U000e0000-\U000e007f]")
# Persian, Indic scripts and emoji are written with joiners, and right-to-left text with marks.
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
# What UTF-8 looks like when read as one of the 8-bit encodings; anything else is not worth asking.
_BROKEN = re.compile(
    "[\x80-\x9f\ufffd]|[\xc0-\xff\u0102\u0103\u0143\u0144\u0178\u017d\u0420-\u044f\u03ce\u03cf]"
    "[\x80-\xbf\u20ac\u2010-\u203a\u0192\u02c6\u02dc\u2122\u0152\u0153\u0160\u0161\u017d\u017e\u0178"
    "\u0402-\u040f\u0452-\u045f\u0491]|\u0432\u0402"
)
_LOST = re.compile(r"\ufffd|[^\W\d_]\?[^\W\d_A-Z]{2}|\?{5}")
_LIBRARIES = {"mojibake": "ftfy", "language": "py3langid"}


class EachSide(Filter):
    """A filter of a check for each side."""

    def __init__(
        self, source: Callable[[str], Finding | None], target: Callable[[str], Finding | None]
    ) -> None:
        self._source, self._target = source, target

    def text_problem(self, source: str, target: str) -> Finding | None:
        """Return what is found on the first side that has something."""
        return self._source(source) or self._target(target)


class Share(Filter):
    """Finds pairs with too large a share of something on a side.

    Args:
        reason: Of the pairs that are found.
        max_share: The largest that is no reason.
        source: Source text -> its share.
        target: The same of the target.
    """

    def __init__(
        self,
        reason: str,
        max_share: float,
        source: Callable[[str], float],
        target: Callable[[str], float],
    ) -> None:
        self._reason, self._max_share = reason, max_share
        self._source, self._target = source, target

    def text_problem(self, source: str, target: str) -> Finding | None:
        """Return the larger share if it is too large."""
        worst = max(self._source(source), self._target(target))
        return Finding(self._reason, worst, self._max_share) if worst > self._max_share else None


def language_finding(text: str, language: str, min_odds: float) -> Finding | None:
    """Find text in another language; see `wrong_language`."""
    other = wrong_language(text, language, min_odds)
    return Finding("language", other, primary_code(language)) if other else None


def control(text: str) -> Finding | None:
    r"""Find characters that are invisible and change nothing that a reader should see.

    >>> control("soft\u00adly").value
    'U+00AD'
    """
    if text.isprintable():
        return None
    match = _CONTROL.search(text)
    if match is None and (mark := _MARKS.search(text)) and not _NEEDS_MARKS.search(text):
        match = mark
    return Finding("control", f"U+{ord(match[0]):04X}") if match else None


def markup(text: str) -> Finding | None:
    """Find a tag or an entity.

    >>> markup("a &amp; b").value
    '&amp;'
    """
    if not _MARKUP_SIGNS.search(text):
        return None
    match = _MARKUP.search(text)
    return Finding("markup", match[0][:40]) if match else None


def mojibake(text: str) -> Finding | None:
    """Find text that was decoded with another encoding than it was written in."""
    if text.isascii() and "?" not in text:
        return None
    if (match := _LOST.search(text)) and (match[0] == "\ufffd" or "://" not in text):
        return Finding("mojibake", match[0])
    if not _BROKEN.search(text):
        return None
    import ftfy  # noqa: PLC0415 - optional

    fixed = ftfy.fix_encoding(text)
    return Finding("mojibake", fixed[:80]) if fixed != text else None


class Copy(Filter):
    """Finds targets that are their source, or have nearly all words from it."""

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share

    def text_problem(self, source: str, target: str) -> Finding | None:
        """Return the share of copied words if it is too high.

        >>> Copy(0.8).text_problem("Bonjour, Marie", "bonjour Marie").value
        1.0
        >>> Copy(0.8).text_problem("1984", "1984") is None  # as it should be
        True
        """
        left, right = _words(source), _words(target)
        if left == right and any(map(str.isalpha, "".join(left))):
            return Finding("copy_of_source", 1.0, self._max_share)
        if len(right) < _MIN_COPIED_WORDS:
            return None
        known = set(left)
        if sum(word in known for word in right) < self._max_share * len(right):
            return None
        share = (Counter(left) & Counter(right)).total() / len(right)
        if share < self._max_share or sum(map(str.isalpha, right)) < _MIN_COPIED_WORDS:
            return None
        return Finding("copy_of_source", share, self._max_share)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def address_share(text: str) -> float:
    """Return the share of the characters that are addresses of pages or mail."""
    if not _ADDRESS_SIGNS.search(text):
        return 0.0
    return sum(map(len, _ADDRESS.findall(text))) / len(text.strip())


def symbol_share(text: str) -> float:
    """Return the share of the visible characters that are punctuation or symbols."""
    visible = len(text) - text.count(" ")
    return sum(map(len, _SYMBOLS.findall(text))) / max(visible, 1)


def repeated_share(text: str) -> float:
    """Return the share of the words in the longest run that repeats what is directly before it.

    In a script without spaces it is that of the characters.

    >>> repeated_share("so we go on and on and on and on")
    0.5
    """
    words: Sequence[str] = text.split()
    if words and len(words[0]) * len(words) > 40 and len(words) < _MIN_REPEATED:
        words = "".join(words)
    if len(set(words)) > 0.85 * len(words) or len(words) < 2 * _MIN_REPEATED - 2:
        return 0.0
    longest = 0
    for period in range(1, len(words) // 2 + 1):
        run = 0
        for word, before in zip(words[period:], words, strict=False):
            run = run + 1 if word == before else 0
            # Once is rhetoric, unless a whole line is written twice.
            if run > longest and run >= max(_MIN_REPEATED, period):
                longest = run
    return longest / len(words)


class Swapped(Filter):
    """Finds pairs whose source is in the target language, and the other way round."""

    def __init__(self, source: str, target: str) -> None:
        self._languages, scripts = (source, target), (script_of(source), script_of(target))
        self._letters = None
        if scripts[0] and scripts[1] and scripts[0] != scripts[1]:
            self._letters = letters_of(scripts[0]), letters_of(scripts[1])

    def text_problem(self, source: str, target: str) -> Finding | None:
        """Return that the sides are swapped, or None."""
        if self._letters:
            left, right = self._letters
            is_swapped = bool(
                right.search(source) and left.search(target)
                and not left.search(source) and not right.search(target)
            )  # fmt: skip
        else:
            is_swapped = are_swapped(source, target, *self._languages)
        return Finding("swapped", "both sides") if is_swapped else None


def pair_filters(
    limits: FilterLimits, actions: Mapping[str, Action], source: str, target: str
) -> Iterator[Filter]:
    """Yield a filter for each reason that is not off and can be found.

    Args:
        limits: From where on there is a reason.
        actions: Of the reasons; those that are missing are off.
        source: Language code of the source; empty if not known.
        target: The same of the target.

    Raises:
        ConfigError: A reason that drops needs a library that is not installed.
    """
    of_script = [partial(foreign_share, script=script_of(code)) for code in (source, target)]
    in_language = [
        partial(language_finding, language=code, min_odds=limits.language)
        for code in (source, target)
    ]
    makers: dict[str, Callable[[], Filter]] = {
        "control": lambda: EachSide(control, control),
        "markup": lambda: EachSide(markup, markup),
        "mojibake": lambda: EachSide(mojibake, mojibake),
        "copy_of_source": lambda: Copy(limits.copy_of_source),
        "url": lambda: Share("url", limits.url, address_share, address_share),
        "punctuation": lambda: Share("punctuation", limits.punctuation, symbol_share, symbol_share),
        "repetition": lambda: Share(
            "repetition", limits.repetition, repeated_share, repeated_share
        ),
        "numbers": Numbers,
        "script": lambda: Share("script", limits.script, *of_script),
        "swapped": lambda: Swapped(source, target),
        "language": lambda: EachSide(*in_language),
    }
    for name, make in makers.items():
        if name not in actions:
            continue
        library = _LIBRARIES.get(name)
        if library is None or importlib.util.find_spec(library):
            yield make()
        elif actions[name] == "drop":
            raise ConfigError(
                f"filters.{name}: drop needs {library}, which is not installed.", fix=_INSTALL
            )


def reasons_not_found(actions: Mapping[str, Action], source: str, target: str) -> list[str]:
    """Return as sentences which reasons cannot be found, and why.

    Args:
        actions: Of the reasons; those that are missing are off.
        source: Language code of the source.
        target: The same of the target.
    """
    missing = [
        name for name, library in _LIBRARIES.items()
        if name in actions and not importlib.util.find_spec(library)
    ]  # fmt: skip
    notes = [f"{' and '.join(missing)} not looked for: {_INSTALL}"] if missing else []
    if "language" in actions and "language" not in missing:
        unknown = [code for code in (source, target) if not is_identifiable(code)]
        if unknown:
            notes.append(f"py3langid does not know {' and '.join(unknown)}: language not checked")
    return notes
