"""Chooses the languages of a line, and the tags that the model reads for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from nmt.config.data import (
    ANY_LANGUAGE,
    Direction,
    LanguageTags,
    code_of_tag,
    language_symbol,
    tagged_languages,
)
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import matching, matching_pairs, primary_code
from nmt.errors import ConfigError, did_you_mean
from nmt.text.tokenizer import TAGS_SHOWN, Tokenizer, Tokenizers


class LanguageOptions(NamedTuple):
    """Languages and tag that a user has set; None if not set."""

    source: str | None = None  # Language code.
    target: str | None = None
    tag: str | None = None  # Tag in front of the source, such as a domain.


UNSET = LanguageOptions()  # No language and no tag.


class Tags(NamedTuple):
    """Languages of a line, and the ids of their tags."""

    direction: Direction = Direction("", "")  # The source is empty if it is not known.
    source_ids: tuple[int, ...] = ()  # Tags in front of the source: language, then domain.
    start: int | None = None  # First token of the target: the tag of its language.

    @property
    def target_ids(self) -> tuple[int, ...]:
        """Tag in front of the target, if any."""
        return () if self.start is None else (self.start,)


class MissingLanguageError(ConfigError):
    """The model has several languages, and the user has not chosen one."""


@dataclass(frozen=True)
class Languages:
    """The languages that a model translates.

    A code finds the only language that it matches (`nmt.config.language_codes.matching`): ``deu``
    and ``de-AT`` find ``de``.
    """

    # Languages of the training corpora; never empty. A code is empty if it is not known.
    directions: tuple[Direction, ...] = (Direction("", ""),)
    tags: LanguageTags | None = None  # Place of the language tags; None without tags.
    always_tagged: bool = False  # Whether every line of training had the tag of its corpus.

    @classmethod
    def of(cls, config: InferenceConfig) -> Languages:
        """Return the languages of a trained or imported model."""
        return cls(config.directions, config.language_tags, config.always_tagged)

    def offered(self, tokenizers: Tokenizers) -> tuple[Direction, ...]:
        """Return all directions that a user can choose from.

        If the model has a single direction and its vocabulary has tags of several languages (an
        imported model), each pair of tagged languages is a direction.
        """
        sources, targets = self._tagged(tokenizers)
        if len(self.directions) > 1 or len(targets) < 2:
            return self.directions
        sources = sources or [self.directions[0].source]  # without tags of source languages
        pairs = product(sources, targets)
        return tuple(Direction(source, target) for source, target in pairs if source != target)

    def choose(
        self, tokenizers: Tokenizers, options: LanguageOptions = UNSET, *, has_tag: bool = False
    ) -> Tags:
        """Return languages and tags of a line.

        Args:
            tokenizers: Tokenizers of the model.
            options: Languages and tag of the line.
            has_tag: Whether the text begins with the tag of its target language (OPUS-MT).

        Raises:
            MissingLanguageError: A language is not set, and the model has several.
            ConfigError: A language or tag is unknown.
        """
        source_tag_ids = []  # the tag of the language is inserted below, before the user's tag
        if options.tag is not None:
            source_tag_ids.append(tokenizers.source.tag_id(options.tag))
        tagged_sources, tagged_targets = self._tagged(tokenizers)
        source = _find_code("from", options.source, self._codes_of_side(0, tagged_sources))
        target = _find_code("to", options.target, self._codes_of_side(1, tagged_targets))
        # Without such a pair, the translation was not trained, but each of the languages is known.
        pairs = matching_pairs((source, target), self.directions) or self.directions
        # The languages to choose from, each once.
        sources = list(dict.fromkeys(code for code, _ in pairs))
        targets = list(dict.fromkeys(code for _, code in pairs))
        # An OPUS-MT model reads the tag of the target language in front of the source.
        has_opus_tags = len(tokenizers.source.languages) > 1
        # Its target may be a group of languages with a code of three letters, such as ``mul``. The
        # tags of a model for one language, such as those for variants of ``zh``, are optional.
        is_group = has_opus_tags and len(primary_code(targets[0])) > 2
        # The import found no languages, and the user chose none for it.
        is_unset = self.tags == "both" and targets == [ANY_LANGUAGE]
        # In a group only a tag, in the text or set by the user, tells the language.
        needs_tag = is_group and not has_tag and options.tag is None
        has_choice = len(targets) > 1 or needs_tag or is_unset
        if target is None and has_choice:
            raise _missing_language("to", tagged_targets if is_group or is_unset else targets)
        # The source language must be known only if the model reads a tag for it.
        if source is None and self.tags == "both" and (len(sources) > 1 or is_unset):
            raise _missing_language("from", tagged_sources if is_unset else sources)
        if not source:
            source = sources[0] if len(sources) == 1 else ""
        direction = Direction(source, target or targets[0])
        source_tag, target_tag = tagged_languages(self.tags, direction)
        # An imported model has no `tags`, but its vocabulary may have a tag of the target language.
        if self.tags is None and target is not None and matching(target, tagged_targets):
            source_tag = target
        if source_tag is not None:
            source_tag_ids.insert(0, _tag_id(tokenizers.source, source_tag))
        start = None
        if target_tag is not None:
            start = _tag_id(tokenizers.target, target_tag)
        # The tag of a corpus may be the tag of its language: use it once.
        return Tags(direction, tuple(dict.fromkeys(source_tag_ids)), start)

    def _codes_of_side(self, side: int, tagged: Iterable[str]) -> list[str]:
        """Return the languages of the corpora, and those that only have a tag.

        Args:
            side: 0 for the source, 1 for the target.
            tagged: Languages with a tag in the vocabulary.
        """
        codes = [direction[side] for direction in self.directions]
        tagged_in_corpora = set[str]()
        for code in codes:
            matching_tags = matching(code, tagged)
            if len(matching_tags) == 1:  # else it is not clear which of them the code means
                tagged_in_corpora.update(matching_tags)
        return codes + [tag for tag in tagged if tag not in tagged_in_corpora]

    def _tagged(self, tokenizers: Tokenizers) -> tuple[list[str], list[str]]:
        """Return the source languages and the target languages with a tag in the vocabulary."""
        in_source_vocabulary, in_target_vocabulary = map(_tagged_codes, tokenizers)
        if self.tags == "both":
            return in_source_vocabulary, in_target_vocabulary
        if self.tags == "target":
            return [], in_target_vocabulary
        return [], in_source_vocabulary  # a tag in front of the source is the target language


def _tagged_codes(tokenizer: Tokenizer) -> list[str]:
    """Return the codes of the languages that have a tag in a vocabulary."""
    return [code for code in map(code_of_tag, tokenizer.tags) if code]


def _tag_id(tokenizer: Tokenizer, code: str) -> int:
    symbol = language_symbol(code, tokenizer.tags)
    if symbol is None:
        raise _unknown_language("to", code, _tagged_codes(tokenizer))
    return tokenizer.tags[symbol]


def _find_code(option: str, code: str | None, codes: Iterable[str]) -> str | None:
    """Return the only one of ``codes`` that ``code`` matches; None if no code is set.

    Args:
        option: ``from`` or ``to``, for messages.
        code: The user's code of a language, such as ``deu``.
        codes: Codes of the model, such as ``de``.

    Raises:
        ConfigError: No code matches, or several codes match.
    """
    if code is None:
        return None
    matches = matching(code, codes)
    if len(matches) > 1:
        raise ConfigError(
            f"`{option}` {code} is ambiguous: the model has {' and '.join(matches)}.",
            fix=_language_fix(option, matches),
        )
    if not matches:
        raise _unknown_language(option, code, codes)
    return matches[0]


def _language_fix(option: str, codes: Iterable[str]) -> str:
    """Return the fix to set an option to one of ``codes``, of which it shows the first ones."""
    unique_codes = list(dict.fromkeys(codes))
    shown = unique_codes[:TAGS_SHOWN]
    if len(unique_codes) > len(shown):
        shown.append("...")
    return f"Set `{option}` to a language: {', '.join(shown)}."


def _missing_language(option: str, codes: Iterable[str]) -> MissingLanguageError:
    side = {"from": "source", "to": "target"}[option]
    return MissingLanguageError(
        f"The model has several {side} languages, and none is chosen.",
        fix=_language_fix(option, codes),
    )


def _unknown_language(option: str, code: str, codes: Iterable[str]) -> ConfigError:
    preposition = {"from": "from", "to": "into"}[option]
    return ConfigError(
        f"The model does not translate {preposition} {code!r}.{did_you_mean(code, codes)}",
        fix=_language_fix(option, codes),
    )
