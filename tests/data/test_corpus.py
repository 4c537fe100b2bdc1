"""Every format gives the same pairs, both sides move together, and samples of them are uniform."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.config.data import CorpusConfig, Direction
from nmt.config.filling import TextSize
from nmt.data.corpus import (
    check_files,
    check_plain_text,
    corpus_files,
    corpus_names,
    measure_text,
    read_blocks,
    read_corpus,
)
from nmt.data.demo import SentenceGenerator, demo_pairs
from nmt.data.formats.pair import BadPair, ReadOptions, SentencePair
from nmt.data.vocabulary import TextSample
from nmt.errors import ConfigError, DataError
from tests.examples import FEW
from tests.process import LIMIT

OPTIONS = ReadOptions("de", "en", max_characters=40)
PAIRS = [("eins\u2028zwei", "one two"), ("", "blank"), ("drei", "three")]


def pairs_of(options: ReadOptions = OPTIONS, /, **place: Any) -> list[SentencePair | BadPair]:
    return list(read_corpus(CorpusConfig.model_validate(place), options))


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def aligned(folder: Path, source: bytes, target: bytes) -> dict[str, Path]:
    return {"source": write(folder, "a.de", source), "target": write(folder, "a.en", target)}


def test_all_formats_give_the_same_pairs(tmp_path: Path) -> None:
    sides = [gzip.compress("".join(f"{p[i]}\n" for p in PAIRS).encode()) for i in range(2)]
    rows = [json.dumps({"translation": {"en": t, "de": s}}) for s, t in PAIRS]
    tsv = write(tmp_path, "a.tsv", "".join(f"{t}\tx\t{s}\n" for s, t in PAIRS))
    expected = [SentencePair(*pair, line) for line, pair in enumerate(PAIRS, start=1)]
    assert pairs_of(**aligned(tmp_path, sides[0], sides[1])) == expected
    assert pairs_of(tsv=tsv, columns=[2, 0]) == expected
    assert pairs_of(jsonl=write(tmp_path, "a.jsonl", "\n".join(rows))) == expected
    table = write(tmp_path, "a.csv", "".join(f"{t},x,{s}\n" for s, t in PAIRS))
    assert pairs_of(csv=table, columns=[2, 0]) == expected
    assert pairs_of(tsv=tsv, columns=[2, 0], max_pairs=2) == expected[:2]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("suffix", ["gz", "tsv", "csv", "jsonl"])
def test_segmented_text_is_found_in_each_format_and_on_each_side(
    tmp_path: Path, suffix: str, side: int
) -> None:
    """After a header, a line that is not UTF-8, and a byte order mark."""
    rows = [["ein Hund", "a dog"] for _ in range(9)]
    for row in rows[1:]:
        row[side] += " läu@@ ft"
    name = tmp_path / f"a.{suffix}"
    place = {suffix: name}
    bad = b"\xff,\xff\t\xff\n"
    if suffix == "gz":
        content = b"\xef\xbb\xbf\xff\n" + "\r\n".join(row[side] for row in rows).encode()
        other = write(tmp_path, "plain", "one\n" * 10)
        place = (
            {"source": name, "target": other} if side == 0 else {"source": other, "target": name}
        )
        write(tmp_path, name.name, gzip.compress(content))
    elif suffix == "tsv":
        write(tmp_path, name.name, bad + "".join(f"{a}\t{b}\n" for a, b in rows).encode())
    elif suffix == "csv":
        lines = ['"x\ny",z', *(f"{a},{b}" for a, b in rows[1:])]
        write(tmp_path, name.name, "de,en\n" + "\n".join(lines))
    else:
        texts = [{"translation": {"de": a, "en": b}} for a, b in rows]
        write(tmp_path, name.name, bad + "\n".join(map(json.dumps, texts)).encode())
    with pytest.raises(DataError, match=r"subword-nmt \(@@\), as in line \d") as caught:
        check_plain_text(CorpusConfig.model_validate(place), ("de", "en"))
    line = {"gz": 3, "tsv": 3, "csv": 4, "jsonl": 3}[suffix]
    assert caught.value.problem.startswith(f"{name} was segmented")
    assert f"line {line}: {rows[1][side]}" in caught.value.problem


def test_a_corpus_without_files_of_its_own_is_not_checked() -> None:
    for place in ({"demo": "train"}, {"sacrebleu": "wmt14"}, {"huggingface": "missing"}):
        check_plain_text(CorpusConfig.model_validate(place), ("de", "en"))


@FEW
@given(
    lines=st.lists(
        st.tuples(st.sampled_from([b"ok", b"\xff", b"x" * 50]), st.sampled_from([b"", b"\xc3"]))
    )
)
def test_a_bad_line_drops_its_pair_and_shifts_no_other_pair(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[bytes, bytes]]
) -> None:
    """FAULTS 34 to 37."""
    folder = tmp_path_factory.mktemp("aligned")
    files = aligned(
        folder,
        *(b"".join(line[i] + b"\n" for line in [*lines, (b"last", b"last")]) for i in range(2)),
    )
    found = pairs_of(ReadOptions("de", "en", "skip", 40), **files)
    assert [pair.line for pair in found] == list(range(1, len(lines) + 2))
    table = b"".join(b",".join(line) + b"\n" for line in lines) + b"last,last\n"
    place = {"csv": write(folder, "a.csv", table), "columns": [0, 1]}
    rows = pairs_of(ReadOptions("de", "en", "skip", 40), **place)
    assert [*map(type, rows)] == [*map(type, found)]
    assert sorted(pair.line for pair in rows) == [pair.line for pair in found]
    assert found[-1] == SentencePair("last", "last", len(lines) + 1)
    for (source, target), pair in zip(lines, found, strict=False):
        assert isinstance(pair, BadPair) == (source != b"ok" or target != b"")


@pytest.mark.parametrize(
    ("encoding", "place"),
    [("cp1252", "line 2, byte 4: 0xe9 is not UTF-8"), ("cp1250", "line 2, byte 4: 0xe9")],
)
def test_bytes_that_are_not_text_are_named_with_the_ways_out(
    tmp_path: Path, encoding: str, place: str
) -> None:
    lines = ["Guten Tag.", "Caf\u00e9 und Jos\u00e9, \u00e4 \u00f6 \u00fc \u00df"]
    lines += ["Die Stra\u00dfe f\u00fchrt \u00fcber die sch\u00f6ne alte Br\u00fccke."] * 30
    text = "".join(f"{line}\n" for line in lines)
    files = aligned(tmp_path, text.encode(encoding), text.encode())
    with pytest.raises(DataError) as caught:
        pairs_of(ReadOptions("de", "en"), **files)
    assert f"a.de, {place}" in caught.value.problem
    fix = str(caught.value.fix)
    named = re.search(r"iconv -f (\S+) -t utf-8 (\S+) > NEW\), set `encoding` to (\S+),", fix)
    assert named is not None
    assert named[2] == str(files["source"])
    assert "filters.on_bad_utf8: skip" in fix
    # The advice works: both the key and the command give the text.
    command = ["iconv", "-f", named[1], "-t", "UTF-8", str(files["source"])]
    converted = subprocess.run(command, capture_output=True, check=True, timeout=LIMIT)
    assert converted.stdout.decode() == text
    latin = {**files, "target": files["source"]}
    found = pairs_of(ReadOptions("de", "en"), **latin, encoding=named[3])
    assert [pair[0] for pair in found] == lines


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_named_and_read_with_its_encoding(
    tmp_path: Path, encoding: str
) -> None:
    content = ("eins\tone\n" * 30).encode(encoding)
    files = aligned(tmp_path, content, content)
    for place in (files, {"path": files["source"], "format": "tsv"}):
        with pytest.raises(DataError, match=f"a.de .* it is probably {encoding}"):
            check_plain_text(CorpusConfig.model_validate(place), ("de", "en"))
        assert pairs_of(**place, encoding=encoding)[29][0].startswith("eins")


@pytest.mark.parametrize("encoding", ["euc_jp", "shift_jis", "big5", "gb18030", "euc_kr"])
def test_the_encodings_of_east_asia_are_named_as_iconv_has_them(
    tmp_path: Path, encoding: str
) -> None:
    japanese = (
        "今日はとても良い天気ですね。学校に行きましょう。",
        "彼は昨日、東京から電車で帰りました。",
    )
    chinese = "今天天氣很好、我們一起去學校吧。", "他昨天從台北坐火車回來、非常高興。"
    korean = "오늘은 날씨가 아주 좋습니다.", "그는 어제 서울에서 기차로 돌아왔습니다."
    texts = {"euc_jp": japanese, "shift_jis": japanese, "euc_kr": korean}
    text = "".join(f"{line}\n" for line in texts.get(encoding, chinese)) * 40
    path = tmp_path / "x"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(DataError) as caught:
        pairs_of(source=str(path), target=str(path))
    named = re.search(r"iconv -f (\S+) ", str(caught.value.fix))
    assert named is not None
    command = ["iconv", "-f", named[1], "-t", "UTF-8", str(path)]
    converted = subprocess.run(command, capture_output=True, check=True, timeout=LIMIT)
    assert converted.stdout.decode() == text


@pytest.mark.parametrize("num_damaged", [1, 5])
def test_damaged_lines_of_a_text_in_utf_8_are_no_other_encoding(
    tmp_path: Path, num_damaged: int
) -> None:
    """In the other encoding, the lines in UTF-8 would be ruined."""
    content = "schön\n".encode() * 5 + b"sch\xf6n\n" * num_damaged
    with pytest.raises(DataError) as caught:
        pairs_of(**aligned(tmp_path, content, content))
    assert "line 6, byte 4" in caught.value.problem
    assert "probably" not in str(caught.value.fix)
    with pytest.raises(DataError, match=r"a\.de, line 1, byte 1: .* is not text in cp1252"):
        pairs_of(**aligned(tmp_path, b"\x81", b"\x81"), encoding="cp1252")


@FEW
@given(
    shards=st.lists(
        st.lists(st.sampled_from(["a\tb", "", "c", "d\te"]), max_size=5), min_size=1, max_size=12
    )
)
def test_shards_give_the_pairs_of_the_whole_with_the_lines_of_their_files(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    place = {"columns": [0, 1], "format": "tsv"}
    texts = []
    for number, rows in enumerate(shards):
        texts.append("".join(f"{row}\n" for row in (*rows, "last\tpair")))
        write(folder, f"part{number}", texts[-1])
    whole = pairs_of(path=write(folder, "whole", "".join(texts)), **place)
    found = pairs_of(path=folder / "part*", **place)
    lines = [line for rows in shards for line in range(1, len(rows) + 2)]
    assert [pair.line for pair in found] == lines
    for pair, expected in zip(found, whole, strict=True):
        assert pair == expected._replace(line=pair.line, file=pair.file)
    names = [
        str(folder / f"part{number}") if len(shards) > 1 else "" for number in range(len(shards))
    ]
    files = [name for name, rows in zip(names, shards, strict=True) for _ in range(len(rows) + 1)]
    assert [pair.file for pair in found] == files
    config = CorpusConfig.model_validate({"path": folder / "part*", **place})
    blocks = list(read_blocks(config, OPTIONS))
    ends = [block.first + len(block) for block in blocks]
    assert [block.first for block in blocks] == [1, *ends[:-1]]
    assert ends[-1] == len(whole) + 1


def test_two_shards_with_different_counts_are_named(tmp_path: Path) -> None:
    for name, content in (("1.de", "a\n"), ("1.en", "a\n"), ("2.de", "a\nb\n"), ("2.en", "a\n")):
        write(tmp_path, name, content)
    place = {"source": tmp_path / "?.de", "target": tmp_path / "?.en"}
    with pytest.raises(DataError, match=r"2\.de has 2 lines but .*2\.en has 1"):
        pairs_of(**place)
    (tmp_path / "2.en").unlink()
    corpus = CorpusConfig.model_validate(place)
    with pytest.raises(DataError, match="source has 2 files, but target has 1"):
        check_files({"data.train.0": corpus})
    for file in tmp_path.glob("*.de"):
        file.unlink()
    with pytest.raises(DataError, match=r"data\.train\.0\.source: no file matches .*\?\.de"):
        check_files({"data.train.0": corpus})


def test_different_line_counts_are_both_named_and_so_are_empty_files(tmp_path: Path) -> None:
    """FAULTS 32 and 33."""
    empty = write(tmp_path, "empty", b"")
    with pytest.raises(DataError, match="empty is empty, or all its lines are blank"):
        pairs_of(source=empty, target=empty)
    with pytest.raises(DataError, match="empty is empty"):
        pairs_of(tsv=empty)
    with pytest.raises(DataError, match=r"a\.de has 1,002 lines but .*a\.en has 999"):
        pairs_of(**aligned(tmp_path, b"a\n" * 1002, b"b\n" * 999))
    with pytest.raises(DataError, match=r"a\.de is empty"):
        pairs_of(**aligned(tmp_path, b"", b"b"))


@pytest.mark.parametrize(("most", "last"), [(None, 1500), (10_700, 700), (2_300, 300)])
def test_the_first_blocks_are_small(tmp_path: Path, most: int | None, last: int) -> None:
    """So that a progress bar moves, and there is something for all workers."""
    config = CorpusConfig(tsv=write(tmp_path, "x.tsv", "a\tb\n" * 11_500), max_pairs=most)
    blocks = list(read_blocks(config, OPTIONS))
    *first, end = map(len, blocks)
    assert first == [1000] * (2 if most == 2300 else 10)
    assert end == last
    assert [block.first for block in blocks] == [1 + 1000 * i for i in range(len(blocks))]


@pytest.mark.parametrize("names", ["en,id,de", "target,id,source"])
def test_csv_may_have_quotes_and_a_header(names: str, tmp_path: Path) -> None:
    text = names + '\r\n"one, ""two""",1,eins\r\n\r\nthree,3,"drei\nvier"\r\n'
    path = write(tmp_path, "a.csv", text)
    expected = [("eins", 'one, "two"', 2), ("", "", 3), ("drei vier", "three", 4)]
    assert pairs_of(csv=path) == [SentencePair(*each) for each in expected]


