"""Tables as programs and spreadsheets write them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.data.formats import layout_of
from nmt.data.formats.layout import Wanted
from nmt.errors import DataError
from tests.data.formats.reading import outcomes, read_pairs, texts_of

PAIRS = [(f"I see {number} dogs.", f"Ich sehe {number} Hunde.") for number in range(2, 42)]
# No line breaks but LF, which becomes a space, and no NUL, which is a reason to drop a pair.
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\x85\u2028\u2029"), min_size=1
)


def write(
    path: Path, rows: Sequence[Sequence[object]], delimiter: str = ",", encoding: str = "utf-8"
) -> Path:
    """Write a table as a spreadsheet does: with quotes where they are needed."""
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
@example(pairs=[(" ", " ")])
def test_what_a_writer_of_csv_has_written_is_read_back(
    delimiter: str, pairs: list[tuple[str, str]]
) -> None:
    path = write(Path("t.csv"), [("en", "de"), *pairs], delimiter)
    expected = [(source.replace("\n", " "), target.replace("\n", " ")) for source, target in pairs]
    assert texts_of(read_pairs(path)) == expected


@pytest.mark.parametrize(
    ("header", "order"),
    [
        (("English", "German"), (0, 1)),
        (("EN", "DE"), (0, 1)),
        (("deu_Latn", "eng_Latn"), (1, 0)),
        (("de_DE", "en_US"), (1, 0)),
        (("source", "target"), (0, 1)),
        (("tgt", "src"), (1, 0)),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_a_header_names_the_columns_and_is_no_pair(
    header: tuple[str, str], order: tuple[int, int], name: str
) -> None:
    delimiter = "\t" if name.endswith("tsv") else ","
    rows = [[pair[side] for side in order] for pair in PAIRS]
    path = write(Path(name), [header, *rows], delimiter)
    pairs = read_pairs(path)
    assert texts_of(pairs) == PAIRS
    assert pairs[0].line == 2  # of the file


@pytest.mark.parametrize("has_header", [False, True])
def test_the_line_that_names_the_delimiter_for_excel_is_no_pair(has_header: bool) -> None:
    header = [("en", "de")] if has_header else []
    path = write(Path("t.csv"), [*header, *PAIRS], ";")
    path.write_text(f"sep=;\n{path.read_text('utf-8')}", "utf-8")
    pairs = read_pairs(path)
    assert texts_of(pairs) == PAIRS
    assert pairs[0].line == 2 + has_header


def test_a_column_of_numbers_is_left_out_and_shows_that_the_first_row_is_a_header() -> None:
    rows = [(number, *pair) for number, pair in enumerate(PAIRS)]
    assert texts_of(read_pairs(write(Path("t.csv"), rows))) == PAIRS
    with_header = write(Path("u.csv"), [("Nr", "Original", "Translation"), *rows])
    assert texts_of(read_pairs(with_header)) == PAIRS
    # `id` is the code of Indonesian, but not the name of a column of numbers.
    named = write(Path("v.csv"), [("id", "English", "German"), *rows])
    assert texts_of(read_pairs(named, None)) == PAIRS


@pytest.mark.parametrize("sides", [("src", "tgt"), ("SRC", "trg"), ("source", "target")])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_names_of_sides_name_no_languages(sides: tuple[str, str], name: str) -> None:
    path = Path(name)
    if name == "t.csv":
        write(path, [sides, *PAIRS])
    else:
        path.write_text(json.dumps(dict(zip(sides, PAIRS[0], strict=True))), encoding="utf-8")
    assert layout_of(path, Wanted()).languages == (None, None)


def test_licences_are_no_text_and_three_columns_of_text_are_a_question() -> None:
    licence = "CC-BY 2.0 (France) Attribution: tatoeba.org #"
    rows = [(*pair, f"{licence}{number}") for number, pair in enumerate(PAIRS)]
    assert texts_of(read_pairs(write(Path("t.tsv"), rows, "\t"))) == PAIRS
    rows = [(*pair, f"{pair[0][::-1]}") for pair in PAIRS]
    path = write(Path("u.tsv"), rows, "\t")
    with pytest.raises(DataError, match=r"0: I see 2 dogs\., 1: Ich sehe 2 Hunde\., 2:") as caught:
        read_pairs(path)
    assert "`columns`" in str(caught.value.fix)
    assert texts_of(read_pairs(path, columns=(0, 1))) == PAIRS


def test_columns_are_named_or_numbered() -> None:
    rows = [(target, number, source) for number, (source, target) in enumerate(PAIRS)]
    path = write(Path("t.csv"), [("original", "n", "ours"), *rows])
    assert texts_of(read_pairs(path, columns=("ours", "original"))) == PAIRS
    with pytest.raises(DataError, match="no column theirs"):
        read_pairs(path, columns=("theirs", "original"))
    with pytest.raises(DataError, match="no column 7"):
        read_pairs(path, columns=(7, 0))


@pytest.mark.parametrize("header", ["en,de\n", ""])
def test_a_sentence_that_a_comma_without_quotes_splits_is_not_cut(header: str) -> None:
    path = Path("t.csv")
    rows = "I see dogs.,Ich sehe Hunde.\n" * 3 + "I see.,Ich sehe, dass.\n" + "No.,Nein.,\n"
    path.write_text(header + rows, encoding="utf-8")
    first = len(header.splitlines()) + 1
    found = outcomes(read_pairs(path))
    assert found[3:] == [(first + 3, "columns"), (first + 4, "No.")]


@pytest.mark.parametrize(
    ("lines", "source"),
    [
        (['"""Yes"", she said."\tJa.'], '"Yes", she said.'),  # of a spreadsheet
        (['"Yes," she said.\tJa.'], '"Yes," she said.'),  # of a text
        (['"Yes."\t"Ja."'], '"Yes."'),  # not certain, and a text does not lose anything
    ],
)
def test_quotes_in_tsv_are_those_of_a_spreadsheet_only_if_they_are_doubled(
    lines: list[str], source: str
) -> None:
    path = Path("t.tsv")
    path.write_text("".join(f"{line}\n" for line in [*lines, "No.\tNein."]), encoding="utf-8")
    assert texts_of(read_pairs(path))[0][0] == source


