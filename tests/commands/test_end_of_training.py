"""A training leaves in its folder what makes translating with it faster."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nmt.checkpoint import model_folder
from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.extras import GUARD, RANGES, SHORTLIST
from nmt.checkpoint.files import AVERAGE, checkpoint_dir
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError
from nmt.recipes import measure_ranges as ranges_module
from nmt.recipes.average import average
from nmt.recipes.export import export
from nmt.recipes.measure_ranges import measure_ranges
from nmt.recipes.train import train
from nmt.runtime.make_shortlist import make_shortlist
from nmt.runtime.ranges import load_ranges
from nmt.training.signals import StoppedBySignal
from nmt.translation.translator import Translator
from tests.commands.conftest import make_config
from tests.training.test_resume import write_corpus

BOTH = (SHORTLIST, RANGES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a finished run."""
    folder = tmp_path_factory.mktemp("training")
    write_corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(make_config(), quiet=True)
    return folder


@pytest.fixture
def config(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Of that run, in a copy of its own."""
    folder = shutil.copytree(place, tmp_path / "copy")
    monkeypatch.chdir(folder)
    return make_config()


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BOTH}


def load(folder: Path, **options: Any) -> Translator:
    return Translator.load(folder, device="cpu", threads=1, guard=False, **options)


def test_the_shortlist_is_of_the_training_data(config: RunConfig) -> None:
    parts = load_file(config.run_dir / SHORTLIST)
    data = PreparedData.open(config.prepared_dir)
    sizes = data.manifest.source_vocab_size, data.manifest.target_vocab_size
    counts = data.train.token_counts("target", sizes[1])

    assert parts["candidates"].dtype == torch.int32
    assert parts["candidates"].shape == (sizes[0], 50)
    assert -1 <= int(parts["candidates"].min()) <= int(parts["candidates"].max()) < sizes[1]
    # The vocabulary has fewer than 200 tokens, so all are common; the most frequent come first.
    assert sorted(parts["common"].tolist()) == list(range(sizes[1]))
    assert counts[parts["common"]].tolist() == sorted(counts.tolist(), reverse=True)


def test_the_ranges_are_of_every_linear_layer_of_the_best_weights(config: RunConfig) -> None:
    bundle, text = load_model(config.run_dir), (config.run_dir / RANGES).read_text()
    ranges = load_ranges(config.run_dir, bundle.sha256)

    assert ranges is not None
    linear = [name for name, x in bundle.model.named_modules() if isinstance(x, torch.nn.Linear)]
    assert sorted(ranges) == sorted([*linear, "output_layer"])
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert all(low <= 0 < high for low, high in ranges.values())


def test_what_was_written_is_used(config: RunConfig) -> None:
    """Few tokens are scored at the end of training, too; with int8 the ranges are."""
    lines = Path("train.de").read_text().splitlines()[:20]
    plain = load(config.run_dir).translate(lines)
    # The shortlist holds the whole vocabulary, so nothing changes but rounding.
    short = load(config.run_dir).with_options(shortlist=True).translate(lines)
    assert [x.text for x in short] == [x.text for x in plain]

    fixed = load(config.run_dir, dtype="int8").translate(lines)
    (config.run_dir / RANGES).unlink()
    by_row = load(config.run_dir, dtype="int8").translate(lines)
    assert [x.score for x in fixed] != [x.score for x in by_row]
    assert [x.score for x in fixed] == pytest.approx([x.score for x in by_row], rel=0.2)


def test_a_finished_run_that_lacks_them_gets_them_by_the_same_command(config: RunConfig) -> None:
    before = contents(config.run_dir)
    checkpoint = checkpoint_dir(config.run_dir, 10)
    manifest = (checkpoint / "manifest.json").read_bytes()
    for name in BOTH:
        (config.run_dir / name).unlink()
    train(config, quiet=True)  # nothing is left to train

    assert contents(config.run_dir) == before
    assert (checkpoint / "manifest.json").read_bytes() == manifest
    (config.run_dir / SHORTLIST).write_bytes(b"damaged")
    (config.run_dir / RANGES).write_text("damaged")
    train(config, quiet=True)
    assert contents(config.run_dir) == before


@pytest.mark.usefixtures("stopped_once")
def test_a_run_that_was_stopped_writes_them_when_it_goes_on_and_the_same_bytes(
    config: RunConfig,
) -> None:
    expected = contents(config.run_dir)
    other = make_config("other")
    with pytest.raises(StoppedBySignal):
        train(other, quiet=True)
    assert not any((other.run_dir / name).exists() for name in BOTH)
    train(other, quiet=True)
    assert contents(other.run_dir) == expected


def test_model_folders_have_them_and_their_manifests_too(config: RunConfig) -> None:
    notes: list[str] = []
    average(config.run_dir, Path("mean"), last=2)
    export(config.run_dir, Path("slim"), "safetensors", note=notes.append)
    export(Path("mean"), Path("slim mean"), "safetensors", note=notes.append)
    for folder, origin in (("mean", "mean"), ("slim", config.run_dir), ("slim mean", "mean")):
        assert contents(Path(folder)) == contents(Path(origin))
        files = json.loads((Path(folder) / "manifest.json").read_text())["files"]
        assert {*BOTH} <= {*files}
        translator = load(Path(folder), dtype="int8", note=notes.append)
        assert translator.with_options(shortlist=True).translate(["abc"])[0].text
    assert notes == []


def test_the_ranges_of_a_mean_are_of_its_own_weights(config: RunConfig) -> None:
    average(config.run_dir, Path("mean"), last=2)
    run, mean = (contents(folder) for folder in (config.run_dir, Path("mean")))
    assert mean[SHORTLIST] == run[SHORTLIST]
    assert mean[RANGES] != run[RANGES]

    measure_ranges(Path("mean"), PreparedData.open(config.prepared_dir))
    assert contents(Path("mean")) == mean


def test_a_mean_has_no_ranges_if_the_data_of_the_run_are_gone(config: RunConfig) -> None:
    manifest = config.prepared_dir / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"data_hash": "', '"data_hash": "0'))
    notes: list[str] = []
    for folder in ("other data", "no data"):
        notes.clear()
        average(config.run_dir, Path(folder), last=2, note=notes.append)
        assert notes[1:] == [
            "the data of the run are not in prepared, so there will be no ranges.json: "
            "int8 is slower without"
        ]
        assert (Path(folder) / SHORTLIST).is_file()
        assert not (Path(folder) / RANGES).exists()
        assert load(Path(folder), dtype="int8", note=notes.append).translate(["abc"])[0].text
        shutil.rmtree(config.prepared_dir, ignore_errors=True)
    assert len(notes) == 2

    (config.run_dir / RANGES).unlink()
    notes.clear()
    average(config.run_dir, Path("as before"), last=2, note=notes.append)
    assert len(notes) == 1


def test_ranges_of_other_weights_are_not_used_and_that_is_told(config: RunConfig) -> None:
    best = load_model(config.run_dir).step
    other = f"step-{15 - best}"
    text = f"{config.run_dir / RANGES} is of other weights and not used: int8 is slower without"
    notes: list[str] = []
    found = load(config.run_dir, dtype="int8", checkpoint=other, note=notes.append)
    assert notes == [text]
    export(config.run_dir, Path("slim"), "safetensors", checkpoint=other, note=notes.append)
    assert notes == [text] * 2
    assert not (Path("slim") / RANGES).exists()

    load(config.run_dir, checkpoint=other, note=notes.append)
    load(config.run_dir, dtype="float16", checkpoint=other, note=notes.append)
    load(config.run_dir, dtype="int8", checkpoint=f"step-{best}", note=notes.append)
    assert len(notes) == 2
    (config.run_dir / RANGES).unlink()
    expected = load(config.run_dir, dtype="int8", checkpoint=other).translate(["abc", "b"])
    assert found.translate(["abc", "b"]) == expected


def test_a_folder_of_an_older_run_lacks_them_and_works(config: RunConfig) -> None:
    for name in BOTH:
        (config.run_dir / name).unlink()
    export(config.run_dir, Path("slim"), "safetensors")

    assert not any((Path("slim") / name).exists() for name in BOTH)
    assert load(Path("slim"), dtype="int8").translate(["abc"])[0].text


def test_with_a_mean_at_the_end_the_ranges_are_of_what_is_best(config: RunConfig) -> None:
    mean = make_config("mean", save_every=5, keep_last=2, average_last=2)
    best = train(mean, quiet=True).best
    before = contents(mean.run_dir)
    train(mean, quiet=True)
    assert contents(mean.run_dir) == before
    assert (mean.run_dir / AVERAGE / SHORTLIST).read_bytes() == before[SHORTLIST]
    assert not (mean.run_dir / AVERAGE / RANGES).exists()  # they would be of other weights

    is_mean = before[RANGES] != contents(config.run_dir)[RANGES]
    assert is_mean == (best == AVERAGE)


def test_the_first_lines_with_text_are_enough(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = PreparedData.open(config.prepared_dir)
    path, texts = config.run_dir / RANGES, data.folder / "valid"
    before = path.read_bytes()
    sides = texts / "source.txt", texts / "target.txt"
    lines = [side.read_text() for side in sides]
    for side, text, blank in zip(sides, lines, ("\nabc\n", "cba\n\n"), strict=True):
        side.write_text(blank + text)
    measure_ranges(config.run_dir, data)
    assert path.read_bytes() == before
    for side in sides:
        side.write_text("\n")
    measure_ranges(config.run_dir, data)
    assert path.read_bytes() == before

    for side, text in zip(sides, lines, strict=True):
        side.write_text(text)
    monkeypatch.setattr(ranges_module, "_MOST_LINES", 1)
    measure_ranges(config.run_dir, data)
    first, expected = json.loads(path.read_text()), json.loads(before)
    assert first.pop("weights") == expected.pop("weights")
    for name, (low, high) in expected.items():
        assert low <= first[name][0] <= 0 < first[name][1] <= high


def test_a_folder_that_cannot_be_written_is_named(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = PreparedData.open(config.prepared_dir)
    with pytest.raises(CheckpointError, match=rf"{SHORTLIST} was not written"):
        make_shortlist(Path("missing"), data)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_folder, "replace_bytes", full)
    with pytest.raises(CheckpointError, match=rf"{RANGES} was not written: No space left"):
        measure_ranges(config.run_dir, data)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "{}", '{"a": 1}', '{"a": [1]}', '{"a": [1, 2, 3]}', '{"a": ["x", 2]}',
     '{"a": null}', "\udcff"],
)  # fmt: skip
def test_damaged_ranges_are_named(tmp_path: Path, text: str) -> None:
    assert load_ranges(tmp_path, "any") is None
    (tmp_path / RANGES).write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(CheckpointError, match=rf"{RANGES} is damaged.*\n.*fix: Remove it; a"):
        load_ranges(tmp_path, "any")


def test_a_run_that_starts_anew_keeps_nothing_of_an_earlier_one(config: RunConfig) -> None:
    """Whole files, of the right sizes, from other data."""
    fresh = {name: (config.run_dir / name).read_bytes() for name in (*BOTH, GUARD)}
    parts = load_file(config.run_dir / SHORTLIST)
    parts["candidates"] = parts["candidates"].flip(0).contiguous()
    save_file(parts, config.run_dir / SHORTLIST)
    assert (config.run_dir / SHORTLIST).read_bytes() != fresh[SHORTLIST]
    shutil.rmtree(config.run_dir / "checkpoints")
    (config.run_dir / "best").unlink(missing_ok=True)
    train(config, quiet=True)

    assert {name: (config.run_dir / name).read_bytes() for name in fresh} == fresh
