"""Which lines of a text can no model write, because its tokenizer changes them?

Every line is encoded and decoded with each normalization. The vocabulary makes no difference: here
it contains only bytes. The best possible chrF is that of the decoded lines against the lines
themselves: the score of a model that makes no mistake.

    python scripts/lossless.py ntrex/*.txt
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from nmt.config.data import TokenizerConfig
from nmt.metrics.metric import MetricOptions, MetricScorer
from nmt.text.loss import loss_of
from nmt.text.tokenizer import TARGET, Tokenizer, train_sentencepiece

NORMALIZATIONS = ("nmt_nfkc", "identity")
VOCAB_SIZE = 262  # special symbols, bytes, the space and one letter


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="text files, one line per sentence")
    files = parser.parse_args().files
    tokenizers = [tokenizer_of_bytes(name) for name in NORMALIZATIONS]
    heads = [f"{name}: lines changed | best chrF" for name in NORMALIZATIONS]
    print("| text | lines | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|---|" * len(NORMALIZATIONS))
    for path in files:
        lines = path.read_text("utf-8").rstrip("\n").split("\n")
        scorer = MetricScorer("chrf", [lines], MetricOptions())
        cells = [path.stem, str(len(lines))]
        for tokenizer in tokenizers:
            loss = loss_of(lines, tokenizer)
            score = scorer.score(loss.nearest)
            cells += [str(len(loss.changed)), f"{score.value:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def tokenizer_of_bytes(normalization: str) -> Tokenizer:
    """Return a tokenizer that spells everything but the letter a in bytes."""
    values = {"vocab_size": VOCAB_SIZE, "normalization": normalization, "kind": "char"}
    config = TokenizerConfig.model_validate(values)
    with TemporaryDirectory() as folder:
        path = Path(folder) / TARGET
        train_sentencepiece([("a", 1)], path, config, threads=1)
        return Tokenizer.load(path)


if __name__ == "__main__":
    main()
