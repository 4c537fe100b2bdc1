"""The page of an evaluation: well-formed, escaped, and with what was found."""

from __future__ import annotations

import base64
import json
import time
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from nmt.commands.evaluate import evaluate
from nmt.commands.options import EvaluateOptions
from nmt.extras.analysis import page as pages
from nmt.extras.analysis.confidence import confidence_quality
from nmt.extras.analysis.page import as_page, word_differences
from nmt.inference.request import Result
from nmt.metrics.metric import ConfidenceInterval, Score
from nmt.metrics.result import Evaluation, EvaluationReport, ReportSection, System
from nmt.report.page import Chart, Curve
from tests.browser import REQUESTS, WIDER, ask
from tests.commands.test_evaluate import invoke, write
from tests.extras.analysis.conftest import flags

WORDS = st.text("ab <&\u05d0\u202e", max_size=20)


@given(WORDS, WORDS)
def test_differences_cover_the_text_and_equal_texts_have_none(text: str, reference: str) -> None:
    pieces = word_differences(text, [reference])
    for other, missing_kind in ((text, "missing"), (reference, "different")):
        covered = " ".join(piece for piece, kind in pieces if kind != missing_kind)
        assert covered == " ".join(other.split())
    assert any(kind for _, kind in pieces) == (text.split() != reference.split())
    assert not any(kind for _, kind in word_differences(text, [reference, text]))


def section(key: str, *values: Any) -> ReportSection:
    return ReportSection(
        key=key, title=key, rows=[[key, "accuracy"], ["all", "75.0%"]], values=values
    )


def full_page(known: list[Any] | None = None) -> str:
    """All that a page can show: of a run, with a right-to-left source.

    Adds the quality of the confidence to ``known``.
    """
    words = ["\u05d4\u05db\u05dc\u05d1", "\u05e8\u05e5", "\u05de\u05d4\u05e8", "x" * 60]
    source = [" ".join(words[: 1 + row % 4]) for row in range(40)]
    reference = [f"the dog number {row} runs quickly" for row in range(40)]
    lines = [" ".join(line.split()[: 1 + row % 6]) for row, line in enumerate(reference)]
    results = [
        Result(one, two, -1.0, alarms=("short",), confidence=20.0 + 10 * (row % 6))
        for row, (one, two) in enumerate(zip(source, lines, strict=True))
    ]
    scores = (Score(metric="chrf", value=45.678, signature="nrefs:1"),)
    settings: dict[str, Any] = {"engine": "torch", "checkpoint": "best", "beam_size": 5}
    system = System(
        "runs/he-en", lines, settings, results=results, scores=scores, num_in_training=3
    )
    interval = asdict(
        ConfidenceInterval(mean=3.0, half_width=1, low=2.0, high=4.0, resamples=9, seed=1)
    )
    lost = {"system": system.name, "metric": "chrf", "clean": 45.0, "noisy": 42.0}
    noise = lost | {"noise": "typos", "loss": 3.0, "confidence": interval}
    gain = lost | {"noise": "case", "loss": -1.5}
    quality = confidence_quality(system, [reference])
    if known is not None:
        known.append(quality)
    each = Evaluation(
        test="\u05de\u05d1\u05d7\u05df", references=[reference], source=source, systems=(system,),
        sections=(section("robustness", noise, gain), section("confidence", quality)),
    )  # fmt: skip
    report = EvaluationReport(
        evaluations=(each, replace(each, test="other")), sections=(section("contrastive"),)
    )
    curve = Curve("chrF", [(step, step / 2) for step in range(1, 90, 8)], marked=True)
    chart = Chart("Translation quality", "score, 0 to 100", [curve], end=90, size=(520, 280))
    scorer = SimpleNamespace(align=lambda pairs, _: [((0, 0), (0, 1), (1, 2))] * len(pairs))
    model: Any = SimpleNamespace(name=system.name, folder=Path(system.name), tag=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "run_charts", lambda _: [chart])
        patch.setattr(pages, "load_scorer", lambda _: scorer)
        return str(as_page(report, [model]))


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(browser: str, width: int, tmp_path: Path) -> None:
    """No message, no request, no sideways scrolling; no ruby is broken over two lines."""
    split = '[...document.querySelectorAll("rt")].filter(x => x.getClientRects().length > 1).length'
    is_rtl = '[...document.querySelectorAll("dd")].filter(x => x.matches(":dir(rtl)")).length > 0'
    found, logged = ask(browser, full_page(), tmp_path, width, WIDER, REQUESTS, split, is_rtl)
    assert found == "0 0 0 true"
    assert "CONSOLE" not in logged


