"""Test sets: from files, from a model's configuration, or published by sacrebleu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.config.keys import did_you_mean
from nmt.errors import ConfigError, DataError
from nmt.files.lines import decode_line, is_standard, open_input, split_lines
from nmt.metrics.result import System

if TYPE_CHECKING:
    from nmt.config.data import CorpusConfig
    from nmt.config.run import RunConfig

_UNBOUNDED_CHARACTERS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """Sentences with their references."""

    name: str
    """The test set's name, or the name of the first reference file."""
    source: tuple[str, ...] | None
    """Source lines; None where only references were given."""
    references: tuple[tuple[str, ...], ...]
    """Streams of reference lines, at least one, all of one length."""
    target_language: str | None = None
    """Language code of the references, if known."""
    files: tuple[Path, ...] = ()
    """What it was read from; nothing may be written there."""
    tag: str | None = None
    """What its sources begin with, as the model's configuration says."""

    def __len__(self) -> int:
        return len(self.references[0])

    def first(self, count: int | None) -> EvaluationSet:
        """Return the set cut to its first sentences; whole when None."""
        source = None if self.source is None else self.source[:count]
        references = tuple(stream[:count] for stream in self.references)
        return replace(self, source=source, references=references)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetChoice:
    """Which test set the user asked for. Either a name, or files, or neither."""

    name: str | None = None
    """Named in the model's configuration, or by sacrebleu."""
    pair: str | None = None
    """Languages, for example ``en-de``."""
    source: Path | None = None
    """File of source lines."""
    references: tuple[Path, ...] = ()
    """Files of reference lines."""


def load_evaluation_set(choice: SetChoice, config: RunConfig | None) -> EvaluationSet:
    """Read the test set that the user asked for.

    Args:
        choice: What the flags say.
        config: Of the model, if one is evaluated.

    Raises:
        ConfigError: The flags contradict each other, or name no test set that exists.
        DataError: A file is missing, damaged, empty or not parallel.
    """
    target_language = _target_language(choice, config)
    if choice.references:
        return _from_files(choice.source, choice.references, target_language)
    if choice.source is not None:
        raise ConfigError("--source needs --reference.", fix="Add --reference FILE.")
    name = choice.name or _only_test(config)
    own = "-".join(config.languages.values()) if config else None
    pair = choice.pair or own
    if config and name in _own_sets(config):
        if pair != own:
            raise ConfigError(
                f"Test set {name} of the model's configuration is {own}, not {pair}.",
                fix="Leave -l out: it is for files and for sacrebleu's test sets.",
            )
        return replace(_from_config(name, config), tag=_own_sets(config)[name].tag)
    if pair is None:
        raise ConfigError(
            f"The languages of test set {name} are not known.", fix="Add -l PAIR, as in -l en-de."
        )
    return _published(name, pair, target_language, tuple(_own_sets(config)) if config else ())


def read_text(path: Path) -> tuple[str, ...]:
    """Read lines from a file, or from standard input where the path is ``-``.

    Raises:
        DataError: Missing, damaged or not UTF-8.
    """
    name = "standard input" if is_standard(path) else str(path)
    with open_input(path) as stream:
        lines = enumerate(split_lines(stream, name), start=1)
        return tuple(decode_line(line or b"", name, number) for number, line in lines)


def read_systems(
    paths: Sequence[Path], whole: EvaluationSet, limit: int | None, *, is_baseline: bool = False
) -> list[System]:
    """Read translations of the whole set, or of just the sentences that are scored.

    Systems are named after their files: shortly if that tells them apart. For errors see
    `fitting_lines`.
    """
    names = ["standard input" if is_standard(path) else path.name for path in paths]
    if len(set(names)) < len(names):
        names = list(map(str, paths))
    return [
        System(name, fitting_lines(path, whole, limit, is_baseline=is_baseline))
        for name, path in zip(names, paths, strict=True)
    ]


def fitting_lines(
    path: Path, whole: EvaluationSet, limit: int | None, *, is_baseline: bool = False
) -> Sequence[str]:
    """Read the lines of a file that belong to the sentences that are scored.

    Raises:
        DataError: There are more or fewer than the test set or its chosen part has.
        ConfigError: So has a baseline, which is one of another test set then.
    """
    lines = read_text(path)
    if len(lines) not in (len(whole), limit):
        if is_baseline:
            raise ConfigError(
                f"{path} is a baseline of another test set: it has {len(lines):,} lines, "
                f"{whole.name} has {len(whole):,}.",
                fix="Translate this test set with the baseline, too.",
            )
        raise DataError.not_parallel(
            str(path),
            whole.name,
            (len(lines), len(whole)),
            fix="Line i must translate sentence i of the test set: translate all of it, and "
            "drop no line.",
        )
    return lines[:limit]


