"""``nmt inspect MODEL trace``: how a translation comes about, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from nmt.config.decoding import DecodingConfig
from nmt.errors import ConfigError
from nmt.extras.inspection.figure import (
    Cell,
    Figure,
    Node,
    NodeKind,
    Part,
    Step,
    Steps,
    Table,
    Text,
    Tree,
)
from nmt.extras.inspection.observer import SearchStep, SearchTrace, recompute_words, trace_search
from nmt.extras.inspection.recording import without_causal_mask
from nmt.extras.inspection.subject import Subject, labels
from nmt.search.hypothesis import Hypothesis, length_penalty
from nmt.text import BOS_ID

_NUM_LIKELY = 5
_MAX_BEAMS = 20
_SEARCHES = ("auto", "greedy", "beam")
_MORE_WORDS = 5
_EXPLANATION = """\
Greedy search takes the most probable next token; beam search keeps the best few hypotheses by the \
sum of their log probabilities. A hypothesis is finished when EOS is among the best; one that no \
other continues is a dead end. The best score is returned: the log probability divided by the \
length penalty, and the coverage penalty added."""
_UNMASKED = """\
Some texts recompute every word at each step without the causal mask. Each position then reads the \
word that it is to predict, which training with the mask has not prepared it for. With the mask \
nothing changes once it is said, so keys and values can be cached."""


def trace(subject: Subject) -> Part:
    """Every step with its likely tokens, the beam tree, and what finished."""
    searches: list[tuple[SearchTrace, DecodingConfig]] = []

    def search(ids: list[int], options: DecodingConfig) -> Sequence[Hypothesis]:
        check_options(options)
        found = trace_search(subject.model, ids, options, _NUM_LIKELY)
        searches.append((found, options))
        return found.results

    output, figures = subject.translate(search), list[Figure]()
    for found, options in searches:
        steps = [
            Step(f"step {number}: read {_read(subject, step)}", [_beams(subject, step)])
            for number, step in enumerate(found.steps, 1)
        ]
        figures.append(Steps("Decoding step by step", steps))
        figures.append(Tree("Beam tree", _nodes(subject, found)))
        figures.append(_results(subject, found, options))
    if len(searches) > 1:
        kept = "The second translation is taken" if output.retried else "The first one is kept"
        alarms = ", ".join(output.retried or output.alarms)
        lines = [f"The first translation raised an alarm ({alarms}), so there are two searches."]
        figures.append(Text("Guard", [*lines, f"{kept}. `nmt translate` retries as well."]))
    if subject.choice.unmasked:
        figures.append(_unmasked(subject, len(searches[0][0].steps)))
    return Part("trace", "Trace of the search", _EXPLANATION, figures)


def check_options(options: DecodingConfig) -> None:
    """Refuse decoding options that a trace cannot follow: another search, or a wide beam."""
    is_single = options.sampling or options.return_alternatives
    if is_single or options.diverse_beam_groups > 1 or options.search not in _SEARCHES:
        raise ConfigError(
            "trace follows greedy and beam search, and section decoding chooses another search.",
            fix="Change it with `set`, such as decoding.sampling=false.",
        )
    if options.beam_size > _MAX_BEAMS:
        raise ConfigError(
            f"trace draws at most {_MAX_BEAMS} beams; decoding.beam_size is {options.beam_size}.",
            fix="Search with a smaller beam.",
        )


def _piece(subject: Subject, token: int) -> str:
    return labels(subject.tokenizers.target, [token])[0]


def _read(subject: Subject, step: SearchStep) -> str:
    """Name the tokens that a step reads."""
    tokens = dict.fromkeys(beam.ids[-1] if beam.ids else BOS_ID for beam in step.beams)
    return ", ".join(labels(subject.tokenizers.target, list(tokens)))


def _beams(subject: Subject, step: SearchStep) -> Table:
    """What one step continued and found."""
    rows: list[list[Cell]] = [
        [" ".join(labels(subject.tokenizers.target, beam.ids)) or "BOS", beam.log_prob,
         *(f"{_piece(subject, token)} {share:.3f}" for token, share in beam.likely)]
        for beam in step.beams
        if beam.log_prob > -float("inf")
    ]  # fmt: skip
    head = ["hypothesis", "log probability"]
    head += [f"next {rank}" for rank in range(1, len(rows[0]) - 1)]
    ended = [
        f"{subject.tokenizers.target.decode(h.ids)!r} with score {h.score:.4f}"
        for _, h, _ in step.finished
    ]
    note = f"Finished here: {', '.join(ended)}." if ended else ""
    return Table("Hypotheses", head, rows, note)


def _results(subject: Subject, found: SearchTrace, options: DecodingConfig) -> Table:
    """Finished hypotheses by score, and how each score comes about."""
    ended = [each for step in found.steps for each in step.finished]
    ended.sort(key=lambda each: -each.hypothesis.score)
    penalty = length_penalty(options)
    rows: list[list[Cell]] = []
    for _, hypothesis, coverage in ended:
        length = len(hypothesis.ids) + 1
        values = length, hypothesis.log_prob, penalty(length), coverage, hypothesis.score
        rows.append([subject.tokenizers.target.decode(hypothesis.ids), *values])
    head = ["hypothesis", "length with EOS", "log probability", "divided by", "coverage", "score"]
    note = "The first one is the translation. Of equal scores the one found first goes before."
    return Table("Finished hypotheses", head, rows, note)


def _nodes(subject: Subject, found: SearchTrace) -> list[Node]:
    """Return the beams of all steps, and the ends, as a tree below BOS."""
    nodes = [Node("BOS", "", None, "best")]
    places: list[dict[int, int]] = [{0: 0}]  # of each step: beam -> node
    best = found.results[0].ids
    alive = {each.hypothesis.ids[:n] for step in found.steps for each in step.finished
             for n in range(len(each.hypothesis.ids) + 1)}  # fmt: skip
    for number, step in enumerate(found.steps):
        if number:
            places.append({})
            for place, beam in enumerate(step.beams):
                if beam.log_prob == -float("inf") or beam.parent is None:
                    continue
                is_best = best[: len(beam.ids)] == beam.ids
                kind: NodeKind = "best" if is_best else "kept" if beam.ids in alive else "dropped"
                places[-1][place] = len(nodes)
                parent, label = places[-2][beam.parent], _piece(subject, beam.ids[-1])
                nodes.append(Node(label, f"{beam.log_prob:.3f}", parent, kind))
        for beam_place, hypothesis, _ in step.finished:
            kind = "best" if hypothesis.ids == best else "finished"
            nodes.append(Node("EOS", f"{hypothesis.score:.4f}", places[-1][beam_place], kind))
    return nodes


def _unmasked(subject: Subject, num_steps: int) -> Steps:
    """Recompute all words at every step, with and without the causal mask."""
    most = num_steps + _MORE_WORDS
    masked = list(recompute_words(subject.model, subject.source, most))
    with without_causal_mask(subject.model):
        seen = list(recompute_words(subject.model, subject.source, most))
    steps = []
    for number in range(max(len(masked), len(seen))):
        head = ["causal mask", *(f"word {place}" for place in range(1, number + 2))]
        rows = [["with the mask", *_changes(subject, masked, number)],
                ["without it", *_changes(subject, seen, number)]]  # fmt: skip
        padded = [[*row, *[None] * (len(head) - len(row))] for row in rows]
        steps.append(Step(f"step {number + 1}", [Table("Words", head, padded)]))
    return Steps("Recomputed without the causal mask", steps, _UNMASKED)


def _changes(subject: Subject, steps: Sequence[list[int]], number: int) -> list[str]:
    """Return the words of a step, those that changed with what they were; none if it ended."""
    if number >= len(steps):
        return ["(ended)"]
    before = steps[number - 1] if number else []
    names, old = (labels(subject.tokenizers.target, ids) for ids in (steps[number], before))
    pairs = zip_longest(names, old)
    return [name if was in (None, name) else f"{name} (was {was})" for name, was in pairs]
