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
import re
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from nmt.config.data import PLACEHOLDER
from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.inference.engine import damaged_weights
from nmt.inference.glossary import count_forms
from nmt.inference.request import Alarm, Alarms, AlignedSegment, Result, TokenScores
from nmt.inference.segment import Segment, Sentence
from nmt.search.hypothesis import NONE, Hypothesis
from nmt.text import UNK_ID
from nmt.text.identification import LanguageProfiles, clear_label
from nmt.text.languages import longest_loop
from nmt.text.numbers import number_differences
from nmt.text.sentences import split_sentences
from nmt.text.tokenizer import Tokenizers

_NGRAM_SIZE = 3
_MIN_NGRAMS = 20  # minimum denominator of the share of repeated n-grams
# Added to both lengths of a ratio, because the ratios of short lines vary more.
_SMOOTH_CHARACTERS = 10
_SMOOTH_SUBWORDS = 5
_EMPTY_ZLIB_BYTES = len(zlib.compress(b""))
_MAX_COMPRESSION_LIMIT = 0.9
_SOURCE_COMPRESSION = 0.8  # an output may compress to this fraction of its source's ratio
_RETRY_BEAM_SIZE = 5
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"\w+")
# A translation may equal a shorter source, such as a name. Of 190,000 pairs, no longer one does.
_FEWEST_COPIED = 10  # Characters of all words.
_LOOP_NGRAM_SIZE = 2  # a word three times in a row has a bigram twice

# Alarm -> word for its fault in the log.
_FAULTS: dict[Alarm, str] = {
    "loop": "loops",
    "repetition": "loops",
    "compression": "loops",
    "short": "length",
    "long": "length",
    "truncated": "length",
    "constraint": "required phrases",
    "numbers": "numbers",
    "lost": "placeholders",
    "unknown": "unknown characters",
    "source_language": "source language",
    "output_language": "output language",
    "copied": "copied source",
    "capitals": "capitals",
}
# The log asks about the input if more than `_USUAL_SHARE` of the lines have an alarm. Fewer than
# `_MIN_LINES` lines are too few to ask.
_USUAL_SHARE = 0.1
_MIN_LINES = 20
_MAX_LISTED_LINES = 5


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
    alignment: AlignedSegment | None = None  # None unless requested or needed.
    tokens: TokenScores = ()  # With log probabilities; empty unless requested.


Changes = Mapping[str, Any]  # Changed decoding options.
HypothesisLists = Sequence[Sequence[Hypothesis]]  # Hypotheses of each segment, best first.
SearchAgain = Callable[[Sequence[Segment], Changes], HypothesisLists]


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
        for index, segment in enumerate(segments):
            output = outputs[index]
            if self._has_phrase_past_end(segment, output.hypotheses):
                output = replace(output, alarms=(*output.alarms, "constraint"))
            if self.limits is not None and UNK_ID in segment.ids:
                output = replace(output, alarms=(*output.alarms, "unknown"))
            outputs[index] = output
        return outputs

    def _alarms_of(self, segment: Segment, hypotheses: Sequence[Hypothesis]) -> Alarms:
        """Return the alarms of the best hypothesis; none without limits or hypotheses."""
        if self.limits is None or not hypotheses:
            return ()
        source_tokenizer, target_tokenizer = self.tokenizers
        source_ids = segment.ids
        target_ids = hypotheses[0].ids
        texts = (source_tokenizer.decode(source_ids), target_tokenizer.decode(target_ids))
        return alarms(texts, (source_ids, target_ids), self.limits)

    def _retry(self, segments: Sequence[Segment], outputs: list[Output]) -> None:
        """Search segments with alarms again; in place, replace outputs that get fewer alarms."""
        if self.limits is None or self.search_again is None:
            return
        # Segments that need the same changed options are searched as one batch.
        # Key: names and values of the changed options. Value: indices of the segments.
        batches: dict[tuple[tuple[str, Any], ...], list[int]] = defaultdict(list)
        for index, output in enumerate(outputs):
            if output.alarms and not segments[index].is_junk:
                changes = fallback_search(output.alarms, self.decoding, self.limits)
                batches[tuple(changes.items())].append(index)
        batches.pop((), None)  # no option prevents the faults of these segments
        for changed_options, indices in batches.items():
            begin = time.perf_counter()
            segments_of_batch = [segments[index] for index in indices]
            try:
                results = self.search_again(segments_of_batch, dict(changed_options))
            except ConfigError:  # the engine does not support these options: keep the alarms
                continue
            seconds = (time.perf_counter() - begin) / len(indices)  # of one segment
            for index, hypotheses in zip(indices, results, strict=True):
                first_output = outputs[index]
                outputs[index] = replace(first_output, retry_seconds=seconds)
                second_alarms = self._alarms_of(segments[index], hypotheses)
                if hypotheses and len(second_alarms) < len(first_output.alarms):
                    removed = tuple(
                        name for name in first_output.alarms if name not in second_alarms
                    )
                    outputs[index] = Output(hypotheses, second_alarms, removed, seconds)

    def _has_phrase_past_end(self, segment: Segment, hypotheses: Sequence[Hypothesis]) -> bool:
        """Whether required phrases follow the end of the sentence instead of being part of it."""
        required_ids = segment.constraints.required
        if not (required_ids and hypotheses):
            return False
        source_tokenizer, target_tokenizer = self.tokenizers
        translation = target_tokenizer.decode(hypotheses[0].ids)
        phrases = [target_tokenizer.decode(ids).strip() for ids in required_ids]
        return stands_past_end(source_tokenizer.decode(segment.ids), translation.strip(), phrases)


