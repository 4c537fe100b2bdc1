"""JSON that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.files.json_file import MAX_DEPTH, field, parse_json, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=20)
@given(VALUES)
def test_ordinary_documents_are_read_as_by_the_standard_library(value: object) -> None:
    text = json.dumps(value)
    assert json.dumps(parse_json(text)) == json.dumps(json.loads(text))


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "[" * (MAX_DEPTH + 1)])
def test_deep_nesting_is_refused(text: str) -> None:
    """Finding 16."""
    with pytest.raises(ValueError, match="nested deeper than 100"):
        parse_json(text)


@pytest.mark.parametrize("text", ["9" * 400, "-" + "9" * 400, '{"a": [' + "9" * 5000 + "]}"])
def test_a_number_of_hundreds_of_digits_is_refused(text: str) -> None:
    """Finding 16."""
    with pytest.raises(ValueError, match=r"a whole number of [45][\d,]* digits"):
        parse_json(text)


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "1e999"])
def test_numbers_that_are_not_finite_are_refused_where_that_is_asked_for(text: str) -> None:
    parse_json(text)
    with pytest.raises(ValueError, match="is not finite"):
        parse_json(text, finite=True)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    assert read_json(tmp_path / "a.json", max_bytes=9) == [1, 2, 3]
    with pytest.raises(ValueError, match="larger than 8 bytes"):
        read_json(tmp_path / "a.json", max_bytes=8)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "size is missing"),
        ({"size": "3"}, "size should be a whole number, not a text"),
        ({"size": True}, "size should be a whole number, not true or false"),
        ([], "the document should be an object, not a list"),
    ],
)
def test_a_wrong_field_is_named(document: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        field(document, "size", kind=int)
