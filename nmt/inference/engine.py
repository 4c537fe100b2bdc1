"""What runs a trained model: the `Engine` base class, and what is asked of one. Loads no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from nmt.config.decoding import DecodingConfig
from nmt.config.keys import chosen
from nmt.config.run import RunConfig
from nmt.config.training import full_device_name, full_dtype_name
from nmt.errors import ConfigError
from nmt.inference.shortlist_file import ShortlistFile
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text.tokenizer import Tokenizers

_DEVICES = ("auto", "cpu", "cuda")
EngineChoice = Literal["auto", "torch", "ctranslate2"]
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
"""What a model's weights are kept and multiplied in."""
Mean = Literal["arithmetic", "geometric"]


def parse_dtype(text: str) -> Dtype | None:
    """Return the dtype of this name; None for ``auto``.

    Raises:
        ConfigError: There is none.

    >>> parse_dtype("bf16"), parse_dtype("int8"), parse_dtype("auto")
    ('bfloat16', 'int8', None)
    """
    names: dict[str, Dtype | None] = {"auto": None, **{dtype: dtype for dtype in get_args(Dtype)}}
    return chosen(names, str(full_dtype_name(text)), "dtype")


def parse_device(text: str) -> str:
    """Return the device of this name.

    Raises:
        ConfigError: There is none.

    >>> parse_device("gpu:1"), parse_device("auto")
    ('cuda:1', 'auto')
    """
    name = str(full_device_name(text))
    is_numbered = re.fullmatch(r"cuda:\d{1,3}", name) is not None
    return name if is_numbered else chosen({each: each for each in _DEVICES}, name, "device")


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of an engine, so that one is chosen that has all of it."""

    options: DecodingConfig
    """How to search."""
    constraints: bool = False
    """Whether single lines have a prefix or phrases."""
    outputs: frozenset[str] = frozenset()
    """Returned besides texts and scores: ``alignments``, ``attention``, ``token_scores``."""
    longest: int = 0
    """Tokens of the longest source; 0 if that is not known."""


class BatchRoom(NamedTuple):
    """How much an engine searches at once, and how much a caller gathers for that."""

    tokens: int = 2048
    """Source tokens, padded, where ``decoding.batch_tokens`` is ``auto``."""
    probabilities: int = 1 << 26
    """Of next tokens, of all hypotheses together: 256 MiB."""
    hypotheses: int = 1 << 20
    """Of all sentences together."""


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to be searched."""

    sources: Sequence[Sequence[int]]
    """Source ids of each sentence, without EOS; none is empty."""
    constraints: Sequence[Constraints] | None = None
    """What the output of each sentence must look like."""