def test_lines_of_csv_are_numbered_with_bad_lines_and_line_breaks_in_cells(tmp_path: Path) -> None:
    """A pair is named by the first line of its row, and dropped as a whole with a bad line."""
    lines = (b"de,en", b"\xff", b'"a', b'b",c', b"\xff", b"", b'"ddd', b"\xff", b'e",f', b"g,h")
    path = write(tmp_path, "a.csv", b"\n".join(lines))
    found = pairs_of(ReadOptions("de", "en", "skip", 40), csv=path)
    bad = [pair.line for pair in found if isinstance(pair, BadPair)]
    good = [(pair[0], pair.line) for pair in found if isinstance(pair, SentencePair)]
    assert bad == [2, 5, 8]
    assert good == [("a b", 3), ("", 6), ("g", 10)]
    path = write(tmp_path, "b.csv", b"\n".join((*lines, b"\xff", b"no comma")))
    *_, last = pairs_of(ReadOptions("de", "en", "skip", 40), csv=path)
    assert last == BadPair("columns", 12, "no comma")


@pytest.mark.parametrize(
    ("kind", "good", "row", "reason"),
    [
        ("tsv", "a\tb", "c", "columns"),
        ("tsv", "a\tb", "a,b", "columns"),
        ("tsv", "a\tb", "a\0\tb", "nul"),
        ("csv", "a,b", "a", "columns"),
        ("csv", "a,b", "a,\0", "nul"),
        *[("jsonl", '{"translation": {"de": "x", "en": "y"}}', row, "syntax")
          for row in ("{", "[]", "[" * 200)],
        *[("jsonl", '{"translation": {"de": "x", "en": "y"}}', row, "columns")
          for row in ("{}", '{"translation": {"de": "x"}}',
                      '{"translation": {"de": "x", "en": [1]}}')],
        ("jsonl", '{"de": "x", "en": "y"}', r'{"de": "x", "en": "\u0000"}', "nul"),
    ],
)  # fmt: skip
def test_a_row_without_both_texts_is_a_bad_pair(
    kind: str, good: str, row: str, reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f"a.{kind}", f"{good}\n{row}\n{good}\n")
    first, bad, last = pairs_of(**{kind: path})
    assert isinstance(bad, BadPair)
    assert (bad.reason, bad.line) == (reason, 2)
    assert first[:2] == last[:2]


