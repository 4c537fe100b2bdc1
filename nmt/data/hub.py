"""Corpora from other libraries: Hugging Face ``datasets`` and the test sets of sacrebleu.

Both are imported on use only, and both may download.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from nmt.config.data import CorpusConfig
from nmt.errors import ConfigError, DataError
from nmt.files.lines import read_lines

_LOADERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
_ROWS_AT_ONCE = 1000


def huggingface_pairs(
    config: CorpusConfig, source_language: str, target_language: str
) -> Iterator[tuple[str, str]]:
    """Yield (source, target) of each row; a missing text is empty.

    A row has a ``translation`` column with both language codes, or a column named after each.

    Raises:
        DataError: The data set cannot be loaded, or lacks the columns.
    """
    name, number = str(config.huggingface), 0
    for number, row in enumerate(_rows(name, config), start=1):
        try:
            texts = row.get("translation") or row
            left, right = text_in(source_language, texts), text_in(target_language, texts)
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{name}, row {number:,}: no text for {source_language} and {target_language}; "
                f"its columns are {', '.join(map(str, row))}.",
                fix="Name data with a `translation` column or a column for each language code.",
            ) from error
        yield _text(left), _text(right)
    if number == 0:
        raise DataError(f"{name} (split {config.split}) has no rows.", fix="Check the split.")


def text_in(language: str, texts: Mapping[str, Any]) -> Any:
    """Return the text in a language; data may have ``pt_BR`` where we say ``pt-BR``.

    >>> text_in("pt-BR", {"en": "yes", "pt_BR": "sim"})
    'sim'

    Raises:
        KeyError: There is none.
    """
    return texts[language if language in texts else language.replace("-", "_")]


def local_files(name: str) -> list[Path]:
    """Return the files behind a local name, in order; none for a hub id."""
    path = Path(name)
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _rows(name: str, config: CorpusConfig) -> Iterator[Mapping[str, Any]]:
    try:
        for block in _load(name, config).iter(batch_size=_ROWS_AT_ONCE):
            columns = list(block)
            for values in zip(*block.values(), strict=True):
                yield dict(zip(columns, values, strict=True))
    except DataError:
        raise
    except Exception as error:  # of the network, of a format, of `datasets` itself
        raise DataError(
            f"`datasets` cannot read {name} (subset {config.subset}, split {config.split}): "
            f"{type(error).__name__}: {error}",
            fix="Check the name, the subset and the network, or download it and name the files.",
        ) from error


def _load(name: str, config: CorpusConfig) -> Any:
    path = Path(name)
    options: dict[str, Any] = {"split": config.split, "streaming": config.streaming}
    if path.is_file():
        kind = _LOADERS.get(path.suffix)
        if kind is None:
            raise DataError(
                f"{path}: `datasets` reads {', '.join(_LOADERS)} here, not {path.suffix}.",
                fix="Convert the file, or name it as source + target, tsv or jsonl.",
            )
        # A single local file is one split, whatever name the configuration asks for. It is always
        # streamed: a copy in the cache of `datasets` would gain nothing.
        options |= {"path": kind, "data_files": {config.split: str(path)}, "streaming": True}
        if kind == "csv":
            options["keep_default_na"] = False  # "null" and "NA" are words
    else:
        options |= {"path": name, "name": config.subset}
    import datasets  # noqa: PLC0415 - two seconds, and only this corpus needs it

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets.load_dataset(**options)


def published_pairs(
    name: str, source_language: str, target_language: str
) -> Iterator[tuple[str, str]]:
    """Yield (source, first reference) of a test set of sacrebleu, downloading it on first use.

    Raises:
        ConfigError: There is no such test set or pair.
        DataError: It cannot be downloaded.
    """
    source, references = published_test_set(name, f"{source_language}-{target_language}")
    sources, targets = read_lines(source), read_lines(references[0])
    for left, right in zip_longest(sources, targets):
        if left is None or right is None:
            counts = (len(sources), len(targets))
            raise DataError.not_parallel(str(source), str(references[0]), counts)
        yield left, right


def published_test_set(name: str, pair: str) -> tuple[Path, list[Path]]:
    """Return the source and reference files of a test set of sacrebleu.

    Args:
        name: sacrebleu's name, for example ``wmt14``.
        pair: Source and target language, for example ``en-de``.

    Raises:
        ConfigError: There is no such test set or pair. Names what is near or what there is.
        DataError: The download fails, or it has no reference.
    """
    from sacrebleu import DATASETS, utils  # noqa: PLC0415 - most corpora do without

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        raise ConfigError(
            f"There is no test set {name!r}.",
            fix=f"Did you mean {', '.join(near)}?" if near else "`sacrebleu --list` shows all.",
        )
    pairs = utils.get_langpairs_for_testset(name)
    if pair not in pairs:
        raise ConfigError(
            f"The test set {name} has no pair {pair!r}.", fix=f"It has {', '.join(sorted(pairs))}."
        )
    try:
        source = utils.get_source_file(name, pair)
        references = utils.get_reference_files(name, pair)
    except (Exception, SystemExit) as error:  # sacrebleu raises bare ones, and exits
        raise DataError(
            f"The test set {name} ({pair}) cannot be downloaded: {error}",
            fix="Check the connection, or set SACREBLEU to a folder that holds it already.",
        ) from error
    if not references:
        raise DataError(
            f"The test set {name} ({pair}) has no reference.", fix="Choose another test set."
        )
    return Path(source), [Path(reference) for reference in references]
