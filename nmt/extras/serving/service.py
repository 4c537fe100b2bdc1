"""From requests to answers: choose the model, split texts into sentences, and batch them.

Prometheus metrics count requests and texts. Their labels never contain text from a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Annotated, NamedTuple

from cachetools import LRUCache
from fastapi import Depends
from fastapi import Request as HttpRequest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nmt.config.data import Direction
from nmt.config.language_codes import matching_pairs
from nmt.device import own_cores
from nmt.errors import NmtError
from nmt.extras.serving import bodies
from nmt.extras.serving.batching import Batcher
from nmt.extras.serving.bodies import Answer, RefusedError, answer_of
from nmt.extras.serving.documents import read_document
from nmt.extras.serving.models import Route, ServedModel, TranslationTask, detect
from nmt.extras.serving.options import ServeOptions
from nmt.inference.direction import LanguageOptions
from nmt.inference.glossary import Glossary
from nmt.inference.placeholders import placeholder_pattern
from nmt.inference.request import Request, Result
from nmt.inference.segment import joiner_for, split_line
from nmt.text.identification import clear_label
from nmt.text.sentences import SplitText

# Value of ``want`` in a request -> output of an engine.
_OUTPUTS = {"tokens": "token_scores", "alignment": "alignments", "attention": "attention"}
_DETECTED_CHARACTERS = 2000  # Start of a text from which its language is detected.
_FEWEST_LETTERS = 20  # A text of at most so many letters is always translated.
_MAX_SHOWN_PAIRS = 20  # pairs of languages in an error
_MAX_PORTION = 16  # sentences that are translated at once if each is answered by itself
# Longest text with attention: a matrix has source words times target words.
_ATTENDED_CHARACTERS = 2000
# Upper limits of the buckets of two histograms.
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Memory of a cached sentence for each character of the `repr` of its result (measured: 1.6 to 1.9).
_BYTES_OF_CHARACTER = 2
# A sentence with the model, the options and the outputs that its translation depends on.
_Sentence = tuple[TranslationTask, Request]


class _Part(NamedTuple):
    """What one answer is for: a text of a request, or a sentence of it."""

    text: str
    id: str | None
    route: Route
    split: SplitText
    gaps: Sequence[str]  # White space around the translations, one more than there are sentences.
    sentences: Sequence[_Sentence]

    def by_sentence(self) -> Iterator[_Part]:
        """Yield each sentence with the white space before it, and the white space at the end."""
        for index, source_gap in enumerate(self.split.gaps):
            here = slice(index, index + 1)
            texts = self.split.sentences[here]  # one sentence; none at the end
            text = source_gap + "".join(texts)
            ends = ("",) * len(texts)
            split = SplitText((source_gap, *ends), texts)
            gaps = (self.gaps[index], *ends)
            if text or not index:
                yield _Part(text, self.id, self.route, split, gaps, self.sentences[here])

    def answer(self, outcomes: Sequence[Result | BaseException], *, with_attention: bool) -> Answer:
        """Return the answer: the translation, or the first error."""
        answer: Answer = {}
        if self.id is not None:
            answer["id"] = self.id
        if self.route.probability is not None:
            answer["route"] = self.route.fields
        results = [result for result in outcomes if isinstance(result, Result)]
        errors = [error for error in outcomes if isinstance(error, BaseException)]
        if not errors:
            return answer | answer_of(
                self.text, self.split, self.gaps, results, with_attention=with_attention
            )
        error = errors[0]
        if not isinstance(error, NmtError):
            error = NmtError("The engine failed on this text.", fix="Please report this bug.")
        return answer | {"source": self.text, "error": error.problem, "fix": error.fix}


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
        self.hits = Counter(
            "nmt_cache_hits", "Sentences whose translation was in the cache.", registry=registry
        )
        self.misses = Counter(
            "nmt_cache_misses", "Sentences whose translation was not in the cache.",
            registry=registry,
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
        # Only the event loop uses it, so it needs no lock.
        self._cache = LRUCache[_Sentence, Result](options.cache * 1_000_000, _num_bytes)
        # Pair of languages -> the model that translates it, for requests by language. If several
        # models have the same languages, it is the first one.
        self.pairs = dict[Direction, ServedModel]()
        for model in models.values():
            for pair in model.directions:
                self.pairs.setdefault(pair, model)

    def check_size(self, num_texts: int, num_characters: int) -> None:
        """Check a request against the limits.

        Raises:
            RefusedError: The request has too many texts or characters.
        """
        limits = {
            "texts": (num_texts, self.options.max_texts),
            "characters": (num_characters, self.options.max_chars),
        }
        for unit, (count, limit) in limits.items():
            if count > limit:
                raise RefusedError(
                    413,
                    f"The request has {count:,} {unit}; at most {limit:,} are allowed.",
                    "Send several smaller requests.",
                )

    def detect(self, text: str, codes: Sequence[str]) -> list[tuple[str, float]]:
        """Rank the languages of a text; see `nmt.extras.serving.models.detect`.

        The profiles are those of the first model that has profiles of all languages, if any.
        """
        for model in self.models.values():
            if model.profiles.cover(codes):
                return detect(text, codes, model.profiles)
        return detect(text, codes)

    async def choose(self, choice: bodies.Choice, texts: Sequence[str]) -> list[Route]:
        """Return model and languages of each text.

        Args:
            choice: The request. Without a source or target, all languages match.
            texts: The texts, to detect the language of each if the source is ``auto``.

        Raises:
            RefusedError: No model matches, or several models match.
        """
        if choice.source != "auto":
            return [self._route(choice, choice.source)] * len(texts)
        return await asyncio.to_thread(lambda: [self._detect(choice, text) for text in texts])

    def _detect(self, choice: bodies.Choice, text: str) -> Route:
        """Return model and languages of a text whose language is detected.

        A text that is clearly in none of the source languages is not translated.
        """
        sample = placeholder_pattern().sub(" ", text)[:_DETECTED_CHARACTERS]
        pairs = matching_pairs((None, choice.target), self._models_of(choice))
        sources = sorted({pair.source for pair in pairs})
        labels = [clear_label(sample, code, min_letters=_FEWEST_LETTERS) for code in sources]
        (source, probability), *_ = self.detect(sample, sources) or [("auto", 0.0)]
        route = replace(self._route(choice, source), probability=probability)
        label = labels[0]
        if label is None or None in labels:
            return route
        # All labels are the same: that of the likeliest language.
        ((_, probability),) = detect(sample, [label])
        return replace(route, source=label, probability=probability, keeps_text=True)

    def _models_of(self, choice: bodies.Choice) -> Mapping[Direction, ServedModel]:
        """Return the models to choose from, by their languages."""
        if choice.model is None:
            return self.pairs
        if choice.model not in self.models:
            raise RefusedError(
                422,
                f"There is no model {choice.model[:40]!r}.",
                f"Use one of these models: {', '.join(self.models)}.",
            )
        model = self.models[choice.model]
        return dict.fromkeys(model.directions, model)

    def _route(self, choice: bodies.Choice, source: str | None) -> Route:
        """Return model and languages for a text in the language ``source``."""
        target = choice.target
        model_by_pair = self._models_of(choice)
        pairs = matching_pairs((source, target), model_by_pair)
        shown_pairs = ", ".join(map(str, sorted(model_by_pair)[:_MAX_SHOWN_PAIRS]))
        if choice.model is not None and not pairs:
            raise RefusedError(
                422, f"{choice.model} translates {shown_pairs}.", "Change the languages."
            )
        is_clear = len(pairs) == 1
        # If a model is chosen by name, its texts can have the tag of their target language, so
        # several pairs are allowed without a target.
        if not is_clear and (choice.model is None or target is not None):
            direction = f"{source or 'any language'} to {target or 'any language'}"[:80]
            subject = "Several models translate" if pairs else "No model translates"
            raise RefusedError(
                422,
                f"{subject} {direction}.",
                f"Set source and target to one of these pairs: {shown_pairs}.",
            )
        model = model_by_pair[pairs[0]]
        if is_clear:
            return Route(model, *pairs[0], model.to_choose(pairs[0]))
        return Route(model, model.source, model.target, (None, None))

    def translate(
        self, body: bodies.TranslateBody, routes: Sequence[Route], client: str
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
            raise RefusedError(
                413,
                f"Attention is limited to texts of {_ATTENDED_CHARACTERS:,} characters.",
                "Request alignment instead of attention, or send shorter texts.",
            )
        outputs = {_OUTPUTS[name] for name in body.want if name in _OUTPUTS}
        if "alignments" in outputs:
            # The answer needs the attention to see whether the words of model and text match.
            outputs.add("attention")
        tasks = {}  # by the name of the model, and whether the request has constraints
        for model in {route.model for route in routes}:
            options = body.options.changes()
            if "alternatives" in body.want and "n_best" not in options:
                default_size = model.translator.options.decoding.beam_size
                options["n_best"] = options.get("beam_size", default_size)
            for flag in (False, True):
                tasks[model.name, flag] = TranslationTask(model, options, frozenset(outputs), flag)
        return self._answers(body, tasks, routes, client, body.terms())

    async def _answers(
        self,
        body: bodies.TranslateBody,
        tasks: Mapping[tuple[str, bool], TranslationTask],
        routes: Sequence[Route],
        client: str,
        glossary: Glossary | None,
    ) -> AsyncGenerator[Answer]:
        """Yield the answers of `translate`.

        Sentences of all texts are queued at once, unless each is answered by itself.
        """
        with_attention = "attention" in body.want
        parts = list[_Part]()
        for item, route in zip(body.items, routes, strict=True):
            defaults = route.model.translator.options
            max_sentences = defaults.max_sentences if body.split else None
            split = SplitText((item.text,), ())
            if not route.keeps_text:
                protect = defaults.decoding.protect
                split = split_line(
                    item.text, route.source, max_sentences, protect, defaults.max_characters
                )
            sentences = list[_Sentence]()
            for index, sentence in enumerate(split.sentences):
                request = item.request(sentence, route.languages, is_first=index == 0)
                task = tasks[route.model.name, request.is_constrained]
                sentences.append((task, replace(request, glossary=glossary)))
            gaps = split.gaps_for(joiner_for(route.target))
            part = _Part(item.text, item.id, route, split, gaps, sentences)
            parts += part.by_sentence() if body.by_sentence else [part]
        # Answers by sentence: the first one soon, and then more and more at once.
        size = 1 if body.by_sentence else len(parts)
        while parts:
            portion = parts[:size]
            parts = parts[size:]
            size = min(2 * size, _MAX_PORTION)
            sentences = list(chain.from_iterable(part.sentences for part in portion))
            with self._submit(sentences, client) as futures:
                remaining_futures = iter(futures)
                for part in portion:
                    part_futures = islice(remaining_futures, len(part.sentences))
                    outcomes = await asyncio.gather(*part_futures, return_exceptions=True)
                    yield part.answer(outcomes, with_attention=with_attention)

    @contextmanager
    def _submit(
        self, sentences: Sequence[_Sentence], client: str
    ) -> Iterator[Sequence[asyncio.Future[Result]]]:
        """Queue all sentences that are not in the cache, and yield the futures of all results.

        At the end of the context, the sentences that are not translated yet are dropped.

        Sentences with and without constraints have separate batches.
        """
        self.metrics.sentences.inc(len(sentences))
        self.metrics.characters.inc(sum(len(request.text) for _, request in sentences))
        cached_results = list(map(self._cache.get, sentences))
        missing = []
        for sentence, result in zip(sentences, cached_results, strict=True):
            if result is None:
                missing.append(sentence)
        self.metrics.hits.inc(len(sentences) - len(missing))
        self.metrics.misses.inc(len(missing))
        queued = iter(self.batcher.submit(client, missing))
        futures = []
        for sentence, result in zip(sentences, cached_results, strict=True):
            if result is None:
                future = next(queued)
                future.add_done_callback(partial(self._keep, sentence))
            else:
                future = asyncio.get_running_loop().create_future()
                future.set_result(result)
            futures.append(future)
        try:
            yield futures
        finally:
            for future in futures:
                future.cancel()

    def _keep(self, sentence: _Sentence, future: asyncio.Future[Result]) -> None:
        """Add a translation to the cache, unless it failed or was dropped."""
        _, request = sentence
        if future.cancelled() or future.exception() is not None:
            return
        if request.glossary is None:  # a glossary can be larger than the cache
            with suppress(ValueError):  # larger than the cache
                self._cache[sentence] = future.result()

    async def document(self, body: bodies.DocumentBody, route: Route, client: str) -> Answer:
        """Return the translated document, its number of sentences, and its number of warnings.

        Raises:
            NmtError: The document does not have its format, a sentence cannot be translated, or the
                options contradict each other.
        """
        if route.keeps_text:
            return {"format": body.format, "text": body.text, "num_texts": 0, "alarms": 0}
        defaults = route.model.translator.options
        document = await asyncio.to_thread(
            read_document,
            body.text,
            body.format,
            route.source,
            defaults.max_sentences,
            defaults.decoding.protect,
            defaults.max_characters,
        )
        outputs = frozenset[str]()
        if not route.model.is_export:
            outputs = frozenset(["alignments"])
        task = TranslationTask(route.model, body.options.changes(), outputs)
        source, target = route.languages
        glossary = body.terms()
        requests = [
            Request(sentence, source_language=source, target_language=target, glossary=glossary)
            for sentence in document.sentences
        ]
        with self._submit([(task, request) for request in requests], client) as futures:
            results = await asyncio.gather(*futures)
        translations = [(result.text, result.alignment) for result in results]
        joiner = joiner_for(route.target)
        text = await asyncio.to_thread(document.rebuild, translations, joiner)
        num_alarms = sum(bool(result.alarms) for result in results)  # sentences with an alarm
        num_texts = len(results)
        return {"format": body.format, "text": text, "num_texts": num_texts, "alarms": num_alarms}

    async def score(
        self, route: Route, pairs: Sequence[tuple[str, str]], tag: str | None, client: str
    ) -> list[Answer]:
        """Score given translations in one of the batcher's threads."""
        options = LanguageOptions(*route.languages, tag)
        return await self.batcher.run(client, lambda: route.model.score(pairs, options))


def _num_bytes(result: Result) -> int:
    """Estimate the memory of a result and of its sentence."""
    return _BYTES_OF_CHARACTER * len(repr(result))


async def _service(request: HttpRequest) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
