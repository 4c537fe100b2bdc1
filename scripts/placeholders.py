"""What becomes of placeholders and tags in translations?

    python scripts/placeholders.py runs/multi30k-de-en test.de

The script puts placeholders or a pair of tags between the words of each line, and translates the
line with both engines. It counts the lines whose translation has all of them, those that have them
in the order of the source, and the single placeholders next to the translation of a neighbour. The
translations of words are the word alignments of torch in the line without the placeholder.
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path
from random import Random

import nmt
from nmt.inference.placeholders import placeholder_pattern
from nmt.inference.request import Result

SINGLE = ("{name}", "%s", "{{count}}", "https://example.org/a", "$HOME", "%1$d")
FEWEST_WORDS = 4  # of a line that is used


def marked(line: str, number: int) -> tuple[str, int]:
    """Return a line with placeholders or tags, and the position of the first one.

    Of six lines, four get a placeholder, one gets a pair of tags, and one gets two placeholders.
    """
    words = line.split()
    position = Random(number).randrange(1, len(words))
    placeholder = SINGLE[number % len(SINGLE)]
    kind = number // len(SINGLE) % 6
    if kind == 4:
        words[position] = f"<b>{words[position]}</b>"
    else:
        words.insert(position, placeholder)
    if kind == 5:
        words.insert(1, "{first}")
    return " ".join(words), position


def is_beside_translation(text: str, placeholder: str, plain: Result, position: int) -> bool:
    """Whether a placeholder is next to a translation of the word before or after its place.

    Args:
        text: Translation of the line with the placeholder.
        placeholder: The placeholder.
        plain: Translation of the line without it, with alignments.
        position: Number of the word that follows the placeholder.
    """
    translated = plain.text.split()
    expected = set()
    for source_word, target_word in plain.alignment or ():
        is_neighbour = source_word in (position - 1, position)
        if is_neighbour and target_word < len(translated):
            expected.add(translated[target_word].strip(string.punctuation))
    before, _, after = text.partition(placeholder)
    neighbours = before.split()[-1:] + after.split()[:1]
    return any(word.strip(string.punctuation) in expected for word in neighbours)


def main() -> None:
    """Translate, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path, help="text file, one line per sentence")
    parser.add_argument("--lines", type=int, default=300)
    options = parser.parse_args()
    all_lines = options.source.read_text("utf-8").splitlines()
    long_lines = [line for line in all_lines if len(line.split()) >= FEWEST_WORDS]
    lines = long_lines[: options.lines]
    sources = []
    positions = []
    for number, line in enumerate(lines):
        source, position = marked(line, number)
        sources.append(source)
        positions.append(position)
    pattern = placeholder_pattern()
    found = list(map(pattern.findall, sources))
    num_marks = sum(len(marks) - ("</b>" in marks) for marks in found)
    aligning = nmt.Translator.load(options.model, engine="torch", outputs={"alignments"})
    plain = aligning.translate(lines)
    print(
        f"| {len(lines)} lines, {num_marks} placeholders or pairs of tags | torch | ctranslate2 |"
    )
    print("|---|---|---|")
    rows: dict[str, list[str]] = {}
    for engine in ("torch", "ctranslate2"):
        translator = nmt.Translator.load(options.model, engine=engine)
        texts = [result.text for result in translator.translate(sources)]
        kept = list(map(pattern.findall, texts))
        num_complete = 0
        num_ordered = 0
        for of_source, of_translation in zip(found, kept, strict=True):
            num_complete += sorted(of_source) == sorted(of_translation)
            num_ordered += of_source == of_translation
        singles = [row for row, marks in enumerate(found) if len(marks) == 1]
        num_beside = 0
        for row in singles:
            (mark,) = found[row]
            num_beside += is_beside_translation(texts[row], mark, plain[row], positions[row])
        rows.setdefault("lines with all of them", []).append(str(num_complete))
        rows.setdefault("in the order of the source", []).append(str(num_ordered))
        beside = f"{num_beside} of {len(singles)}"
        rows.setdefault("placeholders next to a translated neighbour", []).append(beside)
    for name, cells in rows.items():
        print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
