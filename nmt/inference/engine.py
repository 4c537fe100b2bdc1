"""What runs a trained model: `Engine`, the choice of one, and what it reads. Loads no torch.

A second engine is a subclass of `Engine` with a method `search`, and a function that loads it,
registered in `ENGINES`.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from nmt.checkpoint.model_folder import SHORTLIST, is_ctranslate2, readable, write_extra
from nmt.config.model import DecodingConfig
from nmt.config.training import full_device_name, full_dtype_name
from nmt.errors import CheckpointError, ConfigError
from nmt.registry import Registry, chosen
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text.tokenizer import Tokenizers

logger = logging.getLogger(__name__)
# What a model's weights are kept and multiplied in.
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
Mean = Literal["arithmetic", "geometric"]
# What is returned besides texts and scores.
OutputName: TypeAlias = Literal["alignments", "attention", "token_scores"]
_DEVICES = ("auto", "cpu", "cuda")
_CONVERTED = (None, "float32", "int8")  # Dtypes in which CTranslate2 is chosen for a CPU.
_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))


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
class Ensemble:
    """What joins the first model. They may differ in shape, not in languages and vocabulary."""

    others: tuple[Path, ...] = ()  # Run or model folders; none: the first model is alone.
    # Of the first model and of the others; equal ones where there are none.
    weights: tuple[float, ...] = ()
    mean: Mean = "arithmetic"  # Of the probabilities of the next token, or of their logarithms.

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
                fix="Give one weight for MODEL and one for each `with`, in this order.",
            )
        total = sum(weights)
        if min(weights) < 0 or not 0 < total < math.inf:
            raise ConfigError(
                f"{shown} cannot be used as weights.",
                fix="Give numbers that are not negative, at least one of them above 0.",
            )
        return tuple(weight / total for weight in weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which engine runs a model, and where."""

    # ``torch``, ``ctranslate2``, another of `ENGINES`, or ``auto``:
    # CTranslate2 on a CPU where it has all that is asked for, otherwise torch.
    engine: str = "auto"
    # ``auto``, ``cpu``, ``cuda``, or ``cuda:1`` for the second of several GPUs.
    device: str = "auto"
    # ``float32``, ``float16`` on GPUs, ``bfloat16``, or ``int8``, which needs CTranslate2; ``auto``
    # is float32 on a CPU, 16 bits on a GPU, and what an exported model has.
    dtype: str = "auto"
    checkpoint: str = "best"  # Of a run folder: ``best``, ``last``, ``step-N`` or ``average``.
    threads: int | None = None  # CPU threads; the engine's choice when None.
    ensemble: Ensemble | None = None  # Models that translate together with the first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What is needed of an engine, so that one is chosen that has all of it."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)  # How to search.
    outputs: frozenset[OutputName] = frozenset()
    constraints: bool = False
    longest: int | None = None  # Tokens of the longest source; None if there is no limit.


class BatchCapacity(NamedTuple):
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
    def capacity(self) -> BatchCapacity:
        """How much `search` can be given at once, by all workers together."""
        return BatchCapacity()

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
            # Where this ends early, `map` cancels what has not begun; `with` waits for the rest.
            yield from pool.map(lambda x: self.search(x.sources, options, x.constraints), tasks)

    def batches(
        self, lengths: Sequence[int], options: DecodingConfig, vocab_size: int
    ) -> list[list[int]]:
        """Return rows of sentences of like length that can be searched at once, shortest first.

        Args:
            lengths: Source tokens of each sentence, without EOS.
            options: Of the search.
            vocab_size: Size of the target vocabulary.
        """
        capacity, width = self.capacity, options.num_hypotheses
        most = capacity.probabilities // self.num_workers // (width * vocab_size)
        max_rows = max(1, min(most, capacity.hypotheses // width))
        wanted = options.batch_tokens
        return batch_by_length(lengths, capacity.tokens if wanted == "auto" else wanted, max_rows)


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


class ShortlistParts(NamedTuple):
    """The shortlists of a model. F common tokens, V source tokens, C candidates of each."""

    # Target ids that every sentence may need, the most frequent first. (F,).
    common: npt.NDArray[np.integer[Any]]
    # Target ids that each source token may become, the likeliest first; -1 where there are fewer.
    # (V, C).
    candidates: npt.NDArray[np.integer[Any]]


def read_shortlist(folder: Path, vocab_sizes: tuple[int, int]) -> ShortlistParts | None:
    """Return the shortlists of a run or model folder; None if it has none.

    Args:
        folder: Where the file is looked for.
        vocab_sizes: Sizes of the source and of the target vocabulary.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = folder / SHORTLIST
    if not path.is_file():
        return None
    try:
        found = load_file(path)
        parts = common, candidates = ShortlistParts(found["common"], found["candidates"])
        kinds = [(part.ndim, part.dtype.kind) for part in parts]
        if kinds != [(1, "i"), (2, "i")] or not candidates.size:
            raise ValueError("its parts have other shapes or types")
        largest = max(part.max(initial=-1) for part in parts)
        if len(candidates) != vocab_sizes[0] or largest >= vocab_sizes[1]:
            raise ValueError("it is of another vocabulary")
        if common.min(initial=0) < 0 or candidates.min() < -1:
            raise ValueError("it holds numbers that are not tokens")
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}.",
            fix="Remove it; a finished run gets it again when its training is started again.",
        ) from error
    return parts


def require_shortlist(folder: Path, vocab_sizes: tuple[int, int]) -> ShortlistParts:
    """Return the shortlists of a folder, which ``decoding.shortlist`` asks for.

    Raises:
        ConfigError: It has none.
        CheckpointError: They are damaged.
    """
    if (parts := read_shortlist(folder, vocab_sizes)) is None:
        raise ConfigError(
            f"decoding.shortlist is on, but {folder} has no {SHORTLIST}.",
            fix="Start `nmt train CONFIG` again: a finished run only writes it. Or set "
            "decoding.shortlist to false.",
        )
    return parts


def copy_shortlist(prepared_dir: Path, run_dir: Path) -> None:
    """Copy the shortlists that `prepare` made into a run, which is then complete without its data.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    if (made := prepared_dir / SHORTLIST).is_file():
        write_extra(run_dir / SHORTLIST, made.read_bytes())


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
    name, dtype, loaded = options.engine, parse_dtype(options.dtype), None
    if options.threads is not None and options.threads < 1:
        raise ConfigError(
            f"`threads` is {options.threads}.", fix="Leave it out, or give 1 or more."
        )
    with readable():
        if name == "auto" and is_ctranslate2(folder):
            name = "ctranslate2"
        if name == "auto":
            name = "torch"
            # A GPU is torch's, and so are 16 bits.
            if dtype in _CONVERTED and not _runs_on_gpu(options.device):
                try:
                    on_cpu = replace(options, device="cpu")
                    loaded = ENGINES["ctranslate2"](folder, on_cpu, needs)
                except ConfigError as error:  # not installed, say, or it lacks something
                    if dtype == "int8":
                        raise
                    logger.debug("torch translates: %s", error.problem)
        loaded = loaded or ENGINES[name](folder, options, needs)
    logger.debug("engine: %s, %s", loaded.engine.name, loaded.engine.dtype)
    return loaded


def _runs_on_gpu(device: str) -> bool:
    """Whether torch takes a GPU; asked only where there are signs of one, as torch takes long."""
    if device != "auto":
        return device != "cpu"
    if sys.platform == "linux" and not any(path.exists() for path in _GPU_DRIVERS):
        return False
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()
