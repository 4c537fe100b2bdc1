"""How a model decodes: the steps of the search (`trace`), and probabilities (`distributions`).

A trace runs the usual search with an `ObservingStepper`, for one sentence, with greedy or beam
search. `recompute_words` decodes without the causal mask, as in some explanations of the
Transformer: all words are recomputed at every step.

Shapes: K beams, T target positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import isolated
from nmt.extras.inspection.inspected import Inspected, labels
from nmt.extras.inspection.sublayers import without_causal_mask
from nmt.inference.stepper import ModelStepper, States
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from nmt.search.beam import expand
from nmt.search.hypothesis import Hypothesis, Ids, length_penalty
from nmt.search.loop import coverage_penalty, search
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN
from nmt.text.tokenizer import Tokenizer

_NUM_LIKELY = 5  # Next tokens shown for each beam.
_MORE_WORDS = 5  # Extra words that decoding without the causal mask may produce.
_UNMASKED = """\
Some explanations recompute every word at each step without the causal mask. Then each position \
reads the very word to predict, which never happens in training. With the mask, earlier \
words never change, so their keys and values can be cached."""
_ORDER = ("first", "second")
_NUM_DRAWN = 6
_SMALL_VOCABULARY = 24  # Largest vocabulary of which all tokens are drawn.
_DEFAULT = ("untrained", "best")


@dataclass
class Moment:
    """One step of the search, with an entry for each beam."""

    ids: list[Ids]  # Tokens so far.
    totals: Tensor  # Log probability of the tokens so far; minus infinity for an empty beam. (K,).
    log_probs: Tensor  # Of next tokens. The search modifies them in place after the step. (K, V).
    # The most probable next tokens with the model's probabilities, before any rule of the search.
    likely: list[tuple[list[int], list[float]]]
    coverage: list[float]  # Coverage penalty of each beam.
    # Hypotheses that finished in this step, and their coverage penalties.
    finished: list[tuple[Hypothesis, float]] = field(default_factory=list)


class ObservingStepper(ModelStepper):
    """A `ModelStepper` that records the steps of the search for one sentence.

    Args:
        model: Model on the CPU.
        source: The source sentence.
        options: Options of the search.
    """

    def __init__(self, model: Transformer, source: Packed, options: DecodingConfig) -> None:
        self._lengths, self._weight = source.lengths, options.coverage_penalty
        super().__init__(model, with_coverage=self._weight > 0)
        self.moments: list[Moment] = []
        self._kept: list[int] = []

    @override
    def step(self, state: States, tokens: Tensor) -> tuple[Tensor, States]:
        """Advance the model; record the beams and their most probable next tokens."""
        (log_probs,), state = super().step(state, tokens)
        ids, totals, chosen = list[Ids]([()]), torch.zeros(1), tokens[0].tolist()
        if self.moments:
            before, kept = self.moments[-1], self._kept
            ids = [(*before.ids[beam], x) for beam, x in zip(kept, chosen, strict=True)]
            totals = before.totals[kept] + before.log_probs[kept, chosen]  # float32, as the search
        shares, places = log_probs.exp().topk(min(_NUM_LIKELY, log_probs.shape[1]))
        likely = list(zip(places.tolist(), shares.tolist(), strict=True))
        coverage = [0.0] * len(ids)
        self.moments.append(Moment(ids, totals, log_probs, likely, coverage))
        self._kept = list(range(len(ids)))
        return log_probs.unsqueeze(0), state

    @override
    def select(self, state: States, sentences: Tensor, beams: Tensor) -> States:
        self._kept = beams[0].tolist()
        return super().select(state, sentences, beams)

    @override
    def coverage(self, state: States) -> Tensor:
        attention = super().coverage(state)
        penalties = coverage_penalty(attention, self._lengths, self._weight)
        self.moments[-1].coverage = penalties[0].tolist()
        return attention


@torch.inference_mode()
def trace_search(
    model: Transformer, source_ids: Sequence[int], options: DecodingConfig
) -> tuple[list[Moment], Sequence[Hypothesis]]:
    """Translate one sentence; return the steps of the search, and the hypotheses, best first.

    Args:
        model: Model on the CPU, in evaluation mode.
        source_ids: Source ids without BOS and EOS.
        options: Options of greedy or beam search.
    """
    source, penalty = Packed.from_rows([[*source_ids, EOS_ID]]), length_penalty(options)
    stepper = ObservingStepper(model, source, options)
    (hypotheses,) = search(stepper, source, options)
    size = 1 if options.search == "greedy" else options.beam_size
    for moment in stepper.moments:  # an EOS among the best K continuations ends a hypothesis
        best = expand(moment.totals.unsqueeze(0), moment.log_probs.unsqueeze(0), size)
        for beam, token, total in zip(*(x[0, :size].tolist() for x in best), strict=True):
            if token == EOS_ID and total > -torch.inf:
                ids, coverage = moment.ids[beam], moment.coverage[beam]
                score = total / penalty(len(ids) + 1) + coverage
                moment.finished.append((Hypothesis(ids, total, score), coverage))
    return stepper.moments, hypotheses


def trace(inspected: Inspected) -> Iterator[fig.Figure]:
    """Trace of the search.

    Greedy search takes the most probable token at each step. Beam search keeps the few hypotheses
    with the highest log probability. A hypothesis is finished when EOS is among the best
    continuations; it is a dead end when no continuation stays in the beam. The score of a finished
    hypothesis is the log probability divided by the length penalty, plus the coverage penalty. The
    hypothesis with the highest score is the translation.
    """
    searches: list[tuple[list[Moment], Ids, DecodingConfig]] = []
    tokenizer = inspected.tokenizers.target

    def observed(ids: list[int], options: DecodingConfig) -> Sequence[Hypothesis]:
        check_options(options)
        moments, hypotheses = trace_search(inspected.model, ids, options)
        searches.append((moments, hypotheses[0].ids, options))
        return hypotheses

    output = inspected.translate(observed)
    taken = int(bool(output.retried))
    names = ["First search: ", "Second search: "] if len(searches) > 1 else [""]
    if len(searches) > 1:
        flags = ", ".join(output.retried or output.alarms)
        first = f"The first translation was suspicious ({flags}), so there is a second search."
        result = f"The {_ORDER[taken]} translation is used. `nmt translate` does the same."
        yield fig.Text("Second search", [first, result])
    for number, (name, (moments, best, options)) in enumerate(zip(names, searches, strict=True)):
        steps = [_step(step, moment, tokenizer) for step, moment in enumerate(moments, 1)]
        yield fig.Steps(f"{name}Decoding step by step", steps)
        finished = [pair for moment in moments for pair in moment.finished]
        finished.sort(key=lambda pair: -pair[0].score)
        note = "The first row is the translation."
        if number != taken:
            note = f"The final translation is from the {_ORDER[taken]} search."
        yield fig.Tree(f"{name}Beam tree", _nodes(moments, best, tokenizer))
        head = "hypothesis", "length with EOS", "log probability", "divided by", "coverage", "score"
        rows = _scores(finished, options, tokenizer)
        yield fig.Table(f"{name}Finished hypotheses", head, rows, note=note)
    if inspected.choice.unmasked:
        yield from _unmasked(inspected, len(searches[0][0]) + _MORE_WORDS)


def check_options(options: DecodingConfig) -> None:
    """Raise an error for searches other than greedy and beam search."""
    is_other = options.sampling or options.return_alternatives or options.diverse_beam_groups > 1
    if is_other or options.search not in ("auto", "greedy", "beam"):
        why = "the decoding section of this model selects a different search"
        fix = "Override the key that selects it, for example: `set` decoding.sampling=false."
        raise ConfigError(f"The view `trace` supports greedy and beam search; {why}.", fix=fix)


def _step(number: int, moment: Moment, tokenizer: Tokenizer) -> fig.Step:
    """Return one step: the hypotheses, and their most probable next tokens."""
    rows: list[list[fig.Cell]] = []
    for ids, total, (tokens, shares) in zip(
        moment.ids, moment.totals.tolist(), moment.likely, strict=True
    ):
        if total > -torch.inf:
            likely = zip(labels(tokenizer, tokens), shares, strict=True)
            name = " ".join(labels(tokenizer, ids)) or "BOS"
            rows.append([name, total, *(f"{isolated(x)} {share:.4f}" for x, share in likely)])
    head = ["hypothesis", "log probability", *(f"next {n}" for n in range(1, len(rows[0]) - 1))]
    finished = [(isolated(tokenizer.decode(x.ids)), x.score) for x, _ in moment.finished]
    ended = [f'"{text}" with score {score:.4f}' for text, score in finished]
    note = f"Finished in this step: {', '.join(ended)}." if ended else ""
    read = dict.fromkeys((BOS_ID, *ids)[-1] for ids in moment.ids)
    title = f"step {number}: read {', '.join(map(isolated, labels(tokenizer, list(read))))}"
    return fig.Step(title, [fig.Table("", head, rows, note=note)])


def _scores(
    finished: Sequence[tuple[Hypothesis, float]], options: DecodingConfig, tokenizer: Tokenizer
) -> list[list[fig.Cell]]:
    """Return a row for each finished hypothesis, with the calculation of its score."""
    penalty, rows = length_penalty(options), list[list[fig.Cell]]()
    for each, coverage in finished:
        length = len(each.ids) + 1
        numbers = length, each.log_prob, penalty(length), coverage, each.score
        rows.append([tokenizer.decode(each.ids), *numbers])
    return rows


def _nodes(moments: Sequence[Moment], best: Ids, tokenizer: Tokenizer) -> list[fig.Node]:
    """Return the beams of all steps and the finished hypotheses as a tree with the root BOS."""
    nodes, places = [fig.Node("BOS", "", None, "best")], {Ids(): 0}  # tokens so far -> last node
    ended = [hypothesis.ids for moment in moments for hypothesis, _ in moment.finished]
    alive = {ids[:length] for ids in ended for length in range(len(ids) + 1)}
    for moment in moments:
        for ids, total in zip(moment.ids, moment.totals.tolist(), strict=True):
            if ids and total > -torch.inf:
                kind: fig.NodeKind = "kept" if ids in alive else "dropped"
                kind = "best" if best[: len(ids)] == ids else kind
                places[ids] = len(nodes)
                (label,) = labels(tokenizer, ids[-1:])
                nodes.append(fig.Node(label, f"{total:.4f}", places[ids[:-1]], kind))
        for hypothesis, _ in moment.finished:
            kind = "best" if hypothesis.ids == best else "finished"
            score = f"score {hypothesis.score:.4f}"
            nodes.append(fig.Node("EOS", score, places[hypothesis.ids], kind))
    return nodes


def _unmasked(inspected: Inspected, most: int) -> list[fig.Figure]:
    """Return two tables with the words of every step: with and without the causal mask."""

    def table(title: str, note: str = "") -> fig.Table:
        steps = recompute_words(inspected.model, inspected.source, most)
        rows = [[str(n), *labels(inspected.tokenizers.target, x)] for n, x in enumerate(steps, 1)]
        return fig.Table(title, ["step", *(f"word {row[0]}" for row in rows)], rows, note=note)

    masked = table("Recomputed with the causal mask")
    with without_causal_mask(inspected.model):
        return [masked, table("Recomputed without the causal mask", _UNMASKED)]


@torch.inference_mode()
def recompute_words(model: Transformer, source: Packed, most: int) -> Iterator[list[int]]:
    """Translate: at every step, predict all words again from the words of the previous step.

    With the causal mask, words never change, and the result equals that of greedy search. Without
    the mask (see `without_causal_mask`), earlier words read later words.

    Args:
        model: Model in evaluation mode.
        source: One source sentence.
        most: Maximum length of the output, with EOS.

    Yields:
        The words of each step. Every step has one more word; the last step ends in EOS.
    """
    words: list[int] = []
    while len(words) < most and EOS_ID not in words[-1:]:
        logits = model.logits(model(source, Packed.from_rows([[BOS_ID, *words]])))
        logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
        words = logits.argmax(-1).tolist()
        yield words


@torch.inference_mode()
def distributions(inspected: Inspected) -> Iterator[fig.Figure]:
    """Target and predicted distributions.

    In training, the target distribution has probability 1 for the reference token; label smoothing
    spreads a small part of the probability over the vocabulary. The loss is the cross-entropy
    between the target and the prediction of the model: the sum of the entropy of the target, which
    is constant, and the Kullback-Leibler (KL) divergence, which training reduces. Probabilities
    of a model are computed as in `nmt score`: PAD, UNK and BOS are excluded, and the probabilities
    of the other tokens sum to 1. The cross-entropy includes all tokens, as in training.
    """
    gold, names = [*inspected.target_ids, EOS_ID], inspected.choice.checkpoint or _DEFAULT
    models = {name: inspected.load(name) for name in names}
    logits = {
        k: model.logits(model(inspected.source, inspected.target)) for k, model in models.items()
    }
    smoothing = inspected.label_smoothing
    steps = [
        fig.Step(label, [_likely(inspected, place, gold[place], logits)])
        for place, label in enumerate(inspected.target_labels)
    ]
    yield fig.Steps("Target and prediction, token by token", steps)
    head = ("read \N{RIGHTWARDS ARROW} predicted", "probability", "log probability",
            "cross-entropy", "KL divergence")  # fmt: skip
    for name, values in logits.items():
        parts = losses(values, gold, smoothing)
        rows: list[list[fig.Cell]] = [
            [label, math.exp(numbers[0]), *numbers]
            for label, numbers in zip(inspected.target_labels, parts.tolist(), strict=True)
        ]
        rows.append(["sum", None, *parts.sum(0).tolist()])
        note = f"Perplexity of the target: {math.exp(-parts[:, 0].mean()):.2f}."
        yield fig.Table(f"Checkpoint {name}", head, rows, total=True, note=note)
    vocab_size = inspected.tokenizers.target.vocab_size
    right, other, entropy = smoothed_target(vocab_size, smoothing)
    share = f"{smoothing:g} / {vocab_size:,}"
    lines = [
        f"probability of the reference token: 1 - {smoothing:g} + {share} = {right:.6f}",
        f"probability of each other token: {share} = {other:.6f}",
        f"cross-entropy = entropy of the target ({entropy:.4f} nats) + KL divergence",
    ]
    yield fig.Text("Label smoothing", lines)


def _likely(
    inspected: Inspected, place: int, gold: int, logits: Mapping[str, Tensor]
) -> fig.Heatmap:
    """Return the probabilities of the reference token and of the most probable tokens."""
    vocab_size = inspected.tokenizers.target.vocab_size
    shares = {
        name: usable_log_probs(values[place : place + 1], torch.tensor([gold]))[0].exp()
        for name, values in logits.items()
    }
    likely = [x.topk(min(_NUM_DRAWN, vocab_size)).indices.tolist() for x in shares.values()]
    tokens = list(dict.fromkeys([gold, *chain(*likely)]))
    if vocab_size <= _SMALL_VOCABULARY:
        tokens = list(range(vocab_size))
    right, other, _ = smoothed_target(vocab_size, inspected.label_smoothing)
    values = [
        [right if token == gold else other, *(float(x[token]) for x in shares.values())]
        for token in tokens
    ]
    note = "" if len(tokens) == vocab_size else f"Shown: {len(tokens)} of {vocab_size:,} tokens."
    title = "Probability"
    names = labels(inspected.tokenizers.target, tokens)
    return fig.Heatmap(title, values, names, ["target", *shares], 0.0, 1.0, note=note)


def usable_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
    """Return log probabilities without PAD, UNK and BOS, unless in ``gold``. (T, V)."""
    usable = logits.index_fill(1, torch.arange(NUM_NEVER_CHOSEN), -torch.inf)
    return usable.scatter(1, gold.unsqueeze(1), logits.gather(1, gold.unsqueeze(1))).log_softmax(-1)


def smoothed_target(vocab_size: int, smoothing: float) -> tuple[float, float, float]:
    """Return the probability of the reference token and of each other token, and the entropy.

    >>> smoothed_target(4, 0.0)
    (1.0, 0.0, 0.0)
    """
    other = smoothing / vocab_size
    right = 1 - smoothing + other
    spread = (vocab_size - 1) * other * math.log(other) if other else 0.0
    return right, other, abs(right * math.log(right) + spread)


def losses(logits: Tensor, gold: Sequence[int], smoothing: float) -> Tensor:
    """Compute the loss of every position, in nats.

    Args:
        logits: (T, V), not normalised.
        gold: The T reference tokens, with EOS at the end.
        smoothing: Probability that is spread evenly over the vocabulary.

    Returns:
        The log probability of the reference token as in `nmt score`, the cross-entropy, and the KL
        divergence. (T, 3).
    """
    right = torch.tensor(gold)
    cross = F.cross_entropy(logits, right, label_smoothing=smoothing, reduction="none")
    log_probs = usable_log_probs(logits, right).gather(1, right.unsqueeze(1))[:, 0]
    _, _, entropy = smoothed_target(logits.shape[1], smoothing)
    return torch.stack((log_probs, cross, cross - entropy), 1)
