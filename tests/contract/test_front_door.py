"""Every row of the table of what people have: its command is run on a small file of that kind."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
import shlex
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import polib
import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from tests.data.opus_server import API, README, archive_of, serving

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| `(nmt (?:init|prepare) [^`]+)` \| (.*) \|")
ROWS = dict(ROW.findall((ROOT / "configs" / "README.md").read_text("utf-8")))
GERMAN = ["haus", "baum", "hund", "katze", "wasser", "feuer", "sonne", "mond", "fluß", "brücke"]
ENGLISH = ["house", "tree", "dog", "cat", "water", "fire", "sun", "moon", "river", "bridge"]
Pairs = Sequence[tuple[str, str]]


def sentences(count: int = 60) -> list[tuple[str, str]]:
    """Return different German sentences with their translations."""
    draw = random.Random(3)
    pairs = []
    for number in range(count):
        words = draw.choices(range(len(GERMAN)), k=5)
        german = " ".join(GERMAN[word] for word in words)
        english = " ".join(ENGLISH[word] for word in words)
        pairs.append((f"Das {german} {number}.", f"The {english} {number}."))
    return pairs


def write_sides(pairs: Pairs, german: str, english: str, encoding: str = "utf-8") -> None:
    for side, name in enumerate((german, english)):
        text = "".join(f"{pair[side]}\n" for pair in pairs).encode(encoding)
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)


def write_shards(pairs: Pairs) -> None:
    for number, start in enumerate(range(0, len(pairs), 20)):
        write_sides(pairs[start : start + 20], f"part{number}.de", f"part{number}.en")


def write_table(pairs: Pairs) -> None:
    licence = "CC-BY 2.0 (France) Attribution: tatoeba.org"
    rows = [f"{german}\t{english}\t{licence}\n" for german, english in pairs]
    Path("deu.txt").write_text("".join(rows), "utf-8")


def write_sheet(pairs: Pairs) -> None:
    with Path("sheet.csv").open("w", encoding="utf-16", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["No", "German", "English"])
        writer.writerows((number, *pair) for number, pair in enumerate(pairs))


def write_json(pairs: Pairs) -> None:
    with Path("pairs.jsonl").open("w", encoding="utf-8") as file:
        for german, english in pairs:
            file.write(json.dumps({"id": 1, "translation": {"de": german, "en": english}}) + "\n")


def write_memory(pairs: Pairs) -> None:
    text = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'
    units = []
    for german, english in pairs:
        texts = text.format("de-DE", escape(german)) + text.format("en-US", escape(english))
        units.append(f"<tu>{texts}</tu>")
    header = '<tmx version="1.4"><header srclang="de-DE"/><body>'
    Path("memory.tmx").write_text("\n".join([header, *units, "</body></tmx>"]), "utf-8")


def write_xliff(pairs: Pairs) -> None:
    unit = '<trans-unit id="{}"><source>{}</source><target>{}</target></trans-unit>'
    units = [unit.format(number, *map(escape, pair)) for number, pair in enumerate(pairs)]
    file = '<file source-language="de" target-language="en" original="app"><body>'
    text = "\n".join(['<xliff version="1.2">', file, *units, "</body></file></xliff>"])
    Path("app.xlf").write_text(text, "utf-8")


def write_catalogue(pairs: Pairs) -> None:
    catalogue = polib.POFile()
    for german, english in pairs:
        catalogue.append(polib.POEntry(msgid=english, msgstr=german))
    catalogue.save("de.po")


def write_wmt(pairs: Pairs) -> None:
    sets = (("srcset", "news-src.de.sgm"), ("refset", "news-ref.en.sgm"))
    for side, (kind, name) in enumerate(sets):
        lines = [f'<{kind} setid="news" srclang="de" trglang="en">', '<doc docid="1">']
        for number, pair in enumerate(pairs, start=1):
            lines.append(f'<seg id="{number}">{escape(pair[side])}</seg>')
        Path(name).write_text("\n".join([*lines, "</doc>", f"</{kind}>", ""]), "utf-8")


def write_zip(pairs: Pairs) -> None:
    Path("Corpus.zip").write_bytes(archive_of(pairs, README=README))


def write_tar(pairs: Pairs) -> None:
    write_sides(pairs, "x.de", "x.en")
    with tarfile.open("corpus.tar.gz", "w:gz") as archive:
        archive.add("x.de", "corpus/x.de")
        archive.add("x.en", "corpus/x.en")


def write_folder(pairs: Pairs) -> None:
    parts = {"train": pairs[:40], "dev": pairs[40:50], "test": pairs[50:]}
    for part, some_pairs in parts.items():
        write_sides(some_pairs, f"corpus/{part}.de", f"corpus/{part}.en")


def write_tagged(pairs: Pairs) -> None:
    """The key of the corpus is the one that the row shows."""
    lines = []
    for number, (german, english) in enumerate(pairs):
        lines.append((f">>{('deu', 'fra')[number % 2]}<< {english}", german))
    write_sides(lines, "tagged.src", "tagged.tgt")
    [languages] = re.findall(r"`(target_languages: .*?)`", ROWS["nmt prepare tagged.yaml"])
    corpus = f"{{source: tagged.src, target: tagged.tgt, {languages}}}"
    data = f"data: {{train: [{corpus}], valid: {corpus}}}"
    keys = "name: tagged\nsource_language: en\ntarget_language: de\ntraining: {max_steps: 1}\n"
    size = "tokenizer: {vocab_size: 300}\n"
    Path("tagged.yaml").write_text(f"{keys}{size}{data}\n", "utf-8")


def write_nothing(pairs: Pairs) -> None:
    """The server has the corpus."""


# What the user has, by the first place of the command.
WRITERS: dict[str, Callable[[Pairs], None]] = {
    "train.de": lambda pairs: write_sides(pairs, "train.de", "train.en"),
    "train.src.gz": lambda pairs: write_sides(pairs, "train.src.gz", "train.trg.gz"),
    "part*.de": write_shards,
    "deu.txt": write_table,
    "sheet.csv": write_sheet,
    "pairs.jsonl": write_json,
    "memory.tmx": write_memory,
    "app.xlf": write_xliff,
    "de.po": write_catalogue,
    "news-src.de.sgm": write_wmt,
    "Corpus.zip": write_zip,
    "corpus.tar.gz": write_tar,
    "corpus": write_folder,
    "old.de": lambda pairs: write_sides(pairs, "old.de", "old.en", "latin-1"),
    "tagged.yaml": write_tagged,
    "opus:Tatoeba": write_nothing,
}


def test_every_kind_of_text_has_a_row() -> None:
    assert [command.split()[2] for command in ROWS] == [*WRITERS]


@pytest.mark.parametrize("command", [command for command in ROWS if "init" in command])
def test_the_command_of_a_row_starts_a_project(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = sentences()
    words = shlex.split(command)[1:]
    WRITERS[words[1]](pairs)
    expanded = []
    for word in words:
        names = sorted(str(path) for path in Path().glob(word)) if "*" in word else []
        expanded += names or [word]
    with serving(archive_of(pairs, README=README)) as server:
        monkeypatch.setenv("NMT_OPUS", f"{server.address}{API}")
        result = CliRunner().invoke(app, [*expanded, "--output", "project"])
    assert result.exit_code == 0, result.output
    found = set[tuple[str, str]]()
    for part in ("train", "valid", "test"):
        sides = []
        for code in ("de", "en"):
            [path] = tmp_path.glob(f"project/{part}.{code}*")
            sides.append(path.read_text("utf-8").splitlines())
        found.update(zip(*sides, strict=True))
    if words[1] == "news-src.de.sgm":
        assert "format:    test sets in SGML" in result.output
    if words[1] == "de.po":  # from the message to its translation
        assert "English to German" in result.output
    assert found == set(pairs)


def test_the_row_of_lines_in_several_languages_prepares_a_corpus_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tagged(sentences())
    result = CliRunner().invoke(app, ["prepare", "tagged.yaml"])
    assert result.exit_code == 0, result.output
    for language in ("de", "fr"):
        assert f"tagged.src-{language}: 30 sentence pairs read, 30 kept" in result.output
