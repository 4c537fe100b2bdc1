"""Which folder gets the prepared data, and that no folder is replaced under a run that uses it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import nmt
from nmt.commands.options import PrepareOptions
from nmt.commands.prepare import prepare as prepare_command
from nmt.commands.prepare import prepare_data
from nmt.config.run import RunConfig
from nmt.data.filters import PairProblem
from nmt.data.prepared import users
from nmt.errors import CheckpointError, ConfigError, DataError
from tests.commands.preparing import config_for, corpus, write
from tests.process import LIMIT
from tests.training.toy import CONFIG, write_corpus


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those that say who uses the folder and how long it took."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("users.json", "times.json")
    }


def use(config: RunConfig, run: str) -> Path:
    """Prepare as the training of a run does; return the folder."""
    Path(run).mkdir(exist_ok=True)
    return Path(prepare_data(config, user=Path(run)).folder)


def other(config: RunConfig, size: int = 61) -> RunConfig:
    """The same experiment with another vocabulary."""
    tokenizer = config.tokenizer.model_copy(update={"vocab_size": size})
    return config.model_copy(update={"tokenizer": tokenizer})


def test_a_folder_that_a_run_uses_keeps_its_data_and_other_data_get_another_folder(
    here: Path,
) -> None:
    config = config_for(here)
    first = use(config, "one")
    assert first == config.prepared_dir
    before = contents(first)
    second = use(other(config), "two")
    assert second.name.startswith("prepared-")
    assert second != first
    assert contents(first) == before
    # Runs with equal recipes share a folder.
    assert use(config, "three") == first
    assert use(other(config), "four") == second
    assert users(first) == [Path("one"), Path("three")]
    assert users(second) == [Path("four"), Path("two")]
    # The hashes of the texts are a part of the recipe.
    write(here, "train.de", ["null", *corpus(120)[0][1:]])
    assert use(config, "five") not in (first, second)
    assert contents(first) == before


def test_a_folder_without_a_user_is_replaced(here: Path) -> None:
    """A deleted run uses nothing, and neither does one that has gone on to another folder."""
    config = config_for(here)
    prepare_data(config)
    before = contents(config.prepared_dir)
    assert use(other(config), "deleted") == config.prepared_dir
    assert contents(config.prepared_dir) != before
    shutil.rmtree("deleted")
    assert use(config, "moved") == config.prepared_dir
    Path("moved/config.yaml").write_text("prepared_dir: elsewhere\n")
    assert use(other(config), "third") == config.prepared_dir
    assert users(config.prepared_dir) == [Path("third")]


def test_a_run_that_starts_again_before_its_first_checkpoint_may_replace_its_folder(
    here: Path,
) -> None:
    config = config_for(here)
    assert use(config, "one") == config.prepared_dir
    assert use(other(config), "one") == config.prepared_dir
    # Another command cannot know whether the run is training.
    assert prepare_data(config).folder != str(config.prepared_dir)


def test_users_are_those_of_a_project_that_was_moved(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = here / "project"
    (project / "runs").mkdir(parents=True)
    monkeypatch.chdir(project)
    use(config_for(project, prepared_dir="prepared"), "runs/one")
    monkeypatch.chdir(here)
    project.rename("moved")
    assert users(Path("moved/prepared")) == [Path("moved/runs/one")]


def test_a_used_folder_is_only_replaced_by_equal_data(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--force`` repairs a damaged folder. Another version may filter in another way."""
    config = config_for(here)
    folder = use(config, "one")
    before = contents(folder)
    damaged = folder / "train" / "source.ids.bin"
    damaged.write_bytes(bytes(len(damaged.read_bytes())))
    force = PrepareOptions(config=Path("x"), force=True)
    prepare_data(config, force)
    assert contents(folder) == before
    assert users(folder) == [Path("one")]
    monkeypatch.setattr(
        "nmt.data.filters.Ratio.length_problem",
        lambda _, source, __: PairProblem("ratio", source, 9) if source > 9 else None,
    )
    with pytest.raises(DataError, match="prepared is used by one: other data cannot replace"):
        prepare_data(config, force)
    assert contents(folder) == before


def test_equal_preparations_are_equal_bytes(here: Path) -> None:
    """Wherever the folder is, and whoever uses it."""
    config = config_for(here)
    prepare_data(config)
    elsewhere = config.model_copy(update={"prepared_dir": here / "elsewhere"})
    assert use(elsewhere, "one") == here / "elsewhere"
    assert contents(here / "elsewhere") == contents(config.prepared_dir)
    assert json.loads((config.prepared_dir / "times.json").read_text())["seconds"] > 0


def test_folders_are_listed_with_their_users_and_only_unused_ones_are_removed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(here, prepared_dir="prepared/numbers")
    first, second = use(config, "one"), Path(prepare_data(other(config)).folder)
    (here / "prepared" / "not-ours").mkdir()
    shutil.copytree(first, first.with_name(".numbers.replaced"))  # of a killed process
    result = prepare_command(PrepareOptions(list_=True))
    used, unused = result.as_text().splitlines()
    assert used.startswith("prepared/numbers: ")
    assert used.endswith(" MiB, used by one")
    assert unused.startswith(f"{second}: ")
    assert unused.endswith(" MiB, used by no run")
    size = sum(path.stat().st_size for path in first.rglob("*") if path.is_file())
    assert result.as_dict()["folders"][0] == {
        "folder": "prepared/numbers", "bytes": size, "users": ["one"],
    }  # fmt: skip
    with pytest.raises(DataError, match="prepared/numbers is used by one: it cannot be removed"):
        prepare_command(PrepareOptions(remove=first))
    Path("link").symlink_to(first)
    with pytest.raises(DataError, match="link is used by one"):
        prepare_command(PrepareOptions(remove=Path("link")))
    with pytest.raises(DataError, match="not-ours is not a prepared folder"):
        prepare_command(PrepareOptions(remove=Path("prepared/not-ours")))
    monkeypatch.chdir(second)
    prepare_command(PrepareOptions(remove=Path()))
    monkeypatch.chdir(here)
    shutil.rmtree(first.with_name(".numbers.replaced"))
    assert sorted(path.name for path in (here / "prepared").iterdir()) == ["not-ours", "numbers"]
    with pytest.raises(ConfigError, match="`remove` cannot be combined with `set`"):
        PrepareOptions(remove=first, set_=("name=x",))
    with pytest.raises(ConfigError, match="needs a configuration"):
        prepare_command(PrepareOptions())


