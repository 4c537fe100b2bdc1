"""Small corpora of numbers in words, and what `nmt prepare` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from nmt.commands.options import PreparationOptions
from nmt.commands.prepare import prepare_data
from nmt.config.run import RunConfig
from nmt.data.prepare_report import PrepareReport
from nmt.data.prepared import PreparedData, PreparedManifest
from nmt.text.tokenizer import load_tokenizers

NUMBERS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def corpus(count: int) -> tuple[list[str], list[str]]:
    digits = [[int(d) for d in str(7919 * (i + 3))] for i in range(count)]
    return (
        [" ".join(NUMBERS[d] for d in row) for row in digits],
        [" ".join(ENGLISH[d] for d in row) for row in digits],
    )


def write(folder: Path, name: str, lines: list[str] | bytes) -> str:
    """The path of a new file."""
    content = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
    (folder / name).write_bytes(content)
    return str(folder / name)


def write_pairs(folder: Path, source: Any, target: Any, part: str = "train") -> dict[str, str]:
    return {
        "source": write(folder, f"{part}.de", source),
        "target": write(folder, f"{part}.en", target),
    }


def config_for(folder: Path, **changes: Any) -> RunConfig:
    source, target = corpus(120)
    train = {"source": str(folder / "train.de"), "target": str(folder / "train.en")}
    if not (folder / "train.de").exists():
        write_pairs(folder, source, target)
    values: dict[str, Any] = {
        "name": "numbers", "source_language": "de", "target_language": "en",
        "prepared_dir": str(folder / "prepared"), "run_dir": str(folder / "run"),
        "data": {
            "train": [{"name": "numbers", **train}],
            "valid": write_pairs(folder, source[:5], target[:5], "valid"),
        },
        "tokenizer": {"vocab_size": 60, "byte_fallback": False},
        "training": {"max_steps": 1},
    }  # fmt: skip
    return RunConfig.model_validate(values | changes)


def decoded(folder: Path) -> list[tuple[str, str]]:
    data = PreparedData.open(folder)
    source, target = load_tokenizers(data.tokenizer_dir)
    return [
        (
            source.decode(data.train.source.ids(row).ids.tolist()),
            target.decode(data.train.target.ids(row).ids.tolist()),
        )
        for row in np.arange(len(data.train))[:, None]
    ]


def prepare(
    config: RunConfig,
    piped: IO[bytes] | None = None,
    check: Callable[[PreparedManifest], None] = lambda _: None,
    **options: Any,
) -> PrepareReport:
    return prepare_data(config, PreparationOptions(**options), piped=piped, check=check)
