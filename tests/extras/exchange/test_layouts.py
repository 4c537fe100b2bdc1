"""Models as the Hugging Face Hub has them, written by transformers, against transformers itself.

transformers is not a dependency of the tests: without it these tests are skipped, and the files
that test_marian.py writes by hand take their place. The weights are those of a model that Marian
trained, because hypotheses of random weights rarely end.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from nmt.checkpoint.model_folder import load_model
from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.imported import LAYERS
from nmt.extras.exchange.marian import read_marian
from nmt.extras.exchange.options import ImportOptions
from nmt.inference.translator import Translator
from nmt.packed import Packed
from nmt.text import BOS_ID, EOS_ID
from tests.extras.exchange.exported import needs_ctranslate2

transformers: Any = pytest.importorskip("transformers")

TAGS = (">>deu<<", ">>fra<<", ">>nds<<")
# The other files of these repositories.
OTHERS = (".gitattributes", "README.md", "flax_model.msgpack", "rust_model.ot", "tf_model.h5")


class Layout(NamedTuple):
    """What differs between published repositories."""

    weights: str = "safetensors"  # or bin, or sharded
    dtype: str = "float32"
    tags: tuple[str, ...] = ()
    vocabularies: str = "shared"  # or separate
    tied: bool = True
    target: str = "de"  # language in tokenizer_config.json
    renormalize: bool = True
    beams: int = 4
    length_penalty: float = 1.0


LAYOUTS = {
    "opus-mt-en-de, 2020": Layout("bin", renormalize=False),
    "opus-mt-en-de": Layout(),
    "opus-mt-en-ROMANCE": Layout("bin", tags=TAGS, target="ROMANCE", beams=6),
    "opus-mt-tc-big-en-de": Layout("sharded", "float16", length_penalty=0.6),
    "separate vocabularies": Layout(vocabularies="separate"),
    "separate, untied": Layout("bin", vocabularies="separate", tied=False),
}


def hugging_face_names(weights: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Split our layers into those of Hugging Face."""
    for name, value in weights.items():
        side, _, rest = name.partition(".")
        if side in ("encoder", "decoder"):
            index, _, rest = rest.partition(".")
            ours, _, kind = rest.rpartition(".")
            parts = LAYERS["hugging_face"]["parts"][ours].split()
            for part, array in zip(parts, np.split(value, len(parts)), strict=True):
                yield f"model.{side}.layers.{index}.{part}.{kind}", torch.from_numpy(array.copy())


