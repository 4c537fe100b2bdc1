from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config.loader import MAX_BYTES, dump_document, parse_document, read_document
from nmt.errors import ConfigError

LOOK_ALIKES = ["no", "yes", "on", "null", "~", "1e5", "1:30", "0x1f", "2026-11-21", "1_000", "="]
SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(allow_nan=False)),
    *(st.text(), st.sampled_from(LOOK_ALIKES)),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@settings(max_examples=25)
@given(st.dictionaries(st.text(), VALUES))
def test_what_is_dumped_is_read_back_to_equal_values(values: dict[str, Any]) -> None:
    assert parse_document(dump_document(values), name="x").values == values


@pytest.mark.parametrize(("text", "value"), [
    ("no", "no"), ("yes", "yes"), ("true", True), ("5e-4", 5e-4), ("1e5", 100_000),
    ("2_000_000", 2_000_000), (".5", 0.5), ("1:30", "1:30"), ("2026-11-21", "2026-11-21"),
    ("'5'", "5"), ("~", None), ("-3", -3), ("1e500", float("inf")), ("9" * 10_000, "9" * 10_000),
])  # fmt: skip
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_document(f"key: {text}", name="x").values["key"]
    assert found == value
    assert type(found) is type(value)


def test_every_value_remembers_its_line() -> None:
    lines = parse_document("a: 1\nb:\n  c:\n    - x\n    - y\n", name="x").lines
    assert (lines["a",], lines["b", "c"], lines["b", "c", 1]) == (1, 3, 5)


# Nine levels of nine references would be 387 million values.
BOMB = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
BOMB += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("training:\n  seed: 1\n  max_steps: 3\n  seed: 2\n",
         "a.yaml:4: the key training.seed was given on line 2 already"),
        ("x: 1\nseed: !!python/object/apply:os.mkdir ['made']\n",
         "a.yaml:2: the tag !!python/object/apply:os.mkdir is refused"),
        ("key: !!set {a}", "is refused"),
        ("key: !!binary aGk=", "is refused"),
        ("\n".join(BOMB), "aliases expand, too far"),
        ("a: &a [*a]", "aliases expand, too far"),
        ("training:\n\tseed: 1\n", "a.yaml:2: found a tab"),
        ("[" * 1000, "nested too deeply"),
        ("? [a, b]\n: 1\n", "a key must be plain text"),
        ("a: [1", "this is not YAML"),
        ("\x00", "a.yaml: "),
        ("a: *nowhere", "this is not YAML"),
        ("--- a\n--- b", "this is not YAML"),
    ],
)  # fmt: skip
def test_hostile_and_broken_text_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """FAULTS 48: and nothing in it runs."""
    with pytest.raises(ConfigError) as caught:
        parse_document(text, name="a.yaml")
    assert "a.yaml" in caught.value.problem
    assert problem in caught.value.problem
    assert ("tab" in problem) == ("spaces" in caught.value.fix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"name: \xff\n", "byte 6 is not UTF-8"),
        (b"x" * (MAX_BYTES + 1), "is larger than 1,048,576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    """FAULTS 48."""
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_document(path)
    assert str(path) in caught.value.problem


def test_a_byte_order_mark_is_stripped_and_an_honest_alias_works(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: &x {path: p}\nb: *x\n")
    assert read_document(path).values == {"a": {"path": "p"}, "b": {"path": "p"}}