class Engine:
    """Translates token ids with one model. Loads no text and knows no tokenizer."""

    name = "engine"
    """What computes, as in ``--engine``."""
    dtype = "float32"
    """What the model's weights are multiplied in."""
    on_gpu = False
    """Whether a GPU searches, beside which a CPU may do something else."""
    max_positions: int | None = None
    """Longest output, with EOS, that the model has positions for; None if there is no limit."""

    def serving(self, request: Request) -> Engine:  # noqa: ARG002 - most engines are their own
        """Return the engine that does all that is asked: this one, unless it stands for several.

        Raises:
            ConfigError: None does.
        """
        return self

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
        raise NotImplementedError

    @property
    def room(self) -> BatchRoom:
        """How much `search` can be given at once, by all workers together."""
        return BatchRoom()

    @property
    def num_workers(self) -> int:
        """How many tasks `search_all` works on at the same time."""
        return 1

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

    def start_worker(self) -> None:
        """Prepare a thread of `search_all`."""

    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        """Return how much of each source token is seen before each target token is said.

        Args:
            sources: Source ids of each sentence, without EOS; none is empty.
            targets: Target ids of each, without BOS and EOS.

        Returns:
            For each sentence (T, S): rows of numbers that sum to at most 1.

        Raises:
            ConfigError: This engine does not report it.
        """
        del sources, targets
        raise ConfigError(
            f"The {self.name} engine gives no attention, so there are no alignments.",
            fix="Add --engine torch, or translate with the run that was exported.",
        )

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the log probability of each target token, and of EOS, by the model itself.

        The numbers are those of a search that says the same, without its limits and rules.
        Arguments as of `attention`.

        Raises:
            ConfigError: This engine does not report it.
        """
        del sources, targets
        raise ConfigError(
            f"The {self.name} engine gives no scores of tokens.",
            fix="Leave them out, or add --engine torch.",
        )


@dataclass(frozen=True, slots=True)
class Ensemble:
    """What joins the first model. They may differ in shape, not in languages and vocabulary."""

    others: tuple[Path, ...] = ()
    """Run or model folders; none: the first model is alone."""
    weights: tuple[float, ...] = ()
    """Of the first model and of the others; equal ones where there are none."""
    mean: Mean = "arithmetic"
    """Of the probabilities of the next token, or of their logarithms."""

    def shares(self) -> tuple[float, ...]:
        """Return the weight of every model; they sum to 1.

        Raises:
            ConfigError: Too few, too many, negative or only zeros.

        >>> Ensemble((Path("b"), Path("c")), (1.0, 1.0, 2.0)).shares()
        (0.25, 0.25, 0.5)
        """
        count = len(self.others) + 1
        weights = self.weights or (1.0,) * count
        shown = ",".join(f"{weight:g}" for weight in weights)
        if len(weights) != count:
            raise ConfigError(
                f"{len(weights)} weights ({shown}) for {count} model{'s' if count > 1 else ''}.",
                fix="Give one weight for MODEL and one for each --with, in this order.",
            )
        total = sum(weights)
        if min(weights) < 0 or not 0 < total < math.inf:
            raise ConfigError(
                f"The weights {shown} are no weights.",
                fix="Give numbers that are not negative, at least one of them above 0.",
            )
        return tuple(weight / total for weight in weights)


def parse_weights(text: str | None) -> tuple[float, ...]:
    """Read what stands behind ``--weights``.

    Raises:
        ConfigError: It is no list of numbers.

    >>> parse_weights("1,1,2.5")
    (1.0, 1.0, 2.5)
    """
    try:
        return tuple(float(word) for word in text.split(",")) if text is not None else ()
    except ValueError as error:
        raise ConfigError(
            f"--weights is {text!r}.", fix="Write numbers with commas between, as in 1,1,2."
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which engine runs a model, and where."""

    engine: EngineChoice = "auto"
    """``auto`` is CTranslate2 on a CPU where it has all that is asked for, otherwise torch."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, or ``cuda:1`` for the second of several GPUs."""
    dtype: Dtype | None = None
    """None is float32 on a CPU, bfloat16 or float16 on a GPU; or what an exported model has."""
    checkpoint: str = "best"
    """Of a run folder: ``best``, ``last``, ``step-N`` or ``average``."""
    threads: int | None = None
    """CPU threads; the engine's choice when None."""
    ensemble: Ensemble | None = None
    """Models that translate together with the first."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """What a translator needs of a folder."""

    engine: Engine
    config: RunConfig
    """Of the first model, with the least ``filters.max_length`` of all."""
    tokenizers: Tokenizers
    shortlist: ShortlistFile
    """Beside the model; it may be missing."""

    def check_unlimited(self, folder: Path | str) -> None:
        """Refuse lines of any length where the model has positions for so many tokens only.

        Raises:
            ConfigError: So it is.
        """
        if (most := self.engine.max_positions) is None:
            return
        is_learned = self.engine.name != "ctranslate2" or self.config.model.positions == "learned"
        reason = "its {} are learned" if is_learned else "it was exported with {}"
        raise ConfigError(
            f"{folder} cannot read lines of any length: {reason.format(f'{most:,} positions')}.",
            fix="Leave --no-split (split=False) out: lines are then cut into segments of "
            f"{self.config.filters.max_length:,} tokens or less.",
        )
