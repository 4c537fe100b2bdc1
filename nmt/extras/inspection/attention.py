"""The views `attention`, `heads` (statistics of each head) and `alignment` (word links)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

import torch
from torch import Tensor

from nmt.commands.evaluation_set import load_test_sets
from nmt.commands.options import EvaluateOptions
from nmt.errors import DataError
from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.inspected import MAX_TOKENS, Inspected, labels
from nmt.extras.inspection.sublayers import (
    KINDS,
    Attention,
    Kind,
    layer_names,
    off_diagonal,
    record,
    without_head,
)
from nmt.inference.request import align_words, as_pharaoh, words_of
from nmt.inference.stepper import source_of
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from nmt.text.tokenizer import Tokenizer

# Source and target ids, without BOS and EOS.
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
_NEAR = 1.0  # Largest distance from the diagonal, in tokens, that counts as diagonal.
_MOSTLY = 0.5  # Share of attention from which a head has a main role.
_NAMES = ("previous token", "itself", "end", "diagonal")
_DECODED = "token read \N{RIGHTWARDS ARROW} token predicted"
_MAX_HEADS = 64  # Heads in one grid.
_MAX_WEIGHTS = 100_000  # Weights per kind of attention: keeps a page below a few megabytes.


@torch.inference_mode()
def attention(inspected: Inspected) -> Iterator[fig.Figure]:
    """Attention.

    Each token distributes attention over the tokens that it may read. The weights are the result of
    a softmax: in a heatmap, the numbers of a row sum to 1. A row of the decoder is labelled with
    the token that is read and the token that is predicted next. Decoder self-attention is masked: a
    token cannot read later tokens. The last heatmap is the mean over all heads in the upper half of
    the decoder, from which `nmt translate` computes word alignments.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    for kind, title in KINDS.items():
        yield from _figures(inspected, kind, title, recording.weights(kind))
    mean = inspected.model.align(inspected.source, inspected.target)[0].tolist()
    yield _heatmap(inspected, "cross", f"{KINDS['cross']}, mean of the upper half", mean)


