"""Test sets: from files, from a model's configuration, or published by sacrebleu."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nmt.config.data import CorpusConfig
from nmt.config.keys import nearest_word
from nmt.config.run import check_languages
from nmt.data.corpus import BadPair, ReadOptions, check_files, corpus_files, read_corpus
from nmt.data.hub import published_test_set
from nmt.errors import ConfigError, DataError
from nmt.files.lines import decode_line, read_lines, split_lines

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
    files: tuple[Path, ...] = ()
    """What it was read from; nothing may be written there."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSets:
    """What a model's configuration says of its languages and test sets."""

    tests: Mapping[str, CorpusConfig]
    """The test sets by name."""
    source_language: str
    """Language code."""
    target_language: str
    """Language code."""

    @property
    def pair(self) -> str:
        """The languages, for example ``en-de``."""
        return f"{self.source_language}-{self.target_language}"


def load_evaluation_set(choice: SetChoice, model: ModelSets | None) -> EvaluationSet:
    """Read the test set that the user asked for.

    Args:
        choice: What the flags say.
        model: What the model knows, if one is evaluated.

    Raises:
        ConfigError: The flags contradict each other, or name no test set that exists.
        DataError: A file is missing, damaged, empty or not parallel.
    """
    target_language = _target_language(choice, model)
    if choice.references:
        if choice.name is not None:
            raise ConfigError(
                f"Both a test set ({choice.name}) and reference files are given.",
                fix="Give either -t NAME or --reference FILE.",
            )
        return _from_files(choice.source, choice.references, target_language)
    if choice.source is not None:
        raise ConfigError("--source needs --reference.", fix="Add --reference FILE.")
    name = choice.name or _only_test(model)
    if model and name in model.tests:
        _check_agreement(choice.pair, name, model)
        return _from_config(name, model)
    pair = choice.pair or (model.pair if model else None)
    if pair is None:
        raise ConfigError(
            f"The languages of test set {name} are not known.", fix="Add -l PAIR, as in -l en-de."
        )
    return _published(name, pair, tuple(model.tests) if model else (), target_language)


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


def _target_language(choice: SetChoice, model: ModelSets | None) -> str | None:
    if choice.pair is None:
        return model.target_language if model else None
    source, _, target = check_pair(choice.pair).partition("-")
    if choice.references:  # the names of published sets are compared with what is published
        where = f"-l {choice.pair}"
        check_languages({f"{where}, source": source, f"{where}, target": target})
    return target


def _check_agreement(pair: str | None, name: str, model: ModelSets) -> None:
    """Refuse other languages for a test set than the configuration that names it has."""
    if pair not in (None, model.pair):
        raise ConfigError(
            f"Test set {name} of the model's configuration is {model.pair}, not {pair}.",
            fix="Leave -l out: it is for files and for sacrebleu's test sets.",
        )


def _only_test(model: ModelSets | None) -> str:
    tests = model.tests if model else {}
    if len(tests) == 1:
        return next(iter(tests))
    if tests:
        raise ConfigError(
            f"The model's configuration names {len(tests)} test sets: {', '.join(tests)}.",
            fix="Choose one with -t NAME.",
        )
    where = "The model's configuration names no test set" if model else "There is no test set"
    raise ConfigError(
        f"{where} to score against.",
        fix="Give --reference FILE (with a model --source FILE too), or -t NAME -l PAIR.",
    )


def _from_files(
    source: Path | None, references: Sequence[Path], target_language: str | None
) -> EvaluationSet:
    files = (*references, *([source] if source else []))
    result = EvaluationSet(
        name=references[0].name,
        references=tuple(read_text(path) for path in references),
        source=None if source is None else read_text(source),
        target_language=target_language,
        files=files,
    )
    names = list(map(str, files))
    sides = [*result.references, *([result.source] if result.source is not None else [])]
    return _checked(result, names, sides[1:])


def _checked(
    result: EvaluationSet, names: Sequence[str], others: Sequence[Sequence[str]]
) -> EvaluationSet:
    """Check that there are lines, and as many in ``others`` as in the first reference."""
    if not len(result):
        raise DataError(f"{names[0]} has no lines.", fix="Give a file with references in it.")
    for name, side in zip(names[1:], others, strict=True):
        if len(side) != len(result):
            counts = (len(result), len(side))
            raise DataError.not_parallel(names[0], name, counts, fix=_ONE_SENTENCE)
    return result


def _from_config(name: str, model: ModelSets) -> EvaluationSet:
    corpus = model.tests[name]
    check_files({f"data.test.{name}": corpus})
    if corpus.sacrebleu is not None:
        found = _published(corpus.sacrebleu, model.pair, (), model.target_language)
        return found.first(corpus.max_pairs)
    if corpus.source is not None and corpus.target is not None:
        # Read whole: a test set keeps every line, whatever the filters of training say.
        found = _from_files(corpus.source, [corpus.target], model.target_language)
        return _checked(replace(found.first(corpus.max_pairs), name=name), [name], [])
    pairs = list(_pairs(name, corpus, model))
    result = EvaluationSet(
        name=name,
        source=tuple(source for source, _ in pairs),
        references=(tuple(target for _, target in pairs),),
        target_language=model.target_language,
        files=corpus_files(corpus),
    )
    return _checked(result, [name], [])


def _pairs(name: str, corpus: CorpusConfig, model: ModelSets) -> Iterator[tuple[str, str]]:
    options = ReadOptions(
        source_language=model.source_language,
        target_language=model.target_language,
        on_bad_utf8="error",
        max_characters=_UNBOUNDED_CHARACTERS,
    )
    for pair in read_corpus(corpus, options):
        if isinstance(pair, BadPair):
            raise DataError(
                f"Test set {name}, line {pair.line:,}: {pair.reason}.", fix="Correct the line."
            )
        yield pair.source, pair.target


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
    language = target_language or pair.partition("-")[2]
    return replace(_from_files(source, references, language), name=name)
