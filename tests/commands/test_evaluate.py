"""``nmt evaluate`` as a user and a script see it, without its analyses."""

from __future__ import annotations

import gzip
import json
import re
import resource
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
import yaml
from typer.testing import CliRunner, Result

from nmt import EvaluateOptions, evaluate
from nmt.cli.app import app
from nmt.commands import evaluation_set
from nmt.config.loader import dump_config, load_config
from nmt.config.migration import FORMAT
from nmt.config.run import RunConfig
from nmt.errors import DataError
from nmt.inference.engine import Ensemble
from nmt.inference.request import Result as Translation
from nmt.metrics.metric import MetricOptions, MetricScorer, label_of
from nmt.metrics.result import EvaluationReport, hash_references
from nmt.metrics.scoring import Resampling, score_systems
from tests.cli.commands import FLAGS
from tests.conftest import MISSING

SENTENCES = [f"sentence number {n} of this small test set" for n in range(10)]


def invoke(*arguments: object, text: str = "") -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)], input=text)


def report_of(*arguments: object, text: str = "") -> dict[str, Any]:
    result = invoke(*arguments, "--json", text=text)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def scores_of(*arguments: object, text: str = "") -> dict[str, Any]:
    """The report, with the keys of its only test set."""
    report = report_of(*arguments, text=text)
    (test_set,) = report["test_sets"]
    return report | test_set


def refused(*arguments: object, code: int = 2) -> str:
    """What is said; nothing is printed."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    return result.stderr


def write(path: Path, lines: Iterable[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A hypothesis file with one word wrong, and its reference file."""
    return (
        write(tmp_path / "hypothesis.en", ["sentence number zero of this", *SENTENCES[1:]]),
        write(tmp_path / "reference.en", SENTENCES),
    )


def test_the_table_shows_scores_intervals_and_signatures(files: tuple[Path, Path]) -> None:
    title, _, header, row, *_, bleu, chrf = invoke(*files).stdout.splitlines()
    assert title == "reference.en: 10 sentences, 1 reference"
    assert header.split() == ["system", "BLEU", "chrF"]
    assert (row.split()[0], row.count("±")) == ("hypothesis.en", 2)
    assert ("tok:13a" in bleu, "nc:6" in chrf) == (True, True)


def test_json_has_confidence_and_can_leave_it_out(files: tuple[Path, Path]) -> None:
    two = ("--reference", files[1], "--reference", files[0])
    found = scores_of(files[0], *two, "--metric", "bleu")
    (best,) = found["systems"][0]["scores"]
    assert (found["num_references"], round(best["value"], 6)) == (2, 100)
    (with_it,) = scores_of(*files, "--metric", "bleu")["systems"][0]["scores"]
    (without,) = scores_of(*files, "--metric", "bleu", "--resamples", 0)["systems"][0]["scores"]
    assert set(without) == {"metric", "value", "signature"}
    assert with_it["confidence"]["low"] <= with_it["value"] <= with_it["confidence"]["high"]
    assert with_it["confidence"]["resamples"] == 1000
    (again,) = scores_of(*files, "--metric", "bleu", "--seed", 7)["systems"][0]["scores"]
    assert again["value"] == with_it["value"]
    assert again["confidence"] != with_it["confidence"]


def test_systems_are_compared_with_each_other_or_with_a_baseline(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    lines = hypothesis.read_text("utf-8").splitlines()
    third = write(hypothesis.with_name("third.en"), [lines[0], *reversed(lines[1:])])
    paths = (hypothesis, third, reference)
    flags = [flag for path in paths for flag in ("--hypothesis", path)]
    among_each_other = scores_of(*flags, "--reference", reference)
    assert "bootstrap" in among_each_other["paired_test"]
    pairs = among_each_other["pairs"]
    assert [(pair["first"], pair["second"], pair["metric"]) for pair in pairs] == [
        (first.name, second.name, metric)
        for first, second in combinations(paths, 2)
        for metric in ("bleu", "chrf")
    ]
    with_base = (third, reference, "--baseline", hypothesis)
    compared = scores_of(*with_base)
    assert compared["baseline"]["name"] == "hypothesis.en"
    base = {score["metric"]: score["value"] for score in compared["baseline"]["scores"]}
    for pair, score in zip(pairs, compared["systems"][0]["scores"], strict=False):
        comparison = score["comparison"]
        assert (pair["delta"], pair["p_value"]) == (comparison["delta"], comparison["p_value"])
        assert comparison["delta"] == score["value"] - base[score["metric"]]
    trials = scores_of(*with_base, "--significance", "ar", "--resamples", 50)["paired_test"]
    assert trials == "approximate randomization, 50 trials"
    of_two = ("--hypothesis", third, "--hypothesis", reference, "--reference", reference)
    stated = scores_of(*of_two, "--baseline", hypothesis)["paired_test"]
    assert stated == "paired bootstrap, 1,000 resamples, not corrected for 2 comparisons"
    table = invoke(*with_base).stdout
    assert ("hypothesis.en (baseline)" in table, ", p = " in table) == (True, True)
    result = invoke(*flags, "--reference", reference)
    row = next(line for line in result.stdout.splitlines() if line.startswith("third.en - "))
    assert f"{pairs[0]['delta']:+.2f} (p = {pairs[0]['p_value']:.3f})" in row
    assert "to compare every system with one file" in result.stderr
    assert "pairs" not in scores_of(*flags, "--reference", reference, "--resamples", 0)


def test_score_only_prints_one_number_for_each_test_set_and_system(
    files: tuple[Path, Path],
) -> None:
    hypothesis, reference = files
    values = {}
    for score in scores_of(*files, "--metric", "chrf,ter")["systems"][0]["scores"]:
        values[score["metric"]] = f"{score['value']:.2f}\n"
    assert invoke(*files, "--score-only", "TER").stdout == values["ter"]
    both = ("--metric", "bleu", "--score-only", "chrf", "--score-only", "ter")
    assert invoke(*files, *both).stdout == values["chrf"] + values["ter"]
    two = ("--hypothesis", hypothesis, "--hypothesis", reference, "--reference", reference)
    assert invoke(*two, "--score-only", "chrf").stdout == f"{values['chrf']}100.00\n"
    assert "Unknown metrics: blue" in refused(*files, "--score-only", "blue")


def test_sentence_level_is_a_line_of_json_for_each(files: tuple[Path, Path]) -> None:
    found = [json.loads(x) for x in invoke(*files, "--sentence-level").stdout.splitlines()]
    assert scores_of(*files, "--sentence-level")["sentences"] == found
    assert [(each["line"], each["system"]) for each in found][:2] == [
        (1, "hypothesis.en"), (2, "hypothesis.en")
    ]  # fmt: skip
    assert found[0]["hypothesis"] == "sentence number zero of this"
    assert found[0]["references"] == [SENTENCES[0]]
    assert found[0]["scores"]["bleu"] < found[1]["scores"]["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("今日は天気がいいので、公園へ。", "--tokenize to zh, ja-mecab or char"),
        ("列夫・托尔斯泰是一位伟大的作家。", "--languages to en-zh, en-ja or"),
        ("this looks tokenized .", "nmt: warning: text looks tokenized: punctuation marks have"),
    ],
)  # fmt: skip
def test_text_for_another_tokenizer_gets_a_warning(tmp_path: Path, line: str, advice: str) -> None:
    path = write(tmp_path / "text", [line] * 3)
    result = invoke("--hypothesis", path, "--reference", path, "--quiet")
    assert (result.exit_code, advice in result.stderr) == (0, True)
    if "zh" in advice:
        score = scores_of(path, path, "-l", "en-zh")["systems"][0]["scores"][1]
        assert (round(score["value"]), "tok:zh" in score["signature"]) == (100, True)


