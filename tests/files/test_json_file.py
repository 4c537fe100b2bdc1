"""JSON that anybody may have written, and manifests: what was written is read, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import CheckpointError
from nmt.files.json_file import (
    FORMAT_VERSION,
    MANIFEST,
    MAX_DEPTH,
    Manifest,
    UnknownFormatError,
    field,
    parse_json,
    read_json,
    sha256_of_json,
)  # fmt: skip
from tests.examples import FEW

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@FEW
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
    with pytest.raises(ValueError, match=r"has [45][\d,]* digits"):
        parse_json(text)


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "1e999"])
def test_numbers_that_are_not_finite_are_refused_on_request(text: str) -> None:
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
        ({"size": "3"}, "size must be a whole number, not a string"),
        ({"size": True}, "size must be a whole number, not true or false"),
        ([], "the document must be an object, not a list"),
    ],
)
def test_a_wrong_field_is_named(document: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        field(document, "size", kind=int)


def folder_with(folder: Path, **files: bytes) -> Manifest:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    manifest = Manifest.of(folder, files, step=7)
    (folder / MANIFEST).write_text(manifest.text(), encoding="utf-8")
    return manifest


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    manifest = folder_with(tmp_path, weights=b"12345", state=b"{}")
    found = Manifest.read(tmp_path)
    assert (found, found.text()) == (manifest, manifest.text())
    assert list(json.loads(manifest.text())) == sorted(json.loads(manifest.text()))
    assert manifest.files["weights"].size == 5
    manifest.verify(tmp_path)


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    """FAULT 10, for the manifest itself: only white space may change unnoticed."""
    folder = tmp_path_factory.mktemp("manifest")
    manifest = folder_with(folder, weights=b"12345")
    content = bytearray((folder / MANIFEST).read_bytes())
    content[position % len(content)] ^= 1 << bit
    (folder / MANIFEST).write_bytes(content)
    try:
        found = Manifest.read(folder)
    except UnknownFormatError:
        raise  # would mean that another release wrote it
    except CheckpointError:
        return
    assert found == manifest


def test_a_newer_format_is_named_with_the_release_that_wrote_it(tmp_path: Path) -> None:
    """FAULT 16."""
    folder_with(tmp_path)
    newer = Manifest(FORMAT_VERSION + 1, "9.8.7", 7, {})
    (tmp_path / MANIFEST).write_text(newer.text(), encoding="utf-8")
    with pytest.raises(UnknownFormatError, match="a different format version: 2") as caught:
        Manifest.read(tmp_path)
    assert "nmt 9.8.7" in caught.value.fix


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"sha256": 1}', '"text"', "\x00\xff", "[" * 9, "1", "[" * 200_000,
     '{"step": ' + "9" * 400 + "}"],
)  # fmt: skip
def test_other_contents_are_reported_as_damage(tmp_path: Path, text: str) -> None:
    """Finding 16."""
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        Manifest.read(tmp_path)
    (tmp_path / MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: ") as caught:
        Manifest.read(tmp_path)
    assert caught.value.exit_code == 4


def write(folder: Path, **changes: object) -> None:
    """A manifest whose own hash is right, whatever else it says."""
    values = {"format_version": 1, "package_version": "0.1.0", "step": 7, "files": {}, **changes}
    (folder / MANIFEST).write_text(json.dumps({**values, "sha256": sha256_of_json(values)}))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"files": []}, "files: Input should be a valid"),
        ({"files": {"a": {"size": 3}}}, r"files\.a\.sha256: Field required"),
        ({"files": {"a": {"size": -3, "sha256": "0" * 64}}}, r"files\.a\.size: Input should"),
        ({"step": -7}, "step: Input should be greater"),
        ({"package_version": None}, "package_version: Input should be a valid string"),
    ],
)
def test_a_wrong_field_of_a_manifest_is_named(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    """Finding 16."""
    write(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=field):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "", "..", "a\0b", "..\\x", "C:x"]
)
def test_a_name_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Finding 16."""
    write(tmp_path, files={name: {"size": 3, "sha256": "0" * 64}})
    with pytest.raises(CheckpointError, match="is not inside the folder"):
        Manifest.read(tmp_path)


def test_damage_names_the_file_and_what_was_expected_and_found(tmp_path: Path) -> None:
    """FAULT 10."""
    manifest = folder_with(tmp_path, weights=b"12345", state=b"{}")
    expected = manifest.files["weights"].sha256[:12]
    (tmp_path / "weights").write_bytes(b"12346")
    found = Manifest.of(tmp_path, ["weights"], 7).files["weights"].sha256[:12]
    with pytest.raises(CheckpointError, match=f"weights has sha256 {found}.*{expected}"):
        manifest.verify(tmp_path)
    (tmp_path / "weights").write_bytes(b"1234")
    with pytest.raises(CheckpointError, match="weights has 4 bytes; expected 5"):
        manifest.verify(tmp_path)
    (tmp_path / "weights").unlink()
    with pytest.raises(CheckpointError, match="weights is missing"):
        manifest.verify(tmp_path)
    manifest.verify(tmp_path, ["state"])
    with pytest.raises(CheckpointError, match="unlisted is missing"):
        manifest.verify(tmp_path, ["unlisted"])


def test_the_fix_of_a_damaged_checkpoint_is_another_checkpoint(tmp_path: Path) -> None:
    """A run has several; of a model folder there is only a copy elsewhere."""
    for name, has_others in (("state.json", True), ("weights", False)):
        manifest = folder_with(tmp_path, **{name: b"{}"})
        (tmp_path / name).unlink()
        with pytest.raises(CheckpointError) as caught:
            manifest.verify(tmp_path)
        assert ("`checkpoint`" in caught.value.fix) == has_others
