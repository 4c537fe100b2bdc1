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
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from nmt.checkpoint.model_folder import GUARD, write_extra
from nmt.config.decoding import DecodingConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.files import json_file
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers, load_tokenizers

if TYPE_CHECKING:
    from nmt.data.prepared import PreparedData
    from nmt.data.store import ParallelStore

logger = logging.getLogger(__name__)

Alarm: TypeAlias = Literal[
    "loop", "repetition", "short", "long", "compression", "coverage", "truncated"
]
"""A sign that a translation is wrong. ``truncated``, which comes from the length of the line, means
that its end is not translated."""

_NGRAM = 3
_LEAST_NGRAMS = 20  # a shorter output counts as one of so many
_SMOOTH_CHARACTERS, _SMOOTH_SUBWORDS = 10, 5  # added to both lengths: short lines vary more
_EMPTY_ZLIB_BYTES = len(zlib.compress(b""))
_SOURCE_COMPRESSION = 0.8  # an output may compress so much better than its source
_LARGEST_SHARE = 0.9  # that may be asked for
_YOUNGER = {"coverage", "expected"}  # keys that files of earlier releases lack
_WORD = re.compile(r"\w+")
_SPACE = "\u2581"
_RETRY_BEAM_SIZE = 5
_LOOP_NGRAM_SIZE = 2  # a word three times in a row has a bigram twice
_REPEATING = {"loop", "repetition", "compression"}
_LIKELIEST = 10  # translations of a token that count
_TOO_COMMON = 50  # most frequent target tokens that do not

# Of the calibration:
_MOST_LINES = 5000  # half a second
_FEWEST_LINES = 100  # fewer say nothing about rare lines
_TAIL = 0.005
_LOOP_MARGIN, _MOST_LOOP = 1, 8
_REPETITION_MARGIN, _MOST_REPETITION = 0.15, 0.5
_LENGTH_MARGIN = 0.25  # of the distance between both tails
_MOST_LENGTH_FACTOR = 4.0  # beyond the median
_COVERAGE_MARGIN = 0.8
_MOST_PAIRS = 20_000  # a second
_MOST_EXPECTED = 20  # translations of a word
_LEAST_LIFT = 4.0  # how much more often they stand beside the word than elsewhere
_MOST_DROPPED = 0.005  # share of the targets that have none of them
_SLOWEST_COMPRESSION = -0.2  # exponent; short lines alone would promise too little of long ones

