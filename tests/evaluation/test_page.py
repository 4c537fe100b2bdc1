"""The page of an evaluation: well-formed, escaped, and with what was found."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from nmt.evaluation.page import as_page, word_differences
from nmt.evaluation.test_set import SetChoice
from nmt.recipes.evaluate import EvaluateOptions, run_evaluation

WORDS = st.text("ab <&\u05d0\u202e", max_size=20)


@given(WORDS, WORDS)
def test_pieces_are_the_words_and_equal_texts_have_no_difference(text: str, reference: str) -> None:
    pieces = word_differences(text, reference)
    assert " ".join(piece for piece, _ in pieces) == " ".join(text.split())
    assert any(is_other for _, is_other in pieces) <= (text.split() != reference.split())
    assert not any(is_other for _, is_other in word_differences(text, text))


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_the_page_shows_scores_slices_and_sentences_as_text(tmp_path: Path) -> None:
    source = [f"Satz {n} <b>&\u05e9\u05dc\u05d5\u05dd" for n in range(12)]
    reference = [f"sentence {n} <script>alert(1)</script> of a test" for n in range(12)]
    worst = [line if n != 7 else "wrong \u202e altogether" for n, line in enumerate(reference)]
    page, tables = tmp_path / "out.html", tmp_path / "out.json"
    test = SetChoice(
        source=write(tmp_path / "in.de", source),
        references=(write(tmp_path / "ref.en", reference),),
    )
    systems = write(tmp_path / "good.en", reference), write(tmp_path / "bad.en", worst)
    report = run_evaluation(
        EvaluateOptions(
            hypotheses=systems[::-1], tests=(test,), slices=True, reports=(page, tables)
        )
    )

    text = page.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert as_page(report) == text.rstrip("\n") or as_page(report) == text
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "\u202e" not in text
    shown = "".join(root.itertext())
    assert "\\u202e" in shown
    assert "12 (few)" in shown
    titles = [x.text for x in root.iter() if x.tag.endswith("summary")]
    assert titles == ["Worst of bad.en", "Best of bad.en", "Most different: bad.en and good.en"]
    lists = [x for x in root.iter() if x.tag.endswith("details")]
    first = next(x.text for x in lists[0].iter() if x.tag.endswith("dt"))
    assert first == "line 8"
    marked = [x.text for x in lists[0].iter() if x.tag.endswith("mark")]
    assert marked[0] == "wrong \\u202e altogether"
    assert {x.get("dir") for x in lists[0].iter() if x.tag.endswith("dd")} == {"auto"}