@pytest.mark.parametrize("row", ['"a,b', '"a" b,c'])
def test_a_row_whose_quotes_do_not_match_is_a_bad_pair(row: str, tmp_path: Path) -> None:
    _, bad = pairs_of(csv=write(tmp_path, "a.csv", f"a,b\n{row}\n"))
    assert bad == BadPair("syntax", 2, row)


def test_json_may_contain_line_feeds_surrogates_and_null(tmp_path: Path) -> None:
    """FAULTS 35 and 36: a text of the validation set must stay one line of its file."""
    rows = [
        r'{"translation": {"de": "eins\nzwei", "en": "a\ud800b"}}',
        "",
        '{"translation": {"de": null, "en": "x"}}',
    ]
    assert pairs_of(jsonl=write(tmp_path, "a.jsonl", "\n".join(rows) + "\n")) == [
        SentencePair("eins zwei", "a\ufffdb", 1),
        SentencePair("", "", 2),
        SentencePair("", "x", 3),
    ]
    path = write(tmp_path, "b.jsonl", '{"translation": {"en": "yes", "pt_BR": "sim"}}')
    assert pairs_of(ReadOptions("en", "pt-BR"), jsonl=path) == [SentencePair("yes", "sim", 1)]


def test_a_long_side_is_told_from_a_long_record(tmp_path: Path) -> None:
    """FAULTS 37: other columns, and the other side, do not count."""
    lines = [f"{'a' * 40}\t{'b' * 40}\t{'c' * 40}", f"{'a' * 41}\tb", "x" * 5_000_000, "a\tb"]
    lines.append(f"a\t{'b' * 41}")
    found = pairs_of(tsv=write(tmp_path, "a.tsv", "\n".join(lines)), columns=[0, 1])
    assert [type(pair) for pair in found] == [
        SentencePair, BadPair, BadPair, SentencePair, BadPair,
    ]  # fmt: skip


