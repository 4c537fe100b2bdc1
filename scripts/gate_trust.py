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
_LOSS = 1.5  # BLEU that a noisy model loses
_BATCH_TOKENS = (64, 200, 500, 1000, 3000, 9000)  # from which `settings` chooses
_HALVINGS = 5  # steps of the search for the smallest noise that loses enough
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
        new_system = System("new", lines)
        old_system = System("old", baseline)
        resampling = Resampling(seed=seed, significance="ar")
        (scored,), _, _ = score_systems(
            [new_system], self._scorers, baseline=old_system, resampling=resampling
        )
        results = check_regressions("new", scored.scores, ALPHA)
        return [result.metric for result in results if not result.met]


def add_noise(model: Transformer, clean: dict[str, torch.Tensor], scale: float, seed: int) -> None:
    """Set the weights to ``clean`` plus noise of ``scale`` times the standard deviation.

    Args:
        model: The model to change.
        clean: Parameter -> its original value.
        scale: Standard deviation of the noise of a parameter, divided by that of its values.
        seed: Seed of the noise.
    """
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

    def translate_with_noise(scale: float, seed: int) -> list[str]:
        add_noise(files.model, clean, scale, seed)
        return [result.text for result in translator.translate(source)]

    baseline = translate_with_noise(0.0, 0)
    clean_bleu = gate.bleu(baseline)
    num_failed = 0
    losses = []  # BLEU that each noisy model loses
    for seed in range(1, count + 1):
        # Search the smallest noise that loses enough by bisection. `high` loses enough, as the
        # first value does for any model, and `lines` are its translations.
        low = 0.0
        high = 0.4
        lines = translate_with_noise(high, seed)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            middle_lines = translate_with_noise(middle, seed)
            if clean_bleu - gate.bleu(middle_lines) >= _LOSS:
                high = middle
                lines = middle_lines
            else:
                low = middle
        alarms = gate.alarms(lines, baseline, seed)
        loss = clean_bleu - gate.bleu(lines)
        losses.append(loss)
        if alarms:
            num_failed += 1
        print(f"noise {seed}: scale {high:.4f}, loss {loss:.2f}, failed {alarms}", flush=True)
    loss_range = f"{min(losses):.2f} to {max(losses):.2f}"
    print(f"noise: {num_failed} of {count} failed; loss {loss_range} BLEU")


def settings(folder: Path, source: list[str], gate: Gate, count: int) -> None:
    """Print how many changes of engine, batch size and threads fail the gate.

    The translations of the first draw are the baseline, so there is one draw more than trials.
    """
    rng = random.Random(1)
    num_failed = 0
    num_changed = 0
    baseline: list[str] = []
    for trial in range(count + 1):
        engine = rng.choice(["torch", "ctranslate2"])
        threads = rng.choice([1, 2])
        batch_tokens = rng.choice(_BATCH_TOKENS)
        options = PLAIN | {"batch_tokens": batch_tokens}
        translator = Translator.load(folder, engine=engine, threads=threads, **options)
        lines = [result.text for result in translator.translate(source)]
        baseline = baseline or lines
        alarms = gate.alarms(lines, baseline, trial)
        if alarms:
            num_failed += 1
        pairs = zip(lines, baseline, strict=True)
        num_differing = sum(line != baseline_line for line, baseline_line in pairs)
        if num_differing:
            num_changed += 1
        name = f"{translator.engine.name}, {threads} threads, {batch_tokens} tokens"
        outcome = f"{num_differing} lines differ, failed {alarms}"
        print(f"settings {trial}: {name}: {outcome}", flush=True)
    print(f"settings: {num_failed} of {count} failed; {num_changed} changed a line")


def null(folder: Path, source: list[str], gate: Gate, count: int) -> None:
    """Print how many pairs of equally good systems fail the gate."""
    options = PLAIN | {"sampling": True, "temperature": 0.5}
    translator = Translator.load(folder, engine="torch", guard=False, **options)
    num_by_metric = dict.fromkeys(METRICS, 0)  # trials that fail in a metric
    num_blocks = max(1, len(source) // _BLOCK)
    num_failed = 0  # trials that fail in any metric
    scores: list[float] = []

    def sample(seed: int, lines: slice) -> list[str]:
        seeded = translator.with_options(seed=seed)
        results = seeded.translate(source[lines])
        return [result.text for result in results]

    for trial in range(count):
        block = trial % num_blocks
        first = block * _BLOCK
        lines = slice(first, first + _BLOCK)
        # Two different seeds, which no other trial uses.
        system = sample(1 + 2 * trial, lines)
        baseline = sample(2 + 2 * trial, lines)
        block_gate = gate.of(lines)
        alarms = block_gate.alarms(system, baseline, seed=trial + 1)
        if alarms:
            num_failed += 1
        for metric in alarms:
            num_by_metric[metric] += 1
        scores += (block_gate.bleu(system), block_gate.bleu(baseline))
        if trial % 20 == 19:
            print(f"null {trial + 1}: {num_failed} failed so far", flush=True)
    print(f"null: {num_failed} of {count} failed ({num_failed / count:.1%}): {num_by_metric}; "
          f"BLEU {min(scores):.2f} to {max(scores):.2f}")  # fmt: skip


# Each experiment, and its usual number of trials.
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
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = read_lines(options.source)[: options.limit]
    reference = read_lines(options.reference)[: options.limit]
    gate = Gate(reference, options.language)
    for name in options.only or EXPERIMENTS:
        experiment, usual_count = EXPERIMENTS[name]
        experiment(options.model, list(source), gate, options.count or usual_count)


if __name__ == "__main__":
    main()
