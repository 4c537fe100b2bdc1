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
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.extras.inspection.figure import (
    Bars,
    Cell,
    Figure,
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

_NUM_LIKELY = 5  # Next tokens shown for each beam of a trace.
_MORE_WORDS = 5  # Extra words that decoding without the causal mask may produce.
_UNMASKED = """\
Some explanations recompute every word at each step without the causal mask. Then each position \
reads the very word to predict, which never happens in training. With the mask, earlier \
words never change, so their keys and values can be cached."""
_ORDINALS = ("first", "second")
_FINISHED_COLUMNS = (
    "hypothesis", "length with EOS", "log probability", "length penalty", "coverage penalty",
    "score",
)  # fmt: skip
_LOSS_COLUMNS = (
    "read \N{RIGHTWARDS ARROW} predicted", "probability", "log probability", "cross-entropy",
    "KL divergence",
)  # fmt: skip
_NUM_DRAWN = 6  # Most probable tokens of each checkpoint in a heatmap of probabilities.
_SMALL_VOCABULARY = 24  # Largest vocabulary of which all tokens are drawn.
_DEFAULT_CHECKPOINTS = ("untrained", "best")


class FinishedHypothesis(NamedTuple):
    """A hypothesis that ends in EOS."""

    hypothesis: Hypothesis  # Without EOS.
    coverage: float  # Coverage penalty, which is a part of the score.


@dataclass
class Moment:
    """One step of the search. All fields but ``finished`` have an entry for each beam."""

    ids: list[Ids]  # Tokens so far.
    totals: Tensor  # Log probability of the tokens so far; minus infinity for an empty beam. (K,).
    log_probs: Tensor  # Of next tokens. The search modifies them in place after the step. (K, V).
    # Ids of the most probable next tokens, and their probabilities; both in descending order of the
    # probability. These are the model's probabilities, before any rule of the search.
    likely: list[tuple[list[int], list[float]]]
    coverage: list[float]  # Coverage penalty of each beam.
    # Hypotheses that finished in this step, best log probability first.
    finished: list[FinishedHypothesis] = field(default_factory=list)


class ObservingStepper(ModelStepper):
    """A `ModelStepper` that records the steps of the search for one sentence.

    Args:
        model: Model in evaluation mode.
        source: The source sentence.
        options: Options of the search.
    """

    def __init__(self, model: Transformer, source: Packed, options: DecodingConfig) -> None:
        self._source_lengths = source.lengths
        self._coverage_weight = options.coverage_penalty
        super().__init__(model, with_coverage=self._coverage_weight > 0)
        self.moments = list[Moment]()
        # For each beam of the next step, the index of the beam that it continues.
        self._parents = list[int]()

    @override
    def step(self, state: States, tokens: Tensor) -> tuple[Tensor, States]:
        """Advance the model; record the beams and their most probable next tokens.

        ``tokens`` are the tokens that the beams read, (1, K): BOS in the first step, which has one
        beam.
        """
        next_log_probs, state = super().step(state, tokens)  # (1, K, V)
        log_probs = next_log_probs[0].cpu()  # (K, V)
        ids: list[Ids] = [()]
        totals = torch.zeros(1)
        if self.moments:
            previous = self.moments[-1]
            chosen_ids = tokens[0].tolist()
            pairs = zip(self._parents, chosen_ids, strict=True)
            ids = [(*previous.ids[parent], token) for parent, token in pairs]
            # In float32, as in the search.
            added = previous.log_probs[self._parents, chosen_ids]
            totals = previous.totals[self._parents] + added
        num_likely = min(_NUM_LIKELY, log_probs.shape[1])
        probs, likely_ids = log_probs.exp().topk(num_likely)
        likely = list(zip(likely_ids.tolist(), probs.tolist(), strict=True))
        coverage = [0.0] * len(ids)  # until `coverage` is called, if it is
        moment = Moment(ids, totals, log_probs, likely, coverage)
        self.moments.append(moment)
        # The search does not call `select` if every beam continues itself.
        self._parents = list(range(len(ids)))
        return next_log_probs, state

    @override
    def select(self, state: States, sentences: Tensor, beams: Tensor) -> States:
        self._parents = beams[0].tolist()
        return super().select(state, sentences, beams)

    @override
    def coverage(self, state: States) -> Tensor:
        attention = super().coverage(state)
        penalties = coverage_penalty(attention, self._source_lengths, self._coverage_weight)
        self.moments[-1].coverage = penalties[0].tolist()
        return attention


@torch.inference_mode()
def trace_search(
    model: Transformer, source_ids: Sequence[int], options: DecodingConfig
) -> tuple[list[Moment], Sequence[Hypothesis]]:
    """Translate one sentence; return the steps of the search, and the hypotheses, best first.

    Args:
        model: Model in evaluation mode.
        source_ids: Source ids without BOS and EOS.
        options: Options of greedy or beam search.
    """
    read_ids = (*source_ids, EOS_ID)
    source = Packed.from_rows([read_ids], model.output_weight.device)
    stepper = ObservingStepper(model, source, options)
    (hypotheses,) = search(stepper, source, options)
    penalty = length_penalty(options)
    num_beams = options.beam_size
    if options.search == "greedy":
        num_beams = 1
    # The search returns only the best hypotheses, so those that finish are computed again. An EOS
    # among the best K continuations ends a hypothesis.
    for moment in stepper.moments:
        log_probs = moment.log_probs.unsqueeze(0)
        candidates = expand(moment.totals.unsqueeze(0), log_probs, num_beams)
        # Three lists of K numbers: beam that is continued, next token, and total log probability.
        columns = [values[0, :num_beams].tolist() for values in candidates]
        for beam, token, total in zip(*columns, strict=True):
            if token == EOS_ID and total > -torch.inf:
                ids = moment.ids[beam]
                coverage = moment.coverage[beam]
                score = total / penalty(len(ids) + 1) + coverage  # the length includes EOS
                hypothesis = Hypothesis(ids, total, score)
                moment.finished.append(FinishedHypothesis(hypothesis, coverage))
    return stepper.moments, hypotheses


def trace(inspected: Inspected) -> Iterator[Figure]:
    """Trace of the search.

    A hypothesis is a translation, finished or not. Greedy search takes the most probable token at
    each step. Beam search keeps the few hypotheses with the highest log probability: the beam. A
    hypothesis is finished when EOS, the end of the sentence, is among the best continuations; it is
    a dead end when no continuation stays in the beam. The score of a finished hypothesis is the log
    probability divided by the length penalty, plus the coverage penalty. The hypothesis with the
    highest score is the translation.
    """
    # The search and, if its translation was suspicious, the second search: options, steps and the
    # best hypothesis.
    searches = list[tuple[DecodingConfig, list[Moment], Ids]]()
    tokenizer = inspected.tokenizers.target

    def observe(ids: list[int], options: DecodingConfig) -> Sequence[Hypothesis]:
        check_options(options)
        moments, hypotheses = trace_search(inspected.model, ids, options)
        searches.append((options, moments, hypotheses[0].ids))
        return hypotheses

    output = inspected.translate(observe)
    # Index of the search whose translation is used: 1 for the second, which removed alarms.
    used_index = int(bool(output.retried))
    prefixes = [""]
    if len(searches) > 1:
        prefixes = ["First search: ", "Second search: "]
        alarms = ", ".join(output.retried or output.alarms)
        reason = f"The first translation was suspicious ({alarms}), so there is a second search."
        outcome = f"The {_ORDINALS[used_index]} translation is used. `nmt translate` does the same."
        yield TextFigure("Second search", [reason, outcome])
    for index, (options, moments, best) in enumerate(searches):
        prefix = prefixes[index]
        nodes = _nodes(moments, best, tokenizer)
        yield Tree(f"{prefix}Beam tree", nodes)
        steps = [_step(moment, tokenizer) for moment in moments]
        yield Steps(f"{prefix}Decoding step by step", steps)
        penalty = length_penalty(options)
        rows: Rows = []
        for hypothesis, coverage in _finished(moments):
            length = len(hypothesis.ids) + 1  # with EOS
            numbers = [length, hypothesis.log_prob, penalty(length), coverage, hypothesis.score]
            text = tokenizer.decode(hypothesis.ids)
            rows.append([text, *numbers])
        note = "The first row is the translation."
        if index != used_index:
            note = f"The final translation is from the {_ORDINALS[used_index]} search."
        title = f"{prefix}Finished hypotheses"
        yield Table(title, _FINISHED_COLUMNS, rows, note=note)
    if inspected.choice.unmasked:
        _, first_moments, _ = searches[0]
        yield from _unmasked(inspected, len(first_moments) + _MORE_WORDS)


def _finished(moments: Sequence[Moment]) -> list[FinishedHypothesis]:
    """Return the finished hypotheses of all steps, best score first.

    Hypotheses with equal scores stay in the order of the steps.
    """
    finished = list[FinishedHypothesis]()
    for moment in moments:
        finished += moment.finished
    return sorted(finished, key=lambda entry: -entry.hypothesis.score)


def check_options(options: DecodingConfig) -> None:
    """Raise an error for searches other than greedy and beam search."""
    is_unsupported = (
        options.search not in ("auto", "greedy", "beam")
        or options.diverse_beam_groups > 1
        or options.sampling
        or options.return_alternatives
    )
    if is_unsupported:
        why = "the decoding section of this model selects a different search"
        fix = "Override the key that selects it, for example: `set` decoding.sampling=false."
        problem = f"The view `trace` supports greedy and beam search; {why}."
        raise ConfigError(problem, fix=fix)


def _step(moment: Moment, tokenizer: Tokenizer) -> Step:
    """Return one step: the hypotheses, and their most probable next tokens."""
    rows: Rows = []
    totals = moment.totals.tolist()
    for ids, total, (next_ids, probs) in zip(moment.ids, totals, moment.likely, strict=True):
        if total > -torch.inf:  # the beam is not empty
            row: list[Cell] = [" ".join(labels(tokenizer, ids)) or "BOS", total]
            for label, prob in zip(labels(tokenizer, next_ids), probs, strict=True):
                row.append(f"{isolated(label)} {prob:.4f}")
            rows.append(row)
    columns = ["hypothesis", "log probability"]
    # A row has two cells before the next tokens, so the last rank is the length of the row minus 2.
    columns += [f"next {rank}" for rank in range(1, len(rows[0]) - 1)]
    endings = []
    for hypothesis, _ in moment.finished:
        text = isolated(tokenizer.decode(hypothesis.ids))
        endings.append(f'"{text}" with score {hypothesis.score:.4f}')
    note = ""
    if endings:
        note = f"Finished in this step: {', '.join(endings)}."
    # The model reads the last token of each beam: BOS in the first step.
    last_ids = [(BOS_ID, *ids)[-1] for ids in moment.ids]
    distinct_ids = list(dict.fromkeys(last_ids))
    read = labels(tokenizer, distinct_ids)
    title = f"step {len(moment.ids[0]) + 1}: read {', '.join(map(isolated, read))}"
    table = Table("", columns, rows, note=note)
    (next_ids, probs), *_ = moment.likely
    softmax = {"probability": probs}
    bars = Bars("Softmax of the first hypothesis", labels(tokenizer, next_ids), softmax, 1.0)
    return Step(title, [bars, table])


def _nodes(moments: Sequence[Moment], best: Ids, tokenizer: Tokenizer) -> list[Node]:
    """Return the beams of all steps and the finished hypotheses as a tree with the root BOS."""
    nodes = [Node("BOS", "", None, "best")]
    node_index = {Ids(): 0}  # tokens so far -> index in ``nodes`` of the last token
    # Tokens with which a finished hypothesis begins. All others lead to a dead end.
    beginnings = set[Ids]()
    for hypothesis, _ in _finished(moments):
        for end in range(len(hypothesis.ids) + 1):
            beginnings.add(hypothesis.ids[:end])
    for moment in moments:
        totals = moment.totals.tolist()
        for ids, total in zip(moment.ids, totals, strict=True):
            if ids and total > -torch.inf:  # neither the root nor an empty beam
                kind: NodeKind = "dropped"
                if best[: len(ids)] == ids:
                    kind = "best"
                elif ids in beginnings:
                    kind = "kept"
                (label,) = labels(tokenizer, ids[-1:])
                parent = node_index[ids[:-1]]
                node_index[ids] = len(nodes)
                nodes.append(Node(label, f"{total:.4f}", parent, kind))
        for hypothesis, _ in moment.finished:
            kind = "finished"
            if hypothesis.ids == best:
                kind = "best"
            score = f"score {hypothesis.score:.4f}"
            nodes.append(Node("EOS", score, node_index[hypothesis.ids], kind))
    return nodes


def _unmasked(inspected: Inspected, max_length: int) -> list[Figure]:
    """Return two tables with the words of every step: with and without the causal mask."""

    def table(title: str, note: str = "") -> Table:
        tokenizer = inspected.tokenizers.target
        steps = recompute_words(inspected.model, inspected.source, max_length)
        # Step n has n words, so there are as many columns of words as steps.
        rows = [[str(len(words)), *labels(tokenizer, words)] for words in steps]
        head = ["step", *(f"word {step}" for step, *_ in rows)]
        return Table(title, head, rows, note=note)

    masked = table("Recomputed with the causal mask")
    with without_causal_mask(inspected.model):
        return [masked, table("Recomputed without the causal mask", _UNMASKED)]


@torch.inference_mode()
def recompute_words(model: Transformer, source: Packed, max_length: int) -> Iterator[list[int]]:
    """Translate: at every step, predict all words again from the words of the previous step.

    With the causal mask, words never change, and the result equals that of greedy search. Without
    the mask (see `without_causal_mask`), earlier words read later words.

    Args:
        model: Model in evaluation mode.
        source: One source sentence.
        max_length: Maximum length of the output, with EOS.

    Yields:
        The ids of the words of each step. Every step has one more word; the last step ends in EOS.
    """
    words = list[int]()
    while len(words) < max_length and EOS_ID not in words[-1:]:  # there is no last word at first
        read_ids = [BOS_ID, *words]
        read = Packed.from_rows([read_ids], source.ids.device)
        logits = model.logits(model(source, read))
        logits[:, :NUM_NEVER_CHOSEN] = -torch.inf
        words = logits.argmax(-1).tolist()
        yield words


@torch.no_grad()
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
    gold_ids = torch.tensor(gold)
    # Name of the checkpoint -> values of every position: (T, V).
    logits = {}
    probs = {}
    for name in inspected.choice.checkpoint or _DEFAULT_CHECKPOINTS:
        model = inspected.load(name)
        hidden = model(inspected.source, inspected.target)
        logits[name] = model.logits(hidden).cpu()
        probs[name] = usable_log_probs(logits[name], gold_ids).exp()
    steps = []
    for position, label in enumerate(inspected.target_labels):
        next_probs = {name: model_probs[position] for name, model_probs in probs.items()}
        likely = _likely(inspected, gold[position], next_probs)
        steps.append(Step(label, [likely]))
    yield Steps("Target and prediction, token by token", steps)
    smoothing = inspected.label_smoothing
    for name, model_logits in logits.items():
        numbers = losses(model_logits, gold, smoothing)  # (T, 3)
        rows: Rows = []
        for label, row in zip(inspected.target_labels, numbers.tolist(), strict=True):
            log_prob, *_ = row
            rows.append([label, math.exp(log_prob), *row])
        sums = numbers.sum(0).tolist()
        rows.append(["sum", None, *sums])
        log_probs = numbers[:, 0]
        note = f"Perplexity of the target: {math.exp(-log_probs.mean()):.2f}."
        title = f"Checkpoint {name}"
        yield Table(title, _LOSS_COLUMNS, rows, total=True, note=note)
    vocab_size = inspected.tokenizers.target.vocab_size
    reference_prob, other_prob, entropy = smoothed_target(vocab_size, smoothing)
    share = f"{smoothing:g} / {vocab_size:,}"
    lines = [
        f"probability of the reference token: 1 - {smoothing:g} + {share} = {reference_prob:.6f}",
        f"probability of each other token: {share} = {other_prob:.6f}",
        f"cross-entropy = entropy of the target ({entropy:.4f} nats) + KL divergence",
    ]
    yield TextFigure("Label smoothing", lines)


def _likely(inspected: Inspected, gold: int, probs: Mapping[str, Tensor]) -> Bars:
    """Return the probabilities of the reference token and of the most probable tokens.

    Args:
        inspected: The model and the sentence.
        gold: Id of the reference token.
        probs: Name of the checkpoint -> probabilities at one position: (V,).
    """
    tokenizer = inspected.tokenizers.target
    vocab_size = tokenizer.vocab_size
    reference_prob, other_prob, _ = smoothed_target(vocab_size, inspected.label_smoothing)
    tokens = [gold]
    for model_probs in probs.values():
        top = model_probs.topk(min(_NUM_DRAWN, vocab_size))
        tokens += top.indices.tolist()
    tokens = list(dict.fromkeys(tokens))
    if vocab_size <= _SMALL_VOCABULARY:
        tokens = list(range(vocab_size))
    target = [other_prob] * len(tokens)
    target[tokens.index(gold)] = reference_prob
    values = {"target": target}
    for name, model_probs in probs.items():
        values[name] = model_probs[tokens].tolist()
    note = ""
    if len(tokens) < vocab_size:
        note = f"Shown: {len(tokens)} of {vocab_size:,} tokens."
    return Bars("Probability", labels(tokenizer, tokens), values, 1.0, note=note)


def usable_log_probs(logits: Tensor, gold: Tensor) -> Tensor:
    """Return log probabilities of next tokens; those of PAD, UNK and BOS are minus infinity.

    Only a reference token is never excluded, so that its log probability is finite.

    Args:
        logits: (T, V), not normalised.
        gold: Id of the reference token of each position. (T,).

    Returns:
        (T, V).
    """
    never_chosen = torch.arange(NUM_NEVER_CHOSEN)
    usable = logits.index_fill(1, never_chosen, -torch.inf)
    gold_columns = gold.unsqueeze(1)  # (T, 1)
    gold_logits = logits.gather(1, gold_columns)
    return usable.scatter(1, gold_columns, gold_logits).log_softmax(-1)


def smoothed_target(vocab_size: int, smoothing: float) -> tuple[float, float, float]:
    """Return the probability of the reference token and of each other token, and the entropy.

    The entropy is that of the whole target distribution, in nats.

    >>> smoothed_target(4, 0.0)
    (1.0, 0.0, 0.0)
    """
    other_prob = smoothing / vocab_size
    reference_prob = 1 - smoothing + other_prob
    entropy = -reference_prob * math.log(reference_prob)
    if other_prob:
        entropy -= (vocab_size - 1) * other_prob * math.log(other_prob)
    return reference_prob, other_prob, abs(entropy)  # -0.0 becomes 0.0


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
    gold_ids = torch.tensor(gold)
    cross_entropy = F.cross_entropy(logits, gold_ids, label_smoothing=smoothing, reduction="none")
    usable = usable_log_probs(logits, gold_ids)
    log_probs = usable.gather(1, gold_ids.unsqueeze(1)).squeeze(1)
    _, _, entropy = smoothed_target(logits.shape[1], smoothing)
    divergence = cross_entropy - entropy
    return torch.stack((log_probs, cross_entropy, divergence), 1)
