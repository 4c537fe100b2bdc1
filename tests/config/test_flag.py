from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from nmt.config.document import parse_document
from nmt.config.flag import Flag, Options, changed, file_name, meanings_of
from nmt.errors import ConfigError


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


def test_the_underscore_at_the_end_of_a_name_can_be_left_out() -> None:
    """It is there only where a name means something else in Python."""
    short: dict[str, Any] = {"set": ["b=1"]}
    assert Toy(**short) == Toy(set_=("b=1",))
    assert replace(Toy(**short), size=4) == Toy(set_=("b=1",), size=4)


def test_overrides_can_be_a_dictionary() -> None:
    values = {"a.b": 1e-05, "c": None, "d": [True, "no"], "e": {"f": Path("x y")}, "g": "2"}
    options: Any = {"set": values}
    for text in Toy(**options).set_:
        key, _, value = text.partition("=")
        expected = values[key] if key != "e" else {"f": "x y"}
        assert parse_document(value, name="x").values == expected


@pytest.mark.parametrize(("name", "nearest"), [("plaze", "place"), ("sett", "set"), ("z", "")])
def test_a_wrong_name_is_answered_with_the_nearest_and_all_names(name: str, nearest: str) -> None:
    wrong: dict[str, Any] = {name: "a"}
    with pytest.raises(ConfigError) as caught:
        Toy(**wrong)
    assert caught.value.problem == f"{name} is not a known option of Toy."
    hint = f"Did you mean {nearest}? " if nearest else ""
    assert caught.value.fix == f"{hint}Use one of place, files, names, pair, set, size."
