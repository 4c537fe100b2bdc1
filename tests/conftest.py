"""Fixtures and settings for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Where a folder of nmt/extras was deleted, the tests of the core still run.
FOLDERS = [path.name for path in Path(__file__).with_name("extras").glob("[a-z]*/")]
MISSING = [name for name in FOLDERS if find_spec(f"nmt.extras.{name}") is None]
OF_ALL = ["cli/test_inspect.py", "cli/test_spelling.py", "contract", "scripts"]
collect_ignore = [*(f"extras/{name}" for name in MISSING), *(OF_ALL if MISSING else [])]

# The same examples in every run, so that a commit passes or fails always. New examples are searched
# for by hand: `HYPOTHESIS_PROFILE=search .venv/bin/pytest -m hypothesis`. What they find becomes a
# test with that example.
settings.register_profile(
    "quick", deadline=None, max_examples=40, print_blob=True, derandomize=True, database=None
)
settings.register_profile("long", settings.get_profile("quick"), max_examples=400)
settings.register_profile(
    "search", settings.get_profile("quick"), max_examples=2000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
gc.set_threshold(100_000, 20, 50)  # the heap is large: the default costs a tenth of the time
# A shell lets what it starts in the background ignore SIGINT, and all that this starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

TINY_PAIRS = (
    ("Ein Hund läuft.", "A dog runs."),
    ("Eine Katze schläft.", "A cat sleeps."),
    ("Zwei Männer gehen.", "Two men walk."),
    ("Zwei Frauen singen.", "Two women sing."),
    ("Ein Kind lacht.", "A child laughs."),
    ("Der Hund schläft.", "The dog sleeps."),
    ("Die Katze läuft.", "The cat runs."),
    ("Der Mann geht.", "The man walks."),
    ("Die Frau singt.", "The woman sings."),
    ("Das Kind schläft.", "The child sleeps."),
    ("Ein Mann lacht.", "A man laughs."),
    ("Eine Frau geht.", "A woman walks."),
    ("Zwei Hunde laufen.", "Two dogs run."),
    ("Zwei Katzen schlafen.", "Two cats sleep."),
    ("Zwei Kinder lachen.", "Two children laugh."),
    ("Der Mann singt.", "The man sings."),
    ("Die Frau lacht.", "The woman laughs."),
    ("Das Kind geht.", "The child walks."),
    ("Ein Kind singt.", "A child sings."),
    ("Der Hund läuft.", "The dog runs."),
)
"""Twenty German-English sentences."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test in a folder of its own, whatever lies in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test depend on what else the machine computes."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)


@pytest.fixture
def tiny_corpus(tmp_path: Path) -> Path:
    """A folder with 20 pairs, line by line in ``train.de`` and ``train.en``."""
    folder = tmp_path / "tiny_corpus"
    folder.mkdir()
    for side, language in enumerate(("de", "en")):
        text = "".join(f"{pair[side]}\n" for pair in TINY_PAIRS)
        (folder / f"train.{language}").write_bytes(text.encode())
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real parallel text beside the repository; tests that need it are skipped elsewhere."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("../shared/data is not there: real parallel text is not part of the repository")
    return folder


@pytest.fixture(params=["eager"])
def counting(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A `Backend` that counts the graphs it compiles."""
    from tests.compiling import use_backend

    yield from use_backend(request.param)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of models that were never trained; ``other`` has another vocabulary."""
    from nmt.text.tokenizer import load_tokenizers
    from tests.inference import models

    place = tmp_path_factory.mktemp("runs")
    words = [models.train_tokenizer(place / f"tokenizer-{seed}", seed) for seed in (0, 1)]
    made = {"plain": "plain", "modern": "modern", "learned": "learned", "other": "plain"}
    found: dict[str, Path] = {}
    for name, shape in made.items():
        tokenizers = load_tokenizers(folder := words[name == "other"])
        model = models.small_model(tokenizers, shape)
        if shape == "learned":
            models.speak_whole_words(model, tokenizers)
        found[name] = models.save_run(place / name, model, folder, models.run_config())
    return found


@pytest.fixture(scope="session")
def browser() -> str:
    """A Chromium on the path, or named by CHROMIUM."""
    names = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium is installed; set CHROMIUM to one to see pages in a browser")
    return found


@pytest.fixture
def stopped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes before the third update, whichever training makes it."""
    from nmt.training.update import Updater

    call, updates = Updater.__call__, 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == 3:
            signal.raise_signal(signal.SIGTERM)
        return call(*arguments, **options)

    monkeypatch.setattr(Updater, "__call__", counted)
