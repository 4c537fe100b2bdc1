"""A model that has learned by heart where placeholders stand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nmt.checkpoint.model_folder import load_folder_config
from nmt.cli.app import app
from nmt.commands.config import load_config
from nmt.commands.prepare import prepare_data
from nmt.commands.train import fit
from nmt.config.data import PLACEHOLDER
from nmt.config.run import RunConfig
from nmt.extras.serving.models import ServedModel
from nmt.inference.translator import Translator
from tests.commands.preparing import write_pairs
from tests.extras.serving.conftest import Inside

# The address is at the other end, so that no alignment by positions finds its place.
GERMAN, ENGLISH = "Bitte {} heute noch ganz genau lesen", "Read all of it very closely today: {}"
UNSEEN = "https://neu.example.org/seite?x=1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sentence with many addresses, and other sentences without."""
    folder = tmp_path_factory.mktemp("placeholders")
    draw = random.Random(1)
    sources, targets = [], []
    for _ in range(100):
        name = "".join(draw.choices("abcdefgh", k=6))
        sources += [GERMAN.format(f"https://{name}.org"), "ganz genau"]
        targets += [ENGLISH.format(f"https://{name}.org"), "very closely"]
    values: dict[str, Any] = {
        "name": "placeholders", "source_language": "de", "target_language": "en",
        "prepared_dir": str(folder / "prepared"), "run_dir": str(folder / "run"),
        "data": {
            "train": [write_pairs(folder, sources, targets)],
            "valid": write_pairs(folder, sources[:2], targets[:2], "valid"),
            "placeholders": {"share": 1.0, "patterns": ["ACME [A-Z]"]},
        },
        "tokenizer": {"vocab_size": 340},
        "model": {
            "encoder_layers": 1, "decoder_layers": 1, "model_dim": 32, "ff_dim": 32,
            "num_heads": 2, "dropout": 0.0,
        },
        "batch": {"max_tokens": 600},
        "training": {
            "max_steps": 150, "threads": 1, "device": "cpu", "precision": "float32",
            "schedule": {"shape": "constant", "peak_lr": 0.005, "warmup_steps": 5},
        },
    }  # fmt: skip
    config = RunConfig.model_validate(values)
    prepare_data(config)
    fit(config)
    return config.run_dir


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_an_unseen_placeholder_stands_where_the_model_has_learned(
    run: Path, inside: Inside, engine: str
) -> None:
    texts = [UNSEEN, "{count}", "%1$s", "😀", "ACME X", "{{a. B}}"]
    sources, expected = map(GERMAN.format, texts), list(map(ENGLISH.format, texts))
    lines = [*sources, "ganz genau"]
    expected.append("very closely")
    translator = Translator.load(run, engine=engine)
    read = [translator.tokenizers.source.decode(x.ids) for x in translator.segment(lines).segments]
    assert read == [GERMAN.format(PLACEHOLDER)] * 6 + ["ganz genau"]
    results = translator.translate(lines)
    assert [(result.text, result.alarms) for result in results] == [(x, ()) for x in expected]
    command = ["translate", str(run), "--engine", engine]
    assert CliRunner().invoke(app, command, "\n".join(lines)).stdout.splitlines() == expected
    client = inside({"m": ServedModel("m", run, {"engine": engine})})
    answer = client.post("/v1/translate", json={"texts": lines}).json()
    assert [each["translation"] for each in answer["translations"]] == expected


def test_a_line_whose_symbols_are_lost_is_translated_without_symbols(run: Path) -> None:
    translator = Translator.load(run, engine="torch", beam_size=1)
    hiding = translator.with_options(symbols=False)
    lines = ["ganz {x} genau", "{y} ganz genau %s"]
    read = translator.segment(lines).sentences
    assert [each.model_text.count(PLACEHOLDER) for each in read] == [1, 2]
    results = translator.translate(lines)
    assert [each.text for each in results] == [each.text for each in hiding.translate(lines)]
    assert [each.alarms for each in results] == [(), ()]
    for name in ("guard", "retry"):  # without a second search
        (found,) = translator.with_options(**{name: False}).segment(lines[:1]).sentences
        assert found.model_text == "ganz genau"


def test_alignments_count_all_words_of_a_placeholder(run: Path) -> None:
    aligned = Translator.load(run, engine="torch", outputs={"alignments", "attention"})
    (symbol,) = aligned.translate([GERMAN.format("{x}")])
    (words,) = aligned.translate([GERMAN.format("{{a b c}}")])
    assert symbol.alignment
    assert words.attention is not None
    assert [len(row) for row in words.attention] == [9] * 10
    assert words.alignment is not None
    for (source, target), moved in zip(symbol.alignment, words.alignment, strict=True):
        assert moved == (source + 2 * (source > 1), target)


def test_patterns_are_protected_in_translation_unless_others_are_set(run: Path) -> None:
    assert load_folder_config(run).decoding.protect == ("ACME [A-Z]",)
    config = load_config(run / "config.yaml", ("decoding.protect=[]",))
    assert config.decoding.protect == ()
    assert config.data.placeholders.patterns == ("ACME [A-Z]",)
