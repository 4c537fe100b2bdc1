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
from nmt.data.formats.pair import ReadOptions, SentencePair
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
    positions = [match.start() for match in digits]
    position = rng.choice(positions)
    text_before = target[:position]
    text_after = target[position + 1 :]
    # Adding 1 to 8 always gives a different digit.
    digit = int(target[position]) + rng.randrange(1, 9)
    return source, f"{text_before}{digit % 10}{text_after}"


def replaced_word(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier long pair with one word of the target replaced.

    The new word is the first one of another target. `near_duplicate` ignores short pairs.
    """
    long_pairs = []
    for source, target in pairs[:row]:
        num_words = len(source.split()) + len(target.split())
        if num_words >= 16:
            long_pairs.append((source, target))
    source, target = rng.choice(long_pairs or pairs[:1])
    words = target.split()
    _, another_target = rng.choice(pairs)
    position = rng.randrange(len(words))
    first_word, *_ = another_target.split()
    words[position] = first_word
    return source, " ".join(words)


def earlier_pair(rng: random.Random, pairs: list[Pair], row: int) -> Pair:
    """Repeat an earlier pair; the first pair repeats itself."""
    earlier_row = rng.randrange(max(row, 1))
    return pairs[earlier_row]


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
            changed += chr(0x430 + ord(character) % 32)  # 0x430 is the first of 32 letters.
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
    last_word = text.split()[-1:]  # A list, which is empty if the text is.
    return f"{text} {' '.join(last_word * 9)}"


def repeated_start(_: random.Random, text: str) -> str:
    """Repeat the first three words only."""
    first_words = text.split()[:3]
    return " ".join(first_words * 4)


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
    for row, (source, target) in enumerate(pairs):
        for problem in filters.text_problems(source, target):
            # A reason that is always on is not among `REASONS`.
            reason_rows = rows.setdefault(problem.reason, set())
            reason_rows.add(row)
    with TemporaryDirectory() as folder:
        finder = RepeatFinder(Path(folder))
        hashes = pair_hashes(pairs, sketches=True)
        finder.add(hashes)
        repeats = finder.findings(filters.actions, config)
        problems_by_row = repeats.between(0, len(pairs))
        for row, problems in problems_by_row.items():
            for problem in problems:
                rows[problem.reason].add(row)
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
    all_records = read_corpus(corpus, ReadOptions(*languages))
    records = islice(all_records, options.pairs)
    # Lines that cannot be read are not pairs.
    sentence_pairs = [record for record in records if isinstance(record, SentencePair)]
    pairs = [(pair.source, pair.target) for pair in sentence_pairs]
    num_pairs = len(pairs)
    clean_rows = found_rows(pairs, languages)
    print("| reason | recall | precision | clean |\n|---|---|---|---|")
    for name, damages in DAMAGES.items():
        rng = random.Random(7)
        damaged_pairs = list(pairs)
        sample = rng.sample(range(num_pairs), num_pairs // 50)
        damaged_rows = sorted(sample)
        turns = cycle(damages)  # A filter with several kinds of damage gets them in turn.
        for row in damaged_rows:
            damage = next(turns)
            damaged_pairs[row] = damage(rng, damaged_pairs, row)
        filtered_rows = found_rows(damaged_pairs, languages)[name]
        num_hits = len(filtered_rows.intersection(damaged_rows))
        recall = num_hits / len(damaged_rows)
        precision = num_hits / max(len(filtered_rows), 1)
        clean_share = len(clean_rows[name]) / num_pairs
        print(f"| {name} | {recall:.2f} | {precision:.2f} | {clean_share:.2%} |")


if __name__ == "__main__":
    main()
