"""The JSON of the API: bodies of requests, answers and errors.

Bodies are validated, and unknown fields are errors. Every error is a status with the JSON fields
``error`` and ``fix``.
"""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from traceback import extract_tb
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from nmt.errors import CheckpointError, DeviceError, NmtError, nearest_word
from nmt.inference.glossary import Glossary
from nmt.inference.request import Request, Result, TokenScore, join_results, words_of
from nmt.text import without_surrogates
from nmt.text.sentences import SplitText

logger = logging.getLogger(__name__)

MOST_HYPOTHESES = 16  # Largest beam and largest n-best list that a client can request.
RETRY = {"Retry-After": "1"}  # Header: seconds after which the client may try again.
_WORD = re.compile(r"\S+")
# Names of types in pydantic's path of an error, beside the names of fields.
_TRIED_TYPE = re.compile(r"function-|list\[|(?:str|Text)\Z")
_END = "</s>"
_SENTENCE_FIELDS = ("score", "log_prob", "alternatives", "alarms", "confidence", "unrated")
_ADVICE = "See /openapi.json for all paths and fields."
_NAMES_OF_TEXT = {"q", "text", "texts"}  # in several APIs
_MAX_PROBLEMS = 5  # in one error
_MAX_NAME_CHARACTERS = 40  # of a field name from a client, in an error


def _readable(value: Any) -> Any:
    """Replace lone surrogates of a string, which cannot be encoded; other values are not valid."""
    return without_surrogates(value) if isinstance(value, str) else value


# Text in a body.
Words = Annotated[str, BeforeValidator(_readable)]
# Name of a model, a language or a tag.
Name = Annotated[Words, Field(max_length=100)]
Answer = dict[str, Any]  # An object in the JSON of an answer.
Phrases = Annotated[list[Words], Field(max_length=64)]


class Body(BaseModel):
    """Base of all request bodies: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Text(Body):
    """A text to translate, with constraints on its translation."""

    text: Words
    id: Name | None = None
    prefix: Words = Field(default="", description="First words of the translation.")
    required: Phrases = Field(default=[], description="Phrases that must occur.")
    forbidden: Phrases = Field(default=[], description="Phrases that must not occur.")
    tag: Name | None = Field(
        default=None, description="Tag of a language or domain, for models trained with tags."
    )

    @property
    def num_characters(self) -> int:
        """Characters of the text and of its constraints together."""
        return sum(map(len, (self.text, self.prefix, *self.required, *self.forbidden)))

    def request(
        self, sentence: str, languages: tuple[str | None, str | None], *, is_first: bool
    ) -> Request:
        """Return the request for one sentence.

        Only the first sentence gets the prefix and the required phrases.
        """
        source, target = languages
        request = Request(
            sentence,
            forbidden=tuple(self.forbidden),
            tag=self.tag or None,
            source_language=source,
            target_language=target,
        )
        if not is_first:
            return request
        return replace(request, prefix=self.prefix, required=tuple(self.required))


class Decoding(Body):
    """Decoding options. Each option that is missing has the model's default."""

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
        default=None, description="Complete translations for the likeliest next tokens."
    )
    prefix_bias_beta: float | None = Field(default=None, ge=0, lt=1)

    def changes(self) -> dict[str, Any]:
        """Return the options that the request sets."""
        return self.model_dump(exclude_none=True)


class Choice(Body):
    """Choice of a model, by its name or by its languages."""

    model: Name | None = None
    source: Name | None = Field(
        default=None, description="Language code; auto detects that of each text."
    )
    target: Name | None = None


class GlossaryChoice(Choice):
    """Choice of a model and of a glossary."""

    glossary: Words | None = Field(
        default=None,
        description="Lines of a source term, a tab and a target term; replaces that of the model.",
    )

    def terms(self) -> Glossary | None:
        """Return the glossary of the request, if it has one.

        Raises:
            DataError: See `Glossary.parse`.
        """
        return None if self.glossary is None else Glossary.parse(self.glossary.splitlines())


class TranslateBody(GlossaryChoice):
    """Body of POST /v1/translate."""

    texts: list[Words | Text]
    options: Decoding = Decoding()
    want: list[Literal["alternatives", "tokens", "alignment", "attention", "confidence"]] = []
    split: bool = Field(default=True, description="Split lines into sentences.")
    by_sentence: bool = Field(
        default=False, description="Answer each sentence as a text of its own, in order."
    )

    @property
    def items(self) -> list[Text]:
        """The texts, with each plain string as a `Text`."""
        return [Text(text=text) if isinstance(text, str) else text for text in self.texts]


