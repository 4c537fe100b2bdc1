"""The page of an evaluation: well-formed, escaped, and with what was found."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.commands.evaluate import evaluate
from nmt.commands.options import EvaluateOptions
from nmt.extras.analysis import page as pages
from nmt.extras.analysis.confidence import confidence_quality
from nmt.extras.analysis.page import as_page, word_differences
from nmt.inference.request import Result
from nmt.metrics.metric import Confidence, Score
from nmt.metrics.result import Evaluation, EvaluationReport, Section, System
from nmt.report.page import Chart, Curve
from tests.browser import REQUESTS, WIDER, ask
from tests.commands.test_evaluate import write

WORDS = st.text("ab <&\u05d0\u202e", max_size=20)


@given(WORDS, WORDS)
def test_differences_cover_the_text_and_equal_texts_have_none(text: str, reference: str) -> None:
    pieces = word_differences(text, reference)
    assert " ".join(piece for piece, _ in pieces) == " ".join(text.split())
    assert any(is_other for _, is_other in pieces) <= (text.split() != reference.split())
    assert not any(is_other for _, is_other in word_differences(text, text))


def section(key: str, *values: Any) -> Section:
    return Section(key=key, title=key, rows=[[key, "accuracy"], ["all", "75.0%"]], values=values)


def full_page() -> str:
    """All that a page can show: of a run, with a right-to-left source."""
    words = ["\u05d4\u05db\u05dc\u05d1", "\u05e8\u05e5", "\u05de\u05d4\u05e8", "x" * 60]
    source = [" ".join(words[: 1 + row % 4]) for row in range(40)]
    reference = [f"the dog number {row} runs quickly" for row in range(40)]
    lines = [" ".join(line.split()[: 1 + row % 6]) for row, line in enumerate(reference)]
    results = [
        Result(one, two, -1.0, alarms=("short",), confidence=20.0 + 10 * (row % 6))
        for row, (one, two) in enumerate(zip(source, lines, strict=True))
    ]
    scores = (Score(metric="chrf", value=45.678, signature="nrefs:1"),)
    system = System("runs/he-en", lines, results=results, scores=scores)
    interval = asdict(Confidence(mean=3.0, half_width=1, low=2.0, high=4.0, resamples=9, seed=1))
    lost = {"system": system.name, "metric": "chrf", "clean": 45.0, "noisy": 42.0}
    noise = lost | {"noise": "typos", "loss": 3.0, "confidence": interval}
    gain = lost | {"noise": "case", "loss": -1.5}
    quality = confidence_quality(system, [reference])
    each = Evaluation(
        test="\u05de\u05d1\u05d7\u05df", references=[reference], source=source, systems=(system,),
        sections=(section("robustness", noise, gain), section("confidence", quality)),
    )  # fmt: skip
    report = EvaluationReport(
        evaluations=(each, replace(each, test="other")), sections=(section("contrastive"),)
    )
    curve = Curve("chrF", [(step, step / 2) for step in range(1, 90, 8)], marked=True)
    chart = Chart("Translation quality", "score, 0 to 100", [curve], end=90, size=(520, 280))
    scorer = SimpleNamespace(align=lambda pairs, **_: [((0, 0), (0, 1), (1, 2))] * len(pairs))
    model: Any = SimpleNamespace(name=system.name, folder=Path(system.name), tag=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "learning_curves", lambda _: [chart])
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

    assert texts("h2").count("Learning curves: runs/he-en") == 1
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
    assert ["other chrf" in text for text in texts("th")].count(True) == 1


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
    assert not any(each in text for each in ("<script", "\u202e"))
    shown = "".join(root.itertext())
    assert all(each in shown for each in ("\\u202e", "12 (few)"))
    titles = [x.text for x in root.iter() if x.tag.endswith("summary")]
    assert titles == ["Worst of bad.en", "Best of bad.en", "Most different: bad.en and good.en"]
    lists = [x for x in root.iter() if x.tag.endswith("details")]
    assert next(x.text for x in lists[0].iter() if x.tag.endswith("dt")) == "line 8"
    marked = [x.text for x in lists[0].iter() if x.tag.endswith("mark")]
    assert marked[0] == "wrong \\u202e altogether"
    assert {x.get("dir") for x in lists[0].iter() if x.tag.endswith("dd")} == {"auto"}
