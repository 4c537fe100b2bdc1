from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nmt.data.formats import FORMATS, layout_of, markup, sample_of
from nmt.data.formats.layout import Wanted
from nmt.data.formats.pair import BadPair
from nmt.errors import DataError
from tests.data.formats.reading import outcomes, read_pairs, texts_of

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'
TAIL = "</body></tmx>\n"
LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# All characters of XML, without those that a reader of one line replaces.
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")
)


def unit(
    source: str = "Dog", target: str = "Hund", languages: tuple[str, str] = ("en", "de")
) -> str:
    """Return a unit on one line."""
    variants = [
        f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>'
        for language, text in zip(languages, (source, target), strict=True)
    ]
    return f"<tu>{''.join(variants)}</tu>"


def write(*units: str, name: str = "memory.tmx", head: str = HEAD, tail: str = TAIL) -> Path:
    """Write a memory with a unit per line, the first one in line 3."""
    path = Path(name)
    path.write_text(head + "".join(f"{each}\n" for each in units) + tail, encoding="utf-8")
    return path


@given(
    pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5),
    encoding=st.sampled_from(["UTF-8", "UTF-16", "UTF-16-marked-BE", "ISO-8859-1", "KOI8-R"]),
    is_indented=st.booleans(),
    namespace=st.sampled_from([None, "urn:memory"]),
)
def test_what_lxml_writes_is_read_back(
    pairs: list[tuple[str, str]], encoding: str, is_indented: bool, namespace: str | None
) -> None:
    prefix = f"{{{namespace}}}" if namespace else ""
    root = etree.Element(f"{prefix}tmx", nsmap={"m": namespace} if namespace else None)
    body = etree.SubElement(root, f"{prefix}body")
    for source, target in pairs:
        element = etree.SubElement(body, f"{prefix}tu")
        for language, text in (("de-DE", target), ("en-US", source)):
            variant = etree.SubElement(element, f"{prefix}tuv", {LANG: language})
            etree.SubElement(variant, f"{prefix}seg").text = text
    written = io.BytesIO()
    tree = etree.ElementTree(root)
    name = encoding.removesuffix("-marked-BE")
    tree.write(written, encoding=name, xml_declaration=True, pretty_print=is_indented)
    data = written.getvalue()
    if name != encoding:
        data = b"\xfe\xff" + data.decode("utf-16").encode("utf-16-be")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.txt"
        path.write_bytes(data)
        assert texts_of(read_pairs(path)) == pairs


def test_a_text_file_with_a_memory_is_a_memory() -> None:
    comments = "<!-- from <tmx> --><?tool a?>\n<!DOCTYPE tmx SYSTEM 'tmx14.dtd'>"
    path = write(unit(), name="memory.txt", head=f"\ufeff{comments}<tmx><body>\n")
    assert FORMATS["tmx"].recognises(sample_of(path))
    assert outcomes(read_pairs(path)) == [(3, "Dog")]


@pytest.mark.parametrize("text", ["<html>", "tmx", "A <tmx> is a file.", "<!-- <tmx>", "<" * 9999])
def test_other_text_is_not_a_memory(text: str) -> None:
    path = Path("text.tmx")
    path.write_text(f"{text}\n" * 20, encoding="utf-8")
    assert not FORMATS["tmx"].recognises(sample_of(path))


def test_comments_without_end_are_recognised_as_nothing() -> None:
    path = Path("text.txt")
    path.write_text("<!-- a --> " * 50_000 + "<!--", encoding="utf-8")
    assert not FORMATS["tmx"].recognises(sample_of(path))


def test_codes_are_left_out_and_marked_text_is_kept() -> None:
    source = (
        'A <bpt i="1">&lt;b title="<sub>Tip</sub>"></bpt>red<ept i="1">&lt;/b></ept> '
        '<hi type="x">old <ph>%s</ph></hi>dog<it pos="begin">[</it><ut>{1}</ut>.'
    )
    assert texts_of(read_pairs(write(unit(source)))) == [("A red old dog.", "Hund")]


def test_sections_references_comments_and_instructions_are_read() -> None:
    source = "<![CDATA[a & <b>]]> &amp; &#x44;<!-- no --><?no no?>og &lt;"
    assert texts_of(read_pairs(write(unit(source)))) == [("a & <b> & Dog <", "Hund")]


