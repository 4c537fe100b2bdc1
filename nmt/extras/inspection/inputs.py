"""The input of a model: subwords and vectors (`vocabulary`), batches (`shift`), and `positions`.

The formulas of positions are computed here in float64, independently of `nmt.model.positions`. The
figures that report a difference compare both computations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.data.loader import Batch, collate
from nmt.data.store import ParallelStore, StoreWriter
from nmt.errors import ConfigError
from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import isolated, number_text, vector_text
from nmt.extras.inspection.inspected import MAX_TOKENS, Inspected, labels, moved
from nmt.model.positions import POSITIONS, sinusoids
from nmt.packed import Packed
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN, PAD_ID
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizer

Pair = tuple[list[int], list[int]]  # Ids of source and target, without special ones.
_SMALL_VOCABULARY = 40  # Largest vocabulary whose one-hot vectors are drawn.
_NUM_NEIGHBOURS = 5
_NUM_PAIRS = 3  # Sentence pairs in the batch.
NUM_POSITIONS = 20  # Rows of a heatmap.
MAX_WIDTH = 512  # Maximum number of columns of a heatmap.
TOY_WIDTH = 4
# Sinusoidal ``model.positions`` -> the order of sines and cosines.
LAYOUTS = {
    "sinusoidal": "interleaved",
    "sinusoidal-concatenated": "concatenated",
    "sinusoidal-halves": "in halves",
}
_POSITION, _SHIFT = 2, 3
_MEANINGS = {
    "sinusoidal": "Sines and cosines with many wavelengths: PE(p) is the vector of p. PE "
    "has two useful properties. A single matrix M maps every position to the position 3 tokens "
    "later. The similarity of two positions depends only on their distance.",
    "learned": "A table: training adjusts one vector for each position, up to model.max_positions. "
    "Before training, vectors are random, so neighbouring positions are not similar.",
    "rotary": "Attention rotates each pair of features of queries and keys by an angle that is "
    "proportional to the position. So the product of query and key depends on the distance.",
    "relative": "Attention adds trained vectors to keys and values, one for each distance between "
    "query and key. Distances above model.max_relative_distance share a vector.",
    "none": "No encoding: only the decoder's causal mask carries information about the order.",
}


def vocabulary(inspected: Inspected) -> Iterator[fig.Figure]:
    """Vocabulary.

    The tokenizer splits text into subwords; \N{LOWER ONE EIGHTH BLOCK} marks a space before a
    subword. The id of a subword is the number of its row in the embedding matrix: a one-hot vector
    multiplied by the matrix selects this row. Subwords that occur in similar contexts get similar
    vectors, so the nearest neighbours of a subword often have related meanings.
    """
    yield from _side(inspected, "source")
    if inspected.choice.target is not None or inspected.has_weights:
        yield from _side(inspected, "target")


def _side(inspected: Inspected, side: Literal["source", "target"]) -> Iterator[fig.Figure]:
    tokenizer: Tokenizer = getattr(inspected.tokenizers, side)
    ids = inspected.source_ids if side == "source" else [*inspected.target_ids, EOS_ID]
    subwords, size = labels(tokenizer, ids), tokenizer.vocab_size
    columns: dict[str, Sequence[fig.Cell]] = {"subword": subwords, "id": ids}
    if inspected.prepared is not None:
        counts = inspected.prepared.train.token_counts(side, size)
        counts[EOS_ID] = len(inspected.prepared.train)  # not stored, but part of each sentence
        columns["count in training data"] = counts[ids].tolist()
    yield fig.Table(f"Subwords, {side}", [*columns], list(zip(*columns.values(), strict=True)))
    if size <= _SMALL_VOCABULARY:
        values, known = one_hot(ids, size).tolist(), labels(tokenizer, range(size))
        yield fig.Heatmap(f"One-hot vectors, {side}", values, subwords, known)
    if inspected.has_weights:
        model = inspected.model
        matrix = (model.source_vectors if side == "source" else model.target_embeddings).detach()
        index = next((index for index in ids if index > EOS_ID), ids[0])
        (subword,) = labels(tokenizer, [index])
        scale = matrix.shape[1] if inspected.config.model.scale_embeddings else None
        yield fig.Text(
            f"From one-hot to vector, {side}", lookup_lines(matrix, index, subword, scale)
        )
        rows = []
        for index, subword in dict(zip(ids, subwords, strict=True)).items():
            near = neighbours(matrix, index, _NUM_NEIGHBOURS)
            names = map(isolated, labels(tokenizer, [other for other, _ in near]))
            pairs = zip(names, near, strict=True)
            rows.append((subword, ", ".join(f"{x} {cosine:.4f}" for x, (_, cosine) in pairs)))
        yield fig.Table(f"Nearest subwords by cosine, {side}", ("subword", "neighbours"), rows)


def one_hot(ids: Sequence[int], vocab_size: int) -> Tensor:
    """Return a one-hot vector for each id: (len(ids), V), float32."""
    return F.one_hot(torch.tensor(ids), vocab_size).float()


def lookup_lines(matrix: Tensor, index: int, subword: str, scale: int | None) -> list[str]:
    """Write out how a one-hot vector selects a row of the embedding matrix.

    Args:
        matrix: The embedding matrix. (V, D).
        index: Id of the subword.
        subword: Text of the subword.
        scale: The width D, if vectors are multiplied by its square root; else None.
    """
    size, dim = matrix.shape
    row = (one_hot([index], size) @ matrix)[0]
    lines = [
        f"x = one-hot vector of {isolated(subword)}: "
        f"{size:,} numbers; number {index:,} is 1, the rest are 0",
        f"x W = row {index:,} of the embedding matrix W, {size:,} by {dim:,}: {vector_text(row)}",
    ]
    scaled = [f"x W \N{SQUARE ROOT}{scale:,} = {vector_text(row * scale**0.5)}"] if scale else []
    return [*lines, *scaled]


def neighbours(matrix: Tensor, index: int, count: int) -> list[tuple[int, float]]:
    """Return the ``count`` rows most similar to a row, each with the cosine similarity.

    PAD, UNK and BOS are left out, because most models never train their rows.
    """
    cosines = F.cosine_similarity(matrix, matrix[index : index + 1])
    cosines[[*range(NUM_NEVER_CHOSEN), index]] = -torch.inf
    values, ids = cosines.topk(min(count, len(matrix)))
    return [(i, x) for i, x in zip(ids.tolist(), values.tolist(), strict=True) if x >= -2]


def shift(inspected: Inspected) -> Iterator[fig.Figure]:
    """Batch, shift and masks.

    The decoder reads the target shifted by one token: from the tokens so far, the decoder predicts
    the next token. In a mask, 1 marks a token that may be read. In the decoder, each token reads
    only itself and earlier tokens. PAD fills up the shorter rows; the model packs the sentences and
    computes nothing for PAD. The first pair is your sentence. The other pairs are from the
    validation set. Without prepared data, the second pair is the first token of your sentence.
    """
    bos = inspected.config.model.source_bos
    batch = collate_pairs(pairs_of(inspected), max(inspected.vocab_sizes), source_bos=bos)
    gold = Packed(batch.gold, batch.target.cu_seqlens, batch.target.max_length)
    pairs = list(enumerate(zip(batch.target.rows(), gold.rows(), strict=True), 1))
    source, target = inspected.tokenizers
    sources = {str(number): ids for number, ids in enumerate(batch.source.rows(), 1)}
    yield _table("Encoder input", source, sources)
    steps = {f"{number} {name}": ids for number, pair in pairs
             for name, ids in zip(("reads", "predicts"), pair, strict=True)}  # fmt: skip
    yield _table("Decoder input and output", target, steps)
    places = [str(place + 1) for place in range(batch.source.max_length)]
    real = batch.source.mask().float().tolist()
    yield fig.Heatmap("Padding mask of the source", real, list(sources), places, down="sentence")
    masks = decoder_mask(batch.target).float()
    for number, (inputs, outputs) in pairs:
        rows = moved(labels(target, inputs), labels(target, outputs))
        columns = _padded(target, inputs, batch.target.max_length)
        values, title = masks[number - 1, : len(rows)], f"Decoder mask of sentence {number}"
        yield fig.Heatmap(title, values.tolist(), rows, columns, 0, 1, across="token read")


def pairs_of(inspected: Inspected) -> list[Pair]:
    """Return the pair to inspect, then pairs of the validation set: two or more pairs in all.

    Raises:
        ConfigError: Neither a pair nor prepared data is available.
    """
    pairs: list[Pair] = []
    if inspected.choice.target is not None or inspected.has_weights:
        start = int(inspected.config.model.source_bos)
        pairs.append((inspected.source_ids[start:-1], list(inspected.target_ids)))
    if inspected.prepared is not None:
        valid = inspected.prepared.valid
        for row in np.arange(min(_NUM_PAIRS, len(valid)))[:, None]:
            pair = valid.source_ids(row).ids.tolist(), valid.target_ids(row).ids.tolist()
            if pair not in pairs and max(map(len, pair)) <= MAX_TOKENS:
                pairs.append(pair)
    if not pairs:
        fix = "Pass `source` and `target`."
        raise ConfigError("shift needs a sentence pair, and the data is not prepared.", fix=fix)
    if len(pairs) == 1:  # a shorter second pair makes padding visible
        pairs.append((pairs[0][0][:1], pairs[0][1][:1]))
    return pairs[:_NUM_PAIRS]


def collate_pairs(pairs: Sequence[Pair], vocab_size: int, *, source_bos: bool) -> Batch:
    """Collate the pairs into one batch with the code of training.

    Args:
        pairs: Ids without BOS and EOS.
        vocab_size: Size of the larger vocabulary.
        source_bos: Whether sources begin with BOS.
    """
    with TemporaryDirectory() as folder:
        place = Path(folder) / "pairs"
        with StoreWriter(place, vocab_size) as writer:
            sources, targets = zip(*pairs, strict=True)
            writer.append(FlatIds.of(sources), FlatIds.of(targets), 0, range(len(pairs)))
        return collate(ParallelStore.open(place), np.arange(len(pairs)), source_bos=source_bos)


def decoder_mask(target: Packed) -> Tensor:
    """Return the decoder mask: True where a position (row) may read (column). (B, T, T), bool."""
    causal = torch.ones(target.max_length, target.max_length, dtype=torch.bool).tril()
    return causal & target.mask().unsqueeze(2)  # tokens before a real token are real, too


def _padded(tokenizer: Tokenizer, ids: Sequence[int], length: int) -> list[str]:
    return labels(tokenizer, [*ids, *[PAD_ID] * (length - len(ids))])


def _table(title: str, tokenizer: Tokenizer, rows: dict[str, list[int]]) -> fig.Table:
    """Return a table with the subwords of each list of ids, padded to the same length."""
    longest = max(map(len, rows.values()))
    cells = [[name, *_padded(tokenizer, ids, longest)] for name, ids in rows.items()]
    return fig.Table(title, ["sentence", *map(str, range(1, longest + 1))], cells)


def rates(dim: int, layout: str) -> Tensor:
    """Return the angular frequency of each pair of sine and cosine: (D / 2,), float64.

    Vaswani et al. (2017) use 10000^(-2i / D); ``sinusoidal-halves`` has 10000^(-i / (D / 2 - 1)).
    """
    half = dim // 2
    steps = max(half - 1, 1) if layout == "sinusoidal-halves" else half
    return 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / steps)


def pair_columns(dim: int, layout: str) -> tuple[Tensor, Tensor]:
    """Return the features that are sines, and the features with the corresponding cosines."""
    half = torch.arange(dim // 2)
    return (2 * half, 2 * half + 1) if layout == "sinusoidal" else (half, half + dim // 2)


def shift_matrix(dim: int, layout: str, shift: int) -> Tensor:
    """Return the matrix M with M PE(p) = PE(p + shift) for every position p: (D, D), float64.

    M rotates each pair of features by the angle shift x rate: sin(a + b) = sin a cos b + cos a sin
    b, and cos(a + b) = cos a cos b - sin a sin b. Source: Vaswani et al. (2017), section 3.5.
    """
    angles = shift * rates(dim, layout)
    sines, cosines = pair_columns(dim, layout)
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    matrix[sines, sines] = matrix[cosines, cosines] = angles.cos()
    matrix[sines, cosines], matrix[cosines, sines] = angles.sin(), -angles.sin()
    return matrix


def similarity(table: Tensor) -> Tensor:
    """Return the cosine similarity of all pairs of rows: (P, D) -> (P, P), float64."""
    rows = torch.nn.functional.normalize(table.double(), dim=1)
    return rows @ rows.T


def written_out(dim: int, layout: str, position: int) -> list[str]:
    """Return the formula of each number in a position's vector; a long vector is abbreviated.

    >>> written_out(4, "sinusoidal", 1)[1]
    'PE(1, 1) = cos(1 / 10000^(0/4)) = cos(1 / 1) = 0.540302'
    """
    divisors = (1 / rates(dim, layout)).tolist()
    values = sinusoids(position + 1, dim, layout)[position].tolist()
    step, whole = (1, max(dim // 2 - 1, 1)) if layout == "sinusoidal-halves" else (2, dim)
    lines = [""] * dim
    for name, columns in zip(("sin", "cos"), pair_columns(dim, layout), strict=True):
        for i, feature in enumerate(columns.tolist()):
            lines[feature] = (
                f"PE({position}, {feature}) = {name}({position} / 10000^({step * i}/{whole})) = "
                f"{name}({position} / {divisors[i]:.6g}) = {values[feature]:.6f}"
            )
    return lines if dim <= 2 * TOY_WIDTH else [*lines[:TOY_WIDTH], "...", *lines[-TOY_WIDTH:]]


def encoding_heatmap(table: Tensor, title: str, first: int = 0, note: str = "") -> fig.Heatmap:
    """Return position vectors (P, D) as a heatmap, with a row for each position from ``first``."""
    if table.shape[1] > MAX_WIDTH:
        note = f"{note} Shown: the first {MAX_WIDTH} of {table.shape[1]:,} features.".strip()
    values = table[:, :MAX_WIDTH].tolist()
    rows = [str(first + row) for row in range(len(values))]
    columns = [str(column) for column in range(len(values[0]))]
    return fig.Heatmap(title, values, rows, columns, down="position", across="feature", note=note)


def sinusoid_figures(layout: str, dim: int) -> Iterator[fig.Figure]:
    """Yield the calculation of one position vector, and the matrix M from `shift_matrix`."""
    title = f"Vector of position {_POSITION}, width {dim:,}, sines and cosines {LAYOUTS[layout]}"
    yield fig.Text(title, written_out(dim, layout, _POSITION))
    table = sinusoids(NUM_POSITIONS, dim, layout).double()
    moved = table[:-_SHIFT] @ shift_matrix(dim, layout, _SHIFT).T
    error = (moved - table[_SHIFT:]).abs().max().item()
    note = (
        f"M rotates each pair by an angle that is the same for every position p. At width {dim:,}, "
        f"M PE(p) and PE(p + {_SHIFT}) differ by at most {number_text(error, 'z.1e')} for p below "
        f"{len(moved)}."
    )
    before, after = sinusoids(NUM_POSITIONS, TOY_WIDTH, layout)[[_POSITION, _POSITION + _SHIFT]]
    rows = torch.column_stack([shift_matrix(TOY_WIDTH, layout, _SHIFT), before, after]).tolist()
    names = f"PE({_POSITION})", f"PE({_POSITION + _SHIFT}) = M PE({_POSITION})"
    head = "M", *[""] * (TOY_WIDTH - 1), *names
    yield fig.Table(f"{_SHIFT} positions later, {LAYOUTS[layout]}", head, rows, note=note)


def positions(inspected: Inspected) -> Iterator[fig.Figure]:
    """Positions.

    Attention itself ignores the order of tokens; a position encoding makes the order visible. This
    view explains the encoding of this model, and compares pairs of positions.
    """
    config, name = inspected.config.model, inspected.config.model.positions
    meaning = _MEANINGS.get("sinusoidal" if name in LAYOUTS else name, "")
    yield fig.Text("Encoding of this model", [f"model.positions: {name}"], note=meaning)
    yield from _absolute(inspected)
    yield from _relative(inspected)
    if name in LAYOUTS:
        yield from sinusoid_figures(name, config.model_dim)


def _absolute(inspected: Inspected) -> Iterator[fig.Figure]:
    """Yield the vectors that are added to embeddings; for each side if the sides differ."""
    config = inspected.config.model
    if (make := POSITIONS[config.positions].absolute) is None:
        return
    first = config.first_position
    end = first + min(NUM_POSITIONS, config.position_limit or NUM_POSITIONS)
    note = f"model.positions is {config.positions}. The first token has position {first}."
    dims = {"source": config.model_dim, "target": config.decoder_dim}
    is_learned = next(make(config, config.model_dim).parameters(), None) is not None
    is_one = not is_learned and len({*dims.values()}) == 1
    for side in ("source",) if is_one else dims:
        module = make(config, dims[side])
        if inspected.has_weights:
            module = getattr(inspected.model, f"{side}_embedding").positions or module
        elif is_learned:
            note = "Not trained yet: the values are random."
        table = module.table(end)[first:end].detach()
        title = "Position vectors" if is_one else f"Position vectors, {side}"
        yield encoding_heatmap(table, title, first, note)
        yield _similarity(table, title, first)


def _relative(inspected: Inspected) -> Iterator[fig.Figure]:
    """Yield the rotation angles of rotary positions; nothing for other position encodings."""
    config = inspected.config.model
    if (make := POSITIONS[config.positions].relative) is None:
        return
    dim = config.model_dim // config.num_heads
    scheme = make(config, dim)  # has no parameters, so it equals the model's own rotations
    unit = torch.zeros(NUM_POSITIONS, 1, dim)
    unit[..., : dim // 2] = 1  # (1, 0) in each pair of features becomes (cos, sin)
    turned = scheme.rotate(unit, torch.arange(NUM_POSITIONS))[:, 0].detach()
    if not torch.equal(turned, unit[:, 0]):
        cos, sin = turned.chunk(2, dim=1)
        note = "Angle in radians by which each pair of features of a query or key is rotated."
        yield encoding_heatmap(torch.atan2(sin, cos) % math.tau, "Rotation angles", note=note)
        yield _similarity(turned, "One vector, rotated")


def _similarity(table: Tensor, title: str, first: int = 0) -> fig.Heatmap:
    note = "Cosine similarity. If only the distance matters, all values on a diagonal are equal."
    places = [str(first + row) for row in range(len(table))]
    values = similarity(table).tolist()
    return fig.Heatmap(f"{title}: similarity", values, places, places, -1.0, 1.0, note=note)