def test_a_row_without_the_columns_is_counted_with_its_line() -> None:
    path = Path("t.tsv")
    rows = [*("\t".join(pair) for pair in PAIRS), "no tab", "", "a\tb"]
    path.write_text("\n".join(rows), encoding="utf-8")
    *_, short, blank, last = outcomes(read_pairs(path))
    assert (short, blank, last) == ((41, "columns"), (42, ""), (43, "a"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_believed(encoding: str) -> None:
    path = write(Path("t.csv"), [("English", "German"), *PAIRS], ";", encoding)
    assert texts_of(read_pairs(path)) == PAIRS
    layout = layout_of(path, Wanted())
    assert layout.delimiter == ";"
    assert layout.languages == ("en", "de")


def test_a_file_of_carriage_returns_has_lines() -> None:
    path = Path("t.tsv")
    path.write_bytes("".join("\t".join(pair) + "\r" for pair in PAIRS).encode())
    assert texts_of(read_pairs(path)) == PAIRS


@pytest.mark.parametrize("open_row", ['"a" x,b', '"a,b', 'a,"b', '"'])
@pytest.mark.parametrize("later", ["c,d", '"c, c",d', '"c ""c""",d', '"c\nc",d'])
def test_a_row_whose_quotes_do_not_match_is_counted_with_its_line_and_no_other_is_lost(
    open_row: str, later: str
) -> None:
    """Also if the quotes of a later row close it, or if none does."""
    others = [later, *(f"x{number},{'y' * 1000}" for number in range(200))]
    path = Path("t.csv")
    path.write_text("\n".join(["en,de", "a,b", open_row, *others, ""]), encoding="utf-8")
    first, bad, *rest = outcomes(read_pairs(path, columns=(0, 1)))
    assert (first, bad) == ((2, "a"), (3, "syntax"))
    assert len(rest) == len(others)
    assert rest[0] == (4, next(csv.reader([later]))[0].replace("\n", " "))
    assert rest[-1] == (path.read_text("utf-8").count("\n"), "x199")
