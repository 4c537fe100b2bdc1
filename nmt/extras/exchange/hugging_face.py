"""Folders of Hugging Face: MarianMT, M2M-100 and NLLB-200; `transformers` writes them.

A MarianMT folder has ``config.json``, weights, two SentencePiece models and ``vocab.json``. Old
folders contain ``pytorch_model.bin``, a pickle; nmt reads only the weights and runs no code from
the file. No other part of nmt reads pickles.

M2M-100 and NLLB-200 (Fan et al. 2021; NLLB Team 2022, ``model_type: m2m_100``) put the tag of a
language in front of each side. A folder has ``config.json``, weights, ``sentencepiece.bpe.model``,
and for M2M-100 also ``vocab.json``. The ids of NLLB-200 are fairseq's: four special tokens, then
the subwords of SentencePiece without its own three. Language tokens come after the subwords. Those
of NLLB-200 are named in ``tokenizer.json``, ``tokenizer_config.json``, ``added_tokens.json`` or
``special_tokens_map.json``; those of M2M-100 are always the same.
"""

from __future__ import annotations

import logging
import re
import zipfile
from collections.abc import Callable, Mapping
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file
from torch import Tensor
from typing_extensions import TypedDict

from nmt.config.data import ANY_LANGUAGE, LANGUAGE_CODE
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.extras.exchange.imported import (
    ACTIVATIONS,
    EMBEDDINGS,
    LAYERS,
    FloatArray,
    Imported,
    Vocabulary,
    config_of,
    floats,
    load_json,
    piece_texts,
    read_sentencepiece,
    read_settings,
    reading,
    refused,
    tokens_by_id,
    weight_files,
    weights_of,
)
from nmt.files.foreign import MAX_RATIO, check_weights, damaged
from nmt.installation import read_toml

_Json = Mapping[str, Any]


class _Token(TypedDict):
    content: str


class _TokenWithId(_Token):
    id: int


class _TokenizerConfig(TypedDict, total=False):
    """What is read of tokenizer_config.json."""

    tokenizer_class: str | None
    legacy_behaviour: bool | None
    source_lang: str | None
    target_lang: str | None
    src_lang: str | None
    tgt_lang: str | None
    language_codes: str
    added_tokens_decoder: dict[int, _Token | str]


class _TokenizerFile(TypedDict, total=False):
    """What is read of tokenizer.json."""

    added_tokens: list[_TokenWithId]


class _SpecialTokens(TypedDict, total=False):
    """What is read of special_tokens_map.json."""

    additional_special_tokens: list[_Token | str]


# Settings of a search that have the same name and meaning in Hugging Face.
_SEARCH_KEYS = ("length_penalty", "no_repeat_ngram_size", "repetition_penalty")
SENTENCEPIECE = "sentencepiece.bpe.model"
FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # in the order of their ids
TOKENIZERS = ("NllbTokenizer", "M2M100Tokenizer")  # The first is the default.
logger = logging.getLogger(__name__)
# Value of ``language_codes`` -> the languages of M2M-100 in the order of their ids.
M2M_LANGUAGES = read_toml(__file__, "m2m.toml")
_TENSORS = TypeAdapter(dict[str, Tensor], config={"arbitrary_types_allowed": True})
# A language token of M2M-100, such as __de__, or of NLLB-200, such as deu_Latn.
LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})")


def read_hugging_face(source: Path) -> Imported:
    """Read a MarianMT, M2M-100 or NLLB-200 folder.

    Raises:
        CheckpointError: A file is missing or damaged, or nmt does not support the model.
    """
    settings = read_settings(source)
    tokenizer = load_json(source / "tokenizer_config.json", _TokenizerConfig, optional=True)
    subwords = {*FAIRSEQ_SPECIAL, "<mask>"}
    if (source / "vocab.json").is_file():
        subwords.update(_read_tokens(source / "vocab.json"))
    added_tokens = _added_tokens(source, tokenizer).values()
    names = sorted(filterfalse(LANGUAGE.fullmatch, {*added_tokens} - subwords))
    if names:
        logger.warning(
            "%s: tokens were added to the vocabulary; nmt reads them as ordinary text: %s",
            source,
            ", ".join(names[:10]),
        )
    if settings["model_type"] == "m2m_100":
        return _read_m2m(source, settings, tokenizer)
    return _read_marian_mt(source, settings, tokenizer)


