"""The guard: finds translations that are wrong by their look, and has them searched again.

A model that has lost its place repeats itself, stops early or goes on for ever; or it writes
something fluent that has nothing to do with the source. Each sign of that is a number computed from
one line and its output, in about 0.1 ms; its threshold comes from what is normal in the validation
set. A line with an alarm is searched once more, by a search that avoids what the alarm is about;
the second output is taken if it has fewer alarms.

Source: n-grams repeated beyond the source's as in Raunak et al. (2021), "oscillatory
hallucinations"; the compression ratio as in Radford et al. (2022), section 4.5, who decode again on
alarm, too.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import ConfigDict, Field

from nmt.checkpoint.model_folder import GUARD, read_extra
from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.inference.result import Alarm
from nmt.inference.segment import SearchResults, Segment
from nmt.inference.shortlist_file import ShortlistFile
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers

R = TypeVar("R")

logger = logging.getLogger(__name__)

SOURCE_COMPRESSION = 0.8
"""An output may compress so much better than its source."""

_NGRAM = 3
_LEAST_NGRAMS = 20  # a shorter output counts as one of so many
_SMOOTH_CHARACTERS, _SMOOTH_SUBWORDS = 10, 5  # added to both lengths: short lines vary more
_EMPTY_ZLIB_BYTES = len(zlib.compress(b""))
_LARGEST_SHARE = 0.9  # that may be asked for
_WORD = re.compile(r"\w+")
_RETRY_BEAM_SIZE = 5
_LOOP_NGRAM_SIZE = 2  # a word three times in a row has a bigram twice
_LIKELIEST = 10  # translations of a token that count
_TOO_COMMON = 50  # most frequent target tokens that do not

_Limit: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1000)]


@dataclass(frozen=True, slots=True)
class GuardedLine:
    """A line, what came of it, both as subwords, and the signs that compare them."""

    source: str
    output: str
    source_tokens: Sequence[Hashable]
    output_tokens: Sequence[Hashable]
    covered: float = 1.0
    """Share of the source tokens that the output translates; see `SourceCoverage`."""

    @property
    def loop(self) -> int:
        """Tokens that repeat at once what stands before them, beyond the source's."""
        return longest_loop(self.output_tokens) - longest_loop(self.source_tokens)

    @property
    def repetition(self) -> float:
        """Share of n-grams that were there before, beyond the source's."""
        excess = repeated_ngrams(self.output_tokens) - repeated_ngrams(self.source_tokens)
        return excess / max(len(self.output_tokens) - _NGRAM + 1, _LEAST_NGRAMS)

    @property
    def characters(self) -> float:
        """Ratio of output to source characters, smoothed."""
        return (len(self.output) + _SMOOTH_CHARACTERS) / (len(self.source) + _SMOOTH_CHARACTERS)

    @property
    def subwords(self) -> float:
        """Ratio of output to source subwords, smoothed."""
        sizes = len(self.output_tokens), len(self.source_tokens)
        return (sizes[0] + _SMOOTH_SUBWORDS) / (sizes[1] + _SMOOTH_SUBWORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardThresholds:
    """Limits of what is normal. The defaults fit any language pair and catch only gross faults."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    loop: Annotated[int, Field(strict=True, ge=0, le=1000)] = 3
    """Most tokens that repeat at once what stands before them, beyond the source's."""
    repetition: _Limit = 0.3
    """Largest share of n-grams that were there before, beyond the source's."""
    characters_low: _Limit = 0.15
    """Least ratio of output to source characters."""
    characters_high: _Limit = 8.0
    """Largest ratio of output to source characters."""
    subwords_low: _Limit = 0.25
    """Least ratio of output to source subwords."""
    subwords_high: _Limit = 4.0
    """Largest ratio of output to source subwords."""
    compression_scale: _Limit = 0.9
    """zlib must leave at least ``scale * bytes ** exponent`` of each byte of output."""
    compression_exponent: Annotated[float, Field(strict=True, ge=-1, le=0)] = -0.2
    """See ``compression_scale``: longer texts compress better."""
    coverage: _Limit = 0.0
    """Least share of the source tokens that an output translates."""
    expected: Mapping[str, list[Annotated[int, Field(strict=True)]]] = field(default_factory=dict)
    """Source words that are nearly always translated by one of a few target ids, with these."""

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def read_thresholds(folder: Path) -> GuardThresholds:
    """Read the limits of a run or model folder; the defaults for what it does not have.

    Raises:
        CheckpointError: The file is damaged.
    """
    fix = "Restore it, or remove it: the guard has limits of its own then."
    return read_extra(folder / GUARD, GuardThresholds, fix=fix) or GuardThresholds()


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


def alarms(line: GuardedLine, limits: GuardThresholds) -> tuple[Alarm, ...]:
    """Return the alarms of ``line``, which depend on nothing but the line; none for most lines."""
    characters, subwords = line.characters, line.subwords
    # What zlib leaves of so long a text normally; less if the source repeats itself.
    size = max(1, len(line.output.encode("utf-8", "replace")))
    normal = limits.compression_scale * size**limits.compression_exponent
    least_share = min(normal, _LARGEST_SHARE, SOURCE_COMPRESSION * compressed_share(line.source))
    written, expected = set(line.output_tokens), limits.expected
    words = _WORD.findall(line.source) if expected else ()
    found: dict[Alarm, bool] = {
        "loop": line.loop > limits.loop,
        "repetition": line.repetition > limits.repetition,
        "short": characters < limits.characters_low or subwords < limits.subwords_low,
        "long": characters > limits.characters_high or subwords > limits.subwords_high,
        "compression": compressed_share(line.output) < least_share,
        "coverage": line.covered < limits.coverage
        or any(word in expected and written.isdisjoint(expected[word]) for word in words),
    }
    return tuple(name for name, is_on in found.items() if is_on)


class SourceCoverage:
    """How much of a source its translation covers, by the short lists of the training data.

    A source token is covered if one of the target tokens that most often translate it is in the
    output. Tokens that are in nearly every output, such as articles and full stops, cover nothing.

    Args:
        common: Target ids, the most frequent first.
        candidates: Target ids for each source token, the likeliest first; -1 where there are fewer.
    """

    def __init__(self, common: Sequence[int], candidates: Sequence[Sequence[int]]) -> None:
        useless = {-1, *common[:_TOO_COMMON]}
        self.candidates = candidates
        self._translations = cache(
            lambda token: frozenset(map(int, candidates[token][:_LIKELIEST])) - useless
        )

    @classmethod
    def load(cls, file: ShortlistFile) -> Self | None:
        """Return one by the short lists of a file; None if there is none, or a damaged one."""
        try:
            parts: Any = file.parts  # its rows are as good as sequences
        except CheckpointError as error:
            logger.warning("the guard leaves coverage out: %s %s", error.problem, error.fix)
            return None
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


class Guard:
    """Checks the best output of each sentence, and searches again where there is an alarm.

    Args:
        limits: What is normal.
        tokenizers: Of both languages.
        shortlist: By which coverage is measured, if there is a limit for it; read when needed.
        retries: Whether it searches again, or only tells.
    """

    def __init__(
        self,
        limits: GuardThresholds,
        tokenizers: Tokenizers,
        shortlist: ShortlistFile | None = None,
        *,
        retries: bool = True,
    ) -> None:
        self._retries = retries
        self.seconds = 0.0
        """Time that second searches took so far."""
        self.limits, self._tokenizers, self._shortlist = limits, tokenizers, shortlist

    @cached_property
    def coverage(self) -> SourceCoverage | None:
        """What measures coverage; None turns that sign off."""
        if self._shortlist is None or not self.limits.coverage:
            return None
        return SourceCoverage.load(self._shortlist)

    def check(self, source: Sequence[int], outputs: Sequence[Hypothesis]) -> tuple[Alarm, ...]:
        """Return the alarms of the best output of a sentence."""
        ids = outputs[0].ids
        texts = self._tokenizers.source.decode(source), self._tokenizers.target.decode(ids)
        covered = 1.0 if self.coverage is None else self.coverage.share(source, ids)
        return alarms(GuardedLine(*texts, source, ids, covered), self.limits)

    def fallback_search(self, found: Iterable[Alarm], options: DecodingConfig) -> dict[str, Any]:
        """Return the changes of ``options`` that avoid what these alarms are about.

        None loosens a limit. They use only options that all engines define alike.
        """
        names, limits = set(found), self.limits
        changes: dict[str, Any] = {}
        if names & {"loop", "repetition", "compression"}:
            size = _LOOP_NGRAM_SIZE if "loop" in names else _NGRAM
            changes["no_repeat_ngram_size"] = min(options.no_repeat_ngram_size or size, size)
        if "short" in names:
            changes["min_length_factor"] = max(options.min_length_factor, limits.subwords_low)
        is_plain = not (options.sampling or options.return_alternatives)
        if is_plain and options.diverse_beam_groups == 1:
            changes["beam_size"] = max(options.beam_size, _RETRY_BEAM_SIZE)
        changes = {name: x for name, x in changes.items() if x != getattr(options, name)}
        if changes or "long" in names:
            # Of the longest output without the alarm "long": so a retry's cost is bounded, too.
            factor = limits.subwords_high
            offset = max(1, math.floor((factor - 1) * _SMOOTH_SUBWORDS))
            changes["max_length_factor"] = min(options.max_length_factor, factor)
            changes["max_length_offset"] = min(options.max_length_offset, offset)
        return {name: value for name, value in changes.items() if value != getattr(options, name)}

    def retry(
        self,
        segments: Iterable[Segment],
        options: DecodingConfig,
        search_again: Callable[[list[Segment], Mapping[str, Any]], SearchResults],
    ) -> None:
        """Check the output of each segment, and replace it where a second search finds a better.

        Args:
            segments: With an output each. Get their alarms.
            options: Of the search that found the outputs.
            search_again: Searches some of the segments with some options changed.
        """
        groups: dict[tuple[tuple[str, Any], ...], list[Segment]] = defaultdict(list)
        for segment in segments:
            segment.alarms = self.check(segment.ids, segment.hypotheses)
            if not self._retries:
                continue
            if changes := segment.alarms and self.fallback_search(segment.alarms, options):
                groups[tuple(changes.items())].append(segment)
        for key, group in groups.items():
            with suppress(ConfigError):  # the engine cannot search so: the alarms stay
                for segment, found in search_again(group, dict(key)):
                    first = segment.alarms
                    names = self.check(segment.ids, found) if found else first
                    if len(names) < len(first):
                        segment.hypotheses, segment.alarms = found, names
                        segment.retried = tuple(name for name in first if name not in names)

    def timed(self, search_again: Callable[[], R]) -> R:
        """Return what a second search finds, and count its time."""
        begin = time.perf_counter()
        try:
            return search_again()
        finally:
            self.seconds += time.perf_counter() - begin
