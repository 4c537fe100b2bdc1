"""Mutations of the files of each foreign format, and what nmt makes of them.

Started as ``python -m tests.extras.exchange.fuzz COUNT SECONDS FORMAT...``: tries mutations, the
same ones each time, until there are enough or time is up. Prints a line of JSON for each format:
how often each exit code came, the peak of memory, and failures: exceptions that are no errors of
nmt, and mutations that take longer than `SECONDS_EACH`.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import yaml
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from nmt.config.loader import load_config
from nmt.errors import NmtError
from nmt.extras.exchange.export import export
from nmt.extras.exchange.hub import import_model
from nmt.extras.exchange.options import ExportOptions, ImportOptions
from nmt.files.json_file import MANIFEST, Manifest
from nmt.inference.translator import Translator
from nmt.text.tokenizer import JOINT, SOURCE, adopt, load_tokenizers
from tests.extras.exchange.m2m_files import write_m2m, write_nllb
from tests.extras.exchange.marian_files import KINDS, write

MEMORY_BYTES = 3 << 30  # of data, so that no mutation takes the memory of other programs
SECONDS_EACH = 60  # a busy machine is ten times as slow
MARIAN = Path(__file__).parents[4] / "shared" / "data" / "marian_models"
DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"
LINE = "Hello, 3 x 5!"
ODD: tuple[Any, ...] = (
    -5, 0, 1, 2**31, 10**9, 10**40, 1e300, -1e-300, float("nan"), float("inf"), "", "a", "\ud800",
    "\0", "../../x", "x" * 60_000, None, True, [], {}, [[]], {"a": {"a": []}}, ["\udfff"], [1, "a"],
)  # fmt: skip


class TooSlowError(BaseException):
    """A mutation took too long. No handler of exceptions may catch it."""


def too_slow(*_: object) -> NoReturn:
    raise TooSlowError


def mutated_values(values: Any, draw: random.Random) -> Any:
    """Replace, remove or add one value somewhere in parsed JSON or YAML."""
    if isinstance(values, dict) and values and draw.random() < 0.9:
        key = draw.choice([*values])
        changed = dict(values)
        action = draw.random()
        if action < 0.15:
            del changed[key]
        elif action < 0.25:
            changed[draw.choice(["é", "\udc00", "a" * 3000, ""])] = changed.pop(key)
        else:
            changed[key] = mutated_values(values[key], draw)
        return changed
    if isinstance(values, list) and values and draw.random() < 0.7:
        place = draw.randrange(len(values))
        return [*values[:place], mutated_values(values[place], draw), *values[place + 1 :]]
    return draw.choice(ODD)


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """Truncate, or replace or repeat bytes; most often near the start, where headers are."""
    changed = bytearray(content)
    end = len(changed) if draw.random() < 0.4 else min(len(changed), 600)
    action = draw.random()
    if action < 0.15:
        return bytes(changed[: draw.randrange(len(changed) + 1)])
    if action < 0.25:
        return draw.choice([b"", b"[" * 30_000, b"{" * 200, b"\n" * 100_000, b"a: " * 5000])
    for _ in range(draw.randint(1, 6)):
        place = draw.randrange(max(end, 1))
        new = draw.choice([bytes([draw.randrange(256)]), b"\xff" * 8, b"\0" * 8, b"9" * 12, b"-1"])
        changed[place : place + len(new)] = new
    return bytes(changed)


def change_pieces(pieces: Any, draw: random.Random) -> None:
    """Change some subwords of a SentencePiece model in the same way; or none of them."""
    action = draw.randrange(8)
    for _ in range(draw.choice([1, 3, 400])):
        piece = draw.choice(pieces)
        other = draw.choice(pieces).piece
        if action == 0:
            piece.piece = draw.choice(["", " ", "\0", "\n", "<s>", "<unk>", "\u2581", other])
        elif action == 1:
            piece.piece = draw.choice(["<0x41>", ">>deu<<", "<2de>", "a" * 60_000, "é" * 300])
        elif action == 2:
            piece.score = draw.choice([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 0.0])
        elif action == 3:
            piece.type = draw.randint(1, 6)
        elif action == 4:
            del pieces[draw.randrange(len(pieces))]
        elif action == 5:
            pieces.add(piece=other, score=piece.score)


def mutated_model(content: bytes, draw: random.Random) -> bytes:
    """Change subwords and settings of a SentencePiece model, which stays a valid message."""
    model = ModelProto.FromString(content)
    change_pieces(model.pieces, draw)
    trainer = model.trainer_spec
    normalizer = model.normalizer_spec
    charsmap = normalizer.precompiled_charsmap
    action = draw.randrange(12)
    if action == 0:
        trainer.model_type = draw.randint(1, 4)
    elif action == 1:
        setattr(trainer, f"{draw.choice(['pad', 'unk', 'bos', 'eos'])}_id", draw.choice([-1, 0, 9]))
    elif action == 2:
        trainer.byte_fallback = not trainer.byte_fallback
    elif action == 3:
        trainer.unk_surface = draw.choice(["", "\n", "x" * 60_000])
    elif action == 4:
        broken = b"\xff" * 4, b"\4\0\0\0" + b"\xff" * 8, mutated_bytes(charsmap, draw)
        normalizer.precompiled_charsmap = draw.choice(broken)
    elif action == 5:
        for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
            setattr(normalizer, name, draw.random() < 0.5)
    elif action == 6:
        trainer.treat_whitespace_as_suffix = True
        model.denormalizer_spec.precompiled_charsmap = b"\xff" * 40
    return bytes(model.SerializeToString())


def mutate(path: Path, draw: random.Random) -> None:
    """Change one file."""
    content = path.read_bytes()
    if path.suffix in (".json", ".yml", ".yaml") and draw.random() < 0.7:
        is_json = path.suffix == ".json"
        values = json.loads(content) if is_json else yaml.safe_load(content.replace(b"@", b""))
        for _ in range(draw.randint(1, 2)):
            values = mutated_values(values, draw)
        text = json.dumps(values, ensure_ascii=draw.random() < 0.5)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    elif path.suffix in (".spm", ".model") and draw.random() < 0.7:
        path.write_bytes(mutated_model(content, draw))
    else:
        path.write_bytes(mutated_bytes(content, draw))


def imported(folder: Path, draw: random.Random, pattern: str = "*") -> None:
    names = sorted(path for path in folder.glob(pattern) if path.suffix != ".nbest")
    mutate(draw.choice(names), draw)
    output = folder.parent / "imported"
    languages = "eng-fra" if (folder / "tokenizer.json").exists() else "en-de"
    import_model(ImportOptions(source=folder, output=output, languages=languages))
    try:
        Translator.load(output, device="cpu", threads=1).translate([LINE])
    except NmtError as error:  # what was imported can be used
        raise AssertionError("imported, but does not translate") from error


def tokenized(folder: Path, draw: random.Random) -> None:
    """Of a SentencePiece model, which is part of a model or named by ``tokenizer.from``."""
    if draw.random() < 0.5:
        imported(folder, draw, "*.spm")
        return
    path = folder / JOINT
    mutate(path, draw)
    adopted = folder / "tokenizer"
    adopted.mkdir()
    adopt(path, adopted / JOINT)
    for tokenizer in load_tokenizers(adopted):
        tokenizer.decode(tokenizer.encode(LINE))
        tokenizer.for_translation().pieces()


def content_of(folder: Path) -> list[Path]:
    """The files of a model folder, except for its manifest."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    return sorted(files)


