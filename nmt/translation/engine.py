"""The seam between lines and what translates ids: our own search, or another library's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nmt.config.decoding import DecodingConfig
from nmt.search.hypothesis import Hypothesis

CTRANSLATE2_MODEL = "model.bin"
"""The file that makes a folder one of CTranslate2."""


class Engine(Protocol):
    """Translates token ids with one model. Loads no text and knows no tokenizer."""

    def search(
        self, sources: Sequence[Sequence[int]], options: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """Translate a batch.

        Args:
            sources: Source ids of each sentence, without EOS; none is empty.
            options: How to search.

        Returns:
            The n best hypotheses of each sentence, best first; none where there is no output.

        Raises:
            ConfigError: This engine cannot search so.
        """
        ...


def is_ctranslate2(folder: Path) -> bool:
    """Whether ``folder`` holds a model for CTranslate2."""
    return (folder / CTRANSLATE2_MODEL).is_file()
