"""The whole configuration: sections, rules between them, and defaults by corpus size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from nmt.config.data import (
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
from nmt.config.filling import filled_in
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import first_spelling, is_spelling, matching
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.config.section import Binds, BindsData, BindsRun, FilePath, Free, Section
from nmt.config.training import TrainingConfig
from nmt.errors import ConfigError

# Country codes that are often mistaken for language codes.
_COUNTRIES: Mapping[str, tuple[str, str]] = {
    "cn": ("Chinese", "zh"), "cz": ("Czech", "cs"), "dk": ("Danish", "da"), "gr": ("Greek", "el"),
    "jp": ("Japanese", "ja"), "ua": ("Ukrainian", "uk"), "vn": ("Vietnamese", "vi"),
}  # fmt: skip
_FLORES = re.compile("[a-z]{3}_[A-Z][a-z]{3}")
# Best optimizer for short runs of a ``tiny`` model (scripts/README.md).
MUON: Mapping[str, Mapping[str, Any]] = {
    "optimizer": {"kind": "muon", "newton_schulz_steps": 3},
    "schedule": {"shape": "linear", "peak_lr": 4e-3, "warmup_ratio": 0.06},
}  # fmt: skip
# Rotary positions made a tiny model learn fastest (scripts/RESULTS.md).
_TINY = {"preset": "tiny", "positions": "rotary"}
# Name -> the values of each section that differ from the defaults.
RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    # Measured in scripts/README.md. No BPE-dropout: it cost 2 BLEU on Multi30k en-de, in 80 minutes
    # on one core (one seed).
    "low-resource": {
        "tokenizer": {"vocab_size": 2000},
        "batch": {"max_tokens": 2048},
        "model": {**_TINY, "dropout": 0.3},
        "training": {"r_drop_weight": 3.0, **MUON},
    },
}  # fmt: skip
_VOCAB_SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)


def name_of_folder(folder: Path) -> str:
    """Return a valid name of an experiment that is similar to the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._") or "model"


