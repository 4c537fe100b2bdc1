"""Our engine beside CTranslate2 with the same weights, interleaved in one process.

    python scripts/bench_engines.py runs/multi30k-de-en --threads 2 --rounds 5

Each engine gets the same ids in the same batches, sorted by length, through the same interface;
reading text and cutting it into subwords are not counted. The models for CTranslate2 are exported
to a temporary folder first. A ratio is of medians over the rounds, beside CTranslate2's best.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import sacrebleu
import torch

from nmt.checkpoint.bundle import load_model
from nmt.commands.export import export
from nmt.config.decoding import DecodingConfig
from nmt.text.lines import read_lines
from nmt.translation.ctranslate2_engine import load_ctranslate2_engine
from nmt.translation.engine import Engine, Task
from nmt.translation.loading import load_torch_engine

Ids = Sequence[Sequence[int]]


def load_engines(model: Path, threads: int, place: Path) -> dict[str, Engine]:
    """Return all engines by name; those of CTranslate2 are exported to ``place``."""
    engines: dict[str, Engine] = {}
    for dtype in ("float32", "int8"):
        engines[f"nmt {dtype}"] = load_torch_engine(
            model,
            device="cpu",
            checkpoint="best",
            threads=threads,
            note=print,
            dtype=dtype,
        ).engine
        folder = place / dtype
        export(model, folder, "ctranslate2", quantization=dtype)
        loaded = load_ctranslate2_engine(folder, device="cpu", threads=threads)
        engines[f"CTranslate2 {dtype}"] = loaded.engine
    return engines


def in_batches(rows: Ids, size: int) -> list[list[int]]:
    """Row numbers of each batch, sorted by length."""
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    cuts = [*range(0, len(order), size), len(order)]
    return [order[start:stop] for start, stop in pairwise(cuts)]


def translate(
    engine: Engine, rows: Ids, batches: Sequence[Sequence[int]], options: DecodingConfig
) -> tuple[float, list[tuple[int, ...]]]:
    """Return seconds and outputs."""
    outputs: list[tuple[int, ...]] = [()] * len(rows)
    start = time.perf_counter()
    tasks = [Task([rows[row] for row in batch]) for batch in batches]
    for batch, found in zip(batches, engine.search_all(tasks, options), strict=True):
        for row, best in zip(batch, found, strict=True):
            outputs[row] = best[0].ids
    return time.perf_counter() - start, outputs


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    data = Path("../shared/data/multi30k")
    parser.add_argument("model", nargs="?", type=Path, default=Path("runs/multi30k-de-en"))
    parser.add_argument("--source", type=Path, default=data / "test_2016_flickr.de.gz")
    parser.add_argument("--reference", type=Path, default=data / "test_2016_flickr.en.gz")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--single-sentences", type=int, default=64, help="with batches of one")
    chosen = parser.parse_args()
    bundle = load_model(chosen.model)
    source, target = bundle.tokenizers.source, bundle.tokenizers.target
    rows = source.encode_batch(read_lines(chosen.source)[: chosen.sentences])
    references = read_lines(chosen.reference)[: chosen.sentences]
    with tempfile.TemporaryDirectory() as place:
        engines = load_engines(chosen.model, chosen.threads, Path(place))
        print(
            f"{chosen.model}, {chosen.threads} threads, {chosen.rounds} rounds, torch "
            f"{torch.__version__}, Python {platform.python_version()}\n"
        )
        print("| search | batch | engine | sentences/s, median (best) | ratio | BLEU |")
        print("| --- | --- | --- | --- | --- | --- |")
        for beam_size, size in ((1, 64), (5, 64), (1, 1), (5, 1)):
            some = rows if size > 1 else rows[: chosen.single_sentences]
            options = bundle.config.decoding.model_copy(update={"beam_size": beam_size})
            batches = in_batches(some, size)
            seconds: dict[str, list[float]] = {name: [] for name in engines}
            outputs = {}
            for engine in engines.values():
                translate(engine, some[:8], [range(8)], options)
            for _ in range(chosen.rounds):
                for name, engine in engines.items():
                    taken, outputs[name] = translate(engine, some, batches, options)
                    seconds[name].append(taken)
            medians = {
                name: len(some) / statistics.median(taken) for name, taken in seconds.items()
            }
            best = max(rate for name, rate in medians.items() if name.startswith("CTranslate2"))
            search = "greedy" if beam_size == 1 else f"beam {beam_size}"
            for name, rate in medians.items():
                texts = [target.decode(ids) for ids in outputs[name]]
                bleu = sacrebleu.corpus_bleu(texts, [references[: len(texts)]]).score
                print(
                    f"| {search} | {size} | {name} | {rate:.1f} "
                    f"({len(some) / min(seconds[name]):.1f}) | {rate / best:.2f} | {bleu:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
