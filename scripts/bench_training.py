"""Measure the updates of `nmt train`: speed against a plain torch loop, memory, and profile.

    python scripts/bench_training.py configs/multi30k.yaml --rounds 5 --set training.threads=2

Every update reads a new batch of the prepared data (run `nmt prepare` first) and uses the code of
`nmt train`, including dropout, clipping and optimizer. The plain loop follows the documentation of
torch: padded batches of the same pairs, boolean padding masks, label-smoothed cross-entropy that
ignores padding, and torch's default Adam. The loops take turns. Rates are target tokens per second,
without padding.

The second table shows the kinds of operations in torch's profiler. Below it is the time of the
matrix products of layers and loss alone, repeated with the same sizes. It shows how far an update
is from the limit of the machine. Products inside of attention are not included.

``--hugging-face`` also trains a MarianMTModel of the same size, in float32 and under autocast to
bfloat16. It needs transformers. The model is post-norm with tied embeddings; it uses
`scaled_dot_product_attention`, torch's fused Adam and the allocator settings of nmt.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nmt.commands.train_setup import build
from nmt.config.loader import load_config
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.data.loader import Batch, Position
from nmt.data.prepared import PreparedData
from nmt.device.device import prepare_process, use_huge_pages
from nmt.device.distributed import Processes
from nmt.device.precision import has_fast_bf16
from nmt.model.positions import sinusoids
from nmt.training.processes import StopSignal
from nmt.training.timing import TrainingSetup

KINDS = {
    "products of layers and loss": ("mm", "addmm", "addmm_"),
    "attention": ("bmm", "baddbmm", "_softmax", "addcmul_"),
    "copies and conversions": ("copy_", "cat", "fill_", "zero_"),
    "selections of rows": ("index_select", "embedding_dense_backward", "index_fill_"),
    "dropout": ("random_", "ge", "addcmul"),
    "norms": ("native_layer_norm", "native_layer_norm_backward"),
    "optimizer": ("_fused_adamw_", "linalg_vector_norm"),
    "softmax of the loss": ("exp_", "div_", "sub_", "amax", "gather", "scatter_add_"),
    "other element-wise work": ("mul", "mul_", "add", "add_", "relu_", "threshold_backward", "sum"),
}
"""Kind of work -> torch operators. The rest is mostly Python."""
_PROFILED = 8
Shapes = tuple[tuple[int, ...], ...]
"""Shapes of the two inputs of a matrix product."""
Step = Callable[[], int]
"""Makes an update with the next batch; returns its target tokens."""


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with tied, scaled embeddings and sinusoidal positions."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.model_dim, padding_idx=0)
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(512, config.model_dim, "sinusoidal"))
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.model_dim, config.num_heads, config.encoder_layers, config.decoder_layers,
            config.ff_dim, config.dropout, batch_first=True,
        )  # fmt: skip

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (B, S, D) of ``ids`` (B, S)."""
        vectors = self.embedding(ids)
        vectors = vectors * self.embedding.embedding_dim**0.5
        positions = self.positions[: ids.shape[1]]
        return self.dropout(vectors + positions)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        length = target.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool)
        is_padding = source == 0
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=is_padding,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)


