"""A document as text, HTML or SubRip -> sentences, and their translations -> the document.

What a server or a program calls::

    document = read_document(text, "html", "de")
    translations = ...  # text and alignment of each of document.sentences
    page = document.rebuild(translations, " ")

Promises:

- What is not text to translate comes back byte for byte: tags and attributes, scripts, code,
  addresses, timings, blank lines. So does a paragraph whose translation equals it.
- In a paragraph that is changed, characters are written again (an entity as its character), and
  white space becomes one space, but for line breaks.
- Every tag is written once, balanced and nested as in the source (see ``projection``).
- Malformed HTML stays as it is. Time and memory grow with the length of the document.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from nmt.extras.serving.documents.html import read_html
from nmt.extras.serving.documents.lines import read_cues, read_lines, write_srt
from nmt.extras.serving.documents.paragraph import Event, Paragraph, read_paragraph
from nmt.extras.serving.documents.projection import Escape, Translation, render
from nmt.registry import chosen

Part = str | Sequence[Event]  # What stays as it is, or what a paragraph is made of.


# How a document is cut into parts, whose characters joined are the document, and how the text of a
# translation is written.
_FORMATS: dict[str, tuple[Callable[[str], Iterable[Part]], Escape]] = {
    "txt": (read_lines, str),
    "html": (read_html, partial(html.escape, quote=False)),
    "srt": (read_cues, write_srt),
}
FORMATS = tuple(_FORMATS)  # Names of formats, which are also the extensions of their files.
_ALIASES = {"htm": "html", "xhtml": "html", "text": "txt", "plain": "txt"}


@dataclass(frozen=True, slots=True)
class Document:
    """A document between being read and being written."""

    # What is to be translated: text without marks, in order. Each has a letter.
    sentences: tuple[str, ...]
    parts: tuple[str | Paragraph, ...]  # What stays, and the paragraphs that the sentences are of.
    escape: Escape  # Writes text in its format.

    def rebuild(self, translations: Sequence[Translation], joiner: str = " ") -> str:
        """Return the document with its sentences translated.

        Args:
            translations: Text and word alignment of each of ``sentences``. Without an alignment
                marks keep their relative positions.
            joiner: What stands between two sentences of the target language.
        """
        rest = iter(translations)
        written = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(part)
                continue
            own = [next(rest) if _has_letter(text) else (text, None) for text in part.sentences]
            is_same = tuple(text for text, _ in own) == part.sentences
            written.append(_raw(part.events) if is_same else render(part, own, joiner, self.escape))
        return "".join(written)


def read_document(text: str, kind: str, language: str) -> Document:
    """Cut a document into sentences and what stands around them.

    Args:
        text: The document. Its line ends stay as they are.
        kind: One of `FORMATS`, or another extension of such files, as ``htm``.
        language: Of the text, for the rules of sentences; English ones for an unknown language.

    Raises:
        ConfigError: There is no such format, or the package sentencex is missing.
        DataError: The document is not of this format.
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
            parts.append(_raw(part))
    paragraphs = (part for part in parts if isinstance(part, Paragraph))
    sentences = (sentence for paragraph in paragraphs for sentence in paragraph.sentences)
    return Document(tuple(filter(_has_letter, sentences)), tuple(parts), escape)


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _raw(events: Iterable[Event]) -> str:
    return "".join(event.raw for event in events)
