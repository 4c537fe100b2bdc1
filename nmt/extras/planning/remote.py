"""Places of ``nmt init`` that are downloaded first."""

from __future__ import annotations

from pathlib import Path

from nmt.data import hubs, opus


def local_place(place: Path, languages: tuple[str, str] | None, folder: Path) -> Path:
    """Return a place on this machine: a download of ``opus:NAME`` or ``hub:NAME``, or the place.

    Args:
        place: File, folder or name.
        languages: Codes of source and target that the user has named.
        folder: Where downloads are written.

    Raises:
        ConfigError: It is not certain which corpus is meant.
        DataError: A corpus cannot be downloaded.
    """
    name = place.as_posix()
    if name.startswith(opus.PREFIX):
        return opus.opus_corpus(name, languages, folder)
    if name.startswith(hubs.PREFIX):
        return hubs.save_data_set(name, languages, folder)
    return place
