"""Splits text into sentences with the package sentencex."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from sentencex import segment

from nmt.text import without_surrogates

# Maximum characters of a sentence; longer sentences are cut between words. sentencex gets at most
# this much text at once, because its run time is quadratic in the number of quotation marks.
LONGEST_SENTENCE = 5_000
# sentencex 1.0.32 panics at a capital letter, a non-ASCII space and a full stop, for example
# "plan B\u00a0.". A panic is not an Exception, so it would end a thread of the server.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_LINE_BREAKS = re.compile(r"([\r\n]+)")
# A word after a sign that may end a sentence. Text without it is one sentence, whatever the script.
MAY_SPLIT = re.compile(r"[\w\s,'\"()-]*+[\W_]*+\w")


def split_sentences(text: str, language: str) -> list[str]:
    """Split a text into sentences. Each keeps its trailing white space, so joining restores it.

    Args:
        text: Any text; a single paragraph gives the best result.
        language: A code such as ``de`` or ``pt_BR``; only the language part is used. For an unknown
            language the English rules apply, which include the full stops of all scripts.

    >>> split_sentences("Dr. Smith came. He sat down.", "en")
    ['Dr. Smith came. ', 'He sat down.']
    """
    if len(text) <= LONGEST_SENTENCE and not MAY_SPLIT.match(text):  # quicker than sentencex
        return [text] if text else []
    code = re.split("[-_]", language)[0].lower()
    readable = _WIDE_SPACE.sub(" ", without_surrogates(text))  # as long as the text
    cuts = [0]  # Where the text is cut, from 0 to its length.
    while cuts[-1] < len(text):
        start = cuts[-1]
        window = readable[start : start + LONGEST_SENTENCE]
        # A sentence ends where the next one starts. The window may cut the last sentence: the next
        # window begins with it.
        ends = _later_starts(window, segment(code, window))
        if start + len(window) == len(text):  # the last window
            ends.append(len(window))
        elif not ends:  # no sentence ends in the window: cut after the last space, if any
            ends = [window.rfind(" ") + 1 or len(window)]
        cuts += [start + end for end in ends]
    return [text[start:end] for start, end in pairwise(cuts)]


def _later_starts(text: str, sentences: Sequence[str]) -> list[int]:
    """Return where each sentence after the first one starts in ``text``.

    The sentences have to be searched for, because sentencex may drop white space between them.
    """
    starts = []
    previous_end = 0
    for sentence in sentences:
        start = text.find(sentence, previous_end)
        if start < 0:
            break
        if start:
            starts.append(start)
        previous_end = start + len(sentence)
    return starts


_ESCAPED = (r"\n", r"\r", r"\t")  # White space as another program has written it.


class SplitText(NamedTuple):
    """The sentences of a text, and the white space around them."""

    # White space before each sentence and after the last one; len(sentences) + 1 strings.
    gaps: tuple[str, ...]
    sentences: tuple[str, ...]  # not blank; stripped; without line breaks

    def gaps_for(self, joiner: str) -> list[str]:
        """Return the white space around the translated sentences; len(sentences) + 1 strings.

        Args:
            joiner: Separator between two sentences of a line in the target language: a space, or an
                empty string for a language without spaces.
        """
        gaps = list(self.gaps)
        # Only between two sentences, and only if there is no line break or wide space.
        for index, sentence in enumerate(self.sentences[:-1], start=1):
            if gaps[index] in ("", " ") and not sentence.endswith(_ESCAPED):
                gaps[index] = joiner
        return gaps


def split_text(
    text: str,
    language: str,
    max_sentences: int | None = 1,
    max_characters: int | None = None,
    mask: Callable[[str], str] = str,
) -> SplitText:
    r"""Split a text at line breaks, and each long line into its sentences.

    Args:
        text: Any text.
        language: See `split_sentences`.
        max_sentences: Most sentences of a line that is not split. None splits no line.
        max_characters: Most characters of a line that is not split; None: the number of sentences
            decides alone.
        mask: Replaces parts of a line in which no sentence ends by text of the same length.

    >>> split_text("Mr. Gray ran.  He fell.\n\nWhy?\n", "en")
    SplitText(gaps=('', '  ', '\n\n', '\n'), sentences=('Mr. Gray ran.', 'He fell.', 'Why?'))
    """
    gaps = [""]  # The last one is the white space after the last sentence so far.
    sentences = []
    # The pattern has a group, so the list contains lines and the line breaks between them.
    for line in _LINE_BREAKS.split(text):
        parts = [line]
        if max_sentences is not None:
            lengths = [len(sentence) for sentence in split_sentences(mask(line), language)]
            if len(lengths) > max_sentences or len(line) > (max_characters or math.inf):
                ends = accumulate(lengths, initial=0)
                parts = [line[start:end] for start, end in pairwise(ends)]
        for part in parts:  # a sentence with white space around it, or white space
            sentence = part.strip()
            if not sentence:
                gaps[-1] += part
                continue
            start = part.index(sentence)
            gaps[-1] += part[:start]
            sentences.append(sentence)
            gaps.append(part[start + len(sentence) :])
    return SplitText(tuple(gaps), tuple(sentences))


def usual_size(sizes: Iterable[int], share: float) -> int:
    """Return the size that a share of the lines do not exceed; 1 without lines.

    Args:
        sizes: Sentences or characters of each line.
        share: Share of the lines, above 0.

    >>> usual_size([9, 1, 1, 2], 0.5), usual_size([9, 1, 1, 2], 0.6), usual_size([], 0.9)
    (1, 2, 1)
    """
    sorted_sizes = sorted(sizes) or [1]
    return sorted_sizes[math.ceil(share * len(sorted_sizes)) - 1]
