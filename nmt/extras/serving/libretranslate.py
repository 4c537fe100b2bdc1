"""LibreTranslate's API, so that its clients work unchanged."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from nmt.extras.serving import bodies
from nmt.extras.serving.access import Gate
from nmt.extras.serving.bodies import RefusedError
from nmt.extras.serving.documents import FORMATS
from nmt.extras.serving.service import Served, Service
from nmt.text.languages import name_of

_MAX_FILES = 64  # translated documents that can be downloaded
router = APIRouter(tags=["LibreTranslate"])


def _admit(request: Request, service: Service, body: bodies.DetectBody) -> str:
    """Check the key, the rate and the limits; return the client. The key may be in the body."""
    gate: Gate = request.app.state.gate
    key = body.api_key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":  # the header counts, as in our own API
        key = token
    client = gate.count(gate.client(request, key))
    service.check_size(len(body.texts), sum(map(len, body.texts)))
    return client


@router.post("/translate")
async def translate(body: bodies.LibreBody, service: Served, request: Request) -> JSONResponse:
    """Translate text or HTML, as LibreTranslate does."""
    client = _admit(request, service, body)
    choice = bodies.Choice(source=body.source, target=body.target)
    routes = await service.choose(choice, body.texts)
    translations = []
    alternatives = list[list[str]]()  # of each text
    if body.format == "html":
        coroutines = []
        for text, route in zip(body.texts, routes, strict=True):
            document_body = bodies.DocumentBody(format="html", text=text)
            coroutines.append(service.document(document_body, route, client))
        documents = await asyncio.gather(*coroutines)
        for document in documents:
            translations.append(document["text"])
            alternatives.append([])
    else:
        options = bodies.Decoding()
        if body.alternatives:
            n_best = body.alternatives + 1  # the first one is the translation
            sizes = [route.model.translator.options.decoding.beam_size for route in routes]
            options = bodies.Decoding(n_best=n_best, beam_size=max(n_best, *sizes))
        translate_body = bodies.TranslateBody(texts=[*body.texts], options=options)
        async for answer in service.translate(translate_body, routes, client):
            if "error" in answer:
                raise RefusedError(422, answer["error"], answer["fix"])
            translations.append(answer["translation"])
            next_best = answer["alternatives"][1 : body.alternatives + 1]
            alternatives.append([alternative["translation"] for alternative in next_best])
    # Field of the answer -> one value for each text.
    columns: dict[str, list[Any]] = {"translatedText": translations}
    if body.alternatives:
        columns["alternatives"] = alternatives
    if body.source == "auto":
        columns["detectedLanguage"] = [
            {"language": route.source, "confidence": route.probability} for route in routes
        ]
    if isinstance(body.q, str):  # one text that is not in a list
        return JSONResponse({name: values[0] for name, values in columns.items()})
    return JSONResponse(columns)


@router.post("/translate_file")
async def translate_file(body: bodies.LibreFile, service: Served, request: Request) -> JSONResponse:
    """Translate a document, as LibreTranslate does; the answer is the address of the result."""
    client = _admit(request, service, body)
    choice = bodies.Choice(source=body.source, target=body.target)
    (route,) = await service.choose(choice, body.texts)
    suffix = Path(body.file_name).suffix
    (text,) = body.texts
    document_body = bodies.DocumentBody(format=suffix, text=text)
    document = await service.document(document_body, route, client)
    files: dict[str, str] = request.app.state.files
    name = f"{secrets.token_urlsafe()}{suffix}"
    files[name] = document["text"]
    if len(files) > _MAX_FILES:
        del files[next(iter(files))]  # the oldest
    url = request.url_for("download_file", name=name)
    return JSONResponse({"translatedFileUrl": str(url)})


@router.get("/download_file/{name}")
async def download_file(name: str, request: Request) -> PlainTextResponse:
    """Return a translated document."""
    files: dict[str, str] = request.app.state.files
    if name not in files:
        raise HTTPException(404)
    return PlainTextResponse(files[name])


@router.post("/detect")
async def detected(body: bodies.DetectBody, service: Served, request: Request) -> JSONResponse:
    """Detect the language among the source languages, as LibreTranslate does."""
    _admit(request, service, body)
    codes = sorted({pair.source for pair in service.pairs})
    answers = []
    for text in body.texts:
        ranking = await asyncio.to_thread(service.detect, text, codes)
        answers.append([{"language": code, "confidence": percent} for code, percent in ranking])
    return JSONResponse(answers[0] if isinstance(body.q, str) else answers)


@router.get("/languages")
async def languages(service: Served) -> JSONResponse:
    """List the languages with their target languages."""
    targets = dict[str, list[str]]()  # language -> the languages that it can be translated into
    for source, target in sorted(service.pairs):
        targets.setdefault(source, []).append(target)
        targets.setdefault(target, [])  # may be a target only
    return JSONResponse(
        [
            {"code": code, "name": name_of(code), "targets": targets[code]}
            for code in sorted(targets)
        ]
    )


@router.get("/frontend/settings")
async def settings(service: Served, request: Request) -> JSONResponse:
    """Return the settings of a LibreTranslate server. The first model is the default."""
    model = next(iter(service.models.values()))
    source, target = model.directions[0]
    has_keys = request.app.state.gate.keys is not None
    return JSONResponse({
        "apiKeys": has_keys,
        "charLimit": service.options.max_chars,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": has_keys,
        "language": {
            "source": {"code": source, "name": name_of(source)},
            "target": {"code": target, "name": name_of(target)},
        },
        "suggestions": False,
        "supportedFilesFormat": [f".{name}" for name in FORMATS],
    })  # fmt: skip
