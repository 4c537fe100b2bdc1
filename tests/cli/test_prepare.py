from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from nmt.cli.app import app
from tests.cli.commands import refused

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")


def test_verify_is_done_alone(tmp_path: Path) -> None:
    refused(CliRunner().invoke(app, ["prepare", DEMO, "--verify", "--force"]), 2, "--verify")
    arguments = ["prepare", DEMO, "--verify", "--set", f"prepared_dir={tmp_path / 'none'}"]
    refused(CliRunner().invoke(app, arguments), 3, "no prepared data")


def test_standard_input_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"{n} eins\t{n} one\n" for n in range(60)))
    flags = [f"{part}_dir={tmp_path / part}" for part in ("prepared", "run")]
    flags += ["data={train: [{tsv: -}], valid: {tsv: train.tsv}}", "tokenizer.vocab_size=40"]
    flags += ["tokenizer.byte_fallback=false", "training.max_steps=1"]
    arguments = [word for each in flags for word in ("--set", each)]
    text = (tmp_path / "train.tsv").read_bytes()

    early = CliRunner().invoke(app, ["train", DEMO, *arguments], input=text)
    refused(early, 2, "standard input", "nmt prepare CONFIG < FILE")
    result = CliRunner().invoke(app, ["prepare", DEMO, *arguments], input=text)
    assert result.exit_code == 0, result.stderr
    assert "standard input: 60 pairs read, 60 kept" in result.stdout
