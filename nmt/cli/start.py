"""``nmt init`` and ``nmt doctor``: before the first training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from nmt.cli.options import JSON, file_name, flag, print_result

INIT_EPILOG = """\b
Examples:
  nmt init corpus.de corpus.en
  nmt init corpus.de corpus.en --valid dev.de dev.en --test test.de test.en
  nmt init deutsch.txt.gz english.txt.gz --languages de-en -o experiments/de-en
"""
DOCTOR_EPILOG = """\b
Example:
  nmt doctor
"""


def init(
    source: Path = typer.Argument(
        parser=file_name, metavar="SOURCE", help="Source text, one sentence a line."
    ),
    target: Path = typer.Argument(
        parser=file_name, metavar="TARGET", help="Its translations, line by line."
    ),
    output: Path | None = flag(
        "-o",
        "--output",
        metavar="FOLDER",
        parser=file_name,
        help="Folder to make.",
        show_default="the languages",
    ),
    languages: str | None = flag(
        "--languages",
        "-l",
        metavar="PAIR",
        help="Their codes, as in de-en.",
        show_default="the ends of the names",
    ),
    seed: int = flag(default=1, min=0, metavar="N", help="Decides which pairs are held out."),
    valid: tuple[Path, Path] | None = flag(
        metavar="SOURCE TARGET",
        show_default=False,
        help="Validation set, instead of pairs drawn from the corpus.",
    ),
    test: tuple[Path, Path] | None = flag(
        metavar="SOURCE TARGET",
        show_default=False,
        help="Test set, instead of pairs drawn from the corpus.",
    ),
    json: bool = JSON,
) -> None:
    """Split two aligned files, and write a configuration for them.

    Its values go with the size of the text. Draws up to 1,000 pairs each for validation and
    testing, keeps their sentences out of the training text, and prints the next command.
    """
    from nmt.extras.planning.init import init as run

    start = run(source, target, output, languages=languages, seed=seed, valid=valid, test=test)
    values = asdict(start) | {"config": str(start.config)}
    print_result(start.as_text(), values, json=json)


def doctor() -> None:
    """Check the installation and the machine.

    Trains and translates for a few seconds, too. A line that reports a problem is followed by its
    fix; then the exit code is 1.
    """
    from nmt.extras.planning.doctor import doctor as run

    is_well = True
    for finding in run():
        typer.echo(str(finding))
        is_well &= not finding.fix
    if not is_well:
        raise typer.Exit(1)