def _read_marian_mt(source: Path, settings: _Json, tokenizer: _Json) -> Imported:
    """Read a MarianMT folder; ``settings`` and ``tokenizer`` are its JSON files."""
    read_tensor = _tensor_reader(source)
    source_tokens = _read_tokens(source / "vocab.json")
    target_tokens = source_tokens
    if (source / "target_vocab.json").is_file():
        target_tokens = _read_tokens(source / "target_vocab.json")
    source_side = Vocabulary.read(source / "source.spm", source_tokens)
    target_side = Vocabulary.read(source / "target.spm", target_tokens)
    with reading(source):
        start_id: Any = settings.get("decoder_start_token_id", settings.get("pad_token_id"))
        if start_id not in range(len(target_tokens)):
            raise ValueError(f"decoder_start_token_id {start_id} is not a token")
        # Compare shared matrices, because the versions of the library interpret the configuration
        # differently.
        names = LAYERS["hugging_face"]["matrices"].values()
        matrices = [read_tensor(*matrix_names) for matrix_names in names]
        source_vectors, target_vectors, output_vectors = matrices
        has_one_vocabulary = source_tokens == target_tokens
        shares_inputs = has_one_vocabulary and np.array_equal(source_vectors, target_vectors)
        ties_output = np.array_equal(output_vectors, target_vectors)
        config = model_section(settings, EMBEDDINGS[shares_inputs, ties_output])
        bias = read_tensor("final_logits_bias")
        weights = weights_of(config, "hugging_face", read_tensor, matrices, bias)
        decoding = _decoding_of(settings)
    source_code = _code_of(tokenizer.get("source_lang"))
    target_code = _code_of(tokenizer.get("target_lang"))
    languages = None
    if source_code and target_code and source_code != target_code:
        languages = (source_code, target_code)
    return Imported(
        config,
        weights,
        source_side,
        target_side,
        decoding,
        start=target_tokens[start_id],
        languages=languages,
    )


def model_section(settings: _Json, embeddings: str) -> ModelConfig:
    """Return the model section of a MarianMT or M2M-100 model.

    Args:
        settings: Contents of ``config.json``.
        embeddings: Value of the option ``embeddings``.
    """
    model_type = settings["model_type"]
    layout = LAYERS["hugging_face"]
    return config_of(
        "hugging_face",
        {**layout["defaults"][model_type], **settings},
        settings.get("activation_function") or "relu",
        embeddings=embeddings,
        **layout["fixed"][model_type],
    )


def settings_of(config: ModelConfig, model_type: str) -> dict[str, Any]:
    """Return the contents of ``config.json``, from which `model_section` restores ``config``.

    Options that the class of ``model_type`` lacks are ignored.
    """
    names = LAYERS["hugging_face"]["options"]
    activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    return {
        **{name: getattr(config, our_name) for our_name, name in names.items()},
        "model_type": model_type,
        "decoder_ffn_dim": config.decoder_ff,
        "decoder_attention_heads": config.num_heads,
        "activation_function": activations.get(config.activation),
        "share_encoder_decoder_embeddings": config.shares_inputs,
        "tie_word_embeddings": config.ties_output,
    }


def _code_of(language: str | None) -> str:
    """Return the code of a language in a tokenizer's configuration; empty if it is missing."""
    # A group of languages, such as ROMANCE or deu+eng+fra, has no code of its own.
    if language and not re.fullmatch(LANGUAGE_CODE, language):
        return ANY_LANGUAGE
    return language or ""