def _figures(inspected: Inspected, kind: Kind, title: str, weights: Tensor) -> Iterator[fig.Figure]:
    """Yield one kind of attention: a grid of all heads, then arcs and a heatmap for each layer."""
    num_layers, heads, note = len(weights), inspected.heads, ""
    num_cells = weights[0, 0].numel()
    layers, most = inspected.layers(num_layers), min(_MAX_HEADS, _MAX_WEIGHTS // num_cells)
    if len(layers) * len(heads) > most:
        layers, heads = layers[-1:], heads[:most]
        note = f"Only layer {layers[0]}, {len(heads)} heads. To see more, set `layer` or `head`."
    if not layers:  # the chosen layer exists only in the stack with more layers
        return
    names, grid, steps = [layer_names(num_layers)[layer - 1] for layer in layers], [], []
    for name, layer in zip(names, layers, strict=True):
        of_heads = {f"head {head}": _rows(weights[layer - 1, head - 1], kind) for head in heads}
        grid.append(list(of_heads.values()))
        of_maps = of_heads
        if not inspected.choice.head:
            of_maps = {"mean of all heads": _rows(weights[layer - 1].mean(0), kind)}
        maps = [_heatmap(inspected, kind, k.capitalize(), x) for k, x in of_maps.items()]
        links = fig.Links("Heads as arcs", maps[0].rows, maps[0].columns, of_heads)
        steps.append(fig.Step(name, [links, *maps]))
    yield fig.Grid(title, names, [f"head {head}" for head in heads], grid, note=note)
    yield fig.Steps(f"{title}, layer by layer", steps)


def _heatmap(inspected: Inspected, kind: Kind, title: str, values: fig.Matrix) -> fig.Heatmap:
    rows = inspected.source_labels if kind == "encoder" else inspected.target_labels
    columns = inspected.read_labels if kind == "decoder" else inspected.source_labels
    down = "token that reads" if kind == "encoder" else _DECODED
    return fig.Heatmap(title, values, rows, columns, 0.0, across="token read", down=down)


def _rows(weights: Tensor, kind: Kind) -> fig.Matrix:
    """Convert weights (T, S) to rows of numbers, with None under the causal mask."""
    rows = weights.tolist()
    if kind != "decoder":
        return rows
    return [[*row[:end], *[None] * (len(row) - end)] for end, row in enumerate(rows, 1)]


@torch.inference_mode()
def alignment(inspected: Inspected) -> Iterator[fig.Figure]:
    """Alignment.

    Each target token is linked to the source token that gets the most attention when the target
    token is predicted. The attention is the mean over all heads in the upper half of the decoder.
    The links between words are the same as in `nmt translate`. The model was not trained to align,
    so some links are wrong.
    """
    start = int(inspected.config.model.source_bos) + len(inspected.tag_ids)
    weights = inspected.model.align(inspected.source, inspected.target)[0]
    rows = weights[:-1, start:-1].tolist()  # no EOS, no BOS, no tag
    source, target = inspected.tokenizers
    sides = (source, inspected.source_ids[start:-1]), (target, inspected.target_ids)
    subwords, words = [labels(*side) for side in sides], [_words(*side) for side in sides]
    aligned = align_words(rows, *subwords)
    note = "Each pair is source-target. Words are numbered from 0."
    yield fig.Text("Pharaoh format", [as_pharaoh(aligned.links)], note=note)
    lefts, rights = range(aligned.source_words), range(len(words[1]))
    word_links = [[float((i, j) in aligned.links) for j in rights] for i in lefts]
    subword_links = [[float(row[i] == max(row)) for row in rows] for i in range(len(subwords[0]))]
    for unit, (left, right), matrix, links in (
        ("words", words, aligned.weights, word_links),
        ("subwords", subwords, rows, subword_links),
    ):
        yield fig.Links(f"Alignment of {unit}", left, right, {"link": links})
        title = f"Attention of {unit}"
        yield fig.Heatmap(title, matrix, right, left, 0.0, across="source", down="target")


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Join the tokens of each word. Word borders are those of `nmt.inference.request.words_of`."""
    numbered = zip(words_of(labels(tokenizer, ids)), ids, strict=True)
    groups = groupby(numbered, key=lambda each: each[0])
    return [tokenizer.decode([index for _, index in group]) for _, group in groups]


def heads(inspected: Inspected) -> Iterator[fig.Figure]:
    """Heads.

    The tables show where each head looks, as shares of its attention: at the previous token, at the
    token itself, at the end of the source (BOS in the decoder), and at tokens at most one place
    from the diagonal. The shares are means over a test set. The last column shows how important a
    head is: the log probability that the reference translations lose if the output of the head is
    set to 0. Heads that matter little alone can matter together.
    """
    name, pairs = _test_pairs(inspected)
    looks, losses = look_shares(inspected.model, pairs), head_losses(inspected.model, pairs)
    for kind, title in KINDS.items():
        rows: list[list[fig.Cell]] = []
        for layer, *of_layer in zip(
            layer_names(len(losses[kind])), looks[kind].tolist(), losses[kind], strict=True
        ):
            for head, (shares, loss) in enumerate(zip(*of_layer, strict=True), 1):
                # Positions of source and target do not correspond, except at the ends.
                known = [None, None, *shares[2:]] if kind == "cross" else shares
                rows.append([f"{layer}, head {head}", *known, _role(known), loss])
        note = f"Loss in nats per target token. Sentence pairs of the set {name}: {len(pairs):,}."
        yield fig.Table(title, ["head", *_NAMES, "main role", "loss without head"], rows, note=note)


@torch.inference_mode()
def look_shares(model: Transformer, pairs: Pairs) -> dict[Kind, Tensor]:
    """Return, by kind of attention, the four shares in the order of `_NAMES`. (layers, H, 4)."""
    sums = {kind: torch.zeros(()) for kind in KINDS}
    counts: Counter[Kind] = Counter()
    for source, target in pairs:
        read = source_of(model, Packed.from_rows([[*source, EOS_ID]]))
        recording = record(model, read, Packed.from_rows([[BOS_ID, *target]]))
        for kind in KINDS:
            weights = recording.weights(kind)
            num_rows, num_columns = weights.shape[2:]
            near = off_diagonal(num_rows, num_columns) <= _NEAR
            looks = [
                weights.diagonal(-1, 2, 3).sum(-1),
                weights.diagonal(0, 2, 3).sum(-1),
                weights[..., 0 if kind == "decoder" else -1].sum(-1),
                (weights * near).sum((2, 3)),
            ]
            sums[kind] = sums[kind] + torch.stack(looks, -1)
            counts[kind] += num_rows
    return {kind: total / counts[kind] for kind, total in sums.items()}


def head_losses(model: Transformer, pairs: Pairs) -> dict[Kind, list[list[float]]]:
    """Return how much log probability the references lose without each head.

    By kind of attention, then layer, then head; in nats per target token, with EOS. A loss is
    negative if the model is better without the head.
    """
    engine, (sources, targets) = TorchEngine(model), zip(*pairs, strict=True)

    def log_prob() -> float:
        log_probs = engine.token_log_probs(sources, targets)
        return sum(map(sum, log_probs)) / sum(map(len, log_probs))

    def loss_without(module: Attention, head: int) -> float:
        with without_head(module, head):
            return whole - log_prob()

    whole, losses = log_prob(), {}
    for kind in KINDS:
        name = "cross_attention" if kind == "cross" else "self_attention"
        layers = model.encoder if kind == "encoder" else model.decoder
        modules: list[Attention] = [getattr(layer, name) for layer in layers]
        losses[kind] = [[loss_without(x, 1 + n) for n in range(x.num_heads)] for x in modules]
    return losses


def _role(shares: Sequence[float | None]) -> str:
    """Return the name of the share that dominates, or an empty string. The diagonal is last."""
    *single, diagonal = [share or 0.0 for share in shares]
    if max(single) >= _MOSTLY:
        return _NAMES[single.index(max(single))]
    return _NAMES[-1] if diagonal >= _MOSTLY else ""


def _test_pairs(inspected: Inspected) -> tuple[str, Pairs]:
    """Return the name and the first pairs of the chosen test set.

    The default is the first test set or, without test sets, the validation set.

    Raises:
        ConfigError: No test set has this name.
        DataError: The set cannot be read, or all its sentences are too long.
    """
    sides = inspected.tokenizers
    name = inspected.choice.test or next(iter(inspected.sets.tests), "valid")
    (test,) = load_test_sets(EvaluateOptions(test=(name,)), inspected.sets)
    tag = test.tag if inspected.choice.tag is None else inspected.choice.tag
    first = [] if tag is None else [sides.source.tag_id(tag)]
    most = min(MAX_TOKENS, inspected.config.max_length)
    sources = sides.source.encode_batch(test.source or ())
    targets = sides.target.encode_batch(test.references[0])
    pairs = (([*first, *x], y) for x, y in zip(sources, targets, strict=True) if x and y)
    short = (pair for pair in pairs if max(map(len, pair)) <= most)
    if chosen := list(islice(short, inspected.choice.limit)):
        return name, chosen
    fix = "Choose another test set with `test`, or raise filters.max_length."
    raise DataError(f"{name} does not contain a sentence pair of at most {most} tokens.", fix=fix)
