"""``nmt inspect MODEL distributions``: the target's and the model's probabilities, word by word."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from nmt.extras.inspection.figure import Bars, Cell, Figure, Part, Step, Steps, Table, Text
from nmt.extras.inspection.subject import Subject, labels
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN

_NUM_LIKELY = 6
_SMALL_VOCABULARY = 24  # Up to here all tokens are drawn.
_DEFAULT = ("untrained", "best")
_EXPLANATION = """\
The target's own distribution has 1 for the right token, and label smoothing spreads a little of \
that over the vocabulary. Training lowers the cross-entropy of it and the model's: the entropy of \
the target's, which nothing can lower, and the Kullback-Leibler divergence. The log probabilities \
are those of `nmt score`, where PAD, UNK and BOS are never chosen; the loss is that of training."""


class Loss(NamedTuple):
    """What one position adds to the loss, in nats."""

    cross_entropy: float  # Of the target's distribution and the model's.
    divergence: float  # The part of it that training can lower.
    log_prob: float  # Of the right token, as `nmt score` has it.


def smoothed_target(vocab_size: int, smoothing: float) -> tuple[float, float, float]:
    """Return the probability of the right token and of each other one, and the entropy of all.

    >>> smoothed_target(4, 0.0)
    (1.0, 0.0, 0.0)
    """
    other = smoothing / vocab_size
    right = 1 - smoothing + other
    spread = (vocab_size - 1) * other * math.log(other) if other else 0.0
    return right, other, abs(right * math.log(right) + spread)


def losses(logits: Tensor, gold: Sequence[int], smoothing: float) -> list[Loss]:
    """Work out the loss of every position.

    Args:
        logits: (T, V), not normalised.
        gold: Right tokens, EOS the last. T ids.
        smoothing: Probability that is spread evenly over the vocabulary.
    """
    wanted = torch.tensor(gold).unsqueeze(1)
    right, other, entropy = smoothed_target(logits.shape[1], smoothing)
    log_probs = logits.log_softmax(-1)
    own = log_probs.gather(1, wanted)
    cross = -(right - other) * own - other * log_probs.sum(1, keepdim=True)
    usable = logits.index_fill(1, torch.arange(NUM_NEVER_CHOSEN), -torch.inf)
    usable = usable.scatter(1, wanted, logits.gather(1, wanted))
    scores = usable.log_softmax(-1).gather(1, wanted)
    rows = torch.cat((cross, cross - entropy, scores), 1).tolist()
    return [Loss(*row) for row in rows]


@torch.inference_mode()
def distributions(subject: Subject) -> Part:
    """One position after the other, and the losses of every checkpoint."""
    names = subject.choice.checkpoint or _DEFAULT
    gold = [*subject.target_ids, EOS_ID]
    smoothing = subject.config.training.label_smoothing
    models = {name: subject.load(name) for name in names}
    logits = {k: model.logits(model(subject.source, subject.target)) for k, model in models.items()}
    steps = [
        Step(label, [_bars(subject, place, gold[place], logits)])
        for place, label in enumerate(subject.target_labels)
    ]
    figures: list[Figure] = [Steps("Target and model, word by word", steps)]
    for name, values in logits.items():
        figures.append(_table(name, subject.target_labels, losses(values, gold, smoothing)))
    vocab_size = subject.tokenizers.target.vocab_size
    right, other, entropy = smoothed_target(vocab_size, smoothing)
    share = f"{smoothing:g} / {vocab_size:,}"
    lines = [
        f"right token: 1 - {smoothing:g} + {share} = {right:.6f}",
        f"each other token: {share} = {other:.3g}",
        f"cross-entropy = entropy of the target {entropy:.4f} nats + KL divergence",
    ]
    figures.append(Text("Label smoothing", lines))
    return Part("distributions", "Target and predicted distributions", _EXPLANATION, figures)


def _bars(subject: Subject, place: int, gold: int, logits: Mapping[str, Tensor]) -> Bars:
    """The right token and the most probable ones of every model, at one position."""
    shares = {name: values[place].softmax(-1) for name, values in logits.items()}
    vocab_size = subject.tokenizers.target.vocab_size
    likely = [x.topk(min(_NUM_LIKELY, vocab_size)).indices.tolist() for x in shares.values()]
    tokens = list(dict.fromkeys([gold, *chain(*likely)]))
    if vocab_size <= _SMALL_VOCABULARY:
        tokens = list(range(vocab_size))
    right, other, _ = smoothed_target(vocab_size, subject.config.training.label_smoothing)
    series: dict[str, list[float]] = {"target": [right if t == gold else other for t in tokens]}
    series |= {name: own[tokens].tolist() for name, own in shares.items()}
    names = labels(subject.tokenizers.target, tokens)
    note = "" if len(tokens) == vocab_size else f"{len(tokens)} of {vocab_size:,} tokens."
    return Bars(f"Position {place + 1}", names, series, "probability", note)


def _table(name: str, labels_: Sequence[str], found: Sequence[Loss]) -> Table:
    rows: list[list[Cell]] = [
        [label, math.exp(own.log_prob), own.log_prob, own.cross_entropy, own.divergence]
        for label, own in zip(labels_, found, strict=True)
    ]
    sums = [math.fsum(column) for column in zip(*found, strict=True)]
    rows.append(["sum", None, sums[2], sums[0], sums[1]])
    head = ["read \N{RIGHTWARDS ARROW} predicted", "probability", "log probability"]
    head += ["cross-entropy", "KL divergence"]
    note = f"Perplexity of the target: {math.exp(-sums[2] / len(found)):.2f}."
    return Table(f"Checkpoint {name}", head, rows, note, True)
