"""The page of an evaluation: well-formed, escaped, and with what was found."""

from __future__ import annotations

import json
import time
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

    assert texts("h2").count("Learning curves") == 1
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
    assert ["other chrF" in text for text in texts("th")].count(True) == 1


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
    titles = [x.text for x in root.iter() if x.tag.endswith("summary")]
    assert titles == ["Worst of bad.en", "Best of bad.en", "Most different: bad.en and good.en"]
    lists = [x for x in root.iter() if x.tag.endswith("details")]
    assert next(x.text for x in lists[0].iter() if x.tag.endswith("dd")) == "8"
    assert len([x for x in lists[0].iter() if x.tag.endswith("}dl")]) == 1  # others are perfect
    marked = [x.text for x in lists[0].iter() if x.tag.endswith("mark")]
    assert marked[1] == "wrong \\u202e altogether"
    assert {x.get("dir") for x in lists[0].iter() if x.tag.endswith("dd")} == {"auto", None}


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
    scores = json.loads(data.read_text("utf-8"))["systems"][0]["scores"]
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


def test_sentences_are_listed_by_their_scores_and_by_the_difference_of_two_systems(
    tmp_path: Path,
) -> None:
    """The first words of line n are wrong: n - 1 of them."""
    words = [f"word{n}" for n in range(14)]
    reference = [" ".join(words)] * 14
    wrong = [" ".join(["zzz"] * n + words[n:]) for n in range(14)]
    page = tmp_path / "out.html"
    systems = write(tmp_path / "bad.en", wrong), write(tmp_path / "good.en", reference)
    options: dict[str, Any] = {"reference": (write(tmp_path / "ref.en", reference),)}
    evaluate(EvaluateOptions(hypothesis=systems, report=(page,), resamples=0, **options))
    root = ElementTree.parse(page).getroot()
    lists = [x for x in root.iter() if x.tag.endswith("details")]
    found = []
    for each in lists:
        sentences = [x for x in each.iter() if x.tag.endswith("}dl")]
        found.append(
            [next(x.text for x in own.iter() if x.tag.endswith("dd")) for own in sentences]
        )
    worst = [str(line) for line in range(14, 4, -1)]
    best = [str(line) for line in range(1, 11)]
    assert found == [worst, best, worst]


def test_all_references_are_shown_and_the_most_similar_one_is_compared() -> None:
    """A translation that equals the second reference is not among the worst ones."""
    references = [["a dog", "a cat sits", "x"], ["the hound", "the cat sits there", "a bird"]]
    system = System("one", ["the hound", "the cat sits here", "a bird flies"])
    each = Evaluation(test="set", references=references, source=None, systems=(system,))
    worst, best = pages._lists(each, ())
    shown = [sentence["line"] for sentence in worst["sentences"]]
    assert sorted(shown) == [2, 3]
    assert best["sentences"][0]["parts"][:2] == [
        ("reference", [("a dog", "")]), ("reference", [("the hound", "")]),
    ]  # fmt: skip
    (second,) = [each for each in worst["sentences"] if each["line"] == 2]
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

    def heads(each: Evaluation) -> dict[str, list[str]]:
        """Return the labels of the first sentence of each list."""
        lists = {found["name"]: found["sentences"][0]["parts"] for found in pages._lists(each, ())}
        return {name: [label for label, _ in parts] for name, parts in lists.items()}

    one = "one, chrF {:.1f}, confidence 20, suspicious: short, repetition"
    one = one.format(CHRF().sentence_score("a", ["a dog"]).score)
    given = ["source", "reference"]
    of_two = heads(replace(each, systems=(*systems, third), baseline=third))
    assert of_two == {
        "Worst of one": [*given, one, "two, chrF 100.0"],
        "Best of one": [*given, "one, chrF 100.0", "two, chrF 100.0"],
        "Most different: one and two": [*given, one, "two, chrF 100.0"],
    }
    of_baseline = heads(replace(each, systems=systems[:1], baseline=third))
    assert of_baseline["Most different: one and three"] == [*given, one, "three, chrF 100.0"]
    assert heads(replace(each, source=None, systems=systems[:1])) == {
        "Worst of one": ["reference", one],
        "Best of one": ["reference", "one, chrF 100.0"],
    }
