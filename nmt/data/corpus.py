"""A corpus section -> sentence pairs, one at a time, whatever the format.

Both sides of a pair always move together: a blank line, bad bytes or an over-long line on one
side makes the pair blank, bad or over-long, and never shifts the other side. The libraries of hubs
(Hugging Face ``datasets``, and sacrebleu with its test sets) are imported on use only; both may
download.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nmt.config.keys import nearest_word
from nmt.data.repair import Shift, repaired
from nmt.errors import ConfigError, DataError
from nmt.files.lines import decode_line, is_standard, open_binary, read_lines, split_lines
from nmt.files.network import hub_address, reaches

if TYPE_CHECKING:
    from nmt.config.data import CorpusConfig

_MOST_BYTES_PER_CHARACTER = 4
# A line of TSV or JSON holds both sides, other fields, and characters written as \uXXXX.
_LINE_PER_SIDE = 8
_LOADERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
"""What `datasets` calls the formats of local files."""
_ROWS_AT_ONCE = 1000
BLOCK_PAIRS = 10_000
_FILE_KEYS = ("source", "target", "tsv", "csv", "jsonl")


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    line: int
    """Line number in the corpus, from 1, for messages."""


class BadPair(NamedTuple):
    """A pair that cannot be read."""

    reason: Literal["bad_utf8", "characters"]
    line: int
    """Line number in the corpus, from 1."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How corpora are read."""

    source_language: str
    target_language: str
    on_bad_utf8: Literal["error", "skip"] = "error"
    max_characters: int = 10_000
    shifts: dict[tuple[Path, Path], Sequence[Shift]] = field(default_factory=dict)
    """Of aligned files, source and target: ranges that are paired again."""


def corpus_names(corpora: Iterable[CorpusConfig]) -> list[str]:
    """Return a name for each corpus in reports: its own or that of its place, made unique."""
    names = ["valid"]  # the validation set stands beside them
    for corpus in corpora:
        place = corpus.source or corpus.tsv or corpus.csv or corpus.jsonl or corpus.huggingface
        demo = f"demo-{corpus.demo}" if corpus.demo else corpus.sacrebleu
        name = corpus.name or ("standard input" if is_piped(corpus) else str(place or demo))
        others = (f"{name} ({number})" for number in count(len(names)))
        names.append(next(each for each in chain([name], others) if each not in names))
    return names[1:]


def is_piped(config: CorpusConfig) -> bool:
    """Whether a corpus is TSV of standard input: ``tsv: -``."""
    return config.tsv is not None and is_standard(config.tsv)


def corpus_files(config: CorpusConfig) -> tuple[Path, ...]:
    """Return the files that a corpus is read from; none for hubs and the demo."""
    paths = [getattr(config, key) for key in (*_FILE_KEYS, "scores")]
    if config.huggingface is not None:
        place = Path(config.huggingface)
        local = [place] if place.is_file() else sorted(place.rglob("*"))
        paths += [path for path in local if path.is_file()]
    return tuple(path for path in paths if path is not None)


def check_files(corpora: Mapping[str, CorpusConfig]) -> None:
    """Check that the files of corpora exist, before any is read.

    Args:
        corpora: Corpora by their keys in the configuration, for example ``data.train.0``.

    Raises:
        DataError: Names every file that does not, with its key.
    """
    missing = [
        f"{key}.{side}: {path} does not exist."
        for key, corpus in corpora.items()
        for side in (*_FILE_KEYS, "scores")
        if (path := getattr(corpus, side)) is not None and _is_missing(path)
    ]
    if missing:
        raise DataError(
            "\n  ".join(missing),
            fix=f"Check the path; relative paths start at the working directory, {Path.cwd()}; "
            "@config/NAME is NAME beside the configuration file.",
        )


def _is_missing(path: Path) -> bool:
    try:
        return not (path.exists() or is_standard(path))
    except OSError:  # reading it says what is wrong
        return False


