"""Reports of ``nmt evaluate``, reports as baselines, labels of the user, and external metrics."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nmt.config.migration import FORMAT
from tests.commands.test_evaluate import invoke, write
from tests.extras.analysis.conftest import LINES, flags, found


def test_every_output_describes_the_significance_test(files: dict[str, Path]) -> None:
    paths = [files["same"].with_name(name) for name in ("a.md", "a.html", "a.json")]
    reports = [flag for path in paths for flag in ("--report", path)]
    for more, expected in (
        ((), ["paired bootstrap, 1,000 resamples"]),
        (("--fail-if-worse",), ["approximate randomization, 10,000 trials"]),
        (("--resamples", 0), []),
    ):
        result = invoke(*flags(files, "same"), *more, *reports)
        for text in (result.stdout, *(path.read_text("utf-8") for path in paths[:2])):
            assert re.findall("p: ([a-z ]+, [0-9,]+ [a-z]+)", text) == expected
        (test_set,) = json.loads(paths[2].read_text("utf-8"))["test_sets"]
        paired = test_set.get("paired_test")
        assert paired == (expected[0] if expected else None)


def test_markdown_shows_changes_and_their_significance(files: dict[str, Path]) -> None:
    path = files["bad"].with_name("comment.md")
    files["bad"] = files["bad"].rename(files["bad"].with_name("a|b*.en"))
    assert invoke(*flags(files), "--report", path, "--fail-if-worse").exit_code == 6
    text = path.read_text("utf-8")
    assert text.startswith("### Translation quality: 2 of 2 gates missed\n")
    assert "- **missed** a\\|b\\*.en: BLEU is " in text
    row = next(line for line in text.splitlines() if line.startswith("| a"))
    assert row.startswith(r"| a\|b\*.en | BLEU | 100.00 | ")
    assert r"| worse (p \< 0.001) |" in row
    assert invoke(*flags(files, "same"), "--report", path, "--fail-if-worse").exit_code == 0
    text = path.read_text("utf-8")
    assert "all gates met" in text
    assert "| +0.00 | +0.00 to +0.00 | no significant difference (p = 1.000) |" in text
    assert invoke(*flags(files), "--report", path, "--fail-if-worse", "--alpha", 0).exit_code == 0
    assert r"| no significant difference (p \< 0.001) |" in path.read_text("utf-8")
    assert invoke(*flags(files), "--report", path, "--alpha", 0).exit_code == 0  # without a gate
    assert r"| no significant difference (p = 0.001) |" in path.read_text("utf-8")


def test_junit_has_a_case_for_each_gate_and_a_failure_if_missed(files: dict[str, Path]) -> None:
    path = files["bad"].with_name("junit.xml")
    gates = ("--fail-if-worse", "--fail-under", "bleu=1,chrf=99")
    assert invoke(*flags(files), "--report", path, *gates).exit_code == 6
    suite = ElementTree.parse(path).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), len(suite)) == ("4", "3", 4)
    assert [case.get("name") for case in suite if case.find("failure") is not None] == [
        "bad.en: chrf fail-under 99", "bad.en: bleu fail-if-worse", "bad.en: chrf fail-if-worse"
    ]  # fmt: skip
    odd = files["bad"].rename(files["bad"].with_name("<&\x01\u00e4.en"))
    assert invoke(odd, files["same"], "--report", path).exit_code == 0
    cases = ElementTree.parse(path).getroot().iter("testcase")
    assert all(str(case.get("name")).startswith("<&\\x01\u00e4.en: ") for case in cases)


def report(files: dict[str, Path], *more: object) -> Path:
    path = files["same"].with_name("report.json")
    base = ("--hypothesis", files["same"], "--reference", files["reference"], "--resamples", 0)
    assert invoke(*base, "--report", path, *more).exit_code == 0
    return path


def test_a_report_is_a_baseline_as_its_translations_are(files: dict[str, Path]) -> None:
    path = report(files)
    from_report, from_file = (
        found(*flags(files, "bad", base))["systems"][0]["scores"] for base in (path, files["same"])
    )
    for one, other in zip(from_report, from_file, strict=True):
        assert one["comparison"].pop("baseline") == "same.en (report.json)"
        assert other["comparison"].pop("baseline") == "same.en"
        assert one == other
    before = path.read_bytes()  # never written over
    assert invoke(*flags(files, "bad", path), "--report", path).exit_code == 2
    assert path.read_bytes() == before
    # Another version of sacrebleu does not make another signature.
    path.write_text(path.read_text("utf-8").replace("version:2", "version:1"), "utf-8")
    assert invoke(*flags(files, "bad", path)).exit_code == 0
    # Of a report of several test sets, the one with these references counts.
    (own,) = json.loads(path.read_text("utf-8"))["test_sets"]
    other = own | {"test": "other", "references_sha256": "0", "systems": [{"name": "other"}]}
    # Older versions wrote several test sets under another key, and a single one without a list.
    for document in ({"test_sets": [other, own], "format": FORMAT}, {"evaluations": [own]}, own):
        path.write_text(json.dumps(document), "utf-8")
        again = found(*flags(files, "bad", path))["systems"][0]["scores"]
        assert [score["comparison"]["delta"] for score in again] == [
            score["comparison"]["delta"] for score in from_file
        ]
    path.write_text(invoke(*flags(files), "--json").stdout, "utf-8")
    refused = invoke(*flags(files, "same", path))
    assert refused.exit_code == 2
    assert "does not contain the translations" in refused.stderr
    assert "--report FILE.json" in refused.stderr


def change(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text("utf-8"))
    values["test_sets"][0]["systems"][0] |= changes
    path.write_text(json.dumps(values), "utf-8")


def test_a_report_of_something_else_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    path = report(files)
    other = write(tmp_path / "other.en", reversed(LINES))

    def said(*arguments: object) -> str:
        result = invoke(*arguments)
        assert result.exit_code == 2
        return result.stderr

    assert "of a different test set" in said(files["bad"], other, "--baseline", path)
    assert "of a different test set" in said(*flags(files, "bad", path), "--limit", 5)
    assert "was scored with bleu" in said(*flags(files, "bad", path), "--lowercase")
    for changes, message in (
        ({"hypotheses": []}, "does not contain the translations"),
        ({"hypotheses": LINES[1:]}, "does not contain the translations"),
        ({"hypotheses": 3}, "is not a JSON report"),
        ({"scores": [{}]}, "is not a JSON report"),
    ):
        change(report(files), **changes)
        assert message in said(*flags(files, "bad", path))
    for text in ("", "[]", "{}", '{"test_sets": 3, "format": 9}', '{"systems": "x"}'):
        path.write_text(text, "utf-8")
        said(*flags(files, "bad", path))
    two = report(files, "--hypothesis", files["bad"])
    assert "contains 2 systems" in said(*flags(files, "bad", two))


def test_slices_by_labels_of_the_user_are_counted_and_scored(files: dict[str, Path]) -> None:
    labels = write(files["bad"].with_name("labels"), ["short" if n % 3 else "" for n in range(60)])
    slices = found(*flags(files), "--slice", f"kind={labels}", "--slices")["slices"]
    names = {tuple(system["name"] for system in each["systems"]) for each in slices}
    assert names == {("bad.en", "same.en (baseline)")}
    mine = {each["name"]: each["systems"][0] for each in slices if each["group"] == "kind"}
    assert [(name, x["num_sentences"]) for name, x in mine.items()] == [("", 20), ("short", 40)]
    assert [x["is_small"] for x in mine.values()] == [True, False]
    ratios = [x["systems"][0] for x in slices if x["group"] == "length ratio to reference"]
    assert [(x["num_sentences"], len(x["scores"])) for x in ratios] == [(0, 0), (60, 2), (0, 0)]
    table = invoke(*flags(files), "--slice", f"kind={labels}").stdout
    assert re.search(r"kind +short +40 +\d", table)
    assert re.search(r"kind +20 \(few\) +\d", table)
    for flag, code in ((f"kind={files['bad']}x", 3), ("kind", 2), ("=x", 2)):
        result = invoke(*flags(files), "--slice", flag)
        assert (result.exit_code, "fix:" in result.stderr) == (code, True)


PROGRAM = """
import json, sys
lines = [json.loads(line) for line in sys.stdin]
print(*({result} for line in lines{cut}), sep="\\n")
{after}
"""


def program(folder: Path, result: str = "1", cut: str = "", after: str = "") -> str:
    path = folder / "metric.py"
    path.write_text(PROGRAM.format(result=result, cut=cut, after=after), "utf-8")
    return f"{sys.executable} {path}"


def test_an_external_metric_gets_tests_and_gates(files: dict[str, Path]) -> None:
    length = "json.dumps({'score': line['hypothesis'].count('this') - len(line['references'])})"
    command = program(files["bad"].parent, length)
    result = invoke(*flags(files), "--external", command, "--fail-if-worse", "--json")
    assert result.exit_code == 6
    assert "bad.en: external is -0.50, -0.50 against same.en" in result.stderr
    score = json.loads(result.stdout)["test_sets"][0]["systems"][0]["scores"][-1]
    assert (score["metric"], score["value"]) == ("external", -0.5)
    assert score["signature"] == f"mean of: {command}"
    assert score["confidence"]["low"] < -0.5 < score["confidence"]["high"]


def test_an_external_metric_reads_the_source(files: dict[str, Path]) -> None:
    source = write(files["bad"].with_name("source.de"), [line.upper() for line in LINES])
    command = program(files["bad"].parent, "int(line['source'] == line['references'][0].upper())")
    values = found(*flags(files)[:-2], "--source", source, "--external", command)
    assert values["systems"][0]["scores"][-1]["value"] == 1


def test_a_failing_external_metric_is_reported_and_others_remain(files: dict[str, Path]) -> None:
    for changes, message in (
        ({"after": "sys.exit('no model')"}, "failed with status 1: no model"),
        ({"after": "sys.exit('at line 1\\n' * 99 + 'no GPU')"}, "at line 1\nno GPU"),
        ({"cut": "[1:]"}, "wrote 59 lines for 60 sentences"),
        ({"result": "'NaN'"}, "did not write a finite number in line 1: 'NaN'"),
        ({"result": "'{}' if line is lines[2] else 1"}, "a finite number in line 3: '{}'"),
    ):
        command = program(files["bad"].parent, **changes)
        result = invoke(*flags(files), "--external", command, "--json")
        assert (result.exit_code, message in result.stderr) == (3, True), result.stderr
        assert command in result.stderr
        scores = json.loads(result.stdout)["test_sets"][0]["systems"][0]["scores"]
        assert [score["metric"] for score in scores] == ["bleu", "chrf"]
