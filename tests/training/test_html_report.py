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

from nmt.training.report import HtmlReport, JsonLines, render_report
from tests.training.small import full_disk, update_event, validation_event

SAMPLE = ("<script>alert('x')</script> & \"mehr\"", "שלום עולם", "</dd></html>\x1b\u202e")


def update(step: int, **values: float) -> dict[str, Any]:
    line = {"kind": "update", "step": step, "epoch": step // 100, "loss": 3.25}
    line |= {"learning_rate": 5e-4, "gradient_norm": 0.75, "target_tokens_per_second": 4000.0}
    return line | {"padding_waste": 0.02, "seconds": 90.0} | values


def validation(step: int, **values: Any) -> dict[str, Any]:
    line = {"kind": "validation", "step": step, "epoch": step // 100, "loss": 2.0}
    line |= {"objective": 2.0, "perplexity": 7.389, "bleu": 21.5, "chrf": 48.0, "seconds": 30.0}
    return line | {"samples": [SAMPLE], "sample_chrf": [48.25]} | values


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


def facts(root: ElementTree.Element, name: str) -> dict[str, str]:
    shown = next(classes(root, "dl", name))
    return dict(zip(texts(shown, ".//dt"), texts(shown, ".//dd"), strict=True))


def test_the_page_tells_the_state_of_the_run_what_trains_and_what_tests_found() -> None:
    start = {"kind": "start", "step": 200, "device": "cuda:0", "metric": "bleu"}
    start |= {"parameters": 1_234_567, "dropped": {"too long": 1200, "empty": 3}}
    scores = {"kind": "evaluation", "test": "flores", "checkpoint": "best"}
    events = [*EVENTS, {"kind": "start", "step": 0, "device": "cpu"}, start]
    events += [scores | {"scores": given} for given in ({"bleu": 1.0}, {"bleu": 20.125})]
    page = render_report("<b>", events, "x: </pre><img src=x>")
    root = parsed(page)

    assert not {element.tag for element in root.iter()} & {"script", "img"}
    shown = ["best (chrF 48.2)", *SAMPLE[:2], "</dd></html>\\x1b\\u202e"]
    assert texts(root, ".//dd[@dir='auto']") == shown
    assert texts(root, ".//h1") == texts(root, "./head/title") == ["<b>"]
    assert texts(root, ".//pre") == ["x: </pre><img src=x>"]
    assert facts(root, "state") == {
        "Step": "300",
        "Epoch": "3",
        "Time": "6 min",  # 3 x 90 + 2 x 30 seconds
        "Average speed": "4,000 target tokens/s",
        "Best BLEU": "30.25 at step 200",
        "Lowest perplexity": "6.50 at step 300",
    }
    assert facts(root, "about") == {
        "Device": "cuda:0",
        "Parameters": "1,234,567",
        "Dropped": "1,200 too long, 3 empty",
        "Resumed at step": "200",
        "Test: flores": "BLEU 20.12 checkpoint best",  # the later one counts
    }
    for figure in figures(page).values():
        marks = classes(figure, "path", "mark")
        assert [texts(each, "title") for each in marks] == [["resumed at step 200"]]
    # It needs nothing but itself.
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not attributes & {"src", "href", "action", "data", "srcset", "style", "onload"}
    assert not any(each in page for each in ("url(", "@import"))
    assert page.count("http") == 2  # the name space, and "http-equiv" of the policy
    assert "default-src 'none'" in page


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
    assert fact in facts(root, "state").items()
    assert texts(next(classes(root, "tr", "best")), "./th") == [best]
    assert f"Bold: best {fact[0].split()[1]}." in texts(root, ".//section/p")[-1]


def test_charts_have_ticks_and_tell_the_value_of_each_point() -> None:
    found = figures(render_report("run", EVENTS))
    assert list(found) == ["Loss", "Translation quality", "Learning rate", "Speed", "Gradient norm"]
    ticks = texts(found["Loss"], ".//text")
    assert ticks == ["2", "4", "6", "8", "0", "50", "100", "150", "200", "250", "300", "step"]
    titles = {name: texts(figure, ".//title") for name, figure in found.items()}
    assert titles["Loss"][1] == "step 200, training (smoothed objective): 4.5"
    assert titles["Loss"][3] == "step 200, validation (the same objective): 2"
    assert titles["Translation quality"][0] == "step 200, BLEU: 30.25"
    assert titles["Learning rate"][0] == "step 100: 0.0005"
    assert texts(found["Speed"], ".//b") == ["4,000"]
    # A long run makes a page of bounded size.
    page = render_report("run", [update(step, loss=3 + step % 7) for step in range(1, 20_001)])
    assert len(page) < 400_000
    assert len(texts(figures(page)["Loss"], ".//title")) <= 400


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
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
def test_no_numbers_make_the_page_fail(lines: list[dict[str, Any]]) -> None:
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
