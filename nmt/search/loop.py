"""The search loop, shared by greedy search, beam search, sampling and others.

In every step the stepper computes log probabilities, the rules change them, and a selector chooses
the hypotheses that continue. Finished sentences leave the batch.

The stepper, the rules and the ranking of log probabilities run on the device. The selector decides
on the CPU from the best few tokens of every beam, so a step waits for the device only once. Plain
greedy search on a GPU waits every few steps.

Shapes: B active sentences, S source positions, K beams of each sentence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.packed import Packed
from nmt.search.greedy import greedy_without_waiting
from nmt.search.hypothesis import NONE, Constraints, NBestLists, length_penalty
from nmt.search.rules import Rules
from nmt.search.selector import SELECTORS, BeamState, S, SearchInputs, Selection, Stepper

_NO_COVERAGE = torch.zeros(())
_LEAST_COVERAGE = torch.finfo(torch.float32).tiny  # keeps the logarithm finite


@torch.inference_mode()
def search(
    stepper: Stepper[S],
    source: Packed,
    options: DecodingConfig,
    constraints: Sequence[Constraints] | None = None,
    check: Callable[[], object] = lambda: None,
    *,
    end_loops: bool = False,
) -> NBestLists:
    """Translate B sentences. The result of a sentence does not depend on the other sentences.

    Args:
        stepper: Computes log probabilities.
        source: Source ids, each sentence ending in EOS.
        options: Options of the search.
        constraints: Constraints of each sentence. Prefixes and required phrases may exceed the
            length limits. If only start tokens are set, the search is as fast as without them.
        check: Called before each step; may raise. Not called in greedy search on a GPU.
        end_loops: Whether to stop outputs that repeat endlessly. Ignored in greedy search on a GPU.

    Returns:
        ``n_best`` hypotheses of each sentence, best first; samples and alternatives in the order of
        generation. Fewer if fewer outputs are possible.

    Raises:
        ConfigError: The search is unknown, or does not support required phrases.
    """
    if constraints is None:
        constraints = [NONE] * len(source)
    has_phrases = any(entry.required for entry in constraints)
    name = _selector_name(options, has_phrases=has_phrases)
    selector_class = SELECTORS[name]
    if has_phrases and not selector_class.meets_required_phrases:
        raise ConfigError(
            f"decoding: {name} search does not support required phrases.",
            fix=f"Use beam search: remove the options that select {name} search.",
        )
    rules = Rules(source.lengths, options, constraints, stepper.max_positions, end_loops=end_loops)
    device = source.ids.device
    state = stepper.start(source)
    # Start with one beam per sentence: K copies of the empty output would give K equal results.
    beams = BeamState.first(len(source))
    # Start token of each sentence; empty if the batch has no start tokens.
    starts = [entry.start for entry in constraints if entry.start is not None]
    if starts:
        # The decoder reads BOS, and each hypothesis continues with its start token.
        _, state = stepper.step(state, beams.tokens.to(device))
        start_selection = Selection(torch.tensor(starts).unsqueeze(1), beams.totals)
        beams, _ = beams.advance(start_selection)
    # On a CPU there is nothing to wait for.
    if name == "greedy" and device.type != "cpu" and rules.only_limit_length:
        beams = BeamState(*(tensor.to(device) for tensor in beams))
        penalty = length_penalty(options)
        results = greedy_without_waiting(stepper, state, beams, rules.limits, penalty)
        return _without_starts(results) if starts else results
    max_lengths = rules.limits[1]
    inputs = SearchInputs(source, options, constraints, max_lengths, stepper.tokens)
    selector = selector_class(inputs)
    while len(beams.sentences):
        check()
        tokens = beams.tokens.to(device)
        log_probs, state = stepper.step(state, tokens)  # (B, K, V)
        rules(log_probs, beams.sentences, beams.history)
        coverage = _NO_COVERAGE.expand_as(beams.totals)
        if options.coverage_penalty:
            lengths = source.lengths[beams.sentences]
            attention = stepper.coverage(state)
            coverage = coverage_penalty(attention, lengths, options.coverage_penalty)
            coverage = coverage.cpu()
        selection = selector.select(beams, log_probs, coverage)
        beams, rows_and_beams = beams.advance(selection)
        # None if no beam moved, as in most steps of greedy search: caches are not copied.
        if rows_and_beams is not None:
            state = stepper.select(state, *rows_and_beams)
    results = selector.results()
    return _without_starts(results) if starts else results


def _without_starts(results: NBestLists) -> NBestLists:
    """Remove the start token, the first id, from each hypothesis. Changes ``results``."""
    for hypotheses in results:
        hypotheses[:] = [replace(entry, ids=entry.ids[1:]) for entry in hypotheses]
    return results


def _selector_name(options: DecodingConfig, *, has_phrases: bool) -> str:
    """Return ``options.search``; if it is ``auto``, the search that the other options imply."""
    if options.search != "auto":
        return options.search
    # Whether the options imply each search. The first search that they imply is used.
    is_implied = {
        "sampling": options.sampling,
        "alternatives": options.return_alternatives,
        "diverse": options.diverse_beam_groups > 1,
        "constrained": has_phrases,
        # A beam of one equals greedy search, and also supports the coverage penalty.
        "greedy": options.beam_size == 1 and not options.coverage_penalty,
    }
    return next((name for name in is_implied if is_implied[name]), "beam")


def coverage_penalty(coverage: Tensor, source_lengths: Tensor, weight: float) -> Tensor:
    """Return weight x sum over source tokens of log(min(coverage, 1)), at most 0.

    Source: Wu et al. (2016), section 7. The source EOS is excluded, because it has no translation.

    Args:
        coverage: Attention to each source token, summed over all steps. (B, K, S), float32.
        source_lengths: Tokens of each source, EOS included. (B,), int.
        weight: The paper's beta.

    Returns:
        (B, K), float32.

    >>> coverage_penalty(torch.tensor([[[0.5, 2.0, 0.1]]]), torch.tensor([3]), 2.0)
    tensor([[-1.3863]])
    """
    positions = torch.arange(coverage.shape[-1], device=coverage.device)
    num_counted = (source_lengths - 1).unsqueeze(-1)  # tokens without EOS. (B, 1)
    is_outside = positions >= num_counted  # EOS or padding. (B, S)
    # Clamped: a source token without any attention would make every score minus infinity.
    logs = coverage.clamp(_LEAST_COVERAGE, 1).log()
    logs = logs.masked_fill(is_outside.unsqueeze(1), 0)
    return weight * logs.sum(-1)
