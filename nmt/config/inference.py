"""The part of a configuration that a trained model needs to translate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from nmt.config.data import (
    Direction,
    FilterConfig,
    LanguageCode,
    LanguageTags,
    TokenizerConfig,
    chosen_tags,
)
from nmt.config.filling import section_of
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.section import Count, FilePath, Many, Section

LANGUAGE_KEYS = ("source_language", "target_language")
# Keys of the section `data` that `nmt prepare` counts, if they are null.
LINE_LIMITS = ("max_sentences", "max_characters")
# Keys with the same name and meaning in the whole configuration.
_COPIED = ("name", *LANGUAGE_KEYS, "tokenizer", "model", "decoding")


class InferenceConfig(Section):
    """What translating needs: the section ``inference`` of a model folder.

    Args:
        name: Name of the experiment.
        source_language: Language code of the source.
        target_language: Language code of the target.
        directions: Source and target language of each training corpus, without repetitions.
        language_tags: Place of the language tags; null without tags.
        always_tagged: Whether every training corpus has a tag.
        max_length: Maximum length of a training sentence, in subwords. Longer lines are split.
        max_sentences: Most sentences of a line that is translated as a whole.
        max_characters: Most characters of a line of several sentences that is translated as a
            whole; null: no limit.
        tokenizer: The tokenizers, whose files are in the folder.
        model: The architecture.
        decoding: Default options of the search.
        base_model: Folder of the base model, if the weights are adapters.
    """

    name: str
    source_language: LanguageCode
    target_language: LanguageCode
    directions: Many[Direction] = Field(min_length=1)
    language_tags: LanguageTags | None = None
    always_tagged: bool = False
    max_length: Count = FilterConfig().max_length
    max_sentences: Count = 1
    max_characters: Count | None = None
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    decoding: DecodingConfig = DecodingConfig()
    base_model: FilePath | None = None

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of the source and the target language of the run."""
        return self.source_language, self.target_language


def inference_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an `InferenceConfig` from those of a whole configuration.

    Nothing is validated, and other keys of the configuration may have any value.

    >>> values = {"source_language": "de", "data": {"train": [{"target_language": "fr"}]}}
    >>> inference_section(values)["directions"]
    [('de', 'fr')]
    """
    data = section_of(values, "data")
    training = section_of(values, "training")
    corpora = [*_sections(data, "train"), *_sections(section_of(data, "replay"), "train")]
    directions = list[tuple[Any, Any]]()
    for corpus in corpora:
        # A corpus without languages has those of the run.
        source, target = (corpus.get(key) or values.get(key) for key in LANGUAGE_KEYS)
        if (source, target) not in directions:
            directions.append((source, target))
    section = {key: values[key] for key in _COPIED if values.get(key) is not None}
    section["directions"] = directions
    # Not validated: a target language may be missing or of another type.
    well_formed = [(source, target) for source, target in directions if isinstance(target, str)]
    section["language_tags"] = chosen_tags(data.get("language_tags"), well_formed)
    section["always_tagged"] = bool(corpora) and all(corpus.get("tag") for corpus in corpora)
    for key in LINE_LIMITS:
        if data.get(key) is not None:
            section[key] = data[key]
    filters = section_of(values, "filters")
    if "max_length" in filters:
        section["max_length"] = filters["max_length"]
    if training.get("lora") is not None:
        section["base_model"] = training.get("init_from")
    return section


def _sections(values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the sections in the list at a key; empty if the key has no list."""
    items = values.get(key)
    if not isinstance(items, list):
        return []
    return [item for item in items if isinstance(item, Mapping)]
