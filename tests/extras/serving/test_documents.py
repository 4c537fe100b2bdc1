"""Documents: everything but text is kept, marks stay balanced, and time is linear."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import ConfigError, DataError
from nmt.extras.serving.documents import FORMATS, read_document
from nmt.inference.placeholders import Links, Translation

CUE = "1\n00:00:01,000 --> 00:00:02,000\n"
PIECES = ["Hello", "there.", "you", "<b>", "</b>", "<i", "</i>", ">", "<br>", "&amp;", "&#", "&"]
PIECES += ["<!--", "-->", "<script>", "</script>", "<p>", "<code>", "</code>", "{\\an8}", "\u3002"]
PIECES += ["http://a.de/x", "- ", " ", "\n", "\n\n", "\r\n", "\t", "\x00", "\ud800", "\u2028"]
PIECES += [CUE, f"\n\n{CUE}"]
DOCUMENTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.text(max_size=60)
)
VTT = "WEBVTT\n\nNOTE who?\n\n00:01.000 --> 00:02.000 align:start\n"
HEADS = {"srt": CUE, "vtt": VTT, "html": "<!DOCTYPE html>\n<p>", "txt": ""}


def same(sentences: Sequence[str]) -> list[Translation]:
    return [(sentence, None) for sentence in sentences]


@given(DOCUMENTS, st.sampled_from(FORMATS))
def test_unchanged_sentences_give_the_same_document_and_a_missing_one_is_an_error(
    text: str, kind: str
) -> None:
    document = read_document(HEADS[kind] + text, kind, "en")
    assert document.rebuild(same(document.sentences)) == HEADS[kind] + text
    for words in ("", "x", "<b> & * x.", "Viele neue Worte -- und mehr."):
        for links in (None, [(0, 0), (1, 0), (7, 7)]):
            document.rebuild([(words, links)] * len(document.sentences))


HOSTILE = ["<", "<a ", "<!--", "<b>", "</b>", "<b>x ", "<a b='", "&#9", '"<a ', "<code>", "<x"]
HOSTILE += ["- ", "{\\", "www.", "a@", "\n", " ", "1", "1\n", "1:", f"a\n\n{CUE}", "<b>x</b> "]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_documents_are_read_and_written(kind: str, unit: str) -> None:
    """Quadratic time or deep recursion would not finish here."""
    text = HEADS[kind] + unit * (20_000 // len(unit))
    try:
        document = read_document(text, kind, "en")
    except DataError:
        assert kind == "srt"
        return
    document.rebuild([("x y", None)] * len(document.sentences))


def test_deeply_nested_tags_around_one_word_are_all_kept() -> None:
    depth = 20_000
    text = "<b>" * depth + "word" + "</b>" * depth
    document = read_document(text, "html", "en")
    assert document.rebuild([("Wort", None)]) == text.replace("word", "Wort")


WORDS = st.lists(st.sampled_from(["Red", "cats", '"run"', "home.", "(so)", "A&B"]), min_size=1)
TREES = st.recursive(WORDS.map(" ".join), lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def write(tree: object, joiner: str, numbers: list[int], is_top: bool = True) -> str:
    """Write nested lists as nested tags, numbered in the order of their opening tags."""
    if isinstance(tree, str):
        return tree.replace("&", "&amp;")
    number = len(numbers)
    numbers.append(number)
    assert isinstance(tree, list)
    inner = joiner.join(write(each, joiner, numbers, False) for each in tree)
    return inner if is_top else f"<b {number}>{inner}</b>"


def nesting(text: str) -> dict[str, str]:
    """Return the parent of each tag, and check that the tags are balanced."""
    found, stack = {}, [""]
    for tag in re.findall(r"</?b[^>]*>", text):
        if tag == "</b>":
            stack.pop()
        else:
            assert tag not in found
            found[tag] = stack[-1]
            stack.append(tag)
    assert stack == [""]
    return found


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", "", text).replace("&amp;", "&").split())


LINKS = st.one_of(st.none(), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8))))


@given(
    TREES,
    st.sampled_from(["", " "]),
    st.lists(st.tuples(WORDS, LINKS), min_size=1, max_size=6),
    st.sampled_from(["srt", "html"]),
)
def test_each_tag_is_written_once_with_the_same_nesting(
    tree: object, joiner: str, answers: Sequence[tuple[list[str], Links | None]], kind: str
) -> None:
    body, head = write(tree, joiner, []), HEADS[kind]
    document = read_document(head + body, kind, "en")
    bare = read_document(head + plain(body).replace("&", "&amp;"), kind, "en")
    assert document.sentences == bare.sentences  # whatever the marks
    given_ = [answers[i % len(answers)] for i in range(len(document.sentences))]
    translations = [(" ".join(words), links) for words, links in given_]
    result = document.rebuild(translations).removeprefix(head)
    assert nesting(result) == nesting(body)
    if document.sentences:
        text = " ".join(text for text, _ in translations)
        assert plain(result).replace(" ", "") == text.replace(" ", "")
        assert plain(result) == text or "></b>" in result  # a pair around nothing has spaces


def test_an_unknown_or_wrong_format_is_an_error() -> None:
    with pytest.raises(ConfigError, match="Did you mean srt"):
        read_document("", "srtt", "en")
    with pytest.raises(DataError, match="SubRip"):
        read_document("Hello", "srt", "en")


def test_lines_tabs_and_addresses_of_plain_text_are_kept() -> None:
    text = "one dog\ttwo\n\nSee https://a.example/x. Or mail me@b.example, now!\n"
    document = read_document(text, "txt", "en")
    assert document.sentences == ("one dog", "two", "See .", "Or mail , now!")
    answers = same(("ein Hund", "zwei", "Siehe .", "Oder schreibe , jetzt!"))
    assert document.rebuild(answers) == (
        "ein Hund\tzwei\n\nSiehe https://a.example/x. Oder schreibe me@b.example, jetzt!\n"
    )


def test_code_and_embedded_content_is_not_translated() -> None:
    names = "pre code kbd samp var textarea script style svg math template iframe video audio"
    for name in [*names.split(), "canvas", "picture", "object"]:
        inner = f"<{name}>Hello</{name}>"
        document = read_document(f"<p>Come {inner} home.", "html", "en")
        assert "Hello" not in "".join(document.sentences)
        written = document.rebuild([("Komm", None)] * len(document.sentences))
        assert inner in written
        assert written.startswith("<p>Komm")


@pytest.mark.parametrize(("body", "expected"), [
    ("<b>a</b> b", "<b>w</b> x y z"), ("a <b>b</b>", "w x <b>y</b> z"),
    ("a a a <b>b</b> a a a a", "w <b>x</b> y z"),
])  # fmt: skip
def test_without_an_alignment_tags_keep_their_relative_positions(body: str, expected: str) -> None:
    """Word i of n is aligned to word i * 4 / n of the 4 words, rounded down."""
    document = read_document(body, "html", "en")
    assert document.rebuild([("w x y z", None)]) == expected


def test_subtitles_keep_timings_speakers_and_line_breaks() -> None:
    text = """1
