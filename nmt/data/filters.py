"""Filters of sentence pairs.

A filter finds problems of pairs. Each problem has a reason, such as ``markup``. For each reason,
the configuration sets the action ``drop``, ``report`` or ``off``. To add a filter, write a subclass
of `Filter` and register a function that makes it in `FILTERS`; then configure it under
``filters.extra``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from nmt.config.data import Action, FilterConfig, LanguageRule, Rule
from nmt.errors import ConfigError
from nmt.registry import Registry
from nmt.text.identification import NO_PROFILES, LanguageProfiles

# Actions of the reasons that the configuration cannot change.
ALWAYS: Mapping[str, Action] = {
    "blank": "drop", "bad_utf8": "drop", "untranslated": "drop", "characters": "drop",
    "length": "drop", "bytes": "drop",
    "nul": "drop", "columns": "drop", "syntax": "drop", "language_code": "drop",
}  # fmt: skip
# Reasons of pairs that cannot be read: `filters.on_bad_row` decides about many of them.
BAD_ROWS: Mapping[str, str] = {
    "nul": "contain NUL characters",
    "columns": "have too few or too many columns",
    "syntax": "cannot be parsed",
    "language_code": "name no language of target_languages or source_languages",
}  # fmt: skip
# Reasons with a configurable action; keys of the ``filters`` section.
REASONS = tuple(
    name for name, field in FilterConfig.model_fields.items()
    if field.annotation in (Rule, LanguageRule) or "off" in get_args(field.annotation)
)  # fmt: skip
UNREAD = ("bad_utf8", "characters", "untranslated", *BAD_ROWS)  # Reasons of pairs without texts.
NEAR = "near copies of held-out sentences"  # A check that is not a filter.
_SHORT_PAIR_ALLOWANCE = 3  # Added to both lengths before their ratio is computed.


class PairProblem(NamedTuple):
    """A problem of a pair. A pair may have several problems."""

    reason: str
    value: float | str = ""  # the measured value, or the text that was found
    limit: float | str = ""  # the allowed value, if the reason has a limit


class ListedProblem(NamedTuple):
    """A `PairProblem` with the corpus, the line and the texts of the pair."""

    corpus: str
    line: int  # in its file, from 1
    reason: str
    value: float | str = ""
    limit: float | str = ""
    source: str = ""
    target: str = ""
    file: str = ""  # if the corpus has several

    @property
    def place(self) -> str:
        """The file of the pair, if the corpus has several, or the corpus."""
        return self.file or self.corpus


class Filter:
    """Base class of filters. Override one of the two methods, or both.

    A filter is called for every pair, in any process, so it must be fast, picklable and
    deterministic. Its methods return a problem, a reason (a problem without a value), or None.
    """

    note = ""  # a limitation of the filter, as a sentence for the report
    # Whether `length_problem` gets lengths in which each byte of a character counts. Otherwise,
    # three characters that are spelled in bytes count like one subword, as in usual text.
    counts_bytes = True

    def text_problem(self, source: str, target: str) -> PairProblem | str | None:
        """Return a problem of the texts, or None. Called before the tokenizer is learned."""
        del source, target
        return None

    def length_problem(
        self, source_length: float, target_length: float
    ) -> PairProblem | str | None:
        """Return a problem of the lengths in subwords, or None."""
        del source_length, target_length
        return None


# A method of a filter, called with the texts or the lengths of source and target.
_Check = Callable[[Any, Any], PairProblem | str | None]
# Makers of the filters of ``filters.extra``, called with the parameters in the configuration.
FILTERS = Registry[Callable[..., Filter]]("filter of filters.extra")


# Makers of the filters that look at the texts of a pair, in the order in which they are called.
REASON_FILTERS = Registry[Callable[[FilterConfig, str, str, LanguageProfiles], Filter]]("filter")


class Blank(Filter):
    """Finds pairs with a blank side."""

    def text_problem(self, source: str, target: str) -> PairProblem | None:
        """Return a problem with ``source``, ``target`` or ``both`` as the blank side, or None."""
        if source.strip():
            if target.strip():
                return None
            return PairProblem("blank", "target")
        if target.strip():
            return PairProblem("blank", "source")
        return PairProblem("blank", "both")


class Length(Filter):
    """Finds pairs with too many or too few subwords on a side. The limits are allowed lengths."""

    counts_bytes = False
    reason = "length"

    def __init__(self, max_length: int, min_length: int = 1) -> None:
        self._max_length = max_length
        self._min_length = min_length

    def length_problem(self, source_length: float, target_length: float) -> PairProblem | None:
        """Return a problem with the exceeded limit, or None."""
        shorter, longer = sorted((source_length, target_length))
        if longer > self._max_length:
            return PairProblem(self.reason, longer, self._max_length)
        if shorter < self._min_length:
            return PairProblem(self.reason, shorter, self._min_length)
        return None


class Bytes(Length):
    """Finds pairs that are too long because the vocabulary spells their characters in bytes."""

    counts_bytes = True
    reason = "bytes"


class Ratio(Filter):
    """Finds pairs whose lengths differ too much. Adds 3 to both, to tolerate short pairs."""

    counts_bytes = False  # a script that the vocabulary spells in bytes is not longer text

    def __init__(self, max_ratio: float) -> None:
        self._max_ratio = max_ratio

    def length_problem(self, source_length: float, target_length: float) -> PairProblem | None:
        """Return a problem with the ratio if it is too high.

        >>> Ratio(4).length_problem(2, 9) is None  # (9 + 3) / (2 + 3) = 2.4
        True
        >>> Ratio(4).length_problem(2, 30)
        PairProblem(reason='ratio', value=6.6, limit=4)
        """
        shorter, longer = sorted((source_length, target_length))
        ratio = (longer + _SHORT_PAIR_ALLOWANCE) / (shorter + _SHORT_PAIR_ALLOWANCE)
        if ratio > self._max_ratio:
            return PairProblem("ratio", ratio, self._max_ratio)
        return None


class FilterChain:
    """Calls several filters, and looks up the action for each problem.

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
        self.actions = dict(actions)
        self.skipped = dict(skipped)
        self.warnings = list(warnings)
        self.notes = list[str]()
        # Checks are called for every pair, so the methods of the base class, which find nothing,
        # are left out.
        self._text_checks = list[_Check]()
        self._length_checks = list[_Check]()  # of filters with ``counts_bytes``
        self._usual_checks = list[_Check]()  # of the other filters, for usual lengths
        for pair_filter in filters:
            if pair_filter.note and pair_filter.note not in warnings:
                self.notes.append(pair_filter.note)
            if _overrides(pair_filter, "text_problem"):
                self._text_checks.append(pair_filter.text_problem)
            if _overrides(pair_filter, "length_problem"):
                checks = self._length_checks if pair_filter.counts_bytes else self._usual_checks
                checks.append(pair_filter.length_problem)

    def text_problems(self, source: str, target: str) -> list[PairProblem]:
        """Return the problems that all filters find in the texts of a pair."""
        return _problems(check(source, target) for check in self._text_checks)

    def length_problems(
        self, lengths: tuple[int, int], usual_lengths: tuple[float, float]
    ) -> list[PairProblem]:
        """Return the problems that all filters find in the lengths of a pair, in subwords.

        Args:
            lengths: Length of source and target.
            usual_lengths: The same, where three characters spelled in bytes count as one subword.
        """
        results = [check(*usual_lengths) for check in self._usual_checks]
        results += [check(*lengths) for check in self._length_checks]
        problems = _problems(results)
        # A pair that is too long in usual subwords is also too long in bytes: say it once.
        if any(problem.reason == "length" for problem in problems):
            return [problem for problem in problems if problem.reason != "bytes"]
        return problems

    def drops(self, reason: str) -> bool:
        """Whether a pair with this reason is dropped."""
        return self.actions.get(reason, "drop") == "drop"

    def dropping(self, problems: Iterable[PairProblem]) -> str | None:
        """Return the reason of the first problem that drops the pair; None to keep the pair."""
        reasons = (problem.reason for problem in problems)
        return next(filter(self.drops, reasons), None)


