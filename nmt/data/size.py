"""How much text corpora hold, before they are read; configurations that depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmt.config import loader
from nmt.config.data import CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import check_files, corpus_files, is_piped, read_corpus
from nmt.data.pairs import BadPair, ReadOptions
from nmt.errors import ConfigError
from nmt.files.lines import open_binary

_BLOCK_BYTES = 1 << 20
_LATER_BYTES = bytes(range(0x80, 0xC0))  # Of UTF-8: those that begin no character.


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration file; without ``training`` it gets values for the size of its corpora.

    Args:
        path: A YAML file.
        overrides: ``section.key=value`` each, the value as YAML; later ones win.

    Raises:
        ConfigError: Anything is wrong, missing files are named too; or ``training`` is missing and
            nobody knows the size.
        DataError: ``training`` is missing, and so is a file of the corpora.
    """
    return loader.load_config(
        path, overrides, count_characters=count_characters, check_files=check_files
    )


def count_characters(corpora: Sequence[CorpusConfig], languages: tuple[str, str]) -> int:
    """Return the characters that an epoch of some corpora reads in both languages, before filters.

    Of files with columns or keys, these count too.

    Raises:
        ConfigError: A corpus is on a hub or standard input, so that nobody knows.
        DataError: A file is unreadable.
    """
    return round(sum(corpus.weight * _count(corpus, languages) for corpus in corpora))


def _count(corpus: CorpusConfig, languages: tuple[str, str]) -> float:
    if is_piped(corpus) or corpus.huggingface is not None or corpus.sacrebleu is not None:
        name = corpus.huggingface or corpus.sacrebleu or "standard input"
        raise ConfigError(
            f"There is no training section, and nobody knows the size of {name} before it is read.",
            fix="Add a training section, such as `training: {max_minutes: 60}`.",
        )
    lines = count = 0
    if paths := [path for path in corpus_files(corpus) if path != corpus.scores]:
        for path in paths:
            lines = 0
            with open_binary(path) as stream:
                while block := stream.read(_BLOCK_BYTES):
                    lines += block.count(b"\n")
                    count += len(block.translate(None, _LATER_BYTES))
    else:
        for pair in read_corpus(corpus, ReadOptions(*languages)):
            lines += 1
            count += 0 if isinstance(pair, BadPair) else len(pair.source) + len(pair.target)
    return count * min(1.0, (corpus.max_pairs or lines) / max(lines, 1))