def fallback_search(
    alarm_names: Collection[Alarm], decoding: DecodingConfig, limits: GuardLimits
) -> dict[str, Any]:
    """Return the changes of ``decoding`` that prevent the faults behind alarms.

    A change never loosens an option that the user has set. Only options with the same meaning in
    all engines are changed.

    Args:
        alarm_names: Alarms of the first output.
        decoding: Options of the first search.
        limits: Limits of the alarms.

    Returns:
        New values by the name of the option. Empty if no option prevents the faults.
    """
    changes = dict[str, Any]()
    _, max_ratio = limits.subwords
    if not {"loop", "repetition", "compression"}.isdisjoint(alarm_names):
        size = _LOOP_NGRAM_SIZE if "loop" in alarm_names else _NGRAM_SIZE
        # The smaller size is stricter. A size of 0 in ``decoding`` allows all repetitions.
        changes["no_repeat_ngram_size"] = min(decoding.no_repeat_ngram_size or size, size)
    # Only a plain beam search gets a larger beam: sampling and alternatives do not use the beam
    # size, and with groups it must stay a multiple of their number.
    has_groups = decoding.diverse_beam_groups > 1
    if not (decoding.sampling or decoding.return_alternatives or has_groups):
        changes["beam_size"] = max(decoding.beam_size, _RETRY_BEAM_SIZE)
    changes = _without_unchanged(changes, decoding)
    # No search only forces a length, which would hide the fault: the output would be invented, or
    # cut. The length limits bound the cost of any second search.
    if changes:
        # The shortest output with the alarm "long", so that a cut output has the alarm. The alarm
        # compares (output + smooth) / (source + smooth) with the ratio, so the longest output
        # without it is ratio * source + (ratio - 1) * smooth. The option must be at least 1.
        offset = max(1, math.floor((max_ratio - 1) * _SMOOTH_SUBWORDS) + 1)
        changes["max_length_factor"] = min(decoding.max_length_factor, max_ratio)
        changes["max_length_offset"] = min(decoding.max_length_offset, offset)
    return _without_unchanged(changes, decoding)


def _without_unchanged(changes: dict[str, Any], decoding: DecodingConfig) -> dict[str, Any]:
    """Drop the options that have the same value in ``decoding``."""
    return {name: value for name, value in changes.items() if value != getattr(decoding, name)}


