"""Filters: what is wrong with a sentence pair, and whether that drops it.

A filter has a reason, such as ``markup``, and each reason has an action: drop the pair, only report
it, or off. To add a filter, write a `Filter` and register what makes it in `FILTERS`; a
configuration names it under ``filters.extra``.

A `Diagnosis` is what an extra may find out about whole corpora. `nmt.commands.prepare` calls its
methods in the order in which they stand here. The core knows only this class, which finds nothing:
where the extra's folder is missing, pairs are prepared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from nmt.config.data import Action, CorpusConfig, FilterConfig, Rule
from nmt.data.lexicon import Lexicon
from nmt.data.pairs import SentencePair
from nmt.data.store import ParallelStore
from nmt.data.workers import Workers
from nmt.errors import ConfigError
from nmt.registry import Registry

ALWAYS: Mapping[str, Action] = MappingProxyType({
    "blank": "drop", "bad_utf8": "drop", "characters": "drop", "length": "drop",
})  # fmt: skip
# Reasons that ``filters`` gives an action: names of its keys.
REASONS = tuple(
    name for name, field in FilterConfig.model_fields.items()
    if field.annotation is Rule or "off" in get_args(field.annotation)
)  # fmt: skip
_SHORT_PAIR_ALLOWANCE = 3
_HOME = "nmt.extras.cleaning.filters"
_CLEANING = "cleaning"


class Finding(NamedTuple):
    """One thing that is wrong with a pair. Pairs may have several."""

    reason: str  # never changes its meaning
    value: float | str = ""  # what was measured or seen
    limit: float | str = ""  # what is allowed, where there is a bound


class Found(NamedTuple):
    """A `Finding` at its place."""

    corpus: str
    line: int  # in the corpus, from 1
    reason: str
    value: float | str = ""
    limit: float | str = ""
    source: str = ""
    target: str = ""


class Filter:
    """Says what is wrong with a pair, or None. Override one of the two methods, or both.

    Pure, quick and picklable: it is called for every pair, in any process, and must give the same
    answer each time. A reason alone, as text, stands for a `Finding` without a value.
    """

    note = ""  # a sentence for the report: what this filter cannot find, and why

    def text_problem(self, source: str, target: str) -> Finding | str | None:
        """Return what the texts say, before the tokenizer is learned."""
        del source, target
        return None

    def length_problem(self, source_length: int, target_length: int) -> Finding | str | None:
        """Return what the numbers of subwords say."""
        del source_length, target_length
        return None


# What makes the filters that ``filters.extra`` can name; its parameters become arguments.
FILTERS: Registry[Callable[..., Filter]] = Registry("filter of filters.extra")


# What makes the filters of reasons that texts alone give, in the order in which they are called.
REASON_FILTERS: Registry[Callable[[FilterConfig, str, str], Filter]] = Registry(
    "filter",
    {
        name: f"{_HOME}:{name}"
        for name in (
            "control", "markup", "mojibake", "copy_of_source", "url", "punctuation", "repetition",
            "numbers", "script", "swapped", "language",
        )
    },
)  # fmt: skip


class Blank(Filter):
    """Finds pairs without text on a side."""

    def text_problem(self, source: str, target: str) -> Finding | None:
        """Return which side is blank, or None."""
        has_source, has_target = bool(source.strip()), bool(target.strip())
        if has_source and has_target:
            return None
        one = "target" if has_source else "source"
        return Finding("blank", one if has_source or has_target else "both")


class Length(Filter):
    """Finds pairs with too many or few subwords on a side. Limits are inclusive."""

    def __init__(self, max_length: int, min_length: int = 1) -> None:
        self._max_length, self._min_length = max_length, min_length

    def length_problem(self, source_length: int, target_length: int) -> Finding | None:
        """Return which limit is broken, or None."""
        shorter, longer = sorted((source_length, target_length))
        if longer > self._max_length:
            return Finding("length", longer, self._max_length)
        return Finding("length", shorter, self._min_length) if shorter < self._min_length else None


class Ratio(Filter):
    """Finds pairs whose sides differ much in length; 3 is added to both, as short pairs vary."""

    def __init__(self, max_ratio: float) -> None:
        self._max_ratio = max_ratio

    def length_problem(self, source_length: int, target_length: int) -> Finding | None:
        """Return the ratio if it is too high.

        >>> Ratio(4).length_problem(2, 9) is None  # (9 + 3) / (2 + 3) = 2.4
        True
        >>> Ratio(4).length_problem(2, 30)
        Finding(reason='ratio', value=6.6, limit=4)
        """
        shorter, longer = sorted((source_length, target_length))
        ratio = (longer + _SHORT_PAIR_ALLOWANCE) / (shorter + _SHORT_PAIR_ALLOWANCE)
        return Finding("ratio", ratio, self._max_ratio) if ratio > self._max_ratio else None


class FilterChain:
    """Several filters, and what is done about the reasons that they find.

    Args:
        filters: Each is called for every pair.
        actions: What is done about a reason; reasons without an action are dropped.
        notes: What cannot be found, as sentences.
    """

    def __init__(
        self,
        filters: Iterable[Filter],
        actions: Mapping[str, Action] = ALWAYS,
        notes: Iterable[str] = (),
    ) -> None:
        filters = list(filters)
        self.actions = dict(actions)
        self.notes = [*notes, *(each.note for each in filters if each.note)]
        self._of_text = [f.text_problem for f in filters if _overrides(f, "text_problem")]
        self._of_length = [f.length_problem for f in filters if _overrides(f, "length_problem")]

    def text_findings(self, source: str, target: str) -> list[Finding]:
        """Return all that the texts say, in the order of the filters."""
        return _findings(check(source, target) for check in self._of_text)

    def length_findings(self, source_length: int, target_length: int) -> list[Finding]:
        """Return all that the numbers of subwords say, in the order of the filters."""
        return _findings(check(source_length, target_length) for check in self._of_length)

    def drops(self, reason: str) -> bool:
        """Whether a pair with this reason is dropped."""
        return self.actions.get(reason, "drop") == "drop"

    def dropping(self, findings: Iterable[Finding]) -> str | None:
        """Return the first reason that drops a pair with these findings; None if it is kept."""
        return next((each.reason for each in findings if self.drops(each.reason)), None)


def _findings(problems: Iterable[Finding | str | None]) -> list[Finding]:
    return [Finding(each) if isinstance(each, str) else each for each in problems if each]


def _overrides(each: Filter, method: str) -> bool:
    return getattr(type(each), method) is not getattr(Filter, method)


def filter_actions(config: FilterConfig) -> dict[str, Action]:
    """Return the action of every reason that is not off."""
    actions = {**ALWAYS, **{name: config.rule(name).action for name in REASONS}}
    return {name: action for name, action in actions.items() if action != "off"}


def training_filters(config: FilterConfig, source: str = "", target: str = "") -> FilterChain:
    """Return the filters of training pairs.

    Args:
        config: Actions and limits.
        source: Language code of the source; empty if not known.
        target: The same of the target.

    Raises:
        ConfigError: ``filters.extra`` names no filter, or parameters that it does not have; or a
            reason that drops needs a library or an extra that is not installed.
    """
    actions, missing = filter_actions(config), dict[str, list[str]]()
    filters: list[Filter] = [Blank()]
    for name in REASON_FILTERS.names():
        if name in actions:
            try:
                filters.append(REASON_FILTERS[name](config, source, target))
            except ConfigError as error:
                if actions[name] == "drop":
                    problem = f"filters.{name} is drop. {error.problem}"
                    raise ConfigError(problem, fix=error.fix) from error
                missing.setdefault(f"{error.problem} {error.fix}", []).append(name)
    filters.append(Length(config.max_length, config.min_length))
    if "ratio" in actions:
        filters.append(Ratio(config.max_length_ratio))
    for name, parameters in config.extra.items():
        try:
            filters.append(FILTERS[name](**parameters))
        except (TypeError, ValueError) as error:
            problem = f"filters.extra.{name}: {error}."
            raise ConfigError(problem, fix="Correct the parameters of this filter.") from error
    notes = (f"{', '.join(names)} not looked for: {why}" for why, names in missing.items())
    return FilterChain(filters, actions, notes)


def held_out_filters(config: FilterConfig) -> FilterChain:
    """Return the filters of validation pairs: only what the model cannot hold is dropped."""
    return FilterChain([Blank(), Length(config.max_length)])


Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What there is to look at, and where to work."""

    filters: FilterConfig
    languages: tuple[str, str]
    corpora: Mapping[str, CorpusConfig]  # of training, by their names in reports
    held_out: Mapping[str, Sequence[SentencePair]]  # usable pairs of each held-out set
    score_with: Sequence[Path] = ()  # models that are to score pairs
    folder: Path  # the prepared folder in the making: lists may be written into it
    scratch: Path  # for large arrays; it goes at the end
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisReport:
    """What goes into the `PrepareReport`."""

    shifts: Sequence[Mapping[str, Any]] = ()
    unrelated: Sequence[Mapping[str, Any]] = ()
    leakage: Sequence[Mapping[str, Any]] = ()
    near: Mapping[str, int] = field(default_factory=dict)  # held-out sentences, by their set
    languages: Mapping[str, Any] = field(default_factory=dict)  # more of the reason ``language``
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()  # further lines of the text that a user reads


