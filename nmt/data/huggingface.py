"""The only module that imports `datasets`: hub ids and local parquet, csv or json -> pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nmt.config.data import CorpusConfig
from nmt.errors import DataError

_LOADERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}


def huggingface_pairs(
    config: CorpusConfig, source_language: str, target_language: str
) -> Iterator[tuple[str, str]]:
    """Yield (source, target) of each row.

    A row has a ``translation`` column with both language codes, or a column named after each.

    Raises:
        DataError: The data set cannot be loaded, or lacks the columns.
    """
    name = str(config.huggingface)
    for number, row in enumerate(_load(name, config), start=1):
        texts = row.get("translation", row)
        try:
            left, right = texts[source_language], texts[target_language]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{name}, row {number:,}: no text for {source_language} and {target_language}; "
                f"its columns are {', '.join(map(str, row))}.",
                fix="Name data with a `translation` column or a column for each language code.",
            ) from error
        yield left or "", right or ""


def _load(name: str, config: CorpusConfig) -> Iterator[Mapping[str, Any]]:
    import datasets  # noqa: PLC0415 - half a second, and only this corpus needs it

    path = Path(name)
    options: dict[str, Any] = {"split": config.split, "streaming": config.streaming}
    if path.is_file():
        kind = _LOADERS.get(path.suffix)
        if kind is None:
            raise DataError(
                f"{path}: `datasets` reads {', '.join(_LOADERS)} here, not {path.suffix}.",
                fix="Convert the file, or name it as source + target, tsv or jsonl.",
            )
        # A single local file is one split, whatever name the configuration asks for.
        options |= {"path": kind, "data_files": {config.split: str(path)}}
    else:
        options |= {"path": name, "name": config.subset}
    try:
        return iter(datasets.load_dataset(**options))
    except Exception as error:
        raise DataError(
            f"`datasets` cannot load {name} (subset {config.subset}, split {config.split}): "
            f"{type(error).__name__}: {error}",
            fix="Check the name, the subset and the network, or download it and name the files.",
        ) from error
