"""Lines of several sentences, and lines that contain more than language."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from typing_extensions import override

from nmt.checkpoint.model_folder import load_folder_config, new_model_folder
from nmt.cli.app import app
from nmt.config.data import PLACEHOLDER, Direction
from nmt.config.model import DecodingConfig
from nmt.errors import ConfigError
from nmt.inference.direction import Languages
from nmt.inference.placeholders import (
    Links,
    Paragraph,
    as_symbol,
    mask_placeholders,
    text_events,
    with_symbols,
)
from nmt.inference.request import Request, Result
from nmt.inference.segment import split_line
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.text import sentences as module
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from tests.inference.conftest import translator_of
from tests.inference.models import run_config, save_run, small_model, train_tokenizer
from tests.inference.test_translator import Says

FIRST, SECOND, THIRD = "Der Hund läuft.", "Die Katze schläft!", "Das Haus und der Hund?"


@pytest.fixture
def splitting(model: Transformer, tokenizers: Tokenizers) -> Translator:
    languages = Languages((Direction("de", "en"),))
    return translator_of(TorchEngine(model), tokenizers, max_sentences=1, languages=languages)


def placeholders_of(text: str, *options: Any, **symbols: Any) -> list[str]:
    events = text_events(text, *options, **symbols)
    return [event.raw for event in events if event.kind != "text"]


def insert(source: str, text: str, links: Links | None) -> str:
    return Paragraph.read(text_events(source), "", None).render([(text, links)])


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [((" ", " "), (" ", " ")), (("  ", "\t"), ("  ", "\t")), (("\u3000", " "), ("\u3000", " "))],
)
def test_a_line_is_the_sum_of_its_sentences_with_the_gaps_between_them(
    splitting: Translator, gaps: tuple[str, str], expected: tuple[str, str]
) -> None:
    line = FIRST + gaps[0] + SECOND + gaps[1] + THIRD
    whole, *parts = splitting.translate([f" {line} ", FIRST, SECOND, THIRD])
    texts = [part.text for part in parts]
    assert whole.text == texts[0] + expected[0] + texts[1] + expected[1] + texts[2]
    assert list(whole.parts) == parts
    assert whole.score == pytest.approx(sum(part.score for part in parts) / 3)
    assert whole.log_prob == pytest.approx(sum(part.log_prob for part in parts))
    assert whole.num_tokens == sum(part.num_tokens for part in parts)
    assert whole.as_dict()["parts"] == [part.as_dict() for part in parts]
    (kept,) = splitting.with_options(max_sentences=3).translate([line])
    assert kept.parts == ()
    assert kept.text != whole.text
    (split,) = splitting.with_options(max_sentences=2).translate([line])
    assert split.text == whole.text
    length = len(line)
    for max_characters, text in ((length, kept.text), (length - 1, whole.text)):
        limits = {"max_sentences": 3, "max_characters": max_characters}
        (limited,) = splitting.with_options(**limits).translate([line])
        assert limited.text == text


def test_sentences_of_a_language_without_spaces_are_joined_without(splitting: Translator) -> None:
    languages = Languages((Direction("de", "zh"),))
    whole, first, second = splitting.with_options(languages=languages).translate(
        [f"{FIRST} {SECOND}", FIRST, SECOND]
    )
    assert whole.text == first.text + second.text


def test_lines_with_constraints_and_lists_of_translations_are_not_split(
    splitting: Translator,
) -> None:
    line = f"{FIRST} {SECOND}"
    lists = splitting.with_options(n_best=2)
    assert len(lists.translate([line])[0].alternatives) == 2
    free = splitting.with_options(constraints=True)
    for request in (
        Request(line, prefix="das"),
        Request(line, required=("Hund",)),
        Request(line, forbidden=("Hund",)),
    ):
        segmented = free.segment([request, line])
        assert [sentence.line for sentence in segmented.sentences] == [0, 1, 1]
        assert free.translate([request])[0].parts == ()
    assert [sentence.line for sentence in lists.segment([line]).sentences] == [0]


def test_alignments_of_sentences_are_shifted(splitting: Translator) -> None:
    aligned = splitting.with_options(outputs={"alignments", "attention"})
    whole, first, second = aligned.translate([f"{FIRST} {SECOND}", FIRST, SECOND])
    assert whole.alignment
    assert first.alignment
    assert second.alignment
    num_sources, num_targets = len(FIRST.split()), len(first.text.split())
    shifted = [(num_sources + a, num_targets + b) for a, b in second.alignment]
    assert whole.alignment == (*first.alignment, *shifted)
    assert whole.attention is not None
    assert [len(row) for row in whole.attention] == [6] * len(whole.text.split())


def test_a_line_without_an_end_inside_is_not_passed_to_the_splitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "segment", None)
    for line in (FIRST, "Ein Hund, eine Katze (und mehr) ...", '"So?"', "我们去公园\u3002", ""):
        assert split_line(line, "de", 1, ()).sentences == ((line,) if line else ())
    with pytest.raises(TypeError):
        split_line(f"{FIRST} {SECOND}", "de", 1, ())


def test_no_sentence_ends_inside_a_placeholder() -> None:
    line = "Siehe {{a. B. C}}. Er (https://a.de/x?y=1) kam! <b>Ja.</b> {x} geht. %s 😀 Gut."
    expected = (
        "Siehe {{a. B. C}}.", "Er (https://a.de/x?y=1) kam!", "<b>Ja.</b>", "{x} geht.",
        "%s 😀 Gut.",
    )  # fmt: skip
    assert split_line(line, "de", 1, ()).sentences == expected
    assert len(mask_placeholders(line)) == len(line)


COPIED = [
    "-",
    "...",
    "***",
    "§",
    "😀",
    "----------",
    "?!",
    "—",
    "{x}",
    "https://a.de/x - %s",
    "<br/>",
]


@pytest.mark.parametrize("line", [*COPIED, "x" * 600, "YWJj+/==" * 8 + " - " + "f" * 64])
def test_lines_and_sentences_without_language_are_copied(splitting: Translator, line: str) -> None:
    assert splitting.segment([line]).segments == []
    (copied,) = splitting.translate([f"  {line} "])
    assert copied.text == line
    assert copied.is_copied
    assert (copied.score, copied.alternatives, copied.alarms) == (0.0, (), ())


def test_sentences_without_language_are_copied(splitting: Translator) -> None:
    whole, first, second = splitting.translate([f"{FIRST} {{x}} %s! {SECOND}", FIRST, SECOND])
    assert whole.text == f"{first.text} {{x}} %s! {second.text}"
    assert [part.is_copied for part in whole.parts] == [False, True, False]


@pytest.mark.parametrize("mark", ["-", "*", "##", ">", "\u2022", "\u2013"])
def test_the_mark_of_a_list_or_a_heading_stays_at_the_beginning(
    splitting: Translator, mark: str
) -> None:
    marked, plain = splitting.translate([f"  {mark} {FIRST}", FIRST])
    assert marked.text == f"{mark} {plain.text}"
    assert placeholders_of(f"{mark}{FIRST} {mark} {SECOND}") == []  # in a word, and inside


def test_the_number_of_an_item_is_copied(splitting: Translator) -> None:
    numbered, plain = splitting.translate([f"1. {FIRST}", FIRST])
    assert numbered.text == f"1. {plain.text}"


@pytest.mark.parametrize("ending", [r"\n", r"\n\n", r"\r\n"])
def test_an_escaped_line_break_separates_sentences_and_stays(
    splitting: Translator, ending: str
) -> None:
    whole, first, second = splitting.translate([f"{FIRST}{ending}{SECOND}{ending}", FIRST, SECOND])
    assert whole.text == f"{first.text}{ending}{second.text}{ending}"
    assert placeholders_of(r"C:\neu und \nu") == []
    assert placeholders_of(rf"{FIRST}\n\nund") == [r"\n\n"]


def test_an_escaped_line_break_separates_words() -> None:
    (event,) = [each for each in text_events(r"Name:\tBob") if each.kind != "text"]
    assert (event.raw, event.kind) == (r"\t", "break")


def test_marks_of_prices_percentages_and_of_the_vocabulary_are_not_placeholders() -> None:
    for text in ("$5", "100%", "100%ig", "50 % der", "a < b > c", "US$ 3", "3 % 4", "a@b", "{a b}"):
        assert placeholders_of(text) == []
    text = "{x} {{ a.b }} ${v} %s %1$s %(n)d %.2f $VAR <br/> </b> <a href='x'> a@b.de www.a.de ❤️"
    assert " ".join(placeholders_of(text)) == text.replace("<a href='x'>", "<a href='x'>")
    assert placeholders_of("<2de> <formal> {x}", symbols={"<formal>"}) == ["{x}"]
    assert placeholders_of("Kauf ABC-12 {x}", (r"[A-Z]+-(\d)\d",)) == ["ABC-12", "{x}"]
    with pytest.raises(ValueError, match="not a regular expression"):
        DecodingConfig(protect=("(",))


@pytest.mark.parametrize(
    "text",
    [
        "$x$", "$x^2$", "$a + b = 3$", r"$\alpha_1 \le x$", "$NAME$", "$x_{i,j}$", "$5 - 3$",
    ],
)  # fmt: skip
def test_a_formula_is_one_placeholder(text: str) -> None:
    assert placeholders_of(f"Sei {text}, und {text}.") == [text, text]


def test_prices_and_variables_are_not_formulas() -> None:
    for text in ("von $5 bis 6$", "$5, $6", "US$5-6$", "$ 5 $", "$5到6$"):
        assert placeholders_of(text) == []
    assert placeholders_of("$HOME$USER $A/$B $a, $b") == ["$HOME", "$A", "$B", "$a", "$b"]


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("The sign <s> begins", "Das Zeichen <s> beginnt", "Das Zeichen <s> beginnt"),
        ("<s> begins", "<s> beginnt", "<s> beginnt"),
        ("A dog 😀.", "Ein Hund 😀.", "Ein Hund 😀."),
        ("A dog 😀", "😀", "😀"),
        ("{x} and {x} go", "{x} und gehen", "{x} und {x} gehen"),
        ("{x} goes", "{xy} geht", "{x} {xy} geht"),
    ],
)
def test_a_placeholder_that_the_model_writes_itself_is_not_doubled(
    source: str, text: str, expected: str
) -> None:
    links = [(0, 0), (1, 1), (1, 2)]
    assert insert(source, text, links) == expected


def test_a_copied_emoji_is_not_added_to_the_symbol_of_the_emoji() -> None:
    events = map(as_symbol, text_events("A dog 😀"))
    paragraph = Paragraph.read(events, "", None)
    assert paragraph.render([(f"Ein 😀 Hund {PLACEHOLDER}", None)]) == "Ein Hund 😀"


WORDS = ["Ein", "Hund", "läuft.", "{x}", "%s", "😀", "<b>", "</b>", "https://a.de/x", "(", "so)"]


@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12),
    st.lists(st.sampled_from(["a", "dog", "runs.", "(so)"]), min_size=1, max_size=8),
    st.one_of(st.none(), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)))),
)
def test_each_placeholder_and_each_word_is_written_once(
    source: list[str], target: list[str], links: Links | None
) -> None:
    line, text = " ".join(source), " ".join(target)
    paragraph = Paragraph.read(text_events(line), "", None)
    if not paragraph.sentences:
        return
    inserted = insert(line, text, links)
    marks = [word for word in source if placeholders_of(word)]
    for mark, count in Counter(marks).items():
        assert inserted.count(mark) >= count
    rest = inserted
    for mark in marks:
        rest = rest.replace(mark, "", 1)
    assert rest.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("source", "text", "links", "expected"),
    [
        ("Hello {x}, I am here.", "Hallo, ich bin hier.", [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)],
         "Hallo {x}, ich bin hier."),
        ("You have {n} books.", "Bücher hast du.", [(0, 2), (1, 1), (2, 0)], "Bücher hast {n} du."),
        ("%s is here.", "Er ist da.", [(0, 1), (1, 2)], "%s Er ist da."),
        ("See https://a.de/x", "Siehe", [(0, 0)], "Siehe https://a.de/x"),
        ("a <b>red</b> dog", "ein Hund rot", [(0, 0), (1, 2), (2, 1)], "ein Hund <b>rot</b>"),
    ],
)  # fmt: skip
def test_a_placeholder_follows_the_translation_of_the_word_before_it(
    source: str, text: str, links: Links, expected: str
) -> None:
    assert insert(source, text, links) == expected


def test_placeholders_are_not_read_by_the_model(splitting: Translator) -> None:
    line, plain = "der Hund {x} läuft.", "der Hund läuft."
    (whole,), (expected,) = splitting.translate([line]), splitting.translate([plain])
    assert "".join(whole.text.replace("{x}", "").split()) == expected.text
    assert whole.log_prob == expected.log_prob
    (protected,) = splitting.with_options(protect=("Hund",)).translate(["der Hund läuft."])
    assert protected.text.count("Hund") >= 1
    assert splitting.segment(["die {x} {y} Katze"]).sentences[0].model_text == "die Katze"
    (listed,) = splitting.with_options(n_best=3).translate([line])
    assert [each.text.count("{x}") for each in listed.alternatives] == [1, 1, 1]


@pytest.mark.parametrize(
    ("source", "links", "expected"),
    [
        # Without a link of the word before, a placeholder stands in front of the next word.
        ("a b {x} c d.", [(0, 0), (2, 1), (3, 2)], "A {x} B C."),
        # A gap between both neighbours, not behind the last link of the word before.
        ("a {x} b c.", [(0, 0), (0, 2), (1, 1)], "A {x} B C."),
        # The final punctuation stays behind it.
        ("c {x} a b.", [(0, 2), (1, 0), (2, 1)], "A B C {x}."),
        ("c {x}, a b.", [(0, 2), (1, 0), (2, 1)], "A B C {x}."),
        ("c {x}%s a b.", [(0, 2), (1, 0), (2, 1)], "A B C {x}%s."),
        ("a b c {x}.", [(0, 0), (1, 1), (2, 2)], "A B C {x}."),
    ],
)
def test_a_placeholder_stands_next_to_the_translation_of_a_neighbour(
    source: str, links: Links, expected: str
) -> None:
    assert insert(source, "A B C.", links) == expected


MARKS = st.sampled_from(["{x}", "%s", "https://a.org", "😀", "<b>", "</b>", "Hund", "100%", ""])


@given(st.lists(MARKS), st.lists(MARKS), st.booleans(), st.sampled_from([0.0, 0.3, 1.0]))
def test_symbols_replace_the_same_placeholders_on_both_sides_or_nothing(
    left: list[str], right: list[str], is_copied: bool, share: float
) -> None:
    pair = " ".join(left), " ".join(left if is_copied else right)
    changed = with_symbols(*pair, share=share, protect=())
    assert changed == with_symbols(*pair, share=share, protect=())
    events = [[event for event in text_events(text) if event.kind == "void"] for text in pair]
    if changed != pair:
        assert share > 0
        assert events[0] == events[1]
        assert [text.count(PLACEHOLDER) for text in changed] == [len(events[0])] * 2
        for text, old in zip(changed, pair, strict=True):
            rest = iter(events[0])
            parts = text.split(PLACEHOLDER)
            assert parts[0] + "".join(next(rest).raw + part for part in parts[1:]) == old
    elif share == 1:
        assert events[0] != events[1] or not events[0]


def test_the_share_is_that_of_the_pairs_with_the_same_placeholders() -> None:
    pairs = [(f"a{number} {{x}}", f"b{number} {{x}}") for number in range(1000)]
    changed = [with_symbols(*pair, share=0.3, protect=()) != pair for pair in pairs]
    assert 250 < sum(changed) < 350
    named = with_symbols("ein ACME X.", "an ACME X.", share=1.0, protect=("ACME [A-Z]",))
    assert named == (f"ein {PLACEHOLDER}.", f"an {PLACEHOLDER}.")


class Diagonal(Says):
    """Attends to the source token at the same position."""

    @override
    def attention(self, sources: Any, targets: Any) -> list[list[list[float]]]:
        pairs = zip(sources, targets, strict=True)
        return [np.eye(len(target), len(source)).tolist() for source, target in pairs]


def test_alignments_count_the_words_of_placeholders(tokenizers: Tokenizers) -> None:
    engine = Diagonal(tokenizers.target.encode("das Haus klein"))
    outputs = {"alignments", "attention"}
    translator = translator_of(engine, tokenizers, outputs=outputs, max_sentences=1)
    plain, result = translator.translate(["das Haus klein", "das {x} Haus {y} klein"])
    assert plain.alignment == ((0, 0), (1, 1), (2, 2))
    assert result.text == "das {x} Haus {y} klein"
    assert result.alignment == ((0, 0), (2, 2), (4, 4))
    assert result.attention is not None
    assert [len(row) for row in result.attention] == [5] * 5


def test_missing_numbers_and_placeholders_are_alarms(tokenizers: Tokenizers) -> None:
    """A prefix may contain placeholders, so such a line is read whole."""
    translator = translator_of(
        Says(tokenizers.target.encode("die Katze 125")), tokenizers, guard=True, constraints=True
    )
    lines: list[Any] = ["der Hund 125", "der Hund 126", "{x} Hund", Request("{x} a", prefix="die")]
    alarms = [result.alarms for result in translator.translate(lines)]
    assert ["numbers" in names for names in alarms] == [False, True, False, False]
    assert ["lost" in names for names in alarms] == [False, False, False, True]
    for result in translator.with_options(guard=False).translate(lines):
        assert result.alarms == ()


def test_the_confidence_of_a_line_leaves_out_copied_sentences() -> None:
    from nmt.inference.request import join_results

    rated = Result("abc", "xyz", -1.0, num_tokens=2, confidence=50.0)
    joined = join_results("abc -", ("", " ", ""), [rated, Result("-", "-", 0.0)])
    assert (joined.text, joined.score, joined.confidence) == ("xyz -", -1.0, 50.0)


@pytest.mark.long
def test_a_model_keeps_as_many_sentences_as_its_training_lines_had(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(tmp_path / "tokenizer")
    model = small_model(load_tokenizers(tokenizer))
    line = f"{FIRST} {SECOND} {THIRD}"
    options: Any
    for limit in (None, 2, 3):
        config = run_config()
        data = config.data.model_copy(update={"max_sentences": limit})
        config = config.model_copy(update={"data": data})
        folder = save_run(tmp_path / f"run-{limit}", model, tokenizer, config)
        exported = tmp_path / f"export-{limit}"
        with new_model_folder(exported, folder, 1):
            pass
        assert load_folder_config(exported).max_sentences == (limit or 1)
        options = (("auto", limit != 3), ("split", True), ("keep", False))
        for option, is_split in options:
            translator = Translator.load(folder, engine="torch", sentences=option)
            (result,) = translator.translate([line])
            assert len(result.parts) == (3 if is_split else 0)
    for limit, num_of_auto in ((None, 0), (len(line), 0), (len(line) - 1, 3)):
        config = run_config()
        data = config.data.model_copy(update={"max_sentences": 3, "max_characters": limit})
        config = config.model_copy(update={"data": data})
        folder = save_run(tmp_path / f"run-of-{limit}", model, tokenizer, config)
        exported = tmp_path / f"export-of-{limit}"
        with new_model_folder(exported, folder, 1):
            pass
        assert load_folder_config(exported).max_characters == limit
        options = (("auto", num_of_auto), ("split", 3), ("keep", 0))
        for option, num_parts in options:
            translator = Translator.load(folder, engine="torch", sentences=option)
            (result,) = translator.translate([line])
            assert len(result.parts) == num_parts
    text = tmp_path / "text.de"
    text.write_text(f"{line}\n{FIRST}\n", encoding="utf-8")
    for option, count in (("auto", 1), ("keep", 0)):
        flags = [str(tmp_path / "run-2"), "--engine", "torch", "--sentences", option]
        shown = CliRunner().invoke(app, ["translate", *flags, str(text), "--format", "json"])
        objects = [json.loads(each) for each in shown.stdout.splitlines()]
        assert [len(each.get("parts", [])) for each in objects] == [3 * count, 0]
        assert ("lines split into sentences: 1; " in shown.stderr) == count
        scored = ["--source", str(text), "--reference", str(text), "--resamples", "0", "--json"]
        report = json.loads(CliRunner().invoke(app, ["evaluate", *flags, *scored]).stdout)
        assert report["test_sets"][0]["systems"][0].get("split_lines", 0) == count
    unknown: Any = "never"
    with pytest.raises(ConfigError, match="not a known value of `sentences`"):
        Translator.load(tmp_path / "run-2", sentences=unknown)
