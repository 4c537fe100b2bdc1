"""The vocabulary of a model changes, and what the model computes stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nmt.checkpoint.model_folder import ModelBundle, load_model
from nmt.cli.app import app
from nmt.config.data import TokenizerConfig
from nmt.errors import CheckpointError, NmtError
from nmt.extras.exchange.export import ImportSummary
from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.options import ImportOptions
from nmt.files.json_file import Manifest
from nmt.inference.translator import Translator
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from tests.extras.exchange.exported import STEP, run_config, write_run, write_shortlist
from tests.extras.exchange.marian_files import KINDS, write
from tests.extras.exchange.test_vocabulary import TEXT
from tests.learning import train_sentencepiece

KEPT = {"kept.de": "Ein großer Hund läuft.\n", "kept.en": "A big dog runs.\n"}


def write_text(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def small_run(*, joint: bool, kind: str = "bpe", **sections: Any) -> Path:
    """A run of a random model with the tags <2de> and <2en> in the source vocabulary."""
    names = ["joint"] if joint else ["source", "target"]
    symbols = {"user_defined_symbols": ["<2de>", "<2en>"]}
    size = 44 if kind == "word" else 130
    settings = {"kind": kind, "vocab_size": size, "byte_fallback": False, "joint": joint, **symbols}
    Path("vocabulary").mkdir()
    for name in names:
        path = Path("vocabulary", f"{name}.model")
        text = TEXT if name == "joint" else [*TEXT[::-1], name]
        train_sentencepiece(text, path, TokenizerConfig.model_validate(settings), threads=1)
    embeddings = {"embeddings": "tied" if joint else "separate"}
    config = run_config(embeddings, tokenizer=settings, **sections)
    write_run(Path("run"), Path("vocabulary"), config)
    write_shortlist(Path("run"))
    return Path("run")


def resized(run: Path, output: str, **options: object) -> tuple[ImportSummary, ModelBundle]:
    settings = ImportOptions(source=run, output=Path(output), **options)  # type: ignore[arg-type]
    return import_model(settings), load_model(Path(output))


@torch.inference_mode()
def logits(bundle: ModelBundle, source: str, target: str) -> torch.Tensor:
    texts = bundle.tokenizers.source.encode(source), bundle.tokenizers.target.encode(target)
    hidden = bundle.model(
        Packed.from_rows([[*texts[0], EOS_ID]]), Packed.from_rows([[BOS_ID, *texts[1]]])
    )
    return bundle.model.logits(hidden)


def pieces(bundle: ModelBundle, side: int) -> list[str]:
    return [piece for piece, *_ in bundle.tokenizers[side].pieces()]


@pytest.mark.parametrize("joint", [True, False])
def test_a_trimmed_model_has_the_same_logits_for_the_kept_text(joint: bool) -> None:
    run = small_run(joint=joint)
    files = tuple(write_text(name, text * 3) for name, text in KEPT.items())
    summary, after = resized(run, "trimmed", keep_vocabulary=files, keep_language=("en",))
    before = load_model(run)
    lines = [text.strip() for text in KEPT.values()]
    rows = [pieces(before, 1).index(piece) for piece in pieces(after, 1)]
    torch.testing.assert_close(logits(after, *lines), logits(before, *lines)[:, rows])
    assert [*after.tokenizers.source.tags] == ["<2en>"]
    # Of separate vocabularies, that of the target has the target text only.
    assert ("▁Hund" in pieces(after, 1)) == joint
    assert summary.before
    assert summary.after
    assert summary.before["target_entries"] == 130
    assert summary.after["target_entries"] == len(rows) < 90
    assert summary.after["parameters"] == sum(x.numel() for x in after.model.parameters())
    assert summary.as_dict()["after"]["megabytes"] == round(summary.after["parameters"] * 4e-6, 1)


def test_new_entries_start_at_the_mean_of_old_ones() -> None:
    run = small_run(joint=True)
    text = write_text("new.txt", "Hunde Hunde Häuser Häuser سلام سلام\n" * 4)
    options = {"add_vocabulary": [text], "add_language": ["ary"], "like": "de", "add_pieces": 20}
    _, after = resized(run, "grown", **options)
    before = load_model(run)
    now, old = pieces(after, 0), pieces(before, 0)
    assert now[4:7] == ["<2de>", "<2en>", "<2ary>"]
    assert now[7 : len(old) + 1] == old[6:]
    rows = [old.index(piece) for piece in now[: len(old) + 1] if piece != "<2ary>"]
    table, new = before.model.state_dict()["source_vectors"], after.model.state_dict()
    vectors, places = new["source_vectors"], {piece: row for row, piece in enumerate(now)}
    copied = [places[old[row]] for row in rows]
    torch.testing.assert_close(vectors[copied], table[rows])
    torch.testing.assert_close(vectors[places["<2ary>"]], table[old.index("<2de>")])
    assert {"س", "▁سلام", "▁Hunde"} <= {*now[len(old) + 1 :]}
    ids = before.tokenizers.source.encode("Hunde")
    torch.testing.assert_close(vectors[places["▁Hunde"]], table[ids].mean(0))
    plain = [
        row for row, (*_, is_plain) in enumerate(before.tokenizers.source.pieces()) if is_plain
    ]
    torch.testing.assert_close(vectors[places["س"]], table[plain].mean(0))
    bias = before.model.state_dict()["output_bias"]
    torch.testing.assert_close(new["output_bias"][places["س"]], bias[plain].mean(0))
    assert not Path("grown", "shortlist.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keep_language": ["nl"]}, "no tag '<2nl>'"),
        ({"add_language": ["ary"], "like": "ar"}, "no tag '<2ar>'"),
        ({"add_language": ["de"]}, "tag of the language de already"),
        ({"add_pieces": 5}, "no effect without `add_vocabulary`"),
        ({"keep_vocabulary": ["kept.de"]}, "no text for the language en"),
        ({"keep_vocabulary": ["none.de", "none.en"]}, "none.de does not exist"),
    ],
)
def test_options_that_do_not_fit_the_model_are_explained(
    options: dict[str, object], problem: str
) -> None:
    write_text("kept.de", "Hund\n")
    with pytest.raises(NmtError, match=problem):
        resized(small_run(joint=False), "new", **options)
    assert not Path("new").exists()


def test_no_more_subwords_are_added_than_allowed() -> None:
    """Of three unknown characters, those that occur 16 and 12 times."""
    run = small_run(joint=True)
    text = write_text("new.txt", "\u732b\u732b\u732b\u732b \u72ac\u72ac\u72ac \u9ce5\u9ce5\n" * 4)
    _, after = resized(run, "grown", add_vocabulary=(text,), add_pieces=2)
    assert pieces(after, 0) == [*pieces(load_model(run), 0), "\u732b", "\u72ac"]


def test_a_new_tag_without_a_related_language_starts_at_the_mean_of_all_tags() -> None:
    run = small_run(joint=True)
    _, after = resized(run, "grown", add_language=("ary",))
    before = load_model(run)
    rows = [before.tokenizers.source.tags[tag] for tag in ("<2de>", "<2en>")]
    vector = after.model.source_vectors[after.tokenizers.source.tags["<2ary>"]]
    torch.testing.assert_close(vector, before.model.source_vectors[rows].mean(0))


def test_a_resized_copy_keeps_its_step_and_asks_for_no_shortlist() -> None:
    """The shortlist belongs to the old vocabulary, so the copy has none."""
    decoding = {"beam_size": 2, "shortlist": True}
    run = small_run(joint=True, decoding=decoding)
    resized(run, "new", keep_language=("en",))
    assert Manifest.read(Path("new")).step == STEP
    translator = Translator.load(Path("new"), engine="torch", device="cpu")
    assert translator.options.decoding.beam_size == 2
    assert translator.translate(["<2en> Hund"])


def test_a_vocabulary_of_words_cannot_grow() -> None:
    run = small_run(joint=True, kind="word")
    with pytest.raises(CheckpointError, match="Only BPE and unigram vocabularies can grow"):
        resized(run, "new", add_vocabulary=(write_text("new.txt", "Hunde\n"),))


def test_several_files_follow_one_flag() -> None:
    run = small_run(joint=True)
    files = [str(write_text(name, text)) for name, text in KEPT.items()]
    words = ["import", str(run), "--keep-vocabulary", *files, "-o", "new", "--keep-language", "en"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "▁Hund" in pieces(load_model(Path("new")), 0)
    assert "▁dog" in pieces(load_model(Path("new")), 0)


def test_a_new_tag_of_an_opus_model_has_the_form_of_its_tags(shared_data: Path) -> None:
    folder = write(Path("theirs"), shared_data / "marian_models", KINDS["tied, swish"], ">>deu<<")
    _, after = resized(folder, "after", add_language=("nld",), like="deu")
    tags = after.tokenizers.source.tags
    assert [*tags] == [">>deu<<", ">>nld<<"]
    vectors = after.model.source_vectors
    assert torch.equal(vectors[tags[">>nld<<"]], vectors[tags[">>deu<<"]])


@pytest.mark.long
def test_an_imported_model_is_trimmed_with_two_sentencepiece_models(shared_data: Path) -> None:
    folder = write(Path("theirs"), shared_data / "marian_models", KINDS["tied, swish"], ">>deu<<")
    text = (shared_data / "marian_models" / "input.en").read_text(encoding="utf-8")
    lines = [f">>deu<< {line}" for line in text.split("\n")[:20]] + ["Straße"]
    file = write_text("kept.txt", "".join(f"{line}\n" for line in lines))
    _, before = resized(folder, "before")
    _, after = resized(folder, "after", keep_vocabulary=(file,))
    assert len(pieces(after, 0)) < len(pieces(before, 0))
    rows = [pieces(before, 1).index(piece) for piece in pieces(after, 1)]
    for line in lines[::5]:
        expected = logits(before, line, lines[-1])[:, rows]
        torch.testing.assert_close(logits(after, line, lines[-1]), expected)
