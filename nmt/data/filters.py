"""Filters of sentence pairs, and the interface of corpus diagnosis.

A filter finds pairs for a reason, such as ``markup``. For each reason, the configuration sets the
action ``drop``, ``report`` or ``off``. To add a filter, write a subclass of `Filter` and register a
function that makes it in `FILTERS`; then configure it under ``filters.extra``.

A `Diagnosis` compares pairs across whole corpora. `nmt.commands.prepare` calls its methods in the
order in which they are defined here. The base class finds nothing; it is used if the folder
nmt/extras/cleaning is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from nmt.config.data import Action, CorpusConfig, FilterConfig, LanguageRule, Rule
from nmt.data.lexicon import Lexicon
from nmt.data.pairs import SentencePair
from nmt.data.store import ParallelStore
from nmt.data.workers import Workers
from nmt.errors import ConfigError
from nmt.registry import Registry
from nmt.text.identification import NO_PROFILES, LanguageProfiles

ALWAYS: Mapping[str, Action] = MappingProxyType({
    "blank": "drop", "bad_utf8": "drop", "characters": "drop", "length": "drop", "bytes": "drop",
})  # fmt: skip
# Reasons with a configurable action; keys of the ``filters`` section.
REASONS = tuple(
    name for name, field in FilterConfig.model_fields.items()
    if field.annotation in (Rule, LanguageRule) or "off" in get_args(field.annotation)
)  # fmt: skip
NEAR = "near copies of held-out sentences"  # A check that is not a filter.
_SHORT_PAIR_ALLOWANCE = 3
_CLEANING = "cleaning"


class Finding(NamedTuple):
    """A problem of a pair. A pair may have several findings."""

    reason: str
    value: float | str = ""  # the measured value, or the text that was found
    limit: float | str = ""  # the allowed value, if the reason has a limit


class Found(NamedTuple):
    """A `Finding` with the corpus, the line and the texts of the pair."""

    corpus: str
    line: int  # in the corpus, from 1
    reason: str
    value: float | str = ""
    limit: float | str = ""
    source: str = ""
    target: str = ""


class Filter:
    """Base class of filters. Override one of the two methods, or both.

    A filter is called for every pair, in any process, so it must be fast, picklable and
    deterministic. Its methods return a finding, a reason (a finding without a value), or None.
    """

    note = ""  # a limitation of the filter, as a sentence for the report
    # Whether `length_problem` gets lengths in which each byte of a character counts. Otherwise,
    # three characters that are spelled in bytes count like one subword, as in usual text.
    counts_bytes = True

    def text_problem(self, source: str, target: str) -> Finding | str | None:
        """Return a problem of the texts, or None. Called before the tokenizer is learned."""
        del source, target
        return None

    def length_problem(self, source_length: float, target_length: float) -> Finding | str | None:
        """Return a problem of the lengths in subwords, or None."""
        del source_length, target_length
        return None


# Makers of the filters of ``filters.extra``, called with the parameters in the configuration.
FILTERS: Registry[Callable[..., Filter]] = Registry("filter of filters.extra")


# Makers of the filters that look at the texts of a pair, in the order in which they are called.
REASON_FILTERS: Registry[Callable[[FilterConfig, str, str, LanguageProfiles], Filter]] = Registry(
    "filter"
)


class Blank(Filter):
    """Finds pairs with a blank side."""

    def text_problem(self, source: str, target: str) -> Finding | None:
        """Return a finding with ``source``, ``target`` or ``both`` as the blank side, or None."""
        has_source, has_target = bool(source.strip()), bool(target.strip())
        if has_source and has_target:
            return None
        one = "target" if has_source else "source"
        return Finding("blank", one if has_source or has_target else "both")


class Length(Filter):
    """Finds pairs with too many or too few subwords on a side. The limits are allowed lengths."""

    counts_bytes = False

    def __init__(self, max_length: int, min_length: int = 1) -> None:
        self._max_length, self._min_length = max_length, min_length

    def length_problem(self, source_length: float, target_length: float) -> Finding | None:
        """Return a finding with the exceeded limit, or None."""
        shorter, longer = sorted((source_length, target_length))
        if longer > self._max_length:
            return Finding("length", longer, self._max_length)
        return Finding("length", shorter, self._min_length) if shorter < self._min_length else None


class Bytes(Filter):
    """Finds pairs that are too long because the vocabulary spells their characters in bytes."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length

    def length_problem(self, source_length: float, target_length: float) -> Finding | None:
        """Return a finding with the exceeded limit, or None."""
        longer = max(source_length, target_length)
        return Finding("bytes", longer, self._max_length) if longer > self._max_length else None


