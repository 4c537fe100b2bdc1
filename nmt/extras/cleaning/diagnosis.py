"""The checks of `nmt prepare` that compare whole corpora.

The checks find repeated pairs, held-out sentences in the training data, pairs whose words do not
translate each other, misaligned ranges, and pairs with a low score from a file or from two models.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, product
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.data.diagnosis import Diagnosis, Looked, Material
from nmt.data.filters import ListedProblem, PairProblem, filter_actions
from nmt.data.formats.pair import SentencePair
from nmt.data.prepare_report import PrepareReport
from nmt.data.store import Lines, ParallelStore
from nmt.data.workers import Arrays
from nmt.extras.cleaning.alignment import FEWEST_ALIGNED, FEWEST_SCORED, CutLines, align_corpora
from nmt.extras.cleaning.leakage import CopySearch, HeldOutSet, Leaks
from nmt.extras.cleaning.ranges import Range
from nmt.extras.cleaning.repeats import RepeatFinder, Repeats, pair_hashes
from nmt.extras.cleaning.scores import (
    DUAL,
    LEXICAL,
    ScorePairs,
    Scores,
    dual_scorer,
    parts_of,
    read_scores,
    write_scores,
)

# Names of the arrays that `look_at` returns.
_HASHES = "hashes"
_LEAKS = "leaks"
_NUM_FIRST = 5  # Lines that are listed for each detected language.
_MAX_NOTES = 10  # Misaligned ranges with a note of their own.


def look_at(
    corpus: str, pairs: Sequence[SentencePair], *, search: CopySearch, sketches: bool
) -> Looked:
    """Find held-out sentences in a block of pairs, and hash the pairs, in any process.

    Args:
        corpus: Name of the corpus.
        pairs: The block.
        search: Search for held-out sentences.
        sketches: Whether to compute sketches for near duplicates.

    Returns:
        The pairs that share a sentence with a held-out set; ``hashes`` (see `pair_hashes`) and
        ``leaks`` (see `Leaks.update`).
    """
    leaks, problems = search.find(corpus, pairs)
    # Without any leak, the array would have one dimension.
    leak_rows = np.array(leaks, np.int64).reshape(-1, 3)
    if search.is_dropping:
        is_kept = np.ones(len(pairs), np.bool_)
        is_kept[list(problems)] = False
        pairs = list(compress(pairs, is_kept))
        rows = leak_rows[:, 0]
        leak_rows = leak_rows[is_kept[rows]]
        num_kept_up_to = np.cumsum(is_kept)
        leak_rows[:, 0] = num_kept_up_to[leak_rows[:, 0]] - 1
    texts = [pair[:2] for pair in pairs]  # source and target
    hashes = pair_hashes(texts, sketches=sketches)
    return Looked(problems, {_HASHES: hashes, _LEAKS: leak_rows})


@dataclass(frozen=True)
class _LineNumbers:
    """The numbers of the lines of a corpus in its files. Only the path of the store is pickled."""

    store: ParallelStore
    start: int  # first row of the corpus
    end: int  # row after its last row

    def __getitem__(self, pairs: Any) -> Any:
        """Return the number of a pair, counted from 0, or of a slice of pairs."""
        return self.store.lines[self.start : self.end][pairs].tolist()


class CorpusDiagnosis(Diagnosis):
    """Runs all checks that compare whole corpora."""

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self._actions = filter_actions(material.filters)
        self._leaks = Leaks(material.held_out, material.directions)
        self._repeat_finder = RepeatFinder(material.scratch)
        self._repeats: Future[Repeats] | None = None
        search = _copy_search(material)
        sketches = "near_duplicate" in self._actions
        self.look = partial(look_at, search=search, sketches=sketches)
        self.depends_on = search.sets
        # Learning a lexicon takes the most time after reading.
        self.compares_words = "lexical" in self._actions or "misaligned" in self._actions
        runs = material.score_with
        self._dual: ScorePairs | None = None
        if runs:
            self._dual = dual_scorer(runs, material.languages)
        # Line number and score (by the two models) of every kept pair of all corpora, in order.
        self._dual_lines = array("q")
        self._dual_scores = array("f")
        # Of each corpus, or of its files: the index of its first kept pair among those of all
        # corpora, and the index after its last one.
        self._spans = dict[str, tuple[int, int]]()
        # By configured and detected language: the number of pairs, and corpus and line of the
        # first ones.
        self._num_detected = Counter[tuple[str, str]]()
        self._first_detected = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
        self._scores = dict[str, Mapping[str, Scores]]()  # of every line, by reason and corpus
        self._ranges: Mapping[str, Sequence[Range]] = {}  # misaligned ranges of each corpus
        self._num_returned = 0  # kept pairs in all blocks for which `of_block` was called
        self._num_lines: Mapping[str, int] = {}  # of each corpus
        # Of each corpus and set. Files may have headers and pairs of several lines.
        self._line_numbers = dict[str, _LineNumbers]()
        self._writing: Future[None] | None = None  # the file of lexical scores

    def see(
        self,
        corpus: str,
        pairs: Sequence[SentencePair],
        looked: Arrays,
        found: Sequence[ListedProblem],
    ) -> None:
        """Record the hashes, leaks, languages and model scores of the next block of a corpus."""
        num_before = self._repeat_finder.count  # kept pairs of all blocks before this one
        place = next((pair.file for pair in pairs), "") or corpus
        first, _ = self._spans.get(place, (num_before, num_before))
        self._spans[place] = first, num_before + len(pairs)
        self._repeat_finder.add(looked[_HASHES])
        self._leaks.update(corpus, pairs, looked[_LEAKS])
        for problem in found:
            if problem.reason == "language":
                # The limit of this filter is the configured language, the value the detected one.
                languages = str(problem.limit), str(problem.value)
                self._num_detected[languages] += 1
                if self._num_detected[languages] <= _NUM_FIRST:
                    line = {"corpus": problem.place, "line": problem.line}
                    self._first_detected[languages].append(line)
        if self._dual is not None:
            self._dual_lines.extend(pair.line for pair in pairs)
            texts = [pair[:2] for pair in pairs]  # source and target
            self._dual_scores.extend(self._dual(texts))

    def end(self, num_lines: Mapping[str, int]) -> None:
        """Start the search for repeated pairs, in the background if possible; read score files."""
        self._num_lines = num_lines
        material = self.material
        find = self._repeat_finder.findings
        self._repeats = material.workers.submit(find, self._actions, material.filters)
        scores = {}
        for name, corpus in material.corpora.items():
            if corpus.scores is not None and num_lines[name]:
                num_used = num_lines[name]
                # As many lines as the maximum were used, so the corpus may have more.
                is_part = corpus.max_pairs == num_used
                scores[name] = read_scores(corpus.scores, num_used, is_part=is_part)
        self._scores["scores"] = scores

    def learn(
        self, lines: Lines, spans: Mapping[str, tuple[int, int]], sizes: tuple[int, int]
    ) -> None:
        """Learn a lexicon from the lines, compute lexical scores, and find misaligned ranges."""
        material = self.material
        held_out = spans.keys() - material.corpora.keys()
        alignment = align_corpora(
            CutLines(lines), sizes, spans, material.scratch, held_out, material.workers.near
        )
        self._scores["lexical"] = alignment.z_scores
        if "misaligned" in self._actions:
            self._ranges = alignment.ranges
        self.lexicon = alignment.lexicon
        if isinstance(lines, ParallelStore):
            for name, span in spans.items():
                self._line_numbers[name] = _LineNumbers(lines, *span)
            path = material.folder / LEXICAL
            self._writing = material.workers.submit(
                write_scores, path, alignment.scores, self._line_numbers, material.files
            )

    def of_block(
        self, corpus: str, start: int, is_kept: npt.NDArray[np.bool_]
    ) -> Mapping[int, Sequence[PairProblem]]:
        """Return the findings of the next block, by the index of the line in the block."""
        assert self._repeats is not None
        stop = start + len(is_kept)
        # Line in the block of each kept pair, and the range of these pairs among all kept pairs.
        kept_lines: list[int] = np.flatnonzero(is_kept).tolist()
        first_pair = self._num_returned
        end_pair = first_pair + len(kept_lines)
        self._num_returned = end_pair
        problems = defaultdict[int, list[PairProblem]](list)  # by line in the block
        repeats = self._repeats.result()
        for pair, repeated in repeats.between(first_pair, end_pair).items():
            problems[kept_lines[pair - first_pair]] += repeated
        for reason, scores in self._scores.items():
            if corpus in scores:
                column = scores[corpus]
                for line, problem in self._low_scores(reason, column[start:stop]):
                    problems[line].append(problem)
        if self._dual is not None:
            kept_scores = np.array(self._dual_scores[first_pair:end_pair], np.float32)
            for index, problem in self._low_scores("dual_cross_entropy", kept_scores):
                problems[kept_lines[index]].append(problem)
        for misaligned in self._ranges.get(corpus, ()):
            problem = PairProblem("misaligned", "unrelated")
            if misaligned.offset is not None:
                problem = PairProblem("misaligned", float(misaligned.offset))
            # The lines of the corpus, counted from 0, that are in the range and in the block.
            first_line = max(misaligned.start - 1, start)
            end_line = min(misaligned.end, stop)
            for line in range(first_line, end_line):
                problems[line - start].append(problem)
        return problems

    def _low_scores(
        self, reason: str, scores: npt.NDArray[np.float32]
    ) -> Iterator[tuple[int, PairProblem]]:
        """Yield the index of each score below the limit, and the problem; none if it is off."""
        limit = self.material.filters.rule(reason).bound
        if reason in self._actions:
            is_low = scores < limit
            for index in np.flatnonzero(is_low).tolist():
                yield index, PairProblem(reason, float(scores[index]), limit)

    def complete(self, report: PrepareReport) -> PrepareReport:
        """Add the results of all checks to a report, and finish writing the score files."""
        if self._dual is not None:
            scores = {}
            lines = {}
            for name, (start, end) in self._spans.items():
                lines[name] = self._dual_lines[start:end]
                scores[name] = np.array(self._dual_scores[start:end], np.float32)
            path = self.material.folder / DUAL
            write_scores(path, scores, lines, {place: {0: ""} for place in scores})
        if self._writing is not None:
            self._writing.result()
        shifts = []
        unrelated = []
        for corpus, ranges in self._ranges.items():
            numbers = self._line_numbers[corpus]
            num_pairs = numbers.end - numbers.start
            parts = list(parts_of(self.material.files[corpus], num_pairs))
            for misaligned, (file, first, stop) in product(ranges, parts):
                before = max(misaligned.start - 1, first)
                end = min(misaligned.end, stop)
                if before >= end:
                    continue  # the range is in other files
                entry = {"corpus": corpus, "file": file, "pairs_before": before}
                entry |= {"start": numbers[before], "end": numbers[end - 1]}
                if misaligned.offset is None:
                    unrelated.append(entry)
                else:
                    shifts.append(entry | {"offset": misaligned.offset})
        # The number of pairs by detected language, and the same by configured and detected
        # language, with the first lines.
        num_detected = Counter[str]()
        sides = defaultdict[str, dict[str, dict[str, Any]]](dict)
        for (configured, detected), count in self._num_detected.most_common():
            num_detected[detected] += count
            first_lines = self._first_detected[configured, detected]
            sides[configured][detected] = {"count": count, "first": first_lines}
        reasons = dict(report.reasons)
        if "language" in reasons:
            languages = {"values": dict(num_detected.most_common()), "sides": dict(sides)}
            reasons["language"] = {**reasons["language"], **languages}
        overlap = {}
        num_near = self._leaks.num_near()
        for set_name, counts in report.overlap.items():
            overlap[set_name] = {**counts, "near_sources_in_train": num_near.get(set_name, 0)}
        warnings = list(report.warnings)
        if self.material.filters.scores.limit is None:
            for name, line_scores in self._scores["scores"].items():
                low, median = np.nanquantile(line_scores[:], (0.01, 0.5))
                spread = f"1% of the scores are below {low:.4g}, and half are below {median:.4g}"
                warning = f"{name}: to use the score file, set filters.scores.limit; {spread}"
                warnings.append(warning)
        return replace(
            report,
            reasons=reasons,
            shifts=shifts,
            unrelated=unrelated,
            leakage=self._leaks.entries,
            overlap=overlap,
            skipped={**report.skipped, **self._skipped()},
            notes=[*report.notes, *_notes([*shifts, *unrelated])],
            warnings=warnings,
        )

    def _skipped(self) -> dict[str, str]:
        """Return the checks that could not run, or not in all corpora, each with the reason."""
        skipped = {}
        filters = self.material.filters
        if not self._scores["scores"]:  # no scores of any corpus
            skipped["scores"] = "No corpus has a score file: set data.train.*.scores."
        elif filters.scores.limit is None:
            skipped["scores"] = "filters.scores.limit is not set."
        if self._dual is None:
            skipped["dual_cross_entropy"] = "To score pairs with two models, use `score_with`."
        for check, fewest in {"lexical": FEWEST_SCORED, "misaligned": FEWEST_ALIGNED}.items():
            small_corpora = [name for name, num in self._num_lines.items() if num < fewest]
            if small_corpora:
                skipped[check] = f"{', '.join(small_corpora)}: fewer than {fewest} lines."
        # Only checks that the configuration asks for.
        return {check: why for check, why in skipped.items() if check in self._actions}


def _copy_search(material: Material) -> CopySearch:
    """Return the search for sentences of all held-out sets. If it is off, no pair has a problem."""
    action = material.filters.held_out
    searched = () if action == "off" else material.configured
    directions = material.directions
    sets = []
    for name, pairs in material.held_out.items():
        sets.append(HeldOutSet(name, directions[name], tuple(pairs), name in searched))
    corpora = tuple((name, directions[name]) for name in material.corpora)
    return CopySearch(tuple(sets), corpora, is_dropping=action == "drop")


def _notes(ranges: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line of text for each of the ten largest misaligned ranges, and one for the rest.

    Args:
        ranges: Entries of ``shifts`` and ``unrelated`` of a `PrepareReport`.
    """
    largest_first = sorted(ranges, key=lambda entry: entry["start"] - entry["end"])
    for entry in largest_first[:_MAX_NOTES]:
        place = entry["file"] or entry["corpus"]
        lines = f"{place}: lines {entry['start']:,} to {entry['end']:,}"
        offset = entry.get("offset")  # Unrelated ranges have none, and others are not 0.
        if offset:
            direction = "above"
            if offset > 0:
                direction = "below"
            distance = abs(offset)
            unit = "line" if distance == 1 else "lines"
            yield f"shifted: {lines}: the translations are {distance} {unit} {direction}"
        else:
            yield f"unrelated: {lines}: the target is not a translation of the source"
    if len(ranges) > _MAX_NOTES:
        yield f"{len(ranges) - _MAX_NOTES:,} more misaligned ranges, all smaller: see report.json"
