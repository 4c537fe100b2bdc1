"""Reads the sentence pairs of a corpus of the configuration, in any supported format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nmt.config.data import CorpusConfig, DataConfig
from nmt.data.demo import demo_pairs
from nmt.data.pairs import BadPair, ReadOptions, SentencePair, columns_of, shown_path
from nmt.errors import ConfigError, DataError
from nmt.files.archive import place_in_archive
from nmt.files.lines import STANDARD_INPUT, is_standard, near_file, open_binary, read_start
from nmt.text.preprocessing import NUM_LINES, check_plain

VALID = "valid"  # name of the validation set in reports
BLOCK_PAIRS = 10_000
# Size of the first blocks of a corpus, so that progress is shown and all workers start early.
_FIRST_PAIRS = 1000
_BYTES_AT_ONCE = 1 << 20
_LATER_BYTES = bytes(range(0x80, 0xC0))  # continuation bytes of UTF-8
_FILE_KEYS = ("source", "target", "tsv", "csv", "jsonl")  # of `CorpusConfig`


def corpus_names(corpora: Iterable[CorpusConfig]) -> list[str]:
    """Return a unique name for each corpus in reports: its ``name``, or the path or hub name.

    A name that occurs again gets the number of its corpus, such as ``train.tsv (2)``.
    """
    names = [VALID]  # no corpus may have this name
    for corpus in corpora:
        name = corpus.name or _origin(corpus)
        unique_name = name
        number = len(names)
        while unique_name in names:
            unique_name = f"{name} ({number})"
            number += 1
        names.append(unique_name)
    return names[1:]  # without `VALID`


def _origin(corpus: CorpusConfig) -> str:
    """Return the file of a corpus or of its source side, its name on a hub, or the demo corpus."""
    if is_piped(corpus):
        return STANDARD_INPUT
    if corpus.demo:
        return f"demo-{corpus.demo}"
    path = corpus.source or corpus.tsv or corpus.csv or corpus.jsonl
    return str(path or corpus.huggingface or corpus.sacrebleu)


def valid_sets(data: DataConfig) -> dict[str, CorpusConfig]:
    """Return the validation sets by unique names, in the order of `DataConfig.validation`.

    A single set of ``data.valid`` without a name is called ``valid``.
    """
    # Training corpora are included, because their names must be different too.
    corpora = (*data.training, *data.validation)
    names = corpus_names(corpora)[len(data.training) :]
    if len(data.valid) == 1 and not data.valid[0].name:
        names[0] = VALID
    return dict(zip(names, data.validation, strict=True))


def is_piped(config: CorpusConfig) -> bool:
    """Whether a corpus is read from standard input: ``tsv: -``."""
    return config.tsv is not None and is_standard(config.tsv)


def corpus_files(config: CorpusConfig) -> tuple[Path, ...]:
    """Return the local files of a corpus; empty for a hub or the demo corpus."""
    paths = [getattr(config, key) for key in (*_FILE_KEYS, "scores")]
    if config.huggingface is not None:  # a name on the hub, or a local file or folder
        local = Path(config.huggingface)
        paths += filter(Path.is_file, (local, *sorted(local.rglob("*"))))
    return tuple(path for path in paths if path is not None)


def check_sources(data: DataConfig) -> bool:
    """Check the sources of all corpora; return whether a training corpus is standard input.

    Raises:
        ConfigError: Standard input is used more than once, or not for a training corpus.
        DataError: A corpus is a named pipe or a device.
    """
    files = list(chain.from_iterable(map(corpus_files, data.corpora.values())))
    num_piped = sum(map(is_piped, data.train))
    num_standard = sum(map(is_standard, files))  # more, if another key or another section has "-"
    if num_piped > 1 or num_standard > num_piped:
        problem = "Standard input (-) can only be the tsv of a single training corpus."
        raise ConfigError(problem, fix="Write the other corpora to files, and use their paths.")
    for path in files:
        if path.exists() and not (path.is_file() or path.is_dir()):
            problem = f"{path} is a pipe or a device, but nmt reads a corpus twice."
            raise DataError(problem, fix="Write the text to a file first.")
    return num_piped > 0


def check_files(corpora: Mapping[str, CorpusConfig]) -> None:
    """Check that all files of the corpora exist, before reading.

    Args:
        corpora: Corpora by their keys in the configuration, for example ``data.train.0``.

    Raises:
        DataError: A file is missing. The message lists every missing file with its key.
    """
    problems = []
    for corpus_key, corpus in corpora.items():
        for key in (*_FILE_KEYS, "scores"):
            path = getattr(corpus, key)
            if path is not None and _is_missing(path):
                problems.append(f"{corpus_key}.{key}: {path} does not exist.{near_file(path)}")
    if problems:
        fix = f"Relative paths start at the working directory, {Path.cwd()}; paths with "
        raise DataError("\n  ".join(problems), fix=f"{fix}@config/, at the configuration's folder.")


def check_plain_text(corpus: CorpusConfig, languages: tuple[str, str]) -> None:
    """Check that no tool has segmented, escaped or marked up the files of a corpus.

    Reads only the first lines. Corpora on hubs and in sacrebleu are not checked.

    Args:
        corpus: The corpus. Its files must exist.
        languages: Source and target language.

    Raises:
        DataError: See `nmt.text.preprocessing`; or a file is unreadable.
    """
    for path in (corpus.source, corpus.target):
        if path is not None:
            check_plain(read_start(path, NUM_LINES), str(path))
    path = corpus.tsv or corpus.csv or corpus.jsonl
    if path is None:
        return
    # Item i of each list is the text of line i + 1, so that messages have the right line. Lines
    # that cannot be read are missing from the pairs; here they are empty.
    sources: list[str] = []
    targets = []
    for pair in first_pairs(corpus, ReadOptions(*languages, "skip"), NUM_LINES):
        empty_lines = [""] * (pair.line - 1 - len(sources))
        sources += [*empty_lines, pair.source]
        targets += [*empty_lines, pair.target]
    check_plain(sources, shown_path(path))
    check_plain(targets, shown_path(path))


def _is_missing(path: Path) -> bool:
    try:
        return not (path.exists() or is_standard(path) or place_in_archive(path))
    except OSError:  # reading the file reports the problem
        return False


def read_corpus(config: CorpusConfig, options: ReadOptions) -> Iterator[SentencePair | BadPair]:
    """Yield the pairs of a corpus in order, unfiltered.

    Raises:
        DataError: A file is missing, empty, damaged, not parallel, or not in the expected format.
    """
    return chain.from_iterable(block.pairs for block in read_blocks(config, options))


def first_pairs(config: CorpusConfig, options: ReadOptions, num_pairs: int) -> list[SentencePair]:
    """Return the readable pairs among the first ``num_pairs`` pairs of a corpus.

    Raises:
        DataError: See `read_corpus`.
    """
    pairs = islice(read_corpus(config, options), num_pairs)
    return [pair for pair in pairs if isinstance(pair, SentencePair)]


@dataclass(frozen=True)
class Block:
    """Consecutive pairs of a corpus, not yet decoded.

    Blocks can be sent to other processes, which decode and parse them.
    """

    parse: Callable[..., Iterable[SentencePair | BadPair]]  # called with the columns and ``first``
    columns: tuple[Sequence[Any], ...]  # raw data, with one item per pair in each column
    first: int  # line number of the first pair, from 1
    features: Any = None  # additional data for the function that processes the block

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.columns[0])

    @property
    def content(self) -> str:
        """The raw lines as text, to hash for the cache of results."""
        return repr((self.first, self.columns))

    @cached_property
    def pairs(self) -> list[SentencePair | BadPair]:
        """The decoded pairs.

        Raises:
            DataError: See `read_corpus`.
        """
        return list(self.parse(*self.columns, self.first))


def read_blocks(
    config: CorpusConfig, options: ReadOptions, size: int = BLOCK_PAIRS
) -> Iterator[Block]:
    """Yield the pairs of a corpus in blocks of up to ``size`` pairs; the first blocks are smaller.

    Raises:
        DataError: See `read_corpus`. Problems in single lines are raised by `Block.pairs`.
    """
    names, columns, parse = columns_of(config, options)
    max_pairs = config.max_pairs or sys.maxsize
    num_read = 0
    while num_read < max_pairs:
        num_wanted = min(size, max_pairs - num_read)
        if num_read < size:
            num_wanted = min(num_wanted, _FIRST_PAIRS)
        block_columns = tuple(list(islice(column, num_wanted)) for column in columns)
        counts = [len(column) for column in block_columns]
        if len(set(counts)) > 1:  # two files, of which one is shorter
            # Count the lines before this block, and the lines after it, for the message.
            for side, column in enumerate(columns):
                counts[side] += num_read + sum(1 for _ in column)
            source, target = counts
            raise DataError.not_parallel(names[0], names[1], (source, target))
        if not counts[0]:
            break
        yield Block(parse, block_columns, num_read + 1)
        num_read += counts[0]
    if not num_read:
        # A corpus without files is a data set of a hub.
        origin = " and ".join(names) or f"{config.huggingface} (split {config.split})"
        fix = "Pass files with one sentence (or pair) per line, or set a split that has rows."
        raise DataError(f"{origin}: no sentence pairs.", fix=fix)


def count_characters(corpora: Sequence[CorpusConfig], languages: tuple[str, str]) -> int:
    """Count the characters of both sides that one epoch reads, before filtering.

    For TSV, CSV and JSON files, the count includes separators and keys.

    Raises:
        ConfigError: The size of a corpus is unknown, because it is on a hub or on standard input.
        DataError: A file is unreadable.
    """
    total = 0.0
    for corpus in corpora:
        is_data_set = corpus.huggingface is not None or corpus.sacrebleu is not None
        if is_piped(corpus) or is_data_set:
            name = corpus.huggingface or corpus.sacrebleu or "standard input"
            problem = f"The size of {name} is unknown, so nmt cannot choose the training defaults."
            raise ConfigError(problem, fix="Add a training section: `training: {max_minutes: 60}`.")
        num_lines = 0
        num_characters = 0
        for path in {*corpus_files(corpus)} - {corpus.scores}:
            num_lines = 0  # only of the last file: all files of a corpus have the same number
            with open_binary(path) as stream:
                while piece := stream.read(_BYTES_AT_ONCE):
                    num_lines += piece.count(b"\n")
                    # A character of UTF-8 has one first byte, so the other bytes do not count.
                    num_characters += len(piece.translate(None, _LATER_BYTES))
        if corpus.demo is not None:
            for pair in demo_pairs(corpus.demo, *corpus.direction(languages)):
                num_lines += 1
                num_characters += sum(map(len, pair))
        max_lines = corpus.max_pairs or num_lines
        share = min(1.0, max_lines / max(num_lines, 1))  # of the lines that are used
        total += corpus.weight * (num_characters * share)
    return round(total)
