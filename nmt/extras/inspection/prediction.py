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

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.extras.inspection.figure import (
    Cell,
    Figure,
    Heatmap,
    Node,
    NodeKind,
    Rows,
    Step,
    Steps,
    Table,
    TextFigure,
    Tree,
    isolated,
)
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
_FINISHED = (
    "hypothesis", "length with EOS", "log probability", "divided by", "coverage", "score",
)  # fmt: skip
_LOSSES = (
    "read \N{RIGHTWARDS ARROW} predicted", "probability", "log probability", "cross-entropy",
    "KL divergence",
)  # fmt: skip
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
        self._lengths = source.lengths
        self._weight = options.coverage_penalty
        super().__init__(model, with_coverage=self._weight > 0)
        self.moments: list[Moment] = []
        self._kept: list[int] = []

    @override
    def step(self, state: States, tokens: Tensor) -> tuple[Tensor, States]:
        """Advance the model; record the beams and their most probable next tokens."""
        (log_probs,), state = super().step(state, tokens)
        ids: list[Ids] = [()]
        totals = torch.zeros(1)
        if self.moments:
            before = self.moments[-1]
            chosen = tokens[0].tolist()
            pairs = zip(self._kept, chosen, strict=True)
            ids = [(*before.ids[beam], token) for beam, token in pairs]
            # In float32, as in the search.
            added = before.log_probs[self._kept, chosen]
            totals = before.totals[self._kept] + added
        num_likely = min(_NUM_LIKELY, log_probs.shape[1])
        shares, places = log_probs.exp().topk(num_likely)
        likely = list(zip(places.tolist(), shares.tolist(), strict=True))
        coverage = [0.0] * len(ids)
        moment = Moment(ids, totals, log_probs, likely, coverage)
        self.moments.append(moment)
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
    ids = (*source_ids, EOS_ID)
    source = Packed.from_rows([ids])
    stepper = ObservingStepper(model, source, options)
    (hypotheses,) = search(stepper, source, options)
    penalty = length_penalty(options)
    size = options.beam_size
    if options.search == "greedy":
        size = 1
    for moment in stepper.moments:  # an EOS among the best K continuations ends a hypothesis
        log_probs = moment.log_probs.unsqueeze(0)
        best = expand(moment.totals.unsqueeze(0), log_probs, size)
        columns = [values[0, :size].tolist() for values in best]
        for beam, token, total in zip(*columns, strict=True):
            if token == EOS_ID and total > -torch.inf:
                ids = moment.ids[beam]
                coverage = moment.coverage[beam]
                score = total / penalty(len(ids) + 1) + coverage
                hypothesis = Hypothesis(ids, total, score)
                moment.finished.append((hypothesis, coverage))
    return stepper.moments, hypotheses


@dataclass(frozen=True)
class ObservedSearch:
    """A search with all its steps."""

    options: DecodingConfig
    moments: list[Moment]
    best: Ids  # The best hypothesis.


def trace(inspected: Inspected) -> Iterator[Figure]:
    """Trace of the search.

    Greedy search takes the most probable token at each step. Beam search keeps the few hypotheses
    with the highest log probability. A hypothesis is finished when EOS is among the best
    continuations; it is a dead end when no continuation stays in the beam. The score of a finished
    hypothesis is the log probability divided by the length penalty, plus the coverage penalty. The
    hypothesis with the highest score is the translation.
    """
    searches: list[ObservedSearch] = []
    tokenizer = inspected.tokenizers.target

    def observed(ids: list[int], options: DecodingConfig) -> Sequence[Hypothesis]:
        check_options(options)
        moments, hypotheses = trace_search(inspected.model, ids, options)
        best = hypotheses[0].ids
        searches.append(ObservedSearch(options, moments, best))
        return hypotheses

    output = inspected.translate(observed)
    taken = int(bool(output.retried))
    names = [""]
    if len(searches) > 1:
        names = ["First search: ", "Second search: "]
        flags = ", ".join(output.retried or output.alarms)
        first = f"The first translation was suspicious ({flags}), so there is a second search."
        result = f"The {_ORDER[taken]} translation is used. `nmt translate` does the same."
        title = "Second search"
        yield TextFigure(title, [first, result])
    for number, observed_search in enumerate(searches):
        name = names[number]
        moments = observed_search.moments
        steps = [_step(moment, tokenizer) for moment in moments]
        title = f"{name}Decoding step by step"
        yield Steps(title, steps)
        nodes = _nodes(moments, observed_search.best, tokenizer)
        title = f"{name}Beam tree"
        yield Tree(title, nodes)
        penalty = length_penalty(observed_search.options)
        rows: Rows = []
        for hypothesis, coverage in _finished(moments):
            length = len(hypothesis.ids) + 1
            numbers = [length, hypothesis.log_prob, penalty(length), coverage, hypothesis.score]
            text = tokenizer.decode(hypothesis.ids)
            rows.append([text, *numbers])
        note = "The first row is the translation."
        if number != taken:
            note = f"The final translation is from the {_ORDER[taken]} search."
        title = f"{name}Finished hypotheses"
        yield Table(title, _FINISHED, rows, note=note)
    if inspected.choice.unmasked:
        num_steps = len(searches[0].moments)
        yield from _unmasked(inspected, num_steps + _MORE_WORDS)


