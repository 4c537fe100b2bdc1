"""Test sets: from files, from the configuration of a model, or from sacreBLEU.

Also finds the lines of a test set that are in the training data of a model.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from nmt.checkpoint.model_folder import (
    CONFIG,
    load_folder_document,
    recorded_data,
    recorded_value,
)
from nmt.checkpoint.run import trained_on
from nmt.commands.options import (
    EvaluateOptions,
    MbrOptions,
    SearchOptions,
    TextResult,
    TranslatorOptions,
)
from nmt.config.data import CorpusConfig, DataConfig, Direction
from nmt.config.flag import changed
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import is_same_language
from nmt.config.run import check_languages
from nmt.data.corpus import check_files, check_plain_text, corpus_files, read_corpus, valid_sets
from nmt.data.hubs import published_names, published_test_set
from nmt.data.pairs import BadPair, ReadOptions
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError, ConfigError, DataError, did_you_mean, shell_command
from nmt.files.lines import STANDARD_INPUT, decoded_lines, is_standard, open_input
from nmt.metrics.metric import METRICS, requested_metrics
from nmt.metrics.result import System
from nmt.text.preprocessing import check_plain
from nmt.text.tokenizer import load_tokenizers

logger = logging.getLogger(__name__)

_UNBOUNDED_CHARACTERS = 1 << 30
_KEEPS_ALL = "Use `report` FILE.json; it contains all translations."


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """Sentences with their references."""

    name: str  # The test set's name, or the name of the first reference file.
    source: tuple[str, ...] | None  # Source lines; None if there are only references.
    # One or more references, each with a line per sentence.
    references: tuple[tuple[str, ...], ...]
    source_language: str | None = None  # Language code of the source, if known.
    target_language: str | None = None  # Language code of the references, if known.
    files: tuple[Path, ...] = ()  # Input files, which must not be overwritten.
    tag: str | None = None  # Tag of its sources in the configuration.
    is_named: bool = True  # Whether the user passed a name, not files.

    def __len__(self) -> int:
        return len(self.references[0])

    def first(self, count: int | None) -> EvaluationSet:
        """Return the first sentences of the set, or the whole set if ``count`` is None."""
        source = self.source and self.source[:count]
        references = tuple(stream[:count] for stream in self.references)
        return replace(self, source=source, references=references)


@dataclass(frozen=True)
class ConfiguredSets:
    """The languages of a model, and the validation and test sets in its configuration."""

    languages: tuple[str, str]  # Source and target language of the run.
    directions: tuple[Direction, ...]  # Languages of the training corpora.
    data: DataConfig | None  # None if nmt did not train the model, or after a `problem`.
    problem: CheckpointError | None = None  # Why the corpora cannot be read.

    @classmethod
    def of(cls, config: InferenceConfig, record: Mapping[str, Any], folder: Path) -> Self:
        """Return the sets of a model; see `nmt.checkpoint.model_folder.ModelFiles`."""
        try:
            data = recorded_data(record, folder)
        except CheckpointError as error:  # other test sets can still be used
            return cls(config.languages, config.directions, None, error)
        return cls(config.languages, config.directions, data)

    @property
    def tests(self) -> Mapping[str, CorpusConfig]:
        """The test sets by name."""
        return self.data.test if self.data else {}

    def named(self) -> dict[str, CorpusConfig]:
        """Return all sets by name."""
        if self.data is None:
            return {}
        return valid_sets(self.data) | self.data.test

    def check_files(self, corpus: CorpusConfig) -> None:
        """Check that the files of a set exist; raises `DataError`."""
        assert self.data is not None
        held_out = self.data.held_out.items()
        check_files({key: each for key, each in held_out if each is corpus})


def sort_files(options: EvaluateOptions) -> EvaluateOptions:
    """Move files among the positional arguments to ``hypothesis`` and ``reference``.

    Raises:
        ConfigError: The role of a file is not clear; the fix is an explicit command.
    """
    paths = options.models
    if all(path.is_dir() or path.suffix == ".yaml" for path in paths):
        return options
    first, *others = paths
    if not (others or first.is_file()):
        return options
    references = others[-1:] or [Path("REFERENCE")]
    if first.is_dir():
        fix = shell_command("evaluate", first, source=others[:-1], reference=references)
        raise ConfigError(f"{first} is a model, so the files need flags.", fix=f"Type: {fix}")
    sorted_options = replace(options, models=(), hypothesis=(first,))
    if len(others) == 1 and not (options.hypothesis or options.reference):
        return replace(sorted_options, reference=tuple(others))
    if not (others or options.hypothesis) and (options.test or options.reference):
        return sorted_options
    problem = f"{first} is not a model."
    if len(others) > 1:
        problem = f"Several files without flags: {', '.join(map(str, paths))}."
    systems = [first, *others[:-1], *options.hypothesis]
    fix = shell_command("evaluate", hypothesis=systems, reference=references)
    raise ConfigError(problem, fix=f"Type: {fix}")


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that contradict each other, before reading files."""
    base = options.baseline
    if not (options.models or options.hypothesis):
        command = shell_command("evaluate", "RUN", test=options.test)
        fix = f"Pass a run folder, as in `{command}`, or `hypothesis` FILE."
        raise ConfigError("No model and no translations to score.", fix=fix)
    files = [*options.hypothesis, *options.reference, options.source, base]
    if files.count(Path("-")) > 1:
        raise ConfigError("Standard input can be read only once.", fix="Pass files, not -.")
    _check_models(options)
    if options.fail_if_worse and base is None:
        raise ConfigError("`fail_if_worse` needs `baseline`.", fix="Add `baseline` FILE.")
    if options.fail_if_worse and options.resamples == 0:
        fix = "Set `resamples` to 1000, for example."
        raise ConfigError("`fail_if_worse` needs `resamples` above 0.", fix=fix)