def seal(folder: Path) -> None:
    """Write the manifest, as a stranger can, so that it agrees with the files."""
    names = [path.relative_to(folder).as_posix() for path in content_of(folder)]
    Manifest.of(folder, names, 0).write(folder)


def translated(folder: Path, draw: random.Random) -> None:
    mutate(draw.choice(content_of(folder)), draw)
    seal(folder)
    Translator.load(folder, device="cpu", threads=1).translate([LINE])


def configured(folder: Path, draw: random.Random) -> None:
    path = folder / "config.yaml"
    mutate(path, draw)
    load_config(path)


def make_nmt(folder: Path) -> None:
    theirs = write(folder.parent / "theirs", MARIAN, KINDS["tied, swish"])
    import_model(ImportOptions(source=theirs, output=folder))


def make_sentencepiece(folder: Path) -> None:
    make_nmt(folder.parent / "ours")
    write(folder, MARIAN, KINDS["tied, swish"])
    shutil.copyfile(folder.parent / "ours" / "tokenizer" / SOURCE, folder / JOINT)


def make_ctranslate2(folder: Path) -> None:
    make_nmt(folder.parent / "ours")
    export(ExportOptions(model=folder.parent / "ours", output=folder, to="ctranslate2"))


def make_config(folder: Path) -> None:
    folder.mkdir()
    shutil.copyfile(DEMO, folder / "config.yaml")


# Format -> function that writes a good folder, and function that changes and reads it.
FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Path, random.Random], None]]] = {
    "marian": (lambda folder: shutil.copytree(MARIAN / "opus", folder), imported),
    "marian_mt": (lambda folder: write(folder, MARIAN, KINDS["separate"]), imported),
    "m2m": (write_m2m, imported),
    "nllb": (write_nllb, imported),
    "nmt": (make_nmt, translated),
    "ctranslate2": (make_ctranslate2, translated),
    "sentencepiece": (make_sentencepiece, tokenized),
    "configuration": (make_config, configured),
}


def tried(name: str, count: int, seconds: float) -> dict[str, Any]:
    """Try mutations of one format."""
    make, read = FORMATS[name]
    codes = Counter[int]()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        good = Path(temporary) / "good"
        make(good)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.monotonic()
        for seed in range(count):
            if time.monotonic() > begin + seconds:
                break
            place = Path(temporary) / "place"
            shutil.copytree(good, place / "folder", copy_function=shutil.copyfile)
            signal.alarm(SECONDS_EACH)
            try:
                read(place / "folder", random.Random(f"{name} {seed}"))
                codes[0] += 1
            except NmtError as error:
                codes[error.exit_code] += 1
                str(error).encode()
            except BaseException:
                failures.append(f"seed {seed}: {traceback.format_exc()[-900:]}")
            finally:
                signal.alarm(0)
                shutil.rmtree(place)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    return {"format": name, "codes": codes, "peak_mib": peak, "failures": failures}


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, too_slow)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    for chosen in sys.argv[3:]:
        result = tried(chosen, int(sys.argv[1]), float(sys.argv[2]))
        print(json.dumps(result), flush=True)  # noqa: T201
