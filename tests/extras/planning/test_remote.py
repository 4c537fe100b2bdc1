"""From a place that is downloaded to a trained model."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.errors import ConfigError, DataError
from nmt.extras.planning.init import init
from nmt.extras.planning.options import InitOptions
from tests.data.opus_server import API, README, archive_of, serving
from tests.process import LIMIT

GERMAN = ["haus", "baum", "hund", "katze", "wasser", "feuer", "erde", "wind", "sonne", "mond"]
ENGLISH = ["house", "tree", "dog", "cat", "water", "fire", "earth", "wind", "sun", "moon"]

# A model that is trained within seconds.
SMALL = (
    *("model.encoder_layers=1", "model.decoder_layers=1", "model.model_dim=64"),
    *("model.num_heads=2", "batch.max_tokens=600"),
    *("training.max_steps=15", "training.precision=float32"),
)
PARTS = ("train", "valid", "test")


def corpus(count: int) -> list[tuple[str, str]]:
    """Return different pairs of sentences that are translated word by word."""
    draw = random.Random(5)
    pairs = []
    for number in range(count):
        words = draw.choices(range(len(GERMAN)), k=draw.randint(4, 9))
        source = " ".join(GERMAN[word] for word in words)
        target = " ".join(ENGLISH[word] for word in words)
        pairs.append((f"{number} {source}.", f"{number} {target}."))
    return pairs


def nmt(folder: Path, *words: str, **environment: str) -> str:
    """Run a command that succeeds; return what it printed."""
    result = subprocess.run(
        [sys.executable, "-m", "nmt", *words], cwd=folder, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=3 * LIMIT,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def texts_of(folder: Path, part: str) -> list[tuple[str, str]]:
    """Return the pairs that a command has written."""
    sources, targets = ((folder / f"{part}.{code}").read_text("utf-8") for code in ("de", "en"))
    return list(zip(sources.splitlines(), targets.splitlines(), strict=True))


def start_from_opus(tmp_path: Path) -> None:
    """Run the first command, and check what it wrote and said."""
    pairs = corpus(600)
    with serving(archive_of(pairs, README=README)) as server:
        api = f"{server.address}{API}"
        said = nmt(tmp_path, "init", "opus:Tatoeba", "-l", "en-de", "-o", "data/new", NMT_OPUS=api)
    assert "Tatoeba v2023-04-12 (de-en), 324,043 pairs" in said
    assert "License: CC BY 2.0 FR" in said
    folder = tmp_path / "data"
    assert {path.name for path in folder.iterdir()} == {"new", "downloads"}
    written = [pair for part in PARTS for pair in texts_of(folder / "new", part)]
    assert sorted(written) == sorted(pairs)


@pytest.mark.long
def test_a_corpus_of_opus_is_prepared_with_two_commands(tmp_path: Path) -> None:
    start_from_opus(tmp_path)
    nmt(tmp_path, "prepare", "data/new/config.yaml")
    assert (tmp_path / "prepared" / "new" / "manifest.json").is_file()


@pytest.mark.long
def test_a_corpus_of_opus_becomes_a_model_with_two_commands(tmp_path: Path) -> None:
    start_from_opus(tmp_path)
    flags = [word for setting in SMALL for word in ("--set", setting)]
    nmt(tmp_path, "train", "data/new/config.yaml", *flags)
    nmt(tmp_path, "translate", "runs/new", "--input", "data/new/test.en", "--output", "test.de")
    assert len((tmp_path / "test.de").read_text("utf-8").splitlines()) == 30


def test_a_folder_that_exists_is_refused_before_a_download(tmp_path: Path) -> None:
    options = InitOptions(places=(Path("opus:Tatoeba"),), languages="de-en", output=tmp_path)
    with pytest.raises(ConfigError, match="already exists"):
        init(options)


@pytest.mark.long
def test_a_data_set_of_the_hub_keeps_its_sets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    place = tmp_path / "org"
    place.mkdir()
    pairs = corpus(500)
    parts = {"train": pairs[:440], "validation": pairs[440:470], "test": pairs[470:]}
    for split, part in parts.items():
        rows = [{"id": str(i), "deu_Latn": s, "eng_Latn": t} for i, (s, t) in enumerate(part)]
        datasets.Dataset.from_list(rows).to_parquet(str(place / f"{split}.parquet"))
    cache = str(tmp_path / "cache")
    nmt(tmp_path, "init", f"hub:{place}", "-l", "de-en", "-o", "new", HF_HOME=cache)
    written = [texts_of(tmp_path / "new", part) for part in PARTS]
    assert written == list(parts.values())


@pytest.mark.parametrize("place", [Path("corpus.de"), Path("opus/Tatoeba"), Path("hubs:x")])
def test_other_places_are_files(place: Path) -> None:
    with pytest.raises(DataError, match=f"{place} does not exist"):
        init(InitOptions(places=(place,)))
