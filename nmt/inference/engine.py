"""What runs a trained model: `Engine`, and the choice of one. Loads no torch.

A second engine is a subclass of `Engine` with a method `search`, and a function that loads it,
registered in `ENGINES`.
"""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from nmt.checkpoint.model_folder import is_ctranslate2, readable
from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.inference.options import EngineOptions, Needs, parse_device, parse_dtype
from nmt.registry import Registry
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text.tokenizer import Tokenizers

logger = logging.getLogger(__name__)

_CONVERTED = (None, "float32", "int8")  # Dtypes in which CTranslate2 is chosen for a CPU.
_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))


class BatchRoom(NamedTuple):
    """How much an engine searches at once, and how much a caller gathers for that."""

    tokens: int = 2048  # Source tokens, padded, where ``decoding.batch_tokens`` is ``auto``.
    probabilities: int = 1 << 26  # Of next tokens, of all hypotheses together: 256 MiB.
    hypotheses: int = 1 << 20  # Of all sentences together.


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to be searched."""

    sources: Sequence[Sequence[int]]  # Source ids of each sentence, without EOS; none is empty.
    # What the output of each sentence must look like.
    constraints: Sequence[Constraints] | None = None


class EngineLacksError(ConfigError):
    """An engine cannot do what is asked of it; another one may."""

    @classmethod
    def of(cls, engine: str, names: Iterable[str]) -> EngineLacksError:
        """Name what is missing."""
        return cls(
            f"The {engine} engine does not have {', '.join(names)}.",
            fix="Leave that out, or translate the run with `engine` torch.",
        )


class Engine(ABC):
    """Translates token ids with one model. Loads no text and knows no tokenizer."""

    name = "engine"  # What computes, as it is registered.
    dtype = "float32"  # What the model's weights are multiplied in.
    on_gpu = False  # Whether a GPU searches, beside which a CPU may do something else.
    # Longest output, with EOS, that the model has positions for; None if there is no limit.
    max_positions: int | None = None

    @abstractmethod
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
        """

    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        """Return how much of each source token is seen before each target token is said.

        Args:
            sources: Source ids of each sentence, without EOS; none is empty.
            targets: Target ids of each, without BOS and EOS.

        Returns:
            For each sentence (T, S): rows of numbers that sum to at most 1.
        """
        del sources, targets
        raise EngineLacksError.of(self.name, ["attention"])

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log probability of each target token, and of EOS, by the model itself.

        The numbers are those of a search that says the same, without its limits and rules.
        Arguments as of `attention`.
        """
        del sources, targets
        raise EngineLacksError.of(self.name, ["scores of tokens"])

    def lacks(self, needs: Needs) -> list[str]:  # noqa: ARG002 - most engines have all
        """Return what is needed and not there; a translator that needs it is refused."""
        return []

    @property
    def room(self) -> BatchRoom:
        """How much `search` can be given at once, by all workers together."""
        return BatchRoom()

    @property
    def num_workers(self) -> int:
        """How many tasks `search_all` works on at the same time."""
        return 1

    def start_worker(self) -> None:
        """Prepare a thread of `search_all`."""
        return

    def search_all(
        self, tasks: Sequence[Task], options: DecodingConfig
    ) -> Generator[list[list[Hypothesis]], None, None]:
        """Yield what `search` finds for each task, in order."""
        count = max(1, min(self.num_workers, len(tasks)))
        with ThreadPoolExecutor(count, initializer=self.start_worker) as pool:
            waiting = [
                pool.submit(self.search, task.sources, options, task.constraints) for task in tasks
            ]
            try:
                for future in waiting:
                    yield future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def batches(
        self, lengths: Sequence[int], options: DecodingConfig, vocab_size: int
    ) -> list[list[int]]:
        """Return rows of sentences of like length that can be searched at once, shortest first.

        Args:
            lengths: Source tokens of each sentence, without EOS.
            options: Of the search.
            vocab_size: Entries of the target vocabulary.
        """
        room, width = self.room, options.num_hypotheses
        most = room.probabilities // self.num_workers // (width * vocab_size)
        max_rows = max(1, min(most, room.hypotheses // width))
        wanted = options.batch_tokens
        return batch_by_length(lengths, room.tokens if wanted == "auto" else wanted, max_rows)


def batch_by_length(lengths: Sequence[int], max_tokens: int, max_rows: int) -> list[list[int]]:
    """Return rows of like length together, the shortest first.

    Args:
        lengths: Tokens of each row without EOS; rows of equal length stay in their order.
        max_tokens: Most tokens of a batch, with EOS and padding; a longer row is by itself.
        max_rows: The limit for short lines and wide beams.

    >>> batch_by_length([3, 1, 1, 9], max_tokens=8, max_rows=5)
    [[1, 2], [0], [3]]
    """
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        size = len(batches[-1]) if batches else 0
        if not size or (size + 1) * (lengths[row] + 1) > max_tokens or size == max_rows:
            batches.append([])
        batches[-1].append(row)
    return batches


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a translator needs of a folder."""

    engine: Engine
    tokenizers: Tokenizers
    decoding: DecodingConfig  # The model's own options.
    max_length: int  # Most source subwords that training saw; of several models the least.
    languages: tuple[str, str]  # Source and target.


