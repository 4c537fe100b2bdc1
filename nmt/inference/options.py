"""What a user chooses about translating: which engine, how it searches, what is returned.

Loads no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from nmt.config.model import DecodingConfig
from nmt.config.training import full_device_name, full_dtype_name
from nmt.errors import ConfigError
from nmt.inference.confidence import ConfidenceModel
from nmt.inference.guard import GuardLimits
from nmt.registry import chosen

if TYPE_CHECKING:  # its metrics take time to load
    from nmt.inference.mbr import Mbr

# What a model's weights are kept and multiplied in.
Dtype = Literal["float32", "float16", "bfloat16", "int8"]
Mean = Literal["arithmetic", "geometric"]
# What is returned besides texts and scores.
Output: TypeAlias = Literal["alignments", "attention", "token_scores"]
_DEVICES = ("auto", "cpu", "cuda")


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
                f"The weights {shown} are no weights.",
                fix="Give numbers that are not negative, at least one of them above 0.",
            )
        return tuple(weight / total for weight in weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which engine runs a model, and where."""

    # ``torch``, ``ctranslate2``, another of `nmt.inference.engine.ENGINES`, or ``auto``:
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
class TranslationOptions:
    """What holds for all lines of a translator."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    outputs: frozenset[Output] = frozenset()
    # Whether lines may have a prefix or phrases, which not every engine can follow.
    constraints: bool = False
    # Most source subwords at once; longer lines are cut, translated and joined. None: none is.
    max_length: int | None = 256
    joiner: str = " "  # What joins the parts.
    tag: str | None = None  # Language or domain of lines that name none.
    guard: bool = True  # Whether outputs are looked at: see `nmt.inference.guard`.
    retry: bool = True  # Whether the guard searches again; otherwise it only raises alarms.
    limits: GuardLimits = field(default_factory=GuardLimits)  # What the guard takes for normal.
    confidence: ConfidenceModel | None = None  # Predicts the quality of each translation.
    mbr: Mbr | None = None  # Chooses the candidate most like all others, by minimum Bayes risk.
    # Called after each batch with the lines that it completes; may raise to interrupt.
    progress: Callable[[int], object] = lambda _: None

    @property
    def search(self) -> DecodingConfig:
        """What the engine is asked for: with MBR more than what is returned."""
        return self.mbr.search_options(self.decoding) if self.mbr else self.decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What is needed of an engine, so that one is chosen that has all of it."""

    decoding: DecodingConfig = field(default_factory=DecodingConfig)  # How to search.
    outputs: frozenset[Output] = frozenset()
    constraints: bool = False
    longest: int | None = None  # Tokens of the longest source; None if there is no limit.

    @classmethod
    def of(cls, options: TranslationOptions) -> Needs:
        """Return what a translator with these options needs."""
        return cls(
            decoding=options.search,
            outputs=options.outputs,
            constraints=options.constraints,
            longest=options.max_length,
        )
