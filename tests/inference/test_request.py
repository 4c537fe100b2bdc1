"""JSON lines in: what they mean, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.inference.request import RESULT_FIELDS, Request, Result, TokenScore, parse_request

RESERVED = {"low_confidence", "prefix", "required", "forbidden", "error", *RESULT_FIELDS}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
OTHERS = st.dictionaries(st.text().filter(lambda name: name not in RESERVED), VALUES, max_size=4)


@given(
    others=OTHERS,
    source=st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])),
)
def test_unknown_fields_pass_through(others: dict[str, Any], source: str) -> None:
    line = json.dumps({**others, "source": source})
    assert parse_request(line, 1) == Request(source, others=others)


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ('{"source": "Ein Hund.", "prefix": "A", "required": ["dog"], "forbidden": ["cat", "x"]}',
         Request("Ein Hund.", "A", ("dog",), ("cat", "x"))),
        ("", Request("")),
        ("  ", Request("")),
        ('{"source": "a\\r\\nb\\n"}', Request("a b")),  # a line break does not make two lines
        ('{"source": "a\\u2028b\\u0085c\\fd"}', Request("a\u2028b\x85c\fd")),  # others are text
    ],
)  # fmt: skip
def test_lines_are_read(line: str, request_: Request) -> None:
    assert parse_request(line, 1) == request_


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("Ein Hund.", "Line 7 is not JSON (Expecting value, at column 1)"),
        ("[" * 10**5, "Line 7 cannot be read as JSON"),
        ('{"source": "a", "id": ' + "9" * 5000 + "}", "Line 7 cannot be read as JSON"),
        ('{"source": "a"', "Line 7 is not JSON"),
        ('{"source": "a", "x": NaN}', "Line 7 cannot be read as JSON (NaN is not finite"),
        ('{"source": "a", "x": 1e400}', "Line 7 cannot be read as JSON (1e400 is not finite"),
        ('["a"]', "Line 7 holds no JSON object"),
        ('{"text": "a"}', "Line 7 has no text in source"),
        ('{"source": 3}', "Line 7 has no text in source"),
        ('{"source": "a", "prefix": ["b"]}', "Line 7 has no text in prefix"),
        ('{"source": "a", "required": "b"}', "Line 7 has no list of texts in required"),
        ('{"source": "a", "forbidden": [1]}', "Line 7 has no list of texts in forbidden"),
    ],
)
def test_what_is_no_request_is_refused_with_its_line(line: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_request(line, 7)
    assert caught.value.problem.startswith(problem)
    assert '{"source": ' in caught.value.fix
    assert not problem.endswith("required") or getattr(caught.value, "others", {}) == {
        "source": "a"
    }


def test_no_field_of_a_request_looks_like_one_of_the_answer() -> None:
    """Its own ``error`` would look as if the line had failed, its ``translation`` as if not."""
    every = Result(
        "a", "b", 0.0, alignment=(), attention=(), tokens=(TokenScore("b", 0.0),), confidence=1.0
    )
    assert every.as_dict().keys() == RESULT_FIELDS
    own = dict.fromkeys(["error", "id", *RESULT_FIELDS], "theirs") | {"source": "a"}
    request = parse_request(json.dumps(own), 1)
    assert request.others == {"id": "theirs"}