def read_corpus(config: CorpusConfig, options: ReadOptions) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of a corpus in order, unfiltered.

    Raises:
        DataError: A file is missing, empty, damaged or not parallel, or the format is not as
            promised.
    """
    return chain.from_iterable(block.pairs() for block in read_blocks(config, options))


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive pairs of a corpus, of which lines of files are still bytes.

    Whoever needs the pairs decodes and parses them: blocks may be sent to other processes.
    """

    parse: Callable[..., Iterable[SentencePair | BadPair]]
    """Columns and the number of their first line -> pairs."""
    columns: tuple[Sequence[Any], ...]
    """What was read: one entry a pair in each."""
    first: int
    """Line number of the first pair, from 1."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.columns[0])

    @property
    def content(self) -> str:
        """What was read, as text that is the same only for the same."""
        return repr((self.first, self.columns))

    def pairs(self) -> list[SentencePair | BadPair]:
        """Return the pairs.

        Raises:
            DataError: As of `read_corpus`.
        """
        return list(self.parse(*self.columns, self.first))


def read_blocks(
    config: CorpusConfig, options: ReadOptions, size: int = BLOCK_PAIRS
) -> Iterator[Block]:
    """Yield the pairs of a corpus in blocks of ``size``, the last one perhaps smaller.

    Raises:
        DataError: As of `read_corpus`; of single lines, only `Block.pairs` raises it.
    """
    names, columns, parse = _columns(config, options)
    sizes: Iterator[int] = repeat(size)
    if config.max_pairs is not None:
        whole, rest = divmod(config.max_pairs, size)
        sizes = chain(repeat(size, whole), [rest] if rest else [])
    done = 0
    for most in sizes:
        block = tuple(list(islice(column, most)) for column in columns)
        counts = [len(column) for column in block]
        if len(set(counts)) > 1:  # one has ended
            left, right = (
                done + count + sum(1 for _ in column)
                for count, column in zip(counts, columns, strict=True)
            )
            raise DataError.not_parallel(names[0], names[1], (left, right))
        if not counts[0]:
            break
        yield Block(parse, block, done + 1)
        done += counts[0]
    if not done:
        place = " and ".join(names) or f"{config.huggingface} (split {config.split})"
        raise DataError(
            f"There is no pair in {place}.",
            fix="Name files with one sentence or pair a line, or a split that has rows.",
        )


def _columns(
    config: CorpusConfig, options: ReadOptions
) -> tuple[list[str], list[Iterator[Any]], Callable[..., Iterable[SentencePair | BadPair]]]:
    """Return the files of a corpus, what is read of each pair, and what makes a pair of it."""
    languages = (options.source_language, options.target_language)
    names = [str(path) for key in _FILE_KEYS if (path := getattr(config, key)) is not None]
    if config.source is not None and config.target is not None:
        most = options.max_characters
        lines = [_raw_lines(path, most) for path in (config.source, config.target)]
        if shifts := options.shifts.get((config.source, config.target)):
            lines[1] = repaired(lines[1], shifts, b"")
        return names, lines, partial(_aligned_pairs, names, options)
    texts_of: Callable[[str], tuple[str, str]] | None = None
    wanted = ""
    if config.tsv is not None:
        wanted = f"columns {config.columns[0]} and {config.columns[1]} (counted from 0)"
        texts_of = partial(_tsv_texts, config.columns)
    elif config.jsonl is not None:
        wanted = '{{"translation": {{"{}": ..., "{}": ...}}}}'.format(*languages)
        texts_of = partial(_json_texts, languages)
    path = config.tsv or config.jsonl
    if texts_of is not None and path is not None:
        parse = partial(_records, names[0], options, texts_of, wanted)
        return names, [_raw_lines(path, options.max_characters * _LINE_PER_SIDE)], parse
    return names, [_parsed_pairs(config, options)], _as_read


def _as_read(
    pairs: Sequence[SentencePair | BadPair], first: int
) -> Sequence[SentencePair | BadPair]:
    del first
    return pairs


def _parsed_pairs(config: CorpusConfig, options: ReadOptions) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of a corpus whose pairs are no lines."""
    languages = (options.source_language, options.target_language)
    if config.csv is not None:
        return _csv_pairs(config.csv, config.columns, options)
    if config.demo is not None:
        from nmt.data.demo import demo_pairs  # noqa: PLC0415 - reads its words

        texts = demo_pairs(config.demo, *languages)
    elif config.huggingface is not None:
        texts = _huggingface_pairs(config.huggingface, config, languages)
    else:
        texts = _published_pairs(str(config.sacrebleu), *languages)
    return (_pair(*pair, line, options) for line, pair in enumerate(texts, start=1))


