"""``nmt publish`` and ``nmt pull``: model folders to and from a hub."""

from __future__ import annotations

from pathlib import Path

import typer

from nmt.cli.options import JSON, OUTPUT_FOLDER, file_name, flag, print_result

PUBLISH_EPILOG = """\b
Examples:
  nmt export runs/mine --to safetensors -o models/mine
  nmt evaluate models/mine -t wmt14 -l en-de --json > scores.json
  nmt publish models/mine hub:my-org/mine --license cc-by-4.0 --scores scores.json --dry-run
"""
PULL_EPILOG = """\b
Examples:
  nmt pull hub:my-org/mine -o models/mine
  nmt pull hub:my-org/mine@3f2a1c9 -o models/mine
"""
_NAME = typer.Argument(
    metavar="hub:ORG/NAME", help="The model's name on the hub.", show_default=False
)


def publish(
    folder: Path = typer.Argument(
        parser=file_name,
        metavar="FOLDER",
        help="Model folder of `nmt export --to safetensors`, `nmt average` or `nmt import`.",
    ),
    name: str = _NAME,
    license: str | None = flag(  # noqa: A002 - the hub's word
        metavar="NAME", help="License of the model, as the hub calls it.", show_default=False
    ),
    scores: list[Path] = flag(
        default=[],
        metavar="FILE",
        help="Scores that `nmt evaluate --json` printed, to be shown beside it. Repeatable.",
    ),
    private: bool = flag(default=False, help="Make a new repository private."),
    dry_run: bool = flag(default=False, help="Print the card and the files, and send nothing."),
    json: bool = JSON,
) -> None:
    """Upload a model folder to a hub of Hugging Face.

    Files are compared with their manifest beforehand. HF_TOKEN holds who you are, HF_ENDPOINT
    another hub. Prints the address of the commit.
    """
    from nmt.extras.exchange.publish import publish as run

    found = run(folder, name, license=license, scores=scores, private=private, dry_run=dry_run)
    files = [f"{size:>12,}  {file}" for file, size in found.files.items()]
    text = found.address or "\n".join([found.card, *files])
    values = {
        "repository": found.repository,
        "files": dict(found.files),
        "card": found.card,
        "address": found.address,
    }
    print_result(text, values, json=json)


def pull(name: str = _NAME, output: Path = OUTPUT_FOLDER, json: bool = JSON) -> None:
    """Download a model folder from a hub of Hugging Face.

    Every file is compared with the manifest; only files that cannot hold code are read. Prints the
    name with the commit, by which the same model can be had again.
    """
    from nmt.extras.exchange.publish import pull as run

    pinned = run(name, output)
    print_result(pinned, {"name": pinned, "output": str(output)}, json=json)