def write_layout(folder: Path, marian: Path, layout: Layout) -> Path:
    """Write a repository as the converter of transformers does."""
    model = read_marian(marian)
    tokens = [*model.source.tokens, *layout.tags, "<pad>"]
    generator = torch.Generator().manual_seed(1)
    vectors = torch.from_numpy(model.weights["source_vectors"].copy())
    width = vectors.shape[1]
    new = torch.randn(len(layout.tags), width, generator=generator) * vectors.std()
    vectors = torch.cat([vectors, new, torch.zeros(1, width)])
    bias = torch.from_numpy(model.weights["output_bias"].copy())
    bias = torch.cat([bias, torch.zeros(len(layout.tags) + 1)])
    # A separate target vocabulary has another order, in which EOS is not 0.
    is_shared = layout.vocabularies == "shared"
    order = (
        torch.arange(len(tokens)) if is_shared else torch.randperm(len(tokens), generator=generator)
    )
    target = [tokens[index] for index in order]
    eos, pad = target.index("</s>"), target.index("<pad>")
    config = transformers.MarianConfig(
        vocab_size=len(tokens), decoder_vocab_size=len(tokens), d_model=width,
        encoder_layers=model.model.encoder_layers, decoder_layers=model.model.decoder_layers,
        encoder_attention_heads=model.model.num_heads,
        decoder_attention_heads=model.model.num_heads,
        encoder_ffn_dim=model.model.ff_dim, decoder_ffn_dim=model.model.ff_dim,
        activation_function="swish", scale_embedding=True, max_position_embeddings=512,
        share_encoder_decoder_embeddings=is_shared, tie_word_embeddings=layout.tied,
        pad_token_id=pad, eos_token_id=eos, bos_token_id=0, decoder_start_token_id=pad,
        forced_eos_token_id=eos, max_length=60, num_beams=layout.beams, bad_words_ids=[[pad]],
        length_penalty=layout.length_penalty, renormalize_logits=layout.renormalize or None,
        add_bias_logits=False, normalize_before=False, normalize_embedding=False,
        static_position_embeddings=True,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config)
    state = dict(hugging_face_names(model.weights))
    state |= {"final_logits_bias": bias[order].unsqueeze(0)}
    if is_shared:
        state |= {"model.shared.weight": vectors}
    output = vectors[order] if layout.tied else vectors[order] + 0.01
    state |= {"model.encoder.embed_tokens.weight": vectors, "lm_head.weight": output}
    state |= {"model.decoder.embed_tokens.weight": vectors[order]}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert {name for name in missing if "embed_positions" not in name} == set()
    theirs.to(getattr(torch, layout.dtype))
    folder.mkdir(parents=True)
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(marian / name, folder / name)
    for name, own in (("vocab.json", tokens), ("target_vocab.json", target)):
        if name == "vocab.json" or not is_shared:
            ids = {token: index for index, token in enumerate(own)}
            (folder / name).write_text(json.dumps(ids, indent=2), encoding="utf-8")
    tokenizer = transformers.MarianTokenizer(
        str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"),
        None if is_shared else str(folder / "target_vocab.json"), "en", layout.target,
        separate_vocabs=not is_shared,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    theirs.save_pretrained(
        folder,
        safe_serialization=layout.weights != "bin",
        max_shard_size="1MB" if layout.weights == "sharded" else "5GB",
    )
    for name in OTHERS:
        (folder / name).write_bytes(b"not read")
    return folder


@pytest.fixture(scope="module", params=LAYOUTS)
def pair(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Layout, Path, Path]:
    """A layout, the folder of transformers, and ours."""
    layout, folder = LAYOUTS[request.param], tmp_path_factory.mktemp("layout")
    with warnings.catch_warnings():  # transformers says that it moves settings to another file
        warnings.simplefilter("ignore")
        theirs = write_layout(folder / "theirs", shared_data / "marian_models" / "opus", layout)
    import_model(ImportOptions(source=theirs, output=folder / "ours"))
    return layout, theirs, folder / "ours"


def load_theirs(folder: Path) -> tuple[Any, Any]:
    """Load the model and the tokenizer. UNK is forbidden, as in Marian and in nmt."""
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    unk = (tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder)["<unk>"]
    model.generation_config.bad_words_ids.append([unk])
    return model, tokenizer


def lines_of(layout: Layout, shared_data: Path) -> list[str]:
    text = (shared_data / "marian_models" / "input.en").read_text(encoding="utf-8")
    tag = f"{layout.tags[0]} " if layout.tags else ""
    return [tag + line for line in text.split("\n")[:200] if line.strip()]


@torch.inference_mode()
def test_logits_equal_those_of_transformers(
    pair: tuple[Layout, Path, Path], shared_data: Path
) -> None:
    layout, folder, ours = pair
    theirs, tokenizer = load_theirs(folder)
    bundle = load_model(ours)
    target = list(tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder)
    own = {bundle.tokenizers.target.piece(i): i for i in range(bundle.tokenizers.vocab_sizes[1])}
    columns = [own[token] for token in target]
    for line in lines_of(layout, shared_data)[::20]:
        inputs = tokenizer([line], return_tensors="pt")
        start = theirs.config.decoder_start_token_id
        decoded = torch.tensor([[start, *range(40, 60)]])
        expected = theirs(**inputs, decoder_input_ids=decoded).logits[0]
        source = [*bundle.tokenizers.source.encode(line), EOS_ID]
        hidden = bundle.model(
            Packed.from_rows([source]), Packed.from_rows([[BOS_ID, *columns[40:60]]])
        )
        found = bundle.model.logits(hidden)[:, columns]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ["torch", pytest.param("ctranslate2", marks=needs_ctranslate2)])
@torch.inference_mode()
def test_translations_equal_those_of_transformers(
    pair: tuple[Layout, Path, Path], shared_data: Path, engine: str
) -> None:
    layout, folder, ours = pair
    options: dict[str, Any] = {"engine": engine, "threads": 1, "guard": False}
    if engine == "ctranslate2" and not layout.renormalize:
        pytest.skip("CTranslate2 does not keep the mass of special tokens")
    theirs, tokenizer = load_theirs(folder)
    lines, ended, whole = lines_of(layout, shared_data), list[str](), list[str]()
    for start in range(0, len(lines), 25):
        inputs = tokenizer(lines[start : start + 25], return_tensors="pt", padding=True)
        for texts, early in ((ended, True), (whole, False)):
            ids = theirs.generate(**inputs, early_stopping=early)
            texts += tokenizer.batch_decode(ids, skip_special_tokens=True)
    translator = Translator.load(ours, **options)
    decoding = translator.options.decoding
    assert (decoding.beam_size, decoding.length_penalty) == (layout.beams, layout.length_penalty)
    assert (decoding.max_length_factor, decoding.max_length_offset) == (0, 58)  # of 60 tokens
    found = [result.text for result in translator.with_options(patience=1.0).translate(lines)]
    assert found == ended
    # Without early stopping the library goes on until no unfinished hypothesis looks better than
    # the worst finished one: nmt stops after twice as many hypotheses as beams.
    found = [result.text for result in translator.translate(lines)]
    assert sum(a != b for a, b in zip(found, whole, strict=True)) <= 1
