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
from itertools import chain
from statistics import fmean
from traceback import extract_tb
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
_TRIED_TYPE = re.compile(r"function-|list\[|(?:str|Text)\Z")
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
        return [Text(text=text) if isinstance(text, str) else text for text in self.texts]


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


_BODIES = (Text, Decoding, TranslateBody, ScoreBody, Pair, DocumentBody, LibreBody)
FIELDS = sorted(set().union(*(body.model_fields for body in _BODIES)))


def join_results(
    source: str, split: SplitText, results: Sequence[Result], joiner: str, *, with_attention: bool
) -> Answer:
    """Combine the results of all sentences of a text into its answer.

    For one sentence, the answer has the same fields as a JSON line of `nmt translate`. For several
    sentences, ``score`` is the mean, ``log_prob`` the sum, and ``confidence`` the mean weighted by
    source characters (null if a sentence has none). Offsets count characters; words are separated
    by spaces.
    """
    gaps = split.gaps_for(joiner)
    num_words = sum(len(sentence.split()) for sentence in split.sentences)
    place = 0  # in the source
    translation = ""
    sentences = []
    source_words = list[Answer]()
    target_words = list[Answer]()
    links: list[tuple[int, int]] = []
    attention: list[tuple[float, ...]] = []  # target words times source words
    for source_gap, gap, result in zip(split.gaps, gaps, results, strict=False):
        place += len(source_gap)
        translation += gap
        sources = _words(result.source, place)
        targets = _words(result.text, len(translation))
        probabilities = word_probabilities(result.tokens or (), len(targets))
        for word, probability in zip(targets, probabilities, strict=False):
            word["probability"] = probability
        before = len(source_words)
        after = num_words - before - len(sources)
        rows, pairs = _of_words(result, len(sources), len(targets))
        left = (0.0,) * before
        right = (0.0,) * after
        attention += (left + row + right for row in rows)
        links += ((before + i, len(target_words) + j) for i, j in pairs)
        source_words += sources
        target_words += targets
        source_span = [place, place + len(result.source)]
        target_span = [len(translation), len(translation) + len(result.text)]
        values = result.as_dict()
        kept = {name: values[name] for name in _OF_SENTENCE}
        sentences.append({"source": source_span, "target": target_span, **kept})
        place += len(result.source)
        translation += result.text
    translation += gaps[-1]
    if len(results) == 1:
        answer = results[0].as_dict()
    else:
        score = sum(result.score for result in results) / max(1, len(results))
        log_prob = math.fsum(result.log_prob for result in results)
        confidences = [x.confidence for x in results if x.confidence is not None]
        confidence = None
        if results and len(confidences) == len(results):
            lengths = [len(result.source) for result in results]
            confidence = round(fmean(confidences, lengths), 2)
        tokens = [result.tokens for result in results if result.tokens is not None]
        alarms = chain.from_iterable(result.alarms for result in results)
        retried = chain.from_iterable(result.retried for result in results)
        optional: dict[str, Any] = {}
        if results:
            optional["alternatives"] = (Alternative(translation, score, log_prob),)
        if any(result.alignment is not None for result in results):
            optional["alignment"] = tuple(links)
        if any(result.attention is not None for result in results):
            optional["attention"] = tuple(attention)
        if tokens:
            optional["tokens"] = tuple(chain.from_iterable(tokens))
        whole = Result(
            source,
            translation,
            score,
            alarms=tuple(dict.fromkeys(alarms)),
            retried=tuple(dict.fromkeys(retried)),
            log_prob=log_prob,
            confidence=confidence,
            **optional,
        )
        answer = whole.as_dict()
    answer |= {"source": source, "translation": translation, "sentences": sentences}
    if answer.keys() & {"alignment", "tokens", "attention"}:
        answer["words"] = {"source": source_words, "target": target_words}
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
    zeros = (0.0,) * source
    return (zeros,) * target, ()


def _words(text: str, offset: int) -> list[Answer]:
    words = []
    for match in _WORD.finditer(text):
        start = offset + match.start()
        words.append({"text": match[0], "start": start, "end": start + len(match[0])})
    return words


def word_probabilities(tokens: Sequence[TokenScore], count: int) -> list[float]:
    """Return the probability of each word: the product of its subwords' probabilities.

    Args:
        tokens: Tokens of a translation, with the end tokens of its segments.
        count: Number of words in the translation.

    Returns:
        Nothing if the subwords form a different number of words.

    >>> tokens = [TokenScore("\u2581a", -1.0), TokenScore("b", -1.0), TokenScore("</s>", 0.0)]
    >>> word_probabilities(tokens, 1)
    [0.1353]
    """
    probabilities = []
    segment = []
    for token in tokens:
        if token.piece != _END:
            segment.append(token)
            continue
        log_probs = defaultdict[int, float](float)
        words = words_of([subword.piece for subword in segment])
        for word, subword in zip(words, segment, strict=True):
            log_probs[word] += subword.log_prob
        probabilities += [round(math.exp(log_prob), 4) for log_prob in log_probs.values()]
        segment = []
    return probabilities if len(probabilities) == count else []


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
        return RefusedError(422, _problems(error), "Correct the request. " + _LISTED)
    if isinstance(error, HTTPException):
        status = error.status_code
        if status == 400:  # a body that is not JSON
            status = 422
        return RefusedError(status, f"{error.detail}.", _LISTED, error.headers)
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
    refused = refusal(error)
    return JSONResponse(refused.as_dict(), refused.status, refused.headers)


def log_fault(error: BaseException) -> None:
    """Log the type and place of an unexpected error. Its message may contain a client's text."""
    place = "unknown place"
    for frame in extract_tb(error.__traceback__)[-1:]:
        place = f"{frame.filename}:{frame.lineno}"
    logger.error("unexpected %s at %s; please report this bug", type(error).__name__, place)


def _problems(error: RequestValidationError) -> str:
    problems = list(dict.fromkeys(map(_problem, error.errors())))
    text = "; ".join(problems[:_MOST_PROBLEMS])
    if len(problems) > _MOST_PROBLEMS:
        text += f"; and {len(problems) - _MOST_PROBLEMS} more"
    return f"{text}."


def _problem(detail: Mapping[str, Any]) -> str:
    _, *path = detail["loc"]
    if detail["type"] == "json_invalid":
        return f"The body is not JSON: {detail['ctx']['error']} at character {path[-1]:,}"
    names = [str(part)[:_MOST_NAME] for part in path]
    # Leave out the types that pydantic tried: they are details of this program.
    shown = [name for name in names if not _TRIED_TYPE.match(name)]
    place = ".".join(shown) or "the body"
    message = detail["msg"]
    if detail["type"] == "extra_forbidden":
        message = "unknown field"
        near = nearest_word(names[-1], FIELDS)
        if near:
            message += f" (did you mean {near}?)"
    return f"{place}: {message[0].lower()}{message[1:]}"
