"""Signs that a translation is none: pure functions of one line and its output.

A model that has lost its place repeats itself, stops early or goes on for ever; or it says
something fluent that has nothing to do with the source. Each sign is a number, and its limit comes
from what is normal in the validation set. A line takes about 0.1 ms.

Source: n-grams repeated beyond the source's as in Raunak et al. (2021), "oscillatory
hallucinations"; the compression ratio as in Radford et al. (2022), section 4.5, who decode again on
alarm, too.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from nmt.checkpoint.model_folder import GUARD
from nmt.errors import CheckpointError
from nmt.files.json_file import field, read_json

Alarm: TypeAlias = Literal["loop", "repetition", "short", "long", "compression", "coverage"]

_NGRAM = 3
_LEAST_NGRAMS = 20  # a shorter output counts as one of so many
_SMOOTH_CHARACTERS, _SMOOTH_SUBWORDS = 10, 5  # added to both lengths: short lines vary more
_EMPTY_ZLIB_BYTES = len(zlib.compress(b""))

_FEWEST_LINES = 100  # fewer say nothing about rare lines
_TAIL = 0.005
_LOOP_MARGIN, _MOST_LOOP = 1, 8
_REPETITION_MARGIN, _MOST_REPETITION = 0.15, 0.5
_LENGTH_MARGIN = 0.25  # of the distance between both tails
_MOST_LENGTH_FACTOR = 4.0  # beyond the median
_COMPRESSION_MARGIN = 0.8
_COVERAGE_MARGIN = 0.8
_SLOWEST_COMPRESSION = -0.2  # exponent; short lines alone would promise too little of long ones
_LARGEST_SHARE = 0.9  # that may be asked for
_LARGEST_LIMIT = 1000  # in a file that can be believed


@dataclass(frozen=True, slots=True)
class GuardedLine:
    """A line, what came of it, and both as subwords."""

    source: str
    output: str
    source_tokens: Sequence[Hashable]
    output_tokens: Sequence[Hashable]
    covered: float = 1.0
    """Part of the source that the output speaks of; see `nmt.translation.coverage`."""


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
    """Least part of the source that an output speaks of."""

    @property
    def longest(self) -> tuple[float, int]:
        """Factor of the source subwords, and offset, of the longest output that is not ``long``."""
        return self.subwords_high, max(1, math.floor((self.subwords_high - 1) * _SMOOTH_SUBWORDS))

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_thresholds(folder: Path) -> GuardThresholds:
    """Read the limits of a run or model folder; the defaults if it has none.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = folder / GUARD
    try:
        values = read_json(path, finite=True)
        names = {name.name for name in fields(GuardThresholds)}
        if set(field(values, kind=dict)) not in (
            names,
            names - {"coverage"},
        ):  # which is younger than the others
            raise ValueError("its keys are others")
        numbers = {name: field(values, name, kind=float) for name in values}
        exponent = numbers.pop("compression_exponent")
        if not (
            -1 <= exponent <= 0 and all(0 <= value <= _LARGEST_LIMIT for value in numbers.values())
        ):
            raise ValueError("a number in it makes no sense")
        return GuardThresholds(**values)
    except FileNotFoundError:
        return GuardThresholds()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be used: {error}.",
            fix="Restore it, or remove it: the guard has limits of its own then.",
        ) from error


