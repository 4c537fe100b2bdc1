"""The checks of `nmt prepare` that compare whole corpora.

The checks find repeated pairs, held-out sentences in the training data, pairs whose words do not
translate each other, misaligned ranges, and pairs with a low score from a file or from two models.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.data.diagnosis import Diagnosis, Material
from nmt.data.filters import ListedProblem, PairProblem, filter_actions
from nmt.data.pairs import SentencePair
from nmt.data.prepare_report import PrepareReport
from nmt.data.store import ParallelStore
from nmt.data.workers import Arrays
from nmt.extras.cleaning.alignment import FEWEST_SCORED, SMALLEST, CutLines, align_corpora
from nmt.extras.cleaning.leakage import LeakageIndex, Leaks
from nmt.extras.cleaning.ranges import Range
from nmt.extras.cleaning.repeats import RepeatFinder, Repeats, pair_hashes
from nmt.extras.cleaning.scores import (
    DUAL,
    LEXICAL,
    ScorePairs,
    Scores,
    dual_scorer,
    read_scores,
    write_scores,
)

_HASHES = "hashes"
_LEAKS = "leaks"
_NUM_FIRST = 5
_MOST_RANGES = 10


def look_at(pairs: Sequence[SentencePair], *, index: LeakageIndex, sketches: bool) -> Arrays:
    """Hash a block of pairs and find held-out sentences in the block, in any process.

    Args:
        pairs: The block.
        index: Index of the held-out sentences.
        sketches: Whether to compute sketches for near duplicates.

    Returns:
        ``hashes`` (see `pair_hashes`) and ``leaks`` (see `Leaks.update`).
    """
    texts = [pair[:2] for pair in pairs]
    hashes = pair_hashes(texts, sketches=sketches)
    leaks = index.find([pair.source for pair in pairs])
    rows = np.array(leaks, np.int64)
    return {_HASHES: hashes, _LEAKS: rows.reshape(-1, 3)}


class CorpusDiagnosis(Diagnosis):
    """Runs all checks that compare whole corpora."""

    def __init__(self, material: Material) -> None:
        super().__init__(material)
        self._actions = filter_actions(material.filters)
        self._leaks = Leaks(material.held_out, material.directions)
        self._repeat_finder = RepeatFinder(material.scratch)
        self._repeats: Future[Repeats] | None = None
        sketches = "near_duplicate" in self._actions
        self.look = partial(look_at, index=self._leaks.index, sketches=sketches)
        self.depends_on = self._leaks.sources
        # Learning a lexicon takes the most time after reading.
        self.compares_words = "lexical" in self._actions or "misaligned" in self._actions
        runs = material.score_with
        self._dual: ScorePairs | None = None
        if runs:
            self._dual = dual_scorer(runs, material.languages)
        # Line number and score (by the two models) of every kept pair of all corpora, in order.
        self._dual_lines = array("q")
        self._dual_scores = array("f")
        self._spans: dict[str, tuple[int, int]] = {}  # range of kept pairs of each corpus
        # By side and detected language: the number of pairs, and the places of the first ones.
        self._num_detected = Counter[tuple[str, str]]()
        self._first_detected = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
        self._scores: dict[str, Mapping[str, Scores]] = {}  # of every line, by reason and corpus
        self._ranges: Mapping[str, Sequence[Range]] = {}
        self._num_asked = 0
        self._num_lines: Mapping[str, int] = {}
        self._writing: Future[None] | None = None

    def see(
        self,
        corpus: str,
        pairs: Sequence[SentencePair],
        looked: Arrays,
        found: Sequence[ListedProblem],
    ) -> None:
        """Record the hashes, leaks, languages and model scores of the next block of a corpus."""
        count = self._repeat_finder.count
        first, _ = self._spans.get(corpus, (count, count))
        self._spans[corpus] = first, count + len(pairs)
        self._repeat_finder.add(looked[_HASHES])
        self._leaks.update(corpus, pairs, looked[_LEAKS])
        for problem in found:
            if problem.reason == "language":
                detected = str(problem.limit), str(problem.value)
                self._num_detected[detected] += 1
                if self._num_detected[detected] <= _NUM_FIRST:
                    place = {"corpus": problem.corpus, "line": problem.line}
                    self._first_detected[detected].append(place)
        if self._dual is not None:
            self._dual_lines.extend(pair.line for pair in pairs)
            texts = [pair[:2] for pair in pairs]
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
                num = num_lines[name]
                is_part = corpus.max_pairs == num
                scores[name] = read_scores(corpus.scores, num, is_part=is_part)
        self._scores["scores"] = scores

    def learn(
        self, lines: ParallelStore, spans: Mapping[str, tuple[int, int]], sizes: tuple[int, int]
    ) -> None:
        """Learn a lexicon from the lines, compute lexical scores, and find misaligned ranges."""
        material = self.material
        corpora = material.corpora
        held_out = spans.keys() - corpora.keys()
        alignment = align_corpora(
            CutLines(lines), sizes, spans, material.scratch, held_out, material.workers.near
        )
        self._scores["lexical"] = alignment.z_scores
        if "misaligned" in self._actions:
            self._ranges = alignment.ranges
        self.lexicon = alignment.lexicon
        path = material.folder / LEXICAL
        self._writing = material.workers.submit(write_scores, path, alignment.scores)

    def of_block(
        self, corpus: str, start: int, is_kept: npt.NDArray[np.bool_]
    ) -> Mapping[int, Sequence[PairProblem]]:
        """Return the findings of the next block, by the index of the line in the block."""
        assert self._repeats is not None
        num_lines = len(is_kept)
        stop = start + num_lines
        places: list[int] = np.flatnonzero(is_kept).tolist()
        first = self._num_asked
        last = first + len(places)
        self._num_asked = last
        problems = defaultdict[int, list[PairProblem]](list)
        repeats = self._repeats.result()
        for row, repeated in repeats.between(first, last).items():
            problems[places[row - first]] += repeated

        def add(reason: str, where: Sequence[int], scores: npt.NDArray[np.float32]) -> None:
            limit = self.material.filters.rule(reason).bound
            if reason in self._actions:
                is_low = scores < limit
                for row in np.flatnonzero(is_low).tolist():
                    problem = PairProblem(reason, float(scores[row]), limit)
                    problems[where[row]].append(problem)

        for reason, scores in self._scores.items():
            if corpus in scores:
                column = scores[corpus]
                add(reason, range(num_lines), column[start:stop])
        if self._dual is not None:
            of_kept = self._dual_scores[first:last]
            add("dual_cross_entropy", places, np.array(of_kept, np.float32))
        for misaligned in self._ranges.get(corpus, ()):
            problem = PairProblem("misaligned", "unrelated")
            if misaligned.offset is not None:
                problem = PairProblem("misaligned", float(misaligned.offset))
            first_line = max(misaligned.start - 1, start)
            end = min(misaligned.end, stop)
            for line in range(first_line, end):
                problems[line - start].append(problem)
        return problems

    def complete(self, report: PrepareReport) -> PrepareReport:
        """Add the results of all checks to a report, and finish writing the score files."""
        if self._dual is not None:
            scores = {}
            lines = {}
            for name, (start, end) in self._spans.items():
                lines[name] = self._dual_lines[start:end]
                of_corpus = self._dual_scores[start:end]
                scores[name] = np.array(of_corpus, np.float32)
            path = self.material.folder / DUAL
            write_scores(path, scores, lines)
        if self._writing is not None:
            self._writing.result()
        shifts = []
        unrelated = []
        for corpus, ranges in self._ranges.items():
            for misaligned in ranges:
                place = {"corpus": corpus, "start": misaligned.start, "end": misaligned.end}
                if misaligned.offset is None:
                    unrelated.append(place)
                else:
                    shifts.append(place | {"offset": misaligned.offset})
        # The number of pairs by detected language: in all, and by side with the first lines.
        values = Counter[str]()
        sides = defaultdict[str, dict[str, dict[str, Any]]](dict)
        for (side, value), count in self._num_detected.most_common():
            values[value] += count
            sides[side][value] = {"count": count, "first": self._first_detected[side, value]}
        reasons = dict(report.reasons)
        if "language" in reasons:
            languages = {"values": dict(values.most_common()), "sides": dict(sides)}
            reasons["language"] = {**reasons["language"], **languages}
        overlap = {}
        num_near = self._leaks.num_near()
        for name, counts in report.overlap.items():
            overlap[name] = {**counts, "near_sources_in_train": num_near.get(name, 0)}
        warnings = list(report.warnings)
        if self.material.filters.scores.limit is None:
            for name, of_lines in self._scores["scores"].items():
                low, usual = np.nanquantile(of_lines[:], (0.01, 0.5))
                spread = f"1% of the scores are below {low:.4g}, and half are below {usual:.4g}"
                text = f"{name}: to use the score file, set filters.scores.limit; {spread}"
                warnings.append(text)
        return replace(
            report,
            reasons=reasons,
            shifts=shifts,
            unrelated=unrelated,
            leakage=self._leaks.found,
            overlap=overlap,
            skipped={**report.skipped, **self._skipped()},
            notes=[*report.notes, *_notes([*shifts, *unrelated])],
            warnings=warnings,
        )

    def _skipped(self) -> dict[str, str]:
        """Return the checks that could not run, or not in all corpora, each with the reason."""
        skipped = {}
        filters = self.material.filters
        if not self._scores["scores"]:
            skipped["scores"] = "No corpus has a score file: set data.train.*.scores."
        elif filters.scores.limit is None:
            skipped["scores"] = "filters.scores.limit is not set."
        if self._dual is None:
            skipped["dual_cross_entropy"] = "To score pairs with two models, use `score_with`."
        for reason, least in {"lexical": FEWEST_SCORED, "misaligned": SMALLEST}.items():
            small = [name for name, lines in self._num_lines.items() if lines < least]
            if small:
                skipped[reason] = f"{', '.join(small)}: fewer than {least} lines."
        return {name: why for name, why in skipped.items() if name in self._actions}


def _notes(ranges: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line of text for each of the ten largest misaligned ranges, and one for the rest."""
    largest = sorted(ranges, key=lambda place: place["start"] - place["end"])
    for place in largest[:_MOST_RANGES]:
        lines = f"{place['corpus']}: lines {place['start']:,} to {place['end']:,}"
        offset = place.get("offset")
        if offset:
            direction = "below" if offset > 0 else "above"
            distance = abs(offset)
            unit = "line" if distance == 1 else "lines"
            yield f"shifted: {lines}: the translations are {distance} {unit} {direction}"
        else:
            yield f"unrelated: {lines}: the target is not a translation of the source"
    if len(ranges) > _MOST_RANGES:
        yield f"{len(ranges) - _MOST_RANGES:,} more misaligned ranges, all smaller: see report.json"
