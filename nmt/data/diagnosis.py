"""The interface of the diagnosis, which compares pairs across whole corpora.

`nmt.commands.prepare` calls the methods of a `Diagnosis` in the order in which they are defined
here. The base class finds nothing; it is used if the folder nmt/extras/cleaning is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nmt.config.data import CorpusConfig, Direction, FilterConfig
from nmt.data.filters import (
    NEAR,
    REASON_FILTERS,
    REASONS,
    FilterChain,
    ListedProblem,
    PairProblem,
)
from nmt.data.formats.pair import SentencePair
from nmt.data.lexicon import Lexicon
from nmt.data.prepare_report import PrepareReport
from nmt.data.store import Lines, Mask
from nmt.data.workers import Arrays, Workers
from nmt.errors import ConfigError
from nmt.registry import Registry

_CLEANING = "cleaning"


@dataclass(frozen=True, kw_only=True)
class Material:
    """The inputs of a `Diagnosis`."""

    filters: FilterConfig
    languages: tuple[str, str]  # of the first training corpus
    directions: Mapping[str, Direction] = field(default_factory=dict)  # by corpus and set
    corpora: Mapping[str, CorpusConfig]  # training corpora, by their names in reports
    # See `nmt.data.reading.CorpusReader`; complete when the corpora have been read.
    files: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    held_out: Mapping[str, Sequence[SentencePair]]  # usable pairs of each held-out set
    configured: Collection[str] = ()  # names of the held-out sets of the configuration
    score_with: Sequence[Path] = ()  # models that score the pairs
    folder: Path  # the new prepared folder, for lists of scores
    scratch: Path  # a temporary folder for large arrays
    workers: Workers


class Looked(NamedTuple):
    """What ``Diagnosis.look`` has found in the pairs of a block."""

    problems: Mapping[int, PairProblem]  # by index of the pair
    arrays: Arrays  # of the pairs that these problems do not drop


class Diagnosis:
    """Base class of checks that compare all training pairs with each other."""

    # A function of a corpus and of the pairs that the filters keep in a block. It must be picklable
    # and deterministic: it is called in any process, and its arrays are stored, to resume after a
    # kill.
    look: Callable[[str, Sequence[SentencePair]], Looked] | None = None
    depends_on: Any = None  # JSON data: inputs of ``look`` other than the pairs and the filters
    compares_words = False  # whether `learn` is needed; then the test sets are encoded too
    lexicon: Lexicon | None = None  # the lexicon that `learn` has learned from all pairs

    def __init__(self, material: Material) -> None:
        self.material = material

    def see(
        self,
        corpus: str,
        pairs: Sequence[SentencePair],
        looked: Arrays,
        found: Sequence[ListedProblem],
    ) -> None:
        """Process the kept pairs and the problems of the next block, in corpus order.

        Args:
            corpus: Name of the corpus.
            pairs: The pairs that the filters of texts and ``look`` have kept.
            looked: Arrays of ``look`` for these pairs.
            found: Problems that the filters have found in the block.
        """

    def end(self, num_lines: Mapping[str, int]) -> None:
        """Finish the first pass. Called after all blocks with the number of lines by corpus."""

    def learn(
        self, lines: Lines, spans: Mapping[str, tuple[int, int]], sizes: tuple[int, int]
    ) -> None:
        """Process the token ids of every line of all corpora and held-out sets.

        Args:
            lines: Token ids of all lines, including dropped pairs.
            spans: First row of each corpus or held-out set, and the row after its last row.
            sizes: Sizes of the source and of the target vocabulary.
        """

    def of_block(
        self, corpus: str, start: int, is_kept: Mask
    ) -> Mapping[int, Sequence[PairProblem]]:
        """Return the problems of a block, by the position of the line in the block.

        Called for the blocks of all training corpora, in order.

        Args:
            corpus: Name of the corpus.
            start: Number of lines of the corpus before the block.
            is_kept: Whether the text filters have kept each line of the block.
        """
        del corpus, start, is_kept
        return {}

    def complete(self, report: PrepareReport) -> PrepareReport:
        """Add the results to a report, after completing all files in `Material.folder`."""
        return report


DIAGNOSES = Registry[Callable[[Material], Diagnosis]]("diagnosis of corpora")
LEAKAGE = Registry[Callable[..., Any]]("search for leakage")


def make_diagnosis(material: Material, filters: FilterChain) -> Diagnosis:
    """Return the diagnosis of nmt/extras/cleaning; without it, a diagnosis that finds nothing.

    Raises:
        ConfigError: nmt/extras/cleaning is missing, but the configuration requires it.
    """
    if make := DIAGNOSES.find(_CLEANING):
        return make(material)
    # Reasons for which a filter looks at one pair at a time; all other reasons need a diagnosis.
    of_filters = {*REASON_FILTERS.names(), "ratio"}
    of_diagnosis = [reason for reason in REASONS if reason not in of_filters]
    settings = ["`score_with`"] if material.score_with else []  # that require the folder
    settings += [
        f"filters.{reason}: drop"
        for reason in of_diagnosis
        if filters.actions.get(reason) == "drop"
    ]
    if settings:
        raise ConfigError(
            f"{' and '.join(settings)} needs nmt/extras/cleaning, which is missing.",
            fix="Reinstall nmt with all folders, or remove these settings.",
        )
    filters.skipped |= dict.fromkeys(
        (*of_diagnosis, NEAR), "The folder nmt/extras/cleaning is missing."
    )
    return Diagnosis(material)
