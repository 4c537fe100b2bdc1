"""Test sets that sacrebleu publishes -> pairs. The only module of this room that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from nmt.errors import DataError
from nmt.files.lines import read_lines


def published_pairs(
    name: str, source_language: str, target_language: str
) -> Iterator[tuple[str, str]]:
    """Yield (source, first reference) of a test set, downloading it on first use.

    Raises:
        DataError: There is no such test set, or it cannot be downloaded.
    """
    import sacrebleu  # noqa: PLC0415 - most corpora do without

    pair = f"{source_language}-{target_language}"
    try:
        source = sacrebleu.get_source_file(name, pair)
        target = sacrebleu.get_reference_files(name, pair)[0]
    except (SystemExit, Exception) as error:  # sacrebleu ends the process where it finds nothing
        raise DataError(
            f"sacrebleu has no test set {name} for {pair}, or cannot download it: {error}.",
            fix="`sacrebleu --list` shows the test sets; the first use needs the internet.",
        ) from error
    sources, targets = read_lines(Path(source)), read_lines(Path(target))
    for left, right in zip_longest(sources, targets):
        if left is None or right is None:
            raise DataError.not_parallel(source, target, (len(sources), len(targets)))
        yield left, right
