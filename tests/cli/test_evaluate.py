"""``nmt evaluate`` as a user and a script see it."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sacrebleu import __version__ as sacrebleu_version
from typer.testing import CliRunner, Result

from nmt import Score, evaluate
from nmt.cli.app import app
from nmt.commands.evaluate_options import EvaluateOptions
from nmt.commands.evaluated_model import ModelUse
from nmt.config.loader import dump_config
from nmt.config.run import RunConfig
from nmt.errors import ConfigError
from nmt.inference.options import Ensemble

METRIC_OF_COLUMN = {"BLEU": "bleu", "chrF2": "chrf", "chrF2++": "chrf++"}
SENTENCES = [f"sentence number {n} of this small test set" for n in range(10)]


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)])


def scores_of(*arguments: object) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


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


# --- The published numbers ---------------------------------------------------------------------


@pytest.mark.parametrize("testset", ["newstest2021.en-de", "newstest2021.en-zh"])
def test_published_scores_are_reproduced(shared_data: Path, testset: str) -> None:
    folder = shared_data / "wmt_sample"
    header, *lines = (folder / "SCORES.tsv").read_text("utf-8").splitlines()
    table = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    wanted = (testset, "all", "first300")
    rows = [row for row in table if (row["testset"], row["refs"], row["subset"]) == wanted]
    pair = testset.partition(".")[2]
    target = pair.partition("-")[2]
    files = [f"{testset}.hyp.{system}.{target}" for system in sorted({x["system"] for x in rows})]
    arguments: list[object] = ["-l", pair, "--resamples", 0, "--limit", 300]
    for path in sorted(folder.glob(f"{testset}.ref.*")):
        arguments += ["--reference", path]
    for name in files:
        arguments += ["--hypothesis", folder / name]
    for metric in sorted({METRIC_OF_COLUMN[row["metric"]] for row in rows}):
        arguments += ["--metric", metric]
    found = scores_of(*arguments)

    assert found["num_sentences"] == int(rows[0]["n_lines"])
    values = {
        (system["name"], score["metric"]): score
        for system in found["systems"]
        for score in system["scores"]
    }
    assert len(values) == len(rows) > 0
    for row in rows:
        name = f"{testset}.hyp.{row['system']}.{target}"
        score = values[name, METRIC_OF_COLUMN[row["metric"]]]
        assert score["value"] == pytest.approx(float(row["score_sacrebleu"]), abs=1e-9)
        assert score["signature"] == row["signature"].replace("2.6.0", sacrebleu_version)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            ["--metric", "bleu,chrf++,ter"],
            ["-m", "bleu", "chrf", "ter", "--chrf-word-order", "2"],
        ),
        (
            ["--metric", "bleu", "--lowercase", "--tokenize", "intl"],
            ["-m", "bleu", "-lc", "--tokenize", "intl"],
        ),
    ],
)
def test_scores_and_signatures_are_those_of_sacrebleus_own_command(
    shared_data: Path, tmp_path: Path, ours: list[str], theirs: list[str]
) -> None:
    paths = []
    for name in ("hyp.ICL", "ref.A", "ref.C"):
        whole = shared_data / "wmt_sample" / f"newstest2021.en-de.{name}.de"
        paths.append(write(tmp_path / name, whole.read_text("utf-8").split("\n")[:20]))
    hypothesis, *references = paths
    command = [sys.executable, "-m", "sacrebleu", *map(str, references), "-i", str(hypothesis)]
    process = subprocess.run(
        [*command, "-w", "12", *theirs], capture_output=True, check=True, timeout=60
    )
    expected = json.loads(process.stdout)
    arguments = [part for path in references for part in ("--reference", path)]
    found = scores_of("--hypothesis", hypothesis, *arguments, *ours)["systems"][0]["scores"]
    for score, known in zip(found, expected if len(found) > 1 else [expected], strict=True):
        assert score["value"] == pytest.approx(known["score"], abs=1e-9)
        assert score["signature"] == known["signature"]


# --- What is printed ---------------------------------------------------------------------------


def test_the_table_shows_scores_intervals_and_signatures(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    result = invoke("--hypothesis", hypothesis, "--reference", reference)
    assert result.exit_code == 0
    title, _, header, row, _, meaning, _, bleu, chrf = result.stdout.splitlines()
    assert title == "reference.en: 10 sentences, 1 reference"
    assert header.split() == ["system", "bleu", "chrf"]
    assert (row.split()[0], row.count("±")) == ("hypothesis.en", 2)
    assert meaning == "±: the 95% interval, by bootstrap resampling."
    assert ("tok:13a" in bleu, "nc:6" in chrf) == (True, True)


def test_json_has_confidence_and_can_leave_it_out(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    flags = ("--hypothesis", hypothesis, "--reference", reference, "--metric", "bleu")
    (with_it,) = scores_of(*flags)["systems"][0]["scores"]
    (without,) = scores_of(*flags, "--resamples", 0)["systems"][0]["scores"]
    assert set(without) == {"metric", "value", "signature"}
    assert with_it["confidence"]["low"] <= with_it["value"] <= with_it["confidence"]["high"]
    assert with_it["confidence"]["resamples"] == 1000
    assert scores_of(*flags)["systems"][0]["scores"] == [with_it]


def test_a_baseline_gives_differences_and_p_values(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    flags = ("--hypothesis", hypothesis, "--reference", reference, "--baseline", reference)
    found = scores_of(*flags)
    comparison = found["systems"][0]["scores"][0]["comparison"]
    value, base = (found[k] for k in ("systems", "baseline"))
    assert comparison["delta"] == value[0]["scores"][0]["value"] - base["scores"][0]["value"] < 0
    assert 0 < comparison["p_value"] <= 1
    assert comparison["baseline"] == base["name"] == "reference.en"
    table = invoke(*flags).stdout
    assert "reference.en (baseline)" in table
    assert ", p = " in table


def test_several_systems_are_compared_with_each_other(files: tuple[Path, Path]) -> None:
    """As each is with a baseline."""
    hypothesis, reference = files
    lines = hypothesis.read_text("utf-8").splitlines()
    third = write(hypothesis.with_name("third.en"), [lines[0], *reversed(lines[1:])])
    paths = (hypothesis, third, reference)
    flags = [flag for path in paths for flag in ("--hypothesis", path)]
    found = scores_of(*flags, "--reference", reference)

    assert [(pair["first"], pair["second"], pair["metric"]) for pair in found["pairs"]] == [
        (first.name, second.name, metric)
        for first, second in combinations(paths, 2)
        for metric in ("bleu", "chrf")
    ]
    flags = ["--hypothesis", third, "--reference", reference, "--baseline", hypothesis]
    for pair, score in zip(found["pairs"], scores_of(*flags)["systems"][0]["scores"], strict=False):
        comparison = score["comparison"]
        assert (pair["delta"], pair["p_value"]) == (comparison["delta"], comparison["p_value"])

    flags = [flag for path in paths[:2] for flag in ("--hypothesis", path)]
    table = invoke(*flags, "--reference", reference)
    row = next(line for line in table.stdout.splitlines() if line.startswith("third.en - "))
    assert f"{found['pairs'][0]['delta']:+.2f} (p = {found['pairs'][0]['p_value']:.3f})" in row
    assert "--baseline FILE compares every system with" in table.stderr
    assert "pairs" not in scores_of(*flags, "--reference", reference, "--resamples", 0)


def test_chinese_is_tokenized_as_chinese_once_its_name_is_known(tmp_path: Path) -> None:
    path = write(tmp_path / "text.zh", ["今天天气很好我们去公园散步吧。"] * 3)
    flags = ("--hypothesis", path, "--reference", path, "--metric", "bleu")
    blind = invoke(*flags, "--json")
    assert "look Chinese" in blind.stderr
    assert json.loads(blind.stdout)["systems"][0]["scores"][0]["value"] == 0
    known = invoke(*flags, "-l", "en-zh", "--json")
    assert known.stderr == ""
    score = json.loads(known.stdout)["systems"][0]["scores"][0]
    assert score["value"] == pytest.approx(100)
    assert "tok:zh" in score["signature"]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("今日は天気がいいので、公園へ。", "-l en-ja) or the tokenizer (--tokenize ja-mecab or ch"),
        ("列夫・托尔斯泰是一位伟大的作家。", "-l en-zh) or the tokenizer (--tokenize zh)"),
        ("this looks tokenized .", "nmt: warning: text: 3 lines end in a space and a full stop"),
    ],
)  # fmt: skip
def test_text_that_another_tokenizer_fits_gets_a_warning(
    tmp_path: Path, line: str, advice: str
) -> None:
    path = write(tmp_path / "text", [line] * 3)
    result = invoke("--hypothesis", path, "--reference", path, "--quiet")
    assert (result.exit_code, advice in result.stderr) == (0, True)


# --- Reading -----------------------------------------------------------------------------------


def test_odd_line_ends_and_compression_keep_lines_aligned(tmp_path: Path) -> None:
    """Fault 35."""
    lines = ["one\u2028sentence with a\x0cbreak", "a lone\rreturn stays inside", "the last one"]
    plain = write(tmp_path / "plain.txt", lines)
    packed = tmp_path / "packed.txt.gz"
    text = "\ufeff" + "\r\n".join(lines)
    packed.write_bytes(gzip.compress(text.encode()))
    found = scores_of("--hypothesis", packed, "--reference", plain)
    assert found["num_sentences"] == 3
    assert all(s["value"] == pytest.approx(100) for s in found["systems"][0]["scores"])


def test_a_limit_takes_files_of_the_whole_set_or_of_its_start(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    flags = ("--hypothesis", "-", "--hypothesis", hypothesis, "--reference", reference)
    text = "".join(f"{line}\n" for line in SENTENCES[:4])
    arguments = ["evaluate", *map(str, flags), "--limit", "4", "--json"]
    found = json.loads(CliRunner().invoke(app, arguments, input=text).stdout)
    assert found["num_sentences"] == 4
    assert found["systems"][0]["name"] == "standard input"
    assert found["systems"][0]["scores"][0]["value"] == pytest.approx(100)
    assert found["systems"][1]["scores"][0]["value"] < 100


# --- Gates -------------------------------------------------------------------------------------


def test_a_missed_gate_prints_the_scores_and_exits_with_6(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    flags = ("--hypothesis", hypothesis, "--reference", reference, "--metric", "chrf", "--json")
    result = invoke(*flags, "--fail-under", "bleu=99.5,chrf=50")
    assert result.exit_code == 6
    found = json.loads(result.stdout)
    assert {gate["metric"]: gate["met"] for gate in found["gates"]} == {"bleu": False, "chrf": True}
    value = found["systems"][0]["scores"][1]["value"]
    assert f"hypothesis.en: bleu is {value:.2f}, {99.5 - value:.2g} below 99.5" in result.stderr
    result = invoke(*flags[:-1], "--fail-under", "bleu=50")
    assert result.exit_code == 0
    assert f"gate met: hypothesis.en: bleu is {value:.2f}, not below 50" in result.stdout


def test_a_model_as_the_baseline_changes_nothing_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EvaluateOptions] = []

    def stop(options: EvaluateOptions) -> None:
        asked.append(options)
        raise ConfigError("Enough.", fix="None.")

    monkeypatch.setattr("nmt.commands.evaluate.run_evaluation", stop)
    model, base = tmp_path / "model", tmp_path / "base"
    for folder in (model, base):
        folder.mkdir()
    assert invoke(model, "--checkpoint", "last", "--baseline", base).exit_code == 2
    (use,), baseline = asked[0].models, asked[0].baseline
    assert isinstance(baseline, ModelUse)
    assert (use.folder, use.loading["checkpoint"]) == (model, "last")
    assert (baseline.folder, baseline.loading["checkpoint"]) == (base, "best")


def test_a_model_is_not_compared_with_itself(model: Path) -> None:
    asked = (model, "-t", "one", "--resamples", 0)
    for flags in ((), ("-b", 1), ("--save-hypotheses", model / "saved")):
        result = invoke(*asked, "--baseline", model.parent / "." / "run", *flags)
        assert result.exit_code == 2
        assert "both sides are the same model with the same options" in result.stderr
        assert f"nmt translate {model} -i SOURCE -o FILE -b 5" in result.stderr
    for flag, value in (("--checkpoint", "last"), ("--mbr", "chrf")):
        assert "both sides" not in invoke(*asked, "--baseline", model, flag, value).stderr


def test_every_system_must_pass_but_not_the_baseline(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    flags = ("--reference", reference, "--fail-under", "bleu=100")
    assert invoke(*flags, "--hypothesis", reference, "--baseline", hypothesis).exit_code == 0
    assert invoke(*flags, "--hypothesis", reference, "--hypothesis", hypothesis).exit_code == 6


# --- What can go wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--metric", "rouge"], "no metric 'rouge'"),
        (["--metric", "comet"], "`nmt evaluate --external COMMAND` scores with another program."),
        (["--metric", "BLEU"], "Did you mean bleu?"),
        (["--fail-under", "bleu"], "no equals sign"),
        (["--fail-under", "bleu=x"], "not a number"),
        (["--tokenize", "13b"], "Did you mean 13a?"),
        (["--limit", "0"], "--limit"),
        (["-l", "german"], "not a pair of languages"),
        (["-l", "en-jp"], "the code of Japanese is ja"),
        (["-t", "wmt14", "-l", "en-de"], "belongs to one test set, and several are given"),
        (["--save-hypotheses", "x"], "--save-hypotheses needs a model"),
        (["--set", "decoding.beam_size=1", "-b", "2"], "--beam-size, --set need a model"),
        (["--no-guard"], "--no-guard needs a model"),
        (
            ["--checkpoint", "last", "--device", "cpu", "--dtype", "int8", "--threads", "2"],
            "--checkpoint, --device, --threads, --dtype need a model",
        ),
        (["--no-such-flag"], "--no-such-flag"),
        (["--hypothesis", "-", "--baseline", "-"], "once only"),
    ],
)
def test_wrong_usage_exits_with_2(files: tuple[Path, Path], flags: list[str], message: str) -> None:
    hypothesis, reference = files
    result = invoke("--hypothesis", hypothesis, "--reference", reference, *flags)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_file_by_position_is_a_hypothesis_where_a_flag_names_the_reference(
    files: tuple[Path, Path],
) -> None:
    hypothesis, reference = files
    expected = scores_of("--hypothesis", hypothesis, "--reference", reference)
    assert scores_of(hypothesis, "--reference", reference) == expected
    assert scores_of(hypothesis, reference) == expected
    result = invoke(hypothesis, "-t", "wmt14")
    assert (result.exit_code, "-l PAIR" in result.stderr) == (2, True)


def test_nothing_to_score_or_to_score_against_says_what_to_add(
    model: Path, files: tuple[Path, Path]
) -> None:
    hypothesis, reference = files
    for flags, advice in (
        (("--reference", reference), "--hypothesis FILE"),
        (("--hypothesis", hypothesis), "--reference FILE"),
        (("--hypothesis", hypothesis, "-t", "wmt14"), "-l PAIR"),
        (("--hypothesis", hypothesis, "-t", "wmt-14", "-l", "en-de"), "wmt14"),
        ((model, "--reference", reference), "--source FILE"),
        ((model,), "one, two"),
        ((model, "-t", "onne"), "Did you mean one?"),
        ((model, "-t", "one", "-l", "de-en"), "one of the model's configuration is en-de, not de-"),
    ):
        result = invoke(*flags)
        assert (result.exit_code, advice in result.stderr) == (2, True), result.stderr


def test_line_counts_that_differ_are_both_named(tmp_path: Path) -> None:
    """Fault 32."""
    thousand = write(tmp_path / "a.en", ["a line"] * 1000)
    fewer = write(tmp_path / "b.en", ["a line"] * 999)
    for left, right in ((thousand, fewer), (fewer, thousand)):
        result = invoke("--hypothesis", left, "--reference", right)
        assert result.exit_code == 3
        assert "1,000" in result.stderr
        assert "999" in result.stderr
        assert "must translate sentence i" in result.stderr
        assert "each other" not in result.stderr
    result = invoke(
        "--hypothesis", thousand, "--reference", thousand, "--reference", fewer, "--limit", 5
    )
    assert (result.exit_code, str(fewer) in result.stderr) == (3, True)


def test_files_that_cannot_be_read_are_named(files: tuple[Path, Path]) -> None:
    """Fault 33."""
    hypothesis, reference = files
    folder = hypothesis.parent
    cut = folder / "cut.gz"
    cut.write_bytes(gzip.compress(b"a line\n" * 10_000)[:-20])
    empty = write(folder / "empty.en", [])
    missing = folder / "missing.en"
    for flags in (
        ("--hypothesis", missing, "--reference", reference),
        ("--hypothesis", hypothesis, "--reference", cut),
        ("--hypothesis", empty, "--reference", reference),
        ("--hypothesis", hypothesis, "--reference", reference, "--baseline", missing),
    ):
        result = invoke(*flags)
        assert result.exit_code == 3
        assert sum(str(path) in result.stderr for path in (missing, cut, empty)) >= 1
        assert "fix:" in result.stderr


# --- From a model ------------------------------------------------------------------------------


@dataclass
class Translation:
    text: str
    alarms: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    confidence: float | None = None
    retry_seconds: float = 0.0


class UpperCaser:
    """Stands in for a translator: knows a whole language, needs no training."""

    calls: dict[str, Any] = {}  # noqa: RUF012 - reset by the fixture
    engine = SimpleNamespace(name="torch", dtype="float32")

    @classmethod
    def load(cls, folder: Path, **options: Any) -> UpperCaser:
        cls.calls = {"folder": folder, **options}
        return cls()

    def with_options(self, **options: Any) -> UpperCaser:
        self.calls.update(options)
        return self

    def translate(self, lines: Sequence[str]) -> list[Translation]:
        return [Translation(line.upper()) for line in lines]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder whose translator writes capitals; its tests are ``one`` and ``two``."""
    module = ModuleType("nmt.inference.translator")
    module.__dict__["Translator"] = UpperCaser
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = write(tmp_path / "test.lower", SENTENCES)
    target = write(tmp_path / "test.upper", [line.upper() for line in SENTENCES])
    corpus = {"source": str(source), "target": str(target)}
    config = RunConfig.model_validate({
        "name": "capitals", "source_language": "en", "target_language": "de",
        "data": {
            "train": [corpus], "valid": corpus, "test": {"one": corpus, "two": corpus},
        },
        "training": {"max_steps": 1},
    })  # fmt: skip
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(config), "utf-8")
    return folder


