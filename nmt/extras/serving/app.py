"""The paths of the server: who is let in, what each answers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as Path_
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.extras.serving import libretranslate
from nmt.extras.serving.access import Gate
from nmt.extras.serving.bodies import LINES, JsonLines, read_body, while_connected
from nmt.extras.serving.documents.document import FORMATS
from nmt.extras.serving.documents.translate import translate_document
from nmt.extras.serving.faults import RefusedError, as_response
from nmt.extras.serving.openapi import Operation, describe
from nmt.extras.serving.options import ServerOptions
from nmt.extras.serving.requests import (
    MOST_HYPOTHESES,
    DetectRequest,
    DocumentRequest,
    LibreRequest,
    ScoreRequest,
    TranslateRequest,
    validate,
)
from nmt.extras.serving.service import Service
from nmt.version import __version__

_PAGE = Path(__file__).with_name("page.html")
_INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL)
_LOADING = "Models are being loaded."
_CLIENT_GONE = 499
"""What logs call it; nobody reads this answer."""
Answer = Callable[[Any, str, Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class Post:
    """A path that takes a request and answers it."""

    path: str
    kind: type[BaseModel]
    answer: Answer
    form: bool = False
    """Whether forms are taken, too; its requests may hold a key then."""
    streams: bool = False


@dataclass(slots=True)
class State:
    """What changes while a server runs."""

    is_ready: bool = False
    is_stopping: bool = False


class Api:
    """Answers requests.

    Args:
        service: Translates.
        options: Of the server.
        state: Whether it is ready.
    """

    def __init__(self, service: Service, options: ServerOptions, state: State) -> None:
        self.service, self.options, self.state = service, options, state
        self.gate = Gate(options.access, options.host, options.limits.rate)
        self.posts = (
            Post("/v1/translate", TranslateRequest, self.translate, streams=True),
            Post("/v1/score", ScoreRequest, self.score),
            Post("/v1/documents", DocumentRequest, self.documents),
            Post("/translate", LibreRequest, self.libre_translate, form=True),
            Post("/detect", DetectRequest, self.libre_detect, form=True),
        )
        self.gets: dict[str, Callable[[Request], Response]] = {
            "/v1/models": self.models,
            "/openapi.json": self.openapi,
            "/health/live": lambda _: JSONResponse({"status": "ok"}),
            "/health/ready": self.ready,
            "/health": self.health,
            "/languages": lambda _: JSONResponse(libretranslate.languages(service.store)),
            "/frontend/settings": self.settings,
        }
        if options.metrics:
            self.gets["/metrics"] = self.metrics
        if options.page and _PAGE.is_file():
            self.gets["/"] = page()

    def app(self) -> ASGIApp:
        """Return the application."""
        routes = [Path_(post.path, self._posted(post), methods=["POST"]) for post in self.posts]
        routes += [Path_(path, self._got(path), methods=["GET"]) for path in self.gets]
        inner = Starlette(
            routes=routes, exception_handlers={Exception: _handle, 404: _handle, 405: _handle}
        )
        inner.router.redirect_slashes = False  # a redirect would name another scheme behind a proxy
        return Shell(inner, self)

    def _got(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        has_key = path in ("/v1/models", "/metrics")

        async def answer(request: Request) -> Response:
            if has_key:
                self.gate.client(request)
            return self.gets[path](request)

        return guarded(answer)

    def _posted(self, post: Post) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            limits = self.options.limits
            client = "" if post.form else self._let_in(request)  # before anything is read
            value = await read_body(request, limits, form=post.form)
            if post.form:
                client = self._let_in(request, value)
            if not self.state.is_ready:
                raise RefusedError(503, _LOADING, "Wait a little.", retry_after=2)
            asked = validate(post.kind, value)
            if post.streams and LINES in request.headers.get("accept", ""):
                self.service.check_busy()
                return await post.answer(asked, client, request)
            with self.service.admitted():
                async with asyncio.timeout(limits.deadline):
                    return await while_connected(request, post.answer(asked, client, request))

        return guarded(answer)

    def _let_in(self, request: Request, body: Any = None) -> str:
        """Return who asks, if they may, and do not too often."""
        key = body.get("api_key") if isinstance(body, dict) else None
        client = self.gate.client(request, key if isinstance(key, str) else None)
        self.gate.check_rate(client)
        return client

    async def translate(self, asked: TranslateRequest, client: str, request: Request) -> Response:
        """Translate texts."""
        service = self.service
        service.check_size(len(asked.texts), sum(item.num_characters for item in asked.items))
        texts = [item.text for item in asked.items]
        route = await service.route(asked.model, asked.source, asked.target, texts)
        answers = service.translate(asked, route, client)
        if LINES in request.headers.get("accept", ""):
            return JsonLines(self._admitted(answers), self.options.limits.deadline)
        async with aclosing(answers) as found:
            elements = [values async for values in found]
        if elements and all("error" in values for values in elements):
            first = elements[0]
            raise RefusedError(422, first["error"], first["fix"])
        return JSONResponse({**route.as_dict(), "translations": elements})

    async def _admitted(
        self, answers: AsyncGenerator[dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any]]:
        with self.service.admitted():
            async with aclosing(answers) as found:
                async for values in found:
                    yield values

    async def score(self, asked: ScoreRequest, client: str, request: Request) -> Response:
        """Score given translations."""
        del client, request
        service, pairs = self.service, [(pair.source, pair.target) for pair in asked.pairs]
        service.check_size(len(pairs), sum(map(len, (text for pair in pairs for text in pair))))
        sources = [source for source, _ in pairs]
        route = await service.route(asked.model, asked.source, asked.target, sources)
        values = await service.score(route, pairs, asked.tag)
        return JSONResponse({"model": route.as_dict()["model"], "scores": values})

    async def documents(self, asked: DocumentRequest, client: str, request: Request) -> Response:
        """Translate a document, and keep its structure."""
        del request
        self.service.check_size(0, len(asked.text))
        route = await self.service.route(asked.model, asked.source, asked.target, [asked.text])
        values = await translate_document(self.service, asked, route, client)
        return JSONResponse({**route.as_dict(), **values})

    async def libre_translate(self, asked: LibreRequest, client: str, request: Request) -> Response:
        """Translate as LibreTranslate does."""
        del request
        return JSONResponse(await libretranslate.translate(self.service, asked, client))

    async def libre_detect(self, asked: DetectRequest, client: str, request: Request) -> Response:
        """Detect a language as LibreTranslate does."""
        del client, request
        return JSONResponse(await libretranslate.detected(self.service, asked))

    def models(self, _: Request) -> Response:
        """List the models, pairs and limits."""
        limits, store = self.options.limits, self.service.store
        bounds = {
            "max_chars": limits.max_chars,
            "max_texts": limits.max_texts,
            "deadline": limits.deadline,
            "rate": str(limits.rate) if limits.rate else None,
            "beam_size": MOST_HYPOTHESES,
            "n_best": MOST_HYPOTHESES,
        }
        return JSONResponse({
            "models": [libretranslate.named(values) for values in store.describe()],
            "pivots": [
                {"source": pair[0], "target": pair[1], "through": list(names)}
                for pair, names in store.routes.items()
                if len(names) > 1
            ],
            "limits": bounds,
            "documents": list(FORMATS),
            "version": f"nmt {__version__}",
        })  # fmt: skip

    def openapi(self, _: Request) -> Response:
        """Describe the API."""
        posts = [Operation(post.path, "post", post.answer, post.kind) for post in self.posts]
        gets = [Operation(path, "get", answer) for path, answer in self.gets.items()]
        return JSONResponse(
            describe([*posts, *gets], has_keys=self.options.access.keys is not None)
        )

    def ready(self, _: Request) -> Response:
        """Report whether requests are taken."""
        if self.state.is_ready and not self.state.is_stopping:
            return JSONResponse({"status": "ready"})
        if self.state.is_stopping:
            raise RefusedError(503, "The server is stopping.", "Ask another one.", retry_after=2)
        raise RefusedError(503, _LOADING, "Wait a little.", retry_after=2)

    def health(self, request: Request) -> Response:
        """Report whether requests are taken, as LibreTranslate does."""
        self.ready(request)
        return JSONResponse({"status": "ok"})

    def settings(self, _: Request) -> Response:
        """Return settings as LibreTranslate does."""
        return JSONResponse(libretranslate.settings(self.service, self.options))

    def metrics(self, _: Request) -> Response:
        """Return counters for Prometheus."""
        gauges = self.service.gauges()
        return PlainTextResponse(
            self.service.metrics.text(**gauges), media_type="text/plain; version=0.0.4"
        )


def page() -> Callable[[Request], Response]:
    """Return what answers GET /: the page, which may run and ask nothing but itself."""
    text = _PAGE.read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        found = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{found}'")
    script, style = (" ".join(hashes[kind]) or "'none'" for kind in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return lambda _: HTMLResponse(text, headers={"Content-Security-Policy": policy})


def guarded(
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint whose errors become answers."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=_CLIENT_GONE)
        except Exception as error:
            return as_response(error)

    return endpoint


async def _handle(_: Request, error: Exception) -> Response:
    return as_response(error)


class Shell:
    """Around the application: sites, headers of every answer, and counts.

    Args:
        app: What is inside.
        api: Whose gate and state count.
    """

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self._app, self._api = app, api
        self._known = {post.path for post in api.posts} | set(api.gets)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":  # lifespan
            await self._app(scope, receive, send)
            return
        is_own = scope["path"] in self._known  # also where the proxy's path is called like one
        scope = {**scope, "root_path": "" if is_own else self._api.options.root_path}
        request = Request(scope, receive)
        try:
            origin = self._api.gate.check_site(request)
        except RefusedError as error:
            await as_response(error)(scope, receive, partial(self._send, send, scope, None))
            return
        sending = partial(self._send, send, scope, origin)
        if origin is not None and request.method == "OPTIONS":
            await _preflight()(scope, receive, sending)
            return
        await self._app(scope, receive, sending)

    async def _send(self, send: Send, scope: Scope, origin: str | None, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Referrer-Policy"] = "no-referrer"
            headers.setdefault("Cache-Control", "no-store")
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers["Vary"] = "Origin"
            if self._api.state.is_stopping:
                headers["Connection"] = "close"
            path = scope["path"].removeprefix(scope["root_path"])
            path = path if path in self._known else "other"
            labels = f'{{path="{path}",status="{message["status"]}"}}'
            self._api.service.metrics.count("responses", 1, labels)
        await send(message)


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": "authorization, content-type",
            "Access-Control-Max-Age": "600",
        },
    )
