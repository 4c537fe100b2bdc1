"""The guard: finds translations that are wrong by their look, and has them searched again.

A model that has lost its place repeats itself, stops early or goes on for ever; or it writes
something fluent that has nothing to do with the source. Each sign of that is a number computed from
one line and its output, in about 0.1 ms; its threshold comes from what is normal in the validation
set (`nmt.translation.guard_calibration`). A line with an alarm is searched once more, by a search
that avoids what the alarm is about; the second output is taken if it has fewer alarms.

Source: n-grams repeated beyond the source's as in Raunak et al. (2021), "oscillatory
hallucinations"; the compression ratio as in Radford et al. (2022), section 4.5, who decode again on
alarm, too.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias

from nmt.checkpoint.model_folder import GUARD
from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.files import json_file
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers

Alarm: TypeAlias = Literal[
    "loop", "repetition", "short", "long", "compression", "coverage", "truncated"
]
"""A sign that a translation is wrong. ``truncated``, which comes from the length of the line, means
that its end is not translated."""

_NGRAM = 3
_LEAST_NGRAMS = 20  # a shorter output counts as one of so many
_SMOOTH_CHARACTERS, _SMOOTH_SUBWORDS = 10, 5  # added to both lengths: short lines vary more
_EMPTY_ZLIB_BYTES = len(zlib.compress(b""))
SOURCE_COMPRESSION = 0.8
"""An output may compress so much better than its source."""
_LARGEST_SHARE = 0.9  # that may be asked for
_YOUNGER = {"coverage", "expected"}  # keys that files of earlier releases lack
_WORD = re.compile(r"\w+")
_LARGEST_LIMIT = 1000  # in a file that can be believed
_RETRY_BEAM_SIZE = 5
_LOOP_NGRAM_SIZE = 2  # a word three times in a row has a bigram twice
_REPEATING = {"loop", "repetition", "compression"}
_LIKELIEST = 10  # translations of a token that count
_TOO_COMMON = 50  # most frequent target tokens that do not

Outputs = list[list[Hypothesis]]
"""The n best of each sentence, best first."""


@dataclass(frozen=True, slots=True)
class GuardedLine:
    """A line, what came of it, and both as subwords."""

    source: str
    output: str
    source_tokens: Sequence[Hashable]
    output_tokens: Sequence[Hashable]
    covered: float = 1.0
    """Share of the source tokens that the output translates; see `SourceCoverage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardThresholds:
    """Limits of what is normal. The defaults fit any language pair and catch only gross faults."""

    loop: int = 3
    """Most tokens that repeat at once what stands before them, beyond the source's."""
    repetition: float = 0.3
    """Largest share of n-grams that were there before, beyond the source's."""
    characters_low: float = 0.15
    """Least ratio of output to source characters."""
    characters_high: float = 8.0
    """Largest ratio of output to source characters."""
    subwords_low: float = 0.25
    """Least ratio of output to source subwords."""
    subwords_high: float = 4.0
    """Largest ratio of output to source subwords."""
    compression_scale: float = 0.9
    """zlib must leave at least ``scale * bytes ** exponent`` of each byte of output."""
    compression_exponent: float = -0.2
    """See ``compression_scale``: longer texts compress better."""
    coverage: float = 0.0
    """Least share of the source tokens that an output translates."""
    expected: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Source words that are nearly always translated by one of a few target ids, with these."""

    @property
    def longest(self) -> tuple[float, int]:
        """Factor of the source subwords, and offset, of the longest output that is not ``long``."""
        return self.subwords_high, max(1, math.floor((self.subwords_high - 1) * _SMOOTH_SUBWORDS))

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def read_thresholds(folder: Path) -> GuardThresholds:
    """Read the limits of a run or model folder; the defaults if it has none.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = folder / GUARD
    try:
        values = json_file.read_json(path, finite=True)
        names = {each.name for each in fields(GuardThresholds)}
        found = set(json_file.field(values, kind=dict))
        if not names - _YOUNGER <= found <= names:
            raise ValueError("its keys are others")
        expected = json_file.field(values, "expected", kind=dict) if "expected" in found else {}
        for word in expected:
            if not all(type(each) is int for each in json_file.field(expected, word, kind=list)):
                raise ValueError(f"expected.{word} should be a list of whole numbers")
        numbers = {name: json_file.field(values, name, kind=float) for name in found - {"expected"}}
        exponent = numbers.pop("compression_exponent")
        are_sane = all(0 <= value <= _LARGEST_LIMIT for value in numbers.values())
        if not (-1 <= exponent <= 0 and are_sane):
            raise ValueError("a number in it makes no sense")
        return GuardThresholds(**values)
    except FileNotFoundError:
        return GuardThresholds()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be used: {error}.",
            fix="Restore it, or remove it: the guard has limits of its own then.",
        ) from error


def longest_loop(tokens: Sequence[Hashable]) -> int:
    """Return how many tokens in a row repeat what stands right before them, in whole copies.

    >>> longest_loop("a dog runs".split()), longest_loop("a dog a dog a dog runs".split())
    (0, 4)
    """
    if len(set(tokens)) == len(tokens):
        return 0
    longest = 0
    for period in range(1, len(tokens) // 2 + 1):
        run = 0
        for i in range(period, len(tokens)):
            run = run + 1 if tokens[i] == tokens[i - period] else 0
            if run >= period:
                longest = max(longest, run)
    return longest


def repeated_ngrams(tokens: Sequence[Hashable], size: int = _NGRAM) -> int:
    """Return how many n-grams have been there before.

    >>> repeated_ngrams("a red car and a red car".split())
    1
    """
    count = max(0, len(tokens) - size + 1)
    return count - len({tuple(tokens[i : i + size]) for i in range(count)})


def compressed_share(text: str) -> float:
    """Return the part of the UTF-8 bytes of ``text`` that zlib leaves; 1 for an empty text.

    >>> round(compressed_share("plastic stick"), 1), round(compressed_share("plastic " * 20), 1)
    (0.8, 0.1)
    """
    content = text.encode("utf-8", "replace")
    return (len(zlib.compress(content, 9)) - _EMPTY_ZLIB_BYTES) / len(content) if content else 1.0


def repetition_sign(line: GuardedLine) -> float:
    """Return the share of n-grams that were there before, beyond the source's."""
    excess = repeated_ngrams(line.output_tokens) - repeated_ngrams(line.source_tokens)
    return excess / max(len(line.output_tokens) - _NGRAM + 1, _LEAST_NGRAMS)


def loop_sign(line: GuardedLine) -> int:
    """Return how many tokens repeat at once what stands before them, beyond the source's."""
    return longest_loop(line.output_tokens) - longest_loop(line.source_tokens)


def characters_sign(line: GuardedLine) -> float:
    """Return the ratio of output to source characters, smoothed."""
    return _ratio(len(line.source), len(line.output), _SMOOTH_CHARACTERS)


def subwords_sign(line: GuardedLine) -> float:
    """Return the ratio of output to source subwords, smoothed."""
    return _ratio(len(line.source_tokens), len(line.output_tokens), _SMOOTH_SUBWORDS)


def _ratio(source: int, output: int, smooth: int) -> float:
    return (output + smooth) / (source + smooth)


def alarms(line: GuardedLine, limits: GuardThresholds) -> tuple[Alarm, ...]:
    """Return the alarms of ``line``, which depend on nothing but the line; none for most lines."""
    characters, subwords = characters_sign(line), subwords_sign(line)
    found: dict[Alarm, bool] = {
        "loop": loop_sign(line) > limits.loop,
        "repetition": repetition_sign(line) > limits.repetition,
        "short": characters < limits.characters_low or subwords < limits.subwords_low,
        "long": characters > limits.characters_high or subwords > limits.subwords_high,
        "compression": compressed_share(line.output) < _least_share(line, limits),
        "coverage": line.covered < limits.coverage or _drops_a_word(line, limits.expected),
    }
    return tuple(name for name, is_on in found.items() if is_on)


def _drops_a_word(line: GuardedLine, expected: Mapping[str, Sequence[int]]) -> bool:
    """Whether a source word has none of the translations that are expected of it."""
    if not expected:
        return False
    written = set(line.output_tokens)
    words = _WORD.findall(line.source)
    return any(word in expected and written.isdisjoint(expected[word]) for word in words)


def _least_share(line: GuardedLine, limits: GuardThresholds) -> float:
    """Return what zlib normally leaves of so long a text; less if the source repeats itself."""
    size = max(1, len(line.output.encode("utf-8", "replace")))
    normal = limits.compression_scale * size**limits.compression_exponent
    return min(normal, _LARGEST_SHARE, SOURCE_COMPRESSION * compressed_share(line.source))


class SourceCoverage:
    """How much of a source its translation covers, by the short lists of the training data.

    A source token is covered if one of the target tokens that most often translate it is in the
    output. Tokens that are in nearly every output, such as articles and full stops, cover nothing.

    Args:
        common: Target ids, the most frequent first.
        candidates: Target ids for each source token, the likeliest first; -1 where there are fewer.
    """

    def __init__(self, common: Sequence[int], candidates: Sequence[Sequence[int]]) -> None:
        self._common = {-1, *common[:_TOO_COMMON]}
        self._candidates = candidates
        self._known: dict[int, frozenset[int]] = {}  # of the tokens that came so far

    @classmethod
    def load(cls, file: ShortlistFile) -> Self | None:
        """Return one by the short lists of a file; None if there is none.

        Raises:
            CheckpointError: It is damaged.
        """
        parts: Any = file.parts  # its rows are as good as sequences
        return parts and cls(parts.common.tolist(), parts.candidates)

    def share(self, source: Sequence[int], output: Sequence[int]) -> float:
        """Return the share of the source tokens that the output covers, smoothed; 1 at most.

        Tokens without translations do not count.

        >>> of = SourceCoverage([], [[], [4], [5, 6], [7]])
        >>> of.share([1, 2, 3, 0], [4, 6]), of.share([0, 0], [9])
        (0.75, 1.0)
        """
        known = [tokens for token in source if (tokens := self._translations(token))]
        written = set(output)
        covered = sum(not written.isdisjoint(tokens) for tokens in known)
        return (covered + 1) / (len(known) + 1)

    def _translations(self, token: int) -> frozenset[int]:
        found = self._known.get(token)
        if found is None:
            likeliest = {int(target) for target in self._candidates[token][:_LIKELIEST]}
            found = self._known[token] = frozenset(likeliest - self._common)
        return found


class Guarded(Protocol):
    """The translation of a line, as far as counting goes."""

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms of the translation."""
        ...

    @property
    def retried(self) -> tuple[Alarm, ...]:
        """Alarms that the first translation had, and this one has not."""
        ...


@dataclass(frozen=True, slots=True)
class GuardCount:
    """How many lines had alarms. Counts add up."""

    num_lines: int = 0
    """Lines in all."""
    num_alarmed: int = 0
    """Lines whose first translation had an alarm."""
    num_retried: int = 0
    """Of these, lines whose second translation has none."""

    @classmethod
    def of(cls, results: Iterable[Guarded]) -> Self:
        """Count results."""
        found = [(bool(result.alarms), bool(result.retried)) for result in results]
        alarmed = sum(has_alarms or was_retried for has_alarms, was_retried in found)
        retried = sum(was_retried and not has_alarms for has_alarms, was_retried in found)
        return cls(len(found), alarmed, retried)

    def __add__(self, other: GuardCount) -> GuardCount:
        return GuardCount(
            self.num_lines + other.num_lines,
            self.num_alarmed + other.num_alarmed,
            self.num_retried + other.num_retried,
        )

    def message(self) -> str | None:
        """Return what the user should know; None without alarms.

        >>> GuardCount(1000, 3, 2).message()
        'guard: 3 of 1,000 lines raised an alarm; a retry cleared 2 (--no-guard turns this off)'
        """
        if not self.num_alarmed:
            return None
        return (
            f"guard: {self.num_alarmed:,} of {self.num_lines:,} lines raised an alarm; a retry "
            f"cleared {self.num_retried:,} (--no-guard turns this off)"
        )


@dataclass(frozen=True, slots=True)
class GuardOutcome:
    """What the guard found in the output of one sentence."""

    alarms: tuple[Alarm, ...] = ()
    """Alarms of the output."""
    retried: tuple[Alarm, ...] = ()
    """Alarms of the first output that this one, of a stricter search, does not raise."""


class Guard:
    """Checks the best output of each sentence, and searches again where there is an alarm.

    Args:
        limits: What is normal.
        tokenizers: Of both languages.
        load_coverage: Called when it is first needed; may return None, which turns that sign off.
    """

    def __init__(
        self,
        limits: GuardThresholds,
        tokenizers: Tokenizers,
        load_coverage: Callable[[], SourceCoverage | None] = lambda: None,
    ) -> None:
        self.limits, self._tokenizers = limits, tokenizers
        self._load_coverage = load_coverage

    @cached_property
    def _coverage(self) -> SourceCoverage | None:
        return self._load_coverage() if self.limits.coverage > 0 else None

    def check(self, source: Sequence[int], outputs: Sequence[Hypothesis]) -> tuple[Alarm, ...]:
        """Return the alarms of the best output of a sentence."""
        ids = outputs[0].ids
        texts = self._tokenizers.source.decode(source), self._tokenizers.target.decode(ids)
        covered = 1.0 if self._coverage is None else self._coverage.share(source, ids)
        return alarms(GuardedLine(*texts, source, ids, covered), self.limits)

    def fallback_search(self, found: Iterable[Alarm], options: DecodingConfig) -> dict[str, Any]:
        """Return the changes of ``options`` that avoid what these alarms are about.

        None loosens a limit. They use only options that all engines define alike.
        """
        names = set(found)
        changes: dict[str, Any] = {}
        if names & _REPEATING:
            size = _LOOP_NGRAM_SIZE if "loop" in names else _NGRAM
            changes["no_repeat_ngram_size"] = min(options.no_repeat_ngram_size or size, size)
        if "short" in names:
            least = max(options.min_length_factor, self.limits.subwords_low)
            changes["min_length_factor"] = least
        if "long" in names:
            factor, offset = self.limits.longest
            changes["max_length_factor"] = min(options.max_length_factor, factor)
            changes["max_length_offset"] = min(options.max_length_offset, offset)
        is_plain = not (options.sampling or options.return_alternatives)
        if is_plain and options.diverse_beam_groups == 1:
            changes["beam_size"] = max(options.beam_size, _RETRY_BEAM_SIZE)
        return {name: value for name, value in changes.items() if value != getattr(options, name)}

    def retry(
        self,
        sources: Sequence[Sequence[int]],
        found: Outputs,
        options: DecodingConfig,
        search_again: Callable[[Sequence[int], dict[str, Any]], Outputs],
    ) -> list[GuardOutcome]:
        """Check all outputs, and put better ones into ``found`` where a second search finds them.

        Args:
            sources: Source ids of each sentence.
            found: Outputs of each sentence, none empty. Changed.
            options: Of the search that found them.
            search_again: Searches the sentences with these numbers with these options changed.
        """
        checked = map(self.check, sources, found)
        outcomes = [GuardOutcome(names) for names in checked]
        groups: dict[tuple[tuple[str, Any], ...], list[int]] = {}
        for row, outcome in enumerate(outcomes):
            if changes := outcome.alarms and self.fallback_search(outcome.alarms, options):
                groups.setdefault(tuple(changes.items()), []).append(row)
        for key, rows in groups.items():
            try:
                again = search_again(rows, dict(key))
            except ConfigError:  # the engine cannot search so: the alarms stay
                continue
            for row, outputs in zip(rows, again, strict=True):
                first = outcomes[row].alarms
                names = self.check(sources[row], outputs) if outputs else first
                if len(names) < len(first):
                    cleared = tuple(name for name in first if name not in names)
                    found[row], outcomes[row] = outputs, GuardOutcome(names, cleared)
        return outcomes
