from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config.loader import MAX_BYTES, dump_document, parse_document, read_document
from nmt.errors import ConfigError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False),
    st.text(),
    st.sampled_from(
        ["no", "yes", "on", "null", "~", "1e5", "1:30", "0x1f", "0o17", "2026-11-21", "1_000", "="]
    ),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, name="a.yaml")
    return caught.value


@settings(max_examples=50)
@given(st.dictionaries(st.text(), VALUES))
def test_what_is_dumped_is_read_back_to_equal_values(values: dict[str, Any]) -> None:
    assert parse_document(dump_document(values), name="x").values == values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("true", True),
        ("5e-4", 5e-4),
        ("1e5", 100_000),
        ("2_000_000", 2_000_000),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("2026-11-21", "2026-11-21"),
        ("'5'", "5"),
        ("~", None),
        ("-3", -3),
        ("1e500", float("inf")),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_document(f"key: {text}", name="x").values["key"]

    assert found == value
    assert type(found) is type(value)


def test_every_value_remembers_its_line() -> None:
    document = parse_document("a: 1\nb:\n  c:\n    - x\n    - y\n", name="x")

    assert document.lines["a",] == 1
    assert document.lines["b", "c"] == 3
    assert document.lines["b", "c", 1] == 5


def test_a_duplicate_key_names_both_lines() -> None:
    """FAULTS 48."""
    error = refusal("training:\n  seed: 1\n  max_steps: 3\n  seed: 2\n")

    assert "a.yaml:4: the key training.seed was given on line 2 already" in error.problem


def test_a_tag_that_builds_an_object_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    """FAULTS 48."""
    victim = tmp_path / "made"
    error = refusal(f"name: x\nseed: !!python/object/apply:os.mkdir ['{victim}']\n")

    assert "a.yaml:2: the tag !!python/object/apply:os.mkdir is refused" in error.problem
    assert not victim.exists()


@pytest.mark.parametrize(
    "text", ["!!python/name:os.system x", "!!set {a}", "!mine 3", "!!binary aGk=", "!!timestamp x"]
)
def test_any_other_tag_is_refused(text: str) -> None:
    """FAULTS 48."""
    assert "is refused" in refusal(f"key: {text}").problem


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    """FAULTS 48: nine levels of nine references would be 387 million values."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]

    assert "aliases expand too far" in refusal("\n".join(lines)).problem


def test_an_alias_to_itself_is_refused() -> None:
    """FAULTS 48."""
    assert "aliases expand too far" in refusal("a: &a [*a]").problem


def test_an_honest_alias_works() -> None:
    values = parse_document("a: &x {path: p}\nb: *x\n", name="x").values

    assert values == {"a": {"path": "p"}, "b": {"path": "p"}}


def test_a_tab_names_its_line_and_the_remedy() -> None:
    """FAULTS 48."""
    error = refusal("training:\n\tseed: 1\n")

    assert "a.yaml:2: found a tab" in error.problem
    assert "spaces" in error.fix


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "- a\nb: c", "a: 'x", "\x00", "a: *nowhere", "--- a\n--- b"]
)
def test_broken_yaml_is_one_refusal(text: str) -> None:
    assert "a.yaml" in refusal(text).problem


def test_deep_nesting_is_refused() -> None:
    """FAULTS 48."""
    assert "nested too deeply" in refusal("[" * 5000).problem


def test_a_key_must_be_plain_text() -> None:
    assert "a key must be plain text" in refusal("? [a, b]\n: 1\n").problem


def test_a_number_of_ten_thousand_digits_stays_text() -> None:
    assert parse_document(f"a: {'9' * 10_000}", name="x").values["a"] == "9" * 10_000


def test_a_huge_file_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    """FAULTS 48."""
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100 * MAX_BYTES)  # sparse: takes no room on the disk

    with pytest.raises(ConfigError, match="larger than"):
        read_document(path)


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_document(tmp_path / name)

    assert str(tmp_path / name) in caught.value.problem
    assert "configs/" in caught.value.fix


def test_a_byte_order_mark_is_stripped_and_bad_utf8_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_document(path).values == {"name": "x"}

    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match="byte 6 is not UTF-8"):
        read_document(path)
