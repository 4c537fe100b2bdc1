"""Requests -> answers: which model, which sentences, which batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from nmt.errors import NmtError
from nmt.extras.serving.answers import join_results
from nmt.extras.serving.batching import Batcher
from nmt.extras.serving.detection import detect
from nmt.extras.serving.metrics import Metrics
from nmt.extras.serving.model import ServedModel, Wanted, without_line
from nmt.extras.serving.models import ModelStore
from nmt.extras.serving.options import Limits
from nmt.extras.serving.requests import BadRequestError, Options, Text, TranslateRequest
from nmt.inference.request import Request
from nmt.inference.result import Result
from nmt.text.sentences import SplitText, split_text

_OUTPUTS = {"tokens": "token_scores", "alignment": "alignments", "attention": "attention"}
_DETECTED_CHARACTERS = 2000
_ATTENDED_CHARACTERS = 2000
"""Of a text whose attention is shown: its size is the product of the words of both sides."""


class TooLargeError(BadRequestError):
    """A request that exceeds a bound of its size."""


class BusyError(NmtError):
    """The server has as much to do as it may."""


@dataclass(frozen=True, slots=True)
class Route:
    """The models that translate between two languages, one after the other."""

    models: tuple[ServedModel, ...]
    detected: tuple[str, float] | None = None
    """The source language, and how sure that is (0 to 100), where it was asked for."""

    @property
    def languages(self) -> tuple[str, str]:
        """Of the texts and of their translations."""
        return self.models[0].place.languages[0], self.models[-1].place.languages[1]

    def as_dict(self) -> dict[str, Any]:
        """Return what an answer says of it."""
        names = [model.place.name for model in self.models]
        values = {
            "model": "+".join(names),
            **dict(zip(("source", "target"), self.languages, strict=True)),
        }
        return values | ({"detected": self.detected[1]} if self.detected else {})


class Service:
    """Translates for clients.

    Args:
        store: The models.
        batcher: Puts texts of all clients together.
        limits: Bounds of requests.
        metrics: Counts.
    """

    def __init__(
        self,
        store: ModelStore,
        batcher: Batcher[Result],
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self.store, self.limits, self.metrics = store, limits, metrics
        self._batcher = batcher
        self.num_active = 0
        """Requests that are worked on or wait."""

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request while it is worked on. Raises as `check_busy` does."""
        self.check_busy()
        self.num_active += 1
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.num_active -= 1
            self.metrics.observe("request_seconds", time.perf_counter() - begin)

    def check_busy(self) -> None:
        """Check that one more request may be worked on.

        Raises:
            BusyError: There are too many.
        """
        if self.num_active >= self.limits.max_queue:
            raise BusyError(
                f"{self.num_active:,} requests wait already.", fix="Try again in a moment."
            )

    def check_size(self, texts: int, characters: int) -> None:
        """Check a request against the bounds.

        Raises:
            TooLargeError: It has too many texts or characters.
        """
        limits = self.limits
        found = {"texts": (texts, limits.max_texts), "characters": (characters, limits.max_chars)}
        for name, (count, most) in found.items():
            if count > most:
                raise TooLargeError(
                    f"The request has {count:,} {name}; at most {most:,} are allowed.",
                    fix="Send several smaller requests.",
                )

    async def route(
        self, model: str | None, source: str | None, target: str | None, texts: Sequence[str]
    ) -> Route:
        """Return the models of a request, loaded.

        Raises:
            BadRequestError: No model is meant, or several could be.
            NmtError: A model cannot be loaded.
        """
        store, detected = self.store, None
        if source == "auto":
            source, detected = await self._detect(texts, target)
        if model is not None:
            if model not in store.places:
                raise BadRequestError(
                    f"There is no model {model[:40]!r}.",
                    fix=f"Use one of {', '.join(store.places)}.",
                )
            names: tuple[str, ...] = (model,)
            pair = store.places[model].languages
            if source not in (None, pair[0]) or target not in (None, pair[1]):
                raise BadRequestError(
                    f"{model} translates {'-'.join(pair)}.", fix="Leave source and target out."
                )
        else:
            names = self._choose(source, target)
        models = [await store.get(name) for name in names]
        return Route(tuple(models), detected)

    def _choose(self, source: str | None, target: str | None) -> tuple[str, ...]:
        fits = {
            pair: names
            for pair, names in self.store.routes.items()
            if source in (None, pair[0]) and target in (None, pair[1])
        }
        direct = {pair: names for pair, names in fits.items() if len(names) == 1} or fits
        if len(direct) == 1:
            return next(iter(direct.values()))
        served = ", ".join("-".join(pair) for pair in sorted(self.store.routes))
        asked = f"{source or '?'}-{target or '?'}"[:80]
        problem = f"{asked} could mean several models." if direct else f"{asked} is not served."
        raise BadRequestError(problem, fix=f"Give source and target, one of {served}.")

    async def _detect(
        self, texts: Sequence[str], target: str | None
    ) -> tuple[str, tuple[str, float]]:
        """Return the source language of texts, of those that can be translated."""
        sample = " ".join(texts)[:_DETECTED_CHARACTERS]
        known = sorted({a for a, b in self.store.routes if target in (None, b)})
        found = await asyncio.to_thread(detect, sample, known)
        if not found:
            raise BadRequestError(
                f"Nothing is translated into {str(target)[:40]!r}.", fix="See GET v1/models."
            )
        return found[0][0], found[0]

    def translate(
        self, request: TranslateRequest, route: Route, client: str
    ) -> AsyncGenerator[dict[str, Any]]:
        """Return the answer for each text, in order, as soon as it is there.

        A text that cannot be translated gets ``error`` and ``fix``. When the caller ends early,
        what is not translated yet is dropped.

        Raises:
            ConfigError: The options go with no translation.
            TooLargeError: Attention is wanted for a long text.
        """
        options, want = self._options(request, route), set(request.want)
        longest = max((len(item.text) for item in request.items), default=0)
        if "attention" in want and longest > _ATTENDED_CHARACTERS:
            problem = f"Attention is shown for texts of {_ATTENDED_CHARACTERS:,} characters."
            raise TooLargeError(problem, fix="Want alignment, or send shorter texts.")
        outputs = {_OUTPUTS[name] for name in want if name in _OUTPUTS}
        if "alignments" in outputs:  # tells how many words a model sees
            outputs.add("attention")
        asked = Wanted(route.models[-1], options, frozenset(outputs))
        asked.check()
        return self._answers(request, route, client, asked)

    async def _answers(
        self, request: TranslateRequest, route: Route, client: str, asked: Wanted
    ) -> AsyncGenerator[dict[str, Any]]:
        items, language = request.items, route.languages[0]
        shown = "attention" in request.want
        splits = [split_text(item.text, language, into_sentences=request.split) for item in items]
        lines = [
            each for item, split in zip(items, splits, strict=True) for each in _lines(item, split)
        ]
        for model in route.models[:-1]:
            lines = await self._retranslated(Wanted(model, asked.options), lines, client)
        ends = list(accumulate((len(split.sentences) for split in splits), initial=0))
        futures = self._submit(asked, lines, client)
        try:
            for item, split, (start, end) in zip(items, splits, pairwise(ends), strict=True):
                yield await _answer(item, split, futures[start:end], asked.model.joiner, shown)
        finally:
            for future in futures:
                future.cancel()

    def _options(self, request: TranslateRequest, route: Route) -> tuple[tuple[str, Any], ...]:
        changes = request.options.changes()
        if "alternatives" in request.want and "n_best" not in changes:
            own = route.models[-1].translator.options
            changes["n_best"] = changes.get("beam_size", own.decoding.beam_size)
        if len(route.models) > 1 and set(request.want) - {"confidence"}:
            raise BadRequestError(
                f"{route.as_dict()['model']} translates through another language, which leaves "
                "only text and confidence.",
                fix="Leave want out, or ask each of the models.",
            )
        return tuple(sorted(changes.items()))

    def _submit(
        self, asked: Wanted, lines: Sequence[Request], client: str
    ) -> list[asyncio.Future[Result]]:
        """Queue all lines at once: plain ones, and those with constraints."""
        self.metrics.count("sentences", len(lines))
        self.metrics.count("characters", sum(len(line.text) for line in lines))
        found: dict[int, asyncio.Future[Result]] = {}
        for constrained in (False, True):
            rows = [i for i, line in enumerate(lines) if line.is_constrained == constrained]
            key = replace(asked, is_constrained=constrained)
            futures = self._batcher.submit(key, client, [lines[row] for row in rows])
            found.update(zip(rows, futures, strict=True))
        return [found[row] for row in range(len(lines))]

    async def score(
        self, route: Route, pairs: Sequence[tuple[str, str]], tag: str | None
    ) -> list[dict[str, Any]]:
        """Score given translations, outside of batches.

        Raises:
            BadRequestError: The route has two models.
            NmtError: The engine cannot, or there is no such tag.
        """
        if len(route.models) > 1:
            raise BadRequestError("No single model scores these.", fix="Name a model.")
        return await self._batcher.run(lambda: route.models[0].score(pairs, tag))

    def gauges(self) -> dict[str, float]:
        """Return the present values of the metrics."""
        return {
            "active_requests": self.num_active,
            "waiting_texts": self._batcher.num_waiting,
            "loaded_models": self.store.num_loaded,
        }

    @staticmethod
    def refuse_fault(values: Mapping[str, Any]) -> None:
        """Check the answer for a text.

        Raises:
            BadRequestError: It is an error.
        """
        if "error" in values:
            raise BadRequestError(values["error"], fix=values["fix"])

    async def translate_lines(
        self, lines: Sequence[Request], route: Route, options: Options, client: str
    ) -> list[Result]:
        """Return the translations of sentences, aligned where one model with attention does it.

        Raises:
            NmtError: One cannot be translated, or the options are wrong.
        """
        changes = tuple(sorted(options.changes().items()))
        *first, last = route.models
        for model in first:
            lines = await self._retranslated(Wanted(model, changes), lines, client)
        can_align = not first and last.engines()["alignment"] is not None
        outputs = frozenset({"alignments"} if can_align else ())
        return await self._translated(Wanted(last, changes, outputs), lines, client)

    async def _translated(
        self, asked: Wanted, lines: Sequence[Request], client: str
    ) -> list[Result]:
        """Return the translations of lines; each line must have one."""
        asked.check()
        futures = self._submit(asked, lines, client)
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()

    async def _retranslated(
        self, asked: Wanted, lines: Sequence[Request], client: str
    ) -> list[Request]:
        """Return the translations of lines, as lines of the next model."""
        results = await self._translated(asked, lines, client)
        return [
            replace(line, text=result.text) for line, result in zip(lines, results, strict=True)
        ]


def _lines(item: Text, split: SplitText) -> list[Request]:
    """Return the sentences of a text as lines; prefix and required phrases go to the first."""
    line = item.line
    others = replace(line, prefix="", required=())
    return [
        replace(others if number else line, text=sentence)
        for number, sentence in enumerate(split.sentences)
    ]


async def _answer(
    item: Text,
    split: SplitText,
    futures: Sequence[asyncio.Future[Result]],
    joiner: str,
    with_attention: bool,
) -> dict[str, Any]:
    named: Mapping[str, Any] = {} if item.id is None else {"id": item.id}
    results = await asyncio.gather(*futures, return_exceptions=True)
    faults = [result for result in results if isinstance(result, BaseException)]
    if not faults:
        good = [result for result in results if not isinstance(result, BaseException)]
        return {**named, **join_results(item.text, split, good, joiner, with_attention)}
    if isinstance(faults[0], NmtError):
        message = {"error": without_line(faults[0].problem), "fix": faults[0].fix}
    elif isinstance(faults[0], Exception):
        message = {"error": "The engine failed on this text.", "fix": "Report it, please: a bug."}
    else:
        raise faults[0]
    return {**named, "source": item.text, **message}