def test_a_unit_in_a_comment_is_not_a_unit() -> None:
    path = write(f"<!-- {unit('Cat')} -->", f"<!-- {unit('Cat')}", f"{unit('Cat')} -->", unit())
    assert outcomes(read_pairs(path)) == [(6, "Dog")]


def test_the_end_of_a_unit_may_be_text() -> None:
    path = write(unit("<![CDATA[</tu>]]>"), unit("<!-- </tu> -->Cat"))
    assert outcomes(read_pairs(path)) == [(3, "</tu>"), (4, "Cat")]


@pytest.mark.parametrize("num_bytes", [1, 2, 7, 1000])
def test_where_a_file_is_cut_into_pieces_does_not_matter(
    num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markup, "_PIECE_BYTES", num_bytes)
    marked = unit("Café").replace("<tu>", "<tu note=\"c/> d\" other='a > b'\n>")
    comment = "<!-- <tu> --><?tool </tu>?>"
    path = write(f"{comment}{marked}", unit("<![CDATA[</tu>]]>"), "<tu/>", unit("&"), unit("Cow"))
    assert outcomes(read_pairs(path)) == [
        (3, "Café"), (5, "</tu>"), (6, "untranslated"), (7, "syntax"), (8, "Cow"),
    ]  # fmt: skip


def test_lines_are_those_of_the_file_beyond_the_limit_of_the_parser() -> None:
    path = write(unit(), "\n" * 70_000, unit("Cat").replace("><", ">\n<"), unit("&"), unit("Cow"))
    # Lines 4 to 70,004 are blank, and the second unit has eight lines.
    assert outcomes(read_pairs(path)) == [
        (3, "Dog"), (70_005, "Cat"), (70_013, "syntax"), (70_014, "Cow"),
    ]  # fmt: skip


def test_memories_with_one_line_are_read_unit_by_unit() -> None:
    units = [unit(f"Dog {number}") for number in range(3000)]
    units[1500] = unit("A < B")
    path = Path("memory.tmx")
    path.write_text((HEAD + "".join(units) + TAIL).replace("\n", " "), encoding="utf-8")
    expected = [(1, f"Dog {number}") for number in range(3000)]
    expected[1500] = 1, "syntax"
    assert outcomes(read_pairs(path)) == expected


@pytest.mark.parametrize(
    "bad",
    ["a & b", "&x;", "a < b", "&#1;", "\x02", "</seg>", "<a>", '<a b="1" b="2"/>'],
)
@pytest.mark.parametrize("separator", ["", "\n"])
def test_only_the_unit_that_is_not_well_formed_is_lost(bad: str, separator: str) -> None:
    damaged = unit(f"A{separator}{bad}{separator}B")
    tail = f"<!-- &; -->{TAIL}"
    path = write(unit("Dog"), damaged, unit("Cat"), damaged, unit("Cow"), tail=tail)
    pairs = read_pairs(path)
    sources = [source for _, source in outcomes(pairs)]
    assert sources == ["Dog", "syntax", "Cat", "syntax", "Cow"]
    [first, _] = [pair for pair in pairs if isinstance(pair, BadPair)]
    assert first.line == 4
    assert bad in first.excerpt or separator  # the parser may find it in the next line


@pytest.mark.parametrize(
    "head",
    [
        '<?xml version="1.1"?>\n<tmx><body>',
        '\n<tmx xmlns="relative"><body>',
        '\n<tmx xmlns="not a URI"><body>',
        '\n<tmx><body a:b="c"><a:x>x</a:x>',
        '\n<tmx><body xml:id="1" xml:space="a"><x xml:id="1"/>',
    ],
)
def test_warnings_about_namespaces_and_versions_do_not_matter(head: str) -> None:
    damaged = unit("A < B")
    path = write(unit(), damaged, *[unit("<a:b/>Cat")] * 2000, damaged, unit(), head=head + "\n")
    sources = [source for _, source in outcomes(read_pairs(path))]
    assert sources == ["Dog", "syntax", *["Cat"] * 2000, "syntax", "Dog"]


def test_an_entity_of_an_outside_file_is_not_lost_in_silence() -> None:
    head = '<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx><body>\n'
    path = write(unit(), unit("Caf&eacute;"), unit("Cat"), head=head)
    assert outcomes(read_pairs(path)) == [(3, "Dog"), (4, "syntax"), (5, "Cat")]


