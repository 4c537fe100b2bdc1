"""Chooses the languages of a line, and the tags that the model reads for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nmt.config.data import Direction, LanguageTags, language_symbol, tag_symbol, tagged_languages
from nmt.config.run import RunConfig
from nmt.errors import ConfigError, did_you_mean
from nmt.text.languages import primary_code
from nmt.text.tokenizer import TAGS_SHOWN, Tokenizer, Tokenizers

_LANGUAGE_TAG = re.compile(r"<2(.+)>|>>(.+)<<")


class LanguageOptions(NamedTuple):
    """Languages and tag that a user has set; None if not set."""

    source: str | None = None  # Language code.
    target: str | None = None
    tag: str | None = None  # Tag of a domain, or of the target language.


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
    def of(cls, config: RunConfig) -> Languages:
        """Return the languages of a trained or imported model."""
        return cls(config.directions, config.language_tags)

    def offered(self, tokenizers: Tokenizers) -> tuple[Direction, ...]:
        """Return all directions that a user can choose from.

        If the model has a single direction and its vocabulary has tags of several languages (an
        imported model), each pair of tagged languages is a direction.
        """
        targets = self._tagged(tokenizers)
        if len(self.directions) > 1 or len(targets) < 2:
            return self.directions
        sources = _codes(tokenizers.source) if self.tags == "both" else [self.directions[0].source]
        return tuple(Direction(a, b) for a in sources for b in targets if a != b)

    def choose(
        self,
        tokenizers: Tokenizers,
        options: LanguageOptions = UNSET,
        default: LanguageOptions = UNSET,
        *,
        has_tag: bool = False,
    ) -> Tags:
        """Return languages and tags of a line.

        Args:
            tokenizers: Tokenizers of the model.
            options: Languages and tag of the line.
            default: Languages and tag of lines without their own.
            has_tag: Whether the text begins with the tag of its target language (OPUS-MT).

        Raises:
            MissingLanguageError: A language is not set, and the model has several.
            ConfigError: A language or tag is unknown.
        """
        if has_tag or options.tag is not None:
            default = default._replace(tag=None, target=None if has_tag else default.target)
        both = (_with_target(tokenizers, each) for each in (options, default))
        pairs = zip(*both, strict=True)
        source, target, tag = (own if own is not None else other for own, other in pairs)
        domain = () if tag is None else (tokenizers.source.tag_id(tag),)
        direction = self._direction(tokenizers, source, target, has_tag=has_tag)
        of_source, start = tagged_languages(self.tags, direction)
        if self.tags is None and target is not None:
            of_source = target if language_symbol(target, tokenizers.source.tags) else None
        language = () if of_source is None else (_id(tokenizers.source, of_source),)
        first = None if start is None else _id(tokenizers.target, start)
        return Tags(direction, language + domain, first)

    def _direction(
        self, tokenizers: Tokenizers, source: str | None, target: str | None, *, has_tag: bool
    ) -> Direction:
        pairs = self.directions
        if source is not None:
            near = _near(source, (pair.source for pair in pairs))
            known = _codes(tokenizers.source) if self.tags == "both" else []
            if not (near or _near(source, known)):
                raise _unknown("from", source, [*(pair.source for pair in pairs), *known])
            pairs = tuple(pair for pair in pairs if pair.source in near) or pairs
            source = near[0] if len(near) == 1 else source
        tagged, targets = self._tagged(tokenizers), dict.fromkeys(pair.target for pair in pairs)
        if target is not None:
            near = _near(target, tagged) or _near(target, targets)
            if len(near) != 1:
                raise _unknown("to", target, near or [*targets, *tagged])
            (target,) = near
            near = _near(target, targets)
            pairs = tuple(pair for pair in pairs if pair.target in near) or pairs
        elif len(targets) > 1 or (not has_tag and self._is_group(tokenizers)):
            codes = [*targets] if len(targets) > 1 else tagged
            problem = "The model translates into several languages, and the target is not set."
            raise MissingLanguageError(problem, fix=f"Set `to` to a language: {_listed(codes)}.")
        else:
            (target,) = targets
        sources = dict.fromkeys(pair.source for pair in pairs)
        if source is None and len(sources) > 1 and self.tags == "both":
            problem = "The model translates from several languages, and the source is not set."
            fix = f"Set `from` to a language: {_listed(sources)}."
            raise MissingLanguageError(problem, fix=fix)
        return Direction(source or (next(iter(sources)) if len(sources) == 1 else ""), target)

    def _is_group(self, tokenizers: Tokenizers) -> bool:
        """Whether an OPUS-MT model needs a tag. Tags for variants of ``zh`` are optional."""
        is_group = len(primary_code(self.directions[0].target)) > 2
        return is_group and len(tokenizers.source.languages) > 1

    def _tagged(self, tokenizers: Tokenizers) -> list[str]:
        """Return the target languages that have a tag in the vocabulary."""
        return _codes(tokenizers.target if self.tags in ("target", "both") else tokenizers.source)


def _with_target(tokenizers: Tokenizers, options: LanguageOptions) -> LanguageOptions:
    """Replace a tag that names a language by the language."""
    symbols = {**tokenizers.source.tags, **tokenizers.target.tags}
    symbol = None if options.tag is None else tag_symbol(options.tag, symbols)
    match = _LANGUAGE_TAG.fullmatch(symbol or "")
    if match is None:
        return options
    if options.target is not None:
        problem = f"`tag` {options.tag} and `to` {options.target} cannot be combined."
        raise ConfigError(problem, fix="Remove `tag`: `to` adds the tag of the language.")
    return options._replace(target=match[1] or match[2], tag=None)


def _codes(tokenizer: Tokenizer) -> list[str]:
    found = map(_LANGUAGE_TAG.fullmatch, tokenizer.tags)
    return [match[1] or match[2] for match in found if match]


def _id(tokenizer: Tokenizer, code: str) -> int:
    symbol = language_symbol(code, tokenizer.tags)
    if symbol is None:
        raise _unknown("to", code, _codes(tokenizer))
    return tokenizer.tags[symbol]


def _near(code: str, codes: Iterable[str]) -> list[str]:
    """Return ``code`` if ``codes`` contain it, else all codes with the same primary code."""
    unique = list(dict.fromkeys(codes))
    primary = primary_code(code)
    return [code] if code in unique else [x for x in unique if primary_code(x) == primary]


def _listed(codes: Iterable[str]) -> str:
    unique = list(dict.fromkeys(codes))
    return ", ".join(unique[:TAGS_SHOWN]) + (", ..." if len(unique) > TAGS_SHOWN else "")


def _unknown(option: str, code: str, codes: Iterable[str]) -> ConfigError:
    verb, unique = {"from": "from", "to": "into"}[option], list(dict.fromkeys(codes))
    problem = f"The model does not translate {verb} {code!r}.{did_you_mean(code, unique)}"
    return ConfigError(problem, fix=f"Set `{option}` to a language: {_listed(unique)}.")
