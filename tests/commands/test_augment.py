"""Back-translation: what was done before a stop stays, bad output goes, and all is counted."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from nmt.checkpoint.model_folder import load_model
from nmt.commands import augment as recipe
from nmt.commands.augment import augment
from nmt.commands.options import AugmentOptions
from nmt.commands.train import fit
from nmt.data.corpus import Block
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.inference.engine import Ensemble
from nmt.inference.request import Alarm, Result
from nmt.inference.translator import Translator
from tests.inference.conftest import sentences
from tests.inference.models import run_config, save_run, small_model
from tests.training.toy import make_config, write_corpus

LINES = [*sentences(9, seed=4, longest=6), "", "tab\there"]


@pytest.fixture
def run(runs: dict[str, Path]) -> Path:
    return runs["plain"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    place = tmp_path / "mono.txt"
    place.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return place


def chosen(text: Path, run: Path | tuple[Path, ...], folder: str, **options: Any) -> AugmentOptions:
    usual = {"guard": False, "threads": 1, "beam_size": 1, "shard_lines": 4}
    options = {"engine": "torch", **usual, **options}
    return AugmentOptions(
        text=text, model=run if isinstance(run, tuple) else (run,), output=Path(folder), **options
    )


def augmented(text: Path, run: Path | tuple[Path, ...], folder: str, **options: Any) -> list[str]:
    report = augment(chosen(text, run, folder, **options))
    pairs = gzip.decompress(Path(report.corpus).read_bytes()).decode().splitlines()
    assert len(pairs) == report.written == report.read - sum(report.dropped.values())
    return pairs


def test_the_translation_is_the_source_or_forward_the_target(text: Path, run: Path) -> None:
    back = [pair.split("\t") for pair in augmented(text, run, "bt")]
    forth = [pair.split("\t") for pair in augmented(text, run, "ft", forward=True)]
    assert [target for _, target in back] == [*LINES[:9], "tab here"]
    assert back == [pair[::-1] for pair in forth]
    for folder, forward, entry in (
        ("bt", False, "{name: bt, tsv: bt/corpus.tsv.gz, tag: <bt>}"),
        ("ft", True, "{name: ft, tsv: ft/corpus.tsv.gz, tag: <ft>}"),
    ):
        report = augment(chosen(text, run, folder, forward=forward))
        assert (report.tag, entry in report.as_text()) == (f"<{folder}>", True)
    names = ["corpus.tsv.gz", "report.json", "settings.json"]
    assert sorted(path.name for path in Path("bt").iterdir()) == names


@pytest.mark.parametrize("sampling", [False, True])
def test_a_run_that_was_stopped_makes_what_is_missing_only(
    text: Path, run: Path, monkeypatch: pytest.MonkeyPatch, sampling: bool
) -> None:
    """And a damaged shard again; the bytes are those of a run that was not stopped."""
    options: dict[str, Any] = {"sample": sampling}
    whole = augmented(text, run, "whole", **options)
    make, made = recipe._ShardTranslation.__call__, list[int]()

    def counted(self: Any, block: Block) -> Any:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(block.first)
        return make(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(recipe._ShardTranslation, "__call__", counted)
        with pytest.raises(KeyboardInterrupt):
            augmented(text, run, "stopped", **options)
    first, _ = sorted((Path("stopped") / "shards").glob("*.shard"))
    first.write_bytes(first.read_bytes()[:-1])
    again = augment(chosen(text, run, "stopped", **options))
    assert again.shards_made == 2  # the damaged one and the last
    assert gzip.decompress(Path(again.corpus).read_bytes()).decode().splitlines() == whole
    assert augment(chosen(text, run, "stopped", **options)).shards_made == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_only_the_lines_that_a_text_has_gained_at_its_end_are_translated(
    text: Path, run: Path, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the corpus has been written, but not its report."""
    augmented(text, run, "bt")
    text.write_text(text.read_text("utf-8") + "der Hund\n\ndie Katze\n", "utf-8")
    whole = augmented(text, run, "whole")
    if is_killed:
        with monkeypatch.context() as patch:
            patch.setattr(recipe, "AugmentReport", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                augmented(text, run, "bt")
    again = augment(chosen(text, run, "bt"))
    assert again.shards_made == (not is_killed)
    assert gzip.decompress(Path(again.corpus).read_bytes()).decode().splitlines() == whole
    assert (again.read, again.written, again.dropped) == (14, 12, {"empty": 2})
    assert augment(chosen(text, run, "bt")).shards_made == 0


def test_messages_count_the_lines_of_the_text(
    text: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text.write_text("Hund\n" * 9 + "Hund und Katze " * 40 + "\n", "utf-8")
    augmented(text, run, "bt", sentences="keep")
    assert "line 10: 599 characters cut" in caplog.text


def test_what_looks_wrong_to_the_guard_is_dropped_and_counted(
    text: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[int, tuple[Alarm, ...]] = {1: ("loop", "long"), 2: ("loop", "long"), 3: ("long",)}

    def translate(_: Translator, lines: list[str], _first: int) -> list[Result]:
        return [
            Result(line, f"{line}!" if line else "", 0.0, alarms=found.get(row, ()))
            for row, line in enumerate(lines)
        ]

    monkeypatch.setattr(Translator, "translate", translate)
    report = augment(chosen(text, run, "bt", shard_lines=100, guard=True, beam_size=None))
    assert [*report.dropped.items()] == [("loop", 2), ("long", 1), ("empty", 1)]
    assert (report.read, report.written) == (11, 7)
    assert "- {name: bt, tsv: bt/corpus.tsv.gz, tag: <bt>}" in report.as_text()


def test_other_settings_folders_and_unknown_tags_are_refused(text: Path, run: Path) -> None:
    augmented(text, run, "bt")
    with pytest.raises(ConfigError, match="bt was created with different settings: forward"):
        augmented(text, run, "bt", forward=True)
    options: dict[str, Any]
    for options, name in (
        ({"beam_size": 2}, "decoding"),
        ({"shard_lines": 5}, "shard_lines"),
        ({"from_": "de", "to": "en"}, "from, to"),
        ({"from_": "de"}, "from"),
        ({"to": "en"}, "to"),
        ({"sample": True}, "decoding"),
    ):
        with pytest.raises(ConfigError, match=f"different settings: {name}\\."):
            augmented(text, run, "bt", **options)
    before = text.read_bytes()
    text.write_bytes(b"another first line\n" + before)
    with pytest.raises(ConfigError, match=r"different settings: text\."):
        augmented(text, run, "bt")
    text.write_bytes(before)
    with pytest.raises(ConfigError, match="no tag 'de'"):
        augmented(text, run, "other", tag="de")
    assert not Path("other").exists()
    killed = Path("killed")  # while the settings were written
    killed.mkdir()
    (killed / ".settings.json.tmp-1-1").touch()
    assert augmented(text, run, "killed") == augmented(text, run, "bt")
    files = sorted(run.rglob("*"))
    with pytest.raises(ConfigError, match="is not empty and was not created by"):
        augmented(text, run, str(run))  # the model itself
    assert sorted(run.rglob("*")) == files


def test_a_text_of_another_language_is_warned_about(
    tmp_path: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("that is the dog of a man\n" * 3, encoding="utf-8")
    augmented(wrong, run, "wrong")
    assert "wrong.txt looks like en, but the model translates de" in caplog.text


def test_with_references_the_most_similar_translation_of_the_beam_is_used(
    text: Path, run: Path, tmp_path: Path
) -> None:
    """Sentence BLEU of sacreBLEU chooses; with the references of the last line, that line."""
    translator = Translator.load(run, engine="torch", guard=False, threads=1, beam_size=4, n_best=4)
    beams = [[x.text for x in each.alternatives] for each in translator.translate(LINES[:9])]
    references = tmp_path / "references.txt"
    lines = [*(beam[-1] for beam in beams), "", beams[0][0]]
    references.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = {"forward": True, "references": references, "beam_size": 4}
    pairs = augmented(text, run, "forward", **options)
    assert [pair.split("\t")[1] for pair in pairs[:9]] == lines[:9]
    assert lines[:9] != [beam[0] for beam in beams]
    references.write_text("one line\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"mono.txt and .*references.txt have different numbers"):
        augmented(text, run, "short", **options)
    assert not Path("short").exists()  # before the model translates
    turned = tmp_path / "turned.txt"
    turned.write_text("".join(f"{line}\n" for line in reversed(lines)), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"different settings: references\."):
        augmented(text, run, "forward", **options | {"references": turned})
    with pytest.raises(ConfigError, match="but the beam size is 1"):
        augmented(text, run, "greedy", **options | {"beam_size": 1})
    with pytest.raises(ConfigError, match="`references` needs `forward`"):
        augmented(text, run, "back", references=references)


def test_the_terms_of_a_glossary_are_part_of_the_settings(text: Path, run: Path) -> None:
    Path("terms.tsv").write_text("Hund\tlittle beast\n", encoding="utf-8")
    pairs = augmented(text, run, "terms", forward=True, glossary=Path("terms.tsv"))
    for source, target in (pair.split("\t") for pair in pairs):
        assert ("ittle beast" in target) is ("Hund" in source.split())
    Path("terms.tsv").write_text("Hund\thound\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="different settings: glossary"):
        augmented(text, run, "terms", forward=True, glossary=Path("terms.tsv"))


def test_several_models_translate_as_an_ensemble(text: Path, runs: dict[str, Path]) -> None:
    folders = runs["plain"], runs["modern"]
    ensemble = Ensemble((folders[1],))
    together = Translator.load(
        folders[0], engine="torch", guard=False, threads=1, beam_size=1, ensemble=ensemble
    )
    pairs = augmented(text, folders, "both", forward=True)
    expected = [result.text for result in together.translate(LINES[:9])]
    assert [pair.split("\t")[1] for pair in pairs[:9]] == expected
    with pytest.raises(ConfigError, match="different settings: models"):
        augmented(text, folders[0], "both", forward=True)


def test_the_checkpoint_that_is_named_translates(text: Path, run: Path, tmp_path: Path) -> None:
    """Without scores, the best checkpoint is the last one."""
    both = Path(shutil.copytree(run, tmp_path / "both"))
    files = load_model(run)
    later = small_model(files.tokenizers, seed=9)
    save_run(both, later, run / "tokenizer", run_config(), step=2)
    assert augmented(text, both, "first", checkpoint="step-1") == augmented(text, run, "plain")
    assert augmented(text, both, "best") != augmented(text, run, "plain")


def test_lines_of_several_sentences_are_split(text: Path, run: Path) -> None:
    text.write_text("Der Hund läuft. Das Haus.\nDer Hund läuft.\nDas Haus.\n", encoding="utf-8")
    whole, first, second = (pair.split("\t")[0] for pair in augmented(text, run, "auto"))
    assert whole == f"{first} {second}"
    kept, *_ = augmented(text, run, "keep", sentences="keep")
    assert kept.split("\t")[0] != whole


@pytest.mark.parametrize("average_last", [None, 2])
def test_a_model_whose_translations_are_noise_is_refused_unless_forced(
    text: Path, average_last: int | None
) -> None:
    """Whether the record is that of a checkpoint or of an average."""
    write_corpus(Path())
    schedule = {"shape": "constant", "peak_lr": 1e-9}
    run = fit(make_config(average_last=average_last, schedule=schedule)).run_dir
    checkpoint = "average" if average_last else "best"
    noise = "translations are the same|is noise"
    with pytest.raises(CheckpointError, match=f"has not learned to translate: .*({noise})"):
        augmented(text, run, "bt", checkpoint=checkpoint)
    assert not Path("bt").exists()
    augmented(text, run, "bt", checkpoint=checkpoint, force=True)


def test_a_model_without_a_record_of_a_validation_is_used_and_said_to_have_none(
    text: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    augmented(text, run, "bt")
    assert caplog.text.count("has no record of a validation") == 1