class Ratio(Filter):
    """Finds pairs whose lengths differ too much. Adds 3 to both, to tolerate short pairs."""

    counts_bytes = False  # a script that the vocabulary spells in bytes is not longer text

    def __init__(self, max_ratio: float) -> None:
        self._max_ratio = max_ratio

    def length_problem(self, source_length: float, target_length: float) -> Finding | None:
        """Return a finding with the ratio if it is too high.

        >>> Ratio(4).length_problem(2, 9) is None  # (9 + 3) / (2 + 3) = 2.4
        True
        >>> Ratio(4).length_problem(2, 30)
        Finding(reason='ratio', value=6.6, limit=4)
        """
        shorter, longer = sorted((source_length, target_length))
        ratio = (longer + _SHORT_PAIR_ALLOWANCE) / (shorter + _SHORT_PAIR_ALLOWANCE)
        return Finding("ratio", ratio, self._max_ratio) if ratio > self._max_ratio else None


class FilterChain:
    """Calls several filters, and looks up the action for each finding.

    Args:
        filters: Filters that are called for every pair.
        actions: Action of each reason. A reason without an action drops the pair.
        skipped: By name of a filter that cannot run or is off: why, as a sentence.
        warnings: Notes of filters that should drop pairs, but cannot judge the languages.
    """

    def __init__(
        self,
        filters: Iterable[Filter],
        actions: Mapping[str, Action] = ALWAYS,
        skipped: Mapping[str, str] = MappingProxyType({}),
        warnings: Sequence[str] = (),
    ) -> None:
        filters = list(filters)
        self.actions, self.skipped = dict(actions), dict(skipped)
        self.warnings = list(warnings)
        self.notes = [each.note for each in filters if each.note and each.note not in warnings]
        self._of_text = [f.text_problem for f in filters if _overrides(f, "text_problem")]
        of_length = [each for each in filters if _overrides(each, "length_problem")]
        self._of_length = [each.length_problem for each in of_length if each.counts_bytes]
        self._of_usual_length = [each.length_problem for each in of_length if not each.counts_bytes]

    def text_findings(self, source: str, target: str) -> list[Finding]:
        """Return the findings of all filters for the texts of a pair."""
        return _findings(check(source, target) for check in self._of_text)

    def length_findings(
        self, lengths: tuple[int, int], usual_lengths: tuple[float, float]
    ) -> list[Finding]:
        """Return the findings of all filters for the lengths of a pair, in subwords.

        Args:
            lengths: Length of source and target.
            usual_lengths: The same, where three characters spelled in bytes count as one subword.
        """
        problems = [check(*usual_lengths) for check in self._of_usual_length]
        problems += [check(*lengths) for check in self._of_length]
        findings = _findings(problems)
        if any(each.reason == "length" for each in findings):
            return [each for each in findings if each.reason != "bytes"]
        return findings

    def drops(self, reason: str) -> bool:
        """Whether a pair with this reason is dropped."""
        return self.actions.get(reason, "drop") == "drop"

    def dropping(self, findings: Iterable[Finding]) -> str | None:
        """Return the reason of the first finding that drops the pair; None to keep the pair."""
        return next((each.reason for each in findings if self.drops(each.reason)), None)


def _findings(problems: Iterable[Finding | str | None]) -> list[Finding]:
    return [Finding(each) if isinstance(each, str) else each for each in problems if each]


def _overrides(each: Filter, method: str) -> bool:
    return getattr(type(each), method) is not getattr(Filter, method)


def filter_actions(config: FilterConfig) -> dict[str, Action]:
    """Return the action of each reason that is not off."""
    actions = {**ALWAYS, **{name: config.rule(name).action for name in REASONS}}
    return {name: action for name, action in actions.items() if action != "off"}


def training_filters(
    config: FilterConfig,
    source: str = "",
    target: str = "",
    profiles: LanguageProfiles = NO_PROFILES,
) -> FilterChain:
    """Return the filters of training pairs.

    Args:
        config: Actions and limits.
        source: Code of the source language; empty if unknown.
        target: Code of the target language; empty if unknown.
        profiles: Trigrams of the languages of the configuration, if they are needed.

    Raises:
        ConfigError: ``filters.extra`` has an unknown filter or a wrong parameter; or a reason with
            the action drop, or with a model, cannot run.
    """
    actions, filters = filter_actions(config), list[Filter]([Blank()])
    skipped = {name: "Off in the configuration." for name in REASONS if name not in actions}
    warnings = list[str]()
    for name in REASON_FILTERS.names():
        if name in actions:
            try:
                made = REASON_FILTERS[name](config, source, target, profiles)
                filters.append(made)
                if made.note and actions[name] == "drop":
                    warnings.append(made.note)
            except ConfigError as error:
                if actions[name] == "drop":
                    problem = f"filters.{name} is set to `drop`, but cannot run. {error.problem}"
                    raise ConfigError(problem, fix=error.fix) from error
                if name == "language" and config.language.model is not None:
                    raise
                skipped[name] = f"{error.problem} Fix: {error.fix}"
    filters.append(Length(config.max_length, config.min_length))
    filters.append(Bytes(config.max_length))
    if "ratio" in actions:
        filters.append(Ratio(config.max_length_ratio))
    for name, parameters in config.extra.items():
        try:
            filters.append(FILTERS[name](**parameters))
        except (TypeError, ValueError) as error:
            problem = f"filters.extra.{name}: {error}."
            raise ConfigError(problem, fix="Correct the parameters of this filter.") from error
    return FilterChain(filters, actions, skipped, warnings)


