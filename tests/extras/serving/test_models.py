"""Models that come, change and go; pivots; engines that fail."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import CheckpointError, ConfigError
from nmt.extras.serving import models as served
from nmt.extras.serving.models import ModelStore, name_models
from nmt.extras.serving.options import Limits, ServerOptions
from nmt.inference.options import EngineOptions
from nmt.inference.torch_engine import TorchEngine
from tests.extras.serving.conftest import Inside

TORCH = EngineOptions(engine="torch")


@pytest.fixture
def _always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_CHECK_SECONDS", -1.0)


@pytest.mark.usefixtures("_always_looks")
def test_a_model_is_loaded_again_when_it_changes_and_kept_when_it_breaks_or_vanishes(
    models: dict[str, Path], tmp_path: Path
) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    shutil.copytree(models["de-en"], folder)
    store = ModelStore({"de-en": folder}, TORCH)

    async def look() -> tuple[Any, str]:
        return await store.get("de-en"), store.describe()[0]["status"]

    async def test() -> None:
        first, status = await look()
        assert status == "ready"
        assert (await look())[0] is first
        config = (folder / "config.yaml").read_bytes()
        (folder / "config.yaml").write_bytes(config[: len(config) // 2])  # it is being written
        assert await look() == (first, "changed")
        (folder / "config.yaml").write_bytes(config)
        second, status = await look()
        assert status == "ready"
        assert second is not first
        assert second.sha256 == first.sha256
        folder.rename(other)
        assert await look() == (second, "gone")
        assert len(second.translator.translate(["der Hund"])) == 1
        shutil.copytree(models["en-fr"], folder)
        assert await look() == (second, "changed")  # of other languages
        shutil.rmtree(folder)
        other.rename(folder)
        assert (await look())[1] == "ready"

    asyncio.run(test())


def test_the_model_used_least_recently_makes_room(models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(models["de-en"], tmp_path / "third")
    store = ModelStore({**models, "third": tmp_path / "third"}, TORCH, max_loaded=2)

    async def test() -> None:
        gone = weakref.ref((await store.get("de-en")).translator)
        await store.get("en-fr")
        await store.get("de-en")
        await store.get("third")
        assert store.num_loaded == 2
        loaded = [each["name"] for each in store.describe() if each["loaded"]]
        assert loaded == ["de-en", "third"]
        await store.get("en-fr")
        assert [each["loaded"] for each in store.describe()] == [False, True, True]
        assert gone() is None

    asyncio.run(test())


@pytest.mark.usefixtures("_always_looks")
def test_a_model_that_could_not_return_makes_no_room(
    models: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(models["de-en"], tmp_path / "third")
    store = ModelStore({"third": tmp_path / "third", **models}, TORCH, max_loaded=2)

    async def test() -> None:
        await store.get("third")
        shutil.rmtree(tmp_path / "third")
        await store.get("third")
        await store.get("de-en")
        await store.get("en-fr")
        loaded = [each["name"] for each in store.describe() if each["loaded"]]
        assert loaded == ["third", "en-fr"]

    asyncio.run(test())


def test_a_model_that_vanished_before_it_was_loaded_is_a_503(
    inside: Inside, models: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(models["de-en"], tmp_path / "model")
    client = inside({"de-en": tmp_path / "model"})
    shutil.rmtree(tmp_path / "model")
    answer = client.post("/v1/translate", json={"texts": ["a"]})
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "fix" in answer.json()
    assert str(tmp_path) not in answer.text  # whoever runs the server is told, not its clients
    assert str(tmp_path) in caplog.text


def test_a_pair_without_a_model_goes_through_the_pivot(
    inside: Inside, models: dict[str, Path]
) -> None:
    client = inside(models, ServerOptions(pivot="en", max_loaded=1))

    def translate(text: str, **fields: Any) -> Any:
        answer = client.post("/v1/translate", json={"texts": [text], **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    text = "der Hund. Die Katze"
    found = translate(text, source="de", target="fr")
    assert found["model"] == "de-en+en-fr"
    middle = [
        translate(part, source="de", target="en")["translations"][0]["translation"]
        for part in ("der Hund.", "Die Katze")
    ]
    last = [
        translate(part, model="en-fr", split=False)["translations"][0]["translation"]
        for part in middle
    ]
    assert found["translations"][0]["translation"] == " ".join(last)
    assert client.get("/v1/models").json()["pivots"] == [
        {"source": "de", "target": "fr", "through": ["de-en", "en-fr"]}
    ]
    refused = {"texts": [text], "source": "de", "target": "fr", "want": ["alignment"]}
    assert client.post("/v1/translate", json=refused).status_code == 422
    answer = client.post("/v1/translate", json={"texts": ["a"]})
    assert answer.status_code == 422
    assert "several" in answer.json()["error"]


def test_an_engine_that_fails_on_one_text_answers_the_others(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = inside()
    body = {"model": "de-en", "texts": ["der Hund", "die Katze läuft und läuft", "das Haus"]}
    good = client.post("/v1/translate", json=body).json()["translations"]
    search = TorchEngine.search

    def failing(self: Any, sources: Any, *rest: Any) -> Any:
        if any(len(ids) > 6 for ids in sources):
            raise RuntimeError("secret Katze")
        return search(self, sources, *rest)

    monkeypatch.setattr(TorchEngine, "search", failing)
    answer = client.post("/v1/translate", json=body)
    found = answer.json()["translations"]
    assert answer.status_code == 200
    texts = [each["translation"] for each in (found[0], found[2])]
    assert texts == [good[0]["translation"], good[2]["translation"]]
    assert found[1].keys() == {"source", "error", "fix"}
    assert "RuntimeError" in caplog.text
    assert "Katze" not in caplog.text + found[1]["error"]


def test_what_an_engine_lacks_is_answered_by_torch(inside: Inside) -> None:
    engine = EngineOptions(engine="ctranslate2", dtype="int8", threads=1)
    client = inside(engine=engine)
    body: dict[str, Any] = {"model": "de-en", "texts": ["der Hund"]}
    assert client.post("/v1/translate", json=body).status_code == 200
    body |= {"want": ["alignment"], "texts": [{"text": "der Hund", "prefix": "das"}]}
    (own,) = client.post("/v1/translate", json=body).json()["translations"]
    assert own["alignment"]
    assert own["translation"].startswith("das")
    model = client.get("/v1/models").json()["models"][0]
    assert (model["dtype"], model["engines"]["translate"]) == ("int8", "ctranslate2")
    assert model["engines"]["prefix"] == "torch"


def test_a_gpu_searches_one_batch_at_a_time(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here only the name of one: its recorded steps would not bear two threads."""
    search, running, most = TorchEngine.search, list[int](), list[int]()

    def counted(self: Any, *arguments: Any) -> Any:
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return search(self, *arguments)

    client = inside()
    texts = ["der Hund läuft " * 5] * 40
    body = {"model": "de-en", "texts": texts, "options": {"beam_size": 1}}
    monkeypatch.setattr(TorchEngine, "search", counted)
    monkeypatch.setattr(TorchEngine, "start_worker", lambda self: setattr(self, "on_gpu", True))
    assert client.post("/v1/translate", json=body).status_code == 200
    assert len(most) > 1  # two threads share the texts
    assert max(most) == 1


