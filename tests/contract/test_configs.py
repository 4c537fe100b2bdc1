from __future__ import annotations

import json
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import nmt
from nmt.cli.app import app
from nmt.commands.prepare import prepare_data
from nmt.commands.train import fit
from nmt.config.keys import describe_keys
from nmt.config.loader import load_config
from nmt.data.corpus import read_corpus
from nmt.data.demo import demo_pairs
from nmt.data.formats.pair import ReadOptions, SentencePair
from nmt.data.prepared import PreparedData

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def lines_of(name: str) -> list[str]:
    return (ROOT / "configs" / name).read_text(encoding="utf-8").splitlines()


def on_hub(path: Path) -> bool:
    return load_config(path).data.valid[0].huggingface is not None


ON_HUB = list(filter(on_hub, CONFIGS))
# The layouts of the two data sets: files with known names, or files that the front matter lists.
LISTED = """---
configs:
- config_name: {subset}
  data_files:
  - {{split: train, path: "{subset}/train-*"}}
  - {{split: validation, path: "{subset}/validation-*"}}
  - {{split: test, path: "{subset}/test-*"}}
---
# A data set
"""


def copy_of_the_data_set(folder: Path, languages: tuple[str, str], subset: str | None) -> Path:
    """Made-up pairs in the layout of bentrevett/multi30k or, with a subset, of wmt/wmt14."""
    for split, name, count in (
        ("train", "train", 60),
        ("validation", "val", 5),
        ("test", "test", 3),
    ):
        pairs = [
            {code: f"{split} {number} in {code}" for code in languages} for number in range(count)
        ]
        rows: list[Any] = pairs
        path = folder / f"{name}.jsonl"
        if subset:
            rows = [{"translation": pair} for pair in pairs]
            path = folder / subset / f"{split}-00000-of-00001.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    front = LISTED.format(subset=subset) if subset else "---\nlanguage: [en, de]\n---\n"
    (folder / "README.md").write_text(front, encoding="utf-8")
    return folder


@pytest.mark.parametrize("path", ON_HUB, ids=lambda path: path.stem)
@pytest.mark.long
def test_the_data_of_every_configuration_are_read_from_a_local_copy(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    shipped = load_config(path)
    codes = shipped.source_language, shipped.target_language
    subset = shipped.data.valid[0].subset
    folder = copy_of_the_data_set(tmp_path / "copy", codes, subset)
    places = [key for key, each in shipped.data.corpora.items() if each.huggingface]
    overrides = [f"{key}.huggingface={folder}" for key in places]
    overrides += ["tokenizer={vocab_size: 300}", f"prepared_dir={tmp_path / 'prepared'}"]
    config = load_config(path, overrides)
    counts = {"data.train.0": 60, "data.valid": 5, "data.test.flickr2016": 3}
    for key in places:
        pairs = list(read_corpus(config.data.corpora[key], ReadOptions(*codes)))
        split = config.data.corpora[key].split
        assert pairs == [
            SentencePair(f"{split} {n} in {codes[0]}", f"{split} {n} in {codes[1]}", n + 1)
            for n in range(counts[key])
        ]
    report = prepare_data(config)
    assert [report.counts[name]["read"] for name in report.counts] == [60, 5]
    data = PreparedData.open(config.prepared_dir)
    assert data.valid_source[-1] == f"validation 4 in {codes[0]}"
    # A test set of the same data set is compared with the training data; others are not downloaded.
    assert ("flickr2016" in report.overlap) == (subset is None)


def test_no_shipped_file_names_data_that_only_we_have() -> None:
    folders = ("configs", "scripts", "nmt")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in [*files, ROOT / "README.md", ROOT / "Makefile"]:
        if path.suffix in (".md", ".yaml", ".py", ".sbatch", ""):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"\.\./shared|\"shared\" /", text), path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert load_config(path).name


