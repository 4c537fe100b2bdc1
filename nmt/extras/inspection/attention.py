"""The views `attention`, `heads` (statistics of each head) and `alignment` (word links)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nmt.commands.evaluation_set import load_test_sets
from nmt.commands.options import EvaluateOptions
from nmt.errors import DataError
from nmt.extras.inspection.figure import (
    Figure,
    Grid,
    Heatmap,
    Links,
    Matrix,
    Rows,
    Step,
    Steps,
    Table,
    TextFigure,
)
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
def attention(inspected: Inspected) -> Iterator[Figure]:
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
    (mean,) = inspected.model.align(inspected.source, inspected.target)
    title = f"{KINDS['cross']}, mean of the upper half"
    yield _heatmap(inspected, "cross", title, mean.tolist())


def _figures(inspected: Inspected, kind: Kind, title: str, weights: Tensor) -> Iterator[Figure]:
    """Yield one kind of attention: a grid of all heads, then arcs and a heatmap for each layer."""
    heads = inspected.heads
    layers = inspected.layers(len(weights))
    most = min(_MAX_HEADS, _MAX_WEIGHTS // weights[0, 0].numel())
    note = ""
    if len(layers) * len(heads) > most:
        layers = layers[-1:]
        heads = heads[:most]
        note = f"Only layer {layers[0]}, {len(heads)} heads. To see more, set `layer` or `head`."
    if not layers:  # the chosen layer exists only in the stack with more layers
        return
    all_names = layer_names(len(weights))
    names = []
    grid = []
    steps = []
    for layer in layers:
        of_layer = weights[layer - 1]
        rows = {f"head {head}": _rows(of_layer[head - 1], kind) for head in heads}
        shown = rows
        if not inspected.choice.head:
            shown = {"mean of all heads": _rows(of_layer.mean(0), kind)}
        maps = []
        for name, values in shown.items():
            title_of_map = name.capitalize()
            maps.append(_heatmap(inspected, kind, title_of_map, values))
        labelled = maps[0]
        links = Links("Heads as arcs", labelled.rows, labelled.columns, rows)
        names.append(all_names[layer - 1])
        grid.append(list(rows.values()))
        steps.append(Step(names[-1], [links, *maps]))
    columns = [f"head {head}" for head in heads]
    yield Grid(title, names, columns, grid, note=note)
    title = f"{title}, layer by layer"
    yield Steps(title, steps)


def _heatmap(inspected: Inspected, kind: Kind, title: str, values: Matrix) -> Heatmap:
    rows = inspected.target_labels
    columns = inspected.source_labels
    down = _DECODED
    if kind == "encoder":
        rows = columns
        down = "token that reads"
    elif kind == "decoder":
        columns = inspected.read_labels
    return Heatmap(title, values, rows, columns, 0.0, across="token read", down=down)


def _rows(weights: Tensor, kind: Kind) -> Matrix:
    """Convert weights (T, S) to rows of numbers, with None under the causal mask."""
    rows = weights.tolist()
    if kind == "decoder":
        for place, row in enumerate(rows, 1):
            num_masked = len(row) - place
            row[place:] = [None] * num_masked
    return rows


@torch.inference_mode()
def alignment(inspected: Inspected) -> Iterator[Figure]:
    """Alignment.

    Each target token is linked to the source token that gets the most attention when the target
    token is predicted. The attention is the mean over all heads in the upper half of the decoder.
    The links between words are the same as in `nmt translate`. The model was not trained to align,
    so some links are wrong.
    """
    start = int(inspected.config.model.source_bos) + len(inspected.tag_ids)
    (weights,) = inspected.model.align(inspected.source, inspected.target)
    weights = weights[:-1, start:-1]  # no EOS, no BOS, no tag
    source, target = inspected.tokenizers
    source_ids = inspected.source_ids[start:-1]
    source_subwords = labels(source, source_ids)
    target_subwords = labels(target, inspected.target_ids)
    aligned = align_words(weights.tolist(), source_subwords, target_subwords)
    note = "Each pair is source-target. Words are numbered from 0."
    pharaoh = as_pharaoh(aligned.links)
    yield TextFigure("Pharaoh format", [pharaoh], note=note)
    source_words = _words(source, source_ids)
    target_words = _words(target, inspected.target_ids)
    title = "Alignment of words"
    links = torch.zeros(aligned.source_words, len(target_words))
    for i, j in aligned.links:
        links[i, j] = 1
    yield Links(title, source_words, target_words, {"link": links.tolist()})
    yield _attention_of("words", aligned.weights, source_words, target_words)
    title = "Alignment of subwords"
    strongest = weights.amax(1, keepdim=True)
    links = (weights == strongest).T.float()
    yield Links(title, source_subwords, target_subwords, {"link": links.tolist()})
    yield _attention_of("subwords", weights.tolist(), source_subwords, target_subwords)


def _attention_of(
    unit: str, values: Matrix, source: Sequence[str], target: Sequence[str]
) -> Heatmap:
    title = f"Attention of {unit}"
    return Heatmap(title, values, target, source, 0.0, across="source", down="target")


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Join the tokens of each word. Word borders are those of `nmt.inference.request.words_of`."""
    words: dict[int, list[int]] = {}
    numbers = words_of(labels(tokenizer, ids))
    for word, index in zip(numbers, ids, strict=True):
        words.setdefault(word, []).append(index)
    return [tokenizer.decode(of_word) for of_word in words.values()]


