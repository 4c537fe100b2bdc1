"""The cleaning of source text, before it is split into subwords.

Text from web pages, PDF files and word processors contains characters that a reader cannot see or
cannot tell apart. A model that has rarely seen them translates such text badly. Training and every
way to translate clean the source in this way. Targets are never changed.
"""

from __future__ import annotations

import re
import unicodedata

# Format characters without a shape. U+200C and U+200D, which Persian, Indic scripts and emoji need,
# and the tags of flags (from U+E0020) are kept.
_INVISIBLE = (
    "\u00ad"  # soft hyphen
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction
    "\u200b\u2060\ufeff"  # places where a line may break, or may not
    "\u2061-\u2064\u206a-\u206f\ufff9-\ufffb"  # mathematics, notes, and deprecated characters
)
_CONTROLS = "\x00-\x1f\x7f-\x9f"
_FULL_WIDTH = "\uff10-\uff19\uff21-\uff3a\uff41-\uff5a"  # Latin letters and digits
_FULL_WIDTH_OFFSET = 0xFEE0  # from a full-width character to the plain one
_AFFECTED = re.compile(rf"[{_CONTROLS}{_INVISIBLE}{_FULL_WIDTH}]|[^\S ]")


# Characters that vocabularies may lack -> equivalents that are more often known.
PLAIN_CHARACTERS = {
    **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"'),  # quotes
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\u2032", "'"),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),  # hyphens, dashes, minus
    "\u2026": "...",
}


def _cleaned(character: str) -> str:
    if character.isspace():
        return " "
    if "\uff10" <= character <= "\uff5a":
        return chr(ord(character) - _FULL_WIDTH_OFFSET)
    return ""


# All affected characters are in the Basic Multilingual Plane.
_CHARACTERS = _AFFECTED.findall("".join(map(chr, range(0x10000))))
_TABLE = {ord(character): _cleaned(character) for character in _CHARACTERS}


def clean_source(text: str) -> str:
    r"""Return a source text as the model reads it.

    - Letters and their accents are composed (Unicode NFC).
    - Every white space, such as a tab, a line separator or a no-break space, becomes a space.
    - Full-width Latin letters and digits become plain ones.
    - Soft hyphens, zero-width spaces, direction marks and all other controls are removed. U+200C
      and U+200D stay, because Persian, Indic scripts and emoji need them.

    The result of a cleaned text is the same text.

    >>> clean_source("Sch\u00adnee\u00a0\uff11")
    'Schnee 1'
    """
    if text.isascii() and text.isprintable():
        return text
    # A removed character may stand between a letter and its accent, so composing comes last.
    return unicodedata.normalize("NFC", text.translate(_TABLE))
