"""``nmt import``: a model of another system -> a model folder."""

from __future__ import annotations

from pathlib import Path

import typer

from nmt.cli.options import JSON, OUTPUT_FOLDER, file_name, flag, print_result

IMPORT_EPILOG = """\b
Examples:
  nmt import opus-mt-en-de -o models/en-de
  nmt import marian/model.npz --languages en-de -o models/en-de
  nmt translate models/en-de < in.en > out.de
  nmt train my.yaml --set training.start_from=models/en-de
"""


def import_model(
    source: Path = typer.Argument(
        parser=file_name,
        metavar="SOURCE",
        help="Folder or .zip of a model of Hugging Face (MarianMT) or OPUS-MT, or Marian's .npz "
        "with its vocabularies beside it.",
    ),
    output: Path = OUTPUT_FOLDER,
    languages: str | None = flag(
        "--languages",
        "-l",
        metavar="PAIR",
        help="Codes of source and target, as in en-de.",
        show_default="those named in the files",
    ),
    positions: str | None = flag(
        metavar="NAME",
        help="Position encoding: sinusoidal-halves, which Marian trains with, or "
        "sinusoidal-concatenated, which Hugging Face computes with.",
        show_default="that of the system",
    ),
    check: Path | None = flag(
        metavar="FILE",
        parser=file_name,
        help="Also score the pairs of FILE (source, tab, translation) with both position "
        "encodings: the one with the higher log probability is the one it was trained with.",
        show_default=False,
    ),
    json: bool = JSON,
) -> None:
    """Make a model folder of a model that another system trained.

    FOLDER works wherever a run folder does: translate, evaluate, score, export, fine-tune
    (training.start_from). Models of Marian are searched as Marian searches them; `nmt export FOLDER
    --to ctranslate2` makes a folder that is faster on CPUs. Prints FOLDER.
    """
    from nmt.extras.exchange.import_model import import_model as run

    summary = run(source, output, languages=languages, positions=positions, check=check)
    scores = [f"{name}: {value:.4f} a token" for name, value in summary.check.items()]
    values = {
        "output": str(summary.output),
        "system": summary.system,
        "languages": list(summary.languages),
        "positions": summary.positions,
        "check": dict(summary.check),
    }
    print_result("\n".join([str(summary.output), *scores]), values, json=json)
