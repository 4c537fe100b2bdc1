"""The input of a model: subwords and vectors (`vocabulary`), batches (`shift`), and `positions`.

The formulas of positions are computed here in float64, independently of `nmt.model.positions`. The
figures that report a difference compare both computations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.data.loader import Batch, collate
from nmt.errors import ConfigError
from nmt.extras.inspection.figure import (
    ROOT,
    Cell,
    Figure,
    Heatmap,
    Table,
    TextFigure,
    isolated,
    number_text,
    vector_text,
)
from nmt.extras.inspection.inspected import (
    DECODED,
    MAX_TOKENS,
    Inspected,
    labels,
    step_labels,
)
from nmt.model.positions import POSITIONS, rates, sinusoids
from nmt.packed import Packed
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN, PAD_ID
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizer

Side = Literal["source", "target"]
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
_POSITION = 2  # Position whose vector is written out.
_SHIFT = 3  # Distance between the positions that the matrix M connects.
_MEANINGS = {
    "sinusoidal": "Sines and cosines with many wavelengths: PE(p) is the vector of p. PE "
    "has two useful properties. A single matrix M maps every position to the position 3 tokens "
    "later. The similarity of two positions depends only on their distance.",
    "learned": "A table: training adjusts one vector for each position, up to model.max_positions.",
    "rotary": "Attention rotates each pair of features of queries and keys by an angle that is "
    "proportional to the position. So the product of query and key depends on the distance.",
    "relative": "Attention adds trained vectors to keys and values, one for each distance between "
    "query and key. Distances above model.max_relative_distance share a vector.",
    "none": "No encoding: only the decoder's causal mask carries information about the order.",
}


def vocabulary(inspected: Inspected) -> Iterator[Figure]:
    """Vocabulary.

    The tokenizer splits text into subwords; \N{LOWER ONE EIGHTH BLOCK} marks a space before a
    subword. The id of a subword is the number of its row in the embedding matrix: a one-hot vector
    multiplied by the matrix selects this row. Subwords that occur in similar contexts get similar
    vectors, so the nearest neighbours of a subword often have related meanings.
    """
    yield from _side_figures(inspected, "source")
    # A model without weights cannot translate, so there may be no target.
    if inspected.choice.target is not None or inspected.has_weights:
        yield from _side_figures(inspected, "target")


def _side_figures(inspected: Inspected, side: Side) -> Iterator[Figure]:
    """Yield the subwords of one sentence and, with weights, their vectors and neighbours."""
    tokenizer: Tokenizer = getattr(inspected.tokenizers, side)
    ids = inspected.source_ids
    if side == "target":
        ids = [*inspected.target_ids, EOS_ID]
    subwords = labels(tokenizer, ids)
    vocab_size = tokenizer.vocab_size
    # Head of a column -> a cell for each token.
    columns: dict[str, Sequence[Cell]] = {"subword": subwords, "id": ids}
    if inspected.prepared is not None:
        train = inspected.prepared.train
        counts = getattr(train, side).counts(vocab_size)
        counts[EOS_ID] = len(train)  # not stored, but part of each sentence
        columns["count in training data"] = counts[ids].tolist()
    title = f"Subwords, {side}"
    rows = zip(*columns.values(), strict=True)
    yield Table(title, list(columns), list(rows))
    if vocab_size <= _SMALL_VOCABULARY:
        values = _one_hot(ids, vocab_size).tolist()
        all_subwords = labels(tokenizer, range(vocab_size))
        title = f"One-hot vectors, {side}"
        yield Heatmap(title, values, subwords, all_subwords)
    if inspected.has_weights:
        matrix: Tensor = inspected.model.source_vectors
        if side == "target":
            matrix = inspected.model.target_embeddings
        matrix = matrix.detach().cpu()  # (V, D)
        # The example is the first token that is not special.
        example_id = next((token_id for token_id in ids if token_id > EOS_ID), ids[0])
        (example,) = labels(tokenizer, [example_id])
        _, dim = matrix.shape
        one_hot = _one_hot([example_id], vocab_size)
        (row,) = one_hot @ matrix
        lines = [
            f"x = one-hot vector of {isolated(example)}: "
            f"{vocab_size:,} numbers; number {example_id:,} is 1, the rest are 0",
            f"x W = row {example_id:,} of the embedding matrix W, {vocab_size:,} by {dim:,}: "
            f"{vector_text(row)}",
        ]
        if inspected.config.model.scale_embeddings:
            lines.append(f"x W {ROOT}{dim:,} = {vector_text(row * dim**0.5)}")
        title = f"From one-hot to vector, {side}"
        yield TextFigure(title, lines)
        neighbour_rows = []
        for token_id, subword in dict(zip(ids, subwords, strict=True)).items():  # each token once
            cosines = dict(neighbours(matrix, token_id, _NUM_NEIGHBOURS))
            names = labels(tokenizer, list(cosines))
            pairs = zip(names, cosines.values(), strict=True)
            texts = [f"{isolated(name)} {cosine:.4f}" for name, cosine in pairs]
            neighbour_rows.append((subword, ", ".join(texts)))
        title = f"Nearest subwords by cosine, {side}"
        yield Table(title, ("subword", "neighbours"), neighbour_rows)


def _one_hot(ids: Sequence[int], vocab_size: int) -> Tensor:
    """Return a one-hot vector for each id: (len(ids), V), float32."""
    vectors = F.one_hot(torch.tensor(ids), vocab_size)
    return vectors.float()


def neighbours(matrix: Tensor, row_id: int, max_count: int) -> list[tuple[int, float]]:
    """Return the rows most similar to a row, each as its id and the cosine similarity.

    PAD, UNK and BOS are left out, because most models never train their rows. So is the row itself.

    Args:
        matrix: Embeddings. (V, D).
        row_id: Id of the row.
        max_count: Number of rows to return. A smaller vocabulary has fewer.
    """
    row = matrix[row_id : row_id + 1]  # (1, D)
    cosines = F.cosine_similarity(matrix, row)  # (V,)
    # Rows that are left out become the last.
    cosines[:NUM_NEVER_CHOSEN] = -torch.inf
    cosines[row_id] = -torch.inf
    values, ids = cosines.topk(min(max_count, len(matrix)))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [(token_id, cosine) for token_id, cosine in pairs if cosine > -torch.inf]


def shift(inspected: Inspected) -> Iterator[Figure]:
    """Batch, shift and masks.

    The decoder reads the target shifted by one token: from the tokens so far, the decoder predicts
    the next token. In a mask, 1 marks a token that may be read. In the decoder, each token reads
    only itself and earlier tokens. PAD fills up the shorter rows; the model packs the sentences and
    computes nothing for PAD. The first pair is your sentence. The other pairs are from the
    validation set. Without prepared data, the second pair is the first token of your sentence.
    """
    bos = inspected.config.model.source_bos
    batch = collate_pairs(pairs_of(inspected), source_bos=bos)
    max_length = batch.target.max_length
    gold = Packed(batch.gold, batch.target.cu_seqlens, max_length)
    source_tokenizer, target_tokenizer = inspected.tokenizers
    # Number of a sentence, from "1" -> its ids.
    numbers = _number_labels(len(batch.source), 1)
    sources = dict(zip(numbers, batch.source.rows(), strict=True))
    yield _subword_table("Encoder input", source_tokenizer, sources)
    inputs = dict(zip(numbers, batch.target.rows(), strict=True))
    outputs = dict(zip(numbers, gold.rows(), strict=True))
    decoder_rows = {}
    for number in numbers:
        decoder_rows[f"{number} reads"] = inputs[number]
        decoder_rows[f"{number} predicts"] = outputs[number]
    yield _subword_table("Decoder input and output", target_tokenizer, decoder_rows)
    positions = _number_labels(batch.source.max_length, 1)
    padding_mask = batch.source.mask().float()
    title = "Padding mask of the source"
    yield Heatmap(
        title, padding_mask.tolist(), numbers, positions, down="sentence", across="position"
    )
    masks = decoder_mask(batch.target).float()
    for number, mask in zip(numbers, masks, strict=True):
        title = f"Decoder mask of sentence {number}"
        read = labels(target_tokenizer, inputs[number])
        predicted = labels(target_tokenizer, outputs[number])
        rows = step_labels(read, predicted)
        columns = _padded_labels(target_tokenizer, inputs[number], max_length)
        values = mask[: len(rows)].tolist()  # without the rows of PAD; its columns remain
        yield Heatmap(title, values, rows, columns, 0, 1, "token read", DECODED)


def pairs_of(inspected: Inspected) -> list[Pair]:
    """Return the pair to inspect, then pairs of the validation set: two or three pairs in all.

    Raises:
        ConfigError: Neither a pair nor prepared data is available.
    """
    pairs = list[Pair]()
    if inspected.choice.target is not None or inspected.has_weights:
        target = list(inspected.target_ids)
        pairs.append((inspected.source_tokens, target))
    if inspected.prepared is not None:
        valid = inspected.prepared.valid
        num_rows = min(_NUM_PAIRS, len(valid))
        for row in np.arange(num_rows)[:, None]:  # `ids` takes an array of indices: here, of one
            source = valid.source.ids(row).ids.tolist()
            target = valid.target.ids(row).ids.tolist()
            is_short = max(len(source), len(target)) <= MAX_TOKENS
            if is_short and (source, target) not in pairs:
                pairs.append((source, target))
    if not pairs:
        problem = "shift needs a sentence pair, and the data is not prepared."
        fix = "Pass `source` and `target`."
        raise ConfigError(problem, fix=fix)
    if len(pairs) == 1:  # a shorter second pair makes padding visible
        ((source, target),) = pairs
        pairs.append((source[:1], target[:1]))
    return pairs[:_NUM_PAIRS]


def collate_pairs(pairs: Sequence[Pair], *, source_bos: bool) -> Batch:
    """Collate the pairs into one batch with the code of training.

    Args:
        pairs: Ids without BOS and EOS.
        source_bos: Whether sources begin with BOS.
    """
    sources = FlatIds.of([source for source, _ in pairs])
    targets = FlatIds.of([target for _, target in pairs])
    rows = np.arange(len(pairs))
    return collate(sources, targets, rows, source_bos=source_bos)


def decoder_mask(target: Packed) -> Tensor:
    """Return the decoder mask: True where a position (row) may read (column). (B, T, T), bool."""
    length = target.max_length
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return causal & target.mask().unsqueeze(2)  # tokens before a real token are real, too


def _padded_labels(tokenizer: Tokenizer, ids: Sequence[int], length: int) -> list[str]:
    """Return the labels of ids, and PAD until there are ``length`` labels."""
    padding = [PAD_ID] * (length - len(ids))
    return labels(tokenizer, [*ids, *padding])


def _subword_table(title: str, tokenizer: Tokenizer, rows: dict[str, list[int]]) -> Table:
    """Return a table with the subwords of each list of ids, padded to the same length."""
    max_length = max(map(len, rows.values()))
    cells = [[name, *_padded_labels(tokenizer, ids, max_length)] for name, ids in rows.items()]
    return Table(title, ["sentence", *_number_labels(max_length, 1)], cells)


def _number_labels(count: int, first: int = 0) -> list[str]:
    """Return ``count`` consecutive numbers as texts."""
    return [str(number) for number in range(first, first + count)]


def pair_columns(dim: int, layout: str) -> tuple[Tensor, Tensor]:
    """Return the features that are sines, and the features with the corresponding cosines.

    (D / 2,) each, int64: entry i belongs to pair i.
    """
    pairs = torch.arange(dim // 2)
    if layout == "sinusoidal":  # sines are the even features
        return 2 * pairs, 2 * pairs + 1
    return pairs, pairs + dim // 2


def shift_matrix(dim: int, layout: str, shift: int) -> Tensor:
    """Return the matrix M with M PE(p) = PE(p + shift) for every position p: (D, D), float64.

    M rotates each pair of features by the angle shift x rate: sin(a + b) = sin a cos b + cos a sin
    b, and cos(a + b) = cos a cos b - sin a sin b. Source: Vaswani et al. (2017), section 3.5.
    """
    angles = shift * rates(dim, layout)
    sines, cosines = pair_columns(dim, layout)
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    matrix[sines, sines] = angles.cos()
    matrix[cosines, cosines] = angles.cos()
    matrix[sines, cosines] = angles.sin()
    matrix[cosines, sines] = -angles.sin()
    return matrix


def similarity(table: Tensor) -> Tensor:
    """Return the cosine similarity of all pairs of rows: (P, D) -> (P, P), float64."""
    rows = F.normalize(table.double(), dim=1)
    return rows @ rows.T


def written_out(dim: int, layout: str, position: int) -> list[str]:
    """Return the formula of each number in a position's vector.

    Of a long vector, only the first and the last four numbers are shown.

    >>> written_out(4, "sinusoidal", 1)[1]
    'PE(1, 1) = cos(1 / 10000^(0/4)) = cos(1 / 1) = 0.540302'
    """
    divisors = (1 / rates(dim, layout)).tolist()
    table = sinusoids(position + 1, dim, layout)
    values = table[position].tolist()
    # Pair i has the exponent 2i / D or, in "sinusoidal-halves", i / (D / 2 - 1).
    factor = 2
    denominator = dim
    if layout == "sinusoidal-halves":
        factor = 1
        denominator = max(dim // 2 - 1, 1)
    lines = [""] * dim
    sines, cosines = pair_columns(dim, layout)
    for name, features in (("sin", sines), ("cos", cosines)):
        for i, feature in enumerate(features.tolist()):
            exponent = f"{factor * i}/{denominator}"
            lines[feature] = (
                f"PE({position}, {feature}) = {name}({position} / 10000^({exponent})) = "
                f"{name}({position} / {divisors[i]:.6g}) = {values[feature]:.6f}"
            )
    if dim > 2 * TOY_WIDTH:
        lines[TOY_WIDTH:-TOY_WIDTH] = ["..."]
    return lines


def encoding_heatmap(table: Tensor, title: str, first: int = 0, note: str = "") -> Heatmap:
    """Return position vectors (P, D) as a heatmap, with a row for each position from ``first``.

    A note is added if the vectors are wider than a heatmap.
    """
    if table.shape[1] > MAX_WIDTH:
        note = f"{note} Shown: the first {MAX_WIDTH} of {table.shape[1]:,} features.".strip()
    values = table[:, :MAX_WIDTH].tolist()
    rows = _number_labels(len(values), first)
    columns = _number_labels(len(values[0]))
    return Heatmap(title, values, rows, columns, down="position", across="feature", note=note)


def sinusoid_figures(layout: str, dim: int) -> Iterator[Figure]:
    """Yield the calculation of one position vector, and the matrix M from `shift_matrix`."""
    title = f"Vector of position {_POSITION}, width {dim:,}, sines and cosines {LAYOUTS[layout]}"
    yield TextFigure(title, written_out(dim, layout, _POSITION))
    table = sinusoids(NUM_POSITIONS, dim, layout).double()
    # M PE(p) for every position p whose later position is in the table, as rows.
    matrix = shift_matrix(dim, layout, _SHIFT)
    shifted = table[:-_SHIFT] @ matrix.T
    differences = (shifted - table[_SHIFT:]).abs()
    error = differences.max().item()
    note = (
        f"M rotates each pair by an angle that is the same for every position p. At width {dim:,}, "
        f"M PE(p) and PE(p + {_SHIFT}) differ by at most {number_text(error, 'z.1e')} for p below "
        f"{len(shifted)}."
    )
    # The table shows M for a small width, with a vector and the vector that M maps it to.
    later = _POSITION + _SHIFT
    toy_table = sinusoids(NUM_POSITIONS, TOY_WIDTH, layout)
    toy_matrix = shift_matrix(TOY_WIDTH, layout, _SHIFT)
    rows = torch.column_stack([toy_matrix, toy_table[_POSITION], toy_table[later]])
    head = ["M"] + [""] * (TOY_WIDTH - 1)
    head += [f"PE({_POSITION})", f"PE({later}) = M PE({_POSITION})"]
    title = f"{_SHIFT} positions later, {LAYOUTS[layout]}"
    yield Table(title, head, rows.tolist(), note=note)


def positions(inspected: Inspected) -> Iterator[Figure]:
    """Positions.

    Attention itself ignores the order of tokens; a position encoding makes the order visible. This
    view explains the encoding of this model, and compares pairs of positions.
    """
    config = inspected.config.model
    name = config.positions
    meaning = _MEANINGS.get(name, "")
    if name in LAYOUTS:
        meaning = _MEANINGS["sinusoidal"]
    line = f"model.positions: {name}"
    yield TextFigure("Encoding of this model", [line], note=meaning)
    scheme = POSITIONS[name]
    if scheme.absolute is not None:
        first = config.first_position
        end = first + min(NUM_POSITIONS, config.position_limit or NUM_POSITIONS)
        note = f"model.positions is {name}. The first token has position {first}."
        dims = {"source": config.model_dim, "target": config.decoder_dim}
        is_learned = bool(list(scheme.absolute(config, config.model_dim).parameters()))
        # Computed vectors of the same width are the same on both sides.
        are_sides_equal = not is_learned and config.model_dim == config.decoder_dim
        if are_sides_equal:
            del dims["target"]
        for side, dim in dims.items():
            encoding = scheme.absolute(config, dim)
            if inspected.has_weights:
                encoding = getattr(inspected.model, f"{side}_embedding").positions or encoding
            elif is_learned:
                note = "Not trained yet: random vectors, so neighbouring positions are not similar."
                if config.position_init == "zeros":
                    note = "Not trained yet: model.position_init starts with zeros."
            table = encoding.table(end).detach()
            table = table[first:end]
            title = "Position vectors"
            if not are_sides_equal:
                title += f", {side}"
            yield encoding_heatmap(table, title, first, note)
            yield _similarity(table, title, first)
    if scheme.relative is not None:
        head_dim = config.model_dim // config.num_heads
        # The same vector at every position, of a single head: (positions, 1, E). Feature i and
        # feature i + E / 2 are a pair. The pair (1, 0) becomes (cos, sin).
        vectors = torch.zeros(NUM_POSITIONS, 1, head_dim)
        vectors[..., : head_dim // 2] = 1
        # A new module has the same rotations as that of the model, because they are not trained.
        relative = scheme.relative(config, head_dim)
        order = torch.arange(NUM_POSITIONS)
        rotated = relative.rotate(vectors, order)[:, 0].detach()
        if not torch.equal(rotated, vectors[:, 0]):  # the scheme rotates queries and keys
            cos, sin = rotated.chunk(2, dim=1)
            angles = torch.atan2(sin, cos) % math.tau
            note = "Angle in radians by which each pair of features of a query or key is rotated."
            heatmap = encoding_heatmap(angles, "Rotation angles", note=note)
            yield replace(heatmap, low=0, high=math.tau, cyclic=True)
            yield _similarity(rotated, "One vector, rotated")
    if name in LAYOUTS:
        yield from sinusoid_figures(name, config.model_dim)


def _similarity(table: Tensor, title: str, first: int = 0) -> Heatmap:
    """Return the similarity of all pairs of position vectors (P, D), from position ``first``."""
    title = f"{title}: similarity"
    note = "Cosine similarity. If only the distance matters, all values on a diagonal are equal."
    numbers = _number_labels(len(table), first)
    values = similarity(table).tolist()
    return Heatmap(title, values, numbers, numbers, -1.0, 1.0, note=note)