def test_a_published_test_set_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = aligned(tmp_path, b"eins\nzwei\n", b"one\ntwo\n")
    monkeypatch.setattr("nmt.data.hubs.reaches", lambda _: True)
    monkeypatch.setattr("sacrebleu.utils.get_source_file", lambda *_: str(files["source"]))
    monkeypatch.setattr("sacrebleu.utils.get_reference_files", lambda *_: [str(files["target"])])
    found = pairs_of(sacrebleu="wmt14")
    assert found == [SentencePair("eins", "one", 1), SentencePair("zwei", "two", 2)]


def test_names_are_unique_and_say_where_the_text_is_from() -> None:
    places: list[dict[str, Any]] = [
        {"demo": "train"}, {"demo": "train"}, {"tsv": "a.tsv", "name": "valid"}, {"tsv": "a.tsv"},
        {"huggingface": "wmt/wmt14", "subset": "de-en"}, {"sacrebleu": "wmt14"},
    ]  # fmt: skip
    corpora = [CorpusConfig.model_validate(place) for place in places]
    assert corpus_names(corpora) == [
        "demo-train", "demo-train (2)", "valid (3)", "a.tsv", "wmt/wmt14", "wmt14",
    ]  # fmt: skip
    taken = [{"demo": "train", "name": name} for name in ("a (3)", "a", "a")]
    names = corpus_names(CorpusConfig.model_validate(place) for place in taken)
    assert names == ["a (3)", "a", "a (4)"]
    assert corpus_files(corpora[3]) == (Path("a.tsv"),)
    assert corpus_files(corpora[4]) == ()


