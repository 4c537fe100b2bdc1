"""The guard: finds translations that are wrong by their look, and has them searched again.

A model that has lost its place repeats itself, stops early or goes on for ever. Each sign of that
is a number computed from one line and its output, in about 0.1 ms. A line with an alarm is searched
once more, by a search that avoids what the alarm is about; the second output is taken if it has
fewer alarms. The limits are fixed: what is normal for one language pair is not gross for another.

Source: n-grams repeated beyond the source's as in Raunak et al. (2021), "oscillatory
hallucinations"; the compression ratio as in Radford et al. (2022), section 4.5, who decode again on
alarm, too.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from nmt.config.model import DecodingConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.inference.request import Alarm, Result
from nmt.inference.segment import SENTENCE_BORDER, Segment
from nmt.search.hypothesis import NONE, Hypothesis
from nmt.text.languages import longest_loop
from nmt.text.tokenizer import Tokenizers

_NGRAM = 3
_LEAST_NGRAMS = 20  # a shorter output counts as one of so many
_SMOOTH_CHARACTERS, _SMOOTH_SUBWORDS = 10, 5  # added to both lengths: short lines vary more
_EMPTY_ZLIB_BYTES = len(zlib.compress(b""))
_LARGEST_SHARE = 0.9  # that may be asked for
_SOURCE_COMPRESSION = 0.8  # an output may compress so much better than its source
_RETRY_BEAM_SIZE = 5
_LOOP_NGRAM_SIZE = 2  # a word three times in a row has a bigram twice

_SIGNS: dict[str, str] = {
    **dict.fromkeys(("loop", "repetition", "compression"), "loops"),
    **dict.fromkeys(("short", "long", "truncated"), "length"),
    "constraint": "required phrases",
}
_USUAL_SHARE, _FEWEST_LINES = 0.1, 20  # of alarms, and to say that there are more than that
_NAMED_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """What is normal. The defaults fit any language pair and catch only gross faults."""

    loop: int = 3  # Most tokens that repeat at once what stands before them, beyond the source's.
    repetition: float = 0.3  # Largest share of n-grams that were there before, beyond the source's.
    # Least and largest ratio of output to source characters.
    characters: tuple[float, float] = (0.15, 8.0)
    # Least and largest ratio of output to source subwords.
    subwords: tuple[float, float] = (0.25, 4.0)
    # zlib must leave at least ``scale * bytes ** exponent`` of each byte of output.
    compression_scale: float = 0.9
    compression_exponent: float = -0.2  # See ``compression_scale``: longer texts compress better.


@dataclass(frozen=True, slots=True)
class Output:
    """What was found for a segment, and what the guard thinks of the best of it."""

    hypotheses: Sequence[Hypothesis]  # The best first; none where no output meets the constraints.
    alarms: tuple[Alarm, ...] = ()
    # Alarms of the first output, where a stricter search has found one without them.
    retried: tuple[Alarm, ...] = ()
    retry_seconds: float = 0.0  # Its share of the time of second searches.


# Segments, and decoding options to change -> hypotheses of each.
SearchAgain: TypeAlias = Callable[
    [Sequence[Segment], Mapping[str, Any]], Iterable[Sequence[Hypothesis]]
]


def check(
    segments: Sequence[Segment],
    found: Sequence[Sequence[Hypothesis]],
    tokenizers: Tokenizers,
    decoding: DecodingConfig,
    limits: GuardLimits | None,
    search_again: SearchAgain | None,
) -> list[Output]:
    """Look at the best output of each segment, and search again where it looks wrong.

    Args:
        segments: Parts of lines.
        found: Hypotheses of each.
        tokenizers: Of both languages.
        decoding: Options of the search that found them.
        limits: What is normal; None: nothing but misplaced phrases raises an alarm.
        search_again: None: outputs are taken as they are, with their alarms.

    Raises:
        CheckpointError: There is no output, and no constraint is to blame.
    """
    if any(not own and x.constraints == NONE for own, x in zip(found, segments, strict=True)):
        raise CheckpointError(
            "The model's probabilities are not numbers: its weights are broken.",
            fix="Use another checkpoint, or train again.",
        )
    outputs = [
        Output(own, () if limits is None else _alarms_of(segment, own, tokenizers, limits))
        for segment, own in zip(segments, found, strict=True)
    ]
    if limits is not None and search_again is not None:
        _retry(segments, outputs, tokenizers, decoding, limits, search_again)
    for row, (segment, output) in enumerate(zip(segments, outputs, strict=True)):
        if _is_misplaced(segment, output.hypotheses, tokenizers):
            outputs[row] = replace(output, alarms=(*output.alarms, "constraint"))
    return outputs


def _alarms_of(
    segment: Segment,
    hypotheses: Sequence[Hypothesis],
    tokenizers: Tokenizers,
    limits: GuardLimits,
) -> tuple[Alarm, ...]:
    if not hypotheses:
        return ()
    read, written = segment.ids, hypotheses[0].ids
    texts = tokenizers.source.decode(read), tokenizers.target.decode(written)
    return alarms(texts, (read, written), limits)


def _retry(
    segments: Sequence[Segment],
    outputs: list[Output],
    tokenizers: Tokenizers,
    decoding: DecodingConfig,
    limits: GuardLimits,
    search_again: SearchAgain,
) -> None:
    """Replace outputs with alarms where a second search finds a better one."""
    # Segments with the same alarms are searched together: they change the search alike.
    groups: dict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
    for row, output in enumerate(outputs):
        if changes := output.alarms and fallback_search(output.alarms, decoding, limits):
            groups[tuple(changes.items())].append(row)
    for key, rows in groups.items():
        begin = time.perf_counter()
        with suppress(ConfigError):  # the engine cannot search so: the alarms stay
            again = search_again([segments[row] for row in rows], dict(key))
            seconds = (time.perf_counter() - begin) / len(rows)
            for row, hypotheses in zip(rows, again, strict=True):
                first = outputs[row]
                names = _alarms_of(segments[row], hypotheses, tokenizers, limits)
                if hypotheses and len(names) < len(first.alarms):
                    gone = tuple(name for name in first.alarms if name not in names)
                    outputs[row] = Output(hypotheses, names, gone, seconds)
                else:
                    outputs[row] = replace(first, retry_seconds=seconds)


def fallback_search(
    found: Iterable[Alarm], decoding: DecodingConfig, limits: GuardLimits
) -> dict[str, Any]:
    """Return the changes of ``decoding`` that avoid what these alarms are about.

    None loosens a limit. They use only options that all engines define alike.
    """
    names = set(found)
    changes: dict[str, Any] = {}
    if names & {"loop", "repetition", "compression"}:
        size = _LOOP_NGRAM_SIZE if "loop" in names else _NGRAM
        changes["no_repeat_ngram_size"] = min(decoding.no_repeat_ngram_size or size, size)
    if "short" in names:
        changes["min_length_factor"] = max(decoding.min_length_factor, limits.subwords[0])
    is_plain = not (decoding.sampling or decoding.return_alternatives)
    if is_plain and decoding.diverse_beam_groups == 1:
        changes["beam_size"] = max(decoding.beam_size, _RETRY_BEAM_SIZE)
    changes = {name: x for name, x in changes.items() if x != getattr(decoding, name)}
    if changes or "long" in names:
        # Of the longest output without the alarm "long": so a retry's cost is bounded, too.
        factor = limits.subwords[1]
        offset = max(1, math.floor((factor - 1) * _SMOOTH_SUBWORDS))
        changes["max_length_factor"] = min(decoding.max_length_factor, factor)
        changes["max_length_offset"] = min(decoding.max_length_offset, offset)
    return {name: value for name, value in changes.items() if value != getattr(decoding, name)}


def alarms(
    texts: tuple[str, str],
    tokens: tuple[Sequence[Hashable], Sequence[Hashable]],
    limits: GuardLimits,
) -> tuple[Alarm, ...]:
    """Return the alarms of a line, which depend on nothing but the line; none for most lines.

    Args:
        texts: The line, and what came of it.
        tokens: Subwords of both.
        limits: What is normal.
    """
    (source, output), (read, written) = texts, tokens
    # Loops and repetitions count beyond those of the source; lengths are smoothed ratios.
    loop = longest_loop(written) - longest_loop(read)
    repeated = repeated_ngrams(written) - repeated_ngrams(read)
    repetition = repeated / max(len(written) - _NGRAM + 1, _LEAST_NGRAMS)
    characters = _ratio(output, source, _SMOOTH_CHARACTERS)
    subwords = _ratio(written, read, _SMOOTH_SUBWORDS)
    # What zlib leaves of so long a text normally; less if the source repeats itself.
    size = max(1, len(output.encode("utf-8", "replace")))
    normal = limits.compression_scale * size**limits.compression_exponent
    least_share = min(normal, _LARGEST_SHARE, _SOURCE_COMPRESSION * compressed_share(source))
    found: dict[Alarm, bool] = {
        "loop": loop > limits.loop,
        "repetition": repetition > limits.repetition,
        "short": characters < limits.characters[0] or subwords < limits.subwords[0],
        "long": characters > limits.characters[1] or subwords > limits.subwords[1],
        "compression": compressed_share(output) < least_share,
    }
    return tuple(name for name, is_on in found.items() if is_on)


def _ratio(output: Sequence[Any], source: Sequence[Any], smooth: int) -> float:
    return (len(output) + smooth) / (len(source) + smooth)


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


def _is_misplaced(
    segment: Segment, hypotheses: Sequence[Hypothesis], tokenizers: Tokenizers
) -> bool:
    """Whether a required phrase stands behind the sentence."""
    if not (segment.constraints.required and hypotheses):
        return False
    decode = tokenizers.target.decode
    phrases = [decode(ids).strip() for ids in segment.constraints.required]
    source = tokenizers.source.decode(segment.ids)
    return stands_past_end(source, decode(hypotheses[0].ids).strip(), phrases)


def stands_past_end(source: str, text: str, phrases: Iterable[str]) -> bool:
    """Whether a translation has one sentence more than its source, of required phrases alone.

    >>> stands_past_end("A man walks his dog.", "Un homme marche. chat.", ["chat"])
    True
    >>> stands_past_end("A man walks. Cat!", "Un homme marche. chat.", ["chat"])
    False
    """
    count, found = (
        [part for part in SENTENCE_BORDER.split(side) if part.strip()] for side in (source, text)
    )
    if len(found) <= max(1, len(count)):
        return False
    rest = found[-1]
    for phrase in phrases:
        rest = rest.replace(phrase, "")
    return rest != found[-1] and not any(map(str.isalnum, rest))


@dataclass(frozen=True, slots=True)
class GuardCounts:
    """What the guard saw in some lines, and what it cost. Counts of several parts add up."""

    num_lines: int = 0
    num_alarmed: int = 0  # Lines whose first translation had an alarm.
    num_cleared: int = 0  # Of these, lines whose second translation has none.
    # What the alarms were about: ``loops``, ``length``, ``required phrases``.
    signs: frozenset[str] = frozenset()
    retry_seconds: float = 0.0  # Time of the second searches.
    # Numbers of the first lines that still have an alarm.
    left: tuple[int, ...] = ()

    @classmethod
    def of(cls, results: Mapping[int, Result]) -> GuardCounts:
        """Count what raised alarms in some results, by the numbers of their lines."""
        lines = [(result.alarms, result.retried) for result in results.values()]
        return cls(
            len(lines),
            sum(bool(now or before) for now, before in lines),
            sum(bool(before and not now) for now, before in lines),
            frozenset(_SIGNS[name] for pair in lines for own in pair for name in own),
            sum(result.retry_seconds for result in results.values()),
            tuple(number for number, result in results.items() if result.alarms)[:_NAMED_LINES],
        )

    def __add__(self, other: GuardCounts) -> GuardCounts:
        return GuardCounts(
            self.num_lines + other.num_lines,
            self.num_alarmed + other.num_alarmed,
            self.num_cleared + other.num_cleared,
            self.signs | other.signs,
            self.retry_seconds + other.retry_seconds,
            (*self.left, *other.left)[:_NAMED_LINES],
        )

    def message(self, seconds: float) -> str | None:
        """Return one sentence for the log; None without alarms.

        Args:
            seconds: Time of the whole translation.

        >>> GuardCounts(1000, 2, 0, frozenset({"loops", "length"}), left=(7, 9)).message(3.5)
        'guard: 2 of 1,000 translations looked wrong (length, loops); check lines 7, 9'
        """
        if not self.num_alarmed:
            return None
        left, named = self.num_alarmed - self.num_cleared, ", ".join(map(str, self.left))
        parts = [
            f"guard: {self.num_alarmed:,} of {self.num_lines:,} translations looked wrong "
            f"({', '.join(sorted(self.signs))})"
        ]
        if self.retry_seconds:
            cost = f"{self.retry_seconds:.1f} of {seconds:.1f} s"
            parts.append(f"a second search fixed {self.num_cleared:,} and took {cost}")
        if left:
            more = ", ..." * (left > len(self.left))
            parts.append(f"check line{'s' * (left > 1)} {named}{more}")
        if self.num_alarmed > _USUAL_SHARE * self.num_lines and self.num_lines >= _FEWEST_LINES:
            parts.append("is the input unlike the training data, or the model undertrained?")
        return "; ".join(parts)
