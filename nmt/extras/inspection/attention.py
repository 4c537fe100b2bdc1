"""The views `attention`, `heads` (statistics of each head) and `alignment` (word links)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from nmt.commands.evaluation_set import load_test_sets
from nmt.commands.options import EvaluateOptions
from nmt.errors import DataError
from nmt.extras.inspection.figure import (
    Bars,
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
    flat,
)
from nmt.extras.inspection.inspected import DECODED, MAX_TOKENS, Inspected, labels
from nmt.extras.inspection.prediction import usable_log_probs
from nmt.extras.inspection.sublayers import (
    KINDS,
    Attention,
    Kind,
    layer_names,
    off_diagonal,
    record,
    without_head,
)
from nmt.inference.confidence import read_confidence
from nmt.inference.request import Result, align_words, as_pharaoh, words_of
from nmt.inference.stepper import source_of
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from nmt.text.tokenizer import Tokenizer

# Source and target ids, without BOS and EOS.
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
_MAX_DISTANCE = 1.0  # Largest distance from the diagonal, in tokens, that counts as diagonal.
_MIN_MAIN_SHARE = 0.5  # Share of attention from which a head has a main role.
# What the four shares of `look_shares` are shares of. The first three are single tokens.
_SHARE_NAMES = ("previous token", "itself", "end", "diagonal")
_MAX_HEADS = 64  # Heads in one grid.
_MAX_WEIGHTS = 100_000  # Weights per kind of attention: keeps a page below a few megabytes.


@torch.no_grad()
def attention(inspected: Inspected) -> Iterator[Figure]:
    """Attention.

    A token is a subword, or the beginning (BOS) or end (EOS) of the sentence. A subword that begins
    with \N{LOWER ONE EIGHTH BLOCK} follows a space. Each token distributes attention over the
    tokens that it may read. The weights are the result of a softmax: in a heatmap, the numbers of a
    row sum to 1. All pictures of attention have the same colours: 0 is pale, 1 is strong. A row of
    the decoder is labelled with the token that is read and the token that is predicted next.
    Decoder self-attention is masked: a token cannot read later tokens. The last heatmap is the mean
    over all heads in the upper half of the decoder, from which the word alignment is computed.
    """
    recording = record(inspected.model, inspected.source, inspected.target)
    for kind, title in KINDS.items():
        yield from _figures(inspected, kind, title, recording.weights(kind))
    (mean_weights,) = inspected.model.align(inspected.source, inspected.target)
    title = f"{KINDS['cross']}, mean of the upper half"
    yield _heatmap(inspected, "cross", title, mean_weights.tolist())


def _figures(inspected: Inspected, kind: Kind, title: str, weights: Tensor) -> Iterator[Figure]:
    """Yield one kind of attention: a grid of all heads, then arcs and a heatmap for each layer.

    Nothing is yielded if the stack has no layer with the chosen number.

    Args:
        inspected: The model and the sentence.
        kind: Kind of attention.
        title: Title of the kind.
        weights: Attention of all layers: (layers, H, T, S).
    """
    heads = inspected.heads
    layers = inspected.layers(len(weights))
    max_heads = min(_MAX_HEADS, _MAX_WEIGHTS // weights[0, 0].numel())  # in all layers together
    note = ""
    if len(layers) * len(heads) > max_heads:
        layers = layers[-1:]
        heads = heads[:max_heads]
        note = f"Only layer {layers[0]}, {len(heads)} heads. To see more, set `layer` or `head`."
    if not layers:  # the chosen layer exists only in the stack with more layers
        return
    all_names = layer_names(len(weights))
    names = []  # of the chosen layers
    grid = []  # for each chosen layer, a matrix for each chosen head
    steps = []
    for layer in layers:
        layer_weights = weights[layer - 1]  # (H, T, S)
        matrices = {f"head {head}": _rows(layer_weights[head - 1], kind) for head in heads}
        heatmap_matrices = matrices
        if not inspected.choice.head:
            heatmap_matrices = {"mean of all heads": _rows(layer_weights.mean(0), kind)}
        heatmaps = []
        for name, matrix in heatmap_matrices.items():
            heatmap_title = name.capitalize()
            heatmaps.append(_heatmap(inspected, kind, heatmap_title, matrix))
        # All heatmaps have the same labels. The arcs get them, too.
        labelled = heatmaps[0]
        links = Links("Heads as arcs", labelled.rows, labelled.columns, matrices)
        names.append(all_names[layer - 1])
        grid.append(list(matrices.values()))
        steps.append(Step(names[-1], [links, *heatmaps]))
    columns = [f"head {head}" for head in heads]
    yield Grid(title, names, columns, grid, note=note)
    yield Steps(f"{title}, layer by layer", steps)


def _heatmap(inspected: Inspected, kind: Kind, title: str, values: Matrix) -> Heatmap:
    """Return weights (T, S) with the labels that tokens have in this kind of attention."""
    rows = inspected.target_labels
    columns = inspected.source_labels
    down = DECODED
    if kind == "encoder":
        rows = columns
        down = "token that reads"
    elif kind == "decoder":
        columns = inspected.read_labels
    return Heatmap(title, values, rows, columns, 0.0, 1.0, across="token read", down=down)


def _rows(weights: Tensor, kind: Kind) -> Matrix:
    """Convert weights (T, S) to rows of numbers, with None under the causal mask."""
    rows = weights.tolist()
    if kind == "decoder":
        # The token of the first row reads only itself, the next also the token before it, ...
        for num_readable, row in enumerate(rows, 1):
            num_masked = len(row) - num_readable
            row[num_readable:] = [None] * num_masked
    return rows


@torch.no_grad()
def alignment(inspected: Inspected) -> Iterator[Figure]:
    """Translation.

    Cross-attention weights say how much each word of the source contributes to a word of the
    translation. The weight of a source word is the attention to all its subwords, averaged over the
    subwords of the target word and over all heads in the upper half of the decoder. A line links
    each target word to the source word with the largest weight, the strongest cell of its row. The
    rest of a row, up to 1, is attention to tokens that are not words, such as EOS, the end of the
    sentence. `nmt translate` returns the same links. The model was not trained to align, so some
    links are wrong. The probability of a word is the product of the probabilities of its subwords.
    """
    # BOS and tag, which come before the source sentence.
    num_added = int(inspected.config.model.source_bos) + len(inspected.tag_ids)
    (weights,) = inspected.model.align(inspected.source, inspected.target)
    weights = weights[:-1, num_added:-1]  # (T, S), without EOS, BOS and tag
    source_tokenizer, target_tokenizer = inspected.tokenizers
    source_ids = inspected.source_ids[num_added:-1]
    source_subwords = labels(source_tokenizer, source_ids)
    target_subwords = labels(target_tokenizer, inspected.target_ids)
    aligned = align_words(weights.tolist(), source_subwords, target_subwords)
    source_words = _words(source_tokenizer, source_ids)
    target_words = _words(target_tokenizer, inspected.target_ids)
    # A drawing of links takes a matrix (source, target): 1 for a link, 0 for none.
    word_links = torch.zeros(aligned.source_words, len(target_words))
    for i, j in aligned.links:
        word_links[i, j] = 1
    links = {"link": word_links.tolist()}
    yield Links("Alignment of words", source_words, target_words, links)
    yield _probabilities(inspected, [*target_words, "EOS"])
    title = "Attention of words"
    yield Heatmap(
        title, aligned.weights, target_words, source_words, 0.0, 1.0, across="source", down="target"
    )
    note = "The links above as source-target. Words are numbered from 0."
    pharaoh = as_pharaoh(aligned.links)
    yield TextFigure("Pharaoh format", [pharaoh], note=note)


def _probabilities(inspected: Inspected, words: Sequence[str]) -> Bars:
    """Return the probability of each target word and of EOS, with the confidence in the note."""
    gold = [*inspected.target_ids, EOS_ID]
    hidden = inspected.model(inspected.source, inspected.target)
    logits = inspected.model.logits(hidden).cpu()
    all_log_probs = usable_log_probs(logits, torch.tensor(gold))  # (T, V)
    log_probs = all_log_probs[range(len(gold)), gold]
    word_indices = words_of(labels(inspected.tokenizers.target, inspected.target_ids))
    indices = torch.tensor([*word_indices, len(words) - 1])  # EOS is the last word
    word_log_probs = torch.zeros(len(words)).index_add(0, indices, log_probs)
    probs = word_log_probs.exp().tolist()
    series = {"probability": probs}
    return Bars("Probability of words", words, series, 1.0, note=_confidence(inspected))


def _confidence(inspected: Inspected) -> str:
    """Return the confidence of the translation as a sentence; empty if there is none.

    A target of the user has none.
    """
    model = read_confidence(inspected.place)
    if model is None or inspected.choice.target is not None:
        return ""
    best = inspected.translation
    text = inspected.tokenizers.target.decode(best.ids)
    num_tokens = len(best.ids) + 1
    source = inspected.choice.source or ""
    unrated = Result(source, text, 0.0, log_prob=best.log_prob, num_tokens=num_tokens)
    result = model.rate(unrated)
    if result.confidence is None:
        return f"No confidence: this sentence is unlike the validation set ({result.unrated})."
    return f"Confidence: {result.confidence:.1f}. It is the expected chrF, from 0 to 100 (best)."


def _words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Join the tokens of each word. Word borders are those of `nmt.inference.request.words_of`."""
    ids_of_words = dict[int, list[int]]()  # index of a word -> its ids
    word_indices = words_of(labels(tokenizer, ids))
    for word_index, token_id in zip(word_indices, ids, strict=True):
        ids_of_words.setdefault(word_index, []).append(token_id)
    return [tokenizer.decode(word_ids) for word_ids in ids_of_words.values()]


