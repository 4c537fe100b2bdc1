"""``nmt inspect MODEL heads``: what each head looks at on a test set, and which ones matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from nmt.config.data import CorpusConfig
from nmt.data.corpus import check_files, read_corpus
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.errors import DataError
from nmt.extras.inspection.attention import KINDS, layer_name, off_diagonal
from nmt.extras.inspection.figure import Cell, Figure, Part, Table
from nmt.extras.inspection.recording import Attention, Kind, record, without_heads
from nmt.extras.inspection.subject import MAX_TOKENS, Subject
from nmt.inference.stepper import source_of
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.registry import chosen
from nmt.text import BOS_ID, EOS_ID

# Source and target ids, without special ones.
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
_NEAR = 1.0
_MOSTLY = 0.5
_NAMES = ("previous token", "itself", "end", "diagonal")
_EXPLANATION = """\
Shares of a head's attention, means over the tokens of a test set: on the token before, on itself, \
on the end of the source (in the decoder: on BOS), and within one token of the diagonal. A head is \
worth what the references lose in log probability, as of `nmt score`, with its output set to 0. \
Heads that hardly matter alone may matter together."""


def heads(subject: Subject) -> Part:
    """A table and heatmaps of all heads."""
    name, pairs = _test_pairs(subject)
    looks, losses = look_shares(subject.model, pairs), head_losses(subject.model, pairs)
    figures: list[Figure] = []
    for kind, title in KINDS.items():
        rows: list[list[Cell]] = []
        for layer, of_layer in enumerate(zip(looks[kind], losses[kind], strict=True), 1):
            for head, (shares, loss) in enumerate(zip(*of_layer, strict=True), 1):
                used = list(shares) if kind != "cross" else [None, None, *shares[2:]]
                label = layer_name(layer, len(losses[kind]))
                rows.append([f"{label}, head {head}", *used, _role(used), loss])
        table_head = ["head", *_NAMES, "mostly", "loss without it"]
        note = f"Nats per target token; pairs of {name}: {len(pairs):,}."
        figures.append(Table(title, table_head, rows, note))
    return Part("heads", "Heads", _EXPLANATION, figures)


@torch.inference_mode()
def look_shares(model: Transformer, pairs: Pairs) -> dict[Kind, list[list[tuple[float, ...]]]]:
    """Return what the heads look at: of each kind, layer and head the shares of `_NAMES`."""
    sums: dict[Kind, list[Tensor]] = {}
    counts: Counter[Kind] = Counter()
    for source, target in pairs:
        read = source_of(model, Packed.from_rows([[*source, EOS_ID]]))
        found = record(model, read, Packed.from_rows([[BOS_ID, *target]]))
        for kind in KINDS:
            weights = [each.heads().weights for each in found.attention(kind)]
            shares = [torch.stack(_looks(each, kind)) for each in weights]
            sums[kind] = (
                [a + b for a, b in zip(sums[kind], shares, strict=True)] if kind in sums else shares
            )
            counts[kind] += weights[0].shape[1]
    return {
        kind: [[tuple(row) for row in (total / counts[kind]).T.tolist()] for total in totals]
        for kind, totals in sums.items()
    }


def head_losses(model: Transformer, pairs: Pairs) -> dict[Kind, list[list[float]]]:
    """Return how much the references lose without each head: of each kind, layer and head.

    In nats per target token with EOS; negative where the model is better without it.
    """
    engine, (sources, targets) = TorchEngine(model), zip(*pairs, strict=True)

    def log_prob() -> float:
        found = engine.token_log_probs(sources, targets)
        return sum(map(sum, found)) / sum(map(len, found))

    whole, losses = log_prob(), dict[Kind, list[list[float]]]()
    for kind in KINDS:
        losses[kind] = []
        for layer in model.encoder if kind == "encoder" else model.decoder:
            name = "cross_attention" if kind == "cross" else "self_attention"
            module: Attention = getattr(layer, name)
            losses[kind].append([])
            for head in range(1, module.num_heads + 1):
                with without_heads(module, [head]):
                    losses[kind][-1].append(whole - log_prob())
    return losses


def _looks(weights: Tensor, kind: Kind) -> list[Tensor]:
    """Sums over the tokens of one sentence, for each of `_NAMES`: (H,) each."""
    _, rows, columns = weights.shape
    near = off_diagonal(rows, columns) <= _NEAR
    end = 0 if kind == "decoder" else columns - 1
    return [
        weights.diagonal(-1, 1, 2).sum(-1),
        weights.diagonal(0, 1, 2).sum(-1),
        weights[:, :, end].sum(-1),
        (weights * near).sum((1, 2)),
    ]


def _role(shares: Sequence[float | None]) -> str:
    """What a head mostly looks at, if there is such a thing; the diagonal has the first two."""
    *single, diagonal = [share or 0.0 for share in shares]
    best = max(range(len(single)), key=single.__getitem__)
    if single[best] >= _MOSTLY:
        return _NAMES[best]
    return _NAMES[-1] if diagonal >= _MOSTLY else ""


def _test_pairs(subject: Subject) -> tuple[str, Pairs]:
    """Return the first pairs of a test set of the model's configuration, or of its validation set.

    Raises:
        ConfigError: No test set has this name.
        DataError: It cannot be read, or no pair is short enough.
    """
    config, name = subject.config, subject.choice.test or next(iter(subject.config.data.test), "")
    sets: dict[str, CorpusConfig] = {**config.data.test, "valid": config.data.valid}
    corpus = chosen(sets, name or "valid", "test set")
    check_files({f"data.test.{name}" if name else "data.valid": corpus})
    options = ReadOptions(config.source_language, config.target_language, on_bad_utf8="skip")
    texts = (each for each in read_corpus(corpus, options) if isinstance(each, SentencePair))
    sides = subject.tokenizers
    most = min(MAX_TOKENS, config.filters.max_length)
    tag = corpus.tag if subject.choice.tag is None else subject.choice.tag
    first = [] if tag is None else [sides.source.tag_id(tag)]
    ids = ((sides.source.encode(x.source), sides.target.encode(x.target)) for x in texts)
    read = (([*first, *source], target) for source, target in ids if source)
    short = (pair for pair in read if max(map(len, pair)) <= most)
    found = list(islice(short, subject.choice.limit))
    if not found:
        raise DataError(
            f"{name} has no pair of at most {most} tokens.",
            fix="Choose another one with `test`, or raise filters.max_length.",
        )
    return name or "the validation set", found
