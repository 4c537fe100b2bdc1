"""Measure BLEU on sources longer than all training pairs, for each kind of position encoding.

    python scripts/long_lines.py configs/multi30k.yaml --out runs/long --set training.max_steps=3000

For each kind, the script trains a model on pairs of at most 15 subwords per side. The model then
translates lines of the test sets, and training pairs that were excluded for their long source. It
translates them in segments, as usual, and as whole lines (``--no-split``), without the guard. A
model with learned positions cannot read longer lines as a whole.
"""

from __future__ import annotations

import argparse
import itertools
import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import nmt
from nmt.commands.train import fit
from nmt.config.run import RunConfig
from nmt.data.corpus import read_corpus
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.text.tokenizer import load_tokenizers

KINDS = ("sinusoidal", "learned", "rotary", "relative", "none")
BORDERS = (15, 20, 25, 30)
"""Upper limits of the length classes, in source subwords. The first is the limit of training."""


def lines_by_length(config: RunConfig, most: int) -> dict[str, list[SentencePair]]:
    """Return up to ``most`` pairs that were not in training, for each length class."""
    tokenizer = load_tokenizers(config.prepared_dir / "tokenizer").source
    options = ReadOptions(config.source_language, config.target_language)
    names = [f"{a + 1}-{b}" for a, b in itertools.pairwise((0, *BORDERS))]
    names.append(f"{BORDERS[-1] + 1}-")
    classes: dict[str, list[SentencePair]] = {name: [] for name in names}
    tests = config.data.test.values()
    corpora = [(corpus, True) for corpus in tests]
    corpora += [(corpus, False) for corpus in config.data.train]
    for corpus, is_test in corpora:
        rows = read_corpus(corpus, options)
        pairs = [row for row in rows if isinstance(row, SentencePair)]
        sources = tokenizer.encode_batch([pair.source for pair in pairs])
        for pair, ids in zip(pairs, sources, strict=True):
            is_unseen = is_test or len(ids) > BORDERS[0]
            name = names[bisect_left(BORDERS, len(ids))]
            of_class = classes[name]
            if ids and is_unseen and len(of_class) < most:
                of_class.append(pair)
    return classes


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, translate and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/long-lines"))
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--most", type=int, default=500, help="maximum lines per length class")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    logging.getLogger("nmt.inference").setLevel(logging.ERROR)  # hides a warning per cut line
    rows: dict[str, list[str]] = defaultdict(list)
    classes: dict[str, list[SentencePair]] = {}
    for kind in options.kinds:
        own = [f"filters.max_length={BORDERS[0]}", f"model.positions={kind}"]
        own += [f"prepared_dir={options.out}/prepared", f"run_dir={options.out}/{kind}"]
        config = nmt.load_config(options.config, [*options.set, *own])
        fit(config)
        classes = lines_by_length(config, options.most)
        ways = {"segments": True, "whole": False}
        if kind == "learned":
            del ways["whole"]
        for way, split in ways.items():
            translator = nmt.Translator.load(config.run_dir, split=split, guard=False)
            for pairs in classes.values():
                sources = [pair.source for pair in pairs]
                results = translator.translate(sources)
                references = [pair.target for pair in pairs]
                scorer = MetricScorer("bleu", [references], MetricOptions())
                outputs = [result.text for result in results]
                bleu = scorer.score(outputs)
                rows[f"{kind}, {way}"].append(f"{bleu.value:.1f}")
    print("| source tokens (lines) |", *(f"{x} ({len(y)}) |" for x, y in classes.items()))
    print("|---" * (1 + len(classes)) + "|")
    for name, scores in rows.items():
        print(f"| {name} |", *(f"{score} |" for score in scores))


if __name__ == "__main__":
    main()
