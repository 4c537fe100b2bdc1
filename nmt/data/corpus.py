"""Reads the sentence pairs of a corpus of the configuration, in any supported format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Any

from nmt.config.data import CorpusConfig, DataConfig
from nmt.config.filling import TextSize, UnknownSizeError
from nmt.config.language_codes import Languages, matching
from nmt.config.paths import is_pattern, matching_files, shard_problem
from nmt.data.demo import demo_pairs
from nmt.data.formats import FORMATS, layout_of
from nmt.data.formats.file_names import format_of_name, is_set
from nmt.data.formats.layout import Layout, Wanted
from nmt.data.formats.pair import (
    BadPair,
    Pair,
    PairReader,
    ReadOptions,
    SentencePair,
    as_read,
    leading_tag,
    pair_of,
)
from nmt.data.formats.text import TextFile, open_sides, shown_path
from nmt.data.hubs import huggingface_pairs, published_test_set
from nmt.errors import ConfigError, DataError
from nmt.files.archive import place_in_archive
from nmt.files.encoding import standard_encoding
from nmt.files.lines import STANDARD_INPUT, is_standard, near_file
from nmt.text.preprocessing import NUM_LINES, check_plain

VALID = "valid"  # name of the validation set in reports
BLOCK_PAIRS = 10_000
# Size of the first blocks of a corpus, so that progress is shown and all workers start early.
_FIRST_PAIRS = 1000
_FILE_KEYS = ("source", "target", "path")  # of `CorpusConfig`
_LINE_ENDS = 2  # of a pair in two text files


def corpus_names(corpora: Iterable[CorpusConfig]) -> list[str]:
    """Return a unique name for each corpus in reports: its ``name``, or the path or hub name.

    A name that occurs again gets the number of its corpus, such as ``train.tsv (2)``.
    """
    names = [VALID]  # no corpus may have this name
    for corpus in corpora:
        name = corpus.name or origin_of(corpus)
        if corpus.line_languages and not corpus.name:
            name += f"-{corpus.line_language}"
        unique_name = name
        number = len(names)
        while unique_name in names:
            unique_name = f"{name} ({number})"
            number += 1
        names.append(unique_name)
    return names[1:]  # without `VALID`


def origin_of(corpus: CorpusConfig) -> str:
    """Return the file of a corpus or of its source side, its name on a hub, or the demo corpus."""
    if is_piped(corpus):
        return STANDARD_INPUT
    if corpus.demo:
        return f"demo-{corpus.demo}"
    for path in (*corpus.source, *corpus.path):
        return str(path)  # the first shard or the pattern of the shards
    return str(corpus.huggingface or corpus.sacrebleu)


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
    """Whether a corpus is read from standard input: ``path: -``."""
    return any(map(is_standard, config.path))


def corpus_files(config: CorpusConfig) -> tuple[Path, ...]:
    """Return the local files of a corpus; empty for a hub or the demo corpus."""
    paths = [*matching_files((*config.source, *config.target, *config.path))]
    paths += filter(None, (config.scores, config.language_file))
    if config.huggingface is not None:  # a name on the hub, or a local file or folder
        local = Path(config.huggingface)
        paths += filter(Path.is_file, (local, *sorted(local.rglob("*"))))
    return tuple(paths)


def text_files(
    config: CorpusConfig, languages: Languages
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the text files of both sides, if they are separate: shards, or one and its references.

    Raises:
        ConfigError: The sacrebleu test set does not exist.
        DataError: The test set cannot be downloaded, or the shards of both sides do not match.
    """
    if config.sacrebleu is not None:
        source, references = published_test_set(config.sacrebleu, languages)
        return (source,), tuple(references)
    sources = matching_files(config.source)
    targets = matching_files(config.target)
    if len(sources) == 1 and targets:
        return sources, targets
    problem = shard_problem(sources, targets)
    if problem:
        raise DataError(
            f"{problem}.",
            fix="Pass the files of both sides in the same order, or list them as several corpora.",
        )
    return sources, targets


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
        raise ConfigError(
            "Standard input (-) can only be the path of a single training corpus.",
            fix="Write the other corpora to files, and use their paths.",
        )
    for path in files:
        refuse_device(path)
    return num_piped > 0


