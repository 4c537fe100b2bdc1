"""The checks of `nmt prepare` that compare whole corpora.

The checks find repeated pairs, held-out sentences in the training data, pairs whose words do not
translate each other, misaligned ranges, and pairs with a low score from a file or from two models.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.data import filters
from nmt.data.filters import Arrays, ListedProblem
from nmt.data.pairs import SentencePair
from nmt.data.store import ParallelStore
from nmt.extras.cleaning.alignment import FEWEST_SCORED, SMALLEST, CutLines, align_corpora
from nmt.extras.cleaning.leakage import LeakageIndex, Leaks
from nmt.extras.cleaning.ranges import Range
from nmt.extras.cleaning.repeats import RepeatFinder, Repeats, pair_hashes
from nmt.extras.cleaning.scores import DUAL, LEXICAL, Scores, dual_scorer, read_scores, write_scores

_HASHES, _LEAKS = "hashes", "leaks"
_NUM_FIRST = 5
_MOST_RANGES = 10


@dataclass(frozen=True, slots=True)
class Look:
    """Hashes a block of pairs and finds held-out sentences in the block, in any process.

    Args:
        sketches: Whether to compute sketches for near duplicates.
        index: Index of the held-out sentences.
    """

    sketches: bool
    index: LeakageIndex

    def __call__(self, pairs: Sequence[SentencePair]) -> Arrays:
        """Return ``hashes`` (see `pair_hashes`) and ``leaks`` (see `Leaks.update`)."""
        leaks = [
            (leak.row, leak.held_out, leak.kind == "exact")
            for leak in self.index.find([pair.source for pair in pairs])
        ]
        hashes = pair_hashes([pair[:2] for pair in pairs], sketches=self.sketches)
        return {_HASHES: hashes, _LEAKS: np.array(leaks, np.int64).reshape(-1, 3)}


class CorpusDiagnosis(filters.Diagnosis):
    """Runs all checks that compare whole corpora."""

    def __init__(self, material: filters.Material) -> None:
        super().__init__(material)
        self._actions = filters.filter_actions(material.filters)
        self._leaks = Leaks(material.held_out, material.directions)
        self._repeat_finder = RepeatFinder(material.scratch)
        self._repeats: Future[Repeats] | None = None
        self.look = Look("near_duplicate" in self._actions, self._leaks.index)
        self.depends_on = self._leaks.sources
        # Learning a lexicon takes the most time after reading.
        self.compares_words = not self._actions.keys().isdisjoint(("lexical", "misaligned"))
        runs = material.score_with
        self._dual = dual_scorer(runs, material.languages) if runs else None
        # Line number and score (by the two models) of every kept pair of all corpora, in order.
        self._dual_lines, self._dual_scores = array("q"), array("f")
        self._spans: dict[str, tuple[int, int]] = {}  # range of kept pairs of each corpus
        # By side and detected language: the number of pairs, and the places of the first ones.
        self._num_in: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], list[dict[str, Any]]] = {}
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
        self._spans[corpus] = self._spans.get(corpus, (count, count))[0], count + len(pairs)
        self._repeat_finder.add(looked[_HASHES])
        self._leaks.update(corpus, pairs, looked[_LEAKS])
        for finding in found:
            if finding.reason == "language":
                key = str(finding.limit), str(finding.value)
                self._num_in[key] += 1
                if self._num_in[key] <= _NUM_FIRST:
                    place = {"corpus": finding.corpus, "line": finding.line}
                    self._first.setdefault(key, []).append(place)
        if self._dual is not None:
            self._dual_lines.extend(pair.line for pair in pairs)
            self._dual_scores.extend(self._dual([pair[:2] for pair in pairs]))

    def end(self, num_lines: Mapping[str, int]) -> None:
        """Start the search for repeated pairs, in the background if possible; read score files."""
        self._num_lines = num_lines
        find, rules = self._repeat_finder.findings, self.material.filters
        self._repeats = self.material.workers.submit(find, self._actions, rules)
        self._scores["scores"] = {
            name: read_scores(corpus.scores, num, is_part=corpus.max_pairs == num)
            for name, corpus in self.material.corpora.items()
            if corpus.scores is not None and (num := num_lines[name])
        }

    def learn(
        self, lines: ParallelStore, spans: Mapping[str, tuple[int, int]], sizes: tuple[int, int]
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
        path = material.folder / LEXICAL
        self._writing = material.workers.submit(write_scores, path, alignment.scores)

    def of_block(
        self, corpus: str, start: int, is_kept: npt.NDArray[np.bool_]
    ) -> Mapping[int, Sequence[filters.PairProblem]]:
        """Return the findings of the next block, by the index of the line in the block."""
        assert self._repeats is not None
        places, stop = np.flatnonzero(is_kept), start + len(is_kept)
        first, self._num_asked = self._num_asked, self._num_asked + len(places)
        repeated = self._repeats.result().between(first, self._num_asked)
        findings = {int(places[row - first]): each for row, each in repeated.items()}

        def add(reason: str, where: Sequence[int], scores: npt.NDArray[np.float32]) -> None:
            limit = self.material.filters.rule(reason).bound
            if reason in self._actions:
                for row in np.flatnonzero(scores < limit).tolist():
                    finding = filters.PairProblem(reason, float(scores[row]), limit)
                    findings.setdefault(int(where[row]), []).append(finding)

        for reason, scores in self._scores.items():
            if corpus in scores:
                add(reason, range(len(is_kept)), scores[corpus][start:stop])
        if self._dual is not None:
            scores_of_kept = np.array(self._dual_scores[first : self._num_asked], np.float32)
            add("dual_cross_entropy", places.tolist(), scores_of_kept)
        for found in self._ranges.get(corpus, ()):
            value = "unrelated" if found.offset is None else float(found.offset)
            for line in range(max(found.start - 1, start), min(found.end, stop)):
                findings.setdefault(line - start, []).append(
                    filters.PairProblem("misaligned", value)
                )
        return findings

    def report(self) -> filters.DiagnosisReport:
        """Return the results of all checks, and finish writing the score files."""
        if self._dual is not None:
            spans = {name: slice(*span) for name, span in self._spans.items()}
            scores = np.array(self._dual_scores, np.float32)
            write_scores(
                self.material.folder / DUAL,
                {name: scores[span] for name, span in spans.items()},
                {name: self._dual_lines[span] for name, span in spans.items()},
            )
        if self._writing is not None:
            self._writing.result()
        shifts, unrelated = list[dict[str, Any]](), list[dict[str, Any]]()
        for corpus, ranges in self._ranges.items():
            for found in ranges:
                place = {"corpus": corpus, "start": found.start, "end": found.end}
                if found.offset is None:
                    unrelated.append(place)
                else:
                    shifts.append(place | {"offset": found.offset})
        return filters.DiagnosisReport(
            shifts=shifts,
            unrelated=unrelated,
            leakage=self._leaks.found,
            near=self._leaks.num_near(),
            languages=self._report_languages(),
            skipped=self._skipped(),
            warnings=[*self._warnings()],
            notes=[*_notes([*shifts, *unrelated])],
        )

    def _skipped(self) -> dict[str, str]:
        """Return the checks that could not run, or not in all corpora, each with the reason."""
        skipped = dict[str, str]()
        if not self._scores["scores"]:
            skipped["scores"] = "No corpus has a score file: set data.train.*.scores."
        elif self.material.filters.scores.limit is None:
            skipped["scores"] = "filters.scores.limit is not set."
        if self._dual is None:
            skipped["dual_cross_entropy"] = "To score pairs with two models, use `score_with`."
        for reason, least in (("lexical", FEWEST_SCORED), ("misaligned", SMALLEST)):
            if small := [name for name, lines in self._num_lines.items() if lines < least]:
                skipped[reason] = f"{', '.join(small)}: fewer than {least} lines."
        return {name: why for name, why in skipped.items() if name in self._actions}

    def _report_languages(self) -> dict[str, Any]:
        """Return the number of pairs by detected language: in all, and by side with first lines."""
        values: Counter[str] = Counter()
        sides: dict[str, dict[str, Any]] = {}
        for (side, value), count in self._num_in.most_common():
            values[value] += count
            sides.setdefault(side, {})[value] = {"count": count, "first": self._first[side, value]}
        return {"values": dict(values.most_common()), "sides": sides}

    def _warnings(self) -> Iterator[str]:
        if self.material.filters.scores.limit is None:
            for name, scores in self._scores["scores"].items():
                low, usual = np.nanquantile(scores[:], (0.01, 0.5))
                yield (
                    f"{name}: to use the score file, set filters.scores.limit; "
                    f"1% of the scores are below {low:.4g}, and half are below {usual:.4g}"
                )


def _notes(ranges: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line of text for each of the ten largest misaligned ranges, and one for the rest."""
    largest = sorted(ranges, key=lambda found: found["start"] - found["end"])
    for found in largest[:_MOST_RANGES]:
        lines = f"{found['corpus']}: lines {found['start']:,} to {found['end']:,}"
        if offset := found.get("offset"):
            direction = "below" if offset > 0 else "above"
            unit = "line" if abs(offset) == 1 else "lines"
            yield f"shifted: {lines}: the translations are {abs(offset)} {unit} {direction}"
        else:
            yield f"unrelated: {lines}: the target is not a translation of the source"
    if len(ranges) > _MOST_RANGES:
        yield f"{len(ranges) - _MOST_RANGES:,} more misaligned ranges, all smaller: see report.json"
