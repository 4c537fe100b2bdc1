from __future__ import annotations

import io
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nmt.commands.evaluate import evaluate
from nmt.commands.options import EvaluateOptions
from nmt.data.formats import FORMATS, layout_of, sample_of
from nmt.data.formats.layout import Wanted
from nmt.data.formats.pair import BadPair, Pair, ReadOptions, SentencePair
from nmt.data.formats.text import TextFile, open_sides
from nmt.data.formats.wmt import aligned_segments
from nmt.errors import DataError
from nmt.metrics.result import EvaluationReport
from tests.data.formats.reading import outcomes, read_pairs, texts_of
from tests.data.formats.test_tmx import TEXTS

DOCUMENTS = st.lists(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3), min_size=1)


def read_set(*files: Path) -> list[Pair]:
    """Read the pairs of files with one side each."""
    reader = open_sides(files, None, ReadOptions("de", "en"))
    [pairs] = reader.columns
    return list(pairs)


def one_line(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs with single spaces, as they are in the sets of sacreBLEU."""
    return [(" ".join(source.split()), " ".join(target.split())) for source, target in pairs]


def write_side(name: str, root: str, *segments: str) -> Path:
    """Write one side of a set with a segment per line, the first one in line 2."""
    path = Path(name)
    lines = "".join(f"{each}\n" for each in segments)
    path.write_text(f"<{root}><doc docid='a'>\n{lines}</doc></{root.split()[0]}>", "utf-8")
    return path


@given(documents=DOCUMENTS, is_shouted=st.booleans())
def test_what_is_written_to_a_set_in_sgml_is_read_back(
    documents: list[list[tuple[str, str]]], is_shouted: bool
) -> None:
    with TemporaryDirectory() as folder:
        paths = []
        for side, root in enumerate(("srcset", "refset")):
            text = f'<{root} setid="test" srclang="any" trglang="en">\n'
            for number, segments in enumerate(documents):
                text += f'<doc sysid="x" docid="{number}" genre=news>\n<p>\n'
                for index, pair in enumerate(segments, start=1):
                    text += f"<seg id={index}>{escape(pair[side])}</seg>\n"
                text += "</p>\n</doc>\n"
            text += f"</{root}>\n"
            if is_shouted:
                for tag in ("seg", "doc", "p"):
                    text = text.replace(f"<{tag}", f"<{tag.upper()}")
                    text = text.replace(f"</{tag}", f"</{tag.upper()}")
            path = Path(folder) / f"{root}.sgm"
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        expected = [pair for segments in documents for pair in one_line(segments)]
        assert texts_of(read_set(paths[0], paths[1])) == expected


@given(
    documents=DOCUMENTS,
    encoding=st.sampled_from(["utf-8", "utf-16"]),
    is_collected=st.booleans(),
)
def test_what_lxml_writes_to_a_set_in_xml_is_read_back(
    documents: list[list[tuple[str, str]]], encoding: str, is_collected: bool
) -> None:
    root = parent = etree.Element("dataset", id="test")
    if is_collected:
        parent = etree.SubElement(root, "collection", id="general")
    for number, segments in enumerate(documents):
        document = etree.SubElement(parent, "doc", id=str(number), origlang="en")
        for tag, language, side in (("src", "en", 0), ("hyp", "de", 0), ("ref", "de", 1)):
            paragraph = etree.SubElement(etree.SubElement(document, tag, lang=language), "p")
            for index, pair in enumerate(segments, start=1):
                etree.SubElement(paragraph, "seg", id=str(index)).text = pair[side]
    written = io.BytesIO()
    etree.ElementTree(root).write(written, encoding=encoding, xml_declaration=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "test.xml"
        path.write_bytes(written.getvalue())
        expected = [pair for segments in documents for pair in one_line(segments)]
        assert texts_of(read_pairs(path)) == expected
        assert texts_of(read_pairs(path, ("de", "en"))) == [(t, s) for s, t in expected]


XML = """<dataset><doc id="d1">
<src lang="en"><p><seg id="1">Dog</seg>
<seg id="2">Cat</seg></p></src>
<ref lang="de" translator="A"><seg id="2">Katze</seg><seg id="1">Hund</seg></ref>
<ref lang="de" translator="B"><seg id="1">Köter</seg></ref>
<ref lang="fr"><seg id="1">chien</seg></ref></doc>
<doc id="d2"><src lang="en"><seg id="1">Cow</seg></src></doc></dataset>
"""


def test_a_set_in_xml_has_several_references_in_several_languages() -> None:
    path = Path("test.txt")
    path.write_text(XML, encoding="utf-8")
    assert FORMATS["wmt"].recognises(sample_of(path))
    pairs = read_pairs(path)
    assert texts_of(pairs[:2]) == [("Dog", "Hund"), ("Cat", "Katze")]
    others = [pair.other_targets for pair in pairs if isinstance(pair, SentencePair)]
    assert others == [("Köter",), ()]
    assert outcomes(pairs) == [(2, "Dog"), (3, "Cat"), (7, "untranslated")]
    assert texts_of(read_pairs(path, ("en", "fr"))[:1]) == [("Dog", "chien")]
    file = TextFile(path, None, ReadOptions("en", "de"))
    references = []
    for segment, translations in aligned_segments(file, [file]):
        assert not isinstance(segment, BadPair)
        references.append([translation.text for translation in translations])
    assert references == [["Hund", "Köter", "chien"], ["Katze"], []]


def test_a_set_in_xml_is_not_mistaken_for_other_data() -> None:
    path = Path("data.xml")
    path.write_text("<dataset><row>a</row></dataset>", encoding="utf-8")
    assert not FORMATS["wmt"].recognises(sample_of(path))


def test_a_set_in_xml_that_is_not_well_formed_is_an_error_but_a_segment_is_counted() -> None:
    path = Path("test.xml")
    path.write_text(XML.replace("Cat", "a & b"), encoding="utf-8")
    assert outcomes(read_pairs(path)) == [(2, "Dog"), (3, "syntax"), (7, "untranslated")]
    path.write_text(XML.replace("</ref>", "", 1), encoding="utf-8")
    with pytest.raises(DataError, match=r"test\.xml, line 6: Opening and ending tag mismatch"):
        read_pairs(path)


def test_segments_are_aligned_by_document_and_number() -> None:
    source = write_side("src.sgm", "srcset", *(f"<seg id={i}>Hund {i}</seg>" for i in (1, 2, 3)))
    reference = write_side("ref.sgm", "refset", *(f"<seg id={i}>Dog {i}</seg>" for i in (3, 1)))
    pairs = read_set(source, reference)
    assert outcomes(pairs) == [(2, "Hund 1"), (3, "untranslated"), (4, "Hund 3")]
    assert pairs[2][1] == "Dog 3"


def test_a_set_is_read_and_evaluated_with_each_of_its_references() -> None:
    source = write_side("src.sgm", "srcset", "<seg id=1>Hund</seg>", "<seg id=2>Kuh</seg>")
    dogs = write_side("a.sgm", "refset", "<seg id=2>Cow</seg>", "<seg id=1>Dog</seg>")
    hounds = write_side("b.sgm", "refset", "<seg id=1>Hound</seg>", "<seg id=2>Neat</seg>")
    assert read_set(source, dogs, hounds) == [
        SentencePair("Hund", "Dog", 2, ("Hound",)), SentencePair("Kuh", "Cow", 3, ("Neat",)),
    ]  # fmt: skip
    (Path("hypothesis")).write_text("Hound\nCow\n")
    options = EvaluateOptions(
        hypothesis=(Path("hypothesis"),), source=source, reference=(dogs, hounds), metric=("chrf",)
    )
    report = evaluate(options)
    assert isinstance(report, EvaluationReport)
    assert report.evaluations[0].references == (("Dog", "Cow"), ("Hound", "Neat"))
    assert report.evaluations[0].source == ("Hund", "Kuh")
    assert report.evaluations[0].systems[0].scores[0].value == 100
    write_side("b.sgm", "refset", "<seg id=1>Hound</seg>")
    assert outcomes(read_set(source, dogs, hounds)) == [(2, "Hund"), (3, "untranslated")]
    with pytest.raises(DataError, match=r"src\.sgm, line 3: untranslated"):
        evaluate(options)


def test_text_of_sgml_may_contain_characters_of_markup() -> None:
    source = write_side("src.sgm", "srcset", "<seg id=1>A & B &lt;b&gt; &quot;c&quot; < d</seg>")
    reference = write_side("ref.sgm", "refset", "<hl><seg id='1'>\nA\nB</hl></seg>")
    assert texts_of(read_set(source, reference)) == [('A & B <b> "c" < d', "A B")]


def test_a_segment_without_an_end_or_a_number_is_counted() -> None:
    source = write_side("s.sgm", "srcset", "<seg id=1>A", "<seg id=2>B</seg>", "<seg>C</seg>")
    reference = write_side("r.sgm", "refset", "<seg id=1>a</seg>", "<seg id=2>b</seg>")
    assert outcomes(read_set(source, reference)) == [(2, "syntax"), (3, "B"), (4, "syntax")]


def test_one_side_alone_is_an_error_that_names_both_files() -> None:
    source = write_side("src.sgm", "srcset srclang='de'", "<seg id=1>Hund</seg>")
    assert FORMATS["wmt"].recognises(sample_of(source))
    with pytest.raises(DataError, match="sources or references are missing") as caught:
        layout_of(source, Wanted())
    assert "source: SET-src.de.sgm, target: SET-ref.en.sgm" in str(caught.value)
    with pytest.raises(DataError, match="sources or references are missing"):
        read_set(source, source)


def test_a_file_of_sgml_that_is_cut_off_is_an_error() -> None:
    source = write_side("src.sgm", "srcset", "<seg id=1>Hund</seg>")
    reference = Path("ref.sgm")
    reference.write_text("<refset><doc docid=a>\n<seg id=1>Do", encoding="utf-8")
    with pytest.raises(DataError, match=r"ref\.sgm, line 2: the file ends before the end of <seg>"):
        read_set(source, reference)


def test_deep_sgml_is_an_error() -> None:
    path = write_side("src.sgm", "srcset", "<x>" * 9999, "<seg id=1>Hund</seg>")
    with pytest.raises(DataError, match=r"src\.sgm, line 2: Excessive depth"):
        read_set(path, path)