def _read_m2m(source: Path, settings: _Json, tokenizer: _Json) -> Imported:
    """Read an M2M-100 or NLLB-200 folder; ``settings`` and ``tokenizer`` are its JSON files."""
    tokenizer_class = str(tokenizer.get("tokenizer_class") or TOKENIZERS[0]).removesuffix("Fast")
    if tokenizer_class not in TOKENIZERS:
        raise refused(f"tokenizer_class: {tokenizer_class}")
    if tokenizer.get("legacy_behaviour"):
        raise refused("legacy_behaviour: true (the language token at the end of the source)")
    read_tensor = _tensor_reader(source)
    with reading(source):
        vectors = read_tensor(*LAYERS["hugging_face"]["shared_vectors"])
        output_vectors = vectors
        # Without this key, a stored output projection is not used, as in transformers.
        ties_output = bool(settings.get("tie_word_embeddings", True))
        if not ties_output:
            output_vectors = read_tensor("lm_head.weight")
        config = model_section(settings, EMBEDDINGS[True, ties_output])
        vocabulary = _read_m2m_vocabulary(source, tokenizer, len(vectors))
        bias = np.zeros(len(vectors), np.float32)
        matrices = (vectors, vectors, output_vectors)
        weights = weights_of(config, "hugging_face", read_tensor, matrices, bias)
        # PAD and UNK are never chosen, and do not share the probability, so that both engines can
        # be used. In a trained model their probability is almost 0.
        decoding = _decoding_of({"renormalize_logits": True, **settings})
        start = vocabulary.tokens[settings.get("decoder_start_token_id", 2)]
    source_code = str(tokenizer.get("src_lang"))
    target_code = str(tokenizer.get("tgt_lang"))
    tags = {f"<2{source_code}>", f"<2{target_code}>"}
    languages = (ANY_LANGUAGE, ANY_LANGUAGE)
    if len(tags) == 2 and tags <= vocabulary.symbols:
        languages = (source_code, target_code)
    return Imported(
        config,
        weights,
        vocabulary,
        vocabulary,
        decoding,
        start=start,
        languages=languages,
        language_tags="both",
    )


def _read_m2m_vocabulary(source: Path, tokenizer: _Json, num_rows: int) -> Vocabulary:
    """Read the tokens of all rows of the embedding matrix.

    The tokens are special tokens and subwords, then languages. Rows without a token get a name that
    no text contains.

    Args:
        source: The folder of the model.
        tokenizer: Contents of ``tokenizer_config.json``.
        num_rows: Number of rows of the embedding matrix.
    """
    model = read_sentencepiece(source / SENTENCEPIECE)
    added_tokens = dict[int, str]()  # Id -> token that is not a subword.
    if (source / "vocab.json").is_file():
        tokens = _read_tokens(source / "vocab.json")
        codes = M2M_LANGUAGES[tokenizer.get("language_codes", "m2m100")].split()
        listed_tokens = [f"__{code}__" for code in codes]
    else:
        pieces = piece_texts(model)
        tokens = [*FAIRSEQ_SPECIAL, *pieces[3:]]
        added_tokens = _added_tokens(source, tokenizer)
        if pieces[:3] != ["<unk>", "<s>", "</s>"]:  # those that fairseq's own tokens replace
            raise ValueError(f"{SENTENCEPIECE} begins with {pieces[:3]}")
        special = load_json(source / "special_tokens_map.json", _SpecialTokens, optional=True)
        listed_tokens = [_content(token) for token in special.get("additional_special_tokens", [])]
    # If no file gives ids to tokens after the subwords, these are the tokens of a list, in order.
    if all(index < len(tokens) for index in added_tokens):
        added_tokens = dict(enumerate(listed_tokens, len(tokens)))
    language_tags = {}  # Id of a language token -> its tag in nmt.
    for index, token in added_tokens.items():
        match = LANGUAGE.fullmatch(token)
        if match and index < num_rows:
            language_tags[index] = f"<2{match[1] or match[2]}>"
    for index in range(len(tokens), num_rows):
        token = added_tokens.get(index) or f"madeupword{index}"
        tokens.append(language_tags.get(index, token))
    if not language_tags:
        raise damaged(f"{source} does not name the language tokens.")
    return Vocabulary(model, tokens, frozenset(language_tags.values()))