def test_all_files_of_a_corpus_are_known(tmp_path: Path) -> None:
    """A folder is prepared again if one of them changes, and a missing one is named."""
    place = {key: tmp_path / key for key in ("source", "target", "scores")}
    assert corpus_files(CorpusConfig.model_validate(place)) == tuple(place.values())
    for key in ("tsv", "csv", "jsonl"):
        corpus = CorpusConfig.model_validate({key: tmp_path / key})
        assert corpus_files(corpus) == (tmp_path / key,)
    corpora = {"data.train.0": CorpusConfig.model_validate(place)}
    with pytest.raises(DataError) as caught:
        check_files(corpora)
    assert [line.split(":")[0].strip() for line in caught.value.problem.splitlines()] == [
        f"data.train.0.{key}" for key in place
    ]


def test_characters_of_an_epoch_are_counted_and_not_bytes(tmp_path: Path) -> None:
    """Each pair has 6 characters and two line ends, as in two text files; scores are not text.

    As a text, each line has 9 characters: with a tab, and with two at its end.
    """
    path = write(tmp_path, "a.tsv", "äöü\t犬𝄞b\r\n" * 100)
    scores = write(tmp_path, "scores", "0.123456789\n" * 100)
    pairs = list(demo_pairs("test", "en", "de"))
    num_demo = sum(len(english) + len(german) + 2 for english, german in pairs[:150])
    places: list[tuple[dict[str, Any], float]] = [
        ({"tsv": path, "scores": scores}, 800),
        ({"tsv": path, "weight": 0.5}, 400),
        ({"tsv": path, "max_pairs": 20, "weight": 3}, 480),
        ({"tsv": path, "max_pairs": 200}, 800),
        ({"demo": "test", "max_pairs": 150}, num_demo),
    ]
    corpora = [CorpusConfig.model_validate(place) for place, _ in places]
    for corpus, (_, expected) in zip(corpora, places, strict=True):
        assert measure_text([corpus], ("en", "de")).num_characters == expected
    size = measure_text(corpora, ("en", "de"))
    assert size.num_characters == sum(expected for _, expected in places)
    assert size.num_pairs == 100 + 50 + 60 + 100 + 150
    assert size.is_complete


