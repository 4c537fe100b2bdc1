"""``nmt inspect MODEL distributions``: the target's and the model's probabilities, word by word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.extras.inspection.figure import Cell, Figure, Heatmap, Step, Steps, Table, Text
from nmt.extras.inspection.subject import Subject, labels
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN

_NUM_LIKELY = 6
_SMALL_VOCABULARY = 24  # Up to here all tokens are drawn.
_DEFAULT = ("untrained", "best")


def smoothed_target(vocab_size: int, smoothing: float) -> tuple[float, float, float]:
    """Return the probability of the right token and of each other one, and the entropy of all.

    >>> smoothed_target(4, 0.0)
    (1.0, 0.0, 0.0)
    """
    other = smoothing / vocab_size
    right = 1 - smoothing + other
    spread = (vocab_size - 1) * other * math.log(other) if other else 0.0
    return right, other, abs(right * math.log(right) + spread)


def losses(logits: Tensor, gold: Sequence[int], smoothing: float) -> Tensor:
    """Work out the loss of every position, in nats.

    Args:
        logits: (T, V), not normalised.
        gold: Right tokens, EOS the last. T ids.
        smoothing: Probability that is spread evenly over the vocabulary.

    Returns:
        The log probability of the right token, as `nmt score` has it; the cross-entropy of the
        target's distribution and the model's; the part of it that training can lower. (T, 3).
    """
    right = torch.tensor(gold)
    cross = F.cross_entropy(logits, right, label_smoothing=smoothing, reduction="none")
    usable = logits.index_fill(1, torch.arange(NUM_NEVER_CHOSEN), -torch.inf)
    usable = usable.scatter(1, right.unsqueeze(1), logits.gather(1, right.unsqueeze(1)))
    log_probs = -F.cross_entropy(usable, right, reduction="none")
    _, _, entropy = smoothed_target(logits.shape[1], smoothing)
    return torch.stack((log_probs, cross, cross - entropy), 1)


@torch.inference_mode()
def distributions(subject: Subject) -> Iterator[Figure]:
    """Target and predicted distributions.

    The target's own distribution has 1 for the right token, and label smoothing spreads a little of
    that over the vocabulary. Training lowers the cross-entropy of it and the model's: the entropy
    of the target's, which nothing can lower, and the Kullback-Leibler divergence. The log
    probabilities are those of `nmt score`, where PAD, UNK and BOS are never chosen; the loss is
    that of training.
    """
    gold, names = [*subject.target_ids, EOS_ID], subject.choice.checkpoint or _DEFAULT
    models = {name: subject.load(name) for name in names}
    logits = {k: model.logits(model(subject.source, subject.target)) for k, model in models.items()}
    smoothing = subject.config.training.label_smoothing
    steps = [
        Step(label, [_likely(subject, place, gold[place], logits)])
        for place, label in enumerate(subject.target_labels)
    ]
    yield Steps("Target and model, word by word", steps)
    head = ("read \N{RIGHTWARDS ARROW} predicted", "probability", "log probability",
            "cross-entropy", "KL divergence")  # fmt: skip
    for name, values in logits.items():
        parts = losses(values, gold, smoothing)
        rows: list[list[Cell]] = [
            [label, math.exp(numbers[0]), *numbers]
            for label, numbers in zip(subject.target_labels, parts.tolist(), strict=True)
        ]
        rows.append(["sum", None, *parts.sum(0).tolist()])
        note = f"Perplexity of the target: {math.exp(-parts[:, 0].mean()):.2f}."
        yield Table(f"Checkpoint {name}", head, rows, total=True, note=note)
    vocab_size = subject.tokenizers.target.vocab_size
    right, other, entropy = smoothed_target(vocab_size, smoothing)
    share = f"{smoothing:g} / {vocab_size:,}"
    lines = [
        f"right token: 1 - {smoothing:g} + {share} = {right:.6f}",
        f"each other token: {share} = {other:.3g}",
        f"cross-entropy = entropy of the target {entropy:.4f} nats + KL divergence",
    ]
    yield Text("Label smoothing", lines)


def _likely(subject: Subject, place: int, gold: int, logits: Mapping[str, Tensor]) -> Heatmap:
    """Return the probability of the right token and of the most probable ones of every model."""
    vocab_size = subject.tokenizers.target.vocab_size
    shares = {name: values[place].softmax(-1) for name, values in logits.items()}
    likely = [x.topk(min(_NUM_LIKELY, vocab_size)).indices.tolist() for x in shares.values()]
    tokens = list(dict.fromkeys([gold, *chain(*likely)]))
    if vocab_size <= _SMALL_VOCABULARY:
        tokens = list(range(vocab_size))
    right, other, _ = smoothed_target(vocab_size, subject.config.training.label_smoothing)
    columns = {"target": [right if token == gold else other for token in tokens]}
    columns |= {name: own[tokens].tolist() for name, own in shares.items()}
    names, values = (
        labels(subject.tokenizers.target, tokens),
        list(zip(*columns.values(), strict=True)),
    )
    note = "" if len(tokens) == vocab_size else f"{len(tokens)} of {vocab_size:,} tokens."
    title = f"Position {place + 1}: probability"
    return Heatmap(title, values, names, list(columns), 0.0, 1.0, note=note)
