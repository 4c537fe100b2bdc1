"""Signs of trouble in a corpus: found where there is trouble, and only there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nmt.config.data import Direction
from nmt.data.checks import (
    CorpusCheck,
    Overlap,
    likely_language,
    other_language,
    swapped_sets,
)
from nmt.data.formats.pair import SentencePair
from nmt.files.lines import read_lines
from tests.commands.preparing import config_for, write_pairs

Pairs = list[tuple[str, str]]


def checked(
    pairs: Pairs, languages: tuple[str, str] = ("de", "en"), block: int = 700
) -> CorpusCheck:
    check = CorpusCheck(*languages)
    for start in range(0, len(pairs), block):
        check.update(pairs[start : start + block])
    return check


def read_pairs(source: Path, target: Path) -> Pairs:
    return list(zip(read_lines(source), read_lines(target), strict=True))


@pytest.fixture(scope="module")
def multi30k(shared_data: Path) -> Pairs:
    folder = shared_data / "multi30k"
    return read_pairs(folder / "train.de.gz", folder / "train.en.gz")[:5000]


def test_real_text_raises_no_warning(multi30k: Pairs) -> None:
    assert list(checked(multi30k).warnings()) == []
    assert list(checked(sorted(multi30k, key=lambda pair: len(pair[0]))).warnings()) == []
    assert list(checked(multi30k[:99]).warnings()) == []


def test_swapped_languages_are_noticed(multi30k: Pairs, shared_data: Path) -> None:
    """FAULTS 38."""
    swapped = [(target, source) for source, target in multi30k]
    (warning,) = checked(swapped).warnings()
    assert warning.endswith("Are the sides swapped?")
    assert list(checked(swapped, ("en", "de-AT")).warnings()) == []
    assert list(checked(swapped, ("xx", "yy")).warnings()) == []
    # One known language is enough.
    assert any("swapped" in text for text in checked(swapped, ("xx", "en")).warnings())
    folder = shared_data / "small_parallel_enja"  # scripts tell languages, too
    pairs = read_pairs(folder / "dev.en.gz", folder / "dev.ja.gz")
    assert not any("swapped" in text for text in checked(pairs, ("en", "ja")).warnings())
    assert any("swapped" in text for text in checked(pairs, ("ja", "en")).warnings())


def test_text_of_another_language_is_named(multi30k: Pairs, shared_data: Path) -> None:
    german, english = zip(*multi30k, strict=True)
    moroccan = read_lines(shared_data / "nllb_seed_en_ary" / "dev.ary.gz")
    for text, language in ((german, "de"), (english, "en"), (moroccan, "ary")):
        assert other_language(text, language, ["en", "de", "ary"]) is None
        assert other_language(text[:9], language, ["en", "de", "ary"]) is None
    assert other_language(english, "de", ["cs"]) == "en"
    assert other_language(moroccan, "en", ["ary"]) == "ary"
    assert other_language(["a"] * 50, "de", ["en"]) is None  # a letter of five languages
    assert other_language(english, "xx", ["de"]) is None  # nobody knows what xx looks like


def test_corpora_with_swapped_sides_are_named_before_training(
    multi30k: Pairs, tmp_path: Path
) -> None:
    """Each corpus is compared with its own languages; what cannot be read is not judged."""
    german, english = ([*side[:500]] for side in zip(*multi30k, strict=True))
    forwards = write_pairs(tmp_path, german, english, "forwards")
    backwards = write_pairs(tmp_path, english, german, "backwards")
    reverse = {"source_language": "en", "target_language": "de"}
    data = {
        "train": [
            forwards, {**backwards, **reverse}, backwards, {**forwards, **reverse},
            {"tsv": "-"}, {"tsv": str(tmp_path / "missing")},
        ],
        "valid": backwards, "test": {"news": backwards, "good": forwards},
    }  # fmt: skip
    warnings = list(swapped_sets(config_for(tmp_path, data=data)))
    swapped = ["data.train.2", "data.train.3", "data.valid", "data.test.news"]
    assert [text.split(": ")[0] for text in warnings] == swapped


def test_the_language_of_a_file_is_detected_only_if_it_is_clear(multi30k: Pairs) -> None:
    german, english = zip(*multi30k[:200], strict=True)
    assert likely_language(german) == "de"
    assert likely_language(english) == "en"
    assert likely_language(german[:20]) == "de"
    assert likely_language(german[:19]) is None  # too few lines
    assert likely_language([*german, *english]) is None
    assert likely_language(["12 + 34"] * 50) is None


def test_unrelated_and_identical_sides_are_noticed(multi30k: Pairs) -> None:
    """FAULTS 38."""
    targets = [target for _, target in multi30k]
    random.Random(1).shuffle(targets)
    pairs = [(source, target) for (source, _), target in zip(multi30k, targets, strict=True)]
    (warning,) = checked(pairs).warnings()
    assert "hardly correlate" in warning
    check = checked([("gleich", "gleich"), *[("ein", "a"), ("zwei", "two")] * 4])
    assert "11% of the pairs have identical sides" in next(check.warnings())


def test_a_pair_counts_once_however_many_of_its_references_occur() -> None:
    there = Direction("de", "en")
    pairs = [
        SentencePair("eins", "one", 1, ("an one", "a one")),
        SentencePair("zwei", "two", 2, ("a pair",)),
        SentencePair("drei", "three", 3),
    ]
    overlap = Overlap({"valid": pairs}, {"valid": there})
    overlap.see([SentencePair("eins", "a one", 1), SentencePair("eins", "an one", 2)], there)
    overlap.see([SentencePair("Paar", "a  pair", 3)], there)
    assert overlap.counts()["valid"] == {
        "pairs": 3, "sources_in_train": 1, "near_sources_in_train": 0,
        "targets_in_train": 2, "pairs_in_train": 1,
    }  # fmt: skip


def test_held_out_sentences_of_both_sides_are_counted() -> None:
    """FAULTS 39."""
    there = Direction("de", "en")
    overlap = Overlap({
        "valid": [SentencePair("eins", "one", 1), SentencePair("zwei", "two", 2)],
        "test": [SentencePair("eins", "a", 1), SentencePair("vier", "four", 3)],
    }, {"valid": there, "test": there})  # fmt: skip
    first, last = SentencePair("eins ", "one", 8), SentencePair("zwei", "deux", 9)
    overlap.see([first, last], there)
    overlap.see([SentencePair("fünf", "four", 10)], there)
    overlap.see([SentencePair("vier", "two", 11)], Direction("de", "fr"))  # other languages
    overlap.see([SentencePair("four", "vier", 12)], Direction("en", "de"))  # the same pair
    assert overlap.counts() == {
        "valid": {"pairs": 2, "sources_in_train": 2, "near_sources_in_train": 0,
                  "targets_in_train": 1, "pairs_in_train": 1},
        "test": {"pairs": 2, "sources_in_train": 2, "near_sources_in_train": 0,
                 "targets_in_train": 1, "pairs_in_train": 1},
    }  # fmt: skip