def _pair(source: str, target: str, line: int, options: ReadOptions) -> SentencePair | BadPair:
    """Check texts that did not come as lines: they may hold line feeds and lone surrogates."""
    if max(len(source), len(target)) > options.max_characters:
        return BadPair("characters", line)
    return SentencePair(_one_line(source), _one_line(target), line)


def _one_line(text: str) -> str:
    if text.isascii():
        return text.replace("\n", " ") if "\n" in text else text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\n", " ")


def _raw_lines(path: Path, max_characters: int) -> Iterator[bytes | None]:
    """Yield the lines of a file; None for one that has too many bytes."""
    with open_binary(path) as stream:
        yield from split_lines(
            stream, str(path), max_bytes=max_characters * _MOST_BYTES_PER_CHARACTER
        )


def _decoded(
    lines: Iterable[bytes | None], name: str, first: int, options: ReadOptions, max_characters: int
) -> Iterator[str | BadPair]:
    for number, line in enumerate(lines, first):
        try:
            text = None if line is None else decode_line(line, name, number)
        except DataError:
            if options.on_bad_utf8 == "error":
                raise
            yield BadPair("bad_utf8", number)
            continue
        if text is None or len(text) > max_characters:
            yield BadPair("characters", number)
        else:
            yield text


def _aligned_pairs(
    names: Sequence[str],
    options: ReadOptions,
    sources: Sequence[bytes | None],
    targets: Sequence[bytes | None],
    first: int,
) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of lines of two files."""
    lefts, rights = (
        _decoded(lines, name, first, options, options.max_characters)
        for lines, name in zip((sources, targets), names, strict=True)
    )
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True), first):
        if isinstance(left, BadPair):
            yield left
        elif isinstance(right, BadPair):
            yield right
        else:
            yield SentencePair(left, right, number)


def _records(
    path: str,
    options: ReadOptions,
    texts_of: Callable[[str], tuple[str, str]],
    wanted: str,
    lines: Sequence[bytes | None],
    first: int,
) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of lines of a file that holds both sides on each."""
    most = options.max_characters * _LINE_PER_SIDE
    for number, line in enumerate(_decoded(lines, path, first, options, most), first):
        if isinstance(line, BadPair):
            yield line
        elif not line.strip():
            yield SentencePair("", "", number)
        else:
            try:
                texts = texts_of(line)
            except (LookupError, ValueError, TypeError, RecursionError) as error:
                if isinstance(error, IndexError) and "," in line and "\t" not in line:
                    raise DataError(
                        f"{path}, line {number:,} has commas and no tab.",
                        fix=f"Name a comma-separated file as csv: {path}, not as tsv.",
                    ) from error
                raise DataError(
                    f"{path}, line {number:,}: no {wanted} ({type(error).__name__}: {error}).",
                    fix="Repair the line, or correct the languages and the columns of the corpus.",
                ) from error
            yield _pair(*texts, number, options)


def _tsv_texts(columns: tuple[int, int], line: str) -> tuple[str, str]:
    cells = line.split("\t")
    return cells[columns[0]], cells[columns[1]]


