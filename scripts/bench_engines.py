"""Measure nmt, CTranslate2 and Hugging Face with the same weights; the engines take turns.

    python scripts/bench_engines.py runs/multi30k-de-en --threads 2 --rounds 5 --base
    python scripts/bench_engines.py runs/multi30k-de-en --hugging-face ../venv/bin/python

Each engine translates the same subword ids in the same batches, sorted by length. The text is the
first test set of the run, or --test or --source. Reading text and tokenization are not measured.
Batches of 64 measure throughput. Batches of one sentence measure latency: the next sentence is sent
after the last answer, and each engine runs with one thread and with all threads (see
`contenders.py`).

Ratios compare medians over the rounds with the best result of CTranslate2 over all data types and
numbers of threads. "same" counts the outputs that equal those of nmt in float32.

Exports are written to a temporary folder. --base also measures a model of twice the size with the
same outputs (see `widen_model.py`). --hugging-face is a Python interpreter that has transformers.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import sacrebleu
import torch
from bench_text import add_text_options, read_text
from contenders import (
    Contender,
    Family,
    Ids,
    ctranslate2_contenders,
    hugging_face_contenders,
    our_contenders,
)
from widen_model import write_widened

from nmt.checkpoint.model_folder import ModelBundle, load_model
from nmt.config.model import ModelConfig
from nmt.device import usable_cores
from nmt.extras.exchange.ctranslate2 import import_ctranslate2

SETTLING_SECONDS = 0.3
"""Pause between engines, because threads of some engines keep spinning for a moment."""
COLUMNS = (
    "search", "batch", "engine", "threads", "sentences/s, median (best)", "ms a sentence", "ratio",
    "BLEU", "same",
)  # fmt: skip
SUMMARY_COLUMNS = (
    "model", "search", "batch", "nmt", "CTranslate2", "ratio", "CTranslate2 with the list",
    "Hugging Face",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """A search and batch size in which engines are compared."""

    beam_size: int
    batch_size: int

    @property
    def names(self) -> tuple[str, str]:
        """Search and batch size, as cells of a table."""
        search = f"beam {self.beam_size}"
        if self.beam_size == 1:
            search = "greedy"
        return search, str(self.batch_size)


@dataclass(frozen=True, slots=True)
class Work:
    """Model and sentences of a cell."""

    bundle: ModelBundle
    rows: Ids
    """Source ids of each sentence, in the order of the batches."""
    references: Sequence[str]
    """Reference of each sentence, in the same order."""
    batch_size: int

    @property
    def batches(self) -> list[Ids]:
        """The sentences in batches."""
        num_rows = len(self.rows)
        cuts = [*range(0, num_rows, self.batch_size), num_rows]
        return [self.rows[start:stop] for start, stop in pairwise(cuts)]

    def bleu(self, outputs: Ids) -> float:
        """Return BLEU of ``outputs``, which are target ids."""
        tokenizer = self.bundle.tokenizers.target
        texts = [tokenizer.decode(ids) for ids in outputs]
        bleu = sacrebleu.corpus_bleu(texts, [self.references])
        return bleu.score


@dataclass(slots=True)
class Measured:
    """Times and outputs of a contender in all rounds."""

    seconds: list[float] = field(default_factory=list)
    outputs: Ids = ()

    @property
    def rate(self) -> float:
        """Median sentences per second."""
        return len(self.outputs) / statistics.median(self.seconds)

    @property
    def best_rate(self) -> float:
        """Sentences per second in the best round."""
        return len(self.outputs) / min(self.seconds)


Results = Sequence[tuple[Contender, Measured]]


def work_of(bundle: ModelBundle, chosen: argparse.Namespace, cell: Cell) -> Work:
    """Return the first sentences, sorted by length unless the batch size is 1."""
    is_stream = cell.batch_size == 1
    num_sentences = chosen.sentences
    if is_stream:
        num_sentences = chosen.single_sentences
    sources, references = chosen.text
    source_ids = bundle.tokenizers.source.encode_batch(sources[:num_sentences])
    order = list(range(len(source_ids)))
    if not is_stream:
        order.sort(key=lambda index: len(source_ids[index]))
    ordered_ids = [source_ids[index] for index in order]
    ordered_references = [references[index] for index in order]
    return Work(bundle, ordered_ids, ordered_references, cell.batch_size)


def measure(contenders: Sequence[Contender], work: Work, cell: Cell, rounds: int) -> Results:
    """Run each contender once per round, after a warm-up."""
    options = work.bundle.config.decoding.plain(cell.beam_size)
    options = options.model_copy(update={"shortlist": False})  # some contenders set it to true
    results = [(contender, Measured()) for contender in contenders]
    for contender in contenders:  # a warm-up
        contender.run(work.batches[:4], options)
    for _ in range(rounds):
        for contender, measured in results:
            time.sleep(SETTLING_SECONDS)
            seconds, outputs = contender.run(work.batches, options)
            measured.outputs = outputs
            measured.seconds.append(seconds)
    return results


def best_rates(results: Results) -> Mapping[Family, float]:
    """Return the best median rate of each family of engines."""
    best: dict[Family, float] = {}
    for contender, measured in results:
        best_so_far = best.get(contender.family, 0.0)
        best[contender.family] = max(best_so_far, measured.rate)
    return best


def table(cell: Cell, work: Work, results: Results) -> list[str]:
    """Return the rows of the table for a cell."""
    best = best_rates(results)
    _, first_measured = results[0]  # nmt in float32
    expected_outputs = first_measured.outputs
    lines = []
    for contender, measured in results:
        pairs = zip(measured.outputs, expected_outputs, strict=True)
        num_same = sum(output == expected for output, expected in pairs)
        milliseconds = ""
        if contender.is_stream:
            milliseconds = f"{1000 / measured.rate:.1f}"
        line = row_of(
            *cell.names,
            f"{contender.family} {contender.kind}",
            str(contender.threads),
            f"{measured.rate:.1f} ({measured.best_rate:.1f})",
            milliseconds,
            f"{measured.rate / best['CTranslate2']:.2f}",
            f"{work.bleu(measured.outputs):.2f}",
            f"{num_same} of {len(expected_outputs)}",
        )
        lines.append(line)
    return lines


def summary(name: str, cell: Cell, results: Results) -> str:
    """Return the row of the summary table for a cell: the best rate of each family.

    Args:
        name: Name of the model.
        cell: The cell.
        results: The results of the cell.
    """
    best = best_rates(results)
    nmt_rate = best["nmt"]
    columns = [name, *cell.names, f"{nmt_rate:.1f}"]
    columns.append(f"{best['CTranslate2']:.1f}")
    columns.append(f"{nmt_rate / best['CTranslate2']:.2f}")
    list_rate = best.get("CTranslate2 with the list")  # None if there is no shortlist
    with_list = ""
    if list_rate:
        with_list = f"{list_rate:.1f} ({nmt_rate / list_rate:.2f})"
    hugging_face_rate = best.get("Hugging Face")  # None without --hugging-face
    hugging_face = ""
    if hugging_face_rate:
        hugging_face = f"{hugging_face_rate:.1f} ({nmt_rate / hugging_face_rate:.1f})"
    return row_of(*columns, with_list, hugging_face)


def row_of(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def print_header(columns: Sequence[str]) -> None:
    """Print the header of a Markdown table."""
    rule = ["---"] * len(columns)
    print(row_of(*columns), row_of(*rule), sep="\n", flush=True)


def shape(config: ModelConfig) -> str:
    """Return the number of layers and the width as text."""
    return f"{config.encoder_layers} + {config.decoder_layers}, d {config.model_dim}"


def compare(model: Path, place: Path, chosen: argparse.Namespace) -> list[str]:
    """Measure and print all cells of a model; return the rows of the summary.

    Args:
        model: Folder of the model.
        place: Folder for the exports.
        chosen: The options.
    """
    bundle = load_model(model)
    name = shape(bundle.config.model)
    print(f"\n{chosen.model}: {name}\n", flush=True)
    summary_rows = []
    with ExitStack() as stack:
        contenders = list(our_contenders(model, chosen.threads))
        contenders += ctranslate2_contenders(model, place, chosen.threads)
        if chosen.hugging_face:
            started = hugging_face_contenders(chosen.hugging_face, bundle, place, chosen.threads)
            contenders += stack.enter_context(started)
        print_header(COLUMNS)
        for batch_size in (chosen.batch_size, 1):
            is_stream = batch_size == 1
            suitable = [contender for contender in contenders if contender.is_stream == is_stream]
            for beam_size in chosen.beam_sizes:
                cell = Cell(beam_size, batch_size)
                work = work_of(bundle, chosen, cell)
                results = measure(suitable, work, cell, chosen.rounds)
                print(*table(cell, work, results), sep="\n", flush=True)
                summary_rows.append(summary(name, cell, results))
    return summary_rows


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_text_options(parser)
    parser.add_argument("--base", action="store_true", help="also measure a model twice as large")
    parser.add_argument("--hugging-face", type=Path, metavar="PYTHON", help="with transformers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--single-sentences", type=int, default=64, help="sentences for latency")
    parser.add_argument("--batch-size", type=int, default=64, help="for throughput, in sentences")
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 5])
    chosen = parser.parse_args()
    chosen.text = read_text(chosen)
    print(
        f"{chosen.threads} threads on {usable_cores()} cores, {chosen.rounds} rounds, torch "
        f"{torch.__version__}, CTranslate2 {import_ctranslate2().__version__} "
        f"(CT2_USE_MKL={os.environ.get('CT2_USE_MKL', '')}), Python {platform.python_version()}"
    )
    with TemporaryDirectory() as folder:
        place = Path(folder)
        summary_rows = compare(chosen.model, place / "small", chosen)
        if chosen.base:
            write_widened(chosen.model, place / "base")
            summary_rows += compare(place / "base", place / "exports", chosen)
    print("\nBest rates in sentences/s. In brackets: how many times faster nmt is.\n")
    print_header(SUMMARY_COLUMNS)
    print("\n".join(summary_rows))


if __name__ == "__main__":
    main()
