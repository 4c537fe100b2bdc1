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
    project_of,
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
from nmt.config.data import ANY_LANGUAGE, CorpusConfig, DataConfig, Direction
from nmt.config.flag import changed
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import is_same_language
from nmt.config.run import check_languages
from nmt.data.corpus import (
    check_files,
    check_plain_text,
    corpus_files,
    read_corpus,
    text_files,
    valid_sets,
)
from nmt.data.formats.file_names import is_set
from nmt.data.formats.json_lines import object_of
from nmt.data.formats.pair import BadPair, Pair, ReadOptions, place_of
from nmt.data.formats.text import open_sides
from nmt.data.hubs import published_names, published_test_set
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError, ConfigError, DataError, did_you_mean, shell_command
from nmt.files.atomic import write_text
from nmt.files.encoding import open_text
from nmt.files.lines import STANDARD_INPUT, decoded_lines, is_standard, open_input
from nmt.metrics.metric import METRICS, requested_metrics
from nmt.metrics.result import System
from nmt.text.preprocessing import check_plain
from nmt.text.tokenizer import load_tokenizers

logger = logging.getLogger(__name__)

_UNBOUNDED_CHARACTERS = 1 << 30
TEST = "{test}"  # Stands for the name of a test set in the name of a file.
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
        source = None if self.source is None else self.source[:count]
        references = tuple(reference[:count] for reference in self.references)
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
        """Return the sets of a model.

        Args:
            config: What translating needs.
            record: The record of the training; see `nmt.checkpoint.model_folder.ModelFiles`.
            folder: The model folder.
        """
        data = None
        problem = None
        try:
            data = recorded_data(record, folder)
        except CheckpointError as error:  # other test sets can still be used
            problem = error
        return cls(config.languages, config.directions, data, problem)

    @property
    def tests(self) -> Mapping[str, CorpusConfig]:
        """The test sets by name."""
        return self.data.test if self.data else {}

    def named(self) -> dict[str, CorpusConfig]:
        """Return all validation and test sets by name."""
        if self.data is None:
            return {}
        return valid_sets(self.data) | self.data.test

    def check_files(self, corpus: CorpusConfig) -> None:
        """Check that the files of a set exist.

        Raises:
            DataError: A file is missing. The message has the key of the set in the configuration.
        """
        assert self.data is not None
        sets_by_key = self.data.held_out.items()
        check_files({key: held_out for key, held_out in sets_by_key if held_out is corpus})


def sort_files(options: EvaluateOptions) -> EvaluateOptions:
    """Move files among the positional arguments to ``hypothesis`` and ``reference``.

    Raises:
        ConfigError: The role of a file is not clear; the fix is an explicit command.
    """
    paths = options.models
    if all(path.is_dir() or path.suffix == ".yaml" for path in paths):
        return options  # loading a configuration as a model explains that mistake
    first, *more_paths = paths
    metrics = [path.name for path in paths if path.name in METRICS and not path.exists()]
    if metrics:
        separated = ",".join([*options.metric, *metrics])
        fix = f"Separate metrics by commas: `metric` {separated}"
        raise ConfigError(f"{metrics[0]} is a metric, not a file.", fix=fix)
    if not (more_paths or first.is_file() or is_pattern(first)):
        return options  # a model that is missing, which is reported when it is loaded
    # In the commands that the errors propose, the last file is the reference.
    texts = paths
    references = options.reference
    if not references:
        texts = paths[:-1]
        references = paths[-1:]
    lead = "Type" if all(path.exists() for path in paths) else "Fill in the files"
    if first.is_dir():
        fix = shell_command("evaluate", first, source=texts[1:], reference=references)
        raise ConfigError(f"{first} is a model, so the files need flags.", fix=f"{lead}: {fix}")
    if not options.hypothesis:
        sorted_options = replace(options, models=(), hypothesis=(first,))
        if len(more_paths) == 1 and not options.reference:
            return replace(sorted_options, reference=tuple(more_paths))
        if not more_paths and (options.test or options.reference):
            return sorted_options
    problem = f"{first} is not a model."
    if len(more_paths) > 1:
        problem = f"Several files without flags: {', '.join(map(str, paths))}."
    hypotheses = [*texts, *options.hypothesis]
    if not hypotheses:
        hypotheses = [first]
        references = (Path("REFERENCE"),)
        lead = "Fill in the files"
    fix = shell_command("evaluate", hypothesis=hypotheses, reference=references)
    if len(texts) > 1 and not options.reference:
        several = shell_command("evaluate", hypothesis=first, reference=more_paths)
        fix += f"\n  or, with several references: {several}"
    raise ConfigError(problem, fix=f"{lead}: {fix}")