def alarms(
    texts: tuple[str, str],
    tokens: tuple[Sequence[Hashable], Sequence[Hashable]],
    limits: GuardLimits,
) -> Alarms:
    """Return the alarms of one line. They depend only on this line; most lines have none.

    Args:
        texts: Source line and its translation.
        tokens: Subwords of the source line, and subwords of the translation.
        limits: Limits of the alarms.
    """
    source, output = texts
    source_tokens, output_tokens = tokens
    # A translation may repeat what its source repeats, so the source's repetitions are subtracted.
    loop_length = longest_loop(output_tokens) - longest_loop(source_tokens)
    num_repeated = repeated_ngrams(output_tokens) - repeated_ngrams(source_tokens)
    num_ngrams = len(output_tokens) - _NGRAM_SIZE + 1
    repeated_share = num_repeated / max(num_ngrams, _MIN_NGRAMS)
    character_ratio = _length_ratio(output, source, _SMOOTH_CHARACTERS)
    subword_ratio = _length_ratio(output_tokens, source_tokens, _SMOOTH_SUBWORDS)
    # Normal text of this length compresses to at least this share.
    num_bytes = max(1, len(output.encode("utf-8", "replace")))
    length_limit = limits.compression_scale * num_bytes**limits.compression_exponent
    # If the source is repetitive, its translation may be repetitive, too.
    source_limit = _SOURCE_COMPRESSION * compressed_share(source)
    min_compressed_share = min(length_limit, source_limit, _MAX_COMPRESSION_LIMIT)
    min_characters, max_characters = limits.characters
    min_subwords, max_subwords = limits.subwords
    is_raised: dict[Alarm, bool] = {
        "loop": loop_length > limits.loop,
        "repetition": repeated_share > limits.repetition,
        "short": character_ratio < min_characters or subword_ratio < min_subwords,
        "long": character_ratio > max_characters or subword_ratio > max_subwords,
        "compression": compressed_share(output) < min_compressed_share,
    }
    return tuple(name for name in is_raised if is_raised[name])


def _length_ratio(output: Sequence[Any], source: Sequence[Any], smooth: int) -> float:
    return (len(output) + smooth) / (len(source) + smooth)


def repeated_ngrams(tokens: Sequence[Hashable]) -> int:
    """Return how many trigrams occurred earlier in ``tokens``.

    >>> repeated_ngrams("a red car and a red car".split())
    1
    """
    starts = range(len(tokens) - _NGRAM_SIZE + 1)
    distinct_ngrams = {tuple(tokens[start : start + _NGRAM_SIZE]) for start in starts}
    return len(starts) - len(distinct_ngrams)


def compressed_share(text: str) -> float:
    """Return the ratio of compressed (zlib) to original UTF-8 bytes; 1 for an empty text.

    >>> round(compressed_share("plastic stick"), 1), round(compressed_share("plastic " * 20), 1)
    (0.8, 0.1)
    """
    if not text:
        return 1.0
    content = text.encode("utf-8", "replace")
    # Without the bytes that zlib adds to every text.
    num_compressed = len(zlib.compress(content, 9)) - _EMPTY_ZLIB_BYTES
    return num_compressed / len(content)


def stands_past_end(source: str, translation: str, phrases: Iterable[str]) -> bool:
    """Whether a translation ends in an extra sentence that consists of required phrases only.

    >>> stands_past_end("A man walks his dog.", "Un homme marche. chat.", ["chat"])
    True
    >>> stands_past_end("A man walks. Cat!", "Un homme marche. chat.", ["chat"])
    False
    """
    num_source_sentences = len(split_sentences(source, ""))
    sentences = split_sentences(translation, "")
    # Without more sentences than the source, and with a single sentence, none is an extra one.
    if len(sentences) <= max(1, num_source_sentences):
        return False
    last_sentence = sentences[-1]
    without_phrases = last_sentence
    for phrase in phrases:
        without_phrases = without_phrases.replace(phrase, "")
    has_other_words = any(map(str.isalnum, without_phrases))
    return without_phrases != last_sentence and not has_other_words