def test_the_page_has_curves_bars_and_alignments() -> None:
    root = ElementTree.fromstring(full_page())

    def texts(tag: str) -> list[str]:
        return ["".join(x.itertext()) for x in root.iter() if x.tag.endswith(f"}}{tag}")]

    assert texts("h2").count("Learning curves of runs/he-en") == 1  # curves of one model
    for title in ("chrF lost to noise: runs/he-en", "Confidence of runs/he-en"):
        assert texts("h3").count(title) == 2
    bars = [x for x in root.iter() if x.tag.endswith("}rect")][:2]
    widths = [float(x.get("width", "nan")) for x in bars]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert float(bars[1].get("x", "nan")) < float(bars[0].get("x", "nan"))  # a gain, to the left
    # The worst line has one word, under its one source word; those of more have more.
    assert ("\u05d4\u05db\u05dc\u05d1" + "the") in texts("ruby")
    assert ("\u05de\u05d4\u05e8" + "\u2013") in texts("ruby")  # nothing was made of it
    assert "75.0%" in texts("td")
    assert texts("th").count("other") == 1  # the column of the table of all test sets


def test_the_page_shows_scores_slices_and_sentences_as_text(tmp_path: Path) -> None:
    source = [f"Satz {n} <b>&\u05e9\u05dc\u05d5\u05dd" for n in range(12)]
    reference = [f"sentence {n} <script>alert(1)</script> of a test" for n in range(12)]
    worst = [line if n != 7 else "wrong \u202e altogether" for n, line in enumerate(reference)]
    page = tmp_path / "out.html"
    systems = write(tmp_path / "bad.en", worst), write(tmp_path / "good.en", reference)
    files = write(tmp_path / "in.de", source), (write(tmp_path / "ref.en", reference),)
    options: dict[str, Any] = {"source": files[0], "reference": files[1], "report": (page,)}
    evaluate(EvaluateOptions(hypothesis=systems, slices=True, **options))
    text = page.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert "&lt;script&gt;" in text
    assert (text.count("<script"), text.count("\u202e")) == (1, 0)
    shown = "".join(root.itertext())
    assert all(each in shown for each in ("\\u202e", "12 (few)"))
    assert sentences_in(page) == ["8"]  # others are perfect
    (sentence,) = (x for x in root.iter() if x.get("class") == "sample")
    marked = [x.text for x in sentence.iter() if x.tag.endswith("mark")]
    assert marked == ["wrong \\u202e altogether"]
    assert {x.get("dir") for x in sentence.iter() if x.tag.endswith("dd")} == {"auto", None}


def shown(path: Path, tag: str, name: str = "") -> list[str]:
    """The texts of elements with a class."""
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    own = (x for x in root.iter() if x.tag.endswith(f"}}{tag}"))
    return [" ".join("".join(x.itertext()).split()) for x in own if name in x.get("class", "")]


def test_the_page_opens_with_the_verdict_and_the_interval_of_the_change(
    files: dict[str, Path],
) -> None:
    page, data = (files["bad"].with_name(name) for name in ("a.html", "a.json"))
    more = ("--fail-if-worse", "--fail-under", "chrf=1", "--report", page, "--report", data)
    assert invoke(*flags(files), *more).exit_code == 6
    (verdict,) = shown(page, "div", "verdict bad")
    assert verdict.startswith("Failed: 2 of 3 gates missed" + "missed bad.en: BLEU is ")
    assert "met bad.en: chrF is" in verdict
    scores = json.loads(data.read_text("utf-8"))["test_sets"][0]["systems"][0]["scores"]
    cells = shown(page, "td")
    for score, label in zip(scores, ("BLEU", "chrF"), strict=True):
        change = score["comparison"]
        row = cells[cells.index(label) :][:6]
        assert row[1:5] == [
            f"{score['value'] - change['delta']:.2f}", f"{score['value']:.2f}",
            f"{change['delta']:+.2f}", f"{change['low']:+.2f} to {change['high']:+.2f}",
        ]  # fmt: skip
        assert row[5] == "worse (p < 0.001)"
    assert shown(page, "td", "bad") == ["worse (p < 0.001)"] * 2
    facts = dict(zip(shown(page, "dt"), shown(page, "dd"), strict=False))
    assert facts["bad.en"] == "translations from a file"
    assert facts["Date"].startswith(time.strftime("%Y-"))
    assert f"{scores[0]['confidence']['resamples']:,} resampled" in facts["Meaning of \u00b1"]
    assert invoke(*flags(files, "same"), *more).exit_code == 0
    assert shown(page, "div", "verdict good")[0].startswith("Passed: all 3 gates met")


