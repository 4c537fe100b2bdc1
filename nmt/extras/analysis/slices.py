"""Scores of slices: parts of the test set with a common property, to find weaknesses of a system.

The slices of a group partition the test set, so their counts add up to its size.

Word counts in the training data are computed from the token ids of the prepared folder, which are
read once, in chunks. A word is a sequence of subwords between spaces and punctuation, identified by
a 64-bit hash of the ids. If the tokenizer encodes a word in two ways, as in "1" and "1.", only
occurrences with the same ids are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.commands.evaluate import EvaluatedSet
from nmt.commands.evaluation_set import training_data
from nmt.data.filters import LEAKAGE
from nmt.data.prepared import PreparedData
from nmt.data.store import ParallelStore
from nmt.files.progress import progress_bar
from nmt.metrics.metric import MetricScorer, Score
from nmt.metrics.result import ReportSection, System, show_score
from nmt.metrics.scoring import Resampling, measure
from nmt.text.flat import FlatIds
from nmt.text.languages import numbers_of
from nmt.text.tokenizer import Tokenizer, load_tokenizers

SMALL_SLICE = 30  # Slices with fewer sentences are marked, because their scores are unreliable.
SEEN, NOT_SEEN = "source in training data", "not found"
_MEANING = f"slices: (few) marks fewer than {SMALL_SLICE} sentences, whose scores are unreliable."
_LEAKS_MEAN = (
    '\nsource in training data: near means one or two different words; "not found" is new text.'
)
_ROWS_AT_ONCE = 10_000
_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(f"[{_EAST_ASIAN}]|[^\\W{_EAST_ASIAN}]+")
_LENGTHS = {10.0: "below 10", 20.0: "10-19", 30.0: "20-29", 40.0: "30-39"}
_COUNTS = {1.0: "unseen", 10.0: "1-9 times", 100.0: "10-99 times"}
_COVERED = {0.25: "below 25%", 0.5: "25-49%", 0.75: "50-74%"}
_RATIOS = {0.8: "below 0.8", 1.25: "0.8-1.25"}
_Hashes = npt.NDArray[np.uint64]
_LONGEST_WORD = 64  # subwords with a factor of their own in the hash
_FACTORS = np.random.default_rng(1).integers(1, 1 << 63, _LONGEST_WORD, np.uint64) | np.uint64(1)
_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class Group:
    """A partition of the test set into slices."""

    name: str
    labels: Sequence[str]  # Name of the slice of each sentence.
    slices: Sequence[str]  # Names of all slices, in order of display. A slice may be empty.


def slice_section(scored: EvaluatedSet) -> ReportSection:
    """Score slices by the labels of the user and, with `slices`, by all built-in groups."""
    common = [
        Group(name, labels, list(dict.fromkeys(labels))) for name, labels in scored.labels.items()
    ]
    groups = {system.name: list(common) for system in scored.systems}
    if scored.options.slices:
        source, references = scored.test.source, scored.test.references
        texts = [list(training_data(model.folder)) for model in scored.models]
        if source is not None:
            counts = None
            if texts and texts[0]:
                tokenizer = load_tokenizers(texts[0][0].tokenizer_dir).source
                counts = count_in_training([each.train for each in texts[0]], tokenizer, source)
            for own in groups.values():
                own += groups_of_source(source, counts)
            for system, data in zip(scored.systems, texts, strict=False):
                if data:
                    groups[system.name].insert(0, leakage_group(data, source))
        for system in scored.systems:
            groups[system.name] += groups_of_system(system, source, references)
    return score_slices(scored.systems, scored.scorers, scored.resampling, groups)


def leakage_group(data: Sequence[PreparedData], source: Sequence[str]) -> Group:
    """Group source lines by whether they occur in the training data: exact, near, or not found."""
    kinds: dict[int, str] = {}
    total = sum(len(each.train) for each in data)
    with progress_bar("looking for leaks", unit="lines", total=total) as bar:
        for leak in LEAKAGE["near"](source, _training_lines(data, bar.update)):
            if kinds.get(leak.held_out) != "exact":
                kinds[leak.held_out] = leak.kind
    labels = [kinds.get(number, NOT_SEEN) for number in range(len(source))]
    return Group(SEEN, labels, [NOT_SEEN, "near", "exact"])


def _training_lines(
    data: Iterable[PreparedData], progress: Callable[[int], object]
) -> Iterator[list[str]]:
    for each in data:
        store, tokenizer = each.train, load_tokenizers(each.tokenizer_dir).source
        for start in range(0, len(store), _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(store)))
            lines = store.source_ids(rows).rows()
            yield [tokenizer.decode(tokenizer.without_tags(line)) for line in lines]
            progress(len(rows))


def groups_of_source(
    source: Sequence[str], counts: Sequence[LineCounts] | None = None
) -> Iterator[Group]:
    """Yield the groups by source text and, if known, by word counts in the training data."""
    lengths = [len(_WORD.findall(line)) for line in source]
    yield _binned("source words", lengths, _LENGTHS, "40 and more")
    cases = ["both cases", "no capitals", "all capitals", "no letters with case"]
    yield Group("source case", [cases[_case(line)] for line in source], cases)
    if counts is None:
        return
    rarest = [min(each.words, default=1 << 62) for each in counts]
    yield _binned("rarest source word in training", rarest, _COUNTS, "100 times and more")
    shares = [sum(n > 0 for n in x.pairs) / len(x.pairs) if x.pairs else 1.0 for x in counts]
    yield _binned("source word pairs in training", shares, _COVERED, "75% and more")


def groups_of_system(
    system: System, source: Sequence[str] | None, references: Sequence[Sequence[str]]
) -> Iterator[Group]:
    """Yield the groups that depend on the translations of one system."""
    names = ["nothing to keep", "kept", "lost"]
    if source is not None:
        numbers = [
            _kept(_numbers(line), _numbers(output))
            for line, output in zip(source, system.lines, strict=True)
        ]
        yield Group("numbers", [names[kind] for kind in numbers], names)
        streams = [[_tokens(line) for line in stream] for stream in references]
        copied = []
        for number, line in enumerate(source):
            allowed = set().union(*(stream[number] for stream in streams))
            tokens = {token for token in _tokens(line) & allowed if _is_name(token)}
            copied.append(names[_kept(tokens, _tokens(system.lines[number]))])
        yield Group("names and copied tokens", copied, names)
    pairs = zip(system.lines, references[0], strict=True)
    ratios = [(len(output) + 1) / (len(reference) + 1) for output, reference in pairs]
    yield _binned("length ratio to reference", ratios, _RATIOS, "above 1.25")
    if system.results:
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
    # Number of sentences and scores by slice, then by system.
    found: dict[tuple[str, str], dict[str, tuple[int, list[Score]]]] = {}
    for system in systems:
        for group in groups[system.name]:
            labels = np.array(group.labels, dtype=object)
            for name in group.slices:
                (rows,) = np.nonzero(labels == name)
                parts = [[table[rows] for table in system.tables]] if len(rows) else []
                scores = [x.score for part in measure(parts, scorers, resampling) for x in part]
                found.setdefault((group.name, name), {})[system.name] = len(rows), scores
    table, values = [["slice", ""]], []
    for system in systems:
        prefix = f"{system.name} " if len(systems) > 1 else ""
        table[0] += (prefix + text for text in ("sentences", *(x.metric.label for x in scorers)))
    for (group_name, name), own in found.items():
        row = [group_name, name]
        for system in systems:
            count, scores = own.get(system.name, (0, []))
            few = " (few)" if 0 < count < SMALL_SLICE else ""
            shown = f"{count:,}{few}" if system.name in own else "-"
            row += [shown, *(map(show_score, scores) if scores else ["-"] * len(scorers))]
        if any(count for count, _ in own.values()):  # empty slices are only in the values
            table.append(row)
        of_systems = [
            {"name": system, "num_sentences": count, "is_small": count < SMALL_SLICE,
             "scores": [score.as_dict() for score in scores]}
            for system, (count, scores) in own.items()
        ]  # fmt: skip
        values.append({"group": group_name, "name": name, "systems": of_systems})
    meaning = _MEANING + (_LEAKS_MEAN if any(group == SEEN for group, _ in found) else "")
    return ReportSection("slices", "Slices", table, values, meaning)


def _binned(name: str, values: Iterable[float], limits: Mapping[float, str], rest: str) -> Group:
    """Group numbers into bins. ``limits`` maps upper limits to names; ``rest`` is the last bin."""
    names = [*limits.values(), rest]
    bins = np.searchsorted(list(limits), list(values), side="right")
    return Group(name, [names[index] for index in bins], names)


def _case(line: str) -> int:
    has_upper, has_lower = any(map(str.isupper, line)), any(map(str.islower, line))
    if not has_upper:
        return 1 if has_lower else 3
    return 0 if has_lower else 2


def _numbers(line: str) -> set[str]:
    return numbers_of(line.replace(":", "."))  # some languages write 10.30 for 10:30


def _tokens(line: str) -> set[str]:
    return {stripped for token in line.split() if (stripped := token.strip(".,;:!?\"'()[]«»„“”"))}


def _is_name(token: str) -> bool:
    """Whether a token is like a name: it has a capital letter or a sign, but is not a number."""
    return not token.isnumeric() and (not token.islower() or not token.isalpha())


def _kept(wanted: set[str], written: set[str]) -> int:
    """Return 0 if ``wanted`` is empty, 1 if ``written`` contains all of it, else 2."""
    return 0 if not wanted else 1 if wanted <= written else 2


@dataclass(frozen=True, slots=True)
class LineCounts:
    """How often the words of one line occur in the training data."""

    words: Sequence[int]  # Occurrences of each word.
    pairs: Sequence[int]  # Occurrences of each two consecutive words, ignoring punctuation.


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
    split = _Splitter(tokenizer)
    encoded = FlatIds.of(tokenizer.encode_batch(lines))
    hashes, line_of, pairs, first_of = split.words(encoded)
    wanted, place = np.unique(np.concatenate([hashes, pairs]), return_inverse=True)
    counts = np.zeros(len(wanted) + 1, np.int64)  # the last one is for all other words
    blocks = (
        store.source_ids(np.arange(start, min(start + _ROWS_AT_ONCE, len(store))))
        for store in stores
        for start in range(0, len(store), _ROWS_AT_ONCE)
    )
    for block in blocks:
        words, _, couples, _ = split.words(block)
        found = np.concatenate([words, couples])
        at = np.searchsorted(wanted, found).clip(max=max(len(wanted) - 1, 0))
        at = np.where(wanted[at] == found, at, len(wanted)) if len(wanted) else at
        counts += np.bincount(at, minlength=len(wanted) + 1)
    word_counts, pair_counts = np.split(counts[place], [len(hashes)])
    borders = np.arange(1, len(lines))
    by_line = np.split(word_counts, np.searchsorted(line_of, borders))
    pairs_by_line = np.split(pair_counts, np.searchsorted(first_of, borders))
    both = zip(by_line, pairs_by_line, strict=True)
    return [LineCounts(*map(np.ndarray.tolist, x)) for x in both]


class _Splitter:
    """Splits token ids into words, and hashes each word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = [piece for piece, _, _ in tokenizer.pieces()]
        self._begins = np.array([text.startswith(_SPACE) for text in texts])
        self._is_word = np.array([any(map(str.isalnum, text)) for text in texts])

    def words(
        self, lines: FlatIds
    ) -> tuple[_Hashes, npt.NDArray[np.intp], _Hashes, npt.NDArray[np.intp]]:
        """Return hash and line of each word, then hash and line of each pair of adjacent words."""
        ids = lines.ids
        is_word = self._is_word[ids]
        starts = self._begins[ids] | ~is_word
        starts[1:] |= ~is_word[:-1]
        starts[lines.offsets[:-1][lines.lengths > 0]] = True
        (first,) = np.nonzero(starts)
        if not len(first):
            return (*(np.empty(0, np.uint64), np.empty(0, np.intp)) * 2,)
        within = np.arange(len(ids)) - np.repeat(first, np.diff([*first, len(ids)]))
        mixed = (ids.astype(np.uint64) + np.uint64(1)) * _FACTORS[
            within.clip(max=_LONGEST_WORD - 1)
        ]
        first_is_word = is_word[first]
        hashes = np.add.reduceat(mixed ^ (mixed >> np.uint64(29)), first)[first_is_word]
        line_of = np.searchsorted(lines.offsets, first[first_is_word], side="right") - 1
        is_same = line_of[1:] == line_of[:-1]
        pairs = (hashes[:-1] * _FACTORS[0] + hashes[1:] * _FACTORS[1])[is_same]
        return hashes, line_of, pairs, line_of[1:][is_same]
