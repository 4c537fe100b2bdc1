"""What cleaning adds to `nmt prepare`: reasons, lists, and the report page."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from nmt.data.filters import ALWAYS, REASONS
from nmt.errors import DataError
from nmt.extras.cleaning.alignment import Alignment
from nmt.extras.cleaning.ranges import Range
from tests.commands.preparing import config_for, corpus, decoded, prepare, write, write_pairs

SIZES = {"vocab_size": 60, "byte_fallback": False}


def rows_of(folder: Path, name: str) -> list[list[str]]:
    """Return the rows of a list of pairs, below its head."""
    lines = gzip.decompress((folder / f"{name}.tsv.gz").read_bytes()).decode().splitlines()
    assert lines[0].startswith("corpus\tline\t")
    return [line.split("\t") for line in lines[1:]]


def test_files_shifted_against_each_other_are_found_and_equal_ones_reported(tmp_path: Path) -> None:
    """FAULTS 38."""
    source, target = corpus(400)
    write_pairs(tmp_path, source, target[1:] + target[:1])
    shifted = prepare(config_for(tmp_path, tokenizer=SIZES))
    write(tmp_path, "train.en", source)
    identical = prepare(config_for(tmp_path, tokenizer=SIZES))
    (found,) = shifted.shifts
    assert (found["corpus"], found["offset"]) == ("numbers", -1)
    assert found["start"] <= 3
    assert found["end"] >= 398
    assert "the translations are 1 line above" in shifted.as_text()
    rows = rows_of(tmp_path / "prepared", "lexical")
    assert rows[0][:2] == ["numbers", "1"]
    assert len(rows) == 400 + 5  # validation too
    assert any("identical" in warning for warning in identical.warnings)


@pytest.mark.parametrize("report_only", [True, False])
def test_misaligned_pairs_can_be_dropped_and_the_comparison_of_words_switched_off(
    tmp_path: Path, *, report_only: bool
) -> None:
    source, target = corpus(400)
    write_pairs(tmp_path, source, target[:200] + target[201:] + ["end"])
    dropping = config_for(tmp_path, tokenizer=SIZES, filters={"misaligned": "drop"})
    report = prepare(dropping, report_only=report_only)
    (shift,) = report.shifts
    assert shift["offset"] == -1
    assert abs(shift["start"] - 202) <= 3
    assert report.counts["numbers"]["misaligned"] == shift["end"] - shift["start"] + 1
    assert report.reasons["misaligned"]["examples"][0]["value"] == -1
    for lexical in ("report", "off"):
        filters = {"misaligned": "off", "lexical": lexical}
        config = config_for(tmp_path, tokenizer=SIZES, filters=filters)
        off = prepare(config, report_only=report_only, report_dir=tmp_path / lexical)
        assert off.shifts == off.unrelated == []
        assert ("lexicon" in off.stages) == ("lexical" in off.reasons) == (lexical == "report")
        assert (tmp_path / lexical / "lexical.tsv.gz").exists() == (lexical == "report")


def test_lists_and_ranges_have_the_line_numbers_of_the_file(tmp_path: Path) -> None:
    """Each row of the table has two lines, and its header one: row n starts at line 2 n."""
    source, target = corpus(400)
    rows = zip(source, target[:200] + target[201:] + ["end"], strict=True)
    table = write(
        tmp_path, "train.csv", ["de,en", *(f'"{left}\n",{right}' for left, right in rows)]
    )
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["train"] = [{"name": "numbers", "path": table}]
    filters = {"misaligned": "drop"}
    report = prepare(config_for(tmp_path, data=data, tokenizer=SIZES, filters=filters))
    dropped = [int(row[1]) for row in rows_of(tmp_path / "prepared", "dropped")]
    (shift,) = report.shifts
    assert (shift["start"], shift["end"]) == (dropped[0], dropped[-1])
    assert abs(shift["start"] - 2 * 202) <= 6
    assert {line % 2 for line in dropped} == {0}
    scored = [
        int(row[1]) for row in rows_of(tmp_path / "prepared", "lexical") if row[0] == "numbers"
    ]
    assert scored == [*range(2, 802, 2)]


def test_a_corpus_of_several_files_has_the_names_and_the_lines_of_its_files(
    tmp_path: Path,
) -> None:
    """From pair 201 on, the target is shifted: lines 50 to 150 of file 2, and all of file 3."""
    source, target = corpus(401)
    shifted = target[:200] + target[201:]
    for number, (start, end) in enumerate(((0, 151), (151, 301), (301, 400)), start=1):
        rows = zip(source[start:end], shifted[start:end], strict=True)
        write(tmp_path, f"{number}.csv", ["de,en", *(f"{left},{right}" for left, right in rows)])
        write_pairs(tmp_path, [source[start + 9]], [f"new {start}"], f"test{number}")
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["train"] = [{"name": "numbers", "path": f"{tmp_path}/?.csv"}]
    data["test"] = {"news": {"source": f"{tmp_path}/test?.de", "target": f"{tmp_path}/test?.en"}}
    report = prepare(
        config_for(tmp_path, data=data, tokenizer=SIZES), report_dir=tmp_path / "report"
    )
    second, third = str(tmp_path / "2.csv"), str(tmp_path / "3.csv")
    first_shift, last_shift = report.shifts
    assert (first_shift["file"], last_shift["file"]) == (second, third)
    assert abs(first_shift["start"] - 51) <= 3
    assert first_shift["pairs_before"] == 151 + first_shift["start"] - 2  # after the header
    assert (first_shift["end"], last_shift["start"]) == (151, 2)
    assert last_shift["pairs_before"] == 301
    assert abs(last_shift["end"] - 100) <= 3
    text = f"{third}: lines 2 to {last_shift['end']}: the translations are 1 line above"
    assert f"shifted: {text}" in report.as_text()
    page = ElementTree.parse(tmp_path / "report" / "report.html").getroot()
    items = ["".join(x.itertext()) for x in page.iter() if x.tag.endswith("}li")]
    assert text.replace(": lines", ", lines") in items
    num_misaligned = report.reasons["misaligned"]["count"]
    alert = f"{num_misaligned} of 400 training pairs are misaligned, but kept:"
    assert alert in ["".join(x.itertext()) for x in page.iter() if x.tag.endswith("}b")]
    exact = [leak for leak in report.leakage if leak["kind"] == "exact" and leak["set"] != "valid"]
    found = [(leak["set"], leak["line"], leak["corpus"], leak["train_line"]) for leak in exact]
    files = [(f"{tmp_path}/test{n}.de", 1, f"{tmp_path}/{n}.csv", 11) for n in (1, 2, 3)]
    assert found == files
    scored = [row[:2] for row in rows_of(tmp_path / "prepared", "lexical")]
    places = [(1, 151), (2, 150), (3, 99)]
    expected = [
        [f"{tmp_path}/{n}.csv", str(line)] for n, count in places for line in range(2, count + 2)
    ]
    assert scored[:400] == expected
    assert scored[-3:] == [[f"{tmp_path}/test{n}.de", "1"] for n in (1, 2, 3)]
    reported = [row for row in rows_of(tmp_path / "prepared", "reported") if row[2] == "held_out"]
    assert [row[3] for row in reported[-2:]] == [f"{tmp_path}/test{n}.de, line 1" for n in (2, 3)]


def test_all_lines_of_misaligned_ranges_go_and_the_ten_largest_ranges_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Range n begins at line 30 n + 1 and has n + 1 lines; every second one is shifted."""
    write_pairs(tmp_path, *corpus(400))
    ranges = [Range(30 * n + 1, 31 * n + 1, 2 if n % 2 else None) for n in range(12)]

    def aligned(_lines: object, _sizes: object, spans: Mapping[str, Any], *_: object) -> Alignment:
        scores: dict[str, Any] = {name: np.zeros(end - start, np.float32)
                                  for name, (start, end) in spans.items()}  # fmt: skip
        return Alignment(scores, scores, {"numbers": ranges})

    monkeypatch.setattr("nmt.extras.cleaning.diagnosis.align_corpora", aligned)
    report = prepare(config_for(tmp_path, filters={"misaligned": "drop"}))
    dropped = [int(row[1]) for row in rows_of(tmp_path / "prepared", "dropped")]
    assert dropped == [line for each in ranges for line in range(each.start, each.end + 1)]
    assert report.shifts == [
        {
            "corpus": "numbers",
            "file": "",
            "pairs_before": each.start - 1,
            "start": each.start,
            "end": each.end,
            "offset": 2,
        }
        for each in ranges[1::2]
    ]
    assert [each["start"] for each in report.unrelated] == [each.start for each in ranges[::2]]
    told = re.findall(r"(shifted|unrelated): numbers: lines (\d+) to", report.as_text())
    largest = [("shifted" if n % 2 else "unrelated", str(30 * n + 1)) for n in range(11, 1, -1)]
    assert told == largest
    assert "2 more misaligned ranges" in report.as_text()


