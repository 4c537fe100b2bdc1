"""The whole configuration: sections, and rules between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from langcodes import Language
from pydantic import ConfigDict, Field, field_validator, model_validator

from nmt.config.data import (
    ANNOTATION,
    PLACEHOLDER,
    BatchConfig,
    CorpusConfig,
    DataConfig,
    Direction,
    FilterConfig,
    LanguageCode,
    LanguageTags,
    TokenizerConfig,
    chosen_tags,
    tag_symbol,
    tagged_languages,
)
from nmt.config.filling import filled_in, section_of
from nmt.config.inference import LANGUAGE_KEYS, InferenceConfig
from nmt.config.language_codes import first_spelling, is_spelling, matching
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.section import Binds, BindsData, BindsRun, FilePath, Free, Section
from nmt.config.training import TrainingConfig
from nmt.errors import ConfigError

# Country codes that are often mistaken for language codes.
_COUNTRIES = ("cn", "cz", "dk", "gr", "jp", "ua", "vn")
_FLORES = re.compile("[a-z]{3}_[A-Z][a-z]{3}")


def name_of_folder(folder: Path) -> str:
    """Return a valid name of an experiment that is similar to the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._") or "model"


class RunConfig(Section):
    """One experiment, from text files to an evaluated model.

    Args:
        name: Name of the experiment, used for its folders.
        source_language: Language code of the source, for example ``de``.
        target_language: Language code of the target, for example ``en``.
        prepared_dir: Folder of the prepared data.
        run_dir: Run folder: checkpoints, logs, report.
    """

    # A file can omit ``training``; `load_config` fills it in.
    model_config = ConfigDict(json_schema_extra=lambda x: x["required"].remove("training"))

    name: Free[str]
    source_language: Annotated[LanguageCode, Binds("data", "run")]
    target_language: Annotated[LanguageCode, Binds("data", "run")]
    prepared_dir: Free[FilePath] = Field(Path(), json_schema_extra={"default": "prepared/<name>"})
    run_dir: Free[FilePath] = Field(Path(), json_schema_extra={"default": "runs/<name>"})
    data: DataConfig
    tokenizer: BindsData[TokenizerConfig] = TokenizerConfig()
    filters: BindsData[FilterConfig] = FilterConfig()
    batch: BindsRun[BatchConfig] = BatchConfig()
    model: BindsRun[ModelConfig] = ModelConfig()
    training: TrainingConfig
    decoding: Free[DecodingConfig] = DecodingConfig()

    @property
    def languages(self) -> dict[str, str]:
        """The language codes of the run by key."""
        return {key: getattr(self, key) for key in LANGUAGE_KEYS}

    @property
    def language_codes(self) -> dict[str, str]:
        """The language codes of the run and of the corpora, by key."""
        codes = self.languages
        for corpus_key, corpus in self.data.corpora.items():
            for key in LANGUAGE_KEYS:
                code = getattr(corpus, key)
                if code:
                    codes[f"{corpus_key}.{key}"] = code
        return codes

    def direction(self, corpus: CorpusConfig) -> Direction:
        """Return the languages of a corpus, spelled as in the first place of the configuration."""
        source, target = corpus.direction((self.source_language, self.target_language))
        codes = self.language_codes.values()
        return Direction(first_spelling(source, codes), first_spelling(target, codes))

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The different directions of the training corpora, in their order."""
        return tuple(dict.fromkeys(map(self.direction, self.data.training)))

    @property
    def language_tags(self) -> LanguageTags | None:
        """Place of the language tags (`DataConfig.language_tags`); None without tags."""
        return chosen_tags(self.data.language_tags, self.directions)

    @property
    def inference(self) -> InferenceConfig:
        """What translating with a model of this run needs."""
        return InferenceConfig(
            name=self.name,
            source_language=self.source_language,
            target_language=self.target_language,
            directions=self.directions,
            language_tags=self.language_tags,
            always_tagged=all(corpus.tag for corpus in self.data.training),
            max_length=self.filters.max_length,
            max_sentences=self.data.max_sentences or 1,
            max_characters=self.data.max_characters,
            tokenizer=self.tokenizer,
            model=self.model,
            decoding=self.decoding,
            base_model=self.training.init_from if self.training.lora else None,
        )

    @property
    def tag_symbols(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The user-defined symbols of a new source (or joint) and a new target vocabulary.

        They are the tags of languages, then ``tokenizer.user_defined_symbols`` or, by default and
        only in the source, the tags of the corpora; and `PLACEHOLDER` and `ANNOTATION` if the model
        learns them.
        """
        source_symbols = list[str]()
        target_symbols = list[str]()
        for direction in self.directions:
            source, target = tagged_languages(self.language_tags, direction)
            if source:
                source_symbols.append(f"<2{source}>")
            if target:
                target_symbols.append(f"<2{target}>")
        if self.tokenizer.joint:
            source_symbols += target_symbols
        user_symbols = list(self.tokenizer.user_defined_symbols)
        corpus_tags = [corpus.symbol for corpus in self.data.training if corpus.symbol]
        source_symbols += user_symbols or corpus_tags
        target_symbols += user_symbols
        if self.data.placeholders.share:
            source_symbols.append(PLACEHOLDER)
            target_symbols.append(PLACEHOLDER)
        if self.data.glossary.share:
            source_symbols += ANNOTATION
        # Without repetitions.
        return tuple(dict.fromkeys(source_symbols)), tuple(dict.fromkeys(target_symbols))

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("use letters, digits, dots, hyphens and underscores only")
        return value

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Add folders named after the experiment, and a value that follows another one."""
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        if "recipe" in values and values["recipe"] is None:
            del filled["recipe"]  # config.yaml of nmt 0.1 has this key and no format number
        name = values.get("name")
        if isinstance(name, str):
            filled.setdefault("prepared_dir", f"prepared/{name}")
            filled.setdefault("run_dir", f"runs/{name}")
        placeholders = section_of(section_of(filled, "data"), "placeholders")
        if placeholders.get("patterns"):
            protect = {"protect": placeholders["patterns"]}
            filled = filled_in(filled, {"decoding": protect})
        tokenizer = filled.get("tokenizer")
        if isinstance(tokenizer, Mapping) and tokenizer.get("joint") is False:
            # Two vocabularies cannot share one matrix, so the usual choice is impossible.
            filled = filled_in(filled, {"model": {"embeddings": "decoder-tied"}})
        return filled

    def _disagreements(self) -> Iterator[str]:
        yield from self._wrong_languages()
        if self.prepared_dir == self.run_dir:
            yield f"prepared_dir and run_dir are both {self.run_dir}; set different folders"
        if self.model.shares_inputs and not self.tokenizer.joint:
            kind = self.model.embeddings
            # The nearest kind in which source and target do not share a matrix.
            instead = "decoder-tied" if self.model.ties_output else "separate"
            yield f"model.embeddings {kind} needs tokenizer.joint true; use {instead} instead"
        yield from self._wrong_sizes()
        if self.batch.bpe_dropout and self.tokenizer.kind != "bpe":
            yield f"batch.bpe_dropout needs tokenizer.kind bpe (found {self.tokenizer.kind})"
        # With init_from, the vocabulary and its tags come from another model.
        if not self.training.keeps_vocabulary:
            symbols, _ = self.tag_symbols  # of the source, where the tags of corpora are
            for key, corpus in self.data.corpora.items():
                if corpus.tag is not None and tag_symbol(corpus.tag, symbols) is None:
                    listed = ", ".join(symbols) or "none"
                    problem = f"{corpus.tag} is not a user-defined symbol (defined: {listed})"
                    yield f"{key}.tag {problem}"
        if self.filters.min_length > self.filters.max_length:
            yield f"filters.min_length is above filters.max_length ({self.filters.max_length})"

    def _wrong_sizes(self) -> Iterator[str]:
        max_length = self.filters.max_length
        num_bos = int(self.model.source_bos)  # 0 or 1 for each pair
        # Key of the limit to check. `max_tokens: auto` is no limit; then tokens_per_update is set.
        key = "tokens_per_update" if self.batch.tokens_per_update else "max_tokens"
        max_tokens = getattr(self.batch, key)
        # The limit must allow one pair of the maximum length, with EOS on each side.
        pair_tokens = 2 * max_length + 2 + num_bos
        if max_tokens is not None and pair_tokens > max_tokens:
            fix = f"raise it to {pair_tokens}, or lower filters.max_length ({max_length})"
            yield f"batch.{key} is {max_tokens}, too small for the longest pairs: {fix}"
        # Positions of the longest source with BOS and EOS, and the positions before the first.
        num_positions = max_length + 1 + num_bos + self.model.first_position
        if self.model.positions == "learned" and num_positions > self.model.max_positions:
            fix = f"raise it to {num_positions} or more, or lower filters.max_length ({max_length})"
            yield f"model.max_positions is {self.model.max_positions}, too few: {fix}"

    def _wrong_languages(self) -> Iterator[str]:
        # Two variants of a language can be translated: sr to sr-Latn, or de to de-CH.
        if is_spelling(self.source_language, self.target_language):
            language = self.source_language
            yield (
                f"source_language and target_language are both {language}; "
                f"to rewrite text in a language, name a variant, such as {language}-x-simple"
            )
        for key, corpus in self.data.corpora.items():
            source, target = self.direction(corpus)
            # Otherwise the languages are those of the run, which are checked above.
            sets_language = corpus.source_language or corpus.target_language
            if sets_language and is_spelling(source, target):
                yield f"{key}: source_language and target_language are both {source}"
        if self.training.init_from is not None:
            return  # its model may know more languages than the training corpora
        for side in ("source", "target"):
            # Only tags of both sides tell the model the source language.
            if side == "source" and self.language_tags != "both":
                continue
            # The codes of the training corpora, in their order, without repetitions.
            codes = dict.fromkeys(getattr(direction, side) for direction in self.directions)
            for key, corpus in self.data.held_out.items():
                code = getattr(self.direction(corpus), side)
                if len(matching(code, codes)) != 1:
                    listed = ", ".join(codes)
                    yield f"{key}: {code} is not a {side} language of data.train ({listed})"


def check_languages(codes: Mapping[str, str]) -> None:
    """Check the language codes of a new experiment; trained models keep their codes.

    Unknown codes are allowed, because many languages have no standard code. Underscores are only
    allowed in FLORES codes such as ``eng_Latn``.

    Args:
        codes: Place, for example ``source_language`` -> code.

    Raises:
        ConfigError: A code is malformed or belongs to a country. Lists all of them.
    """
    problems = []
    for place, code in codes.items():
        primary = re.split("[-_]", code)[0]  # The part that means the language.
        if primary.lower() in _COUNTRIES:
            # The main language of the country.
            language = Language.make(territory=primary.upper()).maximize()
            advice = f"the code of {language.language_name()} is {language.language}"
            problems.append(f"{place}: {primary} is a country; {advice}")
        elif "_" in code and not _FLORES.fullmatch(code):
            problems.append(f"{place}: {code} has an underscore; write {code.replace('_', '-')}")
    if problems:
        raise ConfigError("\n  ".join(problems) + ".", fix="Use ISO 639 codes, such as pt-BR.")
