"""Imported M2M-100 and NLLB-200, from folders that are written here.

The weights are random; the logits are those of transformers 4.57. test_m2m_layouts.py compares with
transformers itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from nmt.checkpoint.model_folder import load_model
from nmt.cli.app import app
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.options import ImportOptions
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from tests.extras.exchange.m2m_files import LANGUAGES, NUM_TOKENS, write_m2m, write_nllb


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return write_nllb(tmp_path / "theirs")


def changed(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(content | values), encoding="utf-8")


@torch.inference_mode()
def test_tags_and_logits_are_those_of_nllb(theirs: Path, tmp_path: Path) -> None:
    import_model(ImportOptions(source=theirs, output=tmp_path / "ours"))
    bundle = load_model(tmp_path / "ours")
    tokenizer, config = bundle.tokenizers.source, bundle.config
    tags = [f"<2{code}>" for code in LANGUAGES]
    assert (config.source_language, config.target_language) == ("mul", "mul")
    assert (config.language_tags, [*tokenizer.tags]) == ("both", tags)
    assert config.decoding.max_length_offset == 28  # of 30, with start token and EOS
    assert tokenizer.vocab_size == NUM_TOKENS
    own = {tokenizer.piece(index): index for index in range(tokenizer.vocab_size)}
    # Ids of fairseq are those of SentencePiece plus 1; the languages begin at 601.
    pieces = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces += sorted((x for x in own if x not in (*pieces, *tags)), key=own.__getitem__)[:597]
    ours = [own[piece] for piece in (*pieces, *tags)]
    source, target = [602, 17, 300, 5, 44, 2], [601, 9, 250]
    hidden = bundle.model(
        Packed.from_rows([[ours[i] for i in source]]),
        Packed.from_rows([[BOS_ID, *(ours[i] for i in target)]]),
    )
    found = bundle.model.logits(hidden)
    expected = torch.tensor([
        [0.126039, 0.248991, 0.838534, 2.619189], [-2.129817, 0.517096, -0.54198, 1.969668],
        [-2.50015, 1.830837, -0.228668, 2.858074], [-1.82718, 1.194801, 0.346561, 2.941479],
    ])  # fmt: skip
    columns = [ours[i] for i in (2, 4, 333, 604)]
    torch.testing.assert_close(found[:, columns], expected, rtol=0, atol=1e-4)
    # The start token is </s>, but the model can only choose </s> at the end.
    torch.testing.assert_close(found[:, BOS_ID], found[:, EOS_ID] - 30)


def test_languages_of_m2m_that_no_file_lists_have_the_order_of_fairseq(tmp_path: Path) -> None:
    """The eight languages of WMT21 follow the subwords. Dropout is for further training."""
    rates = {"dropout": 0.15, "attention_dropout": 0.25, "activation_dropout": 0.05}
    subwords = write_m2m(tmp_path / "theirs", **rates)
    import_model(ImportOptions(source=tmp_path / "theirs", output=tmp_path / "ours"))
    bundle = load_model(tmp_path / "ours")
    tokenizer = bundle.tokenizers.source
    files = (tmp_path / "theirs").glob("*.safetensors")
    tensors = {name: tensor for path in files for name, tensor in load_file(path).items()}
    table = tensors["model.shared.weight"].float()
    for place, code in enumerate(("en", "ha", "is", "ja", "cs", "ru", "zh", "de")):
        vector = bundle.model.source_vectors[tokenizer.tags[f"<2{code}>"]]
        assert torch.equal(vector, table[len(subwords) + place]), code
    config = bundle.model.config
    for name, rate in rates.items():
        assert getattr(config, name) == rate


@pytest.mark.parametrize(
    ("languages", "expected"),
    [("ary-rus", ("ary_Arab", "rus_Cyrl")), ("rus_Cyrl-eng_Latn", ("rus_Cyrl", "eng_Latn"))],
)
def test_codes_find_the_languages_of_the_model(
    theirs: Path, tmp_path: Path, languages: str, expected: tuple[str, str]
) -> None:
    options = ImportOptions(source=theirs, output=tmp_path / "ours", languages=languages)
    assert import_model(options).languages == expected


def test_a_model_imported_without_languages_asks_for_both(theirs: Path, tmp_path: Path) -> None:
    ours = str(tmp_path / "ours")
    assert CliRunner().invoke(app, ["import", str(theirs), "-o", ours]).exit_code == 0
    for flags, missing in (
        ([], "--to"),
        (["--from", "en"], "--to"),
        (["--to", "ary"], "--from"),
        (["--from", "en", "--to", "ary"], None),
    ):
        command = ["translate", ours, "--engine", "torch", *flags]
        result = CliRunner().invoke(app, command, "A dog runs.\n")
        assert result.exit_code == (2 if missing else 0), result.stderr
        assert missing is None or f"Set {missing} to a language: " in result.stderr
        assert "mul" not in result.stderr
    lines = str(tmp_path / "lines.txt")
    Path(lines).write_text("A dog runs.\n", "utf-8")
    command = ["evaluate", ours, "--engine", "torch", "--source", lines, "--reference", lines]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, "Add --languages PAIR" in result.stderr) == (2, True)
    assert CliRunner().invoke(app, [*command, "-l", "en-ary"]).exit_code == 0


def test_an_unknown_language_is_named(theirs: Path, tmp_path: Path) -> None:
    options = ImportOptions(source=theirs, output=tmp_path / "ours", languages="eng_Latn-ray_Arab")
    with pytest.raises(ConfigError, match=r"has no language ray_Arab. Did you mean ary_Arab"):
        import_model(options)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"model_type": "nllb_moe"}, r"mixture of experts \(model_type: nllb_moe\)"),
        ("config.json", {"normalize_before": False}, "normalize_before: False"),
        ("config.json", {"activation_function": "gelu_new"}, "activation_function: gelu_new"),
        ("config.json", {"decoder_attention_heads": 2}, "4 heads in the encoder and 2"),
        ("config.json", {"d_model": 20}, "do not match the configuration"),
        ("config.json", {"tie_word_embeddings": False}, "'lm_head.weight' is missing"),
        ("tokenizer_config.json", {"legacy_behaviour": True}, "legacy_behaviour: true"),
        ("tokenizer_config.json", {"tokenizer_class": "SMALL100Tokenizer"}, "SMALL100Tokenizer"),
        ("tokenizer.json", {"added_tokens": []}, "does not name the language tokens"),
    ],
)
def test_unsupported_values_are_named(
    theirs: Path, name: str, change: dict[str, Any], message: str
) -> None:
    changed(theirs / name, **change)
    with pytest.raises(CheckpointError, match=message):
        import_model(ImportOptions(source=theirs, output=theirs.parent / "ours"))
    assert not (theirs.parent / "ours").exists()


def test_language_tokens_are_found_in_each_file_that_lists_them(
    theirs: Path, tmp_path: Path
) -> None:
    """Folders of old and new versions of the library, which has changed the file."""
    ids = {code: 601 + index for index, code in enumerate(LANGUAGES)}
    decoder = {str(index): {"content": code} for code, index in ids.items()}
    (theirs / "tokenizer.json").unlink()
    for name, values in (
        ("special_tokens_map.json", {"additional_special_tokens": LANGUAGES}),
        ("tokenizer_config.json", {"added_tokens_decoder": decoder, "tgt_lang": "ary_Arab"}),
        ("added_tokens.json", ids),
    ):
        changed(theirs / name, **values)
        output = tmp_path / name
        languages = import_model(ImportOptions(source=theirs, output=output)).languages
        has_target = name != "special_tokens_map.json"
        assert languages == (("eng_Latn", "ary_Arab") if has_target else ("mul", "mul"))
        assert len(load_model(output).tokenizers.source.tags) == len(LANGUAGES)
        (theirs / "special_tokens_map.json").unlink(missing_ok=True)
