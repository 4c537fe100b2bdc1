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
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from nmt.config.data import CorpusConfig, FilterConfig
from nmt.data.corpus import read_corpus
from nmt.data.filters import REASONS, training_filters
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.extras.cleaning.repeats import RepeatFinder, pair_hashes

Pair = tuple[str, str]
Damage = Callable[[random.Random, list[Pair], int], Pair]
"""Generator, all pairs and the row of a pair -> the damaged pair."""
Change = Callable[[random.Random, str], str]
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
    digits = re.finditer(r"\d", target)
    places = [digit.start() for digit in digits]
    place = rng.choice(places)
    before = target[:place]
    after = target[place + 1 :]
    number = int(target[place])
    number += rng.randrange(1, 9)
    return source, f"{before}{number % 10}{after}"


def replaced_word(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier long pair with one word of the target replaced."""
    earlier = []
    for source, target in pairs[:row]:
        num_words = len(source.split()) + len(target.split())
        if num_words >= 16:
            earlier.append((source, target))
    source, target = rng.choice(earlier or pairs[:1])
    words = target.split()
    _, other = rng.choice(pairs)
    place = rng.randrange(len(words))
    word, *_ = other.split()
    words[place] = word
    return source, " ".join(words)


def earlier_pair(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier pair."""
    chosen = rng.randrange(max(row, 1))
    return pairs[chosen]


def other_case(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier pair with a source in other case and more punctuation in the target."""
    source, target = earlier_pair(rng, pairs, row)
    return source.swapcase(), f"{target} !"


def in_source(change: Change) -> Damage:
    """Return a damage of the source."""

    def damage(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
        source, target = pairs[row]
        return change(rng, source), target

    return damage


def in_target(change: Change) -> Damage:
    """Return a damage of the target."""

    def damage(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
        source, target = pairs[row]
        return source, change(rng, target)

    return damage


def source_twice(_: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Replace the target by the source."""
    source, _target = pairs[row]
    return source, source


def target_twice(_: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Replace the source by the target."""
    _source, target = pairs[row]
    return target, target


def swapped(_: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Swap source and target."""
    source, target = pairs[row]
    return target, source


def other_language(rng: random.Random, _: str) -> str:
    """Replace the text by a sentence in another language with the same script."""
    return rng.choice(_LATIN)


def address(rng: random.Random, _: str) -> str:
    """Replace the text by an address."""
    return f"http://www.example.com/{rng.random()}"


def with_address(rng: random.Random, text: str) -> str:
    """Replace most of the text by an address."""
    return f"{text[:9]} www.example.org/{rng.random()}/index.html"


def with_markup(rng: random.Random, text: str) -> str:
    """Put the text into markup."""
    markup = rng.choice(_MARKUP)
    return markup.format(text)


def only_punctuation(rng: random.Random, _: str) -> str:
    """Replace the text by punctuation."""
    return rng.choice(_PUNCTUATION)


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
    encoded = " für \u201cx".encode()
    return text + encoded.decode("cp1252", "replace")


def hidden_character(rng: random.Random, text: str) -> str:
    """Insert a control character or an invisible character."""
    character = rng.choice(_HIDDEN)
    return f"{text[:3]}{character}{text[3:]}"


def repeated_end(_: random.Random, text: str) -> str:
    """Repeat the last word nine times."""
    last = text.split()[-1:]
    return f"{text} {' '.join(last * 9)}"


def repeated_start(_: random.Random, text: str) -> str:
    """Repeat the first three words only."""
    first = text.split()[:3]
    return " ".join(first * 4)


DAMAGES: dict[str, list[Damage]] = {
    "copy_of_source": [source_twice, target_twice],
    "duplicate": [earlier_pair],
    "normalized_duplicate": [other_case],
    "near_duplicate": [replaced_word],
    "script": [in_target(cyrillic)],
    "language": [in_target(other_language), in_source(other_language)],
    "swapped": [swapped],
    "mojibake": [
        in_source(wrong_encoding),
        in_target(lambda _, text: f"{text} Gr\ufffd\ufffde"),
        in_target(lambda _, text: f"{text} cafÃ©"),
    ],
    "control": [in_target(hidden_character)],
    "markup": [in_target(with_markup)],
    "numbers": [changed_number],
    "url": [in_source(address), in_target(with_address)],
    "punctuation": [in_target(only_punctuation)],
    "repetition": [
        in_target(repeated_end),
        in_target(lambda _, text: f"{text} {text}"),
        in_target(repeated_start),
    ],
    "boilerplate": [in_target(lambda *_: "Click here to read the whole page.")],
}


def found_rows(pairs: list[Pair], languages: tuple[str, str]) -> dict[str, set[int]]:
    """Return the rows that each filter finds, with default limits."""
    config = FilterConfig()
    filters = training_filters(config, *languages)
    rows: dict[str, set[int]] = {name: set() for name in REASONS}
    for row, pair in enumerate(pairs):
        for finding in filters.text_problems(*pair):
            of_reason = rows.setdefault(finding.reason, set())
            of_reason.add(row)
    with TemporaryDirectory() as folder:
        finder = RepeatFinder(Path(folder))
        hashes = pair_hashes(pairs, sketches=True)
        finder.add(hashes)
        repeats = finder.findings(filters.actions, config)
        findings_of = repeats.between(0, len(pairs))
        for row, findings in findings_of.items():
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
    source_language, target_language = options.languages
    languages = (source_language, target_language)
    corpus = CorpusConfig(source=options.source, target=options.target)
    every = read_corpus(corpus, ReadOptions(*languages))
    rows_of_text = islice(every, options.pairs)
    read = [row for row in rows_of_text if isinstance(row, SentencePair)]
    pairs = [(pair.source, pair.target) for pair in read]
    count = len(pairs)
    clean = found_rows(pairs, languages)
    print("| reason | recall | precision | clean |\n|---|---|---|---|")
    for name, damages in DAMAGES.items():
        rng = random.Random(7)
        damaged = list(pairs)
        sample = rng.sample(range(count), count // 50)
        rows = sorted(sample)
        turns = cycle(damages)
        for row in rows:
            damage = next(turns)
            damaged[row] = damage(rng, damaged, row)
        found = found_rows(damaged, languages)[name]
        hits = len(found.intersection(rows))
        recall = hits / len(rows)
        precision = hits / max(len(found), 1)
        share = len(clean[name]) / count
        print(f"| {name} | {recall:.2f} | {precision:.2f} | {share:.2%} |")


if __name__ == "__main__":
    main()
