"""From requests to answers: choose the model, split texts into sentences, and batch them.

Prometheus metrics count requests and texts. Their labels never contain text from a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Annotated, Any

from fastapi import Depends
from fastapi import Request as HttpRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nmt.config.language_codes import matching_pairs
from nmt.config.loader import change_options
from nmt.device import own_cores
from nmt.errors import NmtError
from nmt.extras.serving import bodies
from nmt.extras.serving.batching import Batcher
from nmt.extras.serving.bodies import RefusedError, join_results
from nmt.extras.serving.documents import read_document
from nmt.extras.serving.models import Route, ServedModel, Task, detect, request_for
from nmt.extras.serving.options import ServeOptions
from nmt.inference.direction import LanguageOptions
from nmt.inference.request import Request, Result
from nmt.inference.segment import joiner_for
from nmt.text.sentences import split_text

_OUTPUTS = {"tokens": "token_scores", "alignment": "alignments", "attention": "attention"}
_DETECTED_CHARACTERS = 2000
_MOST_SHOWN = 20  # pairs of languages in an error
# Longest text with attention: a matrix has source words times target words.
_ATTENDED_CHARACTERS = 2000
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Prometheus metrics of one server."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.responses = Counter(
            "nmt_responses", "Responses by path and status.", ["path", "status"], registry=own
        )
        self.sentences = Counter("nmt_sentences", "Sentences of accepted requests.", registry=own)
        self.characters = Counter("nmt_characters", "Characters in accepted texts.", registry=own)
        self.seconds = Histogram(
            "nmt_request_seconds", "Seconds from a complete request to the end of the response.",
            buckets=_SECONDS, registry=own,
        )  # fmt: skip
        self.batches = Histogram(
            "nmt_batch_texts", "Sentences per batch.", buckets=_TEXTS, registry=own
        )
        self.active = Gauge("nmt_active_requests", "Requests in progress.", registry=own)
        self.waiting = Gauge("nmt_waiting_texts", "Sentences in the queue.", registry=own)


class Service:
    """Translates for clients.

    Args:
        models: Models by the names that clients use.
        options: Options of the server.
    """

    def __init__(self, models: Mapping[str, ServedModel], options: ServeOptions) -> None:
        self.models, self.options, self.metrics = models, options, Metrics()
        threads = options.threads or own_cores()
        self.batcher = Batcher(threads, self.metrics.batches.observe)
        self.metrics.waiting.set_function(lambda: self.batcher.num_waiting)
        self.is_stopping = False
        # If several models have the same languages, requests by language use the first model.
        self.pairs = {pair: x for x in reversed([*models.values()]) for pair in x.directions}

    def check_size(self, texts: int, characters: int) -> None:
        """Check a request against the limits.

        Raises:
            RefusedError: The request has too many texts or characters.
        """
        most_texts, most_characters = self.options.max_texts, self.options.max_chars
        limits = ("texts", texts, most_texts), ("characters", characters, most_characters)
        for name, count, most in limits:
            if count > most:
                problem = f"The request has {count:,} {name}; at most {most:,} are allowed."
                raise RefusedError(413, problem, "Send several smaller requests.")

    def detect(self, text: str, codes: Sequence[str]) -> list[tuple[str, float]]:
        """Rank the languages of a text; see `nmt.extras.serving.models.detect`."""
        for model in self.models.values():
            if model.profiles.cover(codes):
                return detect(text, codes, model.profiles)
        return detect(text, codes)

    async def choose(
        self, choice: bodies.Choice, texts: Sequence[str]
    ) -> tuple[Route, dict[str, Any]]:
        """Return model and languages of a request, and the fields of the answer that name them.

        Raises:
            RefusedError: No model matches, or several models match.
        """
        source, target, about = choice.source, choice.target, dict[str, Any]()
        if source == "auto":
            sources = sorted({pair[0] for pair in matching_pairs((None, target), self.pairs)})
            sample = " ".join(texts)[:_DETECTED_CHARACTERS]
            for code, sure in (await asyncio.to_thread(self.detect, sample, sources))[:1]:
                source, about = code, {"detected": sure}
        served = self.pairs
        if choice.model is not None:
            if (model := self.models.get(choice.model)) is None:
                fix = f"Use one of these models: {', '.join(self.models)}."
                raise RefusedError(422, f"There is no model {choice.model[:40]!r}.", fix)
            served = dict.fromkeys(model.directions, model)
        fits = matching_pairs((source, target), served)
        shown = ", ".join(map(str, sorted(served)[:_MOST_SHOWN]))
        if choice.model is not None and not fits:
            raise RefusedError(422, f"{choice.model} translates {shown}.", "Change the languages.")
        # A text can have the tag of its language, if the model of a group is chosen by name.
        if len(fits) != 1 and (choice.model is None or target is not None):
            asked = f"{source or 'any language'} to {target or 'any language'}"[:80]
            number = "Several models translate" if fits else "No model translates"
            fix = f"Set source and target to one of these pairs: {shown}."
            raise RefusedError(422, f"{number} {asked}.", fix)
        model, is_one = served[fits[0]], len(fits) == 1
        pair = fits[0] if is_one else (model.source, model.target)
        route = Route(model, *pair, is_one and len(model.directions) > 1)
        about = {"model": model.name, "source": pair[0], "target": pair[1], **about}
        return route, about

    def translate(
        self, body: bodies.TranslateBody, route: Route, client: str
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield the answer for each text in order, each as soon as it is ready.

        A text that cannot be translated gets ``error`` and ``fix``. When the caller closes the
        generator, the remaining texts are dropped.

        Raises:
            ConfigError: The options contradict each other.
            RefusedError: Attention was requested for a long text.
        """
        longest = max((len(item.text) for item in body.items), default=0)
        if "attention" in body.want and longest > _ATTENDED_CHARACTERS:
            problem = f"Attention is limited to texts of {_ATTENDED_CHARACTERS:,} characters."
            fix = "Request alignment instead of attention, or send shorter texts."
            raise RefusedError(413, problem, fix)
        outputs = {_OUTPUTS[name] for name in body.want if name in _OUTPUTS}
        if "alignments" in outputs:  # the attention shows whether the words match, see `_of_words`
            outputs.add("attention")
        model, changes = route.model, body.options.changes()
        own = model.translator.options.decoding
        if "alternatives" in body.want and "n_best" not in changes:
            changes["n_best"] = changes.get("beam_size", own.beam_size)
        change_options(own, changes)  # checks the options before the answer begins
        task = Task(model, tuple(sorted(changes.items())), frozenset(outputs))
        return self._answers(body, task, route, client)

    async def _answers(
        self, body: bodies.TranslateBody, task: Task, route: Route, client: str
    ) -> AsyncGenerator[dict[str, Any]]:
        language, joiner = route.source, joiner_for(route.target)
        splits = [split_text(item.text, language, into_sentences=body.split) for item in body.items]
        requests = [
            item.request(sentence, route.languages, is_first=not number)
            for item, split in zip(body.items, splits, strict=True)
            for number, sentence in enumerate(split.sentences)
        ]
        ends = accumulate((len(split.sentences) for split in splits), initial=0)
        futures = self._submit(task, requests, client)
        try:
            for item, split, (start, end) in zip(body.items, splits, pairwise(ends), strict=True):
                results = await asyncio.gather(*futures[start:end], return_exceptions=True)
                values: dict[str, Any] = {} if item.id is None else {"id": item.id}
                good = [result for result in results if isinstance(result, Result)]
                if len(good) == len(results):
                    shown = "attention" in body.want
                    answer = join_results(item.text, split, good, joiner, with_attention=shown)
                    yield values | answer
                    continue
                error = next(each for each in results if isinstance(each, BaseException))
                problem, fix = "The engine failed on this text.", "Please report this bug."
                if isinstance(error, NmtError):
                    problem, fix = error.problem, error.fix
                yield {**values, "source": item.text, "error": problem, "fix": fix}
        finally:
            for future in futures:
                future.cancel()

    def _submit(
        self, task: Task, requests: Sequence[Request], client: str
    ) -> list[asyncio.Future[Result]]:
        """Queue all sentences at once, those with and without constraints separately."""
        self.metrics.sentences.inc(len(requests))
        self.metrics.characters.inc(sum(len(request.text) for request in requests))
        tasks = {flag: replace(task, is_constrained=flag) for flag in (False, True)}
        return self.batcher.submit(client, [(tasks[x.is_constrained], x) for x in requests])

    async def document(
        self, body: bodies.DocumentBody, route: Route, client: str
    ) -> dict[str, Any]:
        """Return the translated document, its number of sentences, and its number of warnings.

        Raises:
            NmtError: The document does not have its format, a sentence cannot be translated, or the
                options contradict each other.
        """
        document = await asyncio.to_thread(read_document, body.text, body.format, route.source)
        model, changes = route.model, body.options.changes()
        change_options(model.translator.options.decoding, changes)
        outputs = frozenset[str]() if model.is_export else frozenset({"alignments"})
        task = Task(model, tuple(sorted(changes.items())), outputs)
        requests = [request_for(each, route.languages) for each in document.sentences]
        futures = self._submit(task, requests, client)
        try:
            results = await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()
        found = [(result.text, result.alignment) for result in results]
        text = await asyncio.to_thread(document.rebuild, found, joiner_for(route.target))
        alarms = sum(bool(result.alarms) for result in results)
        return {"format": body.format, "text": text, "num_texts": len(results), "alarms": alarms}

    async def score(
        self, route: Route, pairs: Sequence[tuple[str, str]], tag: str | None, client: str
    ) -> list[dict[str, Any]]:
        """Score given translations in one of the batcher's threads."""
        options = LanguageOptions(*route.languages, tag)
        return await self.batcher.run(client, lambda: route.model.score(pairs, options))


async def _service(request: HttpRequest) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
