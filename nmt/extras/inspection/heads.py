"""``nmt inspect MODEL heads``: what each head looks at on a test set, and which ones matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from nmt.data.corpus import check_files, read_corpus
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.errors import DataError
from nmt.extras.inspection.attention import KINDS, layer_names, off_diagonal
from nmt.extras.inspection.figure import Cell, Figure, Table
from nmt.extras.inspection.recording import Kind, record, without_head
from nmt.extras.inspection.subject import MAX_TOKENS, Subject
from nmt.inference.stepper import source_of
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.registry import chosen
from nmt.text import BOS_ID, EOS_ID

# Source and target ids, without special ones.
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
_NEAR = 1.0  # Tokens from the diagonal that still count as on it.
_MOSTLY = 0.5  # Share of attention that makes the role of a head.
_NAMES = ("previous token", "itself", "end", "diagonal")


def heads(subject: Subject) -> Iterator[Figure]:
    """Heads.

    Shares of a head's attention, means over the tokens of a test set: on the token before, on
    itself, on the end of the source (in the decoder: on BOS), and within one token of the diagonal.
    A head is worth what the references lose in log probability, as of `nmt score`, with its output
    set to 0. Heads that hardly matter alone may matter together.
    """
    name, pairs = _test_pairs(subject)
    looks, losses = look_shares(subject.model, pairs), head_losses(subject.model, pairs)
    for kind, title in KINDS.items():
        rows: list[list[Cell]] = []
        for layer, *of_layer in zip(
            layer_names(len(losses[kind])), looks[kind].tolist(), losses[kind], strict=True
        ):
            for head, (shares, loss) in enumerate(zip(*of_layer, strict=True), 1):
                # Source and target have no places in common but their ends.
                known = [None, None, *shares[2:]] if kind == "cross" else shares
                rows.append([f"{layer}, head {head}", *known, _role(known), loss])
        note = f"Nats per target token; pairs of {name}: {len(pairs):,}."
        yield Table(title, ["head", *_NAMES, "mostly", "loss without it"], rows, note=note)


@torch.inference_mode()
def look_shares(model: Transformer, pairs: Pairs) -> dict[Kind, Tensor]:
    """Return what the heads of each kind look at: the shares of `_NAMES`. (layers, H, 4)."""
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
    """Return how much the references lose without each head: of each kind, layer and head.

    In nats per target token with EOS; negative where the model is better without it.
    """
    engine, (sources, targets) = TorchEngine(model), zip(*pairs, strict=True)

    def log_prob() -> float:
        log_probs = engine.token_log_probs(sources, targets)
        return sum(map(sum, log_probs)) / sum(map(len, log_probs))

    whole, losses = log_prob(), dict[Kind, list[list[float]]]()
    for kind in KINDS:
        losses[kind] = []
        for layer in model.encoder if kind == "encoder" else model.decoder:
            module = getattr(layer, "cross_attention" if kind == "cross" else "self_attention")
            losses[kind].append([])
            for head in range(1, module.num_heads + 1):
                with without_head(module, head):
                    losses[kind][-1].append(whole - log_prob())
    return losses


def _role(shares: Sequence[float | None]) -> str:
    """Return what a head mostly looks at, if there is such a thing; the diagonal comes last."""
    *single, diagonal = [share or 0.0 for share in shares]
    if max(single) >= _MOSTLY:
        return _NAMES[single.index(max(single))]
    return _NAMES[-1] if diagonal >= _MOSTLY else ""


def _test_pairs(subject: Subject) -> tuple[str, Pairs]:
    """Return the first pairs of a test set of the model's configuration, or of its validation set.

    Raises:
        ConfigError: No test set has this name.
        DataError: It cannot be read, or no pair is short enough.
    """
    config, sides = subject.config, subject.tokenizers
    name = subject.choice.test or next(iter(config.data.test), "valid")
    corpus = chosen({**config.data.test, "valid": config.data.valid}, name, "test set")
    check_files({f"data.test.{name}" if name in config.data.test else "data.valid": corpus})
    options = ReadOptions(config.source_language, config.target_language, on_bad_utf8="skip")
    tag = corpus.tag if subject.choice.tag is None else subject.choice.tag
    first = [] if tag is None else [sides.source.tag_id(tag)]
    most = min(MAX_TOKENS, config.filters.max_length)
    ids = (
        ([*first, *source], sides.target.encode(pair.target))
        for pair in read_corpus(corpus, options)
        if isinstance(pair, SentencePair) and (source := sides.source.encode(pair.source))
    )
    short = (pair for pair in ids if max(map(len, pair)) <= most)
    if pairs := list(islice(short, subject.choice.limit)):
        return name if name in config.data.test else "the validation set", pairs
    raise DataError(
        f"{name} has no pair of at most {most} tokens.",
        fix="Choose another one with `test`, or raise filters.max_length.",
    )
