"""Measure precision and recall of every filter of ``nmt prepare`` on damaged copies of a corpus.

For each filter, the script damages 2% of the first pairs of a corpus, and applies the filter to all
of them. Recall is the share of the damaged pairs that the filter finds. Precision is the share of
damaged pairs among the pairs that it finds. "clean" is the share of pairs that it finds in the
undamaged corpus.

    python scripts/noise.py SOURCE TARGET SOURCE_LANGUAGE TARGET_LANGUAGE
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

from nmt.config.data import CorpusConfig, FilterConfig
from nmt.data.corpus import read_corpus
from nmt.data.filters import REASONS, training_filters
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.extras.cleaning.repeats import RepeatFinder, pair_hashes

Pair = tuple[str, str]
Damage = Callable[[random.Random, list[Pair], int], Pair]
_FOREIGN = [
    "Je ne sais pas pourquoi il est parti si tôt ce matin.", "Δεν ξέρω γιατί έφυγε τόσο νωρίς.",
    "No sé por qué se fue tan temprano esta mañana.", "Nie wiem, dlaczego wyszedł tak wcześnie.",
    "Non so perché se ne sia andato così presto stamattina.", "Я не знаю, почему он так рано ушёл.",
]  # fmt: skip
_LATIN = [sentence for sentence in _FOREIGN if "e" in sentence]
_HIDDEN = "\x07\xad\u200b\x90\u202e\ufeff"
_MARKUP = ["<b>{}</b>", "{}<br/>", "&quot;{}&quot;", "[[{}]]", "{{\\i1}}{}", "[b]{}[/b]"]
_PUNCTUATION = ["--- *** ---", "... | |", "@@", "()"]


def changed_number(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Change a digit in the target. If it has no number, first add a number to both sides."""
    source, target = pairs[row]
    if not re.search(r"\d", target):
        number = rng.randrange(13, 3000)
        source += f" ({number})"
        target += f" ({number})"
    places = [match.start() for match in re.finditer(r"\d", target)]
    place = rng.choice(places)
    digit = int(target[place]) + rng.randrange(1, 9)
    return source, f"{target[:place]}{digit % 10}{target[place + 1 :]}"


