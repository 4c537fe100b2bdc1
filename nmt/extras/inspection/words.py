"""Text as a model reads it: pieces and vectors (`vocabulary`), batches and masks (`shift`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.data.batch import Batch, collate
from nmt.data.store import FlatIds, ParallelStore, StoreWriter
from nmt.errors import ConfigError
from nmt.extras.inspection.figure import Cell, Figure, Heatmap, Table, Text, vector_text
from nmt.extras.inspection.subject import MAX_TOKENS, Subject, labels, moved
from nmt.packed import Packed
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN, PAD_ID
from nmt.text.tokenizer import Tokenizer

Pair = tuple[list[int], list[int]]  # Ids of source and target, without special ones.
_SMALL_VOCABULARY = 40  # Entries of a vocabulary whose one-hot vectors are drawn whole.
_NUM_NEIGHBOURS = 5
_NUM_PAIRS = 3  # Of a batch.


def vocabulary(subject: Subject) -> Iterator[Figure]:
    """Vocabulary.

    \N{LOWER ONE EIGHTH BLOCK} is a space before a piece. Its id is the place of the 1 in a one-hot
    vector, and that vector times the table is the table's row of that number. Neighbours have
    similar rows: tokens that training used alike.
    """
    yield from _side(subject, "source")
    if subject.choice.target is not None or subject.has_weights:
        yield from _side(subject, "target")


def _side(subject: Subject, side: Literal["source", "target"]) -> Iterator[Figure]:
    tokenizer: Tokenizer = getattr(subject.tokenizers, side)
    ids = subject.source_ids if side == "source" else [*subject.target_ids, EOS_ID]
    pieces, size = labels(tokenizer, ids), tokenizer.vocab_size
    columns: dict[str, Sequence[Cell]] = {"piece": pieces, "id": ids}
    if subject.prepared is not None:
        counts = subject.prepared.train.token_counts(side, size)
        counts[EOS_ID] = len(subject.prepared.train)  # not stored, but read after each sentence
        columns["times in training"] = counts[ids].tolist()
    yield Table(f"Pieces, {side}", [*columns], list(zip(*columns.values(), strict=True)))
    if size <= _SMALL_VOCABULARY:
        values, entries = one_hot(ids, size).tolist(), labels(tokenizer, range(size))
        yield Heatmap(f"One-hot vectors, {side}", values, pieces, entries)
    if subject.has_weights:
        model = subject.model
        table = (model.source_vectors if side == "source" else model.target_table).detach()
        index = next((index for index in ids if index > EOS_ID), ids[0])
        (piece,) = labels(tokenizer, [index])
        scale = table.shape[1] if subject.config.model.scale_embeddings else None
        yield Text(f"From one-hot to vector, {side}", lookup_lines(table, index, piece, scale))
        rows = []
        for index, piece in dict(zip(ids, pieces, strict=True)).items():
            near = neighbours(table, index, _NUM_NEIGHBOURS)
            names = zip(labels(tokenizer, [other for other, _ in near]), near, strict=True)
            rows.append((piece, ", ".join(f"{name} {cosine:.2f}" for name, (_, cosine) in names)))
        yield Table(f"Nearest pieces by cosine, {side}", ("piece", "neighbours"), rows)


def one_hot(ids: Sequence[int], vocab_size: int) -> Tensor:
    """Return a row for each id, with a 1 at its place: (len(ids), V), float32."""
    return F.one_hot(torch.tensor(ids), vocab_size).float()


def lookup_lines(table: Tensor, index: int, piece: str, scale: int | None) -> list[str]:
    """Return how a piece's one-hot vector picks its row of a table (V, D), first numbers only.

    Args:
        table: Vectors of the vocabulary.
        index: Id of the piece.
        piece: What it is called.
        scale: The width, where vectors are multiplied by its square root.
    """
    size, dim = table.shape
    row = (one_hot([index], size) @ table)[0]
    lines = [
        f"x = one-hot vector of {piece}: {size:,} numbers, 0 but for number {index:,}, which is 1",
        f"x W, with the table W ({size:,} x {dim:,}), is row {index:,} of W: {vector_text(row)}",
    ]
    scaled = [f"times sqrt({scale:,}): {vector_text(row * scale**0.5)}"] if scale else []
    return [*lines, *scaled]


def neighbours(table: Tensor, index: int, count: int) -> list[tuple[int, float]]:
    """Return the ids whose rows of a table (V, D) have the largest cosine with one, and that.

    PAD, UNK and BOS are left out: most tables never learn their rows.
    """
    cosines = F.cosine_similarity(table, table[index : index + 1])
    cosines[[*range(NUM_NEVER_CHOSEN), index]] = -torch.inf
    values, ids = cosines.topk(min(count, len(table)))
    return [(i, x) for i, x in zip(ids.tolist(), values.tolist(), strict=True) if x >= -2]


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
