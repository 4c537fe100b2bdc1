"""The export format of Argos Translate and LibreTranslate.

A package is a zip archive of a folder with a CTranslate2 model, a SentencePiece model and
``metadata.json``. Argos Translate splits a source with the SentencePiece model, and joins the
pieces of an output with the same model. It does not clean a source, and does not add a tag to it.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from nmt.checkpoint.model_folder import CARD, TOKENIZER, ModelBundle, load_folder_config
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import primary_code, standard_language
from nmt.errors import ConfigError, join_words
from nmt.extras.exchange.ctranslate2 import IMPOSSIBLE, MODEL, CTranslate2Target
from nmt.files.atomic import open_output
from nmt.text.standalone import standalone_model
from nmt.text.tokenizer import JOINT, SOURCE, load_tokenizers

logger = logging.getLogger(__name__)

_VERSION = "1.0"  # of the package
_ARGOS_VERSION = "1.9"  # from this version on, a package needs no model for sentence boundaries
# Codes that differ from the standard.
_CODES = {"zh-Hant": "zt", "zh-TW": "zt", "pt-BR": "pb"}
_INSTALL = "from argostranslate.package import install_from_path as i; i(%r)"


class ArgosTarget(CTranslate2Target):
    """Converts a model of one direction to a package of Argos Translate."""

    archive_suffix = ".argosmodel"
    dtypes: Sequence[str] = ("int8", *CTranslate2Target.dtypes)

    @override
    def adapt(self, config: InferenceConfig) -> InferenceConfig:
        if config.language_tags is not None:
            raise ConfigError(
                "Argos Translate does not write language tags, and this model needs them.",
                fix="Train a model of one direction, for example with `nmt distill`.",
            )
        return super().adapt(config)

    @override
    def adjust(self, spec: Any, bundle: ModelBundle) -> None:
        # Older versions of Argos Translate show bytes as they are spelled, such as <0xE5>.
        tokenizer = bundle.tokenizers.target
        projection = spec.decoder.projection
        if not hasattr(projection.bias, "dtype"):  # a text of CTranslate2, if there is no bias
            projection.bias = np.zeros(tokenizer.vocab_size, np.float32)
        is_byte = [tokenizer.is_fallback(index) for index in range(tokenizer.vocab_size)]
        projection.bias[is_byte] = IMPOSSIBLE

    @override
    def pack(self, folder: Path, output: Path, valid_targets: Sequence[str]) -> None:
        config = load_folder_config(folder)
        tokenizers = load_tokenizers(folder / TOKENIZER)
        model = JOINT if tokenizers.is_joint else SOURCE
        codes = [_argos_code(code) for code in config.languages]
        from_name, to_name = map(_english_name, config.languages)
        metadata = {
            "package_version": _VERSION,
            "argos_version": _ARGOS_VERSION,
            "from_code": codes[0],
            "from_name": from_name,
            "to_code": codes[1],
            "to_name": to_name,
        }
        _, _, text = (folder / CARD).read_text(encoding="utf-8").split("---\n", 2)
        contents = {
            "metadata.json": json.dumps(metadata, indent=4).encode(),
            "README.md": text.encode(),
            "sentencepiece.model": standalone_model(
                folder / TOKENIZER / model, tokenizers.source.for_translation()
            ),
        }
        for path in (folder / MODEL, *folder.glob("*vocabulary.json"), folder / "config.json"):
            contents[f"model/{path.name}"] = path.read_bytes()
        root = f"translate-{codes[0]}_{codes[1]}-{_VERSION.replace('.', '_')}"
        with open_output(output) as stream, zipfile.ZipFile(stream, "w") as archive:
            for name, content in contents.items():
                archive.writestr(f"{root}/{name}", content, zipfile.ZIP_DEFLATED)
        is_byte = tokenizers.target.is_fallback
        all_ids = tokenizers.target.encode_batch(valid_targets)
        num_spelled = sum(any(map(is_byte, ids)) for ids in all_ids)
        if num_spelled:
            text = "%s of %s validation targets have characters that only bytes spell; Argos "
            text += "Translate cannot show bytes, so the package does not write them"
            logger.warning(text, f"{num_spelled:,}", f"{len(valid_targets):,}")
        command = join_words(["python", "-c", _INSTALL % str(output)])
        logger.info("next, where Argos Translate or LibreTranslate is installed: %s", command)


def _argos_code(code: str) -> str:
    """Return the code of a language in Argos Translate.

    >>> [_argos_code(code) for code in ("deu_Latn", "zh-TW", "pt-BR")]
    ['de', 'zt', 'pb']
    """
    return _CODES.get(code, primary_code(code))


def _english_name(code: str) -> str:
    language = standard_language(code)
    return language.display_name() if language else code