00:00:01,000 --> 00:00:02,500
{\\an8}<i>Where is</i> the red
house? "No", I say.

2
00:00:03,000 --> 00:00:04,000
- Hi <b>H<sub>2</sub>O</b>.
- You.
"""
    of_windows = read_document(text.replace("\n", "\r\n"), "srt", "en")
    assert of_windows.rebuild(same(of_windows.sentences)) == text.replace("\n", "\r\n")
    document = read_document(text, "srt", "en")
    assert document.sentences == ("Where is the red house?", '"No", I say.', "Hi H2O.", "You.")
    answers: list[Translation] = [
        ("Das rote Haus ist wo?", [(0, 4), (1, 3), (2, 0), (3, 1), (4, 2)]),
        ("\u201eNein\u201c, sage ich.", None),
        ("Hallo H2O.", [(0, 0), (1, 1)]),
        ("Du <b>.", None),
    ]
    result = document.rebuild(answers).splitlines()
    assert result[2] == "{\\an8}Das rote Haus <i>ist"
    assert result[3] == "wo</i>? \u201eNein\u201c, sage ich."
    assert result[7:] == ["- Hallo <b>H<sub>2</sub>O</b>.", "- Du \u2039b>."]


PAGE = """<!DOCTYPE html>
<head><title>A &amp; B</title><STYLE>b {}</STYLE><script>if (a < b) "<b>Hello</b>"</script></head>
<!-- Hello -->
<p title="Hello">A <b>big <i>red</i></b> dog.<br>
  Come <img alt="Hello"> <a href="x?a&amp;b">here</a> or <code>go home</code>.<br><br>&nbsp;Never.
