"""The JSON of the API: bodies of requests, answers and errors.

Bodies are validated, and unknown fields are errors. Every error is a status with the JSON fields
``error`` and ``fix``.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.exceptions import HTTPException

from nmt.errors import CheckpointError, DeviceError, NmtError, nearest_word
from nmt.inference.request import Alternative, Links, Matrix, Request, Result, TokenScore, words_of
from nmt.text import without_surrogates
from nmt.text.sentences import SplitText

logger = logging.getLogger(__name__)

MOST_HYPOTHESES = 16
RETRY = {"Retry-After": "1"}
_WORD = re.compile(r"\S+")
_END = "</s>"
_OF_SENTENCE = ("score", "log_prob", "alternatives", "alarms", "confidence")
_LISTED = "See /openapi.json for all paths and fields."
_MOST_PROBLEMS = 5
_MOST_NAME = 40


def _readable(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


Words = Annotated[str, BeforeValidator(_readable)]
# Name of a model, a language or a tag.
Name = Annotated[Words, Field(max_length=100)]
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
        required = tuple(self.required) if is_first else ()
        prefix = self.prefix if is_first else ""
        forbidden, tag = tuple(self.forbidden), self.tag or None
        return Request(sentence, prefix, required, forbidden, tag, *languages)


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
    source: Name | None = Field(default=None, description="Language code; auto detects it.")
    target: Name | None = None


class TranslateBody(Choice):
    """Body of POST /v1/translate."""

    texts: list[Words | Text]
    options: Decoding = Decoding()
    want: list[Literal["alternatives", "tokens", "alignment", "attention", "confidence"]] = []
    split: bool = Field(default=True, description="Split lines into sentences.")

    @property
    def items(self) -> list[Text]:
        """The texts, with each plain string as a `Text`."""
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
    """Body of POST /detect of LibreTranslate."""

    model_config = ConfigDict(extra="ignore")
    q: Words | list[Words]
    api_key: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts as a list, also if the request has one string."""
        return [self.q] if isinstance(self.q, str) else self.q


class LibreBody(DetectBody):
    """Body of POST /translate of LibreTranslate."""

    source: Name = "auto"
    target: Name
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(default=0, ge=0, lt=MOST_HYPOTHESES, strict=False)  # text in a form


class Fault(BaseModel):
    """Body of every error."""

    error: str
    fix: str


_KINDS = (Text, Decoding, TranslateBody, ScoreBody, Pair, DocumentBody, LibreBody)
FIELDS = sorted({name for kind in _KINDS for name in kind.model_fields})


def join_results(
    source: str, split: SplitText, results: Sequence[Result], joiner: str, *, with_attention: bool
) -> dict[str, Any]:
    """Combine the results of all sentences of a text into its answer.

    For one sentence, the answer has the same fields as a JSON line of `nmt translate`. For several
    sentences, ``score`` is the mean, ``log_prob`` the sum, and ``confidence`` the mean weighted by
    source characters (null if a sentence has none). Offsets count characters; words are separated
    by spaces.
    """
    gaps = split.gaps_for(joiner)
    translation, place = "", 0
    sentences: list[dict[str, Any]] = []
    words: dict[str, list[dict[str, Any]]] = {"source": [], "target": []}
    links: Links = ()
    rows: Matrix = ()  # attention: target words times source words
    width = sum(len(sentence.split()) for sentence in split.sentences)
    for before, gap, result in zip(split.gaps, gaps, results, strict=False):
        place, translation = place + len(before), translation + gap
        own = _words(result.source, place), _words(result.text, len(translation))
        first, sizes = (len(words["source"]), len(words["target"])), (len(own[0]), len(own[1]))
        attention, alignment = _of_words(result, *sizes)
        left, right = (0.0,) * first[0], (0.0,) * (width - first[0] - sizes[0])
        if with_attention:
            rows += tuple((*left, *row, *right) for row in attention)
        links += tuple((first[0] + i, first[1] + j) for i, j in alignment)
        probabilities = word_probabilities(result.tokens or (), sizes[1]) or ()
        for word, probability in zip(own[1], probabilities, strict=False):
            word["probability"] = probability
        words["source"] += own[0]
        words["target"] += own[1]
        values = result.as_dict()
        ends = place + len(result.source), len(translation) + len(result.text)
        spans = {"source": [place, ends[0]], "target": [len(translation), ends[1]]}
        sentences.append({**spans, **{x: values[x] for x in _OF_SENTENCE if x in values}})
        place, translation = ends[0], translation + result.text
    translation += gaps[-1]
    if len(results) == 1:
        answer = results[0].as_dict()
    else:
        known = [(x.confidence, len(x.source)) for x in results if x.confidence is not None]
        weight = sum(size for _, size in known) if len(known) == len(results) else 0
        tokens = [each.tokens for each in results if each.tokens is not None]
        score = sum(each.score for each in results) / max(1, len(results))
        log_prob = math.fsum(each.log_prob for each in results)
        answer = Result(
            source,
            translation,
            score,
            alternatives=(Alternative(translation, score, log_prob),) if results else (),
            alarms=tuple(dict.fromkeys(chain(*(each.alarms for each in results)))),
            retried=tuple(dict.fromkeys(chain(*(each.retried for each in results)))),
            alignment=links if any(each.alignment is not None for each in results) else None,
            attention=rows if any(each.attention is not None for each in results) else None,
            log_prob=log_prob,
            tokens=tuple(chain(*tokens)) if tokens else None,
            confidence=round(sum(x * size for x, size in known) / weight, 2) if weight else None,
        ).as_dict()
    answer |= {"source": source, "translation": translation, "sentences": sentences}
    if answer.keys() & {"alignment", "tokens", "attention"}:
        answer["words"] = words
    if not with_attention:
        answer.pop("attention", None)
    return answer


