"""Text -> sentences, by the rules of the library sentencex (extra ``serve``): its only user."""

from __future__ import annotations

import re
from itertools import pairwise

from nmt.errors import ConfigError

try:
    from sentencex import segment
except ImportError:  # pragma: no cover - depends on the installation
    segment = None

LONGEST_SENTENCE = 5_000
"""Characters; a longer one is cut between words. Also what the library sees at once: its time grows
with the square of a text full of quotation marks."""
SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which JSON may escape; no UTF-8 has them."""


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
        raise ConfigError(
            "Documents are cut into sentences by the package sentencex, which is not installed.",
            fix="pip install 'nmt[serve]'",
        )
    code = re.split("[-_]", language)[0].lower()
    found: list[str] = []
    start = 0
    while start < len(text):
        window = text[start : start + LONGEST_SENTENCE]
        pieces = _exact(window, segment(code, SURROGATES.sub("\ufffd", window)))
        if start + len(window) < len(text):  # the last one may go on behind the window
            pieces = pieces[:-1] or [window[: window.rfind(" ") + 1] or window]
        found += pieces
        start += sum(map(len, pieces))
    return found


def _exact(text: str, sentences: list[str]) -> list[str]:
    """Cut a text before each sentence that is found in it: the library may drop white space."""
    readable, starts, place = SURROGATES.sub("\ufffd", text), [0], 0
    for sentence in sentences:
        start = readable.find(sentence, place)
        if start < 0:
            break
        starts.append(start)
        place = start + len(sentence)
    return [text[a:b] for a, b in pairwise((*starts, len(text))) if b > a]
