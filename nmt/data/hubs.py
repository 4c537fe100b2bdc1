"""Corpora from the Hugging Face Hub (``datasets``), and test sets from sacrebleu.

Both packages may download data. They are imported on first use.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from nmt.config.data import CorpusConfig, DataConfig
from nmt.config.language_codes import Languages, is_same_language, matching_pairs
from nmt.data.formats.json_lines import columns_of_record, texts_of_record
from nmt.data.formats.layout import Wanted
from nmt.data.formats.pair import tagged
from nmt.errors import ConfigError, DataError, join_words, nearest_word, shell_command
from nmt.files.atomic import atomic_folder, write_errors
from nmt.files.progress import progress_bar
from nmt.report.page import visible

PREFIX = "hub:"
# Names of file formats in `datasets`.
_LOADERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
# Names of splits, and the part of a project that each of them becomes.
_PARTS = {"train": "train", "test": "test"} | dict.fromkeys(("validation", "valid", "dev"), "valid")
_MOST_SHOWN = 10
_ROWS_AT_ONCE = 1000
_WORDS = "keep_default_na"  # Option of `datasets` for CSV: whether "NA" is missing, not a word.
_HUB = "https://huggingface.co"
_CONNECT_SECONDS = 1.5

logger = logging.getLogger(__name__)


def is_on_hub(config: CorpusConfig) -> bool:
    """Whether a corpus is a data set of the Hugging Face Hub, and not a local file or folder."""
    return config.huggingface is not None and not Path(config.huggingface).exists()


def check_hub(data: DataConfig) -> None:
    """Check, before any corpus is read, that the training and validation data can be downloaded.

    Raises:
        ConfigError: `datasets` is not installed.
        DataError: The hub cannot be reached, and a corpus is not in the cache of `datasets`. The
            fix shows which keys to set to read local files instead.
    """
    needed = [corpus for corpus in (*data.training, *data.validation) if is_on_hub(corpus)]
    if not needed:
        return
    datasets = _datasets()
    if _connect():
        return
    for corpus in needed:
        name, host = str(corpus.huggingface), urlsplit(hub_address()).hostname
        try:
            datasets.load_dataset_builder(name, corpus.subset)
        except Exception as error:  # of many types: it is not in the cache
            keys = [key for key, other in data.corpora.items() if is_on_hub(other)]
            flags = [f"`set` {join_words([f'{x}={{source: FILE, target: FILE}}'])}" for x in keys]
            fix = "\n    ".join(["Connect to the internet, or read local files instead:", *flags])
            problem = f"{name} is neither a local path nor in the cache"
            raise DataError(f"{problem}, and {host} cannot be reached.", fix=fix) from error


def huggingface_pairs(
    name: str, config: CorpusConfig, languages: Languages
) -> Iterator[tuple[str, str]]:
    """Yield source and target of each row; a missing text becomes an empty string.

    The columns are found as in JSON lines: those of the languages, or source and target.

    Raises:
        DataError: The data set cannot be read, or it is not certain which columns are meant.
    """
    columns = None
    for number, row in enumerate(_rows(name, config), start=1):
        if columns is None:
            columns = columns_of_record(row, Wanted(languages, config.columns), name)
        texts = texts_of_record(row)
        try:
            sides = [texts[column] for column in columns]
        except KeyError as error:
            problem = f"{name}, row {number:,}: no text for {' and '.join(columns)}; "
            problem += f"the row has the columns {', '.join(map(str, texts))}."
            raise DataError(problem, fix="Set `columns` to columns of every row.") from error
        source, target, *codes = ("" if side is None else str(side) for side in sides)
        yield tagged(source, codes), target


def _rows(name: str, config: CorpusConfig) -> Iterator[Mapping[str, Any]]:
    datasets = _datasets()
    path = Path(name)
    # A local file is always streamed, because a copy in the cache of `datasets` has no benefit.
    is_streamed = config.streaming or path.is_file()
    options: dict[str, Any] = {"split": config.split, "streaming": is_streamed}
    if path.is_file():
        if path.suffix not in _LOADERS:
            raise DataError(
                f"{path}: `huggingface` reads {', '.join(_LOADERS)}, not {path.suffix}.",
                fix="Convert the file, or set tsv or jsonl instead.",
            )
        # A single local file is one split, for any value of `split`.
        options |= {"path": _LOADERS[path.suffix], "data_files": {config.split: str(path)}}
    else:
        options |= {"path": name, "name": config.subset}
        if is_on_hub(config):
            _connect()
    with _reading(f"{name} (subset {config.subset}, split {config.split})"):
        place = {key: options[key] for key in ("path", "name", "data_files") if key in options}
        if hasattr(datasets.load_dataset_builder(**place).config, _WORDS):  # CSV files
            options[_WORDS] = False
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        for block in datasets.load_dataset(**options).iter(batch_size=_ROWS_AT_ONCE):
            for values in zip(*block.values(), strict=True):
                yield dict(zip(block, values, strict=True))


@contextmanager
def _reading(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # `datasets` raises errors of many types
        raise DataError(
            f"`datasets` cannot read {place}: {type(error).__name__}: {error}",
            fix="Check the name, subset, split and connection, or pass local files in their place.",
        ) from error


def save_data_set(place: str, languages: Languages | None, folder: Path) -> Path:
    """Write the texts of a data set as JSON lines, with a file for each part of a project.

    Args:
        place: ``hub:NAME/SUBSET``; or ``hub:NAME`` for the only subset, or the one whose name is
            the language pair.
        languages: Codes of source and target.
        folder: Where the folder of the data set is written. An older one is replaced.

    Returns:
        The folder of the data set, with ``train.jsonl``, and ``valid.jsonl`` and ``test.jsonl`` if
        the data set has these splits.

    Raises:
        ConfigError: `datasets` is not installed, or it is not certain which subset is meant.
        DataError: The data set cannot be read, or has no split for training.
    """
    datasets = _datasets()
    name = place.removeprefix(PREFIX)
    subset = ""
    if name.count("/") > 1 and not Path(name).exists():
        name, _, subset = name.rpartition("/")
    if not Path(name).exists():
        _connect()
    with _reading(name):
        subsets = datasets.get_dataset_config_names(name)
    subset = subset or _subset(name, subsets, languages)
    with _reading(f"{name} (subset {subset})"):
        splits = datasets.get_dataset_split_names(name, subset)
    logger.info("%s (subset %s) has the splits %s", name, subset, ", ".join(splits))
    logger.info("%s: the licence is %s", name, _licence(name))
    parts = {_PARTS[split]: split for split in splits if split in _PARTS}
    if "train" not in parts:
        raise DataError(
            f"{name} (subset {subset}) has no split train, but {', '.join(splits)}.",
            fix="Choose a data set with text for training.",
        )
    copy = folder / re.sub(r"[^\w.-]+", "--", f"{name}-{subset}").strip("-")
    with write_errors(copy, DataError), atomic_folder(copy, replace=True) as temporary:
        for part, split in parts.items():
            config = CorpusConfig(huggingface=name, subset=subset, split=split)
            bar = progress_bar(f"read {split}", unit="pair")
            with bar, (temporary / f"{part}.jsonl").open("w", encoding="utf-8") as file:
                for row in _rows(name, config):
                    items = texts_of_record(row).items()
                    texts = {key: text for key, text in items if isinstance(text, str | None)}
                    file.write(f"{json.dumps(texts, ensure_ascii=False)}\n")
                    bar.update()
    return copy


def _licence(name: str) -> str:
    """Return the licence of a data set, which `datasets` does not read."""
    card = Path(name, "README.md")
    licence = None
    with suppress(Exception):  # there is no card, or no connection
        cards = import_module("huggingface_hub").DatasetCard  # slow to load
        licence = cards.load(card if Path(name).exists() else name).data.license
    return visible(str(licence or "not named in its card"))


def _subset(name: str, subsets: Sequence[str], languages: Languages | None) -> str:
    """Return the only subset, or the one whose name is the language pair in any order."""
    if len(subsets) == 1:
        return subsets[0]
    if languages is not None:
        pairs = [_languages_of(each) for each in subsets]
        matches = {*matching_pairs(languages, pairs), *matching_pairs(languages[::-1], pairs)}
        if len(matches) == 1:
            return "-".join(matches.pop())
    commands = [shell_command("init", f"{PREFIX}{name}/{each}") for each in subsets[:_MOST_SHOWN]]
    raise ConfigError(
        f"{name} has {len(subsets)} subsets, and it is not certain which one is meant.",
        fix="\n    ".join(["Choose one of these commands:", *commands]),
    )


def _datasets() -> Any:
    """Return the package `datasets`.

    Raises:
        ConfigError: It is not installed, as in a container without it.
    """
    try:
        import datasets  # noqa: PLC0415 - two seconds, and only corpora of the hub need it
    except ModuleNotFoundError as error:
        problem = "Data sets of the Hugging Face Hub need the package datasets: "
        raise ConfigError(
            f"{problem}{error}.", fix="pip install datasets, or pass local files in their place."
        ) from error
    return datasets


def _sacrebleu() -> Any:
    import sacrebleu  # noqa: PLC0415 - most corpora do without

    return sacrebleu


def cached_test_sets(languages: Languages) -> dict[str, tuple[Path, list[Path]]]:
    """Return the source and reference files of sacrebleu's downloaded test sets, by name.

    Args:
        languages: Source and target language.
    """
    folder, found = Path(_sacrebleu().utils.SACREBLEU_DIR), {}
    for source in sorted(folder.rglob("*.src")):  # such as wmt14.en-de.src
        pair = _languages_of(source.stem.rpartition(".")[2])
        references = sorted(source.parent.glob(f"{source.stem}.ref*"))
        if references and all(map(is_same_language, languages, pair)):
            found[source.parent.relative_to(folder).as_posix()] = source, references
    return found


def published_names() -> list[str]:
    """Return a line for each test set of sacrebleu: its name and its language pairs."""
    pairs_of = _sacrebleu().utils.get_langpairs_for_testset
    return [f"{x}: {', '.join(sorted(pairs_of(x)))}" for x in sorted(_sacrebleu().DATASETS)]


def _languages_of(pair: str) -> Languages:
    source, _, target = pair.partition("-")
    return source, target


def published_test_set(name: str, languages: Languages) -> tuple[Path, list[Path]]:
    """Return the source and reference files of a sacrebleu test set; download it on first use.

    Args:
        name: Name in sacrebleu, for example ``wmt14``.
        languages: Source and target language.

    Raises:
        ConfigError: The test set or the language pair does not exist.
        DataError: The download fails, or the test set has no reference.
    """
    utils, data_sets = _sacrebleu().utils, _sacrebleu().DATASETS
    if name not in data_sets:
        near, lists = nearest_word(name, [*data_sets]), shell_command("evaluate", list=True)
        raise ConfigError(
            f"sacrebleu has no test set {name!r}.",
            fix=f"Did you mean {near}?" if near else f"`{lists}` lists all test sets.",
        )
    published = map(_languages_of, utils.get_langpairs_for_testset(name))
    pairs = ["-".join(each) for each in matching_pairs(languages, published)]
    if len(pairs) != 1:
        known = sorted(pairs or utils.get_langpairs_for_testset(name))
        raise ConfigError(
            f"The test set {name} does not have the language pair {'-'.join(languages)}.",
            fix=f"Use one of {', '.join(known)}.",
        )
    pair = pairs[0]
    folder, url = Path(utils.SACREBLEU_DIR, name), str((data_sets[name].data or [""])[0])
    is_here = any(path.is_file() and path.suffix != ".lock" for path in folder.rglob("*"))
    try:
        if not is_here and not reaches(url):
            raise ConnectionError(f"no connection to {url}")
        source = utils.get_source_file(name, pair)
        references = utils.get_reference_files(name, pair)
    except (Exception, SystemExit) as error:  # sacrebleu raises Exception, or exits
        fix = f"On a connected machine, run `sacrebleu --download {name} -l {pair}`, and copy its "
        fix += f"folder ~/.sacrebleu/{name} to {folder} here. If you copy it to another place, set "
        fix += f"the variable SACREBLEU to the folder that contains {name}."
        raise DataError(f"Cannot download test set {name} ({pair}): {error}", fix=fix) from error
    if not references:
        raise DataError(
            f"The test set {name} ({pair}) has no reference.",
            fix="Choose a test set with references.",
        )
    return Path(source), [Path(reference) for reference in references]


def _connect() -> bool:
    """Return whether the hub can be reached; if not, switch `datasets` to its offline cache."""
    is_reached = reaches(hub_address())
    if not is_reached:  # `datasets` would try to connect for 30 seconds
        os.environ["HF_HUB_OFFLINE"] = "1"
        _datasets().config.HF_HUB_OFFLINE = True  # read from the variable, if it loads only now
    return is_reached


def hub_address() -> str:
    """Return the URL of the Hugging Face Hub, or ``HF_ENDPOINT`` if it is set."""
    return os.environ.get("HF_ENDPOINT", _HUB)


def reaches(url: str) -> bool:
    """Whether a server accepts connections within 1.5 seconds. Always true behind a proxy."""
    place, reached = urlsplit(url), []
    port = place.port or (443 if place.scheme == "https" else 80)

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection((str(place.hostname), port), _CONNECT_SECONDS).close()
            reached.append(True)

    # A thread, because DNS and each of several addresses may add to the time limit.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    return bool(reached) or bool(getproxies())
