"""Scores of slices: parts of the test set with a common property, to find weaknesses of a system.

The slices of a group partition the test set, so their counts add up to its size.

Word counts in the training data are computed from the token ids of the prepared folder, which are
read once, in chunks. A word is a sequence of subwords between spaces and punctuation, identified by
a 64-bit hash of the ids. If the tokenizer encodes a word in two ways, as in "1" and "1.", only
occurrences with the same ids are counted.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.commands.evaluate import EvaluatedSet
from nmt.commands.evaluation_set import training_data
from nmt.data.diagnosis import LEAKAGE
from nmt.data.prepared import PreparedData
from nmt.data.store import ParallelStore
from nmt.files.progress import progress_bar
from nmt.metrics.metric import MetricScorer, Score
from nmt.metrics.result import ReportSection, System, show_score
from nmt.metrics.scoring import Resampling, measure
from nmt.text.flat import FlatIds
from nmt.text.numbers import numbers_of
from nmt.text.tokenizer import Tokenizer, load_tokenizers

SMALL_SLICE = 30  # Slices with fewer sentences are marked, because their scores are unreliable.
SEEN = "source in training data"
NOT_SEEN = "not found"
_MEANING = f"slices: (few) marks fewer than {SMALL_SLICE} sentences, whose scores are unreliable."
_LEAKS_MEAN = (
    '\nsource in training data: near means one or two different words; "not found" is new text. '
    "Baselines and files have no such slices."
    "\nwords and word pairs in training: counted in the data of the first model."
)
_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(f"[{_EAST_ASIAN}]|[^\\W{_EAST_ASIAN}]+")
_LENGTHS = {10.0: "below 10", 20.0: "10-19", 30.0: "20-29", 40.0: "30-39"}
_COUNTS = {1.0: "unseen", 10.0: "1-9 times", 100.0: "10-99 times"}
_COVERED = {0.25: "below 25%", 0.5: "25-49%", 0.75: "50-74%"}
_RATIOS = {0.8: "below 0.8", 1.25: "0.8-1.25"}
_CASES = ("both cases", "no capitals", "all capitals", "no letters with case")
_KEPT = ("nothing to keep", "kept", "lost")
_VERY_OFTEN = 1 << 62  # Count of the rarest word of a line without words: above all limits.
_LONGEST_WORD = 64  # Positions in a word with a factor of their own; later ones share the last.
# The factor of each position in a word: (64,), uint64. All factors are odd, because multiplying by
# an odd number modulo 2^64 maps different ids to different products.
_factors = np.random.default_rng(1).integers(1, 1 << 63, _LONGEST_WORD, np.uint64)
_FACTORS = _factors | np.uint64(1)
_SPACE = "\u2581"


@dataclass(frozen=True)
class Group:
    """A partition of the test set into slices."""

    name: str
    labels: Sequence[str]  # Name of the slice of each sentence.
    slices: Sequence[str]  # Names of all slices, in order of display. A slice may be empty.


def slice_section(scored: EvaluatedSet) -> ReportSection:
    """Score slices by the labels of the user and, with `slices`, by all built-in groups."""
    common = []  # groups that are the same for all systems
    for name, labels in scored.labels.items():
        names = list(dict.fromkeys(labels))
        common.append(Group(name, labels, names))
    systems = list(scored.systems)
    if scored.baseline:
        name = f"{scored.baseline.name} (baseline)"
        systems.append(replace(scored.baseline, name=name))
    groups = {system.name: common for system in systems}
    if scored.options.slices:
        source = scored.test.source
        references = scored.test.references
        # For each model: its data, then the data of the models that it was initialized from.
        training = [list(training_data(model.folder)) for model in scored.models]
        if source is not None:
            counts = None
            # Words are counted in all data of the first model, with the tokenizer of the model.
            if training and training[0]:
                tokenizer = load_tokenizers(training[0][0].tokenizer_dir).source
                stores = [prepared.train for prepared in training[0]]
                counts = count_in_training(stores, tokenizer, source)
            common += groups_of_source(source, counts)
        # Training data are those of the models, not of files of translations and of the baseline.
        training += [[]] * (len(systems) - len(training))
        for system, datasets in zip(systems, training, strict=True):
            system_groups = list(common)
            if datasets and source is not None:
                system_groups.insert(0, leakage_group(datasets, source))
            system_groups += groups_of_system(system, source, references)
            groups[system.name] = system_groups
    return score_slices(systems, scored.scorers, scored.resampling, groups)


def trivial_section(scored: EvaluatedSet) -> ReportSection | None:
    """Score the lines that need a translation; None if all lines need one, or none does.

    A line is trivial if a reference has no letter, or equals the source.
    """
    test = scored.test
    rows = []  # indices of the lines that need a translation
    for row, references in enumerate(zip(*test.references, strict=True)):
        source = test.source[row].strip() if test.source else ""
        texts = [text for text in references if text.strip() != source]
        with_letters = [text for text in texts if any(map(str.isalpha, text))]
        if len(with_letters) == len(references):
            rows.append(row)
    num_trivial = len(test) - len(rows)
    if not (rows and num_trivial):
        return None
    head = ["without trivial lines"]
    head += (scorer.metric.label for scorer in scored.scorers)
    table = [head]
    values = []
    for system in scored.systems:
        tables = [statistics[rows] for statistics in system.tables]
        (measured_scores,) = measure([tables], scored.scorers, scored.resampling)
        scores = [measured.score for measured in measured_scores]
        table.append([system.name, *map(show_score, scores)])
        scores_for_json = [score.as_dict() for score in scores]
        values.append({"system": system.name, "lines": num_trivial, "scores": scores_for_json})
    meaning = (
        f"trivial lines: {num_trivial:,} of {len(test):,} references have no letter, or equal "
    )
    meaning += "the source. Such lines can raise the scores."
    return ReportSection("trivial", "Scores without trivial lines", table, values, meaning)


def leakage_group(data: Sequence[PreparedData], source: Sequence[str]) -> Group:
    """Group source lines by whether they occur in the training data: exact, near, or not found."""
    kinds = dict[int, str]()  # index of a source line -> "exact" or "near"
    num_pairs = sum(len(prepared.train) for prepared in data)
    with progress_bar("looking for leaks", unit="lines", total=num_pairs) as bar:
        training = _training_lines(data, bar.update)
        for leak in LEAKAGE["near"](source, training):
            # A line can have several leaks. One exact leak makes the line exact.
            if kinds.get(leak.held_out) != "exact":
                kinds[leak.held_out] = "exact" if leak.is_exact else "near"
    labels = [kinds.get(index, NOT_SEEN) for index in range(len(source))]
    return Group(SEEN, labels, [NOT_SEEN, "near", "exact"])


def _training_lines(
    data: Iterable[PreparedData], progress: Callable[[int], object]
) -> Iterator[list[str]]:
    """Yield the source lines of training data, without tags, in one list for each stored block.

    ``progress`` gets the number of lines of a block when the caller asks for the next block.
    """
    for prepared in data:
        tokenizer = load_tokenizers(prepared.tokenizer_dir).source
        for block in prepared.train.source.blocks():
            untagged = map(tokenizer.without_tags, block.rows())
            yield list(map(tokenizer.decode, untagged))
            progress(len(block.lengths))


def groups_of_source(
    source: Sequence[str], counts: Sequence[LineCounts] | None = None
) -> Iterator[Group]:
    """Yield the groups by source text and, with ``counts``, by word counts in the training data.

    Args:
        source: Lines of the source text.
        counts: For each line, the counts of its words; None without training data.
    """
    num_words = [len(_WORD.findall(line)) for line in source]
    yield _binned("source words", num_words, _LENGTHS, "40 and more")
    yield Group("source case", list(map(_case, source)), _CASES)
    if counts is None:
        return
    rarest = [min(line.words, default=_VERY_OFTEN) for line in counts]
    yield _binned("rarest source word in training", rarest, _COUNTS, "100 times and more")
    shares = [line.share_of_pairs for line in counts]
    yield _binned("source word pairs in training", shares, _COVERED, "75% and more")


def groups_of_system(
    system: System, source: Sequence[str] | None, references: Sequence[Sequence[str]]
) -> Iterator[Group]:
    """Yield the groups that depend on the translations of one system."""
    if source is not None:
        number_labels = []
        name_labels = []
        for line, output, *line_references in zip(source, system.lines, *references, strict=True):
            number_labels.append(_copy_label(_numbers(line), _numbers(output)))
            # A token that is in the source and in any reference is one that translators copy.
            copied = _tokens(line) & _tokens(" ".join(line_references))
            copied_names = set(filter(_is_name, copied))
            name_labels.append(_copy_label(copied_names, _tokens(output)))
        yield Group("numbers", number_labels, _KEPT)
        yield Group("names and copied tokens", name_labels, _KEPT)
    ratios = []
    for output, *line_references in zip(system.lines, *references, strict=True):
        # In characters. The 1 keeps the ratio finite if the reference is empty.
        line_ratios = [(len(output) + 1) / (len(reference) + 1) for reference in line_references]
        ratios.append(min(line_ratios, key=lambda ratio: abs(math.log(ratio))))
    yield _binned("length ratio to reference", ratios, _RATIOS, "above 1.25")
    if system.results:  # a file of translations has no results of a guard
        labels = ["suspicious" if result.alarms else "not suspicious" for result in system.results]
        yield Group("guard", labels, ["not suspicious", "suspicious"])


def score_slices(
    systems: Sequence[System],
    scorers: Sequence[MetricScorer],
    resampling: Resampling,
    groups: Mapping[str, Iterable[Group]],
) -> ReportSection:
    """Score the slices of every group, for all systems.

    Args:
        systems: Scored systems.
        scorers: A scorer for each metric.
        resampling: Options of the confidence intervals.
        groups: Groups of each system, by name of the system.
    """
    # (group, slice) -> name of the system -> values for JSON, and cells of the table. Groups may
    # differ between systems: a system without a group has no entry for the slices of the group.
    values_by_slice = defaultdict[tuple[str, str], dict[str, dict[str, Any]]](dict)
    cells_by_slice = defaultdict[tuple[str, str], dict[str, list[str]]](dict)
    no_scores = ["-"] * len(scorers)
    for system in systems:
        for group in groups[system.name]:
            labels = np.array(group.labels, dtype=object)
            for name in group.slices:
                (rows,) = np.nonzero(labels == name)
                num_sentences = len(rows)
                is_small = num_sentences < SMALL_SLICE
                scores = list[Score]()
                cells = ["0", *no_scores]
                if num_sentences:
                    tables = [table[rows] for table in system.tables]
                    (measured_scores,) = measure([tables], scorers, resampling)
                    scores = [measured.score for measured in measured_scores]
                    size = f"{num_sentences:,} (few)" if is_small else f"{num_sentences:,}"
                    cells = [size, *map(show_score, scores)]
                cells_by_slice[group.name, name][system.name] = cells
                values_by_slice[group.name, name][system.name] = {
                    "name": system.name,
                    "num_sentences": num_sentences,
                    "is_small": is_small,
                    "scores": [score.as_dict() for score in scores],
                }
    head = ["slice", ""]
    for system in systems:
        prefix = ""
        if len(systems) > 1:
            prefix = f"{system.name} "
        head.append(f"{prefix}sentences")
        head += (f"{prefix}{scorer.metric.label}" for scorer in scorers)
    table = [head]
    values = []
    for (group_name, name), values_by_system in values_by_slice.items():
        row = [group_name, name]
        for system in systems:
            row += cells_by_slice[group_name, name].get(system.name, ["-", *no_scores])
        slice_values = list(values_by_system.values())
        if any(system_values["num_sentences"] for system_values in slice_values):
            table.append(row)  # slices that are empty for all systems are only in the values
        values.append({"group": group_name, "name": name, "systems": slice_values})
    meaning = _MEANING
    if any(group_name == SEEN for group_name, _ in values_by_slice):
        meaning += _LEAKS_MEAN
    return ReportSection("slices", "Slices", table, values, meaning)


def _binned(name: str, values: Iterable[float], limits: Mapping[float, str], last: str) -> Group:
    """Group numbers into bins.

    Args:
        name: Name of the group.
        values: A number for each sentence.
        limits: Upper limit (exclusive, ascending) -> name of the bin below it.
        last: Name of the bin from the highest limit.
    """
    names = [*limits.values(), last]
    # "right" puts a number that equals a limit into the bin above the limit.
    bins = np.searchsorted(list(limits), list(values), side="right")
    labels = [names[index] for index in bins]
    return Group(name, labels, names)


def _case(line: str) -> str:
    """Return the name of a slice from `_CASES`."""
    has_upper = any(map(str.isupper, line))
    has_lower = any(map(str.islower, line))
    if has_upper and has_lower:
        return "both cases"
    if has_lower:
        return "no capitals"
    return "all capitals" if has_upper else "no letters with case"


def _numbers(line: str) -> set[str]:
    return numbers_of(line.replace(":", "."))  # some languages write 10.30 for 10:30


def _tokens(line: str) -> set[str]:
    """Return the tokens between spaces, without the punctuation around them."""
    tokens = [token.strip(".,;:!?\"'()[]«»„“”") for token in line.split()]
    return set(filter(None, tokens))


def _is_name(token: str) -> bool:
    """Whether a token is like a name: it has a capital letter or a sign, but is not a number."""
    if token.isnumeric():
        return False
    is_common_word = token.islower() and token.isalpha()
    return not is_common_word


def _copy_label(required: set[str], output: set[str]) -> str:
    """Return the name of a slice: whether the output contains all that it is required to copy."""
    if not required:
        return "nothing to keep"
    return "kept" if required <= output else "lost"


@dataclass(frozen=True)
class LineCounts:
    """How often the words of one line occur in the training data."""

    words: Sequence[int]  # Occurrences of each word.
    pairs: Sequence[int]  # Occurrences of each two consecutive words, ignoring punctuation.

    @property
    def share_of_pairs(self) -> float:
        """Share of the pairs that occur; 1 without pairs."""
        if not self.pairs:
            return 1.0
        num_occurring = sum(count > 0 for count in self.pairs)
        return num_occurring / len(self.pairs)


def count_in_training(
    stores: Iterable[ParallelStore], tokenizer: Tokenizer, lines: Sequence[str]
) -> list[LineCounts]:
    """Count the words of ``lines`` in the source side of the training data.

    Args:
        stores: Training data.
        tokenizer: Source tokenizer of the training data.
        lines: Lines of the source text.

    Returns:
        The counts of each line, in order.
    """
    hasher = _WordHasher(tokenizer)
    encoded = FlatIds.of(tokenizer.encode_batch(lines))
    words = hasher.words(encoded)
    pairs = words.pairs()
    # Words and pairs are counted together. ``distinct`` is sorted; ``inverse`` is the index in
    # ``distinct`` of each word, then of each pair.
    words_and_pairs = np.concatenate([words.hashes, pairs.hashes])
    distinct, inverse = np.unique(words_and_pairs, return_inverse=True)
    counts = np.zeros(len(distinct), np.int64)  # occurrences in the training data
    for store in stores:
        for block in store.source.blocks():
            block_words = hasher.words(block)
            for hashes in (block_words.hashes, block_words.pairs().hashes):
                is_counted = np.isin(hashes, distinct)
                indices = np.searchsorted(distinct, hashes[is_counted])
                counts += np.bincount(indices, minlength=len(counts))
    word_counts, pair_counts = np.split(counts[inverse], [len(words.hashes)])
    words_by_line = words.by_line(word_counts, len(lines))
    pairs_by_line = pairs.by_line(pair_counts, len(lines))
    return list(map(LineCounts, words_by_line, pairs_by_line))


class _HashedWords(NamedTuple):
    """N words, or N pairs of adjacent words, of several lines, in order."""

    hashes: npt.NDArray[np.uint64]  # (N,).
    lines: npt.NDArray[np.intp]  # Index of the line of each word: (N,), ascending.

    def pairs(self) -> _HashedWords:
        """Return the pairs of adjacent words."""
        # Two factors, so that the hash of a pair depends on the order of its words.
        hashes = self.hashes[:-1] * _FACTORS[0]
        hashes += self.hashes[1:] * _FACTORS[1]
        lines = self.lines[1:]
        is_same_line = lines == self.lines[:-1]  # the last word of a line has no pair
        return _HashedWords(hashes[is_same_line], lines[is_same_line])

    def by_line(self, counts: npt.NDArray[np.int64], num_lines: int) -> Iterator[list[int]]:
        """Yield for each line the counts of its words, from one count for each word: (N,)."""
        # Index of the first word of each line but the first. A line without words has an empty
        # range, because its border equals that of the next line.
        borders = np.searchsorted(self.lines, np.arange(1, num_lines))
        return map(np.ndarray.tolist, np.split(counts, borders))


class _WordHasher:
    """Splits token ids into words, and hashes each word.

    The text of a token (with a sign for a space) decides whether it begins a word, and whether it
    is punctuation: a token without letters and digits.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = [piece for piece, _, _ in tokenizer.pieces()]
        # By token id: (V,), bool.
        self._follows_space = np.array([piece.startswith(_SPACE) for piece in pieces])
        self._has_letters = np.array([any(map(str.isalnum, piece)) for piece in pieces])

    def words(self, lines: FlatIds) -> _HashedWords:
        """Return the words of lines, without punctuation.

        A word that begins at token s with the ids t_0, t_1, ... has the hash sum_i mix((t_i + 1) x
        factor_i), modulo 2^64.
        """
        # A word begins after a space, after punctuation, and at the start of a line. A token of
        # punctuation is a "word", too, until the end of this function. All arrays have an entry for
        # each token, except ``starts`` and those computed from it: an entry for each word.
        ids = lines.ids
        is_word = self._has_letters[ids]
        is_first = self._follows_space[ids] | ~is_word
        is_first[1:] |= ~is_word[:-1]  # the token after punctuation
        line_starts = lines.offsets[:-1]
        is_first[line_starts[lines.lengths > 0]] = True  # empty lines have no first token
        starts = np.flatnonzero(is_first)
        lengths = np.diff(starts, append=len(ids))
        position_in_word = np.arange(len(ids)) - np.repeat(starts, lengths)
        positions = position_in_word.clip(max=_LONGEST_WORD - 1)
        products = ids.astype(np.uint64) + np.uint64(1)  # 0 times any factor is 0
        products *= _FACTORS[positions]
        # Mix the upper bits into the lower bits. Otherwise the sum would be linear in the ids, and
        # words whose ids differ in a regular way would more often get the same hash.
        products ^= products >> np.uint64(29)
        hashes = np.add.reduceat(products, starts)
        line_of_word = lines.sentences[starts]
        is_kept = is_word[starts]
        return _HashedWords(hashes[is_kept], line_of_word[is_kept])
