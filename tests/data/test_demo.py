"""The demo corpus: right German, a function of the source, held-out sets held out."""

from __future__ import annotations

import hashlib

import pytest

from nmt.data.demo import SentenceGenerator, demo_pairs
from nmt.errors import ConfigError


def test_the_corpus_is_the_same_on_every_machine_and_no_sentence_occurs_twice() -> None:
    """Scores in the documentation are of this text; change both together."""
    splits = [list(demo_pairs(name, "en", "de")) for name in ("train", "valid", "test")]
    pairs = [pair for split in splits for pair in split]
    text = "".join(f"{english}\t{german}\n" for english, german in pairs)
    assert [len(split) for split in splits] == [40_000, 300, 300]
    assert all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "ce3eccadc869c0ab51ec4ace2eebacd8d9729cc3b0cd0ddf5e0362a2c25daaa3"


def test_either_direction_works_and_no_other_language() -> None:
    english, german = next(demo_pairs("test", "en", "de"))
    assert next(demo_pairs("test", "de-AT", "en_US")) == (german, english)
    for source, target in (("en", "fr"), ("en", "den"), ("ens", "de"), ("de", "de"), ("", "en")):
        with pytest.raises(ConfigError, match="en and de"):
            next(demo_pairs("test", source, target))


def test_the_grammar_gives_each_sentence_one_translation_either_way() -> None:
    """Else what the corpus lacks because it was drawn second would be hidden, not right."""
    generator = SentenceGenerator(seed=7)
    to_german: dict[str, str] = {}
    to_english: dict[str, str] = {}
    for _ in range(10_000):
        english, german = generator.sentence()
        assert to_german.setdefault(english, german) == german
        assert to_english.setdefault(german, english) == english
