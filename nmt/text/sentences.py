"""Text -> sentences, by the rules of the library sentencex (extra ``serve``), and back.

The only module that uses the library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from nmt.errors import ConfigError
from nmt.text import without_surrogates

try:
    from sentencex import segment
except ImportError:  # pragma: no cover - depends on the installation
    segment = None

# Characters; a longer one is cut between words. Also what the library sees at once: its time grows
# with the square of a text full of quotation marks.
LONGEST_SENTENCE = 5_000
# sentencex 1.0.32 panics at a capital letter, a space of several bytes and a full stop, as in
# "plan B\u00a0.". A panic is not an Exception, so it would end a server's thread.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_LINE_BREAKS = re.compile(r"([\r\n]+)")


def split_sentences(text: str, language: str) -> list[str]:
    """Cut a text into sentences, each with the white space behind it. Joined they are the text.

    Args:
        text: Anything; one paragraph at best.
        language: A code such as ``de`` or ``pt_BR``; its first part counts. The rules of
            English apply to an unknown language; they know the full stops of all scripts.

    Raises:
        ConfigError: The library is not installed.

    >>> split_sentences("Dr. Smith came. He sat down.", "en")
    ['Dr. Smith came. ', 'He sat down.']
    """
    if segment is None:
        problem = "Text is cut into sentences by the package sentencex, which is not installed."
        raise ConfigError(problem, fix="pip install -e '.[serve]'")
    code = re.split("[-_]", language)[0].lower()
    readable = _WIDE_SPACE.sub(" ", without_surrogates(text))
    cuts = [0]
    while (start := cuts[-1]) < len(text):
        window = readable[start : start + LONGEST_SENTENCE]
        starts = _starts(window, segment(code, window))
        if start + len(window) == len(text):
            starts.append(len(window))
        elif not starts:  # no sentence ends in the window
            starts = [window.rfind(" ") + 1 or len(window)]
        cuts += [start + place for place in starts]
    return [text[a:b] for a, b in pairwise(cuts)]


def _starts(text: str, sentences: Sequence[str]) -> list[int]:
    """Return where sentences begin, but for the first: the library may drop white space."""
    starts, place = [], 0
    for sentence in sentences:
        start = text.find(sentence, place)
        if start < 0:
            break
        if start:
            starts.append(start)
        place = start + len(sentence)
    return starts


class SplitText(NamedTuple):
    """A text as its sentences and what stands around them."""

    # White space before each sentence, and after the last one: one more than sentences.
    gaps: tuple[str, ...]
    sentences: tuple[str, ...]  # not blank, without white space at their ends or line breaks

    def gaps_for(self, joiner: str) -> list[str]:
        """Return what stands around the translations.

        Args:
            joiner: What the target language puts between two sentences of a line: a space, or
                nothing.
        """
        inner = [joiner if gap in ("", " ") else gap for gap in self.gaps[1:-1]]
        return [self.gaps[0], *inner, *self.gaps[1:][-1:]]


def split_text(text: str, language: str, *, into_sentences: bool = True) -> SplitText:
    r"""Cut a text at line breaks, and each line into sentences unless told otherwise.

    >>> split_text("Mr. Gray ran.  He fell.\n\nWhy?\n", "en")
    SplitText(gaps=('', '  ', '\n\n', '\n'), sentences=('Mr. Gray ran.', 'He fell.', 'Why?'))
    """
    gaps, sentences = [""], []
    for line in _LINE_BREAKS.split(text):
        for part in split_sentences(line, language) if into_sentences else [line]:
            sentence = part.strip()
            if not sentence:
                gaps[-1] += part
                continue
            start = part.index(sentence)
            gaps[-1] += part[:start]
            sentences.append(sentence)
            gaps.append(part[start + len(sentence) :])
    return SplitText(tuple(gaps), tuple(sentences))
