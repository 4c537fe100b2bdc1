"""Random models in the form of Hugging Face, made without its library, the same everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from nmt.extras.exchange.marian import read_vocabulary

DIM, FF, DECODER_FF, LAYERS, HEADS = 16, 24, 32, (1, 2), 4


class Kind(NamedTuple):
    """What may differ between models of Hugging Face."""

    shared: bool
    tied: bool
    activation: str
    scaled: bool
    dtype: str


KINDS = {
    "tied, swish": Kind(shared=True, tied=True, activation="swish", scaled=True, dtype="float32"),
    "tied, relu, half": Kind(True, True, "relu", True, "float16"),
    "untied output": Kind(True, False, "relu", False, "float32"),
    "separate": Kind(False, False, "gelu", True, "float32"),
    "decoder tied": Kind(False, True, "silu", True, "float32"),
}


def settings(kind: Kind, num_tokens: int) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "model_type": "marian", "vocab_size": num_tokens, "decoder_vocab_size": num_tokens,
        "d_model": DIM, "encoder_layers": LAYERS[0], "decoder_layers": LAYERS[1],
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": FF, "decoder_ffn_dim": DECODER_FF,
        "activation_function": kind.activation, "scale_embedding": kind.scaled,
        "share_encoder_decoder_embeddings": kind.shared, "tie_word_embeddings": kind.tied,
        "pad_token_id": num_tokens - 1, "eos_token_id": 0, "bos_token_id": 0,
        "decoder_start_token_id": num_tokens - 1, "max_position_embeddings": 512,
        "forced_eos_token_id": 0, "num_beams": 4,
    }  # fmt: skip


def tokens(marian_models: Path, *tags: str) -> list[str]:
    """The entries of the vocabulary, as a converted OPUS-MT model has them."""
    return [*read_vocabulary(marian_models / "opus" / "opus.vocab.yml"), *tags, "<pad>"]


def weights(kind: Kind, num_tokens: int, seed: int) -> dict[str, Any]:
    draw = np.random.Generator(np.random.PCG64(seed))
    found: dict[str, Any] = {}

    def add(name: str, *shape: int, scale: float = 0.3, shift: float = 0.0) -> None:
        values = draw.standard_normal(shape) * scale + shift
        found[name] = values.astype(np.float32).astype(kind.dtype)

    def linear(name: str, rows: int, columns: int) -> None:
        add(f"{name}.weight", rows, columns)
        add(f"{name}.bias", rows)

    def norm(name: str) -> None:
        add(f"{name}.weight", DIM, shift=1.0)
        add(f"{name}.bias", DIM)

    for side, layers, ff in (("encoder", LAYERS[0], FF), ("decoder", LAYERS[1], DECODER_FF)):
        if not (kind.shared and kind.tied):
            add(f"model.{side}.embed_tokens.weight", num_tokens, DIM)
        for index in range(layers):
            layer = f"model.{side}.layers.{index}"
            for block in ("self_attn", *(["encoder_attn"] * (side == "decoder"))):
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{layer}.{block}.{part}", DIM, DIM)
                norm(f"{layer}.{block}_layer_norm")
            linear(f"{layer}.fc1", ff, DIM)
            linear(f"{layer}.fc2", DIM, ff)
            norm(f"{layer}.final_layer_norm")
    if kind.shared:
        add("model.shared.weight", num_tokens, DIM)
    if not kind.tied:
        add("lm_head.weight", num_tokens, DIM)
    add("final_logits_bias", 1, num_tokens, scale=1.0)
    return found


def write(folder: Path, marian_models: Path, kind: Kind, *tags: str, seed: int = 1) -> Path:
    """Write such a folder, with the SentencePiece models of a real one."""
    folder.mkdir(parents=True)
    own = tokens(marian_models, *tags)
    ids = json.dumps({token: index for index, token in enumerate(own)}, ensure_ascii=False)
    (folder / "vocab.json").write_text(ids, encoding="utf-8")
    if not kind.shared:
        (folder / "target_vocab.json").write_text(ids, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(settings(kind, len(own))), encoding="utf-8")
    languages = {"source_lang": "en", "target_lang": "de", "separate_vocabs": not kind.shared}
    (folder / "tokenizer_config.json").write_text(json.dumps(languages), encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(marian_models / "opus" / name, folder / name)
    save_file(weights(kind, len(own), seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def nasty_lines(marian_models: Path, count: int) -> list[str]:
    """Lines as people and machines write them: real ones, and pieces of them mixed with others."""
    real = (marian_models / "input.en").read_text(encoding="utf-8").split("\n")[:200]
    draw = np.random.Generator(np.random.PCG64(7))
    ranges = [(32, 127), (160, 592), (880, 1400), (1424, 1800), (2304, 2500), (8192, 8304)]
    ranges += [(12352, 12544), (19968, 20480), (65281, 65376), (128512, 128592), (0x300, 0x370)]
    lines = list(real)
    while len(lines) < count:
        parts = []
        for _ in range(int(draw.integers(1, 8))):
            low, high = ranges[int(draw.integers(len(ranges)))]
            word = "".join(map(chr, draw.integers(low, high, int(draw.integers(1, 6))).tolist()))
            old = real[int(draw.integers(len(real)))].split(" ")
            parts.append(word if draw.random() < 0.5 else old[int(draw.integers(len(old)))])
        glue = [" ", "  ", "\t", "\u00a0", ""][int(draw.integers(5))]
        lines.append((">>deu<< " if draw.random() < 0.1 else "") + glue.join(parts))
    return lines