def test_other_elements_and_prefixes_around_a_damaged_unit_are_kept() -> None:
    head = '<m:tmx xmlns:m="urn:m" xmlns:n="urn:n"><m:header srclang="*all*"/><m:body n:a="&lt;">\n'
    units = [unit(text).replace("<t", "<m:t").replace("</t", "</m:t").replace("seg", "m:seg")
             for text in ("Dog", "&", "<n:b/>Cat")]  # fmt: skip
    path = write(*units, head=head, tail="</m:body></m:tmx>")
    assert outcomes(read_pairs(path)) == [(2, "Dog"), (3, "syntax"), (4, "Cat")]


def test_bytes_that_are_no_text_stop_or_are_counted() -> None:
    path = write(unit(), unit("Caf\ue000"), unit("D\0g"), unit("Cat"))
    path.write_bytes(path.read_bytes().replace("\ue000".encode(), b"\xe9"))
    # <tu><tuv xml:lang="en"><seg>Caf has 31 bytes.
    with pytest.raises(DataError, match=r"memory\.tmx, line 4, byte 32: 0xe9 is not UTF-8"):
        read_pairs(path)
    pairs = read_pairs(path, skips_bad_bytes=True)
    assert outcomes(pairs) == [(3, "Dog"), (4, "bad_utf8"), (5, "nul"), (6, "Cat")]


def test_an_encoding_of_the_user_overrides_a_wrong_declaration() -> None:
    path = write(unit("Café"), head=HEAD.replace("UTF-8", "ISO-8859-1"))
    assert sample_of(path).encoding == "iso8859-1"
    assert sample_of(path, "utf-8").encoding == "utf-8"
    assert "Café" in sample_of(path, "utf-8").text


def test_a_declaration_of_utf_16_in_a_file_of_bytes_is_wrong() -> None:
    path = write(unit("Café"), head=HEAD.replace("UTF-8", "UTF-16"))
    assert texts_of(read_pairs(path)) == [("Café", "Hund")]


