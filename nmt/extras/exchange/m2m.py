"""Read multilingual models: M2M-100 and NLLB-200, from folders of Hugging Face.

Both (Fan et al. 2021; NLLB Team 2022, ``model_type: m2m_100``) put the tag of a language in front
of each side. A folder has ``config.json``, weights, ``sentencepiece.bpe.model``, and for M2M-100
also ``vocab.json``. The ids of NLLB-200 are fairseq's: four special tokens, then the subwords of
SentencePiece without its own three. Language tokens come after the subwords. Those of NLLB-200 are
named in ``tokenizer.json``, ``tokenizer_config.json``, ``added_tokens.json`` or
``special_tokens_map.json``; those of M2M-100 are always the same.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nmt.errors import CheckpointError
from nmt.extras.exchange.imported import (
    COPY_AGAIN,
    EMBEDDINGS,
    HUGGING_FACE,
    Imported,
    TensorFiles,
    Vocabulary,
    config_of,
    decoding_of,
    load_json,
    read_sentencepiece,
    reading,
    refused,
    tokens_by_id,
    weights_of,
)

# Names of the shared embedding matrix; a file has one or more of them.
_VECTORS = tuple(
    f"model.{x}.weight" for x in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
)
_SENTENCEPIECE = "sentencepiece.bpe.model"
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # in the order of their ids
_TOKENIZERS = ("NllbTokenizer", "M2M100Tokenizer")
# Value of ``language_codes`` -> the languages of M2M-100 in the order of their ids.
_LANGUAGES = tomllib.loads(Path(__file__).with_name("m2m.toml").read_text(encoding="utf-8"))
# A language token of M2M-100, such as __de__, or of NLLB-200, such as deu_Latn.
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})")


def read_m2m(source: Path, settings: Mapping[str, Any]) -> Imported:
    """Read an M2M-100 or NLLB-200 folder of Hugging Face.

    Args:
        source: The folder.
        settings: From `nmt.extras.exchange.imported.read_settings`.

    Raises:
        CheckpointError: A file is missing or damaged, or nmt does not support the model.
    """
    options = load_json(source / "tokenizer_config.json", optional=True)
    name = str(options.get("tokenizer_class") or _TOKENIZERS[0]).removesuffix("Fast")
    if name not in _TOKENIZERS:
        raise refused(f"tokenizer_class: {name}")
    if options.get("legacy_behaviour"):
        raise refused("legacy_behaviour: true (the language token at the end of the source)")
    arrays = TensorFiles(source)
    with reading(source):
        vectors = [arrays[next((name for name in _VECTORS if name in arrays), _VECTORS[0])]] * 2
        # Without this key, a stored output projection is not used, as in transformers.
        ties = settings.get("tie_word_embeddings", True)
        vectors.append(vectors[0] if ties else arrays["lm_head.weight"])
        config = config_of(
            settings,
            norm_position="pre",
            positions="sinusoidal-halves",
            first_position=2,  # fairseq counts from the id of <pad> + 1
            embeddings=EMBEDDINGS[2 + bool(ties)],
            scale_embeddings=settings.get("scale_embedding", True),
            dropout=settings.get("dropout", 0.1),
            attention_dropout=settings.get("attention_dropout", 0.1),
            activation_dropout=settings.get("activation_dropout", 0.0),
        )
        vocabulary = _vocabulary(source, options, len(vectors[0]))
        bias = np.zeros(len(vectors[0]), np.float32)
        weights = weights_of(config, HUGGING_FACE, arrays.__getitem__, vectors, bias)
        # PAD and UNK are never chosen, and do not share the probability, so that both engines can
        # be used. In a trained model their probability is almost 0.
        decoding = decoding_of({"renormalize_logits": True, **settings})
        start = vocabulary.tokens[settings.get("decoder_start_token_id", 2)]
    pair = str(options.get("src_lang")), str(options.get("tgt_lang"))
    is_known = len({*pair}) == 2 and vocabulary.symbols >= {f"<2{code}>" for code in pair}
    languages, sides = pair if is_known else None, (vocabulary, vocabulary)
    return Imported(
        config, weights, *sides, decoding, start, languages=languages, language_tags="both"
    )


def _vocabulary(source: Path, options: Mapping[str, Any], size: int) -> Vocabulary:
    """Read the tokens of all ``size`` rows of the embedding matrix; ``options`` is the tokenizer's.

    Rows without a token get a name that no text contains.
    """
    model = read_sentencepiece(source / _SENTENCEPIECE)
    pieces = [piece.piece for piece in model.pieces]
    if (path := source / "vocab.json").is_file():
        tokens, names = tokens_by_id(load_json(path), path), dict[int, str]()
        codes = _LANGUAGES[options.get("language_codes", "m2m100")].split()
        listed = [f"__{code}__" for code in codes]
    else:
        tokens, names = [*_FAIRSEQ, *pieces[3:]], _added_tokens(source, options)
        if pieces[:3] != ["<unk>", "<s>", "</s>"]:
            raise ValueError(f"{_SENTENCEPIECE} begins with {pieces[:3]}")
        more = load_json(source / "special_tokens_map.json", optional=True)
        listed = [_content(token) for token in more.get("additional_special_tokens", [])]
    if not any(index >= len(tokens) for index in names):
        names = dict(enumerate(listed, len(tokens)))
    matches = {i: _LANGUAGE.fullmatch(token) for i, token in names.items() if i < size}
    symbols = {i: f"<2{match[1] or match[2]}>" for i, match in matches.items() if match}
    for index in range(len(tokens), size):
        tokens.append(symbols.get(index) or names.get(index) or f"madeupword{index}")
    if not symbols:
        raise CheckpointError(f"{source} does not name the language tokens.", fix=COPY_AGAIN)
    return Vocabulary(model, tokens, frozenset(symbols.values()))


def _added_tokens(source: Path, options: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens that are not subwords, by their ids, from the files that list ids."""
    of_fast = load_json(source / "tokenizer.json", optional=True).get("added_tokens", [])
    by_token = load_json(source / "added_tokens.json", optional=True)
    pairs = [(token["id"], token) for token in of_fast]
    pairs += options.get("added_tokens_decoder", {}).items()
    pairs += ((index, token) for token, index in by_token.items())
    return {int(index): _content(token) for index, token in pairs}


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)
