from __future__ import annotations

from pathlib import Path

import pytest

import nmt
from nmt.commands.train import fit
from nmt.config.keys import describe_keys
from nmt.config.loader import load_config
from nmt.data.demo import demo_pairs

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def lines_of(name: str) -> list[str]:
    return (ROOT / "configs" / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads_and_says_what_it_needs(path: Path) -> None:
    assert load_config(path).name
    head = path.read_text(encoding="utf-8").split("\nname:")[0]
    for word in ("data", "hardware", "time", "expect"):
        assert f"# {word} " in head


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


@pytest.mark.parametrize("seed", range(1, 6))
def test_hello_learns_its_two_sentences_with_any_seed(seed: int, tmp_path: Path) -> None:
    paths = [f"{key}={tmp_path / key}" for key in ("run_dir", "prepared_dir")]
    config = load_config(ROOT / "configs" / "hello.yaml", [*paths, f"training.seed={seed}"])
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