def test_pairs_whose_words_are_no_translations_are_reported_or_dropped(tmp_path: Path) -> None:
    source, target = corpus(600)
    bad = range(10, 600, 30)
    for row in bad:
        target[row], target[row - 5] = target[row - 5], target[row]
    write_pairs(tmp_path, source, target)
    exchanged = {row + 1 for row in bad} | {row - 4 for row in bad}
    found = prepare(config_for(tmp_path, tokenizer=SIZES)).findings["numbers"]["lexical"]
    report = prepare(config_for(tmp_path, tokenizer=SIZES, filters={"lexical": "drop"}))
    assert report.counts["numbers"]["lexical"] == found
    dropped = {int(row[1]) for row in rows_of(tmp_path / "prepared", "dropped")}
    # Some lines of ten words have those of the other line.
    assert len(dropped & exchanged) >= 0.8 * len(exchanged)
    assert len(dropped - exchanged) <= 0.01 * 600
    assert report.counts["numbers"]["kept"] == 600 - len(dropped)


def test_scores_of_another_tool_drop_pairs_below_the_limit(tmp_path: Path) -> None:
    write_pairs(tmp_path, *corpus(120))
    scores = tmp_path / "scores"
    data = config_for(tmp_path).data.model_dump(mode="json")
    data["train"][0]["scores"] = str(scores)

    def made(filters: dict[str, Any], values: list[float]) -> Any:
        scores.write_text("".join(f"{value}\n" for value in values))
        return prepare(config_for(tmp_path, data=data, filters=filters))

    values = [1.0] * 120
    values[7], values[90], values[91] = 0.1, 0.2, math.nan
    (warning,) = made({}, values).warnings[-1:]
    assert warning.startswith("numbers: to use the score file, set filters.scores.limit")
    # Of 119 scores, without nan, 1% is at 118 * 0.01 = 1.18: 0.2 + 0.18 * (1 - 0.2).
    assert re.findall(r"below ([\w.]+)", warning) == ["0.344", "1"]
    limited: dict[str, Any] = {"scores": {"limit": 0.2}}
    assert made(limited, values).findings["numbers"]["scores"] == 1
    dropping = {"scores": {"action": "drop", "limit": 0.2}}
    assert made(dropping, values).counts["numbers"] == {"read": 120, "kept": 119, "scores": 1}
    assert (*corpus(8)[0][7:], *corpus(8)[1][7:]) not in decoded(tmp_path / "prepared")
    assert made(dropping, [0.0] * 3 + values[3:]).counts["numbers"]["scores"] == 4
    with pytest.raises(DataError, match="has 119 scores, but the corpus has 120 lines"):
        made(dropping, values[1:])
    scores.unlink()
    with pytest.raises(DataError, match=r"data\.train\.0\.scores: .* does not exist"):
        prepare(config_for(tmp_path, data=data, filters=dropping), force=True)