def _finished(moments: Sequence[Moment]) -> list[tuple[Hypothesis, float]]:
    """Return the finished hypotheses of all steps with their coverage penalties, best first."""
    finished: list[tuple[Hypothesis, float]] = []
    for moment in moments:
        finished += moment.finished
    return sorted(finished, key=lambda pair: -pair[0].score)


def check_options(options: DecodingConfig) -> None:
    """Raise an error for searches other than greedy and beam search."""
    is_other = options.search not in ("auto", "greedy", "beam")
    is_diverse = options.diverse_beam_groups > 1
    if is_other or is_diverse or options.sampling or options.return_alternatives:
        why = "the decoding section of this model selects a different search"
        fix = "Override the key that selects it, for example: `set` decoding.sampling=false."
        problem = f"The view `trace` supports greedy and beam search; {why}."
        raise ConfigError(problem, fix=fix)


def _step(moment: Moment, tokenizer: Tokenizer) -> Step:
    """Return one step: the hypotheses, and their most probable next tokens."""
    rows: Rows = []
    totals = moment.totals.tolist()
    for ids, total, (tokens, shares) in zip(moment.ids, totals, moment.likely, strict=True):
        if total > -torch.inf:
            row: list[Cell] = [" ".join(labels(tokenizer, ids)) or "BOS", total]
            for label, share in zip(labels(tokenizer, tokens), shares, strict=True):
                row.append(f"{isolated(label)} {share:.4f}")
            rows.append(row)
    head = ["hypothesis", "log probability"]
    head += [f"next {rank + 1}" for rank in range(len(rows[0]) - 2)]
    ended = []
    for hypothesis, _ in moment.finished:
        text = isolated(tokenizer.decode(hypothesis.ids))
        ended.append(f'"{text}" with score {hypothesis.score:.4f}')
    note = ""
    if ended:
        note = f"Finished in this step: {', '.join(ended)}."
    last = [(BOS_ID, *ids)[-1] for ids in moment.ids]
    different = list(dict.fromkeys(last))
    read = labels(tokenizer, different)
    title = f"step {len(moment.ids[0]) + 1}: read {', '.join(map(isolated, read))}"
    table = Table("", head, rows, note=note)
    return Step(title, [table])


def _nodes(moments: Sequence[Moment], best: Ids, tokenizer: Tokenizer) -> list[Node]:
    """Return the beams of all steps and the finished hypotheses as a tree with the root BOS."""
    nodes = [Node("BOS", "", None, "best")]
    places = {Ids(): 0}  # tokens so far -> last node
    alive: set[Ids] = set()
    for hypothesis, _ in _finished(moments):
        for end in range(len(hypothesis.ids) + 1):
            alive.add(hypothesis.ids[:end])
    for moment in moments:
        totals = moment.totals.tolist()
        for ids, total in zip(moment.ids, totals, strict=True):
            if ids and total > -torch.inf:
                kind: NodeKind = "dropped"
                if best[: len(ids)] == ids:
                    kind = "best"
                elif ids in alive:
                    kind = "kept"
                (label,) = labels(tokenizer, ids[-1:])
                parent = places[ids[:-1]]
                places[ids] = len(nodes)
                nodes.append(Node(label, f"{total:.4f}", parent, kind))
        for hypothesis, _ in moment.finished:
            kind = "finished"
            if hypothesis.ids == best:
                kind = "best"
            score = f"score {hypothesis.score:.4f}"
            nodes.append(Node("EOS", score, places[hypothesis.ids], kind))
    return nodes


def _unmasked(inspected: Inspected, most: int) -> list[Figure]:
    """Return two tables with the words of every step: with and without the causal mask."""

    def table(title: str, note: str = "") -> Table:
        tokenizer = inspected.tokenizers.target
        steps = recompute_words(inspected.model, inspected.source, most)
        rows = [[str(len(words)), *labels(tokenizer, words)] for words in steps]
        head = ["step", *(f"word {row[0]}" for row in rows)]
        return Table(title, head, rows, note=note)

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
        read_ids = [BOS_ID, *words]
        read = Packed.from_rows([read_ids])
        logits = model.logits(model(source, read))
        logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
        words = logits.argmax(-1).tolist()
        yield words