<div translate="no">Hello <p>you</p></div><pre>Hello</pre>
<td>12.50<td>She <span class="x notranslate">Fernweh</span> &lt;said.</p>
"""


def test_a_page_keeps_everything_but_its_text() -> None:
    document = read_document(PAGE, "html", "en")
    expected = ["A & B", "A big red dog.", "Come here or .", "Never.", "She <said."]
    assert list(document.sentences) == expected
    answers: list[Translation] = [
        ("B & A", [(0, 2), (1, 1), (2, 0)]),
        ("Un chien rouge grand.", [(0, 0), (1, 3), (2, 2), (3, 1)]),
        ("Viens ou ici.", [(0, 0), (1, 2), (2, 1), (3, 2)]),
        ("Jamais.", None),
        ("Elle <dit.", None),
    ]
    expected_page = (
        PAGE.replace("A &amp; B", "B &amp; A")
        .replace("A <b>big <i>red</i></b> dog.", "Un chien <b><i>rouge</i> grand</b>.")
        .replace("Come <img", "Viens <img")
        .replace('<a href="x?a&amp;b">here</a> or', "ou")
        .replace("home</code>.", 'home</code> <a href="x?a&amp;b">ici</a>.')
        .replace("&nbsp;Never.", "\xa0Jamais.")
        .replace("She <span", "Elle <span")
        .replace("&lt;said", "&lt;dit")
    )
    assert document.rebuild(answers) == expected_page


@pytest.mark.parametrize(
    ("body", "sentences"),
    [
        ("a dog<br>two cats", ["a dog two cats"]),
        ("a dog<BR/>two cats", ["a dog two cats"]),
        ("<b>a dog<br >two</b> cats", ["a dog two cats"]),
        ("a dog<br><br>two cats", ["a dog", "two cats"]),
        ("a dog<br />\n<br />two cats", ["a dog", "two cats"]),
        ("a<br>b<br>c<br><br><br>d", ["a b c", "d"]),
        ("a<br>b<br>", ["a b"]),
        ("a<wbr>b c<img>d <input>e", ["ab cd e"]),
        ("<i>a</i>b <u>c</u> d", ["ab c d"]),
        ("<p>a<div>b</div>c<hr>d", ["a", "b", "c", "d"]),
    ],
)
def test_line_breaks_separate_words_and_two_of_them_paragraphs(
    body: str, sentences: list[str]
) -> None:
    """Other tags in a line separate nothing; tags of blocks begin a paragraph."""
    document = read_document(body, "html", "en")
    assert list(document.sentences) == sentences
    translated = document.rebuild([(text.upper(), None) for text in sentences])
    assert plain_breaks(translated) == plain_breaks(body).upper()


@pytest.mark.parametrize("mark", ["<a id='x'></a>", "<i><b></b></i>", "</i>", "<i>"])
@pytest.mark.parametrize(
    "body",
    ["{}one two three", "one {}two three", "one {} two three", "one two{} three",
     "one two three{}", "one <u>{}two</u> three", "one <u>two{}</u> three", "one. {}Two three",
     "one {}two three{}", "one two {}three.{}", "<u>one {}two three{}</u>"],
)  # fmt: skip
@pytest.mark.parametrize("order", ["012", "210", "102"])
def test_an_empty_pair_or_half_of_one_stands_where_a_picture_would(
    body: str, mark: str, order: str
) -> None:
    """It never encloses a word."""
    links = [(int(source), target) for target, source in enumerate(order)]

    def written(mark: str) -> str:
        document = read_document(body.replace("{}", mark), "html", "en")
        sizes = [len(sentence.split()) for sentence in document.sentences]
        own = [tuple(link for link in links if max(link) < size) for size in sizes]
        texts = [" ".join(["eins", "zwei", "drei"][:size]) for size in sizes]
        return document.rebuild([*zip(texts, own, strict=True)])

    assert written("<img>").count("<img>") == body.count("{}")  # none is lost
    assert written(mark) == written("<img>").replace("<img>", mark)


@pytest.mark.parametrize("links", [None, (), [(0, 1)], [(3, 0)], [(0, 3), (1, 2), (2, 1), (3, 0)]])
@pytest.mark.parametrize("before", ["One dog sees two big cats.", "Go.", "So? Go home now."])
@pytest.mark.parametrize(
    "sentence",
    ["Red <img>cats run <b>home</b>.", "<i>Red</i> cats<img> run home.",
     "Red cats <u>run home.</u>", "Red http://a.de/x cats run home.",
     "Red cats run <code>x</code> home."],
)  # fmt: skip
def test_marks_of_a_sentence_do_not_depend_on_the_sentences_before(
    sentence: str, before: str, links: Links | None
) -> None:
    answer: list[Translation] = [("Rote Katzen laufen heim.", links)]
    alone = read_document(sentence, "html", "en").rebuild(answer)
    document = read_document(f"{before} {sentence}", "html", "en")
    first = same(document.sentences[:-1])
    assert document.rebuild([*first, *answer]) == f"{before} {alone}"


def plain_breaks(text: str) -> str:
    """Return the text with every line break as ``|`` and without other tags."""
    lines = re.sub(r"(?i)<br[^>]*>", "|", text)
    return re.sub(r"\s*<[^>]*>", "", lines)


@pytest.mark.parametrize(
    "mark",
    ["<sup>1</sup>", "<sup><a href='#2'>[2]</a></sup>", "<sup>1,</sup>", "<sup>*</sup>"],
)
def test_a_footnote_stays_behind_its_word_and_is_not_translated(mark: str) -> None:
    document = read_document(f"<p>A dog{mark} runs.{mark} It barks.</p>", "html", "en")
    assert document.sentences == ("A dog runs.", "It barks.")
    links = [(0, 0), (1, 1), (2, 2)]
    translations: list[Translation] = [("Ein Hund rennt.", links), ("Er bellt.", links[:2])]
    assert document.rebuild(translations) == f"<p>Ein Hund{mark} rennt.{mark} Er bellt.</p>"


def test_superscript_words_are_translated() -> None:
    document = read_document("<p>The <sup>upper</sup> word</p>", "html", "en")
    assert document.sentences == ("The upper word",)


def test_web_subtitles_keep_timings_notes_and_marks() -> None:
    second = "00:03.000 --> 00:04.000\n<v Ann>No <00:03.500><b>dog</b> here.\n- Why?\n"
    text = f"{VTT}A dog.\nIt runs.\n\nSTYLE\n::cue {{}}\n\nid 2\n{second}"
    document = read_document(text, "vtt", "en")
    assert document.sentences == ("A dog.", "It runs.", "No dog here.", "Why?")
    links = [(0, 0), (1, 1), (2, 2)]
    words = ["Ein Hund.", "Er rennt.", "Kein Hund hier.", "Warum?"]
    rebuilt = document.rebuild([(each, links[: len(each.split())]) for each in words])
    for old, new in (
        ("A dog.\nIt runs.", "Ein Hund.\nEr rennt."), ("No ", "Kein "), ("dog</b>", "Hund</b>"),
        ("here", "hier"), ("Why?", "Warum?"),
    ):  # fmt: skip
        text = text.replace(old, new)
    assert rebuilt == text
    with pytest.raises(DataError, match="not valid WebVTT"):
        read_document("no subtitles", "vtt", "en")