def test_compressed_memories_are_read() -> None:
    path = Path("memory.tmx.gz")
    path.write_bytes(gzip.compress(write(unit()).read_bytes()))
    assert texts_of(read_pairs(path)) == [("Dog", "Hund")]
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match="damaged or truncated"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("", r"line 4: Premature end of data in tag body"),
        ("</tmx>", r"line 4: Opening and ending tag mismatch: body and tmx"),
        ("<tu><tuv>", r"line 4: the file ends before the end of <tu>"),
        (TAIL + TAIL, r"line 5: Extra content at the end of the document"),
        ("<note>&x;</note>" + TAIL, r"line 4: Entity 'x' not defined"),
        ("<note>\n\n&</note>\n" + unit() + TAIL, r"line 6: xmlParseEntityRef: no name"),
        ("<a>" * 300, r"line 4: Excessive depth"),
    ],
)
def test_a_file_that_is_not_well_formed_is_an_error_with_its_line(tail: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_pairs(write(unit(), tail=tail))


def test_the_line_of_an_error_counts_from_the_start_of_the_file() -> None:
    with pytest.raises(DataError, match="line 6: Opening and ending tag mismatch: body and tmx"):
        read_pairs(write(unit(), unit("&"), unit("<"), tail="</tmx>"))


@pytest.mark.parametrize(
    "declaration",
    [
        '<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">',
        '<!ENTITY b SYSTEM "secret.txt">',
        '<!ENTITY % b SYSTEM "http://127.0.0.1:9/x">',
    ],
)
def test_files_that_declare_entities_are_not_read(declaration: str) -> None:
    Path("secret.txt").write_text("secret", encoding="utf-8")
    path = write(unit("&b;"), head=f"<!DOCTYPE tmx [{declaration}]>\n<tmx><body>\n")
    with pytest.raises(DataError, match=r"memory\.tmx, line 3: the file declares entities"):
        read_pairs(path)


HOSTILE = [
    ("<tu>", "<prop>many</prop>\n"),
    ("<tu>", "<a>deep"),
    ("<tu a='", "long "),
    ("<tu><!--", "comment "),
    ("", "<note/>\n"),
    ("", "<a:note/>\n"),
    ("<tu>", "<a:note/>"),
    ("<tu><tuv><seg>", "endless "),
    ("<tu><tuv><seg>a & b ", "endless "),
]
MEASURE = """
import gc, resource, sys
from pathlib import Path
from nmt.data.formats import FORMATS, layout_of
from nmt.data.formats.layout import Wanted
from nmt.data.formats.pair import ReadOptions
from nmt.errors import DataError
layout = layout_of(Path(sys.argv[1]), Wanted())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in sys.argv[2:]:
    number = 0
    try:
        [pairs] = FORMATS["tmx"].open(Path(name), layout, ReadOptions("en", "de")).columns
        for number, _ in enumerate(pairs, start=1):
            pass
    except DataError as error:
        print(number, error.problem)
    else:
        print(number)
    gc.collect()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def measured(*paths: Path) -> list[str]:
    """Return the number of pairs of each file, and its error; and last the growth in MiB."""
    command = [sys.executable, "-c", MEASURE, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return result.stdout.splitlines()


@pytest.mark.long
def test_memory_is_bounded_whatever_a_hostile_file_contains() -> None:
    paths = [write(unit())]
    for number, (start, middle) in enumerate(HOSTILE):
        path = Path(f"{number}.tmx")
        count = 20_000_000 // len(middle)
        path.write_text(HEAD + unit() + start + middle * count, encoding="utf-8")
        paths.append(path)
    *results, growth = measured(*paths)
    assert len(results) == len(HOSTILE)
    for path, result in zip(paths[1:], results, strict=True):
        assert result.startswith(f"1 {path}, line "), result
    assert int(growth) < 400


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_units() -> None:
    num_units = 100_000
    path = Path("large.tmx")
    group = f"<note/><a:a>{unit()}</a:a>\n"  # each with a warning
    path.write_text(HEAD + group * num_units + TAIL, encoding="utf-8")
    count, growth = measured(write(unit()), path)
    assert int(count) == num_units
    assert int(growth) < 50  # the tree has 150


def test_the_only_two_languages_are_taken_with_the_source_language_first() -> None:
    path = write(unit("Hund", "Dog", ("DE", "EN-us")))
    layout = layout_of(path, Wanted())
    assert layout.columns == ("EN-us", "DE")
    assert texts_of(read_pairs(path, None)) == [("Dog", "Hund")]
    assert texts_of(read_pairs(path, ("deu", "en"))) == [("Hund", "Dog")]


def test_the_older_attribute_of_languages_is_read() -> None:
    assert texts_of(read_pairs(write(unit().replace("xml:lang", "lang")))) == [("Dog", "Hund")]


def test_a_memory_of_several_languages_has_the_pairs_of_two_of_them() -> None:
    path = write(
        unit("Dog", "chien", ("en", "fr")),
        unit("Dog", "Hund", ("en-GB", "de")),
        unit("Hund", "chien", ("de", "fr")),
        unit("Cat", "", ("en-US", "de")),
        '<tu><tuv xml:lang="de"><seg>allein</seg></tuv></tu>',
        "<tu/>",
    )
    assert outcomes(read_pairs(path)) == [
        (4, "Dog"), (6, "Cat"), (7, "untranslated"), (8, "untranslated"),
    ]  # fmt: skip
    assert texts_of(read_pairs(path, ("fr", "de"))[:1]) == [("chien", "Hund")]
    with pytest.raises(
        DataError, match=r"certain which.* languages .* are en, fr, en-GB, de, en-US"
    ) as caught:
        read_pairs(path, None)
    # Two codes, such as en-US and de, would leave out the pairs of en-GB.
    assert str(caught.value.fix).startswith("Set both languages")
    with pytest.raises(DataError, match="certain which"):
        read_pairs(path, ("en", "it"))


def test_two_varieties_of_a_language_in_a_unit_have_to_be_named() -> None:
    three = unit().replace("</tu>", '<tuv xml:lang="en-GB"><seg>Hound</seg></tuv></tu>')
    path = write(three.replace('"en"', '"en-US"'))
    with pytest.raises(DataError, match=r"certain which.* are en-US, en-GB, de"):
        read_pairs(path)
    assert texts_of(read_pairs(path, ("en-GB", "de"))) == [("Hound", "Hund")]
    assert texts_of(read_pairs(path, None, columns=("en-US", "de"))) == [("Dog", "Hund")]
    with pytest.raises(DataError, match="certain which"):
        read_pairs(path, None, columns=("en", "de"))


def test_an_empty_memory_is_an_error() -> None:
    with pytest.raises(DataError, match="languages of its first units are unknown"):
        read_pairs(write())