def test_a_model_translates_a_test_set_of_its_configuration(model: Path) -> None:
    saved = model / "hypotheses.txt"
    found = scores_of(
        model, "-t", "one", "-b", 3, "--length-penalty", 0.5, "--batch-tokens", 99,
        "--checkpoint", "step-7", "--device", "cpu", "--threads", 1, "--save-hypotheses", saved,
        "--set", "decoding.max_length_offset=7",
    )  # fmt: skip
    assert found["test"] == "one"
    assert [system["name"] for system in found["systems"]] == [str(model)]
    assert found["systems"][0]["scores"][0]["value"] == pytest.approx(100)
    assert found["systems"][0].items() >= {
        "engine": "torch", "dtype": "float32", "beam_size": 3, "length_penalty": 0.5,
    }.items()  # fmt: skip
    assert saved.read_bytes().decode() == "".join(f"{line.upper()}\n" for line in SENTENCES)
    expected = {
        "folder": model, "checkpoint": "step-7", "device": "cpu", "threads": 1, "beam_size": 3,
        "length_penalty": 0.5, "batch_tokens": 99, "max_length_offset": 7, "n_best": 1,
    }  # fmt: skip
    assert UpperCaser.calls.items() >= expected.items()


def test_the_table_says_how_a_model_translated(model: Path) -> None:
    shown = f"\n{model}: engine torch, dtype float32, beam size 2, length penalty 1.0\n"
    assert shown in invoke(model, "-t", "one", "-b", 2).stdout
    (model / "checkpoints").mkdir()
    shown = "dtype float32, checkpoint last, mbr bleu, mbr candidates 9\n"
    flags = ("--checkpoint", "last", "--mbr", "bleu", "--mbr-candidates", 9)
    assert shown in invoke(model, "-t", "one", *flags).stdout