def _check_models(options: EvaluateOptions) -> None:
    """Refuse options that need a model, or exactly one model."""
    models = options.models
    base = options.baseline_model
    needing: list[str] = []
    if not models:
        needing += ["robustness", "contrastive", "save_hypotheses", "tag"]
    if not (models or base):
        for group in (TranslatorOptions, SearchOptions, MbrOptions):
            needing += group.__dataclass_fields__
        metrics = requested_metrics(options.metric)
        if any(METRICS[name].argument == "MODEL" for name in metrics):
            needing.remove("device")
    idle = changed(options, *needing)
    if needing and idle:
        verb = "needs" if len(idle) == 1 else "need"
        problem = f"`{'`, `'.join(idle)}` {verb} a model."
        raise ConfigError(problem, fix="Pass a model folder, or remove this option.")
    if options.with_ and len(models) > 1:
        fix = "Evaluate the ensemble in a separate command."
        raise ConfigError("`with` cannot be combined with several models.", fix=fix)
    place = options.save_hypotheses
    if place and (len(models) > 1 or place == Path("-")):
        problem = "`save_hypotheses` needs exactly one model, and a file, not standard output."
        raise ConfigError(problem, fix=_KEEPS_ALL)
    # Other search options apply to both sides.
    has_own_options = changed(options, "checkpoint", "mbr", "with_")
    if base and not has_own_options and base.resolve() in [x.resolve() for x in models]:
        command = shell_command("translate", base, input="SOURCE", output="FILE", beam_size=5)
        problem = f"`baseline` {base}: both sides are the same model with the same options."
        fix = f"Translate one side with different options (`{command}`), then pass `baseline` FILE."
        raise ConfigError(problem, fix=fix)


def load_test_sets(
    options: EvaluateOptions, configured: ConfiguredSets | None
) -> list[EvaluationSet]:
    """Read the requested test sets, by default all in the configuration of the model.

    Args:
        options: Names, languages and files of the test sets.
        configured: The sets of the evaluated model, if any.

    Raises:
        CheckpointError: The test sets of the model cannot be read.
        ConfigError: A test set is unknown, or no test set is configured.
        DataError: A file is missing, damaged, empty or not parallel.
    """
    pair = _language_pair(options, configured)
    has_files = bool(options.reference or options.source)
    names = options.test
    if not names and not has_files and configured is not None:
        if configured.problem is not None:
            raise configured.problem
        names = tuple(configured.tests)
    if not (names or has_files):
        where = "The model's configuration has no test set" if configured else "No test set"
        fix = "Pass `reference` FILE and, with a model, `source` FILE; or `test` and `languages`."
        raise ConfigError(f"{where} to score against.", fix=fix)
    if len(names) + has_files > 1:
        _check_several(options)
    sets = [_named(name, options.languages, pair, configured) for name in names]
    if options.reference:
        if configured and pair is None:
            shown = ", ".join(map(str, configured.directions))
            fix = f"Add `languages` with one of these pairs: {shown}."
            raise ConfigError("The language pair is unknown: the model has several.", fix=fix)
        files = _read_files(options.source, options.reference, pair)
        texts = list(files.references)
        if files.source:
            texts.append(files.source)
        for path, lines in zip(files.files, texts, strict=True):
            check_plain(lines, _shown(path))
        sets.append(replace(files, is_named=False))
    elif options.source:
        raise ConfigError("`source` needs `reference`.", fix="Add `reference` FILE.")
    return sets