class RunConfig(Section):
    """One experiment, from text files to an evaluated model.

    Args:
        recipe: Values to start from. ``low-resource`` suits 5,000 to 15,000 short sentence pairs.
        name: Name of the experiment, used for its folders.
        source_language: Language code of the source, for example ``de``.
        target_language: Language code of the target, for example ``en``.
        prepared_dir: Folder of the prepared data.
        run_dir: Run folder: checkpoints, logs, report.
    """

    # A file can omit ``training``; `load_config` fills it in.
    model_config = ConfigDict(json_schema_extra=lambda x: x["required"].remove("training"))

    recipe: Free[Literal["low-resource"] | None] = None
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
        return {"source_language": self.source_language, "target_language": self.target_language}

    @property
    def language_codes(self) -> dict[str, str]:
        """The language codes of the run and of the corpora, by key."""
        codes = dict(self.languages)
        for where, corpus in self.data.corpora.items():
            own = {key: getattr(corpus, key) for key in self.languages}
            codes |= {f"{where}.{key}": code for key, code in own.items() if code}
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
            max_length=self.filters.max_length,
            tokenizer=self.tokenizer,
            model=self.model,
            decoding=self.decoding,
            base_model=self.training.init_from if self.training.lora else None,
        )

    @property
    def tag_symbols(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The user-defined symbols of a new source (or joint) and a new target vocabulary.

        They are the tags of languages, then ``tokenizer.user_defined_symbols`` or, by default and
        only in the source, the tags of the corpora.
        """
        codes = [tagged_languages(self.language_tags, each) for each in self.directions]
        source, target = ([f"<2{x}>" for x in side if x] for side in zip(*codes, strict=True))
        tags = [corpus.symbol for corpus in self.data.training if corpus.symbol]
        own = [*self.tokenizer.user_defined_symbols]
        of_source = [*source, *target] if self.tokenizer.joint else source
        of_source = [*of_source, *(own or tags)]
        return tuple(dict.fromkeys(of_source)), tuple(dict.fromkeys([*target, *own]))

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("use letters, digits, dots, hyphens and underscores only")
        return value

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Add the values of the recipe, and folders named after the experiment."""
        if not isinstance(values, dict):
            return values
        filled, name, recipe = dict(values), values.get("name"), values.get("recipe")
        if isinstance(name, str):
            filled = {"prepared_dir": f"prepared/{name}", "run_dir": f"runs/{name}", **values}
        filled = filled_in(filled, RECIPES.get(str(recipe), {}))
        tokenizer = filled.get("tokenizer")
        if isinstance(tokenizer, Mapping) and tokenizer.get("joint") is False:
            # Two vocabularies cannot share one matrix, so the usual choice is impossible.
            filled = filled_in(filled, {"model": {"embeddings": "decoder-tied"}})
        return filled

    def _disagreements(self) -> Iterator[str]:
        longest, bos = self.filters.max_length, int(self.model.source_bos)
        yield from self._wrong_languages()
        if self.prepared_dir == self.run_dir:
            yield f"prepared_dir and run_dir are both {self.run_dir}; set different folders"
        if self.model.shares_inputs and not self.tokenizer.joint:
            other = "decoder-tied" if self.model.ties_output else "separate"
            kind = self.model.embeddings
            yield f"model.embeddings {kind} needs tokenizer.joint true; use {other} instead"
        key = "tokens_per_update" if self.batch.tokens_per_update else "max_tokens"
        tokens = getattr(self.batch, key)
        least = 2 * longest + 2 + bos
        if tokens is not None and least > tokens:
            fix = f"raise it to {least}, or lower filters.max_length ({longest})"
            yield f"batch.{key} is {tokens}, too small for the longest pairs: {fix}"
        rows = longest + 1 + bos + self.model.first_position
        if self.model.positions == "learned" and rows > self.model.max_positions:
            fix = f"raise it to {rows} or more, or lower filters.max_length ({longest})"
            yield f"model.max_positions is {self.model.max_positions}, too few: {fix}"
        if self.batch.bpe_dropout and self.tokenizer.kind != "bpe":
            yield f"batch.bpe_dropout needs tokenizer.kind bpe (found {self.tokenizer.kind})"
        # With init_from, the vocabulary and its tags come from another model.
        corpora = {} if self.training.keeps_vocabulary else self.data.corpora
        for where, corpus in corpora.items():
            if corpus.tag is not None and tag_symbol(corpus.tag, self.tag_symbols[0]) is None:
                known = ", ".join(self.tag_symbols[0]) or "none"
                yield f"{where}.tag {corpus.tag} is not a user-defined symbol (defined: {known})"
        if self.filters.min_length > longest:
            yield f"filters.min_length is above filters.max_length ({longest})"

    def _wrong_languages(self) -> Iterator[str]:
        # Two variants of a language can be translated: sr to sr-Latn, or de to de-CH.
        if is_spelling(self.source_language, self.target_language):
            yield f"source_language and target_language are both {self.source_language}"
        for where, corpus in self.data.corpora.items():
            is_set = corpus.source_language or corpus.target_language
            if is_set and is_spelling(*self.direction(corpus)):
                source = self.direction(corpus).source
                yield f"{where}: source_language and target_language are both {source}"
        # A model of training.init_from may know more languages than the training corpora.
        sides = ("source", "target") if self.language_tags == "both" else ("target",)
        for side in sides if self.training.init_from is None else ():
            codes = dict.fromkeys(getattr(each, side) for each in self.directions)
            for where, corpus in self.data.held_out.items():
                code = getattr(self.direction(corpus), side)
                if len(matching(code, codes)) != 1:
                    known = ", ".join(codes)
                    yield f"{where}: {code} is not a {side} language of data.train ({known})"


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
    for where, code in codes.items():
        primary = re.split("[-_]", code)[0]
        language, meant = _COUNTRIES.get(primary.lower(), ("", ""))
        if meant:
            problems.append(f"{where}: {primary} is a country; the code of {language} is {meant}")
        elif "_" in code and not _FLORES.fullmatch(code):
            problems.append(f"{where}: {code} has an underscore; write {code.replace('_', '-')}")
    if problems:
        raise ConfigError("\n  ".join(problems) + ".", fix="Use ISO 639 codes, such as pt-BR.")


@dataclass(frozen=True, slots=True)
class Scale:
    """Hyperparameters for a corpus of up to ``max_characters``, both languages together."""

    # Characters and not pairs, because training time depends on the amount of text.
    max_characters: float
    model: Mapping[str, str]  # Model section.
    dropout: float
    vocab_size: int
    max_tokens: int  # Per batch.
    minutes: int  # Training time on two CPU cores; the last scale: on one GPU.
    optimizer: Mapping[str, Mapping[str, Any]]  # Optimizer and schedule.
    validate_every: int = 500  # Also the interval of checkpoints.
    # R-Drop only pays off for small corpora of short sentences.
    r_drop_weight: float = 0.0

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return the values as sections of a configuration."""
        training = {"max_minutes": self.minutes, "r_drop_weight": self.r_drop_weight}
        intervals = dict.fromkeys(("validate_every", "save_every"), self.validate_every)
        return {
            "tokenizer": {"vocab_size": self.vocab_size},
            "batch": {"max_tokens": self.max_tokens},
            "model": {**self.model, "dropout": self.dropout},
            "training": {**training, **self.optimizer, **intervals},
        }


_ADAMW = {"schedule": {"shape": "linear", "peak_lr": 7e-4, "warmup_ratio": 0.06}}
# From small to large.
SCALES = (
    Scale(1e6, _TINY, 0.3, 2000, 2048, 20, MUON, r_drop_weight=3.0),
    Scale(6.5e6, _TINY, 0.1, 4000, 2048, 20, MUON),
    Scale(30e6, _TINY, 0.1, 8000, 4096, 45, MUON),
    Scale(float("inf"), {"preset": "transformer-base"}, 0.1, 32_000, 16_384, 1440, _ADAMW, 1000),
)


def scale_of(num_characters: int) -> Scale:
    """Return the hyperparameters for a corpus of this size."""
    return next(scale for scale in SCALES if num_characters <= scale.max_characters)


def with_scale(values: Mapping[str, Any], num_characters: int) -> dict[str, Any]:
    """Add values for a corpus of ``num_characters`` to a configuration."""
    sections = scale_of(num_characters).sections()
    if values.get("recipe") is not None:  # a recipe has its own dropout
        sections = filled_in(RECIPES.get(str(values["recipe"]), {}), sections)
    return filled_in(values, sections)


def usual_vocab_size(num_pairs: int) -> int:
    """Return the usual vocabulary size for a number of sentence pairs (a rule of thumb).

    It is proportional to ``num_pairs ** 0.4``, from 2,000 for 5,000 pairs to the published 32,000
    for 4.5 million.

    >>> [usual_vocab_size(n) for n in (5_000, 30_000, 160_000, 4_500_000)]
    [2000, 4000, 8000, 32000]
    """
    wanted = 2000 * (num_pairs / 5000) ** 0.4
    return min(_VOCAB_SIZES, key=lambda size: abs(size - wanted) / size)