def text_alarms(
    sentence: Sentence, text: str, model_output: str, profiles: LanguageProfiles
) -> Iterator[Alarm]:
    """Yield the alarms that the texts of a sentence and of its translation show.

    Args:
        sentence: The sentence.
        text: Its translation.
        model_output: The translation without placeholders.
        profiles: See `clear_label`.
    """
    source_text = sentence.text
    if _DIGIT.search(source_text):
        missing_numbers, _ = number_differences(source_text, text)
        if missing_numbers:
            yield "numbers"
    marks = sentence.placeholders
    source, target = sentence.tags.direction
    num_terms = Counter(map(frozenset, sentence.terms))
    is_lost = text.count(PLACEHOLDER) > source_text.count(PLACEHOLDER)
    for forms, number in num_terms.items():
        is_lost |= count_forms(forms, text, target) < number
    for mark in marks:
        is_lost |= text.count(mark) < marks.count(mark)
    if is_lost:
        yield "lost"
    model_text = sentence.model_text
    if clear_label(model_text, source, profiles):
        yield "source_language"
    if clear_label(model_output, target, profiles):
        yield "output_language"
    if source != target and is_copy(model_text, model_output):
        yield "copied"


def is_copy(source: str, translation: str) -> bool:
    """Whether a translation has the words of its source, which is longer than a name.

    >>> is_copy("A man walks his dog.", "a man walks his dog"), is_copy("Berlin!", "Berlin!")
    (True, False)
    """
    words = _WORD.findall(source.casefold())
    translated_words = _WORD.findall(translation.casefold())
    is_long = sum(map(len, words)) > _FEWEST_COPIED
    return is_long and words == translated_words


@dataclass
class GuardCounts:
    """Statistics of the guard over the lines of a translation."""

    num_lines: int = 0
    num_alarmed: int = 0  # Lines whose first translation had an alarm.
    num_cleared: int = 0  # Alarmed lines whose second translation has no alarm.
    retry_seconds: float = 0.0  # Time of the second searches.
    # By fault, such as ``loops``: number of lines that still have an alarm, and the numbers of the
    # first five. A fault that the second search fixed in all lines has none.
    faults: Counter[str] = field(default_factory=Counter)
    suspicious: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, results: Mapping[int, Result]) -> Self:
        """Add the alarms of results, by line number, to the counts; return this object."""
        self.num_lines += len(results)
        for line_number, result in results.items():
            self.retry_seconds += result.retry_seconds
            # Also the alarms that the second search removed, which do not count.
            raised_alarms = (*result.alarms, *result.retried)
            if not raised_alarms:
                continue
            self.num_alarmed += 1
            self.num_cleared += not result.alarms
            self.faults.update({_FAULTS[name]: 0 for name in raised_alarms})
            for fault in {_FAULTS[name] for name in result.alarms}:
                self.faults[fault] += 1
                lines = self.suspicious[fault]
                if len(lines) < _MAX_LISTED_LINES:
                    lines.append(line_number)
        return self

    def message(self, seconds: float) -> str | None:
        """Return one sentence for the log; None if there are no alarms.

        Args:
            seconds: Time of the whole translation.

        >>> GuardCounts(99, 2, 1, faults=Counter(loops=1), suspicious={"loops": [7]}).message(3.5)
        'guard: 2 of 99 translations are suspicious (loops); check loops in 1 line: 7'
        """
        if not self.num_alarmed:
            return None
        share = f"{self.num_alarmed:,} of {self.num_lines:,} translations are suspicious"
        clauses = [f"guard: {share} ({', '.join(sorted(self.faults))})"]
        if self.retry_seconds:
            cost = f"{self.retry_seconds:.1f} of {seconds:.1f} s"
            clauses.append(f"a second search fixed {self.num_cleared:,} and took {cost}")
        for fault, count in sorted(self.faults.items()):
            if not count:
                continue
            noun = "line" if count == 1 else "lines"
            lines = self.suspicious[fault]
            listed = ", ".join(map(str, lines))
            if count > _MAX_LISTED_LINES:
                listed += ", ..."
            clauses.append(f"check {fault} in {count:,} {noun}: {listed}")
        if self.num_alarmed > _USUAL_SHARE * self.num_lines and self.num_lines >= _MIN_LINES:
            clauses.append("is the input unlike the training data, or the model undertrained?")
        return "; ".join(clauses)
