"""Test sets: from files, from a model's configuration, or published by sacrebleu.

Also which of their lines a model was trained on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nmt.checkpoint.run import trained_on
from nmt.commands.options import EngineOptions, EvaluateOptions, MbrOptions, SearchOptions
from nmt.commands.result import TextResult
from nmt.config.flag import changed
from nmt.config.loader import load_config
from nmt.config.run import RunConfig, check_languages
from nmt.data.corpus import check_files, corpus_files, read_corpus
from nmt.data.hubs import published_names, published_test_set
from nmt.data.pairs import BadPair, ReadOptions
from nmt.data.prepared import PreparedData
from nmt.errors import ConfigError, DataError, did_you_mean, shell_command
from nmt.files.lines import decoded_lines, is_standard, open_input
from nmt.metrics.result import System
from nmt.text.tokenizer import load_tokenizers

logger = logging.getLogger(__name__)

_UNBOUNDED_CHARACTERS = 1 << 30
_KEEPS_ALL = "Use `report` FILE.json, which keeps all translations."
_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """Sentences with their references."""

    name: str  # The test set's name, or the name of the first reference file.
    source: tuple[str, ...] | None  # Source lines; None where only references were given.
    # Streams of reference lines, at least one, all of one length.
    references: tuple[tuple[str, ...], ...]
    target_language: str | None = None  # Language code of the references, if known.
    files: tuple[Path, ...] = ()  # What it was read from; nothing may be written there.
    tag: str | None = None  # What its sources begin with, as the model's configuration says.
    is_named: bool = True  # Whether it was asked for by name, not as files.

    def __len__(self) -> int:
        return len(self.references[0])

    def first(self, count: int | None) -> EvaluationSet:
        """Return the set cut to its first sentences; whole when None."""
        source = None if self.source is None else self.source[:count]
        references = tuple(stream[:count] for stream in self.references)
        return replace(self, source=source, references=references)


def sort_files(options: EvaluateOptions) -> EvaluateOptions:
    """Return options whose models are folders: files given by position are named.

    Raises:
        ConfigError: What the files are is not clear; names the command that says it.
    """
    paths = options.models
    if all(path.is_dir() or path.suffix == ".yaml" for path in paths) or (
        len(paths) == 1 and not paths[0].is_file()
    ):
        return options
    first, *others = paths
    systems, references = [first, *others[:-1]], others[-1:] or [Path("REFERENCE")]
    if first.is_dir():
        problem = f"{first} is a model: say what the files are."
        fix = shell_command("evaluate", first, source=others[:-1], reference=references)
        raise ConfigError(problem, fix=f"Type: {fix}")
    if len(others) == 1 and not (options.hypothesis or options.reference):
        return replace(options, models=(), hypothesis=(first,), reference=tuple(others))
    if not (others or options.hypothesis) and (options.test or options.reference):
        return replace(options, models=(), hypothesis=(first,))
    problem = f"{first} is not a model."
    if len(others) > 1:
        problem = f"Which of {', '.join(map(str, paths))} is the reference is not clear."
    systems += options.hypothesis
    fix = shell_command("evaluate", hypothesis=systems, reference=references)
    raise ConfigError(problem, fix=f"Type: {fix}")


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that contradict each other, before anything is read."""
    models, base = options.models, options.baseline
    if not (models or options.hypothesis):
        fix = f"Pass a run folder, as in `{shell_command('evaluate', 'RUN', test=options.test)}`, "
        raise ConfigError("There is nothing to score.", fix=f"{fix}or `hypothesis` FILE.")
    files = [*options.hypothesis, *options.reference, options.source, base]
    if files.count(Path("-")) > 1:
        raise ConfigError("Standard input can be read once only.", fix="Pass files instead.")
    _check_models(options)
    if options.fail_if_worse and base is None:
        raise ConfigError("`fail_if_worse` needs `baseline`.", fix="Add `baseline` FILE.")
    if options.fail_if_worse and options.resamples == 0:
        raise ConfigError("`fail_if_worse` needs resamples.", fix="Leave `resamples` 0 out.")


def _check_models(options: EvaluateOptions) -> None:
    """Refuse what needs a model without one, or needs a single model."""
    models, base = options.models, options.baseline_model
    needing = [] if models else ["robustness", "contrastive", "save_hypotheses", "tag"]
    if not (models or base):
        for group in (EngineOptions, SearchOptions, MbrOptions):
            needing += group.__dataclass_fields__
    if needing and (idle := changed(options, *needing)):
        problem = f"`{'`, `'.join(idle)}` {'needs' if len(idle) == 1 else 'need'} a model."
        raise ConfigError(problem, fix="Pass a model folder, or leave this out.")
    if options.with_ and len(models) > 1:
        fix = "Evaluate the ensemble by itself."
        raise ConfigError("`with` cannot be combined with several models.", fix=fix)
    if options.save_hypotheses and (len(models) > 1 or options.save_hypotheses == Path("-")):
        problem = "`save_hypotheses` takes one model, and no standard output: that gets scores."
        raise ConfigError(problem, fix=_KEEPS_ALL)
    is_itself = base and any(folder.resolve() == base.resolve() for folder in models)
    # Other options of the search change both sides alike.
    if is_itself and not changed(options, "checkpoint", "mbr", "with_"):
        command = shell_command("translate", base, input="SOURCE", output="FILE", beam_size=5)
        problem = f"`baseline` {base}: both sides are the same model with the same options."
        fix = f"Translate one side with options of its own: `{command}`; pass `baseline` FILE."
        raise ConfigError(problem, fix=fix)