# Loads the model of a folder; raises `EngineLacksError` where it cannot do what is needed.
EngineLoader: TypeAlias = Callable[[Path, EngineOptions, Needs], LoadedModel]
ENGINES: Registry[EngineLoader] = Registry(
    "engine",
    {
        "ctranslate2": "nmt.extras.exchange.ctranslate2_engine:load_ctranslate2",
        "torch": "nmt.inference.torch_engine:load_torch",
    },
)


def choose_engine(
    folder: Path, options: EngineOptions | None = None, needs: Needs | None = None
) -> LoadedModel:
    """Load the engine that is named; ``auto``: CTranslate2 on a CPU if it has what is needed.

    Args:
        folder: Run or model folder.
        options: Which engine, and where.
        needs: By which ``auto`` decides, and what is loaded beside the weights.

    Raises:
        ConfigError: The engine does not go with the folder, the device or the dtype.
        EngineLacksError: The engine that is named cannot do what is needed.
        CheckpointError: A part is missing or damaged, or the models do not go together.
    """
    options, needs = options or EngineOptions(), needs or Needs()
    options = replace(options, device=parse_device(options.device))
    dtype = parse_dtype(options.dtype)
    if options.threads is not None and options.threads < 1:
        raise ConfigError(
            f"`threads` is {options.threads}.", fix="Leave it out, or give 1 or more."
        )
    name = options.engine
    with readable():
        if name == "auto" and is_ctranslate2(folder):
            name = "ctranslate2"
        if name != "auto":
            loaded = ENGINES[name](folder, options, needs)
        elif reason := _against_ctranslate2(options):
            loaded = _load_torch(folder, options, needs, reason)
        else:
            try:
                on_cpu = replace(options, device="cpu")
                loaded = ENGINES["ctranslate2"](folder, on_cpu, needs)
            except ConfigError as error:  # not installed, say, or it lacks something
                if dtype == "int8":
                    raise
                loaded = _load_torch(folder, options, needs, error.problem)
    logger.debug("engine: %s, %s", loaded.engine.name, loaded.engine.dtype)
    return loaded


def _against_ctranslate2(options: EngineOptions) -> str:
    """Say why ``auto`` does not mean CTranslate2; empty if it may."""
    dtype = parse_dtype(options.dtype)
    if options.device.startswith("cuda") or (options.device == "auto" and _has_gpu()):
        return "CTranslate2 is chosen for CPUs only"
    return "" if dtype in _CONVERTED else f"CTranslate2 is not chosen for {dtype}"


def _has_gpu() -> bool:
    """Whether torch has a GPU; asked only where there are signs of one, as torch takes long."""
    if sys.platform == "linux" and not any(path.exists() for path in _GPU_DRIVERS):
        return False
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()


def _load_torch(folder: Path, options: EngineOptions, needs: Needs, reason: str) -> LoadedModel:
    logger.debug("torch translates: %s", reason)
    return ENGINES["torch"](folder, options, needs)
