"""What the decoder reads and predicts in training, and what it may attend to (`shift`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from nmt.data.batch import Batch, collate
from nmt.data.store import FlatIds, ParallelStore, StoreWriter
from nmt.errors import ConfigError
from nmt.extras.inspection.figure import Figure, Heatmap, Table
from nmt.extras.inspection.subject import MAX_TOKENS, Subject, labels, moved
from nmt.packed import Packed
from nmt.text import PAD_ID
from nmt.text.tokenizer import Tokenizer

Pair = tuple[list[int], list[int]]  # Ids of source and target, without special ones.
_NUM_PAIRS = 3


def shift(subject: Subject) -> Iterator[Figure]:
    """Batch, shift and masks.

    The decoder's output is its input moved by one place. Dark cells of a mask may be read: real
    tokens, and for the decoder only those up to its own. PAD fills the rectangle; sentences lie
    packed, so that nothing is computed for it. Those after yours are of the validation set, or your
    first tokens where that is not there.
    """
    bos = subject.config.model.source_bos
    batch = collate_pairs(pairs_of(subject), max(subject.vocab_sizes), source_bos=bos)
    gold = Packed(batch.gold, batch.target.cu_seqlens, batch.target.max_length)
    pairs = list(enumerate(zip(batch.target.rows(), gold.rows(), strict=True), 1))
    source, target = subject.tokenizers
    sources = {str(number): ids for number, ids in enumerate(batch.source.rows(), 1)}
    yield _table("Encoder input", source, sources)
    steps = {f"{number} {name}": ids for number, pair in pairs
             for name, ids in zip(("reads", "predicts"), pair, strict=True)}  # fmt: skip
    yield _table("Decoder input and output", target, steps)
    places = [str(place + 1) for place in range(batch.source.max_length)]
    real = batch.source.mask().float().tolist()
    yield Heatmap("Padding mask of the source", real, list(sources), places, down="sentence")
    masks = decoder_mask(batch.target).float()
    for number, (inputs, outputs) in pairs:
        rows = moved(labels(target, inputs), labels(target, outputs))
        columns = _padded(target, inputs, batch.target.max_length)
        values, title = masks[number - 1, : len(rows)], f"Decoder mask of sentence {number}"
        yield Heatmap(title, values.tolist(), rows, columns, 0, 1, across="token read")


def pairs_of(subject: Subject) -> list[Pair]:
    """Return the chosen pair and the first ones of the validation set; two at least.

    Raises:
        ConfigError: There is neither.
    """
    pairs: list[Pair] = []
    if subject.choice.source and (subject.choice.target is not None or subject.has_weights):
        start = int(subject.config.model.source_bos)
        pairs.append((subject.source_ids[start:-1], list(subject.target_ids)))
    if subject.prepared is not None:
        valid = subject.prepared.valid
        for row in np.arange(min(_NUM_PAIRS, len(valid)))[:, None]:
            pair = valid.source_ids(row)[0].tolist(), valid.target_ids(row)[0].tolist()
            if pair not in pairs and max(map(len, pair)) <= MAX_TOKENS:
                pairs.append(pair)
    if not pairs:
        raise ConfigError(
            "shift needs a pair of sentences, and there are no prepared data to take one of.",
            fix="Pass `source` and `target`.",
        )
    if len(pairs) == 1:  # cut short: padding needs a second one
        pairs.append((pairs[0][0][:1], pairs[0][1][:1]))
    return pairs[:_NUM_PAIRS]


def collate_pairs(pairs: Sequence[Pair], vocab_size: int, *, source_bos: bool) -> Batch:
    """Return the batch that training would make of pairs, by its own `collate`.

    Args:
        pairs: Ids without special ones.
        vocab_size: Entries of the larger vocabulary.
        source_bos: Whether sources begin with BOS.
    """
    with TemporaryDirectory() as folder:
        place = Path(folder) / "pairs"
        with StoreWriter(place, vocab_size) as writer:
            sources, targets = zip(*pairs, strict=True)
            writer.append(FlatIds.of(sources), FlatIds.of(targets), 0, range(len(pairs)))
        return collate(ParallelStore.open(place), np.arange(len(pairs)), source_bos=source_bos)


def decoder_mask(target: Packed) -> Tensor:
    """Return which inputs each decoder position attends to: real, not later. (B, T, T), bool."""
    causal = torch.ones(target.max_length, target.max_length, dtype=torch.bool).tril()
    return causal & target.mask().unsqueeze(2)  # what stands before a real token is real


def _padded(tokenizer: Tokenizer, ids: Sequence[int], length: int) -> list[str]:
    return labels(tokenizer, [*ids, *[PAD_ID] * (length - len(ids))])


def _table(title: str, tokenizer: Tokenizer, rows: dict[str, list[int]]) -> Table:
    """Return a row of pieces for each list of ids, with PAD up to the longest."""
    longest = max(map(len, rows.values()))
    cells = [[name, *_padded(tokenizer, ids, longest)] for name, ids in rows.items()]
    return Table(title, ["sentence", *map(str, range(1, longest + 1))], cells)
