"""`Engine` (runs a trained model), the choice of an engine, and shortlists. Does not import torch.

To add an engine, write a subclass of `Engine` with a method `search` and a function that loads it,
and register the function in `ENGINES`.
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
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from nmt.checkpoint.model_folder import (
    PROFILES,
    SHORTLIST,
    TOKENIZER,
    is_ctranslate2,
    readable,
    write_extra,
)
from nmt.config.model import DecodingConfig
from nmt.config.training import full_device_name, full_dtype_name
from nmt.errors import CheckpointError, ConfigError
from nmt.inference.direction import Languages
from nmt.registry import Registry, chosen
from nmt.search.hypothesis import Constraints, IdLists, NBestLists
from nmt.text.tokenizer import Tokenizers, tokenizer_hash

logger = logging.getLogger(__name__)
# Data type of the weights, and of products with them.
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
Mean = Literal["arithmetic", "geometric"]
# Optional outputs, in addition to texts and scores.
OutputName = Literal["alignments", "attention", "token_scores"]
_DEVICES = ("auto", "cpu", "cuda", "mps")
_CONVERTED = (None, "float32", "int8")  # Dtypes for which ``auto`` chooses CTranslate2 on a CPU.
_REWRITE = "`nmt train CONFIG`, which writes it without training again"
GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))


def parse_dtype(text: str) -> Dtype | None:
    """Return the full name of a dtype; None for ``auto``.

    Raises:
        ConfigError: The dtype is unknown.

    >>> parse_dtype("bf16"), parse_dtype("int8"), parse_dtype("auto")
    ('bfloat16', 'int8', None)
    """
    names: dict[str, Dtype | None] = {"auto": None}  # Full name -> returned value.
    names.update((dtype, dtype) for dtype in get_args(Dtype))
    return chosen(names, str(full_dtype_name(text)), "dtype")


def parse_device(text: str) -> str:
    """Return the full name of a device.

    Raises:
        ConfigError: The device is unknown.

    >>> parse_device("gpu:1"), parse_device("auto")
    ('cuda:1', 'auto')
    """
    name = str(full_device_name(text))
    if re.fullmatch(r"cuda:\d{1,3}", name):
        return name
    return chosen({device: device for device in _DEVICES}, name, "device")


@dataclass(frozen=True)
class Ensemble:
    """Models that translate together with the first model.

    All models must have the same languages and vocabulary. Their shapes may differ.
    """

    others: tuple[Path, ...] = ()  # Run or model folders of the other models.
    # One weight for the first model and for each other model; empty for equal weights.
    weights: tuple[float, ...] = ()
    mean: Mean = "arithmetic"  # Mean of next-token probabilities, or of their logarithms.

    def shares(self) -> tuple[float, ...]:
        """Return the normalized weight of every model. The weights sum to 1.

        Raises:
            ConfigError: Too few or too many weights, a negative weight, or only zeros.

        >>> Ensemble((Path("b"), Path("c")), (1.0, 1.0, 2.0)).shares()
        (0.25, 0.25, 0.5)
        """
        num_models = len(self.others) + 1
        weights = self.weights or (1.0,) * num_models
        shown = ",".join(f"{weight:g}" for weight in weights)
        if len(weights) != num_models:
            fix = "Pass one weight for MODEL and one for each `with`, in this order."
            models = "1 model" if num_models == 1 else f"{num_models} models"
            raise ConfigError(f"{len(weights)} weights ({shown}) for {models}.", fix=fix)
        total = sum(weights)
        is_usable = 0 < total < math.inf  # false if a weight is NaN
        if min(weights) < 0 or not is_usable:
            raise ConfigError(
                f"`weights` {shown}: a weight is negative, or all are 0.",
                fix="Pass non-negative weights, and at least one above 0.",
            )
        return tuple(weight / total for weight in weights)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that select and load an engine."""

    # A name in `ENGINES`, or ``auto``: CTranslate2 on a CPU if it supports all requested features,
    # otherwise torch.
    engine: str = "auto"
    # ``auto``, ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.
    device: str = "auto"
    # ``float32``, ``float16`` (GPU only), ``bfloat16``, ``int8`` (CTranslate2 only), or ``auto``:
    # float32 on a CPU, 16 bits on a GPU, the stored type for an exported model.
    dtype: str = "auto"
    # Checkpoint of a run folder: ``best``, ``last``, ``step-N`` or ``average``.
    checkpoint: str = "best"
    threads: int | None = None  # CPU threads; chosen by the engine if None.
    ensemble: Ensemble | None = None  # Models that translate together with the first one.


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Features that an engine must support."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)  # Options of the search.
    outputs: frozenset[OutputName] = frozenset()
    constraints: bool = False
    longest: int | None = None  # Tokens of the longest source; None if there is no limit.