class Guarded(Protocol):
    """The translation of a line, as far as counting goes."""

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Signs that it is none."""
        ...

    @property
    def mended(self) -> tuple[Alarm, ...]:
        """Signs that a stricter search took away."""
        ...


@dataclass(frozen=True, slots=True)
class GuardCount:
    """How often the guard was alarmed."""

    lines: int = 0
    """Lines in all."""
    alarmed: int = 0
    """Lines whose first translation had an alarm."""
    mended: int = 0
    """Of these, lines whose second one has none."""

    def plus(self, results: Iterable[Guarded]) -> GuardCount:
        """Count more lines."""
        lines, alarmed, mended = self.lines, self.alarmed, self.mended
        for result in results:
            lines += 1
            alarmed += bool(result.alarms or result.mended)
            mended += bool(result.mended and not result.alarms)
        return GuardCount(lines, alarmed, mended)

    def joined(self, other: GuardCount) -> GuardCount:
        """Count the lines of ``other``, too."""
        return GuardCount(
            self.lines + other.lines, self.alarmed + other.alarmed, self.mended + other.mended
        )

    def note(self) -> str | None:
        """Return what the user is told; None if all was quiet.

        >>> GuardCount(1000, 3, 2).note()
        'guard: 3 of 1,000 lines alarmed, 2 mended by a stricter search; --no-guard turns this off'
        """
        if not self.alarmed:
            return None
        return (
            f"guard: {self.alarmed:,} of {self.lines:,} lines alarmed, {self.mended:,} mended by a "
            "stricter search; --no-guard turns this off"
        )


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


def _repetition(line: GuardedLine) -> float:
    excess = repeated_ngrams(line.output_tokens) - repeated_ngrams(line.source_tokens)
    return excess / max(len(line.output_tokens) - _NGRAM + 1, _LEAST_NGRAMS)


def _loop(line: GuardedLine) -> int:
    return longest_loop(line.output_tokens) - longest_loop(line.source_tokens)


def _characters(line: GuardedLine) -> float:
    return _ratio(len(line.source), len(line.output), _SMOOTH_CHARACTERS)


def _subwords(line: GuardedLine) -> float:
    return _ratio(len(line.source_tokens), len(line.output_tokens), _SMOOTH_SUBWORDS)


def _ratio(source: int, output: int, smooth: int) -> float:
    return (output + smooth) / (source + smooth)


def alarms(line: GuardedLine, limits: GuardThresholds) -> tuple[Alarm, ...]:
    """Return the signs by which ``line`` is not normal; none for most lines.

    The signs of a line depend on nothing but the line.
    """
    characters, subwords = _characters(line), _subwords(line)
    found: dict[Alarm, bool] = {
        "loop": _loop(line) > limits.loop,
        "repetition": _repetition(line) > limits.repetition,
        "short": characters < limits.characters_low or subwords < limits.subwords_low,
        "long": characters > limits.characters_high or subwords > limits.subwords_high,
        "compression": compressed_share(line.output) < _least_share(line, limits),
        "coverage": line.covered < limits.coverage,
    }
    return tuple(name for name, is_on in found.items() if is_on)


def _least_share(line: GuardedLine, limits: GuardThresholds) -> float:
    """What zlib leaves at least of a text so long; less if the source repeats itself."""
    size = max(1, len(line.output.encode("utf-8", "replace")))
    normal = limits.compression_scale * size**limits.compression_exponent
    return min(normal, _LARGEST_SHARE, _COMPRESSION_MARGIN * compressed_share(line.source))


def calibrate(lines: Iterable[GuardedLine]) -> GuardThresholds:
    """Find the limits of a language pair from lines and their references.

    Each limit is where a tail of 1 in 200 begins, and a margin beyond; a few bad references do not
    matter, and none can move a limit further than is sensible. Fewer than 100 lines give the
    defaults. The model's own output is not asked: what a bad model often does would be normal then.
    """
    chosen = [line for line in lines if line.source.strip() and line.output.strip()]
    if len(chosen) < _FEWEST_LINES:
        return GuardThresholds()
    loop = math.floor(_quantile([_loop(line) for line in chosen], 1 - _TAIL)) + _LOOP_MARGIN
    repetition = _quantile([_repetition(line) for line in chosen], 1 - _TAIL) + _REPETITION_MARGIN
    characters = _length_limits([_characters(line) for line in chosen])
    subwords = _length_limits([_subwords(line) for line in chosen])
    scale, exponent = _compression_curve([line.output for line in chosen])
    return GuardThresholds(
        loop=min(max(loop, _LOOP_MARGIN), _MOST_LOOP),
        repetition=_rounded(min(max(repetition, _REPETITION_MARGIN), _MOST_REPETITION)),
        characters_low=_rounded(characters[0]),
        characters_high=_rounded(characters[1]),
        subwords_low=_rounded(subwords[0]),
        subwords_high=_rounded(subwords[1]),
        compression_scale=_rounded(scale),
        compression_exponent=_rounded(exponent),
        coverage=_rounded(_COVERAGE_MARGIN * _quantile([line.covered for line in chosen], _TAIL)),
    )


def _quantile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, math.floor(share * len(ranked)))]


def _rounded(value: float) -> float:
    return round(value, 4)


def _length_limits(ratios: Sequence[float]) -> tuple[float, float]:
    logs = [math.log(ratio) for ratio in ratios]
    low, middle, high = (_quantile(logs, share) for share in (_TAIL, 0.5, 1 - _TAIL))
    margin, most = max(_LENGTH_MARGIN * (high - low), math.log(1.2)), math.log(_MOST_LENGTH_FACTOR)
    return math.exp(max(low - margin, middle - most)), math.exp(min(high + margin, middle + most))


def _compression_curve(texts: Sequence[str]) -> tuple[float, float]:
    """Fit log share = a + b log bytes by least squares, and lower it below the tail."""
    sizes = [math.log(len(text.encode("utf-8", "replace"))) for text in texts]
    shares = [math.log(compressed_share(text)) for text in texts]
    mean_size, mean_share = (math.fsum(values) / len(values) for values in (sizes, shares))
    spread = math.fsum((size - mean_size) ** 2 for size in sizes)
    slope = _SLOWEST_COMPRESSION
    if spread > 0:
        products = zip(sizes, shares, strict=True)
        slope = math.fsum((s - mean_size) * (y - mean_share) for s, y in products) / spread
    slope = max(-1.0, min(slope, _SLOWEST_COMPRESSION))
    rests = [share - slope * size for size, share in zip(sizes, shares, strict=True)]
    return math.exp(_quantile(rests, _TAIL)) * _COMPRESSION_MARGIN, slope
