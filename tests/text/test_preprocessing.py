"""Text that another tool has segmented, escaped or marked up is told from plain text."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.text.preprocessing import NUM_LINES, check_plain, find_preprocessing, tokenized_text
from tests.process import LIMIT

PLAIN = [
    'Don\'t say "no", said the well-known farmer.',
    "It's raining in O'Brien's town.",
    'The so-called "experts" weren\'t right.',
    "She's an ex-teacher; he's called \"Max\".",
    "That isn't a must-have, it's \"nice\".",
    "They're on-line, aren't they?",
]
RULES = ("'", "&apos;"), ('"', "&quot;")


def per_word(line: str, change: Callable[[str], str]) -> str:
    return " ".join(change(word) for word in line.split())


def in_parts(word: str, joint: str) -> str:
    return joint.join(re.findall(".{1,3}", word))


def escaped(line: str) -> str:
    for character, escape in RULES:
        line = line.replace(character, escape)
    return line


# By tool: what it makes of a line of `PLAIN`, and how its message names it.
TOOLS: dict[str, tuple[Callable[[str], str], str]] = {
    "subword-nmt": (lambda x: per_word(x, lambda w: in_parts(w, "@@ ")), "subword-nmt (@@)"),
    "SentencePiece": (lambda x: per_word(x, lambda w: in_parts(f"▁{w}", " ")), "SentencePiece (▁)"),
    "BERT": (lambda x: re.sub(r"(\w{3})(\w)", r"\1 ##\2", x), "BERT (##)"),
    "XLM": (lambda x: per_word(x, lambda w: f"{in_parts(w, ' ')}</w>"), "XLM (</w>)"),
    "OpenNMT": (lambda x: re.sub(r"(\w)([^\w\s])", r"\1 ￭\2", x), "OpenNMT (￭)"),
    "Moses": (escaped, "escaped apostrophes (&apos;)"),
    "HTML": (lambda x: html.escape(x), "escaped apostrophes (&apos;)"),
    "capitals": (lambda x: escaped(x).replace("apos", "APOS"), "escaped apostrophes (&apos;)"),
    "twice": (lambda x: html.escape(escaped(x)), "escaped apostrophes (&apos;)"),
    "only quotes": (lambda x: f'"{x}'.replace('"', "&quot;"), "escaped quotation marks (&quot;)"),
    "GPT-2": (lambda x: per_word(x, lambda w: in_parts(f"Ġ{w}", " ")), "GPT-2 (Ġ)"),
    "entities": (lambda x: f"{x} &amp; ä".replace("ä", "&auml;"), "escaped characters (&amp;)"),
    "hyphens": (lambda x: f"{x} a @-@ b", "that a tokenizer has separated (@-@)"),
    "WikiText": (lambda x: f"{x} 1 @,@ 000", "that a tokenizer has separated (@-@)"),
    "properties": (lambda x: f"app.key{len(x)} = {x}", "a key in front of each text (KEY=TEXT)"),
    "wrong encoding": (lambda x: f"{x} ü".encode().decode("cp1252"), "(Ã¼ instead of ü)"),
    "a table": (lambda x: f"{x}\ttrain", "several columns, with tabs between them"),
    "a spreadsheet": (lambda x: '"' + x.replace('"', '""') + '"', '("TEXT")'),
    "n-best": (lambda x: f"{len(x)} ||| {x} ||| -0.5", "(0 ||| TEXT ||| SCORE)"),
    "fairseq": (lambda x: f"H-{len(x)}\t-0.5\t{x}", "fairseq-generate (H-0)"),
    "Stanford": (lambda x: f"{x} a ##AT##-##AT## b", "that a tokenizer has separated (@-@)"),
}  # fmt: skip


@pytest.mark.parametrize("tool", [*TOOLS])
@pytest.mark.parametrize("ending", ["", "\r"])
def test_text_of_a_tool_is_refused_with_its_place_and_the_command(tool: str, ending: str) -> None:
    change, name = TOOLS[tool]
    lines = [change(line) + ending for line in PLAIN]
    with pytest.raises(DataError) as caught:
        check_plain(["", *lines], "my text.en.gz")
    problem, fix = caught.value.problem, caught.value.fix or ""
    assert problem.startswith("my text.en.gz ")
    assert f"{name}, as in line " in problem
    number, _, example = problem.partition("as in line ")[2].partition(": ")
    assert lines[int(number) - 2].strip()[:80] == example
    assert "zcat 'my text.en.gz' | " in fix or sys.platform == "win32"
    assert caught.value.exit_code == 3


@pytest.mark.skipif(
    None in map(shutil.which, ("bash", "sed", "python3")), reason="needs the tools of a shell"
)
@pytest.mark.parametrize(
    "tool",
    [
        "subword-nmt", "SentencePiece", "BERT", "XLM", "GPT-2", "OpenNMT", "Moses", "properties",
        "a table", "a spreadsheet", "n-best",
    ],
)  # fmt: skip
def test_the_command_restores_the_text(tool: str) -> None:
    change, _ = TOOLS[tool]
    Path("t.en").write_text("".join(f"{change(line)}\n" for line in PLAIN), "utf-8")
    run_fix("t.en")
    assert Path("NEW").read_text("utf-8").splitlines() == PLAIN


def test_the_command_sorts_the_best_translations_of_fairseq() -> None:
    """Sentence 10 follows sentence 9; the second translation of a sentence is left out."""
    kinds = ("S-{}\tx\n", "T-{}\tx\n", "H-{}\t-0.1\tbest {}\n", "H-{}\t-0.2\tother {}\n")
    lines = [kind.format(n, n) for n in (10, 1, 9, 0) for kind in kinds]
    Path("t.out").write_text("".join(lines), "utf-8")
    run_fix("t.out")
    assert Path("NEW").read_text("utf-8") == "best 0\nbest 1\nbest 9\nbest 10\n"


def test_the_command_keeps_the_first_of_the_best_translations() -> None:
    lines = [f"{n} ||| best {n} ||| -1\n{n} ||| other {n} ||| -2\n" for n in range(9)]
    Path("t.en").write_text("".join(lines), "utf-8")
    run_fix("t.en")
    assert Path("NEW").read_text("utf-8").splitlines() == [f"best {n}" for n in range(9)]


def test_the_command_removes_quotation_marks_before_the_line_ends_of_a_spreadsheet() -> None:
    Path("t.en").write_bytes(b'"so ""good"" a text"\r\n' * 9)
    run_fix("t.en")
    assert Path("NEW").read_text("utf-8").splitlines() == ['so "good" a text'] * 9


def run_fix(name: str) -> None:
    """Type the first command of the fix."""
    with pytest.raises(DataError) as caught:
        check_plain(Path(name).read_text("utf-8").split("\n"), name)
    command = str(caught.value.fix).partition("Restore the text: ")[2].partition("\n")[0]
    assert command.endswith(" > NEW")
    subprocess.run(["bash", "-c", command], check=True, timeout=LIMIT)


SGML = [
    '<SRCSET setid="newstest2014" srclang="en" trglang="de">',
    '<DOC docid="abc.1">', "<p>",
    *(f'<seg id="{n}"> {html.escape(line)}</seg>' for n, line in enumerate(PLAIN, 1)),
    "</p>", "</DOC>", "</SRCSET>",
]  # fmt: skip
TMX = ['<?xml version="1.0" encoding="UTF-8"?>', '<tmx version="1.4">', "<header/>", "<body>"]
for text in PLAIN:
    TMX += ["<tu>", '<tuv xml:lang="en">', f"<seg>{text}</seg>", "</tuv>"]
    TMX += ['<tuv xml:lang="de">', f"<seg>{text.upper()}</seg>", "</tuv>", "</tu>"]
TMX += ["</body>", "</tmx>"]
SUBTITLES = []
for number, text in enumerate(PLAIN):
    SUBTITLES += [f"{number}", f"00:00:{number:02d},500 --> 00:00:{number:02d},900", text, text, ""]
HTML = ["<!DOCTYPE html>", "<html>", "<body>", *(f"<p>{line}</p>" for line in PLAIN), "</body>"]


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (SGML, "is a document in SGML or XML (<seg id=...>)"),
        ([line.upper() for line in SGML], "is a document in SGML or XML (<seg id=...>)"),
        (SGML[3:-3], "is a document in SGML or XML (<seg id=...>)"),
        ([*PLAIN, "<P>", '<SPEAKER ID="1">'] * 3, "has lines that are only a tag (<P>)"),
        (TMX, "is a translation memory (TMX)"),
        (SUBTITLES, "is a file of subtitles with times"),
        (["", *HTML], "is a document in XML or HTML"),
        (['<?xml version="1.0"?>', "<xliff>", *HTML[2:]], "is a document in XML or HTML"),
    ],
    ids=["sgm", "capitals", "segments", "europarl", "tmx", "srt", "html", "xliff"],
)
def test_a_document_is_refused(lines: list[str], name: str) -> None:
    with pytest.raises(DataError) as caught:
        check_plain(lines, "x.sgm")
    assert caught.value.problem.startswith(f"x.sgm {name}, as in line ")
    assert caught.value.fix


@pytest.mark.skipif(
    None in map(shutil.which, ("bash", "sed", "python3")), reason="needs the tools of a shell"
)
def test_the_commands_extract_the_segments_of_documents() -> None:
    blank = '<seg id="7"></seg>'
    Path("t.sgm").write_text("\n".join([*SGML[:-3], blank, *SGML[-3:]]) + "\n", "utf-8")
    run_fix("t.sgm")
    assert Path("NEW").read_text("utf-8").split("\n") == [*PLAIN, "", ""]
    Path("t.tmx").write_text("\n".join(TMX), "utf-8")
    run_fix("t.tmx")
    assert Path("NEW").read_text("utf-8").splitlines() == [f"{x}\t{x.upper()}" for x in PLAIN]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_the_command_is_not_run_on_a_format_with_escapes(suffix: str) -> None:
    with pytest.raises(DataError) as caught:
        check_plain([escaped(line) for line in PLAIN], f"x{suffix}")
    assert str(caught.value.fix).startswith(f"Restore each text of x{suffix}, as this command ")


SIGNS = (
    "a@@", "@@ -1,3 +1,4 @@", "▁▂▃", "## Title", "word ##ing", "</w>", "a</w>", "￭", "&apos;",
    "&quot;", "&amp;apos;", "&#39;", "@-@", "a @-@ b", '<seg id="1">', "<tuv>", "<html>", "<p>",
    "<?xml version='1.0'?>", "x .", "x , y", "a = b", "Ã¼", "0:00,500 --> 0:01,000",
    '"a b"', "H-1\ta\tb", "1 ||| a ||| b", "a\tb",
)  # fmt: skip
WORDS = st.lists(
    st.sampled_from(("don't", '"so"', "well-known", "häuser", "狗", "3,000")), max_size=9
)
PROSE = st.lists(WORDS.map(" ".join), min_size=6, max_size=40)


@given(PROSE, st.data())
def test_up_to_four_lines_with_signs_never_make_a_text_refused(
    lines: list[str], data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(lines) - 1))
        lines[place] += f" {data.draw(st.sampled_from(SIGNS))} {data.draw(WORDS.map(' '.join))}"
    check_plain(lines, "x")


@given(st.sampled_from(SIGNS), st.text("ab '\"", max_size=9), st.booleans())
def test_a_single_line_with_a_sign_is_never_refused(sign: str, text: str, is_first: bool) -> None:
    check_plain([f"{sign} {text}" if is_first else f"{text} {sign}"], "x")


def test_text_about_escapes_also_has_characters_that_are_not_escaped() -> None:
    about = ["Write &quot; and &apos; in attributes."] * 30
    check_plain(['It\'s the "shortest" way.'] * 4 + about, "x")
    with pytest.raises(DataError):
        check_plain(['It\'s the "shortest" way.'] * 2 + about, "x")


@pytest.mark.parametrize(("num_plain", "is_refused"), [(45, True), (46, False)])
def test_a_share_of_the_lines_decides_and_blank_lines_do_not_count(
    num_plain: int, is_refused: bool
) -> None:
    """5 of 50 lines are the share of subword-nmt."""
    lines = ["a long line", ""] * num_plain + ["ein H@@ und"] * 5
    assert (find_preprocessing(lines) is not None) == is_refused


def test_only_the_first_lines_are_read() -> None:
    read: list[int] = []

    def lines(text: str) -> Iterator[str]:
        for number in range(NUM_LINES + 9):
            read.append(number)
            yield text if number < NUM_LINES else "ein H@@ und"

    assert find_preprocessing(lines("ein Hund")) is None
    assert len(read) <= NUM_LINES + 1


@pytest.mark.parametrize(
    ("language", "line", "is_tokenized"),
    [
        ("zh", "\u4f60\u597d \uff0c \u4e16\u754c \u3002", True),
        ("ur", "\u06cc\u06c1 \u06a9\u062a\u0627\u0628 \u06c1\u06d2 \u06d4", True),
        ("en", "two young , white males are outside .", True),
        ("en", "Two young, white males are outside.", False),
        ("fr", "Comment ça va ? Très bien !", False),  # as it is written
        ("ja", "彼 ら は 学校 に 行っ た 。", True),
        ("jpn", "彼 ら は 学校 に 行っ た 。", True),
        ("zho_Hans", "他 今天 没有 去 学校 。", True),
        ("zh", "我用 iPhone 5 和 Windows 10 上网。", False),
        ("ja", "はい。 そうです。", False),
        ("ko", "그는 오늘 학교에 가지 않았다.", False),
        ("th", "เขาไปโรงเรียน และกลับบ้านในตอนเย็น", False),
    ],
)
def test_text_that_looks_tokenized_is_told_but_not_refused(
    language: str, line: str, is_tokenized: bool
) -> None:
    check_plain([line] * 20, "x")
    warning = tokenized_text([line] * 20, language)
    assert (warning is not None) == is_tokenized
    if warning is not None:
        assert line in warning
        assert "detokenize < FILE" in warning or "python3 -c" in warning
