from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from nmt.config.flag import Flag, Options, changed, file_name, meanings_of


class Toy(Options):
    """Of a command.

    Args:
        place: A folder,
            which exists.
        pair: Two files: source and target.
    """

    place: Path | None = None
    files: Annotated[tuple[Path, ...], Flag("Some files.")] = ()
    names: tuple[str, ...] | None = None
    pair: tuple[Path, Path] | None = None
    set_: tuple[str, ...] = ()
    size: int = 3


def test_options_take_text_and_lists_in_place_of_paths_and_tuples() -> None:
    loose: dict[str, Any] = {
        "place": "a", "files": "b", "names": "cd", "pair": ["e", Path("f")], "set_": ["g=1", "h=2"],
    }  # fmt: skip
    assert Toy(**loose) == Toy(
        place=Path("a"), files=(Path("b"),), names=("cd",), pair=(Path("e"), Path("f")),
        set_=("g=1", "h=2"),
    )  # fmt: skip
    assert Toy(**loose | {"files": Path("b")}) == Toy(**loose)
    empty = Toy()
    assert (empty.place, empty.files, empty.names) == (None, (), None)


def test_changed_names_the_fields_that_differ_from_their_defaults() -> None:
    options = Toy(place=Path("a"), set_=("b=1",), size=3)
    assert changed(options) == ["place", "set"]
    assert changed(options, "names", "set_") == ["set"]


def test_the_meaning_of_a_field_is_its_text_under_args() -> None:
    assert meanings_of(Toy.__doc__) == {
        "place": "A folder, which exists.",
        "pair": "Two files: source and target.",
    }
    assert meanings_of(None) == {}


def test_an_empty_file_name_is_not_the_working_directory() -> None:
    assert file_name("a/b") == Path("a/b")
    with pytest.raises(ValueError, match="is empty"):
        file_name("")