def _target_language(choice: SetChoice, config: RunConfig | None) -> str | None:
    if choice.pair is None:
        return config.target_language if config else None
    source, _, target = choice.pair.partition("-")
    if not (source and target) or "-" in target:
        raise ConfigError(
            f"{choice.pair!r} is not a pair of languages.",
            fix="Write source-target, as in -l en-de.",
        )
    if choice.references:  # the names of published sets are compared with what is published
        from nmt.config.run import check_languages  # noqa: PLC0415 - loads pydantic

        where = f"-l {choice.pair}"
        check_languages({f"{where}, source": source, f"{where}, target": target})
    return target


def _own_sets(config: RunConfig) -> Mapping[str, CorpusConfig]:
    """Return the test sets of a configuration by name, and its validation set as ``valid``."""
    return {"valid": config.data.valid, **config.data.test}


def _only_test(config: RunConfig | None) -> str:
    tests = config.data.test if config else {}
    if len(tests) == 1:
        return next(iter(tests))
    if tests:
        raise ConfigError(
            f"The model's configuration names {len(tests)} test sets: {', '.join(tests)}.",
            fix="Choose one with -t NAME.",
        )
    where = "The model's configuration names no test set" if config else "There is no test set"
    raise ConfigError(
        f"{where} to score against.",
        fix="Give --reference FILE (with a model --source FILE too), or -t NAME -l PAIR.",
    )


def _from_files(
    source: Path | None, references: Sequence[Path], target_language: str | None
) -> EvaluationSet:
    files = (*references, *([source] if source else []))
    first, *others = sides = [read_text(path) for path in files]
    if not first:
        raise DataError(f"{files[0]} has no lines.", fix="Give a file with references in it.")
    for path, side in zip(files[1:], others, strict=True):
        if len(side) != len(first):
            raise DataError.not_parallel(
                str(files[0]),
                str(path),
                (len(first), len(side)),
                fix="Line i of every file must belong to sentence i: export them together again.",
            )
    return EvaluationSet(
        name=references[0].name,
        source=sides[-1] if source else None,
        references=tuple(sides[: len(references)]),
        target_language=target_language,
        files=files,
    )


def _from_config(name: str, config: RunConfig) -> EvaluationSet:
    from nmt.data.corpus import (  # noqa: PLC0415 - files need none
        check_files,
        corpus_files,
        read_corpus,
    )
    from nmt.data.pairs import BadPair, ReadOptions  # noqa: PLC0415

    corpus = _own_sets(config)[name]
    key = f"data.test.{name}" if name in config.data.test else "data.valid"
    check_files({key: corpus})
    if corpus.sacrebleu is not None:
        pair = "-".join(config.languages.values())
        published = _published(corpus.sacrebleu, pair, config.target_language)
        return published.first(corpus.max_pairs)
    if corpus.source is not None and corpus.target is not None:
        # Read whole: a test set keeps every line, whatever the filters of training say.
        whole = _from_files(corpus.source, [corpus.target], config.target_language)
        return replace(whole.first(corpus.max_pairs), name=name)
    languages = config.source_language, config.target_language
    options = ReadOptions(*languages, max_characters=_UNBOUNDED_CHARACTERS)
    pairs = []
    for found in read_corpus(corpus, options):
        if isinstance(found, BadPair):
            raise DataError(
                f"Test set {name}, line {found.line:,}: {found.reason}.", fix="Correct the line."
            )
        pairs.append(found)
    return EvaluationSet(
        name=name,
        source=tuple(pair.source for pair in pairs),
        references=(tuple(pair.target for pair in pairs),),
        target_language=config.target_language,
        files=corpus_files(corpus),
    )


def _published(
    name: str, pair: str, target_language: str | None, known: Sequence[str] = ()
) -> EvaluationSet:
    from nmt.data.hubs import published_test_set  # noqa: PLC0415 - files need none

    try:
        source, references = published_test_set(name, pair)
    except ConfigError as error:
        if not known:
            raise
        names = ", ".join(known)
        raise ConfigError(
            f"{error.problem} The model's configuration names {names}.{did_you_mean(name, known)}",
            fix=error.fix,
        ) from error
    return replace(_from_files(source, references, target_language), name=name)