def _problems(results: Iterable[PairProblem | str | None]) -> list[PairProblem]:
    """Return the problems among the results of filters: a problem, only a reason, or None."""
    problems = []
    for result in results:
        if isinstance(result, PairProblem):
            problems.append(result)
            if result.reason == "blank":  # other problems say nothing then
                break
        elif result:
            problems.append(PairProblem(result))
    return problems


def _overrides(pair_filter: Filter, method: str) -> bool:
    return getattr(type(pair_filter), method) is not getattr(Filter, method)


def filter_actions(config: FilterConfig) -> dict[str, Action]:
    """Return the action of each reason that is not off."""
    actions = dict(ALWAYS)
    for name in REASONS:
        action = config.rule(name).action
        if action != "off":
            actions[name] = action
    return actions


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
    actions = filter_actions(config)
    # Arguments of `FilterChain`.
    skipped = {reason: "Off in the configuration." for reason in REASONS if reason not in actions}
    warnings = []
    filters: list[Filter] = [Blank()]
    for reason in REASON_FILTERS.names():
        if reason not in actions:
            continue
        try:
            text_filter = REASON_FILTERS[reason](config, source, target, profiles)
        except ConfigError as error:
            if actions[reason] == "drop":
                raise ConfigError(
                    f"filters.{reason} is set to `drop`, but cannot run. {error.problem}",
                    fix=error.fix,
                ) from error
            if reason == "language" and config.language.model is not None:
                raise  # the user has chosen this model
            skipped[reason] = f"{error.problem} Fix: {error.fix}"
            continue
        filters.append(text_filter)
        if text_filter.note and actions[reason] == "drop":
            warnings.append(text_filter.note)
    filters.append(Length(config.max_length, config.min_length))
    filters.append(Bytes(config.max_length, min_length=0))
    if "ratio" in actions:
        filters.append(Ratio(config.max_length_ratio))
    for name, parameters in config.extra.items():
        try:
            filters.append(FILTERS[name](**parameters))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"filters.extra.{name}: {error}.", fix="Correct the parameters of this filter."
            ) from error
    return FilterChain(filters, actions, skipped, warnings)


def held_out_filters(config: FilterConfig) -> FilterChain:
    """Return the filters of validation pairs. Only blank and too long pairs are dropped."""
    max_length = config.max_length
    return FilterChain([Blank(), Length(max_length), Bytes(max_length, min_length=0)])
