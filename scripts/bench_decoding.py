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
    """Set the scores of forbidden tokens to -inf, in place, by the rules that are always on."""
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
    rows, width = prefix.shape
    num_tokens = rows * width
    ends = torch.arange(0, num_tokens + 1, width, dtype=torch.int32)
    target = Packed(prefix.flatten(), ends, width)
    hidden = model.decode(target, memory, source)
    states = hidden.view(rows, width, -1)  # (R, T, D)
    logits = model.logits(states[:, -1])
    return logits.log_softmax(-1)


def plain_greedy(model: Transformer) -> Decoder:
    """Return greedy search without a cache."""

    def decode(source: Packed, config: DecodingConfig) -> list[list[Hypothesis]]:
        shortest, longest = length_limits(source.lengths, config)
        penalty = length_penalty(config)
        memory = model.encode(source)
        prefix = torch.full((len(source), 1), BOS_ID)
        totals = torch.zeros(len(source))
        results: list[list[Hypothesis]] = [[] for _ in range(len(source))]
        while not all(results):
            scores = prefix_log_probs(model, memory, source, prefix).unsqueeze(1)
            forbid(scores, prefix.shape[1], shortest, longest)
            best, ids = scores[:, 0].max(-1)
            totals = totals + best
            is_end = ids == EOS_ID
            ended = is_end.nonzero().flatten()
            for row in ended.tolist():
                if not results[row]:
                    total = float(totals[row])
                    output = tuple(prefix[row, 1:].tolist())
                    score = total / penalty(len(output) + 1)
                    results[row] = [Hypothesis(output, total, score)]
            tokens = ids.unsqueeze(1)
            prefix = torch.cat((prefix, tokens), dim=1)
        return results

    return decode


def plain_beam(model: Transformer) -> Decoder:
    """Return beam search without a cache."""

    def decode(source: Packed, config: DecodingConfig) -> list[list[Hypothesis]]:
        count = len(source)
        beams = config.beam_size
        shortest, longest = length_limits(source.lengths, config)
        penalty = length_penalty(config)
        copies = []
        for row_ids in source.rows():
            copies += [row_ids] * beams
        packed = Packed.from_rows(copies)
        padded = source.pad(model.encode(source))
        repeated = padded.repeat_interleave(beams, dim=0)
        memory = repeated[packed.mask()]
        prefix = torch.full((count, beams, 1), BOS_ID)
        totals = torch.full((count, beams), -torch.inf)
        totals[:, 0] = 0.0
        pools: list[list[Hypothesis]] = [[] for _ in range(count)]
        done = [False] * count
        while not all(done):
            length = prefix.shape[2]
            rows = prefix.flatten(0, 1)
            scores = prefix_log_probs(model, memory, packed, rows)
            scores = scores.view(count, beams, -1)
            forbid(scores, length, shortest, longest)
            vocab_size = scores.shape[-1]
            continued = totals.unsqueeze(-1) + scores
            continued = continued.flatten(1)
            best, flat = continued.topk(2 * beams, dim=-1)
            parents = flat // vocab_size
            ids = flat % vocab_size
            is_end = ids == EOS_ID
            ended = is_end[:, :beams].nonzero()
            for row, rank in ended.tolist():
                total = float(best[row, rank])
                if not done[row] and total > -torch.inf:
                    parent = parents[row, rank]
                    output = tuple(prefix[row, parent, 1:].tolist())
                    hypothesis = Hypothesis(output, total, total / penalty(length))
                    pools[row].append(hypothesis)
            open_ended = best.masked_fill(is_end, -torch.inf)
            totals, order = open_ended.topk(beams, dim=-1)
            parents = parents.gather(1, order)
            ids = ids.gather(1, order)
            parents = parents.unsqueeze(-1)
            indices = parents.expand(-1, -1, length)
            prefix = prefix.gather(1, indices)
            tokens = ids.unsqueeze(-1)
            prefix = torch.cat((prefix, tokens), dim=-1)
            for row, pool in enumerate(pools):
                live = float(totals[row, 0])
                reachable = live / penalty(int(longest[row]))
                scores_of_pool = [hypothesis.score for hypothesis in pool]
                top = max(scores_of_pool, default=-torch.inf)
                is_best = live == -torch.inf or top >= reachable
                if len(pool) >= beams or is_best:
                    done[row] = True
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
        number = zlib.crc32(word.encode())
        return 4 + number % (RANDOM_VOCABULARY - 4)

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
    batches: Rows
    """Row numbers."""
    measured: Measured = field(default_factory=Measured)


@torch.inference_mode()
def measure(loop: Loop, config: DecodingConfig) -> None:
    """Translate all rows once, and record outputs and seconds."""
    outputs: list[tuple[int, ...]]
    outputs = [()] * len(loop.rows)
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
    ours = our_search(model)
    few = rows[: options.slow_sentences]

    def by_length(some: Rows) -> list[list[int]]:
        order = sorted(range(len(some)), key=lambda row: len(some[row]))
        return in_batches(order, options.batch_size)

    in_order = in_batches(range(len(few)), options.batch_size)
    plain_loop = Loop(plain, few, in_order)
    nmt_loop = Loop(ours, few, by_length(few))
    loops = {"plain": plain_loop, "nmt": nmt_loop}
    if len(rows) > len(few):
        loops["nmt, all"] = Loop(ours, rows, by_length(rows))
    first = few[:8]
    all_at_once = [list(range(len(first)))]
    warm_up = Loop(ours, first, all_at_once)
    measure(warm_up, config)  # not counted, because the first search is slower
    for _ in range(options.rounds):
        for loop in loops.values():
            measure(loop, config)
    baseline, _ = plain_loop.measured.rates(len(few))
    table = []
    for name, loop in loops.items():
        count = len(loop.rows)
        measured = loop.measured
        sentences, most_sentences = measured.rates(count)
        tokens, most_tokens = measured.rates(measured.num_tokens)
        ratio = ""
        if count == len(few):
            ratio = f"{sentences / baseline:.2f}"
        table.append(
            f"| {search_name} | {name} | {count} | {sentences:.1f} ({most_sentences:.1f}) "
            f"| {tokens:.0f} ({most_tokens:.0f}) | {ratio} |"
        )
    outputs = nmt_loop.measured.outputs
    pairs = zip(plain_loop.measured.outputs, outputs, strict=True)
    equal = sum(first == second for first, second in pairs)
    return [*table, f"{search_name}: {equal} of {len(few)} outputs are equal"]


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