def test_the_same_pairs_have_the_same_size_in_every_format(tmp_path: Path) -> None:
    """The escapes of JSON, the quotes of CSV and other columns are not text."""
    pairs = [("मैं घर जाता हूँ", 'I "go" home, now'), ("a", "b"), ("犬", "")] * 7
    source = write(tmp_path, "a.hi", "".join(f"{left}\n" for left, _ in pairs))
    target = write(tmp_path, "a.en", "".join(f"{right}\n" for _, right in pairs))
    objects = [{"translation": {"hi": left, "en": right}} for left, right in pairs]
    lines = "".join(json.dumps(each) + "\n" for each in objects)
    table = io.StringIO()
    csv.writer(table, quoting=csv.QUOTE_ALL).writerows(pairs)
    places: list[dict[str, Any]] = [
        {"source": source, "target": target},
        {"jsonl": write(tmp_path, "a.jsonl", lines)},
        {"csv": write(tmp_path, "a.csv", table.getvalue())},
        {"tsv": write(tmp_path, "a.tsv", "".join(f"{a}\t{b}\tx\n" for a, b in pairs))},
    ]
    num_characters = sum(len(left) + len(right) for left, right in pairs)
    for place in places:
        corpus = CorpusConfig.model_validate(place)
        assert measure_text([corpus], ("hi", "en")) == TextSize(21, num_characters + 2 * 21)