def test_an_odd_baseline_gets_a_warning(tmp_path: Path) -> None:
    text = write(tmp_path / "text", ["schön", "für", "Tür"] * 3)
    decomposed = [unicodedata.normalize("NFD", word) for word in ["schön", "für", "Tür"] * 3]
    baseline = write(tmp_path / "baseline", decomposed)
    warned = invoke("--hypothesis", text, "--reference", text, "--baseline", baseline).stderr
    assert "baseline: 9 of 9 lines differ from their reference in Unicode's" in warned


@pytest.mark.parametrize("wrong", ["--hypothesis", "--source", "--reference"])
def test_a_file_that_another_tool_has_segmented_is_refused(tmp_path: Path, wrong: str) -> None:
    flags = list[object]()
    for flag in ("--hypothesis", "--source", "--reference"):
        lines = ["a do@@ g", *SENTENCES] if flag == wrong else ["a dog", *SENTENCES]
        flags += [flag, write(tmp_path / f"text{flag}", lines)]
    assert invoke(*flags).exit_code == 0  # a single line
    segmented = [f"{line} of do@@ gs" for line in ["", *SENTENCES]]
    write(tmp_path / f"text{wrong}", segmented)
    message = refused(*flags, code=3)
    assert f"text{wrong} was segmented by subword-nmt (@@), as in line 1: of do@@ gs" in message
    assert "fix: Restore the text: sed -E " in message


@pytest.mark.parametrize(
    ("flags", "metrics"),
    [
        (("-l", "en-de"), ["bleu", "chrf"]),
        (("-l", "en-zho"), ["chrf", "bleu"]),
        (("-l", "en-tha"), ["chrf", "bleu"]),
        (("-l", "en-tha", "--metric", "bleu,ter"), ["bleu", "ter"]),
        (("-l", "en-tha", "--metric", "bleu,chrf"), ["bleu", "chrf"]),
    ],
)
def test_chrf_comes_first_for_a_language_without_spaces_unless_the_user_orders(
    tmp_path: Path, flags: tuple[str, ...], metrics: list[str]
) -> None:
    path = write(tmp_path / "text", ["ไปโรงเรียน"] * 3)
    scores = scores_of(path, path, *flags)["systems"][0]["scores"]
    assert [score["metric"] for score in scores] == metrics
    head = invoke(path, path, *flags).stdout.splitlines()[2]
    assert [name.lower() for name in head.split()] == ["system", *metrics]
    signatures = {score["metric"]: score["signature"] for score in scores}
    assert ("tok:char" in signatures["bleu"]) == (flags[1] == "en-tha")
    if "analysis" in MISSING:  # which draws the page
        return
    page = tmp_path / "page.html"
    invoke(path, path, *flags, "--report", page)
    text = page.read_text("utf-8")
    labels = [f'<th scope="col">{label_of(metric)}' for metric in metrics]
    assert sorted(labels, key=text.index) == labels


def test_a_reference_in_another_language_is_named(tmp_path: Path) -> None:
    german, english = "Das ist der Hund und die Katze.", "This is the dog and the cat."
    left, right = (write(tmp_path / f"{n}.txt", [x] * 20) for n, x in enumerate((german, english)))
    question = "0.txt looks like de, but the reference looks like en: wrong file?"
    assert question in invoke(left, right).stderr
    assert question in invoke(right, right, "--baseline", left).stderr
    assert "looks like" not in invoke(left, left).stderr


def test_a_limit_takes_files_of_the_whole_set_or_of_its_start(files: tuple[Path, Path]) -> None:
    flags = ("--hypothesis", "-", "--hypothesis", files[0], "--reference", files[1], "--limit", 4)
    found = scores_of(*flags, text="".join(f"{line}\n" for line in SENTENCES[:4]))
    assert (found["num_sentences"], found["num_available"]) == (4, 10)
    assert "num_available" not in scores_of(*files, "--limit", 10)  # this is the whole set
    piped, whole = found["systems"]
    assert (piped["name"], round(piped["scores"][0]["value"], 6)) == ("standard input", 100)
    assert whole["scores"][0]["value"] < 100


@pytest.mark.parametrize(("flags", "message"), [
    (["--metric", "bleurt,chrf,rouge"], "Unknown metrics: bleurt, rouge."),
    (["--metric", "bleurt"], "ter, comet. For a different metric, pass --external COMMAND"),
    (["--metric", ","], "error: --metric is empty."),
    (["--metric", "bleu:13a"], "bleu does not take an argument"),
    (["--metric", "comet:a,comet:b"], "comet:a, comet:b: a metric occurs twice"),
    (["-l", "en-jp"], "the code of Japanese is ja"),
    (["-t", "wmt14", "-l", "en-de"], "cannot be combined with several test sets"),
    (["--save-hypotheses", "x"], "--save-hypotheses needs a model"),
    (["--set", "decoding.beam_size=1", "-b", "2"], "--beam-size, --set need a model"),
    (["--hypothesis", "-", "--baseline", "-"], "only once"),
    (["--report", "x.pdf"], "Use one of .html, .md, .xml, .json"),
])  # fmt: skip
def test_wrong_usage_exits_with_2(files: tuple[Path, Path], flags: list[str], message: str) -> None:
    assert message in refused("--hypothesis", files[0], "--reference", files[1], *flags)