def heads(inspected: Inspected) -> Iterator[Figure]:
    """Heads.

    The tables show where each head looks, as shares of its attention: at the previous token, at the
    token itself, at the end of the source (BOS in the decoder), and at tokens at most one place
    from the diagonal. The shares are means over a test set. The last column shows how important a
    head is: the log probability that the reference translations lose if the output of the head is
    set to 0. Heads that matter little alone can matter together.
    """
    name, pairs = _test_pairs(inspected)
    shares = look_shares(inspected.model, pairs)
    losses = head_losses(inspected.model, pairs)
    note = f"Loss in nats per target token. Sentence pairs of the set {name}: {len(pairs):,}."
    columns = ["head", *_NAMES, "main role", "loss without head"]
    for kind, title in KINDS.items():
        rows: Rows = []
        layers = layer_names(len(losses[kind]))
        for layer, of_heads in enumerate(losses[kind]):
            for head, loss in enumerate(of_heads):
                look = shares[kind][layer, head].tolist()
                if kind == "cross":
                    # Positions of source and target do not correspond, except at the ends.
                    look[:2] = [None, None]
                name_of_head = f"{layers[layer]}, head {head + 1}"
                rows.append([name_of_head, *look, _role(look), loss])
        yield Table(title, columns, rows, note=note)


@torch.inference_mode()
def look_shares(model: Transformer, pairs: Pairs) -> dict[Kind, Tensor]:
    """Return, by kind of attention, the four shares in the order of `_NAMES`. (layers, H, 4)."""
    sums = {kind: torch.zeros(()) for kind in KINDS}
    counts: Counter[Kind] = Counter()
    for source, target in pairs:
        read_ids = [*source, EOS_ID]
        read = source_of(model, Packed.from_rows([read_ids]))
        written_ids = [BOS_ID, *target]
        written = Packed.from_rows([written_ids])
        recording = record(model, read, written)
        for kind in KINDS:
            weights = recording.weights(kind)
            num_rows, num_columns = weights.shape[2:]
            near = off_diagonal(num_rows, num_columns) <= _NEAR
            end = -1
            if kind == "decoder":
                end = 0
            looks = [
                weights.diagonal(-1, 2, 3).sum(-1),
                weights.diagonal(0, 2, 3).sum(-1),
                weights[..., end].sum(-1),
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
    engine = TorchEngine(model)
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs]

    def log_prob() -> float:
        log_probs = engine.token_log_probs(sources, targets)
        total = sum(map(sum, log_probs))
        return total / sum(map(len, log_probs))

    def losses_of(module: Attention) -> list[float]:
        losses = []
        for head in range(1, module.num_heads + 1):
            with without_head(module, head):
                losses.append(whole - log_prob())
        return losses

    whole = log_prob()
    losses = {}
    for kind in KINDS:
        layers = model.decoder
        name = "self_attention"
        if kind == "encoder":
            layers = model.encoder
        elif kind == "cross":
            name = "cross_attention"
        losses[kind] = [losses_of(getattr(layer, name)) for layer in layers]
    return losses


def _role(shares: Sequence[float | None]) -> str:
    """Return the name of the share that dominates, or an empty string. The diagonal is last."""
    *single, diagonal = [share or 0.0 for share in shares]
    largest = max(single)
    if largest >= _MOSTLY:
        return _NAMES[single.index(largest)]
    if diagonal >= _MOSTLY:
        return _NAMES[-1]
    return ""


def _test_pairs(inspected: Inspected) -> tuple[str, Pairs]:
    """Return the name and the first pairs of the chosen test set.

    The default is the first test set or, without test sets, the validation set.

    Raises:
        ConfigError: No test set has this name.
        DataError: The set cannot be read, or all its sentences are too long.
    """
    source, target = inspected.tokenizers
    name = inspected.choice.test
    if name is None:
        name = next(iter(inspected.sets.tests), "valid")
    options = EvaluateOptions(test=(name,))
    (test,) = load_test_sets(options, inspected.sets)
    tag = inspected.choice.tag
    if tag is None:
        tag = test.tag
    first = []
    if tag is not None:
        first = [source.tag_id(tag)]
    most = min(MAX_TOKENS, inspected.config.max_length)
    pairs = []
    sources = source.encode_batch(test.source or ())
    targets = target.encode_batch(test.references[0])
    for source_ids, target_ids in zip(sources, targets, strict=True):
        if not source_ids or not target_ids:
            continue
        pair = ([*first, *source_ids], target_ids)
        if max(map(len, pair)) <= most:
            pairs.append(pair)
    if not pairs:
        problem = f"{name} does not contain a sentence pair of at most {most} tokens."
        fix = "Choose another test set with `test`, or raise filters.max_length."
        raise DataError(problem, fix=fix)
    return name, pairs[: inspected.choice.limit]
