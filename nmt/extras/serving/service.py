"""Requests -> answers: which model, which sentences, which batch. What happens is counted.

No label of a count holds what a client sent.
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

from nmt.config.loader import change_options
from nmt.device import own_cores
from nmt.errors import NmtError
from nmt.extras.serving import bodies
from nmt.extras.serving.batching import Batcher
from nmt.extras.serving.bodies import RefusedError, join_results
from nmt.extras.serving.documents import read_document
from nmt.extras.serving.models import ServedModel, Task, detect
from nmt.extras.serving.options import ServeOptions
from nmt.inference.request import Request, Result
from nmt.inference.segment import joiner_for
from nmt.text.sentences import split_text

_OUTPUTS = {"tokens": "token_scores", "alignment": "alignments", "attention": "attention"}
_DETECTED_CHARACTERS = 2000
# Of a text whose attention is shown: its size is the product of the words of both sides.
_ATTENDED_CHARACTERS = 2000
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.responses = Counter(
            "nmt_responses", "Answers by path and status.", ["path", "status"], registry=own
        )
        self.sentences = Counter("nmt_sentences", "Sentences of accepted requests.", registry=own)
        self.characters = Counter("nmt_characters", "Their characters.", registry=own)
        self.seconds = Histogram(
            "nmt_request_seconds", "From the whole request to the end of its answer.",
            buckets=_SECONDS, registry=own,
        )  # fmt: skip
        self.batches = Histogram(
            "nmt_batch_texts", "Sentences of a batch.", buckets=_TEXTS, registry=own
        )
        self.active = Gauge("nmt_active_requests", "Requests that are answered now.", registry=own)
        self.waiting = Gauge("nmt_waiting_texts", "Sentences that wait.", registry=own)


class Service:
    """Translates for clients.

    Args:
        models: By name.
        options: Of the server.
    """

    def __init__(self, models: Mapping[str, ServedModel], options: ServeOptions) -> None:
        self.models, self.options, self.metrics = models, options, Metrics()
        threads = options.threads or own_cores()
        self.batcher = Batcher(threads, self.metrics.batches.observe)
        self.metrics.waiting.set_function(lambda: self.batcher.num_waiting)
        self.is_stopping = False
        # The first model of a pair is the one that is meant by its languages.
        self.pairs = {(x.source, x.target): x for x in reversed([*models.values()])}

    def check_size(self, texts: int, characters: int) -> None:
        """Check a request against the limits.

        Raises:
            RefusedError: It has too many texts or characters.
        """
        most_texts, most_characters = self.options.max_texts, self.options.max_chars
        limits = ("texts", texts, most_texts), ("characters", characters, most_characters)
        for name, count, most in limits:
            if count > most:
                problem = f"The request has {count:,} {name}; at most {most:,} are allowed."
                raise RefusedError(413, problem, "Send several smaller requests.")

    async def choose(
        self, choice: bodies.Choice, texts: Sequence[str]
    ) -> tuple[ServedModel, dict[str, Any]]:
        """Return the model of a request, and what its answer says of the model.

        Raises:
            RefusedError: No model is meant, or several could be.
        """
        source, target, about = choice.source, choice.target, dict[str, Any]()
        if source == "auto":
            sources = sorted({a for a, b in self.pairs if target in (None, b)})
            sample = " ".join(texts)[:_DETECTED_CHARACTERS]
            for code, sure in (await asyncio.to_thread(detect, sample, sources))[:1]:
                source, about = code, {"detected": sure}
        if choice.model is not None:
            if (model := self.models.get(choice.model)) is None:
                fix = f"Use one of {', '.join(self.models)}."
                raise RefusedError(422, f"There is no model {choice.model[:40]!r}.", fix)
            if source not in (None, model.source) or target not in (None, model.target):
                problem = f"{model.name} translates {model.source}-{model.target}."
                raise RefusedError(422, problem, "Leave source and target out.")
        else:
            pairs = [(a, b) for a, b in self.pairs if source in (None, a) and target in (None, b)]
            fits = [self.pairs[pair] for pair in pairs]
            if len(fits) != 1:
                asked = f"{source or '?'}-{target or '?'}"[:80]
                what = "could mean several models" if fits else "is not served"
                served = ", ".join("-".join(pair) for pair in sorted(self.pairs))
                fix = f"Give source and target, one of {served}."
                raise RefusedError(422, f"{asked} {what}.", fix)
            model = fits[0]
        about = {"model": model.name, "source": model.source, "target": model.target, **about}
        return model, about

    def translate(
        self, body: bodies.TranslateBody, model: ServedModel, client: str
    ) -> AsyncGenerator[dict[str, Any]]:
        """Return the answer for each text, in order, as soon as it is there.

        A text that cannot be translated gets ``error`` and ``fix``. When the caller ends early, the
        rest is dropped.

        Raises:
            ConfigError: The options contradict each other.
            RefusedError: Attention is wanted for a long text.
        """
        longest = max((len(item.text) for item in body.items), default=0)
        if "attention" in body.want and longest > _ATTENDED_CHARACTERS:
            problem = f"Attention is limited to texts of {_ATTENDED_CHARACTERS:,} characters."
            raise RefusedError(413, problem, "Use `want` alignment, or send shorter texts.")
        outputs = {_OUTPUTS[name] for name in body.want if name in _OUTPUTS}
        if "alignments" in outputs:  # from which it is seen how many words a model reads
            outputs.add("attention")
        own, changes = model.translator.options.decoding, body.options.changes()
        if "alternatives" in body.want and "n_best" not in changes:
            changes["n_best"] = changes.get("beam_size", own.beam_size)
        change_options(own, changes)  # raises before an answer begins
        task = Task(model, tuple(sorted(changes.items())), frozenset(outputs))
        return self._answers(body, task, client)

    async def _answers(
        self, body: bodies.TranslateBody, task: Task, client: str
    ) -> AsyncGenerator[dict[str, Any]]:
        language, joiner = task.model.source, joiner_for(task.model.target)
        splits = [split_text(item.text, language, into_sentences=body.split) for item in body.items]
        requests = [
            item.request(sentence, is_first=not number)
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
                problem, fix = "The engine failed on this text.", "Report it, please: a bug."
                if isinstance(error, NmtError):
                    problem, fix = error.problem, error.fix
                yield {**values, "source": item.text, "error": problem, "fix": fix}
        finally:
            for future in futures:
                future.cancel()

    def _submit(
        self, task: Task, requests: Sequence[Request], client: str
    ) -> list[asyncio.Future[Result]]:
        """Queue all sentences at once."""
        self.metrics.sentences.inc(len(requests))
        self.metrics.characters.inc(sum(len(request.text) for request in requests))
        tasks = {flag: replace(task, is_constrained=flag) for flag in (False, True)}
        return self.batcher.submit(client, [(tasks[x.is_constrained], x) for x in requests])

    async def document(
        self, body: bodies.DocumentBody, model: ServedModel, client: str
    ) -> dict[str, Any]:
        """Return the translated document, and what is to be known of it.

        Raises:
            NmtError: It is not of its format, a part of it cannot be translated, or the options
                contradict each other.
        """
        document = await asyncio.to_thread(read_document, body.text, body.format, model.source)
        changes = body.options.changes()
        change_options(model.translator.options.decoding, changes)
        outputs = frozenset[str]() if model.is_export else frozenset({"alignments"})
        task = Task(model, tuple(sorted(changes.items())), outputs)
        futures = self._submit(task, [Request(each) for each in document.sentences], client)
        try:
            results = await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()
        found = [(result.text, result.alignment) for result in results]
        text = await asyncio.to_thread(document.rebuild, found, joiner_for(model.target))
        alarms = sum(bool(result.alarms) for result in results)
        return {"format": body.format, "text": text, "num_texts": len(results), "alarms": alarms}

    async def score(
        self, model: ServedModel, pairs: Sequence[tuple[str, str]], tag: str | None, client: str
    ) -> list[dict[str, Any]]:
        """Score given translations, in one of the threads that translate."""
        return await self.batcher.run(client, lambda: model.score(pairs, tag))


async def _service(request: HttpRequest) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
