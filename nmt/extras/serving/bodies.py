"""What clients send: bounded, checked, and without fields that the server does not know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nmt.inference.request import Request
from nmt.text import without_surrogates

MOST_HYPOTHESES = 16


def _readable(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


Words = Annotated[str, BeforeValidator(_readable)]
# A name of a model, a language or a tag.
Name = Annotated[Words, Field(max_length=100)]
Phrases = Annotated[list[Words], Field(max_length=64)]


class Body(BaseModel):
    """What all bodies have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Text(Body):
    """A text with what its translation must look like."""

    text: Words
    id: Name | None = None
    prefix: Words = Field(default="", description="What the translation begins with.")
    required: Phrases = Field(default=[], description="Phrases that it contains.")
    forbidden: Phrases = Field(default=[], description="Phrases that it does not contain.")
    tag: Name | None = Field(
        default=None, description="A language or domain the model was trained with."
    )

    @property
    def num_characters(self) -> int:
        """Of all its texts."""
        return sum(map(len, (self.text, self.prefix, *self.required, *self.forbidden)))

    def request(self, sentence: str, *, is_first: bool) -> Request:
        """Return the request for a sentence; the first has prefix and required phrases."""
        required = tuple(self.required) if is_first else ()
        prefix = self.prefix if is_first else ""
        return Request(sentence, prefix, required, tuple(self.forbidden), self.tag or None)


class Decoding(Body):
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


class Choice(Body):
    """A model, by its name or by its languages."""

    model: Name | None = None
    source: Name | None = Field(default=None, description="Language; auto: one of those served.")
    target: Name | None = None


class TranslateBody(Choice):
    """Body of POST /v1/translate."""

    texts: list[Words | Text]
    options: Decoding = Decoding()
    want: list[Literal["alternatives", "tokens", "alignment", "attention", "confidence"]] = []
    split: bool = Field(default=True, description="Cut texts into sentences, not only into lines.")

    @property
    def items(self) -> list[Text]:
        """The texts, all in one form."""
        return [Text(text=each) if isinstance(each, str) else each for each in self.texts]


class Pair(Body):
    """A text and its translation."""

    source: Words
    target: Words


class ScoreBody(Choice):
    """Body of POST /v1/score."""

    pairs: list[Pair]
    tag: Name | None = None


class DocumentBody(Choice):
    """Body of POST /v1/documents."""

    format: Name
    text: Words
    options: Decoding = Decoding()


class DetectBody(Body):
    """Body of POST /detect, as LibreTranslate has it."""

    model_config = ConfigDict(extra="ignore")
    q: Words | list[Words]
    api_key: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts, also where it is one."""
        return [self.q] if isinstance(self.q, str) else self.q


class LibreBody(DetectBody):
    """Body of POST /translate, as LibreTranslate has it."""

    source: Name = "auto"
    target: Name
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(default=0, ge=0, lt=MOST_HYPOTHESES, strict=False)  # also of a form


class Fault(BaseModel):
    """What every error is answered with."""

    error: str
    fix: str


_KINDS = (Text, Decoding, TranslateBody, ScoreBody, Pair, DocumentBody, LibreBody)
FIELDS = sorted({name for kind in _KINDS for name in kind.model_fields})