def replaced_word(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier long pair with one word of the target replaced."""
    earlier = []
    for source, target in pairs[:row]:
        if len(source.split()) + len(target.split()) >= 16:
            earlier.append((source, target))
    source, target = rng.choice(earlier or pairs[:1])
    words = target.split()
    _, other = rng.choice(pairs)
    place = rng.randrange(len(words))
    words[place] = other.split()[0]
    return source, " ".join(words)


def earlier_pair(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier pair."""
    return pairs[rng.randrange(max(row, 1))]


def other_case(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier pair with a source in other case and more punctuation in the target."""
    source, target = earlier_pair(rng, pairs, row)
    return source.swapcase(), f"{target} !"


def in_pair(change: Callable[[random.Random, str, str], Pair]) -> Damage:
    """Return a damage that depends on the pair only."""
    return lambda rng, pairs, row: change(rng, *pairs[row])


def in_source(change: Callable[[random.Random, str], str]) -> Damage:
    """Return a damage of the source."""
    return in_pair(lambda rng, source, target: (change(rng, source), target))


def in_target(change: Callable[[random.Random, str], str]) -> Damage:
    """Return a damage of the target."""
    return in_pair(lambda rng, source, target: (source, change(rng, target)))


def cyrillic(_: random.Random, text: str) -> str:
    """Replace each letter by a Cyrillic letter."""
    changed = ""
    for character in text:
        if character.isalpha():
            changed += chr(0x430 + ord(character) % 32)
        else:
            changed += character
    return changed


def wrong_encoding(_: random.Random, text: str) -> str:
    """Append words in UTF-8 that were read as Windows-1252."""
    return text + " für \u201cx".encode().decode("cp1252", "replace")


def hidden_character(rng: random.Random, text: str) -> str:
    """Insert a control character or an invisible character."""
    return text[:3] + rng.choice(_HIDDEN) + text[3:]


def repeated_end(_: random.Random, text: str) -> str:
    """Repeat the last word nine times."""
    last = text.split()[-1:]
    return f"{text} {' '.join(last * 9)}"


def repeated_start(_: random.Random, text: str) -> str:
    """Repeat the first three words only."""
    first = text.split()[:3]
    return " ".join(first * 4)


DAMAGES: dict[str, list[Damage]] = {
    "copy_of_source": [
        in_pair(lambda _, source, _target: (source, source)),
        in_pair(lambda _, _source, target: (target, target)),
    ],
    "duplicate": [earlier_pair],
    "normalized_duplicate": [other_case],
    "near_duplicate": [replaced_word],
    "script": [in_target(cyrillic)],
    "language": [
        in_target(lambda rng, _: rng.choice(_LATIN)),
        in_source(lambda rng, _: rng.choice(_LATIN)),
    ],
    "swapped": [in_pair(lambda _, source, target: (target, source))],
    "mojibake": [
        in_source(wrong_encoding),
        in_target(lambda _, text: f"{text} Gr\ufffd\ufffde"),
        in_target(lambda _, text: f"{text} cafÃ©"),
    ],
    "control": [in_target(hidden_character)],
    "markup": [in_target(lambda rng, text: rng.choice(_MARKUP).format(text))],
    "numbers": [changed_number],
    "url": [
        in_source(lambda rng, _: f"http://www.example.com/{rng.random()}"),
        in_target(lambda rng, text: f"{text[:9]} www.example.org/{rng.random()}/index.html"),
    ],
    "punctuation": [in_target(lambda rng, _: rng.choice(_PUNCTUATION))],
    "repetition": [
        in_target(repeated_end),
        in_target(lambda _, text: f"{text} {text}"),
        in_target(repeated_start),
    ],
    "boilerplate": [in_target(lambda *_: "Click here to read the whole page.")],
}


def found_rows(pairs: list[Pair], languages: tuple[str, str]) -> dict[str, set[int]]:
    """Return the rows that each filter finds, with default limits."""
    filters = training_filters(FilterConfig(), *languages)
    rows: dict[str, set[int]] = {name: set() for name in REASONS}
    for row, pair in enumerate(pairs):
        for finding in filters.text_problems(*pair):
            rows.setdefault(finding.reason, set()).add(row)
    with tempfile.TemporaryDirectory() as folder:
        finder = RepeatFinder(Path(folder))
        finder.add(pair_hashes(pairs, sketches=True))
        repeats = finder.findings(filters.actions, FilterConfig())
        for row, findings in repeats.between(0, len(pairs)).items():
            for finding in findings:
                rows[finding.reason].add(row)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("languages", nargs=2)
    parser.add_argument("--pairs", type=int, default=5000, help="number of pairs to read")
    options = parser.parse_args()
    languages = (options.languages[0], options.languages[1])
    corpus = CorpusConfig(source=options.source, target=options.target)
    read = islice(read_corpus(corpus, ReadOptions(*languages)), options.pairs)
    pairs = [(pair.source, pair.target) for pair in read if isinstance(pair, SentencePair)]
    clean = found_rows(pairs, languages)
    print("| reason | recall | precision | clean |\n|---|---|---|---|")
    for name, damages in DAMAGES.items():
        rng = random.Random(7)
        damaged = list(pairs)
        rows = sorted(rng.sample(range(len(pairs)), len(pairs) // 50))
        for row, damage in zip(rows, cycle(damages), strict=False):
            damaged[row] = damage(rng, damaged, row)
        found = found_rows(damaged, languages)[name]
        hits = len(found & {*rows})
        share = len(clean[name]) / len(pairs)
        print(
            f"| {name} | {hits / len(rows):.2f} | {hits / max(len(found), 1):.2f} | {share:.2%} |"
        )


if __name__ == "__main__":
    main()
