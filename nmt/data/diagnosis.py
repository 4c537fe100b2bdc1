"""What an extra may find out about whole corpora while they are prepared.

`nmt.commands.prepare` calls the methods of a `Diagnosis` in the order in which they stand here. The
core knows only this class, which finds nothing: where the extra's folder is missing, pairs are
prepared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.config.data import CorpusConfig, FilterConfig
from nmt.data.filters import REASON_FILTERS, REASONS, FilterChain, Finding
from nmt.data.findings import Found
from nmt.data.lexicon import Lexicon
from nmt.data.pairs import SentencePair
from nmt.data.store import ParallelStore
from nmt.data.workers import Workers
from nmt.errors import ConfigError
from nmt.registry import Registry

Arrays = Mapping[str, npt.NDArray[Any]]
_CLEANING = "cleaning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What there is to look at, and where to work."""

    filters: FilterConfig
    languages: tuple[str, str]
    corpora: Mapping[str, CorpusConfig]  # of training, by their names in reports
    held_out: Mapping[str, Sequence[SentencePair]]  # usable pairs of each held-out set
    score_with: Sequence[Path] = ()  # models that are to score pairs
    folder: Path  # the prepared folder in the making: lists may be written into it
    scratch: Path  # for large arrays; it goes at the end
    workers: Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisReport:
    """What goes into the `PrepareReport`."""

    shifts: Sequence[Mapping[str, Any]] = ()
    unrelated: Sequence[Mapping[str, Any]] = ()
    leakage: Sequence[Mapping[str, Any]] = ()
    near: Mapping[str, int] = field(default_factory=dict)  # held-out sentences, by their set
    languages: Mapping[str, Any] = field(default_factory=dict)  # more of the reason ``language``
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()  # further lines of the text that a user reads


class Diagnosis:
    """Looks at the training pairs of one preparation, block by block, and judges them."""

    def __init__(self, material: Material) -> None:
        self.material = material

    @property
    def look(self) -> Callable[[Sequence[SentencePair]], Arrays] | None:
        """What a block says by itself: the pairs that its filters keep -> arrays.

        Picklable and pure. It is called in any process, and its arrays are stored: after a kill
        they are read and not made again.
        """
        return None

    @property
    def depends_on(self) -> Any:
        """All that ``look`` depends on beside the pairs and the filters section. Plain data."""
        return None

    def see(
        self, corpus: str, pairs: Sequence[SentencePair], looked: Arrays, found: Sequence[Found]
    ) -> None:
        """Take the next block, in the order of the corpora: its kept pairs and all findings."""

    def end(self, num_lines: Mapping[str, int]) -> None:
        """Take the number of lines of each corpus: all blocks were seen."""

    @property
    def compares_words(self) -> bool:
        """Whether `learn` has something to do. Then test sets are encoded, too."""
        return False

    def learn(
        self, lines: ParallelStore, spans: Mapping[str, tuple[int, int]], sizes: tuple[int, int]
    ) -> None:
        """Look at the token ids of every line of all corpora and held-out sets.

        Args:
            lines: Whole sentences; of dropped pairs, too.
            spans: First row of each corpus or set, and the row behind its last.
            sizes: Entries of the source and of the target vocabulary.
        """

    @property
    def lexicon(self) -> Lexicon | None:
        """What `learn` has learned of words, if that is a lexicon of all pairs."""
        return None

    def of_block(
        self, corpus: str, start: int, is_kept: npt.NDArray[np.bool_]
    ) -> Mapping[int, Sequence[Finding]]:
        """Return the findings of a block of a corpus, by the line's place in it.

        Called in the order of the corpora, for training only.

        Args:
            corpus: Its name.
            start: Lines of the corpus before the block.
            is_kept: Whether the filters of texts have kept each line of the block.
        """
        del corpus, start, is_kept
        return {}

    def report(self) -> DiagnosisReport:
        """Return what to report; all files in the folder are complete then."""
        return DiagnosisReport()


DIAGNOSES: Registry[Callable[[Material], Diagnosis]] = Registry(
    "diagnosis of corpora", {_CLEANING: "nmt.extras.cleaning.diagnosis:CorpusDiagnosis"}
)
LEAKAGE: Registry[Callable[..., Any]] = Registry(
    "search for leakage", {"near": "nmt.extras.cleaning.leakage:find_leakage"}
)


def make_diagnosis(material: Material, filters: FilterChain) -> Diagnosis:
    """Return the diagnosis of the cleaning extra, or one that finds nothing.

    Raises:
        ConfigError: The extra is missing, and what only it can do was asked for.
    """
    if make := DIAGNOSES.find(_CLEANING):
        return make(material)
    alone = {*REASON_FILTERS.names(), "ratio"}
    whole = [name for name in REASONS if name not in alone]
    asked = ["`score_with`"] if material.score_with else []
    asked += [f"filters.{name}: drop" for name in whole if filters.actions.get(name) == "drop"]
    if asked:
        raise ConfigError(
            f"{' and '.join(asked)} needs nmt/extras/cleaning, which is missing.",
            fix="Install nmt again with all of its folders, or do without.",
        )
    filters.notes.append(f"{', '.join(whole)} not looked for: nmt/extras/cleaning is missing")
    return Diagnosis(material)