_Limit: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=1000)]
Outputs = list[list[Hypothesis]]
"""The n best of each sentence, best first."""


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
        values = json_file.field(json_file.read_json(path, finite=True), kind=dict)
        names = {each.name for each in fields(GuardThresholds)}
        if missing := names - _YOUNGER - values.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return TypeAdapter(GuardThresholds).validate_python(values)
    except FileNotFoundError:
        return GuardThresholds()
    except (OSError, ValueError) as error:
        problem: object = error
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckpointError(
            f"{path} cannot be used: {problem}.",
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


def alarms(line: GuardedLine, limits: GuardThresholds) -> tuple[Alarm, ...]:
    """Return the alarms of ``line``, which depend on nothing but the line; none for most lines."""
    characters, subwords = line.characters, line.subwords
    found: dict[Alarm, bool] = {
        "loop": line.loop > limits.loop,
        "repetition": line.repetition > limits.repetition,
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
    return min(normal, _LARGEST_SHARE, _SOURCE_COMPRESSION * compressed_share(line.source))


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
        self.candidates = candidates
        self._known: dict[int, frozenset[int]] = {}  # of the tokens that came so far

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

    def _translations(self, token: int) -> frozenset[int]:
        found = self._known.get(token)
        if found is None:
            likeliest = {int(target) for target in self.candidates[token][:_LIKELIEST]}
            found = self._known[token] = frozenset(likeliest - self._common)
        return found


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


def calibrate_guard(run_dir: Path, data: PreparedData) -> None:
    """Write ``guard.json``: the same bytes for the same data, however the training went.

    With the short lists of the run, how much of a source is covered is measured, too, and which
    words the training data nearly always translate. Does nothing if the validation set has no text.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    pairs = zip(data.valid_source, data.valid_target, strict=True)
    chosen = list(islice(pairs, _MOST_LINES))
    if not chosen:
        return
    tokenizers = load_tokenizers(data.tokenizer_dir)
    sources, targets = (list(side) for side in zip(*chosen, strict=True))
    ids = tokenizers.source.encode_batch(sources), tokenizers.target.encode_batch(targets)
    coverage = SourceCoverage.load(ShortlistFile(run_dir, tokenizers.vocab_sizes))
    covered = [coverage.share(*pair) if coverage else 0.0 for pair in zip(*ids, strict=True)]
    limits = calibrate(map(GuardedLine, sources, targets, *ids, covered))
    if coverage:
        pieces = [piece for piece, _, _ in tokenizers.source.pieces()]
        candidates = np.asarray(coverage.candidates).tolist()
        found = expected_translations(data.train, candidates, pieces)
        limits = replace(limits, expected=found)
    write_extra(run_dir / GUARD, limits.text().encode())


def expected_translations(
    store: ParallelStore, candidates: Sequence[Sequence[int]], pieces: Sequence[str]
) -> dict[str, list[int]]:
    """Find the words that are nearly always translated by one of a few tokens.

    A word of one source token counts with those of its likeliest translations that stand far more
    often beside it than elsewhere; it is expected to be translated if at most 1 in 200 targets has
    none of them. In free translations few words are so; in technical or simple text most are.

    Args:
        store: Training pairs; a large corpus is represented by some of them.
        candidates: Likely target ids of each source token; -1 where there are fewer.
        pieces: The text of each source id.

    Returns:
        Target ids of each such word.
    """
    rows = np.linspace(0, len(store) - 1, min(len(store), _MOST_PAIRS), dtype=np.int64)
    sources, targets = (
        [part.tolist() for part in np.split(ids, offsets[1:-1])]
        for ids, offsets in (store.source_ids(rows), store.target_ids(rows))
    )
    words_of = [_whole_words(source, pieces) for source in sources]
    pairs = list(zip(words_of, map(set, targets), strict=True))
    counts = Counter(token for words, _ in pairs for token in words)
    overall = Counter(token for _, target in pairs for token in target)
    beside: dict[int, Counter[int]] = {
        token: Counter() for token, count in counts.items() if count >= 1 / _MOST_DROPPED
    }
    for words, target in pairs:
        for token in words & beside.keys():
            beside[token].update(target.intersection(candidates[token][:_MOST_EXPECTED]))
    lift = _LEAST_LIFT / len(pairs)
    expected = {
        token: {each for each in found if found[each] / counts[token] > lift * overall[each]}
        for token, found in beside.items()
    }
    dropped = Counter(
        token
        for words, target in pairs
        for token in words & expected.keys()
        if target.isdisjoint(expected[token])
    )
    return {
        pieces[token][1:]: sorted(targets)
        for token, targets in sorted(expected.items())
        if (dropped[token] + 1) / (counts[token] + 2) <= _MOST_DROPPED
    }


def _whole_words(ids: Sequence[int], pieces: Sequence[str]) -> set[int]:
    """Return the tokens that are words by themselves, of letters only."""
    following = [pieces[index] for index in ids[1:]]
    return {
        token
        for token, after in zip(ids, [*following, _SPACE], strict=True)
        if pieces[token][0] == _SPACE and pieces[token][1:].isalpha() and not after[0].isalnum()
    }


def calibrate(lines: Iterable[GuardedLine]) -> GuardThresholds:
    """Find the limits of a language pair from lines and their references.

    Each limit is where a tail of 1 in 200 begins, and a margin beyond; a few bad references do not
    matter, and none can move a limit further than is sensible. Fewer than 100 lines give the
    defaults. The model's own output is not asked: what a bad model often does would be normal then.
    """
    chosen = [line for line in lines if line.source.strip() and line.output.strip()]
    if len(chosen) < _FEWEST_LINES:
        return GuardThresholds()
    loop = math.floor(_quantile([line.loop for line in chosen], 1 - _TAIL)) + _LOOP_MARGIN
    repetition = _quantile([line.repetition for line in chosen], 1 - _TAIL) + _REPETITION_MARGIN
    characters = _length_limits([line.characters for line in chosen])
    subwords = _length_limits([line.subwords for line in chosen])
    scale, exponent = _compression_curve([line.output for line in chosen])
    found: dict[str, Any] = {
        "loop": min(max(loop, _LOOP_MARGIN), _MOST_LOOP),
        "repetition": min(max(repetition, _REPETITION_MARGIN), _MOST_REPETITION),
        "characters_low": characters[0],
        "characters_high": characters[1],
        "subwords_low": subwords[0],
        "subwords_high": subwords[1],
        "compression_scale": scale,
        "compression_exponent": exponent,
        "coverage": _COVERAGE_MARGIN * _quantile([line.covered for line in chosen], _TAIL),
    }
    return GuardThresholds(**{name: round(value, 4) for name, value in found.items()})


def _quantile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, math.floor(share * len(ranked)))]


def _length_limits(ratios: Sequence[float]) -> tuple[float, float]:
    logs = [math.log(ratio) for ratio in ratios]
    low, middle, high = (_quantile(logs, share) for share in (_TAIL, 0.5, 1 - _TAIL))
    margin, most = max(_LENGTH_MARGIN * (high - low), math.log(1.2)), math.log(_MOST_LENGTH_FACTOR)
    return math.exp(max(low - margin, middle - most)), math.exp(min(high + margin, middle + most))


def _compression_curve(texts: Sequence[str]) -> tuple[float, float]:
    """Fit log share = a + b log bytes by least squares, and lower it below the tail."""
    sizes = [math.log(len(text.encode("utf-8", "replace"))) for text in texts]
    shares = [math.log(compressed_share(text)) for text in texts]
    slope = _SLOWEST_COMPRESSION
    if len(set(sizes)) > 1:
        slope = max(-1.0, min(linear_regression(sizes, shares).slope, slope))
    rests = [share - slope * size for size, share in zip(sizes, shares, strict=True)]
    return math.exp(_quantile(rests, _TAIL)) * _SOURCE_COMPRESSION, slope