def heads(inspected: Inspected) -> Iterator[Figure]:
    """Heads.

    The tables show where each head looks, as shares of its attention: at the previous token, at the
    token itself, at the end of the source (BOS in the decoder), and at tokens at most one place
    from the diagonal. The shares are means over a test set. The last column shows how important a
    head is: the log probability that the reference translations lose if the output of the head is
    set to 0. Heads that matter little alone can matter together.
    """
    set_name, pairs = _test_pairs(inspected)
    all_shares = look_shares(inspected.model, pairs)
    all_losses = head_losses(inspected.model, pairs)
    note = f"Loss in nats per target token. Sentence pairs of the set {set_name}: {len(pairs):,}."
    # One scale: the largest gain or loss of all heads.
    largest = max(map(abs, flat(list(chain.from_iterable(all_losses.values())))))
    for kind, title in KINDS.items():
        names = layer_names(len(all_losses[kind]))
        head_names = [f"head {number}" for number in inspected.heads]
        title = f"{title}: loss without a head"
        yield Heatmap(title, all_losses[kind], names, head_names, -largest, largest, note=note)
    columns = ["head", *_SHARE_NAMES, "main role", "loss without head"]
    for kind, title in KINDS.items():
        rows: Rows = []
        names = layer_names(len(all_losses[kind]))
        for layer, layer_losses in enumerate(all_losses[kind]):
            for head, loss in enumerate(layer_losses):
                shares = all_shares[kind][layer, head].tolist()
                if kind == "cross":
                    # Positions of source and target do not correspond, except at the ends: there is
                    # no previous token, and no token itself.
                    shares[:2] = [None, None]
                head_name = f"{names[layer]}, head {head + 1}"
                rows.append([head_name, *shares, _role(shares), loss])
        yield Table(title, columns, rows, note=note)