class Pair(Body):
    """A text and its translation."""

    source: Words
    target: Words


class ScoreBody(Choice):
    """Body of POST /v1/score."""

    pairs: list[Pair]
    tag: Name | None = None


class DocumentBody(GlossaryChoice):
    """Body of POST /v1/documents."""

    format: Name
    text: Words
    options: Decoding = Decoding()


class DetectBody(Body):
    """Body of POST /detect of LibreTranslate."""

    model_config = ConfigDict(extra="ignore")
    q: Words | list[Words]
    api_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        """Drop fields that are null: clients of LibreTranslate send them for defaults."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}

    @property
    def texts(self) -> list[str]:
        """The texts as a list, also if the request has one string."""
        return [self.q] if isinstance(self.q, str) else self.q


class LibreBody(DetectBody):
    """Body of POST /translate of LibreTranslate."""

    source: Name = "auto"
    target: Name
    format: Literal["text", "html"] = "text"
    # Not strict, because all fields of a form are text.
    alternatives: int = Field(default=0, ge=0, lt=MOST_HYPOTHESES, strict=False)


class LibreFile(DetectBody):
    """Body of POST /translate_file of LibreTranslate: a form with a file."""

    q: Words = Field(alias="file")
    file_name: Name
    source: Name = "auto"
    target: Name


class Fault(BaseModel):
    """Body of every error."""

    error: str
    fix: str


_BODIES = (Text, Decoding, TranslateBody, ScoreBody, Pair, DocumentBody, LibreBody)
# Names of the fields of all requests, for suggestions.
FIELDS = sorted(set().union(*(body.model_fields for body in _BODIES)))


def answer_of(
    source: str,
    split: SplitText,
    gaps: Sequence[str],
    results: Sequence[Result],
    *,
    with_attention: bool,
) -> Answer:
    """Combine the results of all sentences of a text into its answer; see `join_results`.

    The answer has the same fields as a JSON line of `nmt translate`. Offsets count characters;
    words are separated by spaces.

    Args:
        source: The text of the request.
        split: Its sentences, and the white space around them.
        gaps: The white space around their translations; see `SplitText.gaps_for`.
        results: The result of each sentence.
        with_attention: Whether the answer has the attention. Without it, the attention of the
            results only shows whether the words match.
    """
    joined = join_results(source, gaps, results)
    source_end = 0  # of the sentences so far, in characters
    target_end = 0
    sentences = []
    source_words = list[Answer]()
    target_words = list[Answer]()
    # There is one more gap, at the end.
    for source_gap, gap, result in zip(split.gaps, gaps, results, strict=False):
        source_start = source_end + len(source_gap)
        source_end = source_start + len(result.source)
        target_start = target_end + len(gap)
        target_end = target_start + len(result.text)
        source_words += _words(result.source, source_start)
        words_of_sentence = _words(result.text, target_start)
        # Without tokens, and if the words do not match, there are no probabilities.
        probabilities = word_probabilities(result.tokens or (), len(words_of_sentence))
        for word, probability in zip(words_of_sentence, probabilities, strict=False):
            word["probability"] = probability
        target_words += words_of_sentence
        values = result.as_dict()
        spans: Answer = {
            "source": [source_start, source_end],
            "target": [target_start, target_end],
        }
        sentences.append(
            spans | {name: values[name] for name in _SENTENCE_FIELDS if name in values}
        )
    answer = joined.as_dict() | {"sentences": sentences}
    answer.pop("parts", None)  # the same as ``sentences``
    if answer.keys() & {"alignment", "tokens", "attention"}:
        answer["words"] = {"source": source_words, "target": target_words}
    if not with_attention:
        answer.pop("attention", None)
    return answer


def _words(text: str, offset: int) -> list[Answer]:
    """Return the words of a text that begins at the character ``offset`` of an answer."""
    words = []
    for match in _WORD.finditer(text):
        start = offset + match.start()
        words.append({"text": match[0], "start": start, "end": start + len(match[0])})
    return words


def word_probabilities(tokens: Sequence[TokenScore], num_words: int) -> list[float]:
    """Return the probability of each word: the product of its subwords' probabilities.

    Args:
        tokens: Tokens of a translation, with the end tokens of its segments.
        num_words: Number of words in the translation.

    Returns:
        Nothing if the subwords form a different number of words.

    >>> tokens = [TokenScore("\u2581a", -1.0), TokenScore("b", -1.0), TokenScore("</s>", 0.0)]
    >>> word_probabilities(tokens, 1)
    [0.1353]
    """
    probabilities = []
    segment = []  # subwords since the last end token
    for token in tokens:
        if token.piece != _END:
            segment.append(token)
            continue
        log_probs = defaultdict[int, float](float)  # number of the word in its segment -> sum
        word_numbers = words_of([subword.piece for subword in segment])
        for number, subword in zip(word_numbers, segment, strict=True):
            log_probs[number] += subword.log_prob
        probabilities += [round(math.exp(log_prob), 4) for log_prob in log_probs.values()]
        segment = []
    return probabilities if len(probabilities) == num_words else []


@dataclass(eq=False)
class RefusedError(Exception):
    """A request that the server refuses, with its status code."""

    status: int
    problem: str
    fix: str
    headers: Mapping[str, str] | None = None

    def as_dict(self) -> Answer:
        """Return the body of the answer."""
        return {"error": self.problem, "fix": self.fix}


def refusal(error: Exception) -> RefusedError:
    """Convert any error to an answer that reveals nothing about the server."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, RequestValidationError):
        return RefusedError(422, _problems(error), "Correct the request. " + _ADVICE)
    if isinstance(error, HTTPException):
        if error.status_code == 400:  # FastAPI cannot decode the body
            return RefusedError(422, "The body is not JSON in UTF-8, or compressed.", _ADVICE)
        return RefusedError(error.status_code, f"{error.detail}.", _ADVICE, error.headers)
    if isinstance(error, TimeoutError):
        return RefusedError(504, "The request timed out.", "Send fewer or shorter texts.")
    if isinstance(error, CheckpointError | DeviceError):
        logger.warning("a request failed: %s", error.problem)  # contains paths: not for clients
        return RefusedError(503, "The model is not available.", "Try again later.", RETRY)
    if isinstance(error, NmtError):
        return RefusedError(422, error.problem, error.fix)
    log_fault(error)
    return RefusedError(500, "Internal server error.", "Please report this bug.")


