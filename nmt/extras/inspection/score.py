"""``nmt inspect MODEL score``: the arithmetic of attention, number by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nmt.errors import ConfigError
from nmt.extras.inspection.attention import layer_names
from nmt.extras.inspection.figure import Cell, Figure, Step, Steps, Table, Text, vector_text
from nmt.extras.inspection.recording import Heads, Sublayer, record
from nmt.extras.inspection.subject import Subject
from nmt.model.layers import SelfAttention

_MAX_NUMBERS = 100_000
_TIMES, _ROOT = "\N{MULTIPLICATION SIGN}", "\N{SQUARE ROOT}"


@torch.inference_mode()
def score(subject: Subject) -> Iterator[Figure]:
    """The arithmetic of attention.

    The product of a token's query q and every key k, divided by the square root of the head's
    width, is the score; softmax makes weights of scores; a head's output is the sum of the values v
    times their weights. All heads' outputs, side by side, times W^O are added to the residual
    stream. Of a long vector the first numbers are written.
    """
    layers = record(subject.model, subject.source, subject.target).attention("encoder")
    layer = max(subject.layers(len(layers)), default=len(layers))
    sublayer, name = layers[layer - 1], layer_names(len(layers))[layer - 1]
    heads, labels = sublayer.heads(), subject.source_labels
    chosen = subject.choice.head or (1,)
    if len(chosen) * len(labels) ** 2 * 16 > _MAX_NUMBERS:
        raise ConfigError(
            f"The arithmetic of {len(chosen)} heads and {len(labels)} tokens is too long to draw.",
            fix="Choose one with `head`, or pass a shorter sentence.",
        )
    for head in chosen:
        steps = [
            Step(f"query of {label}", _query(labels, place, heads, head - 1))
            for place, label in enumerate(labels)
        ]
        yield Steps(f"Encoder {name}, head {head}: one query at a time", steps)
    steps = [Step(label, [_sublayer(sublayer, heads, place)]) for place, label in enumerate(labels)]
    yield Steps(f"Encoder {name}: all heads, W^O, add and norm", steps)
    yield _matrices(sublayer, heads)


def _query(labels: Sequence[str], place: int, heads: Heads, head: int) -> list[Figure]:
    """Return the work of one query: a row for each key, and their sum."""
    query, keys, values = heads.query[head, place], heads.key[head], heads.value[head]
    products, scores, weights = (
        x[head, place].tolist() for x in (heads.products, heads.scores, heads.weights)
    )
    rows: list[list[Cell]] = [
        [label, vector_text(key), product, scaled, weight, vector_text(value),
         vector_text(value * weight)]
        for label, key, product, scaled, weight, value
        in zip(labels, keys, products, scores, weights, values, strict=True)
    ]  # fmt: skip
    mixed = vector_text(heads.mixed[head, place])
    rows.append(["sum", "", None, None, sum(weights), "", mixed])
    width, title, dot = len(query), f"Query of {labels[place]}", "q \N{DOT OPERATOR} k"
    head_row = ("key of", "k", dot, f"/ {_ROOT}{width}", "softmax", "v", f"softmax {_TIMES} v")
    pairs = list(zip(query.tolist(), keys[0].tolist(), strict=True))
    terms = " + ".join(f"{a:.3f} {_TIMES} {b:.3f}" for a, b in pairs[:6])
    more, first = f" + ... ({width} terms)" if width > 6 else "", f"{products[0]:.4f}"
    lines = [
        f"q = {vector_text(query)}",
        f"{dot} of {labels[0]} = {terms}{more} = {first}",
        f"{first} / {_ROOT}{width} = {first} / {width**0.5:.4f} = {products[0] / width**0.5:.4f}",
    ]
    return [Text(f"{title}, written out", lines), Table(title, head_row, rows, total=True)]


def _sublayer(sublayer: Sublayer, heads: Heads, place: int) -> Table:
    """Return what becomes of one token: heads side by side, W^O, add and norm."""
    total = sublayer.before + sublayer.added
    stages = {f"head {number}": mixed for number, mixed in enumerate(heads.mixed, 1)} | {
        "all heads side by side": heads.concatenated,
        "times W^O": sublayer.added,
        "residual stream": sublayer.before,
        "their sum": total,
    }
    note = "The norm stands before the sublayer (pre-norm): q, k and v read it."
    if not torch.equal(sublayer.after, total):
        stages["norm of the sum"], note = sublayer.after, ""
    rows = [
        [name, rows.shape[1], float(rows[place].norm()), vector_text(rows[place])]
        for name, rows in stages.items()
    ]
    head = "", "width", "length", "numbers"
    return Table("All heads, W^O, add and norm", head, rows, note=note)


def _matrices(sublayer: Sublayer, heads: Heads) -> Table:
    """Return the same for all tokens at once, with shapes."""
    (tokens, dim), (count, _, width) = sublayer.inputs.shape, heads.query.shape
    module = sublayer.module
    assert isinstance(module, SelfAttention)
    groups, bias = module.num_kv_heads, " + b" if "output.bias" in module.state_dict() else ""
    suffix = ", then norm per head" if len(module.heads) else ""
    suffix += ", then position" if module.positions is not None else ""

    def size(columns: int, copies: int = 0) -> str:
        return f"{copies} of {size(columns)}" if copies else f"{tokens} {_TIMES} {columns}"

    rows = [
        ["X", "what the sublayer reads", size(dim)],
        ["Q", f"X W^Q{bias}{suffix}", size(width, count)],
        ["K", f"X W^K{bias}{suffix}", size(width, groups)],
        ["V", f"X W^V{bias}", size(width, groups)],
        ["scores", f"Q K^T / {_ROOT}{width}", size(tokens, count)],
        ["A", "softmax(scores), by rows", size(tokens, count)],
        ["Z", "A V", size(width, count)],
        ["concat", "Z of all heads side by side", size(count * width)],
        ["output", f"concat W^O{bias}", size(dim)],
    ]
    difference: Tensor = (module.output(heads.concatenated) - sublayer.added).abs().max()
    note = f"Largest difference to the output of the model's own attention: {difference:.1e}."
    if groups < count:
        note += f" {count // groups} queries share each key and value."
    return Table("The same as matrices", ["matrix", "is", "shape"], rows, note=note)