def test_the_guard_reports_and_can_be_turned_off(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [Translation("A", alarms=("loop",)), Translation("B", retried=("long",))]
    results += [Translation("C")] * (len(SENTENCES) - 2)
    monkeypatch.setattr(UpperCaser, "translate", lambda *_, **__: results)
    result = invoke(model, "-t", "one")
    note = f"guard: 2 of {len(SENTENCES)} lines looked degenerate (length, loops); 1 still does"
    assert note in result.stderr
    assert UpperCaser.calls["guard"] is True

    invoke(model, "-t", "one", "--no-guard")
    assert UpperCaser.calls["guard"] is False


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-b", "300"], "decoding.beam_size"),
        (["--set", "decoding.beam_sise=3"], "decoding.beam_size"),
        (
            ["--set", "batch.max_tokens=4000", "--set", "source_language=xx", "--set", "name=x"],
            "--set batch.max_tokens=4000, name=x would change nothing",
        ),
        (["--device", "tpu"], "device: there is no 'tpu'"),
    ],
)
def test_decoding_flags_are_checked_before_the_model_is_loaded(
    model: Path, flags: list[str], message: str
) -> None:
    """Faults 47 and 49."""
    UpperCaser.calls = {}
    result = invoke(model, "-t", "one", *flags)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert UpperCaser.calls == {}


