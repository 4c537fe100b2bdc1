"""M2M-100 and NLLB-200 as the Hugging Face Hub has them, written by transformers, against itself.

transformers is not a dependency of the tests: without it these tests are skipped, and the folders
that test_m2m.py writes by hand take their place. The models are trained for some seconds to copy
text, because hypotheses of random weights rarely end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentencepiece
import torch

from nmt.checkpoint.model_folder import load_model
from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.options import ImportOptions
from nmt.inference.translator import Translator
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from tests.extras.exchange.exported import needs_ctranslate2
from tests.extras.exchange.m2m_files import SENTENCES, mixed_lines, train_sentencepiece

transformers: Any = pytest.importorskip("transformers")


class Layout(NamedTuple):
    """What differs between published repositories."""

    languages: tuple[str, str]  # as transformers writes them
    weights: str = "safetensors"  # or bin; in shards
    search: tuple[tuple[str, Any], ...] = (("max_length", 60),)
    model: tuple[tuple[str, Any], ...] = ()


NLLB, M2M = ("eng_Latn", "ary_Arab"), ("en", "de")
LAYOUTS = {
    "nllb-200": Layout(NLLB, "bin"),
    "nllb-200, new": Layout(
        NLLB, model=(("scale_embedding", False), ("tie_word_embeddings", False))
    ),
    "m2m100": Layout(M2M, search=(("max_length", 60), ("num_beams", 5), ("early_stopping", True))),
}


def as_in_2022(folder: Path) -> None:
    """Change the files of a new tokenizer: the languages before <mask>, ids in one file only."""
    (folder / "added_tokens.json").unlink()
    config = {"tokenizer_class": "NllbTokenizer", "src_lang": None, "tgt_lang": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    special, (mask, *languages) = values["added_tokens"][:4], values["added_tokens"][4:]
    names = [x["content"] for x in (*languages, mask)]
    values["added_tokens"] = [
        *special,
        *({**x, "id": mask["id"] + i} for i, x in enumerate((*languages, mask))),
    ]
    vocab = {x: i for x, i in values["model"]["vocab"].items() if x not in names}
    values["model"]["vocab"] = vocab
    path.write_text(json.dumps(values), encoding="utf-8")


def write_layout(folder: Path, layout: Layout) -> Any:
    """Write a repository as transformers does; return the tokenizer and the model."""
    folder.mkdir(parents=True)
    spm = folder / "sentencepiece.bpe.model"
    spm.write_bytes(train_sentencepiece())
    if layout.languages == NLLB:
        transformers.NllbTokenizerFast(str(spm)).save_pretrained(folder)
        if layout.weights == "bin":
            as_in_2022(folder)
        tokenizer = transformers.NllbTokenizer.from_pretrained(folder)
    else:
        processor = sentencepiece.SentencePieceProcessor(model_proto=spm.read_bytes())
        pieces = [processor.id_to_piece(i) for i in range(3, len(processor))]
        # fairseq's order is another one; it lacks subwords and has others.
        kept = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces[10:]), "ﷺ"]
        ids = {token: index for index, token in enumerate(kept)}
        (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        tokenizer = transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(spm))
        tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.M2M100Config(
        vocab_size=len(tokenizer) + 110, d_model=32, encoder_layers=2, decoder_layers=1,
        encoder_ffn_dim=48, decoder_ffn_dim=40, encoder_attention_heads=4,
        decoder_attention_heads=4, dropout=0.0, attention_dropout=0.0, **dict(layout.model),
    )  # fmt: skip
    model = transformers.M2M100ForConditionalGeneration(config)
    train(model, tokenizer, layout.languages)
    model.generation_config.update(**dict(layout.search))
    model.save_pretrained(
        folder, safe_serialization=layout.weights != "bin", max_shard_size="100KB"
    )
    return tokenizer, model.eval()


def encoded(tokenizer: Any, layout_languages: tuple[str, str], lines: list[str]) -> Any:
    tokenizer.src_lang, tokenizer.tgt_lang = layout_languages
    return tokenizer(lines, text_target=lines, return_tensors="pt", padding=True)


def train(model: Any, tokenizer: Any, languages: tuple[str, str]) -> None:
    batch = encoded(tokenizer, languages, mixed_lines(60))
    labels = batch["labels"].masked_fill(batch["labels"] == tokenizer.pad_token_id, -100)
    inputs = {x: batch[x] for x in ("input_ids", "attention_mask")}
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(250):
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Pair(NamedTuple):
    layout: Layout
    tokenizer: Any
    theirs: Any
    source: Path
    ours: Path


@pytest.fixture(scope="module", params=LAYOUTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    layout, folder = LAYOUTS[request.param], tmp_path_factory.mktemp("m2m")
    tokenizer, model = write_layout(folder / "theirs", layout)
    tokenizer.src_lang = layout.languages[0]
    import_model(ImportOptions(source=folder / "theirs", output=folder / "ours"))
    return Pair(layout, tokenizer, model, folder / "theirs", folder / "ours")


def our_tokens(theirs: Any) -> list[str]:
    """Return our names of all tokens of transformers, by their ids."""
    tags = {*getattr(theirs, "lang_token_to_id", ()), *theirs.additional_special_tokens} - {
        "<mask>"
    }
    size = max(theirs.convert_tokens_to_ids([*tags])) + 1
    names = theirs.convert_ids_to_tokens(range(max(size, len(theirs))))
    return [f"<2{name.strip('_')}>" if name in tags else name for name in names]


def test_lines_in_twelve_scripts_get_the_same_subwords(pair: Pair) -> None:
    tokenizer, lines = load_model(pair.ours).tokenizers.source, mixed_lines(300)
    ids = {token: index for index, token in enumerate(our_tokens(pair.tokenizer))}
    first = tokenizer.tag_id(pair.layout.languages[0])
    for line, own in zip(lines, tokenizer.encode_batch(lines), strict=True):
        # Subwords that only SentencePiece knows have the vector of the unknown token.
        found = [ids.get(tokenizer.piece(i), ids["<unk>"]) for i in (first, *own, EOS_ID)]
        assert found == pair.tokenizer(line).input_ids, line


@torch.inference_mode()
def test_logits_equal_those_of_transformers(pair: Pair) -> None:
    bundle = load_model(pair.ours)
    tokenizer = bundle.tokenizers.source
    own = {tokenizer.piece(index): index for index in range(tokenizer.vocab_size)}
    ours = [own.get(token, BOS_ID) for token in our_tokens(pair.tokenizer)]
    for line in SENTENCES:
        batch = encoded(pair.tokenizer, pair.layout.languages, [line])
        expected = pair.theirs(**batch).logits[0]
        source, target = ([ours[i] for i in batch[x][0]] for x in ("input_ids", "labels"))
        hidden = bundle.model(
            Packed.from_rows([source]), Packed.from_rows([[BOS_ID, *target[:-1]]])
        )
        found = bundle.model.logits(hidden)[:, ours[1:]]
        torch.testing.assert_close(found, expected[:, 1 : len(ours)], rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ["torch", pytest.param("ctranslate2", marks=needs_ctranslate2)])
@torch.inference_mode()
def test_translations_equal_those_of_transformers(pair: Pair, engine: str) -> None:
    source, target = pair.layout.languages
    lines = mixed_lines(60)
    batch = encoded(pair.tokenizer, pair.layout.languages, lines)
    tokens = dict(enumerate(our_tokens(pair.tokenizer)))
    forced = next(index for index, token in tokens.items() if token == f"<2{target}>")
    options: Any = {"engine": engine, "threads": 1, "guard": False, "patience": 1.0}
    options |= {"source_language": source, "target_language": target}
    for beams in (1, 4):
        ids = pair.theirs.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
            forced_bos_token_id=forced, num_beams=beams, early_stopping=beams > 1,
            bad_words_ids=[[0], [1], [3]], renormalize_logits=True,
        )  # fmt: skip
        texts = pair.tokenizer.batch_decode(ids, skip_special_tokens=True)
        translator = Translator.load(pair.ours, beam_size=beams, **options)
        found = [result.text for result in translator.translate(lines)]
        # Hypotheses that end at the limit have EOS here, but not in transformers. Version 4.57
        # leaves the language tokens of M2M-100 in the text.
        expected = {
            line: text.removeprefix(f"__{target}__").strip()
            for line, text, row in zip(lines, texts, ids.tolist(), strict=True)
            if 2 in row[1:] and not any(tokens.get(i, "").startswith("<2") for i in row[2:])
        }
        assert len({*expected.values()}) > 40
        differing = expected.items() - dict(zip(lines, found, strict=True)).items()
        # Several hypotheses that finish in one step: see the module ctranslate2.
        assert len(differing) <= 2 * (engine == "ctranslate2" and beams > 1)
