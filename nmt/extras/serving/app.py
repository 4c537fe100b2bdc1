"""The HTTP paths of the server, and their answers."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException  # raised for unknown paths, too
from starlette.types import ASGIApp, Lifespan

from nmt.errors import NmtError
from nmt.extras.serving import bodies, libretranslate
from nmt.extras.serving.access import Client, Edge, Gate, known_client
from nmt.extras.serving.bodies import RETRY, Answer, RefusedError, as_response, refusal
from nmt.extras.serving.documents import FORMATS
from nmt.extras.serving.service import Served, Service
from nmt.report.page import digest
from nmt.version import __version__

_JSON_LINES = "application/x-ndjson"
Accept = Annotated[str, Header(include_in_schema=False)]
_FAULT_STATUSES = (401, 403, 408, 413, 422, 429, 503, 504)
router = APIRouter(responses={status: {"model": bodies.Fault} for status in _FAULT_STATUSES})


@router.post("/v1/translate")
async def translate(
    body: bodies.TranslateBody, service: Served, client: Client, accept: Accept = ""
) -> Response:
    """Translate texts. With ``Accept: application/x-ndjson``, stream one JSON line per text."""
    num_characters = len(body.glossary or "")
    num_characters += sum(item.num_characters for item in body.items)
    service.check_size(len(body.texts), num_characters)
    routes = await service.choose(body, [item.text for item in body.items] or [""])
    answers = service.translate(body, routes[: len(body.texts)], client)
    if _JSON_LINES in accept:
        lines = _json_lines(answers, service.options.deadline)
        return StreamingResponse(lines, media_type=_JSON_LINES)
    async with aclosing(answers):
        translations = [answer async for answer in answers]
    if translations and all("error" in answer for answer in translations):
        raise RefusedError(422, translations[0]["error"], translations[0]["fix"])
    return JSONResponse({**routes[0].fields, "translations": translations})


async def _json_lines(answers: AsyncGenerator[Answer], seconds: float) -> AsyncIterator[bytes]:
    """Yield numbered answers as JSON lines, for ``seconds``. An error becomes the last line."""
    index = 0
    deadline = asyncio.get_running_loop().time() + seconds
    async with aclosing(answers):
        while True:
            try:
                # A yield inside of the timeout would let it cancel the task that sends the answer.
                async with asyncio.timeout_at(deadline):
                    answer = await anext(answers)
            except StopAsyncIteration:
                return
            except Exception as error:
                # The generator has ended with this error, so the next round returns.
                refused_error = refusal(error)
                answer = {**refused_error.as_dict(), "status": refused_error.status}
            line = json.dumps({"index": index, **answer}, ensure_ascii=False)
            yield f"{line}\n".encode()
            index += 1


@router.post("/v1/score")
async def score(body: bodies.ScoreBody, service: Served, client: Client) -> Response:
    """Score given translations: log probability, in total and per token."""
    pairs = [(pair.source, pair.target) for pair in body.pairs]
    num_characters = sum(len(pair.source) + len(pair.target) for pair in body.pairs)
    service.check_size(len(pairs), num_characters)
    (route,) = await service.choose(body, [" ".join(source for source, _ in pairs)])
    scores = await service.score(route, pairs, body.tag, client)
    return JSONResponse({"model": route.model.name, "scores": scores})


@router.post("/v1/documents")
async def documents(body: bodies.DocumentBody, service: Served, client: Client) -> Response:
    """Translate a text, HTML, SubRip or WebVTT document, and keep its structure."""
    service.check_size(
        0, len(body.text) + len(body.glossary or "")
    )  # no limit of texts applies to a document
    (route,) = await service.choose(body, [body.text])
    return JSONResponse({**route.fields, **await service.document(body, route, client)})


@router.get("/v1/models", dependencies=[Depends(known_client)])
async def models(service: Served) -> Response:
    """List the models, the limits and the document formats."""
    options = service.options
    limits = {
        "max_chars": options.max_chars,
        "max_texts": options.max_texts,
        "deadline": options.deadline,
        "rate": options.rate and str(options.rate),
        "beam_size": bodies.MOST_HYPOTHESES,
        "n_best": bodies.MOST_HYPOTHESES,
    }
    descriptions = [model.describe() for model in service.models.values()]
    version = f"nmt {__version__}"
    return JSONResponse(
        {"models": descriptions, "limits": limits, "documents": FORMATS, "version": version}
    )


@router.get("/health/live")
async def live() -> Response:
    """Report that the server is running."""
    return JSONResponse({"status": "ok"})


@router.get("/health/ready")
async def ready(service: Served) -> Response:
    """Report whether the server accepts requests: 200, or 503 while it is stopping."""
    if service.is_stopping:
        raise RefusedError(503, "The server is stopping.", "Use another server.", RETRY)
    return JSONResponse({"status": "ready"})


@router.get("/health")
async def health(service: Served) -> Response:
    """Report whether the server accepts requests, as LibreTranslate does."""
    await ready(service)
    return JSONResponse({"status": "ok"})


@router.get("/metrics", dependencies=[Depends(known_client)])
async def metrics(service: Served) -> Response:
    """Return metrics in the Prometheus text format."""
    if service.options.no_metrics:
        raise HTTPException(404)
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/", include_in_schema=False)
async def page(service: Served) -> Response:
    """Return the web page. Its security policy blocks all other scripts and styles."""
    if service.options.no_page:
        raise HTTPException(404)
    title = html.escape(service.options.title_)
    return HTMLResponse(
        _PAGE.replace("{{title}}", title), headers={"Content-Security-Policy": _POLICY}
    )


_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


_SCRIPTS_AND_STYLES = re.findall(r"<(?:script|style)>(.*?)</", _PAGE, re.DOTALL)
# The policy allows these scripts and styles only.
_HASHES = " ".join(f"'sha256-{digest(content)}'" for content in _SCRIPTS_AND_STYLES)
_POLICY = (
    f"default-src 'none'; script-src {_HASHES}; style-src {_HASHES}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_app(service: Service, gate: Gate, lifespan: Lifespan[FastAPI] | None = None) -> ASGIApp:
    """Return the ASGI application.

    Args:
        service: Translates.
        gate: Checks origins, keys and rates.
        lifespan: Context manager that the application enters at startup and leaves at shutdown.
    """

    async def handle(_: Request, error: Exception) -> Response:
        return as_response(error)

    # Starlette raises an error again after its handler of `Exception`. Therefore expected errors
    # have handlers of their own.
    error_classes = (RefusedError, NmtError, RequestValidationError, HTTPException, Exception)
    app = FastAPI(
        title="nmt serve", version=__version__, lifespan=lifespan,
        docs_url=None, redoc_url=None,  # these pages load scripts from the network
        redirect_slashes=False,  # behind a proxy, a redirect would change https to http
        exception_handlers=dict.fromkeys(error_classes, handle),
    )  # fmt: skip
    app.state.service = service
    app.state.gate = gate
    app.state.files = {}
    app.include_router(router)
    app.include_router(libretranslate.router)
    return CORSMiddleware(
        Edge(app, service, gate),
        allow_origins=service.options.allow_origin,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
    )