def test_duplicates_are_dropped_on_request(tmp_path: Path) -> None:
    """FAULTS 40."""
    source, target = corpus(60)
    write_pairs(tmp_path, source + source, target + target)
    counted = prepare(config_for(tmp_path))
    dropped = prepare(config_for(tmp_path, filters={"duplicate": "drop"}))
    assert counted.counts["numbers"]["kept"] == 120
    assert counted.findings["numbers"]["duplicate"] == 60
    assert dropped.counts["numbers"] == {"read": 120, "kept": 60, "duplicate": 60}
    assert decoded(tmp_path / "prepared") == list(zip(source, target, strict=True))


def test_languages_are_counted_on_each_side_with_their_first_lines(tmp_path: Path) -> None:
    source, target = corpus(120)
    for line in (7, 30, 31):
        source[line] = "Je ne sais pas pourquoi il est parti si tôt ce matin."
    target[50] = "Non so perché se ne sia andato così presto stamattina."
    source[60], target[60] = source[7], target[50]  # counts once, as the page says
    write_pairs(tmp_path, source, target)
    report = prepare(config_for(tmp_path), report_only=True, report_dir=tmp_path / "report")
    sides = report.reasons["language"]["sides"]
    assert sides["de"]["fr"]["count"] == 4
    assert [each["line"] for each in sides["de"]["fr"]["first"]] == [8, 31, 32, 61]
    assert sides["en"]["it"] == {"count": 1, "first": [{"corpus": "numbers", "line": 51}]}
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<td>fr</td><td>4</td><td>3.33%</td>" in page
    assert "<td>de</td><td>116</td><td>96.67%</td>" in page  # 120 - 4
    assert " reported and kept, detected: fr 4, " in page
    assert '<h1 dir="auto">Data preparation report: de \u2192 en</h1>' in page