def _check_several(options: EvaluateOptions) -> None:
    """Refuse files if there are several test sets, because each file belongs to one."""
    base = options.baseline
    is_file = base is not None and not base.is_dir() and base.suffix != ".json"
    owned = (options.hypothesis or options.slice_) and not options.reference
    if is_file or owned or not options.models:
        problem = "Files of translations or labels cannot be combined with several test sets."
        raise ConfigError(problem, fix="Choose one test set with `test` NAME or `reference` FILE.")
    if options.save_hypotheses:
        problem = "`save_hypotheses` cannot be combined with several test sets."
        raise ConfigError(problem, fix=_KEEPS_ALL)


def _language_pair(options: EvaluateOptions, configured: ConfiguredSets | None) -> Direction | None:
    """Return the languages of files and of sacreBLEU's test sets; None if they are not known."""
    if options.languages is None:
        if configured is None or len(configured.directions) > 1:
            return None
        return configured.directions[0]
    source, _, target = options.languages.partition("-")
    if not (source and target) or "-" in target:
        fix = "Use SOURCE-TARGET, for example `languages` en-de."
        raise ConfigError(f"{options.languages!r} is not a language pair.", fix=fix)
    if options.reference:  # sacreBLEU checks the codes of its own sets
        where = f"`languages` {options.languages}"
        check_languages({f"{where}, source": source, f"{where}, target": target})
    return Direction(source, target)


def _named(
    name: str, pair: str | None, direction: Direction | None, configured: ConfiguredSets | None
) -> EvaluationSet:
    corpora = configured.named() if configured else {}
    if configured and name in corpora:
        corpus = corpora[name]
        languages = corpus.direction(configured.languages)
        if pair and direction and not all(map(is_same_language, direction, languages)):
            problem = f"Test set {name} of the model's configuration is {languages}, not {pair}."
            fix = "Remove `languages`; it applies to files and to sacreBLEU test sets."
            raise ConfigError(problem, fix=fix)
        test = _from_config(name, corpus, configured)
        return replace(test, name=name, tag=corpus.tag)
    if configured and configured.problem and name not in published_names():
        raise configured.problem
    if direction is None:
        fix = "Add `languages` PAIR, for example `languages` en-de."
        raise ConfigError(f"Test set {name}: the language pair is unknown.", fix=fix)
    try:
        source, references = published_test_set(name, direction)
    except ConfigError as error:
        if not corpora:
            raise
        names = f"The model's configuration contains {', '.join(corpora)}."
        problem = f"{error.problem} {names}{did_you_mean(name, corpora)}"
        raise ConfigError(problem, fix=error.fix) from error
    return replace(_read_files(source, references, direction), name=name)


def _from_config(name: str, corpus: CorpusConfig, configured: ConfiguredSets) -> EvaluationSet:
    configured.check_files(corpus)
    source = corpus.source
    references = [corpus.target] if corpus.target else []
    direction = corpus.direction(configured.languages)
    check_plain_text(corpus, direction)
    if corpus.sacrebleu is not None:
        source, references = published_test_set(corpus.sacrebleu, direction)
    if references:  # Test sets keep every line; the training filters do not apply.
        return _read_files(source, references, direction).first(corpus.max_pairs)
    options = ReadOptions(*direction, max_characters=_UNBOUNDED_CHARACTERS)
    sources = []
    targets = []
    for pair in read_corpus(corpus, options):
        if isinstance(pair, BadPair):
            place = f"Test set {name}, line {pair.line:,}"
            raise DataError(f"{place}: {pair.reason}.", fix="Correct the line.")
        sources.append(pair.source)
        targets.append(pair.target)
    return EvaluationSet(
        name=name,
        source=tuple(sources),
        references=(tuple(targets),),
        source_language=direction.source,
        target_language=direction.target,
        files=corpus_files(corpus),
    )


def _read_files(
    source: Path | None, references: Sequence[Path], direction: Direction | None
) -> EvaluationSet:
    files = list(references)
    if source:
        files.append(source)
    texts = [read_text(path) for path in files]
    num_lines = len(texts[0])
    if not num_lines:
        raise DataError(f"{files[0]} has no lines.", fix="Pass a file with references.")
    for path, lines in zip(files, texts, strict=True):
        if len(lines) != num_lines:
            counts = (num_lines, len(lines))
            raise DataError.not_parallel(str(files[0]), str(path), counts)
    return EvaluationSet(
        name=references[0].name,
        source=texts[-1] if source else None,
        references=tuple(texts[: len(references)]),
        source_language=direction and direction.source,
        target_language=direction and direction.target,
        files=tuple(files),
    )


