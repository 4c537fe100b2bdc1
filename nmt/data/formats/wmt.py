"""Test sets of WMT: SGML files with one side each, and XML files with all sides (since 2021).

Both contain documents of numbered segments. A set in SGML is a source file and a file for each
reference, in which the segment with the same document and number is the translation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.data.formats.layout import Sample
from nmt.data.formats.markup import read_elements, root_name, text_of
from nmt.data.formats.pair import (
    BadPair,
    Pair,
    PairReader,
    ReadOptions,
    SentencePair,
    pair_of,
)
from nmt.data.formats.text import TextFile
from nmt.data.formats.units import SOURCE, TARGET, Unit, UnitFormat
from nmt.errors import DataError
from nmt.files.encoding import START_BYTES, open_text

_SGML_ROOTS = ("srcset", "refset", "tstset", "mteval")
_XML_ROOT = "dataset"
# Side, and attribute with the language, by tag.
_SIDES = {
    "src": (SOURCE, "lang"),
    "srcset": (SOURCE, "srclang"),
    "ref": (TARGET, "lang"),
    "refset": (TARGET, "trglang"),
}
_ANY_LANGUAGE = "any"  # in the place of the code
_MOST_CHARACTERS = 1 << 28  # of the references of a set, which are in memory
Key = tuple[str, str]  # Document and number of a segment.


class Segment(NamedTuple):
    """A segment of a source or a reference.

    Args:
        side: `SOURCE` or `TARGET`.
        language: Language code, or the side if the file does not name it.
        key: Document and number.
        text: The text.
        line: Where it starts in its file, from 1.
    """

    side: str
    language: str
    key: Key
    text: str
    line: int


def open_set(files: Sequence[Path], encoding: str | None, options: ReadOptions) -> PairReader:
    """Open the source and the references of a set in SGML to read its pairs."""
    texts = [TextFile(path, encoding, options) for path in files]
    return PairReader(list(map(str, files)), [_pairs(texts, options)])


def _pairs(texts: Sequence[TextFile], options: ReadOptions) -> Iterator[Pair]:
    """Yield a pair for each segment of the first text, whatever languages the files name."""
    for segment, translations in aligned_segments(texts[0], texts[1:]):
        if isinstance(segment, BadPair):
            yield segment
            continue
        references = tuple(translation.text for translation in translations)
        if len(references) < len(texts) - 1:
            yield BadPair("untranslated", segment.line, segment.text)
            continue
        pair = pair_of(segment.text, references[0], segment.line, options)
        if isinstance(pair, SentencePair):
            pair = pair._replace(other_targets=references[1:])
        yield pair


def aligned_segments(
    source: TextFile, references: Sequence[TextFile]
) -> Iterator[tuple[Segment | BadPair, Sequence[Segment]]]:
    """Yield each segment of the source with its references, in the order of their files.

    Args:
        source: A set with source segments.
        references: Sets with references; a file can be in both places.

    Raises:
        DataError: The sources or the references are missing, or are too large for a test set.
    """
    translations: dict[Key, list[Segment]] = defaultdict(list)
    num_characters = 0
    for reference in references:
        for segment in read_segments(reference):
            if not isinstance(segment, BadPair) and segment.side == TARGET:
                translations[segment.key].append(segment)
                num_characters += len(segment.text)
                if num_characters > _MOST_CHARACTERS:
                    problem = f"{reference.name} is larger than test sets are."
                    raise DataError(problem, fix="Convert it to two aligned text files.")
    has_sources = False
    for segment in read_segments(source):
        if isinstance(segment, BadPair):
            yield segment, ()
        elif segment.side == SOURCE and translations:
            has_sources = True
            yield segment, translations.get(segment.key, ())
    if not has_sources:
        files = dict.fromkeys(file.name for file in (source, *references))
        names = " and ".join(files)
        problem = f"{names}: sources or references are missing; a set in SGML is several files."
        fix = "Pass the source and the reference, as in {source: SET-src.de.sgm, target: "
        raise DataError(problem, fix=f"{fix}SET-ref.en.sgm}}.")


def read_segments(file: TextFile) -> Iterator[Segment | BadPair]:
    """Yield the segments of all sides of a set."""
    with open_text(file.path, file.encoding) as stream:
        start = stream.read(START_BYTES).decode("utf-8", "replace")
    is_sgml = root_name(start) != _XML_ROOT
    for item in read_elements(file, ["seg"], is_html=is_sgml):
        if isinstance(item, BadPair):
            yield item
            continue
        line, element = item
        content = " ".join(text_of(element).split())
        document = next(element.iterancestors("doc"), None)
        around = next(element.iterancestors(*_SIDES), None)
        if document is None or "id" not in element.attrib:
            yield BadPair("syntax", line, content)
        elif around is not None:  # and not the output of a system
            side, attribute = _SIDES[around.tag]
            language = around.get(attribute, _ANY_LANGUAGE)
            if language == _ANY_LANGUAGE:
                language = side
            name = document.get("docid") or document.get("id", "")
            key = name, element.get("id")
            yield Segment(side, language, key, content, line)


def _units(file: TextFile) -> Iterator[Unit | BadPair]:
    """Yield the segments with their references."""
    for segment, references in aligned_segments(file, [file]):
        if isinstance(segment, BadPair):
            yield segment
            continue
        texts: dict[str, str | None] = {}
        for each in (segment, *references):
            texts.setdefault(each.language, each.text)
        yield Unit(segment.line, texts, [(each.language, each.text) for each in references])


def _is_wmt(sample: Sample) -> bool:
    root = root_name(sample.text)
    return root in _SGML_ROOTS or (root == _XML_ROOT and "<seg" in sample.text)


WMT = UnitFormat("wmt", _units, _is_wmt)
