"""What files, archives and folders contain, as people have them."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.formats.file_names import sides_of
from nmt.data.formats.layout import Wanted
from nmt.data.places import TEXT, PartFiles, Places, find_places
from nmt.errors import DataError

ENGLISH = "".join(f"This is sentence {number}.\n" for number in range(30))
GERMAN = "".join(f"Das ist Satz {number}.\n" for number in range(30))
BOTH = "".join(f"This is sentence {number}.\tDas ist Satz {number}.\n" for number in range(30))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*names: str, text: str = ENGLISH) -> list[Path]:
    paths = list(map(Path, names))
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return paths


def write_zip(name: str, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return Path(name)


def write_tar(name: str, members: dict[str, str]) -> Path:
    with tarfile.open(name, "w:gz") as archive:
        for member, text in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return Path(name)


def find(*places: str | Path, languages: str | None = None) -> Places:
    wanted = None
    if languages is not None:
        source, target = languages.split("-")
        wanted = source, target
    return find_places([Path(place) for place in places], Wanted(wanted))


def names(files: PartFiles) -> tuple[list[str], list[str]]:
    return [path.as_posix() for path in files.sources], [path.as_posix() for path in files.targets]


def refused(*places: str | Path, languages: str | None = None) -> DataError:
    with pytest.raises(DataError) as raised:
        find(*places, languages=languages)
    return raised.value


@pytest.mark.parametrize(
    ("source", "target", "languages"),
    [
        ("x.en", "x.de", ("en", "de")),
        ("x.de.gz", "x.en.gz", ("de", "en")),
        ("train.en-de.de", "train.en-de.en", ("de", "en")),
        ("Corpus.en-de.en", "Corpus.en-de.de", ("en", "de")),
        ("en.txt", "de.txt", ("en", "de")),
        ("eng_Latn.dev", "deu_Latn.dev", ("eng_Latn", "deu_Latn")),
        ("train_en.txt", "train_pt-BR.txt", ("en", "pt-BR")),
        ("a.eng", "b.deu", ("eng", "deu")),
        ("de/en.txt", "de/de.txt", ("en", "de")),
        ("german.txt", "english.txt", ("de", "en")),
        ("en.is.txt", "de.is.txt", ("en", "de")),
    ],
)
def test_two_files_have_the_languages_of_their_names(
    source: str, target: str, languages: tuple[str, str]
) -> None:
    write(source, target)
    places = find(source, target)
    assert places.languages == languages
    assert names(places.parts["train"]) == ([source], [target])
    assert places.parts["train"].layout.format == TEXT
    assert not places.unused


WORDS = "src trg tgt raw tok bpe txt old new ref hyp clean sys out dev sp".split()  # noqa: SIM905


@given(st.permutations(WORDS), st.sampled_from([".gz", ""]))
def test_words_of_tools_are_no_languages(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("words")
    files = [folder / f"x.{word}{suffix}" for word in words[:2]]
    write(*map(str, files))
    error = refused(*files)
    assert "tell the languages" in error.problem
    assert "--languages" in error.fix
    assert find(*files, languages="en-de").languages == ("en", "de")


def test_a_language_needs_a_language_on_the_other_side() -> None:
    write("x.en", "x.raw", "y.en")
    for pair in (("x.en", "x.raw"), ("x.en", "y.en")):
        assert "tell the languages" in refused(*pair).problem


def test_languages_against_the_names_are_a_question() -> None:
    write("x.en", "x.de")
    error = refused("x.en", "x.de", languages="de-eng")
    assert "nmt init x.de x.en --languages de-eng" in error.fix
    assert "nmt init x.en x.de --languages en-de" in error.fix
    assert "the same file" in refused("x.en", "x.en").problem


def test_an_archive_of_opus_is_read_without_a_word_about_its_documents() -> None:
    path = write_zip(
        "Corpus.en-de.zip",
        {
            "README": "read me",
            "LICENSE": "free",
            "Corpus.en-de.en": ENGLISH,
            "Corpus.en-de.de": GERMAN,
            "Corpus.en-de.xml": '<?xml version="1.0"?>\n<cesAlign>\n</cesAlign>\n',
            "Corpus.en-de.ids": "en/a.xml.gz\tde/a.xml.gz\t1\t1\n" * 30,
        },
    )
    places = find(path)
    assert places.languages == ("en", "de")
    expected = (["Corpus.en-de.zip/Corpus.en-de.en"], ["Corpus.en-de.zip/Corpus.en-de.de"])
    assert names(places.parts["train"]) == expected
    assert not places.unused
    swapped = find(path, languages="deu-eng")
    assert swapped.languages == ("deu", "eng")
    assert names(swapped.parts["train"]) == expected[::-1]


def test_an_archive_with_a_table_has_the_languages_of_its_name() -> None:
    path = write_tar("en-de.tar.gz", {"en-de/en-de.txt": BOTH})
    places = find(path)
    assert places.languages == ("en", "de")
    assert places.parts["train"].layout.format == "tsv"
    assert names(places.parts["train"]) == (["en-de.tar.gz/en-de/en-de.txt"], [])


def test_columns_in_the_other_order_are_a_question() -> None:
    """The archive deu-eng.zip of a popular collection has English in the first column."""
    path = write_zip("deu-eng.zip", {"deu.txt": BOTH, "_about.txt": "About these files"})
    error = refused(path)
    assert "column 0 seems to be eng, and 1 deu" in error.problem
    assert "nmt init deu-eng.zip --languages eng-deu\n" in error.fix
    assert "nmt init deu-eng.zip --languages deu-eng --columns 1,0" in error.fix
    assert refused(path, languages="deu-eng").fix == error.fix
    places = find(path, languages="eng-deu")
    assert names(places.parts["train"]) == (["deu-eng.zip/deu.txt"], [])
    places = find_places([path], Wanted(("deu", "eng"), (1, 0)))
    assert places.parts["train"].layout.columns == (1, 0)
    assert list(map(str, places.unused)) == ["deu-eng.zip/_about.txt"]
    # The user may know better.
    places = find_places([path], Wanted(("deu", "eng"), (0, 1)))
    assert places.languages == ("deu", "eng")


def test_two_archives_with_a_side_each_are_two_files() -> None:
    write_tar("x.en.tgz", {"x.en": ENGLISH})
    write_tar("x.de.tgz", {"x.de": GERMAN})
    places = find("x.en.tgz", "x.de.tgz")
    assert places.languages == ("en", "de")
    assert names(places.parts["train"]) == (["x.en.tgz/x.en"], ["x.de.tgz/x.de"])


def test_one_archive_beside_a_file_is_no_pair() -> None:
    write("x.de", text=GERMAN)
    path = write_zip("Corpus.zip", {"x.en": ENGLISH, "y.de": GERMAN})
    assert "x.de is not in a format with both sides" in refused(path, "x.de").problem


def test_links_and_hidden_files_of_an_archive_are_not_used(tmp_path: Path) -> None:
    with tarfile.open("x.tar", "w") as archive:
        for name, text in (("x.en", ENGLISH), ("x.de", GERMAN), ("._x.en", "\0")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("y.en")
        link.type = tarfile.SYMTYPE
        link.linkname = str(tmp_path)
        archive.addfile(link)
    places = find("x.tar", languages="en-de")
    assert names(places.parts["train"]) == (["x.tar/x.en"], ["x.tar/x.de"])
    assert {path.name for path in places.unused} == {"y.en"}
    assert "link" in places.unused[Path("x.tar/y.en")]


@pytest.mark.parametrize("parts", [("train", "dev", "test"), ("training", "valid", "devtest"),
                                   ("commoncrawl", "newsdev2014", "newstest2014")])  # fmt: skip
@pytest.mark.parametrize("pattern", ["{}.{}", "{}/x.{}", "{}/{}.txt", "{}.de-en.{}"])
@pytest.mark.parametrize("place", ["corpus", "corpus.zip", "corpus.tgz"])
def test_parts_of_folders_and_archives_have_their_usual_names(
    parts: tuple[str, str, str], pattern: str, place: str
) -> None:
    files = {pattern.format(part, code): ENGLISH for part in parts for code in ("de", "en")}
    if place == "corpus":
        write(*(f"corpus/{name}" for name in files))
    else:
        (write_zip if place == "corpus.zip" else write_tar)(place, files)
    places = find(place, languages="en-de")
    assert set(places.parts) == {"train", "valid", "test"}
    for part, name in zip(("train", "valid", "test"), parts, strict=True):
        source = f"{place}/{pattern.format(name, 'en')}"
        target = f"{place}/{pattern.format(name, 'de')}"
        assert names(places.parts[part]) == ([source], [target])
    assert not places.unused


def test_parts_may_have_both_sides_in_each_file() -> None:
    line = '{"translation": {"de": "Ein Satz.", "en": "A sentence."}}\n'
    write("data/train.jsonl", "data/dev.jsonl", "data/test.jsonl.gz", text=line * 30)
    places = find("data")
    assert places.languages == ("de", "en")
    assert names(places.parts["test"]) == (["data/test.jsonl.gz"], [])
    assert places.parts["valid"].layout.format == "jsonl"


def test_a_file_with_both_sides_may_contradict_its_name() -> None:
    line = '{"de": "Ein Satz.", "en": "A sentence."}\n'
    write("de-en.jsonl", "en-de.jsonl", "fr-en.jsonl", text=line * 30)
    assert find("de-en.jsonl").languages == ("de", "en")
    assert find("fr-en.jsonl").languages == ("de", "en")
    assert "--languages en-de" in refused("en-de.jsonl").fix
    assert find("en-de.jsonl", languages="en-de").parts["train"].layout.columns == ("en", "de")


def test_a_name_tells_the_languages_of_a_memory_with_several() -> None:
    texts = "".join(f'<tuv xml:lang="{code}"><seg>A</seg></tuv>' for code in ("fr", "en", "de"))
    text = f'<tmx version="1.4"><header srclang="fr"/><body><tu>{texts}</tu></body></tmx>'
    write("memory.tmx", "memory.en-de.tmx", text=text)
    assert find("memory.en-de.tmx").languages == ("en", "de")
    assert "not certain" in refused("memory.tmx").problem


def test_a_file_in_two_pairs_is_a_question() -> None:
    write("corpus/en/x.en", "corpus/de/x.de", "corpus/en/x.de")
    error = refused("corpus", languages="en-de")
    assert "nmt init corpus/en/x.en corpus/de/x.de" in error.fix
    assert "nmt init corpus/en/x.en corpus/en/x.de" in error.fix


def test_commands_to_choose_from_keep_the_other_options() -> None:
    write("x.tsv", text=BOTH)
    with pytest.raises(DataError) as raised:
        find_places([Path("x.tsv")], Wanted(None, (0, 1), "tsv", "utf-8"))
    command = "nmt init x.tsv --languages en-de --columns 0,1 --format tsv --encoding utf-8"
    assert command in raised.value.fix


def test_the_columns_of_a_file_that_do_not_tell_are_commands_to_choose_from() -> None:
    records = [f'{{"id": {number}, "x": "A dog.", "y": "Ein Hund."}}\n' for number in range(9)]
    write("t.jsonl", text="".join(records))
    error = refused("t.jsonl", languages="en-de")
    for columns in ("x,y", "y,x"):  # numbers are no text
        assert f"nmt init t.jsonl --languages en-de --columns {columns}" in error.fix
    write("t.tsv", text="A dog.\tEin Hund.\tUn chien.\n" * 2)
    assert "nmt init t.tsv --columns 2,0" in refused("t.tsv").fix


def test_a_memory_with_two_codes_of_a_language_is_a_question_without_a_circle() -> None:
    texts = {"en-US": "A color.", "en-GB": "A colour.", "de-DE": "Eine Farbe."}
    unit = "".join(f'<tuv xml:lang="{x}"><seg>{texts[x]}</seg></tuv>' for x in texts)
    write("t.tmx", text=f"<tmx version='1.4'><header/><body><tu>{unit}</tu></body></tmx>")
    assert "nmt init t.tmx --languages en-de" in refused("t.tmx").fix
    fix = refused("t.tmx", languages="en-de").fix
    assert "nmt init t.tmx --languages en-de --columns en-GB,de-DE" in fix
    assert fix.count("nmt init") == 2


def test_the_order_of_languages_in_a_folder_is_a_question_unless_a_name_tells() -> None:
    write(
        *(
            f"{place}/train.{code}"
            for place in ("corpus", "de-en", "en-de")
            for code in ("de", "en")
        )
    )
    error = refused("corpus")
    assert "nmt init corpus --languages en-de" in error.fix
    assert "nmt init corpus --languages de-en" in error.fix
    for place, source, target in (("de-en", "de", "en"), ("en-de", "en", "de")):
        places = find(place)
        assert places.languages == (source, target)
        expected = [f"{place}/train.{source}"], [f"{place}/train.{target}"]
        assert names(places.parts["train"]) == expected


def test_a_third_language_is_a_question() -> None:
    write("corpus/x.en", "corpus/x.de", "corpus/x.fr")
    error = refused("corpus")
    for pair in ("en-de", "de-en", "fr-en", "en-fr", "de-fr", "fr-de"):
        assert f"nmt init corpus --languages {pair}" in error.fix
    places = find("corpus", languages="fr-en")
    assert names(places.parts["train"]) == (["corpus/x.fr"], ["corpus/x.en"])
    assert "is in another language" in places.unused[Path("corpus/x.de")]


@pytest.mark.parametrize(
    "others", [["x.en.gz"], ["x.en.txt"], ["x.eng"], ["x.tok.en", "x.tok.de"], ["x.tsv"]]
)
def test_the_same_text_twice_is_a_question(others: list[str]) -> None:
    write("corpus/x.en", "corpus/x.de")
    write(*(f"corpus/{name}" for name in others), text=BOTH if others == ["x.tsv"] else ENGLISH)
    error = refused("corpus", languages="en-de")
    assert "nmt init corpus/x.en corpus/x.de --languages en-de" in error.fix
    assert f"corpus/{others[0]}" in error.fix


@given(
    numbers=st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True),
    pattern=st.sampled_from(["train.{:02}.{}", "part{}.{}.gz", "{1}/part{0}.txt"]),
    is_folder=st.booleans(),
)
def test_shards_of_both_sides_stay_aligned(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], pattern: str, is_folder: bool
) -> None:
    """Shell patterns list all shards of one side first; the first file is in the source."""
    folder = tmp_path_factory.mktemp("shards")
    sides = [sorted(pattern.format(number, code) for number in numbers) for code in ("en", "de")]
    paths = [[str(folder / name) for name in side] for side in sides]
    write(*paths[0], *paths[1])
    given = [folder] if is_folder else paths[0] + paths[1]
    places = find(*given, languages="en-de" if is_folder else None)
    assert places.languages == ("en", "de")
    assert names(places.parts["train"]) == (paths[0], paths[1])


def test_shards_without_languages_in_their_names_need_them() -> None:
    files = ["part1.src", "part2.src", "part1.trg", "part2.trg"]
    write(*files)
    assert "--languages" in refused(*files).fix
    places = find(*files, languages="en-de")
    assert names(places.parts["train"]) == (files[:2], files[2:])


def test_a_shard_without_its_other_side_is_named() -> None:
    write("part1.en", "part2.en", "part1.de")
    error = refused("part1.en", "part2.en", "part1.de")
    assert "part2.en is in another language, or lacks its other side" in error.problem
    write("corpus/part1.en", "corpus/part2.en", "corpus/part1.de")
    assert Path("corpus/part2.en") in find("corpus", languages="en-de").unused


def test_a_spreadsheet_beside_text_is_not_used() -> None:
    write("en-de/x.en", "en-de/x.de")
    spreadsheet = write_zip("en-de/x.xlsx", {"[Content_Types].xml": "<x/>"})
    places = find("en-de")
    assert list(places.unused) == [spreadsheet]
    assert "office" in refused(spreadsheet).problem


def test_files_with_both_sides_may_be_shards() -> None:
    write("part1.tsv", "part2.tsv", text=BOTH)
    places = find("part1.tsv", "part2.tsv", languages="en-de")
    assert names(places.parts["train"]) == (["part1.tsv", "part2.tsv"], [])
    # Their names do not have to say that they are tables.
    write("part1.txt", "part2.txt", text=BOTH)
    places = find("part1.txt", "part2.txt", languages="en-de")
    assert names(places.parts["train"]) == (["part1.txt", "part2.txt"], [])


def test_a_single_part_is_for_training_whatever_its_name_is() -> None:
    write("test.en", "test.de")
    assert set(find("test.en", "test.de").parts) == {"train"}
    write("corpus/dev.en", "corpus/dev.de", "corpus/test.en", "corpus/test.de")
    assert "no text for training" in refused("corpus", languages="en-de").problem


def test_the_encoding_of_a_byte_order_mark_is_shown_if_all_files_have_it() -> None:
    """The encoding is for files without a mark, too."""
    Path("x.en").write_text(ENGLISH, encoding="utf-16")
    Path("x.de").write_text(GERMAN, encoding="utf-16")
    write("y.de", text=GERMAN)
    assert find("x.en", "x.de").parts["train"].layout.encoding == "utf-16-le"
    assert find("x.en", "y.de").parts["train"].layout.encoding == "utf-8"
    given = find_places([Path("y.de"), Path("x.en")], Wanted(encoding="Latin-1"))
    assert given.parts["train"].layout.encoding == "iso8859-1"


def test_the_sides_of_a_set_of_wmt_are_two_files() -> None:
    folder = "newstest"
    for kind, code in (("src", "de"), ("ref", "en")):
        start = f'<{kind}set setid="x" srclang="any"><doc docid="a"><seg id="1">'
        end = f"</seg></doc></{kind}set>\n"
        write(f"{folder}/newstest2014-deen-{kind}.{code}.sgm", text=f"{start}Text.{end}")
    source = f"{folder}/newstest2014-deen-src.de.sgm"
    target = f"{folder}/newstest2014-deen-ref.en.sgm"
    for places in (find(source, target), find(folder, languages="de-en")):
        assert places.languages == ("de", "en")
        assert names(places.parts["train"]) == ([source], [target])
    for old, new in ((source, "a.sgm"), (target, "b.sgm")):
        Path(old).rename(new)
    assert names(find("a.sgm", "b.sgm", languages="de-en").parts["train"]) == (["a.sgm"], ["b.sgm"])


def test_places_without_parallel_text_are_refused_with_what_they_contain() -> None:
    write("corpus/x.en", "corpus/y.de", "corpus/README", "corpus/x.pdf")
    error = refused("corpus")
    assert "corpus/x.pdf is not a text file. Write the text into" in error.problem
    assert "corpus/x.en is not in a format with both sides" in error.problem
    Path("empty").mkdir()
    assert "no parallel text" in refused("empty").problem
    assert "does not exist" in refused("nowhere.en", "x.de").problem
    os.mkfifo("pipe.en")
    assert "pipe" in refused("pipe.en", "x.de").problem


@given(st.text("abcdefgen./-_0", min_size=1, max_size=20).filter(lambda name: name.strip("./")))
def test_the_sides_of_a_name_are_parts_of_it(name: str) -> None:
    for side, rest in sides_of(name):
        assert "*" in rest
        assert len(rest) <= len(name) + 1
        assert side


@pytest.mark.parametrize("suffix", [".parquet", ".docx", ".7z", ".sqlite"])
def test_a_file_without_text_is_answered_with_what_to_do(suffix: str) -> None:
    write(f"x{suffix}", text="binary")
    error = refused(f"x{suffix}")
    assert error.problem == f"x{suffix} is not a text file."
    assert error.fix


def test_a_code_of_a_language_is_not_the_suffix_of_a_script() -> None:
    write("x.sh", text=GERMAN)
    write("x.en", text=ENGLISH)
    assert find("x.sh", "x.en").languages == ("sh", "en")


def test_few_of_many_choices_are_shown() -> None:
    write("x.json", text=json.dumps({f"key{number}": "text" for number in range(3000)}))
    error = refused("x.json")
    assert len(error.problem) < 500
    assert str(error.fix).count("nmt init x.json") == 6
