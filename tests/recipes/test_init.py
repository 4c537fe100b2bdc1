"""Two files in; three sets without a common sentence, and a configuration that trains, out."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.config.run import RUN_PRESETS, RunConfig
from nmt.config.scaling import SCALES, scale_of, with_scale
from nmt.data.size import load_config
from nmt.errors import ConfigError, DataError
from nmt.recipes.init import init

PARTS = ("train", "valid", "test")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def corpus(count: int = 400, words: int = 90) -> tuple[Path, Path]:
    """A corpus with sentences that come again, with the same and with other translations."""
    sides = [[f"{letter} {i * step % words}" for i in range(count)] for letter, step in
             (("satz", 7), ("line", 11))]  # fmt: skip
    sides[0][3], sides[1][5] = "  ", ""
    Path("c.de").write_text("\n".join(sides[0]) + "\n", "utf-8")
    Path("c.en.gz").write_bytes(gzip.compress(("\n".join(sides[1]) + "\n").encode()))
    return Path("c.de"), Path("c.en.gz")


def read(folder: Path, part: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{part}.{code}").read_text("utf-8").splitlines() for code in ("de", "en")]
    return list(zip(*sides, strict=True))


def test_no_set_shares_a_sentence_with_another_and_every_pair_is_accounted_for() -> None:
    source, target = corpus()
    start = init(source, target, None)
    whole = list(
        zip(
            source.read_text("utf-8").splitlines(),
            gzip.decompress(target.read_bytes()).decode().splitlines(),
            strict=True,
        )
    )
    parts = {part: read(Path("de-en"), part) for part in PARTS}

    for side in range(2):
        sets = [{pair[side] for pair in parts[part]} for part in PARTS]
        assert not sets[0] & sets[1]
        assert not sets[0] & sets[2]
        assert not sets[1] & sets[2]
    for part in PARTS:
        assert set(parts[part]) <= set(whole)
        assert start.counts[part] == len(parts[part]) > 0
    assert start.counts["unusable"] == 2
    assert sum(start.counts.values()) == 400
    # The others stand in their order, and each as often as before.
    held = [{pair[side] for part in PARTS[1:] for pair in parts[part]} for side in range(2)]
    assert parts["train"] == [
        pair for pair in whole if all(pair[i].strip() and pair[i] not in held[i] for i in range(2))
    ]


def test_the_same_seed_draws_the_same_pairs_and_another_others() -> None:
    source, target = corpus()
    folders = {name: Path(name) for name in ("a", "b", "c")}
    for name, folder in folders.items():
        init(source, target, folder, seed=2 if name == "c" else 1)

    assert read(folders["a"], "test") == read(folders["b"], "test") != read(folders["c"], "test")


def test_the_configuration_has_the_values_that_a_bare_one_gets() -> None:
    """`training:` may be absent."""
    start = init(*corpus(), None)
    written = load_config(start.config)
    bare = "\n".join(start.config.read_text("utf-8").partition("tokenizer:")[0].splitlines())
    (start.config.parent / "bare.yaml").write_text(bare + "\n", "utf-8")

    assert load_config(start.config.parent / "bare.yaml") == written
    assert "training" not in RunConfig.model_json_schema()["required"]
    assert written.training.max_minutes == SCALES[0].minutes
    assert written.training.schedule.warmup == 0.06


def test_what_is_given_stands_above_the_values_for_the_size() -> None:
    start = init(*corpus(), None)
    text = start.config.read_text("utf-8").partition("tokenizer:")[0]
    bare = start.config.parent / "bare.yaml"
    bare.write_text(text + "model: {preset: modern}\npreset: low-resource\n", "utf-8")
    config = load_config(bare, ["training.seed=7", "batch.max_tokens=1000"])

    assert (config.model.preset, config.model.norm) == ("modern", "rms")
    assert config.model.dropout == 0.3
    assert (config.training.seed, config.batch.max_tokens) == (7, 1000)
    assert config.training.max_minutes == SCALES[0].minutes
    bare.write_text(text + "training: {seed: 7}\n", "utf-8")
    with pytest.raises(ConfigError, match="give one of max_steps, max_minutes"):
        load_config(bare)


def test_the_values_of_a_preset_stand_above_those_for_the_size() -> None:
    given = {"preset": "low-resource", "batch": {"noise": 0.2}, "model": {"dropout": 0.1}}
    values = with_scale(given, 160_000)

    assert values["tokenizer"] == {"vocab_size": 2000}
    assert values["batch"] == {"max_tokens": 520, "noise": 0.2}
    assert values["model"] == {"preset": "tiny", "dropout": 0.1}
    assert values["training"]["max_minutes"] == scale_of(160_000).minutes


@pytest.mark.parametrize("name", RUN_PRESETS)
def test_a_preset_is_what_the_smallest_size_gets(name: str) -> None:
    sections = SCALES[0].sections()

    assert RUN_PRESETS[name].items() <= sections.items()


def test_the_size_of_a_hub_is_not_guessed() -> None:
    Path("hub.yaml").write_text(
        "{name: h, source_language: en, target_language: de, "
        "data: {train: [{huggingface: wmt/wmt14}], valid: {demo: valid}}}", "utf-8"
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"no training section, .* size of wmt/wmt14"):
        load_config("hub.yaml")


@pytest.mark.parametrize(("pairs", "tokens"), [(1, 520), (15_000, 520), (10**9, 16_384)])
def test_every_size_has_its_values(pairs: int, tokens: int) -> None:
    assert scale_of(pairs).max_tokens == tokens


def test_what_cannot_begin_is_named() -> None:
    source, target = corpus()
    with pytest.raises(ConfigError, match="do not end in the codes of two languages"):
        init(source, source, None)
    with pytest.raises(ConfigError, match="--languages de is no pair"):
        init(source, target, None, languages="de")
    with pytest.raises(ConfigError, match="use letters, digits"):
        init(source, target, Path("a b"))
    assert not Path("a b").exists()
    Path("de-en").mkdir()
    with pytest.raises(ConfigError, match="de-en is there already"):
        init(source, target, None)
    with pytest.raises(DataError, match=r"Too few pairs .*: 19"):
        init(*corpus(21), Path("x"))


def test_sides_that_look_swapped_are_named(caplog: pytest.LogCaptureFixture) -> None:
    sides = ["Das ist der Hund und die Katze {}.", "This is the dog and the cat {}."]
    for code, text in zip(("en", "de"), sides, strict=True):
        Path(f"s.{code}").write_text("".join(text.format(i) + "\n" for i in range(200)), "utf-8")
    init(Path("s.de"), Path("s.en"))
    assert caplog.messages == [
        "the source looks like en and the target like de: are the sides swapped?"
    ]


def test_from_the_shell_it_ends_with_the_next_command() -> None:
    source, target = corpus()
    command = ["init", str(source), str(target), "-o", "new", "-l", "de-en"]
    result = CliRunner().invoke(app, command)

    assert result.exit_code == 0, result.stderr
    *_, last = result.stdout.splitlines()
    assert last == "next: nmt train new/config.yaml"
    flags = ["--set", "tokenizer.vocab_size=300", "--report-only", "--json"]
    assert CliRunner().invoke(app, ["prepare", "new/config.yaml", *flags]).exit_code == 0