class BatchCapacity(NamedTuple):
    """Upper limits of a batch of an engine."""

    tokens: int = 2048  # Padded source tokens if ``decoding.batch_tokens`` is ``auto``.
    probabilities: int = 1 << 26  # Next-token probabilities of all hypotheses (256 MiB).
    hypotheses: int = 1 << 20  # Hypotheses of all sentences.


Check = Callable[[], object]  # May raise to interrupt a search.


@dataclass(frozen=True)
class SearchTask:
    """One batch for `Engine.search_all`."""

    sources: IdLists  # Source ids of each sentence, without EOS; never empty.
    options: DecodingConfig  # Options of the search.
    constraints: Sequence[Constraints] | None = None  # Constraints of each sentence, if any.


class EngineLacksError(ConfigError):
    """The engine does not support a requested feature. Another engine may support it."""

    @classmethod
    def of(cls, engine: str, names: Iterable[str]) -> EngineLacksError:
        """Return the error for an engine and the names of the missing features."""
        fix = "Remove the option, or translate the run folder with `engine` torch."
        return cls(f"The {engine} engine does not support {', '.join(names)}.", fix=fix)


def damaged_weights() -> CheckpointError:
    """Return the error for a model that computes NaN."""
    return CheckpointError(
        "The model's probabilities are NaN: its weights are damaged.",
        fix="Set `checkpoint` to step-N, or train again.",
    )