def refuse_device(path: Path) -> None:
    """Refuse a file that cannot be read twice.

    Raises:
        DataError: It is a named pipe or a device.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(
            f"{path} is a pipe or a device, but nmt reads a corpus twice.",
            fix="Write the text to a file first.",
        )


def check_files(corpora: Mapping[str, CorpusConfig]) -> None:
    """Check that all files of the corpora exist, before reading.

    Args:
        corpora: Corpora by their keys in the configuration, for example ``data.train.0``.

    Raises:
        ConfigError: An encoding is unknown.
        DataError: A file is missing, or shards do not match. The message lists every missing file
            with its key.
    """
    problems = []
    for corpus_key, corpus in corpora.items():
        standard_encoding(corpus.encoding or "utf-8")
        files = [(key, path) for key in _FILE_KEYS for path in matching_files(getattr(corpus, key))]
        single_files = {"scores": corpus.scores, "language_file": corpus.language_file}
        files += [(key, path) for key, path in single_files.items() if path]
        for key, path in files:
            if is_pattern(path):
                problems.append(f"{corpus_key}.{key}: no file matches {path}.")
            elif _is_missing(path):
                problems.append(f"{corpus_key}.{key}: {path} does not exist.{near_file(path)}")
    if not problems:
        for corpus in corpora.values():
            text_files(corpus.model_copy(update={"sacrebleu": None}), ("", ""))
    if problems:
        fix = f"Relative paths start at the working directory, {Path.cwd()}; paths with "
        raise DataError("\n  ".join(problems), fix=f"{fix}@config/, at the configuration's folder.")


def check_plain_text(corpus: CorpusConfig, languages: Languages) -> None:
    """Check that no tool has segmented, escaped or marked up the files of a corpus.

    Reads only the first lines. Corpora on hubs and in sacrebleu are not checked.

    Args:
        corpus: The corpus. Its files must exist.
        languages: Source and target language.

    Raises:
        DataError: See `nmt.text.preprocessing`; or a file is unreadable.
    """
    options = ReadOptions(*languages, "skip")
    for path in matching_files((*corpus.source, *corpus.target)):
        if is_set(path):
            continue
        raw_lines = TextFile(path, corpus.encoding, options).raw_lines()
        texts = [(line or b"").decode("utf-8", "replace") for line in islice(raw_lines, NUM_LINES)]
        check_plain(texts, str(path))
    for path in matching_files(corpus.path):
        # Item i of each list is the text of line i + 1, so that messages have the right line. Lines
        # that cannot be read are missing from the pairs; here they are empty.
        sources = list[str]()
        targets = list[str]()
        # Also the lines in other languages, so that few lines are read.
        shard = corpus.model_copy(update={"path": (path,), corpus.language_key: None})
        for pair in first_pairs(shard, options, NUM_LINES):
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


def read_corpus(config: CorpusConfig, options: ReadOptions) -> Iterator[Pair]:
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

    parse: Callable[..., Iterable[Pair]]  # called with the columns and a line number
    columns: tuple[Sequence[Any], ...]  # raw data, with one item per pair in each column
    first: int  # number of the first pair in the corpus, from 1
    num_before: int = 0  # number of pairs in the shards before this one
    shard: str | None = None  # name of the file, if the corpus has several
    features: Any = None  # additional data for the function that processes the block
    num_others: int = 0  # number of pairs in other languages before or between the pairs

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.columns[0])

    @property
    def content(self) -> str:
        """The raw lines as text, to hash for the cache of results."""
        return repr((self.shard, self.first, self.columns))

    @cached_property
    def pairs(self) -> list[Pair]:
        """The decoded pairs.

        Raises:
            DataError: See `read_corpus`.
        """
        pairs = list(self.parse(*self.columns, self.first - self.num_before))
        if self.shard is not None:
            pairs = [pair._replace(file=self.shard) for pair in pairs]
        return pairs


def read_blocks(config: CorpusConfig, options: ReadOptions) -> Iterator[Block]:
    """Yield the pairs of a corpus in blocks of up to 10,000 pairs; the first blocks are smaller.

    Raises:
        DataError: See `read_corpus`. Problems in single lines are raised by `Block.pairs`.
    """
    blocks = _blocks_of_all_languages(config, options)
    if config.line_languages and config.line_language:
        return _blocks_in_language(blocks, config)
    return blocks


def _blocks_in_language(blocks: Iterable[Block], config: CorpusConfig) -> Iterator[Block]:
    """Yield the pairs of a corpus that name its language, and those that cannot be read.

    Raises:
        DataError: There are none.
    """
    num_pairs = 0
    num_others = 0
    num_before: dict[str | None, int] = {}  # by shard
    for block in blocks:
        pairs = list(filter(None, (_in_language(pair, config) for pair in block.pairs)))
        num_others += len(block) - len(pairs)
        before = num_before.setdefault(block.shard, num_pairs)
        if pairs:
            first = num_pairs + 1
            yield Block(as_read, (pairs,), first, before, block.shard, num_others=num_others)
            num_pairs += len(pairs)
            num_others = 0
    if not num_pairs:
        problem = f"{origin_of(config)}: no line names the language {config.line_language!r}."
        fix = f"Correct {config.language_key}s of the corpus; {config.language_key} must be one "
        fix += "of them."
        raise DataError(problem, fix=fix)


def _in_language(pair: Pair, config: CorpusConfig) -> Pair | None:
    """Return a pair without the tag of its language; None if the language is another one."""
    if isinstance(pair, BadPair) or not pair.source.strip():
        return pair
    tag = leading_tag(pair.source)
    languages = matching(tag[2:-2], config.line_languages)
    if len(languages) != 1:
        return BadPair("language_code", pair.line, pair.source)
    if languages != [config.line_language]:
        return None
    return pair._replace(source=pair.source.removeprefix(tag).lstrip())


def _blocks_of_all_languages(config: CorpusConfig, options: ReadOptions) -> Iterator[Block]:
    """Yield the blocks of `read_blocks` with the pairs of all languages."""
    openers = _openers(config, options)
    max_pairs = config.max_pairs or sys.maxsize
    num_read = 0
    for open_shard in openers:
        if num_read >= max_pairs:
            break
        reader = open_shard()
        shard = reader.names[0] if len(openers) > 1 else None
        num_before = num_read
        while num_read < max_pairs:
            num_wanted = min(BLOCK_PAIRS, max_pairs - num_read)
            if num_read < BLOCK_PAIRS:
                num_wanted = min(num_wanted, _FIRST_PAIRS)
            columns = _next_columns(reader, num_wanted, num_read - num_before)
            if not columns[0]:
                break
            yield Block(reader.parse, columns, num_read + 1, num_before, shard)
            num_read += len(columns[0])
    if not num_read:
        raise DataError(
            f"{origin_of(config)}: no sentence pairs.",
            fix="Pass files with one sentence (or pair) per line, or set a split that has rows.",
        )


def _next_columns(reader: PairReader, num_wanted: int, num_read: int) -> tuple[Sequence[Any], ...]:
    """Return the items of the next pairs in each column of a reader.

    Raises:
        DataError: There are several files, of which one is shorter.
    """
    columns = tuple(list(islice(column, num_wanted)) for column in reader.columns)
    counts = [len(column) for column in columns]
    if len(set(counts)) > 1:
        # Count the lines before this block, and the lines after it, for the message.
        for side, column in enumerate(reader.columns):
            counts[side] += num_read + sum(1 for _ in column)
        files = zip(counts, reader.names, strict=True)
        source, *others = files
        other = next(file for file in others if file[0] != source[0])
        raise DataError.not_parallel(source[1], other[1], (source[0], other[0]))
    return columns


def _openers(config: CorpusConfig, options: ReadOptions) -> list[Callable[[], PairReader]]:
    """Return a function for each shard of a corpus that opens it.

    Raises:
        ConfigError: The sacrebleu test set does not exist.
        DataError: The test set cannot be downloaded, or the shards of both sides do not match.
    """
    if config.path:
        paths = matching_files(config.path)
        return [partial(_open_path, path, config, options) for path in paths]
    languages = options.source_language, options.target_language
    sources, targets = text_files(config, languages)
    if not sources:
        return [partial(_open_pairs, config, languages, options)]
    shards: Iterable[tuple[Path, ...]] = zip(sources, targets, strict=False)
    if len(sources) == 1:  # which may have several references
        shards = [(*sources, *targets)]
    codes = config.language_file
    return [partial(open_sides, files, config.encoding, options, codes) for files in shards]


def _open_path(path: Path, config: CorpusConfig, options: ReadOptions) -> PairReader:
    """Open a file with both sides."""
    languages = options.source_language, options.target_language
    layout = _layout(path, config, languages)
    return FORMATS[layout.format].open(path, layout, options)


def _layout(path: Path, config: CorpusConfig, languages: Languages) -> Layout:
    return layout_of(path, Wanted(languages, config.columns, config.format, config.encoding))


def layout_notes(config: CorpusConfig, languages: Languages) -> Iterator[str]:
    """Yield how the files of a corpus are read, as sentences; nothing for lines of plain text.

    Of shards, only the first one of each layout is named.
    """
    shown = set[str]()
    for path in matching_files(config.path):
        layout = str(_layout(path, config, languages))
        if layout not in shown:
            shown.add(layout)
            yield f"{shown_path(path)} is read as {layout}"
    for path in filter(is_set, matching_files((*config.source, *config.target))):
        yield f"{path} is read as {format_of_name(path)}"


def _open_pairs(config: CorpusConfig, languages: Languages, options: ReadOptions) -> PairReader:
    """Open the demo corpus, or a data set of a hub."""
    if config.demo is not None:
        texts = demo_pairs(config.demo, *languages)
    else:
        texts = huggingface_pairs(str(config.huggingface), config, languages)
    pairs = (pair_of(*pair, line, options) for line, pair in enumerate(texts, start=1))
    return PairReader([], [pairs])


def measure_text(
    corpora: Sequence[CorpusConfig], languages: Languages, *, enough: float = inf
) -> TextSize:
    """Count the pairs and the characters of both sides that one epoch reads, before filtering.

    The syntax of a format does not count, so that the same pairs have the same size in every
    format: that of two text files, with a line end for each sentence.

    Args:
        corpora: Training corpora.
        languages: Source and target language.
        enough: Number of characters after which counting stops.

    Raises:
        UnknownSizeError: A corpus is on a hub or on standard input.
        DataError: A file is unreadable.
    """
    num_pairs = 0.0
    num_characters = 0.0
    for corpus in corpora:
        if is_piped(corpus) or corpus.huggingface is not None or corpus.sacrebleu is not None:
            name = corpus.huggingface or corpus.sacrebleu or "standard input"
            raise UnknownSizeError(
                f"The size of {name} is unknown until it is read.",
                fix="Set the time of training in minutes: `set` training.max_minutes=60.",
            )
        for block in read_blocks(corpus, ReadOptions(*corpus.direction(languages), "skip")):
            for pair in block.pairs:
                if isinstance(pair, SentencePair):
                    size = len(pair.source) + len(pair.target) + _LINE_ENDS
                    num_pairs += corpus.weight
                    num_characters += corpus.weight * size
            if num_characters > enough:
                return TextSize(round(num_pairs), round(num_characters), is_complete=False)
    return TextSize(round(num_pairs), round(num_characters))