def test_the_page_names_the_settings_of_a_model_and_warns_of_leaks() -> None:
    page = full_page()
    root = ElementTree.fromstring(page)
    text = " ".join("".join(root.itertext()).split())
    assert "3 of 40 source lines of other are in the training data of runs/he-en" in text
    assert "engine torch, checkpoint best, beam size 5" in text
    assert "max-height" not in page  # no scrolling boxes


def test_the_calibration_chart_uses_its_area() -> None:
    qualities: list[Any] = []
    root = ElementTree.fromstring(full_page(qualities))
    drawn = next(x for x in root.iter() if x.get("data-x") == "expected chrF")
    (path,) = (x for x in drawn.iter() if x.get("data-name") == "measured")
    known = qualities[0]["deciles"]
    places = [each.split() for each in path.get("data-points", "").split(";")]
    assert [float(x) for x, _ in places] == pytest.approx([x for x, _ in known])
    assert [float(y) for _, y in places] == pytest.approx([y for _, y in known], rel=1e-3)
    start, end = map(float, drawn.get("data-axis", "").split()[2:])
    assert 0 <= start <= min(map(min, known))
    assert max(map(max, known)) <= end <= 100
    assert max(map(max, known)) - min(map(min, known)) > 0.6 * (end - start)


def test_the_calibration_charts_of_all_systems_have_the_same_axes() -> None:
    """The values of one system go from 21 to 38, those of the other from 55 to 92."""
    low = {"system": "low", "deciles": [(21.0, 25.0), (30.0, 38.0)]}
    high = {"system": "high", "deciles": [(60.0, 55.0), (90.0, 92.0)]}
    axes = set()
    for chart in pages._calibrations([low, high]):
        (drawn,) = (x for x in ElementTree.fromstring(chart).iter() if x.get("data-axis"))
        ticks = [x.text for x in drawn.iter() if x.get("class") == "y"]
        axes.add((drawn.get("data-axis"), *ticks))
    ((axis, *ticks),) = axes
    assert axis == "52 486 20 100"
    assert ticks[:5] == ["20", "40", "60", "80", "100"]


def sentences_in(page: Path) -> list[str]:
    """Return the numbers of the lines that a page shows without a script."""
    root = ElementTree.parse(page).getroot()
    shown = [x for x in root.iter() if x.tag.endswith("}dl") and x.get("class") == "sample"]
    return [next(x.text or "" for x in each.iter() if x.tag.endswith("dd")) for each in shown]


def steps(folder: Path) -> dict[str, Any]:
    """Two systems of 30 lines; the first n words of line n + 1 are wrong in the first system."""
    words = [f"word{n}" for n in range(30)]
    wrong = [" ".join(["zzz"] * n + words[n:]) for n in range(30)]
    reference = [" ".join(words)] * 30
    systems = write(folder / "bad.en", wrong), write(folder / "good.en", reference)
    return {"hypothesis": systems, "reference": (write(folder / "ref.en", reference),)}


