"""The whole configuration: all sections, and the rules between them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from nmt.config.base import FilePath, Section
from nmt.config.data import BatchConfig, DataConfig, FilterConfig, TokenizerConfig
from nmt.config.decoding import DecodingConfig
from nmt.config.model import ModelConfig
from nmt.config.training import TrainingConfig


class RunConfig(Section):
    """One experiment, from text to a scored translator."""

    name: str
    """Name of the experiment; folders are named after it."""
    source_language: str = Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*$")
    """Language code of the source, for example ``de``."""
    target_language: str = Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*$")
    """Language code of the target, for example ``en``."""
    prepared_dir: FilePath = Path()
    """Folder of the prepared data; ``prepared/<name>`` when left out."""
    run_dir: FilePath = Path()
    """Folder of the training run; ``runs/<name>`` when left out."""
    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    filters: FilterConfig = FilterConfig()
    batch: BatchConfig = BatchConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig
    decoding: DecodingConfig = DecodingConfig()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("use letters, digits, dots, hyphens and underscores only")
        return value

    @model_validator(mode="before")
    @classmethod
    def _folders_from_name(cls, values: object) -> object:
        if isinstance(values, dict) and isinstance(values.get("name"), str):
            name = values["name"]
            return {"prepared_dir": f"prepared/{name}", "run_dir": f"runs/{name}", **values}
        return values

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.model.embeddings == "tied" and not self.tokenizer.joint:
            raise ValueError("model.embeddings tied needs tokenizer.joint; use decoder-tied")
        if self.filters.max_length + 1 > self.batch.max_tokens // 2:
            raise ValueError(
                f"batch.max_tokens ({self.batch.max_tokens}) must hold a pair of two sides of "
                f"filters.max_length ({self.filters.max_length}) tokens"
            )
        if self.model.positions == "learned" and self.filters.max_length >= (
            self.model.max_positions
        ):
            raise ValueError("model.max_positions must be above filters.max_length")
        return self
