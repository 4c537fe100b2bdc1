"""Learns a SentencePiece model from lines that all count once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nmt.config.data import TokenizerConfig
from nmt.text import tokenizer


def train_sentencepiece(
    lines: Iterable[str], path: Path, config: TokenizerConfig, *, threads: int
) -> None:
    """Train a model and write it to ``path``."""
    tokenizer.train_sentencepiece(((line, 1) for line in lines), path, config, threads=threads)
