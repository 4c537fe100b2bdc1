"""Events in metrics.jsonl, log.txt, the console and report.html."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.checkpoint.files import ValidationScore
from nmt.data.loader import Position
from nmt.files.atomic import run_lock
from nmt.report.page import Chart
from nmt.training import events as run_events
from nmt.training.checkpoints import History, Progress
from nmt.training.events import Console, JsonLines, Reporter, ReporterList, RunLog, TrainingEvent
from nmt.training.report import HtmlReport, RunRecord, run_charts
from nmt.training.report import render_report as render
from nmt.training.update import UpdateStats
from nmt.training.validation import Scores, combine
from tests.training.small import full_disk, update_event, validation_event
from tests.training.test_plan import PLAN

EVENTS = [
    TrainingEvent(0, "training"),
    update_event(10),
    TrainingEvent(10, "saved step-00000010 (0.10 s)", "saved"),
    update_event(20),
    validation_event(20),
]


def give(reporter: Reporter, *events: TrainingEvent) -> None:
    for event in events:
        reporter.report(event)
    reporter.close()


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_metrics_are_one_json_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reporter = JsonLines(path, 0, 0)
    for number, event in enumerate(EVENTS):
        reporter.report(event)
        assert len(read(path)) == [0, 1, 1, 2, 3][number]  # written at once, updates and scores
    reporter.close()
    lines = read(path)
    found = [(line["kind"], line["step"]) for line in lines]
    assert found == [("update", 10), ("update", 20), ("validation", 20)]
    assert (lines[0]["loss"], lines[2]["bleu"]) == (3.25, 21.5)
    assert lines[2]["samples"] == [["ein *Hund*", "a <b>dög</b>\u2028", "a dog"]]


def test_a_file_name_that_is_not_utf_8_is_recorded(tmp_path: Path) -> None:
    command = "nmt train \udce9.yaml"  # the byte E9 of Latin-1
    event = TrainingEvent(0, command, "start", {"command": command})
    reporter = JsonLines(tmp_path / "starts.jsonl", 0, 0, kinds=("start",))
    with RunLog() as log:
        for each in (reporter, log.open(tmp_path / "log.txt")):
            each.report(event)
    reporter.close()
    assert read(tmp_path / "starts.jsonl")[0]["command"] == "nmt train ?.yaml"
    assert (tmp_path / "log.txt").read_text().endswith("nmt train ?.yaml\n")


@given(saved=st.integers(0, 30), cut=st.integers(0, 400), last=st.integers(0, 30))
def test_the_file_of_a_resumed_run_equals_that_of_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, saved: int, cut: int, last: int
) -> None:
    """FAULT 1: the run reached ``last``, was killed in the middle of a line, went on at ``saved``.

    Lines up to the checkpoint are on the disk, for each is flushed before the next update.
    """
    saved = min(saved, last)
    folder = tmp_path_factory.mktemp("metrics")
    whole, resumed = folder / "whole.jsonl", folder / "resumed.jsonl"

    def run(path: Path, first: int, end: int) -> None:
        reporter = JsonLines(path, first, first)
        for step in range(first + 1, end + 1):
            reporter.report(update_event(step))
            if step % 3 == 0:
                reporter.report(validation_event(step))
        reporter.close()

    run(whole, 0, 30)
    run(resumed, 0, last)
    lines = resumed.read_bytes().splitlines(keepends=True)
    keep = sum(len(line) for line in lines if json.loads(line)["step"] <= saved)
    with resumed.open("r+b") as file:
        file.truncate(max(keep, resumed.stat().st_size - cut))
    run(resumed, saved, 30)
    assert resumed.read_bytes() == whole.read_bytes()
    assert not [*folder.glob(".*.tmp-*")]


def test_each_line_of_earlier_starts_is_read_and_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are kept are passed on at once, and never read, parsed or copied again."""
    parsed, num_read = list[bytes](), 0

    def parse(line: bytes) -> Any:
        parsed.append(line)
        return json.loads(line)

    def reading() -> Iterator[bytes]:
        nonlocal num_read
        for line in lines:
            num_read += 1
            yield line

    monkeypatch.setattr(run_events, "parse_json", parse)
    lines = [json.dumps({"kind": "update", "step": step}).encode() for step in range(1, 101)]
    kept = run_events.lines_of_checkpoint(reading(), {"update": 60})
    for number in range(60):
        assert next(kept) == lines[number] + b"\n"
        assert num_read == len(parsed) == number + 1
    assert [*kept] == []
    assert (num_read, parsed) == (100, lines)
    parsed.clear()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    JsonLines(path, 60, 60).close()
    assert (parsed, len(read(path))) == ([*lines, b""], 60)


