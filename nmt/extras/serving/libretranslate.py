"""LibreTranslate's API, so that its clients work unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from nmt.extras.serving import bodies
from nmt.extras.serving.access import Gate
from nmt.extras.serving.bodies import RefusedError
from nmt.extras.serving.service import Served, Service
from nmt.text.languages import name_of

router = APIRouter(tags=["LibreTranslate"])


def _admit(request: Request, service: Service, body: bodies.DetectBody) -> str:
    """Check the key, the rate and the limits; return the client. The key may be in the body."""
    gate: Gate = request.app.state.gate
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    client = gate.count(gate.client(request, key if scheme.lower() == "bearer" else body.api_key))
    service.check_size(len(body.texts), sum(map(len, body.texts)))
    return client


@router.post("/translate")
async def translate(body: bodies.LibreBody, service: Served, request: Request) -> JSONResponse:
    """Translate text or HTML, as LibreTranslate does."""
    client = _admit(request, service, body)
    alternatives, choice = body.alternatives, bodies.Choice(source=body.source, target=body.target)
    route, about = await service.choose(choice, body.texts)
    translated: list[str] = []
    others: list[list[str]] = []
    if body.format == "html":
        for text in body.texts:
            document = bodies.DocumentBody(format="html", text=text)
            translated.append((await service.document(document, route, client))["text"])
            others.append([])
    else:
        options = bodies.Decoding()
        if alternatives:
            own = route.model.translator.options.decoding.beam_size
            options = bodies.Decoding(n_best=alternatives + 1, beam_size=max(own, alternatives + 1))
        texts = bodies.TranslateBody(texts=[*body.texts], options=options)
        async for values in service.translate(texts, route, client):
            if "error" in values:
                raise RefusedError(422, values["error"], values["fix"])
            translated.append(values["translation"])
            found = [each["translation"] for each in values["alternatives"]]
            others.append(found[1 : alternatives + 1])
    answer: dict[str, list[Any]] = {"translatedText": translated}
    if alternatives:
        answer["alternatives"] = others
    if "detected" in about:
        language = {"language": about["source"], "confidence": about["detected"]}
        answer["detectedLanguage"] = [language] * len(translated)
    is_one = isinstance(body.q, str)
    return JSONResponse({name: each[0] if is_one else each for name, each in answer.items()})


@router.post("/detect")
async def detected(body: bodies.DetectBody, service: Served, request: Request) -> JSONResponse:
    """Detect the language among the source languages, as LibreTranslate does."""
    _admit(request, service, body)
    codes = sorted({source for source, _ in service.pairs})
    ranked = await asyncio.to_thread(lambda: [service.detect(text, codes) for text in body.texts])
    found = [[{"language": code, "confidence": sure} for code, sure in each] for each in ranked]
    return JSONResponse(found[0] if isinstance(body.q, str) else found)


@router.get("/languages")
async def languages(service: Served) -> JSONResponse:
    """List the languages with their target languages."""
    codes = sorted({code for pair in service.pairs for code in pair})
    return JSONResponse([
        {
            "code": code,
            "name": name_of(code),
            "targets": sorted(target for source, target in service.pairs if source == code),
        }
        for code in codes
    ])  # fmt: skip


@router.get("/frontend/settings")
async def settings(service: Served, request: Request) -> JSONResponse:
    """Return the settings of a LibreTranslate server."""
    model = next(iter(service.models.values()))
    has_keys = request.app.state.gate.keys is not None
    first = {
        side: {"code": code, "name": name_of(code)}
        for side, code in zip(("source", "target"), model.directions[0], strict=True)
    }
    return JSONResponse({
        "apiKeys": has_keys,
        "charLimit": service.options.max_chars,
        "filesTranslation": False,
        "frontendTimeout": 500,
        "keyRequired": has_keys,
        "language": first,
        "suggestions": False,
        "supportedFilesFormat": [],
    })  # fmt: skip
