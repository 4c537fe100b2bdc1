"""Segments that were searched -> results of lines: details of outputs, and parts joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from nmt.inference.engine import Engine
from nmt.inference.result import (
    Alarm,
    Alternative,
    TranslationResult,
    align_words,
    join_alignments,
    score_tokens,
    subwords,
)
from nmt.inference.segment import LONGEST_LINE, Segment
from nmt.text.tokenizer import Tokenizers


def add_details(
    batches: Iterable[Sequence[Segment]],
    engine: Engine,
    tokenizers: Tokenizers,
    wanted: frozenset[str],
) -> None:
    """Give each segment what is wanted of its best output.

    Args:
        batches: Segments that the engine takes at once.
        engine: Has attention, or probabilities of tokens.
        tokenizers: Of both languages.
        wanted: Of ``alignments``, ``attention`` and ``token_scores``.
    """
    source, target = subwords(tokenizers.source), subwords(tokenizers.target)
    for batch in batches:
        best = [segment.hypotheses[0].ids for segment in batch]
        pairs = [segment.read_ids for segment in batch], best
        if wanted & {"alignments", "attention"}:
            attention = engine.attention(*pairs)
            for segment, ids, weights in zip(batch, best, attention, strict=True):
                words = [source[i] for i in segment.ids], [target[i] for i in ids]
                weights = [row[len(segment.tag) :] for row in weights]
                segment.aligned = align_words(weights, *words)
        if "token_scores" in wanted:
            log_probs = engine.token_log_probs(*pairs)
            for segment, ids, own in zip(batch, best, log_probs, strict=True):
                segment.tokens = score_tokens(target, ids, own)


def join_segments(
    source: str,
    segments: Sequence[Segment],
    wanted: frozenset[str],
    text_of: Callable[[Sequence[int]], str],
    joiner: str,
) -> TranslationResult:
    """Return the result of a line: what was found for its independent segments, the best of each.

    Args:
        source: The line.
        segments: Its parts in order; none of a blank line.
        wanted: See `add_details`.
        text_of: Decodes tokens.
        joiner: Stands between the outputs of two segments.
    """
    links, attention = join_alignments([own.aligned for own in segments if own.aligned])
    if len(segments) == 1:
        found = [Alternative(text_of(h.ids), h.score, h.log_prob) for h in segments[0].hypotheses]
    else:
        best = [segment.hypotheses[0] for segment in segments]
        text = joiner.join(text_of(hypothesis.ids) for hypothesis in best)
        score = sum(hypothesis.score for hypothesis in best) / max(1, len(best))
        log_prob = sum((hypothesis.log_prob for hypothesis in best), 0.0)
        found = [Alternative(text, score, log_prob)]
    is_truncated = bool(segments) and len(source) > LONGEST_LINE
    truncated: tuple[Alarm, ...] = ("truncated",) if is_truncated else ()
    tokens = tuple(chain(*(segment.tokens for segment in segments)))
    return TranslationResult(
        source,
        found[0].text,
        found[0].score,
        tuple(found) if segments else (),
        # Every alarm once, in the order of the first ones.
        alarms=(*truncated, *dict.fromkeys(chain(*(own.alarms for own in segments)))),
        retried=tuple(dict.fromkeys(chain(*(own.retried for own in segments)))),
        alignment=links if "alignments" in wanted else None,
        attention=attention if "attention" in wanted else None,
        log_prob=found[0].log_prob,
        tokens=tokens if "token_scores" in wanted else None,
        num_tokens=sum(len(segment.hypotheses[0].ids) + 1 for segment in segments),
    )