@torch.inference_mode()
def distributions(inspected: Inspected) -> Iterator[Figure]:
    """Target and predicted distributions.

    In training, the target distribution has probability 1 for the reference token; label smoothing
    spreads a small part of the probability over the vocabulary. The loss is the cross-entropy
    between the target and the prediction of the model: the sum of the entropy of the target, which
    is constant, and the Kullback-Leibler (KL) divergence, which training reduces. Probabilities
    of a model are computed as in `nmt score`: PAD, UNK and BOS are excluded, and the probabilities
    of the other tokens sum to 1. The cross-entropy includes all tokens, as in training.
    """
    gold = [*inspected.target_ids, EOS_ID]
    target = torch.tensor(gold)
    logits = {}
    shares = {}
    for name in inspected.choice.checkpoint or _DEFAULT:
        model = inspected.load(name)
        hidden = model(inspected.source, inspected.target)
        logits[name] = model.logits(hidden)
        shares[name] = usable_log_probs(logits[name], target).exp()
    steps = []
    for place, label in enumerate(inspected.target_labels):
        of_place = {name: of_model[place] for name, of_model in shares.items()}
        likely = _likely(inspected, gold[place], of_place)
        steps.append(Step(label, [likely]))
    title = "Target and prediction, token by token"
    yield Steps(title, steps)
    smoothing = inspected.label_smoothing
    for name, of_model in logits.items():
        parts = losses(of_model, gold, smoothing)
        rows: Rows = []
        for label, numbers in zip(inspected.target_labels, parts.tolist(), strict=True):
            probability = math.exp(numbers[0])
            rows.append([label, probability, *numbers])
        sums = parts.sum(0).tolist()
        rows.append(["sum", None, *sums])
        note = f"Perplexity of the target: {math.exp(-parts[:, 0].mean()):.2f}."
        title = f"Checkpoint {name}"
        yield Table(title, _LOSSES, rows, total=True, note=note)
    vocab_size = inspected.tokenizers.target.vocab_size
    right, other, entropy = smoothed_target(vocab_size, smoothing)
    share = f"{smoothing:g} / {vocab_size:,}"
    lines = [
        f"probability of the reference token: 1 - {smoothing:g} + {share} = {right:.6f}",
        f"probability of each other token: {share} = {other:.6f}",
        f"cross-entropy = entropy of the target ({entropy:.4f} nats) + KL divergence",
    ]
    yield TextFigure("Label smoothing", lines)


def _likely(inspected: Inspected, gold: int, shares: Mapping[str, Tensor]) -> Heatmap:
    """Return the probabilities of the reference token and of the most probable tokens."""
    tokenizer = inspected.tokenizers.target
    vocab_size = tokenizer.vocab_size
    right, other, _ = smoothed_target(vocab_size, inspected.label_smoothing)
    tokens = [gold]
    for of_model in shares.values():
        top = of_model.topk(min(_NUM_DRAWN, vocab_size))
        tokens += top.indices.tolist()
    tokens = list(dict.fromkeys(tokens))
    if vocab_size <= _SMALL_VOCABULARY:
        tokens = list(range(vocab_size))
    values = []
    for token in tokens:
        row = [other]
        if token == gold:
            row = [right]
        row += [float(of_model[token]) for of_model in shares.values()]
        values.append(row)
    note = ""
    if len(tokens) < vocab_size:
        note = f"Shown: {len(tokens)} of {vocab_size:,} tokens."
    title = "Probability"
    columns = ["target", *shares]
    return Heatmap(title, values, labels(tokenizer, tokens), columns, 0.0, 1.0, note=note)


def usable_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
    """Return log probabilities without PAD, UNK and BOS, unless in ``gold``. (T, V)."""
    never = torch.arange(NUM_NEVER_CHOSEN)
    usable = logits.index_fill(1, never, -torch.inf)
    places = gold.unsqueeze(1)
    of_gold = logits.gather(1, places)
    return usable.scatter(1, places, of_gold).log_softmax(-1)


def smoothed_target(vocab_size: int, smoothing: float) -> tuple[float, float, float]:
    """Return the probability of the reference token and of each other token, and the entropy.

    >>> smoothed_target(4, 0.0)
    (1.0, 0.0, 0.0)
    """
    other = smoothing / vocab_size
    right = 1 - smoothing + other
    entropy = -right * math.log(right)
    if other:
        entropy -= (vocab_size - 1) * other * math.log(other)
    return right, other, abs(entropy)


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
    usable = usable_log_probs(logits, right)
    log_probs = usable.gather(1, right.unsqueeze(1)).squeeze(1)
    _, _, entropy = smoothed_target(logits.shape[1], smoothing)
    divergence = cross - entropy
    return torch.stack((log_probs, cross, divergence), 1)
