"""Which training pairs are dropped, and from where on there is a reason to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from nmt.config.section import Section


def _off(value: object) -> object:
    return "off" if value is False else value  # what YAML reads an unquoted off as


Action = Annotated[Literal["drop", "report", "off"], BeforeValidator(_off)]


class FilterLimits(Section):
    """From where on pairs have a reason to be dropped."""

    copy_of_source: float = Field(default=0.8, ge=0, le=1)
    """``copy_of_source``: share of the target's words that the source has too, from 5 words on."""
    near_duplicate: float = Field(default=0.87, ge=0.5, le=1)
    """``near_duplicate``: share of common words of two pairs (Jaccard index), from 16 words on."""
    script: float = Field(default=0.5, ge=0, le=1)
    """``script``: share of a side's letters that are of another script."""
    language: float = Field(default=5.0, ge=1)
    """``language``: how many times as likely another language must be."""
    url: float = Field(default=0.4, ge=0, le=1)
    """``url``: share of a side's characters that are addresses."""
    punctuation: float = Field(default=0.5, ge=0, le=1)
    """``punctuation``: share of a side's characters that are punctuation or symbols."""
    repetition: float = Field(default=0.15, ge=0, le=1)
    """``repetition``: share of a side's words that repeat what stands directly before them."""
    boilerplate: int = Field(default=10, ge=2)
    """``boilerplate``: different sources of one target."""
    lexical: float = Field(default=-3.5, le=0)
    """``lexical``: least score of the words, in standard deviations from the mean."""
    scores: float | None = None
    """``scores``: least number in the file of a corpus; there is no usual one."""
    dual_cross_entropy: float = Field(default=0.01, ge=0, le=1)
    """``dual_cross_entropy``: least score of two models, from 0 to 1."""


class FilterConfig(Section):
    """Which training pairs are dropped. Blank and one-sided blank pairs always are.

    Each reason is dropped, reported (the pair is kept) or off. ``blank``, ``bad_utf8``,
    ``characters`` (``max_characters``) and ``length`` (``max_length``) are always dropped.
    """

    max_length: int = Field(default=256, ge=1, le=65_535)
    """Most subwords on either side."""
    min_length: int = Field(default=1, ge=1)
    """Fewest subwords on either side."""
    max_length_ratio: float = Field(default=4.0, ge=1.0)
    """Longest allowed ratio of the two sides' subwords (3 are added to both: short pairs vary)."""
    max_characters: int = Field(default=10_000, ge=1)
    """Longer lines are dropped before they are cut into subwords."""
    deduplicate: bool = False
    """Drop exact repetitions of a pair within the training data: ``duplicate: drop``."""
    length: Literal["drop"] = "drop"
    """A side has more subwords than ``max_length`` or fewer than ``min_length``."""
    ratio: Action = "drop"
    """The sides differ too much in length (``max_length_ratio``)."""
    copy_of_source: Action = "report"
    """The target is the source, or has nearly all its words from it."""
    duplicate: Action = "report"
    """The pair repeats an earlier one of the training data."""
    normalized_duplicate: Action = "report"
    """The pair repeats an earlier one but for case, punctuation and spaces."""
    near_duplicate: Action = "report"
    """The pair is long, and repeats an earlier one but for a few words."""
    script: Action = "report"
    """A side is in another script than its language is."""
    language: Action = "report"
    """A side is in another language, says py3langid (``pip install 'nmt[clean]'``)."""
    swapped: Action = "report"
    """Source and target are swapped."""
    mojibake: Action = "report"
    """Text was decoded as what it was not, says ftfy (``pip install 'nmt[clean]'``)."""
    control: Action = "report"
    """Control characters, zero-width characters and others that are invisible."""
    markup: Action = "report"
    """Tags and entities of HTML, XML, wikis or subtitles."""
    numbers: Action = "report"
    """A number of one side is another one on the other side, or is missing there."""
    url: Action = "report"
    """Mostly addresses of pages or of mail."""
    punctuation: Action = "report"
    """Mostly punctuation or symbols."""
    repetition: Action = "report"
    """The same words again and again."""
    boilerplate: Action = "report"
    """One target stands beside many different sources."""
    lexical: Action = "report"
    """The words do not translate each other, by a lexicon learned from 200 lines or more."""
    misaligned: Action = "report"
    """The pair is in a block of lines that are shifted or unrelated; slow, as ``lexical`` is."""
    scores: Action = "report"
    """A low number in the ``scores`` file of the corpus."""
    dual_cross_entropy: Action = "report"
    """Two models find the pair unlikely, or disagree (``score_with`` of ``nmt prepare``)."""
    limits: FilterLimits = FilterLimits()
    """From where on pairs have a reason to be dropped."""
    extra: dict[str, dict[str, bool | int | float | str]] = Field(default={})
    """Further filters of training pairs by their registered names, each with its parameters."""
    on_bad_utf8: Literal["error", "skip"] = "error"
    """Stop at invalid UTF-8, or drop the pair and count it."""
