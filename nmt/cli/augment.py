"""``nmt augment``: back- and forward-translation of text of one language."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from nmt.cli.options import CHECKPOINT, JSON, SET, TAG, file_name, flag, given, print_result

EPILOG = """\b
Examples:
  nmt augment news.en --with runs/en-de -o news-bt
  nmt augment news.en.gz --with runs/en-de -o news-bt --sample --seed 2
  nmt augment news.de --with runs/teacher -o news-ft --forward
"""


def augment(
    text: Path = typer.Argument(
        parser=file_name, metavar="TEXT", help="Lines of one language; may be compressed."
    ),
    model: Path = typer.Option(
        ..., "--with", metavar="MODEL", help="Model that translates them.", show_default=False
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="FOLDER", help="Folder to make.", show_default=False
    ),
    forward: bool = flag(
        default=False,
        help="The text is the source of the new corpus, not the target (forward-translation).",
    ),
    tag: str | None = TAG,
    sample: bool = flag(
        default=False, help="Sample from the model's distribution instead of searching."
    ),
    seed: int | None = flag(min=0, metavar="N", help="With --sample: random seed."),
    beam_size: int | None = flag(
        "--beam-size", "-b", min=1, metavar="N", help="Beam size; 1 is greedy search."
    ),
    shard_lines: int = flag(
        default=10_000, min=1, metavar="N", help="Lines between two points to resume from."
    ),
    checkpoint: str = CHECKPOINT,
    threads: int | None = flag(min=1, metavar="N", help="CPU threads.", show_default="all cores"),
    set_: list[str] = SET,
    json: bool = JSON,
) -> None:
    """Make pairs for training by translating text of one language.

    By default the text becomes the target (back-translation). What the guard still finds wrong
    after its second search is dropped and counted. The same command resumes by shards.
    """
    from nmt.commands.augment import augment as run

    loading: dict[str, Any] = {"checkpoint": checkpoint, "threads": threads}
    decoding = given(sampling=sample or None, seed=seed, beam_size=beam_size)
    report = run(
        text,
        model,
        output,
        forward=forward,
        tag=tag,
        shard_lines=shard_lines,
        overrides=set_,
        loading=loading,
        **decoding,
    )
    print_result(report.as_text(), asdict(report), json=json)
