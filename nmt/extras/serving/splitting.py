"""Text of any length -> sentences, and back.

A text is cut at line breaks, and each line into sentences by the rules of its language. Whatever
stands between sentences is kept, so that joining them gives the text again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nmt.text.sentences import split_sentences

_LINE_BREAKS = re.compile(r"([\r\n]+)")


class SplitText(NamedTuple):
    """A text as its sentences and what stands around them."""

    gaps: tuple[str, ...]
    """White space before each sentence, and after the last one: one more than sentences."""
    sentences: tuple[str, ...]
    """None is blank, begins or ends with white space, or holds a line break."""

    def gaps_for(self, joiner: str | None) -> list[str]:
        """Return what stands around sentences of another language.

        Args:
            joiner: What that language puts between two sentences of a line: a space, or nothing.
                None leaves what there was.
        """
        if joiner is None or len(self.gaps) < 3:
            return list(self.gaps)
        inner = [joiner if gap in ("", " ") else gap for gap in self.gaps[1:-1]]
        return [self.gaps[0], *inner, self.gaps[-1]]

    def join(self, sentences: Sequence[str], joiner: str | None = None) -> str:
        """Return the text with other sentences, such as translations, in the same places.

        Args:
            sentences: As many as there were.
            joiner: See `gaps_for`.

        >>> split_text("好的。再见。", "zh").join(["Good.", "Bye."], " ")
        'Good. Bye.'
        """
        gaps = self.gaps_for(joiner)
        return gaps[0] + "".join(map("".join, zip(sentences, gaps[1:], strict=True)))


def split_text(text: str, language: str, *, into_sentences: bool = True) -> SplitText:
    r"""Cut a text into sentences; with ``into_sentences`` false, only into lines.

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
