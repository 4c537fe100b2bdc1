"""Measure the decoding speed of nmt against a simple search without a key-value cache.

    python scripts/bench_decoding.py runs/multi30k-de-en --threads 2 --rounds 3

Both searches use the same model, rules and scores, greedily and with beam size 5. They take turns
in one process. nmt uses `greedy_search` and `beam_search`: it sorts sentences by length, caches
keys and values, and removes finished sentences from the batch. The simple search keeps the input
order and encodes the source once. It runs the decoder over the whole prefix at every step, and
keeps finished sentences until the whole batch is done. It projects only the last position to the
vocabulary, so the comparison does not include a wasteful projection.

Tokens are those of the best outputs, including EOS. Rates are medians over the rounds. A ratio
compares both searches on the same sentences, which are a test set of the run. Without a model
folder, the script uses random weights, the text of the demo, and outputs as long as their sources.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from bench_text import add_text_options, read_text
from torch import Tensor

from nmt.checkpoint.model_folder import load_model
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.data.demo import demo_pairs
from nmt.device.device import prepare_process
from nmt.inference.stepper import ModelStepper
from nmt.model.transformer import Transformer, build_model
from nmt.packed import Packed
from nmt.search.hypothesis import Hypothesis, length_penalty
from nmt.search.loop import search
from nmt.search.rules import delay_end, end_at_limit, length_limits
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID

RANDOM_VOCABULARY = 8000
RANDOM_LIMITS = DecodingConfig(max_length_factor=1.0, max_length_offset=2)

Rows = Sequence[list[int]]
Decoder = Callable[[Packed, DecodingConfig], list[list[Hypothesis]]]


def forbid(scores: Tensor, length: int, shortest: Tensor, longest: Tensor) -> None:
    """Set the scores of forbidden tokens to -inf, in place, by the rules that are always on.

    Args:
        scores: Log probabilities of the next token. (B, K, V).
        length: Tokens of the output, with the next token.
        shortest: Minimum output length of each sentence, with EOS. (B,).
        longest: Maximum output length of each sentence, with EOS. (B,).
    """
    scores[..., [PAD_ID, UNK_ID, BOS_ID]] = -torch.inf
    delay_end(scores, shortest > length)
    end_at_limit(scores, longest <= length)


@dataclass(slots=True)
class Measured:
    """Times and outputs of one search in all rounds."""

    seconds: list[float] = field(default_factory=list)
    outputs: list[tuple[int, ...]] = field(default_factory=list)

    def rates(self, amount: int) -> tuple[float, float]:
        """Return the median and the best rate, in ``amount`` per second."""
        rates = [amount / seconds for seconds in self.seconds]
        return statistics.median(rates), max(rates)

    @property
    def num_tokens(self) -> int:
        """Output tokens of a round, including EOS."""
        return sum(len(ids) + 1 for ids in self.outputs)


def prefix_log_probs(model: Transformer, memory: Tensor, source: Packed, prefix: Tensor) -> Tensor:
    """Return log probabilities (R, V) of the next token; decodes the whole ``prefix`` (R, T)."""
    num_rows, length = prefix.shape
    num_tokens = num_rows * length
    # Start of each row among the packed tokens, and the end of the last row.
    offsets = torch.arange(0, num_tokens + 1, length, dtype=torch.int32)
    target = Packed(prefix.flatten(), offsets, length)
    hidden = model.decode(target, memory, source)
    states = hidden.view(num_rows, length, -1)  # (R, T, D)
    logits = model.logits(states[:, -1])
    return logits.log_softmax(-1)


def plain_greedy(model: Transformer) -> Decoder:
    """Return greedy search without a cache."""

    def decode(source: Packed, config: DecodingConfig) -> list[list[Hypothesis]]:
        shortest, longest = length_limits(source.lengths, config)
        penalty = length_penalty(config)
        memory = model.encode(source)
        num_rows = len(source)
        prefix = torch.full((num_rows, 1), BOS_ID)  # BOS and the output so far. (R, T).
        totals = torch.zeros(num_rows)  # Log probability of each output.
        results: list[list[Hypothesis]] = [[] for _ in range(num_rows)]  # Empty until EOS.
        while not all(results):
            # `forbid` expects a dimension of beams. (R, 1, V).
            log_probs = prefix_log_probs(model, memory, source, prefix).unsqueeze(1)
            forbid(log_probs, prefix.shape[1], shortest, longest)
            best_log_probs, ids = log_probs[:, 0].max(-1)
            totals = totals + best_log_probs
            is_end = ids == EOS_ID
            ended_rows = is_end.nonzero().flatten()
            for row in ended_rows.tolist():
                if not results[row]:
                    total = float(totals[row])
                    output = tuple(prefix[row, 1:].tolist())  # Without BOS.
                    score = total / penalty(len(output) + 1)  # EOS counts, too.
                    results[row] = [Hypothesis(output, total, score)]
            next_ids = ids.unsqueeze(1)
            prefix = torch.cat((prefix, next_ids), dim=1)
        return results

    return decode


def plain_beam(model: Transformer) -> Decoder:
    """Return beam search without a cache."""

    def decode(source: Packed, config: DecodingConfig) -> list[list[Hypothesis]]:
        num_sentences = len(source)
        num_beams = config.beam_size
        shortest, longest = length_limits(source.lengths, config)
        penalty = length_penalty(config)
        # The decoder reads each sentence `num_beams` times: B sentences become R rows.
        copies = []
        for sentence_ids in source.rows():
            copies += [sentence_ids] * num_beams
        packed = Packed.from_rows(copies)
        padded = source.pad(model.encode(source))  # (B, S, D)
        repeated = padded.repeat_interleave(num_beams, dim=0)  # (R, S, D)
        memory = repeated[packed.mask()]
        # BOS and the output so far of each beam. (B, K, T).
        prefix = torch.full((num_sentences, num_beams, 1), BOS_ID)
        # Log probability of each beam, best first. At the start, all beams are equal, so only the
        # first one counts. (B, K).
        totals = torch.full((num_sentences, num_beams), -torch.inf)
        totals[:, 0] = 0.0
        pools: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]  # Finished outputs.
        is_done = [False] * num_sentences
        while not all(is_done):
            length = prefix.shape[2]
            rows = prefix.flatten(0, 1)  # (R, T)
            log_probs = prefix_log_probs(model, memory, packed, rows)
            log_probs = log_probs.view(num_sentences, num_beams, -1)  # (B, K, V)
            forbid(log_probs, length, shortest, longest)
            vocab_size = log_probs.shape[-1]
            next_totals = totals.unsqueeze(-1) + log_probs
            next_totals = next_totals.flatten(1)  # (B, K * V)
            # A beam has one continuation with EOS, so of 2K at least K continue.
            best_totals, indices = next_totals.topk(2 * num_beams, dim=-1)  # (B, 2K)
            parents = indices // vocab_size
            ids = indices % vocab_size
            is_end = ids == EOS_ID
            ended = is_end[:, :num_beams].nonzero()
            for sentence, rank in ended.tolist():
                total = float(best_totals[sentence, rank])
                if not is_done[sentence] and total > -torch.inf:
                    parent = parents[sentence, rank]
                    output = tuple(prefix[sentence, parent, 1:].tolist())  # Without BOS.
                    hypothesis = Hypothesis(output, total, total / penalty(length))
                    pools[sentence].append(hypothesis)
            continued = best_totals.masked_fill(is_end, -torch.inf)
            totals, order = continued.topk(num_beams, dim=-1)  # (B, K)
            parents = parents.gather(1, order)
            ids = ids.gather(1, order)
            # Each new beam starts with the prefix of its parent.
            prefix_indices = parents.unsqueeze(-1).expand(-1, -1, length)
            prefix = prefix.gather(1, prefix_indices)
            next_ids = ids.unsqueeze(-1)
            prefix = torch.cat((prefix, next_ids), dim=-1)  # (B, K, T + 1)
            for sentence, pool in enumerate(pools):
                best_total = float(totals[sentence, 0])
                # No continuation gets a better score: log probabilities only fall.
                reachable = best_total / penalty(int(longest[sentence]))
                pool_scores = [hypothesis.score for hypothesis in pool]
                top_score = max(pool_scores, default=-torch.inf)
                is_final = best_total == -torch.inf or top_score >= reachable
                if len(pool) >= num_beams or is_final:
                    is_done[sentence] = True
        for pool in pools:
            pool.sort(key=lambda hypothesis: -hypothesis.score)
        return [pool[:1] for pool in pools]

    return decode


def our_search(model: Transformer) -> Decoder:
    """Return the search of nmt."""
    stepper = ModelStepper(model)

    def decode(source: Packed, config: DecodingConfig) -> list[list[Hypothesis]]:
        return search(stepper, source, config)

    return decode


def in_batches(order: Sequence[int], size: int) -> list[list[int]]:
    """Split row numbers into batches of ``size``."""
    starts = range(0, len(order), size)
    return [list(order[start : start + size]) for start in starts]


def load(
    folder: Path, lines: Sequence[str]
) -> tuple[Transformer, list[list[int]], DecodingConfig, str]:
    """Return the model, source ids with EOS, decoding settings and a name for the output.

    If ``folder`` does not exist, the model has random weights.
    """
    if folder.is_dir():
        bundle = load_model(folder)
        encoded = bundle.tokenizers.source.encode_batch(lines)
        rows = [[*ids, EOS_ID] for ids in encoded]
        return bundle.model, rows, bundle.config.decoding, str(folder)
    torch.manual_seed(1)
    tiny = ModelConfig(preset="tiny")
    model = build_model(tiny, RANDOM_VOCABULARY, RANDOM_VOCABULARY)

    def id_of(word: str) -> int:
        """Return an id by a hash of the word; ids 0 to 3 are special symbols."""
        word_hash = zlib.crc32(word.encode())
        return 4 + word_hash % (RANDOM_VOCABULARY - 4)

    rows = []
    for line in lines:
        ids = map(id_of, line.split())
        rows.append([*ids, EOS_ID])
    return (
        model.eval(),
        rows,
        RANDOM_LIMITS,
        f"random weights, preset tiny ({folder} does not exist)",
    )


@dataclass(frozen=True, slots=True)
class Loop:
    """A search that takes turns with others."""

    decode: Decoder
    rows: Rows
    """Source ids of each sentence, with EOS."""
    batches: Rows
    """Of each batch: the indices of its rows."""
    measured: Measured = field(default_factory=Measured)


@torch.inference_mode()
def measure(loop: Loop, config: DecodingConfig) -> None:
    """Translate all rows once, and record outputs and seconds."""
    outputs: list[tuple[int, ...]] = [()] * len(loop.rows)
    start = perf_counter()
    for batch in loop.batches:
        source = Packed.from_rows([loop.rows[row] for row in batch])
        results = loop.decode(source, config)
        for row, hypotheses in zip(batch, results, strict=True):
            best, *_ = hypotheses
            outputs[row] = best.ids
    seconds = perf_counter() - start
    loop.measured.seconds.append(seconds)
    loop.measured.outputs = outputs


def compare(
    model: Transformer, rows: Rows, config: DecodingConfig, options: argparse.Namespace
) -> list[str]:
    """Run all rounds; return rows of the table, and a line on how many outputs are equal."""
    search_name = f"beam {config.beam_size}"
    plain = plain_beam(model)
    if config.beam_size == 1:
        search_name = "greedy"
        plain = plain_greedy(model)
    nmt_search = our_search(model)
    first_rows = rows[: options.slow_sentences]  # The simple search is slow.
    num_first = len(first_rows)

    def by_length(some_rows: Rows) -> list[list[int]]:
        order = sorted(range(len(some_rows)), key=lambda row: len(some_rows[row]))
        return in_batches(order, options.batch_size)

    in_order = in_batches(range(num_first), options.batch_size)
    plain_loop = Loop(plain, first_rows, in_order)
    nmt_loop = Loop(nmt_search, first_rows, by_length(first_rows))
    loops = {"plain": plain_loop, "nmt": nmt_loop}
    if len(rows) > num_first:
        loops["nmt, all"] = Loop(nmt_search, rows, by_length(rows))
    warm_up_rows = first_rows[:8]
    all_at_once = [list(range(len(warm_up_rows)))]
    warm_up = Loop(nmt_search, warm_up_rows, all_at_once)
    measure(warm_up, config)  # not counted, because the first search is slower
    for _ in range(options.rounds):
        for loop in loops.values():
            measure(loop, config)
    baseline, _ = plain_loop.measured.rates(num_first)
    table = []
    for name, loop in loops.items():
        num_rows = len(loop.rows)
        measured = loop.measured
        sentence_rate, best_sentence_rate = measured.rates(num_rows)
        token_rate, best_token_rate = measured.rates(measured.num_tokens)
        ratio = ""
        if num_rows == num_first:  # only rates on the same sentences are comparable
            ratio = f"{sentence_rate / baseline:.2f}"
        sentence_rates = f"{sentence_rate:.1f} ({best_sentence_rate:.1f})"
        token_rates = f"{token_rate:.0f} ({best_token_rate:.0f})"
        table.append(
            f"| {search_name} | {name} | {num_rows} | {sentence_rates} | {token_rates} | {ratio} |"
        )
    output_pairs = zip(plain_loop.measured.outputs, nmt_loop.measured.outputs, strict=True)
    num_equal = sum(plain_ids == nmt_ids for plain_ids, nmt_ids in output_pairs)
    return [*table, f"{search_name}: {num_equal} of {num_first} outputs are equal"]


def main() -> None:
    """Run the measurement and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_text_options(parser)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each search")
    parser.add_argument("--sentences", type=int, default=None, help="sentences; default: all")
    parser.add_argument("--slow-sentences", type=int, default=128, help="for the simple search")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences in a batch")
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 5])
    options = parser.parse_args()
    prepare_process(options.threads)
    if options.model.is_dir():
        lines, *_ = read_text(options)
    else:
        lines = [source for source, _ in demo_pairs("test", "en", "de")]
    lines = lines[: options.sentences]
    lines = list(filter(str.strip, lines))
    model, rows, limits, name = load(options.model, lines)
    print(f"model: {name}\n{len(rows)} sentences")
    print(
        f"batches of {options.batch_size}, float32, {options.threads} threads, {options.rounds} "
        f"rounds, torch {torch.__version__}, Python {platform.python_version()}\n"
    )
    print("| search | loop | sentences | sentences/s (best) | tokens/s (best) | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    agreement = []
    for beam_size in options.beam_sizes:
        config = limits.model_copy(update={"beam_size": beam_size, "n_best": 1})
        *table, equal = compare(model, rows, config, options)
        print("\n".join(table), flush=True)
        agreement.append(equal)
    print("\n" + "\n".join(agreement))


if __name__ == "__main__":
    main()