class Diagnosis:
    """Looks at the training pairs of one preparation, block by block, and judges them."""

    # What a block says by itself: the pairs that its filters keep -> arrays. Picklable and pure: it
    # is called in any process, and its arrays are stored. After a kill they are read again.
    look: Callable[[Sequence[SentencePair]], Arrays] | None = None
    depends_on: Any = None  # all that ``look`` does beside pairs and filters section; plain data
    compares_words = False  # whether `learn` has something to do; then test sets are encoded, too
    lexicon: Lexicon | None = None  # what `learn` has learned, if that is of all pairs

    def __init__(self, material: Material) -> None:
        self.material = material

    def see(
        self, corpus: str, pairs: Sequence[SentencePair], looked: Arrays, found: Sequence[Found]
    ) -> None:
        """Take the next block, in the order of the corpora: its kept pairs and all findings."""

    def end(self, num_lines: Mapping[str, int]) -> None:
        """Take the number of lines of each corpus: all blocks were seen."""

    def learn(
        self, lines: ParallelStore, spans: Mapping[str, tuple[int, int]], sizes: tuple[int, int]
    ) -> None:
        """Look at the token ids of every line of all corpora and held-out sets.

        Args:
            lines: Whole sentences; of dropped pairs, too.
            spans: First row of each corpus or set, and the row behind its last.
            sizes: Entries of the source and of the target vocabulary.
        """

    def of_block(
        self, corpus: str, start: int, is_kept: npt.NDArray[np.bool_]
    ) -> Mapping[int, Sequence[Finding]]:
        """Return the findings of a block of a corpus, by the line's place in it.

        Called in the order of the corpora, for training only.

        Args:
            corpus: Its name.
            start: Lines of the corpus before the block.
            is_kept: Whether the filters of texts have kept each line of the block.
        """
        del corpus, start, is_kept
        return {}

    def report(self) -> DiagnosisReport:
        """Return what to report; all files in the folder are complete then."""
        return DiagnosisReport()


