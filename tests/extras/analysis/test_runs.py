"""``nmt report``: the page of a run, and the page that compares runs."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nmt.errors import CheckpointError
from nmt.extras.analysis.runs import ReportOptions, report
from nmt.files.atomic import run_lock
from nmt.training.report import record_evaluation
from tests.browser import REQUESTS, WIDER, ask


def write_run(folder: Path, dropout: float, bleu: float) -> Path:
    folder.mkdir()
    update = {"kind": "update", "step": 100, "epoch": 1, "loss": 3.0, "learning_rate": 1e-3}
    update |= {"gradient_norm": 1.0, "target_tokens_per_second": 1500.0, "seconds": 4000.0}
    valid = {"kind": "validation", "step": 100, "epoch": 1, "bleu": bleu, "seconds": 20.0}
    test = {"kind": "evaluation", "test": "flores", "checkpoint": "best", "scores": {"bleu": 9.5}}
    for name, lines in (("metrics", [update, valid]), ("evaluations", [test])):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    model = f"model: {{dropout: {dropout}, num_heads: 4}}\n"
    (folder / "config.yaml").write_text(f"name: {folder.name}\ndata: [<b>]\n{model}")
    return folder


def table(page: Path) -> dict[str, list[str]]:
    """Cells of the rows of all tables by their heads; columns are runs."""
    root = ElementTree.fromstring(page.read_text(encoding="utf-8"))
    rows = (x for x in root.iter() if x.tag.endswith("}tr"))
    cells = [["".join(cell.itertext()).strip() for cell in row] for row in rows]
    return {head: values for head, *values in cells}


def test_several_runs_are_compared_by_results_settings_and_curves(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    made = report(ReportOptions(runs=runs))
    assert made.text == "runs.html"
    best = ["BLEU 20.50 step 100: best BLEU", "BLEU 18.25 step 100: best BLEU"]
    unknown = ["not recorded"] * 2
    assert table(Path("runs.html")) == {
        "": ["a", "b"],
        "updates": ["100"] * 2,
        "time": ["1 h 7 min"] * 2,  # 4,020 seconds
        "target tokens per second": ["1,500"] * 2,
        "best validation": best,
        "test set flores": ["BLEU 9.50 checkpoint best"] * 2,
        **dict.fromkeys(("state", "started", "host", "device", "version", "command"), unknown),
        "model": [],
        "dropout": ["0.1", "0.3"],
    }
    text = Path("runs.html").read_text()
    assert text.count('data-name="b"') >= 5
    assert text.index("<h2>Learning curves</h2>") < text.index("<h2>Results</h2>")
    assert text.index("test set flores") < text.index("best validation")  # the result comes first


def test_runs_with_the_same_name_are_named_by_their_paths(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
    runs = write_run(tmp_path / "x" / "a", 0.1, 20.5), write_run(tmp_path / "y" / "a", 0.1, 18.25)
    report(ReportOptions(runs=(*runs, runs[0])))  # a run is shown once
    assert table(Path("runs.html"))[""] == [str(run) for run in runs]
    assert "The configurations are the same." in Path("runs.html").read_text()


def test_settings_are_grouped_without_folders_and_without_what_is_not_set(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.1, 18.25)
    values = [
        {"bias": True, "betas": [0.9, 0.98], "limit": None, "source": "/x/a.de", "same": None},
        {"bias": False, "betas": [0.9, 0.99], "limit": 3, "source": "y/a.de", "same": None},
    ]
    for run, section in zip(runs, values, strict=True):
        config: dict[str, Any] = {"name": run.name, "run_dir": str(run)}
        config |= {"source_language": run.name}
        config |= {"training": section, "data": {"train": [{"max_pairs": 5, "tag": run.name}]}}
        (run / "config.yaml").write_text(json.dumps(config))
    report(ReportOptions(runs=runs))
    rows = table(Path("runs.html"))
    first = [*rows].index("command") + 1
    assert dict([*rows.items()][first:]) == {
        "languages": [],
        "source_language": ["a", "b"],
        "training": [],
        "bias": ["yes", "no"],
        "betas": ["0.9, 0.98", "0.9, 0.99"],
        "limit": ["", "3"],
        "data": [],
        "train.0.tag": ["a", "b"],
    }
    root = ElementTree.fromstring(Path("runs.html").read_text())
    same = ["".join(x.itertext()) for x in root.iter() if x.tag.endswith("}pre")]
    assert same == ["source: a.de\n", "train.0.max_pairs: 5\n"]


def test_follow_writes_the_page_until_all_runs_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    start = {"kind": "start", "step": 0, "date": "2031-02-03 16:05:09+0000"}
    starts = runs[1] / "starts.jsonl"
    starts.write_text(json.dumps(start) + "\n")
    lock = ExitStack()
    lock.enter_context(run_lock(runs[1]))
    states = []

    def sleep(_: float) -> None:
        """The run ends while the command waits for the third time."""
        states.append(table(Path("runs.html"))["state"][1])
        if len(states) == 2:
            with starts.open("a") as file:
                file.write(json.dumps({"kind": "end", "step": 100, "reason": "patience"}) + "\n")
        if len(states) == 3:
            lock.close()

    monkeypatch.setattr("time.sleep", sleep)
    report(ReportOptions(runs=runs, follow=True))
    ended = "ended: no better validation (patience)"
    assert states == ["running", "running", ended]
    assert table(Path("runs.html"))["state"] == ["not recorded", ended]
    assert 'id="refresh"' not in Path("runs.html").read_text()


@pytest.mark.parametrize(("facts", "speed", "validation", "titles"), [
    ({}, "", "", {}),
    ({"vocabulary": 1}, "different vocabularies",
     "perplexity not comparable: different vocabularies",
     dict.fromkeys(["Loss, training", "Loss, validation", "Speed"], "vocabularies")),
    ({"validation": 1}, "", "not comparable: different validation sentences",
     dict.fromkeys(["Loss, validation", "Translation quality, chrF", "Translation quality, BLEU"],
                   "validation sentences")),
])  # fmt: skip
def test_what_cannot_be_compared_is_named(
    facts: dict[str, Any], speed: str, validation: str, titles: dict[str, str], tmp_path: Path
) -> None:
    """Perplexities need the same vocabulary and text, scores the same text; chrF comes first."""
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    start = {"kind": "start", "step": 0, "beam_size": 1, "vocabulary": 0, "validation": 0}
    scores = {"kind": "validation", "step": 200, "bleu": 30.0, "chrf": 50.0, "perplexity": 5.5}
    for run, changes, references in zip(runs, ({}, facts), "xy", strict=True):
        test: dict[str, Any] = {
            "kind": "evaluation",
            "checkpoint": "best",
            "best_step": 200,
            "scores": {"bleu": 9.5, "chrf": 40.0},
        }
        test |= {"beam_size": 5, "references_sha256": references, "test": "own"}
        lines: dict[str, list[dict[str, Any]]] = {
            "starts": [start | changes],
            "metrics": [scores | {"seconds": 1.0}],
        }
        lines["evaluations"] = [test, test | {"test": "same", "references_sha256": "z"}]
        for name, added in lines.items():
            with (run / f"{name}.jsonl").open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in added)
    report(ReportOptions(runs=runs))
    shown = table(Path("runs.html"))
    remark = f"not comparable: {speed}" if speed else ""
    assert f"target tokens per second{remark}" in shown
    best = "chrF 50.00 BLEU 30.00 perplexity 5.50 step 200: best BLEU, beam size 1"
    assert shown[f"best validation{validation}"][0] == best
    scored = "chrF 40.00 BLEU 9.50 checkpoint best, beam size 5"
    assert shown["test set ownnot comparable: different test sets"][0] == scored
    assert shown["test set same"][0] == scored
    root = ElementTree.fromstring(Path("runs.html").read_text(encoding="utf-8"))
    captions = ["".join(x.itertext()) for x in root.iter() if x.tag.endswith("}figcaption")]
    assert "chrF" in captions[0]
    assert "not comparable" not in captions[0]
    # The set "own" has other references in each run, so no chart compares the runs on it.
    (test_set,) = (caption for caption in captions if caption.startswith("Test set"))
    assert test_set.split()[:4] == ["Test", "set", "same,", "chrF"]
    assert test_set.split()[-4:] == ["a", "40", "b", "40"]
    remarks = {}
    for caption in captions:
        if "not comparable" in caption:
            remark = caption.partition("; not comparable: different ")[2].partition("\n")[0]
            remarks[next(title for title in titles if title in caption)] = remark
    assert remarks == titles


@pytest.mark.parametrize(("other_set", "why"), [
    ("valid.de", "different parts of the validation set (a: 203 sentences, b: 1,014 sentences). "
     "Compare only their scores on a test set. A run with few minutes (training.max_minutes) or "
     "with training.validation.max_sentences validates on a part."),
    ("other.de", "The runs have different validation sets (a: 203 sentences, b: 1,014 sentences). "
     "Compare only their scores on a test set."),
])  # fmt: skip
def test_the_page_says_why_validations_cannot_be_compared(
    other_set: str, why: str, tmp_path: Path
) -> None:
    sources = {"a": "valid.de", "b": other_set}
    for (name, source), sentences in zip(sources.items(), (203, 1014), strict=True):
        run = write_run(tmp_path / name, 0.1, 20.5)
        config = {"name": name, "data": {"valid": {"source": source}}}
        (run / "config.yaml").write_text(json.dumps(config))
        start = {"kind": "start", "step": 0, "validation": name, "validation_sentences": sentences}
        (run / "starts.jsonl").write_text(json.dumps(start) + "\n")
    report(ReportOptions(runs=(tmp_path / "a", tmp_path / "b")))
    root = ElementTree.fromstring(Path("runs.html").read_text(encoding="utf-8"))
    text = " ".join("".join(root.itertext()).split())
    assert why in text


def test_the_page_knows_no_reason_for_runs_that_did_not_record_their_validation(
    tmp_path: Path,
) -> None:
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    start = {"kind": "start", "step": 0, "validation": "hash", "validation_sentences": 203}
    (runs[0] / "starts.jsonl").write_text(json.dumps(start) + "\n")
    report(ReportOptions(runs=runs))
    page = Path("runs.html").read_text(encoding="utf-8")
    assert "Not all of these runs have recorded on which sentences they validate (a: 203" in page
    assert "different parts" not in page


def test_a_test_score_is_drawn_at_the_step_of_the_best_checkpoint(tmp_path: Path) -> None:
    """Run a is best at step 100, although it was validated until step 300."""
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    worse = {"kind": "validation", "step": 300, "epoch": 1, "bleu": 19.0, "seconds": 1.0}
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(worse) + "\n")
    for run, chrf in zip(runs, (41.5, 43.25), strict=True):
        for checkpoint in ("best", "step-300"):
            entry = {"test": "news", "checkpoint": checkpoint, "scores": {"chrf": chrf}}
            record_evaluation(run, run.name, entry | {"references_sha256": "same"})
    report(ReportOptions(runs=runs))
    root = ElementTree.fromstring(Path("runs.html").read_text(encoding="utf-8"))
    figures = [x for x in root.iter() if x.tag.endswith("}figure")]
    (figure,) = (x for x in figures if "Test set news, chrF" in "".join(x.itertext()))
    drawn = {x.get("data-name"): x.get("data-points") for x in figure.iter() if x.get("data-name")}
    assert drawn == {"a": "100 41.5", "b": "100 43.25"}


def test_a_test_score_stays_at_its_step_when_training_goes_on_and_improves(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    for run in runs:
        entry = {"test": "news", "checkpoint": "best", "scores": {"chrf": 41.5}}
        record_evaluation(run, run.name, entry | {"references_sha256": "same"})
    better = {"kind": "validation", "step": 300, "bleu": 29.0}
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(better) + "\n")
    report(ReportOptions(runs=runs))
    root = ElementTree.fromstring(Path("runs.html").read_text(encoding="utf-8"))
    figures = [x for x in root.iter() if x.tag.endswith("}figure")]
    (figure,) = (x for x in figures if "Test set news, chrF" in "".join(x.itertext()))
    drawn = {x.get("data-name"): x.get("data-points") for x in figure.iter() if x.get("data-name")}
    assert drawn == {"a": "100 41.5", "b": "100 41.5"}


def test_one_run_has_its_own_page_with_links_to_other_pages_in_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0.1, 20.5)
    (run / "inspect & more.html").write_text("")
    assert report(ReportOptions(runs=(run,))).text == str(run / "report.html")
    root = ElementTree.fromstring((run / "report.html").read_text())
    links = [(x.get("href"), x.text) for x in root.iter() if x.tag.endswith("}a")]
    assert links == [("inspect%20%26%20more.html", "inspect & more.html")]
    assert not (tmp_path / "runs.html").exists()


def test_the_page_of_one_run_can_be_written_elsewhere(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0.1, 20.5)
    assert report(ReportOptions(runs=(run,), output=Path("page.html"))).text == "page.html"
    page = Path("page.html").read_text()
    assert '<h1 dir="auto">a</h1>' in page
    assert "<summary>Configuration</summary>" in page  # as in the page of the run folder
    assert not (run / "report.html").exists()


def test_a_folder_that_is_not_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a run folder"):
        report(ReportOptions(runs=(write_run(tmp_path / "a", 0.1, 1.0), tmp_path)))


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_values_at_the_cross_hair(
    browser: str, width: int, tmp_path: Path
) -> None:
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    report(ReportOptions(runs=runs))
    press = """(() => {
      const chart = Array.from(document.querySelectorAll("svg.linear"))
        .find((x) => x.getAttribute("aria-label").startsWith("Translation quality, BLEU"));
      chart.dispatchEvent(new KeyboardEvent("keydown", { key: "Home", bubbles: true }));
      return document.querySelector(".tip").textContent;
    })()"""
    hide = """(() => {
      const figure = document.querySelector("figure:has(.linear)");
      document.querySelector("#run1").click();
      const shown = ["1", "0"].map((n) => figure.querySelector(`.linear [data-curve="${n}"]`));
      return shown.map((x) => getComputedStyle(x).display.replace("inline", "block")).join(" ");
    })()"""
    found, logged = ask(
        browser, Path("runs.html").read_text(), tmp_path, width, press, WIDER, REQUESTS, hide
    )
    assert found == "updates 100a20.5b18.25 0 0 none block"
    assert "CONSOLE" not in logged


def test_a_browser_draws_the_curves_by_tokens_and_minutes_and_hides_a_run_in_all_charts(
    browser: str, tmp_path: Path
) -> None:
    """Run b is twice as fast in updates of half as many tokens. The axis goes from 52 to 506.

    Run a has 1,500 tokens/s x 4,000 s = 6 million tokens in 66.7 minutes, run b 1,500 x 2,000.
    """
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    lines = (runs[1] / "metrics.jsonl").read_text().replace("4000.0", "2000.0")
    (runs[1] / "metrics.jsonl").write_text(lines)
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:  # without tokens and minutes
        file.write(json.dumps({"kind": "validation", "step": 150, "bleu": 22.5, "seconds": 1}))
    report(ReportOptions(runs=runs))

    def chart(title: str, code: str) -> str:
        found = f"""Array.from(document.querySelectorAll("svg.linear"))
          .find((x) => x.getAttribute("aria-label").startsWith("{title}"))"""
        return f"((svg) => {code})({found})"

    def choose(axis: int) -> str:
        return f'(document.querySelector("#axis{axis}").click(), "|")'

    places = """Array.from(svg.querySelectorAll("[data-name]"), (x) => x.getAttribute("d"))
      .map((d) => d.match(/[\\d.]+(?=,)/g).map((x) => Math.round(x)).join("+")).join(" ")"""
    axis = 'Array.from(svg.querySelectorAll(".x text"), (x) => x.textContent).join(" ")'
    hidden = """(document.querySelector("#run0").click(), Array.from(document.querySelectorAll(
      '[data-curve="0"], .key > :first-child')).filter((x) => x.getClientRects().length).length)"""
    asked = []
    for number in range(3):
        asked.append(choose(number))
        asked += [chart("Loss, training", code) for code in (places, axis)]
        asked.append(chart("Translation quality, BLEU", places))
    found, logged = ask(
        browser, Path("runs.html").read_text(), tmp_path, 1280, *asked, choose(0),
        chart("Translation quality, BLEU", places), hidden,
    )  # fmt: skip
    by_updates = "355+506 355"
    assert [part.strip() for part in found.split("|")] == [
        "",
        f"355 355 0 50 100 150 updates {by_updates}",
        "506 279 0 1M 2M 3M 4M 5M 6M target tokens 506 279",
        "506 279 0 20 40 66.7 minutes 506 279",
        f"{by_updates} 0",
    ]
    assert "CONSOLE" not in logged