def test_a_text_is_counted_no_further_than_needed(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "ab\tc\n" * 5000)
    corpus = CorpusConfig(tsv=path)
    size = measure_text([corpus, corpus], ("en", "de"), enough=2000)
    assert not size.is_complete
    assert 2000 < size.num_characters < 15_000
    # An error in the rest is not found, because the rest is not read.
    path.write_bytes(b"ab\tc\n" * 20_000 + b"x\n" * 5)
    assert measure_text([corpus], ("en", "de"), enough=2000) == size


def drawn(count: int, capacity: int, seed: int = 1, max_characters: int = 10**9) -> list[int]:
    directions = {"one": Direction("en", "de")}
    sample = TextSample(directions, capacity, max_characters=max_characters, seed=seed)
    for number in range(count):
        sample.add("one", str(number), "x")
    return [int(source) for source, _ in sample.lines((0,), is_last=True)]


@given(count=st.integers(0, 60), capacity=st.integers(1, 40), seed=st.integers(0, 9))
def test_a_sample_contains_distinct_pairs_and_all_pairs_if_they_fit(
    count: int, capacity: int, seed: int
) -> None:
    numbers = drawn(count, capacity, seed)
    assert len(set(numbers)) == min(count, capacity)
    assert set(numbers) <= set(range(count))
    assert numbers == (drawn(count, capacity, seed) if count > capacity else list(range(count)))


def test_every_member_is_drawn_equally_often_even_when_the_sample_shrinks() -> None:
    # 2000 draws of 5 of 20: each member 500 times, standard deviation 19.
    for max_characters in (10**9, 25):
        samples = (drawn(20, 10, seed, max_characters) for seed in range(2000))
        uses = Counter(number for sample in samples for number in sample)
        mean = sum(uses.values()) / 20
        assert all(abs(n - mean) < 5 * mean**0.5 for n in uses.values())


@example(lengths=[1, 24, 50, 1, 1, 1, 1, 1, 26])  # one half is still too long
@given(lengths=st.lists(st.integers(1, 50), min_size=1))
def test_a_sample_stays_below_the_limit_of_characters(lengths: list[int]) -> None:
    directions = {"one": Direction("en", "de"), "two": Direction("en", "fr")}
    sample = TextSample(directions, 1000, max_characters=100, seed=1)
    for number, length in enumerate(lengths):
        sample.add("two" if number % 3 else "one", "x" * length, "")
    held = [line for line, _ in sample.lines((0,), is_last=True)]
    assert held
    assert sum(map(len, held)) <= 100
    assert not list(sample.lines((0,), is_last=True))


def test_the_corpus_is_the_same_on_every_machine_and_no_sentence_occurs_twice() -> None:
    """Scores in the documentation are of this text; change both together."""
    splits = [list(demo_pairs(name, "en", "de")) for name in ("train", "valid", "test")]
    pairs = [pair for split in splits for pair in split]
    text = "".join(f"{english}\t{german}\n" for english, german in pairs)
    assert [len(split) for split in splits] == [40_000, 300, 300]
    assert all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "ce3eccadc869c0ab51ec4ace2eebacd8d9729cc3b0cd0ddf5e0362a2c25daaa3"


def test_either_direction_works_and_no_other_language() -> None:
    english, german = next(demo_pairs("test", "en", "de"))
    assert next(demo_pairs("test", "de-AT", "en_US")) == (german, english)
    for source, target in (("en", "fr"), ("en", "den"), ("ens", "de"), ("de", "de"), ("", "en")):
        with pytest.raises(ConfigError, match="en and de"):
            next(demo_pairs("test", source, target))


def test_the_grammar_gives_each_sentence_one_translation_either_way() -> None:
    """Else what the corpus lacks because it was drawn second would be hidden, not right."""
    generator = SentenceGenerator(seed=7)
    to_german: dict[str, str] = {}
    to_english: dict[str, str] = {}
    for _ in range(10_000):
        english, german = generator.sentence()
        assert to_german.setdefault(english, german) == german
        assert to_english.setdefault(german, english) == english