def test_the_report_has_its_files_and_nothing_else_is_written(tmp_path: Path) -> None:
    source, target = corpus(120)
    source[5], target[5] = "<script>alert(1)</script> eins", "\u0634\u062c\u0631\u0629 \u202eone"
    write_pairs(tmp_path, source + source[:9], target + target[:9])
    config = config_for(tmp_path, filters={"markup": "drop", "duplicate": "drop", "numbers": "off"})
    folders = [tmp_path / name for name in ("first", "again", "made", "kept")]
    for folder in folders[:2]:
        prepare(config, report_only=True, report_dir=folder)
        assert not (tmp_path / "prepared").exists()
    for folder in folders[2:]:
        prepare(config, report_dir=folder)
    lists = {"dropped.tsv.gz", "lexical.tsv.gz", "reported.tsv.gz"}
    names = {*lists, "report.html", "report.json", "times.json"}
    assert all({path.name for path in folder.iterdir()} == names for folder in folders)
    for name in lists:
        assert len({(folder / name).read_bytes() for folder in folders}) == 1
    rows = rows_of(folders[0], "dropped")
    assert rows[0] == ["numbers", "6", "markup", "<script>", ""]
    assert rows[2:] == [
        ["numbers", str(line), "duplicate", "", ""] for line in (*range(121, 126), *range(127, 130))
    ]
    report = json.loads((folders[0] / "report.json").read_text())
    assert report["reasons"]["markup"]["action"] == "drop"
    assert report["reasons"]["duplicate"]["count"] == 8
    assert report["reasons"]["control"]["examples"][0]["line"] == 6
    assert "numbers" not in report["reasons"]
    page = (folders[0] / "report.html").read_text()
    ElementTree.fromstring(page)
    assert page.count("<script") == 1
    assert "\\u202eone" in page
    summary = page.partition("<b>Duplicate</b>")[2].partition("</summary>")[0]
    assert '<rect class="gone" ' in summary
    assert "<span>6.20%</span> <small>8 dropped</small>" in summary  # of 129
    examples = {}
    for name in ("Duplicate", "Markup"):
        examples[name] = page.partition(f"<b>{name}</b>")[2].partition("</details>")[0]
        assert "The file dropped.tsv.gz lists all." in examples[name]
    assert '<td class="value" dir="auto">&lt;script&gt;</td>' in examples["Markup"]
    assert "value" not in examples["Duplicate"]  # this check measures nothing
    assert (tmp_path / "prepared" / "report.html").read_text() == (
        folders[2] / "report.html"
    ).read_text()  # always in the prepared folder