def _csv_pairs(
    path: Path, columns: tuple[int, int], options: ReadOptions
) -> Iterator[SentencePair | BadPair]:
    bad: list[BadPair] = []
    most = options.max_characters * _LINE_PER_SIDE

    def lines() -> Iterator[str]:
        for line in _decoded(_raw_lines(path, most), str(path), 1, options, most):
            if isinstance(line, BadPair):
                bad.append(line)
            else:
                yield f"{line}\n"

    rows = csv.reader(lines(), strict=True)
    languages = (options.source_language, options.target_language)
    try:
        for number, row in enumerate(rows):
            yield from bad
            bad.clear()
            if number == 0 and (named := _named_columns(row, languages)):
                columns = named
            elif row:
                yield _pair(row[columns[0]], row[columns[1]], rows.line_num, options)
            else:
                yield SentencePair("", "", rows.line_num)
    except (csv.Error, IndexError) as error:
        raise DataError(
            f"{path}, line {rows.line_num:,}: no columns {columns[0]} and {columns[1]} (counted "
            f"from 0) of comma-separated values ({error}).",
            fix="Quote fields that hold commas, quotes or line ends, or correct the columns.",
        ) from error
    yield from bad


def _named_columns(row: Sequence[str], languages: tuple[str, str]) -> tuple[int, int] | None:
    """Return where the first row of a table names both sides; None if it does not."""
    cells = [cell.strip() for cell in row]
    for names in (languages, ("source", "target")):
        if set(names) <= set(cells):
            return cells.index(names[0]), cells.index(names[1])
    return None


def _json_texts(languages: tuple[str, str], line: str) -> tuple[str, str]:
    source, target = _in_languages(json.loads(line)["translation"], languages)
    for text in (source, target):
        if not isinstance(text, str | None):
            raise TypeError(f"{text!r:.40} is not text")
    return source or "", target or ""


def _in_languages(texts: Mapping[str, Any], languages: tuple[str, str]) -> tuple[Any, Any]:
    """Return both texts; data may have ``pt_BR`` where we say ``pt-BR``."""
    source, target = (
        texts[language if language in texts else language.replace("-", "_")]
        for language in languages
    )
    return source, target