@torch.inference_mode()
def look_shares(model: Transformer, pairs: Pairs) -> dict[Kind, Tensor]:
    """Return by kind of attention how much of it goes where: four shares, as in `_SHARE_NAMES`.

    Means over the tokens of all pairs. (layers, H, 4).
    """
    device = model.output_weight.device
    sums = {kind: torch.zeros(()) for kind in KINDS}  # becomes (layers, H, 4)
    num_tokens = Counter[Kind]()
    for source, target in pairs:
        encoder_ids = [*source, EOS_ID]
        encoder_input = source_of(model, Packed.from_rows([encoder_ids], device))
        decoder_ids = [BOS_ID, *target]
        decoder_input = Packed.from_rows([decoder_ids], device)
        recording = record(model, encoder_input, decoder_input)
        for kind in KINDS:
            weights = recording.weights(kind)  # (layers, H, T, S)
            num_rows, num_columns = weights.shape[2:]
            is_near = off_diagonal(num_rows, num_columns) <= _MAX_DISTANCE
            end = -1  # column of EOS
            if kind == "decoder":
                end = 0  # column of BOS
            row_sums = [
                weights.diagonal(-1, 2, 3).sum(-1),  # the previous token is left of the diagonal
                weights.diagonal(0, 2, 3).sum(-1),
                weights[..., end].sum(-1),
                (weights * is_near).sum((2, 3)),
            ]
            sums[kind] = sums[kind] + torch.stack(row_sums, -1)
            num_tokens[kind] += num_rows
    return {kind: total / num_tokens[kind] for kind, total in sums.items()}


