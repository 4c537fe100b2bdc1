"""Test sets of WMT: SGML files with one side each, and XML files with all sides (since 2021).

Both contain documents of numbered segments. A set in SGML is a source file and a file for each
reference, in which the segment with the same document and number is the translation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nmt.data.formats.layout import Layout, Sample
from nmt.data.formats.markup import read_elements, root_name, text_of
from nmt.data.formats.pair import EXCERPT, BadPair, PairReader, ReadOptions, TextFile, as_read
from nmt.data.formats.units import SOURCE, TARGET, Unit, UnitFormat, pairs_of_units
from nmt.errors import DataError
from nmt.files.encoding import START_BYTES, open_text
from nmt.files.lines import plain_name

_SGML_SUFFIXES = (".sgm", ".sgml")
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


def is_set(path: Path) -> bool:
    """Whether the suffix of a file is that of a set in SGML, one side of which it contains."""
    return Path(plain_name(path)).suffix.lower() in _SGML_SUFFIXES


def open_set(
    source: Path, reference: Path, encoding: str | None, options: ReadOptions
) -> PairReader:
    """Open both sides of a set in SGML to read its pairs."""
    units = _units(TextFile(source, encoding, options), TextFile(reference, encoding, options))
    layout = Layout(WMT.name, columns=(SOURCE, TARGET))
    pairs = pairs_of_units(units, layout, options)
    return PairReader([str(source), str(reference)], [pairs], as_read)


def texts_of_set(
    source: Path, references: Sequence[Path], encoding: str | None
) -> list[tuple[str, ...]]:
    """Return the texts of each reference and, last, of the source, in the order of the source.

    Raises:
        DataError: A segment cannot be read, or does not have one translation per reference.
    """
    options = ReadOptions("", "")
    *files, source_file = [TextFile(path, encoding, options) for path in (*references, source)]
    rows = []
    for segment, translations in aligned_segments(source_file, files):
        if isinstance(segment, BadPair) or len(translations) != len(references):
            problem = f"{source}, line {segment.line:,}: the segment cannot be read, or does not "
            problem += f"have {len(references)} references."
            raise DataError(problem, fix="Pass the files of one set, each with a reference.")
        rows.append((*(translation.text for translation in translations), segment.text))
    return list(zip(*rows, strict=True))


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
                    problem = f"{reference.path} is larger than test sets are."
                    raise DataError(problem, fix="Convert it to two aligned text files.")
    has_sources = False
    for segment in read_segments(source):
        if isinstance(segment, BadPair):
            yield segment, ()
        elif segment.side == SOURCE and translations:
            has_sources = True
            yield segment, translations.get(segment.key, ())
    if not has_sources:
        files = dict.fromkeys(str(file.path) for file in (source, *references))
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
            yield BadPair("syntax", line, content[:EXCERPT])
        elif around is not None:  # and not the output of a system
            side, attribute = _SIDES[around.tag]
            language = around.get(attribute, _ANY_LANGUAGE)
            if language == _ANY_LANGUAGE:
                language = side
            name = document.get("docid") or document.get("id", "")
            key = name, element.get("id")
            yield Segment(side, language, key, content, line)


def _units(source: TextFile, reference: TextFile | None = None) -> Iterator[Unit | BadPair]:
    """Yield the segments with the first reference in each language.

    If the references are in another file, the files decide about the sides, whatever languages
    they name.
    """
    for segment, references in aligned_segments(source, [reference or source]):
        if isinstance(segment, BadPair):
            yield segment
            continue
        texts: dict[str, str | None] = {}
        for each in (segment, *references):
            texts.setdefault(each.language if reference is None else each.side, each.text)
        yield Unit(segment.line, texts)


def _is_wmt(sample: Sample) -> bool:
    root = root_name(sample.text)
    return root in _SGML_ROOTS or (root == _XML_ROOT and "<seg" in sample.text)


WMT = UnitFormat("wmt", (*_SGML_SUFFIXES, ".xml"), _is_wmt, _units)
