"""Chooses the languages of a line, and the tags that the model reads for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nmt.config.data import Direction, LanguageTags, language_symbol, tagged_languages
from nmt.config.inference import InferenceConfig
from nmt.config.language_codes import primary_code
from nmt.errors import ConfigError, did_you_mean
from nmt.text.tokenizer import TAGS_SHOWN, Tokenizer, Tokenizers

_LANGUAGE_TAG = re.compile(r"<2(.+)>|>>(.+)<<")


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


class MissingLanguageError(ConfigError):
    """The model has several languages, and the user has not chosen one."""


@dataclass(frozen=True, slots=True)
class Languages:
    """The languages that a model translates.

    A code finds a language with the same code, or the only one with the same primary code:
    ``ary`` finds ``ary_Arab``.
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
        return tuple(Direction(a, b) for a in sources for b in targets if a != b)

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
        added = () if options.tag is None else (tokenizers.source.tag_id(options.tag),)
        tagged = self._tagged(tokenizers)
        codes = [[*(pair[side] for pair in self.directions), *tagged[side]] for side in (0, 1)]
        source, target = map(_known, ("from", "to"), options[:2], codes)
        pairs = [
            pair for pair in self.directions if all(map(_is_same, pair, (source, target)))
        ] or self.directions  # else not trained, but each of the languages is known
        sources, targets = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        # OPUS-MT: a group of languages, such as ``mul``. Tags for variants of ``zh`` are optional.
        is_group = len(tokenizers.source.languages) > 1 and len(primary_code(targets[0])) > 2
        if target is None and (len(targets) > 1 or (is_group and not (has_tag or added))):
            raise _missing("to", tagged[1] if is_group else targets)
        if source is None and self.tags == "both" and len(sources) > 1:
            raise _missing("from", sources)
        known = sources[0] if len(sources) == 1 else ""
        direction = Direction(source or known, target or targets[0])
        first, start = tagged_languages(self.tags, direction)
        if self.tags is None and target is not None and _near(target, tagged[1]):
            first = target
        before = () if first is None else (_tag_id(tokenizers.source, first),)
        after = None if start is None else _tag_id(tokenizers.target, start)
        # The tag of a corpus may be the tag of its language.
        return Tags(direction, tuple(dict.fromkeys(before + added)), after)

    def _tagged(self, tokenizers: Tokenizers) -> tuple[list[str], list[str]]:
        """Return the languages of each side that have a tag in the vocabulary."""
        if self.tags in ("target", "both"):
            sources = _codes(tokenizers.source) if self.tags == "both" else []
            return sources, _codes(tokenizers.target)
        return [], _codes(tokenizers.source)


def names_language(tag: str) -> bool:
    """Whether a symbol of a vocabulary is the tag of a language: ``<2de>`` or ``>>deu<<``."""
    return _LANGUAGE_TAG.fullmatch(tag) is not None


def _codes(tokenizer: Tokenizer) -> list[str]:
    found = map(_LANGUAGE_TAG.fullmatch, tokenizer.tags)
    return [match[1] or match[2] for match in found if match]


def _tag_id(tokenizer: Tokenizer, code: str) -> int:
    if (symbol := language_symbol(code, tokenizer.tags)) is None:
        raise _unknown("to", code, _codes(tokenizer))
    return tokenizer.tags[symbol]


def _near(code: str, codes: Iterable[str]) -> list[str]:
    """Return ``code`` if ``codes`` contain it, else all codes with the same primary code."""
    unique = list(dict.fromkeys(codes))
    return [code] if code in unique else [x for x in unique if _is_same(x, code)]


def _is_same(code: str, wanted: str | None) -> bool:
    return wanted is None or primary_code(code) == primary_code(wanted)


def _known(option: str, code: str | None, codes: Iterable[str]) -> str | None:
    if code is None:
        return None
    near = _near(code, codes)
    if len(near) != 1:
        raise _unknown(option, code, near or codes)
    return near[0]


def _listed(option: str, codes: Iterable[str]) -> str:
    unique = list(dict.fromkeys(codes))
    more = ", ..." if len(unique) > TAGS_SHOWN else ""
    return f"Set `{option}` to a language: {', '.join(unique[:TAGS_SHOWN])}{more}."


def _missing(option: str, codes: Iterable[str]) -> MissingLanguageError:
    side = {"from": "source", "to": "target"}[option]
    problem = f"The model has several {side} languages, and none is chosen."
    return MissingLanguageError(problem, fix=_listed(option, codes))


def _unknown(option: str, code: str, codes: Iterable[str]) -> ConfigError:
    verb = {"from": "from", "to": "into"}[option]
    problem = f"The model does not translate {verb} {code!r}.{did_you_mean(code, codes)}"
    return ConfigError(problem, fix=_listed(option, codes))
