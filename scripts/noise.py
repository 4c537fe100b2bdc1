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
from itertools import islice
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
_LATIN = [each for each in _FOREIGN if "e" in each]


def changed_number(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Change a digit in the target. If it has no number, first add a number to both sides."""
    source, target = pairs[row]
    if not re.search(r"\d", target):
        number = rng.randrange(13, 3000)
        source, target = f"{source} ({number})", f"{target} ({number})"
    place = rng.choice([match.start() for match in re.finditer(r"\d", target)])
    other = str((int(target[place]) + rng.randrange(1, 9)) % 10)
    return source, target[:place] + other + target[place + 1 :]


def replaced_word(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier long pair with one word of the target replaced."""
    earlier = [pair for pair in pairs[:row] if sum(len(side.split()) for side in pair) >= 16]
    source, target = rng.choice(earlier or pairs[:1])
    words = target.split()
    words[rng.randrange(len(words))] = rng.choice(pairs)[1].split()[0]
    return source, " ".join(words)


DAMAGES: dict[str, list[Damage]] = {
    "copy_of_source": [lambda _r, p, i: (p[i][0], p[i][0]), lambda _r, p, i: (p[i][1], p[i][1])],
    "duplicate": [lambda r, p, i: p[r.randrange(max(i, 1))]],
    "normalized_duplicate": [
        lambda r, p, i: (lambda q: (q[0].swapcase(), q[1] + " !"))(p[r.randrange(max(i, 1))])
    ],
    "near_duplicate": [replaced_word],
    "script": [lambda _r, p, i: (p[i][0], "".join(chr(0x430 + ord(c) % 32) if c.isalpha() else c
                                                 for c in p[i][1]))],
    "language": [lambda r, p, i: (p[i][0], r.choice(_LATIN)),
                 lambda r, p, i: (r.choice(_LATIN), p[i][1])],
    "swapped": [lambda _r, p, i: (p[i][1], p[i][0])],
    "mojibake": [lambda _r, p, i: (p[i][0] + " für \u201cx".encode().decode("cp1252", "replace"),
                                   p[i][1]),
                 lambda _r, p, i: (p[i][0], p[i][1] + " Gr\ufffd\ufffde"),
                 lambda _r, p, i: (p[i][0], p[i][1] + " cafÃ©")],
    "control": [lambda r, p, i: (p[i][0], p[i][1][:3] + r.choice("\x07\xad\u200b\x90\u202e\ufeff")
                                 + p[i][1][3:])],
    "markup": [lambda r, p, i: (p[i][0], r.choice(["<b>{}</b>", "{}<br/>", "&quot;{}&quot;",
                                                   "[[{}]]", "{{\\i1}}{}", "[b]{}[/b]"]
                                                  ).format(p[i][1]))],
    "numbers": [changed_number],
    "url": [lambda r, p, i: (f"http://www.example.com/{r.random()}", p[i][1]),
            lambda r, p, i: (p[i][0], f"{p[i][1][:9]} www.example.org/{r.random()}/index.html")],
    "punctuation": [lambda r, p, i: (p[i][0], r.choice(["--- *** ---", "... | |", "@@", "()"]))],
    "repetition": [lambda _r, p, i: (p[i][0], f"{p[i][1]} {' '.join(p[i][1].split()[-1:] * 9)}"),
                   lambda _r, p, i: (p[i][0], f"{p[i][1]} {p[i][1]}"),
                   lambda _r, p, i: (p[i][0], " ".join(p[i][1].split()[:3] * 4))],
    "boilerplate": [lambda _r, p, i: (p[i][0], "Click here to read the whole page.")],
}  # fmt: skip


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
        damaged, rows = list(pairs), sorted(rng.sample(range(len(pairs)), len(pairs) // 50))
        for number, row in enumerate(rows):
            damaged[row] = damages[number % len(damages)](rng, damaged, row)
        found = found_rows(damaged, languages)[name]
        hits = len(found & {*rows})
        share = len(clean[name]) / len(pairs)
        print(
            f"| {name} | {hits / len(rows):.2f} | {hits / max(len(found), 1):.2f} | {share:.2%} |"
        )


if __name__ == "__main__":
    main()