def _huggingface_pairs(
    name: str, config: CorpusConfig, languages: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield both texts of each row; a missing one is empty.

    A row has a ``translation`` column with both language codes, or a column named after each.
    """
    for number, row in enumerate(_rows(name, config), start=1):
        try:
            source, target = _in_languages(row.get("translation") or row, languages)
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{name}, row {number:,}: no text for {' and '.join(languages)}; "
                f"its columns are {', '.join(map(str, row))}.",
                fix="Name data with a `translation` column or a column for each language code.",
            ) from error
        yield "" if source is None else str(source), "" if target is None else str(target)


def _rows(name: str, config: CorpusConfig) -> Iterator[Mapping[str, Any]]:
    path = Path(name)
    options: dict[str, Any] = {"split": config.split, "streaming": config.streaming}
    if path.is_file():
        if path.suffix not in _LOADERS:
            raise DataError(
                f"{path}: `datasets` reads {', '.join(_LOADERS)} here, not {path.suffix}.",
                fix="Convert the file, or name it as source + target, tsv or jsonl.",
            )
        # A single local file is one split, whatever name the configuration asks for. It is always
        # streamed: a copy in the cache of `datasets` would gain nothing.
        options |= {"path": _LOADERS[path.suffix], "data_files": {config.split: str(path)}}
        options["streaming"] = True
        if path.suffix == ".csv":
            options["keep_default_na"] = False  # "null" and "NA" are words
    else:
        options |= {"path": name, "name": config.subset}
        if not check_hub(config):
            os.environ["HF_HUB_OFFLINE"] = "1"  # what is in the cache is read, nothing is tried
    try:
        import datasets  # noqa: PLC0415 - two seconds, and only this corpus needs it

        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        for block in datasets.load_dataset(**options).iter(batch_size=_ROWS_AT_ONCE):
            for values in zip(*block.values(), strict=True):
                yield dict(zip(block, values, strict=True))
    except Exception as error:  # of the network, of a format, of `datasets` itself
        raise DataError(
            f"`datasets` cannot read {name} (subset {config.subset}, split {config.split}): "
            f"{type(error).__name__}: {error}",
            fix="Check the name, the subset and the network, or download it and name the files.",
        ) from error


def check_hub(config: CorpusConfig) -> bool:
    """Return whether the hub of a corpus, if it is on one, answers; else the cache may have it.

    Raises:
        DataError: Neither. `datasets` would take half a minute to say so.
    """
    name = config.huggingface
    if name is None or Path(name).exists() or reaches(hub_address()):
        return True
    if not _may_be_cached(name):
        raise DataError(
            f"{name} is no folder here and was not downloaded before, and there is no connection "
            f"to {hub_address()}.",
            fix="Check the path and the network, or name files in its place.",
        )
    return False


def _may_be_cached(name: str) -> bool:
    """Whether a cache of the hub's libraries has something of this name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    home = Path(os.environ.get("HF_HOME", cache / "huggingface"))
    folders = {"HF_HUB_CACHE": home / "hub", "HF_DATASETS_CACHE": home / "datasets"}
    places = (Path(os.environ.get(key, folder)).expanduser() for key, folder in folders.items())
    last = name.rpartition("/")[2].lower()
    return any(last in path.name.lower() for place in places for path in place.glob("*"))


def _published_pairs(
    name: str, source_language: str, target_language: str
) -> Iterator[tuple[str, str]]:
    source, references = published_test_set(name, f"{source_language}-{target_language}")
    sources, targets = read_lines(source), read_lines(references[0])
    if len(sources) != len(targets):
        counts = (len(sources), len(targets))
        raise DataError.not_parallel(str(source), str(references[0]), counts)
    return zip(sources, targets, strict=True)


def cached_test_sets(pair: str) -> dict[str, tuple[Path, Path]]:
    """Return source and reference of the test sets that sacrebleu has downloaded, by its names.

    Args:
        pair: Source and target language, for example ``en-de``.
    """
    from sacrebleu.utils import SACREBLEU_DIR  # noqa: PLC0415 - most corpora do without

    folder, found = Path(SACREBLEU_DIR), {}
    for source in sorted(folder.rglob(f"*.{pair}.src")):
        references = sorted(source.parent.glob(f"{source.stem}.ref*"))
        if references:
            found[source.parent.relative_to(folder).as_posix()] = source, references[0]
    return found


def published_names() -> list[str]:
    """Return the names of sacrebleu's test sets, each with its pairs of languages."""
    from sacrebleu import DATASETS, utils  # noqa: PLC0415 - most corpora do without

    return [
        f"{name}: {', '.join(sorted(utils.get_langpairs_for_testset(name)))}"
        for name in sorted(DATASETS)
    ]


def published_test_set(name: str, pair: str) -> tuple[Path, list[Path]]:
    """Return the source and reference files of a test set of sacrebleu, downloaded on first use.

    Args:
        name: sacrebleu's name, for example ``wmt14``.
        pair: Source and target language, for example ``en-de``.

    Raises:
        ConfigError: There is no such test set or pair. Names what is near or what there is.
        DataError: The download fails, or it has no reference.
    """
    from sacrebleu import DATASETS, utils  # noqa: PLC0415 - most corpora do without

    if name not in DATASETS:
        near = nearest_word(name, list(DATASETS))
        raise ConfigError(
            f"There is no test set {name!r}.",
            fix=f"Did you mean {near}?" if near else "`sacrebleu --list` shows all.",
        )
    pairs = utils.get_langpairs_for_testset(name)
    if pair not in pairs:
        raise ConfigError(
            f"The test set {name} has no pair {pair!r}.", fix=f"It has {', '.join(sorted(pairs))}."
        )
    folder, url = Path(utils.SACREBLEU_DIR, name), str((DATASETS[name].data or [""])[0])
    is_here = any(path.is_file() and path.suffix != ".lock" for path in folder.rglob("*"))
    try:
        if not is_here and not reaches(url):
            raise ConnectionError(f"no connection to {url}")
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
