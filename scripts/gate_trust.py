"""Test whether ``nmt evaluate --fail-if-worse`` fails when it should, in three experiments.

- noise: adds Gaussian noise to all weights, just enough to lose 1.5 BLEU. Every trial should fail.
- settings: changes engine, batch size and threads in float32. No trial should fail.
- null: compares two samples of the same model on 200 lines of the test set. At most 7% of the
  trials should fail, at alpha 0.05.

A trial fails if BLEU or chrF is significantly worse than the baseline (exit code 6).

    python scripts/gate_trust.py MODEL SOURCE REFERENCE [--language de] [--only null]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.model_folder import load_model
from nmt.extras.analysis.gates import check_regressions
from nmt.files.lines import read_lines
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import TranslationOptions, Translator
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.metrics.result import System
from nmt.metrics.scoring import Resampling, score_systems
from nmt.model.transformer import Transformer

METRICS = ("bleu", "chrf")
ALPHA = 0.05
PLAIN: dict[str, Any] = {"search": "auto", "beam_size": 1, "keep_special_mass": False}
"""Decoding settings that both engines support for every model."""
_LOSS = 1.5
_TOKENS = (64, 200, 500, 1000, 3000, 9000)
_HALVINGS = 5
_BLOCK = 200
"""Lines of a trial of `null`. Trials use different parts of the test set, as far as possible."""


class Gate:
    """The gate of ``--fail-if-worse`` for a test set."""

    def __init__(self, reference: Sequence[str], language: str) -> None:
        options = MetricOptions(target_language=language)
        self._reference = reference
        self._language = language
        self._scorers = [MetricScorer(metric, [reference], options) for metric in METRICS]

    def of(self, lines: slice) -> Gate:
        """Return the gate of a part of the test set."""
        return Gate(self._reference[lines], self._language)

    def bleu(self, lines: Sequence[str]) -> float:
        """Return BLEU of a system."""
        scorer, *_ = self._scorers
        return scorer.score(lines).value

    def alarms(self, lines: Sequence[str], baseline: Sequence[str], seed: int) -> list[str]:
        """Return the metrics in which a system is significantly worse than the baseline."""
        new = System("new", lines)
        old = System("old", baseline)
        resampling = Resampling(seed=seed, significance="ar")
        (system,), _, _ = score_systems([new], self._scorers, baseline=old, resampling=resampling)
        results = check_regressions("new", system.scores, ALPHA)
        return [result.metric for result in results if not result.met]


def add_noise(model: Transformer, clean: dict[str, torch.Tensor], scale: float, seed: int) -> None:
    """Set the weights to ``clean`` plus noise of ``scale`` times the standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            spread = clean[name].std(correction=0)
            weight.copy_(clean[name] + scale * spread * drawn)


def noise(folder: Path, source: list[str], gate: Gate, count: int) -> None:
    """Print how many noisy models, which lose 1.5 BLEU, fail the gate."""
    files = load_model(folder)
    config = files.config
    decoding = config.decoding.model_copy(update=PLAIN)
    options = TranslationOptions(
        decoding=decoding, target_language=config.target_language, guard=False
    )
    translator = Translator(TorchEngine(files.model), files.tokenizers, options)
    weights = files.model.named_parameters()
    clean = {name: weight.detach().clone() for name, weight in weights}

    def translated(scale: float, seed: int) -> list[str]:
        add_noise(files.model, clean, scale, seed)
        return [result.text for result in translator.translate(source)]

    baseline = translated(0.0, 0)
    before = gate.bleu(baseline)
    caught = 0
    losses = []
    for seed in range(1, count + 1):
        low = 0.0
        high = 0.4
        lines = translated(high, seed)
        for _ in range(_HALVINGS):  # search the smallest noise that loses enough
            middle = (low + high) / 2
            some = translated(middle, seed)
            if before - gate.bleu(some) >= _LOSS:
                high = middle
                lines = some
            else:
                low = middle
        found = gate.alarms(lines, baseline, seed)
        losses.append(before - gate.bleu(lines))
        if found:
            caught += 1
        print(f"noise {seed}: scale {high:.4f}, loss {losses[-1]:.2f}, failed {found}", flush=True)
    print(f"noise: {caught} of {count} failed; loss {min(losses):.2f} to {max(losses):.2f} BLEU")


def settings(folder: Path, source: list[str], gate: Gate, count: int) -> None:
    """Print how many changes of engine, batch size and threads fail the gate."""
    drawn = random.Random(1)
    alarms = 0
    changed = 0
    baseline: list[str] = []
    for number in range(count + 1):
        engine = drawn.choice(["torch", "ctranslate2"])
        threads = drawn.choice([1, 2])
        tokens = drawn.choice(_TOKENS)
        options = PLAIN | {"batch_tokens": tokens}
        translator = Translator.load(folder, engine=engine, threads=threads, **options)
        lines = [result.text for result in translator.translate(source)]
        baseline = baseline or lines
        found = gate.alarms(lines, baseline, number)
        if found:
            alarms += 1
        pairs = zip(lines, baseline, strict=True)
        differing = sum(one != other for one, other in pairs)
        if differing:
            changed += 1
        name = f"{translator.engine.name}, {threads} threads, {tokens} tokens"
        print(f"settings {number}: {name}: {differing} lines differ, failed {found}", flush=True)
    print(f"settings: {alarms} of {count} failed; {changed} changed a line")


def null(folder: Path, source: list[str], gate: Gate, count: int) -> None:
    """Print how many pairs of equally good systems fail the gate."""
    options = PLAIN | {"sampling": True, "temperature": 0.5}
    translator = Translator.load(folder, engine="torch", guard=False, **options)
    by_metric = dict.fromkeys(METRICS, 0)
    num_blocks = max(1, len(source) // _BLOCK)
    either = 0
    scores: list[float] = []

    def sampled(seed: int, lines: slice) -> list[str]:
        seeded = translator.with_options(seed=seed)
        results = seeded.translate(source[lines])
        return [result.text for result in results]

    for number in range(count):
        block = number % num_blocks
        first = block * _BLOCK
        lines = slice(first, first + _BLOCK)
        one = sampled(1 + 2 * number, lines)
        other = sampled(2 + 2 * number, lines)
        own = gate.of(lines)
        found = own.alarms(one, other, seed=number + 1)
        if found:
            either += 1
        for metric in found:
            by_metric[metric] += 1
        scores += (own.bleu(one), own.bleu(other))
        if number % 20 == 19:
            print(f"null {number + 1}: {either} failed so far", flush=True)
    print(f"null: {either} of {count} failed ({either / count:.1%}): {by_metric}; "
          f"BLEU {min(scores):.2f} to {max(scores):.2f}")  # fmt: skip


EXPERIMENTS: dict[str, tuple[Callable[[Path, list[str], Gate, int], None], int]] = {
    "noise": (noise, 20), "settings": (settings, 20), "null": (null, 200),
}  # fmt: skip


def main() -> None:
    """Run the experiments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "source", "reference"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--language", default="en", help="language code of the references")
    parser.add_argument("--limit", type=int, help="maximum number of lines to read")
    parser.add_argument("--only", choices=EXPERIMENTS, action="append", help="default: all")
    parser.add_argument("--count", type=int, help="number of trials")
    given = parser.parse_args()
    torch.set_num_threads(1)
    source = read_lines(given.source)[: given.limit]
    reference = read_lines(given.reference)[: given.limit]
    gate = Gate(reference, given.language)
    for name in given.only or EXPERIMENTS:
        experiment, count = EXPERIMENTS[name]
        experiment(given.model, list(source), gate, given.count or count)


if __name__ == "__main__":
    main()