def test_a_model_translates_files_beside_other_systems(
    model: Path, files: tuple[Path, Path]
) -> None:
    hypothesis, reference = files
    found = scores_of(
        model, "--source", reference, "--reference", reference, "--hypothesis", hypothesis,
        "--baseline", hypothesis, "--lowercase", "--limit", 5,
    )  # fmt: skip
    assert found["num_sentences"] == 5
    values = [system["scores"][0]["value"] for system in found["systems"]]
    assert values[0] == pytest.approx(100)
    assert values[1] < 100


def test_named_sets_and_files_make_one_table(model: Path, files: tuple[Path, Path]) -> None:
    """A file of translations belongs to the set that is given as files."""
    hypothesis, reference = files
    comment = model.parent / "comment.md"
    flags = (
        model, "-t", "one", "-t", "valid", "--source", reference, "--reference", reference,
        "--hypothesis", hypothesis, "--metric", "chrf", "--resamples", 0,
    )  # fmt: skip
    found = scores_of(*flags, "--report", comment)["evaluations"]
    assert [each["test"] for each in found] == ["one", "valid", "reference.en"]
    assert [len(each["systems"]) for each in found] == [1, 1, 2]
    (score,) = found[2]["systems"][1]["scores"]
    lines = invoke(*flags).stdout.splitlines()
    assert lines[4].split() == ["system", "one", "chrf", "valid", "chrf", "reference.en", "chrf"]
    assert lines[6].split() == ["hypothesis.en", "-", "-", f"{score['value']:.2f}"]
    row = f"| hypothesis.en | - | - | {score['value']:.2f} |"
    assert row in comment.read_text("utf-8").splitlines()
    for more in (("--baseline", hypothesis), ("--slice", f"x={hypothesis}")):
        wrong = invoke(model, "-t", "one", "-t", "two", *more)
        assert (wrong.exit_code, "belongs to one test set" in wrong.stderr) == (2, True)