FOLLOWING_KEYS = (
    "tokenizer.vocab_size", "batch.max_tokens", "model.preset", "model.positions", "model.dropout",
    "training.optimizer.kind", "training.schedule.shape", "training.schedule.peak_lr",
    "training.r_drop_weight", "training.max_minutes", "training.validate_every",
)  # fmt: skip
# The values of the shipped configurations before open keys could follow the size of the text.
FORMER_VALUES: dict[str, tuple[Any, ...]] = {
    "base": (
        37000, 50000, "transformer-base", "sinusoidal", 0.1, "adamw", "noam", 1.0, 0.0, None, 5000,
    ),
    "big-en-fr": (
        32000, 50000, "transformer-big", "sinusoidal", 0.1, "adamw", "noam", 1.0, 0.0, None, 5000,
    ),
    "big": (
        37000, 50000, "transformer-big", "sinusoidal", 0.3, "adamw", "noam", 1.0, 0.0, None, 5000,
    ),
    "demo": (
        1000, 2048, "tiny", "sinusoidal", 0.1, "adamw", "linear", 0.002, 0.0, None, 350,
    ),
    "from-scratch": (
        {"source": 10000, "target": 8200},
        None, None, "learned", 0.1, "adamw", "noam", 0.5, 0.0, None, 227,
    ),
    "hello": (
        {"source": 8, "target": 9},
        None, None, "sinusoidal-halves", 0.0, "adamw", "constant", 0.015, 0.0, None, 120,
    ),
    "one-page": (
        13, None, None, "sinusoidal", 0.0, "adamw", "constant", 0.015, 0.0, None, 120,
    ),
    "matrix-form": (
        8000, 2048, None, "sinusoidal", 0.2, "adamw", "linear", 0.001, 0.0, None, 1000,
    ),
    "modern": (
        32000, 50000, "modern", "rotary", 0.1, "adamw", "wsd", 0.001, 0.0, None, 5000,
    ),
    "multi30k": (
        8000, 2048, "tiny", "rotary", 0.1, "muon", "linear", 0.004, 0.0, None, 470,
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_no_value_of_a_shipped_configuration_follows_the_size_of_the_text(path: Path) -> None:
    text = CliRunner().invoke(app, ["config", "show", str(path)]).stdout
    values = yaml.safe_load(text)
    found = [reduce(getitem, key.split("."), values) for key in FOLLOWING_KEYS]
    assert tuple(found) == FORMER_VALUES[path.stem]
    checked = CliRunner().invoke(app, ["config", "check", str(path)]).stdout
    assert "no open key follows the size of the training text" in checked


def test_the_names_differ_so_that_runs_do_not_mix() -> None:
    configs = [load_config(path) for path in CONFIGS]
    assert len({config.run_dir for config in configs}) == len(configs)
    assert len({config.prepared_dir for config in configs}) == len(configs)


def test_base_is_the_published_recipe() -> None:
    # Vaswani et al. (2017), sections 5 and 6.
    config = load_config(ROOT / "configs" / "base.yaml")
    model, training = config.model, config.training
    assert (model.encoder_layers, model.decoder_layers) == (6, 6)
    assert (model.model_dim, model.ff_dim, model.num_heads) == (512, 2048, 8)
    assert (model.norm_position, model.norm, model.positions) == ("post", "layer", "sinusoidal")
    assert (model.dropout, training.label_smoothing) == (0.1, 0.1)
    assert (training.optimizer.betas, training.optimizer.epsilon) == ((0.9, 0.98), 1e-9)
    assert (training.schedule.shape, training.schedule.warmup_steps) == ("noam", 4000)
    assert training.max_steps == 100_000
    assert (config.decoding.beam_size, config.decoding.length_penalty) == (4, 0.6)
    assert config.tokenizer.vocab_size == 37_000


def test_big_en_fr_is_the_published_recipe() -> None:
    """Vaswani et al. (2017), sections 5.1, 5.4 and 6.1: what differs from English to German."""
    of_german, config = (load_config(ROOT / "configs" / f"{x}.yaml") for x in ("big", "big-en-fr"))
    assert config.model == of_german.model.model_copy(update={"dropout": 0.1})
    assert (of_german.model.dropout, config.tokenizer.vocab_size) == (0.3, 32_000)
    assert config.training == of_german.training
    assert config.decoding == of_german.decoding
    assert (config.source_language, config.target_language) == ("en", "fr")


@pytest.mark.parametrize("name", ["hello", "one-page"])
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_two_sentences_are_learned_with_any_seed(name: str, seed: int, tmp_path: Path) -> None:
    paths = [f"{key}={tmp_path / key}" for key in ("run_dir", "prepared_dir")]
    config = load_config(ROOT / "configs" / f"{name}.yaml", [*paths, f"training.seed={seed}"])
    fit(config)
    translator = nmt.Translator.load(config.run_dir, device="cpu")
    source, target = lines_of("hello.fr"), lines_of("hello.en")
    assert [result.text for result in translator.translate(source)] == target


def test_the_demo_translates_sentences_it_was_not_trained_on() -> None:
    samples = zip(lines_of("demo.sample.en"), lines_of("demo.sample.de"), strict=True)
    assert set(samples) <= set(demo_pairs("test", "en", "de"))


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "configs" / "KEYS.md").read_text(encoding="utf-8")
    assert page == describe_keys(), "run: nmt config keys > configs/KEYS.md"