def plain_step(config: ModelConfig, vocab_size: int, batches: Iterator[Batch]) -> Step:
    """Return a function that makes an update of the plain loop."""
    model = PlainTransformer(config, vocab_size).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def step() -> int:
        batch = next(batches)
        source = batch.source.pad(batch.source.ids)
        target = batch.target.pad(batch.target.ids)
        logits = model(source, target)
        learn(model, optimizer, logits, batch)
        return batch.num_target_tokens

    return step


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, logits: Tensor, batch: Batch) -> None:
    """Compute the loss of ``logits`` (B, T, V) without padding, and make the update."""
    gold = batch.target.pad(batch.gold).flatten()
    logits = logits.float().flatten(0, 1)
    loss = F.cross_entropy(logits, gold, ignore_index=0, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def hugging_face_step(
    config: ModelConfig, vocab_size: int, batches: Iterator[Batch], precision: str
) -> Step:
    """Return a function that makes an update of the Hugging Face Marian model."""
    transformers: Any = import_module("transformers")
    shape = transformers.MarianConfig(
        vocab_size=vocab_size,
        d_model=config.model_dim,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.num_heads,
        decoder_attention_heads=config.num_heads,
        encoder_ffn_dim=config.ff_dim,
        decoder_ffn_dim=config.decoder_ff_dim or config.ff_dim,
        dropout=config.dropout,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    model = transformers.MarianMTModel(shape).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    def step() -> int:
        batch = next(batches)
        source = batch.source.pad(batch.source.ids)
        target = batch.target.pad(batch.target.ids)
        mask = source != 0
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            output = model(
                input_ids=source,
                attention_mask=mask.long(),
                decoder_input_ids=target,
                use_cache=False,
            )
        learn(model, optimizer, output.logits, batch)
        return batch.num_target_tokens

    return step


def our_step(setup: TrainingSetup) -> Step:
    """Return a function that makes an update of `nmt train`."""
    updates = setup.loader.updates(Position())

    def step() -> int:
        batches, _ = next(updates)
        stats = setup.updater(batches, 1e-4)
        return stats.target_tokens

    return step


def batches_of(setup: TrainingSetup) -> Iterator[Batch]:
    """Yield the batches of training, one by one."""
    for batches, _ in setup.loader.updates(Position()):
        yield from batches


def rate(step: Step, count: int, clock: Callable[[], float]) -> float:
    """Make ``count`` updates; return target tokens per second."""
    begin = clock()
    tokens = sum(step() for _ in range(count))
    return tokens / (clock() - begin)


def resident_mib() -> int:
    """Return the resident memory of this process in MiB; 0 if the system does not report it."""
    try:
        text = Path("/proc/self/statm").read_text(encoding="utf-8")
    except OSError:
        return 0
    _, pages, *_ = text.split()
    return int(pages) * resource.getpagesize() >> 20


def distinct_sizes(setup: TrainingSetup, count: int) -> tuple[int, int]:
    """Return how many different token counts and padded shapes the first ``count`` updates have."""
    token_counts = set()
    padded_shapes = set()
    updates = setup.loader.updates(Position())
    for _ in range(count):
        batches, _ = next(updates)
        for batch in batches:
            for side in (batch.source, batch.target):
                token_counts.add(side.num_tokens)
                padded_shapes.add((len(side), side.max_length))
    return len(token_counts), len(padded_shapes)


def bare_seconds(products: Mapping[Shapes, int], dtype: torch.dtype) -> float:
    """Return the seconds of matrix products.

    Args:
        products: Shapes ((m, k), (k, n)) -> number of products.
        dtype: Dtype of the matrices.
    """
    total_seconds = 0.0
    for (left_shape, right_shape), count in products.items():
        left = torch.randn(left_shape).to(dtype)
        # As in a linear layer, the right matrix is the transpose of a matrix in memory.
        transposed = torch.randn(right_shape[::-1]).to(dtype)
        right = transposed.T
        times = []
        for _ in range(5):
            begin = perf_counter()
            torch.mm(left, right)
            times.append(perf_counter() - begin)
        total_seconds += count * min(times)
    return total_seconds


def print_kinds(setup: TrainingSetup, step: Step) -> None:
    """Print the time of an update by kind of work, and the time of its matrix products alone."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        begin = perf_counter()
        for _ in range(_PROFILED):
            step()
        profiled_seconds = perf_counter() - begin
    update_seconds = profiled_seconds / _PROFILED
    # By operator: seconds of an update, without the operators that it calls.
    operator_seconds: Counter[str] = Counter()
    products: Counter[Shapes] = Counter()  # in all profiled updates
    for event in profiled.key_averages(group_by_input_shape=True):
        name = event.key.removeprefix("aten::")
        operator_seconds[name] += event.self_cpu_time_total / 1e6 / _PROFILED
        if name in KINDS["products of layers and loss"]:
            input_shapes = event.input_shapes
            if name != "mm":  # the first input of addmm is the summand
                input_shapes = input_shapes[1:]
            product_shapes = tuple(map(tuple, input_shapes[:2]))
            products[product_shapes] += event.count
    print("| kind | ms an update | share |\n| --- | --- | --- |")
    unassigned = update_seconds
    for kind, names in KINDS.items():
        seconds = sum(operator_seconds[name] for name in names)
        unassigned -= seconds
        print(f"| {kind} | {seconds * 1e3:.1f} | {seconds / update_seconds:.1%} |")
    print(f"| rest | {unassigned * 1e3:.1f} | {unassigned / update_seconds:.1%} |")
    precision = setup.updater.precision
    bare = bare_seconds(products, precision.dtype) / _PROFILED
    share = bare / update_seconds
    print(f"| an update | {update_seconds * 1e3:.1f} | 100% |\n")
    print(f"matrix products alone: {bare * 1e3:.1f} ms, {share:.1%} of the update\n")


def setup_in(config: RunConfig, precision: str) -> TrainingSetup:
    """Return the setup that trains ``config`` in ``precision`` on the CPU."""
    training = config.training.model_copy(update={"precision": precision, "device": "cpu"})
    config = config.model_copy(update={"training": training})
    data = PreparedData.open(config.prepared_dir)
    return build(config, data, Processes(), StopSignal())


def main() -> None:
    """Run the measurement and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", nargs="?", default="configs/multi30k.yaml")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each loop")
    parser.add_argument("--updates", type=int, default=10, help="updates per round")
    parser.add_argument("--precision", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--without-plain", action="store_true", help="skip the plain loop")
    parser.add_argument("--hugging-face", action="store_true", help="also train a MarianMTModel")
    parser.add_argument(
        "--without-kinds", action="store_true", help="skip the tables of kinds of work"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure CPU time, for one thread on a busy machine"
    )
    options = parser.parse_args()
    config = load_config(options.config, options.overrides)
    prepare_process(config.training.threads)
    use_huge_pages()
    setups = {precision: setup_in(config, precision) for precision in options.precision}
    # Of the loops that are not those of nmt: they need only its batches.
    batch_setup = setup_in(config, "float32")
    vocab_size = len(batch_setup.updater.model.output_weight)
    steps = {}  # By the name of the loop, in the order of the table.
    if not options.without_plain:
        batches = batches_of(batch_setup)
        steps["torch.nn.Transformer float32"] = plain_step(config.model, vocab_size, batches)
    if options.hugging_face:
        for precision in ("float32", "bfloat16"):
            batches = batches_of(batch_setup)
            step = hugging_face_step(config.model, vocab_size, batches, precision)
            steps[f"Hugging Face {precision}"] = step
    for precision, setup in setups.items():
        steps[f"nmt {precision}"] = our_step(setup)
    clock = perf_counter
    if options.cpu_time:
        clock = time.process_time
    measured: dict[str, list[float]] = {name: [] for name in steps}
    for round_index in range(options.rounds + 1):
        for name, step in steps.items():
            tokens_a_second = rate(step, options.updates, clock)
            if round_index > 0:  # the first round is a warm-up
                measured[name].append(tokens_a_second)
                print(f"{name}: {tokens_a_second:.0f}", file=sys.stderr, flush=True)
    first_rates, *_ = measured.values()
    baseline = statistics.median(first_rates)
    has_bf16 = "no (bf16 is emulated)"
    if has_fast_bf16(torch.device("cpu")):
        has_bf16 = "yes"
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{options.config}, {config.batch.max_tokens} tokens a batch, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, bf16 instructions: {has_bf16}; memory {resident_mib()} MiB, "
        f"at its peak {peak_kib >> 10} MiB, of all loops together\n"
    )
    print("| loop | target tokens/s, median (best) | ratio |\n| --- | --- | --- |")
    for name, rates in measured.items():
        median = statistics.median(rates)
        print(f"| {name} | {median:.0f} ({max(rates):.0f}) | {median / baseline:.2f} |")
    for precision, setup in setups.items():
        num_counts, num_shapes = distinct_sizes(setup, options.rounds * options.updates)
        print(f"\nnmt {precision}: {num_counts} token counts, {num_shapes} padded shapes\n")
        if not options.without_kinds:
            print_kinds(setup, steps[f"nmt {precision}"])


if __name__ == "__main__":
    main()
