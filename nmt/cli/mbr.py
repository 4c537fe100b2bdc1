"""Flags of minimum Bayes risk decoding."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.translation.mbr import MbrChoice


class UtilityKind(StrEnum):
    """What compares two translations."""

    chrf = "chrf"
    bleu = "bleu"


class CandidateSource(StrEnum):
    """Where candidates come from."""

    samples = "samples"
    beam = "beam"


MbrOption = Annotated[
    UtilityKind | None,
    typer.Option(
        "--mbr",
        help="Find many translations and take the one most like all the others by this metric.",
        show_default=False,
    ),
]
MbrCandidates = Annotated[
    int,
    typer.Option("--mbr-candidates", min=2, metavar="N", help="Of --mbr: translations compared."),
]
MbrFrom = Annotated[
    CandidateSource,
    typer.Option("--mbr-from", help="Of --mbr: draw them by chance, or take the best of a beam."),
]


def make_mbr(
    utility: UtilityKind | None,
    candidates: int,
    source: CandidateSource,
    beam_size: int | None,
) -> MbrChoice | None:
    """Return what the flags say; None without ``--mbr``.

    Raises:
        ConfigError: A beam size was given too.
    """
    if utility is None:
        return None
    if beam_size is not None:
        raise ConfigError(
            f"--beam-size {beam_size} does not go with --mbr, which compares {candidates} "
            "translations, however they are found.",
            fix="Leave --beam-size out, and set --mbr-candidates.",
        )
    from nmt.translation.mbr import MbrChoice

    return MbrChoice(utility.value, candidates, source.value)