def test_a_test_set_whose_file_is_gone_is_told_with_its_key(model: Path) -> None:
    """Fault 33."""
    missing = model.parent / "test.upper"
    missing.unlink()
    result = invoke(model, "-t", "two")
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"data.test.two.target: {missing} does not exist." in result.stderr


def test_a_folder_that_is_no_model_exits_with_4(tmp_path: Path) -> None:
    """Fault 47."""
    wrong = "has no config.yaml, so it is no model folder."
    for folder, what in ((tmp_path / "missing", "does not exist."), (tmp_path, wrong)):
        result = invoke(folder)
        assert result.exit_code == 4
        assert f"{folder} {what}" in result.stderr


@pytest.mark.parametrize("part", ["reference", "source", "baseline", "hypothesis", "config"])
def test_translations_are_never_saved_over_an_input(
    model: Path, files: tuple[Path, Path], part: str
) -> None:
    places = {"hypothesis": files[0], "reference": files[1], "source": model.parent / "test.lower",
              "baseline": write(model.parent / "baseline.en", SENTENCES),
              "config": model / "config.yaml"}  # fmt: skip
    link = model.parent / "link.en"
    link.symlink_to(places[part])
    before = {path: path.read_bytes() for path in places.values()}
    UpperCaser.calls = {}
    for place in (places[part], link):
        result = invoke(
            model, "--hypothesis", files[0], "--source", places["source"], "--reference", files[1],
            "--baseline", places["baseline"], "--save-hypotheses", place,
        )  # fmt: skip
        assert (result.exit_code, UpperCaser.calls) == (2, {})
        assert str(place) in result.stderr
    assert {path: path.read_bytes() for path in places.values()} == before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("out.zst", "no way to write .zst"),
        ("-", "standard output"),
        ("missing/out.txt", "missing"),
        ("test.upper", "both input and output"),
    ],
)
def test_a_place_that_takes_no_translations_is_refused_before_they_are_made(
    model: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
) -> None:
    monkeypatch.chdir(model.parent)
    UpperCaser.calls = {}
    before = sorted(model.parent.iterdir())
    result = invoke(model, "-t", "one", "--save-hypotheses", place)

    assert (result.exit_code, message in result.stderr, UpperCaser.calls) == (2, True, {})
    assert sorted(model.parent.iterdir()) == before
    assert (model.parent / "test.upper").read_text("utf-8").isupper()


