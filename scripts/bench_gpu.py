"""Training and decoding on a GPU, beside what the GPU can do.

    python scripts/bench_gpu.py
    python scripts/bench_gpu.py --model runs/multi30k-de-en

Training: base and big with 32,000 entries, random sentences, whole updates with and without
compiled layers, and with sums in any order, which costs exact resuming; the share is of the matrix
products' own peak, measured here in the same type (model FLOPs utilisation as in Chowdhery et al.
2022, appendix B). The first pass shows what new shapes cost: batches of text hardly repeat one.
Decoding (with --model): the first sentences of a text in batches of 1, 64 and 512, with and without
recorded steps, and by CTranslate2 where it has a GPU. With greedy search in batches of one a step
has to read the decoder's weights once: the share of that limit is of the memory's own speed,
measured here. The encoder, and what the decoder reads of it once, are left out.

`--device cpu --quick` only shows that the script works.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from bench_engines import row_of
from bench_training import load_batches
from contenders import Ids

from nmt.config.decoding import DecodingConfig
from nmt.config.model import ModelConfig
from nmt.config.training import OptimizerConfig
from nmt.data.batch import Batch
from nmt.engine.compilation import compile_layers
from nmt.engine.device import choose_device, choose_device_queue, deterministic
from nmt.engine.precision import choose_precision
from nmt.errors import NmtError
from nmt.exchange.ctranslate2 import import_ctranslate2
from nmt.files.lines import read_lines
from nmt.model.cost import Workload, training_flops
from nmt.model.transformer import Transformer, build_model
from nmt.recipes.export import export
from nmt.runtime.engine import Dtype, Engine
from nmt.runtime.loading import load_engine
from nmt.runtime.torch_engine import TorchEngine
from nmt.runtime.torch_loading import load_torch_engine
from nmt.text.tokenizer import Tokenizers
from nmt.training.losses import choose_form
from nmt.training.objective import CrossEntropy
from nmt.training.optimizer import build_optimizer
from nmt.training.update import Updater, read_together

SIZES = {"base": ModelConfig(), "big": ModelConfig(preset="transformer-big")}
QUICK = {"quick": ModelConfig(preset="tiny", model_dim=64, ff_dim=64)}
TYPES: tuple[Dtype, ...] = ("bfloat16", "float16")
CTRANSLATE2_TYPES: tuple[str, ...] = ("float16", "bfloat16", "int8_float16")
ROUNDS = 3


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return how long ``work`` takes on the device, at best, when it has been done before."""
    return min(seconds_of_each(work, device)[1:])


def seconds_of_each(work: Callable[[], object], device: torch.device) -> list[float]:
    """Return how long ``work`` takes the first time, and each time after it."""
    pace, found = choose_device_queue(device), []
    for _ in range(ROUNDS + 1):
        pace.wait()
        start = time.perf_counter()
        work()
        pace.wait()
        found.append(time.perf_counter() - start)
    return found


