"""``nmt inspect MODEL score``: the arithmetic of attention, number by number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.errors import ConfigError
from nmt.extras.inspection.attention import layer_name
from nmt.extras.inspection.figure import Cell, Figure, Part, Step, Steps, Table, Text
from nmt.extras.inspection.recording import Heads, Sublayer, record
from nmt.extras.inspection.subject import Subject
from nmt.model.layers import SelfAttention

_SHOWN = 6  # Numbers of a vector that are written out.
_MAX_NUMBERS = 100_000
_EXPLANATION = """\
The product of a token's query q and every key k, divided by the square root of the head's width, \
is the score; softmax makes weights of scores; a head's output is the sum of the values v times \
their weights. All heads' outputs, side by side, times W^O are added to the residual stream."""


@torch.inference_mode()
def score(subject: Subject) -> Part:
    """Each query of one layer of the encoder, then the same for all queries as matrices."""
    recording = record(subject.model, subject.source, subject.target)
    layers = recording.attention("encoder")
    layer = max(subject.layers(len(layers)), default=len(layers))
    sublayer, name = layers[layer - 1], layer_name(layer, len(layers))
    heads, labels = sublayer.heads(), subject.source_labels
    chosen = subject.heads if subject.choice.head else [1]
    if len(chosen) * len(labels) ** 2 * (2 * _SHOWN + 4) > _MAX_NUMBERS:
        raise ConfigError(
            f"The arithmetic of {len(chosen)} heads and {len(labels)} tokens is too long to draw.",
            fix="Choose one with `head`, or pass a shorter sentence.",
        )
    figures: list[Figure] = [
        Steps(
            f"Encoder {name}, head {head}: one query at a time",
            [Step(f"query of {label}", _query(labels, place, heads, head - 1))
             for place, label in enumerate(labels)],
        )
        for head in chosen
    ]  # fmt: skip
    steps = [Step(label, [_sublayer(sublayer, heads, place)]) for place, label in enumerate(labels)]
    figures.append(Steps(f"Encoder {name}: all heads, W^O, add and norm", steps))
    figures.append(_matrices(sublayer, heads))
    return Part("score", "The arithmetic of attention", _EXPLANATION, figures)


def _query(labels: Sequence[str], place: int, heads: Heads, head: int) -> list[Figure]:
    """Return the work of one query: a row for each key, and their sum."""
    query, keys, values = heads.query[head, place], heads.key[head], heads.value[head]
    products, scores, weights = (
        x[head, place].tolist() for x in (heads.products, heads.scores, heads.weights)
    )
    width, root, title = len(query), f"\N{SQUARE ROOT}{len(query)}", f"Query of {labels[place]}"
    work = zip(labels, keys, products, scores, weights, values, strict=True)
    rows: list[list[Cell]] = [
        [label, _vector(key), product, scaled, weight, _vector(value), _vector(value * weight)]
        for label, key, product, scaled, weight, value in work
    ]
    rows.append(["sum", "", None, None, sum(weights), "", _vector(heads.mixed[head, place])])
    names = ["key of", "k", "q \N{DOT OPERATOR} k", f"/ {root}", "softmax", "v"]
    pairs = zip(query[:_SHOWN], keys[0], strict=False)
    terms = " + ".join(f"{a:.3f} \N{MULTIPLICATION SIGN} {b:.3f}" for a, b in pairs)
    more, first = f" + ... ({width} terms)" if width > _SHOWN else "", f"{products[0]:.4f}"
    lines = [
        f"q = {_vector(query)}",
        f"q \N{DOT OPERATOR} k of {labels[0]} = {terms}{more} = {first}",
        f"{first} / {root} = {first} / {width**0.5:.4f} = {products[0] / width**0.5:.4f}",
    ]
    table = Table(title, [*names, "softmax \N{MULTIPLICATION SIGN} v"], rows, _note(width), True)
    return [Text(f"{title}, written out", lines), table]


def _sublayer(sublayer: Sublayer, heads: Heads, place: int) -> Table:
    """Return what becomes of one token: heads side by side, W^O, add and norm."""
    stages = {f"head {number}": mixed[place] for number, mixed in enumerate(heads.mixed, 1)} | {
        "all heads side by side": heads.concatenated[place],
        "times W^O": sublayer.added[place],
        "residual stream": sublayer.before[place],
        "their sum": sublayer.before[place] + sublayer.added[place],
    }
    is_post = not torch.equal(sublayer.after, sublayer.before + sublayer.added)
    if is_post:
        stages["norm of the sum"] = sublayer.after[place]
    rows: list[list[Cell]] = [[name, len(vector), float(vector.norm()), _vector(vector)]
            for name, vector in stages.items()]  # fmt: skip
    note = "" if is_post else "The norm stands before the sublayer (pre-norm): q, k and v read it. "
    head = ["", "width", "length", "numbers"]
    return Table("All heads, W^O, add and norm", head, rows, note + _note(len(stages["their sum"])))


def _matrices(sublayer: Sublayer, heads: Heads) -> Table:
    """Return the same for all tokens at once, with shapes."""
    tokens, dim = sublayer.inputs.shape
    count, width = len(heads.query), heads.query.shape[2]
    module = sublayer.module
    assert isinstance(module, SelfAttention)
    groups = module.num_kv_heads
    bias = " + b" if "output.bias" in module.state_dict() else ""
    suffix = ", then norm per head" if len(module.heads) else ""
    suffix += ", then position" if module.positions is not None else ""
    of_heads, of_groups = (
        f"{count} of {_shape(tokens, width)}",
        f"{groups} of {_shape(tokens, width)}",
    )
    square = f"{count} of {_shape(tokens, tokens)}"
    rows = [
        ["X", "what the sublayer reads", _shape(tokens, dim)],
        ["Q", f"X W^Q{bias}{suffix}", of_heads],
        ["K", f"X W^K{bias}{suffix}", of_groups],
        ["V", f"X W^V{bias}", of_groups],
        ["scores", f"Q K^T / \N{SQUARE ROOT}{width}", square],
        ["A", "softmax(scores), by rows", square],
        ["Z", "A V", of_heads],
        ["concat", "Z of all heads side by side", _shape(tokens, count * width)],
        ["output", f"concat W^O{bias}", _shape(tokens, dim)],
    ]
    again = module.output(heads.concatenated)
    difference = float((again - sublayer.added).abs().max())
    note = f"Largest difference to the output of the model's own attention: {difference:.1e}."
    if groups < count:
        note += f" {count // groups} queries share each key and value."
    return Table("The same as matrices", ["matrix", "is", "shape"], rows, note)


def _vector(values: Tensor) -> str:
    shown = " ".join(f"{value:.3f}" for value in values[:_SHOWN].tolist())
    return f"[{shown}{' ...' if len(values) > _SHOWN else ''}]"


def _note(width: int) -> str:
    return f"The first {_SHOWN} of {width} numbers of a vector." if width > _SHOWN else ""


def _shape(rows: int, columns: int) -> str:
    return f"{rows} \N{MULTIPLICATION SIGN} {columns}"
