from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import polib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.formats import FORMATS, layout_of, sample_of
from nmt.data.formats.layout import Wanted
from nmt.errors import DataError
from nmt.files.encoding import declared_encoding
from tests.data.formats.reading import outcomes, read_pairs, texts_of

HEADER = 'msgid ""\nmsgstr ""\n"Language: de\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
# Without the characters that a reader of one line replaces.
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1
)


@given(
    pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5, unique_by=lambda pair: pair[0]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    width=st.sampled_from([20, 78]),
)
def test_what_polib_writes_is_read_back(
    pairs: list[tuple[str, str]], encoding: str, width: int
) -> None:
    catalogue = polib.POFile(wrapwidth=width)
    catalogue.metadata = {"Language": "de", "Content-Type": "text/plain; charset=utf-8"}
    for source, target in pairs:
        catalogue.append(polib.POEntry(msgid=source, msgstr=target, comment="a note"))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "de.po"
        path.write_text(str(catalogue), encoding=encoding)
        assert texts_of(read_pairs(path)) == pairs
        assert layout_of(path, Wanted()).languages == (None, "de")


def write(text: str, name: str = "de.po") -> Path:
    """Write a catalogue."""
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_text_file_with_a_catalogue_is_a_catalogue() -> None:
    path = write(f'# Note\n{HEADER}msgid "Dog"\nmsgstr "Hund"\n', "messages.txt")
    assert FORMATS["po"].recognises(sample_of(path))
    assert not FORMATS["po"].recognises(sample_of(write("msgid is a word.\n", "text.po")))


def test_unfinished_entries_are_counted_and_plurals_have_their_first_form() -> None:
    path = write(
        HEADER
        + '#, fuzzy\n#| msgid "Cog"\nmsgid "fuzzy"\nmsgstr "x"\n\n'
        + 'msgid "untranslated"\nmsgstr ""\n\n'
        + '#: file.c:1\nmsgctxt "animal"\nmsgid ""\n"one "\n"dog"\nmsgid_plural "%d dogs"\n'
        + 'msgstr[0] "ein Hund"\nmsgstr[1] "%d Hunde"\n\n'
        + '#~ msgid "obsolete"\n#~ msgstr "alt"\n#~ "modisch"\n'
        + 'msgid "tab\\tand \\"quotes\\""\nmsgstr "Zeile\\nfolgt"\n'
    )
    assert outcomes(read_pairs(path)) == [
        (6, "untranslated"), (11, "untranslated"), (14, "one dog"), (23, "untranslated"),
        (26, 'tab\tand "quotes"'),
    ]  # fmt: skip
    assert read_pairs(path)[2][1] == "ein Hund"
    assert read_pairs(path)[4][1] == "Zeile folgt"


def test_entries_need_no_blank_lines_around_them_and_may_contain_some() -> None:
    text = 'msgid "Dog"\nmsgstr "Hund"\nmsgid "Cat"\n\nmsgstr "Katze"\n# end\n'
    assert texts_of(read_pairs(write(text))) == [("Dog", "Hund"), ("Cat", "Katze")]


@pytest.mark.parametrize(
    "bad",
    [
        'msgid "a"b"\nmsgstr "x"',
        'msgid "a\nmsgstr "x"',
        "msgid a\nmsgstr b",
        'msgid "a"\nmsgstr',
        'msgid "Mouse\nmsgstr "Maus"',
        'msgid "Mouse"\nmsgstr "Maus',
    ],
)
def test_only_the_entry_with_wrong_syntax_is_lost(bad: str) -> None:
    text = f'msgid "Dog"\nmsgstr "Hund"\n\n{bad}\n\nmsgctxt "x"\nmsgid "Cat"\nmsgstr "Katze"\n'
    assert outcomes(read_pairs(write(text))) == [(1, "Dog"), (4, "syntax"), (7, "Cat")]


def test_lines_that_are_no_text_are_counted() -> None:
    path = write('msgid "Dog"\nmsgstr "Hund"\n\nmsgid "Caf\ue000"\nmsgstr "x"\n')
    path.write_bytes(path.read_bytes().replace("\ue000".encode(), b"\xe9"))
    with pytest.raises(DataError, match="line 4, byte 11: 0xe9"):
        read_pairs(path)
    assert outcomes(read_pairs(path, skips_bad_bytes=True)) == [(1, "Dog"), (4, "bad_utf8")]


@pytest.mark.long
def test_an_entry_that_is_too_long_is_not_kept_in_memory() -> None:
    text = 'msgid "Dog"\nmsgstr "Hund"\nmsgid ""\n' + '"long"\n' * 200_000 + 'msgstr "x"\n'
    path = write(text + 'msgid "Cat"\nmsgstr "Katze"\n')
    assert outcomes(read_pairs(path)) == [(1, "Dog"), (3, "characters"), (200_005, "Cat")]


def test_the_header_names_encoding_and_languages() -> None:
    header = HEADER.replace("UTF-8", "ISO-8859-1").replace("de", "de_AT")
    path = write(f'{header}msgid "coffee"\nmsgstr "Kaffé"\n')
    path.write_bytes(path.read_text("utf-8").encode("latin-1"))
    assert texts_of(read_pairs(path, ("en", "de"))) == [("coffee", "Kaffé")]
    assert texts_of(read_pairs(path, ("de", "en"))) == [("Kaffé", "coffee")]
    with pytest.raises(DataError, match=r"certain which .* are source, de_AT"):
        read_pairs(path, ("en", "fr"))
    both = HEADER.replace('"Content', '"X-Source-Language: fr\\n"\n"Content')
    path = write(f'{both}msgid "chien"\nmsgstr "Hund"\n')
    assert layout_of(path, Wanted()).languages == ("fr", "de")


def test_a_template_has_no_encoding_and_no_translation() -> None:
    path = write(f'{HEADER.replace("UTF-8", "CHARSET")}msgid "Dog"\nmsgstr ""\n', "a.pot")
    assert outcomes(read_pairs(path)) == [(6, "untranslated")]


def test_a_catalogue_does_not_open_other_files() -> None:
    write('msgid "secret"\nmsgstr "x"\n', "secret.po")
    with pytest.raises(DataError, match="languages of its first units are unknown"):
        read_pairs(write("secret.po"))


@pytest.mark.parametrize("quotes", ['"a" ' * 50_000, '"a"\n' * 50_000])
def test_a_header_of_many_quotes_has_no_encoding(quotes: str) -> None:
    assert declared_encoding(f'msgid ""\nmsgstr ""\n{quotes}'.encode()) is None
