"""A document in one of five formats -> sentences, and their translations -> the document.

What a server or a program calls::

    document = read_document(decode_document(data), "html", "de")
    results = translator.translate(document.sentences, alignments=True)
    page = document.rebuild([(x.text, x.alignment) for x in results], joiner_for("en"))

Promises:

- What is not text to translate comes back byte for byte: tags and attributes, scripts, code,
  addresses, timings, front matter, blank lines. So does a paragraph whose translation equals it.
- In a paragraph that is changed, characters are written again (an entity as its character), and
  white space becomes one space, but for line breaks.
- Every tag is written once, balanced and nested as in the source (see ``projection``).
- Nothing in a document is an error; what is malformed stays as it is. Time and memory grow with its
  length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from nmt.config.keys import chosen
from nmt.errors import DataError
from nmt.extras.serving.documents.html import read_html
from nmt.extras.serving.documents.markdown import read_markdown, write_markdown
from nmt.extras.serving.documents.paragraph import Event, Paragraph, read_paragraph
from nmt.extras.serving.documents.plain import (
    read_cues,
    read_lines,
    unescape,
    write_markup,
    write_srt,
    write_text,
)
from nmt.extras.serving.documents.projection import Escape, Translation, render

Part = str | Sequence[Event]
"""What stays as it is, or what a paragraph is made of."""


class Format(NamedTuple):
    """A kind of document."""

    read: Callable[[str], Iterable[Part]]
    """Cuts a document into parts, whose characters joined are the document."""
    escape: Escape
    """Writes text of a translation."""


_FORMATS = {
    "txt": Format(read_lines, write_text),
    "html": Format(read_html, write_markup),
    "md": Format(read_markdown, write_markdown),
    "srt": Format(read_cues, write_srt),
    "vtt": Format(partial(read_cues, decode=unescape), write_markup),
}
FORMATS = tuple(_FORMATS)
"""Names of formats, which are also the extensions of their files."""
_ALIASES = {"htm": "html", "xhtml": "html", "markdown": "md", "text": "txt", "plain": "txt"}


@dataclass(frozen=True, slots=True)
class Document:
    """A document between being read and being written."""

    sentences: tuple[str, ...]
    """What is to be translated: text without marks, in order. Each has a letter."""
    parts: tuple[str | Paragraph, ...]
    """What stays, and the paragraphs that the sentences are of."""
    escape: Escape
    """Writes text in its format."""

    def rebuild(self, translations: Sequence[Translation], joiner: str = " ") -> str:
        """Return the document with its sentences translated.

        Args:
            translations: Text and word alignment of each of ``sentences``. An alignment may be
                None: then marks keep their relative positions.
            joiner: What stands between two sentences of the target language.

        Raises:
            ValueError: There are more or fewer translations than sentences.
        """
        if len(translations) != len(self.sentences):
            raise ValueError(f"{len(translations)} translations of {len(self.sentences)} sentences")
        rest = iter(translations)
        written = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(part)
                continue
            sources = part.sentences
            own = [next(rest) if _has_letter(source) else (source, None) for source in sources]
            is_same = [text for text, _ in own] == sources
            written.append(part.raw if is_same else render(part, own, joiner, self.escape))
        return "".join(written)


def read_document(text: str, kind: str, language: str) -> Document:
    """Cut a document into sentences and what stands around them.

    Args:
        text: The document. Its line ends stay as they are.
        kind: One of `FORMATS`, or another extension of such files, as ``htm``.
        language: Of the text, for the rules of sentences; English ones for an unknown language.

    Raises:
        ConfigError: There is no such format, or the package sentencex is missing.
    """
    name = kind.lower().removeprefix(".")
    read, escape = chosen(_FORMATS, _ALIASES.get(name, name), "document format")
    parts: list[str | Paragraph] = []
    for part in read(text):
        if isinstance(part, str):
            parts.append(part)
        elif _has_letter("".join(event.text for event in part)):
            parts.append(read_paragraph(part, language))
        else:
            parts.append("".join(event.raw for event in part))
    paragraphs = (part for part in parts if isinstance(part, Paragraph))
    sentences = (sentence for paragraph in paragraphs for sentence in paragraph.sentences)
    return Document(tuple(filter(_has_letter, sentences)), tuple(parts), escape)


def decode_document(data: bytes) -> str:
    """Return the text of a document in UTF-8; a byte-order mark stays its first character.

    Raises:
        DataError: It is in another encoding. Names the first byte that tells.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"The document is not UTF-8: byte {error.start:,} is 0x{data[error.start]:02x}.",
            fix="Save it as UTF-8, as with: iconv -f latin1 -t utf-8 FILE.",
        ) from error


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))
