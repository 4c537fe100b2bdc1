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


_CANDIDATES, _SOURCE = 32, CandidateSource.samples

MbrOption = Annotated[
    UtilityKind | None,
    typer.Option(
        "--mbr",
        help="Find many translations and take the one most like all the others by this metric.",
        show_default=False,
    ),
]
MbrCandidates = Annotated[
    int | None,
    typer.Option(
        "--mbr-candidates",
        min=2,
        metavar="N",
        help="Of --mbr: translations compared.",
        show_default=str(_CANDIDATES),
    ),
]
MbrFrom = Annotated[
    CandidateSource | None,
    typer.Option(
        "--mbr-from",
        help="Of --mbr: draw them by chance, or take the best of a beam.",
        show_default=_SOURCE.value,
    ),
]


def make_mbr(
    utility: UtilityKind | None,
    candidates: int | None,
    source: CandidateSource | None,
    beam_size: int | None,
) -> MbrChoice | None:
    """Return what the flags say; None without ``--mbr``.

    Raises:
        ConfigError: A beam size was given too, or the others without ``--mbr``.
    """
    if utility is None:
        if candidates is not None or source is not None:
            flag = "--mbr-from" if candidates is None else "--mbr-candidates"
            raise ConfigError(
                f"{flag} says nothing without --mbr.", fix="Add --mbr chrf, or leave it out."
            )
        return None
    candidates, source = candidates or _CANDIDATES, source or _SOURCE
    if beam_size is not None:
        raise ConfigError(
            f"--beam-size {beam_size} does not go with --mbr, which compares {candidates} "
            "translations, however they are found.",
            fix="Leave --beam-size out, and set --mbr-candidates.",
        )
    from nmt.translation.mbr import MbrChoice

    return MbrChoice(utility.value, candidates, source.value)