def load_test_sets(options: EvaluateOptions, config: RunConfig | None) -> list[EvaluationSet]:
    """Read the test sets that are asked for; without any, all of the model's configuration.

    Args:
        options: Their names, pair of languages and files.
        config: Of the model, if one is evaluated.

    Raises:
        ConfigError: There is no such test set, or none at all.
        DataError: A file is missing, damaged, empty or not parallel.
    """
    target = _target_language(options, config)
    has_files = bool(options.reference or options.source)
    names = options.test or (() if has_files or config is None else tuple(config.data.test))
    if not (names or has_files):
        where = "The model's configuration names no test set" if config else "There is no test set"
        fix = "Pass `reference` FILE and, with a model, `source` FILE; or `test` and `languages`."
        raise ConfigError(f"{where} to score against.", fix=fix)
    if len(names) + has_files > 1:
        _check_several(options)
    sets = [_named(name, options.languages, target, config) for name in names]
    if options.reference:
        files = _read_files(options.source, options.reference, target)
        sets.append(replace(files, is_named=False))
    elif options.source:
        raise ConfigError("`source` needs `reference`.", fix="Add `reference` FILE.")
    return sets


def _check_several(options: EvaluateOptions) -> None:
    """Refuse files that may belong to any of several test sets."""
    base = options.baseline
    is_file = base is not None and not base.is_dir() and base.suffix != ".json"
    owned = (options.hypothesis or options.slice_) and not options.reference
    if is_file or owned or not options.models:
        problem = "A file of translations or labels belongs to one test set; several are given."
        fix = "Choose one with `test` NAME, say with `reference` FILE what the file belongs to, or "
        raise ConfigError(problem, fix=f"{fix}pass models and reports instead of the file.")
    if options.save_hypotheses:
        problem = "`save_hypotheses` takes the translations of one test set; several are given."
        raise ConfigError(problem, fix=_KEEPS_ALL)


def _target_language(options: EvaluateOptions, config: RunConfig | None) -> str | None:
    if options.languages is None:
        return config.target_language if config else None
    source, _, target = options.languages.partition("-")
    if not (source and target) or "-" in target:
        fix = "Write source-target, as in `languages` en-de."
        raise ConfigError(f"{options.languages!r} is not a pair of languages.", fix=fix)
    if options.reference:  # the names of published sets are compared with what is published
        where = f"`languages` {options.languages}"
        check_languages({f"{where}, source": source, f"{where}, target": target})
    return target


def _named(
    name: str, pair: str | None, target: str | None, config: RunConfig | None
) -> EvaluationSet:
    own = {"valid": config.data.valid, **config.data.test} if config else {}
    own_pair = "-".join(config.languages.values()) if config else None
    if config and name in own:
        if pair not in (None, own_pair):
            problem = f"Test set {name} of the model's configuration is {own_pair}, not {pair}."
            fix = "Leave `languages` out: it is for files and for sacrebleu's test sets."
            raise ConfigError(problem, fix=fix)
        return replace(_from_config(name, config), name=name, tag=own[name].tag)
    if not (pair := pair or own_pair):
        fix = "Add `languages` PAIR, as in `languages` en-de."
        raise ConfigError(f"The languages of test set {name} are not known.", fix=fix)
    try:
        source, references = published_test_set(name, pair)
    except ConfigError as error:
        if not own:
            raise
        names = f"The model's configuration names {', '.join(own)}.{did_you_mean(name, own)}"
        raise ConfigError(f"{error.problem} {names}", fix=error.fix) from error
    return replace(_read_files(source, references, target), name=name)


def _from_config(name: str, config: RunConfig) -> EvaluationSet:
    is_test = name in config.data.test
    corpus = config.data.test[name] if is_test else config.data.valid
    check_files({f"data.test.{name}" if is_test else "data.valid": corpus})
    source, references = corpus.source, [corpus.target] if corpus.target else []
    if corpus.sacrebleu is not None:
        languages = "-".join(config.languages.values())
        source, references = published_test_set(corpus.sacrebleu, languages)
    if references:  # Read whole: a test set keeps every line, whatever the filters of training say.
        whole = _read_files(source, references, config.target_language)
        return whole.first(corpus.max_pairs)
    options = ReadOptions(
        config.source_language, config.target_language, max_characters=_UNBOUNDED_CHARACTERS
    )
    pairs = []
    for pair in read_corpus(corpus, options):
        if isinstance(pair, BadPair):
            where = f"Test set {name}, line {pair.line:,}"
            raise DataError(f"{where}: {pair.reason}.", fix="Correct the line.")
        pairs.append(pair)
    return EvaluationSet(
        name=name,
        source=tuple(pair.source for pair in pairs),
        references=(tuple(pair.target for pair in pairs),),
        target_language=config.target_language,
        files=corpus_files(corpus),
    )


