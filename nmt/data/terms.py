"""Terms of the training text: target words that the model reads in place of source words.

The terms are words of the target sentence in the forms that occur there, so no list of terms is
needed. A model that has read them in a share of the pairs copies the terms of a glossary (Dinu et
al. 2019, Training Neural Machine Translation to Apply Terminology Constraints). Of the two forms of
that paper, this is the second: the term replaces the source word. A model learns to copy it much
earlier than behind a source word, which it can translate without the term. Never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from nmt.config.data import annotation
from nmt.data.lexicon import Cooccurrences, Lexicon, Pairs, batches, learn_lexicon, sample_step
from nmt.data.resegment import Sides, uniform
from nmt.data.store import ParallelStore, Rows, StoreWriter
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import SPACE, Tokenizer, Tokenizers

Links = list[tuple[int, int]]  # Numbers of aligned source and target words, by source words.
_MIN_LINK = 0.5  # Probability. Above it, a target word has one source word at most.
_MOST_TERMS = 3  # in a sentence
_LONGER = 0.3  # Probability that a term includes the next word.


def _borders(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return where each word and each punctuation mark begins, and the end of the sentence."""
    starts = []
    for index, piece in enumerate(tokenizer.subwords(ids)):
        has_letter = any(map(str.isalnum, piece))
        if index == 0 or piece.startswith(SPACE) or not has_letter:
            starts.append(index)
    return [*starts, len(ids)]


def write_links(
    folder: Path, store: ParallelStore, tokenizers: Tokenizers, lexicon: Lexicon | None
) -> None:
    """Write the aligned words of each pair: a store with the numbers of the words of each link.

    Args:
        folder: The new store.
        store: The sentence pairs.
        tokenizers: Their tokenizers.
        lexicon: A lexicon of the same text; None learns one.
    """
    sizes = tokenizers.vocab_sizes
    rows = np.arange(len(store))
    if lexicon is None:
        sample = rows[:: sample_step(store, len(store))]
        lexicon = learn_lexicon(store, sizes, Pairs(sample, sample))
    lexicon = replace(lexicon, lines=store, previous_table=None)
    with StoreWriter(folder, max(sizes)) as writer:
        for batch in batches(store, Pairs(rows, rows)):
            joint = Cooccurrences(store, batch, sizes[1])
            probs = lexicon.posterior(joint, lexicon.table)
            source_words = []
            target_words = []
            end = 0  # of the co-occurrences of the last pair
            sources, targets = (side.rows() for side in joint.sides)
            for source, target in zip(sources, targets, strict=True):
                shape = len(source), len(target)
                start = end
                end += math.prod(shape)
                sums = probs[start:end].reshape(shape)
                borders = _borders(source, tokenizers.source)
                sums = np.add.reduceat(sums, borders[:-1], axis=0)
                borders = _borders(target, tokenizers.target)
                sums = np.add.reduceat(sums, borders[:-1], axis=1)  # (source, target words)
                is_link = sums > _MIN_LINK * np.diff(borders)
                links = np.argwhere(is_link).T.tolist()
                source_words.append(links[0])
                target_words.append(links[1])
            lines = store.lines[batch.sources]
            writer.append(FlatIds.of(source_words), FlatIds.of(target_words), 0, lines)


@dataclass(frozen=True)
class TermAnnotator:
    """Writes target terms into the sources of a random share of the pairs in each epoch.

    The result of a pair depends only on seed, epoch and row.
    """

    tokenizers: Tokenizers
    links: ParallelStore  # see `write_links`
    share: float  # of the pairs
    seed: int  # Seed of the run.
    longest: int  # A source that would have more subwords keeps the stored ones.

    def __call__(self, epoch: int, rows: Rows, stored: Sides) -> Sides:
        """Return the ids of ``rows`` for the epoch; see `nmt.data.resegment.Resegmenter`."""
        is_drawn = uniform(f"{self.seed} {epoch} terms", rows) < self.share
        sources, targets = (side.rows() for side in stored)
        source_words = self.links.source.ids(rows).rows()
        target_words = self.links.target.ids(rows).rows()
        for index in np.flatnonzero(is_drawn).tolist():
            links = list(zip(source_words[index], target_words[index], strict=True))
            random = Random(f"{self.seed} {epoch} {rows[index]} terms")
            annotated = self._annotated(sources[index], targets[index], links, random)
            if len(annotated) <= self.longest:
                sources[index] = annotated
        return FlatIds.of(sources), stored[1]

    def _annotated(
        self, source: list[int], target: list[int], links: Links, random: Random
    ) -> list[int]:
        source_borders = _borders(source, self.tokenizers.source)
        target_borders = _borders(target, self.tokenizers.target)
        annotated = list(source)
        for first_source, last_source, first, last in sorted(_terms(links, random), reverse=True):
            ids = target[target_borders[first] : target_borders[last + 1]]
            text = self.tokenizers.target.decode(ids)
            has_punctuation = not (text[:1] + text[-1:]).isalnum()
            if not has_punctuation:
                start = source_borders[first_source]
                end = source_borders[last_source + 1]
                annotated[start:end] = self.tokenizers.source.encode(annotation(text))
        return annotated


def _terms(links: Links, random: Random) -> list[list[int]]:
    """Draw terms of one or more neighbouring words.

    Args:
        links: The aligned words of a pair.
        random: Draws them.

    Returns:
        For each term: its first and last source word, and its first and last target word.
    """
    terms = [[-9, -9, -9, -9]]  # no neighbour of the first word
    for source, target in links:
        _, last_source, _, last_target = terms[-1]
        is_longer = source == last_source + 1 and random.random() < _LONGER
        if target == last_target + 1 and (source == last_source or is_longer):
            terms[-1][1] = source
            terms[-1][3] = target
        elif source != last_source:
            terms.append([source, source, target, target])
    number = random.randint(1, _MOST_TERMS)
    return random.sample(terms[1:], min(number, len(terms) - 1))