def as_response(error: Exception) -> JSONResponse:
    """Return the HTTP response for an error."""
    refused_error = refusal(error)
    return JSONResponse(refused_error.as_dict(), refused_error.status, refused_error.headers)


def log_fault(error: BaseException) -> None:
    """Log the type and place of an unexpected error. Its message may contain a client's text."""
    place = "unknown place"
    for frame in extract_tb(error.__traceback__)[-1:]:  # the innermost one, if there is a traceback
        place = f"{frame.filename}:{frame.lineno}"
    logger.error("unexpected %s at %s; please report this bug", type(error).__name__, place)


def _problems(error: RequestValidationError) -> str:
    """Return all problems of a request as one sentence, each problem once."""
    problems = list(dict.fromkeys(map(_problem, error.errors())))
    text = "; ".join(problems[:_MAX_PROBLEMS])
    if len(problems) > _MAX_PROBLEMS:
        text += f"; and {len(problems) - _MAX_PROBLEMS} more"
    return f"{text}."


def _problem(detail: Mapping[str, Any]) -> str:
    """Return where a request is wrong, and why, from one entry of pydantic's list of errors."""
    _, *path = detail["loc"]  # The first entry says only that the error is in the body.
    if detail["type"] == "json_invalid":
        return f"The body is not JSON: {detail['ctx']['error']} at character {path[-1]:,}"
    names = [str(key)[:_MAX_NAME_CHARACTERS] for key in path]  # fields and indices of lists
    # Leave out the types that pydantic tried: they are details of this program.
    field_names = [name for name in names if not _TRIED_TYPE.match(name)]
    place = ".".join(field_names) or "the body"
    message = detail["msg"]
    # An empty body is None.
    if detail["type"] == "missing" and _NAMES_OF_TEXT & {*names}:
        for name in _NAMES_OF_TEXT & set(detail["input"]) - {names[-1]}:
            message += f" in place of {name}"
    if detail["type"] == "extra_forbidden":
        message = "unknown field"
        # Each field of a request is unknown in the others.
        near = nearest_word(names[-1], (name for name in FIELDS if name != names[-1]))
        if near:
            message += f" (did you mean {near}?)"
    return f"{place}: {message[0].lower()}{message[1:]}"
