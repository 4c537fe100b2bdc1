"""Chooses the languages of a line, and the tags that the model reads for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from nmt.config.data import (
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

    @classmethod
    def of(cls, config: InferenceConfig) -> Languages:
        """Return the languages of a trained or imported model."""
        return cls(config.directions, config.language_tags)

    def offered(self, tokenizers: Tokenizers) -> tuple[Direction, ...]:
        """Return all directions that a user can choose from.

        If the model has a single direction and its vocabulary has tags of several languages (an
        imported model), each pair of tagged languages is a direction.
        """
        sources, targets = self._tagged(tokenizers)
        if len(self.directions) > 1 or len(targets) < 2:
            return self.directions
        sources = sources or [self.directions[0].source]
        return tuple(Direction(a, b) for a, b in product(sources, targets) if a != b)

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
        tag_ids = []
        if options.tag is not None:
            tag_ids.append(tokenizers.source.tag_id(options.tag))
        tagged_sources, tagged_targets = self._tagged(tokenizers)
        source = _known("from", options.source, self._codes(0, tagged_sources))
        target = _known("to", options.target, self._codes(1, tagged_targets))
        # Without such a pair, the translation was not trained, but each of the languages is known.
        pairs = matching_pairs((source, target), self.directions) or self.directions
        sources, targets = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        # OPUS-MT: a group of languages, such as ``mul``. Tags for variants of ``zh`` are optional.
        has_groups = len(tokenizers.source.languages) > 1
        is_group = has_groups and len(primary_code(targets[0])) > 2
        needs_tag = is_group and not (has_tag or tag_ids)
        if target is None and (len(targets) > 1 or needs_tag):
            raise _missing("to", tagged_targets if is_group else targets)
        if source is None and self.tags == "both" and len(sources) > 1:
            raise _missing("from", sources)
        if not source:
            source = sources[0] if len(sources) == 1 else ""
        direction = Direction(source, target or targets[0])
        source_tag, target_tag = tagged_languages(self.tags, direction)
        if self.tags is None and target is not None and matching(target, tagged_targets):
            source_tag = target
        if source_tag is not None:
            tag_ids.insert(0, _tag_id(tokenizers.source, source_tag))
        start = None
        if target_tag is not None:
            start = _tag_id(tokenizers.target, target_tag)
        # The tag of a corpus may be the tag of its language.
        return Tags(direction, tuple(dict.fromkeys(tag_ids)), start)

    def _codes(self, side: int, tagged: Iterable[str]) -> list[str]:
        """Return the languages of a side: of the corpora, and of the tags without a corpus."""
        codes = [pair[side] for pair in self.directions]
        named = set[str]()
        for code in codes:
            tags = matching(code, tagged)
            if len(tags) == 1:  # else it is not clear which of them the code names
                named.update(tags)
        return codes + [tag for tag in tagged if tag not in named]

    def _tagged(self, tokenizers: Tokenizers) -> tuple[list[str], list[str]]:
        """Return the languages of each side that have a tag in the vocabulary."""
        of_source, of_target = map(_codes, tokenizers)
        if self.tags == "both":
            return of_source, of_target
        if self.tags == "target":
            return [], of_target
        return [], of_source


def names_language(tag: str) -> bool:
    """Whether a symbol of a vocabulary is the tag of a language: ``<2de>`` or ``>>deu<<``."""
    return code_of_tag(tag) is not None


def _codes(tokenizer: Tokenizer) -> list[str]:
    return [code for code in map(code_of_tag, tokenizer.tags) if code]


def _tag_id(tokenizer: Tokenizer, code: str) -> int:
    symbol = language_symbol(code, tokenizer.tags)
    if symbol is None:
        raise _unknown("to", code, _codes(tokenizer))
    return tokenizer.tags[symbol]


def _known(option: str, code: str | None, codes: Iterable[str]) -> str | None:
    if code is None:
        return None
    near = matching(code, codes)
    if len(near) > 1:
        problem = f"`{option}` {code} is ambiguous: the model has {' and '.join(near)}."
        raise ConfigError(problem, fix=_listed(option, near))
    if not near:
        raise _unknown(option, code, codes)
    return near[0]


def _listed(option: str, codes: Iterable[str]) -> str:
    unique = list(dict.fromkeys(codes))
    shown = unique[:TAGS_SHOWN]
    if len(unique) > len(shown):
        shown.append("...")
    return f"Set `{option}` to a language: {', '.join(shown)}."


def _missing(option: str, codes: Iterable[str]) -> MissingLanguageError:
    side = {"from": "source", "to": "target"}[option]
    problem = f"The model has several {side} languages, and none is chosen."
    return MissingLanguageError(problem, fix=_listed(option, codes))


def _unknown(option: str, code: str, codes: Iterable[str]) -> ConfigError:
    verb = {"from": "from", "to": "into"}[option]
    problem = f"The model does not translate {verb} {code!r}.{did_you_mean(code, codes)}"
    return ConfigError(problem, fix=_listed(option, codes))
