"""What clients send: bounded, checked, and without anything that is not known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nmt.config.keys import nearest_word
from nmt.errors import DataError
from nmt.files.json_file import parse_json
from nmt.inference.request import Request
from nmt.text import without_surrogates

MOST_HYPOTHESES = 16
_MOST_PROBLEMS = 5
_MOST_NAME = 40
_SPELT_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_Name = Annotated[str, Field(max_length=100)]
_Phrases = Annotated[list[str], Field(max_length=64)]
Output = Literal["alternatives", "tokens", "alignment", "attention", "confidence"]
M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Text(_Strict):
    """A text with what its translation must look like."""

    text: str
    id: _Name | None = None
    prefix: str = Field(default="", description="What the translation begins with.")
    required: _Phrases = Field(default=[], description="Phrases that it contains.")
    forbidden: _Phrases = Field(default=[], description="Phrases that it does not contain.")
    tag: _Name | None = Field(
        default=None, description="A language or domain the model was trained with."
    )

    @property
    def line(self) -> Request:
        """As a line of `nmt translate`."""
        phrases = tuple(self.required), tuple(self.forbidden)
        return Request(self.text, self.prefix, *phrases, self.tag or None)

    @property
    def num_characters(self) -> int:
        """Of all its texts."""
        return sum(map(len, (self.text, self.prefix, *self.required, *self.forbidden)))


class Options(_Strict):
    """Decoding options; the model's own where none is given."""

    beam_size: int | None = Field(default=None, ge=1, le=MOST_HYPOTHESES)
    n_best: int | None = Field(default=None, ge=1, le=MOST_HYPOTHESES)
    length_penalty: float | None = Field(default=None, ge=0, le=20)
    no_repeat_ngram_size: int | None = Field(default=None, ge=0, le=20)
    repetition_penalty: float | None = Field(default=None, ge=0.1, le=10)
    sampling: bool | None = None
    temperature: float | None = Field(default=None, ge=0.01, le=100)
    top_k: int | None = Field(default=None, ge=0, le=1_000_000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    return_alternatives: bool | None = Field(
        default=None, description="The most probable tokens after the prefix, each completed."
    )
    prefix_bias_beta: float | None = Field(default=None, ge=0, lt=1)

    def changes(self) -> dict[str, Any]:
        """Return those that were given."""
        return self.model_dump(exclude_none=True)


class _Chosen(_Strict):
    """A model, by its name or by its languages."""

    model: _Name | None = None
    source: _Name | None = Field(default=None, description="Language; auto: one of those served.")
    target: _Name | None = None


class TranslateRequest(_Chosen):
    """Body of POST /v1/translate."""

    texts: list[str | Text]
    options: Options = Options()
    want: list[Output] = []
    split: bool = Field(default=True, description="Cut texts into sentences, not only into lines.")

    @property
    def items(self) -> list[Text]:
        """The texts, all in one form."""
        return [Text(text=each) if isinstance(each, str) else each for each in self.texts]


class Pair(_Strict):
    """A text and its translation."""

    source: str
    target: str


class ScoreRequest(_Chosen):
    """Body of POST /v1/score."""

    pairs: list[Pair]
    tag: _Name | None = None


class DocumentRequest(_Chosen):
    """Body of POST /v1/documents."""

    format: _Name
    text: str
    options: Options = Options()


class LibreRequest(_Strict):
    """Body of POST /translate, as LibreTranslate has it."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    q: str | list[str]
    source: _Name = "auto"
    target: _Name
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(default=0, ge=0, lt=MOST_HYPOTHESES)
    api_key: str | None = None


class DetectRequest(_Strict):
    """Body of POST /detect, as LibreTranslate has it."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    q: str | list[str]
    api_key: str | None = None


class BadRequestError(DataError):
    """A body that is well-formed and asks for nothing that can be done."""


def parse_body(body: bytes) -> Any:
    """Parse JSON. Lone surrogates, which it may escape, become U+FFFD.

    Raises:
        ValueError: It is no JSON, or nested too deep.
    """
    value = parse_json(body, finite=True)
    return _without_surrogates(value) if _SPELT_SURROGATE.search(body) else value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_without_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {_without_surrogates(x): _without_surrogates(y) for x, y in value.items()}
    return value


def validate(kind: type[M], value: Any) -> M:
    """Return the request that parsed JSON stands for.

    Raises:
        BadRequestError: It stands for none; names the first problems.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        problems = list(dict.fromkeys(_problem(kind, each) for each in details))
        more = len(problems) - _MOST_PROBLEMS
        shown = "; ".join(problems[:_MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        fix = "Correct the request; GET openapi.json describes it."
        raise BadRequestError(f"{shown}.", fix=fix) from None


def _problem(kind: type[BaseModel], detail: Mapping[str, Any]) -> str:
    path = [str(part)[:_MOST_NAME] for part in detail["loc"] if part not in ("str", "Text")]
    place, message = ".".join(path) or "the body", detail["msg"]
    if detail["type"] != "extra_forbidden":
        return f"{place}: {message[0].lower()}{message[1:]}"
    inner: dict[str, type[BaseModel]] = {"options": Options, "texts": Text, "pairs": Pair}
    names = list((inner.get(path[0], kind) if len(path) > 1 else kind).model_fields)
    near = nearest_word(path[-1], names)
    return f"{place}: unknown field" + (f" (did you mean {near}?)" if near else "")
