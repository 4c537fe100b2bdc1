"""From requests to answers: choose the model, split texts into sentences, and batch them.

Prometheus metrics count requests and texts. Their labels never contain text from a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Annotated

from fastapi import Depends
from fastapi import Request as HttpRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nmt.config.data import Direction
from nmt.config.language_codes import matching_pairs
from nmt.device import own_cores
from nmt.errors import NmtError
from nmt.extras.serving import bodies
from nmt.extras.serving.batching import Batcher
from nmt.extras.serving.bodies import Answer, RefusedError, join_results
from nmt.extras.serving.documents import read_document
from nmt.extras.serving.models import Route, ServedModel, TranslationTask, detect
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
        registry = CollectorRegistry()
        self.registry = registry
        self.responses = Counter(
            "nmt_responses", "Responses by path and status.", ["path", "status"], registry=registry
        )
        self.sentences = Counter(
            "nmt_sentences", "Sentences of accepted requests.", registry=registry
        )
        self.characters = Counter(
            "nmt_characters", "Characters in accepted texts.", registry=registry
        )
        self.seconds = Histogram(
            "nmt_request_seconds", "Seconds from a complete request to the end of the response.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.batches = Histogram(
            "nmt_batch_texts", "Sentences per batch.", buckets=_TEXTS, registry=registry
        )
        self.active = Gauge("nmt_active_requests", "Requests in progress.", registry=registry)
        self.waiting = Gauge("nmt_waiting_texts", "Sentences in the queue.", registry=registry)


class Service:
    """Translates for clients.

    Args:
        models: Models by the names that clients use.
        options: Options of the server.
    """

    def __init__(self, models: Mapping[str, ServedModel], options: ServeOptions) -> None:
        self.models = models
        self.options = options
        self.metrics = Metrics()
        threads = options.threads or own_cores()
        self.batcher = Batcher(threads, self.metrics.batches.observe)
        self.metrics.waiting.set_function(lambda: self.batcher.num_waiting)
        self.is_stopping = False
        # If several models have the same languages, requests by language use the first model.
        self.pairs: dict[Direction, ServedModel] = {}
        for model in models.values():
            for pair in model.directions:
                self.pairs.setdefault(pair, model)

    def check_size(self, texts: int, characters: int) -> None:
        """Check a request against the limits.

        Raises:
            RefusedError: The request has too many texts or characters.
        """
        limits = {
            "texts": (texts, self.options.max_texts),
            "characters": (characters, self.options.max_chars),
        }
        for name, (count, most) in limits.items():
            if count > most:
                problem = f"The request has {count:,} {name}; at most {most:,} are allowed."
                raise RefusedError(413, problem, "Send several smaller requests.")

    def detect(self, text: str, codes: Sequence[str]) -> list[tuple[str, float]]:
        """Rank the languages of a text; see `nmt.extras.serving.models.detect`."""
        for model in self.models.values():
            if model.profiles.cover(codes):
                return detect(text, codes, model.profiles)
        return detect(text, codes)

    async def choose(self, choice: bodies.Choice, texts: Sequence[str]) -> tuple[Route, Answer]:
        """Return model and languages of a request, and the fields of the answer that name them.

        Raises:
            RefusedError: No model matches, or several models match.
        """
        source = choice.source
        target = choice.target
        detected = []
        if source == "auto":
            sources = {pair.source for pair in matching_pairs((None, target), self.pairs)}
            sample = " ".join(texts)[:_DETECTED_CHARACTERS]
            detected = await asyncio.to_thread(self.detect, sample, sorted(sources))
            if detected:
                source, _ = detected[0]
        served = self.pairs
        if choice.model is not None:
            if choice.model not in self.models:
                fix = f"Use one of these models: {', '.join(self.models)}."
                raise RefusedError(422, f"There is no model {choice.model[:40]!r}.", fix)
            named = self.models[choice.model]
            served = dict.fromkeys(named.directions, named)
        fitting = matching_pairs((source, target), served)
        shown = ", ".join(map(str, sorted(served)[:_MOST_SHOWN]))
        if choice.model is not None and not fitting:
            raise RefusedError(422, f"{choice.model} translates {shown}.", "Change the languages.")
        is_clear = len(fitting) == 1
        # A text can have the tag of its language, if the model of a group is chosen by name.
        if not is_clear and (choice.model is None or target is not None):
            asked = f"{source or 'any language'} to {target or 'any language'}"[:80]
            number = "Several models translate" if fitting else "No model translates"
            fix = f"Set source and target to one of these pairs: {shown}."
            raise RefusedError(422, f"{number} {asked}.", fix)
        model = served[fitting[0]]
        route = Route(model, model.source, model.target, (None, None))
        if is_clear:
            route = Route(model, *fitting[0], model.to_choose(fitting[0]))
        about = {"model": model.name, "source": route.source, "target": route.target}
        if detected:
            return route, about | {"detected": detected[0][1]}
        return route, about

    def translate(
        self, body: bodies.TranslateBody, route: Route, client: str
    ) -> AsyncGenerator[Answer]:
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
        options = body.options.changes()
        if "alternatives" in body.want and "n_best" not in options:
            default = route.model.translator.options.decoding.beam_size
            options["n_best"] = options.get("beam_size", default)
        task = TranslationTask(route.model, options, frozenset(outputs))
        return self._answers(body, task, route, client)

    async def _answers(
        self, body: bodies.TranslateBody, task: TranslationTask, route: Route, client: str
    ) -> AsyncGenerator[Answer]:
        joiner = joiner_for(route.target)
        with_attention = "attention" in body.want
        items = []
        requests = []
        for item in body.items:
            split = split_text(item.text, route.source, into_sentences=body.split)
            items.append((item, split))
            for number, sentence in enumerate(split.sentences):
                request = item.request(sentence, route.languages, is_first=number == 0)
                requests.append(request)
        with self._submitted(task, requests, client) as futures:
            rest = iter(futures)
            for item, split in items:
                of_text = islice(rest, len(split.sentences))
                results = await asyncio.gather(*of_text, return_exceptions=True)
                answer: Answer = {}
                if item.id is not None:
                    answer["id"] = item.id
                good = [result for result in results if isinstance(result, Result)]
                errors = [error for error in results if isinstance(error, BaseException)]
                if not errors:
                    answer |= join_results(
                        item.text, split, good, joiner, with_attention=with_attention
                    )
                else:
                    problem = "The engine failed on this text."
                    fix = "Please report this bug."
                    if isinstance(errors[0], NmtError):
                        problem = errors[0].problem
                        fix = errors[0].fix
                    answer |= {"source": item.text, "error": problem, "fix": fix}
                yield answer

    @contextmanager
    def _submitted(
        self, task: TranslationTask, requests: Sequence[Request], client: str
    ) -> Iterator[Sequence[asyncio.Future[Result]]]:
        """Queue all sentences at once, and drop those that are not translated at the end.

        Sentences with and without constraints have separate batches.
        """
        self.metrics.sentences.inc(len(requests))
        self.metrics.characters.inc(sum(len(request.text) for request in requests))
        tasks = {flag: replace(task, is_constrained=flag) for flag in (False, True)}
        units = [(tasks[request.is_constrained], request) for request in requests]
        futures = self.batcher.submit(client, units)
        try:
            yield futures
        finally:
            for future in futures:
                future.cancel()

    async def document(self, body: bodies.DocumentBody, route: Route, client: str) -> Answer:
        """Return the translated document, its number of sentences, and its number of warnings.

        Raises:
            NmtError: The document does not have its format, a sentence cannot be translated, or the
                options contradict each other.
        """
        document = await asyncio.to_thread(read_document, body.text, body.format, route.source)
        outputs = frozenset[str]()
        if not route.model.is_export:
            outputs = frozenset(["alignments"])
        task = TranslationTask(route.model, body.options.changes(), outputs)
        source, target = route.languages
        requests = [
            Request(sentence, source_language=source, target_language=target)
            for sentence in document.sentences
        ]
        with self._submitted(task, requests, client) as futures:
            results = await asyncio.gather(*futures)
        translations = [(result.text, result.alignment) for result in results]
        joiner = joiner_for(route.target)
        text = await asyncio.to_thread(document.rebuild, translations, joiner)
        alarms = sum(bool(result.alarms) for result in results)
        return {"format": body.format, "text": text, "num_texts": len(results), "alarms": alarms}

    async def score(
        self, route: Route, pairs: Sequence[tuple[str, str]], tag: str | None, client: str
    ) -> list[Answer]:
        """Score given translations in one of the batcher's threads."""
        options = LanguageOptions(*route.languages, tag)
        return await self.batcher.run(client, lambda: route.model.score(pairs, options))


async def _service(request: HttpRequest) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
