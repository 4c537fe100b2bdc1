"""The export format of the Transformers library: MarianMT, or M2M-100 for models with tags.

The names of weights and settings are those that `nmt.extras.exchange.hugging_face` reads, so that
``nmt import`` restores the model. The tokenizers of Transformers split a text with a SentencePiece
model, and look up the ids of its pieces. They do not clean a text; so the model of the source does.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from typing_extensions import override

from nmt.checkpoint.files import MODEL
from nmt.checkpoint.model_folder import CARD, TOKENIZER, load_folder_config
from nmt.config.inference import InferenceConfig
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.errors import ConfigError, shell_command
from nmt.extras.exchange.ctranslate2 import num_positions
from nmt.extras.exchange.export import HUB_NAME, ExportTarget
from nmt.extras.exchange.hugging_face import (
    FAIRSEQ_SPECIAL,
    LANGUAGE,
    M2M_LANGUAGES,
    SENTENCEPIECE,
    TOKENIZERS,
    model_section,
    search_settings,
    settings_of,
)
from nmt.extras.exchange.imported import (
    EMBEDDINGS,
    HF_CONFIG,
    LAYERS,
    MISSING_BIAS,
    FloatArray,
    Weights,
    original_names,
)
from nmt.extras.exchange.vocabulary import language_tags, with_pieces
from nmt.files.atomic import atomic_folder, write_json
from nmt.files.json_file import Manifest
from nmt.installation import read_toml
from nmt.model.transformer import VOCABULARY_SIDES
from nmt.search.hypothesis import limits_of
from nmt.text import BOS_ID, EOS_ID, NUM_SPECIAL, PAD_ID, UNK_ID
from nmt.text.standalone import standalone_model
from nmt.text.tokenizer import JOINT, SOURCE, TARGET, Tokenizers, load_tokenizers

logger = logging.getLogger(__name__)

_MARIAN = "marian"
_M2M = "m2m_100"
_DATA = read_toml(__file__, "transformers.toml")
# Names of special ids in config.json and generation_config.json -> our ids.
_IDS = {
    "bos": BOS_ID,
    "pad": PAD_ID,
    "eos": EOS_ID,
    "decoder_start": BOS_ID,
    "forced_eos": EOS_ID,
}
_Rows = Sequence[Sequence[int]]  # Our ids in the order of Transformers: of source and target.


class TransformersTarget(ExportTarget):
    """Converts a model to a folder of the Transformers library."""

    archive_suffix = ""  # a folder
    library_name = "transformers"

    @override
    def adapt(self, config: InferenceConfig) -> InferenceConfig:
        model = config.model
        model_type = _M2M if config.language_tags else _MARIAN
        has_tags = model_type == _M2M
        embeddings = EMBEDDINGS[has_tags or model.shares_inputs, model.ties_output]
        needed = model_section(settings_of(model, model_type), embeddings)
        keys = []
        if config.language_tags not in (None, "both"):
            keys.append("data.language_tags both")
        for name in _DATA["architecture"]:
            value = getattr(needed, name)
            if getattr(model, name) not in (value, None):
                keys.append(f"model.{name} {json.dumps(value)}")
        if keys:
            raise _refused(model_type, ", ".join(keys))
        options = config.decoding.model_dump(include=set(_DATA["decoding"]))
        if has_tags:  # no bias makes BOS improbable
            options["keep_special_mass"] = False
        return config.model_copy(update={"decoding": DecodingConfig(**options)})

    @override
    def pack(self, folder: Path, output: Path, valid_targets: Sequence[str]) -> None:
        del valid_targets
        config = load_folder_config(folder)
        weights = load_file(folder / MODEL)
        tokenizers = load_tokenizers(folder / TOKENIZER)
        model_type = _M2M if config.language_tags else _MARIAN
        with atomic_folder(output) as new:
            write_vocabulary = _write_m2m if model_type == _M2M else _write_marian
            rows, tokenizer = write_vocabulary(folder / TOKENIZER, new, config, tokenizers, weights)
            source_ids, target_ids = rows
            ids = {f"{name}_token_id": target_ids.index(our_id) for name, our_id in _IDS.items()}
            limit = limits_of(config.max_length, config.decoding).longest
            search = {**ids, **search_settings(config.decoding, limit)}
            search["suppress_tokens"] = [target_ids.index(i) for i in (PAD_ID, UNK_ID, BOS_ID)]
            tag_id = tokenizers.target.tags.get(f"<2{config.target_language}>")
            if tag_id is not None:
                search["forced_bos_token_id"] = target_ids.index(tag_id)
            settings = {
                "architectures": [_DATA["classes"][model_type]],
                **settings_of(config.model, model_type),
                **ids,
                "vocab_size": len(source_ids),
                "decoder_vocab_size": len(target_ids),
                "max_position_embeddings": num_positions(config),
            }
            write_json(new / HF_CONFIG, settings)
            write_json(new / "generation_config.json", search)
            write_json(new / "tokenizer_config.json", {**_DATA["tokenizer"], **tokenizer})
            tensors = _tensors(config.model, weights, rows)
            save_file(tensors, new / MODEL, {"format": "pt"})
            (new / MODEL).chmod(0o644)  # safetensors writes files that only their owner can read
            shutil.copyfile(folder / CARD, new / CARD)
            names = [path.name for path in new.iterdir()]
            Manifest.of(new, sorted(names), Manifest.read(folder).step).write(new)
        logger.info("next: %s", shell_command("push", output, HUB_NAME))


def _refused(model_type: str, needs: str) -> ConfigError:
    return ConfigError(
        f"{_DATA['classes'][model_type]} of Transformers needs {needs}.",
        fix="Train a model of one direction with `model.preset` marian, or with these values.",
    )


def _write_marian(
    folder: Path, new: Path, config: InferenceConfig, tokenizers: Tokenizers, _: Weights
) -> tuple[_Rows, dict[str, Any]]:
    """Write the files of a MarianTokenizer, whose ids are ours; return its settings."""
    has_two = not config.model.shares_inputs
    rows = [range(size) for size in tokenizers.vocab_sizes]
    _write_ids(new / "vocab.json", tokenizers.source.subwords(rows[0]))
    if has_two:
        _write_ids(new / "target_vocab.json", tokenizers.target.subwords(rows[1]))
    source, target = (JOINT, JOINT) if tokenizers.is_joint else (SOURCE, TARGET)
    model = standalone_model(folder / source, tokenizers.source.for_translation())
    (new / "source.spm").write_bytes(model)
    shutil.copyfile(folder / target, new / "target.spm")
    return rows, {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.source_language,
        "target_lang": config.target_language,
        "separate_vocabs": has_two,
    }


def _write_m2m(
    folder: Path, new: Path, config: InferenceConfig, tokenizers: Tokenizers, weights: Weights
) -> tuple[_Rows, dict[str, Any]]:
    """Write the files of an M2M100Tokenizer or NllbTokenizer; return its settings.

    Raises:
        ConfigError: Neither tokenizer has these languages, or the model has an output bias.
    """
    reader = tokenizers.source.for_translation()
    model = ModelProto.FromString(standalone_model(folder / JOINT, reader))
    tags = language_tags(model)
    codes = [tag[2:-1] for tag in tags]
    all_ids = range(NUM_SPECIAL, len(model.pieces))
    plain_ids = [index for index in all_ids if index not in tags.values()]
    bias = weights.get("output_bias", np.zeros(len(model.pieces)))
    # M2M-100 has no rows for subwords that only SentencePiece has.
    known_ids = [index for index in plain_ids if bias[index] != MISSING_BIAS]
    lists = [name for name, listed in M2M_LANGUAGES.items() if codes == listed.split()]
    has_codes = lists or all(map(LANGUAGE.fullmatch, codes))
    if bias[known_ids].any() or not has_codes:
        raise _refused(_M2M, "model.output_bias false and the languages of NLLB-200 or M2M-100")
    pieces = [model.pieces[index] for index in (UNK_ID, BOS_ID, EOS_ID, *plain_ids)]
    plain_model = with_pieces(model, pieces)
    spec = plain_model.trainer_spec
    spec.unk_id = 0
    spec.bos_id = 1
    spec.eos_id = 2
    spec.pad_id = -1
    (new / SENTENCEPIECE).write_bytes(plain_model.SerializeToString(deterministic=True))
    tokens = [*FAIRSEQ_SPECIAL, *tokenizers.target.subwords(known_ids)]
    settings: dict[str, Any] = {"tokenizer_class": TOKENIZERS[bool(lists)]}
    if lists:
        settings["language_codes"] = lists[0]
        _write_ids(new / "vocab.json", tokens)
    else:
        settings["additional_special_tokens"] = codes
        added_tokens = settings["added_tokens_decoder"] = {}
        for index, code in enumerate(codes, len(tokens)):
            added_tokens[index] = {"content": code, "special": True}
    source, target = config.languages
    if source in codes:
        settings |= {"src_lang": source, "tgt_lang": target}
    ids = [BOS_ID, PAD_ID, EOS_ID, UNK_ID, *known_ids, *tags.values()]  # the special ids of fairseq
    return [ids, ids], settings


def _write_ids(path: Path, tokens: Sequence[str]) -> None:
    write_json(path, {token: index for index, token in enumerate(tokens)})


def _tensors(config: ModelConfig, weights: Weights, rows: _Rows) -> dict[str, FloatArray]:
    """Return the weights by their names in Transformers."""
    layout = LAYERS["hugging_face"]
    matrix_names = dict(layout["matrices"])
    if config.shares_inputs:
        matrix_names["source_vectors"] = layout["shared_vectors"]
    tensors = {}
    for our_name, names in matrix_names.items():
        if our_name in weights:
            ids = rows[VOCABULARY_SIDES[our_name]]
            tensors[names[0]] = weights[our_name][[*ids]]
    if config.norm_position == "post":  # MarianMT
        zeros = np.zeros(len(rows[1]), np.float32)
        tensors["final_logits_bias"] = weights.get("output_bias", zeros)[None]  # (1, V)
    for our_name, names in original_names(config, "hugging_face").items():
        for kind in ("weight", "bias"):
            parts = np.split(weights[f"{our_name}.{kind}"], len(names))
            for name, part in zip(names, parts, strict=True):
                tensors[f"{name}.{kind}"] = np.ascontiguousarray(part)
    return tensors
