"""What ``nmt evaluate`` measures against: a test set from files, a configuration or sacrebleu."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.config.data import CorpusConfig
from nmt.config.keys import nearest_word
from nmt.config.run import RunConfig, check_languages
from nmt.data.corpus import BadPair, ReadOptions, check_files, read_corpus
from nmt.errors import ConfigError, DataError
from nmt.files.lines import decode_line, read_lines, split_lines
from nmt.metrics.sacrebleu import published_test_set

STANDARD_INPUT = Path("-")
"""Names standard input where a file of lines is expected."""

_UNBOUNDED_CHARACTERS = 1 << 30
_ONE_SENTENCE = "Line i of every file must belong to sentence i: export them together again."


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

    def __len__(self) -> int:
        return len(self.references[0])

    def first(self, count: int | None) -> EvaluationSet:
        """Return the set cut to its first sentences; whole when None."""
        return EvaluationSet(
            name=self.name,
            source=None if self.source is None else self.source[:count],
            references=tuple(stream[:count] for stream in self.references),
            target_language=self.target_language,
        )


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
        config: The model's configuration, if a model is evaluated.

    Raises:
        ConfigError: The flags contradict each other, or name no test set that exists.
        DataError: A file is missing, damaged, empty or not parallel.
    """
    target_language = _target_language(choice, config)
    if choice.references:
        if choice.name is not None:
            raise ConfigError(
                f"Both a test set ({choice.name}) and reference files are given.",
                fix="Give either -t NAME or --reference FILE.",
            )
        return _from_files(choice.source, choice.references, target_language)
    if choice.source is not None:
        raise ConfigError("--source needs --reference.", fix="Add --reference FILE.")
    tests = config.data.test if config else {}
    name = choice.name or _only_test(tests, config)
    if config and name in tests:
        _check_agreement(choice.pair, name, config)
        return _from_config(name, tests[name], config)
    if choice.pair is None and config is None:
        raise ConfigError(
            f"The languages of test set {name} are not known.", fix="Add -l PAIR, as in -l en-de."
        )
    pair = choice.pair or (config and f"{config.source_language}-{config.target_language}")
    return _published(name, str(pair), tuple(tests), target_language)


def read_text(path: Path) -> tuple[str, ...]:
    """Read lines from a file, or from standard input where the path is ``-``.

    Raises:
        DataError: Missing, damaged or not UTF-8.
    """
    if path != STANDARD_INPUT:
        return tuple(read_lines(path))
    name = "standard input"
    lines = split_lines(sys.stdin.buffer, name)
    return tuple(decode_line(line or b"", name, n) for n, line in enumerate(lines, start=1))


def check_pair(pair: str) -> str:
    """Return a pair of language codes.

    Raises:
        ConfigError: It is not two codes with a hyphen between.
    """
    source, hyphen, target = pair.partition("-")
    if not (source and hyphen and target) or "-" in target:
        raise ConfigError(
            f"{pair!r} is not a pair of languages.", fix="Write source-target, as in -l en-de."
        )
    return pair


def _target_language(choice: SetChoice, config: RunConfig | None) -> str | None:
    if choice.pair is None:
        return config.target_language if config else None
    source, _, target = check_pair(choice.pair).partition("-")
    if choice.references:  # the names of published sets are compared with what is published
        where = f"-l {choice.pair}"
        check_languages({f"{where}, source": source, f"{where}, target": target})
    return target


def _check_agreement(pair: str | None, name: str, config: RunConfig) -> None:
    """Refuse other languages for a test set than the configuration that names it has."""
    own = f"{config.source_language}-{config.target_language}"
    if pair not in (None, own):
        raise ConfigError(
            f"Test set {name} of the model's configuration is {own}, not {pair}.",
            fix="Leave -l out: it is for files and for sacrebleu's test sets.",
        )


def _only_test(tests: dict[str, CorpusConfig], config: RunConfig | None) -> str:
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
    streams = [read_text(path) for path in references]
    lines = None if source is None else read_text(source)
    names = [str(path) for path in (*references, *([source] if source else []))]
    sides = [*streams, *([lines] if lines is not None else [])]
    return _checked(
        EvaluationSet(
            name=references[0].name,
            source=lines,
            references=tuple(streams),
            target_language=target_language,
        ),
        names,
        sides,
    )


def _checked(
    result: EvaluationSet, names: Sequence[str], sides: Sequence[Sequence[str]]
) -> EvaluationSet:
    if not len(result):
        raise DataError(f"{names[0]} has no lines.", fix="Give a file with references in it.")
    for name, side in zip(names[1:], sides[1:], strict=True):
        if len(side) != len(result):
            counts = (len(result), len(side))
            raise DataError.not_parallel(names[0], name, counts, fix=_ONE_SENTENCE)
    return result


def _from_config(name: str, corpus: CorpusConfig, config: RunConfig) -> EvaluationSet:
    check_files({f"data.test.{name}": corpus})
    if corpus.sacrebleu is not None:
        pair = f"{config.source_language}-{config.target_language}"
        found = _published(corpus.sacrebleu, pair, (), config.target_language)
        return found.first(corpus.max_pairs)
    if corpus.source is not None and corpus.target is not None:
        # Read whole: a test set keeps every line, whatever the filters of training say.
        found = _from_files(corpus.source, [corpus.target], config.target_language)
        found = found.first(corpus.max_pairs)
        source, target = found.source, found.references[0]
    else:
        pairs = list(_pairs(name, corpus, config))
        source, target = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    result = EvaluationSet(
        name=name,
        source=source,
        references=(target,),
        target_language=config.target_language,
    )
    return _checked(result, [name], [target])


def _pairs(name: str, corpus: CorpusConfig, config: RunConfig) -> list[tuple[str, str]]:
    options = ReadOptions(
        source_language=config.source_language,
        target_language=config.target_language,
        on_bad_utf8="error",
        max_characters=_UNBOUNDED_CHARACTERS,
    )
    pairs = []
    for pair in read_corpus(corpus, options):
        if isinstance(pair, BadPair):
            raise DataError(
                f"Test set {name}, line {pair.line:,}: {pair.reason}.", fix="Correct the line."
            )
        pairs.append((pair.source, pair.target))
    return pairs


def _published(
    name: str, pair: str, known: Sequence[str], target_language: str | None
) -> EvaluationSet:
    try:
        source, references = published_test_set(name, pair)
    except ConfigError as error:
        if not known:
            raise
        near = nearest_word(name, known)
        hint = f" Did you mean {near}?" if near else ""
        raise ConfigError(
            f"{error.problem} The model's configuration names {', '.join(known)}.{hint}",
            fix=error.fix,
        ) from error
    found = _from_files(source, references, target_language or pair.partition("-")[2])
    return EvaluationSet(
        name=name,
        source=found.source,
        references=found.references,
        target_language=found.target_language,
    )
