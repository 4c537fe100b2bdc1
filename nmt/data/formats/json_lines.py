"""JSON lines: one object per line with a text for each language, or for source and target."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nmt.data.formats.columns import code_of_name, named_columns
from nmt.data.formats.layout import Format, Layout, Sample, UncertainError, Wanted
from nmt.data.formats.pair import (
    BadPair,
    Pair,
    PairReader,
    ReadOptions,
    SentencePair,
    pair_of,
    tagged,
)
from nmt.data.formats.text import TextFile, shown_path
from nmt.errors import DataError

_EXCERPT = 80  # characters
_FROM_ARRAY = "python3 -c 'import json, sys; [print(json.dumps(x)) for x in json.load(sys.stdin)]'"
_FROM_ARRAY += " < FILE > FILE.jsonl"
_FROM_OBJECT = "python3 -c 'import json, sys; [print(*str(x).split()) for x in "
_FROM_OBJECT += "json.load(sys.stdin).values()]' < FILE > FILE.txt"
_FROM_COLUMNS = "python3 -c 'import json, sys; d = json.load(sys.stdin); "
_FROM_COLUMNS += "[print(json.dumps(dict(zip(d, x)))) for x in zip(*[v if isinstance(v, list) else "
_FROM_COLUMNS += "v.values() for v in d.values()])]' < FILE > FILE.jsonl"
_MOST_SHOWN = 20  # keys
_TEXTS = "translation"  # Key of an object with the texts, as data sets of the hub have it.


class JsonLines(Format):
    """The format ``jsonl``."""

    def recognises(self, sample: Sample) -> bool:
        """Whether the first line is an object."""
        return object_of(sample.lines[0]) is not None

    def layout(self, sample: Sample, wanted: Wanted) -> Layout:
        """Find the keys of both sides in the first objects, of which some may lack a text."""
        name = shown_path(sample.path)
        texts: dict[str, Any] = {}
        for record in filter(None, map(object_of, sample.lines)):
            for key, text in texts_of_record(record).items():
                texts.setdefault(key, text)
        # The only object of a file may have all texts of a language, as pandas writes them.
        kinds = (list,) if len(sample.lines) > 1 else (list, Mapping)
        if all(isinstance(text, kinds) for text in texts.values()):
            first_line = sample.lines[0]
            excerpt = repr(first_line[:_EXCERPT])
            problem = f"{name}, line 1: expected a JSON object with texts, found {excerpt}."
            fix = f"Write one object per line. For an array of objects, run: {_FROM_ARRAY}"
            if first_line.startswith("{"):
                field = f'(sys.stdin)["{next(iter(texts), "FIELD")}"]'
                from_field = _FROM_ARRAY.replace("(sys.stdin)", field)
                fix = f"Write one object per line, as this does with a list: {from_field}\n  "
                fix += f"Or write each text on a line: {_FROM_OBJECT}"
                items = next(iter(texts.values()), ())  # texts, or their keys
                if len(texts) > 1 and isinstance(next(iter(items), ""), str):
                    fix = f"Write one object per line, as this command does: {_FROM_COLUMNS}"
            raise DataError(problem, fix=fix)
        columns = columns_of_record(texts, wanted, name)
        languages = code_of_name(columns[0]), code_of_name(columns[1])
        return Layout(self.name, sample.encoding, columns, languages)

    def open(self, path: Path, layout: Layout, options: ReadOptions) -> PairReader:
        """Open a file; any process can parse its lines."""
        file = TextFile(path, layout.encoding, options)
        return PairReader([file.name], [file.raw_lines()], partial(_pairs, file, layout))


def texts_of_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object with the texts: the record, or its field ``translation``."""
    texts = record.get(_TEXTS)
    return texts if isinstance(texts, Mapping) else record


def columns_of_record(record: Mapping[str, Any], wanted: Wanted, name: str) -> tuple[str, ...]:
    """Return the keys of source and target, and of the target language if the user names one.

    Args:
        record: The first record of a file or data set, or its texts.
        wanted: Languages or columns that the user has named.
        name: Name of the file or data set in messages.

    Raises:
        UncertainError: The record lacks a key, or it is not certain which keys are meant.
    """
    texts = texts_of_record(record)
    keys = list(map(str, texts))
    with_text = [key for key in keys if isinstance(texts[key], str | None)]  # `id` is a language
    columns: tuple[str, ...] = named_columns(with_text, wanted.languages) or ("", "")
    if wanted.columns is not None:
        columns = tuple(map(str, wanted.columns))
    if not set(columns) <= set(keys):
        problem = f"{name}: it is not certain which texts are source and target."
        problem += f" Keys with text: {', '.join(with_text[:_MOST_SHOWN]) or 'none'}."
        fix = "Choose both, as in `columns` KEY,KEY, or set both languages."
        raise UncertainError(problem, fix=fix, choices=wanted.choices(with_text))
    return columns


def object_of(line: str) -> dict[str, Any] | None:
    """Return the object on a line; None if there is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _pairs(
    file: TextFile, layout: Layout, lines: Sequence[bytes | None], first: int
) -> Iterator[Pair]:
    """Yield the pairs of a block of lines; null is a blank text."""
    for number, line in enumerate(file.texts(lines, first), first):
        if isinstance(line, BadPair):
            yield line
            continue
        if not line.strip():
            yield SentencePair("", "", number)
            continue
        record = object_of(line)
        if record is None:
            yield BadPair("syntax", number, line)
            continue
        texts = texts_of_record(record)
        sides = [texts.get(str(column), False) for column in layout.columns or ()]
        if all(isinstance(side, str | None) for side in sides):
            source, target, *codes = (side or "" for side in sides)
            yield pair_of(tagged(source, codes), target, number, file.options)
        else:
            yield BadPair("columns", number, line)


JSONL = JsonLines("jsonl")