def _added_tokens(source: Path, tokenizer: _Json) -> dict[int, str]:
    """Return the tokens that are not subwords, by their ids, from the files that list ids.

    In these files, a token is a string, or an object: see `_content`. If files contradict each
    other, the last one counts.
    """
    tokenizer_file = load_json(source / "tokenizer.json", _TokenizerFile, optional=True)
    ids_by_token = load_json(source / "added_tokens.json", dict[str, int], optional=True)
    tokens = [(token["id"], token) for token in tokenizer_file.get("added_tokens", [])]
    tokens += tokenizer.get("added_tokens_decoder", {}).items()
    tokens += [(index, token) for token, index in ids_by_token.items()]
    return {index: _content(token) for index, token in tokens}


def _content(token: Any) -> str:
    """Return the text of a token, which is a string, or an object with the key ``content``."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def _tensor_reader(folder: Path) -> Callable[..., FloatArray]:
    """Return a function that reads the first of several tensors that a model has, in float32.

    The files stay mapped into memory, and each tensor is read when used. The function raises a
    KeyError if no file has any of the tensors.

    Raises:
        CheckpointError: A file is damaged, or there are no weights in a supported format.
    """
    tensors = dict[str, Tensor]()
    names = [path.name for path in folder.iterdir()]
    for name in weight_files(folder, names):
        path = folder / name
        with reading(path):
            check_weights(path)
            if path.suffix == ".safetensors":
                stored = load_file(path)
            else:  # files of torch before 1.6 are not archives, and cannot be mapped
                is_zip = zipfile.is_zipfile(path)
                loaded = torch.load(path, "cpu", weights_only=True, mmap=is_zip)
                stored = _TENSORS.validate_python(loaded)
            # A tensor may be a view of memory many times smaller than itself. One matrix may have
            # several names.
            if sum(tensor.nbytes for tensor in stored.values()) > MAX_RATIO * path.stat().st_size:
                raise ValueError("its tensors would be far larger than the file")
            tensors |= stored

    def read_tensor(*names: str) -> FloatArray:
        name = next(filter(tensors.__contains__, names), names[0])  # the latter: a KeyError
        tensor = tensors[name]
        if tensor.is_floating_point():
            tensor = tensor.float()  # numpy lacks bfloat16
        return floats(name, tensor.numpy())

    return read_tensor


def search_settings(decoding: DecodingConfig, limit: int) -> dict[str, Any]:
    """Return the search options of ``generation_config.json``; `_decoding_of` reads them.

    Args:
        decoding: The decoding section.
        limit: Tokens of the longest translation, with EOS. Not read if it depends on the source.
    """
    settings = {key: getattr(decoding, key) for key in _SEARCH_KEYS}
    settings["num_beams"] = decoding.beam_size
    settings["early_stopping"] = decoding.patience <= 1
    settings["renormalize_logits"] = not decoding.keep_special_mass
    if decoding.max_length_factor:
        settings["max_new_tokens"] = limit
    else:
        settings["max_length"] = limit + 1  # with the start token
    return settings


def _decoding_of(settings: _Json) -> DecodingConfig:
    """Convert search options, from `read_settings`, to a decoding section."""
    options: dict[str, Any] = {"beam_size": settings.get("num_beams") or 1}
    for key in _SEARCH_KEYS:
        value = settings.get(key)
        if value is not None:
            options[key] = value
    max_length = settings.get("max_length")
    if max_length:
        options["max_length_factor"] = 0
        options["max_length_offset"] = max(max_length - 2, 1)  # without the start token and EOS
    return DecodingConfig(
        # Renormalized, the other tokens share the probability of PAD, as in a search of nmt.
        keep_special_mass=not settings.get("renormalize_logits"),
        # Without early stopping (False or "never"), a search goes on for better hypotheses when the
        # first K are finished: here, until there are 2 K of them.
        patience=1.0 if settings.get("early_stopping") is True else 2.0,
        **options,
    )


def _read_tokens(path: Path) -> list[str]:
    return tokens_by_id(load_json(path, dict[str, int]), path)