def write_texts(folder: Path, texts: Mapping[str, Sequence[object]]) -> dict[str, Any]:
    """Write lists of texts to files, one text per line; return the files as options.

    A list of lists becomes several systems or references.

    Raises:
        DataError: A value is not a text, such as the NaN of a pandas column, or has several lines.
    """
    files: dict[str, Any] = {}
    for name, lines in texts.items():
        if name != "source" and lines and all(isinstance(text, list) for text in lines):
            parts: dict[str, Any] = {f"{name}-{i}": text for i, text in enumerate(lines, 1)}
            files[name] = sum(write_texts(folder, parts).values(), ())
            continue
        for number, line in enumerate(lines, 1):
            if not isinstance(line, str) or "\n" in line:
                fix = "Pass a list of str without line breaks."
                raise DataError(f"{name}, line {number:,}: {line!r} is not a line.", fix=fix)
        path = folder / name
        write_text(path, "".join(f"{line}\n" for line in lines))
        files[name] = path if name == "source" else (path,)
    return files


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that contradict each other, before reading files."""
    baseline = options.baseline
    if not (options.models or options.hypothesis):
        command = shell_command("evaluate", "RUN", test=options.test)
        raise ConfigError(
            "No model and no translations to score.",
            fix=f"Pass a run folder, as in `{command}`, or `hypothesis` FILE.",
        )
    for path in options.hypothesis:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder.", fix="Pass a model without `hypothesis`.")
    files = [*options.hypothesis, *options.reference, options.source, baseline]
    if files.count(Path("-")) > 1:
        raise ConfigError("Standard input can be read only once.", fix="Pass files, not -.")
    _check_models(options)
    if options.fail_if_worse and baseline is None:
        raise ConfigError("`fail_if_worse` needs `baseline`.", fix="Add `baseline` FILE.")
    if options.fail_if_worse and options.resamples == 0:
        raise ConfigError(
            "`fail_if_worse` needs `resamples` above 0.",
            fix="Set `resamples` to 1000, for example.",
        )


def _check_models(options: EvaluateOptions) -> None:
    """Refuse options that need a model, or exactly one model, or two different models."""
    models = options.models
    baseline = options.baseline_model
    needing_model = list[str]()  # names of options
    if not models:
        needing_model += ["robustness", "contrastive", "save_hypotheses", "tag"]
    if not (models or baseline):
        for group in (TranslatorOptions, SearchOptions, MbrOptions):
            needing_model += group.__dataclass_fields__
        metrics = requested_metrics(options.metric)
        # A metric that is a model also runs on a device.
        if any(METRICS[name].argument == "MODEL" for name in metrics):
            needing_model.remove("device")
    unusable = changed(options, *needing_model)
    if needing_model and unusable:  # without names, `changed` compares all options
        verb = "needs" if len(unusable) == 1 else "need"
        raise ConfigError(
            f"`{'`, `'.join(unusable)}` {verb} a model.",
            fix="Pass a model folder, or remove this option.",
        )
    if options.with_ and len(models) > 1:
        raise ConfigError(
            "`with` cannot be combined with several models.",
            fix="Evaluate the ensemble in a separate command.",
        )
    output = options.save_hypotheses
    if output and (len(models) > 1 or output == Path("-")):
        raise ConfigError(
            "`save_hypotheses` needs exactly one model, and a file, not standard output.",
            fix=_KEEPS_ALL,
        )
    # These options do not apply to the baseline, so they make the same model another system. All
    # other search options apply to both sides.
    if baseline is None or changed(options, "checkpoint", "mbr", "with_"):
        return
    if baseline.resolve() in [model.resolve() for model in models]:
        command = shell_command("translate", baseline, input="SOURCE", output="FILE", beam_size=5)
        raise ConfigError(
            f"`baseline` {baseline}: both sides are the same model with the same options.",
            fix=f"Translate one side with different options (`{command}`), then pass "
            "`baseline` FILE.",
        )


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
    direction = _direction(options, configured)
    has_patterns = any(map(is_pattern, options.reference))
    # Files without a pattern are one test set.
    has_files = bool(options.reference or options.source) and not has_patterns
    names = options.test
    if not (names or has_files):
        problem = "No test set to score against."
        if configured is not None:
            if configured.problem is not None:
                raise configured.problem
            names = tuple(configured.tests)
            problem = "The model's configuration has no test set to score against."
        fix = "Pass `reference` FILE and, with a model, `source` FILE; or `test` and `languages`."
        if has_patterns:
            fix = "Add `test` NAME for each test set; the names take the place of {test}."
        if not names:
            raise ConfigError(problem, fix=fix)
    if options.source and not options.reference:
        raise ConfigError("`source` needs `reference`.", fix="Add `reference` FILE.")
    if len(names) + has_files > 1:
        _check_several(options, has_files)
    _check_patterns(options, names)
    if has_patterns:
        return [_set_of_files(options, configured, direction, name) for name in names]
    sets = [_named_set(name, options.languages, direction, configured) for name in names]
    if has_files:
        sets.append(_set_of_files(options, configured, direction))
    return sets


def _check_several(options: EvaluateOptions, has_files: bool) -> None:
    """Refuse files and options that belong to a single test set.

    Args:
        options: Options of an evaluation on several test sets.
        has_files: Whether files are one of the test sets. Then files of translations and labels
            belong to it, and models translate the others.
    """
    texts: list[Path | str] = [*options.hypothesis, *options.slice_]
    if has_files and options.models:
        texts = []
    # A model or a report can have all test sets.
    baseline = options.baseline
    if baseline and not (baseline.is_dir() or baseline.suffix == ".json"):
        texts.append(baseline)
    plain = [text for text in texts if not is_pattern(text)]
    if plain:
        raise ConfigError(
            f"{plain[0]}: a file of translations or labels cannot be combined with several test "
            "sets.",
            fix="Write {test} in place of the name of the test set, as in `hypothesis` "
            "system.{test}.en, or choose one test set with `test` NAME.",
        )
    if options.save_hypotheses:
        raise ConfigError(
            "`save_hypotheses` cannot be combined with several test sets.", fix=_KEEPS_ALL
        )


def _check_patterns(options: EvaluateOptions, names: Sequence[str]) -> None:
    """Check that each pattern has a file for each of the named test sets."""
    missing = list[str]()
    for path in filter(is_pattern, paths_of(options)):
        files = [file_of(path, name) for name in names]
        missing += (str(file) for file in files if not file.exists())
    if missing:
        raise DataError(
            f"Files do not exist: {', '.join(missing)}.",
            fix="A path with {test} needs a file for each test set. Add the files, or choose test "
            "sets with `test` NAME.",
        )


def paths_of(options: EvaluateOptions) -> list[Path]:
    """Return the paths of texts and labels, as the user has typed them."""
    paths = [*options.hypothesis, *options.reference]
    paths += filter(None, [options.source, options.baseline])
    paths += (Path(label.partition("=")[2]) for label in options.slice_)  # NAME=FILE
    return paths


def is_pattern(path: Path | str) -> bool:
    """Whether the path contains the place of the name of a test set."""
    return TEST in str(path)


def file_of(path: Path, test: str) -> Path:
    """Return the file of a test set; only a pattern has one for each test set."""
    return Path(str(path).replace(TEST, test))


def _set_of_files(
    options: EvaluateOptions,
    configured: ConfiguredSets | None,
    direction: Direction | None,
    name: str | None = None,
) -> EvaluationSet:
    """Read the test set that the user has passed as files.

    Args:
        options: Paths of the files.
        configured: The sets of the evaluated model, if any.
        direction: Languages of the files, if they are known.
        name: Name that the paths are patterns for; None if the paths are one test set.

    Raises:
        ConfigError: The model has several language pairs, and ``direction`` is None.
        DataError: A file is missing, damaged, empty or not parallel.
    """
    is_imported = direction == (ANY_LANGUAGE, ANY_LANGUAGE)  # without languages
    if configured and (direction is None or is_imported):
        listed = ", ".join(map(str, configured.directions))
        fix = f"Add `languages` with one of these pairs: {listed}."
        if is_imported:
            fix = "Add `languages` PAIR, for example `languages` en-de."
        raise ConfigError("The language pair is unknown: the model has several.", fix=fix)
    test_name = name or TEST  # then a path stays as it is
    source = options.source and file_of(options.source, test_name)
    references = [file_of(path, test_name) for path in options.reference]
    test = _read_files(source, references, direction)
    # Each text has a file, except for a missing source, which is last.
    texts = [*test.references, test.source or ()]
    for path, lines in zip(test.files, texts, strict=False):
        check_plain(lines, _display_name(path))
    return replace(test, name=name or test.name, is_named=bool(name))


def _direction(options: EvaluateOptions, configured: ConfiguredSets | None) -> Direction | None:
    """Return the languages of files and of sacreBLEU's test sets; None if they are not known.

    They are `languages`, or those of the model if it has a single direction.

    Raises:
        ConfigError: `languages` is wrong.
    """
    if options.languages is None:
        if configured is None or len(configured.directions) > 1:
            return None
        return configured.directions[0]
    source, _, target = options.languages.partition("-")
    if not (source and target) or "-" in target:
        raise ConfigError(
            f"{options.languages!r} is not a language pair.",
            fix="Use SOURCE-TARGET, for example `languages` en-de.",
        )
    if options.reference:  # sacreBLEU checks the codes of its own sets
        where = f"`languages` {options.languages}"
        check_languages({f"{where}, source": source, f"{where}, target": target})
    return Direction(source, target)


def _named_set(
    name: str, languages: str | None, direction: Direction | None, configured: ConfiguredSets | None
) -> EvaluationSet:
    """Return the test set ``name`` of the model's configuration, or else of sacreBLEU.

    Args:
        name: Name of a test set.
        languages: The option `languages`, if the user has set it.
        direction: What `_direction` returns. It is not None if ``languages`` is set.
        configured: The sets of the evaluated model, if any.

    Raises:
        CheckpointError: The test sets of the model cannot be read.
        ConfigError: There is no such set, or its languages are unknown, or not ``languages``.
        DataError: A file is missing, damaged, empty or not parallel.
    """
    corpora = configured.named() if configured else {}
    if configured and name in corpora:
        corpus = corpora[name]
        pair = corpus.direction(configured.languages)
        is_same = direction is not None and all(map(is_same_language, direction, pair))
        if languages and not is_same:
            raise ConfigError(
                f"Test set {name} of the model's configuration is {pair}, not {languages}.",
                fix="Remove `languages`; it applies to files and to sacreBLEU test sets.",
            )
        test = _configured_set(name, corpus, configured)
        return replace(test, name=name, tag=corpus.tag)
    if configured and configured.problem and name not in published_names():
        raise configured.problem  # the set may be in the data that cannot be read
    if direction is None:
        raise ConfigError(
            f"Test set {name}: the language pair is unknown.{did_you_mean(name, corpora)}",
            fix="Add `languages` PAIR, for example `languages` en-de.",
        )
    try:
        source, references = published_test_set(name, direction)
    except ConfigError as error:
        if not corpora:
            raise
        names = f"The model's configuration contains {', '.join(corpora)}."
        raise ConfigError(
            f"{error.problem} {names}{did_you_mean(name, corpora)}", fix=error.fix
        ) from error
    return replace(_read_files(source, references, direction), name=name)


def _configured_set(name: str, corpus: CorpusConfig, configured: ConfiguredSets) -> EvaluationSet:
    """Read a test set of the model's configuration.

    Test sets keep every line; the filters of training pairs do not apply.
    """
    configured.check_files(corpus)
    direction = corpus.direction(configured.languages)
    check_plain_text(corpus, direction)
    sources, targets = text_files(corpus, direction)
    if len(sources) == 1 and not corpus.line_languages:
        test = _read_files(sources[0], targets, direction, corpus.encoding)
        return test.first(corpus.max_pairs)
    # Source and target are in the same file or data set, or in shards.
    options = ReadOptions(*direction, max_characters=_UNBOUNDED_CHARACTERS)
    source_lines, *references = _texts_of(read_corpus(corpus, options), name)
    return EvaluationSet(
        name=name,
        source=source_lines,
        references=tuple(references),
        source_language=direction.source,
        target_language=direction.target,
        files=corpus_files(corpus),
    )


def _read_files(
    source: Path | None,
    references: Sequence[Path],
    direction: Direction | None,
    encoding: str | None = None,
) -> EvaluationSet:
    """Read a test set from files with the same number of lines.

    Args:
        source: File of the source text, if there is one.
        references: One or more files.
        direction: Languages of the files, if they are known.
        encoding: Encoding of the files; None for UTF-8.

    Raises:
        DataError: A file is missing, damaged, empty or not parallel to the first reference.
    """
    files = list(references)
    if source:
        files.append(source)
    # The references, then the source.
    if source and all(map(is_set, files)):
        options = ReadOptions("", "", max_characters=_UNBOUNDED_CHARACTERS)
        [pairs] = open_sides([source, *references], encoding, options).columns
        source_lines, *texts = _texts_of(pairs, str(source))
        texts.append(source_lines)
    else:
        texts = [read_text(path, encoding) for path in files]
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


def _texts_of(pairs: Iterable[Pair], name: str) -> list[tuple[str, ...]]:
    """Return the sources, and the lines of each reference. References of a part are left out.

    Args:
        pairs: The pairs of a test set.
        name: Its name in messages.

    Raises:
        DataError: A pair cannot be read, or has no reference.
    """
    rows = []
    for pair in pairs:
        if isinstance(pair, BadPair):
            fix = "Correct the line; each sentence needs a translation in each reference."
            raise DataError(f"Test set {place_of(pair, name)}: {pair.reason}.", fix=fix)
        rows.append((pair.source, pair.target, *pair.other_targets))
    return list(zip(*rows, strict=False))


def read_text(path: Path, encoding: str | None = None) -> tuple[str, ...]:
    """Read lines from a file; ``-`` is standard input, in UTF-8.

    Raises:
        DataError: The file is missing or damaged, or not in its encoding.
    """
    opened = open_input(path) if is_standard(path) else open_text(path, encoding)
    with opened as stream:
        return tuple(decoded_lines(stream, _display_name(path)))


def _display_name(path: Path) -> str:
    return STANDARD_INPUT if is_standard(path) else str(path)


def read_systems(paths: Sequence[Path], test: EvaluationSet, limit: int | None) -> list[System]:
    """Read translations of a complete test set, or of its first ``limit`` sentences.

    A system is named after its file; with the folder if two files have the same name, or for a
    pattern, which is the same system on all test sets.

    Raises:
        DataError: The number of lines does not match the test set, the text is segmented or
            escaped, or a JSON line has no translation.
    """
    names = [Path(_display_name(path)).name for path in paths]
    if len(set(names)) < len(names) or any(map(is_pattern, paths)):
        names = [str(path) for path in paths]
    systems = []
    for name, path in zip(names, paths, strict=True):
        file = file_of(path, test.name)
        lines = _translations(_read_aligned(file, test, limit), _display_name(file))
        check_plain(lines, _display_name(file))
        systems.append(System(name, lines))
    return systems


def _translations(lines: Sequence[str], name: str) -> Sequence[str]:
    """Return the translations in JSON lines of `nmt translate`; lines of plain text stay."""
    texts: list[Any] = [(object_of(line) or {}).get("translation") for line in lines]
    are_texts = [isinstance(text, str) for text in texts]
    if not any(are_texts):
        return lines
    if not all(are_texts):
        number = are_texts.index(False) + 1
        raise DataError(
            f"{name}, line {number:,}: the JSON has no translation.",
            fix="Translate the file again, and correct the lines that nmt reports.",
        )
    logger.info("%s: the translations are read from JSON lines", name)
    return texts


def read_labels(
    options: Sequence[str], test: EvaluationSet, limit: int | None
) -> dict[str, Sequence[str]]:
    """Read files with one label per sentence.

    Args:
        options: ``NAME=FILE`` each.
        test: The complete test set.
        limit: Number of sentences to read; None for all.

    Returns:
        The labels of the sentences, by name.

    Raises:
        ConfigError: An option is not ``NAME=FILE``.
        DataError: The number of lines does not match the test set.
    """
    labels = {}
    for option in options:
        name, _, path = option.partition("=")
        if not (name and path):
            raise ConfigError(
                f"`slice` {option}: write NAME=FILE.",
                fix="Write, for example, `slice` domain=labels.txt.",
            )
        file = file_of(Path(path), test.name)
        labels[name] = _read_aligned(file, test, limit)
    return labels


def _read_aligned(path: Path, test: EvaluationSet, limit: int | None) -> Sequence[str]:
    """Read a file with a line for each of the first ``limit`` sentences, or for all sentences.

    Returns:
        The first ``limit`` lines; all lines if ``limit`` is None.

    Raises:
        DataError: The number of lines is different.
    """
    lines = read_text(path)
    if len(lines) not in (len(test), limit):
        check_plain(lines, _display_name(path))
        fix = "Translate the whole test set; line i must translate sentence i."
        counts = (len(lines), len(test))
        raise DataError.not_parallel(_display_name(path), test.name, counts, fix=fix)
    return lines[:limit]


def list_test_sets(folders: Iterable[Path]) -> TextResult:
    """Return the names of the test sets of models, then of the sacreBLEU test sets."""
    names = dict[str, None]()  # a set that keeps the order
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
    project = project_of(record, folder)
    prepared_dir = project / str(record.get("prepared_dir"))
    if trained_on(folder, prepared_dir):
        yield PreparedData.open(prepared_dir)
    else:
        text = "cannot check for overlap with the training data of %s: prepared data not found"
        logger.info(text, folder)
    initial_model = recorded_value(record, "training.init_from")
    if initial_model is not None:
        yield from training_data(project / str(initial_model), visited | {folder})


def rows_in_training(folder: Path, lines: Sequence[str]) -> set[int] | None:
    """Return the indices of source lines in the training data; None if the data are missing.

    Lines are compared as token ids, so white space that the tokenizer normalizes does not matter.
    `nmt.extras.analysis.slices` also finds similar lines.
    """
    all_rows: set[int] | None = None
    for data in training_data(folder):
        tokenizer = load_tokenizers(data.tokenizer_dir).source
        tag_ids = list(tokenizer.tag_ids)
        ids_of_lines = [tuple(tokenizer.without_tags(ids)) for ids in tokenizer.encode_batch(lines)]
        line_keys = [_key(len(ids), ids[0], ids[-1]) for ids in set(ids_of_lines) if ids]
        # Ids of all training sentences with the key of a line. All lines that occur in the training
        # data are among them, and other sentences can be, because keys are not unique.
        candidates = set[tuple[int, ...]]()
        for block in data.train.source.blocks():
            block_ids = block.ids.astype(np.int64)
            # A sentence is block_ids[start:end]. (sentences,).
            starts = block.offsets[:-1]
            ends = block.offsets[1:]
            # A sentence can begin with two tags, of its language and of its corpus: skip them.
            for _ in range(2):
                are_tags = np.isin(block_ids[starts], tag_ids)
                starts = np.minimum(starts + are_tags, ends - 1)  # at least one id is left
            keys = _key(ends - starts, block_ids[starts], block_ids[ends - 1])
            has_line_key = np.isin(keys, np.array(line_keys, np.int64))
            for index in np.flatnonzero(has_line_key):
                candidates.add(tuple(block_ids[starts[index] : ends[index]].tolist()))
        if all_rows is None:
            all_rows = set()
        all_rows.update(row for row, ids in enumerate(ids_of_lines) if ids in candidates)
    return all_rows


def _key(length: Any, first: Any, last: Any) -> Any:
    """Return a hash of a sentence: its length, and its first and last id in 20 bits each.

    It is so cheap that NumPy computes and compares millions of them per second. The arguments are
    integers, or arrays of the same shape.
    """
    return (length << 40) | (first << 20) | last
