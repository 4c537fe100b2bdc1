"""``nmt report``: the page of a run, and the page that compares runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nmt.errors import CheckpointError
from nmt.extras.analysis.runs import ReportOptions, report
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


def rows(page: Path) -> list[list[str]]:
    root = ElementTree.fromstring(page.read_text(encoding="utf-8"))
    found = (x for x in root.iter() if x.tag.endswith("}tr"))
    return [["".join(cell.itertext()).strip() for cell in row] for row in found]


def test_several_runs_are_compared_by_results_settings_and_curves(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "a", 0.1, 20.5), write_run(tmp_path / "b", 0.3, 18.25)
    made = report(ReportOptions(runs=runs))
    assert made.text == "runs.html"
    found = rows(Path("runs.html"))
    assert [row[:4] for row in found[1:3]] == [
        [str(run), "100", "1 h 7 min", "1,500"]
        for run in runs  # 4,020 seconds
    ]
    assert found[1][4:] == ["BLEU 20.50 at step 100 (best BLEU)", "flores (best): BLEU 9.50"]
    assert found[3:] == [["key", *map(str, runs)], ["model.dropout", "0.1", "0.3"]]
    text = Path("runs.html").read_text()
    assert text.count(f'data-name="{runs[1]}"') >= 5


@pytest.mark.parametrize(("facts", "speed", "validation", "titles"), [
    ({}, "", "", {}),
    ({"vocabulary": 1}, "different vocabularies",
     "perplexity not comparable: different vocabularies",
     dict.fromkeys(["Loss, training", "Loss, validation", "Speed"], "vocabularies")),
    ({"validation": 1}, "", "not comparable: different validation sentences",
     dict.fromkeys(["Loss, training", "Loss, validation", "Translation quality, chrF",
                    "Translation quality, BLEU"], "validation sentences")),
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
    head, row, *_ = rows(Path("runs.html"))
    assert head[3].partition("not comparable: ")[2] == speed
    assert head[4] == "best validation" + validation
    best = "chrF 50.00, BLEU 30.00, perplexity 5.50 at step 200 (best BLEU, beam size 1)"
    assert row[4] == best
    scored = "(best, beam size 5): chrF 40.00, BLEU 9.50"
    own = f"own {scored} not comparable: different test sets"
    assert row[5] == f"flores (best): BLEU 9.50{own}same {scored}"
    root = ElementTree.fromstring(Path("runs.html").read_text(encoding="utf-8"))
    captions = ["".join(x.itertext()) for x in root.iter() if x.tag.endswith("}figcaption")]
    assert "chrF" in captions[0]
    remarks = {}
    for caption in captions:
        if "not comparable" in caption:
            remark = caption.partition("; not comparable: different ")[2].partition("\n")[0]
            remarks[next(title for title in titles if title in caption)] = remark
    assert remarks == titles


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
    assert str(run) in Path("page.html").read_text()
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
      figure.querySelectorAll(".key button")[1].click();
      const shown = ["1", "0"].map((n) => figure.querySelector(`.linear [data-curve="${n}"]`));
      return shown.map((x) => getComputedStyle(x).display.replace("inline", "block")).join(" ");
    })()"""
    found, logged = ask(
        browser, Path("runs.html").read_text(), tmp_path, width, press, WIDER, REQUESTS, hide
    )
    assert found == f"step 100{runs[0]}20.5{runs[1]}18.25 0 0 none block"
    assert "CONSOLE" not in logged
