"""JSON lines, and what to do with other JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.errors import DataError
from tests.data.formats.reading import outcomes, read_pairs, texts_of
from tests.process import LIMIT


@pytest.mark.parametrize("indent", [None, 2])
def test_the_command_in_the_error_about_an_array_makes_json_lines_of_it(indent: int | None) -> None:
    records = [{"de": "schön", "en": "nice"}, {"de": "ein\nHaus", "en": "a house"}]
    path = Path("t.json")
    path.write_text(json.dumps(records, indent=indent, ensure_ascii=False), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    _, _, command = str(caught.value.fix).partition("run: ")
    subprocess.run(command.replace("FILE", "t.json"), shell=True, check=True, timeout=LIMIT)
    expected = [("nice", "schön"), ("a house", "ein Haus")]
    assert texts_of(read_pairs(Path("t.json.jsonl"))) == expected


def test_the_first_objects_may_lack_a_text() -> None:
    records = [
        {"translation": {"en": "nice"}},
        {"translation": {"en": "a house", "de": "ein Haus"}},
    ]
    path = Path("t.jsonl")
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    assert outcomes(read_pairs(path)) == [(1, "columns"), (2, "a house")]


def test_the_command_in_the_error_about_a_list_in_an_object_writes_its_objects_as_lines() -> None:
    path = Path("t.json")
    path.write_text(json.dumps({"rows": [{"en": "nice", "de": "schön"}] * 2}), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    _, _, command = str(caught.value.fix).partition("with a list: ")
    command, _, _ = command.partition("\n")
    subprocess.run(command.replace("FILE", "t.json"), shell=True, check=True, timeout=LIMIT)
    assert texts_of(read_pairs(Path("t.json.jsonl"))) == [("nice", "schön")] * 2


def test_the_command_in_the_error_about_an_object_writes_its_texts_as_lines() -> None:
    path = Path("t.json")
    path.write_text(json.dumps({"a": "ein\nHaus", "b": "schön"}, indent=2), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    _, _, command = str(caught.value.fix).partition("each text on a line: ")
    subprocess.run(command.replace("FILE", "t.json"), shell=True, check=True, timeout=LIMIT)
    assert Path("t.json.txt").read_text("utf-8") == "ein Haus\nschön\n"


@pytest.mark.parametrize("columns", [list, lambda texts: {str(n): x for n, x in enumerate(texts)}])
def test_the_command_in_the_error_about_columns_writes_a_pair_on_each_line(
    columns: Callable[[list[str]], object],
) -> None:
    """`to_dict` and `to_json` of pandas write a list or an object for each language."""
    path = Path("t.json")
    texts = {"en": columns(["nice", "a house"]), "de": columns(["schön", "ein Haus"])}
    path.write_text(json.dumps(texts), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    _, _, command = str(caught.value.fix).partition("this command does: ")
    subprocess.run(command.replace("FILE", "t.json"), shell=True, check=True, timeout=LIMIT)
    expected = [("nice", "schön"), ("a house", "ein Haus")]
    assert texts_of(read_pairs(Path("t.json.jsonl"))) == expected
