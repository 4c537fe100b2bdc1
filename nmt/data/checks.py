"""Quick checks of a corpus, which only yield warnings and never drop a pair.

The checks detect wrong or swapped languages, identical sides, lengths that do not correlate, and
held-out sentences that occur unchanged in the training data. `learn_profiles` lets the checks of
languages distinguish more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice

import numpy as np

from nmt.config.data import CorpusConfig, Direction
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_files, first_pairs, is_piped
from nmt.data.formats.pair import ReadOptions, SentencePair
from nmt.data.hubs import cached_test_sets, is_on_hub
from nmt.data.prepared import Recipe
from nmt.errors import DataError
from nmt.text.identification import (
    LanguageProfiles,
    likeliest_label,
    look_ahead,
    similar_labels,
)
from nmt.text.languages import foreign_share, script_of
from nmt.text.preprocessing import tokenized_text

_IDENTICAL_SHARE = 0.1  # Of the pairs; a larger share with identical sides is a warning.
_FEWEST_LINES = 100  # Minimum number of pairs for a correlation.
_LOW_CORRELATION = 0.3
_LANGUAGE_LINES = 500  # Lines whose languages are identified.
_FEWEST_CHARACTERS = 12  # Of a line whose language is identified.
_FEWEST_OF_LANGUAGE = 20  # Minimum number of lines to detect a language.
_FEWEST_SIGNS = 3  # Minimum number of lines in another language than the expected one.
_MOST_FOREIGN = 0.5  # Share of letters in another script, in a line that can be in a language.
_PROFILE_PAIRS = 5000  # From the beginning of each corpus.
Texts = Sequence[tuple[str, str]]  # sources and targets
# Two languages, then language and text of one or two sides.
SentenceKey = tuple[tuple[str, str], ...]
# Of the source, the target and the pair.
SentenceKeys = tuple[SentenceKey, SentenceKey, SentenceKey]
# Of the source, the references, and the pairs with each reference.
HeldOutKeys = list[tuple[SentenceKey, ...]]


def _is_clear(share: float, rival_share: float) -> bool:
    """Whether ``share`` is more than three times ``rival_share``, plus 2 percentage points."""
    return share > 3 * rival_share + 0.02


def _labels(lines: Iterable[str]) -> Counter[str]:
    """Return the number of lines by the label of the likeliest language.

    Only the first lines are read. Short lines are left out, because their language is unsure.
    """
    first_lines = islice(lines, _LANGUAGE_LINES)
    texts = [line for line in first_lines if len(line) >= _FEWEST_CHARACTERS]
    labels = map(likeliest_label, texts)
    return Counter(labels)


def _share_in(code: str, lines: Sequence[str]) -> float | None:
    """Return the share of lines that can be in a language; None if that cannot be identified.

    A language that py3langid does not support is identified by its script, if that is not Latin.
    """
    expected = similar_labels(code)
    if expected:
        labels = _labels(lines)
        num_similar = sum(map(labels.__getitem__, expected))
        return num_similar / max(labels.total(), 1)
    if script_of(code) in (None, "Latn"):
        return None
    texts = lines[:_LANGUAGE_LINES]
    num_in_script = sum(foreign_share(text, code) < _MOST_FOREIGN for text in texts)
    return num_in_script / max(len(texts), 1)


def other_language(lines: Iterable[str], language: str, others: Iterable[str]) -> str | None:
    """Return the code of the detected language if it clearly differs from ``language``, else None.

    Args:
        lines: The text; only the first lines are used.
        language: Code of the expected language.
        others: Codes of likely languages, in the spelling of the result.
    """
    expected = similar_labels(language)
    labels = _labels(lines)
    if not (expected and labels):
        return None
    num_similar = sum(map(labels.__getitem__, expected))
    likeliest, count = labels.most_common(1)[0]
    total = labels.total()
    if likeliest in expected or count < _FEWEST_SIGNS:
        return None
    if not _is_clear(count / total, num_similar / total):
        return None
    for code in others:
        if likeliest in similar_labels(code):
            return code
    return likeliest


def likely_language(lines: Iterable[str]) -> str | None:
    """Return the code of the detected language; None if unclear, or with fewer than 20 lines."""
    labels = _labels(lines)
    if labels.total() < _FEWEST_OF_LANGUAGE:
        return None
    likeliest, count = labels.most_common(1)[0]
    total = labels.total()
    num_others = total - count  # lines in all other languages together
    is_clear = _is_clear(count / total, num_others / total)
    return likeliest if is_clear else None


def swapped_sets(config: RunConfig) -> Iterator[str]:
    """Yield a warning for each corpus whose first 500 pairs seem to have swapped sides.

    Skips corpora that are on a hub, on standard input, missing or damaged.
    """
    for name, corpus in config.data.corpora.items():
        if not corpus_files(corpus) or is_piped(corpus):
            continue
        languages = config.direction(corpus)
        with suppress(DataError):
            pairs = first_pairs(corpus, ReadOptions(*languages, "skip"), _LANGUAGE_LINES)
            check = CorpusCheck(*languages, [pair[:2] for pair in pairs])
            for text in check.swapped():
                yield f"{name}: {text}"


def learn_profiles(recipe: Recipe) -> LanguageProfiles:
    """Return the profiles of all languages.

    Raises:
        DataError: A corpus is missing, damaged or not parallel.
    """
    config = recipe.config
    lines = dict[str, list[str]]()  # by language
    for direction in config.directions:
        lines |= {code: [] for code in direction}
    for corpus in recipe.data.training:
        source, target = config.direction(corpus)
        options = ReadOptions(source, target, "skip", config.filters.max_characters)
        pairs = first_pairs(corpus, options, _PROFILE_PAIRS)
        lines[source] += [pair.source for pair in pairs]
        lines[target] += [pair.target for pair in pairs]
    return LanguageProfiles.learn(lines)


class CorpusCheck:
    """Collects statistics of one corpus, block by block, to warn about its quality.

    Args:
        source_language: Code of the expected source language.
        target_language: Code of the expected target language.
        pairs: The first block; further blocks follow with `update`.
    """

    def __init__(self, source_language: str, target_language: str, pairs: Texts = ()) -> None:
        self._num_identical = 0  # pairs whose sides are identical
        self._num_pairs = 0
        self._languages = (source_language, target_language)
        self._first_pairs = list[tuple[str, str]]()  # for the detection of the languages
        # A pair has three values: 1 and the log lengths of source and target, in characters. Sums
        # over all pairs of the products of each two values. (3, 3)
        self._sums = np.zeros((3, 3))
        self.update(pairs)

    def update(self, pairs: Texts) -> None:
        """Add the next block of pairs to the statistics."""
        self._first_pairs += pairs[: _LANGUAGE_LINES - len(self._first_pairs)]
        self._num_pairs += len(pairs)
        source_lengths = [len(source) for source, _ in pairs]
        target_lengths = [len(target) for _, target in pairs]
        logs = np.log1p([source_lengths, target_lengths])
        values = np.vstack((np.ones(len(pairs)), logs))  # (3, pairs)
        self._sums += values @ values.T
        self._num_identical += sum(source == target for source, target in pairs)

    def warnings(self) -> Iterator[str]:
        """Yield the warnings as sentences."""
        if self._num_identical > _IDENTICAL_SHARE * self._num_pairs:
            share = self._num_identical / self._num_pairs
            yield f"{share:.0%} of the pairs have identical sides. Is one file passed twice?"
        yield from self.swapped()
        sides = zip(*self._first_pairs, strict=True)  # all sources and all targets; or no item
        for language, lines in zip(self._languages, sides, strict=False):
            warning = tokenized_text(lines, language)
            if warning is not None:
                yield warning
        # The correlation of the log lengths of both sides is high for translations. It is 1 if a
        # side has lines of one length only, which has no correlation.
        means = self._sums / max(self._num_pairs, 1)  # of the products of each two values
        mean_logs = means[0, 1:]  # products with 1
        covariance = means[1:, 1:] - np.outer(mean_logs, mean_logs)  # (2, 2)
        variances = np.diag(covariance).clip(0)  # rounding may make them negative
        spread = np.sqrt(variances.prod())
        correlation = float(covariance[0, 1] / spread) if spread > 1e-9 else 1.0
        if self._num_pairs >= _FEWEST_LINES and correlation < _LOW_CORRELATION:
            text = f"source and target lengths hardly correlate ({correlation:.2f})"
            yield f"{text}. Are the files aligned line by line?"

    def swapped(self) -> Iterator[str]:
        """Yield a warning if each side looks like the language of the other side."""
        if not self._first_pairs:
            return
        sides = list(zip(*self._first_pairs, strict=True))  # all sources, then all targets
        look_ahead(chain.from_iterable(sides))
        source, target = self._languages
        seem_swapped = []  # of each language that can be identified
        for side, code in enumerate(self._languages):
            share_here = _share_in(code, sides[side])
            share_on_other_side = _share_in(code, sides[1 - side])
            if share_here is not None and share_on_other_side is not None:
                seem_swapped.append(_is_clear(share_on_other_side, share_here))
        if seem_swapped and all(seem_swapped):
            looks = f"the source looks like {target} and the target like {source}"
            yield f"{looks}. Are the sides swapped?"


def held_out_sets(recipe: Recipe) -> tuple[dict[str, CorpusConfig], list[str]]:
    """Return the held-out sets to search for in the training data.

    Returns:
        The available sets by name, from the configuration and sacrebleu's cache; and the names of
        the configured sets that are not downloaded.
    """
    config = recipe.config
    data = recipe.data
    sets = dict(recipe.valid_sets)
    not_downloaded = []
    # Data sets of training and validation are downloaded anyway.
    downloaded = {corpus.huggingface for corpus in (*data.training, *data.validation)}
    for name, corpus in data.test.items():
        if recipe.drops_held_out:  # the result must not depend on what is downloaded
            is_available = True
        elif corpus.sacrebleu is not None:
            is_available = corpus.sacrebleu in cached_test_sets(config.direction(corpus))
        else:
            is_available = not is_on_hub(corpus) or corpus.huggingface in downloaded
        if is_available:
            sets[name] = corpus
        else:
            not_downloaded.append(name)
    # Sets in sacrebleu's cache are compared even if they are not configured, except those that are
    # configured under another name, or whose name a configured set has.
    configured = (*recipe.valid_sets.values(), *data.test.values())
    published_names = {corpus.sacrebleu for corpus in configured}
    excluded = {*published_names, *sets, *not_downloaded}
    cached = cached_test_sets((config.source_language, config.target_language))
    for name, (source, references) in cached.items():
        if name not in excluded:
            sets[name] = CorpusConfig(source=(source,), target=tuple(references))
    return sets, not_downloaded


def name_of_test(name: str) -> str:
    """Return the name of a test set in reports that also contain training corpora."""
    return f"data.test.{name}"


class Overlap:
    """Counts the held-out sentences that occur unchanged in the training data.

    Only corpora of the same two languages are compared, in either direction. Only the held-out
    sentences are kept in memory.

    Args:
        sets: The pairs, by the name of the set.
        directions: Languages of each set.
    """

    def __init__(
        self, sets: Mapping[str, Sequence[SentencePair]], directions: Mapping[str, Direction]
    ) -> None:
        self._sets = dict[str, list[HeldOutKeys]]()  # by name: the keys of each pair
        self._wanted = set[SentenceKey]()  # keys of all sets
        self._seen = set[SentenceKey]()  # those that occur in the training data
        for name, pairs in sets.items():
            set_keys = [held_out_keys(directions[name], pair) for pair in pairs]
            self._sets[name] = set_keys
            self._wanted.update(*chain.from_iterable(set_keys))

    def see(self, pairs: Sequence[SentencePair], direction: Direction) -> None:
        """Record the held-out sentences that occur in a block of training pairs."""
        keys = chain.from_iterable(sentence_keys(direction, *pair[:2]) for pair in pairs)
        self._seen |= self._wanted.intersection(keys)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of `PrepareReport.overlap`, by set, without near copies."""
        counts = {}
        earlier = list[list[HeldOutKeys]]()  # keys of the sets before this one
        for name, set_keys in self._sets.items():
            num_seen = np.zeros(3, np.int64)  # sources, targets and pairs
            for keys in set_keys:  # True counts 1
                num_seen += [not self._seen.isdisjoint(alternatives) for alternatives in keys]
            num_sources, num_targets, num_pairs = num_seen.tolist()
            counts[name] = {
                "pairs": len(set_keys),
                "sources_in_train": num_sources,
                "near_sources_in_train": 0,
                "targets_in_train": num_targets,
                "pairs_in_train": num_pairs,
            }
            if set_keys in earlier:
                counts[name]["repeats"] = 1
            earlier.append(set_keys)
        return counts


def held_out_keys(direction: Direction, pair: SentencePair) -> HeldOutKeys:
    """Return the keys of a held-out pair: of the source, of the references, and of the pairs."""
    references = pair.target, *pair.other_targets
    keys = [sentence_keys(direction, pair.source, reference) for reference in references]
    return list(zip(*keys, strict=True))


def sentence_keys(direction: Direction, source: str, target: str) -> SentenceKeys:
    """Return keys that identify the source, the target and the pair. No side may be blank.

    A pair and the reversed pair have the same key. Spacing does not count.
    """
    languages = min(direction), max(direction)  # the same for both directions
    source_side = direction.source, " ".join(source.split())
    target_side = direction.target, " ".join(target.split())
    both_sides = sorted((source_side, target_side))
    return (languages, source_side), (languages, target_side), (languages, *both_sides)
