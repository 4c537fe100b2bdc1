"""The page of a run: right numbers at the axes, harmless texts, bounded size, never in the way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.training.html_report import HtmlReport, render_report
from nmt.training.report import Event, JsonLines
from tests.training.small import full_disk, update_event, validation_event

NAN = math.nan
SAMPLE = ("<script>alert('x')</script> & \"mehr\"", "שלום עולם", "</dd></html>\x1b\u202e")


def update(step: int, **values: float) -> dict[str, Any]:
    line = {"kind": "update", "step": step, "epoch": step // 100, "loss": 3.25}
    line |= {"learning_rate": 5e-4, "gradient_norm": 0.75, "target_tokens_per_second": 4000.0}
    return line | {"padding_waste": 0.02, "seconds": 90.0} | values


def validation(step: int, **values: Any) -> dict[str, Any]:
    line = {"kind": "validation", "step": step, "epoch": step // 100, "loss": 2.0}
    line |= {"objective": 2.0, "perplexity": 7.389, "bleu": 21.5, "chrf": 48.0, "seconds": 30.0}
    return line | {"samples": [SAMPLE]} | values


EVENTS = [
    update(100, loss=8.0),
    update(200, loss=4.5),
    validation(200, bleu=30.25),
    update(300, loss=3.5),
    validation(300, bleu=29.0, perplexity=6.5),
]


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


def test_the_page_tells_the_state_of_the_run() -> None:
    root = parsed(render_report("wmt & co", EVENTS, "seed: 1\n"))
    state = next(classes(root, "dl", "state"))

    assert texts(root, ".//h1") == ["wmt & co"]
    assert texts(root, "./head/title") == ["wmt & co"]
    assert dict(zip(texts(state, ".//dt"), texts(state, ".//dd"), strict=True)) == {
        "Step": "300",
        "Epoch": "3",
        "Time": "6 min",  # 3 x 90 + 2 x 30 seconds
        "Average speed": "4,000 target tokens/s",
        "Best BLEU": "30.25 at step 200",
        "Lowest perplexity": "6.50 at step 300",
    }
    assert texts(root, ".//pre") == ["seed: 1"]


STARTS = [
    {"kind": "start", "step": 0, "device": "cpu", "metric": "bleu"},
    {"kind": "start", "step": 200, "device": "cuda:0", "precision": "bfloat16", "metric": "chrf"}
    | {"parameters": 1_234_567, "pairs": 29_000, "dropped": {"too long": 1200, "empty": 3}}
    | {"schedule": "cosine: 500 updates of warm-up to 0.001"},
]


def test_the_page_tells_what_trains_on_what_and_what_tests_found() -> None:
    scores = {"kind": "evaluation", "test": "flores", "checkpoint": "best"}
    events = [*EVENTS, *STARTS, scores | {"scores": {"bleu": 1.0}}]
    events += [scores | {"scores": {"bleu": 20.125, "chrf": 50.0}}]  # the later one counts
    root = parsed(render_report("run", events))
    about = next(classes(root, "dl", "about"))

    assert dict(zip(texts(about, ".//dt"), texts(about, ".//dd"), strict=True)) == {
        "Schedule": "cosine: 500 updates of warm-up to 0.001",
        "Device": "cuda:0",
        "Precision": "bfloat16",
        "Parameters": "1,234,567",
        "Pairs": "29,000",
        "Dropped": "1,200 too long, 3 empty",
        "Resumed at step": "200",
        "Test: flores": "BLEU 20.12, chrF 50.00 checkpoint best",
    }
    for figure in figures(render_report("run", events)).values():
        marks = classes(figure, "path", "mark")
        assert [texts(each, "title") for each in marks] == [["resumed at step 200"]]


@pytest.mark.parametrize(
    ("metric", "fact", "best"),
    [
        ("chrf", ("Best chrF", "60.00 at step 300"), "300"),
        ("ter", ("Best TER", "50.00 at step 200"), "200"),  # errors: lower is better
        ("loss", ("Lowest perplexity", "6.50 at step 300"), "300"),
    ],
)
def test_the_best_validation_is_that_of_the_metric_of_the_run(
    metric: str, fact: tuple[str, str], best: str
) -> None:
    events = [validation(200, chrf=50.0, ter=50.0)]
    events += [validation(300, chrf=60.0, ter=60.0, perplexity=6.5)]
    root = parsed(render_report("run", [*events, {"kind": "start", "step": 0, "metric": metric}]))
    state = next(classes(root, "dl", "state"))

    assert fact in list(zip(texts(state, ".//dt"), texts(state, ".//dd"), strict=True))
    assert texts(next(classes(root, "tr", "best")), "./th") == [best]
    assert f"Bold: best {fact[0].split()[1]}." in texts(root, ".//section/p")[-1]


def test_charts_have_ticks_and_tell_the_value_of_each_point() -> None:
    found = figures(render_report("run", EVENTS))

    assert list(found) == ["Loss", "Translation quality", "Learning rate", "Speed", "Gradient norm"]
    ticks = texts(found["Loss"], ".//text")
    assert ticks == ["2", "4", "6", "8", "0", "50", "100", "150", "200", "250", "300", "step"]
    assert texts(found["Loss"], ".//title") == [
        "step 100, training (smoothed objective): 8",
        "step 200, training (smoothed objective): 4.5",
        "step 300, training (smoothed objective): 3.5",
        "step 200, validation (the same objective): 2",
        "step 300, validation (the same objective): 2",
    ]
    assert texts(found["Translation quality"], ".//title")[:2] == [
        "step 200, BLEU: 30.25",
        "step 300, BLEU: 29",
    ]
    assert texts(found["Speed"], ".//b") == ["4,000"]
    assert texts(found["Learning rate"], ".//title")[0] == "step 100: 0.0005"


def test_sentences_are_text_whatever_they_contain() -> None:
    page = render_report("<b>", EVENTS, "x: </pre><img src=x>")
    root = parsed(page)
    tags = {element.tag for element in root.iter()}

    assert not tags & {"script", "img"}
    assert texts(root, ".//dd[@dir='auto']") == [*SAMPLE[:2], "</dd></html>\\x1b\\u202e"]
    assert texts(root, ".//h1") == ["<b>"]
    assert texts(root, ".//pre") == ["x: </pre><img src=x>"]


def test_the_page_needs_nothing_but_itself() -> None:
    page = render_report("run", EVENTS)
    attributes = {name for element in parsed(page).iter() for name in element.attrib}

    assert not attributes & {"src", "href", "action", "data", "srcset", "style", "onload"}
    assert "url(" not in page
    assert "@import" not in page
    assert page.count("http") == 2  # the name space, and "http-equiv" of the policy
    assert "default-src 'none'" in page


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, None, "x", 10**400])
def test_a_value_that_is_no_number_leaves_a_gap(value: Any) -> None:
    events = [update(1), update(2), update(3, loss=value), update(4), update(5)]
    events += [validation(5, perplexity=value, bleu=value)]
    found = figures(render_report("run", events))["Loss"]
    curve = found.find(".//g/path")

    assert curve is not None
    assert curve.get("d", "").count("M") == 2
    assert "3" not in [title.split()[1].strip(",") for title in texts(found, ".//title")]


@given(
    lines=st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["update", "validation", "start", "evaluation", "x"])},
            optional={
                key: st.floats() | st.integers() | st.none() | st.text()
                for key in ("step", "epoch", "loss", "bleu", "perplexity", "gradient_norm")
            }
            | {"samples": st.lists(st.lists(st.text(), max_size=3))}
            | {"sample_chrf": st.lists(st.floats() | st.text())}
            | dict.fromkeys(
                ("metric", "dropped", "scores"),
                st.text() | st.none() | st.dictionaries(st.text(), st.integers() | st.text()),
            ),
        )
    )
)
def test_no_line_makes_the_page_fail(lines: list[dict[str, Any]]) -> None:
    parsed(render_report("run", lines, "text"))


def test_a_long_run_makes_a_page_of_bounded_size() -> None:
    events = [update(step, loss=3 + math.sin(step)) for step in range(1, 20_001)]
    page = render_report("run", events)
    steps = [title.partition(", t")[0] for title in texts(figures(page)["Loss"], ".//title")]

    assert len(page) < 400_000
    assert len(steps) <= 400
    assert (steps[0], steps[-1]) == ("step 1", "step 20,000")


def table_steps(path: Path) -> list[str]:
    return texts(parsed(path.read_text(encoding="utf-8")), ".//tbody/tr/th")


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
    page.report(Event(20, "done"))
    assert table_steps(place) == ["20", "10"]
    assert "größer" in place.read_text(encoding="utf-8")

    place.unlink()
    page.close()
    assert table_steps(place) == ["20", "10"]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "report.html",
    ]


def test_a_full_disk_leaves_the_page_before_and_stops_nothing(tmp_path: Path) -> None:
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
