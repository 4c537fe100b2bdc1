"""How text becomes vectors: pieces and ids, one row of the table each, and neighbours there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.extras.inspection.figure import Cell, Figure, Heatmap, Table, Text, vector_text
from nmt.extras.inspection.subject import Subject, labels
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN
from nmt.text.tokenizer import Tokenizer

_SMALL_VOCABULARY = 40  # Entries of a vocabulary whose one-hot vectors are drawn whole.
_NUM_NEIGHBOURS = 5


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