def test_the_log_has_times_all_events_and_the_warnings_of_all_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.struct_time((2031, 2, 3, 16, 5, 9, 0, 34, 0))
    monkeypatch.setattr(
        run_events, "time", SimpleNamespace(strftime=lambda f: time.strftime(f, now))
    )
    for _ in range(2):  # a resumed run appends to it
        with RunLog() as log:
            logging.getLogger("nmt.checkpoint").warning("early %d", 1)
            log.open(tmp_path / "log.txt")
            console = Console(0, None, lambda: 0)
            for event in EVENTS:
                console.report(event)  # logs, and that is not written twice
                log.report(event)
            logging.getLogger("nmt.data").warning("late")
    logging.getLogger("nmt.data").warning("of no run")
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert {line[:21] for line in lines} == {"2031-02-03 16:05:09  "}
    told = ["early 1", *(event.text for event in EVENTS), "late"]
    assert [line[21:] for line in lines] == 2 * told


@pytest.mark.parametrize("is_terminal", [True, False])
def test_on_a_terminal_a_bar_shows_step_loss_score_and_speed_elsewhere_lines_are_logged(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    terminal, warning = io.StringIO(), TrainingEvent(20, "update skipped", level=logging.WARNING)
    monkeypatch.setattr(terminal, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    console, events = Console(10, 40, lambda: 30), [*EVENTS[2:], warning, update_event(30)]
    for event in events:
        console.report(event)
    console.close()
    last = re.split(r"[\r\n]+", terminal.getvalue().rstrip())[-1]
    assert ("30/40" in last) == is_terminal
    assert ("loss 3.250, BLEU 21.50, 4,000 tok/s" in last) == is_terminal
    in_bar = ("update", "saved") if is_terminal else ()
    logged = [event for event in events if event.kind not in in_bar]
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (event.level, event.text) for event in logged
    ]


def test_the_last_bar_has_the_score_of_the_last_validation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training ends with a validation, after the last update; one before all updates has no bar."""
    caplog.set_level(logging.INFO)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    console = Console(0, 40, lambda: 40)
    console.report(validation_event(0, Scores(3.0, {"bleu": 1.25})))
    assert "BLEU" not in terminal.getvalue()
    for step, bleu in ((20, 21.5), (40, 33.75)):
        console.report(update_event(step))
        console.report(validation_event(step, Scores(1.0, {"bleu": bleu})))
    console.close()
    last = re.split(r"[\r\n]+", terminal.getvalue().rstrip())[-1]
    assert "loss 3.250, BLEU 33.75, 4,000 tok/s" in last


def test_a_validation_reports_metrics_and_the_bleu_tokenizer() -> None:
    event = validation_event(5, Scores(1.0, {"bleu": 21.5, "chrf": 4.0}, "char"))
    assert "2.72, BLEU 21.50 (tokenizer char), chrF 4.00 (" in event.text
    assert (event.values["bleu"], event.values["bleu_tokenizer"]) == (21.5, "char")
    event = validation_event(5, Scores(460.6))  # of no text
    assert "perplexity 1.09e+200 (" in event.text
    assert (event.values["bleu"], event.values["bleu_tokenizer"]) == (None, None)


def test_several_sets_are_combined_by_their_mean_or_minimum_and_reported_one_by_one(
    tmp_path: Path,
) -> None:
    """Perplexity 7.389 = exp(2). The minimum is the worst score: the largest loss and TER."""
    a = Scores(1.0, {"bleu": 30.0, "ter": 50.0}, "13a", alarms=1, objective=1.5)
    b = Scores(3.0, {"bleu": 20.0, "ter": 70.0}, "zh", alarms=2, objective=2.5)
    sets = {"a": a, "b": b, "old": Scores(9.0, {"bleu": 90.0, "ter": 5.0})}
    mean, least = (combine(sets, ["a", "b"], how) for how in ("mean", "minimum"))
    assert [mean.value(x) for x in ("loss", "bleu", "ter")] == [-2.0, 25.0, -60.0]
    assert [least.value(x) for x in ("loss", "bleu", "ter")] == [-3.0, 20.0, -70.0]
    assert (mean.objective, least.objective, mean.alarms) == (2.0, 2.5, 3)
    event = mean.event(5, epoch=1, seconds=2.0)
    assert event.text == (
        "validation at step 5: mean: perplexity 7.39, BLEU 25.00, TER 60.00; "
        "a: perplexity 2.72, BLEU 30.00, TER 50.00; "
        "b: perplexity 20.09, BLEU 20.00 (tokenizer zh), TER 70.00; "
        "old: perplexity 8103.08, BLEU 90.00, TER 5.00 (2.0 s)"
    )
    failed = sets | {"b": replace(b, text={**b.text, "bleu": math.nan})}
    assert math.isnan(combine(failed, ["a", "b"], "minimum").value("bleu"))
    reporter = JsonLines(tmp_path / "metrics.jsonl", 0, 0)
    give(reporter, event, combine(failed, ["b"], "mean").event(6, epoch=1, seconds=2.0))
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["bleu"], first["sets"]["b"]["bleu"]) == (25, 20)
    assert second["bleu"] is second["sets"]["b"]["bleu"] is None
    assert combine({"a": a}, ["a"], "mean") == a
    assert "sets" not in combine({"a": a}, ["a"], "mean").event(5, epoch=1, seconds=2.0).values


def test_lines_wait_in_memory_while_the_disk_is_full(tmp_path: Path) -> None:
    """FAULT 8: reporting never stops a training that may go on."""
    path = tmp_path / "metrics.jsonl"
    reporter = JsonLines(path, 0, 0)
    reporter.report(update_event(1))
    with full_disk(path.stat().st_size + 20):
        for step in (2, 3):
            reporter.report(update_event(step))
        assert path.read_bytes().count(b"\n") == 1
    give(reporter, update_event(4))
    assert [line["step"] for line in read(path)] == [1, 2, 3, 4]


SAMPLE = ("<script>alert('x')</script> & \"mehr\"", "שלום עולם", "</dd></html>\x1b\u202e")


def update(step: int, **values: float | None) -> dict[str, Any]:
    line = {"kind": "update", "step": step, "epoch": step // 100, "loss": 3.25}
    line |= {"learning_rate": 5e-4, "gradient_norm": 0.75, "target_tokens_per_second": 4000.0}
    return line | {"padding_waste": 0.02, "seconds": 90.0} | values


def validation(step: int, **values: Any) -> dict[str, Any]:
    line = {"kind": "validation", "step": step, "epoch": step // 100, "loss": 2.0}
    line |= {"objective": 2.0, "perplexity": 7.389, "bleu": 21.5, "chrf": 48.0, "seconds": 30.0}
    return line | {"samples": [SAMPLE], "sample_chrf": [48.25]} | values


PAGE_EVENTS = [
    update(100, loss=8.0),
    update(200, loss=4.5),
    validation(200, bleu=30.25),
    update(300, loss=3.5),
    validation(300, bleu=29.0, perplexity=6.5),
]


def render_report(title: str, lines: list[dict[str, Any]], *texts: str) -> str:
    return render(title, RunRecord.of(lines), *texts)


def parsed(page: str) -> ElementTree.Element:
    """Parse strictly: an element left open or a character not escaped is an error."""
    root = ElementTree.fromstring(page)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def texts(root: ElementTree.Element, path: str) -> list[str]:
    return ["".join(each.itertext()).strip() for each in root.iterfind(path)]


def figures(page: str) -> dict[str, ElementTree.Element]:
    root = parsed(page)
    return {texts(each, ".//h3")[0]: each for each in root.iter("figure")}


def classes(root: ElementTree.Element, tag: str, name: str) -> Iterator[ElementTree.Element]:
    return (each for each in root.iter(tag) if name in each.get("class", "").split())


def facts(root: ElementTree.Element, name: str) -> dict[str, str]:
    shown = next(classes(root, "dl", name))
    return dict(zip(texts(shown, ".//dt"), texts(shown, ".//dd"), strict=True))


def test_the_page_shows_state_model_and_test_scores_of_the_run() -> None:
    start = {"kind": "start", "step": 200, "device": "cuda:0", "metric": "bleu"}
    start |= {"parameters": 1_234_567, "dropped": {"too long": 1200, "empty": 3}}
    scores = {"kind": "evaluation", "test": "flores", "checkpoint": "best"}
    events = [*PAGE_EVENTS, {"kind": "start", "step": 0, "device": "cpu"}, start]
    events += [scores | {"scores": given} for given in ({"bleu": 1.0}, {"bleu": 20.125})]
    page = render_report("<b>", events, "x: </pre><img src=x>")
    root = parsed(page)
    assert not {element.tag for element in root.iter()} & {"img", "b:img"}
    assert len(texts(root, ".//script")) == 1
    shown = ["best (chrF 48.2)", *SAMPLE[:2], "</dd></html>\\x1b\\u202e"]
    assert texts(root, ".//dd[@dir='auto']") == shown
    assert texts(root, ".//h1") == texts(root, "./head/title") == ["<b>"]
    assert texts(root, ".//pre") == ["x: </pre><img src=x>"]
    assert list(facts(root, "state"))[:2] == ["Test set flores", "Best BLEU"]  # the result first
    assert facts(root, "state") == {
        "Test set flores": "BLEU 20.12 checkpoint best",  # the later one counts
        "Step": "300",
        "Epoch": "3",
        "Time": "6 min",  # 3 x 90 + 2 x 30 seconds
        "Average speed": "4,000 target tokens/s",
        "Best BLEU": "30.25 validation at step 200",
        "Lowest perplexity": "6.50 validation at step 300",
    }
    assert facts(root, "about") == {
        "Device": "cuda:0",
        "Parameters": "1,234,567",
        "Dropped pairs, by reason": "too long: 1,200, empty: 3",
        "Resumed at step": "200",
    }
    for figure in figures(page).values():
        for drawn in classes(figure, "svg", "chart"):
            marks = classes(drawn, "path", "mark")
            assert [texts(each, "title") for each in marks] == [["resumed at step 200"]]
    # It needs nothing but itself.
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not attributes & {"src", "href", "action", "data", "srcset", "style", "onload"}
    assert not any(each in page for each in ("url(", "@import"))
    markup = page.partition("<script>")[0]
    assert markup.count("http") == 2  # the name space, and "http-equiv" of the policy
    assert "default-src 'none'" in page


@pytest.mark.parametrize(("metric", "fact", "best"), [
    ("chrf", ("Best chrF", "60.00 validation at step 300"), "300"),
    ("ter", ("Best TER", "50.00 validation at step 200"), "200"),  # errors: lower is better
    ("loss", ("Lowest perplexity", "6.50 validation at step 300"), "300"),
])  # fmt: skip
def test_the_best_validation_is_that_of_the_metric_of_the_run(
    metric: str, fact: tuple[str, str], best: str
) -> None:
    events = [validation(200, chrf=50.0, ter=50.0)]
    events += [validation(300, chrf=60.0, ter=60.0, perplexity=6.5)]
    root = parsed(render_report("run", [*events, {"kind": "start", "step": 0, "metric": metric}]))
    assert fact in facts(root, "state").items()
    assert texts(next(classes(root, "tr", "best")), "./th") == [best]
    assert f"Bold: best {fact[0].split()[1]}." in texts(root, ".//section/p")[-1]


def test_of_equal_scores_the_lowest_perplexity_is_the_best() -> None:
    events = [validation(100, bleu=5.0), validation(200, bleu=5.0, perplexity=6.5)]
    events.append(validation(300, bleu=5.0, perplexity=7.5))
    root = parsed(render_report("run", events))
    assert facts(root, "state")["Best BLEU"] == "5.00 validation at step 200"


@pytest.mark.parametrize("names", [("BLEU", "chrF"), ("chrF", "BLEU")])
def test_columns_and_curves_have_the_order_of_the_validations(names: tuple[str, str]) -> None:
    scores = {name.lower(): 30.0 for name in names}
    others = {key: x for key, x in validation(200).items() if key not in scores}
    page = render_report("a", [update(100, loss=3.0), others | scores])
    heads = texts(parsed(page), ".//thead//th")
    assert [name for name in heads if name in names] == [*names]
    assert [*points(figures(page)["Translation quality"])] == [*names]


def test_each_validation_set_has_its_curve_and_its_change_since_the_first_validation() -> None:
    """The old domain beside the new one: forgetting is seen. Step 0 is not a result of the run."""

    def line(step: int, new: float, old: float) -> dict[str, Any]:
        scores = {"new": validation(step, bleu=new), "old": validation(step, bleu=old)}
        return validation(step, bleu=new, samples=[], sets=scores)

    events = [line(0, 31, 40.5), line(100, 20.0, 38.0), line(200, 30.0, 30.25), line(300, 25, 28)]
    facts_of_sets = {
        name: {"direction": "de-en", "pairs": 1200, "is_choosing": name == "new"}
        for name in ("new", "old")
    }
    start = {"kind": "start", "step": 0, "combination": None, "sets": facts_of_sets}
    page = render_report("run", [*events, update(300), start])
    root, found = parsed(page), figures(page)
    assert facts(root, "state")["Best BLEU"] == "30.00 validation at step 200"
    assert points(found["BLEU"]) == {
        "new": ["0 31", "100 20", "200 30", "300 25"],
        "old": ["0 40.5", "100 38", "200 30.25", "300 28"],
    }
    assert list(points(found["Loss"])) == ["new", "old", "training"]
    rows = [texts(row, "./*") for row in root.iter("tr")]
    sets = [row for row in rows if row[0] in ("new", "old")]
    both = ["de-en", "1,200"]
    assert [row[:4] for row in sets] == [["new", *both, "yes"], ["old", *both, "no"]]
    assert [row[5] for row in sets] == [
        "31.00\xa0→\xa030.00 (-1.00)",
        "40.50\xa0→\xa030.25 (-10.25)",
    ]
    validations = {row[0]: row[-2:] for row in rows}
    assert (validations["200"], validations["0"]) == (["30.00", "30.25"], ["31.00", "40.50"])
    assert texts(root, ".//section/h3") == ["new", "old"]  # samples
    several = [*events, start | {"combination": "minimum"}]
    root = parsed(render_report("run", several))
    assert list(points(figures(render_report("run", several))["chrF"])) == ["minimum", "new", "old"]
    assert "Best minimum BLEU" in facts(root, "state")


def points(figure: ElementTree.Element, kind: str = "linear") -> dict[str, list[str]]:
    """What the cross hair shows: step and value of each point, by the name of its curve."""
    (drawn,) = classes(figure, "svg", kind)
    paths = [path for path in drawn.iter("path") if path.get("data-points")]
    if not paths:  # the points are those of the other axis
        return points(figure)
    for path in paths:  # the script finds the place of each value in the path
        count = len(re.findall(r"[-.\de]+,[-.\de]+", path.get("d", "")))
        assert count == path.get("data-points", "").count(";") + 1
    return {path.get("data-name", ""): path.get("data-points", "").split(";") for path in paths}


def test_charts_tell_the_value_of_each_point() -> None:
    found = figures(render_report("run", PAGE_EVENTS))
    assert list(found) == ["Loss", "Translation quality", "Learning rate", "Speed", "Gradient norm"]
    loss = {"training": ["100 8", "200 4.5", "300 3.5"], "validation": ["200 2", "300 2"]}
    assert points(found["Loss"]) == points(found["Loss"], "log") == loss
    assert points(found["Translation quality"])["BLEU"] == ["200 30.25", "300 29"]
    values = {"learning_rate": 0.5, "target_tokens_per_second": 3000.0, "gradient_norm": 1.25}
    doubled = {key: 2 * value for key, value in values.items()}
    found = figures(render_report("run", [update(4, **values), update(8, **doubled)]))
    assert points(found["Learning rate"]) == {"": ["4 0.5", "8 1"]}
    assert points(found["Speed"]) == {"": ["4 3,000", "8 6,000"]}
    assert points(found["Gradient norm"]) == {"": ["4 1.25", "8 2.5"]}
    # A long run makes a page of bounded size.
    page = render_report("run", [update(step, loss=3 + step % 7) for step in range(1, 20_001)])
    assert len(page) < 150_000
    assert len(points(figures(page)["Loss"])["training"]) <= 400


def test_the_legend_names_label_smoothing_only_if_there_is_some() -> None:
    for smoothing, unit in ((0.1, ", label smoothing 0.1"), (0.0, ""), (None, "")):
        start = {"kind": "start", "step": 0, "label_smoothing": smoothing}
        found = figures(render_report("run", [*PAGE_EVENTS, start]))["Loss"]
        assert texts(found, "./figcaption/span") == [f"nats per target token{unit}"]


def test_axes_end_at_the_limits_of_their_measure_and_at_the_last_step() -> None:
    perfect = [validation(step, bleu=100.0, chrf=100.0) for step in (190, 1900)]
    found = figures(render_report("run", perfect))["Translation quality"]
    (drawn,) = classes(found, "svg", "chart")  # 100 is the highest score: no logarithmic axis
    labels = texts(drawn, ".//text")
    assert labels[:5] == ["90", "95", "100", "0", "500"]
    assert labels[-2:] == ["1,900", "updates"]


def test_pages_of_several_runs_have_a_curve_for_each_run(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("a", "b", "no run")}
    for number, folder in enumerate(folders.values()):
        folder.mkdir()
        lines = [update(100, loss=3.0 + number), validation(200 + number)] * (number < 2)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text)

    def charts_of(*names: str) -> list[Chart]:
        return run_charts({name: RunRecord.read(folders[name]) for name in names})

    charts = {chart.title: chart for chart in charts_of(*folders)}
    assert [*charts] == [
        "Loss, training", "Loss, validation", "Translation quality, BLEU",
        "Translation quality, chrF", "Learning rate", "Speed", "Gradient norm",
    ]  # fmt: skip
    curves = {curve.label: curve.points for curve in charts["Loss, training"].curves}
    assert curves == {"a": [(100, 3.0)], "b": [(100, 4.0)]}
    with (folders["b"] / "metrics.jsonl").open("a") as file:  # which only "b" has
        file.write(json.dumps(validation(201, ter=50.0)) + "\n")
    (ter,) = (chart.curves for chart in charts_of(*folders) if chart.title == "TER")
    assert [(curve.label, list(curve.points)) for curve in ter] == [("a", []), ("b", [(201, 50.0)])]
    assert charts["Speed"].end == 201
    assert [chart.title for chart in charts_of("a")][:2] == [
        "Loss", "Translation quality"
    ]  # fmt: skip


def test_the_clock_sums_tokens_and_minutes_of_updates_and_of_earlier_validations() -> None:
    """10 tokens/s for 60 s are 600 tokens, unless the line has their number."""
    lines = [
        update(100, seconds=60.0, target_tokens_per_second=10.0),
        validation(100, seconds=30.0),
        update(200, seconds=60.0, target_tokens=500),
        update(300, seconds=30.0, target_tokens_per_second=2.0),
    ]
    expected = "0 0 0;100 600 1;200 1100 2.5;300 1160 3"
    assert RunRecord.of(lines).clock == RunRecord.of(lines[::-1]).clock == expected
    unknown = update(400, seconds=None, target_tokens=40)
    assert RunRecord.of([*lines, unknown]).clock == f"{expected};400 1200 nan"
    assert RunRecord.of(lines[1:2]).clock == "0 0 0"
    moments = RunRecord.of([update(step) for step in range(1, 10_001)]).clock.split(";")
    assert len(moments) <= 101
    assert moments[-1] == f"10000 {10_000 * 90 * 4000} 1.5e+04"


STARTED = {"kind": "start", "step": 0, "date": "2031-02-03 16:05:09+0000", "host": "h1"}
RESUMED = STARTED | {"step": 20, "date": "2031-02-04 09:00:00+0000", "host": "h2"}


def ended(step: int, reason: str) -> dict[str, Any]:
    return {"kind": "end", "step": step, "reason": reason}


@pytest.mark.parametrize(("lines", "state"), [
    ([], ""),
    ([{"kind": "start", "step": 0}], ""),  # of a version that recorded no dates and no ends
    ([STARTED], "failed or killed: no end is recorded"),
    ([STARTED, ended(20, "signal")], "stopped (Ctrl-C or a signal)"),
    ([STARTED, ended(20, "signal"), RESUMED], "failed or killed: no end is recorded"),
    ([STARTED, ended(20, "budget")], "ended: all planned updates are made"),
    ([STARTED, ended(20, "patience")], "ended: no better validation (patience)"),
    ([STARTED, ended(20, "Training <diverged>.")], "failed: Training <diverged>."),
])  # fmt: skip
def test_the_page_says_whether_training_goes_on_and_how_it_ended(
    lines: list[dict[str, Any]], state: str, tmp_path: Path
) -> None:
    """A page loads itself again only while a process holds the lock of the run."""
    (tmp_path / "starts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def page() -> ElementTree.Element:
        return parsed(render("run", RunRecord.read(tmp_path)))

    root = page()
    assert not any(element.get("id") == "refresh" for element in root.iter())
    if lines:
        assert facts(root, "about").get("State", "") == state
    with run_lock(tmp_path):
        root = page()
        is_running = any(element.get("id") == "refresh" for element in root.iter())
        has_ended = bool(lines) and lines[-1]["kind"] == "end"
        assert is_running != has_ended
        if lines:
            assert facts(root, "about")["State"] == (state if has_ended else "running")


def test_the_page_says_where_and_when_each_start_was() -> None:
    shown = facts(parsed(render_report("run", [STARTED, RESUMED])), "about")
    assert shown["Started"] == "2031-02-03 16:05, resumed 2031-02-04 09:00"
    assert (shown["Host"], shown["nmt"]) == ("h1; h2", "not recorded")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_nan_leaves_a_gap_in_the_curve(value: Any) -> None:
    events = [update(1), update(2), update(3, loss=value), update(4), update(5)]
    events += [validation(5, perplexity=value, bleu=value)]
    found = figures(render_report("run", events))["Loss"]
    curve = found.find(".//g/path")
    assert curve is not None
    assert curve.get("d", "").count("M") == 2
    assert "3" not in [point.split()[0] for point in points(found)["training"]]


@given(
    lines=st.lists(
        st.builds(
            lambda make, step, values: make(step, **values),
            st.sampled_from([update, validation]),
            st.integers(0, 10**6),
            st.dictionaries(
                st.sampled_from(["loss", "objective", "bleu", "perplexity", "gradient_norm"]),
                st.floats() | st.none(),
            ),
        )
    )
)
def test_extreme_numbers_do_not_break_the_page(lines: list[dict[str, Any]]) -> None:
    parsed(render_report("run", lines, "text"))


def test_the_page_is_written_at_validations_and_at_the_end(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    (tmp_path / "config.yaml").write_text("name: größer\n", encoding="utf-8")
    lines, page = JsonLines(tmp_path / "metrics.jsonl", 0, 0), HtmlReport(tmp_path, "run")
    for step in (10, 20):
        for event in (update_event(step), validation_event(step)):
            lines.report(event)
            page.report(event)
            assert place.exists() is (step == 20 or event.kind == "validation")
    lines.close()
    place.unlink()
    page.close()
    content = place.read_text(encoding="utf-8")
    assert texts(parsed(content), ".//tbody/tr/th") == ["20", "10"]
    assert "größer" in content
    assert len([*tmp_path.iterdir()]) == 3  # with configuration and metrics


def test_a_reporter_that_reads_files_comes_after_their_writers(tmp_path: Path) -> None:
    page = HtmlReport(tmp_path, "run")
    metrics, starts = (
        JsonLines(tmp_path / f"{name}.jsonl", 0, 0) for name in ("metrics", "starts")
    )
    assert len(ReporterList([metrics, starts, page])) == 3
    with pytest.raises(
        ValueError, match=r"HtmlReport must come after the writers of metrics\.jsonl"
    ):
        ReporterList([metrics, page, starts])
    for reporter in (metrics, starts):
        reporter.close()


def test_on_a_full_disk_the_old_page_stays_and_training_continues(tmp_path: Path) -> None:
    """FAULT 8: reporting never stops a training that may go on."""
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(validation(10))}\n")
    page = HtmlReport(tmp_path, "run")
    page.report(validation_event(10))
    before = (tmp_path / "report.html").read_bytes()
    with full_disk(100):
        page.report(validation_event(20))
        page.close()
    assert (tmp_path / "report.html").read_bytes() == before
    assert not [*tmp_path.glob(".tmp-*")]


def history_of(scores: list[float]) -> History:
    validations = map(ValidationScore, scores)
    return History({10 * number: item for number, item in enumerate(validations, start=1)})


@given(scores=st.lists(st.floats(), max_size=20))
def test_progress_survives_json(scores: list[float]) -> None:
    """FAULT 18."""
    counts: dict[str, Any] = {"step": 7, "total_steps": 70, "loss_sum": 1.5, "plans": [PLAN]}
    progress = Progress(position=Position(1, 3), **counts)
    progress.history = history_of(scores)
    back = Progress.from_dict(json.loads(json.dumps(progress.as_dict())))
    # Compared as text, for NaN is not equal to itself.
    assert repr(back) == repr(progress)


def test_progress_counts_skipped_updates_in_total_and_in_a_row() -> None:
    progress, counts = Progress(), []
    for nats in (1.0, math.nan, math.inf, 2.0, math.nan):
        progress.add_outcome(UpdateStats([], 0.1, 1, 2, 3, torch.tensor([nats, 0, 0.5])))
        counts.append((progress.skipped, progress.skipped_in_a_row))
    assert counts == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1)]
    assert Progress.from_dict(progress.as_dict()).skipped_in_a_row == 1
