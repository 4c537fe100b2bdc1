"""Training throughput beside a plain torch.nn.Transformer loop, interleaved in one process.

    python scripts/bench_training.py --threads 2 --rounds 5

Both models have the same size, vocabulary and batches (length-bucketed, 4096 source and target
tokens without padding). Ours runs as `nmt train` does; the other is what a careful reader of
torch's documentation writes: padded batches, boolean padding masks, label-smoothed cross-entropy
that ignores padding, torch's default Adam. A throughput is real target tokens per second of whole
updates (forward, backward, clipping, optimizer); a ratio is of medians over the rounds.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.config.training import OptimizerConfig
from nmt.data.batch import Batch, collate
from nmt.data.loader import padding_waste, plan_batches
from nmt.data.prepared import PreparedData
from nmt.engine.device import choose_device, choose_precision, has_fast_bf16, prepare_process
from nmt.model.positions import sinusoids
from nmt.model.transformer import build_model
from nmt.training.losses import CrossEntropy, choose_form
from nmt.training.optimizers import build_optimizer
from nmt.training.update import Updater

SIZES = {
    "tiny": ModelConfig(preset="tiny", norm_position="post"),
    "base": ModelConfig(),
}


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with tied, scaled embeddings and sinusoidal positions."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.model_dim, padding_idx=0)
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(512, config.model_dim, "sinusoidal"))
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.model_dim,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.ff_dim,
            config.dropout,
            batch_first=True,
        )

    def embed(self, ids: Tensor) -> Tensor:
        """(B, S) -> (B, S, D)."""
        vectors = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.dropout(vectors + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(
                target.shape[1], dtype=torch.bool
            ),
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embedding.weight)


def plain_step(config: ModelConfig, vocab_size: int) -> Callable[[Batch], None]:
    """Return one update of the plain loop."""
    model = PlainTransformer(config, vocab_size).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))

    def step(batch: Batch) -> None:
        source, target = (side.pad(side.ids) for side in (batch.source, batch.target))
        logits = model(source, target)
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            batch.target.pad(batch.gold).flatten(),
            ignore_index=0,
            label_smoothing=0.1,
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def our_step(config: ModelConfig, vocab_size: int, precision_name: str) -> Callable[[Batch], None]:
    """Return one update as `nmt train` makes it."""
    device = choose_device("cpu")
    precision = choose_precision(precision_name, device)  # type: ignore[arg-type]
    model = build_model(config, vocab_size, vocab_size)
    optimizer = build_optimizer(model, OptimizerConfig(), precision.weight_dtype)
    loss = CrossEntropy(0.1, choose_form(precision.dtype, device, vocab_size))
    updater = Updater(model, optimizer, precision, loss, clip_norm=1.0)

    def step(batch: Batch) -> None:
        updater([batch], 1e-4)

    return step


class _RandomStore:
    """Sentences of Multi30k-like lengths, where no prepared data is at hand."""

    def __init__(self, vocab_size: int) -> None:
        random = np.random.default_rng(1)
        self.source_lengths = np.clip(random.normal(14, 5, 20_000), 3, 45).astype(np.int32)
        jitter = random.normal(0, 2, 20_000)
        self.target_lengths = np.clip(self.source_lengths + jitter, 3, 45).astype(np.int32)
        self._random, self._vocab_size = random, vocab_size

    def _ids(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids = self._random.integers(4, self._vocab_size, int(lengths.sum()))
        return ids, np.concatenate(([0], np.cumsum(lengths)))

    def source_ids(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `ParallelStore.source_ids`."""
        return self._ids(self.source_lengths[rows])

    def target_ids(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `ParallelStore.target_ids`."""
        return self._ids(self.target_lengths[rows])


def load_batches(folder: Path, vocab_size: int, count: int, max_tokens: int) -> list[Batch]:
    """Return ``count`` batches of the prepared data, or of random sentences without it."""
    if (folder / "manifest.json").exists():
        store = PreparedData.open(folder).train
        print(f"data: {folder}")
    else:
        store = _RandomStore(vocab_size)  # type: ignore[assignment]
        print(f"data: random sentences ({folder} is not prepared)")
    lengths = (store.source_lengths + 1, store.target_lengths + 1)
    plan = plan_batches(*lengths, max_tokens=max_tokens, noise=0.1, seed=1, epoch=0)
    print(f"padding waste: {padding_waste(plan, *lengths):.1%} of {len(plan)} batches")
    return [collate(store, rows) for rows in plan[:count]]


def throughput(step: Callable[[Batch], None], batches: Sequence[Batch]) -> float:
    """Return real target tokens per second over ``batches``."""
    start = time.perf_counter()
    for batch in batches:
        step(batch)
    seconds = time.perf_counter() - start
    return sum(batch.num_target_tokens for batch in batches) / seconds


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--prepared", type=Path, default=Path("prepared/multi30k-de-en"))
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4, help="updates in a round")
    parser.add_argument("--precision", nargs="*", default=["float32", "bfloat16"])
    options = parser.parse_args()
    prepare_process(options.threads)
    config = SIZES[options.size]
    batches = load_batches(
        options.prepared, options.vocab_size, options.batches, options.max_tokens
    )
    steps = {"torch.nn.Transformer float32": plain_step(config, options.vocab_size)}
    for name in options.precision:
        steps[f"nmt {name}"] = our_step(config, options.vocab_size, name)
    measured: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.rounds + 1):
        for name, step in steps.items():
            few = batches[:1] if number == 0 else batches
            rate = throughput(step, few)
            if number > 0:
                measured[name].append(rate)
    baseline = statistics.median(next(iter(measured.values())))
    print(
        f"{options.size}, {options.max_tokens} tokens a batch, {options.threads} threads, "
        f"torch {torch.__version__}, Python {platform.python_version()}, bf16 instructions: "
        f"{'yes' if has_fast_bf16(torch.device('cpu')) else 'no (bf16 is emulated)'}"
    )
    print("| loop | target tokens/s, median (best) | ratio |\n| --- | --- | --- |")
    for name, rates in measured.items():
        median = statistics.median(rates)
        print(f"| {name} | {median:.0f} ({max(rates):.0f}) | {median / baseline:.2f} |")


if __name__ == "__main__":
    main()
