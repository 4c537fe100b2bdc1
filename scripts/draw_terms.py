"""Draw a glossary from a test set: words that are aligned to words of the reference.

Usage: python scripts/draw_terms.py PREPARED SOURCE TARGET OUT [NUMBER]

The alignment is that of `data.glossary`, learned from the training text in PREPARED. Every word has
the same chance, so most terms are rare. The target term is the most frequent partner of the word in
the references. Other partners are not accepted, so a reference can lack a term.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np

from nmt.data.lexicon import Pairs, learn_lexicon
from nmt.data.prepared import PreparedData
from nmt.data.store import ParallelStore, StoreWriter
from nmt.data.terms import _borders, write_links
from nmt.files.lines import read_lines
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import load_tokenizers

_FEWEST_LETTERS = 4
_SEED = 1


def draw(prepared: Path, source: Path, target: Path, number: int) -> list[tuple[str, str]]:
    """Return pairs of a word of the source and its most frequent partner in the target."""
    data = PreparedData.open(prepared)
    tokenizers = load_tokenizers(data.tokenizer_dir)
    rows = np.arange(len(data.train))
    lexicon = learn_lexicon(data.train, tokenizers.vocab_sizes, Pairs(rows, rows))
    texts = [read_lines(source), read_lines(target)]
    ids = [
        tokenizer.encode_batch(lines) for tokenizer, lines in zip(tokenizers, texts, strict=True)
    ]
    partners = defaultdict[str, Counter[str]](Counter)
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(Path(folder) / "test", max(tokenizers.vocab_sizes)) as writer:
            writer.append(FlatIds.of(ids[0]), FlatIds.of(ids[1]), 0, range(len(ids[0])))
        store = ParallelStore.open(Path(folder) / "test")
        write_links(Path(folder) / "links", store, tokenizers, lexicon)
        links = ParallelStore.open(Path(folder) / "links")
        rows = np.arange(len(store))
        numbers = links.source.ids(rows).rows(), links.target.ids(rows).rows()
        for row in rows.tolist():
            words = []
            for side in (0, 1):
                row_ids = ids[side][row]
                spans = pairwise(_borders(row_ids, tokenizers[side]))
                words.append([tokenizers[side].decode(row_ids[a:b]) for a, b in spans])
            linked = defaultdict[int, list[int]](list)  # source word -> its target words
            for one, other in zip(numbers[0][row], numbers[1][row], strict=True):
                linked[one].append(other)
            for one, others in linked.items():
                are_neighbours = others[-1] - others[0] == len(others) - 1
                if one and are_neighbours:  # not the first word, whose case is unknown
                    partner = " ".join(words[1][other] for other in others)
                    partners[words[0][one]][partner] += 1
    pairs = []
    for word, counts_of_word in sorted(partners.items()):
        partner = counts_of_word.most_common(1)[0][0]
        if all(
            len(text) >= _FEWEST_LETTERS and text.replace(" ", "").isalpha()
            for text in (word, partner)
        ):
            pairs.append((word, partner))
    return random.Random(_SEED).sample(pairs, number)


if __name__ == "__main__":
    prepared, source, target, output, *rest = sys.argv[1:]
    terms = draw(Path(prepared), Path(source), Path(target), int(rest[0]) if rest else 200)
    lines = [f"{word}\t{partner}\n" for word, partner in sorted(terms)]
    Path(output).write_text("".join(lines), encoding="utf-8")