def test_a_full_disk_costs_the_saved_translations_but_no_score(model: Path) -> None:
    """Fault 8: and nothing that looks like translations is left, or lost."""
    flags = (model, "-t", "one", "--json", "--resamples", 0)
    new, old, before = model / "new.txt", write(model / "old.txt", ["old"]), scores_of(*flags)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for place in (new, old):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            result = invoke(*flags, "--save-hypotheses", place, "--fail-under", "bleu=0")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert result.exit_code == 3
        assert f"{place} cannot be written" in result.stderr
        assert json.loads(result.stdout)["systems"] == before["systems"]
    assert sorted(path.name for path in model.iterdir()) == ["config.yaml", "old.txt"]
    assert old.read_text("utf-8") == "old\n"


# --- From the shell and from Python ------------------------------------------------------------


def test_exit_codes_reach_the_shell_and_torch_is_not_loaded(files: tuple[Path, Path]) -> None:
    hypothesis, reference = files
    script = (
        "import sys; from nmt.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "evaluate", "--reference", str(reference)]
    command += ["--hypothesis", str(hypothesis), "--fail-under", "bleu=100"]
    process = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert process.returncode == 6, process.stderr
    assert process.stderr.decode().splitlines()[-1] == "False"
    assert b"Traceback" not in process.stderr


def test_the_python_function_takes_one_reference_or_several() -> None:
    other = [line.upper() for line in SENTENCES]
    (bleu, chrf) = evaluate(SENTENCES, SENTENCES)
    assert isinstance(bleu, Score)
    assert (bleu.metric, chrf.metric) == ("bleu", "chrf")
    assert bleu.value == pytest.approx(100)
    (several,) = evaluate(SENTENCES, [other, SENTENCES], ["ter"], resamples=10)
    assert several.value == 0
    assert several.confidence is not None
    with pytest.raises(TypeError, match="lists of lines"):
        evaluate("one line", ["one line"])


def test_an_ensemble_is_named_by_all_of_its_models() -> None:
    together = Ensemble(others=(Path("runs/b"), Path("runs/c")))
    assert ModelUse(folder=Path("runs/a")).name == "runs/a"
    both = ModelUse(folder=Path("runs/a"), loading={"ensemble": together})
    assert both.name == "runs/a + runs/b + runs/c"


def test_a_reference_in_another_language_is_named(tmp_path: Path) -> None:
    german, english = "Das ist der Hund und die Katze.", "This is the dog and the cat."
    left, right = (write(tmp_path / f"{n}.txt", [x] * 20) for n, x in enumerate((german, english)))
    question = "0.txt looks like de and the reference like en: do they belong together?"
    assert question in invoke(left, right).stderr
    assert "looks like" not in invoke(left, left).stderr
