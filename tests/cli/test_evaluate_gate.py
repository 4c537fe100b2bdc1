"""``nmt evaluate`` as a gate: baselines, paired tests, exit codes, and what a CI reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from typer.testing import CliRunner, Result

from nmt.cli.app import app

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
LINES = [f"sentence {WORDS[n % 10]} of {WORDS[n // 10]} in this set" for n in range(60)]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)])


def write(path: Path, lines: Iterable[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """References; ``bad`` has a wrong word in every second line, ``same`` in none."""
    bad = [line.replace("this", "that") if n % 2 else line for n, line in enumerate(LINES)]
    texts = {"reference": LINES, "same": LINES, "bad": bad}
    return {name: write(tmp_path / f"{name}.en", lines) for name, lines in texts.items()}


def flags(files: dict[str, Path], system: str = "bad", baseline: object = None) -> list[object]:
    found: list[object] = ["--hypothesis", files[system], "--reference", files["reference"]]
    return [*found, "--baseline", baseline or files["same"]]


@pytest.mark.parametrize(("kind", "resamples"), [("bs", 300), ("ar", 1000)])
def test_p_values_are_those_of_sacrebleus_own_command(
    shared_data: Path, tmp_path: Path, kind: str, resamples: int
) -> None:
    paths = []
    for name in ("ref.A", "hyp.VolcTrans-GLAT", "hyp.Online-A", "hyp.ICL"):
        whole = shared_data / "wmt_sample" / f"newstest2021.en-de.{name}.de"
        paths.append(write(tmp_path / name, whole.read_text("utf-8").split("\n")[:25]))
    reference, base, *systems = paths
    command = [sys.executable, "-m", "sacrebleu", reference, "-i", base, *systems]
    command += [f"--paired-{kind}", f"--paired-{kind}-n", resamples, "-m", "bleu", "chrf", "ter"]
    environment = os.environ | {"SACREBLEU_SEED": "7"}
    # Its JSON cannot hold what its bootstrap computes, so the table is read, which has four digits.
    style = "text" if kind == "bs" else "json"
    process = subprocess.run(
        [*map(str, command), "-f", style], capture_output=True, check=True, env=environment
    )
    shown = r"p = ([\d.]+)" if kind == "bs" else r'"p_value": ([\d.]+)'
    known = [float(text) for text in re.findall(shown, process.stdout.decode())]
    arguments = ["--reference", reference, "--baseline", base, "--metric", "bleu,chrf,ter"]
    for system in systems:
        arguments += ["--hypothesis", system]
    arguments += ["--significance", kind, "--resamples", resamples, "--seed", 7]
    found = json.loads(invoke(*arguments, "--json").stdout)["systems"]
    ours = [score["comparison"]["p_value"] for system in found for score in system["scores"]]
    assert len(ours) == 6
    assert ours == pytest.approx(known, abs=5.1e-5 if kind == "bs" else 1e-12)


def test_a_significant_loss_exits_with_6_and_anything_else_does_not(files: dict[str, Path]) -> None:
    for kind in ("bs", "ar"):
        gate = ("--fail-if-worse", "--significance", kind, "--resamples", 200)
        result = invoke(*flags(files), *gate)
        assert result.exit_code == 6
        assert "bad.en: bleu is" in result.stderr
        assert "against same.en: significantly worse (p = " in result.stderr
        assert "or loosen --fail-if-worse" in result.stderr
        assert invoke(*flags(files, "same", files["bad"]), *gate).exit_code == 0  # better
        assert invoke(*flags(files, "same"), *gate).exit_code == 0
    assert invoke(*flags(files), "--fail-if-worse", "--alpha", 0).exit_code == 0
    assert invoke(*flags(files)).exit_code == 0


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), "paired bootstrap, 1,000 resamples"),
        (("--fail-if-worse",), "approximate randomisation, 10,000 exchanges"),
        (("--resamples", 0), None),
    ],
)
def test_every_output_says_where_p_values_come_from(
    files: dict[str, Path], more: tuple[object, ...], expected: str | None
) -> None:
    paths = [files["same"].with_name(name) for name in ("a.md", "a.html", "a.json")]
    reports = [flag for path in paths for flag in ("--report", path)]
    result = invoke(*flags(files, "same"), *more, *reports)
    for text in (result.stdout, *(path.read_text("utf-8") for path in paths[:2])):
        assert re.findall("p: ([a-z ]+, [0-9,]+ [a-z]+)", text) == ([expected] if expected else [])
    assert json.loads(paths[2].read_text("utf-8")).get("paired_test") == expected


def test_the_reports_of_one_gate_agree(files: dict[str, Path]) -> None:
    paths = [files["bad"].with_name(name) for name in ("a.md", "a.html", "a.xml")]
    reports = [flag for path in paths for flag in ("--report", path)]
    result = invoke(*flags(files), "--fail-if-worse", "--metric", "chrf", *reports)
    (sentence,) = re.findall(r"bad.en: chrf is .*: significantly worse", result.stderr)
    assert [sentence in path.read_text("utf-8") for path in paths] == [True] * 3


def test_more_errors_are_worse(files: dict[str, Path]) -> None:
    gate = ("--fail-if-worse", "--metric", "ter", "--resamples", 200)
    result = invoke(*flags(files), *gate)
    assert (result.exit_code, "ter is" in result.stderr) == (6, True)
    assert invoke(*flags(files, "same", files["bad"]), *gate).exit_code == 0


def test_identical_systems_and_few_different_lines_raise_no_alarm(
    files: dict[str, Path], tmp_path: Path
) -> None:
    for count, least in ((0, 1.0), (1, 1.0), (3, 0.25), (5, 1 / 16)):
        lines = ["a wrong line" if n < count else line for n, line in enumerate(LINES)]
        files["few"] = write(tmp_path / "few.en", lines)
        for kind in ("bs", "ar"):
            result = invoke(
                *flags(files, "few"), "--significance", kind, "--fail-if-worse", "--json"
            )
            assert result.exit_code == 0
            for score in json.loads(result.stdout)["systems"][0]["scores"]:
                assert score["comparison"]["p_value"] >= least


def test_only_metrics_that_were_asked_for_are_gates(files: dict[str, Path]) -> None:
    gate = ("--fail-if-worse", "--metric", "chrf", "--fail-under", "bleu=1")
    found = json.loads(invoke(*flags(files), *gate, "--json").stdout)["gates"]
    kinds = [(each["metric"], each["kind"], each["met"]) for each in found]
    assert kinds == [("bleu", "fail-under", True), ("chrf", "fail-if-worse", False)]


def report(files: dict[str, Path], *more: object) -> Path:
    path = files["same"].with_name("report.json")
    base = ("--hypothesis", files["same"], "--reference", files["reference"], "--resamples", 0)
    assert invoke(*base, "--report", path, *more).exit_code == 0
    return path


def test_a_report_is_a_baseline_as_its_translations_are(files: dict[str, Path]) -> None:
    from_report, from_file = (
        json.loads(invoke(*flags(files, "bad", base), "--json").stdout)["systems"][0]["scores"]
        for base in (report(files), files["same"])
    )
    for one, other in zip(from_report, from_file, strict=True):
        assert one["comparison"].pop("baseline") == "same.en (report.json)"
        assert other["comparison"].pop("baseline") == "same.en"
        assert one == other
    printed = invoke(*flags(files), "--json").stdout
    path = files["bad"].with_name("printed.json")
    path.write_text(printed, "utf-8")
    assert invoke(*flags(files, "same", path), "--fail-if-worse").exit_code == 0


def change(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text("utf-8"))
    values["systems"][0] |= changes
    path.write_text(json.dumps(values), "utf-8")


def test_a_report_of_something_else_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    path = report(files)
    other = write(tmp_path / "other.en", reversed(LINES))
    result = invoke("--hypothesis", files["bad"], "--reference", other, "--baseline", path)
    assert (result.exit_code, "of another test set" in result.stderr) == (2, True)
    shorter = write(tmp_path / "shorter.en", LINES[1:])
    result = invoke(*flags(files, "bad", shorter))
    assert (result.exit_code, "of another test set: it has" in result.stderr) == (2, True)
    result = invoke(*flags(files, "bad", path), "--limit", 5)
    assert (result.exit_code, "of another test set" in result.stderr) == (2, True)
    result = invoke(*flags(files, "bad", path), "--lowercase")
    assert (result.exit_code, "another signature of bleu" in result.stderr) == (2, True)
    for changes, message in (
        ({"hypotheses": []}, "no translations (hypotheses)"),
        ({"hypotheses": LINES[1:]}, "no translations (hypotheses)"),
        ({"hypotheses": 3}, "is no report of an evaluation"),
        ({"scores": [{}]}, "is no report of an evaluation"),
    ):
        change(report(files), **changes)
        result = invoke(*flags(files, "bad", path))
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    for text in ("", "[]", "{}", '{"evaluations": 3}', '{"systems": "x"}'):
        path.write_text(text, "utf-8")
        assert invoke(*flags(files, "bad", path)).exit_code == 2
    two = report(files, "--hypothesis", files["bad"])
    result = invoke(*flags(files, "bad", two))
    assert (result.exit_code, "holds 2 systems" in result.stderr) == (2, True)


def test_another_version_of_sacrebleu_is_no_other_signature(files: dict[str, Path]) -> None:
    path = report(files)
    path.write_text(path.read_text("utf-8").replace("version:2", "version:1"), "utf-8")
    assert invoke(*flags(files, "bad", path)).exit_code == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--report", "x.pdf"], "*.json, *.md, *.xml"),
        (["--report", "missing/x.md"], "does not exist"),
        (["--fail-if-worse", "--resamples", "0"], "--fail-if-worse needs resamples"),
        (["--alpha", "2"], "--alpha"),
        (["--significance", "t"], "--significance"),
        (["-t", "one", "-t", "two"], "several are given"),
    ],
)
def test_wrong_usage_exits_with_2(files: dict[str, Path], more: list[str], message: str) -> None:
    result = invoke(*flags(files), *more)
    assert (result.exit_code, message in result.stderr, result.stdout) == (2, True, "")
    assert invoke(*flags(files)[:-2], "--fail-if-worse").exit_code == 2


def test_a_report_is_never_written_over_an_input(files: dict[str, Path]) -> None:
    path = report(files)
    before = path.read_bytes()
    result = invoke(*flags(files, "bad", path), "--report", path)
    assert (result.exit_code, path.read_bytes() == before) == (2, True)


def test_markdown_says_what_changed_by_how_much_and_whether_it_is_real(
    files: dict[str, Path],
) -> None:
    path = files["bad"].with_name("comment.md")
    pipe = files["bad"].rename(files["bad"].with_name("a|b*.en"))
    files["bad"] = pipe
    assert invoke(*flags(files), "--report", path, "--fail-if-worse").exit_code == 6
    text = path.read_text("utf-8")
    assert text.startswith("### Translation quality: 2 of 2 gates missed\n")
    row = next(line for line in text.splitlines() if line.startswith("| a"))
    assert row.startswith(r"| a\|b\*.en | BLEU | 100.00 | ")
    assert r"| worse (p \< 0.001) |" in row
    assert invoke(*flags(files, "same"), "--report", path, "--fail-if-worse").exit_code == 0
    text = path.read_text("utf-8")
    assert "all gates met" in text
    assert "| +0.00 | +0.00 to +0.00 | no significant difference (p = 1.000) |" in text


def test_junit_has_a_case_for_each_gate_and_a_failure_for_each_missed_one(
    files: dict[str, Path],
) -> None:
    path = files["bad"].with_name("junit.xml")
    gates = ("--fail-if-worse", "--fail-under", "bleu=1,chrf=99")
    assert invoke(*flags(files), "--report", path, *gates).exit_code == 6
    suite = ElementTree.parse(path).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("4", "3")
    assert len(suite.findall("testcase")) == 4
    failures = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failures == [
        "bad.en: chrf fail-under 99", "bad.en: bleu fail-if-worse", "bad.en: chrf fail-if-worse"
    ]  # fmt: skip
    odd = files["bad"].rename(files["bad"].with_name("<&\x01\u00e4.en"))
    assert (
        invoke("--hypothesis", odd, "--reference", files["same"], "--report", path).exit_code == 0
    )
    cases = ElementTree.parse(path).getroot().iter("testcase")
    assert all(str(case.get("name")).startswith("<&\ufffd\u00e4.en: ") for case in cases)


def test_slices_by_labels_of_the_user_are_counted_and_scored(files: dict[str, Path]) -> None:
    labels = write(files["bad"].with_name("labels"), ["short" if n % 3 else "" for n in range(60)])
    result = invoke(*flags(files), "--slice", f"kind={labels}", "--slices", "--json")
    found = json.loads(result.stdout)["slices"]
    mine = {each["name"]: each["systems"][0] for each in found if each["group"] == "kind"}
    assert [(name, x["num_sentences"]) for name, x in mine.items()] == [("", 20), ("short", 40)]
    assert [x["is_small"] for x in mine.values()] == [True, False]
    ratios = [x["systems"][0] for x in found if x["group"] == "length ratio to reference"]
    assert [x["num_sentences"] for x in ratios] == [0, 60, 0]
    assert [len(x["scores"]) for x in ratios] == [0, 2, 0]
    table = invoke(*flags(files), "--slice", f"kind={labels}").stdout
    assert re.search(r"kind +short +40 +\d", table)
    assert re.search(r"kind +20 \(few\) +\d", table)
    for flag, code in ((f"kind={files['bad']}x", 3), ("kind", 2), ("=x", 2), (f"a={labels}", 3)):
        more = ("--limit", 7) if flag.startswith("a=") else ()
        if more:
            write(labels, ["a"] * 8)
        result = invoke(*flags(files), "--slice", flag, *more)
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


def test_an_external_metric_is_tested_and_a_gate_like_the_others(files: dict[str, Path]) -> None:
    length = "json.dumps({'score': line['hypothesis'].count('this') - len(line['references'])})"
    command = program(files["bad"].parent, length)
    result = invoke(*flags(files), "--external", command, "--fail-if-worse", "--json")
    assert result.exit_code == 6
    assert "bad.en: external is -0.50, -0.50 against same.en" in result.stderr
    score = json.loads(result.stdout)["systems"][0]["scores"][-1]
    assert (score["metric"], score["value"]) == ("external", -0.5)
    assert score["signature"] == f"mean of: {command}"
    assert score["confidence"]["low"] < -0.5 < score["confidence"]["high"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after": "sys.exit('no model')"}, "ended with status 1: no model"),
        ({"cut": "[1:]"}, "wrote 59 lines for 60 sentences"),
        ({"result": "'NaN'"}, "wrote no finite number in line 1: 'NaN'"),
        ({"result": "'{}'"}, "wrote no finite number in line 1: '{}'"),
    ],
)
def test_an_external_metric_that_fails_is_named_and_costs_no_other_score(
    files: dict[str, Path], changes: dict[str, str], message: str
) -> None:
    command = program(files["bad"].parent, **changes)
    result = invoke(*flags(files), "--external", command, "--json")
    assert (result.exit_code, message in result.stderr) == (3, True), result.stderr
    assert command in result.stderr
    scores = json.loads(result.stdout)["systems"][0]["scores"]
    assert [score["metric"] for score in scores] == ["bleu", "chrf"]
    result = invoke(*flags(files), "--external", "/no/such/program")
    assert (result.exit_code, "/no/such/program" in result.stderr) == (3, True)


def test_sentence_scores_are_those_of_sacrebleu(files: dict[str, Path]) -> None:
    result = invoke(*flags(files), "--sentence-level")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["line"], each["system"]) for each in found[:2]] == [(1, "bad.en"), (2, "bad.en")]
    lines = files["bad"].read_text("utf-8").splitlines()
    for each, line, reference in zip(found, lines, LINES, strict=True):
        assert (each["hypothesis"], each["references"]) == (line, [reference])
        theirs = BLEU(effective_order=True).sentence_score(line, [reference]).score
        assert each["scores"]["bleu"] == pytest.approx(theirs, abs=1e-9)
        theirs = CHRF().sentence_score(line, [reference]).score
        assert each["scores"]["chrf"] == pytest.approx(theirs, abs=1e-9)


def test_test_sets_are_listed() -> None:
    result = invoke("--list")
    assert result.exit_code == 0
    assert any(re.match("wmt14: .*en-de", line) for line in result.stdout.splitlines())


def test_what_only_a_model_can_do_needs_one(files: dict[str, Path]) -> None:
    for flag in ("--robustness", "--contrastive=x"):
        result = invoke(*flags(files), flag)
        assert (result.exit_code, "needs a model" in result.stderr) == (2, True)