def held_out_filters(config: FilterConfig) -> FilterChain:
    """Return the filters of validation pairs. Only blank and too long pairs are dropped."""
    return FilterChain([Blank(), Length(config.max_length), Bytes(config.max_length)])


Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The inputs of a `Diagnosis`."""

    filters: FilterConfig
    languages: tuple[str, str]  # of the first training corpus
    directions: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # by corpus and set
    corpora: Mapping[str, CorpusConfig]  # training corpora, by their names in reports
    held_out: Mapping[str, Sequence[SentencePair]]  # usable pairs of each held-out set
    score_with: Sequence[Path] = ()  # models that score the pairs
    folder: Path  # the new prepared folder, for lists of scores
    scratch: Path  # a temporary folder for large arrays
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisReport:
    """The results of a `Diagnosis`, which become part of the `PrepareReport`."""

    shifts: Sequence[Mapping[str, Any]] = ()
    unrelated: Sequence[Mapping[str, Any]] = ()
    leakage: Sequence[Mapping[str, Any]] = ()
    near: Mapping[str, int] = field(default_factory=dict)  # near copies, by held-out set
    languages: Mapping[str, Any] = field(default_factory=dict)  # details of the reason ``language``
    skipped: Mapping[str, str] = field(default_factory=dict)  # check that did not run -> reason
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()  # further lines of the text report


class Diagnosis:
    """Base class of checks that compare all training pairs with each other."""

    # A function of the pairs that the filters keep in a block. It must be picklable and
    # deterministic: it is called in any process, and its arrays are stored, to resume after a kill.
    look: Callable[[Sequence[SentencePair]], Arrays] | None = None
    depends_on: Any = None  # JSON data: inputs of ``look`` other than the pairs and the filters
    compares_words = False  # whether `learn` is needed; then the test sets are encoded too
    lexicon: Lexicon | None = None  # the lexicon that `learn` has learned from all pairs

    def __init__(self, material: Material) -> None:
        self.material = material

    def see(
        self, corpus: str, pairs: Sequence[SentencePair], looked: Arrays, found: Sequence[Found]
    ) -> None:
        """Process the kept pairs and the findings of the next block, in corpus order."""

    def end(self, num_lines: Mapping[str, int]) -> None:
        """Finish the first pass. Called after all blocks with the number of lines by corpus."""

    def learn(
        self, lines: ParallelStore, spans: Mapping[str, tuple[int, int]], sizes: tuple[int, int]
    ) -> None:
        """Process the token ids of every line of all corpora and held-out sets.

        Args:
            lines: Token ids of all lines, including dropped pairs.
            spans: First row of each corpus or held-out set, and the row after its last row.
            sizes: Sizes of the source and of the target vocabulary.
        """

    def of_block(
        self, corpus: str, start: int, is_kept: npt.NDArray[np.bool_]
    ) -> Mapping[int, Sequence[Finding]]:
        """Return the findings of a block, by the position of the line in the block.

        Called for the blocks of all training corpora, in order.

        Args:
            corpus: Name of the corpus.
            start: Number of lines of the corpus before the block.
            is_kept: Whether the text filters have kept each line of the block.
        """
        del corpus, start, is_kept
        return {}

    def report(self) -> DiagnosisReport:
        """Return the results, after completing all files in `Material.folder`."""
        return DiagnosisReport()


DIAGNOSES: Registry[Callable[[Material], Diagnosis]] = Registry("diagnosis of corpora")
LEAKAGE: Registry[Callable[..., Any]] = Registry("search for leakage")


def make_diagnosis(material: Material, filters: FilterChain) -> Diagnosis:
    """Return the diagnosis of nmt/extras/cleaning; without it, a diagnosis that finds nothing.

    Raises:
        ConfigError: nmt/extras/cleaning is missing, but the configuration requires it.
    """
    if make := DIAGNOSES.find(_CLEANING):
        return make(material)
    alone = {*REASON_FILTERS.names(), "ratio"}
    whole = [name for name in REASONS if name not in alone]
    asked = ["`score_with`"] if material.score_with else []
    asked += [f"filters.{name}: drop" for name in whole if filters.actions.get(name) == "drop"]
    if asked:
        problem = f"{' and '.join(asked)} needs nmt/extras/cleaning, which is missing."
        raise ConfigError(problem, fix="Reinstall nmt with all folders, or remove these settings.")
    filters.skipped |= dict.fromkeys((*whole, NEAR), "The folder nmt/extras/cleaning is missing.")
    return Diagnosis(material)