def peak_flops(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """FLOP/s of large matrix products."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 * 5 / seconds_of(lambda: [left @ right for _ in range(5)], device)


def peak_bytes(device: torch.device, count: int) -> float:
    """Bytes read a second, measured by sums of as many float32 values."""
    values = torch.ones(count, device=device)
    return 4 * count / seconds_of(values.sum, device)


def workload(batches: Sequence[Batch]) -> Workload:
    """Sum lengths."""
    lengths = [torch.stack([batch.source.lengths, batch.target.lengths]) for batch in batches]
    return Workload.of_pairs(*torch.cat(lengths, dim=1).numpy())


def train(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print the table of training."""
    dtype = choose_precision("auto", device).dtype
    peak = peak_flops(device, dtype, 256 if chosen.quick else 8192)
    print(f"matrix products, {dtype}: {peak / 1e12:.2f} TFLOP/s")
    vocab_size = 400 if chosen.quick else 32_000
    count = 2 if chosen.quick else 20
    batches = load_batches(Path("nothing prepared"), vocab_size, count, chosen.max_tokens)
    columns = (
        "model", "layers", "sums", "tokens a batch", "target tokens/s", "share of the peak",
        "the first pass",
    )  # fmt: skip
    print("", row_of(*columns), row_of(*["---"] * len(columns)), sep="\n")
    for name, config in (QUICK if chosen.quick else SIZES).items():
        needed = training_flops(config, vocab_size, workload(batches)).total
        for is_compiled, in_order in ((False, True), (True, True), (True, False)):
            try:
                with deterministic(device, wanted=in_order):
                    first, *others = seconds_of_each(
                        updates(config, vocab_size, batches, is_compiled, device), device
                    )
            except NmtError as error:
                print(f"note: left out: {error.problem}")
                continue
            tokens, seconds = sum(batch.num_target_tokens for batch in batches), min(others)
            cells = (
                name,
                "compiled" if is_compiled else "as they are",
                "in order" if in_order else "in any order",
                str(chosen.max_tokens),
                f"{tokens / seconds:,.0f}",
                f"{needed / seconds / peak:.1%}",
                f"{tokens / first:,.0f}",
            )
            print(row_of(*cells), flush=True)


def updates(
    config: ModelConfig,
    vocab_size: int,
    batches: Sequence[Batch],
    is_compiled: bool,
    device: torch.device,
) -> Callable[[], None]:
    """Return what makes an update with each batch, as `nmt train` does."""
    precision = choose_precision("auto", device)
    model = build_model(config, vocab_size, vocab_size).to(device)
    optimizer = build_optimizer(model, OptimizerConfig(), precision.weight_dtype)
    loss = CrossEntropy(0.1, choose_form(precision.dtype, device, vocab_size))
    updater = Updater(model, optimizer, precision, loss, clip_norm=1.0)
    compile_layers(
        is_compiled,
        device,
        switch=model.compile_layers,
        warm_up=lambda: updater.warm_up(batches[0]),
    )
    return lambda: read_together([updater([batch], 1e-4) for batch in batches])


def step_bytes(model: Transformer) -> int:
    """Bytes of the weights that each step of decoding reads."""
    weights = [
        each
        for name, each in model.decoder.named_parameters()
        if "cross_attention.key_value" not in name  # of the source, once a sentence
    ]
    return sum(each.numel() * each.element_size() for each in (*weights, model.output_weight))


def engines(
    model: Path, device: str, place: Path
) -> Iterator[tuple[str, Engine, DecodingConfig, Tokenizers, int]]:
    """Yield name, engine, decoding, tokenizers and bytes read by a step (0: not known)."""
    for dtype in TYPES:
        loaded = load_torch_engine(
            model,
            device=cast(Any, device),
            checkpoint="best",
            threads=None,
            dtype=dtype,
        )
        engine = cast(TorchEngine, loaded.engine)
        read = step_bytes(engine._models[0])
        parts = loaded.config.decoding, loaded.tokenizers, read
        yield f"nmt {dtype}, recorded steps", engine, *parts
        engine._runs = [None]
        yield f"nmt {dtype}", engine, *parts
    package = import_ctranslate2()
    if device == "cuda" and not package.get_cuda_device_count():
        print("note: CTranslate2 is left out: it sees no GPU")
        return
    for kind in CTRANSLATE2_TYPES:
        if kind not in package.get_supported_compute_types(device):
            continue
        export(model, place / kind, "ctranslate2", quantization=kind)
        loaded = load_engine(place / kind, device=cast(Any, device), threads=1)
        yield f"CTranslate2 {kind}", loaded.engine, loaded.config.decoding, loaded.tokenizers, 0


def decode(chosen: argparse.Namespace, device: torch.device) -> None:
    """Print the table of decoding."""
    speed = peak_bytes(device, 1 << (20 if chosen.quick else 30))
    print(f"\nmemory: {speed / 1e9:,.0f} GB/s\n")
    columns = ("engine", "search", "batch", "sentences/s", "tokens/s", "share of the limit")
    print(row_of(*columns), row_of(*["---"] * len(columns)), sep="\n")
    lines = read_lines(chosen.source)
    with tempfile.TemporaryDirectory() as folder:
        for name, engine, config, tokenizers, read in engines(
            chosen.model, device.type, Path(folder)
        ):
            for size in (1, 64, 512):
                count = min(4 if chosen.quick else max(64, 4 * size), len(lines))
                rows = tokenizers.source.encode_batch(lines[:count])
                rows = sorted(rows, key=len)
                cuts = [*range(0, count, size), count]
                batches = [rows[start:stop] for start, stop in pairwise(cuts)]
                for beam_size in (1, 5):
                    # A beam makes more steps than its best output has tokens.
                    bytes_read = read if beam_size == 1 else 0
                    cells = measured(
                        engine, batches, config.plain(beam_size), device, bytes_read, speed
                    )
                    search = "greedy" if beam_size == 1 else f"beam {beam_size}"
                    print(row_of(name, search, str(size), *cells), flush=True)


def measured(
    engine: Engine,
    batches: Sequence[Ids],
    config: DecodingConfig,
    device: torch.device,
    read: int,
    speed: float,
) -> tuple[str, str, str]:
    """Sentences and tokens a second, and the share of what memory allows with batches of one."""
    outputs: list[int] = []

    def search() -> None:
        outputs.clear()
        for batch in batches:
            outputs.extend(len(best[0].ids) + 1 for best in engine.search(batch, config))

    seconds = seconds_of(search, device)
    share = sum(outputs) * read / speed / seconds if len(batches[0]) == 1 else 0
    return (
        f"{len(outputs) / seconds:.1f}",
        f"{sum(outputs) / seconds:,.0f}",
        f"{share:.1%}" if share else "",
    )


def main() -> None:
    """Measure and print the tables."""
    # Before the GPU multiplies anything: it is read then. For sums in any order, too.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="decode with it, too")
    parser.add_argument(
        "--source", type=Path, default=Path("../shared/data/multi30k/test_2016_flickr.de.gz")
    )
    parser.add_argument("--max-tokens", type=int, default=25_000, help="of a training batch")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that it works")
    chosen = parser.parse_args()
    device = choose_device(chosen.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(f"{name}, torch {torch.__version__}, Python {platform.python_version()}")
    train(chosen, device)
    if chosen.model:
        decode(chosen, device)


if __name__ == "__main__":
    main()
