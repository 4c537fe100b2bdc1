"""Models that Marian itself trained, against the translations and scores that it makes."""

from __future__ import annotations

import contextlib
import io
import shutil
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.import_model import ImportSummary, import_model
from nmt.extras.exchange.marian import read_npz, read_vocabulary
from nmt.extras.exchange.options import ImportOptions
from nmt.inference.translator import Translator

EMPTY = 190
"""The line of the input that is empty: Marian's scores of it are not defined."""


class Output(NamedTuple):
    """What Marian says of a line."""

    text: str
    scores: list[float]


@pytest.fixture(scope="module")
def marian_models(shared_data: Path) -> Path:
    return shared_data / "marian_models"


def best_outputs(path: Path) -> dict[int, Output]:
    found: dict[int, Output] = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line:
            number, text, scores, _, _ = line.split(" ||| ")
            values = [float(x) for x in scores.removeprefix("WordScores= ").split()]
            found.setdefault(int(number), Output(text, values))
    return found


def imported_as(source: Path, output: Path, **options: Any) -> ImportSummary:
    values = {"languages": "en-de", **options}
    return import_model(ImportOptions(source=source, output=output, **values))


@pytest.fixture(scope="module", params=["transformer", "opus"])
def imported(
    request: pytest.FixtureRequest, marian_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Marian's folder, and ours of it."""
    ours = tmp_path_factory.mktemp(request.param) / "model"
    imported_as(marian_models / request.param, ours)
    return marian_models / request.param, ours


@pytest.mark.parametrize(("mode", "beams"), [("greedy", 1), ("beam4", 4)])
def test_outputs_and_scores_of_words_are_those_of_marian(
    imported: tuple[Path, Path], mode: str, beams: int
) -> None:
    theirs, ours = imported
    lines = (theirs.parent / "input.en").read_text(encoding="utf-8").split("\n")[:200]
    expected = best_outputs(theirs / f"{mode}.nbest")
    options: Any = {"engine": "torch", "threads": 1, "guard": False, "beam_size": beams}
    translator = Translator.load(ours, outputs={"token_scores"}, **options)
    found = translator.translate(lines)
    decode: Callable[[str], str] = str
    if theirs.name == "opus":  # Marian saw pieces, and says pieces
        processor = sentencepiece.SentencePieceProcessor(model_file=str(theirs / "target.spm"))
        decode = lambda text: processor.decode(text.split(" "))  # noqa: E731
    equal, worst = 0, 0.0
    for number, result in enumerate(found):
        if number == EMPTY:
            continue
        if result.text == decode(expected[number].text):
            equal += 1
            assert result.tokens is not None
            pairs = zip(result.tokens, expected[number].scores, strict=True)
            worst = max(worst, *(abs(token.log_prob - score) for token, score in pairs))
    # Marian cuts an output by the longest line of its batch: loops end elsewhere. And its beam gets
    # narrower with each hypothesis that ends.
    assert equal >= (0.98 if beams == 1 else 0.96) * (len(lines) - 1)
    assert worst < 2e-3


def test_a_zip_and_a_file_are_read_like_the_folder(marian_models: Path, tmp_path: Path) -> None:
    """Fault 52: no name leads out of the place."""
    theirs, archive = marian_models / "opus", tmp_path / "opus.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in theirs.iterdir():
            file.write(path, f"../../{path.name}")
    contents = set()
    for number, source in enumerate((theirs, archive, theirs / "model.npz")):
        imported_as(source, tmp_path / str(number))
        contents.add((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(contents) == 1
    for codes in ("en", "en-", "en-cz"):
        with pytest.raises(ConfigError):
            imported_as(theirs, tmp_path / "ours", languages=codes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("factors-dim-emb: 0", "factors-dim-emb: 64", "factors-dim-emb: 64"),
        ("autoreg: self-attention", "autoreg: rnn", "transformer-decoder-autoreg: rnn"),
        ("type: transformer", "type: s2s", "type: s2s"),
        ('preprocess: ""', "preprocess: nd", "preprocess, postprocess"),
        ("ffn-depth: 2", "ffn-depth: 3", "ffn-depth: 3"),
        ("dim-emb: 128", "dim-emb: 64", "not those of the model that is described"),
        ("transformer-heads: 4", "transformer-heads: 0", "is damaged"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(
    marian_models: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    folder = Path(shutil.copytree(marian_models / "transformer", tmp_path / "theirs"))
    with np.load(folder / "model.npz") as file:
        arrays = dict(file)
    options = arrays["special:model.yml"].astype(np.uint8).tobytes().decode()
    assert old in options
    changed = np.frombuffer(options.replace(old, new).encode(), np.int8)
    (folder / "model.npz").chmod(0o644)
    np.savez(folder / "model.npz", **arrays | {"special:model.yml": changed})
    with pytest.raises(CheckpointError, match=message):
        imported_as(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@cache
def archive_bytes() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.arange(6, dtype=np.float32).reshape(2, 3), b=np.zeros(5, np.int8))
    return file.getvalue()


@given(st.data())
def test_damaged_archives_are_refused_and_take_no_memory(data: st.DataObject) -> None:
    content = bytearray(archive_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = Path("damaged.npz")
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        found = read_npz(path)
        assert sum(array.nbytes for array in found.values()) <= len(content)


def test_a_header_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.npz"
    for shape in ("(1000000000000,)", "(-1,)"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        stored = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", stored)
        with pytest.raises(CheckpointError, match="is damaged"):
            read_npz(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(10_000_000))
    with pytest.raises(CheckpointError, match="far larger than the file"):
        read_npz(path)
    np.savez(path, a=np.array([Path("x")], dtype=object))
    with pytest.raises(CheckpointError, match="is damaged"):
        read_npz(path)


def test_a_vocabulary_has_one_entry_a_line(tmp_path: Path) -> None:
    path = tmp_path / "vocab.yml"
    path.write_text('"</s>": 0\n<unk>: 1\n\'it\'\'s\': 2\n"a\\"b\\\\": 3\n▁:: 4\n', "utf-8")
    assert read_vocabulary(path) == ["</s>", "<unk>", "it's", 'a"b\\', "▁:"]
    for text in ("a: 0\nb: 0\n", "a: 1\n", "a\n", "a: x\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CheckpointError, match="is damaged"):
            read_vocabulary(path)
