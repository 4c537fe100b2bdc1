"""The seam between lines and what translates ids: our own search, or another library's."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from nmt.config.decoding import DecodingConfig
from nmt.config.run import RunConfig
from nmt.errors import ConfigError
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers

Dtype = Literal["float32", "float16", "bf16", "int8"]
"""What a model's weights are kept and multiplied in."""
CTRANSLATE2_MODEL = "model.bin"
"""The file that makes a folder one of CTranslate2."""
CTRANSLATE2_RECORD = "export.json"
"""What such a folder tells about its export."""


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to be searched."""

    sources: Sequence[Sequence[int]]
    """Source ids of each sentence, without EOS; none is empty."""
    constraints: Sequence[Constraints] | None = None
    """What the output of each sentence must look like."""


class Engine(Protocol):
    """Translates token ids with one model. Loads no text and knows no tokenizer."""

    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch.

        Args:
            sources: Source ids of each sentence, without EOS; none is empty.
            options: How to search.
            constraints: What the output of each sentence must look like.

        Returns:
            The n best hypotheses of each sentence, best first, or samples and alternatives in
            their order; none where there is no output.

        Raises:
            ConfigError: This engine cannot search so.
        """
        ...

    @property
    def num_workers(self) -> int:
        """How many tasks `search_all` works on at the same time."""
        return 1

    def search_all(
        self, tasks: Sequence[Task], options: DecodingConfig
    ) -> Generator[list[list[Hypothesis]], None, None]:
        """Yield what `search` finds for each task, in order."""
        for task in tasks:
            yield self.search(task.sources, options, task.constraints)

    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        """Return how much of each source token is seen before each target token is said.

        Args:
            sources: Source ids of each sentence, without EOS.
            targets: Target ids of each, without BOS and EOS.

        Returns:
            For each sentence (T, S): rows of numbers that sum to at most 1.

        Raises:
            ConfigError: This engine does not tell.
        """
        del sources, targets
        raise ConfigError(
            "This engine tells no attention, so there are no alignments.",
            fix="Translate with the run that was exported.",
        )

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log probability of each target token, and of EOS, by the model itself.

        Limits and rules of a search do not count.

        Args:
            sources: Source ids of each sentence, without EOS; none is empty.
            targets: Target ids of each, without BOS and EOS.

        Raises:
            ConfigError: This engine does not tell.
        """
        del sources, targets
        raise ConfigError(
            "This engine tells no scores of tokens.",
            fix="Leave them out, or translate with a run of `nmt train`.",
        )


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """What a translator needs of a folder."""

    engine: Engine
    config: RunConfig
    tokenizers: Tokenizers
    shortlist: ShortlistFile
    """Beside the model; it may be missing."""


def is_ctranslate2(folder: Path) -> bool:
    """Whether ``folder`` holds a model for CTranslate2."""
    return (folder / CTRANSLATE2_MODEL).is_file()


def choose_engine(
    folder: Path, wanted: Literal["auto", "torch", "ctranslate2"]
) -> Literal["torch", "ctranslate2"]:
    """Return which engine runs the model in ``folder``.

    Raises:
        ConfigError: Another one is wanted.
    """
    found: Literal["torch", "ctranslate2"] = "ctranslate2" if is_ctranslate2(folder) else "torch"
    if wanted not in ("auto", found):
        raise ConfigError(
            f"{folder} is a model for {found}, not for {wanted}.",
            fix="Leave the engine to the folder (auto); `nmt export --to ctranslate2` makes one.",
        )
    return found
