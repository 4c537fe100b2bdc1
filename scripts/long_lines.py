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
from nmt.data.formats.pair import ReadOptions, SentencePair
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.text.tokenizer import load_tokenizers

KINDS = ("sinusoidal", "learned", "rotary", "relative", "none")
BORDERS = (15, 20, 25, 30)
"""Upper limits of the length classes, in source subwords. The first is the limit of training."""


def pairs_by_length(config: RunConfig, max_pairs: int) -> dict[str, list[SentencePair]]:
    """Return up to ``max_pairs`` pairs that were not in training, for each length class."""
    tokenizer = load_tokenizers(config.prepared_dir / "tokenizer").source
    options = ReadOptions(config.source_language, config.target_language)
    # The classes are 1-15, 16-20, ..., 31-: a border belongs to the class below it.
    names = [f"{below + 1}-{border}" for below, border in itertools.pairwise((0, *BORDERS))]
    names.append(f"{BORDERS[-1] + 1}-")
    classes: dict[str, list[SentencePair]] = {name: [] for name in names}
    tests = config.data.test.values()
    corpora = [(corpus, True) for corpus in tests]
    corpora += [(corpus, False) for corpus in config.data.train]
    for corpus, is_test in corpora:
        records = read_corpus(corpus, options)
        # Lines that cannot be read are not pairs.
        pairs = [record for record in records if isinstance(record, SentencePair)]
        source_ids = tokenizer.encode_batch([pair.source for pair in pairs])
        for pair, ids in zip(pairs, source_ids, strict=True):
            is_unseen = is_test or len(ids) > BORDERS[0]
            name = names[bisect_left(BORDERS, len(ids))]
            class_pairs = classes[name]
            if ids and is_unseen and len(class_pairs) < max_pairs:
                class_pairs.append(pair)
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
    rows: dict[str, list[str]] = defaultdict(list)  # Name -> BLEU of each length class.
    classes: dict[str, list[SentencePair]] = {}
    for kind in options.kinds:
        changes = [f"filters.max_length={BORDERS[0]}", f"model.positions={kind}"]
        changes += [f"prepared_dir={options.out}/prepared", f"run_dir={options.out}/{kind}"]
        config = nmt.load_config(options.config, [*options.set, *changes])
        fit(config)
        classes = pairs_by_length(config, options.most)
        splits = {"segments": True, "whole": False}
        if kind == "learned":  # cannot read longer lines as a whole
            del splits["whole"]
        for unit, split in splits.items():
            translator = nmt.Translator.load(config.run_dir, split=split, guard=False)
            for pairs in classes.values():
                sources = [pair.source for pair in pairs]
                results = translator.translate(sources)
                references = [pair.target for pair in pairs]
                scorer = MetricScorer("bleu", [references], MetricOptions())
                outputs = [result.text for result in results]
                bleu = scorer.score(outputs)
                rows[f"{kind}, {unit}"].append(f"{bleu.value:.1f}")
    headers = [f"{name} ({len(pairs)}) |" for name, pairs in classes.items()]
    print("| source tokens (lines) |", *headers)
    print("|---" * (1 + len(classes)) + "|")
    for name, scores in rows.items():
        print(f"| {name} |", *(f"{score} |" for score in scores))


if __name__ == "__main__":
    main()
