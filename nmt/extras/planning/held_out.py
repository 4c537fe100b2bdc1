"""Draws the pairs that `nmt init` holds out of training for validation and testing.

They come from a sample of the corpus that consists of blocks of consecutive pairs, in which
misaligned lines can be found. A pair is drawn only if the filters and the diagnosis of `nmt
prepare` find nothing wrong with it, and if its sentences are rare in the corpus: all copies of a
held-out sentence are missing in training.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from nmt.config.data import CorpusConfig, Direction, FilterConfig
from nmt.config.language_codes import Languages
from nmt.data.diagnosis import Material, make_diagnosis
from nmt.data.filters import training_filters
from nmt.data.formats.pair import SentencePair
from nmt.data.store import Rows
from nmt.data.workers import HERE
from nmt.text.flat import FlatIds
from nmt.text.languages import writes_spaces

Texts = tuple[str, str]
_BLOCK_PAIRS = 50
_MOST_BLOCKS = 400
_USUAL_SHARE = 0.5  # A problem of more pairs is a property of the corpus.
_ENOUGH = 200  # Pairs, below which pairs with more copies are drawn, too.
_MOST_COPIES = 10  # A sentence with more copies stays in training although it is held out.
_PIECE = re.compile(r"\w{1,3}")
_CHARACTER = re.compile(r"\w")


class BlockSample:
    """A random sample of a stream of pairs, in blocks of consecutive pairs.

    Every block has the same chance (Vitter 1985, algorithm R), and memory is bounded.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._blocks: list[tuple[int, list[Texts]]] = []  # with their numbers in the stream
        self._num_blocks = 0  # in the stream
        self._block: list[Texts] = []  # that is not full yet

    def seen(self, pairs: Iterable[Texts]) -> Iterator[Texts]:
        """Yield the pairs of the stream unchanged."""
        for pair in pairs:
            self._block.append(pair)
            if len(self._block) == _BLOCK_PAIRS:
                self._end_block()
            yield pair

    def _end_block(self) -> None:
        block = self._num_blocks, self._block
        self._num_blocks += 1
        self._block = []
        if len(self._blocks) < _MOST_BLOCKS:
            self._blocks.append(block)
            return
        place = self._random.randrange(self._num_blocks)
        if place < _MOST_BLOCKS:
            self._blocks[place] = block

    def pairs(self) -> list[Texts]:
        """Return the sample in the order of the stream."""
        if self._block:
            self._end_block()
        self._blocks.sort()
        return list(chain.from_iterable(block for _, block in self._blocks))

    def number(self, index: int) -> int:
        """Return the number in the stream, from 1, of the pair ``pairs()[index]``."""
        block_number, _ = self._blocks[index // _BLOCK_PAIRS]
        return block_number * _BLOCK_PAIRS + index % _BLOCK_PAIRS + 1


def comparable(text: str) -> str:
    """Return the form in which sentences are compared: without case."""
    return text.casefold()


def reasons_against(pairs: Sequence[Texts], languages: Languages, folder: Path) -> list[set[str]]:
    """Return why each pair of a sample should not be held out; an empty set for a good pair.

    A reason that applies to most pairs is left out: it is a property of the corpus. Misaligned
    pairs never are good.

    Args:
        pairs: The sample.
        languages: Codes of source and target.
        folder: A temporary folder for the diagnosis.
    """
    if languages[0] > languages[1]:  # so that both directions get the same held-out sets
        languages = languages[1], languages[0]
        pairs = [(target, source) for source, target in pairs]
    filters = training_filters(FilterConfig(), *languages)
    reasons = list[set[str]]()
    for pair in pairs:
        problems = {problem.reason for problem in filters.text_problems(*pair)}
        if not all(any(map(str.isalpha, side)) for side in pair):
            problems.add("no letters")
        reasons.append(problems)
    for number, reason in _diagnosed(pairs, languages, folder):
        reasons[number].add(reason)
    counts = Counter(chain.from_iterable(reasons))
    del counts["misaligned"]
    usual = {reason for reason, count in counts.items() if count > _USUAL_SHARE * len(pairs)}
    return [problems - usual for problems in reasons]


def _diagnosed(
    pairs: Sequence[Texts], languages: Languages, folder: Path
) -> Iterator[tuple[int, str]]:
    """Yield the number of each pair in which the diagnosis of corpora finds a problem, and why."""
    name = "sample"
    config = FilterConfig()
    material = Material(
        filters=config,
        languages=languages,
        directions={name: Direction(*languages)},
        corpora={name: CorpusConfig(demo="train")},  # not read
        held_out={},
        folder=folder,
        scratch=folder,
        workers=HERE,
    )
    diagnosis = make_diagnosis(material, training_filters(config, *languages))
    numbered = [SentencePair(*pair, line) for line, pair in enumerate(pairs, start=1)]
    if diagnosis.look is not None:
        looked = diagnosis.look(name, numbered)
        diagnosis.see(name, numbered, looked.arrays, ())
    diagnosis.end({name: len(pairs)})
    if diagnosis.compares_words:
        lines = _SampleLines(pairs, languages)
        diagnosis.learn(lines, {name: (0, len(pairs))}, lines.sizes)
    problems = diagnosis.of_block(name, 0, np.ones(len(pairs), bool))
    for number, found in problems.items():
        for problem in found:
            yield number, problem.reason


class _SampleSide:
    """The pieces of the words of one side, as ids; characters in a script without spaces."""

    def __init__(self, texts: Sequence[str], language: str) -> None:
        pattern = _PIECE if writes_spaces(language) else _CHARACTER
        ids = dict[str, int]()
        self._rows: list[list[int]] = []
        for text in texts:
            row = [ids.setdefault(piece, len(ids)) for piece in pattern.findall(text.lower())]
            self._rows.append(row)
        self.lengths = np.array([len(row) for row in self._rows], np.int32)
        self.num_pieces = max(len(ids), 1)

    def ids(self, rows: Rows) -> FlatIds:
        """Return the ids of ``rows``."""
        return FlatIds.of([self._rows[row] for row in rows.tolist()])


class _SampleLines:
    """The sample as `nmt.data.store.Lines`."""

    def __init__(self, pairs: Sequence[Texts], languages: Languages) -> None:
        sides = zip(*pairs, strict=True)  # all sources, then all targets
        self.source, self.target = map(_SampleSide, sides, languages)
        self.sizes = self.source.num_pieces, self.target.num_pieces


def count_copies(files: Sequence[Path], pairs: Iterable[Texts]) -> tuple[Counter[str], ...]:
    """Count how often the sentences of pairs occur in a corpus, on each side.

    Args:
        files: The source file and the target file of the corpus.
        pairs: The pairs; only their sentences are held in memory.

    Returns:
        For each side, the number of lines by the comparable form of the sentence.
    """
    counts = []
    for file, wanted in zip(files, _sides(pairs), strict=True):
        with file.open(encoding="utf-8", newline="\n") as lines:
            sentences = (comparable(line.rstrip("\n")) for line in lines)
            counts.append(Counter(filter(wanted.__contains__, sentences)))
    return tuple(counts)


def draw(
    pairs: Sequence[Texts],
    copies: Sequence[Counter[str]],
    most: int,
    seed: int,
    given: Iterable[Texts] = (),
) -> list[Texts]:
    """Draw pairs whose sentences occur once in the corpus; with too few of them, rare ones.

    Args:
        pairs: The pairs to draw from.
        copies: Result of `count_copies`.
        most: Largest number of pairs.
        seed: Random seed.
        given: Pairs of other sets, of which no sentence may be drawn.
    """
    shuffled = list(pairs)
    random.Random(seed).shuffle(shuffled)
    levels: dict[int, list[Texts]] = {}  # by the number of copies
    for pair in shuffled:
        level = max(count[comparable(text)] for count, text in zip(copies, pair, strict=True))
        levels.setdefault(level, []).append(pair)
    seen = _sides(given)
    drawn = list[Texts]()
    for level in range(1, _MOST_COPIES + 1):
        for pair in levels.get(level, ()):
            keys = tuple(map(comparable, pair))
            if not any(key in side for key, side in zip(keys, seen, strict=True)):
                drawn.append(pair)
                for key, side in zip(keys, seen, strict=True):
                    side.add(key)
        if len(drawn) >= min(_ENOUGH, most):
            break
    return drawn[:most]


def sentences_to_remove(
    held_out: Iterable[Texts], copies: Sequence[Counter[str]]
) -> list[set[str]]:
    """Return the sources and the targets that training must not contain, in comparable form.

    A frequent sentence is not among them: a model must learn it.
    """
    sides = zip(_sides(held_out), copies, strict=True)
    return [{key for key in keys if counts[key] <= _MOST_COPIES} for keys, counts in sides]


def _sides(pairs: Iterable[Texts]) -> tuple[set[str], set[str]]:
    """Return the comparable forms of all sources and of all targets."""
    sources = set[str]()
    targets = set[str]()
    for source, target in pairs:
        sources.add(comparable(source))
        targets.add(comparable(target))
    return sources, targets