def read_text(path: Path) -> tuple[str, ...]:
    """Read lines from a file; ``-`` is standard input.

    Raises:
        DataError: The file is missing, damaged or not UTF-8.
    """
    with open_input(path) as stream:
        return tuple(decoded_lines(stream, _shown(path)))


def _shown(path: Path) -> str:
    return STANDARD_INPUT if is_standard(path) else str(path)


def read_systems(paths: Sequence[Path], whole: EvaluationSet, limit: int | None) -> list[System]:
    """Read translations of the whole set, or of its first ``limit`` sentences.

    A system is named after its file; with the folder if two files have the same name.

    Raises:
        DataError: The number of lines does not match the test set, or the text is segmented or
            escaped.
    """
    names = [Path(_shown(path)).name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    systems = []
    for name, path in zip(names, paths, strict=True):
        lines = _fitting(path, whole, limit)
        check_plain(lines, _shown(path))
        systems.append(System(name, lines))
    return systems


def read_labels(
    texts: Sequence[str], whole: EvaluationSet, limit: int | None
) -> dict[str, Sequence[str]]:
    """Read files with one label per sentence, given as ``NAME=FILE``."""
    labels = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not (name and path):
            fix = "Write, for example, `slice` domain=labels.txt."
            raise ConfigError(f"`slice` {text}: write NAME=FILE.", fix=fix)
        labels[name] = _fitting(Path(path), whole, limit)
    return labels


def _fitting(path: Path, whole: EvaluationSet, limit: int | None) -> Sequence[str]:
    lines = read_text(path)
    if len(lines) not in (len(whole), limit):
        fix = "Translate the whole test set; line i must translate sentence i."
        counts = (len(lines), len(whole))
        raise DataError.not_parallel(_shown(path), whole.name, counts, fix=fix)
    return lines[:limit]


def list_test_sets(folders: Iterable[Path]) -> TextResult:
    """Return the names of the test sets of models, then of the sacreBLEU test sets."""
    names: dict[str, None] = {}
    for folder in folders:
        configured = ConfiguredSets.of(*load_folder_document(folder), folder)
        names |= dict.fromkeys([*configured.tests, *configured.named()])
    names |= dict.fromkeys(published_names())
    return TextResult("\n".join(names), {"tests": list(names)})


def training_data(folder: Path, visited: frozenset[Path] = frozenset()) -> Iterator[PreparedData]:
    """Yield the training data of a model, and of the models that it was initialized from.

    Missing and changed data are skipped with a log message.

    Args:
        folder: Run or model folder.
        visited: Folders whose data were yielded before.
    """
    if folder in visited or not (folder / CONFIG).is_file():
        return
    _, record = load_folder_document(folder)
    prepared_dir = Path(str(record.get("prepared_dir")))
    if trained_on(folder, prepared_dir):
        yield PreparedData.open(prepared_dir)
    else:
        text = "cannot check for overlap with the training data of %s: prepared data not found"
        logger.info(text, folder)
    start = recorded_value(record, "training.init_from")
    if start is not None:
        yield from training_data(Path(str(start)), visited | {folder})


def rows_in_training(folder: Path, lines: Sequence[str]) -> set[int] | None:
    """Return the indices of source lines in the training data; None if the data are missing.

    Lines are compared as token ids, so white space that the tokenizer normalizes does not matter.
    `nmt.extras.analysis.slices` also finds similar lines.
    """
    rows_of_all: set[int] | None = None
    for data in training_data(folder):
        tokenizer = load_tokenizers(data.tokenizer_dir).source
        tag_ids = list(tokenizer.tag_ids)
        encoded = [tuple(tokenizer.without_tags(ids)) for ids in tokenizer.encode_batch(lines)]
        wanted = [_key(len(ids), ids[0], ids[-1]) for ids in set(encoded) if ids]
        seen = set[tuple[int, ...]]()
        for stored in data.train.source.blocks():
            ids = stored.ids.astype(np.int64)
            starts = stored.offsets[:-1]
            ends = stored.offsets[1:]
            for _ in range(2):  # skip the tags of language and corpus
                first_ids = ids[np.minimum(starts, ends - 1)]
                starts = starts + np.isin(first_ids, tag_ids)
            keys = _key(ends - starts, ids[starts], ids[ends - 1])
            matches = np.isin(keys, np.array(wanted, np.int64))
            for row in np.flatnonzero(matches):
                seen.add(tuple(ids[starts[row] : ends[row]].tolist()))
        rows = {row for row, line in enumerate(encoded) if line in seen}
        rows_of_all = rows | (rows_of_all or set())
    return rows_of_all


def _key(length: Any, first: Any, last: Any) -> Any:
    # A cheap hash: compares millions of rows per second.
    return (length << 40) | (first << 20) | last