def _read_files(
    source: Path | None, references: Sequence[Path], target_language: str | None
) -> EvaluationSet:
    files = (*references, *([source] if source else []))
    first, *others = sides = [read_text(path) for path in files]
    if not first:
        raise DataError(f"{files[0]} has no lines.", fix="Pass a file with references in it.")
    for path, side in zip(files[1:], others, strict=True):
        if len(side) != len(first):
            fix = "Line i of every file must belong to sentence i: export them together again."
            counts = len(first), len(side)
            raise DataError.not_parallel(str(files[0]), str(path), counts, fix=fix)
    return EvaluationSet(
        name=references[0].name,
        source=sides[-1] if source else None,
        references=tuple(sides[: len(references)]),
        target_language=target_language,
        files=files,
    )


def read_text(path: Path) -> tuple[str, ...]:
    """Read lines from a file, or from standard input where the path is ``-``.

    Raises:
        DataError: Missing, damaged or not UTF-8.
    """
    name = "standard input" if is_standard(path) else str(path)
    with open_input(path) as stream:
        return tuple(decoded_lines(stream, name))


def read_systems(paths: Sequence[Path], whole: EvaluationSet, limit: int | None) -> list[System]:
    """Read translations of the whole set, or of just the sentences that are scored.

    Systems are named after their files: shortly if that tells them apart.

    Raises:
        DataError: There are more or fewer lines than the test set or its chosen part has.
    """
    names = ["standard input" if is_standard(path) else path.name for path in paths]
    if len(set(names)) < len(names):
        names = list(map(str, paths))
    return [System(name, _fitting(x, whole, limit)) for name, x in zip(names, paths, strict=True)]


def read_labels(
    texts: Sequence[str], whole: EvaluationSet, limit: int | None
) -> dict[str, Sequence[str]]:
    """Read files of labels, one for each sentence, from ``NAME=FILE``."""
    labels = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not (name and path):
            fix = "For example `slice` domain=labels.txt"
            raise ConfigError(f"`slice` {text}: write NAME=FILE.", fix=fix)
        labels[name] = _fitting(Path(path), whole, limit)
    return labels


def _fitting(path: Path, whole: EvaluationSet, limit: int | None) -> Sequence[str]:
    lines = read_text(path)
    if len(lines) not in (len(whole), limit):
        fix = "Line i must translate sentence i of the test set: translate all of it."
        counts = len(lines), len(whole)
        raise DataError.not_parallel(str(path), whole.name, counts, fix=fix)
    return lines[:limit]


def list_test_sets(folders: Iterable[Path]) -> TextResult:
    """Return the names of the test sets of some models, and then sacrebleu's."""
    configs = (load_config(folder / "config.yaml") for folder in folders)
    own = dict.fromkeys(name for config in configs for name in (*config.data.test, "valid"))
    names = [*own, *published_names()]
    return TextResult("\n".join(names), {"tests": names})


def training_data(folder: Path) -> Iterator[PreparedData]:
    """Yield what a model was trained on, then what the models were trained on that it began with.

    Data that are gone, or others by now, are left out with a note.
    """
    known: set[Path] = set()
    start: Path | None = folder
    while start is not None and start not in known and (start / "config.yaml").is_file():
        known.add(start)
        config = load_config(start / "config.yaml")
        if trained_on(start, config):
            yield PreparedData.open(config.prepared_dir)
        else:
            text = "the test set is not searched for in the training data of %s, which are not here"
            logger.info(text, start)
        start = config.training.init_from


def rows_in_training(folder: Path, lines: Sequence[str]) -> set[int] | None:
    """Return which source lines a model was trained on; None if its training data are gone.

    Lines are compared as token ids, so the text of the training data is not needed, and white space
    that the tokenizer normalises does not count. `nmt.extras.analysis.slices` finds near ones, too.
    """
    found: set[int] | None = None
    for data in training_data(folder):
        store, seen = data.train, set[tuple[int, ...]]()
        encoded = [*map(tuple, load_tokenizers(data.tokenizer_dir).source.encode_batch(lines))]
        known = np.array([_key(len(x), x[0], x[-1]) for x in {*encoded} if x], np.int64)
        for start in range(0, len(store), _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(store)))
            stored, offsets = store.source_ids(rows)
            ids, starts, ends = stored.astype(np.int64), offsets[:-1], offsets[1:]
            keys = _key(ends - starts, ids[starts], ids[ends - 1])
            matches = np.flatnonzero(np.isin(keys, known))
            seen.update(tuple(ids[starts[x] : ends[x]].tolist()) for x in matches)
        found = (found or set()) | {row for row, line in enumerate(encoded) if line in seen}
    return found


def _key(length: Any, first: Any, last: Any) -> Any:
    # Equal for equal lines, and for few others: millions of rows are compared in a second.
    return (length << 40) | (first << 20) | last