def test_a_request_that_takes_too_long_is_a_504(inside: Inside) -> None:
    client = inside(options=ServerOptions(limits=Limits(deadline=0.02)))
    texts = ["der Hund schläft und die Katze läuft"] * 200
    answer = client.post("/v1/translate", json={"model": "de-en", "texts": texts, "split": False})
    assert answer.status_code == 504
    assert answer.json()["fix"]
    lines = client.post(
        "/v1/translate",
        json={"model": "de-en", "texts": texts, "split": False},
        headers={"Accept": "application/x-ndjson"},
    )
    *done, last = map(json.loads, lines.text.splitlines())
    assert last.keys() == {"index", "error", "fix"}
    assert last["index"] == len(done)


def test_a_full_queue_is_a_503(inside: Inside) -> None:
    client = inside(options=ServerOptions(limits=Limits(max_queue=0)))
    answer = client.post("/v1/translate", json={"model": "de-en", "texts": ["a"]})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


def test_models_are_named_by_their_languages_or_folders(models: dict[str, Path]) -> None:
    folder = models["de-en"]
    assert list(name_models([(None, folder), ("mine", folder)])) == ["de-en", "mine"]
    with pytest.raises(ConfigError, match="both called"):
        name_models([("x", folder), ("x", folder)])
    with pytest.raises(CheckpointError):
        name_models([(None, folder / "nothing")])
    with pytest.raises(ConfigError, match="joins no two"):
        ModelStore({"de-en": folder}, TORCH, pivot="fr")


def test_a_proxy_may_serve_under_a_path(inside: Inside) -> None:
    client = inside(options=ServerOptions(root_path="/mt"))
    assert client.get("/mt/health/live").status_code == 200
    assert client.get("/health/live").status_code == 200
    client = inside(options=ServerOptions(root_path="/translate"))
    body = {"q": "", "source": "de", "target": "en"}
    for path in ("/translate", "/translate/translate"):
        assert client.post(path, json=body, follow_redirects=False).status_code == 200