def _of_words(result: Result, source: int, target: int) -> tuple[Matrix, Links]:
    """Return attention and alignment of a sentence, for its numbers of source and target words.

    If the tokenizer changes word borders, the model's words differ from the text's words. Then the
    attention is 0 everywhere, and the alignment is empty.
    """
    rows = result.attention or ()
    if len(rows) == target and all(len(row) == source for row in rows):
        return rows, result.alignment or ()
    return ((0.0,) * source,) * target, ()


def _words(text: str, offset: int) -> list[dict[str, Any]]:
    return [
        {"text": word[0], "start": offset + word.start(), "end": offset + word.end()}
        for word in _WORD.finditer(text)
    ]


def word_probabilities(tokens: Sequence[TokenScore], count: int) -> list[float] | None:
    """Return the probability of each word: the product of its subwords' probabilities.

    Args:
        tokens: Tokens of a translation, with the end tokens of its segments.
        count: Number of words in the translation.

    Returns:
        None if the subwords form a different number of words.

    >>> tokens = [TokenScore("\u2581a", -1.0), TokenScore("b", -1.0), TokenScore("</s>", 0.0)]
    >>> word_probabilities(tokens, 1)
    [0.1353]
    """
    found: list[float] = []
    pieces: list[TokenScore] = []
    for token in tokens:
        if token.piece != _END:
            pieces.append(token)
            continue
        sums: dict[int, float] = {}
        for word, piece in zip(words_of([each.piece for each in pieces]), pieces, strict=True):
            sums[word] = sums.get(word, 0.0) + piece.log_prob
        found += [round(math.exp(total), 4) for total in sums.values()]
        pieces = []
    return found if len(found) == count else None


@dataclass(eq=False)
class RefusedError(Exception):
    """A request that the server refuses, with its status code."""

    status: int
    problem: str
    fix: str
    headers: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": self.problem, "fix": self.fix}


def refusal(error: Exception) -> RefusedError:
    """Convert any error to an answer that reveals nothing about the server."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, RequestValidationError):
        return RefusedError(422, _problems(error), "Correct the request. " + _LISTED)
    if isinstance(error, HTTPException):
        status = 422 if error.status_code == 400 else error.status_code  # a body that is not JSON
        return RefusedError(status, f"{error.detail}.", _LISTED, error.headers)
    if isinstance(error, TimeoutError):
        return RefusedError(504, "The request timed out.", "Send fewer or shorter texts.")
    if isinstance(error, CheckpointError | DeviceError):
        logger.warning("a request failed: %s", error.problem)  # contains paths: not for clients
        problem, fix = ("The model is not available.", "Try again later.")
        return RefusedError(503, problem, fix, RETRY)
    if isinstance(error, NmtError):
        return RefusedError(422, error.problem, error.fix)
    log_fault(error)
    return RefusedError(500, "Internal server error.", "Please report this bug.")


def as_response(error: Exception) -> JSONResponse:
    """Return the HTTP response for an error."""
    refused = refusal(error)
    return JSONResponse(refused.as_dict(), refused.status, refused.headers)


def log_fault(error: BaseException) -> None:
    """Log the type and place of an unexpected error. Its message may contain a client's text."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else "unknown place"
    logger.error("unexpected %s at %s; please report this bug", type(error).__name__, place)


def _problems(error: RequestValidationError) -> str:
    found = list(dict.fromkeys(map(_problem, error.errors())))
    more = f"; and {len(found) - _MOST_PROBLEMS} more" if len(found) > _MOST_PROBLEMS else ""
    return f"{'; '.join(found[:_MOST_PROBLEMS])}{more}."


def _problem(detail: Mapping[str, Any]) -> str:
    if detail["type"] == "json_invalid":
        return f"The body is not JSON: {detail['ctx']['error']} at character {detail['loc'][-1]:,}"
    path = [str(part)[:_MOST_NAME] for part in detail["loc"][1:]]
    # Leave out the types that pydantic tried: they are details of this program.
    shown = (
        x for x in path if x not in ("str", "Text") and not x.startswith(("function-", "list["))
    )
    place = ".".join(shown) or "the body"
    message = detail["msg"]
    if detail["type"] == "extra_forbidden":
        near = nearest_word(path[-1], FIELDS)
        message = "unknown field" + (f" (did you mean {near}?)" if near else "")
    return f"{place}: {message[0].lower()}{message[1:]}"