def test_the_worst_sentences_are_shown_without_a_script(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    evaluate(EvaluateOptions(**steps(tmp_path), report=(page,), resamples=0))
    assert sentences_in(page) == [str(line) for line in range(30, 20, -1)]


SHOWN = '[...document.querySelectorAll(".sample dd:first-of-type")].map(x => x.textContent.trim())'
ASKED = """(() => {
  const [form, more] = [document.forms[0], document.querySelector(".all")];
  const set = (name, value) => {
    form.elements[name].value = value;
    for (const kind of ["input", "change"]) form.elements[name].dispatchEvent(new Event(kind));
  };
  const seen = [];
  const see = () => seen.push(SHOWN.join(",") + (more.hidden ? "." : "+"));
  const steps = [
    see, () => set("order", "line 0"), see, () => set("order", "high 0"), see,
    () => set("order", "apart 0"), see, () => set("order", "ahead 1"), see, () => more.click(),
    see, () => set("query", "ZZZ word3 "), see, () => set("query", "nothing"), see,
    () => { document.title = seen.join(" "); },
  ];
  steps.forEach((step, index) => setTimeout(step, 300 + 150 * index));
  return "";
})()""".replace("SHOWN", SHOWN)


def test_a_script_sorts_and_searches_all_sentences(browser: str, tmp_path: Path) -> None:
    """Line 4 is the only one with `zzz word3`. All differ but the first: good.en is ahead."""
    page = tmp_path / "out.html"
    evaluate(EvaluateOptions(**steps(tmp_path), report=(page,), resamples=0))
    found, logged = ask(browser, page.read_text("utf-8"), tmp_path, 800, ASKED, wait=4000)
    up = [str(line) for line in range(1, 31)]
    down = up[::-1]
    shown = [down[:10], up[:20], up[:20], down[:20], down[:20]]
    expected = [",".join(lines) + "+" for lines in shown]
    assert found.split(" ") == [*expected, f"{','.join(down)}.", "4.", "."]
    assert "CONSOLE" not in logged


def test_packed_sentences_are_complete_and_visible() -> None:
    """With one decimal; hidden characters are escaped, as in the rest of the page."""
    reference = ["a \u202e dog", "the cat"]
    result = Result("ein Hund", "a", -1.0, alarms=("short",), confidence=20.4)
    systems = System("one", ["a", "the cat"], results=[result, replace(result, alarms=())])
    each = Evaluation(test="set", references=[reference], source=["x", "y"], systems=(systems,))
    data = base64.b64decode(pages._sentences(each, ())["packed"])
    score = round(CHRF().sentence_score("a", reference[:1]).score, 1)
    assert json.loads(zlib.decompress(data)) == {
        "source": ["x", "y"],
        "references": [["a \\u202e dog", "the cat"]],
        "systems": [{
            "name": "one", "lines": ["a", "the cat"], "scores": [score, 100.0],
            "notes": [", confidence 20, suspicious: short", ", confidence 20"],
        }],
    }  # fmt: skip


# Differences far below those of scores are lost when they are divided by the width of a bin.
SCORES = st.lists(
    st.tuples(*[st.integers(0, 10**8).map(lambda n: n / 10**6)] * 2), min_size=1, max_size=20
)


@given(SCORES)
def test_a_histogram_counts_each_difference_on_its_side_of_zero(
    scores: list[tuple[float, float]],
) -> None:
    first, second = zip(*scores, strict=True)
    edges, counts = pages.histogram(first, second)
    assert len(edges) == len(counts) + 1
    zero = edges.index(0)
    assert sum(counts[:zero]) == sum(one < two for one, two in scores)
    assert sum(counts[zero:]) == sum(one > two for one, two in scores)


def test_slices_are_drawn_where_their_scores_are(files: dict[str, Path], tmp_path: Path) -> None:
    """Each system has its own shape; the marks are on the axis that the ticks name."""
    page, data = tmp_path / "a.html", tmp_path / "a.json"
    labels = write(tmp_path / "labels", ["odd" if n % 2 else "even" for n in range(60)])
    more = ("--hypothesis", files["same"], "--slice", f"half={labels}", "--metric", "chrf")
    reports = ("--report", page, "--report", data)
    assert invoke(*flags(files)[:-2], *more, *reports).exit_code == 0
    root = ElementTree.parse(page).getroot()
    (table,) = (x for x in root.iter() if x.get("class") == "dots")
    ticks = [x for x in table.iter() if x.tag.endswith("text")]
    low, high = (float(tick.text or "") for tick in (ticks[0], ticks[-1]))
    assert [ticks[index].get("x") for index in (0, -1)] == ["0%", "100%"]
    (test_set,) = json.loads(data.read_text("utf-8"))["test_sets"]
    scores = [system["scores"][0] for each in test_set["slices"] for system in each["systems"]]
    marks = [x for x in table.iter() if x.tag.endswith("}g")]
    assert len(marks) == len(scores) == 4
    assert [list(mark)[-1].get("href") for mark in marks] == ["#shape0", "#shape1"] * 2
    for mark, score in zip(marks, scores, strict=True):
        line, shape = mark
        interval = score["confidence"]
        places = [line.get("x1"), shape.get("x"), line.get("x2")]
        values = [interval["low"], score["value"], interval["high"]]
        for place, value in zip(places, values, strict=True):
            drawn = low + float((place or "").rstrip("%")) / 100 * (high - low)
            assert drawn == pytest.approx(value, abs=0.05)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), "same.en is better than bad.en"),
        (("--alpha", 0), "No significant difference between same.en and bad.en"),
        (("--resamples", 0), "BLEU"),
    ],
)
def test_the_verdict_names_the_better_of_two_systems(
    files: dict[str, Path], more: tuple[object, ...], expected: str
) -> None:
    page = files["bad"].with_name("a.html")
    two = (*flags(files)[:-2], "--hypothesis", files["same"])
    assert invoke(*two, *more, "--report", page).exit_code == 0
    assert "Holm" not in page.read_text()  # one pair of systems: nothing to correct
    (verdict,) = shown(page, "div", "verdict")
    assert verdict.startswith(expected)