def train(run_dir: str, *settings: str, **changes: Any) -> None:
    config = {**CONFIG, **changes}
    Path("toy.yaml").write_text(yaml.safe_dump(config))
    overrides = (f"run_dir={run_dir}", "training.validate_every=5", *settings)
    nmt.train(nmt.TrainOptions(config=Path("toy.yaml"), set_=overrides))


def test_a_run_resumes_in_its_folder_without_the_text_that_was_prepared(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_corpus(here)
    train("runs/one", "training.max_steps=5", tokenizer={"vocab_size": 61, "byte_fallback": False})
    train("runs/two", "training.max_steps=5")
    recorded = Path(yaml.safe_load(Path("runs/two/config.yaml").read_text())["prepared_dir"])
    assert recorded.name.startswith("prepared-")
    for text in here.glob("*.??"):
        text.unlink()
    # The configuration names the folder of the other run.
    train("runs/two", "training.max_steps=10")
    assert f"{recorded}: its text has changed or is missing" in caplog.text
    assert Path("runs/two/checkpoints/step-00000010").is_dir()
    # A copy of its data that the user names is used, too.
    shutil.copytree(recorded, "copy")
    train("runs/two", "training.max_steps=11", "prepared_dir=copy")
    assert yaml.safe_load(Path("runs/two/config.yaml").read_text())["prepared_dir"] == "copy"
    assert users(Path("copy")) == [Path("runs/two")]
    assert users(recorded) == []


def test_a_refused_start_replaces_nothing(here: Path) -> None:
    write_corpus(here)
    train("run", "training.max_steps=5")
    before = contents(here)
    for setting in ("tokenizer.vocab_size=61", "training.seed=2", "data.valid.max_pairs=3"):
        with pytest.raises(CheckpointError, match="was trained with other settings"):
            train("run", "training.max_steps=10", setting)
        after = contents(here)
        assert after.keys() == before.keys()
        changed = [name for name in before if before[name] != after[name]]
        assert changed in ([], ["run/.lock"])


@pytest.mark.long
def test_a_run_needs_its_folder_only_when_it_starts(here: Path) -> None:
    """At its end it has the shortlist, the profiles and the sentences of its own data."""
    write_corpus(here)
    texts = {"source": "train.de", "target": "train.en"}  # enough lines for confidence scores
    data = {"train": [texts], "valid": texts}
    train("whole", "training.max_steps=10", data=data)
    # The first call is a trial, before training starts.
    script = "import os, shutil; os.path.exists('run/config.yaml') and shutil.rmtree('prepared', "
    script += "True); print(1)"
    validation = {"command": ["python", "-c", script, "{hypothesis}"], "metric": "command"}
    training = {**CONFIG["training"], "validation": validation}
    train("run", "training.max_steps=10", data=data, training=training)
    assert not Path("prepared").exists()
    for name in ("shortlist.safetensors", "confidence.json", "tokenizer/joint.model"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes(), name


SWEEPS = {
    "one": ["training.seed=1"],
    "two": ["training.seed=2"],
    "three": ["tokenizer.vocab_size=61"],
    "four": ["data.valid.max_pairs=9"],
}


@pytest.mark.long
def test_runs_that_share_a_configuration_and_train_at_once_equal_their_runs_alone(
    here: Path,
) -> None:
    """Two sweeps, which also share the recipes of their runs."""
    for folder in ("alone", "together"):
        (here / folder).mkdir()
        write_corpus(here / folder)
        (here / folder / "toy.yaml").write_text(yaml.safe_dump(CONFIG))

    def start(folder: str, run: str, settings: list[str]) -> subprocess.Popen[bytes]:
        overrides = [f"--set={setting}" for setting in settings]
        command = [sys.executable, "-m", "nmt", "train", "toy.yaml", f"--run-dir=runs/{run}"]
        return subprocess.Popen([*command, *overrides, "-q"], cwd=here / folder)

    for run, settings in SWEEPS.items():
        assert start("alone", run, settings).wait(LIMIT) == 0
        shutil.rmtree(here / "alone" / "prepared")
    together = []
    for sweep in ("first", "second"):
        for run, settings in SWEEPS.items():
            together.append(start("together", f"{sweep}-{run}", settings))
    assert [process.wait(LIMIT) for process in together] == [0] * len(together)
    for sweep in ("first", "second"):
        for run in SWEEPS:
            trained = here / "together" / "runs" / f"{sweep}-{run}"
            for path in (here / "alone" / "runs" / run).rglob("*.*"):
                if path.suffix in (".safetensors", ".model") or path.name == "state.json":
                    same = trained / path.relative_to(here / "alone" / "runs" / run)
                    assert same.read_bytes() == path.read_bytes(), same
    assert len([*(here / "together").glob("prepared*")]) == 3  # different recipes
