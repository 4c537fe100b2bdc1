"""Model folders to and from a hub: a local stand-in that speaks the hub's protocol."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from nmt.checkpoint.model_folder import load_model
from nmt.cli.app import app
from nmt.commands.evaluate import evaluate
from nmt.commands.options import EvaluateOptions
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.extras.exchange.export import export
from nmt.extras.exchange.hub import (
    PullResult,
    PushResult,
    check_names,
    import_model,
    pull,
    push,
)
from nmt.extras.exchange.options import (
    ExportOptions,
    ImportOptions,
    PullOptions,
    PushOptions,
    parse_name,
)
from nmt.metrics.result import EvaluationReport, read_report
from tests.extras.exchange.m2m_files import write_nllb
from tests.extras.exchange.marian_files import KINDS, write
from tests.process import LIMIT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/model"


class Hub(ThreadingHTTPServer):
    """One repository, in memory."""

    files: dict[str, bytes]
    token: str | None = None
    sent: list[str]  # files that were downloaded
    created: dict[str, Any]  # the request that creates the repository
    revision: str | None = None  # the version that was asked for


class Handler(BaseHTTPRequestHandler):
    """Answers the requests that push and pull send."""

    server: Hub

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def answer(self, content: object, **headers: str) -> None:
        """Send bytes, or JSON; None is refused."""
        sent = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(404 if content is None else 200)
        for name, value in {"Content_Length": str(len(sent)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.token = self.headers.get("authorization")
        home = f"http://{self.headers['Host']}/org/model"
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self.answer({"url": home})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [each | mode for each in json.loads(body)["files"]]})
        elif "/commit/" in self.path:
            for entry in map(json.loads, body.decode().splitlines()):
                value = entry["value"]
                if entry["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "deletedFile":
                    del self.server.files[value["path"]]
            address = f"{home}/commit/{COMMIT}"
            self.answer({"commitUrl": address, "commitOid": COMMIT, "success": True})
        else:
            self.answer(None)

    def do_GET(self) -> None:
        path, files = self.path.partition("?")[0], self.server.files
        if match := re.fullmatch(r"/api/models/org/model(?:/revision/([\w-]+))?", path):
            self.server.revision = match[1]
            info = {"id": "org/model", "sha": COMMIT, "private": False, "tags": []}
            names = [{"rfilename": name} for name in files]
            card = {"cardData": {"license": "cc-by-4.0"}}
            self.answer({**info, **card, "siblings": names, "downloads": 0, "likes": 0})
        elif path.startswith("/api/models/org/model/tree/"):
            sizes = {name: len(content) for name, content in files.items()}
            common = {"type": "file", "oid": "0"}
            self.answer([{**common, "path": name, "size": sizes[name]} for name in sizes])
        elif match := re.fullmatch(rf"/org/model/resolve/{COMMIT}/(.+)", path):
            self.server.sent += [match[1]] * (self.command == "GET")
            tag = f'"{hashlib.sha1(files[match[1]]).hexdigest()}"'
            self.answer(files[match[1]], ETag=tag, X_Repo_Commit=COMMIT)
        else:
            self.answer(None)

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub(("127.0.0.1", 0), Handler)
    server.files, server.sent = {".gitattributes": b"*.safetensors filter=lfs\n"}, []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    from huggingface_hub import constants

    # The library reads the variables when it is loaded, which another test may have done.
    for name, value in (("ENDPOINT", address), ("HF_HUB_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setattr(constants, name, value)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield server
    server.shutdown()
    server.server_close()
    thread.join(LIMIT)


@pytest.fixture(scope="module")
def imported(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("imported"), shared_data / "marian_models" / "opus"
    import_model(ImportOptions(source=source, output=folder / "model", languages="en-de"))
    return folder / "model"


@pytest.fixture
def model(imported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(imported, tmp_path / "model"))


@pytest.fixture
def back(tmp_path: Path) -> Path:
    return tmp_path / "back"


def pushed(model: Path, **options: Any) -> PushResult:
    return push(PushOptions(**{"folder": model, "name": NAME, **options}))


def pulled(output: Path, name: str = NAME) -> PullResult:
    return pull(PullOptions(name=name, output=output))


def test_a_pushed_model_is_pulled_unchanged_with_its_commit(
    hub: Hub, model: Path, tmp_path: Path, back: Path
) -> None:
    hub.files["old.json"] = b"{}"
    score = {"metric": "bleu", "value": 31.25, "signature": "nrefs:1|case:mixed"}
    report = {"test": "wmt14", "systems": [{"name": "a", "scores": [score]}]}
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps(report), encoding="utf-8")
    several = tmp_path / "several.json"  # of two test sets, as `nmt evaluate` writes them
    evaluations = [report | {"test": name} for name in ("a", "b")]
    several.write_text(json.dumps({"evaluations": evaluations}), encoding="utf-8")
    found = pushed(model, license="cc-by-4.0", scores=(scores, several), private=True)
    # Old versions of the library send another key.
    assert hub.created.get("private") or hub.created["visibility"] == "private"
    assert str(found.address).endswith(f"/org/model/commit/{COMMIT}")
    assert hub.token == "Bearer hf_secret"
    assert hub.files.keys() >= {".gitattributes", "manifest.json"}
    assert "old.json" not in hub.files
    card = hub.files["README.md"].decode()
    assert f"[ctranslate2]'\nnmt pull {NAME} -o FOLDER\nnmt translate FOLDER < in.en" in card
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["language"], front["license"]) == (["en", "de"], "cc-by-4.0")
    assert card.count("pipeline_tag:") == 1  # instead of the front matter before
    result, *others = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == "wmt14"
    assert [each["dataset"]["name"] for each in others] == ["a", "b"]
    args = {"signature": "nrefs:1|case:mixed"}
    assert result["metrics"][0] == {"type": "bleu", "value": 31.25, "name": "bleu", "args": args}
    assert pulled(back, f"hub:{NAME}").name == f"{NAME}@{COMMIT}"
    assert not (back / ".cache").exists()
    weights = (folder / "model.safetensors" for folder in (back, model))
    assert len({path.read_bytes() for path in weights}) == 1
    assert load_model(back).config == load_model(model).config


def test_a_dry_run_sends_nothing(hub: Hub, model: Path) -> None:
    before = dict(hub.files)
    result = CliRunner().invoke(app, ["push", str(model), NAME, "--dry-run"])
    assert result.exit_code == 0
    assert all(text in result.stdout for text in ("pipeline_tag: translation", "model.safetensors"))
    assert hub.files == before


@pytest.mark.parametrize("name", ["model.pkl", "code.py", "pytorch_model.bin"])
def test_files_that_may_be_code_are_refused(hub: Hub, model: Path, back: Path, name: str) -> None:
    """Fault 52."""
    pushed(model)
    hub.files[name] = b"x"
    with pytest.raises(CheckpointError, match=name):
        pulled(back)
    assert not back.exists()


@pytest.mark.parametrize(
    "name",
    ["../up.json", "/tmp/root.json", "a/../../b.yaml", "model.safetensors.py", "config.yaml.pkl"],
)
def test_names_outside_the_folder_are_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="nmt never writes into a model folder"):
        check_names("org/model", {"manifest.json", name})


def test_damage_during_the_transfer_is_an_error(hub: Hub, model: Path, back: Path) -> None:
    pushed(model)
    weights = bytearray(hub.files["model.safetensors"])
    weights[-1] ^= 1
    hub.files["model.safetensors"] = bytes(weights)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        pulled(back)
    assert not back.exists()
    del hub.files["manifest.json"]
    with pytest.raises(
        CheckpointError, match=r"neither an nmt model folder nor a Marian, M2M-100 or NLLB"
    ):
        pulled(back)


def test_a_pushed_folder_of_transformers_keeps_its_files_and_is_pulled_as_a_model_of_nmt(
    hub: Hub, shared_data: Path, tmp_path: Path, back: Path
) -> None:
    theirs = write(tmp_path / "theirs", shared_data / "marian_models", KINDS["tied, swish"])
    import_model(ImportOptions(source=theirs, output=tmp_path / "ours"))
    folder = tmp_path / "export"
    export(ExportOptions(model=tmp_path / "ours", output=folder, to="transformers"))
    (folder / "notes.txt").write_text("private", encoding="utf-8")
    assert pushed(folder, license="cc-by-4.0").address
    assert hub.files.keys() - {".gitattributes"} == {
        "README.md", "config.json", "generation_config.json", "manifest.json", "model.safetensors",
        "source.spm", "target.spm", "tokenizer_config.json", "vocab.json",
    }  # fmt: skip
    _, front, text = hub.files["README.md"].decode().split("---\n", 2)
    fields = yaml.safe_load(front)
    assert (fields["library_name"], fields["pipeline_tag"]) == ("transformers", "translation")
    assert (fields["language"], fields["license"]) == (["en", "de"], "cc-by-4.0")
    assert f'pipeline("translation", "{NAME}")' in text
    assert pulled(back).name == f"{NAME}@{COMMIT}"
    weights = (place / "model.safetensors" for place in (back, tmp_path / "ours"))
    assert len({path.read_bytes() for path in weights}) == 1
    with (folder / "vocab.json").open("a") as file:
        file.write(" ")
    with pytest.raises(CheckpointError, match=r"vocab\.json"):
        pushed(folder)


def load_files(hub: Hub, folder: Path) -> None:
    hub.files |= {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_pulled_marianmt_model_translates_and_nothing_else_is_downloaded(
    hub: Hub, shared_data: Path, tmp_path: Path, back: Path
) -> None:
    theirs = write(tmp_path / "theirs", shared_data / "marian_models", KINDS["tied, swish"])
    load_files(hub, theirs)
    needed = {path.name for path in theirs.iterdir()}
    for name in ("tf_model.h5", "rust_model.ot", "flax_model.msgpack", "pytorch_model.bin"):
        hub.files[name] = b"x"
    hub.files |= {"README.md": b"# x", "run.py": b"x", "source.bpe": b"x"}
    result = CliRunner().invoke(app, ["pull", NAME, "-o", str(back)])
    assert (result.exit_code, result.stdout) == (0, f"{NAME}@{COMMIT}\n")
    assert set(hub.sent) == needed
    (back.parent / "in.en").write_text("A dog runs.\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["translate", str(back), str(back.parent / "in.en")])
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    card = (back / "README.md").read_text(encoding="utf-8")
    assert f"org/model, commit {COMMIT}, license: cc-by-4.0." in card
    del hub.files["model.safetensors"], hub.files["pytorch_model.bin"]
    with pytest.raises(CheckpointError, match=r"org/model has neither .*, only flax_model.msgpack"):
        pulled(tmp_path / "again")


def test_a_version_and_both_vocabularies_of_a_model_are_pulled(
    hub: Hub, shared_data: Path, tmp_path: Path, back: Path
) -> None:
    theirs = write(tmp_path / "theirs", shared_data / "marian_models", KINDS["separate"])
    ids = json.loads((theirs / "target_vocab.json").read_text(encoding="utf-8"))
    (theirs / "target_vocab.json").write_text(json.dumps(ids, indent=1), encoding="utf-8")
    load_files(hub, theirs)  # equal files would be downloaded once
    pulled(back, f"{NAME}@v1")
    assert hub.revision == "v1"
    assert set(hub.sent) == {path.name for path in theirs.iterdir()}


def test_the_files_of_a_multilingual_model_are_pulled(hub: Hub, tmp_path: Path, back: Path) -> None:
    theirs = write_nllb(tmp_path / "theirs")
    load_files(hub, theirs)
    needed = {path.name for path in theirs.iterdir()}
    hub.files |= {"README.md": b"# x", "flax_model.msgpack": b"x", "pytorch_model.bin": b"x"}
    pulled(back)
    assert set(hub.sent) == needed
    assert load_model(back).config.language_tags == "both"


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_model_of_the_hub_is_imported_by_its_name(
    hub: Hub, model: Path, tmp_path: Path, is_ours: bool
) -> None:
    if is_ours:
        pushed(model)
    else:
        load_files(hub, write_nllb(tmp_path / "theirs"))
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    sizes = []
    for flags in ([], ["--keep-vocabulary", str(tmp_path / "in.txt")]):
        output = tmp_path / f"own-{len(flags)}"
        result = CliRunner().invoke(app, ["import", NAME, "-o", str(output), *flags])
        assert (result.exit_code, result.stdout) == (0, f"{output}\n"), result.stderr
        sizes.append(load_model(output).tokenizers.source.vocab_size)
    assert sizes[1] < sizes[0]


def test_an_unsupported_model_is_refused_before_its_weights_are_downloaded(
    hub: Hub, back: Path
) -> None:
    hub.files |= {"config.json": b'{"model_type": "nllb_moe"}', "pytorch_model.bin": b"x"}
    with pytest.raises(CheckpointError, match="mixture of experts"):
        pulled(back)
    assert hub.sent == ["config.json"]


def test_a_release_of_marian_is_pulled_with_its_languages(
    hub: Hub, shared_data: Path, back: Path
) -> None:
    load_files(hub, shared_data / "marian_models" / "opus")
    with pytest.raises(ConfigError, match="do not state the language pair"):
        pulled(back)
    pull(PullOptions(name=NAME, output=back, languages="en-de"))
    assert load_model(back).config.languages == ("en", "de")
    assert {"beam4.nbest", "greedy.nbest"}.isdisjoint(hub.sent)


@pytest.mark.usefixtures("hub")
def test_scores_are_published_under_the_name_of_their_test_set(model: Path, tmp_path: Path) -> None:
    """The reader and `nmt evaluate` agree on every key of the report."""
    reference, report = tmp_path / "news.en", tmp_path / "report.json"
    reference.write_text("a dog runs\na cat sleeps in the sun\n", encoding="utf-8")
    files: dict[str, Any] = {"hypothesis": (reference,), "reference": (reference,)}
    evaluation = evaluate(EvaluateOptions(**files, report=(report,), resamples=0))
    assert isinstance(evaluation, EvaluationReport)
    whole = evaluation.as_dict(with_texts=True)
    assert json.loads(report.read_text("utf-8")) == whole
    (document,) = whole["test_sets"]
    card = pushed(model, scores=(report,), dry_run=True).card
    (result,) = yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"]
    assert result["dataset"] == {"name": document["test"], "type": document["test"]}
    assert document["test"] == "news.en"
    scores = [(x["metric"], x["value"], x["signature"]) for x in document["systems"][0]["scores"]]
    published = [(x["type"], x["value"], x["args"]["signature"]) for x in result["metrics"]]
    assert published == scores
    (record,) = read_report(report)
    assert record.systems[0].lines == document["systems"][0]["hypotheses"]
    assert record.as_dict(with_texts=True) == document


@pytest.mark.usefixtures("hub")
def test_wrong_names_and_missing_files_are_errors(model: Path, tmp_path: Path, back: Path) -> None:
    with pytest.raises(CheckpointError, match="org/other was not pulled"):
        pulled(back, "org/other")
    with pytest.raises(ConfigError, match="is not a valid Hub name"):
        parse_name("https://huggingface.co/org/model")
    with pytest.raises(ConfigError, match="Cannot push to the revision"):
        pushed(model, name=f"{NAME}@main", dry_run=True)
    (tmp_path / "bad.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="is not a JSON report"):
        pushed(model, scores=(tmp_path / "bad.json",), dry_run=True)
    (model / "model.safetensors").chmod(0o644)
    shutil.copyfile(model / "config.yaml", model / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        pushed(model, dry_run=True)


def test_an_unreachable_hub_is_reported_before_slow_imports(tmp_path: Path) -> None:
    """Within 3 s even on a busy machine: importing the libraries would take longer."""
    code = """
import os, sys
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:1"
from nmt.cli.app import app
try: app(["pull", "org/model", "-o", "new"])
finally: print([name for name in ("torch", "huggingface_hub", "datasets") if name in sys.modules])
"""
    own = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=own,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert "http://127.0.0.1:1 cannot be reached." in done.stderr
    assert (done.returncode, done.stdout) == (4, "[]\n")
    assert not list(tmp_path.iterdir())