class Engine(ABC):
    """Translates token ids with a loaded model. Text and tokenizers are handled elsewhere."""

    name = "engine"  # Name in `ENGINES`.
    dtype = "float32"  # Data type of the computation.
    on_gpu = False  # Whether the search runs on a GPU, so that the CPU is free for other work.
    # Maximum output length in tokens, EOS included; None if there is no limit.
    max_positions: int | None = None

    @abstractmethod
    def search(
        self,
        sources: IdLists,
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
        check: Check = lambda: None,
    ) -> NBestLists:
        """Translate a batch.

        Args:
            sources: Source ids of each sentence, without EOS; never empty.
            options: Options of the search.
            constraints: Constraints on the output of each sentence.
            check: Called as often as the engine allows: between steps, or between passes.

        Returns:
            The n-best hypotheses of each sentence, best first; samples and alternatives in the
            order of generation. An empty list for a sentence that has no possible output.
        """

    def attention(self, sources: IdLists, targets: IdLists) -> list[list[list[float]]]:
        """Return the attention to each source token when each target token is predicted.

        Args:
            sources: Source ids of each sentence, without EOS; never empty.
            targets: Target ids of each sentence, without BOS and EOS.

        Returns:
            A matrix (T, S) for each sentence. A row sums to at most 1, as the source EOS is left
            out.

        Raises:
            EngineLacksError: The engine does not support attention.
        """
        del sources, targets
        raise EngineLacksError.of(self.name, ["attention"])

    def token_log_probs(self, sources: IdLists, targets: IdLists) -> list[list[float]]:
        """Return the natural-log probability of each target token, and of EOS.

        Limits and rules of the search are not applied. For the arguments see `attention`.

        Raises:
            EngineLacksError: The engine does not support token scores.
        """
        del sources, targets
        raise EngineLacksError.of(self.name, ["token scores"])

    def lacks(self, needs: Needs) -> list[str]:  # noqa: ARG002 - most engines support everything
        """Return the names of needed features that the engine does not support."""
        return []

    def require(self, needs: Needs) -> None:
        """Raise `EngineLacksError` if the engine does not support the needed features."""
        missing = self.lacks(needs)
        if missing:
            raise EngineLacksError.of(self.name, missing)

    @property
    def capacity(self) -> BatchCapacity:
        """Limits of a batch, for all workers together."""
        return BatchCapacity()

    @property
    def num_workers(self) -> int:
        """Number of tasks that `search_all` runs in parallel."""
        return 1

    def search_all(
        self, tasks: Sequence[SearchTask], check: Check = lambda: None
    ) -> Generator[NBestLists, None, None]:
        """Yield the result of `search` for each task, in order."""
        num_threads = max(1, min(self.num_workers, len(tasks)))
        with ThreadPoolExecutor(num_threads) as pool:
            # If the caller stops early, `map` cancels the pending tasks, and `with` waits for the
            # running ones.
            yield from pool.map(
                lambda task: self.search(task.sources, task.options, task.constraints, check), tasks
            )

    def batches(
        self, lengths: Sequence[int], options: DecodingConfig, vocab_size: int
    ) -> list[list[int]]:
        """Group sentences of similar length into batches within `capacity`, shortest first.

        Args:
            lengths: Source tokens of each sentence, without EOS.
            options: Options of the search.
            vocab_size: Size of the target vocabulary.

        Returns:
            Batches of indices into ``lengths``.
        """
        capacity = self.capacity
        num_hypotheses = options.num_hypotheses  # of each sentence
        # The workers share the memory for probabilities.
        num_probabilities = capacity.probabilities // self.num_workers
        by_memory = num_probabilities // (num_hypotheses * vocab_size)
        max_rows = min(by_memory, capacity.hypotheses // num_hypotheses)
        return batch_by_length(lengths, self.batch_tokens(options), max(1, max_rows))

    def batch_tokens(self, options: DecodingConfig) -> int:
        """Return the maximum source tokens of a batch, padding included."""
        if options.batch_tokens == "auto":
            return self.capacity.tokens
        return options.batch_tokens


def batch_by_length(lengths: Sequence[int], max_tokens: int, max_rows: int) -> list[list[int]]:
    """Group rows of similar length into batches, shortest first.

    Args:
        lengths: Tokens of each row without EOS. Rows of equal length stay in their order.
        max_tokens: Maximum tokens of a batch, EOS and padding included. A longer row forms a
            batch alone.
        max_rows: Maximum rows of a batch.

    Returns:
        Batches of indices into ``lengths``.

    >>> batch_by_length([3, 1, 1, 9], max_tokens=8, max_rows=5)
    [[1, 2], [0], [3]]
    """
    batches = list[list[int]]()
    batch = list[int]()  # the last one of `batches`
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Size of the batch with this row, whose length all other rows are padded to. 1 for EOS.
        num_tokens = (len(batch) + 1) * (lengths[row] + 1)
        is_full = num_tokens > max_tokens or len(batch) == max_rows
        if not batch or is_full:
            batch = []
            batches.append(batch)
        batch.append(row)
    return batches


class ShortlistParts(NamedTuple):
    """The shortlist of a model: F common tokens, and C candidates for each of V source tokens."""

    # Target ids that every sentence may need, most frequent first. (F,).
    common: npt.NDArray[np.integer[Any]]
    # Target ids that translate each source token, most probable first, padded with -1. (V, C).
    candidates: npt.NDArray[np.integer[Any]]


def read_shortlist(folder: Path, vocab_sizes: tuple[int, int]) -> ShortlistParts | None:
    """Read the shortlist of a run or model folder; None if the file does not exist.

    Args:
        folder: Run or model folder.
        vocab_sizes: Sizes of the source and the target vocabulary.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = folder / SHORTLIST
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            common = file.get_tensor("common")
            candidates = file.get_tensor("candidates")
            shortlist = ShortlistParts(common, candidates)
            vocab_hash = (file.metadata() or {}).get("vocab_hash")  # older files do not have it
        common, candidates = shortlist
        kinds = [(array.ndim, array.dtype.kind) for array in shortlist]
        if kinds != [(1, "i"), (2, "i")] or not candidates.size:  # i: signed integers
            raise ValueError("wrong shapes or types")
        largest_id = max(array.max(initial=-1) for array in shortlist)
        source_vocab_size, target_vocab_size = vocab_sizes
        has_sizes = len(candidates) == source_vocab_size and largest_id < target_vocab_size
        if not has_sizes or vocab_hash not in (None, tokenizer_hash(folder / TOKENIZER)):
            raise ValueError("it was made for a different vocabulary")
        if common.min(initial=0) < 0 or candidates.min() < -1:  # -1 pads the candidates
            raise ValueError("it contains numbers that are not token ids")
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}.", fix=f"Delete it, then run {_REWRITE}."
        ) from error
    return shortlist


def require_shortlist(folder: Path, vocab_sizes: tuple[int, int]) -> ShortlistParts:
    """Read the shortlist of a folder if ``decoding.shortlist`` is on.

    Raises:
        ConfigError: The folder does not have a shortlist.
        CheckpointError: The file is damaged.
    """
    shortlist = read_shortlist(folder, vocab_sizes)
    if shortlist is None:
        raise ConfigError(
            f"decoding.shortlist is on, but {folder}/{SHORTLIST} does not exist.",
            fix=f"Run {_REWRITE}, or set decoding.shortlist to false.",
        )
    return shortlist


def copy_extras(prepared_dir: Path, run_dir: Path) -> None:
    """Copy shortlist and language profiles to the run, so that the run does not need its data.

    Raises:
        CheckpointError: The folder is not writable.
    """
    for name in (SHORTLIST, PROFILES):
        path = prepared_dir / name
        if path.is_file():
            write_extra(run_dir / name, path.read_bytes())


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model folder."""

    engine: Engine
    tokenizers: Tokenizers
    decoding: DecodingConfig  # Decoding section of the model's configuration.
    # Maximum source length in training, in subwords; the minimum over the models of an ensemble.
    max_length: int
    languages: Languages = field(default_factory=Languages)


# Loads the model of a folder. Raises `EngineLacksError` if it does not support the needs.
EngineLoader = Callable[[Path, EngineOptions, Needs], LoadedModel]
ENGINES = Registry[EngineLoader]("engine")


def choose_engine(folder: Path, options: EngineOptions, needs: Needs) -> LoadedModel:
    """Load a model with the requested engine.

    ``auto`` chooses CTranslate2 on a CPU if it supports all needs and no shortlist slows it down,
    otherwise torch.

    Args:
        folder: Run or model folder.
        options: Engine, device and dtype.
        needs: Features that the engine must support.

    Raises:
        ConfigError: The engine cannot load this folder, or not on this device or in this dtype.
        EngineLacksError: The requested engine does not support the needs.
        CheckpointError: A file is missing or damaged, or the models of an ensemble do not match.
    """
    options = replace(options, device=parse_device(options.device))
    dtype = parse_dtype(options.dtype)
    if options.threads is not None and options.threads < 1:
        raise ConfigError(f"`threads` is {options.threads}.", fix="Use at least one thread.")
    with readable():
        if options.engine == "auto":
            loaded = _load_with_best_engine(folder, options, needs, dtype)
        else:
            loaded = ENGINES[options.engine](folder, options, needs)
    logger.debug("engine: %s, %s", loaded.engine.name, loaded.engine.dtype)
    source_tokenizer = loaded.tokenizers.source.for_translation()
    return replace(loaded, tokenizers=loaded.tokenizers._replace(source=source_tokenizer))


def _load_with_best_engine(
    folder: Path, options: EngineOptions, needs: Needs, dtype: Dtype | None
) -> LoadedModel:
    """Load a model with the engine that ``auto`` means: see `choose_engine`."""
    if is_ctranslate2(folder):
        return ENGINES["ctranslate2"](folder, options, needs)
    # On a GPU and in 16 bits torch is chosen. With a shortlist it is faster in float32. CTranslate2
    # does not keep the mass of special tokens, which an import asks for, so it needs the user's
    # choice of int8 or of the engine.
    decoding = needs.decoding
    prefers_torch = dtype != "int8" and (decoding.keep_special_mass or decoding.shortlist)
    if dtype in _CONVERTED and not prefers_torch and not _runs_on_gpu(options.device):
        try:
            return ENGINES["ctranslate2"](folder, replace(options, device="cpu"), needs)
        except ConfigError as error:  # for example not installed, or a missing feature
            if dtype == "int8":  # torch does not support it
                raise
            logger.debug("using torch: %s", error.problem)
    return ENGINES["torch"](folder, options, needs)


def _runs_on_gpu(device: str) -> bool:
    """Whether torch would use a GPU. Imports torch, which is slow, only if a GPU driver exists."""
    if device != "auto":
        return device != "cpu"
    if sys.platform == "linux" and not any(path.exists() for path in GPU_DRIVERS):
        return False
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()