def test_the_page_counts_each_held_out_sentence_once_and_shows_it(tmp_path: Path) -> None:
    """Sentences of ``valid``: exact copies of lines 1 to 3, near copies of 4 and 5, and new text.

    Every training line occurs three times, so that there are more matches than sentences.
    """
    source, target = corpus(40)
    source = [f"{line} und danach noch viel mehr davon" for line in source]
    write_pairs(tmp_path, source * 3, target * 3)
    near = [line.replace("viel", "etwas") for line in source[3:5]]
    new = ["Etwas ganz anderes steht hier in dieser einen Zeile."]
    config = config_for(tmp_path)
    write_pairs(tmp_path, source[:3] + near + new, [*target[:5], "Something else."], "valid")
    data = config.data.model_copy(update={"test": {"same": config.data.valid[0]}})
    config = config.model_copy(update={"data": data})  # the same file for validation and test
    report = prepare(config, report_dir=tmp_path / "report")
    assert len(report.leakage) > 5
    for name, repeats in (("valid", None), ("same", 1)):
        counts = report.overlap[name]
        assert (counts["near_sources_in_train"], counts.get("repeats")) == (2, repeats)
    text = report.as_text()
    assert "overlap: valid: the training data contains 3 of 6" in text
    assert "overlap: same (the same pairs as a set above): the training data" in text
    root = ElementTree.parse(tmp_path / "report" / "report.html").getroot()
    tiles = {dt: " ".join(dd.split()) for dt, dd in tiles_of(root).items()}
    assert tiles["Exact copies in the training data"] == "3 of 6 held-out sentences"
    assert tiles["Near copies in the training data"] == "2 of 6 held-out sentences"
    assert tiles["Training pairs read"] == "120"
    cells = ["".join(x.itertext()) for x in root.iter() if x.tag.endswith("}td")]
    for line, text, shown in [(1, source[0], "identical"), (4, near[0], source[3])]:
        row = ["valid", str(line), text, shown, "numbers", str(line)]
        assert [cells[at : at + 6] for at in range(len(cells))].count(row) == 1


def tiles_of(root: ElementTree.Element) -> dict[str, str]:
    shown = next(x for x in root.iter() if x.get("class") == "state")
    texts = ["".join(x.itertext()).strip() for x in shown.iter() if x.tag[-2:] in ("dt", "dd")]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def test_every_reason_has_a_name_and_a_sentence_and_nothing_is_zero_that_did_not_run(
    tmp_path: Path,
) -> None:
    write_pairs(tmp_path, *corpus(120))
    filters = {"markup": "off", "url": "off"}
    report = prepare(config_for(tmp_path, filters=filters), report_dir=tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    clean, missing = page.split("<b>Not checked</b>")
    missing = missing.partition("</details>")[0]
    for reason in {*ALWAYS, *REASONS}:
        part = missing if reason in report.skipped else clean
        other = clean if reason in report.skipped else missing
        assert f"<code>{reason}</code>" in part
        assert f"<code>{reason}</code>" not in other
    skipped = {"markup", "url", "scores", "dual_cross_entropy", "lexical"}
    assert skipped <= {*report.skipped}
    assert report.skipped["markup"] == "Off in the configuration."
    assert report.skipped["lexical"] == "numbers: fewer than 200 lines."
    assert "not checked: lexical. numbers: fewer than 200 lines." in report.as_text()
    assert "A filter of filters.extra" not in page  # the sentence about reasons without one
