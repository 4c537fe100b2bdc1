"""The guard: detects translations that look wrong, and searches them again.

A model that loses track of the source repeats itself, stops early or does not stop. The guard
computes a few numbers from each line and its translation, in about 0.1 ms. A number outside its
limits is an alarm. A line with an alarm is searched a second time with options that prevent this
fault. The second translation replaces the first if it has fewer alarms. The same limits are wide
enough for all language pairs.

Source: n-grams repeated more often than in the source as in Raunak et al. (2021), "oscillatory
hallucinations"; compression ratio and second search as in Radford et al. (2022), section 4.5.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.inference.engine import damaged_weights
from nmt.inference.request import Alarm, Alarms, AlignedSegment, Result, TokenScores
from nmt.inference.segment import SENTENCE_BORDER, Segment
from nmt.search.hypothesis import NONE, Hypothesis
from nmt.text.languages import longest_loop
from nmt.text.tokenizer import Tokenizers

_NGRAM = 3
_LEAST_NGRAMS = 20  # minimum denominator of the share of repeated n-grams
# Added to both lengths, because short lines vary more.
_SMOOTH_CHARACTERS = 10
_SMOOTH_SUBWORDS = 5
_EMPTY_ZLIB_BYTES = len(zlib.compress(b""))
_LARGEST_SHARE = 0.9  # upper bound of the compression limit
_SOURCE_COMPRESSION = 0.8  # an output may compress to this fraction of its source's ratio
_RETRY_BEAM_SIZE = 5
_LOOP_NGRAM_SIZE = 2  # a word three times in a row has a bigram twice

_SIGNS: dict[Alarm, str] = {
    "loop": "loops",
    "repetition": "loops",
    "compression": "loops",
    "short": "length",
    "long": "length",
    "truncated": "length",
    "constraint": "required phrases",
}
# The log asks about the input if more than this share of at least this many lines have alarms.
_USUAL_SHARE = 0.1
_FEWEST_LINES = 20
_NAMED_LINES = 5


@dataclass(frozen=True, kw_only=True)
class GuardLimits:
    """Limits of the alarms. The defaults fit any language pair and catch only gross faults."""

    # Maximum tokens that immediately repeat the tokens before them, beyond the source's.
    loop: int = 3
    repetition: float = 0.3  # Maximum share of repeated n-grams, beyond the source's.
    # Minimum and maximum ratio of output to source characters.
    characters: tuple[float, float] = (0.15, 8.0)
    # Minimum and maximum ratio of output to source subwords.
    subwords: tuple[float, float] = (0.25, 4.0)
    # Minimum ratio of compressed to original bytes (zlib) is ``scale * bytes ** exponent``.
    compression_scale: float = 0.9
    compression_exponent: float = -0.2  # Negative, because longer texts compress better.


@dataclass(frozen=True, slots=True)
class Output:
    """Hypotheses of a segment, and more about the best one."""

    hypotheses: Sequence[Hypothesis]  # Best first; empty if no output meets the constraints.
    alarms: Alarms = ()
    # Alarms of the first output that the output of the second search does not have.
    retried: Alarms = ()
    retry_seconds: float = 0.0  # Share of this segment in the time of second searches.
    alignment: AlignedSegment | None = None  # None unless requested.
    tokens: TokenScores = ()  # With log probabilities; empty unless requested.


Changes = Mapping[str, Any]  # Changed decoding options.
HypothesisLists = Sequence[Sequence[Hypothesis]]  # Hypotheses of each segment, best first.
SearchAgain: TypeAlias = Callable[[Sequence[Segment], Changes], HypothesisLists]


@dataclass(frozen=True)
class Guard:
    """Checks the best output of each segment, and searches again if it looks wrong."""

    tokenizers: Tokenizers
    decoding: DecodingConfig  # Options of the first search.
    # Limits of the alarms; None checks only the place of required phrases.
    limits: GuardLimits | None
    # Runs the second search; None reports alarms without a second search.
    search_again: SearchAgain | None

    def check_outputs(self, segments: Sequence[Segment], results: HypothesisLists) -> list[Output]:
        """Return one output for each segment.

        Args:
            segments: Parts of lines.
            results: Hypotheses of each segment, best first.

        Raises:
            CheckpointError: A segment without constraints has no output, because the weights are
                NaN.
        """
        outputs = []
        for segment, hypotheses in zip(segments, results, strict=True):
            if not hypotheses and segment.constraints == NONE:
                raise damaged_weights()
            outputs.append(Output(hypotheses, self._alarms_of(segment, hypotheses)))
        self._retry(segments, outputs)
        for row, segment in enumerate(segments):
            if self._is_misplaced(segment, outputs[row].hypotheses):
                alarms_of_row = (*outputs[row].alarms, "constraint")
                outputs[row] = replace(outputs[row], alarms=alarms_of_row)
        return outputs

    def _alarms_of(self, segment: Segment, hypotheses: Sequence[Hypothesis]) -> Alarms:
        if self.limits is None or not hypotheses:
            return ()
        source, target = self.tokenizers
        read = segment.ids
        written = hypotheses[0].ids
        texts = (source.decode(read), target.decode(written))
        return alarms(texts, (read, written), self.limits)

    def _retry(self, segments: Sequence[Segment], outputs: list[Output]) -> None:
        """Search segments with alarms again; in place, replace outputs that get fewer alarms."""
        if self.limits is None or self.search_again is None:
            return
        # Segments that need the same changed options are searched as one batch.
        groups: dict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
        for row, output in enumerate(outputs):
            if output.alarms:
                changes = fallback_search(output.alarms, self.decoding, self.limits)
                groups[tuple(changes.items())].append(row)
        groups.pop((), None)  # no option prevents these faults
        for changed, rows in groups.items():
            begin = time.perf_counter()
            try:
                again = self.search_again([segments[row] for row in rows], dict(changed))
            except ConfigError:  # the engine does not support these options: keep the alarms
                continue
            seconds = (time.perf_counter() - begin) / len(rows)
            for row, hypotheses in zip(rows, again, strict=True):
                first = outputs[row]
                names = self._alarms_of(segments[row], hypotheses)
                outputs[row] = replace(first, retry_seconds=seconds)
                if hypotheses and len(names) < len(first.alarms):
                    removed = tuple(name for name in first.alarms if name not in names)
                    outputs[row] = Output(hypotheses, names, removed, seconds)

    def _is_misplaced(self, segment: Segment, hypotheses: Sequence[Hypothesis]) -> bool:
        """Whether a required phrase follows the end of the sentence, not being part of it."""
        required = segment.constraints.required
        if not (required and hypotheses):
            return False
        source, target = self.tokenizers
        output = target.decode(hypotheses[0].ids)
        phrases = [target.decode(ids).strip() for ids in required]
        return stands_past_end(source.decode(segment.ids), output.strip(), phrases)


def fallback_search(
    names: Iterable[Alarm], decoding: DecodingConfig, limits: GuardLimits
) -> dict[str, Any]:
    """Return the changes of ``decoding`` that prevent the faults behind the alarms ``names``.

    A change never loosens an option that the user has set. Only options with the same meaning in
    all engines are changed.

    Args:
        names: Alarms of the first output.
        decoding: Options of the first search.
        limits: Limits of the alarms.
    """
    names = set(names)
    changes: dict[str, Any] = {}
    if names & {"loop", "repetition", "compression"}:
        size = _LOOP_NGRAM_SIZE if "loop" in names else _NGRAM
        changes["no_repeat_ngram_size"] = min(decoding.no_repeat_ngram_size or size, size)
    if "short" in names:
        least = limits.subwords[0]
        changes["min_length_factor"] = max(decoding.min_length_factor, least)
    has_groups = decoding.diverse_beam_groups > 1
    if not (decoding.sampling or decoding.return_alternatives or has_groups):
        changes["beam_size"] = max(decoding.beam_size, _RETRY_BEAM_SIZE)
    changes = _without_defaults(changes, decoding)
    if changes or "long" in names:
        # The longest output without the alarm "long": this also bounds the cost of the search.
        factor = limits.subwords[1]
        offset = max(1, math.floor((factor - 1) * _SMOOTH_SUBWORDS))
        changes["max_length_factor"] = min(decoding.max_length_factor, factor)
        changes["max_length_offset"] = min(decoding.max_length_offset, offset)
    return _without_defaults(changes, decoding)


def _without_defaults(changes: dict[str, Any], decoding: DecodingConfig) -> dict[str, Any]:
    return {name: x for name, x in changes.items() if x != getattr(decoding, name)}


def alarms(
    texts: tuple[str, str],
    tokens: tuple[Sequence[Hashable], Sequence[Hashable]],
    limits: GuardLimits,
) -> Alarms:
    """Return the alarms of one line. They depend only on this line; most lines have none.

    Args:
        texts: Source line and its translation.
        tokens: Source and target subwords.
        limits: Limits of the alarms.
    """
    source, output = texts
    read, written = tokens
    # Loops and repetitions of the source are subtracted. Length ratios are smoothed.
    loop = longest_loop(written) - longest_loop(read)
    repeated = repeated_ngrams(written) - repeated_ngrams(read)
    repetition = repeated / max(len(written) - _NGRAM + 1, _LEAST_NGRAMS)
    characters = _ratio(output, source, _SMOOTH_CHARACTERS)
    subwords = _ratio(written, read, _SMOOTH_SUBWORDS)
    # The compression ratio of normal text of this length; lower if the source is repetitive.
    size = max(1, len(output.encode("utf-8", "replace")))
    normal = limits.compression_scale * size**limits.compression_exponent
    least_share = min(normal, _LARGEST_SHARE, _SOURCE_COMPRESSION * compressed_share(source))
    least_characters, most_characters = limits.characters
    least_subwords, most_subwords = limits.subwords
    is_on: dict[Alarm, bool] = {
        "loop": loop > limits.loop,
        "repetition": repetition > limits.repetition,
        "short": characters < least_characters or subwords < least_subwords,
        "long": characters > most_characters or subwords > most_subwords,
        "compression": compressed_share(output) < least_share,
    }
    return tuple(name for name in is_on if is_on[name])


def _ratio(output: Sequence[Any], source: Sequence[Any], smooth: int) -> float:
    return (len(output) + smooth) / (len(source) + smooth)


def repeated_ngrams(tokens: Sequence[Hashable]) -> int:
    """Return how many trigrams occurred earlier in ``tokens``.

    >>> repeated_ngrams("a red car and a red car".split())
    1
    """
    starts = range(len(tokens) - _NGRAM + 1)
    ngrams = {tuple(tokens[start : start + _NGRAM]) for start in starts}
    return len(starts) - len(ngrams)


def compressed_share(text: str) -> float:
    """Return the ratio of compressed (zlib) to original UTF-8 bytes; 1 for an empty text.

    >>> round(compressed_share("plastic stick"), 1), round(compressed_share("plastic " * 20), 1)
    (0.8, 0.1)
    """
    if not text:
        return 1.0
    content = text.encode("utf-8", "replace")
    num_bytes = len(zlib.compress(content, 9)) - _EMPTY_ZLIB_BYTES
    return num_bytes / len(content)


def stands_past_end(source: str, text: str, phrases: Iterable[str]) -> bool:
    """Whether a translation ends in an extra sentence that consists of required phrases only.

    >>> stands_past_end("A man walks his dog.", "Un homme marche. chat.", ["chat"])
    True
    >>> stands_past_end("A man walks. Cat!", "Un homme marche. chat.", ["chat"])
    False
    """
    num_sentences = len(_sentences(source))
    sentences = _sentences(text)
    if len(sentences) <= max(1, num_sentences):
        return False
    last = sentences[-1]
    rest = last
    for phrase in phrases:
        rest = rest.replace(phrase, "")
    has_words = any(map(str.isalnum, rest))
    return rest != last and not has_words


def _sentences(text: str) -> list[str]:
    return [part for part in SENTENCE_BORDER.split(text) if part.strip()]


@dataclass
class GuardCounts:
    """Statistics of the guard over the lines of a translation."""

    num_lines: int = 0
    num_alarmed: int = 0  # Lines whose first translation had an alarm.
    num_cleared: int = 0  # Alarmed lines whose second translation has no alarm.
    # Kinds of alarms that occurred: ``loops``, ``length``, ``required phrases``.
    signs: set[str] = field(default_factory=set)
    retry_seconds: float = 0.0  # Time of the second searches.
    left: list[int] = field(default_factory=list)  # The first five lines that still have an alarm.

    def add(self, results: Mapping[int, Result]) -> Self:
        """Add the alarms of results, by line number, to the counts; return this object."""
        self.num_lines += len(results)
        for number, result in results.items():
            self.retry_seconds += result.retry_seconds
            names = (*result.alarms, *result.retried)
            if not names:
                continue
            self.num_alarmed += 1
            self.signs.update(_SIGNS[name] for name in names)
            if not result.alarms:
                self.num_cleared += 1
            elif len(self.left) < _NAMED_LINES:
                self.left.append(number)
        return self

    def message(self, seconds: float) -> str | None:
        """Return one sentence for the log; None if there are no alarms.

        Args:
            seconds: Time of the whole translation.

        >>> GuardCounts(1000, 2, 0, {"loops", "length"}, left=[7, 9]).message(3.5)
        'guard: 2 of 1,000 translations are suspicious (length, loops); check lines 7, 9'
        """
        if not self.num_alarmed:
            return None
        share = f"{self.num_alarmed:,} of {self.num_lines:,} translations are suspicious"
        parts = [f"guard: {share} ({', '.join(sorted(self.signs))})"]
        if self.retry_seconds:
            cost = f"{self.retry_seconds:.1f} of {seconds:.1f} s"
            parts.append(f"a second search fixed {self.num_cleared:,} and took {cost}")
        num_left = self.num_alarmed - self.num_cleared
        if num_left:
            lines = "line" if num_left == 1 else "lines"
            named = ", ".join(map(str, self.left))
            if num_left > len(self.left):
                named += ", ..."
            parts.append(f"check {lines} {named}")
        if self.num_alarmed > _USUAL_SHARE * self.num_lines and self.num_lines >= _FEWEST_LINES:
            parts.append("is the input unlike the training data, or the model undertrained?")
        return "; ".join(parts)