def head_losses(model: Transformer, pairs: Pairs) -> dict[Kind, list[list[float]]]:
    """Return how much log probability the references lose without each head.

    By kind of attention, then layer, then head; in nats per target token, with EOS. A loss is
    negative if the model is better without the head.
    """
    engine = TorchEngine(model)
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs]

    def mean_log_prob() -> float:
        """Return the log probability per token of the model with its present hooks."""
        log_probs = engine.token_log_probs(sources, targets)  # a list for each sentence
        total = sum(map(sum, log_probs))
        return total / sum(map(len, log_probs))

    baseline = mean_log_prob()  # with all heads
    losses = dict[Kind, list[list[float]]]()
    for kind in KINDS:
        layers = model.encoder if kind == "encoder" else model.decoder
        name = "cross_attention" if kind == "cross" else "self_attention"
        losses[kind] = []
        for layer in layers:
            module: Attention = getattr(layer, name)
            losses_of_layer = []
            for head in range(1, module.num_heads + 1):
                with without_head(module, head):
                    losses_of_layer.append(baseline - mean_log_prob())
            losses[kind].append(losses_of_layer)
    return losses


def _role(shares: Sequence[float | None]) -> str:
    """Return the name of the share that dominates; an empty string if none does.

    The diagonal counts only if no single token dominates, because it includes the token itself.

    Args:
        shares: In the order of `_SHARE_NAMES`. None counts as 0.
    """
    *token_shares, diagonal_share = [share or 0.0 for share in shares]
    largest = max(token_shares)
    if largest >= _MIN_MAIN_SHARE:
        return _SHARE_NAMES[token_shares.index(largest)]
    if diagonal_share >= _MIN_MAIN_SHARE:
        return _SHARE_NAMES[-1]
    return ""


def _test_pairs(inspected: Inspected) -> tuple[str, Pairs]:
    """Return the name and the first pairs of the chosen test set.

    The default is the first test set or, without test sets, the validation set.

    Raises:
        ConfigError: No test set has this name.
        DataError: The set cannot be read, or all its sentences are too long.
    """
    source_tokenizer, target_tokenizer = inspected.tokenizers
    name = inspected.choice.test
    if name is None:
        name = next(iter(inspected.sets.tests), "valid")
    options = EvaluateOptions(test=(name,))
    (test,) = load_test_sets(options, inspected.sets)
    tag = inspected.choice.tag
    if tag is None:
        tag = test.tag
    tag_ids = []
    if tag is not None:
        tag_ids = [source_tokenizer.tag_id(tag)]
    max_tokens = min(MAX_TOKENS, inspected.config.max_length)
    pairs = []
    sources = source_tokenizer.encode_batch(test.source or ())
    targets = target_tokenizer.encode_batch(test.references[0])
    for source_ids, target_ids in zip(sources, targets, strict=True):
        if not source_ids or not target_ids:
            continue
        pair = ([*tag_ids, *source_ids], target_ids)
        if max(map(len, pair)) <= max_tokens:
            pairs.append(pair)
    if not pairs:
        problem = f"{name} does not contain a sentence pair of at most {max_tokens} tokens."
        fix = "Choose another test set with `test`, or raise filters.max_length."
        raise DataError(problem, fix=fix)
    return name, pairs[: inspected.choice.limit]