DIAGNOSES: Registry[Callable[[Material], Diagnosis]] = Registry(
    "diagnosis of corpora", {_CLEANING: "nmt.extras.cleaning.diagnosis:CorpusDiagnosis"}
)


LEAKAGE: Registry[Callable[..., Any]] = Registry(
    "search for leakage", {"near": "nmt.extras.cleaning.leakage:find_leakage"}
)


def make_diagnosis(material: Material, filters: FilterChain) -> Diagnosis:
    """Return the diagnosis of the cleaning extra, or one that finds nothing.

    Raises:
        ConfigError: The extra is missing, and what only it can do was asked for.
    """
    if make := DIAGNOSES.find(_CLEANING):
        return make(material)
    alone = {*REASON_FILTERS.names(), "ratio"}
    whole = [name for name in REASONS if name not in alone]
    asked = ["`score_with`"] if material.score_with else []
    asked += [f"filters.{name}: drop" for name in whole if filters.actions.get(name) == "drop"]
    if asked:
        problem = f"{' and '.join(asked)} needs nmt/extras/cleaning, which is missing."
        raise ConfigError(problem, fix="Install nmt again with all of its folders, or do without.")
    filters.notes.append(f"{', '.join(whole)} not looked for: nmt/extras/cleaning is missing")
    return Diagnosis(material)