def test_the_verdict_judges_a_system_by_its_baseline(files: dict[str, Path]) -> None:
    page = files["bad"].with_name("a.html")
    assert invoke(*flags(files), "--report", page).exit_code == 0
    (verdict,) = shown(page, "div", "verdict bad")
    assert verdict.startswith("bad.en is worse than same.en")
    assert invoke(*flags(files, "same", files["bad"]), "--report", page).exit_code == 0
    (verdict,) = shown(page, "div", "verdict good")
    assert verdict.startswith("same.en is better than bad.en")


def test_all_references_are_shown_and_the_most_similar_one_is_compared() -> None:
    """A translation that equals the second reference is not among the worst ones."""
    references = [["a dog", "a cat sits", "x"], ["the hound", "the cat sits there", "a bird"]]
    system = System("one", ["the hound", "the cat sits here", "a bird flies"])
    each = Evaluation(test="set", references=references, source=None, systems=(system,))
    worst = pages._sentences(each, ())["worst"]
    assert sorted(sentence["line"] for sentence in worst) == [2, 3]
    (second,) = [sentence for sentence in worst if sentence["line"] == 2]
    assert second["parts"][:2] == [
        ("reference", [("a cat sits", "")]), ("reference", [("the cat sits there", "")]),
    ]  # fmt: skip
    assert second["parts"][2][1] == [
        ("the cat sits", ""), ("there", "missing"), ("here", "different"),
    ]  # fmt: skip


def test_the_head_of_a_sentence_has_all_that_is_known_of_it() -> None:
    """Score, confidence and every alarm, for two systems at most; the baseline may be one."""
    reference = ["a dog", "a cat"]
    known = [
        Result("ein Hund", "a", -1.0, alarms=("short", "repetition"), confidence=20.4),
        Result("eine Katze", "a cat", -1.0, confidence=None),
    ]
    systems = System("one", ["a", "a cat"], results=known), System("two", reference)
    third = System("three", ["a dog", "cats"])
    each = Evaluation(
        test="set", references=[reference], source=["ein Hund", "eine Katze"], systems=systems
    )

    def heads(each: Evaluation) -> list[str]:
        """Return the labels of the worst sentence."""
        sentence, *_ = pages._sentences(each, ())["worst"]
        return [label for label, _ in sentence["parts"]]

    one = "one, chrF {:.1f}, confidence 20, suspicious: short, repetition"
    one = one.format(CHRF().sentence_score("a", ["a dog"]).score)
    given = ["source", "reference"]
    of_two = replace(each, systems=(*systems, third), baseline=third)
    assert heads(of_two) == [*given, one, "two, chrF 100.0"]
    of_baseline = replace(each, systems=systems[:1], baseline=third)
    assert heads(of_baseline) == [*given, one, "three, chrF 100.0"]
    assert heads(replace(each, source=None, systems=systems[:1])) == ["reference", one]