def test_files_by_position_are_a_hypothesis_and_its_reference(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    expected = scores_of("--hypothesis", hypothesis, "--reference", reference)
    assert scores_of(hypothesis, "--reference", reference) == expected
    assert scores_of(hypothesis, reference) == expected
    assert "--languages PAIR" in refused(hypothesis, "-t", "wmt14")


def test_three_files_may_be_two_systems_or_have_two_references(files: tuple[Path, Path]) -> None:
    """sacreBLEU takes several references by position."""
    hypothesis, reference = map(str, files)
    message = refused(hypothesis, reference, reference)
    for command in (
        f"--hypothesis {hypothesis} --hypothesis {reference} --reference {reference}",
        f"with several references: nmt evaluate --hypothesis {hypothesis} "
        f"--reference {reference} --reference {reference}",
    ):
        assert command in message.replace("\n  ", " ")
    assert "several references" not in refused(hypothesis, hypothesis, "--reference", reference)


def test_json_lines_of_translate_are_scored_by_their_translations(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """And lines of which some are not such JSON are refused."""
    source = write(tmp_path / "in.txt", ["w1 w2", "", "w3"])
    translate = ["translate", runs["plain"], source, *FLAGS, "--beam-size", 1]
    for arguments in (["-o", "plain"], ["--format", "json", "-o", "json"]):
        words = list(map(str, [*translate, *arguments]))
        assert CliRunner().invoke(app, words).exit_code == 0
    plain = scores_of("plain", "plain")["systems"][0]
    result = invoke("json", "plain", "--json")
    (found,) = json.loads(result.stdout)["test_sets"][0]["systems"]
    assert found["scores"] == plain["scores"]
    sentences = scores_of("json", "plain", "--sentence-level")["sentences"]
    lines = Path("plain").read_text("utf-8").split("\n")[:-1]
    assert [each["hypothesis"] for each in sentences] == lines
    assert "json: the translations are read from JSON lines" in result.stderr
    with Path("json").open("a") as stream:
        stream.write('{"source": "w4", "error": "too long"}\n')
    write(Path("four"), "abcd")
    assert "json, line 4: the JSON has no translation" in refused("json", "four", code=3)
    write(Path("other"), ['{"text": "w1"}', "w2", "{w3", "4"])
    sentences = scores_of("other", "other", "--sentence-level")["sentences"]
    assert sentences[0]["hypothesis"] == '{"text": "w1"}'


def test_files_of_one_name_are_named_with_their_folders(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    folder = hypothesis.parent / "other"
    folder.mkdir()
    same = write(folder / hypothesis.name, SENTENCES)
    found = scores_of("--hypothesis", hypothesis, "--hypothesis", same, "--reference", reference)
    assert [each["name"] for each in found["systems"]] == [str(hypothesis), str(same)]


def test_line_counts_that_differ_are_both_named(tmp_path: Path) -> None:
    """Fault 32."""
    thousand = write(tmp_path / "a.en", ["a line"] * 1000)
    fewer = write(tmp_path / "b.en", ["a line"] * 999)
    for pair in ((thousand, fewer), (fewer, thousand)):
        said = refused(*pair, code=3)
        assert all(text in said for text in ("1,000", "999", "must translate sentence i"))
    two = ("--reference", thousand, "--reference", fewer, "--limit", 5)
    assert str(fewer) in refused(thousand, *two, code=3)
    said = refused(fewer, fewer, "--baseline", thousand, code=3)
    assert f"{thousand} has 1,000 lines but b.en has 999" in said


def test_files_that_cannot_be_read_are_named(files: tuple[Path, Path]) -> None:
    """Fault 33."""
    hypothesis, reference = files
    cut, missing = hypothesis.with_name("cut.gz"), hypothesis.with_name("missing.en")
    cut.write_bytes(gzip.compress(b"a line\n" * 10_000)[:-20])
    empty = write(hypothesis.with_name("empty.en"), [])
    for bad, *pair in (
        (missing, missing, reference),
        (cut, hypothesis, cut),
        (empty, empty, reference),
        (missing, hypothesis, reference, "--baseline", missing),
    ):
        said = refused(*pair, code=3)
        assert (str(bad) in said, "fix:" in said) == (True, True)
    two = invoke("--hypothesis", "-", "--reference", reference, text="one\ntwo\n")
    assert (two.exit_code, "standard input has 2 lines" in two.stderr) == (3, True)
    damaged = CliRunner().invoke(app, ["evaluate", "-", str(reference)], input=b"one\n\xff\n")
    assert (damaged.exit_code, "standard input, line 2" in damaged.stderr) == (3, True)


class LossLess:
    """Stands in for a tokenizer that encodes a line as itself."""

    def encode_batch(self, lines: Sequence[str]) -> Sequence[str]:
        return lines

    def decode(self, ids: str) -> str:
        return ids


class UpperCaser:
    """Stands in for a translator: it has learned to write capitals, without training."""

    calls: dict[str, Any] = {}  # noqa: RUF012 - reset by the tests
    engine = SimpleNamespace(name="torch", dtype="float32")
    tokenizers = SimpleNamespace(target=LossLess())

    @classmethod
    def load(cls, folder: Path, **options: Any) -> UpperCaser:
        cls.calls = {"folder": folder, **options}
        return cls()

    def with_options(self, **options: Any) -> UpperCaser:
        self.calls.update(options)
        return self

    def translate(self, lines: Sequence[str]) -> list[Translation]:
        return [Translation(line, line.upper(), 0.0) for line in lines]


def make_model(folder: Path, names: Sequence[str]) -> Path:
    """A run folder with test sets; its translator writes capitals."""
    place = folder.parent
    source = write(place / "test.lower", SENTENCES)
    target = write(place / "test.upper", [line.upper() for line in SENTENCES])
    corpus = {"source": str(source), "target": str(target)}
    config = RunConfig.model_validate({
        "name": "capitals", "source_language": "en", "target_language": "de",
        "data": {"train": [corpus], "valid": corpus, "test": dict.fromkeys(names, corpus)},
        "training": {"max_steps": 1},
    })  # fmt: skip
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(config), "utf-8")
    return folder


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its tests are ``one`` and ``two``."""
    monkeypatch.setattr("nmt.commands.evaluate.Translator", UpperCaser)
    return make_model(tmp_path / "run", ("one", "two"))


class Stripping(LossLess):
    """Stands in for a tokenizer that loses the letter M of capitals."""

    def decode(self, ids: str) -> str:
        return ids.replace("M", "")


def test_the_scores_of_a_model_that_makes_no_mistake_are_told_if_its_tokenizer_does(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (model, "-t", "one", "--metric", "chrf", "--resamples", 0)
    assert "limit" not in scores_of(*flags)
    monkeypatch.setattr(UpperCaser, "tokenizers", SimpleNamespace(target=Stripping()))
    (limit,) = scores_of(*flags)["limit"]
    upper = [line.upper() for line in SENTENCES]
    nearest = [line.replace("M", "") for line in upper]
    assert limit["unreachable"] == 10
    expected = sacrebleu.corpus_chrf(nearest, [upper]).score
    assert limit["scores"] == {"chrf": pytest.approx(expected)}
    text = invoke(*flags).stdout
    assert f"chrF {expected:.2f}" in text
    assert "becomes" in text
    other = write(model.parent / "other", ["without this letter" for _ in SENTENCES])
    references = ("--reference", model.parent / "test.upper", "--reference", other)
    of_files = (model, "--source", model.parent / "test.lower", *references, "--metric", "chrf")
    assert "limit" not in scores_of(*of_files, "--resamples", 0)  # the second one can be written


def test_a_model_translates_a_test_set_of_its_configuration(model: Path) -> None:
    saved = model / "hypotheses.txt"
    flags = (
        model, "-t", "one", "-b", 3, "--length-penalty", 0.5, "--batch-tokens", 99,
        "--checkpoint", "step-7", "--device", "cpu", "--threads", 1, "--no-guard",
        "--set", "decoding.max_length_offset=7", "--save-hypotheses", saved,
    )  # fmt: skip
    found = scores_of(*flags)
    (system,) = found["systems"]
    assert (found["test"], round(system["scores"][0]["value"], 6)) == ("one", 100)
    shown = {"engine": "torch", "dtype": "float32", "beam_size": 3, "length_penalty": 0.5}
    assert system.items() >= {"name": str(model), **shown}.items()
    assert saved.read_bytes().decode() == "".join(f"{line.upper()}\n" for line in SENTENCES)
    expected = {
        "folder": model, "checkpoint": "step-7", "device": "cpu", "threads": 1, "beam_size": 3,
        "length_penalty": 0.5, "batch_tokens": 99, "max_length_offset": 7, "n_best": 1,
        "guard": False,
    }  # fmt: skip
    assert UpperCaser.calls.items() >= expected.items()


def test_all_test_sets_of_the_configuration_make_one_table(model: Path) -> None:
    lines = invoke(model, "--resamples", 0, "--metric", "chrf").stdout.splitlines()
    assert lines[:2] == ["one: 10 sentences, 1 reference", "two: 10 sentences, 1 reference"]
    assert lines[3].split() == ["metric", "system", "one", "two", "mean"]
    assert lines[4].split() == ["chrF", str(model), "100.00", "100.00", "100.00"]
    table = write(model.parent / "table.tsv", [f"{line}\t{line.upper()}" for line in SENTENCES[:3]])
    text = (model / "config.yaml").read_text()
    source, target = model.parent / "test.lower", model.parent / "test.upper"
    four = f"{{source: {source}, target: {target}, max_pairs: 4}}"
    more = text.replace("  test:\n", f"  test:\n    3: {{tsv: {table}}}\n    4: {four}\n")
    (model / "config.yaml").write_text(more)
    found = report_of(model)["test_sets"]
    sizes = [(each["test"], each["num_sentences"]) for each in found]
    assert sizes == [("3", 3), ("4", 4), ("one", 10), ("two", 10)]
    listed = invoke(model, "--list").stdout.splitlines()
    assert listed[:5] == ["3", "4", "one", "two", "valid"]
    assert any(re.match("wmt14: .*en-de", line) for line in listed)


def test_a_set_in_xml_is_evaluated_with_the_references_that_all_its_sentences_have(
    model: Path,
) -> None:
    segments = {
        "src": '<src lang="en"><p><seg id="1">a dog</seg><seg id="2">a cat</seg></p></src>',
        "A": '<ref lang="de" translator="A"><seg id="1">xy</seg><seg id="2">A CAT</seg></ref>',
        "B": '<ref lang="de" translator="B"><seg id="1">A DOG</seg><seg id="2">xy</seg></ref>',
        "C": '<ref lang="de" translator="C"><seg id="1">z</seg></ref>',
    }
    path = model.parent / "set.xml"
    path.write_text(f'<dataset><doc id="1">{"".join(segments.values())}</doc></dataset>')
    text = (model / "config.yaml").read_text()
    more = text.replace("  test:\n", f"  test:\n    xml: {{path: {path}}}\n")
    (model / "config.yaml").write_text(more)
    found = scores_of(model, "-t", "xml", "--metric", "chrf", "--resamples", 0)
    assert found["num_references"] == 2
    assert found["systems"][0]["scores"][0]["value"] == pytest.approx(100)


def test_a_bad_line_of_a_set_of_several_files_has_the_name_of_its_file(model: Path) -> None:
    for number in (1, 2):
        for code in ("en", "de"):
            write(model.parent / f"part{number}.{code}", ["a", "b\0" if number == 2 else "b"])
    place = f"{{source: {model.parent}/part*.en, target: {model.parent}/part*.de}}"
    text = (model / "config.yaml").read_text()
    (model / "config.yaml").write_text(text.replace("  test:\n", f"  test:\n    parts: {place}\n"))
    said = " ".join(refused(model, "-t", "parts", code=3).split())
    assert f"Test set {model.parent}/part2.en, line 2: nul" in said


def test_references_of_the_configuration_count_as_those_of_the_command(model: Path) -> None:
    source, first = model.parent / "test.lower", model.parent / "test.upper"
    second = write(model.parent / "second", ["nothing" for _ in SENTENCES])
    text = (model / "config.yaml").read_text()
    several = f"{{source: {source}, target: [{second}, {first}]}}"
    more = text.replace("  test:\n", f"  test:\n    several: {several}\n")
    (model / "config.yaml").write_text(more)
    of_config = scores_of(model, "-t", "several")
    flags = ("--source", source, "--reference", second, "--reference", first)
    of_command = scores_of(model, *flags)
    assert of_config["num_references"] == of_command["num_references"] == 2
    assert of_config["systems"] == of_command["systems"]
    assert of_config["systems"][0]["scores"][0]["value"] == pytest.approx(100)


@pytest.mark.parametrize(("flags", "tags"), [
    ((), ["<own>", None]), (("--tag", "<news>"), ["<news>", "<news>"]),
])  # fmt: skip
def test_a_set_has_its_tag_unless_the_command_has_one(
    flags: tuple[str, ...], tags: list[str | None], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(model / "config.yaml").model_dump(exclude_unset=True)
    (corpus,) = config["data"]["train"]
    config["data"] |= {
        "train": [corpus, corpus | {"tag": "<own>", "name": "own"}],
        "test": {"one": corpus | {"tag": "<own>"}, "two": corpus},
    }
    (model / "config.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    asked: list[str | None] = []

    def with_options(self: Any, **options: Any) -> Any:
        asked.append(options["tag"])
        return self

    monkeypatch.setattr(UpperCaser, "with_options", with_options)
    report_of(model, "--metric", "chrf", *flags)
    assert asked == tags


def test_each_test_set_is_translated_in_its_direction(
    model: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(model / "config.yaml").model_dump(exclude_unset=True)
    (corpus,) = config["data"]["train"]
    turned = corpus | {"source_language": "de", "target_language": "en", "name": "turned"}
    config["data"] |= {"train": [corpus, turned], "test": {"one": corpus, "two": turned}}
    (model / "config.yaml").write_text(dump_config(RunConfig.model_validate(config)))
    asked: list[tuple[str | None, str | None]] = []

    def with_options(self: Any, **options: Any) -> Any:
        asked.append((options["source_language"], options["target_language"]))
        return self

    monkeypatch.setattr(UpperCaser, "with_options", with_options)
    found = report_of(model, "--metric", "chrf")
    assert asked == [("en", "de"), ("de", "en")]
    scores = [x["systems"][0]["scores"][0]["value"] for x in found["test_sets"]]
    assert found["mean"] == {str(model): {"chrf": pytest.approx(sum(scores) / 2)}}
    flags = ("--source", files[0], "--reference", files[1])
    assert "`languages`" not in refused(model, *flags)
    assert "--languages with one of these pairs: en-de, de-en" in refused(model, *flags)
    scores_of(model, *flags, "-l", "de-en")
    assert asked[-1] == ("de", "en")
    pytest.importorskip("nmt.extras.analysis")
    shares = [x["languages"] for x in found["test_sets"]]
    assert [x[0]["languages"] for x in shares] == ["en-de", "de-en"]
    assert "wrong language" in invoke(model, "--metric", "chrf").stdout
    assert "wrong language" not in invoke(*files).stdout


def test_published_sets_and_files_do_where_the_corpora_of_the_model_cannot_be_read(
    model: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set of the model itself needs them, and so does an evaluation on all of its sets."""
    asked: list[tuple[str, tuple[str, str]]] = []

    def published(name: str, pair: tuple[str, str]) -> tuple[Path, tuple[Path, ...]]:
        asked.append((name, pair))
        return files[0], (files[1],)

    monkeypatch.setattr(evaluation_set, "published_test_set", published)
    monkeypatch.setattr(evaluation_set, "published_names", lambda: ["wmt14"])
    flags = ("--metric", "bleu", "--resamples", 0)
    files_of_both = ("--source", files[0], "--reference", files[1])
    path = model / "config.yaml"
    values = yaml.safe_load(path.read_text("utf-8"))
    values["data"]["test"] = "of another version"
    for content in (None, yaml.safe_dump(values)):
        if content:
            path.write_text(content, "utf-8")
        assert scores_of(model, "-t", "wmt14", *flags)["test"] == "wmt14"
        assert scores_of(model, "-t", "wmt14", "-l", "de-en", *flags)["test"] == "wmt14"
        assert scores_of(model, *files_of_both, *flags)["test"] == "reference.en"
    assert asked == [("wmt14", ("en", "de")), ("wmt14", ("de", "en"))] * 2
    for names in ((), ("-t", "one"), ("-t", "valid"), ("-t", "unknown")):
        assert str(path) in refused(model, *names, code=4)


def test_named_sets_and_files_make_one_table(model: Path, files: tuple[Path, Path]) -> None:
    """A file of translations belongs to the set that is given as files."""
    hypothesis, reference = files
    flags = (
        model, "-t", "one", "-t", "valid", "--source", reference, "--reference", reference,
        "--hypothesis", hypothesis, "--metric", "chrf", "--resamples", 0,
    )  # fmt: skip
    found = report_of(*flags)["test_sets"]
    assert [each["test"] for each in found] == ["one", "valid", "reference.en"]
    assert [len(each["systems"]) for each in found] == [1, 1, 2]
    (score,) = found[2]["systems"][1]["scores"]
    lines = invoke(*flags).stdout.splitlines()
    assert lines[4].split() == ["metric", "system", "one", "valid", "reference.en", "mean"]
    assert lines[6].split() == ["chrF", "hypothesis.en", "-", "-", f"{score['value']:.2f}", "-"]
    for flag in ("--baseline", "--hypothesis"):
        several = (model, "-t", "one", "-t", "two", flag, hypothesis)
        assert "several test sets" in refused(*several)
    assert "--save-hypotheses cannot" in refused(model, "--save-hypotheses", model / "x")


@pytest.fixture
def patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of two systems on the test sets ``news`` and ``talks``; ``bad`` is wrong in news."""
    monkeypatch.chdir(tmp_path)
    for name in ("bad", "good"):
        Path(name).mkdir()
    for test, lines in {"news": SENTENCES, "talks": SENTENCES[:3]}.items():
        write(Path(f"{test}.en"), lines)
        write(Path(f"good/{test}.en"), lines)
        write(Path(f"bad/{test}.en"), ["x", *lines[1:]] if test == "news" else lines)
    flags = [f"--hypothesis={name}/{{test}}.en" for name in ("bad", "good")]
    return [*flags, "--reference={test}.en", "--metric=chrf", "--resamples=0"]


TWO = ("-t", "news", "-t", "talks")


def test_files_of_several_systems_are_scored_on_several_test_sets(patterns: list[str]) -> None:
    """A name of a test set takes the place of {test} in every path."""
    report = report_of(*patterns, *TWO)
    assert [each["test"] for each in report["test_sets"]] == ["news", "talks"]
    alone = scores_of("bad/news.en", "news.en", "--metric", "chrf", "--resamples", 0)
    (score,) = alone["systems"][0]["scores"]
    means = {"bad/{test}.en": (score["value"] + 100) / 2, "good/{test}.en": 100}
    assert report["mean"] == {name: {"chrf": pytest.approx(mean)} for name, mean in means.items()}
    table = invoke(*patterns, *TWO).stdout.splitlines()[3:6]
    first, second = (f"{value:.2f}" for value in (score["value"], means["bad/{test}.en"]))
    assert [line.split() for line in table] == [
        ["metric", "system", "news", "talks", "mean"],
        ["chrF", "bad/{test}.en", first, "100.00", second],
        ["chrF", "good/{test}.en", "100.00", "100.00", "100.00"],
    ]  # fmt: skip
    assert scores_of(*patterns, "-t", "talks")["test"] == "talks"
    of_baseline = report_of(*patterns[1:], *TWO, "--baseline=bad/{test}.en")["test_sets"]
    deltas = [each["systems"][0]["scores"][0]["comparison"]["delta"] for each in of_baseline]
    assert deltas == pytest.approx([100 - score["value"], 0])
    by_position = report_of("bad/{test}.en", "{test}.en", *patterns[-2:], *TWO)
    assert by_position["test_sets"][0]["systems"] == report["test_sets"][0]["systems"][:1]


def test_a_model_and_files_are_scored_on_the_test_sets_of_its_configuration(model: Path) -> None:
    for test in ("one", "two"):
        write(model.parent / f"{test}.out", [line.upper() for line in SENTENCES])
    report = report_of(model, "--hypothesis", model.parent / "{test}.out", "--resamples", 0)
    assert list(report["mean"]) == [str(model), str(model.parent / "{test}.out")]


def test_files_for_several_test_sets_that_do_not_fit_are_refused_with_the_way_out(
    patterns: list[str],
) -> None:
    Path("good/talks.en").unlink()
    said = refused(*patterns, *TWO, "-t", "more", code=3)
    assert "do not exist: bad/more.en, good/talks.en, good/more.en, more.en" in said
    assert "choose test sets with --test NAME" in said
    said = refused(*patterns[1:], "--hypothesis=bad/news.en", *TWO)
    assert "bad/news.en: a file of translations" in said
    assert "as in --hypothesis system.{test}.en" in said
    assert "Add --test NAME for each test set" in refused(*patterns)
    write(Path("good/talks.en"), SENTENCES)
    assert "good/talks.en has 10 lines but talks has 3" in refused(*patterns, *TWO, code=3)


def test_lines_of_the_training_data_and_alarms_are_counted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [Translation(line, "A", 0.0) for line in SENTENCES]
    results[1] = Translation("a", "A", 0.0, alarms=("loop",))
    results[2] = Translation("a", "A", 0.0, retried=("long",))
    monkeypatch.setattr(UpperCaser, "translate", lambda *_, **__: results)
    monkeypatch.setattr("nmt.commands.evaluation_set.rows_in_training", lambda *_: {2, 5})
    assert scores_of(model, "-t", "one")["systems"][0]["in_training_data"] == 2
    said = invoke(model).stderr
    assert "the training data contains 2 of 10 source lines of one" in said
    assert (
        "guard: 2 of 10 translations are suspicious (length, loops); check loops in 1 line: 2"
        in said
    )


def test_the_scores_of_a_run_are_recorded_with_their_checkpoint(model: Path) -> None:
    (model / "metrics.jsonl").touch()  # what makes it a run
    flags = (model, "-t", "one", "--metric", "chrf", "--resamples", 0)
    invoke(*flags, "--checkpoint", "last")
    # Scores of a part would look like those of the whole set.
    part = invoke(*flags, "--checkpoint", "last", "--limit", 4)
    assert part.stdout.startswith("one: first 4 of 10 sentences, 1 reference\n")
    other = make_model(model.parent / "other", ())
    assert invoke(*flags, "--with", other).exit_code == 0  # not the score of this run
    line, *more = (model / "evaluations.jsonl").read_text("utf-8").splitlines()
    assert more == []
    assert json.loads(line) == {
        "kind": "evaluation", "test": "one", "checkpoint": "last",
        "scores": {"chrf": pytest.approx(100)}, "sentences": 10, "beam_size": 5,
        "references_sha256": hash_references([[line.upper() for line in SENTENCES]]),
    }  # fmt: skip
    assert (model / "report.html").is_file()


def test_training_data_are_those_of_the_model_and_of_the_models_that_it_started_from(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(model / "config.yaml").model_dump(mode="json", exclude_unset=True)
    runs = [model.parent / name for name in ("first", "second", "third")]
    for run, before in zip(runs, [None, *runs], strict=False):
        values = config | {"prepared_dir": str(run / "prepared")}
        values["training"] = {"max_steps": 1, "init_from": before and str(before)}
        run.mkdir()
        (run / "config.yaml").write_text(dump_config(RunConfig.model_validate(values)), "utf-8")
    monkeypatch.setattr(evaluation_set, "trained_on", lambda run, _: run != runs[1])
    monkeypatch.setattr(evaluation_set, "PreparedData", SimpleNamespace(open=lambda folder: folder))
    caplog.set_level("INFO")
    found: list[Any] = list(evaluation_set.training_data(runs[2]))
    assert found == [runs[2] / "prepared", runs[0] / "prepared"]
    assert f"training data of {runs[1]}" in caplog.text


@pytest.mark.parametrize(("flags", "message"), [
    (["--set", "decoding.beam_sise=3"], "decoding.beam_size"),
    (["--set", "batch.max_tokens=4000"], "batch.max_tokens=4000 has no effect"),
    (["--save-hypotheses", "out.zst"], "cannot write .zst"),
    (["--save-hypotheses", "-"], "standard output"),
    (["--save-hypotheses", "test.upper"], "is also an input file"),
    (["--report", "run/config.json", "--baseline", "run"], "same model with the same options"),
    (["-t", "onne"], "Did you mean one?"),
    (["-l", "de-en"], "one of the model's configuration is en-de, not de-en"),
])  # fmt: skip
def test_what_is_wrong_is_told_before_the_model_is_loaded(
    model: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], message: str
) -> None:
    """Faults 47 and 49."""
    monkeypatch.chdir(model.parent)
    before, UpperCaser.calls = sorted(model.parent.rglob("*")), {}
    assert message in refused(model, "-t", "one", *flags)
    assert (UpperCaser.calls, sorted(model.parent.rglob("*"))) == ({}, before)


def test_a_model_translates_files_beside_others(model: Path, files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    flags = (model, "--source", reference, "--reference", reference, "--hypothesis", hypothesis)
    found = scores_of(*flags, "--baseline", hypothesis, "--lowercase", "--limit", 5)
    assert found["num_sentences"] == 5
    values = [system["scores"][0]["value"] for system in found["systems"]]
    assert (round(values[0]), values[1] < 100) == (100, True)
    assert "--source FILE" in refused(model, "--reference", reference)
    assert "--reference FILE" in refused("--hypothesis", hypothesis)
    assert "--hypothesis FILE" in refused("--reference", reference)


def test_a_model_as_the_baseline_is_the_best_checkpoint_of_one_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def translate(self: UpperCaser, lines: Sequence[str], **_: object) -> list[Translation]:
        calls.append(tuple(self.calls[name] for name in ("folder", "checkpoint", "beam_size")))
        return [Translation(line, line, 0.0) for line in lines]

    monkeypatch.setattr(UpperCaser, "translate", translate)
    base = make_model(model.parent / "base", ())
    found = scores_of(model, "-t", "one", "--checkpoint", "last", "--baseline", base, "-b", 2)
    assert calls == [(model, "last", 2), (base, "best", 2)]
    assert found["baseline"]["name"] == str(base)
    for flag, value in (("--checkpoint", "last"), ("--mbr", "chrf")):
        assert invoke(model, "-t", "one", "--baseline", model, flag, value).exit_code == 0


@pytest.mark.parametrize(
    ("source", "target", "is_same"),
    [("de", "en", False), ("en", "fr", False), ("eng", "de-AT", True), ("gem", "de", True)],
)
def test_a_baseline_or_another_model_of_another_language_pair_is_refused(
    model: Path, source: str, target: str, is_same: bool
) -> None:
    """Another spelling, a variant, and a group of languages are not another language."""
    other = make_model(model.parent / "other", ())
    config = (other / "config.yaml").read_text("utf-8")
    config = config.replace("source_language: en", f"source_language: {source}")
    config = config.replace("target_language: de", f"target_language: {target}")
    (other / "config.yaml").write_text(config, "utf-8")
    for flags in ([model, "--baseline", other], [model, other]):
        if is_same:
            assert invoke(*flags, "-t", "one").exit_code == 0
            continue
        said = refused(*flags, "-t", "one")
        assert f"{other} translates {source}-{target}, but one is en-de" in said
    text = write(model.parent / "text", SENTENCES)
    files = ["--hypothesis", text, "--source", text, "--reference", text, "-l", "en-de"]
    result = invoke(*files, "--baseline", other)
    assert result.exit_code == (0 if is_same else 2)
    assert ("but text is en-de" in result.stderr) != is_same


class Signing(UpperCaser):
    """Writes the name of its model behind each line, so that results tell whose they are."""

    log: list[dict[str, Any]] = []  # noqa: RUF012 - reset by the test

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Signing:
        found = super().load(folder, **options)
        cls.log.append(cls.calls)
        return found  # type: ignore[return-value]

    def translate(self, lines: Sequence[str]) -> list[Translation]:
        name = self.calls["folder"].name
        return [Translation(line, f"{line} {name}", 0.0) for line in lines]


def test_with_several_models_each_result_belongs_to_its_model(
    model: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, lines, counts of training data and the records of runs; files come after models."""
    monkeypatch.setattr("nmt.commands.evaluate.Translator", Signing)
    second = make_model(model.parent / "second", ())
    third = make_model(model.parent / "third", ())
    seen = {"run": {1}, "second": {1, 2}, "third": None}
    monkeypatch.setattr(
        "nmt.commands.evaluation_set.rows_in_training", lambda folder, _: seen[folder.name]
    )
    models = (model, second, third)
    for folder in models:
        (folder / "metrics.jsonl").touch()
    signed = [write(model.parent / f"{x.name}.en", [f"{y} {x.name}" for y in SENTENCES])
              for x in models]  # fmt: skip
    flags = [x for path in signed for x in ("--hypothesis", path)]
    usual = ("--reference", signed[1], "--metric", "bleu", "--resamples", 0)
    texts = scores_of(*flags, *usual)["systems"]
    found = scores_of(
        *models, "--source", files[1], "--hypothesis", files[0], *usual, "--sentence-level"
    )
    assert [x["name"] for x in found["systems"]] == [*map(str, models), "hypothesis.en"]
    values = [x["scores"][0]["value"] for x in found["systems"]]
    assert values[:3] == [x["scores"][0]["value"] for x in texts]
    assert values[1] == pytest.approx(100)
    counts = [x.get("in_training_data") for x in found["systems"]]
    assert counts == [1, 2, None, None]
    for folder in models:
        lines = [x["hypothesis"] for x in found["sentences"] if x["system"] == str(folder)]
        assert lines == [f"{line} {folder.name}" for line in SENTENCES]
        (record,) = (folder / "evaluations.jsonl").read_text("utf-8").splitlines()
        assert json.loads(record)["scores"] == {"bleu": values[models.index(folder)]}


def test_every_option_of_the_search_reaches_each_model_but_not_those_of_others_the_baseline(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.commands.evaluate.Translator", Signing)
    monkeypatch.setattr(Signing, "log", [])
    (model / "checkpoints").mkdir()
    base = make_model(model.parent / "base", ())
    other = make_model(model.parent / "other", ())
    flags = (
        model, "--baseline", base, "-t", "one", "--with", other, "--weights", "1,3",
        "--ensemble-mean", "geometric", "--checkpoint", "last", "--device", "cpu",
        "--threads", 2, "--engine", "torch", "--dtype", "float32", "--length-penalty", 0.3,
        "--shortlist", "--batch-tokens", 77, "--no-guard", "--no-split", "--tag", "<news>",
        "--mbr", "chrf", "--mbr-candidates", 5, "--mbr-from", "beam",
        "--set", "decoding.max_length_offset=7",
    )  # fmt: skip
    (system,) = scores_of(*flags, "--metric", "bleu", "--resamples", 0)["systems"]
    both = {
        "device": "cpu", "threads": 2, "engine": "torch", "dtype": "float32", "guard": False,
        "length_penalty": 0.3, "shortlist": True, "batch_tokens": 77, "split": False,
        "max_length_offset": 7, "n_best": 1, "tag": "<news>",
    }  # fmt: skip
    first, second = Signing.log
    ensemble = Ensemble((other,), (1.0, 3.0), "geometric")
    own = {"folder": model, "checkpoint": "last", "ensemble": ensemble}
    alone = {"folder": base, "checkpoint": "best", "ensemble": None, "mbr": None}
    assert first.items() >= (both | own).items()
    assert second.items() >= (both | alone).items()
    chosen = first["mbr"]
    assert (chosen.utility, chosen.num_candidates, chosen.kind) == ("chrf", 5, "beam")
    shown = {
        "name": f"{model} + {other}", "engine": "torch", "dtype": "float32",
        "checkpoint": "last", "mbr": "chrf", "mbr_candidates": 5,
    }  # fmt: skip
    assert system.items() >= shown.items()
    assert not {"beam_size", "length_penalty"} & set(system)


def test_every_option_of_scoring_reaches_the_scorers(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the metrics and of the gates, and how scores are resampled."""
    pytest.importorskip("nmt.extras.analysis")
    asked: list[Any] = []

    def make(name: str, references: Any, options: MetricOptions) -> MetricScorer:
        asked.append((name, references, replace(options, source=list(options.source or ()))))
        return MetricScorer(name, references, options)

    def score(systems: Any, scorers: Any, baseline: Any, resampling: Resampling) -> Any:
        asked.append(resampling)
        return score_systems(systems, scorers, baseline=baseline, resampling=resampling)

    monkeypatch.setattr("nmt.commands.evaluate.MetricScorer", make)
    monkeypatch.setattr("nmt.commands.evaluate.score_systems", score)
    base = write(model.parent / "base", [line.upper() for line in SENTENCES])
    flags = (
        model, "-t", "one", "--metric", "chrf,bleu", "--tokenize", "char", "--lowercase",
        "--device", "cpu", "--limit", 4, "--fail-under", "chrf++=0,bleu=0", "--baseline", base,
    )  # fmt: skip
    references = ((*(line.upper() for line in SENTENCES[:4]),),)
    expected = MetricOptions(
        tokenize="char", lowercase=True, target_language="de", source=SENTENCES[:4], device="cpu"
    )
    for more, resampling in (
        (("--resamples", 50, "--seed", 7), Resampling(50, 7, "bs", 50)),
        (("--resamples", 50, "--fail-if-worse"), Resampling(50, 12345, "ar", 50)),
        (("--resamples", 50, "--significance", "ar"), Resampling(50, 12345, "ar", 50)),
        (
            ("--resamples", 50, "--significance", "bs", "--fail-if-worse"),
            Resampling(50, 12345, "bs", 50),
        ),
        (("--resamples", 0), Resampling(0, 12345, "bs", 10_000)),
        ((), Resampling(1000, 12345, "bs", 10_000)),
    ):
        found = scores_of(*flags, *more)
        assert found["num_sentences"] == 4
        *scorers, how = asked
        asked.clear()
        assert [name for name, *_ in scorers] == ["chrf", "bleu", "chrf++"]
        assert [each[1:] for each in scorers] == [(references, expected)] * 3
        assert how == resampling


def test_a_test_set_or_a_model_that_is_gone_is_named(model: Path, tmp_path: Path) -> None:
    """Faults 33 and 47."""
    missing = model.parent / "test.upper"
    missing.unlink()
    assert f"data.test.two.target: {missing} does not exist." in refused(model, "-t", "two", code=3)
    assert "does not exist." in refused(tmp_path / "missing", code=4)
    assert "config.yaml is missing" in refused(tmp_path, code=4)


def test_files_are_evaluated_although_the_recorded_corpora_cannot_be_read(model: Path) -> None:
    """FAULT 79: another version may have keys of corpora that this version does not know."""
    config = model / "config.yaml"
    config.write_text(config.read_text("utf-8").replace("valid:", "warp: 9\n  valid:", 1), "utf-8")
    for flags in ([], ["-t", "one"]):
        said = refused(model, *flags, code=4)
        assert (str(config) in said, "warp" in said, "fix: Pass files" in said) == (True,) * 3
    source = model.parent / "test.lower"
    found = scores_of(model, "--source", source, "--reference", model.parent / "test.upper")
    assert round(found["systems"][0]["scores"][0]["value"]) == 100
    assert found["format"] == FORMAT


def test_translations_are_never_saved_over_an_input(model: Path, files: tuple[Path, Path]) -> None:
    places = {"hypothesis": files[0], "reference": files[1], "source": model.parent / "test.lower",
              "baseline": write(model.parent / "baseline.en", SENTENCES)}  # fmt: skip
    flags = [x for name, path in places.items() for x in (f"--{name}", path)]
    before, UpperCaser.calls = {path: path.read_bytes() for path in places.values()}, {}
    for number, place in enumerate((*places.values(), model / "config.yaml")):
        link = model.parent / f"link{number}"
        link.symlink_to(place)
        assert str(link) in refused(model, *flags, "--save-hypotheses", link)
    assert ({path: path.read_bytes() for path in places.values()}, UpperCaser.calls) == (before, {})


def test_a_report_is_never_written_over_what_an_analysis_or_an_ensemble_reads(
    model: Path, files: tuple[Path, Path]
) -> None:
    pytest.importorskip("nmt.extras.analysis")
    other = make_model(model.parent / "other", ())
    labels = write(model.parent / "labels", ["short"] * 10)
    pairs = write(model.parent / "pairs.tsv", ["a\tb\tc"])
    flags = (
        model, "--source", files[0], "--reference", files[1], "--slice", f"kind={labels}",
        "--contrastive", pairs, "--with", other, "--hypothesis", files[0],
    )  # fmt: skip
    inputs = (*files, labels, pairs, model / "config.yaml", other / "config.yaml")
    before = {path: path.read_bytes() for path in inputs}
    UpperCaser.calls = {}
    for number, place in enumerate(inputs):
        link = model.parent / f"link{number}.json"
        link.symlink_to(place)
        assert str(link) in refused(*flags, "--report", model.parent / "new.md", "--report", link)
    assert {path: path.read_bytes() for path in inputs} == before
    assert UpperCaser.calls == {}
    assert not (model.parent / "new.md").exists()


def test_a_full_disk_costs_the_saved_translations_but_no_score(model: Path) -> None:
    """Fault 8: and nothing that looks like translations is left, or lost."""
    flags = (model, "-t", "one", "--json", "--resamples", 0)
    new, old, before = model / "new.txt", write(model / "old.txt", ["old"]), scores_of(*flags)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for place in (new, old):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            result = invoke(*flags, "--save-hypotheses", place)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert result.exit_code == 3
        assert f"{place} cannot be written" in result.stderr
        assert json.loads(result.stdout)["test_sets"] == before["test_sets"]
    assert sorted(path.name for path in model.iterdir()) == ["config.yaml", "old.txt"]
    assert old.read_text("utf-8") == "old\n"


def test_files_are_scored_without_torch(files: tuple[Path, Path]) -> None:
    script = (
        "import sys; from nmt.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "evaluate", *map(str, files)]
    process = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert process.stderr.decode().splitlines()[-1] == "False"


def test_the_python_function_takes_the_options_of_the_command(files: tuple[Path, Path]) -> None:
    """Text does for a path, and a list for a tuple."""
    texts: dict[str, Any] = {"hypothesis": str(files[0]), "reference": [str(files[1])]}
    options = EvaluateOptions(**texts, metric=("ter",))
    assert options == EvaluateOptions(hypothesis=files[:1], reference=files[1:], metric=("ter",))
    report = evaluate(options)
    assert isinstance(report, EvaluationReport)
    (score,) = report.evaluations[0].systems[0].scores
    assert (score.metric, score.value > 0, report.failure) == ("ter", True, None)


def test_the_python_function_takes_lists_of_systems_and_references_as_sacrebleu_does() -> None:
    systems = [["a b c d", "e"], ["a b c x", "e"]]
    references = [["a b c x", "e"], ["a b c d", "e"]]
    report = evaluate(EvaluateOptions(resamples=0), hypothesis=systems, reference=references)
    assert isinstance(report, EvaluationReport)
    (result,) = report.evaluations
    # Each line equals one of its references.
    assert [system.scores[0].value for system in result.systems] == [pytest.approx(100)] * 2
    assert "nrefs:2" in result.systems[0].scores[0].signature
    with pytest.raises(DataError, match="is not a line"):
        evaluate(hypothesis=systems[0], reference=systems[0], source=systems)


@pytest.mark.long
def test_a_run_finds_its_texts_wherever_its_project_is_and_it_is_called_from(
    tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the training data, in which the lines of the test set are looked for."""
    corpus = {"source": "train.de", "target": "train.en"}
    monkeypatch.chdir(tiny_corpus)
    values = {
        "name": "moved", "source_language": "de", "target_language": "en",
        "data": {"train": [corpus], "valid": corpus, "test": {"news": corpus}},
        "model": {"preset": "tiny"}, "tokenizer": {"vocab_size": 60, "byte_fallback": False},
        "training": {"max_steps": 1},
    }  # fmt: skip
    Path("c.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    trained = CliRunner().invoke(app, ["train", "c.yaml", "-q"])
    assert trained.exit_code == 0, trained.stderr
    project = tiny_corpus.rename(tiny_corpus.with_name("a new place"))
    for here, run in ((project, "runs/moved"), (project / "runs", "moved"), (Path("/"), "")):
        monkeypatch.chdir(here)
        folder = run or project / "runs" / "moved"
        report = scores_of(folder, "-t", "news", "--limit", 2, "--beam-size", 1)
        assert report["systems"][0]["in_training_data"] == 2
