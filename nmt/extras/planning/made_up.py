"""Made-up data for the dry run of a configuration whose corpora are absent.

The source length in subwords is log-normal: half of the lengths are above the median, and the
logarithm has a normal distribution. The median suits news and parliament text with 32,000 subwords.
The target length is the source length times a log-normal factor with median 1. Pairs above
filters.max_length are dropped, as `nmt prepare` does. Ids are uniform.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nmt.commands.prepare import recipe_of
from nmt.config.data import BatchConfig, CorpusConfig, DataConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import VALID, check_files, is_piped
from nmt.data.hubs import is_on_hub
from nmt.data.prepare_report import current_report
from nmt.data.prepared import TOKENIZER, TRAIN, PreparedData, PreparedManifest
from nmt.data.store import StoreWriter
from nmt.errors import DataError
from nmt.text import NUM_SPECIAL
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizer, load_tokenizers

_MEDIAN, _SPREAD, _SPREAD_OF_RATIO = 24.0, 0.6, 0.2
_NUM_PAIRS = {TRAIN: 100_000, VALID: 1000}
_FEW_TOKENS = 1024  # A batch that a CPU computes in seconds, even with a large model.


def explain(config: RunConfig) -> str:
    """Explain why and how lengths are made up; return "" if the corpora can be read."""
    if current_report(config.prepared_dir, recipe_of(config)):
        return ""
    corpora = (*config.data.training, *config.data.validation)
    remote = [x for x in corpora if is_piped(x) or is_on_hub(x) or x.sacrebleu]
    names = dict.fromkeys(x.huggingface or x.sacrebleu or "standard input" for x in remote)
    why = f"a dry run downloads nothing, and {', '.join(names)} is not prepared"
    if not remote:
        try:
            check_files(config.data.corpora)
            return ""
        except DataError as error:
            why = error.problem.removesuffix(".")
    return (
        f"{why}.\n  Log-normal, median {_median(config):g} subwords, sigma {_SPREAD:g}, at most "
        f"{config.filters.max_length} (filters.max_length). After `nmt prepare`, lengths are real."
        "\n  Validation is timed without translation. On a CPU, times are extrapolated from "
        f"batches of about {2 * _FEW_TOKENS:,} tokens."
    )


def without_corpora(config: RunConfig, *, small: bool) -> tuple[RunConfig, BatchConfig]:
    """Return the configuration for made-up data: a single corpus, no options that need text.

    Args:
        config: The configuration.
        small: Whether to make batches of at most about 2,000 tokens, for a CPU.

    Returns:
        The changed configuration, and the original batch section.
    """
    one = DataConfig(train=(CorpusConfig(demo="train"),), valid=(CorpusConfig(demo="valid"),))
    batch = whole = config.batch.model_copy(update={"bpe_dropout": 0.0})
    # Half of a small batch holds the longest pair, with BOS and EOS.
    most = 2 * max(2 * config.filters.max_length + 3, _FEW_TOKENS)
    tokens = batch.tokens_per_update or batch.max_tokens
    if small and (tokens is None or int(tokens) > most):
        whole = batch.model_copy(update={"max_tokens": tokens, "tokens_per_update": None})
        batch = whole.model_copy(update={"max_tokens": most, "gradient_accumulation": 1})
    return config.model_copy(update={"data": one, "batch": batch}), whole


def write_data(config: RunConfig, folder: Path) -> PreparedData:
    """Write token stores with made-up pairs, and open them."""
    sizes = _vocab_sizes(config)
    random, longest = np.random.default_rng(1), config.filters.max_length
    for part, number in _NUM_PAIRS.items():
        logs = random.normal(np.log(_median(config)), _SPREAD, number)
        ratios = random.normal(0.0, _SPREAD_OF_RATIO, number)
        sides = np.exp([logs, logs + ratios]).round().clip(1).astype(np.int64)
        lengths = sides[:, sides.max(0) <= longest]
        with StoreWriter(folder / part, max(sizes)) as writer:
            source, target = (
                FlatIds(random.integers(NUM_SPECIAL, size, int(side.sum())), side)
                for size, side in zip(sizes, lengths, strict=True)
            )
            writer.append(source, target, 0, np.arange(1, len(source.lengths) + 1))
        for name in ("source.txt", "target.txt"):
            (folder / part / name).touch()  # no text, so no translations in the validation
    manifest = PreparedManifest(
        config_hash="", sources={}, data_hash="", vocab_hash="", counts={}, scored_with=(),
        source_vocab_size=sizes[0], target_vocab_size=sizes[1], files={},
    )  # fmt: skip
    return PreparedData(folder, manifest)


def _vocab_sizes(config: RunConfig) -> tuple[int, int]:
    start = config.training.init_from
    if start is not None and config.training.keeps_vocabulary:
        return load_tokenizers(start / TOKENIZER).vocab_sizes
    models = config.tokenizer.models
    if models is not None:
        source, target = (Tokenizer.load(path).vocab_size for path in models)
        return source, target
    return config.tokenizer.vocab_sizes


def _median(config: RunConfig) -> float:
    return min(_MEDIAN, config.filters.max_length / 2)
