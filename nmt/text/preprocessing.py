"""Recognizes text that another tool has segmented, escaped or marked up, by signs in its lines.

A model that is trained on such text also writes it, and its scores are not comparable. nmt needs
plain text, because it segments text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nmt.config.language_codes import primary_code
from nmt.errors import DataError, join_words
from nmt.files.lines import STANDARD_INPUT
from nmt.text.languages import writes_spaces

NUM_LINES = 3000  # First lines of a text, which are searched for signs.
# A text with escapes has almost no lines with the same character unescaped.
_SIGNS_PER_LITERAL = 10
_EXAMPLE_WIDTH = 80
_READERS = {".gz": "zcat", ".bz2": "bzcat", ".xz": "xzcat", ".zst": "zstdcat"}
_WITH_ESCAPES = (".csv", ".json", ".jsonl")  # Formats with escapes of their own.
_UNESCAPE = "python3 -c 'import html, sys; [print(html.unescape(x), end=\"\") for x in sys.stdin]'"
_LANGUAGE = "LANGUAGE"
_DETOKENIZE = f"sacremoses -l {_LANGUAGE} detokenize"
_IF_TOKENIZED = f"If punctuation marks also have spaces before them, use `{_DETOKENIZE}`."
_SEGMENTS = """python3 -c 'import html, re, sys; [print(" ".join(html.unescape(x).split())) \
for x in re.findall("(?is)<seg[^>]*>(.*?)</seg>", sys.stdin.read())]'"""
# Writes a line for each unit of a translation memory, with its languages separated by tabs.
_TMX_TO_TSV = """python3 -c 'import sys, xml.etree.ElementTree as E; \
[print(*(" ".join("".join(s.itertext()).split()) for s in u.iter("seg")), sep="\\t") \
for u in E.parse(sys.stdin.buffer).iter("tu")]'"""
# Removes spaces between two characters that are not ASCII.
_JOIN_WORDS = """python3 -c 'import re, sys; \
[print(re.sub("(?<=[^ -~]) (?=[^ -~])", "", x), end="") for x in sys.stdin]'"""


def _sign(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """A way in which another tool has changed a text.

    The limits lie between the shares of changed texts and of the corpora that we have: Multi30k,
    Tatoeba, NTREX, NLLB-Seed and WMT. Of these, only Moses-tokenized text has any of the signs.
    """

    name: str  # Completes "FILE ...".
    sign: re.Pattern[str]  # Occurs in a line of such a text.
    share: float  # Smallest share of the lines with text that have the sign.
    fewest: int = 5  # Smallest number of these lines: a single line may be about the sign.
    command: str  # A filter of the shell that restores the text.
    advice: str = ""
    literal: str = ""  # A text that is escaped does not contain it.
    start: re.Pattern[str] = re.compile("")  # Beginning of the first line with text.


REFUSED = (
    # Documents come first, because their text is also escaped. They have lines without a sentence:
    # in the sets of WMT, one line in two to four is a segment.
    Preprocessing(
        name="is a document in SGML or XML (<seg id=...>)",
        sign=_sign(r"^\s*<seg\s+id\s*="),
        share=0.2,
        command=_SEGMENTS,
        advice="For a published set of WMT, use `sacrebleu` in place of the files.",
    ),
    Preprocessing(
        name="is a translation memory (TMX)",
        sign=_sign(r"<tuv\b"),
        share=0.1,
        command=_TMX_TO_TSV,
        advice="The result is a TSV file.",
    ),
    # Software has texts with tags, so the first line must also be that of a document.
    Preprocessing(
        name="is a document in XML or HTML",
        sign=_sign(r"^\s*<[a-z/!?]"),
        share=0.2,
        command="",
        advice="Extract the sentences into a text file with one sentence per line.",
        start=_sign(
            r"\s*<(\?xml|!doctype|(srcset|refset|tstset|mteval|tmx|xliff|html|dataset|doc)\b)"
        ),
    ),
    # No line of our corpora has a sign of subwords. But @@ is also an emoticon, and ## a heading,
    # so one line in ten must have the sign. SentencePiece and XLM mark every word, so every line
    # has it.
    Preprocessing(
        name="was segmented by subword-nmt (@@)",
        sign=_sign(r"\S@@( |$)"),
        share=0.1,
        command="sed -E 's/@@( |$)//g'",
    ),
    Preprocessing(
        name="was segmented by SentencePiece (▁)",
        sign=_sign(r"(^| )▁"),
        share=0.5,
        command="sed 's/ //g; s/▁/ /g; s/^ //'",
    ),
    Preprocessing(
        name="was segmented by the tokenizer of BERT (##)",
        sign=_sign(r"\w ##\w+( |$)"),
        share=0.1,
        command="sed 's/ ##//g'",
    ),
    Preprocessing(
        name="was segmented by the tokenizer of XLM (</w>)",
        sign=_sign(r"\S</w>( |$)"),
        share=0.5,
        command="sed -E 's/ //g; s/<\\/w>/ /g; s/ $//'",
    ),
    Preprocessing(
        name="was segmented by the tokenizer of OpenNMT (￭)",
        sign=_sign(r"\S ￭\S|\S￭ \S"),
        share=0.1,
        command="sed 's/ ￭//g; s/￭ //g'",
    ),
    # Moses and HTML escape all quotation marks and apostrophes. These are rare in some texts: the
    # tokenized Multi30k has them in 2.4% of the lines and is not refused. Text about HTML also has
    # characters that are not escaped.
    Preprocessing(
        name="has escaped apostrophes (&apos;)",
        sign=_sign(r"&(amp;)?(apos|#0*39|#x0*27);"),
        share=0.03,
        command=_UNESCAPE,
        advice=_IF_TOKENIZED,
        literal="'",
    ),
    Preprocessing(
        name="has escaped quotation marks (&quot;)",
        sign=_sign(r"&(amp;)?(quot|#0*34|#x0*22);"),
        share=0.03,
        command=_UNESCAPE,
        advice=_IF_TOKENIZED,
        literal='"',
    ),
    Preprocessing(
        name="has hyphens that Moses has separated (@-@)",
        sign=_sign(r"\w (@-@|##AT##-##AT##) \w"),
        share=0.03,
        command="sed -E 's/ (@|##AT##)-(@|##AT##) /-/g'",
        advice=_IF_TOKENIZED,
    ),
)
# Published corpora are tokenized, and the user may want tokenized output. French also has spaces
# before question marks.
TOKENIZED = Preprocessing(
    name="looks tokenized: punctuation marks have spaces before them",
    sign=_sign(r"\S [.,]( |$)"),
    share=1 / 3,
    fewest=1,
    command=_DETOKENIZE,
)
# For a language without spaces. Thai, Lao, Khmer and Burmese have spaces between clauses.
SPACED = Preprocessing(
    name="looks tokenized: words have spaces between them",
    sign=_sign(r"(?:^| )(?:[^\x00-\x7f]{1,8} ){3}"),
    share=0.5,
    fewest=1,
    command=_JOIN_WORDS,
)


@dataclass(frozen=True, slots=True)
class Trace:
    """What another tool has left in a text."""

    kind: Preprocessing
    line: int  # Number of the first line with the sign, from 1.
    example: str  # The start of this line.


def find_trace(lines: Iterable[str], kinds: Sequence[Preprocessing] = REFUSED) -> Trace | None:
    """Return the trace of the first of ``kinds`` that the text has; None without a trace.

    Args:
        lines: The text. Only the first `NUM_LINES` are used.
        kinds: Kinds to search for.
    """
    first_lines = list(islice(lines, NUM_LINES))
    with_text = [line for line in first_lines if line.strip()]
    for kind in kinds:
        signs = [line for line in with_text if kind.sign.search(line)]
        fewest = max(kind.fewest, kind.share * len(with_text))
        if kind.literal:
            literals = [line for line in with_text if kind.literal in line]
            fewest = max(fewest, _SIGNS_PER_LITERAL * len(literals))
        if len(signs) >= fewest and kind.start.match(with_text[0]):
            example = signs[0]
            return Trace(kind, first_lines.index(example) + 1, example.strip()[:_EXAMPLE_WIDTH])
    return None


def check_plain(lines: Iterable[str], name: str) -> None:
    """Check that no tool has segmented, escaped or marked up a text.

    Args:
        lines: The text, from its first line.
        name: Path of the file, or a name in messages.

    Raises:
        DataError: The text has a trace of such a tool.
    """
    trace = find_trace(lines)
    if trace is not None:
        problem = f"{name} {trace.kind.name}, as in line {trace.line:,}: {trace.example}"
        raise DataError(problem, fix=_way_out(trace.kind, name))


def tokenized_text(lines: Iterable[str], language: str) -> str | None:
    """Return a warning if a text in a language looks tokenized, else None."""
    kind = TOKENIZED if writes_spaces(language) else SPACED
    trace = find_trace(lines, [kind])
    if trace is None:
        return None
    command = kind.command.replace(_LANGUAGE, primary_code(language))
    text = f"the text in {language} {kind.name}, as in: {trace.example}\n  "
    text += "A model of tokenized text also writes tokenized text, and its BLEU is comparable only "
    return f"{text}with tokenized references. To restore the text: {command} < FILE > NEW"


def _way_out(kind: Preprocessing, name: str) -> str:
    """Return the command that restores the text of a file, and the advice of its kind."""
    if not kind.command:
        return kind.advice
    suffix = Path(name).suffix
    file = join_words([name])
    if name == STANDARD_INPUT:
        file = "FILE"
    command = f"{kind.command} < {file} > NEW"
    if suffix in _READERS:
        command = f"{_READERS[suffix]} {file} | {kind.command} > NEW"
    if suffix in _WITH_ESCAPES:
        return f"Restore each text of {file}, as this command does with lines: {kind.command}"
    return f"Restore the text: {command}\n  {kind.advice}".rstrip()
