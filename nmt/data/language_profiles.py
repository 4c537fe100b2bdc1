"""Learns the trigrams of the languages of a configuration from its training corpora."""

from __future__ import annotations

from itertools import islice

from nmt.data.corpus import read_corpus
from nmt.data.pairs import ReadOptions, SentencePair
from nmt.data.prepared import Recipe
from nmt.text.identification import NO_PROFILES, LanguageProfiles, are_identifiable

_MOST_PAIRS = 5000  # From the beginning of each corpus.


def learn_profiles(recipe: Recipe) -> LanguageProfiles:
    """Return the profiles of all languages if py3langid cannot distinguish them, else none.

    Raises:
        DataError: A corpus is missing, damaged or not parallel.
    """
    config = recipe.config
    lines: dict[str, list[str]] = {}
    for direction in config.directions:
        lines.update({code: [] for code in direction})
    if are_identifiable(lines):
        return NO_PROFILES
    for corpus in recipe.data.training:
        source, target = config.direction(corpus)
        options = ReadOptions(source, target, "skip", config.filters.max_characters)
        for pair in islice(read_corpus(corpus, options), _MOST_PAIRS):
            if isinstance(pair, SentencePair):
                lines[source].append(pair.source)
                lines[target].append(pair.target)
    return LanguageProfiles.learn(lines)
