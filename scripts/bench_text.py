"""The text that the benchmarks translate: a test set of the run, or files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nmt.checkpoint.model_folder import load_folder_document
from nmt.commands.evaluation_set import ConfiguredSets, load_test_sets
from nmt.commands.options import EvaluateOptions


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the model folder, and the options of its text."""
    parser.add_argument("model", nargs="?", type=Path, default=Path("runs/multi30k-de-en"))
    parser.add_argument("--test", metavar="NAME", help="test set; default: the first of the run")
    parser.add_argument("--source", type=Path, help="text to translate, instead of a test set")
    parser.add_argument("--reference", type=Path, help="translations of --source, line by line")


def read_text(chosen: argparse.Namespace) -> tuple[Sequence[str], Sequence[str]]:
    """Return the sources and the references, read as `nmt evaluate` reads them."""
    config, record = load_folder_document(chosen.model)
    configured = ConfiguredSets.of(config, record, chosen.model)
    test: tuple[str, ...] = ()
    if chosen.source is None:
        first = next(iter(configured.tests), "valid")
        test = (chosen.test or first,)
    reference: tuple[Path, ...] = ()
    if chosen.reference is not None:
        reference = (chosen.reference,)
    options = EvaluateOptions(
        models=(chosen.model,),
        test=test,
        source=chosen.source,
        reference=reference,
    )
    (text,) = load_test_sets(options, configured)
    return text.source or (), text.references[0]
