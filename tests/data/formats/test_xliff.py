from __future__ import annotations

import io
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nmt.data.formats import FORMATS, layout_of, sample_of
from nmt.data.formats.layout import Wanted
from nmt.errors import DataError
from tests.data.formats.reading import outcomes, read_pairs, texts_of
from tests.data.formats.test_tmx import TEXTS

NAMESPACES = {"1.2": "urn:oasis:names:tc:xliff:document:1.2",
              "2.0": "urn:oasis:names:tc:xliff:document:2.0"}  # fmt: skip
BOTH = TEXTS.filter(str.strip)  # a blank target is not a translation


@given(
    pairs=st.lists(st.tuples(BOTH, BOTH), min_size=1, max_size=5),
    version=st.sampled_from(["1.2", "2.0"]),
    encoding=st.sampled_from(["UTF-8", "UTF-16", "US-ASCII"]),
    prefix=st.sampled_from([None, "x"]),
)
def test_what_lxml_writes_is_read_back(
    pairs: list[tuple[str, str]], version: str, encoding: str, prefix: str | None
) -> None:
    namespace = NAMESPACES[version]

    def element(parent: etree._Element, tag: str, **attributes: str) -> etree._Element:
        return etree.SubElement(parent, f"{{{namespace}}}{tag}", attributes)

    root = etree.Element(f"{{{namespace}}}xliff", nsmap={prefix: namespace})
    if version == "1.2":
        file = element(root, "file", **{"source-language": "en", "target-language": "de"})
        parent = element(element(file, "body"), "group")
    else:
        root.attrib.update({"srcLang": "en", "trgLang": "de-DE"})
        parent = element(element(root, "file"), "unit")
    for source, target in pairs:
        unit = element(parent, "trans-unit" if version == "1.2" else "segment")
        element(unit, "source").text = source
        element(unit, "target").text = target
    written = io.BytesIO()
    etree.ElementTree(root).write(written, encoding=encoding, xml_declaration=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "project.xlf"
        path.write_bytes(written.getvalue())
        assert texts_of(read_pairs(path)) == pairs
        assert texts_of(read_pairs(path, ("de", "en"))) == [(t, s) for s, t in pairs]


def write_1(*units: str, languages: str = 'source-language="en" target-language="de"') -> Path:
    """Write an XLIFF 1.2 file with a unit per line, the first one in line 2."""
    lines = "".join(f"<trans-unit>{each}</trans-unit>\n" for each in units)
    path = Path("project.xlf")
    path.write_text(f"<xliff><file {languages}><body>\n{lines}</body></file></xliff>", "utf-8")
    return path


def test_a_text_file_with_a_project_is_a_project() -> None:
    path = write_1("<source>Dog</source><target>Hund</target>").rename("project.txt")
    assert FORMATS["xliff"].recognises(sample_of(path))
    assert texts_of(read_pairs(path, None)) == [("Dog", "Hund")]


def test_what_is_not_translated_is_counted() -> None:
    path = write_1(
        "<source>Dog</source><target>Hund</target>",
        "<source>missing</source>",
        "<source>blank</source><target> </target>",
        "<source/><target>x</target>",
        '<source>new</source><target state="new">new</target>',
        '<source>fuzzy</source><target state="needs-review-translation">x</target>',
        '<source>Cat</source><target state="final">Katze</target>',
        "<source>other</source><alt-trans><target>x</target></alt-trans>",
    )
    expected = ["Dog", *["untranslated"] * 5, "Cat", "untranslated"]
    assert outcomes(read_pairs(path)) == list(enumerate(expected, start=2))


def test_initial_segments_of_xliff_2_are_not_translated() -> None:
    path = Path("project.xlf")
    states = {"initial": "untranslated", "translated": "b", "reviewed": "c", "final": "d"}
    segments = [f'<segment state="{state}"><source>{text}</source><target>x</target></segment>'
                for state, text in zip(states, "abcd", strict=True)]  # fmt: skip
    head = '<xliff version="2.0" srcLang="en" trgLang="de"><file><unit>'
    path.write_text(f"{head}{''.join(segments)}</unit></file></xliff>", encoding="utf-8")
    assert [source for _, source in outcomes(read_pairs(path))] == list(states.values())


def test_codes_are_left_out_and_marked_text_is_kept() -> None:
    path = write_1(
        '<source>A <g id="1">red</g><x id="2"/> <bpt id="3">&lt;b></bpt><mrk>dog</mrk></source>'
        '<target>Ein <pc>roter</pc> <ph id="1">%s<sub>Tipp</sub></ph>Hund<cp hex="1"/></target>'
    )
    assert texts_of(read_pairs(path)) == [("A red dog", "Ein roter Hund")]


def test_files_of_a_project_in_other_languages_are_not_pairs_of_the_corpus() -> None:
    unit = "<trans-unit><source>{}</source><target>x</target></trans-unit>"
    files = [f'<file source-language="en" target-language="{code}">{unit.format(code)}</file>\n'
             for code in ("fr", "de-AT", "it", "de")]  # fmt: skip
    path = Path("project.xlf")
    path.write_text(f"<xliff>{''.join(files)}</xliff>", encoding="utf-8")
    assert outcomes(read_pairs(path)) == [(2, "de-AT"), (4, "de")]
    with pytest.raises(DataError, match="are en, fr, de-AT, it, de"):
        read_pairs(path, None)


def test_sides_without_a_language_are_source_and_target() -> None:
    unit = "<source>Dog</source><target>Hund</target>"
    path = write_1(unit, languages="")
    assert texts_of(read_pairs(path)) == [("Dog", "Hund")]
    assert layout_of(path, Wanted()).languages == (None, None)
    path = write_1(unit, languages='source-language="en"')
    assert texts_of(read_pairs(path)) == [("Dog", "Hund")]
    assert texts_of(read_pairs(path, ("de", "en"))) == [("Hund", "Dog")]
    assert layout_of(path, Wanted()).languages == ("en", None)
    with pytest.raises(DataError, match="certain which"):
        read_pairs(path, ("it", "fr"))


def test_units_after_a_damaged_one_have_the_languages_of_their_file() -> None:
    path = write_1("<source>a & b</source>", "<source>Dog</source><target>Hund</target>")
    assert outcomes(read_pairs(path)) == [(2, "syntax"), (3, "Dog")]
