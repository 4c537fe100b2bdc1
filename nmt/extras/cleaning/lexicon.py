"""How well two lines agree in their words, by a lexicon that was learned from the corpus itself.

The score of a pair leaves out what the pair has taught the lexicon (leave-one-out), or else rare
words would vouch for each other.

Shapes: P pairs, S source and T target lines, n meetings of a source and a target token of one pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Lexicon, Meetings, Pairs, Values, batches, cells_of
from nmt.data.store import Ids, Rows
from nmt.data.workers import HERE, Workers

Mask = npt.NDArray[np.bool_]

_FLOOR = 0.1  # Share of a token's general frequency in its probability in a translation.
_PRIOR = 0.5  # Meetings that a word is taken to have had with words never seen beside it.


@dataclass(frozen=True, slots=True)
class PairScorer:
    """Scores pairs of lines by a lexicon."""

    lexicon: Lexicon
    taught: Pairs  # Those that the lexicon was learned from.
    workers: Workers = HERE  # Has something done with batches, perhaps by other processes.

    def score(self, pairs: Pairs) -> Values:
        """Return how much more probable each pair's tokens are as translations than anywhere.

        Of each token, the natural log of the ratio; a pair that was learned from counts without
        what it has taught.

        Returns:
            The sum over the tokens of both sides, in nats. (P,). 0 where a side is blank.
        """
        lines = self.lexicon.lines
        parts = ((batch, self._has_taught(batch)) for batch in batches(lines, pairs))
        found = self.workers.map(partial(_scores, self.lexicon), parts)
        totals = np.concatenate([np.zeros(0), *found])
        lengths = lines.source_lengths[pairs.sources], lines.target_lengths[pairs.targets]
        return np.where(np.minimum(*lengths) == 0, 0.0, totals)

    def score_all(self, sources: Rows, targets: Rows) -> npt.NDArray[np.float32]:
        """Return the sums of `score` of each of some sources with each of some targets.

        Nothing is left out of what pairs have taught.

        Args:
            sources: Rows, some hundred. (S,).
            targets: Rows. (T,).

        Returns:
            (S, T), nats; of blank lines without meaning.
        """
        lexicon, lines = self.lexicon, self.lexicon.lines
        sides = [_bags(*lines.source_ids(sources)), _bags(*lines.target_ids(targets))]
        keys = sides[0][1][:, None].astype(np.int64) * lexicon.sizes[1] + sides[1][1]
        assert lexicon.table is not None
        links = lexicon.table.cells[cells_of(keys)]
        result = np.zeros((len(sources), len(targets)), np.float32)
        for side, ((bags, words), (other_bags, other_words)) in enumerate((sides, sides[::-1])):
            scale = 1 / (lexicon.table.totals[side][words] + _PRIOR)
            table = (links.T if side else links) * scale[:, None].astype(np.float32)
            table /= lexicon.frequencies[1 - side][other_words].astype(np.float32)
            mean = bags / np.maximum(bags.sum(1, keepdims=True), 1)
            scores = np.log(_FLOOR + (1 - _FLOOR) * (mean @ table)) @ other_bags.T
            result += scores.T if side else scores
        return result

    def _has_taught(self, pairs: Pairs) -> Mask:
        if not len(self.taught.sources):
            return np.zeros(len(pairs.sources), np.bool_)
        places = np.searchsorted(self.taught.sources, pairs.sources)
        places = places.clip(max=len(self.taught.sources) - 1)
        same = [rows[places] == asked for rows, asked in zip(self.taught, pairs, strict=True)]
        return same[0] & same[1]


def _scores(lexicon: Lexicon, batch: tuple[Pairs, Mask]) -> Values:
    """Return the sums of `PairScorer.score` of a batch. (P,)."""
    assert lexicon.table is not None
    pairs, has_taught = batch
    meetings = Meetings(lexicon.lines, pairs, lexicon.sizes[1])
    total = np.zeros(len(has_taught))
    # Zero where the pair taught nothing. Words that a line repeats have taught it as often.
    taught = lexicon.posterior(meetings, lexicon.before)
    taught *= has_taught[meetings.pairs[0]][meetings.places[0]]
    sides = zip(meetings.pairs, meetings.ids, strict=True)
    repeats = [_repeats(*side) for side in sides]
    again = repeats[0][meetings.places[0]] * repeats[1][meetings.places[1]]
    links = np.maximum(lexicon.table.cells[cells_of(meetings.keys)] - taught * again, 0)
    for side, ids in enumerate(meetings.ids):
        known = lexicon.table.totals[side][ids] - meetings.sums(side, taught) * repeats[side]
        lengths = meetings.lengths[side][meetings.pairs[side]]
        scale = 1 / ((np.maximum(known, 0) + _PRIOR) * lengths)
        likely = links * scale.astype(np.float32)[meetings.places[side]]
        ratio = (
            meetings.sums(1 - side, likely) / lexicon.frequencies[1 - side][meetings.ids[1 - side]]
        )
        logs = np.log(_FLOOR + (1 - _FLOOR) * ratio)
        total += np.bincount(meetings.pairs[1 - side], logs, len(total))
    return total


def _repeats(pairs: Rows, ids: Ids) -> npt.NDArray[np.float32]:
    """Return how often the line of each token has its word."""
    keys = pairs * (int(ids.max(initial=0)) + 1) + ids
    _, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[places].astype(np.float32)


def _bags(ids: Ids, offsets: Rows) -> tuple[npt.NDArray[np.float32], Ids]:
    """Return how often each line has each of the words (lines, words), and the words (words,)."""
    words, places = np.unique(ids, return_inverse=True)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    size = (len(offsets) - 1) * len(words)
    bags = np.bincount(rows * len(words) + places, minlength=size).astype(np.float32)
    return bags.reshape(-1, len(words)), words
